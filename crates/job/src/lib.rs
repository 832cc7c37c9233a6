//! The job's end of the job socket (SOCK-20): who am I, what is my configuration, am I about to be
//! stopped, and how am I doing.
//!
//! A job that asked for the socket (`job_socket` or `handover` in its definition) finds its path in
//! `GREENROOM_JOB_SOCKET`. [`Job::connect`] says hello; [`Job::wait`] waits for what the worker says,
//! on a thread of the job's choice; a [`Speaker`] says things from any other. Pings are answered
//! here. When the worker is restarted, `wait` ends with [`Error::Closed`]: connect again, at the
//! same path.
//!
//! ```no_run
//! use greenroom_job::{Event, Job};
//! # fn main() -> Result<(), greenroom_job::Error> {
//! let mut job = Job::connect("encode", &[])?;
//! let speaker = job.speaker();
//! speaker.status("warming up", Some(0.1))?;
//! loop {
//!     match job.wait()? {
//!         Event::Stopping { grace_ms, reason } => println!("{reason}: {grace_ms} ms left"),
//!         Event::Config { id, config } => speaker.config_applied(id)?,
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//!
//! The steps of a migration are not wrapped: they come as [`Event::Other`] and are answered with
//! [`Speaker::say`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Variable that holds the socket's path.
pub const SOCKET_VARIABLE: &str = "GREENROOM_JOB_SOCKET";
/// Longest line that is spoken, its end included, in bytes.
const LINE_MAX: u64 = 512 << 10;
/// The version of the protocol that is spoken.
const VERSION: u64 = 1;

/// Why the worker cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job was not given a socket.
    #[error(
        "{SOCKET_VARIABLE} is not set: the job has no socket, ask for one with `job_socket: true`"
    )]
    NoSocket,
    /// The socket cannot be used.
    #[error("the job socket cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The worker has closed the connection, or is being restarted.
    #[error("the worker has closed the connection")]
    Closed,
    /// The worker said no to the hello.
    #[error("the worker refuses the connection ({code}): {text}")]
    Refused {
        /// Stable code, as `too_many`.
        code: String,
        /// In words.
        text: String,
    },
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
    /// The migration in progress.
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
    /// The configuration was changed: answer with [`Speaker::config_applied`] or
    /// [`Speaker::config_refused`] within 10 s.
    Config {
        /// What the answer refers to.
        id: u64,
        /// What it is now.
        config: Config,
    },
    /// Another connection speaks for the job in migrations now; this one may go on listening.
    Replaced,
    /// Something that this job said was refused.
    Refused {
        /// The id of what it said, where that is known.
        re: Option<u64>,
        /// Stable code, as `unknown_type`.
        code: String,
        /// In words.
        text: String,
    },
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

/// A connection to the worker, for the one who listens.
#[derive(Debug)]
pub struct Job {
    reader: BufReader<UnixStream>,
    speaker: Speaker,
    welcome: Welcome,
}

/// Says things to the worker, from any thread.
#[derive(Clone, Debug)]
pub struct Speaker(Arc<Mutex<(UnixStream, u64)>>);

// === impl Job ===

impl Job {
    /// Connects to the socket in `GREENROOM_JOB_SOCKET` as this service. `wants` names what it takes
    /// part in: `handover` to speak for the job in migrations.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn connect(service: &str, wants: &[&str]) -> Result<Self, Error> {
        let path = std::env::var_os(SOCKET_VARIABLE).ok_or(Error::NoSocket)?;
        Self::connect_to(Path::new(&path), service, wants)
    }

    /// The same with the socket's path.
    pub fn connect_to(path: &Path, service: &str, wants: &[&str]) -> Result<Self, Error> {
        let stream = open(path)?;
        let mouth = (stream.try_clone()?, 0);
        let mut job = Self {
            reader: BufReader::new(stream),
            speaker: Speaker(Arc::new(Mutex::new(mouth))),
            welcome: Welcome::default(),
        };
        let hello = json!({ "versions": [VERSION], "service": service, "wants": wants });
        job.speaker.say("hello", hello)?;
        match job.wait()? {
            Event::Other { kind, fields, .. } if kind == "welcome" => {
                job.welcome = read_as(fields)?;
                Ok(job)
            }
            Event::Refused { code, text, .. } => Err(Error::Refused { code, text }),
            other => Err(Error::BadLine(format!("no welcome came, but {other:?}"))),
        }
    }

    /// Who the job is.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Something that other threads can speak with.
    pub fn speaker(&self) -> Speaker {
        self.speaker.clone()
    }

    /// Waits for what the worker says next.
    ///
    /// # Errors
    /// [`Error::Closed`] when the connection is over; then connect again.
    pub fn wait(&mut self) -> Result<Event, Error> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.reader).take(LINE_MAX);
            let read = bounded.read_until(b'\n', &mut line);
            match read {
                Ok(1..) => {}
                Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
                    return Err(error.into());
                }
                _ => return Err(Error::Closed),
            }
            let fields: Value =
                serde_json::from_slice(&line).map_err(|error| Error::BadLine(error.to_string()))?;
            let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
            let (kind, id) = (text("type"), fields["id"].as_u64().unwrap_or(0));
            return Ok(match kind.as_str() {
                "ping" => {
                    self.speaker.say("pong", json!({ "re": id }))?;
                    continue;
                }
                "stopping" => Event::Stopping {
                    grace_ms: fields["graceMs"].as_u64().unwrap_or(0),
                    reason: text("reason"),
                },
                "config" => Event::Config {
                    id,
                    config: read_as(fields)?,
                },
                "replaced" => Event::Replaced,
                "error" => Event::Refused {
                    re: fields["re"].as_u64(),
                    code: text("code"),
                    text: text("text"),
                },
                _ => Event::Other { kind, id, fields },
            });
        }
    }
}

// === impl Speaker ===

impl Speaker {
    /// Tells people how the job is doing; `progress` from 0 to 1.
    pub fn status(&self, text: &str, progress: Option<f64>) -> Result<(), Error> {
        let fields = json!({ "text": text, "progress": progress });
        self.say("status", fields).map(|_| ())
    }

    /// The configuration of the [`Event::Config`] with this id is in use.
    pub fn config_applied(&self, id: u64) -> Result<(), Error> {
        self.say("configApplied", json!({ "re": id })).map(|_| ())
    }

    /// The configuration of the [`Event::Config`] with this id is not taken on.
    pub fn config_refused(&self, id: u64, reason: &str) -> Result<(), Error> {
        let fields = json!({ "re": id, "reason": reason });
        self.say("configRefused", fields).map(|_| ())
    }

    /// Says a message of any type with these fields, and gives its id.
    ///
    /// # Errors
    /// When the worker cannot be reached.
    pub fn say(&self, kind: &str, mut fields: Value) -> Result<u64, Error> {
        let mut mouth = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, id) = &mut *mouth;
        *id += 1;
        (fields["type"], fields["id"]) = (kind.into(), (*id).into());
        stream.write_all(format!("{fields}\n").as_bytes())?;
        Ok(*id)
    }
}

/// Connects also where the path is longer than a socket's address may be, through its directory.
fn open(path: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return UnixStream::connect(path);
    };
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let dir = File::open(dir)?;
            let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            UnixStream::connect(short.join(name))
        }
        connected => connected,
    }
}

fn read_as<T: DeserializeOwned>(fields: Value) -> Result<T, Error> {
    serde_json::from_value(fields).map_err(|error| Error::BadLine(error.to_string()))
}
