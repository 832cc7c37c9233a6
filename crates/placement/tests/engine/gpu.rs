//! GPU shares.

use greenroom_placement::{Reason, Side};
use greenroom_types::bundle::{Bundle, BundleJob};
use greenroom_types::inventory::Gpu;
use greenroom_types::pool::PackingStrategy;

use crate::build::*;

fn share(name: &str, share: f64) -> BundleJob {
    with(job(name, 0.0), |job| {
        job.requirements.required_gpu_capacity = share
    })
}

fn of_model(name: &str, amount: f64, model: &str) -> BundleJob {
    with(share(name, amount), |job| {
        job.requirements.required_gpu_model = model.to_owned()
    })
}

fn world(strategy: PackingStrategy, gpus: Vec<Gpu>) -> World {
    let mut tier = fixed("own");
    tier.packing_strategy = strategy;
    let mut world = World::new(vec![tier]);
    let mut offer = offer(8.0);
    offer.gpus = gpus;
    world.node_of(POOL, "n", "own", offer);
    world
}

fn binpack(devices: u32) -> World {
    world(
        PackingStrategy::Binpack,
        (0..devices).map(|at| device(at, 1.0)).collect(),
    )
}

/// Device of each job, placed one after the other; none: refused.
fn devices(world: &mut World, bundle: &Bundle) -> Vec<Option<u32>> {
    let names: Vec<String> = bundle
        .jobs
        .iter()
        .map(|job| job.job_name.to_string())
        .collect();
    names
        .iter()
        .map(|name| world.settle(bundle, 0, name).gpu_index())
        .collect()
}

// spec: GPU-01, GPU-02, GPU-03, HARD-43
#[test]
fn shares_fill_a_device_and_no_more() {
    let a = bundle("a", vec![share("e", 0.5), share("f", 0.5), share("g", 0.2)]);
    let mut one = binpack(1);
    assert_eq!(devices(&mut one, &a), [Some(0), Some(0), None]);
    assert_eq!(one.reason(&a, "g", "n"), Some(Reason::NoGpuFit));
    let mut two = binpack(2);
    assert_eq!(devices(&mut two, &a), [Some(0), Some(0), Some(1)]);
    let next = bundle("b", vec![share("e", 0.6)]);
    assert_eq!(devices(&mut two, &next), [Some(1)]);
    assert_eq!(two.fleet.reserved(&id("n")).unwrap().gpus[&0], 1.0);
}

// spec: GPU-01
#[test]
fn ten_tenths_fill_a_device_and_the_model_must_be_the_one_asked_for() {
    let mut world = binpack(1);
    let tenths = bundle(
        "t",
        (0..11).map(|at| share(&format!("e{at}"), 0.1)).collect(),
    );
    let placed = devices(&mut world, &tenths);
    assert_eq!(placed.iter().flatten().count(), 10);
    let world = binpack(1);
    let wants = |model| bundle("a", vec![of_model("e", 0.5, model)]);
    assert_eq!(world.goes(&wants("A10G"), "e"), "n");
    assert_eq!(
        world.reason(&wants("H100"), "e", "n"),
        Some(Reason::NoGpuFit)
    );
}

// spec: GPU-02
#[test]
fn spread_takes_the_emptiest_device_and_ties_go_to_the_lowest_index() {
    let gpus = vec![device(2, 1.0), device(0, 1.0), device(1, 1.0)];
    let mut world = world(PackingStrategy::Spread, gpus);
    let a = bundle(
        "a",
        vec![
            share("e", 0.2),
            share("f", 0.3),
            share("g", 0.1),
            share("h", 0.1),
        ],
    );
    assert_eq!(
        devices(&mut world, &a),
        [Some(0), Some(1), Some(2), Some(2)]
    );
}

// spec: GPU-04
#[test]
fn a_share_is_never_split() {
    let mut world = binpack(2);
    let b = bundle("b", vec![share("x", 0.5), share("y", 0.5)]);
    world.bind_side(&b, 0, "x", "n", Some(0), Side::Binding);
    world.bind_side(&b, 0, "y", "n", Some(1), Side::Binding);
    let whole = bundle("a", vec![share("e", 1.0)]);
    assert_eq!(world.reason(&whole, "e", "n"), Some(Reason::NoGpuFit));
}

// spec: GPU-03, RESV-02
#[test]
fn what_a_worker_reports_for_a_device_counts_when_it_is_more() {
    let mut world = binpack(1);
    world.offers("n", |it| it.gpus[0].reserved_capacity = 0.7);
    let wants = |amount| bundle("a", vec![share("e", amount)]);
    assert_eq!(world.goes(&wants(0.3), "e"), "n");
    assert_eq!(world.goes(&wants(0.4), "e"), "-");
}

// spec: GPU-05
#[test]
fn an_unknown_device_is_reserved_wherever_it_might_be() {
    let mut other = device(2, 1.0);
    other.model = "L4".to_owned();
    let mut world = world(
        PackingStrategy::Binpack,
        vec![device(0, 1.0), device(1, 1.0), other],
    );
    let b = bundle("b", vec![of_model("x", 0.6, "A10G")]);
    world.bind(&b, 0, "x", "n");
    let reserved = world.fleet.reserved(&id("n")).unwrap();
    assert_eq!((reserved.gpus[&0], reserved.gpus[&1]), (0.6, 0.6));
    assert!(!reserved.gpus.contains_key(&2));
    let a = bundle("a", vec![share("e", 0.5)]);
    assert_eq!(world.launch(&a, 0, "e").gpu_index(), Some(2));
    world
        .fleet
        .set_gpu_index(&job_id(&b, 0, "x"), Side::Binding, Some(1));
    world.check();
    assert_eq!(world.fleet.reserved(&id("n")).unwrap().gpus.get(&0), None);
}

