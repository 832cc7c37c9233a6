//! `bench NAME`: measures what decides (docs/spec/performance.md, PERF-01 to PERF-07, PERF-12, PERF-16) and prints a
//! table, or JSON with `--json`.
//!
//! Machines differ and are shared, so times are CPU times of the one thread that works, and what is
//! claimed is a ratio to a baseline in the same run or a count. Nothing here passes or fails.

#![allow(clippy::print_stdout, reason = "the table is what the program is for")]

mod fleets;
mod handover;
mod manager;
mod measure;
mod place;
mod policy;
mod simulation;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::table::Table;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// One decision after the other, by need, strategy and size (PERF-01).
    Placement,
    /// A trace asked for, and not (PERF-04).
    Trace,
    /// Bytes per node and per job in the engine (PERF-03).
    Memory,
    /// 100 000 jobs onto 10 000 empty nodes (PERF-03).
    Mass,
    /// Jobs that fit nowhere, and inventories that keep coming (PERF-05).
    Pending,
    /// A third of the nodes lost at once (PERF-06).
    Recovery,
    /// From a snapshot with history to service (PERF-07).
    Hydration,
    /// How long commits wait for a snapshot, and what they cost beside one (PERF-12).
    Snapshot,
    /// An hour in the simulator (PERF-16).
    Simulation,
    /// What a viewer sees of a job that moves (PERF-09); needs `--binary`.
    Handover,
    /// A Manager with 10 000 nodes and 100 000 jobs (PERF-10 to PERF-13); needs `--binary`.
    Manager,
    /// All of them that need nothing but this program.
    All,
}

/// Measures what decides.
#[derive(Debug, Parser)]
struct Args {
    /// What to measure.
    names: Vec<Name>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// The `greenroom` binary, for what is measured with real processes.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// An image that holds the binary: `handover` in containers instead (`scripts/testcard-image`).
    #[arg(long)]
    image: Option<String>,
    /// Divides all sizes by this, for a first look.
    #[arg(long, default_value_t = 1)]
    scale: usize,
    #[command(flatten)]
    manager: ManagerArgs,
}

/// What `manager` measures.
#[derive(Debug, clap::Args)]
struct ManagerArgs {
    /// One house of so many nodes in place of both.
    #[arg(long, requires = "jobs")]
    nodes: Option<usize>,
    /// And so many jobs.
    #[arg(long, requires = "nodes")]
    jobs: Option<usize>,
    /// Subscribers that see everything.
    #[arg(long, default_value_t = 32)]
    subscribers: usize,
    /// Where its stores are made, on a disk; beside the binary unless named.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// How long one thing is looked at, in seconds.
    #[arg(long, default_value_t = 5)]
    look: u64,
    /// All of it takes no longer; what is left is said to be missing.
    #[arg(long, default_value_t = 9)]
    minutes: u64,
    #[arg(long = manager::WORKERS_OPTION, hide = true, num_args = 3)]
    as_workers: Vec<String>,
}

impl ManagerArgs {
    fn house(&self, binary: PathBuf, scale: usize) -> manager::House {
        manager::House {
            binary,
            scale,
            size: self.nodes.zip(self.jobs),
            subscribers: self.subscribers.max(1),
            folder: self.folder.clone(),
            look: Duration::from_secs(self.look.max(1)),
            limit: Duration::from_secs(self.minutes * 60),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if !args.manager.as_workers.is_empty() {
        return manager::serve_workers(&args.manager.as_workers);
    }
    let asked = |name: Name| args.names.contains(&name) || args.names.contains(&Name::All);
    anyhow::ensure!(args.scale > 0, "--scale 0: write 1 or more");
    anyhow::ensure!(!args.names.is_empty(), "name what to measure, or `all`");
    let scale = args.scale;
    let mut tables: Vec<Table> = Vec::new();
    if args.names.contains(&Name::Handover) {
        let binary = args.binary.as_deref();
        let binary =
            binary.context("`handover` runs real processes: name the binary, --binary FILE")?;
        let (times, image) = ((1_000 / scale).max(1), args.image.as_deref());
        tables.push(handover::moves(binary, times, image)?);
    }
    if args.names.contains(&Name::Manager) {
        let binary = args.binary.as_deref();
        let binary =
            binary.context("`manager` runs a real process: name the binary, --binary FILE")?;
        let house = args.manager.house(binary.to_owned(), scale);
        tables.extend(manager::house(&house)?);
    }
    if asked(Name::Placement) {
        tables.extend(place::decisions(scale));
    }
    if asked(Name::Trace) {
        tables.push(place::traces(scale));
    }
    if asked(Name::Memory) {
        tables.push(place::memory(scale));
    }
    if asked(Name::Mass) {
        tables.push(place::mass(scale));
        tables.push(policy::mass(scale));
    }
    if asked(Name::Pending) {
        tables.push(policy::pending(scale));
    }
    if asked(Name::Recovery) {
        tables.push(policy::recovery(scale));
    }
    if asked(Name::Hydration) {
        tables.push(policy::hydration(scale));
    }
    if asked(Name::Snapshot) {
        tables.push(snapshot::snapshot(scale));
    }
    if asked(Name::Simulation) {
        tables.push(simulation::simulated(scale));
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&tables)?);
    } else {
        for table in &tables {
            println!("{table}");
        }
    }
    Ok(())
}
