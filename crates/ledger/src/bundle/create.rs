//! CreateBundle (BDL-01, BDL-04, BDL-22).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::BundleId;
use greenroom_types::bundle::{Bundle, BundleState};
use greenroom_types::call::{CallResult, Refusal, Reply, Status};
use greenroom_types::job::Job;
use greenroom_types::stream::StreamEvent;

use super::check::check_bundle;
use super::expand::expand;
use crate::command::Fresh;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{exhausted, exists};
use crate::state::BundleRecord;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn create_bundle(
        &mut self,
        out: &mut Out,
        mut bundle: Bundle,
        fresh: &Fresh,
    ) -> CallResult {
        if bundle.bundle_id.is_empty() {
            bundle.bundle_id = self.fresh_bundle_id(fresh)?;
        }
        bundle.state = BundleState::Live;
        bundle.revision = 1;
        if let Some(known) = self.bundles.get(&bundle.bundle_id) {
            let state = match known.bundle.state {
                BundleState::Live => "live",
                BundleState::Deleting => "deleting",
            };
            return Err(exists(
                "bundle_exists",
                format!("bundle {:?} is there already ({state})", bundle.bundle_id),
            )
            .with("state", state));
        }
        check_bundle(&bundle)?;
        let jobs = expand(&bundle)?;
        self.check_job_ids_free(&bundle.bundle_id, &jobs)?;
        let limit = self.config.limits.bundles;
        if self.bundles.len() >= limit {
            return Err(exhausted(
                "too_many_bundles",
                format!("there are {} bundles: at most {limit}", self.bundles.len()),
            )
            .with("expected", limit as u64));
        }
        self.check_room_for_jobs(jobs.len())?;

        let bundle_id = bundle.bundle_id.clone();
        let job_ids: Vec<_> = jobs.iter().map(|job| job.job_id.clone()).collect();
        self.bundles.insert(
            bundle_id.clone(),
            BundleRecord {
                bundle: Arc::new(bundle),
                jobs: BTreeSet::new(),
            },
        );
        out.bundles.insert(bundle_id.clone());
        let place = out.reserve();
        for job in jobs {
            self.insert_bundle_job(out, &bundle_id, job);
        }
        self.announce_bundle_at(out, place, &bundle_id);
        Ok(Reply::BundleCreated {
            bundle_id,
            revision: 1,
            job_ids,
        })
    }

    fn fresh_bundle_id(&self, fresh: &Fresh) -> Result<BundleId, Refusal> {
        fresh
            .id
            .to_ascii_lowercase()
            .get(..12)
            .and_then(|hex| format!("b-{hex}").parse::<BundleId>().ok())
            .filter(|id| !self.bundles.contains_key(id))
            .ok_or_else(|| {
                Refusal::new(
                    Status::Internal,
                    "no_fresh_id",
                    "the proposer gave no fresh id of 32 hexadecimal digits",
                )
            })
    }

    /// A runtime job takes nobody else's id.
    pub(crate) fn check_job_ids_free(
        &self,
        bundle_id: &BundleId,
        jobs: &[Job],
    ) -> Result<(), Refusal> {
        for job in jobs {
            let known = self.jobs.get(&job.job_id);
            if known.is_some_and(|known| known.bundle_id.as_ref() != Some(bundle_id)) {
                return Err(exists(
                    "job_exists",
                    format!(
                        "bundle {bundle_id:?} needs the job id {:?}, which is taken",
                        job.job_id
                    ),
                )
                .with("job_id", job.job_id.as_str()));
            }
        }
        Ok(())
    }

    pub(crate) fn insert_bundle_job(&mut self, out: &mut Out, bundle_id: &BundleId, job: Job) {
        if let Some(record) = self.bundles.get_mut(bundle_id) {
            record.jobs.insert(job.job_id.clone());
        }
        self.insert_job(out, job, Some(bundle_id.clone()));
    }

    /// Tells of a bundle as it stands, here.
    pub(crate) fn announce_bundle(&self, out: &mut Out, bundle_id: &BundleId) {
        let place = out.reserve();
        self.announce_bundle_at(out, place, bundle_id);
    }

    /// Tells of a bundle as it stands now, at a place kept earlier (BDL-04: before its jobs).
    pub(crate) fn announce_bundle_at(&self, out: &mut Out, place: usize, bundle_id: &BundleId) {
        if let Some(status) = self.bundle(bundle_id) {
            out.fill(place, StreamEvent::BundleUpdated(Arc::new(status)));
        }
    }
}
