//! First placements, their calls and replies, pending jobs (LAUNCH, PEND, METR).

use greenroom_policy::effect::PlacementKind;
use greenroom_policy::{ApiCall, CallFailure};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, needing, refused, sized};

// spec: HARD-25, LAUNCH-01, LAUNCH-10, BIND-02, RESV-03
#[test]
fn a_job_announced_three_times_is_started_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    w.at(100);
    w.tell("a.0.e");
    w.at(300);
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    assert_eq!(w.metrics().placements_attempted, 1);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: HARD-26, LAUNCH-08, METR-05
#[test]
fn a_failed_start_is_tried_again_after_five_seconds_on_another_node() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("z", 4.0)]);
    w.refuse("StartJob", 1, refused(Status::Internal, "boom"));
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    w.at(100);
    w.hold = false;
    w.answer();
    w.at(200);
    w.tell("a.0.e");
    w.at(900);
    w.tell("a.0.e");
    w.picture("n", 4.0);
    assert_eq!(
        w.acts()[1..],
        ["call start a.0.e primary on n", "onError startFailed"]
    );
    w.at(4_999);
    assert!(w.calls().is_empty());
    w.at(5_000);
    assert_eq!(w.calls(), ["start a.0.e primary on z"]);
    let metrics = w.metrics();
    assert_eq!(metrics.placements_dispatch_failed, 1);
    assert_eq!(metrics.placements_attempted, 2);
    assert_eq!(metrics.placements_succeeded, 1);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HARD-27, RESV-03, TIME-01
#[test]
fn the_second_of_a_burst_goes_where_the_first_left_room() {
    let mut w = World::with(fixed(), &[("a1", 2.0), ("m", 4.0)]);
    w.hold = true;
    w.submit(bundle("a", json!([sized("e", 2.0), sized("f", 2.0)])));
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on a1", "start a.0.f primary on m"]
    );
}

// spec: HARD-28, LAUNCH-11, LAUNCH-04
#[test]
fn a_job_that_waited_for_its_bundle_is_placed_with_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.store(&bundle("a", json!([job("e")])));
    w.tell("a.0.e");
    assert!(w.calls().is_empty());
    w.at(200);
    w.tell_bundle("a");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: LAUNCH-05, LAUNCH-06, BIND-03, GPU-02
#[test]
fn a_decision_is_told_before_its_call_goes_out() {
    let mut w = World::with(fixed(), &[]);
    w.hello("n");
    let mut picture = crate::world::inventory(4.0);
    picture.gpus = vec![greenroom_types::inventory::Gpu {
        index: 3,
        capacity: 1.0,
        ..Default::default()
    }];
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "n".into(),
        inventory: std::sync::Arc::new(picture),
    });
    w.took();
    w.hold = true;
    let mut a = bundle(
        "a",
        json!([needing("e", json!({"requiredGpuCapacity": 0.5}))]),
    );
    a.resilience_policy = Some(Default::default());
    w.submit(a);
    assert_eq!(
        w.took(),
        [
            "onBundleUpdated a",
            "onJobUpdated a.0.e",
            "decide a.0.e place n",
            "call start a.0.e primary on n",
            "onJobUpdated a.1.e",
            "decide a.1.e place n",
            "onResilienceDegraded a.1.e",
            "call start a.1.e backup on n",
        ]
    );
    let (_, call) = w.next_call();
    let greenroom_types::call::Call::StartJob(start) = call else {
        panic!("a start")
    };
    assert_eq!(
        (start.gpu_index, start.runtime_role.as_str()),
        (Some(3), "primary")
    );
    assert!(!start.defer_start);
}

