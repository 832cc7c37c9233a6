//! Moving a running job to another node (MIGR): what a migration is and how it begins.
//!
//! What drives it from phase to phase stands in `saga.rs`, how it ends in `migration_end.rs`. Until its end the job is reserved on both
//! nodes, and both instance keys belong to the migration (MIGR-07): their events are judged there
//! and not as losses of the job.

use std::collections::{BTreeMap, VecDeque};

use greenroom_placement::{Context, Decision, Domain, Request, Side, place, place_traced};
use greenroom_types::call::{Call, StartJob};
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, MigrationId, NodeId, Payload, Role, Wall};
use serde::{Deserialize, Serialize};

use crate::drain_retry::BESIDE_OTHER_COPY;
use crate::effect::{Callback, Effects, PlacementContext, PlacementInfo};
use crate::event::ApiId;
use crate::history;
use crate::job::{Binding, BindingState, Cause};
use crate::policy::Policy;
use crate::provision::{Asked, Wanted};

/// How a job changes over (MIGR-01).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Strategy {
    /// The target is prepared, the source stops, the target starts.
    #[default]
    StopThenStart,
    /// The target runs before the source stops.
    Overlap,
    /// The two agree on the point at which one follows the other.
    Handover,
}

/// Where a migration stands (MIGR-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MigrationPhase {
    /// The source is asked for its state.
    Proposing,
    /// The target is being placed and started.
    Launching,
    /// The target runs and gets ready to take over.
    AwaitingTargetReady,
    /// The source was told to stop, or to stop its output.
    AwaitingSourceStop,
    /// The target takes over where the source stopped.
    Applying,
    /// The prepared target is being started.
    StartingTarget,
    /// The target has taken over and the source is being stopped.
    StoppingSource,
    /// The job lives on its target.
    Done,
    /// It came to nothing.
    Aborted,
}

/// A migration as it is shown (MIGR-03).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationState {
    /// The migration.
    pub migration_id: MigrationId,
    /// The job.
    pub source_job_id: JobId,
    /// How it changes over.
    pub strategy: Strategy,
    /// Role of the source.
    pub source_role: Role,
    /// Role of the target.
    pub target_role: Role,
    /// Node of the source.
    pub source_node_id: NodeId,
    /// Node of the target, once it is placed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target_node_id: Option<NodeId>,
    /// When it began.
    pub started_at: Wall,
    /// Where it stands.
    pub phase: MigrationPhase,
    /// Every phase with its time.
    pub phase_history: Vec<PhaseEntry>,
    /// Why it came to nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub abort_reason: Option<String>,
    /// What the job shares with its other copy where it goes, or went, and what was to be kept apart
    /// (MIGR-38).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub shares: Vec<Domain>,
}

/// One phase and when it was entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseEntry {
    /// The phase.
    pub phase: MigrationPhase,
    /// When.
    pub at: Wall,
}

/// What is asked for (MIGR-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrateOptions {
    /// How it changes over.
    pub strategy: Strategy,
    /// The only node that will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node_id: Option<NodeId>,
    /// Admits spares reserved for others.
    pub override_reservation: bool,
}

/// Why a migration is refused outright; nothing was done (MIGR-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub enum MigrationRefusal {
    /// No such job.
    #[error("the job is not known")]
    UnknownJob,
    /// A job without requirements or tags, or a node service.
    #[error("the job is not placed by the policy")]
    NotPlacedByPolicy,
    /// It has no running instance.
    #[error("the job does not run")]
    NotRunning,
    /// Its bundle is broken or being deleted.
    #[error("the bundle is broken or being deleted")]
    BundleNotLive,
    /// One is under way.
    #[error("a migration of the job is under way")]
    MigrationInFlight,
    /// It runs there already.
    #[error("the job runs on that node already")]
    TargetIsSource,
    /// The job is not declared with `handover`.
    #[error("the job is not declared with `handover`, so it cannot hand over")]
    NotCooperative,
    /// A leased job does not run twice, so it cannot overlap.
    #[error("the job is lease-protected, so no second instance may run beside the first")]
    LeaseProtected,
}

impl MigrationRefusal {
    /// Stable name.
    pub const fn code(self) -> &'static str {
        match self {
            Self::UnknownJob => "unknownJob",
            Self::NotPlacedByPolicy => "notPlacedByPolicy",
            Self::NotRunning => "notRunning",
            Self::BundleNotLive => "bundleNotLive",
            Self::MigrationInFlight => "migrationInFlight",
            Self::TargetIsSource => "targetIsSource",
            Self::NotCooperative => "notCooperative",
            Self::LeaseProtected => "leaseProtected",
        }
    }

    /// What somebody who wants to move the job can do, to stand behind the reason.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::NotCooperative => "; choose another strategy",
            Self::LeaseProtected => {
                "; use stopThenStart, or handover where the job is declared with it"
            }
            _ => "",
        }
    }
}

