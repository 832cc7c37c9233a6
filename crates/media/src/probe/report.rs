//! What a watch came to: the report, how it stands meanwhile, and the verdict on what was
//! expected (MEDIA-04).

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::event::{Missing, OnAir, Overlap, Run, Sender, Silence};

/// Lines of one list in the table; the rest is in the JSON report.
const TABLE_LINES_MAX: usize = 20;

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    /// It was told to.
    #[default]
    Asked,
    /// Its time was over.
    Duration,
    /// Nothing had come for as long as it was told to wait.
    Idle,
}

/// Everything that was seen. Times are microseconds since the watch began, of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When the watch began, RFC 3339.
    pub started_at: String,
    /// The same in microseconds since the Unix epoch.
    pub started_wall_us: u64,
    /// How long it was.
    pub duration_us: u64,
    /// Why it ended.
    pub ended: Ended,
    /// Datagrams that counted.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Datagrams of other channels, or of more senders than are told apart.
    pub ignored: u64,
    /// Datagrams that carry no number.
    pub unreadable: u64,
    /// Arrival of the last packet.
    pub last_arrival_us: Option<u64>,
    /// All senders.
    pub senders: Vec<Sender>,
    /// Who was on air when, in the order in which it ended.
    pub on_air: Vec<OnAir>,
    /// Times without packets, longer than the gap allowed.
    pub silences: Vec<Silence>,
    /// Longest time between two packets, or until the end of the watch.
    pub longest_gap_us: u64,
    /// Numbers that nobody brought in time.
    pub missing: u64,
    /// Where.
    pub missing_list: Vec<Missing>,
    /// Packets whose number had been there.
    pub repeated: u64,
    /// Where.
    pub repeated_list: Vec<Run>,
    /// Packets that came after a higher number.
    pub reordered: u64,
    /// Where.
    pub reordered_list: Vec<Run>,
    /// Packets that came too long after they were due.
    pub late: u64,
    /// The worst of them.
    pub latest_us: u64,
    /// Where.
    pub late_list: Vec<Run>,
    /// New numberings of foreign senders; how much was lost there is unknown.
    pub restarts: u64,
    /// Times with two senders.
    pub overlaps: Vec<Overlap>,
    /// Most senders at once.
    pub senders_at_once: u32,
    /// Datagrams that this machine dropped at the probe's socket; absent if it does not tell.
    pub own_drops: Option<u64>,
    /// Entries that found no room in the lists; the counters have them.
    pub left_out: u64,
}

/// How a watch stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Live {
    /// Time since the watch began.
    pub at_us: u64,
    /// Datagrams so far.
    pub packets: u64,
    /// Who is on air.
    pub on_air: Vec<Sender>,
    /// Last number.
    pub last_number: Option<u64>,
    /// Time since the last packet.
    pub silent_us: Option<u64>,
    /// Whether that is a silence.
    pub is_silent: bool,
    /// Numbers that have not come, also those that still may.
    pub missing: u64,
    /// Repeated numbers.
    pub repeated: u64,
    /// Packets out of order.
    pub reordered: u64,
    /// Late packets.
    pub late: u64,
    /// Longest time between two packets.
    pub longest_gap_us: u64,
}

/// What must hold; what is absent may be anything. An expectation is not met if nothing came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expectations {
    /// At most so many missing numbers.
    pub missing: Option<u64>,
    /// At most so many repeated numbers.
    pub repeated: Option<u64>,
    /// Every time without packets is shorter than this.
    pub silence_below: Option<Duration>,
    /// At most so many senders at once.
    pub senders_at_once: Option<u32>,
}

/// Whether the expectations were met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// All of them.
    pub met: bool,
    /// One by one; empty if nothing was expected.
    pub checks: Vec<Check>,
}

/// One expectation against what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// What should be.
    pub expected: String,
    /// What was.
    pub actual: String,
    /// Whether that is good.
    pub met: bool,
    /// What to know before blaming somebody.
    pub remark: Option<String>,
}

// === impl Report ===

