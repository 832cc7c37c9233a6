//! Hot spares (SPARE).

use greenroom_policy::spare::{HotSpareChanges, HotSpareDiff};
use greenroom_policy::{ApiAnswer, ApiCall, ApiError, CallFailure};
use greenroom_types::call::{Call, Status};
use greenroom_types::inventory::{NodeInventory, RUNTIME_UNAVAILABLE};
use greenroom_types::node::NodeStoppingReason;
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, inventory, job, refused, sized, tiers};

const SECOND: u64 = 1_000;

fn entry(target: u32) -> Value {
    json!({"pool": "p", "targetCount": target, "spec": {"instanceType": "c4"}})
}

fn wanting(entry: Value) -> World {
    let mut w = World::cold(crate::world::settings(
        cloud(),
        json!({"hotSpares": [entry]}),
    ));
    w.complete();
    w
}

/// So many spares run, named `@1` and on.
fn ready(count: u32) -> World {
    let mut w = wanting(entry(count));
    for n in 1..=count {
        w.joins(&format!("@{n}"), 4.0);
    }
    w.at(1_000);
    w.took();
    w
}

fn list(w: &mut World, entries: Value) -> greenroom_policy::ApiResult {
    let id = w.api(ApiCall::UpdateHotSpareSpecs {
        hot_spares: entries,
    });
    w.results[&id].clone()
}

fn allow_spare(id: &str) -> greenroom_types::bundle::Bundle {
    let mut a = bundle(id, json!([job("e")]));
    a.on_launch = greenroom_types::bundle::OnLaunch::AllowSpare;
    a
}

// spec: SPARE-06, SPARE-07, SPARE-10, SPARE-19, HYDR-05, NODE-02, NODE-04
#[test]
fn the_missing_spares_are_bought_after_hydration() {
    let mut wanted = entry(2);
    wanted["warmFor"] = json!(["enc", "mux"]);
    wanted["reservedFor"] = json!(["enc"]);
    wanted["exclusive"] = json!(true);
    wanted["spec"]["region"] = json!("eu-west-1");
    let mut w = wanting(wanted);
    assert_eq!(
        w.took(),
        [
            "onSpareUnderflow p 0/2",
            "call create @1 c4 in t1",
            "call create @2 c4 in t1"
        ]
    );
    let create = w.all.iter().find_map(|effect| match effect {
        greenroom_policy::Effect::Call {
            call: Call::CreateAwsNode(create),
            ..
        } => Some(create),
        _ => None,
    });
    let create = create.unwrap();
    assert_eq!(create.region, "eu-west-1");
    assert!(create.node_id.as_str().ends_with(".spare.p"));
    let tags: Vec<(&str, &str)> = create
        .tags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        tags,
        [
            ("auto-manager", "true"),
            ("exclusive", "true"),
            ("pool", "p"),
            ("reliability", "durable"),
            ("reservedFor", "enc"),
            ("spare", "true"),
            ("tier", "t1"),
            ("warmFor", "enc,mux"),
        ]
    );
    w.at(60 * SECOND);
    assert!(w.took().is_empty(), "pending ones count");
    w.joins("@1", 4.0);
    assert_eq!(w.acts(), ["onNodeStarted @1"]);
    let spec = w.policy.spare_spec(&w.long("@1")).unwrap();
    assert!(spec.exclusive);
}

// spec: SPARE-10
#[test]
fn a_spare_is_bought_where_its_entry_says_and_of_the_type_it_names() {
    let pools = json!([{"name": "p", "tiers": [{"name": "t1", "kind": "oci", "region": "ad-3",
        "scaleOut": "elastic", "candidateInstanceTypes":
            [{"instanceType": "c4", "totalCapacity": 4.0, "totalCores": 4}]}]}]);
    for (spec, shape, domain) in [
        (
            json!({"instanceType": "c4", "az": "ad-1", "region": "ad-2"}),
            "c4",
            "ad-1",
        ),
        (
            json!({"instanceType": "c4", "region": "ad-2"}),
            "c4",
            "ad-2",
        ),
        (json!({"instanceType": "c4"}), "c4", "ad-3"),
    ] {
        let entry = json!({"pool": "p", "targetCount": 1, "spec": spec});
        let more = json!({"hotSpares": [entry]});
        let mut w = World::cold(crate::world::settings(pools.clone(), more));
        w.complete();
        let create = w.all.iter().find_map(|effect| match effect {
            greenroom_policy::Effect::Call {
                call: Call::CreateOciNode(create),
                ..
            } => Some(create),
            _ => None,
        });
        let create = create.unwrap();
        let asked = (create.shape.as_str(), create.availability_domain.as_str());
        assert_eq!(asked, (shape, domain));
    }
}

