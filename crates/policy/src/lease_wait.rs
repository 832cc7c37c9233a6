//! Starts that the Manager holds back because an earlier instance of the job may still run under its
//! lease (LAUNCH-13). Nothing is wrong with the node, so the place on it is kept.

use greenroom_types::call::{Detail, Refusal};
use greenroom_types::id::JobId;
use greenroom_types::stream::JobLeaseInfo;
use greenroom_types::{Millis, Mono};

use crate::effect::{Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::history;
use crate::job::BindingState;
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// When the Manager does not say how long it takes.
const UNTOLD: Millis = Millis(5_000);

// === impl Policy ===

impl Policy {
    /// Takes a start that was refused for a lease. False for any other failure, and for a binding that
    /// is no longer the job's.
    pub(crate) fn hold_back(
        &mut self,
        job_id: &JobId,
        seq: u64,
        counts: bool,
        failure: &CallFailure,
        out: &mut Effects,
    ) -> bool {
        let Some((refusal, until)) = lease_refusal(failure, self.now.mono) else {
            return false;
        };
        let Some(binding) = self.binding_mut(job_id, seq) else {
            return false;
        };
        binding.start = None;
        binding.counted = !counts;
        let told = std::mem::replace(&mut binding.held_back, true);
        let timer = Timer::LeaseWait(job_id.clone());
        match until {
            Some(until) => self.timers.set(timer, Due::Mono(until)),
            // Nothing but the end of the pause changes it.
            None => self.timers.stop(&timer),
        }
        if !told {
            let code = match until {
                Some(_) => "leaseHeld",
                None => "leasesPaused",
            };
            let message = format!("job {job_id:?} is not started yet: {}", refusal.message);
            self.report(ErrorInfo::new(code, message).job(job_id), out);
        }
        self.leave_held_back(job_id, out);
        true
    }

    /// What runs where it was before is bound there again, instead of a start that waits for its end
    /// (BIND-07).
    pub(crate) fn leave_held_back(&mut self, job_id: &JobId, out: &mut Effects) {
        if !self.is_held_back(job_id) {
            return;
        }
        let runs_again = self.jobs.get(job_id).is_some_and(|job| {
            let runs = history::runs(&job.seen);
            self.longest_running(job, &runs).is_some()
        });
        if runs_again && let Some(binding) = self.unbind(job_id) {
            self.timers.stop(&Timer::LeaseWait(job_id.clone()));
            self.adopt(job_id, out);
            self.refresh(job_id);
            self.release_single_use(&binding, out);
            self.pending.wake();
        }
    }

    fn is_held_back(&self, job_id: &JobId) -> bool {
        let job = self.jobs.get(job_id);
        job.and_then(|job| job.binding.as_ref())
            .is_some_and(|binding| {
                binding.held_back
                    && binding.state == BindingState::Placing
                    && binding.start.is_none()
            })
    }

    /// The wait is over, or the key is free: the start is sent again, if it still is to be.
    pub(crate) fn start_held_back(&mut self, job_id: &JobId, out: &mut Effects) {
        self.timers.stop(&Timer::LeaseWait(job_id.clone()));
        if self.is_held_back(job_id) && self.is_live() {
            self.start(job_id, out);
        }
    }

    pub(crate) fn lease_changed(&mut self, lease: &JobLeaseInfo, out: &mut Effects) {
        if lease.state == "released" {
            self.start_held_back(&lease.key.job_id, out);
        }
    }

    /// Leases run again: what was held back for their pause is tried, and told how long it takes.
    pub(crate) fn leases_resumed(&mut self, out: &mut Effects) {
        let held: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.binding.as_ref().is_some_and(|it| it.held_back))
            .map(|(job_id, _)| job_id.clone())
            .collect();
        for job_id in held {
            self.start_held_back(&job_id, out);
        }
    }
}

/// A refusal for a lease, and until when the call is not to be tried again; none: until leases are
/// resumed.
fn lease_refusal(failure: &CallFailure, now: Mono) -> Option<(&Refusal, Option<Mono>)> {
    let refusal = failure.refusal()?;
    match refusal.reason.as_str() {
        "leases_paused" => Some((refusal, None)),
        "lease_held" => {
            let wait = match refusal.details.get("retry_after_ms") {
                Some(Detail::Int(ms)) => u64::try_from(*ms).map_or(UNTOLD, Millis),
                _ => UNTOLD,
            };
            Some((refusal, Some(now + wait)))
        }
        _ => None,
    }
}
