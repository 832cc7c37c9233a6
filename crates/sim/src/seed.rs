//! Random ids of a run from its one seed. Unique, the same at every run, and not secret.

use greenroom_types::SplitMix64;

/// Numbers and ids from one seed.
#[derive(Clone, Debug)]
pub(crate) struct Seed(SplitMix64);

// === impl Seed ===

impl Seed {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// 32 hexadecimal digits.
    pub(crate) fn hex(&mut self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}
