//! The policy looks after itself in service: on a timer everything that it derives is worked out anew
//! and compared (METR-08). What does not agree is a bug; it is told, and nothing is changed for it.

use std::sync::{Arc, PoisonError};

use greenroom_types::Millis;

use crate::driver::Shared;

/// Time between two checks. One holds the loop up for as long as it takes, some milliseconds for a
/// thousand nodes.
pub(crate) const EVERY: Millis = Millis(60_000);

/// Violations that are kept in words; the first ones tell most.
const KEPT: usize = 20;

/// What the checks of one instance found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Checks made.
    pub made: u64,
    /// Violations found by all of them; one that stays is counted each time.
    pub found: u64,
    /// How many the last one found.
    pub standing: u64,
    /// The first of those, in words.
    pub violations: Vec<String>,
}

// === impl Checks ===

impl Checks {
    /// Takes what a check found, and gives what the one before did not have.
    fn take(&mut self, mut found: Vec<String>) -> Vec<String> {
        let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
        self.made += 1;
        self.found += count;
        self.standing = count;
        found.truncate(KEPT);
        let news = found.iter().filter(|text| !self.violations.contains(text));
        let news = news.cloned().collect();
        self.violations = found;
        news
    }
}

/// Checks from time to time, for as long as the instance takes inputs.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        let next = shared.clock.now().mono + EVERY;
        shared.clock.sleep_until(next).await;
        let found = {
            let policy = shared.policy.read().unwrap_or_else(PoisonError::into_inner);
            if !policy.is_live() {
                continue;
            }
            policy.check().iter().map(ToString::to_string).collect()
        };
        let mut checks = shared.checks.lock().unwrap_or_else(PoisonError::into_inner);
        for violation in checks.take(found) {
            tracing::warn!(violation, "the policy disagrees with itself; this is a bug");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: METR-08
    #[test]
    fn what_stays_is_counted_each_time_and_told_once() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut checks = Checks::default();
        assert_eq!(checks.take(texts(&[])), texts(&[]));
        assert_eq!(checks.take(texts(&["a", "b"])), texts(&["a", "b"]));
        assert_eq!(checks.take(texts(&["b", "c"])), texts(&["c"]));
        assert_eq!((checks.made, checks.found, checks.standing), (3, 4, 2));
        assert_eq!(checks.take(texts(&[])), texts(&[]));
        assert_eq!((checks.found, checks.standing), (4, 0));
        let many: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        assert_eq!(checks.take(many).len(), KEPT);
        assert_eq!((checks.standing, checks.violations.len()), (100, KEPT));
    }
}
