//! What is reserved, by whom, until when.

use std::sync::Arc;

use greenroom_placement::{Reason, Side};
use greenroom_types::bundle::Bundle;

use crate::build::*;

fn world() -> World {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 8.0);
    world.node("n", "own", 8.0);
    world
}

fn needy() -> Bundle {
    bundle(
        "b",
        vec![with(job("e", 3.0), |job| {
            job.requirements.required_cores = 2;
            job.requirements.required_capabilities = vec![capability("sdi", 2, &[])];
        })],
    )
}

// spec: RESV-01
#[test]
fn bindings_reserve_capacity_cores_and_capabilities() {
    let mut world = world();
    let b = doubled(needy(), |_| {});
    world.bind(&b, 0, "e", "n");
    world.bind(&b, 1, "e", "n");
    let reserved = world.fleet.reserved(&id("n")).unwrap();
    assert_eq!((reserved.capacity, reserved.cores), (6.0, 4));
    assert_eq!(reserved.capabilities["sdi"], 4);
    assert_eq!(world.fleet.reserved(&id("m")).unwrap().capacity, 0.0);
}

// spec: RESV-02
#[test]
fn each_field_is_the_larger_of_reported_and_derived() {
    let mut world = world();
    world.offers("n", |it| {
        it.reserved_capacity = 5.0;
        it.reserved_cores = 1;
        it.reserved_capabilities = vec![capability("sdi", 3, &[]), capability("ndi", 1, &[])];
    });
    world.bind(&needy(), 0, "e", "n");
    let reserved = world.fleet.reserved(&id("n")).unwrap();
    assert_eq!((reserved.capacity, reserved.cores), (5.0, 2));
    assert_eq!(
        (reserved.capabilities["sdi"], reserved.capabilities["ndi"]),
        (3, 1)
    );
    assert_eq!(world.fleet.derived(&id("n")).unwrap().capacity, 3.0);
    let f = bundle("f", vec![job("e", 3.5)]);
    assert_eq!(
        world.reason(&f, "e", "n"),
        Some(Reason::InsufficientCapacity)
    );
}

// spec: RESV-03, HARD-95
#[test]
fn a_moving_job_counts_on_both_nodes_until_the_end() {
    let mut world = world();
    let b = bundle("b", vec![job("e", 6.0)]);
    world.bind(&b, 0, "e", "n");
    world.bind_side(&b, 0, "e", "m", None, Side::MigrationTarget);
    assert_eq!(world.fleet.node_of(&job_id(&b, 0, "e")), Some(&id("n")));
    assert_eq!(
        world
            .fleet
            .side_of(&job_id(&b, 0, "e"), Side::MigrationTarget),
        Some(&id("m"))
    );
    let f = bundle("f", vec![job("e", 4.0)]);
    for node in ["m", "n"] {
        assert_eq!(
            world.reason(&f, "e", node),
            Some(Reason::InsufficientCapacity),
            "{node}"
        );
    }
    assert_eq!(world.fleet.promote(&job_id(&b, 0, "e")), Some(id("n")));
    world.check();
    assert_eq!(world.goes(&f, "e"), "n");
    assert_eq!(world.fleet.node_of(&job_id(&b, 0, "e")), Some(&id("m")));
    assert_eq!(
        world
            .fleet
            .side_of(&job_id(&b, 0, "e"), Side::MigrationTarget),
        None
    );
}

// spec: RESV-04, BUNDLE-11
#[test]
fn a_binding_follows_its_bundle_and_outlives_it() {
    let mut world = world();
    let mut b = bundle("b", vec![job("e", 2.0)]);
    let reserved = |world: &World| {
        world.check();
        world.fleet.reserved(&id("n")).unwrap().capacity
    };
    // Never known: counts nothing.
    world.fleet.bind(
        &job_id(&b, 0, "e"),
        &job_ref(&b, 0, "e"),
        &id("n"),
        None,
        Side::Binding,
    );
    assert_eq!(reserved(&world), 0.0);
    world.fleet.set_bundle(&Arc::new(b.clone()));
    assert_eq!(reserved(&world), 2.0);
    b.jobs[0].requirements.required_capacity = 3.0;
    world.fleet.set_bundle(&Arc::new(b.clone()));
    assert_eq!(reserved(&world), 3.0, "new needs count at once");
    b.jobs[0] = job("other", 1.0);
    world.fleet.set_bundle(&Arc::new(b.clone()));
    assert_eq!(
        reserved(&world),
        3.0,
        "no longer in the bundle, still running"
    );
    world.fleet.remove_bundle(&b.bundle_id);
    assert_eq!(reserved(&world), 3.0);
    world.unbind(&b, 0, "e");
    assert_eq!(reserved(&world), 0.0);
    // Smaller needs count from the next placement on: it runs with the old ones.
    b.jobs[0] = job("e", 3.0);
    world.bind(&b, 0, "e", "n");
    b.jobs[0] = job("e", 1.0);
    world.fleet.set_bundle(&Arc::new(b.clone()));
    assert_eq!(reserved(&world), 3.0);
    world.unbind(&b, 0, "e");
    world.bind(&b, 0, "e", "n");
    assert_eq!(reserved(&world), 1.0);
}

