//! What of PERF-01 to PERF-07, PERF-16 and LIM-07 can be held without a clock: nodes looked at, allocations, bytes, engine
//! runs, and what is decided in which input. The times themselves are what `bench` prints.
//!
//! One test runs all of it, one thing after the other: the allocator counts for the whole process.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use greenroom_placement::{Fleet, place, place_by_scan, place_counted, place_traced};
use greenroom_types::call::Call;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::NodeStoppingReason;
use greenroom_types::pool::PackingStrategy;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{JobId, NodeId};

use crate::fleets::{Need, Placed, empty, load, node_id};
use crate::manager::tests::a_manager_takes_so_much_memory_for_a_job_and_a_node_that_a_full_house_fits;
use crate::measure::allocated;
use crate::place::{put, ten_jobs};
use crate::policy::{
    JOBS, SIZE, World, all_at_work, bundle_events, end_of_snapshot, inventory, node_events, own,
    snapshot,
};
use crate::simulation::{hour, play};

#[test]
fn what_needs_no_clock_holds() {
    a_manager_takes_so_much_memory_for_a_job_and_a_node_that_a_full_house_fits();
    a_decision_looks_at_few_nodes_and_finds_what_a_look_at_all_finds();
    a_placed_job_takes_little_memory_and_a_look_takes_none();
    a_trace_costs_nothing_unless_asked_for();
    pictures_that_help_nobody_are_cheap_however_many_jobs_wait();
    a_mass_loss_is_answered_whole_and_at_once();
    a_hydration_runs_the_engine_for_what_waits_alone();
    an_hour_with_faults_is_played_with_every_checker();
}

/// Nodes looked at for one decision of that kind, on average over some that are applied; each is what
/// a look at every node finds.
fn looked_at(loaded: &Fleet, need: Need) -> f64 {
    let mut fleet = loaded.clone();
    let (mut looks, mut decisions) = (0, 0);
    for at in 0..40 {
        let bundle = Arc::new(need.bundle(&format!("new-{at:02}"), [0.5, 1.0, 2.0][at % 3]));
        fleet.set_bundle(&bundle);
        for replica in 0..bundle.copies() {
            for nth in 0..bundle.jobs.len() {
                let job = Placed::new(&bundle, replica, nth);
                let (decision, looked_at) = place_counted(&fleet, &job.request());
                assert_eq!(decision, place_by_scan(&fleet, &job.request()), "{need:?}");
                looks += looked_at;
                decisions += 1;
                job.apply(&mut fleet, &decision);
            }
        }
    }
    f64::from(u32::try_from(looks).unwrap()) / f64::from(decisions)
}

// spec: PERF-01
fn a_decision_looks_at_few_nodes_and_finds_what_a_look_at_all_finds() {
    for strategy in [PackingStrategy::Binpack, PackingStrategy::Spread] {
        let [small, large] = [300, 3_000].map(|nodes| {
            let mut fleet = empty(nodes, strategy);
            load(&mut fleet, nodes);
            fleet
        });
        for need in Need::ALL {
            let (few, many) = (looked_at(&small, need), looked_at(&large, need));
            let told = format!("{need:?}, {strategy:?}: {few} of 300 nodes, {many} of 3 000");
            assert!(many <= 2.0 * few.max(2.0), "{told}");
            assert!(many < 30.0, "{told}");
        }
    }
}

// spec: PERF-03
fn a_placed_job_takes_little_memory_and_a_look_takes_none() {
    // The engine alone: a decision allocates as often among many nodes as among few.
    let count = |nodes: usize| {
        let mut fleet = empty(nodes, PackingStrategy::Binpack);
        load(&mut fleet, nodes);
        let bundle = Arc::new(Need::Plain.bundle("counted", 0.5));
        fleet.set_bundle(&bundle);
        let job = Placed::new(&bundle, 0, 0);
        let ((), _, scanning) = allocated(|| {
            black_box(place_by_scan(&fleet, &job.request()));
        });
        let ((), _, deciding) = allocated(|| {
            black_box(place(&fleet, &job.request()));
        });
        (scanning, deciding)
    };
    let (few, many) = (count(100), count(1_000));
    assert!(many.0 < few.0 + 20.0, "a look at all: {few:?}, {many:?}");
    assert!(many.1 < few.1 + 20.0, "by the index: {few:?}, {many:?}");

    let mut fleet = empty(500, PackingStrategy::Binpack);
    let jobs: Vec<Vec<Placed>> = (0..500).map(ten_jobs).collect();
    let (placed, engine, _) =
        allocated(|| jobs.iter().map(|jobs| put(&mut fleet, jobs)).sum::<usize>());
    assert_eq!(placed, 5_000);
    let engine = engine / 5_000.0;

    // The whole policy, with what the stream told kept by somebody else: it is not the policy's own.
    let mut world = World::new(own());
    snapshot(&mut world, (0..500).flat_map(node_events).collect());
    let told: Vec<StreamEvent> = (0..500)
        .flat_map(|at| bundle_events(at, JOBS, 1.0, None))
        .collect();
    let ((), mirror, _) = allocated(|| {
        for event in &told {
            world.send(event.clone());
        }
    });
    let ((), beyond, _) = allocated(|| {
        end_of_snapshot(&mut world);
        world.accept_all();
        world.calls = Vec::new();
    });
    assert_eq!(world.policy.metrics(world.now).placements_succeeded, 5_000);
    let (mirror, beyond) = (mirror / 5_000.0, beyond / 5_000.0);
    let shares = format!(
        "bytes a job: {mirror:.0} in the mirror, {beyond:.0} more once placed; {engine:.0} of both in the engine"
    );
    assert!(beyond <= 1_024.0, "{shares}");
    assert!(mirror + beyond <= 1_536.0, "{shares}");
    assert!(engine <= 640.0, "{shares}");
}

