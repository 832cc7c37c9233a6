//! The queue of what applies gave out.
//!
//! Pushing never waits, so an apply never depends on a consumer; it is proposals
//! that wait while the queue is over its limit. The queue is therefore bounded by
//! the limit plus the proposals on their way (plus, at a start, the replayed tail).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::machine::Machine;

/// Delivers `(revision, output)` of every apply of this process, in commit order, once.
///
/// Whoever reads a state at revision R through [`crate::Store::read_at`] and then
/// skips what is delivered for revisions up to R misses nothing and sees nothing twice.
///
/// A task that drains the receiver must not itself wait for `propose`: a full
/// queue holds proposals back. Dropping the receiver discards all outputs.
pub struct OutputReceiver<M: Machine> {
    queue: Arc<Queue<M::Output>>,
}

pub(crate) struct OutputSender<X> {
    queue: Arc<Queue<X>>,
}

struct Queue<X> {
    inner: Mutex<Inner<X>>,
    filled: Notify,
    drained: Notify,
    limit: usize,
}

struct Inner<X> {
    waiting: VecDeque<(u64, X)>,
    /// The receiver is gone: nothing is kept and nothing is held back.
    discard: bool,
    /// The store is ending: nobody is held back any more.
    released: bool,
    /// The sender is gone or the store is shut down: nothing more will come.
    closed: bool,
}

pub(crate) fn channel<M: Machine>(limit: usize) -> (OutputSender<M::Output>, OutputReceiver<M>) {
    let queue = Arc::new(Queue {
        inner: Mutex::new(Inner {
            waiting: VecDeque::new(),
            discard: false,
            released: false,
            closed: false,
        }),
        filled: Notify::new(),
        drained: Notify::new(),
        limit: limit.max(1),
    });
    (
        OutputSender {
            queue: Arc::clone(&queue),
        },
        OutputReceiver { queue },
    )
}

impl<M: Machine> OutputReceiver<M> {
    /// The next output, or `None` after the store was shut down and all were taken.
    ///
    /// Cancelling the call loses nothing.
    pub async fn recv(&mut self) -> Option<(u64, M::Output)> {
        loop {
            {
                let mut inner = self.queue.lock();
                if let Some(next) = inner.waiting.pop_front() {
                    let relieved = inner.waiting.len() + 1 == self.queue.limit;
                    drop(inner);
                    if relieved {
                        self.queue.drained.notify_waiters();
                    }
                    return Some(next);
                }
                if inner.closed {
                    return None;
                }
            }
            self.queue.filled.notified().await;
        }
    }

    /// The next output if one is waiting.
    pub fn try_recv(&mut self) -> Option<(u64, M::Output)> {
        let mut inner = self.queue.lock();
        let next = inner.waiting.pop_front()?;
        let relieved = inner.waiting.len() + 1 == self.queue.limit;
        drop(inner);
        if relieved {
            self.queue.drained.notify_waiters();
        }
        Some(next)
    }
}

impl<M: Machine> Drop for OutputReceiver<M> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        inner.discard = true;
        inner.waiting.clear();
        drop(inner);
        self.queue.drained.notify_waiters();
    }
}

impl<X> OutputSender<X> {
    pub(crate) fn push(&self, outputs: impl IntoIterator<Item = (u64, X)>) {
        let mut inner = self.queue.lock();
        if !inner.discard {
            inner.waiting.extend(outputs);
        }
        drop(inner);
        self.queue.filled.notify_one();
    }

    /// Waits until the queue is below its limit.
    pub(crate) async fn room(&self) {
        loop {
            let mut drained = std::pin::pin!(self.queue.drained.notified());
            // Registered before looking, so that a drain in between is not missed.
            drained.as_mut().enable();
            {
                let inner = self.queue.lock();
                if inner.discard || inner.released || inner.waiting.len() < self.queue.limit {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Lets everybody through who waits for room.
    pub(crate) fn release(&self) {
        self.queue.lock().released = true;
        self.queue.drained.notify_waiters();
    }

    pub(crate) fn close(&self) {
        let mut inner = self.queue.lock();
        inner.closed = true;
        inner.released = true;
        drop(inner);
        self.queue.filled.notify_one();
        self.queue.drained.notify_waiters();
    }
}

impl<X> Drop for OutputSender<X> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<X> Queue<X> {
    fn lock(&self) -> MutexGuard<'_, Inner<X>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
