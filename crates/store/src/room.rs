//! Whether the disk has room for more (STORE-09).
//!
//! The store only answers; which calls are refused while it is low is the caller's
//! matter, because only the caller knows which of them make room again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the disk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Everything may be written.
    Plenty,
    /// Less is free than configured: only what ends or removes things should be written.
    Low,
}

pub(crate) struct RoomGauge {
    min_free_bytes: u64,
    low: AtomicBool,
}

impl RoomGauge {
    pub(crate) fn new(min_free_bytes: u64) -> Self {
        Self {
            min_free_bytes,
            low: AtomicBool::new(false),
        }
    }

    /// Asks the file system once; one system call, no allocation of note.
    pub(crate) fn room(&self, dir: &Path) -> std::io::Result<Room> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(self.judge(stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    /// Low below the limit, plenty again at twice the limit, else as before.
    fn judge(&self, free_bytes: u64) -> Room {
        let was_low = self.low.load(Ordering::Relaxed);
        let low = if was_low {
            free_bytes < self.min_free_bytes.saturating_mul(2)
        } else {
            free_bytes < self.min_free_bytes
        };
        if low != was_low {
            self.low.store(low, Ordering::Relaxed);
            if low {
                tracing::warn!(
                    free_bytes,
                    min_free_bytes = self.min_free_bytes,
                    "disk space is low"
                );
            } else {
                tracing::info!(free_bytes, "disk space is back to normal");
            }
        }
        if low { Room::Low } else { Room::Plenty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: STORE-09
    #[test]
    fn low_below_the_limit_and_plenty_only_at_twice_the_limit() {
        let gauge = RoomGauge::new(100);
        let seen: Vec<Room> = [100, 99, 100, 199, 200, 100, 99]
            .map(|free| gauge.judge(free))
            .into();
        use Room::{Low, Plenty};
        assert_eq!(seen, [Plenty, Low, Low, Low, Plenty, Plenty, Low]);
    }
}
