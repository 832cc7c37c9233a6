//! The trace, and its words.

use greenroom_placement::{FailureReason, Outcome, Reason, Request, Trace};
use greenroom_types::JobName;
use greenroom_types::bundle::Bundle;

use crate::build::*;

fn world() -> World {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[shape("s", 1.0)])]);
    world.node("node-a", "own", 4.0);
    world.node("node-b", "own", 4.0);
    world.node("node-c", "cloud", 4.0);
    world.offers("node-b", |it| it.reserved_capacity = 3.5);
    world
}

// spec: PLACE-31
#[test]
fn a_trace_has_one_attempt_per_tier_with_reasons_keys_and_outcome() {
    let mut world = world();
    let a = bundle("a", vec![job("e", 2.0)]);
    let attempts = world.attempts(&a, 0, "e");
    assert_eq!(attempts.len(), 1, "the walk ends where the job goes");
    let first = &attempts[0];
    assert_eq!(
        (first.pool.as_str(), first.tier.as_ref().unwrap().as_str()),
        (POOL, "own")
    );
    assert_eq!((first.candidates, first.outcome), (3, Outcome::Placed));
    let value = serde_json::to_value(first).unwrap();
    assert_eq!(
        value["filtered"],
        serde_json::json!([
            {"node": "node-b", "reason": "insufficientCapacity",
             "detail": {"kind": "capacity", "needed": 2.0, "free": 0.5}},
            {"node": "node-c", "reason": "wrongTier"},
        ])
    );
    assert_eq!(
        value["survivors"],
        serde_json::json!([{"key": {
            "resilienceViolations": 0, "prospective": false, "avoidedSpare": false, "warmth": 0,
            "reservationMatch": false, "preferredSpare": false,
            "packing": {"strategy": "binpack", "usedBillionths": 0}, "sameAz": false,
            "node": "node-a"}}])
    );
    world.condition("node-a", |it| it.cordoned = true);
    world.condition("node-c", |it| it.cordoned = true);
    let attempts = world.attempts(&a, 0, "e");
    let outcomes: Vec<Outcome> = attempts.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::Exhausted, Outcome::NoInstanceTypeFits]);
    let trace = Trace { attempts };
    let text = serde_json::to_string(&trace).unwrap();
    assert_eq!(serde_json::from_str::<Trace>(&text).unwrap(), trace);
}

// spec: PLACE-31, PLACE-29
#[test]
fn survivors_stand_best_first_and_the_first_walk_comes_first() {
    let mut world = world();
    world.offers("node-b", |it| it.reserved_capacity = 1.0);
    let a = doubled(bundle("a", vec![job("e", 1.0)]), |_| {});
    let first = &world.attempts(&a, 0, "e")[0];
    let order: Vec<&str> = first
        .survivors
        .iter()
        .map(|it| it.key.node.as_str())
        .collect();
    assert_eq!(order, ["node-b", "node-a"]);
    for node in ["node-a", "node-c"] {
        world.condition(node, |it| it.cordoned = true);
    }
    world.fleet.set_tier_gate(
        &POOL.into(),
        "cloud",
        greenroom_placement::TierGate::BackOff,
    );
    world.bind(&a, 1, "e", "node-b");
    let attempts = world.attempts(&a, 0, "e");
    let walks: Vec<(bool, Outcome)> = attempts
        .iter()
        .map(|it| (it.compliant_only, it.outcome))
        .collect();
    assert_eq!(
        walks,
        [
            (true, Outcome::Exhausted),
            (true, Outcome::ProvisionBackoff),
            (false, Outcome::Placed)
        ]
    );
    assert_eq!(
        attempts[0].filtered[1].to_string(),
        "node-b: too close to the other copy (same node)"
    );
}

// spec: PLACE-29
#[test]
fn two_walks_are_written_down_even_when_they_cannot_differ() {
    let world = World::new(vec![fixed("own")]);
    let a = doubled(bundle("a", vec![job("e", 1.0)]), |_| {});
    let attempts = world.attempts(&a, 0, "e");
    let walks: Vec<bool> = attempts.iter().map(|it| it.compliant_only).collect();
    assert_eq!(walks, [true, false]);
    let single = bundle("a", vec![job("e", 1.0)]);
    assert_eq!(world.attempts(&single, 0, "e").len(), 1);
}

