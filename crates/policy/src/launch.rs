//! From a pending job to a start on a node: one run of the engine, what is told of it, the binding,
//! the call, and the call's reply (LAUNCH).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_placement::{
    Context, Decision, JobRef, Request, SharedBundle, Side, Trace, place, place_traced,
};
use greenroom_types::bundle::{Bundle, OnRuntimeFailure};
use greenroom_types::call::{Call, Detail, StartJob, Status};
use greenroom_types::node::ServiceRestarts;
use greenroom_types::{JobId, NodeId, PoolName};

use crate::calls::Purpose;
use crate::effect::{
    Callback, Effects, ErrorInfo, MirrorState, PlacementContext, PlacementInfo, PlacementKind,
};
use crate::event::CallFailure;
use crate::history;
use crate::job::{Binding, BindingState, Cause, JobRecord, Wait};
use crate::pending::Tried;
use crate::policy::Policy;
use crate::provision::{Asked, Wanted};
use crate::settings::{CALL_RETRY, MIN_PLACEMENT_INTERVAL};
use crate::timer::{Due, Timer};

// === impl Policy: deciding ===

impl Policy {
    /// Tries a pending job once.
    pub(crate) fn place(&mut self, job_id: &JobId, out: &mut Effects) -> Tried {
        let Some(job) = self.jobs.get_mut(job_id) else {
            return Tried::Held;
        };
        let Some(entry) = job.pending.clone() else {
            return Tried::Held;
        };
        // The gate holds launches, whatever announces them (LAUNCH-03, LAUNCH-04).
        if let (Cause::Launch, Some(until)) = (job.cause, job.gate)
            && until > self.now.mono
        {
            let timer = Timer::LaunchGate(job_id.clone());
            self.timers.set(timer, Due::Mono(until));
            return Tried::Held;
        }
        job.gate = None;
        self.pending.note_tried(job_id);
        if self.settings.placement_pools.is_empty() {
            let message =
                format!("job {job_id:?} cannot be placed: no placementPools are configured");
            self.report(ErrorInfo::new("noPlacementPools", message).job(job_id), out);
            self.pending.note_told(&entry);
            return Tried::Failed;
        }
        let Some((info, decision)) = self.decide(job_id) else {
            return Tried::Held;
        };
        if self.awaits_remains(job_id, &decision) {
            return Tried::Held;
        }
        self.counters.placements_attempted += 1;
        if !matches!(decision, Decision::Failure { .. })
            && let Some(job) = self.jobs.get_mut(job_id)
        {
            job.record = Some(Box::new(info.clone()));
        }
        out.callback(Callback::OnPlacementDecision(Box::new(info.clone())));
        match decision {
            Decision::Failure { .. } => {
                self.tell_failure(info, out);
                self.pending.note_told(&entry);
                return Tried::Failed;
            }
            Decision::Place {
                node,
                gpu_index,
                degraded,
                ..
            } => {
                self.tell_degraded(&info, degraded, out);
                self.bind_decided(job_id, &node, gpu_index);
                if self
                    .nodes
                    .get(&node)
                    .is_some_and(|node| node.state == MirrorState::Running)
                {
                    self.start(job_id, out);
                }
            }
            Decision::Provision {
                pool,
                tier,
                shape,
                gpu_index,
                degraded,
                ..
            } => {
                self.tell_degraded(&info, degraded, out);
                let Some(node_id) = info.node_id else {
                    return Tried::Held;
                };
                let known = self.settings.pool(pool.as_str());
                let Some(known) = known.and_then(|pool| pool.tier(tier.as_str())).cloned() else {
                    return Tried::Held;
                };
                let tags = self.tags_for(job_id, &pool, &known);
                let asked = Asked {
                    pool,
                    tier,
                    wanted: Wanted::Job(job_id.clone()),
                    accepted: false,
                };
                self.request_node(&node_id, asked, tags, Some(&shape));
                self.bind_decided(job_id, &node_id, gpu_index);
                let region = known.region.clone().unwrap_or_default();
                self.send_create(&node_id, &known, &shape, &region, out);
            }
        }
        Tried::Placed
    }

    /// Runs the engine for a job in its context. Gives the id to a node that is to be bought.
    fn decide(&mut self, job_id: &JobId) -> Option<(PlacementInfo, Decision)> {
        self.relist();
        let job = self.jobs.get(job_id)?;
        let spot = job.spot.clone()?;
        let bundle = self.bundle(&spot.bundle_id)?;
        let excluded = self.excluded_for(job_id);
        let request = Request::new(&bundle, spot.replica_index, &spot.job_name)?
            .of_job(job_id)
            .in_context(self.context_of(job_id, &bundle))
            .without(&excluded);
        let (decision, trace) = if self.traces {
            let (decision, trace) = place_traced(&self.fleet, &request);
            (decision, Some(Arc::new(trace)))
        } else {
            (place(&self.fleet, &request), None)
        };
        let context = match job.cause {
            Cause::Launch => PlacementContext::Launch,
            Cause::Recovery => PlacementContext::Recovery,
        };
        let slot = job.slot();
        let pool = bundle.pool_of(spot.replica_index).clone();
        let bought =
            matches!(decision, Decision::Provision { .. }).then(|| self.new_node_id(job_id, &slot));
        let info = self.info_of(job_id, spot, pool, context, &decision, bought, trace);
        Some((info, decision))
    }

