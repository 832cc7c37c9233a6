//! The one place where this crate reads a clock (TIME-03, TIME-05).
//!
//! The loop asks a [`Clock`] once per input and hands the answer to the policy; durations are counted
//! on the monotonic half, instants of others on the wall half. An embedder may bring its own.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use greenroom_types::{Mono, Now, Wall};

/// Both clocks of an instance, and waiting on the monotonic one (TIME-05).
pub trait Clock: Send + Sync + 'static {
    /// What both clocks say now. The monotonic one never goes back.
    fn now(&self) -> Now;

    /// Resolves when the monotonic clock shows `at` or more.
    fn sleep_until(&self, at: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The system's clocks; the monotonic one begins at 0 when this value is made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    begin: Instant,
}

// === impl SystemClock ===

impl SystemClock {
    /// Begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            begin: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: Mono(u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)),
            wall: Wall(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    fn sleep_until(&self, at: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self.begin.checked_add(Duration::from_millis(at.0)) {
            Some(instant) => Box::pin(tokio::time::sleep_until(instant.into())),
            // Beyond what the system's clock can say is beyond the life of the process.
            None => Box::pin(std::future::pending()),
        }
    }
}
