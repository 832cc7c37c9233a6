//! From the snapshot to service (HYDR): mirrors and bindings first, then the replay of callbacks, then
//! the work that was waiting. The bindings come from the jobs' histories, for the Manager remembers
//! what every predecessor did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::node::{InstanceKey, StartPhase};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{BundleId, JobId, MigrationId, NodeId, Role};

use crate::effect::{
    Callback, Effects, MirrorState, PlacementContext, PlacementInfo, PlacementKind,
};
use crate::history::{self, End, Run, RunState};
use crate::migration_taken_up::TakenUp;
use crate::node::{NodeRecord, sweep_interval};
use crate::policy::{Phase, Policy};
use crate::provision::Wanted;
use crate::stream::{log_skipped, pause};
use crate::timer::{Due, Timer};

/// What came with the snapshot, in its order (HYDR-03).
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    jobs: Vec<JobId>,
    nodes: Vec<NodeId>,
    bundles: Vec<BundleId>,
    starting: Vec<(NodeId, Option<StartPhase>)>,
    /// Sources of handovers that have ended their output, and targets that took over, by migration.
    handovers: BTreeSet<(MigrationId, InstanceKey)>,
}

/// What is to be done about a job once the replay is over.
#[derive(Debug, Default)]
struct Findings {
    /// Lost while nobody watched (HYDR-08).
    lost: BTreeSet<JobId>,
    /// Ordinal of the entry that tells so.
    failed: BTreeMap<JobId, u64>,
    /// Prepared targets whose source has stopped (HYDR-17).
    prepared: Vec<(InstanceKey, NodeId)>,
    /// Left over by a predecessor that died in a migration (HYDR-07).
    left_over: Vec<LeftOver>,
    /// Handovers that go on (HYDR-18).
    taken_up: Vec<TakenUp>,
}

#[derive(Debug)]
struct LeftOver {
    job_id: JobId,
    /// Role of the instance that keeps the job.
    kept: Role,
    role: Role,
    node_id: NodeId,
}

// === impl Policy: the snapshot ===

impl Policy {
    /// Takes one event of the snapshot into the mirrors, silently (HYDR-02).
    pub(crate) fn collect(&mut self, event: StreamEvent, out: &mut Effects) {
        match event {
            StreamEvent::NodeRunning {
                metadata,
                running,
                reachable,
                ..
            } => {
                let node_id = metadata.node_id.clone();
                self.mirror_node(&metadata, MirrorState::Running);
                if let Some(record) = self.nodes.get_mut(&node_id) {
                    record.running = Some(running);
                    record.last_activity = metadata.created_at;
                    record.hydrated = true;
                }
                self.change_condition(&node_id, |condition| condition.unreachable = !reachable);
                self.snapshot(|snapshot| snapshot.nodes.push(node_id));
            }
            StreamEvent::NodeStarting { metadata, phase } => {
                let node_id = metadata.node_id.clone();
                self.mirror_node(&metadata, MirrorState::Starting);
                if let Some(record) = self.nodes.get_mut(&node_id) {
                    record.last_activity = metadata.created_at;
                }
                self.snapshot(|snapshot| snapshot.starting.push((node_id, phase)));
            }
            // A node that was given up: told as running first, then as stopping (EVT-02).
            StreamEvent::NodeStopping { node_id, .. } => {
                if let Some(metadata) = self.nodes.get(&node_id).map(|n| Arc::clone(&n.metadata)) {
                    self.mirror_node(&metadata, MirrorState::Stopping);
                }
            }
            StreamEvent::JobActive(job)
            | StreamEvent::JobPending(job)
            | StreamEvent::JobUpdated(job) => {
                let job_id = job.job.job_id.clone();
                if !self.jobs.contains_key(&job_id) {
                    self.snapshot(|snapshot| snapshot.jobs.push(job_id));
                }
                self.mirror_job(&job);
            }
            StreamEvent::BundleActive(status) | StreamEvent::BundleUpdated(status) => {
                let bundle_id = status.bundle.bundle_id.clone();
                self.mirror_bundle(&status);
                self.snapshot(|snapshot| snapshot.bundles.push(bundle_id));
            }
            StreamEvent::NodeInventorySnapshot { node_id, inventory }
            | StreamEvent::NodeInventoryUpdated { node_id, inventory } => {
                let activity = self.nodes.get(&node_id).map(|record| record.last_activity);
                self.take_inventory(&node_id, &inventory);
                if let (Some(at), Some(record)) = (activity, self.nodes.get_mut(&node_id)) {
                    record.last_activity = at;
                }
            }
            StreamEvent::InitialDataComplete(_) => self.hydrate(out),
            // What they hold back is asked for anew, and refused anew (LAUNCH-13).
            StreamEvent::LeaseChanged(_) => {}
            StreamEvent::LeasesPaused {
                paused,
                reason,
                by,
                since,
            } => {
                let since = since.unwrap_or(self.now.wall);
                self.note_pause(if paused {
                    pause(reason, by, since)
                } else {
                    None
                });
            }
            StreamEvent::Migration {
                key,
                migration_id,
                signal: MigrationSignal::SourceStoppedOutput(_) | MigrationSignal::TargetApplied(_),
            } => self.snapshot(|snapshot| {
                snapshot.handovers.insert((migration_id, key));
            }),
            StreamEvent::Heartbeat { .. } | StreamEvent::StreamResumed { .. } => {}
            other => log_skipped(&other, out),
        }
    }

