//! DeleteBundle and the stop time (BDL-16, BDL-17, BSTOP).
//!
//! The saga needs no steps of its own: its first commit records the delete of every job, and each
//! report of a stop removes what it frees. Whatever interrupts it, the records say what is left.

use std::sync::Arc;

use greenroom_types::bundle::BundleState;
use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, Wall};
use serde_json::json;

use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::failed;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn delete_bundle(&mut self, out: &mut Out, bundle_id: &BundleId) -> CallResult {
        let bundle = self.known_bundle(bundle_id)?;
        if bundle.state == BundleState::Live {
            self.begin_bundle_delete(out, bundle_id);
        }
        Ok(Reply::Done)
    }

    fn begin_bundle_delete(&mut self, out: &mut Out, bundle_id: &BundleId) {
        let Some(record) = self.bundles.get_mut(bundle_id) else {
            return;
        };
        Arc::make_mut(&mut record.bundle).state = BundleState::Deleting;
        let jobs: Vec<JobId> = record.jobs.iter().cloned().collect();
        self.end_bundle_lease(out, bundle_id);
        out.bundles.insert(bundle_id.clone());
        self.announce_bundle(out, bundle_id);
        for job_id in &jobs {
            if self.jobs.get(job_id).is_some_and(|job| !job.deleting) {
                self.begin_delete(out, job_id);
            }
        }
        self.remove_bundle_if_empty(out, bundle_id);
    }

    /// A runtime job is gone; the bundle goes with the last one if it is being deleted.
    pub(crate) fn job_of_bundle_gone(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        job_id: &JobId,
    ) {
        if let Some(record) = self.bundles.get_mut(bundle_id) {
            record.jobs.remove(job_id);
        }
        self.remove_bundle_if_empty(out, bundle_id);
    }

    fn remove_bundle_if_empty(&mut self, out: &mut Out, bundle_id: &BundleId) {
        let over = self.bundles.get(bundle_id).is_some_and(|record| {
            record.bundle.state == BundleState::Deleting && record.jobs.is_empty()
        });
        if over && self.bundles.remove(bundle_id).is_some() {
            out.bundles.insert(bundle_id.clone());
            out.event(StreamEvent::BundleDeleted(bundle_id.clone()));
        }
    }

    pub(crate) fn set_bundle_stop_time(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        stop_at: Option<Wall>,
    ) -> CallResult {
        self.known_bundle(bundle_id)?;
        self.refuse_deleting(bundle_id)?;
        if let Some(record) = self.bundles.get_mut(bundle_id)
            && record.bundle.stop_at != stop_at
        {
            Arc::make_mut(&mut record.bundle).stop_at = stop_at;
            out.bundles.insert(bundle_id.clone());
            self.announce_bundle(out, bundle_id);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn refuse_deleting(&self, bundle_id: &BundleId) -> Result<(), Refusal> {
        match self.known_bundle(bundle_id)?.state {
            BundleState::Live => Ok(()),
            BundleState::Deleting => Err(failed(
                "deleting",
                format!("bundle {bundle_id:?} is being deleted"),
            )),
        }
    }

    /// The stop time has come, unless it was moved while the proposal was under way (BSTOP-04).
    pub(crate) fn stop_time_reached(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        stop_at: Wall,
    ) -> CallResult {
        let due = self.bundles.get(bundle_id).is_some_and(|record| {
            record.bundle.state == BundleState::Live && record.bundle.stop_at == Some(stop_at)
        });
        if due {
            let payload = json!({"bundle": bundle_id, "stopAt": stop_at.0});
            self.note(out, "bundle_stop_time", &payload);
            self.begin_bundle_delete(out, bundle_id);
        }
        Ok(Reply::Done)
    }
}
