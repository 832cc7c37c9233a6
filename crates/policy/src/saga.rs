//! A migration from phase to phase (MIGR-04, MIGR-08 to MIGR-31): what the two instances report, what
//! calls answer, what time does, what the loss of a side means.
//!
//! Before the point of no return every mishap leads back to the source; after it, forward to the
//! target or, without one, to recovery.

use greenroom_types::call::{Call, Status};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{JobId, MigrationId, Millis, NodeId};

use crate::calls::Purpose;
use crate::effect::{Callback, Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::history::{self, End, RunState};
use crate::job::BindingState;
use crate::migration::{MigrationPhase, PhaseEntry, Strategy};
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// Which call of a migration a reply is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The source's state is asked for.
    Ask,
    /// The target is started; whether it counts as the decision's first call.
    Start { counts: bool },
    /// The prepared target is run.
    StartPrepared,
    /// The source is told to stop.
    StopSource,
    /// A side is told of the change-over.
    Notify,
}

// === impl Policy: phases ===

impl Policy {
    pub(crate) fn enter_phase(
        &mut self,
        id: &MigrationId,
        phase: MigrationPhase,
        out: &mut Effects,
    ) {
        let at = self.now.wall;
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        migration.state.phase = phase;
        migration.state.phase_history.push(PhaseEntry { phase, at });
        let state = migration.state.clone();
        // A machine may still have to boot: grace and provision timeout bound that (MIGR-09).
        let waits_for_node = phase == MigrationPhase::Launching && !migration.start_sent;
        if waits_for_node {
            self.timers.stop(&Timer::MigrationPhase(id.clone()));
        } else {
            self.arm_phase(id);
        }
        out.callback(Callback::OnMigrationPhase(Box::new(state)));
    }

    /// The deadline of the present phase, counted from now (MIGR-17).
    pub(crate) fn arm_phase(&mut self, id: &MigrationId) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let deadlines = self.settings.migration;
        let wait: Option<Millis> = match migration.state.phase {
            MigrationPhase::Proposing => Some(deadlines.proposing),
            MigrationPhase::Launching => Some(deadlines.launching),
            MigrationPhase::AwaitingTargetReady => Some(deadlines.awaiting_target_ready),
            MigrationPhase::AwaitingSourceStop => Some(deadlines.awaiting_source_stop),
            MigrationPhase::Applying => Some(deadlines.applying),
            MigrationPhase::StartingTarget => Some(deadlines.starting_target),
            MigrationPhase::StoppingSource => Some(deadlines.stopping_source),
            MigrationPhase::Done | MigrationPhase::Aborted => None,
        };
        let timer = Timer::MigrationPhase(id.clone());
        match wait {
            Some(wait) => self.timers.set(timer, Due::Mono(self.now.mono + wait)),
            None => self.timers.stop(&timer),
        }
    }

    /// A phase took too long (MIGR-18).
    pub(crate) fn end_phase(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let phase = migration.state.phase;
        let name = serde_json::to_value(phase).unwrap_or_default();
        let reason = format!("timeout: {}", name.as_str().unwrap_or_default());
        let job_id = migration.state.source_job_id.clone();
        if !migration.past_return {
            if migration.source_gone {
                self.expire_migration(id, &reason, out);
            } else {
                self.abort_migration(id, &reason, out);
            }
            return;
        }
        let message =
            format!("migration {id} of job {job_id:?} goes on without its source: {reason}");
        let error = ErrorInfo::new("migrationTimeout", message).job(&job_id);
        match phase {
            MigrationPhase::AwaitingSourceStop => {
                self.report(error, out);
                self.run_prepared(id, out);
            }
            MigrationPhase::StoppingSource => {
                self.report(error, out);
                self.complete_migration(id, out);
                self.stop_strays(&job_id, out);
            }
            _ => self.expire_migration(id, &reason, out),
        }
    }

    pub(crate) fn send_step(
        &mut self,
        id: &MigrationId,
        call: Call,
        step: Step,
        out: &mut Effects,
    ) {
        let purpose = Purpose::Migration {
            id: id.clone(),
            step,
        };
        self.send(call, purpose, out);
    }

    /// No way back from here (MIGR-20).
    fn stop_source(&mut self, id: &MigrationId, phase: MigrationPhase, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        migration.past_return = true;
        let call = Call::StopJob {
            key: migration.source_key(),
            node_id: migration.state.source_node_id.clone(),
            grace_ms: None,
        };
        self.send_step(id, call, Step::StopSource, out);
        self.enter_phase(id, phase, out);
    }

    fn run_prepared(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        migration.past_return = true;
        let Some(node_id) = migration.state.target_node_id.clone() else {
            return;
        };
        let call = Call::StartPreparedJob {
            key: migration.target_key(),
            node_id,
        };
        self.send_step(id, call, Step::StartPrepared, out);
        self.enter_phase(id, MigrationPhase::StartingTarget, out);
    }
}

