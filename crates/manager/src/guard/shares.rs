//! How much one caller may ask for at a time (LIM-05), so that nobody starves the others. Calls that
//! stop something have a share of their own: they must pass when everything else is too much.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::call::{Refusal, Status};

/// Calls of one caller in progress.
const CALLS_MAX: usize = 256;
/// Calls of one caller that begin within a second.
const CALLS_PER_SECOND: u32 = 2_000;
/// Streams of one caller.
const STREAMS_MAX: usize = 64;
/// Callers remembered; those without anything in progress give way.
const CALLERS_MAX: usize = 8_192;

const SECOND: Duration = Duration::from_secs(1);

/// What a call takes a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Call,
    /// It stops something.
    Stop,
    Stream,
}

/// The shares of all callers.
#[derive(Debug, Default)]
pub(super) struct Shares(Arc<Mutex<BTreeMap<(String, Kind), Share>>>);

#[derive(Debug)]
struct Share {
    in_progress: usize,
    /// Beginning of the second that is counted, and calls begun in it.
    second: Instant,
    begun: u32,
}

/// One call in progress. Its place is free again when it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    shares: Arc<Mutex<BTreeMap<(String, Kind), Share>>>,
    of: (String, Kind),
}

// === impl Shares ===

impl Shares {
    pub(super) fn take(&self, caller: &str, kind: Kind, now: Instant) -> Result<Ticket, Refusal> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (caller.to_owned(), kind);
        if shares.len() >= CALLERS_MAX && !shares.contains_key(&of) {
            shares.retain(|_, share| {
                share.in_progress > 0 || now.saturating_duration_since(share.second) < SECOND
            });
        }
        let share = shares.entry(of.clone()).or_insert(Share {
            in_progress: 0,
            second: now,
            begun: 0,
        });
        let since = now.saturating_duration_since(share.second);
        if since >= SECOND {
            share.second = now;
            share.begun = 0;
        }
        let (max, what) = match kind {
            Kind::Call | Kind::Stop => (CALLS_MAX, "calls"),
            Kind::Stream => (STREAMS_MAX, "streams"),
        };
        if share.in_progress >= max {
            return Err(slow_down(
                format!("{caller:?} has {max} {what} in progress, the most of one caller"),
                SECOND,
            ));
        }
        if share.begun >= CALLS_PER_SECOND {
            return Err(slow_down(
                format!("{caller:?} began {CALLS_PER_SECOND} {what} within a second"),
                SECOND.saturating_sub(since),
            ));
        }
        share.begun += 1;
        share.in_progress += 1;
        Ok(Ticket {
            shares: Arc::clone(&self.0),
            of,
        })
    }
}

fn slow_down(message: String, wait: Duration) -> Refusal {
    let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
    Refusal::new(Status::ResourceExhausted, "slow_down", message).with("retry_after_ms", wait)
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get_mut(&self.of) {
            share.in_progress = share.in_progress.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LIM-05
    #[test]
    fn one_caller_has_its_share_and_what_stops_something_has_another() {
        let shares = Shares::default();
        let now = Instant::now();
        let take = |caller: &str, kind| shares.take(caller, kind, now);
        let mut held: Vec<Ticket> = (0..CALLS_MAX)
            .map(|_| take("a", Kind::Call).unwrap())
            .collect();
        let refusal = take("a", Kind::Call).unwrap_err();
        assert_eq!(refusal.reason, "slow_down");
        assert!(refusal.details.contains_key("retry_after_ms"));
        take("a", Kind::Stop).unwrap();
        take("b", Kind::Call).unwrap();
        held.pop();
        take("a", Kind::Call).unwrap();

        let streams: Vec<Ticket> = (0..STREAMS_MAX)
            .map(|_| take("a", Kind::Stream).unwrap())
            .collect();
        take("a", Kind::Stream).unwrap_err();
        drop(streams);
        take("a", Kind::Stream).unwrap();
    }

    // spec: LIM-05
    #[test]
    fn so_many_calls_may_begin_in_a_second_and_as_many_in_the_next() {
        let shares = Shares::default();
        let now = Instant::now();
        for _ in 0..CALLS_PER_SECOND {
            shares.take("a", Kind::Call, now).unwrap();
        }
        let late = now + Duration::from_millis(400);
        let refusal = shares.take("a", Kind::Call, late).unwrap_err();
        assert_eq!(
            refusal.details["retry_after_ms"],
            greenroom_types::call::Detail::Int(600)
        );
        shares.take("a", Kind::Call, now + SECOND).unwrap();
    }

    #[test]
    fn callers_that_went_away_are_forgotten() {
        let shares = Shares::default();
        let now = Instant::now();
        let held = shares.take("here", Kind::Stream, now).unwrap();
        for number in 0..CALLERS_MAX {
            let then = now + SECOND * u32::try_from(number).unwrap();
            shares.take(&number.to_string(), Kind::Call, then).unwrap();
        }
        let known = shares.0.lock().unwrap();
        assert!(known.len() < CALLERS_MAX);
        assert!(known.contains_key(&held.of));
    }
}
