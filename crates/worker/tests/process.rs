//! The worker as a process with the process runtime, driven by a Manager of the test's own.

mod common;

use common::scene::{Scene, scene};
use common::{Node, Pipe, Stream, connect, id, job, key, open, pid, shell, wait_gone, wall};
use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::common::port_mapping::HostPort;
use greenroom_proto::common::service::ServiceRestart;
use greenroom_proto::common::{
    HealthCheck, HostPortEphemeral, HostPortSpecific, JobId, PortMapping, ProtocolFamily,
    ServiceParameters,
};
use greenroom_proto::manager::{InstanceState, Requirements};
use greenroom_proto::status::Refusal;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{PrefetchImages, Shutdown, WorkerJob};
use rustix::process::{Signal, kill_process, test_kill_process};
use tonic::Code;

const START: &str = "s1";

fn is_alive(number: i32) -> bool {
    test_kill_process(pid(number)).is_ok()
}

/// Says its number in the pipe and stays.
fn stays(name: &str, pipe: &Pipe) -> greenroom_proto::common::Service {
    shell(
        name,
        &format!("echo $$ > {}; exec sleep 1000", pipe.path.display()),
    )
}

// spec: WORK-03, WORK-05, WORK-40
#[tokio::test]
async fn a_worker_registers_is_dialled_and_says_hello() {
    let mut scene = scene().await;
    let hello = &scene.stream.hello;
    assert_eq!((hello.protocol_major, hello.protocol_minor), (1, 10));
    assert!(!hello.boot_id.is_empty() && !hello.machine_id.is_empty());
    let metadata = hello.node_metadata.as_ref().unwrap();
    assert_eq!(
        metadata.node_id.as_ref().unwrap().node_id,
        scene.manager.node.id.as_str()
    );
    let inventory = hello.inventory.as_ref().unwrap();
    assert_eq!(
        (inventory.total_capacity, inventory.runtime.as_str()),
        (2.0, "process")
    );
    assert!(inventory.reachable && inventory.memory_bytes > 0);
    // Its health follows without being asked for.
    let health = |message: &_| match message {
        greenroom_proto::worker::WorkerMessage {
            message: Some(Said::Health(_)),
            ..
        } => Some(()),
        _ => None,
    };
    scene.stream.until(health).await;
}

// spec: WORK-02
#[tokio::test]
async fn a_caller_without_proof_is_told_nothing() {
    let scene = scene().await;
    let refused = open(&scene.stream.address, None).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let key = greenroom_auth::NodeKey::generate();
    let other = Node {
        key,
        ..scene.manager.node.clone()
    };
    let refused = Stream::dial(&scene.stream.address, &other, 9, 0)
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

// spec: SEC-05
#[tokio::test]
async fn a_proof_is_worth_nothing_in_another_session() {
    let scene = scene().await;
    let (line, node) = (&scene.stream.address, &scene.manager.node);
    // Whoever sits between Manager and worker has two sessions and passes the proof on.
    let (_, elsewhere) = connect(line).await;
    let proof = node.key.prove_manager(&node.id, &elsewhere, wall());
    let refused = open(line, Some(&proof)).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert_eq!(Refusal::read(&refused).unwrap().reason, "bad_proof");
}

// spec: WORK-01
#[tokio::test]
async fn a_greater_term_takes_over_and_a_lesser_is_refused() {
    let mut scene = scene().await;
    let (address, node_key) = (scene.stream.address.clone(), scene.manager.node.clone());
    let mut second = Stream::dial(&address, &node_key, 2, 0).await.unwrap();
    second.stop("nothing", "s9", 0).await;
    assert_eq!(second.reports("s9", "stopped").await, ["stopped"]);
    // The first stream was ended.
    while scene.stream.next().await.is_ok() {}
    let mut late = Stream::dial(&address, &node_key, 1, 0).await.unwrap();
    let status = late.next().await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert_eq!(Refusal::read(&status).unwrap().reason, "controlled");
}

// spec: WORK-07
#[tokio::test]
async fn a_second_worker_on_a_state_directory_ends_with_4() {
    let scene = scene().await;
    assert_eq!(scene.worker.spawn_another().code(), Some(4));
}

// spec: WORK-66
#[tokio::test]
async fn a_newer_journal_ends_an_older_program_with_6_and_nothing_is_touched() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    scene
        .stream
        .provision(job("j", START, vec![stays("a", &pipe)]))
        .await;
    let service: i32 = pipe.line().await.parse().unwrap();
    scene.stream.reports(START, "started").await;
    scene.worker.kill();
    let newer = "{\"journal\":\"greenroom-worker\",\"version\":1000}\n";
    std::fs::write(scene.worker.state_dir.join("journal.jsonl"), newer).unwrap();
    scene.worker.start_again();
    assert_eq!(scene.worker.wait().code(), Some(6));
    assert!(is_alive(service));
}

