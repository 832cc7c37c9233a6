//! The agent on each node: it registers its machine, waits for the Manager to dial, and runs what it
//! is told to run.
//!
//! ```text
//!   register.rs  --calls in-->  Manager  --dials-->  gate.rs (proof), server.rs
//!                                                       |
//!   inventory.rs (the machine) ---------------->  node.rs: the one task
//!                                                    agent.rs: decides, pure
//!   notice.rs (the cloud) ------notices-------->     journal.rs: what was decided
//!   runtime/ (docker, process) --news---------->        |
//!        ^                                              |
//!        +---------------- lanes.rs: acts --------------+---- prefetch.rs: images ahead of jobs
//!        |                                              |
//!        +--output--> logs/ --lines--> Manager          +---- socket.rs <--> the jobs themselves
//!                                                       +---- access.rs: what jobs may read
//!                                                       |
//!                                                       +---- guarding.rs --deadlines--> lease_guard/,
//!                                                                                a process of its own
//! ```
//!
//! **Invariant**: a record is in the journal before its act is done. **Invariant**: `agent.rs`,
//! `handover/`, `lease.rs`, `capacity.rs`, `ports.rs`, `spec.rs`, `restart.rs` and `lifecycle.rs` know no clock, no engine and
//! no network. Losing the Manager changes nothing for jobs (WORK-60, WORK-64).

mod accept;
mod access;
mod agent;
mod capacity;
mod clock;
mod config;
mod credential;
mod deadline;
mod gate;
mod gpus;
mod guarding;
mod handover;
mod helper;
mod inventory;
mod journal;
mod lanes;
mod launch;
mod lease;
pub mod lease_guard;
mod lease_times;
mod lifecycle;
pub mod logs;
mod node;
mod notice;
mod order;
mod outbox;
mod ports;
mod prefetch;
mod procs;
mod register;
mod restart;
mod runtime;
mod server;
mod socket;
mod spec;
pub mod supervise;
mod wire;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use greenroom_auth::{NodeKey, Secret};
use greenroom_proto::logs::logs_server::LogsServer;
use greenroom_proto::worker::worker_server::WorkerServer;
use greenroom_tls::mint::from_seed;
use greenroom_tls::{Door, ServerTls, fingerprint};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::{Millis, Mono, NodeId, StartId};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub use crate::config::{Cloud, Config, Ending, Error, RuntimeChoice};
pub use crate::journal::JournalError;
pub use crate::launch::LogLimits;
pub use crate::socket::check::{Finding, Patience, check_job};

use crate::accept::accepted;
use crate::access::Access;
use crate::agent::{Agent, Effects, RuntimeEvent, Settings};
use crate::credential::{Credential, StateLock, installation};
use crate::gate::{Gate, NodeProof};
use crate::gpus::Gpus;
use crate::guarding::{Guarding, Keeper};
use crate::inventory::{Overrides, survey};
use crate::journal::Journal;
use crate::lanes::Lanes;
use crate::launch::Identity;
use crate::logs::LogStore;
use crate::logs::serve::LogsService;
use crate::node::{About, Contact, Input, Node};
use crate::notice::Metadata;
use crate::ports::BindProbe;
use crate::prefetch::Prefetcher;
use crate::procs::boot_id;
use crate::register::{Answered, Call, CallIn, Calling, answered, call};
use crate::runtime::choose::choose;
use crate::runtime::guard::Guard;
use crate::runtime::{News, SharedRuntime};
use crate::server::WorkerService;
use crate::socket::Sockets;

/// Protocol of this worker (HELLO-01).
pub(crate) const PROTOCOL_MAJOR: u32 = 1;
/// Minor number of it.
pub(crate) const PROTOCOL_MINOR: u32 = 10;

