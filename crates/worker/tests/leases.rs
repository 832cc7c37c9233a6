//! Lease-protected jobs on real processes: the worker, its guard and its jobs, with a Manager of the
//! test's own that answers or does not (LEASE-).

mod common;

use std::os::unix::fs::PermissionsExt;

use common::scene::{Scene, scene, scene_with};
use common::{Pipe, Stream, WorkerProcess, ended, id, job, key, pid, shell, within};
use greenroom_job::{Event, Job};
use greenroom_proto::manager::{InstanceState, LeasePolicy};
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{LeasesPaused, WorkerJob, WorkerMessage};
use rustix::process::{Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

const START: &str = "s1";
const FENCE: u64 = (1 << 32) + 7;

fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// One that is dead and was not taken in by its parent yet runs no more.
fn is_alive(number: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z')
}

fn leased(services: Vec<greenroom_proto::common::Service>, ttl_ms: u64) -> WorkerJob {
    WorkerJob {
        lease: Some(LeasePolicy {
            ttl_ms,
            grace_ms: 5_000,
        }),
        fence: FENCE,
        ..job("j", START, services)
    }
}

/// Says its number and its fencing number in the pipe and stays, in a session of its own and deaf to
/// polite signals, and begins anew when it is killed.
fn stubborn(pipe: &Pipe) -> greenroom_proto::common::Service {
    let out = pipe.path.display();
    let line = format!(
        "trap '' TERM; setsid sh -c 'echo $$ $GREENROOM_FENCE > {out}; exec env -i sleep 1000' & wait"
    );
    let mut service = shell("a", &line);
    service.restart = greenroom_proto::common::service::ServiceRestart::Always.into();
    service
}

async fn told(pipe: &mut Pipe) -> i32 {
    let line = pipe.line().await;
    let (number, fence) = line.split_once(' ').unwrap();
    assert_eq!(fence, FENCE.to_string());
    number.parse().unwrap()
}

impl Stream {
    /// Has a leased job run, with its first refresh answered.
    async fn run_leased(&mut self, job: WorkerJob, ttl_ms: u64) {
        self.provision(job).await;
        let refresh = self.refresh().await;
        self.answer(&refresh, ttl_ms, false).await;
        self.reports(START, "started").await;
    }

    async fn pause(&mut self, paused: bool) {
        let reason = "maintenance".to_owned();
        let order = Order::LeasesPaused(LeasesPaused { paused, reason });
        self.order("", None, order).await;
        let ack = |message: &WorkerMessage| match &message.message {
            Some(Said::LeasesPauseAck(ack)) => Some(ack.paused),
            _ => None,
        };
        assert_eq!(self.until(ack).await, paused);
    }
}

/// A worker whose guard is a script that says its number in the pipe and becomes the guard.
async fn scene_with_guard(guards: &mut Option<Pipe>) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let pipes = dir.path().join("guards");
    std::fs::create_dir(&pipes).unwrap();
    let pipe = Pipe::new(&pipes);
    let program = dir.path().join("guard");
    let text = format!(
        "#!/bin/sh\necho $$ > {}\nexec {} \"$@\"\n",
        pipe.path.display(),
        env!("CARGO_BIN_EXE_greenroom-worker-testbin")
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    *guards = Some(pipe);
    scene_with(dir, |dir, manager| {
        let variables = [("TESTBIN_GUARD", program.to_str().unwrap())];
        WorkerProcess::spawn_with(&dir.join("state"), manager, "process", "2", &variables)
    })
    .await
}

/// The worker says that the job was ended for its lease, and nothing else.
async fn reports_its_loss(stream: &mut Stream) {
    let words = stream.reports(START, "stopped").await;
    assert_eq!(
        words,
        [
            "failed LEASE_LOST: its lease was not refreshed in time",
            "stopped"
        ]
    );
}

// spec: LEASE-17, LEASE-06, LEASE-03
#[tokio::test]
async fn a_leased_job_starts_after_its_first_answer_and_knows_its_fencing_number() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    scene
        .stream
        .provision(leased(vec![stubborn(&pipe)], 10_000))
        .await;
    let refresh = scene.stream.refresh().await;
    let held = &refresh.leases[0];
    assert_eq!(
        (held.start_id.as_str(), held.fence),
        (id(START).as_str(), FENCE)
    );
    assert_eq!(held.job_key, Some(key("j")));
    // Everything is made by the second refresh, and nothing was started.
    let second = scene.stream.refresh().await;
    assert!(second.sent_nonce > refresh.sent_nonce);
    assert!(scene.worker.supervisor(START) > 0);
    scene.stream.answer(&second, 10_000, false).await;
    assert!(is_alive(told(&mut pipe).await));
    assert_eq!(
        scene.stream.reports(START, "started").await.last().unwrap(),
        "started"
    );
}

