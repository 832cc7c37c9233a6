//! Rules about bundles: expansion, update, the delete saga, stop times, single jobs.

use crate::common::*;
use greenroom_ledger::{Command, Due, Link};
use greenroom_types::bundle::{Bundle, BundleState, StartMode};
use greenroom_types::call::{Call, Detail, Reply};
use greenroom_types::job::JobState;
use greenroom_types::node::InstanceState;
use greenroom_types::{JobId, Wall};

fn create(w: &mut World, bundle: Bundle) {
    w.call(Call::CreateBundle(Box::new(bundle))).unwrap();
}

fn update(w: &mut World, bundle: Bundle) -> Reply {
    w.call(update_call(bundle)).unwrap()
}

fn update_call(bundle: Bundle) -> Call {
    Call::UpdateBundle {
        bundle: Box::new(bundle),
        dry_run: false,
        clear_stop_time: false,
    }
}

fn job_of(w: &World, id: &str) -> greenroom_types::job::Job {
    w.ledger.job(&id.into()).unwrap().view.job.clone()
}

fn lists(reply: &Reply) -> [Vec<&str>; 5] {
    let Reply::BundleUpdated {
        created,
        changed,
        updated,
        removed,
        untouched,
        ..
    } = reply
    else {
        panic!("{reply:?}");
    };
    [created, changed, updated, removed, untouched]
        .map(|list| list.iter().map(JobId::as_str).collect())
}

// spec: BDL-01, BDL-03, BDL-04, BDL-07, BDL-23
#[test]
fn a_bundle_is_expanded_in_one_commit() {
    let mut w = World::new();
    let mut b = bundle("b", &["e", "p"], 2);
    b.tags.insert("show".into(), "bundle".into());
    b.tags.insert("day".into(), "mon".into());
    b.jobs[1].tags.insert("show".into(), "job".into());
    b.jobs[1].start_mode = StartMode::Manual;
    b.start_date_time = Some(ZERO.plus(1));
    b.jobs[0].start_date_time = Some(ZERO.plus(2));
    let reply = w.call(Call::CreateBundle(Box::new(b.clone()))).unwrap();
    let ids = ["b.0.e", "b.0.p", "b.1.e", "b.1.p"];
    assert_eq!(
        reply,
        Reply::BundleCreated {
            bundle_id: "b".into(),
            revision: 1,
            job_ids: ids.map(JobId::new).to_vec(),
        }
    );
    assert_eq!(
        w.last_words(),
        [
            "bundle b Live",
            "job b.0.e",
            "job b.0.p",
            "job b.1.e",
            "job b.1.p"
        ]
    );
    let job = job_of(&w, "b.1.p");
    for (key, value) in [
        ("bundleId", "b"),
        ("replicaIndex", "1"),
        ("jobName", "p"),
        ("show", "job"),
        ("day", "mon"),
        ("startMode", "manual"),
    ] {
        assert_eq!(job.tag(key), Some(value), "{key}");
    }
    assert_eq!(job.start_date_time, Some(ZERO.plus(1)));
    assert_eq!(job_of(&w, "b.0.e").start_date_time, Some(ZERO.plus(2)));
    assert_eq!(job_of(&w, "b.0.e").tag("startMode"), None);
    assert_eq!(job.auto_placement.unwrap().replica_index, 1);
    let known = w.refused(Call::CreateBundle(Box::new(b)));
    assert_eq!(known.reason, "bundle_exists");
    assert_eq!(known.details["state"], Detail::from("live"));
    let Reply::BundleCreated { bundle_id, .. } = w
        .call(Call::CreateBundle(Box::new(bundle("", &["e"], 1))))
        .unwrap()
    else {
        panic!();
    };
    assert!(
        bundle_id
            .as_str()
            .parse::<greenroom_types::BundleId>()
            .is_ok()
    );
}

