//! Since when each lease runs, on the monotonic clock of whoever serves the state.
//!
//! It is not replicated and a refresh commits nothing (LEASE-03): a new clock takes every lease for
//! just refreshed (LEASE-09), so that a restart or a takeover frees nothing early. It decides nothing
//! by itself: that a time has passed is a [`Command`], and the ledger looks whether the lease still
//! stands where the clock saw it.
//!
//! Whoever drives it holds one lock over a look at the ledger and the clock together, in
//! [`LeaseClock::refresh`] as in [`LeaseClock::due`]: then a refresh is either counted before a lease
//! is taken for over, or finds it so and is not answered.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::{Detail, InstanceRef, Refusal};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{BundleLeaseInfo, JobLeaseInfo, LeasePause, LeaseStatus};
use greenroom_types::{BundleId, Millis, Mono, NodeId, Now, StartId, Wall};

use super::{Lease, LeaseState};
use crate::change::Subject;
use crate::command::{Command, Due};
use crate::ledger::Ledger;

/// How soon what was proposed is proposed again while the ledger shows no effect of it.
const AGAIN: Millis = Millis(1_000);
/// When this process itself ran this much late, leases run by as much longer: its own blindness is
/// nobody's death (MNODE-09, FIELD-37).
const STALL: Millis = Millis(1_000);
/// A pause that lasts too long is told this often (LEASE-13).
const WARN_EVERY: Millis = Millis(600_000);

/// The clock of all leases.
#[derive(Clone, Debug)]
pub struct LeaseClock {
    /// A pause longer than this is told; 0: never (LEASE-13).
    max_pause_ms: Millis,
    jobs: BTreeMap<InstanceKey, Watched>,
    bundles: BTreeMap<BundleId, WatchedBundle>,
    queue: BTreeSet<(Mono, Timer)>,
    paused: bool,
    warn_at: Option<Mono>,
    /// When the driver last came by.
    seen: Mono,
}

/// What is due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseWakeup {
    /// To be proposed, in this order.
    pub commands: Vec<Command>,
    /// A pause lasts too long.
    pub warning: Option<PauseWarning>,
}

/// A pause lasts longer than it should (LEASE-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseWarning {
    /// The pause.
    pub pause: LeasePause,
    /// For how long it lasts.
    pub lasts: Millis,
}

/// The answer to one refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// The lease holds for so long from the moment at which the refresh was sent.
    For(Millis),
    /// The start has no right to run (LEASE-17).
    Superseded,
}

#[derive(Clone, Debug)]
struct Watched {
    start_id: StartId,
    mark: u64,
    state: LeaseState,
    ttl_ms: Millis,
    guarded_for: Millis,
    /// The later of its last refresh and the begin of this clock.
    since: Mono,
    refreshed_at: Wall,
    due: Option<Mono>,
}

#[derive(Clone, Debug)]
struct WatchedBundle {
    mark: u64,
    ttl_ms: Millis,
    since: Mono,
    due: Option<Mono>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Job(InstanceKey),
    Bundle(BundleId),
}

// === impl LeaseClock ===

impl LeaseClock {
    /// Every lease of this state was refreshed just now (LEASE-09, LEASE-16).
    pub fn new(max_pause_ms: Millis, now: Now, ledger: &Ledger) -> Self {
        let mut clock = Self {
            max_pause_ms,
            jobs: BTreeMap::new(),
            bundles: BTreeMap::new(),
            queue: BTreeSet::new(),
            paused: ledger.lease_pause().is_some(),
            warn_at: None,
            seen: now.mono,
        };
        for lease in ledger.leases.values() {
            clock.see_lease(now, ledger, &lease.key);
        }
        for (bundle_id, _) in ledger.bundle_leases() {
            clock.see_bundle(now, ledger, bundle_id);
        }
        clock
    }

    /// Looks again at what an apply touched. Call it after every apply, with
    /// [`crate::Applied::touched`].
    pub fn observe(&mut self, now: Now, ledger: &Ledger, touched: &[Subject]) {
        for subject in touched {
            match subject {
                Subject::Lease(key) => self.see_lease(now, ledger, key),
                Subject::BundleLease(bundle_id) => self.see_bundle(now, ledger, bundle_id),
                Subject::LeasePause => self.see_pause(now, ledger),
                Subject::Node(_) | Subject::Instance(_) | Subject::Bundle(_) | Subject::Restore => {
                }
            }
        }
    }

    /// A worker refreshes a lease. Nothing is committed; the answer is for its stream alone.
    pub fn refresh(
        &mut self,
        now: Now,
        ledger: &Ledger,
        node_id: &NodeId,
        held: &InstanceRef,
        fence: u64,
    ) -> Refreshed {
        let lease = ledger.lease(&held.key).filter(|lease| {
            lease.start_id == held.start_id
                && lease.node_id == *node_id
                && lease.fence == fence
                && lease.state == LeaseState::Held
        });
        let Some(lease) = lease else {
            // The record was restored and knows no lease of its job: nobody else is granted one
            // meanwhile (STORE-11).
            if ledger.is_kept(node_id, &held.start_id) {
                return Refreshed::For(greenroom_types::job::LeasePolicy::default().ttl_ms);
            }
            return Refreshed::Superseded;
        };
        self.see_lease(now, ledger, &held.key);
        if let Some(watched) = self.jobs.get_mut(&held.key) {
            watched.since = now.mono;
            watched.refreshed_at = now.wall;
        }
        self.set_job(&held.key);
        Refreshed::For(lease.ttl_ms)
    }

