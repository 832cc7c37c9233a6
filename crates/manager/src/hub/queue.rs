//! What waits for one subscriber. Pushing never waits; every step costs the same however much waits,
//! so that a subscriber that reads slowly costs the others nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_ledger::{Change, What};
use greenroom_types::NodeId;
use greenroom_types::stream::StreamEvent;
use tokio::sync::Notify;

use super::Shared;
use crate::settings::EventSettings;

/// News for one subscriber.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// A committed change.
    Change(Arc<Shared>),
    /// News of an instance, passed on (EVT-09).
    Info(Arc<Shared>),
    /// An audit entry (AUDIT-09).
    Audit(Arc<Shared>),
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

// === impl News ===

impl News {
    /// Roughly how many bytes it keeps alive.
    fn weight(&self) -> usize {
        match self {
            Self::Change(news) | Self::Info(news) | Self::Audit(news) => news.weight(),
            Self::Lost { .. } => 0,
        }
    }
}

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

    pub(super) fn push_all(&self, changes: &[Arc<Shared>]) {
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

    pub(super) fn push_info(&self, info: Arc<Shared>) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        if waiting.is_crowded() {
            waiting.lost_info += 1;
        } else {
            let place = waiting.put(News::Info(info));
            waiting.infos.push_back(place);
        }
        drop(waiting);
        self.filled.notify_one();
    }

    pub(super) fn push_audit(&self, entry: Arc<Shared>) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        waiting.put(News::Audit(entry));
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

    fn push(&mut self, change: &Arc<Shared>) {
        while self.is_crowded()
            && let Some(oldest) = self.infos.pop_front()
        {
            self.clear(oldest);
            self.lost_info += 1;
        }
        let picture = pictured(change.change());
        if let Some(node_id) = picture
            && self.is_crowded()
            && let Some(older) = self.pictures.remove(node_id)
        {
            self.clear(older);
        }
        let place = self.put(News::Change(Arc::clone(change)));
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

    fn put(&mut self, news: News) -> u64 {
        if self.places.len() > 2 * self.full + 64 {
            self.close_gaps();
        }
        self.full += 1;
        self.bytes += news.weight();
        self.places.push_back(Some(news));
        self.first + self.places.len() as u64 - 1
    }

    fn clear(&mut self, place: u64) {
        let index = place
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok());
        let there = index.and_then(|index| self.places.get_mut(index));
        if let Some(news) = there.and_then(Option::take) {
            self.full -= 1;
            self.bytes -= news.weight();
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
                    if let Some(node_id) = pictured(change.change()) {
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
            self.bytes -= news.weight();
            match &news {
                News::Change(change) => {
                    if let Some(node_id) = pictured(change.change())
                        && self.pictures.get(node_id) == Some(&number)
                    {
                        self.pictures.remove(node_id);
                    }
                }
                News::Info(_) => {
                    self.infos.pop_front();
                }
                News::Audit(_) | News::Lost { .. } => {}
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
