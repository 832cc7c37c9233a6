//! Buying nodes, prospective nodes, back-off of tiers (PROV).

use greenroom_policy::CallFailure;
use greenroom_policy::effect::MirrorState;
use greenroom_types::call::{Call, Status};
use greenroom_types::node::{NodeStoppingReason, StartPhase};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, cloud, job, needing, refused, sized, tiers};

const SECOND: u64 = 1_000;

// spec: PROV-01, PROV-02, NODE-02, NODE-04
#[test]
fn a_bought_node_is_shown_tagged_and_asked_for() {
    let mut w = World::with(cloud(), &[]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(
        w.took()[2..],
        ["decide a.0.e provision t1", "call create @1 c4 in t1"],
        "no onNodeStarting for the request itself"
    );
    let (_, Call::CreateAwsNode(create)) = w.next_call() else {
        panic!("a create")
    };
    let tags: Vec<(&str, &str)> = create
        .tags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        tags,
        [
            ("auto-manager", "true"),
            ("bundleId", "a"),
            ("jobId", "a.0.e"),
            ("jobName", "e"),
            ("pool", "p"),
            ("reliability", "durable"),
            ("replicaIndex", "0"),
            ("role", "primary"),
            ("tier", "t1"),
        ]
    );
    let (uuid, rest) = create.node_id.as_str().split_at(36);
    assert_eq!(uuid.matches('-').count(), 4);
    assert_eq!(rest, ".a.0.e.primary");
    let nodes = w.policy.nodes();
    assert_eq!(nodes[0].state, MirrorState::Starting);
    assert!(nodes[0].prospective);
    assert_eq!(nodes[0].jobs, ["a.0.e".into()]);
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
}

// spec: NODE-04, MNODE-02
#[test]
fn the_longest_ids_still_give_a_node_id_that_the_manager_takes() {
    let mut w = World::with(cloud(), &[]);
    let long = "b".repeat(100);
    let name = "j".repeat(63);
    w.submit(bundle(&long, json!([job(&name)])));
    let node_id = w.policy.nodes()[0].node_id.clone();
    assert!(
        node_id.as_str().parse::<greenroom_types::NodeId>().is_ok(),
        "{node_id}"
    );
    assert!(node_id.as_str().ends_with(".primary"));
}

// spec: PROV-01
#[test]
fn an_oracle_node_is_asked_for_by_domain_and_shape() {
    let pools = json!([{"name": "p", "tiers": [{"name": "o", "kind": "oci", "scaleOut": "elastic",
        "region": "AD-1", "launchMode": "spot", "candidateInstanceTypes": [
        {"instanceType": "E4", "totalCapacity": 4, "totalCores": 2, "ocpus": 2, "memoryGb": 16}]}]}]);
    let mut w = World::with(pools, &[]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    let (_, Call::CreateOciNode(create)) = w.next_call() else {
        panic!("a create")
    };
    assert_eq!(create.availability_domain, "AD-1");
    assert_eq!(
        (create.shape.as_str(), create.architecture.as_str()),
        ("E4", "x86_64")
    );
    assert_eq!((create.ocpus, create.memory_gb), (Some(2.0), Some(16.0)));
    assert_eq!(create.subnet, "");
    assert_eq!(create.tags["reliability"], "interruptible");
}

// spec: HARD-36, PROV-03, PROV-07, PLACE-26, TIER-08
#[test]
fn jobs_bound_to_a_prospective_node_start_in_the_order_of_binding() {
    let pools = tiers(&[
        ("t1", &[("c4", 4.0)], Some(2)),
        ("t2", &[("d4", 4.0)], None),
    ]);
    let mut w = World::with(pools, &[]);
    let job = |name: &str| sized(name, 2.0);
    w.submit(bundle(
        "a",
        json!([job("1"), job("2"), job("3"), job("4"), job("5")]),
    ));
    assert_eq!(
        w.calls(),
        [
            "create @1 c4 in t1",
            "create @2 c4 in t1",
            "create @3 d4 in t2"
        ],
        "the second and fourth join; the fifth spills to the next tier"
    );
    w.joins("@1", 4.0);
    assert_eq!(
        w.calls(),
        ["start a.0.1 primary on @1", "start a.0.2 primary on @1"]
    );
    w.hello("@1");
    assert!(w.calls().is_empty(), "each is started once");
}

// spec: HARD-37, INTRA-04, INTRA-05, PROV-07
#[test]
fn the_first_of_a_group_buys_for_all_and_the_room_is_kept() {
    let pools = tiers(&[("t1", &[("c2", 2.0), ("c4", 4.0)], None)]);
    let mut w = World::with(pools, &[]);
    let group = json!([sized("a", 2.0), {"jobName": "b", "coLocateWith": ["a"], "requirements": {"requiredCapacity": 2}}]);
    w.store(&bundle("g", group));
    w.tell_bundle("g");
    w.tell("g.0.a");
    assert_eq!(w.calls(), ["create @1 c4 in t1"]);
    w.submit(bundle("x", json!([sized("e", 2.0)])));
    assert_eq!(w.calls(), ["create @2 c2 in t1"], "the room is held");
    w.tell("g.0.b");
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("g.0.b").unwrap(), "@1");
    w.joins("@1", 4.0);
    assert_eq!(
        w.calls(),
        ["start g.0.a primary on @1", "start g.0.b primary on @1"]
    );
}