impl Report {
    /// Compares with what was expected.
    pub fn verdict(&self, expectations: &Expectations) -> Verdict {
        let mut checks = Vec::new();
        let at_most = |name, limit: u64, actual: u64| Check {
            name,
            expected: format!("at most {limit}"),
            actual: actual.to_string(),
            met: actual <= limit,
            remark: None,
        };
        if let Some(limit) = expectations.missing {
            let mut check = at_most("missing", limit, self.missing);
            let drops = self.own_drops.unwrap_or(0);
            if drops > 0 {
                check.remark = Some(format!(
                    "this machine dropped {drops} packets before the probe could read them"
                ));
            }
            if self.restarts > 0 {
                check.met = false;
                check.remark = Some(format!(
                    "a sender began a new numbering {} times; what was lost there is unknown",
                    self.restarts
                ));
            }
            checks.push(check);
        }
        if let Some(limit) = expectations.repeated {
            checks.push(at_most("repeated", limit, self.repeated));
        }
        if let Some(limit) = expectations.silence_below {
            checks.push(Check {
                name: "silence",
                expected: format!("below {}", millis(limit.as_micros())),
                actual: millis(self.longest_gap_us.into()),
                met: u128::from(self.longest_gap_us) < limit.as_micros(),
                remark: None,
            });
        }
        if let Some(limit) = expectations.senders_at_once {
            let (limit, actual) = (limit.into(), self.senders_at_once.into());
            checks.push(at_most("senders at once", limit, actual));
        }
        if self.packets == 0 {
            for check in &mut checks {
                check.met = false;
                check.remark = Some("nothing was received".to_owned());
            }
        }
        Verdict {
            met: checks.iter().all(|check| check.met),
            checks,
        }
    }

    /// Writes the report for people.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let seconds_watched = seconds(self.duration_us);
        writeln!(
            out,
            "Watched {seconds_watched} s from {}, {} packets.",
            self.started_at, self.packets
        )?;
        writeln!(out, "\nOn air")?;
        table_lines(out, &self.on_air, |session| {
            format!(
                "  {:>10} s to {:>10} s  {:>8} packets  {} to {}  {}",
                seconds(session.from_us),
                seconds(session.until_us),
                session.packets,
                session.first_number,
                session.last_number,
                session.sender,
            )
        })?;
        if !self.silences.is_empty() {
            writeln!(out, "\nSilences")?;
            table_lines(out, &self.silences, |silence| {
                let after = match &silence.after {
                    Some(after) if *after == silence.before => "then the same again".to_owned(),
                    Some(after) => format!("then {after}"),
                    None => "until the end".to_owned(),
                };
                let length = millis(silence.length_us().into());
                format!("  {:>10} s for {length}, {after}", seconds(silence.from_us))
            })?;
        }
        if !self.overlaps.is_empty() {
            writeln!(out, "\nTwo senders at once")?;
            table_lines(out, &self.overlaps, |overlap| {
                let length = millis(overlap.length_us().into());
                let (first, second) = (&overlap.first, &overlap.second);
                format!(
                    "  {:>10} s for {length}, {first} and {second}",
                    seconds(overlap.from_us)
                )
            })?;
        }
        if !self.missing_list.is_empty() {
            writeln!(out, "\nMissing")?;
            table_lines(out, &self.missing_list, |missing| {
                format!(
                    "  {:>10} s  {} numbers, {} to {}, of {}",
                    seconds(missing.found_us),
                    missing.count,
                    missing.first,
                    missing.last,
                    missing.numbers_of
                )
            })?;
        }
        for (name, runs) in [
            ("Repeated", &self.repeated_list),
            ("Reordered", &self.reordered_list),
            ("Late", &self.late_list),
        ] {
            if runs.is_empty() {
                continue;
            }
            writeln!(out, "\n{name}")?;
            table_lines(out, runs, |run| {
                let worst = run
                    .worst_us
                    .map(|worst| format!(", up to {}", millis(worst.into())));
                format!(
                    "  {:>10} s  {} packets, {} to {}, of {}{}",
                    seconds(run.from_us),
                    run.count,
                    run.first,
                    run.last,
                    run.numbers_of,
                    worst.unwrap_or_default()
                )
            })?;
        }
        let drops = self
            .own_drops
            .map_or_else(|| "unknown".to_owned(), |drops| drops.to_string());
        writeln!(
            out,
            "\nMissing {}, repeated {}, reordered {}, late {}, new numberings {}.",
            self.missing, self.repeated, self.reordered, self.late, self.restarts
        )?;
        writeln!(
            out,
            "Longest time without a packet {}, most senders at once {}.",
            millis(self.longest_gap_us.into()),
            self.senders_at_once
        )?;
        writeln!(
            out,
            "Dropped by this machine {drops}, ignored {}, unreadable {}.",
            self.ignored, self.unreadable
        )
    }
}