#[test]
fn the_words_name_the_node_the_reason_and_both_values() {
    let mut world = world();
    world.condition("node-a", |it| it.cordoned = true);
    let a = bundle("a", vec![job("e", 2.0)]);
    let (_, trace) = world.ask(&a, 0, "e", &Ask::default());
    assert_eq!(
        trace.to_string(),
        "live / own: nothing more to try in this tier; 3 nodes looked at, 1 of them elsewhere\n\
         \x20 node-a: cordoned\n\
         \x20 node-b: not enough free capacity (needs 2 vCPU, 0.5 free)\n\
         live / cloud: taken from this tier; 3 nodes looked at, 2 of them elsewhere\n\
         \x20 node-c: chosen\n"
    );
    let said = |world: &World, change: fn(&mut greenroom_types::bundle::BundleJob)| {
        let a = bundle("a", vec![with(job("e", 0.0), change)]);
        let attempts = world.attempts(&a, 0, "e");
        attempts[0]
            .filtered
            .iter()
            .find(|it| it.node.as_str() == "node-b")
            .unwrap()
            .to_string()
    };
    let owner = bundle(
        "o",
        vec![
            job("quiet", 0.0),
            with(job("x", 0.0), |job| {
                job.requirements.required_host_ports = vec!["80/tcp".into()];
            }),
        ],
    );
    world.bind(&owner, 0, "quiet", "node-b");
    world.bind(&owner, 0, "x", "node-b");
    assert_eq!(
        said(&world, |job| job.requirements.required_host_ports =
            vec!["80/tcp".into()]),
        "node-b: a host port is taken (80/tcp is held by job o.0.x)"
    );
    assert_eq!(
        said(&world, |job| job.requirements.required_cores = 5),
        "node-b: not enough free cores (needs 5 cores, 4 free)"
    );
    let wants_cards: fn(&mut greenroom_types::bundle::BundleJob) = |job| {
        job.requirements.required_capabilities = vec![capability("sdi", 2, &[("card", "duo")])]
    };
    assert_eq!(
        said(&world, wants_cards),
        "node-b: lacks a capability (needs 2 x sdi with card=duo, 0 free)"
    );
    world.offers("node-b", |it| {
        it.capabilities = vec![capability("ndi", 4, &[]), capability("sdi", 3, &[])];
        it.reserved_capabilities = vec![capability("sdi", 2, &[])];
    });
    assert_eq!(
        said(&world, wants_cards),
        "node-b: lacks a capability (needs 2 x sdi with card=duo, 1 free)"
    );
    assert_eq!(
        said(&world, |job| {
            job.requirements.required_gpu_capacity = 0.5;
            job.requirements.required_gpu_model = "A10G".into();
        }),
        "node-b: no GPU has the share free (needs 0.5 of a A10G, 0 free)"
    );
    assert_eq!(
        said(&world, |job| job.exclusive = true),
        "node-b: not to be shared (because of o.0.quiet)"
    );
    world.offers("node-b", |it| {
        let mut other = device(1, 1.0);
        other.model = "L4".to_owned();
        it.gpus = vec![device(0, 0.5), other];
        it.gpus[0].reserved_capacity = 0.25;
    });
    for (model, amount, words) in [
        ("A10G", 0.5, "needs 0.5 of a A10G, 0.25 free"),
        ("", 1.5, "needs 1.5 of a device, 1 free"),
    ] {
        let wants = with(job("e", 0.0), |job| {
            job.requirements.required_gpu_capacity = amount;
            job.requirements.required_gpu_model = model.to_owned();
        });
        let attempts = world.attempts(&bundle("a", vec![wants]), 0, "e");
        let filtered = attempts[0].filtered.iter();
        let said: Vec<String> = filtered.map(ToString::to_string).collect();
        let expected = format!("node-b: no GPU has the share free ({words})");
        assert!(said.contains(&expected), "{said:?}");
    }
    world.condition("node-b", |it| it.unhealthy = true);
    assert_eq!(
        said(&world, |_| {}),
        "node-b: left out for now (it rejected several jobs)"
    );
}