    /// What is told of a decision.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one field of what is told"
    )]
    pub(crate) fn info_of(
        &self,
        job_id: &JobId,
        spot: JobRef,
        pool: PoolName,
        context: PlacementContext,
        decision: &Decision,
        bought: Option<NodeId>,
        trace: Option<Arc<Trace>>,
    ) -> PlacementInfo {
        let mut info = PlacementInfo {
            job_id: job_id.clone(),
            bundle_id: spot.bundle_id,
            replica_index: spot.replica_index,
            job_name: spot.job_name,
            context,
            kind: PlacementKind::Failure,
            node_id: bought,
            pool,
            tier: Default::default(),
            instance_type: String::new(),
            launch_mode: Default::default(),
            gpu_index: decision.gpu_index(),
            reason: String::new(),
            tried_pools: Vec::new(),
            degraded: decision.degraded().is_some(),
            at: self.now.wall,
            trace,
        };
        match decision {
            Decision::Place {
                node, pool, tier, ..
            } => {
                info.kind = PlacementKind::Place;
                info.node_id = Some(node.clone());
                info.pool = pool.clone();
                info.tier = tier.clone();
            }
            Decision::Provision {
                pool,
                tier,
                shape,
                launch_mode,
                ..
            } => {
                info.kind = PlacementKind::Provision;
                info.pool = pool.clone();
                info.tier = tier.clone();
                info.instance_type.clone_from(&shape.instance_type);
                info.launch_mode = *launch_mode;
            }
            Decision::Failure {
                reason,
                tried_pools,
            } => {
                info.reason = reason.code().to_owned();
                info.tried_pools.clone_from(tried_pools);
            }
        }
        info
    }

    /// The context in which a job is placed now (PLACE-01).
    pub(crate) fn context_of(&self, job_id: &JobId, bundle: &Bundle) -> Context {
        let job = self.jobs.get(job_id);
        let spec = job
            .and_then(|job| job.spot.as_ref())
            .and_then(|spot| bundle.job(spot.job_name.as_str()));
        match job.map(|job| job.cause) {
            Some(Cause::Recovery) => {
                Context::Recovery(spec.map_or(OnRuntimeFailure::default(), |spec| {
                    spec.requirements.on_runtime_failure
                }))
            }
            _ => Context::Launch,
        }
    }

    /// Nodes excluded for this job alone at the moment: for a while (HEALTH-10), or until what is left
    /// of it there is gone (RECOV-08).
    pub(crate) fn excluded_for(&self, job_id: &JobId) -> BTreeSet<NodeId> {
        let Some(job) = self.jobs.get(job_id) else {
            return BTreeSet::new();
        };
        let mut excluded = self.failed_for(job);
        excluded.extend(job.remains.iter().cloned());
        excluded
    }

    pub(crate) fn failed_for(&self, job: &JobRecord) -> BTreeSet<NodeId> {
        let excluded = job.excluded.iter();
        excluded
            .filter(|(_, until)| **until > self.now.mono)
            .map(|(node_id, _)| node_id.clone())
            .collect()
    }

    pub(crate) fn bundle(&self, bundle_id: &greenroom_types::BundleId) -> Option<SharedBundle> {
        self.fleet.plan(bundle_id).map(|plan| plan.bundle().clone())
    }

    pub(crate) fn tell_failure(&mut self, info: PlacementInfo, out: &mut Effects) {
        self.counters.placements_failed += 1;
        let message = format!(
            "job {:?} found no place in pool(s) {}: {}",
            info.job_id,
            info.tried_pools
                .iter()
                .map(|pool| pool.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            info.reason
        );
        let error = ErrorInfo::new(&info.reason, message)
            .job(&info.job_id)
            .bundle(&info.bundle_id);
        out.callback(Callback::OnPlacementFailed {
            job_id: info.job_id,
            bundle_id: info.bundle_id,
            replica_index: info.replica_index,
            job_name: info.job_name,
            reason: info.reason,
            tried_pools: info.tried_pools,
            at: info.at,
        });
        out.error(error);
    }

    pub(crate) fn tell_degraded(
        &self,
        info: &PlacementInfo,
        degraded: Option<greenroom_placement::Degraded>,
        out: &mut Effects,
    ) {
        if let Some(degraded) = degraded {
            out.callback(Callback::OnResilienceDegraded {
                job_id: info.job_id.clone(),
                bundle_id: info.bundle_id.clone(),
                replica_index: info.replica_index,
                job_name: info.job_name.clone(),
                violated: degraded.violated,
                interruptible_primary: degraded.interruptible_primary,
                at: info.at,
            });
        }
    }
}