// spec: LAUNCH-06, LAUNCH-09, CALLB-10, PLACE-28, METR-01
#[test]
fn a_failure_is_told_thrice_and_tried_again_only_on_events() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(bundle("a", json!([sized("e", 2.0)])));
    assert_eq!(
        w.took()[2..],
        [
            "decide a.0.e failure",
            "onPlacementFailed a.0.e",
            "onError noCapacityInAnyPool"
        ]
    );
    w.at(3_600_000);
    w.tell("a.0.e");
    assert_eq!(w.took(), ["onJobUpdated a.0.e"]);
    w.picture("n", 1.5);
    assert!(w.took().is_empty(), "no room for it there (PEND-08)");
    w.send(StreamEvent::NodeStopped {
        node_id: "x".into(),
    });
    assert_eq!(
        w.acts(),
        [
            "onNodeStopped x",
            "onPlacementFailed a.0.e",
            "onError noCapacityInAnyPool"
        ]
    );
    let metrics = w.metrics();
    assert_eq!(
        (metrics.placements_attempted, metrics.placements_failed),
        (2, 2)
    );
}

// spec: PEND-03, PEND-07
#[test]
fn a_pass_with_nothing_pending_fires_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.picture("n", 4.0);
    assert!(w.took().is_empty());
    assert_eq!(w.metrics().placements_attempted, 1);
}

// spec: PEND-04
#[test]
fn pending_jobs_are_tried_by_announcement_copy_and_specification() {
    let mut w = World::with(fixed(), &[]);
    let mut a = bundle("b", json!([job("z"), job("a")]));
    a.resilience_policy = Some(greenroom_types::bundle::Resilience {
        same_node: greenroom_types::bundle::Rule::Allow,
        ..Default::default()
    });
    w.store(&a);
    w.tell_bundle("b");
    for id in ["b.1.a", "b.1.z", "b.0.a", "b.0.z"] {
        w.tell(id);
    }
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.joins("n", 16.0);
    assert_eq!(
        w.calls(),
        [
            "start b.0.z primary on n",
            "start b.0.a primary on n",
            "start b.1.z backup on n",
            "start b.1.a backup on n",
            "start a.0.e primary on n",
        ]
    );
}

// spec: PEND-02, TIER-09, CORDON-02
#[test]
fn whatever_may_have_made_room_wakes_the_pending() {
    let full = || {
        let mut w = World::with(fixed(), &[("n", 1.0)]);
        w.submit(bundle("x", json!([job("e")])));
        w.runs("x.0.e");
        w.submit(bundle("a", json!([job("e")])));
        w.took();
        w
    };
    // A deleted job.
    let mut w = full();
    w.send(greenroom_types::stream::StreamEvent::JobDeleted(
        "x.0.e".into(),
    ));
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    // An instance that ended.
    let mut w = full();
    w.ends("x.0.e", StopReason::UserRequested);
    w.over("x.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    // Tags that bring a node into the pool.
    let mut w = full();
    w.tag("m", "own", "pool", "other");
    w.joins("m", 1.0);
    assert!(w.calls().is_empty());
    w.tag("m", "own", "pool", "p");
    let metadata = w.metadata("m", "own");
    w.send(greenroom_types::stream::StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 2,
    });
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
    // A bundle that needs less.
    let mut w = full();
    let smaller = bundle("a", json!([sized("e", 0.0)]));
    w.bundles.get_mut("a").unwrap().bundle = smaller;
    w.tell_bundle("a");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: CORDON-01, CORDON-02, PLACE-08
#[test]
fn a_cordon_keeps_work_off_and_its_end_wakes_the_pending() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("x", json!([job("e")])));
    w.runs("x.0.e");
    let node_id = greenroom_types::NodeId::new("n");
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    assert!(w.policy.is_cordoned(&node_id));
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "cordoned");
    assert_eq!(w.node_of("x.0.e").unwrap(), "n");
    w.took();
    w.api(ApiCall::UncordonNode {
        node_id: node_id.clone(),
    });
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    let attempts = w.metrics().placements_attempted;
    w.submit(bundle("b", json!([sized("e", 99.0)])));
    w.api(ApiCall::UncordonNode { node_id });
    assert_eq!(
        w.metrics().placements_attempted,
        attempts + 1,
        "a repeat runs no pass"
    );
}

