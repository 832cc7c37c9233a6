//! Pauses between tries, and ids that do not repeat.
//!
//! Jitter keeps many clients of one Manager from coming back in the same instant. It needs no
//! quality, so one seed of real randomness per client drives a small generator.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greenroom_types::SplitMix64;

use crate::settings::Retry;

/// Source of jitter and request ids of one client.
#[derive(Debug)]
pub(crate) struct Dice {
    prefix: String,
    ids: AtomicU64,
    jitter: AtomicU64,
}

/// The growing pauses of one row of tries.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    retry: Retry,
}

// === impl Dice ===

impl Dice {
    /// Takes 24 bytes of the system's randomness.
    pub(crate) fn seed() -> Result<Self, getrandom::Error> {
        let mut bytes = [0_u8; 24];
        getrandom::fill(&mut bytes)?;
        let (prefix, jitter) = bytes.split_at(16);
        let prefix = prefix.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let jitter = jitter
            .iter()
            .fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
        Ok(Self {
            prefix,
            ids: AtomicU64::new(0),
            jitter: AtomicU64::new(jitter),
        })
    }

    /// A request id that no other call has (API-07): 128 random bits of this client and a count.
    pub(crate) fn request_id(&self) -> String {
        format!(
            "{}-{}",
            self.prefix,
            self.ids.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Between half of `pause` and all of it.
    fn shorten(&self, pause: Duration) -> Duration {
        let seed = self.jitter.fetch_add(1, Ordering::Relaxed);
        let drawn = SplitMix64::new(seed).draw();
        let parts = u32::try_from(drawn % 512).unwrap_or_default();
        pause / 2 + pause * parts / 1024
    }
}

// === impl Backoff ===

impl Backoff {
    pub(crate) const fn new(retry: Retry) -> Self {
        Self {
            next: retry.first_pause,
            retry,
        }
    }

    /// How long to wait before the next try.
    pub(crate) fn pause(&mut self, dice: &Dice) -> Duration {
        let pause = self.next.min(self.retry.longest_pause);
        self.next = pause.saturating_mul(2);
        dice.shorten(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SDK-05
    #[test]
    fn pauses_double_from_100_ms_to_2_s_and_keep_at_least_half() {
        let dice = Dice::seed().unwrap();
        let mut backoff = Backoff::new(Retry::default());
        for full in [100, 200, 400, 800, 1600, 2000, 2000] {
            let full = Duration::from_millis(full);
            let pause = backoff.pause(&dice);
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
    }

    // spec: SDK-05
    #[test]
    fn request_ids_differ_and_have_the_form_that_the_manager_takes() {
        let dice = Dice::seed().unwrap();
        let (one, two) = (dice.request_id(), dice.request_id());
        assert_ne!(one, two);
        assert_ne!(one, Dice::seed().unwrap().request_id());
        assert!((1..=64).contains(&one.len()) && one.bytes().all(|byte| byte.is_ascii_graphic()));
    }
}