// spec: RESV-04, BUNDLE-11
#[test]
fn of_each_need_of_a_running_job_the_larger_counts() {
    let wants = |cores: u32, counts: &[(&str, u32)], port: &str, share: f64, model: &str| {
        let mut b = bundle("b", vec![job("e", 1.0)]);
        let needs = &mut b.jobs[0].requirements;
        needs.required_cores = cores;
        let counts = counts.iter();
        needs.required_capabilities = counts.map(|&(name, n)| capability(name, n, &[])).collect();
        needs.required_host_ports = vec![port.to_owned()];
        needs.required_gpu_capacity = share;
        needs.required_gpu_model = model.to_owned();
        b
    };
    let old = wants(2, &[("sdi", 2), ("ndi", 3)], "80/tcp", 0.5, "A10G");
    let mut world = world();
    world.offers("n", |it| {
        it.gpus = vec![device(0, 1.0), device(1, 1.0)];
        it.gpus[1].model = "L4".to_owned();
    });
    world.bind(&old, 0, "e", "n");
    let holds = |b: &Bundle| {
        let mut world = world.clone();
        world.fleet.set_bundle(&Arc::new(b.clone()));
        world.check();
        let it = world.fleet.reserved(&id("n")).unwrap();
        let ports: Vec<String> = it.ports.iter().map(ToString::to_string).collect();
        let counts = ["sdi", "ndi", "srt"].map(|name| it.capabilities.get(name).copied());
        let shares = [0, 1].map(|at| it.gpus.get(&at).copied());
        (it.cores, counts, ports.join(" "), shares)
    };
    let kept = (
        2,
        [Some(2), Some(3), None],
        "80/tcp".to_owned(),
        [Some(0.5), None],
    );
    assert_eq!(holds(&old), kept);
    let less = wants(1, &[("sdi", 1), ("ndi", 3)], "80/tcp", 0.25, "L4");
    let beside = |share: f64| (kept.0, kept.1, kept.2.clone(), [Some(0.5), Some(share)]);
    assert_eq!(
        holds(&less),
        beside(0.25),
        "it runs with what it was started with"
    );
    let other_device = wants(2, &[("ndi", 3), ("sdi", 2)], "80/tcp", 0.5, "L4");
    assert_eq!(
        holds(&other_device),
        beside(0.5),
        "where it is, and where it will be"
    );
    let more = wants(
        3,
        &[("sdi", 5), ("ndi", 1), ("srt", 1)],
        "81/tcp",
        0.75,
        "A10G",
    );
    assert_eq!(
        holds(&more),
        (
            3,
            [Some(5), Some(3), Some(1)],
            "80/tcp 81/tcp".to_owned(),
            [Some(0.75), None]
        )
    );
}

// spec: BUNDLE-11, RESV-04
#[test]
fn a_new_gpu_model_is_held_beside_the_one_in_use() {
    let wants = |bundle_id: &str, share: f64, model: &str| {
        let mut b = bundle(bundle_id, vec![job("e", 0.5)]);
        b.jobs[0].requirements.required_gpu_capacity = share;
        b.jobs[0].requirements.required_gpu_model = model.to_owned();
        b
    };
    let mut world = world();
    world.offers("n", |it| {
        it.gpus = vec![device(0, 1.0), device(1, 1.0)];
        it.gpus[1].model = "L4".to_owned();
    });
    let b = wants("b", 0.5, "A10G");
    world.bind_side(&b, 0, "e", "n", Some(0), Side::Binding);
    let fits = |world: &World, share: f64, model: &str| {
        let world = world.clone();
        let other = wants("other", share, model);
        world.reason(&other, "e", "n").is_none()
    };
    assert!(fits(&world, 1.0, "L4"));
    let update = Arc::new(wants("b", 0.5, "L4"));
    world.fleet.set_bundle(&update);
    world.check();
    assert!(!fits(&world, 1.0, "L4"), "its next start wants half of it");
    assert!(fits(&world, 0.5, "L4"));
    assert!(
        !fits(&world, 1.0, "A10G"),
        "it runs there with the other half"
    );
    assert!(fits(&world, 0.5, "A10G"));
    // Back again: it is one share of one device as before, and the other is held no longer than to the
    // next start.
    world.fleet.set_bundle(&Arc::new(wants("b", 0.75, "A10G")));
    assert!(!fits(&world, 0.5, "A10G"));
    assert!(
        fits(&world, 0.25, "A10G"),
        "the larger of the two, not their sum"
    );
    world.unbind(&update, 0, "e");
    assert!(fits(&world, 1.0, "A10G") && fits(&world, 1.0, "L4"));
}

