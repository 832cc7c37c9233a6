//! File descriptors: a process that has none left can neither write its log nor reach its workers, so
//! connections of callers are refused before that (LIM-10).

use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that connections of callers leave for everything else.
const KEPT: u64 = 64;

/// The number from which on connections are refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceiling(u64);

// === impl Ceiling ===

impl Ceiling {
    /// By the limit as it is now.
    pub(crate) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self(limit.saturating_sub(KEPT))
    }

    /// Whether a connection would take what is kept. The system gives the lowest free number, so one
    /// at the ceiling means that every number below is in use.
    pub(crate) fn is_reached(self, connection: &impl AsRawFd) -> bool {
        let number: RawFd = connection.as_raw_fd();
        u64::try_from(number).is_ok_and(|number| number >= self.0)
    }
}

/// Raises this process's limit of open files to what the system lets it have. Without leave the limit
/// stays.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(?current, ?maximum, %error, "the limit of open files cannot be raised");
    }
}
