//! The worker's core: orders and the runtime's news in, records and acts out.
//!
//! It decides what is accepted, in which order an instance is prepared, started, stopped and
//! removed, and what the Manager is told. Its records must be in the journal before its acts are
//! done; then a crash at any moment leaves something that [`recover`](Agent::recover) understands.
//! It has no clock, opens no socket (ports are asked of a probe) and knows no engine.

mod batches;
mod handover;
mod lease;
mod news;
mod notices;
mod provided;
mod recover;
mod stop;

pub(crate) use self::handover::{JobSaid, ToJob};
pub(crate) use self::lease::{GuardNews, HeldLease, LeaseItem};
pub(crate) use self::recover::{Found, FoundState};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use greenroom_types::inventory::{AssignedJob, HeldImage, NodeInventory, RUNTIME_UNAVAILABLE};
use greenroom_types::job::{Container, JobInfoKind, PortMappings};
use greenroom_types::node::{InstanceKey, InstanceState, InterruptionKind, RejectionCode};
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{MigrationId, Millis, Mono, StartId, Tags, Wall};

use crate::capacity::{Reservation, Room};
use crate::handover::{Alarm, Handover};
use crate::journal::{Record, StepRecord};
use crate::lease::{Lease, Until};
use crate::lifecycle::Outcome;
use crate::notice::Notice;
use crate::order::{Info, Order, Refusal, Report, Said, StartSpec, StopCause};
use crate::outbox::Outbox;
use crate::ports::PortProbe;
use crate::spec::{RuntimeKind, check_spec};

/// Ends of instances that are remembered, so that a repeated order is answered with what is so.
const ENDED_MAX: usize = 1_000;
/// A reason is cut to this many bytes (JOB-21).
const REASON_MAX: usize = 4 << 10;

/// Something the core must take into account.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The Manager wants something.
    Order(Order),
    /// The Manager holds reports up to this one.
    Acked(u64),
    /// A Manager has begun to control.
    Connected,
    /// The Manager answers the refresh of this number.
    LeaseAnswer { nonce: u64, items: Vec<LeaseItem> },
    /// Leases are kept without refresh from now on, or have to be refreshed again.
    LeasesPaused(bool),
    /// Something is heard of the lease guard.
    Guard(GuardNews),
    /// The runtime says something of an instance.
    Runtime(StartId, RuntimeEvent),
    /// Something that was ordered for later.
    Reminder(Reminder),
    /// The engine answers and has this version, or does not.
    Engine(Option<String>),
    /// The machine looks like this; what is held of it is filled in here.
    Machine(Box<NodeInventory>),
    /// The engine holds these images.
    Images(Vec<HeldImage>),
    /// A batch of images is done.
    Prefetched {
        batch_id: String,
        results: Vec<PrefetchResult>,
    },
    /// The cloud takes this node, or advises to leave it.
    Notice(Notice),
    /// No Manager takes this worker for its slot's any more: what it runs is stopped with this grace.
    Orphaned(Millis),
}

/// What the runtime says of an instance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RuntimeEvent {
    /// These containers are its own; nothing of them was started by this worker before it said so.
    Made(Vec<String>),
    /// Everything is made, nothing runs.
    Prepared,
    /// It cannot be made here; whatever was made is to be removed.
    Refused(Refusal),
    /// Making or starting it failed.
    Broken(String),
    /// Every service runs.
    Running,
    /// Every service runs and is healthy where it has a check; or is so no more.
    Ready(bool),
    /// A service failed it, the rest is being stopped.
    Failing(String),
    /// Nothing of it runs any more.
    Ended(Outcome),
    /// Nothing of it is left.
    Removed,
    /// News without consequence.
    Info(JobInfoKind),
    /// Its job says something about a migration.
    Job(JobSaid),
}

/// Something to be brought later.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reminder {
    /// A deadline of a side of a migration.
    Handover {
        start_id: StartId,
        migration_id: MigrationId,
        alarm: Alarm,
    },
    /// A report is worth nothing any more.
    Forget { report: u64 },
}

