//! One control plane acts at a time (ACTIVE): the seat is a key at the Manager, held by renewing it.
//!
//! This file is the rules without input or output: what stands in the key, when a standby may take it,
//! until when the holder may act. The loop that performs them is in `seat/hold.rs`.
//!
//! The rules need no common clock. The holder counts from the moment at which it *sent* the renewal
//! that was answered, a standby from the moment at which it *saw* the key as it stands, which is later;
//! and the holder stops a second before any standby takes.

pub(crate) mod hold;

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_types::{Millis, Mono, Now};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Where the seat is kept.
pub(crate) const NAMESPACE: &str = "control-plane";
pub(crate) const KEY: &str = "active";

/// The holder renews this often (ACTIVE-02).
pub(crate) const RENEW: Millis = Millis(1_000);
/// A holder that could not renew for this long acts no more (ACTIVE-04).
pub(crate) const ACT: Millis = Millis(2_000);
/// A standby takes a seat that was not renewed for this long (ACTIVE-03).
pub(crate) const TAKE: Millis = Millis(3_000);
/// A standby looks this often.
pub(crate) const LOOK: Millis = Millis(250);

/// Who a control plane is to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatSettings {
    /// Its name, shown to people.
    pub name: String,
    /// Where its HTTP API is, shown to people.
    pub url: String,
}

/// What stands in the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub name: String,
    /// Where its HTTP API is.
    pub url: String,
    /// How often the seat was taken so far, with this time.
    pub turn: u64,
    /// Random, so that two of one name are told apart.
    pub id: String,
}

/// Whether a control plane acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    /// It runs without a seat, and nobody else is expected.
    Alone,
    /// It waits for the seat; the holder as far as it is known.
    Standby(Option<Holder>),
    /// It holds the seat, for this turn.
    Active {
        /// Number of the turn.
        turn: u64,
    },
}

// === impl Holder ===

impl Holder {
    pub(crate) fn write(&self) -> Vec<u8> {
        let Self {
            name,
            url,
            turn,
            id,
        } = self;
        json!({"holder": name, "url": url, "turn": turn, "id": id})
            .to_string()
            .into_bytes()
    }

    /// Reads the key. What cannot be read is a holder without a name: its seat is waited for and
    /// taken as any other.
    pub(crate) fn read(value: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(value).unwrap_or_default();
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("holder"),
            url: text("url"),
            turn: value["turn"].as_u64().unwrap_or_default(),
            id: text("id"),
        }
    }
}

// === standing by ===

/// What a standby saw of the seat.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    /// The key's revision, and since when it is known to stand there.
    seen: Option<(u64, Mono)>,
}

impl Watched {
    /// Takes a look at the key, told with the time at which the answer was there. Gives the revision
    /// at which the seat is to be taken now, 0 where nobody has it.
    pub(crate) fn look(&mut self, now: Mono, revision: Option<u64>) -> Option<u64> {
        let Some(revision) = revision else {
            return Some(0);
        };
        match self.seen {
            Some((seen, since)) if seen == revision => (now - since >= TAKE).then_some(revision),
            _ => {
                self.seen = Some((revision, now));
                None
            }
        }
    }
}

// === acting ===

/// The right to act in one turn. Closed once, it stays closed: the next turn has another gate.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    /// On both clocks: the monotonic one stands still while a machine sleeps.
    until: Mutex<Now>,
    closed: CancellationToken,
}

impl Gate {
    /// Open for [`ACT`] from `sent`, when the call that took the seat was sent.
    pub(crate) fn new(clock: Arc<dyn Clock>, sent: Now) -> Self {
        Self(Arc::new(Inner {
            clock,
            until: Mutex::new(until(sent)),
            closed: CancellationToken::new(),
        }))
    }

    /// Whether a call may be sent now. The first time that it may not, the gate closes.
    pub(crate) fn is_open(&self) -> bool {
        let now = self.0.clock.now();
        let until = *self.lock();
        if now.mono >= until.mono || now.wall >= until.wall {
            self.close();
        }
        !self.0.closed.is_cancelled()
    }

