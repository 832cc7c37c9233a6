//! Fan-out of committed changes: every subscriber has a queue of its own, bounded, so that a slow
//! one delays nobody (EVT-11); what waits in them is one for all and is encoded once (PERF-11); and the
//! newest changes are held for those who come back (EVT-14).
//!
//! Beside the changes the hub keeps the jobs as they stood at the last one it handed out. What a
//! subscriber was shown decides what it is sent of a change, so a resume needs the jobs as they
//! stood where the client left off, not as they stand now.

mod queue;
mod shared;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use greenroom_ledger::{Change, SharedMap, What};
use greenroom_types::call::AuditEntry;
use greenroom_types::job::{JobInfo, JobInfoKind, JobWithHistory};
use greenroom_types::node::ServiceRestarts;
use greenroom_types::{JobId, StartId, Wall};
use tokio::sync::watch;

use crate::settings::EventSettings;

pub(crate) use queue::{End, News, Queue};
pub(crate) use shared::Shared;

/// Starts of which the last news, and the restarts by their workers, are kept.
const LAST_INFO_MAX: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Hub {
    settings: EventSettings,
    inner: Mutex<Inner>,
    /// Seq of the latest change handed out, for who waits for it.
    published: watch::Sender<u64>,
    /// Events handed to streams so far.
    sent: AtomicU64,
    /// News encoded for streams so far.
    encoded: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Seq of the latest change handed out.
    seq: u64,
    /// Jobs as they stood at that seq.
    jobs: SharedMap<JobId, Arc<JobWithHistory>>,
    /// When the change before the first one held was committed, where that is known.
    before_held: Option<Wall>,
    subscribers: Vec<Weak<Queue>>,
    /// The last news of starts.
    last_info: BTreeMap<StartId, Arc<JobInfo>>,
    /// Restarts by workers, of starts that had any or are about to.
    restarts: BTreeMap<StartId, ServiceRestarts>,
    ended: bool,
}

/// A change that is held, with its job as it stood before.
#[derive(Clone, Debug)]
struct Held {
    change: Arc<Change>,
    before: Option<Arc<JobWithHistory>>,
    bytes: usize,
}

/// Too many subscribers (EVT-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What happened after a seq.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// The changes after it, in order.
    pub(crate) changes: Vec<Arc<Change>>,
    /// All jobs as they stood at it.
    pub(crate) jobs: SharedMap<JobId, Arc<JobWithHistory>>,
    /// When it was committed, where that is known.
    pub(crate) at: Option<Wall>,
    /// The seq of the last change, or the one asked for.
    pub(crate) upto: u64,
}

// === impl Hub ===

impl Hub {
    pub(crate) fn new(settings: EventSettings) -> Self {
        Self {
            settings,
            inner: Mutex::default(),
            published: watch::Sender::new(0),
            sent: AtomicU64::new(0),
            encoded: AtomicU64::new(0),
        }
    }

    pub(crate) const fn settings(&self) -> &EventSettings {
        &self.settings
    }

    /// Begins with this state. Only changes after it may be published.
    pub(crate) fn seed(&self, seq: u64, jobs: impl Iterator<Item = Arc<JobWithHistory>>) {
        let mut inner = self.lock();
        inner.seq = seq;
        self.published.send_replace(seq);
        inner.jobs = jobs.map(|job| (job.job.job_id.clone(), job)).collect();
    }

    /// A queue that holds every change published from now on.
    pub(crate) fn subscribe(&self) -> Result<Arc<Queue>, Full> {
        let mut inner = self.lock();
        inner.subscribers.retain(|queue| queue.strong_count() > 0);
        if inner.subscribers.len() >= self.settings.subscribers {
            return Err(Full);
        }
        let queue = Arc::new(Queue::new(self.settings));
        if inner.ended {
            queue.end(End::ShuttingDown);
        }
        inner.subscribers.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// What happened after a seq, or why that cannot be told.
    pub(crate) fn past(&self, seq: u64) -> Result<Past, &'static str> {
        let inner = self.lock();
        if seq > inner.seq {
            return Err("a seq from the future");
        }
        let first = inner
            .held
            .front()
            .map_or(inner.seq + 1, |held| held.change.seq);
        if first > seq + 1 {
            return Err("too long ago");
        }
        let from = inner.held.partition_point(|held| held.change.seq <= seq);
        let at = match from.checked_sub(1) {
            Some(at) => inner.held.get(at).map(|held| held.change.at),
            None => inner.before_held,
        };
        let (mut jobs, upto) = (inner.jobs.clone(), inner.seq);
        let missed: Vec<Held> = inner.held.range(from..).cloned().collect();
        // Nobody waits for the jobs to be as they stood.
        drop(inner);
        for held in missed.iter().rev() {
            let job_id = match &held.change.what {
                What::Job(job) => &job.job.job_id,
                What::JobDeleted(job_id) => job_id,
                What::Event(_) => continue,
            };
            match &held.before {
                Some(before) => jobs.insert(job_id.clone(), Arc::clone(before)),
                None => jobs.remove(job_id),
            };
        }
        Ok(Past {
            changes: missed.into_iter().map(|held| held.change).collect(),
            jobs,
            at,
            upto,
        })
    }

