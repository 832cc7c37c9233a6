//! Rules inside a copy: groups, holds, separation, zones.

use std::sync::Arc;

use greenroom_placement::{BundlePlan, Outcome, Reason, Side};
use greenroom_types::bundle::{Bundle, SameAz, StartMode};
use greenroom_types::pool::TierKind;

use crate::build::*;

/// a and b share a node.
fn group() -> Bundle {
    bundle(
        "g",
        vec![
            with(job("a", 2.0), |job| job.co_locate_with = vec!["b".into()]),
            job("b", 2.0),
        ],
    )
}

fn plan(jobs: Vec<greenroom_types::bundle::BundleJob>, default: bool) -> BundlePlan {
    let mut bundle = bundle("g", jobs);
    bundle.intra_replica_placement.same_node_default = default;
    BundlePlan::new(&Arc::new(bundle))
}

// spec: INTRA-02
#[test]
fn co_location_is_symmetric_and_transitive() {
    let with_peer =
        |name: &str, peer: &str| with(job(name, 1.0), |job| job.co_locate_with = vec![peer.into()]);
    let plan = plan(
        vec![
            job("a", 1.0),
            with_peer("b", "a"),
            with_peer("c", "b"),
            job("d", 1.0),
        ],
        false,
    );
    let groups: Vec<&[usize]> = plan
        .groups()
        .iter()
        .map(|group| group.members.as_slice())
        .collect();
    assert_eq!(groups, [&[0, 1, 2][..], &[3]]);
    assert_eq!(plan.groups()[0].needs.capacity, 3.0);
}

// spec: INTRA-07
#[test]
fn same_node_default_takes_in_the_jobs_without_a_rule() {
    let apart = with(job("x", 1.0), |job| job.separate_from = vec!["y".into()]);
    let jobs = vec![job("a", 1.0), apart, job("b", 1.0), job("y", 1.0)];
    let ungrouped = plan(jobs.clone(), false);
    assert_eq!(ungrouped.groups().len(), 4);
    let grouped = plan(jobs, true);
    let groups: Vec<&[usize]> = grouped
        .groups()
        .iter()
        .map(|group| group.members.as_slice())
        .collect();
    assert_eq!(
        groups,
        [&[0, 2, 3][..], &[1]],
        "x declares a rule, y only suffers one"
    );
    assert_eq!(grouped.groups()[0].apart, [1]);
}

// spec: INTRA-01
#[test]
fn rules_hold_inside_a_copy_only() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 8.0);
    let g = doubled(
        bundle(
            "g",
            vec![
                job("a", 1.0),
                with(job("b", 1.0), |job| job.separate_from = vec!["a".into()]),
            ],
        ),
        |policy| policy.same_node = greenroom_types::bundle::Rule::Allow,
    );
    world.bind(&g, 1, "a", "n");
    assert_eq!(world.goes(&g, "b"), "n", "the a there is of the other copy");
    world.bind(&g, 0, "a", "n");
    assert_eq!(world.reason(&g, "b", "n"), Some(Reason::IntraReplicaRule));
}

// spec: INTRA-02, INTRA-03
#[test]
fn separation_binds_the_one_that_is_named_as_well() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 8.0);
    world.node("n", "own", 8.0);
    let g = bundle(
        "g",
        vec![
            with(job("a", 1.0), |job| job.separate_from = vec!["b".into()]),
            job("b", 1.0),
        ],
    );
    let mut other = world.clone();
    world.bind(&g, 0, "a", "m");
    assert_eq!(world.goes(&g, "b"), "n");
    other.bind(&g, 0, "b", "m");
    assert_eq!(other.goes(&g, "a"), "n");
}

// spec: INTRA-03
#[test]
fn a_group_keeps_off_the_nodes_that_one_of_its_members_must_not_use() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 8.0);
    world.node("n", "own", 8.0);
    let mut g = group();
    g.jobs.push(with(job("c", 1.0), |job| {
        job.separate_from = vec!["b".into()]
    }));
    world.bind(&g, 0, "c", "m");
    // a itself may share with c, but b would have to follow it there.
    assert_eq!(world.reason(&g, "a", "m"), Some(Reason::IntraReplicaRule));
    assert_eq!(went(&world.settle(&g, 0, "a")), "n");
    assert_eq!(went(&world.settle(&g, 0, "b")), "n");
}

