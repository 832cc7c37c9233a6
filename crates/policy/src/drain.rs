//! Emptying a node and ending it (DRAIN). Notices of providers that demand it are in `interrupt.rs`.
//!
//! A drain owns no job: it asks for migrations, watches what becomes of the node's jobs and ends the
//! node when nothing is left on it. It is looked at at the end of every input in which something
//! about its node or its jobs may have changed.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_placement::Domain;
use greenroom_types::{JobId, MigrationId, Millis, Mono, NodeId, Wall};
use serde::{Deserialize, Serialize};

use crate::effect::{Callback, Effects, MirrorState};
use crate::event::{ApiAnswer, ApiError, ApiResult};
use crate::history::{self, RunState};
use crate::job::Binding;
use crate::migration::{MigrateOptions, MigrationPhase, MigrationRefusal, Strategy};
use crate::policy::Policy;
use crate::recovery::Lost;
use crate::settings::DEFAULT_DRAIN_TIMEOUT;
use crate::timer::{Due, Timer};
use crate::upgrade::BACKUP_FIRST;

pub use crate::interrupt::NodeInterruption;

/// Where a drain stands (DRAIN-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainPhase {
    /// A migration of the drain is in flight.
    Migrating,
    /// None is, jobs remain.
    Waiting,
    /// The terminate is issued.
    Terminating,
    /// The Manager accepted it, or the node is gone.
    Done,
    /// Its time was over without `force`.
    Partial,
    /// Cancelled, or the terminate failed.
    Failed,
}

/// What became of a job of the node (DRAIN-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainStatus {
    /// Its migration is under way.
    Migrating,
    /// Its migration completed.
    Migrated,
    /// It stays where it is.
    Stuck,
    /// It left in another way.
    Moved,
    /// It went down with the node.
    Terminated,
}

/// One job of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainJob {
    /// The job.
    pub job_id: JobId,
    /// What became of it.
    pub status: DrainStatus,
    /// Its migration.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub migration_id: Option<MigrationId>,
    /// How it changes over, once that was tried.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub strategy: Option<Strategy>,
    /// How it was to change over, where its protection does not allow that (DRAIN-22).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instead_of: Option<Strategy>,
    /// Why it is stuck, or, where it went down with the node and has no other one, why not (DRAIN-24).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// What it shares with its other copy where it goes, or went, and what was to be kept apart
    /// (DRAIN-25).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub shares: Vec<Domain>,
}

/// A drain as it is shown (DRAIN-03).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainState {
    /// The node.
    pub node_id: NodeId,
    /// Where it stands.
    pub phase: DrainPhase,
    /// When it began.
    pub started: Wall,
    /// Its length, from then.
    pub timeout_ms: u64,
    /// Ends the node at the timeout with what is on it.
    pub force: bool,
    /// The node's jobs, in the order in which they were taken up.
    pub jobs: Vec<DrainJob>,
    /// Why it ended as it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// What a further call asked for and did not get; in the answer to that call alone (DRAIN-09).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_taken: Vec<String>,
}

/// What is asked for (DRAIN-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainOptions {
    /// Time until its end; absent: 10 min.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<Millis>,
    /// Ends the node at the timeout with what is on it.
    pub force: bool,
    /// How jobs change over that have no strategy of their own; absent: `stopThenStart`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// How single jobs change over.
    pub strategies: BTreeMap<JobId, Strategy>,
    /// An act of choice: what is on the air leaves by a handover or not at all (DRAIN-19).
    pub for_upgrade: bool,
}

/// One drain, under way or ended.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) state: DrainState,
    pub(crate) options: DrainOptions,
    pub(crate) began: Mono,
    pub(crate) ends: Mono,
    /// Jobs stuck for a reason that time may cure are tried again (DRAIN-06).
    pub(crate) again: BTreeSet<JobId>,
    /// Something may have made room since they were last tried.
    pub(crate) stirred: bool,
    /// They are not tried for room before this.
    pub(crate) next_try: Mono,
    /// Jobs that wait for a place apart from their other copy (DRAIN-23).
    pub(crate) kept_apart: BTreeSet<JobId>,
}

