//! The ways in which the store says no.

use std::io;
use std::path::{Path, PathBuf};

use crate::fatal::FatalError;
use crate::room;

/// Why a store was not opened. The exit codes are the caller's (manager.md, STORE-).
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the folder; exit code 4 (STORE-01).
    #[error("data folder {} is in use by {}", dir.display(), holder(*pid))]
    Locked {
        /// The data folder.
        dir: PathBuf,
        /// The process that holds it, where it could be told.
        pid: Option<u32>,
    },
    /// A file was written by a later version; exit code 6, nothing was touched (STORE-06).
    #[error(
        "{} has schema version {found}, this program reads up to {supported}: \
         start a version that knows schema {found}", file.display()
    )]
    NewerSchema {
        /// The file.
        file: PathBuf,
        /// The version it carries.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// The folder holds files, but not the store; exit code 7 (STORE-08).
    #[error(
        "data folder {} is not empty but holds no store: \
         give the right folder, or --create to begin a new store there", dir.display()
    )]
    StoreMissing {
        /// The data folder.
        dir: PathBuf,
    },
    /// A file could not be read and nothing could replace it; exit code 8 (STORE-10).
    #[error("{} cannot be read: {cause}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What was found wrong, and which replacements were tried.
        cause: String,
    },
    /// The store has an older schema and could not be migrated; exit code 5 (STORE-06).
    #[error(
        "{} has schema version {from} and could not be brought to version {to}: {cause}; it was left as \
         it is: start the version that wrote it", file.display()
    )]
    Migration {
        /// The database.
        file: PathBuf,
        /// The version it carries.
        from: u32,
        /// The version this program needs.
        to: u32,
        /// Why not.
        cause: String,
    },
    /// The disk is full; exit code 9. The store was not changed (STORE-09).
    #[error(
        "the disk that holds {} is full: {} KiB are free, and {} KiB are needed to start; the store \
         was left as it is", dir.display(), free / 1024, needed / 1024
    )]
    DiskFull {
        /// The data folder.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that must be free.
        needed: u64,
    },
    /// The file system refused.
    #[error("{attempt} {}", path.display())]
    Io {
        /// What was attempted, as in "cannot create".
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The engine stopped while the log's tail was being replayed.
    #[error("the store stopped while it was being opened")]
    Stopped(#[source] FatalError),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

impl OpenError {
    pub(crate) fn io(attempt: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            attempt,
            path: path.into(),
            source,
        }
    }

    /// Says of a failure that a full disk explains that the disk is full. It is never taken for
    /// damage: there is nothing to restore, and a restore would need room as well.
    pub(crate) fn or_full(self, dir: &Path) -> Self {
        let is_full = match &self {
            Self::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
            }
            Self::Unreadable { cause, .. } | Self::Migration { cause, .. } => {
                room::explains(dir, cause)
            }
            _ => false,
        };
        if is_full { room::full(dir) } else { self }
    }

    pub(crate) fn unreadable(file: impl Into<PathBuf>, cause: impl Into<String>) -> Self {
        Self::Unreadable {
            file: file.into(),
            cause: cause.into(),
        }
    }
}

/// Why a proposal got no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// This member may not commit now; nothing was changed.
    #[error("this member is not the primary{}", primary.map_or_else(String::new, |p| format!(", member {p} is")))]
    NotPrimary {
        /// The member that is, where known.
        primary: Option<u64>,
    },
    /// The command has no JSON form; nothing was changed.
    #[error("the command cannot be written as JSON: {0}")]
    Encode(String),
    /// The store was shut down. Whether the command will be found after a restart is
    /// unknown.
    #[error("the store is shut down")]
    Stopped,
    /// The store cannot go on (STORE-12). Whether the command will be found after a
    /// restart is unknown.
    #[error("the store cannot go on")]
    Fatal(#[source] FatalError),
}

/// Why a backup was not made. An incomplete file is never left under the final name.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file system refused.
    #[error("{attempt} {}", path.display())]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The database could not be copied.
    #[error("cannot copy the state to {}: {cause}", path.display())]
    Copy {
        /// The copy.
        path: PathBuf,
        /// What the database said.
        cause: String,
    },
    /// The copy was made but does not verify; it was removed.
    #[error("the copy {} does not verify: {cause}", path.display())]
    Verify {
        /// The copy.
        path: PathBuf,
        /// What was found wrong.
        cause: String,
    },
    /// Nothing is written there.
    #[error("no backup is written to {}: {why}", path.display())]
    Target {
        /// The target.
        path: PathBuf,
        /// What is against it.
        why: String,
    },
    /// The store was shut down.
    #[error("the store is shut down")]
    Stopped,
}
