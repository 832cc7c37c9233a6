//! How long something took, counted by ranges.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the ranges, in seconds: from half a millisecond, a flush to a fast disk, to ten
/// seconds, after which callers have given up.
const BOUNDS: [f64; 14] = [
    0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Durations counted by ranges. Counting never waits.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

// === impl Histogram ===

impl Histogram {
    /// Counts one.
    pub fn note(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let place = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// How many were in each range, by its upper bound in seconds, the last without one; and the sum of
    /// all in seconds.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the sum is shown as a floating-point number"
    )]
    pub(crate) fn read(&self) -> (impl Iterator<Item = (Option<f64>, u64)>, f64) {
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        let counts = self.counts.iter().map(|it| it.load(Ordering::Relaxed));
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        (bounds.zip(counts), sum)
    }
}