// spec: SPARE-08
#[test]
fn without_an_elastic_tier_only_the_alarm_sounds() {
    let entry = json!({"pool": "p", "targetCount": 1});
    let mut w = World::set(fixed(), json!({"hotSpares": [entry]}), &[]);
    w.took();
    w.at(60 * SECOND);
    assert_eq!(w.took(), ["onSpareUnderflow p 0/1"]);
}

// spec: HARD-50, SPARE-04, SPARE-13, SPARE-15, PROV-13
#[test]
fn a_consumed_spare_is_replaced_once() {
    let mut w = ready(2);
    w.submit(bundle("a", json!([job("e")])));
    let took = w.acts();
    let taken = w.node_of("a.0.e").unwrap();
    assert_eq!(took[1], format!("call start a.0.e primary on {taken}"));
    assert_eq!(
        took[2..],
        ["onSpareUnderflow p 1/2", "call create @3 c4 in t1"]
    );
    w.picture("@2", 4.0);
    w.at(120 * SECOND);
    assert!(w.acts().is_empty(), "repeated passes create nothing more");
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.joins("@3", 4.0);
    assert_eq!(
        w.calls(),
        Vec::<String>::new(),
        "the first stays an ordinary node"
    );
    assert!(!w.policy.is_unconsumed_spare(&w.long(&taken)));
}

// spec: HARD-49, SPARE-12
#[test]
fn a_spare_that_a_job_took_is_no_excess() {
    let mut w = ready(2);
    // One input lowers the need and takes a spare: the launch goes before the pass.
    w.submit(allow_spare("a"));
    w.took();
    list(&mut w, json!([entry(1)])).unwrap();
    assert_eq!(w.acts(), Vec::<String>::new());
}

// spec: HARD-51, SPARE-11, PROV-12
#[test]
fn after_a_failed_create_the_next_is_a_minute_later() {
    let mut w = World::cold(crate::world::settings(
        cloud(),
        json!({"hotSpares": [entry(1)]}),
    ));
    w.refuse(
        "CreateAwsNode",
        1,
        refused(Status::ResourceExhausted, "no_capacity"),
    );
    w.complete();
    assert_eq!(
        w.took(),
        [
            "onSpareUnderflow p 0/1",
            "call create @1 c4 in t1",
            "onError createFailed",
            "onSpareUnderflow p 0/1"
        ]
    );
    assert!(w.policy.nodes().is_empty(), "no phantom");
    let metrics = w.metrics();
    assert_eq!(metrics.placements_dispatch_failed, 0, "no placement failed");
    w.at(59_999);
    assert!(w.calls().is_empty());
    w.at(60 * SECOND);
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
}

// spec: SPARE-11
#[test]
fn a_spare_that_dies_before_it_started_is_a_failed_provision() {
    let mut w = wanting(entry(1));
    w.took();
    w.at(10 * SECOND);
    w.stopping_for("@1", NodeStoppingReason::ProviderTerminate);
    assert_eq!(w.acts(), ["onNodeStopping @1", "onSpareUnderflow p 0/1"]);
    w.at(70 * SECOND - 1);
    assert!(w.calls().is_empty());
    w.at(70 * SECOND);
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
}

/// Of the two spares the one that job `a.0.e` took, and the other.
fn taken_and_free(w: &World) -> (String, String) {
    let taken = w.node_of("a.0.e").unwrap();
    let free = if taken == "@1" { "@2" } else { "@1" };
    (taken, free.to_owned())
}

// spec: HARD-52, SPARE-14, SPARE-21, SPARE-23
#[test]
fn a_removed_entry_ends_its_spares_as_they_become_free_to_go() {
    let mut w = ready(2);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.took();
    let answer = list(&mut w, json!([])).unwrap();
    let ApiAnswer::HotSpareSpecs(diff) = answer else {
        panic!("a diff")
    };
    assert_eq!(diff["p"], HotSpareDiff::Removed);
    let (taken, free) = taken_and_free(&w);
    assert_eq!(
        w.acts(),
        [
            format!("call terminate {free}"),
            format!("onNodeTerminated {free}")
        ]
    );
    w.joins("@3", 4.0);
    assert_eq!(
        w.calls(),
        ["terminate @3"],
        "the pending one when it has started"
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), taken);
}

