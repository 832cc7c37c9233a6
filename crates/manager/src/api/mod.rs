//! The gRPC services: requests into calls and reads, answers and refusals out.
//!
//! Every handler checks the form of its request and nothing else; what may be done is for the ledger
//! to say.

mod audit;
mod caller;
mod fleet;
mod health;
mod kv;
mod leases;
pub(crate) mod limits;
mod logs;
mod member;
mod pages;
mod reads;
mod register;
mod routed;
mod service;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use greenroom_proto::convert::refusal::write_refusal;
use greenroom_store::BootReport;
use greenroom_types::Wall;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::node::NodeInfo;

use crate::cluster_log::ClusterLog;
use crate::engine::{Caller, Engine};
use crate::guard::Doorkeeper;
use crate::links::Links;
use crate::overrides::OverridesFile;

pub(crate) use audit::Chain;
pub(crate) use health::HealthApi;
pub(crate) use logs::LogsApi;
pub(crate) use routed::Routed;

/// Trailer that names the revision of a mutating answer (CLUST-13).
const REVISION_TRAILER: &str = "greenroom-revision";

/// `norsk.api.manager.Manager`.
#[derive(Clone)]
pub(crate) struct ManagerApi(Arc<Parts>);

struct Parts {
    engine: Engine,
    links: Arc<Links>,
    /// Where workers and members reach this Manager.
    urls: Vec<String>,
    node_pages: pages::Pages<NodeInfo>,
    bundle_pages: pages::Pages<BundleStatus>,
    kv_pages: pages::Pages<kv::Listed>,
    chain: Arc<Chain>,
    doorkeeper: Doorkeeper,
    overrides: Arc<OverridesFile>,
    boot: BootReport,
    cluster_log: Arc<ClusterLog>,
    /// When this start took over.
    since: Wall,
    /// A flip waits this long for workers (DISC-06).
    acknowledge: Duration,
    /// Workers of the published protocol may call in (WORK-04).
    allow_published: bool,
}

/// What the services need besides the engine.
pub(crate) struct Beside {
    /// Lines to workers.
    pub(crate) links: Arc<Links>,
    /// Where workers and members reach this Manager.
    pub(crate) urls: Vec<String>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) overrides: Arc<OverridesFile>,
    /// What this start did to the store.
    pub(crate) boot: BootReport,
    pub(crate) cluster_log: Arc<ClusterLog>,
    /// A flip of the discovery secret waits this long for workers.
    pub(crate) acknowledge: Duration,
    /// Workers of the published protocol may call in.
    pub(crate) allow_published: bool,
}

// === impl ManagerApi ===

impl ManagerApi {
    pub(crate) fn new(engine: Engine, beside: Beside) -> Self {
        let Beside {
            links,
            urls,
            chain,
            overrides,
            boot,
            cluster_log,
            acknowledge,
            allow_published,
        } = beside;
        let since = engine.clock().now().wall;
        Self(Arc::new(Parts {
            engine,
            links,
            urls,
            node_pages: pages::Pages::new("nodes"),
            bundle_pages: pages::Pages::new("bundles"),
            kv_pages: pages::Pages::weighing("kv", kv::Listed::bytes),
            chain,
            doorkeeper: Doorkeeper::default(),
            overrides,
            boot,
            cluster_log,
            since,
            acknowledge,
            allow_published,
        }))
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Who calls; nobody does any more once the Manager ends (API-19).
    fn caller<T>(&self, request: &tonic::Request<T>) -> Result<Caller, tonic::Status> {
        self.engine()
            .refuse_stopping()
            .map_err(|refusal| write_refusal(&refusal))?;
        caller::read(request.metadata(), request.extensions())
    }
}
