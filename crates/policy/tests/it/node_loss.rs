//! Nodes that go, jobs that follow (NODE, RECOV).

use greenroom_types::bundle::BundleState;
use greenroom_types::call::Status;
use greenroom_types::job::{HistoryKind, JobState, MANUAL, StopReason, TAG_START_MODE};
use greenroom_types::node::RejectionCode;
use serde_json::json;

use crate::world::{World, bundle, fixed, job, needing, sized};

/// Job `a.0.e` (preferSpare) runs on `n`; `m` is free.
fn one_on_n() -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle(
        "a",
        json!([needing(
            "e",
            json!({"requiredCapacity": 1, "onRuntimeFailure": "preferSpare"})
        )]),
    ));
    w.runs("a.0.e");
    w.joins("m", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    w.took();
    w
}

// spec: HARD-01, RECOV-01, RECOV-02, NODE-08, NODE-09, CALLB-08
#[test]
fn a_lost_node_triggers_one_recovery_whatever_follows() {
    let mut w = one_on_n();
    w.stopping("n");
    assert_eq!(
        w.acts(),
        ["onNodeStopping n", "call start a.0.e primary on m"]
    );
    w.at(40_000);
    w.stopped("n");
    assert_eq!(w.acts(), ["onNodeStopped n"]);
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: HARD-02, NODE-09
#[test]
fn stopped_without_stopping_does_the_same() {
    let mut w = one_on_n();
    w.stopped("n");
    assert_eq!(
        w.acts(),
        ["onNodeStopped n", "call start a.0.e primary on m"]
    );
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: HARD-03, RECOV-02, LAUNCH-10
#[test]
fn history_of_the_dead_instance_recovers_nothing_again() {
    let mut w = one_on_n();
    let dead = w.last_start("a.0.e");
    w.stopping("n");
    w.took();
    let stopping = HistoryKind::Stopping {
        at: dead.0.clone(),
        reason: StopReason::NodeStopped,
        detail: String::new(),
    };
    w.enter("a.0.e", stopping, Some(dead.1.clone()));
    w.tell("a.0.e");
    w.enter("a.0.e", HistoryKind::Stopped(dead.0), Some(dead.1));
    w.tell("a.0.e");
    w.tell("a.0.e");
    assert_eq!(w.took(), ["onJobUpdated a.0.e"; 3]);
    assert_eq!(w.restarts("a.0.e"), 1);
}

/// As the last, with `m` full so that the recovery finds no place.
fn lost_without_room() -> World {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.stopping("n");
    w.ends("a.0.e", StopReason::NodeStopped);
    assert_eq!(w.restarts("a.0.e"), 1);
    assert_eq!(w.node_of("a.0.e"), None);
    w.at(3_000);
    w.hello("n");
    w.took();
    w
}

// spec: HARD-04, BIND-07
#[test]
fn a_worker_that_returns_with_its_containers_keeps_the_job() {
    let mut w = lost_without_room();
    let (_, start_id) = w.last_start("a.0.e");
    w.at(3_500);
    w.run_of("a.0.e", "primary", "n", &start_id);
    w.tell("a.0.e");
    w.at(4_000);
    w.picture("n", 1.0);
    assert!(w.calls().is_empty(), "no start: it runs there already");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: HARD-04, LAUNCH-05
#[test]
fn placed_there_before_the_report_the_start_is_answered_as_already_running() {
    let mut w = lost_without_room();
    let there = greenroom_types::call::Refusal::new(
        greenroom_types::call::Status::AlreadyExists,
        "already_on_node",
        "it runs there",
    )
    .with("state", "running");
    w.refuse("StartJob", 1, greenroom_policy::CallFailure::Refused(there));
    w.picture("n", 1.0);
    assert_eq!(
        w.acts(),
        ["call start a.0.e primary on n"],
        "no error is told"
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(w.restarts("a.0.e"), 1);
    assert_eq!(w.metrics().placements_dispatch_failed, 0);
}

// spec: HARD-05, BIND-08, RECOV-16
#[test]
fn an_old_instance_that_comes_back_is_a_stray_and_is_stopped_once() {
    let mut w = one_on_n();
    let (_, old) = w.last_start("a.0.e");
    w.stopping("n");
    w.at(2_000);
    w.runs("a.0.e");
    w.took();
    w.at(10_000);
    w.joins("n", 4.0);
    w.run_of("a.0.e", "primary", "n", &old);
    w.tell("a.0.e");
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["stop a.0.e/primary on n"]);
    w.at(14_999);
    assert!(w.calls().is_empty());
    w.at(15_000);
    assert_eq!(
        w.calls(),
        ["stop a.0.e/primary on n"],
        "still shown as running 5 s later"
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: HARD-06, HEALTH-09
#[test]
fn an_old_inventory_does_not_bring_a_dying_node_back() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    w.at(200);
    w.picture("n", 4.0);
    w.at(1_000);
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    assert_eq!(w.node_of("b.0.e"), None);
}

// spec: HARD-07, RECOV-12, CEIL-11
#[test]
fn six_jobs_of_one_node_are_recovered_in_the_order_of_their_claims() {
    let mut w = World::with(fixed(), &[("n", 8.0)]);
    let needs = |policy: &str, essential: bool| json!({"requiredCapacity": 1, "onRuntimeFailure": policy, "essential": essential});
    w.submit(bundle(
        "x",
        json!([
            needing("d0", needs("drop", false)),
            needing("a0", needs("avoidSpare", true))
        ]),
    ));
    w.submit(bundle(
        "y",
        json!([
            needing("d1", needs("drop", true)),
            needing("p1", needs("preferSpare", true))
        ]),
    ));
    w.submit(bundle(
        "z",
        json!([
            needing("a2", needs("avoidSpare", true)),
            needing("p2", needs("preferSpare", true))
        ]),
    ));
    w.tag("s", "own", "spare", "true");
    w.joins("s", 8.0);
    w.joins("m", 8.0);
    w.took();
    w.stopping("n");
    assert_eq!(
        w.acts(),
        [
            "onNodeStopping n",
            // The first that prefers a spare takes it; for the second it is a node like any other.
            "call start y.0.p1 primary on s",
            "call start z.0.p2 primary on s",
            "call start x.0.a0 primary on s",
            "call start z.0.a2 primary on s",
            "call markJobFailed y.0.d1",
            "onJobDropped y.0.d1",
            "onBundleBroken y",
            "call markJobFailed x.0.d0",
            "onJobDropped x.0.d0",
        ]
    );
    assert!(!w.is_broken("x"));
}

// spec: HARD-08, RECOV-13, CEIL-04
#[test]
fn of_two_copies_lost_at_once_the_primary_goes_first() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Default::default());
    w.store(&a);
    w.tell_bundle("a");
    // The backup comes first, so that it is the older binding.
    w.tell("a.1.e");
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e"), w.node_of("a.1.e"));
    w.joins("m", 4.0);
    w.joins("o", 4.0);
    w.took();
    w.stopping("n");
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on m", "start a.1.e backup on o"]
    );
    assert_eq!((w.restarts("a.0.e"), w.restarts("a.1.e")), (1, 1));
}

// spec: HARD-09, BUNDLE-10, RECOV-04
#[test]
fn nothing_of_a_bundle_that_is_being_deleted_is_recovered() {
    let mut w = one_on_n();
    w.set_bundle_state("a", BundleState::Deleting);
    w.took();
    w.stopping("n");
    assert_eq!(w.took(), ["onNodeStopping n"]);
    assert_eq!(w.node_of("a.0.e"), None);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HARD-10, NODE-11
#[test]
fn a_node_never_seen_that_stops_gets_an_entry_and_a_callback() {
    let mut w = World::with(fixed(), &[]);
    w.stopping("ghost");
    assert_eq!(w.took(), ["onNodeStopping ghost"]);
    let nodes = w.policy.nodes();
    assert_eq!(nodes.len(), 1);
    assert_eq!(
        nodes[0].state,
        greenroom_policy::effect::MirrorState::Stopping
    );
}

// spec: HARD-11, BUNDLE-09
#[test]
fn a_dormant_job_stays_bound_while_it_runs_and_is_not_recovered() {
    let mut w = one_on_n();
    w.job_mut("a.0.e")
        .job
        .tags
        .insert(TAG_START_MODE.into(), MANUAL.into());
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    w.stopping("n");
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("a.0.e"), None);
    w.at(60_000);
    w.job_mut("a.0.e").job.tags.remove(TAG_START_MODE);
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: RECOV-04
#[test]
fn a_job_that_is_over_is_not_recovered() {
    let mut w = one_on_n();
    w.job_mut("a.0.e").state = JobState::Post;
    w.tell("a.0.e");
    w.stopping("n");
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("a.0.e"), None);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: BIND-07
#[test]
fn a_start_that_was_refused_is_no_instance_until_the_history_says_more_of_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("m", 4.0);
    w.tell("a.0.e");
    let (at, start) = w.last_start("a.0.e");
    w.took();
    w.rejects("a.0.e", "n", RejectionCode::Capacity, "full");
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on m"],
        "although it was accepted on n"
    );
    // It runs there after all, and m is lost before anything is heard of it.
    w.enter(
        "a.0.e",
        HistoryKind::Running {
            at,
            ports: Default::default(),
        },
        Some(start),
    );
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    w.took();
    w.stopping("m");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert!(w.calls().is_empty());
}

