//! A real Manager, control plane and workers on this machine, and what can be done to them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// However busy the machine is, a program that works has started and a Manager has answered within this.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two tries to ask it.
const PAUSE: Duration = Duration::from_secs(1);

/// One program of the installation, started again as it was.
struct Daemon {
    name: String,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    hung: bool,
}

struct Node {
    daemon: Daemon,
    state: PathBuf,
    /// Its port, while its stream is cut.
    cut: bool,
    port: u16,
    slept: bool,
}

/// What an installation is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make<'a> {
    pub(crate) workers: usize,
    /// vCPUs of each.
    pub(crate) vcpus: u32,
    /// Further settings of the Manager, YAML.
    pub(crate) manager: &'a str,
    /// `process` or `docker`.
    pub(crate) runtime: &'a str,
}

/// The installation.
pub(crate) struct Fleet {
    binary: PathBuf,
    folder: PathBuf,
    manager: Daemon,
    url: String,
    _control: Daemon,
    control_url: String,
    nodes: Vec<Node>,
    /// Guards that were stopped.
    hung_guards: BTreeSet<i32>,
}

/// A folder in memory where there is one: on a disk that is nearly full, workers refuse jobs.
pub(crate) fn folder() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let mut folder = tempfile::Builder::new();
    folder.prefix("greenroom-fleet-");
    Ok(match memory.is_dir() {
        true => folder.tempdir_in(memory)?,
        false => folder.tempdir()?,
    })
}

/// Runs a command to its end.
pub(crate) fn command(program: &str, args: &[&str]) -> Result<()> {
    let ran = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("{program} cannot be run"))?;
    ensure!(
        ran.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(())
}

// === impl Daemon ===

impl Daemon {
    fn new(folder: &Path, name: &str, args: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            args: args.iter().map(|it| (*it).to_owned()).collect(),
            log: folder.join(format!("{name}.log")),
            child: None,
            hung: false,
        }
    }

    /// Starts it and gives the address that it tells.
    fn start(&mut self, binary: &Path) -> Result<String> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut child = Command::new(binary)
            .args(&self.args)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        self.child = Some(child);
        let (sender, first) = mpsc::channel();
        // Reads on to the end, so that the program never waits for its reader.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let line = first.recv_timeout(PATIENCE).with_context(|| {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            format!("{} does not come up: {last:?}", self.name)
        })?;
        let told: Value = serde_json::from_str(&line)?;
        let address = told["address"].as_str().context("it tells its address")?;
        Ok(address.to_owned())
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(child) = &self.child {
            send(i32::try_from(child.id()).unwrap_or_default(), signal);
        }
        self.hung = self.child.is_some() && signal == Signal::STOP;
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.hung = false;
    }

    /// Runs again, if it did not.
    fn mend(&mut self, binary: &Path) -> Result<()> {
        if self.hung {
            self.signal(Signal::CONT);
        }
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        };
        if ended {
            self.start(binary)?;
        }
        Ok(())
    }
}

// === impl Fleet ===

impl Fleet {
    pub(crate) fn start(binary: &Path, folder: &Path, make: Make<'_>) -> Result<Self> {
        let own = folder.join("manager.yaml");
        fs::write(&own, format!("metrics: {{listen: \"\"}}\n{}", make.manager))?;
        let own = own.to_str().context("a name of text")?;
        let data = folder.join("manager");
        let data = data.to_str().context("a name of text")?;
        let mut manager = Daemon::new(
            folder,
            "manager",
            &[
                "manager",
                "--listen",
                "127.0.0.1:0",
                "--data-dir",
                data,
                "-c",
                own,
            ],
        );
        let address = manager.start(binary)?;
        // Where it was, so that everybody finds it again.
        manager.args[2].clone_from(&address);
        let url = format!("http://{address}");
        let settings = folder.join("control.yaml");
        let pools = "placementPools:\n  - name: local\n    tiers: [{name: own, kind: local-servers, scaleOut: fixed}]\n";
        fs::write(&settings, format!("url: {url}\n{pools}"))?;
        let settings = settings.to_str().context("a name of text")?;
        let mut control = Daemon::new(
            folder,
            "control",
            &["control", "-c", settings, "--listen", "127.0.0.1:0"],
        );
        let control_url = format!("http://{}", control.start(binary)?);
        let mut fleet = Self {
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            manager,
            url,
            _control: control,
            control_url,
            nodes: Vec::new(),
            hung_guards: BTreeSet::new(),
        };
        for number in 0..make.workers {
            // Another run on this machine must not be meant by it.
            let name = format!("w{number}-{}", std::process::id());
            let token = folder.join(format!("{name}.token"));
            let token = token.to_str().context("a name of text")?.to_owned();
            fleet.tool(&[
                "node", "register", &name, "--pool", "local", "--out", &token,
            ])?;
            let state = folder.join(&name);
            let mut daemon = Daemon::new(
                folder,
                &name,
                &[
                    "worker",
                    "--listen",
                    "127.0.0.1:0",
                    "--manager-url",
                    &fleet.url,
                ],
            );
            let own = state.to_str().context("a name of text")?;
            let vcpus = make.vcpus.to_string();
            let more = [
                "--token-file",
                &token,
                "--state-dir",
                own,
                "--runtime",
                make.runtime,
            ];
            daemon.args.extend(more.map(str::to_owned));
            daemon.args.extend(["--vcpus".to_owned(), vcpus]);
            let address = daemon.start(binary)?;
            daemon.args[2].clone_from(&address);
            let port = address.rsplit(':').next().and_then(|it| it.parse().ok());
            fleet.nodes.push(Node {
                daemon,
                state,
                cut: false,
                port: port.context("a port")?,
                slept: false,
            });
        }
        Ok(fleet)
    }