// === impl Policy: binding ===

impl Policy {
    /// Binds a job by a decision, before any call is sent (RESV-03).
    fn bind_decided(&mut self, job_id: &JobId, node_id: &NodeId, gpu_index: Option<u32>) {
        let now = self.now.mono;
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        match job.cause {
            Cause::Launch => job.gate = Some(now + MIN_PLACEMENT_INTERVAL),
            Cause::Recovery => job.recovered_at = Some(now),
        }
        let binding = Binding {
            seq: 0,
            node_id: node_id.clone(),
            role: job.slot(),
            state: BindingState::Placing,
            cause: job.cause,
            decided_at: now,
            since: history::newest(&job.seen),
            counted: false,
            start: None,
            start_after_stop: false,
            held_back: None,
            ending: false,
            single_use: false,
            gpu_index,
        };
        self.bind(job_id, binding);
    }

    /// Puts a binding in force, in the record and in the fleet.
    pub(crate) fn bind(&mut self, job_id: &JobId, mut binding: Binding) {
        binding.seq = self.order();
        let Some(spot) = self.jobs.get(job_id).and_then(|job| job.spot.clone()) else {
            return;
        };
        binding.single_use = self
            .bundle(&spot.bundle_id)
            .and_then(|bundle| {
                bundle
                    .job(spot.job_name.as_str())
                    .map(|spec| spec.single_use)
            })
            .unwrap_or_default();
        self.touch_if_spare(&binding.node_id);
        self.fleet.bind(
            job_id,
            &spot,
            &binding.node_id,
            binding.gpu_index,
            Side::Binding,
        );
        let bound_to = binding.node_id.clone();
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.binding = Some(binding);
            job.news = None;
            job.service_restarts = ServiceRestarts::default();
            job.resting = false;
            job.awaits_remains = None;
        }
        self.relist_if_listed(&bound_to, job_id);
        self.note_told_remains(job_id);
        self.refresh(job_id);
    }

    /// Takes a job off its node. The caller decides what becomes of it, and refreshes it.
    pub(crate) fn unbind(&mut self, job_id: &JobId) -> Option<Binding> {
        let binding = self.jobs.get_mut(job_id)?.binding.take()?;
        self.keep_left(job_id, &binding.node_id, Side::Binding);
        self.fleet.unbind(job_id, Side::Binding);
        self.touch_if_spare(&binding.node_id);
        self.relist_if_listed(&binding.node_id, job_id);
        self.note_told_remains(job_id);
        Some(binding)
    }

    /// The job's binding, if it is still that one (TIME-02).
    pub(crate) fn binding_mut(&mut self, job_id: &JobId, seq: u64) -> Option<&mut Binding> {
        let binding = self.jobs.get_mut(job_id)?.binding.as_mut()?;
        (binding.seq == seq).then_some(binding)
    }
}

// === impl Policy: starting ===

impl Policy {
    /// Sends the start of a bound job.
    pub(crate) fn start(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let Some(binding) = &job.binding else { return };
        let (role, node_id, seq) = (binding.role.clone(), binding.node_id.clone(), binding.seq);
        let counts = !binding.counted;
        let call = Call::StartJob(StartJob {
            job_id: job_id.clone(),
            runtime_role: role.slot().to_owned(),
            role,
            node_id,
            defer_start: false,
            gpu_index: binding.gpu_index,
            migration_id: None,
            migration_state: None,
        });
        let purpose = Purpose::Start {
            job_id: job_id.clone(),
            seq,
            counts,
        };
        let call_id = self.send(call, purpose, out);
        if let Some(binding) = self.binding_mut(job_id, seq) {
            binding.start = Some(call_id);
            binding.counted = true;
            binding.start_after_stop = false;
        }
    }

    /// Starts everything bound to a node that now runs, in the order of binding (PROV-07).
    pub(crate) fn start_all_on(&mut self, node_id: &NodeId, out: &mut Effects) {
        for job_id in self.jobs_on(node_id) {
            let waits = self.jobs.get(&job_id).and_then(|job| job.binding.as_ref());
            if waits.is_some_and(|b| b.state == BindingState::Placing && b.start.is_none())
                && !self.is_there_already(&job_id)
            {
                self.start(&job_id, out);
            }
        }
    }

