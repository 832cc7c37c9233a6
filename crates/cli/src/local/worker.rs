//! One worker as a child process.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use greenroom_sdk::types::{NodeId, PoolName};
use greenroom_sdk::{Client, Error};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Plan, processes};
use crate::failure::{Exit, FULL_HINT, Failure, Outcome};
use crate::output::say;
use crate::verbs::node::write_secret;
use crate::verbs::worker::Runtime;

/// Name by which jobs call this program.
const NAME: &str = "greenroom";
/// File in which a worker keeps what it got for its token.
const CREDENTIAL: &str = "credential.json";
/// A worker says that it can be dialled within this.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Most workers of one installation.
pub(crate) const WORKERS_MAX: u32 = 64;
/// How often it is looked whether a worker that is no child of ours has ended.
const LOOK: Duration = Duration::from_millis(200);
/// A worker ends within this once told to: its jobs have 10 s of grace.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A worker that was started here.
pub(crate) struct LocalWorker {
    pub(crate) node_id: NodeId,
    /// What runs its jobs, in words; empty until it says so.
    pub(crate) runtime: String,
    /// Number in its name, from 1.
    pub(crate) number: u32,
    state_dir: PathBuf,
    child: Child,
    pid: u32,
}

/// Starts a worker; at its first start it gets a slot. It is ready when [`LocalWorker::ready`] says
/// so.
pub(crate) async fn spawn(
    plan: &Plan,
    url: &str,
    client: &Client,
    number: u32,
) -> Result<LocalWorker, Failure> {
    let name = format!("worker-{number}");
    let failed = |what: &str, error: std::io::Error| {
        Failure::io(format!("{name}: cannot {what}: {error}"), &error)
    };
    std::fs::create_dir_all(plan.data.join(&name))
        .map_err(|error| failed("make its folder", error))?;
    let state_dir = folder(plan, number).map_err(|error| failed("find its folder", error))?;
    let token_file = state_dir.join("token");
    let slots = client.list_cluster_nodes().await?;
    let slot = slots.iter().find(|slot| slot.node_name == name);
    let has_credential = state_dir.join(CREDENTIAL).exists();
    let node_id = match slot {
        // Its worker can come again with its credential, or for the first time with its token.
        Some(slot) if has_credential || (!slot.token_used && token_file.exists()) => {
            // Settings of another start may have had other pools.
            if !plan.pools().contains(&slot.pool) {
                let node_id = slot.node_id.clone();
                client.set_cluster_node_pool(node_id, plan.pool()?).await?;
            }
            slot.node_id.clone()
        }
        found => {
            // A slot that nobody can take any more, and a credential of a slot that is gone.
            if let Some(slot) = found {
                client.deregister_cluster_node(slot.node_id.clone()).await?;
            }
            if has_credential {
                std::fs::remove_file(state_dir.join(CREDENTIAL))
                    .map_err(|error| failed("forget its old credential", error))?;
            }
            let registered = register(client, &name, plan.pool()?).await?;
            write_secret(&token_file, registered.token.reveal())?;
            registered.node_id
        }
    };

    let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(state_dir.join("worker.log"))
        .map_err(|error| failed("open its log", error))?;
    let share = vcpus_of_each(plan.workers);
    let mut command = Command::new(&program);
    command.args([
        "worker",
        "--mode",
        "local",
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]);
    command.args(["--manager-url", url, "--vcpus", &share.to_string()]);
    command.arg("--state-dir").arg(&state_dir);
    if token_file.exists() {
        command.arg("--token-file").arg(&token_file);
    }
    command.args(match plan.runtime {
        Runtime::Auto => ["--runtime", "auto"],
        Runtime::Docker => ["--runtime", "docker"],
        Runtime::Process => ["--runtime", "process"],
    });
    if !plan.keep {
        command.arg("--leave");
    }
    let named = under_its_name(&plan.data, &program);
    let named = named.map_err(|error| failed("give this program its name", error))?;
    command.env("PATH", path_with(&named));
    // A group of its own: Ctrl-C is for this process, which ends the workers in order.
    command.process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let child = command.spawn().map_err(|error| failed("be run", error))?;
    Ok(LocalWorker {
        node_id,
        runtime: String::new(),
        number,
        state_dir,
        pid: child.id().unwrap_or_default(),
        child,
    })
}

