//! The filter chain, reason by reason.

use greenroom_placement::{Context, NodeFacts, Reason};
use greenroom_types::inventory::{Disk, NodeInventory};
use greenroom_types::job::{Container, Service};
use greenroom_types::node::NodeState;

use crate::build::*;

fn world() -> World {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 4.0);
    world
}

// spec: PLACE-04, PLACE-05
#[test]
fn a_node_is_dropped_at_the_first_filter_that_it_fails() {
    // Everything is wrong with n; taking the faults away one by one, from the top of the chain
    // down, shows each reason in its turn.
    let mut world = World::of_pools(vec![
        pool(POOL, vec![fixed("own")]),
        pool("else", vec![fixed("own")]),
    ]);
    world.node_of("else", "n", "own", offer(1.0));
    world.offers("n", |it| {
        it.disk_low = true;
        it.runtime = "unavailable".to_owned();
    });
    world.node("m", "own", 0.0);
    world.condition("m", |it| it.cordoned = true);
    let greedy = bundle(
        "a",
        vec![
            with(job("e", 2.0), |job| {
                let needs = &mut job.requirements;
                needs.required_cores = 2;
                needs.required_capabilities = vec![capability("sdi", 1, &[])];
                needs.required_host_ports = vec!["80/tcp".into()];
                needs.required_gpu_capacity = 0.5;
                job.launch.services = vec![image()];
                job.exclusive = true;
                job.separate_from = vec!["x".into()];
            }),
            with(job("x", 0.0), |job| {
                job.requirements.required_host_ports = vec!["80/tcp".into()];
            }),
            job("y", 0.0),
        ],
    );
    let mut greedy = doubled(greedy, |_| {});
    greedy.intra_replica_placement.same_az = greenroom_types::bundle::SameAz::Hard;
    world.zone("m", "z2");
    world.bind(&greedy, 0, "y", "m");
    world.bind(&greedy, 0, "x", "n");
    world.bind(&greedy, 1, "e", "n");
    world.spare("n", spare_for(&["t"], true));
    world.condition("n", |it| {
        it.recently_failed = true;
        it.terminating = true;
        it.cordoned = true;
    });
    let seen = std::cell::RefCell::new(Vec::new());
    let look = |world: &World, ask: &Ask| {
        let (_, trace) = world.ask(&greedy, 0, "e", ask);
        let first = &trace.attempts[0];
        let reason = first.filtered.iter().find(|node| node.node.as_str() == "n");
        seen.borrow_mut().push(reason.map(|node| node.reason));
    };
    look(
        &world,
        &Ask {
            pin: Some(id("m")),
            ..Ask::default()
        },
    );
    let any = Ask::default();
    look(&world, &any);
    world.facts("n", |it| {
        (it.pool, it.tier) = (Some(POOL.into()), Some("typo".into()))
    });
    look(&world, &any);
    world.facts("n", |it| it.tier = Some("own".into()));
    look(&world, &any);
    world.condition("n", |it| it.recently_failed = false);
    look(&world, &any);
    world.condition("n", |it| it.terminating = false);
    look(&world, &any);
    world.condition("n", |it| it.cordoned = false);
    look(&world, &any);
    world.offers("n", |it| it.disk_low = false);
    look(&world, &any);
    world.offers("n", |it| it.runtime = "process".to_owned());
    look(&world, &any);
    world.offers("n", |it| it.runtime = "docker 20.10.24".to_owned());
    // A spare that carries something is none; for this one look it is empty.
    let mut empty = world.clone();
    empty.unbind(&greedy, 0, "x");
    empty.unbind(&greedy, 1, "e");
    look(&empty, &any);
    look(&world, &any);
    world.offers("n", |it| it.capabilities = vec![capability("sdi", 1, &[])]);
    world
        .fleet
        .unbind(&job_id(&greedy, 1, "e"), greenroom_placement::Side::Binding);
    look(&world, &any);
    world.offers("n", |it| it.total_capacity = 4.0);
    look(&world, &any);
    world.offers("n", |it| it.total_cores = 4);
    look(&world, &any);
    let mut freed = greedy.clone();
    freed.jobs[1].requirements.required_host_ports.clear();
    // What it was bound with counts until it is bound anew (RESV-04).
    world.fleet.set_bundle(&std::sync::Arc::new(freed.clone()));
    world.unbind(&freed, 0, "x");
    world.bind(&freed, 0, "x", "n");
    look(&world, &any);
    world.offers("n", |it| it.gpus = vec![device(0, 1.0)]);
    look(&world, &any);
    // With the job that is in the way gone, the rules remain: x shall not be there either.
    let mut shared = greedy.clone();
    shared.jobs[0].exclusive = false;
    let rule = world.reason(&shared, "e", "n");
    world.facts("n", |it| it.spare = None);
    world.unbind(&greedy, 0, "x");
    look(&world, &any);
    world.zone("n", "z2");
    world.bind(&greedy, 1, "y", "m");
    world
        .fleet
        .unbind(&job_id(&greedy, 0, "y"), greenroom_placement::Side::Binding);
    look(&world, &any);
    let domain = {
        let mut near = greedy.clone();
        near.resilience_policy.as_mut().unwrap().same_az = greenroom_types::bundle::Rule::Forbid;
        world.attempts(&near, 0, "e")[0].filtered[1].reason
    };
    use Reason as R;
    assert_eq!(
        seen.into_inner(),
        [
            Some(R::NotTargetNode),
            Some(R::WrongPool),
            Some(R::WrongTier),
            Some(R::RecoveryExcluded),
            Some(R::Unreachable),
            Some(R::Cordoned),
            Some(R::DiskNearlyFull),
            Some(R::RuntimeUnavailable),
            Some(R::WrongRuntime),
            Some(R::ReservedExclusively),
            Some(R::InsufficientCapabilities),
            Some(R::InsufficientCapacity),
            Some(R::InsufficientCores),
            Some(R::HostPortConflict),
            Some(R::NoGpuFit),
            Some(R::Exclusivity),
            Some(R::IntraReplicaAz),
            None,
        ]
    );
    assert_eq!(rule, Some(R::IntraReplicaRule));
    assert_eq!(domain, R::ForbiddenDomain);
}

