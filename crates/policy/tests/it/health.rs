//! Rejections, unhealthy nodes, exclusion windows (HEALTH).

use greenroom_types::job::HistoryKind;
use greenroom_types::node::RejectionCode;
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, sized};

/// Three jobs on `n`, each of its own bundle; nowhere else to go.
fn three_on_n() -> World {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    for id in ["a", "b", "c"] {
        w.submit(bundle(id, json!([job("e")])));
    }
    w.took();
    w
}

// spec: HARD-48, HEALTH-03
#[test]
fn three_rejections_within_five_seconds_make_a_node_unhealthy() {
    let mut w = three_on_n();
    w.rejects("a.0.e", "n", RejectionCode::Disk, "");
    w.at(2_000);
    w.rejects("b.0.e", "n", RejectionCode::Disk, "");
    w.at(4_999);
    w.took();
    w.rejects("c.0.e", "n", RejectionCode::Disk, "");
    assert_eq!(w.acts()[..2], ["onJobRejected c.0.e", "onNodeUnhealthy n"]);
    assert_eq!(w.metrics().jobs_rejected, 3);
}

// spec: HARD-48, HEALTH-03
#[test]
fn a_rejection_that_is_five_seconds_old_counts_no_more() {
    let mut w = three_on_n();
    w.rejects("a.0.e", "n", RejectionCode::Disk, "");
    w.at(2_000);
    w.rejects("b.0.e", "n", RejectionCode::Disk, "");
    w.at(5_000);
    w.took();
    w.rejects("c.0.e", "n", RejectionCode::Disk, "");
    assert!(!w.acts().contains(&"onNodeUnhealthy n".to_owned()));
}

/// `n` is unhealthy; `d` runs on it and stays (HEALTH-07).
fn unhealthy() -> World {
    let mut w = three_on_n();
    w.submit(bundle("d", json!([job("e")])));
    w.runs("d.0.e");
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        w.rejects(id, "n", RejectionCode::Disk, "");
    }
    w.at(100);
    w.took();
    w
}

