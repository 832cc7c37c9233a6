//! What one instance leaves to the next (LIFE, CORDON, HYDR).

use greenroom_policy::ApiCall;
use greenroom_policy::drain::DrainOptions;
use greenroom_types::NodeId;
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, inventory, job, settings, sized};

/// A new instance over what the Manager knows: its jobs, its bundles, and these nodes as running.
fn restarted(w: &World, pools: Value, nodes: &[&str]) -> World {
    let mut next = World::cold(settings(pools, json!({})));
    next.now = w.now;
    next.jobs.clone_from(&w.jobs);
    next.bundles.clone_from(&w.bundles);
    next.nodes.clone_from(&w.nodes);
    for id in nodes {
        let node_id = w.long(id);
        next.snapshot_node(node_id.as_str(), "own", inventory(4.0));
    }
    for job in w.jobs.values() {
        next.send(StreamEvent::JobActive(job.clone().into()));
    }
    for status in w.bundles.values() {
        next.send(StreamEvent::BundleActive(status.clone().into()));
    }
    next
}

fn drain(w: &mut World, node: &str) {
    let node_id = w.long(node);
    w.api(ApiCall::DrainNode {
        node_id,
        options: DrainOptions::default(),
    });
}

// spec: CORDON-04
#[test]
fn a_cordon_ends_with_the_instance_unless_the_provider_takes_the_node() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    w.tag("m", "own", "interruption", "spotInterruption");
    for id in ["n", "m"] {
        w.api(ApiCall::CordonNode { node_id: id.into() });
        assert!(w.policy.is_cordoned(&id.into()));
    }
    w.at(24 * 3_600_000);
    assert!(w.policy.is_cordoned(&"n".into()), "as long as it lives");
    let mut next = restarted(&w, fixed(), &["n", "m"]);
    next.complete();
    assert!(!next.policy.is_cordoned(&NodeId::new("n")));
    assert!(next.policy.is_cordoned(&NodeId::new("m")));
}

// spec: LIFE-08, DRAIN-16
#[test]
fn drains_and_deferred_recoveries_just_end_and_the_next_instance_places() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    // The second failure within 5 s waits for its distance.
    for _ in 0..2 {
        w.runs("a.0.e");
        w.fails("a.0.e");
    }
    assert_eq!(w.node_of("a.0.e"), None);
    drain(&mut w, "n");
    w.took();
    w.api(ApiCall::Close);
    assert_eq!(w.took(), ["reply 2 ok", "close in order"], "without a word");
    assert!(w.policy.next_deadline().is_none());
    w.at(24 * 3_600_000);
    assert!(w.took().is_empty());
    let mut next = restarted(&w, fixed(), &["n"]);
    next.took();
    next.complete();
    assert_eq!(next.calls(), ["start a.0.e primary on n"]);
    assert_eq!(next.node_of("b.0.e").unwrap(), "n", "it ran all the time");
    assert!(next.policy.drain_status(&"n".into()).is_none());
}

// spec: HYDR-10, CEIL-01
#[test]
fn a_crash_loop_does_not_escape_its_ceiling_by_restarts_of_the_policy() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    for minute in 0..7_u64 {
        w.at(minute * 60_000);
        assert!(w.node_of("a.0.e").is_some(), "minute {minute}");
        w.runs("a.0.e");
        w.fails("a.0.e");
        if minute < 6 {
            w.runs("a.0.e");
            let mut next = restarted(&w, fixed(), &["n"]);
            next.complete();
            let counted = usize::try_from(minute).unwrap() + 1;
            assert_eq!(next.restarts("a.0.e"), counted);
            // Old ones run out as they would have.
            next.at(3_600_000);
            assert_eq!(next.restarts("a.0.e"), counted - 1);
        } else {
            // The failure that nobody judged is the seventh.
            let mut next = restarted(&w, fixed(), &["n"]);
            next.complete();
            assert!(next.is_broken("a"));
        }
    }
}

// spec: HYDR-10, INTR-08, CEIL-06
#[test]
fn what_does_not_count_does_not_count_after_a_restart() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.fails("a.0.e");
    w.runs("a.0.e");
    let count = |w: &World| {
        let mut next = restarted(w, fixed(), &["n"]);
        next.complete();
        next.restarts("a.0.e")
    };
    assert_eq!(count(&w), 1);
    // A change of the definition begins anew.
    let previous = Box::new(w.jobs["a.0.e"].job.clone());
    w.enter(
        "a.0.e",
        greenroom_types::job::HistoryKind::Updated { previous },
        None,
    );
    assert_eq!(count(&w), 0);
    // The provider took the node.
    w.tag("n", "own", "interruption", "spotInterruption");
    w.ends("a.0.e", greenroom_types::job::StopReason::NodeStopped);
    let mut next = restarted(&w, fixed(), &["m"]);
    next.complete();
    assert_eq!(next.restarts("a.0.e"), 1, "as a loss that nobody watched");
}

// spec: LIFE-10
#[test]
fn what_was_asked_for_at_the_close_is_not_undone() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.joins("@1", 4.0);
    w.took();
    w.hold = true;
    w.submit(bundle("b", json!([job("e")])));
    w.submit(bundle("c", json!([sized("e", 3.0)])));
    let calls = w.calls();
    assert_eq!(calls.len(), 2, "a start and a create: {calls:?}");
    w.api(ApiCall::Close);
    assert!(w.calls().is_empty());
    // The Manager accepts both calls after all. The create shows as a starting node, the start in
    // the job's history.
    w.answer();
    w.started_before("b.0.e", "primary", "@1");
    let mut next = restarted(&w, cloud(), &["@1"]);
    let metadata = w.nodes[&w.long("@2")].clone();
    next.send(StreamEvent::NodeStarting {
        metadata,
        phase: None,
    });
    next.took();
    next.complete();
    let calls = next.calls();
    assert!(
        !calls.iter().any(|call| call.starts_with("create")),
        "it is not bought twice: {calls:?}"
    );
    assert!(
        !calls.iter().any(|call| call.contains("b.0.e")),
        "{calls:?}"
    );
    let placed = next.policy.node_for_job(&"c.0.e".into()).unwrap();
    assert_eq!(*placed, w.long("@2"));
}