// spec: HARD-53, SPARE-16, SPARE-17, SPARE-20, SPARE-21, SPARE-23
#[test]
fn only_changed_fields_are_written_and_edits_of_one_spare_last() {
    let mut w = ready(1);
    let change = |changes| ApiCall::UpdateHotSpareNode {
        node_id: "x".into(),
        changes,
    };
    let for_y = HotSpareChanges {
        reserved_for: Some(vec!["y".into()]),
        ..HotSpareChanges::default()
    };
    let unknown = w.api(change(for_y.clone()));
    assert_eq!(
        w.results[&unknown].as_ref().unwrap_err().code(),
        "unknownNode"
    );
    let node_id = w.long("@1");
    let update = |changes| ApiCall::UpdateHotSpareNode {
        node_id: node_id.clone(),
        changes,
    };
    let alone = w.api(update(HotSpareChanges {
        exclusive: Some(true),
        ..HotSpareChanges::default()
    }));
    assert_eq!(
        w.results[&alone].as_ref().unwrap_err().code(),
        "exclusiveWithoutReservedFor"
    );
    w.took();
    w.api(update(for_y));
    assert_eq!(w.calls(), ["setTags @1 reservedFor=y"]);
    w.tag("@1", "t1", "reservedFor", "y");
    let metadata = w.metadata("@1", "t1");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
    w.took();

    let mut warm = entry(1);
    warm["warmFor"] = json!(["enc"]);
    let ApiAnswer::HotSpareSpecs(diff) = list(&mut w, json!([warm])).unwrap() else {
        panic!("a diff")
    };
    let HotSpareDiff::Changed(fields) = &diff["p"] else {
        panic!("changed")
    };
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["warmFor"]);
    assert_eq!(fields["warmFor"].after, json!(["enc"]));
    assert_eq!(w.calls(), ["setTags @1 warmFor=enc"]);

    let ApiAnswer::HotSpareSpecs(diff) = list(&mut w, json!([warm])).unwrap() else {
        panic!("a diff")
    };
    assert!(diff.is_empty());
    assert!(w.calls().is_empty());
    let refused = list(&mut w, json!([entry(1), entry(2)])).unwrap_err();
    assert!(matches!(&refused, ApiError::Settings(_)));
    assert_eq!(refused.code(), "duplicateHotSpare");
    assert_eq!(w.policy.settings().hot_spares.len(), 1);

    w.submit(bundle("a", json!([job("e")])));
    let taken = w.api(update(HotSpareChanges::default()));
    assert_eq!(w.results[&taken].as_ref().unwrap_err().code(), "notASpare");
}

// spec: SPARE-21
#[test]
fn a_spare_on_its_way_gets_the_change_when_it_has_started() {
    let mut w = wanting(entry(1));
    let mut warm = entry(1);
    warm["warmFor"] = json!(["enc"]);
    list(&mut w, json!([warm])).unwrap();
    w.took();
    w.joins("@1", 4.0);
    assert_eq!(w.calls(), ["setTags @1 warmFor=enc"]);
}

// spec: HARD-54, SPARE-12, SPARE-15, NODE-14
#[test]
fn one_excess_is_one_terminate_whatever_passes_run() {
    let mut w = ready(2);
    w.picture("@2", 4.0);
    list(&mut w, json!([entry(1)])).unwrap();
    assert_eq!(w.acts(), ["call terminate @1", "onNodeTerminated @1"]);
    for _ in 0..3 {
        w.picture("@2", 4.0);
    }
    w.stopping("@1");
    w.stopped("@1");
    w.at(2 * 3_600 * SECOND);
    assert_eq!(w.acts(), ["onNodeStopping @1", "onNodeStopped @1"]);
}

// spec: SPARE-27, NODE-17
#[test]
fn a_refused_end_is_asked_for_again_after_a_minute_and_no_other_ends_in_its_place() {
    let mut w = ready(3);
    let busy = refused(Status::FailedPrecondition, "busy");
    w.refuse("TerminateNode", 2, busy);
    let since = w.now.mono.0;
    list(&mut w, json!([entry(2)])).unwrap();
    assert_eq!(
        w.acts(),
        [
            "call terminate @2",
            "onNodeTerminated @2",
            "onError terminateFailed"
        ]
    );
    // Whatever passes run meanwhile.
    for at in [since, since + 30 * SECOND, since + 60 * SECOND - 1] {
        w.at(at);
        w.picture("@1", 4.0);
        assert_eq!(w.acts(), Vec::<String>::new());
    }
    w.at(since + 60 * SECOND);
    w.picture("@1", 4.0);
    assert_eq!(w.acts(), ["call terminate @2", "onError terminateFailed"]);
    w.at(since + 120 * SECOND);
    w.picture("@1", 4.0);
    assert_eq!(w.acts(), ["call terminate @2"]);
}

