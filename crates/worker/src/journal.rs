//! The worker's memory across restarts: an append-only file of JSON lines (WORK-25, WORK-60).
//!
//! The first line names the version; a newer one than this program writes is refused, so that an
//! older program never touches what it does not understand (WORK-66). Each append is on disk before
//! it returns. A torn last line, left by a crash in the middle of an append, is cut off: nothing was
//! done on its account yet. The file knows records, not what they mean; `agent.rs` does.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use greenroom_types::{Millis, StartId, Tags};
use serde::{Deserialize, Serialize};

use crate::capacity::Reservation;
use crate::handover::Handover;
use crate::order::{Report, Said, StartSpec};

/// Version of the journal that this program writes.
pub(crate) const VERSION: u32 = 3;
/// The file is written anew when it has grown beyond this, in bytes.
const COMPACT_ABOVE: u64 = 4 << 20;

const FILE: &str = "journal.jsonl";
const NAME: &str = "greenroom-worker";

/// One thing to remember.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "record")]
pub(crate) enum Record {
    /// The worker runs in this boot of the machine.
    Boot { boot_id: String },
    /// A start was accepted; everything it holds is reserved from here on.
    Accepted {
        spec: Box<StartSpec>,
        reservation: Box<Reservation>,
    },
    /// A step of a start or a stop is about to be done.
    Step { start_id: StartId, step: StepRecord },
    /// Description, tags and configurations were replaced.
    Updated {
        start_id: StartId,
        description: String,
        tags: Tags,
        #[serde(default)]
        configurations: BTreeMap<String, String>,
    },
    /// Nothing is left of an instance; `last` is what was said of it at the end.
    Removed { start_id: StartId, last: Said },
    /// A report was made.
    Report(Report),
    /// Where an instance stands in a cooperative migration.
    Handover {
        start_id: StartId,
        handover: Box<Handover>,
    },
    /// A report was given up: what it says is worth nothing any more.
    Forgotten { id: u64 },
    /// Reports up to this one are durable at the Manager.
    Acked { id: u64 },
    /// The next report has this id, whatever stands above.
    NextReport { id: u64 },
    /// The node's tags.
    NodeTags { tags: Tags },
    /// Leases are kept without refresh, or no longer (LEASE-10).
    LeasesPaused { paused: bool },
    /// The fencing number of an instance has grown.
    Fence { start_id: StartId, fence: u64 },
    /// A prepared instance is to run as soon as its lease lets it (LEASE-17).
    StartWanted { start_id: StartId },
}

/// How far an instance has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub(crate) enum StepRecord {
    /// Images, network, volumes, containers are being made.
    Preparing,
    /// Everything is made and nothing runs.
    Prepared,
    /// It is being started.
    Starting,
    /// Every service runs.
    Running,
    /// It is being stopped and removed; `last` is what will be said at the end, if `told`.
    Stopping {
        last: Said,
        grace: Millis,
        told: bool,
    },
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("the worker's journal {} cannot be used", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A newer program wrote it.
    #[error(
        "the worker's journal {} has version {found}, this program knows up to {VERSION}: run the newer program",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It holds something that is no record.
    #[error("the worker's journal {} is damaged in line {line}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first line that cannot be read.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    len: u64,
    len_compacted: u64,
    /// Called before and after each append.
    watch: Option<fn()>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    journal: String,
    version: u32,
}

// === impl Journal ===

impl Journal {
    /// Opens the journal in a directory and reads what it remembers.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let path = dir.join(FILE);
        let io = |source| JournalError::Io {
            path: path.clone(),
            source,
        };
        let existing = match File::open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io(error)),
        };
        let (records, whole) = match existing {
            Some(file) => read(&path, file)?,
            None => (Vec::new(), 0),
        };
        if whole == 0 {
            // New, or torn within the header: begin.
            return Ok((Self::create(&path, &[]).map_err(io)?, Vec::new()));
        }
        let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
        file.set_len(whole)
            .and_then(|()| file.sync_all())
            .map_err(io)?;
        let journal = Self {
            file,
            len: whole,
            len_compacted: whole,
            watch: None,
            path,
        };
        Ok((journal, records))
    }

    /// Appends records; they are on disk when this returns.
    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes = encode(records)?;
        self.tell_watch();
        let written = self
            .file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.len += bytes.len() as u64;
                self.tell_watch();
                Ok(())
            }
            Err(error) => {
                // Half a line must not stand in front of the next append.
                let _ = self.file.set_len(self.len);
                Err(error)
            }
        }
    }

    /// True when writing it anew would be worth it.
    pub(crate) const fn wants_compaction(&self) -> bool {
        self.len > COMPACT_ABOVE && self.len > self.len_compacted.saturating_mul(4)
    }

    /// Has this called before and after each append.
    pub(crate) const fn watched_by(&mut self, watch: Option<fn()>) {
        self.watch = watch;
    }

    fn tell_watch(&self) {
        if let Some(watch) = self.watch {
            watch();
        }
    }

    /// Replaces everything by these records, atomically.
    pub(crate) fn compact(&mut self, records: &[Record]) -> io::Result<()> {
        let next = Self::create(&self.path, records)?;
        self.len_compacted = next.len;
        self.len = next.len;
        self.file = next.file;
        Ok(())
    }

    fn create(path: &Path, records: &[Record]) -> io::Result<Self> {
        let temporary = path.with_extension("new");
        let mut bytes = serde_json::to_vec(&Header {
            journal: NAME.to_owned(),
            version: VERSION,
        })?;
        bytes.push(b'\n');
        bytes.extend(encode(records)?);
        let mut file = private(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        let file = OpenOptions::new().append(true).open(path)?;
        let len = bytes.len() as u64;
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
            len_compacted: len,
            watch: None,
        })
    }
}

