//! The one task that owns the core: select an input, decide, write, act, tell.
//!
//! Everything else talks to it over channels: the controlling streams, the runtime's news, the
//! survey of the machine. It decides nothing about jobs; that is `agent.rs`.

mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use greenroom_proto::worker as wire;
use greenroom_types::inventory::{HeldImage, NodeInventory};
use greenroom_types::node::InstanceState;
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{Millis, StartId, Wall};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::access::{Access, Held};
use crate::agent::{Act, Agent, Effects, Event, GuardNews, Reminder, RuntimeEvent};
use crate::clock::{self, boot_time};
use crate::deadline;
use crate::guarding::Guarding;
use crate::inventory::load;
use crate::journal::{Journal, Record};
use crate::lanes::Lanes;
use crate::launch::{Identity, Launch, LogLimits};
use crate::lease_times;
use crate::logs::LogStore;
use crate::notice::Notice;
use crate::order::Order;
use crate::prefetch::Prefetcher;
use crate::runtime::SharedRuntime;
use crate::socket::Sockets;
use crate::wire::{
    write_access_ack, write_goodbye, write_health, write_hello, write_info, write_pause_ack,
    write_refresh,
};

/// Time between two health messages (MNODE-09).
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Inventories are at least this far apart (WORK-41).
const INVENTORY_PAUSE: Duration = Duration::from_millis(500);
/// An old stream that was silent for this long gives way to one of the same term (WORK-01).
const SILENT: Duration = Duration::from_secs(2);
/// Grace of the stops when the worker is told to leave (WORK-61).
const LEAVE_GRACE: Millis = Millis(10_000);
/// Messages on their way to a Manager that does not read them.
pub(crate) const OUTGOING_MAX: usize = 1_024;
/// Time between two looks for logs whose time is over.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// What goes to a Manager.
pub(crate) type Outgoing = mpsc::Sender<Result<wire::WorkerMessage, Status>>;

/// Something for the task that owns the core.
pub(crate) enum Input {
    /// A proven Manager is connected: how do things stand?
    Hello {
        answer: oneshot::Sender<Box<wire::WorkerMessage>>,
        shared_secret: String,
    },
    /// It has answered the hello and wants to control.
    Control {
        response: wire::WorkerHelloResponse,
        outgoing: Outgoing,
        answer: oneshot::Sender<Result<u64, Status>>,
    },
    /// The controlling stream of this number says something.
    Said {
        session: u64,
        message: Box<wire::NodeControllerMessage>,
    },
    /// The stream of this number is over.
    Gone { session: u64 },
    /// The machine looks like this.
    Machine(Box<NodeInventory>),
    /// The engine holds these images.
    Images(Vec<HeldImage>),
    /// A batch of images is done.
    Prefetched {
        batch_id: String,
        results: Vec<PrefetchResult>,
    },
    /// What is kept for jobs is another version.
    Access(Held),
    /// The cloud takes this node, or advises to leave it.
    Notice(Notice),
    /// The engine has this version, or does not answer.
    Engine(Option<String>),
    /// Something is heard of the lease guard.
    Guard(GuardNews),
    /// Stop everything and end.
    Leave,
    /// Stop everything and stay: the slot is no longer this worker's.
    Orphaned,
    /// End and keep everything running.
    Keep,
}

/// What the node is, for those who speak for it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) machine_id: String,
    pub(crate) boot_id: String,
    pub(crate) logs: LogLimits,
    pub(crate) state_dir: PathBuf,
}

/// Whether a Manager controls the worker, for the task that calls in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contact {
    Connected,
    Alone,
    /// Told to stay and not to call in (LOCAL-16).
    Parked,
}

pub(crate) struct Node {
    agent: Agent,
    journal: Journal,
    lanes: Lanes,
    sockets: Sockets,
    prefetcher: Prefetcher,
    access: Access,
    held: Held,
    runtime: SharedRuntime,
    about: About,
    identity: watch::Receiver<Option<Arc<Identity>>>,
    contact: watch::Sender<Contact>,
    log_store: LogStore,
    guarding: Guarding,
    /// Images that instances need.
    wanted: watch::Sender<BTreeSet<String>>,
    /// What the core wants to be reminded of, by when; one for each open step and unsent signal.
    reminders: BTreeMap<(Instant, u64), Reminder>,
    next_reminder: u64,
    session: Option<Session>,
    next_session: u64,
    /// The greatest (generation, term) that controlled (WORK-01, CLUST-16).
    seen: (u64, u64),
    /// What the runtime holds was compared with the journal.
    reconciled: bool,
    leaving: bool,
}

