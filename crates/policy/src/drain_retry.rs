//! When a job that a drain could not move is tried again (DRAIN-06).
//!
//! A big drain may have hundreds of jobs for which there is no room, and on a busy fleet something that
//! may have made room happens many times a second. So they are looked at no more often than
//! [`RETRY_INTERVAL`], one question serves all jobs that ask the same, and a migration is begun only for
//! a job that has a place: what comes to nothing leaves no trace in the history and calls nobody.

use std::collections::BTreeSet;

use greenroom_placement::{Context, Decision, Domain, Request, place};
use greenroom_types::{JobId, MigrationId, Millis, NodeId};

use crate::amend::named;
use crate::class::Class;
use crate::drain::DrainStatus;
use crate::effect::Effects;
use crate::job::BindingState;
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// Why a job of a drain stays: there is room for it, but only beside its other copy (DRAIN-23).
pub(crate) const BESIDE_OTHER_COPY: &str =
    "besideOtherCopy: there is room only on a node of its other copy, which is being moved as well";

/// Shortest time between two looks of one drain for room. A person who watches a drain does not see the
/// difference; a fleet on which hundreds of instances start and stop meanwhile does.
pub(crate) const RETRY_INTERVAL: Millis = Millis(1_000);

// === impl Policy ===

impl Policy {
    /// The migration comes to nothing because of its target's node, not of its job: if a drain asked for
    /// it, another place is looked for.
    pub(crate) fn note_place_lost(&mut self, id: &MigrationId) {
        let Some(state) = self.migration_by_id(id) else {
            return;
        };
        let (job_id, source) = (state.source_job_id.clone(), state.source_node_id.clone());
        if let Some(drain) = self.drains.get_mut(&source)
            && drain.state.phase.is_open()
        {
            drain.again.insert(job_id);
            drain.stirred = true;
        }
    }

    /// A job that was refused, and not for want of a place, is tried when it runs.
    pub(crate) fn may_be_moved_now(&self, node_id: &NodeId, job_id: &JobId) -> bool {
        let Some(drain) = self.drains.get(node_id) else {
            return false;
        };
        let mut listed = drain.state.jobs.iter();
        drain.again.contains(job_id)
            && self.runs_undisturbed(job_id)
            && listed.any(|job| job.job_id == *job_id && job.migration_id.is_none())
    }

    /// Tries the jobs that wait for room, if there may be some that was not there before.
    pub(crate) fn retry_for_room(&mut self, node_id: &NodeId, room: bool, out: &mut Effects) {
        let now = self.now.mono;
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        drain.stirred |= room;
        if !drain.stirred || drain.again.is_empty() {
            return;
        }
        if drain.next_try > now {
            let due = Due::Mono(drain.next_try);
            let timer = Timer::DrainRetry(node_id.clone());
            if self.timers.due(&timer) != Some(due) {
                self.timers.set(timer, due);
            }
            return;
        }
        drain.stirred = false;
        drain.next_try = now + RETRY_INTERVAL;
        let waiting: Vec<_> = drain
            .state
            .jobs
            .iter()
            .filter(|job| job.status == DrainStatus::Stuck && job.migration_id.is_some())
            .filter(|job| drain.again.contains(&job.job_id))
            .cloned()
            .collect();
        let mut without: BTreeSet<Class> = BTreeSet::new();
        for job in waiting {
            if !self.runs_undisturbed(&job.job_id) {
                continue;
            }
            let class = self
                .jobs
                .get(&job.job_id)
                .map(|record| self.class_of(record));
            let Some(class) = class.filter(|class| !without.contains(class)) else {
                continue;
            };
            let Some(decision) = self.target_now(&job.job_id) else {
                without.insert(class);
                continue;
            };
            if self.must_stay_apart(&job.job_id, &decision) {
                continue;
            }
            self.take_up(node_id, &job.job_id, out);
            self.tell_if_changed(node_id, &job, out);
            // A machine that is bought for one may have room for others.
            without.clear();
        }
    }

    fn runs_undisturbed(&self, job_id: &JobId) -> bool {
        let binding = self.jobs.get(job_id).and_then(|job| job.binding.as_ref());
        binding.is_some_and(|binding| binding.state == BindingState::Running)
    }

