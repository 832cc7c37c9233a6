//! Packets per second as an exact fraction, and the arithmetic of epoch lock (MEDIA-02).
//!
//! A fraction and integers, because a rate of 60000/1001 in floating point drifts off the number
//! that another copy computes. Reads no clock: the time is an argument, in nanoseconds since the
//! Unix epoch.

use std::fmt;
use std::str::FromStr;

/// Highest rate: above it one thread that sleeps between packets no longer keeps the instants
/// apart (the kernel's timer slack is 50 µs).
pub const RATE_MAX: u32 = 10_000;

const NANOS: u128 = 1_000_000_000;
const RTP_CLOCK_HZ: u128 = 90_000;

/// Packets per second, between one a minute and [`RATE_MAX`] a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    numerator: u32,
    denominator: u32,
}

/// Why a text or a fraction is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a packet rate: write 50, 59.94 or 60000/1001, from one a minute to {RATE_MAX} a second"
)]
pub struct RateError {
    /// The text as given.
    pub text: String,
}

// === impl Rate ===

impl Rate {
    /// `numerator / denominator` packets per second.
    pub fn new(numerator: u32, denominator: u32) -> Result<Self, RateError> {
        let (n, d) = (u64::from(numerator), u64::from(denominator));
        if d == 0 || n * 60 < d || n > u64::from(RATE_MAX) * d {
            return Err(RateError {
                text: format!("{numerator}/{denominator}"),
            });
        }
        Ok(Self {
            numerator,
            denominator,
        })
    }

    /// The number that is due at an instant: floor(time since the Unix epoch x rate).
    pub fn number_at(self, wall_ns: u64) -> u64 {
        clamp(
            u128::from(wall_ns) * u128::from(self.numerator)
                / (u128::from(self.denominator) * NANOS),
        )
    }

    /// The first nanosecond at which a number is due.
    pub fn due_ns(self, number: u64) -> u64 {
        clamp(
            (u128::from(number) * u128::from(self.denominator) * NANOS)
                .div_ceil(u128::from(self.numerator)),
        )
    }

    /// A number's media time on the 90 kHz clock, modulo 2^32 as RTP carries it.
    pub fn rtp_time(self, number: u64) -> u32 {
        let ticks = u128::from(number) * u128::from(self.denominator) * RTP_CLOCK_HZ
            / u128::from(self.numerator);
        (ticks % (1 << 32)) as u32
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            numerator: 50,
            denominator: 1,
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError {
            text: text.to_owned(),
        };
        let whole = |part: &str| match part.bytes().all(|b| b.is_ascii_digit()) {
            true => part.parse::<u32>().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        if let Some((numerator, denominator)) = text.split_once('/') {
            return Self::new(whole(numerator)?, whole(denominator)?).map_err(|_| wrong());
        }
        let Some((units, decimals)) = text.split_once('.') else {
            return Self::new(whole(text)?, 1).map_err(|_| wrong());
        };
        if decimals.is_empty() || decimals.len() > 4 {
            return Err(wrong());
        }
        let scale = 10_u32.pow(decimals.len() as u32);
        let numerator = whole(units)?
            .checked_mul(scale)
            .and_then(|scaled| scaled.checked_add(whole(decimals).ok()?))
            .ok_or_else(wrong)?;
        Self::new(numerator, scale).map_err(|_| wrong())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    // spec: MEDIA-02
    #[test]
    fn the_number_is_the_floor_of_epoch_time_times_rate() {
        for (text, wall_ns, number) in [
            ("50", 0, 0),
            ("50", 19_999_999, 0),
            ("50", 20_000_000, 1),
            ("50", 1_700_000_000_000_000_000, 85_000_000_000),
            ("60000/1001", 1_001_000_000_000, 60_000),
            ("59.94", 100_000_000_000, 5_994),
            ("1", 1_999_999_999, 1),
        ] {
            assert_eq!(rate(text).number_at(wall_ns), number, "{text} at {wall_ns}");
        }
    }

    // spec: MEDIA-02
    #[test]
    fn the_rtp_time_is_the_numbers_media_time() {
        assert_eq!(rate("50").rtp_time(1), 1_800);
        assert_eq!(rate("60000/1001").rtp_time(2), 3_003);
        // 2^32 ticks are 2_386_092.9 packets of 1800 ticks: the time wraps within this one.
        assert_eq!(rate("50").rtp_time(2_386_093), 104);
    }

    #[test]
    fn rates_out_of_bounds_and_other_texts_are_refused() {
        for text in [
            "0", "", "-1", "10001", "1/61", "5/0", "1.", "1.23456", "+5", "fast",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!(rate("60000/1001").to_string(), "60000/1001");
    }

    proptest! {
        // Goal: a packet sent at its due instant carries exactly its number, one nanosecond
        // earlier the one before it. Method: any rate and number of this millennium.
        // spec: MEDIA-02
        #[test]
        fn a_number_is_due_exactly_when_it_begins(
            numerator in 1_u32..100_000, denominator in 1_u32..2_000, seconds in 1_u64..4_000_000_000,
        ) {
            let Ok(rate) = Rate::new(numerator, denominator) else { return Ok(()) };
            let number = rate.number_at(seconds * 1_000_000_000).max(1);
            let due = rate.due_ns(number);
            prop_assert_eq!(rate.number_at(due), number);
            prop_assert_eq!(rate.number_at(due - 1), number - 1);
        }
    }
}
