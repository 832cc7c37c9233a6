//! The deadlines of the Manager, on the monotonic clock: what to propose and what to say again when
//! nothing happens.
//!
//! A deadline is a function of the ledger's state; the keeper only remembers since when each one
//! runs. It is not replicated: a new one begins every deadline anew, so that a restart or a takeover
//! gives nothing up early (CLUST-17). It decides nothing by itself: what it proposes is a
//! [`Command`], and the ledger looks again whether the reason still holds.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::bundle::BundleState;
use greenroom_types::node::{InstanceState, NodeState, StartPhase};
use greenroom_types::{BundleId, Millis, Mono, NodeId, Now, StartId, Wall};
use serde::{Deserialize, Serialize};

use crate::change::Subject;
use crate::command::{Command, Due, Link};
use crate::ledger::Ledger;
use crate::order::{Order, ProviderTask};

/// Durations of all waits, with the defaults of the specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KeeperSettings {
    /// An unreachable node is given up after this (MNODE-11).
    pub drop_grace_ms: Millis,
    /// A given-up node is stopped after this much more (MNODE-12).
    pub keepalive_ms: Millis,
    /// A machine may be pending at its provider for this long (MNODE-06).
    pub pending_ms: Millis,
    /// A running machine's worker must be dialled within this (MNODE-06).
    pub startup_ms: Millis,
    /// An open stream must bring a valid hello within this (MNODE-06).
    pub hello_ms: Millis,
    /// A worker that called in must be dialled within this (LOCAL-09).
    pub dial_ms: Millis,
    /// A provision message without answer is sent again after this (JOB-19).
    pub provision_ms: Millis,
    /// How often it is sent again (JOB-19).
    pub provision_repeats: u32,
    /// A stop without report is repeated this much after its grace (JOB-26).
    pub stop_ms: Millis,
    /// A stop that is stuck is repeated this often (JOB-26).
    pub stuck_ms: Millis,
    /// A deleted job's instance may be out of reach for this long (BDL-19).
    pub unreachable_ms: Millis,
    /// A stopped node stays in the record for this long (MNODE-18).
    pub forget_ms: Millis,
    /// A node may go on for this long with what runs elsewhere and it was told to stop (MNODE-16).
    pub duplicate_ms: Millis,
    /// What is found after a restore and not in the record is kept for this long (STORE-11).
    pub unrecorded_ms: Millis,
    /// A forward step of the wall clock above this is not believed at once (BSTOP-03).
    pub clock_step_ms: Millis,
    /// It is believed after this (BSTOP-03).
    pub clock_confirm_ms: Millis,
    /// When this process itself ran this much late, waits for others are extended by it (MNODE-09).
    pub stall_ms: Millis,
}

/// What became of the attempt to reach a worker, as its dialler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// A stream is open; no hello yet.
    Opened,
    /// It closed again, or could not be opened.
    Closed,
}

/// What is due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wakeup {
    /// To be proposed, in this order.
    pub commands: Vec<Command>,
    /// To be sent again; nothing is committed for them.
    pub orders: Vec<Order>,
}

/// The deadlines that run.
#[derive(Clone, Debug)]
pub struct Keeper {
    settings: KeeperSettings,
    /// Deadlines by what they are about.
    armed: BTreeMap<Subject, BTreeMap<Wait, Armed>>,
    /// The same by the moment at which they are due.
    queue: BTreeSet<(Mono, Subject, Wait)>,
    /// Bundles with a stop time, by that time.
    stops: BTreeSet<(Wall, BundleId)>,
    stop_of: BTreeMap<BundleId, Wall>,
    /// Nodes to which a stream is open.
    open: BTreeSet<NodeId>,
    stuck: BTreeSet<StartId>,
    clock: Clock,
    /// Nothing is reaped on account of what was before this (IDLE-04).
    reaps_from: Mono,
    /// When the driver last came by.
    seen: Mono,
    /// To be given at the next [`Keeper::due`].
    ready: Wakeup,
}

/// What is waited for. With it stands what it was begun for, so that a second wait of the same kind
/// is a new one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    DropGrace(u64),
    Keepalive(u64),
    Pending(u64),
    Startup(u64),
    Dial(u64),
    Hello(u64),
    Forget(u64),
    /// The turn, and the mark of the empty time.
    Idle(u64, u64),
    Provision,
    Stop(Wall),
    Unreachable,
    BundleAgain,
    Stray(StartId),
    Restore,
}

#[derive(Clone, Copy, Debug)]
struct Armed {
    due: Mono,
    repeats: u32,
}

