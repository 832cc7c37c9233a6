//! The entries of a cluster log, without a file: limits, repeats, searches.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::Wall;
use serde::{Deserialize, Serialize};

/// Most entries that are kept (CLUST-25).
const ENTRIES_MAX: usize = 100_000;
/// Most bytes of them as they are written.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Repeats of an entry within this time are counted with it.
const MERGE_MS: i64 = 10_000;
/// So many of the newest entries are looked at for one that is repeated.
const MERGE_OF: usize = 64;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) at: Wall,
    pub(crate) term: u64,
    pub(crate) kind: String,
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) details: BTreeMap<String, String>,
    /// How many more of its kind and text it stands for.
    #[serde(default)]
    pub(crate) repeated: u32,
}

/// Which entries are wanted.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) limit: usize,
    pub(crate) before_seq: Option<u64>,
    pub(crate) since: Option<Wall>,
    /// Empty for all.
    pub(crate) kinds: Vec<String>,
}

/// Entries by number, each with the bytes that it takes.
#[derive(Debug, Default)]
pub(super) struct Book {
    entries: BTreeMap<u64, (Entry, usize)>,
    bytes: usize,
    /// The number before the next.
    last: u64,
    /// What is not written as it is.
    changed: BTreeSet<u64>,
}

/// Entries as they are written.
pub(super) fn lines(entries: &[Entry]) -> String {
    entries.iter().map(line).collect()
}

fn line(entry: &Entry) -> String {
    // Texts, numbers and an instant: they always have a form.
    let mut line = serde_json::to_string(entry).unwrap_or_default();
    line.push('\n');
    line
}

// === impl Query ===

impl Query {
    #[cfg(test)]
    pub(super) const fn newest(limit: usize) -> Self {
        Self {
            limit,
            before_seq: None,
            since: None,
            kinds: Vec::new(),
        }
    }
}

// === impl Book ===

impl Book {
    /// Reads what was written; also how many lines could not be read, one cut short at the end not counted.
    pub(super) fn read(text: &str) -> (Self, usize) {
        let mut book = Self::default();
        let mut bad = 0;
        for line in text.split_inclusive('\n') {
            match serde_json::from_str::<Entry>(line) {
                Ok(entry) => book.put(entry),
                Err(_) => bad += usize::from(line.ends_with('\n')),
            }
        }
        (book, bad)
    }

    fn put(&mut self, entry: Entry) {
        let bytes = line(&entry).len();
        self.last = self.last.max(entry.seq);
        self.bytes += bytes;
        if let Some((_, before)) = self.entries.insert(entry.seq, (entry, bytes)) {
            self.bytes -= before;
        }
        while (self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX) && self.entries.len() > 1
        {
            if let Some((seq, (_, bytes))) = self.entries.pop_first() {
                self.bytes -= bytes;
                self.changed.remove(&seq);
            }
        }
    }

    pub(super) fn note(
        &mut self,
        at: Wall,
        term: u64,
        kind: &str,
        text: &str,
        details: BTreeMap<String, String>,
    ) {
        let newest = self.entries.values().rev().take(MERGE_OF);
        // What comes after another of its kind is news: a role that was lost in between.
        let of_kind = newest
            .map(|(entry, _)| entry)
            .find(|entry| entry.kind == kind);
        let entry = match of_kind.filter(|entry| entry.text == text && entry.term == term) {
            Some(same) if (0..MERGE_MS).contains(&at.0.saturating_sub(same.at.0)) => Entry {
                repeated: same.repeated.saturating_add(1),
                ..same.clone()
            },
            _ => Entry {
                seq: self.last + 1,
                at,
                term,
                kind: kind.to_owned(),
                text: text.to_owned(),
                details,
                repeated: 0,
            },
        };
        self.changed.insert(entry.seq);
        self.put(entry);
    }

    /// Newest first.
    pub(super) fn find(&self, query: &Query) -> Vec<Entry> {
        let before = query.before_seq.unwrap_or(u64::MAX);
        let entries = self
            .entries
            .range(..before)
            .rev()
            .map(|(_, (entry, _))| entry);
        entries
            .filter(|entry| query.since.is_none_or(|since| entry.at >= since))
            .filter(|entry| query.kinds.is_empty() || query.kinds.contains(&entry.kind))
            .take(query.limit)
            .cloned()
            .collect()
    }

