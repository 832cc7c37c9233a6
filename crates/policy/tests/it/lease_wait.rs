//! Starts that the Manager holds back for a lease (LAUNCH-13).

use greenroom_policy::event::CallFailure;
use greenroom_types::call::{Refusal, Status};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{JobLeaseInfo, StreamEvent};
use greenroom_types::{JobId, Millis, NodeId, Wall};
use serde_json::json;

use crate::world::{START, World, bundle, fixed, inventory, job, settings};

fn held(retry_after_ms: i64) -> CallFailure {
    let refusal = Refusal::new(Status::FailedPrecondition, "lease_held", "it may run");
    let refusal = refusal.with("node", "gone").with("fence", 7_i64);
    CallFailure::Refused(refusal.with("retry_after_ms", retry_after_ms))
}

fn paused() -> CallFailure {
    let text = "leases are paused";
    CallFailure::Refused(Refusal::new(
        Status::FailedPrecondition,
        "leases_paused",
        text,
    ))
}

fn lease(job_id: &str, state: &str) -> StreamEvent {
    StreamEvent::LeaseChanged(JobLeaseInfo {
        key: InstanceKey::new(job_id.into(), "primary".into()),
        start_id: "s".into(),
        node_id: "gone".into(),
        fence: 1,
        ttl_ms: 10_000,
        state: state.to_owned(),
        remaining_ms: 0,
        refreshed_at: None,
    })
}

fn pause(paused: bool) -> StreamEvent {
    StreamEvent::LeasesPaused {
        paused,
        reason: String::new(),
        by: String::new(),
        since: None,
    }
}

/// Two nodes, and a job whose first start was refused.
fn held_back(failure: CallFailure) -> World {
    let mut w = World::with(fixed(), &[("n", 4.0), ("z", 4.0)]);
    w.refuse("StartJob", 1, failure);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    w
}

// spec: LAUNCH-13, METR-05
#[test]
fn a_start_held_back_for_a_lease_keeps_its_place_and_is_tried_when_it_is_over() {
    let mut w = held_back(held(12_000));
    w.at(5_000);
    w.at(11_999);
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("a.0.e").as_deref(), Some("n"));
    w.at(12_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    let metrics = w.metrics();
    assert_eq!(
        (
            metrics.placements_attempted,
            metrics.placements_succeeded,
            metrics.placements_dispatch_failed
        ),
        (1, 1, 0)
    );
}

// spec: LAUNCH-13
#[test]
fn a_key_that_is_released_sooner_is_started_sooner_and_told_once() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("z", 4.0)]);
    w.refuse("StartJob", 2, held(12_000));
    w.submit(bundle("a", json!([job("e")])));
    let told = w.acts();
    assert!(told.contains(&"onError leaseHeld".to_owned()), "{told:?}");
    w.at(3_000);
    w.send(lease("a.0.e", "lost_waiting"));
    w.send(lease("b.0.e", "released"));
    assert!(w.calls().is_empty());
    w.send(lease("a.0.e", "released"));
    assert_eq!(w.acts(), ["call start a.0.e primary on n"]);
    // Refused once more: the wait begins anew, from here.
    w.at(14_999);
    assert!(w.calls().is_empty());
    w.at(15_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: LAUNCH-13
#[test]
fn a_start_refused_in_a_pause_waits_for_its_end() {
    let mut w = held_back(paused());
    w.at(3_600_000);
    w.send(pause(true));
    assert!(w.calls().is_empty());
    w.send(pause(false));
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: LAUNCH-13
#[test]
fn whoever_asks_is_told_which_lease_a_start_waits_for_and_how_long() {
    let mut w = held_back(held(12_000));
    w.at(4_000);
    w.send(lease("b.0.e", "released"));
    let wait = w.policy.explain(&JobId::new("a.0.e")).lease.unwrap();
    assert_eq!(wait.node_id.as_ref().map(NodeId::as_str), Some("gone"));
    assert_eq!((wait.fence, wait.left), (Some(7), Some(Millis(8_000))));
    assert_eq!((wait.since, wait.paused), (Wall(START), None));
    w.at(12_000);
    let report = w.policy.explain(&JobId::new("a.0.e"));
    assert_eq!(report.lease, None, "it was started");
}

// spec: LAUNCH-13
#[test]
fn whoever_asks_is_told_since_when_leases_are_paused() {
    let mut w = held_back(paused());
    w.at(4_000);
    let unheard = w.policy.explain(&JobId::new("a.0.e")).lease.unwrap();
    let since = unheard.paused.map(|pause| pause.since);
    assert_eq!((since, unheard.left), (Some(Wall(START)), None));
    w.send(StreamEvent::LeasesPaused {
        paused: true,
        reason: "works".to_owned(),
        by: "ann".to_owned(),
        since: Some(Wall(START - 5_000)),
    });
    let wait = w.policy.explain(&JobId::new("a.0.e")).lease.unwrap();
    let told = wait.paused.unwrap();
    assert_eq!(told.since, Wall(START - 5_000));
    assert_eq!((told.by.as_str(), told.reason.as_str()), ("ann", "works"));
    w.send(pause(false));
    assert_eq!(w.policy.explain(&JobId::new("a.0.e")).lease, None);
}

// spec: LAUNCH-13
#[test]
fn a_pause_that_was_there_before_is_known_from_the_snapshot() {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.snapshot_node("n", "own", inventory(4.0));
    w.send(StreamEvent::LeasesPaused {
        paused: true,
        reason: "works".to_owned(),
        by: "ann".to_owned(),
        since: Some(Wall(START - 5_000)),
    });
    w.complete();
    w.refuse("StartJob", 1, paused());
    w.submit(bundle("a", json!([job("e")])));
    let wait = w.policy.explain(&JobId::new("a.0.e")).lease.unwrap();
    assert_eq!(wait.paused.unwrap().by, "ann");
}
