//! Random courses of faults.

use std::fmt;

use rand::Rng;
use rand::rngs::StdRng;

/// Faults of one course.
const FAULTS: std::ops::RangeInclusive<usize> = 2..=6;
/// The longest pause before one.
const PAUSE_MS: u64 = 1_500;
/// The longest time from the last to the mending: longer than a lease and its grace.
const LAST_MS: u64 = 5_000;

/// What is done to the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    HangManager,
    WakeManager,
    KillManager,
    HangWorker(usize),
    WakeWorker(usize),
    KillWorker(usize),
    HangGuard(usize),
    KillGuard(usize),
    Cut(usize),
    Heal(usize),
    /// The whole node stands still.
    Sleep(usize),
}

/// An act, and how long after the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) after_ms: u64,
    pub(super) act: Act,
}

/// A course; what is still amiss at its end is mended.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) last_ms: u64,
}

// === impl Act ===

impl Act {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::HangManager => "hung Managers",
            Self::KillManager => "killed Managers",
            Self::HangWorker(_) => "hung workers",
            Self::KillWorker(_) => "killed workers",
            Self::HangGuard(_) => "hung guards",
            Self::KillGuard(_) => "killed guards",
            Self::Cut(_) => "cuts",
            Self::Sleep(_) => "sleeping nodes",
            Self::WakeManager | Self::WakeWorker(_) | Self::Heal(_) => "mended",
        }
    }
}

// === impl Plan ===

impl Plan {
    pub(super) fn draw(random: &mut StdRng, workers: usize, cuts: bool) -> Self {
        let count = random.random_range(FAULTS);
        let mut steps = Vec::new();
        for _ in 0..count {
            let worker = random.random_range(0..workers);
            let act = match random.random_range(0..if cuts { 24 } else { 19 }) {
                0..=3 => Act::HangWorker(worker),
                4..=5 => Act::KillWorker(worker),
                6..=7 => Act::HangGuard(worker),
                8..=9 => Act::KillGuard(worker),
                10..=11 => Act::HangManager,
                12..=13 => Act::KillManager,
                14 => Act::WakeManager,
                15..=16 => Act::WakeWorker(worker),
                17 => Act::Sleep(worker),
                18 => {
                    // Both that stand before the supervisor, at once.
                    steps.push(Step {
                        after_ms: random.random_range(0..PAUSE_MS),
                        act: Act::HangWorker(worker),
                    });
                    let after_ms = 0;
                    let act = Act::KillGuard(worker);
                    steps.push(Step { after_ms, act });
                    continue;
                }
                19..=21 => Act::Cut(worker),
                _ => Act::Heal(worker),
            };
            let after_ms = random.random_range(0..PAUSE_MS);
            steps.push(Step { after_ms, act });
        }
        Self {
            steps,
            last_ms: random.random_range(0..LAST_MS),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "+{} ms {:?}, ", step.after_ms, step.act)?;
        }
        write!(f, "+{} ms mended", self.last_ms)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_seed_gives_one_course_and_without_a_network_nothing_is_cut() {
        let draw = |seed, cuts| Plan::draw(&mut StdRng::seed_from_u64(seed), 3, cuts);
        let mut cut = 0;
        for seed in 0..500 {
            assert_eq!(draw(seed, true).to_string(), draw(seed, true).to_string());
            let is_cut = |plan: &Plan| {
                let mut acts = plan.steps.iter().map(|step| step.act);
                acts.any(|act| matches!(act, Act::Cut(_)))
            };
            cut += usize::from(is_cut(&draw(seed, true)));
            assert!(!is_cut(&draw(seed, false)));
        }
        assert!(cut > 50, "{cut}");
    }
}