impl DrainPhase {
    /// True until it has issued its terminate or ended.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Migrating | Self::Waiting)
    }
}

impl Drain {
    pub(crate) fn job(&mut self, job_id: &JobId) -> Option<&mut DrainJob> {
        self.state.jobs.iter_mut().find(|job| job.job_id == *job_id)
    }
}

// === impl Policy: beginning ===

impl Policy {
    /// Drains a node; answered when its migrations are asked for (DRAIN-01).
    pub(crate) fn drain_node(
        &mut self,
        node_id: &NodeId,
        options: DrainOptions,
        out: &mut Effects,
    ) -> ApiResult {
        let Some(record) = self.nodes.get(node_id) else {
            return Err(ApiError::UnknownNode {
                node_id: node_id.clone(),
            });
        };
        if matches!(record.state, MirrorState::Stopping | MirrorState::Stopped) {
            return Err(ApiError::NodeNotRunning {
                node_id: node_id.clone(),
            });
        }
        // One drain per node: a further call amends the running one (DRAIN-09).
        let running = self.drains.get(node_id).map(|drain| drain.state.phase);
        if running.is_some_and(|phase| !phase.is_over())
            && let Some(state) = self.amend_drain(node_id, options.clone(), out)
        {
            return Ok(ApiAnswer::Drain(Box::new(state)));
        }
        let bound = self.in_recovery_order(self.bound_to(node_id));
        self.check_upgrade(node_id, &options, &bound)?;
        let timeout = options.timeout_ms.unwrap_or(DEFAULT_DRAIN_TIMEOUT);
        self.begin_drain(node_id, timeout, options, out);
        match self.drains.get(node_id) {
            Some(drain) => Ok(ApiAnswer::Drain(Box::new(drain.state.clone()))),
            None => Err(ApiError::UnknownNode {
                node_id: node_id.clone(),
            }),
        }
    }

    /// Cordon, record, migrations, progress, timer (DRAIN-02).
    pub(crate) fn begin_drain(
        &mut self,
        node_id: &NodeId,
        timeout: Millis,
        options: DrainOptions,
        out: &mut Effects,
    ) {
        self.change_condition(node_id, |condition| condition.cordoned = true);
        self.services.look_at(node_id);
        let for_upgrade = options.for_upgrade;
        let drain = Drain {
            state: DrainState {
                node_id: node_id.clone(),
                phase: DrainPhase::Migrating,
                started: self.now.wall,
                timeout_ms: timeout.0,
                force: options.force,
                jobs: Vec::new(),
                reason: None,
                not_taken: Vec::new(),
            },
            options,
            began: self.now.mono,
            ends: self.now.mono + timeout,
            again: BTreeSet::new(),
            stirred: false,
            next_try: self.now.mono,
            kept_apart: BTreeSet::new(),
        };
        self.drains.insert(node_id.clone(), drain);
        self.acts.changed = true;
        // What is on its way here is called back while that is clean; else it is drained when it has
        // landed (DRAIN-12).
        for id in self.targets_on(node_id) {
            let clean = self
                .migrations
                .active
                .get(&id)
                .is_some_and(|migration| !migration.past_return && !migration.source_gone);
            if clean {
                self.note_place_lost(&id);
                self.abort_migration(&id, "the node of the target is being drained", out);
            }
        }
        let mut bound = self.in_recovery_order(self.bound_to(node_id));
        if for_upgrade {
            bound = self.backups_first(bound);
        }
        for Lost { job_id, .. } in bound {
            self.take_up(node_id, &job_id, out);
        }
        self.set_drain_timer(node_id, self.now.mono + timeout);
        self.settle_drain(node_id, true, out);
    }

