//! StartBundleJob and StopBundleJob (BDL-12 to BDL-14).

use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::job::{MANUAL, StopReason, TAG_START_MODE};
use greenroom_types::{BundleId, JobId, JobName, Millis};

use crate::hash::job_hash;
use crate::job::grace;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{not_found, required};

// === impl Ledger ===

impl Ledger {
    pub(crate) fn start_bundle_job(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        replica_index: u32,
        job_name: &JobName,
    ) -> CallResult {
        let job_id = self.bundle_job(bundle_id, replica_index, job_name)?;
        self.set_start_mode(out, &job_id, false);
        self.revive(out, &job_id);
        Ok(Reply::BundleJob(job_id))
    }

    pub(crate) fn stop_bundle_job(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        replica_index: u32,
        job_name: &JobName,
        grace_ms: Option<Millis>,
    ) -> CallResult {
        let job_id = self.bundle_job(bundle_id, replica_index, job_name)?;
        let grace_ms = grace(grace_ms)?;
        self.set_start_mode(out, &job_id, true);
        self.stop_all(out, &job_id, StopReason::UserRequested, grace_ms);
        Ok(Reply::BundleJob(job_id))
    }

    fn bundle_job(
        &self,
        bundle_id: &BundleId,
        replica_index: u32,
        job_name: &JobName,
    ) -> Result<JobId, Refusal> {
        let bundle = self.known_bundle(bundle_id)?;
        required("job_name", job_name.as_str())?;
        let known = replica_index < bundle.copies() && bundle.job(job_name.as_str()).is_some();
        let job_id = bundle.job_id(replica_index, job_name);
        if !known {
            return Err(not_found(
                "unknown_bundle_job",
                format!("bundle {bundle_id:?} has no job {job_name:?} in copy {replica_index}"),
            ));
        }
        self.refuse_deleting(bundle_id)?;
        if !self.jobs.contains_key(&job_id) {
            return Err(not_found(
                "unknown_bundle_job",
                format!("job {job_id:?} of bundle {bundle_id:?} is gone"),
            ));
        }
        Ok(job_id)
    }

    /// Sets or takes away the dormant tag. It is no update of the owner's, so the history has no
    /// entry for it; the hash follows the definition.
    fn set_start_mode(&mut self, out: &mut Out, job_id: &JobId, dormant: bool) {
        let Some(record) = self.jobs.get_mut(job_id) else {
            return;
        };
        if record.view.job.is_dormant() == dormant {
            return;
        }
        let view = Arc::make_mut(&mut record.view);
        let job = &mut view.job;
        if dormant {
            job.tags
                .insert(TAG_START_MODE.to_owned(), MANUAL.to_owned());
        } else {
            job.tags.remove(TAG_START_MODE);
        }
        view.current_hash = job_hash(&view.job);
        out.job(job_id);
    }
}
