//! One subscriber's view of the changes: its pending window, its protocol, its choice of kinds.
//!
//! Pure: it holds what the subscriber was shown and what waits to come into its window; queues,
//! sockets and heartbeats are the driver's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::call::Refusal;
use greenroom_types::job::{HistoryKind, JobState, JobWithHistory};
use greenroom_types::stream::{ProviderHealth, Stamped, StreamEvent};
use greenroom_types::{JobId, Millis, Mono, Now, Wall};
use serde::{Deserialize, Serialize};

use crate::change::{Change, What};
use crate::refuse::invalid;
use crate::standing::Standing;

/// Longest pending window, in seconds (WINDOW-01).
const WINDOW_MAX_S: i64 = 31_536_000;
/// Entries of a history that are sent unless another number was asked for (EVT-08).
const HISTORY: usize = 100;
/// A step back of the wall clock above this takes shown jobs away (WINDOW-06).
const STEP_BACK_MS: i64 = 60_000;
/// Words of `include` (EVT-20).
const KINDS: [&str; 8] = [
    "jobs",
    "nodes",
    "bundles",
    "inventory",
    "migration",
    "audit",
    "leases",
    "cluster",
];

/// What a subscriber asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wish {
    /// How many seconds ahead a pending job is shown (WINDOW-01).
    pub pending_window_s: i64,
    /// Minor number of its protocol; 0 for a published client (EVT-06).
    pub client_protocol: u32,
    /// Kinds it wants; empty for all (EVT-20).
    pub include: Vec<String>,
    /// Newest entries of a history that it wants; none for 100, 0 for all held (EVT-08).
    pub history_limit: Option<u32>,
}

/// One subscriber.
#[derive(Clone, Debug)]
pub struct Subscriber {
    wish: Wish,
    /// Jobs it was shown and was not told the end of; with a start time for those that are pending.
    shown: BTreeMap<JobId, Shown>,
    /// Pending jobs beyond its window.
    beyond: BTreeMap<JobId, Arc<JobWithHistory>>,
    /// The same by the start that brings them in.
    by_start: BTreeSet<(Wall, JobId)>,
    clock: Now,
}

#[derive(Clone, Debug)]
enum Shown {
    /// Started, or without a start time: the window does not matter to it.
    Always,
    /// Completed or failed, and told so.
    Ended,
    /// Pending, with this start.
    Until(Wall, Arc<JobWithHistory>),
}

// === impl Subscriber ===

impl Subscriber {
    /// Checks the wish.
    pub fn new(wish: Wish) -> Result<Self, Refusal> {
        if !(0..=WINDOW_MAX_S).contains(&wish.pending_window_s) {
            return Err(invalid(
                "bad_window",
                format!(
                    "pending_window_s is {}: it must be 0 to {WINDOW_MAX_S}",
                    wish.pending_window_s
                ),
            )
            .with("path", "pending_window_s"));
        }
        if let Some(word) = wish
            .include
            .iter()
            .find(|word| !KINDS.contains(&word.as_str()))
        {
            return Err(invalid(
                "unknown_kind",
                format!("include names {word:?}: use {}", KINDS.join(", ")),
            )
            .with("path", "include"));
        }
        Ok(Self {
            wish,
            shown: BTreeMap::new(),
            beyond: BTreeMap::new(),
            by_start: BTreeSet::new(),
            clock: Now::default(),
        })
    }

    /// The whole state in the order of EVT-02, ending with InitialDataComplete; every event carries
    /// the seq of what stood. Changes after it go through [`Subscriber::on_change`].
    pub fn snapshot(
        &mut self,
        now: Now,
        standing: &Standing,
        health: Vec<ProviderHealth>,
    ) -> Vec<Stamped> {
        self.shown.clear();
        self.beyond.clear();
        self.by_start.clear();
        self.clock = now;
        let published = self.wish.client_protocol == 0;
        let mut events = standing.node_events();
        for job in standing.jobs(JobState::Active) {
            self.show(job);
            events.push(StreamEvent::JobActive(self.cut(job)));
        }
        for job in standing.jobs(JobState::Pre) {
            if self.in_window(job, now.wall) {
                self.show(job);
                events.push(StreamEvent::JobPending(self.cut(job)));
            } else {
                self.keep_beyond(job);
            }
        }
        if !published {
            events.extend(standing.other_events());
        }
        events.push(StreamEvent::InitialDataComplete(
            health
                .into_iter()
                .filter(|health| {
                    !published || matches!(health, ProviderHealth::Aws(_) | ProviderHealth::Oci(_))
                })
                .collect(),
        ));
        let stamp = |event| Stamped {
            seq: standing.seq(),
            at: now.wall,
            event,
        };
        events.retain(|event| self.wants(event));
        events.into_iter().map(stamp).collect()
    }

    /// What this subscriber is sent for a change: nothing or one event.
    pub fn on_change(&mut self, now: Now, change: &Change) -> Option<Stamped> {
        let event = self.sees(now, change)?;
        Some(Stamped {
            seq: change.seq,
            at: change.at,
            event: self.as_asked(event).into_owned(),
        })
    }

