//! What a drain or a migration did to a job: which domains it shares with its other copy where it went
//! (DRAIN-25, MIGR-38), and what happened to it on the way, in order (DRAIN-26).

use greenroom_placement::{Domain, Request, shared_domains};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::{JobId, MigrationId, Millis, NodeId, Wall};

use crate::drain::{Drain, DrainJob, DrainPhase, DrainStatus};
use crate::policy::Policy;

// === impl Policy ===

impl Policy {
    /// Writes into a drain's entry what the job shares with its other copy where it goes, or went.
    pub(crate) fn note_shares(&mut self, node_id: &NodeId, job_id: &JobId) {
        let target = self
            .migration_for_job(job_id)
            .and_then(|state| state.target_node_id.clone());
        let job = self.jobs.get(job_id);
        let bound = job.and_then(|job| Some(job.binding.as_ref()?.node_id.clone()));
        let place = target.or(bound).filter(|place| place != node_id);
        let shares = place.map_or_else(Vec::new, |place| self.shares_at(job_id, &place));
        if let Some(drain) = self.drains.get_mut(node_id)
            && let Some(job) = drain.job(job_id)
        {
            job.shares = shares;
        }
    }

    /// Writes into a migration what the job shares with its other copy where it is taken.
    pub(crate) fn note_shares_of_move(&mut self, id: &MigrationId) {
        let state = self.migration_by_id(id);
        let shares = state.and_then(|state| {
            let node_id = state.target_node_id.as_ref()?;
            Some(self.shares_at(&state.source_job_id, node_id))
        });
        if let Some(migration) = self.migrations.active.get_mut(id) {
            migration.state.shares = shares.unwrap_or_default();
        }
    }

    /// What became of a job with the nodes that it was on and that were drained or ended, oldest first.
    /// A drain under way is told by its own entry.
    pub(crate) fn happened(&self, job_id: &JobId) -> Vec<(Wall, String)> {
        let mut told = Vec::new();
        for (node_id, drain) in &self.drains {
            let mut listed = drain.state.jobs.iter();
            if let Some(entry) = listed.find(|entry| entry.job_id == *job_id) {
                self.tell_of_drain(&mut told, node_id, drain, entry);
            }
        }
        told.extend(self.ended_with_its_node(job_id));
        told.sort();
        told
    }

    fn tell_of_drain(
        &self,
        told: &mut Vec<(Wall, String)>,
        node_id: &NodeId,
        drain: &Drain,
        entry: &DrainJob,
    ) {
        let state = &drain.state;
        let ended = match entry.status {
            DrainStatus::Migrated => {
                let migration = entry.migration_id.as_ref();
                let migration = migration.and_then(|id| self.migration_by_id(id));
                migration.and_then(|migration| {
                    let at = migration.phase_history.last()?.at;
                    let target = migration.target_node_id.as_ref()?;
                    Some((at, format!("it had moved from {node_id} to {target}")))
                })
            }
            DrainStatus::Stuck | DrainStatus::Migrating if state.phase == DrainPhase::Partial => {
                let at = state.started + Millis(state.timeout_ms);
                let why = entry.reason.as_deref().unwrap_or("no reason is known");
                Some((
                    at,
                    format!("the drain's time was over and it stayed: {why}"),
                ))
            }
            // Its end with the node is in its history; what left in another way has a story of its own.
            DrainStatus::Terminated => None,
            DrainStatus::Stuck | DrainStatus::Migrating | DrainStatus::Moved => return,
        };
        let force = if state.force { ", with force" } else { "" };
        told.push((
            state.started,
            format!("its node {node_id} began to be drained{force}"),
        ));
        told.extend(ended);
    }

    /// When its node was ended with it, where nothing of it ended since.
    fn ended_with_its_node(&self, job_id: &JobId) -> Option<(Wall, String)> {
        let mut entries = self.jobs.get(job_id)?.seen.history.iter().rev();
        let is_end = |kind: &HistoryKind| matches!(kind, HistoryKind::Stopping { .. });
        let newest = entries.find(|entry| is_end(&entry.kind))?;
        let HistoryKind::Stopping {
            at,
            reason: StopReason::NodeTerminated,
            ..
        } = &newest.kind
        else {
            return None;
        };
        let node_id = &at.node.node_id;
        let drained = self.drains.get(node_id).is_some_and(|drain| {
            let mut jobs = drain.state.jobs.iter();
            jobs.any(|entry| entry.job_id == *job_id && entry.status == DrainStatus::Terminated)
        });
        let by = if drained { " by the drain" } else { "" };
        let words = format!("its node {node_id} was ended{by} with it still there");
        Some((newest.at, words))
    }

    /// What it shares with its other copy there, a decision of which may be older than its record.
    pub(crate) fn shares_at(&self, job_id: &JobId, node_id: &NodeId) -> Vec<Domain> {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let bundle = spot.and_then(|spot| Some((spot, self.bundle(&spot.bundle_id)?)));
        let Some((spot, bundle)) = bundle else {
            return Vec::new();
        };
        let request = Request::new(&bundle, spot.replica_index, &spot.job_name);
        request.map_or_else(Vec::new, |request| {
            shared_domains(&self.fleet, &request.of_job(job_id), node_id)
        })
    }
}
