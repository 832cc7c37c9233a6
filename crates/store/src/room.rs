//! Whether the disk has room for more, and what is kept for when it has none (STORE-09).
//!
//! The store only answers; which calls are refused while it is low is the caller's
//! matter, because only the caller knows which of them make room again.
//!
//! What is taken all the same must be recorded on a disk that others filled to the last
//! byte. For that a file of some size lies in the data folder. Each write that finds the
//! disk full gives a piece of it up and is made once more. Only such a write is repeated:
//! a full disk is found before anything is flushed and the database takes the transaction
//! back, so that, other than after a failed flush, it is known what is on disk (STORE-12).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};

use crate::error::OpenError;
use crate::sqlite::private_file;

/// What the database says of a full disk.
pub(crate) const SQLITE_FULL: &str = "database or disk is full";

/// Bytes that a start takes: side files of both databases, the vote, what the Manager records as it
/// begins to serve.
pub(crate) const START_BYTES: u64 = 4 * 1024 * 1024;

/// What one write that finds the disk full gets of the reserve. In pieces, because what else fills
/// the disk would take all of it at once.
const PIECE: u64 = 4 * 1024 * 1024;

/// How the disk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Everything may be written.
    Plenty,
    /// Less is free than configured: only what ends or removes things should be written.
    Low,
}

pub(crate) struct RoomGauge {
    min_free_bytes: u64,
    low: AtomicBool,
}

impl RoomGauge {
    pub(crate) fn new(min_free_bytes: u64) -> Self {
        Self {
            min_free_bytes,
            low: AtomicBool::new(false),
        }
    }

    /// Asks the file system once; one system call, no allocation of note.
    pub(crate) fn room(&self, dir: &Path) -> io::Result<Room> {
        Ok(self.judge(free_bytes(dir)?))
    }

    /// Low below the limit, plenty again at twice the limit, else as before.
    fn judge(&self, free_bytes: u64) -> Room {
        let was_low = self.low.load(Ordering::Relaxed);
        let low = if was_low {
            free_bytes < self.min_free_bytes.saturating_mul(2)
        } else {
            free_bytes < self.min_free_bytes
        };
        if low != was_low {
            self.low.store(low, Ordering::Relaxed);
            if low {
                tracing::error!(
                    free_mib = free_bytes >> 20,
                    needed_mib = self.min_free_bytes >> 20,
                    "the disk that holds the Manager's data is nearly full: only stops, deletes and \
                     terminations are taken until there is room again (disk_full)"
                );
            } else {
                tracing::info!(free_bytes, "the disk has room again: everything is taken");
            }
        }
        if low { Room::Low } else { Room::Plenty }
    }
}

/// Free bytes for this process on the file system of a folder.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// True for what the system and the database say of a full disk.
pub(crate) fn says_full(cause: &str) -> bool {
    [
        SQLITE_FULL,
        "No space left on device",
        "Disk quota exceeded",
    ]
    .iter()
    .any(|text| cause.contains(text))
}

/// Whether a full disk explains a failure: the failure says so, or it came on a disk on which nothing
/// could be opened.
pub(crate) fn explains(dir: &Path, cause: &str) -> bool {
    says_full(cause) || free_bytes(dir).is_ok_and(|free| free < START_BYTES)
}

/// The refusal to start on a full disk.
pub(crate) fn full(dir: &Path) -> OpenError {
    OpenError::DiskFull {
        dir: dir.to_owned(),
        free: free_bytes(dir).unwrap_or(0),
        needed: START_BYTES,
    }
}

/// The room that is kept.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    /// How much is wanted.
    bytes: u64,
    /// How much there is.
    held: Mutex<u64>,
    /// A file system that cannot keep room is told of once.
    told: AtomicBool,
}

// === impl Reserve ===

impl Reserve {
    /// What is left of it from before.
    pub(crate) fn find(path: PathBuf, bytes: u64) -> Self {
        let held = std::fs::metadata(&path).map_or(0, |file| file.len());
        Self {
            path,
            bytes,
            held: Mutex::new(held),
            told: AtomicBool::new(false),
        }
    }

    /// None at all.
    pub(crate) fn none() -> Self {
        Self::find(PathBuf::new(), 0)
    }

    fn held(&self) -> MutexGuard<'_, u64> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a piece of work, again with a piece of the reserve each time that the disk is full.
    pub(crate) fn with_room<R>(
        &self,
        mut work: impl FnMut() -> Result<R, String>,
    ) -> Result<R, String> {
        loop {
            match work() {
                Err(cause) if says_full(&cause) && self.give_up() => {}
                done => return done,
            }
        }
    }