struct Session {
    id: u64,
    outgoing: Outgoing,
    heard: Instant,
    /// Reports up to this one are on their way.
    sent: u64,
    told: Option<NodeInventory>,
    told_at: Option<Instant>,
    /// It was told that the worker leaves.
    goodbye: bool,
}

/// How the task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

// === impl Node ===

impl Node {
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own")]
    pub(crate) fn new(
        agent: Agent,
        journal: Journal,
        lanes: Lanes,
        sockets: Sockets,
        prefetcher: Prefetcher,
        (access, held): (Access, Held),
        runtime: SharedRuntime,
        about: About,
        identity: watch::Receiver<Option<Arc<Identity>>>,
        contact: watch::Sender<Contact>,
        log_store: LogStore,
        guarding: Guarding,
        wanted: watch::Sender<BTreeSet<String>>,
    ) -> Self {
        Self {
            agent,
            journal,
            lanes,
            sockets,
            prefetcher,
            access,
            held,
            runtime,
            about,
            identity,
            contact,
            log_store,
            guarding,
            wanted,
            reminders: BTreeMap::new(),
            next_reminder: 0,
            session: None,
            next_session: 1,
            seen: (0, 0),
            reconciled: false,
            leaving: false,
        }
    }

    /// Takes on the leases of an earlier run, and tells the guard of them.
    pub(crate) fn restore_leases(&mut self) {
        let About {
            state_dir, boot_id, ..
        } = &self.about;
        let times = lease_times::load(state_dir, boot_id);
        let mut out = Effects::default();
        self.agent.restore_leases(&times, boot_time(), &mut out);
        self.carry_out(out);
    }

