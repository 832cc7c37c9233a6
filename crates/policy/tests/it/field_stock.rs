//! Field cases of stock, providers, ceilings and rest (docs/spec/field-cases.md).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_policy::job::Standing;
use greenroom_policy::{ApiCall, Callback, Effect};
use greenroom_types::bundle::{Bundle, OnLaunch};
use greenroom_types::call::{Detail, Refusal, Status};
use greenroom_types::inventory::{Capability, NodeInventory};
use greenroom_types::job::StopReason;
use greenroom_types::node::NodeStoppingReason;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId};
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, inventory, job, needing, settings, sized, tiers};

const SECOND: u64 = 1_000;

fn allow_spare(id: &str, size: f64) -> Bundle {
    let mut a = bundle(id, json!([sized("e", size)]));
    a.on_launch = OnLaunch::AllowSpare;
    a
}

/// So many live spares of 4 vCPU, bought.
fn spares(count: u32) -> World {
    let entry = json!({"pool": "p", "targetCount": count, "spec": {"instanceType": "c4"}});
    let mut w = World::cold(settings(cloud(), json!({"hotSpares": [entry]})));
    w.complete();
    for n in 1..=count {
        w.joins(&format!("@{n}"), 4.0);
    }
    w.at(10 * SECOND);
    w.took();
    w
}

// spec: FIELD-43, TIME-01
#[test]
fn fifty_at_once_share_out_fifty_places() {
    let ids: Vec<String> = (0..25).map(|n| format!("n{n:02}")).collect();
    let nodes: Vec<(&str, f64)> = ids.iter().map(|id| (id.as_str(), 2.0)).collect();
    let mut w = World::with(fixed(), &nodes);
    w.hold = true;
    let bundles: Vec<Bundle> = (0..50)
        .map(|n| bundle(&format!("b{n:02}"), json!([job("e")])))
        .collect();
    let calls: Vec<_> = bundles
        .iter()
        .map(|bundle| {
            w.api(ApiCall::CreateBundle {
                bundle: Box::new(bundle.clone()),
            })
        })
        .collect();
    w.answer();
    for bundle in &bundles {
        w.store(bundle);
        w.tell_bundle(bundle.bundle_id.as_str());
    }
    for n in 0..50 {
        w.tell(&format!("b{n:02}.0.e"));
    }
    w.hold = false;
    w.answer();
    assert!(calls.iter().all(|call| w.results[call].is_ok()));
    assert!(!w.acts().iter().any(|line| line.starts_with("onError")));
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for n in 0..50 {
        *used
            .entry(w.node_of(&format!("b{n:02}.0.e")).unwrap())
            .or_default() += 1;
    }
    assert_eq!(used.len(), 25);
    assert!(used.values().all(|count| *count == 2), "{used:?}");
}

// spec: FIELD-45, FIELD-49, PROV-13
#[test]
fn the_request_that_is_one_too_many_waits_for_a_node_with_a_time() {
    let mut w = spares(3);
    for id in ["a", "b", "c", "d"] {
        w.submit(allow_spare(id, 4.0));
    }
    let calls = w.calls();
    let starts = calls
        .iter()
        .filter(|call| call.starts_with("start"))
        .count();
    assert_eq!(starts, 3, "{calls:?}");
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        let node = w.long(&w.node_of(id).unwrap());
        assert_eq!(w.policy.node_due_within(&node), None, "{id} is on its node");
    }
    let why = w.policy.explain(&"d.0.e".into());
    assert_eq!(why.standing, Some(Standing::Bound));
    let node = w.node_of("d.0.e").unwrap();
    let due = |w: &World| w.policy.node_due_within(&w.long(&node));
    assert_eq!(due(&w), Some(Millis(600_000)));
    w.at(w.now.mono.0 + 60 * SECOND);
    w.starting(&node, None);
    assert_eq!(due(&w), Some(Millis(120_000)), "it boots");
    w.joins(&node, 4.0);
    assert_eq!(due(&w), None);
    // Where nothing can be bought it says so.
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b"] {
        w.submit(allow_spare(id, 4.0));
    }
    let why = w.policy.explain(&"b.0.e".into());
    assert_eq!(why.standing, Some(Standing::Pending));
    assert!(why.to_string().contains("needs 4 vCPU"), "{why}");
}

