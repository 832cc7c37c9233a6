//! The arithmetic of one lease: when it is refreshed, warned of, given up and, at last, killed for.
//!
//! Three stand in a row, each without asking the one before: the worker's own stop, the guard, and the
//! instance's supervisor where the runtime has one.
//!
//! All instants are of the clock that counts a suspended machine too ([`crate::clock`]); the wall
//! clock plays no part. A lease runs from the moment when the refresh that was answered had been
//! *sent* (LEASE-04): the Manager began its own count later than that, so this one ends first.

use greenroom_types::{Millis, Mono};

/// Leases that one worker holds at a time; the guard has room for as many.
pub(crate) const LEASES_MAX: usize = 1_024;
/// Containers of one leased instance; the guard has room for as many.
pub(crate) const CONTAINERS_MAX: usize = 16;
/// Bytes of a leased start's id; the guard has room for as many.
pub(crate) const START_ID_MAX: usize = 128;

/// The range of a ttl (LEASE-01).
const TTL_MIN: Millis = Millis(2_000);
const TTL_MAX: Millis = Millis(300_000);
/// The longest stop allowance (LEASE-04).
const ALLOWANCE_MAX: Millis = Millis(2_000);

/// A deadline that never comes: of a lease that is kept by a pause (LEASE-10).
pub(crate) const NEVER: Mono = Mono(u64::MAX);

/// Until when an instance may run, for the job itself (SOCK-16), and for those who end it if the worker
/// does not (WORK-42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Until {
    /// The worker's own stop begins then: from here on the job has no right to output.
    pub(crate) output: Mono,
    /// The guard kills it then.
    pub(crate) guard: Mono,
    /// Its supervisor ends it then.
    pub(crate) supervisor: Mono,
}

/// What the core knows of a lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    ttl: Millis,
    /// When the newest refresh that was answered had been sent.
    pub(crate) since: Option<Mono>,
    /// When the next refresh is due.
    pub(crate) refresh_at: Mono,
    /// The warning of this silence was given.
    pub(crate) warned: bool,
    /// Until when the guard holds it, as the guard has acknowledged.
    pub(crate) guarded: Option<Mono>,
    /// Since when no guard holds it.
    pub(crate) unguarded_since: Mono,
    /// It was given up; nothing brings it back.
    pub(crate) lost: bool,
    /// The instance is to run as soon as the lease lets it.
    pub(crate) wants_start: bool,
}

// === impl Until ===

impl Until {
    /// For all the same.
    pub(crate) const fn of(at: Mono) -> Self {
        Self {
            output: at,
            guard: at,
            supervisor: at,
        }
    }
}

// === impl Lease ===

impl Lease {
    /// One that was never answered; a refresh is due at once (LEASE-17).
    pub(crate) fn new(ttl: Millis, now: Mono) -> Self {
        Self {
            ttl: ttl.clamp(TTL_MIN, TTL_MAX),
            since: None,
            refresh_at: now,
            warned: false,
            guarded: None,
            unguarded_since: now,
            lost: false,
            wants_start: false,
        }
    }

    /// A refresh that was sent then was answered with this ttl.
    pub(crate) fn renew(&mut self, sent: Mono, ttl: Millis) {
        self.ttl = ttl.clamp(TTL_MIN, TTL_MAX);
        // A shorter one is refreshed sooner.
        self.refresh_at = self.refresh_at.min(sent + Millis(self.ttl.0 / 3));
        if self.since.is_none_or(|since| since < sent) {
            self.since = Some(sent);
            self.warned = false;
        }
    }

    /// Time kept for the stop, so that the last process is dead before the ttl ends.
    pub(crate) fn allowance(&self) -> Millis {
        ALLOWANCE_MAX.min(Millis(self.ttl.0 / 4))
    }

    /// When the warning is due; none for a lease that was never answered.
    pub(crate) fn warn_at(&self) -> Option<Mono> {
        Some(self.since? + Millis(self.ttl.0 * 2 / 3))
    }

    /// When the stop begins. A lease that was never answered gives no right to run.
    pub(crate) fn stop_at(&self) -> Mono {
        self.since.map_or(Mono(0), |since| {
            since + Millis(self.ttl.0 - self.allowance().0)
        })
    }

    /// When the guard kills: a quarter of the allowance after the worker's own stop began.
    fn guard_at(&self) -> Mono {
        self.stop_at() + Millis(self.allowance().0 / 4)
    }

    /// When those act whom the worker tells: the job with the worker, then the guard, and half the
    /// allowance after the worker the supervisor.
    pub(crate) fn until(&self) -> Until {
        Until {
            output: self.stop_at(),
            guard: self.guard_at(),
            supervisor: self.stop_at() + Millis(self.allowance().0 / 2),
        }
    }

    /// When an instance is stopped that no guard holds: half the allowance is for finding another
    /// guard, the other half for the stop (WORK-42).
    pub(crate) fn unguarded_at(&self) -> Mono {
        self.unguarded_since + Millis(self.allowance().0 / 2)
    }

    /// Notes that a refresh is on its way.
    pub(crate) fn sent(&mut self, now: Mono) {
        self.refresh_at = now + Millis(self.ttl.0 / 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ttl: u64) -> Lease {
        let mut lease = Lease::new(Millis(ttl), Mono(0));
        lease.renew(Mono(1_000), Millis(ttl));
        lease
    }

    // spec: LEASE-04
    #[test]
    fn the_stop_ends_before_the_ttl_does() {
        let told = |ttl| {
            let lease = lease(ttl);
            (
                lease.warn_at().unwrap().0,
                lease.until().output.0,
                lease.until().guard.0,
                lease.until().supervisor.0,
            )
        };
        assert_eq!(told(10_000), (7_666, 9_000, 9_500, 10_000));
        // A quarter of a short one.
        assert_eq!(told(2_000), (2_333, 2_500, 2_625, 2_750));
        assert_eq!(told(300_000), (201_000, 299_000, 299_500, 300_000));
        for ttl in 2_000..=20_000 {
            let (warn, stop, guard, supervisor) = told(ttl);
            let in_turn = warn <= stop && stop < guard && guard < supervisor;
            assert!(in_turn && supervisor < 1_000 + ttl, "{ttl}");
        }
    }

    // spec: LEASE-04
    #[test]
    fn an_answer_counts_from_the_moment_its_refresh_was_sent_and_an_old_one_takes_nothing_back() {
        let mut lease = lease(10_000);
        lease.renew(Mono(5_000), Millis(10_000));
        assert_eq!(lease.stop_at(), Mono(13_000));
        lease.renew(Mono(4_000), Millis(10_000));
        assert_eq!(lease.stop_at(), Mono(13_000));
    }

    // spec: LEASE-03
    #[test]
    fn a_ttl_that_became_shorter_is_refreshed_sooner() {
        let mut lease = lease(30_000);
        lease.sent(Mono(5_000));
        assert_eq!(lease.refresh_at, Mono(15_000));
        lease.renew(Mono(5_000), Millis(6_000));
        assert_eq!(lease.refresh_at, Mono(7_000));
        // One that became longer is refreshed when that was due.
        lease.renew(Mono(5_000), Millis(60_000));
        assert_eq!(lease.refresh_at, Mono(7_000));
    }

    // spec: LEASE-17
    #[test]
    fn one_that_was_never_answered_gives_no_right_at_any_time() {
        let lease = Lease::new(Millis(10_000), Mono(50_000));
        assert_eq!((lease.stop_at(), lease.warn_at()), (Mono(0), None));
        assert_eq!(lease.refresh_at, Mono(50_000));
    }
}