// spec: BDL-02, BDL-06
#[test]
fn a_bundle_out_of_form_is_refused_with_every_problem() {
    let mut w = World::new();
    let mut b = bundle("B!", &["e", "e", "x"], 1);
    b.jobs[0].co_locate_with = vec!["e".into(), "nobody".into()];
    b.jobs[2].co_locate_with = vec!["e".into()];
    b.jobs[2].separate_from = vec!["e".into()];
    b.jobs[2].requirements.required_capacity = -1.0;
    b.jobs[2].requirements.required_host_ports = vec!["99999/tcp".into()];
    let refusal = w.refused(Call::CreateBundle(Box::new(b)));
    assert_eq!(refusal.reason, "bad_bundle");
    let all = format!("{:?}", refusal.details["problems"]);
    for part in [
        "bundle_id",
        "used twice",
        "cannot name itself",
        "is not in this bundle",
        "is in co_locate_with, too",
        "required_capacity",
        "required_host_ports[0]",
    ] {
        assert!(all.contains(part), "{part} in {all}");
    }
    assert_eq!(
        w.refused(Call::CreateBundle(Box::new(bundle("b", &[], 1))))
            .reason,
        "bad_bundle"
    );
    let many: Vec<String> = (0..65).map(|n| format!("j{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        w.refused(Call::CreateBundle(Box::new(bundle("b", &many, 1))))
            .reason,
        "bad_bundle"
    );
}

// spec: BDL-05
#[test]
fn parameters_are_filled_in_and_the_backup_has_its_own() {
    let mut w = World::new();
    let mut b = bundle("b", &["e"], 2);
    let launch = &mut b.jobs[0].launch;
    launch.parameters = [("PORT".to_owned(), "1".to_owned())].into();
    launch.services[0].command = "run --port {{PORT}} {{{{x".into();
    launch.services[0].configuration = "c{{PORT}}".into();
    launch.services[0].parameters.environment = vec![("P".into(), "{{PORT}}".into())];
    launch.volumes = vec!["vol-{{PORT}}".into()];
    b.backup_parameter_overrides = [("PORT".to_owned(), "2".to_owned())].into();
    create(&mut w, b.clone());
    let service = |w: &World, id: &str| job_of(w, id).services[0].clone();
    assert_eq!(service(&w, "b.0.e").command, "run --port 1 {{x");
    assert_eq!(service(&w, "b.1.e").command, "run --port 2 {{x");
    assert_eq!(service(&w, "b.1.e").configuration, "c2");
    assert_eq!(service(&w, "b.1.e").parameters.environment[0].1, "2");
    assert_eq!(job_of(&w, "b.1.e").volumes, ["vol-2"]);
    b.bundle_id = "c".into();
    b.jobs[0].launch.services[0].command = "{{NOPE}}".into();
    let refusal = w.refused(Call::CreateBundle(Box::new(b)));
    assert_eq!(refusal.reason, "unknown_parameter");
    assert_eq!(
        refusal.details["path"],
        Detail::from("jobs[0].services[0].command")
    );
}

// spec: BDL-15, BDL-22
#[test]
fn bundles_have_limits() {
    let mut w = World::new();
    let mut b = bundle("b", &["e"], 1);
    b.jobs[0].launch.services[0].command = "x".repeat(300 * 1024);
    assert_eq!(
        w.refused(Call::CreateBundle(Box::new(b.clone()))).reason,
        "too_large"
    );
    b.jobs[0].launch.services[0].command = "x".into();
    b.description = "x".repeat(1024 * 1024);
    assert_eq!(
        w.refused(Call::CreateBundle(Box::new(b))).reason,
        "too_large"
    );

    let mut config = greenroom_ledger::Config::default();
    config.limits.bundles = 1;
    config.limits.jobs = 2;
    let mut w = World::with(config);
    create(&mut w, bundle("a", &["e"], 1));
    let refused = |w: &mut World, b| w.refused(Call::CreateBundle(Box::new(b))).reason;
    assert_eq!(refused(&mut w, bundle("b", &["e"], 1)), "too_many_bundles");
    let call = update_call(bundle("a", &["e", "f", "g"], 1));
    assert_eq!(w.refused(call).reason, "too_many_jobs");
}

// spec: BDL-08, BDL-09, BDL-11
#[test]
fn an_update_touches_only_what_changed() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["same", "launch", "words", "gone"], 1));
    for id in ["b.0.same", "b.0.launch", "b.0.words", "b.0.gone"] {
        w.running(id, "n1");
    }
    let mut next = bundle("b", &["same", "launch", "words", "new"], 1);
    next.jobs[1].launch.services[0].command = "other".into();
    next.jobs[2].description = "words".into();
    let expected = [
        vec!["b.0.new"],
        vec!["b.0.launch"],
        vec!["b.0.words"],
        vec!["b.0.gone"],
        vec!["b.0.same"],
    ];
    let before = w.ledger.clone();
    let dry = w
        .call(Call::UpdateBundle {
            bundle: Box::new(next.clone()),
            dry_run: true,
            clear_stop_time: false,
        })
        .unwrap();
    assert_eq!(lists(&dry), expected);
    assert_eq!(w.ledger, before);
    let reply = update(&mut w, next.clone());
    assert_eq!(lists(&reply), expected);
    assert_eq!(
        w.last_words(),
        [
            "bundle b Live",
            "job b.0.launch",
            "job b.0.words",
            "job b.0.new",
            "job b.0.gone"
        ]
    );
    let orders = w.last_orders();
    assert!(orders.contains(&"n1: stop b.0.launch/primary 10000 BundleChanged".to_owned()));
    assert!(orders.contains(&"n1: update b.0.words/primary".to_owned()));
    assert!(orders.contains(&"n1: stop b.0.gone/primary 10000 UserRequested".to_owned()));
    assert_eq!(orders.len(), 3);
    let start = w.live("b.0.launch", "primary").unwrap();
    w.stopped("n1", "b.0.launch", &start);
    assert_eq!(w.state("b.0.launch"), Some(JobState::Pre));
    let start = w.live("b.0.gone", "primary").unwrap();
    w.stopped("n1", "b.0.gone", &start);
    assert_eq!(w.last_words(), ["job gone b.0.gone"]);
    // The same again leaves the jobs alone.
    let reply = update(&mut w, next.clone());
    assert_eq!(lists(&reply)[4].len(), 4);
    assert_eq!(w.last_words(), ["bundle b Live"]);
    next.revision = 1;
    let stale = w.refused(update_call(next));
    assert_eq!(stale.reason, "revision_mismatch");
    assert_eq!(stale.details["actual"], Detail::Int(3));
    assert_eq!(
        w.refused(update_call(bundle("x", &["e"], 1))).reason,
        "unknown_bundle"
    );
}