// spec: RESV-07
#[test]
fn what_a_picture_lists_takes_room_whether_or_not_it_is_bound() {
    let mut world = world();
    let mut b = bundle("b", vec![job("e", 2.0), job("f", 1.0)]);
    b.jobs[1].requirements.required_host_ports = vec!["80/tcp".to_owned()];
    world.bind(&b, 0, "e", "n");
    let listed = |name: &str, capacity: f64, ports: &[&str]| greenroom_placement::Listed {
        job_id: job_id(&b, 0, name),
        needs: greenroom_placement::Needs::of(&greenroom_types::bundle::Requirements {
            required_capacity: capacity,
            required_host_ports: ports.iter().map(|&port| port.to_owned()).collect(),
            ..Default::default()
        }),
        gpu_index: None,
        beside: false,
    };
    let reserved = |world: &World| {
        world.check();
        world.fleet.reserved(&id("n")).unwrap().capacity
    };
    world
        .fleet
        .set_listed(&id("n"), vec![listed("e", 1.0, &[])], Vec::new());
    assert_eq!(reserved(&world), 2.0, "less than it is bound with");
    world
        .fleet
        .set_listed(&id("n"), vec![listed("e", 3.0, &[])], Vec::new());
    assert_eq!(reserved(&world), 3.0, "more than it is bound with");
    let mut beside = listed("e", 1.0, &[]);
    beside.beside = true;
    world.fleet.set_listed(
        &id("n"),
        vec![listed("e", 2.0, &[]), beside.clone()],
        Vec::new(),
    );
    assert_eq!(
        reserved(&world),
        3.0,
        "an older instance of it is there as well"
    );
    world.fleet.set_listed(&id("n"), vec![beside], Vec::new());
    assert_eq!(reserved(&world), 3.0, "or alone, before its own is listed");
    let both = vec![listed("e", 2.0, &[]), listed("x", 1.0, &["80/tcp"])];
    world.fleet.set_listed(&id("n"), both, Vec::new());
    assert_eq!(reserved(&world), 3.0, "one that is not bound here");
    assert_eq!(
        world.reason(&b, "f", "n"),
        Some(greenroom_placement::Reason::HostPortConflict)
    );
    world.fleet.clear_inventory(&id("n"));
    assert_eq!(reserved(&world), 2.0);
}

// spec: RESV-07, BUNDLE-11
#[test]
fn a_job_that_holds_more_than_it_is_bound_with_counts_with_that() {
    let needs = |cores: u32, share: f64| greenroom_types::bundle::Requirements {
        required_cores: cores,
        required_gpu_capacity: share,
        ..Default::default()
    };
    let mut b = bundle("b", vec![job("e", 0.0)]);
    b.jobs[0].requirements = needs(2, 0.5);
    // Device it is bound with, what it holds and where, and what is reserved then.
    for (device_bound, cores, share, device_held, expected) in [
        (Some(0), 1, 0.25, Some(0), (2, [Some(0.5), None])),
        (Some(0), 3, 0.75, Some(0), (3, [Some(0.75), None])),
        (Some(0), 2, 0.75, None, (2, [Some(0.5), None])),
        (Some(0), 2, 0.75, Some(1), (2, [Some(0.5), Some(0.75)])),
        (None, 5, 0.75, Some(1), (5, [Some(0.5), Some(0.75)])),
    ] {
        let mut world = world();
        world.offers("n", |it| it.gpus = vec![device(0, 1.0), device(1, 1.0)]);
        world.bind_side(&b, 0, "e", "n", device_bound, Side::Binding);
        let listed = greenroom_placement::Listed {
            job_id: job_id(&b, 0, "e"),
            needs: greenroom_placement::Needs::of(&needs(cores, share)),
            gpu_index: device_held,
            beside: false,
        };
        world.fleet.set_listed(&id("n"), vec![listed], Vec::new());
        world.check();
        let it = world.fleet.reserved(&id("n")).unwrap();
        let shares = [0, 1].map(|at| it.gpus.get(&at).copied());
        assert_eq!((it.cores, shares), expected, "{share} on {device_held:?}");
    }
}