/// Time between two looks at the machine.
const SURVEY_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the images, unless one has come.
const IMAGES_EVERY: Duration = Duration::from_secs(10);
/// Connections at a time: the Manager's members, and readers of logs.
const CONNECTIONS_MAX: usize = 256;
/// A message of the Manager is at most this long; access roles of the largest size fit.
const MESSAGE_MAX: usize = 8 << 20;
/// In the worker's certificate, which is known by its key and not by a name.
const CERTIFICATE_NAME: &str = "greenroom-worker";
/// It is known within this whether there is a lease guard; until then nobody is served.
const GUARD_MAX: Duration = Duration::from_secs(15);
/// A Manager that does not take the end of its streams is waited for no longer than this (WORK-61).
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// A worker that is ready to run.
pub struct Worker {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    runtime: SharedRuntime,
    runtime_text: String,
    /// Rung when images may have come.
    arrived: Arc<Notify>,
    news: mpsc::Receiver<(StartId, RuntimeEvent)>,
    node_news: News,
    agent: Agent,
    journal: Journal,
    logs: LogStore,
    about: About,
    known: Known,
    proofs: Proofs,
    identities: Identities,
    credential: Option<Credential>,
    token: Secret,
    public_key: Vec<u8>,
    identity: greenroom_tls::Identity,
    calling: Calling,
    metadata: Option<Metadata>,
    guard: Option<Guard>,
    overrides: Overrides,
    guard_program: Vec<OsString>,
    lock: StateLock,
}

// === impl Worker ===

impl Worker {
    /// Takes the state directory, reads the journal, finds the engine and the port.
    ///
    /// # Errors
    /// As [`Error`] says; nothing of what runs was touched then.
    pub async fn build(mut config: Config) -> Result<Self, Error> {
        // Guard and supervisors stand elsewhere.
        config.state_dir =
            std::path::absolute(&config.state_dir).map_err(|source| Error::State {
                path: config.state_dir.clone(),
                source,
            })?;
        let dir = config.state_dir.clone();
        let state = |source| Error::State {
            path: dir.clone(),
            source,
        };
        std::fs::create_dir_all(&dir).map_err(state)?;
        let lock = StateLock::take(&dir).map_err(state)?;
        let lock = lock.ok_or_else(|| Error::Locked(dir.clone()))?;
        let (mut journal, records) = Journal::open(&dir)?;
        journal.watched_by(config.on_journal);
        let credential = Credential::load(&dir).map_err(state)?;
        let kept = credential
            .as_ref()
            .map(|credential| Secret::new(credential.token()));
        let token = config
            .token
            .clone()
            .or(kept)
            .ok_or_else(|| Error::NoToken(dir.clone()))?;
        let seed = installation(&dir).map_err(state)?;
        let identity = from_seed(CERTIFICATE_NAME, &seed, SystemTime::now())?;
        let public_key = identity.public_key()?;
        let calling = Calling::new(&config)?;
        let metadata = notice::find(&config)?;
        let kept_away = metadata.as_ref().filter(|_| !config.allow_metadata);
        let guard = kept_away.map(|service| Guard::new(service.address()));
        let listen = |source| Error::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;

        let logs = LogStore::new(&dir);
        let (node_news, news) = News::channel();
        let (known, proofs, identities) = Known::channel(credential.as_ref());
        let arrived = Arc::new(Notify::new());
        let runtime = choose(
            &config,
            &logs,
            &identities,
            &node_news,
            arrived.clone(),
            guard,
        )
        .await?;
        let runtime_text = runtime
            .engine()
            .await
            .unwrap_or_else(|| "docker".to_owned());

        let overrides = Overrides {
            vcpus: config.vcpus,
            memory_bytes: config.memory_bytes,
            capabilities: config.capabilities.clone(),
            utilization_cap: config.utilization_cap,
            az: config.az.clone(),
            cordoned: config.cordoned,
            gpus: Gpus::new(),
            state_dir: dir.clone(),
        };
        let settings = Settings {
            runtime: runtime.kind(),
            host_paths: config.host_paths.clone(),
            migration_step: config.migration_step,
            guards_metadata: guard.is_some(),
        };
        let about = About {
            machine_id: config
                .machine_id
                .clone()
                .or_else(inventory::machine_id)
                .unwrap_or_else(|| greenroom_auth::hex(&fingerprint(&public_key)[..16])),
            boot_id: boot_id(),
            logs: config.logs,
            state_dir: dir.clone(),
        };
        let guard_program = match &config.guard[..] {
            [] => {
                let own = std::env::current_exe().map_err(state)?;
                vec![own.into_os_string(), OsString::from("lease-guard")]
            }
            program => program.to_vec(),
        };
        let (machine, probe) = (survey(&overrides), Box::new(BindProbe));
        let mut out = Effects::default();
        let agent = Agent::recover(settings, records, &about.boot_id, machine, probe, &mut out);
        // What follows from a new boot is part of the snapshot.
        journal.compact(&agent.snapshot()).map_err(state)?;
        Ok(Self {
            config,
            listener,
            address,
            runtime,
            runtime_text,
            arrived,
            news,
            node_news,
            agent,
            journal,
            logs,
            about,
            known,
            proofs,
            identities,
            credential,
            token,
            public_key,
            identity,
            calling,
            metadata,
            guard,
            overrides,
            guard_program,
            lock,
        })
    }

