//! The engine alone: decisions one by one, traces, memory, and a mass of jobs at once.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use greenroom_placement::{Decision, Fleet, Request, Side, place, place_by_scan, place_traced};
use greenroom_types::pool::PackingStrategy;

use crate::fleets::{Need, Placed, empty, load};
use crate::measure::{Dice, Samples, allocated, cpu, timed};
use crate::table::{Table, micros, whole};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

type Engine = fn(&Fleet, &Request<'_>) -> Decision;

/// What some decisions in a row cost.
#[derive(Debug, Default)]
struct Run {
    decisions: usize,
    failed: usize,
    /// CPU time of the decisions alone.
    deciding: f64,
    /// The same with each decision applied.
    applied: f64,
    /// CPU time of everything: bundles made known and forgotten, older jobs ended.
    all: f64,
    p99: f64,
}

impl Run {
    fn per_second(&self, time: f64) -> f64 {
        self.decisions as f64 * 1e9 / time
    }

    fn each(&self) -> f64 {
        self.deciding / self.decisions as f64
    }
}

/// Decisions for new jobs of one kind, each applied; the job of that kind that is there longest ends.
struct Stream {
    need: Need,
    there: VecDeque<Placed>,
    next: usize,
    dice: Dice,
}

impl Stream {
    fn run(&mut self, fleet: &mut Fleet, engine: Engine, decisions: usize) -> Run {
        let mut run = Run::default();
        let mut samples = Samples::default();
        let mut jobs: Vec<Placed> = Vec::new();
        while jobs.len() < decisions {
            let capacity = self.dice.pick(&[0.5, 0.5, 1.0, 1.0, 2.0]);
            let bundle = Arc::new(self.need.bundle(&format!("new-{:08}", self.next), capacity));
            self.next += 1;
            for replica in 0..bundle.copies() {
                for at in 0..bundle.jobs.len() {
                    jobs.push(Placed::new(&bundle, replica, at));
                }
            }
        }
        // A third of the nodes' worth of them stays.
        let stays = fleet.nodes().count() / 12 + 2;
        let clock = {
            let start = cpu();
            for _ in 0..1_000 {
                black_box(cpu());
            }
            (cpu() - start) / 1_000.0
        };
        let start = cpu();
        for job in jobs {
            if fleet.plan(&job.bundle.bundle_id).is_none() {
                fleet.set_bundle(&job.bundle);
            }
            let request = job.request();
            let before = cpu();
            let decision = samples.take(|| engine(fleet, &request));
            let between = cpu();
            let applied = job.apply(fleet, &decision);
            let after = cpu();
            run.deciding += between - before - clock;
            run.applied += after - before - 2.0 * clock;
            run.all -= 3.0 * clock;
            if applied {
                self.there.push_back(job);
            } else {
                run.failed += 1;
            }
            run.decisions += 1;
            while self.there.len() > stays
                && let Some(old) = self.there.pop_front()
            {
                fleet.unbind(&old.job_id, Side::Binding);
                let last = self.there.front();
                if last.is_none_or(|next| next.bundle.bundle_id != old.bundle.bundle_id) {
                    fleet.remove_bundle(&old.bundle.bundle_id);
                }
            }
        }
        run.all += cpu() - start;
        run.p99 = samples.percentile(99.0);
        run
    }
}

/// PERF-01.
pub(crate) fn decisions(scale: usize) -> Vec<Table> {
    let mut tables = Vec::new();
    for strategy in [PackingStrategy::Binpack, PackingStrategy::Spread] {
        let mut table = Table::new(
            format!("Decisions, {strategy:?}, one tier, mixed load, each applied"),
            &[
                "need",
                "nodes",
                "decided and applied/s",
                "all/s",
                "decide us",
                "p99 us",
                "allocations",
                "scan us",
                "scan/index",
                "x 1k",
                "failed",
            ],
        );
        let mut first: Vec<f64> = Vec::new();
        for size in SIZES {
            let nodes = (size / scale).max(10);
            let mut loaded = empty(nodes, strategy);
            load(&mut loaded, nodes);
            for (at, need) in Need::ALL.into_iter().enumerate() {
                let mut fleet = loaded.clone();
                let mut stream = Stream {
                    need,
                    there: VecDeque::new(),
                    next: 0,
                    dice: Dice::new(3),
                };
                // To the steady state first.
                stream.run(&mut fleet, place, nodes / 6 + 200);
                let run = stream.run(&mut fleet, place, 20_000 / scale.min(10));
                let scans = (2_000_000 / nodes).clamp(20, 1_000);
                let scan = stream.run(&mut fleet, place_by_scan, scans);
                let allocations = allocations_of(&fleet, need);
                let each = run.each();
                if first.len() <= at {
                    first.push(each);
                }
                table.row(vec![
                    need.name().to_owned(),
                    whole(nodes as f64),
                    whole(run.per_second(run.applied)),
                    whole(run.per_second(run.all)),
                    micros(each),
                    micros(run.p99),
                    format!("{allocations:.0}"),
                    micros(scan.each()),
                    whole(scan.each() / each),
                    format!("{:.1}", each / first[at]),
                    whole(run.failed as f64),
                ]);
            }
        }
        tables.push(table);
    }
    tables
}

/// Allocations of one decision.
fn allocations_of(fleet: &Fleet, need: Need) -> f64 {
    let mut fleet = fleet.clone();
    let bundle = Arc::new(need.bundle("counted", 0.5));
    fleet.set_bundle(&bundle);
    let job = Placed::new(&bundle, 0, 0);
    let request = job.request();
    let (_, _, count) = allocated(|| black_box(place(&fleet, &request)));
    count
}

/// PERF-04.
pub(crate) fn traces(scale: usize) -> Table {
    let mut table = Table::new(
        "A trace asked for (binpack, capacity)",
        &["nodes", "with trace us", "without us"],
    );
    for size in SIZES {
        let nodes = (size / scale).max(10);
        let mut fleet = empty(nodes, PackingStrategy::Binpack);
        load(&mut fleet, nodes);
        let bundle = Arc::new(Need::Plain.bundle("traced", 0.5));
        fleet.set_bundle(&bundle);
        let job = Placed::new(&bundle, 0, 0);
        let request = job.request();
        let times = |count: usize, work: &dyn Fn()| {
            let ((), spent) = timed(|| (0..count).for_each(|_| work()));
            spent / count as f64
        };
        let traced = times(20, &|| {
            black_box(place_traced(&fleet, &request));
        });
        let plain = times(2_000, &|| {
            black_box(place(&fleet, &request));
        });
        table.row(vec![whole(nodes as f64), micros(traced), micros(plain)]);
    }
    table
}

/// PERF-03, the engine's part.
pub(crate) fn memory(scale: usize) -> Table {
    let mut table = Table::new("Memory of the engine", &["what", "bytes each"]);
    let nodes = 100_000 / scale;
    let (mut fleet, bytes, _) = allocated(|| empty(nodes, PackingStrategy::Binpack));
    table.fact(
        "empty node, its inventory counted",
        whole(bytes / nodes as f64),
    );
    let bundles = 10_000 / scale;
    let jobs: Vec<Vec<Placed>> = (0..bundles).map(ten_jobs).collect();
    let ((), bytes, _) = allocated(|| {
        for jobs in &jobs {
            put(&mut fleet, jobs);
        }
    });
    let count: usize = jobs.iter().map(Vec::len).sum();
    table.fact(
        "placed job, its part of the bundle's plan counted",
        whole(bytes / count as f64),
    );
    table
}

/// A bundle of ten plain jobs.
pub(crate) fn ten_jobs(at: usize) -> Vec<Placed> {
    let mut bundle = Need::Plain.bundle(&format!("mass-{at:05}"), 0.5);
    let job = bundle.jobs[0].clone();
    bundle.jobs = (0..10)
        .map(|nth| {
            let mut job = job.clone();
            job.job_name = format!("job-{nth}").into();
            job
        })
        .collect();
    let bundle = Arc::new(bundle);
    (0..10).map(|nth| Placed::new(&bundle, 0, nth)).collect()
}

pub(crate) fn put(fleet: &mut Fleet, jobs: &[Placed]) -> usize {
    fleet.set_bundle(&jobs[0].bundle);
    let mut placed = 0;
    for job in jobs {
        let decision = place(fleet, &job.request());
        placed += usize::from(job.apply(fleet, &decision));
    }
    placed
}

/// PERF-03, the engine's part.
pub(crate) fn mass(scale: usize) -> Table {
    let mut table = Table::new(
        "100 000 jobs of 10 000 bundles onto 10 000 empty nodes, the engine alone",
        &["strategy", "placed", "CPU s", "us a job"],
    );
    for strategy in [PackingStrategy::Binpack, PackingStrategy::Spread] {
        let mut fleet = empty(10_000 / scale, strategy);
        let jobs: Vec<Vec<Placed>> = (0..10_000 / scale).map(ten_jobs).collect();
        let (placed, spent) =
            timed(|| jobs.iter().map(|jobs| put(&mut fleet, jobs)).sum::<usize>());
        table.row(vec![
            format!("{strategy:?}"),
            whole(placed as f64),
            format!("{:.3}", spent / 1e9),
            micros(spent / placed as f64),
        ]);
    }
    table
}
