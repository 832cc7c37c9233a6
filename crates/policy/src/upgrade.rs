//! Emptying a node for an upgrade (DRAIN-19 to DRAIN-21): an act of choice takes nothing off the air.
//!
//! What is on the air leaves by a handover or not at all, and the backup side goes first. Everything
//! else about a drain stands in `drain.rs`.

use greenroom_types::{JobId, NodeId};

use crate::amend::NAMED_MAX;
use crate::drain::DrainOptions;
use crate::event::{ApiError, OnAirJob};
use crate::job::BindingState;
use crate::migration::{MigrateOptions, MigrationRefusal, Strategy};
use crate::policy::Policy;
use crate::recovery::Lost;

/// Why a job of such a drain waits: the other copy is not settled elsewhere yet (DRAIN-20).
pub(crate) const BACKUP_FIRST: &str = "backupFirst";

// === impl Policy: upgrades ===

impl Policy {
    /// Refuses where some of these jobs could leave their node only by going off the air (DRAIN-19).
    pub(crate) fn check_upgrade(
        &self,
        node_id: &NodeId,
        options: &DrainOptions,
        bound: &[Lost],
    ) -> Result<(), ApiError> {
        if !options.for_upgrade || options.force {
            return Ok(());
        }
        let by_handover = MigrateOptions {
            strategy: Strategy::Handover,
            ..MigrateOptions::default()
        };
        let on_air = bound.iter().filter(|lost| self.is_on_air(&lost.job_id));
        let mut jobs: Vec<OnAirJob> = on_air
            .filter_map(
                |Lost { job_id, .. }| match self.may_migrate(job_id, &by_handover) {
                    // Whoever moves it already answers for how.
                    Ok(_) | Err(MigrationRefusal::MigrationInFlight) => None,
                    Err(reason) => Some(OnAirJob {
                        job_id: job_id.clone(),
                        reason,
                    }),
                },
            )
            .collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let more = jobs.len().saturating_sub(NAMED_MAX);
        jobs.truncate(NAMED_MAX);
        Err(ApiError::OnAir {
            node_id: node_id.clone(),
            jobs,
            more,
        })
    }

    /// Viewers may see this job: it runs, and it is not a backup behind a primary that runs undisturbed.
    fn is_on_air(&self, job_id: &JobId) -> bool {
        if !self.runs_bound(job_id) {
            return false;
        }
        let primary = self.other_copy(job_id);
        let behind = primary.is_some_and(|id| self.runs_bound(id) && !self.is_moving(id));
        !(self.is_backup(job_id) && behind)
    }

    /// How a job of the node's drain changes over, and what was asked for where its protection does not
    /// allow that: a leased job never runs twice, so it cannot overlap (DRAIN-22).
    pub(crate) fn change_over(
        &self,
        node_id: &NodeId,
        job_id: &JobId,
    ) -> (Strategy, Option<Strategy>) {
        let Some(drain) = self.drains.get(node_id) else {
            return (Strategy::default(), None);
        };
        let asked = drain.options.strategies.get(job_id).copied();
        let asked = asked.or(drain.options.strategy).unwrap_or_default();
        let hands_over = self.can_hand_over(job_id);
        let bound = drain.options.for_upgrade && self.is_on_air(job_id);
        if bound && (!drain.state.force || hands_over) {
            (Strategy::Handover, None)
        } else if asked == Strategy::Overlap && self.is_protected(job_id) {
            let by = if hands_over {
                Strategy::Handover
            } else {
                Strategy::StopThenStart
            };
            (by, Some(asked))
        } else {
            (asked, None)
        }
    }

    /// A primary stays until its backup is off the node and settled elsewhere (DRAIN-20).
    pub(crate) fn waits_for_backup(&self, node_id: &NodeId, job_id: &JobId) -> bool {
        if self.is_backup(job_id) {
            return false;
        }
        let backup = self.other_copy(job_id);
        let backup = backup.and_then(|id| Some((id, self.jobs.get(id)?.binding.as_ref()?)));
        backup.is_some_and(|(id, binding)| {
            binding.node_id == *node_id || self.is_moving(id) || !self.runs_bound(id)
        })
    }

    /// Backups first, else as they stand.
    pub(crate) fn backups_first(&self, mut bound: Vec<Lost>) -> Vec<Lost> {
        bound.sort_by_key(|lost| !self.is_backup(&lost.job_id));
        bound
    }

    fn is_backup(&self, job_id: &JobId) -> bool {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        spot.is_some_and(|spot| spot.replica_index == 1)
    }

    /// The same job of the other copy.
    fn other_copy(&self, job_id: &JobId) -> Option<&JobId> {
        let spot = self.jobs.get(job_id)?.spot.as_ref()?;
        let mates = &self.bundles.get(&spot.bundle_id)?.jobs;
        mates.iter().find(|mate| {
            let other = self.jobs.get(*mate).and_then(|job| job.spot.as_ref());
            other.is_some_and(|other| {
                other.job_name == spot.job_name && other.replica_index != spot.replica_index
            })
        })
    }

    fn runs_bound(&self, job_id: &JobId) -> bool {
        let binding = self.jobs.get(job_id).and_then(|job| job.binding.as_ref());
        binding.is_some_and(|binding| binding.state == BindingState::Running && !binding.ending)
    }

    fn is_moving(&self, job_id: &JobId) -> bool {
        let job = self.jobs.get(job_id);
        job.is_some_and(|job| job.migration.is_some())
    }
}
