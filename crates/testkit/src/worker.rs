//! A worker that speaks the controlling stream for real and runs nothing.
//!
//! It keeps what a worker keeps: instances, a journal of reports until they are acknowledged, the
//! orders it was given. Left alone it obeys: what is to be started runs at once, what is to be
//! stopped is gone at once. A test that wants to say itself what happens calls [`FakeWorker::hold`]
//! first. It checks the Manager's proof and makes its own like the real one.

mod serve;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_auth::{NodeKey, NonceMemory};
use greenroom_proto::manager::ClusterMemberRegisterRequest;
use greenroom_proto::worker::worker_message::Message;
use greenroom_proto::worker::{
    AccessAck, HeldLease, LeaseRefresh, WorkerJobFailed, WorkerJobPrepared, WorkerJobRejected,
    WorkerJobStarted, WorkerMessage,
};
use greenroom_sdk::{Client, Token};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobInfo;
use greenroom_types::node::{InstanceKey, InstanceState, RejectionCode};
use greenroom_types::{NodeId, StartId};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::order::Received;
use crate::within;

/// A worker of a test. It vanishes when it is dropped, with its connections.
pub struct FakeWorker {
    address: SocketAddr,
    token: Token,
    machine_id: String,
    state: Arc<watch::Sender<State>>,
    serving: JoinHandle<()>,
}

/// An instance that the worker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Job and role.
    pub key: InstanceKey,
    /// Where it stands.
    pub state: InstanceState,
    /// Its fencing number, 0 without lease.
    pub fence: u64,
}

/// What is wrong with what the worker says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Honesty {
    /// Nothing.
    #[default]
    Honest,
    /// It does not have the node's key, and takes any proof for good.
    WrongKey,
    /// It says the name of another node.
    WrongNode,
    /// It runs on another machine.
    WrongMachine,
    /// It speaks another major protocol.
    OtherMajor,
    /// It says no hello at all.
    Mute,
}

#[derive(Default)]
struct State {
    node_id: NodeId,
    key: Option<NodeKey>,
    nonces: NonceMemory,
    honesty: Honesty,
    /// Streams are refused.
    closed: bool,
    /// Orders are only recorded.
    holds: bool,
    /// No sign of life is sent.
    still: bool,
    /// Time between two of them; none for the shortest.
    lives_every: Option<Duration>,
    /// What it is told is not remembered.
    forgets: bool,
    inventory: NodeInventory,
    instances: BTreeMap<StartId, Held>,
    orders: Vec<Received>,
    /// Metadata and messages of every stream, as one who listens in would have them.
    heard: Vec<String>,
    /// Hellos that were answered.
    greeted: usize,
    /// Streams that were opened or refused.
    dialled: usize,
    journal: Vec<WorkerMessage>,
    last_report: u64,
    /// Number of the last refresh that only asks for an answer.
    nonce: u64,
    /// Versions that it holds.
    replica_version: u64,
    planes_version: u64,
    discovery_version: u64,
    /// How often its machine was booted again.
    boots: u64,
    /// It takes leases for paused.
    paused: bool,
    /// It says nothing when it is told that leases are paused, or run again.
    ignores_pauses: bool,
    stream: Option<Line>,
    streams: u64,
}

struct Line {
    number: u64,
    greeted: bool,
    out: mpsc::UnboundedSender<Result<WorkerMessage, Status>>,
}

// === impl FakeWorker ===

impl FakeWorker {
    /// A worker for a new slot. It has not called in yet.
    pub async fn register(client: &Client, node_name: &str) -> Self {
        let slot = client
            .register_cluster_node(node_name, "")
            .await
            .expect("a new slot");
        Self::with_token(slot.token, &format!("machine of {node_name}")).await
    }