// spec: RECOV-03
#[test]
fn a_stop_by_request_is_no_failure_and_stays_a_stop() {
    let mut w = one_on_n();
    w.at(10_000);
    w.ends("a.0.e", StopReason::UserRequested);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n", "held until it is gone");
    w.over("a.0.e");
    assert_eq!(w.node_of("a.0.e"), None);
    w.tell("a.0.e");
    w.picture("m", 4.0);
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 0);
    // Defined anew, it is launched again.
    w.job_mut("a.0.e").current_hash = 2;
    w.tell("a.0.e");
    assert_eq!(w.calls().len(), 1);
}

// spec: RECOV-03
#[test]
fn an_instance_that_stops_without_a_reason_has_failed() {
    let mut w = one_on_n();
    w.over("a.0.e");
    assert_eq!(w.calls().len(), 1);
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: RECOV-03, RECOV-08, FIELD-57
#[test]
fn a_failed_instance_is_recovered_at_once_but_not_where_its_remains_are() {
    let mut w = one_on_n();
    w.submit(bundle("x", json!([job("e")])));
    w.took();
    let dead = w.last_start("a.0.e");
    w.ends("a.0.e", StopReason::JobFailed);
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on m"],
        "although binpack would take n"
    );
    // The old instance's stop is about an older start of the very same key.
    w.enter("a.0.e", HistoryKind::Stopped(dead.0), Some(dead.1));
    w.tell("a.0.e");
    w.runs("a.0.e");
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 1);
    // Without remains the node itself is not at fault.
    w.at(10_000);
    w.fails("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: RECOV-17, RECOV-08
#[test]
fn where_there_is_no_other_place_the_remains_are_waited_for() {
    for elastic in [false, true] {
        let pools = if elastic {
            crate::world::cloud()
        } else {
            fixed()
        };
        let mut w = World::with(pools, &[]);
        w.tag("n", if elastic { "t1" } else { "own" }, "x", "y");
        w.joins("n", 4.0);
        w.submit(bundle("a", json!([sized("e", 4.0)])));
        w.runs("a.0.e");
        w.at(10_000);
        w.took();
        w.ends("a.0.e", StopReason::JobFailed);
        assert!(w.acts().is_empty(), "nothing is bought, nothing told");
        assert_eq!(w.restarts("a.0.e"), 1);
        let attempts = w.metrics().placements_attempted;
        w.picture("n", 4.0);
        w.at(12_000);
        w.over("a.0.e");
        assert_eq!(w.calls(), ["start a.0.e primary on n"]);
        assert_eq!(w.metrics().placements_attempted, attempts + 1);
        w.runs("a.0.e");
        assert_eq!(w.restarts("a.0.e"), 1);
    }
}

// spec: RECOV-17
#[test]
fn remains_that_do_not_go_give_way_to_a_purchase() {
    let mut w = World::with(crate::world::cloud(), &[]);
    w.tag("n", "t1", "x", "y");
    w.joins("n", 4.0);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    w.at(10_000);
    w.took();
    w.ends("a.0.e", StopReason::JobFailed);
    w.at(39_999);
    assert!(w.calls().is_empty());
    w.at(40_000);
    assert_eq!(w.calls(), ["create @1 c4 in t1"]);
    // An existing node that comes meanwhile is taken at once.
    let mut w = one_on_n();
    w.stopping("m");
    w.ends("a.0.e", StopReason::JobFailed);
    assert!(w.calls().is_empty());
    w.joins("x", 4.0);
    assert_eq!(w.calls(), ["start a.0.e primary on x"]);
}

// spec: NODE-12, PLACE-03
#[test]
fn a_node_that_comes_back_is_looked_at_from_its_next_picture_on() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    w.stopped("n");
    w.at(60_000);
    w.hello("n");
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e"), None, "what it was says nothing");
    w.picture("n", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: RESV-07
#[test]
fn a_stray_takes_room_until_it_is_over() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    w.joins("m", 4.0);
    w.submit(bundle("b", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "m");
    // Somebody runs the first one on m as well; its worker says so.
    let stray = w.started_before("a.0.e", "primary@0123abcd", "m");
    let mut picture = crate::world::inventory(8.0);
    picture.assigned_jobs = vec![greenroom_types::inventory::AssignedJob {
        job_id: "a.0.e".into(),
        start_id: stray.clone(),
        capacity: 4.0,
        ..Default::default()
    }];
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "m".into(),
        inventory: std::sync::Arc::new(picture),
    });
    w.submit(bundle("c", json!([job("e")])));
    assert_eq!(w.filtered()["m"], "insufficientCapacity");
    // It is over: the picture is late, and its room is free all the same.
    let at = w.place_of("primary@0123abcd", "m");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(stray));
    w.tell("a.0.e");
    w.submit(bundle("d", json!([job("e")])));
    assert_eq!(w.node_of("d.0.e").unwrap(), "m");
}

