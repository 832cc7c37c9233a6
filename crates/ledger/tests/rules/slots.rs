//! Rules about slots, tags and prefetches.

use crate::common::*;
use crate::nodes::{aws, cloud, last_detail, state};
use greenroom_ledger::{Finding, Hello, Link, Order, ProviderTask, Report};
use greenroom_types::Tags;
use greenroom_types::call::{Call, Reply, Status};
use greenroom_types::job::StopReason;
use greenroom_types::node::{InstanceState, InterruptionKind, NodeState, RunningNodeMetadata};
use greenroom_types::stream::StreamEvent;

// spec: LOCAL-01, LOCAL-02, LOCAL-04
#[test]
fn a_slot_has_its_name_as_id_unless_that_is_taken() {
    let mut w = World::new();
    w.slot("n1");
    assert!(
        w.last.changes.is_empty(),
        "no node event until a worker comes"
    );
    let register = |name: &str| Call::RegisterClusterNode {
        node_name: name.into(),
        pool: "".into(),
    };
    assert_eq!(w.refused(register("n1")).reason, "slot_exists");
    assert_eq!(w.refused(register("n_1")).reason, "bad_node_name");
    assert_eq!(w.refused(register("")).reason, "missing_field");
    w.call(aws("taken")).unwrap();
    let Reply::Slot { node_id, .. } = w.call(register("taken")).unwrap() else {
        panic!();
    };
    let suffix = node_id.as_str().strip_prefix("taken-").unwrap();
    assert!(suffix.len() == 4 && suffix.bytes().all(|b| b.is_ascii_hexdigit()));
    let slots: Vec<_> = w.ledger.slots().collect();
    assert_eq!(slots.len(), 2);
    assert!(slots.iter().all(|slot| !slot.active && !slot.token_used));
}

// spec: LOCAL-05, LOCAL-06, LOCAL-08, HARDM-13, HARDM-14
#[test]
fn a_token_opens_its_slot_for_one_machine() {
    let mut w = World::new();
    let token = w.slot("n1");
    w.register(&token, "m1").unwrap();
    let first = w.last.registered.clone().unwrap();
    assert_eq!((first.node_id.as_str(), first.first_use), ("n1", true));
    assert_eq!(w.last_words(), ["starting n1 Some(Booting)"]);
    assert_eq!(w.last_orders(), ["n1: dial"]);
    // Another machine, an unknown token: one answer.
    let other = w.register(&token, "m2").unwrap_err();
    let unknown = w.register("grt_x", "m1").unwrap_err();
    assert_eq!(other, unknown);
    assert_eq!(
        (other.status, other.reason.as_str()),
        (Status::Unauthenticated, "bad_token")
    );
    assert_eq!(w.ledger.slot(&"n1".into()).unwrap().machine_id, "m1");
    // The same machine again is a repeat.
    w.register(&token, "m1").unwrap();
    let again = w.last.registered.clone().unwrap();
    assert_eq!((again.key, again.first_use), (first.key, false));
    assert_eq!(w.last_orders(), ["n1: dial"]);
    assert!(w.last.changes.is_empty());
}

// spec: LOCAL-09
#[test]
fn a_slot_that_could_not_be_dialled_is_inactive_again() {
    let mut w = World::new();
    let token = w.slot("n1");
    w.register(&token, "m1").unwrap();
    w.link("n1", Link::StartupOver);
    assert_eq!(
        w.last_words(),
        ["stopping n1 StartupTimeExceeded", "stopped n1"]
    );
    assert!(w.ledger.slots().all(|slot| !slot.active));
    w.register(&token, "m1").unwrap();
    assert_eq!(w.last_words(), ["starting n1 Some(Booting)"]);
    w.hello("n1", Vec::new());
    assert_eq!(w.last_words()[0], "started n1");
}