// spec: INTRA-03, RESV-07
#[test]
fn a_job_that_the_inventory_lists_is_kept_apart_from() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 8.0);
    let g = bundle(
        "g",
        vec![
            with(job("a", 1.0), |job| job.separate_from = vec!["b".into()]),
            job("b", 1.0),
        ],
    );
    world
        .fleet
        .set_foreign(&id("n"), vec![(job_id(&g, 0, "b"), job_ref(&g, 0, "b"))]);
    assert_eq!(world.reason(&g, "a", "n"), Some(Reason::IntraReplicaRule));
    world
        .fleet
        .set_foreign(&id("n"), vec![(job_id(&g, 1, "b"), job_ref(&g, 1, "b"))]);
    assert_eq!(world.goes(&g, "a"), "n");
    // Beside jobs that are bound there as well.
    world.bind(&bundle("o", vec![job("x", 0.0)]), 0, "x", "n");
    world
        .fleet
        .set_foreign(&id("n"), vec![(job_id(&g, 0, "b"), job_ref(&g, 0, "b"))]);
    assert_eq!(world.reason(&g, "a", "n"), Some(Reason::IntraReplicaRule));
}

// spec: INTRA-04, INTRA-05, PROV-03, HARD-37
#[test]
fn the_first_mover_sizes_for_the_group_and_its_room_is_kept() {
    let mut world = World::new(vec![aws("cloud", &[shape("s2", 2.0), shape("s4", 4.0)])]);
    let g = group();
    assert_eq!(went(&world.settle(&g, 0, "a")), "+cloud/s4");
    let foreign = bundle("f", vec![job("e", 2.0)]);
    assert_eq!(
        world.reason(&foreign, "e", "new-1"),
        Some(Reason::InsufficientCapacity)
    );
    assert_eq!(went(&world.settle(&foreign, 0, "e")), "+cloud/s2");
    assert_eq!(went(&world.settle(&g, 0, "b")), "new-1");
    assert_eq!(world.fleet.free_capacity(&id("new-1")), Some(0.0));
}

// spec: INTRA-04
#[test]
fn sizing_counts_dormant_members_and_every_kind_of_need() {
    let mut g = group();
    g.jobs[1].start_mode = StartMode::Manual;
    for (at, job) in g.jobs.iter_mut().enumerate() {
        let needs = &mut job.requirements;
        needs.required_cores = 2;
        needs.required_capabilities = vec![capability("sdi", 1, &[])];
        needs.required_gpu_capacity = 0.6;
        needs.required_host_ports = vec![format!("{}/tcp", 80 + at)];
    }
    let full = || {
        let mut full = offer(4.0);
        full.capabilities = vec![capability("sdi", 2, &[])];
        full.gpus = vec![device(0, 1.0), device(1, 1.0)];
        full
    };
    let with_offer = |change: fn(&mut greenroom_types::inventory::NodeInventory)| {
        let mut world = World::new(vec![fixed("own")]);
        let mut offer = full();
        change(&mut offer);
        world.node_of(POOL, "n", "own", offer);
        world.reason(&g, "a", "n")
    };
    assert_eq!(with_offer(|_| {}), None);
    assert_eq!(
        with_offer(|it| it.total_capacity = 3.9),
        Some(Reason::InsufficientCapacity)
    );
    assert_eq!(
        with_offer(|it| it.total_cores = 3),
        Some(Reason::InsufficientCores)
    );
    assert_eq!(
        with_offer(|it| it.capabilities[0].count = 1),
        Some(Reason::InsufficientCapabilities)
    );
    assert_eq!(with_offer(|it| it.gpus.truncate(1)), Some(Reason::NoGpuFit));
    let mut world = World::new(vec![fixed("own")]);
    world.node_of(POOL, "n", "own", full());
    let owner = bundle(
        "o",
        vec![with(job("e", 0.0), |job| {
            job.requirements.required_host_ports = vec!["81/TCP".into()];
        })],
    );
    world.bind(&owner, 0, "e", "n");
    assert_eq!(
        world.reason(&g, "a", "n"),
        Some(Reason::HostPortConflict),
        "b's port"
    );
}

