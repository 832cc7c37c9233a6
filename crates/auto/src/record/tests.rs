//! What is recorded beside a policy plays to the same course: a fleet is played in virtual time with
//! the recorder beside its policy, and the recording is played again.

use std::cell::RefCell;
use std::rc::Rc;

use greenroom_policy::{Effect, Event, Policy};
use greenroom_sim::{Observer, Options, Outcome, recorded, run_file, run_observed};
use greenroom_types::{Millis, Now};

use super::Recorder;

/// The recorder, and the time of what it saw last.
#[derive(Clone, Debug)]
struct Beside(Rc<RefCell<(Recorder, Option<Now>)>>);

impl Observer for Beside {
    fn before(&mut self, now: Now, event: &Event, policy: &Policy) {
        let mut seen = self.0.borrow_mut();
        seen.0.before(now, event, policy);
        seen.1 = Some(now);
    }
    fn after(&mut self, now: Now, effect: &Effect, policy: &Policy) {
        self.0.borrow_mut().0.after(now, effect, policy);
    }
}

const HEAD: &str = "\
scenario: 1
settings:
  placementPools: [{name: live, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}]
world: {startTime: 50ms, stopTime: 50ms, prepareTime: 50ms, startPreparedTime: 20ms}
";

fn job(bundle: &str, capacity: &str, more: &str) -> String {
    format!(
        "{{bundleId: {bundle}, pool: live, jobs: [{{jobName: e, {more}requirements: {{requiredCapacity: {capacity}}}}}]}}"
    )
}

/// Plays this and gives the recording of its last minutes, which must leave nothing out.
fn replayed(body: &str, minutes: u64) -> String {
    let text = format!("{HEAD}{body}");
    let recorder = Recorder::new(serde_json::json!({
        "placementPools": [{"name": "live", "tiers": [
            {"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]}],
    }));
    let beside = Beside(Rc::new(RefCell::new((recorder, None))));
    let run = run_observed(
        "first.yaml",
        &text,
        Options::default(),
        Some(Box::new(beside.clone())),
    );
    assert!(matches!(run.outcome, Outcome::Ok), "{}", run.report());
    let seen = beside.0.borrow();
    let now = seen.1.expect("something happened");
    let end = Now {
        mono: now.mono + Millis(1),
        ..now
    };
    let recording = seen.0.recording(end, minutes).expect("a picture was taken");
    let recorded = recorded(greenroom_sim::Recording {
        name: "second".to_owned(),
        start: recording.start,
        settings: recording.settings,
        nodes: recording.nodes,
        bundles: recording.bundles,
        steps: recording.steps,
        left_out: recording.left_out,
    })
    .unwrap_or_else(|told| panic!("{told}"));
    assert!(recorded.left_out.is_empty(), "{}", recorded.text);
    let again = run_file("second.yaml", &recorded.text, Options::default());
    assert_eq!(
        again.exit_code(),
        0,
        "{}\n{}",
        again.report(),
        recorded.text
    );
    recorded.text
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

// spec: SCEN-12
#[test]
fn a_cordon_in_force_holds_in_the_recording_as_well() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 2, jobs: [small/0/e]}}, {{id: m, pool: live, capacity: 2}}]
bundles: [{}]
steps:
  - {{at: 10s, cordon: m}}
  - {{at: 5m10s, setTags: {{node: n, tags: {{x: y}}}}}}
  - {{at: 6m, createBundle: {}}}
  - {{at: 6m10s, createBundle: {}}}
  - at: 6m20s
    expect: {{jobs: {{late/0/e: {{state: unplaced}}, next/0/e: {{state: running, node: n}}}}}}
  - {{at: 6m30s, uncordon: m}}
  - {{at: 6m40s, expect: {{jobs: {{late/0/e: {{state: running, node: m}}}}}}}}
",
        job("small", "1", ""),
        job("next", "0.5", ""),
        job("late", "1.5", "")
    );
    let text = replayed(&body, 1);
    has(
        &text,
        &[
            "{at: 0s, cordon: m}",
            "{at: 0s, inventory: {cordoned: false, node: m}}",
            "trace: {job: late/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "uncordon: m",
            "trace: {chosen: m, job: late/0/e}",
        ],
    );
}

