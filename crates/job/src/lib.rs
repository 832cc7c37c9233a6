//! The job's end of the job socket (SOCK-20): who am I, what is my configuration, am I about to be
//! stopped, how am I doing, and how do I hand over to another node.
//!
//! A job that asked for the socket (`job_socket` or `handover` in its definition) finds its path in
//! `GREENROOM_JOB_SOCKET`. [`Job::connect`] says hello; [`Job::wait`] waits for what the worker says;
//! a [`Speaker`] says things from any thread. Pings are answered here, and so is a step that the
//! worker repeats after it was answered. When the worker is restarted, `wait` ends with
//! [`Error::Closed`]: call [`Job::reconnect`] until it succeeds, for at most 5 s in a migration.
//!
//! ```no_run
//! use greenroom_job::{Event, Job};
//! # fn main() -> Result<(), greenroom_job::Error> {
//! let mut job = Job::connect("encode", &["handover"])?;
//! let speaker = job.speaker();
//! if job.welcome().migration_id.is_some() {
//!     speaker.ready(b"from frame 9000")?; // the target: no output before Begin
//! }
//! loop {
//!     match job.wait()? {
//!         Event::GetState(id) => speaker.state(id, b"what the target should know")?,
//!         Event::StopOutput(id, at) => speaker.stopped_output(id, b"last frame 9017")?,
//!         Event::Begin(id, at) => speaker.applied(id, b"")?,
//!         Event::Abort(id, _) => speaker.resumed(id)?, // the target says dropped
//!         Event::Stopping { grace_ms, reason } => println!("{reason}: {grace_ms} ms left"),
//!         Event::Config { id, config } => speaker.config_applied(id)?,
//!         _ => {}
//!     }
//! }
//! # }
//! ```

mod message;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use crate::message::{Config, Error, Event, Welcome};

/// Variable that holds the socket's path.
pub const SOCKET_VARIABLE: &str = "GREENROOM_JOB_SOCKET";
/// Longest line that is spoken, its end included, in bytes.
const LINE_MAX: u64 = 512 << 10;
/// The version of the protocol that is spoken.
const VERSION: u64 = 1;

/// A connection to the worker, for the one who listens.
#[derive(Debug)]
pub struct Job {
    reader: BufReader<UnixStream>,
    speaker: Speaker,
    welcome: Welcome,
    path: PathBuf,
    hello: Value,
}

/// Says things to the worker, from any thread.
#[derive(Clone, Debug)]
pub struct Speaker(Arc<Mutex<Mouth>>);

#[derive(Debug)]
struct Mouth {
    stream: UnixStream,
    last_id: u64,
    migration_id: String,
    /// Types of the steps that were asked, by their ids.
    asked: BTreeMap<u64, String>,
    /// How each step of the migration was answered, by its type.
    answered: BTreeMap<String, (String, Value)>,
}

// === impl Job ===

