//! Bundles: the mirror of each, what an update of one brings about, and its end (BUNDLE).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_placement::JobRef;
use greenroom_types::bundle::{BundleState, BundleStatus};
use greenroom_types::{BundleId, JobId};

use crate::effect::{Callback, Effects};
use crate::job::BindingState;
use crate::policy::Policy;
use crate::stop_time::TaggedStop;

/// One bundle, from the first mention of it or of one of its jobs.
#[derive(Clone, Debug)]
pub(crate) struct BundleRecord {
    /// The last the stream said of it; none: not known (LAUNCH-11).
    pub(crate) status: Option<Arc<BundleStatus>>,
    /// When it or a job of it was first announced, as a place in line (PEND-04).
    pub(crate) order: u64,
    /// Its jobs in the mirror, by their tags (BUNDLE-07).
    pub(crate) jobs: BTreeSet<JobId>,
    /// Set while it is broken, with the reason (CEIL-07).
    pub(crate) broken: Option<String>,
    /// Stop time in the tags of its jobs (STOP-03).
    pub(crate) tagged_stop: Option<TaggedStop>,
    /// Its tagged stop time came and its deletion was asked for: nothing of it is placed any more.
    pub(crate) stop_due: bool,
}

impl BundleRecord {
    pub(crate) const fn new(order: u64) -> Self {
        Self {
            status: None,
            order,
            jobs: BTreeSet::new(),
            broken: None,
            tagged_stop: None,
            stop_due: false,
        }
    }

    /// In force, as far as known (BUNDLE-10).
    pub(crate) fn is_live(&self) -> bool {
        let deleting = self
            .status
            .as_ref()
            .is_some_and(|status| status.bundle.state != BundleState::Live);
        !deleting && !self.stop_due
    }
}

/// True for an update that operators mean as "try again": anything but a change of the stop time
/// alone (CEIL-08, DEC-19). The Manager raises the revision for each update of the specification and
/// leaves it when only the stop time changes; without revisions the content decides.
fn revives(before: &BundleStatus, after: &BundleStatus) -> bool {
    let (old, new) = (&before.bundle, &after.bundle);
    if new.revision != 0 {
        return new.revision != old.revision;
    }
    let mut moved = old.clone();
    moved.stop_at = new.stop_at;
    let only_stop_time = moved == *new && old.stop_at != new.stop_at;
    !only_stop_time
}

// === impl Policy ===

impl Policy {
    /// Files a job under its bundle.
    pub(crate) fn attach(&mut self, job_id: &JobId, spot: &JobRef) {
        let order = self.order();
        self.bundles
            .entry(spot.bundle_id.clone())
            .or_insert_with(|| BundleRecord::new(order))
            .jobs
            .insert(job_id.clone());
    }

    pub(crate) fn detach(&mut self, job_id: &JobId, spot: &JobRef) {
        if let Some(bundle) = self.bundles.get_mut(&spot.bundle_id) {
            bundle.jobs.remove(job_id);
            if bundle.jobs.is_empty() && bundle.status.is_none() {
                self.bundles.remove(&spot.bundle_id);
            }
        }
    }

    /// Takes a bundle into mirror and fleet.
    pub(crate) fn mirror_bundle(&mut self, status: &Arc<BundleStatus>) {
        let order = self.order();
        let bundle_id = status.bundle.bundle_id.clone();
        let record = self
            .bundles
            .entry(bundle_id.clone())
            .or_insert_with(|| BundleRecord::new(order));
        let same = record
            .status
            .as_ref()
            .is_some_and(|before| before.bundle == status.bundle);
        record.status = Some(Arc::clone(status));
        if !same {
            self.fleet.set_bundle(status);
        }
    }

    /// Ends the holds for jobs that are judged already (INTRA-05).
    pub(crate) fn release_terminal(&mut self, bundle_id: &BundleId) {
        let spots: Vec<(JobRef, bool)> = self
            .jobs_of(bundle_id)
            .iter()
            .filter_map(|job_id| self.jobs.get(job_id))
            .filter_map(|job| Some((job.spot.clone()?, job.terminal().is_some())))
            .collect();
        for (spot, terminal) in spots {
            self.fleet.set_released(&spot, terminal);
        }
    }

    pub(crate) fn bundle_updated(&mut self, status: &Arc<BundleStatus>, out: &mut Effects) {
        let bundle_id = status.bundle.bundle_id.clone();
        let before = self
            .bundles
            .get(&bundle_id)
            .and_then(|record| record.status.clone());
        self.mirror_bundle(status);
        out.callback(Callback::OnBundleUpdated {
            bundle_id: bundle_id.clone(),
            bundle: Arc::clone(status),
        });
        if before.is_some_and(|before| revives(&before, status)) {
            self.forgive(&bundle_id);
        }
        self.release_terminal(&bundle_id);
        self.review_stop_time(&bundle_id, out);
        for job_id in self.jobs_of(&bundle_id) {
            self.review_migration(&job_id, out);
        }
        self.leave_unstarted(&bundle_id, out);
        self.refresh_bundle(&bundle_id);
        self.pending.wake();
    }

    pub(crate) fn bundle_deleted(&mut self, bundle_id: &BundleId, out: &mut Effects) {
        self.forgive(bundle_id);
        self.forget_stop_time(bundle_id);
        self.fleet.remove_bundle(bundle_id);
        if let Some(bundle) = self.bundles.get_mut(bundle_id) {
            bundle.status = None;
            bundle.stop_due = false;
            if bundle.jobs.is_empty() {
                self.bundles.remove(bundle_id);
            }
        }
        out.callback(Callback::OnBundleDeleted {
            bundle_id: bundle_id.clone(),
        });
        self.refresh_bundle(bundle_id);
        self.pending.wake();
    }

    /// Jobs that wait for their node to start and are not to run any more are taken off it; the node
    /// goes on as an ordinary one (PROV-10).
    pub(crate) fn leave_unstarted(&mut self, bundle_id: &BundleId, out: &mut Effects) {
        for job_id in self.jobs_of(bundle_id) {
            self.leave_if_unstarted(&job_id, out);
        }
    }

    pub(crate) fn leave_if_unstarted(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let unstarted = job.binding.as_ref().is_some_and(|binding| {
            binding.state == BindingState::Placing && binding.start.is_none()
        });
        let bundle = job
            .spot
            .as_ref()
            .and_then(|spot| self.bundles.get(&spot.bundle_id));
        let wanted = job.may_run()
            && !job.seen.job.is_dormant()
            && bundle.is_some_and(|bundle| bundle.is_live() && bundle.broken.is_none());
        if unstarted
            && !wanted
            && let Some(binding) = self.unbind(job_id)
        {
            // It may have come back meanwhile where it was before (BIND-07).
            self.adopt(job_id, out);
            self.refresh(job_id);
            self.release_single_use(&binding, out);
            self.pending.wake();
        }
    }
}
