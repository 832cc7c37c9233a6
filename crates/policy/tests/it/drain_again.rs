//! Further calls for a node that is being drained (DRAIN-09), and jobs whose protection rules the way in
//! which they change over (DRAIN-22).

use greenroom_policy::drain::{DrainJob, DrainOptions, DrainPhase, DrainState, DrainStatus};
use greenroom_policy::migration::{MigrateOptions, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall, ApiError};
use greenroom_types::{JobId, Millis};
use serde_json::json;

use crate::world::{World, bundle, fixed, job};

const MINUTE: u64 = 60_000;

fn drain(w: &mut World, options: DrainOptions) -> DrainState {
    let id = w.api(ApiCall::DrainNode {
        node_id: "n".into(),
        options,
    });
    match &w.results[&id] {
        Ok(ApiAnswer::Drain(state)) => (**state).clone(),
        other => panic!("no drain: {other:?}"),
    }
}

fn within(ms: u64) -> DrainOptions {
    DrainOptions {
        timeout_ms: Some(Millis(ms)),
        ..DrainOptions::default()
    }
}

fn by(strategy: Strategy) -> DrainOptions {
    DrainOptions {
        strategy: Some(strategy),
        ..DrainOptions::default()
    }
}

fn entry(w: &World, job: &str) -> DrainJob {
    let state = w.policy.drain_status(&"n".into()).unwrap();
    let found = state.jobs.iter().find(|it| it.job_id.as_str() == job);
    found.unwrap().clone()
}

fn phase(w: &World) -> DrainPhase {
    w.policy.drain_status(&"n".into()).unwrap().phase
}

/// `a.0.e` runs on `n`, and there is no other node.
fn alone_on_n() -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.at(10_000);
    w.took();
    w
}

// spec: HARD-66, DRAIN-09
#[test]
fn a_further_call_brings_the_end_nearer_and_can_force_it() {
    let mut w = alone_on_n();
    drain(&mut w, DrainOptions::default());
    w.at(MINUTE + 10_000);
    let state = drain(&mut w, within(30_000));
    assert_eq!(
        (state.force, state.timeout_ms, state.not_taken),
        (false, 90_000, vec![])
    );
    let forced = DrainOptions {
        force: true,
        ..DrainOptions::default()
    };
    w.took();
    let state = drain(&mut w, forced);
    assert_eq!((state.force, state.timeout_ms), (true, 90_000));
    let acts = w.acts();
    assert!(
        acts.contains(&"onPlacementFailed a.0.e".to_owned()),
        "what is stuck is tried once more: {acts:?}"
    );
    assert_eq!(acts.last().unwrap(), "drain waiting a.0.e:stuck");
    w.at(99_999);
    assert_eq!(w.calls(), [""; 0]);
    w.at(100_000);
    assert_eq!(w.calls(), ["terminate n"]);
}

// spec: DRAIN-09
#[test]
fn no_time_at_all_ends_the_drain_or_the_node_at_once() {
    let mut w = alone_on_n();
    drain(&mut w, DrainOptions::default());
    assert_eq!(drain(&mut w, within(0)).phase, DrainPhase::Partial);
    assert_eq!(w.calls(), [""; 0]);

    drain(&mut w, DrainOptions::default());
    let now = DrainOptions {
        force: true,
        ..within(0)
    };
    let state = drain(&mut w, now.clone());
    assert_eq!(state.phase, DrainPhase::Terminating);
    assert_eq!(state.not_taken, [""; 0]);
    assert_eq!(w.calls(), ["terminate n"]);
    assert_eq!(entry(&w, "a.0.e").status, DrainStatus::Terminated);
}

// spec: DRAIN-09
#[test]
fn what_is_not_taken_is_told_in_the_answer_alone() {
    let mut w = alone_on_n();
    w.joins("m", 4.0);
    drain(&mut w, by(Strategy::Overlap));
    w.at(MINUTE + 10_000);
    let more = DrainOptions {
        for_upgrade: true,
        strategy: Some(Strategy::StopThenStart),
        ..within(10 * MINUTE)
    };
    let state = drain(&mut w, more);
    let starts: Vec<&str> = state
        .not_taken
        .iter()
        .map(|words| words.split(':').next().unwrap())
        .collect();
    assert_eq!(starts, ["timeoutMs", "forUpgrade", "strategy"]);
    assert!(
        state.not_taken[0].contains("ends in 540s"),
        "{}",
        state.not_taken[0]
    );
    assert!(
        state.not_taken[2].contains("a.0.e is already on the move"),
        "{}",
        state.not_taken[2]
    );
    let kept = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!((kept.timeout_ms, kept.not_taken.len()), (600_000, 0));
    w.at(10 * MINUTE + 9_999);
    assert!(phase(&w) != DrainPhase::Partial, "{:?}", phase(&w));
    // The same call without any wish just reads it.
    assert_eq!(drain(&mut w, DrainOptions::default()).not_taken, [""; 0]);
}