    /// A worker with a token, on a machine of that id. It has not called in yet.
    pub async fn with_token(token: Token, machine_id: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0));
        Self::listening(listener.await.expect("a free port"), token, machine_id).await
    }

    /// A worker of another machine at the address where this one was, which is gone.
    pub async fn succeed(self, token: Token, machine_id: &str) -> Self {
        let address = self.address;
        drop(self);
        let listener = within("the address to be free", async {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
        Self::listening(listener.await, token, machine_id).await
    }

    async fn listening(listener: TcpListener, token: Token, machine_id: &str) -> Self {
        let state = Arc::new(watch::Sender::new(State::default()));
        let begun = serve::begin(Arc::clone(&state), machine_id.to_owned(), listener);
        let (address, serving) = begun.await;
        Self {
            address,
            token,
            machine_id: machine_id.to_owned(),
            state,
            serving,
        }
    }

    /// Presents the token (LOCAL-05) and keeps the answer.
    pub async fn call_in(&self, client: &Client) -> Result<NodeId, Status> {
        let answer = self.present(client).await?;
        let node_id = NodeId::new(answer.node_id);
        self.state.send_modify(|state| {
            state.node_id = node_id.clone();
            state.key = NodeKey::from_bytes(&answer.key_share);
        });
        Ok(node_id)
    }

    /// Presents the token and forgets the answer, as a worker that dies before it saves it.
    pub async fn present(
        &self,
        client: &Client,
    ) -> Result<greenroom_proto::manager::ClusterMemberRegisterResponse, Status> {
        let request = ClusterMemberRegisterRequest {
            token: self.token.reveal().to_owned(),
            listen_address: self.address.ip().to_string(),
            listen_port: self.address.port().into(),
            machine_id: self.machine_id.clone(),
            public_key: serve::identity(&self.machine_id)
                .public_key()
                .expect("its certificate can be read"),
            ..ClusterMemberRegisterRequest::default()
        };
        let mut raw = client.raw().expect("a connection");
        let answer = within(
            "an answer to the token",
            raw.cluster_member_register(request),
        )
        .await?;
        Ok(answer.into_inner())
    }

    /// Its node; empty before it called in.
    pub fn node_id(&self) -> NodeId {
        self.state.borrow().node_id.clone()
    }

    /// The token of its slot.
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The node's key in hexadecimal digits, to look for where it must not be.
    pub fn key_hex(&self) -> String {
        let state = self.state.borrow();
        state
            .key
            .as_ref()
            .expect("a worker that called in")
            .to_hex()
    }

    /// From now on orders are recorded and nothing follows from them by itself.
    pub fn hold(&self) {
        self.state.send_modify(|state| state.holds = true);
    }

    /// Does what it is told again, as at first.
    pub fn obey(&self) {
        self.state.send_modify(|state| state.holds = false);
    }

    /// Says again which versions it holds, and of the access roles that it holds this one.
    pub fn claim_replica(&self, version: u64) {
        self.state.send_modify(|state| {
            state.replica_version = version;
            state.acknowledge();
        });
    }

    /// What it says about itself from the next stream on.
    pub fn pretend(&self, honesty: Honesty) {
        self.state.send_modify(|state| state.honesty = honesty);
    }

    /// The picture of its machine that the next hello carries.
    pub fn show(&self, inventory: NodeInventory) {
        self.state.send_modify(|state| state.inventory = inventory);
    }

    /// Closes the stream and refuses others.
    pub fn cut(&self) {
        self.state.send_modify(|state| {
            state.closed = true;
            state.stream = None;
        });
    }

    /// Closes the stream; another one is welcome.
    pub fn drop_stream(&self) {
        self.state.send_modify(|state| state.stream = None);
    }

    /// Takes streams again.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.closed = false);
    }

    /// Sends no sign of life any more, over streams that stay open.
    pub fn fall_silent(&self) {
        self.state.send_modify(|state| state.still = true);
    }

    /// Sends signs of life again.
    pub fn wake(&self) {
        self.state.send_modify(|state| state.still = false);
    }

    /// From the next stream on it sends a sign of life this often.
    pub fn live_every(&self, every: Duration) {
        self.state
            .send_modify(|state| state.lives_every = Some(every));
    }

    /// From now on it does what it is told and does not remember it: thousands of workers of one process
    /// would fill its memory.
    pub fn forget(&self) {
        self.state.send_modify(|state| state.forgets = true);
    }

    /// Its machine was booted again: nothing runs, and the journal is as it was.
    pub fn reboot(&self) {
        self.state.send_modify(|state| {
            state.boots += 1;
            state.instances.clear();
            state.stream = None;
        });
    }

    /// From now on it does not confirm pauses.
    pub fn ignore_pauses(&self) {
        self.state.send_modify(|state| state.ignores_pauses = true);
    }

    /// Refreshes leases of these starts under a number, if there is a stream.
    pub fn refresh(&self, nonce: u64, leases: &[(&StartId, InstanceKey, u64)]) {
        let leases = leases.iter().map(|(start_id, key, fence)| HeldLease {
            job_key: Some(key.into()),
            start_id: start_id.to_string(),
            fence: *fence,
        });
        let refresh = LeaseRefresh {
            leases: leases.collect(),
            sent_nonce: nonce,
        };
        self.send(Message::LeaseRefresh(refresh));
    }

    /// Waits for the answer to the refresh of that number: each start with its ttl, none for one that
    /// is superseded.
    pub async fn wait_refreshed(&self, nonce: u64) -> BTreeMap<StartId, Option<u64>> {
        self.wait_order(
            &format!("an answer to refresh {nonce}"),
            |order| match order {
                Received::LeaseAnswer { nonce: of, leases } if *of == nonce => {
                    Some(leases.iter().cloned().collect())
                }
                _ => None,
            },
        )
        .await
    }

    /// Says something that is kept nowhere, if there is a stream.
    fn send(&self, message: Message) {
        let state = self.state.borrow();
        if let Some(line) = &state.stream
            && line.greeted
        {
            // What goes to a stream that just broke is lost, as it may be.
            let _ = line.out.send(Ok(WorkerMessage {
                message: Some(message),
                ..WorkerMessage::default()
            }));
        }
    }

    /// Takes another's place: its node, key and slot, but nothing of what it runs.
    pub fn impersonate(&self, other: &Self) {
        let (node_id, key) = {
            let theirs = other.state.borrow();
            (theirs.node_id.clone(), theirs.key.clone())
        };
        self.state.send_modify(|state| {
            state.node_id = node_id;
            state.key = key;
        });
    }

    // === what it was told ===

    /// All orders so far.
    pub fn orders(&self) -> Vec<Received> {
        self.state.borrow().orders.clone()
    }

    /// Everything that reached it so far, metadata too, as text.
    pub fn heard(&self) -> String {
        self.state.borrow().heard.join("\n")
    }

    /// How many streams were opened or refused so far.
    pub fn dialled(&self) -> usize {
        self.state.borrow().dialled
    }

    /// How many hellos were answered so far.
    pub fn greeted(&self) -> usize {
        self.state.borrow().greeted
    }

    /// What it has.
    pub fn instances(&self) -> BTreeMap<StartId, Held> {
        self.state.borrow().instances.clone()
    }

    /// Waits for the answer to the hello of that number, counted from 1.
    pub async fn wait_greeted(&self, number: usize) {
        self.wait(&format!("hello {number} answered"), |state| {
            (state.greeted >= number).then_some(())
        })
        .await;
    }

    /// Waits until so many streams were opened or refused.
    pub async fn wait_dialled(&self, number: usize) {
        self.wait(&format!("{number} streams dialled"), |state| {
            (state.dialled >= number).then_some(())
        })
        .await;
    }

    /// Waits until the Manager has acknowledged every report.
    pub async fn wait_acknowledged(&self) {
        self.wait("all reports acknowledged", |state| {
            state.journal.is_empty().then_some(())
        })
        .await;
    }

    /// Waits for the first order, of those given before too, that `look` finds.
    pub async fn wait_order<T>(&self, what: &str, look: impl Fn(&Received) -> Option<T>) -> T {
        self.wait(what, |state| state.orders.iter().find_map(&look))
            .await
    }

    /// Waits for the order to create an instance of the job.
    pub async fn wait_provision(&self, job_id: &str) -> StartId {
        self.wait_order(&format!("an order to provision {job_id}"), |order| {
            order.provision_of(job_id)
        })
        .await
    }

    /// Waits for the order to stop an instance of the job.
    pub async fn wait_stop(&self, job_id: &str) -> StartId {
        self.wait_order(&format!("an order to stop {job_id}"), |order| {
            order.stop_of(job_id)
        })
        .await
    }

    async fn wait<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> T {
        let mut changes = self.state.subscribe();
        let mut found = None;
        within(
            what,
            changes.wait_for(|state| {
                found = look(state);
                found.is_some()
            }),
        )
        .await
        .expect("the worker's state outlives it");
        found.expect("it was found")
    }

    // === what it says ===

    /// Has an instance of which the Manager need not know.
    pub fn keep(&self, start_id: &StartId, key: InstanceKey, at: InstanceState) {
        self.state.send_modify(|state| {
            state.instances.insert(
                start_id.clone(),
                Held {
                    key,
                    state: at,
                    fence: 0,
                },
            );
        });
    }

    /// Loses an instance without a word.
    pub fn lose(&self, start_id: &StartId) {
        self.state.send_modify(|state| {
            state.instances.remove(start_id);
        });
    }

    /// Says that it takes an instance on.
    pub fn accepted(&self, start_id: &StartId) {
        self.say(start_id, |key| Message::JobAccepted((&key).into()));
    }

    /// Says that a deferred instance is ready.
    pub fn prepared(&self, start_id: &StartId) {
        self.set(start_id, InstanceState::Prepared);
        self.say(start_id, |key| {
            Message::JobPrepared(WorkerJobPrepared {
                job_key: Some((&key).into()),
                ..WorkerJobPrepared::default()
            })
        });
    }

    /// Says that an instance runs.
    pub fn started(&self, start_id: &StartId) {
        self.set(start_id, InstanceState::Running);
        self.say(start_id, |key| {
            Message::JobStarted(WorkerJobStarted {
                job_key: Some((&key).into()),
                ..WorkerJobStarted::default()
            })
        });
    }

    /// Says that an instance fails; its remains are there until [`FakeWorker::stopped`].
    pub fn failed(&self, start_id: &StartId, reason: &str) {
        self.set(start_id, InstanceState::Stopping);
        self.say(start_id, |key| {
            Message::JobFailed(WorkerJobFailed {
                job_key: Some((&key).into()),
                reason: reason.to_owned(),
            })
        });
    }

    /// Says that an instance is gone.
    pub fn stopped(&self, start_id: &StartId) {
        self.say(start_id, |key| Message::JobStopped((&key).into()));
        self.lose(start_id);
    }

    /// Says that an instance ended by itself, as it should.
    pub fn completed(&self, start_id: &StartId) {
        let key = self.key_of(start_id);
        self.state.send_modify(|state| {
            state.instances.remove(start_id);
            state.report(WorkerMessage {
                start_id: start_id.to_string(),
                completed: true,
                message: Some(Message::JobStopped((&key).into())),
                ..WorkerMessage::default()
            });
        });
    }

    /// Says that it does not take an instance on.
    pub fn rejected(&self, start_id: &StartId, code: RejectionCode, detail: &str) {
        self.say(start_id, |key| {
            let rejection =
                greenroom_proto::convert::worker::Rejection::new(key, code, detail, None);
            Message::JobRejected(WorkerJobRejected::from(&rejection))
        });
        self.lose(start_id);
    }

    /// Says anything about a start, whether it has it or not.
    pub fn report(&self, start_id: &StartId, message: Message) {
        self.state.send_modify(|state| {
            state.report(WorkerMessage {
                start_id: start_id.to_string(),
                message: Some(message),
                ..WorkerMessage::default()
            });
        });
    }

    /// Sends any message as it is, which is kept nowhere, if there is a stream.
    pub fn say_raw(&self, message: WorkerMessage) {
        let state = self.state.borrow();
        if let Some(line) = &state.stream
            && line.greeted
        {
            // What goes to a stream that just broke is lost, as it may be.
            let _ = line.out.send(Ok(message));
        }
    }

    /// Waits until the Manager has taken everything that was said before on this stream, or has begun
    /// another one.
    pub async fn wait_heard(&self) {
        let nonce = {
            let mut nonce = 0;
            self.state.send_modify(|state| {
                state.nonce += 1;
                nonce = state.nonce;
            });
            nonce
        };
        let greeted = self.greeted();
        self.refresh(nonce, &[]);
        self.wait("what was said to be taken", |state| {
            let is_answer = |order: &Received| {
                matches!(order, Received::LeaseAnswer { nonce: of, .. } if *of == nonce)
            };
            (state.greeted > greeted || state.orders.iter().rev().any(is_answer)).then_some(())
        })
        .await;
    }

    /// Sends news of an instance, which is kept nowhere, if there is a stream.
    pub fn inform(&self, info: &JobInfo) {
        let state = self.state.borrow();
        if let Some(line) = &state.stream
            && line.greeted
        {
            // News to a stream that just broke is lost, as it may be.
            let _ = line.out.send(Ok(WorkerMessage {
                start_id: info.start_id.to_string(),
                message: Some(Message::JobInfo(info.into())),
                ..WorkerMessage::default()
            }));
        }
    }

    fn say(&self, start_id: &StartId, message: impl FnOnce(InstanceKey) -> Message) {
        self.report(start_id, message(self.key_of(start_id)));
    }

    fn set(&self, start_id: &StartId, at: InstanceState) {
        self.state.send_modify(|state| {
            if let Some(held) = state.instances.get_mut(start_id) {
                held.state = at;
            }
        });
    }

    fn key_of(&self, start_id: &StartId) -> InstanceKey {
        let state = self.state.borrow();
        match state.instances.get(start_id) {
            Some(held) => held.key.clone(),
            None => panic!("the worker has no instance of start {start_id}"),
        }
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.cut();
        self.serving.abort();
    }
}

// === impl State ===

impl State {
    /// Says which versions it holds, if there is a stream.
    fn acknowledge(&self) {
        if let Some(line) = &self.stream
            && line.greeted
        {
            // A stream that just broke takes none; the next hello says so.
            let _ = line.out.send(Ok(WorkerMessage {
                message: Some(Message::AccessAck(AccessAck {
                    replica_version: self.replica_version,
                    discovery_version: self.discovery_version,
                })),
                ..WorkerMessage::default()
            }));
        }
    }

    /// Puts a report in the journal and sends it if there is a stream.
    fn report(&mut self, mut message: WorkerMessage) {
        self.last_report += 1;
        message.report_id = self.last_report;
        self.journal.push(message.clone());
        if let Some(line) = &self.stream
            && line.greeted
        {
            // A stream that just broke takes none; the next one will.
            let _ = line.out.send(Ok(message));
        }
    }
}
