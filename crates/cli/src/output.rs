//! Stdout is data: a table for people or JSON for programs. Stderr is talk.

use std::borrow::Cow;
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
        writeln!(out, "{}", harmless(text))?;
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
    let _ = writeln!(io::stderr().lock(), "{}", harmless(text));
}

/// A text of several lines in which nothing steers a terminal: what would is shown as it is written in
/// quotes.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| {
        letter.is_control() && !"\n\t".contains(letter)
    })
}

/// What came from outside, as one line of a message: a break in it is shown as such.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

fn escaped(text: &str, is_unwanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_unwanted) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_unwanted(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

/// Longest text that an operator gives of himself.
const WORDS_MAX: usize = 500;

/// A text of one line, for arguments that others read later.
pub(crate) fn words(text: &str) -> Result<String, String> {
    let count = text.chars().count();
    if count > WORDS_MAX {
        return Err(format!(
            "it has {count} letters; at most {WORDS_MAX} are kept"
        ));
    }
    match text.chars().find(|letter| letter.is_control()) {
        Some(letter) => Err(format!(
            "it must be one line of plain text, and holds {letter:?}"
        )),
        None => Ok(text.to_owned()),
    }
}

/// Longest part of a message or cell that is shown; a value in it may be of any length.
const SHOWN_MAX: usize = 1_000;

/// A text without what moves a terminal's cursor or breaks a line, and not longer than is of use.
pub(crate) fn plain(text: String) -> String {
    let text = shortened(text);
    if text.chars().any(char::is_control) {
        let letters = text.chars().map(|letter| match letter {
            '\n' | '\r' | '\t' => ' ',
            letter if letter.is_control() => '\u{fffd}',
            letter => letter,
        });
        return letters.collect();
    }
    text
}

/// The beginning and the end of a text that is too long to be read.
pub(crate) fn shortened(text: String) -> String {
    let count = text.chars().count();
    if count <= SHOWN_MAX {
        return text;
    }
    let side = SHOWN_MAX / 2 - 50;
    let first: String = text.chars().take(side).collect();
    let last: String = text.chars().skip(count - side).collect();
    format!(
        "{first} ... {} letters left out ... {last}",
        count - 2 * side
    )
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
        self.rows.push(cells.into_iter().map(plain).collect());
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
    fn what_others_wrote_breaks_no_table_and_fills_no_screen() {
        let mut table = Table::new(&["NAME", "WHY"]);
        table.row(vec!["a\nb".into(), "\u{1b}[2Jred".into()]);
        table.row(vec!["c".into(), "x".repeat(100_000)]);
        let text = table.render();
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("a b") && !text.contains('\u{1b}'), "{text}");
        assert!(text.len() < 3 * 1_100, "{}", text.len());
        assert!(text.contains("99100 letters left out"), "{text}");
    }

    #[test]
    fn what_steers_a_terminal_is_shown_and_not_done() {
        assert_eq!(harmless("a\tb\nc"), "a\tb\nc");
        assert_eq!(
            harmless("w1\u{1b}[31m\u{7}\u{9b}"),
            "w1\\u{1b}[31m\\u{7}\\u{9b}"
        );
        assert_eq!(one_line("w1\nw2\r"), "w1\\nw2\\r");
        assert_eq!(one_line("längere"), "längere");
    }

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
