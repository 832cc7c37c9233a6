//! The ranking key, component by component.

use greenroom_placement::{Context, Key, Packing, Rank};
use greenroom_types::bundle::OnRuntimeFailure::{AvoidSpare, PreferSpare};
use greenroom_types::bundle::{Bundle, OnLaunch, SameAz};
use greenroom_types::pool::PackingStrategy;
use std::cmp::Reverse;

use crate::build::*;

fn templated() -> Bundle {
    bundle(
        "a",
        vec![with(job("e", 1.0), |job| {
            job.launch.template = Some("t".into())
        })],
    )
}

/// Two nodes that tie but for their ids.
fn pair() -> World {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 4.0);
    world.node("n", "own", 4.0);
    world
        .fleet
        .set_template_images("t".into(), &["i1".to_owned(), "i2".to_owned()]);
    world
}

// spec: PLACE-14
#[test]
fn a_component_decides_only_when_all_above_it_tie() {
    let base = Rank {
        resilience_violations: 1,
        prospective: true,
        avoided_spare: true,
        warmth: Reverse(0),
        reservation_match: Reverse(false),
        preferred_spare: Reverse(false),
        packing: Packing::new(PackingStrategy::Binpack, 0.0, 1.0),
        same_az: Reverse(false),
    };
    let better: [fn(&mut Rank); 8] = [
        |rank| rank.resilience_violations = 0,
        |rank| rank.prospective = false,
        |rank| rank.avoided_spare = false,
        |rank| rank.warmth = Reverse(1),
        |rank| rank.reservation_match = Reverse(true),
        |rank| rank.preferred_spare = Reverse(true),
        |rank| rank.packing = Packing::new(PackingStrategy::Binpack, 0.5, 1.0),
        |rank| rank.same_az = Reverse(true),
    ];
    let key = |rank: Rank, node: &str| Key {
        rank,
        node: id(node),
    };
    for (at, improve) in better.iter().enumerate() {
        let mut one = base;
        improve(&mut one);
        let mut other = base;
        for improve in &better[at + 1..] {
            improve(&mut other);
        }
        assert!(key(one, "z") < key(other, "a"), "component {}", at + 1);
    }
    assert!(
        key(base, "B") < key(base, "a"),
        "ids are compared byte by byte"
    );
}

// spec: PLACE-16, PROV-03, PROV-04
#[test]
fn a_booted_node_beats_a_prospective_one_until_its_first_inventory() {
    let mut world = World::new(vec![aws("cloud", &[shape("s", 4.0)])]);
    world.prospective("m", "cloud", &shape("s", 4.0));
    let a = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.goes(&a, "e"), "m");
    world.node("n", "cloud", 4.0);
    assert_eq!(world.goes(&a, "e"), "n");
    world.condition("m", |it| {
        it.state = greenroom_types::node::NodeState::Running
    });
    assert_eq!(world.goes(&a, "e"), "n", "started, but without inventory");
    world
        .fleet
        .set_inventory(&id("m"), std::sync::Arc::new(offer(4.0)));
    assert_eq!(world.goes(&a, "e"), "m");
    assert!(!world.fleet.is_prospective(&id("m")));
}

// spec: PLACE-17, LAUNCH-02, RECOV-07
#[test]
fn spares_are_avoided_by_the_rule_in_force_alone() {
    let mut world = pair();
    world.spare("m", spare());
    let mut a = templated();
    assert_eq!(world.goes(&a, "e"), "n");
    assert_eq!(world.goes_when(&a, "e", &recovery(AvoidSpare)), "n");
    assert_eq!(world.goes_when(&a, "e", &recovery(PreferSpare)), "m");
    assert_eq!(world.goes_when(&a, "e", &migration("s")), "m", "ids decide");
    a.on_launch = OnLaunch::AllowSpare;
    assert_eq!(world.goes(&a, "e"), "m", "no preference, so ids decide");
    assert_eq!(world.goes_when(&a, "e", &recovery(AvoidSpare)), "n");
    world.spare("n", spare());
    world.facts("m", |facts| facts.spare = None);
    assert_eq!(world.goes(&a, "e"), "m", "allowing is not preferring");
}