#[test]
fn a_rule_inside_a_copy_names_the_job_because_of_which_it_is_broken() {
    let said = |world: &World, bundle: &Bundle| {
        let attempts = world.attempts(bundle, 0, "e");
        let mut filtered = attempts[0].filtered.iter();
        let n = filtered.find(|it| it.node.as_str() == "n").unwrap();
        n.to_string()
    };
    let pair = || {
        let mut world = World::new(vec![fixed("own")]);
        for name in ["m", "n"] {
            world.node(name, "own", 4.0);
        }
        world
    };
    // Bound before it, the job itself and one without a rule; and one like it on another node.
    let apart = bundle(
        "g",
        vec![
            with(job("e", 1.0), |job| {
                job.separate_from = vec!["x".into(), "z".into()]
            }),
            job("x", 1.0),
            job("y", 1.0),
            job("z", 1.0),
        ],
    );
    let words = |job: &str| format!("n: against a rule of the bundle (because of {job})");
    let mut world = pair();
    for (name, node) in [("z", "m"), ("e", "n"), ("y", "n"), ("x", "n")] {
        world.bind(&apart, 0, name, node);
    }
    assert_eq!(said(&world, &apart), words("x"));
    let mut listed = pair();
    let stranger = vec![(job_id(&apart, 0, "x"), job_ref(&apart, 0, "x"))];
    listed.fleet.set_foreign(&id("n"), stranger);
    assert_eq!(said(&listed, &apart), words("x"));

    let together = bundle(
        "g",
        vec![
            with(job("e", 1.0), |job| job.co_locate_with = vec!["x".into()]),
            job("x", 1.0),
            job("y", 1.0),
        ],
    );
    let mut world = pair();
    for name in ["y", "e", "x"] {
        world.bind(&together, 0, name, "m");
    }
    assert_eq!(said(&world, &together), words("x"));
}

#[test]
fn of_the_nodes_that_would_do_the_first_is_chosen() {
    let mut world = world();
    world.offers("node-b", |it| it.reserved_capacity = 1.0);
    let (_, trace) = world.ask(&bundle("a", vec![job("e", 1.0)]), 0, "e", &Ask::default());
    assert_eq!(
        trace.to_string(),
        "live / own: taken from this tier; 3 nodes looked at, 1 of them elsewhere\n\
         \x20 node-b: chosen\n\
         \x20 node-a: would do\n"
    );
}

// spec: PLACE-05, PLACE-28
#[test]
fn reasons_have_one_name_in_every_form() {
    use Reason as R;
    let names = [
        (R::NotTargetNode, "notTargetNode"),
        (R::WrongPool, "wrongPool"),
        (R::WrongTier, "wrongTier"),
        (R::RecoveryExcluded, "recoveryExcluded"),
        (R::Unreachable, "unreachable"),
        (R::Cordoned, "cordoned"),
        (R::DiskNearlyFull, "diskNearlyFull"),
        (R::RuntimeUnavailable, "runtimeUnavailable"),
        (R::WrongRuntime, "wrongRuntime"),
        (R::ReservedExclusively, "reservedExclusively"),
        (R::InsufficientCapabilities, "insufficientCapabilities"),
        (R::InsufficientCapacity, "insufficientCapacity"),
        (R::InsufficientCores, "insufficientCores"),
        (R::HostPortConflict, "hostPortConflict"),
        (R::NoGpuFit, "noGpuFit"),
        (R::Exclusivity, "exclusivity"),
        (R::IntraReplicaRule, "intraReplicaRule"),
        (R::IntraReplicaAz, "intraReplicaAz"),
        (R::ForbiddenDomain, "forbiddenDomain"),
    ];
    for (reason, name) in names {
        assert_eq!(reason.name(), name);
        assert_eq!(serde_json::to_value(reason).unwrap(), name);
    }
    let nowhere = FailureReason::NoCapacityInAnyPool;
    assert_eq!(nowhere.code(), "noCapacityInAnyPool");
    assert_eq!(serde_json::to_value(nowhere).unwrap(), nowhere.code());
}

// spec: PLACE-01, PLACE-33
#[test]
fn asking_changes_nothing_and_answers_the_same_again() {
    let mut world = world();
    world.settle(&bundle("b", vec![job("x", 1.0)]), 0, "x");
    let a = doubled(bundle("a", vec![job("e", 2.0)]), |_| {});
    let before = format!("{:?}", world.fleet);
    let first = world.ask(&a, 0, "e", &Ask::default());
    assert_eq!(world.ask(&a, 0, "e", &Ask::default()), first);
    assert_eq!(format!("{:?}", world.fleet), before);
    assert!(Request::new(&a, 0, &JobName::new("nobody")).is_none());
    assert!(Request::new(&a, 2, &JobName::new("e")).is_none());
    assert!(Request::new(&bundle("s", vec![job("e", 1.0)]), 1, &JobName::new("e")).is_none());
}