// spec: PERF-04
fn a_trace_costs_nothing_unless_asked_for() {
    let mut fleet = empty(1_000, PackingStrategy::Binpack);
    load(&mut fleet, 1_000);
    let bundle = Arc::new(Need::Plain.bundle("traced", 0.5));
    fleet.set_bundle(&bundle);
    let job = Placed::new(&bundle, 0, 0);
    let ((), bytes, plain) = allocated(|| {
        black_box(place(&fleet, &job.request()));
    });
    assert!(bytes.abs() < 1_024.0, "nothing of it stays: {bytes}");
    let (trace, kept, traced) = allocated(|| place_traced(&fleet, &job.request()).1);
    assert_eq!(trace.attempts[0].candidates, 1_000);
    assert!(
        plain < 5.0 && traced > 3.0 * plain && kept > 10_000.0,
        "{plain} allocations without, {traced} with one, which is {kept} bytes"
    );
}

/// Allocations of one picture that changes nothing, with so many jobs that fit nowhere.
fn picture_cost(jobs: usize) -> f64 {
    let mut world = World::new(own());
    snapshot(&mut world, (0..50).flat_map(node_events).collect());
    let events = (0..jobs).flat_map(|at| bundle_events(at, 1, SIZE * 2.0, None));
    snapshot(&mut world, events.collect());
    end_of_snapshot(&mut world);
    world.later(60_000);
    let runs = |world: &World| world.policy.metrics(world.now).placements_attempted;
    let before = runs(&world);
    let pictures: Vec<StreamEvent> = (0..50)
        .map(|at| StreamEvent::NodeInventoryUpdated {
            node_id: node_id(at),
            inventory: Arc::new(NodeInventory::clone(&inventory())),
        })
        .collect();
    let ((), _, count) = allocated(|| {
        for picture in pictures {
            world.send(picture);
        }
    });
    assert_eq!(runs(&world), before, "nobody is tried in vain");
    assert_eq!(world.starts(), 0);
    count / 50.0
}

// spec: PERF-05
fn pictures_that_help_nobody_are_cheap_however_many_jobs_wait() {
    let (few, many) = (picture_cost(20), picture_cost(2_000));
    assert!(
        many <= few + 10.0,
        "{few} allocations a picture with 20 jobs, {many} with 2 000"
    );
}

// spec: PERF-06
fn a_mass_loss_is_answered_whole_and_at_once() {
    let (nodes, lost) = (150, 50);
    let mut world = all_at_work(nodes);
    let jobs: Vec<JobId> = world
        .policy
        .jobs()
        .map(|job| job.job.job_id.clone())
        .collect();
    let mut gone: BTreeSet<NodeId> = BTreeSet::new();
    for at in 0..lost {
        world.send(StreamEvent::NodeStopping {
            node_id: node_id(at),
            reason: NodeStoppingReason::HealthPingTimeExceeded,
            detail: String::new(),
            provider_code: String::new(),
        });
        gone.insert(node_id(at));
        // With the very input that lost them all have a place, and what has to be bought was asked for.
        let bought: BTreeSet<&NodeId> = world
            .calls
            .iter()
            .filter_map(|(_, call)| match call {
                Call::CreateAwsNode(create) => Some(&create.node_id),
                _ => None,
            })
            .collect();
        for job_id in &jobs {
            let node = world.policy.node_for_job(job_id).expect("it has a place");
            let known = node.as_str().starts_with("node-") && !gone.contains(node);
            assert!(known || bought.contains(node), "{job_id} on {node}");
        }
        // Recoveries of one job keep their distance (RECOV-09); some go where the next loss is.
        world.later(6_000);
    }
    assert!(world.starts() > 0 && world.purchases() > 0);
}

/// Allocations of the end of a snapshot of so many nodes with ten running jobs each, and one that waits.
fn hydration_cost(nodes: usize) -> f64 {
    let mut world = World::new(own());
    let mut events: Vec<StreamEvent> = (0..nodes).flat_map(node_events).collect();
    events.extend((0..nodes).flat_map(|at| bundle_events(at, JOBS, 1.0, Some(at))));
    events.extend(bundle_events(nodes, 1, 1.0, None));
    snapshot(&mut world, events);
    let ((), _, count) = allocated(|| end_of_snapshot(&mut world));
    assert_eq!(world.starts(), 1, "decided with the end of the snapshot");
    let metrics = world.policy.metrics(world.now);
    assert_eq!(
        metrics.placements_attempted, 1,
        "the engine ran for it alone"
    );
    count / (nodes * JOBS) as f64
}

// spec: PERF-07
fn a_hydration_runs_the_engine_for_what_waits_alone() {
    let (few, many) = (hydration_cost(50), hydration_cost(500));
    assert!(
        many < few * 1.2 && many < 60.0,
        "{few} allocations a job of 500, {many} a job of 5 000"
    );
}

// spec: PERF-16
fn an_hour_with_faults_is_played_with_every_checker() {
    let text = hour(100, 50);
    let run = play(&text);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    // The checkers look: a wish that cannot be is found.
    let broken = text.replacen("b07/0/j3: {state: running}", "b07/0/j3: {state: broken}", 1);
    assert_eq!(play(&broken).exit_code(), 1);
}
