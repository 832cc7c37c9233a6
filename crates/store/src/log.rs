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

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use futures::stream::{self, Stream};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::directory::{DirectoryLock, Identity};
use crate::fatal::FatalCell;
use crate::raft::{Entry, LogId, Types, Vote};
use crate::record::{self, LogRecord, PlaceRecord, VoteRecord};
use crate::sqlite::{self, Flush, signed, text};

/// How many entries the window keeps beyond those not yet on disk.
///
/// Applies read every entry right after it was flushed; a few thousand cover the
/// distance between flush and apply, so only a replay after a start reads the disk.
const WINDOW_ENTRIES: usize = 4_096;

/// How many bytes the window keeps beyond those not yet on disk.
const WINDOW_BYTES: usize = 16 * 1024 * 1024;

/// How many waiting requests one transaction takes.
const GROUP: usize = 1_024;

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

/// An opened `log.db` before the writer thread has it.
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    connection: Connection,
    pub(crate) identity: Identity,
    window: Window,
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
}

#[derive(Default)]
struct Window {
    purged: Option<LogId>,
    last: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    /// The newest entries without a hole, ending at `last`.
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    /// Entries up to this index are on disk.
    flushed: Option<u64>,
}

type Ack = oneshot::Sender<io::Result<()>>;

enum Job {
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

// === impl LogFile ===

impl LogFile {
    /// Creates an empty log that continues after `purged`.
    pub(crate) fn create(
        path: &Path,
        identity: &Identity,
        purged: Option<LogId>,
        vote: Option<Vote>,
    ) -> Result<Self, String> {
        let mut connection = sqlite::open(path, Flush::Always)?;
        let mut values = vec![("identity", record::write_versioned(identity)?)];
        if let Some(purged) = purged {
            values.push((
                "purged",
                record::write_versioned(PlaceRecord::from(purged))?,
            ));
        }
        if let Some(vote) = vote {
            values.push(("vote", record::write_versioned(VoteRecord::from(vote))?));
        }
        sqlite::create_schema(
            &mut connection,
            "CREATE TABLE log(idx INTEGER PRIMARY KEY, generation INTEGER NOT NULL, \
             term INTEGER NOT NULL, node INTEGER NOT NULL, kind INTEGER NOT NULL, \
             body BLOB NOT NULL, sum INTEGER NOT NULL)",
            &values,
        )?;
        drop(connection);
        Self::open(path)
    }

    /// Opens an existing log and verifies its structure, values and both ends.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let connection = sqlite::open(path, Flush::Always)?;
        sqlite::quick_check(&connection)?;
        let identity = sqlite::get_meta(&connection, "identity")?
            .ok_or_else(|| "the identity is missing".to_owned())
            .and_then(|text| record::read_versioned(&text))?;
        let place = |key| -> Result<Option<LogId>, String> {
            let Some(text) = sqlite::get_meta(&connection, key)? else {
                return Ok(None);
            };
            Ok(Some(record::read_versioned::<PlaceRecord>(&text)?.into()))
        };
        let purged = place("purged")?;
        let committed = place("committed")?;
        let vote = match sqlite::get_meta(&connection, "vote")? {
            Some(text) => Some(record::read_versioned::<VoteRecord>(&text)?.into()),
            None => None,
        };
        let (first, last, count): (Option<i64>, Option<i64>, i64) = connection
            .query_row("SELECT min(idx), max(idx), count(*) FROM log", (), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .map_err(text)?;
        let mut end = purged;
        if let (Some(first), Some(last)) = (first, last) {
            let expected = purged.map_or(0, |id| signed(id.index + 1));
            if first != expected || last - first + 1 != count {
                return Err(format!(
                    "entries {first} to {last} are {count} rows; \
                     the log must begin at {expected} and have no hole"
                ));
            }
            let index = last.cast_unsigned();
            let newest = read_rows(&connection, index, index + 1)?;
            end = newest.last().map(|entry| entry.log_id);
        }
        let window = Window {
            purged,
            last: end,
            vote,
            // The hint may be older than the log, never newer.
            committed: committed.min(end),
            flushed: end.map(|id| id.index),
            ..Window::default()
        };
        Ok(Self {
            path: path.to_owned(),
            connection,
            identity,
            window,
        })
    }

