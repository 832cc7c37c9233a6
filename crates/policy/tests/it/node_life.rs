//! Nodes as they come, change hands and go; what their tags and numbers mean (NODE, TIER, RESV, SPARE).

use greenroom_policy::ApiCall;
use greenroom_policy::Settings;
use greenroom_types::NodeId;
use greenroom_types::bundle::Resilience;
use greenroom_types::job::StopReason;
use greenroom_types::node::NodeStoppingReason;
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, inventory, job, needing, settings, sized, tiers};

fn retag(w: &mut World, id: &str, key: &str, value: &str) {
    w.tag(id, "own", key, value);
    let metadata = w.metadata(id, "own");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
}

/// Pool `p` with a registered tier and pool `q` with another.
fn two_pools() -> Value {
    json!([
        {"name": "p", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]},
        {"name": "q", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]},
    ])
}

// spec: NODE-03
#[test]
fn the_tags_of_a_bought_node_are_what_places_it_later() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    // A later instance of the policy knows nothing but the tags.
    let node_id = w.long("@1");
    let metadata = w.nodes[&node_id].clone();
    let later = |keep: bool| {
        let mut v = World::cold(settings(cloud(), json!({})));
        let mut known = (*metadata).clone();
        if !keep {
            known.tags.remove("pool");
            known.tags.remove("tier");
        }
        v.nodes.insert(node_id.clone(), known.into());
        v.snapshot_node(node_id.as_str(), "t1", inventory(4.0));
        v.complete();
        v.submit(bundle("b", json!([job("e")])));
        v
    };
    assert_eq!(later(true).node_of("b.0.e").unwrap(), node_id.to_string());
    let lost = later(false);
    assert_ne!(lost.node_of("b.0.e"), Some(node_id.to_string()));
    assert_eq!(lost.filtered()[node_id.as_str()], "wrongPool");
}

// spec: NODE-06, CEIL-06
#[test]
fn a_started_node_is_told_then_its_starts_are_sent_then_others_are_served() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    w.fails("a.0.e");
    assert_eq!(w.restarts("a.0.e"), 1);
    // A machine of the job's own comes up: its history is cleared.
    w.at(10_000);
    w.stopping("@1");
    let bought = w.node_of("a.0.e").unwrap();
    assert_eq!(bought, "@2");
    w.starting("@2", None);
    w.submit(bundle("b", json!([sized("e", 2.0)])));
    w.took();
    let count = w.restarts("a.0.e");
    assert!(count > 0);
    w.hello("@2");
    assert_eq!(w.restarts("a.0.e"), 0);
    assert_eq!(
        w.took()[..2],
        ["onNodeStarted @2", "call start a.0.e primary on @2"]
    );
    let view = w.policy.nodes();
    let view = view.iter().find(|n| w.short(&n.node_id) == "@2").unwrap();
    assert_eq!(view.state, greenroom_policy::effect::MirrorState::Running);
    // Neither the grace nor the provision timeout ends it any more.
    w.picture("@2", 4.0);
    w.took();
    w.at(3_600_000);
    assert!(!w.calls().contains(&"terminate @2".to_owned()));
}

// spec: NODE-06
#[test]
fn reconcilers_run_after_the_starts_of_a_started_node() {
    let entry = json!({"pool": "p", "targetCount": 1, "spec": {"instanceType": "c4"}});
    let more = json!({"hotSpares": [entry], "experimental": {"nodeServices": true},
        "nodeServices": [{"serviceId": "s", "pools": ["p"]}]});
    let mut w = World::cold(settings(cloud(), more));
    w.complete();
    w.at(2_000);
    assert_eq!(w.policy.spare_count(&"p".into()).pending, 1);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    let on = w.node_of("a.0.e").unwrap();
    w.took();
    w.hello(&on);
    let took = w.acts();
    assert_eq!(took[0], format!("onNodeStarted {on}"));
    assert_eq!(took[1], format!("call start a.0.e primary on {on}"));
    let spare = if on == "@1" { "@2" } else { "@1" };
    w.joins(spare, 4.0);
    let count = w.policy.spare_count(&"p".into());
    assert_eq!((count.live, count.pending), (1, 0), "settled");
    assert!(w.calls().iter().any(|call| call.contains("nodeService")));
}

