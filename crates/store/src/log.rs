//! The log on disk: `log.db`, its writer thread, and the window kept in memory.
//!
//! One thread writes, so votes, entries, cuts and purges reach the disk in the order
//! in which they were asked for. It takes everything that is waiting into one
//! transaction: that is the group commit (STORE-03).
//!
//! An entry is readable as soon as `append` returns, from the window; the window
//! never lets go of an entry that is not on disk. A read that finds fewer entries
//! than the log holds is an error: the consensus library checks this only in debug
//! builds, and a short read there makes members diverge in silence.

mod file;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use futures::stream::{self, Stream};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use rusqlite::Connection;
use tokio::sync::oneshot;

pub(crate) use self::file::LogFile;
use self::file::read_rows;
use self::window::Window;
use self::writer::{Ack, End, Job, Writer, Written};
use crate::directory::DirectoryLock;
use crate::fatal::FatalCell;
use crate::raft::{Entry, LogId, Types, Vote};
use crate::record::LogRecord;
use crate::sqlite;

/// Whether entries may leave holes. Only the consensus library's own test suite asks
/// for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Strict,
    #[cfg(test)]
    Loose,
}

/// Makes the state durable before the log that could rebuild it is let go.
pub(crate) trait Durable: Send + Sync {
    /// Returns once every apply up to `index` survives a power loss.
    fn make_durable(&self, index: u64) -> io::Result<()>;
}

/// The consensus library's view of the log.
#[derive(Clone)]
pub(crate) struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    generation: u64,
    order: Order,
    window: Mutex<Window>,
    reader: Mutex<Option<Connection>>,
    jobs: mpsc::Sender<Job>,
    durable: Arc<dyn Durable>,
    /// How many flushed transactions were written since the start.
    groups: AtomicU64,
}

impl LogFile {
    /// Hands the file to its writer thread.
    pub(crate) fn start(
        self,
        order: Order,
        durable: Arc<dyn Durable>,
        fatal: FatalCell,
        lock: Option<Arc<DirectoryLock>>,
    ) -> Result<LogStore, String> {
        let reader = sqlite::open_reader(&self.path)?;
        let (jobs, queue) = mpsc::channel();
        let shared = Arc::new(Shared {
            path: self.path,
            generation: self.identity.generation,
            order,
            window: Mutex::new(self.window),
            reader: Mutex::new(Some(reader)),
            jobs,
            durable,
            groups: AtomicU64::new(0),
        });
        // The thread must not keep the queue's sending end alive, or it would never end.
        let window = Arc::downgrade(&shared);
        let mut writer = Writer {
            connection: self.connection,
            committed: None,
            name: shared.path.display().to_string(),
            fatal,
            reserve: self.reserve,
        };
        std::thread::Builder::new()
            .name("store-log".to_owned())
            .spawn(move || {
                let stopped = writer.run(&queue, |written| {
                    if let Some(shared) = window.upgrade() {
                        shared.note(&written);
                    }
                });
                drop(writer);
                drop(lock);
                if let Some(ack) = stopped {
                    ack.send(Ok(())).ok();
                }
                // Whoever still asks gets an error, because the queue's other end is gone.
            })
            .map_err(|error| error.to_string())?;
        Ok(LogStore { shared })
    }
}

// === impl Shared ===

