//! Writing a page.

use std::fmt::Write as _;

use crate::Histogram;

/// The type of the text, as a scraper expects it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the samples of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A page that is being written. Families follow one another; each holds the samples written after it.
#[derive(Clone, Debug, Default)]
pub struct Page {
    text: String,
    family: String,
}

// === impl Page ===

impl Page {
    /// Begins a family. `help` is one sentence.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.head(name, kind, help);
    }

    /// A sample of the family that was begun last, with its labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels = labelled(labels, None);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{}{labels} {value}", self.family);
    }

    /// A family of one sample without labels.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    /// A family of one histogram; bounds and sum are in seconds.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the format has floating-point numbers only"
    )]
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let (buckets, sum_s) = histogram.read();
        let mut count = 0;
        for (bound, here) in buckets {
            count += here;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let labels = labelled(&[], Some(&bound));
            let _ = writeln!(self.text, "{name}_bucket{labels} {count}");
        }
        let _ = writeln!(self.text, "{name}_sum {sum_s}");
        let _ = writeln!(self.text, "{name}_count {count}");
    }

    /// The page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }
}

/// Labels between their braces; nothing where there are none. `bound` is the label `le`.
fn labelled(labels: &[(&str, &str)], bound: Option<&str>) -> String {
    let all = labels.iter().copied().chain(bound.map(|le| ("le", le)));
    let all: Vec<String> = all
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    format!("{{{}}}", all.join(","))
}

/// A label's value between its quotes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out
}
