//! The places of one listener (LIM-05). Whoever has one and asks for nothing gives way to whoever comes, the
//! one that has asked for nothing the longest first: refusing newcomers instead would let one silent caller
//! keep out everybody. A call in progress keeps its place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A connection that lost its place has this long to end in order.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);
/// So many may be about to end at once; one more cuts off the first.
const LEAVING_MAX: usize = 64;

/// The places of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Holder);

/// Whose place it is, for those that use the connection.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    shared: Arc<Shared>,
    id: u64,
    signals: Arc<Signals>,
}

/// As long as one of these is there, the connection keeps its place.
#[derive(Debug)]
pub struct InUse(Holder);

#[derive(Debug)]
struct Shared {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Grows with whatever happens, and so tells what was first.
    moment: u64,
    /// All connections, those that are about to end included.
    seats: BTreeMap<u64, Seat>,
    /// Connections with a place.
    taken: usize,
    /// Those of them that nobody uses, by the moment since when.
    idle: BTreeMap<u64, u64>,
    /// Those that lost their place, and until when they may end in order; oldest first.
    leaving: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Seat {
    uses: usize,
    /// The moment since when nobody uses it.
    since: u64,
    has_place: bool,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct Signals {
    /// It lost its place, or is gone.
    leave: Notify,
    /// It must end now.
    cut: AtomicBool,
    reader: AtomicWaker,
}

// === impl Places ===

impl Places {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            max,
            state: Mutex::default(),
        }))
    }

    /// A place for one more connection, if need be that of the one which was idle the longest; none
    /// where all are in use.
    pub(crate) fn take(&self) -> Option<Place> {
        let mut state = self.0.lock();
        if state.taken >= self.0.max {
            let id = state.evict()?;
            let until = Instant::now() + LEAVE_WITHIN;
            state.leaving.push_back((until, id));
            if state.leaving.len() > LEAVING_MAX
                && let Some((_, first)) = state.leaving.pop_front()
            {
                state.cut(first);
            }
        }
        state.moment += 1;
        let (id, signals) = (state.moment, Arc::<Signals>::default());
        let seat = Seat {
            uses: 0,
            since: id,
            has_place: true,
            signals: Arc::clone(&signals),
        };
        state.seats.insert(id, seat);
        state.idle.insert(id, id);
        state.taken += 1;
        Some(Place(Holder {
            shared: Arc::clone(&self.0),
            id,
            signals,
        }))
    }

    /// Ends the connection that was idle the longest, at once.
    pub(crate) fn vacate(&self) {
        let mut state = self.0.lock();
        if let Some(id) = state.evict() {
            state.cut(id);
        }
    }

    /// Cuts off connections that should have ended by now.
    pub(crate) fn cut_late(&self) {
        let mut state = self.0.lock();
        let now = Instant::now();
        while let Some((until, id)) = state.leaving.front().copied()
            && until <= now
        {
            state.leaving.pop_front();
            state.cut(id);
        }
    }

    /// Resolves when [`Self::cut_late`] has something to do, as things stand now.
    pub(crate) async fn late(&self) {
        let until = self.0.lock().leaving.front().map(|(until, _)| *until);
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    /// Takes the place of the connection that was idle the longest.
    fn evict(&mut self) -> Option<u64> {
        let (_, id) = self.idle.pop_first()?;
        self.taken -= 1;
        let seat = self.seats.get_mut(&id)?;
        seat.has_place = false;
        seat.signals.leave.notify_one();
        Some(id)
    }

    fn cut(&self, id: u64) {
        if let Some(seat) = self.seats.get(&id) {
            seat.signals.cut.store(true, Ordering::Release);
            seat.signals.reader.wake();
        }
    }
}

// === impl Place ===

impl Place {
    pub(crate) fn holder(&self) -> Holder {
        self.0.clone()
    }

