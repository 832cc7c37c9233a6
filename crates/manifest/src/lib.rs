//! Reads what people write: bundle manifests, settings and other YAML (JSON is accepted too).
//!
//! Every problem names file, line, column and key. This crate reads text; it opens no file and knows
//! nothing of what the values mean beyond their form.

mod bundle;
mod locate;

use std::fmt;

use serde::de::DeserializeOwned;

pub use bundle::{Manifest, read_bundles};
pub use locate::{Locations, Position};

/// Longest text that is read, in bytes. A bundle is at most 1 MiB encoded (BDL-15); a file may hold
/// several.
pub const TEXT_MAX: usize = 16 * 1024 * 1024;

/// Something wrong in a text that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File, or `<stdin>`.
    pub file: String,
    /// Line and column, when the place is known.
    pub position: Option<Position>,
    /// Key, e.g. `jobs[0].requirements.requiredCapacity`; empty for the whole text.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Problem {}

/// Reads every document of a text.
///
/// # Errors
/// The first thing that is not of the form of `T`, with line, column and key.
pub fn read<T: DeserializeOwned>(file: &str, text: &str) -> Result<Vec<T>, Problem> {
    if text.len() > TEXT_MAX {
        return Err(Problem {
            file: file.to_owned(),
            position: None,
            path: String::new(),
            message: format!(
                "the text has {} bytes; at most {TEXT_MAX} are read",
                text.len()
            ),
        });
    }
    serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| {
        let position = error.location().map(|at| Position {
            line: at.line(),
            column: at.column(),
        });
        let path = position
            .and_then(|at| Locations::of(text).ok()?.path_at(at))
            .unwrap_or_default();
        Problem {
            file: file.to_owned(),
            position,
            path,
            message: plain(&error.to_string()),
        }
    })
}

/// Only `true` and `false` are booleans: a node may be called `n`, a tag may be `on`.
pub(crate) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        // A manifest may repeat itself by an alias; a few lines must not become a million.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    }
}

/// The first line of the library's message without its own position.
fn plain(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    match first
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "))
    {
        Some((_, rest)) => rest.to_owned(),
        None => first.to_owned(),
    }
}
