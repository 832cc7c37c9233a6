//! Serving the page and the health over HTTP.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::calls::Tally;
use super::page;
use crate::engine::Engine;
use crate::server::StartError;
use crate::settings::MetricsSettings;

/// The page's server. It ends with its handle.
pub(crate) struct MetricsServer {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

/// The address, taken.
pub(crate) struct Door {
    listener: TcpListener,
    address: SocketAddr,
}

#[derive(Clone)]
struct Shared {
    engine: Engine,
    tally: Tally,
}

/// Whether metrics may be served there (API-21).
///
/// # Errors
/// The address would be open to others.
pub(crate) fn permit(settings: Option<&MetricsSettings>) -> Result<(), StartError> {
    match settings {
        Some(MetricsSettings { listen, .. }) if !listen.ip().is_loopback() => {
            Err(StartError::MetricsOpen { address: *listen })
        }
        _ => Ok(()),
    }
}

/// Takes the address; none where it is not wanted, or taken by another while nobody named it.
///
/// # Errors
/// An address that was named cannot be had, or would be open to others.
pub(crate) async fn open(settings: Option<&MetricsSettings>) -> Result<Option<Door>, StartError> {
    permit(settings)?;
    let Some(MetricsSettings { listen, is_default }) = settings else {
        return Ok(None);
    };
    let opened = TcpListener::bind(listen).await.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok(Door { listener, address })
    });
    match opened {
        Ok(door) => Ok(Some(door)),
        Err(error) if *is_default => {
            tracing::warn!(address = %listen, %error, "metrics are not served: name another address as metrics.listen");
            Ok(None)
        }
        Err(source) => Err(StartError::Listen {
            address: *listen,
            source,
        }),
    }
}

// === impl MetricsServer ===

impl MetricsServer {
    pub(crate) fn start(door: Door, engine: Engine, tally: Tally) -> Self {
        let Door { listener, address } = door;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .route("/readyz", get(ready))
            .with_state(Shared { engine, tally });
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "metrics are served no longer");
            }
        });
        Self { address, serving }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, greenroom_metrics::CONTENT_TYPE)];
    (kind, page::write(&shared.engine, &shared.tally)).into_response()
}

/// As the health protocol's service `""`: the store is open.
async fn health(State(shared): State<Shared>) -> Response {
    told(!*shared.engine.stopping().borrow(), "the Manager is ending")
}

/// As its service `norsk.api.manager.Manager`: writes would be accepted.
async fn ready(State(shared): State<Shared>) -> Response {
    told(
        shared.engine.commits(),
        "writes are not taken: the Manager is ending or its store failed",
    )
}

fn told(holds: bool, problem: &'static str) -> Response {
    if holds {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")).into_response()
    }
}