    /// Whether the connection must end now; wakes the one who asks when it becomes so.
    pub(crate) fn is_cut(&self, waker: &Waker) -> bool {
        let signals = &self.0.signals;
        if signals.cut.load(Ordering::Acquire) {
            return true;
        }
        signals.reader.register(waker);
        signals.cut.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.shared.lock();
        if let Some(seat) = state.seats.remove(&self.0.id) {
            if seat.uses == 0 {
                state.idle.remove(&seat.since);
            }
            if seat.has_place {
                state.taken -= 1;
            } else {
                state.leaving.retain(|(_, id)| *id != self.0.id);
            }
        }
        self.0.signals.leave.notify_one();
    }
}

// === impl Holder ===

impl Holder {
    /// Resolves when the connection lost its place or is gone.
    pub(crate) async fn leaving(self) {
        self.signals.leave.notified().await;
    }

    pub(crate) fn begin_use(&self) -> InUse {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if let Some(seat) = state.seats.get_mut(&self.id) {
            if seat.uses == 0 {
                state.idle.remove(&seat.since);
            }
            seat.uses += 1;
        }
        InUse(self.clone())
    }
}

// === impl InUse ===

impl Drop for InUse {
    fn drop(&mut self) {
        let mut guard = self.0.shared.lock();
        let state = &mut *guard;
        state.moment += 1;
        if let Some(seat) = state.seats.get_mut(&self.0.id) {
            seat.uses -= 1;
            seat.since = state.moment;
            if seat.uses == 0 && seat.has_place {
                state.idle.insert(seat.since, self.0.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_cut(place: &Place) -> bool {
        place.is_cut(Waker::noop())
    }

    fn lost(place: &Place) -> bool {
        let leaving = std::pin::pin!(place.holder().leaving());
        leaving
            .poll(&mut std::task::Context::from_waker(Waker::noop()))
            .is_ready()
    }

    // spec: LIM-05
    #[tokio::test(start_paused = true)]
    async fn whoever_was_idle_the_longest_gives_way_and_whoever_is_in_use_never() {
        let places = Places::new(3);
        let [first, second, third] = [(); 3].map(|()| places.take().unwrap());
        let call = second.holder().begin_use();
        // A call that is over makes its connection the youngest.
        drop(first.holder().begin_use());
        let fourth = places.take().unwrap();
        assert_eq!([&first, &second, &third].map(lost), [false, false, true]);
        let fifth = places.take().unwrap();
        assert!(lost(&first) && !is_cut(&first));
        let calls = [&fourth, &fifth].map(|place| place.holder().begin_use());
        assert!(places.take().is_none(), "all three are in use");
        drop((call, calls));
        let sixth = places.take().unwrap();
        assert!(lost(&second) && !lost(&fourth) && !lost(&fifth));

        // What does not end in order is cut off.
        places.late().await;
        places.cut_late();
        assert!(is_cut(&first) && is_cut(&second) && is_cut(&third));
        assert!(![&fourth, &fifth, &sixth].into_iter().any(is_cut));
        // Nobody else gets the place of one that is gone twice.
        drop((first, second, third));
        let kept = [&fourth, &fifth, &sixth].map(|place| place.holder().begin_use());
        assert!(places.take().is_none());
        drop(fourth);
        assert!(places.take().is_some());
        drop(kept);
    }

    // spec: LIM-05
    #[tokio::test(start_paused = true)]
    async fn so_many_end_in_order_at_once_and_no_more() {
        let places = Places::new(1);
        let all: Vec<Place> = (0..LEAVING_MAX + 3)
            .map(|_| places.take().unwrap())
            .collect();
        let cut = all.iter().take_while(|place| is_cut(place)).count();
        assert_eq!(cut, 2);
        assert!(!all[cut..].iter().any(is_cut));
        drop(all);
        let state = places.0.lock();
        let left = (state.seats.len(), state.idle.len(), state.leaving.len());
        assert_eq!((left, state.taken), ((0, 0, 0), 0));
    }

    // spec: LIM-10
    #[test]
    fn where_descriptors_are_short_the_longest_idle_ends_at_once() {
        let places = Places::new(9);
        let used = places.take().unwrap();
        let _call = used.holder().begin_use();
        let idle = places.take().unwrap();
        places.vacate();
        assert!(is_cut(&idle) && !is_cut(&used));
        places.vacate();
        assert!(!is_cut(&used));
    }
}
