//! Rules about nodes: the line to a worker, hello and reconcile, providers.

use crate::common::*;
use greenroom_ledger::{Finding, Hello, Link, Report};
use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode, Detail};
use greenroom_types::inventory::{AssignedJob, Capability, NodeInventory};
use greenroom_types::job::{HistoryKind, Job, JobState, StopReason};
use greenroom_types::node::{
    InstanceState, InterruptionKind, NodeState, NodeStoppingReason, RunningNodeMetadata,
};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{StartId, Tags};

pub(crate) fn aws(id: &str) -> Call {
    Call::CreateAwsNode(Box::new(CreateAwsNode {
        node_id: id.into(),
        region: "eu".into(),
        instance_type: "c5".into(),
        tags: [("pool".to_owned(), "cloud".to_owned())].into(),
        ..CreateAwsNode::default()
    }))
}

pub(crate) fn runs(zone: &str) -> Finding {
    Finding::Running {
        running: RunningNodeMetadata {
            provider_id: "i-1".into(),
            ..RunningNodeMetadata::default()
        },
        zone: zone.into(),
        tags: Tags::new(),
    }
}

/// An EC2 node whose worker has said hello.
pub(crate) fn cloud(w: &mut World, id: &str) {
    w.call(aws(id)).unwrap();
    w.finding(id, runs("eu-1a"));
    w.hello(id, Vec::new());
}

pub(crate) fn state(w: &World, id: &str) -> Option<NodeState> {
    Some(w.ledger.node(&id.into())?.state)
}

pub(crate) fn last_detail(w: &World, id: &str) -> (StopReason, String) {
    let view = &w.ledger.job(&id.into()).unwrap().view;
    view.history
        .iter()
        .rev()
        .find_map(|entry| match &entry.kind {
            HistoryKind::Stopping { reason, detail, .. } => Some((*reason, detail.clone())),
            _ => None,
        })
        .unwrap()
}

/// Drops the line and lets the grace pass.
fn give_up(w: &mut World, id: &str) {
    w.link(id, Link::Dropped);
    w.link(id, Link::GraceOver);
}

// spec: MNODE-01, MNODE-04, MNODE-21
#[test]
fn an_elastic_node_is_recorded_before_its_machine_is_asked_for() {
    let mut w = World::new();
    w.call(aws("c1")).unwrap();
    assert_eq!(w.last_words(), ["starting c1 Some(Requested)"]);
    assert_eq!(w.last_orders(), ["c1: CreateMachine"]);
    let node = w.ledger.node(&"c1".into()).unwrap();
    assert_eq!(node.metadata.tags["pool"], "cloud");
    assert_eq!(node.metadata.created_at, ZERO);
    w.finding("c1", runs("eu-1a"));
    assert_eq!(w.last_words(), ["starting c1 Some(Booting)"]);
    let node = w.ledger.node(&"c1".into()).unwrap();
    assert_eq!(node.metadata.tags["az"], "eu-1a");
    w.finding("c1", runs("eu-1a"));
    assert!(w.last.changes.is_empty());
}