/// Something to do once the records are on disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    /// Make everything the instance needs.
    Prepare(StartId),
    /// Start what was made.
    Start(StartId),
    /// Stop it, politely for so long.
    Stop(StartId, Millis, StopCause),
    /// Hand its changed configuration to its job.
    Configure(StartId),
    /// Remove whatever is left of it; a preparation under way is given up first.
    Remove(StartId),
    /// Tell its job something about a migration.
    Job(StartId, ToJob),
    /// Bring this after so long.
    Remind(Reminder, Millis),
    /// Watch an instance that was found running.
    Attach(StartId),
    /// Send a report if the Manager listens; it stays in the outbox.
    Report(Report),
    /// Send news if the Manager listens.
    Info(Info),
    /// Pull these images.
    Prefetch {
        batch_id: String,
        image_refs: Vec<String>,
    },
    /// Refresh these leases.
    Refresh { nonce: u64, leases: Vec<HeldLease> },
    /// Tell the Manager that leases are paused here, or are not.
    AckPause(bool),
    /// The guard and its supervisor end it then, unless told otherwise.
    Hold(StartId, Until),
    /// The guard is told of its containers.
    Contain(StartId, Vec<String>),
    /// The guard has nothing more to do with it.
    Unhold(StartId),
    /// Its lease was not answered for long; it is stopped after so much time.
    WarnLease(StartId, Millis),
    /// Its fencing number has grown.
    Fence(StartId),
    /// Keep from when leases run.
    SaveLeases,
    /// Nothing is left: end, or stay parked.
    Leave { park: bool },
}

/// What one event leads to: first the records, then the acts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Effects {
    pub(crate) persist: Vec<Record>,
    pub(crate) act: Vec<Act>,
}

/// What the worker's own settings say.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) runtime: RuntimeKind,
    /// Host paths below which jobs may mount (WORK-17).
    pub(crate) host_paths: Vec<PathBuf>,
    /// How long a job may take over a step of a migration (SOCK-10).
    pub(crate) migration_step: Millis,
    /// No job may reach the cloud's metadata service (WORK-51).
    pub(crate) guards_metadata: bool,
}

/// An instance as a hello tells it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstanceView {
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) state: InstanceState,
    pub(crate) fence: u64,
    pub(crate) ports: PortMappings,
}

/// The core.
pub(crate) struct Agent {
    settings: Settings,
    boot_id: String,
    machine: NodeInventory,
    /// Version of the engine while it answers.
    engine: Option<String>,
    room: Room,
    instances: BTreeMap<StartId, Instance>,
    ended: VecDeque<(StartId, Said)>,
    outbox: Outbox,
    images: Vec<HeldImage>,
    /// Batches of images that are being pulled.
    batches: BTreeSet<String>,
    /// Deadline of the last notice of each kind, so that each is told once.
    notices: BTreeMap<InterruptionKind, Option<Wall>>,
    node_tags: Option<Tags>,
    /// Set by a shutdown: whether to park when nothing is left.
    leaving: Option<bool>,
    journal_ok: bool,
    leases: lease::Leases,
    probe: Box<dyn PortProbe>,
}

#[derive(Clone, Debug)]
struct Instance {
    spec: Arc<StartSpec>,
    phase: Phase,
    /// Why it failed, once that was reported.
    failed: Option<String>,
    /// Its side of a cooperative migration.
    handover: Option<Handover>,
    /// Somebody speaks for its job.
    speaker: bool,
    /// What it may run under, if it needs that.
    lease: Option<Lease>,
    /// Every service runs and is healthy where it has a check.
    ready: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Accepted; the remains of an older instance of its key are being removed.
    Waiting,
    Preparing,
    Prepared,
    Starting,
    Running,
    /// On its way out; `last` is said when nothing is left, unless it is gone with a reboot. What is
    /// being removed is not removed a second time.
    Stopping {
        last: Said,
        grace: Millis,
        told: bool,
        removing: bool,
    },
}

// === impl Instance ===

impl Instance {
    /// One that was just accepted. A state that comes along makes it the target of a handover
    /// (JOB-17).
    fn new(spec: Arc<StartSpec>, now: Mono) -> Self {
        let target = spec
            .migration_id
            .clone()
            .filter(|_| spec.migration_state.is_some());
        Self {
            handover: target.map(Handover::target),
            lease: spec.leased.then(|| Lease::new(spec.lease_ttl, now)),
            spec,
            phase: Phase::Waiting,
            failed: None,
            speaker: false,
            ready: false,
        }
    }
}

// === impl Agent ===

