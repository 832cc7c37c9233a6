//! The simulated world: one virtual clock, the real ledger, the real policy, and between and around
//! them what sockets, machines and providers would be.
//!
//! Everything is decided by an order that is the same on every machine: the instant, then timers of
//! the policy, then of the Manager, then windows of the stream, then what the world does, in the
//! order in which it was arranged (SCEN-14). Between policy and Manager no time passes. What workers
//! do stands in [`worker`], what providers do in [`cloud`], the Manager's driver in [`manager`], what
//! a step does in [`act`] and [`events`].

mod act;
mod cloud;
mod events;
mod hold;
mod lease;
mod line;
mod look;
mod machine;
mod manager;
mod pull;
mod setup;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greenroom_ledger::{Keeper, LeaseClock, Ledger, Order, Subscriber};
use greenroom_policy::effect::{Effect, PlacementInfo, PlacementKind};
use greenroom_policy::event::{ApiId, ApiResult, CallFailure, ConnectionState};
use greenroom_policy::{Callback, Effects, Event, Policy, Settings};
use greenroom_types::call::Call;
use greenroom_types::{BundleId, JobId, Millis, Mono, NodeId, Now, StartId, Wall};

use crate::format::Scenario;
use crate::format::fleet::WorldSpec;
use crate::invariants::Watch;
use crate::log::Log;
use crate::run::Watcher;
use crate::seed::Seed;

pub(crate) use act::{Answer, Refused};
pub(crate) use cloud::Purchases;
pub(crate) use hold::{Holds, Pending};
pub(crate) use look::Seen;
pub(crate) use manager::with_services;
use manager::{Answered, StartFailure};
pub(crate) use worker::Worker;

/// Inputs handled in one go before the run is taken for an endless one. A burst of hundreds of jobs
/// makes some thousands.
const INPUTS_AT_ONCE: usize = 2_000_000;

/// Firings of timers in a whole run: hours of playing.
const FIRINGS: u64 = 20_000_000;

/// Firings of timers between two words to who looks on.
const FIRINGS_TOLD: u64 = 4_096;

/// Firings of timers at one instant before the run is taken for an endless one.
const TIMERS_AT_ONCE: usize = 100_000;

/// The run cannot go on: the scenario asks for what is not there, or a core goes round in circles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Stuck(pub(crate) String);

/// The world cannot stand as the scenario says, and where it says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {stuck}")]
pub(crate) struct Unbuilt {
    pub(crate) path: String,
    pub(crate) stuck: Stuck,
}

/// What the world is asked to remember beyond the last transitions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) calls: bool,
    pub(crate) callbacks: bool,
    pub(crate) decisions: bool,
}

/// The whole of it. A copy goes on by itself, before whoever looks on at the first.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) spec: WorldSpec,
    pub(crate) settings: Settings,
    pub(crate) log: Log,
    pub(crate) watch: Watch,
    memory: Memory,
    seed: Seed,

    mono: Mono,
    wall_step: i64,
    due: BTreeMap<(Mono, u64), Pending>,
    next_due: u64,
    pub(crate) holds: Holds,

    pub(crate) ledger: Ledger,
    keeper: Keeper,
    leases: LeaseClock,
    subscriber: Option<Subscriber>,
    orders: VecDeque<Order>,

    pub(crate) policy: Option<Policy>,
    policies: u64,
    inbox: VecDeque<Event>,
    next_api: u64,
    answers: BTreeMap<ApiId, ApiResult>,

    pub(crate) workers: BTreeMap<NodeId, Worker>,
    pub(crate) purchases: Purchases,
    /// Starts that fail, by node and job; without a job, those of any.
    start_failures: BTreeMap<NodeId, BTreeMap<Option<JobId>, StartFailure>>,

    pub(crate) calls: Vec<Call>,
    pub(crate) callbacks: Vec<Callback>,
    pub(crate) decisions: BTreeMap<JobId, PlacementInfo>,
    pub(crate) last_dry_run: Option<Answer>,
    pub(crate) last_admission: Option<Answer>,
    pub(crate) touched_jobs: BTreeSet<JobId>,
    /// Jobs that were started again by hand, with what they have on their count.
    pub(crate) revived: BTreeSet<JobId>,
    /// Restarts that the policy in service read out of histories when it began (HYDR-10).
    pub(crate) rebuilt: BTreeMap<JobId, usize>,
    /// When each bundle was last changed.
    pub(crate) changed: BTreeMap<BundleId, Mono>,
    /// When a place for each job was last decided.
    pub(crate) decided: BTreeMap<JobId, Mono>,
    /// When each start was asked for.
    pub(crate) asked: BTreeMap<StartId, Mono>,
    /// When the policy connected.
    pub(crate) connected_at: Mono,
    /// Timers that fired so far.
    fired: u64,
    /// How many may.
    pub(crate) firings: u64,
    /// Who else looks at what the policy is told and does.
    pub(crate) observer: Option<Watcher>,
}

