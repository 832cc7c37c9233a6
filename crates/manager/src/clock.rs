//! The one place where the Manager reads a clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use greenroom_types::{Millis, Mono, Now, Wall};

/// Both clocks of this process. The monotonic one begins at 0 with the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemClock {
    begin: Instant,
}

// === impl SystemClock ===

impl SystemClock {
    pub(crate) fn new() -> Self {
        Self {
            begin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.mono(),
            wall: wall(),
        }
    }

    pub(crate) fn mono(&self) -> Mono {
        Mono(u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The instant at which [`SystemClock::mono`] will read `at`.
    pub(crate) fn instant(&self, at: Mono) -> tokio::time::Instant {
        let Millis(ms) = at - Mono(0);
        tokio::time::Instant::from_std(self.begin + std::time::Duration::from_millis(ms))
    }
}

pub(crate) fn wall() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl greenroom_store::Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        wall().0
    }
}
