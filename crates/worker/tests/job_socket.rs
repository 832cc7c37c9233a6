//! Jobs that talk to their worker, with the clients that jobs use (the Python one needs `python3`).

mod common;

use common::scene::{Scene, scene_in};
use common::{Pipe, id, job, shell, within};
use greenroom_job::{Config, Error, Event, Job};
use greenroom_proto::common::Service;
use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::common::service::ServiceRestart;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{NodeControllerMessage, WorkerJob, WorkerMessage};

/// Deeper than the address of a socket is long.
async fn deep_scene() -> Scene {
    scene_in(&"d".repeat(120)).await
}

fn with_socket(services: Vec<Service>) -> WorkerJob {
    WorkerJob {
        job_socket: true,
        ..job("j", "s1", services)
    }
}

fn configured(mut service: Service, configuration: &str) -> Service {
    service.configuration = configuration.to_owned();
    service
}

/// What the job itself said of how it is doing.
fn status(message: &WorkerMessage) -> Option<(String, Option<f64>)> {
    match &message.message {
        Some(Said::JobInfo(info)) => match &info.message {
            Some(Info::JobStatus(status)) => Some((status.text.clone(), status.progress)),
            _ => None,
        },
        _ => None,
    }
}

// spec: SOCK-01, SOCK-05, SOCK-14, SOCK-15
#[tokio::test]
async fn a_python_job_speaks_with_its_worker() {
    let mut scene = deep_scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let script = scene.dir.path().join("job.py");
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../job/python");
    let text = format!(
        r#"
import signal, sys
sys.path.insert(0, {client:?})
import greenroom_job

signal.signal(signal.SIGTERM, signal.SIG_IGN)
job = greenroom_job.connect("a")
job.status("%(jobId)s %(runtimeRole)s" % job.welcome, 0.5)
for message in job:
    if message["type"] == "config":
        job.status("config " + message["configuration"])
        job.config_applied(message)
    elif message["type"] == "stopping":
        with open({pipe:?}, "w") as out:
            out.write("%(graceMs)d %(reason)s\n" % message)
        break
"#,
        pipe = pipe.path.to_str().unwrap()
    );
    std::fs::write(&script, text).unwrap();
    let service = || {
        let service = shell("a", &format!("exec python3 {}", script.display()));
        Service {
            restart: ServiceRestart::Never.into(),
            ..service
        }
    };
    let first = with_socket(vec![configured(service(), "one")]);
    scene.stream.provision(first).await;
    let told = scene.stream.until(status).await;
    assert_eq!(told, ("j primary".to_owned(), Some(0.5)));
    let update = with_socket(vec![configured(service(), "two")]);
    scene
        .stream
        .order("s1", None, Order::UpdateJob(update))
        .await;
    assert_eq!(scene.stream.until(status).await.0, "config two");
    let applied = |message: &WorkerMessage| match &message.message {
        Some(Said::JobInfo(info)) => match &info.message {
            Some(Info::ContainerEvent(event)) => Some(event.text.clone()),
            _ => None,
        },
        _ => None,
    };
    assert_eq!(scene.stream.until(applied).await, "configuration applied");
    // It ignores the signal and ends by what it was told.
    scene.stream.stop("j", "s1", 60_000).await;
    assert_eq!(pipe.line().await, "60000 USER");
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
    let sockets = scene.worker.state_dir.join("sockets");
    assert_eq!(std::fs::read_dir(sockets).unwrap().count(), 0);
}

// spec: SOCK-05, SOCK-14, SOCK-15, SOCK-19
#[tokio::test]
async fn a_rust_job_speaks_with_its_worker_over_a_restart() {
    let mut scene = deep_scene().await;
    let services = vec![
        configured(shell("a", "exec sleep 1000"), "one"),
        configured(shell("b", "exec sleep 1000"), "two"),
    ];
    scene.stream.provision(with_socket(services.clone())).await;
    scene.stream.reports("s1", "started").await;
    let sockets = scene.worker.state_dir.join("sockets");
    let path = sockets.join(id("s1")).join("job.sock");
    let connect = async || {
        let path = path.clone();
        let connect = move || Job::connect_to(&path, "b", &[]);
        within(tokio::task::spawn_blocking(connect)).await.unwrap()
    };
    let next = async |mut job: Job| {
        let wait = move || {
            let event = job.wait();
            (job, event)
        };
        within(tokio::task::spawn_blocking(wait)).await.unwrap()
    };
    let job = connect().await.unwrap();
    let welcome = job.welcome().clone();
    assert_eq!((welcome.job_id.as_str(), welcome.start_id), ("j", id("s1")));
    assert!(!welcome.prepared && welcome.fence.is_none());
    let config = |a: &str, b: &str| Config {
        configuration: b.to_owned(),
        services: [("a", a), ("b", b)]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    };
    assert_eq!(welcome.config, config("one", "two"));
    job.speaker().status("fine", None).unwrap();
    assert_eq!(scene.stream.until(status).await, ("fine".to_owned(), None));
    // Something that it says and that is refused.
    let re = job.speaker().say("sing", serde_json::json!({})).unwrap();
    let (job, event) = next(job).await;
    let Event::Refused(Some(answered), code, _) = event.unwrap() else {
        panic!();
    };
    assert_eq!((answered, code.as_str()), (re, "unknown_type"));
    scene.worker.kill();
    assert!(matches!(next(job).await.1, Err(Error::Closed)));
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, u64::MAX).await;
    // What was changed over the stream reaches the job on its new connection.
    let job = connect().await.unwrap();
    let changed = vec![
        services[0].clone(),
        configured(services[1].clone(), "three"),
    ];
    let update = Order::UpdateJob(with_socket(changed));
    scene.stream.order("s1", None, update).await;
    let (job, event) = next(job).await;
    let Event::Config {
        id: config_id,
        config: new,
    } = event.unwrap()
    else {
        panic!();
    };
    assert_eq!(new, config("one", "three"));
    job.speaker().config_refused(config_id, "later").unwrap();
    let message = NodeControllerMessage {
        message: Some(Order::StopJob(common::key("j"))),
        start_id: id("s1"),
        grace_ms: Some(1_000),
        reason: "BUNDLE".to_owned(),
        ..Default::default()
    };
    scene.stream.send(message).await;
    let (_job, event) = next(job).await;
    let reason = "BUNDLE".to_owned();
    let stopping = Event::Stopping {
        grace_ms: 1_000,
        reason,
    };
    assert_eq!(event.unwrap(), stopping);
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
    let gone = connect().await.unwrap_err();
    assert!(matches!(gone, Error::Io(_)), "{gone}");
}
