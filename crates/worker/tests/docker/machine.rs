//! A machine whose kernel does not let a process die. It needs root, like the engine of this program.

use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::common::port_mapping::HostPort;
use greenroom_proto::common::{HostPortSpecific, Service};
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{WorkerJob, WorkerMessage};

use crate::common::{self, FakeManager, Pipe, WorkerProcess, id, job};
use crate::faults::Disk;
use crate::{host, published};

/// A file system that takes no writes until it is thawed, at the latest with the test.
struct Frozen<'a>(&'a Disk);

impl Frozen<'_> {
    fn freeze(disk: &Disk) -> Frozen<'_> {
        host(&format!("fsfreeze --freeze {}", disk.path.display()));
        Frozen(disk)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let path = self.0.path.display();
        host(&format!("fsfreeze --unfreeze {path}"));
    }
}

fn on_port(mut service: Service, port: u16) -> Service {
    let port = u32::from(port);
    service.parameters = published(80, HostPort::Specific(HostPortSpecific { port }));
    service
}

// spec: HARDM-44, WORK-23
#[tokio::test]
async fn what_the_kernel_does_not_let_die_keeps_what_it_holds_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::make(dir.path(), 32);
    let mut manager = FakeManager::start().await;
    let state = dir.path().join("state");
    let worker = WorkerProcess::spawn(&state, &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    let mut pipe = Pipe::new(dir.path());
    let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);

    let (out, file) = (pipe.path.display(), disk.path.join("file"));
    let line = format!(
        "echo up > {out}; while :; do echo x > {}; done",
        file.display()
    );
    let writing = on_port(common::shell("a", &line), port);
    stream.provision(job("j", "s1", vec![writing])).await;
    assert_eq!(pipe.line().await, "up");
    stream.reports("s1", "started").await;
    let frozen = Frozen::freeze(&disk);
    let status = state.join("instances").join(id("s1")).join("status.json");
    let status: serde_json::Value =
        serde_json::from_slice(&std::fs::read(status).unwrap()).unwrap();
    let number = status["services"]["a"]["pid"].as_i64().unwrap();
    // It waits for the disk, and no signal reaches it there.
    let stat = format!("/proc/{number}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") D ") {}

    stream.stop("j", "s1", 100).await;
    let stuck = |message: &WorkerMessage| match &message.message {
        Some(Said::JobInfo(info)) => match &info.message {
            Some(Info::ContainerEvent(event)) => Some(event.text.clone()),
            _ => None,
        },
        _ => None,
    };
    let text = stream.until(stuck).await;
    assert!(text.starts_with("stuck"), "{text}");
    // Its port is nobody else's, and what needs it not goes on.
    let rival = on_port(common::shell("a", "exec sleep 1000"), port);
    stream.provision(job("k", "s2", vec![rival])).await;
    let words = stream.reports("s2", "rejected").await;
    assert_eq!(words, ["rejected JOB_REJECTED_HOST_PORT"]);
    let other: WorkerJob = job("l", "s3", vec![common::shell("a", "exec sleep 1000")]);
    stream.provision(other).await;
    assert_eq!(
        stream.reports("s3", "started").await,
        ["accepted", "started"]
    );
    assert!(std::fs::read_to_string(&stat).unwrap().contains(") D "));

    drop(frozen);
    assert_eq!(stream.reports("s1", "stopped").await, ["stopped"]);
    stream.stop("l", "s3", 0).await;
    stream.reports("s3", "stopped").await;
    drop(worker);
}

// spec: WORK-30
#[tokio::test]
async fn what_a_file_system_keeps_back_from_everybody_is_no_part_of_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::keeping_back(dir.path(), 64, 50);
    let mut manager = FakeManager::start().await;
    let state = disk.path.join("state");
    let worker = WorkerProcess::spawn(&state, &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    let told = |message: &WorkerMessage| match &message.message {
        Some(Said::Inventory(inventory)) => inventory.disks.first().map(|it| it.total),
        _ => None,
    };
    let total = stream.until(told).await;
    assert!((1 << 20..40 << 20).contains(&total), "{total}");
    drop(worker);
}