// spec: HARD-48, HEALTH-04, HEALTH-05, HEALTH-07, PLACE-06
#[test]
fn an_inventory_does_not_clear_the_mark_and_a_running_job_does() {
    let mut w = unhealthy();
    assert_eq!(w.node_of("d.0.e").unwrap(), "n");
    w.picture("n", 16.0);
    w.rejects("x.0.e", "n", RejectionCode::Disk, "");
    assert!(!w.acts().iter().any(|line| line.contains("Healthy")));
    w.submit(bundle("f", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    w.took();
    w.fails("d.0.e");
    assert!(w.calls().is_empty(), "left out of recoveries as well");
    // The Manager takes the failed instance back: it runs.
    w.runs("d.0.e");
    let acts = w.acts();
    assert_eq!(acts[0], "onNodeHealthy n");
    assert!(acts.contains(&"call start f.0.e primary on n".to_owned()));
    assert_eq!(
        acts.iter()
            .filter(|line| line.starts_with("onNodeHealthy"))
            .count(),
        1
    );
}

// spec: HEALTH-04, HEALTH-05, PEND-02
#[test]
fn an_unhealthy_node_has_cooled_down_after_ten_minutes() {
    let mut w = unhealthy();
    w.submit(bundle("f", json!([job("e")])));
    w.at(599_999);
    w.took();
    w.at(600_000);
    let acts = w.acts();
    assert_eq!(acts[0], "onNodeHealthy n");
    assert!(acts.contains(&"call start f.0.e primary on n".to_owned()));
}

// spec: HEALTH-06
#[test]
fn a_node_that_stops_loses_its_mark_without_a_word() {
    let mut w = unhealthy();
    w.stopping("n");
    w.stopped("n");
    w.at(60_000);
    w.joins("n", 16.0);
    assert!(!w.acts().iter().any(|line| line.contains("Healthy")));
    w.submit(bundle("f", json!([job("e")])));
    assert_eq!(w.node_of("f.0.e").unwrap(), "n");
}

// spec: HEALTH-02, HEALTH-10
#[test]
fn a_rejected_job_is_recovered_elsewhere_and_counted() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("m", 4.0);
    w.took();
    w.rejects("a.0.e", "n", RejectionCode::Capacity, "full");
    assert_eq!(
        w.acts(),
        ["onJobRejected a.0.e", "call start a.0.e primary on m"]
    );
    assert_eq!(w.restarts("a.0.e"), 1);
    // Another job may still go there.
    w.submit(bundle("b", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
}

// spec: HEALTH-12
#[test]
fn a_rejection_for_the_disk_leads_elsewhere_and_is_not_the_jobs_failure() {
    for policy in ["avoidSpare", "drop"] {
        let mut w = World::with(fixed(), &[("n", 4.0)]);
        let mut job = job("e");
        job["requirements"]["onRuntimeFailure"] = policy.into();
        w.submit(bundle("a", json!([job])));
        w.joins("m", 4.0);
        w.took();
        w.rejects("a.0.e", "n", RejectionCode::Disk, "disk nearly full");
        assert_eq!(
            w.acts(),
            ["onJobRejected a.0.e", "call start a.0.e primary on m"],
            "{policy}"
        );
        assert_eq!(w.restarts("a.0.e"), 0);
    }
}

// spec: HEALTH-12
#[test]
fn a_bought_node_that_came_with_a_full_disk_counts_or_the_buying_would_not_end() {
    for (came_low, counted) in [(true, 1), (false, 0)] {
        let mut w = World::with(cloud(), &[]);
        w.submit(bundle("a", json!([job("e")])));
        w.hello("@1");
        w.disk("@1", 4.0, came_low);
        w.rejects("a.0.e", "@1", RejectionCode::Disk, "disk nearly full");
        assert_eq!(w.restarts("a.0.e"), counted, "came low: {came_low}");
    }
}

// spec: HEALTH-12, PLACE-34, PEND-02
#[test]
fn a_node_whose_disk_is_nearly_full_is_left_out_until_it_says_otherwise() {
    let mut w = three_on_n();
    w.disk("n", 16.0, true);
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        w.rejects(id, "n", RejectionCode::Disk, "disk nearly full");
    }
    // Its picture keeps it out; it is not unhealthy, or it would stay out for ten minutes.
    assert!(!w.acts().contains(&"onNodeUnhealthy n".to_owned()));
    w.at(40_000);
    assert!(w.calls().is_empty());
    assert_eq!(w.filtered()["n"], "diskNearlyFull");
    w.took();
    w.disk("n", 16.0, false);
    assert_eq!(w.calls().len(), 3);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HEALTH-10, PEND-02
#[test]
fn the_exclusion_for_one_job_ends_after_thirty_seconds() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.rejects("a.0.e", "n", RejectionCode::Capacity, "full");
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    w.at(29_999);
    assert!(w.calls().is_empty());
    w.at(30_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: HARD-39, INTRA-06
#[test]
fn a_member_rejected_by_the_node_of_its_group_waits_for_that_node() {
    let mut w = World::with(crate::world::cloud(), &[]);
    let group = json!([sized("a", 2.0), {"jobName": "b", "coLocateWith": ["a"], "requirements": {"requiredCapacity": 2}}]);
    w.submit(bundle("g", group));
    w.joins("@1", 4.0);
    w.took();
    w.rejects("g.0.b", "@1", RejectionCode::Image, "");
    assert!(w.calls().is_empty(), "no node is bought for it alone");
    w.at(29_999);
    assert!(w.calls().is_empty());
    w.at(30_000);
    assert_eq!(w.calls(), ["start g.0.b primary on @1"]);
}

// spec: HARD-47, HEALTH-01
#[test]
fn late_words_about_a_dead_instance_touch_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("m", 4.0);
    w.stopping("n");
    w.runs("a.0.e");
    w.took();
    w.rejects("a.0.e", "n", RejectionCode::Disk, "");
    assert_eq!(w.acts(), ["onJobRejected a.0.e"]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    assert_eq!(w.restarts("a.0.e"), 1);
    assert_eq!(w.metrics().jobs_rejected, 1);
}

// spec: HEALTH-08
#[test]
fn a_lost_node_is_left_out_up_to_and_including_the_thirtieth_second() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    w.at(30_000);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    w.at(30_001);
    assert_eq!(w.filtered()["n"], "unreachable", "the next reason");
}

// spec: HEALTH-08
#[test]
fn stopped_after_stopping_starts_the_window_anew() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    w.at(10_000);
    w.stopped("n");
    w.at(40_000);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["n"], "recoveryExcluded");
    w.at(40_001);
    assert_eq!(w.filtered()["n"], "unreachable", "the next reason");
}

// spec: HEALTH-09
#[test]
fn running_again_and_heard_ends_the_window() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping("n");
    w.at(1_000);
    w.hello("n");
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e"), None);
    w.picture("n", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: HEALTH-01
#[test]
fn the_refusal_of_a_second_start_does_not_touch_the_first() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.send(greenroom_types::stream::StreamEvent::JobRejected {
        node_id: "n".into(),
        key: greenroom_types::node::InstanceKey::new("a.0.e".into(), "primary".into()),
        start_id: "ffffffffffffffffffffffffffffffff".into(),
        code: RejectionCode::Duplicate,
        reason: String::new(),
        inventory: None,
    });
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: BIND-06, RECOV-03
#[test]
fn what_is_told_late_of_a_refused_start_says_nothing_of_the_next_one() {
    let mut w = World::set(fixed(), json!({"failureBackoffMs": 1_000}), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.tell("a.0.e");
    let (at, refused) = w.last_start("a.0.e");
    w.rejects("a.0.e", "n", RejectionCode::Capacity, "full");
    assert_eq!(w.restarts("a.0.e"), 1);
    w.took();
    w.hold = true;
    w.at(10_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    w.tell("a.0.e");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(refused));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(w.restarts("a.0.e"), 1);
}
