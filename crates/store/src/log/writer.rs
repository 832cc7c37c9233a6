//! The one thread that writes `log.db`.
//!
//! It takes everything that is waiting into one flushed transaction: the group commit
//! (STORE-03). Jobs reach the disk in the order in which they were asked for.

use std::io;
use std::sync::{Arc, mpsc};

use openraft::storage::IOFlushed;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::fatal::FatalCell;
use crate::raft::{LogId, Types, Vote};
use crate::record::{self, LogRecord, PlaceRecord, VoteRecord};
use crate::room::Reserve;
use crate::sqlite::{self, signed, text};

/// How many waiting requests one transaction takes.
const GROUP: usize = 1_024;

pub(super) type Ack = oneshot::Sender<io::Result<()>>;

pub(super) enum Job {
    Append {
        records: Vec<LogRecord>,
        flushed: IOFlushed<Types>,
    },
    Vote {
        vote: Vote,
        ack: Ack,
    },
    Truncate {
        after: Option<u64>,
        ack: Ack,
    },
    Purge {
        upto: LogId,
        ack: Ack,
    },
    /// Written with the next transaction; not worth a flush of its own.
    Committed(Option<LogId>),
    Stop {
        ack: Ack,
    },
}

/// What one group did to the file.
pub(super) struct Written {
    pub(super) flushes: u64,
    pub(super) end: End,
}

/// Where the entries on disk end after a group.
pub(super) enum End {
    AsBefore,
    At(Option<u64>),
}

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) committed: Option<LogId>,
    pub(super) name: String,
    pub(super) fatal: FatalCell,
    pub(super) reserve: Arc<Reserve>,
}

impl Writer {
    /// Serves jobs until told to stop, until nobody can ask any more, or until a write fails.
    pub(super) fn run(
        &mut self,
        queue: &mpsc::Receiver<Job>,
        wrote: impl Fn(Written),
    ) -> Option<Ack> {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            while group.len() < GROUP
                && !matches!(group.last(), Some(Job::Stop { .. }))
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            let stop = match group.pop() {
                Some(Job::Stop { ack }) => Some(ack),
                Some(job) => {
                    group.push(job);
                    None
                }
                None => None,
            };
            let reserve = Arc::clone(&self.reserve);
            match reserve.with_room(|| self.write(&group)) {
                Ok(written) => {
                    wrote(written);
                    group.into_iter().for_each(|job| job.finish(None));
                }
                Err(cause) => {
                    // One attempt only (STORE-12): after a failed flush nobody knows what
                    // is on disk, so nothing further may be acknowledged. A full disk is
                    // another matter as long as there is a reserve; see `room.rs`.
                    self.fatal
                        .raise(format!("cannot write {}", self.name), &cause);
                    group.into_iter().for_each(|job| job.finish(Some(&cause)));
                    while let Ok(job) = queue.try_recv() {
                        job.finish(Some(&cause));
                    }
                    return stop;
                }
            }
            if stop.is_some() {
                return stop;
            }
        }
        None
    }

    /// Writes a group in one flushed transaction.
    fn write(&mut self, group: &[Job]) -> Result<Written, String> {
        let mut end = End::AsBefore;
        let mut work = false;
        for job in group {
            match job {
                Job::Committed(id) => self.committed = *id,
                _ => work = true,
            }
        }
        if !work {
            return Ok(Written { flushes: 0, end });
        }
        let transaction = self.connection.transaction().map_err(text)?;
        for job in group {
            match job {
                Job::Append { records, .. } => {
                    let mut insert = transaction
                        .prepare_cached(
                            "INSERT INTO log(idx, generation, term, node, kind, body, sum) \
                             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                        )
                        .map_err(text)?;
                    for record in records {
                        insert
                            .execute((
                                signed(record.index),
                                signed(record.generation),
                                signed(record.term),
                                signed(record.node),
                                record.kind,
                                &record.body,
                                record.checksum(),
                            ))
                            .map_err(text)?;
                        end = End::At(Some(record.index));
                    }
                }
                Job::Vote { vote, .. } => {
                    let vote = record::write_versioned(VoteRecord::from(*vote))?;
                    sqlite::put_meta(&transaction, "vote", &vote)?;
                }
                Job::Truncate { after, .. } => {
                    let keep = after.map_or(-1, signed);
                    transaction
                        .execute("DELETE FROM log WHERE idx > ?1", [keep])
                        .map_err(text)?;
                    end = End::At(*after);
                }
                Job::Purge { upto, .. } => {
                    let place = record::write_versioned(PlaceRecord::from(*upto))?;
                    sqlite::put_meta(&transaction, "purged", &place)?;
                    transaction
                        .execute("DELETE FROM log WHERE idx <= ?1", [signed(upto.index)])
                        .map_err(text)?;
                }
                Job::Committed(_) | Job::Stop { .. } => {}
            }
        }
        if let Some(committed) = self.committed {
            let place = record::write_versioned(PlaceRecord::from(committed))?;
            sqlite::put_meta(&transaction, "committed", &place)?;
        }
        transaction.commit().map_err(text)?;
        self.committed = None;
        Ok(Written { flushes: 1, end })
    }
}

impl Job {
    fn finish(self, failure: Option<&String>) {
        let result = || failure.map_or(Ok(()), |cause| Err(io::Error::other(cause.clone())));
        match self {
            Self::Append { flushed, .. } => flushed.io_completed(result()),
            Self::Vote { ack, .. }
            | Self::Truncate { ack, .. }
            | Self::Purge { ack, .. }
            | Self::Stop { ack } => {
                ack.send(result()).ok();
            }
            Self::Committed(_) => {}
        }
    }
}