// spec: LOCAL-12
#[test]
fn deregistering_stops_what_runs_and_takes_slot_and_token_away() {
    let mut w = World::new();
    let token = w.slot("n1");
    w.register(&token, "m1").unwrap();
    w.hello("n1", Vec::new());
    w.create("a");
    let start = w.running("a", "n1");
    let reply = w.call(Call::DeregisterClusterNode("n1".into())).unwrap();
    assert_eq!(reply, Reply::StoppedJobs(vec!["a".into()]));
    assert_eq!(w.last_words()[0], "stopping n1 UserRequested");
    assert_eq!(last_detail(&w, "a").0, StopReason::NodeTerminated);
    assert_eq!(w.last_orders(), ["n1: shutdown park=false"]);
    assert!(
        w.register(&token, "m1").is_err(),
        "the token is void at once"
    );
    assert_eq!(w.ledger.slots().count(), 0);
    w.stopped("n1", "a", &start);
    assert_eq!(w.last_words(), ["job a", "stopped n1"]);
    assert!(
        w.last_orders()
            .contains(&"n1: close redial=false".to_owned())
    );
    assert!(w.ledger.slot(&"n1".into()).is_none());
    let again = w.refused(Call::DeregisterClusterNode("n1".into()));
    assert_eq!(again.reason, "unknown_slot");
    w.slot("idle");
    w.call(Call::DeregisterClusterNode("idle".into())).unwrap();
    assert!(w.ledger.slot(&"idle".into()).is_none());
}

// spec: LOCAL-16, MNODE-14
#[test]
fn terminating_a_slot_parks_its_worker_and_keeps_the_slot() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    w.call(Call::TerminateNode("n1".into())).unwrap();
    assert_eq!(w.last_orders(), ["n1: shutdown park=true"]);
    w.stopped("n1", "a", &start);
    w.link("n1", Link::Dropped);
    assert_eq!(w.last_words(), ["stopped n1"]);
    assert!(w.ledger.slot(&"n1".into()).is_some());
    // A worker that did not call in again is not taken up.
    assert!(w.hello_as("n1", Hello::default()).is_err());
    w.dial_in("n1", "m").unwrap();
    w.hello("n1", Vec::new());
    assert_eq!(state(&w, "n1"), Some(NodeState::Running));
}

/// The worker of a node says that it leaves.
fn goodbye(w: &mut World, node: &str) {
    let reason = "told to leave".to_owned();
    w.report(node, Report::Goodbye { reason }).unwrap();
}

// spec: LOCAL-17
#[test]
fn a_goodbye_stops_the_node_at_once_and_its_jobs_until_they_are_told_stopped() {
    let mut w = World::new();
    for node in ["n1", "n2"] {
        w.node(node);
    }
    w.create("a");
    w.create("b");
    let (a, b) = (w.running("a", "n1"), w.running("b", "n1"));
    goodbye(&mut w, "n1");
    let words = w.last_words();
    assert_eq!(words[0], "stopping n1 ProviderStop");
    assert!(!words.contains(&"stopped n1".to_owned()), "{words:?}");
    // It knows: it is told nothing but that it was heard.
    assert_eq!(w.last_orders(), ["n1: ack 5"]);
    for (job, start) in [("a", &a), ("b", &b)] {
        assert_eq!(w.history(job).last(), Some(&"stopping"));
        assert_eq!(w.instance_state(start), Some(InstanceState::Stopping));
    }
    let reason = w.ledger.instance(&a).unwrap().stop.unwrap().reason;
    assert_eq!(reason, StopReason::NodeStopped);
    // Before the old one is gone it may start elsewhere, and nowhere on the leaving node.
    assert_eq!(
        w.start_as("a", "primary", "n1").unwrap_err().reason,
        "node_not_running"
    );
    w.start("a", "n2");
    w.stopped("n1", "a", &a);
    assert_eq!(w.instance_state(&a), None);
    assert_eq!(w.history("a")[3..], ["stopping", "provisioned", "stopped"]);
    // What was not told when the stream closes is lost.
    w.link("n1", Link::Dropped);
    assert!(w.last_words().contains(&"stopped n1".to_owned()));
    assert_eq!(w.instance_state(&b), Some(InstanceState::Lost));
    assert_eq!(w.history("b").last(), Some(&"stopping"));
    assert!(w.ledger.slot(&"n1".into()).is_some());
}