// spec: RESV-07
#[test]
fn what_ends_before_a_picture_lists_it_takes_room_until_it_is_over() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    let (at, start_id) = w.last_start("a.0.e");
    let kind = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::JobFailed,
        detail: String::new(),
    };
    w.enter("a.0.e", kind, Some(start_id.clone()));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e"), None, "its remains are there");
    w.submit(bundle("b", json!([sized("e", 2.0)])));
    assert_eq!(w.filtered()["n"], "insufficientCapacity");
    w.submit(bundle("c", json!([sized("e", 1.0)])));
    assert_eq!(w.node_of("c.0.e").unwrap(), "n");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(start_id));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n", "there is room again");
}

/// `a.0.e` was accepted on `n` and `n` was lost before it ran; there was no other place.
fn lost_before_it_ran() -> World {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.stopping("n");
    w.ends("a.0.e", StopReason::NodeStopped);
    w.at(3_000);
    w.hello("n");
    w.took();
    w
}

// spec: BIND-07, HIST-04
#[test]
fn an_accepted_start_that_comes_back_is_the_jobs_own_and_its_failure_counts() {
    let mut w = lost_before_it_ran();
    let (at, start_id) = w.last_start("a.0.e");
    w.enter("a.0.e", HistoryKind::Provisioned(at), Some(start_id));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert!(w.calls().is_empty(), "it was started already");
    w.at(60_000);
    w.picture("n", 1.0);
    w.fails("a.0.e");
    assert_eq!(w.restarts("a.0.e"), 2, "the loss, and its own failure");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: BIND-07, HIST-04
#[test]
fn so_it_is_when_the_start_is_answered_before_the_stream_shows_it() {
    let mut w = lost_before_it_ran();
    let there = greenroom_types::call::Refusal::new(
        greenroom_types::call::Status::AlreadyExists,
        "already_on_node",
        "it is there",
    )
    .with("state", "provisioned");
    let (at, start_id) = w.last_start("a.0.e");
    w.refuse("StartJob", 1, greenroom_policy::CallFailure::Refused(there));
    w.picture("n", 1.0);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    w.enter("a.0.e", HistoryKind::Provisioned(at), Some(start_id));
    w.tell("a.0.e");
    w.at(60_000);
    w.fails("a.0.e");
    assert_eq!(w.restarts("a.0.e"), 2);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

/// `a.0.e` ran on `n`, which was lost and came back with it while the job was bound to a machine that
/// is being made.
fn back_while_another_boots() -> World {
    let mut w = World::with(crate::world::cloud(), &[]);
    w.tag("n", "t1", "x", "y");
    w.joins("n", 4.0);
    w.submit(bundle("a", json!([sized("e", 4.0), sized("f", 4.0)])));
    w.runs("a.0.e");
    w.stopping("n");
    w.ends("a.0.e", StopReason::NodeStopped);
    assert_eq!(w.node_of("a.0.e").unwrap(), "@2", "@1 is for a.0.f");
    w.at(20_000);
    w.hello("n");
    let (at, start_id) = (w.place_of("primary", "n"), w.last_start("a.0.e").1);
    let kind = HistoryKind::Running {
        at,
        ports: Default::default(),
    };
    w.enter("a.0.e", kind, Some(start_id));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "@2");
    w.took();
    w
}

// spec: BIND-07
#[test]
fn what_came_back_meanwhile_is_found_when_the_new_place_is_lost() {
    let mut w = back_while_another_boots();
    w.stopping("@2");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert!(w.calls().is_empty(), "it runs");
}

// spec: BIND-07, CEIL-07
#[test]
fn and_when_its_bundle_breaks() {
    let mut w = back_while_another_boots();
    w.joins("@1", 4.0);
    w.rejects("a.0.f", "@1", RejectionCode::InvalidSpec, "bad");
    assert!(w.is_broken("a"));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: BIND-08
#[test]
fn a_target_that_nobody_pursues_is_stopped_before_it_runs() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.took();
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    let left = w.started_before("a.0.e", "primary@0123abcd", "n");
    let at = w.place_of("primary@0123abcd", "n");
    w.enter("a.0.e", HistoryKind::Prepared(at), Some(left));
    w.tell("a.0.e");
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["stop a.0.e/primary@0123abcd on n"], "once");
    w.at(5_000);
    assert_eq!(w.calls(), ["stop a.0.e/primary@0123abcd on n"]);
}

