//! Coming into service on a fleet that runs already (HYDR).

use std::sync::Arc;

use greenroom_policy::effect::PlacementKind;
use greenroom_types::call::Call;
use greenroom_types::inventory::{AssignedJob, Gpu};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, inventory, job, needing, settings};

fn cold() -> World {
    World::cold(settings(fixed(), json!({})))
}

impl World {
    /// Puts a job into the snapshot.
    pub(crate) fn snapshot_job(&mut self, id: &str) {
        let job = Arc::new(self.jobs[id].clone());
        self.send(StreamEvent::JobActive(job));
    }

    pub(crate) fn snapshot_bundle(&mut self, id: &str) {
        let status = Arc::new(self.bundles[id].clone());
        self.send(StreamEvent::BundleActive(status));
    }

    fn stopping_entry(
        &mut self,
        id: &str,
        node: &str,
        reason: StopReason,
        start: &greenroom_types::StartId,
    ) {
        let at = self.place_of("primary", node);
        let kind = HistoryKind::Stopping {
            at,
            reason,
            detail: String::new(),
        };
        self.enter(id, kind, Some(start.clone()));
    }
}

// spec: HYDR-01, HYDR-02, HYDR-03, HYDR-04, HYDR-06, HYDR-12, BIND-05
#[test]
fn mirrors_and_bindings_first_then_the_replay_then_work() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e"), job("f")])));
    w.snapshot_node("n", "own", inventory(4.0));
    let start = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &start);
    w.snapshot_job("a.0.f");
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    assert!(w.took().is_empty(), "silent until the snapshot is complete");
    w.complete();
    assert_eq!(
        w.took(),
        [
            "onJobUpdated a.0.f",
            "onJobUpdated a.0.e",
            "onNodeStarted n",
            "onBundleUpdated a",
            "decide a.0.f place n",
            "call start a.0.f primary on n",
        ]
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    let record = w.policy.placement_for_job(&"a.0.e".into()).unwrap();
    assert_eq!(
        (record.kind, record.pool.as_str()),
        (PlacementKind::Place, "")
    );
    assert!(record.trace.is_none());
    assert_eq!(w.metrics().placements_attempted, 1);
}

// spec: HYDR-04
#[test]
fn calls_that_come_before_the_replay_is_over_wait_for_it() {
    let mut w = cold();
    w.snapshot_node("n", "own", inventory(4.0));
    let id = w.api(greenroom_policy::ApiCall::TerminateNode {
        node_id: "n".into(),
    });
    assert!(w.took().is_empty());
    w.complete();
    assert_eq!(w.calls(), ["terminate n"]);
    assert!(w.results[&id].is_ok());
}

// spec: HYDR-15, NODE-01
#[test]
fn a_node_of_the_snapshot_gets_one_started_for_one_start() {
    let mut w = cold();
    w.snapshot_node("n", "own", inventory(4.0));
    let created = w.nodes[&greenroom_types::NodeId::new("n")].created_at;
    w.at(5_000);
    w.complete();
    assert_eq!(w.policy.nodes()[0].last_activity, created);
    w.took();
    w.hello("n");
    assert!(w.took().is_empty());
    w.stopping("n");
    w.hello("n");
    assert_eq!(w.took(), ["onNodeStopping n", "onNodeStarted n"]);
}

// spec: HYDR-08, HARD-100, CEIL-04
#[test]
fn a_job_whose_node_died_unwatched_is_recovered_and_counted_once() {
    for policy in ["avoidSpare", "drop"] {
        let mut w = cold();
        w.store(&bundle(
            "a",
            json!([needing("e", json!({"onRuntimeFailure": policy}))]),
        ));
        w.snapshot_node("m", "own", inventory(4.0));
        let start = w.started_before("a.0.e", "primary", "gone");
        w.run_of("a.0.e", "primary", "gone", &start);
        w.snapshot_job("a.0.e");
        w.snapshot_bundle("a");
        w.complete();
        let acts = w.took();
        assert_eq!(acts[0], "onJobUpdated a.0.e");
        if policy == "drop" {
            assert_eq!(
                acts[3..],
                [
                    "call markJobFailed a.0.e",
                    "onJobDropped a.0.e",
                    "onBundleBroken a"
                ]
            );
        } else {
            assert_eq!(
                acts[3..],
                ["decide a.0.e place m", "call start a.0.e primary on m"]
            );
            assert_eq!(w.restarts("a.0.e"), 1);
        }
    }
}