// spec: BDL-10
#[test]
fn an_update_clears_verdicts_and_keeps_dormancy() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e", "p"], 1));
    w.call(Call::MarkJobFailed {
        job_id: "b.0.e".into(),
        reason: "r".into(),
    })
    .unwrap();
    w.call(Call::StopBundleJob {
        bundle_id: "b".into(),
        replica_index: 0,
        job_name: "p".into(),
        grace_ms: None,
    })
    .unwrap();
    let reply = update(&mut w, bundle("b", &["e", "p"], 1));
    assert_eq!(lists(&reply)[2], ["b.0.e"]);
    assert_eq!(w.state("b.0.e"), Some(JobState::Pre));
    let view = w.ledger.job(&"b.0.e".into()).unwrap().view.clone();
    assert_eq!(view.terminal_state, None);
    assert!(job_of(&w, "b.0.p").is_dormant());
    // Only a change of the mode itself decides.
    let mut manual = bundle("b", &["e", "p"], 1);
    manual.jobs[1].start_mode = StartMode::Manual;
    update(&mut w, manual);
    assert!(job_of(&w, "b.0.p").is_dormant());
    update(&mut w, bundle("b", &["e", "p"], 1));
    assert!(!job_of(&w, "b.0.p").is_dormant());
}

fn single(start: bool) -> Call {
    let (bundle_id, job_name) = ("b".into(), "e".into());
    if start {
        Call::StartBundleJob {
            bundle_id,
            replica_index: 0,
            job_name,
        }
    } else {
        Call::StopBundleJob {
            bundle_id,
            replica_index: 0,
            job_name,
            grace_ms: None,
        }
    }
}

