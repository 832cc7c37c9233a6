//! What workers have and the record does not know: duplicates (MNODE-16), and what a restored record
//! lacks (STORE-11).

use crate::common::*;
use crate::nodes::{cloud, state};
use greenroom_ledger::{
    Command, Due, HelloInstance, Keeper, KeeperSettings, LeaseClock, Line, Link, Open, Refreshed,
    Report, Subject,
};
use greenroom_types::call::{Call, CallResult};
use greenroom_types::job::{JobState, LeasePolicy};
use greenroom_types::node::{InstanceState, NodeState, NodeStoppingReason};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, Mono, Now, StartId};

fn start_id(digit: char) -> StartId {
    digit.to_string().repeat(32).parse().unwrap()
}

/// A running instance of a job that the record may not know.
fn runs(job_id: &str, start: &StartId) -> HelloInstance {
    there(job_id, start, InstanceState::Running)
}

fn fenced(job_id: &str, start: &StartId, fence: u64) -> HelloInstance {
    HelloInstance {
        fence,
        ..runs(job_id, start)
    }
}

/// The store was replaced by an older copy, and the Manager opens it.
fn restore(w: &mut World, generation: u64) {
    w.apply(Command::Open(Open {
        epoch: format!("e{generation}"),
        renew: true,
        config: None,
        generation,
    }))
    .unwrap();
}

fn tick(w: &mut World, due: Due) {
    w.apply(Command::Tick(due)).unwrap();
}

fn adopt(w: &mut World, node: &str, job_id: &str, start: Option<&StartId>) -> CallResult {
    w.call(Call::AdoptInstance {
        node_id: node.into(),
        key: key(job_id, "primary"),
        start_id: start.cloned(),
    })
}

fn reason(result: CallResult) -> String {
    result.unwrap_err().reason
}

fn audited(w: &World, kind: &str) -> usize {
    let entries = w.ledger.audit().entries();
    entries.iter().filter(|entry| entry.kind == kind).count()
}

fn unrecorded(w: &World, node: &str) -> usize {
    w.ledger.node_info(&node.into()).unwrap().unrecorded.len()
}

/// A job that runs on `a`, of which `b` has another start.
fn split(w: &mut World) -> (StartId, StartId) {
    w.node("a");
    w.node("b");
    w.create("j");
    let held = w.running("j", "a");
    let other = start_id('f');
    w.hello("b", vec![runs("j", &other)]);
    (held, other)
}

// spec: MNODE-16
#[test]
fn of_two_nodes_that_run_one_key_the_one_with_the_held_start_goes_on() {
    let mut w = World::new();
    let (held, other) = split(&mut w);
    let stop = w.last_orders();
    assert!(
        stop.iter()
            .any(|it| it.starts_with("b: stop j/primary") || it.contains("b: stop")),
        "{stop:?}"
    );
    assert_eq!(audited(&w, "duplicate_instance"), 1);
    assert_eq!(w.live("j", "primary"), Some(held));
    w.hello("b", vec![runs("j", &other)]);
    assert_eq!(audited(&w, "duplicate_instance"), 1, "told once");
}

// spec: MNODE-16
#[test]
fn of_two_nodes_with_the_held_start_the_recorded_one_goes_on() {
    let mut w = World::new();
    w.node("a");
    w.node("b");
    w.create("j");
    let held = w.running("j", "a");
    w.hello("b", vec![runs("j", &held)]);
    assert!(w.last_orders().iter().any(|it| it.starts_with("b: stop")));
    assert_eq!(audited(&w, "duplicate_instance"), 1);
    w.hello("a", vec![runs("j", &held)]);
    assert!(!w.last_orders().iter().any(|it| it.contains("stop")));
    assert_eq!(w.live("j", "primary"), Some(held));
}

