//! A handover that a predecessor left when its source had ended its output (HYDR-18).

use greenroom_policy::migration::MigrationPhase;
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{MigrationId, Payload, Role, StartId};
use serde_json::json;

use crate::world::{World, bundle, fixed, inventory, job, settings};

const ID: &str = "0123abcd-0000-4000-8000-000000000000";
const TARGET: &str = "primary@0123abcd";

fn signal(w: &mut World, role: &str, id: &str, signal: MigrationSignal) {
    w.send(StreamEvent::Migration {
        key: InstanceKey::new("a.0.e".into(), Role::new(role)),
        migration_id: MigrationId::new(id),
        signal,
    });
}

fn stopped_output() -> MigrationSignal {
    MigrationSignal::SourceStoppedOutput(Payload::default())
}

fn applied() -> MigrationSignal {
    MigrationSignal::TargetApplied(Payload::default())
}

/// Both sides run, `n` for longer; the snapshot tells these signals.
fn left(signals: Vec<(&str, &str, MigrationSignal)>) -> (World, StartId) {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("m", "own", inventory(4.0));
    w.snapshot_node("n", "own", inventory(4.0));
    let old = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &old);
    w.at(3_600_000);
    let new = w.started_before("a.0.e", TARGET, "m");
    w.run_of("a.0.e", TARGET, "m", &new);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    for (role, id, told) in signals {
        signal(&mut w, role, id, told);
    }
    w.complete();
    (w, old)
}

fn phase(w: &World) -> MigrationPhase {
    w.policy
        .migration_by_id(&MigrationId::new(ID))
        .unwrap()
        .phase
}

/// The source ends as it was told to.
fn source_ends(w: &mut World, old: &StartId) {
    let at = w.place_of("primary", "n");
    let stopping = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    w.enter("a.0.e", stopping, Some(old.clone()));
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(old.clone()));
    w.tell("a.0.e");
}

// spec: HYDR-18
#[test]
fn a_target_that_has_taken_over_keeps_the_job() {
    let (mut w, old) = left(vec![
        ("primary", ID, stopped_output()),
        (TARGET, ID, applied()),
    ]);
    assert_eq!(w.calls(), ["stop a.0.e/primary on n"]);
    source_ends(&mut w, &old);
    assert_eq!(phase(&w), MigrationPhase::Done);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    let record = w.policy.placement_for_job(&"a.0.e".into()).unwrap();
    assert_eq!(record.node_id.as_ref().unwrap().as_str(), "m");
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HYDR-18
#[test]
fn a_target_that_may_have_taken_over_is_waited_for() {
    let (mut w, old) = left(vec![("primary", ID, stopped_output())]);
    assert_eq!(phase(&w), MigrationPhase::Applying);
    // What is told of the job meanwhile makes no stray of either side.
    w.tell("a.0.e");
    assert!(w.calls().is_empty());
    let since = w.now.mono.0;
    w.at(since + 2_999);
    assert!(w.calls().is_empty());
    signal(&mut w, TARGET, ID, applied());
    assert_eq!(w.calls(), ["stop a.0.e/primary on n"]);
    source_ends(&mut w, &old);
    assert_eq!(phase(&w), MigrationPhase::Done);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
}

// spec: HYDR-18, MIGR-29
#[test]
fn the_source_goes_on_where_the_target_does_not_say_that_it_took_over() {
    let (mut w, _) = left(vec![("primary", ID, stopped_output())]);
    let since = w.now.mono.0;
    w.at(since + 3_000);
    assert_eq!(
        w.calls(),
        [
            "abortMigration a.0.e primary@0123abcd",
            "stop a.0.e/primary@0123abcd on m"
        ]
    );
    assert_eq!(phase(&w), MigrationPhase::Aborted);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: HYDR-07
#[test]
fn what_was_said_in_another_handover_changes_nothing() {
    let other = "ffff0000-0000-4000-8000-000000000000";
    let (mut w, _) = left(vec![("primary", other, stopped_output())]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(
        w.calls(),
        [
            "abortMigration a.0.e primary@0123abcd",
            "stop a.0.e/primary@0123abcd on m"
        ]
    );
}
