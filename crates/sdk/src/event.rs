//! The event stream: a whole state first, then every change once, over breaks (SDK-06 to SDK-08).
//!
//! A task of its own reads the stream, so that a break is mended while the consumer works. Up to
//! 4 096 items wait for the consumer; beyond that the task stops reading, and the Manager's rule for
//! slow subscribers applies (EVT-13). Two snapshots are never mixed: a new one is complete before it
//! is yielded, and it stands for everything yielded before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use greenroom_proto::convert::call::PROTOCOL_MINOR;
use greenroom_proto::convert::stream::{self, ClientCodec, Decoded};
use greenroom_proto::manager;
use greenroom_types::stream::{Stamped, StreamEvent};
use tokio::sync::mpsc;
use tonic::codegen::Bytes;
use tonic::codegen::http::uri::PathAndQuery;

use crate::backoff::Backoff;
use crate::client::{Client, Inner};
use crate::error::{Error, Verdict};
use crate::initial::InitialState;
use crate::link::{ANSWER_BYTES_MAX, Link};
use crate::settings::EventSettings;

/// Items that wait for the consumer (SDK-08).
const BUFFER: usize = 4096;

const METHOD: &str = "EventStream";
const PATH: &str = "/norsk.api.manager.Manager/EventStream";

/// One item of a stream.
///
/// ```no_run
/// use greenroom_sdk::StreamItem;
/// # async fn example(mut events: greenroom_sdk::EventStream) {
/// if let Some(StreamItem::Event(stamped)) = events.next().await {
///     println!("{} at {}", stamped.seq, stamped.at);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// A change. Kinds that this version does not know are [`StreamEvent::Unknown`] (SDK-08).
    Event(Stamped),
    /// What came before could not be continued: forget it and begin with this (EVT-15).
    Resnapshot(Box<InitialState>),
    /// The stream is over, and why. Always the last item.
    Closed(Error),
}

/// Changes as they come. Also a [`tokio_stream::Stream`].
///
/// ```no_run
/// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
/// let (state, mut events) = client.event_stream(Default::default()).await?;
/// while let Some(item) = events.next().await {
///     println!("{item:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventStream {
    items: mpsc::Receiver<StreamItem>,
}

/// The reading side of one subscription.
struct Feed {
    inner: Arc<Inner>,
    settings: EventSettings,
    /// Where to go on; none when only a snapshot will do.
    place: Option<Place>,
    items: mpsc::Sender<StreamItem>,
}

#[derive(Clone, Debug)]
struct Place {
    epoch: String,
    seq: u64,
}

/// A stream whose beginning was read.
struct Opened {
    /// Present unless the stream goes on where the last one ended.
    snapshot: Option<InitialState>,
    messages: tonic::Streaming<Bytes>,
    link: Arc<Link>,
}

// === impl Client ===

impl Client {
    /// Subscribes: a complete state, then every change after it (SDK-06).
    ///
    /// # Errors
    /// What the Manager refuses, or [`Error::ConnectionLost`] when no try gave a whole snapshot.
    ///
    /// ```no_run
    /// use greenroom_sdk::EventSettings;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let settings = EventSettings { pending_window_s: 3600, ..EventSettings::default() };
    /// let (state, mut events) = client.event_stream(settings).await?;
    /// println!("{} bundles", state.bundles.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn event_stream(
        &self,
        settings: EventSettings,
    ) -> Result<(InitialState, EventStream), Error> {
        let (items, received) = mpsc::channel(BUFFER);
        let mut feed = Feed {
            inner: Arc::clone(&self.inner),
            settings,
            place: None,
            items,
        };
        let mut backoff = Backoff::new(self.inner.settings.retry);
        let mut failures = 0;
        let opened = loop {
            let (error, link) = match feed.open().await {
                Ok(opened) => break opened,
                Err(failed) => failed,
            };
            failures += 1;
            if error.ends_stream() || failures > self.inner.settings.retry.reads {
                return Err(error);
            }
            feed.wait(&mut backoff, link).await?;
        };
        let Opened {
            snapshot,
            messages,
            link,
        } = opened;
        let state = snapshot.unwrap_or_default();
        tokio::spawn(feed.run(messages, link));
        Ok((state, EventStream { items: received }))
    }
}

