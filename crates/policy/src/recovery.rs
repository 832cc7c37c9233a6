//! Runtimes that were lost: who is recovered, in which order, counted how (RECOV).

use std::collections::BTreeMap;

use greenroom_types::bundle::{BundleJob, OnRuntimeFailure};
use greenroom_types::call::Call;
use greenroom_types::node::InstanceKey;
use greenroom_types::{BundleId, JobId, Mono, NodeId, Role};

use crate::calls::Purpose;
use crate::effect::{Effects, ErrorInfo, MirrorState};
use crate::event::{CallFailure, CallId};
use crate::history::{self, End, Run, RunState};
use crate::job::{Binding, BindingState, Cause, JobRecord, Standing, Wait};
use crate::policy::Policy;
use crate::settings::{MIN_RECOVERY_INTERVAL, STRAY_STOP_INTERVAL};
use crate::timer::{Due, Timer};

/// A job that has just been taken off its node.
pub(crate) struct Lost {
    pub(crate) job_id: JobId,
    pub(crate) binding: Binding,
}

// === impl Policy ===

impl Policy {
    /// Unbinds everything from a node, in the order in which it is to be placed again. Jobs that
    /// their migration carries on without this node stay with it (RECOV-14).
    pub(crate) fn displace(&mut self, node_id: &NodeId, out: &mut Effects) -> Vec<Lost> {
        let mut lost = Vec::new();
        for job_id in self.jobs_on(node_id) {
            if !self.migration_carries_on(&job_id, out)
                && let Some(binding) = self.unbind(&job_id)
            {
                lost.push(Lost { job_id, binding });
            }
        }
        self.in_recovery_order(lost)
    }

    /// Essential before non-essential, then by what they ask of spares, then by binding (RECOV-12);
    /// of two copies in one such class the primary goes first, so that the backup is measured
    /// against its new place (RECOV-13).
    pub(crate) fn in_recovery_order(&self, lost: Vec<Lost>) -> Vec<Lost> {
        let mut keyed: Vec<((bool, u8), BundleId, u32, Lost)> = lost
            .into_iter()
            .map(|lost| {
                let spot = self.jobs.get(&lost.job_id).and_then(|job| job.spot.clone());
                let class = self.spec(&lost.job_id).map_or((true, 3), |spec| {
                    let policy = match spec.requirements.on_runtime_failure {
                        OnRuntimeFailure::PreferSpare => 0,
                        OnRuntimeFailure::AvoidSpare => 1,
                        OnRuntimeFailure::Drop => 2,
                    };
                    (!spec.requirements.essential, policy)
                });
                let (bundle, replica) = spot
                    .map(|spot| (spot.bundle_id, spot.replica_index))
                    .unwrap_or_default();
                (class, bundle, replica, lost)
            })
            .collect();
        keyed.sort_by_key(|(class, _, _, lost)| (*class, lost.binding.seq));
        // Within the places that a bundle takes in a class, its primary jobs come first.
        let mut places: BTreeMap<((bool, u8), BundleId), Vec<usize>> = BTreeMap::new();
        for (at, (class, bundle, _, _)) in keyed.iter().enumerate() {
            places.entry((*class, bundle.clone())).or_default().push(at);
        }
        let mut target: Vec<usize> = (0..keyed.len()).collect();
        for taken in places.values() {
            let mut wanted = taken.clone();
            wanted.sort_by_key(|&at| (keyed[at].2, at));
            for (&place, &from) in taken.iter().zip(&wanted) {
                target[from] = place;
            }
        }
        let mut ordered: Vec<(usize, Lost)> = keyed
            .into_iter()
            .zip(target)
            .map(|((_, _, _, lost), place)| (place, lost))
            .collect();
        ordered.sort_by_key(|(place, _)| *place);
        ordered.into_iter().map(|(_, lost)| lost).collect()
    }

    /// The job's own entry in its bundle.
    pub(crate) fn spec(&self, job_id: &JobId) -> Option<&BundleJob> {
        let spot = self.jobs.get(job_id)?.spot.as_ref()?;
        let plan = self.fleet.plan(&spot.bundle_id)?;
        plan.bundle().job(spot.job_name.as_str())
    }