// spec: HARD-38, PROV-09, CEIL-03
#[test]
fn a_group_whose_node_never_starts_moves_together() {
    let pools = tiers(&[("t1", &[("c2", 2.0), ("c4", 4.0)], None)]);
    let mut w = World::with(pools, &[]);
    let group = json!([sized("a", 2.0), {"jobName": "b", "coLocateWith": ["a"], "requirements": {"requiredCapacity": 2}}]);
    w.submit(bundle("g", group));
    w.took();
    w.stopping_for("@1", NodeStoppingReason::ProviderTerminate);
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
    assert_eq!(w.node_of("g.0.a").unwrap(), "@2");
    assert_eq!(w.node_of("g.0.b").unwrap(), "@2");
    assert_eq!(w.restarts("g.0.a"), 0);
    w.stopped("@1");
    assert!(w.calls().is_empty());
}

fn two_tiers() -> World {
    World::with(
        tiers(&[("t1", &[("c4", 4.0)], None), ("t2", &[("d4", 4.0)], None)]),
        &[],
    )
}

// spec: HARD-40, PROV-08, PROV-12
#[test]
fn a_tier_without_stock_is_passed_over_and_probed_by_one_request() {
    let mut w = two_tiers();
    let stock =
        greenroom_types::call::Refusal::new(Status::ResourceExhausted, "no_capacity", "no stock")
            .with("provider_code", "InsufficientInstanceCapacity");
    w.refuse("CreateAwsNode", 1, CallFailure::Refused(stock));
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    assert_eq!(
        w.acts()[1..],
        [
            "call create @1 c4 in t1",
            "onError createFailed",
            "call create @2 d4 in t2"
        ]
    );
    assert_eq!(w.policy.nodes().len(), 1, "no phantom");
    assert_eq!(w.metrics().placements_dispatch_failed, 1);
    w.at(59 * SECOND);
    w.submit(bundle("b", json!([sized("e", 4.0)])));
    assert_eq!(w.calls(), ["create @3 d4 in t2"]);
    w.at(60 * SECOND);
    w.submit(bundle("c", json!([sized("e", 4.0)])));
    assert_eq!(w.calls(), ["create @4 c4 in t1"], "half open: one probe");
    w.submit(bundle("d", json!([sized("e", 4.0)])));
    assert_eq!(
        w.calls(),
        ["create @5 d4 in t2"],
        "no second until it has started"
    );
    w.joins("@4", 4.0);
    w.took();
    w.submit(bundle("f", json!([sized("e", 4.0)])));
    assert_eq!(w.calls(), ["create @6 c4 in t1"], "open again");
}

// spec: HARD-40, PROV-08
#[test]
fn a_create_that_fails_after_its_answer_is_the_same_case() {
    let mut w = two_tiers();
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.starting("@1", Some(StartPhase::Requested));
    w.at(2 * SECOND);
    w.took();
    w.stopping_for("@1", NodeStoppingReason::CreateFailed);
    assert_eq!(
        w.acts(),
        [
            "onNodeStopping @1",
            "onError createFailed",
            "call create @2 d4 in t2"
        ]
    );
    w.stopped("@1");
    assert_eq!(w.acts(), ["onNodeStopped @1"]);
    assert_eq!(w.policy.nodes().len(), 1);
    let metrics = w.metrics();
    assert_eq!(
        (
            metrics.provisions_failed,
            metrics.placements_dispatch_failed
        ),
        (1, 0)
    );
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: HARD-40, PROV-12, PEND-02
#[test]
fn with_no_other_tier_the_end_of_the_back_off_is_the_next_try() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        3,
        refused(Status::ResourceExhausted, "no_capacity"),
    );
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    // 60 s, then twice as long each time the probe fails.
    for (before, at) in [(59_999, 60_000), (179_999, 180_000), (419_999, 420_000)] {
        w.at(before);
        assert!(w.calls().is_empty(), "{before}");
        w.at(at);
        assert_eq!(w.calls().len(), 1, "{at}");
    }
    assert_eq!(w.metrics().placements_dispatch_failed, 3);
}

