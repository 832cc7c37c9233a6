//! Never two holders: leased test cards on real workers, a receiver that sees every sender, and random
//! faults. Judged by the fencing numbers in the packets: after one of a newer holder comes none of an
//! older one (LEASE-01).
//!
//! A schedule is a course of faults in random order with random pauses: the Manager, workers and
//! guards are stopped, killed, started again, and streams between Manager and workers are cut. It ends
//! with everything mended, and every card must be on the air again. All of it runs in a network of its
//! own, so that cutting cuts nobody else; without the rights for one nothing is cut, and that is told.
//!
//! A node that slept as a whole is counted apart: its card wakes together with those who end it. It
//! knows by itself that its lease is over (SOCK-16), but may have been stopped with one packet in hand,
//! which no program can prevent; the number is what an output refuses that by.

mod plan;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::air::Air;
use crate::crash::build;
use crate::fleet::{self, Fleet, Make};
use plan::{Act, Plan};

/// Set for the run inside the network of its own.
const INSIDE: &str = "GREENROOM_FENCE_INSIDE";
/// Cards of one schedule.
const CARDS: usize = 3;
/// Everything mended, a card is back within this or never.
const BACK: Duration = Duration::from_secs(180);

/// Settings of the harness.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Courses of faults.
    #[arg(long, default_value_t = 200)]
    schedules: u32,
    /// Workers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=8))]
    workers: u8,
    /// Seed of the courses; printed, so that one can be repeated.
    #[arg(long)]
    seed: Option<u64>,
    /// The built binary; built here when absent.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// What was counted.
#[derive(Default)]
struct Counts {
    acts: std::collections::BTreeMap<&'static str, u32>,
    packets: u64,
    changes: u64,
    asleep_late: u64,
    asleep_worst: Duration,
    slowest: Duration,
}

/// Plays the schedules; fails on the first packet of an older holder.
#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build(root)?,
    };
    let binary = binary.canonicalize().context("the binary is there")?;
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe()?;
        let may = Command::new("unshare").args(["--net", "true"]).output();
        if may.is_ok_and(|it| it.status.success()) {
            let seed = args.seed.unwrap_or_else(|| rand::rng().random());
            let status = Command::new("unshare")
                .arg("--net")
                .arg(own)
                .args(["fence", "--schedules", &args.schedules.to_string()])
                .args(["--workers", &args.workers.to_string()])
                .args(["--seed", &seed.to_string(), "--binary"])
                .arg(binary)
                .env(INSIDE, "1")
                .status()?;
            ensure!(status.success(), "the schedules ended with {status}");
            return Ok(());
        }
        println!("fence: no network of its own can be made here (it needs root): nothing is cut");
        return schedules(&binary, args, false);
    }
    fleet::command("ip", &["link", "set", "lo", "up"])?;
    schedules(&binary, args, true)
}

#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
fn schedules(binary: &Path, args: &Args, cuts: bool) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    println!(
        "fence: seed {seed}, {} schedules, {} workers, {CARDS} cards",
        args.schedules, args.workers
    );
    let folder = fleet::folder()?;
    let make = Make {
        workers: usize::from(args.workers),
        vcpus: 4,
        manager: "",
        runtime: "process",
    };
    let mut fleet = Fleet::start(binary, folder.path(), make)?;
    let air = Air::listen()?;
    let mut counts = Counts::default();
    for number in 1..=args.schedules {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(u64::from(number)));
        let plan = Plan::draw(&mut random, usize::from(args.workers), cuts);
        play(&mut fleet, &air, number, &plan, &mut counts)
            .with_context(|| format!("schedule {number} of seed {seed}: {plan}"))?;
        if number % 10 == 0 || number == args.schedules {
            println!("fence: {number} schedules, {counts}");
        }
    }
    Ok(())
}

fn play(fleet: &mut Fleet, air: &Air, number: u32, plan: &Plan, counts: &mut Counts) -> Result<()> {
    let bundle = format!("s{number}");
    let cards: Vec<String> = (0..CARDS).map(|card| format!("{bundle}.e{card}")).collect();
    fleet.apply(&fleet.leased_cards(&bundle, CARDS, air.port()))?;
    for card in &cards {
        air.until_heard(card, Instant::now(), BACK)?;
    }
    for step in &plan.steps {
        std::thread::sleep(Duration::from_millis(step.after_ms));
        *counts.acts.entry(step.act.name()).or_default() += 1;
        act(fleet, step.act)?;
    }
    std::thread::sleep(Duration::from_millis(plan.last_ms));
    fleet.mend()?;
    let mended = Instant::now();
    for card in &cards {
        air.until_heard(card, mended, BACK)
            .with_context(|| format!("{card} is not back: {}", fleet.say_of(&bundle)))?;
    }
    counts.slowest = counts.slowest.max(mended.elapsed());
    for card in &cards {
        let seen = air.take(card);
        counts.packets += seen.packets;
        counts.changes += seen.changes;
        ensure!(
            seen.unfenced == 0,
            "{card} has sent without a fencing number"
        );
        let sleeps = plan.steps.iter();
        let sleeps = sleeps.filter(|step| matches!(step.act, Act::Sleep(_)));
        let in_hand = sleeps.count() as u64;
        if in_hand > 0 {
            counts.asleep_late += seen.late;
            counts.asleep_worst = counts.asleep_worst.max(seen.worst);
        }
        ensure!(
            seen.late <= in_hand,
            "two holders of {card}: {} packets of an older one after the newer had sent, the last {} ms \
             after it",
            seen.late,
            seen.worst.as_millis()
        );
    }
    fleet.delete(&bundle)
}

fn act(fleet: &mut Fleet, act: Act) -> Result<()> {
    match act {
        Act::HangManager => fleet.hang_manager(),
        Act::WakeManager => fleet.mend_manager()?,
        Act::KillManager => fleet.kill_manager(),
        Act::HangWorker(at) => fleet.hang_worker(at),
        Act::WakeWorker(at) => fleet.wake(at)?,
        Act::KillWorker(at) => fleet.kill_worker(at),
        Act::HangGuard(at) => fleet.hang_guard(at),
        Act::KillGuard(at) => fleet.kill_guard(at),
        Act::Cut(at) => fleet.set_cut(at, true)?,
        Act::Heal(at) => fleet.set_cut(at, false)?,
        Act::Sleep(at) => fleet.sleep(at),
    }
    Ok(())
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let acts: Vec<String> = self
            .acts
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        write!(
            f,
            "{} faults ({}); {} packets, {} changes of holder, 0 packets of an older holder after a newer; \
             after a sleep {} (at most {} ms after); slowest return {} ms",
            self.acts.values().sum::<u32>(),
            acts.join(", "),
            self.packets,
            self.changes,
            self.asleep_late,
            self.asleep_worst.as_millis(),
            self.slowest.as_millis()
        )
    }
}
