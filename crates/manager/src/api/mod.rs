//! The gRPC services: requests into calls and reads, answers and refusals out.
//!
//! Every handler checks the form of its request and nothing else; what may be done is for the ledger
//! to say.

mod caller;
mod health;
pub(crate) mod limits;
mod logs;
mod pages;
mod reads;
mod register;
mod service;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;

use greenroom_auth::NodeKey;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::node::NodeInfo;

use crate::engine::Engine;

pub(crate) use health::HealthApi;
pub(crate) use logs::LogsApi;

/// `norsk.api.manager.Manager`.
#[derive(Clone)]
pub(crate) struct ManagerApi(Arc<Parts>);

struct Parts {
    engine: Engine,
    address: SocketAddr,
    node_pages: pages::Pages<NodeInfo>,
    bundle_pages: pages::Pages<BundleStatus>,
    doorkeeper: register::Doorkeeper,
}

// === impl ManagerApi ===

impl ManagerApi {
    pub(crate) fn new(engine: Engine, address: SocketAddr) -> Self {
        Self(Arc::new(Parts {
            engine,
            address,
            node_pages: pages::Pages::default(),
            bundle_pages: pages::Pages::default(),
            doorkeeper: register::Doorkeeper::default(),
        }))
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }
}

/// The node key as a slot's record keeps it.
pub(crate) fn node_key(text: &str) -> Option<NodeKey> {
    NodeKey::from_hex(text)
}
