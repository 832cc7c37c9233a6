//! Drains and notices at their edges: what a new one does after an old one, what becomes of the jobs,
//! when a notice is over (DRAIN, INTR).

use greenroom_policy::drain::{DrainOptions, DrainPhase, DrainStatus};
use greenroom_policy::migration::{MigrationPhase, Strategy};
use greenroom_policy::{ApiCall, Event};
use greenroom_types::node::InterruptionKind;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId};
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, needing, settings, sized};

const SECOND: u64 = 1_000;

fn drain(w: &mut World, node: &str, options: DrainOptions) {
    let node_id = w.long(node);
    w.api(ApiCall::DrainNode { node_id, options });
}

fn in_time(ms: u64) -> DrainOptions {
    DrainOptions {
        timeout_ms: Some(Millis(ms)),
        strategy: Some(Strategy::Overlap),
        ..DrainOptions::default()
    }
}

fn notice(w: &mut World, node: &str) {
    let node_id = w.long(node);
    w.api(ApiCall::HandleNodeInterruption {
        node_id,
        kind: InterruptionKind::SpotInterruption,
        deadline: None,
        options: DrainOptions {
            strategy: Some(Strategy::Overlap),
            ..DrainOptions::default()
        },
    });
}

fn phase(w: &World, node: &str) -> DrainPhase {
    w.policy.drain_status(&w.long(node)).unwrap().phase
}

/// `b.0.e` runs on `n`, and nothing else is there.
fn stuck() -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    w.took();
    w
}

// spec: DRAIN-15, SPARE-13
#[test]
fn a_drained_spare_is_ended_and_replaced() {
    let entry = json!({"pool": "p", "targetCount": 1, "spec": {"instanceType": "c4"}});
    let mut w = World::cold(settings(cloud(), json!({"hotSpares": [entry]})));
    w.complete();
    w.joins("@1", 4.0);
    w.took();
    drain(&mut w, "@1", DrainOptions::default());
    let calls = w.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls.contains(&"terminate @1".to_owned()));
    assert!(calls.contains(&"create @2 c4 in t1".to_owned()));
    w.stopping("@1");
    w.stopped("@1");
    assert!(w.calls().is_empty());
}

// spec: DRAIN-16
#[test]
fn a_close_ends_drains_without_a_word() {
    let mut w = stuck();
    drain(&mut w, "n", in_time(60_000));
    assert_eq!(phase(&w, "n"), DrainPhase::Waiting);
    w.took();
    w.api(ApiCall::Close);
    assert_eq!(w.acts(), ["close in order"]);
    assert!(w.policy.next_deadline().is_none());
    w.at(600 * SECOND);
    assert!(w.took().is_empty());
}

// spec: DRAIN-18
#[test]
fn a_job_without_a_usable_strategy_stops_then_starts() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b"] {
        w.submit(bundle(id, json!([job("e")])));
        w.runs(&format!("{id}.0.e"));
    }
    w.joins("m", 4.0);
    w.took();
    // The driver asks strategyFor; where that fails it says so and names no strategy.
    w.handle(Event::CallbackFailed {
        callback: "strategyFor".to_owned(),
        error: "panicked".to_owned(),
    });
    assert_eq!(w.took(), ["onError callbackFailed"]);
    let options = DrainOptions {
        strategies: [("a.0.e".into(), Strategy::Overlap)].into(),
        ..DrainOptions::default()
    };
    drain(&mut w, "n", options);
    let strategy = |id: &str| w.policy.migration_for_job(&id.into()).unwrap().strategy;
    assert_eq!(strategy("a.0.e"), Strategy::Overlap);
    assert_eq!(strategy("b.0.e"), Strategy::StopThenStart);
    let unknown = json!({"strategy": "teleport"});
    assert!(serde_json::from_value::<DrainOptions>(unknown).is_err());
}

// spec: INTR-05
#[test]
fn a_notice_after_a_drain_that_ended_starts_a_new_one() {
    // After one that ended with jobs still there.
    let mut w = stuck();
    drain(&mut w, "n", in_time(10_000));
    w.at(10 * SECOND);
    assert_eq!(phase(&w, "n"), DrainPhase::Partial);
    notice(&mut w, "n");
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!(
        (state.phase, state.force, state.timeout_ms),
        (DrainPhase::Waiting, true, 90_000)
    );
    assert_eq!(state.started, w.now.wall);
    w.took();
    w.at(100 * SECOND);
    assert_eq!(w.calls(), ["terminate n"]);

    // After one that was taken back.
    let mut w = stuck();
    drain(&mut w, "n", in_time(60_000));
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    assert_eq!(phase(&w, "n"), DrainPhase::Failed);
    notice(&mut w, "n");
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!((state.phase, state.force), (DrainPhase::Waiting, true));
    assert!(w.policy.is_cordoned(&"n".into()));
}

