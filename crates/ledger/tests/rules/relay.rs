//! Rules about the relay of migrations, and about searching.

use crate::common::*;
use greenroom_ledger::{
    DateComparison, Hello, JobFilter, Link, Order, Report, Subscriber, TextComparison, Wish,
    WorkerOrder,
};
use greenroom_types::call::{Call, Detail, Reply, StartJob, Status};
use greenroom_types::node::InstanceState;
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{Now, Payload};

const TARGET: &str = "primary@01234567";

/// Source on n1, target on n2.
fn moving() -> World {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    let mut a = job("a");
    a.handover = true;
    w.call(Call::CreateJob(Box::new(a))).unwrap();
    w.running("a", "n1");
    let mut target = start_of("a", TARGET, "n2");
    target.defer_start = true;
    target.migration_id = Some("m1".into());
    w.call(Call::StartJob(target)).unwrap();
    w
}

fn get_state(id: &str) -> Call {
    Call::NotifyMigrationGetState {
        key: key("a", "primary"),
        migration_id: id.into(),
    }
}

fn ready(payload: impl Into<Payload>) -> Call {
    Call::NotifyMigrationCutoverReady {
        key: key("a", "primary"),
        migration_id: "m1".into(),
        payload: payload.into(),
    }
}

fn abort() -> Call {
    Call::AbortMigration {
        job_id: "a".into(),
        source_role: "primary".into(),
        target_role: TARGET.into(),
        reason: "r".into(),
        migration_id: "m1".into(),
    }
}

// spec: MGR-01, MGR-02, MGR-03, MGR-05, JOB-15
#[test]
fn steps_go_to_the_side_they_are_for_and_change_nothing() {
    let mut w = moving();
    let before = w.ledger.clone();
    w.call(get_state("m1")).unwrap();
    assert_eq!(w.last_orders(), ["n1: GetState a/primary"]);
    w.call(ready(vec![1])).unwrap();
    assert_eq!(w.last_orders(), ["n1: CutoverReady(<1 bytes>) a/primary"]);
    w.call(Call::NotifyMigrationCutoverApply {
        key: key("a", TARGET),
        migration_id: "m1".into(),
        payload: vec![2].into(),
    })
    .unwrap();
    assert_eq!(
        w.last_orders(),
        [format!("n2: CutoverApply(<1 bytes>) a/{TARGET}")]
    );
    assert_eq!(w.ledger, before);
    let (outcome, orders) = w.ledger.relay(&ready(vec![1])).unwrap();
    assert_eq!(outcome, Ok(Reply::Done));
    assert_eq!(
        order_word(&orders[0]),
        "n1: CutoverReady(<1 bytes>) a/primary"
    );
    assert!(w.ledger.relay(&abort()).is_none());
    assert!(w.call(ready(vec![0; 256 * 1024])).is_ok());
    assert_eq!(
        w.refused(ready(vec![0; 256 * 1024 + 1])).reason,
        "payload_too_large"
    );
}

// spec: MIGR-08, JOB-17
#[test]
fn the_state_of_a_source_goes_with_the_start_of_its_target_and_with_no_other() {
    let mut w = World::new();
    w.node("n2");
    let mut a = job("a");
    a.handover = true;
    w.call(Call::CreateJob(Box::new(a))).unwrap();
    w.create("plain");
    let with_state = |id: &str, migration_id: Option<&str>| {
        let mut start = start_of(id, TARGET, "n2");
        start.migration_id = migration_id.map(Into::into);
        start.migration_state = Some(b"stand-in".into());
        Call::StartJob(start)
    };
    assert_eq!(
        w.refused(with_state("plain", Some("m1"))).reason,
        "not_cooperative"
    );
    assert_eq!(w.refused(with_state("a", None)).reason, "missing_field");
    w.call(with_state("a", Some("m1"))).unwrap();
    let state = |w: &World| match &w.last.orders[..] {
        [
            Order::Worker {
                message: WorkerOrder::Provision(job),
                ..
            },
        ] => job.migration_state.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(state(&w), Some(b"stand-in".into()));
    // It is given again with the order.
    let start = w.live("a", TARGET).unwrap();
    let again = w.ledger.provision_order(&start).unwrap();
    w.last.orders = vec![again];
    assert_eq!(state(&w), Some(b"stand-in".into()));
}

// spec: MGR-12
#[test]
fn two_instances_of_one_job_are_addressed_each_by_its_own_key() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let source = w.running("a", "n1");
    w.call(Call::StartJob(start_of("a", TARGET, "n2"))).unwrap();
    let told = match &w.last.orders[..] {
        [
            Order::Worker {
                message: WorkerOrder::Provision(job),
                ..
            },
        ] => (job.instance.key.role.to_string(), job.runtime_role.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(told, (TARGET.to_owned(), "primary".to_owned()));
    let target = w.live("a", TARGET).unwrap();
    w.stop("a", "n1").unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 10000 UserRequested"]);
    assert_eq!(
        (w.instance_state(&source), w.instance_state(&target)),
        (
            Some(InstanceState::Stopping),
            Some(InstanceState::Provisioned)
        )
    );
}

// spec: MGR-07
#[test]
fn a_step_is_refused_rather_than_kept() {
    let mut w = moving();
    assert_eq!(w.refused(get_state("")).reason, "missing_field");
    let nobody = Call::NotifyMigrationGetState {
        key: key("a", "backup"),
        migration_id: "m1".into(),
    };
    assert_eq!(w.refused(nobody).reason, "no_instance");
    w.create("plain");
    w.running("plain", "n1");
    let plain = Call::NotifyMigrationGetState {
        key: key("plain", "primary"),
        migration_id: "m1".into(),
    };
    assert_eq!(w.refused(plain).reason, "not_cooperative");
    w.link("n1", Link::Dropped);
    let refusal = w.refused(ready(Payload::default()));
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::Unavailable, "node_unreachable")
    );
}

