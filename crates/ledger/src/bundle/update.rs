//! UpdateBundle (BDL-08 to BDL-11, BDL-20, BSTOP-05): first a plan of what becomes of every job, then
//! its execution; a dry run stops after the first.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::bundle::{Bundle, BundleState};
use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::{Job, JobState, MANUAL, StopReason, TAG_START_MODE};
use greenroom_types::{BundleId, JobId};

use super::check::check_bundle;
use super::expand::{expand, launches_differently};
use crate::hash::job_hash;
use crate::job::GRACE;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{failed, not_found, required};
use crate::state::JobRecord;

/// What becomes of one job of the new specification.
enum Step {
    /// It is new.
    Create(Job),
    /// Its launch content changed, or its delete is taken back: it stops and is PRE.
    Change(Job),
    /// Only other things changed, or it had a verdict.
    Update(Job),
    /// Nothing changed.
    Keep(JobId),
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn update_bundle(
        &mut self,
        out: &mut Out,
        mut bundle: Bundle,
        dry_run: bool,
        clear_stop_time: bool,
    ) -> CallResult {
        required("bundle_id", bundle.bundle_id.as_str())?;
        let bundle_id = bundle.bundle_id.clone();
        let known = self.bundles.get(&bundle_id).ok_or_else(|| {
            not_found(
                "unknown_bundle",
                format!("there is no bundle {bundle_id:?}"),
            )
        })?;
        let before = known.bundle.clone();
        if bundle.revision != 0 && bundle.revision != before.revision {
            return Err(failed(
                "revision_mismatch",
                format!("bundle {bundle_id:?} was changed by somebody else: read it again"),
            )
            .with("expected", bundle.revision)
            .with("actual", before.revision));
        }
        check_bundle(&bundle)?;
        bundle.state = BundleState::Live;
        bundle.revision = before.revision + 1;
        bundle.stop_at = match (clear_stop_time, bundle.stop_at) {
            (true, _) => None,
            (false, None) => before.stop_at,
            (false, given) => given,
        };
        let jobs = expand(&bundle)?;
        self.check_job_ids_free(&bundle_id, &jobs)?;
        let wanted: BTreeSet<JobId> = jobs.iter().map(|job| job.job_id.clone()).collect();
        let removed: Vec<JobId> = known.jobs.difference(&wanted).cloned().collect();
        let steps: Vec<Step> = jobs
            .into_iter()
            .map(|job| self.plan_job(&before, &bundle, job))
            .collect();
        let created = steps
            .iter()
            .filter(|step| matches!(step, Step::Create(_)))
            .count();
        self.check_room_for_jobs(created)?;
        let reply = tell(bundle.revision, &steps, removed.clone());
        if !dry_run {
            self.execute(out, bundle, steps, &removed);
        }
        Ok(reply)
    }

    /// Decides without changing anything.
    fn plan_job(&self, before: &Bundle, after: &Bundle, mut job: Job) -> Step {
        let Some(record) = self.jobs.get(&job.job_id) else {
            return Step::Create(job);
        };
        keep_dormancy(before, after, record, &mut job);
        let old = &record.view.job;
        if record.deleting || launches_differently(old, &job) {
            return Step::Change(job);
        }
        let had_verdict =
            record.view.terminal_state.is_some() || record.view.state == JobState::Post;
        if had_verdict || job_hash(&job) != record.view.current_hash {
            return Step::Update(job);
        }
        Step::Keep(job.job_id)
    }

    fn execute(&mut self, out: &mut Out, bundle: Bundle, steps: Vec<Step>, removed: &[JobId]) {
        let bundle_id = bundle.bundle_id.clone();
        if let Some(record) = self.bundles.get_mut(&bundle_id) {
            record.bundle = Arc::new(bundle);
        }
        out.bundles.insert(bundle_id.clone());
        let place = out.reserve();
        for step in steps {
            match step {
                Step::Create(job) => self.insert_bundle_job(out, &bundle_id, job),
                Step::Change(job) => self.change_job(out, job),
                Step::Update(job) => self.update_in_place(out, job),
                Step::Keep(_) => {}
            }
        }
        for job_id in removed {
            if self.jobs.get(job_id).is_some_and(|job| !job.deleting) {
                self.begin_delete(out, job_id);
            }
        }
        self.announce_bundle_at(out, place, &bundle_id);
    }

    fn update_in_place(&mut self, out: &mut Out, job: Job) {
        let job_id = job.job_id.clone();
        let changed = self
            .jobs
            .get(&job_id)
            .is_some_and(|record| job_hash(&job) != record.view.current_hash);
        if changed {
            self.replace_definition(out, job);
        }
        self.revive(out, &job_id);
    }

    /// The job stops whatever runs of it under the old content, and is PRE once that is over.
    fn change_job(&mut self, out: &mut Out, job: Job) {
        let job_id = job.job_id.clone();
        if let Some(record) = self.jobs.get_mut(&job_id) {
            record.deleting = false;
            record.completing = false;
            out.jobs.insert(job_id.clone());
            out.look_at_all(&record.instances);
        }
        // Stopped first, so that no worker is told of content that its instance will never have.
        let reason = StopReason::BundleChanged;
        let live = self.live_of(&job_id);
        let pre_later = !live.is_empty();
        if let Some(record) = self.jobs.get_mut(&job_id) {
            record.pre_when_stopped = pre_later && record.view.state != JobState::Post;
            if !pre_later {
                Arc::make_mut(&mut record.view).state = JobState::Pre;
                out.job(&job_id);
            }
        }
        self.stop_all(out, &job_id, reason, GRACE);
        self.update_in_place(out, job);
        out.job(&job_id);
    }

    pub(crate) fn known_bundle(
        &self,
        bundle_id: &BundleId,
    ) -> Result<&Arc<Bundle>, greenroom_types::call::Refusal> {
        required("bundle_id", bundle_id.as_str())?;
        self.bundles
            .get(bundle_id)
            .map(|record| &record.bundle)
            .ok_or_else(|| {
                not_found(
                    "unknown_bundle",
                    format!("there is no bundle {bundle_id:?}"),
                )
            })
    }
}

/// BDL-10: a job keeps the dormancy it had unless the specification changed its start mode.
fn keep_dormancy(before: &Bundle, after: &Bundle, record: &JobRecord, job: &mut Job) {
    let mode = |bundle: &Bundle| {
        let name = job.auto_placement.as_ref()?.job_name.clone();
        Some(bundle.job(name.as_str())?.start_mode)
    };
    if mode(before).is_some() && mode(before) != mode(after) {
        return;
    }
    if record.view.job.is_dormant() {
        job.tags
            .insert(TAG_START_MODE.to_owned(), MANUAL.to_owned());
    } else {
        job.tags.remove(TAG_START_MODE);
    }
}

/// BDL-11.
fn tell(revision: u64, steps: &[Step], removed: Vec<JobId>) -> Reply {
    let (mut created, mut changed, mut updated, mut untouched) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Create(job) => created.push(job.job_id.clone()),
            Step::Change(job) => changed.push(job.job_id.clone()),
            Step::Update(job) => updated.push(job.job_id.clone()),
            Step::Keep(job_id) => untouched.push(job_id.clone()),
        }
    }
    Reply::BundleUpdated {
        revision,
        created,
        changed,
        updated,
        removed,
        untouched,
    }
}