// === impl Policy: what the instances report ===

impl Policy {
    /// Reads the histories of both keys (MIGR-07).
    pub(crate) fn follow_migration(&mut self, job_id: &JobId, id: &MigrationId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let runs = history::runs(&job.seen);
        let of = |binding: &crate::job::Binding| {
            runs.iter()
                .rfind(|run| {
                    run.role == binding.role
                        && run.node_id == binding.node_id
                        && run.first > binding.since
                })
                .map(|run| (run.state, run.end(&job.seen)))
        };
        let source = job.binding.as_ref().and_then(of);
        let target = job.target.as_deref().and_then(of);
        if let Some((state, end)) = target {
            match (state, end) {
                (_, End::Failed | End::Requested | End::Plain { .. }) => {
                    self.target_lost(id, "the target ended", out);
                    return;
                }
                (RunState::Prepared, _) => self.target_prepared(id, out),
                (RunState::Running, _) => self.target_runs(id, out),
                _ => {}
            }
        }
        if !self.migrations.active.contains_key(id) {
            return;
        }
        match source.map(|(_, end)| end) {
            Some(End::Failed) => self.source_lost(job_id, id, out),
            Some(End::Plain { .. }) => {
                let past = self
                    .migrations
                    .active
                    .get(id)
                    .is_some_and(|m| m.past_return);
                if past {
                    self.source_stopped(id, out);
                } else {
                    // Somebody stopped it: it stays stopped (DEC-17).
                    self.give_up_migration(id, "the source was stopped", out);
                    self.follow_binding(job_id, out);
                }
            }
            _ => {}
        }
    }

    /// The target is created and does not run (MIGR-10).
    pub(crate) fn target_prepared(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        let waits = migration.state.phase == MigrationPhase::Launching
            && migration.options.strategy == Strategy::StopThenStart;
        if !waits {
            return;
        }
        migration.prepared = true;
        if migration.source_gone {
            self.run_prepared(id, out);
        } else {
            self.stop_source(id, MigrationPhase::AwaitingSourceStop, out);
        }
    }

    fn target_runs(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let source_gone = migration.source_gone;
        let node_id = migration.state.target_node_id.clone();
        let job_id = migration.state.source_job_id.clone();
        let step = (migration.options.strategy, migration.state.phase);
        if let Some(target) = self
            .jobs
            .get_mut(&job_id)
            .and_then(|job| job.target.as_mut())
        {
            target.state = BindingState::Running;
        }
        if let Some(node_id) = node_id {
            self.make_healthy(&node_id, out);
        }
        match step {
            (Strategy::StopThenStart, MigrationPhase::StartingTarget) => {
                self.complete_migration(id, out);
            }
            (Strategy::Overlap, MigrationPhase::Launching) if source_gone => {
                self.complete_migration(id, out);
            }
            (Strategy::Overlap, MigrationPhase::Launching) => {
                self.stop_source(id, MigrationPhase::StoppingSource, out);
            }
            (Strategy::Handover, MigrationPhase::Launching) => {
                self.enter_phase(id, MigrationPhase::AwaitingTargetReady, out);
            }
            _ => {}
        }
    }

    fn source_stopped(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        match (migration.options.strategy, migration.state.phase) {
            (Strategy::StopThenStart, MigrationPhase::AwaitingSourceStop) => {
                self.run_prepared(id, out);
            }
            (_, MigrationPhase::StoppingSource) => self.complete_migration(id, out),
            _ => {}
        }
    }

