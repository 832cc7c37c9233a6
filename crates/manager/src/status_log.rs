//! The daemon's own log for `CreateStatusChannel` (API-11): lines of level NOTICE and more severe,
//! at most 200 a second; what is above that is counted and told in one line a second.

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_types::{Mono, Wall};
use tokio::sync::broadcast;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::clock::{SystemClock, wall};

/// Lines let through in one second (API-11).
const LINES_PER_SECOND: u32 = 200;
/// Lines that a slow channel may be behind before it loses some.
const BACKLOG: usize = 1_024;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) severity: Severity,
    pub(crate) at: Wall,
    pub(crate) text: String,
    /// Fields as `key=value`, in the order logged.
    pub(crate) fields: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Error,
    Warning,
    Notice,
}

/// Where status channels get their lines from.
#[derive(Clone, Debug)]
pub struct StatusLog {
    lines: broadcast::Sender<Line>,
    gate: Arc<Mutex<Gate>>,
    clock: SystemClock,
}

/// Feeds a [`StatusLog`] from everything that is logged with `tracing`.
#[derive(Clone, Debug)]
pub struct StatusLayer(StatusLog);

#[derive(Debug, Default)]
struct Gate {
    second: u64,
    passed: u32,
    held_back: u32,
}

// === impl StatusLog ===

impl StatusLog {
    /// A log without lines.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lines: broadcast::Sender::new(BACKLOG),
            gate: Arc::default(),
            clock: SystemClock::new(),
        }
    }

    /// The layer to install beside the others.
    #[must_use]
    pub fn layer(&self) -> StatusLayer {
        StatusLayer(self.clone())
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Line> {
        self.lines.subscribe()
    }

    fn write(&self, line: Line) {
        let told = self
            .gate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pass(self.clock.mono());
        let Some(held_back) = told else { return };
        // An error means that nobody listens.
        if held_back > 0 {
            let text = format!("{held_back} lines were left out in the second before");
            let fields = String::new();
            let _ = self.lines.send(Line {
                severity: Severity::Notice,
                at: line.at,
                text,
                fields,
            });
        }
        let _ = self.lines.send(line);
    }
}

impl Default for StatusLog {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Gate ===

impl Gate {
    /// None when a line at `now` is one too many; else how many were held back before this second.
    fn pass(&mut self, now: Mono) -> Option<u32> {
        let second = now.0 / 1_000;
        let mut held_back = 0;
        if second != self.second {
            held_back = std::mem::take(&mut self.held_back);
            *self = Self {
                second,
                ..Self::default()
            };
        }
        if self.passed == LINES_PER_SECOND {
            self.held_back += 1;
            return None;
        }
        self.passed += 1;
        Some(held_back)
    }
}

// === impl StatusLayer ===

impl<S: Subscriber> Layer<S> for StatusLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            Level::INFO => Severity::Notice,
            _ => return,
        };
        if !event.metadata().target().starts_with("greenroom") {
            return;
        }
        let mut words = Words::default();
        event.record(&mut words);
        self.0.write(Line {
            severity,
            at: wall(),
            text: words.text,
            fields: words.fields,
        });
    }
}

#[derive(Default)]
struct Words {
    text: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
        } else {
            let gap = if self.fields.is_empty() { "" } else { " " };
            let _ = write!(self.fields, "{gap}{}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: API-11
    #[test]
    fn lines_above_two_hundred_a_second_are_counted_and_told() {
        let mut gate = Gate::default();
        assert!((0..200).all(|_| gate.pass(Mono(10)) == Some(0)));
        assert!((0..7).all(|_| gate.pass(Mono(999)).is_none()));
        assert_eq!(gate.pass(Mono(1_000)), Some(7));
        assert_eq!(gate.pass(Mono(1_001)), Some(0));
    }

    #[test]
    fn our_own_lines_of_notice_and_above_reach_a_channel() {
        use tracing_subscriber::prelude::*;
        let log = StatusLog::new();
        let mut lines = log.subscribe();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log.layer()), || {
            tracing::debug!("too fine");
            tracing::warn!(node_id = "n1", "worker lost");
        });
        let line = lines.try_recv().unwrap();
        assert_eq!(
            (line.severity, line.text.as_str()),
            (Severity::Warning, "worker lost")
        );
        assert_eq!(line.fields, "node_id=\"n1\"");
        assert!(lines.try_recv().is_err());
    }
}
