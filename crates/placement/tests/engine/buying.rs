//! Buying a node.

use greenroom_placement::{Decision, FailureReason, Outcome, TierGate};
use greenroom_types::bundle::Bundle;
use greenroom_types::node::NodeState;
use greenroom_types::pool::LaunchMode;

use crate::build::*;

fn one(capacity: f64) -> Bundle {
    bundle("a", vec![job("e", capacity)])
}

fn outcomes(world: &World, bundle: &Bundle) -> Vec<Outcome> {
    let attempts = world.attempts(bundle, 0, "e");
    attempts.iter().map(|attempt| attempt.outcome).collect()
}

// spec: PLACE-26, PLACE-30
#[test]
fn the_first_shape_that_fits_is_bought_with_the_tiers_mode() {
    let mut tier = aws(
        "cloud",
        &[shape("s2", 2.0), shape("s8", 8.0), shape("s4", 4.0)],
    );
    tier.launch_mode = LaunchMode::Spot;
    let world = World::new(vec![tier]);
    assert_eq!(world.goes(&one(2.0), "e"), "+cloud/s2");
    let Decision::Provision {
        pool,
        tier,
        shape,
        launch_mode,
        gpu_index,
        degraded,
    } = world.launch(&one(3.0), 0, "e")
    else {
        panic!("not bought");
    };
    assert_eq!((pool.as_str(), tier.as_str()), (POOL, "cloud"));
    assert_eq!(
        (shape.instance_type.as_str(), launch_mode),
        ("s8", LaunchMode::Spot)
    );
    assert_eq!((gpu_index, degraded), (None, None));
    assert_eq!(world.goes(&one(9.0), "e"), "-");
    assert_eq!(outcomes(&world, &one(9.0)), [Outcome::NoInstanceTypeFits]);
}

// spec: PLACE-25, TIER-01
#[test]
fn a_tier_buys_only_when_none_of_its_nodes_will_do_and_before_the_next_is_asked() {
    let mut world = World::new(vec![aws("t1", &[shape("s", 4.0)]), fixed("own")]);
    world.node("own-1", "own", 4.0);
    assert_eq!(
        world.goes(&one(1.0), "e"),
        "+t1/s",
        "a purchase comes before the next tier"
    );
    world.prospective("p", "t1", &shape("s", 4.0));
    assert_eq!(world.goes(&one(1.0), "e"), "p");
    world.bind(&bundle("b", vec![job("x", 3.5)]), 0, "x", "p");
    assert_eq!(world.goes(&one(1.0), "e"), "+t1/s");
}

// spec: PLACE-27
#[test]
fn a_pinned_placement_buys_nothing() {
    let mut world = World::new(vec![aws("cloud", &[shape("s", 4.0)])]);
    world.node("n", "cloud", 4.0);
    let pinned = |node: &str| Ask {
        pin: Some(id(node)),
        ..migration("m")
    };
    assert_eq!(world.goes_when(&one(1.0), "e", &pinned("n")), "n");
    let (decision, trace) = world.ask(&one(5.0), 0, "e", &pinned("n"));
    assert_eq!(went(&decision), "-");
    assert_eq!(trace.attempts[0].outcome, Outcome::PinnedNoProvision);
    assert_eq!(world.goes_when(&one(1.0), "e", &pinned("nobody")), "-");
}

// spec: PLACE-28
#[test]
fn a_failure_names_the_pools_walked() {
    let world = World::new(vec![fixed("own")]);
    let expected = Decision::Failure {
        reason: FailureReason::NoCapacityInAnyPool,
        tried_pools: vec![POOL.into()],
    };
    assert_eq!(world.launch(&one(1.0), 0, "e"), expected);
    let text = serde_json::to_value(&expected).unwrap();
    assert_eq!(
        text,
        serde_json::json!({"kind": "failure", "reason": "noCapacityInAnyPool", "triedPools": [POOL]})
    );
    let mut lost = one(1.0);
    lost.pool = "nowhere".into();
    assert!(
        matches!(world.launch(&lost, 0, "e"), Decision::Failure { tried_pools, .. } if tried_pools == ["nowhere".into()])
    );
    assert_eq!(outcomes(&world, &lost), [Outcome::PoolNotConfigured]);
}

// spec: TIER-08, PROV-03, HARD-36
#[test]
fn at_its_cap_a_tier_fills_what_it_has_and_then_the_next_one_buys() {
    let mut first = aws("t1", &[shape("s", 4.0)]);
    first.max_nodes = Some(2);
    let mut world = World::new(vec![first, aws("t2", &[shape("s", 4.0)])]);
    let jobs: Vec<Bundle> = (0..5)
        .map(|at| bundle(&format!("a{at}"), vec![job("e", 2.0)]))
        .collect();
    world.prospective("p1", "t1", &shape("s", 4.0));
    world.prospective("p2", "t1", &shape("s", 4.0));
    world.bind(&jobs[0], 0, "e", "p1");
    world.bind(&jobs[1], 0, "e", "p2");
    assert_eq!(went(&world.settle(&jobs[2], 0, "e")), "p1");
    assert_eq!(went(&world.settle(&jobs[3], 0, "e")), "p2");
    assert_eq!(went(&world.settle(&jobs[4], 0, "e")), "+t2/s");
    let fifth = bundle("b", vec![job("e", 2.0)]);
    assert_eq!(
        outcomes(&world, &fifth),
        [Outcome::AtMaxNodes, Outcome::Placed]
    );
}

// spec: TIER-08
#[test]
fn every_node_that_is_not_stopped_counts_under_the_cap() {
    let mut tier = aws("cloud", &[shape("s", 4.0)]);
    tier.max_nodes = Some(1);
    for (state, counts) in [
        (NodeState::Starting, true),
        (NodeState::Running, true),
        (NodeState::Unreachable, true),
        (NodeState::Stopping, true),
        (NodeState::Stopped, false),
    ] {
        let mut world = World::new(vec![tier.clone()]);
        world.node("n", "cloud", 4.0);
        world.condition("n", |it| (it.state, it.cordoned) = (state, true));
        world.spare("n", spare());
        assert_eq!(world.goes(&one(1.0), "e") == "-", counts, "{state:?}");
        assert_eq!(
            world.fleet.tier_size(&POOL.into(), "cloud"),
            usize::from(counts)
        );
        world.fleet.remove_node(&id("n"));
        assert_eq!(
            world.goes(&one(1.0), "e"),
            "+cloud/s",
            "a failed creation leaves no node"
        );
    }
}

// spec: PLACE-26, PLACE-31
#[test]
fn a_tier_that_backs_off_lets_the_next_one_buy() {
    let mut world = World::new(vec![
        aws("t1", &[shape("s", 4.0)]),
        aws("t2", &[shape("s", 4.0)]),
    ]);
    for gate in [TierGate::BackOff, TierGate::HalfOpenBusy] {
        world.fleet.set_tier_gate(&POOL.into(), "t1", gate);
        assert_eq!(world.goes(&one(1.0), "e"), "+t2/s");
        assert_eq!(
            outcomes(&world, &one(1.0)),
            [Outcome::ProvisionBackoff, Outcome::Provisioned]
        );
    }
    world.prospective("p", "t1", &shape("s", 4.0));
    assert_eq!(
        world.goes(&one(1.0), "e"),
        "p",
        "its nodes remain candidates"
    );
    world
        .fleet
        .set_tier_gate(&POOL.into(), "t1", TierGate::Open);
    assert_eq!(world.goes(&one(4.5), "e"), "-");
    assert_eq!(world.goes(&one(1.0), "e"), "p");
}
