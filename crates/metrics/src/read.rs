//! Reading a page back.

use std::collections::{BTreeMap, BTreeSet};

/// The samples of a page by name and labels, as a scraper reads them, but strictly: every sample
/// belongs to the family ahead of it, no family stands twice, each has a help text that ends with a
/// full stop, counters and only they end in `_total`.
///
/// # Errors
/// The first line that is not as it should be, and what is wrong with it.
pub fn samples(text: &str) -> Result<BTreeMap<String, f64>, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut reader = Reader::default();
    for line in text.lines() {
        reader
            .line(line)
            .map_err(|problem| format!("{line}: {problem}"))?;
    }
    Ok(reader.samples)
}

#[derive(Default)]
struct Reader {
    samples: BTreeMap<String, f64>,
    families: BTreeSet<String>,
    family: String,
    kind: String,
}

// === impl Reader ===

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("it has no text")?;
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            ensure(name.bytes().all(plain), "the name has other letters")?;
            ensure(help.ends_with('.'), "the text has no end")?;
            ensure(self.families.insert(name.to_owned()), "it stands twice")?;
            name.clone_into(&mut self.family);
            self.kind.clear();
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("it has no kind")?;
            ensure(name == self.family, "it belongs to another family")?;
            let known = ["counter", "gauge", "histogram"].contains(&kind);
            ensure(known, "there is no such kind")?;
            let counts = name.ends_with("_total");
            ensure(counts == (kind == "counter"), "the name is of another kind")?;
            kind.clone_into(&mut self.kind);
            return Ok(());
        }
        let (name, value) = line.rsplit_once(' ').ok_or("it has no value")?;
        let bare = name.split('{').next().unwrap_or_default();
        let ending = bare
            .strip_prefix(self.family.as_str())
            .ok_or("it belongs to another family")?;
        let endings: &[&str] = match self.kind.as_str() {
            "" => return Err("its family has no kind"),
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        ensure(endings.contains(&ending), "it belongs to another family")?;
        let value = value.parse().map_err(|_| "the value is no number")?;
        let is_new = self.samples.insert(name.to_owned(), value).is_none();
        ensure(is_new, "it stands twice")
    }
}

fn ensure(holds: bool, problem: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(problem) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Histogram, Kind, Page};

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let mut page = Page::default();
        page.one("up", Kind::Gauge, "Whether it is.", 1.0);
        page.family("calls_total", Kind::Counter, "Calls.");
        page.sample(&[("method", "A"), ("status", "OK")], 3.0);
        page.sample(&[("method", "a\"b\\c\nd"), ("status", "OK")], 4.0);
        let took = Histogram::default();
        took.note(Duration::from_micros(500));
        took.note(Duration::from_micros(501));
        took.note(Duration::from_secs(20));
        page.histogram("took_seconds", "How long.", &took);
        let read = samples(&page.into_text()).unwrap();
        for (name, value) in [
            ("up", 1.0),
            ("calls_total{method=\"A\",status=\"OK\"}", 3.0),
            ("calls_total{method=\"a\\\"b\\\\c\\nd\",status=\"OK\"}", 4.0),
            ("took_seconds_bucket{le=\"0.0005\"}", 1.0),
            ("took_seconds_bucket{le=\"0.001\"}", 2.0),
            ("took_seconds_bucket{le=\"10\"}", 2.0),
            ("took_seconds_bucket{le=\"+Inf\"}", 3.0),
            ("took_seconds_count", 3.0),
            ("took_seconds_sum", 20.001_001),
        ] {
            assert_eq!(read.get(name), Some(&value), "{name} in {read:#?}");
        }
        assert_eq!(read.len(), 3 + 15 + 2);
    }

    #[test]
    fn what_no_scraper_would_take_is_told_with_its_line() {
        for (text, problem) in [
            (
                "# HELP a A.\n# TYPE a gauge\nb 1\n",
                "b 1: it belongs to another family",
            ),
            (
                "# HELP a A.\n# TYPE a gauge\na x\n",
                "a x: the value is no number",
            ),
            ("# HELP a A.\na 1\n", "a 1: its family has no kind"),
            ("# HELP a A.\n# HELP a A.\n", "# HELP a A.: it stands twice"),
            (
                "# HELP a A.\n# TYPE a counter\n",
                "# TYPE a counter: the name is of another kind",
            ),
            (
                "# HELP a A.\n# TYPE a gauge\na 1\na 1\n",
                "a 1: it stands twice",
            ),
            ("# HELP a A", "the last line has no end"),
        ] {
            assert_eq!(samples(text).unwrap_err(), problem);
        }
    }
}
