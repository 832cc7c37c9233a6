//! Keeping the two copies apart.

use greenroom_placement::{Decision, Degraded, Domain};
use greenroom_types::bundle::{Bundle, Resilience, Rule};
use greenroom_types::pool::{LaunchMode, Reliability, TierKind};

use crate::build::*;

fn pair(change: impl FnOnce(&mut Resilience)) -> Bundle {
    doubled(bundle("a", vec![job("e", 1.0), job("x", 1.0)]), change)
}

fn violated(decision: &Decision) -> Vec<Domain> {
    decision
        .degraded()
        .map_or_else(Vec::new, |degraded| degraded.violated.clone())
}

// spec: PLACE-02
#[test]
fn each_copy_is_placed_in_its_own_pool() {
    let mut world = World::of_pools(vec![
        pool(POOL, vec![fixed("own")]),
        pool("other", vec![fixed("own")]),
    ]);
    world.node("n", "own", 4.0);
    world.node_of("other", "m", "own", offer(4.0));
    let a = pair(|policy| policy.pool = Some("other".into()));
    assert_eq!(went(&world.launch(&a, 0, "e")), "n");
    assert_eq!(went(&world.launch(&a, 1, "e")), "m");
    world.condition("m", |it| it.cordoned = true);
    let decision = world.launch(&a, 1, "e");
    assert!(
        matches!(&decision, Decision::Failure { tried_pools, .. } if tried_pools == &["other".into()]),
        "there is no fall-through to {POOL}: {decision:?}"
    );
}

// spec: RESIL-03, RESIL-04, PLACE-15, PLACE-29, HARD-29
#[test]
fn a_primary_is_measured_against_a_backup_that_came_first() {
    let mut world = World::new(vec![aws("cloud", &[shape("s", 4.0)])]);
    world.node("n", "cloud", 4.0);
    let a = pair(|_| {});
    let first = world.settle(&a, 1, "e");
    assert_eq!((went(&first), first.degraded()), ("n".to_owned(), None));
    let second = world.launch(&a, 0, "e");
    assert_eq!(
        (went(&second), second.degraded()),
        ("+cloud/s".to_owned(), None)
    );
    // Not only the job of the same name: any job of the other copy keeps a node closed.
    assert_eq!(went(&world.launch(&a, 0, "x")), "+cloud/s");
}

// spec: RESIL-02, RESIL-05, HARD-30
#[test]
fn one_node_takes_both_and_says_so() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 4.0);
    let a = pair(|_| {});
    assert_eq!(violated(&world.settle(&a, 1, "e")), []);
    let second = world.settle(&a, 0, "e");
    assert_eq!(went(&second), "n");
    assert_eq!(
        second.degraded(),
        Some(&Degraded {
            violated: vec![Domain::Node],
            interruptible_primary: false
        })
    );
    let text = serde_json::to_string(second.degraded().unwrap()).unwrap();
    assert_eq!(text, r#"{"violated":["sameNode"]}"#);
}

// spec: PLACE-29, HARD-31
#[test]
fn a_compliant_node_in_a_later_tier_beats_a_forbidden_one_in_an_earlier() {
    let mut world = World::new(vec![aws("t1", &[]), aws("t2", &[])]);
    for (node, tier, az) in [("p", "t1", "z1"), ("n", "t1", "z1"), ("m", "t2", "z2")] {
        world.node(node, tier, 1.0);
        world.zone(node, az);
    }
    let a = pair(|policy| policy.same_az = Rule::Forbid);
    world.bind(&a, 0, "e", "p");
    let decision = world.launch(&a, 1, "e");
    assert_eq!(
        (went(&decision), decision.degraded()),
        ("m".to_owned(), None)
    );
    let walks: Vec<bool> = world
        .attempts(&a, 1, "e")
        .iter()
        .map(|attempt| attempt.compliant_only)
        .collect();
    assert_eq!(walks, [true, true], "the second walk is not made");
    world.condition("m", |it| it.cordoned = true);
    let decision = world.launch(&a, 1, "e");
    assert_eq!(
        (went(&decision).as_str(), violated(&decision)),
        ("n", vec![Domain::Az])
    );
    let attempts = world.attempts(&a, 1, "e");
    let walks: Vec<bool> = attempts
        .iter()
        .map(|attempt| attempt.compliant_only)
        .collect();
    assert_eq!(walks, [true, true, false]);
}

// spec: PLACE-15
#[test]
fn in_the_second_walk_fewer_violations_win_within_a_tier_only() {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[])]);
    for (node, az) in [("both", "z1"), ("zone", "z1")] {
        world.node(node, "own", 4.0);
        world.zone(node, az);
    }
    world.node("later", "cloud", 4.0);
    world.zone("later", "z1");
    let a = pair(|policy| policy.same_az = Rule::Forbid);
    world.bind(&a, 0, "e", "both");
    assert_eq!(went(&world.launch(&a, 1, "e")), "zone");
    world.condition("zone", |it| it.cordoned = true);
    let decision = world.launch(&a, 1, "e");
    assert_eq!(went(&decision), "both", "tier order comes first");
    assert_eq!(violated(&decision), [Domain::Node, Domain::Az]);
}

