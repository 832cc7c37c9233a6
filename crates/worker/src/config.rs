//! What a worker is told at its start, and why it does not start.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use greenroom_auth::Secret;
use greenroom_tls::Trust;
use greenroom_types::Millis;
use greenroom_types::inventory::Capability;

use crate::journal::JournalError;
use crate::launch::LogLimits;

/// Which engine runs jobs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RuntimeChoice {
    /// Docker if an engine answers at the start, else processes.
    #[default]
    Auto,
    /// Docker at this host, as `unix:///var/run/docker.sock`; absent: `DOCKER_HOST` or the default.
    Docker(Option<String>),
    /// Processes.
    Process,
}

/// Which cloud's metadata service is asked for notices and kept from jobs (WORK-50, WORK-51).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cloud {
    /// The one that the machine's firmware names; EC2 where only a metadata address says so, else none.
    #[default]
    Auto,
    /// None.
    None,
    /// EC2.
    Ec2,
    /// Oracle's.
    Oci,
}

/// Everything a worker is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it keeps its journal, its credential, its instances and their logs.
    pub state_dir: PathBuf,
    /// Where the Manager dials it; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The address the Manager is told to dial; absent: that of `listen`, or of the first network
    /// card where it listens on all.
    pub advertise: Option<IpAddr>,
    /// Managers to call, as `https://HOST:PORT` or `http://HOST:PORT`, in turn (WORK-05).
    pub manager_urls: Vec<String>,
    /// Whom to take for the Manager where the url is https.
    pub trust: Option<Trust>,
    /// Calls a Manager beyond this machine in the clear, where token and node key can be read.
    pub allow_insecure: bool,
    /// The slot's token; absent: the one kept from the first registration.
    pub token: Option<Secret>,
    /// Which engine runs jobs.
    pub runtime: RuntimeChoice,
    /// vCPUs to offer instead of what the machine has.
    pub vcpus: Option<f64>,
    /// Bytes of memory to offer instead of what the machine has.
    pub memory_bytes: Option<u64>,
    /// Capabilities that the settings declare.
    pub capabilities: Vec<Capability>,
    /// Fraction of the vCPUs that may be used, in (0, 1].
    pub utilization_cap: f64,
    /// Zone, empty when unknown.
    pub az: String,
    /// Takes no new work.
    pub cordoned: bool,
    /// Paths below which jobs may mount host paths (WORK-17).
    pub host_paths: Vec<PathBuf>,
    /// How long a job may take over a step of a migration (SOCK-10).
    pub migration_step: Millis,
    /// Jobs are stopped when no Manager takes the credential for this long (LOCAL-13).
    pub orphan: Millis,
    /// How long an image is tried for while its registry cannot be reached (WORK-34).
    pub pull_tries: Millis,
    /// Images that are pulled ahead of jobs at one time (PREF-04), at least one.
    pub pull_parallel: usize,
    /// Called before and after each write to the journal. Tests end the program there.
    pub on_journal: Option<fn()>,
    /// How job logs are kept.
    pub logs: LogLimits,
    /// Which cloud this machine is in.
    pub cloud: Cloud,
    /// Where its metadata service answers, as `http://IPV4[:PORT]`; absent: at the cloud's address.
    pub metadata_url: Option<String>,
    /// Lets jobs reach the metadata service, which hands out the machine's own rights (WORK-51).
    pub allow_metadata: bool,
    /// Program and first arguments of supervisors; empty: this program with `supervise`.
    pub supervisor: Vec<OsString>,
    /// Program and first arguments of the lease guard; empty: this program with `lease-guard`.
    pub guard: Vec<OsString>,
    /// The machine's id; absent: `/etc/machine-id`, else one made for the state directory.
    pub machine_id: Option<String>,
}

/// How a worker is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Jobs run on; the next start takes them on (WORK-61).
    Keep,
    /// The Manager is told goodbye, then jobs are stopped (LOCAL-17).
    Leave,
}

/// Why a worker does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another worker runs on the state directory.
    #[error("another worker runs on {}; stop it, or choose another state directory", .0.display())]
    Locked(PathBuf),
    /// The port is taken, or the address is not this machine's.
    #[error("the worker cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// A Manager cannot be called as the settings say.
    #[error("the Manager at {url} cannot be called: {problem}")]
    Manager {
        /// Its url.
        url: String,
        /// Why.
        problem: &'static str,
    },
    /// The metadata service cannot be where the settings say.
    #[error("{0:?} is no address of a metadata service: give http://IPV4[:PORT]")]
    Metadata(String),
    /// Its own certificate cannot be made.
    #[error(transparent)]
    Tls(#[from] greenroom_tls::Error),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of the state directory cannot be used.
    #[error("the worker's state directory {} cannot be used: {source}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The engine asked for cannot be reached.
    #[error("Docker at {host} cannot be used: {why}")]
    Docker {
        /// Its host.
        host: String,
        /// What went wrong.
        why: String,
    },
    /// Neither a token nor a credential of an earlier registration.
    #[error("the worker has no token and {} has no credential: register a slot and pass its token", .0.display())]
    NoToken(PathBuf),
    /// The server ended.
    #[error("the worker's server ended: {0}")]
    Server(String),
}

// === impl Config ===

impl Config {
    /// A worker on loopback with a port of the kernel's choice.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            manager_urls: Vec::new(),
            trust: None,
            allow_insecure: false,
            token: None,
            runtime: RuntimeChoice::default(),
            vcpus: None,
            memory_bytes: None,
            capabilities: Vec::new(),
            utilization_cap: 1.0,
            az: String::new(),
            cordoned: false,
            host_paths: Vec::new(),
            migration_step: Millis(30_000),
            orphan: Millis(60_000),
            pull_tries: Millis(300_000),
            pull_parallel: 2,
            on_journal: None,
            logs: LogLimits::default(),
            cloud: Cloud::default(),
            metadata_url: None,
            allow_metadata: false,
            supervisor: Vec::new(),
            guard: Vec::new(),
            machine_id: None,
        }
    }
}

// === impl Error ===

impl Error {
    /// The exit code of a program that ends for this reason (API-01, WORK-07, WORK-66).
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Listen { .. } => 3,
            Self::Locked(_) => 4,
            Self::Journal(JournalError::Newer { .. }) => 6,
            Self::Manager { .. } | Self::NoToken(_) | Self::Metadata(_) => 2,
            Self::Journal(_)
            | Self::State { .. }
            | Self::Docker { .. }
            | Self::Server(_)
            | Self::Tls(_) => 1,
        }
    }
}