    /// Runs until told to end.
    pub(crate) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut news: mpsc::Receiver<(StartId, RuntimeEvent)>,
    ) {
        let mut health = tokio::time::interval(HEALTH_EVERY);
        health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        // How things stand is known before the first hello, if the engine answers.
        let version = self.runtime.engine().await;
        self.take(Input::Engine(version)).await;
        loop {
            let inventory_due = self.inventory_due();
            let reminder_due = self.reminders.keys().next().map(|(at, _)| *at);
            let lease_due = self.agent.next_deadline();
            let next = tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.take(input).await,
                    None => Next::End,
                },
                Some((start_id, event)) = news.recv() => {
                    self.handle(Event::Runtime(start_id, event))
                }
                _ = health.tick() => {
                    self.send(write_health(load()));
                    Next::Go
                }
                _ = sweep.tick() => {
                    self.log_store.sweep(SystemTime::now());
                    Next::Go
                }
                () = deadline::reached(inventory_due) => Next::Go,
                () = deadline::reached(reminder_due) => self.remind(),
                () = clock::reached(lease_due) => self.pass_time(),
            };
            self.tell();
            if next == Next::End {
                return;
            }
        }
    }

    async fn take(&mut self, input: Input) -> Next {
        // Whatever was slept through comes first (LEASE-05).
        if self.pass_time() == Next::End {
            return Next::End;
        }
        match input {
            Input::Hello {
                answer,
                shared_secret,
            } => {
                let _ = answer.send(Box::new(write_hello(self.hello(shared_secret))));
            }
            Input::Control {
                response,
                outgoing,
                answer,
            } => {
                let _ = answer.send(self.control(&response, outgoing));
            }
            Input::Said { session, message } => return self.hear(session, *message),
            Input::Gone { session } => {
                if self
                    .session
                    .as_ref()
                    .is_some_and(|current| current.id == session)
                {
                    self.end_session();
                }
            }
            Input::Machine(machine) => return self.handle(Event::Machine(machine)),
            Input::Images(images) => return self.handle(Event::Images(images)),
            Input::Prefetched { batch_id, results } => {
                return self.handle(Event::Prefetched { batch_id, results });
            }
            Input::Access(held) => {
                self.held = held;
                // A hello says it as well, so that one that is lost is no loss.
                self.send(write_access_ack(&self.held));
            }
            Input::Notice(notice) => return self.handle(Event::Notice(notice)),
            Input::Engine(version) => {
                if version.is_some() && !self.reconciled {
                    self.reconcile().await;
                }
                let version = version.filter(|_| self.reconciled);
                return self.handle(Event::Engine(version));
            }
            Input::Guard(news) => return self.handle(Event::Guard(news)),
            Input::Leave => {
                // The Manager hears of it before anything stops (LOCAL-17).
                self.leaving = true;
                self.tell();
                let order = Order::Shutdown {
                    grace: LEAVE_GRACE,
                    park: false,
                };
                return self.handle(Event::Order(order));
            }
            Input::Orphaned => {
                let instances = self.agent.instances().count();
                if instances > 0 {
                    tracing::error!(
                        instances,
                        "no Manager takes this worker's token any more: what it runs is stopped"
                    );
                }
                return self.handle(Event::Orphaned(LEAVE_GRACE));
            }
            Input::Keep => return Next::End,
        }
        Next::Go
    }

    /// Compares the journal with what the runtime finds, once it can be asked.
    async fn reconcile(&mut self) {
        match self.runtime.find().await {
            Ok(found) => {
                let mut out = Effects::default();
                self.agent.reconcile(found, &mut out);
                self.reconciled = true;
                self.carry_out(out);
            }
            Err(error) => tracing::warn!(%error, "the runtime cannot tell what it holds yet"),
        }
    }

    /// Brings what was ordered for now.
    fn remind(&mut self) -> Next {
        match self.reminders.pop_first() {
            Some((_, reminder)) => self.handle(Event::Reminder(reminder)),
            None => Next::Go,
        }
    }

    /// Does what is due about leases.
    fn pass_time(&mut self) -> Next {
        let mut out = Effects::default();
        self.agent.pass_time(boot_time(), &mut out);
        self.carry_out(out)
    }

    fn handle(&mut self, event: Event) -> Next {
        if self.pass_time() == Next::End {
            return Next::End;
        }
        let mut out = Effects::default();
        self.agent.handle(event, &mut out);
        self.carry_out(out)
    }

    /// First the records, then the acts.
    fn carry_out(&mut self, mut out: Effects) -> Next {
        if !out.persist.is_empty() {
            let images = self.agent.wanted_images();
            self.wanted.send_if_modified(|old| {
                let changed = *old != images;
                *old = images;
                changed
            });
            let written = self.journal.append(&out.persist);
            self.agent.set_journal(written.is_ok());
            if let Err(error) = written {
                tracing::error!(%error, "the journal cannot be written");
                // What was not written was not accepted (WORK-65). Everything else goes on: a stop
                // must work on a full disk.
                self.agent.forget_pause_ack();
                out.act.retain(|act| *act != Act::AckPause(true));
                let unwritten = out.persist.iter().find_map(|record| match record {
                    Record::Accepted { spec, .. } => Some(spec.start_id.clone()),
                    _ => None,
                });
                if let Some(start_id) = unwritten {
                    out = Effects::default();
                    self.agent.undo_unwritten(&start_id, &mut out);
                }
            } else if self.journal.wants_compaction()
                && let Err(error) = self.journal.compact(&self.agent.snapshot())
            {
                tracing::warn!(%error, "the journal cannot be compacted");
            }
        }
        self.withdraw();
        let mut next = Next::Go;
        for act in out.act {
            if self.act(act) == Next::End {
                next = Next::End;
            }
        }
        next
    }

    /// What a node service provided is not offered while the service is being stopped (WORK-43).
    fn withdraw(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let Some(told) = session.told.as_ref().map(|told| &told.provided) else {
            return;
        };
        if !told.is_empty() {
            let now = self.agent.provided();
            if told.iter().any(|capability| !now.contains(capability)) {
                session.told_at = None;
                self.tell();
            }
        }
    }

    fn act(&mut self, act: Act) -> Next {
        match act {
            Act::Prepare(start_id) => self.prepare(&start_id),
            Act::Start(start_id) => {
                self.sockets.started(&start_id);
                self.lanes.start(start_id);
            }
            Act::Stop(start_id, grace, cause) => {
                let told = self.sockets.stopping(&start_id, grace, cause);
                self.lanes.stop(start_id, grace, told);
            }
            Act::Configure(start_id) => {
                if let Some((spec, _)) = self.agent.order_of(&start_id) {
                    self.sockets.configure(&start_id, spec);
                }
            }
            Act::Remove(start_id) => {
                self.sockets.close(&start_id);
                self.lanes.remove(start_id);
            }
            Act::Job(start_id, told) => self.sockets.migration(&start_id, told),
            Act::Remind(reminder, after) => {
                let at = Instant::now() + Duration::from_millis(after.0);
                self.next_reminder += 1;
                self.reminders.insert((at, self.next_reminder), reminder);
            }
            Act::Attach(start_id) => self.attach(start_id),
            // It is in the outbox, from which everything is sent in order.
            Act::Report(report) => {
                tracing::info!(
                    job_id = %report.key.job_id, role = %report.key.role,
                    start_id = %report.start_id, said = ?report.said, "report"
                );
            }
            Act::Info(info) => self.send(write_info(info, now())),
            Act::Prefetch {
                batch_id,
                image_refs,
            } => self.prefetcher.begin(batch_id, image_refs),
            Act::Refresh { nonce, leases } => self.send(write_refresh(nonce, &leases)),
            Act::AckPause(paused) => self.send(write_pause_ack(paused)),
            Act::Hold(start_id, until) => {
                self.sockets.lease(&start_id, until.output);
                self.guarding.hold(start_id, until);
            }
            Act::Contain(start_id, containers) => self.guarding.contain(start_id, containers),
            Act::Unhold(start_id) => self.guarding.release(&start_id),
            Act::WarnLease(start_id, remaining) => {
                tracing::warn!(
                    %start_id, %remaining,
                    "a lease is not answered: its instance is stopped when this time is over"
                );
                self.sockets.lease_warning(&start_id, remaining);
            }
            Act::Fence(start_id) => {
                if let Some((spec, _)) = self.agent.order_of(&start_id) {
                    self.sockets.fence(&start_id, spec);
                }
            }
            Act::SaveLeases => {
                let times = self.agent.lease_times();
                let saved = lease_times::save(&self.about.state_dir, &self.about.boot_id, times);
                if let Err(error) = saved {
                    tracing::warn!(%error, "from when leases run cannot be kept");
                }
            }
            Act::Leave { park: true } => {
                tracing::info!(
                    "the node was ended by request; this worker takes nothing until it is started again"
                );
                self.contact.send_replace(Contact::Parked);
                self.tell();
                self.session = None;
            }
            Act::Leave { park: false } => {
                self.tell();
                if !self.leaving {
                    self.send(write_goodbye("shutdown"));
                }
                self.session = None;
                return Next::End;
            }
        }
        Next::Go
    }

    fn prepare(&mut self, start_id: &StartId) {
        let Some((spec, held)) = self.agent.order_of(start_id) else {
            return;
        };
        let identity = self.identity.borrow().clone();
        let Some(identity) = identity else { return };
        let (kind, logs) = (self.runtime.kind(), self.about.logs);
        let (dir, provided) = (&self.about.state_dir, self.agent.addresses(&spec));
        let launch = Launch::new(&spec, held, &identity, kind, logs, dir, &provided);
        // What it needs to speak is there before anything of it is.
        let migration = self.agent.migration_of(start_id);
        match self.sockets.open(&spec, spec.defer_start, migration) {
            Ok(()) => self.lanes.prepare(launch),
            Err(error) => {
                let reason = format!("the job's socket cannot be made: {error}");
                self.lanes
                    .tell(start_id.clone(), RuntimeEvent::Broken(reason));
            }
        }
    }

    /// Watches what was found, and serves its socket again (SOCK-19).
    fn attach(&mut self, start_id: StartId) {
        let prepared = self
            .agent
            .instances()
            .any(|view| view.start_id == start_id && view.state == InstanceState::Prepared);
        let migration = self.agent.migration_of(&start_id);
        if let Some((spec, _)) = self.agent.order_of(&start_id)
            && let Err(error) = self.sockets.open(&spec, prepared, migration)
        {
            tracing::error!(%start_id, %error, "a job's socket cannot be served again");
        }
        self.lanes.attach(start_id);
    }
}

/// The wall clock.
pub(crate) fn now() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
