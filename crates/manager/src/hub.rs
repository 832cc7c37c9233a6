//! Fan-out of committed changes: every subscriber has a queue of its own, bounded, so that a slow
//! one delays nobody (EVT-11), and the newest changes are held for those who come back (EVT-14).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use greenroom_ledger::{Change, What};
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

#[derive(Debug)]
pub(crate) struct Hub {
    settings: EventSettings,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    held: VecDeque<Arc<Change>>,
    subscribers: Vec<Weak<Queue>>,
    ended: bool,
}

/// The queue of one subscriber. It leaves the hub when its last handle is dropped.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: EventSettings,
    inner: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    news: VecDeque<News>,
    bytes: usize,
    lost_info: u64,
    end: Option<End>,
}

/// Too many subscribers (EVT-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

// === impl Hub ===

impl Hub {
    pub(crate) fn new(settings: EventSettings) -> Self {
        Self {
            settings,
            inner: Mutex::default(),
        }
    }

    pub(crate) const fn settings(&self) -> &EventSettings {
        &self.settings
    }

    /// A queue that holds every change published from now on.
    pub(crate) fn subscribe(&self) -> Result<Arc<Queue>, Full> {
        let mut inner = self.lock();
        inner.subscribers.retain(|queue| queue.strong_count() > 0);
        if inner.subscribers.len() >= self.settings.subscribers {
            return Err(Full);
        }
        let queue = Arc::new(Queue {
            limits: self.settings,
            inner: Mutex::default(),
            filled: Notify::new(),
        });
        if inner.ended {
            queue.end(End::ShuttingDown);
        }
        inner.subscribers.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// The held changes after a seq; none when some of them are held no longer.
    pub(crate) fn after(&self, seq: u64) -> Option<Vec<Arc<Change>>> {
        let inner = self.lock();
        let first = inner.held.front().map(|change| change.seq);
        match first {
            Some(first) if first <= seq + 1 => Some(
                inner
                    .held
                    .iter()
                    .filter(|change| change.seq > seq)
                    .cloned()
                    .collect(),
            ),
            _ => None,
        }
    }

    /// Hands committed changes to everyone. Called in commit order.
    pub(crate) fn publish(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let changes: Vec<Arc<Change>> = changes.into_iter().map(Arc::new).collect();
        let mut inner = self.lock();
        inner.held.extend(changes.iter().cloned());
        let excess = inner.held.len().saturating_sub(self.settings.held);
        inner.held.drain(..excess);
        inner.subscribers.retain(|queue| {
            queue
                .upgrade()
                .inspect(|queue| queue.push_all(&changes))
                .is_some()
        });
    }

    /// Passes news of an instance on.
    pub(crate) fn inform(&self, info: JobInfo) {
        let info = Arc::new(info);
        for queue in self.lock().subscribers.iter().filter_map(Weak::upgrade) {
            queue.push_info(Arc::clone(&info));
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

// === impl Queue ===

impl Queue {
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

    fn push_all(&self, changes: &[Arc<Change>]) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        for change in changes {
            let crowded = waiting.news.len() >= self.limits.queue_events / 2
                || waiting.bytes >= self.limits.queue_bytes / 2;
            if crowded {
                waiting.make_room(change);
            }
            waiting.bytes += weight(change);
            waiting.news.push_back(News::Change(Arc::clone(change)));
        }
        if waiting.news.len() > self.limits.queue_events || waiting.bytes > self.limits.queue_bytes
        {
            waiting.news.clear();
            waiting.bytes = 0;
            waiting.end = Some(End::TooSlow);
        }
        drop(waiting);
        self.filled.notify_one();
    }

    fn push_info(&self, info: Arc<JobInfo>) {
        let mut waiting = self.lock();
        if waiting.end.is_some() {
            return;
        }
        if waiting.news.len() >= self.limits.queue_events / 2 {
            waiting.lost_info += 1;
        } else {
            waiting.news.push_back(News::Info(info));
        }
        drop(waiting);
        self.filled.notify_one();
    }

    fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Waiting ===

impl Waiting {
    fn pop(&mut self) -> Option<Result<News, End>> {
        if let Some(news) = self.news.pop_front() {
            if let News::Change(change) = &news {
                self.bytes -= weight(change);
            }
            return Some(Ok(news));
        }
        if self.lost_info > 0 {
            let count = std::mem::take(&mut self.lost_info);
            return Some(Ok(News::Lost {
                kind: "job_info",
                count,
            }));
        }
        self.end.map(Err)
    }

    /// Drops what may be dropped: news of instances, and older pictures of the node that `change`
    /// brings a newer one of (EVT-12). Nothing else is ever dropped.
    fn make_room(&mut self, change: &Change) {
        let before = self.news.len();
        self.news.retain(|news| !matches!(news, News::Info(_)));
        self.lost_info += (before - self.news.len()) as u64;
        let Some(node) = pictured(change) else { return };
        let mut bytes = self.bytes;
        self.news.retain(|news| match news {
            News::Change(older) if pictured(older) == Some(node) => {
                bytes -= weight(older);
                false
            }
            _ => true,
        });
        self.bytes = bytes;
    }
}

fn pictured(change: &Change) -> Option<&greenroom_types::NodeId> {
    match &change.what {
        What::Event(StreamEvent::NodeInventoryUpdated { node_id, .. }) => Some(node_id),
        _ => None,
    }
}

/// Roughly how many bytes a change keeps alive, for the bound on a queue.
fn weight(change: &Change) -> usize {
    const ENTRY: usize = 200;
    match &change.what {
        What::Job(job) => 1_000 + job.history.len() * ENTRY,
        What::JobDeleted(_) => ENTRY,
        What::Event(StreamEvent::BundleUpdated(bundle)) => 500 + bundle.bundle.jobs.len() * 1_000,
        What::Event(StreamEvent::NodeInventoryUpdated { inventory, .. }) => {
            1_000 + (inventory.assigned_jobs.len() + inventory.held_images.len()) * ENTRY
        }
        What::Event(_) => 500,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::inventory::NodeInventory;
    use greenroom_types::{NodeId, Wall};

    use super::*;

    fn settings() -> EventSettings {
        EventSettings {
            queue_events: 8,
            held: 4,
            subscribers: 2,
            ..EventSettings::default()
        }
    }

    fn change(seq: u64, event: StreamEvent) -> Change {
        Change {
            seq,
            at: Wall(0),
            what: What::Event(event),
        }
    }

    fn stopped(seq: u64) -> Change {
        change(
            seq,
            StreamEvent::NodeStopped {
                node_id: NodeId::new(format!("n{seq}")),
            },
        )
    }

    fn picture(seq: u64) -> Change {
        let inventory = Arc::new(NodeInventory::default());
        change(
            seq,
            StreamEvent::NodeInventoryUpdated {
                node_id: NodeId::new("n"),
                inventory,
            },
        )
    }

    fn waiting(queue: &Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.lock().pop())
            .map_while(|news| match news {
                Ok(News::Change(change)) => Some(change.seq),
                _ => None,
            })
            .collect()
    }

    // spec: EVT-11, EVT-13
    #[test]
    fn a_subscriber_that_stops_reading_is_cut_off_and_others_are_not() {
        let hub = Hub::new(settings());
        let (slow, quick) = (hub.subscribe().unwrap(), hub.subscribe().unwrap());
        for seq in 1..=8 {
            hub.publish(vec![stopped(seq)]);
        }
        assert_eq!(waiting(&quick), (1..=8).collect::<Vec<_>>());
        hub.publish(vec![stopped(9)]);
        assert!(matches!(slow.lock().pop(), Some(Err(End::TooSlow))));
        assert_eq!(waiting(&quick), [9]);
    }

    // spec: EVT-12
    #[test]
    fn past_half_only_pictures_are_merged_and_only_job_info_is_dropped() {
        let hub = Hub::new(settings());
        let queue = hub.subscribe().unwrap();
        for _ in 0..3 {
            hub.inform(info());
        }
        hub.publish(vec![picture(1), stopped(2), stopped(3), stopped(4)]);
        hub.publish(vec![picture(5)]);
        assert_eq!(
            waiting(&queue),
            [2, 3, 4, 5],
            "the older picture and the info gave way"
        );
        for seq in 6..10 {
            hub.publish(vec![stopped(seq)]);
        }
        hub.inform(info());
        assert_eq!(waiting(&queue), (6..10).collect::<Vec<_>>());
    }

    // spec: EVT-12
    #[test]
    fn what_was_dropped_is_told() {
        let hub = Hub::new(settings());
        let queue = hub.subscribe().unwrap();
        hub.publish((1..=4).map(stopped).collect());
        hub.inform(info());
        hub.inform(info());
        let mut told = Vec::new();
        while let Some(Ok(news)) = queue.lock().pop() {
            told.push(news);
        }
        assert!(matches!(
            told.last(),
            Some(News::Lost {
                kind: "job_info",
                count: 2
            })
        ));
    }

    // spec: EVT-18
    #[test]
    fn the_number_of_subscribers_is_bounded_and_leavers_make_room() {
        let hub = Hub::new(settings());
        let first = hub.subscribe().unwrap();
        let _second = hub.subscribe().unwrap();
        assert_eq!(hub.subscribe().unwrap_err(), Full);
        drop(first);
        assert!(hub.subscribe().is_ok());
    }

    // spec: EVT-14
    #[test]
    fn the_newest_changes_are_held_for_a_resume() {
        let hub = Hub::new(settings());
        assert!(
            hub.after(0).is_none(),
            "nothing is known to be complete yet"
        );
        hub.publish((1..=6).map(stopped).collect());
        let seqs = |after| {
            hub.after(after)
                .map(|held| held.iter().map(|change| change.seq).collect::<Vec<_>>())
        };
        assert_eq!(seqs(2), Some(vec![3, 4, 5, 6]));
        assert_eq!(seqs(6), Some(vec![]));
        assert_eq!(seqs(1), None, "2 is held no longer");
    }

    fn info() -> JobInfo {
        JobInfo {
            key: greenroom_types::node::InstanceKey::default(),
            start_id: greenroom_types::StartId::default(),
            at: Wall(0),
            kind: greenroom_types::job::JobInfoKind::ServiceStarted("main".into()),
        }
    }
}