/// The empty time of nodes begins this long after the keeper's own begin (IDLE-04), so that a restart
/// reaps nothing that it has not reconciled yet.
const SETTLE: Millis = Millis(60_000);

/// How soon what was proposed is proposed again while the ledger shows no effect of it: a proposal
/// may be lost with a primary or a quorum.
const AGAIN: Millis = Millis(1_000);

/// The wall clock as far as it is believed (BSTOP-03).
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// What both clocks said last, the wall clock as believed.
    believed: Now,
    /// A forward step above the limit, and until when it is doubted.
    doubt: Option<(i64, Mono)>,
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            drop_grace_ms: Millis(3_000),
            keepalive_ms: Millis(30_000),
            pending_ms: Millis(300_000),
            startup_ms: Millis(300_000),
            hello_ms: Millis(30_000),
            dial_ms: Millis(60_000),
            provision_ms: Millis(5_000),
            provision_repeats: 3,
            stop_ms: Millis(30_000),
            stuck_ms: Millis(60_000),
            unreachable_ms: Millis(60_000),
            forget_ms: Millis(3_600_000),
            duplicate_ms: Millis(300_000),
            unrecorded_ms: Millis(600_000),
            clock_step_ms: Millis(60_000),
            clock_confirm_ms: Millis(30_000),
            stall_ms: Millis(1_000),
        }
    }
}

// === impl Keeper ===

impl Keeper {
    /// Begins every deadline of this state now. Running nodes have no stream yet: they are proposed
    /// as dropped at the first [`Keeper::due`], so that their grace begins; machines that are to be
    /// ended, and slots that are to be dialled, are ordered again.
    pub fn new(settings: KeeperSettings, now: Now, ledger: &Ledger) -> Self {
        let mut keeper = Self {
            settings,
            armed: BTreeMap::new(),
            queue: BTreeSet::new(),
            stops: BTreeSet::new(),
            stop_of: BTreeMap::new(),
            open: BTreeSet::new(),
            stuck: BTreeSet::new(),
            clock: Clock {
                believed: now,
                doubt: None,
            },
            reaps_from: now.mono + SETTLE,
            seen: now.mono,
            ready: Wakeup::default(),
        };
        let mut subjects = Vec::new();
        for node in ledger.nodes() {
            let node_id = &node.metadata.node_id;
            subjects.push(Subject::Node(node_id.clone()));
            if node.is_running() {
                keeper.ready.commands.push(Command::Link {
                    node_id: node_id.clone(),
                    link: Link::Dropped,
                });
            }
            keeper.ready.orders.extend(standing_order(node));
        }
        subjects.extend(
            ledger
                .instances()
                .map(|instance| Subject::Instance(instance.start_id.clone())),
        );
        subjects.extend(ledger.bundle_ids().cloned().map(Subject::Bundle));
        subjects.push(Subject::Restore);
        keeper.observe(now, ledger, &subjects);
        keeper
    }

    /// Looks again at what an apply touched. Call it after every apply, with
    /// [`crate::Applied::touched`].
    pub fn observe(&mut self, now: Now, ledger: &Ledger, touched: &[Subject]) {
        self.forgive_stall(now.mono);
        for subject in touched {
            match subject {
                Subject::Node(node_id) => {
                    let wanted = self.node_waits(now.mono, ledger, node_id);
                    self.set(now.mono, subject, wanted);
                }
                Subject::Instance(start_id) => {
                    let wanted = self.instance_waits(ledger, start_id);
                    if !wanted.iter().any(|(wait, _)| matches!(wait, Wait::Stop(_))) {
                        self.stuck.remove(start_id);
                    }
                    self.set(now.mono, subject, wanted);
                }
                Subject::Bundle(bundle_id) => {
                    self.set(now.mono, subject, Vec::new());
                    self.set_stop(ledger, bundle_id);
                }
                // The lease clock's.
                Subject::Lease(_) | Subject::BundleLease(_) | Subject::LeasePause => {}
                Subject::Restore => {
                    let wait = (Wait::Restore, self.settings.unrecorded_ms);
                    let wanted = ledger.is_restoring().then_some(wait);
                    self.set(now.mono, subject, wanted.into_iter().collect());
                }
            }
        }
    }

    /// Takes news of the line to a node's worker.
    pub fn line(&mut self, now: Now, ledger: &Ledger, node_id: &NodeId, line: Line) {
        match line {
            Line::Opened => self.open.insert(node_id.clone()),
            Line::Closed => self.open.remove(node_id),
        };
        self.observe(now, ledger, &[Subject::Node(node_id.clone())]);
    }

