//! The Docker runtime against a real engine. Registered only with the feature `docker-tests`; then an
//! engine must answer (`scripts/docker-engine`) and hold the image of `scripts/test-image`.

mod cloud;
#[path = "../common/mod.rs"]
mod common;
mod engine;
mod faults;
mod machine;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use common::registry::Registry;
use common::{
    FakeManager, Stream, WorkerProcess, ended, id, job, key, lines, pid, read_logs, within,
};
use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::common::port_mapping::HostPort;
use greenroom_proto::common::service::{Container, ServiceRestart};
use greenroom_proto::common::{
    ContainerUrl, DockerContainer, HostPortEphemeral, HostPortSpecific, PortMapping,
    ProtocolFamily, Service, ServiceParameters,
};
use greenroom_proto::logs::ReadRequest;
use greenroom_proto::manager::{InstanceState, LeasePolicy};
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{PrefetchImages, WorkerJob};
use rustix::process::{Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const IMAGE: &str = "greenroom-test:1";

struct Scene {
    manager: FakeManager,
    worker: WorkerProcess,
    stream: Stream,
    /// Last, so that it is there while everything else ends.
    _dir: tempfile::TempDir,
}

impl Drop for Scene {
    /// Nothing of a test that failed stays at the engine.
    fn drop(&mut self) {
        let filter = format!("label=greenroom.node={}", self.manager.node.id);
        for (list, remove) in [
            (
                ["container", "ls", "--all"].as_slice(),
                ["container", "rm", "--force"].as_slice(),
            ),
            (["network", "ls"].as_slice(), ["network", "rm"].as_slice()),
        ] {
            let ids = docker(&[list, &["--quiet", "--filter", &filter]].concat());
            for id in ids.lines() {
                docker(&[remove, &[id]].concat());
            }
        }
    }
}

async fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let worker = WorkerProcess::spawn(&dir.path().join("state"), &manager, "docker", "2");
    let stream = manager.meet(1, 0).await;
    Scene {
        _dir: dir,
        manager,
        worker,
        stream,
    }
}

/// Runs a command of the host, which must succeed.
fn host(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{line}");
}