    pub(crate) fn tool(&self, args: &[&str]) -> Result<String> {
        let ran = Command::new(&self.binary)
            .args(args)
            .env("GREENROOM_MANAGER", &self.url)
            .env("GREENROOM_CONTROL", &self.control_url)
            .current_dir(&self.folder)
            .output()?;
        ensure!(
            ran.status.success(),
            "{}: {}",
            args.join(" "),
            String::from_utf8_lossy(&ran.stderr)
        );
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// What does the same however often it is done, until it is answered: a machine that is busy is slow.
    fn ask(&self, args: &[&str]) -> Result<String> {
        let began = Instant::now();
        loop {
            let answer = self.tool(args);
            if answer.is_ok() || began.elapsed() > PATIENCE {
                return answer;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Submits a manifest, whether or not a control plane acts at this moment.
    pub(crate) fn apply(&self, text: &str) -> Result<()> {
        let file = self.folder.join("bundle.yaml");
        fs::write(&file, text)?;
        let file = file.to_str().context("a name of text")?;
        self.ask(&["apply", "-f", file, "--skip-validation"])
            .map(drop)
    }

    /// A bundle of so many leased test cards.
    pub(crate) fn leased_cards(&self, bundle: &str, cards: usize, port: u16) -> String {
        let mut text = format!("bundleId: {bundle}\npool: local\njobs:\n");
        let binary = self.binary.display();
        for card in 0..cards {
            text.push_str(&format!(
                "  - jobName: e{card}\n    jobSocket: true\n    lease: {{ttlMs: 2000, graceMs: 1000}}\n    requirements: {{requiredCapacity: \
                 0.2}}\n    launch:\n      services:\n        - name: card\n          command: {binary} testcard --to \
                 127.0.0.1:{port} --channel {bundle}.e{card} --rate 50\n          restart: onFailure\n"
            ));
        }
        text
    }

    pub(crate) fn delete(&self, bundle: &str) -> Result<()> {
        self.tool(&["delete", bundle]).map(drop)
    }

    /// What is known of a bundle's jobs, for a failure.
    pub(crate) fn say_of(&self, bundle: &str) -> String {
        let jobs = self.tool(&["get", "jobs", "--json"]).unwrap_or_default();
        let jobs: Value = serde_json::from_str(&jobs).unwrap_or_default();
        let of = |job: &&Value| {
            job["jobId"]
                .as_str()
                .is_some_and(|id| id.starts_with(bundle))
        };
        let jobs: Vec<String> = jobs
            .as_array()
            .into_iter()
            .flatten()
            .filter(of)
            .map(Value::to_string)
            .collect();
        let why = self.tool(&["why", &format!("{bundle}.0.e0")]);
        format!(
            "{} {}",
            jobs.join(" "),
            why.unwrap_or_else(|error| error.to_string())
        )
    }

    pub(crate) fn hang_manager(&mut self) {
        self.manager.signal(Signal::STOP);
    }

    pub(crate) fn kill_manager(&mut self) {
        self.manager.kill();
    }

    /// Has the Manager run, whatever was done to it.
    pub(crate) fn mend_manager(&mut self) -> Result<()> {
        self.manager.mend(&self.binary)
    }

    pub(crate) fn hang_worker(&mut self, at: usize) {
        self.nodes[at].daemon.signal(Signal::STOP);
    }

    pub(crate) fn kill_worker(&mut self, at: usize) {
        self.nodes[at].daemon.kill();
    }

    pub(crate) fn hang_guard(&mut self, at: usize) {
        if let Some(guard) = self.nodes[at].guard() {
            send(guard, Signal::STOP);
            self.hung_guards.insert(guard);
        }
    }

    pub(crate) fn kill_guard(&self, at: usize) {
        if let Some(guard) = self.nodes[at].guard() {
            send(guard, Signal::KILL);
        }
    }

    /// Stops everything of a node at once: worker, guard, supervisors and jobs.
    pub(crate) fn sleep(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for process in node.processes() {
            send(process, Signal::STOP);
        }
        (node.slept, node.daemon.hung) = (true, node.daemon.child.is_some());
    }

    /// Kills everything of a node at once.
    pub(crate) fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for process in node.processes() {
            send(process, Signal::KILL);
        }
        node.daemon.kill();
        node.slept = false;
    }

    /// How many nodes the Manager hears.
    pub(crate) fn running_nodes(&self) -> Result<usize> {
        let nodes: Value = serde_json::from_str(&self.ask(&["get", "nodes", "--json"])?)?;
        let runs = |node: &&Value| node["state"] == "running";
        Ok(nodes.as_array().into_iter().flatten().filter(runs).count())
    }

    /// Where a job runs: the number of its node.
    pub(crate) fn node_of(&self, job: &str) -> Result<usize> {
        let jobs: Value = serde_json::from_str(&self.ask(&["get", "jobs", "--json"])?)?;
        let mut rows = jobs.as_array().into_iter().flatten();
        let row = rows
            .find(|row| row["jobId"] == job)
            .context("the job is known")?;
        let node = row["node"].as_str().context("it is on a node")?;
        let known = self.nodes.iter().position(|it| it.daemon.name == node);
        known.context("its node is one of ours")
    }

    /// How many jobs of a bundle run.
    pub(crate) fn running_jobs(&self, bundle: &str) -> Result<usize> {
        let jobs: Value = serde_json::from_str(&self.ask(&["get", "jobs", "--json"])?)?;
        let is = |row: &&Value| {
            let named = row["jobId"].as_str().unwrap_or_default();
            named.split('.').next() == Some(bundle) && row["instance"] == "running"
        };
        Ok(jobs.as_array().into_iter().flatten().filter(is).count())
    }

    /// The processes of a node's worker and of its guard.
    pub(crate) fn worker_processes(&self, at: usize) -> Vec<u32> {
        let node = &self.nodes[at];
        let worker = node.daemon.child.as_ref().map(Child::id);
        let guard = node.guard().and_then(|it| u32::try_from(it).ok());
        worker.into_iter().chain(guard).collect()
    }

    pub(crate) fn wake(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        if std::mem::take(&mut node.slept) {
            for process in node.processes() {
                send(process, Signal::CONT);
            }
        }
        node.daemon.mend(&self.binary)
    }

    /// Drops every packet of the stream between the Manager and a worker, both ways.
    pub(crate) fn set_cut(&mut self, at: usize, cut: bool) -> Result<()> {
        let node = &mut self.nodes[at];
        if node.cut == cut {
            return Ok(());
        }
        let port = node.port.to_string();
        let what = if cut { "--insert" } else { "--delete" };
        for side in ["--dport", "--sport"] {
            let rule = [
                "--wait",
                "5",
                what,
                "INPUT",
                "--protocol",
                "tcp",
                side,
                &port,
                "--jump",
                "DROP",
            ];
            command("iptables", &rule)?;
        }
        node.cut = cut;
        Ok(())
    }

    /// Takes every fault back.
    pub(crate) fn mend(&mut self) -> Result<()> {
        self.manager.mend(&self.binary)?;
        for at in 0..self.nodes.len() {
            self.set_cut(at, false)?;
            self.wake(at)?;
        }
        for guard in std::mem::take(&mut self.hung_guards) {
            if is_guard(guard) {
                send(guard, Signal::CONT);
            }
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.manager.kill();
        self._control.kill();
        for node in &mut self.nodes {
            node.daemon.kill();
            for process in node.processes() {
                send(process, Signal::KILL);
            }
        }
    }
}

// === impl Node ===

impl Node {
    /// Its guard's number, if it lives.
    fn guard(&self) -> Option<i32> {
        let text = fs::read_to_string(self.state.join("guard/lock")).ok()?;
        text.trim().parse().ok().filter(|guard| is_guard(*guard))
    }

    /// Everything of the node: worker, guard, supervisors, jobs.
    fn processes(&self) -> Vec<i32> {
        let own = std::process::id().to_string();
        let state = format!("{}", self.state.display());
        let mark = format!("GREENROOM_NODE_ID={}", self.daemon.name);
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        numbers
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| *name != own && name.bytes().all(|byte| byte.is_ascii_digit()))
            .filter(|name| {
                // A container knows nothing of the folder, but of its node.
                let holds = |file: &str| {
                    let bytes = fs::read(format!("/proc/{name}/{file}")).unwrap_or_default();
                    let text = String::from_utf8_lossy(&bytes);
                    text.contains(&state) || text.split('\0').any(|it| it == mark)
                };
                let at = fs::read_link(format!("/proc/{name}/cwd")).unwrap_or_default();
                holds("cmdline") || holds("environ") || at.starts_with(&self.state)
            })
            .filter_map(|name| name.parse().ok())
            .collect()
    }
}

fn is_guard(number: i32) -> bool {
    let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("lease-guard")
}

fn send(number: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(number) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}