// spec: MNODE-02, API-15, API-16, AWS-01, OCI-01
#[test]
fn a_node_is_refused_for_its_id_its_provider_and_its_region() {
    let mut w = World::new();
    assert_eq!(w.refused(aws("")).reason, "missing_field");
    assert_eq!(w.refused(aws("a b")).reason, "bad_node_id");
    let oci = CreateOciNode {
        node_id: "o".into(),
        ..CreateOciNode::default()
    };
    let refusal = w.refused(Call::CreateOciNode(Box::new(oci.clone())));
    assert_eq!(refusal.reason, "provider_not_configured");
    assert_eq!(refusal.details["provider"], Detail::from("oci"));
    let mut w = World::with(greenroom_ledger::Config {
        providers: [
            (greenroom_ledger::Provider::Oci, Default::default()),
            (greenroom_ledger::Provider::Aws, ["eu".to_owned()].into()),
        ]
        .into(),
        ..Default::default()
    });
    let full = CreateOciNode {
        availability_domain: "ad1".into(),
        shape: "s".into(),
        architecture: "z80".into(),
        ..oci
    };
    let refusal = w.refused(Call::CreateOciNode(Box::new(full.clone())));
    assert_eq!(refusal.reason, "bad_architecture");
    w.call(Call::CreateOciNode(Box::new(CreateOciNode {
        architecture: "aarch64".into(),
        ..full
    })))
    .unwrap();
    let mut elsewhere = CreateAwsNode {
        node_id: "a".into(),
        region: "us".into(),
        instance_type: "c5".into(),
        ..CreateAwsNode::default()
    };
    let refusal = w.refused(Call::CreateAwsNode(Box::new(elsewhere.clone())));
    assert_eq!(refusal.reason, "region_not_configured");
    elsewhere.instance_type.clear();
    let refusal = w.refused(Call::CreateAwsNode(Box::new(elsewhere)));
    assert_eq!(refusal.reason, "missing_field");
    w.slot("n1");
    for taken in ["o", "n1"] {
        assert_eq!(w.refused(aws(taken)).reason, "node_exists", "{taken}");
    }
}

// spec: MNODE-05
#[test]
fn a_failed_create_stops_the_node_with_the_providers_words() {
    let mut w = World::new();
    w.call(aws("c1")).unwrap();
    w.create("a");
    w.start("a", "c1");
    w.finding(
        "c1",
        Finding::CreateFailed {
            code: "InsufficientInstanceCapacity".into(),
            text: "none left".into(),
        },
    );
    let StreamEvent::NodeStopping {
        reason,
        detail,
        provider_code,
        ..
    } = &w.last_events()[0]
    else {
        panic!("{:?}", w.last_events());
    };
    assert_eq!(*reason, NodeStoppingReason::CreateFailed);
    assert_eq!(
        (detail.as_str(), provider_code.as_str()),
        ("none left", "InsufficientInstanceCapacity")
    );
    assert_eq!(state(&w, "c1"), Some(NodeState::Stopped));
    assert_eq!(w.history("a")[2..], ["stopping", "stopped"]);
    assert!(!w.last_orders().contains(&"c1: TerminateMachine".to_owned()));
}

// spec: MNODE-06
#[test]
fn a_node_that_does_not_come_up_is_ended_with_its_machine() {
    for (link, reason) in [
        (Link::PendingOver, NodeStoppingReason::PendingTimeExceeded),
        (Link::StartupOver, NodeStoppingReason::StartupTimeExceeded),
        (
            Link::HelloOver,
            NodeStoppingReason::InitialisationHealthPingTimeExceeded,
        ),
    ] {
        let mut w = World::new();
        w.call(aws("c1")).unwrap();
        w.link("c1", link);
        assert_eq!(w.last_words(), [format!("stopping c1 {reason:?}")]);
        assert_eq!(w.last_orders(), ["c1: TerminateMachine"]);
        w.finding("c1", Finding::Gone);
        assert_eq!(w.last_words(), ["stopped c1"]);
    }
    // A deadline that comes too late does nothing.
    let mut w = World::new();
    cloud(&mut w, "c1");
    for late in [Link::PendingOver, Link::StartupOver, Link::HelloOver] {
        w.link("c1", late);
        assert!(w.last.changes.is_empty());
    }
}

// spec: MNODE-07, HIST-08
#[test]
fn a_hello_tells_of_node_then_jobs_then_inventory() {
    let mut w = World::new();
    w.slot("n1");
    w.dial_in("n1", "m").unwrap();
    w.create("a");
    let start = w.start("a", "n1");
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_words(), ["started n1", "job a", "inventory n1"]);
    assert_eq!(state(&w, "n1"), Some(NodeState::Running));
}

