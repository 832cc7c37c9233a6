//! The daemons' log: lines on stderr, and the status channels of the Manager.

use std::io::IsTerminal;

use greenroom_manager::StatusLog;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Sends everything logged to stderr, filtered by GREENROOM_LOG (default: info for our own parts,
/// warnings of others), and to the status log that is given back.
pub(crate) fn install(default: &str) -> StatusLog {
    let status_log = StatusLog::new();
    let filter =
        EnvFilter::try_from_env("GREENROOM_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_filter(filter);
    tracing_subscriber::registry()
        .with(lines)
        .with(status_log.layer())
        .init();
    status_log
}