    /// Where the Manager can dial it.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Which engine it uses, with its version.
    pub fn runtime(&self) -> &str {
        &self.runtime_text
    }

    /// The node it is, once it has registered.
    pub fn node_id(&self) -> Option<&NodeId> {
        self.credential
            .as_ref()
            .map(|credential| &credential.node_id)
    }

    /// Runs until `ending` says how to end, or the Manager says that it is over.
    ///
    /// # Errors
    /// When the server fails.
    pub async fn run(self, ending: impl Future<Output = Ending> + Send) -> Result<(), Error> {
        let (inputs, input_receiver) = mpsc::channel(256);
        let (contact, contacts) = watch::channel(Contact::Alone);
        let closing = CancellationToken::new();

        let sockets = Sockets::new(&self.config.state_dir, self.node_news.clone());
        let lanes = Lanes::new(self.runtime.clone(), self.node_news);
        let arrived = self.arrived;
        let access = Access::open(&self.config.state_dir, inputs.clone());
        let access = access.map_err(|source| Error::State {
            path: self.config.state_dir.clone(),
            source,
        })?;
        let guarding = Guarding::default();
        let prefetcher = Prefetcher::new(
            self.runtime.images(),
            inputs.clone(),
            arrived.clone(),
            self.config.pull_parallel,
        );
        let (wanted, wanted_images) = watch::channel(BTreeSet::new());
        let mut node = Node::new(
            self.agent,
            self.journal,
            lanes,
            sockets,
            prefetcher,
            access,
            self.runtime.clone(),
            self.about.clone(),
            self.identities,
            contact,
            self.logs.clone(),
            guarding.clone(),
            wanted,
        );
        node.restore_leases();
        let (settled, mut guarded) = watch::channel(false);
        let keeper = Keeper {
            state_dir: self.config.state_dir.clone(),
            program: self.guard_program,
            refuses: self.runtime.unguardable(),
            guarding,
            runtime: self.runtime.clone(),
            inputs: inputs.clone(),
            settled,
            closing: closing.clone(),
        };
        let mut keeper = tokio::spawn(keeper.run());
        let node = tokio::spawn(node.run(input_receiver, self.news));
        let settled = guarded.wait_for(|settled| *settled);
        if tokio::time::timeout(GUARD_MAX, settled).await.is_err() {
            tracing::error!("it is not known yet whether there is a lease guard");
        }

        let tls = ServerTls::new(&self.identity, &[])?;
        let door = Door {
            listener: self.listener,
            tls: Some(watch::channel(tls).1),
            connections_max: CONNECTIONS_MAX,
        };
        let gate = Arc::new(Gate::new(self.proofs));
        let service = WorkerService::new(gate.clone(), inputs.clone(), closing.clone());
        let logs = LogsService::new(gate, self.logs.clone(), closing.clone());
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .add_service(WorkerServer::new(service).max_decoding_message_size(MESSAGE_MAX))
            .add_service(LogsServer::new(logs))
            .serve_with_incoming_shutdown(
                accepted(greenroom_tls::incoming(vec![door]), closing.clone()),
                closing.clone().cancelled_owned(),
            );
        let server = tokio::spawn(server);

        let (machine, machines) = watch::channel(survey(&self.overrides));
        let images = watch_images(self.runtime.clone(), arrived, wanted_images, inputs.clone());
        let images = tokio::spawn(images);
        let mut clouds = JoinSet::new();
        if let Some(service) = self.metadata {
            clouds.spawn(notice::watch(service, inputs.clone()));
        }
        if let Some(guard) = self.guard {
            clouds.spawn(guard.keep(self.runtime.kind()));
        }
        let surveyor = tokio::spawn(watch_machine(
            self.overrides,
            self.runtime,
            machine,
            inputs.clone(),
        ));
        let caller = Caller {
            urls: self.config.manager_urls.clone(),
            token: self.token,
            advertise: self.config.advertise,
            address: self.address,
            machine_id: self.about.machine_id,
            public_key: self.public_key,
            state_dir: self.config.state_dir.clone(),
            credential: self.credential,
            calling: self.calling,
            known: self.known,
            machines,
            contacts,
            orphan: self.config.orphan,
            inputs: inputs.clone(),
        };
        let caller = tokio::spawn(caller.run());

        let mut node = node;
        tokio::select! {
            how = ending => {
                let input = match how { Ending::Keep => Input::Keep, Ending::Leave => Input::Leave };
                let _ = inputs.send(input).await;
                let _ = (&mut node).await;
            }
            _ = &mut node => {}
        }
        caller.abort();
        surveyor.abort();
        images.abort();
        clouds.abort_all();
        closing.cancel();
        if tokio::time::timeout(CLOSE_MAX, &mut keeper).await.is_err() {
            keeper.abort();
        }
        let server = tokio::time::timeout(CLOSE_MAX, server).await;
        if server.is_err() {
            tracing::warn!("a Manager did not take the end of its streams in time");
        }
        drop(self.lock);
        match server {
            Ok(Ok(Err(error))) => Err(Error::Server(error.to_string())),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Looks at machine and engine again and again, and says what it sees.
async fn watch_machine(
    overrides: Overrides,
    runtime: SharedRuntime,
    machine: watch::Sender<NodeInventory>,
    inputs: mpsc::Sender<Input>,
) {
    let mut ticks = tokio::time::interval(SURVEY_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A driver may take its time over a question.
        let own = overrides.clone();
        let Ok(picture) = tokio::task::spawn_blocking(move || survey(&own)).await else {
            continue;
        };
        machine.send_if_modified(|old| {
            let changed = *old != picture;
            old.clone_from(&picture);
            changed
        });
        let engine = Input::Engine(runtime.engine().await);
        let told = inputs.send(engine).await;
        if told.is_err()
            || inputs
                .send(Input::Machine(Box::new(picture)))
                .await
                .is_err()
        {
            return;
        }
    }
}

/// Lists the images again and again, and at once when one may have come. Where the disk is short,
/// those of no use go first.
async fn watch_images(
    runtime: SharedRuntime,
    arrived: Arc<Notify>,
    wanted: watch::Receiver<BTreeSet<String>>,
    inputs: mpsc::Sender<Input>,
) {
    let source = runtime.images();
    let mut ticks = tokio::time::interval(IMAGES_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = arrived.notified() => {}
        }
        if let Some(source) = &source {
            source.tidy(&wanted).await;
        }
        let held = runtime.held_images().await;
        if inputs.send(Input::Images(held)).await.is_err() {
            return;
        }
    }
}

/// Who the worker is, for those who prove it and those who tell it.
struct Known {
    proof: watch::Sender<Option<Arc<NodeProof>>>,
    identity: watch::Sender<Option<Arc<Identity>>>,
}

type Proofs = watch::Receiver<Option<Arc<NodeProof>>>;
pub(crate) type Identities = watch::Receiver<Option<Arc<Identity>>>;

// === impl Known ===

impl Known {
    fn channel(credential: Option<&Credential>) -> (Self, Proofs, Identities) {
        let (proof, proofs) = watch::channel(None);
        let (identity, identities) = watch::channel(None);
        let known = Self { proof, identity };
        if let Some(credential) = credential {
            known.set(credential);
        }
        (known, proofs, identities)
    }

    fn set(&self, credential: &Credential) {
        let node_id = credential.node_id.clone();
        let identity = Identity {
            deployment_id: credential.deployment_id.clone(),
            node_id: node_id.clone(),
        };
        self.identity.send_replace(Some(Arc::new(identity)));
        let proof = credential
            .key()
            .map(|key| Arc::new(NodeProof { node_id, key }));
        self.proof.send_replace(proof);
    }
}

/// The task that calls in.
struct Caller {
    urls: Vec<String>,
    token: Secret,
    advertise: Option<IpAddr>,
    address: SocketAddr,
    machine_id: String,
    public_key: Vec<u8>,
    state_dir: PathBuf,
    credential: Option<Credential>,
    calling: Calling,
    known: Known,
    machines: watch::Receiver<NodeInventory>,
    contacts: watch::Receiver<Contact>,
    orphan: Millis,
    inputs: mpsc::Sender<Input>,
}

// === impl Caller ===

impl Caller {
    async fn run(mut self) {
        let began = Instant::now();
        let now = || Mono(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let mut call_in = CallIn::new(now(), self.all_urls().len(), self.orphan);
        let mut told = None;
        loop {
            let next = call_in
                .next()
                .map(|(at, _)| began + Duration::from_millis(at.0));
            let wait = deadline::reached(next);
            tokio::select! {
                () = wait => {
                    told = Some(self.listen_address());
                    let url = self.url(&call_in);
                    let (outcome, why) = match self.call(url.clone()).await {
                        Ok(()) => (Answered::Good, String::new()),
                        Err(status) => (answered(&status), status.message().to_owned()),
                    };
                    if call_in.handle_answer(now(), &outcome) && outcome != Answered::Good {
                        tracing::warn!(url, error = why, "calling in failed");
                    }
                    if call_in.is_orphan(now(), outcome) {
                        // The node ends only with the worker.
                        let _ = self.inputs.send(Input::Orphaned).await;
                    }
                }
                Ok(()) = self.contacts.changed() => {
                    match *self.contacts.borrow_and_update() {
                        Contact::Connected => call_in.handle_connected(),
                        Contact::Alone => call_in.handle_alone(now()),
                        Contact::Parked => call_in.handle_parked(),
                    }
                }
                Ok(()) = self.machines.changed() => {
                    self.machines.borrow_and_update();
                    let parked = *self.contacts.borrow() == Contact::Parked;
                    if !parked && told.as_ref().is_some_and(|told| *told != self.listen_address()) {
                        told = Some(self.listen_address());
                        call_in.handle_moved(now());
                    }
                }
                else => return,
            }
        }
    }

    fn url(&self, call_in: &CallIn) -> String {
        let urls = self.all_urls();
        let turn = call_in.next().map_or(0, |(_, turn)| turn);
        urls.get(turn % urls.len().max(1))
            .cloned()
            .unwrap_or_default()
    }

    async fn call(&mut self, url: String) -> Result<(), Status> {
        let order = Call {
            url,
            token: self.token.clone(),
            listen_address: self.listen_address().to_string(),
            listen_port: self.address.port(),
            machine_id: self.machine_id.clone(),
            public_key: self.public_key.clone(),
            hardware: (&*self.machines.borrow()).into(),
        };
        let answer = call(&self.calling, order).await?;
        let node_id = NodeId::from(answer.node_id);
        let key = NodeKey::from_bytes(&answer.key_share)
            .ok_or_else(|| Status::internal("the answer holds no node key of 32 bytes"))?;
        let (deployment_id, urls) = (answer.deployment_id, answer.manager_urls);
        let credential = Credential::new(node_id, deployment_id, &key, self.token.expose(), urls);
        if self.credential.as_ref() != Some(&credential) {
            credential.save(&self.state_dir).map_err(|error| {
                Status::internal(format!("the credential cannot be kept: {error}"))
            })?;
            tracing::info!(node_id = %credential.node_id, "registered");
            self.known.set(&credential);
            self.credential = Some(credential);
        }
        Ok(())
    }

    /// The settings' Managers, then those that a Manager told of.
    fn all_urls(&self) -> Vec<String> {
        let told = self
            .credential
            .iter()
            .flat_map(|credential| &credential.manager_urls);
        let mut urls = self.urls.clone();
        for url in told {
            if !urls.contains(url) {
                urls.push(url.clone());
            }
        }
        urls
    }

    fn listen_address(&self) -> IpAddr {
        let listening = self.address.ip();
        let first = || {
            let machine = self.machines.borrow();
            machine
                .nics
                .iter()
                .flat_map(|nic| &nic.addresses)
                .find_map(|text| text.parse().ok())
        };
        match self.advertise {
            Some(address) => address,
            None if listening.is_unspecified() => first().unwrap_or(listening),
            None => listening,
        }
    }
}
