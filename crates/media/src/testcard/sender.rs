//! The thread that sends: asks the pacer, encodes, sends to every target, sleeps to the next
//! instant.
//!
//! A thread of its own and not a task, because a task is woken on a millisecond grid and behind
//! whatever else its runtime does; the interval between packets is what this program is for.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{oneshot, watch};

use super::State;
use super::fault::{self, End, Fault};
use super::pacer::{Pacer, Step};
use crate::packet::TestPacket;
use crate::rate::Rate;

/// Longest sleep: bounds how late a fault begins and a wall clock that was set is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How far the sender is; what the status page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: State,
    pub(super) last_number: Option<u64>,
    pub(super) last_wall_us: Option<u64>,
    pub(super) packets: u64,
    pub(super) skipped: u64,
    pub(super) send_errors: u64,
    pub(super) last_error: Option<String>,
    pub(super) fence: Option<u64>,
}

/// What the sender is told.
#[derive(Debug)]
pub(super) enum Command {
    /// End after the packet in hand.
    Stop,
    /// End the output after a packet, not before the one in front of `from`; the answer is its number.
    EndOutput { from: u64, reply: mpsc::Sender<u64> },
    /// Begin the output after this number; the answer is the first one.
    BeginOutput { last: u64, reply: mpsc::Sender<u64> },
    /// Send nothing.
    HoldOutput { reply: mpsc::Sender<u64> },
    /// Send again, at the present number.
    ResumeOutput { reply: mpsc::Sender<u64> },
    /// Show this fencing number from now on, unless a greater one is shown.
    Fence(u64),
    /// Send until then at most; none: without end.
    Lease(Option<u64>),
}

/// Everything the thread needs; it owns it.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) rate: Rate,
    pub(super) size: usize,
    pub(super) ssrc: u32,
    pub(super) channel: String,
    pub(super) role: String,
    pub(super) fence: Option<u64>,
    pub(super) targets: Vec<(SocketAddr, UdpSocket)>,
    pub(super) faults: Vec<Fault>,
    pub(super) catch_up: Duration,
    pub(super) progress: watch::Sender<Progress>,
    /// The output is held until a command begins it.
    pub(super) holds: bool,
    /// Under a lease: nothing is sent after it, on the clock since boot that counts sleep too.
    pub(super) until_ms: Option<u64>,
    /// What it is told. That nobody can tell it anything any more ends it after the packet in hand.
    pub(super) commands: Receiver<Command>,
    pub(super) ended: oneshot::Sender<()>,
}

// === impl Progress ===

impl Progress {
    pub(super) fn new(fence: Option<u64>) -> Self {
        Self {
            state: State::Sending,
            last_number: None,
            last_wall_us: None,
            packets: 0,
            skipped: 0,
            send_errors: 0,
            last_error: None,
            fence,
        }
    }
}

// === impl Sender ===

