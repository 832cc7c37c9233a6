//! Whether a service that ended is started again, and after how long (WORK-18).
//!
//! It knows only the ends of one service. It starts nothing, and it does not know of the services
//! around it.

use std::collections::VecDeque;

use greenroom_types::job::ServiceRestart;
use greenroom_types::{Millis, Mono};
use serde::{Deserialize, Serialize};

/// Restarts allowed in a period where the job says 0.
const COUNT_DEFAULT: u32 = 3;
/// The period in seconds where the job says 0.
const PERIOD_DEFAULT: u32 = 60;
/// Wait before the first restart of a period; it doubles with each further one.
const DELAY_FIRST: Millis = Millis(1_000);
/// The wait never grows beyond this.
const DELAY_MAX: Millis = Millis(30_000);

/// How a service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The kernel took it for want of memory.
    OutOfMemory,
}

/// A service's restart policy, as the job gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RestartRule {
    /// On which ends.
    pub(crate) when: ServiceRestart,
    /// How often in a period; 0 for the default.
    pub(crate) count: u32,
    /// Length of the period in seconds; 0 for the default.
    pub(crate) period: u32,
}

/// What follows from an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Start it again after this time.
    Restart(Millis),
    /// It did what it was to do.
    Finished,
    /// It fails the instance.
    Failed,
}

/// The restarts of one service that still count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restarts(VecDeque<Mono>);

// === impl Exit ===

impl Exit {
    pub(crate) const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::OutOfMemory => f.write_str("out of memory"),
        }
    }
}

// === impl Restarts ===

impl Restarts {
    /// Takes note of an end and says what follows.
    pub(crate) fn after_exit(&mut self, now: Mono, rule: RestartRule, exit: Exit) -> Verdict {
        let wanted = match rule.when {
            ServiceRestart::Never => false,
            ServiceRestart::OnFailure => !exit.is_success(),
            ServiceRestart::Always => true,
        };
        if !wanted {
            return if exit.is_success() {
                Verdict::Finished
            } else {
                Verdict::Failed
            };
        }
        let or = |value, default| if value == 0 { default } else { value };
        let period = Millis::from_secs(u64::from(or(rule.period, PERIOD_DEFAULT)));
        self.0.retain(|at| now - *at < period);
        let so_far = self.0.len();
        if so_far >= or(rule.count, COUNT_DEFAULT) as usize {
            return Verdict::Failed;
        }
        self.0.push_back(now);
        let doubled = DELAY_FIRST.0 << so_far.min(10);
        Verdict::Restart(Millis(doubled.min(DELAY_MAX.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(when: ServiceRestart, count: u32, period: u32) -> RestartRule {
        RestartRule {
            when,
            count,
            period,
        }
    }

    // spec: WORK-18
    #[test]
    fn each_policy_restarts_on_its_own_ends() {
        let after = |when, exit| Restarts::default().after_exit(Mono(0), rule(when, 0, 0), exit);
        let restart = Verdict::Restart(Millis(1_000));
        for exit in [Exit::Code(1), Exit::Signal(9), Exit::OutOfMemory] {
            assert_eq!(after(ServiceRestart::Never, exit), Verdict::Failed);
            assert_eq!(after(ServiceRestart::OnFailure, exit), restart);
            assert_eq!(after(ServiceRestart::Always, exit), restart);
        }
        assert_eq!(
            after(ServiceRestart::Never, Exit::Code(0)),
            Verdict::Finished
        );
        assert_eq!(
            after(ServiceRestart::OnFailure, Exit::Code(0)),
            Verdict::Finished
        );
        assert_eq!(after(ServiceRestart::Always, Exit::Code(0)), restart);
    }

    // spec: WORK-18
    #[test]
    fn zero_stands_for_three_in_sixty_seconds() {
        let mut restarts = Restarts::default();
        let mut end = |at| {
            restarts.after_exit(
                Mono(at),
                rule(ServiceRestart::OnFailure, 0, 0),
                Exit::Code(1),
            )
        };
        assert_eq!(end(0), Verdict::Restart(Millis(1_000)));
        assert_eq!(end(1_000), Verdict::Restart(Millis(2_000)));
        assert_eq!(end(3_000), Verdict::Restart(Millis(4_000)));
        assert_eq!(end(59_999), Verdict::Failed);
        // The first one, at 0, counts no longer.
        assert_eq!(end(60_000), Verdict::Restart(Millis(4_000)));
    }

    // spec: WORK-18
    #[test]
    fn the_wait_doubles_up_to_thirty_seconds() {
        let mut restarts = Restarts::default();
        let waits: Vec<_> = (0..8)
            .map(|n| {
                let rule = rule(ServiceRestart::Always, 100, 3_600);
                restarts.after_exit(Mono(n), rule, Exit::Code(0))
            })
            .map(|verdict| match verdict {
                Verdict::Restart(after) => after.0 / 1_000,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
