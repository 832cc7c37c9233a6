//! The wait of a `select!` arm for an instant that may not be set.

use tokio::time::Instant;

/// Returns at the instant; never without one.
pub(crate) async fn reached(at: Option<impl Into<Instant>>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