    /// The earliest moment at which something may be due. A driver also calls [`Keeper::due`] at
    /// least once a second, because a wall clock that was set announces itself by nothing.
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.ready != Wakeup::default() {
            return Some(self.clock.believed.mono);
        }
        let first = self.queue.first().map(|(due, ..)| *due);
        let stop = self.stops.first().map(|(stop_at, _)| {
            let ahead = stop_at.since(self.clock.believed.wall).max(0);
            self.clock.believed.mono + Millis(ahead.unsigned_abs())
        });
        let doubt = stop.and(self.clock.doubt).map(|(_, until)| until);
        first.into_iter().chain(stop).chain(doubt).min()
    }

    /// What is due now.
    pub fn due(&mut self, now: Now, ledger: &Ledger) -> Wakeup {
        self.clock.read(now, &self.settings);
        self.forgive_stall(now.mono);
        let mut wakeup = std::mem::take(&mut self.ready);
        while let Some((due, subject, wait)) = self.queue.first().cloned() {
            if due > now.mono {
                break;
            }
            self.queue.remove(&(due, subject.clone(), wait.clone()));
            self.ring(now.mono, ledger, &subject, wait, &mut wakeup);
        }
        while let Some((stop_at, bundle_id)) = self.stops.first().cloned() {
            if stop_at > self.clock.believed.wall {
                break;
            }
            self.stops.remove(&(stop_at, bundle_id.clone()));
            self.stop_of.remove(&bundle_id);
            let again = vec![(Wait::BundleAgain, AGAIN)];
            self.set(now.mono, &Subject::Bundle(bundle_id.clone()), again);
            wakeup
                .commands
                .push(Command::Tick(Due::BundleStop { bundle_id, stop_at }));
        }
        wakeup
    }

    /// Stops that are overdue although they were repeated (JOB-26).
    pub fn stuck_stops(&self) -> impl Iterator<Item = &StartId> {
        self.stuck.iter()
    }

    /// What a node waits for in its state, and how long.
    fn node_waits(&self, now: Mono, ledger: &Ledger, node_id: &NodeId) -> Vec<(Wait, Millis)> {
        let Some(node) = ledger.node(node_id) else {
            return Vec::new();
        };
        let s = &self.settings;
        let strays = node.strays.iter().filter(|(_, it)| !it.kept && !it.overdue);
        let mut waits: Vec<_> = strays
            .filter(|_| node.is_running())
            .map(|(start_id, _)| (Wait::Stray(start_id.clone()), s.duplicate_ms))
            .collect();
        let turn = node.turn;
        let wait = match node.state {
            NodeState::Starting if self.open.contains(node_id) => (Wait::Hello(turn), s.hello_ms),
            NodeState::Starting if !node.is_elastic() => (Wait::Dial(turn), s.dial_ms),
            NodeState::Starting => match node.phase {
                StartPhase::Requested => (Wait::Pending(turn), s.pending_ms),
                StartPhase::Booting => (Wait::Startup(turn), s.startup_ms),
            },
            NodeState::Running => match ledger.idle_expiry(node) {
                Some(expiry) if ledger.is_idle(node) => {
                    let settling = self.reaps_from.0.saturating_sub(now.0);
                    (
                        Wait::Idle(turn, node.idle_mark),
                        Millis(expiry.0 + settling),
                    )
                }
                _ => return waits,
            },
            NodeState::Unreachable => (Wait::DropGrace(turn), s.drop_grace_ms),
            NodeState::Stopping if node.given_up || !node.is_elastic() => {
                (Wait::Keepalive(turn), s.keepalive_ms)
            }
            NodeState::Stopping => return waits,
            NodeState::Stopped if node.machine_gone || !node.is_elastic() => {
                (Wait::Forget(turn), s.forget_ms)
            }
            NodeState::Stopped => return waits,
        };
        waits.push(wait);
        waits
    }

    fn instance_waits(&self, ledger: &Ledger, start_id: &StartId) -> Vec<(Wait, Millis)> {
        let Some(instance) = ledger.instance(start_id) else {
            return Vec::new();
        };
        let s = &self.settings;
        let heard = ledger
            .node(&instance.node_id)
            .is_some_and(|node| node.is_running());
        let deleting = ledger
            .job(&instance.key.job_id)
            .is_some_and(|job| job.deleting);
        let mut waits = Vec::new();
        if deleting && !heard {
            waits.push((Wait::Unreachable, s.unreachable_ms));
        }
        match (instance.state, instance.stop) {
            (InstanceState::Stopping, Some(stop)) if heard => {
                let wait = Millis(stop.grace_ms.0 + s.stop_ms.0);
                waits.push((Wait::Stop(stop.asked_at), wait));
            }
            (InstanceState::Provisioned, None)
                if heard && instance.delivered && !instance.accepted =>
            {
                waits.push((Wait::Provision, s.provision_ms));
            }
            _ => {}
        }
        waits
    }

    /// Keeps the waits that run already, begins new ones, ends those no longer wanted.
    fn set(&mut self, now: Mono, subject: &Subject, wanted: Vec<(Wait, Millis)>) {
        let known = self.armed.remove(subject).unwrap_or_default();
        for (wait, armed) in &known {
            if !wanted.iter().any(|(other, _)| other == wait) {
                self.queue
                    .remove(&(armed.due, subject.clone(), wait.clone()));
            }
        }
        let mut armed = BTreeMap::new();
        for (wait, length) in wanted {
            let fresh = Armed {
                due: now + length,
                repeats: 0,
            };
            let entry = known.get(&wait).copied().unwrap_or(fresh);
            self.queue
                .insert((entry.due, subject.clone(), wait.clone()));
            armed.insert(wait, entry);
        }
        if !armed.is_empty() {
            self.armed.insert(subject.clone(), armed);
        }
    }

    fn set_stop(&mut self, ledger: &Ledger, bundle_id: &BundleId) {
        if let Some(old) = self.stop_of.remove(bundle_id) {
            self.stops.remove(&(old, bundle_id.clone()));
        }
        let stop_at = ledger
            .bundle_record(bundle_id)
            .filter(|bundle| bundle.state == BundleState::Live)
            .and_then(|bundle| bundle.stop_at);
        if let Some(stop_at) = stop_at {
            self.stop_of.insert(bundle_id.clone(), stop_at);
            self.stops.insert((stop_at, bundle_id.clone()));
        }
    }

    /// A deadline has come. It is set once more, and ends when the ledger no longer gives a reason
    /// for it.
    fn ring(
        &mut self,
        now: Mono,
        ledger: &Ledger,
        subject: &Subject,
        wait: Wait,
        wakeup: &mut Wakeup,
    ) {
        match subject {
            Subject::Node(node_id) => {
                if let Wait::Stray(start_id) = &wait
                    && !ledger.is_duplicate(node_id, start_id)
                {
                    let length = self.settings.duplicate_ms;
                    self.again(now, subject, wait, length);
                    return;
                }
                self.again(now, subject, wait.clone(), AGAIN);
                let link = match wait {
                    Wait::DropGrace(_) => Link::GraceOver,
                    Wait::Keepalive(_) => Link::KeepaliveOver,
                    Wait::Pending(_) => Link::PendingOver,
                    Wait::Startup(_) | Wait::Dial(_) => Link::StartupOver,
                    Wait::Hello(_) => Link::HelloOver,
                    Wait::Idle(_, mark) => {
                        let node_id = node_id.clone();
                        let due = Due::Idle { node_id, mark };
                        wakeup.commands.push(Command::Tick(due));
                        return;
                    }
                    Wait::Stray(start_id) => {
                        let node_id = node_id.clone();
                        let due = Due::StrayOver { node_id, start_id };
                        wakeup.commands.push(Command::Tick(due));
                        return;
                    }
                    _ => {
                        let due = Due::ForgetNode(node_id.clone());
                        wakeup.commands.push(Command::Tick(due));
                        return;
                    }
                };
                wakeup.commands.push(Command::Link {
                    node_id: node_id.clone(),
                    link,
                });
            }
            Subject::Instance(start_id) => match wait {
                Wait::Provision => self.repeat_provision(now, ledger, start_id, wakeup),
                Wait::Stop(_) => self.repeat_stop(now, ledger, start_id, wait, wakeup),
                _ => {
                    self.again(now, subject, wait, AGAIN);
                    let due = Due::UnreachableOver(start_id.clone());
                    wakeup.commands.push(Command::Tick(due));
                }
            },
            Subject::Bundle(bundle_id) => {
                self.armed.remove(subject);
                self.set_stop(ledger, bundle_id);
            }
            Subject::Restore => {
                self.again(now, subject, wait, AGAIN);
                wakeup.commands.push(Command::Tick(Due::RestoreOver));
            }
            Subject::Lease(_) | Subject::BundleLease(_) | Subject::LeasePause => {}
        }
    }

    /// JOB-19.
    fn repeat_provision(
        &mut self,
        now: Mono,
        ledger: &Ledger,
        start_id: &StartId,
        wakeup: &mut Wakeup,
    ) {
        let subject = Subject::Instance(start_id.clone());
        let length = self.settings.provision_ms;
        let repeats = self.again(now, &subject, Wait::Provision, length);
        if repeats > self.settings.provision_repeats {
            let due = Due::ProvisionUnanswered(start_id.clone());
            wakeup.commands.push(Command::Tick(due));
        } else {
            wakeup.orders.extend(ledger.provision_order(start_id));
        }
    }

    /// JOB-26: again with grace 0; stuck when that did not help either.
    fn repeat_stop(
        &mut self,
        now: Mono,
        ledger: &Ledger,
        start_id: &StartId,
        wait: Wait,
        wakeup: &mut Wakeup,
    ) {
        let subject = Subject::Instance(start_id.clone());
        let repeats = self.again(now, &subject, wait, self.settings.stuck_ms);
        if repeats > 1 {
            self.stuck.insert(start_id.clone());
        }
        wakeup.orders.extend(ledger.stop_order(start_id, Millis(0)));
    }

    /// Sets a wait that rang once more, and tells how often it rang.
    fn again(&mut self, now: Mono, subject: &Subject, wait: Wait, length: Millis) -> u32 {
        let Some(armed) = self
            .armed
            .get_mut(subject)
            .and_then(|waits| waits.get_mut(&wait))
        else {
            return 0;
        };
        armed.repeats += 1;
        armed.due = now + length;
        self.queue.insert((armed.due, subject.clone(), wait));
        armed.repeats
    }

    /// Time in which this process itself did not run is no silence of others (MNODE-09): where a
    /// deadline was missed by much, waits for workers are put off by the whole pause.
    fn forgive_stall(&mut self, now: Mono) {
        let pause = now - std::mem::replace(&mut self.seen, now);
        let late = self.queue.first().map_or(Millis(0), |(due, ..)| now - *due);
        if late <= self.settings.stall_ms {
            return;
        }
        let waiting: Vec<_> = self
            .queue
            .iter()
            .filter(|(_, _, wait)| matches!(wait, Wait::DropGrace(_) | Wait::Keepalive(_)))
            .cloned()
            .collect();
        for (due, subject, wait) in waiting {
            let Some(armed) = self
                .armed
                .get_mut(&subject)
                .and_then(|waits| waits.get_mut(&wait))
            else {
                continue;
            };
            armed.due = due + pause;
            self.queue.remove(&(due, subject.clone(), wait.clone()));
            self.queue.insert((due + pause, subject, wait));
        }
    }
}

