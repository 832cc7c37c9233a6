//! UpdateJob (JOB-06 to JOB-08), and replacing a definition in general.

use std::sync::Arc;

use greenroom_types::JobId;
use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::{HistoryKind, Job, JobState, TAG_START_MODE, TerminalState};

use super::check;
use serde_json::json;

use crate::hash::job_hash;
use crate::ledger::Ledger;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::{self, failed, unknown_job};

// === impl Ledger ===

impl Ledger {
    pub(crate) fn update_job(&mut self, out: &mut Out, mut job: Job, expected: i64) -> CallResult {
        job.auto_placement = None;
        refuse::job_id(&job.job_id)?;
        let record = self
            .jobs
            .get(&job.job_id)
            .ok_or_else(|| unknown_job(&job.job_id))?;
        self.refuse_bundle_job(record)?;
        let view = &record.view;
        if record.deleting {
            return Err(failed(
                "deleting",
                format!("job {:?} is being deleted", job.job_id),
            ));
        }
        if expected != 0 && expected != view.current_hash {
            return Err(failed(
                "hash_mismatch",
                format!(
                    "job {:?} was changed by somebody else: read it again",
                    job.job_id
                ),
            )
            .with("hash", view.current_hash)
            .with("expected", expected)
            .with("actual", view.current_hash));
        }
        // A dormant job may be sent back as it was read.
        let keeps_mode = view.job.tag(TAG_START_MODE) == job.tag(TAG_START_MODE);
        check::check_reserved(&job.tags, keeps_mode)?;
        check::check_tags(&job.tags)?;
        check::check_job(&job)?;
        let hash = job_hash(&job);
        if hash == view.current_hash && view.state != JobState::Post {
            return Ok(Reply::JobHash(hash));
        }
        let job_id = job.job_id.clone();
        self.replace_definition(out, job);
        self.revive(out, &job_id);
        Ok(Reply::JobHash(hash))
    }

    /// Replaces a job's definition: history, `job_updated`, and word to the workers that run it.
    pub(crate) fn replace_definition(&mut self, out: &mut Out, job: Job) {
        let job_id = job.job_id.clone();
        let Some(record) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let view = Arc::make_mut(&mut record.view);
        view.current_hash = job_hash(&job);
        let previous = Box::new(std::mem::replace(&mut view.job, job));
        self.append(out, &job_id, None, HistoryKind::Updated { previous });
        self.refresh_pending_restart(&job_id);
        for start_id in self.live_of(&job_id) {
            self.tell_update(out, &start_id);
        }
    }

    /// Tells an instance's worker of the definition in force, unless it knows it.
    pub(crate) fn tell_update(&mut self, out: &mut Out, start_id: &greenroom_types::StartId) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let heard = self
            .nodes
            .get(&instance.node_id)
            .is_some_and(|node| node.is_running());
        let Some(record) = self.jobs.get(&instance.key.job_id) else {
            return;
        };
        let hash = record.view.current_hash;
        let stops = instance.stop.is_some();
        if !heard || stops || !instance.delivered || instance.known_hash == hash {
            return;
        }
        let Some(message) = self.worker_job(instance) else {
            return;
        };
        out.order(
            &instance.node_id.clone(),
            WorkerOrder::UpdateJob(Box::new(message)),
        );
        out.instances.insert(start_id.clone());
        if let Some(instance) = self.instances.get_mut(start_id) {
            instance.known_hash = hash;
        }
    }

    /// A POST job becomes PRE again and loses its verdict (JOB-08, FAIL-03). Its history stays.
    pub(crate) fn revive(&mut self, out: &mut Out, job_id: &JobId) -> bool {
        let Some(record) = self.jobs.get_mut(job_id) else {
            return false;
        };
        if record.view.state != JobState::Post && record.view.terminal_state.is_none() {
            return false;
        }
        let view = Arc::make_mut(&mut record.view);
        view.state = JobState::Pre;
        let verdict = view.terminal_state.take();
        out.job(job_id);
        self.note_cleared(out, job_id, verdict);
        true
    }

    /// A verdict is gone; its reason stays in the audit log (FAIL-03).
    pub(crate) fn note_cleared(
        &mut self,
        out: &mut Out,
        job_id: &JobId,
        verdict: Option<TerminalState>,
    ) {
        if let Some(verdict) = verdict {
            let payload = json!({"job": job_id, "reason": verdict.reason, "by": verdict.by});
            self.note(out, "verdict_cleared", &payload);
        }
    }
}
