//! Periodic proof that all members hold the same state.
//!
//! Every member notes its digest at the same places of the log. The primary puts
//! what it noted into the log; a member that noted something else has diverged, by
//! a bug or by decay, and must stop before it answers anybody with a wrong state.
//! Alone, a member checks itself: a replay after a start has to give the same digests.

use std::collections::VecDeque;

/// How many entries lie between two notes.
///
/// Rare enough to cost nothing, frequent enough that a diverged member is found within
/// seconds under load.
pub(crate) const EVERY: u64 = 1_024;

/// How many notes are kept: a check arrives well before this many more were taken.
const KEPT: usize = 16;

/// The state's digest behind an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) index: u64,
    pub(crate) digest: u64,
}

/// What this member noted lately.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    newest_last: VecDeque<Note>,
}

impl Notes {
    /// Whether a note belongs behind this entry.
    pub(crate) fn due(index: u64) -> bool {
        index > 0 && index.is_multiple_of(EVERY)
    }

    pub(crate) fn take(&mut self, note: Note) {
        if self.newest_last.len() == KEPT {
            self.newest_last.pop_front();
        }
        self.newest_last.push_back(note);
    }

    /// Compares with the primary's note. A place that this member did not note, because it
    /// started later, says nothing.
    pub(crate) fn compare(&self, primary: Note) -> Result<(), String> {
        match self
            .newest_last
            .iter()
            .find(|note| note.index == primary.index)
        {
            Some(own) if own.digest != primary.digest => Err(format!(
                "the state behind entry {} has the digest {:016x} here and {:016x} at the primary",
                own.index, own.digest, primary.digest
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.newest_last.clear();
    }
}
