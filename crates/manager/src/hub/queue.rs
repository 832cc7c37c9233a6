//! What waits for one subscriber. Pushing never waits; every step costs the same however much waits,
//! so that a subscriber that reads slowly costs the others nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_ledger::{Change, What, audit_weight};
use greenroom_types::NodeId;
use greenroom_types::call::AuditEntry;
use greenroom_types::job::JobInfo;
use greenroom_types::stream::StreamEvent;
use tokio::sync::Notify;

use crate::settings::EventSettings;

/// News for one subscriber.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// A committed change.
    Change(Arc<Change>),
    /// News of an instance, passed on (EVT-09).
    Info(Arc<JobInfo>),
    /// An audit entry (AUDIT-09).
    Audit(Arc<AuditEntry>),
    /// So many pieces of that kind were dropped (EVT-12).
    Lost { kind: &'static str, count: u64 },
}

/// Why a subscriber's queue gives nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It fell too far behind (EVT-13).
    TooSlow,
    /// The Manager ends (API-19).
    ShuttingDown,
}

/// The queue of one subscriber. It leaves the hub when its last handle is dropped.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug)]
struct Waiting {
    limits: EventSettings,
    /// In order; a place whose piece was dropped is empty.
    places: VecDeque<Option<News>>,
    /// Number of the first place; places are numbered through.
    first: u64,
    /// Places that are not empty.
    full: usize,
    bytes: usize,
    /// Numbers of the places that hold news of instances.
    infos: VecDeque<u64>,
    /// Numbers of the places that hold the newest picture of a node.
    pictures: BTreeMap<NodeId, u64>,
    lost_info: u64,
    end: Option<End>,
}

/// Rough size of a piece of news of an instance.
const INFO_BYTES: usize = 500;

// === impl Queue ===

impl Queue {
    pub(super) fn new(limits: EventSettings) -> Self {
        Self {
            inner: Mutex::new(Waiting {
                limits,
                places: VecDeque::new(),
                first: 0,
                full: 0,
                bytes: 0,
                infos: VecDeque::new(),
                pictures: BTreeMap::new(),
                lost_info: 0,
                end: None,
            }),
            filled: Notify::new(),
        }
    }

    /// The next piece of news. Cancelling the call loses nothing.
    pub(crate) async fn next(&self) -> Result<News, End> {
        loop {
            let filled = self.filled.notified();
            if let Some(found) = self.lock().pop() {
                return found;
            }
            filled.await;
        }
    }

    /// How much waits.
    pub(super) fn depth(&self) -> usize {
        self.lock().full
    }

    pub(super) fn push_all(&self, changes: &[Arc<Change>]) {
        let mut waiting = self.lock();
        for change in changes {
            if waiting.end.is_some() {
                return;
            }
            waiting.push(change);
        }
        drop(waiting);
        self.filled.notify_one();
    }

