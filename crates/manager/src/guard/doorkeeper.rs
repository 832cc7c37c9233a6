//! Remembers who presented credentials that do not hold, and closes the door to those who guess
//! (LOCAL-07, SEC-09).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::call::{Refusal, Status};

/// So many failures of one address in a minute close the door for a minute (LOCAL-07).
const FAILURES_PER_MINUTE: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// Addresses remembered; beyond it the one that failed longest ago is forgotten.
const ADDRESSES_MAX: usize = 4_096;

/// Remembers who presented bad tokens.
#[derive(Debug, Default)]
pub(crate) struct Doorkeeper {
    callers: Mutex<BTreeMap<IpAddr, Failures>>,
}

#[derive(Debug, Default)]
struct Failures {
    /// Those of the last minute.
    times: Vec<Instant>,
    /// Credentials among them, of those that are told apart.
    credentials: BTreeMap<[u8; 32], Instant>,
    /// Since when the door is closed.
    closed: Option<Instant>,
}

// === impl Doorkeeper ===

impl Doorkeeper {
    /// For how much longer the door is closed to an address.
    fn closed_for(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = callers.get(&address)?.closed?;
        MINUTE.checked_sub(now.saturating_duration_since(closed))
    }

    /// Counts a credential that does not hold, once a minute: a program that presents the same old
    /// one again and again guesses nothing, and must not close the door to others at its address.
    pub(crate) fn note_credential(&self, address: IpAddr, credential: [u8; 32], now: Instant) {
        let is_again = {
            let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
            let known = callers.get_mut(&address).map(|it| &mut it.credentials);
            known.is_some_and(|known| {
                known.retain(|_, at| now.saturating_duration_since(*at) < MINUTE);
                known.contains_key(&credential)
            })
        };
        if is_again {
            return;
        }
        self.note_failure(address, now);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failures) = callers.get_mut(&address)
            && failures.credentials.len() < FAILURES_PER_MINUTE
        {
            failures.credentials.insert(credential, now);
        }
    }

    pub(crate) fn note_failure(&self, address: IpAddr, now: Instant) {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= ADDRESSES_MAX && !callers.contains_key(&address) {
            let oldest = callers
                .iter()
                .min_by_key(|(_, failures)| failures.times.last().copied().max(failures.closed))
                .map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                callers.remove(&oldest);
            }
        }
        let failures = callers.entry(address).or_default();
        let times = &mut failures.times;
        times.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        times.push(now);
        if times.len() >= FAILURES_PER_MINUTE {
            times.clear();
            failures.closed = Some(now);
        }
    }

    /// Refuses an address to which the door is closed.
    pub(crate) fn refuse_closed(&self, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let Some(left) = self.closed_for(address, now) else {
            return Ok(());
        };
        let refusal = Refusal::new(
            Status::ResourceExhausted,
            "slow_down",
            "too many credentials were refused from this address: wait a minute",
        );
        let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Err(refusal.with("retry_after_ms", left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LOCAL-07
    #[test]
    fn ten_failures_in_a_minute_close_the_door_for_that_address_alone_and_for_a_minute() {
        let doorkeeper = Doorkeeper::default();
        let (bad, good) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        doorkeeper.note_failure(bad, at(0));
        for second in 61..70 {
            doorkeeper.note_failure(bad, at(second));
        }
        assert_eq!(doorkeeper.closed_for(bad, at(70)), None, "nine in a minute");
        doorkeeper.note_failure(bad, at(70));
        let left = |seconds| doorkeeper.closed_for(bad, at(seconds));
        assert_eq!(left(71), Some(Duration::from_secs(59)));
        assert_eq!(left(131), None);
        assert_eq!(doorkeeper.closed_for(good, at(71)), None);
    }

    // spec: SEC-09
    #[test]
    fn one_old_credential_is_counted_once_a_minute() {
        let doorkeeper = Doorkeeper::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let now = Instant::now();
        for _ in 0..100 {
            doorkeeper.note_credential(address, [0; 32], now);
        }
        for other in 1..9 {
            doorkeeper.note_credential(address, [other; 32], now);
        }
        assert_eq!(
            doorkeeper.closed_for(address, now),
            None,
            "nine credentials"
        );
        doorkeeper.note_credential(address, [9; 32], now);
        assert!(doorkeeper.closed_for(address, now).is_some());
    }
}