// spec: MNODE-10, MNODE-11, HARDM-06
#[test]
fn a_drop_within_the_grace_touches_no_job() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    let before = w.history("a");
    w.link("n1", Link::Dropped);
    assert_eq!(w.last_words(), ["reachable n1 false"]);
    let node = w.ledger.node(&"n1".into()).unwrap();
    assert!(!node.inventory.as_ref().unwrap().reachable);
    assert_eq!(w.instance_state(&start), Some(InstanceState::Running));
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_words(), ["reachable n1 true", "inventory n1"]);
    assert_eq!(w.history("a"), before);
    let node = w.ledger.node(&"n1".into()).unwrap();
    assert!(node.inventory.as_ref().unwrap().reachable);
}

// spec: MNODE-11, JOB-25, HARDM-09
#[test]
fn stops_and_starts_given_while_away_are_delivered_at_the_hello() {
    let mut w = World::new();
    w.node("n1");
    for id in ["a", "b"] {
        w.create(id);
    }
    let start = w.running("a", "n1");
    w.link("n1", Link::Dropped);
    w.stop("a", "n1").unwrap();
    assert!(w.last.orders.is_empty());
    w.start("b", "n1");
    assert!(w.last.orders.is_empty());
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    let orders = w.last_orders();
    assert_eq!(
        orders[..2],
        [
            "n1: stop a/primary 10000 UserRequested",
            "n1: provision b/primary"
        ]
    );
    w.stopped("n1", "a", &start);
    assert_eq!(w.history("a")[3..], ["stopping", "stopped"]);
    w.start("a", "n1");
    assert_eq!(w.last_orders(), ["n1: provision a/primary"]);
}

// spec: MNODE-12
#[test]
fn a_given_up_node_loses_its_instances_and_stops_later() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let old = w.running("a", "n1");
    give_up(&mut w, "n1");
    assert_eq!(
        w.last_words(),
        ["stopping n1 HealthPingTimeExceeded", "job a"]
    );
    assert_eq!(w.instance_state(&old), Some(InstanceState::Lost));
    assert_eq!(last_detail(&w, "a").0, StopReason::NodeStopped);
    w.link("n1", Link::KeepaliveOver);
    assert_eq!(w.last_words(), ["stopped n1"]);
    assert_eq!(w.history("a").last(), Some(&"stopping"), "nobody knows yet");
    // The key is free; the lost one is over once it is superseded.
    w.start("a", "n2");
    assert_eq!(w.history("a")[3..], ["stopping", "stopped", "provisioned"]);
    assert_eq!(w.instance_state(&old), None);
}

// spec: MNODE-12, MNODE-22
#[test]
fn a_given_up_machine_of_a_provider_is_terminated_until_that_is_confirmed() {
    let mut w = World::new();
    cloud(&mut w, "c1");
    w.create("a");
    w.running("a", "c1");
    give_up(&mut w, "c1");
    assert!(w.last.orders.is_empty());
    w.link("c1", Link::KeepaliveOver);
    assert_eq!(w.last_orders(), ["c1: TerminateMachine"]);
    w.finding(
        "c1",
        Finding::TerminateFailed {
            error: "throttled".into(),
        },
    );
    let info = w.ledger.node_info(&"c1".into()).unwrap();
    assert_eq!(
        (info.terminate_attempts, info.last_error.as_str()),
        (1, "throttled")
    );
    w.finding("c1", Finding::Gone);
    assert_eq!(w.history("a").last(), Some(&"stopped"));
}

// spec: MNODE-13, HARDM-07
#[test]
fn a_superseded_start_is_told_to_stop_when_its_node_returns() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let old = w.running("a", "n1");
    give_up(&mut w, "n1");
    let new = w.running("a", "n2");
    let before = w.history("a");
    w.hello("n1", vec![there("a", &old, InstanceState::Running)]);
    assert_eq!(w.last_words(), ["started n1", "inventory n1"]);
    assert_eq!(w.last_orders()[0], "n1: stop a/primary 10000 UnknownJob");
    assert_eq!(w.history("a"), before);
    assert_eq!(w.live("a", "primary"), Some(new));
}

