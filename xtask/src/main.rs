//! Checks and chores of the project: `cargo xtask NAME`.

mod air;
mod bench;
mod crash;
mod explore;
mod failover;
mod fence;
mod fleet;
mod linear;
mod tidy;

use clap::{Parser, Subcommand};

/// Checks and chores of the project.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Checks the rules of the repository that no compiler checks.
    Tidy,
    /// Runs the benchmarks, each against a baseline in the same run.
    Bench(bench::Args),
    /// Runs a real Manager under load, kills it at random moments, restarts it and compares it with
    /// what was acknowledged.
    Crash(crash::Args),
    /// Has callers change the same objects at the same time, kills the Manager in between, and looks
    /// for an order that explains every answer.
    Linear(linear::Args),
    /// Runs leased test cards under random faults and looks that at no moment two holders send.
    Fence(fence::Args),
    /// Plays random courses of events against the policy and looks after each whether all is well.
    Explore(explore::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Tidy => tidy::run(&root()),
        Task::Bench(args) => bench::run(&root(), &args),
        Task::Crash(args) => crash::run(&root(), args),
        Task::Linear(args) => linear::run(&root(), args),
        Task::Fence(args) => fence::run(&root(), &args),
        Task::Explore(args) => explore::run(args),
    }
}

/// The root of the repository.
fn root() -> std::path::PathBuf {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