// spec: PLACE-18, PREFETCH-07
#[test]
fn warmth_counts_the_images_that_the_node_holds() {
    let mut world = pair();
    world.holds_images("n", &["i2", "other"]);
    for (node, count) in [("n", 1), ("m", 0), ("ghost", 0)] {
        let images = ["i1".to_owned(), "i2".to_owned()];
        assert_eq!(world.fleet.held_count(&id(node), &images), count);
    }
    let a = templated();
    assert_eq!(world.goes(&a, "e"), "n");
    world.holds_images("m", &["i1", "i2"]);
    assert_eq!(world.goes(&a, "e"), "m");
    let cold = bundle("b", vec![job("e", 1.0)]);
    world.holds_images("m", &[]);
    assert_eq!(world.goes(&cold, "e"), "m", "no template: nobody is warm");
    world.fleet.set_template_images("t".into(), &[]);
    assert_eq!(world.goes(&a, "e"), "m", "no images listed: nobody is warm");
}

// spec: PLACE-19
#[test]
fn a_reservation_attracts_its_template() {
    let mut world = pair();
    world.spare("m", spare());
    world.spare("n", spare_for(&["t"], false));
    let a = templated();
    assert_eq!(world.goes(&a, "e"), "n");
    world.spare("n", spare_for(&["u"], false));
    assert_eq!(world.goes(&a, "e"), "m");
}

// spec: PLACE-20, PLACE-24, HARD-34
#[test]
fn warmth_stands_above_the_wish_for_a_spare() {
    let mut world = pair();
    world.spare("n", spare());
    world.holds_images("m", &["i1", "i2"]);
    let a = templated();
    assert_eq!(world.goes_when(&a, "e", &recovery(PreferSpare)), "m");
    world.holds_images("n", &["i1", "i2"]);
    assert_eq!(world.goes_when(&a, "e", &recovery(PreferSpare)), "n");
    world.holds_images("m", &[]);
    assert_eq!(world.goes_when(&a, "e", &recovery(AvoidSpare)), "m");
    // Consumed, it is ordinary: with equal warmth the ids decide.
    world.holds_images("m", &["i1", "i2"]);
    world.bind(&bundle("b", vec![job("x", 0.0)]), 0, "x", "n");
    assert_eq!(world.goes_when(&a, "e", &recovery(PreferSpare)), "m");
}

// spec: PLACE-21
#[test]
fn packing_follows_the_strategy_of_the_tier() {
    for (strategy, expected) in [
        (PackingStrategy::Binpack, "n"),
        (PackingStrategy::Spread, "m"),
    ] {
        let mut tier = fixed("own");
        tier.packing_strategy = strategy;
        let mut world = World::new(vec![tier]);
        world.node("m", "own", 16.0);
        world.node("n", "own", 4.0);
        let b = bundle("b", vec![job("x", 2.0), job("y", 2.0)]);
        world.bind(&b, 0, "x", "m");
        world.bind(&b, 0, "y", "n");
        let a = bundle("a", vec![job("e", 1.0)]);
        assert_eq!(
            world.goes(&a, "e"),
            expected,
            "the fraction counts, not the amount"
        );
        // The cap is part of the whole: m is now the fuller one.
        world.offers("m", |it| it.utilization_cap = 0.2);
        let other = if expected == "n" { "m" } else { "n" };
        assert_eq!(world.goes(&a, "e"), other);
    }
}

// spec: PLACE-21
#[test]
fn a_node_that_offers_nothing_counts_as_full() {
    for (strategy, expected) in [
        (PackingStrategy::Binpack, "n"),
        (PackingStrategy::Spread, "m"),
    ] {
        let mut tier = fixed("own");
        tier.packing_strategy = strategy;
        let mut world = World::new(vec![tier]);
        world.node("m", "own", 4.0);
        world.node("n", "own", 0.0);
        world.bind(&bundle("b", vec![job("x", 3.0)]), 0, "x", "m");
        assert_eq!(world.goes(&bundle("a", vec![job("e", 0.0)]), "e"), expected);
    }
}

// spec: PLACE-21, PLACE-23
#[test]
fn the_order_of_a_sum_decides_nothing() {
    let mut world = pair();
    let b = bundle("b", vec![job("x", 0.1), job("y", 0.2), job("z", 0.3)]);
    let c = bundle("c", vec![job("x", 0.1), job("y", 0.2), job("z", 0.3)]);
    for name in ["x", "y", "z"] {
        world.bind(&b, 0, name, "n");
    }
    for name in ["z", "y", "x"] {
        world.bind(&c, 0, name, "m");
    }
    assert_eq!(world.goes(&bundle("a", vec![job("e", 1.0)]), "e"), "m");
}