impl Shared {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, written: &Written) {
        self.groups.fetch_add(written.flushes, Ordering::Relaxed);
        if let End::At(end) = written.end {
            let mut window = self.window();
            window.flushed = end;
            window.trim();
        }
    }

    fn submit(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| stopped())
    }

    async fn ask(&self, job: impl FnOnce(Ack) -> Job) -> io::Result<()> {
        let (ack, done) = oneshot::channel();
        self.submit(job(ack))?;
        done.await.map_err(|_| stopped())?
    }

    /// Reads `[start, end)`, cut to what the log holds. Fewer entries than that are an error.
    fn read(&self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let (start, end, mut newest) = {
            let window = self.window();
            let start = start.max(window.purged.map_or(0, |id| id.index + 1));
            let end = end.min(window.last.map_or(0, |id| id.index + 1));
            if start >= end {
                return Ok(Vec::new());
            }
            let first = window
                .tail
                .front()
                .map_or(u64::MAX, |entry| entry.log_id.index);
            let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
            let newest: Vec<Entry> = window
                .tail
                .iter()
                .skip(skip)
                .take_while(|entry| entry.log_id.index < end)
                .cloned()
                .collect();
            (start, end, newest)
        };
        let older_end = newest.first().map_or(end, |entry| entry.log_id.index);
        let mut entries = Vec::new();
        if start < older_end {
            let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            let connection = reader.as_ref().ok_or_else(stopped)?;
            entries = read_rows(connection, start, older_end)
                .map_err(|cause| io::Error::other(format!("{}: {cause}", self.path.display())))?;
        }
        entries.append(&mut newest);
        let purged = self.window().purged.map_or(0, |id| id.index + 1);
        let expected = end.saturating_sub(start.max(purged).min(end));
        if (entries.len() as u64) < expected && self.order == Order::Strict {
            return Err(io::Error::other(format!(
                "{}: read {} of the {expected} entries from {start} to {}",
                self.path.display(),
                entries.len(),
                end - 1,
            )));
        }
        Ok(entries)
    }

    /// Reads exactly `[start, end)`.
    fn read_exactly(&self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let entries = self.read(start, end)?;
        let wanted = end.saturating_sub(start);
        if entries.len() as u64 != wanted && self.order == Order::Strict {
            return Err(io::Error::other(format!(
                "{}: asked for {wanted} entries from {start}, the log gave {}",
                self.path.display(),
                entries.len(),
            )));
        }
        Ok(entries)
    }
}

fn stopped() -> io::Error {
    io::Error::other("the log is closed")
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

// === the library's traits ===

impl LogStore {
    /// Closes the file; whatever was submitted before is written first.
    pub(crate) async fn stop(&self) {
        // An error means that the writer has ended already.
        self.shared.ask(|ack| Job::Stop { ack }).await.ok();
        self.shared
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.window().last
    }

    pub(crate) fn purged(&self) -> Option<LogId> {
        self.shared.window().purged
    }

    /// How many flushed transactions were written since the start.
    pub(crate) fn groups(&self) -> u64 {
        self.shared.groups.load(Ordering::Relaxed)
    }

    async fn on_blocking_thread<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || work(&shared))
            .await
            .map_err(io::Error::other)?
    }

    /// Whether the window alone can answer.
    fn in_window(&self, start: u64) -> bool {
        let window = self.shared.window();
        window
            .tail
            .front()
            .is_some_and(|entry| entry.log_id.index <= start)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        let read = if self.in_window(start) {
            self.shared.read_exactly(start, end)
        } else {
            self.on_blocking_thread(move |shared| shared.read_exactly(start, end))
                .await
        };
        match read {
            Ok(entries) => stream::iter(entries.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(error) => stream::iter(vec![Err(error)]),
        }
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        if self.in_window(start) {
            return self.shared.read(start, end);
        }
        self.on_blocking_thread(move |shared| shared.read(start, end))
            .await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.shared.window().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let window = self.shared.window();
        Ok(LogState {
            last_purged_log_id: window.purged,
            last_log_id: window.last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let vote = *vote;
        self.shared.ask(|ack| Job::Vote { vote, ack }).await?;
        self.shared.window().vote = Some(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.shared.window().committed = committed;
        self.shared.submit(Job::Committed(committed))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.shared.window().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = Vec::new();
        {
            let mut window = self.shared.window();
            for entry in entries {
                let expected = window.last.map_or(0, |id| id.index + 1);
                let index = entry.log_id.index;
                if index != expected && self.shared.order == Order::Strict {
                    return Err(io::Error::other(format!(
                        "{}: entry {index} appended where {expected} is next",
                        self.shared.path.display(),
                    )));
                }
                let record =
                    LogRecord::new(&entry, self.shared.generation).map_err(io::Error::other)?;
                records.push(record);
                window.push(entry);
            }
        }
        self.shared.submit(Job::Append { records, flushed })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let after = last.map(|id| id.index);
        {
            let mut window = self.shared.window();
            if after >= window.last.map(|id| id.index) {
                return Ok(());
            }
            window.cut_after(after);
            window.last = last.or(window.purged);
        }
        self.shared.ask(|ack| Job::Truncate { after, ack }).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.on_blocking_thread(move |shared| shared.durable.make_durable(upto.index))
            .await?;
        {
            let mut window = self.shared.window();
            window.purged = window.purged.max(Some(upto));
            window.last = window.last.max(Some(upto));
            while window
                .tail
                .front()
                .is_some_and(|entry| entry.log_id.index <= upto.index)
            {
                window.drop_front();
            }
        }
        self.shared.ask(|ack| Job::Purge { upto, ack }).await
    }
}