// spec: FIELD-47
#[test]
fn the_end_of_many_bundles_buys_nothing() {
    let mut w = spares(5);
    for n in 0..20 {
        w.joins(&format!("o{n:02}"), 4.0);
        w.tag(&format!("o{n:02}"), "t1", "tier", "t1");
        let metadata = w.metadata(&format!("o{n:02}"), "t1");
        w.send(StreamEvent::NodeTagsUpdated {
            metadata,
            revision: 1,
        });
        w.submit(bundle(&format!("b{n:02}"), json!([sized("e", 4.0)])));
        w.runs(&format!("b{n:02}.0.e"));
    }
    assert_eq!(w.policy.spare_count(&"p".into()).live, 5);
    w.took();
    for n in 0..20_u64 {
        w.at(20 * SECOND + n * 50);
        let id = format!("b{n:02}");
        w.ends(&format!("{id}.0.e"), StopReason::UserRequested);
        w.over(&format!("{id}.0.e"));
        w.send(StreamEvent::JobDeleted(format!("{id}.0.e").as_str().into()));
        w.send(StreamEvent::BundleDeleted(id.as_str().into()));
    }
    w.at(600 * SECOND);
    assert!(w.calls().is_empty());
}

// spec: FIELD-51, PROV-08, PROV-12
#[test]
fn each_class_of_a_providers_error_is_taken_for_what_it_is() {
    let cases = [
        (
            "InsufficientInstanceCapacity",
            Status::ResourceExhausted,
            "",
        ),
        (
            "MaxSpotInstanceCountExceeded",
            Status::ResourceExhausted,
            "",
        ),
        ("VcpuLimitExceeded", Status::ResourceExhausted, ""),
        ("LimitExceeded", Status::ResourceExhausted, ""),
        ("RequestLimitExceeded", Status::Unavailable, ""),
        ("InternalError", Status::Unavailable, ""),
        (
            "UnauthorizedOperation",
            Status::PermissionDenied,
            "missing permission",
        ),
        (
            "AuthFailure",
            Status::FailedPrecondition,
            "missing permission",
        ),
        (
            "InvalidParameterValue",
            Status::InvalidArgument,
            "bad request",
        ),
        (
            "MissingParameter",
            Status::FailedPrecondition,
            "bad request",
        ),
    ];
    for (code, status, class) in cases {
        let pools = tiers(&[("t1", &[("c4", 4.0)], None), ("t2", &[("d4", 4.0)], None)]);
        let mut w = World::with(pools, &[]);
        let refusal = Refusal::new(status, "provider_error", "the provider said no")
            .with("provider_code", Detail::from(code));
        w.refuse(
            "CreateAwsNode",
            1,
            greenroom_policy::CallFailure::Refused(refusal),
        );
        w.submit(bundle("a", json!([job("e")])));
        // Whatever it was: the next tier at once, this one not before its back-off ends.
        assert_eq!(
            w.calls(),
            ["create @1 c4 in t1", "create @2 d4 in t2"],
            "{code}"
        );
        let message = w
            .all
            .iter()
            .find_map(|effect| match effect {
                Effect::Callback(Callback::OnError(error)) => Some(error.message.clone()),
                _ => None,
            })
            .unwrap();
        assert!(message.contains(code), "{message}");
        let cured = !message.contains("time will not cure");
        assert_eq!(cured, class.is_empty(), "{message}");
        assert!(message.contains(class), "{message}");
        assert_eq!(w.restarts("a.0.e"), 0);
    }
}

// spec: FIELD-55, PROV-09, CEIL-03
#[test]
fn a_machine_that_dies_before_it_is_heard_costs_its_job_nothing() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.starting("@1", None);
    w.at(20 * SECOND);
    w.took();
    w.stopping_for("@1", NodeStoppingReason::ProviderTerminate);
    assert_eq!(w.calls(), ["create @2 c4 in t1"], "at once");
    assert_eq!(w.restarts("a.0.e"), 0);
    let first = w.long("@1");
    let view = w
        .policy
        .nodes()
        .into_iter()
        .find(|node| node.node_id == first);
    assert!(view.is_none_or(|node| !node.prospective && node.jobs.is_empty()));
    w.joins("@2", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "@2");
}