// spec: DRAIN-09
#[test]
fn a_further_call_tries_what_is_stuck_once_more_and_in_the_new_way() {
    let mut w = alone_on_n();
    w.joins("m", 4.0);
    drain(&mut w, by(Strategy::Handover));
    let stuck = entry(&w, "a.0.e");
    assert_eq!(stuck.reason.as_deref(), Some("notCooperative"));
    w.took();
    drain(&mut w, DrainOptions::default());
    assert_eq!(entry(&w, "a.0.e").status, DrainStatus::Stuck, "as before");
    assert_eq!(w.calls(), [""; 0]);
    drain(&mut w, by(Strategy::Overlap));
    let moving = entry(&w, "a.0.e");
    assert_eq!(moving.status, DrainStatus::Migrating);
    assert_eq!(moving.strategy, Some(Strategy::Overlap));
    assert_eq!(w.calls().len(), 1, "its target is started");
}

/// As before, but `a.0.e` is lease-protected, and there is a node to go to.
fn protected_on_n(handover: bool) -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let spec = json!({"jobName": "e", "handover": handover,
        "lease": {"ttlMs": 10_000, "graceMs": 5_000}, "requirements": {"requiredCapacity": 1}});
    w.submit(bundle("a", json!([spec])));
    w.runs("a.0.e");
    w.joins("m", 4.0);
    w.took();
    w
}

// spec: DRAIN-22
#[test]
fn a_protected_job_changes_over_in_a_way_that_its_protection_allows() {
    for (handover, expected) in [(false, Strategy::StopThenStart), (true, Strategy::Handover)] {
        let mut w = protected_on_n(handover);
        let state = drain(&mut w, by(Strategy::Overlap));
        let moving = &state.jobs[0];
        assert_eq!(moving.status, DrainStatus::Migrating);
        assert_eq!(moving.strategy, Some(expected));
        assert_eq!(moving.instead_of, Some(Strategy::Overlap));
        let report = w.policy.explain(&JobId::new("a.0.e"));
        assert_eq!(report.drain.as_ref(), Some(moving), "why says it too");
    }
    // Nothing stands in the way of what was asked for.
    let mut w = protected_on_n(false);
    let state = drain(&mut w, DrainOptions::default());
    assert_eq!(state.jobs[0].strategy, Some(Strategy::StopThenStart));
    assert_eq!(state.jobs[0].instead_of, None);
}

// spec: MIGR-02, DRAIN-22
#[test]
fn a_protected_job_is_not_moved_by_overlap() {
    let mut w = protected_on_n(false);
    let id = w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options: MigrateOptions {
            strategy: Strategy::Overlap,
            ..MigrateOptions::default()
        },
    });
    let Err(refused @ ApiError::Migration { .. }) = &w.results[&id] else {
        panic!("{:?}", w.results[&id])
    };
    assert_eq!(refused.code(), "leaseProtected");
    assert!(
        refused.to_string().contains("use stopThenStart"),
        "{refused}"
    );
    assert_eq!(w.calls(), [""; 0]);
    assert!(w.policy.migrations().is_empty());
}

// spec: DRAIN-06, MIGR-33
#[test]
fn what_waits_for_room_fills_no_history() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b"] {
        w.submit(bundle(id, json!([job("e")])));
        w.runs(&format!("{id}.0.e"));
    }
    w.at(10_000);
    drain(&mut w, by(Strategy::Overlap));
    for again in 1..=50 {
        // A person insists; each time the answer is no.
        drain(&mut w, DrainOptions::default());
        w.joins(&format!("small-{again}"), 0.5);
    }
    let ended = w.policy.migrations();
    assert_eq!(ended.len(), 2, "the last attempt of each: {ended:?}");
    w.took();
    for again in 1..=50 {
        w.at(20_000 + again * 10);
        w.joins(&format!("smaller-{again}"), 0.25);
    }
    let acts = w.acts();
    let vain = acts.iter().filter(|line| line.contains("a.0.e")).count();
    assert_eq!(vain, 0, "{acts:?}");
}

// spec: DRAIN-06
#[test]
fn room_is_looked_for_once_a_second_and_not_forgotten_in_between() {
    let mut w = alone_on_n();
    drain(&mut w, by(Strategy::Overlap));
    w.joins("small", 0.5);
    w.joins("m", 4.0);
    assert_eq!(entry(&w, "a.0.e").status, DrainStatus::Stuck, "not yet");
    w.at(10_999);
    assert_eq!(entry(&w, "a.0.e").status, DrainStatus::Stuck);
    w.at(11_000);
    assert_eq!(entry(&w, "a.0.e").status, DrainStatus::Migrating);
}