// spec: PLACE-03
#[test]
fn a_node_without_inventory_is_invisible_until_it_has_one() {
    let mut world = world();
    world.fleet.upsert_node(NodeFacts {
        node_id: id("blind"),
        pool: Some(POOL.into()),
        tier: Some("own".into()),
        ..NodeFacts::default()
    });
    let a = bundle("a", vec![job("e", 1.0)]);
    let attempt = &world.attempts(&a, 0, "e")[0];
    assert_eq!((attempt.candidates, attempt.filtered.len()), (1, 0));
    // Not even for a job that needs nothing.
    world.condition("n", |it| it.cordoned = true);
    assert_eq!(world.goes(&bundle("z", vec![job("e", 0.0)]), "e"), "-");
    world.prospective("blind", "own", &shape("s", 1.0));
    assert_eq!(world.attempts(&a, 0, "e")[0].candidates, 2);
    world.fleet.clear_inventory(&id("blind"));
    assert_eq!(world.attempts(&a, 0, "e")[0].candidates, 1);
}

// spec: PLACE-06
#[test]
fn exclusions_hold_for_launch_recovery_and_migration_alike() {
    use greenroom_types::bundle::OnRuntimeFailure::PreferSpare;
    let a = bundle("a", vec![job("e", 1.0)]);
    let asks = || {
        [
            Ask::default(),
            recovery(PreferSpare),
            migration("elsewhere"),
        ]
    };
    for mut ask in asks() {
        let mut world = world();
        assert_eq!(world.goes_when(&a, "e", &ask), "n");
        ask.excluded.insert(id("n"));
        let reasons = world.reasons(&a, 0, "e", &ask);
        assert_eq!(reasons["n"], Reason::RecoveryExcluded, "for this job");
        ask.excluded.clear();
        world.condition("n", |it| it.unhealthy = true);
        assert_eq!(
            world.reasons(&a, 0, "e", &ask)["n"],
            Reason::RecoveryExcluded
        );
        world.condition("n", |it| (it.unhealthy, it.recently_failed) = (false, true));
        assert_eq!(
            world.reasons(&a, 0, "e", &ask)["n"],
            Reason::RecoveryExcluded
        );
    }
    let source = world().reasons(&a, 0, "e", &migration("n"));
    assert_eq!(source["n"], Reason::RecoveryExcluded);
}