    fn stop_drain_timers(&mut self, node_id: &NodeId) {
        self.timers.stop(&Timer::DrainTimeout(node_id.clone()));
        self.timers.stop(&Timer::DrainRetry(node_id.clone()));
    }

    pub(crate) fn set_drain_timer(&mut self, node_id: &NodeId, ends: Mono) {
        let timer = Timer::DrainTimeout(node_id.clone());
        self.timers.set(timer, Due::Mono(ends));
    }

    /// Copies of the node's bindings, to be put in order.
    fn bound_to(&self, node_id: &NodeId) -> Vec<Lost> {
        self.jobs_on(node_id)
            .into_iter()
            .filter_map(|job_id| {
                let binding: Binding = self.jobs.get(&job_id)?.binding.clone()?;
                Some(Lost { job_id, binding })
            })
            .collect()
    }

    /// Takes a job of the node up: adopts its migration, or asks for one.
    pub(crate) fn take_up(&mut self, node_id: &NodeId, job_id: &JobId, out: &mut Effects) {
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        if drain.job(job_id).is_none() {
            drain.state.jobs.push(DrainJob {
                job_id: job_id.clone(),
                status: DrainStatus::Stuck,
                migration_id: None,
                strategy: None,
                instead_of: None,
                reason: None,
                shares: Vec::new(),
            });
        }
        drain.again.remove(job_id);
        let for_upgrade = drain.options.for_upgrade;
        let gently = for_upgrade && !drain.state.force;
        let running = self.migration_for_job(job_id);
        let running = running.map(|state| (state.migration_id.clone(), state.strategy));
        let (mut by, mut instead_of) = (None, None);
        let begun = match running {
            Some((id, strategy)) => {
                by = Some(strategy);
                Ok(id)
            }
            None if gently && self.waits_for_backup(node_id, job_id) => Err(BACKUP_FIRST),
            None => {
                let (strategy, asked) = self.change_over(node_id, job_id);
                (by, instead_of) = (Some(strategy), asked);
                let options = MigrateOptions {
                    strategy,
                    ..MigrateOptions::default()
                };
                let begun = self.migrate(job_id, options, None, out);
                begun.map_err(MigrationRefusal::code)
            }
        };
        let failed = begun.as_ref().ok().and_then(|id| {
            let state = self.migration_by_id(id)?;
            let reason = state.abort_reason.clone()?;
            // No place: nothing of it was started (MIGR-06).
            Some((reason, state.target_node_id.is_none()))
        });
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        let (status, migration_id, reason, again) = match (begun, failed) {
            (Ok(id), None) => (DrainStatus::Migrating, Some(id), None, false),
            (Ok(id), Some((reason, no_place))) => {
                (DrainStatus::Stuck, Some(id), Some(reason), no_place)
            }
            (Err(code), _) => {
                // The backup settles, and a notice of the provider lets every job go (DRAIN-21).
                let again = for_upgrade || code == MigrationRefusal::NotRunning.code();
                (DrainStatus::Stuck, None, Some(code.to_owned()), again)
            }
        };
        if again {
            drain.again.insert(job_id.clone());
        }
        if let Some(job) = drain.job(job_id) {
            job.status = status;
            job.migration_id = migration_id;
            job.strategy = by;
            job.instead_of = instead_of;
            job.reason = reason;
        }
        self.note_shares(node_id, job_id);
    }
}

// === impl Policy: watching ===

impl Policy {
    /// Looks at every drain under way at the end of an input; `room` says that something may have
    /// made room, so that those stuck for want of it are tried again (DRAIN-06).
    pub(crate) fn run_drains(&mut self, room: bool, out: &mut Effects) {
        let open: Vec<NodeId> = self
            .drains
            .iter()
            .filter(|(_, drain)| drain.state.phase.is_open())
            .map(|(node_id, _)| node_id.clone())
            .collect();
        for node_id in open {
            self.watch_jobs(&node_id, out);
            self.retry_for_room(&node_id, room, out);
            self.settle_drain(&node_id, false, out);
        }
    }

