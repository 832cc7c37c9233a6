//! Whole lives of instances on the process runtime: what is told of them, and what a crash of the
//! worker at any moment leaves.

mod common;

use common::{FakeManager, Pipe, Stream, WorkerProcess, id, info_word, job, shell};
use greenroom_proto::common::port_mapping::HostPort;
use greenroom_proto::common::service::ServiceRestart;
use greenroom_proto::common::{
    ActiveJobKey, Capability, HostPortEphemeral, PortMapping, ProtocolFamily, ServiceParameters,
};
use greenroom_proto::manager::Requirements;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{WorkerJob, WorkerMessage};

/// Every process that carries the mark of a start in its environment.
fn marked(start_id: &str) -> Vec<u32> {
    let mark = id(start_id);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&mark) {
            found.push(number);
        }
    }
    found
}

// spec: WORK-25, WORK-20
#[tokio::test]
async fn killed_at_any_step_of_its_journal_a_worker_leaves_nothing_half_made_and_runs_nothing_twice()
 {
    let mut step = 1;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = FakeManager::start().await;
        let state = dir.path().join("state");
        let at = step.to_string();
        let kill = [("TESTBIN_KILL_AT", at.as_str())];
        let mut worker = WorkerProcess::spawn_with(&state, &manager, "process", "2", &kill);
        let (start, runs) = (format!("s{step}"), dir.path().join("runs"));
        let line = format!("echo run >> {}; exec sleep 1000", runs.display());
        let order = job("j", &start, vec![shell("a", &line)]);
        let life = common::kills::live(&mut manager, &mut worker, &order, "j", &start).await;
        assert_eq!(marked(&start), [0; 0], "step {step}: {life:?}");
        let left: Vec<_> = std::fs::read_dir(state.join("instances"))
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        assert!(left.is_empty(), "step {step}: {left:?} {life:?}");
        let ran = std::fs::read_to_string(&runs).unwrap_or_default();
        assert!(ran.lines().count() <= 1, "step {step}: {life:?}");
        if !life.killed {
            break;
        }
        step += 1;
    }
    // Accepted, prepared, running, stopping and removed are written one after the other, at least.
    assert!(step > 10, "the journal has only {step} steps");
}

// spec: WORK-11
#[tokio::test]
async fn each_stage_of_a_life_is_told_as_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let _worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    let flag = dir.path().join("again");
    let line = format!(
        "test -e {0} && exec sleep 1000; touch {0}; exit 3",
        flag.display()
    );
    let mut service = shell("a", &line);
    service.restart = ServiceRestart::OnFailure.into();
    service.restart_count = 2;
    stream.provision(job("j", "s1", vec![service])).await;
    let (mut told, mut started) = (Vec::new(), 0);
    while started < 2 {
        let message = stream.next().await.unwrap();
        if let Some(word) = info_word(&message) {
            started += usize::from(word == "started a");
            told.push(word);
        }
    }
    stream.stop("j", "s1", 1_000).await;
    loop {
        let message = stream.next().await.unwrap();
        told.extend(info_word(&message));
        if matches!(message.message, Some(Said::JobStopped(_))) {
            break;
        }
    }
    let expected = [
        "CREATE 1 services",
        "START ",
        "started a",
        "a: ended with exit code 3",
        "restarting a",
        "started a",
        "STOP grace 1s",
        "DOWN ",
    ];
    assert_eq!(told, expected);
}