// === impl EventStream ===

impl EventStream {
    /// The next item; none after [`StreamItem::Closed`].
    ///
    /// ```no_run
    /// # async fn example(mut events: greenroom_sdk::EventStream) {
    /// while let Some(item) = events.next().await {
    ///     println!("{item:?}");
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<StreamItem> {
        self.items.recv().await
    }
}

impl tokio_stream::Stream for EventStream {
    type Item = StreamItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamItem>> {
        self.items.poll_recv(context)
    }
}

// === impl Feed ===

impl Feed {
    /// Reads until the stream is over for good, or nobody listens.
    async fn run(mut self, messages: tonic::Streaming<Bytes>, link: Arc<Link>) {
        let items = self.items.clone();
        let cause = tokio::select! {
            () = items.closed() => return,
            cause = self.read_on(messages, link) => cause,
        };
        let _ = items.send(StreamItem::Closed(cause)).await;
    }

    async fn read_on(
        &mut self,
        mut messages: tonic::Streaming<Bytes>,
        mut link: Arc<Link>,
    ) -> Error {
        loop {
            let cause = self.read(&mut messages, &link).await;
            if cause.ends_stream() || !self.settings.auto_resume {
                return cause;
            }
            let opened = match self.reopen(Some(Arc::clone(&link))).await {
                Ok(opened) => opened,
                Err(error) => return error,
            };
            if let Some(state) = opened.snapshot {
                let item = StreamItem::Resnapshot(Box::new(state));
                if let Err(error) = self.yield_item(item).await {
                    return error;
                }
            }
            messages = opened.messages;
            link = opened.link;
        }
    }

    /// Opens again, for as long as it takes.
    async fn reopen(&mut self, mut failed: Option<Arc<Link>>) -> Result<Opened, Error> {
        let mut backoff = Backoff::new(self.inner.settings.retry);
        loop {
            self.wait(&mut backoff, failed).await?;
            match self.open().await {
                Ok(opened) => return Ok(opened),
                Err((error, _)) if error.ends_stream() => return Err(error),
                Err((_, link)) => failed = link,
            }
        }
    }

    async fn wait(&self, backoff: &mut Backoff, failed: Option<Arc<Link>>) -> Result<(), Error> {
        let number = failed.map_or(0, |link| link.number);
        tokio::select! {
            biased;
            () = self.inner.closed.cancelled() => Err(cancelled()),
            () = self.inner.pause(backoff.pause(&self.inner.dice), number) => Ok(()),
        }
    }

    /// Yields events until the stream breaks, and says how.
    async fn read(&mut self, messages: &mut tonic::Streaming<Bytes>, link: &Link) -> Error {
        loop {
            let decoded = match self.next(messages, link).await {
                Ok(decoded) => decoded,
                Err(error) => return error,
            };
            let Decoded { epoch, stamped } = decoded;
            let same_epoch = self.place.as_ref().is_none_or(|place| place.epoch == epoch);
            let restarted = matches!(
                stamped.event,
                StreamEvent::StreamResumed {
                    complete: false,
                    ..
                }
            );
            if !same_epoch || restarted {
                // Another sequence has begun, and only a snapshot says what it begins with.
                self.place = None;
                return lost("the stream changed its epoch".to_owned());
            }
            if let Some(place) = &mut self.place {
                place.seq = place.seq.max(stamped.seq);
            }
            if let Err(error) = self.yield_item(StreamItem::Event(stamped)).await {
                return error;
            }
        }
    }

    async fn yield_item(&self, item: StreamItem) -> Result<(), Error> {
        tokio::select! {
            biased;
            () = self.inner.closed.cancelled() => Err(cancelled()),
            sent = self.items.send(item) => sent.map_err(|_| cancelled()),
        }
    }

    /// Opens a stream and reads its beginning: the answer to a resume, or a whole snapshot.
    async fn open(&mut self) -> Result<Opened, (Error, Option<Arc<Link>>)> {
        let link = self.inner.link(METHOD).map_err(|error| (error, None))?;
        match self.begin(&link).await {
            Ok((snapshot, messages)) => Ok(Opened {
                snapshot,
                messages,
                link,
            }),
            Err(error) => Err((error, Some(link))),
        }
    }