    /// Places jobs again whose node never ran them: in the context they had, uncounted (PROV-06).
    pub(crate) fn place_again(&mut self, lost: Vec<Lost>, out: &mut Effects) {
        for Lost { job_id, binding } in lost {
            if let Some(job) = self.jobs.get_mut(&job_id) {
                job.cause = binding.cause;
                job.gate = None;
            }
            let there = self.adopt(&job_id, out);
            self.refresh(&job_id);
            if !there {
                self.place(&job_id, out);
            }
        }
    }

    /// Recovers jobs whose node is gone; a reclaimed node counts against none (RECOV-15).
    pub(crate) fn recover_all(&mut self, lost: Vec<Lost>, out: &mut Effects) {
        for Lost { job_id, binding } in lost {
            if binding.ending {
                self.end_plainly(&job_id, &binding, out);
            } else {
                let counts = !self.is_reclaimed(&binding.node_id);
                self.recover(&job_id, &binding, counts, out);
            }
        }
    }

    /// One trigger: the binding is gone already, so nothing triggers twice (RECOV-02).
    pub(crate) fn recover(
        &mut self,
        job_id: &JobId,
        binding: &Binding,
        counts: bool,
        out: &mut Effects,
    ) {
        self.judge_loss(job_id, counts, out);
        self.release_single_use(binding, out);
    }

    /// The order of judgement: drop, broken bundle, count and ceiling, spacing, placement (RECOV-05).
    /// An invalid specification was judged before (CEIL-10).
    pub(crate) fn judge_loss(&mut self, job_id: &JobId, counts: bool, out: &mut Effects) {
        let now = self.now.mono;
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        // Unless it is recovered, whatever comes next is a launch.
        job.cause = Cause::Launch;
        let recovers = job.spot.is_some() && job.may_run() && !job.seen.job.is_dormant();
        let bundle = job
            .spot
            .as_ref()
            .and_then(|spot| self.bundles.get(&spot.bundle_id));
        let live = bundle.is_some_and(|bundle| bundle.is_live() && bundle.status.is_some());
        let broken = bundle.is_some_and(|bundle| bundle.broken.is_some());
        let dropped = self
            .spec(job_id)
            .is_some_and(|spec| spec.requirements.on_runtime_failure == OnRuntimeFailure::Drop);
        if !recovers || !live {
            self.refresh(job_id);
            return;
        }
        if dropped {
            self.drop_job(job_id, out);
            return;
        }
        if broken {
            self.refresh(job_id);
            return;
        }
        if counts && self.count_restart(job_id, out).trips() {
            return;
        }
        // It may have come back meanwhile where it was before (BIND-07).
        if self.adopt(job_id, out) {
            self.refresh(job_id);
            return;
        }
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        job.cause = Cause::Recovery;
        match job.recovered_at.map(|at| at + MIN_RECOVERY_INTERVAL) {
            // One deferred attempt; a second trigger adds none (RECOV-10).
            Some(until) if until > now => {
                if job.wait.is_none() {
                    self.wait(job_id, Wait::Spacing, until);
                }
            }
            _ => {
                self.refresh(job_id);
                self.place(job_id, out);
            }
        }
    }

    /// The instance is over without a failure: unbound, not recovered (RECOV-03).
    pub(crate) fn end_plainly(&mut self, job_id: &JobId, binding: &Binding, out: &mut Effects) {
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.cause = Cause::Launch;
        }
        self.refresh(job_id);
        self.release_single_use(binding, out);
        self.pending.wake();
    }
}

// === impl Policy: what the history says ===

