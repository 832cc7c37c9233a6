//! The newest part of the log, kept in memory.
//!
//! It makes an entry readable before it is on disk, and saves applies from reading
//! back what was just written. It never lets go of an entry that is not on disk.

use std::collections::VecDeque;

use crate::raft::{Entry, LogId, Vote};
use crate::record;

/// How many entries the window keeps beyond those not yet on disk.
///
/// Applies read every entry right after it was flushed; a few thousand cover the
/// distance between flush and apply, so only a replay after a start reads the disk.
const WINDOW_ENTRIES: usize = 4_096;

/// How many bytes the window keeps beyond those not yet on disk.
const WINDOW_BYTES: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Window {
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    /// The newest entries without a hole, ending at `last`.
    pub(super) tail: VecDeque<Entry>,
    pub(super) tail_bytes: usize,
    /// Entries up to this index are on disk.
    pub(super) flushed: Option<u64>,
}

impl Window {
    pub(super) fn push(&mut self, entry: Entry) {
        self.last = Some(entry.log_id);
        self.tail_bytes += record::weight(&entry.payload);
        self.tail.push_back(entry);
    }

    /// Lets go of old entries, but never of one that is not on disk.
    pub(super) fn trim(&mut self) {
        while self.tail.len() > WINDOW_ENTRIES || self.tail_bytes > WINDOW_BYTES {
            let on_disk = self
                .tail
                .front()
                .is_some_and(|entry| self.flushed.is_some_and(|end| entry.log_id.index <= end));
            if !on_disk {
                return;
            }
            self.drop_front();
        }
    }

    /// Drops the entries after an index, or all of them.
    pub(super) fn cut_after(&mut self, index: Option<u64>) {
        while self
            .tail
            .back()
            .is_some_and(|entry| Some(entry.log_id.index) > index)
        {
            if let Some(entry) = self.tail.pop_back() {
                self.tail_bytes -= record::weight(&entry.payload);
            }
        }
    }

    pub(super) fn drop_front(&mut self) {
        if let Some(entry) = self.tail.pop_front() {
            self.tail_bytes -= record::weight(&entry.payload);
        }
    }
}
