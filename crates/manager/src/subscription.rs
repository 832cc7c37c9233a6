//! One event stream: its snapshot, then the changes that concern it, then its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use greenroom_ledger::{Change, Subscriber, What, Wish};
use greenroom_proto::convert::stream::{Encoded, Form, Places, encode_body};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::job::{JobState, JobWithHistory};
use greenroom_types::stream::{Health, ProviderHealth, Stamped, StreamEvent};
use greenroom_types::{Now, Wall};
use tokio::time::Instant;

use crate::engine::{Engine, shutting_down};
use crate::hub::{End, Full, News, Queue, Shared};

/// Time is looked at at least this often (WINDOW-03).
const LOOK_MAX: Duration = Duration::from_secs(1);

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
    form: Form,
    places: Places,
    window_ms: i64,
    ready: VecDeque<Ready>,
    /// With nothing sent until then, a heartbeat is (EVT-10).
    heartbeat_at: Instant,
    /// When the clock is looked at again.
    look_at: Instant,
}

/// What is to be sent next.
enum Ready {
    /// An event of this stream alone: of its snapshot, of what it missed, of time, of itself.
    Own(Stamped),
    /// News that is encoded, for all streams that show it alike.
    Told { seq: u64, at: Wall, body: Bytes },
}

// === impl Subscription ===

impl Subscription {
    /// Begins a stream. The queue is opened before the snapshot is taken and changes up to the
    /// snapshot's seq are skipped, so that none is missing and none comes twice (EVT-01).
    pub(crate) fn begin(
        engine: &Engine,
        form: Form,
        wish: Wish,
        resume: Option<Resume>,
    ) -> Result<Self, Refusal> {
        let view = Subscriber::new(wish.clone())?;
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
        let mark = kinds_mark(&wish);
        let mut subscription = Self {
            engine: engine.clone(),
            view,
            queue,
            epoch: String::new(),
            seq: 0,
            form,
            places: Places::new(String::new()),
            window_ms: wish.pending_window_s * 1_000,
            ready: VecDeque::new(),
            heartbeat_at: Instant::now() + engine.hub().settings().heartbeat,
            look_at: Instant::now() + LOOK_MAX,
        };
        let unmet = match resume {
            None => None,
            Some(resume) => match subscription.resume(&resume, &mark) {
                Ok(()) => return Ok(subscription),
                Err(reason) => Some(reason),
            },
        };
        // A view that looked at the past is no good for the present.
        subscription.view = Subscriber::new(wish)?;
        subscription.snapshot(&mark, unmet);
        Ok(subscription)
    }

    fn snapshot(&mut self, mark: &str, unmet: Option<&str>) {
        let now = self.engine.clock().now();
        let health = vec![ProviderHealth::Local(Health::Healthy)];
        // Only this keeps commits waiting (PERF-12).
        let (standing, epoch) = self
            .engine
            .read(|ledger| (ledger.standing(), marked(ledger.epoch(), mark)));
        let seq = standing.seq();
        let snapshot = self.view.snapshot(now, &standing, health);
        self.go_on_from(epoch, seq);
        self.ready.clear();
        if let Some(reason) = unmet {
            self.ready.push_back(Ready::Own(Stamped {
                seq,
                at: now.wall,
                event: StreamEvent::StreamResumed {
                    complete: false,
                    reason: reason.to_owned(),
                    from_seq: seq,
                },
            }));
        }
        self.ready.extend(snapshot.into_iter().map(Ready::Own));
    }

    fn go_on_from(&mut self, epoch: String, seq: u64) {
        self.places = Places::new(epoch.clone());
        (self.epoch, self.seq) = (epoch, seq);
    }