    /// The Manager shows the instance there already: no start is needed, and it counts as one.
    fn is_there_already(&mut self, job_id: &JobId) -> bool {
        let Some(job) = self.jobs.get_mut(job_id) else {
            return false;
        };
        let Some(binding) = job.binding.as_mut() else {
            return false;
        };
        let there = history::runs(&job.seen)
            .iter()
            .any(|run| run.is_live() && run.role == binding.role && run.node_id == binding.node_id);
        if there {
            let counts = !std::mem::replace(&mut binding.counted, true);
            self.counters.placements_succeeded += u64::from(counts);
            self.set_placed(job_id);
        }
        there
    }

    /// Jobs bound to a node, in the order of binding.
    pub(crate) fn jobs_on(&self, node_id: &NodeId) -> Vec<JobId> {
        self.fleet
            .jobs_on(node_id)
            .iter()
            .filter(|bound| bound.side == Side::Binding)
            .map(|bound| bound.job_id.clone())
            .collect()
    }

    pub(crate) fn start_replied(
        &mut self,
        job_id: &JobId,
        seq: u64,
        counts: bool,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        let mut there = false;
        let failure = match result {
            Ok(()) => None,
            Err(failure) if is_started(&failure) => {
                there = self.take_over_start(job_id, seq);
                None
            }
            Err(failure) => Some(failure),
        };
        let current = self.binding_mut(job_id, seq).is_some();
        let Some(failure) = failure else {
            // Also for a binding replaced meanwhile: the call was accepted (METR-05).
            self.counters.placements_succeeded += u64::from(counts);
            if current {
                self.set_placed(job_id);
            }
            if there {
                self.follow_binding(job_id, out);
            }
            return;
        };
        if self.hold_back(job_id, seq, counts, &failure, out)
            || self.meet_unrecorded(job_id, seq, &failure, out)
        {
            return;
        }
        if is_stopping_there(&failure)
            && let Some(binding) = self.binding_mut(job_id, seq)
        {
            binding.start = None;
            binding.counted = !counts;
            binding.start_after_stop = true;
            return;
        }
        self.counters.placements_dispatch_failed += 1;
        let error = ErrorInfo::new(
            "startFailed",
            format!("starting job {job_id:?} failed: {failure}"),
        );
        self.report(error.job(job_id), out);
        if current {
            self.take_back_start(job_id, out);
        }
    }

    /// The instance that is there already is the binding's own: what it did and does counts. False if
    /// the stream has yet to show it.
    fn take_over_start(&mut self, job_id: &JobId, seq: u64) -> bool {
        let Some(job) = self.jobs.get_mut(job_id) else {
            return false;
        };
        let runs = history::runs(&job.seen);
        let Some(binding) = job.binding.as_mut().filter(|binding| binding.seq == seq) else {
            return false;
        };
        let there = runs.iter().rfind(|run| {
            run.is_live() && run.role == binding.role && run.node_id == binding.node_id
        });
        if let Some(run) = there {
            binding.since = binding.since.min(run.first - 1);
        }
        there.is_some()
    }

    /// A failed start unbinds the job and is tried again 5 s after its decision, elsewhere if that
    /// is possible (LAUNCH-08, HEALTH-10).
    fn take_back_start(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(binding) = self.unbind(job_id) else {
            return;
        };
        self.exclude_for(job_id, &binding.node_id);
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.cause = binding.cause;
        }
        // It may have been refused because the job runs elsewhere, on a node that came back (BIND-07).
        self.adopt(job_id, out);
        if self.node_for_job(job_id).is_some() {
            self.stop_strays(job_id, out);
            self.refresh(job_id);
            self.release_single_use(&binding, out);
            self.pending.wake();
            return;
        }
        let until = (binding.decided_at + CALL_RETRY).max(self.now.mono);
        self.wait(job_id, Wait::StartRetry, until);
        self.release_single_use(&binding, out);
        self.pending.wake();
    }

    fn set_placed(&mut self, job_id: &JobId) {
        if let Some(binding) = self
            .jobs
            .get_mut(job_id)
            .and_then(|job| job.binding.as_mut())
            && binding.state == BindingState::Placing
        {
            binding.state = BindingState::Placed;
        }
    }
}

/// The answer that this very instance is accepted there already and not ending (LAUNCH-05).
pub(crate) fn is_started(failure: &CallFailure) -> bool {
    matches!(state_there(failure), Some(state) if state != "stopping")
}

/// The answer that an older instance of the key is still ending there (LAUNCH-05).
fn is_stopping_there(failure: &CallFailure) -> bool {
    state_there(failure) == Some("stopping")
}

/// State of the key's instance on this very node, in the Manager's words (JOB-14).
fn state_there(failure: &CallFailure) -> Option<&str> {
    let refusal = failure.refusal()?;
    if refusal.status != Status::AlreadyExists || refusal.reason != "already_on_node" {
        return None;
    }
    match refusal.details.get("state") {
        Some(Detail::Text(state)) => Some(state),
        _ => Some(""),
    }
}