/// One migration under way.
#[derive(Clone, Debug)]
pub(crate) struct Migration {
    pub(crate) state: MigrationState,
    pub(crate) options: MigrateOptions,
    /// The caller that waits for the target's first call (MIGR-01).
    pub(crate) caller: Option<ApiId>,
    /// A drain asked for it.
    pub(crate) by_drain: bool,
    /// The start of the target was sent.
    pub(crate) start_sent: bool,
    /// The target is created and not running.
    pub(crate) prepared: bool,
    /// The source was told to stop: no way back (MIGR-20).
    pub(crate) past_return: bool,
    /// The source is gone; the target goes on alone (MIGR-25, MIGR-26).
    pub(crate) source_gone: bool,
    /// What the source told of its state, until the target's start takes it along (MIGR-08).
    pub(crate) source_state: Option<Payload>,
    /// The decision that placed the target; the job's record at the end (MIGR-15).
    pub(crate) decision: Option<PlacementInfo>,
}

/// All migrations: those under way, and the last ones that ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Migrations {
    pub(crate) active: BTreeMap<MigrationId, Migration>,
    pub(crate) ended: VecDeque<MigrationState>,
}

impl Migration {
    pub(crate) fn source_key(&self) -> InstanceKey {
        InstanceKey::new(
            self.state.source_job_id.clone(),
            self.state.source_role.clone(),
        )
    }

    pub(crate) fn target_key(&self) -> InstanceKey {
        InstanceKey::new(
            self.state.source_job_id.clone(),
            self.state.target_role.clone(),
        )
    }
}

// === impl Policy: beginning ===