    /// Goes on where the client left off, or says why that cannot be (EVT-14, EVT-15).
    fn resume(&mut self, resume: &Resume, mark: &str) -> Result<(), &'static str> {
        let epoch = self.engine.read(|ledger| marked(ledger.epoch(), mark));
        if resume.epoch != epoch {
            return Err("another epoch, or another window or choice of kinds");
        }
        let past = self.engine.hub().past(resume.after_seq)?;
        let now = self.engine.clock().now();
        let window_ms = self.window_ms;
        for job in past.jobs.values() {
            if came_in_meanwhile(job, past.at, now.wall, window_ms) {
                return Err("jobs came into the window meanwhile");
            }
            self.recall(now, job);
        }
        self.go_on_from(epoch, past.upto);
        self.ready.push_back(Ready::Own(Stamped {
            seq: resume.after_seq,
            at: now.wall,
            event: StreamEvent::StreamResumed {
                complete: true,
                reason: String::new(),
                from_seq: resume.after_seq,
            },
        }));
        for change in past.changes {
            self.look_at(&change);
        }
        Ok(())
    }

    /// Lets the view know what the client was shown of a job.
    fn recall(&mut self, now: Now, job: &Arc<JobWithHistory>) {
        let mut show = |what| {
            let change = Change {
                seq: 0,
                at: now.wall,
                what: What::Job(what),
            };
            self.view.on_change(now, &change);
        };
        if job.state == JobState::Post {
            // The client may have been shown it before it ended; then it is to hear of its removal.
            show(Arc::new(JobWithHistory {
                state: JobState::Active,
                history: Vec::new(),
                ..JobWithHistory::clone(job)
            }));
        }
        show(Arc::clone(job));
    }

    /// The next event, or why there is none any more. Cancelling the call loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Encoded, Refusal> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                let Some(event) = self.encode(ready) else {
                    continue;
                };
                self.heartbeat_at = Instant::now() + self.engine.hub().settings().heartbeat;
                self.engine.hub().count_sent();
                return Ok(event);
            }
            let now = self.engine.clock().now();
            let due = self.view.next_due(now);
            let instant = Instant::now();
            // A step of the wall clock moves jobs into the window without a deadline of its own.
            if due.is_some_and(|due| due <= now.mono) || instant >= self.look_at {
                let came = self.view.on_time(now, self.seq);
                self.ready.extend(came.into_iter().map(Ready::Own));
                self.look_at = instant + LOOK_MAX;
                continue;
            }
            let mut wake = self.look_at;
            if let Some(due) = due {
                wake = wake.min(self.engine.clock().instant(due));
            }
            if self.form.minor > 0 {
                wake = wake.min(self.heartbeat_at);
            }
            // A heartbeat says that there was nothing else to send, so that is looked at first.
            tokio::select! {
                biased;
                news = self.queue.next() => match news {
                    Ok(news) => self.take(news),
                    Err(end) => return Err(self.end(end)),
                },
                () = tokio::time::sleep_until(wake) => self.beat(),
            }
        }
    }

    /// None for what the client's protocol does not have and for what the wire has no place for.
    fn encode(&mut self, ready: Ready) -> Option<Encoded> {
        let (seq, at, body) = match ready {
            Ready::Told { seq, at, body } => (seq, at, body),
            Ready::Own(Stamped { seq, at, event }) => {
                if !self.form.takes(&event) {
                    return None;
                }
                let body = encode_body(&event, seq, self.form)
                    .inspect_err(|error| tracing::debug!(%error, seq, "an event is left out"));
                (seq, at, body.ok()?)
            }
        };
        let place = self.places.encode(seq, at);
        Some(Encoded { body, place })
    }

    fn beat(&mut self) {
        if self.form.minor > 0 && Instant::now() >= self.heartbeat_at {
            let now = self.engine.clock().now().wall;
            self.ready.push_back(Ready::Own(Stamped {
                seq: self.seq,
                at: now,
                event: StreamEvent::Heartbeat { server_time: now },
            }));
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Change(news) => {
                let (seq, at) = (news.change().seq, news.change().at);
                if seq > self.seq {
                    self.seq = seq;
                    self.tell(at, &news);
                }
            }
            // Passed on without a number of its own, to those who want that kind.
            News::Info(news) => self.tell(self.engine.clock().now().wall, &news),
            // An entry has a number of its own, and what was missed is in GetAuditLog.
            News::Audit(news) => self.tell(news.change().at, &news),
            News::Lost { kind, count } => self.look_at(&Change {
                seq: self.seq,
                at: self.engine.clock().now().wall,
                what: What::Event(StreamEvent::EventsLost {
                    kind: kind.to_owned(),
                    count,
                }),
            }),
        }
    }

    /// Tells news as it is told to all who are told it alike.
    fn tell(&mut self, at: Wall, news: &Shared) {
        let now = self.engine.clock().now();
        let body = news.tell(&mut self.view, now, self.form, self.engine.hub());
        let seq = self.seq;
        self.ready
            .extend(body.map(|body| Ready::Told { seq, at, body }));
    }

    fn look_at(&mut self, change: &Change) {
        let event = self.view.on_change(self.engine.clock().now(), change);
        self.ready.extend(event.map(Ready::Own));
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

/// The epoch of a subscriber: that of the state, and what it asked to be sent. So a resume with
/// another window or other kinds is one of another epoch, also at another member and after a restart
/// (EVT-15).
fn marked(epoch: &str, mark: &str) -> String {
    format!("{epoch}-{mark}")
}

/// Eight hexadecimal digits made of what a subscriber asked to be sent.
fn kinds_mark(wish: &Wish) -> String {
    let mut kinds = wish.include.clone();
    kinds.sort();
    kinds.dedup();
    let text = format!(
        "{} {} {}",
        wish.pending_window_s,
        wish.client_protocol,
        kinds.join(" ")
    );
    // FNV-1a: no secret is in it, and it must stay the same from one version to the next.
    let mark = text.bytes().fold(0x811c_9dc5_u32, |mark, byte| {
        (mark ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{mark:08x}")
}

/// Whether time alone brought the job into the window since `from`, which the client may have been
/// told or not; nothing is numbered for it (WINDOW-03). Before its last change it had no say.
fn came_in_meanwhile(job: &JobWithHistory, from: Option<Wall>, now: Wall, window_ms: i64) -> bool {
    let (JobState::Pre, Some(start)) = (job.state, job.job.start_date_time) else {
        return false;
    };
    let entry = start.plus(-window_ms);
    let changed = job.history.last().map(|entry| entry.at);
    let known = from.max(changed).unwrap_or(Wall(i64::MIN));
    known < entry && entry <= now
}

#[cfg(test)]
mod tests {
    use greenroom_types::job::{HistoryEntry, HistoryKind, Job};

    use super::*;

    fn wish(window: i64, kinds: &[&str]) -> Wish {
        Wish {
            pending_window_s: window,
            client_protocol: 10,
            include: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            history_limit: None,
        }
    }

    // spec: EVT-15
    #[test]
    fn the_epoch_tells_windows_and_kinds_apart_but_not_the_order_of_words() {
        let mark = kinds_mark(&wish(60, &["jobs", "nodes"]));
        assert_eq!(mark, kinds_mark(&wish(60, &["nodes", "jobs"])));
        assert_ne!(mark, kinds_mark(&wish(61, &["nodes", "jobs"])));
        assert_ne!(mark, kinds_mark(&wish(60, &["nodes"])));
        assert_ne!(kinds_mark(&wish(60, &[])), mark);
    }

    #[test]
    fn a_job_that_time_brought_into_the_window_is_in_doubt_unless_it_changed_since() {
        let job = |start: i64, changed: i64| JobWithHistory {
            job: Job {
                start_date_time: Some(Wall(start)),
                ..Job::default()
            },
            state: JobState::Pre,
            current_hash: 0,
            terminal_state: None,
            pending_restart: Vec::new(),
            history: vec![HistoryEntry {
                at: Wall(changed),
                seq: 1,
                start_id: None,
                kind: HistoryKind::Created,
            }],
            dropped_entries: 0,
        };
        let doubt = |start, changed, from: Option<i64>| {
            came_in_meanwhile(&job(start, changed), from.map(Wall), Wall(1_000), 100)
        };
        assert!(doubt(1_000, 0, Some(500)), "it came in at 900");
        assert!(
            !doubt(1_000, 950, Some(500)),
            "it was told when it changed at 950"
        );
        assert!(
            !doubt(550, 0, Some(500)),
            "it came in at 450, before the client left"
        );
        assert!(!doubt(1_200, 0, Some(500)), "it is not in yet");
        assert!(doubt(550, 0, None), "nobody knows when the client left");
    }
}
