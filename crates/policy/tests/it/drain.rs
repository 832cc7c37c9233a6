//! Emptying nodes, and notices of providers (DRAIN, INTR).

use greenroom_policy::drain::{DrainOptions, DrainPhase, DrainStatus};
use greenroom_policy::migration::Strategy;
use greenroom_policy::{ApiAnswer, ApiCall};

use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::{InterruptionKind, RejectionCode};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, fixed, inventory, job, needing, settings};

const SECOND: u64 = 1_000;

/// Jobs `a.0.e` and `b.0.e` run on `n`; `m` is free.
fn two_on_n() -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b"] {
        w.submit(bundle(id, json!([job("e")])));
        w.runs(&format!("{id}.0.e"));
    }
    w.joins("m", 4.0);
    w.at(10_000);
    w.took();
    w
}

fn overlap() -> DrainOptions {
    DrainOptions {
        strategy: Some(Strategy::Overlap),
        ..DrainOptions::default()
    }
}

fn drain(
    w: &mut World,
    node: &str,
    options: DrainOptions,
) -> Result<ApiAnswer, greenroom_policy::ApiError> {
    let node_id = w.long(node);
    let id = w.api(ApiCall::DrainNode { node_id, options });
    w.results[&id].clone()
}

fn phase(w: &World, node: &str) -> DrainPhase {
    w.policy.drain_status(&w.long(node)).unwrap().phase
}

fn status(w: &World, node: &str, job: &str) -> DrainStatus {
    let state = w.policy.drain_status(&w.long(node)).unwrap();
    state
        .jobs
        .iter()
        .find(|j| j.job_id.as_str() == job)
        .unwrap()
        .status
}

fn notice(w: &mut World, node: &str, kind: InterruptionKind, in_s: Option<i64>) {
    let deadline = in_s.map(|s| w.now.wall.plus(s * 1000));
    let node_id = w.long(node);
    w.send(StreamEvent::NodeInterruptionNotice {
        node_id,
        kind,
        deadline,
        noticed_at: w.now.wall,
    });
}

// spec: DRAIN-01, DRAIN-02, DRAIN-03, DRAIN-04, DRAIN-05, DRAIN-11
#[test]
fn a_drain_moves_the_jobs_and_ends_the_empty_node_once() {
    let mut w = two_on_n();
    let (_, a) = w.last_start("a.0.e");
    let (_, b) = w.last_start("b.0.e");
    let answer = drain(&mut w, "n", overlap()).unwrap();
    let ApiAnswer::Drain(state) = answer else {
        panic!("a drain")
    };
    assert_eq!(
        (state.phase, state.timeout_ms, state.force),
        (DrainPhase::Migrating, 600_000, false)
    );
    assert!(w.policy.is_cordoned(&"n".into()));
    assert!(
        w.acts()
            .contains(&"drain migrating a.0.e:migrating b.0.e:migrating".to_owned())
    );
    w.moves_over("a.0.e", &a, "n");
    assert_eq!(status(&w, "n", "a.0.e"), DrainStatus::Migrated);
    assert!(!w.calls().iter().any(|call| call.starts_with("terminate")));
    w.moves_over("b.0.e", &b, "n");
    let acts = w.acts();
    assert_eq!(
        acts.iter()
            .filter(|line| *line == "call terminate n")
            .count(),
        1
    );
    assert_eq!(
        acts.iter()
            .filter(|line| *line == "onNodeTerminated n")
            .count(),
        1
    );
    assert_eq!(phase(&w, "n"), DrainPhase::Done);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: DRAIN-06, FIELD-01
#[test]
fn the_node_is_not_ended_before_the_last_instance_is_gone() {
    let mut w = two_on_n();
    w.send(StreamEvent::JobDeleted("b.0.e".into()));
    let (_, a) = w.last_start("a.0.e");
    drain(&mut w, "n", overlap()).unwrap();
    w.runs("a.0.e");
    let at = w.place_of("primary", "n");
    let kind = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    w.enter("a.0.e", kind, Some(a.clone()));
    w.tell("a.0.e");
    w.at(w.now.mono.0 + 29 * SECOND);
    assert!(phase(&w, "n") < DrainPhase::Terminating, "it still stops");
    // The phase gives up on the report; the node is still held by what the Manager shows there.
    w.at(w.now.mono.0 + 10 * SECOND);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    assert!(phase(&w, "n") < DrainPhase::Terminating);
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(a));
    w.tell("a.0.e");
    assert_eq!(phase(&w, "n"), DrainPhase::Done);
}

