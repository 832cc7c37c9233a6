//! Ceilings, verdicts, broken bundles (CEIL).

use greenroom_types::call::Status;
use greenroom_types::node::RejectionCode;
use serde_json::json;

use crate::world::{World, bundle, fixed, job, needing, refused};

const MIN: u64 = 60_000;

fn running(jobs: serde_json::Value) -> World {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    let a = bundle("a", jobs);
    let ids = w.ids_of(&a);
    w.submit(a);
    for id in ids {
        w.runs(id.as_str());
    }
    w.took();
    w
}

/// One failure at that time, and a fresh instance if it was recovered.
fn fail_at(w: &mut World, ms: u64) {
    w.at(ms);
    w.fails("a.0.e");
    if w.node_of("a.0.e").is_some() {
        w.runs("a.0.e");
    }
}

fn six_failures() -> World {
    let mut w = running(json!([job("e")]));
    for minute in [0, 10, 20, 30, 40, 50] {
        fail_at(&mut w, minute * MIN);
    }
    assert_eq!(w.calls().len(), 6);
    assert_eq!(w.restarts("a.0.e"), 6);
    w
}

// spec: HARD-12, CEIL-01, CEIL-02, CEIL-05
#[test]
fn the_seventh_failure_within_an_hour_trips() {
    let mut w = six_failures();
    w.at(60 * MIN - 1);
    w.fails("a.0.e");
    assert_eq!(w.acts(), ["call markJobFailed a.0.e", "onBundleBroken a"]);
    assert!(w.is_broken("a"));
    let metrics = w.metrics();
    assert_eq!((metrics.bundles_broken, metrics.jobs_dropped), (1, 0));
    assert_eq!(metrics.broken_bundle_ids, ["a".into()]);
}

// spec: HARD-12, CEIL-01
#[test]
fn a_failure_that_is_exactly_an_hour_old_no_longer_counts() {
    let mut w = six_failures();
    w.at(60 * MIN);
    w.fails("a.0.e");
    assert_eq!(w.calls().len(), 1);
    assert_eq!(w.restarts("a.0.e"), 6);
    assert!(!w.is_broken("a"));
}

// spec: HARD-13, RECOV-09, CEIL-03
#[test]
fn a_job_that_dies_at_once_is_tried_every_five_seconds_and_then_no_more() {
    let mut w = running(json!([job("e")]));
    fail_at(&mut w, 0);
    for attempt in 0..6u64 {
        w.at(attempt * 5_000);
        assert_eq!(w.calls(), ["start a.0.e primary on n"], "attempt {attempt}");
        w.runs("a.0.e");
        w.at(attempt * 5_000 + 200);
        w.took();
        w.fails("a.0.e");
        if attempt < 5 {
            assert!(w.calls().is_empty(), "kept apart");
            assert_eq!(w.restarts("a.0.e"), attempt as usize + 2);
        }
    }
    assert_eq!(w.acts(), ["call markJobFailed a.0.e", "onBundleBroken a"]);
    w.at(60_000);
    assert!(w.calls().is_empty());
}

// spec: HARD-15, CONF-06
#[test]
fn a_ceiling_of_zero_trips_at_the_first_failure() {
    let mut w = running(json!([needing("e", json!({"maxRestartsPerHour": 0}))]));
    w.fails("a.0.e");
    assert_eq!(w.acts(), ["call markJobFailed a.0.e", "onBundleBroken a"]);
}

// spec: HARD-16, CEIL-05
#[test]
fn a_non_essential_job_goes_alone() {
    let mut w = running(json!([
        needing("e", json!({"essential": false, "maxRestartsPerHour": 0})),
        job("p1"),
        job("p2"),
    ]));
    w.fails("a.0.e");
    assert_eq!(w.acts(), ["call markJobFailed a.0.e", "onJobDropped a.0.e"]);
    assert!(!w.is_broken("a"));
    w.fails("a.0.p1");
    assert_eq!(w.calls(), ["start a.0.p1 primary on n"]);
}

