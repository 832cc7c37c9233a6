//! Everything that waits for time: one enum of timers, one table.
//!
//! Most timers wait on the monotonic clock. Those that wait for an instant given by others wait on
//! the wall clock and are looked at again at least every [`WALL_CHECK`], so that a step of that
//! clock is noticed (TIME-04). Equal instants fire in the order of arming (TIME-06). The table
//! fires nothing by itself and holds no reason: each handler checks that its own still holds
//! (TIME-07).

use std::collections::BTreeMap;

use greenroom_types::id::{BundleId, JobId, MigrationId, NodeId, PoolName, ServiceId, TierName};
use greenroom_types::{Millis, Mono, Now, Wall};
use serde::{Deserialize, Serialize};

/// Longest time between two looks at the wall clock while something waits for it (TIME-04).
pub const WALL_CHECK: Millis = Millis(10_000);

/// What waits for time, and for which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Timer {
    /// A job's scheduled start less its lead (SCHED-01).
    ScheduledStart(JobId),
    /// A bundle's stop time from the tag of an older client (STOP-03).
    StopTime(BundleId),
    /// The retry of a `deleteBundle` that failed (STOP-04).
    StopTimeRetry(BundleId),
    /// The retry 5 s after a failed start of a job (LAUNCH-08).
    StartRetry(JobId),
    /// The next try of a start that an earlier lease holds back (LAUNCH-13).
    LeaseWait(JobId),
    /// The end of the spacing between two recoveries of a job (RECOV-09).
    RecoverySpacing(JobId),
    /// The end of a job's in-flight gate (LAUNCH-03).
    LaunchGate(JobId),
    /// The next try of a verdict that the Manager did not take (CEIL-13).
    VerdictRetry(JobId),
    /// A second stop of a stray instance, no sooner (BIND-08).
    StrayStop(JobId),
    /// A job's exclusion from one node ends (HEALTH-10).
    JobExclusion(JobId, NodeId),
    /// A node seen stopping is no longer recently failed (HEALTH-08).
    RecentlyFailed(NodeId),
    /// An unhealthy node has cooled down (HEALTH-04).
    UnhealthyCooldown(NodeId),
    /// No picture has told what is left on a node of jobs that the stream tells of no more (RESV-07).
    OrphanedRemains(NodeId),
    /// A booting node's grace (NODE-07).
    StartupGrace(NodeId),
    /// A requested node's time to start (PROV-06).
    ProvisionTimeout(NodeId),
    /// A tier may provision again, one node at first (PROV-12).
    TierBackoff(PoolName, TierName),
    /// A phase of a migration took too long (MIGR-17).
    MigrationPhase(MigrationId),
    /// A drain's time is over (DRAIN-02).
    DrainTimeout(NodeId),
    /// A drain may look for room again (DRAIN-06).
    DrainRetry(NodeId),
    /// Calls of the wind-down were given their time (LIFE-05).
    CloseGrace,
    /// The spare reconciler's tick (CONF-08).
    SpareTick,
    /// A pool may ask for a spare again (SPARE-11).
    SpareRetry(PoolName),
    /// The node-service reconciler's tick (CONF-08).
    ServiceTick,
    /// A service may be started again on a node where it ended by itself (NSVC-10).
    ServiceRetry(ServiceId, NodeId),
    /// Stopped nodes leave the mirror (NODE-16).
    Sweep,
}

/// A clock and an instant on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Due {
    /// On the monotonic clock.
    Mono(Mono),
    /// On the wall clock.
    Wall(Wall),
}

/// When the policy must be woken, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadline {
    /// The instant.
    pub at: Mono,
    /// The timer that is next.
    pub timer: Timer,
}

/// All armed timers. Setting one that is armed moves it to its new instant and to the back of the
/// line there.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimerTable {
    armed: BTreeMap<Timer, (Due, u64)>,
    mono: BTreeMap<(Mono, u64), Timer>,
    wall: BTreeMap<(Wall, u64), Timer>,
    /// When the wall clock was last looked at, and what it said.
    seen: Now,
    next_seq: u64,
}

// === impl TimerTable ===

impl TimerTable {
    pub(crate) fn set(&mut self, timer: Timer, due: Due) {
        self.stop(&timer);
        let seq = self.next_seq;
        self.next_seq += 1;
        match due {
            Due::Mono(at) => self.mono.insert((at, seq), timer.clone()),
            Due::Wall(at) => self.wall.insert((at, seq), timer.clone()),
        };
        self.armed.insert(timer, (due, seq));
    }

    pub(crate) fn stop(&mut self, timer: &Timer) {
        match self.armed.remove(timer) {
            Some((Due::Mono(at), seq)) => self.mono.remove(&(at, seq)),
            Some((Due::Wall(at), seq)) => self.wall.remove(&(at, seq)),
            None => None,
        };
    }

    pub(crate) fn due(&self, timer: &Timer) -> Option<Due> {
        self.armed.get(timer).map(|(due, _)| *due)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self {
            next_seq: self.next_seq,
            seen: self.seen,
            ..Self::default()
        };
    }

    /// Takes note of what the clocks say. Called once per input.
    pub(crate) const fn look(&mut self, now: Now) {
        self.seen = now;
    }

    /// Disarms and returns the timer that is due and comes first.
    pub(crate) fn pop_due(&mut self) -> Option<Timer> {
        let mono = self
            .mono
            .first_key_value()
            .map(|((at, seq), timer)| (*at, *seq, timer));
        let wall = self
            .wall
            .first_key_value()
            .map(|((at, seq), timer)| (self.on_mono(*at), *seq, timer));
        let (_, _, timer) = mono
            .into_iter()
            .chain(wall)
            .filter(|(at, _, _)| *at <= self.seen.mono)
            .min_by_key(|(at, seq, _)| (*at, *seq))?;
        let timer = timer.clone();
        self.stop(&timer);
        Some(timer)
    }

    /// The next instant at which time alone may matter.
    pub(crate) fn next(&self) -> Option<Deadline> {
        let mono = self
            .mono
            .first_key_value()
            .map(|((at, _), timer)| Deadline {
                at: *at,
                timer: timer.clone(),
            });
        let wall = self
            .wall
            .first_key_value()
            .map(|((at, _), timer)| Deadline {
                at: self.on_mono(*at).min(self.seen.mono + WALL_CHECK),
                timer: timer.clone(),
            });
        match (mono, wall) {
            (Some(m), Some(w)) => Some(if w.at < m.at { w } else { m }),
            (mono, wall) => mono.or(wall),
        }
    }

    /// The monotonic instant at which the wall clock shows `at`, if it is not stepped.
    fn on_mono(&self, at: Wall) -> Mono {
        let ahead = at.since(self.seen.wall);
        match u64::try_from(ahead) {
            Ok(ahead) => self.seen.mono + Millis(ahead),
            Err(_) => Mono(self.seen.mono.0.saturating_sub(ahead.unsigned_abs())),
        }
    }
}