// spec: HARD-56, DRAIN-07, DRAIN-14, DRAIN-17
#[test]
fn a_job_whose_target_is_rejected_stays_and_the_node_with_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.submit(bundle(
        "b",
        json!([needing("e", json!({"onRuntimeFailure": "drop"}))]),
    ));
    w.runs("a.0.e");
    w.runs("b.0.e");
    let (_, a) = w.last_start("a.0.e");
    w.joins("m", 4.0);
    drain(&mut w, "n", overlap()).unwrap();
    w.rejects("b.0.e", "m", RejectionCode::Capacity, "full");
    assert_eq!(status(&w, "n", "b.0.e"), DrainStatus::Stuck);
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
    w.moves_over("a.0.e", &a, "n");
    assert_eq!(phase(&w, "n"), DrainPhase::Waiting);
    w.took();
    w.picture("m", 4.0);
    assert!(
        w.calls().is_empty(),
        "an aborted one is not tried again by itself"
    );
    w.at(600 * SECOND);
    assert_eq!(phase(&w, "n"), DrainPhase::Partial);
    assert!(w.calls().is_empty());
    assert!(w.policy.is_cordoned(&"n".into()));
    assert_eq!(w.restarts("b.0.e"), 0);
}

// spec: HARD-57, DRAIN-08
#[test]
fn with_force_the_node_goes_with_what_is_on_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    let options = DrainOptions {
        force: true,
        ..overlap()
    };
    drain(&mut w, "n", options).unwrap();
    assert_eq!(status(&w, "n", "b.0.e"), DrainStatus::Stuck, "no place");
    w.took();
    w.at(600 * SECOND);
    assert_eq!(w.calls(), ["terminate n"]);
    assert_eq!(status(&w, "n", "b.0.e"), DrainStatus::Terminated);
    w.joins("o", 4.0);
    w.took();
    w.stopping("n");
    assert_eq!(w.calls(), ["start b.0.e primary on o"]);
    assert_eq!(w.restarts("b.0.e"), 1);
}

// spec: DRAIN-06, PEND-02
#[test]
fn a_job_without_a_place_is_tried_when_there_may_be_one() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    drain(&mut w, "n", overlap()).unwrap();
    assert_eq!(phase(&w, "n"), DrainPhase::Waiting);
    w.joins("m", 4.0);
    w.at(w.now.mono.0 + SECOND);
    assert_eq!(phase(&w, "n"), DrainPhase::Migrating);
}

// spec: HARD-58, INTR-01, INTR-04, INTR-06, INTR-08
#[test]
fn an_interruption_makes_a_drain_forced_and_only_ever_earlier() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    drain(&mut w, "n", overlap()).unwrap();
    w.at(60 * SECOND);
    w.took();
    notice(&mut w, "n", InterruptionKind::SpotInterruption, Some(120));
    let told = w
        .acts()
        .iter()
        .filter(|line| line.starts_with("onNodeInterrupted"))
        .count();
    assert_eq!(told, 1);
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!((state.timeout_ms, state.force), (150_000, true));
    w.at(70 * SECOND);
    notice(&mut w, "n", InterruptionKind::Rebalance, None);
    w.took();
    w.at(150 * SECOND - 1);
    assert!(w.calls().is_empty());
    w.at(150 * SECOND);
    assert_eq!(w.calls(), ["terminate n"]);
    w.joins("o", 4.0);
    w.stopping("n");
    assert_eq!(w.node_of("b.0.e").unwrap(), "o");
    assert_eq!(w.restarts("b.0.e"), 0);
}

// spec: HARD-59, INTR-01
#[test]
fn a_spot_notice_after_a_rebalance_brings_the_end_nearer() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    notice(&mut w, "n", InterruptionKind::Rebalance, None);
    let timeout = |w: &World| w.policy.drain_status(&"n".into()).unwrap().timeout_ms;
    assert_eq!(timeout(&w), 300_000);
    w.at(100 * SECOND);
    notice(&mut w, "n", InterruptionKind::SpotInterruption, None);
    assert_eq!(timeout(&w), 190_000);
}