    /// Where a migration of the job would go as things stand (MIGR-05); none if there is no place.
    /// Nothing is done, told or counted.
    fn target_now(&self, job_id: &JobId) -> Option<Decision> {
        let job = self.jobs.get(job_id)?;
        let (spot, binding) = (job.spot.as_ref()?, job.binding.as_ref()?);
        let bundle = self.bundle(&spot.bundle_id)?;
        let excluded = self.excluded_for(job_id);
        let source = binding.node_id.clone();
        let request = Request::new(&bundle, spot.replica_index, &spot.job_name)?
            .of_job(job_id)
            .in_context(Context::Migration { source })
            .without(&excluded);
        let decision = place(&self.fleet, &request);
        (!matches!(decision, Decision::Failure { .. })).then_some(decision)
    }

    /// Why a job that shares its node by rule cannot leave it alone (INTRA-10): the rule and the jobs
    /// that it is tied to. None where nothing ties it.
    pub(crate) fn why_tied(&self, job_id: &JobId) -> Option<String> {
        let job = self.jobs.get(job_id)?;
        let (spot, node_id) = (job.spot.as_ref()?, &job.binding.as_ref()?.node_id);
        let plan = self.fleet.plan(&spot.bundle_id)?;
        let bundle = plan.bundle();
        let group = &plan.groups()[plan.group_index(&spot.job_name)?];
        let mut mates = Vec::new();
        let mut by_name = false;
        for &member in &group.members {
            let spec = &bundle.jobs[member];
            by_name |= !spec.co_locate_with.is_empty();
            let mate = bundle.job_id(spot.replica_index, &spec.job_name);
            let binding = self.jobs.get(&mate).and_then(|job| job.binding.as_ref());
            if mate != *job_id && binding.is_some_and(|binding| binding.node_id == *node_id) {
                mates.push(mate.to_string());
            }
        }
        let rule = if by_name {
            "coLocateWith"
        } else {
            "sameNodeDefault"
        };
        let mates = (!mates.is_empty()).then(|| named(&mates, "is", "are"))?;
        Some(format!(
            "coLocated: by {rule} it shares its node with what stays on {node_id}: {mates} there, and \
             jobs that share a node are not moved one by one"
        ))
    }

    /// A drain without force takes a job beside its other copy only where that one stands still: two
    /// drains at once would otherwise put both copies into one machine, each by itself with a good
    /// reason (DRAIN-23).
    pub(crate) fn must_stay_apart(&self, job_id: &JobId, decision: &Decision) -> bool {
        let beside = decision
            .degraded()
            .is_some_and(|degraded| degraded.violated.contains(&Domain::Node));
        let binding = self.jobs.get(job_id).and_then(|job| job.binding.as_ref());
        let Some(binding) = binding.filter(|_| beside) else {
            return false;
        };
        let Some(drain) = self.drains.get(&binding.node_id) else {
            return false;
        };
        if !drain.state.phase.is_open() || drain.state.force {
            return false;
        }
        let others = self.other_copy_of(job_id);
        let place = |id: &JobId| {
            let job = self.jobs.get(id)?;
            Some((
                job.migration.is_some(),
                job.binding.as_ref()?.node_id.clone(),
            ))
        };
        let places: Vec<(bool, NodeId)> = others.iter().filter_map(place).collect();
        let apart_now = places
            .iter()
            .all(|(_, node_id)| *node_id != binding.node_id);
        let leaves = |node_id: &NodeId| {
            let drain = self.drains.get(node_id);
            drain.is_some_and(|drain| drain.state.phase.is_open())
        };
        let on_the_move = places
            .iter()
            .any(|(moves, node_id)| *moves || leaves(node_id));
        apart_now && (on_the_move || drain.kept_apart.contains(job_id))
    }

    /// All jobs of the other copy of a job's bundle.
    fn other_copy_of(&self, job_id: &JobId) -> Vec<JobId> {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let Some(spot) = spot else { return Vec::new() };
        let mut jobs = self.jobs_of(&spot.bundle_id);
        jobs.retain(|id| {
            let other = self.jobs.get(id).and_then(|job| job.spot.as_ref());
            other.is_some_and(|other| other.replica_index != spot.replica_index)
        });
        jobs
    }

    /// Remembers that a job waits for a place apart from its other copy.
    pub(crate) fn note_kept_apart(&mut self, job_id: &JobId, source: &NodeId) {
        if let Some(drain) = self.drains.get_mut(source) {
            drain.kept_apart.insert(job_id.clone());
        }
    }
}
