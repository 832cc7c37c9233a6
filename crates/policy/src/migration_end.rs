//! How a migration ends (MIGR-15, MIGR-24, MIGR-29, MIGR-32): done, taken back, lost, given up with
//! its job, or wound down at the close. Each way out answers the caller that still waits.

use greenroom_placement::Side;
use greenroom_types::call::Call;
use greenroom_types::{JobId, MigrationId};

use crate::calls::Purpose;
use crate::effect::{Callback, Effect, Effects, ErrorInfo};
use crate::event::{ApiAnswer, ApiError};
use crate::job::{Binding, BindingState};
use crate::migration::{MigrationPhase, MigrationState};
use crate::policy::Policy;

/// Ended migrations that are still shown (MIGR-33).
const ENDED_MAX: usize = 1_000;

// === impl Policy: ending ===

impl Policy {
    /// The job lives on its target (MIGR-15).
    pub(crate) fn complete_migration(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        let job_id = migration.state.source_job_id.clone();
        let decision = migration.decision.take();
        let mut source = None;
        if let Some(job) = self.jobs.get_mut(&job_id) {
            source = job.binding.take();
            job.binding = job.target.take().map(|target| *target);
            if let Some(binding) = &mut job.binding {
                binding.state = BindingState::Running;
            }
            if decision.is_some() {
                job.record = decision.map(Box::new);
            }
            job.migration = None;
        }
        if let Some(source) = &source {
            self.keep_left(&job_id, &source.node_id, Side::Binding);
        }
        self.fleet.promote(&job_id);
        self.note_shares_of_move(id);
        self.enter_phase(id, MigrationPhase::Done, out);
        out.callback(Callback::OnMigrationCompleted {
            migration_id: id.clone(),
        });
        self.answer_caller(id, out);
        self.file_ended(id);
        if let Some(source) = source {
            self.touch_if_spare(&source.node_id);
            self.relist_if_listed(&source.node_id, &job_id);
            self.release_single_use(&source, out);
        }
        self.refresh(&job_id);
        self.stop_strays(&job_id, out);
        self.pending.wake();
    }

    /// No target was placed, or its first call failed: nothing was started (MIGR-06).
    pub(crate) fn end_without_target(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        self.finish_with_source(id, reason, Undo::Nothing, out);
    }

    /// Back to the source, which is intact (MIGR-29).
    pub(crate) fn abort_migration(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        self.finish_with_source(id, reason, Undo::Both, out);
    }

    /// The job itself is not to run any more: only a started target is stopped (MIGR-32).
    pub(crate) fn give_up_migration(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        self.finish_with_source(id, reason, Undo::Target, out);
    }

    /// The job stays where it is. What came back meanwhile with its server, and was not touched as long
    /// as keys were the migration's, is a stray now (BIND-08).
    fn finish_with_source(
        &mut self,
        id: &MigrationId,
        reason: &str,
        undo: Undo,
        out: &mut Effects,
    ) {
        let migration = self.migrations.active.get(id);
        let job_id = migration.map(|migration| migration.state.source_job_id.clone());
        self.finish_aborted(id, reason, undo, out);
        if let Some(job_id) = job_id {
            self.stop_strays(&job_id, out);
        }
    }

