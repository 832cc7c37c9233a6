//! Lease-protected instances: refreshed while they are here, started only under a lease that was
//! answered and that a guard holds, stopped before the lease is over (LEASE-04, LEASE-17).
//!
//! Time comes as an input, [`Agent::pass_time`], before every other one: whatever a worker missed
//! while it did not run, what has run out meanwhile is stopped before anything else is served
//! (LEASE-05). A pause takes all deadlines away until it is over (LEASE-10, LEASE-12).

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_types::node::{InstanceKey, RejectionCode};
use greenroom_types::{Millis, Mono, StartId};

use super::{Act, Agent, Effects, Phase};
use crate::handover::Input;
use crate::journal::Record;
use crate::lease::{CONTAINERS_MAX, LEASES_MAX, Lease, NEVER, START_ID_MAX, Until};
use crate::lease_times::Times;
use crate::order::{Refusal, Said, StartSpec, StopCause};

/// Refreshes whose answer is waited for; what is older was not answered.
const REFRESHES_MAX: usize = 64;

/// A lease as the Manager is told that it is held.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeldLease {
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) fence: u64,
}

/// What the Manager answers for one lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseItem {
    pub(crate) start_id: StartId,
    pub(crate) fence: u64,
    pub(crate) ttl: Millis,
    /// Another start holds it.
    pub(crate) superseded: bool,
}

/// What is heard of the guard.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GuardNews {
    /// There is one, and it has been told everything.
    Up,
    /// There is none, for this reason.
    Down(String),
    /// It holds this instance until then.
    Held { start_id: StartId, until: Mono },
}

/// What the core knows of leases as a whole.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    now: Mono,
    paused: bool,
    /// The pause is acknowledged once the guard holds everything without end.
    owes_ack: bool,
    /// Why there is no guard.
    no_guard: Option<String>,
    last_nonce: u64,
    /// When refreshes were sent whose answers may come.
    sent: VecDeque<(u64, Mono)>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            now: Mono(0),
            paused: false,
            owes_ack: false,
            no_guard: Some("it has not been started yet".to_owned()),
            last_nonce: 0,
            sent: VecDeque::new(),
        }
    }
}

// === impl Leases ===

impl Leases {
    pub(super) const fn now(&self) -> Mono {
        self.now
    }

    pub(super) const fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }
}

// === impl Agent ===

impl Agent {
    /// Takes the time in, before anything else is done: stops what has no lease any more, warns, and
    /// refreshes what is due.
    pub(crate) fn pass_time(&mut self, now: Mono, out: &mut Effects) {
        self.leases.now = self.leases.now.max(now);
        let now = self.leases.now;
        if !self.leases.paused {
            for (start_id, stop_at, unguarded) in self.running_leases() {
                if now >= stop_at {
                    self.lose(&start_id, "its lease was not refreshed in time", out);
                } else if unguarded.is_some_and(|at| now >= at) {
                    self.lose(&start_id, "no guard holds it", out);
                } else {
                    self.warn(&start_id, stop_at, out);
                }
            }
        }
        if self.leased().any(|(_, lease)| now >= lease.refresh_at) {
            self.refresh(out);
        }
    }