// spec: RECOV-03
#[test]
fn a_job_stopped_because_its_definition_changed_is_launched_again() {
    let mut w = one_on_n();
    w.at(10_000);
    w.ends("a.0.e", StopReason::BundleChanged);
    w.job_mut("a.0.e").state = greenroom_types::job::JobState::Pre;
    w.over("a.0.e");
    assert_eq!(w.calls().len(), 1);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: RECOV-09, RECOV-10, HARD-14, PEND-06
#[test]
fn recoveries_of_one_job_keep_five_seconds_apart() {
    let mut w = one_on_n();
    w.joins("o", 4.0);
    w.took();
    w.stopping("n");
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
    w.at(1_000);
    w.stopping("m");
    w.at(2_000);
    w.stopped("m");
    w.at(3_000);
    w.tell("a.0.e");
    w.tell("a.0.e");
    w.at(4_000);
    w.picture("o", 4.0);
    w.at(4_999);
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 2);
    w.at(5_000);
    assert_eq!(w.calls(), ["start a.0.e primary on o"]);
    assert_eq!(w.restarts("a.0.e"), 2);
}

// spec: RECOV-11
#[test]
fn an_attempt_without_room_does_not_start_the_spacing() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.stopping("n");
    w.at(1_000);
    w.took();
    w.joins("m", 1.0);
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
}