impl Policy {
    /// Reads what a bound job's history says of its binding: accepted, running, ending, over
    /// (BIND-06, RECOV-03). Entries about other keys and older starts do not touch it.
    pub(crate) fn follow_binding(&mut self, job_id: &JobId, out: &mut Effects) {
        let nodes = &self.nodes;
        let in_service = |node_id: &NodeId| {
            let record = nodes.get(node_id);
            record.is_some_and(|record| record.state == MirrorState::Running)
        };
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        let Some(binding) = job.binding.as_mut() else {
            return;
        };
        let runs = history::runs(&job.seen);
        let here = |run: &&Run| run.role == binding.role && run.node_id == binding.node_id;
        // Also one that was lost and taken back: it goes on under its old start (HIST-04).
        let resumed = |run: &&Run| here(run) && run.last > binding.since && run.is_live();
        let mine = runs
            .iter()
            .rfind(|run| here(run) && run.first > binding.since)
            .or_else(|| runs.iter().rfind(resumed));
        let older_there = runs
            .iter()
            .any(|run| here(&run) && run.first <= binding.since && run.is_there());
        let Some(run) = mine else {
            if binding.start_after_stop && !older_there {
                self.start(job_id, out);
            }
            return;
        };
        let node_id = binding.node_id.clone();
        binding.since = binding.since.min(run.first - 1);
        match run.end(&job.seen) {
            End::Not => {
                let runs_now = run.state == RunState::Running;
                let reached = if runs_now {
                    BindingState::Running
                } else {
                    BindingState::Placed
                };
                let fresh = binding.state < reached;
                binding.state = binding.state.max(reached);
                // A migration that was lost with its policy left it prepared: it starts when nothing
                // of the source is there any more, or its node goes (HYDR-17).
                let left = run.state == RunState::Prepared
                    && run.role.is_migration_target()
                    && binding.start.is_none()
                    && runs
                        .iter()
                        .filter(|other| other.first != run.first && other.is_there())
                        .all(|other| !in_service(&other.node_id));
                let role = run.role.clone();
                if fresh && runs_now {
                    self.make_healthy(&node_id, out);
                }
                if left {
                    self.start_left_prepared(InstanceKey::new(job_id.clone(), role), node_id, out);
                }
            }
            End::Requested => binding.ending = true,
            End::Failed => {
                let single_use = binding.single_use;
                if let Some(binding) = self.unbind(job_id) {
                    if single_use {
                        self.exclude_for(job_id, &node_id);
                    }
                    self.recover(job_id, &binding, true, out);
                    self.pending.wake();
                }
            }
            End::Plain { rest } => {
                let active = job.seen.state == greenroom_types::job::JobState::Active;
                job.resting = rest && active && !job.seen.job.is_dormant();
                if let Some(binding) = self.unbind(job_id) {
                    self.end_plainly(job_id, &binding, out);
                }
            }
        }
    }

    /// Starts what a predecessor left prepared, once (HYDR-17).
    pub(crate) fn start_left_prepared(
        &mut self,
        key: InstanceKey,
        node_id: NodeId,
        out: &mut Effects,
    ) {
        let job_id = key.job_id.clone();
        let purpose = Purpose::LeftPrepared {
            job_id: job_id.clone(),
        };
        let call_id = self.send(Call::StartPreparedJob { key, node_id }, purpose, out);
        if let Some(binding) = self
            .jobs
            .get_mut(&job_id)
            .and_then(|job| job.binding.as_mut())
        {
            binding.start = Some(call_id);
        }
    }

    /// The start was not taken: whoever next hears that it is prepared sends it again.
    pub(crate) fn left_prepared_failed(
        &mut self,
        job_id: &JobId,
        call_id: CallId,
        failure: &CallFailure,
        out: &mut Effects,
    ) {
        let message = format!("starting a prepared instance of job {job_id:?} failed: {failure}");
        self.report(ErrorInfo::new("callFailed", message).job(job_id), out);
        let binding = self
            .jobs
            .get_mut(job_id)
            .and_then(|job| job.binding.as_mut());
        if let Some(binding) = binding.filter(|binding| binding.start == Some(call_id)) {
            binding.start = None;
        }
    }