/// What is due next, and who has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Policy,
    Keeper,
    Window,
    World,
}

// === impl Stuck ===

impl Stuck {
    const fn at(self, path: String) -> Unbuilt {
        Unbuilt { path, stuck: self }
    }
}

// === impl World ===

impl World {
    /// The world as it stands before the policy connects.
    pub(crate) fn new(
        scenario: &Scenario,
        settings: &Settings,
        memory: Memory,
        log: Log,
    ) -> Result<Self, Unbuilt> {
        let spec = scenario.world.clone();
        let ledger = Ledger::new(setup::config());
        let now = Now {
            mono: Mono(0),
            wall: spec.start,
        };
        let mut world = Self {
            log,
            watch: Watch::default(),
            memory,
            seed: Seed::new(spec.seed),
            mono: now.mono,
            wall_step: 0,
            due: BTreeMap::new(),
            next_due: 0,
            holds: Holds::default(),
            keeper: Keeper::new(spec.manager.keeper.clone(), now, &ledger),
            leases: LeaseClock::new(Millis(0), now, &ledger),
            ledger,
            subscriber: None,
            orders: VecDeque::new(),
            policy: None,
            policies: 0,
            inbox: VecDeque::new(),
            next_api: 0,
            answers: BTreeMap::new(),
            workers: BTreeMap::new(),
            purchases: Purchases::default(),
            start_failures: BTreeMap::new(),
            calls: Vec::new(),
            callbacks: Vec::new(),
            decisions: BTreeMap::new(),
            last_dry_run: None,
            last_admission: None,
            touched_jobs: BTreeSet::new(),
            revived: BTreeSet::new(),
            rebuilt: BTreeMap::new(),
            changed: BTreeMap::new(),
            decided: BTreeMap::new(),
            asked: BTreeMap::new(),
            connected_at: Mono(0),
            fired: 0,
            firings: FIRINGS,
            observer: None,
            settings: settings.clone(),
            spec,
        };
        world.set_up(scenario)?;
        Ok(world)
    }