// spec: WORK-10, WORK-12, WORK-15, WORK-19
#[tokio::test]
async fn services_start_in_order_with_their_ports_and_variables() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let out = pipe.path.display();
    let mapping = PortMapping {
        container_port: 5004,
        protocol: ProtocolFamily::Udp.into(),
        host_port: Some(HostPort::Ephemeral(HostPortEphemeral {})),
        ..Default::default()
    };
    let mut first = shell("first", &format!("echo first > {out}; exec sleep 1000"));
    let told = "$GREENROOM_JOB_ID $NORSK_RUNTIME_ROLE $GREENROOM_PORT_5004";
    let mut second = shell(
        "second",
        &format!("echo second {told} > {out}; exec sleep 1000"),
    );
    second.depends_on = vec!["first".to_owned()];
    second.parameters = Some(ServiceParameters {
        port_mappings: vec![mapping],
        ..Default::default()
    });
    let gate = scene.dir.path().join("healthy");
    first.parameters = Some(ServiceParameters {
        health_check: Some(HealthCheck {
            command: vec![
                "test".to_owned(),
                "-e".to_owned(),
                gate.display().to_string(),
            ],
            interval_ms: 20,
            retries: 1,
        }),
        ..Default::default()
    });
    scene
        .stream
        .provision(job("j", START, vec![second, first]))
        .await;
    assert_eq!(pipe.line().await, "first");
    // Its check has failed by now and the second service still waits.
    let unhealthy = |message: &greenroom_proto::worker::WorkerMessage| {
        let Some(Said::JobInfo(info)) = &message.message else {
            return None;
        };
        let Some(Info::ContainerEvent(event)) = &info.message else {
            return None;
        };
        event.text.starts_with("unhealthy").then_some(())
    };
    scene.stream.until(unhealthy).await;
    std::fs::write(&gate, "").unwrap();
    let line = pipe.line().await;
    let mappings = scene
        .stream
        .until(|message| match &message.message {
            Some(Said::JobStarted(started)) => Some(started.service_port_mappings.clone()),
            _ => None,
        })
        .await;
    let port = mappings["second"].mappings[0].published;
    assert_eq!(mappings["second"].mappings[0].target, 5004);
    assert_eq!(line, format!("second j primary {port}"));
    scene.stream.stop("j", START, 5_000).await;
    assert_eq!(scene.stream.reports(START, "stopped").await, ["stopped"]);
}

// spec: WORK-23
#[tokio::test]
async fn what_ignores_the_polite_signal_is_killed_after_the_grace() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let line = format!(
        "trap '' TERM; echo $$ > {}; while :; do sleep 1; done",
        pipe.path.display()
    );
    scene
        .stream
        .provision(job("j", START, vec![shell("a", &line)]))
        .await;
    let service: i32 = pipe.line().await.parse().unwrap();
    scene.stream.stop("j", START, 100).await;
    assert_eq!(
        scene.stream.reports(START, "stopped").await.last().unwrap(),
        "stopped"
    );
    assert!(!is_alive(service));
    assert!(
        !scene
            .worker
            .state_dir
            .join("instances")
            .join(id(START))
            .exists()
    );
}

// spec: WORK-18
#[tokio::test]
async fn a_failure_names_service_exit_and_last_lines_and_ends_the_rest() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let bad = shell("bad", "echo something is wrong; exit 3");
    let mut good = stays("good", &pipe);
    let mut bad = bad;
    bad.depends_on = vec!["good".to_owned()];
    good.restart = ServiceRestart::Always.into();
    scene
        .stream
        .provision(job("j", START, vec![bad, good]))
        .await;
    let service: i32 = pipe.line().await.parse().unwrap();
    let words = scene.stream.reports(START, "stopped").await;
    let failed = words
        .iter()
        .find(|word| word.starts_with("failed"))
        .unwrap();
    assert_eq!(
        failed,
        "failed service bad: exit code 3\nsomething is wrong"
    );
    assert!(!is_alive(service));
}

