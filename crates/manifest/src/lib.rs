//! Reads what people write: bundle manifests, settings and other YAML (JSON is accepted too).
//!
//! Every problem names file, line, column and key. This crate reads text; it opens no file and knows
//! nothing of what the values mean beyond their form.

mod bundle;
mod every;
mod locate;
pub mod manager;
pub mod schema;
mod trees;

use std::fmt;

use greenroom_types::tree;
use serde::de::DeserializeOwned;

pub use bundle::{Manifest, read_bundles};
pub use every::every_problem;
pub use locate::{Locations, Position};
pub use trees::read_trees;

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
    serde_saphyr::from_multiple_with_options(text, options())
        .map_err(|error| explain::<T>(file, text, &error))
}

/// A fault of form in plain words. The parser knows where it is; the text read again as a tree knows
/// at which key, what is expected there and what stands there instead.
fn explain<T: DeserializeOwned>(file: &str, text: &str, error: &serde_saphyr::Error) -> Problem {
    let trees = documents(text);
    // A text that is no tree has a fault of form, which counts before whatever was expected there.
    let error = trees.as_ref().err().unwrap_or(error);
    let places = Locations::of(text).unwrap_or_default();
    let position = error.location().map(|at| Position {
        line: at.line(),
        column: at.column(),
    });
    let path = position.and_then(|at| places.path_at(at));
    let fault = trees.as_ref().ok().and_then(|trees| {
        let faults = trees.iter().map(tree::read_written::<T>).enumerate();
        faults
            .filter_map(|(document, read)| Some((document, read.err()?)))
            .next()
    });
    let (position, path, message) = match fault {
        // A fault of a value is shown at the value, which the parser knows; any other at its key.
        Some((_, fault)) if path.as_ref() == Some(&fault.path) => {
            (position, fault.path, fault.message)
        }
        Some((document, fault)) => {
            let position = places.position(document, &fault.path);
            (position, fault.path, fault.message)
        }
        None => (position, path.unwrap_or_default(), words(error)),
    };
    Problem {
        file: file.to_owned(),
        position,
        path,
        message,
    }
}

/// The documents of a text as trees.
fn documents(text: &str) -> Result<Vec<serde_json::Value>, serde_saphyr::Error> {
    serde_saphyr::from_multiple_with_options(text, locate::positions_only())
}

/// Only `true` and `false` are booleans: a node may be called `n`, a tag may be `on`.
pub(crate) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        // Far deeper than anything that is read here, and far from what a thread's stack holds.
        budget: serde_saphyr::budget! { max_depth: 64 },
        // A manifest may repeat itself by an alias; a few lines must not become a million.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    }
}

/// What the parser found, in plain words.
pub(crate) fn words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let text = match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => return words(error),
        Error::Eof { .. } => "the text ends in the middle of something",
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            return format!("the key {key:?} stands twice");
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key stands twice",
        Error::UnknownAnchor { .. } => "this alias (*name) names no anchor (&name) ahead of it",
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "aliases make far more of this text than is written; write it out"
        }
        Error::Budget { .. } => "this is nested deeper or is larger than what is read",
        Error::NullIntoString { .. } => "expected text, found nothing",
        Error::InvalidBooleanStrict { .. } => "expected true or false",
        Error::NonFiniteFloat { value, .. } => {
            return format!("expected a finite number, found {value}");
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => "<< takes a mapping, or a list of mappings",
        Error::MergeKeyNotAllowed { .. } => "<< is not read here; write the keys out",
        Error::InvalidUtf8Input => "it is not UTF-8 text",
        Error::FoldedBlockScalarMustIndentContent { .. } => {
            "the lines of a folded text (>) must be indented"
        }
        // The same words as where the text could be read again as a tree.
        Error::SerdeUnknownField {
            field, expected, ..
        } => return tree::unknown_key(field, expected),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => return tree::unknown_word(variant, expected),
        Error::SerdeMissingField { field, .. } => return tree::missing_key(field),
        Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        } => return tree::other_kind(expected, unexpected),
        other => return plain(&other.to_string()),
    };
    text.to_owned()
}

/// The first line of the library's message without its own position, wherever that stands.
fn plain(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let first = match first
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "))
    {
        Some((_, rest)) => rest,
        None => first,
    };
    let words = match first.rsplit_once(" at line ") {
        Some((words, place)) if is_place(place) => words,
        _ => first,
    };
    let words = match words {
        "recursion limit exceeded" => "this is nested deeper than what is read",
        "expected string scalar" => "expected text",
        "expected mapping start" => "expected a mapping of keys",
        "simple key expected ':'" => "a key must be followed by ':'",
        other => match other.strip_prefix(BEGINS_NO_WORD) {
            Some(rest) => return in_quotes(rest.trim_end_matches('\'')),
            None => other,
        },
    };
    words.to_owned()
}

/// What the parser says of a character with which in YAML no word begins; the character follows in quotes.
const BEGINS_NO_WORD: &str = "unexpected character: `";

/// The names that a scenario has for nodes begin with @.
fn in_quotes(letter: &str) -> String {
    format!("a text that begins with {letter} stands in quotes: '{letter}...'")
}

/// `1, column 256`
fn is_place(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let parts = text.split_once(", column ");
    parts.is_some_and(|(line, column)| is_number(line) && is_number(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_yaml_has_no_place_for_is_told_to_stand_in_quotes() {
        for text in [
            "a: @b/0/e",
            "a: [x, @b/0/e]",
            "a: {@b/0/e: 1}",
            "@b/0/e: 1",
            "- @b/0/e",
            "a:\n  - b: 1\n    c: @spare/live/1",
            "a: `b`",
            "a: %b",
        ] {
            let told = read_trees("x.yaml", text).expect_err(text).to_string();
            assert!(told.contains("stands in quotes: '"), "{text}: {told}");
            assert!(told.starts_with("x.yaml:"), "{told}");
        }
        assert!(read_trees("x.yaml", "{'@b/0/e': '@b/0/e'}").is_ok());
    }

    #[test]
    fn a_position_is_told_once_wherever_the_library_puts_it() {
        for (message, words) in [
            ("bad thing at line 1, column 256", "bad thing"),
            ("error: line 3 column 4: bad thing", "bad thing"),
            ("bad thing at line one", "bad thing at line one"),
            (
                "recursion limit exceeded at line 1, column 256",
                "this is nested deeper than what is read",
            ),
        ] {
            assert_eq!(plain(message), words);
        }
    }
}