impl Sender {
    /// Runs until stopped.
    pub(super) fn run(mut self) {
        let started = Instant::now();
        let mut pacer = Pacer::new(self.rate).catching_up(self.catch_up);
        let mut datagram = Vec::new();
        // A source that ends its output: not before this number, and who waits for the last one.
        let mut ending: Option<(u64, mpsc::Sender<u64>)> = None;
        // A target that begins: who waits for its first number.
        let mut beginning: Option<mpsc::Sender<u64>> = None;
        loop {
            let active = fault::active(&self.faults, started.elapsed());
            match active.end {
                Some(End::Crash) => std::process::abort(),
                Some(End::Hang) => self.hang(),
                None => {}
            }
            let wall_ns = wall_ns();
            let mut pause = None;
            if self.holds {
                self.set_state(State::Holding);
                pause = Some(SLEEP_MAX);
            } else {
                match pacer.next(wall_ns, active.delay) {
                    Step::Wait { until_ns } => {
                        let wait = Duration::from_nanos(until_ns.saturating_sub(wall_ns));
                        pause = Some(wait.min(SLEEP_MAX));
                    }
                    Step::Send { .. } if active.black => self.set_state(State::Black),
                    Step::Send { number, skipped } => {
                        let late = !active.delay.is_zero();
                        if !self.send(number, skipped, &mut datagram) {
                            self.set_state(State::Lapsed);
                            continue;
                        }
                        self.set_state(if late { State::Late } else { State::Sending });
                        if let Some(waits) = beginning.take() {
                            // Whoever asked may have gone with its connection.
                            let _ = waits.send(number);
                        }
                    }
                    Step::ClockWentBack { from, to } => {
                        tracing::warn!(from, to, "the wall clock went back; numbers follow it");
                    }
                }
                let last = pacer.last(wall_ns);
                if let Some((_, waits)) = ending.take_if(|(until, _)| last >= *until) {
                    self.holds = true;
                    let _ = waits.send(last);
                }
            }
            let command = match pause {
                Some(pause) => self.commands.recv_timeout(pause),
                // A sender that never finds time to wait must hear as well.
                None => self.commands.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
            };
            match command {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Command::EndOutput { reply, .. }) if self.holds => {
                    let _ = reply.send(pacer.last(wall_ns));
                }
                Ok(Command::EndOutput { from, reply }) => {
                    ending = Some((from.saturating_sub(1), reply));
                }
                Ok(Command::BeginOutput { last, reply }) => {
                    pacer.begin_after(last, wall_ns);
                    self.holds = false;
                    beginning = Some(reply);
                }
                Ok(Command::HoldOutput { reply }) => {
                    (self.holds, beginning) = (true, None);
                    let _ = reply.send(pacer.last(wall_ns));
                }
                Ok(Command::Fence(fence)) => {
                    self.fence = self.fence.max(Some(fence));
                    let fence = self.fence;
                    self.progress.send_modify(|progress| progress.fence = fence);
                }
                Ok(Command::Lease(until_ms)) => self.until_ms = until_ms,
                Ok(Command::ResumeOutput { reply }) => {
                    (self.holds, ending) = (false, None);
                    let _ = reply.send(pacer.last(wall_ns));
                }
            }
        }
        self.set_state(State::Stopped);
        // Nobody waits for it if the handle was dropped.
        let _ = self.ended.send(());
    }

    fn has_lapsed(&self) -> bool {
        self.until_ms.is_some_and(|until_ms| boot_ms() >= until_ms)
    }

    /// False when its lease is over: nothing is sent. A process that is stopped right after that look
    /// sends this one packet when it is continued; an output that refuses by number refuses it.
    fn send(&self, number: u64, skipped: u64, datagram: &mut Vec<u8>) -> bool {
        let wall_us = wall_ns() / 1_000;
        let packet = TestPacket {
            ssrc: self.ssrc,
            number,
            rtp_time: self.rate.rtp_time(number),
            wall_us,
            channel: &self.channel,
            role: &self.role,
            fence: self.fence,
        };
        let mut errors = 0;
        let mut last_error = None;
        let encoded = packet.encode(self.size, datagram);
        if self.has_lapsed() {
            return false;
        }
        if let Err(error) = encoded {
            (errors, last_error) = (1, Some(error.to_string()));
        } else {
            for (target, socket) in &self.targets {
                if let Err(error) = socket.send_to(datagram, target) {
                    errors += 1;
                    last_error = Some(format!("cannot send to {target}: {error}"));
                }
            }
        }
        self.progress.send_modify(|progress| {
            progress.last_number = Some(number);
            progress.last_wall_us = Some(wall_us);
            progress.packets += 1;
            progress.skipped += skipped;
            progress.send_errors += errors;
            if last_error.is_some() && last_error != progress.last_error {
                tracing::warn!(error = last_error, "packet not sent");
                progress.last_error = last_error;
            }
        });
        true
    }

    fn set_state(&self, state: State) {
        self.progress.send_if_modified(|progress| {
            let changed = progress.state != state;
            progress.state = state;
            changed
        });
    }

    fn hang(&self) -> ! {
        self.set_state(State::Hung);
        loop {
            std::thread::park();
        }
    }
}

/// The clock on which leases run.
fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |value| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

pub(super) fn wall_ns() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
