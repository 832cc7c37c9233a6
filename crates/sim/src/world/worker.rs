//! Simulated workers: they accept, start, stop, fail and report as a worker would, at the times that
//! the scenario sets. The line over which they do stands in [`super::line`].
//!
//! A worker enforces what a real one does (WORK-30): what does not fit is rejected, so that a policy
//! that fills a node too much is found out. What is left of an ended instance counts until it is gone,
//! but not for a start of its own key, which waits for that (WORK-23).

use std::collections::BTreeMap;

use greenroom_ledger::{MigrationStep, Report, WorkerJob, WorkerOrder};
use greenroom_types::call::InstanceRef;
use greenroom_types::inventory::{AssignedJob, Capability, HeldImage, NodeInventory};
use greenroom_types::node::{InstanceState, RejectionCode};
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{MigrationId, Millis, Mono, NodeId, SHARE_TOLERANCE, StartId};

use super::World;
use super::hold::Pending;
use super::machine::Machine;
use super::pull::Pull;

/// From a start, a stop or a pull to the inventory that shows it (SCEN-03).
const INVENTORY_DELAY: Millis = Millis(100);

/// A machine and the worker on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    /// What it says of itself.
    pub(crate) machine: Machine,
    /// The token of its slot, for a registered server.
    pub(super) token: Option<String>,
    /// Its process runs.
    pub(super) up: bool,
    /// The Manager has a stream to it.
    pub(super) linked: bool,
    /// The line is cut, whether or not the Manager knows.
    pub(super) cut: bool,
    /// Counts cuts.
    pub(super) cuts: u64,
    /// What it runs, and what is left of it.
    pub(crate) runs: BTreeMap<StartId, Run>,
    /// What ran when its process died.
    pub(super) past: Vec<WorkerJob>,
    /// Newest number of its journal.
    pub(super) report_id: u64,
    /// Reports that wait for the line.
    pub(super) journal: Vec<Report>,
    /// Orders that wait in the line.
    pub(super) mail: Vec<WorkerOrder>,
    /// An inventory is under way.
    inventory_due: bool,
    /// It was told to end.
    pub(super) ending: bool,
    /// When its line was last mended.
    pub(crate) mended_at: Option<Mono>,
    /// Batches of images that it pulls.
    pub(super) pulls: Vec<Pull>,
    /// It takes leases for paused.
    pub(super) paused: bool,
    /// What it is told to start has run all along: the fleet is being set up.
    pub(super) found_running: bool,
}

/// One instance on a worker.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) order: Box<WorkerJob>,
    pub(crate) phase: RunPhase,
    /// When its lease was last refreshed.
    pub(super) refreshed: Mono,
}

/// How far an instance has come on its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// Waits until an older instance of its key is gone.
    Waiting,
    /// Being made.
    Creating,
    /// Made, not running.
    Prepared,
    /// Being started.
    Starting,
    /// Running.
    Running,
    /// Told to stop.
    Stopping,
    /// Failed; what is left of it is being removed.
    Remains,
}

// === impl RunPhase ===

impl RunPhase {
    /// It runs, or will.
    pub(crate) const fn is_live(self) -> bool {
        !matches!(self, Self::Stopping | Self::Remains)
    }

    pub(super) const fn state(self) -> InstanceState {
        match self {
            Self::Waiting | Self::Creating => InstanceState::Provisioned,
            Self::Prepared | Self::Starting => InstanceState::Prepared,
            Self::Running => InstanceState::Running,
            Self::Stopping | Self::Remains => InstanceState::Stopping,
        }
    }
}

// === impl Worker ===

impl Worker {
    /// A machine whose worker does not run yet.
    pub(super) fn of(machine: Machine) -> Self {
        Self {
            machine,
            ..Self::default()
        }
    }

    pub(super) const fn hears(&self) -> bool {
        self.up && self.linked && !self.cut
    }

    /// The Manager reaches it.
    pub(crate) const fn is_reachable(&self) -> bool {
        self.hears()
    }

    /// Images that it waits for.
    pub(super) fn wanted_images(&self) -> Vec<String> {
        self.pulls.iter().flat_map(Pull::open).collect()
    }

    /// Everything that takes room here, from its acceptance to its removal.
    fn held(&self) -> impl Iterator<Item = &WorkerJob> {
        self.runs.values().map(|run| &*run.order)
    }

