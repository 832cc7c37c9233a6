//! Faults a test card can be told to have, as data (MEDIA-03).
//!
//! `KIND[:ARGUMENT]@AFTER`, counted from the start of sending; those of a handover have no time. The
//! plan is pure; what a fault does to the process is done by the sender thread, or on the job socket.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::duration;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Sends nothing any more; everything else goes on.
    Black,
    /// Sends every packet that much after it is due.
    Late(Duration),
    /// Ends the whole process at once, as a segmentation fault would (SIGABRT).
    Crash,
    /// Stays alive and does nothing: no packets, no HTTP answers, deaf to SIGTERM.
    Hang,
    /// Refuses to hand over.
    RefuseHandover,
    /// Takes so long over ending its output in a handover.
    SlowHandover(Duration),
}

/// One fault and when it begins; it then lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// How long after the start.
    pub after: Duration,
}

/// Why a text is not a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// Not of the known forms.
    #[error(
        "`{text}` is not a fault: write black@10s, late:80ms@20s, crash@30s, hang@30s, refuse-handover or slow-handover:5s"
    )]
    Unknown {
        /// The text as given.
        text: String,
    },
    /// One of its times is wrong.
    #[error("fault `{text}` has a wrong time")]
    Time {
        /// The text as given.
        text: String,
        /// Which part is wrong.
        #[source]
        source: duration::DurationError,
    },
}

/// What the faults that have begun add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Active {
    /// Nothing is to be sent.
    pub(super) black: bool,
    /// Packets are to be sent that much after they are due; the fault that began last counts.
    pub(super) delay: Duration,
    /// The process is to end or to stand still.
    pub(super) end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Crash,
    Hang,
}

/// What is wrong at a time since the start.
pub(super) fn active(faults: &[Fault], elapsed: Duration) -> Active {
    let mut active = Active::default();
    let mut late_since = Duration::ZERO;
    for fault in faults.iter().filter(|fault| fault.after <= elapsed) {
        match fault.kind {
            FaultKind::Black => active.black = true,
            FaultKind::Late(delay) if fault.after >= late_since => {
                (active.delay, late_since) = (delay, fault.after);
            }
            FaultKind::Late(_) => {}
            FaultKind::Crash => active.end = Some(End::Crash),
            FaultKind::Hang => active.end = active.end.or(Some(End::Hang)),
            FaultKind::RefuseHandover | FaultKind::SlowHandover(_) => {}
        }
    }
    active
}

// === impl Fault ===

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let unknown = || FaultError::Unknown {
            text: text.to_owned(),
        };
        let time = |part: &str| {
            duration::parse(part).map_err(|source| FaultError::Time {
                text: text.to_owned(),
                source,
            })
        };
        let (what, after) = match text.split_once('@') {
            Some((what, after)) => (what, Some(after)),
            None => (text, None),
        };
        let (name, argument) = match what.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (what, None),
        };
        let kind = match (name, argument) {
            ("refuse-handover", None) => FaultKind::RefuseHandover,
            ("slow-handover", Some(slow)) => FaultKind::SlowHandover(time(slow)?),
            ("black", None) => FaultKind::Black,
            ("late", Some(delay)) => FaultKind::Late(time(delay)?),
            ("crash", None) => FaultKind::Crash,
            ("hang", None) => FaultKind::Hang,
            _ => return Err(unknown()),
        };
        let is_of_handover = matches!(kind, FaultKind::RefuseHandover | FaultKind::SlowHandover(_));
        let after = match after {
            None if is_of_handover => Duration::ZERO,
            Some(after) if !is_of_handover => time(after)?,
            _ => return Err(unknown()),
        };
        Ok(Self { kind, after })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = duration::format(self.after);
        match self.kind {
            FaultKind::Black => write!(f, "black@{after}"),
            FaultKind::Late(delay) => write!(f, "late:{}@{after}", duration::format(delay)),
            FaultKind::Crash => write!(f, "crash@{after}"),
            FaultKind::Hang => write!(f, "hang@{after}"),
            FaultKind::RefuseHandover => f.write_str("refuse-handover"),
            FaultKind::SlowHandover(slow) => {
                write!(f, "slow-handover:{}", duration::format(slow))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(texts: &[&str]) -> Vec<Fault> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn faults_are_read_and_written() {
        for text in [
            "black@10s",
            "late:80ms@20s",
            "crash@30s",
            "hang@1m",
            "refuse-handover",
            "slow-handover:5s",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in ["", "black", "late@5s", "black:1s@5s", "fade@5s"] {
            assert!(
                matches!(text.parse::<Fault>(), Err(FaultError::Unknown { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            "black@5".parse::<Fault>(),
            Err(FaultError::Time { .. })
        ));
        for text in ["refuse-handover@5s", "slow-handover", "slow-handover:5s@1s"] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(matches!(error, FaultError::Unknown { .. }), "{text}");
        }
    }

    #[test]
    fn faults_begin_at_their_time_and_last() {
        let faults = plan(&["late:80ms@2s", "black@3s", "late:10ms@1s", "hang@4s"]);
        let at = |ms| active(&faults, Duration::from_millis(ms));
        assert_eq!(at(999), Active::default());
        assert_eq!(at(1_000).delay, Duration::from_millis(10));
        assert_eq!(at(2_000).delay, Duration::from_millis(80));
        assert_eq!((at(2_999).black, at(3_000).black), (false, true));
        assert_eq!((at(3_999).end, at(4_000).end), (None, Some(End::Hang)));
        let both = plan(&["hang@0ms", "crash@0ms"]);
        assert_eq!(active(&both, Duration::ZERO).end, Some(End::Crash));
    }
}
