//! Starting and ending a Manager.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_ledger::{Command, Keeper, Open};
use greenroom_proto::health::health_server::HealthServer;
use greenroom_proto::logs::logs_server::LogsServer;
use greenroom_store::{
    BootOutcome, BootReport, FatalError, OpenError, ProposeError, Store, StoreConfig,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tonic::service::Routes;
use tonic::transport::Server;

use crate::api::limits::LimitsLayer;
use crate::api::{Beside, Chain, HealthApi, LogsApi, ManagerApi, Routed};
use crate::backup;
use crate::clock::SystemClock;
use crate::cluster_log::ClusterLog;
use crate::conductor::{self, Conductor};
use crate::doors::Doors;
use crate::engine::{Engine, Fixed};
use crate::guard::{self, Guard, Keyring, Keys};
use crate::hub::Hub;
use crate::links::Links;
use crate::machine::Recorded;
use crate::metrics::{self, CallsLayer, MetricsServer, Tally};
use crate::overrides::OverridesFile;
use crate::planes::Planes;
use crate::serving::serve;
use crate::settings::Settings;
use crate::status_log::StatusLog;
use crate::vault::Prepared;

/// Requests up to this size are read (LIM-01).
const MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// Calls in progress get this long at the end (API-19).
const DRAIN: Duration = Duration::from_secs(10);
/// A connection that answers no keepalive for this long is removed (EVT-18).
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A Manager that serves.
pub struct Running {
    addresses: Vec<SocketAddr>,
    boot: BootReport,
    engine: Engine,
    links: Arc<Links>,
    close: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    conducting: JoinHandle<()>,
    backing_up: JoinHandle<()>,
    watching: JoinHandle<()>,
    metrics: Option<MetricsServer>,
    cluster_log: Arc<ClusterLog>,
    chronicling: JoinHandle<()>,
    /// The term in which this member is primary.
    term: u64,
}

/// Why a Manager did not start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address to listen on cannot be had (API-01).
    #[error(
        "cannot listen on {address}: {source}; stop what listens there, or choose another address"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The API would be open to others without TLS or to just anybody (SEC-01).
    #[error(
        "{address} is no loopback address and would be served without {lacks}: `greenroom init` makes \
         certificates and tokens; or listen on 127.0.0.1 or [::1]; or set allowInsecure: true"
    )]
    Insecure {
        /// The address.
        address: SocketAddr,
        /// What it lacks.
        lacks: &'static str,
    },
    /// Metrics would be open to others; a scraper shows no credential.
    #[error(
        "metrics at {address} would be open to others: metrics.listen takes an address of this machine, as 127.0.0.1:9467"
    )]
    MetricsOpen {
        /// The address.
        address: SocketAddr,
    },
    /// The descriptions of the calls, which are part of the program, cannot be read (API-22).
    #[error("the descriptions of the calls cannot be read: {0}")]
    Descriptions(String),
    /// A namespace in the settings can be none (KV-09): nothing would be protected by it.
    #[error("kv.adminNamespaces: {0}")]
    Namespace(greenroom_types::call::Refusal),
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] greenroom_tls::Error),
    /// The credentials cannot be used.
    #[error("the credentials cannot be used: {0}")]
    Auth(String),
    /// The key that seals secrets cannot be used (SEC-11).
    #[error("the key for secrets: {0}")]
    SecretsKey(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The state could not be put in force.
    #[error("the state cannot be put in force: {0}")]
    Open(#[from] ProposeError),
}

/// Opens the store and serves. Resolves once calls are answered.
///
/// # Errors
/// See [`StartError`]; the port is taken first, so that a second Manager on it touches no store.
pub async fn start(settings: Settings, status_log: StatusLog) -> Result<Running, StartError> {
    greenroom_tls::raise_descriptor_limit();
    Doors::permit(&settings)?;
    if let Some(error) = bad_namespaces(&settings).next() {
        return Err(error);
    }
    let keys = load_keys(&settings)?;
    let Doors {
        doors,
        addresses,
        asks,
        urls,
        watched,
    } = Doors::open(&settings).await?;
    let metrics_door = metrics::open(settings.metrics.as_ref()).await?;

    let prepared = Prepared::read(&settings).map_err(StartError::SecretsKey)?;
    let clock = SystemClock::new();
    let mut config = StoreConfig::new(&settings.data_dir, Arc::new(clock));
    config.create = settings.create;
    config.min_free_bytes = settings.min_free_bytes;
    config.backup_keep = settings.backup_keep;
    config.member_name.clone_from(&settings.member_name);
    let (store, outputs, boot) = Store::open(config).await?;

    let restored = tell_of_restore(&boot);
    let generation = store.identity().generation;
    let renew = restored
        || store.read(|recorded: &Recorded| recorded.0.is_of_another_generation(generation));

    let hub = Arc::new(Hub::new(settings.events));
    let vault = store
        .read(|recorded: &Recorded| prepared.begin(&recorded.0))
        .map_err(StartError::SecretsKey)?;
    let planes = Planes::open(&settings.data_dir, &settings.member_name);
    let fixed = Fixed {
        member: settings.member_name.clone(),
        kv_admin_namespaces: settings.kv_admin_namespaces,
        license: settings.license,
        lease_pause_max: settings.lease_pause_max,
    };
    let engine = Engine::new(store, hub, clock, status_log, vault, fixed, planes);
    let (notes, notes_out) = mpsc::unbounded_channel();
    let links = Arc::new(Links::new(engine.clone(), settings.links, notes));
    let (mut keeper, begun_at) = engine.read_at(|ledger, revision| {
        let jobs = ledger.jobs().map(|job| Arc::clone(&job.view));
        engine
            .hub()
            .seed(if renew { 0 } else { ledger.seq() }, jobs);
        let keeper = Keeper::new(settings.waits.clone(), clock.now(), ledger);
        (keeper, revision)
    });
    let standing = engine.read(|ledger| keeper.due(clock.now(), ledger));
    let conductor = Conductor {
        engine: engine.clone(),
        outputs,
        begun_at,
        keeper,
        links: Arc::clone(&links),
        notes: notes_out,
        stuck: Default::default(),
    };
    let conducting = tokio::spawn(conductor.run());

    let open = Open {
        epoch: greenroom_auth::hex(&greenroom_auth::random::<16>()),
        renew,
        config: Some(Box::new(settings.ledger)),
        generation,
    };
    engine.propose(Command::Open(open)).await?;
    let overrides = Arc::new(OverridesFile::new(settings.overrides_file));
    overrides.boot(&engine).await;
    // Nodes that ran are first recorded out of reach and then dialled (MNODE-10, CLUST-17); the other
    // way round a hello could come first and be taken back.
    let commands = standing.commands.into_iter();
    let dropped: JoinSet<()> = commands
        .map(|command| conductor::propose(engine.clone(), command))
        .collect();
    dropped.join_all().await;
    let revision = engine.read_at(|_, revision| revision);
    for order in standing.orders {
        links.order(revision, order);
    }
    let cluster_log = Arc::new(ClusterLog::open(&settings.data_dir));
    let term = engine.store().info().map_or(0, |info| info.term);
    let room = engine.store().room();
    let look = cluster_log.begin(clock.now(), term, &boot, room).await;
    let chronicling = tokio::spawn(Arc::clone(&cluster_log).keep(engine.clone(), term, look));
    let backing_up = tokio::spawn(backup::regularly(engine.clone(), settings.backup_every));

    let audience = engine.store().identity().cluster.clone();
    let keyring = Arc::new(Keyring::new(settings.auth, keys, audience));
    let watching = tokio::spawn(watched.watch(Arc::clone(&keyring)));

    let tally = Tally::default();
    let metrics =
        metrics_door.map(|door| MetricsServer::start(door, engine.clone(), tally.clone()));
    let reflection = || {
        let set = greenroom_proto::FILE_DESCRIPTOR_SET;
        let described = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(set);
        guard::services().fold(described, |described, name| {
            described.with_service_name(name)
        })
    };
    let undescribed =
        |error: tonic_reflection::server::Error| StartError::Descriptions(error.to_string());

    let (close, closed) = oneshot::channel();
    let chain = Chain::verify_in_background(&engine);
    let beside = Beside {
        links: Arc::clone(&links),
        urls,
        chain,
        overrides,
        boot: boot.clone(),
        cluster_log: Arc::clone(&cluster_log),
        acknowledge: settings.links.acknowledge,
        allow_published: settings.links.allow_published,
    };
    let api = ManagerApi::new(engine.clone(), beside);
    let service = Routed::new(api, MESSAGE_MAX);
    let server = Server::builder()
        .layer(CallsLayer(tally))
        .layer(LimitsLayer)
        .layer(Guard::new(keyring, asks))
        .http2_keepalive_interval(Some(KEEPALIVE / 2))
        .http2_keepalive_timeout(Some(KEEPALIVE / 2));
    let routes = Routes::new(service)
        .add_service(HealthServer::new(HealthApi::new(engine.clone())))
        .add_service(LogsServer::new(LogsApi::new(engine.clone())))
        .add_service(reflection().build_v1().map_err(undescribed)?)
        .add_service(reflection().build_v1alpha().map_err(undescribed)?)
        .prepare();
    let closed = async {
        // An error means that the handle was dropped, which ends the Manager as well.
        let _ = closed.await;
    };
    let one = move |alone, end| {
        let (server, routes) = (server.clone(), routes.clone());
        server.serve_with_incoming_shutdown(routes, alone, end)
    };
    let serving = tokio::spawn(serve(greenroom_tls::incoming(doors), closed, one));
    tracing::info!(?addresses, revision = boot.revision, "Manager serves");
    Ok(Running {
        addresses,
        boot,
        engine,
        links,
        close,
        serving,
        conducting,
        backing_up,
        watching,
        metrics,
        cluster_log,
        chronicling,
        term,
    })
}

/// Everything for which a Manager would not start with these settings, as far as that can be told
/// without opening a port or a store (API-20).
#[must_use]
pub fn check(settings: &Settings) -> Vec<StartError> {
    let found = [
        Doors::permit(settings).err(),
        load_keys(settings).err(),
        Doors::check(settings).err(),
        metrics::permit(settings.metrics.as_ref()).err(),
        Prepared::read(settings).err().map(StartError::SecretsKey),
    ];
    let found = found.into_iter().flatten();
    found.chain(bad_namespaces(settings)).collect()
}

fn bad_namespaces(settings: &Settings) -> impl Iterator<Item = StartError> + '_ {
    let named = settings.kv_admin_namespaces.iter();
    named
        .filter_map(|name| greenroom_ledger::check_namespace(name).err())
        .map(StartError::Namespace)
}