// spec: LOCAL-17
#[test]
fn node_stopped_follows_the_closing_of_the_stream() {
    let mut w = World::new();
    w.node("n1");
    goodbye(&mut w, "n1");
    assert_eq!(w.last_words(), ["stopping n1 ProviderStop"]);
    w.link("n1", Link::Dropped);
    assert_eq!(w.last_words(), ["stopped n1"]);
    assert_eq!(w.last_orders(), ["n1: close redial=false"]);
    // One that stays open is closed after a while.
    w.node("n2");
    goodbye(&mut w, "n2");
    w.link("n2", Link::KeepaliveOver);
    assert_eq!(w.last_words(), ["stopped n2"]);
    // Told to end by the Manager, a worker says goodbye when nothing is left.
    w.node("n3");
    w.create("a");
    let start = w.running("a", "n3");
    w.call(Call::TerminateNode("n3".into())).unwrap();
    goodbye(&mut w, "n3");
    assert!(w.last_words().is_empty());
    w.stopped("n3", "a", &start);
    goodbye(&mut w, "n3");
    assert_eq!(w.last_words(), ["stopped n3"]);
}

// spec: LOCAL-17
#[test]
fn a_machine_is_ended_after_the_grace_of_the_jobs_on_it() {
    for busy in [true, false] {
        let mut w = World::new();
        cloud(&mut w, "c1");
        if busy {
            w.create("a");
            w.running("a", "c1");
        }
        goodbye(&mut w, "c1");
        let after_ms = w.last.orders.iter().find_map(|order| match order {
            Order::Provider {
                task: ProviderTask::TerminateMachine { after_ms },
                ..
            } => Some(after_ms.0),
            _ => None,
        });
        assert_eq!(after_ms, Some(if busy { 10_000 } else { 0 }));
    }
}

fn tags(
    w: &mut World,
    node: &str,
    set: &[(&str, &str)],
    remove: &[&str],
) -> greenroom_types::call::CallResult {
    w.call(Call::SetNodeTags {
        node_id: node.into(),
        tags: set
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        remove: remove.iter().map(|key| (*key).to_owned()).collect(),
        expected_revision: None,
    })
}

// spec: TAG-01, TAG-06
#[test]
fn edits_are_merged_and_told_once() {
    let mut w = World::new();
    w.node("n1");
    let Reply::Tags {
        tags: all,
        revision,
    } = tags(&mut w, "n1", &[("a", "1"), ("b", "")], &[]).unwrap()
    else {
        panic!();
    };
    assert_eq!(
        (all["pool"].as_str(), all["a"].as_str(), all["b"].as_str()),
        ("own", "1", "")
    );
    assert_eq!(w.last_words(), ["tags n1"]);
    tags(&mut w, "n1", &[("a", "1")], &[]).unwrap();
    assert!(w.last.changes.is_empty());
    let Reply::Tags { tags: all, .. } = tags(&mut w, "n1", &[], &["pool", "b"]).unwrap() else {
        panic!();
    };
    assert_eq!(all.keys().collect::<Vec<_>>(), ["a"]);
    let stale = w.refused(Call::SetNodeTags {
        node_id: "n1".into(),
        tags: Tags::new(),
        remove: vec![],
        expected_revision: Some(revision),
    });
    assert_eq!(stale.reason, "revision_mismatch");
}

