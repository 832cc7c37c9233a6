//! Instances that run and that a Manager restored from a backup does not know (BIND-09): its refusal of a
//! start is how the policy hears of them.

use greenroom_types::call::{Call, Detail, Status};
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, NodeId, StartId};

use crate::calls::Purpose;
use crate::effect::{Effects, ErrorInfo, MirrorState};
use crate::event::CallFailure;
use crate::history;
use crate::job::Wait;
use crate::policy::Policy;
use crate::settings::CALL_RETRY;

// === impl Policy ===

impl Policy {
    /// Takes a start that was refused because its key runs elsewhere, unknown to the record: that one is
    /// taken over where nothing speaks against it, and told to people once where something does. False for
    /// any other failure, and for a binding that is no longer the job's.
    pub(crate) fn meet_unrecorded(
        &mut self,
        job_id: &JobId,
        seq: u64,
        failure: &CallFailure,
        out: &mut Effects,
    ) -> bool {
        let Some((node_id, start_id)) = found(failure) else {
            return false;
        };
        let Some(binding) = self.binding_mut(job_id, seq) else {
            return false;
        };
        let (role, cause, decided_at) = (binding.role.clone(), binding.cause, binding.decided_at);
        self.counters.placements_dispatch_failed += 1;
        let in_the_way = self.against_adopting(job_id, &node_id);
        let told = self.jobs.get_mut(job_id).is_some_and(|job| {
            let before = job.unrecorded.replace(Box::new(start_id.clone()));
            before.is_some_and(|before| *before == start_id)
        });
        if !told {
            let mut message = format!(
                "job {job_id:?} runs on node {node_id:?} (start {start_id}), which the Manager's restored \
                 record does not know: "
            );
            match in_the_way {
                None => message.push_str("it is taken over as it runs"),
                Some(why) => message.push_str(&format!(
                    "it is not taken over, because {why}; decide with `greenroom ctl AdoptInstance`, or \
                     stop it there"
                )),
            }
            let error = ErrorInfo::new("unrecordedInstance", message);
            self.report(error.job(job_id).node(&node_id), out);
        }
        // The node of the refused start is not to blame. The job waits for what comes of this; a start
        // after that finds out whether anything has changed.
        let left = self.unbind(job_id);
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.cause = cause;
        }
        if in_the_way.is_none() {
            let call = Call::AdoptInstance {
                node_id,
                key: InstanceKey::new(job_id.clone(), role),
                start_id: Some(start_id),
            };
            let purpose = Purpose::Tell {
                what: "taking over what runs",
                job_id: job_id.clone(),
            };
            self.send(call, purpose, out);
        }
        let until = (decided_at + CALL_RETRY).max(self.now.mono);
        self.wait(job_id, Wait::StartRetry, until);
        if let Some(left) = left {
            self.release_single_use(&left, out);
        }
        self.pending.wake();
        true
    }

    /// What speaks against taking over an instance of a job on a node, in words.
    fn against_adopting(&self, job_id: &JobId, node_id: &NodeId) -> Option<&'static str> {
        let job = self.jobs.get(job_id)?;
        let node = self.nodes.get(node_id);
        if node.is_none_or(|node| node.state != MirrorState::Running) {
            return Some("its node is not in service");
        }
        let condition = self.fleet.condition(node_id);
        if condition.is_some_and(|condition| condition.terminating) {
            return Some("its node is being ended");
        }
        if history::runs(&job.seen).iter().any(|run| run.is_live()) {
            return Some("the record shows another instance of it");
        }
        None
    }
}

/// Node and start of the instance that a refusal names.
fn found(failure: &CallFailure) -> Option<(NodeId, StartId)> {
    let refusal = failure.refusal()?;
    if refusal.status != Status::FailedPrecondition || refusal.reason != "unrecorded_instance" {
        return None;
    }
    let text = |name: &str| match refusal.details.get(name) {
        Some(Detail::Text(text)) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    };
    Some((NodeId::new(text("node")?), StartId::new(text("start_id")?)))
}