fn load_keys(settings: &Settings) -> Result<Keys, StartError> {
    let keys = Keys::load(&settings.auth).map_err(StartError::Auth)?;
    if keys.is_empty() && settings.listen.iter().any(|listen| listen.asks) {
        let text = "none are known, and nobody could call: name auth.tokensFile, auth.signed or \
                    auth.certificates";
        return Err(StartError::Auth(text.to_owned()));
    }
    Ok(keys)
}

/// Whether the store was replaced by an older copy of itself, which begins a new epoch (EVT-16,
/// STORE-10); says so where people look.
fn tell_of_restore(boot: &BootReport) -> bool {
    let BootOutcome::Restored {
        from,
        damaged_kept_as,
        loss,
    } = &boot.outcome
    else {
        return false;
    };
    let or_none = |path: &Option<std::path::PathBuf>| {
        path.as_ref()
            .map_or_else(|| "none".to_owned(), |path| path.display().to_string())
    };
    tracing::error!(
        from = or_none(from),
        damaged_kept_as = or_none(damaged_kept_as),
        ?loss,
        generation = boot.identity.generation,
        "the store was damaged and was restored; clients are sent a new epoch"
    );
    true
}

// === impl Running ===

impl Running {
    /// Where the API is served, in the first place.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// All places where the API is served, in the order of the settings.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where metrics are served (API-21).
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// What opening the store did.
    #[must_use]
    pub const fn boot(&self) -> &BootReport {
        &self.boot
    }