// spec: WORK-18
#[tokio::test]
async fn a_service_is_restarted_by_its_policy_and_the_instance_completes() {
    let mut scene = scene().await;
    // The first run fails, the second finds its mark and ends well.
    let mut service = shell("a", "test -e mark || { touch mark; exit 1; }");
    service.restart = ServiceRestart::OnFailure.into();
    scene.stream.provision(job("j", START, vec![service])).await;
    let restarting = |message: &greenroom_proto::worker::WorkerMessage| {
        let Some(Said::JobInfo(info)) = &message.message else {
            return None;
        };
        matches!(info.message, Some(Info::ServiceRestarting(_))).then_some(())
    };
    scene.stream.until(restarting).await;
    assert_eq!(
        scene
            .stream
            .reports(START, "completed")
            .await
            .last()
            .unwrap(),
        "completed"
    );
}

// spec: WORK-25, WORK-60, WORK-61
#[tokio::test]
async fn a_killed_worker_takes_its_jobs_on_again() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let mut service = stays("a", &pipe);
    service.restart = ServiceRestart::Always.into();
    scene.stream.provision(job("j", START, vec![service])).await;
    let first: i32 = pipe.line().await.parse().unwrap();
    scene.stream.reports(START, "started").await;
    scene.worker.kill();
    // Services are restarted while no worker is there.
    kill_process(pid(first), Signal::KILL).unwrap();
    let second: i32 = pipe.line().await.parse().unwrap();
    assert_ne!(first, second);
    scene.worker.start_again();
    let mut stream = scene.manager.meet(1, 1_000).await;
    let instance = &stream.hello.instances[0];
    assert_eq!(
        (instance.start_id.as_str(), instance.state()),
        (id(START).as_str(), InstanceState::Running)
    );
    assert_eq!(
        stream.hello.inventory.as_ref().unwrap().assigned_jobs.len(),
        1
    );
    assert!(is_alive(second));
    stream.stop("j", START, 5_000).await;
    assert_eq!(stream.reports(START, "stopped").await, ["stopped"]);
    wait_gone(second);
}

#[tokio::test]
async fn a_killed_supervisor_leaves_nothing_running() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let out = pipe.path.display();
    // A child in a session of its own, beyond the service's process group.
    let line = format!("setsid sh -c 'echo $$ > {out}; exec sleep 1000' & wait");
    scene
        .stream
        .provision(job("j", START, vec![shell("a", &line)]))
        .await;
    let service: i32 = pipe.line().await.parse().unwrap();
    scene.stream.reports(START, "started").await;
    kill_process(pid(scene.worker.supervisor(START)), Signal::KILL).unwrap();
    let words = scene.stream.reports(START, "stopped").await;
    assert!(
        words[0].starts_with("failed service supervisor"),
        "{words:?}"
    );
    wait_gone(service);
}

// spec: WORK-61, LOCAL-17
#[tokio::test]
async fn a_polite_end_keeps_jobs_and_leaving_stops_them() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    scene
        .stream
        .provision(job("j", START, vec![stays("a", &pipe)]))
        .await;
    let service: i32 = pipe.line().await.parse().unwrap();
    scene.stream.reports(START, "started").await;
    assert_eq!(scene.worker.signal(Signal::TERM).code(), Some(0));
    assert!(is_alive(service));
    scene.worker.start_again();
    let mut stream = scene.manager.meet(1, 1_000).await;
    assert_eq!(stream.hello.instances.len(), 1);
    let leaving = tokio::task::spawn_blocking(move || scene.worker.signal(Signal::USR1));
    // Goodbye comes first, then what follows from it, then the end of the stream.
    let mut heard = Vec::new();
    while let Ok(message) = stream.next().await {
        heard.extend(match message.message {
            Some(Said::Goodbye(goodbye)) => Some(goodbye.reason),
            Some(Said::JobStopped(_)) => Some(message.start_id),
            _ => None,
        });
    }
    assert_eq!(heard, ["told to leave".to_owned(), id(START)]);
    assert_eq!(leaving.await.unwrap().code(), Some(0));
    wait_gone(service);
}