// spec: FIELD-59, INTRA-04, GPU-06
#[test]
fn two_times_two_gpus_fit_a_free_node_of_four() {
    let two = json!({"requiredCapacity": 1,
        "requiredCapabilities": [{"name": "norsk.io/nvidia-gpu", "count": 2}]});
    let with = json!({"jobName": "f", "coLocateWith": ["e"], "requirements": two});
    let mut w = World::cold(settings(fixed(), json!({})));
    let picture = NodeInventory {
        capabilities: vec![Capability {
            name: "norsk.io/nvidia-gpu".into(),
            count: 4,
            ..Capability::default()
        }],
        ..inventory(8.0)
    };
    w.snapshot_node("n", "own", picture);
    w.complete();
    w.submit(bundle("a", json!([needing("e", two), with])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(w.node_of("a.0.f").unwrap(), "n");
}

// spec: FIELD-61, CEIL-01, RECOV-11
#[test]
fn no_lack_of_room_in_between_lets_a_job_start_more_often_than_it_may() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    let mut starts: Vec<u64> = Vec::new();
    let mut broken = 0;
    // The first start is two hours ago when it begins to fail.
    let from = 7_200 * SECOND;
    for round in 0..60 {
        w.at(from + round * 120 * SECOND);
        w.took();
        if round % 2 == 0 {
            w.api(ApiCall::CordonNode {
                node_id: "n".into(),
            });
        }
        if w.node_of("a.0.e").is_some() {
            w.fails("a.0.e");
        }
        w.at(from + round * 120 * SECOND + 60 * SECOND);
        w.api(ApiCall::UncordonNode {
            node_id: "n".into(),
        });
        for line in w.took() {
            starts.extend(line.starts_with("call start").then_some(w.now.mono.0));
            broken += usize::from(line.starts_with("onBundleBroken"));
        }
        if w.node_of("a.0.e").is_some() {
            w.runs("a.0.e");
        }
    }
    assert_eq!(broken, 1);
    assert!(starts.len() >= 6, "{starts:?}");
    for (at, first) in starts.iter().enumerate() {
        let within = starts[at..].iter().filter(|t| **t - first < 3_600 * SECOND);
        assert!(within.count() <= 6, "{starts:?}");
    }
}

// spec: FIELD-67
#[test]
fn a_fleet_at_rest_stays_at_rest() {
    for seed in 0..6_u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut dice = move |sides: u64| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % sides
        };
        let entry = json!({"pool": "p", "targetCount": dice(3), "spec": {"instanceType": "c4"}});
        let pools = tiers(&[
            ("t1", &[("c4", 4.0)], Some(3)),
            ("t2", &[("d8", 8.0)], Some(4)),
        ]);
        let mut w = World::cold(settings(pools, json!({"hotSpares": [entry]})));
        w.complete();
        for n in 0..8 {
            let mut a = bundle(&format!("b{n}"), json!([sized("e", 1.0 + dice(3) as f64)]));
            if dice(2) == 0 {
                a.resilience_policy = Some(Default::default());
            }
            w.submit(a);
        }
        // Everything that was bought comes up, and what is placed runs.
        let mut seen: BTreeSet<NodeId> = BTreeSet::new();
        for _ in 0..20 {
            let nodes: Vec<NodeId> = w.policy.nodes().into_iter().map(|n| n.node_id).collect();
            for node_id in nodes {
                if seen.insert(node_id.clone()) {
                    let short = w.short(&node_id);
                    w.joins(&short, 4.0);
                }
            }
            w.at(w.now.mono.0 + 2 * SECOND);
        }
        let jobs: Vec<String> = w.jobs.keys().map(ToString::to_string).collect();
        for id in &jobs {
            if w.has_started(id) {
                w.runs(id);
            }
        }
        w.at(w.now.mono.0 + 700 * SECOND);
        w.took();
        let places = |w: &World| jobs.iter().map(|id| w.node_of(id)).collect::<Vec<_>>();
        let before = places(&w);
        for _ in 0..1_000 {
            w.at(w.now.mono.0 + 60 * SECOND);
        }
        for node_id in seen {
            let short = w.short(&node_id);
            w.picture(&short, 4.0);
        }
        assert!(w.calls().is_empty(), "seed {seed}");
        assert_eq!(places(&w), before);
    }
}
