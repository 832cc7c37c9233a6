//! Waits between attempts to dial: 100 ms doubling to 5 s, with up to 20 % jitter (MNODE-10).

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_millis(5_000);

#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// The next wait; `chance` is a random byte.
    pub(super) fn next(&mut self, chance: u8) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LAST);
        wait + wait.mul_f64(0.2 * f64::from(chance) / 255.0)
    }

    pub(super) const fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_jitter_adds_at_most_a_fifth() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..8).map(|_| backoff.next(0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(backoff.next(255).as_millis(), 6_000);
        backoff.reset();
        assert_eq!(backoff.next(255).as_millis(), 120);
    }
}