    fn snapshot(&mut self, change: impl FnOnce(&mut Snapshot)) {
        if let Phase::Snapshot { snapshot, .. } = &mut self.phase {
            change(snapshot);
        }
    }

    /// The snapshot is complete.
    fn hydrate(&mut self, out: &mut Effects) {
        let Phase::Snapshot { snapshot, waiting } = std::mem::replace(&mut self.phase, Phase::Live)
        else {
            return;
        };
        let restored = self.restore_acts();
        let mut findings = Findings::default();
        for job_id in &snapshot.jobs {
            self.bind_from_history(job_id, &snapshot.handovers, &mut findings);
            let now = self.now;
            let trigger = findings.failed.get(job_id).copied();
            if let Some(job) = self.jobs.get_mut(job_id) {
                job.recount(now, trigger);
            }
        }
        for bundle_id in &snapshot.bundles {
            self.rebuild_broken(bundle_id);
            self.release_terminal(bundle_id);
        }
        self.replay(&snapshot, out);
        for (node_id, phase) in &snapshot.starting {
            self.arm_startup_grace(node_id, *phase);
        }

        // Stop times come before any placement (HYDR-05, STOP-04).
        for job_id in &snapshot.jobs {
            self.note_tagged_stop(job_id, out);
        }
        for bundle_id in &snapshot.bundles {
            self.review_stop_time(bundle_id, out);
        }
        for job_id in &snapshot.jobs {
            self.refresh(job_id);
        }
        for (node_id, _) in &snapshot.starting {
            self.adopt_starting(node_id);
        }
        self.settle_left_overs(&findings, out);
        self.place_hydrated(findings.lost, out);
        let due = Due::Mono(self.now.mono + sweep_interval(&self.settings));
        self.timers.set(Timer::Sweep, due);
        self.spare_tick();
        self.adopt_services(&snapshot.jobs, out);
        self.resume_acts(restored, out);
        self.restore_notices(out);

        // Calls that came meanwhile, each an input of its own (HYDR-04).
        for (id, call) in waiting {
            self.run_pending(out);
            self.apply_api(id, call, out);
        }
    }

    /// Every job, every running node, every bundle, each once (HYDR-03).
    fn replay(&self, snapshot: &Snapshot, out: &mut Effects) {
        for job_id in &snapshot.jobs {
            if let Some(job) = self.jobs.get(job_id) {
                out.callback(Callback::OnJobUpdated {
                    job_id: job_id.clone(),
                    job: Arc::clone(&job.seen),
                });
            }
        }
        for node_id in &snapshot.nodes {
            if let Some(node) = self.view(node_id) {
                out.callback(Callback::OnNodeStarted {
                    node_id: node_id.clone(),
                    node,
                });
            }
        }
        for bundle_id in &snapshot.bundles {
            let status = self
                .bundles
                .get(bundle_id)
                .and_then(|bundle| bundle.status.clone());
            if let Some(bundle) = status {
                out.callback(Callback::OnBundleUpdated {
                    bundle_id: bundle_id.clone(),
                    bundle,
                });
            }
        }
    }