// spec: SPARE-12
#[test]
fn the_coldest_goes_first() {
    let mut wanted = entry(3);
    wanted["warmFor"] = json!(["enc"]);
    let more = json!({"hotSpares": [wanted], "templateImages": {"enc": ["img:1", "img:2"]}});
    let mut w = World::cold(crate::world::settings(cloud(), more));
    w.complete();
    for (n, images) in [(1, 2), (2, 0), (3, 1)] {
        let node = format!("@{n}");
        w.hello(&node);
        let mut picture = crate::world::inventory(4.0);
        picture.held_images = (1..=images)
            .map(|i| greenroom_types::inventory::HeldImage {
                reference: format!("img:{i}"),
                ..Default::default()
            })
            .collect();
        let node_id = w.long(&node);
        w.send(StreamEvent::NodeInventoryUpdated {
            node_id,
            inventory: std::sync::Arc::new(picture),
        });
    }
    w.took();
    let mut wanting = |count: u32| {
        let mut entry = entry(count);
        entry["warmFor"] = json!(["enc"]);
        list(&mut w, json!([entry])).unwrap();
        w.calls()
    };
    assert_eq!(wanting(4), ["create @4 c4 in t1"]);
    assert_eq!(
        wanting(1),
        ["terminate @2", "terminate @3"],
        "never one that is on its way, though it holds nothing"
    );
}

// spec: HARD-55, SPARE-05, CORDON-05, CORDON-02
#[test]
fn a_cordoned_spare_is_replaced_and_the_excess_shed_later() {
    let mut w = ready(1);
    let node_id = w.long("@1");
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    assert_eq!(
        w.acts(),
        ["onSpareUnderflow p 0/1", "call create @2 c4 in t1"]
    );
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    assert!(w.acts().is_empty());
    w.api(ApiCall::UncordonNode { node_id });
    assert!(w.calls().is_empty(), "pending ones make no excess");
    w.at(2_000);
    w.joins("@2", 4.0);
    assert_eq!(
        w.calls(),
        ["terminate @1"],
        "the one with the older activity"
    );
}

// spec: SPARE-05, SPARE-06, METR-05
#[test]
fn a_spare_that_would_take_no_job_does_not_count_until_it_would() {
    let low = NodeInventory {
        disk_low: true,
        ..inventory(4.0)
    };
    for picture in [low, down()] {
        let mut w = ready(1);
        w.shows("@1", picture);
        assert_eq!(
            w.acts(),
            ["onSpareUnderflow p 0/1", "call create @2 c4 in t1"]
        );
        let count = w.policy.spare_count(&"p".into());
        assert_eq!((count.live, count.pending), (0, 1));
        assert_eq!(w.metrics().pools[0].live_spares, 0);
        w.picture("@1", 4.0);
        w.joins("@2", 4.0);
        w.at(2_000);
        assert_eq!(w.calls().len(), 1, "one of the two is too many now");
    }
}

// spec: SPARE-25
#[test]
fn a_spare_that_takes_no_start_is_ended_when_it_is_replaced() {
    let busy = NodeInventory {
        assigned_jobs: vec![greenroom_types::inventory::AssignedJob {
            job_id: "x.0.e".into(),
            ..Default::default()
        }],
        ..down()
    };
    let mut w = ready(1);
    w.shows("@1", down());
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
    w.hello("@2");
    assert!(
        w.calls().is_empty(),
        "nobody knows yet whether it is any better"
    );
    w.shows("@1", busy);
    w.picture("@2", 4.0);
    assert!(w.calls().is_empty(), "something is there");
    w.shows("@1", down());
    assert_eq!(w.calls(), ["terminate @1"]);
    let count = w.policy.spare_count(&"p".into());
    assert_eq!((count.live, count.pending), (1, 0));
    w.shows("@1", down());
    assert!(w.calls().is_empty(), "once");
}

fn down() -> NodeInventory {
    NodeInventory {
        runtime: RUNTIME_UNAVAILABLE.to_owned(),
        ..inventory(4.0)
    }
}