// spec: HYDR-08
#[test]
fn the_newest_end_decides_between_recovery_and_launch() {
    for (reason, restarts) in [(StopReason::JobFailed, 1), (StopReason::UserRequested, 0)] {
        let mut w = cold();
        w.store(&bundle("a", json!([job("e")])));
        w.snapshot_node("n", "own", inventory(4.0));
        let start = w.started_before("a.0.e", "primary", "n");
        w.run_of("a.0.e", "primary", "n", &start);
        w.stopping_entry("a.0.e", "n", reason, &start);
        let at = w.place_of("primary", "n");
        w.enter("a.0.e", HistoryKind::Stopped(at), Some(start));
        w.snapshot_job("a.0.e");
        w.snapshot_bundle("a");
        w.complete();
        assert_eq!(w.calls(), ["start a.0.e primary on n"]);
        assert_eq!(w.restarts("a.0.e"), restarts, "{reason:?}");
    }
}

// spec: HYDR-07, HARD-101
#[test]
fn of_two_running_instances_the_older_keeps_the_job() {
    let both = |ending: bool| {
        let mut w = cold();
        w.store(&bundle("a", json!([job("e")])));
        w.snapshot_node("m", "own", inventory(4.0));
        w.snapshot_node("n", "own", inventory(4.0));
        let old = w.started_before("a.0.e", "primary", "n");
        w.run_of("a.0.e", "primary", "n", &old);
        w.at(3_600_000);
        let new = w.started_before("a.0.e", "primary@0123abcd", "m");
        w.run_of("a.0.e", "primary@0123abcd", "m", &new);
        if ending {
            w.stopping_entry("a.0.e", "n", StopReason::UserRequested, &old);
        }
        w.snapshot_job("a.0.e");
        w.snapshot_bundle("a");
        w.complete();
        w
    };
    let mut w = both(false);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(
        w.calls(),
        [
            "abortMigration a.0.e primary@0123abcd",
            "stop a.0.e/primary@0123abcd on m"
        ]
    );
    w.tell("a.0.e");
    assert!(w.calls().is_empty(), "one stop");
    let mut w = both(true);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    assert!(w.calls().is_empty());
}

// spec: HYDR-17
#[test]
fn a_prepared_target_whose_source_has_stopped_is_started() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("m", "own", inventory(4.0));
    w.snapshot_node("n", "own", inventory(4.0));
    let old = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &old);
    let new = w.started_before("a.0.e", "primary@0123abcd", "m");
    let at = w.place_of("primary@0123abcd", "m");
    w.enter("a.0.e", HistoryKind::Prepared(at), Some(new));
    w.stopping_entry("a.0.e", "n", StopReason::UserRequested, &old);
    let at = w.place_of("primary", "n");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(old));
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    assert_eq!(w.calls(), ["startPrepared a.0.e/primary@0123abcd on m"]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
}

// spec: HYDR-17
#[test]
fn a_target_that_is_prepared_later_is_started_once_nothing_of_the_source_is_left() {
    for source_is_there in [false, true] {
        let mut w = cold();
        w.store(&bundle("a", json!([job("e")])));
        w.snapshot_node("m", "own", inventory(4.0));
        let old = w.started_before("a.0.e", "primary", "n");
        w.run_of("a.0.e", "primary", "n", &old);
        let new = w.started_before("a.0.e", "primary@0123abcd", "m");
        if source_is_there {
            w.snapshot_node("n", "own", inventory(4.0));
            w.stopping_entry("a.0.e", "n", StopReason::UserRequested, &old);
        } else {
            w.stopping_entry("a.0.e", "n", StopReason::NodeStopped, &old);
        }
        w.snapshot_job("a.0.e");
        w.snapshot_bundle("a");
        w.complete();
        assert_eq!(w.node_of("a.0.e").unwrap(), "m");
        assert!(w.calls().is_empty(), "it is not prepared yet");
        let at = w.place_of("primary@0123abcd", "m");
        w.enter("a.0.e", HistoryKind::Prepared(at), Some(new.clone()));
        w.tell("a.0.e");
        let start = ["startPrepared a.0.e/primary@0123abcd on m"];
        if source_is_there {
            assert!(w.calls().is_empty(), "the source is still ending");
            let at = w.place_of("primary", "n");
            w.enter("a.0.e", HistoryKind::Stopped(at), Some(old));
            w.tell("a.0.e");
        }
        assert_eq!(w.calls(), start);
        w.tell("a.0.e");
        w.run_of("a.0.e", "primary@0123abcd", "m", &new);
        w.tell("a.0.e");
        assert!(w.calls().is_empty(), "once");
    }
}

