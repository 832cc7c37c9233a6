//! A Manager of one member under a full house (PERF-10 to PERF-13): commits a second beside the disk's
//! own flushes, what it takes to boot, to hold, and to show everything to a new subscriber, and what
//! its workers cost. The Manager is a process of its own; its workers are tasks of this one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::stream::{Stamped, StreamEvent};
use greenroom_sdk::{Client, EventSettings, Settings, StreamItem};
use greenroom_testkit::{FakeWorker, bundle};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::measure::Samples;
use crate::table::{Table, whole};

/// Nodes and jobs: the house of LIM-07, then that of PERF-12.
const HOUSES: [(usize, usize); 2] = [(1_000, 20_000), (10_000, 100_000)];
/// Subscribers that see everything (PERF-11, LIM-07).
const SUBSCRIBERS: usize = 32;
/// Jobs of one bundle; the most there may be.
const BUNDLE: usize = 64;
/// Callers at once, as the requirement has it.
const CALLERS: usize = 64;
/// How long commits are counted.
const COUNTED: Duration = Duration::from_secs(5);
/// How long the cost of connected workers is looked at.
const WATCHED: Duration = Duration::from_secs(10);
/// Flushes of the disk that are timed.
const FLUSHES: usize = 300;
/// A start of any size is there within this.
const PATIENCE: Duration = Duration::from_secs(600);

/// The Manager's process. It ends with its handle.
struct Daemon {
    child: Child,
    url: String,
}

// === impl Daemon ===

impl Daemon {
    /// Starts it and waits until it serves; answers how long that took.
    fn start(binary: &Path, folder: &Path, listen: &str) -> Result<(Self, Duration)> {
        let begun = Instant::now();
        let mut child = Command::new(binary)
            .args(["manager", "--json", "--listen", listen, "--data-dir"])
            .arg(folder)
            .env("GREENROOM_LOG", "error")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be run", binary.display()))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let took = begun.elapsed();
        let told: serde_json::Value = serde_json::from_str(&line)
            .context("the Manager ended at its start; run it by hand to see why")?;
        let address = told["address"].as_str().context("it tells its address")?;
        let url = format!("http://{address}");
        Ok((Self { child, url }, took))
    }

    fn listen(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    async fn client(&self) -> Result<Client> {
        let settings = Settings {
            call_timeout: PATIENCE,
            ..Settings::new([self.url.clone()])
        };
        Ok(Client::connect(settings).await?)
    }

    /// Resident bytes.
    fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: f64 = kib.context("the system tells resident memory")?.parse()?;
        Ok(kib * 1024.0)
    }

    /// CPU time so far, in seconds.
    fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, rest) = stat
            .rsplit_once(')')
            .context("the system tells CPU times")?;
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks: Result<Vec<f64>, _> = ticks.map(str::parse).collect();
        Ok(ticks?.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64)
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gone already where it was killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all of it.
pub(crate) fn house(binary: &Path, scale: usize) -> Result<Vec<Table>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    greenroom_tls::raise_descriptor_limit();
    let folder = tempfile::tempdir()?;
    let store = |name: &str| folder.path().join(name);
    let mut tables = vec![runtime.block_on(flushes(binary, &store("commits")))?];
    for (nodes, jobs) in HOUSES {
        let (nodes, jobs) = ((nodes / scale).max(1), (jobs / scale).max(BUNDLE));
        let store = store(&format!("store-{nodes}"));
        tables.push(runtime.block_on(measure(binary, &store, nodes, jobs))?);
    }
    Ok(tables)
}

async fn flushes(binary: &Path, folder: &Path) -> Result<Table> {
    let (daemon, _) = Daemon::start(binary, folder, "127.0.0.1:0")?;
    let table = commits(&daemon, &folder.with_file_name("flushes")).await?;
    daemon.kill()?;
    Ok(table)
}

