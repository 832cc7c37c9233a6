//! Two clocks, both as integers of milliseconds, because a trace must replay on another machine.
//!
//! Durations are measured on the monotonic one ([`Mono`]); the wall clock ([`Wall`]) is used for
//! instants given by others and for what people read (TIME-03). Only drivers read a clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// An instant of the monotonic clock: milliseconds since the process (or the simulation) began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mono(pub u64);

/// An instant of the wall clock: milliseconds since 1970-01-01T00:00:00Z. Written as RFC 3339.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

/// What both clocks say at one input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// For durations, windows and deadlines.
    pub mono: Mono,
    /// For instants given by others and for timestamps shown.
    pub wall: Wall,
}

// === impl Millis ===

impl Millis {
    /// So many whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0s"),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms if ms < 1000 => write!(f, "{ms}ms"),
            ms => write!(f, "{}.{:03}s", ms / 1000, ms % 1000),
        }
    }
}

// === impl Mono ===

impl Add<Millis> for Mono {
    type Output = Self;
    fn add(self, by: Millis) -> Self {
        Self(self.0.saturating_add(by.0))
    }
}

impl Sub<Self> for Mono {
    type Output = Millis;
    /// The time from `earlier` to `self`; 0 when `earlier` is later.
    fn sub(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

// === impl Wall ===

impl Wall {
    /// The first instant the wire allows (API-24).
    pub const MIN: Self = Self(0);
    /// The last instant the wire allows: the end of year 9999 (API-24).
    pub const MAX: Self = Self(253_402_300_799_999);

    /// `self` plus a signed number of milliseconds.
    pub const fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`, negative when `earlier` is later.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Millis> for Wall {
    type Output = Self;
    fn add(self, by: Millis) -> Self {
        self.plus(i64::try_from(by.0).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match written(self.0) {
            Some(text) => f.write_str(&text),
            None => match self.0.checked_sub(YEAR_9998_MS).and_then(written) {
                Some(text) if text.starts_with("9998-") => write!(f, "9999-{}", &text[5..]),
                _ => write!(f, "{}ms", self.0),
            },
        }
    }
}

/// From an instant of the year 9998 to the same one of 9999. The calendar library stops a day short of
/// the end of 9999, which people write for "never".
const YEAR_9998_MS: i64 = 365 * 86_400_000;

fn written(ms: i64) -> Option<String> {
    let instant = jiff::Timestamp::from_millisecond(ms).ok()?;
    Some(match ms.rem_euclid(1000) {
        0 => instant.to_string(),
        _ => format!("{instant:.3}"),
    })
}

fn read(text: &str) -> Option<i64> {
    let instant = text.parse::<jiff::Timestamp>().ok()?;
    Some(instant.as_millisecond())
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no instant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an instant: write it as RFC 3339, e.g. 2026-11-29T20:00:00Z")]
pub struct WallError(String);

impl FromStr for Wall {
    type Err = WallError;
    fn from_str(text: &str) -> Result<Self, WallError> {
        // What lies beyond any calendar is written so.
        if let Some(ms) = text.strip_suffix("ms").and_then(|ms| ms.parse().ok()) {
            return Ok(Self(ms));
        }
        let late = || {
            let rest = text.strip_prefix("9999-")?;
            read(&format!("9998-{rest}"))?.checked_add(YEAR_9998_MS)
        };
        read(text)
            .or_else(late)
            .map(Self)
            .ok_or_else(|| WallError(text.chars().take(64).collect()))
    }
}

impl Serialize for Wall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Wall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_survive_their_text() {
        for ms in [
            0,
            1,
            1000,
            1_767_225_600_000,
            1_767_225_600_123,
            Wall::MAX.0,
        ] {
            let wall = Wall(ms);
            assert_eq!(wall.to_string().parse::<Wall>().unwrap(), wall, "{wall}");
        }
        assert_eq!(Wall(1_767_225_600_000).to_string(), "2026-01-01T00:00:00Z");
        for text in ["9999-12-31T00:00:00Z", "9999-12-31T23:59:59.999Z"] {
            let last: Wall = text.parse().unwrap();
            assert_eq!(last.to_string(), text);
            assert!(last > "9999-12-30T00:00:00Z".parse().unwrap());
        }
        let wall: Wall = "9999-12-31T00:00:00Z".parse().unwrap();
        assert_eq!(wall.0, 253_402_214_400_000);
        assert!("9999-13-31T00:00:00Z".parse::<Wall>().is_err());
        assert!("tomorrow".parse::<Wall>().is_err());
    }

    #[test]
    fn monotonic_differences_never_go_below_zero() {
        assert_eq!(Mono(5) - Mono(7), Millis(0));
        assert_eq!(Mono(7) - Mono(5), Millis(2));
    }
}