    /// Brings the statuses of a drain's jobs in line with what became of them.
    fn watch_jobs(&mut self, node_id: &NodeId, out: &mut Effects) {
        let here: BTreeSet<JobId> = self.jobs_on(node_id).into_iter().collect();
        let Some(drain) = self.drains.get(node_id) else {
            return;
        };
        let listed = drain.state.jobs.clone();
        let mut landed = here.clone();
        for job in &listed {
            landed.remove(&job.job_id);
            let migration = job
                .migration_id
                .as_ref()
                .and_then(|id| self.migration_by_id(id));
            let phase = migration.map(|state| state.phase);
            let reason = migration.and_then(|state| state.abort_reason.clone());
            let is_here = here.contains(&job.job_id);
            let status = match (job.status, phase, is_here) {
                (DrainStatus::Migrating, Some(MigrationPhase::Done), _) => DrainStatus::Migrated,
                (DrainStatus::Migrating, Some(MigrationPhase::Aborted) | None, true) => {
                    DrainStatus::Stuck
                }
                (DrainStatus::Migrating, Some(MigrationPhase::Aborted) | None, false)
                | (DrainStatus::Stuck, _, false) => DrainStatus::Moved,
                // Back on the node by another way: taken up again.
                (DrainStatus::Migrated | DrainStatus::Moved, _, true) => {
                    self.take_up(node_id, &job.job_id, out);
                    continue;
                }
                (status, _, _) => status,
            };
            // It found no place after its source was asked: that may change.
            let no_place = migration.is_some_and(|state| {
                state.phase == MigrationPhase::Aborted && state.target_node_id.is_none()
            });
            if status != job.status {
                if status == DrainStatus::Stuck
                    && no_place
                    && let Some(drain) = self.drains.get_mut(node_id)
                {
                    drain.again.insert(job.job_id.clone());
                }
                self.set_drain_job(node_id, &job.job_id, status, reason, out);
            }
            if status == DrainStatus::Stuck && self.may_be_moved_now(node_id, &job.job_id) {
                self.take_up(node_id, &job.job_id, out);
                self.tell_if_changed(node_id, job, out);
            }
        }
        // A migration that was past its point of no return has landed here (DEC-25).
        for job_id in landed {
            self.take_up(node_id, &job_id, out);
            self.tell_drain(node_id, out);
        }
    }

    pub(crate) fn set_drain_job(
        &mut self,
        node_id: &NodeId,
        job_id: &JobId,
        status: DrainStatus,
        reason: Option<String>,
        out: &mut Effects,
    ) {
        if let Some(job) = self
            .drains
            .get_mut(node_id)
            .and_then(|drain| drain.job(job_id))
        {
            job.status = status;
            let told = matches!(status, DrainStatus::Stuck | DrainStatus::Terminated);
            job.reason = reason.filter(|_| told);
        }
        self.note_shares(node_id, job_id);
        self.tell_drain(node_id, out);
    }

    pub(crate) fn tell_if_changed(&self, node_id: &NodeId, before: &DrainJob, out: &mut Effects) {
        let after = self.drains.get(node_id).and_then(|drain| {
            drain
                .state
                .jobs
                .iter()
                .find(|job| job.job_id == before.job_id)
        });
        if after.is_some_and(|after| after.status != before.status || after.reason != before.reason)
        {
            self.tell_drain(node_id, out);
        }
    }

    pub(crate) fn tell_drain(&self, node_id: &NodeId, out: &mut Effects) {
        if let Some(drain) = self.drains.get(node_id) {
            out.callback(Callback::OnDrainProgress(Box::new(drain.state.clone())));
        }
    }

