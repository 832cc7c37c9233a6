//! CreateJob (JOB-01, JOB-03, JOB-10).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::BundleId;
use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::job::{HistoryKind, Job, JobState, JobWithHistory};

use super::check;
use crate::hash::job_hash;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{self, exhausted, exists, failed};
use crate::state::JobRecord;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn create_job(&mut self, out: &mut Out, mut job: Job) -> CallResult {
        // Placement data are the Manager's to attach, on bundle jobs (BDL-06).
        job.auto_placement = None;
        refuse::job_id(&job.job_id)?;
        if let Some(known) = self.jobs.get(&job.job_id) {
            self.refuse_bundle_job(known)?;
            return Err(exists(
                "job_exists",
                format!("job {:?} is there already: use UpdateJob", job.job_id),
            )
            .with("hash", known.view.current_hash));
        }
        check::check_reserved(&job.tags, true)?;
        check::check_tags(&job.tags)?;
        check::check_job(&job)?;
        self.check_room_for_jobs(1)?;
        Ok(Reply::JobHash(self.insert_job(out, job, None)))
    }

    /// BDL-22, LIM-04.
    pub(crate) fn check_room_for_jobs(&self, more: usize) -> Result<(), Refusal> {
        let limit = self.config.limits.jobs;
        if self.jobs.len() + more > limit {
            return Err(exhausted(
                "too_many_jobs",
                format!("there are {} jobs: at most {limit}", self.jobs.len()),
            )
            .with("expected", limit as u64));
        }
        Ok(())
    }

    /// JOB-10: a bundle's job is changed through its bundle only.
    pub(crate) fn refuse_bundle_job(&self, record: &JobRecord) -> Result<(), Refusal> {
        match &record.bundle_id {
            Some(bundle_id) => Err(failed(
                "job_of_bundle",
                format!(
                    "job {:?} belongs to bundle {bundle_id:?}: change the bundle",
                    record.view.job.job_id
                ),
            )
            .with("bundle_id", bundle_id.as_str())),
            None => Ok(()),
        }
    }

    /// Stores a checked job in state PRE and answers its hash.
    pub(crate) fn insert_job(
        &mut self,
        out: &mut Out,
        job: Job,
        bundle_id: Option<BundleId>,
    ) -> i64 {
        let job_id = job.job_id.clone();
        let hash = job_hash(&job);
        let record = JobRecord {
            view: Arc::new(JobWithHistory {
                job,
                state: JobState::Pre,
                current_hash: hash,
                ..JobWithHistory::default()
            }),
            next_entry: 1,
            bundle_id,
            deleting: false,
            completing: false,
            pre_when_stopped: false,
            instances: BTreeSet::new(),
        };
        self.jobs.insert(job_id.clone(), record);
        self.append(out, &job_id, None, HistoryKind::Created);
        hash
    }
}