// spec: RESV-02, RESV-07
#[test]
fn what_has_ended_since_a_picture_is_not_taken_though_it_is_reported() {
    let mut world = world();
    world.offers("n", |it| {
        it.reserved_capacity = 3.0;
        it.reserved_cores = 2;
        it.capabilities = vec![capability("sdi", 2, &[])];
        it.reserved_capabilities = vec![capability("sdi", 2, &[])];
        it.gpus = vec![device(0, 1.0)];
        it.gpus[0].reserved_capacity = 1.0;
    });
    let a = bundle("a", vec![job("e", 1.0)]);
    let held = |capacity: f64, cores: u32, sdi: u32, share: f64| greenroom_placement::Listed {
        job_id: job_id(&a, 0, "e"),
        needs: greenroom_placement::Needs::of(&greenroom_types::bundle::Requirements {
            required_capacity: capacity,
            required_cores: cores,
            required_capabilities: vec![capability("sdi", sdi, &[])],
            required_gpu_capacity: share,
            ..Default::default()
        }),
        gpu_index: Some(0),
        beside: false,
    };
    let left = |world: &World| {
        world.check();
        let reserved = world.fleet.reserved(&id("n")).unwrap();
        let (sdi, share) = (reserved.capabilities["sdi"], reserved.gpus[&0]);
        (reserved.capacity, reserved.cores, sdi, share)
    };
    assert_eq!(left(&world), (3.0, 2, 2, 1.0));
    let gone = vec![held(1.0, 1, 1, 0.5)];
    world.fleet.set_listed(&id("n"), Vec::new(), gone);
    assert_eq!(left(&world), (2.0, 1, 1, 0.5));
    let gone = vec![held(9.0, 9, 9, 9.0)];
    world.fleet.set_listed(&id("n"), Vec::new(), gone);
    assert_eq!(left(&world), (0.0, 0, 0, 0.0), "never less than nothing");

    // Asked about this node alone, what the job itself still holds is not in its way either.
    world
        .fleet
        .set_listed(&id("n"), vec![held(3.0, 2, 2, 1.0)], Vec::new());
    let mut greedy = a.clone();
    greedy.jobs[0].requirements.required_capacity = 8.0;
    assert_eq!(world.goes(&greedy, "e"), "m");
    let reason = world.reason(&greedy, "e", "n");
    assert_eq!(
        reason,
        Some(Reason::InsufficientCapacity),
        "any node is asked for"
    );
    let pinned = Ask {
        pin: Some(id("n")),
        ..Ask::default()
    };
    assert_eq!(went(&world.ask(&greedy, 0, "e", &pinned).0), "n");
    // What others have there is, and so is what it holds where it is bound.
    let other = bundle("o", vec![job("x", 1.0)]);
    world.bind(&other, 0, "x", "n");
    assert_eq!(went(&world.ask(&greedy, 0, "e", &pinned).0), "-");
    world.unbind(&other, 0, "x");
    world.bind(&a, 0, "e", "n");
    greedy.jobs[0].requirements.required_capacity = 6.0;
    assert_eq!(went(&world.ask(&greedy, 0, "e", &pinned).0), "-");
}

// spec: RESV-03, HARD-27
#[test]
fn a_decision_counts_for_the_next_one() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 4.0);
    world.node("n", "own", 4.0);
    world.bind(&bundle("b", vec![job("x", 2.0)]), 0, "x", "n");
    let a = bundle("a", vec![job("e", 2.0), job("f", 2.0)]);
    assert_eq!(went(&world.settle(&a, 0, "e")), "n", "the fuller one");
    assert_eq!(went(&world.settle(&a, 0, "f")), "m");
}