    /// The same with all that is held of a job's history: alike for all who are told of the change
    /// as the same kind, so that what [`Subscriber::as_asked`] makes of it can be made once.
    pub fn sees<'a>(&mut self, now: Now, change: &'a Change) -> Option<Cow<'a, StreamEvent>> {
        let event = match &change.what {
            What::Job(view) => Cow::Owned(self.job_event(now.wall, view)?),
            What::JobDeleted(job_id) => {
                self.drop_beyond(job_id);
                self.shown.remove(job_id)?;
                Cow::Owned(StreamEvent::JobDeleted(job_id.clone()))
            }
            What::Event(event) => Cow::Borrowed(event),
        };
        self.wants(&event).then_some(event)
    }

    /// An event with as much of a job's history as was asked for (EVT-08). It depends on nothing but
    /// the event, the limit, and whether the protocol is the published one.
    #[must_use]
    pub fn as_asked<'a>(&self, event: Cow<'a, StreamEvent>) -> Cow<'a, StreamEvent> {
        Cow::Owned(match &*event {
            StreamEvent::JobActive(view) => StreamEvent::JobActive(self.cut(view)),
            StreamEvent::JobPending(view) => StreamEvent::JobPending(self.cut(view)),
            StreamEvent::JobUpdated(view) => StreamEvent::JobUpdated(self.cut(view)),
            StreamEvent::JobOutOfWindow(view) => StreamEvent::JobOutOfWindow(self.cut(view)),
            _ => return event,
        })
    }

    /// When the passing of time alone next shows it a job.
    pub fn next_due(&self, now: Now) -> Option<Mono> {
        let (start, _) = self.by_start.first()?;
        let ahead = start.since(now.wall.plus(self.window_ms())).max(0);
        Some(now.mono + Millis(ahead.unsigned_abs()))
    }

    /// What the passing of time, or a step of the wall clock, shows it; `seq` is that of the latest
    /// commit (WINDOW-03). To be called when due, and at least once a second.
    pub fn on_time(&mut self, now: Now, seq: u64) -> Vec<Stamped> {
        let passed = i64::try_from((now.mono - self.clock.mono).0).unwrap_or(i64::MAX);
        let step = now.wall.since(self.clock.wall).saturating_sub(passed);
        self.clock = now;
        let mut events = Vec::new();
        let edge = now.wall.plus(self.window_ms());
        if step < -STEP_BACK_MS {
            let left: Vec<_> = self
                .shown
                .iter()
                .filter_map(|(id, shown)| match shown {
                    Shown::Until(start, view) if *start > edge => Some((id.clone(), view.clone())),
                    _ => None,
                })
                .collect();
            for (job_id, view) in left {
                self.shown.remove(&job_id);
                self.keep_beyond(&view);
                events.push(StreamEvent::JobOutOfWindow(self.cut(&view)));
            }
        }
        while let Some((start, job_id)) = self.by_start.first().cloned() {
            if start > edge {
                break;
            }
            let Some(view) = self.drop_beyond(&job_id) else {
                break;
            };
            self.show(&view);
            events.push(StreamEvent::JobPending(self.cut(&view)));
        }
        events
            .into_iter()
            .filter(|event| self.wants(event))
            .map(|event| Stamped {
                seq,
                at: now.wall,
                event,
            })
            .collect()
    }

    /// Exactly one event for a job that changed, or none (WINDOW-02, WINDOW-04, WINDOW-05).
    fn job_event(&mut self, now: Wall, view: &Arc<JobWithHistory>) -> Option<StreamEvent> {
        let job_id = &view.job.job_id;
        self.drop_beyond(job_id);
        let before = self.shown.remove(job_id);
        match view.state {
            JobState::Active => {
                self.show(view);
                Some(StreamEvent::JobUpdated(view.clone()))
            }
            // Told to those who were shown the job, and only to them.
            JobState::Post => before.map(|_| {
                self.shown.insert(job_id.clone(), Shown::Ended);
                StreamEvent::JobUpdated(view.clone())
            }),
            JobState::Pre => {
                // A small step of the clock takes nothing away; only a moved start does (WINDOW-06).
                let unmoved = matches!(
                    &before,
                    Some(Shown::Until(start, _)) if Some(*start) == view.job.start_date_time
                );
                let within = unmoved || self.in_window(view, now);
                if !within {
                    self.keep_beyond(view);
                    return before.map(|_| StreamEvent::JobOutOfWindow(view.clone()));
                }
                self.show(view);
                Some(match before {
                    Some(Shown::Always | Shown::Until(..)) => StreamEvent::JobUpdated(view.clone()),
                    Some(Shown::Ended) | None => StreamEvent::JobPending(view.clone()),
                })
            }
        }
    }

    fn window_ms(&self) -> i64 {
        self.wish.pending_window_s * 1000
    }

    fn in_window(&self, view: &JobWithHistory, now: Wall) -> bool {
        view.job
            .start_date_time
            .is_none_or(|start| start <= now.plus(self.window_ms()))
    }

    fn show(&mut self, view: &Arc<JobWithHistory>) {
        let shown = match (view.state, view.job.start_date_time) {
            (JobState::Pre, Some(start)) => Shown::Until(start, view.clone()),
            _ => Shown::Always,
        };
        self.shown.insert(view.job.job_id.clone(), shown);
    }

    fn keep_beyond(&mut self, view: &Arc<JobWithHistory>) {
        if let Some(start) = view.job.start_date_time {
            let job_id = view.job.job_id.clone();
            self.by_start.insert((start, job_id.clone()));
            self.beyond.insert(job_id, view.clone());
        }
    }

    fn drop_beyond(&mut self, job_id: &JobId) -> Option<Arc<JobWithHistory>> {
        let view = self.beyond.remove(job_id)?;
        if let Some(start) = view.job.start_date_time {
            self.by_start.remove(&(start, job_id.clone()));
        }
        Some(view)
    }

    /// The job with as much of its history as was asked for, and without what the subscriber's
    /// protocol does not have (EVT-08, HIST-01).
    fn cut(&self, view: &Arc<JobWithHistory>) -> Arc<JobWithHistory> {
        let limit = match self.wish.history_limit {
            None => HISTORY,
            Some(0) => usize::MAX,
            Some(limit) => limit as usize,
        };
        let published = self.wish.client_protocol == 0;
        let fits = view.history.len() <= limit
            && !(published && view.history.iter().any(|entry| is_added(&entry.kind)));
        if fits {
            return view.clone();
        }
        let mut entries: Vec<_> = view
            .history
            .iter()
            .rev()
            .filter(|entry| !(published && is_added(&entry.kind)))
            .take(limit)
            .cloned()
            .collect();
        entries.reverse();
        let left_out = view.history.len() - entries.len();
        Arc::new(JobWithHistory {
            job: view.job.clone(),
            state: view.state,
            current_hash: view.current_hash,
            terminal_state: view.terminal_state.clone(),
            pending_restart: view.pending_restart.clone(),
            history: entries,
            dropped_entries: view
                .dropped_entries
                .saturating_add(u32::try_from(left_out).unwrap_or(u32::MAX)),
        })
    }

    /// True for a kind that its protocol has and that it asked for.
    fn wants(&self, event: &StreamEvent) -> bool {
        let (minor, kind) = minor_and_kind(event);
        // Of every change there is an entry too, so they go only to those who ask for them (AUDIT-09).
        let asked = kind != "audit" || !self.wish.include.is_empty();
        minor <= self.wish.client_protocol
            && asked
            && (self.wish.include.is_empty()
                || kind.is_empty()
                || self.wish.include.iter().any(|word| word == kind))
    }
}

