//! Which number is to be sent now, or until when to wait (MEDIA-02). Pure: the time is an argument.
//!
//! Each due instant is computed from the number, never from the previous instant, so nothing
//! drifts. A sender that comes late sends what is due now and skips the rest: a burst of old
//! numbers would reach the viewer too late and break epoch lock with another copy.

use std::time::Duration;

use crate::rate::Rate;

/// How far the wall clock may go back before its new time is believed. A smaller step (time
/// synchronisation at work) is waited out, so that no number is sent twice; after a greater one
/// the other copies of the channel are at the new time, and waiting would be an outage.
pub(super) const STEP_BACK_WAITED_OUT: Duration = Duration::from_secs(2);

/// How much a target of a handover catches up with.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is due before this instant (nanoseconds since the Unix epoch).
    Wait { until_ns: u64 },
    /// Send this number now; so many before it were due since the last call and are left out.
    Send { number: u64, skipped: u64 },
    /// The wall clock went back too far; the numbers follow it. Ask again.
    ClockWentBack { from: u64, to: u64 },
}

/// Remembers how far the numbers are.
#[derive(Debug)]
pub(super) struct Pacer {
    rate: Rate,
    /// The last number sent, or the one whose instant was over when the first call came.
    last: Option<u64>,
    has_sent: bool,
    /// Numbers that are due are sent one by one until it is at the present.
    catches_up: bool,
    /// How late it may be and still leave nothing out.
    catch_up: Duration,
}

// === impl Pacer ===