// spec: INTR-07
#[test]
fn some_move_in_time_and_the_rest_goes_down_with_the_node() {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    let drop = needing(
        "e",
        json!({"requiredCapacity": 3, "onRuntimeFailure": "drop"}),
    );
    w.submit(bundle("a", json!([sized("e", 2.0)])));
    w.submit(bundle("b", json!([sized("e", 3.0)])));
    w.submit(bundle("c", json!([drop])));
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        w.runs(id);
    }
    let (_, source) = w.last_start("a.0.e");
    // Room for one of them only.
    w.joins("m", 2.0);
    w.took();
    notice(&mut w, "n");
    w.moves_over("a.0.e", &source, "n");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    w.at(90 * SECOND);
    w.took();
    w.joins("o", 4.0);
    w.took();
    w.stopping("n");
    let calls = w.calls();
    assert!(
        calls.contains(&"start b.0.e primary on o".to_owned()),
        "{calls:?}"
    );
    assert!(
        calls.contains(&"markJobFailed c.0.e".to_owned()),
        "{calls:?}"
    );
    assert_eq!((w.restarts("a.0.e"), w.restarts("b.0.e")), (0, 0));
    let state = w.policy.drain_status(&"n".into()).unwrap();
    let statuses: Vec<DrainStatus> = state.jobs.iter().map(|job| job.status).collect();
    assert_eq!(
        statuses,
        [
            DrainStatus::Migrated,
            DrainStatus::Terminated,
            DrainStatus::Terminated
        ]
    );
}

// spec: INTR-10, INTR-08
#[test]
fn a_notice_is_over_when_its_node_starts_again_or_is_gone() {
    let mut w = stuck();
    w.joins("m", 4.0);
    let node_id = NodeId::new("n");
    w.api(ApiCall::HandleNodeInterruption {
        node_id: node_id.clone(),
        kind: InterruptionKind::Rebalance,
        deadline: Some(w.now.wall),
        options: DrainOptions::default(),
    });
    w.stopping("n");
    w.stopped("n");
    assert!(w.policy.node_interruption(&node_id).is_some(), "it stands");
    assert_eq!(w.restarts("b.0.e"), 0);
    w.at(60 * SECOND);
    w.joins("n", 8.0);
    assert!(w.policy.node_interruption(&node_id).is_none());
    w.api(ApiCall::UncordonNode { node_id });
    // A loss of the machine that came back counts.
    w.at(120 * SECOND);
    w.submit(bundle("c", json!([sized("e", 6.0)])));
    assert_eq!(w.node_of("c.0.e").unwrap(), "n");
    w.runs("c.0.e");
    w.stopping("n");
    assert_eq!(w.restarts("c.0.e"), 1);
    // Gone from the mirror, it is gone altogether.
    notice(&mut w, "m");
    w.stopping("m");
    w.stopped("m");
    w.at(3 * 3_600 * SECOND);
    assert!(w.policy.node_interruption(&"m".into()).is_none());
    assert!(w.policy.drain_status(&"m".into()).is_none());
}

// spec: INTR-15, MIGR-05
#[test]
fn a_reclaimed_node_moves_to_spares_as_any_migration_does() {
    let tagged = |reserved: bool| {
        let mut w = World::with(fixed(), &[("n", 4.0)]);
        let avoid = json!({"requiredCapacity": 1, "onRuntimeFailure": "avoidSpare"});
        w.submit(bundle("a", json!([needing("e", avoid)])));
        w.runs("a.0.e");
        w.tag("c", "own", "spare", "true");
        if reserved {
            w.tag("c", "own", "reservedFor", "other");
            w.tag("c", "own", "exclusive", "true");
        }
        w.joins("c", 4.0);
        w.joins("m", 4.0);
        notice(&mut w, "n");
        let migration = w.policy.migration_for_job(&"a.0.e".into()).unwrap().clone();
        assert_eq!(migration.phase, MigrationPhase::Launching);
        migration.target_node_id.unwrap().to_string()
    };
    // Nothing but the id tells the two apart: the spare costs no rank, though the job avoids spares.
    assert_eq!(tagged(false), "c");
    assert_eq!(tagged(true), "m", "kept for others");
}

// spec: INTR-03, INTR-06
#[test]
fn a_notice_of_the_stream_shows_with_its_drain() {
    let mut w = stuck();
    let deadline = w.now.wall.plus(200_000);
    w.send(StreamEvent::NodeInterruptionNotice {
        node_id: "n".into(),
        kind: InterruptionKind::SpotInterruption,
        deadline: Some(deadline),
        noticed_at: w.now.wall,
    });
    let shown = w.policy.node_interruption(&"n".into()).unwrap();
    assert_eq!(shown.kind, InterruptionKind::SpotInterruption);
    assert_eq!(
        (shown.deadline, shown.noticed_at),
        (Some(deadline), w.now.wall)
    );
    assert_eq!(shown.drain.timeout_ms, 170_000);
}