/// Jobs' environments may hold secrets: the file is the worker's alone.
fn private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn encode(records: &[Record]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        serde_json::to_writer(&mut bytes, record)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// The records, and how many bytes of the file are whole.
fn read(path: &Path, file: File) -> Result<(Vec<Record>, u64), JournalError> {
    let mut reader = BufReader::new(file);
    let mut records = Vec::new();
    let (mut whole, mut number) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let n = reader
            .read_until(b'\n', &mut line)
            .map_err(|source| JournalError::Io {
                path: path.to_owned(),
                source,
            })?;
        if n == 0 || line.last() != Some(&b'\n') {
            return Ok((records, whole));
        }
        number += 1;
        let damaged = |source| JournalError::Damaged {
            path: path.to_owned(),
            line: number,
            source,
        };
        if number == 1 {
            let header: Header = serde_json::from_slice(&line).map_err(damaged)?;
            if header.version > VERSION {
                return Err(JournalError::Newer {
                    path: path.to_owned(),
                    found: header.version,
                });
            }
        } else {
            records.push(serde_json::from_slice(&line).map_err(damaged)?);
        }
        whole += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(id: u64) -> Record {
        Record::Acked { id }
    }

    fn bytes(dir: &Path) -> Vec<u8> {
        std::fs::read(dir.join(FILE)).unwrap()
    }

    // spec: WORK-25
    #[test]
    fn what_was_appended_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, records) = Journal::open(dir.path()).unwrap();
        assert_eq!(records, []);
        journal.append(&[acked(1), acked(2)]).unwrap();
        journal.append(&[acked(3)]).unwrap();
        drop(journal);
        let (mut journal, records) = Journal::open(dir.path()).unwrap();
        assert_eq!(records, [acked(1), acked(2), acked(3)]);
        journal.append(&[acked(4)]).unwrap();
        assert_eq!(Journal::open(dir.path()).unwrap().1.last(), Some(&acked(4)));
    }

    // spec: WORK-25
    #[test]
    fn a_crash_at_any_byte_of_an_append_loses_only_that_append() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.append(&[acked(1)]).unwrap();
        let before = bytes(dir.path()).len();
        journal.append(&[acked(2)]).unwrap();
        drop(journal);
        let all = bytes(dir.path());
        for cut in before..all.len() {
            std::fs::write(dir.path().join(FILE), &all[..cut]).unwrap();
            let (mut journal, records) = Journal::open(dir.path()).unwrap();
            assert_eq!(records, [acked(1)], "cut at {cut}");
            journal.append(&[acked(3)]).unwrap();
            assert_eq!(Journal::open(dir.path()).unwrap().1, [acked(1), acked(3)]);
        }
    }

    // spec: WORK-66
    #[test]
    fn a_newer_journal_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let next = VERSION + 1;
        let newer =
            format!("{{\"journal\":\"{NAME}\",\"version\":{next}}}\n{{\"record\":\"unheard\"}}\n");
        std::fs::write(dir.path().join(FILE), &newer).unwrap();
        let error = Journal::open(dir.path()).unwrap_err();
        assert!(
            matches!(error, JournalError::Newer { found, .. } if found == next),
            "{error}"
        );
        assert_eq!(bytes(dir.path()), newer.as_bytes());
    }

    #[test]
    fn damage_in_the_middle_is_told_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.append(&[acked(1)]).unwrap();
        let mut text = bytes(dir.path());
        text.extend(b"nonsense\n{\"record\":\"acked\",\"id\":2}\n");
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let error = Journal::open(dir.path()).unwrap_err();
        assert!(
            matches!(error, JournalError::Damaged { line: 3, .. }),
            "{error}"
        );
    }

    #[test]
    fn compaction_replaces_everything_and_appends_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        for id in 0..100 {
            journal.append(&[acked(id)]).unwrap();
        }
        journal.compact(&[acked(99)]).unwrap();
        journal.append(&[acked(100)]).unwrap();
        assert_eq!(
            Journal::open(dir.path()).unwrap().1,
            [acked(99), acked(100)]
        );
    }
}
