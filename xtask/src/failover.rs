//! What an installation of the binary does on this machine: how soon a job is on the air again whose
//! machine crashed or fell silent (PERF-08), and what a worker takes (PERF-15).
//!
//! The machine is shared, so that beside each time stands one of the same run: that of a plain start,
//! from the manifest to the first packet.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;

use crate::air::Air;
use crate::fleet::{self, Fleet, Make};

/// What is waited for comes within this or never.
const PATIENCE: Duration = Duration::from_secs(180);
/// What a worker takes is counted over so long.
const WATCH: Duration = Duration::from_secs(30);
/// Jobs of a worker that is not idle.
const JOBS: usize = 50;

/// Settings of the measurements.
#[derive(Debug, Parser)]
struct Args {
    /// The built `greenroom` binary.
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Crashes and silences of each kind.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// An image that holds the binary (`scripts/testcard-image`), for the Docker runtime too.
    #[arg(long)]
    image: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// One line of the table.
struct Line {
    runtime: &'static str,
    settings: &'static str,
    fault: &'static str,
    times: Vec<u64>,
    starts: Vec<u64>,
}

/// Measures `failover` or `worker`.
pub(crate) fn run(name: &str, words: &[String]) -> Result<()> {
    let words = std::iter::once(name).chain(words.iter().map(String::as_str));
    let args = Args::parse_from(words);
    let binary = args.binary.canonicalize().context("the binary is there")?;
    match name {
        "worker" => worker(&binary, args.json),
        _ => failover(&binary, &args),
    }
}

#[allow(clippy::print_stdout, reason = "the table is what it is for")]
fn failover(binary: &Path, args: &Args) -> Result<()> {
    let mut runtimes = vec![("process", None)];
    if let Some(image) = &args.image {
        runtimes.push(("docker", Some(image.as_str())));
    }
    let mut lines = Vec::new();
    for (runtime, image) in runtimes {
        for (settings, manager) in [
            ("default", ""),
            ("dropGraceMs 500", "nodes: {dropGraceMs: 500}\n"),
        ] {
            lines.extend(measure(
                binary,
                args.runs,
                (runtime, image),
                (settings, manager),
            )?);
        }
    }
    if args.json {
        let lines = lines.iter().map(|line| {
            json!({
                "runtime": line.runtime, "settings": line.settings, "fault": line.fault,
                "ms": line.times, "startMs": line.starts,
            })
        });
        println!("{}", serde_json::Value::from_iter(lines));
        return Ok(());
    }
    println!(
        "| runtime | settings | fault | runs | on the air again, median / longest | a plain start, median | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    for line in &lines {
        let (time, start) = (median(&line.times), median(&line.starts));
        println!(
            "| {} | {} | {} | {} | {time} / {} ms | {start} ms | {:.1} x |",
            line.runtime,
            line.settings,
            line.fault,
            line.times.len(),
            line.times.iter().max().copied().unwrap_or_default(),
            time as f64 / (start as f64).max(1.0)
        );
    }
    Ok(())
}

fn measure(
    binary: &Path,
    runs: u32,
    (runtime, image): (&'static str, Option<&str>),
    (settings, manager): (&'static str, &str),
) -> Result<Vec<Line>> {
    let folder = fleet::folder()?;
    let make = Make {
        workers: 2,
        vcpus: 4,
        manager,
        runtime,
    };
    let mut fleet = Fleet::start(binary, folder.path(), make)?;
    let air = Air::listen()?;
    let mut lines = Vec::new();
    for fault in ["crash", "silence"] {
        let mut line = Line {
            runtime,
            settings,
            fault,
            times: Vec::new(),
            starts: Vec::new(),
        };
        for run in 0..runs {
            let began = Instant::now();
            while fleet.running_nodes()? < make.workers {
                ensure!(began.elapsed() < PATIENCE, "a node is not back");
                std::thread::sleep(Duration::from_millis(100));
            }
            let bundle = format!("{fault}{run}");
            let submitted = Instant::now();
            fleet.apply(&card(&bundle, binary, image, air.port()))?;
            let (sender, first) = air.until_other(&bundle, None, PATIENCE)?;
            line.starts.push(ms(first - submitted));
            let at = fleet.node_of(&format!("{bundle}.0.card"))?;
            let broken = Instant::now();
            if fault == "crash" {
                fleet.crash(at);
            } else {
                fleet.sleep(at);
            }
            let (_, again) = air.until_other(&bundle, Some(sender), PATIENCE)?;
            line.times.push(ms(again - broken));
            fleet.delete(&bundle)?;
            // The next one finds a node that has nothing of this one.
            fleet.crash(at);
            fleet.mend()?;
        }
        lines.push(line);
    }
    Ok(lines)
}

/// A bundle with one test card.
fn card(bundle: &str, binary: &Path, image: Option<&str>, port: u16) -> String {
    let words = format!("testcard --to 127.0.0.1:{port} --channel {bundle} --rate 50");
    let service = match image {
        None => format!(
            "{{name: card, command: {} {words}, restart: onFailure}}",
            binary.display()
        ),
        Some(image) => format!(
            "{{name: card, container: {{docker: \"{image}\"}}, command: greenroom {words}, restart: onFailure, parameters: \
             {{hostNetwork: true}}}}"
        ),
    };
    format!(
        "bundleId: {bundle}\npool: local\njobs:\n  - jobName: card\n    requirements: {{requiredCapacity: 0.2, \
         onRuntimeFailure: preferSpare}}\n    launch:\n      services:\n        - {service}\n"
    )
}

#[allow(clippy::print_stdout, reason = "the table is what it is for")]
fn worker(binary: &Path, json: bool) -> Result<()> {
    let folder = fleet::folder()?;
    let make = Make {
        workers: 1,
        vcpus: 64,
        manager: "",
        runtime: "process",
    };
    let fleet = Fleet::start(binary, folder.path(), make)?;
    let began = Instant::now();
    while fleet.worker_processes(0).len() < 2 {
        ensure!(began.elapsed() < PATIENCE, "the worker has no guard");
        std::thread::sleep(Duration::from_millis(100));
    }
    let idle = takes(&fleet)?;
    let mut text = "bundleId: many\npool: local\njobs:\n".to_owned();
    for job in 0..JOBS {
        text.push_str(&format!(
            "  - jobName: j{job}\n    requirements: {{requiredCapacity: 0.1}}\n    launch:\n      services:\n        - \
             {{name: main, command: sleep 100000}}\n"
        ));
    }
    fleet.apply(&text)?;
    let began = Instant::now();
    while fleet.running_jobs("many")? < JOBS {
        ensure!(began.elapsed() < PATIENCE, "the jobs do not all run");
        std::thread::sleep(Duration::from_millis(200));
    }
    let busy = takes(&fleet)?;
    let own = own_core()?;
    if json {
        println!(
            "{}",
            json!({"idle": idle, "jobs": busy, "wakesOnceASecondOfACore": own})
        );
        return Ok(());
    }
    println!("| | worker, resident / its own | guard, resident / its own | of a core, both |");
    println!("|---|---|---|---|");
    for (name, taken) in [("idle", idle), ("50 jobs", busy)] {
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1_024.0);
        println!(
            "| {name} | {} / {} MiB | {} / {} MiB | {:.2} % |",
            mib(taken.worker[0]),
            mib(taken.worker[1]),
            mib(taken.guard[0]),
            mib(taken.guard[1]),
            taken.core * 100.0
        );
    }
    println!(
        "a shell that wakes once a second takes {:.2} % in the same run",
        own * 100.0
    );
    Ok(())
}

/// What a worker and its guard take.
#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    /// Resident memory, and what of it is not of a file, in KiB.
    worker: [u64; 2],
    guard: [u64; 2],
    /// The part of a core that both take.
    core: f64,
}

fn takes(fleet: &Fleet) -> Result<Taken> {
    let processes = fleet.worker_processes(0);
    let [worker, guard] = processes[..] else {
        anyhow::bail!("the worker has no guard");
    };
    let ticks = || -> Result<u64> { processes.iter().map(|it| ticks_of(*it)).sum() };
    let (before, began) = (ticks()?, Instant::now());
    std::thread::sleep(WATCH);
    Ok(Taken {
        core: core_of(ticks()? - before, began.elapsed()),
        worker: memory_kib(worker)?,
        guard: memory_kib(guard)?,
    })
}

/// The baseline: what the least that wakes once a second takes.
fn own_core() -> Result<f64> {
    let mut shell = Command::new("sh")
        .args(["-c", "while :; do sleep 1; done"])
        .spawn()?;
    let began = Instant::now();
    std::thread::sleep(WATCH / 3);
    // Its sleeps are its children, taken in by now.
    let ticks = ticks_of(shell.id());
    shell.kill()?;
    shell.wait()?;
    Ok(core_of(ticks?, began.elapsed()))
}

fn core_of(ticks: u64, time: Duration) -> f64 {
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    ticks as f64 / per_second / time.as_secs_f64()
}

/// Ticks of the CPU that a process and the children it has taken in have had.
fn ticks_of(process: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a line of /proc")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| -> Result<u64> { Ok(fields.get(at).context("a field")?.parse()?) };
    Ok(number(11)? + number(12)? + number(13)? + number(14)?)
}

fn memory_kib(process: u32) -> Result<[u64; 2]> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let of = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().split(' ').next());
        Ok(number.context("a line of /proc")?.parse()?)
    };
    Ok([of("VmRSS:")?, of("RssAnon:")?])
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_is_read_off_proc() {
        let own = std::process::id();
        let [resident, own_alone] = memory_kib(own).unwrap();
        assert!(resident > own_alone && own_alone > 0);
        assert!(ticks_of(own).is_ok());
        assert_eq!(median(&[3, 9, 1]), 3);
        assert!(
            (core_of(
                rustix::param::clock_ticks_per_second(),
                Duration::from_secs(2)
            ) - 0.5)
                .abs()
                < 1e-9
        );
    }
}
