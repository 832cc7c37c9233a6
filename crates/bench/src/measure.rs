//! CPU time of this thread, percentiles, and what the allocator counted.

use std::time::Instant;

use greenroom_types::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::Region;

use crate::ALLOCATOR;

/// CPU time of this thread in nanoseconds.
pub(crate) fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// CPU time that something took, in nanoseconds, and its answer.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = cpu();
    let answer = work();
    (answer, cpu() - start)
}

/// Bytes that something left allocated, and the number of its allocations.
pub(crate) fn allocated<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    let region = Region::new(ALLOCATOR);
    let answer = work();
    let change = region.change();
    let bytes = change.bytes_allocated as f64 - change.bytes_deallocated as f64;
    (
        answer,
        bytes,
        (change.allocations + change.reallocations) as f64,
    )
}

/// Times of single pieces of work, by the wall.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

// === impl Samples ===

impl Samples {
    pub(crate) fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = work();
        self.0.push(start.elapsed().as_nanos() as f64);
        answer
    }

    pub(crate) fn push(&mut self, nanos: f64) {
        self.0.push(nanos);
    }

    pub(crate) fn percentile(&mut self, percent: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let at = (self.0.len() as f64 * percent / 100.0) as usize;
        self.0
            .get(at.min(self.0.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    }

    pub(crate) fn longest(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }
}

/// Numbers that are the same in every run.
#[derive(Debug)]
pub(crate) struct Dice(SplitMix64);

// === impl Dice ===

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) const fn roll(&mut self, sides: usize) -> usize {
        (self.0.draw() % sides as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len())]
    }
}