// spec: PLACE-07
#[test]
fn a_node_that_ends_or_is_not_heard_is_unreachable() {
    let a = bundle("a", vec![job("e", 1.0)]);
    let spoil: [fn(&mut World); 5] = [
        |world| world.offers("n", |it| it.reachable = false),
        |world| world.condition("n", |it| it.state = NodeState::Stopping),
        |world| world.condition("n", |it| it.state = NodeState::Stopped),
        |world| world.condition("n", |it| it.terminating = true),
        |world| world.condition("n", |it| it.unreachable = true),
    ];
    for spoil in spoil {
        let mut world = world();
        spoil(&mut world);
        assert_eq!(world.reason(&a, "e", "n"), Some(Reason::Unreachable));
    }
}

// spec: PLACE-08, CORDON-03
#[test]
fn either_cordon_suffices_also_for_a_pinned_target() {
    let a = bundle("a", vec![job("e", 1.0)]);
    let pinned = Ask {
        context: Context::Migration { source: id("s") },
        pin: Some(id("n")),
        ..Ask::default()
    };
    let mut world = world();
    world.offers("n", |it| it.cordoned = true);
    assert_eq!(world.reasons(&a, 0, "e", &pinned)["n"], Reason::Cordoned);
    world.condition("n", |it| it.cordoned = true);
    world.offers("n", |it| it.cordoned = false);
    assert_eq!(world.reasons(&a, 0, "e", &pinned)["n"], Reason::Cordoned);
    world.condition("n", |it| it.cordoned = false);
    assert_eq!(world.goes_when(&a, "e", &pinned), "n");
}

// spec: PLACE-34
#[test]
fn a_node_whose_disk_is_nearly_full_is_left_out_with_what_is_free() {
    let a = bundle("a", vec![job("e", 1.0)]);
    let disk = |free: u64, low: bool| {
        move |it: &mut NodeInventory| {
            it.disk_low = low;
            it.disks = vec![Disk {
                path: "/".to_owned(),
                total: 100 << 30,
                free: free << 30,
            }];
        }
    };
    let mut world = world();
    world.offers("n", disk(7, true));
    assert_eq!(world.goes(&a, "e"), "-");
    let words = |world: &World| world.attempts(&a, 0, "e")[0].filtered[0].to_string();
    assert_eq!(words(&world), "n: disk nearly full (7 % free, 10 % needed)");
    world.offers("n", disk(11, true));
    assert_eq!(
        words(&world),
        "n: disk nearly full (11 % free, 12 % needed)"
    );
    // The worker judges; what it measured is only shown.
    world.offers("n", disk(7, false));
    assert_eq!(world.goes(&a, "e"), "n");
    world.offers("n", |it| (it.disk_low, it.disks) = (true, Vec::new()));
    assert_eq!(words(&world), "n: disk nearly full");
    world.check();
}

