//! Jobs to be placed: who is one, in which order, and when they are tried.
//!
//! A job is looked at again whenever something about it changes ([`Policy::refresh`]); it is tried
//! when it has just become placeable, and with all other pending ones when something happened that
//! may have made room (PEND-02). Nothing is tried by polling, and an input after which nothing is
//! pending costs nothing (PEND-07).

use std::collections::BTreeSet;

use greenroom_types::job::JobState;
use greenroom_types::{BundleId, JobId, Wall};

use crate::effect::Effects;
use crate::job::{Cause, JobRecord, Standing, Wait};
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// Place in line: by first announcement of the bundle, primary before backup, order of the
/// specification (PEND-04).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingKey {
    bundle: u64,
    replica_index: u32,
    spec: usize,
    job_id: JobId,
}

/// The jobs to be placed, and which of them this input tries.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    all: BTreeSet<PendingKey>,
    /// To be tried at the end of this input.
    now: BTreeSet<JobId>,
    /// Something may have made room: try them all (PEND-03).
    everything: bool,
    /// Already tried within this input.
    tried: BTreeSet<JobId>,
}

// === impl Pending ===

impl Pending {
    /// Something happened that may have made room (PEND-02).
    pub(crate) const fn wake(&mut self) {
        self.everything = true;
    }

    /// True when all pending jobs are to be tried at the end of this input.
    pub(crate) const fn is_woken(&self) -> bool {
        self.everything
    }

    /// Tries this job at the end of the input, if it is pending then.
    pub(crate) fn try_now(&mut self, job_id: &JobId) {
        self.now.insert(job_id.clone());
    }

    /// This input has tried it: the pass at its end does not try it again.
    pub(crate) fn note_tried(&mut self, job_id: &JobId) {
        self.tried.insert(job_id.clone());
    }

    pub(crate) fn remove(&mut self, key: &PendingKey) {
        self.all.remove(key);
    }

    /// All pending jobs in the order in which they are tried.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &JobId> {
        self.all.iter().map(|key| &key.job_id)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

// === impl Policy ===

impl Policy {
    /// Why a job is not placed, or that it is to be.
    pub(crate) fn standing(&self, job: &JobRecord) -> Standing {
        let Some(spot) = &job.spot else {
            return Standing::NotPlacedByPolicy;
        };
        if job.binding.is_some() {
            return Standing::Bound;
        }
        if let Some(reason) = job.terminal() {
            let reason = reason.to_owned();
            return Standing::Terminal { reason };
        }
        if job.seen.state == JobState::Post {
            return Standing::Over;
        }
        if job.seen.job.is_dormant() {
            return Standing::Dormant;
        }
        let bundle = self.bundles.get(&spot.bundle_id);
        if let Some(bundle) = bundle {
            if !bundle.is_live() {
                return Standing::BundleNotLive;
            }
            if let Some(reason) = &bundle.broken {
                let reason = reason.clone();
                return Standing::BundleBroken { reason };
            }
        }
        if let Some(at) = self.scheduled_for(job) {
            return Standing::Scheduled { at };
        }
        let Some(status) = bundle.and_then(|bundle| bundle.status.as_ref()) else {
            return Standing::BundleUnknown;
        };
        if status.bundle.job(spot.job_name.as_str()).is_none()
            || spot.replica_index >= status.bundle.copies()
        {
            return Standing::SpecUnknown;
        }
        if job.resting {
            return Standing::StoppedByRequest;
        }
        match job.wait {
            Some(Wait::StartRetry) => Standing::StartRetry,
            Some(Wait::Spacing) => Standing::RecoverySpacing,
            None => Standing::Pending,
        }
    }

    /// Brings timers and the set of pending jobs in line with where the job stands now. A job that
    /// has just become placeable is tried at the end of this input (LAUNCH-01).
    pub(crate) fn refresh(&mut self, job_id: &JobId) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let standing = self.standing(job);
        let old_key = job.pending.clone();
        let new_key = (standing == Standing::Pending).then(|| self.pending_key(job));

        let scheduled = Timer::ScheduledStart(job_id.clone());
        match standing {
            Standing::Scheduled { at } => {
                // The same time keeps its timer and its place in line (SCHED-04).
                if self.timers.due(&scheduled) != Some(Due::Wall(at)) {
                    self.timers.set(scheduled, Due::Wall(at));
                }
            }
            _ => self.timers.stop(&scheduled),
        }
        let waits = matches!(standing, Standing::StartRetry | Standing::RecoverySpacing);
        if !waits {
            self.stop_wait(job_id);
        }
        if standing != Standing::Pending {
            self.timers.stop(&Timer::LaunchGate(job_id.clone()));
        }
        if old_key != new_key {
            if let Some(key) = old_key {
                self.pending.all.remove(&key);
            } else {
                self.pending.try_now(job_id);
            }
            if let Some(key) = &new_key {
                self.pending.all.insert(key.clone());
            }
            if let Some(job) = self.jobs.get_mut(job_id) {
                job.pending = new_key;
            }
        }
    }