    /// A signal of a job, heard only from the side and in the phase that it belongs to (MIGR-14).
    pub(crate) fn migration_signal(
        &mut self,
        key: &InstanceKey,
        id: &MigrationId,
        signal: MigrationSignal,
        out: &mut Effects,
    ) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let (source, target) = (migration.source_key(), migration.target_key());
        let (phase, past) = (migration.state.phase, migration.past_return);
        let handover = migration.options.strategy == Strategy::Handover;
        let from = if *key == source {
            Side::Source
        } else if *key == target {
            Side::Target
        } else {
            return;
        };
        match (signal, from, phase) {
            (MigrationSignal::State(state), Side::Source, MigrationPhase::Proposing) => {
                if let Some(migration) = self.migrations.active.get_mut(id) {
                    migration.source_state = Some(state);
                }
                self.enter_phase(id, MigrationPhase::Launching, out);
                self.place_target(id, out);
            }
            (MigrationSignal::Refused(reason), Side::Source, MigrationPhase::Proposing) => {
                self.abort_migration(id, &reason, out);
            }
            (
                MigrationSignal::TargetReady(payload),
                Side::Target,
                MigrationPhase::Launching | MigrationPhase::AwaitingTargetReady,
            ) if handover => {
                let call = Call::NotifyMigrationCutoverReady {
                    key: source,
                    migration_id: id.clone(),
                    payload,
                };
                self.send_step(id, call, Step::Notify, out);
                self.enter_phase(id, MigrationPhase::AwaitingSourceStop, out);
            }
            (
                MigrationSignal::SourceStoppedOutput(payload),
                Side::Source,
                MigrationPhase::AwaitingSourceStop,
            ) if handover => {
                let call = Call::NotifyMigrationCutoverApply {
                    key: target,
                    migration_id: id.clone(),
                    payload,
                };
                self.send_step(id, call, Step::Notify, out);
                self.enter_phase(id, MigrationPhase::Applying, out);
            }
            (MigrationSignal::TargetApplied(_), Side::Target, MigrationPhase::Applying) => {
                if self
                    .migrations
                    .active
                    .get(id)
                    .is_some_and(|m| m.source_gone)
                {
                    self.complete_migration(id, out);
                } else {
                    self.stop_source(id, MigrationPhase::StoppingSource, out);
                }
            }
            (MigrationSignal::Aborted { reason, .. }, _, _) if !past => {
                if self
                    .migrations
                    .active
                    .get(id)
                    .is_some_and(|m| m.source_gone)
                {
                    self.lose_migration(id, &reason, out);
                } else {
                    self.abort_migration(id, &reason, out);
                }
            }
            (MigrationSignal::Aborted { reason, .. }, Side::Target, _) => {
                self.expire_migration(id, &reason, out);
            }
            _ => {}
        }
    }
}

/// Which of the two a signal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

// === impl Policy: losses ===

impl Policy {
    /// The target, or its node, is gone (MIGR-22 to MIGR-24).
    pub(crate) fn target_lost(&mut self, id: &MigrationId, reason: &str, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        if migration.past_return || migration.source_gone {
            self.lose_migration(id, reason, out);
        } else {
            self.abort_migration(id, reason, out);
        }
    }

    /// Targets on a node that is gone.
    pub(crate) fn targets_lose_node(&mut self, node_id: &NodeId, out: &mut Effects) {
        for id in self.targets_on(node_id) {
            self.note_place_lost(&id);
            self.target_lost(&id, "the node of the target is gone", out);
        }
    }

    /// Whether a job whose node is gone is carried on by its migration (MIGR-25 to MIGR-28). If not,
    /// the migration has ended and the loss is the job's own.
    pub(crate) fn migration_carries_on(&mut self, job_id: &JobId, out: &mut Effects) -> bool {
        let Some(id) = self.jobs.get(job_id).and_then(|job| job.migration.clone()) else {
            return false;
        };
        let Some(migration) = self.migrations.active.get_mut(&id) else {
            return false;
        };
        if migration.past_return {
            migration.source_gone = true;
            self.source_stopped(&id, out);
            return true;
        }
        let forward = match migration.options.strategy {
            Strategy::StopThenStart | Strategy::Overlap => migration.start_sent,
            Strategy::Handover => migration.state.phase == MigrationPhase::Applying,
        };
        if forward {
            migration.source_gone = true;
            return true;
        }
        self.abort_migration(&id, "the source is gone", out);
        false
    }

