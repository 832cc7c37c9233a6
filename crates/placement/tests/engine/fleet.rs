//! What the fleet tells of its nodes, and when it says that an answer may have changed.

use std::sync::Arc;

use greenroom_placement::{
    Fleet, Listed, Needs, NodeCondition, NodeFacts, ServicePorts, Side, Spare, TierGate,
};
use greenroom_types::inventory::Capability;
use greenroom_types::node::{NodeMetadata, NodeState};
use greenroom_types::pool::Reliability;

use crate::build::*;

// spec: PLACE-03, PLACE-07, PLACE-08, PROV-04, TIER-05, TIER-07
#[test]
fn a_node_is_seen_from_outside_as_placement_sees_it() {
    let mut cloud = aws("cloud", &[shape("s", 4.0)]);
    cloud.reliability = Some(Reliability::Interruptible);
    let mut world = World::new(vec![fixed("own"), cloud]);
    let n = id("n");
    assert!(!world.fleet.contains(&n));
    assert_eq!(world.fleet.condition(&n), None);
    assert_eq!(world.fleet.free_capacity(&n), None);

    world.prospective("n", "cloud", &shape("s", 4.0));
    assert!(world.fleet.contains(&n) && world.fleet.is_prospective(&n));
    assert_eq!(world.fleet.inventory(&n), None);
    assert_eq!(world.fleet.free_capacity(&n), Some(4.0));
    assert!(world.fleet.is_reachable(&n) && !world.fleet.is_cordoned(&n));
    let (pool, tier) = world.fleet.tier_of(&n).unwrap();
    assert_eq!((pool.name.as_str(), tier.name.as_str()), (POOL, "cloud"));
    let reliability = |world: &World| world.fleet.reliability_of(&n);
    assert_eq!(reliability(&world), Some(Reliability::Interruptible));
    world.facts("n", |it| it.reliability = Some(Reliability::Durable));
    assert_eq!(reliability(&world), Some(Reliability::Durable));
    assert_eq!(world.fleet.az_of(&n), None);
    world.zone("n", "z1");
    assert_eq!(world.fleet.az_of(&n), Some("z1"));

    world.fleet.set_inventory(&n, Arc::new(offer(8.0)));
    assert!(!world.fleet.is_prospective(&n));
    assert_eq!(world.fleet.free_capacity(&n), Some(8.0));
    world.bind(&bundle("a", vec![job("e", 3.0)]), 0, "e", "n");
    assert_eq!(world.fleet.free_capacity(&n), Some(5.0));
    world.condition("n", |it| it.cordoned = true);
    assert!(world.fleet.is_cordoned(&n) && world.fleet.is_reachable(&n));
    let condition = NodeCondition {
        state: NodeState::Stopping,
        ..NodeCondition::default()
    };
    world.fleet.set_condition(&n, condition);
    assert_eq!(world.fleet.condition(&n), Some(&condition));
    assert!(!world.fleet.is_reachable(&n) && !world.fleet.is_cordoned(&n));
}

// spec: TIER-05, TIER-07, SPARE-03, SPARE-17
#[test]
fn tags_say_where_a_node_belongs_and_an_empty_one_says_nothing() {
    let read = |tags: &[(&str, &str)]| {
        let tags = tags
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        NodeFacts::of_metadata(&NodeMetadata {
            node_id: id("n"),
            tags: tags.collect(),
            ..NodeMetadata::default()
        })
    };
    let nothing = NodeFacts {
        node_id: id("n"),
        ..NodeFacts::default()
    };
    assert_eq!(read(&[]), nothing);
    let empty = ["pool", "tier", "az", "reliability", "spare"].map(|key| (key, ""));
    assert_eq!(read(&empty), nothing);
    for (tag, reliability) in [
        ("durable", Some(Reliability::Durable)),
        ("interruptible", Some(Reliability::Interruptible)),
        ("typo", None),
    ] {
        let facts = read(&[
            ("reliability", tag),
            ("pool", "p"),
            ("tier", "t"),
            ("az", "z"),
        ]);
        assert_eq!(facts.reliability, reliability, "{tag}");
        assert_eq!(facts.pool, Some("p".into()));
        assert_eq!(facts.tier, Some("t".into()));
        assert_eq!(facts.az.as_deref(), Some("z"));
    }
    let spare = read(&[
        ("spare", "true"),
        ("warmFor", "a, b,"),
        ("exclusive", "false"),
    ]);
    let expected = Spare {
        warm_for: vec!["a".into(), "b".into()],
        ..Spare::default()
    };
    assert_eq!(spare.spare, Some(expected));
    assert_eq!(read(&[("spare", "yes"), ("warmFor", "a")]).spare, None);
    let kept = read(&[
        ("spare", "true"),
        ("reservedFor", "c"),
        ("exclusive", "true"),
    ]);
    assert_eq!(kept.spare, Some(spare_for(&["c"], true)));
}