// spec: HARD-110, PEND-02, PEND-05
#[test]
fn a_recovery_that_found_no_room_stays_a_recovery() {
    let mut w = one_on_n();
    w.submit(bundle("b", json!([sized("full", 4.0)])));
    assert_eq!(w.node_of("b.0.full").unwrap(), "m");
    w.stopping("n");
    let decided = w.infos.len();
    w.at(29_999);
    assert_eq!(w.infos.len(), decided, "no polling");
    w.tag("s", "own", "spare", "true");
    w.joins("s", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "s");
    let last = w.infos.last().unwrap();
    assert_eq!(
        last.context,
        greenroom_policy::effect::PlacementContext::Recovery
    );
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: NODE-12, RECOV-16, HEALTH-08
#[test]
fn a_node_that_returns_is_an_ordinary_node_and_gets_nothing_back() {
    let mut w = one_on_n();
    w.stopping("n");
    w.stopped("n");
    w.runs("a.0.e");
    w.at(10_000);
    w.took();
    w.joins("n", 8.0);
    assert_eq!(w.acts(), ["onNodeStarted n"]);
    w.submit(bundle("b", json!([sized("big", 8.0)])));
    assert_eq!(w.node_of("b.0.big").unwrap(), "n");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
}

// spec: NODE-13, NODE-14, NODE-17, NODE-18, CORDON-01
#[test]
fn a_terminate_takes_the_node_out_at_once_and_is_told_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.refuse(
        "TerminateNode",
        1,
        crate::world::refused(greenroom_types::call::Status::Unavailable, "x"),
    );
    w.hold = true;
    w.api(greenroom_policy::ApiCall::TerminateNode {
        node_id: "n".into(),
    });
    assert_eq!(w.acts(), ["call terminate n", "onNodeTerminated n"]);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "unreachable");
    w.answer();
    assert!(w.took().contains(&"onError terminateFailed".to_owned()));
    w.hold = false;
    w.picture("n", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n", "a candidate again");
    w.took();
    let evict = w.api(greenroom_policy::ApiCall::EvictNode {
        node_id: "n".into(),
    });
    assert_eq!(w.acts(), ["call terminate n"]);
    assert!(w.policy.is_cordoned(&"n".into()));
    assert!(w.results[&evict].is_ok());
    let unknown = w.api(greenroom_policy::ApiCall::TerminateNode {
        node_id: "x".into(),
    });
    assert_eq!(
        w.results[&unknown].as_ref().unwrap_err().code(),
        "unknownNode"
    );
}

