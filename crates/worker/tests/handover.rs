//! Cooperative migrations over a real job socket, with the Python client (needs `python3`).

mod common;

use std::path::PathBuf;

use common::{FakeManager, Stream, WorkerProcess, job, shell};
use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::manager::migration_state::Answer;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{MigrationOrder, WorkerJob, WorkerMessage};

/// A job that does at once what it is asked; with a gate, it ends its output only when that is opened.
const SCRIPT: &str = r#"
import os, sys, time
sys.path.insert(0, CLIENT)
import greenroom_job

gate = sys.argv[1] if len(sys.argv) > 1 else None
job = greenroom_job.connect("a", wants=["handover"])
target = bool(job.migration_id)
if target:
    job.ready(b"from \x00\xff")
else:
    job.status("connected")
while True:
    for message in job:
        kind = message["type"]
        if kind == "sourceState":
            job.status("given " + message["payload"].decode())
        elif kind == "getState":
            job.state(message, b"state")
        elif kind == "stopOutput":
            if gate:
                open(gate).read()
            try:
                job.stopped_output(message, b"after " + message["at"])
            except OSError:
                pass
        elif kind == "begin":
            job.applied(message, message["at"])
        elif kind == "abort" and target:
            job.dropped(message)
        elif kind == "abort":
            job.status("resumed: " + message["reason"])
            job.resumed(message)
    while True:
        try:
            job.reconnect()
            break
        except greenroom_job.JobSocketError:
            time.sleep(0.02)
"#;

struct Scene {
    manager: FakeManager,
    worker: WorkerProcess,
    stream: Stream,
    script: PathBuf,
    dir: tempfile::TempDir,
}

async fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let worker = WorkerProcess::spawn(&dir.path().join("worker"), &manager, "process", "2");
    let stream = manager.meet(1, 0).await;
    let script = dir.path().join("job.py");
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../job/python");
    std::fs::write(&script, SCRIPT.replace("CLIENT", &format!("{client:?}"))).unwrap();
    Scene {
        manager,
        worker,
        stream,
        script,
        dir,
    }
}

impl Scene {
    fn cooperative(&self, gate: &str) -> WorkerJob {
        let command = format!("exec python3 {} {gate}", self.script.display());
        WorkerJob {
            handover: true,
            ..job("j", "s1", vec![shell("a", &command)])
        }
    }

    async fn order(&self, order: fn(MigrationOrder) -> Order, migration_id: &str, payload: &[u8]) {
        let order = order(MigrationOrder {
            job_key: Some(common::key("j")),
            migration_id: migration_id.to_owned(),
            payload: payload.to_vec(),
            reason: "taken back".to_owned(),
        });
        self.stream.order("s1", None, order).await;
    }

    /// The next signal of a migration, in words.
    async fn signal(&mut self) -> String {
        self.stream.until(signal).await
    }

    async fn status(&mut self) -> String {
        self.stream.until(status).await
    }
}

fn signal(message: &WorkerMessage) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match message.message.as_ref()? {
        Said::MigrationState(it) => match it.answer.as_ref()? {
            Answer::Payload(payload) => format!("{} state {}", it.migration_id, text(payload)),
            Answer::Refused(reason) => format!("{} refused {reason}", it.migration_id),
        },
        Said::MigrationTargetReady(it) => format!("{} ready {:?}", it.migration_id, it.payload),
        Said::MigrationSourceStoppedOutput(it) => {
            format!("{} stopped {}", it.migration_id, text(&it.payload))
        }
        Said::MigrationTargetApplied(it) => {
            format!("{} applied {}", it.migration_id, text(&it.payload))
        }
        Said::MigrationAborted(it) => {
            format!("{} aborted {} {}", it.migration_id, it.side, it.reason)
        }
        _ => return None,
    })
}

fn status(message: &WorkerMessage) -> Option<String> {
    match &message.message {
        Some(Said::JobInfo(info)) => match &info.message {
            Some(Info::JobStatus(status)) => Some(status.text.clone()),
            _ => None,
        },
        _ => None,
    }
}

