//! The whole of what a stream's snapshot says, sorted by what it is about (SDK-06).
//!
//! It is built from the snapshot's events and gives them back in the order of EVT-02, so that a
//! consumer with a mirror of its own can feed it the same way as with later events.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_types::NodeId;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobWithHistory;
use greenroom_types::node::{
    NodeMetadata, NodeStoppingReason, RunningJob, RunningNodeMetadata, StartPhase,
};
use greenroom_types::stream::{JobLeaseInfo, ProviderHealth, Stamped, StreamEvent};

/// A running or unreachable node of a snapshot.
///
/// ```no_run
/// # fn example(state: &greenroom_sdk::InitialState) {
/// for node in &state.nodes_running {
///     println!("{}: {} instances", node.metadata.node_id, node.instances.len());
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunningNode {
    /// Known from creation on.
    pub metadata: Arc<NodeMetadata>,
    /// Known since its machine runs.
    pub running: Arc<RunningNodeMetadata>,
    /// Instances on it.
    pub instances: Vec<RunningJob>,
    /// False within the grace of a dropped worker stream.
    pub reachable: bool,
}

/// A starting node of a snapshot.
///
/// ```no_run
/// # fn example(state: &greenroom_sdk::InitialState) {
/// for node in &state.nodes_starting {
///     println!("{}: {:?}", node.metadata.node_id, node.phase);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct StartingNode {
    /// Known from creation on.
    pub metadata: Arc<NodeMetadata>,
    /// How far it has come, where the Manager says.
    pub phase: Option<StartPhase>,
}

/// Why a node of a snapshot is stopping; the node itself is among the running ones.
///
/// ```no_run
/// # fn example(state: &greenroom_sdk::InitialState) {
/// for (node_id, stopping) in &state.nodes_stopping {
///     println!("{node_id}: {:?} {}", stopping.reason, stopping.detail);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppingNode {
    /// Why.
    pub reason: NodeStoppingReason,
    /// Detail in words.
    pub detail: String,
    /// The provider's code, empty without one.
    pub provider_code: String,
}

/// A job of a snapshot.
///
/// ```no_run
/// # fn example(state: &greenroom_sdk::InitialState) {
/// let pending = state.active_jobs.iter().filter(|job| job.pending).count();
/// println!("{pending} of {} jobs wait", state.active_jobs.len());
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotJob {
    /// Definition, state and history.
    pub job: Arc<JobWithHistory>,
    /// Not started yet, and within the window.
    pub pending: bool,
}

/// One consistent state at one sequence number (EVT-01).
///
/// ```no_run
/// # fn example(state: greenroom_sdk::InitialState) {
/// println!("{} nodes at {}", state.nodes_running.len(), state.seq);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitialState {
    /// Id of the sequence of events; empty from a Manager that does not number them.
    pub epoch: String,
    /// Number of the last change that is in the state.
    pub seq: u64,
    /// Running, unreachable and stopping nodes.
    pub nodes_running: Vec<RunningNode>,
    /// Starting nodes.
    pub nodes_starting: Vec<StartingNode>,
    /// Which of the running nodes are stopping.
    pub nodes_stopping: BTreeMap<NodeId, StoppingNode>,
    /// Jobs that were started, and those that wait within the window.
    pub active_jobs: Vec<SnapshotJob>,
    /// Bundles in any state.
    pub bundles: Vec<Arc<BundleStatus>>,
    /// Inventories by node.
    pub inventories: BTreeMap<NodeId, Arc<NodeInventory>>,
    /// Leases held.
    pub leases: Vec<JobLeaseInfo>,
    /// Health of every provider.
    pub health: Vec<ProviderHealth>,
    /// Whatever else the snapshot held, such as `leases_paused`.
    pub other: Vec<StreamEvent>,
}

// === impl InitialState ===

impl InitialState {
    /// The snapshot as events in the order of EVT-02, ending with `initial_data_complete`.
    ///
    /// ```no_run
    /// # fn example(state: &greenroom_sdk::InitialState) {
    /// for event in state.events() {
    ///     println!("{event:?}");
    /// }
    /// # }
    /// ```
    pub fn events(&self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for node in &self.nodes_running {
            events.push(StreamEvent::NodeRunning {
                metadata: Arc::clone(&node.metadata),
                running: Arc::clone(&node.running),
                instances: node.instances.clone(),
                reachable: node.reachable,
            });
            let node_id = &node.metadata.node_id;
            if let Some(stopping) = self.nodes_stopping.get(node_id) {
                events.push(StreamEvent::NodeStopping {
                    node_id: node_id.clone(),
                    reason: stopping.reason,
                    detail: stopping.detail.clone(),
                    provider_code: stopping.provider_code.clone(),
                });
            }
        }
        events.extend(
            self.nodes_starting
                .iter()
                .map(|node| StreamEvent::NodeStarting {
                    metadata: Arc::clone(&node.metadata),
                    phase: node.phase,
                }),
        );
        for pending in [false, true] {
            let jobs = self.active_jobs.iter().filter(|job| job.pending == pending);
            events.extend(jobs.map(|job| {
                let job = Arc::clone(&job.job);
                if pending {
                    StreamEvent::JobPending(job)
                } else {
                    StreamEvent::JobActive(job)
                }
            }));
        }
        events.extend(self.bundles.iter().cloned().map(StreamEvent::BundleActive));
        events.extend(self.inventories.iter().map(|(node_id, inventory)| {
            StreamEvent::NodeInventorySnapshot {
                node_id: node_id.clone(),
                inventory: Arc::clone(inventory),
            }
        }));
        events.extend(self.leases.iter().cloned().map(StreamEvent::LeaseChanged));
        events.extend(self.other.iter().cloned());
        events.push(StreamEvent::InitialDataComplete(self.health.clone()));
        events
    }

    /// Takes one event of a snapshot; true when it was the last.
    pub(crate) fn take(&mut self, stamped: Stamped) -> bool {
        self.seq = self.seq.max(stamped.seq);
        match stamped.event {
            StreamEvent::NodeRunning {
                metadata,
                running,
                instances,
                reachable,
            } => self.nodes_running.push(RunningNode {
                metadata,
                running,
                instances,
                reachable,
            }),
            StreamEvent::NodeStarting { metadata, phase } => {
                self.nodes_starting.push(StartingNode { metadata, phase });
            }
            StreamEvent::NodeStopping {
                node_id,
                reason,
                detail,
                provider_code,
            } => {
                let stopping = StoppingNode {
                    reason,
                    detail,
                    provider_code,
                };
                self.nodes_stopping.insert(node_id, stopping);
            }
            StreamEvent::JobActive(job) => self.active_jobs.push(SnapshotJob {
                job,
                pending: false,
            }),
            StreamEvent::JobPending(job) => {
                self.active_jobs.push(SnapshotJob { job, pending: true })
            }
            StreamEvent::BundleActive(bundle) => self.bundles.push(bundle),
            StreamEvent::NodeInventorySnapshot { node_id, inventory } => {
                self.inventories.insert(node_id, inventory);
            }
            StreamEvent::LeaseChanged(lease) => self.leases.push(lease),
            StreamEvent::InitialDataComplete(health) => {
                self.health = health;
                return true;
            }
            other => self.other.push(other),
        }
        false
    }
}
