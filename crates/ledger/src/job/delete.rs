//! DeleteJob and CompleteJob, and the end of a job's record (JOB-09, JOB-11, BDL-16, BDL-19).

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::{JobState, StopReason};
use greenroom_types::node::InstanceState;
use greenroom_types::{JobId, Millis, StartId};

use crate::instance::Fate;
use crate::lease::LeaseState;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{self, failed, unknown_job};
use crate::state::Tombstone;

/// Grace of stops that nobody gave one for (DECM-23).
pub(crate) const GRACE: Millis = Millis(10_000);

/// How long the start id of a deleted instance is remembered (BDL-19).
const BURIED_MS: i64 = 30 * 24 * 3_600_000;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn delete_job(&mut self, out: &mut Out, job_id: &JobId) -> CallResult {
        refuse::job_id(job_id)?;
        let record = self.jobs.get(job_id).ok_or_else(|| unknown_job(job_id))?;
        self.refuse_bundle_job(record)?;
        if !record.deleting {
            self.begin_delete(out, job_id);
        }
        Ok(Reply::Done)
    }

    /// Records a job's delete, stops what runs of it, and removes it if nothing does.
    pub(crate) fn begin_delete(&mut self, out: &mut Out, job_id: &JobId) {
        let Some(record) = self.jobs.get_mut(job_id) else {
            return;
        };
        record.deleting = true;
        record.completing = false;
        record.pre_when_stopped = false;
        out.jobs.insert(job_id.clone());
        // Those that are lost wait for their node, too, so that the keeper has to look at them.
        out.look_at_all(&record.instances);
        self.stop_all(out, job_id, StopReason::UserRequested, GRACE);
        self.remove_job_if_free(out, job_id);
    }

    /// Asks every live instance of a job to stop; a lost one is stopped should its node return.
    pub(crate) fn stop_all(
        &mut self,
        out: &mut Out,
        job_id: &JobId,
        reason: StopReason,
        grace_ms: Millis,
    ) {
        for start_id in self.live_of(job_id) {
            self.stop_instance(out, &start_id, reason, "", grace_ms, Fate::Asked);
        }
        let lost: Vec<StartId> = self
            .jobs
            .get(job_id)
            .into_iter()
            .flat_map(|record| &record.instances)
            .filter(|id| {
                self.instances
                    .get(*id)
                    .is_some_and(|instance| instance.state == InstanceState::Lost)
            })
            .cloned()
            .collect();
        for start_id in lost {
            self.stop_lost(out, &start_id, grace_ms);
        }
    }

    /// Removes a job whose delete is recorded once none of its instances is live, or lost with a
    /// node that may come back. What is ending goes on ending by its worker.
    pub(crate) fn remove_job_if_free(&mut self, out: &mut Out, job_id: &JobId) {
        let Some(record) = self.jobs.get(job_id) else {
            return;
        };
        let held = record
            .instances
            .iter()
            .filter_map(|id| self.instances.get(id))
            .any(|instance| instance.is_live() || instance.state == InstanceState::Lost);
        // Whoever may still run a leased job is waited for (BDL-19).
        if record.deleting && !held && !self.is_leased(job_id) {
            self.remove_job(out, job_id);
        }
    }

    fn remove_job(&mut self, out: &mut Out, job_id: &JobId) {
        let Some(record) = self.jobs.get(job_id) else {
            return;
        };
        let left: Vec<StartId> = record.instances.iter().cloned().collect();
        for start_id in left {
            self.bury(out, &start_id);
        }
        let Some(record) = self.jobs.remove(job_id) else {
            return;
        };
        for entry in &record.view.history {
            out.entries.insert((job_id.clone(), entry.seq));
        }
        out.job_deleted(job_id);
        self.forget_leases_of_nobody(out, job_id);
        self.note_cleared(out, job_id, record.view.terminal_state.clone());
        if let Some(bundle_id) = &record.bundle_id {
            self.job_of_bundle_gone(out, bundle_id, job_id);
        }
    }

    /// Forgets an instance but for its start id, so that its worker, should it come back, is told to
    /// stop it (BDL-19).
    pub(crate) fn bury(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let stone = Tombstone {
            key: instance.key.clone(),
            node_id: instance.node_id.clone(),
            at: out.at,
        };
        self.forget_instance(out, start_id);
        out.tombstones.insert(start_id.clone());
        self.tombstone_order.insert((stone.at, start_id.clone()));
        self.tombstones.insert(start_id.clone(), stone);
        while let Some((at, oldest)) = self.tombstone_order.first()
            && out.at.since(*at) > BURIED_MS
        {
            let (at, oldest) = (*at, oldest.clone());
            self.tombstone_order.remove(&(at, oldest.clone()));
            self.tombstones.remove(&oldest);
            out.tombstones.insert(oldest);
        }
    }

    /// A deleted job's instance could not be reached for long enough (BDL-19).
    pub(crate) fn unreachable_over(&mut self, out: &mut Out, start_id: &StartId) -> CallResult {
        let Some(instance) = self.instances.get(start_id) else {
            return Ok(Reply::Done);
        };
        let job_id = instance.key.job_id.clone();
        let deleting = self.jobs.get(&job_id).is_some_and(|job| job.deleting);
        let heard = self
            .nodes
            .get(&instance.node_id)
            .is_some_and(|node| node.is_running());
        let leased = self
            .lease_of(instance)
            .is_some_and(|lease| lease.state != LeaseState::Over);
        if deleting && !heard && !leased {
            self.bury(out, start_id);
            self.remove_job_if_free(out, &job_id);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn complete_job(&mut self, out: &mut Out, job_id: &JobId) -> CallResult {
        refuse::job_id(job_id)?;
        let record = self
            .jobs
            .get_mut(job_id)
            .ok_or_else(|| unknown_job(job_id))?;
        if record.deleting {
            return Err(failed(
                "deleting",
                format!("job {job_id:?} is being deleted"),
            ));
        }
        if record.completing || record.view.state == JobState::Post {
            return Ok(Reply::Done);
        }
        record.completing = true;
        out.jobs.insert(job_id.clone());
        self.stop_all(out, job_id, StopReason::UserRequested, GRACE);
        self.after_end(out, job_id);
        Ok(Reply::Done)
    }
}
