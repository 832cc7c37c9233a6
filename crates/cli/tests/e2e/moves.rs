//! The Manager is killed in each phase of a move that shows, and started again at once: real Manager,
//! control plane, workers and test cards (FIELD-39).
//!
//! Which call was on its way at that moment is left to chance; what must follow is the same.

use std::path::Path;

use greenroom_media::probe::Report;
use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::types::stream::{MigrationSignal, StreamEvent};
use greenroom_sdk::{Client, EventSettings, Settings};
use greenroom_testkit::{Watch, kinds};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::air::{Viewer, until};
use crate::harness::{Daemon, Ran, finish, greenroom, processes_on, sweep, temp};

const JOB: &str = "air.0.card";
const SETTINGS: &str = "\
placementPools:
  - {name: local, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}
";

/// When the Manager is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The history of the job has one more entry of this kind.
    Entry(&'static str),
    /// The job has said this.
    Signal(fn(&MigrationSignal) -> bool),
}

/// An installation whose parts are programs of their own.
struct Apart {
    folder: TempDir,
    manager: Option<Daemon>,
    address: String,
    control: String,
    _others: Vec<Daemon>,
}

// === impl Apart ===

impl Apart {
    async fn start() -> Self {
        let folder = temp();
        let mut apart = Self {
            folder,
            manager: None,
            address: "127.0.0.1:0".to_owned(),
            control: String::new(),
            _others: Vec::new(),
        };
        apart.start_manager();
        let settings = apart.write("control.yaml", SETTINGS);
        let mut control = greenroom();
        control.args([
            "control",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "-c",
            &settings,
        ]);
        let mut control = Daemon::spawn(control.args(["--manager", &apart.url()]));
        apart.control = format!("http://{}", address(&control.line()));
        apart._others.push(control);
        for name in ["one", "other"] {
            let token = apart.path(name);
            apart
                .tool(&["node", "register", name, "--pool", "local", "--out", &token])
                .ok();
            let mut worker = greenroom();
            worker.args([
                "worker",
                "--json",
                "--listen",
                "127.0.0.1:0",
                "--runtime",
                "process",
            ]);
            worker.args(["--manager-url", &apart.url(), "--token-file", &token]);
            worker.args(["--state-dir", &apart.path(&format!("state-{name}"))]);
            let mut worker = Daemon::spawn(&mut worker);
            worker.line();
            apart._others.push(worker);
        }
        let mut watch = apart.watch().await;
        for name in ["one", "other"] {
            watch.until_node(name, NodeState::Running).await;
        }
        apart
    }

    fn start_manager(&mut self) {
        let mut command = greenroom();
        command.args(["manager", "--json", "--listen", &self.address, "--data-dir"]);
        let mut manager = Daemon::spawn(command.arg(self.path("store")));
        self.address = address(&manager.line());
        self.manager = Some(manager);
    }

    fn kill_manager(&mut self) {
        let mut manager = self.manager.take().expect("it runs");
        manager.signal(Signal::KILL);
        assert_eq!(manager.ended().code, 128 + 9);
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.folder.path().join(name), text).expect("a file can be written");
        self.path(name)
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = greenroom();
        command
            .env("GREENROOM_MANAGER", self.url())
            .env("GREENROOM_CONTROL", &self.control)
            .args(args);
        command
    }

    fn tool(&self, args: &[&str]) -> Ran {
        finish(&mut self.command(args))
    }

    async fn watch(&self) -> Watch {
        let client = Client::connect(Settings::new([self.url()])).await;
        Watch::begin(
            client.expect("the Manager is reached"),
            EventSettings::default(),
        )
        .await
    }

    /// The control plane has taken in what the Manager says, and acts.
    async fn until_controlled(&self) {
        let what = "a control plane that acts";
        until(what, || self.tool(&["migrations", "--json"]).code == 0).await;
    }

    /// Moves the job and kills the Manager at a moment of it; gives where it lives then.
    async fn move_with_a_death(&mut self, strategy: &str, moment: Moment) -> String {
        let mut watch = self.watch().await;
        let job = watch.until_job(JOB, "known", |_| true).await;
        let count = |job: &_, kind| kinds(job).iter().filter(|it| **it == kind).count();
        self.until_controlled().await;
        let args = ["migrate", JOB, "--strategy", strategy, "--json"];
        let mut migrating = Daemon::spawn(&mut self.command(&args));
        match moment {
            Moment::Entry(kind) => {
                let known = count(&job, kind);
                watch
                    .until_job(JOB, kind, |job| count(job, kind) > known)
                    .await;
            }
            Moment::Signal(is_it) => {
                let look = |event: &StreamEvent| match event {
                    StreamEvent::Migration { signal, .. } => is_it(signal).then_some(()),
                    _ => None,
                };
                watch.until("a signal of the job", look).await;
            }
        }
        self.kill_manager();
        self.start_manager();
        // Whether the call was answered before is not what this is about.
        let _ = migrating.ended();
        self.until_controlled().await;
        let mut node = String::new();
        until("one instance of the job", || {
            let job = &self.tool(&["get", "jobs", "--json"]).ok().json()[0];
            node = job["node"].as_str().unwrap_or_default().to_owned();
            job["instance"] == "running" && cards(self.folder.path()) == 1
        })
        .await;
        node
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        sweep(self.folder.path());
    }
}

