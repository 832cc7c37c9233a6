//! Times as a scenario writes them: durations (`500ms`, `2m`, `1h0m1ms`), signed durations (`-1h`),
//! and instants, which are RFC 3339 or a signed duration from virtual zero.

use std::fmt;

use greenroom_types::Wall;
use serde::{Deserialize, Deserializer, de};

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

/// A duration with a sign, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signed(pub i64);

/// A point of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instant {
    /// Written out.
    At(Wall),
    /// So many milliseconds after virtual zero.
    FromStart(i64),
}

/// As far away as an instant or a jump of a clock may be, 100 years.
const FAR_MS: i64 = 36_525 * 24 * 3_600_000;

/// Units by name, largest first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads `1h0m1ms`: whole numbers with units, each unit at most once, larger ones first.
pub fn span(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
        let (_, ms) = units.find(|(name, _)| *name == &rest[..letters])?;
        total = total.checked_add(number.checked_mul(*ms)?)?;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then_some(total)
}

/// Reads `+10m` or `-5m`.
pub fn signed(text: &str) -> Option<i64> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    Some(sign * i64::try_from(span(rest)?).ok()?)
}

/// A number of that size is a slip.
fn near<E: de::Error>(text: &str, ms: i64) -> Result<(), E> {
    if ms.unsigned_abs() > FAR_MS.unsigned_abs() {
        return Err(E::custom(format_args!(
            "{text} is more than 100 years away"
        )));
    }
    Ok(())
}

// === impl Span ===

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, ms) in UNITS {
            if rest >= ms {
                write!(f, "{}{name}", rest / ms)?;
                rest %= ms;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} is not a duration: write it as 500ms, 5s, 2m, 1h or 1h0m1ms"
            ))
        })
    }
}

// === impl Signed ===

impl<'de> Deserialize<'de> for Signed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let ms = signed(&text).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} is not a signed duration: write it as +10m or -1h"
            ))
        })?;
        near(&text, ms)?;
        Ok(Self(ms))
    }
}

// === impl Instant ===

impl Instant {
    /// Reads either form.
    pub fn parse(text: &str) -> Option<Self> {
        signed(text)
            .map(Self::FromStart)
            .or_else(|| text.parse().ok().map(Self::At))
    }

    /// The wall time that it means when virtual zero is `start`.
    pub const fn resolve(self, start: Wall) -> Wall {
        match self {
            Self::At(wall) => wall,
            Self::FromStart(ms) => start.plus(ms),
        }
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let instant = Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} is not an instant: write it as 2026-01-01T20:00:00Z, or as +10m or -5m \
                 from virtual zero"
            ))
        })?;
        if let Self::FromStart(ms) = instant {
            near(&text, ms)?;
        }
        Ok(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-06
    #[test]
    fn durations_are_compounded_of_falling_units() {
        assert_eq!(span("500ms"), Some(500));
        assert_eq!(span("1h0m1ms"), Some(3_600_001));
        assert_eq!(span("59m59s999ms"), Some(3_599_999));
        for bad in ["", "5", "s", "5 s", "1s1h", "1s1s", "-1s", "1.5s", "1d"] {
            assert_eq!(span(bad), None, "{bad:?}");
        }
        for text in ["0s", "1h1ms", "2m", "4s999ms"] {
            assert_eq!(Span(span(text).unwrap()).to_string(), text);
        }
    }

    // spec: SCEN-06
    #[test]
    fn instants_are_written_out_or_counted_from_virtual_zero() {
        let start = Wall(1_767_225_600_000);
        let at = |text: &str| Instant::parse(text).map(|instant| instant.resolve(start));
        assert_eq!(at("+10m"), Some(start.plus(600_000)));
        assert_eq!(at("-5m"), Some(start.plus(-300_000)));
        assert_eq!(at("2026-01-01T00:00:01Z"), Some(start.plus(1_000)));
        assert_eq!(at("10m"), None);
    }
}