// spec: MNODE-16
#[test]
fn a_slot_that_goes_on_with_a_duplicate_is_cordoned_until_it_is_gone() {
    let mut w = World::new();
    let (_, other) = split(&mut w);
    let over = || Due::StrayOver {
        node_id: "b".into(),
        start_id: start_id('f'),
    };
    tick(&mut w, over());
    let told = w.last_events().into_iter().any(|event| {
        matches!(event, StreamEvent::NodeInventoryUpdated { inventory, .. } if inventory.cordoned)
    });
    assert!(told);
    let info = w.ledger.node_info(&"b".into()).unwrap();
    assert!(
        info.reason.starts_with("cordoned: it goes on running"),
        "{}",
        info.reason
    );
    assert_eq!(info.state, NodeState::Running);
    tick(&mut w, over());
    assert!(w.last.rows.is_empty(), "once");
    // A picture of its own does not lift it; the end of the duplicate does.
    let picture = || Report::Inventory(Box::default());
    w.report("b", picture()).unwrap();
    let cordoned = |w: &World| {
        w.ledger
            .node_info(&"b".into())
            .unwrap()
            .inventory
            .unwrap()
            .cordoned
    };
    assert!(cordoned(&w));
    w.stopped("b", "j", &other);
    w.report("b", picture()).unwrap();
    assert!(!cordoned(&w));
    assert_eq!(w.ledger.node_info(&"b".into()).unwrap().reason, "");
}

