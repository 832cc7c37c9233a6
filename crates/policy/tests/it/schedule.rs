//! Scheduled starts, stop times, and the two clocks (SCHED, STOP, TIME).

use greenroom_policy::ApiCall;
use greenroom_types::bundle::{Bundle, Resilience};
use greenroom_types::call::Status;
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, fixed, inventory, job, refused, settings};

const MIN: i64 = 60_000;

/// Pool `p` with a lead of 300 s and one of 0; pool `q` of own servers.
fn pools() -> Value {
    json!([
        {"name": "p", "tiers": [
            {"name": "own", "kind": "local-servers", "scaleOut": "fixed"},
            {"name": "t1", "kind": "aws", "scaleOut": "elastic", "region": "r", "candidateInstanceTypes":
                [{"instanceType": "c4", "totalCapacity": 4, "totalCores": 4}]}]},
        {"name": "q", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]},
    ])
}

/// A bundle that starts so many milliseconds after now.
fn starting(w: &World, in_ms: i64) -> Bundle {
    let mut a = bundle("a", json!([job("e")]));
    a.start_date_time = Some(w.now.wall.plus(in_ms));
    a
}

fn in_ten_minutes() -> World {
    let mut w = World::with(pools(), &[("n", 4.0)]);
    let a = starting(&w, 10 * MIN);
    w.submit(a);
    assert!(w.calls().is_empty());
    w
}

/// The bundle is given another start, and told before its job.
fn start_at(w: &mut World, start: Option<greenroom_types::Wall>) {
    let mut a = w.bundles["a"].bundle.clone();
    a.start_date_time = start;
    w.store(&a);
    w.tell_bundle("a");
    w.job_mut("a.0.e").job.start_date_time = start;
    w.tell("a.0.e");
}

// spec: HARD-103, SCHED-01, SCHED-02, SCHED-05, SCHED-06, SCHED-08
#[test]
fn a_scheduled_job_is_placed_at_its_start_less_its_lead() {
    let mut w = in_ten_minutes();
    let pending = w.policy.pending_placements();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].scheduled_for, w.now.wall.plus(5 * MIN));
    w.picture("n", 4.0);
    w.joins("m", 4.0);
    w.at(299_999);
    assert!(w.calls().is_empty());
    w.at(300_000);
    assert_eq!(w.calls().len(), 1);
    assert!(w.policy.pending_placements().is_empty());
}

// spec: HARD-103, SCHED-03, SCHED-04, SCHED-09
#[test]
fn a_changed_start_counts_at_once() {
    let mut w = in_ten_minutes();
    let soon = w.now.wall.plus(MIN);
    start_at(&mut w, Some(soon));
    assert_eq!(w.calls().len(), 1, "nearer than its lead");

    let mut w = in_ten_minutes();
    start_at(&mut w, None);
    assert_eq!(w.calls().len(), 1);

    let mut w = in_ten_minutes();
    let later = w.now.wall.plus(20 * MIN);
    start_at(&mut w, Some(later));
    w.at(899_999);
    assert!(w.calls().is_empty());
    w.at(900_000);
    assert_eq!(w.calls().len(), 1);

    let mut w = in_ten_minutes();
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.at(1_200_000);
    assert!(w.calls().is_empty());

    let mut w = in_ten_minutes();
    w.took();
    let gone = std::sync::Arc::new(w.jobs["a.0.e"].clone());
    w.send(StreamEvent::JobOutOfWindow(gone));
    assert_eq!(w.took(), ["onJobDeleted a.0.e"]);
    assert!(w.policy.pending_placements().is_empty());
}

