//! Engines, registries and disks that fail.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use greenroom_proto::common::service::Container;
use greenroom_proto::common::{ContainerUrl, DockerContainer, Service};
use greenroom_proto::worker::WorkerMessage;
use greenroom_proto::worker::worker_message::Message as Said;

use crate::common::registry::Registry;
use crate::common::{FakeManager, Stream, WorkerProcess, id, info_word, job, kills, within};
use crate::engine::Engine;
use crate::{IMAGE, Scene, docker, host, shell};

/// A service of another image.
fn of_image(reference: &str) -> Service {
    let url = reference.to_owned();
    let container_url = Some(ContainerUrl { url });
    Service {
        container: Some(Container::Docker(DockerContainer { container_url })),
        ..shell("a", "exec sleep 1000")
    }
}

async fn scene_with(env: &[(&str, &str)]) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let state = dir.path().join("state");
    let worker = WorkerProcess::spawn_with(&state, &manager, "docker", "2", env);
    let stream = manager.meet(1, 0).await;
    Scene {
        _dir: dir,
        manager,
        worker,
        stream,
    }
}

/// What the inventory says of the engine.
fn runtime(message: &WorkerMessage) -> Option<String> {
    match &message.message {
        Some(Said::Inventory(inventory)) => Some(inventory.runtime.clone()),
        _ => None,
    }
}

async fn until_runtime(stream: &mut Stream, start: &str, words: &str) {
    let start_id = id(start);
    stream
        .until(|message| {
            // Silence of the engine says nothing of what runs.
            let report = message.report_id > 0 && message.start_id == start_id;
            assert!(!report, "{message:?}");
            runtime(message).filter(|it| it.starts_with(words))
        })
        .await;
}