    /// Hands committed changes to everyone. Called in commit order.
    pub(crate) fn publish(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let changes: Vec<Arc<Shared>> = changes
            .into_iter()
            .map(|change| Arc::new(Shared::of_change(change)))
            .collect();
        let mut inner = self.lock();
        for change in &changes {
            inner.hold(change);
        }
        inner.let_go(&self.settings);
        inner.subscribers.retain(|queue| {
            queue
                .upgrade()
                .inspect(|queue| queue.push_all(&changes))
                .is_some()
        });
        self.published.send_replace(inner.seq);
    }

    /// Counts an event that was handed to a stream.
    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Events handed to streams so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Counts a piece of news that was encoded for the streams that show it alike.
    pub(crate) fn count_encoded(&self) {
        self.encoded.fetch_add(1, Ordering::Relaxed);
    }

    /// News encoded for streams so far; snapshots and what streams tell of themselves are not in it.
    pub(crate) fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// How much waits for each subscriber.
    pub(crate) fn depths(&self) -> Vec<usize> {
        let inner = self.lock();
        let queues = inner.subscribers.iter().filter_map(Weak::upgrade);
        queues.map(|queue| queue.depth()).collect()
    }

    /// Seq of the latest change handed out, as it grows.
    pub(crate) fn published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// Passes news of an instance on; of one that is starting, the last is kept.
    pub(crate) fn inform(&self, info: JobInfo, is_starting: bool) {
        let mut inner = self.lock();
        let start_id = &info.start_id;
        if is_starting {
            let kept = Arc::new(info.clone());
            inner.last_info.insert(start_id.clone(), kept);
        } else {
            inner.last_info.remove(start_id);
        }
        if inner.last_info.len() > LAST_INFO_MAX {
            // What is over was not taken out by anybody; the oldest is the likeliest.
            let oldest = inner.last_info.iter().min_by_key(|(_, info)| info.at);
            if let Some(oldest) = oldest.map(|(start_id, _)| start_id.clone()) {
                inner.last_info.remove(&oldest);
            }
        }
        inner.count_restart(&info);
        let info = Arc::new(Shared::of_info(info));
        for queue in inner.subscribers.iter().filter_map(Weak::upgrade) {
            queue.push_info(Arc::clone(&info));
        }
    }

    /// How often the services of a start were started again by its worker (EVT-09).
    pub(crate) fn restarts(&self, start_id: &StartId) -> Option<ServiceRestarts> {
        let inner = self.lock();
        let restarts = inner.restarts.get(start_id)?;
        (restarts.count > 0).then(|| restarts.clone())
    }

    /// What was said last of a start (EVT-09).
    pub(crate) fn last_info(&self, start_id: &StartId) -> Option<Arc<JobInfo>> {
        self.lock().last_info.get(start_id).cloned()
    }

    /// Tells of an audit entry, after the changes that it is about.
    pub(crate) fn audit(&self, entry: &Arc<AuditEntry>) {
        let inner = self.lock();
        if inner.subscribers.is_empty() {
            return;
        }
        let entry = Arc::new(Shared::of_audit(AuditEntry::clone(entry)));
        for queue in inner.subscribers.iter().filter_map(Weak::upgrade) {
            queue.push_audit(Arc::clone(&entry));
        }
    }

    /// Counts news of an instance that was too much to be passed on (EVT-09).
    pub(crate) fn lose_info(&self) {
        for queue in self.lock().subscribers.iter().filter_map(Weak::upgrade) {
            queue.lose_info();
        }
    }

    /// Ends every subscription, present and future.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        for queue in inner.subscribers.iter().filter_map(Weak::upgrade) {
            queue.end(End::ShuttingDown);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    /// The end of a service comes ahead of the word that it is started again.
    fn count_restart(&mut self, info: &JobInfo) {
        let begins = matches!(
            info.kind,
            JobInfoKind::ServiceRestarting(_) | JobInfoKind::ContainerEvent { .. }
        );
        if begins && !self.restarts.contains_key(&info.start_id) {
            if self.restarts.len() >= LAST_INFO_MAX {
                let oldest = self.restarts.iter().min_by_key(|(_, it)| it.at);
                if let Some(oldest) = oldest.map(|(start_id, _)| start_id.clone()) {
                    self.restarts.remove(&oldest);
                }
            }
            self.restarts
                .insert(info.start_id.clone(), ServiceRestarts::default());
        }
        if let Some(restarts) = self.restarts.get_mut(&info.start_id) {
            restarts.note(info.at, &info.kind);
        }
    }

    fn hold(&mut self, news: &Shared) {
        let (change, bytes) = (news.change(), news.weight());
        let before = match &change.what {
            What::Job(job) => self.jobs.insert(job.job.job_id.clone(), Arc::clone(job)),
            What::JobDeleted(job_id) => self.jobs.remove(job_id),
            What::Event(_) => None,
        };
        self.seq = change.seq;
        self.held_bytes += bytes;
        self.held.push_back(Held {
            change: Arc::clone(change),
            before,
            bytes,
        });
    }

    /// Lets go what need not be held any longer: beyond the number and older than the time, or
    /// beyond the bytes (EVT-14).
    fn let_go(&mut self, settings: &EventSettings) {
        let newest = self.held.back().map_or(Wall(0), |held| held.change.at);
        let held_for = i64::try_from(settings.held_for.as_millis()).unwrap_or(i64::MAX);
        while let Some(oldest) = self.held.front() {
            let old = newest.since(oldest.change.at) >= held_for;
            let many = self.held.len() > settings.held;
            if !(many && old) && self.held_bytes <= settings.held_bytes {
                return;
            }
            self.held_bytes -= oldest.bytes;
            self.before_held = Some(oldest.change.at);
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