impl Agent {
    /// Takes one event and adds everything that must follow from it to `out`.
    pub(crate) fn handle(&mut self, event: Event, out: &mut Effects) {
        match event {
            Event::Order(Order::Provision(spec)) => self.apply_provision(*spec, out),
            Event::Order(Order::Unreadable {
                key,
                start_id,
                refusal,
            }) => {
                let spec = StartSpec {
                    key,
                    start_id,
                    ..StartSpec::default()
                };
                if self.already_so(&spec.start_id).is_none() {
                    self.reject(&spec, refusal, out);
                }
            }
            Event::Order(Order::Stop {
                key,
                start_id,
                grace,
                cause,
            }) => {
                self.apply_stop(&key, start_id, grace, cause, out);
            }
            Event::Order(Order::StartPrepared { key, start_id }) => {
                self.apply_start_prepared(&key, start_id, out);
            }
            Event::Order(Order::Update {
                key,
                start_id,
                description,
                tags,
                configurations,
            }) => {
                let new = (description, tags, configurations);
                self.apply_update(&key, start_id, new, out);
            }
            Event::Order(Order::Tags(tags)) => {
                out.persist.push(Record::NodeTags { tags: tags.clone() });
                self.node_tags = Some(tags);
            }
            Event::Order(Order::Shutdown { grace, park }) => self.apply_shutdown(grace, park, out),
            Event::Orphaned(grace) => self.apply_orphaned(grace, out),
            Event::Acked(id) => {
                // A Manager may remember more than a worker that lost its memory.
                let id = id.min(self.outbox.next_id() - 1);
                if self.outbox.ack(id) {
                    out.persist.push(Record::Acked { id });
                }
            }
            Event::Connected => self.apply_connected(out),
            Event::LeaseAnswer { nonce, items } => self.apply_lease_answer(nonce, items, out),
            Event::LeasesPaused(paused) => self.apply_leases_paused(paused, out),
            Event::Guard(news) => self.apply_guard(news, out),
            Event::Order(Order::Migration {
                key,
                start_id,
                migration_id,
                step,
            }) => self.apply_migration(&key, start_id, &migration_id, step, out),
            Event::Reminder(reminder) => self.apply_reminder(reminder, out),
            Event::Runtime(start_id, RuntimeEvent::Job(said)) => {
                self.apply_job_said(&start_id, said, out);
            }
            Event::Runtime(start_id, event) => self.apply_runtime(&start_id, event, out),
            Event::Engine(version) => self.engine = version,
            Event::Machine(mut machine) => {
                machine.judge_disk(self.machine.disk_low);
                self.machine = *machine;
            }
            Event::Images(images) => self.images = images,
            Event::Order(Order::Prefetch {
                batch_id,
                image_refs,
            }) => self.apply_prefetch(batch_id, image_refs, out),
            Event::Notice(notice) => self.apply_notice(notice, out),
            Event::Prefetched { batch_id, results } => {
                self.apply_prefetched(batch_id, results, out);
            }
        }
    }

    /// The full picture of the node (WORK-40, WORK-41).
    pub(crate) fn picture(&self) -> NodeInventory {
        let mut picture = self.machine.clone();
        self.room.fill(&mut picture);
        picture.held_images.clone_from(&self.images);
        picture.provided = self.provided();
        picture.runtime = self
            .engine
            .clone()
            .unwrap_or_else(|| RUNTIME_UNAVAILABLE.to_owned());
        picture.assigned_jobs = self
            .instances
            .iter()
            .filter_map(|(start_id, instance)| {
                let held = self.room.of(start_id)?;
                Some(AssignedJob {
                    job_id: instance.spec.key.job_id.clone(),
                    role: instance.spec.key.role.clone(),
                    start_id: start_id.clone(),
                    capacity: held.capacity,
                    cores: held.cores,
                    gpu_index: held.gpu_index,
                    gpu_capacity: held.gpu_capacity,
                    host_ports: held.ports.tokens(),
                })
            })
            .collect();
        picture
    }

    /// Every instance that a hello tells of; what went with a reboot is left out (WORK-62).
    pub(crate) fn instances(&self) -> impl Iterator<Item = InstanceView> {
        self.instances.iter().filter_map(|(start_id, instance)| {
            let state = match &instance.phase {
                Phase::Waiting | Phase::Preparing | Phase::Starting => InstanceState::Provisioned,
                Phase::Prepared => InstanceState::Prepared,
                Phase::Running => InstanceState::Running,
                Phase::Stopping { told: true, .. } => InstanceState::Stopping,
                Phase::Stopping { told: false, .. } => return None,
            };
            Some(InstanceView {
                key: instance.spec.key.clone(),
                start_id: start_id.clone(),
                state,
                fence: instance.spec.fence,
                ports: self.ports(start_id),
            })
        })
    }

