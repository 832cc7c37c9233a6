//! Rules of placement as the policy applies them: exclusivity, spares, dry runs, admission.

use greenroom_placement::{Code, Decision};
use greenroom_policy::getters::Admission;
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, needing, sized};

// spec: HARD-29, RESIL-04
#[test]
fn a_primary_placed_after_its_backup_keeps_its_distance() {
    let mut w = World::with(cloud(), &[]);
    w.tag("n", "t1", "x", "y");
    w.joins("n", 4.0);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Default::default());
    w.store(&a);
    w.tell_bundle("a");
    w.took();
    w.tell("a.1.e");
    assert_eq!(w.calls(), ["start a.1.e backup on n"]);
    w.tell("a.0.e");
    assert_eq!(w.acts(), ["call create @1 c4 in t1"], "no degradation");
}

// spec: HARD-30, RESIL-05, RESIL-06
#[test]
fn with_one_node_both_copies_share_it_and_that_is_told_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Default::default());
    w.submit(a);
    let acts = w.acts();
    assert_eq!(
        acts.iter().filter(|line| line.contains("Degraded")).count(),
        1
    );
    w.joins("m", 4.0);
    assert_eq!(w.acts(), ["onNodeStarted m"], "nothing moves");
}

// spec: HARD-33, PLACE-17, PLACE-25, LAUNCH-02
#[test]
fn an_avoided_spare_in_an_earlier_tier_beats_an_ordinary_node_in_a_later_one() {
    let pools = || {
        json!([{"name": "p", "tiers": [
        {"name": "t1", "kind": "aws", "scaleOut": "elastic", "region": "r", "maxNodes": 5, "placementLeadMs": 0,
         "candidateInstanceTypes": [{"instanceType": "c4", "totalCapacity": 4, "totalCores": 4}]},
        {"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]}])
    };
    let mut w = World::with(pools(), &[("m", 4.0)]);
    w.tag("s", "t1", "spare", "true");
    w.joins("s", 4.0);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "s");

    // An ordinary prospective node besides: still the spare.
    let mut w = World::with(pools(), &[]);
    w.submit(bundle("x", json!([job("e")])));
    w.tag("s", "t1", "spare", "true");
    w.joins("s", 4.0);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "s");

    // An ordinary booted node: that one.
    let mut w = World::with(pools(), &[]);
    w.tag("n", "t1", "x", "y");
    w.joins("n", 4.0);
    w.tag("s", "t1", "spare", "true");
    w.joins("s", 4.0);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: SPARE-04
#[test]
fn a_registered_spare_is_a_spare_again_once_empty_and_a_bought_one_is_not() {
    let mut w = World::with(fixed(), &[]);
    w.tag("s", "own", "spare", "true");
    w.joins("s", 4.0);
    assert!(w.policy.is_unconsumed_spare(&"s".into()));
    assert_eq!(w.metrics().pools[0].live_spares, 1);
    w.submit(bundle("a", json!([job("e")])));
    assert!(!w.policy.is_unconsumed_spare(&"s".into()));
    assert_eq!(w.metrics().pools[0].live_spares, 0);
    w.send(greenroom_types::stream::StreamEvent::JobDeleted(
        "a.0.e".into(),
    ));
    assert!(w.policy.is_unconsumed_spare(&"s".into()));
    assert!(w.policy.is_hot_spare_node(&"s".into()));
}

// spec: HARD-46, INTRA-09
#[test]
fn an_exclusive_job_and_any_other_keep_apart() {
    let exclusive = |id: &str| bundle(id, json!([{"jobName": "e", "exclusive": true}]));
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(exclusive("a"));
    w.submit(bundle("b", json!([sized("e", 0.0)])));
    assert_eq!(w.filtered()["n"], "exclusivity");
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("b", json!([sized("e", 0.0)])));
    w.submit(exclusive("a"));
    assert_eq!(w.filtered()["n"], "exclusivity");
}

// spec: HARD-46, RESV-06, RESV-07
#[test]
fn a_node_service_on_it_does_not_keep_an_exclusive_job_away() {
    let mut w = World::with(fixed(), &[]);
    w.hello("n");
    let mut picture = crate::world::inventory(4.0);
    picture.assigned_jobs = vec![greenroom_types::inventory::AssignedJob {
        job_id: "svc.0a1b2c3d".into(),
        role: "nodeService".into(),
        ..Default::default()
    }];
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "n".into(),
        inventory: std::sync::Arc::new(picture),
    });
    w.submit(bundle("a", json!([{"jobName": "e", "exclusive": true}])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}

// spec: PLACE-33
#[test]
fn a_dry_run_tells_and_does_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.took();
    let a = bundle("a", json!([job("e"), sized("f", 99.0)]));
    let run = w.policy.place_dry_run(&a, 0, None).unwrap();
    assert!(matches!(run.decision, Decision::Place { ref node, .. } if node.as_str() == "n"));
    assert_eq!(run.trace.attempts.len(), 1);
    let run = w.policy.place_dry_run(&a, 0, Some(&"f".into())).unwrap();
    assert!(matches!(run.decision, Decision::Failure { .. }));
    assert!(w.policy.place_dry_run(&a, 0, Some(&"g".into())).is_none());
    assert!(w.policy.place_dry_run(&a, 1, None).is_none());
    assert!(w.took().is_empty());
    assert_eq!(w.metrics().placements_attempted, 0);
}

// spec: VALID-10
#[test]
fn admission_judges_each_job_by_itself() {
    let w = World::with(fixed(), &[("n", 4.0)]);
    let two = bundle("a", json!([sized("e", 3.0), sized("f", 3.0)]));
    assert!(matches!(
        w.policy.validate_bundle_admission(&two),
        Admission::Ok { .. }
    ));
    let big = bundle("a", json!([sized("e", 3.0), sized("f", 5.0)]));
    let Admission::NoCapacity { unplaceable, .. } = w.policy.validate_bundle_admission(&big) else {
        panic!("no room for f")
    };
    assert_eq!(unplaceable.len(), 1);
    assert_eq!(unplaceable[0].job_name.as_str(), "f");
    assert_eq!(unplaceable[0].reason, "noCapacityInAnyPool");
    let mut bad = two;
    bad.pool = "nowhere".into();
    assert!(matches!(
        w.policy.validate_bundle_admission(&bad),
        Admission::ValidationErrors { .. }
    ));
}

// spec: HARD-114, VALID-05
#[test]
fn a_need_that_nothing_offers_is_an_error_where_the_pool_buys() {
    let sdi = json!({"requiredCapabilities": [{"name": "sdi", "count": 1}]});
    let wants = bundle("a", json!([needing("e", sdi)]));
    let codes = |w: &World| -> (Vec<Code>, Vec<Code>) {
        let findings = w.policy.validate_bundle(&wants);
        (
            findings.errors.iter().map(|f| f.code).collect(),
            findings.warnings.iter().map(|f| f.code).collect(),
        )
    };
    let w = World::with(cloud(), &[]);
    assert_eq!(codes(&w), (vec![Code::CapabilityUnsatisfiable], vec![]));
    let w = World::with(fixed(), &[("n", 4.0)]);
    assert_eq!(codes(&w), (vec![], vec![Code::CapabilityUnsatisfiable]));
    assert!(matches!(
        w.policy.validate_bundle_admission(&wants),
        Admission::NoCapacity { .. }
    ));
    let mixed = json!([{"name": "p", "tiers": [
        {"name": "own", "kind": "local-servers", "scaleOut": "fixed"},
        {"name": "t1", "kind": "aws", "scaleOut": "elastic", "region": "r", "candidateInstanceTypes":
            [{"instanceType": "c4", "totalCapacity": 4, "totalCores": 4}]}]}]);
    let mut w = World::with(mixed, &[]);
    assert_eq!(codes(&w).0, [Code::CapabilityUnsatisfiable]);
    w.hello("n");
    let mut picture = crate::world::inventory(4.0);
    picture.capabilities = vec![greenroom_types::inventory::Capability {
        name: "sdi".into(),
        count: 2,
        ..Default::default()
    }];
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "n".into(),
        inventory: std::sync::Arc::new(picture),
    });
    assert_eq!(codes(&w), (vec![], vec![]));
}

