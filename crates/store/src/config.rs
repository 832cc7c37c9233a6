//! What a caller decides about a store.

use std::path::PathBuf;
use std::sync::Arc;

use crate::machine::Clock;

/// How many entries may stand in the log behind the newest snapshot.
///
/// A snapshot copies the whole of `state.db`, so its cost is spread over this many
/// commands; the log replayed at a start can be this long. At 100 000 entries a copy
/// of 150 MB (0.2 s) costs two microseconds a command.
pub(crate) const SNAPSHOT_EVERY: u64 = 100_000;

/// How many proposals may be on their way at once before further ones wait.
pub(crate) const INFLIGHT_LIMIT: usize = 4_096;

/// How many outputs may wait for the receiver before proposals are held back.
pub(crate) const OUTPUT_LIMIT: usize = 16_384;

/// Bytes kept on the disk for what must be recorded although others filled it (STORE-09).
pub(crate) const RESERVE_BYTES: u64 = 64 * 1024 * 1024;

/// How a store is opened.
#[derive(Clone)]
pub struct StoreConfig {
    /// The data folder; made when missing, with mode 0700.
    pub dir: PathBuf,
    /// Create a store although the folder holds other files and no store (STORE-08).
    pub create: bool,
    /// Free bytes on the file system below which [`crate::Room::Low`] is answered (STORE-09).
    pub min_free_bytes: u64,
    /// Bytes kept in reserve on a disk with room, given up once it is full (STORE-09).
    pub reserve_bytes: u64,
    /// How many regular backups are kept (STORE-05).
    pub backup_keep: usize,
    /// This member's number within its cluster, used when the store is created.
    pub member: u64,
    /// This member's name within its cluster (CLUST-02), used when the store is created.
    pub member_name: String,
    /// How many entries may follow the newest snapshot before another one is made.
    pub snapshot_every: u64,
    /// How many proposals may be on their way at once.
    pub inflight_limit: usize,
    /// How many outputs may wait for the receiver before proposals are held back.
    pub output_limit: usize,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl StoreConfig {
    /// The usual settings for a folder.
    pub fn new(dir: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir: dir.into(),
            create: false,
            min_free_bytes: 512 * 1024 * 1024,
            reserve_bytes: RESERVE_BYTES,
            backup_keep: 28,
            member: 1,
            member_name: "manager".to_owned(),
            snapshot_every: SNAPSHOT_EVERY,
            inflight_limit: INFLIGHT_LIMIT,
            output_limit: OUTPUT_LIMIT,
            clock,
        }
    }
}