    /// Works out the phase of an open drain, and ends the node when nothing is left on it (DRAIN-05).
    fn settle_drain(&mut self, node_id: &NodeId, first: bool, out: &mut Effects) {
        let Some(drain) = self.drains.get(node_id) else {
            return;
        };
        if !drain.state.phase.is_open() {
            return;
        }
        let migrating = drain
            .state
            .jobs
            .iter()
            .any(|job| job.status == DrainStatus::Migrating);
        let phase = if migrating {
            DrainPhase::Migrating
        } else {
            DrainPhase::Waiting
        };
        let empty = self.fleet.jobs_on(node_id).is_empty() && !self.is_anything_there(node_id);
        if empty {
            self.end_node_of_drain(node_id, out);
        } else if first || phase != drain.state.phase {
            self.set_phase(node_id, phase, None, out);
        }
    }

    /// True while the Manager shows an instance of the drain's jobs on the node (DRAIN-06).
    fn is_anything_there(&self, node_id: &NodeId) -> bool {
        let Some(drain) = self.drains.get(node_id) else {
            return false;
        };
        drain
            .state
            .jobs
            .iter()
            .filter_map(|job| self.jobs.get(&job.job_id))
            .any(|job| {
                history::runs(&job.seen).iter().any(|run| {
                    run.node_id == *node_id
                        && matches!(
                            run.state,
                            RunState::Provisioned
                                | RunState::Prepared
                                | RunState::Running
                                | RunState::Ending(_)
                        )
                })
            })
    }

    pub(crate) fn set_phase(
        &mut self,
        node_id: &NodeId,
        phase: DrainPhase,
        reason: Option<&str>,
        out: &mut Effects,
    ) {
        if let Some(drain) = self.drains.get_mut(node_id) {
            drain.state.phase = phase;
            self.acts.changed = true;
            if let Some(reason) = reason {
                drain.state.reason = Some(reason.to_owned());
            }
            if !phase.is_open() {
                self.stop_drain_timers(node_id);
            }
        }
        self.tell_drain(node_id, out);
    }

    pub(crate) fn end_node_of_drain(&mut self, node_id: &NodeId, out: &mut Effects) {
        self.set_phase(node_id, DrainPhase::Terminating, None, out);
        let ending = self
            .fleet
            .condition(node_id)
            .is_some_and(|condition| condition.terminating);
        if !ending {
            self.terminate(node_id, None, out);
        }
    }

    /// `uncordonNode` takes a drain back before its terminate (DRAIN-10), and the notice with it
    /// (INTR-09).
    pub(crate) fn cancel_drain(&mut self, node_id: &NodeId, out: &mut Effects) {
        let phase = self.drains.get(node_id).map(|drain| drain.state.phase);
        if phase.is_some_and(DrainPhase::is_open) {
            self.set_phase(node_id, DrainPhase::Failed, Some("cancelled"), out);
        }
        if phase != Some(DrainPhase::Terminating) && phase != Some(DrainPhase::Done) {
            self.notices.remove(node_id);
        }
    }

    /// The node left the mirror, or began anew (INTR-10).
    pub(crate) fn forget_drain(&mut self, node_id: &NodeId) {
        self.stop_drain_timers(node_id);
        self.acts.changed |= self.drains.remove(node_id).is_some();
        self.notices.remove(node_id);
    }

    /// What a drain under way makes of a job that is on its node.
    pub(crate) fn drain_entry(&self, job_id: &JobId) -> Option<&DrainJob> {
        let binding = self.jobs.get(job_id)?.binding.as_ref()?;
        let drain = self.drains.get(&binding.node_id)?;
        let open = drain.state.phase.is_open();
        let mut listed = drain.state.jobs.iter().filter(|_| open);
        listed.find(|job| job.job_id == *job_id)
    }

    /// A drain of this node, under way or ended (DRAIN-11).
    pub fn drain_status(&self, node_id: &NodeId) -> Option<&DrainState> {
        self.drains.get(node_id).map(|drain| &drain.state)
    }
}