// spec: HARDM-55, LEASE-17
#[tokio::test]
async fn an_order_that_its_lease_no_longer_covers_starts_nothing() {
    let mut scene = scene().await;
    let marker = scene.dir.path().join("ran");
    let service = shell("a", &format!("touch {}; exec sleep 1000", marker.display()));
    scene.stream.provision(leased(vec![service], 10_000)).await;
    let refresh = scene.stream.refresh().await;
    scene.stream.answer(&refresh, 10_000, true).await;
    let words = scene.stream.reports(START, "stopped").await;
    assert_eq!(
        words,
        [
            "accepted",
            "failed LEASE_LOST: another start holds the lease",
            "stopped"
        ]
    );
    assert!(!marker.exists());
}

// spec: LEASE-04, SOCK-16
#[tokio::test]
async fn a_manager_that_is_silent_ends_the_job_before_the_ttl_and_the_job_is_warned() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let mut job = leased(vec![stubborn(&pipe)], 4_000);
    job.job_socket = true;
    scene.stream.provision(job).await;
    let refresh = scene.stream.refresh().await;
    let answered_at = boot_ms();
    scene.stream.answer(&refresh, 4_000, false).await;
    let service = told(&mut pipe).await;
    let path = scene
        .worker
        .state_dir
        .join("sockets")
        .join(id(START))
        .join("job.sock");
    let hear = move || {
        let mut job = Job::connect_to(&path, "a", &[]).unwrap();
        assert_eq!(job.welcome().fence, Some(FENCE));
        let mut heard = Vec::new();
        while let Ok(event) = job.wait() {
            heard.push(event);
        }
        heard
    };
    let heard = tokio::task::spawn_blocking(hear);
    let words = scene.stream.reports(START, "stopped").await;
    assert_eq!(
        words[words.len() - 2..],
        [
            "failed LEASE_LOST: its lease was not refreshed in time",
            "stopped"
        ]
    );
    assert!(!is_alive(service));
    // The answer came later than the refresh was sent, so this is the longer time.
    assert!(boot_ms() - answered_at < 4_000);
    let heard = within(heard).await.unwrap();
    assert_eq!(heard[0], Event::Fence(FENCE));
    assert!(
        matches!(heard[1], Event::LeaseWarning { remaining_ms } if remaining_ms <= 334),
        "{heard:?}"
    );
    let stopping = Event::Stopping {
        grace_ms: 0,
        reason: "LEASE".to_owned(),
    };
    assert_eq!(heard[2..], [stopping]);
}

// spec: WORK-42
#[tokio::test]
async fn a_state_directory_that_is_named_from_where_one_stands_has_its_guard_too() {
    let dir = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap();
    let mut state: std::path::PathBuf = here.components().skip(1).map(|_| "..").collect();
    state.push(dir.path().strip_prefix("/").unwrap());
    state.push("state");
    let start =
        |_: &std::path::Path, manager: &_| WorkerProcess::spawn(&state, manager, "process", "2");
    let mut scene = scene_with(dir, start).await;
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 4_000);
    scene.stream.run_leased(job, 4_000).await;
    let service = told(&mut pipe).await;
    assert!(scene.dir.path().join("state/guard").is_dir());
    scene.worker.send(Signal::STOP);
    ended(service).await;
}

// spec: LEASE-05, WORK-42, HARDM-28
#[tokio::test]
async fn the_guard_of_a_stopped_worker_kills_before_the_ttl_and_the_worker_tells_of_it() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    scene
        .stream
        .provision(leased(vec![stubborn(&pipe)], 4_000))
        .await;
    let refresh = scene.stream.refresh().await;
    let answered_at = boot_ms();
    scene.stream.answer(&refresh, 4_000, false).await;
    let service = told(&mut pipe).await;
    scene.stream.reports(START, "started").await;
    scene.worker.send(Signal::STOP);
    ended(service).await;
    let lived = boot_ms() - answered_at;
    assert!((2_500..4_000).contains(&lived), "{lived}");
    scene.worker.send(Signal::CONT);
    reports_its_loss(&mut scene.stream).await;
}