/// What has to be ordered again at a start, because orders are not stored.
fn standing_order(node: &crate::state::Node) -> Option<Order> {
    let node_id = node.metadata.node_id.clone();
    let ends = matches!(node.state, NodeState::Stopping | NodeState::Stopped);
    let task = match (&node.machine, node.state) {
        (Some(_), _) if ends && !node.machine_gone && !node.awaits_return() => {
            ProviderTask::TerminateMachine {
                after_ms: Millis(0),
            }
        }
        (Some(spec), NodeState::Starting) if node.phase == StartPhase::Requested => {
            ProviderTask::CreateMachine(spec.clone())
        }
        (Some(_), _) => return None,
        (None, _) if node.wants_stream() && !node.address.is_empty() => {
            return Some(Order::Dial {
                node_id,
                address: node.address.clone(),
            });
        }
        (None, _) => return None,
    };
    Some(Order::Provider { node_id, task })
}

// === impl Clock ===

impl Clock {
    /// Takes a reading. The believed wall clock follows the real one, but for a forward step above
    /// the limit, which is doubted for a while and then believed if it is still there.
    fn read(&mut self, now: Now, settings: &KeeperSettings) {
        let passed = i64::try_from((now.mono - self.believed.mono).0).unwrap_or(i64::MAX);
        let expected = self.believed.wall.plus(passed);
        let ahead = now.wall.since(expected);
        let limit = i64::try_from(settings.clock_step_ms.0).unwrap_or(i64::MAX);
        let doubted = ahead > limit;
        let wall = match self.doubt {
            _ if !doubted => {
                self.doubt = None;
                now.wall
            }
            Some((_, until)) if now.mono >= until => {
                self.doubt = None;
                now.wall
            }
            // A step on top of a doubted one is doubted anew.
            Some((step, _)) if ahead - step > limit => {
                self.doubt = Some((ahead, now.mono + settings.clock_confirm_ms));
                expected
            }
            Some(_) => expected,
            None => {
                self.doubt = Some((ahead, now.mono + settings.clock_confirm_ms));
                expected
            }
        };
        self.believed = Now {
            mono: now.mono,
            wall,
        };
    }
}