// spec: PROV-12
#[test]
fn the_back_off_grows_to_ten_minutes_and_no_further() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        100,
        refused(Status::ResourceExhausted, "no_capacity"),
    );
    w.submit(bundle("a", json!([job("e")])));
    let mut at = 0;
    for wait in [60, 120, 240, 480, 600, 600] {
        w.took();
        w.at((at + wait) * SECOND - 1);
        assert!(w.calls().is_empty(), "after {wait} s");
        at += wait;
        w.at(at * SECOND);
        assert_eq!(w.calls().len(), 1, "after {wait} s");
    }
}

// spec: PROV-12
#[test]
fn failures_of_requests_under_way_neither_prolong_nor_double() {
    let mut w = World::with(tiers(&[("t1", &[("c4", 4.0)], None)]), &[]);
    w.submit(bundle("a", json!([sized("1", 4.0), sized("2", 4.0)])));
    w.took();
    w.stopping_for("@1", NodeStoppingReason::CreateFailed);
    w.at(30 * SECOND);
    w.stopping_for("@2", NodeStoppingReason::CreateFailed);
    w.took();
    w.at(60 * SECOND);
    assert_eq!(w.calls(), ["create @3 c4 in t1"]);
}

// spec: PROV-12
#[test]
fn a_failure_that_time_cannot_cure_is_told_once() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        2,
        refused(Status::PermissionDenied, "denied"),
    );
    w.submit(bundle("a", json!([job("e")])));
    w.at(60 * SECOND);
    let told = w
        .took()
        .iter()
        .filter(|line| *line == "onError createFailed")
        .count();
    assert_eq!(told, 1);
}

// spec: HARD-41, PROV-06, PROV-11
#[test]
fn a_node_that_never_appears_is_given_up_after_its_time() {
    let mut w = two_tiers();
    w.submit(bundle(
        "a",
        json!([needing(
            "e",
            json!({"requiredCapacity": 4, "onRuntimeFailure": "drop"})
        )]),
    ));
    w.took();
    w.at(599_999);
    assert!(w.calls().is_empty());
    w.at(600_000);
    assert_eq!(
        w.acts(),
        [
            "onError provisionTimeout",
            "call terminate @1",
            "onNodeTerminated @1",
            "call create @2 d4 in t2"
        ]
    );
    assert_eq!(w.restarts("a.0.e"), 0);
    w.at(601_000);
    w.joins("@1", 4.0);
    assert!(w.calls().is_empty(), "it starts nothing");
}

// spec: HARD-42, NODE-05, NODE-07, PROV-09
#[test]
fn a_booting_node_has_two_minutes() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle(
        "a",
        json!([needing("e", json!({"onRuntimeFailure": "drop"}))]),
    ));
    w.starting("@1", Some(StartPhase::Requested));
    w.at(60 * SECOND);
    w.starting("@1", Some(StartPhase::Booting));
    w.took();
    w.at(180 * SECOND - 1);
    assert!(w.acts().is_empty(), "the grace runs from the boot");
    w.at(180 * SECOND);
    assert_eq!(w.acts(), ["call terminate @1", "onNodeTerminated @1"]);
    assert_eq!(
        w.node_of("a.0.e").unwrap(),
        "@1",
        "until its stopping is reported"
    );
    w.stopping_for("@1", NodeStoppingReason::UserRequested);
    assert_eq!(w.acts(), ["onNodeStopping @1", "call create @2 c4 in t1"]);
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: NODE-05
#[test]
fn the_grace_terminates_no_machine_that_others_started() {
    let mut w = World::with(cloud(), &[]);
    w.starting("n", None);
    assert_eq!(w.acts(), ["onNodeStarting n"]);
    w.at(600 * SECOND);
    assert!(w.acts().is_empty());
}

