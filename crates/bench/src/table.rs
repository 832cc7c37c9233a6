//! What a benchmark found, as a table in Markdown or as JSON.

use std::fmt;

use serde::Serialize;

/// One benchmark's rows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Name and value, for tables of two columns.
    pub(crate) fn fact(&mut self, name: &str, value: impl ToString) {
        self.row(vec![name.to_owned(), value.to_string()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (column, width) in self.columns.iter().zip(&widths) {
            write!(f, "| {column:width$} ")?;
        }
        writeln!(f, "|")?;
        for width in &widths {
            write!(f, "|{}", "-".repeat(width + 2))?;
        }
        writeln!(f, "|")?;
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
        }
        Ok(())
    }
}

/// A whole number with its thousands apart.
pub(crate) fn whole(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Microseconds of a number of nanoseconds.
pub(crate) fn micros(nanos: f64) -> String {
    format!("{:.2}", nanos / 1e3)
}
