//! What was told to stop takes its room until the Manager shows that it is over (RESV-07, RECOV-08).

use greenroom_policy::ApiCall;
use greenroom_policy::migration::Strategy;
use greenroom_types::call::Status;
use greenroom_types::inventory::AssignedJob;
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::migration::{Move, running_on_n};
use crate::world::{World, bundle, fixed, inventory, refused, sized};

const SECOND: u64 = 1_000;

fn take_back(m: &mut Move) {
    m.w.api(ApiCall::AbortMigration {
        migration_id: m.id.clone(),
        reason: "changed my mind".to_owned(),
    });
}

/// A job that fits on `m` only where nothing else is, and nowhere else.
fn wants_all_of_m(m: &mut Move) {
    m.w.submit(bundle("b", json!([sized("g", 4.0)])));
}

// spec: RESV-07, RECOV-08, MIGR-29
#[test]
fn the_target_of_a_migration_that_was_taken_back_keeps_its_room_until_it_is_gone() {
    let mut m = Move::begin(running_on_n("preferSpare"), Strategy::StopThenStart);
    take_back(&mut m);
    wants_all_of_m(&mut m);
    assert_eq!(m.w.node_of("b.0.g"), None, "its start is not shown yet");
    m.w.tell("a.0.e");
    m.w.at(30 * SECOND);
    assert_eq!(
        m.w.node_of("b.0.g"),
        None,
        "it is there for all that is known"
    );
    let role = m.target_role();
    let at = m.w.place_of(role.as_str(), "m");
    let kind = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    m.w.enter("a.0.e", kind, m.target.clone());
    m.w.tell("a.0.e");
    assert_eq!(m.w.node_of("b.0.g"), None, "it ends");
    m.w.enter("a.0.e", HistoryKind::Stopped(at), m.target.clone());
    m.w.tell("a.0.e");
    assert_eq!(m.w.node_of("b.0.g").unwrap(), "m");
}

// spec: RESV-07
#[test]
fn a_target_whose_start_is_refused_after_all_keeps_no_room() {
    let mut w = running_on_n("preferSpare");
    w.hold = true;
    let mut m = Move::begin(w, Strategy::StopThenStart);
    let (start, _) = m.w.next_call();
    take_back(&mut m);
    wants_all_of_m(&mut m);
    assert_eq!(m.w.node_of("b.0.g"), None, "its start is under way");
    let no = refused(Status::FailedPrecondition, "node_full");
    m.w.answer_one(start, Err(no));
    assert_eq!(m.w.node_of("b.0.g").unwrap(), "m");
}

// spec: RESV-07
#[test]
fn a_target_of_which_nothing_is_ever_shown_keeps_its_room_for_a_moment_only() {
    let mut w = running_on_n("preferSpare");
    w.hold = true;
    let mut m = Move::begin(w, Strategy::StopThenStart);
    take_back(&mut m);
    wants_all_of_m(&mut m);
    m.w.at(14_999);
    assert_eq!(m.w.node_of("b.0.g"), None);
    m.w.at(15_000);
    assert_eq!(m.w.node_of("b.0.g").unwrap(), "m");
}

// spec: RESV-07, BUNDLE-11
#[test]
fn what_is_told_to_stop_holds_what_it_was_started_with_though_its_job_is_defined_anew() {
    let mut w = running_on_n("preferSpare");
    let mut big = bundle("a", json!([sized("e", 3.0)]));
    w.bundles.get_mut("a").unwrap().bundle = big.clone();
    w.tell_bundle("a");
    let mut m = Move::begin(w, Strategy::StopThenStart);
    big.jobs[0].requirements.required_capacity = 1.0;
    m.w.bundles.get_mut("a").unwrap().bundle = big;
    m.w.tell_bundle("a");
    let placement = m.w.job_mut("a.0.e").job.auto_placement.as_mut().unwrap();
    placement.requirements.required_capacity = 1.0;
    take_back(&mut m);
    m.w.tell("a.0.e");
    m.w.submit(bundle("b", json!([sized("g", 2.0)])));
    assert_ne!(
        m.w.node_of("b.0.g").as_deref(),
        Some("m"),
        "3 of 4 are taken"
    );
    m.w.submit(bundle("c", json!([sized("h", 1.0)])));
    let small = m.w.node_of("c.0.h");
    assert!(small.is_some(), "there is room for so much");
}

// spec: RESV-07, PEND-02
#[test]
fn what_a_start_by_hand_left_beside_what_the_picture_lists_holds_room_too() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle(
        "a",
        json!([{"jobName": "e", "requirements": {"requiredCapacity": 1.0, "onRuntimeFailure": "drop"}}]),
    ));
    w.runs("a.0.e");
    let (_, first) = w.last_start("a.0.e");
    w.ends("a.0.e", StopReason::JobFailed);
    let mut picture = inventory(4.0);
    picture.assigned_jobs = vec![AssignedJob {
        job_id: "a.0.e".into(),
        start_id: first,
        capacity: 1.0,
        ..AssignedJob::default()
    }];
    w.shows("n", picture);
    let at = w.place_of("primary", "n");
    let second = w.started_before("a.0.e", "primary", "n");
    let failed = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::JobFailed,
        detail: String::new(),
    };
    w.enter("a.0.e", failed, Some(second.clone()));
    w.tell("a.0.e");
    w.submit(bundle("b", json!([sized("g", 2.5)])));
    assert_eq!(w.node_of("b.0.g"), None, "two of them are there");
    w.enter("a.0.e", HistoryKind::Stopped(at), Some(second));
    w.tell("a.0.e");
    assert_eq!(w.node_of("b.0.g").unwrap(), "n");
}

// spec: RESV-07
#[test]
fn what_is_left_of_a_job_that_is_told_of_no_more_counts_until_the_next_picture() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.runs("a.0.e");
    w.ends("a.0.e", StopReason::JobFailed);
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.submit(bundle("b", json!([sized("g", 2.0)])));
    assert_eq!(w.node_of("b.0.g"), None, "its remains are not listed yet");
    w.picture("n", 4.0);
    assert_eq!(w.node_of("b.0.g").unwrap(), "n", "nor are they there");
}

// spec: RESV-07
#[test]
fn what_no_picture_tells_of_for_a_minute_is_gone() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let since = w.now.mono.0;
    for (ends, name) in [(0, "a"), (10_000, "b")] {
        w.at(since + ends);
        w.submit(bundle(name, json!([sized("e", 2.0)])));
        let job_id = format!("{name}.0.e");
        w.runs(&job_id);
        w.ends(&job_id, StopReason::JobFailed);
        w.send(StreamEvent::JobDeleted(job_id.as_str().into()));
    }
    // No picture was different from the one before, so none comes.
    w.submit(bundle("c", json!([sized("g", 1.0), sized("h", 2.0)])));
    for (after, g, h) in [
        (59_999, None, None),
        (60_000, Some("n"), None),
        (69_999, Some("n"), None),
        (70_000, Some("n"), Some("n")),
    ] {
        w.at(since + after);
        let nodes = ["c.0.g", "c.0.h"].map(|job| w.node_of(job));
        assert_eq!(nodes.each_ref().map(Option::as_deref), [g, h], "{after}");
    }
}