    /// What an instance was ordered to be and what it holds.
    pub(crate) fn order_of(&self, start_id: &StartId) -> Option<(Arc<StartSpec>, &Reservation)> {
        Some((
            self.instances.get(start_id)?.spec.clone(),
            self.room.of(start_id)?,
        ))
    }

    /// The images of every instance that is not removed yet (WORK-56).
    pub(crate) fn wanted_images(&self) -> BTreeSet<String> {
        let services = self
            .instances
            .values()
            .flat_map(|instance| instance.spec.all_services());
        services
            .filter_map(|service| match service.container {
                Container::Docker(image) => Some(image),
                Container::Process { .. } | Container::None => None,
            })
            .collect()
    }

    pub(crate) const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(crate) const fn node_tags(&self) -> Option<&Tags> {
        self.node_tags.as_ref()
    }

    /// Says whether the journal can be written. While it cannot, no start is accepted (WORK-65).
    pub(crate) const fn set_journal(&mut self, ok: bool) {
        self.journal_ok = ok;
    }

    /// Takes back an acceptance that could not be written; nothing was done on its account.
    pub(crate) fn undo_unwritten(&mut self, start_id: &StartId, out: &mut Effects) {
        let Some(instance) = self.instances.remove(start_id) else {
            return;
        };
        self.room.release(start_id);
        let refusal = Refusal::new(RejectionCode::Disk, "the worker's state directory is full");
        self.reject(&instance.spec, refusal, out);
    }

    fn apply_provision(&mut self, spec: StartSpec, out: &mut Effects) {
        if let Some(said) = self.already_so(&spec.start_id) {
            return self.say(&spec.key, &spec.start_id, said, out);
        }
        match self.find_room(&spec) {
            Ok((reservation, remains)) => self.accept(spec, reservation, remains, out),
            Err(refusal) => self.reject(&spec, refusal, out),
        }
    }

    /// What is so of a start that is known already (WORK-20).
    fn already_so(&self, start_id: &StartId) -> Option<Said> {
        let Some(instance) = self.instances.get(start_id) else {
            let known = self.ended.iter().find(|(ended, _)| ended == start_id);
            return known.map(|(_, said)| said.clone());
        };
        Some(match (&instance.phase, &instance.failed) {
            (_, Some(reason)) => Said::Failed {
                reason: reason.clone(),
            },
            (Phase::Prepared, None) => Said::Prepared {
                ports: self.ports(start_id),
            },
            (Phase::Running, None) => Said::Started {
                ports: self.ports(start_id),
            },
            (_, None) => Said::Accepted,
        })
    }

    /// Everything that must hold before a start is accepted (WORK-30); also tells whether the
    /// remains of an older instance of its key must go first.
    fn find_room(&mut self, spec: &StartSpec) -> Result<(Reservation, bool), Refusal> {
        let same_key = || {
            self.instances
                .iter()
                .filter(|(_, old)| old.spec.key == spec.key)
        };
        if let Some((live, _)) =
            same_key().find(|(_, old)| !matches!(old.phase, Phase::Stopping { .. }))
        {
            let detail = format!("{} is live here under start id {live}", spec.key);
            return Err(Refusal::new(RejectionCode::Duplicate, detail));
        }
        let remains: Vec<StartId> = same_key().map(|(start_id, _)| start_id.clone()).collect();
        check_spec(spec, &self.settings)?;
        self.check_guard(spec)?;
        if self.leaving.is_some() {
            return Err(Refusal::new(
                RejectionCode::Cordoned,
                "this worker is ending",
            ));
        }
        if self.engine.is_none() {
            let detail = "the container engine does not answer";
            return Err(Refusal::new(RejectionCode::Runtime, detail));
        }
        if !self.journal_ok {
            let detail = "the worker's state directory cannot be written";
            return Err(Refusal::new(RejectionCode::Disk, detail));
        }
        // What node services make possible can be asked for like what the machine has itself.
        let provided = self.provided();
        let machine = NodeInventory {
            provided,
            ..self.machine.clone()
        };
        let found = self
            .room
            .admit(spec, &machine, &remains, &mut *self.probe)?;
        Ok((found, !remains.is_empty()))
    }

    fn accept(&mut self, spec: StartSpec, held: Reservation, waits: bool, out: &mut Effects) {
        let spec = Arc::new(spec);
        let start_id = spec.start_id.clone();
        out.persist.push(Record::Accepted {
            spec: Box::new((*spec).clone()),
            reservation: Box::new(held.clone()),
        });
        self.room.hold(start_id.clone(), held);
        let instance = Instance::new(spec.clone(), self.leases.now());
        self.instances.insert(start_id.clone(), instance);
        self.say(&spec.key, &start_id, Said::Accepted, out);
        if spec.leased {
            self.refresh(out);
        }
        if !waits {
            self.prepare(&start_id, out);
        }
    }