// spec: INTRA-05
#[test]
fn holds_cover_cores_capabilities_ports_and_gpu_and_not_the_group_itself() {
    let mut g = group();
    let needs = &mut g.jobs[1].requirements;
    needs.required_cores = 2;
    needs.required_capabilities = vec![capability("sdi", 1, &[])];
    needs.required_gpu_capacity = 1.0;
    needs.required_host_ports = vec!["80/tcp".into()];
    let mut world = World::new(vec![fixed("own")]);
    let mut offer = offer(8.0);
    offer.total_cores = 2;
    offer.capabilities = vec![capability("sdi", 1, &[])];
    offer.gpus = vec![device(0, 1.0)];
    world.node_of(POOL, "n", "own", offer);
    assert_eq!(went(&world.settle(&g, 0, "a")), "n");
    let wants = |change: fn(&mut greenroom_types::bundle::Requirements)| {
        bundle(
            "f",
            vec![with(job("e", 0.0), |job| change(&mut job.requirements))],
        )
    };
    let refused = |world: &World, change| world.reason(&wants(change), "e", "n");
    assert_eq!(
        refused(&world, |it| it.required_capacity = 4.5),
        Some(Reason::InsufficientCapacity)
    );
    assert_eq!(refused(&world, |it| it.required_capacity = 4.0), None);
    assert_eq!(
        refused(&world, |it| it.required_cores = 1),
        Some(Reason::InsufficientCores)
    );
    assert_eq!(
        refused(&world, |it| it.required_capabilities =
            vec![capability("sdi", 1, &[])]),
        Some(Reason::InsufficientCapabilities)
    );
    assert_eq!(
        refused(&world, |it| it.required_host_ports = vec!["80/tcp".into()]),
        Some(Reason::HostPortConflict)
    );
    assert_eq!(
        refused(&world, |it| it.required_gpu_capacity = 0.1),
        Some(Reason::NoGpuFit)
    );
    assert_eq!(world.fleet.reserved(&id("n")).unwrap().capacity, 4.0);
    assert_eq!(
        went(&world.settle(&g, 0, "b")),
        "n",
        "none of it stands in b's way"
    );
}

// spec: INTRA-05
#[test]
fn a_hold_ends_with_its_reason() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 4.0);
    let g = group();
    world.settle(&g, 0, "a");
    let reserved = |world: &World| {
        world.check();
        world.fleet.reserved(&id("n")).unwrap().capacity
    };
    assert_eq!(reserved(&world), 4.0);
    // Judged terminal, dropped or deleted.
    world.fleet.set_released(&job_ref(&g, 0, "b"), true);
    assert_eq!(reserved(&world), 2.0);
    world.fleet.set_released(&job_ref(&g, 0, "b"), false);
    assert_eq!(reserved(&world), 4.0);
    // Placed: the binding counts, once.
    world.settle(&g, 0, "b");
    assert_eq!(reserved(&world), 4.0);
    world.unbind(&g, 0, "b");
    assert_eq!(reserved(&world), 4.0);
    // No member left.
    world.unbind(&g, 0, "a");
    assert_eq!(reserved(&world), 0.0);
    // The bundle gone.
    world.settle(&g, 0, "a");
    world.fleet.remove_bundle(&g.bundle_id);
    assert_eq!(reserved(&world), 2.0);
}

// spec: INTRA-05
#[test]
fn room_is_held_once_however_many_members_are_there_and_not_for_one_released_before() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 8.0);
    let mut g = bundle("g", vec![job("a", 1.0), job("b", 1.0), job("c", 1.0)]);
    g.intra_replica_placement.same_node_default = true;
    g.jobs.push(job("d", 4.0));
    world.fleet.set_released(&job_ref(&g, 0, "d"), true);
    world.check();
    for name in ["a", "b"] {
        world.bind(&g, 0, name, "n");
        assert_eq!(world.fleet.reserved(&id("n")).unwrap().capacity, 3.0);
    }
}

// spec: INTRA-05
#[test]
fn a_member_found_elsewhere_ends_its_hold_on_the_groups_node() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 4.0);
    world.node("n", "own", 4.0);
    let g = group();
    world.bind(&g, 0, "a", "n");
    assert_eq!(world.fleet.reserved(&id("n")).unwrap().capacity, 4.0);
    // As found after a restart: nobody places it there.
    world.bind(&g, 0, "b", "m");
    for node in ["m", "n"] {
        assert_eq!(
            world.fleet.reserved(&id(node)).unwrap().capacity,
            2.0,
            "{node}"
        );
    }
    world.unbind(&g, 0, "b");
    assert_eq!(world.fleet.reserved(&id("n")).unwrap().capacity, 4.0);
}

