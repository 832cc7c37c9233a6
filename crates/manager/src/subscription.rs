//! One event stream: its snapshot, then the changes that concern it, then its end.

use std::sync::Arc;

use greenroom_ledger::{Change, Subscriber, Wish};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::stream::{ProviderHealth, Stamped, StreamEvent};

use crate::engine::{Engine, shutting_down};
use crate::hub::{End, Full, News, Queue};

/// Where a client that comes back left off (EVT-14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) epoch: String,
    pub(crate) after_seq: u64,
}

/// A running event stream.
pub(crate) struct Subscription {
    engine: Engine,
    view: Subscriber,
    queue: Arc<Queue>,
    epoch: String,
    /// Seq of the latest change that was looked at.
    seq: u64,
    protocol_minor: u32,
    ready: std::collections::VecDeque<Stamped>,
}

// === impl Subscription ===

impl Subscription {
    /// Begins a stream. The queue is opened before the snapshot is taken and changes up to the
    /// snapshot's seq are skipped, so that none is missing and none comes twice (EVT-01).
    pub(crate) fn begin(
        engine: &Engine,
        wish: Wish,
        resume: Option<Resume>,
    ) -> Result<Self, Refusal> {
        let protocol_minor = wish.client_protocol;
        let mut view = Subscriber::new(wish.clone())?;
        let queue = engine.hub().subscribe().map_err(|Full| {
            Refusal::new(
                Status::ResourceExhausted,
                "too_many_subscribers",
                format!(
                    "{} event streams are open at this member, and no more are served",
                    engine.hub().settings().subscribers
                ),
            )
        })?;
        let now = engine.clock().now();
        let (snapshot, epoch, seq) = engine.read(|ledger| {
            let health = vec![ProviderHealth::Local(
                greenroom_types::stream::Health::Healthy,
            )];
            (
                view.snapshot(now, ledger, health),
                ledger.epoch().to_owned(),
                ledger.seq(),
            )
        });
        let mut subscription = Self {
            engine: engine.clone(),
            view,
            queue,
            epoch,
            seq,
            protocol_minor,
            ready: snapshot.into(),
        };
        if let Some(resume) = resume {
            subscription.resume(&resume);
        }
        Ok(subscription)
    }

    /// Answers a resume: the rest follows without a snapshot, or the snapshot that was taken is
    /// announced (EVT-14, EVT-15).
    fn resume(&mut self, resume: &Resume) {
        let held = if resume.epoch != self.epoch {
            Err("another epoch")
        } else if resume.after_seq > self.seq {
            Err("a seq from the future")
        } else if resume.after_seq == self.seq {
            Ok(Vec::new())
        } else {
            self.engine
                .hub()
                .after(resume.after_seq)
                .ok_or("too long ago")
        };
        let now = self.engine.clock().now();
        let answer = |complete, reason: &str, from_seq| StreamEvent::StreamResumed {
            complete,
            reason: reason.to_owned(),
            from_seq,
        };
        match held {
            Ok(held) => {
                self.ready.clear();
                let event = answer(true, "", resume.after_seq);
                self.ready.push_back(Stamped {
                    seq: resume.after_seq,
                    at: now.wall,
                    event,
                });
                let upto = self.seq;
                for change in held.into_iter().filter(|change| change.seq <= upto) {
                    self.look_at(&change);
                }
            }
            Err(reason) => {
                let event = answer(false, reason, self.seq);
                self.ready.push_front(Stamped {
                    seq: self.seq,
                    at: now.wall,
                    event,
                });
            }
        }
    }

    /// The epoch whose seqs the events carry.
    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The next event, or why there is none any more. Cancelling the call loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Stamped, Refusal> {
        let heartbeat = self.engine.hub().settings().heartbeat;
        let quiet_until = tokio::time::Instant::now() + heartbeat;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let now = self.engine.clock().now();
            let due = self
                .view
                .next_due(now)
                .map(|at| self.engine.clock().instant(at));
            // A step of the wall clock moves jobs into the window without a deadline of its own.
            let look = tokio::time::Instant::now() + std::time::Duration::from_secs(1);
            let wake = due.map_or(look, |due| due.min(look)).min(quiet_until);
            tokio::select! {
                news = self.queue.next() => match news {
                    Ok(news) => self.take(news),
                    Err(end) => return Err(self.end(end)),
                },
                () = tokio::time::sleep_until(wake) => {
                    let now = self.engine.clock().now();
                    self.ready.extend(self.view.on_time(now, self.seq));
                    if self.ready.is_empty()
                        && self.protocol_minor > 0
                        && tokio::time::Instant::now() >= quiet_until
                    {
                        let event = StreamEvent::Heartbeat { server_time: now.wall };
                        return Ok(Stamped { seq: self.seq, at: now.wall, event });
                    }
                }
            }
        }
    }

    fn take(&mut self, news: News) {
        let at = self.engine.clock().now().wall;
        let seq = self.seq;
        match news {
            News::Change(change) if change.seq > self.seq => {
                self.seq = change.seq;
                self.look_at(&change);
            }
            News::Change(_) => {}
            News::Info(info) => {
                let event = StreamEvent::JobInfo((*info).clone());
                self.ready.push_back(Stamped { seq, at, event });
            }
            News::Lost { kind, count } if self.protocol_minor > 0 => {
                let event = StreamEvent::EventsLost {
                    kind: kind.to_owned(),
                    count,
                };
                self.ready.push_back(Stamped { seq, at, event });
            }
            News::Lost { .. } => {}
        }
    }

    fn look_at(&mut self, change: &Change) {
        self.ready
            .extend(self.view.on_change(self.engine.clock().now(), change));
    }

    fn end(&self, end: End) -> Refusal {
        match end {
            End::ShuttingDown => shutting_down(),
            End::TooSlow => Refusal::new(
                Status::ResourceExhausted,
                "subscriber_too_slow",
                format!(
                    "too many events wait to be read; resume after seq {}",
                    self.seq
                ),
            )
            .with("epoch", self.epoch.as_str())
            .with("seq", self.seq),
        }
    }
}