impl Pacer {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            last: None,
            has_sent: false,
            catches_up: false,
            catch_up: Duration::ZERO,
        }
    }

    /// A sender that is late by no more than this sends one by one what was due.
    pub(super) const fn catching_up(mut self, catch_up: Duration) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// Goes on after the number at which another sender ended: with the very next one, and with all
    /// that are due, so that a handover leaves none out. After a longer break than a viewer can make
    /// up for it goes on at the present.
    pub(super) fn begin_after(&mut self, last: u64, wall_ns: u64) {
        let due = self.rate.number_at(wall_ns);
        let oldest = self
            .rate
            .number_at(wall_ns.saturating_sub(CATCH_UP_MAX.as_nanos() as u64));
        (self.last, self.has_sent) = (Some(last.max(oldest)), true);
        self.catches_up = due > last;
    }

    /// The last number sent, or the present one before the first.
    pub(super) fn last(&self, wall_ns: u64) -> u64 {
        self.last.unwrap_or_else(|| self.rate.number_at(wall_ns))
    }

    /// What to do at a wall time, if everything is to go out `delay` after it is due.
    pub(super) fn next(&mut self, wall_ns: u64, delay: Duration) -> Step {
        let delay_ns = delay.as_nanos() as u64;
        let media_ns = wall_ns.saturating_sub(delay_ns);
        let due = self.rate.number_at(media_ns);
        // The first packet is the first one whose instant can still be met.
        let last = *self.last.get_or_insert(due);
        if due > last + 1 && self.has_sent {
            let late_ns = media_ns.saturating_sub(self.rate.due_ns(last + 1));
            self.catches_up |= u128::from(late_ns) <= self.catch_up.as_nanos();
        }
        if due > last && self.catches_up {
            let number = last + 1;
            self.catches_up = number < due;
            self.last = Some(number);
            return Step::Send { number, skipped: 0 };
        }
        if due > last {
            self.last = Some(due);
            // Before the first packet there is nothing that it could be a gap in.
            let skipped = if self.has_sent { due - last - 1 } else { 0 };
            self.has_sent = true;
            return Step::Send {
                number: due,
                skipped,
            };
        }
        let next_ns = self.rate.due_ns(last + 1);
        let ahead_ns = next_ns - self.rate.due_ns(due + 1);
        if ahead_ns > STEP_BACK_WAITED_OUT.as_nanos() as u64 + delay_ns {
            self.last = Some(due);
            return Step::ClockWentBack {
                from: last,
                to: due,
            };
        }
        Step::Wait {
            until_ns: next_ns + delay_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: u64 = 1_700_000_000_000 * MS;
    const NO_DELAY: Duration = Duration::ZERO;

    fn pacer() -> (Pacer, u64) {
        let rate = Rate::default();
        (Pacer::new(rate), rate.number_at(NOW))
    }

    // spec: MEDIA-02
    #[test]
    fn packets_go_out_at_their_due_instants() {
        let (mut pacer, n) = pacer();
        let mut now = NOW + 7 * MS;
        for step in 1..=1000 {
            let due = NOW + step * 20 * MS;
            assert_eq!(pacer.next(now, NO_DELAY), Step::Wait { until_ns: due });
            // Waking up late by 3 ms each time shifts nothing that follows.
            now = due + 3 * MS;
            assert_eq!(
                pacer.next(now, NO_DELAY),
                Step::Send {
                    number: n + step,
                    skipped: 0
                }
            );
        }
    }

    // spec: MEDIA-02
    #[test]
    fn a_late_sender_sends_what_is_due_now() {
        let (mut pacer, n) = pacer();
        pacer.next(NOW, NO_DELAY);
        let now = NOW + 45 * MS;
        assert_eq!(
            pacer.next(now, NO_DELAY),
            Step::Send {
                number: n + 2,
                skipped: 0
            }
        );
        let now = NOW + 105 * MS;
        assert_eq!(
            pacer.next(now, NO_DELAY),
            Step::Send {
                number: n + 5,
                skipped: 2
            }
        );
        assert_eq!(
            pacer.next(now, NO_DELAY),
            Step::Wait {
                until_ns: NOW + 120 * MS
            }
        );
    }

    // spec: MEDIA-02
    #[test]
    fn two_senders_are_at_the_same_number() {
        let (mut one, n) = pacer();
        let (mut other, _) = pacer();
        one.next(NOW, NO_DELAY);
        one.next(NOW + 20 * MS, NO_DELAY);
        other.next(NOW + 25 * MS, NO_DELAY);
        let send = Step::Send {
            number: n + 2,
            skipped: 0,
        };
        assert_eq!(one.next(NOW + 40 * MS, NO_DELAY), send);
        assert_eq!(other.next(NOW + 40 * MS, NO_DELAY), send);
    }

    #[test]
    fn a_delay_that_begins_repeats_nothing() {
        let (mut pacer, n) = pacer();
        let delay = Duration::from_millis(80);
        pacer.next(NOW, NO_DELAY);
        let first = pacer.next(NOW + 20 * MS, NO_DELAY);
        assert_eq!(
            first,
            Step::Send {
                number: n + 1,
                skipped: 0
            }
        );
        let until_ns = NOW + 120 * MS;
        assert_eq!(pacer.next(NOW + 21 * MS, delay), Step::Wait { until_ns });
        let second = pacer.next(until_ns, delay);
        assert_eq!(
            second,
            Step::Send {
                number: n + 2,
                skipped: 0
            }
        );
    }

    #[test]
    fn a_small_step_back_is_waited_out_and_a_great_one_followed() {
        let (mut pacer, n) = pacer();
        pacer.next(NOW, NO_DELAY);
        pacer.next(NOW + 20 * MS, NO_DELAY);
        let wait = pacer.next(NOW - 1_900 * MS, NO_DELAY);
        assert_eq!(
            wait,
            Step::Wait {
                until_ns: NOW + 40 * MS
            }
        );
        let back = pacer.next(NOW - 10_000 * MS, NO_DELAY);
        assert_eq!(
            back,
            Step::ClockWentBack {
                from: n + 1,
                to: n - 500
            }
        );
        let send = pacer.next(NOW - 9_980 * MS, NO_DELAY);
        assert_eq!(
            send,
            Step::Send {
                number: n - 499,
                skipped: 0
            }
        );
    }

    // spec: MEDIA-02
    #[test]
    fn a_sender_told_to_catch_up_leaves_nothing_out_unless_it_is_too_late() {
        let (pacer, n) = pacer();
        let mut pacer = pacer.catching_up(Duration::from_millis(100));
        let send = |number, skipped| Step::Send { number, skipped };
        pacer.next(NOW, NO_DELAY);
        assert_eq!(pacer.next(NOW + 20 * MS, NO_DELAY), send(n + 1, 0));
        for number in [n + 2, n + 3, n + 4] {
            assert_eq!(pacer.next(NOW + 85 * MS, NO_DELAY), send(number, 0));
        }
        let until_ns = NOW + 100 * MS;
        assert_eq!(pacer.next(NOW + 85 * MS, NO_DELAY), Step::Wait { until_ns });
        assert_eq!(pacer.next(NOW + 205 * MS, NO_DELAY), send(n + 10, 5));
    }

    // Goal: what the source ended with is gone on with, nothing left out and nothing twice. Method: the
    // target hears of it late, early, and far too late.
    // spec: MEDIA-03
    #[test]
    fn a_target_goes_on_after_the_last_number_of_its_source() {
        let sends = |last: u64, at: u64, calls: usize| {
            let (mut pacer, _) = pacer();
            pacer.begin_after(last, at);
            let step = |_| match pacer.next(at, NO_DELAY) {
                Step::Send { number, skipped } => (number, skipped),
                other => panic!("{other:?}"),
            };
            (0..calls).map(step).collect::<Vec<_>>()
        };
        let (_, n) = pacer();
        // Three numbers were due while the news was under way.
        assert_eq!(
            sends(n, NOW + 65 * MS, 3),
            [(n + 1, 0), (n + 2, 0), (n + 3, 0)]
        );
        let (mut early, n) = pacer();
        early.begin_after(n, NOW + 5 * MS);
        let until_ns = NOW + 20 * MS;
        assert_eq!(early.next(NOW + 5 * MS, NO_DELAY), Step::Wait { until_ns });
        let send = Step::Send {
            number: n + 1,
            skipped: 0,
        };
        assert_eq!(early.next(until_ns, NO_DELAY), send);
        // Caught up, it is a sender like any other: late, it leaves out.
        let send = Step::Send {
            number: n + 4,
            skipped: 2,
        };
        assert_eq!(early.next(NOW + 80 * MS, NO_DELAY), send);
        let hour = NOW + 3_600_000 * MS;
        let rate = Rate::default();
        let present = rate.number_at(hour);
        assert_eq!(sends(n, hour, 1), [(present - 1_500 + 1, 0)]);
    }
}