    fn reject(&mut self, spec: &StartSpec, refusal: Refusal, out: &mut Effects) {
        let said = Said::Rejected {
            code: refusal.code,
            detail: refusal.detail,
        };
        self.remember_end(&spec.start_id, said.clone());
        out.persist.push(Record::Removed {
            start_id: spec.start_id.clone(),
            last: said.clone(),
        });
        self.say(&spec.key, &spec.start_id, said, out);
    }

    fn prepare(&mut self, start_id: &StartId, out: &mut Effects) {
        self.step(start_id, Phase::Preparing, StepRecord::Preparing, out);
        out.act.push(Act::Prepare(start_id.clone()));
    }

    /// Starts what was made, at once or as soon as its lease lets it.
    fn start(&mut self, start_id: &StartId, out: &mut Effects) {
        if !self.may_start(start_id, out) {
            return;
        }
        self.step(start_id, Phase::Starting, StepRecord::Starting, out);
        out.act.push(Act::Start(start_id.clone()));
    }

    /// Sends an instance on its way out; `told` is false for what went with a reboot.
    fn end(
        &mut self,
        start_id: &StartId,
        last: Said,
        grace: Millis,
        told: bool,
        out: &mut Effects,
    ) {
        let step = StepRecord::Stopping {
            last: last.clone(),
            grace,
            told,
        };
        self.step(
            start_id,
            Phase::Stopping {
                last,
                grace,
                told,
                removing: false,
            },
            step,
            out,
        );
    }

    fn step(&mut self, start_id: &StartId, phase: Phase, step: StepRecord, out: &mut Effects) {
        if let Some(instance) = self.instances.get_mut(start_id) {
            instance.phase = phase;
            out.persist.push(Record::Step {
                start_id: start_id.clone(),
                step,
            });
        }
    }

    fn live(&self, key: &InstanceKey) -> Option<StartId> {
        let of_key = || {
            self.instances
                .iter()
                .filter(|(_, instance)| instance.spec.key == *key)
        };
        of_key()
            .find(|(_, instance)| !matches!(instance.phase, Phase::Stopping { .. }))
            .or_else(|| of_key().next())
            .map(|(start_id, _)| start_id.clone())
    }

    fn apply_start_prepared(
        &mut self,
        key: &InstanceKey,
        start_id: Option<StartId>,
        out: &mut Effects,
    ) {
        let start_id = start_id.or_else(|| self.live(key)).unwrap_or_default();
        match self
            .instances
            .get_mut(&start_id)
            .map(|instance| &mut instance.phase)
        {
            Some(Phase::Prepared) => self.start(&start_id, out),
            Some(Phase::Running) => {
                let ports = self.ports(&start_id);
                self.say(key, &start_id, Said::Started { ports }, out);
            }
            Some(Phase::Starting | Phase::Stopping { .. }) => {}
            Some(Phase::Waiting | Phase::Preparing) | None => {
                let reason = "not_prepared".to_owned();
                self.say(key, &start_id, Said::Failed { reason }, out);
            }
        }
    }

    fn apply_update(
        &mut self,
        key: &InstanceKey,
        start_id: Option<StartId>,
        (description, tags, configurations): (String, Tags, BTreeMap<String, String>),
        out: &mut Effects,
    ) {
        let Some(start_id) = start_id.or_else(|| self.live(key)) else {
            return;
        };
        let Some(instance) = self.instances.get_mut(&start_id) else {
            return;
        };
        let spec = Arc::make_mut(&mut instance.spec);
        spec.description.clone_from(&description);
        spec.tags.clone_from(&tags);
        if spec.configure(&configurations) && spec.job_socket {
            out.act.push(Act::Configure(start_id.clone()));
        }
        out.persist.push(Record::Updated {
            start_id,
            description,
            tags,
            configurations,
        });
    }

    fn say(&mut self, key: &InstanceKey, start_id: &StartId, said: Said, out: &mut Effects) {
        let report = self.outbox.push(key, start_id, said);
        out.persist.push(Record::Report(report.clone()));
        out.act.push(Act::Report(report));
    }

    fn ports(&self, start_id: &StartId) -> PortMappings {
        self.room
            .of(start_id)
            .map(|held| held.ports.mappings())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
