//! A subscriber of the event stream with a mirror of what it was told.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_sdk::{Client, EventSettings, EventStream, InitialState, StreamItem};
use greenroom_types::bundle::BundleStatus;
use greenroom_types::job::{HistoryKind, JobWithHistory};
use greenroom_types::node::NodeState;
use greenroom_types::stream::{Stamped, StreamEvent};
use greenroom_types::{BundleId, JobId, NodeId};

use crate::within;

/// What a subscriber knows, by what it was told alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirror {
    /// Jobs that it was shown and not told the end of.
    pub jobs: BTreeMap<JobId, Arc<JobWithHistory>>,
    /// Nodes.
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// Bundles.
    pub bundles: BTreeMap<BundleId, Arc<BundleStatus>>,
}

/// A subscriber.
pub struct Watch {
    client: Client,
    events: EventStream,
    initial: InitialState,
    mirror: Mirror,
    seen: Vec<Stamped>,
    snapshots: usize,
}

// === impl Mirror ===

impl Mirror {
    /// What a snapshot tells.
    pub fn of(state: &InitialState) -> Self {
        let mut mirror = Self::default();
        for event in state.events() {
            mirror.take(&event);
        }
        mirror
    }

    /// Takes one event.
    pub fn take(&mut self, event: &StreamEvent) {
        let mut node = |node_id: &NodeId, state| {
            self.nodes.insert(node_id.clone(), state);
        };
        match event {
            StreamEvent::NodeRunning {
                metadata,
                reachable,
                ..
            } => node(
                &metadata.node_id,
                match reachable {
                    true => NodeState::Running,
                    false => NodeState::Unreachable,
                },
            ),
            StreamEvent::NodeStarting { metadata, .. } => {
                node(&metadata.node_id, NodeState::Starting);
            }
            StreamEvent::NodeStarted { metadata, .. } => {
                node(&metadata.node_id, NodeState::Running);
            }
            StreamEvent::NodeStopping { node_id, .. } => node(node_id, NodeState::Stopping),
            StreamEvent::NodeReachabilityChanged { node_id, reachable } => node(
                node_id,
                match reachable {
                    true => NodeState::Running,
                    false => NodeState::Unreachable,
                },
            ),
            StreamEvent::NodeStopped { node_id } => {
                self.nodes.remove(node_id);
            }
            StreamEvent::JobActive(job)
            | StreamEvent::JobPending(job)
            | StreamEvent::JobUpdated(job) => {
                self.jobs.insert(job.job.job_id.clone(), Arc::clone(job));
            }
            StreamEvent::JobOutOfWindow(job) => {
                self.jobs.remove(&job.job.job_id);
            }
            StreamEvent::JobDeleted(job_id) => {
                self.jobs.remove(job_id);
            }
            StreamEvent::BundleActive(bundle) | StreamEvent::BundleUpdated(bundle) => {
                self.bundles
                    .insert(bundle.bundle.bundle_id.clone(), Arc::clone(bundle));
            }
            StreamEvent::BundleDeleted(bundle_id) => {
                self.bundles.remove(bundle_id);
            }
            _ => {}
        }
    }
}

// === impl Watch ===

impl Watch {
    /// Subscribes with settings of the test's choice.
    pub async fn begin(client: Client, settings: EventSettings) -> Self {
        let (initial, events) = within("a snapshot", client.event_stream(settings))
            .await
            .expect("the Manager takes subscribers");
        Self {
            client,
            events,
            mirror: Mirror::of(&initial),
            initial,
            seen: Vec::new(),
            snapshots: 1,
        }
    }

    /// The client whose connection it uses.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The newest snapshot.
    pub const fn initial(&self) -> &InitialState {
        &self.initial
    }

    /// How many snapshots there were.
    pub const fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// What it knows.
    pub const fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Every event since the newest snapshot.
    pub fn seen(&self) -> &[Stamped] {
        &self.seen
    }