    /// What takes room that this start cannot have: all but what is left of its own key.
    pub(crate) fn held_against(&self, job: &WorkerJob) -> impl Iterator<Item = &WorkerJob> {
        let runs = self.runs.values();
        runs.filter(|run| run.phase.is_live() || run.order.instance.key != job.instance.key)
            .map(|run| &*run.order)
    }

    /// The picture of the machine at this moment.
    pub(super) fn inventory(&self) -> NodeInventory {
        let machine = &self.machine;
        let held = || self.held().map(|job| &job.requirements);
        let mut gpus = machine.gpus.clone();
        for gpu in &mut gpus {
            let here = self.held().filter(|job| job.gpu_index == Some(gpu.index));
            gpu.reserved_capacity = here.map(|job| job.requirements.required_gpu_capacity).sum();
        }
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for capability in held().flat_map(|needs| &needs.required_capabilities) {
            *counts.entry(&capability.name).or_default() += capability.count;
        }
        NodeInventory {
            reserved_capacity: held().map(|needs| needs.required_capacity).sum(),
            reserved_cores: held().map(|needs| needs.required_cores).sum(),
            reserved_capabilities: counts
                .into_iter()
                .map(|(name, count)| Capability {
                    name: name.to_owned(),
                    count,
                    ..Capability::default()
                })
                .collect(),
            total_capacity: machine.capacity,
            total_cores: machine.cores,
            utilization_cap: machine.utilization_cap,
            capabilities: machine.capabilities.clone(),
            gpus,
            held_images: machine
                .held_images
                .iter()
                .map(|reference| HeldImage {
                    reference: reference.clone(),
                    digest: String::new(),
                })
                .collect(),
            assigned_jobs: self.held().map(assigned).collect(),
            cordoned: machine.cordoned,
            disks: machine.disks.clone(),
            disk_low: machine.disk_low,
            az: machine.az.clone(),
            runtime: machine.runtime.clone(),
            ..NodeInventory::default()
        }
    }

    /// Why this start is refused, if it is.
    ///
    /// Of what has run all along only that is asked which no machine can do otherwise: what closes a
    /// node to new work, and a share of it that was taken back, leave what runs there alone.
    fn objection(&self, job: &WorkerJob) -> Option<(RejectionCode, String)> {
        let key = &job.instance.key;
        if let Some(live) = self
            .runs
            .values()
            .find(|run| run.phase.is_live() && run.order.instance.key == *key)
        {
            let text = format!("{key} is live as {}", live.order.instance.start_id);
            return Some((RejectionCode::Duplicate, text));
        }
        if self.ending {
            return Some((RejectionCode::Cordoned, "the node takes no new work".into()));
        }
        let is_new = !self.found_running;
        if is_new && let Some(objection) = self.machine.closed_objection() {
            return Some(objection);
        }
        if let Some(text) = self.machine.runtime_objection(job) {
            return Some((RejectionCode::Runtime, text));
        }
        if is_new && let Some(text) = self.machine.disk_objection() {
            return Some((RejectionCode::Disk, text));
        }
        let others = || self.held_against(job);
        let needs = &job.requirements;
        for wanted in needs.required_capabilities.iter().filter(|_| is_new) {
            let count = |list: &[Capability]| -> u32 {
                let named = list.iter().filter(|it| it.name == wanted.name);
                named.map(|it| it.count).sum()
            };
            let taken: u32 = others()
                .map(|job| count(&job.requirements.required_capabilities))
                .sum();
            let asked = count(&needs.required_capabilities);
            if taken + asked > count(&self.machine.capabilities) {
                let text = format!("{asked} of {} wanted, {taken} taken", wanted.name);
                return Some((RejectionCode::Capability, text));
            }
        }
        let cap = match self.machine.utilization_cap {
            cap if is_new && cap > 0.0 && cap <= 1.0 => cap,
            _ => 1.0,
        };
        let taken: f64 = others().map(|job| job.requirements.required_capacity).sum();
        let room = self.machine.capacity * cap;
        if needs.required_capacity > 0.0 && taken + needs.required_capacity > room + SHARE_TOLERANCE
        {
            let text = format!(
                "{} vCPU wanted, {} of {room} taken",
                needs.required_capacity, taken
            );
            return Some((RejectionCode::Capacity, text));
        }
        let taken: u32 = others().map(|job| job.requirements.required_cores).sum();
        if needs.required_cores > 0 && taken + needs.required_cores > self.machine.cores {
            let text = format!("{} cores wanted, {taken} taken", needs.required_cores);
            return Some((RejectionCode::Cores, text));
        }
        if let Some(index) = job.gpu_index {
            let share = needs.required_gpu_capacity;
            let taken: f64 = others()
                .filter(|job| job.gpu_index == Some(index))
                .map(|job| job.requirements.required_gpu_capacity)
                .sum();
            let device = self.machine.gpus.iter().find(|gpu| gpu.index == index);
            if device.is_none_or(|gpu| taken + share > gpu.capacity + SHARE_TOLERANCE) {
                let text = format!("{share} of device {index} wanted, {taken} taken");
                return Some((RejectionCode::Gpu, text));
            }
        }
        let clash = needs.required_host_ports.iter().find(|port| {
            others().any(|job| {
                let ports = &job.requirements.required_host_ports;
                ports.iter().any(|taken| taken.eq_ignore_ascii_case(port))
            })
        });
        clash.map(|port| (RejectionCode::HostPort, format!("port {port} is taken")))
    }
}