// spec: MNODE-13, HARDM-08, HIST-04
#[test]
fn a_lost_start_that_nobody_replaced_is_taken_back() {
    for stopped in [false, true] {
        let mut w = World::new();
        w.node("n1");
        w.create("a");
        let start = w.running("a", "n1");
        give_up(&mut w, "n1");
        if stopped {
            w.link("n1", Link::KeepaliveOver);
        }
        w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
        assert_eq!(w.last_words(), ["started n1", "job a", "inventory n1"]);
        assert_eq!(
            w.history("a"),
            ["created", "provisioned", "running", "stopping", "running"]
        );
        assert_eq!(w.live("a", "primary"), Some(start));
        assert!(w.last_orders().iter().all(|order| order == "n1: tags"));
    }
}

// spec: MNODE-13, HIST-04
#[test]
fn a_lost_start_that_had_not_run_is_taken_back_with_an_entry_of_its_own() {
    for state in [InstanceState::Provisioned, InstanceState::Prepared] {
        let mut w = World::new();
        w.node("n1");
        w.create("a");
        let start = w.start("a", "n1");
        give_up(&mut w, "n1");
        w.hello("n1", vec![there("a", &start, state)]);
        let shown = match state {
            InstanceState::Prepared => "prepared",
            _ => "provisioned",
        };
        assert_eq!(
            w.history("a"),
            ["created", "provisioned", "stopping", shown]
        );
        assert_eq!(w.live("a", "primary"), Some(start.clone()));
        // Its failure is told like any other.
        let failed = Report::Failed {
            instance: instance("a", "primary", &start),
            reason: "no".to_owned(),
        };
        w.report("n1", failed).unwrap();
        assert_eq!(w.history("a")[4..], ["stopping"], "{state:?}");
    }
}

// spec: MNODE-13, JOB-24
#[test]
fn a_prepared_start_that_is_taken_back_waits_to_be_told_again() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start_deferred("a", "n1");
    let prepared = Report::Prepared {
        instance: instance("a", "primary", &start),
        ports: Default::default(),
    };
    w.report("n1", prepared).unwrap();
    let go = Call::StartPreparedJob {
        key: key("a", "primary"),
        node_id: "n1".into(),
    };
    // The order is lost with the line.
    w.call(go.clone()).unwrap();
    give_up(&mut w, "n1");
    w.hello("n1", vec![there("a", &start, InstanceState::Prepared)]);
    assert_eq!(w.live("a", "primary"), Some(start));
    assert_eq!(w.last_orders(), ["n1: tags"]);
    w.call(go).unwrap();
    assert_eq!(w.last_orders(), ["n1: start prepared a/primary"]);
}

// spec: MNODE-13
#[test]
fn what_a_worker_no_longer_has_failed() {
    let mut w = World::new();
    w.node("n1");
    for id in ["a", "b", "c"] {
        w.create(id);
    }
    w.running("a", "n1");
    let lost = w.running("b", "n1");
    w.running("c", "n1");
    w.stop("c", "n1").unwrap();
    w.link("n1", Link::Dropped);
    w.hello("n1", Vec::new());
    assert_eq!(
        last_detail(&w, "a"),
        (StopReason::JobFailed, "missing_at_hello".to_owned())
    );
    assert_eq!(w.history("a")[3..], ["stopping", "stopped"]);
    assert_eq!(
        w.history("c")[3..],
        ["stopping", "stopped"],
        "one entry each"
    );
    assert_eq!(w.instance_state(&lost), None);

    w.running("a", "n1");
    give_up(&mut w, "n1");
    w.hello("n1", Vec::new());
    assert_eq!(
        w.history("a").last(),
        Some(&"stopped"),
        "lost and not there"
    );
}