// spec: SCHED-03
#[test]
fn a_job_is_not_started_on_the_old_time_before_its_own_change_is_told() {
    let mut w = World::with(fixed(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("n", 4.0);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);

    let mut w = World::with(fixed(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    let a = starting(&w, 10 * MIN);
    w.store(&a);
    w.tell_bundle("a");
    w.joins("n", 4.0);
    assert_eq!(w.calls(), [""; 0], "the job still says nothing of it");
    let pending = w.policy.pending_placements();
    assert_eq!(pending[0].scheduled_for, w.now.wall.plus(10 * MIN));
}

// spec: SCHED-01, HYDR-05
#[test]
fn a_start_that_was_missed_is_made_up_for() {
    let mut w = World::cold(settings(pools(), json!({})));
    w.snapshot_node("n", "own", inventory(4.0));
    let a = starting(&w, -60 * MIN);
    w.submit(a);
    w.complete();
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: HARD-104, SCHED-02
#[test]
fn each_copy_has_the_lead_of_its_own_pool() {
    let mut w = World::with(pools(), &[("n", 4.0)]);
    w.tag("m", "own", "pool", "q");
    w.joins("m", 4.0);
    let mut a = starting(&w, 10 * MIN);
    a.resilience_policy = Some(Resilience {
        pool: Some("q".into()),
        ..Resilience::default()
    });
    w.submit(a);
    w.at(300_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    w.at(599_999);
    assert!(w.calls().is_empty());
    w.at(600_000);
    assert_eq!(w.calls(), ["start a.1.e backup on m"]);
}

// spec: SCHED-07
#[test]
fn the_lead_follows_the_pool_of_the_bundle() {
    let mut w = World::with(pools(), &[("n", 4.0)]);
    let a = starting(&w, 10 * MIN);
    w.store(&a);
    w.tell("a.0.e");
    let scheduled = |w: &World| w.policy.pending_placements()[0].scheduled_for;
    assert_eq!(
        scheduled(&w),
        w.now.wall.plus(10 * MIN),
        "no bundle, no lead"
    );
    w.tell_bundle("a");
    assert_eq!(scheduled(&w), w.now.wall.plus(5 * MIN));
    w.bundles.get_mut("a").unwrap().bundle.pool = "q".into();
    w.tell_bundle("a");
    assert_eq!(scheduled(&w), w.now.wall.plus(10 * MIN));
}

// spec: HARD-105, TIME-03, TIME-04
#[test]
fn a_step_of_the_wall_clock_is_noticed_within_ten_seconds() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let a = starting(&w, 30 * MIN);
    w.submit(a);
    w.tag("boot", "own", "auto-manager", "true");
    w.starting("boot", None);
    w.took();
    w.jump(60 * MIN);
    w.at(10_000);
    assert_eq!(w.acts(), ["call start a.0.e primary on n"]);
    w.at(119_999);
    assert!(w.acts().is_empty(), "graces are not moved");
    w.at(120_000);
    assert_eq!(w.acts(), ["call terminate boot", "onNodeTerminated boot"]);
}

// spec: TIME-04
#[test]
fn a_step_backwards_makes_it_wait_longer() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let a = starting(&w, MIN);
    w.submit(a);
    w.jump(-60 * MIN);
    w.at(3_600_000);
    assert!(w.calls().is_empty());
    w.at(3_660_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

fn tagged(mut a: Bundle, stop: &str) -> Bundle {
    a.tags.insert("__stopDateTime".into(), stop.into());
    for job in &mut a.jobs {
        job.tags.insert("__stopDateTime".into(), stop.into());
    }
    a
}

// spec: STOP-03, STOP-05, STOP-07
#[test]
fn a_tagged_stop_time_deletes_the_bundle_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let stop = w.now.wall.plus(10 * MIN).to_string();
    w.submit(tagged(bundle("a", json!([job("e"), job("f")])), &stop));
    let times = w.policy.bundle_stop_times();
    assert_eq!(times.len(), 1);
    assert_eq!(times[0].stop_at.to_string(), stop);
    w.took();
    w.at(599_999);
    assert!(w.calls().is_empty());
    w.at(600_000);
    assert_eq!(w.calls(), ["deleteBundle a"]);
    w.at(1_200_000);
    w.tell("a.0.e");
    assert!(w.calls().is_empty());

    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(tagged(bundle("a", json!([job("e")])), &stop));
    w.send(StreamEvent::BundleDeleted("a".into()));
    w.took();
    w.at(600_000);
    assert!(w.calls().is_empty());
}

// spec: STOP-03
#[test]
fn another_time_replaces_it_and_none_cancels_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let stop = w.now.wall.plus(10 * MIN).to_string();
    let later = w.now.wall.plus(20 * MIN).to_string();
    w.submit(tagged(bundle("a", json!([job("e")])), &stop));
    w.job_mut("a.0.e")
        .job
        .tags
        .insert("__stopDateTime".into(), later);
    w.tell("a.0.e");
    w.took();
    w.at(1_199_999);
    assert!(w.calls().is_empty());
    w.job_mut("a.0.e")
        .job
        .tags
        .insert("__stopDateTime".into(), "soon".into());
    w.tell("a.0.e");
    assert!(w.policy.bundle_stop_times().is_empty());
    w.at(3_600_000);
    assert!(w.calls().is_empty());
}

// spec: STOP-04
#[test]
fn a_delete_that_fails_is_sent_again_every_five_seconds() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.refuse("DeleteBundle", 2, refused(Status::Unavailable, "down"));
    let stop = w.now.wall.plus(MIN).to_string();
    w.submit(tagged(bundle("a", json!([job("e")])), &stop));
    w.took();
    w.at(60_000);
    assert_eq!(w.acts(), ["call deleteBundle a", "onError deleteFailed"]);
    w.at(65_000);
    assert_eq!(w.acts(), ["call deleteBundle a", "onError deleteFailed"]);
    w.at(70_000);
    assert_eq!(w.acts(), ["call deleteBundle a"]);
    w.at(600_000);
    assert!(w.acts().is_empty());
}

// spec: HARD-106, STOP-02
#[test]
fn where_the_manager_has_a_stop_time_the_tag_means_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let early = w.now.wall.plus(MIN).to_string();
    let mut a = tagged(bundle("a", json!([job("e")])), &early);
    a.stop_at = Some(w.now.wall.plus(10 * MIN));
    w.submit(a);
    assert_eq!(
        w.policy.bundle_stop_times()[0].stop_at,
        w.now.wall.plus(10 * MIN)
    );
    w.took();
    w.at(3_600_000);
    assert!(w.calls().is_empty());
}

// spec: HARD-107, STOP-04, STOP-06, HYDR-05
#[test]
fn a_stop_time_already_past_deletes_before_anything_is_placed() {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.snapshot_node("n", "own", inventory(4.0));
    let past = w.now.wall.plus(-MIN).to_string();
    w.submit(tagged(bundle("a", json!([job("e")])), &past));
    w.complete();
    assert_eq!(w.calls(), ["deleteBundle a"]);
    w.picture("n", 4.0);
    w.at(600_000);
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("a.0.e"), None);
}

