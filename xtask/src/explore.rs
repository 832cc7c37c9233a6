//! Random exploration of the policy, seed after seed, on all processors.
//!
//! Prints one line per failing seed and how fast it goes. With `--keep` each failure is shortened and
//! written as a scenario file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use greenroom_sim::explore::{Explored, explore, find, transitions};

/// Every so many seeds one is played twice, and must give the same bytes.
const TWICE_EVERY: u64 = 16;

/// Settings of the exploration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds are played.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads; by default one per processor.
    #[arg(long)]
    threads: Option<usize>,
    /// Folder for scenario files of what is found, one per sort of fault.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Ends at the first failure.
    #[arg(long)]
    first: bool,
}

/// What was found so far.
#[derive(Default)]
struct Tally {
    done: u64,
    steps: u64,
    failed: Vec<(u64, String)>,
}

/// Plays the seeds; fails if one does.
#[allow(
    clippy::print_stdout,
    reason = "the exploration reports to whoever runs it"
)]
pub(crate) fn run(args: Args) -> Result<()> {
    // A panic of a core is a finding like any other, and told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let threads = match args.threads {
        Some(threads) => threads.max(1),
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    println!("explore: seeds {} to {}", args.from, args.from + args.seeds);
    let began = Instant::now();
    let next = AtomicU64::new(args.from);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&args, &next, &tally, began));
        }
    });
    let tally = tally.into_inner().unwrap_or_default();
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "explore: {} seeds, {} steps, {} failed, {:.1} s, {:.0} seeds/s",
        tally.done,
        tally.steps,
        tally.failed.len(),
        seconds,
        tally.done as f64 / seconds.max(0.001)
    );
    if tally.failed.is_empty() {
        return Ok(());
    }
    if let Some(folder) = &args.keep {
        keep(folder, &tally.failed)?;
    }
    bail!("{} seeds failed", tally.failed.len())
}

#[allow(
    clippy::print_stdout,
    reason = "the exploration reports to whoever runs it"
)]
fn work(args: &Args, next: &AtomicU64, tally: &Mutex<Tally>, began: Instant) {
    let mut told = Instant::now();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= args.from + args.seeds {
            return;
        }
        let mut explored = explore(seed);
        if explored.fault.is_none()
            && seed.is_multiple_of(TWICE_EVERY)
            && transitions(seed) != transitions(seed)
        {
            explored.fault = Some("two runs differ".to_owned());
        }
        let Explored { steps, fault, .. } = explored;
        let Ok(mut tally) = tally.lock() else { return };
        tally.done += 1;
        tally.steps += steps as u64;
        if let Some(fault) = fault {
            println!("seed {seed}: {fault}");
            tally.failed.push((seed, fault));
            if args.first {
                next.store(u64::MAX / 2, Ordering::Relaxed);
            }
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let rate = tally.done as f64 / began.elapsed().as_secs_f64();
            println!("{} seeds, {rate:.0} a second", tally.done);
        }
    }
}

/// Writes the shortest course of each sort of fault.
#[allow(
    clippy::print_stdout,
    reason = "the exploration reports to whoever runs it"
)]
fn keep(folder: &Path, failed: &[(u64, String)]) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for (seed, _) in failed.iter().take(60) {
        let Some(found) = find(*seed) else { continue };
        let times = kinds.entry(found.kind.clone()).or_default();
        *times += 1;
        if *times > 3 {
            continue;
        }
        let path = folder.join(format!("seed-{seed}.yaml"));
        std::fs::write(&path, &found.scenario)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        let kept = if found.kept {
            ""
        } else {
            " (only its seed shows it)"
        };
        println!("{}: {}{kept}", path.display(), found.kind);
    }
    Ok(())
}