    /// The next event. A new snapshot is taken in passing.
    pub async fn next(&mut self) -> Stamped {
        loop {
            match within("an event", self.events.next()).await {
                Some(StreamItem::Event(stamped)) => {
                    self.mirror.take(&stamped.event);
                    self.seen.push(stamped.clone());
                    return stamped;
                }
                Some(StreamItem::Resnapshot(state)) => self.take_snapshot(*state),
                Some(StreamItem::Closed(error)) => panic!("the event stream ended: {error}"),
                None => panic!("the event stream ended"),
            }
        }
    }

    /// Reads on until there is a new snapshot, and nothing before it.
    pub async fn until_snapshot(&mut self) {
        loop {
            match within("a new snapshot", self.events.next()).await {
                Some(StreamItem::Event(stamped)) => {
                    self.mirror.take(&stamped.event);
                    self.seen.push(stamped);
                }
                Some(StreamItem::Resnapshot(state)) => return self.take_snapshot(*state),
                other => panic!("the event stream ended: {other:?}"),
            }
        }
    }

    /// Reads on until an event is what `look` looks for; `what` says it when it does not come.
    pub async fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&StreamEvent) -> Option<T>,
    ) -> T {
        within(what, async {
            loop {
                if let Some(found) = look(&self.next().await.event) {
                    return found;
                }
            }
        })
        .await
    }

    /// Reads on until the mirror is as wanted, which it may be already.
    pub async fn until_mirror(&mut self, what: &str, wanted: impl Fn(&Mirror) -> bool) {
        within(what, async {
            while !wanted(&self.mirror) {
                self.next().await;
            }
        })
        .await;
    }

    /// Reads on until a job is as wanted, which it may be already.
    pub async fn until_job(
        &mut self,
        job_id: &str,
        what: &str,
        wanted: impl Fn(&JobWithHistory) -> bool,
    ) -> Arc<JobWithHistory> {
        let job_id = JobId::new(job_id);
        self.until_mirror(&format!("job {job_id} {what}"), |mirror| {
            mirror.jobs.get(&job_id).is_some_and(|job| wanted(job))
        })
        .await;
        Arc::clone(&self.mirror.jobs[&job_id])
    }

    /// Reads on until the newest entry of a job's history is of that kind: `created`, `updated`,
    /// `provisioned`, `prepared`, `running`, `stopping`, `stopped`, `completed`, `failed` or
    /// `rejected`.
    pub async fn until_last(&mut self, job_id: &str, kind: &str) -> Arc<JobWithHistory> {
        self.until_job(job_id, kind, |job| {
            kinds(job).last().is_some_and(|last| *last == kind)
        })
        .await
    }

    /// Reads on until a node stands so, which it may already.
    pub async fn until_node(&mut self, node_id: &str, state: NodeState) {
        let node_id = NodeId::new(node_id);
        self.until_mirror(&format!("node {node_id} {state:?}"), |mirror| {
            mirror.nodes.get(&node_id) == Some(&state)
        })
        .await;
    }

    fn take_snapshot(&mut self, state: InitialState) {
        self.mirror = Mirror::of(&state);
        self.initial = state;
        self.seen.clear();
        self.snapshots += 1;
    }
}

/// The kinds of a job's history, in order.
pub fn kinds(job: &JobWithHistory) -> Vec<&'static str> {
    job.history
        .iter()
        .map(|entry| match entry.kind {
            HistoryKind::Created => "created",
            HistoryKind::Updated { .. } => "updated",
            HistoryKind::Provisioned(_) => "provisioned",
            HistoryKind::Prepared(_) => "prepared",
            HistoryKind::Running { .. } => "running",
            HistoryKind::Stopping { .. } => "stopping",
            HistoryKind::Stopped(_) => "stopped",
            HistoryKind::Completed => "completed",
            HistoryKind::Failed { .. } => "failed",
            HistoryKind::Rejected { .. } => "rejected",
        })
        .collect()
}