// spec: HARD-60, INTR-02
#[test]
fn with_no_time_left_the_node_is_ended_at_once() {
    let mut w = two_on_n();
    notice(&mut w, "n", InterruptionKind::SpotInterruption, Some(20));
    let acts = w.acts();
    assert!(
        acts.iter()
            .any(|line| line.starts_with("call start a.0.e primary@"))
    );
    assert!(acts.contains(&"call terminate n".to_owned()));
    w.stopping("n");
    assert_eq!((w.restarts("a.0.e"), w.restarts("b.0.e")), (0, 0));
    assert!(!w.is_broken("a"));
}

// spec: HARD-61, INTR-08, INTR-12, CEIL-03
#[test]
fn any_number_of_reclaims_breaks_no_bundle_and_a_crash_counts() {
    let mut w = World::with(fixed(), &[("n0", 1.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    for n in 0..10 {
        w.at(w.now.mono.0 + 60 * SECOND);
        let node = format!("n{n}");
        notice(&mut w, &node, InterruptionKind::SpotInterruption, Some(25));
        w.stopping(&node);
        w.joins(&format!("n{}", n + 1), 1.0);
        assert!(w.node_of("a.0.e").is_some(), "round {n}");
        w.runs("a.0.e");
        if n == 4 {
            w.at(w.now.mono.0 + 10 * SECOND);
            w.fails("a.0.e");
            w.runs("a.0.e");
        }
    }
    assert_eq!(w.restarts("a.0.e"), 1);
    assert!(!w.is_broken("a"));
}

// spec: HARD-62, DRAIN-10, INTR-09
#[test]
fn uncordon_takes_a_drain_back_and_the_notice_with_it() {
    let mut w = two_on_n();
    let (_, a) = w.last_start("a.0.e");
    let options = DrainOptions {
        strategy: Some(Strategy::Overlap),
        ..DrainOptions::default()
    };
    w.api(ApiCall::HandleNodeInterruption {
        node_id: "n".into(),
        kind: InterruptionKind::Rebalance,
        deadline: None,
        options,
    });
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!(
        (state.phase, state.reason.as_deref()),
        (DrainPhase::Failed, Some("cancelled"))
    );
    w.took();
    w.moves_over("a.0.e", &a, "n");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    w.at(1_200 * SECOND);
    assert!(!w.calls().iter().any(|call| call.starts_with("terminate")));
    w.joins("o", 4.0);
    w.stopping("n");
    w.stopping("m");
    assert_eq!(w.restarts("a.0.e"), 1, "a later loss counts");
}

// spec: HARD-63, DRAIN-10
#[test]
fn after_the_terminate_uncordon_leaves_the_drain() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.hold = true;
    drain(&mut w, "n", DrainOptions::default()).unwrap();
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    assert_eq!(phase(&w, "n"), DrainPhase::Terminating);
    w.answer();
    assert_eq!(phase(&w, "n"), DrainPhase::Done);
}

// spec: HARD-64, DRAIN-13
#[test]
fn a_node_lost_during_its_drain_is_not_terminated() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    drain(&mut w, "n", overlap()).unwrap();
    w.took();
    w.stopping("n");
    let acts = w.acts();
    assert!(
        !acts
            .iter()
            .any(|line| line.contains("erminate n") || line == "onNodeTerminated n")
    );
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!(
        (state.phase, state.reason.as_deref()),
        (DrainPhase::Done, Some("nodeLost"))
    );
    assert_eq!(status(&w, "n", "b.0.e"), DrainStatus::Terminated);
    assert_eq!(w.restarts("b.0.e"), 1);
}

// spec: HARD-65, DRAIN-12
#[test]
fn what_is_on_its_way_to_a_draining_node_is_called_back_or_drained_in_turn() {
    let moving = || {
        let mut w = two_on_n();
        w.send(StreamEvent::JobDeleted("b.0.e".into()));
        let (_, a) = w.last_start("a.0.e");
        let options = greenroom_policy::migration::MigrateOptions {
            strategy: Strategy::Overlap,
            target_node_id: Some("m".into()),
            ..Default::default()
        };
        w.api(ApiCall::MigrateJob {
            job_id: "a.0.e".into(),
            options,
        });
        (w, a)
    };
    let (mut w, _) = moving();
    w.hold = true;
    drain(&mut w, "m", overlap()).unwrap();
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert!(w.policy.migration_for_job(&"a.0.e".into()).is_none());

    let (mut w, a) = moving();
    w.runs("a.0.e");
    drain(&mut w, "m", overlap()).unwrap();
    assert!(phase(&w, "m") < DrainPhase::Terminating, "it will land");
    w.took();
    let at = w.place_of("primary", "n");
    let kind = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    w.enter("a.0.e", kind, Some(a.clone()));
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(a));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m", "landed");
    assert_eq!(
        status(&w, "m", "a.0.e"),
        DrainStatus::Migrating,
        "and moved on"
    );
    assert!(!w.calls().iter().any(|call| call.starts_with("terminate")));
}