    /// The source failed while its node lives on.
    fn source_lost(&mut self, job_id: &JobId, id: &MigrationId, out: &mut Effects) {
        if self
            .migrations
            .active
            .get(id)
            .is_some_and(|m| m.source_gone)
        {
            return;
        }
        if !self.migration_carries_on(job_id, out) {
            self.follow_binding(job_id, out);
        }
    }
}

// === impl Policy: replies ===

impl Policy {
    pub(crate) fn step_replied(
        &mut self,
        id: &MigrationId,
        step: Step,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        if let Step::Start { counts } = step {
            self.target_start_replied(id, counts, result, out);
            return;
        }
        let Err(failure) = result else { return };
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        let job_id = migration.state.source_job_id.clone();
        let refusal = failure.refusal().map(|refusal| refusal.status);
        let reason = failure.to_string();
        match step {
            Step::StopSource => match refusal {
                // Gone already: go on (MIGR-21).
                Some(Status::NotFound) => {
                    migration.source_gone = true;
                    self.source_stopped(id, out);
                }
                // Not told: the source is intact.
                Some(_) => {
                    migration.past_return = false;
                    self.abort_migration(id, &reason, out);
                }
                // Whether it was told is not known: the phase has its deadline.
                None => self.tell_step_failed(&job_id, &reason, out),
            },
            Step::StartPrepared => {
                let runs = failure
                    .refusal()
                    .is_some_and(|r| r.status == Status::AlreadyExists);
                match refusal {
                    Some(_) if !runs => self.lose_migration(id, &reason, out),
                    Some(_) => {}
                    None => self.tell_step_failed(&job_id, &reason, out),
                }
            }
            Step::Ask | Step::Notify => {
                if migration.past_return {
                    self.tell_step_failed(&job_id, &reason, out);
                } else if migration.source_gone {
                    self.lose_migration(id, &reason, out);
                } else {
                    self.abort_migration(id, &reason, out);
                }
            }
            Step::Start { .. } => {}
        }
    }

    fn target_start_replied(
        &mut self,
        id: &MigrationId,
        counts: bool,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        let failure = match result {
            Err(failure) if !crate::launch::is_started(&failure) => failure,
            _ => {
                self.counters.placements_succeeded += u64::from(counts);
                self.answer_caller(id, out);
                return;
            }
        };
        self.counters.placements_dispatch_failed += 1;
        // Refused outright, nothing was started there (MIGR-06).
        let outright = failure.refusal().is_some();
        let Some(migration) = self.migrations.active.get_mut(id) else {
            if outright {
                self.target_was_never_there(id);
            }
            return;
        };
        let job_id = migration.state.source_job_id.clone();
        let lost = migration.source_gone;
        migration.start_sent = !outright;
        let reason = format!("the target could not be started: {failure}");
        self.tell_step_failed(&job_id, &reason, out);
        if lost {
            self.lose_migration(id, &reason, out);
        } else if outright {
            self.end_without_target(id, &reason, out);
        } else {
            self.abort_migration(id, &reason, out);
        }
    }

    fn tell_step_failed(&self, job_id: &JobId, reason: &str, out: &mut Effects) {
        let message = format!("a call of the migration of job {job_id:?} failed: {reason}");
        self.report(
            ErrorInfo::new("migrationCallFailed", message).job(job_id),
            out,
        );
    }

    /// A job in migration that is not to run any more (MIGR-32).
    pub(crate) fn review_migration(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let Some(id) = job.migration.clone() else {
            return;
        };
        let bundle = job
            .spot
            .as_ref()
            .and_then(|spot| self.bundles.get(&spot.bundle_id));
        let reason = if !job.may_run() {
            "the job is over"
        } else if job.seen.job.is_dormant() {
            "the job is dormant"
        } else if bundle.is_some_and(|bundle| !bundle.is_live()) {
            "the bundle is being deleted"
        } else {
            return;
        };
        self.give_up_migration(&id, reason, out);
    }
}