    async fn begin(
        &mut self,
        link: &Link,
    ) -> Result<(Option<InitialState>, tonic::Streaming<Bytes>), Error> {
        let mut messages = self.subscribe(link).await?;
        let mut state = InitialState::default();
        let mut first = true;
        loop {
            let Decoded { epoch, stamped } = self.next(&mut messages, link).await?;
            match stamped.event {
                StreamEvent::StreamResumed { complete: true, .. }
                    if first
                        && self
                            .place
                            .as_ref()
                            .is_some_and(|place| place.epoch == epoch) =>
                {
                    return Ok((None, messages));
                }
                StreamEvent::StreamResumed { .. } if first => {}
                StreamEvent::StreamResumed { .. } => {
                    return Err(protocol("stream_resumed", "came within a snapshot"));
                }
                _ => {
                    if state.epoch.is_empty() {
                        state.epoch = epoch;
                    }
                    if state.take(stamped) {
                        // Without an epoch there is nothing to resume by.
                        self.place = (!state.epoch.is_empty()).then(|| Place {
                            epoch: state.epoch.clone(),
                            seq: state.seq,
                        });
                        return Ok((Some(state), messages));
                    }
                }
            }
            first = false;
        }
    }

    async fn subscribe(&self, link: &Link) -> Result<tonic::Streaming<Bytes>, Error> {
        let request = manager::EventStreamRequest {
            pending_window_s: i32::try_from(self.settings.pending_window_s).unwrap_or(i32::MAX),
            client_protocol: PROTOCOL_MINOR,
            resume: self.place.as_ref().map(|place| manager::EventStreamResume {
                epoch: place.epoch.clone(),
                after_seq: place.seq,
            }),
            include: self
                .settings
                .include
                .iter()
                .map(|group| group.as_str().to_owned())
                .collect(),
            history_limit: self.settings.history_limit,
            max_lag_ms: self.settings.max_lag_ms,
            client_label: self.settings.client_label.clone(),
        };
        let channel =
            tonic::codegen::InterceptedService::new(link.channel.clone(), link.announce());
        let mut grpc =
            tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let answered = async {
            grpc.ready()
                .await
                .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            grpc.server_streaming(
                tonic::Request::new(request),
                PathAndQuery::from_static(PATH),
                ClientCodec,
            )
            .await
        };
        let answered = tokio::select! {
            biased;
            () = self.inner.closed.cancelled() => return Err(cancelled()),
            answered = answered => answered,
        };
        match answered {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.broke(&status, link)),
        }
    }

    /// The next message, or why there is none.
    async fn next(
        &self,
        messages: &mut tonic::Streaming<Bytes>,
        link: &Link,
    ) -> Result<Decoded, Error> {
        let message = tokio::select! {
            biased;
            () = self.inner.closed.cancelled() => return Err(cancelled()),
            message = messages.message() => message,
        };
        match message {
            Ok(Some(bytes)) => {
                stream::decode(&bytes).map_err(|error| protocol(&error.path, &error.message))
            }
            Ok(None) => Err(lost("the Manager ended the stream".to_owned())),
            Err(status) => Err(self.broke(&status, link)),
        }
    }

    fn broke(&self, status: &tonic::Status, link: &Link) -> Error {
        match Verdict::of(METHOD, status, link.hello.protocol) {
            Verdict::Final(error) => error,
            Verdict::Busy(refused) => {
                self.inner.leave_busy(link);
                Error::Unavailable(refused)
            }
            Verdict::Lost(cause) => {
                self.inner.leave(link);
                lost(cause)
            }
            Verdict::TimedOut => lost(status.message().to_owned()),
        }
    }
}

// === helpers ===

const fn lost(cause: String) -> Error {
    Error::ConnectionLost {
        method: METHOD,
        outcome_unknown: false,
        cause,
    }
}

const fn cancelled() -> Error {
    Error::Cancelled {
        method: METHOD,
        outcome_unknown: false,
    }
}

fn protocol(field: &str, problem: &str) -> Error {
    Error::Protocol {
        method: METHOD,
        field: field.to_owned(),
        problem: problem.to_owned(),
    }
}