/// Control groups for memory that bear the mark of a start.
fn groups(start_id: &str) -> Vec<std::path::PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![std::path::PathBuf::from("/sys/fs/cgroup")]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                if entry.file_name().to_string_lossy().contains(&id(start_id)) {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

// spec: WORK-18
#[tokio::test]
async fn a_memory_limit_is_kept_where_the_machine_can_and_told_where_it_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let _worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    // It holds a hundred megabytes and sleeps, if it comes to that.
    let line = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); exec sleep 1000";
    let mut service = shell("a", line);
    service.parameters = Some(ServiceParameters {
        memory_limit: Some(32 << 20),
        ..Default::default()
    });
    stream.provision(job("j", "s1", vec![service])).await;
    loop {
        let message = stream.next().await.unwrap();
        let told = info_word(&message).unwrap_or_default();
        if told.contains("its memory limit is not enforced here") {
            assert_eq!(groups("s1"), [""; 0].map(std::path::PathBuf::from));
            stream.stop("j", "s1", 0).await;
            break;
        }
        if let Some(Said::JobFailed(failed)) = &message.message {
            assert!(
                failed.reason.starts_with("service a: out of memory"),
                "{failed:?}"
            );
            break;
        }
    }
    let mut words = stream.reports("s1", "stopped").await;
    assert_eq!(words.pop().as_deref(), Some("stopped"));
    assert_eq!(groups("s1"), [""; 0].map(std::path::PathBuf::from));
}

// spec: WORK-43
#[tokio::test]
async fn what_a_node_service_provides_is_offered_told_and_withdrawn_before_it_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let _worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    let mut pipe = Pipe::new(dir.path());
    let sdi = Capability {
        name: "sdi-in".to_owned(),
        count: 1,
        ..Default::default()
    };
    let mut cards = shell("cards", "exec sleep 1000");
    let mapping = PortMapping {
        container_port: 7000,
        protocol: ProtocolFamily::Tcp.into(),
        host_port: Some(HostPort::Ephemeral(HostPortEphemeral {})),
        ..Default::default()
    };
    cards.parameters = Some(ServiceParameters {
        port_mappings: vec![mapping],
        ..Default::default()
    });
    let role = "nodeService".to_owned();
    let service = WorkerJob {
        role: role.clone(),
        provides: vec![sdi.clone()],
        ..job("cards.1", "s1", vec![cards])
    };
    stream.provision(service).await;
    let provided = |message: &WorkerMessage| match &message.message {
        Some(Said::Inventory(inventory)) => Some(inventory.provided.len()),
        _ => None,
    };
    let mut port = 0;
    stream
        .until(|message| {
            if let Some(Said::JobStarted(started)) = &message.message {
                port = started.service_port_mappings["cards"].mappings[0].published;
            }
            provided(message).filter(|count| *count == 1)
        })
        .await;

    let line = format!(
        "echo $GREENROOM_CAP_SDI_IN > {}; exec sleep 1000",
        pipe.path.display()
    );
    let consumer = WorkerJob {
        requirements: Some(Requirements {
            required_capabilities: vec![sdi],
            ..Default::default()
        }),
        ..job("j", "s2", vec![shell("a", &line)])
    };
    stream.provision(consumer).await;
    assert_eq!(pipe.line().await, format!("127.0.0.1:{port}"));
    stream.reports("s2", "started").await;

    let key = ActiveJobKey {
        role,
        ..common::key("cards.1")
    };
    stream.order("s1", Some(500), Order::StopJob(key)).await;
    let mut withdrawn = false;
    let stopped = stream
        .until(|message| {
            withdrawn |= provided(message) == Some(0);
            let stage = info_word(message).filter(|it| it.starts_with("STOP"));
            stage.map(|_| withdrawn)
        })
        .await;
    assert!(stopped, "it is offered no more when its stop begins");
    assert_eq!(stream.reports("s1", "stopped").await, ["stopped"]);
    // Who used it runs on, and ends by its own.
    stream.stop("j", "s2", 0).await;
    assert_eq!(stream.reports("s2", "stopped").await, ["stopped"]);
}

// spec: LIM-05
#[tokio::test]
async fn connections_that_prove_nothing_keep_out_no_manager() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let _worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "process", "2");
    let mut stream = manager.meet(1, 0).await;
    // More than a worker takes; they speak HTTP/2, answer pings and ask for nothing.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(common::connect(&stream.address).await);
    }
    let service = shell("a", "exec sleep 1000");
    stream.provision(job("j", "s1", vec![service])).await;
    stream.reports("s1", "started").await;
    let newer = Stream::dial(&stream.address, &manager.node, 2, 0).await;
    let hello = newer.expect("a greater term controls").hello;
    assert_eq!(hello.instances.len(), 1);
}