    /// The last entry that was let go.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.window.purged
    }

    /// The newest entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.window.last
    }

    pub(crate) fn vote(&self) -> Option<Vote> {
        self.window.vote
    }

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
        });
        // The thread must not keep the queue's sending end alive, or it would never end.
        let window = Arc::downgrade(&shared);
        let mut writer = Writer {
            connection: self.connection,
            committed: None,
            name: shared.path.display().to_string(),
            fatal,
        };
        std::thread::Builder::new()
            .name("store-log".to_owned())
            .spawn(move || {
                let stopped = writer.run(&queue, |flushed| {
                    if let Some(shared) = window.upgrade() {
                        shared.note_flushed(flushed);
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

// === the writer thread ===

struct Writer {
    connection: Connection,
    committed: Option<LogId>,
    name: String,
    fatal: FatalCell,
}

impl Writer {
    /// Serves jobs until told to stop, until nobody can ask any more, or until a write fails.
    fn run(&mut self, queue: &mpsc::Receiver<Job>, flushed: impl Fn(Option<u64>)) -> Option<Ack> {
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
            match self.write(&group) {
                Ok(end) => {
                    if let Some(end) = end {
                        flushed(end);
                    }
                    group.into_iter().for_each(|job| job.finish(None));
                }
                Err(cause) => {
                    // One attempt only (STORE-12): after a failed flush nobody knows what
                    // is on disk, so nothing further may be acknowledged.
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

    /// Writes a group in one flushed transaction. Returns the new end of what is on disk
    /// if the group moved it.
    fn write(&mut self, group: &[Job]) -> Result<Option<Option<u64>>, String> {
        let mut end = None;
        let mut work = false;
        for job in group {
            match job {
                Job::Committed(id) => self.committed = *id,
                _ => work = true,
            }
        }
        if !work {
            return Ok(None);
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
                        end = Some(Some(record.index));
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
                    end = Some(*after);
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
        Ok(end)
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

// === impl Shared ===

impl Shared {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_flushed(&self, end: Option<u64>) {
        let mut window = self.window();
        window.flushed = end;
        window.trim();
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

impl Window {
    fn push(&mut self, entry: Entry) {
        self.last = Some(entry.log_id);
        self.tail_bytes += record::weight(&entry.payload);
        self.tail.push_back(entry);
    }

    /// Lets go of old entries, but never of one that is not on disk.
    fn trim(&mut self) {
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

    fn drop_front(&mut self) {
        if let Some(entry) = self.tail.pop_front() {
            self.tail_bytes -= record::weight(&entry.payload);
        }
    }
}

fn read_rows(connection: &Connection, start: u64, end: u64) -> Result<Vec<Entry>, String> {
    let mut select = connection
        .prepare_cached(
            "SELECT idx, generation, term, node, kind, body, sum FROM log \
             WHERE idx >= ?1 AND idx < ?2 ORDER BY idx",
        )
        .map_err(text)?;
    let mut rows = select.query([signed(start), signed(end)]).map_err(text)?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next().map_err(text)? {
        let number = |column| {
            row.get::<_, i64>(column)
                .map(i64::cast_unsigned)
                .map_err(text)
        };
        let record = LogRecord {
            index: number(0)?,
            generation: number(1)?,
            term: number(2)?,
            node: number(3)?,
            kind: row.get(4).map_err(text)?,
            body: row.get(5).map_err(text)?,
        };
        let sum: i64 = row.get(6).map_err(text)?;
        if sum != record.checksum() {
            return Err(format!(
                "entry {} does not match its checksum",
                record.index
            ));
        }
        entries.push(record.into_entry()?);
    }
    Ok(entries)
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
            while window
                .tail
                .back()
                .is_some_and(|entry| after.is_none_or(|after| entry.log_id.index > after))
            {
                if let Some(entry) = window.tail.pop_back() {
                    window.tail_bytes -= record::weight(&entry.payload);
                }
            }
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