    /// The earliest moment at which something may be due. A driver also calls [`LeaseClock::due`] at
    /// least once a second.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// What is due now.
    pub fn due(&mut self, now: Now, ledger: &Ledger) -> LeaseWakeup {
        self.forgive_stall(now.mono);
        let mut wakeup = LeaseWakeup::default();
        while let Some((due, timer)) = self.queue.first().cloned() {
            if due > now.mono {
                break;
            }
            self.queue.pop_first();
            let again = now.mono + AGAIN;
            let command = match &timer {
                Timer::Job(key) => self.jobs.get_mut(key).and_then(|watched| {
                    watched.due = Some(again);
                    watched.command(key)
                }),
                Timer::Bundle(bundle_id) => self.bundles.get_mut(bundle_id).map(|watched| {
                    watched.due = Some(again);
                    Due::BundleLeaseOver {
                        bundle_id: bundle_id.clone(),
                        mark: watched.mark,
                    }
                }),
            };
            if let Some(command) = command {
                self.queue.insert((again, timer));
                wakeup.commands.push(Command::Tick(command));
            }
        }
        wakeup.warning = self.warning(now, ledger);
        wakeup
    }

    /// Adds to a refusal for a lease after how long the call may be tried again (LEASE-08).
    #[must_use]
    pub fn complete(&self, now: Now, refusal: Refusal) -> Refusal {
        if refusal.reason != "lease_held" {
            return refusal;
        }
        let holder = match refusal.details.get("start_id") {
            Some(Detail::Text(start_id)) => StartId::new(start_id),
            _ => return refusal,
        };
        // What is not observed yet was granted a moment ago.
        let left = self
            .jobs
            .values()
            .find(|watched| watched.start_id == holder)
            .map_or(AGAIN, |watched| self.guarded(now.mono, watched));
        refusal.with("retry_after_ms", left.0.max(1))
    }

    /// All leases (LEASE-14).
    pub fn status(&self, now: Now, ledger: &Ledger) -> LeaseStatus {
        let paused = ledger.lease_pause().cloned();
        let leases = ledger.leases().map(|lease| {
            let watched = self.jobs.get(&lease.key);
            self.lease_status(now, lease, watched, paused.is_some())
        });
        let leases = leases.collect();
        let bundle_leases = ledger
            .bundle_leases()
            .map(|(bundle_id, lease)| {
                let watched = self.bundles.get(bundle_id);
                let until = watched.and_then(|watched| watched.due);
                let left = until.map_or(lease.ttl_ms, |until| until - now.mono);
                BundleLeaseInfo {
                    bundle_id: bundle_id.clone(),
                    ttl_ms: lease.ttl_ms.0,
                    expires_at: now.wall + left,
                }
            })
            .collect();
        LeaseStatus {
            paused,
            leases,
            bundle_leases,
        }
    }

    fn lease_status(
        &self,
        now: Now,
        lease: &Lease,
        watched: Option<&Watched>,
        paused: bool,
    ) -> JobLeaseInfo {
        let mut info = lease.info(paused);
        let left = match (lease.state, watched) {
            // It stands still, and begins anew.
            _ if paused => lease.ttl_ms,
            (LeaseState::Held, Some(watched)) => watched.since + lease.ttl_ms - now.mono,
            (_, Some(watched)) => self.guarded(now.mono, watched),
            (LeaseState::Held, None) => lease.ttl_ms,
            (_, None) => lease.guarded_for(),
        };
        info.remaining_ms = left.0;
        info.refreshed_at = watched.map(|watched| watched.refreshed_at);
        info
    }

    /// How long nobody else may hold it, if it is not refreshed again.
    fn guarded(&self, now: Mono, watched: &Watched) -> Millis {
        match watched.state {
            LeaseState::Over => Millis(0),
            _ if self.paused => watched.guarded_for,
            _ => watched.since + watched.guarded_for - now,
        }
    }

    fn see_lease(&mut self, now: Now, ledger: &Ledger, key: &InstanceKey) {
        let Some(lease) = ledger.lease(key) else {
            if let Some(old) = self.jobs.remove(key) {
                self.unset(old.due, Timer::Job(key.clone()));
            }
            return;
        };
        let known = self.jobs.get_mut(key);
        let known = known.filter(|known| known.start_id == lease.start_id);
        match known {
            Some(known) if known.mark == lease.mark => return,
            Some(known) => {
                // Taken back: its holder is there, and was until now.
                if known.state != LeaseState::Held && lease.state == LeaseState::Held {
                    (known.since, known.refreshed_at) = (now.mono, now.wall);
                }
                (known.mark, known.state) = (lease.mark, lease.state);
            }
            None => {
                let watched = Watched {
                    start_id: lease.start_id.clone(),
                    mark: lease.mark,
                    state: lease.state,
                    ttl_ms: lease.ttl_ms,
                    guarded_for: lease.guarded_for(),
                    since: now.mono,
                    refreshed_at: now.wall,
                    due: None,
                };
                if let Some(old) = self.jobs.insert(key.clone(), watched) {
                    self.unset(old.due, Timer::Job(key.clone()));
                }
            }
        }
        self.set_job(key);
    }

