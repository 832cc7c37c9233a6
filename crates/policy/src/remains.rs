//! What is left of a job's earlier instance: no place for the next one while it is there (RECOV-08), and
//! worth a moment's wait where there is no other (RECOV-17).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_placement::{Decision, Needs, Request, Side, place};
use greenroom_types::{JobId, MigrationId, NodeId};

use crate::history::{self, Run};
use crate::job::{JobRecord, Left};
use crate::policy::Policy;
use crate::timer::{Due, Timer};

// === impl Policy ===

impl Policy {
    /// Reads anew on which nodes an instance of the job is still ending, and keeps their room for it: one
    /// that the history shows so, and one that was told to stop and that it does not show so yet. What is
    /// told of an end comes after the call that asked for it, and a start that was under way may not be in
    /// the history at all.
    pub(crate) fn note_remains(&mut self, job_id: &JobId) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let runs = history::runs(&job.seen);
        let slot = job.slot();
        let ending = runs
            .iter()
            .filter(|run| run.leaves_remains(self.is_running(&run.node_id)));
        let holder = ending
            .clone()
            .find(|run| run.holds_its_key() && run.role == slot)
            .map(|run| run.node_id.clone());
        let mut after: BTreeSet<NodeId> = ending.map(|run| run.node_id.clone()).collect();
        let told = job.strays.keys().filter(|key| {
            let last = runs.iter().rfind(|run| run.is_at(&key.0, &key.1));
            self.is_running(&key.1) && !job.is_side(key) && last.is_none_or(Run::is_live)
        });
        after.extend(told.map(|(_, node_id)| node_id.clone()));
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        job.key_holder = holder;
        job.left.retain(|left| after.contains(&left.node_id));
        // Of what was never bound here nobody knows more than how the job is defined at this moment; it
        // goes on holding that, whatever the job is changed to.
        if let Some(defined) = &job.seen.job.auto_placement {
            for node_id in &after {
                if job.left.iter().all(|left| left.node_id != *node_id) {
                    job.left.reserve_exact(1);
                    job.left.push(Left {
                        node_id: node_id.clone(),
                        needs: Arc::new(Needs::of(&defined.requirements)),
                        gpu_index: None,
                    });
                }
            }
        }
        let before = std::mem::replace(&mut job.remains, after.clone());
        self.move_remains(job_id, &before, &after);
    }

    /// A side of a job is about to leave its node: what is left of it there holds what it was bound with.
    pub(crate) fn keep_left(&mut self, job_id: &JobId, node_id: &NodeId, side: Side) {
        if !self.is_running(node_id) {
            return;
        }
        let mut bound = self.fleet.jobs_on(node_id).iter();
        let bound = bound.find(|bound| bound.job_id == *job_id && bound.side == side);
        let left = bound.and_then(|bound| {
            Some(Left {
                node_id: node_id.clone(),
                needs: bound.needs.clone()?,
                gpu_index: bound.gpu_index,
            })
        });
        if let (Some(left), Some(job)) = (left, self.jobs.get_mut(job_id)) {
            job.left.retain(|old| old.node_id != left.node_id);
            job.left.reserve_exact(1);
            job.left.push(left);
            if job.remains.contains(node_id) {
                self.relist.insert(node_id.clone());
            }
        }
    }

    /// [`Self::note_remains`] where only what was told to stop can have changed it.
    pub(crate) fn note_told_remains(&mut self, job_id: &JobId) {
        let told = self.jobs.get(job_id).map(|job| !job.strays.is_empty());
        if told == Some(true) {
            self.note_remains(job_id);
        }
    }

    /// The start of a migration's target, which was told to stop meanwhile, was refused: nothing of it
    /// is there.
    pub(crate) fn target_was_never_there(&mut self, id: &MigrationId) {
        let Some(state) = self.migration_by_id(id) else {
            return;
        };
        let (job_id, role) = (state.source_job_id.clone(), state.target_role.clone());
        let key = state.target_node_id.clone().map(|node_id| (role, node_id));
        let strays = self.jobs.get(&job_id).map(|job| job.strays.clone());
        if let (Some(key), Some(mut strays)) = (key, strays)
            && strays.remove(&key).is_some()
        {
            self.keep_strays(&job_id, strays);
        }
    }

    /// Files the job under the nodes of its remains, whose room follows (RESV-07). Where they are gone
    /// there is room again, for this job first of all.
    pub(crate) fn move_remains(
        &mut self,
        job_id: &JobId,
        before: &BTreeSet<NodeId>,
        after: &BTreeSet<NodeId>,
    ) {
        for node_id in before.difference(after) {
            if let Some(jobs) = self.remains_at.get_mut(node_id) {
                jobs.remove(job_id);
                if jobs.is_empty() {
                    self.remains_at.remove(node_id);
                }
            }
        }
        for node_id in after.difference(before) {
            let jobs = self.remains_at.entry(node_id.clone()).or_default();
            jobs.insert(job_id.clone());
        }
        for node_id in before.symmetric_difference(after) {
            self.note_listed(node_id);
        }
        // There may be more of it, or less.
        self.relist.extend(before.intersection(after).cloned());
        for node_id in before.difference(after) {
            self.pending.try_now(job_id);
            self.pending.wake_for(node_id);
        }
    }

    /// Whether a job waits for its remains to go (RECOV-17): where they hold its key, or where nothing
    /// that runs has room and a node would have it but for them. Not for ever: what is stuck there
    /// gives way to a purchase.
    pub(crate) fn awaits_remains(&mut self, job_id: &JobId, decision: &Decision) -> bool {
        let booted = match decision {
            Decision::Place { node, .. } => !self.fleet.is_prospective(node),
            _ => false,
        };
        let window = self.settings.failure_backoff;
        let now = self.now.mono;
        let Some(job) = self.jobs.get(job_id) else {
            return false;
        };
        let until = job.awaits_remains.unwrap_or(now) + window;
        if job.remains.is_empty() || until <= now {
            return false;
        }
        let holder = job.key_holder.as_ref();
        let held = holder.is_some_and(|node_id| self.is_running(node_id));
        if !held && (booted || !self.may_return(job)) {
            return false;
        }
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.awaits_remains.get_or_insert(now);
        }
        let timer = Timer::LaunchGate(job_id.clone());
        self.timers.set(timer, Due::Mono(until));
        true
    }

    /// One of the nodes of its remains would take the job once they are gone.
    fn may_return(&self, job: &JobRecord) -> bool {
        let Some(spot) = &job.spot else { return false };
        let Some(bundle) = self.bundle(&spot.bundle_id) else {
            return false;
        };
        let excluded = self.failed_for(job);
        let Some(request) = Request::new(&bundle, spot.replica_index, &spot.job_name) else {
            return false;
        };
        let request = request
            .of_job(job.job_id())
            .in_context(self.context_of(job.job_id(), &bundle))
            .without(&excluded);
        job.remains.iter().any(|node_id| {
            let decision = place(&self.fleet, &request.clone().pinned_to(node_id));
            matches!(decision, Decision::Place { .. })
        })
    }
}
