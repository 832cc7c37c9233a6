//! `greenroom worker`: the agent on a node, and its hidden `supervise`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use greenroom_auth::Secret;
use greenroom_sdk::types::Millis;
use greenroom_sdk::types::inventory::Capability;
use greenroom_tls::{Pin, Trust};
use greenroom_worker::{Config, Ending, Error, RuntimeChoice, Worker as Agent};

use super::media::chain;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::signals::{Hangup, Signals};

/// Run a worker, or read what its jobs wrote.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Worker {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print what a job's services wrote on this node, without a Manager.
    Logs {
        /// The job, by id.
        job: String,
        /// Folder of the worker's state.
        #[arg(long, default_value = "greenroom-data/worker", value_name = "DIR")]
        state_dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    /// Docker if an engine answers, else processes.
    Auto,
    /// Docker.
    Docker,
    /// Plain processes.
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// An owned server in a registered slot.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cloud {
    /// What the machine's firmware says.
    Auto,
    /// None, whatever the firmware says.
    None,
    /// Amazon EC2.
    Ec2,
    /// Oracle Cloud Infrastructure.
    Oci,
}

#[derive(Debug, Args)]
struct Run {
    /// What kind of node this is.
    #[arg(long, value_enum, default_value = "local")]
    mode: Mode,
    /// Managers to call, in turn.
    #[arg(
        long,
        env = crate::env::MANAGER,
        default_value = "http://127.0.0.1:6789",
        value_delimiter = ',',
        value_name = "URL"
    )]
    manager_url: Vec<String>,
    /// File of the authorities that sign the Manager's certificate, in PEM.
    #[arg(long, env = crate::env::CA, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Pin of the Manager's key, sha256:HEX, instead of an authority.
    #[arg(long = "pin", env = crate::env::PIN, value_delimiter = ',', value_name = "PIN")]
    pins: Vec<String>,
    /// File with the slot's token; needed at the first start only.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Folder of its journal, credential, instances and logs.
    #[arg(long, default_value = "greenroom-data/worker", value_name = "DIR")]
    state_dir: PathBuf,
    /// Where the Manager dials it.
    #[arg(long, default_value = "127.0.0.1:6791")]
    listen: SocketAddr,
    /// Address that the Manager is told to dial.
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
    /// Call a Manager beyond this machine in the clear, where others can read the node's key.
    #[arg(long)]
    allow_insecure: bool,
    /// What runs jobs.
    #[arg(long, value_enum, default_value = "auto")]
    runtime: Runtime,
    /// vCPUs to offer instead of what the machine has.
    #[arg(long)]
    vcpus: Option<f64>,
    /// Memory to offer instead of what the machine has, in MiB.
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// A capability to offer, NAME or NAME=COUNT; may be repeated.
    #[arg(long = "capability", value_name = "NAME[=COUNT]", value_parser = capability)]
    capabilities: Vec<Capability>,
    /// Fraction of the vCPUs that may be used.
    #[arg(long, default_value_t = 1.0)]
    utilization_cap: f64,
    /// Availability zone.
    #[arg(long, default_value = "")]
    az: String,
    /// Path below which jobs may mount host paths; may be repeated.
    #[arg(long = "host-path", value_name = "PATH")]
    host_paths: Vec<PathBuf>,
    /// How long a job may take over a step of a handover, in milliseconds.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    migration_step_ms: u64,
    /// How many images are pulled ahead of jobs at a time.
    #[arg(long, default_value_t = 2, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=16))]
    pull_parallel: u8,
    /// Jobs are stopped when no Manager takes this worker's token for this long, in milliseconds.
    #[arg(long, default_value_t = 60_000, value_name = "MS")]
    orphan_ms: u64,
    /// How long an image is tried for while its registry cannot be reached, in milliseconds.
    #[arg(long, default_value_t = 300_000, value_name = "MS")]
    pull_tries_ms: u64,
    /// Which cloud this machine is in: whose notices are watched for, and whose metadata service is
    /// kept from jobs.
    #[arg(long, value_enum, default_value = "auto")]
    cloud: Cloud,
    /// Where the cloud's metadata service answers, if not at its usual address.
    #[arg(long, value_name = "URL")]
    metadata_url: Option<String>,
    /// Let jobs reach the metadata service, which hands out the machine's own rights.
    #[arg(long)]
    allow_metadata: bool,
    /// At SIGTERM stop the jobs and say goodbye, instead of leaving them running.
    #[arg(long)]
    leave: bool,
    /// Print one JSON line when the Manager can dial.
    #[arg(long)]
    json: bool,
}

fn capability(text: &str) -> Result<Capability, String> {
    let (name, count) = text.split_once('=').unwrap_or((text, "1"));
    let count = count
        .parse()
        .map_err(|_| format!("{count:?} is no count"))?;
    Ok(Capability {
        name: name.to_owned(),
        count,
        ..Capability::default()
    })
}

// === impl Worker ===

impl Worker {
    pub(crate) async fn run(self) -> Outcome {
        match self.action {
            Some(Action::Logs {
                job,
                state_dir,
                json,
            }) => print_logs(&job, &state_dir, Output { json }),
            None => self.run.run().await,
        }
    }
}

