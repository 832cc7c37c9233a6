//! The gRPC services: requests into calls and reads, answers and refusals out.
//!
//! Every handler checks the form of its request and nothing else; what may be done is for the ledger
//! to say.

mod audit;
mod caller;
mod health;
mod kv;
pub(crate) mod limits;
mod logs;
mod pages;
mod reads;
mod register;
mod service;
mod streams;

use std::sync::Arc;

use greenroom_proto::convert::refusal::write_refusal;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::node::NodeInfo;

use crate::engine::{Caller, Engine};
use crate::guard::Doorkeeper;
use crate::links::Links;

pub(crate) use audit::Chain;
pub(crate) use health::HealthApi;
pub(crate) use logs::LogsApi;

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
}

// === impl ManagerApi ===

impl ManagerApi {
    pub(crate) fn new(
        engine: Engine,
        links: Arc<Links>,
        urls: Vec<String>,
        chain: Arc<Chain>,
    ) -> Self {
        Self(Arc::new(Parts {
            engine,
            links,
            urls,
            node_pages: pages::Pages::new("nodes"),
            bundle_pages: pages::Pages::new("bundles"),
            kv_pages: pages::Pages::weighing("kv", kv::Listed::bytes),
            chain,
            doorkeeper: Doorkeeper::default(),
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