// spec: TIER-08
#[test]
fn a_tier_is_as_large_as_its_nodes_that_are_not_stopped() {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[])]);
    let size = |world: &World, tier: &str| world.fleet.tier_size(&POOL.into(), tier);
    assert_eq!(size(&world, "cloud"), 0);
    for name in ["m", "n"] {
        world.node(name, "cloud", 1.0);
    }
    world.node("o", "own", 1.0);
    assert_eq!((size(&world, "own"), size(&world, "cloud")), (1, 2));
    world.condition("m", |it| it.state = NodeState::Stopping);
    assert_eq!(size(&world, "cloud"), 2);
    world.condition("m", |it| it.state = NodeState::Stopped);
    assert_eq!(size(&world, "cloud"), 1);
    world.facts("n", |it| it.tier = Some("own".into()));
    assert_eq!((size(&world, "own"), size(&world, "cloud")), (2, 0));
    assert_eq!(size(&world, "typo"), 0);
    world.check();
}

// spec: NSVC-02
#[test]
fn capabilities_of_a_node_are_offered_while_they_are_free() {
    let mut world = World::new(vec![fixed("own")]);
    let wants = [capability("sdi", 1, &[])];
    let offers = |world: &World, needs: &[Capability]| world.fleet.offers(&id("n"), needs);
    assert!(!offers(&world, &[]), "no such node");
    world.node("n", "own", 1.0);
    assert!(offers(&world, &[]) && !offers(&world, &wants));
    world.offers("n", |it| it.capabilities = wants.to_vec());
    assert!(offers(&world, &wants));
    let user = with(job("e", 0.0), |job| {
        job.requirements.required_capabilities = wants.to_vec();
    });
    world.bind(&bundle("a", vec![user]), 0, "e", "n");
    assert!(!offers(&world, &wants) && offers(&world, &[]));
    world.fleet.clear_inventory(&id("n"));
    assert!(!offers(&world, &[]), "nothing is known of what it offers");
}

#[test]
fn a_node_that_is_forgotten_leaves_nothing_behind_unless_something_is_bound_to_it() {
    let mut world = World::new(vec![fixed("own")]);
    for name in ["m", "n"] {
        world.node(name, "own", 4.0);
    }
    world.fleet.remove_node(&id("m"));
    assert_eq!(world.fleet.condition(&id("m")), None);
    assert_eq!(world.fleet.reserved(&id("m")), None);

    // Something is bound to n, and room is held for another one.
    let mut g = bundle("g", vec![job("a", 1.0), job("b", 1.0)]);
    g.intra_replica_placement.same_node_default = true;
    world.bind(&g, 0, "a", "n");
    world.fleet.remove_node(&id("n"));
    world.check();
    assert_eq!(world.fleet.reserved(&id("n")).unwrap().capacity, 2.0);
    world.node("m", "own", 4.0);
    world.node("n", "own", 4.0);
    world.check();
    assert_eq!(world.goes(&g, "b"), "n");
    let f = bundle("f", vec![job("e", 2.0)]);
    assert_eq!(world.goes(&f, "e"), "n", "the fuller one");
    world.unbind(&g, 0, "a");
    world.fleet.remove_node(&id("n"));
    assert_eq!(world.fleet.reserved(&id("n")), None);
    world.check();
}