// spec: MGR-06
#[test]
fn an_abort_goes_to_whom_is_live_and_waits_for_whom_is_away() {
    let mut w = moving();
    let both = ["primary".to_owned(), TARGET.to_owned()];
    assert_eq!(w.call(abort()).unwrap(), Reply::Notified(both.to_vec()));
    assert_eq!(w.last.orders.len(), 2);
    w.link("n1", Link::Dropped);
    let told = w.call(abort()).unwrap();
    assert_eq!(told, Reply::Notified(vec![TARGET.to_owned()]));
    let start = w.live("a", "primary").unwrap();
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_orders()[0], "n1: Abort(\"r\") a/primary");
    w.link("n1", Link::Dropped);
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_orders(), ["n1: tags"], "sent once");
}

// spec: MGR-04, MGR-10, MGR-11
#[test]
fn a_repeated_signal_is_passed_on_once() {
    let mut w = moving();
    let signal = |id: &str, signal| Report::Migration {
        key: key("a", TARGET),
        migration_id: id.into(),
        signal,
    };
    let ready = MigrationSignal::TargetReady(vec![9].into());
    w.report("n2", signal("m1", ready.clone())).unwrap();
    assert_eq!(w.last_words(), ["migration TargetReady(<1 bytes>)"]);
    w.report("n2", signal("m1", ready.clone())).unwrap();
    assert!(w.last.changes.is_empty());
    w.report(
        "n2",
        signal("m1", MigrationSignal::TargetApplied(Payload::default())),
    )
    .unwrap();
    w.report("n2", signal("m2", ready)).unwrap();
    assert_eq!(w.last_words().len(), 1);
}

// spec: EVT-02
#[test]
fn a_snapshot_tells_how_far_a_handover_has_come_once_its_source_is_silent() {
    let mut w = moving();
    let told = |w: &World, minor| {
        let wish = Wish {
            client_protocol: minor,
            include: vec!["migration".into()],
            ..Wish::default()
        };
        let mut subscriber = Subscriber::new(wish).unwrap();
        let events = subscriber.snapshot(Now::default(), &w.ledger.standing(), Vec::new());
        let words = events.iter().map(|it| crate::common::event_word(&it.event));
        let mut words: Vec<String> = words.collect();
        words.pop();
        words
    };
    let says = |w: &mut World, node: &str, role: &str, id: &str, signal| {
        let report = Report::Migration {
            key: key("a", role),
            migration_id: id.into(),
            signal,
        };
        w.report(node, report).unwrap();
    };
    let stopped = || MigrationSignal::SourceStoppedOutput(vec![7].into());
    says(
        &mut w,
        "n2",
        TARGET,
        "m1",
        MigrationSignal::TargetReady(Payload::default()),
    );
    says(&mut w, "n1", "primary", "m0", stopped());
    assert!(told(&w, 10).is_empty(), "that was another one");
    says(&mut w, "n1", "primary", "m1", stopped());
    let silent = "migration SourceStoppedOutput(<0 bytes>)";
    assert_eq!(told(&w, 10), [silent], "without what the source said");
    says(
        &mut w,
        "n2",
        TARGET,
        "m1",
        MigrationSignal::TargetApplied(Payload::default()),
    );
    let applied = "migration TargetApplied(<0 bytes>)";
    assert_eq!(told(&w, 10), [silent, applied]);
    assert!(told(&w, 2).is_empty(), "a client that knows no migrations");
    w.call(Call::StopJob {
        key: key("a", "primary"),
        node_id: "n1".into(),
        grace_ms: None,
    })
    .unwrap();
    assert!(told(&w, 10).is_empty(), "the source is no longer to output");
}

// spec: HARDM-50
#[test]
fn a_target_that_goes_with_its_node_aborts_the_migration() {
    let mut w = moving();
    w.link("n2", Link::Dropped);
    w.link("n2", Link::GraceOver);
    let aborted = w
        .last_words()
        .iter()
        .any(|word| word.contains("Aborted") && word.contains("target"));
    assert!(aborted, "{:?}", w.last_words());
    let source = w.live("a", "primary").unwrap();
    assert_eq!(w.instance_state(&source), Some(InstanceState::Running));
}