// spec: TAG-02, HARDM-22
#[test]
fn an_edit_wins_over_the_provider_for_ever() {
    let mut w = World::new();
    cloud(&mut w, "c1");
    tags(&mut w, "c1", &[("pool", "mine")], &[]).unwrap();
    assert_eq!(w.last_orders(), ["c1: tags", "c1: PushTags"]);
    w.finding(
        "c1",
        Finding::Running {
            running: RunningNodeMetadata::default(),
            zone: String::new(),
            tags: [("pool".to_owned(), "cloud".to_owned())].into(),
        },
    );
    assert!(w.last.changes.is_empty(), "no flicker with old tags");
    assert_eq!(
        w.ledger.node(&"c1".into()).unwrap().metadata.tags["pool"],
        "mine"
    );
    // A slot's edits outlive its node's record.
    w.node("n1");
    tags(&mut w, "n1", &[("pool", "mine")], &[]).unwrap();
    goodbye(&mut w, "n1");
    w.link("n1", Link::Dropped);
    w.apply(greenroom_ledger::Command::Tick(
        greenroom_ledger::Due::ForgetNode("n1".into()),
    ))
    .unwrap();
    w.dial_in("n1", "m").unwrap();
    assert_eq!(
        w.ledger.node(&"n1".into()).unwrap().metadata.tags["pool"],
        "mine"
    );
}

// spec: TAG-04, TAG-07
#[test]
fn tags_out_of_form_and_the_managers_own_are_refused() {
    let mut w = World::new();
    w.node("n1");
    for bad in ["", "a b", "aws:x", "greenroom:x", &"k".repeat(129)] {
        assert_eq!(
            tags(&mut w, "n1", &[(bad, "")], &[]).unwrap_err().reason,
            "bad_tag"
        );
    }
    let long = "v".repeat(257);
    assert_eq!(
        tags(&mut w, "n1", &[("a", &long)], &[]).unwrap_err().reason,
        "bad_tag"
    );
    let many: Vec<String> = (0..41).map(|n| format!("k{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "")).collect();
    assert_eq!(
        tags(&mut w, "n1", &many, &[]).unwrap_err().reason,
        "bad_tag"
    );
    for own in [
        "az",
        "interruption",
        "workerLimits",
        "wantedDaemonVersion",
        "provides.x",
    ] {
        let refusal = tags(&mut w, "n1", &[(own, "x")], &[]).unwrap_err();
        assert_eq!(refusal.reason, "reserved_tag", "{own}");
    }
    assert_eq!(
        tags(&mut w, "n1", &[], &["az"]).unwrap_err().reason,
        "reserved_tag"
    );
    w.report(
        "n1",
        Report::Notice {
            kind: InterruptionKind::Rebalance,
            deadline: None,
            seen_at: ZERO,
        },
    )
    .unwrap();
    tags(&mut w, "n1", &[], &["interruption"]).unwrap();
    assert_eq!(w.last_words(), ["tags n1"], "a notice may be withdrawn");
    assert_eq!(
        tags(&mut w, "x", &[], &[]).unwrap_err().reason,
        "unknown_node"
    );
    goodbye(&mut w, "n1");
    w.link("n1", Link::Dropped);
    assert_eq!(
        tags(&mut w, "n1", &[], &[]).unwrap_err().reason,
        "node_not_running"
    );
}

// spec: TAG-05, TAG-08, HARDM-23
#[test]
fn spare_and_first_job_cross_in_one_of_two_orders() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    cloud(&mut w, "c1");
    w.create("a");
    w.create("b");
    for remove in [&[][..], &["spare"][..]] {
        let set: &[(&str, &str)] = if remove.is_empty() {
            &[("spare", "true")]
        } else {
            &[]
        };
        let refusal = tags(&mut w, "c1", set, remove).unwrap_err();
        assert_eq!(refusal.reason, "spare_is_reconciled");
    }
    // Start first: the mark is refused. Mark first: the job lands on a spare.
    w.start("a", "n1");
    let refusal = tags(&mut w, "n1", &[("spare", "true")], &[]).unwrap_err();
    assert_eq!(refusal.reason, "node_holds_job");
    let spec = [
        ("spare", "true"),
        ("warmFor", "t1,t2"),
        ("exclusive", "true"),
    ];
    tags(&mut w, "n2", &spec, &[]).unwrap();
    w.start("b", "n2");
    let held = w.ledger.node(&"n2".into()).unwrap().metadata.tags.clone();
    assert_eq!(held["spare"], "true");
    for bad in [("warmFor", "a,,b"), ("exclusive", "maybe")] {
        assert_eq!(
            tags(&mut w, "n2", &[bad], &[]).unwrap_err().reason,
            "bad_spare_spec"
        );
    }
    tags(&mut w, "n2", &[("spare", "false")], &[]).unwrap();
    let left = w.ledger.node(&"n2".into()).unwrap().metadata.tags.clone();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["pool"]);
}