// spec: BDL-12
#[test]
fn a_dormant_job_is_woken_and_loses_its_verdict() {
    let mut w = World::new();
    let mut b = bundle("b", &["e"], 1);
    b.jobs[0].start_mode = StartMode::Manual;
    create(&mut w, b);
    assert_eq!(
        w.call(single(true)).unwrap(),
        Reply::BundleJob("b.0.e".into())
    );
    assert_eq!(w.last_words(), ["job b.0.e"]);
    assert!(!job_of(&w, "b.0.e").is_dormant());
    w.call(single(true)).unwrap();
    assert!(w.last.changes.is_empty());
    w.call(Call::MarkJobFailed {
        job_id: "b.0.e".into(),
        reason: "r".into(),
    })
    .unwrap();
    w.call(single(true)).unwrap();
    assert_eq!(w.state("b.0.e"), Some(JobState::Pre));
    let other = |replica_index, job_name: &str, bundle_id: &str| Call::StartBundleJob {
        bundle_id: bundle_id.into(),
        replica_index,
        job_name: job_name.into(),
    };
    assert_eq!(w.refused(other(0, "e", "x")).reason, "unknown_bundle");
    assert_eq!(w.refused(other(1, "e", "b")).reason, "unknown_bundle_job");
    assert_eq!(w.refused(other(0, "x", "b")).reason, "unknown_bundle_job");
}

// spec: BDL-13, BDL-14, HARDM-21
#[test]
fn stopping_a_bundle_job_and_starting_it_cross_either_way() {
    // Start first: it is stopped too.
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e"], 1));
    let start = w.start("b.0.e", "n1");
    w.call(single(false)).unwrap();
    assert!(job_of(&w, "b.0.e").is_dormant());
    assert_eq!(w.last_words(), ["job b.0.e"]);
    assert_eq!(
        w.last_orders(),
        ["n1: stop b.0.e/primary 10000 UserRequested"]
    );
    // Stamp and stop are one commit, so a restart in between finds both.
    w.ledger = w.reload();
    w.link("n1", Link::Dropped);
    w.hello("n1", vec![there("b.0.e", &start, InstanceState::Running)]);
    assert_eq!(
        w.last_orders()[0],
        "n1: stop b.0.e/primary 10000 UserRequested"
    );
    w.stopped("n1", "b.0.e", &start);
    assert_eq!(w.live("b.0.e", "primary"), None);
    // Stop first: the start is refused.
    assert_eq!(
        w.start_as("b.0.e", "primary", "n1").unwrap_err().reason,
        "job_dormant"
    );
    w.call(single(false)).unwrap();
    assert!(w.last.changes.is_empty());
}

// spec: BDL-16, BDL-18
#[test]
fn a_delete_stops_all_at_once_and_goes_with_the_last_job() {
    let mut w = World::new();
    w.node("n1");
    w.slot("n2");
    w.dial_in("n2", "m").unwrap();
    create(&mut w, bundle("b", &["held", "idle", "runs"], 1));
    w.start("b.0.held", "n2");
    let start = w.running("b.0.runs", "n1");
    w.call(Call::DeleteBundle("b".into())).unwrap();
    assert_eq!(
        w.last_words(),
        [
            "bundle b Deleting",
            "job gone b.0.held",
            "job gone b.0.idle",
            "job b.0.runs"
        ]
    );
    assert_eq!(
        w.start_as("b.0.runs", "backup", "n1").unwrap_err().reason,
        "deleting"
    );
    assert_eq!(w.refused(single(true)).reason, "unknown_bundle_job");
    w.call(Call::DeleteBundle("b".into())).unwrap();
    assert!(w.last.changes.is_empty());
    let again = w.refused(Call::CreateBundle(Box::new(bundle("b", &["x"], 1))));
    assert_eq!(again.details["state"], Detail::from("deleting"));
    w.stopped("n1", "b.0.runs", &start);
    assert_eq!(w.last_words(), ["job gone b.0.runs", "bundle gone b"]);
    assert_eq!(
        w.refused(Call::DeleteBundle("b".into())).reason,
        "unknown_bundle"
    );
}

