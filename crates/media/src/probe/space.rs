//! What the analyser keeps for each space of numbers, and how long packets are under way. Pure.

use super::event::Run;
use super::numbers::{Continuity, Numbers};
use crate::packet::TestPacket;

/// Like findings closer together than this are one finding line.
pub(super) const RUN_MERGE_US: u64 = 1_000_000;

/// The lowest transit time is taken from the last one to two of these, so that clocks drifting
/// apart by 100 ppm show as 2 ms and not as a growing delay.
const TRANSIT_WINDOW_US: u64 = 10_000_000;

/// One space of numbers with the findings that may still grow.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) name: String,
    pub(super) numbers: Numbers,
    pub(super) continuity: Continuity,
    pub(super) repeated: Option<Run>,
    pub(super) reordered: Option<Run>,
    pub(super) late: Option<Run>,
}

/// Lowest transit time of this window and of the one before.
#[derive(Debug, Default)]
pub(super) struct Transit {
    window: u64,
    lowest: Option<i64>,
    lowest_before: Option<i64>,
}

// === impl Space ===

impl Space {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            numbers: Numbers::default(),
            continuity: Continuity::default(),
            repeated: None,
            reordered: None,
            late: None,
        }
    }
}

// === impl Transit ===

impl Transit {
    /// How late a test packet is, as [`late_us`](super::analyser::Settings::late_us) defines it.
    pub(super) fn delay_us(&mut self, at_us: u64, test: &TestPacket<'_>) -> u64 {
        // 90 kHz ticks of the sender's wall time, compared as RTP time wraps.
        let wall_ticks = (u128::from(test.wall_us) * 9 / 100) as u32;
        let behind_ticks = wall_ticks.wrapping_sub(test.rtp_time).cast_signed().max(0);
        let sender_us = u64::from(behind_ticks.unsigned_abs()) * 100 / 9;

        let transit = at_us.cast_signed().wrapping_sub(test.wall_us.cast_signed());
        let window = at_us / TRANSIT_WINDOW_US;
        if window != self.window {
            self.lowest_before = if window == self.window + 1 {
                self.lowest
            } else {
                None
            };
            self.lowest = None;
            self.window = window;
        }
        self.lowest = Some(self.lowest.map_or(transit, |lowest| lowest.min(transit)));
        let base = self
            .lowest
            .into_iter()
            .chain(self.lowest_before)
            .min()
            .unwrap_or(transit);
        sender_us + transit.abs_diff(base)
    }
}

/// Adds a finding to a space's run of its kind, or begins one.
pub(super) fn extend(
    space: &mut Space,
    run: impl Fn(&mut Space) -> &mut Option<Run>,
    (number, at_us, worst_us): (u64, u64, Option<u64>),
) {
    if let Some(run) = run(space) {
        run.first = run.first.min(number);
        run.last = run.last.max(number);
        run.count += 1;
        run.until_us = at_us;
        run.worst_us = run.worst_us.max(worst_us);
        return;
    }
    let numbers_of = space.name.clone();
    let (from_us, until_us) = (at_us, at_us);
    let (first, last, count) = (number, number, 1);
    *run(space) = Some(Run {
        numbers_of,
        first,
        last,
        count,
        from_us,
        until_us,
        worst_us,
    });
}