    pub(super) fn push_info(&self, info: Arc<JobInfo>) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        if waiting.is_crowded() {
            waiting.lost_info += 1;
        } else {
            let place = waiting.put(News::Info(info), INFO_BYTES);
            waiting.infos.push_back(place);
        }
        drop(waiting);
        self.filled.notify_one();
    }

    pub(super) fn push_audit(&self, entry: Arc<AuditEntry>) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        let bytes = audit_weight(&entry);
        waiting.put(News::Audit(entry), bytes);
        waiting.check_limits();
        drop(waiting);
        self.filled.notify_one();
    }

    pub(super) fn lose_info(&self) {
        self.lock().lost_info += 1;
        self.filled.notify_one();
    }

    pub(super) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.filled.notify_one();
    }

    /// What is there now, without waiting.
    #[cfg(test)]
    pub(super) fn try_next(&self) -> Option<Result<News, End>> {
        self.lock().pop()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Waiting ===

impl Waiting {
    /// Past half of a limit: what may be dropped gives way (EVT-12).
    const fn is_crowded(&self) -> bool {
        self.full >= self.limits.queue_events / 2 || self.bytes >= self.limits.queue_bytes / 2
    }

    fn push(&mut self, change: &Arc<Change>) {
        while self.is_crowded()
            && let Some(oldest) = self.infos.pop_front()
        {
            self.clear(oldest, INFO_BYTES);
            self.lost_info += 1;
        }
        let picture = pictured(change);
        if let Some(node_id) = picture
            && self.is_crowded()
            && let Some(older) = self.pictures.remove(node_id)
        {
            let bytes = match self.at(older) {
                Some(News::Change(older)) => weight(older),
                _ => 0,
            };
            self.clear(older, bytes);
        }
        let place = self.put(News::Change(Arc::clone(change)), weight(change));
        if let Some(node_id) = picture {
            self.pictures.insert(node_id.clone(), place);
        }
        self.check_limits();
    }

    fn check_limits(&mut self) {
        if self.full > self.limits.queue_events || self.bytes > self.limits.queue_bytes {
            self.cut_off();
        }
    }

    fn put(&mut self, news: News, bytes: usize) -> u64 {
        if self.places.len() > 2 * self.full + 64 {
            self.close_gaps();
        }
        self.places.push_back(Some(news));
        self.full += 1;
        self.bytes += bytes;
        self.first + self.places.len() as u64 - 1
    }

    fn at(&self, place: u64) -> Option<&News> {
        let index = usize::try_from(place.checked_sub(self.first)?).ok()?;
        self.places.get(index)?.as_ref()
    }

    fn clear(&mut self, place: u64, bytes: usize) {
        let index = place
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok());
        let there = index.and_then(|index| self.places.get_mut(index));
        if there.is_some_and(|place| place.take().is_some()) {
            self.full -= 1;
            self.bytes -= bytes;
        }
    }

    /// Takes empty places out once there are more of them than others.
    fn close_gaps(&mut self) {
        self.places.retain(Option::is_some);
        self.infos.clear();
        self.pictures.clear();
        for (place, news) in (self.first..).zip(&self.places) {
            match news {
                Some(News::Info(_)) => self.infos.push_back(place),
                Some(News::Change(change)) => {
                    if let Some(node_id) = pictured(change) {
                        self.pictures.insert(node_id.clone(), place);
                    }
                }
                _ => {}
            }
        }
    }

    fn cut_off(&mut self) {
        self.places.clear();
        self.infos.clear();
        self.pictures.clear();
        self.full = 0;
        self.bytes = 0;
        self.end = Some(End::TooSlow);
    }

    fn pop(&mut self) -> Option<Result<News, End>> {
        if self.lost_info > 0 && !self.is_crowded() && self.end != Some(End::TooSlow) {
            let count = std::mem::take(&mut self.lost_info);
            return Some(Ok(News::Lost {
                kind: "job_info",
                count,
            }));
        }
        while let Some(place) = self.places.pop_front() {
            let number = self.first;
            self.first += 1;
            let Some(news) = place else { continue };
            self.full -= 1;
            match &news {
                News::Change(change) => {
                    self.bytes -= weight(change);
                    if let Some(node_id) = pictured(change)
                        && self.pictures.get(node_id) == Some(&number)
                    {
                        self.pictures.remove(node_id);
                    }
                }
                News::Info(_) => {
                    self.bytes -= INFO_BYTES;
                    self.infos.pop_front();
                }
                News::Audit(entry) => self.bytes -= audit_weight(entry),
                News::Lost { .. } => {}
            }
            return Some(Ok(news));
        }
        self.end.map(Err)
    }
}

fn pictured(change: &Change) -> Option<&NodeId> {
    match &change.what {
        What::Event(StreamEvent::NodeInventoryUpdated { node_id, .. }) => Some(node_id),
        _ => None,
    }
}

/// Roughly how many bytes a change keeps alive, for the bounds on what waits and what is held.
pub(super) fn weight(change: &Change) -> usize {
    const ENTRY: usize = 200;
    match &change.what {
        What::Job(view) => {
            let texts: usize = view
                .job
                .services
                .iter()
                .map(|service| 500 + service.configuration.len())
                .sum();
            let job = &view.job;
            1_000 + texts + job.manager_configuration.len() + view.history.len() * ENTRY
        }
        What::JobDeleted(_) => ENTRY,
        What::Event(StreamEvent::BundleUpdated(bundle)) => 500 + bundle.bundle.jobs.len() * 1_000,
        What::Event(StreamEvent::NodeInventoryUpdated { inventory, .. }) => {
            1_000 + (inventory.assigned_jobs.len() + inventory.held_images.len()) * ENTRY
        }
        What::Event(_) => 500,
    }
}