// spec: PROV-09
#[test]
fn a_node_stuck_with_its_provider_lets_the_tier_back_off() {
    let mut w = two_tiers();
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.took();
    w.stopping_for("@1", NodeStoppingReason::PendingTimeExceeded);
    assert_eq!(w.calls(), ["create @2 d4 in t2"]);
}

// spec: PROV-10
#[test]
fn a_job_deleted_before_its_node_started_leaves_an_ordinary_node() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.joins("@1", 4.0);
    assert!(w.calls().is_empty());
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.calls(), ["start b.0.e primary on @1"]);
}

// spec: PROV-07
#[test]
fn an_instance_that_the_manager_shows_there_is_not_started_again() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("x", 0.0);
    let start_id = w.started_before("a.0.e", "primary", "@1");
    w.run_of("a.0.e", "primary", "@1", &start_id);
    w.tell("a.0.e");
    w.took();
    w.joins("@1", 4.0);
    assert!(w.calls().is_empty());
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
}

// spec: PROV-08, TIME-02
#[test]
fn a_lost_reply_does_not_disown_a_node_that_the_manager_has_told_of() {
    let mut w = World::with(cloud(), &[]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    w.starting("@1", Some(StartPhase::Requested));
    let (call_id, _) = w.next_call();
    w.took();
    w.answer_one(call_id, Err(CallFailure::TimedOut));
    assert!(w.took().is_empty());
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
}

// spec: PROV-04, PROV-05, PLACE-16
#[test]
fn a_node_is_prospective_until_its_first_inventory() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.hello("@1");
    assert!(w.policy.nodes()[0].prospective);
    w.took();
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(
        w.calls(),
        ["start b.0.e primary on @1"],
        "its declared numbers count"
    );
    w.picture("@1", 2.0);
    assert!(!w.policy.nodes()[0].prospective);
    assert!(
        w.calls().is_empty(),
        "smaller than what is bound: nothing is moved"
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
}

// spec: PROV-12
#[test]
fn a_probe_that_goes_for_another_reason_may_be_followed_by_one_more() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        1,
        refused(Status::ResourceExhausted, "no_capacity"),
    );
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.at(60 * SECOND);
    w.took();
    w.stopping_for("@2", NodeStoppingReason::UserRequested);
    assert_eq!(w.calls(), ["create @3 c4 in t1"]);
}

// spec: PROV-15, METR-10
#[test]
fn why_nothing_could_be_bought_is_told_until_a_node_comes_up() {
    let mut w = World::with(cloud(), &[]);
    let unknown = refused(Status::FailedPrecondition, "unknown_provider");
    w.refuse("CreateAwsNode", 1, unknown);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e"), None);
    let told = w.policy.explain(&"a.0.e".into());
    let [trouble] = &told.purchases[..] else {
        panic!("{told:?}")
    };
    assert!(trouble.reason.contains("unknown_provider"), "{trouble:?}");
    assert_eq!((trouble.tier.as_str(), trouble.in_a_row), ("t1", 1));
    assert_eq!(trouble.again_in.map(|left| left.0), Some(60 * SECOND));
    assert!(trouble.to_string().contains("asked again in"), "{trouble}");
    let tiers = |w: &World| {
        let tiers = w.metrics().tiers;
        let counts = tiers
            .iter()
            .map(|it| (it.tier_name.to_string(), it.purchases_failed));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(tiers(&w), [("t1".to_owned(), 1)]);
    assert_eq!(w.metrics().provisions_failed, 0, "nothing was accepted");

    // One that was accepted and fails later counts as well, and its words take the place of the others.
    w.at(60 * SECOND);
    let node = w.node_of("a.0.e").unwrap();
    let node_id = w.long(&node);
    w.send(StreamEvent::NodeStopping {
        node_id,
        reason: NodeStoppingReason::CreateFailed,
        detail: "no quota left".to_owned(),
        provider_code: "VcpuLimitExceeded".to_owned(),
    });
    let told = w.policy.troubles_of(&"a.0.e".into());
    assert_eq!(told[0].reason, "no quota left (VcpuLimitExceeded)");
    assert_eq!(told[0].in_a_row, 2);
    assert_eq!(tiers(&w), [("t1".to_owned(), 2)]);

    w.at(w.now.mono.0 + 120 * SECOND);
    let node = w.node_of("a.0.e").unwrap();
    w.joins(&node, 4.0);
    assert_eq!(w.policy.troubles_of(&"a.0.e".into()), []);
    assert_eq!(tiers(&w), [("t1".to_owned(), 2)], "counters only grow");
}
