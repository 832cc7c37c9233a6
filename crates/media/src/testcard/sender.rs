//! The thread that sends: asks the pacer, encodes, sends to every target, sleeps to the next
//! instant.
//!
//! A thread of its own and not a task, because a task is woken on a millisecond grid and behind
//! whatever else its runtime does; the interval between packets is what this program is for.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    pub(super) progress: watch::Sender<Progress>,
    /// A message, or the other end going away, ends the sender after the packet in hand.
    pub(super) stop: Receiver<()>,
    pub(super) ended: oneshot::Sender<()>,
}

// === impl Progress ===

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            state: State::Sending,
            last_number: None,
            last_wall_us: None,
            packets: 0,
            skipped: 0,
            send_errors: 0,
            last_error: None,
        }
    }
}

// === impl Sender ===

impl Sender {
    /// Runs until stopped.
    pub(super) fn run(self) {
        let started = Instant::now();
        let mut pacer = Pacer::new(self.rate);
        let mut datagram = Vec::new();
        loop {
            let active = fault::active(&self.faults, started.elapsed());
            match active.end {
                Some(End::Crash) => std::process::abort(),
                Some(End::Hang) => self.hang(),
                None => {}
            }
            let wall_ns = wall_ns();
            match pacer.next(wall_ns, active.delay) {
                Step::Wait { until_ns } => {
                    let pause = Duration::from_nanos(until_ns.saturating_sub(wall_ns));
                    match self.stop.recv_timeout(pause.min(SLEEP_MAX)) {
                        Err(RecvTimeoutError::Timeout) => {}
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                    }
                }
                Step::Send { .. } if active.black => self.set_state(State::Black),
                Step::Send { number, skipped } => {
                    let late = !active.delay.is_zero();
                    self.set_state(if late { State::Late } else { State::Sending });
                    self.send(number, skipped, &mut datagram);
                }
                Step::ClockWentBack { from, to } => {
                    tracing::warn!(from, to, "the wall clock went back; numbers follow it");
                }
            }
            // A sender that never finds time to wait must end as well.
            if !matches!(self.stop.try_recv(), Err(TryRecvError::Empty)) {
                break;
            }
        }
        self.set_state(State::Stopped);
        // Nobody waits for it if the handle was dropped.
        let _ = self.ended.send(());
    }

    fn send(&self, number: u64, skipped: u64, datagram: &mut Vec<u8>) {
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
        if let Err(error) = packet.encode(self.size, datagram) {
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

pub(super) fn wall_ns() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
