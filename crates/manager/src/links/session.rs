//! One session with a worker: connect, prove, hear the hello, then carry orders out and reports in
//! until the stream ends, falls silent, or is closed.

mod intake;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use greenroom_ledger::{Command, Line, Link, Report, WorkerOrder};
use greenroom_proto::convert::call::PROTOCOL_MAJOR;
use greenroom_proto::worker::node_controller_message::Message as Out;
use greenroom_proto::worker::worker_message::Message as In;
use greenroom_proto::worker::{
    NodeControllerMessage, WorkerHello, WorkerHelloResponse, WorkerMessage,
};
use greenroom_types::job::JobInfo;
use greenroom_types::node::InstanceState;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::Streaming;

use self::intake::{WAITING_MAX, recorded};
use super::Mail;
use super::access::{self, Roles};
use super::dial::Dialler;
use super::open::{self, Proven};
use super::pace::Pace;
use super::published;
use super::wire::{self, Said};
use crate::conductor;

/// An order that the stream does not take for this long ends the session: the worker reads no more.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How often silence is looked at.
const TICK: Duration = Duration::from_millis(250);
/// News of one instance passed on in a second (EVT-09).
const INFO_PER_SECOND: u32 = 50;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The node is no longer wanted.
    Unwanted,
    /// It was closed on purpose and is to be dialled again.
    Redial,
    /// There was a hello and then the stream broke or fell silent.
    Dropped,
    /// There was no stream, or no hello on it.
    NotReached,
    /// The other side could not prove that it is this node (MNODE-08).
    NotProven,
}

struct Session<'a> {
    dialler: &'a mut Dialler,
    outbox: mpsc::Sender<NodeControllerMessage>,
    inbox: Streaming<WorkerMessage>,
    /// Orders of commits before this one were brought level by the hello.
    since: u64,
    /// Minor of the worker's protocol (HELLO-06).
    minor: u32,
    info: InfoGate,
    roles: Roles,
    /// The worker speaks the published protocol (WORK-04).
    is_published: bool,
    /// Such a worker was told to end: its node is, once nothing runs there.
    is_leaving: bool,
    /// What the worker said and is not taken in yet, in its order.
    waiting: VecDeque<Said>,
    /// The commit of the report that was taken in last.
    recording: Option<BoxFuture<'static, Result<(), Ended>>>,
}

/// Lets through a bounded number of pieces of news per second and start.
#[derive(Debug, Default)]
struct InfoGate {
    second: u64,
    passed: std::collections::BTreeMap<greenroom_types::StartId, u32>,
}

/// Runs one session to its end.
pub(super) async fn run(dialler: &mut Dialler) -> Ended {
    let opened = tokio::select! {
        opened = open::open(dialler.engine.clone(), dialler.settings, &dialler.node_id, &dialler.address) => opened,
        ended = unwanted(&mut dialler.mail) => return ended,
    };
    let Some((outbox, inbox, proven)) = opened else {
        return Ended::NotReached;
    };
    dialler.note(Line::Opened);
    dialler.overflow.store(false, Ordering::Relaxed);
    let mut session = Session {
        dialler,
        outbox,
        inbox,
        since: u64::MAX,
        minor: 0,
        info: InfoGate::default(),
        roles: Roles::default(),
        is_published: proven.is_published,
        is_leaving: false,
        waiting: VecDeque::new(),
        recording: None,
    };
    let ended = session.run(&proven).await;
    dialler.note(Line::Closed);
    ended
}

/// Resolves when the line is closed. Orders that come before the hello are left out.
async fn unwanted(mail: &mut mpsc::Receiver<Mail>) -> Ended {
    loop {
        match mail.recv().await {
            None | Some(Mail::Close { redial: false }) => return Ended::Unwanted,
            Some(Mail::Close { redial: true }) => return Ended::Redial,
            Some(Mail::Order { .. } | Mail::Called) => {}
        }
    }
}

// === impl Dialler ===

impl Dialler {
    fn note(&self, line: Line) {
        // The conductor is gone only when the Manager ends.
        let _ = self.notes.send((self.node_id.clone(), line));
    }
}

// === impl Session ===

