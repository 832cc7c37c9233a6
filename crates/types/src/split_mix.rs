//! Numbers from one seed, the same at every run. They are spread well, and not secret.

/// SplitMix64: a counter and a mixing function, so that all 2^64 outputs are distinct.
///
/// ```
/// use greenroom_types::SplitMix64;
/// assert_eq!(SplitMix64::new(0).draw(), 0xe220_a839_7b1d_cdaf);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

// === impl SplitMix64 ===

impl SplitMix64 {
    /// Begins with a seed; seeds that lie close together give numbers that do not.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_its_authors() {
        let mut numbers = SplitMix64::new(1_234_567);
        let drawn = [(); 3].map(|()| numbers.draw());
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
            ]
        );
    }
}
