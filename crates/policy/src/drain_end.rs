//! How a drain ends: its time is over, the Manager took the terminate, the node is gone (DRAIN-05,
//! DRAIN-07, DRAIN-08, DRAIN-13). A drain that took jobs down with its node ends when it is known
//! which of them have another one (DRAIN-24).

use greenroom_placement::FailureReason;
use greenroom_types::{JobId, NodeId};

use crate::drain::{DrainPhase, DrainStatus};
use crate::effect::{Effects, MirrorState};
use crate::job::Standing;
use crate::policy::Policy;

// === impl Policy ===

impl Policy {
    /// The time of a drain is over (DRAIN-07, DRAIN-08).
    pub(crate) fn end_drain_time(&mut self, node_id: &NodeId, out: &mut Effects) {
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        if !drain.state.phase.is_open() {
            return;
        }
        if !drain.state.force {
            self.set_phase(node_id, DrainPhase::Partial, None, out);
            return;
        }
        self.mark_terminated(node_id, out);
        self.end_node_of_drain(node_id, out);
    }

    /// Jobs that are still there go down with the node.
    fn mark_terminated(&mut self, node_id: &NodeId, out: &mut Effects) {
        let left: Vec<JobId> = self
            .drains
            .get(node_id)
            .into_iter()
            .flat_map(|drain| &drain.state.jobs)
            .filter(|job| matches!(job.status, DrainStatus::Migrating | DrainStatus::Stuck))
            .map(|job| job.job_id.clone())
            .collect();
        for job_id in left {
            self.set_drain_job(node_id, &job_id, DrainStatus::Terminated, None, out);
        }
    }

    /// The Manager answered the terminate of a drain.
    pub(crate) fn drain_terminate_replied(
        &mut self,
        node_id: &NodeId,
        ok: bool,
        out: &mut Effects,
    ) {
        let terminating = self
            .drains
            .get(node_id)
            .is_some_and(|drain| drain.state.phase == DrainPhase::Terminating);
        if terminating && !ok {
            self.set_phase(node_id, DrainPhase::Failed, Some("terminateFailed"), out);
        } else if terminating && !self.takes_jobs_down(node_id) {
            self.set_phase(node_id, DrainPhase::Done, None, out);
        }
    }

    /// The node stops: whatever was left went with it (DRAIN-13), and was recovered where there is room.
    pub(crate) fn drain_loses_node(&mut self, node_id: &NodeId, out: &mut Effects) {
        let phase = self.drains.get(node_id).map(|drain| drain.state.phase);
        match phase {
            Some(phase) if phase.is_open() => {
                self.mark_terminated(node_id, out);
                self.tell_left_without(node_id, out);
                self.set_phase(node_id, DrainPhase::Done, Some("nodeLost"), out);
            }
            Some(DrainPhase::Terminating) => {
                self.tell_left_without(node_id, out);
                self.set_phase(node_id, DrainPhase::Done, None, out);
            }
            _ => {}
        }
    }

    /// Jobs go down with the node, and it has not stopped yet.
    fn takes_jobs_down(&self, node_id: &NodeId) -> bool {
        let record = self.nodes.get(node_id);
        let runs = record.is_some_and(|record| record.state < MirrorState::Stopping);
        runs && !self.went_down(node_id).is_empty()
    }

    fn went_down(&self, node_id: &NodeId) -> Vec<JobId> {
        let drain = self.drains.get(node_id).into_iter();
        drain
            .flat_map(|drain| &drain.state.jobs)
            .filter(|job| job.status == DrainStatus::Terminated)
            .map(|job| job.job_id.clone())
            .collect()
    }

    /// Names the jobs that went down with the node and have no other one, with the reason (DRAIN-24).
    fn tell_left_without(&mut self, node_id: &NodeId, out: &mut Effects) {
        for job_id in self.went_down(node_id) {
            self.note_shares(node_id, &job_id);
            if let Some(reason) = self.left_without(&job_id) {
                let status = DrainStatus::Terminated;
                self.set_drain_job(node_id, &job_id, status, Some(reason), out);
            }
        }
    }

    /// Why a job that should run has no node; none where it has one, or is not to run.
    fn left_without(&self, job_id: &JobId) -> Option<String> {
        let standing = self.standing(self.jobs.get(job_id)?);
        match standing {
            Standing::Pending => Some(FailureReason::NoCapacityInAnyPool.code().to_owned()),
            Standing::StartRetry
            | Standing::RecoverySpacing
            | Standing::BundleBroken { .. }
            | Standing::Terminal { .. } => Some(standing.to_string()),
            _ => None,
        }
    }
}
