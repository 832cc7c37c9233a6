//! Elastic nodes that are empty for too long: ledger and keeper together, in virtual time.

use greenroom_ledger::{Config, Link, Provider, Report};
use greenroom_types::call::{Call, Refusal, Status};
use greenroom_types::node::{InterruptionKind, NodeState};
use greenroom_types::stream::{PrefetchResult, StreamEvent};
use greenroom_types::{Millis, Wall};

use crate::common::World;
use crate::keeper::Kept;
use crate::nodes::cloud;

const MINUTE: u64 = 60_000;

fn set(node: &str, ms: u64) -> Call {
    Call::SetNodeIdleExpiry {
        node_id: node.into(),
        idle_expiry_ms: Millis(ms),
    }
}

fn world(idle_expiry_ms: u64) -> World {
    World::with(Config {
        providers: [(Provider::Aws, ["eu".to_owned()].into())].into(),
        idle_expiry_ms: Millis(idle_expiry_ms),
        ..Config::default()
    })
}

/// A keeper past its first minute, and an EC2 node that has just started.
fn started(idle_expiry_ms: u64) -> Kept {
    let mut k = Kept::new(world(idle_expiry_ms));
    k.pass(MINUTE);
    k.w.now = k.now().wall;
    cloud(&mut k.w, "c1");
    k.seen();
    k
}

fn state(k: &Kept) -> Option<NodeState> {
    k.node_state("c1")
}

fn tags(k: &mut Kept, pairs: &[(&str, &str)], remove: &[&str]) {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    k.call(Call::SetNodeTags {
        node_id: "c1".into(),
        tags: pairs.iter().map(pair).collect(),
        remove: remove.iter().map(|key| (*key).to_owned()).collect(),
        expected_revision: None,
    });
}

// spec: IDLE-01, IDLE-04
#[test]
fn an_elastic_node_that_stays_empty_is_ended() {
    let mut k = started(10 * MINUTE);
    k.pass(10 * MINUTE - 1);
    assert_eq!(state(&k), Some(NodeState::Running));
    k.pass(1);
    assert_eq!(state(&k), Some(NodeState::Stopping));
    let told = k.w.events.iter().rev().find_map(|event| match event {
        StreamEvent::NodeStopping { reason, detail, .. } => Some((format!("{reason:?}"), detail)),
        _ => None,
    });
    assert_eq!(
        told,
        Some(("UserRequested".to_owned(), &"idle_expired".to_owned()))
    );

    // 0, the default, is for ever.
    let mut k = started(0);
    k.pass(1_000 * MINUTE);
    assert_eq!(state(&k), Some(NodeState::Running));
}

// spec: IDLE-04
#[test]
fn the_empty_time_begins_with_the_last_stop_edit_or_prefetch() {
    let mut k = started(10 * MINUTE);
    k.w.create("a");
    k.pass(9 * MINUTE);
    let start = k.start("a", "c1");
    k.w.started("c1", "a", &start);
    k.seen();
    k.pass(60 * MINUTE);
    assert_eq!(
        state(&k),
        Some(NodeState::Running),
        "not while a job is there"
    );
    k.w.stop("a", "c1").unwrap();
    k.w.stopped("c1", "a", &start);
    k.seen();
    k.pass(9 * MINUTE);

    tags(&mut k, &[("rack", "b4")], &[]);
    k.pass(9 * MINUTE);
    tags(&mut k, &[("rack", "b4")], &[]);
    k.pass(MINUTE - 1);
    assert_eq!(state(&k), Some(NodeState::Running));

    // An edit of the override, also one that changes nothing.
    k.call(set("c1", 10 * MINUTE));
    k.pass(9 * MINUTE);
    k.call(Call::PrefetchImages {
        node_id: "c1".into(),
        image_refs: vec!["a:1".to_owned()],
    });
    k.pass(60 * MINUTE);
    assert_eq!(state(&k), Some(NodeState::Running), "not while it pulls");
    let batch_id = k.w.ledger.node(&"c1".into()).unwrap().batches.keys().next();
    let batch_id = batch_id.unwrap().clone();
    let results = vec![PrefetchResult {
        image_ref: "a:1".to_owned(),
        ok: true,
        error: String::new(),
        text: String::new(),
    }];
    k.w.report("c1", Report::ImagesPrefetched { batch_id, results })
        .unwrap();
    k.seen();
    k.pass(10 * MINUTE - 1);
    assert_eq!(state(&k), Some(NodeState::Running));
    k.pass(1);
    assert_eq!(state(&k), Some(NodeState::Stopping));
}