// spec: HARD-17, CEIL-09, CEIL-11, CEIL-15, CEIL-07
#[test]
fn an_essential_drop_job_breaks_its_bundle_once() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    let mut a = bundle(
        "a",
        json!([needing("e", json!({"onRuntimeFailure": "drop"}))]),
    );
    a.resilience_policy = Some(Default::default());
    w.submit(a);
    w.runs("a.0.e");
    w.runs("a.1.e");
    w.took();
    w.fails("a.0.e");
    assert_eq!(
        w.acts(),
        [
            "call markJobFailed a.0.e",
            "onJobDropped a.0.e",
            "onBundleBroken a"
        ]
    );
    assert!(w.node_of("a.1.e").is_some(), "what runs is left running");
    w.fails("a.1.e");
    assert_eq!(w.acts(), ["call markJobFailed a.1.e", "onJobDropped a.1.e"]);
    w.picture("n", 4.0);
    assert!(w.calls().is_empty());
    let metrics = w.metrics();
    assert_eq!((metrics.bundles_broken, metrics.jobs_dropped), (1, 2));
}

// spec: HARD-18, CEIL-12
#[test]
fn a_verdict_counts_before_the_manager_has_heard_of_it() {
    let mut w = running(json!([needing(
        "e",
        json!({"essential": false, "onRuntimeFailure": "drop"})
    )]));
    w.hold = true;
    w.fails("a.0.e");
    w.took();
    w.tell("a.0.e");
    w.picture("n", 16.0);
    assert_eq!(w.took(), ["onJobUpdated a.0.e"]);
}