// spec: PLACE-22
#[test]
fn the_zone_of_the_copy_is_a_preference_only_when_soft() {
    let mut world = pair();
    world.node("o", "own", 4.0);
    world.zone("o", "z1");
    world.zone("n", "z1");
    world.zone("m", "z2");
    let b = |same_az| {
        let mut b = bundle("b", vec![job("e", 0.0), job("x", 0.0)]);
        b.intra_replica_placement.same_az = same_az;
        b
    };
    world.bind(&b(SameAz::Soft), 0, "x", "o");
    world.condition("o", |it| it.cordoned = true);
    assert_eq!(world.goes(&b(SameAz::Soft), "e"), "n");
    assert_eq!(world.goes(&b(SameAz::Off), "e"), "m");
    assert_eq!(world.goes(&bundle("c", vec![job("e", 0.0)]), "e"), "m");
}

// spec: PLACE-24, SPARE-04
#[test]
fn a_bought_spare_is_consumed_for_good_and_a_registered_one_while_it_carries() {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[shape("s", 4.0)])]);
    world.node("bought", "cloud", 4.0);
    world.node("owned", "own", 4.0);
    let b = bundle("b", vec![job("x", 0.0), job("y", 0.0)]);
    for node in ["bought", "owned"] {
        world.spare(node, spare());
        assert!(world.fleet.unconsumed_spare(&id(node)).is_some());
    }
    world.bind(&b, 0, "x", "bought");
    world.bind(&b, 0, "y", "owned");
    for node in ["bought", "owned"] {
        assert!(world.fleet.unconsumed_spare(&id(node)).is_none());
    }
    world.unbind(&b, 0, "x");
    world.unbind(&b, 0, "y");
    for node in ["bought", "owned"] {
        world.offers(node, |it| it.total_capacity = 5.0);
    }
    assert!(world.fleet.unconsumed_spare(&id("bought")).is_none());
    assert!(world.fleet.unconsumed_spare(&id("owned")).is_some());
    // The tag may come late: whoever is there then has consumed it.
    world.node("late", "cloud", 4.0);
    world.bind(&b, 0, "x", "late");
    world.spare("late", spare());
    world.unbind(&b, 0, "x");
    assert!(world.fleet.unconsumed_spare(&id("late")).is_none());
}

// spec: PLACE-25, HARD-33
#[test]
fn an_avoided_spare_in_an_earlier_tier_beats_an_ordinary_node_in_a_later_one() {
    let cloud = aws("cloud", &[shape("s", 4.0)]);
    let mut world = World::new(vec![cloud, fixed("own")]);
    world.node("s", "cloud", 4.0);
    world.spare("s", spare());
    world.node("m", "own", 4.0);
    let a = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.goes(&a, "e"), "s");
    world.prospective("p", "cloud", &shape("s", 4.0));
    assert_eq!(
        world.goes(&a, "e"),
        "s",
        "booted is worth more than ordinary"
    );
    world.node("z", "cloud", 4.0);
    assert_eq!(world.goes(&a, "e"), "z");
}

// spec: HARD-93
#[test]
fn a_migration_neither_avoids_nor_prefers_a_spare() {
    let mut world = pair();
    world.spare("n", spare());
    let a = templated();
    let moving = migration("s");
    assert_eq!(world.goes_when(&a, "e", &moving), "m", "ids decide");
    world.bind(&bundle("b", vec![job("x", 1.0)]), 0, "x", "m");
    assert_eq!(world.goes_when(&a, "e", &moving), "m", "packing decides");
    world.condition("m", |it| it.cordoned = true);
    assert_eq!(world.goes_when(&a, "e", &moving), "n");
    world.spare("n", spare_for(&["u"], true));
    assert_eq!(world.goes_when(&a, "e", &moving), "-");
    let admitted = Ask {
        context: Context::Migration { source: id("s") },
        admit: true,
        ..Ask::default()
    };
    assert_eq!(world.goes_when(&a, "e", &admitted), "n");
}