// spec: CORDON-03
#[test]
fn the_nodes_own_cordon_is_not_lifted_by_the_policy() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let mut picture = crate::world::inventory(4.0);
    picture.cordoned = true;
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "n".into(),
        inventory: std::sync::Arc::new(picture),
    });
    w.api(ApiCall::CordonNode {
        node_id: "n".into(),
    });
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "cordoned");
}

// spec: LAUNCH-03
#[test]
fn the_gate_holds_a_second_launch_for_a_second() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.at(400);
    w.ends("a.0.e", StopReason::BundleChanged);
    w.job_mut("a.0.e").state = greenroom_types::job::JobState::Pre;
    w.over("a.0.e");
    w.tell("a.0.e");
    w.at(999);
    assert!(w.calls().is_empty());
    w.at(1_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: LAUNCH-05
#[test]
fn a_key_that_is_still_stopping_there_is_started_when_it_has_stopped() {
    let mut w = World::with(fixed(), &[]);
    w.store(&bundle("a", json!([job("e")])));
    // What may still run on a node that nobody sees is no reason to wait.
    let unseen = w.started_before("a.0.e", "primary@0123abcd", "gone");
    w.run_of("a.0.e", "primary@0123abcd", "gone", &unseen);
    // Nor is what a node that is not there carries; it comes back before anything is told of that.
    let old = w.started_before("a.0.e", "primary", "n");
    let at = w.place_of("primary", "n");
    let stopping = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::NodeStopped,
        detail: String::new(),
    };
    w.enter("a.0.e", stopping, Some(old.clone()));
    w.tell_bundle("a");
    w.tell("a.0.e");
    let there = Refusal::new(Status::AlreadyExists, "already_on_node", "stopping")
        .with("state", "stopping");
    w.refuse("StartJob", 1, CallFailure::Refused(there));
    w.acts();
    w.joins("n", 4.0);
    let acts = w.acts();
    assert_eq!(
        acts.last().unwrap(),
        "call start a.0.e primary on n",
        "no error"
    );
    w.at(20_000);
    w.tell("a.0.e");
    assert!(w.calls().is_empty());
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(old));
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    // No node, no picture of the node, and the one that was sent.
    let metrics = w.metrics();
    assert_eq!(
        (metrics.placements_attempted, metrics.placements_succeeded),
        (3, 1)
    );
    assert_eq!(metrics.placements_dispatch_failed, 0);
}

// spec: LAUNCH-12
#[test]
fn a_backup_is_placed_although_its_primary_cannot_be() {
    let pools = json!([
        {"name": "p", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]},
        {"name": "q", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]},
    ]);
    let mut w = World::with(pools, &[]);
    w.tag("n", "own", "pool", "q");
    w.joins("n", 4.0);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(greenroom_types::bundle::Resilience {
        pool: Some("q".into()),
        ..Default::default()
    });
    w.submit(a);
    assert_eq!(w.node_of("a.0.e"), None);
    assert_eq!(w.node_of("a.1.e").unwrap(), "n");
}

// spec: BIND-05
#[test]
fn the_placement_of_record_outlives_its_node_and_failures() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.stopping("n");
    let record = w.policy.placement_for_job(&"a.0.e".into()).unwrap();
    assert_eq!(record.kind, PlacementKind::Place);
    assert_eq!(record.node_id.as_ref().unwrap().as_str(), "n");
    assert!(record.trace.is_some());
    assert_eq!(w.policy.placements().len(), 1);
    w.send(greenroom_types::stream::StreamEvent::JobDeleted(
        "a.0.e".into(),
    ));
    assert!(w.policy.placements().is_empty());
}