// spec: NODE-16, CONF-04
#[test]
fn stopped_nodes_are_swept_and_only_those_bought_are_terminated() {
    let mut w = World::set(
        fixed(),
        json!({"removeStoppedNodesAfter": 40}),
        &[("n", 4.0)],
    );
    w.tag("bought", "own", "auto-manager", "true");
    w.joins("bought", 4.0);
    w.took();
    w.stopped("n");
    w.stopped("bought");
    w.took();
    w.at(40_000);
    assert_eq!(w.policy.nodes().len(), 2, "not longer than 40 s yet");
    w.at(50_000);
    assert_eq!(
        w.took(),
        ["call terminate bought", "onNodeTerminated bought"]
    );
    assert!(w.policy.nodes().is_empty());
}

// spec: NODE-16
#[test]
fn a_swept_node_that_the_manager_has_forgotten_is_no_error() {
    for forgotten in [false, true] {
        let mut w = World::with(crate::world::cloud(), &[]);
        w.tag("n", "t1", "auto-manager", "true");
        w.joins("n", 4.0);
        w.stopping("n");
        w.stopped("n");
        w.took();
        let status = if forgotten {
            Status::NotFound
        } else {
            Status::Internal
        };
        w.refuse("TerminateNode", 1, crate::world::refused(status, "no"));
        w.at(2 * 3_600_000);
        let told = w.took().iter().any(|line| line.starts_with("onError"));
        assert_eq!(told, !forgotten);
    }
}

// spec: NODE-09, HARD-110, TIER-08
#[test]
fn a_stopped_node_frees_its_place_under_the_cap() {
    let pools = crate::world::tiers(&[("t1", &[("c1", 1.0)], Some(1))]);
    let mut w = World::with(pools, &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.hello("@1");
    w.picture("@1", 1.0);
    w.runs("a.0.e");
    w.took();
    w.stopping("@1");
    assert_eq!(
        w.calls(),
        Vec::<String>::new(),
        "the stopping node still counts"
    );
    assert_eq!(w.node_of("a.0.e"), None);
    w.at(20_000);
    w.stopped("@1");
    assert_eq!(w.calls(), ["create @2 c1 in t1"]);
    assert_eq!(w.restarts("a.0.e"), 1);
}

// spec: BUNDLE-13, BUNDLE-14, HARD-112, INTRA-09
#[test]
fn the_bought_node_of_a_single_use_job_ends_with_it() {
    let single = || json!([{"jobName": "e", "exclusive": true, "singleUse": true, "requirements": {"requiredCapacity": 1}}]);
    let mut w = World::with(crate::world::cloud(), &[]);
    w.submit(bundle("a", single()));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    w.took();
    w.fails("a.0.e");
    assert_eq!(
        w.acts(),
        [
            "call create @2 c4 in t1",
            "call terminate @1",
            "onNodeTerminated @1"
        ]
    );
    w.joins("@2", 4.0);
    w.runs("a.0.e");
    w.took();
    w.job_mut("a.0.e").state = greenroom_types::job::JobState::Post;
    let (at, start_id) = w.last_start("a.0.e");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(start_id));
    w.enter("a.0.e", HistoryKind::Completed, None);
    w.tell("a.0.e");
    assert_eq!(w.acts(), ["call terminate @2", "onNodeTerminated @2"]);

    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", single()));
    w.runs("a.0.e");
    w.job_mut("a.0.e").state = greenroom_types::job::JobState::Post;
    w.took();
    w.over("a.0.e");
    assert!(
        w.calls().is_empty(),
        "a registered machine is never switched off this way"
    );
}

// spec: NODE-12
#[test]
fn a_machine_that_was_ended_and_comes_back_is_a_candidate_again() {
    let mut w = World::set(
        fixed(),
        json!({"removeStoppedNodesAfter": 100}),
        &[("n", 4.0)],
    );
    w.api(greenroom_policy::ApiCall::TerminateNode {
        node_id: "n".into(),
    });
    w.stopping("n");
    w.stopped("n");
    w.at(60_000);
    w.starting("n", None);
    w.joins("n", 4.0);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    w.at(600_000);
    assert_eq!(w.policy.nodes().len(), 1, "and is not swept");
}