/// Numbers of the workers to start: as many as are wanted, and those further ones of an earlier start
/// whose jobs still run. Without its worker a job would run on unseen beside the one that is started
/// in its place.
pub(crate) fn numbers(plan: &Plan) -> Vec<u32> {
    let mut numbers: Vec<u32> = (1..=plan.workers).collect();
    let further = (plan.workers + 1..=WORKERS_MAX).filter(|number| {
        folder(plan, *number).is_ok_and(|state_dir| {
            let mut instances = std::fs::read_dir(state_dir.join("instances"));
            instances.as_mut().is_ok_and(|it| it.next().is_some())
                || !processes::of_worker(&state_dir).is_empty()
        })
    });
    for number in further {
        say(&format!(
            "worker-{number} has jobs from before and is started as well"
        ));
        numbers.push(number);
    }
    numbers
}

/// Ends workers that outlived an earlier `up`. Their jobs run on, and the workers that are started
/// now take them over.
pub(crate) async fn end_earlier(plan: &Plan, numbers: &[u32]) {
    let mut pids = Vec::new();
    for number in numbers {
        let Ok(state_dir) = folder(plan, *number) else {
            continue;
        };
        if let Some(pid) = processes::worker_on(&state_dir) {
            say(&format!(
                "worker-{number} still runs from before: a new one takes its place and its jobs"
            ));
            processes::hang_up(pid);
            pids.push(pid);
        }
    }
    let gone = async {
        let mut look = tokio::time::interval(LOOK);
        while pids.iter().any(|pid| processes::is_alive(*pid)) {
            look.tick().await;
        }
    };
    if tokio::time::timeout(END_LIMIT, gone).await.is_err() {
        pids.iter().for_each(|pid| processes::kill(*pid));
    }
}

/// A worker's folder, which must exist, without links in its name.
fn folder(plan: &Plan, number: u32) -> std::io::Result<PathBuf> {
    plan.data.join(format!("worker-{number}")).canonicalize()
}

/// Makes a slot; one of that name that is just being removed is waited for.
async fn register(
    client: &Client,
    name: &str,
    pool: PoolName,
) -> Result<greenroom_sdk::Slot, Failure> {
    let (_, mut events) = client
        .event_stream(greenroom_sdk::EventSettings::default())
        .await?;
    loop {
        match client
            .register_cluster_node(name.to_owned(), pool.clone())
            .await
        {
            Err(Error::AlreadyExists(_)) if events.next().await.is_some() => {}
            Err(error) => {
                let is_full = error.refused().is_some_and(|it| it.reason == "disk_full");
                let failure = Failure::from(error);
                return Err(if is_full {
                    Failure::new(Exit::DiskFailed, failure.message).hint(FULL_HINT)
                } else {
                    failure
                });
            }
            Ok(registered) => return Ok(registered),
        }
    }
}

