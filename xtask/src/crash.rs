//! Nothing acknowledged is ever lost: a real Manager under load, killed at random moments.
//!
//! Each client works on objects of its own, one call after another, so that it knows for each object
//! what may stand in the Manager: after an acknowledged change exactly its outcome, after a call
//! whose answer was cut off either the old state or the new one, whole. After every kill the Manager
//! is started again on the same folder and every object is compared: jobs, bundles and their leases and
//! stop times, slots, keys, entries of the audit log, the pause, starts on
//! workers and their job leases, verdicts, tags, pools, the discovery fleet, and drains of slots. One subscriber follows the
//! event stream over all kills and must see every seq of the epoch once, in order.

mod change;
mod client;
pub(crate) mod daemon;
mod disk;
mod fleet;
mod found;
mod watcher;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use client::{Load, Seen};
use daemon::{Daemon, PATIENCE};

/// From so many rounds on each kind of call must have been acknowledged at least once.
const ROUNDS_FOR_ALL: u32 = 10;

/// Settings of the harness.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often the Manager is killed.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Clients that call at once.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Longest time between a start and the kill, in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    longest_ms: u64,
    /// Seed of the random moments and calls; printed, so that a run can be repeated.
    #[arg(long)]
    seed: Option<u64>,
    /// On a small file system of its own, which fills up while calls run (STORE-09).
    #[arg(long)]
    disk_full: bool,
    /// On a disk that answers EIO at a random moment, which ends the Manager (STORE-12).
    #[arg(long, conflicts_with = "disk_full")]
    disk_error: bool,
    /// The built binary; built here when absent.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the rounds; fails on the first thing that was acknowledged and is not there.
#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
pub(crate) fn run(root: &Path, args: Args) -> Result<()> {
    ensure!(
        args.clients > 0 && args.longest_ms > 0,
        "clients and longest-ms must be above 0"
    );
    let binary = match args.binary {
        Some(binary) => binary,
        None => build(root)?,
    };
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    println!(
        "crash: seed {seed}, {} rounds, {} clients",
        args.rounds, args.clients
    );
    if args.disk_full || args.disk_error {
        let disk = disk::Plan {
            binary,
            seed,
            rounds: args.rounds,
            clients: args.clients,
            longest: Duration::from_millis(args.longest_ms),
        };
        return match args.disk_full {
            true => disk::fill_up(&disk),
            false => disk::fail(root, &disk),
        };
    }
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(rounds(
        &binary,
        folder.path(),
        seed,
        args.rounds,
        args.clients,
        args.longest_ms,
    ))
}

#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
async fn rounds(
    binary: &Path,
    folder: &Path,
    seed: u64,
    rounds: u32,
    clients: usize,
    longest_ms: u64,
) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let seen = Arc::<Seen>::default();
    let mut loads: Vec<Load> = (0..clients)
        .map(|number| Load::new(number, seed, &seen))
        .collect();
    let mut watcher = watcher::Watcher::default();
    let mut acknowledged = 0;
    let mut slowest = Duration::ZERO;
    let mut workers = Vec::new();
    for round in 1..=rounds {
        let begun = Instant::now();
        let daemon = Daemon::start(binary, &folder.join("manager"))
            .await
            .with_context(|| format!("round {round}: the Manager does not start again"))?;
        slowest = slowest.max(begun.elapsed());
        let sdk = daemon.connect().await?;
        if workers.is_empty() {
            workers = fleet::begin(&sdk, clients).await?;
        }
        for load in &mut loads {
            load.compare(&sdk)
                .await
                .with_context(|| format!("round {round}, seed {seed}"))?;
        }
        let seeing = watcher
            .follow(&sdk)
            .await
            .with_context(|| format!("round {round}, seed {seed}"))?;
        let life = Duration::from_millis(random.random_range(1..=longest_ms));
        let called = Instant::now();
        let calling: Vec<_> = loads
            .drain(..)
            .map(|load| tokio::spawn(load.call_until_lost(daemon.address.clone())))
            .collect();
        tokio::time::sleep(life).await;
        if round == rounds && rounds >= ROUNDS_FOR_ALL {
            wait_for_all(&seen)
                .await
                .with_context(|| format!("round {round}, seed {seed}"))?;
        }
        daemon.kill().await?;
        for task in calling {
            let (load, count) = task.await?;
            acknowledged += count;
            loads.push(load);
        }
        watcher = seeing.await??;
        println!(
            "round {round}/{rounds}: killed after {} ms; {acknowledged} acknowledged, 0 lost, event {} reached",
            called.elapsed().as_millis(),
            watcher.seq()
        );
    }
    let daemon = Daemon::start(binary, &folder.join("manager")).await?;
    let sdk = daemon.connect().await?;
    for load in &mut loads {
        load.compare(&sdk)
            .await
            .with_context(|| format!("after the last round, seed {seed}"))?;
    }
    wait_for_stops(&mut loads, &sdk)
        .await
        .with_context(|| format!("after the last round, seed {seed}"))?;
    fleet::finish(&sdk)
        .await
        .with_context(|| format!("after the last round, seed {seed}"))?;
    drop(workers);
    daemon.kill().await?;
    if acknowledged == 0 {
        bail!("nothing was acknowledged in {rounds} rounds: the Manager did not live long enough");
    }
    println!(
        "crash: {rounds} rounds, {acknowledged} acknowledged, 0 lost, slowest start {} ms",
        slowest.as_millis()
    );
    Ok(())
}

/// Until each kind of call was acknowledged to some client: the last round lasts for what never was before.
async fn wait_for_all(seen: &Seen) -> Result<()> {
    let mut told = seen.subscribe();
    let all = told.wait_for(|seen| change::unseen(seen).is_empty());
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        let unseen = change::unseen(&seen.borrow());
        bail!("no such call was acknowledged in all rounds: {unseen:?}");
    }
    Ok(())
}

/// Bundles whose stop time is over go by themselves.
async fn wait_for_stops(loads: &mut [Load], sdk: &greenroom_sdk::Client) -> Result<()> {
    let begun = Instant::now();
    for load in loads {
        while load.is_waiting() {
            ensure!(
                begun.elapsed() < PATIENCE,
                "a bundle whose stop time is over is still there"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
            load.compare(sdk).await?;
        }
    }
    Ok(())
}

pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let built = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--package",
            "greenroom",
            "--message-format=json",
        ])
        .current_dir(root)
        .output()
        .context("cargo build")?;
    ensure!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let text = String::from_utf8(built.stdout)?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .next_back()
        .context("cargo tells where the binary is")
}