fn address(told: &Value) -> String {
    told["address"]
        .as_str()
        .expect("it tells its address")
        .to_owned()
}

fn cards(folder: &Path) -> usize {
    let all = processes_on(folder);
    all.iter()
        .filter(|(_, line)| line.contains("testcard --to"))
        .count()
}

/// Plays a move for each moment; gives what a viewer saw and where the job lived after each.
async fn play(
    strategy: &str,
    keys: &str,
    words: &str,
    moments: &[Moment],
) -> (Report, Vec<String>) {
    let mut apart = Apart::start().await;
    let mut viewer = Viewer::open().await;
    let (binary, port) = (env!("CARGO_BIN_EXE_greenroom"), viewer.port());
    let bundle = format!(
        "bundleId: air\npool: local\njobs:\n  - jobName: card\n{keys}    requirements: {{requiredCapacity: 0.1}}\n    launch:\n      \
         services:\n        - name: card\n          command: {binary} testcard --to 127.0.0.1:{port} --channel air --rate 50 \
         --catch-up 30000 {words}\n          restart: onFailure\n"
    );
    let file = apart.write("air.yaml", &bundle);
    apart.tool(&["apply", "-f", &file, "--wait"]).ok();
    viewer.until_more(1).await;
    let mut ends = Vec::new();
    for moment in moments {
        ends.push(apart.move_with_a_death(strategy, *moment).await);
        viewer.until_more(20).await;
    }
    (viewer.end().await, ends)
}

/// Of two holders the newer one begins after the last packet of the older.
#[track_caller]
fn one_holder_at_a_time(report: &Report) {
    for (older, newer) in report
        .on_air
        .iter()
        .flat_map(|one| report.on_air.iter().map(move |it| (one, it)))
    {
        let is_late = older.sender.fence < newer.sender.fence && older.until_us > newer.from_us;
        assert!(!is_late, "{older:?} after {newer:?}");
    }
}

/// What this machine itself lost on the way to the probe, no sender left out.
#[track_caller]
fn nothing_missing(report: &Report) {
    let lost_here = report.own_drops.unwrap_or(0);
    assert!(report.missing <= lost_here, "{:?}", report.missing_list);
}

const LEASED: &str = "    lease: {ttlMs: 60000, graceMs: 1000}\n";

// spec: FIELD-39, MIGR-10, LEASE-08
#[tokio::test(flavor = "multi_thread")]
async fn a_move_by_stop_then_start_outlives_the_managers_death_in_each_phase() {
    let moments = ["provisioned", "prepared", "stopping", "running"].map(Moment::Entry);
    let (report, ends) = play("stop-then-start", LEASED, "", &moments).await;
    one_holder_at_a_time(&report);
    assert_eq!((report.repeated, report.overlaps.len()), (0, 0), "{ends:?}");
}

// spec: FIELD-39, MIGR-11
#[tokio::test(flavor = "multi_thread")]
async fn a_move_by_overlap_loses_nothing_by_the_managers_death_in_any_phase() {
    let moments = ["provisioned", "running", "stopping"].map(Moment::Entry);
    let (report, _) = play("overlap", "", "--linger 5000", &moments).await;
    nothing_missing(&report);
}

const COOPERATIVE: &str = "    handover: true\n    lease: {ttlMs: 60000, graceMs: 1000}\n";

// spec: FIELD-39, MIGR-12, LEASE-08
#[tokio::test(flavor = "multi_thread")]
async fn a_handover_is_taken_back_unseen_by_the_managers_death_before_the_target_begins() {
    let moments = [
        Moment::Signal(|it| matches!(it, MigrationSignal::State(_))),
        Moment::Entry("provisioned"),
        Moment::Entry("running"),
        Moment::Signal(|it| matches!(it, MigrationSignal::TargetReady(_))),
    ];
    let (report, ends) = play("handover", COOPERATIVE, "", &moments).await;
    one_holder_at_a_time(&report);
    assert_eq!((report.repeated, report.overlaps.len()), (0, 0), "{ends:?}");
    nothing_missing(&report);
}

// spec: FIELD-39, HYDR-18, EVT-02
#[tokio::test(flavor = "multi_thread")]
async fn a_handover_whose_source_has_stopped_goes_on_after_the_managers_death() {
    let moments = [
        Moment::Signal(|it| matches!(it, MigrationSignal::SourceStoppedOutput(_))),
        Moment::Signal(|it| matches!(it, MigrationSignal::TargetApplied(_))),
    ];
    let (report, ends) = play("handover", COOPERATIVE, "", &moments).await;
    one_holder_at_a_time(&report);
    assert_eq!((report.repeated, report.overlaps.len()), (0, 0), "{ends:?}");
    nothing_missing(&report);
}