impl Policy {
    /// Begins a migration; the caller, if any, is answered when the target's first call was accepted.
    pub(crate) fn migrate(
        &mut self,
        job_id: &JobId,
        options: MigrateOptions,
        caller: Option<ApiId>,
        out: &mut Effects,
    ) -> Result<MigrationId, MigrationRefusal> {
        let (source_role, source_node_id) = self.may_migrate(job_id, &options)?;
        let migration_id = self.ids.migration_id();
        let state = MigrationState {
            migration_id: migration_id.clone(),
            source_job_id: job_id.clone(),
            strategy: options.strategy,
            target_role: Role::migration_target(source_role.slot(), &migration_id),
            source_role,
            source_node_id,
            target_node_id: None,
            started_at: self.now.wall,
            phase: MigrationPhase::Launching,
            phase_history: Vec::new(),
            abort_reason: None,
            shares: Vec::new(),
        };
        let migration = Migration {
            state,
            options,
            by_drain: caller.is_none(),
            caller,
            start_sent: false,
            prepared: false,
            past_return: false,
            source_gone: false,
            source_state: None,
            decision: None,
        };
        let strategy = migration.options.strategy;
        let source = migration.source_key();
        self.migrations
            .active
            .insert(migration_id.clone(), migration);
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.migration = Some(migration_id.clone());
        }
        if strategy == Strategy::Handover {
            self.enter_phase(&migration_id, MigrationPhase::Proposing, out);
            let call = Call::NotifyMigrationGetState {
                key: source,
                migration_id: migration_id.clone(),
            };
            self.send_step(&migration_id, call, crate::saga::Step::Ask, out);
        } else {
            self.enter_phase(&migration_id, MigrationPhase::Launching, out);
            self.place_target(&migration_id, out);
        }
        Ok(migration_id)
    }

    /// The source's role and node, if the job may be moved now (MIGR-02).
    pub(crate) fn may_migrate(
        &self,
        job_id: &JobId,
        options: &MigrateOptions,
    ) -> Result<(Role, NodeId), MigrationRefusal> {
        let job = self.jobs.get(job_id).ok_or(MigrationRefusal::UnknownJob)?;
        let spot = job
            .spot
            .as_ref()
            .ok_or(MigrationRefusal::NotPlacedByPolicy)?;
        let binding = job
            .binding
            .as_ref()
            .filter(|binding| binding.state == BindingState::Running && !binding.ending)
            .ok_or(MigrationRefusal::NotRunning)?;
        let bundle = self.bundles.get(&spot.bundle_id);
        if !bundle.is_some_and(|b| b.is_live() && b.status.is_some() && b.broken.is_none()) {
            return Err(MigrationRefusal::BundleNotLive);
        }
        if job.migration.is_some() {
            return Err(MigrationRefusal::MigrationInFlight);
        }
        if options.target_node_id.as_ref() == Some(&binding.node_id) {
            return Err(MigrationRefusal::TargetIsSource);
        }
        if options.strategy == Strategy::Handover && !self.can_hand_over(job_id) {
            return Err(MigrationRefusal::NotCooperative);
        }
        if options.strategy == Strategy::Overlap && self.is_protected(job_id) {
            return Err(MigrationRefusal::LeaseProtected);
        }
        Ok((binding.role.clone(), binding.node_id.clone()))
    }

    /// The job is declared with `handover`.
    pub(crate) fn can_hand_over(&self, job_id: &JobId) -> bool {
        let seen = self.jobs.get(job_id).map(|job| &job.seen.job);
        seen.is_some_and(|job| job.handover) || self.spec(job_id).is_some_and(|spec| spec.handover)
    }

    /// The job is lease-protected: at no moment do two instances of it run.
    pub(crate) fn is_protected(&self, job_id: &JobId) -> bool {
        let seen = self.jobs.get(job_id).map(|job| &job.seen.job);
        seen.is_some_and(|job| job.lease.is_some())
            || self.spec(job_id).is_some_and(|spec| spec.lease.is_some())
    }

    /// Places the target by the same path as any job (MIGR-05) and sends its first call.
    pub(crate) fn place_target(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some((info, decision)) = self.decide_target(id) else {
            return;
        };
        let job_id = info.job_id.clone();
        let of_drain = self.migrations.active.get(id).filter(|it| it.by_drain);
        let source = of_drain.map(|migration| migration.state.source_node_id.clone());
        if let Some(source) = source
            && self.must_stay_apart(&job_id, &decision)
        {
            self.note_kept_apart(&job_id, &source);
            self.end_without_target(id, BESIDE_OTHER_COPY, out);
            return;
        }
        self.counters.placements_attempted += 1;
        out.callback(Callback::OnPlacementDecision(Box::new(info.clone())));
        if let Decision::Failure { reason, .. } = &decision {
            let tied = self.why_tied(&job_id);
            let reason = tied.unwrap_or_else(|| reason.code().to_owned());
            self.tell_failure(info, out);
            self.end_without_target(id, &reason, out);
            return;
        }
        self.tell_degraded(&info, decision.degraded().cloned(), out);
        let Some(node_id) = info.node_id.clone() else {
            return;
        };
        if let Some(migration) = self.migrations.active.get_mut(id) {
            migration.state.target_node_id = Some(node_id.clone());
            migration.decision = Some(info);
        }
        if let Decision::Provision {
            pool,
            tier,
            shape,
            gpu_index,
            ..
        } = decision
        {
            let known = self.settings.pool(pool.as_str());
            let Some(known) = known.and_then(|pool| pool.tier(tier.as_str())).cloned() else {
                return;
            };
            let tags = self.tags_for(&job_id, &pool, &known);
            let wanted = Wanted::Target(id.clone());
            let asked = Asked {
                pool,
                tier,
                wanted,
                accepted: false,
            };
            self.request_node(&node_id, asked, tags, Some(&shape));
            self.bind_target(id, &node_id, gpu_index);
            let region = known.region.clone().unwrap_or_default();
            self.send_create(&node_id, &known, &shape, &region, out);
            return;
        }
        self.bind_target(id, &node_id, decision.gpu_index());
        if self.is_running(&node_id) {
            self.start_target(id, out);
        } else {
            // Placed on a node that is on its way: its request was accepted already.
            self.answer_caller(id, out);
        }
    }

    fn decide_target(&mut self, id: &MigrationId) -> Option<(PlacementInfo, Decision)> {
        self.relist();
        let migration = self.migrations.active.get(id)?;
        let (job_id, options) = (
            migration.state.source_job_id.clone(),
            migration.options.clone(),
        );
        let source = migration.state.source_node_id.clone();
        let target_role = migration.state.target_role.clone();
        let spot = self.jobs.get(&job_id)?.spot.clone()?;
        let bundle = self.bundle(&spot.bundle_id)?;
        let excluded = self.excluded_for(&job_id);
        let mut request = Request::new(&bundle, spot.replica_index, &spot.job_name)?
            .of_job(&job_id)
            .in_context(Context::Migration { source })
            .without(&excluded)
            .overriding_reservations(options.override_reservation);
        if let Some(node_id) = &options.target_node_id {
            request = request.pinned_to(node_id);
        }
        let (decision, trace) = if self.traces {
            let (decision, trace) = place_traced(&self.fleet, &request);
            (decision, Some(std::sync::Arc::new(trace)))
        } else {
            (place(&self.fleet, &request), None)
        };
        let pool = bundle.pool_of(spot.replica_index).clone();
        let bought = matches!(decision, Decision::Provision { .. })
            .then(|| self.new_node_id(&job_id, &target_role));
        let context = PlacementContext::Migration;
        let info = self.info_of(&job_id, spot, pool, context, &decision, bought, trace);
        Some((info, decision))
    }

    pub(crate) fn bind_target(
        &mut self,
        id: &MigrationId,
        node_id: &NodeId,
        gpu_index: Option<u32>,
    ) {
        let seq = self.order();
        let Some(migration) = self.migrations.active.get(id) else {
            return;
        };
        let job_id = migration.state.source_job_id.clone();
        let role = migration.state.target_role.clone();
        let single_use = self.spec(&job_id).is_some_and(|spec| spec.single_use);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(spot) = job.spot.clone() else { return };
        job.target = Some(Box::new(Binding {
            seq,
            node_id: node_id.clone(),
            role,
            state: BindingState::Placing,
            cause: Cause::Launch,
            decided_at: self.now.mono,
            since: history::newest(&job.seen),
            counted: false,
            start: None,
            start_after_stop: false,
            held_back: None,
            ending: false,
            single_use,
            gpu_index,
        }));
        self.touch_if_spare(node_id);
        self.fleet
            .bind(&job_id, &spot, node_id, gpu_index, Side::MigrationTarget);
        self.relist_if_listed(node_id, &job_id);
        self.note_shares_of_move(id);
    }

    /// Sends the start of the target; its deadline runs from here (MIGR-09, DEC-22).
    pub(crate) fn start_target(&mut self, id: &MigrationId, out: &mut Effects) {
        let Some(migration) = self.migrations.active.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut migration.start_sent, true) {
            return;
        }
        let job_id = migration.state.source_job_id.clone();
        let strategy = migration.options.strategy;
        let role = migration.state.target_role.clone();
        let migration_state = migration.source_state.take();
        let Some(target) = self
            .jobs
            .get_mut(&job_id)
            .and_then(|job| job.target.as_mut())
        else {
            return;
        };
        let counts = !std::mem::replace(&mut target.counted, true);
        let call = Call::StartJob(StartJob {
            job_id,
            runtime_role: role.slot().to_owned(),
            role,
            node_id: target.node_id.clone(),
            defer_start: strategy == Strategy::StopThenStart,
            gpu_index: target.gpu_index,
            migration_id: Some(id.clone()),
            migration_state,
        });
        self.send_step(id, call, crate::saga::Step::Start { counts }, out);
        self.arm_phase(id);
    }

    /// Starts targets that wait for this node.
    pub(crate) fn start_targets_on(&mut self, node_id: &NodeId, out: &mut Effects) {
        for id in self.targets_on(node_id) {
            self.start_target(&id, out);
        }
    }

    /// Migrations whose target is bound to a node, in the order of binding.
    pub(crate) fn targets_on(&self, node_id: &NodeId) -> Vec<MigrationId> {
        self.fleet
            .jobs_on(node_id)
            .iter()
            .filter(|bound| bound.side == Side::MigrationTarget)
            .filter_map(|bound| self.jobs.get(&bound.job_id)?.migration.clone())
            .collect()
    }
}

// === impl Policy: getters ===

impl Policy {
    /// Migrations under way, and the last that ended, by the time of their beginning (MIGR-33).
    pub fn migrations(&self) -> Vec<MigrationState> {
        let active = self
            .migrations
            .active
            .values()
            .map(|migration| &migration.state);
        let mut all: Vec<MigrationState> = self
            .migrations
            .ended
            .iter()
            .chain(active)
            .cloned()
            .collect();
        all.sort_by(|a, b| (a.started_at, &a.migration_id).cmp(&(b.started_at, &b.migration_id)));
        all
    }

    /// A migration, under way or ended.
    pub fn migration_by_id(&self, id: &MigrationId) -> Option<&MigrationState> {
        let active = self
            .migrations
            .active
            .get(id)
            .map(|migration| &migration.state);
        active.or_else(|| {
            self.migrations
                .ended
                .iter()
                .find(|state| state.migration_id == *id)
        })
    }

    /// The migration under way of a job.
    pub fn migration_for_job(&self, job_id: &JobId) -> Option<&MigrationState> {
        let id = self.jobs.get(job_id)?.migration.as_ref()?;
        Some(&self.migrations.active.get(id)?.state)
    }
}