async fn measure(binary: &Path, folder: &Path, nodes: usize, jobs: usize) -> Result<Table> {
    let (daemon, _) = Daemon::start(binary, folder, "127.0.0.1:0")?;
    let title = format!("{} nodes, {} jobs", whole(nodes as f64), whole(jobs as f64));
    let mut table = Table::new(title, &["what", "value"]);
    let client = daemon.client().await?;
    let subscribers = subscribe(&daemon).await?;
    let (begun, before) = (Instant::now(), daemon.cpu()?);
    fill_jobs(&client, jobs).await?;
    for subscriber in subscribers.iter().cloned() {
        let all = |seen: &usize| *seen >= jobs;
        tokio::time::timeout(PATIENCE, { subscriber }.wait_for(all)).await??;
    }
    let took = begun.elapsed().as_secs_f64();
    let cores = (daemon.cpu()? - before) / took;
    table.fact(
        "jobs made a second, each told to 32 subscribers",
        whole(jobs as f64 / took),
    );
    table.fact("cores for that", format!("{cores:.2}"));
    let workers = connect_workers(&daemon, nodes).await?;
    let mib = |bytes: f64| format!("{} MiB", whole(bytes / 1024.0 / 1024.0));
    table.fact("memory after filling", mib(daemon.memory()?));

    // As many as the workers send, five a second each.
    let before = daemon.cpu()?;
    tokio::time::sleep(WATCHED).await;
    let cores = (daemon.cpu()? - before) / WATCHED.as_secs_f64();
    let per_second = nodes as f64 * 5.0;
    table.fact("signs of life a second", whole(per_second));
    table.fact("cores for them", format!("{cores:.2}"));

    snapshot(&daemon, &mut table).await?;

    let listen = daemon.listen().to_owned();
    let greeted: Vec<usize> = workers.iter().map(FakeWorker::greeted).collect();
    daemon.kill()?;
    let (daemon, boot) = Daemon::start(binary, folder, &listen)?;
    table.fact(
        "boot to serving after kill -9",
        format!("{} ms", boot.as_millis()),
    );
    let begun = Instant::now();
    for (worker, before) in workers.iter().zip(greeted) {
        worker.wait_greeted(before + 1).await;
    }
    let all = format!("{:.1} s", begun.elapsed().as_secs_f64());
    table.fact("all workers back after that", all);
    table.fact("memory after the boot", mib(daemon.memory()?));
    daemon.kill()?;
    Ok(table)
}

/// Subscribers that read all they are told; what each says is how many jobs it was told of.
async fn subscribe(daemon: &Daemon) -> Result<Vec<watch::Receiver<usize>>> {
    let mut all = Vec::with_capacity(SUBSCRIBERS);
    for _ in 0..SUBSCRIBERS {
        let client = daemon.client().await?;
        let (_, mut events) = client.event_stream(EventSettings::default()).await?;
        let (told, seen) = watch::channel(0);
        all.push(seen);
        tokio::spawn(async move {
            while let Some(item) = events.next().await {
                if matches!(
                    item,
                    StreamItem::Event(Stamped {
                        event: StreamEvent::JobActive(_) | StreamEvent::JobPending(_),
                        ..
                    })
                ) {
                    told.send_modify(|count| *count += 1);
                }
            }
        });
    }
    Ok(all)
}