// spec: PLACE-35
#[test]
fn a_node_of_another_runtime_is_left_out_and_where_it_is_not_known_nothing_is() {
    let of = |services: Vec<Service>| {
        bundle(
            "a",
            vec![with(job("e", 1.0), |job| job.launch.services = services)],
        )
    };
    let with_command = Service {
        command: "run".to_owned(),
        ..image()
    };
    let program = Service {
        command: "run".to_owned(),
        ..Service::default()
    };
    let process = Service {
        container: Container::Process {
            command: vec!["run".to_owned()],
            directory: String::new(),
        },
        ..Service::default()
    };
    for (runtime, runs) in [
        ("process", [false, false, true, true, false]),
        ("docker 29.0", [true, true, false, false, true]),
        ("", [true; 5]),
    ] {
        let mut world = world();
        world.offers("n", |it| it.runtime = runtime.to_owned());
        let kinds = [
            vec![image()],
            vec![with_command.clone()],
            vec![program.clone()],
            vec![process.clone()],
            vec![],
        ];
        for (services, runs) in kinds.into_iter().zip(runs) {
            let a = of(services.clone());
            let expected = if runs { "n" } else { "-" };
            assert_eq!(world.goes(&a, "e"), expected, "{runtime} {services:?}");
        }
        world.check();
    }
    let mut world = world();
    world.offers("n", |it| it.runtime = "process".to_owned());
    world.node("o", "own", 1.0);
    world.offers("o", |it| it.runtime = "docker 29.0".to_owned());
    let a = of(vec![with_command]);
    assert_eq!(world.goes(&a, "e"), "o");
    let left_out = &world.attempts(&a, 0, "e")[0].filtered[0];
    assert_eq!(
        left_out.to_string(),
        "n: another runtime (needs containers, runs processes)"
    );
    // Members of a group count as one, whichever is placed first.
    for (runtime, first, second, runs) in [
        ("process", image(), image(), false),
        ("process", program.clone(), image(), false),
        ("process", program.clone(), program.clone(), true),
        ("docker 29.0", image(), program.clone(), false),
        ("docker 29.0", program.clone(), program, false),
        ("docker 29.0", image(), image(), true),
    ] {
        let mut world = self::world();
        world.offers("n", |it| it.runtime = runtime.to_owned());
        let mut group = bundle("g", vec![job("e", 1.0), job("f", 1.0)]);
        group.intra_replica_placement.same_node_default = true;
        group.jobs[0].launch.services = vec![first.clone()];
        group.jobs[1].launch.services = vec![second.clone()];
        let expected = if runs { "n" } else { "-" };
        for name in ["e", "f"] {
            assert_eq!(
                world.goes(&group, name),
                expected,
                "{runtime} {first:?} {second:?}"
            );
        }
    }
    // The runtime of a node may become another one.
    world.offers("n", |it| it.runtime = "docker 29.0".to_owned());
    world.offers("o", |it| it.runtime = "process".to_owned());
    assert_eq!(world.goes(&a, "e"), "n");
    world.check();
}

// spec: PLACE-36
#[test]
fn a_node_whose_engine_does_not_answer_is_left_out() {
    let a = bundle("a", vec![job("e", 1.0)]);
    let mut world = world();
    world.offers("n", |it| it.runtime = "unavailable".to_owned());
    assert_eq!(world.goes(&a, "e"), "-");
    let left_out = &world.attempts(&a, 0, "e")[0].filtered[0];
    assert_eq!(
        left_out.to_string(),
        "n: its container engine does not answer"
    );
    world.check();
    world.offers("n", |it| it.runtime = "docker 29.0".to_owned());
    assert_eq!(world.goes(&a, "e"), "n");
    world.check();
}

