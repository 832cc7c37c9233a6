//! The signals that end a process in order.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGTERM and Ctrl-C, caught from the moment this exists.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// SIGHUP, where it was not ignored by whoever started this process, as `nohup` does.
pub(crate) struct Hangup(Option<Signal>);

// === impl Signals ===

impl Signals {
    pub(crate) fn install() -> Result<Self, Failure> {
        Ok(Self {
            terminate: caught(SignalKind::terminate())?,
            interrupt: caught(SignalKind::interrupt())?,
        })
    }

    /// Resolves with the next one.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

// === impl Hangup ===

impl Hangup {
    pub(crate) fn install() -> Result<Self, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if is_hangup_ignored(&status) {
            return Ok(Self(None));
        }
        Ok(Self(Some(caught(SignalKind::hangup())?)))
    }

    /// Resolves with the next one; never where it is ignored.
    pub(crate) async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

fn caught(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))
}

/// Reads the mask of ignored signals; SIGHUP is number 1, its lowest bit.
fn is_hangup_ignored(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_read_from_the_mask() {
        let status = |mask: &str| format!("Name:\tx\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        assert!(is_hangup_ignored(&status("0000000000000001")));
        assert!(is_hangup_ignored(&status("0000000000001003")));
        assert!(!is_hangup_ignored(&status("0000000000001000")));
        assert!(!is_hangup_ignored(""));
    }
}