// spec: NODE-15
#[test]
fn a_node_that_others_end_shows_only_as_stopping_and_stopped() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.stopping_for("n", NodeStoppingReason::UserRequested);
    w.stopped("n");
    assert_eq!(w.acts(), ["onNodeStopping n", "onNodeStopped n"]);
}

// spec: NODE-19, TIER-09
#[test]
fn a_node_given_to_another_pool_loses_its_jobs_and_serves_there() {
    let mut w = World::with(two_pools(), &[("n", 4.0), ("m", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    let from = w.node_of("a.0.e").unwrap();
    let other = if from == "n" { "m" } else { "n" };
    w.took();
    w.stopping(&from);
    assert_eq!(w.node_of("a.0.e").unwrap(), other);
    assert_eq!(w.restarts("a.0.e"), 1, "like any loss");
    w.stopped(&from);
    w.tag(&from, "own", "pool", "q");
    w.joins(&from, 4.0);
    w.at(60_000);
    let mut b = bundle("b", json!([job("e")]));
    b.pool = "q".into();
    w.submit(b);
    assert_eq!(w.node_of("b.0.e").unwrap(), from);
}

// spec: NODE-20
#[test]
fn an_empty_node_is_left_to_the_managers_reaper() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.send(StreamEvent::BundleDeleted("a".into()));
    w.took();
    w.at(24 * 3_600_000);
    assert!(w.calls().is_empty());
    assert_eq!(w.policy.nodes().len(), 1);
    w.stopping_for("@1", NodeStoppingReason::UserRequested);
    assert_eq!(w.acts(), ["onNodeStopping @1"]);
}

// spec: TIER-04
#[test]
fn elastic_tiers_buy_and_fixed_ones_only_use_what_was_registered() {
    let mut w = World::with(fixed(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    assert!(w.calls().is_empty());
    w.joins("n", 4.0);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.calls(), ["create @1 c4 in t1"]);
    let tier = |name: &str| json!({"name": name, "kind": "local-servers", "scaleOut": "fixed"});
    let two = json!({"url": "h:1",
        "placementPools": [{"name": "p", "tiers": [tier("a"), tier("b")]}]});
    let faults = Settings::parse(&two).unwrap_err().faults;
    let codes: Vec<&str> = faults.iter().map(|fault| fault.code.name()).collect();
    assert_eq!(codes, ["multipleFixedTiers"]);
}

// spec: TIER-06
#[test]
fn one_unit_of_capacity_is_one_vcpu() {
    // A shape of 4 vCPUs: four jobs of one, bought together, and no fifth.
    let mut w = World::with(tiers(&[("t1", &[("c4", 4.0)], Some(1))]), &[]);
    let jobs: Vec<Value> = ["a", "b", "c", "d", "e"].iter().map(|n| job(n)).collect();
    w.submit(bundle("a", json!(jobs)));
    let placed: Vec<bool> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|n| w.node_of(&format!("a.0.{n}")).is_some())
        .collect();
    assert_eq!(placed, [true, true, true, true, false]);
    // A machine that reports 8 takes eight.
    let mut w = World::with(fixed(), &[("n", 8.0)]);
    w.submit(bundle("b", json!([sized("e", 8.0), sized("f", 0.5)])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
    assert_eq!(w.node_of("b.0.f"), None);
}

// spec: RESV-05
#[test]
fn a_node_that_comes_back_is_empty() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    assert_eq!(w.metrics().pools[0].used_capacity_fraction, 1.0);
    w.stopping("n");
    assert_eq!(w.metrics().pools[0].used_capacity_fraction, 0.0);
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.stopped("n");
    w.at(60_000);
    w.joins("n", 4.0);
    assert_eq!(w.metrics().pools[0].used_capacity_fraction, 0.0);
    w.submit(bundle("b", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
}

// spec: RESIL-07
#[test]
fn the_loss_of_the_primary_promotes_nobody() {
    let mut w = World::with(fixed(), &[("n1", 4.0), ("n2", 4.0), ("n3", 4.0)]);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Resilience::default());
    w.submit(a);
    for id in ["a.0.e", "a.1.e"] {
        w.runs(id);
    }
    let (primary, backup) = (w.node_of("a.0.e").unwrap(), w.node_of("a.1.e").unwrap());
    w.took();
    w.stopping(&primary);
    let third = w.node_of("a.0.e").unwrap();
    assert_eq!(w.calls(), [format!("start a.0.e primary on {third}")]);
    assert_eq!(w.node_of("a.1.e").unwrap(), backup);
    assert_ne!(third, backup);
}

// spec: PORT-03
#[test]
fn a_port_that_nobody_declared_is_found_out_by_the_worker() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    // Both bind 8080; neither says so.
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
    w.joins("m", 4.0);
    w.took();
    w.ends("b.0.e", StopReason::JobFailed);
    assert_eq!(w.restarts("b.0.e"), 1, "the normal failure path");
    assert_eq!(w.calls().len(), 1);
    // Declared, the same two would not have met.
    let needs = json!({"requiredHostPorts": ["8080/tcp"]});
    w.submit(bundle("c", json!([needing("e", needs.clone())])));
    w.submit(bundle("d", json!([needing("e", needs)])));
    assert_ne!(w.node_of("c.0.e"), w.node_of("d.0.e"));
}

// spec: SPARE-01
#[test]
fn an_operators_tag_makes_a_registered_node_a_spare_and_another_value_ends_it() {
    let entry = json!({"pool": "p", "targetCount": 1});
    let mut w = World::cold(settings(fixed(), json!({"hotSpares": [entry]})));
    w.snapshot_node("n", "own", inventory(4.0));
    w.complete();
    let live = |w: &World| w.policy.spare_count(&"p".into()).live;
    let node_id = NodeId::new("n");
    assert_eq!((live(&w), w.policy.is_hot_spare_node(&node_id)), (0, false));
    retag(&mut w, "n", "spare", "true");
    assert_eq!((live(&w), w.policy.is_hot_spare_node(&node_id)), (1, true));
    retag(&mut w, "n", "spare", "yes");
    assert_eq!((live(&w), w.policy.is_hot_spare_node(&node_id)), (0, false));
    // One entry per pool.
    let two = json!([{"pool": "p", "targetCount": 1}, {"pool": "p", "targetCount": 2}]);
    let id = w.api(ApiCall::UpdateHotSpareSpecs { hot_spares: two });
    assert!(w.results[&id].is_err());
}

// spec: SPARE-22
#[test]
fn a_changed_spec_is_for_later_purchases() {
    let pools = tiers(&[("t1", &[("c4", 4.0), ("d8", 8.0)], None)]);
    let entry = |shape: &str, target: u32| json!([{"pool": "p", "targetCount": target, "spec": {"instanceType": shape}}]);
    let mut w = World::cold(settings(pools, json!({"hotSpares": entry("c4", 1)})));
    w.complete();
    w.joins("@1", 4.0);
    w.took();
    w.api(ApiCall::UpdateHotSpareSpecs {
        hot_spares: entry("d8", 1),
    });
    w.at(600_000);
    assert!(w.calls().is_empty(), "the live one stays");
    w.api(ApiCall::UpdateHotSpareSpecs {
        hot_spares: entry("d8", 2),
    });
    assert_eq!(w.calls(), ["create @2 d8 in t1"]);
}