// spec: BDL-17, HARDM-19
#[test]
fn the_saga_goes_on_after_a_restart_and_stops_nothing_twice() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e", "p"], 1));
    let e = w.running("b.0.e", "n1");
    let p = w.running("b.0.p", "n1");
    w.call(Call::DeleteBundle("b".into())).unwrap();
    w.stopped("n1", "b.0.e", &e);
    w.ledger = w.reload();
    w.link("n1", Link::Dropped);
    w.hello("n1", vec![there("b.0.p", &p, InstanceState::Running)]);
    let stops: Vec<_> = w
        .last_orders()
        .into_iter()
        .filter(|order| order.contains("stop"))
        .collect();
    assert_eq!(stops, ["n1: stop b.0.p/primary 10000 UserRequested"]);
    w.stopped("n1", "b.0.p", &p);
    let gone = w
        .events
        .iter()
        .filter(|event| event_word(event) == "bundle gone b")
        .count();
    assert_eq!(gone, 1);
}

// spec: BDL-19, HARDM-20
#[test]
fn what_cannot_be_reached_is_buried_and_stopped_when_it_returns() {
    for given_up in [false, true] {
        let mut w = World::new();
        w.node("n1");
        create(&mut w, bundle("b", &["e"], 1));
        let start = w.running("b.0.e", "n1");
        w.link("n1", Link::Dropped);
        if given_up {
            w.link("n1", Link::GraceOver);
            w.link("n1", Link::KeepaliveOver);
        }
        w.call(Call::DeleteBundle("b".into())).unwrap();
        assert!(w.ledger.bundle(&"b".into()).is_some());
        w.apply(Command::Tick(Due::UnreachableOver(start.clone())))
            .unwrap();
        assert_eq!(w.last_words(), ["job gone b.0.e", "bundle gone b"]);
        assert!(w.ledger.is_buried(&start));
        w.pass(24 * 3_600_000);
        w.hello("n1", vec![there("b.0.e", &start, InstanceState::Running)]);
        assert_eq!(
            w.last_orders()[0],
            "n1: stop b.0.e/primary 10000 UnknownJob"
        );
    }
    // Remembered for 30 days, then forgotten with the next burial.
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.create("b");
    let a = w.running("a", "n1");
    w.failed("n1", "a", &a);
    w.call(Call::DeleteJob("a".into())).unwrap();
    assert!(w.ledger.is_buried(&a));
    w.pass(31 * 24 * 3_600_000);
    let b = w.running("b", "n1");
    w.failed("n1", "b", &b);
    w.call(Call::DeleteJob("b".into())).unwrap();
    assert!(!w.ledger.is_buried(&a) && w.ledger.is_buried(&b));
}

// spec: BDL-20, HARDM-18
#[test]
fn an_update_in_the_middle_of_the_saga_revives() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["idle", "runs"], 1));
    let start = w.running("b.0.runs", "n1");
    w.call(Call::DeleteBundle("b".into())).unwrap();
    assert_eq!(w.state("b.0.idle"), None);
    let reply = update(&mut w, bundle("b", &["idle", "runs"], 1));
    assert_eq!(lists(&reply)[0], ["b.0.idle"]);
    assert_eq!(lists(&reply)[1], ["b.0.runs"]);
    assert_eq!(
        w.last_words(),
        ["bundle b Live", "job b.0.idle", "job b.0.runs"]
    );
    assert_eq!(w.history("b.0.idle"), ["created"], "a new history");
    w.stopped("n1", "b.0.runs", &start);
    assert_eq!(w.state("b.0.runs"), Some(JobState::Pre));
    assert_eq!(w.last_words(), ["job b.0.runs"]);
    let status = w.ledger.bundle(&"b".into()).unwrap();
    assert_eq!(status.bundle.state, BundleState::Live);
    assert_eq!(status.jobs.len(), 2);
    w.start("b.0.runs", "n1");
}