    /// When [`Agent::pass_time`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        let refresh = self.leased().map(|(_, lease)| lease.refresh_at);
        let running = self
            .instances
            .values()
            .filter(|instance| !self.leases.paused && instance.phase.may_run())
            .filter_map(|instance| instance.lease.as_ref())
            .filter(|lease| !lease.lost)
            .flat_map(|lease| {
                let warn = lease.warn_at().filter(|_| !lease.warned);
                let unguarded = lease.guarded.is_none().then(|| lease.unguarded_at());
                [Some(lease.stop_at()), warn, unguarded]
            })
            .flatten();
        refresh.chain(running).min()
    }

    /// True while all leases are kept without refresh (LEASE-10).
    pub(crate) const fn leases_paused(&self) -> bool {
        self.leases.paused
    }

    /// From when each lease runs, for a file that outlives the worker.
    pub(crate) fn lease_times(&self) -> Times {
        self.leased()
            .filter_map(|(start_id, lease)| Some((start_id.clone(), lease.since?)))
            .collect()
    }

    /// Takes on the leases of an earlier run of the worker; what is not among the times has no right
    /// to run, unless leases are paused.
    pub(crate) fn restore_leases(&mut self, times: &Times, now: Mono, out: &mut Effects) {
        self.leases.now = now;
        for (start_id, instance) in &mut self.instances {
            if let Some(lease) = &mut instance.lease {
                lease.since = times.get(start_id).copied();
                // Whether a guard holds it is not known before one is found, or none is.
                (lease.refresh_at, lease.unguarded_since) = (now, NEVER);
            }
        }
        self.hold_all(out);
    }

    /// The journal did not take the pause: it is kept in mind, and not acknowledged.
    pub(crate) const fn forget_pause_ack(&mut self) {
        self.leases.owes_ack = false;
    }

    /// A new stream: what was sent on the old one is not answered, and every lease is refreshed at
    /// once.
    pub(super) fn apply_connected(&mut self, out: &mut Effects) {
        self.leases.sent.clear();
        if self.leased().next().is_some() {
            self.refresh(out);
        }
    }

    pub(super) fn apply_lease_answer(
        &mut self,
        nonce: u64,
        items: Vec<LeaseItem>,
        out: &mut Effects,
    ) {
        let Some((_, sent)) = self.leases.sent.iter().copied().find(|(n, _)| *n == nonce) else {
            return;
        };
        // Whatever came before it is answered by it.
        self.leases.sent.retain(|(n, _)| *n > nonce);
        for item in items {
            if item.superseded {
                self.lose(&item.start_id, "another start holds the lease", out);
                self.hold(&item.start_id, Until::of(self.leases.now), out);
            } else if item.ttl > Millis(0) {
                self.renew(&item, sent, out);
            }
        }
        out.act.push(Act::SaveLeases);
    }

    fn renew(&mut self, item: &LeaseItem, sent: Mono, out: &mut Effects) {
        let Some(instance) = self.instances.get_mut(&item.start_id) else {
            return;
        };
        let Some(lease) = instance.lease.as_mut().filter(|lease| !lease.lost) else {
            return;
        };
        lease.renew(sent, item.ttl);
        if item.fence > instance.spec.fence {
            Arc::make_mut(&mut instance.spec).fence = item.fence;
            let (start_id, fence) = (item.start_id.clone(), item.fence);
            out.persist.push(Record::Fence { start_id, fence });
            out.act.push(Act::Fence(item.start_id.clone()));
        }
        self.hold_as_due(&item.start_id, out);
        self.try_start(&item.start_id, out);
    }

    pub(super) fn apply_leases_paused(&mut self, paused: bool, out: &mut Effects) {
        if self.leases.paused != paused {
            self.leases.paused = paused;
            out.persist.push(Record::LeasesPaused { paused });
            if !paused {
                self.begin_anew(out);
            }
            self.hold_all(out);
        }
        self.leases.owes_ack = paused;
        if !paused {
            out.act.push(Act::AckPause(false));
        }
        self.ensure_pause_acked(out);
    }

    /// The end of a pause: every lease that is held begins anew at this moment.
    fn begin_anew(&mut self, out: &mut Effects) {
        let now = self.leases.now;
        for instance in self.instances.values_mut() {
            let runs = instance.phase.may_run();
            if let Some(lease) = &mut instance.lease
                && (runs || lease.since.is_some())
            {
                (lease.since, lease.warned) = (Some(now), false);
            }
        }
        out.act.push(Act::SaveLeases);
        self.refresh(out);
    }

    pub(super) fn apply_guard(&mut self, news: GuardNews, out: &mut Effects) {
        match news {
            GuardNews::Up => self.leases.no_guard = None,
            GuardNews::Down(why) => {
                self.leases.no_guard = Some(why);
                let now = self.leases.now;
                for instance in self.instances.values_mut() {
                    // That there is still none begins nothing anew.
                    if let Some(lease) = &mut instance.lease
                        && (lease.guarded.take().is_some() || lease.unguarded_since == NEVER)
                    {
                        lease.unguarded_since = now;
                    }
                }
            }
            GuardNews::Held { start_id, until } => {
                let instance = self.instances.get_mut(&start_id);
                if let Some(lease) = instance.and_then(|instance| instance.lease.as_mut()) {
                    lease.guarded = Some(until);
                    self.try_start(&start_id, out);
                }
            }
        }
        self.ensure_pause_acked(out);
    }

    /// Which containers an instance has is the guard's to know before they run.
    pub(super) fn apply_made(
        &self,
        start_id: &StartId,
        containers: Vec<String>,
        out: &mut Effects,
    ) {
        let instance = self.instances.get(start_id);
        if instance.is_some_and(|instance| instance.lease.is_some()) {
            out.act.push(Act::Contain(start_id.clone(), containers));
        }
    }

    /// A leased start needs a guard that has room for it (WORK-42).
    pub(super) fn check_guard(&self, spec: &StartSpec) -> Result<(), Refusal> {
        let refuse = |detail: String| Err(Refusal::new(RejectionCode::Lease, detail));
        if !spec.leased {
            return Ok(());
        }
        if let Some(why) = &self.leases.no_guard {
            return refuse(format!("this worker has no lease guard: {why}"));
        }
        let leases = self.instances.values().filter(|it| it.lease.is_some());
        if leases.count() >= LEASES_MAX {
            return refuse(format!("this worker holds {LEASES_MAX} leases already"));
        }
        if spec.all_services().len() > CONTAINERS_MAX {
            return refuse(format!(
                "a leased job has at most {CONTAINERS_MAX} services on one node"
            ));
        }
        if spec.start_id.as_str().len() > START_ID_MAX {
            return refuse(format!(
                "the start id of a leased job is longer than {START_ID_MAX} bytes"
            ));
        }
        Ok(())
    }

    /// True when an instance may be started now; one that may not yet is started later (LEASE-17).
    pub(super) fn may_start(&mut self, start_id: &StartId, out: &mut Effects) -> bool {
        if self.is_covered(start_id) {
            return true;
        }
        let instance = self.instances.get_mut(start_id);
        if let Some(lease) = instance.and_then(|instance| instance.lease.as_mut())
            && !std::mem::replace(&mut lease.wants_start, true)
        {
            let wanted = start_id.clone();
            out.persist.push(Record::StartWanted { start_id: wanted });
        }
        self.hold_as_due(start_id, out);
        false
    }

    pub(super) fn restore_start_wanted(&mut self, start_id: &StartId) {
        let instance = self.instances.get_mut(start_id);
        if let Some(lease) = instance.and_then(|instance| instance.lease.as_mut()) {
            lease.wants_start = true;
        }
    }

    /// An instance that is not leased is covered by itself; a leased one by an answer that still
    /// holds, and by a guard.
    fn is_covered(&self, start_id: &StartId) -> bool {
        let Some(instance) = self.instances.get(start_id) else {
            return false;
        };
        let Some(lease) = &instance.lease else {
            return true;
        };
        let holds = self.leases.paused || self.leases.now < lease.stop_at();
        !lease.lost && lease.since.is_some() && holds && lease.guarded.is_some()
    }

    fn try_start(&mut self, start_id: &StartId, out: &mut Effects) {
        let waits = self.instances.get(start_id).is_some_and(|instance| {
            let wants = instance
                .lease
                .as_ref()
                .is_some_and(|lease| lease.wants_start);
            wants && instance.phase == Phase::Prepared
        });
        if waits && self.is_covered(start_id) {
            self.start(start_id, out);
        }
    }

    /// One message refreshes all leases.
    pub(super) fn refresh(&mut self, out: &mut Effects) {
        let now = self.leases.now;
        self.leases.last_nonce += 1;
        let nonce = self.leases.last_nonce;
        if self.leases.sent.len() == REFRESHES_MAX {
            self.leases.sent.pop_front();
        }
        self.leases.sent.push_back((nonce, now));
        let mut leases = Vec::new();
        for (start_id, instance) in &mut self.instances {
            let Some(lease) = instance.lease.as_mut().filter(|lease| !lease.lost) else {
                continue;
            };
            lease.sent(now);
            leases.push(HeldLease {
                key: instance.spec.key.clone(),
                start_id: start_id.clone(),
                fence: instance.spec.fence,
            });
        }
        out.act.push(Act::Refresh { nonce, leases });
    }

    fn warn(&mut self, start_id: &StartId, stop_at: Mono, out: &mut Effects) {
        let now = self.leases.now;
        let instance = self.instances.get_mut(start_id);
        if let Some(lease) = instance.and_then(|instance| instance.lease.as_mut())
            && lease.warn_at().is_some_and(|at| now >= at)
            && !std::mem::replace(&mut lease.warned, true)
        {
            out.act
                .push(Act::WarnLease(start_id.clone(), stop_at - now));
        }
    }

    /// Ends an instance that has no right to run, without grace.
    fn lose(&mut self, start_id: &StartId, why: &str, out: &mut Effects) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let Some(lease) = instance.lease.as_mut().filter(|lease| !lease.lost) else {
            return;
        };
        (lease.lost, lease.wants_start) = (true, false);
        let (key, phase) = (instance.spec.key.clone(), instance.phase.clone());
        let kill = Act::Stop(start_id.clone(), Millis(0), StopCause::Lease);
        match phase {
            Phase::Stopping { removing: true, .. } => return,
            Phase::Stopping { .. } => return out.act.push(kill),
            _ => {}
        }
        let reason = format!("LEASE_LOST: {why}");
        instance.failed = Some(reason.clone());
        self.drive(start_id, Input::Died, out);
        let last = Said::Stopped { completed: false };
        self.end(start_id, last, Millis(0), true, out);
        self.say(&key, start_id, Said::Failed { reason }, out);
        match phase {
            Phase::Starting | Phase::Running => out.act.push(kill),
            Phase::Waiting => self.apply_removed(start_id, out),
            _ => self.remove(start_id, out),
        }
    }

    /// What may run under a lease: when it must stop, and when it must because no guard holds it.
    fn running_leases(&self) -> Vec<(StartId, Mono, Option<Mono>)> {
        let running = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.phase.may_run());
        running
            .filter_map(|(start_id, instance)| {
                let lease = instance.lease.as_ref().filter(|lease| !lease.lost)?;
                let unguarded = lease.guarded.is_none().then(|| lease.unguarded_at());
                Some((start_id.clone(), lease.stop_at(), unguarded))
            })
            .collect()
    }

    fn leased(&self) -> impl Iterator<Item = (&StartId, &Lease)> {
        self.instances.iter().filter_map(|(start_id, instance)| {
            let lease = instance.lease.as_ref().filter(|lease| !lease.lost)?;
            Some((start_id, lease))
        })
    }

    fn hold_all(&self, out: &mut Effects) {
        for start_id in self.instances.keys() {
            self.hold_as_due(start_id, out);
        }
    }

    /// Tells guard and supervisor until when an instance may run that runs, or is to run and has the right to.
    fn hold_as_due(&self, start_id: &StartId, out: &mut Effects) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let Some(lease) = instance.lease.as_ref().filter(|lease| !lease.lost) else {
            return;
        };
        if instance.phase.may_run() || (lease.wants_start && lease.since.is_some()) {
            let until = if self.leases.paused {
                Until::of(NEVER)
            } else {
                lease.until()
            };
            self.hold(start_id, until, out);
        }
    }

    fn hold(&self, start_id: &StartId, until: Until, out: &mut Effects) {
        if self
            .instances
            .get(start_id)
            .is_some_and(|it| it.lease.is_some())
        {
            out.act.push(Act::Hold(start_id.clone(), until));
        }
    }

    fn ensure_pause_acked(&mut self, out: &mut Effects) {
        let is_safe = self.leases.no_guard.is_some()
            || self.instances.values().all(|instance| {
                let may_run = instance.phase.may_run();
                let kept = instance.lease.as_ref().filter(|lease| !lease.lost);
                kept.is_none_or(|lease| !may_run || lease.guarded == Some(NEVER))
            });
        if self.leases.owes_ack && is_safe {
            self.leases.owes_ack = false;
            out.act.push(Act::AckPause(true));
        }
    }
}

// === impl Phase ===

impl Phase {
    /// Something of it may run.
    pub(super) const fn may_run(&self) -> bool {
        matches!(
            self,
            Self::Starting
                | Self::Running
                | Self::Stopping {
                    removing: false,
                    ..
                }
        )
    }
}

#[cfg(test)]
mod tests;