// spec: MNODE-13, JOB-34
#[test]
fn reports_under_way_are_heard_before_anything_counts_as_missing() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.create("b");
    let a = w.running("a", "n1");
    let b = w.running("b", "n1");
    w.link("n1", Link::Dropped);
    let acked = w.ledger.node(&"n1".into()).unwrap().report_acked;
    w.hello_as(
        "n1",
        Hello {
            last_report_id: acked + 1,
            ..Hello::default()
        },
    )
    .unwrap();
    assert_eq!(w.history("a"), ["created", "provisioned", "running"]);
    let done = Report::Stopped {
        instance: instance("a", "primary", &a),
        completed: true,
    };
    w.report_as("n1", acked + 1, done.clone()).unwrap();
    assert_eq!(w.state("a"), Some(JobState::Post));
    assert_eq!(last_detail(&w, "b").1, "missing_at_hello");
    assert_eq!(w.instance_state(&b), None);
    // The same report again is only acknowledged.
    w.report_as("n1", acked + 1, done).unwrap();
    assert!(w.last.changes.is_empty());
    assert_eq!(w.last_orders(), [format!("n1: ack {}", acked + 1)]);
}

// spec: HARDM-01
#[test]
fn an_order_that_was_lost_is_given_again_with_the_same_start() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start("a", "n1");
    // The process dies before the order goes out; the ledger comes back from its rows.
    w.ledger = w.reload();
    w.link("n1", Link::Dropped);
    w.hello("n1", Vec::new());
    assert_eq!(w.last_orders()[0], "n1: provision a/primary");
    assert_eq!(w.live("a", "primary"), Some(start));
    assert_eq!(w.history("a"), ["created", "provisioned"]);
}

// spec: HARDM-02
#[test]
fn a_start_that_was_not_reported_yet_is_found_running() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start("a", "n1");
    w.ledger = w.reload();
    w.link("n1", Link::Dropped);
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.history("a"), ["created", "provisioned", "running"]);
    assert_eq!(w.last_orders(), ["n1: tags"]);
}

// spec: MNODE-13
#[test]
fn a_terminal_job_is_stopped_where_it_comes_back() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    give_up(&mut w, "n1");
    w.call(Call::CompleteJob("a".into())).unwrap();
    assert_eq!(w.state("a"), Some(JobState::Post));
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_orders()[0], "n1: stop a/primary 10000 UnknownJob");
    w.stopped("n1", "a", &start);
    assert_eq!(w.history("a").last(), Some(&"stopped"));
    assert_eq!(w.state("a"), Some(JobState::Post));
}

// spec: MNODE-13
#[test]
fn the_start_that_the_record_holds_wins_over_the_same_key_elsewhere() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let start = w.running("a", "n1");
    w.hello("n2", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_orders()[0], "n2: stop a/primary 10000 UnknownJob");
    assert_eq!(w.instance_state(&start), Some(InstanceState::Running));
}

// spec: MNODE-14, API-14
#[test]
fn terminating_an_elastic_node_follows_the_providers_confirmation() {
    let mut w = World::new();
    cloud(&mut w, "c1");
    w.create("a");
    let start = w.running("a", "c1");
    w.call(Call::TerminateNode("c1".into())).unwrap();
    assert_eq!(w.last_words(), ["stopping c1 UserRequested", "job a"]);
    assert_eq!(
        w.last_orders(),
        ["c1: shutdown park=true", "c1: TerminateMachine"]
    );
    assert_eq!(
        w.live("a", "primary"),
        None,
        "an ending instance frees its key"
    );
    w.call(Call::TerminateNode("c1".into())).unwrap();
    assert!(w.last.changes.is_empty());
    w.stopped("c1", "a", &start);
    assert_eq!(w.history("a").last(), Some(&"stopped"));
    w.finding("c1", Finding::Gone);
    assert_eq!(w.last_words(), ["stopped c1"]);
    w.call(Call::TerminateNode("c1".into())).unwrap();
    assert_eq!(
        w.refused(Call::TerminateNode("x".into())).reason,
        "unknown_node"
    );
}

// spec: MNODE-15
#[test]
fn what_a_provider_takes_away_stops_without_waiting() {
    for (finding, reason) in [
        (Finding::Stopped, "ProviderStop"),
        (Finding::Gone, "ProviderTerminate"),
        (Finding::Unknown, "UnknownNode"),
    ] {
        let mut w = World::new();
        cloud(&mut w, "c1");
        w.create("a");
        w.running("a", "c1");
        w.finding("c1", finding);
        let words = w.last_words();
        assert_eq!(words[0], format!("stopping c1 {reason}"));
        assert!(words.contains(&"stopped c1".to_owned()));
        assert_eq!(w.history("a")[3..], ["stopping", "stopped"]);
    }
}