// spec: MGR-01, MGR-02, MGR-06, SOCK-07, SOCK-13
#[tokio::test]
async fn a_source_tells_its_state_ends_its_output_and_goes_back() {
    let mut scene = scene().await;
    scene.stream.provision(scene.cooperative("")).await;
    assert_eq!(scene.status().await, "connected");
    scene.order(Order::MigrationGetState, "m", b"").await;
    assert_eq!(scene.signal().await, "m state state");
    scene
        .order(Order::MigrationCutoverReady, "m", b"frame 9")
        .await;
    assert_eq!(scene.signal().await, "m stopped after frame 9");
    // Another one meanwhile is told off.
    scene.order(Order::MigrationGetState, "other", b"").await;
    assert_eq!(scene.signal().await, "other aborted source other_migration");
    scene.order(Order::MigrationAbort, "m", b"").await;
    assert_eq!(scene.status().await, "resumed: taken back");
    // Now it is free for the next.
    scene.order(Order::MigrationGetState, "other", b"").await;
    assert_eq!(scene.signal().await, "other state state");
    scene.stream.stop("j", "s1", 1_000).await;
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
}

// spec: MGR-03, MGR-04, MGR-10, SOCK-07, SOCK-09, MIGR-08
#[tokio::test]
async fn a_target_is_given_the_state_says_that_it_is_ready_and_takes_over() {
    let mut scene = scene().await;
    let mut target = scene.cooperative("");
    target.migration_id = "m".to_owned();
    target.migration_state = Some(b"the state".to_vec());
    scene.stream.provision(target).await;
    let mut told = Vec::new();
    while told.len() < 3 {
        let news = |message: &WorkerMessage| match &message.message {
            Some(Said::JobStarted(_)) => Some("started".to_owned()),
            _ => signal(message).or_else(|| status(message)),
        };
        told.push(scene.stream.until(news).await);
    }
    let ready = format!("m ready {:?}", b"from \x00\xff");
    let at = |wanted: &str| told.iter().position(|it| it == wanted);
    assert!(at("given the state").is_some(), "{told:?}");
    assert!(
        at("started") < at(&ready) && at("started").is_some(),
        "{told:?}"
    );
    scene
        .order(Order::MigrationCutoverApply, "m", b"frame 12")
        .await;
    assert_eq!(scene.signal().await, "m applied frame 12");
    scene.stream.stop("j", "s1", 1_000).await;
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
}

// spec: HARDM-43, SOCK-12, SOCK-19, MGR-11
#[tokio::test]
async fn a_worker_killed_in_the_middle_of_a_step_asks_it_again_and_tells_its_answer_once() {
    let mut scene = scene().await;
    let gate = scene.dir.path().join("gate");
    let made = std::process::Command::new("mkfifo").arg(&gate).status();
    assert!(made.unwrap().success());
    scene
        .stream
        .provision(scene.cooperative(gate.to_str().unwrap()))
        .await;
    assert_eq!(scene.status().await, "connected");
    scene
        .order(Order::MigrationCutoverReady, "m", b"frame 9")
        .await;
    // It is at it once it reads the gate, and goes on when that is closed.
    let opened =
        tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(gate));
    let held = common::within(opened).await.unwrap().unwrap();
    scene.worker.kill();
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, u64::MAX).await.without_acks();
    drop(held);
    assert_eq!(scene.signal().await, "m stopped after frame 9");
    // Nothing was acknowledged: after the next hello it is told again, and no other time.
    let address = scene.stream.address.clone();
    let node = scene.manager.node.clone();
    let mut again = Stream::dial(&address, &node, 3, 0).await.unwrap();
    assert_eq!(again.until(signal).await, "m stopped after frame 9");
    again.stop("j", "s1", 1_000).await;
    let told = again.reports("s1", "stopped").await;
    assert_eq!(told.last().map(String::as_str), Some("stopped"));
}

// spec: MGR-07
#[tokio::test]
async fn a_job_that_never_connects_refuses() {
    let mut scene = scene().await;
    let silent = WorkerJob {
        handover: true,
        ..job("j", "s1", vec![shell("a", "exec sleep 1000")])
    };
    scene.stream.provision(silent).await;
    scene.stream.reports("s1", "started").await;
    scene.order(Order::MigrationGetState, "m", b"").await;
    assert_eq!(scene.signal().await, "m refused not_connected");
    scene.order(Order::MigrationCutoverReady, "n", b"").await;
    assert_eq!(scene.signal().await, "n aborted source not_connected");
    scene.stream.stop("j", "s1", 1_000).await;
    scene.stream.reports("s1", "stopped").await;
}
