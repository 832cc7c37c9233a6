//! Waits with a bound.

use std::time::Duration;

/// Longest wait for anything. Far above what a loaded machine takes, as no test is to pass or fail by
/// how fast it is.
pub const BOUND: Duration = Duration::from_secs(60);

/// Waits for something that must happen; `what` says it in the panic when it does not.
pub async fn within<F: Future>(what: &str, happens: F) -> F::Output {
    match tokio::time::timeout(BOUND, happens).await {
        Ok(output) => output,
        Err(_) => panic!("after {} s there still was not: {what}", BOUND.as_secs()),
    }
}
