//! One space of numbers: which came, which are missing, repeated or out of order. Pure.
//!
//! A number is missing once it was not seen for [`REORDER_US`] after a higher one; until then its
//! place is an open hole. So a received number needs no memory of its own: whatever is neither
//! above the highest nor in a hole was there before, and is a repetition.

use std::collections::BTreeMap;

/// How long a hole may still be filled by a packet that took a longer way, in microseconds.
pub(super) const REORDER_US: u64 = 1_000_000;

/// How many holes that nothing filled are remembered, to tell a packet that comes much too late
/// from a repetition; the oldest numbers are forgotten first.
const LOST_KEPT: usize = 4_096;

/// A jump of an RTP sequence beyond this many is a new beginning and not a loss (RFC 3550, A.1).
const DROPOUT_MAX: u16 = 3_000;

/// What a number turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Higher than all before.
    New,
    /// Seen before.
    Repeated,
    /// Lower than the highest, and not seen before.
    Reordered,
}

/// Numbers that nothing brought in time; both ends belong to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) first: u64,
    pub(super) last: u64,
    /// When the number after it came.
    pub(super) found_us: u64,
}

/// The state of one space.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    range: Option<(u64, u64)>,
    /// By first number.
    open: BTreeMap<u64, Hole>,
    /// Holes given up, by first number.
    lost: BTreeMap<u64, u64>,
}

/// Makes growing numbers of 16-bit RTP sequences.
#[derive(Debug, Default)]
pub(super) struct Unwrapper {
    highest: Option<u64>,
}

/// Makes growing numbers of the 4-bit counter of one transport stream packet identifier.
#[derive(Debug, Default)]
pub(super) struct Continuity {
    last: Option<(u8, u64)>,
    repeated: bool,
}

/// An unwrapped number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwrapped {
    /// The number in the growing space.
    Number(u64),
    /// The sender began a new numbering; this is its first number, far above all before.
    Restart(u64),
    /// Nothing to count: a legal duplicate, or a packet whose counter does not move.
    Nothing,
}

// === impl Numbers ===

impl Numbers {
    /// Forgets everything: a new numbering begins.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Takes a number that came.
    pub(super) fn accept(&mut self, number: u64, at_us: u64) -> Seen {
        let Some((first, highest)) = self.range else {
            self.range = Some((number, number));
            return Seen::New;
        };
        if number > highest {
            self.range = Some((first, number));
            self.open_hole(highest + 1, number, at_us);
            return Seen::New;
        }
        if number < first {
            self.range = Some((number, highest));
            self.open_hole(number + 1, first, at_us);
            return Seen::Reordered;
        }
        if let Some(hole) = hole_with(&self.open, number, |hole| hole.last) {
            self.open.remove(&hole.first);
            self.keep_rest(hole, number);
            return Seen::Reordered;
        }
        match hole_with(&self.lost, number, |last| *last) {
            // Too late to count as received; it stays missing.
            Some(_) => Seen::Reordered,
            None => Seen::Repeated,
        }
    }

    /// Gives up the holes older than [`REORDER_US`]; all of them if `now_us` is `None`.
    pub(super) fn give_up(&mut self, now_us: Option<u64>, mut lost: impl FnMut(Hole)) {
        let old = |hole: &Hole| now_us.is_none_or(|now| now >= hole.found_us + REORDER_US);
        let given_up: Vec<Hole> = self
            .open
            .values()
            .filter(|hole| old(hole))
            .copied()
            .collect();
        for hole in given_up {
            self.open.remove(&hole.first);
            self.lost.insert(hole.first, hole.last);
            lost(hole);
        }
        while self.lost.len() > LOST_KEPT {
            self.lost.pop_first();
        }
    }

    /// How many numbers lie in holes that may still be filled.
    pub(super) fn open_count(&self) -> u64 {
        self.open.values().map(Hole::count).sum()
    }

    /// A hole from `first` up to, not including, `end`.
    fn open_hole(&mut self, first: u64, end: u64, found_us: u64) {
        if first < end {
            self.open.insert(
                first,
                Hole {
                    first,
                    last: end - 1,
                    found_us,
                },
            );
        }
    }

    fn keep_rest(&mut self, hole: Hole, filled: u64) {
        self.open_hole(hole.first, filled, hole.found_us);
        self.open_hole(filled + 1, hole.last.saturating_add(1), hole.found_us);
    }
}

/// The hole that holds a number, in a map by first number.
fn hole_with<T: Copy>(
    holes: &BTreeMap<u64, T>,
    number: u64,
    last: impl Fn(&T) -> u64,
) -> Option<T> {
    let (_, hole) = holes.range(..=number).next_back()?;
    (number <= last(hole)).then_some(*hole)
}

// === impl Hole ===