// spec: PREF-01, PREF-02, PREF-06
#[test]
fn a_prefetch_batch_always_settles() {
    let mut w = World::new();
    w.node("n1");
    let pull = |refs: &[&str]| Call::PrefetchImages {
        node_id: "n1".into(),
        image_refs: refs.iter().map(|text| (*text).to_owned()).collect(),
    };
    for bad in [&[][..], &["a b"][..], &[""][..], &[":x"][..]] {
        assert_eq!(w.refused(pull(bad)).reason, "bad_image_ref");
    }
    let Reply::Batch(batch_id) = w.call(pull(&["reg/a:1", "b"])).unwrap() else {
        panic!();
    };
    assert_eq!(w.last_orders(), ["n1: prefetch"]);
    let results = Report::ImagesPrefetched {
        batch_id,
        results: vec![],
    };
    w.report("n1", results.clone()).unwrap();
    assert_eq!(w.last_words(), ["prefetched n1"]);
    w.report("n1", results).unwrap();
    assert!(w.last.changes.is_empty(), "one event a batch");
    w.call(pull(&["c"])).unwrap();
    w.link("n1", Link::Dropped);
    assert_eq!(w.refused(pull(&["c"])).reason, "node_unreachable");
    // The order may have been lost with the stream.
    w.hello("n1", Vec::new());
    let again = |w: &World| {
        w.last_orders()
            .iter()
            .filter(|o| *o == "n1: prefetch")
            .count()
    };
    assert_eq!(again(&w), 1);
    w.link("n1", Link::Dropped);
    w.link("n1", Link::GraceOver);
    let Some(StreamEvent::ImagesPrefetched { results, .. }) = w
        .last_events()
        .into_iter()
        .find(|event| matches!(event, StreamEvent::ImagesPrefetched { .. }))
    else {
        panic!("{:?}", w.last_words());
    };
    assert_eq!(
        (results[0].image_ref.as_str(), results[0].error.as_str()),
        ("c", "node_lost")
    );
    assert_eq!(w.refused(pull(&["c"])).reason, "node_not_running");
}

fn pool(node: &str, pool: &str) -> Call {
    Call::SetClusterNodePool {
        node_id: node.into(),
        pool: pool.into(),
    }
}

fn pool_of(w: &World, node: &str) -> Option<String> {
    w.ledger
        .node(&node.into())?
        .metadata
        .tags
        .get("pool")
        .cloned()
}