// spec: LOCAL-17
#[tokio::test]
async fn a_manager_that_comes_while_the_worker_leaves_hears_it_first() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    // It does not end by itself before the test lets it.
    let gate = scene.dir.path().join("gate");
    let line = format!(
        "mkfifo {gate}; trap 'echo asked > {out}; read go < {gate}; exit 0' TERM; echo up > {out}; while :; do sleep 0.05; done",
        gate = gate.display(),
        out = pipe.path.display()
    );
    scene
        .stream
        .provision(job("j", START, vec![shell("a", &line)]))
        .await;
    assert_eq!(pipe.line().await, "up");
    scene.stream.reports(START, "started").await;
    let (address, node) = (scene.stream.address.clone(), scene.manager.node.clone());
    drop(scene.stream);
    let leaving = tokio::task::spawn_blocking(move || scene.worker.signal(Signal::USR1));
    assert_eq!(pipe.line().await, "asked");
    let mut stream = Stream::dial(&address, &node, 2, 1_000).await.unwrap();
    // It is told to stay, by one that could not know; it was told to leave.
    let order = Order::Shutdown(Shutdown {
        grace_ms: 10_000,
        park: true,
    });
    stream.order("", None, order).await;
    let goodbye = |message: &greenroom_proto::worker::WorkerMessage| match message.message {
        Some(Said::Goodbye(_)) => Some(true),
        Some(Said::JobStopped(_)) => Some(false),
        _ => None,
    };
    assert!(stream.until(goodbye).await);
    std::fs::write(&gate, "go\n").unwrap();
    assert_eq!(stream.reports(START, "stopped").await, ["stopped"]);
    while stream.next().await.is_ok() {}
    assert_eq!(leaving.await.unwrap().code(), Some(0));
}

// spec: WORK-60
#[tokio::test]
async fn reports_are_sent_again_until_they_are_acknowledged() {
    let Scene {
        dir: _dir,
        stream,
        mut manager,
        mut worker,
    } = scene().await;
    let mut stream = stream.without_acks();
    stream
        .provision(job("j", START, vec![shell("a", "exec sleep 1000")]))
        .await;
    assert_eq!(
        stream.reports(START, "started").await,
        ["accepted", "started"]
    );
    drop(stream);
    worker.kill();
    worker.start_again();
    // Everything again; then only what is not acknowledged.
    let mut stream = manager.meet(2, 0).await.without_acks();
    assert_eq!(stream.hello.last_report_id, 2);
    assert_eq!(
        stream.reports(START, "started").await,
        ["accepted", "started"]
    );
    let mut stream = Stream::dial(&stream.address, &manager.node, 3, 1)
        .await
        .unwrap();
    assert_eq!(stream.reports(START, "started").await, ["started"]);
}

/// An inventory in which so much is reserved.
fn reserving(amount: f64) -> impl Fn(&greenroom_proto::worker::WorkerMessage) -> Option<()> {
    move |message| match &message.message {
        Some(Said::Inventory(inventory)) => (inventory.reserved_capacity == amount).then_some(()),
        _ => None,
    }
}

// spec: WORK-30, WORK-32, WORK-33, WORK-41
#[tokio::test]
async fn of_two_starts_for_the_last_room_one_is_rejected_with_the_inventory() {
    let mut scene = scene().await;
    let half = |name: &str, start_id: &str| WorkerJob {
        requirements: Some(Requirements {
            required_capacity: 1.5,
            ..Default::default()
        }),
        ..job(name, start_id, vec![shell("a", "exec sleep 1000")])
    };
    scene.stream.provision(half("a", "s1")).await;
    scene.stream.provision(half("b", "s2")).await;
    let rejected = scene
        .stream
        .until(|message| match &message.message {
            Some(Said::JobRejected(rejected)) => Some((message.start_id.clone(), rejected.clone())),
            _ => None,
        })
        .await;
    assert_eq!(rejected.0, id("s2"));
    assert_eq!(rejected.1.code().as_str_name(), "JOB_REJECTED_CAPACITY");
    let inventory = rejected.1.inventory.unwrap();
    assert_eq!(
        (inventory.reserved_capacity, inventory.assigned_jobs.len()),
        (1.5, 1)
    );
    // What is held is told, and told again when it is free.
    scene.stream.until(reserving(1.5)).await;
    scene.stream.stop("a", "s1", 0).await;
    scene.stream.until(reserving(0.0)).await;
    scene.stream.provision(half("b", "s3")).await;
    assert_eq!(
        scene.stream.reports("s3", "started").await,
        ["accepted", "started"]
    );
}

