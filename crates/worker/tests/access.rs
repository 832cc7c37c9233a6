//! What a worker is given to keep and jobs may read, with real jobs on the process runtime.

mod common;

use common::{FakeManager, Pipe, WorkerProcess, job, shell};
use greenroom_proto::common::ServiceParameters;
use greenroom_proto::manager::ControlPlane;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{AccessAck, ControlPlanes, DiscoveryAccess, WorkerMessage};

fn access(version: u64, node_token: &str) -> Order {
    Order::DiscoveryAccess(DiscoveryAccess {
        addresses: vec!["disc-1:443".to_owned()],
        leaf_token: "leaf".to_owned(),
        node_token: node_token.to_owned(),
        version,
    })
}

/// An acknowledgement of that version of the discovery access.
fn acked(version: u64) -> impl Fn(&WorkerMessage) -> Option<()> {
    move |message| match message.message {
        Some(Said::AccessAck(AccessAck {
            discovery_version, ..
        })) if discovery_version == version => Some(()),
        _ => None,
    }
}

// spec: WORK-57
#[tokio::test]
async fn a_job_reads_its_access_to_discovery_and_finds_a_new_token_in_the_same_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let mut worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    let (mut pipe, go) = (Pipe::new(dir.path()), dir.path().join("go"));
    let made = std::process::Command::new("mkfifo").arg(&go).status();
    assert!(made.unwrap().success());
    // At each word in the second pipe it tells what stands in the file. It holds the pipe open for both ways:
    // opened anew for each word, it could meet the writer of the last one, and read its end.
    let line = format!(
        "exec 3<> {go}; while read -r word <&3; do cat \"$GREENROOM_DISCOVERY_FILE\" > {out}; echo >> {out}; done",
        go = go.display(),
        out = pipe.path.display()
    );
    let mut asking = shell("asks", &line);
    asking.parameters = Some(ServiceParameters {
        discovery_access: true,
        ..Default::default()
    });
    let silent = shell(
        "does-not",
        "test -z \"$GREENROOM_DISCOVERY_FILE\" && exec sleep 1000",
    );
    stream.provision(job("j", "s", vec![asking, silent])).await;
    let told = stream.reports("s", "started").await;
    assert_eq!(told.last().map(String::as_str), Some("started"));

    for (version, token) in [(1, "gd1.n.1.first"), (2, "gd1.n.2.second")] {
        stream.order("", None, access(version, token)).await;
        stream.until(acked(version)).await;
        std::fs::write(&go, "now\n").unwrap();
        let read: serde_json::Value = serde_json::from_str(&pipe.line().await).unwrap();
        assert_eq!(read["nodeToken"], token);
        assert_eq!(read["leafToken"], "leaf");
    }
    let planes = ControlPlanes {
        planes: vec![ControlPlane {
            member: "m".to_owned(),
            url: "https://control".to_owned(),
            active: true,
            ..Default::default()
        }],
        version: 7,
    };
    stream.order("", None, Order::ControlPlanes(planes)).await;
    stream.until(acked(2)).await;

    // What it was given it has after a kill, and says so.
    worker.kill();
    worker.start_again();
    let stream = manager.meet(2, 0).await;
    assert_eq!(stream.hello.control_plane_version, 7);
    assert_eq!(stream.hello.replica_version, 0);
    std::fs::write(&go, "now\n").unwrap();
    let read: serde_json::Value = serde_json::from_str(&pipe.line().await).unwrap();
    assert_eq!(read["nodeToken"], "gd1.n.2.second");
}