// spec: PLACE-09, HARD-35
#[test]
fn an_exclusive_spare_waits_for_its_template() {
    use greenroom_types::bundle::OnRuntimeFailure::PreferSpare;
    let mut tier = aws("cloud", &[shape("s", 4.0)]);
    tier.max_nodes = Some(1);
    let mut world = World::new(vec![tier]);
    world.node("s", "cloud", 4.0);
    world.spare("s", spare_for(&["x"], true));
    let of = |id: &str, template: Option<&str>| {
        bundle(
            id,
            vec![with(job("e", 1.0), |job| {
                job.launch.template = template.map(Into::into);
            })],
        )
    };
    let y = of("y", Some("y"));
    for ask in [Ask::default(), recovery(PreferSpare)] {
        assert_eq!(world.goes_when(&y, "e", &ask), "-");
        assert_eq!(
            world.reasons(&y, 0, "e", &ask)["s"],
            Reason::ReservedExclusively
        );
    }
    assert_eq!(
        world.goes(&of("none", None), "e"),
        "-",
        "no template matches none"
    );
    let mut overriding = y.clone();
    overriding.override_reservation = true;
    assert_eq!(world.goes(&overriding, "e"), "s");
    assert_eq!(
        world.goes_when(&overriding, "e", &recovery(PreferSpare)),
        "s"
    );
    let admit = Ask {
        admit: true,
        ..migration("m")
    };
    assert_eq!(world.goes_when(&y, "e", &admit), "s");
    assert_eq!(world.goes_when(&y, "e", &migration("m")), "-");
    world.settle(&of("x", Some("x")), 0, "e");
    assert_eq!(world.goes(&y, "e"), "s", "consumed, and with room");
}

// spec: PLACE-10, WORK-43
#[test]
fn capabilities_are_counted_under_their_name_and_their_attributes_equal() {
    let mut world = world();
    world.offers("n", |it| {
        it.capabilities = vec![capability("sdi", 4, &[("card", "duo"), ("genlock", "yes")])];
    });
    let wants = |needs: &[greenroom_types::inventory::Capability]| {
        bundle(
            "a",
            vec![with(job("e", 1.0), |job| {
                job.requirements.required_capabilities = needs.to_vec();
            })],
        )
    };
    let fits = |world: &World, needs: &[_]| world.goes(&wants(needs), "e") == "n";
    assert!(fits(&world, &[capability("sdi", 4, &[("card", "duo")])]));
    assert!(!fits(&world, &[capability("sdi", 5, &[])]));
    assert!(!fits(&world, &[capability("sdi", 1, &[("card", "quad")])]));
    assert!(!fits(&world, &[capability("sdi", 1, &[("port", "1")])]));
    assert!(!fits(&world, &[capability("ndi", 1, &[])]));
    let twice = [
        capability("sdi", 3, &[]),
        capability("sdi", 2, &[("card", "duo")]),
    ];
    assert!(!fits(&world, &twice), "two needs of one name add up");
    world.offers("n", |it| {
        it.reserved_capabilities = vec![capability("sdi", 2, &[])]
    });
    assert!(fits(&world, &[capability("sdi", 2, &[])]));
    assert!(!fits(&world, &[capability("sdi", 3, &[])]));
    // What a node service provides counts like what the machine has, while it is there.
    world.offers("n", |it| it.provided = vec![capability("sdi", 1, &[])]);
    assert!(fits(&world, &[capability("sdi", 3, &[])]));
    world.offers("n", |it| it.provided.clear());
    assert!(!fits(&world, &[capability("sdi", 3, &[])]));
}

// spec: PLACE-11, HARD-44
#[test]
fn ten_tenths_fill_one_vcpu() {
    let mut world = world();
    world.offers("n", |it| it.total_capacity = 1.0);
    let a = bundle("a", (0..11).map(|at| job(&format!("e{at}"), 0.1)).collect());
    for at in 0..10 {
        assert_eq!(went(&world.settle(&a, 0, &format!("e{at}"))), "n", "{at}");
    }
    assert_eq!(
        world.reason(&a, "e10", "n"),
        Some(Reason::InsufficientCapacity)
    );
}