#[test]
fn bindings_are_found_by_job_and_listed_in_their_order() {
    let mut world = world();
    let b = bundle("b", vec![job("x", 0.0), job("y", 0.0), job("z", 0.0)]);
    for name in ["z", "x", "y"] {
        world.bind(&b, 0, name, "n");
    }
    let order = |world: &World, node: &str| -> Vec<String> {
        let jobs = world.fleet.jobs_on(&id(node)).iter();
        jobs.map(|bound| bound.job.job_name.to_string()).collect()
    };
    assert_eq!(order(&world, "n"), ["z", "x", "y"]);
    world.bind(&b, 0, "z", "m");
    assert_eq!(
        order(&world, "n"),
        ["x", "y"],
        "a job that is bound again moves"
    );
    assert_eq!(world.fleet.node_of(&job_id(&b, 0, "z")), Some(&id("m")));
    assert_eq!(world.fleet.node_of(&job_id(&b, 0, "nobody")), None);
    let bound = |name: &str| world.fleet.bound(&job_id(&b, 0, name), Side::Binding);
    let seq = |name: &str| bound(name).map(|it| it.seq);
    assert!(
        seq("x") < seq("y") && seq("y") < seq("z"),
        "in the order of binding"
    );
    assert_eq!(bound("y").unwrap().job, job_ref(&b, 0, "y"));
    assert_eq!(seq("nobody"), None);
}

// spec: MIGR-15, GPU-05
#[test]
fn what_is_said_of_one_side_of_one_job_touches_no_other() {
    let mut world = world();
    world.offers("m", |it| it.gpus = vec![device(0, 1.0), device(1, 1.0)]);
    let shares = |name| {
        with(job(name, 0.0), |job| {
            job.requirements.required_gpu_capacity = 0.5
        })
    };
    let b = bundle("b", vec![shares("x"), shares("y"), shares("z")]);
    world.bind_side(&b, 0, "z", "m", None, Side::Binding);
    for name in ["x", "y"] {
        world.bind(&b, 0, name, "n");
        world.bind_side(&b, 0, name, "m", None, Side::MigrationTarget);
    }
    let there = |world: &World, name: &str| {
        let jobs = world.fleet.jobs_on(&id("m")).iter();
        let mut found = jobs.filter(|it| it.job.job_name.as_str() == name);
        let it = found.next().unwrap();
        (it.side, it.gpu_index)
    };
    let y = job_id(&b, 0, "y");
    world
        .fleet
        .set_gpu_index(&y, Side::MigrationTarget, Some(1));
    world.check();
    assert_eq!(there(&world, "y"), (Side::MigrationTarget, Some(1)));
    assert_eq!(
        world
            .fleet
            .bound(&y, Side::MigrationTarget)
            .unwrap()
            .gpu_index,
        Some(1)
    );
    assert_eq!(
        world.fleet.bound(&y, Side::Binding).unwrap().gpu_index,
        None
    );
    assert_eq!(there(&world, "x"), (Side::MigrationTarget, None));
    assert_eq!(there(&world, "z"), (Side::Binding, None));
    assert_eq!(world.fleet.promote(&y), Some(id("n")));
    world.check();
    assert_eq!(there(&world, "y"), (Side::Binding, Some(1)));
    assert_eq!(there(&world, "x"), (Side::MigrationTarget, None));
}

// spec: PROV-05
#[test]
fn a_node_that_turns_out_smaller_just_takes_no_more() {
    let mut world = World::new(vec![aws("cloud", &[shape("s", 4.0)])]);
    world.prospective("p", "cloud", &shape("s", 4.0));
    let a = bundle("a", vec![job("e", 3.0), job("f", 1.0)]);
    world.bind(&a, 0, "e", "p");
    world.fleet.set_inventory(&id("p"), Arc::new(offer(2.0)));
    world.check();
    assert_eq!(world.fleet.free_capacity(&id("p")), Some(-1.0));
    assert_eq!(world.fleet.node_of(&job_id(&a, 0, "e")), Some(&id("p")));
    assert_eq!(world.goes(&a, "f"), "+cloud/s");
}

#[test]
fn a_forgotten_node_keeps_its_bindings_findable_until_they_go() {
    let mut world = world();
    let b = needy();
    world.bind(&b, 0, "e", "n");
    world.fleet.remove_node(&id("n"));
    world.check();
    assert!(!world.fleet.contains(&id("n")));
    assert_eq!(world.goes(&bundle("f", vec![job("e", 1.0)]), "e"), "m");
    assert_eq!(
        world.fleet.unbind(&job_id(&b, 0, "e"), Side::Binding),
        Some(id("n"))
    );
    world.node("o", "own", 1.0);
    world.check();
    assert_eq!(world.fleet.nodes().count(), 2);
}
