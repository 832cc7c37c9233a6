//! Times as people type and read them: spans (`80ms`, `10s`, `5m`, `1h`) and wall times.
//!
//! Spans are whole numbers with a unit only, so that nobody has to guess what a bare `10` means.

use std::time::Duration;

/// Why a text is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: write a whole number and a unit, as in 80ms, 10s, 5m or 1h")]
pub struct DurationError {
    /// The text as given.
    pub text: String,
}

/// Reads `80ms`, `10s`, `5m` or `1h`.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError {
        text: text.to_owned(),
    };
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (digits, unit) = text.split_at(unit_at);
    let value: u64 = digits.parse().map_err(|_| wrong())?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    value
        .checked_mul(unit_ms)
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

/// Writes a span in the largest unit of [`parse`] that loses nothing (below 1 ms is cut off).
pub fn format(span: Duration) -> String {
    let ms = span.as_millis();
    match ms {
        0 => "0ms".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

/// A wall time, microseconds since the Unix epoch, in RFC 3339.
pub(crate) fn wall_text(wall_us: u64) -> String {
    let time = i64::try_from(wall_us)
        .ok()
        .and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{wall_us} us"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written() {
        for (text, ms) in [
            ("80ms", 80),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
            assert_eq!(format(Duration::from_millis(ms)), text);
        }
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "-1s",
            "10 s",
            "99999999999999999999s",
            "1d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
