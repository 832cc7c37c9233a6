//! Starts that the Manager holds back because an earlier instance of the job may still run under its
//! lease (LAUNCH-13). Nothing is wrong with the node, so the place on it is kept.

use std::fmt;

use greenroom_types::call::{Detail, Refusal};
use greenroom_types::id::{JobId, NodeId};
use greenroom_types::stream::{JobLeaseInfo, LeasePause};
use greenroom_types::{Millis, Mono, Wall};
use serde::{Deserialize, Serialize};

use crate::effect::{Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::history;
use crate::job::BindingState;
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// When the Manager does not say how long it takes.
const UNTOLD: Millis = Millis(5_000);

/// The lease that a start waits for, as it is shown (LAUNCH-13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseWait {
    /// Node of the instance that has the lease, or was lost and may still run under it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_id: Option<NodeId>,
    /// Its fencing number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fence: Option<u64>,
    /// Since when the start is held back.
    pub since: Wall,
    /// Time until it is tried again; none in a pause, which ends by no time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left: Option<Millis>,
    /// The pause of all leases that it waits out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub paused: Option<LeasePause>,
}

/// Why a start is held back.
#[derive(Clone, Debug)]
pub(crate) struct HeldBack {
    node_id: Option<NodeId>,
    fence: Option<u64>,
    since: Wall,
    for_pause: bool,
}

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
        let now = self.now.wall;
        let Some(binding) = self.binding_mut(job_id, seq) else {
            return false;
        };
        binding.start = None;
        binding.counted = !counts;
        let before = binding.held_back.take();
        let told = before.is_some();
        binding.held_back = Some(Box::new(HeldBack {
            node_id: holder(refusal),
            fence: fence(refusal),
            since: before.map_or(now, |before| before.since),
            for_pause: until.is_none(),
        }));
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
                binding.held_back.is_some()
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

    /// Leases stand still, or run again.
    pub(crate) fn note_pause(&mut self, pause: Option<LeasePause>) {
        self.lease_pause = pause;
    }

    /// What a job's start is held back for; none where it is not.
    pub(crate) fn lease_wait(&self, job_id: &JobId) -> Option<LeaseWait> {
        if !self.is_held_back(job_id) {
            return None;
        }
        let binding = self.jobs.get(job_id)?.binding.as_ref()?;
        let held = binding.held_back.as_deref()?;
        let left = match self.timers.due(&Timer::LeaseWait(job_id.clone())) {
            Some(Due::Mono(at)) => Some(at - self.now.mono),
            _ => None,
        };
        // A pause that the stream has not told of yet is one since the refusal at the latest.
        let untold = || LeasePause {
            reason: String::new(),
            by: String::new(),
            since: held.since,
        };
        let paused = held
            .for_pause
            .then(|| self.lease_pause.clone().unwrap_or_else(untold));
        Some(LeaseWait {
            node_id: held.node_id.clone(),
            fence: held.fence,
            since: held.since,
            left,
            paused,
        })
    }

    /// Leases run again: what was held back for their pause is tried, and told how long it takes.
    pub(crate) fn leases_resumed(&mut self, out: &mut Effects) {
        let held: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, job)| {
                let binding = job.binding.as_ref();
                binding.is_some_and(|it| it.held_back.is_some())
            })
            .map(|(job_id, _)| job_id.clone())
            .collect();
        for job_id in held {
            self.start_held_back(&job_id, out);
        }
    }
}

// === impl LeaseWait ===

impl fmt::Display for LeaseWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance = match &self.node_id {
            Some(node_id) => format!("its instance on {node_id}"),
            None => "an earlier instance".to_owned(),
        };
        let fence = match self.fence {
            Some(fence) => format!(" (fence {fence})"),
            None => String::new(),
        };
        let Some(pause) = &self.paused else {
            return write!(f, "waits for the lease of {instance}{fence}");
        };
        write!(
            f,
            "waits for leases to be resumed: they are paused since {}",
            pause.since
        )?;
        if !pause.by.is_empty() {
            write!(f, " by {}", pause.by)?;
        }
        if !pause.reason.is_empty() {
            write!(f, " ({})", pause.reason)?;
        }
        write!(f, ", and {instance}{fence} may run on")
    }
}

fn holder(refusal: &Refusal) -> Option<NodeId> {
    match refusal.details.get("node")? {
        Detail::Text(node_id) if !node_id.is_empty() => Some(NodeId::new(node_id)),
        _ => None,
    }
}

fn fence(refusal: &Refusal) -> Option<u64> {
    match refusal.details.get("fence")? {
        Detail::Int(fence) => u64::try_from(*fence).ok(),
        Detail::Text(fence) => fence.parse().ok(),
        _ => None,
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