    fn finish_aborted(&mut self, id: &MigrationId, reason: &str, undo: Undo, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        migration.state.abort_reason = Some(reason.to_owned());
        migration.state.shares.clear();
        let (source, target) = (migration.source_key(), migration.target_key());
        let (job_id, start_sent) = (source.job_id.clone(), migration.start_sent);
        let node_id = migration.state.target_node_id.clone();
        self.enter_phase(id, MigrationPhase::Aborted, out);
        if undo == Undo::Both {
            let call = Call::AbortMigration {
                job_id: job_id.clone(),
                source_role: source.role,
                target_role: target.role.clone(),
                reason: reason.to_owned(),
                migration_id: id.clone(),
            };
            self.send_undo(call, "aborting a migration", &job_id, out);
        }
        if undo != Undo::Nothing
            && start_sent
            && let Some(node_id) = node_id
        {
            // What the stream still says of it makes no second stop (BIND-08).
            self.note_stray_stopped(&job_id, &target.role, &node_id);
            let call = Call::StopJob {
                key: target,
                node_id,
                grace_ms: None,
            };
            self.send_undo(call, "stopping the target of a migration", &job_id, out);
        }
        let target = self.take_target(&job_id);
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.migration = None;
        }
        out.callback(Callback::OnMigrationAborted {
            migration_id: id.clone(),
            reason: reason.to_owned(),
        });
        self.fail_caller(id, reason, out);
        self.file_ended(id);
        self.refresh(&job_id);
        // Without a target nothing is freed: whoever waits for room has no more of it now, the drain
        // that asked for this migration least of all (DRAIN-06).
        if let Some(target) = target {
            self.release_single_use(&target, out);
            self.pending.wake();
        }
    }

    /// The target is gone and the source was told to stop: the job is recovered (MIGR-24).
    pub(crate) fn lose_migration(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        self.lose(id, reason, Undo::Nothing, out);
    }

    /// The target did not take over in time, or will not. It is still there, so it is stopped
    /// (MIGR-24).
    pub(crate) fn expire_migration(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        self.lose(id, reason, Undo::Target, out);
    }

    fn lose(&mut self, id: &MigrationId, reason: &str, undo: Undo, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let job_id = migration.state.source_job_id.clone();
        // One loss, none if either node is reclaimed (MIGR-27).
        let target = migration.state.target_node_id.as_ref();
        let counts = !self.is_reclaimed(&migration.state.source_node_id)
            && !target.is_some_and(|target| self.is_reclaimed(target));
        if migration.past_return {
            // It was told to stop, so it is not where the job goes on (BIND-07).
            let source = migration.state.source_node_id.clone();
            let role = migration.state.source_role.clone();
            self.note_stray_stopped(&job_id, &role, &source);
        }
        self.finish_aborted(id, reason, undo, out);
        let message = format!("the migration {id} of job {job_id:?} is lost: {reason}");
        self.report(ErrorInfo::new("migrationLost", message).job(&job_id), out);
        if let Some(binding) = self.unbind(&job_id) {
            self.recover(&job_id, &binding, counts, out);
        } else {
            self.judge_loss(&job_id, counts, out);
        }
    }

    fn send_undo(&mut self, call: Call, what: &'static str, job_id: &JobId, out: &mut Effects) {
        let purpose = Purpose::Tell {
            what,
            job_id: job_id.clone(),
        };
        let call_id = self.send(call, purpose, out);
        self.note_closing_call(call_id);
    }

    fn take_target(&mut self, job_id: &JobId) -> Option<Binding> {
        let target = self.jobs.get_mut(job_id)?.target.take()?;
        self.keep_left(job_id, &target.node_id, Side::MigrationTarget);
        self.fleet.unbind(job_id, Side::MigrationTarget);
        self.relist_if_listed(&target.node_id, job_id);
        self.touch_if_spare(&target.node_id);
        self.note_told_remains(job_id);
        Some(*target)
    }

    /// The target's first call was accepted (MIGR-01).
    pub(crate) fn answer_caller(&mut self, id: &MigrationId, out: &mut Effects) {
        let caller = self
            .migrations
            .active
            .get_mut(id)
            .and_then(|m| m.caller.take());
        if let Some(caller) = caller {
            let result = Ok(ApiAnswer::Migration(id.clone()));
            out.push(Effect::ApiReply { id: caller, result });
        }
    }

    fn fail_caller(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        let caller = self
            .migrations
            .active
            .get_mut(id)
            .and_then(|m| m.caller.take());
        if let Some(caller) = caller {
            let error = ApiError::MigrationAborted {
                migration_id: id.clone(),
                reason: reason.to_owned(),
            };
            out.push(Effect::ApiReply {
                id: caller,
                result: Err(error),
            });
        }
    }

    /// Keeps what ended in sight (MIGR-33). Attempts that found no place push out nothing else: of one
    /// job only the last is kept, and of all that is kept they go first.
    fn file_ended(&mut self, id: &MigrationId) {
        let Some(migration) = self.migrations.active.remove(id) else {
            return;
        };
        let state = migration.state;
        let ended = &mut self.migrations.ended;
        if is_bare(&state) {
            let same =
                |old: &MigrationState| is_bare(old) && old.source_job_id == state.source_job_id;
            if let Some(at) = ended.iter().position(same) {
                ended.remove(at);
            }
        }
        ended.push_back(state);
        if ended.len() > ENDED_MAX {
            let at = ended.iter().position(is_bare).unwrap_or(0);
            ended.remove(at);
        }
    }

    /// The job is gone, and with it all that could be told of it (MIGR-32).
    pub(crate) fn migration_of_deleted(&mut self, job_id: &JobId, out: &mut Effects) {
        let id = self.jobs.get(job_id).and_then(|job| job.migration.clone());
        if let Some(id) = id {
            self.finish_aborted(&id, "jobDeleted", Undo::Nothing, out);
        }
    }

    /// At the close: back where that is possible, else the target is left with the job (LIFE-03,
    /// LIFE-04).
    pub(crate) fn wind_down_migrations(&mut self, out: &mut Effects) {
        let ids: Vec<MigrationId> = self.migrations.active.keys().cloned().collect();
        for id in ids {
            let Some(migration) = self.migrations.active.get(&id) else {
                continue;
            };
            // A source that has ended its output has perhaps been followed (HYDR-18).
            let is_silent = migration.state.phase == MigrationPhase::Applying;
            if !migration.past_return && !migration.source_gone && !is_silent {
                self.abort_migration(&id, "closed", out);
                continue;
            }
            let waits =
                migration.prepared && migration.state.phase == MigrationPhase::AwaitingSourceStop;
            let key = migration.target_key();
            let node_id = migration.state.target_node_id.clone();
            if let (true, Some(node_id)) = (waits, node_id) {
                let job_id = key.job_id.clone();
                let call = Call::StartPreparedJob {
                    key: key.clone(),
                    node_id,
                };
                self.send_undo(call, "starting a prepared target", &job_id, out);
            }
            self.finish_aborted(&id, "closed", Undo::Nothing, out);
            let message = format!(
                "closed while migration {id} of job {:?} was under way",
                key.job_id
            );
            self.report(
                ErrorInfo::new("migrationLost", message).job(&key.job_id),
                out,
            );
        }
    }

    /// Takes a migration back at the caller's wish (MIGR-30).
    pub(crate) fn abort_by_call(
        &mut self,
        id: &MigrationId,
        reason: &str,
        out: &mut Effects,
    ) -> Result<(), ApiError> {
        let Some(migration) = self.migrations.active.get(id) else {
            return Ok(());
        };
        if migration.past_return || migration.source_gone {
            return Err(ApiError::PastPointOfNoReturn {
                migration_id: id.clone(),
            });
        }
        self.abort_migration(id, reason, out);
        Ok(())
    }
}

/// It never had a target: nothing of it was started, nothing changed.
fn is_bare(state: &MigrationState) -> bool {
    state.phase == MigrationPhase::Aborted && state.target_node_id.is_none()
}

/// What an abort has to take back at the Manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    Nothing,
    Target,
    Both,
}
