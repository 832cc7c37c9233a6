//! Restart ceilings, verdicts, broken bundles (CEIL).
//!
//! The ceiling is a rate over the trailing hour, kept per job. A verdict makes a job terminal in this
//! instance at once, whatever the Manager has heard of it so far.

use greenroom_types::call::Call;
use greenroom_types::{BundleId, JobId, Millis, Mono, NodeId, Now};

use crate::calls::Purpose;
use crate::effect::{Callback, Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::job::{JobRecord, Verdict};
use crate::policy::Policy;
use crate::settings::{CALL_RETRY, RESTART_WINDOW};
use crate::timer::{Due, Timer};

/// What counting a trigger came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Within,
    Tripped,
}

impl Counted {
    pub(crate) const fn trips(self) -> bool {
        matches!(self, Self::Tripped)
    }
}

impl JobRecord {
    /// Triggers younger than an hour; one exactly an hour old does not count (CEIL-01).
    pub(crate) fn restarts_at(&self, now: Mono) -> usize {
        self.restarts.iter().filter(|until| **until > now).count()
    }

    /// Takes up what earlier instances counted, as far as the history tells (HYDR-10); not the failure
    /// that is a trigger now (HYDR-08).
    pub(crate) fn recount(&mut self, now: Now, trigger: Option<u64>) {
        let mut failures = crate::history::failures(&self.seen);
        failures.retain(|(ordinal, _)| Some(*ordinal) != trigger);
        for (_, at) in failures {
            let age = u64::try_from(now.wall.0.saturating_sub(at.0)).unwrap_or(0);
            if age < RESTART_WINDOW.0 {
                let left = Millis(RESTART_WINDOW.0 - age);
                self.restarts.push_back(now.mono + left);
            }
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Counts one trigger and judges it (CEIL-02, CEIL-03).
    pub(crate) fn count_restart(&mut self, job_id: &JobId, out: &mut Effects) -> Counted {
        let now = self.now.mono;
        let limit = self
            .spec(job_id)
            .and_then(|spec| self.settings.ceilings.limit(&spec.requirements));
        let Some(job) = self.jobs.get_mut(job_id) else {
            return Counted::Within;
        };
        job.restarts.push_back(now + RESTART_WINDOW);
        while job.restarts.front().is_some_and(|until| *until <= now) {
            job.restarts.pop_front();
        }
        let count = job.restarts.len();
        match limit {
            Some(limit) if count > limit as usize => {
                let mut reason = format!(
                    "job {job_id} failed {count} times within an hour; its limit is {limit} restarts"
                );
                if let Some(last) = crate::history::last_failure(&job.seen) {
                    reason.push_str("; last ");
                    reason.push_str(&last);
                }
                self.trip(job_id, reason, out);
                Counted::Tripped
            }
            _ => Counted::Within,
        }
    }

    /// The ceiling is passed: an essential job breaks its bundle, another one is dropped (CEIL-05).
    fn trip(&mut self, job_id: &JobId, reason: String, out: &mut Effects) {
        self.give_verdict(job_id, &reason, out);
        if self.is_essential(job_id) {
            self.break_bundle_of(job_id, reason, out);
        } else {
            self.tell_dropped(job_id, out);
        }
    }

    /// A `drop` job that failed is at its end (CEIL-09).
    pub(crate) fn drop_job(&mut self, job_id: &JobId, out: &mut Effects) {
        let reason =
            format!("job {job_id} failed and is not placed again (onRuntimeFailure: drop)");
        self.end_for_good(job_id, reason, out);
    }

    /// Verdict, then the drop, then the bundle if the job is essential (CEIL-09 to CEIL-11).
    pub(crate) fn end_for_good(&mut self, job_id: &JobId, reason: String, out: &mut Effects) {
        self.give_verdict(job_id, &reason, out);
        self.tell_dropped(job_id, out);
        if self.is_essential(job_id) {
            self.break_bundle_of(job_id, reason, out);
        }
    }

    fn tell_dropped(&mut self, job_id: &JobId, out: &mut Effects) {
        self.counters.jobs_dropped += 1;
        out.callback(Callback::OnJobDropped {
            job_id: job_id.clone(),
        });
    }

    /// Absent specifications read as essential, like an absent `essential` (BUNDLE-04).
    fn is_essential(&self, job_id: &JobId) -> bool {
        self.spec(job_id)
            .is_none_or(|spec| spec.requirements.essential)
    }

    /// From here on the job is terminal in this instance (CEIL-12).
    fn give_verdict(&mut self, job_id: &JobId, reason: &str, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        job.verdict = Some(Box::new(Verdict {
            reason: reason.to_owned(),
            accepted: false,
            echoed: false,
            sent_at: self.now.mono,
        }));
        if let Some(spot) = job.spot.clone() {
            self.fleet.set_released(&spot, true);
        }
        self.send_verdict(job_id, out);
        self.refresh(job_id);
    }

    /// Sends a verdict that the Manager has not accepted yet (CEIL-13).
    pub(crate) fn send_verdict(&mut self, job_id: &JobId, out: &mut Effects) {
        let now = self.now.mono;
        let Some(verdict) = self
            .jobs
            .get_mut(job_id)
            .and_then(|job| job.verdict.as_mut())
        else {
            return;
        };
        if verdict.accepted {
            return;
        }
        verdict.sent_at = now;
        let call = Call::MarkJobFailed {
            job_id: job_id.clone(),
            reason: verdict.reason.clone(),
        };
        let purpose = Purpose::Verdict {
            job_id: job_id.clone(),
        };
        self.send(call, purpose, out);
    }

    pub(crate) fn verdict_replied(
        &mut self,
        job_id: &JobId,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        if let Err(failure) = &result {
            let message = format!("the verdict on job {job_id:?} was not taken: {failure}");
            self.report(ErrorInfo::new("verdictFailed", message).job(job_id), out);
        }
        let now = self.now.mono;
        let Some(verdict) = self
            .jobs
            .get_mut(job_id)
            .and_then(|job| job.verdict.as_mut())
        else {
            return;
        };
        if result.is_ok() {
            verdict.accepted = true;
        } else {
            let due = Due::Mono((verdict.sent_at + CALL_RETRY).max(now));
            self.timers.set(Timer::VerdictRetry(job_id.clone()), due);
        }
    }

    fn break_bundle_of(&mut self, job_id: &JobId, reason: String, out: &mut Effects) {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let Some(bundle_id) = spot.map(|spot| spot.bundle_id.clone()) else {
            return;
        };
        let Some(bundle) = self.bundles.get_mut(&bundle_id) else {
            return;
        };
        // Once per breaking (CEIL-11).
        if bundle.broken.is_some() {
            return;
        }
        bundle.broken = Some(reason.clone());
        self.counters.bundles_broken += 1;
        self.leave_unstarted(&bundle_id, out);
        self.refresh_bundle(&bundle_id);
        out.callback(Callback::OnBundleBroken { bundle_id, reason });
    }

    /// The Manager has a verdict on a job. One that somebody else gave breaks the bundle of an essential
    /// job as one of the policy's own does (CEIL-14).
    pub(crate) fn verdict_told(&mut self, job_id: &JobId, reason: &str, out: &mut Effects) {
        if self.is_essential(job_id) {
            self.break_bundle_of(job_id, reason.to_owned(), out);
        }
    }

    /// A verdict was lifted by hand: the bundle is whole again when no essential job of it has one (CEIL-08).
    pub(crate) fn verdict_lifted(&mut self, job_id: &JobId) {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let Some(bundle_id) = spot.map(|spot| spot.bundle_id.clone()) else {
            return;
        };
        if let Some(bundle) = self.bundles.get_mut(&bundle_id) {
            bundle.broken = None;
        }
        self.rebuild_broken(&bundle_id);
        self.refresh_bundle(&bundle_id);
    }

    /// Operators say "try again" by updating a bundle: its mark, verdicts and histories end
    /// (CEIL-06, CEIL-08).
    pub(crate) fn forgive(&mut self, bundle_id: &BundleId) {
        if let Some(bundle) = self.bundles.get_mut(bundle_id) {
            bundle.broken = None;
        }
        for job_id in self.jobs_of(bundle_id) {
            self.timers.stop(&Timer::VerdictRetry(job_id.clone()));
            if let Some(job) = self.jobs.get_mut(&job_id) {
                if job.verdict.take().is_some() {
                    job.cause = crate::job::Cause::Launch;
                }
                job.restarts.clear();
                job.resting = false;
            }
        }
    }

    /// A node bought for a job has started: that is a fresh beginning for the job (CEIL-06).
    pub(crate) fn clear_restarts_of_node(&mut self, node_id: &NodeId) {
        let record = self.nodes.get(node_id);
        let job_id = record
            .and_then(|record| record.tag("jobId"))
            .map(JobId::from);
        if let Some(job) = job_id.and_then(|job_id| self.jobs.get_mut(&job_id)) {
            job.restarts.clear();
        }
    }
}