/// Kinds of history entries that the published client does not have.
const fn is_added(kind: &HistoryKind) -> bool {
    matches!(
        kind,
        HistoryKind::Failed { .. } | HistoryKind::Prepared(_) | HistoryKind::Rejected { .. }
    )
}

/// The minor at which a kind arrived (EVT-06, EVT-07), and its word in `include`; no word for what
/// everybody gets.
const fn minor_and_kind(event: &StreamEvent) -> (u32, &'static str) {
    match event {
        StreamEvent::JobActive(_)
        | StreamEvent::JobPending(_)
        | StreamEvent::JobUpdated(_)
        | StreamEvent::JobDeleted(_)
        | StreamEvent::JobOutOfWindow(_)
        | StreamEvent::JobInfo(_) => (0, "jobs"),
        StreamEvent::NodeRunning { .. }
        | StreamEvent::NodeStarting { .. }
        | StreamEvent::NodeStarted { .. }
        | StreamEvent::NodeStopping { .. }
        | StreamEvent::NodeStopped { .. }
        | StreamEvent::ProviderHealthChange(_) => (0, "nodes"),
        StreamEvent::InitialDataComplete(_) => (0, ""),
        StreamEvent::JobRejected { .. } | StreamEvent::JobPrepared { .. } => (1, "jobs"),
        StreamEvent::BundleActive(_)
        | StreamEvent::BundleUpdated(_)
        | StreamEvent::BundleDeleted(_) => (1, "bundles"),
        StreamEvent::NodeInventorySnapshot { .. } | StreamEvent::NodeInventoryUpdated { .. } => {
            (1, "inventory")
        }
        StreamEvent::NodeReachabilityChanged { .. }
        | StreamEvent::NodeTagsUpdated { .. }
        | StreamEvent::NodeInterruptionNotice { .. } => (1, "nodes"),
        StreamEvent::Heartbeat { .. }
        | StreamEvent::EventsLost { .. }
        | StreamEvent::StreamResumed { .. }
        | StreamEvent::Unknown { .. } => (1, ""),
        StreamEvent::AuditAppended(_) => (5, "audit"),
        StreamEvent::Migration { .. } => (3, "migration"),
        StreamEvent::LeaseChanged(_) | StreamEvent::LeasesPaused { .. } => (6, "leases"),
        StreamEvent::ImagesPrefetched { .. } => (9, "nodes"),
    }
}