    /// A bundle with an essential job that has its verdict is broken, silently (CEIL-14, DEC-20).
    pub(crate) fn rebuild_broken(&mut self, bundle_id: &BundleId) {
        let Some(bundle) = self.bundles.get(bundle_id) else {
            return;
        };
        let Some(status) = &bundle.status else { return };
        let essential = |name: &str| {
            let spec = status.bundle.job(name);
            spec.is_some_and(|spec| spec.requirements.essential)
        };
        // What the status says of a job is older than what the job itself says.
        let told = status
            .jobs
            .iter()
            .filter(|job| essential(job.job_name.as_str()) && !self.jobs.contains_key(&job.job_id));
        let told = told.filter_map(|job| job.terminal_state.as_ref());
        let seen = bundle
            .jobs
            .iter()
            .filter_map(|job_id| self.jobs.get(job_id))
            .filter(|job| {
                let spot = job.spot.as_ref();
                spot.is_some_and(|spot| essential(spot.job_name.as_str()))
            })
            .filter_map(|job| job.terminal().map(str::to_owned));
        let reason = told.map(|state| state.reason.clone()).chain(seen).next();
        if reason.is_some()
            && let Some(bundle) = self.bundles.get_mut(bundle_id)
        {
            bundle.broken = reason;
        }
    }

    /// Unbound jobs in the order of PEND-04: the lost ones are recovered, the others placed.
    fn place_hydrated(&mut self, lost: BTreeSet<JobId>, out: &mut Effects) {
        let mut keys: BTreeMap<_, JobId> = BTreeMap::new();
        let pending: Vec<JobId> = self.pending.iter().cloned().collect();
        for job_id in pending.into_iter().chain(lost.iter().cloned()) {
            if let Some(job) = self.jobs.get(&job_id) {
                keys.insert(self.pending_key(job), job_id);
            }
        }
        for job_id in keys.into_values() {
            if lost.contains(&job_id) {
                self.judge_loss(&job_id, true, out);
            } else {
                self.place(&job_id, out);
            }
        }
    }
}

// === impl Policy: bindings from history ===