// spec: RESIL-03
#[test]
fn a_node_without_a_known_zone_is_in_nobodys_zone_but_its_own() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 4.0);
    let a = pair(|policy| {
        policy.same_node = Rule::Allow;
        policy.same_az = Rule::Forbid;
    });
    world.bind(&a, 0, "e", "n");
    let decision = world.launch(&a, 1, "e");
    assert_eq!(violated(&decision), [Domain::Az], "it is such a node");
    world.node("m", "own", 4.0);
    let decision = world.launch(&a, 1, "e");
    assert_eq!(
        (went(&decision), violated(&decision)),
        ("m".to_owned(), vec![])
    );
}

// spec: RESIL-03
#[test]
fn a_purchase_violates_what_is_known_of_it_beforehand() {
    let mut oci = elastic("oci", TierKind::Oci, &[shape("o", 4.0)]);
    oci.region = Some("ad-1".into());
    let mut world = World::new(vec![oci, aws("aws", &[shape("s", 4.0)])]);
    world.node("n", "oci", 1.0);
    world.zone("n", "ad-1");
    let zones = pair(|policy| policy.same_az = Rule::Forbid);
    world.bind(&zones, 0, "e", "n");
    assert_eq!(
        went(&world.launch(&zones, 1, "e")),
        "+aws/s",
        "its zone is not known"
    );
    let clouds = pair(|policy| policy.same_cloud = Rule::Forbid);
    assert_eq!(went(&world.launch(&clouds, 1, "e")), "+aws/s");
    let nodes = pair(|_| {});
    assert_eq!(
        went(&world.launch(&nodes, 1, "e")),
        "+oci/o",
        "a new node is no old one"
    );
    // A prospective node of Oracle's already has the domain of its tier.
    world.prospective("p", "oci", &shape("o", 4.0));
    assert_eq!(world.fleet.az_of(&id("p")), Some("ad-1"));
    assert_eq!(went(&world.launch(&zones, 1, "e")), "+aws/s");
    assert_eq!(went(&world.launch(&nodes, 1, "e")), "p");
}

// spec: RESIL-03, TIER-07
#[test]
fn the_cloud_of_a_node_is_the_kind_of_its_tier() {
    let mut world = World::new(vec![aws("a1", &[]), aws("a2", &[]), fixed("own")]);
    world.node("n", "a1", 1.0);
    world.node("m", "a2", 4.0);
    world.node("o", "own", 4.0);
    let a = pair(|policy| policy.same_cloud = Rule::Forbid);
    world.bind(&a, 0, "e", "n");
    assert_eq!(went(&world.launch(&a, 1, "e")), "o");
    world.condition("o", |it| it.cordoned = true);
    let decision = world.launch(&a, 1, "e");
    assert_eq!(
        (went(&decision).as_str(), violated(&decision)),
        ("m", vec![Domain::Cloud])
    );
}

// spec: RESIL-05, HARD-32
#[test]
fn both_copies_on_interruptible_nodes_are_degraded_whatever_is_allowed() {
    let mut spot = aws("spot", &[shape("s", 4.0)]);
    spot.launch_mode = LaunchMode::Spot;
    let mut world = World::new(vec![spot]);
    let a = pair(|policy| policy.same_node = Rule::Allow);
    world.node("n", "spot", 1.0);
    assert_eq!(
        world.settle(&a, 0, "e").degraded(),
        None,
        "nothing of the other copy yet"
    );
    let bought = world.launch(&a, 1, "e");
    let expected = Degraded {
        violated: vec![],
        interruptible_primary: true,
    };
    assert_eq!(
        (went(&bought).as_str(), bought.degraded()),
        ("+spot/s", Some(&expected))
    );
    world.node("m", "spot", 4.0);
    let placed = world.launch(&a, 1, "e");
    assert_eq!(
        (went(&placed).as_str(), placed.degraded()),
        ("m", Some(&expected))
    );
    // The node's own tag counts more than its tier's mode.
    world.facts("m", |facts| facts.reliability = Some(Reliability::Durable));
    assert_eq!(world.launch(&a, 1, "e").degraded(), None);
}

// spec: RESIL-06
#[test]
fn a_bundle_without_a_policy_is_never_degraded() {
    let mut spot = aws("spot", &[]);
    spot.launch_mode = LaunchMode::Spot;
    let mut world = World::new(vec![spot]);
    world.node("n", "spot", 4.0);
    let a = pair(|_| {});
    world.bind(&a, 1, "e", "n");
    assert!(world.launch(&a, 0, "e").degraded().is_some());
    let single = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.launch(&single, 0, "e").degraded(), None);
}
