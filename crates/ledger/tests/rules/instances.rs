//! Rules about what workers report of instances, about stops, and about the history of both.

use crate::common::*;
use crate::jobs::reason;
use greenroom_ledger::{Config, Link, Report};
use greenroom_types::Millis;
use greenroom_types::call::{Call, Detail};
use greenroom_types::job::{JobState, StopReason};
use greenroom_types::node::{InstanceState, RejectionCode};

// spec: JOB-20, HARDM-11
#[test]
fn a_report_of_another_start_changes_nothing_and_is_stopped() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let old = w.start("a", "n1");
    w.failed("n1", "a", &old);
    w.stopped("n1", "a", &old);
    let new = w.start("a", "n1");
    let before = w.history("a");
    let late = instance("a", "primary", &old);
    w.report(
        "n1",
        Report::Started {
            instance: late,
            ports: Default::default(),
        },
    )
    .unwrap();
    assert_eq!(w.history("a"), before);
    assert!(w.last.changes.is_empty());
    assert!(w.last_orders()[0].starts_with("n1: stop a/primary 10000 UnknownJob"));
    assert_eq!(w.live("a", "primary"), Some(new.clone()));
    w.started("n1", "a", &new);
    assert_eq!(w.last_words(), ["job a"]);
    assert_eq!(w.instance_state(&new), Some(InstanceState::Running));
}

// spec: JOB-21, JOB-35
#[test]
fn a_failed_instance_frees_its_key_at_once() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let old = w.running("a", "n1");
    w.failed("n1", "a", &old);
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "running", "stopping"]
    );
    assert_eq!(w.state("a"), Some(JobState::Active));
    let new = w.start("a", "n2");
    assert_ne!(old, new);
    w.stopped("n1", "a", &old);
    assert_eq!(
        w.history("a")[4..],
        ["provisioned", "stopped"],
        "its own entries only"
    );
    assert_eq!(w.live("a", "primary"), Some(new));
}

// spec: JOB-35
#[test]
fn a_stop_by_request_holds_the_key_to_the_end() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let start = w.running("a", "n1");
    w.stop("a", "n1").unwrap();
    assert_eq!(
        w.start_as("a", "primary", "n2").unwrap_err().reason,
        "live_elsewhere"
    );
    let here = w.start_as("a", "primary", "n1").unwrap_err();
    assert_eq!(here.details["state"], Detail::from("stopping"));
    w.stopped("n1", "a", &start);
    w.start("a", "n2");
}

// spec: JOB-22
#[test]
fn a_rejection_tells_why_before_the_job() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start("a", "n1");
    w.report(
        "n1",
        Report::Rejected {
            instance: instance("a", "primary", &start),
            code: RejectionCode::HostPort,
            detail: "port 5000 is taken".into(),
            inventory: None,
        },
    )
    .unwrap();
    assert_eq!(w.last_words(), ["rejected a HostPort", "job a"]);
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "rejected", "stopping", "stopped"]
    );
    assert_eq!(w.state("a"), Some(JobState::Active));
    assert_eq!(w.live("a", "primary"), None);
}

// spec: JOB-23
#[test]
fn a_second_stop_shortens_and_never_lengthens() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.running("a", "n1");
    let stop = |grace| Call::StopJob {
        key: key("a", "primary"),
        node_id: "n1".into(),
        grace_ms: Some(Millis(grace)),
    };
    w.call(stop(20_000)).unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 20000 UserRequested"]);
    w.call(stop(30_000)).unwrap();
    assert!(w.last.orders.is_empty());
    w.pass(15_000);
    w.call(stop(10_000)).unwrap();
    assert!(w.last.orders.is_empty(), "5 s are left already");
    w.call(stop(0)).unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 0 UserRequested"]);
    assert_eq!(
        w.history("a").iter().filter(|e| **e == "stopping").count(),
        1
    );
    assert_eq!(w.refused(stop(600_001)).reason, "bad_value");
}

// spec: JOB-24
#[test]
fn a_deferred_start_is_prepared_and_then_run() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start_deferred("a", "n1");
    let go = Call::StartPreparedJob {
        key: key("a", "primary"),
        node_id: "n1".into(),
    };
    let early = w.refused(go.clone());
    assert_eq!(early.reason, "not_prepared");
    assert_eq!(early.details["state"], Detail::from("provisioned"));
    w.report(
        "n1",
        Report::Prepared {
            instance: instance("a", "primary", &start),
            ports: Default::default(),
        },
    )
    .unwrap();
    assert_eq!(w.last_words(), ["job a", "prepared a"]);
    w.call(go.clone()).unwrap();
    assert_eq!(w.last_orders(), ["n1: start prepared a/primary"]);
    w.started("n1", "a", &start);
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "prepared", "running"]
    );
    assert_eq!(w.refused(go).reason, "already_running");
}

