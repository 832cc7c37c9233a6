//! Slows a worker that floods (LIM-08): what it says beyond the pace is not read, so that flow control
//! holds it back. Nothing is dropped.

use std::time::Duration;

use tokio::time::Instant;

/// Time that one message stands for: 1 000 a second.
const MESSAGE: Duration = Duration::from_millis(1);
/// So far a worker may be ahead of the pace: a reconnect brings many reports at once.
const AHEAD: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Pace {
    /// When all messages so far would have come at the pace.
    level_at: Instant,
    told: bool,
}

// === impl Pace ===

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            level_at: now,
            told: false,
        }
    }

    /// A message was read.
    pub(super) fn count(&mut self, now: Instant) {
        self.level_at = self.level_at.max(now) + MESSAGE;
    }

    /// From when on the next message may be read; none: at once.
    pub(super) fn closed_until(&self, now: Instant) -> Option<Instant> {
        let open = self.level_at.checked_sub(AHEAD)?;
        (open > now).then_some(open)
    }

    /// True the first time that it is closed.
    pub(super) fn tell_once(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LIM-08
    #[test]
    fn a_flood_is_read_at_a_thousand_a_second_once_five_seconds_of_it_came_at_once() {
        let begun = Instant::now() + Duration::from_secs(60);
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut pace = Pace::new(begun);
        for _ in 0..5_000 {
            assert_eq!(pace.closed_until(begun), None);
            pace.count(begun);
        }
        pace.count(begun);
        assert_eq!(pace.closed_until(begun), Some(at(1)));
        // From here on one a millisecond, however hard it presses.
        let mut read = 0;
        for ms in 1..=1_000 {
            while pace.closed_until(at(ms)).is_none() {
                pace.count(at(ms));
                read += 1;
            }
        }
        assert_eq!(read, 1_000);
        // Whoever keeps the pace is never held up.
        let mut pace = Pace::new(begun);
        for ms in 0..60_000 {
            assert_eq!(pace.closed_until(at(ms)), None);
            pace.count(at(ms));
        }
        assert!(pace.tell_once() && !pace.tell_once());
    }
}