// spec: MNODE-16
#[test]
fn an_elastic_node_that_goes_on_with_a_duplicate_is_ended() {
    let mut w = World::new();
    w.node("a");
    cloud(&mut w, "c");
    w.create("j");
    w.running("j", "a");
    let other = start_id('f');
    w.hello("c", vec![runs("j", &other)]);
    let due = Due::StrayOver {
        node_id: "c".into(),
        start_id: other,
    };
    tick(&mut w, due);
    assert_eq!(state(&w, "c"), Some(NodeState::Stopping));
    let stopping = w.last_events().into_iter().find_map(|event| match event {
        StreamEvent::NodeStopping { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(stopping, Some(NodeStoppingReason::DuplicateJob));
    assert!(w.last_orders().contains(&"c: TerminateMachine".to_owned()));
}

// spec: MNODE-16
#[test]
fn what_runs_nowhere_else_or_has_ended_costs_no_node() {
    let mut w = World::new();
    let (held, other) = split(&mut w);
    let due = Due::StrayOver {
        node_id: "b".into(),
        start_id: other.clone(),
    };
    w.stop("j", "a").unwrap();
    w.stopped("a", "j", &held);
    tick(&mut w, due.clone());
    assert!(w.last.rows.is_empty(), "its key runs nowhere else");
    w.running("j", "a");
    w.hello("b", Vec::new());
    tick(&mut w, due);
    assert!(
        w.last.rows.is_empty(),
        "the hello does not name it any more"
    );
}

// spec: MNODE-16
#[test]
fn the_keeper_gives_a_duplicate_five_minutes_and_no_other_stray_an_end() {
    let mut w = World::new();
    let at = |ms: u64| Now {
        mono: Mono(ms),
        wall: ZERO,
    };
    let (held, other) = split(&mut w);
    let mut keeper = Keeper::new(KeeperSettings::default(), at(0), &w.ledger);
    w.hello("a", vec![runs("j", &held)]);
    w.hello("b", vec![runs("j", &other), runs("gone", &start_id('e'))]);
    for node in ["a", "b"] {
        keeper.line(at(0), &w.ledger, &node.into(), Line::Opened);
    }
    let ticks = |keeper: &mut Keeper, w: &World, ms: u64| {
        let commands = keeper.due(at(ms), &w.ledger).commands;
        let ticks = commands
            .into_iter()
            .filter(|it| matches!(it, Command::Tick(Due::StrayOver { .. })));
        ticks.collect::<Vec<_>>()
    };
    assert_eq!(ticks(&mut keeper, &w, 299_000), []);
    let due = ticks(&mut keeper, &w, 300_000);
    let expected = Command::Tick(Due::StrayOver {
        node_id: "b".into(),
        start_id: other,
    });
    assert_eq!(due, [expected]);
}

// spec: STORE-11, HARDM-35
#[test]
fn what_a_restored_record_does_not_know_is_kept_shown_and_not_started_again() {
    let mut w = World::new();
    w.node("a");
    w.node("b");
    w.create("j");
    restore(&mut w, 2);
    let found = start_id('f');
    w.hello(
        "a",
        vec![runs("j", &found), runs("unknown", &start_id('e'))],
    );
    assert!(
        !w.last_orders().iter().any(|it| it.contains("stop")),
        "{:?}",
        w.last_orders()
    );
    let info = w.ledger.node_info(&"a".into()).unwrap();
    assert_eq!(
        info.unrecorded,
        [key("unknown", "primary"), key("j", "primary")]
    );
    let refusal = w.start_as("j", "primary", "b").unwrap_err();
    assert_eq!(refusal.reason, "unrecorded_instance");
    assert_eq!(refusal.details["node"], "a".into());
    // News of it is no reason to stop it either.
    w.report(
        "a",
        Report::Started {
            instance: instance("j", "primary", &found),
            ports: Default::default(),
        },
    )
    .unwrap();
    assert!(!w.last_orders().iter().any(|it| it.contains("stop")));
    // Gone by itself: its key is free.
    w.stopped("a", "j", &found);
    assert_eq!(unrecorded(&w, "a"), 1);
    w.start_as("j", "primary", "b").unwrap();
}

// spec: STORE-11
#[test]
fn what_is_adopted_runs_on_under_its_start_and_the_rest_is_stopped_in_the_end() {
    let mut w = World::new();
    w.node("a");
    w.create("j");
    w.create("k");
    restore(&mut w, 2);
    let (j, k) = (start_id('f'), start_id('e'));
    w.hello("a", vec![runs("j", &j), runs("k", &k)]);
    assert_eq!(reason(adopt(&mut w, "x", "j", None)), "unknown_node");
    assert_eq!(reason(adopt(&mut w, "a", "j", Some(&k))), "no_instance");
    adopt(&mut w, "a", "j", None).unwrap();
    assert_eq!(w.live("j", "primary"), Some(j.clone()));
    assert_eq!(w.state("j"), Some(JobState::Active));
    assert_eq!(w.history("j"), ["created", "running"]);
    assert!(
        !w.last_orders()
            .iter()
            .any(|it| it.contains("stop") || it.contains("provision"))
    );
    assert_eq!(audited(&w, "adopt_instance"), 1);
    assert_eq!(
        reason(adopt(&mut w, "a", "j", None)),
        "no_instance",
        "it is in the record"
    );
    w.hello("a", vec![runs("j", &j), runs("k", &k)]);
    assert!(!w.last_orders().iter().any(|it| it.contains("stop")));

    tick(&mut w, Due::RestoreOver);
    assert_eq!(w.last_orders().len(), 1);
    assert!(
        w.last_orders()[0].starts_with("a: stop k"),
        "{:?}",
        w.last_orders()
    );
    assert_eq!(unrecorded(&w, "a"), 0);
    assert_eq!(w.instance_state(&j), Some(InstanceState::Running));
    w.hello("a", vec![runs("j", &j), runs("k", &k)]);
    assert!(
        w.last_orders().iter().any(|it| it.starts_with("a: stop k")),
        "as any other stray"
    );
    tick(&mut w, Due::RestoreOver);
    assert!(w.last.rows.is_empty());
}

// spec: STORE-11
#[test]
fn a_stray_of_a_node_that_is_given_up_holds_nothing_up() {
    let mut w = World::new();
    w.node("a");
    w.node("b");
    w.create("j");
    restore(&mut w, 2);
    w.hello("a", vec![runs("j", &start_id('f'))]);
    w.link("a", Link::Dropped);
    assert_eq!(
        reason(w.start_as("j", "primary", "b")),
        "unrecorded_instance"
    );
    w.link("a", Link::GraceOver);
    w.start_as("j", "primary", "b").unwrap();
    w.hello("a", vec![runs("j", &start_id('f'))]);
    assert_eq!(
        unrecorded(&w, "a"),
        1,
        "it may be the one that is on the air"
    );
}

// spec: STORE-11, LEASE-02
#[test]
fn a_leased_instance_that_the_record_lacks_keeps_its_lease_and_excludes_others() {
    let mut w = World::new();
    for node in ["a", "b"] {
        w.node(node);
    }
    let policy = LeasePolicy::default();
    let mut leased = job("j");
    leased.lease = Some(policy);
    w.call(Call::CreateJob(Box::new(leased))).unwrap();
    restore(&mut w, 2);
    let (first, second) = (start_id('f'), start_id('e'));
    w.hello("a", vec![fenced("j", &first, 7)]);
    assert!(!w.last_orders().iter().any(|it| it.contains("stop")));
    let lease = w.ledger.lease(&key("j", "primary")).unwrap();
    assert_eq!((lease.fence, lease.start_id.clone()), (7, first.clone()));
    // A second one that claims the same output is not let live.
    w.hello("b", vec![fenced("j", &second, 6)]);
    assert!(
        w.last_orders()
            .contains(&"b: stop j/primary 0 LeaseLost".to_owned()),
        "{:?}",
        w.last_orders()
    );

    let now = Now {
        mono: Mono(1),
        wall: ZERO,
    };
    let mut clock = LeaseClock::new(Millis(0), now, &w.ledger);
    let held = instance("j", "primary", &first);
    let refreshed = clock.refresh(now, &w.ledger, &"a".into(), &held, 7);
    assert_eq!(refreshed, Refreshed::For(policy.ttl_ms));
    adopt(&mut w, "a", "j", Some(&first)).unwrap();
    let refreshed = clock.refresh(now, &w.ledger, &"a".into(), &held, 7);
    assert_eq!(refreshed, Refreshed::For(policy.ttl_ms));
    assert_eq!(w.ledger.instance(&first).unwrap().fence, 7);
    // The next grant is above everything before the restore.
    w.stop("j", "a").unwrap();
    w.stopped("a", "j", &first);
    let next = w.start("j", "b");
    assert!(w.ledger.instance(&next).unwrap().fence > 2 << 32);
}

// spec: STORE-11
#[test]
fn a_leased_instance_that_nobody_adopts_is_waited_for_before_its_key_is_free() {
    let mut w = World::new();
    w.node("a");
    w.node("b");
    let mut leased = job("j");
    leased.lease = Some(LeasePolicy::default());
    w.call(Call::CreateJob(Box::new(leased))).unwrap();
    restore(&mut w, 2);
    let first = start_id('f');
    w.hello("a", vec![fenced("j", &first, 7)]);
    tick(&mut w, Due::RestoreOver);
    assert_eq!(reason(w.start_as("j", "primary", "b")), "lease_held");
    w.stopped("a", "j", &first);
    w.start_as("j", "primary", "b").unwrap();
}

// spec: STORE-11
#[test]
fn a_lease_whose_job_the_record_lacks_is_refreshed_while_it_is_kept() {
    let mut w = World::new();
    w.node("a");
    restore(&mut w, 2);
    let start = start_id('f');
    w.hello("a", vec![fenced("unknown", &start, 7)]);
    let now = Now {
        mono: Mono(1),
        wall: ZERO,
    };
    let mut clock = LeaseClock::new(Millis(0), now, &w.ledger);
    let held = instance("unknown", "primary", &start);
    let mut refresh = |w: &World| clock.refresh(now, &w.ledger, &"a".into(), &held, 7);
    assert!(matches!(refresh(&w), Refreshed::For(_)));
    tick(&mut w, Due::RestoreOver);
    assert_eq!(refresh(&w), Refreshed::Superseded);
}

// spec: STORE-11
#[test]
fn a_token_that_a_restored_record_lacks_is_no_reason_to_stop_anything() {
    let mut w = World::new();
    let status = |result: CallResult| {
        let refusal = result.unwrap_err();
        (refusal.status, refusal.reason)
    };
    restore(&mut w, 2);
    let refused = w.register("of a slot after the backup", "m");
    assert_eq!(
        status(refused),
        (
            greenroom_types::call::Status::Unavailable,
            "slot_unrecorded".to_owned()
        )
    );
    tick(&mut w, Due::RestoreOver);
    let refused = w.register("of a slot after the backup", "m");
    assert_eq!(
        status(refused),
        (
            greenroom_types::call::Status::Unauthenticated,
            "bad_token".to_owned()
        )
    );
}

// spec: STORE-11
#[test]
fn the_keeper_ends_the_time_after_a_restore_and_begins_it_anew_with_itself() {
    let mut w = World::new();
    restore(&mut w, 2);
    assert!(w.last.touched.contains(&Subject::Restore));
    let at = |ms: u64| Now {
        mono: Mono(ms),
        wall: ZERO,
    };
    let mut keeper = Keeper::new(KeeperSettings::default(), at(50), &w.ledger);
    assert_eq!(keeper.due(at(600_049), &w.ledger).commands, []);
    assert_eq!(
        keeper.due(at(600_050), &w.ledger).commands,
        [Command::Tick(Due::RestoreOver)]
    );
    tick(&mut w, Due::RestoreOver);
    keeper.observe(at(600_051), &w.ledger, &w.last.touched);
    assert_eq!(keeper.due(at(700_000), &w.ledger).commands, []);
}