impl Policy {
    /// Finds out where a job is, or what became of it (HYDR-06 to HYDR-09).
    fn bind_from_history(
        &mut self,
        job_id: &JobId,
        handovers: &BTreeSet<(MigrationId, InstanceKey)>,
        findings: &mut Findings,
    ) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        if job.spot.is_none() || !job.may_run() {
            return;
        }
        let runs = history::runs(&job.seen);
        let running = runs
            .iter()
            .filter(|run| run.state == RunState::Running && self.is_running(&run.node_id))
            .min_by_key(|run| (run.running_since, run.first));
        let accepted = runs
            .iter()
            .rfind(|run| matches!(run.state, RunState::Provisioned | RunState::Prepared));
        if let Some(run) = running.cloned() {
            self.bind_adopted(job_id, &run.node_id, Some(&run));
            self.make_up_record(job_id, &run);
            let others = runs
                .iter()
                .filter(|other| other.is_live() && other.first != run.first)
                .filter(|other| {
                    other.state == RunState::Running || other.role.is_migration_target()
                })
                .filter(|other| self.is_running(&other.node_id));
            for other in others {
                if let Some(taken_up) = TakenUp::of(job_id, &run, other, handovers) {
                    findings.taken_up.push(taken_up);
                } else {
                    findings.left_over.push(LeftOver {
                        job_id: job_id.clone(),
                        kept: run.role.clone(),
                        role: other.role.clone(),
                        node_id: other.node_id.clone(),
                    });
                }
            }
            return;
        }
        // Nothing runs on a node that is there. What ran elsewhere is lost, unless a start was
        // accepted after it.
        let newest = runs.iter().max_by_key(|run| run.last);
        if let Some(run) = accepted.cloned()
            && newest.is_none_or(|newest| newest.last <= run.last || !newest.is_live())
        {
            self.expect_run(job_id, &run, findings);
            return;
        }
        let Some(newest) = newest else { return };
        let lost = match newest.end(&job.seen) {
            End::Not => newest.state == RunState::Running,
            End::Failed => true,
            End::Requested | End::Plain { .. } => false,
        };
        if lost {
            let told = newest.ended.map(|(ordinal, _)| ordinal);
            findings.failed.extend(told.map(|at| (job_id.clone(), at)));
            findings.lost.insert(job_id.clone());
        }
    }

    /// A start was accepted and nothing has run yet.
    fn expect_run(&mut self, job_id: &JobId, run: &Run, findings: &mut Findings) {
        match self.nodes.get(&run.node_id).map(|record| record.state) {
            Some(MirrorState::Running | MirrorState::Starting) => {
                self.bind_adopted(job_id, &run.node_id, Some(run));
                if run.state == RunState::Prepared && run.role.is_migration_target() {
                    let key = InstanceKey::new(job_id.clone(), run.role.clone());
                    findings.prepared.push((key, run.node_id.clone()));
                }
            }
            // It never ran there: launched anew.
            Some(MirrorState::Stopping | MirrorState::Stopped) => return,
            None => {
                // Bought by a predecessor and on its way (HYDR-09, DEC-32).
                let record = NodeRecord::new(
                    Arc::clone(&run.node),
                    MirrorState::Starting,
                    run.accepted_at,
                );
                self.nodes.insert(run.node_id.clone(), record);
                self.fleet
                    .upsert_node(greenroom_placement::NodeFacts::of_metadata(&run.node));
                self.note_spare_tag(&run.node_id);
                self.expect_node(&run.node_id, run.accepted_at);
                self.fleet.clear_inventory(&run.node_id);
                if let Some(asked) = self
                    .nodes
                    .get_mut(&run.node_id)
                    .and_then(|record| record.asked.as_mut())
                {
                    asked.wanted = Wanted::Unknown;
                }
                self.bind_adopted(job_id, &run.node_id, Some(run));
            }
        }
        self.make_up_record(job_id, run);
    }

    /// The placement of record of a hydrated job (BIND-05).
    fn make_up_record(&mut self, job_id: &JobId, run: &Run) {
        let record = self.made_up_record(job_id, run);
        if let (Some(job), Some(record)) = (self.jobs.get_mut(job_id), record) {
            job.record = Some(Box::new(record));
        }
    }

    pub(crate) fn made_up_record(&self, job_id: &JobId, run: &Run) -> Option<PlacementInfo> {
        let spot = self.jobs.get(job_id)?.spot.clone()?;
        let kind = if run.state == RunState::Running {
            PlacementKind::Place
        } else {
            PlacementKind::Provision
        };
        Some(PlacementInfo {
            job_id: job_id.clone(),
            bundle_id: spot.bundle_id,
            replica_index: spot.replica_index,
            job_name: spot.job_name,
            context: PlacementContext::Hydrated,
            kind,
            node_id: Some(run.node_id.clone()),
            pool: Default::default(),
            tier: Default::default(),
            instance_type: String::new(),
            launch_mode: Default::default(),
            gpu_index: None,
            reason: String::new(),
            tried_pools: Vec::new(),
            degraded: false,
            at: run.running_since.unwrap_or(run.accepted_at),
            trace: None,
        })
    }

    /// Ends what a predecessor left over and starts what it left prepared (HYDR-07, HYDR-17).
    fn settle_left_overs(&mut self, findings: &Findings, out: &mut Effects) {
        for (key, node_id) in &findings.prepared {
            self.start_left_prepared(key.clone(), node_id.clone(), out);
        }
        for handover in &findings.taken_up {
            self.take_up_handover(handover, out);
        }
        for other in &findings.left_over {
            let LeftOver {
                job_id,
                kept,
                role,
                node_id,
            } = other;
            self.end_left_over(job_id, kept, role, node_id, out);
        }
    }
}