    /// Looks again at every job of a bundle.
    pub(crate) fn refresh_bundle(&mut self, bundle_id: &BundleId) {
        for job_id in self.jobs_of(bundle_id) {
            self.refresh(&job_id);
        }
    }

    pub(crate) fn jobs_of(&self, bundle_id: &BundleId) -> Vec<JobId> {
        self.bundles
            .get(bundle_id)
            .map(|bundle| bundle.jobs.iter().cloned().collect())
            .unwrap_or_default()
    }

    pub(crate) fn pending_key(&self, job: &JobRecord) -> PendingKey {
        let spot = job.spot.as_ref();
        let bundle = spot.and_then(|spot| self.bundles.get(&spot.bundle_id));
        let spec = spot.and_then(|spot| {
            let jobs = &bundle?.status.as_ref()?.bundle.jobs;
            jobs.iter().position(|spec| spec.job_name == spot.job_name)
        });
        PendingKey {
            bundle: bundle.map_or(job.order, |bundle| bundle.order),
            replica_index: spot.map_or(0, |spot| spot.replica_index),
            spec: spec.unwrap_or(usize::MAX),
            job_id: job.job_id().clone(),
        }
    }

    /// When a job that is launched by its schedule is to be placed; none once that is past
    /// (SCHED-01). Recoveries ignore the schedule (SCHED-08).
    pub(crate) fn scheduled_for(&self, job: &JobRecord) -> Option<Wall> {
        if job.cause == Cause::Recovery {
            return None;
        }
        let start = job.seen.job.start_date_time?;
        let spot = job.spot.as_ref()?;
        let lead = self
            .bundles
            .get(&spot.bundle_id)
            .and_then(|bundle| bundle.status.as_ref())
            .and_then(|status| {
                self.settings
                    .pool(status.bundle.pool_of(spot.replica_index).as_str())
            })
            .map(greenroom_types::pool::Pool::placement_lead)
            .unwrap_or_default();
        let at = start.plus(-i64::try_from(lead.0).unwrap_or(i64::MAX));
        (at > self.now.wall).then_some(at)
    }

    /// Puts a job off until its own timer (PEND-06).
    pub(crate) fn wait(&mut self, job_id: &JobId, wait: Wait, until: greenroom_types::Mono) {
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.wait = Some(wait);
            let timer = match wait {
                Wait::StartRetry => Timer::StartRetry(job_id.clone()),
                Wait::Spacing => Timer::RecoverySpacing(job_id.clone()),
            };
            self.timers.set(timer, Due::Mono(until));
        }
        self.refresh(job_id);
    }

    fn stop_wait(&mut self, job_id: &JobId) {
        if let Some(job) = self.jobs.get_mut(job_id)
            && job.wait.take().is_some()
        {
            self.timers.stop(&Timer::StartRetry(job_id.clone()));
            self.timers.stop(&Timer::RecoverySpacing(job_id.clone()));
        }
    }

    /// The wait is over: the job is pending like any other, and tried now.
    pub(crate) fn end_wait(&mut self, job_id: &JobId) {
        if let Some(job) = self.jobs.get_mut(job_id)
            && job.wait.take().is_some()
        {
            self.refresh(job_id);
        }
    }

    /// The pass at the end of an input.
    pub(crate) fn run_pending(&mut self, out: &mut Effects) {
        let everything = std::mem::take(&mut self.pending.everything);
        let now = std::mem::take(&mut self.pending.now);
        if (everything || !now.is_empty()) && !self.pending.all.is_empty() {
            let keys: Vec<PendingKey> = self
                .pending
                .all
                .iter()
                .filter(|key| everything || now.contains(&key.job_id))
                .filter(|key| !self.pending.tried.contains(&key.job_id))
                .cloned()
                .collect();
            for key in keys {
                // A verdict within the pass may have taken others out of it.
                if self.pending.all.contains(&key) {
                    self.place(&key.job_id, out);
                }
            }
        }
        self.pending.tried.clear();
        self.pending.now.clear();
        self.pending.everything = false;
    }
}
