//! Stdout is data: a table for people or JSON for programs. Stderr is talk.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Outcome;

/// Where the data goes and in what form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

/// A table: a heading and rows, columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

// === impl Output ===

impl Output {
    /// One JSON value on a line of its own.
    pub(crate) fn line(self, value: &impl Serialize) -> Outcome {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }

    /// Plain text on a line of its own.
    pub(crate) fn text(self, text: &str) -> Outcome {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }

    /// The value as JSON, or the text for people.
    pub(crate) fn either(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            self.line(value)
        } else {
            self.text(text().trim_end())
        }
    }
}

/// Talk, on stderr, so that stdout stays data.
pub(crate) fn say(text: &str) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A value that is written as one word, e.g. a state.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        Self {
            heading: heading.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heading.len());
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let mut widths: Vec<usize> = self.heading.iter().map(|cell| cell.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let heading = self.heading.iter().map(|cell| (*cell).to_owned()).collect();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for (width, cell) in widths.iter().zip(row) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(vec!["a".into(), "running".into()]);
        table.row(vec!["längere".into(), "-".into()]);
        assert_eq!(
            table.render(),
            "NAME     STATE\na        running\nlängere  -\n"
        );
    }
}