/// What a node that takes nothing new runs goes on, in the recording as in the fleet.
// spec: SCEN-12
#[test]
fn a_node_that_is_closed_to_new_work_is_recorded_with_what_it_runs() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 2, jobs: [small/0/e]}}, {{id: m, pool: live, capacity: 2, jobs: [old/0/e]}}, {{id: o, pool: live, capacity: 2, jobs: [last/0/e]}}]
bundles: [{}, {}, {}]
steps:
  - {{at: 10s, cordon: n}}
  - {{at: 10s, inventory: {{node: m, disks: [{{path: /, total: 100000000000, free: 1000}}]}}}}
  - {{at: 10s, inventory: {{node: o, cordoned: true}}}}
  - {{at: 5m10s, setTags: {{node: n, tags: {{x: y}}}}}}
  - {{at: 6m, createBundle: {}}}
  - {{at: 6m20s, expect: {{jobs: {{late/0/e: {{state: unplaced}}}}}}}}
  - {{at: 6m30s, uncordon: n}}
  - {{at: 6m40s, expect: {{jobs: {{late/0/e: {{state: running, node: n}}}}}}}}
  - {{at: 6m50s, inventory: {{node: m, disks: []}}}}
  - {{at: 7m, createBundle: {}}}
  - {{at: 7m10s, expect: {{jobs: {{more/0/e: {{state: running, node: m}}}}}}}}
",
        job("small", "1", ""),
        job("old", "1", ""),
        job("last", "1", ""),
        job("late", "1", ""),
        job("more", "1", "")
    );
    let text = replayed(&body, 1);
    has(
        &text,
        &[
            "jobs: [small/0/e]",
            "jobs: [old/0/e]",
            "jobs: [last/0/e]",
            "{at: 0s, cordon: n}",
            "{at: 0s, inventory: {cordoned: false, node: n}}",
            "trace: {job: late/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "trace: {chosen: n, job: late/0/e}",
            "disks: [{free: 0",
            "{at: 1m40s, inventory: {disks: [], node: m}}",
            "trace: {chosen: m, job: more/0/e}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_drain_that_gets_stuck_does_so_again() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 2, jobs: [a/0/e]}}, {{id: m, pool: live, capacity: 2, jobs: [b/0/e]}}]
bundles: [{}, {}]
steps:
  - {{at: 10s, drain: {{node: n, timeout: 5s}}}}
  - {{at: 20s, expect: {{drain: {{node: n, phase: partial}}, jobs: {{a/0/e: {{state: running}}}}}}}}
  - {{at: 30s, drain: {{node: n, timeout: 1m, strategy: {{a/0/e: overlap}}}}}}
  - {{at: 40s, uncordon: n}}
  - {{at: 50s, expect: {{drain: {{node: n, phase: failed}}}}}}
",
        job("a", "1.5", ""),
        job("b", "1.5", "")
    );
    let text = replayed(&body, 1);
    has(
        &text,
        &[
            "trace: {job: a/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "drain: {node: n, phase: partial, jobs: {a/0/e: stuck}}",
            "strategy: {a/0/e: overlap}",
            "drain: {node: n, phase: failed, jobs: {a/0/e: stuck}}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_server_that_was_drained_and_returns_is_the_same_server() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 2, jobs: [a/0/e]}}, {{id: m, pool: live, capacity: 2}}]
bundles: [{}]
steps:
  - {{at: 10s, drain: {{node: n}}}}
  - {{at: 30s, expect: {{drain: {{node: n, phase: done}}, nodes: {{n: {{state: stopped}}}}}}}}
  - {{at: 40s, inventory: {{node: n, capacity: 3}}}}
  - {{at: 40s, nodeReturns: {{node: n, jobs: []}}}}
  - {{at: 50s, setTags: {{node: n, tags: {{spare: 'true', rack: r7}}}}}}
  - {{at: 1m, updateHotSpareNode: {{node: n, exclusive: true, reservedFor: [t]}}}}
  - {{at: 1m10s, updateHotSpareNode: {{node: n, exclusive: false}}}}
  - {{at: 1m15s, uncordon: n}}
  - {{at: 1m20s, createBundle: {}}}
  - {{at: 1m30s, expect: {{jobs: {{late/0/e: {{state: running, node: n}}}}}}}}
  - {{at: 2m, partition: m}}
  - {{at: 3m, expect: {{nodes: {{m: {{state: stopped}}}}}}}}
  - {{at: 4m, heal: m}}
  - {{at: 4m10s, expect: {{nodes: {{m: {{state: running}}}}}}}}
",
        job("a", "1.5", ""),
        job("late", "2.5", "")
    );
    let text = replayed(&body, 5);
    has(
        &text,
        &[
            "drain: {node: n, phase: done, jobs: {a/0/e: migrated}}",
            "nodeReturns: {node: n, jobs: []}",
            "inventory: {capacity: 3.0",
            "setTags: {node: n, tags: {rack: r7, spare: \"true\"}}",
            "updateHotSpareNode: {exclusive: true, node: n, reservedFor: [t]}",
            "trace: {chosen: n, job: late/0/e}",
            "heal: m",
        ],
    );
    assert_eq!(text.matches("setTags").count(), 1, "{text}");
    assert!(!text.contains("nodeJoins"), "{text}");
}

// spec: SCEN-12
#[test]
fn a_server_that_left_before_joins_anew() {
    let body = "nodes: [{id: n, pool: live, capacity: 2}, {id: m, pool: live, capacity: 2}]
steps:
  - {at: 10s, terminate: n}
  - {at: 5m30s, setTags: {node: m, tags: {x: y}}}
  - {at: 6m40s, nodeReturns: {node: n, jobs: []}}
  - {at: 6m50s, expect: {nodes: {n: {state: running}}}}
";
    let text = replayed(body, 1);
    has(&text, &["nodeJoins: {id: n"]);
}

// spec: SCEN-12
#[test]
fn what_waits_for_a_hand_and_what_was_started_by_one_stand_as_they_stood() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 3}}]
bundles: [{}, {}, {}]
steps:
  - {{at: 10s, startBundleJob: by-hand/0/e}}
  - {{at: 20s, stopBundleJob: stopped/0/e}}
  - {{at: 30s, startBundleJob: too-large/0/e}}
  - {{at: 5m10s, createBundle: {}}}
  - {{at: 6m10s, stopBundleJob: by-hand/0/e}}
  - {{at: 6m20s, startBundleJob: stopped/0/e}}
  - {{at: 6m30s, expect: {{jobs: {{stopped/0/e: {{state: running}}, by-hand/0/e: {{state: dormant}}}}}}}}