// spec: WORK-42
#[tokio::test]
async fn a_hung_worker_whose_guard_is_killed_has_a_supervisor_that_ends_the_job_before_the_ttl() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    scene
        .stream
        .provision(leased(vec![stubborn(&pipe)], 4_000))
        .await;
    let refresh = scene.stream.refresh().await;
    let answered_at = boot_ms();
    scene.stream.answer(&refresh, 4_000, false).await;
    let service = told(&mut pipe).await;
    scene.stream.reports(START, "started").await;
    let supervisor = scene.worker.supervisor(START);
    let guard = scene.worker.guard();
    scene.worker.send(Signal::STOP);
    kill_process(pid(guard), Signal::KILL).unwrap();
    ended(service).await;
    let lived = boot_ms() - answered_at;
    assert!((2_500..4_000).contains(&lived), "{lived}");
    ended(supervisor).await;
    scene.worker.send(Signal::CONT);
    reports_its_loss(&mut scene.stream).await;
}

// spec: WORK-42, LEASE-05
#[tokio::test]
async fn a_supervisor_hears_of_later_refreshes_and_outlives_worker_and_guard_until_then() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 4_000);
    scene.stream.run_leased(job, 4_000).await;
    let service = told(&mut pipe).await;
    // Four refreshes are more than a ttl: what it was told first is over by then.
    for _ in 0..4 {
        let refresh = scene.stream.refresh().await;
        scene.stream.answer(&refresh, 4_000, false).await;
    }
    assert!(is_alive(service));
    let guard = scene.worker.guard();
    let refresh = scene.stream.refresh().await;
    let answered_at = boot_ms();
    scene.stream.answer(&refresh, 4_000, false).await;
    // The next one is sent only after that answer was taken in.
    scene.stream.refresh().await;
    scene.worker.kill();
    kill_process(pid(guard), Signal::KILL).unwrap();
    ended(service).await;
    assert!(boot_ms() - answered_at < 4_000);
    // The next worker says what became of it; the two reports until here are known.
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, 2).await;
    reports_its_loss(&mut scene.stream).await;
}

// spec: WORK-42, WORK-64
#[tokio::test]
async fn the_guard_of_a_killed_worker_kills_and_only_what_is_leased() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let out = pipe.path.display();
    let free = shell("a", &format!("echo $$ free > {out}; exec sleep 1000"));
    scene.stream.provision(job("k", "s2", vec![free])).await;
    let free: i32 = pipe
        .line()
        .await
        .strip_suffix(" free")
        .unwrap()
        .parse()
        .unwrap();
    let job = leased(vec![stubborn(&pipe)], 4_000);
    scene.stream.run_leased(job, 4_000).await;
    let service = told(&mut pipe).await;
    let supervisor = scene.worker.supervisor(START);
    scene.worker.kill();
    ended(service).await;
    ended(supervisor).await;
    assert!(is_alive(free));
    // The next worker says what became of it; the four reports until here are known.
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, 4).await;
    reports_its_loss(&mut scene.stream).await;
}

// spec: LEASE-05, WORK-42, WORK-61
#[tokio::test]
async fn a_worker_that_is_back_within_the_ttl_goes_on_under_the_same_guard() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 60_000);
    scene.stream.run_leased(job, 60_000).await;
    let service = told(&mut pipe).await;
    let guard = scene.worker.guard();
    scene.worker.kill();
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, 1_000).await;
    let instance = &scene.stream.hello.instances[0];
    assert_eq!(
        (instance.state(), instance.fence),
        (InstanceState::Running, FENCE)
    );
    let refresh = scene.stream.refresh().await;
    assert_eq!(refresh.leases[0].start_id, id(START));
    scene.stream.answer(&refresh, 60_000, false).await;
    scene.stream.stop("j", START, 0).await;
    assert_eq!(scene.stream.reports(START, "stopped").await, ["stopped"]);
    ended(service).await;
    assert_eq!(scene.worker.guard(), guard);
    // It holds nothing now, and ends with its worker.
    assert_eq!(scene.worker.signal(Signal::TERM).code(), Some(0));
    ended(guard).await;
}

