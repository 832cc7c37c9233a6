//! The same load on a disk that fills up, and on one that breaks.
//!
//! A small file system in memory holds the Manager's data. It is mounted in name spaces of this process's own,
//! where no right of the machine is needed, and it goes with them. Others fill it to the last byte while calls
//! run; the Manager must refuse what is new in plain words, record what ends or removes something, start again
//! on the full disk with all that it acknowledged, and serve by itself once there is room. On a disk that
//! answers EIO it must end with code 9, and have all of it at its next start.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use greenroom_sdk::types::JobId;
use greenroom_sdk::{Client, Error};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Load;
use super::daemon::{Daemon, PATIENCE};
use super::fleet;

/// Size of the file system: room for the reserve, for the least that is to be free, and for the data.
const SIZE: &str = "160m";
/// Below this much free room, in MiB, what is new is refused.
const MIN_FREE_MIB: u64 = 16;
/// The folder of the file system, told to the process within the name spaces.
const MOUNTED: &str = "GREENROOM_CRASH_DISK";
/// Exit code of a disk that failed.
const DISK_FAILED: i32 = 9;

/// What is to be done.
pub(super) struct Plan {
    pub(super) binary: PathBuf,
    pub(super) seed: u64,
    pub(super) rounds: u32,
    pub(super) clients: usize,
    pub(super) longest: Duration,
}

/// Loads and what was acknowledged to them, over all rounds.
struct Calling {
    loads: Vec<Load>,
    acknowledged: u64,
    tasks: Vec<tokio::task::JoinHandle<(Load, u64)>>,
}

// === impl Calling ===

impl Calling {
    fn new(plan: &Plan) -> Self {
        let seen = Arc::default();
        let load = |number| Load::new(number, plan.seed, &seen);
        Self {
            loads: (0..plan.clients).map(load).collect(),
            acknowledged: 0,
            tasks: Vec::new(),
        }
    }

    async fn compare(&mut self, client: &Client) -> Result<()> {
        for load in &mut self.loads {
            load.compare(client).await?;
        }
        Ok(())
    }

    /// The last look, at a Manager that has its disk again; ends it.
    async fn finish(mut self, daemon: Daemon, seed: u64) -> Result<u64> {
        let last = self.compare(&daemon.connect().await?).await;
        last.with_context(|| format!("after the last round, seed {seed}"))?;
        daemon.kill().await?;
        ensure!(self.acknowledged > 0, "nothing was acknowledged");
        Ok(self.acknowledged)
    }

    fn begin(&mut self, daemon: &Daemon) {
        let address = &daemon.address;
        let loads = self.loads.drain(..);
        self.tasks = loads
            .map(|load| tokio::spawn(load.call_until_lost(address.clone())))
            .collect();
    }

    /// Waits for the clients of a Manager that is gone.
    async fn end(&mut self) -> Result<()> {
        for task in self.tasks.drain(..) {
            let (load, count) = task.await?;
            self.acknowledged += count;
            self.loads.push(load);
        }
        Ok(())
    }
}

/// Runs the rounds on a disk that fills up.
#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
pub(super) fn fill_up(plan: &Plan) -> Result<()> {
    let Some(disk) = std::env::var_os(MOUNTED) else {
        return within_name_spaces(plan);
    };
    let disk = PathBuf::from(disk);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let mut calling = Calling::new(plan);
        let mut workers = Vec::new();
        for round in 1..=plan.rounds {
            let told = format!("round {round}, seed {}", plan.seed);
            let daemon = begin(plan, &disk).await.context(told.clone())?;
            let client = daemon.connect().await?;
            if workers.is_empty() {
                workers = fleet::begin(&client, plan.clients).await?;
            }
            calling.compare(&client).await.context(told.clone())?;
            calling.begin(&daemon);
            let life =
                |random: &mut StdRng| random.random_range(1..=plan.longest.as_millis() as u64);
            tokio::time::sleep(Duration::from_millis(life(&mut random))).await;
            fill(&disk)?;
            let full = refused_while_full(&client, round)
                .await
                .context(told.clone())?;
            tokio::time::sleep(Duration::from_millis(life(&mut random))).await;
            let returns = round.is_multiple_of(2);
            if returns {
                empty(&disk)?;
            }
            let back = match returns {
                true => Some(taken_again(&client, round).await.context(told.clone())?),
                false => None,
            };
            daemon.kill().await?;
            calling.end().await?;
            if !returns {
                // On the full disk everything is there.
                let daemon = begin(plan, &disk).await.context(told.clone())?;
                calling
                    .compare(&daemon.connect().await?)
                    .await
                    .context(told.clone())?;
                daemon.kill().await?;
                empty(&disk)?;
            }
            println!(
                "round {round}/{}: full, refused after {} ms, {}; {} acknowledged, 0 lost",
                plan.rounds,
                full.as_millis(),
                match back {
                    Some(back) =>
                        format!("served again {} ms after there was room", back.as_millis()),
                    None => "killed and started on the full disk".to_owned(),
                },
                calling.acknowledged
            );
        }
        let daemon = begin(plan, &disk).await?;
        let acknowledged = calling.finish(daemon, plan.seed).await?;
        drop(workers);
        println!(
            "crash: {} rounds on a full disk, {acknowledged} acknowledged, 0 lost",
            plan.rounds
        );
        Ok(())
    })
}