impl Job {
    /// Connects to the socket in `GREENROOM_JOB_SOCKET` as this service. `wants` names what it takes
    /// part in: `handover` to speak for the job in migrations, `lease` to hear until when it may output.
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
        let mouth = Mouth {
            stream: stream.try_clone()?,
            last_id: 0,
            migration_id: String::new(),
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
        };
        let mut job = Self {
            reader: BufReader::new(stream),
            speaker: Speaker(Arc::new(Mutex::new(mouth))),
            welcome: Welcome::default(),
            path: path.to_owned(),
            hello: json!({ "versions": [VERSION], "service": service, "wants": wants }),
        };
        job.greet().map(|()| job)
    }

    /// Connects again after [`Error::Closed`], and says in which migration the job is. Speakers that
    /// were given out speak on the new connection.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let stream = open(&self.path)?;
        let mut mouth = self.speaker.mouth();
        (mouth.stream, mouth.last_id) = (stream.try_clone()?, 0);
        mouth.asked.clear();
        if !mouth.migration_id.is_empty() {
            self.hello["migrationId"] = mouth.migration_id.as_str().into();
        }
        drop(mouth);
        self.reader = BufReader::new(stream);
        self.greet()
    }

    fn greet(&mut self) -> Result<(), Error> {
        self.speaker.say("hello", self.hello.clone())?;
        match self.wait()? {
            Event::Other { kind, fields, .. } if kind == "welcome" => {
                self.welcome = read_as(fields)?;
                let known = self.welcome.migration_id.clone().unwrap_or_default();
                self.speaker.mouth().enter(&known);
                Ok(())
            }
            Event::Refused(_, code, text) => Err(Error::Refused(code, text)),
            other => Err(Error::BadLine(format!("no welcome came, but {other:?}"))),
        }
    }

    /// Who the job is, as the last connection was told.
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
            if !matches!(bounded.read_until(b'\n', &mut line), Ok(1..)) {
                return Err(Error::Closed);
            }
            let fields: Value = serde_json::from_slice(&line).map_err(bad_line)?;
            let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
            let bytes = |name: &str| STANDARD.decode(text(name)).map_err(bad_line);
            let (kind, id) = (text("type"), fields["id"].as_u64().unwrap_or(0));
            let is_step = ["getState", "stopOutput", "begin", "abort"].contains(&kind.as_str());
            let migration_id = text("migrationId");
            if is_step && self.speaker.mouth().repeats(id, &kind, &migration_id)? {
                continue;
            }
            let (reason, code, words) = (text("reason"), text("code"), text("text"));
            let number = |name: &str| fields[name].as_u64();
            let of = |name: &str| number(name).unwrap_or(0);
            let (re, grace_ms, remaining_ms) = (number("re"), of("graceMs"), of("remainingMs"));
            return Ok(match kind.as_str() {
                "ping" => {
                    self.speaker.say("pong", json!({ "re": id }))?;
                    continue;
                }
                "stopping" => Event::Stopping { grace_ms, reason },
                "config" => Event::Config {
                    id,
                    config: read_as(fields)?,
                },
                "getState" => Event::GetState(id),
                "stopOutput" => Event::StopOutput(id, bytes("at")?),
                "begin" => Event::Begin(id, bytes("at")?),
                "abort" => Event::Abort(id, reason),
                "sourceState" => Event::SourceState(bytes("payload")?),
                "fence" => Event::Fence(of("value")),
                "lease" => Event::Lease(number("untilMs")),
                "leaseWarning" => Event::LeaseWarning { remaining_ms },
                "replaced" => Event::Replaced,
                "error" => Event::Refused(re, code, words),
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
        self.answer(id, "configApplied", json!({}))
    }

    /// The configuration of the [`Event::Config`] with this id is not taken on.
    pub fn config_refused(&self, id: u64, reason: &str) -> Result<(), Error> {
        self.answer(id, "configRefused", json!({ "reason": reason }))
    }

    /// Source: what the target must know.
    pub fn state(&self, id: u64, payload: &[u8]) -> Result<(), Error> {
        self.answer(id, "state", payload_of(payload))
    }

    /// Source: it cannot hand over now. Nothing happens to it.
    pub fn refuse(&self, id: u64, reason: &str) -> Result<(), Error> {
        self.answer(id, "refuse", json!({ "reason": reason }))
    }

    /// Source: the output has ended; the payload says where.
    pub fn stopped_output(&self, id: u64, payload: &[u8]) -> Result<(), Error> {
        self.answer(id, "stoppedOutput", payload_of(payload))
    }

    /// Target: the output has begun.
    pub fn applied(&self, id: u64, payload: &[u8]) -> Result<(), Error> {
        self.answer(id, "applied", payload_of(payload))
    }

    /// Source, after an abort: it outputs again.
    pub fn resumed(&self, id: u64) -> Result<(), Error> {
        self.answer(id, "resumed", json!({}))
    }

    /// Target, after an abort: it outputs nothing and has forgotten the migration.
    pub fn dropped(&self, id: u64) -> Result<(), Error> {
        self.answer(id, "dropped", json!({}))
    }

    /// The step is under way and needs more time: its deadline is extended once.
    pub fn working(&self, id: u64) -> Result<(), Error> {
        self.say("working", json!({ "re": id })).map(|_| ())
    }

    /// Target: it can take over; the payload says from where on.
    pub fn ready(&self, payload: &[u8]) -> Result<(), Error> {
        let mut fields = payload_of(payload);
        fields["migrationId"] = self.mouth().migration_id.as_str().into();
        self.say("ready", fields).map(|_| ())
    }

    /// The job gives the migration up.
    pub fn failed(&self, reason: &str) -> Result<(), Error> {
        let migration_id = self.mouth().migration_id.clone();
        let fields = json!({ "migrationId": migration_id, "reason": reason });
        self.say("failed", fields).map(|_| ())
    }

    /// Answers the message with this id, and again should the worker repeat it.
    pub fn answer(&self, id: u64, kind: &str, mut fields: Value) -> Result<(), Error> {
        let mut mouth = self.mouth();
        if let Some(step) = mouth.asked.remove(&id) {
            let said = (kind.to_owned(), fields.clone());
            mouth.answered.insert(step, said);
        }
        fields["re"] = id.into();
        mouth.say(kind, fields).map(|_| ())
    }

    /// Says a message of any type with these fields, and gives its id.
    ///
    /// # Errors
    /// When the worker cannot be reached.
    pub fn say(&self, kind: &str, fields: Value) -> Result<u64, Error> {
        self.mouth().say(kind, fields)
    }

    fn mouth(&self) -> MutexGuard<'_, Mouth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Mouth ===

impl Mouth {
    fn say(&mut self, kind: &str, mut fields: Value) -> Result<u64, Error> {
        self.last_id += 1;
        (fields["type"], fields["id"]) = (kind.into(), self.last_id.into());
        self.stream.write_all(format!("{fields}\n").as_bytes())?;
        Ok(self.last_id)
    }

    /// What was answered in another migration is no answer in this one.
    fn enter(&mut self, migration_id: &str) {
        if self.migration_id != migration_id && !migration_id.is_empty() {
            migration_id.clone_into(&mut self.migration_id);
            self.answered.clear();
        }
    }

    /// Answers a step that was answered before; true when it was.
    fn repeats(&mut self, id: u64, kind: &str, migration_id: &str) -> Result<bool, Error> {
        self.enter(migration_id);
        let Some((answer, mut fields)) = self.answered.get(kind).cloned() else {
            self.asked.insert(id, kind.to_owned());
            return Ok(false);
        };
        fields["re"] = id.into();
        self.say(&answer, fields).map(|_| true)
    }
}

fn payload_of(payload: &[u8]) -> Value {
    json!({ "payload": STANDARD.encode(payload) })
}

/// Connects also where the path is longer than a socket's address may be, through its directory.
fn open(path: &Path) -> io::Result<UnixStream> {
    let connected = UnixStream::connect(path);
    let is_long = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) if connected.as_ref().is_err_and(is_long) => {
            let dir = File::open(dir)?;
            let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            UnixStream::connect(short.join(name))
        }
        _ => connected,
    }
}

fn read_as<T: DeserializeOwned>(fields: Value) -> Result<T, Error> {
    serde_json::from_value(fields).map_err(bad_line)
}

fn bad_line(error: impl std::fmt::Display) -> Error {
    Error::BadLine(error.to_string())
}
