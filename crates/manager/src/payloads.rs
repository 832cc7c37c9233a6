//! What the two sides of a migration tell each other, on its way through (MGR-05).
//!
//! A payload must stand in no record, and what carries it is recorded: that a signal came, in which
//! order, and that a start is the target of a handover. So the record holds a stand-in, the digest of
//! the payload, and the payload itself waits here, in memory alone, until what follows from the record
//! goes out. The same payload has the same stand-in, so that a repeated call is the same call (API-07).
//!
//! A payload that is not here any more was lost with a restart between the record and what follows
//! from it. Whoever asks is told so, and the migration comes to nothing: it is safe to begin again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use greenroom_ledger::{Change, WorkerOrder};
use greenroom_ledger::{Report, What};
use greenroom_proto::worker::NodeControllerMessage;
use greenroom_proto::worker::node_controller_message::Message as Out;
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{Millis, Mono, Payload};
use sha2::{Digest, Sha256};

/// How long a payload waits: as long as a worker keeps a signal (MGR-11).
const KEPT_FOR: Millis = Millis(600_000);
/// Bytes that wait at most; beyond it the oldest goes. It is room for 256 of the largest.
const KEPT_BYTES: usize = 64 << 20;
/// Reason of a migration whose payload was lost here.
const LOST: &str = "payload_lost";

/// The payloads on their way.
#[derive(Debug, Default)]
pub(crate) struct Payloads(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_stand_in: BTreeMap<Payload, Payload>,
    /// Stand-ins, each with when it was last given out, oldest first.
    order: VecDeque<(Mono, Payload)>,
    bytes: usize,
}

// === impl Payloads ===

impl Payloads {
    /// Keeps a payload and gives what stands for it in the record.
    pub(crate) fn deposit(&self, now: Mono, payload: Payload) -> Payload {
        let stand_in = Payload::from(Sha256::digest(payload.bytes()).to_vec());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.order.retain(|(_, other)| *other != stand_in);
        kept.order.push_back((now, stand_in.clone()));
        let new = payload.len();
        let old = kept.by_stand_in.insert(stand_in.clone(), payload);
        kept.bytes += new - old.map_or(0, |old| old.len());
        kept.let_go(now);
        stand_in
    }

    /// The payload that this stands for, while it is kept.
    fn redeem(&self, stand_in: &Payload) -> Option<Payload> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_stand_in.get(stand_in).cloned()
    }

    /// Takes the payload out of a worker's report, which is then fit to be recorded.
    pub(crate) fn deposit_report(&self, now: Mono, report: &mut Report) {
        if let Report::Migration { signal, .. } = report
            && let Some(payload) = payload_of(signal)
        {
            *payload = self.deposit(now, std::mem::take(payload));
        }
    }

    /// Puts the payload into a recorded signal that goes to the subscribers.
    pub(crate) fn redeem_change(&self, change: &mut Change) {
        let What::Event(StreamEvent::Migration { key, signal, .. }) = &mut change.what else {
            return;
        };
        let side = match signal {
            MigrationSignal::State(_) | MigrationSignal::SourceStoppedOutput(_) => "source",
            _ => "target",
        };
        let Some(payload) = payload_of(signal) else {
            return;
        };
        match self.redeem(payload) {
            Some(whole) => *payload = whole,
            None => {
                tracing::warn!(%key, "the payload of a migration was lost; it is given up");
                *signal = MigrationSignal::Aborted {
                    side: side.to_owned(),
                    reason: LOST.to_owned(),
                };
            }
        }
    }

    /// Puts the source's state into the order to start its target.
    pub(crate) fn redeem_order(&self, order: &WorkerOrder, message: &mut NodeControllerMessage) {
        if let WorkerOrder::Provision(job) = order
            && let Some(stand_in) = &job.migration_state
            && let Some(Out::ProvisionJob(start)) = &mut message.message
        {
            start.migration_state = self.redeem(stand_in).map(Payload::into_bytes);
            start.migration_state_lost = start.migration_state.is_none();
        }
    }
}

// === impl Kept ===

impl Kept {
    fn let_go(&mut self, now: Mono) {
        while let Some((at, _)) = self.order.front() {
            if now - *at < KEPT_FOR && self.bytes <= KEPT_BYTES {
                return;
            }
            let gone = self.order.pop_front();
            let payload = gone.and_then(|(_, stand_in)| self.by_stand_in.remove(&stand_in));
            self.bytes -= payload.map_or(0, |payload| payload.len());
        }
    }
}

const fn payload_of(signal: &mut MigrationSignal) -> Option<&mut Payload> {
    match signal {
        MigrationSignal::State(payload)
        | MigrationSignal::TargetReady(payload)
        | MigrationSignal::SourceStoppedOutput(payload)
        | MigrationSignal::TargetApplied(payload) => Some(payload),
        MigrationSignal::Refused(_) | MigrationSignal::Aborted { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: MGR-05
    #[test]
    fn what_is_recorded_is_not_the_payload_and_brings_it_back() {
        let payloads = Payloads::default();
        let secret = Payload::from(b"frame 9000");
        let stand_in = payloads.deposit(Mono(0), secret.clone());
        assert_ne!(stand_in, secret);
        assert_eq!(payloads.deposit(Mono(5), secret.clone()), stand_in);
        assert_eq!(payloads.redeem(&stand_in), Some(secret.clone()));
        assert_eq!(payloads.redeem(&stand_in), Some(secret));
        assert_eq!(Payloads::default().redeem(&stand_in), None);
    }

    // spec: MGR-05
    #[test]
    fn what_waits_is_bounded_by_time_and_by_bytes() {
        let payloads = Payloads::default();
        let first = payloads.deposit(Mono(0), vec![1].into());
        let second = payloads.deposit(Mono(599_999), vec![2].into());
        assert!(payloads.redeem(&first).is_some());
        payloads.deposit(Mono(600_000), vec![3].into());
        assert!(payloads.redeem(&first).is_none());
        assert!(payloads.redeem(&second).is_some());
        for n in 0..=255_u8 {
            payloads.deposit(Mono(600_000), vec![n; 256 << 10].into());
        }
        assert!(payloads.redeem(&second).is_none());
        assert!(payloads.0.lock().unwrap().bytes <= KEPT_BYTES);
    }

    fn published(payloads: &Payloads, signal: MigrationSignal) -> MigrationSignal {
        let mut change = Change {
            seq: 1,
            at: greenroom_types::Wall(0),
            what: What::Event(StreamEvent::Migration {
                key: Default::default(),
                migration_id: "m".into(),
                signal,
            }),
        };
        payloads.redeem_change(&mut change);
        match change.what {
            What::Event(StreamEvent::Migration { signal, .. }) => signal,
            other => panic!("{other:?}"),
        }
    }

    // spec: MGR-05, MGR-09
    #[test]
    fn a_signal_whose_payload_is_lost_gives_its_migration_up() {
        let payloads = Payloads::default();
        let stand_in = payloads.deposit(Mono(0), b"frame 9000".into());
        let signal = MigrationSignal::SourceStoppedOutput(stand_in);
        let whole = MigrationSignal::SourceStoppedOutput(b"frame 9000".into());
        assert_eq!(published(&payloads, signal.clone()), whole);
        let lost = MigrationSignal::Aborted {
            side: "source".to_owned(),
            reason: LOST.to_owned(),
        };
        assert_eq!(published(&Payloads::default(), signal), lost);
        let refused = MigrationSignal::Refused("no".to_owned());
        assert_eq!(published(&payloads, refused.clone()), refused);
    }
}