fn docker(args: &[&str]) -> String {
    let output = Command::new("docker")
        .args(args)
        .output()
        .expect("the docker command is there");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A service of the test image: a line for its shell.
fn shell(name: &str, line: &str) -> Service {
    let container_url = Some(ContainerUrl {
        url: IMAGE.to_owned(),
    });
    Service {
        name: name.to_owned(),
        container: Some(Container::Docker(DockerContainer { container_url })),
        command: format!("sh -c \"{line}\""),
        ..Default::default()
    }
}

fn published(container_port: u32, host_port: HostPort) -> Option<ServiceParameters> {
    let mapping = PortMapping {
        container_port,
        protocol: ProtocolFamily::Tcp.into(),
        host_port: Some(host_port),
        ..Default::default()
    };
    Some(ServiceParameters {
        port_mappings: vec![mapping],
        ..Default::default()
    })
}

impl Scene {
    /// What is there of a start, by its label.
    fn ids(&self, start_id: &str, kind: &str) -> Vec<String> {
        let node = format!("label=greenroom.node={}", self.manager.node.id);
        let start = format!("label=greenroom.start-id={}", id(start_id));
        let all: &[&str] = if kind == "container" { &["--all"] } else { &[] };
        let args = [kind, "ls", "--quiet", "--filter", &node, "--filter", &start];
        let ids = docker(&[&args[..], all].concat());
        ids.lines().map(str::to_owned).collect()
    }
    fn is_gone(&self, start_id: &str) -> bool {
        self.ids(start_id, "container").is_empty() && self.ids(start_id, "network").is_empty()
    }
}

// spec: WORK-10, WORK-13, WORK-14, WORK-15, WORK-24
#[tokio::test]
async fn services_reach_each_other_by_name_and_the_host_by_their_ports() {
    let mut scene = scene().await;
    let mut web = shell(
        "web",
        "mkdir /www; echo hello > /www/index.html; httpd -f -p 8080 -h /www",
    );
    web.parameters = published(8080, HostPort::Ephemeral(HostPortEphemeral {}));
    let mut client = shell("client", "wget -q -O- http://web:8080/index.html");
    client.depends_on = vec!["web".to_owned()];
    client.restart = ServiceRestart::OnFailure.into();
    client.restart_count = 20;
    let logs = scene
        .worker
        .state_dir
        .join("logs")
        .join(id("s1"))
        .join("client.log");
    scene
        .stream
        .provision(job("j", "s1", vec![client, web]))
        .await;
    let port = scene
        .stream
        .until(|message| match &message.message {
            Some(Said::JobStarted(started)) => {
                Some(started.service_port_mappings["web"].mappings[0].published)
            }
            _ => None,
        })
        .await;
    // A connection may come before the service listens; the engine then ends it without a word.
    let answer = within(async {
        loop {
            let mut text = String::new();
            let mut socket = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
            let _ = socket.write_all(b"GET /index.html HTTP/1.0\r\n\r\n");
            let _ = socket.read_to_string(&mut text);
            if text.contains("hello") {
                return text;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(answer.starts_with("HTTP/1"), "{answer}");
    assert_eq!(scene.ids("s1", "container").len(), 2);
    assert_eq!(scene.ids("s1", "network").len(), 1);
    within(async {
        while !std::fs::read_to_string(&logs)
            .unwrap_or_default()
            .contains("hello")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    scene.stream.stop("j", "s1", 1_000).await;
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
    assert!(scene.is_gone("s1"));
}

// spec: WORK-13, WORK-25, WORK-61
#[tokio::test]
async fn a_killed_worker_takes_its_containers_on_and_touches_no_others() {
    let mut scene = scene().await;
    let foreign = docker(&["run", "--detach", IMAGE, "sleep", "1000"]);
    scene
        .stream
        .provision(job("j", "s1", vec![shell("a", "exec sleep 1000")]))
        .await;
    scene.stream.reports("s1", "started").await;
    let format = ["--format", "{{.State.StartedAt}} {{.RestartCount}}"];
    let before = docker(&[&["inspect", &scene.ids("s1", "container")[0]][..], &format].concat());
    scene.worker.kill();
    scene.worker.start_again();
    let mut stream = scene.manager.meet(2, u64::MAX).await;
    assert_eq!(stream.hello.instances[0].state(), InstanceState::Running);
    let after = docker(&[&["inspect", &scene.ids("s1", "container")[0]][..], &format].concat());
    assert_eq!(before, after);
    // An end that comes now is judged by the service's own policy, known from its label.
    docker(&["kill", &scene.ids("s1", "container")[0]]);
    let words = stream.reports("s1", "stopped").await;
    assert!(
        words[0].starts_with("failed service a: exit code 137"),
        "{words:?}"
    );
    assert!(scene.is_gone("s1"));
    assert_eq!(
        docker(&["inspect", "--format", "{{.State.Running}}", &foreign]),
        "true"
    );
    docker(&["rm", "--force", &foreign]);
}

// spec: WORK-18, WORK-23
#[tokio::test]
async fn failures_carry_the_last_lines_and_stubborn_containers_are_killed() {
    let mut scene = scene().await;
    let failing = shell("bad", "echo something is wrong; exit 3");
    scene.stream.provision(job("j", "s1", vec![failing])).await;
    let words = scene.stream.reports("s1", "stopped").await;
    let failed = words
        .iter()
        .find(|word| word.starts_with("failed"))
        .unwrap();
    assert_eq!(
        failed,
        "failed service bad: exit code 3\nsomething is wrong"
    );
    let stubborn = shell("a", "trap : TERM; while :; do sleep 1; done");
    scene.stream.provision(job("k", "s2", vec![stubborn])).await;
    scene.stream.reports("s2", "started").await;
    scene.stream.stop("k", "s2", 200).await;
    assert_eq!(scene.stream.reports("s2", "stopped").await, ["stopped"]);
    assert!(scene.is_gone("s2"));
}

// spec: WORK-21, WORK-35, HARDM-45
#[tokio::test]
async fn a_port_taken_at_the_bind_removes_everything_and_rejects() {
    let mut scene = scene().await;
    let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut service = shell("a", "exec sleep 1000");
    service.parameters = published(
        80,
        HostPort::Specific(HostPortSpecific {
            port: u32::from(port),
        }),
    );
    let deferred = WorkerJob {
        defer_start: true,
        ..job("j", "s1", vec![service])
    };
    scene.stream.provision(deferred).await;
    assert_eq!(
        scene.stream.reports("s1", "prepared").await,
        ["accepted", "prepared"]
    );
    let _taken = std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    scene
        .stream
        .order("s1", None, Order::StartPreparedJob(key("j")))
        .await;
    assert_eq!(
        scene.stream.reports("s1", "rejected").await,
        ["rejected JOB_REJECTED_HOST_PORT"]
    );
    assert!(scene.is_gone("s1"));
}

// spec: WORK-34
#[tokio::test]
async fn an_image_that_the_registry_does_not_have_is_rejected_after_one_try() {
    let mut scene = scene().await;
    let registry = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = registry.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = registry.accept().await.unwrap();
            let mut request = [0; 4_096];
            let n = socket.read(&mut request).await.unwrap_or_default();
            let manifest = String::from_utf8_lossy(&request[..n]).contains("/manifests/");
            let (status, body) = if manifest {
                let body =
                    r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
                ("404 Not Found", body)
            } else {
                ("200 OK", "{}")
            };
            let head = "Content-Type: application/json\r\nConnection: close";
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    let mut service = shell("a", "true");
    let url = format!("127.0.0.1:{port}/nothing:1");
    let container_url = Some(ContainerUrl { url });
    service.container = Some(Container::Docker(DockerContainer { container_url }));
    scene.stream.provision(job("j", "s1", vec![service])).await;
    let words = scene.stream.reports("s1", "rejected").await;
    assert_eq!(words, ["accepted", "rejected JOB_REJECTED_IMAGE"]);
    assert!(scene.is_gone("s1"));
}

// spec: WORK-40, WORK-55
#[tokio::test]
async fn the_inventory_tells_the_engine_and_the_images_held() {
    let mut scene = scene().await;
    let held = |message: &greenroom_proto::worker::WorkerMessage| match &message.message {
        Some(Said::Inventory(inventory)) => {
            let holds = inventory
                .held_images
                .iter()
                .any(|image| image.reference == IMAGE);
            holds.then(|| inventory.runtime.clone())
        }
        _ => None,
    };
    let runtime = scene.stream.until(held).await;
    assert!(runtime.starts_with("docker "), "{runtime}");
}

// spec: LOG-01
#[tokio::test]
async fn lines_of_containers_come_once_with_their_stream_over_a_restart_of_the_worker() {
    let mut scene = scene().await;
    let line = "echo one; echo two >&2; while ! test -e /tmp/go; do sleep 0.1; done; echo three; exec sleep 1000";
    scene
        .stream
        .provision(job("j", "s1", vec![shell("a", line)]))
        .await;
    scene.stream.reports("s1", "started").await;
    let request = || ReadRequest {
        job_id: "j".to_owned(),
        follow: true,
        ..Default::default()
    };
    let node = scene.manager.node.clone();
    let read = async |stream: &Stream| read_logs(&stream.address, Some(&node), request()).await;
    let mut first = lines(&mut read(&scene.stream).await.unwrap(), 2).await;
    first.sort();
    assert_eq!(first, ["a stderr two", "a stdout one"]);
    scene.worker.kill();
    scene.worker.start_again();
    let stream = scene.manager.meet(2, u64::MAX).await;
    let mut answers = read(&stream).await.unwrap();
    docker(&["exec", &scene.ids("s1", "container")[0], "touch", "/tmp/go"]);
    // Lines of before are there once, though the engine was asked for that second again.
    let mut all = lines(&mut answers, 3).await;
    all.sort();
    assert_eq!(all, ["a stderr two", "a stdout one", "a stdout three"]);
    stream.stop("j", "s1", 0).await;
    assert!(lines(&mut answers, 1).await.is_empty());
}

/// The results of a batch, each as its reference and its error.
async fn prefetched(stream: &mut Stream) -> Vec<(String, String)> {
    let results = stream
        .until(|message| match &message.message {
            Some(Said::ImagesPrefetched(done)) => Some(done.results.clone()),
            _ => None,
        })
        .await;
    let told = results.into_iter().map(|result| {
        assert_eq!(result.ok, result.error.is_empty(), "{}", result.text);
        (result.image_ref, result.error)
    });
    told.collect()
}

async fn prefetch(stream: &Stream, image_refs: &[&String]) {
    let order = PrefetchImages {
        batch_id: "b1".to_owned(),
        image_refs: image_refs.iter().map(|text| (*text).clone()).collect(),
    };
    stream.order("", None, Order::PrefetchImages(order)).await;
}

// spec: PREF-01, PREF-03, WORK-55
#[tokio::test]
async fn prefetched_images_are_told_in_order_and_then_shown_as_held() {
    let mut scene = scene().await;
    let registry = Registry::start().await;
    let (new, held) = (registry.image("new"), IMAGE.to_owned());
    let missing = registry.reference("missing");
    prefetch(&scene.stream, &[&new, &missing, &held, &new]).await;
    let expected = [(&new, ""), (&missing, "not_found"), (&held, ""), (&new, "")];
    let expected = expected.map(|(name, error)| (name.clone(), error.to_owned()));
    assert_eq!(prefetched(&mut scene.stream).await, expected);
    let shown = |message: &greenroom_proto::worker::WorkerMessage| match &message.message {
        Some(Said::Inventory(inventory)) => {
            let mut images = inventory.held_images.iter();
            let image = images.find(|image| image.reference == new);
            image.map(|image| image.digest.clone())
        }
        _ => None,
    };
    let digest = scene.stream.until(shown).await;
    assert!(digest.starts_with("sha256:"), "{digest}");
    docker(&["image", "rm", "--force", &new]);
}

// spec: WORK-34, WORK-37
#[tokio::test]
async fn a_registry_that_does_not_answer_is_told_at_the_first_try() {
    let mut scene = scene().await;
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reference = format!("{}/x:1", free.local_addr().unwrap());
    drop(free);
    let mut service = shell("s", "exec sleep 1000");
    let container_url = Some(ContainerUrl {
        url: reference.clone(),
    });
    service.container = Some(Container::Docker(DockerContainer { container_url }));
    scene.stream.provision(job("j", "s1", vec![service])).await;
    for wait in ["1 s", "2 s"] {
        let tried = |message: &greenroom_proto::worker::WorkerMessage| match &message.message {
            Some(Said::JobInfo(info)) => match &info.message {
                Some(Info::ComposeMessage(stage)) if stage.text.contains("cannot be pulled") => {
                    Some(stage.text.clone())
                }
                _ => None,
            },
            _ => None,
        };
        let text = scene.stream.until(tried).await;
        for part in [&reference, "connection refused", wait] {
            assert!(text.contains(part), "{text}");
        }
    }
    // Giving up the wait is not giving up the order: a stop ends it.
    scene.stream.stop("j", "s1", 0).await;
    scene.stream.reports("s1", "stopped").await;
}

// spec: PREF-05
#[tokio::test]
async fn a_start_joins_the_pull_of_its_image_and_does_not_queue_behind_others() {
    let mut scene = scene().await;
    let mut registry = Registry::start().await;
    let images = ["a", "b", "c"].map(|name| registry.image(name));
    registry.hold_back(true);
    prefetch(&scene.stream, &images.each_ref()).await;
    let pulled = [registry.layer_asked().await, registry.layer_asked().await];
    let names = ["a", "b", "c"];
    let waiting = names
        .iter()
        .find(|name| !pulled.contains(&(**name).to_owned()));
    let waiting = *waiting.unwrap();
    let (a, c) = (registry.reference(&pulled[0]), registry.reference(waiting));
    let using = |url: &String| {
        let mut service = shell("s", "exec sleep 1000");
        let container_url = Some(ContainerUrl { url: url.clone() });
        service.container = Some(Container::Docker(DockerContainer { container_url }));
        vec![service]
    };
    // Both slots are taken; the start of what waits for one does not wait.
    scene.stream.provision(job("c", "s1", using(&c))).await;
    assert_eq!(registry.layer_asked().await, waiting);
    // And the start of what is being pulled asks for nothing again.
    scene.stream.provision(job("a", "s2", using(&a))).await;
    let pulls = |message: &greenroom_proto::worker::WorkerMessage| match &message.message {
        Some(Said::JobInfo(info)) if message.start_id == id("s2") => match &info.message {
            Some(Info::ComposeMessage(stage)) => stage.text.contains(&a).then_some(()),
            _ => None,
        },
        _ => None,
    };
    scene.stream.until(pulls).await;
    registry.asked();
    registry.hold_back(false);
    let (mut started, mut results) = (Vec::new(), None);
    while started.len() < 2 || results.is_none() {
        let message = scene.stream.next().await.unwrap();
        match message.message {
            Some(Said::JobStarted(_)) => started.push(message.start_id),
            Some(Said::ImagesPrefetched(done)) => results = Some(done.results),
            _ => {}
        }
    }
    assert!(results.unwrap().iter().all(|result| result.ok));
    let again = registry.asked();
    let manifest = format!("manifest {}", pulled[0]);
    assert!(!again.contains(&manifest), "{again:?}");
    for (job, start_id) in [("c", "s1"), ("a", "s2")] {
        scene.stream.stop(job, start_id, 0).await;
        scene.stream.reports(start_id, "stopped").await;
    }
    for image in &images {
        docker(&["image", "rm", "--force", image]);
    }
}

// spec: SOCK-01, SOCK-19
#[tokio::test]
async fn a_container_finds_its_socket_at_one_path_also_after_a_restart_of_the_worker() {
    let mut scene = scene().await;
    let line = "echo $GREENROOM_JOB_SOCKET; exec sleep 1000";
    let with_socket = WorkerJob {
        job_socket: true,
        ..job("j", "s1", vec![shell("a", line)])
    };
    scene.stream.provision(with_socket).await;
    scene.stream.reports("s1", "started").await;
    let request = ReadRequest {
        job_id: "j".to_owned(),
        follow: true,
        ..Default::default()
    };
    let mut answers = read_logs(&scene.stream.address, Some(&scene.manager.node), request)
        .await
        .unwrap();
    let path = "/run/greenroom/job.sock";
    assert_eq!(lines(&mut answers, 1).await, [format!("a stdout {path}")]);
    // The number of the file tells one socket from the next.
    let number = |scene: &Scene| {
        let container = &scene.ids("s1", "container")[0];
        docker(&["exec", container, "stat", "-c", "%F %i", path])
    };
    let host = scene
        .worker
        .state_dir
        .join("sockets")
        .join(id("s1"))
        .join("job.sock");
    let on_host = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&host).unwrap());
    assert_eq!(number(&scene), format!("socket {}", on_host()));
    scene.worker.kill();
    scene.worker.start_again();
    let mut stream = scene.manager.meet(2, u64::MAX).await;
    // It is served before the worker does what it is told next.
    stream.stop("nothing", "s9", 0).await;
    assert_eq!(stream.reports("s9", "stopped").await, ["stopped"]);
    assert_eq!(number(&scene), format!("socket {}", on_host()));
    stream.stop("j", "s1", 0).await;
    assert_eq!(stream.reports("s1", "stopped").await, ["stopped"]);
    assert!(!host.exists());
}

// spec: WORK-42, LEASE-05, LEASE-06
#[tokio::test]
async fn the_guard_kills_a_container_that_carries_no_mark_before_its_lease_ends() {
    let mut scene = scene().await;
    // Its environment is empty, so that only its control group tells whose it is.
    let service = shell("a", "echo fence $GREENROOM_FENCE; exec env -i sleep 1000");
    let leased = WorkerJob {
        lease: Some(LeasePolicy {
            ttl_ms: 12_000,
            grace_ms: 5_000,
        }),
        fence: 11,
        ..job("j", "s1", vec![service])
    };
    scene.stream.provision(leased).await;
    let refresh = scene.stream.refresh().await;
    scene.stream.answer(&refresh, 12_000, false).await;
    let answered = std::time::Instant::now();
    scene.stream.reports("s1", "started").await;
    let container = scene.ids("s1", "container").remove(0);
    assert_eq!(docker(&["logs", &container]), "fence 11");
    let number = docker(&["inspect", "--format", "{{.State.Pid}}", &container]);
    scene.worker.send(Signal::STOP);
    ended(number.parse().unwrap()).await;
    assert!(answered.elapsed().as_millis() < 12_000);
    scene.worker.send(Signal::CONT);
    let words = scene.stream.reports("s1", "stopped").await;
    assert_eq!(
        words,
        [
            "failed LEASE_LOST: its lease was not refreshed in time",
            "stopped"
        ]
    );
    assert!(scene.is_gone("s1"));
}

// spec: WORK-42, LEASE-05
#[tokio::test]
async fn a_new_worker_tells_the_guard_of_the_containers_it_takes_on() {
    let mut scene = scene().await;
    let service = shell("a", "exec env -i sleep 1000");
    let leased = WorkerJob {
        lease: Some(LeasePolicy {
            ttl_ms: 20_000,
            grace_ms: 5_000,
        }),
        fence: 11,
        ..job("j", "s1", vec![service])
    };
    scene.stream.provision(leased).await;
    let refresh = scene.stream.refresh().await;
    scene.stream.answer(&refresh, 20_000, false).await;
    scene.stream.reports("s1", "started").await;
    let container = scene.ids("s1", "container").remove(0);
    let number = docker(&["inspect", "--format", "{{.State.Pid}}", &container]);
    // Worker and guard go together; the new guard knows nothing but what the new worker tells it.
    let guard = scene.worker.guard();
    scene.worker.kill();
    kill_process(pid(guard), Signal::KILL).unwrap();
    ended(guard).await;
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, u64::MAX).await;
    assert_eq!(
        scene.stream.hello.instances[0].state(),
        InstanceState::Running
    );
    assert_ne!(scene.worker.guard(), guard);
    let refresh = scene.stream.refresh().await;
    let short = 4_000;
    scene.stream.answer(&refresh, short, false).await;
    // The next refresh comes when the answer was taken in.
    scene.stream.refresh().await;
    scene.worker.send(Signal::STOP);
    ended(number.parse().unwrap()).await;
    scene.worker.send(Signal::CONT);
    let words = scene.stream.reports("s1", "stopped").await;
    assert_eq!(words.last().unwrap(), "stopped");
    assert!(scene.is_gone("s1"));
}