// spec: GPU-06
#[test]
fn whole_gpus_by_capability_are_independent_of_shares() {
    let mut world = binpack(1);
    world.offers("n", |it| {
        it.capabilities = vec![capability("norsk.io/nvidia-gpu", 1, &[])]
    });
    let whole = bundle(
        "a",
        vec![with(job("e", 0.0), |job| {
            job.requirements.required_capabilities =
                vec![capability("norsk.io/nvidia-gpu", 1, &[])];
        })],
    );
    assert_eq!(world.settle(&whole, 0, "e").gpu_index(), None);
    let shared = bundle("b", vec![share("e", 1.0)]);
    assert_eq!(world.goes(&shared, "e"), "n");
    let second = bundle("c", whole.jobs.clone());
    assert_eq!(
        world.reason(&second, "e", "n"),
        Some(Reason::InsufficientCapabilities)
    );
}

fn grouped(jobs: Vec<BundleJob>) -> Bundle {
    let mut bundle = bundle("g", jobs);
    bundle.intra_replica_placement.same_node_default = true;
    bundle
}

// spec: GPU-07, INTRA-04
#[test]
fn a_group_fits_when_its_shares_can_be_packed_together() {
    let g = grouped(vec![
        share("a", 0.4),
        share("b", 0.6),
        share("c", 0.6),
        share("d", 0.4),
    ]);
    let mut two = binpack(2);
    let mut taken = [0.0, 0.0];
    for (at, device) in devices(&mut two, &g).into_iter().enumerate() {
        taken[device.unwrap() as usize] += [0.4, 0.6, 0.6, 0.4][at];
    }
    assert_eq!(taken, [1.0, 1.0]);
    let tight = grouped(vec![share("a", 0.6), share("b", 0.6), share("c", 0.6)]);
    assert_eq!(binpack(2).reason(&tight, "a", "n"), Some(Reason::NoGpuFit));
    assert_eq!(binpack(3).goes(&tight, "a"), "n");
    // A member without a share is sized for those that have one.
    let lead = grouped(vec![job("a", 0.0), share("b", 1.0)]);
    assert_eq!(binpack(0).reason(&lead, "a", "n"), Some(Reason::NoGpuFit));
    assert_eq!(binpack(1).launch(&lead, 0, "a").gpu_index(), None);
}

// spec: GPU-07
#[test]
fn shares_are_packed_largest_first_into_the_tightest_device() {
    let g = grouped(vec![share("a", 0.4), share("b", 0.4), share("c", 0.5)]);
    let mut world = binpack(2);
    world.offers("n", |it| {
        it.gpus[0].reserved_capacity = 0.2;
        it.gpus[1].reserved_capacity = 0.5;
    });
    // c takes all of device 1, which leaves device 0 to the other two.
    let placed = devices(&mut world.clone(), &g);
    assert_eq!(placed[0], Some(0));
    let lead = grouped(vec![
        job("lead", 0.0),
        share("a", 0.4),
        share("b", 0.4),
        share("c", 0.5),
    ]);
    assert_eq!(world.goes(&lead, "lead"), "n");
}

// spec: GPU-07
#[test]
fn a_member_takes_no_device_that_the_rest_of_its_group_needs() {
    let gpus = vec![device(0, 1.0), device(1, 1.0)];
    let mut world = world(PackingStrategy::Spread, gpus);
    let g = grouped(vec![share("a", 0.5), share("b", 0.5), share("c", 1.0)]);
    let placed = devices(&mut world, &g);
    assert!(placed.iter().all(Option::is_some), "{placed:?}");
}

// spec: GPU-07, INTRA-05
#[test]
fn held_shares_are_packed_beside_a_stranger() {
    let mut world = binpack(2);
    let g = grouped(vec![job("a", 0.0), share("b", 0.6), share("c", 0.6)]);
    world.settle(&g, 0, "a");
    let wants = |amount| bundle("f", vec![share("e", amount)]);
    assert_eq!(world.goes(&wants(0.4), "e"), "n");
    assert_eq!(
        world.goes(&wants(0.5), "e"),
        "-",
        "one of the two would lose its room"
    );
    assert!(devices(&mut world, &g).iter().skip(1).all(Option::is_some));
}

// spec: GPU-08
#[test]
fn the_devices_of_a_shape_decide_on_a_purchase() {
    let plain = shape("plain", 8.0);
    let mut gpu = shape("gpu", 8.0);
    gpu.gpus = vec![device(3, 1.0)];
    let mut world = World::new(vec![aws("cloud", &[plain, gpu])]);
    let a = bundle("a", vec![share("e", 0.5), share("f", 0.5)]);
    let decision = world.settle(&a, 0, "e");
    assert_eq!(
        (went(&decision).as_str(), decision.gpu_index()),
        ("+cloud/gpu", Some(3))
    );
    let second = world.launch(&a, 0, "f");
    assert_eq!(
        (went(&second).as_str(), second.gpu_index()),
        ("new-1", Some(3))
    );
}