fn assigned(job: &WorkerJob) -> AssignedJob {
    let needs = &job.requirements;
    AssignedJob {
        job_id: job.instance.key.job_id.clone(),
        role: job.instance.key.role.clone(),
        start_id: job.instance.start_id.clone(),
        capacity: needs.required_capacity,
        cores: needs.required_cores,
        gpu_index: job.gpu_index,
        gpu_capacity: needs.required_gpu_capacity,
        host_ports: needs.required_host_ports.clone(),
    }
}

// === impl World ===

impl World {
    pub(super) fn obey(&mut self, node_id: &NodeId, message: WorkerOrder) {
        match message {
            WorkerOrder::Provision(job) => self.provision(node_id, job),
            WorkerOrder::StartPrepared(instance) => {
                let delay = Millis(self.spec.start_prepared_time.0);
                self.turn(node_id, &instance.start_id, |phase| {
                    (phase == RunPhase::Prepared).then_some(RunPhase::Starting)
                })
                .then(|| {
                    let due = Pending::Running(node_id.clone(), instance.start_id);
                    self.after(delay, due);
                });
            }
            WorkerOrder::Stop { instance, .. } => self.stop(node_id, instance),
            WorkerOrder::Shutdown { .. } => self.shut_down(node_id),
            WorkerOrder::Migration {
                instance,
                migration_id,
                step,
            } => self.answer_step(node_id, instance.start_id, migration_id, &step),
            WorkerOrder::PrefetchImages {
                batch_id,
                image_refs,
            } => self.pull(node_id, batch_id, image_refs),
            WorkerOrder::LeasesPaused { paused, .. } => self.leases_paused(node_id, paused),
            WorkerOrder::UpdateJob(_)
            | WorkerOrder::ReportAck { .. }
            | WorkerOrder::Tags(_)
            | WorkerOrder::Discovery(_)
            | WorkerOrder::AccessReplica(_) => {}
        }
    }

    fn provision(&mut self, node_id: &NodeId, job: Box<WorkerJob>) {
        let instance = job.instance.clone();
        let found_running = |worker: &Worker| worker.found_running;
        if self.run(node_id, &instance.start_id).is_none()
            && !self.workers.get(node_id).is_some_and(found_running)
        {
            self.look_at_start(node_id, &job);
        }
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        if worker.runs.contains_key(&instance.start_id) {
            self.report(node_id, Report::Accepted(instance));
            return;
        }
        if let Some((code, detail)) = worker.objection(&job) {
            let inventory = Some(Box::new(worker.inventory()));
            let report = Report::Rejected {
                instance,
                code,
                detail,
                inventory,
            };
            self.report(node_id, report);
            return;
        }
        if !self.takes_lease(node_id, &job) {
            return;
        }
        let refreshed = self.mono();
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let waits = worker
            .runs
            .values()
            .any(|run| !run.phase.is_live() && run.order.instance.key == instance.key);
        let phase = if waits {
            RunPhase::Waiting
        } else {
            RunPhase::Creating
        };
        let start_id = instance.start_id.clone();
        let run = Run {
            order: job,
            phase,
            refreshed,
        };
        worker.runs.insert(start_id.clone(), run);
        self.keeps_lease(node_id, &start_id);
        self.report(node_id, Report::Accepted(instance));
        self.inventory_follows(node_id);
        if !waits {
            self.create(node_id, &start_id);
        }
    }