// spec: WORK-10, WORK-21, WORK-35
#[tokio::test]
async fn a_port_taken_between_check_and_bind_rejects_and_leaves_nothing() {
    let mut scene = scene().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u32::from(free.local_addr().unwrap().port());
    drop(free);
    let mapping = PortMapping {
        container_port: 80,
        protocol: ProtocolFamily::Tcp.into(),
        host_port: Some(HostPort::Specific(HostPortSpecific { port })),
        host_address: "127.0.0.1".to_owned(),
        ..Default::default()
    };
    let mut service = shell("a", "exec sleep 1000");
    service.parameters = Some(ServiceParameters {
        port_mappings: vec![mapping],
        ..Default::default()
    });
    let deferred = |start_id: &str| WorkerJob {
        defer_start: true,
        ..job("j", start_id, vec![service.clone()])
    };
    scene.stream.provision(deferred("s1")).await;
    assert_eq!(
        scene.stream.reports("s1", "prepared").await,
        ["accepted", "prepared"]
    );
    let taken = std::net::TcpListener::bind(("127.0.0.1", port as u16)).unwrap();
    scene
        .stream
        .order("s1", None, Order::StartPreparedJob(key("j")))
        .await;
    assert_eq!(
        scene.stream.reports("s1", "rejected").await,
        ["rejected JOB_REJECTED_HOST_PORT"]
    );
    assert!(
        !scene
            .worker
            .state_dir
            .join("instances")
            .join(id("s1"))
            .exists()
    );
    drop(taken);
    scene.stream.provision(deferred("s2")).await;
    scene.stream.reports("s2", "prepared").await;
    scene
        .stream
        .order("s2", None, Order::StartPreparedJob(key("j")))
        .await;
    assert_eq!(scene.stream.reports("s2", "started").await, ["started"]);
    scene
        .stream
        .order("s3", None, Order::StartPreparedJob(key("k")))
        .await;
    assert_eq!(
        scene.stream.reports("s3", "failed").await,
        ["failed not_prepared"]
    );
}

// spec: LOCAL-16
#[tokio::test]
async fn a_parked_worker_stops_its_jobs_and_stays() {
    let mut scene = scene().await;
    scene
        .stream
        .provision(job("j", START, vec![shell("a", "exec sleep 1000")]))
        .await;
    scene.stream.reports(START, "started").await;
    let order = Order::Shutdown(Shutdown {
        grace_ms: 1_000,
        park: true,
    });
    scene.stream.order("", None, order).await;
    assert_eq!(scene.stream.reports(START, "stopped").await, ["stopped"]);
    while scene.stream.next().await.is_ok() {}
    assert_eq!(scene.worker.signal(Signal::TERM).code(), Some(0));
}

// spec: WORK-33
#[tokio::test]
async fn what_cannot_be_run_is_rejected_with_its_code() {
    let mut scene = scene().await;
    let mut code = async |job: WorkerJob| {
        let name = job.start_id.trim_start_matches(&id("")).to_owned();
        scene.stream.provision(job).await;
        scene.stream.reports(&name, "rejected").await.remove(0)
    };
    assert_eq!(
        code(job("a", "s1", Vec::new())).await,
        "rejected JOB_REJECTED_INVALID_SPEC"
    );
    let image = greenroom_proto::common::Service {
        name: "a".to_owned(),
        container: Some(greenroom_proto::common::service::Container::Docker(
            greenroom_proto::common::DockerContainer {
                container_url: Some(greenroom_proto::common::ContainerUrl {
                    url: "x".to_owned(),
                }),
            },
        )),
        command: "sh -c true".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        code(job("a", "s2", vec![image])).await,
        "rejected JOB_REJECTED_RUNTIME"
    );
    let unknown = WorkerJob {
        job_id: Some(JobId {
            job_id: "a".to_owned(),
        }),
        ..job("a", "s3", {
            let mut service = shell("a", "true");
            service.restart = 77;
            vec![service]
        })
    };
    assert_eq!(code(unknown).await, "rejected JOB_REJECTED_INVALID_SPEC");
}

// spec: PREF-01, PREF-07
#[tokio::test]
async fn a_node_without_images_answers_a_batch_all_the_same() {
    let mut scene = scene().await;
    let order = Order::PrefetchImages(PrefetchImages {
        batch_id: "b1".to_owned(),
        image_refs: vec!["x:1".to_owned(), "y:1".to_owned()],
    });
    scene.stream.order("", None, order).await;
    let done = |message: &greenroom_proto::worker::WorkerMessage| match &message.message {
        Some(Said::ImagesPrefetched(done)) => Some((message.report_id, done.clone())),
        _ => None,
    };
    let (report_id, done) = scene.stream.until(done).await;
    assert_eq!((report_id, done.batch_id.as_str()), (1, "b1"));
    let results: Vec<_> = done
        .results
        .iter()
        .map(|result| (result.image_ref.as_str(), result.error.as_str()))
        .collect();
    let unsupported = "unsupported_ref";
    assert_eq!(results, [("x:1", unsupported), ("y:1", unsupported)]);
}