// spec: HYDR-06
#[test]
fn what_runs_is_bound_and_told_nothing_however_often_it_is_reported() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("n", "own", inventory(4.0));
    let start = w.started_before("a.0.e", "primary@0123abcd", "n");
    w.run_of("a.0.e", "primary@0123abcd", "n", &start);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    w.tell("a.0.e");
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert!(w.calls().is_empty());
}

// spec: HYDR-17, HYDR-07
#[test]
fn a_source_that_comes_back_before_the_target_was_started_keeps_the_job() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("m", "own", inventory(4.0));
    let old = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &old);
    let new = w.started_before("a.0.e", "primary@0123abcd", "m");
    w.stopping_entry("a.0.e", "n", StopReason::NodeStopped, &old);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    assert!(w.calls().is_empty(), "it is not prepared yet");
    w.hello("n");
    w.run_of("a.0.e", "primary", "n", &old);
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(
        w.calls(),
        [
            "abortMigration a.0.e primary@0123abcd",
            "stop a.0.e/primary@0123abcd on m"
        ]
    );
    let at = w.place_of("primary@0123abcd", "m");
    w.enter("a.0.e", HistoryKind::Prepared(at), Some(new));
    w.tell("a.0.e");
    assert!(w.calls().is_empty(), "it is not started, and was told once");
}

/// A predecessor's node is on its way: history says provisioned, the node is not in the snapshot.
fn node_on_its_way() -> World {
    let mut w = World::cold(settings(cloud(), json!({})));
    w.store(&bundle("a", json!([job("e")])));
    w.tag("bought", "t1", "auto-manager", "true");
    w.tag("bought", "t1", "jobId", "a.0.e");
    w.started_before("a.0.e", "primary", "bought");
    w.at(100_000);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    w.took();
    w
}

// spec: HYDR-09, HARD-99
#[test]
fn a_node_that_a_predecessor_bought_is_waited_for() {
    let mut w = node_on_its_way();
    assert_eq!(w.node_of("a.0.e").unwrap(), "bought");
    w.at(200_000);
    w.joins("bought", 4.0);
    assert!(w.calls().is_empty(), "the start was accepted before");
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "bought");
}

// spec: HYDR-09, HARD-99
#[test]
fn and_given_up_ten_minutes_after_it_was_asked_for() {
    let mut w = node_on_its_way();
    w.at(599_999);
    assert!(w.calls().is_empty());
    w.at(600_000);
    assert_eq!(w.calls(), Vec::<String>::new(), "its tier backs off first");
    assert_eq!(w.node_of("a.0.e"), None);
    w.at(660_000);
    assert_eq!(w.calls(), ["create @1 c4 in t1"]);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HYDR-16
#[test]
fn a_starting_node_of_a_predecessor_takes_its_job() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        1,
        crate::world::refused(greenroom_types::call::Status::ResourceExhausted, "x"),
    );
    w.submit(bundle("a", json!([job("e")])));
    w.tag("bought", "t1", "auto-manager", "true");
    w.tag("bought", "t1", "jobId", "a.0.e");
    w.starting("bought", None);
    assert_eq!(w.node_of("a.0.e").unwrap(), "bought");
    w.took();
    w.joins("bought", 4.0);
    assert_eq!(w.calls(), ["start a.0.e primary on bought"]);
}