// spec: PLACE-11
#[test]
fn fractions_that_add_up_to_the_whole_fit_although_binary_sums_do_not() {
    let mut world = world();
    world.offers("n", |it| it.total_capacity = 0.6);
    let a = bundle("a", vec![job("e", 0.1), job("f", 0.2), job("g", 0.3)]);
    for name in ["e", "f", "g"] {
        assert_eq!(went(&world.settle(&a, 0, name)), "n", "{name}");
    }
    let more = bundle("b", vec![job("e", 1e-6)]);
    assert_eq!(world.goes(&more, "e"), "-", "the tolerance is no capacity");
}

// spec: PLACE-12, HARD-45
#[test]
fn a_cap_that_is_no_fraction_offers_no_more_than_there_is() {
    for cap in [4.0, f64::NAN, 0.0, -1.0] {
        let mut world = world();
        world.offers("n", |it| it.utilization_cap = cap);
        assert_eq!(world.fleet.free_capacity(&id("n")), Some(4.0), "{cap}");
        assert_eq!(world.goes(&bundle("a", vec![job("e", 4.0)]), "e"), "n");
        assert_eq!(world.goes(&bundle("a", vec![job("e", 4.1)]), "e"), "-");
    }
    let mut world = world();
    world.offers("n", |it| it.utilization_cap = 0.5);
    assert_eq!(world.goes(&bundle("a", vec![job("e", 2.1)]), "e"), "-");
}

// spec: PLACE-13
#[test]
fn cores_matter_only_to_those_who_pin() {
    let mut world = world();
    world.offers("n", |it| (it.total_cores, it.reserved_cores) = (4, 5));
    let pins = |cores| {
        bundle(
            "a",
            vec![with(job("e", 1.0), |job| {
                job.requirements.required_cores = cores
            })],
        )
    };
    assert_eq!(world.goes(&pins(0), "e"), "n");
    assert_eq!(
        world.reason(&pins(1), "e", "n"),
        Some(Reason::InsufficientCores)
    );
    world.offers("n", |it| it.reserved_cores = 2);
    assert_eq!(world.goes(&pins(2), "e"), "n");
    assert_eq!(
        world.reason(&pins(3), "e", "n"),
        Some(Reason::InsufficientCores)
    );
}

// spec: INTRA-09, RESV-07, HARD-46
#[test]
fn exclusivity_works_both_ways_and_node_services_do_not_count() {
    let alone = bundle("a", vec![with(job("e", 0.0), |job| job.exclusive = true)]);
    let idle = bundle("b", vec![job("e", 0.0)]);
    let mut holder = world();
    holder.bind(&alone, 0, "e", "n");
    assert_eq!(holder.reason(&idle, "e", "n"), Some(Reason::Exclusivity));

    let mut taken = world();
    taken.bind(&idle, 0, "e", "n");
    assert_eq!(taken.reason(&alone, "e", "n"), Some(Reason::Exclusivity));
    taken.unbind(&idle, 0, "e");
    // A node service is in the inventory and has no place in a bundle.
    taken.offers("n", |it| {
        it.assigned_jobs = vec![greenroom_types::inventory::AssignedJob {
            job_id: "svc.0".into(),
            ..Default::default()
        }];
    });
    assert_eq!(taken.goes(&alone, "e"), "n");
    // A job that the inventory lists and whose tags are known counts.
    let listed = vec![(job_id(&idle, 0, "e"), job_ref(&idle, 0, "e"))];
    taken.fleet.set_foreign(&id("n"), listed);
    assert_eq!(taken.reason(&alone, "e", "n"), Some(Reason::Exclusivity));

    // The other way round: an exclusive job that is only listed refuses others.
    let mut listed = world();
    listed.fleet.set_bundle(&std::sync::Arc::new(alone.clone()));
    let entry = vec![(job_id(&alone, 0, "e"), job_ref(&alone, 0, "e"))];
    listed.fleet.set_foreign(&id("n"), entry);
    assert_eq!(listed.reason(&idle, "e", "n"), Some(Reason::Exclusivity));
    assert_eq!(
        listed.goes(&alone, "e"),
        "n",
        "a job is never in its own way"
    );
}