/// Why a worker ended at its start, from its exit code and the last line of its log.
async fn why_not(child: &mut Child, name: &str, state_dir: &Path) -> Failure {
    let log = state_dir.join("worker.log");
    let ended = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
    let Ok(Ok(status)) = ended else {
        // It neither serves nor ends.
        let _ = child.start_kill();
        return Failure::failed(format!(
            "{name} does not say that it serves; see {}",
            log.display()
        ));
    };
    let text = std::fs::read(&log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text
        .lines()
        .rev()
        .find(|line| line.starts_with("greenroom: "));
    let why = last
        .and_then(|line| line.strip_prefix("greenroom: "))
        .unwrap_or("see its log");
    let is_full = why.contains("No space left on device");
    let exit = match status.code() {
        Some(code) if code == Exit::Locked as i32 => Exit::Locked,
        Some(code) if code == Exit::TooNew as i32 => Exit::TooNew,
        Some(code) if code == Exit::RuntimeDenied as i32 => Exit::RuntimeDenied,
        Some(code) if code == Exit::DiskFailed as i32 => Exit::DiskFailed,
        _ if is_full => Exit::DiskFailed,
        _ => Exit::Failed,
    };
    let failure = Failure::new(exit, format!("{name} did not start: {why}"));
    if is_full {
        return failure.hint(FULL_HINT);
    }
    failure.hint(format!("its log is {}", log.display()))
}

/// The machine's vCPUs, shared out: all workers together offer what there is, not a multiple of it.
fn vcpus_of_each(workers: u32) -> f64 {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let all = f64::from(u32::try_from(all).unwrap_or(u32::MAX));
    (all / f64::from(workers.max(1)) * 100.0).round() / 100.0
}

/// The folder in which this program lies as `greenroom`: jobs of the examples call it so. One that was
/// stored under another name gets a link in the data folder.
fn under_its_name(data: &Path, program: &Path) -> std::io::Result<PathBuf> {
    let here = program.parent().unwrap_or(Path::new("/"));
    if program.file_name().is_some_and(|name| name == NAME) {
        return Ok(here.to_owned());
    }
    let folder = data.join("bin");
    std::fs::create_dir_all(&folder)?;
    let link = folder.join(NAME);
    if std::fs::read_link(&link).ok().as_deref() != Some(program) {
        // A service that is started at this moment finds either the old or the new one.
        let fresh = folder.join(format!("{NAME}.{}", std::process::id()));
        std::os::unix::fs::symlink(program, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    folder.canonicalize()
}

fn path_with(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

// === impl LocalWorker ===

impl LocalWorker {
    /// Waits until the Manager can dial it.
    pub(crate) async fn ready(&mut self) -> Outcome {
        let Some(stdout) = self.child.stdout.take() else {
            return Ok(());
        };
        let mut lines = BufReader::new(stdout).lines();
        let told = tokio::time::timeout(START_LIMIT, lines.next_line()).await;
        let told: serde_json::Value = match &told {
            Ok(Ok(Some(line))) => serde_json::from_str(line).unwrap_or_default(),
            _ => serde_json::Value::Null,
        };
        // One that cannot start says so as data as well; its log has the words.
        if told["event"] != "listening" {
            let name = format!("worker-{}", self.number);
            return Err(why_not(&mut self.child, &name, &self.state_dir).await);
        }
        self.runtime = told["runtime"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    /// Kills the worker and everything that runs on it at once, as the loss of a machine would.
    pub(crate) fn break_down(&mut self) {
        processes::kill_all(|| {
            let pids = processes::of_worker(&self.state_dir);
            // Reaps the worker itself, which would otherwise be found for ever.
            let _ = self.child.try_wait();
            pids
        });
    }

    /// Tells the worker to end and to leave its jobs running.
    pub(crate) fn hang_up(&self) {
        processes::hang_up(self.pid);
    }

    /// Tells the worker to end.
    pub(crate) fn terminate(&self) {
        processes::terminate(self.pid);
    }

    /// Resolves when the worker has ended, with how it did.
    pub(crate) async fn wait(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Resolves when the worker is gone; one that does not end in time is killed.
    pub(crate) async fn ended(mut self) {
        if tokio::time::timeout(END_LIMIT, self.wait()).await.is_err() {
            processes::kill(self.pid);
            self.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_any_name_is_found_by_its_jobs() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = Path::new("/opt/greenroom/bin/greenroom");
        let found = under_its_name(folder.path(), own).expect("a folder");
        assert_eq!(found, Path::new("/opt/greenroom/bin"));
        assert!(!folder.path().join("bin").exists());
        for program in [
            "/opt/greenroom-0.9",
            "/opt/greenroom-1.0",
            "/opt/greenroom-1.0",
        ] {
            let found = under_its_name(folder.path(), Path::new(program)).expect("a folder");
            let links: Vec<_> = std::fs::read_dir(&found).expect("a folder").collect();
            assert_eq!(links.len(), 1);
            let link = std::fs::read_link(found.join("greenroom")).expect("a link");
            assert_eq!(link, Path::new(program));
        }
    }
}
