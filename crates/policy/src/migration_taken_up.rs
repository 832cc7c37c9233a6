//! A handover whose control plane went away when its source had ended its output: whoever comes next goes on
//! with it, for the target may be on the air by now (HYDR-18). What the source said at its end is gone, so
//! the target is not told to take over a second time.

use std::collections::BTreeSet;

use greenroom_types::node::InstanceKey;
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{JobId, MigrationId, Millis, Payload, Role};

use crate::effect::Effects;
use crate::history::{Run, RunState};
use crate::job::BindingState;
use crate::migration::{MigrateOptions, Migration, MigrationPhase, MigrationState, Strategy};
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// How long a target that was perhaps told to take over may take to say that it did. After that the source
/// goes on, which nobody sees meanwhile.
const APPLIED_WITHIN: Millis = Millis(3_000);

/// A handover that is gone on with.
#[derive(Debug)]
pub(crate) struct TakenUp {
    migration_id: MigrationId,
    job_id: JobId,
    source: Run,
    target: Run,
    /// The target has said that it took over.
    has_applied: bool,
}

// === impl TakenUp ===

impl TakenUp {
    /// The handover in which these two instances of a job are, if the source has ended its output in it.
    pub(crate) fn of(
        job_id: &JobId,
        source: &Run,
        target: &Run,
        handovers: &BTreeSet<(MigrationId, InstanceKey)>,
    ) -> Option<Self> {
        let key = |role: &Role| InstanceKey::new(job_id.clone(), role.clone());
        let source_key = key(&source.role);
        let mut of_source = handovers.iter().filter(|(_, key)| *key == source_key);
        let (migration_id, _) = of_source
            .find(|(id, _)| target.role == Role::migration_target(source.role.slot(), id))?;
        let applied = (migration_id.clone(), key(&target.role));
        (target.state == RunState::Running).then(|| Self {
            migration_id: migration_id.clone(),
            job_id: job_id.clone(),
            source: source.clone(),
            target: target.clone(),
            has_applied: handovers.contains(&applied),
        })
    }
}

// === impl Policy ===

impl Policy {
    /// Goes on where the source has ended its output.
    pub(crate) fn take_up_handover(&mut self, handover: &TakenUp, out: &mut Effects) {
        let (id, job_id) = (&handover.migration_id, &handover.job_id);
        let (source, target) = (&handover.source, &handover.target);
        let state = MigrationState {
            migration_id: id.clone(),
            source_job_id: job_id.clone(),
            strategy: Strategy::Handover,
            source_role: source.role.clone(),
            target_role: target.role.clone(),
            source_node_id: source.node_id.clone(),
            target_node_id: Some(target.node_id.clone()),
            started_at: target.accepted_at,
            phase: MigrationPhase::AwaitingSourceStop,
            phase_history: Vec::new(),
            abort_reason: None,
            shares: Vec::new(),
        };
        let migration = Migration {
            state,
            options: MigrateOptions {
                strategy: Strategy::Handover,
                ..MigrateOptions::default()
            },
            caller: None,
            by_drain: false,
            start_sent: true,
            prepared: true,
            past_return: false,
            source_gone: false,
            source_state: None,
            decision: self.made_up_record(job_id, target),
        };
        let target_key = migration.target_key();
        self.migrations.active.insert(id.clone(), migration);
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.migration = Some(id.clone());
        }
        self.bind_target(id, &target.node_id, None);
        let bound = self
            .jobs
            .get_mut(job_id)
            .and_then(|job| job.target.as_mut());
        if let Some(bound) = bound {
            bound.state = BindingState::Running;
            bound.since = target.first - 1;
            bound.counted = true;
        }
        self.enter_phase(id, MigrationPhase::Applying, out);
        if handover.has_applied {
            let applied = MigrationSignal::TargetApplied(Payload::default());
            self.migration_signal(&target_key, id, applied, out);
        } else {
            let timer = Timer::MigrationPhase(id.clone());
            let within = self.settings.migration.applying.min(APPLIED_WITHIN);
            self.timers.set(timer, Due::Mono(self.now.mono + within));
        }
    }
}