    /// A renewal sent then was answered. False when it came too late.
    pub(crate) fn extend(&self, sent: Now) -> bool {
        if !self.is_open() {
            return false;
        }
        *self.lock() = until(sent);
        true
    }

    /// When it closes by itself.
    pub(crate) fn closes_at(&self) -> Mono {
        self.lock().mono
    }

    pub(crate) fn close(&self) {
        self.0.closed.cancel();
    }

    /// Resolves when it is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.0.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("until", &*self.lock())
            .finish_non_exhaustive()
    }
}

fn until(sent: Now) -> Now {
    Now {
        mono: sent.mono + ACT,
        wall: sent.wall + ACT,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;

    use greenroom_types::Wall;

    use super::*;

    /// A clock that a test sets.
    struct Hands(Mutex<Now>);

    impl Hands {
        fn at(mono: u64, wall: i64) -> Arc<Self> {
            Arc::new(Self(Mutex::new(now(mono, wall))))
        }

        fn set(&self, mono: u64, wall: i64) {
            *self.0.lock().unwrap() = now(mono, wall);
        }
    }

    impl Clock for Hands {
        fn now(&self) -> Now {
            *self.0.lock().unwrap()
        }

        fn sleep_until(&self, _: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::pending())
        }
    }

    fn now(mono: u64, wall: i64) -> Now {
        Now {
            mono: Mono(mono),
            wall: Wall(wall),
        }
    }

    // spec: ACTIVE-03
    #[test]
    fn a_seat_is_taken_when_nobody_has_it_or_nobody_renewed_it_for_three_seconds() {
        assert_eq!(Watched::default().look(Mono(0), None), Some(0));
        let mut watched = Watched::default();
        assert_eq!(watched.look(Mono(0), Some(7)), None);
        assert_eq!(watched.look(Mono(2_999), Some(7)), None);
        // Renewed: the count begins anew, however late that was seen.
        assert_eq!(watched.look(Mono(9_000), Some(8)), None);
        assert_eq!(watched.look(Mono(11_999), Some(8)), None);
        assert_eq!(watched.look(Mono(12_000), Some(8)), Some(8));
        // Given back.
        assert_eq!(watched.look(Mono(12_250), None), Some(0));
    }

    // spec: ACTIVE-05
    #[test]
    fn a_standby_looks_often_enough_to_act_five_seconds_after_a_death() {
        // The last renewal is seen at the next look, and the key taken at the first look after that
        // at which it is old enough. A second and a half is left for the calls and the hydration.
        const { assert!(LOOK.0 + TAKE.0 + LOOK.0 <= 3_500) };
        // Who died acts no more by then.
        const { assert!(ACT.0 < TAKE.0) };
    }

    // spec: ACTIVE-04
    #[test]
    fn the_right_to_act_ends_two_seconds_after_the_last_renewal_was_sent() {
        let hands = Hands::at(0, 0);
        let gate = Gate::new(hands.clone(), now(0, 0));
        hands.set(1_999, 1_999);
        assert!(gate.is_open());
        assert!(gate.extend(now(1_000, 1_000)), "answered late, sent early");
        hands.set(2_999, 2_999);
        assert!(gate.is_open());
        hands.set(3_000, 3_000);
        assert!(!gate.is_open());
        assert!(
            !gate.extend(now(2_999, 2_999)),
            "an answer that came too late"
        );
        hands.set(3_001, 3_001);
        assert!(!gate.is_open(), "closed for good");
    }

    // spec: ACTIVE-04
    #[test]
    fn a_machine_that_slept_does_not_act_when_it_wakes() {
        let hands = Hands::at(0, 0);
        let gate = Gate::new(hands.clone(), now(0, 0));
        hands.set(10, 120_000);
        assert!(!gate.is_open());
    }

    // spec: ACTIVE-01
    #[test]
    fn the_holder_comes_back_from_the_key_and_rubbish_is_nobody() {
        let holder = Holder {
            name: "studio-a".to_owned(),
            url: "http://127.0.0.1:6788".to_owned(),
            turn: 7,
            id: "0123".to_owned(),
        };
        assert_eq!(Holder::read(&holder.write()), holder);
        assert_eq!(Holder::read(b"\xffrubbish"), Holder::default());
    }
}
