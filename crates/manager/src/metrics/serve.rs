//! Serving the page and the health over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt as _;

use super::calls::Tally;
use super::page;
use crate::engine::Engine;
use crate::server::StartError;
use crate::settings::MetricsSettings;

/// Connections served at a time; others wait to be taken.
const CONNECTIONS_MAX: usize = 32;
/// A request's head is there after this long, or the connection ends.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// A connection ends after this long, whatever it is at: a scraper asks once and reads at once.
const CONNECTION_MAX: Duration = Duration::from_secs(20);
/// What does not go on accepting is looked at again after this long.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

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
        let serving = tokio::spawn(serve(listener, router));
        Self { address, serving }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Takes connections, so many at a time, until it is dropped with all of them.
async fn serve(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        // It is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    answer(stream, router).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics could not be taken");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Answers one request of a connection.
async fn answer(stream: TcpStream, router: Router) {
    let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
        let router = router.clone();
        async move {
            let answered = router.oneshot(request.map(Body::new)).await;
            Ok::<_, Infallible>(answered.unwrap_or_else(|never| match never {}))
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_MAX, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics ended early"),
        Err(_) => tracing::debug!("a connection for metrics took too long and was cut off"),
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