// spec: MNODE-18, MNODE-02
#[test]
fn a_stopped_node_leaves_the_record_and_its_id_is_free() {
    let mut w = World::new();
    cloud(&mut w, "c1");
    w.finding("c1", Finding::Gone);
    assert_eq!(w.refused(aws("c1")).reason, "node_exists");
    let tick = greenroom_ledger::Command::Tick(greenroom_ledger::Due::ForgetNode("c1".into()));
    w.apply(tick).unwrap();
    assert_eq!(state(&w, "c1"), None);
    w.call(aws("c1")).unwrap();
}

// spec: MNODE-19
#[test]
fn a_notice_is_told_once_and_again_when_it_gets_worse() {
    let mut w = World::new();
    cloud(&mut w, "c1");
    let notice = |kind| Report::Notice {
        kind,
        deadline: Some(ZERO.plus(120_000)),
        seen_at: ZERO,
    };
    w.report("c1", notice(InterruptionKind::Rebalance)).unwrap();
    assert_eq!(w.last_words(), ["notice c1 Rebalance", "tags c1"]);
    w.report("c1", notice(InterruptionKind::Rebalance)).unwrap();
    assert!(w.last.changes.is_empty());
    w.report("c1", notice(InterruptionKind::SpotInterruption))
        .unwrap();
    let tags = &w.ledger.node(&"c1".into()).unwrap().metadata.tags;
    assert_eq!(tags["interruption"], "spotInterruption");
}

// spec: MNODE-20
#[test]
fn an_inventory_is_told_when_it_differs_and_its_numbers_are_usable() {
    let mut w = World::new();
    w.node("n1");
    let picture = NodeInventory {
        total_capacity: -1.0,
        utilization_cap: 7.0,
        ..NodeInventory::default()
    };
    w.report("n1", Report::Inventory(Box::new(picture.clone())))
        .unwrap();
    assert_eq!(w.last_words(), ["inventory n1"]);
    let kept = w.ledger.node(&"n1".into()).unwrap().inventory.clone();
    let kept = kept.unwrap();
    assert_eq!((kept.total_capacity, kept.utilization_cap), (0.0, 1.0));
    w.report("n1", Report::Inventory(Box::new(picture)))
        .unwrap();
    assert!(w.last.changes.is_empty());
}

// spec: MNODE-21
#[test]
fn an_owned_server_is_in_the_zone_that_its_worker_reports() {
    let mut w = World::new();
    w.node("n1");
    let picture = |az: &str, vcpus: f64| {
        Report::Inventory(Box::new(NodeInventory {
            az: az.to_owned(),
            total_capacity: vcpus,
            ..NodeInventory::default()
        }))
    };
    let zone = |w: &World| {
        let node = w.ledger.node(&"n1".into()).unwrap();
        node.metadata.tags.get("az").cloned()
    };
    w.report("n1", picture("", 1.0)).unwrap();
    assert_eq!(zone(&w), None);
    w.report("n1", picture("hall-1", 1.0)).unwrap();
    assert_eq!(zone(&w).as_deref(), Some("hall-1"));
    let told = w.last_words();
    assert!(
        told.iter().any(|word| word.starts_with("tags n1")),
        "{told:?}"
    );
    w.report("n1", picture("hall-1", 2.0)).unwrap();
    assert_eq!(w.last_words(), ["inventory n1"], "the same zone is no news");
    w.report("n1", picture("hall-2", 2.0)).unwrap();
    assert_eq!(zone(&w).as_deref(), Some("hall-2"));
}