    /// A job without a node that has an instance on one which is there belongs there (BIND-07): where
    /// it runs, or else where a start was accepted. Says whether it has.
    pub(crate) fn adopt(&mut self, job_id: &JobId, out: &mut Effects) -> bool {
        let Some(job) = self.jobs.get(job_id) else {
            return false;
        };
        if job.binding.is_some() || job.spot.is_none() || !job.may_run() {
            return false;
        }
        let runs = history::runs(&job.seen);
        let accepted = || {
            let wanted = |run: &&Run| run.is_live() && self.goes_on(job, run);
            runs.iter().rfind(wanted)
        };
        let Some(run) = self.longest_running(job, &runs).or_else(accepted).cloned() else {
            return false;
        };
        self.bind_adopted(job_id, &run.node_id, Some(&run));
        match run.state {
            RunState::Running => self.make_healthy(&run.node_id, out),
            // Nobody else will start what a migration left prepared (HYDR-17).
            RunState::Prepared => self.follow_binding(job_id, out),
            _ => {}
        }
        true
    }

    /// A migration that nobody pursues any more left its target without a start, and the job turns out
    /// to run: its node came back. That one is on the air, so it has the job, and the target ends
    /// (HYDR-07, DEC-31).
    pub(crate) fn prefer_running(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let left = job.binding.as_ref().filter(|binding| {
            binding.role.is_migration_target()
                && binding.state != BindingState::Running
                && binding.start.is_none()
        });
        let Some(left) = left.map(|binding| (binding.role.clone(), binding.node_id.clone())) else {
            return;
        };
        let runs = history::runs(&job.seen);
        let best = self.longest_running(job, &runs).cloned();
        let Some(run) = best.filter(|run| (&run.role, &run.node_id) != (&left.0, &left.1)) else {
            return;
        };
        self.unbind(job_id);
        self.bind_adopted(job_id, &run.node_id, Some(&run));
        self.make_healthy(&run.node_id, out);
        self.end_left_over(job_id, &run.role, &left.0, &left.1, out);
        self.pending.wake();
    }