impl Hole {
    pub(super) fn count(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

// === impl Unwrapper ===

impl Unwrapper {
    pub(super) fn accept(&mut self, sequence: u16) -> Unwrapped {
        let Some(highest) = self.highest else {
            // One turn above zero, so that a packet from before the first has a number as well.
            let number = (1 << 16) + u64::from(sequence);
            self.highest = Some(number);
            return Unwrapped::Number(number);
        };
        let ahead = sequence.wrapping_sub(highest as u16);
        let behind = ahead.wrapping_neg();
        if ahead <= DROPOUT_MAX {
            let number = highest + u64::from(ahead);
            self.highest = Some(number);
            Unwrapped::Number(number)
        } else if behind <= DROPOUT_MAX {
            Unwrapped::Number(highest - u64::from(behind))
        } else {
            let number = (((highest >> 16) + 2) << 16) + u64::from(sequence);
            self.highest = Some(number);
            Unwrapped::Restart(number)
        }
    }
}

// === impl Continuity ===

impl Continuity {
    /// Takes a counter of a packet; one duplicate in a row is legal (ISO/IEC 13818-1, 2.4.3.3).
    pub(super) fn accept(&mut self, counter: u8, has_payload: bool, jump: bool) -> Unwrapped {
        if !has_payload && !jump {
            return Unwrapped::Nothing;
        }
        let Some((last, number)) = self.last else {
            self.last = Some((counter, u64::from(counter)));
            return Unwrapped::Number(u64::from(counter));
        };
        if jump {
            // Announced by the sender, so nothing is lost: go on as if it had come in turn.
            self.last = Some((counter, number + u64::from(has_payload)));
            self.repeated = false;
            return if has_payload {
                Unwrapped::Number(number + 1)
            } else {
                Unwrapped::Nothing
            };
        }
        let ahead = counter.wrapping_sub(last) & 0x0f;
        if ahead == 0 {
            let legal = !self.repeated;
            self.repeated = true;
            return if legal {
                Unwrapped::Nothing
            } else {
                Unwrapped::Number(number)
            };
        }
        self.repeated = false;
        self.last = Some((counter, number + u64::from(ahead)));
        Unwrapped::Number(number + u64::from(ahead))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn all_lost(numbers: &mut Numbers, now_us: Option<u64>) -> Vec<(u64, u64)> {
        let mut lost = Vec::new();
        numbers.give_up(now_us, |hole| lost.push((hole.first, hole.last)));
        lost
    }

    // spec: MEDIA-04
    #[test]
    fn a_hole_is_filled_in_time_or_missing() {
        let mut numbers = Numbers::default();
        for (number, at_us, seen) in [
            (10, 0, Seen::New),
            (15, 100, Seen::New),
            (12, 200, Seen::Reordered),
            (12, 300, Seen::Repeated),
            (15, 300, Seen::Repeated),
            (9, 400, Seen::Reordered),
        ] {
            assert_eq!(numbers.accept(number, at_us), seen, "{number}");
        }
        assert_eq!(numbers.open_count(), 3);
        assert_eq!(all_lost(&mut numbers, Some(REORDER_US + 99)), []);
        assert_eq!(
            all_lost(&mut numbers, Some(REORDER_US + 100)),
            [(11, 11), (13, 14)]
        );
        assert_eq!(
            numbers.accept(13, 2_000_000),
            Seen::Reordered,
            "too late, still missing"
        );
        assert_eq!(numbers.accept(10, 2_000_000), Seen::Repeated);
        assert_eq!(all_lost(&mut numbers, None), []);
    }

    // spec: MEDIA-05
    #[test]
    fn rtp_sequences_are_unwrapped() {
        let mut unwrapper = Unwrapper::default();
        let base = 1 << 16;
        for (sequence, number) in [
            (65_534, base + 65_534),
            (65_535, base + 65_535),
            (1, base + 65_537),
            (0, base + 65_536),
            (65_535, base + 65_535),
            (3_001, base + 68_537),
        ] {
            assert_eq!(
                unwrapper.accept(sequence),
                Unwrapped::Number(number),
                "{sequence}"
            );
        }
        assert!(matches!(unwrapper.accept(40_000), Unwrapped::Restart(_)));
        let Unwrapped::Number(next) = unwrapper.accept(40_001) else {
            panic!("a new numbering")
        };
        assert_eq!(next as u16, 40_001);
        assert!(next > base + 68_537);
    }

    // spec: MEDIA-05
    #[test]
    fn continuity_counters_show_losses_and_not_legal_duplicates() {
        let mut counter = Continuity::default();
        for (continuity, has_payload, jump, unwrapped) in [
            (14, true, false, Unwrapped::Number(14)),
            (15, true, false, Unwrapped::Number(15)),
            (15, false, false, Unwrapped::Nothing),
            (0, true, false, Unwrapped::Number(16)),
            (0, true, false, Unwrapped::Nothing),
            (0, true, false, Unwrapped::Number(16)),
            (3, true, false, Unwrapped::Number(19)),
            (9, true, true, Unwrapped::Number(20)),
            (10, true, false, Unwrapped::Number(21)),
        ] {
            assert_eq!(counter.accept(continuity, has_payload, jump), unwrapped);
        }
    }

    proptest! {
        // Goal: holes are kept right however packets come. Method: any order, with repetitions;
        // the oracle is the set of numbers seen.
        // spec: MEDIA-04
        #[test]
        fn holes_agree_with_a_set(sequence in proptest::collection::vec(100_u64..160, 1..120)) {
            let mut numbers = Numbers::default();
            let mut set = BTreeSet::new();
            for number in sequence {
                let highest = set.last().copied();
                let expected = match (set.insert(number), highest) {
                    (false, _) => Seen::Repeated,
                    (true, Some(highest)) if number < highest => Seen::Reordered,
                    (true, _) => Seen::New,
                };
                prop_assert_eq!(numbers.accept(number, 0), expected);
            }
            let span = set.last().unwrap() - set.first().unwrap() + 1;
            prop_assert_eq!(numbers.open_count(), span - set.len() as u64);
            let lost = all_lost(&mut numbers, None);
            let missing: Vec<u64> = lost.into_iter().flat_map(|(a, b)| a..=b).collect();
            let all = *set.first().unwrap()..*set.last().unwrap();
            prop_assert_eq!(missing, all.filter(|n| !set.contains(n)).collect::<Vec<_>>());
        }
    }
}