fn print_logs(job: &str, state_dir: &std::path::Path, output: Output) -> Outcome {
    let unread = |error: std::io::Error| {
        Failure::failed(format!(
            "cannot read the logs in {}: {error}",
            state_dir.display()
        ))
    };
    let found = greenroom_worker::logs::find(state_dir, &job.into()).map_err(unread)?;
    if found.is_empty() {
        return Err(Failure::failed(format!(
            "{} keeps no lines of {job}",
            state_dir.display()
        )));
    }
    for service in found {
        let text = std::fs::read(&service.path).map_err(unread)?;
        for line in String::from_utf8_lossy(&text).lines() {
            let told = serde_json::json!({
                "startId": service.start_id, "service": service.service, "text": line,
            });
            output.either(&told, || format!("{}: {line}", service.service))?;
        }
    }
    Ok(())
}

// === impl Run ===

impl Run {
    async fn run(self) -> Outcome {
        let Mode::Local = self.mode;
        let token = match &self.token_file {
            Some(file) => Some(read_token(file)?),
            None => None,
        };
        let mut config = Config::new(self.state_dir);
        config.listen = self.listen;
        config.advertise = self.advertise;
        config.manager_urls = self.manager_url;
        config.allow_insecure = self.allow_insecure;
        config.trust = trust(self.ca.as_deref(), &self.pins)?;
        config.token = token;
        config.runtime = match self.runtime {
            Runtime::Auto => RuntimeChoice::Auto,
            Runtime::Docker => RuntimeChoice::Docker(None),
            Runtime::Process => RuntimeChoice::Process,
        };
        config.vcpus = self.vcpus;
        config.memory_bytes = self.memory_mib.map(|mib| mib * 1024 * 1024);
        config.capabilities = self.capabilities;
        config.utilization_cap = self.utilization_cap;
        config.az = self.az;
        config.host_paths = self.host_paths;
        config.migration_step = Millis(self.migration_step_ms);
        config.pull_parallel = self.pull_parallel.into();
        config.orphan = Millis(self.orphan_ms);
        config.pull_tries = Millis(self.pull_tries_ms);
        config.cloud = match self.cloud {
            Cloud::Auto => greenroom_worker::Cloud::Auto,
            Cloud::None => greenroom_worker::Cloud::None,
            Cloud::Ec2 => greenroom_worker::Cloud::Ec2,
            Cloud::Oci => greenroom_worker::Cloud::Oci,
        };
        config.metadata_url = self.metadata_url;
        config.allow_metadata = self.allow_metadata;
        // Caught before anything is taken on: what is told meanwhile is done afterwards.
        let mut signals = Signals::install()?;
        let mut hangup = Hangup::install()?;
        let worker = Agent::build(config)
            .await
            .map_err(|error| refusal(&error))?;
        let (address, runtime) = (worker.address().to_string(), worker.runtime().to_owned());
        let told =
            serde_json::json!({"event": "listening", "address": address, "runtime": runtime});
        Output { json: self.json }.either(&told, || {
            format!("worker at {address} runs jobs with {runtime}")
        })?;
        let ending = if self.leave {
            Ending::Leave
        } else {
            Ending::Keep
        };
        worker
            .run(async move {
                tokio::select! {
                    () = signals.recv() => ending,
                    // Another worker is about to take its place.
                    () = hangup.recv() => Ending::Keep,
                }
            })
            .await
            .map_err(|error| refusal(&error))
    }
}

/// Whom to take for the Manager.
fn trust(ca: Option<&std::path::Path>, pins: &[String]) -> Result<Option<Trust>, Failure> {
    if !pins.is_empty() {
        let pins: Result<Vec<Pin>, _> = pins.iter().map(|pin| pin.parse()).collect();
        let pins = pins.map_err(|why| Failure::bad_input(format!("--pin: {why}")))?;
        return Ok(Some(Trust::Pins(pins)));
    }
    let Some(ca) = ca else { return Ok(None) };
    let found = greenroom_tls::authorities(ca);
    let found = found.map_err(|error| Failure::bad_input(format!("--ca: {error}")))?;
    Ok(Some(Trust::Authorities(found)))
}

fn read_token(file: &std::path::Path) -> Result<Secret, Failure> {
    let text = greenroom_tls::read_text_file(file)
        .map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", file.display())))?;
    let token: greenroom_auth::SlotToken = text
        .trim()
        .parse()
        .map_err(|why| Failure::bad_input(format!("{}: {why}", file.display())))?;
    Ok(Secret::new(token.expose()))
}

fn refusal(error: &Error) -> Failure {
    let exit = match error {
        Error::Locked(_) => Exit::Locked,
        Error::Listen { .. } => Exit::AddressTaken,
        Error::Manager { .. } | Error::NoToken(_) | Error::Metadata(_) => Exit::BadInput,
        Error::Docker { why, .. } if why.contains("may not open") => Exit::RuntimeDenied,
        Error::Journal(greenroom_worker::JournalError::Newer { .. }) => Exit::TooNew,
        Error::Journal(_) | Error::State { .. } => Exit::DiskFailed,
        _ => Exit::Failed,
    };
    let failure = Failure::new(exit, chain(error));
    match error {
        Error::NoToken(_) => failure.hint(
            "`greenroom node register NAME --out FILE` makes a slot; pass --token-file FILE here",
        ),
        _ => failure,
    }
}