// spec: STOP-01, BUNDLE-05, BUNDLE-06
#[test]
fn calls_about_bundles_pass_through_and_change_nothing_by_themselves() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let unknown = w.api(ApiCall::SetBundleStopTime {
        bundle_id: "a".into(),
        stop_at: None,
    });
    assert_eq!(
        w.results[&unknown].as_ref().unwrap_err().code(),
        "unknownBundle"
    );
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    let mut dead = bundle("a", json!([job("e")]));
    dead.state = greenroom_types::bundle::BundleState::Deleting;
    for call in [
        ApiCall::SetBundleStopTime {
            bundle_id: "a".into(),
            stop_at: None,
        },
        ApiCall::CreateBundle {
            bundle: Box::new(dead.clone()),
        },
        ApiCall::UpdateBundle {
            bundle: Box::new(dead),
        },
        ApiCall::StartBundleJob {
            bundle_id: "a".into(),
            replica_index: 0,
            job_name: "e".into(),
        },
        ApiCall::StopBundleJob {
            bundle_id: "a".into(),
            replica_index: 0,
            job_name: "e".into(),
            grace_ms: None,
        },
        ApiCall::DeleteBundle {
            bundle_id: "a".into(),
        },
    ] {
        let id = w.api(call);
        assert!(w.results[&id].is_ok());
    }
    assert_eq!(
        w.calls(),
        [
            "SetBundleStopTime",
            "CreateBundle",
            "UpdateBundle",
            "StartBundleJob",
            "StopBundleJob",
            "deleteBundle a"
        ]
    );
    let revived = w.all.iter().any(|effect| matches!(effect,
        greenroom_policy::Effect::Call { call: greenroom_types::call::Call::UpdateBundle { bundle, .. }, .. }
            if bundle.state == greenroom_types::bundle::BundleState::Live));
    assert!(revived);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    w.refuse(
        "DeleteBundle",
        1,
        refused(Status::NotFound, "unknown_bundle"),
    );
    let id = w.api(ApiCall::DeleteBundle {
        bundle_id: "b".into(),
    });
    assert_eq!(
        w.results[&id].as_ref().unwrap_err().code(),
        "unknown_bundle"
    );
}