// spec: SPARE-26, TIER-08
#[test]
fn a_spare_that_takes_no_start_does_not_keep_its_replacement_out_of_a_full_tier() {
    let mut w = World::cold(crate::world::settings(
        tiers(&[("t1", &[("c4", 4.0)], Some(1))]),
        json!({"hotSpares": [entry(1)]}),
    ));
    w.complete();
    w.joins("@1", 4.0);
    w.at(10 * SECOND);
    w.took();
    w.shows("@1", down());
    w.at(30 * SECOND);
    // Its engine came back in between: the minute begins anew.
    w.picture("@1", 4.0);
    w.at(40 * SECOND);
    w.shows("@1", down());
    w.at(90 * SECOND);
    w.shows("@1", down());
    assert_eq!(w.calls(), [""; 0], "engines come back");
    w.at(180 * SECOND);
    assert_eq!(w.calls(), ["terminate @1"]);
    w.stopping("@1");
    w.at(300 * SECOND);
    assert_eq!(w.calls(), [""; 0], "it may still run, so it has its place");
    w.stopped("@1");
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
}

// spec: SPARE-26, PROV-12
#[test]
fn nothing_is_ended_for_a_replacement_that_cannot_be_asked_for() {
    let mut w = World::cold(crate::world::settings(
        tiers(&[("t1", &[("c4", 4.0)], Some(2))]),
        json!({"hotSpares": [entry(2)]}),
    ));
    w.refuse("CreateAwsNode", 1, refused(Status::Unavailable, "no_stock"));
    w.complete();
    w.refuse("CreateAwsNode", 1, refused(Status::Unavailable, "no_stock"));
    w.joins("@2", 4.0);
    w.shows("@2", down());
    w.at(61 * SECOND);
    // A second refusal, so two minutes; and the place has gone to another.
    w.metadata("n", "t1");
    w.joins("n", 4.0);
    w.took();
    w.at(179 * SECOND);
    assert_eq!(w.calls(), [""; 0]);
    w.at(181 * SECOND);
    assert_eq!(w.calls(), ["terminate @2"]);
}

// spec: SPARE-26
#[test]
fn spares_that_never_take_a_start_are_not_bought_without_end() {
    let mut w = ready(2);
    let mut there = vec!["@1".to_owned(), "@2".to_owned()];
    for node in &there {
        w.shows(node, down());
    }
    let mut next = 3;
    let mut ended = 0;
    for minute in 1..30 {
        for call in w.calls() {
            match call.split(' ').collect::<Vec<_>>()[..] {
                ["create", ..] => {
                    let node = format!("@{next}");
                    next += 1;
                    w.hello(&node);
                    w.shows(&node, down());
                    there.push(node);
                }
                ["terminate", node] => {
                    there.retain(|it| it != node);
                    ended += 1;
                    w.stopping(node);
                    w.stopped(node);
                }
                _ => panic!("{call}"),
            }
        }
        assert!(there.len() <= 4, "{there:?} at minute {minute}");
        w.at(minute * 60 * SECOND);
    }
    assert!(ended > 2, "and the newest ones are tried");
    let last = there.last().unwrap().clone();
    w.took();
    w.picture(&last, 4.0);
    let count = w.policy.spare_count(&"p".into());
    assert_eq!(count.live, 1, "{there:?}");
}

// spec: SPARE-21
#[test]
fn a_spare_that_does_not_count_for_now_gets_its_new_tags_as_well() {
    let mut w = ready(1);
    w.disk("@1", 4.0, true);
    w.took();
    let mut warm = entry(1);
    warm["warmFor"] = json!(["enc"]);
    list(&mut w, json!([warm])).unwrap();
    let calls = w.calls();
    assert!(
        calls
            .iter()
            .any(|call| call.contains("@1") && call.contains("warmFor")),
        "{calls:?}"
    );
}

// spec: SPARE-09
#[test]
fn the_cap_of_the_tier_binds_spares_as_well() {
    let pools = tiers(&[
        ("t1", &[("c4", 4.0)], Some(2)),
        ("t2", &[("c4", 4.0)], None),
    ]);
    let mut w = World::cold(crate::world::settings(
        pools,
        json!({"hotSpares": [entry(2)]}),
    ));
    // A node that is there for jobs counts as well.
    w.snapshot_node("n", "t1", inventory(4.0));
    w.complete();
    assert_eq!(w.calls(), ["create @1 c4 in t1"]);
}