// spec: LOCAL-14
#[test]
fn an_active_slot_changes_its_pool_by_leaving_and_coming_again() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    let reply = w.call(pool("n1", "live")).unwrap();
    assert_eq!(reply, Reply::RunningJobs(vec!["a".into()]));
    assert_eq!(
        w.last_words(),
        [
            "stopping n1 UserRequested",
            "job a",
            "stopped n1",
            "starting n1 Some(Booting)"
        ]
    );
    // The line is closed and opened anew; nobody is told to stop anything.
    assert_eq!(w.last_orders(), ["n1: close redial=false", "n1: dial"]);
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_words(), ["started n1", "job a", "inventory n1"]);
    assert_eq!(pool_of(&w, "n1").as_deref(), Some("live"));
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "running", "stopping", "running"]
    );
    assert_eq!(w.live("a", "primary"), Some(start));

    // The same again: nothing happens, and the jobs are told all the same.
    let reply = w.call(pool("n1", "live")).unwrap();
    assert_eq!(reply, Reply::RunningJobs(vec!["a".into()]));
    assert!(w.last.changes.is_empty() && w.last.rows.is_empty());
    assert_eq!(w.refused(pool("n2", "live")).reason, "unknown_slot");
    assert_eq!(w.refused(pool("n1", &"x".repeat(200))).reason, "bad_pool");
}

// spec: LOCAL-14
#[test]
fn a_slot_without_a_worker_changes_its_record_alone() {
    let mut w = World::new();
    w.slot("n1");
    w.call(pool("n1", "live")).unwrap();
    assert!(w.last.changes.is_empty() && w.last.orders.is_empty());
    w.dial_in("n1", "m").unwrap();
    w.hello("n1", Vec::new());
    assert_eq!(pool_of(&w, "n1").as_deref(), Some("live"));
    // An edit of the tag gives way, and one that was given up comes back in its new pool.
    let edit = Call::SetNodeTags {
        node_id: "n1".into(),
        tags: Tags::from([("pool".to_owned(), "edited".to_owned())]),
        remove: Vec::new(),
        expected_revision: None,
    };
    w.call(edit).unwrap();
    w.link("n1", Link::Dropped);
    w.link("n1", Link::GraceOver);
    w.call(pool("n1", "spare")).unwrap();
    assert!(w.last.changes.is_empty());
    w.hello("n1", Vec::new());
    assert_eq!(pool_of(&w, "n1").as_deref(), Some("spare"));
}

// spec: LOCAL-15
#[test]
fn a_slot_on_which_something_begins_or_ends_keeps_its_pool() {
    let mut w = World::new();
    w.node("n1");
    for id in ["begins", "ends", "runs"] {
        w.create(id);
    }
    w.start("begins", "n1");
    w.running("ends", "n1");
    w.running("runs", "n1");
    w.stop("ends", "n1").unwrap();
    let refusal = w.refused(pool("n1", "live"));
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::FailedPrecondition, "node_busy")
    );
    let jobs = vec!["begins".into(), "ends".into()];
    assert_eq!(
        refusal.details["jobs"],
        greenroom_types::call::Detail::List(jobs)
    );
}

// spec: LOCAL-18
#[test]
fn a_new_token_moves_a_slot_to_another_machine() {
    let mut w = World::new();
    let old = w.slot("n1");
    w.register(&old, "m1").unwrap();
    w.hello("n1", Vec::new());
    let rotate = || Call::RotateClusterNodeToken("n1".into());
    let Reply::Token(new) = w.call(rotate()).unwrap() else {
        panic!();
    };
    assert_ne!(new, old);
    assert!(w.last.changes.is_empty(), "the stream goes on");
    let slot = w.ledger.slot(&"n1".into()).unwrap();
    assert!(
        slot.key.is_empty(),
        "no credential proves anything any more"
    );
    // The old token opens nothing, not even for the machine that had it.
    assert_eq!(w.register(&old, "m1").unwrap_err().reason, "bad_token");
    w.register(&new, "m2").unwrap();
    let registered = w.last.registered.clone().unwrap();
    assert_eq!(
        (registered.first_use, registered.key.as_str()),
        (true, "key-m2")
    );
    assert_eq!(w.register(&new, "m1").unwrap_err().reason, "bad_token");
    let unknown = Call::RotateClusterNodeToken("n2".into());
    assert_eq!(w.refused(unknown).reason, "unknown_slot");
}