// spec: HYDR-16, HYDR-11
#[test]
fn so_does_one_that_is_starting_in_the_snapshot() {
    let mut w = World::cold(settings(cloud(), json!({})));
    w.store(&bundle("a", json!([job("e")])));
    w.tag("bought", "t1", "auto-manager", "true");
    w.tag("bought", "t1", "jobId", "a.0.e");
    w.starting("bought", None);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    assert_eq!(w.took(), ["onJobUpdated a.0.e", "onBundleUpdated a"]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "bought");
    w.at(120_000);
    assert_eq!(
        w.acts(),
        ["call terminate bought", "onNodeTerminated bought"],
        "its grace runs"
    );
}

// spec: GPU-05
#[test]
fn a_device_is_what_the_picture_says_and_any_until_it_says_so() {
    let device = |index| Gpu {
        index,
        capacity: 1.0,
        ..Gpu::default()
    };
    let mut w = cold();
    let share = |share: f64| json!([needing("e", json!({"requiredGpuCapacity": share}))]);
    w.store(&bundle("a", share(0.6)));
    let mut picture = inventory(4.0);
    picture.gpus = vec![device(0), device(1)];
    w.snapshot_node("n", "own", picture.clone());
    let start_id = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &start_id);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    w.submit(bundle("b", share(1.0)));
    assert_eq!(w.node_of("b.0.e"), None, "it may be on either");
    picture.assigned_jobs = vec![AssignedJob {
        job_id: "a.0.e".into(),
        start_id,
        capacity: 1.0,
        gpu_capacity: 0.6,
        gpu_index: Some(0),
        ..AssignedJob::default()
    }];
    w.took();
    w.hold = true;
    w.shows("n", picture);
    let (_, call) = w.next_call();
    let Call::StartJob(start) = call else {
        panic!("a start")
    };
    assert_eq!(start.gpu_index, Some(1));
}

// spec: HARD-24, CEIL-14, HYDR-13, METR-07
#[test]
fn a_broken_bundle_stays_broken_over_a_restart_without_a_word() {
    let mut w = cold();
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Default::default());
    w.store(&a);
    w.snapshot_node("n", "own", inventory(4.0));
    w.verdict("a.0.e", "poison");
    let state = w.jobs["a.0.e"].terminal_state.clone();
    w.bundles.get_mut("a").unwrap().jobs[0].terminal_state = state;
    w.snapshot_job("a.1.e");
    w.snapshot_bundle("a");
    w.complete();
    assert_eq!(w.acts(), ["onNodeStarted n", "onBundleUpdated a"]);
    assert!(w.is_broken("a"));
    let metrics = w.metrics();
    assert_eq!(metrics.bundles_broken, 0);
    assert_eq!(metrics.broken_bundle_ids, ["a".into()]);
}

// spec: HARD-98, HYDR-14
#[test]
fn a_snapshot_that_completes_after_the_close_is_not_hydrated() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("n", "own", inventory(4.0));
    w.api(greenroom_policy::ApiCall::Close);
    assert_eq!(w.took(), ["reply 1 ok", "close in order"]);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    assert!(w.took().is_empty());
    assert_eq!(w.policy.jobs().count(), 0);
}

// spec: HYDR-10, HYDR-11
#[test]
fn a_hydrated_fleet_starts_without_marks_and_with_its_spares() {
    let mut w = cold();
    w.tag("s", "own", "spare", "true");
    w.snapshot_node("s", "own", inventory(4.0));
    w.complete();
    assert_eq!(w.metrics().pools[0].live_spares, 1);
    assert!(!w.policy.is_cordoned(&"s".into()));
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "s");
}

// spec: EVT-02, HYDR-08
#[test]
fn a_node_that_is_stopping_in_the_snapshot_has_lost_its_jobs() {
    let mut w = cold();
    w.store(&bundle("a", json!([job("e")])));
    w.snapshot_node("n", "own", inventory(4.0));
    w.stopping("n");
    w.snapshot_node("m", "own", inventory(4.0));
    let start = w.started_before("a.0.e", "primary", "n");
    w.run_of("a.0.e", "primary", "n", &start);
    w.snapshot_job("a.0.e");
    w.snapshot_bundle("a");
    w.complete();
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
    assert_eq!(w.restarts("a.0.e"), 1);
}