/// A change, and whether it can change an answer.
type Change = (&'static str, bool, fn(&mut Fleet));

// spec: PERF-02
#[test]
fn the_revision_grows_with_what_can_change_an_answer_and_stands_still_otherwise() {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[])]);
    for name in ["m", "n"] {
        world.node(name, "own", 4.0);
    }
    let changes: &[Change] = &[
        ("a gate", true, |it| {
            it.set_tier_gate(&POOL.into(), "cloud", TierGate::BackOff)
        }),
        ("it again", false, |it| {
            it.set_tier_gate(&POOL.into(), "cloud", TierGate::BackOff)
        }),
        ("an unknown gate", false, |it| {
            it.set_tier_gate(&POOL.into(), "x", TierGate::BackOff)
        }),
        ("images", true, |it| {
            it.set_template_images("t".into(), &["i".to_owned()])
        }),
        ("services", true, |it| {
            it.set_service_ports(vec![ServicePorts::default()])
        }),
        ("a picture", true, |it| {
            it.set_inventory(&id("n"), Arc::new(offer(5.0)))
        }),
        ("it again", false, |it| {
            it.set_inventory(&id("n"), Arc::new(offer(5.0)))
        }),
        ("no picture", true, |it| it.clear_inventory(&id("n"))),
        ("nobody's", false, |it| it.clear_inventory(&id("ghost"))),
        ("a shape", true, |it| {
            it.set_prospective(&id("n"), &shape("s", 1.0))
        }),
        ("a condition", true, |it| {
            it.update_condition(&id("n"), |it| it.cordoned = true)
        }),
        ("it again", false, |it| {
            it.update_condition(&id("n"), |it| it.cordoned = true)
        }),
        ("a job listed", true, |it| {
            it.set_foreign(&id("n"), stranger())
        }),
        ("it again", false, |it| it.set_foreign(&id("n"), stranger())),
        ("what it holds", true, |it| {
            it.set_listed(&id("n"), held(), Vec::new())
        }),
        ("it again", false, |it| {
            it.set_listed(&id("n"), held(), Vec::new())
        }),
        ("what has ended", true, |it| {
            it.set_listed(&id("n"), held(), held())
        }),
        ("a bundle", true, |it| it.set_bundle(&Arc::new(one()))),
        ("a release", true, |it| {
            it.set_released(&job_ref(&one(), 0, "e"), true)
        }),
        ("it again", false, |it| {
            it.set_released(&job_ref(&one(), 0, "e"), true)
        }),
        ("a binding", true, |it| bind(it, Side::MigrationTarget)),
        ("its device", true, |it| {
            it.set_gpu_index(&job_id(&one(), 0, "e"), Side::MigrationTarget, Some(0));
        }),
        ("its end as a target", true, |it| {
            it.promote(&job_id(&one(), 0, "e"));
        }),
        ("no target", false, |it| {
            it.promote(&job_id(&one(), 0, "e"));
        }),
        ("its end", true, |it| {
            it.unbind(&job_id(&one(), 0, "e"), Side::Binding);
        }),
        ("no binding", false, |it| {
            it.unbind(&job_id(&one(), 0, "e"), Side::Binding);
        }),
        ("a bundle gone", true, |it| {
            it.remove_bundle(&one().bundle_id)
        }),
        ("it again", false, |it| it.remove_bundle(&one().bundle_id)),
        ("a node gone", true, |it| it.remove_node(&id("n"))),
        ("it again", false, |it| it.remove_node(&id("n"))),
    ];
    for (what, grows, change) in changes {
        let before = world.fleet.revision();
        change(&mut world.fleet);
        world.check();
        let after = world.fleet.revision();
        assert!(after >= before, "{what}");
        assert_eq!(after > before, *grows, "{what}");
    }
}

fn one() -> greenroom_types::bundle::Bundle {
    bundle("b", vec![job("e", 1.0)])
}

fn stranger() -> Vec<(greenroom_types::JobId, greenroom_placement::JobRef)> {
    vec![(job_id(&one(), 1, "e"), job_ref(&one(), 1, "e"))]
}

fn held() -> Vec<Listed> {
    vec![Listed {
        job_id: job_id(&one(), 1, "e"),
        needs: Needs {
            capacity: 1.0,
            ..Needs::default()
        },
        gpu_index: None,
        beside: false,
    }]
}

fn bind(fleet: &mut Fleet, side: Side) {
    let (job_id, job) = (job_id(&one(), 0, "e"), job_ref(&one(), 0, "e"));
    fleet.bind(&job_id, &job, &id("m"), None, side);
}