    /// What both clocks say.
    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.mono,
            wall: self.wall(),
        }
    }

    /// What the wall clock says.
    pub(crate) fn wall(&self) -> Wall {
        let ms = i64::try_from(self.mono.0).unwrap_or(i64::MAX);
        self.spec.start.plus(ms).plus(self.wall_step)
    }

    /// Virtual time so far.
    pub(crate) const fn mono(&self) -> Mono {
        self.mono
    }

    /// Arranges that something happens so much later.
    fn after(&mut self, delay: Millis, what: Pending) {
        let key = (self.mono + delay, self.next_due);
        self.next_due += 1;
        self.due.insert(key, what);
    }

    /// Lets time pass until `to`, with everything that is due on the way and at `to` itself.
    pub(crate) fn advance(&mut self, to: Mono) -> Result<(), Stuck> {
        self.settle()?;
        let mut at_once = 0;
        while let Some((at, source)) = self.next_source() {
            if at > to {
                break;
            }
            if at > self.mono {
                self.mono = at;
                at_once = 0;
            }
            at_once += 1;
            if at_once > TIMERS_AT_ONCE {
                let text = format!(
                    "timers fire without end at {}: {}",
                    self.log.time(self.mono),
                    self.describe_source(source)
                );
                self.violated(text.clone());
                return Err(Stuck(text));
            }
            self.log.clock(self.mono);
            self.fired += 1;
            if self.fired > self.firings {
                return Err(Stuck(format!(
                    "more than {} timers fired by {}: a scenario is shorter, or has a smaller fleet",
                    self.firings,
                    self.log.time(self.mono)
                )));
            }
            if self.fired.is_multiple_of(FIRINGS_TOLD)
                && let Some(observer) = &self.observer
            {
                observer.borrow_mut().passed(self.mono);
            }
            self.fire(source);
            self.settle()?;
        }
        self.mono = self.mono.max(to);
        self.log.clock(self.mono);
        Ok(())
    }

    fn next_source(&self) -> Option<(Mono, Source)> {
        let policy = self
            .policy
            .as_ref()
            .and_then(Policy::next_deadline)
            .map(|deadline| (deadline.at, Source::Policy));
        let keeper = self.keeper.next_deadline().into_iter();
        let keeper = keeper.chain(self.leases.next_deadline()).min();
        let keeper = keeper.map(|at| (at, Source::Keeper));
        let window = self
            .subscriber
            .as_ref()
            .and_then(|subscriber| subscriber.next_due(self.now()))
            .map(|at| (at, Source::Window));
        let world = self
            .due
            .first_key_value()
            .map(|((at, _), _)| (*at, Source::World));
        [policy, keeper, window, world].into_iter().flatten().min()
    }

    fn describe_source(&self, source: Source) -> String {
        match source {
            Source::Policy => {
                let timer = self.policy.as_ref().and_then(Policy::next_deadline);
                format!("the policy's {:?}", timer.map(|deadline| deadline.timer))
            }
            Source::Keeper => "the Manager's keeper".to_owned(),
            Source::Window => "the window of the event stream".to_owned(),
            Source::World => "the simulated fleet".to_owned(),
        }
    }

    fn fire(&mut self, source: Source) {
        let now = self.now();
        match source {
            Source::Policy => self.handle(Event::Wake),
            Source::Keeper => self.keep(),
            Source::Window => {
                let seq = self.ledger.seq();
                if let Some(subscriber) = &mut self.subscriber {
                    for stamped in subscriber.on_time(now, seq) {
                        self.inbox.push_back(Event::Stream(stamped.event));
                    }
                }
            }
            Source::World => {
                if let Some((_, what)) = self.due.pop_first() {
                    self.meet(what);
                }
            }
        }
    }

    /// Asks the keeper what is due and does it.
    fn keep(&mut self) {
        let now = self.now();
        let wakeup = self.keeper.due(now, &self.ledger);
        let leases = self.leases.due(now, &self.ledger);
        for command in wakeup.commands.into_iter().chain(leases.commands) {
            self.note_command(&command);
            // Whether its reason still holds is looked at by the ledger; a refusal changes nothing.
            let _ = self.commit(command);
        }
        self.orders.extend(wakeup.orders);
    }

    /// Handles everything that waits, until nothing does.
    pub(crate) fn settle(&mut self) -> Result<(), Stuck> {
        let mut inputs = 0;
        loop {
            if let Some(order) = self.orders.pop_front() {
                self.carry_out(order);
            } else if let Some(event) = self.inbox.pop_front() {
                self.note_event(&event);
                self.handle(event);
            } else {
                break;
            }
            inputs += 1;
            if inputs > INPUTS_AT_ONCE {
                let text = format!(
                    "policy and Manager answer each other without end at {}",
                    self.log.time(self.mono)
                );
                self.violated(text.clone());
                return Err(Stuck(text));
            }
        }
        self.look_after_input();
        Ok(())
    }

    /// Gives one input to the policy and does what follows from it.
    fn handle(&mut self, event: Event) {
        let now = self.now();
        let Some(policy) = &mut self.policy else {
            return;
        };
        let mut effects = Effects::new();
        if let Some(observer) = &self.observer {
            observer.borrow_mut().before(now, &event, policy);
        }
        policy.handle(now, event, &mut effects);
        if let Some(observer) = &self.observer {
            for effect in effects.as_slice() {
                observer.borrow_mut().after(now, effect, policy);
            }
        }
        for effect in effects.drain() {
            match effect {
                Effect::Call { call_id, call } => {
                    self.touch_call(&call);
                    self.log.call(&call, &self.purchases);
                    if self.memory.calls {
                        self.calls.push(call.clone());
                    }
                    let Answered::Now(result, changes) = self.call(call_id, call) else {
                        continue;
                    };
                    if let Err(failure) = &result {
                        self.log.refusal(failure);
                    }
                    self.inbox.push_back(Event::Reply { call_id, result });
                    self.publish(&changes);
                }
                Effect::Callback(callback) => self.called_back(callback),
                Effect::ApiReply { id, result } => {
                    self.answers.insert(id, result);
                }
                Effect::Log { text } => self.log.line("log", || text),
                Effect::CloseChannel { error } => {
                    self.log.line("closed", || error.unwrap_or_default());
                    self.subscriber = None;
                    self.inbox.clear();
                    self.inbox
                        .push_back(Event::ConnectionState(ConnectionState::Shutdown));
                }
            }
        }
    }

    fn called_back(&mut self, callback: Callback) {
        self.log.callback(&callback, &self.purchases);
        if let Callback::OnPlacementDecision(info) = &callback {
            self.touched_jobs.insert(info.job_id.clone());
            if info.kind != PlacementKind::Failure {
                self.decided.insert(info.job_id.clone(), self.mono());
            }
            if self.memory.decisions {
                self.decisions.insert(info.job_id.clone(), (**info).clone());
            }
        }
        if self.memory.callbacks {
            self.callbacks.push(callback);
        }
    }
}

/// A call that was refused, as the driver of the policy would tell it.
fn refused(refusal: greenroom_types::call::Refusal) -> CallFailure {
    CallFailure::Refused(refusal)
}
