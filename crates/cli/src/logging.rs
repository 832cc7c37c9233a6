//! The daemons' log: lines on stderr, and the status channels of the Manager.

use std::ffi::OsStr;
use std::io::IsTerminal;

use greenroom_manager::StatusLog;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Colours are for a person at a terminal who did not say otherwise (NO_COLOR, to anything but the
/// empty text). Whatever else reads the log would have to pick them out again.
fn is_coloured(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Sends everything logged to stderr, filtered by GREENROOM_LOG (default: info for our own parts,
/// warnings of others), and to the status log that is given back.
pub(crate) fn install(default: &str) -> StatusLog {
    let status_log = StatusLog::new();
    let filter =
        EnvFilter::try_from_env(crate::env::LOG).unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(is_coloured(
            std::io::stderr().is_terminal(),
            std::env::var_os("NO_COLOR").as_deref(),
        ))
        .with_writer(std::io::stderr)
        .with_filter(filter);
    tracing_subscriber::registry()
        .with(lines)
        .with(status_log.layer())
        .init();
    status_log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_a_terminal_whose_user_did_not_say_no() {
        assert!(is_coloured(true, None));
        assert!(is_coloured(true, Some(OsStr::new(""))));
        assert!(!is_coloured(true, Some(OsStr::new("1"))));
        assert!(!is_coloured(false, None));
        assert!(!is_coloured(false, Some(OsStr::new(""))));
    }
}