// spec: BDL-09, MNODE-13
#[test]
fn a_lost_instance_of_changed_content_is_not_taken_back() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e"], 1));
    let start = w.running("b.0.e", "n1");
    w.link("n1", Link::Dropped);
    w.link("n1", Link::GraceOver);
    let mut next = bundle("b", &["e"], 1);
    next.jobs[0].launch.services[0].command = "other".into();
    update(&mut w, next);
    assert_eq!(w.state("b.0.e"), Some(JobState::Pre));
    w.hello("n1", vec![there("b.0.e", &start, InstanceState::Running)]);
    assert!(w.last_orders()[0].starts_with("n1: stop b.0.e/primary 10000"));
    assert_eq!(w.state("b.0.e"), Some(JobState::Pre));
    assert_eq!(w.live("b.0.e", "primary"), None);
}

// spec: BDL-21
#[test]
fn a_bundle_is_shown_with_its_jobs() {
    let mut w = World::new();
    let mut b = bundle("b", &["e", "p"], 1);
    b.jobs[1].start_mode = StartMode::Manual;
    create(&mut w, b);
    w.call(Call::MarkJobFailed {
        job_id: "b.0.e".into(),
        reason: "r".into(),
    })
    .unwrap();
    let status = w.ledger.bundle(&"b".into()).unwrap();
    let jobs: Vec<_> = status
        .jobs
        .iter()
        .map(|job| {
            (
                job.job_id.as_str(),
                job.dormant,
                job.terminal_state.is_some(),
            )
        })
        .collect();
    assert_eq!(jobs, [("b.0.e", false, true), ("b.0.p", true, false)]);
}

fn stop_at(at: Option<Wall>) -> Call {
    Call::SetBundleStopTime {
        bundle_id: "b".into(),
        stop_at: at,
    }
}

// spec: BSTOP-01, BSTOP-02, BSTOP-04, BSTOP-05
#[test]
fn a_stop_time_begins_the_saga_unless_it_was_moved() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e"], 1));
    let start = w.running("b.0.e", "n1");
    let (soon, later) = (ZERO.plus(1_000), ZERO.plus(9_000));
    w.call(stop_at(Some(soon))).unwrap();
    assert_eq!(w.last_words(), ["bundle b Live"]);
    assert_eq!(w.ledger.bundle(&"b".into()).unwrap().bundle.revision, 1);
    w.call(stop_at(Some(later))).unwrap();
    let due = |stop_at| {
        Command::Tick(Due::BundleStop {
            bundle_id: "b".into(),
            stop_at,
        })
    };
    w.apply(due(soon)).unwrap();
    assert!(w.last.changes.is_empty(), "it was moved meanwhile");
    // An update without a stop time keeps it; clearing clears.
    update(&mut w, bundle("b", &["e"], 1));
    assert_eq!(
        w.ledger.bundle(&"b".into()).unwrap().bundle.stop_at,
        Some(later)
    );
    w.call(Call::UpdateBundle {
        bundle: Box::new(bundle("b", &["e"], 1)),
        dry_run: false,
        clear_stop_time: true,
    })
    .unwrap();
    assert_eq!(w.ledger.bundle(&"b".into()).unwrap().bundle.stop_at, None);
    w.call(stop_at(Some(later))).unwrap();
    w.apply(due(later)).unwrap();
    assert_eq!(w.last_words(), ["bundle b Deleting", "job b.0.e"]);
    assert_eq!(w.refused(stop_at(None)).reason, "deleting");
    w.stopped("n1", "b.0.e", &start);
    assert_eq!(w.refused(stop_at(None)).reason, "unknown_bundle");
}

// spec: FAIL-04
#[test]
fn a_verdict_touches_no_other_job_of_the_bundle() {
    let mut w = World::new();
    w.node("n1");
    create(&mut w, bundle("b", &["e", "p"], 1));
    w.running("b.0.p", "n1");
    w.call(Call::MarkJobFailed {
        job_id: "b.0.e".into(),
        reason: "r".into(),
    })
    .unwrap();
    assert_eq!(w.last_words(), ["job b.0.e"]);
    assert!(w.live("b.0.p", "primary").is_some());
}
