//! Where a node belongs.

use std::collections::BTreeMap;

use greenroom_placement::{NodeFacts, Reason, Spare};
use greenroom_types::node::NodeMetadata;
use greenroom_types::pool::{LaunchMode, Reliability};

use crate::build::*;

// spec: TIER-05
#[test]
fn pool_and_tier_follow_from_the_tags() {
    let mut world = World::of_pools(vec![
        pool(POOL, vec![aws("cloud", &[]), fixed("own")]),
        pool("bought", vec![aws("cloud", &[])]),
    ]);
    world.node("n", "own", 4.0);
    let tier = |world: &World| {
        world
            .fleet
            .tier_of(&id("n"))
            .map(|(_, tier)| tier.name.to_string())
    };
    world.facts("n", |it| it.tier = None);
    assert_eq!(
        tier(&world).as_deref(),
        Some("own"),
        "no tag: the fixed tier"
    );
    world.facts("n", |it| it.tier = Some("cloud".into()));
    assert_eq!(tier(&world).as_deref(), Some("cloud"));
    world.facts("n", |it| it.tier = Some("typo".into()));
    assert_eq!(tier(&world), None);
    let a = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.reason(&a, "e", "n"), Some(Reason::WrongTier));
    world.facts("n", |it| (it.pool, it.tier) = (Some("bought".into()), None));
    assert_eq!(tier(&world), None, "no fixed tier to belong to");
    world.facts("n", |it| it.pool = None);
    assert_eq!(world.reason(&a, "e", "n"), Some(Reason::WrongPool));
    world.check();
}

// spec: TIER-09
#[test]
fn changed_tags_take_effect_at_once() {
    let mut world = World::of_pools(vec![
        pool(POOL, vec![fixed("own")]),
        pool("other", vec![fixed("own")]),
    ]);
    world.node("n", "own", 4.0);
    let a = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.goes(&a, "e"), "n");
    world.facts("n", |it| it.pool = Some("other".into()));
    assert_eq!(world.goes(&a, "e"), "-");
    world.facts("n", |it| it.pool = Some(POOL.into()));
    world.spare("n", spare_for(&["x"], true));
    assert_eq!(world.goes(&a, "e"), "-");
    world.zone("n", "z1");
    assert_eq!(world.fleet.az_of(&id("n")), Some("z1"));
    world.check();
}

// spec: TIER-07
#[test]
fn reliability_is_the_tag_or_that_of_the_tier() {
    let mut spot = aws("spot", &[]);
    spot.launch_mode = LaunchMode::Spot;
    let mut world = World::new(vec![spot]);
    world.node("n", "spot", 4.0);
    assert_eq!(
        world.fleet.reliability_of(&id("n")),
        Some(Reliability::Interruptible)
    );
    world.facts("n", |it| it.reliability = Some(Reliability::Durable));
    assert_eq!(
        world.fleet.reliability_of(&id("n")),
        Some(Reliability::Durable)
    );
}

// spec: SPARE-03, SPARE-17
#[test]
fn facts_are_read_from_tags() {
    let read = |tags: &[(&str, &str)]| {
        NodeFacts::of_metadata(&NodeMetadata {
            node_id: id("n"),
            tags: tags
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>(),
            ..NodeMetadata::default()
        })
    };
    let full = read(&[
        ("pool", "live"),
        ("tier", "cloud"),
        ("az", "z1"),
        ("reliability", "interruptible"),
        ("spare", "true"),
        ("warmFor", "t,u"),
        ("reservedFor", "t"),
        ("exclusive", "true"),
    ]);
    assert_eq!(full.pool.as_ref().unwrap().as_str(), "live");
    assert_eq!(full.reliability, Some(Reliability::Interruptible));
    let spare = full.spare.unwrap();
    assert_eq!(spare.warm_for, ["t".into(), "u".into()]);
    assert_eq!(
        (spare.reserved_for, spare.exclusive),
        (vec!["t".into()], true)
    );
    let emptied = read(&[
        ("spare", "true"),
        ("warmFor", ""),
        ("reservedFor", ""),
        ("exclusive", "false"),
    ]);
    assert_eq!(
        emptied.spare,
        Some(Spare::default()),
        "empty reads as absent"
    );
    assert_eq!((emptied.pool, emptied.tier, emptied.az), (None, None, None));
    assert_eq!(read(&[("spare", "yes"), ("warmFor", "t")]).spare, None);
}