fn found(w: &World, filters: &[JobFilter]) -> Vec<String> {
    w.ledger
        .search(filters)
        .unwrap()
        .iter()
        .map(|found| found.job.job.job_id.to_string())
        .collect()
}

fn tag(name: &str, comparison: TextComparison) -> JobFilter {
    JobFilter::Tag {
        name: name.into(),
        comparison: Some(comparison),
    }
}

// spec: JOB-28
#[test]
fn filters_are_combined_and_answers_are_in_order() {
    let mut w = World::new();
    for (id, colour, at) in [
        ("c", Some("red"), Some(10)),
        ("a", Some("green"), Some(20)),
        ("b", None, None),
    ] {
        let mut new = job(id);
        if let Some(colour) = colour {
            new.tags.insert("colour".into(), colour.into());
        }
        new.start_date_time = at.map(|ms| ZERO.plus(ms));
        w.call(Call::CreateJob(Box::new(new))).unwrap();
    }
    use TextComparison::{Eq, Exists, Neq, Re};
    assert_eq!(found(&w, &[]), ["a", "b", "c"]);
    assert_eq!(found(&w, &[tag("colour", Eq("red".into()))]), ["c"]);
    assert_eq!(found(&w, &[tag("colour", Neq("red".into()))]), ["a", "b"]);
    assert_eq!(found(&w, &[tag("colour", Exists(false))]), ["b"]);
    assert_eq!(
        found(&w, &[tag("colour", Re("^gr|ed$".into()))]),
        ["a", "c"]
    );
    assert_eq!(found(&w, &[JobFilter::Id(Some(Eq("b".into())))]), ["b"]);
    assert_eq!(
        found(&w, &[JobFilter::Id(Some(Re("[ab]".into())))]),
        ["a", "b"]
    );
    let start = |comparison| JobFilter::Start(Some(comparison));
    let (ten, twenty) = (ZERO.plus(10), ZERO.plus(20));
    assert_eq!(found(&w, &[start(DateComparison::Gt(ten))]), ["a"]);
    assert_eq!(found(&w, &[start(DateComparison::Gte(ten))]), ["a", "c"]);
    assert_eq!(found(&w, &[start(DateComparison::Lt(twenty))]), ["c"]);
    assert_eq!(
        found(&w, &[start(DateComparison::Within(ten, twenty))]),
        ["a", "c"]
    );
    let both = [tag("colour", Exists(true)), start(DateComparison::Eq(ten))];
    assert_eq!(found(&w, &both), ["c"]);
}

// spec: JOB-29
#[test]
fn faulty_filters_are_refused_with_their_place() {
    let w = World::new();
    let refused = |filter| w.ledger.search(&[filter]).unwrap_err();
    let bad = refused(tag("t", TextComparison::Re("ab(c".into())));
    assert_eq!(bad.reason, "bad_regex");
    assert_eq!(bad.details["position"], Detail::Int(2));
    for text in ["(?=x)", r"(a)\1", &"x".repeat(1025)] {
        let bad = refused(tag("t", TextComparison::Re(text.into())));
        assert_eq!(bad.reason, "bad_regex", "{text}");
    }
    for empty in [
        JobFilter::Id(None),
        JobFilter::Start(None),
        JobFilter::Tag {
            name: "t".into(),
            comparison: None,
        },
    ] {
        assert_eq!(refused(empty).reason, "empty_filter");
    }
}

// spec: WORK-04
#[test]
fn a_worker_of_the_published_protocol_is_asked_for_nothing_that_it_has_no_word_for() {
    let mut w = World::new();
    let token = w.slot("old");
    w.register_published(&token, "m1").unwrap();
    w.hello_as("old", Hello::default()).unwrap();
    w.node("n1");
    let mut a = job("a");
    a.handover = true;
    w.call(Call::CreateJob(Box::new(a))).unwrap();

    let target = |change: fn(&mut StartJob)| {
        let mut start = start_of("a", TARGET, "old");
        change(&mut start);
        Call::StartJob(start)
    };
    for call in [
        target(|start| start.defer_start = true),
        target(|start| start.migration_id = Some("m1".into())),
        Call::PrefetchImages {
            node_id: "old".into(),
            image_refs: vec!["a:1".into()],
        },
    ] {
        let refusal = w.refused(call.clone());
        assert_eq!(refusal.reason, "worker_too_old", "{call:?}");
        assert_eq!(refusal.status, Status::FailedPrecondition);
    }
    // A plain job runs there; it cannot be asked to hand over, and hears of no abort.
    w.running("a", "old");
    assert_eq!(w.refused(get_state("m1")).reason, "worker_too_old");
    assert_eq!(w.call(abort()).unwrap(), Reply::Notified(Vec::new()));
    assert!(w.last_orders().is_empty());
    // Which worker is old is known before it is heard: its node may still be starting.
    let token = w.slot("soon");
    w.register_published(&token, "m2").unwrap();
    w.create("b");
    let mut start = start_of("b", "primary", "soon");
    start.defer_start = true;
    assert_eq!(w.refused(Call::StartJob(start)).reason, "worker_too_old");
}