    /// What is to be written; it counts as written from now on.
    pub(super) fn take_changed(&mut self) -> Vec<Entry> {
        let changed = std::mem::take(&mut self.changed);
        let entries = changed.iter().filter_map(|seq| self.entries.get(seq));
        entries.map(|(entry, _)| entry.clone()).collect()
    }

    /// It was not written after all.
    pub(super) fn put_back(&mut self, numbers: Vec<u64>) {
        let kept = numbers
            .into_iter()
            .filter(|seq| self.entries.contains_key(seq));
        self.changed.extend(kept);
    }

    /// All that is kept, as it is written.
    pub(super) fn all(&self) -> String {
        self.entries
            .values()
            .map(|(entry, _)| line(entry))
            .collect()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(book: &mut Book, at: i64, kind: &str, text: &str) {
        book.note(Wall(at), 1, kind, text, BTreeMap::new());
    }

    // spec: CLUST-25
    #[test]
    fn repeats_within_ten_seconds_are_one_entry_with_a_count() {
        let mut book = Book::default();
        for (at, member) in [
            (0, "b"),
            (9_999, "b"),
            (10_000, "b"),
            (10_500, "c"),
            // Another one was in between.
            (11_000, "b"),
            // A clock that went back makes no repeat of what is to come.
            (5_000, "b"),
        ] {
            note(&mut book, at, "lost", member);
            note(&mut book, at, "other", &at.to_string());
        }
        let query = Query {
            kinds: vec!["lost".to_owned()],
            ..Query::newest(10)
        };
        let found = book.find(&query);
        let short: Vec<_> = found
            .iter()
            .map(|it| (it.text.as_str(), it.at.0, it.repeated))
            .collect();
        let expected = [
            ("b", 5_000, 0),
            ("b", 11_000, 0),
            ("c", 10_500, 0),
            ("b", 10_000, 0),
            ("b", 0, 1),
        ];
        assert_eq!(short, expected);
    }

    // spec: CLUST-25
    #[test]
    fn the_oldest_go_beyond_the_number_and_beyond_the_bytes() {
        let mut book = Book::default();
        for number in 0..ENTRIES_MAX + 5 {
            note(&mut book, 0, "k", &number.to_string());
        }
        assert_eq!(book.entries.len(), ENTRIES_MAX);
        assert_eq!(book.entries.first_key_value().map(|(seq, _)| *seq), Some(6));
        assert_eq!(book.take_changed().len(), ENTRIES_MAX);
        let long = "x".repeat(BYTES_MAX / 4);
        for number in 0..5 {
            note(&mut book, 0, "k", &format!("{number}{long}"));
        }
        assert!(book.bytes() <= BYTES_MAX);
        assert_eq!(book.entries.len(), 3);
        let written: usize = book.all().len();
        assert_eq!(written, book.bytes());
    }

    // spec: CLUST-24
    #[test]
    fn a_search_is_by_number_time_and_kind_and_newest_first() {
        let mut book = Book::default();
        for (at, kind) in [
            (0, "role"),
            (20_000, "disk"),
            (40_000, "role"),
            (60_000, "clock"),
        ] {
            note(&mut book, at, kind, kind);
        }
        let find = |limit, before_seq, since: Option<i64>, kinds: &[&str]| {
            let query = Query {
                limit,
                before_seq,
                since: since.map(Wall),
                kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            };
            let found = book.find(&query);
            found.iter().map(|entry| entry.seq).collect::<Vec<_>>()
        };
        assert_eq!(find(10, None, None, &[]), [4, 3, 2, 1]);
        assert_eq!(find(2, Some(4), None, &[]), [3, 2]);
        assert_eq!(find(10, None, Some(20_000), &["role", "disk"]), [3, 2]);
        assert_eq!(find(10, None, None, &["x"]), [0; 0]);
    }
}
