//! Migrations that lose a side (MIGR-23 to MIGR-28).

use greenroom_policy::migration::{MigrationPhase, Strategy};
use greenroom_types::Payload;
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::RejectionCode;
use greenroom_types::stream::MigrationSignal;
use serde_json::json;

use crate::migration::{Move, running_on_n};
use crate::world::{World, bundle, cloud, sized};

const SECOND: u64 = 1_000;

// spec: HARD-69, MIGR-25, MIGR-35
#[test]
fn the_source_dies_while_the_targets_node_boots() {
    let mut w = World::with(cloud(), &[]);
    w.tag("n", "t1", "x", "y");
    w.joins("n", 4.0);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    w.at(10_000);
    let m = Move::begin(w, Strategy::StopThenStart);
    let mut m = m.ready();
    m.w.stopping("n");
    let moves = m.w.moves();
    assert_eq!(
        moves[..3],
        [
            "onNodeStopping n",
            "onMigrationPhase aborted",
            "call abortMigration a.0.e primary@"
        ]
    );
    assert!(
        !moves.iter().any(|line| line.starts_with("call stop")),
        "nothing was started there: {moves:?}"
    );
    assert_eq!(
        m.w.node_of("a.0.e").unwrap(),
        "@1",
        "that very node will do"
    );
    assert_eq!(m.restarts(), 1);
    m.w.joins("@1", 4.0);
    assert_eq!(m.w.calls(), ["start a.0.e primary on @1"]);
}

// spec: HARD-70, HARD-71, MIGR-25, RECOV-08
#[test]
fn the_source_dies_with_the_targets_start_under_way() {
    for policy in ["preferSpare", "drop"] {
        let mut m = Move::begin(running_on_n(policy), Strategy::StopThenStart).ready();
        m.w.stopping("n");
        assert_eq!(m.w.moves(), ["onNodeStopping n"], "no recovery");
        m.prepared();
        assert_eq!(
            m.w.moves(),
            [
                "call startPrepared a.0.e/primary@ on m",
                "onMigrationPhase startingTarget"
            ]
        );
        m.target_runs();
        assert_eq!(
            m.w.moves(),
            ["onMigrationPhase done", "onMigrationCompleted"]
        );
        assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
        assert_eq!(m.restarts(), 0, "{policy}");
    }
    let mut m = Move::of(Strategy::StopThenStart).ready();
    m.w.stopping("n");
    m.w.at(130 * SECOND);
    assert_eq!(m.reason(), "timeout: launching");
    assert_eq!(m.restarts(), 1);
    let mut calls = m.w.moves();
    calls.retain(|line| line.starts_with("call "));
    assert_eq!(calls, ["call stop a.0.e/primary@ on m"]);
    let (at, start_id) = m.w.last_start("a.0.e");
    let kind = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    m.w.enter("a.0.e", kind, Some(start_id.clone()));
    m.w.tell("a.0.e");
    assert_eq!(
        m.w.node_of("a.0.e"),
        None,
        "what is left of the target goes"
    );
    m.w.enter("a.0.e", HistoryKind::Stopped(at), Some(start_id));
    m.w.tell("a.0.e");
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m", "and there is room");
}

