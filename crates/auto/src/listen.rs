//! Callbacks as a stream, for listeners that take their time.
//!
//! The loop never waits for a listener. Up to [`BUFFER`] callbacks are held for each; one that falls
//! further behind is told how many it missed and goes on with the oldest still held.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use greenroom_policy::Callback;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt};

/// Callbacks held for listeners. A decision with the trace of a large fleet may weigh 100 KiB, so
/// this bounds what a forgotten listener costs to some tens of MiB.
pub(crate) const BUFFER: usize = 1024;

/// One item of a [`CallbackStream`].
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// A callback.
    Callback(Arc<Callback>),
    /// This listener was too slow and missed so many.
    Lagged(u64),
}

/// Callbacks from the moment of subscribing on. Ends with the instance.
#[derive(Debug)]
pub struct CallbackStream {
    /// None: the instance was over already.
    inner: Option<BroadcastStream<Arc<Callback>>>,
}

// === impl CallbackStream ===

impl CallbackStream {
    pub(crate) fn of(sender: &broadcast::WeakSender<Arc<Callback>>) -> Self {
        Self {
            inner: sender
                .upgrade()
                .map(|sender| BroadcastStream::new(sender.subscribe())),
        }
    }

    /// The next item; none when the instance is over.
    pub async fn next(&mut self) -> Option<Heard> {
        StreamExt::next(self).await
    }
}

impl Stream for CallbackStream {
    type Item = Heard;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Heard>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        Pin::new(inner).poll_next(context).map(|item| {
            item.map(|item| match item {
                Ok(callback) => Heard::Callback(callback),
                Err(BroadcastStreamRecvError::Lagged(missed)) => Heard::Lagged(missed),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_types::NodeId;

    fn starting(n: usize) -> Arc<Callback> {
        Arc::new(Callback::OnNodeStarting {
            node_id: NodeId::new(format!("n{n}")),
        })
    }

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_missed_and_goes_on() {
        let (sender, _) = broadcast::channel(4);
        let mut stream = CallbackStream::of(&sender.downgrade());
        for n in 0..6 {
            sender.send(starting(n)).unwrap();
        }
        drop(sender);
        let mut heard = Vec::new();
        while let Some(item) = stream.next().await {
            heard.push(item);
        }
        assert_eq!(heard[0], Heard::Lagged(2));
        let rest: Vec<Heard> = (2..6).map(|n| Heard::Callback(starting(n))).collect();
        assert_eq!(heard[1..], rest);
    }

    #[tokio::test]
    async fn a_listener_that_comes_after_the_end_hears_nothing() {
        let (sender, _) = broadcast::channel::<Arc<Callback>>(4);
        let weak = sender.downgrade();
        drop(sender);
        assert_eq!(CallbackStream::of(&weak).next().await, None);
    }
}