// spec: API-13
#[test]
fn the_old_call_sets_a_tag() {
    let mut w = World::new();
    w.node("n1");
    let call = |id: &str| Call::UpdatePhysicalNode {
        node_id: id.into(),
        daemon_version: "1.2".into(),
    };
    w.call(call("n1")).unwrap();
    let tags = &w.ledger.node(&"n1".into()).unwrap().metadata.tags;
    assert_eq!(tags["wantedDaemonVersion"], "1.2");
    assert_eq!(w.refused(call("x")).reason, "unknown_node");
}

// spec: JOB-19
#[test]
fn a_provision_without_answer_is_given_up_and_the_stream_begun_anew() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start: StartId = w.start("a", "n1");
    w.apply(greenroom_ledger::Command::Tick(
        greenroom_ledger::Due::ProvisionUnanswered(start.clone()),
    ))
    .unwrap();
    assert_eq!(w.history("a")[2..], ["stopping", "stopped"]);
    assert_eq!(last_detail(&w, "a").0, StopReason::NodeStopped);
    assert_eq!(w.last_orders(), ["n1: close redial=true"]);
    // The worker that had it after all is told to stop it.
    w.link("n1", Link::Dropped);
    w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    assert_eq!(w.last_orders()[0], "n1: stop a/primary 10000 UnknownJob");
}

// spec: WORK-43
#[test]
fn a_node_is_tagged_with_the_jobs_that_make_it_able_to_do_something() {
    let mut w = World::new();
    w.node("n1");
    let sdi = |count| Capability {
        name: "sdi-in".to_owned(),
        count,
        ..Capability::default()
    };
    let service = Job {
        provides: vec![sdi(2)],
        ..job("cards.1")
    };
    w.call(Call::CreateJob(Box::new(service))).unwrap();
    w.start_as("cards.1", "nodeService", "n1").unwrap();
    let start = w.live("cards.1", "nodeService").unwrap();
    let assigned = AssignedJob {
        job_id: "cards.1".into(),
        role: "nodeService".into(),
        start_id: start,
        ..AssignedJob::default()
    };
    let picture = |provided: Vec<Capability>| {
        Report::Inventory(Box::new(NodeInventory {
            assigned_jobs: vec![assigned.clone()],
            provided,
            ..NodeInventory::default()
        }))
    };
    let tag = |w: &World| {
        let node = w.ledger.node(&"n1".into()).unwrap();
        node.metadata.tags.get("provides.sdi-in").cloned()
    };
    w.report("n1", picture(Vec::new())).unwrap();
    assert_eq!(tag(&w), None);
    w.report("n1", picture(vec![sdi(2)])).unwrap();
    assert_eq!(tag(&w).as_deref(), Some("cards.1"));
    w.report("n1", picture(Vec::new())).unwrap();
    assert_eq!(tag(&w), None);
}

// spec: FIELD-41
#[test]
fn a_stop_and_the_loss_of_its_node_end_in_stopped_in_both_orders() {
    for stop_first in [true, false] {
        let mut w = World::new();
        w.node("n1");
        w.create("a");
        let start = w.running("a", "n1");
        if stop_first {
            w.stop("a", "n1").unwrap();
            assert_eq!(w.instance_state(&start), Some(InstanceState::Stopping));
            give_up(&mut w, "n1");
        } else {
            give_up(&mut w, "n1");
            // Whoever asks for the stop now hears that there is nothing to stop, or that it is so.
            let _ = w.stop("a", "n1");
        }
        // The key is free at once: what was there is lost, and stops nobody from starting anew.
        assert_eq!(w.live("a", "primary"), None, "stop first: {stop_first}");
        w.node("n2");
        let next = w.running("a", "n2");
        // The machine boots and knows nothing of it: it is stopped, once.
        w.hello("n1", Vec::new());
        assert_eq!(w.instance_state(&start), None, "stop first: {stop_first}");
        assert_eq!(w.live("a", "primary"), Some(next));
        let stopped = w
            .history("a")
            .iter()
            .filter(|word| **word == "stopped")
            .count();
        assert_eq!(stopped, 1, "stop first: {stop_first}: {:?}", w.history("a"));
    }
}
