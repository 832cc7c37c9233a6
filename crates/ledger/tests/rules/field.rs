//! Field cases that no other file is about.

use greenroom_ledger::{Finding, Link};
use greenroom_types::call::{Call, CreateAwsNode};
use greenroom_types::job::{Job, LeasePolicy};
use greenroom_types::stream::StreamEvent;

use crate::common::{World, job};

fn leased(id: &str) -> Job {
    Job {
        lease: Some(LeasePolicy::default()),
        ..job(id)
    }
}

/// A machine of a provider with a protected and a plain job, and a server beside it.
fn bought() -> World {
    let mut w = World::new();
    w.node("n2");
    let node = CreateAwsNode {
        node_id: "m1".into(),
        region: "eu".into(),
        instance_type: "t".into(),
        ..CreateAwsNode::default()
    };
    w.call(Call::CreateAwsNode(Box::new(node))).unwrap();
    w.hello("m1", Vec::new());
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    w.call(Call::CreateJob(Box::new(job("b")))).unwrap();
    w.running("a", "m1");
    w.running("b", "m1");
    w
}

fn is_told_stopped(w: &World, node: &str) -> bool {
    w.events.iter().any(|event| {
        matches!(event, StreamEvent::NodeStopped { node_id, .. } if node_id.as_str() == node)
    })
}

// spec: FIELD-27
#[test]
fn what_the_provider_confirms_to_be_gone_is_over_within_the_grace_and_what_it_does_not_waits() {
    // The line is down, and the grace runs: from here a dead machine and a cut one look alike.
    let mut w = bought();
    w.link("m1", Link::Dropped);
    for (id, role) in [("a", "primary"), ("b", "primary")] {
        let refused = w.start_as(id, role, "n2").unwrap_err();
        assert_eq!(refused.reason, "live_elsewhere", "{id}");
    }
    w.finding("m1", Finding::Gone);
    assert!(is_told_stopped(&w, "m1"));
    w.start_as("a", "primary", "n2").unwrap();
    w.start_as("b", "primary", "n2").unwrap();

    // Without that proof the grace runs to its end, and then the lease does.
    let mut w = bought();
    w.link("m1", Link::Dropped);
    w.link("m1", Link::GraceOver);
    w.start_as("b", "primary", "n2").unwrap();
    let refused = w.start_as("a", "primary", "n2").unwrap_err();
    assert_eq!(refused.reason, "lease_held");
    // A provider that only says that it will end proves nothing either.
    w.finding("m1", Finding::Terminating);
    let refused = w.start_as("a", "primary", "n2").unwrap_err();
    assert_eq!(refused.reason, "lease_held");
    w.finding("m1", Finding::Gone);
    w.start_as("a", "primary", "n2").unwrap();
}