impl Session<'_> {
    async fn run(&mut self, proven: &Proven) -> Ended {
        let greeted = match self.hello().await {
            Ok(hello) => match self.check(proven, &hello) {
                Ok(()) => self.greet(hello).await,
                Err(ended) => Err(ended),
            },
            Err(ended) => Err(ended),
        };
        if let Err(ended) = greeted {
            return ended;
        }
        let ended = self.carry().await;
        if let Some(recording) = self.recording.take() {
            // It stands before the end of the stream, whether or not anybody waits for it.
            let _ = recording.await;
        }
        // However it ended: as long as the node is taken for running, somebody must hear it.
        self.dialler.report_drop().await;
        ended
    }

    /// Waits for the hello. The keeper ends a node whose first hello does not come (MNODE-06), which
    /// closes the line; for one that was heard before, the stream is closed here.
    async fn hello(&mut self) -> Result<Box<WorkerHello>, Ended> {
        let heard = tokio::select! {
            heard = self.inbox.message() => heard,
            ended = unwanted(&mut self.dialler.mail) => return Err(ended),
            () = tokio::time::sleep(self.dialler.settings.hello) => return Err(Ended::NotReached),
        };
        let node_id = &self.dialler.node_id;
        match heard {
            Ok(Some(WorkerMessage {
                message: Some(In::Hello(hello)),
                ..
            })) => Ok(Box::new(hello)),
            Ok(Some(_)) => {
                tracing::warn!(%node_id, "a worker did not begin with a hello; the stream is closed");
                Err(Ended::NotProven)
            }
            Ok(None) => Err(Ended::NotReached),
            Err(status) if status.code() == tonic::Code::Unauthenticated => {
                tracing::warn!(%node_id, text = status.message(), "a worker does not accept this Manager's proof");
                Err(Ended::NotProven)
            }
            Err(_) => Err(Ended::NotReached),
        }
    }

    /// Whether the other side is the worker of this node, and speaks our protocol (MNODE-08,
    /// HELLO-06).
    fn check(&mut self, proven: &Proven, hello: &WorkerHello) -> Result<(), Ended> {
        let node_id = &self.dialler.node_id;
        let named = hello
            .node_metadata
            .as_ref()
            .and_then(|node| node.node_id.as_ref());
        if named.is_none_or(|named| named.node_id != node_id.as_str()) {
            tracing::warn!(%node_id, "a hello names another node; the stream is closed");
            return Err(Ended::NotProven);
        }
        let checked = proven.check(node_id, &hello.shared_secret);
        if let Err(error) = checked {
            tracing::warn!(%node_id, %error, "a worker's hello is not proven; the stream is closed");
            return Err(Ended::NotProven);
        }
        if proven.is_published {
            // It names no machine.
            return Ok(());
        }
        let bound = self.dialler.engine.read(|ledger| {
            let slot = ledger.slot(node_id)?;
            (!slot.machine_id.is_empty()).then(|| slot.machine_id.clone())
        });
        if bound.is_some_and(|bound| bound != hello.machine_id) {
            tracing::warn!(%node_id, "a hello comes from another machine; the stream is closed");
            return Err(Ended::NotProven);
        }
        Ok(())
    }

    /// Records the hello and answers it; then both sides are level.
    async fn greet(&mut self, hello: Box<WorkerHello>) -> Result<(), Ended> {
        let node_id = self.dialler.node_id.clone();
        if hello.protocol_major != PROTOCOL_MAJOR && !self.is_published {
            tracing::error!(
                %node_id, major = hello.protocol_major, minor = hello.protocol_minor,
                "a worker speaks another major protocol and is not served: install one of our major"
            );
            let protocol = (hello.protocol_major, hello.protocol_minor);
            if self.dialler.refused.replace(protocol) != Some(protocol) {
                let (major, minor) = protocol;
                let payload = serde_json::json!({"node": node_id, "major": major, "minor": minor});
                self.dialler.engine.note("worker_protocol", payload).await;
            }
            // Ends a node that starts; one that was heard before is given up in its time.
            let command = Command::Link {
                node_id,
                link: Link::HelloOver,
            };
            conductor::propose(self.dialler.engine.clone(), command).await;
            return Err(Ended::NotReached);
        }
        if !self.is_published {
            self.minor = hello.protocol_minor;
        }
        self.roles.heard(hello.replica_version);
        self.dialler.engine.acks().forget(&node_id);
        self.dialler.engine.leases().forget(&node_id);
        let read = match self.is_published {
            true => {
                let read = |ledger: &_| published::read_hello(ledger, &node_id, *hello);
                self.dialler.engine.read(read)
            }
            false => wire::read_hello(*hello),
        };
        let hello = read.map_err(|error| {
            tracing::warn!(%node_id, %error, "a hello cannot be read; the stream is closed");
            Ended::NotReached
        })?;
        let command = Command::Report {
            node_id: node_id.clone(),
            report_id: 0,
            report: Box::new(Report::Hello(Box::new(hello))),
        };
        match self.dialler.engine.propose(command).await {
            Ok((revision, answer)) => match answer.result {
                Ok(_) => self.since = revision,
                Err(refusal) => {
                    tracing::warn!(%node_id, %refusal, "a worker's hello was refused");
                    return Err(Ended::NotReached);
                }
            },
            Err(error) => {
                tracing::warn!(%node_id, %error, "a worker's hello could not be recorded");
                return Err(Ended::NotReached);
            }
        }
        tracing::info!(%node_id, address = self.dialler.address, "worker connected");
        // Only now is it known up to where the worker's journal is stored: a journal that began anew
        // takes the number back.
        let acked = self
            .dialler
            .engine
            .read(|ledger| ledger.node(&node_id).map(|node| node.report_acked));
        let identity = self.dialler.engine.store().identity();
        let license = self.dialler.engine.license().clone();
        let response = NodeControllerMessage {
            generation: identity.generation,
            message: Some(Out::HelloResponse(WorkerHelloResponse {
                generation: identity.generation,
                member: self.dialler.engine.member().to_owned(),
                report_acked: acked.unwrap_or_default(),
                license: license.text,
                signature: license.signature,
                ..WorkerHelloResponse::default()
            })),
            ..NodeControllerMessage::default()
        };
        if let Err(ended) = self.send(response).await {
            self.dialler.report_drop().await;
            return Err(ended);
        }
        Ok(())
    }

    async fn carry(&mut self) -> Ended {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Silence is the sum of ticks in which this process ran: a stall of its own is not the
        // worker's silence (MNODE-09).
        let mut silent = Duration::ZERO;
        let mut last_tick = Instant::now();
        let mut pace = Pace::new(last_tick);
        let mut planes = self.dialler.engine.planes().subscribe();
        // Where control planes are is told at the hello, if anybody ever said (CTRL-02).
        if planes.borrow().version > 0 {
            planes.mark_changed();
        }
        loop {
            let closed_until = pace.closed_until(Instant::now());
            let is_full = self.waiting.len() >= WAITING_MAX;
            if closed_until.is_some() && pace.tell_once() {
                tracing::warn!(node_id = %self.dialler.node_id, "a worker floods this Manager with messages and is slowed");
            }
            // Orders go first: reports without end must not hold back a stop (LIM-08).
            tokio::select! {
                biased;
                mail = self.dialler.mail.recv() => {
                    let order = match mail {
                        None | Some(Mail::Close { redial: false }) => return Ended::Unwanted,
                        Some(Mail::Close { redial: true }) => return Ended::Redial,
                        Some(Mail::Order { revision, order }) if revision >= self.since => order,
                        Some(Mail::Order { .. } | Mail::Called) => continue,
                    };
                    // Behind one that was lost none may go out: the hello says them in order again.
                    if self.dialler.overflow.load(Ordering::Relaxed) {
                        return Ended::Dropped;
                    }
                    if self.is_published {
                        if let Err(ended) = self.tell_published(*order).await {
                            return ended;
                        }
                        continue;
                    }
                    if self.minor < wire::minor_of(&order) {
                        tracing::warn!(
                            node_id = %self.dialler.node_id, minor = self.minor,
                            "an order is not known to the worker's protocol and is left out"
                        );
                        continue;
                    }
                    if let Some(message) = self.message_of(*order)
                        && let Err(ended) = self.send(message).await
                    {
                        return ended;
                    }
                }
                Ok(()) = planes.changed(), if self.minor >= wire::ACCESS_MINOR => {
                    let message = access::planes(&planes.borrow_and_update());
                    if let Err(ended) = self.send(message).await {
                        return ended;
                    }
                }
                recorded = recorded(&mut self.recording) => {
                    self.recording = None;
                    let next = match recorded {
                        Ok(()) => self.finish_published().await,
                        Err(ended) => Err(ended),
                    };
                    if let Err(ended) = next {
                        return ended;
                    }
                    if let Err(ended) = self.take_in().await {
                        return ended;
                    }
                }
                _ = tick.tick() => {
                    if self.dialler.overflow.load(Ordering::Relaxed) {
                        return Ended::Dropped;
                    }
                    silent += last_tick.elapsed().min(2 * TICK);
                    last_tick = Instant::now();
                    if closed_until.is_some() || is_full {
                        // It has more to say than is read: it is alive.
                        silent = Duration::ZERO;
                    }
                    if silent >= self.dialler.settings.silence {
                        tracing::warn!(node_id = %self.dialler.node_id, "worker silent; its stream is dropped");
                        return Ended::Dropped;
                    }
                }
                () = tokio::time::sleep_until(closed_until.unwrap_or(last_tick)), if closed_until.is_some() => {}
                heard = self.inbox.message(), if closed_until.is_none() && !is_full => match heard {
                    Ok(Some(message)) => {
                        silent = Duration::ZERO;
                        pace.count(Instant::now());
                        if let Err(ended) = self.hear(message).await {
                            return ended;
                        }
                    }
                    Ok(None) => return Ended::Dropped,
                    Err(status) => {
                        tracing::debug!(node_id = %self.dialler.node_id, text = status.message(), "a worker's stream broke");
                        return Ended::Dropped;
                    }
                },
            }
        }
    }

    /// Tells an order to a worker of the published protocol. It acknowledges none, so a start that went out
    /// counts as taken: what it does not have at its next hello is over (WORK-04).
    async fn tell_published(&mut self, order: WorkerOrder) -> Result<(), Ended> {
        let node_id = self.dialler.node_id.clone();
        self.is_leaving |= matches!(order, WorkerOrder::Shutdown { .. });
        let put = |ledger: &_| published::put(ledger, &node_id, order);
        for order in self.dialler.engine.read(put) {
            let taken = match &order {
                WorkerOrder::Provision(job) => Some(job.instance.clone()),
                _ => None,
            };
            if let Some(message) = self.message_of(order) {
                self.send(message).await?;
            }
            if let Some(instance) = taken {
                self.record(0, Box::new(Report::Accepted(instance))).await?;
            }
        }
        self.finish_published().await
    }

    /// A worker that cannot say goodbye is over with the last of what it was told to stop.
    async fn finish_published(&mut self) -> Result<(), Ended> {
        let node_id = &self.dialler.node_id;
        let is_busy =
            |ledger: &greenroom_ledger::Ledger| ledger.instances_on(node_id).next().is_some();
        if !self.is_leaving || self.dialler.engine.read(is_busy) {
            return Ok(());
        }
        let reason = String::new();
        self.record(0, Box::new(Report::Goodbye { reason })).await
    }

    /// The message of an order. Only here, on its way to the worker that needs it, is a secret in the
    /// clear (SEC-16, DISC-03).
    fn message_of(&mut self, order: WorkerOrder) -> Option<NodeControllerMessage> {
        let engine = &self.dialler.engine;
        match &order {
            WorkerOrder::Discovery(order) => {
                let node_id = &self.dialler.node_id;
                let message = access::discovery(engine.vault(), node_id, order);
                if message.is_none() {
                    tracing::error!(%node_id, "the discovery fleet's secrets cannot be opened");
                }
                return message;
            }
            WorkerOrder::AccessReplica(order) => return self.roles.choose(order),
            _ => {}
        }
        let order = engine.vault().open_order(order);
        let mut message = wire::write_order(&order)?;
        engine.payloads().redeem_order(&order, &mut message);
        Some(message)
    }

    /// The worker says what it holds; what it still lacks of the access roles is sent whole (REPL-04).
    async fn hear_access(&mut self, replica: u64, discovery: u64) -> Result<(), Ended> {
        let engine = &self.dialler.engine;
        engine.acks().heard(&self.dialler.node_id, discovery);
        self.roles.heard(replica);
        let stored = engine.read(greenroom_ledger::Ledger::replica_version);
        if !self.roles.lacks(stored) {
            return Ok(());
        }
        let order = engine.read(greenroom_ledger::Ledger::replica_order);
        match order.and_then(|order| self.roles.choose(&order)) {
            Some(message) => self.send(message).await,
            None => Ok(()),
        }
    }

    /// Passes news of an instance on, if it is one of this worker's (EVT-09, SEC-06).
    fn pass_on(&mut self, mut info: JobInfo) {
        let engine = &self.dialler.engine;
        if self.is_published {
            let node_id = &self.dialler.node_id;
            info.start_id = engine.read(|ledger| published::live_start(ledger, node_id, &info.key));
        }
        let state = engine.read(|ledger| {
            let instance = ledger.instance(&info.start_id)?;
            let is_here = instance.key == info.key && instance.node_id == self.dialler.node_id;
            is_here.then_some(instance.state)
        });
        let Some(state) = state else {
            tracing::debug!(
                node_id = %self.dialler.node_id, key = %info.key,
                "news of an instance that is not on the node is left out"
            );
            return;
        };
        if self
            .info
            .pass(engine.clock().mono().0 / 1_000, &info.start_id)
        {
            engine
                .hub()
                .inform(info, state == InstanceState::Provisioned);
        } else {
            engine.hub().lose_info();
        }
    }

    async fn send(&mut self, message: NodeControllerMessage) -> Result<(), Ended> {
        match timeout(SEND_LIMIT, self.outbox.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended::Dropped),
        }
    }
}

// === impl InfoGate ===

impl InfoGate {
    fn pass(&mut self, second: u64, start_id: &greenroom_types::StartId) -> bool {
        if second != self.second {
            self.second = second;
            self.passed.clear();
        }
        let passed = self.passed.entry(start_id.clone()).or_default();
        *passed += 1;
        *passed <= INFO_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_one_instance_is_bounded_per_second() {
        let mut gate = InfoGate::default();
        let (a, b) = ("a".into(), "b".into());
        assert_eq!((0..80).filter(|_| gate.pass(1, &a)).count(), 50);
        assert!(gate.pass(1, &b));
        assert!(gate.pass(2, &a));
    }
}