// spec: INTRA-06, HARD-39
#[test]
fn a_lone_member_returns_to_its_group_or_waits() {
    let mut world = World::new(vec![aws("cloud", &[shape("s4", 4.0)])]);
    world.node("m", "cloud", 8.0);
    world.node("n", "cloud", 8.0);
    let g = group();
    world.bind(&g, 0, "a", "n");
    let mut rejected = recovery(greenroom_types::bundle::OnRuntimeFailure::PreferSpare);
    assert_eq!(world.goes_when(&g, "b", &rejected), "n");
    rejected.excluded.insert(id("n"));
    let (decision, trace) = world.ask(&g, 0, "b", &rejected);
    assert_eq!(went(&decision), "-", "neither m nor a new node");
    let last = trace.attempts.last().unwrap();
    assert_eq!(last.outcome, Outcome::Exhausted);
    let reasons = world.reasons(&g, 0, "b", &rejected);
    assert_eq!(reasons["m"], Reason::IntraReplicaRule);
    assert_eq!(reasons["n"], Reason::RecoveryExcluded);
    world.condition("n", |it| it.cordoned = true);
    assert_eq!(world.goes(&g, "b"), "-");
}

// spec: INTRA-10
#[test]
fn a_member_whose_group_stays_behind_cannot_be_moved() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("m", "own", 8.0);
    world.node("n", "own", 8.0);
    let g = group();
    world.bind(&g, 0, "a", "n");
    // Alone of its group it can, and the room of the other is kept on both nodes.
    assert_eq!(world.goes_when(&g, "a", &migration("n")), "m");
    world.bind_side(&g, 0, "a", "m", None, Side::MigrationTarget);
    for node in ["m", "n"] {
        assert_eq!(
            world.fleet.reserved(&id(node)).unwrap().capacity,
            4.0,
            "{node}"
        );
    }
    // A member that wakes now follows neither side: either might be the wrong one.
    assert_eq!(world.goes(&g, "b"), "-");
    world.fleet.promote(&job_id(&g, 0, "a"));
    world.check();
    assert_eq!(world.goes(&g, "b"), "m");
    world.bind(&g, 0, "b", "m");
    assert_eq!(world.goes_when(&g, "a", &migration("m")), "-");
    assert_eq!(
        world.reasons(&g, 0, "a", &migration("m"))["n"],
        Reason::IntraReplicaRule
    );
}

// spec: INTRA-08
#[test]
fn a_hard_zone_admits_only_what_is_known_to_be_there() {
    let mut oci = elastic("oci", TierKind::Oci, &[shape("o", 4.0)]);
    oci.region = Some("z1".into());
    let mut world = World::new(vec![fixed("own"), aws("aws", &[shape("s", 4.0)]), oci]);
    for node in ["a1", "b2", "unknown"] {
        world.node(node, "own", 4.0);
    }
    world.zone("a1", "z1");
    world.zone("b2", "z2");
    let mut g = bundle("g", vec![job("a", 4.0), job("b", 4.0)]);
    g.intra_replica_placement.same_az = SameAz::Hard;
    assert_eq!(
        went(&world.settle(&g, 0, "a")),
        "a1",
        "the first may go anywhere"
    );
    for node in ["b2", "unknown"] {
        let first = &world.attempts(&g, 0, "b")[0];
        let dropped = first
            .filtered
            .iter()
            .find(|it| it.node.as_str() == node)
            .unwrap();
        assert_eq!(dropped.reason, Reason::IntraReplicaAz, "{node}");
    }
    let outcomes: Vec<Outcome> = world
        .attempts(&g, 0, "b")
        .iter()
        .map(|it| it.outcome)
        .collect();
    assert_eq!(
        outcomes,
        [Outcome::Exhausted, Outcome::AzUnknown, Outcome::Provisioned]
    );
    assert_eq!(world.goes(&g, "b"), "+oci/o");
    world.zone("a1", "z2");
    let outcomes: Vec<Outcome> = world
        .attempts(&g, 0, "b")
        .iter()
        .map(|it| it.outcome)
        .collect();
    assert_eq!(outcomes, [Outcome::Placed], "b2 is in the zone now");
    world.condition("b2", |it| it.cordoned = true);
    assert_eq!(world.goes(&g, "b"), "-", "Oracle's domain is another zone");
}

// spec: INTRA-09
#[test]
fn an_exclusive_group_shares_its_node_among_itself_only() {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 8.0);
    let mut g = group();
    for job in &mut g.jobs {
        job.exclusive = true;
    }
    world.settle(&g, 0, "a");
    assert_eq!(world.goes(&g, "b"), "n");
    let f = bundle("f", vec![job("e", 0.0)]);
    assert_eq!(world.reason(&f, "e", "n"), Some(Reason::Exclusivity));
    // The same group of the other copy is outside it.
    let twin = doubled(g.clone(), |policy| {
        policy.same_node = greenroom_types::bundle::Rule::Allow
    });
    let reasons = world.reasons(&twin, 1, "a", &Ask::default());
    assert_eq!(reasons["n"], Reason::Exclusivity);
}