// spec: BUNDLE-07, BUNDLE-08, CALLB-05
#[test]
fn a_job_without_requirements_or_tags_is_shown_and_never_placed() {
    for strip in 0..4 {
        let mut w = World::with(fixed(), &[("n", 4.0)]);
        w.store(&bundle("a", json!([job("e")])));
        let job = &mut w.job_mut("a.0.e").job;
        match strip {
            0 => job.auto_placement = None,
            1 => drop(job.tags.remove("jobName")),
            2 => drop(job.tags.insert("replicaIndex".into(), "2".into())),
            _ => drop(job.tags.remove("bundleId")),
        }
        w.tell_bundle("a");
        w.tell("a.0.e");
        assert_eq!(w.took(), ["onBundleUpdated a", "onJobUpdated a.0.e"]);
        assert_eq!(w.policy.jobs().count(), 1);
    }
}

// spec: BUNDLE-09
#[test]
fn a_dormant_job_is_placed_when_it_is_started() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle(
        "a",
        json!([{"jobName": "e", "startMode": "manual"}]),
    ));
    assert!(w.calls().is_empty());
    w.job_mut("a.0.e").job.tags.remove("startMode");
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: BUNDLE-11, RESV-04
#[test]
fn an_update_moves_no_running_job_and_counts_at_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 1.0)])));
    w.runs("a.0.e");
    w.bundles.get_mut("a").unwrap().bundle = bundle("a", json!([sized("e", 4.0)]));
    w.took();
    w.tell_bundle("a");
    assert!(w.calls().is_empty());
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "insufficientCapacity");
    // The bundle is gone, the job is not: its needs count on.
    w.send(greenroom_types::stream::StreamEvent::BundleDeleted(
        "a".into(),
    ));
    w.picture("n", 4.0);
    assert_eq!(w.filtered()["n"], "insufficientCapacity");
}

// spec: BUNDLE-11, RESV-04
#[test]
fn room_that_an_update_gives_up_is_free_from_the_next_start_on() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    w.bundles.get_mut("a").unwrap().bundle = bundle("a", json!([sized("e", 1.0)]));
    w.tell_bundle("a");
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "insufficientCapacity");
    w.took();
    w.at(10_000);
    w.fails("a.0.e");
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on n", "start b.0.e primary on n"]
    );
}

// spec: PLACE-32
#[test]
fn without_pools_nothing_is_attempted() {
    let mut w = World::with(json!([]), &[]);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.acts(), ["onBundleUpdated a", "onError noPlacementPools"]);
    assert_eq!(w.metrics().placements_attempted, 0);
}

// spec: TIME-02
#[test]
fn a_reply_for_a_binding_that_was_replaced_changes_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    let (old, _) = w.next_call();
    w.joins("m", 4.0);
    w.stopping("n");
    let (new, _) = w.next_call();
    w.answer_one(new, Ok(greenroom_types::call::Reply::Done));
    w.took();
    w.answer_one(old, Err(refused(Status::NotFound, "unknown_node")));
    assert_eq!(w.took(), ["onError startFailed"]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    let m = w.metrics();
    assert_eq!(
        m.placements_attempted,
        m.placements_succeeded + m.placements_failed + m.placements_dispatch_failed
    );
}

// spec: METR-01, METR-03, METR-04, METR-06
#[test]
fn gauges_are_worked_out_when_asked_for() {
    let mut w = World::with(cloud(), &[]);
    w.at(5_000);
    w.submit(bundle("a", json!([sized("e", 2.0)])));
    w.tag("x", "own", "pool", "other");
    w.joins("x", 8.0);
    w.joins("@1", 4.0);
    let metrics = w.metrics();
    assert_eq!(metrics.uptime_ms, 5_000);
    assert_eq!(metrics.started_at.unwrap(), w.now.wall.plus(-5_000));
    let names: Vec<&str> = metrics
        .pools
        .iter()
        .map(|pool| pool.pool_name.as_str())
        .collect();
    assert_eq!(names, ["p", "other"]);
    assert_eq!(metrics.pools[0].node_count, 1);
    assert!((metrics.pools[0].used_capacity_fraction - 0.5).abs() < 1e-9);
    w.stopping("@1");
    w.stopped("@1");
    let pools = w.metrics().pools;
    assert_eq!(pools[0].node_count, 1, "only the one bought instead");
}
