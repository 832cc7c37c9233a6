//! Serving: on loopback alone, with limits, until told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_auto::{AutoManager, Current, Seat};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::routes;

/// Requests in progress get this long at the end.
const DRAIN: Duration = Duration::from_secs(10);
/// Listeners of `/v1/callbacks` at a time. Each holds a connection and keeps callbacks in memory.
const LISTENERS_MAX: usize = 64;

/// Gives the AutoManager that runs now; it may be another one the next time.
pub trait Provider: Send + Sync + 'static {
    /// The instance, if there is one.
    fn instance(&self) -> Option<AutoManager>;

    /// Why there is none, in words.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Whether it is the one that acts.
    fn seat(&self) -> Seat {
        Seat::Alone
    }
}

impl Provider for AutoManager {
    fn instance(&self) -> Option<AutoManager> {
        Some(self.clone())
    }
}

impl Provider for Current {
    fn instance(&self) -> Option<AutoManager> {
        Self::instance(self)
    }

    fn problem(&self) -> Option<String> {
        Self::problem(self)
    }

    fn seat(&self) -> Seat {
        Self::seat(self)
    }
}

/// Why the API is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The API has no credentials, so it may be open to this machine only.
    #[error(
        "{0} is no loopback address, and the API has no credentials: listen on 127.0.0.1 or [::1]"
    )]
    NotLoopback(SocketAddr),
    /// The system refused.
    #[error("the API cannot be served: {0}")]
    Io(#[from] std::io::Error),
}

/// What every handler has.
pub(crate) struct Shared {
    pub(crate) provider: Box<dyn Provider>,
    /// Ends event streams, which would otherwise never end.
    pub(crate) stop: CancellationToken,
    pub(crate) listeners: Arc<Semaphore>,
}

/// Serves the API until `shutdown` resolves; then event streams end, and requests in progress get
/// 10 s.
///
/// # Errors
/// See [`ServeError`]; a listener on another than a loopback address is refused.
pub async fn serve(
    listener: TcpListener,
    provider: impl Provider,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let stop = CancellationToken::new();
    let app = routes::router(Arc::new(Shared {
        provider: Box::new(provider),
        stop: stop.clone(),
        listeners: Arc::new(Semaphore::new(LISTENERS_MAX)),
    }));
    tracing::info!(%address, "the control plane's API is served");
    let told = stop.clone();
    let signal = async move {
        shutdown.await;
        told.cancel();
    };
    let too_long = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = axum::serve(listener, app).with_graceful_shutdown(signal) => Ok(served?),
        () = too_long => {
            tracing::warn!("some requests did not end in time and were cut off");
            Ok(())
        }
    }
}