/// Runs this very command again where a file system may be mounted.
fn within_name_spaces(plan: &Plan) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let script =
        format!("mount -t tmpfs -o size={SIZE} tmpfs \"${MOUNTED}\" && exec \"$0\" \"$@\"");
    let mut own: Vec<_> = std::env::args_os().skip(1).collect();
    if !own.iter().any(|it| it == "--seed") {
        own.extend(["--seed".into(), plan.seed.to_string().into()]);
    }
    if !own.iter().any(|it| it == "--binary") {
        own.extend(["--binary".into(), plan.binary.clone().into()]);
    }
    let status = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg(script)
        .arg(std::env::current_exe()?)
        .args(own)
        .env(MOUNTED, folder.path())
        .status()
        .context("unshare")?;
    ensure!(
        status.success(),
        "the rounds on a full disk failed: {status}"
    );
    Ok(())
}

async fn begin(plan: &Plan, disk: &Path) -> Result<Daemon> {
    let settings = std::env::temp_dir().join(format!("crash-{}.yaml", std::process::id()));
    let text = format!("store: {{minFreeMb: {MIN_FREE_MIB}}}\n");
    fs::write(&settings, text)?;
    let mut command = tokio::process::Command::new(&plan.binary);
    command
        .args(["manager", "--json", "--listen", "127.0.0.1:0", "--config"])
        .arg(&settings)
        .arg("--data-dir")
        .arg(disk.join("manager"));
    let daemon = Daemon::spawn(command).await;
    fs::remove_file(&settings)?;
    daemon
}

/// What others write, to the last byte.
fn fill(disk: &Path) -> Result<()> {
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(disk.join("other"))?;
    for size in [64 * 1024, 4096, 1] {
        let zeros = vec![0; size];
        while file.write_all(&zeros).is_ok() {}
    }
    Ok(())
}

fn empty(disk: &Path) -> Result<()> {
    Ok(fs::remove_file(disk.join("other"))?)
}

fn probe(round: u32, end: &str) -> JobId {
    JobId::new(format!("probe-{round}-{end}"))
}

/// Creates jobs until one is refused, and deletes what there is of them: that is recorded on the full
/// disk. Answers how long it took.
async fn refused_while_full(client: &Client, round: u32) -> Result<Duration> {
    let begun = Instant::now();
    let mut made = Vec::new();
    let refusal = loop {
        ensure!(
            begun.elapsed() < PATIENCE,
            "new jobs are taken on a full disk"
        );
        let job_id = probe(round, &made.len().to_string());
        match client
            .create_job(greenroom_testkit::job(job_id.as_str()))
            .await
        {
            Ok(_) => made.push(job_id),
            Err(refusal @ Error::ResourceExhausted(_)) => break refusal,
            Err(other) => bail!("a new job is neither taken nor refused: {other}"),
        }
    };
    let took = begun.elapsed();
    ensure!(refusal.reason() == "disk_full", "{refusal}");
    let words = refusal.to_string();
    ensure!(
        words.contains("disk") && words.contains("full"),
        "not in plain words: {words}"
    );
    for job_id in made {
        client
            .delete_job(job_id)
            .await
            .context("a delete on a full disk")?;
    }
    Ok(took)
}

/// Creates a job again and again until it is taken, and removes it. Answers how long it took.
async fn taken_again(client: &Client, round: u32) -> Result<Duration> {
    let begun = Instant::now();
    let job_id = probe(round, "again");
    loop {
        match client
            .create_job(greenroom_testkit::job(job_id.as_str()))
            .await
        {
            Ok(_) => break,
            Err(Error::ResourceExhausted(_)) => {}
            Err(other) => bail!("a new job is neither taken nor refused: {other}"),
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "there is room, and new jobs are still refused"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = begun.elapsed();
    client.delete_job(job_id).await?;
    Ok(took)
}

/// Runs the rounds on a disk that answers EIO from a random moment on.
#[allow(
    clippy::print_stdout,
    reason = "the harness reports to whoever runs it"
)]
pub(super) fn fail(root: &Path, plan: &Plan) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shim = folder.path().join("shim.so");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&shim)
        .arg(root.join("crates/store/tests/disk/shim.c"))
        .args(["-ldl", "-lpthread"])
        .status()
        .context("cc")?;
    ensure!(built.success(), "the shim is not built: {built}");
    let (data, breaks) = (folder.path().join("manager"), folder.path().join("breaks"));
    let start = async |is_behind: bool| {
        let mut command = tokio::process::Command::new(&plan.binary);
        command
            .args(["manager", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data);
        if is_behind {
            command
                .env("LD_PRELOAD", &shim)
                .env("DISK_ROOT", &data)
                .env("DISK_FAIL", &breaks);
        }
        Daemon::spawn(command).await
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let mut calling = Calling::new(plan);
        let mut workers = Vec::new();
        for round in 1..=plan.rounds {
            let told = format!("round {round}, seed {}", plan.seed);
            let daemon = start(true).await.context(told.clone())?;
            let client = daemon.connect().await?;
            if workers.is_empty() {
                workers = fleet::begin(&client, plan.clients).await?;
            }
            calling.compare(&client).await.context(told.clone())?;
            calling.begin(&daemon);
            let life = random.random_range(1..=plan.longest.as_millis() as u64);
            tokio::time::sleep(Duration::from_millis(life)).await;
            fs::write(&breaks, "")?;
            let (code, words) = daemon.ended().await.context(told.clone())?;
            ensure!(
                code == Some(DISK_FAILED),
                "{told}: the disk failed and the Manager ended with {code:?}: {words}"
            );
            calling.end().await?;
            fs::remove_file(&breaks)?;
            println!(
                "round {round}/{}: the disk failed after {life} ms, exit {DISK_FAILED}; {} acknowledged, 0 lost",
                plan.rounds, calling.acknowledged
            );
        }
        let daemon = start(false).await?;
        let acknowledged = calling.finish(daemon, plan.seed).await?;
        drop(workers);
        println!(
            "crash: {} failures of the disk, {acknowledged} acknowledged, 0 lost",
            plan.rounds
        );
        Ok(())
    })
}
