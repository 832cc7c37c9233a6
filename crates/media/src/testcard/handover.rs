//! The test card on the job socket: it hands over at a number (MEDIA-03).
//!
//! A source that is told to end its output ends it after a packet, says which, and sends nothing more;
//! a target holds its output until it is told that number and begins with the next one, at once if that
//! was due already. So every number is sent once, whoever sends it. Payloads are JSON.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use greenroom_job::{Error, Event, Job, Speaker};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::State;
use super::sender::{Command, Progress};
use crate::rate::Rate;

/// The worker may be restarted in the middle of a migration and is back within this (SOCK-12).
const BACK_SOON: Duration = Duration::from_secs(5);
/// Pauses between two attempts to connect: while it may be back soon, and later.
const AGAIN_SOON: Duration = Duration::from_millis(50);
const AGAIN_LATER: Duration = Duration::from_secs(1);
/// Time between two pieces of news of how it is doing.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How it misbehaves in a handover, for tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mood {
    /// It does not want to.
    pub(super) refuses: bool,
    /// It takes so long over ending its output.
    pub(super) slow: Option<Duration>,
}

/// The job's end of the socket, connected.
#[derive(Debug)]
pub(super) struct Desk {
    job: Job,
    /// It is the target of the handover that it is in, and not the source.
    is_target: bool,
}

/// What a source and a target tell each other of the channel.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Signal {
    channel: String,
    rate: String,
}

/// From where on a target can send.
#[derive(Debug, Serialize, Deserialize)]
struct Earliest {
    from: u64,
}

/// After which number a source ended.
#[derive(Debug, Serialize, Deserialize)]
struct Last {
    last: u64,
}

/// The parts that the desk's thread works with.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) channel: String,
    pub(super) rate: Rate,
    pub(super) mood: Mood,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) progress: watch::Receiver<Progress>,
}

// === impl Desk ===