/// PERF-10: what callers get beside what the disk gives to one who flushes alone.
async fn commits(daemon: &Daemon, beside: &PathBuf) -> Result<Table> {
    let mut alone = Samples::default();
    let mut file = std::fs::File::create(beside)?;
    for _ in 0..FLUSHES {
        alone.take(|| file.write_all(&[7; 4096]).and_then(|()| file.sync_data()))?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = daemon.client().await?;
        let stop = Arc::clone(&stop);
        callers.spawn(async move {
            let mut took = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let commit = KvCommit {
                    namespace: "bench".to_owned(),
                    writes: vec![KvWrite::set(
                        format!("k{caller}"),
                        took.len().to_string().as_bytes(),
                    )],
                    expected_schema_version: None,
                    set_schema_version: None,
                };
                let begun = Instant::now();
                client.kv_commit(commit).await?;
                took.push(begun.elapsed());
            }
            Ok::<_, greenroom_sdk::Error>(took)
        });
    }
    tokio::time::sleep(COUNTED).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = Samples::default();
    let mut count = 0.0;
    while let Some(done) = callers.join_next().await {
        for took in done?? {
            all.push(took.as_nanos() as f64);
            count += 1.0;
        }
    }
    let per_second = count / COUNTED.as_secs_f64();
    let one_each = 1e9 / alone.mean();
    let millis = |nanos: f64| format!("{:.2} ms", nanos / 1e6);
    let title = format!("Durable changes from {CALLERS} callers");
    let mut table = Table::new(title, &["what", "value"]);
    table.fact("commits a second", whole(per_second));
    table.fact(
        "flushes of the disk a second, one after the other",
        whole(one_each),
    );
    table.fact(
        "commits to a flush",
        format!("{:.1} x", per_second / one_each),
    );
    for (what, samples) in [("commit", &mut all), ("flush", &mut alone)] {
        let [middle, far] = [50.0, 99.0].map(|percent| millis(samples.percentile(percent)));
        table.fact(&format!("p50, p99 of a {what}"), format!("{middle}, {far}"));
    }
    Ok(table)
}

async fn fill_jobs(client: &Client, jobs: usize) -> Result<()> {
    let names: Vec<String> = (0..BUNDLE).map(|number| format!("j{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut filling = JoinSet::new();
    for number in 0..jobs.div_ceil(BUNDLE) {
        while filling.len() >= CALLERS {
            filling.join_next().await.context("one of them")???;
        }
        let (client, bundle) = (client.clone(), bundle(&format!("b{number}"), &names));
        filling.spawn(async move { client.create_bundle(bundle).await });
    }
    while let Some(done) = filling.join_next().await {
        done??;
    }
    Ok(())
}

async fn connect_workers(daemon: &Daemon, nodes: usize) -> Result<Vec<FakeWorker>> {
    let mut connecting = JoinSet::new();
    let mut workers = Vec::new();
    for number in 0..nodes {
        while connecting.len() >= CALLERS {
            workers.push(connecting.join_next().await.context("one of them")???);
        }
        let client = daemon.client().await?;
        connecting.spawn(async move {
            let worker = FakeWorker::register(&client, &format!("n{number}")).await;
            worker.call_in(&client).await?;
            worker.wait_greeted(1).await;
            Ok::<_, anyhow::Error>(worker)
        });
    }
    while let Some(done) = connecting.join_next().await {
        workers.push(done??);
    }
    ensure!(workers.len() == nodes, "every worker is connected");
    Ok(workers)
}

/// PERF-12, EVT-19: a new subscriber, with commits going on beside it.
async fn snapshot(daemon: &Daemon, table: &mut Table) -> Result<()> {
    let (client, subscriber) = (daemon.client().await?, daemon.client().await?);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let beside = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        while !stopped.load(Ordering::Relaxed) {
            let commit = KvCommit {
                namespace: "beside".to_owned(),
                writes: vec![KvWrite::set("k", *b"v")],
                expected_schema_version: None,
                set_schema_version: None,
            };
            let begun = Instant::now();
            client.kv_commit(commit).await?;
            longest = longest.max(begun.elapsed());
        }
        Ok::<_, greenroom_sdk::Error>(longest)
    });
    let begun = Instant::now();
    let (state, _events) = subscriber.event_stream(EventSettings::default()).await?;
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let longest = beside.await??;
    table.fact(
        "jobs in a new subscriber's snapshot",
        whole(state.active_jobs.len() as f64),
    );
    table.fact(
        "snapshot complete, read and understood",
        format!("{} ms", took.as_millis()),
    );
    table.fact(
        "longest commit meanwhile",
        format!("{} ms", longest.as_millis()),
    );
    Ok(())
}