// spec: HARD-19, CEIL-10, HEALTH-01
#[test]
fn an_invalid_specification_is_final_at_the_first_rejection() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle(
        "a",
        json!([needing("e", json!({"onRuntimeFailure": "preferSpare"}))]),
    ));
    w.took();
    for _ in 0..3 {
        w.rejects("a.0.e", "n", RejectionCode::InvalidSpec, "no such codec");
    }
    assert_eq!(
        w.acts(),
        [
            "onJobRejected a.0.e",
            "call markJobFailed a.0.e",
            "onJobDropped a.0.e",
            "onBundleBroken a",
            "onJobRejected a.0.e",
            "onJobRejected a.0.e",
        ]
    );
    let last = w.all.iter().find_map(|effect| match effect {
        greenroom_policy::Effect::Callback(greenroom_policy::Callback::OnBundleBroken {
            reason,
            ..
        }) => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(last.unwrap(), "no such codec");
    assert_eq!(w.metrics().jobs_rejected, 3);
}

// spec: HARD-20, CEIL-06, CEIL-08
#[test]
fn a_moved_stop_time_forgives_nothing_and_an_update_does() {
    let mut w = running(json!([needing("e", json!({"maxRestartsPerHour": 0}))]));
    w.at(10_000);
    w.fails("a.0.e");
    assert!(w.is_broken("a"));
    w.took();
    let stop = w.now.wall.plus(3_600_000);
    w.bundles.get_mut("a").unwrap().bundle.stop_at = Some(stop);
    w.tell_bundle("a");
    assert!(w.is_broken("a"));
    assert!(w.calls().is_empty());
    // The same specification once more: the operator says try again.
    w.tell_bundle("a");
    assert!(!w.is_broken("a"));
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: CEIL-08
#[test]
fn with_revisions_only_a_new_one_forgives() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let mut a = bundle("a", json!([needing("e", json!({"maxRestartsPerHour": 0}))]));
    a.revision = 1;
    w.submit(a);
    w.runs("a.0.e");
    w.fails("a.0.e");
    w.tell_bundle("a");
    assert!(
        w.is_broken("a"),
        "the same revision said again is no update"
    );
    w.bundles.get_mut("a").unwrap().bundle.revision = 2;
    w.tell_bundle("a");
    assert!(!w.is_broken("a"));
}

// spec: HARD-21, CEIL-06
#[test]
fn a_node_bought_for_the_job_is_a_fresh_beginning() {
    let mut w = World::with(crate::world::cloud(), &[]);
    w.submit(bundle(
        "a",
        json!([needing("e", json!({"requiredCapacity": 4}))]),
    ));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    for n in 0..5 {
        w.at(n * 10_000);
        w.fails("a.0.e");
        w.runs("a.0.e");
    }
    assert_eq!(
        w.restarts("a.0.e"),
        5,
        "starts on an existing node clear nothing"
    );
    w.at(60_000);
    w.took();
    w.stopping("@1");
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
    assert_eq!(w.restarts("a.0.e"), 6);
    w.joins("@2", 4.0);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HARD-22, TIME-03
#[test]
fn a_step_of_the_wall_clock_changes_no_count_and_no_spacing() {
    let mut w = running(json!([job("e")]));
    for n in 0..5 {
        fail_at(&mut w, n * 10_000);
    }
    w.jump(-2 * 3_600_000);
    fail_at(&mut w, 50_000);
    w.took();
    w.at(51_000);
    w.fails("a.0.e");
    assert_eq!(w.acts(), ["call markJobFailed a.0.e", "onBundleBroken a"]);
}

// spec: HARD-23, CEIL-13
#[test]
fn a_verdict_is_sent_until_it_is_taken() {
    let mut w = running(json!([needing("e", json!({"maxRestartsPerHour": 0}))]));
    w.refuse("MarkJobFailed", 2, refused(Status::Unavailable, "down"));
    w.fails("a.0.e");
    assert_eq!(
        w.acts(),
        [
            "call markJobFailed a.0.e",
            "onBundleBroken a",
            "onError verdictFailed"
        ]
    );
    w.at(4_999);
    assert!(w.acts().is_empty());
    w.at(5_000);
    assert_eq!(
        w.acts(),
        ["call markJobFailed a.0.e", "onError verdictFailed"]
    );
    w.at(10_000);
    assert_eq!(w.acts(), ["call markJobFailed a.0.e"]);
    w.at(60_000);
    assert!(w.acts().is_empty());
}

// spec: CEIL-07
#[test]
fn a_broken_bundle_cancels_what_waits() {
    let mut w = running(json!([
        needing("e", json!({"maxRestartsPerHour": 0})),
        needing("f", json!({})),
    ]));
    w.at(1_000);
    w.fails("a.0.f");
    w.runs("a.0.f");
    w.at(2_000);
    w.fails("a.0.f");
    w.fails("a.0.e");
    assert!(w.is_broken("a"));
    w.took();
    w.at(60_000);
    w.picture("n", 16.0);
    assert!(w.calls().is_empty());
}

#[test]
fn a_verdict_that_the_manager_cleared_is_gone_here_too() {
    let mut w = running(json!([needing(
        "e",
        json!({"essential": false, "onRuntimeFailure": "drop"})
    )]));
    w.at(10_000);
    w.fails("a.0.e");
    w.verdict("a.0.e", "dropped");
    w.tell("a.0.e");
    w.took();
    let job = w.job_mut("a.0.e");
    job.terminal_state = None;
    job.state = greenroom_types::job::JobState::Pre;
    w.tell("a.0.e");
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: CEIL-08, CEIL-14
#[test]
fn a_verdict_by_somebody_else_breaks_the_bundle_until_it_is_lifted() {
    let mut w = running(json!([job("e"), job("f")]));
    w.runs("a.0.f");
    w.took();
    for id in ["a.0.e", "a.0.f"] {
        w.verdict(id, "wrong feed");
        w.tell(id);
    }
    assert!(w.is_broken("a"));
    let acts = w.acts();
    let broken = acts.iter().filter(|act| act.contains("onBundleBroken"));
    assert_eq!(broken.count(), 1, "{acts:?}");
    assert_eq!(w.metrics().bundles_broken, 1);
    w.fails("a.0.f");
    w.at(60_000);
    for (id, broken) in [("a.0.e", true), ("a.0.f", false)] {
        let job = w.job_mut(id);
        job.terminal_state = None;
        job.state = greenroom_types::job::JobState::Pre;
        w.tell(id);
        assert_eq!(w.is_broken("a"), broken, "{id}");
    }
    assert!(w.calls().contains(&"start a.0.f primary on n".to_owned()));
}

// spec: CEIL-14
#[test]
fn a_verdict_by_somebody_else_on_an_optional_job_breaks_nothing() {
    let mut w = running(json!([needing("e", json!({"essential": false}))]));
    w.verdict("a.0.e", "wrong feed");
    w.tell("a.0.e");
    assert!(!w.is_broken("a"));
    assert_eq!(w.metrics().bundles_broken, 0);
}