// spec: WORK-42
#[tokio::test]
async fn a_guard_that_ends_or_stalls_is_replaced_and_nothing_stops() {
    let mut guards = None;
    let mut scene = scene_with_guard(&mut guards).await;
    let mut guards = guards.unwrap();
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 12_000);
    scene.stream.run_leased(job, 12_000).await;
    let service = told(&mut pipe).await;
    let mut guard: i32 = guards.line().await.parse().unwrap();
    for signal in [Signal::KILL, Signal::STOP] {
        assert_eq!(scene.worker.guard(), guard);
        kill_process(pid(guard), signal).unwrap();
        ended(guard).await;
        guard = guards.line().await.parse().unwrap();
        // By the second refresh from here it would have been stopped for want of a guard.
        for _ in 0..2 {
            let refresh = scene.stream.refresh().await;
            assert_eq!(refresh.leases.len(), 1);
            scene.stream.answer(&refresh, 12_000, false).await;
        }
        assert!(is_alive(service));
    }
    scene.stream.stop("j", START, 0).await;
    assert_eq!(scene.stream.reports(START, "stopped").await, ["stopped"]);
}

// spec: WORK-42, WORK-33
#[tokio::test]
async fn where_no_guard_can_be_had_leased_jobs_stop_and_new_ones_are_rejected() {
    let mut guards = None;
    let mut scene = scene_with_guard(&mut guards).await;
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 60_000);
    scene.stream.run_leased(job, 60_000).await;
    let service = told(&mut pipe).await;
    let guard = scene.worker.guard();
    std::fs::remove_file(scene.dir.path().join("guard")).unwrap();
    kill_process(pid(guard), Signal::KILL).unwrap();
    let killed_at = boot_ms();
    let words = scene.stream.reports(START, "stopped").await;
    assert_eq!(words, ["failed LEASE_LOST: no guard holds it", "stopped"]);
    assert!(boot_ms() - killed_at >= 1_000);
    assert!(!is_alive(service));
    let other = WorkerJob {
        start_id: id("s2"),
        ..leased(vec![shell("a", "exec sleep 1000")], 60_000)
    };
    scene.stream.provision(other).await;
    let rejected = |message: &WorkerMessage| match &message.message {
        Some(Said::JobRejected(rejected)) => {
            Some((rejected.code().as_str_name(), rejected.detail.clone()))
        }
        _ => None,
    };
    let (code, detail) = scene.stream.until(rejected).await;
    assert_eq!(code, "JOB_REJECTED_LEASE");
    assert!(
        detail.starts_with("this worker has no lease guard"),
        "{detail}"
    );
}

// spec: LEASE-10, LEASE-12
#[tokio::test]
async fn a_pause_keeps_a_job_without_refresh_over_the_death_of_its_worker() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let job = leased(vec![stubborn(&pipe)], 2_000);
    scene.stream.run_leased(job, 2_000).await;
    let service = told(&mut pipe).await;
    scene.stream.pause(true).await;
    let paused_at = boot_ms();
    // Refreshes go on without answer: the sixth is sent when the ttl is long over.
    for _ in 0..6 {
        scene.stream.refresh().await;
    }
    assert!(boot_ms() - paused_at > 2_000);
    scene.worker.kill();
    scene.worker.start_again();
    scene.stream = scene.manager.meet(2, 1_000).await;
    assert!(scene.stream.hello.leases_paused);
    for _ in 0..4 {
        scene.stream.refresh().await;
    }
    assert!(is_alive(service));
    scene.stream.pause(false).await;
    reports_its_loss(&mut scene.stream).await;
    assert!(boot_ms() - paused_at > 4_000);
    assert!(!is_alive(service));
}

// spec: WORK-42
#[tokio::test]
async fn the_guard_needs_no_more_memory_after_its_start() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let guard = scene.worker.guard();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.unwrap_or_default().to_owned()
        };
        (line("VmData"), line("VmStk"), line("Threads"))
    };
    let before = memory();
    assert!(before.2.ends_with("\t1"), "{before:?}");
    // Its connection is the worker's: what is asked here comes from the worker's leases.
    let job = leased(vec![stubborn(&pipe)], 2_000);
    scene.stream.run_leased(job, 2_000).await;
    let service = told(&mut pipe).await;
    for _ in 0..4 {
        let refresh = scene.stream.refresh().await;
        scene.stream.answer(&refresh, 2_000, false).await;
    }
    scene.worker.send(Signal::STOP);
    ended(service).await;
    assert_eq!(memory(), before);
    scene.worker.send(Signal::CONT);
    scene.stream.reports(START, "stopped").await;
    assert_eq!(scene.worker.guard(), guard);
}