    pub(super) fn create(&mut self, node_id: &NodeId, start_id: &StartId) {
        let deferred = self
            .run(node_id, start_id)
            .is_some_and(|run| run.order.defer_start);
        let (node_id, start_id) = (node_id.clone(), start_id.clone());
        if deferred {
            let delay = Millis(self.spec.prepare_time.0);
            self.after(delay, Pending::Prepared(node_id, start_id));
        } else {
            let delay = Millis(self.spec.start_time.0);
            self.after(delay, Pending::Running(node_id, start_id));
        }
    }

    fn stop(&mut self, node_id: &NodeId, instance: InstanceRef) {
        if self.run(node_id, &instance.start_id).is_none() {
            let completed = false;
            self.report(
                node_id,
                Report::Stopped {
                    instance,
                    completed,
                },
            );
            return;
        }
        let stops = self.turn(node_id, &instance.start_id, |phase| {
            phase.is_live().then_some(RunPhase::Stopping)
        });
        if stops {
            let delay = Millis(self.spec.stop_time.0);
            self.after(delay, Pending::Gone(node_id.clone(), instance.start_id));
        }
    }

    fn shut_down(&mut self, node_id: &NodeId) {
        let delay = Millis(self.spec.terminate_time.0);
        if let Some(worker) = self.workers.get_mut(node_id)
            && !worker.ending
        {
            worker.ending = true;
            for run in worker.runs.values_mut() {
                run.phase = RunPhase::Stopping;
            }
            if worker.token.is_some() {
                self.after(delay, Pending::WorkerEnds(node_id.clone()));
            }
        }
    }

    /// A registered server's worker has ended everything, tells so, and closes its line.
    pub(super) fn worker_ends(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let runs = std::mem::take(&mut worker.runs);
        for run in runs.into_values() {
            let completed = false;
            let instance = run.order.instance;
            self.report(
                node_id,
                Report::Stopped {
                    instance,
                    completed,
                },
            );
        }
        self.unplug(node_id);
        self.drop_line(node_id);
    }

    pub(super) fn send_inventory(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        worker.inventory_due = false;
        if worker.hears() {
            let picture = Box::new(worker.inventory());
            self.send(node_id, 0, Report::Inventory(picture));
        }
    }

    pub(super) fn inventory_follows(&mut self, node_id: &NodeId) {
        if let Some(worker) = self.workers.get_mut(node_id)
            && !worker.inventory_due
        {
            worker.inventory_due = true;
            self.after(INVENTORY_DELAY, Pending::Inventory(node_id.clone()));
        }
    }

    pub(super) fn is_prepared(&mut self, node_id: &NodeId, start_id: &StartId) {
        let prepared = self.turn(node_id, start_id, |phase| {
            (phase == RunPhase::Creating).then_some(RunPhase::Prepared)
        });
        if prepared && let Some(instance) = self.instance(node_id, start_id) {
            let ports = Default::default();
            self.report(node_id, Report::Prepared { instance, ports });
        }
    }

    pub(super) fn runs(&mut self, node_id: &NodeId, start_id: &StartId) {
        let started = self.turn(node_id, start_id, |phase| {
            matches!(phase, RunPhase::Creating | RunPhase::Starting).then_some(RunPhase::Running)
        });
        if started && let Some(instance) = self.instance(node_id, start_id) {
            let ports = Default::default();
            self.report(node_id, Report::Started { instance, ports });
            self.inventory_follows(node_id);
            self.gets_ready(node_id, start_id);
        }
    }

    /// An instance fails; what is left of it goes in its time.
    pub(super) fn fails(&mut self, node_id: &NodeId, start_id: &StartId, reason: String) {
        let failed = self.turn(node_id, start_id, |phase| {
            phase.is_live().then_some(RunPhase::Remains)
        });
        if failed && let Some(instance) = self.instance(node_id, start_id) {
            self.report(node_id, Report::Failed { instance, reason });
            let delay = Millis(self.spec.stop_time.0);
            self.after(delay, Pending::Gone(node_id.clone(), start_id.clone()));
        }
    }

    pub(super) fn is_gone(&mut self, node_id: &NodeId, start_id: &StartId) {
        self.ends(node_id, start_id, false);
    }