// spec: IDLE-02, IDLE-03
#[test]
fn one_node_may_have_its_own_value_which_is_durable() {
    let mut w = world(10 * MINUTE);
    cloud(&mut w, "c1");
    w.node("n1");
    let refused = |w: &mut World, call: Call| -> (Status, String) {
        let Refusal { status, reason, .. } = w.refused(call);
        (status, reason)
    };
    for bad in [1, 999, 2_592_000_001] {
        let told = refused(&mut w, set("c1", bad));
        assert_eq!(
            told,
            (Status::InvalidArgument, "bad_idle_expiry".to_owned())
        );
    }
    let told = refused(&mut w, set("n1", 1_000));
    assert_eq!(told, (Status::FailedPrecondition, "not_elastic".to_owned()));
    let told = refused(&mut w, set("none", 1_000));
    assert_eq!(told, (Status::NotFound, "unknown_node".to_owned()));

    let shown = |w: &World| {
        let ledger = w.reload();
        let node = ledger.node(&"c1".into()).unwrap();
        let info = ledger.node_info(&"c1".into()).unwrap();
        (
            node.idle_expiry_ms,
            ledger.idle_expiry(node),
            info.idle_expiry_ms,
        )
    };
    let all = Millis(10 * MINUTE);
    assert_eq!(shown(&w), (None, Some(all), all.0));
    w.call(set("c1", 1_000)).unwrap();
    assert_eq!(shown(&w), (Some(Millis(1_000)), Some(Millis(1_000)), 1_000));
    w.call(set("c1", 0)).unwrap();
    assert_eq!(shown(&w), (None, Some(all), all.0));
    let owned = w.ledger.node(&"n1".into()).unwrap();
    assert_eq!(w.ledger.idle_expiry(owned), None);
}

// spec: IDLE-07
#[test]
fn what_is_kept_for_a_reason_is_not_reaped() {
    // A spare.
    let mut k = started(0);
    k.w.call(Call::TerminateNode("c1".into())).unwrap();
    let mut spare = crate::nodes::aws("c2");
    if let Call::CreateAwsNode(node) = &mut spare {
        node.tags.insert("spare".to_owned(), "true".to_owned());
    }
    k.call(spare);
    k.w.finding("c2", crate::nodes::runs("eu-1a"));
    k.w.hello("c2", Vec::new());
    k.seen();
    k.call(set("c2", MINUTE));
    k.pass(60 * MINUTE);
    assert_eq!(k.node_state("c2"), Some(NodeState::Running));

    // One with a notice, until it is withdrawn.
    let mut k = started(MINUTE);
    let notice = Report::Notice {
        kind: InterruptionKind::Rebalance,
        deadline: None,
        seen_at: Wall(1),
    };
    k.w.report("c1", notice).unwrap();
    k.seen();
    k.pass(60 * MINUTE);
    assert_eq!(state(&k), Some(NodeState::Running));
    tags(&mut k, &[], &["interruption"]);
    k.pass(MINUTE);
    assert_eq!(state(&k), Some(NodeState::Stopping));

    // One that is out of reach has no empty time, and another one when it is back.
    let mut k = started(10_000);
    k.pass(9_000);
    k.link("c1", Link::Dropped);
    k.pass(2_000);
    assert_eq!(state(&k), Some(NodeState::Unreachable));
    k.w.hello("c1", Vec::new());
    k.seen();
    k.pass(9_999);
    assert_eq!(state(&k), Some(NodeState::Running));
    k.pass(1);
    assert_eq!(state(&k), Some(NodeState::Stopping));

    // An owned server.
    let mut k = Kept::new(world(MINUTE));
    k.w.node("n1");
    k.seen();
    k.pass(60 * MINUTE);
    assert_eq!(k.node_state("n1"), Some(NodeState::Running));
}

