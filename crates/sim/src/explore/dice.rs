//! Chance from a seed: the same seed throws the same, on any machine.

use crate::seed::Seed;

/// A stream of throws. Each purpose has its own, so that a throw more for one thing leaves all others
/// as they were.
#[derive(Clone, Debug)]
pub(super) struct Dice(Seed);

// === impl Dice ===

impl Dice {
    pub(super) const fn new(seed: u64, purpose: u64) -> Self {
        let mut mixed = Seed::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let _ = mixed.next();
        Self(mixed)
    }

    /// A number from 0, below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.next() % n.max(1)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a hundred.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several; none of none.
    pub(super) fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(of.len() as u64);
        of.get(usize::try_from(at).unwrap_or_default())
    }

    /// One of several.
    pub(super) fn of<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        const { assert!(N > 0, "there is something to choose from") };
        of[usize::try_from(self.below(N as u64)).unwrap_or_default()]
    }

    /// One of several, by weight.
    pub(super) fn weighted<T: Copy>(&mut self, of: &[(T, u64)]) -> Option<T> {
        let total = of.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(total);
        of.iter().find_map(|(what, weight)| {
            if at < *weight {
                return Some(*what);
            }
            at -= weight;
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same_and_purposes_differ() {
        let throws = |seed, purpose| {
            let mut dice = Dice::new(seed, purpose);
            (0..8).map(|_| dice.below(1_000)).collect::<Vec<_>>()
        };
        assert_eq!(throws(7, 1), throws(7, 1));
        assert_ne!(throws(7, 1), throws(7, 2));
        assert_ne!(throws(7, 1), throws(8, 1));
    }

    #[test]
    fn weights_of_nothing_are_never_drawn() {
        let mut dice = Dice::new(1, 1);
        assert!((0..50).all(|_| dice.weighted(&[("a", 0), ("b", 3)]) == Some("b")));
        assert_eq!(dice.weighted::<u8>(&[]), None);
        assert_eq!(dice.one::<u8>(&[]), None);
        assert!((0..50).all(|_| (3..=5).contains(&dice.within(3, 5))));
    }
}