// spec: JOB-25
#[test]
fn stopping_what_is_stopped_is_fine_and_what_was_never_there_is_not() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    assert_eq!(w.stop("a", "n1").unwrap_err().reason, "no_instance");
    let start = w.running("a", "n1");
    let elsewhere = w.stop("a", "n2").unwrap_err();
    assert_eq!(elsewhere.reason, "wrong_node");
    assert_eq!(elsewhere.details["node"], Detail::from("n1"));
    w.stop("a", "n1").unwrap();
    w.stopped("n1", "a", &start);
    w.stop("a", "n1").unwrap();
    assert!(w.last.changes.is_empty() && w.last.orders.is_empty());
}

// spec: JOB-34
#[test]
fn a_job_that_ends_by_itself_is_completed() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    let done = |start| Report::Stopped {
        instance: instance("a", "primary", start),
        completed: true,
    };
    w.report("n1", done(&start)).unwrap();
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "running", "stopped", "completed"]
    );
    assert_eq!(w.state("a"), Some(JobState::Post));

    let mut for_ever = job("a");
    for_ever.services[0].restart = greenroom_types::job::ServiceRestart::Always;
    w.call(Call::UpdateJob(Box::new(for_ever), 0)).unwrap();
    let start = w.running("a", "n1");
    w.report("n1", done(&start)).unwrap();
    assert_eq!(w.state("a"), Some(JobState::Active));
}

// spec: HIST-02, HARDM-26
#[test]
fn times_in_a_history_never_go_back() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.pass(-3_600_000);
    w.running("a", "n1");
    w.pass(10);
    w.stop("a", "n1").unwrap();
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert!(view.history.iter().all(|entry| entry.at == ZERO));
    w.pass(7_200_000);
    let mut new = job("a");
    new.description = "x".into();
    w.call(Call::UpdateJob(Box::new(new), 0)).unwrap();
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert!(view.history.last().unwrap().at > ZERO);
}

// spec: HIST-03
#[test]
fn later_tags_do_not_change_old_entries() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.running("a", "n1");
    w.call(Call::SetNodeTags {
        node_id: "n1".into(),
        tags: [("colour".to_owned(), "red".to_owned())].into(),
        remove: vec![],
        expected_revision: None,
    })
    .unwrap();
    w.stop("a", "n1").unwrap();
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    let tags: Vec<bool> = view
        .history
        .iter()
        .filter_map(|entry| Some(entry.kind.at()?.node.tags.contains_key("colour")))
        .collect();
    assert_eq!(tags, [false, false, true]);
}

// spec: HIST-05, HIST-01
#[test]
fn the_oldest_entries_go_but_the_creation_and_those_of_what_runs() {
    let mut w = World::with(Config {
        history_max_entries: 100,
        ..Config::default()
    });
    w.node("n1");
    w.create("a");
    w.running("a", "n1");
    for n in 0..150 {
        let mut new = job("a");
        new.description = n.to_string();
        w.call(Call::UpdateJob(Box::new(new), 0)).unwrap();
    }
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert_eq!(view.history.len(), 100);
    assert_eq!(view.dropped_entries, 53);
    assert_eq!(w.history("a")[..3], ["created", "provisioned", "running"]);
    let seqs: Vec<u64> = view.history.iter().map(|entry| entry.seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(seqs.last(), Some(&153));
}

// spec: HIST-07
#[test]
fn stops_have_the_reason_of_their_cause() {
    let mut w = World::new();
    for node in ["n1", "n2", "n3"] {
        w.node(node);
    }
    for id in ["a", "b", "c", "d"] {
        w.create(id);
    }
    w.running("a", "n1");
    w.link("n1", Link::Dropped);
    w.link("n1", Link::GraceOver);
    assert_eq!(reason(&w, "a"), Some(StopReason::NodeStopped));
    w.running("b", "n2");
    w.call(Call::TerminateNode("n2".into())).unwrap();
    assert_eq!(reason(&w, "b"), Some(StopReason::NodeTerminated));
    w.running("c", "n3");
    w.stop("c", "n3").unwrap();
    assert_eq!(reason(&w, "c"), Some(StopReason::UserRequested));
    let start = w.running("d", "n3");
    w.failed("n3", "d", &start);
    assert_eq!(reason(&w, "d"), Some(StopReason::JobFailed));
}

// spec: HARDM-10
#[test]
fn a_stop_and_a_failure_make_one_entry_each() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    w.stop("a", "n1").unwrap();
    w.failed("n1", "a", &start);
    w.stopped("n1", "a", &start);
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "running", "stopping", "stopped"]
    );
    assert_eq!(reason(&w, "a"), Some(StopReason::UserRequested));
}
