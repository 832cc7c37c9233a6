//! Stop times of bundles (STOP). The Manager keeps its own and acts on them; here are only those that
//! older clients wrote into a tag of the jobs, honoured where the Manager has none (DEC-33).

use greenroom_types::call::Call;
use greenroom_types::job::TAG_STOP_DATE_TIME;
use greenroom_types::{BundleId, JobId, Wall};

use crate::calls::Purpose;
use crate::effect::{Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::policy::Policy;
use crate::settings::CALL_RETRY;
use crate::timer::{Due, Timer};

/// The stop time in the tag of the bundle's first job that had one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaggedStop {
    /// The job that decides.
    pub(crate) job_id: JobId,
    /// The instant; none: not readable.
    pub(crate) at: Option<Wall>,
}

// === impl Policy ===

impl Policy {
    /// Looks at the tag of a job that was seen; the first one that has it decides (STOP-03).
    pub(crate) fn note_tagged_stop(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let Some(spot) = &job.spot else { return };
        let bundle_id = spot.bundle_id.clone();
        let tag = job
            .seen
            .job
            .tag(TAG_STOP_DATE_TIME)
            .map(|text| text.parse::<Wall>().ok());
        let Some(bundle) = self.bundles.get_mut(&bundle_id) else {
            return;
        };
        let decides = bundle
            .tagged_stop
            .as_ref()
            .is_none_or(|stop| stop.job_id == *job_id);
        if !decides {
            return;
        }
        let stop = tag.map(|at| TaggedStop {
            job_id: job_id.clone(),
            at,
        });
        if bundle.tagged_stop != stop {
            bundle.tagged_stop = stop;
            bundle.stop_due = false;
            self.review_stop_time(&bundle_id, out);
        }
    }

    /// The tagged stop time in force: readable, and none at the Manager.
    pub(crate) fn tagged_stop(&self, bundle_id: &BundleId) -> Option<Wall> {
        let bundle = self.bundles.get(bundle_id)?;
        let status = bundle.status.as_ref()?;
        if status.bundle.stop_at.is_some() {
            return None;
        }
        bundle.tagged_stop.as_ref()?.at
    }

    /// Brings the timer in line with what tags and Manager say now (STOP-03, STOP-04).
    pub(crate) fn review_stop_time(&mut self, bundle_id: &BundleId, out: &mut Effects) {
        let timer = Timer::StopTime(bundle_id.clone());
        let stop = self.tagged_stop(bundle_id);
        let Some(bundle) = self.bundles.get_mut(bundle_id) else {
            return;
        };
        let Some(at) = stop else {
            bundle.stop_due = false;
            self.timers.stop(&timer);
            self.timers.stop(&Timer::StopTimeRetry(bundle_id.clone()));
            return;
        };
        if !bundle.is_live() {
            self.timers.stop(&timer);
            return;
        }
        if at > self.now.wall {
            self.timers.stop(&Timer::StopTimeRetry(bundle_id.clone()));
            if self.timers.due(&timer) != Some(Due::Wall(at)) {
                self.timers.set(timer, Due::Wall(at));
            }
        } else if self.is_live() {
            self.timers.stop(&timer);
            self.delete_for_stop_time(bundle_id, out);
        }
    }

    /// The time has come, or the last try failed a while ago.
    pub(crate) fn end_stop_time(&mut self, bundle_id: &BundleId, out: &mut Effects) {
        let due = self
            .tagged_stop(bundle_id)
            .is_some_and(|at| at <= self.now.wall);
        let live = self.bundles.get(bundle_id).is_some_and(|bundle| {
            let status = bundle.status.as_ref();
            status.is_some_and(|status| status.bundle.state == Default::default())
        });
        if due && live {
            self.delete_for_stop_time(bundle_id, out);
        }
    }

    fn delete_for_stop_time(&mut self, bundle_id: &BundleId, out: &mut Effects) {
        if let Some(bundle) = self.bundles.get_mut(bundle_id) {
            bundle.stop_due = true;
        }
        let purpose = Purpose::DeleteBundle {
            bundle_id: bundle_id.clone(),
        };
        self.send(Call::DeleteBundle(bundle_id.clone()), purpose, out);
        self.leave_unstarted(bundle_id, out);
        self.refresh_bundle(bundle_id);
    }

    pub(crate) fn delete_replied(
        &mut self,
        bundle_id: &BundleId,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        let Err(failure) = result else { return };
        let message = format!("deleting bundle {bundle_id:?} at its stop time failed: {failure}");
        self.report(
            ErrorInfo::new("deleteFailed", message).bundle(bundle_id),
            out,
        );
        if self
            .bundles
            .get(bundle_id)
            .is_some_and(|bundle| bundle.stop_due)
        {
            let due = Due::Mono(self.now.mono + CALL_RETRY);
            self.timers
                .set(Timer::StopTimeRetry(bundle_id.clone()), due);
        }
    }

    /// The bundle is gone, and its timers with it (STOP-07).
    pub(crate) fn forget_stop_time(&mut self, bundle_id: &BundleId) {
        self.timers.stop(&Timer::StopTime(bundle_id.clone()));
        self.timers.stop(&Timer::StopTimeRetry(bundle_id.clone()));
        if let Some(bundle) = self.bundles.get_mut(bundle_id) {
            bundle.tagged_stop = None;
        }
    }
}