// spec: PROV-13, LAUNCH-02
#[test]
fn a_launching_spare_may_take_a_job_and_is_replaced() {
    let pools = tiers(&[("t1", &[("c4", 4.0)], Some(2))]);
    let mut w = World::cold(crate::world::settings(
        pools,
        json!({"hotSpares": [entry(1)]}),
    ));
    w.complete();
    w.took();
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
    w.joins("@1", 4.0);
    assert_eq!(w.calls(), ["start a.0.e primary on @1"]);
}

// spec: SPARE-05, SPARE-12, SPARE-14
#[test]
fn registered_spares_are_never_switched_off() {
    let mut w = World::set(
        fixed(),
        json!({"hotSpares": [{"pool": "p", "targetCount": 1}]}),
        &[],
    );
    for id in ["s1", "s2"] {
        w.tag(id, "own", "spare", "true");
        w.tag(id, "own", "auto-manager", "true");
        w.joins(id, 4.0);
    }
    w.took();
    list(&mut w, json!([])).unwrap();
    w.at(600 * SECOND);
    assert!(w.calls().is_empty());
}

// spec: SPARE-24
#[test]
fn a_raised_target_clears_no_back_off_and_a_removed_pool_starts_without_one() {
    let mut w = World::cold(crate::world::settings(
        tiers(&[("t1", &[("c4", 4.0)], None)]),
        json!({"hotSpares": [entry(1)]}),
    ));
    w.complete();
    w.at(10 * SECOND);
    w.took();
    // It goes for a reason that says nothing of the tier, so that only the pool's own time runs.
    w.stopping_for("@1", NodeStoppingReason::UserRequested);
    list(&mut w, json!([entry(3)])).unwrap();
    assert!(w.calls().is_empty());
    list(&mut w, json!([])).unwrap();
    w.took();
    list(&mut w, json!([entry(1)])).unwrap();
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
}

// spec: SPARE-18, PEND-02
#[test]
fn a_spare_that_becomes_admissible_wakes_the_pending() {
    let mut wanted = entry(1);
    wanted["reservedFor"] = json!(["x"]);
    wanted["exclusive"] = json!(true);
    let pools = tiers(&[("t1", &[("c4", 4.0)], Some(1))]);
    let mut w = World::cold(crate::world::settings(
        pools,
        json!({"hotSpares": [wanted]}),
    ));
    w.complete();
    w.joins("@1", 4.0);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.filtered()["@1"], "reservedExclusively");
    w.took();
    w.tag("@1", "t1", "exclusive", "false");
    let metadata = w.metadata("@1", "t1");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
    assert_eq!(w.calls(), ["start a.0.e primary on @1"]);
}

// spec: PROV-12, SPARE-11
#[test]
fn a_tier_that_backs_off_for_jobs_buys_no_spares() {
    let mut w = World::with(cloud(), &[]);
    w.refuse(
        "CreateAwsNode",
        1,
        CallFailure::Refused(greenroom_types::call::Refusal::new(
            Status::ResourceExhausted,
            "no_capacity",
            "none",
        )),
    );
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    list(&mut w, json!([entry(1)])).unwrap();
    assert!(w.calls().is_empty());
    w.at(60 * SECOND);
    // Half open: the job's node is the one probe.
    assert_eq!(w.calls(), ["create @2 c4 in t1"]);
    w.joins("@2", 4.0);
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on @2", "create @3 c4 in t1"]
    );
}

// spec: SPARE-06, SPARE-07, SPARE-11
#[test]
fn news_of_any_node_run_a_pass() {
    let mut w = wanting(entry(1));
    w.joins("@1", 4.0);
    w.joins("n", 4.0);
    w.refuse("CreateAwsNode", 1, refused(Status::Unavailable, "no_stock"));
    w.at(1_000);
    w.stopping("@1");
    w.took();
    let mut told = |news: &dyn Fn(&mut World)| {
        news(&mut w);
        let took = w.took();
        let short = took.iter().filter(|line| *line == "onSpareUnderflow p 0/1");
        short.count()
    };
    assert_eq!(told(&|w| w.picture("n", 4.0)), 1, "an inventory");
    assert_eq!(
        told(&|w| w.tag("n", "t1", "rack", "7")),
        0,
        "nothing was told yet"
    );
    let cordon = |w: &mut World| {
        let node_id = w.long("n");
        w.api(ApiCall::CordonNode { node_id });
    };
    assert_eq!(told(&cordon), 1, "a cordon");
    assert_eq!(told(&|w| w.stopping("n")), 1, "a node that goes");
}