impl Desk {
    /// Connects and learns whether the output is to be held.
    pub(super) fn connect(path: &Path, service: &str) -> Result<Self, Error> {
        let began = Instant::now();
        loop {
            match Job::connect_to(path, service, &["handover", "lease"]) {
                Ok(job) => {
                    let is_target = job.welcome().migration_id.is_some();
                    return Ok(Self { job, is_target });
                }
                Err(Error::Io(_) | Error::Closed) if began.elapsed() < BACK_SOON => {
                    std::thread::sleep(AGAIN_SOON);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Until when a leased card may send.
    pub(super) const fn lease_until_ms(&self) -> Option<u64> {
        self.job.welcome().lease_until_ms
    }

    /// The output is held until the source has ended.
    pub(super) const fn is_target(&self) -> bool {
        self.is_target
    }

    /// Answers the worker until the process ends.
    pub(super) fn run(mut self, parts: Parts) {
        let speaker = self.job.speaker();
        if self.is_target {
            let now = parts.rate.number_at(super::sender::wall_ns());
            let from = Earliest { from: now + 1 };
            if let Err(error) = speaker.ready(&json(&from)) {
                tracing::warn!(%error, "the worker was not told that the target is ready");
            }
        }
        let (news, told) = (parts.progress.clone(), speaker.clone());
        let spawned = std::thread::Builder::new()
            .name("testcard-status".to_owned())
            .spawn(move || tell_status(&news, &told));
        if let Err(error) = spawned {
            tracing::warn!(%error, "the worker is not told how the test card is doing");
        }
        loop {
            let done = match self.job.wait() {
                Ok(event) => self.answer(event, &speaker, &parts),
                Err(Error::Closed) => self.come_back(&parts),
                Err(error) => {
                    tracing::warn!(%error, "the worker said something odd");
                    Ok(())
                }
            };
            if let Err(error) = done {
                tracing::warn!(%error, "the worker could not be answered");
            }
            if parts.progress.borrow().state == State::Stopped {
                return;
            }
        }
    }

    fn answer(&mut self, event: Event, speaker: &Speaker, parts: &Parts) -> Result<(), Error> {
        match event {
            Event::GetState(id) if parts.mood.refuses => speaker.refuse(id, "told to refuse"),
            Event::GetState(id) => {
                self.is_target = false;
                speaker.state(id, &json(&parts.signal()))
            }
            Event::SourceState(state) => match serde_json::from_slice::<Signal>(&state) {
                Ok(signal) if signal == parts.signal() => Ok(()),
                _ => speaker.failed("the source sends another signal"),
            },
            Event::StopOutput(id, at) => {
                self.is_target = false;
                if let Some(slow) = parts.mood.slow {
                    speaker.working(id)?;
                    std::thread::sleep(slow);
                }
                let from = serde_json::from_slice(&at).map_or(0, |Earliest { from }| from);
                match parts.ask(|reply| Command::EndOutput { from, reply }) {
                    Some(last) => speaker.stopped_output(id, &json(&Last { last })),
                    None => speaker.failed("the sender has ended"),
                }
            }
            Event::Begin(id, at) => {
                let Ok(Last { last }) = serde_json::from_slice(&at) else {
                    return speaker.failed("where the source ended cannot be read");
                };
                match parts.ask(|reply| Command::BeginOutput { last, reply }) {
                    Some(first) => speaker.applied(id, &json(&Earliest { from: first })),
                    None => speaker.failed("the sender has ended"),
                }
            }
            Event::Abort(id, _) if self.is_target => {
                parts.ask(|reply| Command::HoldOutput { reply });
                speaker.dropped(id)
            }
            Event::Abort(id, _) => {
                parts.ask(|reply| Command::ResumeOutput { reply });
                speaker.resumed(id)
            }
            Event::Config { id, .. } => {
                speaker.config_refused(id, "a test card takes no configuration")
            }
            Event::Fence(fence) => {
                // A sender that has ended shows nothing any more.
                let _ = parts.commands.send(Command::Fence(fence));
                Ok(())
            }
            Event::Lease(until_ms) => {
                let _ = parts.commands.send(Command::Lease(until_ms));
                Ok(())
            }
            // The signal that follows a `stopping` ends it.
            _ => Ok(()),
        }
    }

    /// The connection is gone: the worker is restarted, or is no more. What is sent goes on.
    fn come_back(&mut self, parts: &Parts) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            std::thread::sleep(if began.elapsed() < BACK_SOON {
                AGAIN_SOON
            } else {
                AGAIN_LATER
            });
            if parts.progress.borrow().state == State::Stopped {
                return Ok(());
            }
            match self.job.reconnect() {
                Err(Error::Io(_) | Error::Closed) => {}
                Ok(()) => {
                    let until_ms = self.job.welcome().lease_until_ms;
                    let _ = parts.commands.send(Command::Lease(until_ms));
                    return Ok(());
                }
                other => return other,
            }
        }
    }
}

// === impl Parts ===

impl Parts {
    fn signal(&self) -> Signal {
        Signal {
            channel: self.channel.clone(),
            rate: self.rate.to_string(),
        }
    }

    /// Has the sender do something and waits until it is done; none when the sender has ended.
    fn ask(&self, command: impl FnOnce(mpsc::Sender<u64>) -> Command) -> Option<u64> {
        let (reply, done) = mpsc::channel();
        self.commands.send(command(reply)).ok()?;
        done.recv().ok()
    }
}

fn tell_status(progress: &watch::Receiver<Progress>, speaker: &Speaker) {
    loop {
        std::thread::sleep(STATUS_EVERY);
        let Progress {
            state, last_number, ..
        } = progress.borrow().clone();
        if state == State::Stopped {
            return;
        }
        let text = match last_number {
            Some(number) => format!("{state}, number {number}"),
            None => state.to_string(),
        };
        // The one who listens notices that the worker is away, and comes back.
        let _ = speaker.status(&text, None);
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Numbers and texts: nothing in them that JSON cannot hold.
    serde_json::to_vec(value).unwrap_or_default()
}