// spec: IDLE-06, HARDM-24
#[test]
fn a_start_and_the_end_of_the_empty_time_have_one_order() {
    let expired = |mark| {
        greenroom_ledger::Command::Tick(greenroom_ledger::Due::Idle {
            node_id: "c1".into(),
            mark,
        })
    };
    let mark = |w: &World| w.ledger.node(&"c1".into()).unwrap().idle_mark;
    // The start first: the node stays.
    let mut w = world(MINUTE);
    cloud(&mut w, "c1");
    w.create("a");
    let before = mark(&w);
    w.start("a", "c1");
    w.apply(expired(before)).unwrap();
    w.apply(expired(mark(&w))).unwrap();
    assert_eq!(crate::nodes::state(&w, "c1"), Some(NodeState::Running));
    // The end first: the start is refused.
    let mut w = world(MINUTE);
    cloud(&mut w, "c1");
    w.create("a");
    let now = mark(&w);
    w.apply(expired(now)).unwrap();
    assert_eq!(crate::nodes::state(&w, "c1"), Some(NodeState::Stopping));
    let refusal = w.start_as("a", "primary", "c1").unwrap_err();
    assert_eq!(refusal.reason, "node_not_running");
}

// spec: IDLE-05, HARDM-25
#[test]
fn a_restart_and_a_jump_of_the_wall_clock_reap_nothing() {
    let mut k = started(2_000);
    k.wall += 3_600_000;
    k.pass(1_999);
    assert_eq!(state(&k), Some(NodeState::Running));

    // Empty for an hour while the Manager was down: a minute after its start the time begins.
    let mut w = world(2_000);
    cloud(&mut w, "c1");
    w.pass(3_600_000);
    let mut k = Kept::new(w);
    assert_eq!(state(&k), Some(NodeState::Unreachable), "not yet heard");
    k.pass(1_000);
    k.w.hello("c1", Vec::new());
    k.seen();
    k.pass(60_999);
    assert_eq!(state(&k), Some(NodeState::Running));
    k.pass(1);
    assert_eq!(state(&k), Some(NodeState::Stopping));
}

// spec: IDLE-08
#[test]
fn the_value_of_a_node_goes_with_its_record() {
    let mut w = world(0);
    cloud(&mut w, "c1");
    w.call(set("c1", 1_000)).unwrap();
    w.call(Call::TerminateNode("c1".into())).unwrap();
    w.finding("c1", greenroom_ledger::Finding::Gone);
    w.apply(greenroom_ledger::Command::Tick(
        greenroom_ledger::Due::ForgetNode("c1".into()),
    ))
    .unwrap();
    cloud(&mut w, "c1");
    let node = w.ledger.node(&"c1".into()).unwrap();
    assert_eq!(node.idle_expiry_ms, None);
}

// spec: LOCAL-19
#[test]
fn an_owned_server_is_never_ended_for_being_empty() {
    let mut k = Kept::new(world(10 * MINUTE));
    k.pass(MINUTE);
    k.w.now = k.now().wall;
    k.w.node("n1");
    cloud(&mut k.w, "c1");
    k.seen();
    k.pass(30 * 24 * 60 * MINUTE);
    assert_eq!(k.node_state("n1"), Some(NodeState::Running));
    assert_ne!(k.node_state("c1"), Some(NodeState::Running), "the other is");
}