    /// The instance that certainly is on the air (DEC-31).
    pub(crate) fn longest_running<'a>(&self, job: &JobRecord, runs: &'a [Run]) -> Option<&'a Run> {
        runs.iter()
            .filter(|run| run.state == RunState::Running && self.goes_on(job, run))
            .min_by_key(|run| (run.running_since, run.first))
    }

    /// It is on a node that is there, and neither was told to stop a moment ago nor was refused by
    /// its worker: the history may not show that yet.
    fn goes_on(&self, job: &JobRecord, run: &Run) -> bool {
        let key = (run.role.clone(), run.node_id.clone());
        let told = job.strays.get(&key);
        let refused = job.refused.as_deref();
        self.is_running(&run.node_id)
            && told.is_none_or(|at| *at + STRAY_STOP_INTERVAL <= self.now.mono)
            && refused.is_none_or(|(role, node_id, known)| {
                run.last > *known || (role, node_id) != (&key.0, &key.1)
            })
    }

    pub(crate) fn is_running(&self, node_id: &NodeId) -> bool {
        self.nodes
            .get(node_id)
            .is_some_and(|node| node.state == MirrorState::Running)
    }

    /// Binds a job where it is found, or where a predecessor meant it to go.
    pub(crate) fn bind_adopted(&mut self, job_id: &JobId, node_id: &NodeId, run: Option<&Run>) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let state = match run.map(|run| run.state) {
            Some(RunState::Running) => BindingState::Running,
            Some(_) => BindingState::Placed,
            None => BindingState::Placing,
        };
        let binding = Binding {
            seq: 0,
            node_id: node_id.clone(),
            role: run.map_or_else(|| job.slot(), |run| run.role.clone()),
            state,
            cause: job.cause,
            decided_at: self.now.mono,
            since: run.map_or_else(|| history::newest(&job.seen), |run| run.first - 1),
            // No decision of this instance: its calls count nowhere.
            counted: true,
            start: None,
            start_after_stop: false,
            held_back: None,
            ending: matches!(run.map(|run| run.state), Some(RunState::Ending(_))),
            single_use: false,
            gpu_index: None,
        };
        self.bind(job_id, binding);
    }

    /// Tells instances that are nobody's to stop (BIND-08). Those that run: once the one that is meant runs, so
    /// that a worker that returns with what it carried does not lose it to a start that is still on
    /// its way. A leased job cannot run before the old instance is gone, so there it goes at once.
    pub(crate) fn stop_strays(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let bound = matches!(self.standing(job), Standing::Bound);
        if !bound && job.strays.is_empty() {
            return;
        }
        let replaced = job
            .binding
            .as_ref()
            .is_some_and(|binding| binding.state == BindingState::Running);
        let now = self.now.mono;
        let runs = history::runs(&job.seen);
        let in_service = |key: &(Role, NodeId)| !job.is_side(key) && self.is_running(&key.1);
        let strays: Vec<_> = runs
            .iter()
            .filter(|run| match run.state {
                RunState::Running => replaced || job.seen.job.lease.is_some(),
                // Not on the air, and nobody will start it: it only takes room.
                RunState::Provisioned | RunState::Prepared => run.role.is_migration_target(),
                RunState::Ending(_) | RunState::Ended(_) => false,
            })
            .map(|run| (run.role.clone(), run.node_id.clone()))
            .filter(|key| bound && in_service(key))
            .collect();
        let mut sent = job.strays.clone();
        // What was told to stop is kept in mind as long as it is shown to be there.
        sent.retain(|key, at| {
            let last = runs.iter().rfind(|run| run.is_at(&key.0, &key.1));
            *at + STRAY_STOP_INTERVAL > now || in_service(key) && last.is_some_and(Run::is_live)
        });
        for key in strays {
            let again = sent.get(&key).map(|at| *at + STRAY_STOP_INTERVAL);
            if again.is_none_or(|at| at <= now) {
                let call = Call::StopJob {
                    key: InstanceKey::new(job_id.clone(), key.0.clone()),
                    node_id: key.1.clone(),
                    grace_ms: None,
                };
                let purpose = Purpose::Tell {
                    what: "stopping a stray instance",
                    job_id: job_id.clone(),
                };
                self.send(call, purpose, out);
                sent.insert(key, now);
            }
        }
        self.keep_strays(job_id, sent);
    }

    /// Ends what a migration that nobody pursues left over beside the instance that has the job
    /// (HYDR-07).
    pub(crate) fn end_left_over(
        &mut self,
        job_id: &JobId,
        kept: &Role,
        role: &Role,
        node_id: &NodeId,
        out: &mut Effects,
    ) {
        if role.is_migration_target() {
            let call = Call::AbortMigration {
                job_id: job_id.clone(),
                source_role: kept.clone(),
                target_role: role.clone(),
                reason: "left over from an earlier instance".to_owned(),
                migration_id: Default::default(),
            };
            let purpose = Purpose::Tell {
                what: "aborting a migration left over",
                job_id: job_id.clone(),
            };
            self.send(call, purpose, out);
        }
        let call = Call::StopJob {
            key: InstanceKey::new(job_id.clone(), role.clone()),
            node_id: node_id.clone(),
            grace_ms: None,
        };
        let purpose = Purpose::Tell {
            what: "stopping a stray instance",
            job_id: job_id.clone(),
        };
        self.send(call, purpose, out);
        self.note_stray_stopped(job_id, role, node_id);
    }

    /// An instance was told to stop by another way.
    pub(crate) fn note_stray_stopped(&mut self, job_id: &JobId, role: &Role, node_id: &NodeId) {
        let now = self.now.mono;
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let mut strays = job.strays.clone();
        strays.insert((role.clone(), node_id.clone()), now);
        self.keep_strays(job_id, strays);
    }

    /// Keeps what was told to stop, looks again when it may be told once more, and keeps its room.
    pub(crate) fn keep_strays(&mut self, job_id: &JobId, strays: BTreeMap<(Role, NodeId), Mono>) {
        let now = self.now.mono;
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        if strays.is_empty() && job.strays.is_empty() {
            return;
        }
        let timer = Timer::StrayStop(job_id.clone());
        let next = strays.values().map(|at| *at + STRAY_STOP_INTERVAL);
        match next.filter(|at| *at > now).min() {
            Some(at) => self.timers.set(timer, Due::Mono(at)),
            None => self.timers.stop(&timer),
        }
        job.strays = strays;
        self.note_remains(job_id);
        self.reclass(job_id);
    }
}