",
        job("by-hand", "1", "startMode: manual, "),
        job("stopped", "1", ""),
        job("too-large", "5", "startMode: manual, "),
        job("next", "0.5", "")
    );
    let text = replayed(&body, 1);
    has(
        &text,
        &[
            "jobs: [by-hand/0/e]",
            "{at: 0s, startBundleJob: too-large/0/e}",
            "stopBundleJob: by-hand/0/e",
            "startBundleJob: stopped/0/e",
        ],
    );
}

// spec: SCEN-12
#[test]
fn migrations_that_come_to_nothing_do_so_again() {
    let body = format!(
        "nodes: [{{id: n, pool: live, capacity: 2, jobs: [a/0/e]}}, {{id: m, pool: live, capacity: 2}}]
bundles: [{}]
steps:
  - {{at: 10s, hold: [migrationSignals]}}
  - {{at: 10s, migrate: {{job: a/0/e, strategy: handover}}}}
  - {{at: 10s300ms, signal: {{job: a/0/e, side: source, kind: refuse, payload: not now}}}}
  - {{at: 20s, expect: {{migration: {{job: a/0/e, phase: aborted}}}}}}
  - {{at: 30s, startFails: {{node: m, next: 1}}}}
  - {{at: 30s, migrate: {{job: a/0/e, strategy: stopThenStart}}, refused: 'the target could not be started: refused: the scenario lets starts on \"m\" fail (start_failed)'}}
  - {{at: 50s, expect: {{jobs: {{a/0/e: {{state: running}}}}}}}}
  - {{at: 1m, migrate: {{job: a/0/e, strategy: handover}}}}
  - {{at: 1m1s, signal: {{job: a/0/e, side: source, kind: state, payload: secret}}}}
  - {{at: 1m2s, signal: {{job: a/0/e, side: target, kind: ready}}}}
  - {{at: 1m3s, abortMigration: {{job: a/0/e, reason: second thoughts}}}}
  - {{at: 1m10s, expect: {{migration: {{job: a/0/e, phase: aborted}}}}}}
",
        job("a", "1.5", "handover: true, ")
    );
    let text = replayed(&body, 5);
    has(
        &text,
        &[
            "{at: 0s, hold: [migrationSignals]}",
            "kind: refuse, payload: \"not now\"",
            "phase: aborted",
            "kind: ready",
            "abortMigration: {job: a/0/e, reason: \"second thoughts\"}",
        ],
    );
    assert!(!text.contains("stopThenStart"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}
