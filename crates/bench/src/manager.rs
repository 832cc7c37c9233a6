//! A Manager of one member under a full house (PERF-10 to PERF-13, LIM-07): commits a second beside the disk's
//! own flushes, what it takes to boot, to hold, to tell everybody, and to show everything to a new
//! subscriber, and what its workers cost. The Manager is a process of its own, its workers are some more.
//! Nothing passes or fails; what could not be measured in the time there is says so.

mod daemon;
mod load;
#[cfg(test)]
pub(crate) mod tests;
mod workers;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use greenroom_sdk::EventSettings;
use greenroom_sdk::proto::manager::EventStreamRequest;

use self::daemon::Daemon;
use self::load::{BUNDLE, CALLERS, Committers, Readers, fill, start_all};
use self::workers::Workers;
use crate::measure::Samples;
use crate::table::{Table, whole};

pub(crate) use self::workers::{OPTION as WORKERS_OPTION, serve as serve_workers};

/// Nodes and jobs: the house of LIM-07, then that of PERF-12.
const HOUSES: [(usize, usize); 2] = [(1_000, 20_000), (10_000, 100_000)];
/// Flushes of the disk that are timed, before the commits and again behind them.
const FLUSHES: usize = 150;
/// The number by which file systems in memory are known.
const TMPFS: i64 = 0x0102_1994;

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct House {
    /// The binary that is measured.
    pub(crate) binary: PathBuf,
    /// Divides both sizes.
    pub(crate) scale: usize,
    /// One house of this size in place of the two.
    pub(crate) size: Option<(usize, usize)>,
    /// Subscribers that see everything (PERF-11, LIM-07).
    pub(crate) subscribers: usize,
    /// Where stores are made; none: beside the binary.
    pub(crate) folder: Option<PathBuf>,
    /// How long one thing is looked at.
    pub(crate) look: Duration,
    /// How long all of it may take.
    pub(crate) limit: Duration,
}

/// Runs all of it.
pub(crate) fn house(house: &House) -> Result<Vec<Table>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    greenroom_tls::raise_descriptor_limit();
    let beside = house
        .binary
        .parent()
        .filter(|it| !it.as_os_str().is_empty());
    let folder = house.folder.as_deref().or(beside).unwrap_or(Path::new("."));
    let folder = tempfile::Builder::new()
        .prefix("bench-manager-")
        .tempdir_in(folder)
        .with_context(|| {
            format!(
                "{} takes no store; name another: --folder",
                folder.display()
            )
        })?;
    let sizes = match house.size {
        Some(size) => vec![size],
        None => HOUSES.to_vec(),
    };
    let until = tokio::time::Instant::from_std(Instant::now() + house.limit);
    let mut tables = Vec::new();
    let mut table = Table::new(format!("Durable changes from {CALLERS} callers"), &COLUMNS);
    runtime.block_on(bounded(until, &mut table, async |table| {
        commits(house, folder.path(), table).await
    }));
    tables.push(table);
    for (nodes, jobs) in sizes {
        let nodes = (nodes / house.scale).max(1);
        let jobs = (jobs / house.scale).div_ceil(BUNDLE).max(6) * BUNDLE;
        let size = Size { nodes, jobs };
        let [of_nodes, of_jobs] = [nodes, jobs].map(|count| whole(count as f64));
        let title = format!(
            "{of_nodes} nodes, {of_jobs} jobs, {} subscribers",
            house.subscribers
        );
        say(&title);
        let mut table = Table::new(title, &COLUMNS);
        let store = folder.path().join(format!("store-{nodes}"));
        runtime.block_on(bounded(until, &mut table, async |table| {
            measure(house, &store, size, table).await
        }));
        tables.push(table);
    }
    // What readers of streams are at does not matter any more.
    runtime.shutdown_background();
    Ok(tables)
}

const COLUMNS: [&str; 5] = ["what", "found", "beside it in this run", "ratio", "aim"];

#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    jobs: usize,
}

/// Does something until the time is over. Whatever keeps it from its end stands in the table.
async fn bounded(
    until: tokio::time::Instant,
    table: &mut Table,
    work: impl AsyncFnOnce(&mut Table) -> Result<()>,
) {
    let before = load_average();
    let ended = tokio::time::timeout_at(until, work(table)).await;
    row(
        table,
        "load of the machine at the end",
        load_average(),
        &format!("{before} at the beginning"),
        "",
        "",
    );
    let why = match ended {
        Ok(Ok(())) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => {
            "the time is over: give more with --minutes, or less to do with --scale".to_owned()
        }
    };
    say(&why);
    row(table, "not measured from here on", why, "", "", "");
}