    /// Gives a piece up; false when nothing is left of it.
    fn give_up(&self) -> bool {
        let mut held = self.held();
        if *held == 0 {
            return false;
        }
        let left = held.saturating_sub(PIECE);
        let given = if left == 0 {
            std::fs::remove_file(&self.path)
        } else {
            private_file(&self.path).and_then(|file| file.set_len(left))
        };
        if let Err(error) = given {
            tracing::warn!(%error, path = %self.path.display(), "cannot give up what is kept in reserve");
            return false;
        }
        *held = left;
        tracing::warn!(left, "the disk is full: a piece of the reserve is given up");
        true
    }

    /// Gives a piece up for others on this disk without whom what is recorded here is not carried
    /// out. Half stays for the store. False when there is nothing to give, or room without it.
    pub(crate) fn lend(&self, dir: &Path) -> bool {
        let is_full = free_bytes(dir).is_ok_and(|free| free < START_BYTES);
        let is_left = *self.held() > self.bytes / 2;
        is_full && is_left && self.give_up()
    }

    /// Makes room for a start, as far as the reserve goes.
    pub(crate) fn ready(&self, dir: &Path) -> Result<(), OpenError> {
        loop {
            let free = free_bytes(dir)
                .map_err(|error| OpenError::io("cannot ask for free space on", dir, error))?;
            if free >= START_BYTES {
                return Ok(());
            }
            if !self.give_up() {
                return Err(full(dir));
            }
        }
    }

    /// Makes it whole where that leaves `min_free_bytes` to others. Without it the store works as
    /// well, as long as there is room.
    pub(crate) fn top_up(&self, dir: &Path, min_free_bytes: u64) {
        let mut held = self.held();
        let missing = self.bytes.saturating_sub(*held);
        let has_room = |free| free >= min_free_bytes.saturating_add(missing);
        if missing == 0 || !free_bytes(dir).is_ok_and(has_room) {
            return;
        }
        let made = private_file(&self.path).and_then(|file| {
            fallocate(&file, FallocateFlags::empty(), 0, self.bytes)?;
            file.set_len(self.bytes)
        });
        match made {
            Ok(()) => *held = self.bytes,
            Err(error) => {
                *held = std::fs::metadata(&self.path).map_or(0, |file| file.len());
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, path = %self.path.display(), "no room can be kept in reserve");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: STORE-09
    #[test]
    fn low_below_the_limit_and_plenty_only_at_twice_the_limit() {
        let gauge = RoomGauge::new(100);
        let seen: Vec<Room> = [100, 99, 100, 199, 200, 100, 99]
            .map(|free| gauge.judge(free))
            .into();
        use Room::{Low, Plenty};
        assert_eq!(seen, [Plenty, Low, Low, Low, Plenty, Plenty, Low]);
    }

    // spec: STORE-09, STORE-12
    #[test]
    fn a_full_disk_costs_pieces_of_the_reserve_and_no_other_failure_is_tried_again() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("reserve");
        let reserve = Reserve::find(path.clone(), 2 * PIECE);
        let length = || std::fs::metadata(&path).map_or(0, |file| file.len());
        reserve.top_up(dir.path(), u64::MAX);
        assert_eq!(length(), 0, "others need the room");
        reserve.top_up(dir.path(), 0);
        assert_eq!(length(), 2 * PIECE);

        let attempts = |cause: &str, good_at: usize| {
            let mut count = 0;
            let done = reserve.with_room(|| {
                count += 1;
                if count == good_at {
                    Ok(())
                } else {
                    Err(cause.to_owned())
                }
            });
            (done.is_ok(), count, length())
        };
        assert_eq!(attempts("disk I/O error", 2), (false, 1, 2 * PIECE));
        assert_eq!(attempts(SQLITE_FULL, 2), (true, 2, PIECE));
        let again = Reserve::find(path.clone(), 2 * PIECE);
        assert_eq!(
            *again.held(),
            PIECE,
            "what is left is found at the next start"
        );
        assert_eq!(attempts(SQLITE_FULL, 9), (false, 2, 0));
        assert_eq!(attempts(SQLITE_FULL, 9), (false, 1, 0));
        reserve.top_up(dir.path(), 0);
        assert_eq!(length(), 2 * PIECE, "made again");
        assert!(!reserve.lend(dir.path()), "there is room without it");
    }

    // spec: STORE-09
    #[test]
    fn the_database_and_the_system_say_full_in_these_words() {
        let connection = rusqlite::Connection::open_in_memory().expect("open");
        connection
            .execute_batch("PRAGMA max_page_count = 2; CREATE TABLE t(x)")
            .expect("table");
        let error = connection
            .execute("INSERT INTO t VALUES(randomblob(100000))", ())
            .expect_err("full");
        assert!(says_full(&crate::sqlite::text(error)));
        let index = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
        let error = rusqlite::Error::SqliteFailure(index, None);
        assert!(says_full(&crate::sqlite::text(error)));
        let system = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert!(says_full(&system.to_string()));
        assert!(!says_full("database disk image is malformed"));
    }
}