// spec: PORT-02
#[test]
fn a_host_port_is_given_once_per_node() {
    let port = || needing("e", json!({"requiredHostPorts": ["5000/udp"]}));
    let mut w = World::with(fixed(), &[("n", 4.0), ("o", 4.0)]);
    w.submit(bundle("a", json!([port()])));
    w.submit(bundle("b", json!([port()])));
    w.submit(bundle("c", json!([port()])));
    assert_ne!(w.node_of("a.0.e"), w.node_of("b.0.e"));
    assert_eq!(w.filtered()["n"], "hostPortConflict");
}

// spec: PREFETCH-06, PLACE-18
#[test]
fn a_changed_image_list_counts_from_the_next_decision() {
    let mut w = World::with(fixed(), &[("a1", 4.0)]);
    w.hello("warm");
    let mut picture = crate::world::inventory(4.0);
    picture.held_images = vec![greenroom_types::inventory::HeldImage {
        reference: "img:1".into(),
        ..Default::default()
    }];
    w.send(greenroom_types::stream::StreamEvent::NodeInventoryUpdated {
        node_id: "warm".into(),
        inventory: std::sync::Arc::new(picture),
    });
    let with_template =
        |id: &str| bundle(id, json!([{"jobName": "e", "launch": {"template": "enc"}}]));
    w.submit(with_template("a"));
    assert_eq!(w.node_of("a.0.e").unwrap(), "a1");
    w.api(greenroom_policy::ApiCall::SetTemplateImages {
        template: "enc".into(),
        refs: vec!["img:1".into()],
    });
    w.submit(with_template("b"));
    assert_eq!(w.node_of("b.0.e").unwrap(), "warm");
}
