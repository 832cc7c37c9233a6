//! What passes over the job socket, as a job sees it.

use std::collections::BTreeMap;
use std::io;

use serde::Deserialize;
use serde_json::Value;

use crate::SOCKET_VARIABLE;

/// Why the worker cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job was not given a socket.
    #[error("{SOCKET_VARIABLE} is not set: ask for the socket with `job_socket: true`")]
    NoSocket,
    /// The socket cannot be used.
    #[error("the job socket cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The worker has closed the connection, or is being restarted.
    #[error("the worker has closed the connection")]
    Closed,
    /// The worker said no to the hello: a stable code, as `too_many`, and words.
    #[error("the worker refuses the connection ({0}): {1}")]
    Refused(String, String),
    /// The worker said something that cannot be read.
    #[error("the worker said something that cannot be read: {0}")]
    BadLine(String),
}

/// Who the job is, as its worker said.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Welcome {
    /// The job.
    pub job_id: String,
    /// The instance's own role, as `primary@3f9c1e2a` for the target of a migration.
    pub role: String,
    /// The role that the job is to play.
    pub runtime_role: String,
    /// Which run of the job this is.
    pub start_id: String,
    /// Fencing number, for a job that runs under a lease.
    pub fence: Option<u64>,
    /// Until when a leased job may output, as in [`Event::Lease`]; none where there is no end.
    pub lease_until_ms: Option<u64>,
    /// The handover in progress; in the first welcome: the one that this job is the target of.
    pub migration_id: Option<String>,
    /// It was made and is not started yet.
    pub prepared: bool,
    /// What it is configured with.
    pub config: Config,
}

/// What the job is configured with; the worker does not look inside.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Configuration of this service.
    pub configuration: String,
    /// Configuration of every service, by its name.
    pub services: BTreeMap<String, String>,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The job is about to be stopped; the signal follows.
    Stopping {
        /// Time until it is killed, in milliseconds.
        grace_ms: u64,
        /// `USER`, `NODE`, `MIGRATION`, `LEASE` or `BUNDLE`.
        reason: String,
    },
    /// The configuration was changed: answer with [`crate::Speaker::config_applied`] or
    /// [`crate::Speaker::config_refused`] within 10 s.
    Config {
        /// What the answer refers to.
        id: u64,
        /// What it is now.
        config: Config,
    },
    /// Source: what must the target know? Answer this id by [`crate::Speaker::state`] or
    /// [`crate::Speaker::refuse`]. The output goes on.
    GetState(u64),
    /// Source: end the output at this point of the target's or later; answer this id by
    /// [`crate::Speaker::stopped_output`] once it has ended.
    StopOutput(u64, Vec<u8>),
    /// Target: begin the output where the source says that it ended; answer this id by
    /// [`crate::Speaker::applied`] once it has begun.
    Begin(u64, Vec<u8>),
    /// The migration is over, for this reason: a source outputs again and answers this id by
    /// [`crate::Speaker::resumed`]; a target ends its output, [`crate::Speaker::dropped`].
    Abort(u64, String),
    /// Target: what the source answered to `GetState`.
    SourceState(Vec<u8>),
    /// The fencing number, which may have grown.
    Fence(u64),
    /// Until when the job may output under its lease, in milliseconds of `CLOCK_BOOTTIME`; none: without
    /// end, in a pause of leases. Told to those who want `lease`, with every answer to a refresh. Look
    /// at the clock before each output: a machine that was asleep wakes with all that is due.
    Lease(Option<u64>),
    /// The lease of the job is not answered: it is killed when this time is over, unless an answer
    /// comes.
    LeaseWarning {
        /// Time left, in milliseconds.
        remaining_ms: u64,
    },
    /// Another connection speaks for the job in migrations now; this one may go on listening.
    Replaced,
    /// Something that this job said was refused: its id where that is known, a stable code, as
    /// `wrong_step`, and words.
    Refused(Option<u64>, String, String),
    /// A message of another type, as it came.
    Other {
        /// Its type.
        kind: String,
        /// Its id.
        id: u64,
        /// The whole message.
        fields: Value,
    },
}