// spec: HARD-67, DRAIN-04
#[test]
fn a_job_that_is_deleted_makes_way() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    drain(&mut w, "n", overlap()).unwrap();
    w.took();
    w.send(StreamEvent::JobDeleted("b.0.e".into()));
    assert_eq!(status(&w, "n", "b.0.e"), DrainStatus::Moved);
    assert_eq!(w.calls(), ["terminate n"]);
}

// spec: HARD-68, DRAIN-05, NODE-14
#[test]
fn an_empty_node_is_ended_at_once_and_told_of_once() {
    let mut w = World::with(fixed(), &[]);
    w.tag("n", "own", "auto-manager", "true");
    w.joins("n", 4.0);
    w.took();
    drain(&mut w, "n", DrainOptions::default()).unwrap();
    w.stopping("n");
    w.stopped("n");
    w.at(3 * 3_600 * SECOND);
    let told = w
        .acts()
        .iter()
        .filter(|line| *line == "onNodeTerminated n")
        .count();
    assert_eq!(told, 1);
    assert!(w.policy.nodes().is_empty());
    let refused = drain(&mut w, "n", DrainOptions::default()).unwrap_err();
    assert_eq!(refused.code(), "unknownNode");
}

// spec: DRAIN-01, INTR-11
#[test]
fn nodes_that_cannot_be_drained_are_refused() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    assert_eq!(
        drain(&mut w, "n", DrainOptions::default())
            .unwrap_err()
            .code(),
        "nodeNotRunning"
    );
    w.took();
    notice(&mut w, "ghost", InterruptionKind::Rebalance, None);
    assert_eq!(w.took(), ["onError interruptionFailed"]);
}

// spec: INTR-13
#[test]
fn a_repeated_notice_changes_nothing_but_is_told_again() {
    let mut w = two_on_n();
    notice(&mut w, "n", InterruptionKind::SpotInterruption, Some(300));
    let before = w.policy.drain_status(&"n".into()).unwrap().clone();
    w.took();
    notice(&mut w, "n", InterruptionKind::SpotInterruption, Some(300));
    assert_eq!(w.took(), ["onNodeInterrupted n"]);
    assert_eq!(*w.policy.drain_status(&"n".into()).unwrap(), before);
}

// spec: HARD-115, INTR-14, HYDR-05
#[test]
fn a_notice_is_restored_from_the_tag_after_hydration() {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.store(&bundle("b", json!([job("e")])));
    w.tag("n", "own", "interruption", "spotInterruption");
    w.snapshot_node("n", "own", inventory(4.0));
    let start = w.started_before("b.0.e", "primary", "n");
    w.run_of("b.0.e", "primary", "n", &start);
    let (job, status) = (w.jobs["b.0.e"].clone(), w.bundles["b"].clone());
    w.send(StreamEvent::JobActive(std::sync::Arc::new(job)));
    w.send(StreamEvent::BundleActive(std::sync::Arc::new(status)));
    w.complete();
    assert!(w.policy.is_cordoned(&"n".into()));
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!((state.force, state.timeout_ms), (true, 90_000));
    w.joins("o", 4.0);
    w.stopping("n");
    assert_eq!(w.restarts("b.0.e"), 0);
}

// spec: HARD-109, CALLB-02
#[test]
fn calls_from_a_callback_are_inputs_of_their_own() {
    let mut w = two_on_n();
    w.joins("o", 4.0);
    w.took();
    w.stopping("n");
    let first = w.calls();
    assert_eq!(first.len(), 2, "the recoveries are decided with the event");
    w.api(ApiCall::CordonNode {
        node_id: "m".into(),
    });
    drain(&mut w, "o", overlap()).unwrap();
    assert_eq!(w.calls(), ["terminate o"]);
}