// spec: HARD-72, MIGR-23, MIGR-29
#[test]
fn the_target_dies_before_the_point_of_no_return() {
    let mut m = Move::of(Strategy::StopThenStart).ready();
    m.w.stopping("m");
    assert_eq!(
        m.w.moves()[1..],
        [
            "onMigrationPhase aborted",
            "call abortMigration a.0.e primary@",
            "call stop a.0.e/primary@ on m",
            "onMigrationAborted the node of the target is gone"
        ]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(m.restarts(), 0);
}

// spec: HARD-73, MIGR-28
#[test]
fn the_sources_loss_confirms_its_stop() {
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.w.took();
    m.w.stopping("n");
    assert_eq!(
        m.w.moves()[1..],
        [
            "call startPrepared a.0.e/primary@ on m",
            "onMigrationPhase startingTarget"
        ]
    );
    m.target_runs();
    assert_eq!(m.state(), MigrationPhase::Done);
    assert_eq!(m.restarts(), 0);
}

// spec: HYDR-17, BIND-07
#[test]
fn a_prepared_target_that_returns_when_both_sides_were_lost_is_started() {
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.w.stopping("n");
    m.w.stopping("m");
    assert_eq!(m.state(), MigrationPhase::Aborted);
    let (at, start_id) = m.w.last_start("a.0.e");
    let lost = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::NodeStopped,
        detail: String::new(),
    };
    m.w.enter("a.0.e", lost, Some(start_id.clone()));
    m.w.tell("a.0.e");
    m.w.hello("m");
    m.w.took();
    m.w.enter("a.0.e", HistoryKind::Prepared(at), Some(start_id));
    m.w.tell("a.0.e");
    assert_eq!(
        m.w.moves(),
        ["call startPrepared a.0.e/primary@ on m"],
        "nobody else will, and the Manager may report no more of it"
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
}

// spec: HARD-74, HARD-76, MIGR-24
#[test]
fn the_target_dies_past_the_point_of_no_return() {
    for starting in [false, true] {
        let mut m = Move::of(Strategy::StopThenStart);
        m.prepared();
        if starting {
            m.source_stopped();
        }
        m.w.joins("o", 4.0);
        m.w.took();
        m.w.stopping("m");
        let moves = m.w.moves();
        assert_eq!(
            moves[1..4],
            [
                "onMigrationPhase aborted",
                "onMigrationAborted the node of the target is gone",
                "onError migrationLost"
            ]
        );
        assert_eq!(moves.len(), 5, "one recovery: {moves:?}");
        assert_eq!(m.restarts(), 1);
        if !starting {
            m.source_stopped();
            assert!(m.w.calls().is_empty(), "the late stop triggers nothing");
        }
        assert_eq!(m.restarts(), 1);
    }
}

// spec: MIGR-22, MIGR-24, RECOV-08
#[test]
fn a_target_that_was_refused_leaves_nothing_behind_on_its_node() {
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.w.took();
    m.w.rejects("a.0.e", "m", RejectionCode::Capacity, "no");
    assert_eq!(m.state(), MigrationPhase::Aborted);
    assert_eq!(m.restarts(), 1);
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m", "it has the room still");
}

// spec: HARD-75, MIGR-18
#[test]
fn a_stop_that_is_not_reported_leads_forward() {
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.w.took();
    m.w.at(40 * SECOND);
    assert_eq!(
        m.w.moves(),
        [
            "onError migrationTimeout",
            "call startPrepared a.0.e/primary@ on m",
            "onMigrationPhase startingTarget"
        ]
    );
    m.target_runs();
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
    m.w.at(50 * SECOND - 1);
    assert_eq!(
        m.w.calls(),
        ["stop a.0.e/primary on n"; 2],
        "the source is a stray"
    );
}

// spec: HARD-77, HARD-78
#[test]
fn losses_during_an_overlap() {
    let mut m = Move::of(Strategy::Overlap).ready();
    m.w.stopping("n");
    assert!(m.w.calls().is_empty(), "no third instance");
    m.target_runs();
    assert_eq!(m.state(), MigrationPhase::Done);
    assert_eq!(m.restarts(), 0);

    let mut m = Move::of(Strategy::Overlap);
    m.w.stopping("m");
    assert_eq!(m.state(), MigrationPhase::Aborted);
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");

    let mut m = Move::of(Strategy::Overlap);
    m.target_runs();
    m.w.stopping("n");
    assert_eq!(m.state(), MigrationPhase::Done);

    let mut m = Move::of(Strategy::Overlap);
    m.target_runs();
    m.w.stopping("m");
    assert_eq!(m.state(), MigrationPhase::Aborted);
    assert_eq!(m.restarts(), 1);
}

// spec: HARD-79, HARD-80, HARD-81, MIGR-26, MIGR-36
#[test]
fn losses_before_the_cut_over_lead_back() {
    use MigrationPhase::{AwaitingSourceStop, AwaitingTargetReady, Launching, Proposing};
    for phase in [
        Proposing,
        Launching,
        AwaitingTargetReady,
        AwaitingSourceStop,
    ] {
        let mut m = Move::handover(phase).ready();
        assert_eq!(m.state(), phase);
        m.w.stopping("n");
        assert_eq!(m.state(), MigrationPhase::Aborted, "{phase:?}");
        assert_eq!(m.restarts(), 1, "{phase:?}");
        let stops =
            m.w.calls()
                .iter()
                .filter(|c| c.starts_with("stop a.0.e/primary@"))
                .count();
        assert_eq!(stops, usize::from(phase != Proposing));
        if phase == Proposing {
            assert!(m.w.results[&m.caller].is_err());
        } else {
            let mut m = Move::handover(phase);
            m.w.stopping("m");
            assert_eq!(m.state(), MigrationPhase::Aborted);
            assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
            assert_eq!(m.restarts(), 0);
        }
    }
    let mut m = Move::handover(Proposing);
    m.signal("source", MigrationSignal::Refused("busy".into()));
    assert_eq!(m.w.results[&m.caller].as_ref().unwrap_err().code(), "busy");
    assert_eq!(
        m.w.metrics().placements_attempted,
        1,
        "no target was placed"
    );
}

// spec: HARD-82, HARD-83
#[test]
fn in_applying_the_target_goes_on_alone() {
    let mut m = Move::handover(MigrationPhase::Applying).ready();
    m.w.stopping("n");
    assert_eq!(m.w.moves(), ["onNodeStopping n"]);
    m.signal("target", MigrationSignal::TargetApplied(Payload::default()));
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase done", "onMigrationCompleted"]
    );
    assert_eq!(m.restarts(), 0);

    let mut m = Move::handover(MigrationPhase::Applying);
    m.w.stopping("m");
    assert_eq!((m.state(), m.restarts()), (MigrationPhase::Aborted, 0));

    let mut m = Move::handover(MigrationPhase::Applying);
    m.w.at(20 * SECOND);
    assert_eq!(m.reason(), "timeout: applying");
    assert_eq!(m.restarts(), 0);

    let mut m = Move::handover(MigrationPhase::Applying);
    m.w.stopping("n");
    m.w.at(20 * SECOND);
    assert_eq!(m.restarts(), 1, "no stop point was taken up");

    let mut m = Move::handover(MigrationPhase::StoppingSource);
    m.w.stopping("m");
    assert_eq!(m.restarts(), 1);
    let mut m = Move::handover(MigrationPhase::StoppingSource);
    m.w.stopping("n");
    assert_eq!((m.state(), m.restarts()), (MigrationPhase::Done, 0));
}

// spec: HARD-90, RECOV-08
#[test]
fn after_it_is_done_the_job_is_recovered_under_its_plain_role() {
    let mut m = Move::of(Strategy::Overlap);
    m.target_runs();
    m.source_stopped();
    m.w.took();
    m.w.stopping("m");
    assert_eq!(m.w.calls(), ["start a.0.e primary on n"]);
    assert_eq!(m.restarts(), 1);
}