    fn see_bundle(&mut self, now: Now, ledger: &Ledger, bundle_id: &BundleId) {
        let timer = || Timer::Bundle(bundle_id.clone());
        if let Some(old) = self.bundles.remove(bundle_id) {
            self.unset(old.due, timer());
        }
        let Some(lease) = ledger.bundle_lease(bundle_id) else {
            return;
        };
        let watched = WatchedBundle {
            mark: lease.mark,
            ttl_ms: lease.ttl_ms,
            since: now.mono,
            due: None,
        };
        self.bundles.insert(bundle_id.clone(), watched);
        self.set_bundle(bundle_id);
    }

    /// In a pause nothing is due; after it everything begins anew (LEASE-12, LEASE-16).
    fn see_pause(&mut self, now: Now, ledger: &Ledger) {
        self.paused = ledger.lease_pause().is_some();
        for watched in self.jobs.values_mut() {
            if !self.paused {
                watched.since = now.mono;
            }
        }
        for watched in self.bundles.values_mut() {
            if !self.paused {
                watched.since = now.mono;
            }
        }
        self.set_all();
    }

    fn set_all(&mut self) {
        let keys: Vec<_> = self.jobs.keys().cloned().collect();
        for key in &keys {
            self.set_job(key);
        }
        let bundles: Vec<_> = self.bundles.keys().cloned().collect();
        for bundle_id in &bundles {
            self.set_bundle(bundle_id);
        }
    }

    fn set_job(&mut self, key: &InstanceKey) {
        let Some(watched) = self.jobs.get_mut(key) else {
            return;
        };
        let length = match watched.state {
            _ if self.paused => None,
            LeaseState::Held => Some(watched.ttl_ms),
            LeaseState::Lost => Some(watched.guarded_for),
            LeaseState::Over => None,
        };
        let due = length.map(|length| watched.since + length);
        let before = std::mem::replace(&mut watched.due, due);
        self.reset(before, due, Timer::Job(key.clone()));
    }

    fn set_bundle(&mut self, bundle_id: &BundleId) {
        let Some(watched) = self.bundles.get_mut(bundle_id) else {
            return;
        };
        let due = (!self.paused).then(|| watched.since + watched.ttl_ms);
        let before = std::mem::replace(&mut watched.due, due);
        self.reset(before, due, Timer::Bundle(bundle_id.clone()));
    }

    fn reset(&mut self, before: Option<Mono>, due: Option<Mono>, timer: Timer) {
        self.unset(before, timer.clone());
        if let Some(due) = due {
            self.queue.insert((due, timer));
        }
    }

    fn unset(&mut self, before: Option<Mono>, timer: Timer) {
        if let Some(before) = before {
            self.queue.remove(&(before, timer));
        }
    }

    /// Refreshes that came while this process did not run wait to be read.
    fn forgive_stall(&mut self, now: Mono) {
        let pause = now - std::mem::replace(&mut self.seen, now);
        let late = self.queue.first().map_or(Millis(0), |(due, _)| now - *due);
        if late <= STALL {
            return;
        }
        for watched in self.jobs.values_mut() {
            watched.since = watched.since + pause;
        }
        for watched in self.bundles.values_mut() {
            watched.since = watched.since + pause;
        }
        self.set_all();
    }

    fn warning(&mut self, now: Now, ledger: &Ledger) -> Option<PauseWarning> {
        let Some(pause) = ledger.lease_pause() else {
            self.warn_at = None;
            return None;
        };
        let lasts = u64::try_from(now.wall.since(pause.since)).unwrap_or_default();
        let too_long = self.max_pause_ms.0 != 0 && lasts >= self.max_pause_ms.0;
        if !too_long || self.warn_at.is_some_and(|at| now.mono < at) {
            return None;
        }
        self.warn_at = Some(now.mono + WARN_EVERY);
        Some(PauseWarning {
            pause: pause.clone(),
            lasts: Millis(lasts),
        })
    }
}

// === impl Watched ===

impl Watched {
    fn command(&self, key: &InstanceKey) -> Option<Due> {
        let (key, start_id, mark) = (key.clone(), self.start_id.clone(), self.mark);
        match self.state {
            LeaseState::Held => Some(Due::LeaseLost {
                key,
                start_id,
                mark,
            }),
            LeaseState::Lost => Some(Due::LeaseOver {
                key,
                start_id,
                mark,
            }),
            LeaseState::Over => None,
        }
    }
}

#[cfg(test)]
mod tests;