fn table_lines<T>(out: &mut dyn Write, items: &[T], line: impl Fn(&T) -> String) -> io::Result<()> {
    if items.is_empty() {
        return writeln!(out, "  nobody");
    }
    for item in items.iter().take(TABLE_LINES_MAX) {
        writeln!(out, "{}", line(item))?;
    }
    match items.len().saturating_sub(TABLE_LINES_MAX) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more (see --json)"),
    }
}

// === impl Live ===

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s  ", seconds(self.at_us))?;
        match (self.silent_us, self.on_air.as_slice()) {
            (None, _) => f.write_str("nothing received yet")?,
            (Some(silent_us), _) if self.is_silent => {
                write!(f, "SILENT for {}", millis(silent_us.into()))?;
            }
            (_, []) => f.write_str("nobody on air")?,
            (_, [sender]) => write!(f, "on air: {sender}")?,
            (_, senders) => write!(f, "{} SENDERS AT ONCE", senders.len())?,
        }
        if let Some(number) = self.last_number {
            write!(f, "  number {number}")?;
        }
        write!(
            f,
            "  missing {} repeated {} reordered {} late {}  longest gap {}",
            self.missing,
            self.repeated,
            self.reordered,
            self.late,
            millis(self.longest_gap_us.into())
        )
    }
}

// === impl Verdict ===

impl Verdict {
    /// 0 if everything expected was met, else 1.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.met)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let word = if check.met { "met" } else { "NOT MET" };
            write!(
                f,
                "{word}: {} expected {}, was {}",
                check.name, check.expected, check.actual
            )?;
            match &check.remark {
                Some(remark) => writeln!(f, " ({remark})")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

fn seconds(us: u64) -> String {
    format!("{}.{:03}", us / 1_000_000, us / 1_000 % 1_000)
}

fn millis(us: u128) -> String {
    format!("{}.{} ms", us / 1_000, us / 100 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            packets: 100,
            missing: 2,
            repeated: 1,
            longest_gap_us: 60_000,
            senders_at_once: 2,
            ..Report::default()
        }
    }

    fn expect(missing: u64, repeated: u64, silence_ms: u64, senders: u32) -> Expectations {
        Expectations {
            missing: Some(missing),
            repeated: Some(repeated),
            silence_below: Some(Duration::from_millis(silence_ms)),
            senders_at_once: Some(senders),
        }
    }

    // spec: MEDIA-04
    #[test]
    fn each_expectation_alone_decides() {
        for (expectations, unmet) in [
            (expect(2, 1, 61, 2), None),
            (expect(1, 1, 61, 2), Some("missing")),
            (expect(2, 0, 61, 2), Some("repeated")),
            (expect(2, 1, 60, 2), Some("silence")),
            (expect(2, 1, 61, 1), Some("senders at once")),
            (Expectations::default(), None),
        ] {
            let verdict = report().verdict(&expectations);
            let failed: Vec<&str> = verdict
                .checks
                .iter()
                .filter(|check| !check.met)
                .map(|check| check.name)
                .collect();
            assert_eq!(failed, Vec::from_iter(unmet));
            assert_eq!(verdict.exit_code(), u8::from(unmet.is_some()));
        }
    }

    // spec: MEDIA-04
    #[test]
    fn nothing_received_meets_no_expectation() {
        let nothing = Report::default();
        assert!(!nothing.verdict(&expect(9, 9, 9_000, 9)).met);
        assert!(nothing.verdict(&Expectations::default()).met);
    }

    // spec: MEDIA-04
    #[test]
    fn own_drops_and_new_numberings_are_named_in_the_verdict() {
        let dropped = Report {
            own_drops: Some(2),
            ..report()
        };
        let verdict = dropped.verdict(&expect(0, 1, 61, 2));
        assert!(
            verdict
                .to_string()
                .contains("this machine dropped 2 packets"),
            "{verdict}"
        );
        let restarted = Report {
            missing: 0,
            restarts: 1,
            ..report()
        };
        assert!(
            !restarted.verdict(&expect(0, 1, 61, 2)).met,
            "an unknown loss is not no loss"
        );
    }
}