/// Processes that want a core, as the system counts them over a minute: with more than there are cores, times tell of
/// others as well.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// So that who waits knows for what.
fn say(what: &str) {
    // Nobody need be there to read it.
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn row(table: &mut Table, what: &str, found: impl ToString, beside: &str, ratio: &str, aim: &str) {
    let found = found.to_string();
    say(&format!("  {what}: {found}"));
    table.row(
        [what, &found, beside, ratio, aim]
            .map(str::to_owned)
            .to_vec(),
    );
}

fn millis(nanos: f64) -> String {
    format!("{:.2} ms", nanos / 1e6)
}

fn mib(bytes: f64) -> String {
    format!("{} MiB", whole(bytes / 1024.0 / 1024.0))
}

/// PERF-10: what callers get beside what the disk gives to one who flushes alone.
async fn commits(house: &House, folder: &Path, table: &mut Table) -> Result<()> {
    say("Durable changes");
    if rustix::fs::statfs(folder)?.f_type as i64 == TMPFS {
        bail!(
            "{} is in memory, where a flush costs nothing: name a folder on a disk with --folder",
            folder.display()
        );
    }
    let mut file = std::fs::File::create(folder.join("flushes"))?;
    let mut alone = Samples::default();
    let mut flush = |alone: &mut Samples| -> Result<()> {
        for _ in 0..FLUSHES {
            alone.take(|| file.write_all(&[7; 4096]).and_then(|()| file.sync_data()))?;
        }
        Ok(())
    };
    let (daemon, _) = Daemon::start(&house.binary, &folder.join("commits"), "127.0.0.1:0")?;
    flush(&mut alone)?;
    let committers = Committers::begin(&daemon, CALLERS, "bench").await?;
    let (begun, cpu) = (Instant::now(), daemon.cpu()?);
    tokio::time::sleep(house.look).await;
    let mut all = committers.end().await?;
    let took = begun.elapsed().as_secs_f64();
    let cpu = daemon.cpu()? - cpu;
    let per_second = all.len() as f64 / took;
    flush(&mut alone)?;
    daemon.kill()?;
    let one_each = 1e9 / alone.mean();
    row(
        table,
        "commits a second",
        whole(per_second),
        &format!("{} flushes a second, one after the other", whole(one_each)),
        &format!("{:.1} x", per_second / one_each),
        "10 x",
    );
    row(
        table,
        "cores for that",
        format!("{:.2}", cpu / took),
        "",
        &format!("{:.0} us each", cpu / all.len() as f64 * 1e6),
        "",
    );
    for (percent, aim) in [(50.0, ""), (99.0, "under 5 x")] {
        let [commit, flush] = [&mut all, &mut alone].map(|it| it.percentile(percent));
        row(
            table,
            &format!("{percent:.0}th percentile of a commit"),
            millis(commit),
            &format!("{} of a flush", millis(flush)),
            &format!("{:.1} x", commit / flush),
            aim,
        );
    }
    Ok(())
}

/// PERF-11, PERF-12, PERF-13, LIM-07.
async fn measure(house: &House, store: &Path, size: Size, table: &mut Table) -> Result<()> {
    let Size { nodes, jobs } = size;
    let (daemon, empty_boot) = Daemon::start(&house.binary, store, "127.0.0.1:0")?;
    let empty = daemon.memory()?;
    let mut readers = Readers::new();
    tell_all(house, &daemon, &mut readers, jobs, table).await?;

    let idle = daemon.cores(house.look).await?;
    let begun = Instant::now();
    let mut workers = Workers::connect(daemon.url(), nodes).await?;
    let took = begun.elapsed().as_secs_f64();
    row(
        table,
        "slots made and workers connected",
        format!("{took:.1} s"),
        "",
        "",
        "",
    );
    let client = daemon.client().await?;
    let begun = Instant::now();
    let started = start_all(&client, readers.jobs(), nodes, 6 * house.look).await?;
    row(
        table,
        "jobs started on them",
        whole(started as f64),
        "",
        "",
        "",
    );
    let per_second = started as f64 / begun.elapsed().as_secs_f64();
    row(table, "starts a second", whole(per_second), "", "", "");
    readers.until_quiet().await;
    let memory = daemon.memory()?;
    drop(readers);
    row(
        table,
        "memory with all of that",
        mib(memory),
        &format!("{} empty", mib(empty)),
        &format!(
            "{:.1} KiB a job more",
            (memory - empty) / 1024.0 / jobs as f64
        ),
        if nodes > 1_000 {
            "4 096 MiB"
        } else {
            "1 024 MiB"
        },
    );

    let greeted = workers.greeted().await?;
    let cores = daemon.cores(2 * house.look).await?;
    row(
        table,
        &format!("cores for {} signs of life a second", whole(nodes as f64)),
        format!("{cores:.2}"),
        &format!("{idle:.2} without workers"),
        &format!(
            "{:.0} us each",
            (cores - idle).max(0.0) / nodes as f64 * 1e6
        ),
        "0.5 for 10 000",
    );
    let lost = workers.greeted().await? - greeted;
    row(
        table,
        "workers lost and found again meanwhile",
        lost,
        "",
        "",
        "0",
    );

    snapshot(house, &daemon, table).await?;

    let listen = daemon.listen().to_owned();
    workers.mark().await?;
    daemon.kill()?;
    let (daemon, boot) = Daemon::start(&house.binary, store, &listen)?;
    row(
        table,
        "boot to serving after kill -9",
        format!("{} ms", boot.as_millis()),
        &format!("{} ms with nothing in it", empty_boot.as_millis()),
        &format!("{:.0} x", boot.as_secs_f64() / empty_boot.as_secs_f64()),
        if nodes > 1_000 {
            "15 000 ms"
        } else {
            "5 000 ms"
        },
    );
    let begun = Instant::now();
    workers.again().await?;
    let took = begun.elapsed().as_secs_f64();
    row(
        table,
        "all workers back after that",
        format!("{took:.1} s"),
        "",
        "",
        "",
    );
    row(table, "memory then", mib(daemon.memory()?), "", "", "");
    daemon.kill()
}

/// PERF-11: what it takes to tell one subscriber and many, and whether one that reads nothing shows.
async fn tell_all(
    house: &House,
    daemon: &Daemon,
    readers: &mut Readers,
    jobs: usize,
    table: &mut Table,
) -> Result<()> {
    let client = daemon.client().await?;
    let third = jobs / 3 / BUNDLE * BUNDLE;
    let mut costs = Vec::new();
    let mut lags = Vec::new();
    let steps = [
        (1, 0, third),
        (house.subscribers, third, 2 * third),
        (house.subscribers, 2 * third, jobs),
    ];
    let mut silent = None;
    for (step, (subscribers, from, upto)) in steps.into_iter().enumerate() {
        readers.grow(daemon, subscribers).await?;
        if step == 2 {
            let client = daemon.client().await?;
            let request = EventStreamRequest {
                client_protocol: 10,
                ..EventStreamRequest::default()
            };
            let stream = client.raw()?.event_stream(request).await?.into_inner();
            silent = Some((client, stream));
        }
        let (events, cpu, begun) = (readers.events(), daemon.cpu()?, Instant::now());
        fill(&client, readers, from, upto).await?;
        let took = begun.elapsed().as_secs_f64();
        let cpu = daemon.cpu()? - cpu;
        lags.push(readers.take_lags());
        let made = (upto - from) as f64;
        costs.push(cpu / made * 1e6);
        if step == 1 {
            let events = (readers.events() - events) as f64;
            row(
                table,
                "jobs made a second, each told to all",
                whole(made / took),
                &format!("{} events a second in all", whole(events / took)),
                "",
                "50 000 events a second to each",
            );
            row(
                table,
                "cores for that",
                format!("{:.2}", cpu / took),
                "",
                &format!("{:.1} us an event told", cpu / events * 1e6),
                "1",
            );
        }
    }
    drop(silent);
    row(
        table,
        &format!("CPU to make a job and tell {}", house.subscribers),
        format!("{:.0} us", costs[1]),
        &format!("{:.0} us to tell one", costs[0]),
        &format!("{:.1} x", costs[1] / costs[0]),
        "",
    );
    for percent in [50.0, 99.0] {
        let [_, alone, beside] = &mut lags[..] else {
            bail!("three steps have three lags");
        };
        let [alone, beside] = [alone, beside].map(|it| it.percentile(percent));
        row(
            table,
            &format!(
                "{percent:.0}th percentile from commit to reader, beside one that reads nothing"
            ),
            format!("{beside:.0} ms"),
            &format!("{alone:.0} ms without it"),
            &format!("{:.1} x", beside / alone.max(1.0)),
            "1 x",
        );
    }
    row(
        table,
        "readers that had to begin anew",
        readers.begun_anew(),
        "",
        "",
        "0",
    );
    Ok(())
}

/// PERF-12, EVT-19: a new subscriber, with commits going on beside it.
async fn snapshot(house: &House, daemon: &Daemon, table: &mut Table) -> Result<()> {
    let subscriber = daemon.client().await?;
    let committers = Committers::begin(daemon, 1, "beside").await?;
    tokio::time::sleep(house.look).await;
    let before = committers.end().await?;
    let committers = Committers::begin(daemon, 1, "beside").await?;
    let begun = Instant::now();
    let (state, events) = subscriber.event_stream(EventSettings::default()).await?;
    let took = begun.elapsed();
    let meanwhile = committers.end().await?;
    drop(events);
    row(
        table,
        "snapshot to a new subscriber, read and understood",
        format!("{} ms", took.as_millis()),
        &format!(
            "{} jobs, {} nodes in it",
            whole(state.active_jobs.len() as f64),
            whole(state.nodes_running.len() as f64)
        ),
        "",
        "5 000 ms",
    );
    let [longest, usual] = [&meanwhile, &before].map(Samples::longest);
    row(
        table,
        "longest commit meanwhile",
        millis(longest),
        &format!("{} without", millis(usual)),
        &format!("{:.1} x", longest / usual),
        "50 ms",
    );
    Ok(())
}