    /// An instance is over; one that waited for it begins.
    pub(super) fn ends(&mut self, node_id: &NodeId, start_id: &StartId, completed: bool) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let Some(run) = worker.runs.remove(start_id) else {
            return;
        };
        let key = run.order.instance.key.clone();
        let next = worker
            .runs
            .iter_mut()
            .find(|(_, other)| other.phase == RunPhase::Waiting && other.order.instance.key == key)
            .map(|(start_id, other)| {
                other.phase = RunPhase::Creating;
                start_id.clone()
            });
        let instance = run.order.instance;
        self.report(
            node_id,
            Report::Stopped {
                instance,
                completed,
            },
        );
        if let Some(next) = next {
            self.create(node_id, &next);
        }
        self.inventory_follows(node_id);
    }

    pub(super) fn run(&self, node_id: &NodeId, start_id: &StartId) -> Option<&Run> {
        self.workers.get(node_id)?.runs.get(start_id)
    }

    pub(super) fn run_mut(&mut self, node_id: &NodeId, start_id: &StartId) -> Option<&mut Run> {
        self.workers.get_mut(node_id)?.runs.get_mut(start_id)
    }

    fn instance(&self, node_id: &NodeId, start_id: &StartId) -> Option<InstanceRef> {
        Some(self.run(node_id, start_id)?.order.instance.clone())
    }

    /// Moves an instance on if it stands where `step` wants it; says whether it did.
    fn turn(
        &mut self,
        node_id: &NodeId,
        start_id: &StartId,
        step: impl FnOnce(RunPhase) -> Option<RunPhase>,
    ) -> bool {
        let run = self
            .workers
            .get_mut(node_id)
            .filter(|worker| worker.up)
            .and_then(|worker| worker.runs.get_mut(start_id));
        let Some(run) = run else { return false };
        match step(run.phase) {
            Some(next) => {
                run.phase = next;
                true
            }
            None => false,
        }
    }

    /// An instance that another run of the policy left behind goes on under its old start.
    pub(super) fn keeps(&mut self, node_id: &NodeId, order: WorkerJob) {
        let run = Run {
            order: Box::new(order),
            phase: RunPhase::Running,
            refreshed: self.mono(),
        };
        let start_id = run.order.instance.start_id.clone();
        if let Some(worker) = self.workers.get_mut(node_id) {
            worker.runs.insert(start_id.clone(), run);
            self.keeps_lease(node_id, &start_id);
        }
    }

    /// The running target of a handover says when it is ready. It is known by the state that its start
    /// brings; the target of another strategy outputs at once and says nothing (MIGR-08).
    fn gets_ready(&mut self, node_id: &NodeId, start_id: &StartId) {
        let migration = self.run(node_id, start_id).and_then(|run| {
            let handed = run.order.migration_state.is_some();
            run.order.migration_id.clone().filter(|_| handed)
        });
        if let Some(migration_id) = migration {
            let delay = Millis(self.spec.migration.ready.0);
            let signal = MigrationSignal::TargetReady(b"ready".into());
            let (node_id, start_id) = (node_id.clone(), start_id.clone());
            let due = Pending::Signal(node_id, start_id, migration_id, signal);
            self.after(delay, due);
        }
    }

    /// What a job says to a step of a migration. An abort is obeyed without a word.
    fn answer_step(
        &mut self,
        node_id: &NodeId,
        start_id: StartId,
        migration_id: MigrationId,
        step: &MigrationStep,
    ) {
        let times = self.spec.migration;
        let (delay, signal) = match step {
            MigrationStep::GetState => (times.state, MigrationSignal::State(b"state".into())),
            MigrationStep::CutoverReady(_) => (
                times.stop_output,
                MigrationSignal::SourceStoppedOutput(b"stopped".into()),
            ),
            MigrationStep::CutoverApply(_) => {
                let applied = MigrationSignal::TargetApplied(b"applied".into());
                (times.apply, applied)
            }
            MigrationStep::Abort(_) => return,
        };
        let due = Pending::Signal(node_id.clone(), start_id, migration_id, signal);
        self.after(Millis(delay.0), due);
    }

    /// A running instance speaks; one that is gone does not.
    pub(super) fn speaks(
        &mut self,
        node_id: &NodeId,
        start_id: &StartId,
        migration_id: MigrationId,
        signal: MigrationSignal,
    ) {
        let speaker = self
            .run(node_id, start_id)
            .filter(|run| run.phase.is_live());
        if let Some(run) = speaker {
            let key = run.order.instance.key.clone();
            let report = Report::Migration {
                key,
                migration_id,
                signal,
            };
            self.report(node_id, report);
        }
    }
}
