//! MarkJobFailed (FAIL-01, FAIL-02).

use std::sync::Arc;

use greenroom_types::JobId;
use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::{HistoryKind, JobState, StopReason, TerminalState};

use super::delete::GRACE;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{self, cut, failed, required, unknown_job};

/// Longest reason, in bytes.
pub(crate) const REASON_BYTES: usize = 4096;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn mark_job_failed(
        &mut self,
        out: &mut Out,
        job_id: &JobId,
        reason: &str,
        actor: &str,
    ) -> CallResult {
        refuse::job_id(job_id)?;
        required("reason", reason)?;
        let record = self
            .jobs
            .get_mut(job_id)
            .ok_or_else(|| unknown_job(job_id))?;
        if record.view.terminal_state.is_some() {
            return Ok(Reply::Done);
        }
        if record.view.state == JobState::Post {
            return Err(failed(
                "job_completed",
                format!("job {job_id:?} is completed: it cannot fail any more"),
            ));
        }
        if record.deleting {
            return Err(failed(
                "deleting",
                format!("job {job_id:?} is being deleted"),
            ));
        }
        let reason = cut(reason, REASON_BYTES);
        record.completing = false;
        record.pre_when_stopped = false;
        let view = Arc::make_mut(&mut record.view);
        view.state = JobState::Post;
        view.terminal_state = Some(TerminalState {
            reason: reason.clone(),
            by: actor.to_owned(),
            at: out.at,
        });
        let kind = HistoryKind::Failed {
            reason: reason.clone(),
            by: actor.to_owned(),
        };
        self.append(out, job_id, None, kind);
        self.stop_all(out, job_id, StopReason::JobFailed, GRACE);
        Ok(Reply::Done)
    }
}