// spec: HARDM-49, WORK-63
#[tokio::test]
async fn an_engine_that_dies_and_comes_back_ends_nothing_and_real_ends_have_their_code() {
    let own = tempfile::tempdir().unwrap();
    let mut engine = Engine::start(&own.path().join("data"), &own.path().join("run"));
    let engine_host = engine.host();
    let mut scene = scene_with(&[("DOCKER_HOST", &engine_host)]).await;
    let trap = |code: u32| {
        let line = format!("trap 'exit {code}' TERM; while :; do echo on the air; sleep 0.1; done");
        shell("a", &line)
    };
    for (name, start, code) in [("j", "s1", 7), ("k", "s2", 8)] {
        scene
            .stream
            .provision(job(name, start, vec![trap(code)]))
            .await;
        scene.stream.reports(start, "started").await;
    }
    let process = |start: &str| -> i32 {
        let filter = format!("label=greenroom.start-id={}", id(start));
        let container = engine.docker(&["ps", "--quiet", "--filter", &filter]);
        let format = ["inspect", "--format", "{{.State.Pid}}", &container];
        engine.docker(&format).parse().unwrap()
    };
    let (first, second) = (process("s1"), process("s2"));
    engine.kill();
    until_runtime(&mut scene.stream, "s1", "unavailable").await;
    let order = job("l", "s3", vec![shell("a", "true")]);
    scene.stream.provision(order).await;
    let words = scene.stream.reports("s3", "rejected").await;
    assert_eq!(words, ["rejected JOB_REJECTED_RUNTIME"]);
    // One ends while nobody can be asked about it.
    let pid = crate::common::pid(second);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    crate::common::wait_gone(second);
    engine.start_again();
    let words = scene.stream.reports("s2", "stopped").await;
    assert!(
        words[0].starts_with("failed service a: exit code 8"),
        "{words:?}"
    );
    // The other ran on, what it says is kept again, and its end is judged like any.
    let log = scene.worker.state_dir.join("logs").join(id("s1"));
    let lines = || {
        let text = std::fs::read_to_string(log.join("a.log")).unwrap_or_default();
        text.lines().count()
    };
    let before = lines();
    within(async {
        while lines() <= before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(Path::new(&format!("/proc/{first}")).exists());
    let pid = crate::common::pid(first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let words = scene.stream.reports("s1", "stopped").await;
    assert!(
        words[0].starts_with("failed service a: exit code 7"),
        "{words:?}"
    );
}

/// Debian's registry, on a port that can be taken again.
struct DebianRegistry {
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl DebianRegistry {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let storage = dir.path().join("storage");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            storage.display()
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let mut registry = Self {
            dir,
            port,
            child: None,
        };
        registry.start_again();
        registry
    }

    fn start_again(&mut self) {
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(self.dir.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is there");
        self.child = Some(child);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}");
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Puts the test image there under a name, and takes that name away here.
    fn push(&self, name: &str) -> String {
        let reference = self.reference(name);
        docker(&["tag", IMAGE, &reference]);
        docker(&["push", "--quiet", &reference]);
        docker(&["rmi", &reference]);
        reference
    }
}

impl Drop for DebianRegistry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reports of a start until `last`, and how often a pull of it failed and was to be tried again.
async fn with_tries(stream: &mut Stream, start: &str, last: &str) -> (Vec<String>, usize) {
    let (mut words, mut tries, start_id) = (Vec::new(), 0, id(start));
    let told = stream.until(|message| {
        if message.start_id != start_id {
            return None;
        }
        let news = info_word(message).unwrap_or_default();
        tries += usize::from(news.contains("cannot be pulled"));
        let word = crate::common::word(message)?;
        words.push(word.clone());
        word.starts_with(last).then_some(())
    });
    told.await;
    (words, tries)
}

// spec: HARDM-46, WORK-34, WORK-33
#[tokio::test]
async fn a_missing_image_a_registry_that_is_down_and_a_bad_reference_are_told_apart() {
    let mut registry = DebianRegistry::start();
    let here = registry.push("here:1");
    let mut scene = scene_with(&[("TESTBIN_PULL_TRIES_MS", "3000")]).await;
    let stream = &mut scene.stream;
    let missing = of_image(&registry.reference("here:2"));
    stream.provision(job("j", "s1", vec![missing])).await;
    let (words, tries) = with_tries(stream, "s1", "rejected").await;
    assert_eq!(words, ["accepted", "rejected JOB_REJECTED_IMAGE"]);
    assert_eq!(tries, 0, "there is one try");

    let malformed = of_image("127.0.0.1:5000/UPPER case");
    stream.provision(job("j", "s2", vec![malformed])).await;
    let (words, _) = with_tries(stream, "s2", "rejected").await;
    assert_eq!(words, ["rejected JOB_REJECTED_INVALID_SPEC"]);

    registry.stop();
    stream
        .provision(job("j", "s3", vec![of_image(&here)]))
        .await;
    let (words, tries) = with_tries(stream, "s3", "rejected").await;
    assert_eq!(words, ["accepted", "rejected JOB_REJECTED_IMAGE"]);
    assert!(tries >= 1, "it is tried again before it is given up");

    // One that comes back in time is as if it had never been away.
    drop(scene);
    let mut scene = scene_with(&[]).await;
    let stream = &mut scene.stream;
    stream
        .provision(job("j", "s4", vec![of_image(&here)]))
        .await;
    stream
        .until(|message| info_word(message).filter(|it| it.contains("cannot be pulled")))
        .await;
    registry.start_again();
    let mut digest = None;
    let started = |message: &WorkerMessage| {
        let news = info_word(message).unwrap_or_default();
        let pinned = news.split_once(" is sha256:").map(|it| it.1.to_owned());
        digest = digest.take().or(pinned);
        matches!(message.message, Some(Said::JobStarted(_))).then_some(())
    };
    stream.until(started).await;
    // Which image it is made of is told, and written on the container.
    let digest = format!("sha256:{}", digest.expect("it was told"));
    let container = scene.ids("s4", "container").remove(0);
    let label = "{{index .Config.Labels \"greenroom.image-digest\"}} {{.Image}}";
    let found = docker(&["inspect", "--format", label, &container]);
    let own = docker(&["image", "inspect", "--format", "{{.Id}}", &here]);
    assert_eq!(found, format!("{digest} {own}"));
    drop(scene);
    docker(&["rmi", &here]);
}

// spec: FIELD-63
#[tokio::test]
async fn many_images_that_cannot_be_had_do_not_hold_up_one_that_is_there() {
    let mut scene = scene_with(&[]).await;
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = free.local_addr().unwrap();
    drop(free);
    for number in 0..50 {
        let bad = of_image(&format!("{registry}/x{number}:1"));
        let (name, start) = (format!("bad{number}"), format!("b{number}"));
        scene.stream.provision(job(&name, &start, vec![bad])).await;
    }
    let good = job("good", "g1", vec![shell("a", "exec sleep 1000")]);
    scene.stream.provision(good).await;
    let words = scene.stream.reports("g1", "started").await;
    assert_eq!(words, ["accepted", "started"]);
    scene.stream.stop("good", "g1", 0).await;
    scene.stream.reports("g1", "stopped").await;
}

/// A file system in a file, mounted.
pub(crate) struct Disk {
    file: PathBuf,
    pub(crate) path: PathBuf,
}

impl Disk {
    pub(crate) fn make(dir: &Path, mib: u64) -> Self {
        Self::keeping_back(dir, mib, 5)
    }

    /// One that keeps so many percent for the system's own.
    pub(crate) fn keeping_back(dir: &Path, mib: u64, percent: u32) -> Self {
        let (file, path) = (dir.join("disk.img"), dir.join("disk"));
        let image = std::fs::File::create(&file).unwrap();
        image.set_len(mib << 20).unwrap();
        std::fs::create_dir(&path).unwrap();
        host(&format!("mkfs.ext4 -q -F -m {percent} {}", file.display()));
        host(&format!(
            "mount -o loop {} {}",
            file.display(),
            path.display()
        ));
        Self { file, path }
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.path).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .status();
        let _ = std::fs::remove_file(&self.file);
    }
}

// spec: HARDM-47
#[tokio::test]
async fn a_disk_that_fills_up_during_a_pull_rejects_the_start_and_keeps_the_rest_running() {
    let own = tempfile::tempdir().unwrap();
    let disk = Disk::make(own.path(), 64);
    let engine = Engine::start(&disk.path.join("data"), &own.path().join("run"));
    let registry = Registry::start().await;
    let big = registry.image_of("big", 80 << 20);
    let engine_host = engine.host();
    let env = [
        ("DOCKER_HOST", engine_host.as_str()),
        ("TESTBIN_LOG_BYTES", "512"),
    ];
    let mut scene = scene_with(&env).await;
    let talking = shell("a", "while :; do echo on the air; sleep 0.05; done");
    scene.stream.provision(job("j", "s1", vec![talking])).await;
    scene.stream.reports("s1", "started").await;
    let before = disk.free();
    scene
        .stream
        .provision(job("k", "s2", vec![of_image(&big)]))
        .await;
    let words = scene.stream.reports("s2", "rejected").await;
    assert_eq!(words, ["accepted", "rejected JOB_REJECTED_DISK"]);
    // What had come of the image is gone again; files that the engine keeps grow by little.
    assert!(
        disk.free() + (8 << 20) > before,
        "{} of {before}",
        disk.free()
    );
    assert_eq!(engine.docker(&["images", "--quiet", &big]), "");

    // The job runs on, and its log goes on from file to file.
    let logs = scene.worker.state_dir.join("logs").join(id("s1"));
    let newest = || {
        std::fs::metadata(logs.join("a.log.1"))
            .ok()?
            .modified()
            .ok()
    };
    let at = newest();
    within(async {
        while newest().is_none() || newest() == at {
            tokio::task::yield_now().await;
        }
    })
    .await;
    scene.stream.stop("j", "s1", 0).await;
    assert_eq!(scene.stream.reports("s1", "stopped").await, ["stopped"]);
}

// spec: WORK-56
#[tokio::test]
async fn on_a_short_disk_the_image_longest_of_no_use_goes_and_one_in_use_stays() {
    let own = tempfile::tempdir().unwrap();
    let disk = Disk::make(own.path(), 64);
    let engine = Engine::start(&disk.path.join("data"), &own.path().join("run"));
    let registry = Registry::start().await;
    let images = ["one", "two", "three"].map(|name| registry.image_of(name, 4 << 20));
    let engine_host = engine.host();
    let mut scene = scene_with(&[("DOCKER_HOST", &engine_host)]).await;
    for (number, image) in images.iter().enumerate() {
        let start = format!("s{number}");
        let order = job("j", &start, vec![of_image(image)]);
        scene.stream.provision(order).await;
        scene.stream.reports(&start, "started").await;
        if number < 2 {
            scene.stream.stop("j", &start, 0).await;
            scene.stream.reports(&start, "stopped").await;
        }
    }
    // Something else takes what was free, so that the room of one image is missing.
    let stat = rustix::fs::statvfs(&disk.path).unwrap();
    let usable = stat.f_blocks - stat.f_bfree + stat.f_bavail;
    let short = usable * stat.f_frsize / 5 - (2 << 20);
    let taken = (disk.free() - short).to_string();
    let filler = disk.path.join("filler");
    host(&format!("fallocate --length {taken} {}", filler.display()));
    let held = |message: &WorkerMessage| match &message.message {
        Some(Said::Inventory(inventory)) => {
            let held = inventory.held_images.iter().map(|it| it.reference.clone());
            let ours: Vec<String> = held.filter(|it| images.contains(it)).collect();
            let last = inventory.assigned_jobs.len() == 1;
            (last && ours.contains(&images[2]) && !ours.contains(&images[0])).then_some(ours)
        }
        _ => None,
    };
    let mut left = scene.stream.until(held).await;
    left.sort();
    let mut expected = vec![images[1].clone(), images[2].clone()];
    expected.sort();
    assert_eq!(left, expected);
    // The test's own image is there, and was never this worker's to remove.
    assert_ne!(engine.docker(&["images", "--quiet", IMAGE]), "");
    scene.stream.stop("j", "s2", 0).await;
    scene.stream.reports("s2", "stopped").await;
}

// spec: WORK-25, WORK-20
#[tokio::test]
async fn killed_at_any_step_of_its_journal_a_worker_leaves_no_container_behind() {
    let mut step = 1;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let manager = FakeManager::start().await;
        let at = step.to_string();
        let kill = [("TESTBIN_KILL_AT", at.as_str())];
        let state = dir.path().join("state");
        let mut worker = WorkerProcess::spawn_with(&state, &manager, "docker", "2", &kill);
        let mut manager = manager;
        let start = format!("s{step}");
        let order = job("j", &start, vec![shell("a", "exec sleep 1000")]);
        // It counts what was ever started of ours.
        let since = docker(&["system", "info", "--format", "{{.SystemTime}}"]);
        let life = kills::live(&mut manager, &mut worker, &order, "j", &start).await;
        let label = format!("label=greenroom.node={}", manager.node.id);
        for kind in ["container", "network"] {
            let all: &[&str] = if kind == "container" { &["--all"] } else { &[] };
            // What the engine was still making when its caller was killed comes late, and goes then.
            let listed =
                || docker(&[&[kind, "ls", "--quiet", "--filter", &label][..], all].concat());
            within(async {
                while !listed().is_empty() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
        let until = docker(&["system", "info", "--format", "{{.SystemTime}}"]);
        let events = [
            "events",
            "--since",
            &since,
            "--until",
            &until,
            "--format",
            "{{.Action}}",
        ];
        let ours = [
            "--filter",
            "type=container",
            "--filter",
            "event=start",
            "--filter",
            &label,
        ];
        let starts = docker(&[&events[..], &ours].concat());
        assert!(
            starts.lines().count() <= 1,
            "step {step}: {starts} {life:?}"
        );
        if !life.killed {
            break;
        }
        step += 1;
    }
    assert!(step > 10, "the journal has only {step} steps");
}