    /// On a full disk makes room for a worker on the same disk, from what is kept in reserve
    /// (STORE-09). True when there was something to give.
    pub fn lend_room(&self) -> bool {
        self.engine.store().lend_room()
    }

    /// Resolves when the store fails, after which the process must end (STORE-12).
    pub fn fatal(&self) -> impl Future<Output = FatalError> + Send + 'static {
        self.engine.store().fatal()
    }

    /// Ends the Manager in order: new calls are refused, streams end, the store is flushed. No job
    /// is stopped and no node is terminated (API-19).
    ///
    /// # Errors
    /// The store could not be closed cleanly; everything acknowledged is in its log all the same.
    pub async fn shutdown(mut self) -> Result<(), FatalError> {
        self.engine.begin_stopping();
        self.watching.abort();
        self.links.shutdown().await;
        self.engine.end_streams(DRAIN).await;
        let _ = self.close.send(());
        match tokio::time::timeout(DRAIN, &mut self.serving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "serving failed"),
            Err(_) => {
                tracing::warn!("some calls did not end in time and are cut off");
                self.serving.abort();
            }
        }
        if let Err(error) = self.backing_up.await {
            tracing::error!(%error, "the task of regular backups failed");
        }
        self.chronicling.abort();
        self.cluster_log
            .end(self.engine.clock().now(), self.term)
            .await;
        let closed = self.engine.store().shutdown().await;
        if let Err(error) = self.conducting.await {
            tracing::error!(%error, "the conductor failed");
        }
        closed
    }
}
