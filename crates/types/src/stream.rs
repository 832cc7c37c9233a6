//! The events of the Manager's stream, as every consumer handles them (EVT).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bundle::BundleStatus;
use crate::id::{BundleId, JobId, MigrationId, NodeId, StartId};
use crate::inventory::NodeInventory;
use crate::job::{JobInfo, JobWithHistory};
use crate::node::{
    InstanceKey, InterruptionKind, NodeMetadata, NodeStoppingReason, RejectionCode, RunningJob,
    RunningNodeMetadata, StartPhase,
};
use crate::payload::Payload;
use crate::time::Wall;

/// Health of one region, domain or host of a provider (EVT-21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Health {
    /// Calls succeed.
    #[default]
    Healthy,
    /// Calls fail often.
    Unstable,
    /// Calls fail.
    Failed,
}

/// Health of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProviderHealth {
    /// Per region.
    Aws(Vec<(String, Health)>),
    /// Per availability domain.
    Oci(Vec<(String, Health)>),
    /// Owned servers.
    Local(Health),
    /// Per host.
    CloudHypervisor(Vec<(String, Health)>),
}

/// Outcome for one image of a prefetch batch (PREF-01).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrefetchResult {
    /// The reference.
    pub image_ref: String,
    /// It is held now.
    pub ok: bool,
    /// Error token, empty when ok.
    pub error: String,
    /// The error in words.
    pub text: String,
}

/// Signal of a migration (MGR-01 to MGR-04, MGR-09).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MigrationSignal {
    /// The source's answer to get-state.
    State(Payload),
    /// The source refuses to hand over.
    Refused(String),
    /// The target can take over.
    TargetReady(Payload),
    /// The source ended its output.
    SourceStoppedOutput(Payload),
    /// The target took over.
    TargetApplied(Payload),
    /// A side gave up.
    Aborted {
        /// `source` or `target`.
        side: String,
        /// Why.
        reason: String,
    },
}

/// Who holds a lease-protected key (LEASE-14).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobLeaseInfo {
    /// The instance.
    pub key: InstanceKey,
    /// Its start.
    pub start_id: StartId,
    /// Its node.
    pub node_id: NodeId,
    /// Fencing number.
    pub fence: u64,
    /// Time to live in milliseconds.
    pub ttl_ms: u64,
    /// `held`, `lost_waiting`, `paused_kept` or `released`.
    pub state: String,
    /// How long it still holds, or keeps its key from others once its holder is lost. GetLeaseStatus
    /// alone tells it: a refresh is no event, so an event could only tell a number that is soon wrong.
    pub remaining_ms: u64,
    /// When it was last refreshed; told by GetLeaseStatus alone.
    pub refreshed_at: Option<Wall>,
}

/// A bundle's lease (LEASE-15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleLeaseInfo {
    /// The bundle.
    pub bundle_id: BundleId,
    /// For how long one renewal holds, in milliseconds.
    pub ttl_ms: u64,
    /// When the bundle is deleted unless it is renewed; in a pause, no earlier than this.
    pub expires_at: Wall,
}

/// Why and since when leases stand still (LEASE-10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeasePause {
    /// Why.
    pub reason: String,
    /// Who asked for it.
    pub by: String,
    /// Since when.
    pub since: Wall,
}

/// All leases as GetLeaseStatus tells them (LEASE-14).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseStatus {
    /// The pause, if leases stand still.
    pub paused: Option<LeasePause>,
    /// Leases of jobs, by key.
    pub leases: Vec<JobLeaseInfo>,
    /// Leases of bundles, by bundle.
    pub bundle_leases: Vec<BundleLeaseInfo>,
}

/// One event of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamEvent {
    /// Snapshot: a running or unreachable node.
    NodeRunning {
        /// The node.
        metadata: Arc<NodeMetadata>,
        /// Its running data.
        running: Arc<RunningNodeMetadata>,
        /// Instances on it.
        instances: Vec<RunningJob>,
        /// False within the grace of a dropped stream.
        reachable: bool,
    },
    /// Snapshot: a job that was started.
    JobActive(Arc<JobWithHistory>),
    /// A job that is not started and lies in the window.
    JobPending(Arc<JobWithHistory>),
    /// A job changed.
    JobUpdated(Arc<JobWithHistory>),
    /// A job is gone.
    JobDeleted(JobId),
    /// A job left the window.
    JobOutOfWindow(Arc<JobWithHistory>),
    /// A node was asked for, or boots.
    NodeStarting {
        /// The node.
        metadata: Arc<NodeMetadata>,
        /// How far it has come; none from an older Manager.
        phase: Option<StartPhase>,
    },
    /// A node's worker said hello.
    NodeStarted {
        /// The node.
        metadata: Arc<NodeMetadata>,
        /// Its running data.
        running: Arc<RunningNodeMetadata>,
    },
    /// A node is ending or was given up.
    NodeStopping {
        /// The node.
        node_id: NodeId,
        /// Why.
        reason: NodeStoppingReason,
        /// Detail in words.
        detail: String,
        /// The provider's code, empty without one.
        provider_code: String,
    },
    /// A node is gone.
    NodeStopped {
        /// The node.
        node_id: NodeId,
    },
    /// A provider's health changed.
    ProviderHealthChange(ProviderHealth),
    /// News of an instance, passed on.
    JobInfo(JobInfo),
    /// The snapshot is complete.
    InitialDataComplete(Vec<ProviderHealth>),
    /// Snapshot: a bundle in any state.
    BundleActive(Arc<BundleStatus>),
    /// A bundle changed.
    BundleUpdated(Arc<BundleStatus>),
    /// A bundle is gone.
    BundleDeleted(BundleId),
    /// Snapshot: a node's picture of itself.
    NodeInventorySnapshot {
        /// The node.
        node_id: NodeId,
        /// The picture.
        inventory: Arc<NodeInventory>,
    },
    /// A node's picture of itself changed.
    NodeInventoryUpdated {
        /// The node.
        node_id: NodeId,
        /// The picture.
        inventory: Arc<NodeInventory>,
    },
    /// A node's stream broke or came back.
    NodeReachabilityChanged {
        /// The node.
        node_id: NodeId,
        /// True when it is heard.
        reachable: bool,
    },
    /// A node's tags changed.
    NodeTagsUpdated {
        /// The node with its tags.
        metadata: Arc<NodeMetadata>,
        /// Revision of the tags.
        revision: u64,
    },
    /// A provider announced that it takes a node.
    NodeInterruptionNotice {
        /// The node.
        node_id: NodeId,
        /// Kind of notice.
        kind: InterruptionKind,
        /// When the node goes, if known.
        deadline: Option<Wall>,
        /// When the worker saw the notice.
        noticed_at: Wall,
    },
    /// A prefetch batch settled.
    ImagesPrefetched {
        /// The node.
        node_id: NodeId,
        /// The batch.
        batch_id: String,
        /// One result per reference.
        results: Vec<PrefetchResult>,
    },
    /// A worker refused a start.
    JobRejected {
        /// The node.
        node_id: NodeId,
        /// The instance.
        key: InstanceKey,
        /// Its start.
        start_id: StartId,
        /// Kind of refusal.
        code: RejectionCode,
        /// The worker's words.
        reason: String,
        /// The picture sent along.
        inventory: Option<Arc<NodeInventory>>,
    },
    /// A deferred instance is ready to run.
    JobPrepared {
        /// The instance.
        key: InstanceKey,
        /// Its node.
        node_id: NodeId,
        /// Its start.
        start_id: StartId,
    },
    /// A migration's signal.
    Migration {
        /// The instance it comes from.
        key: InstanceKey,
        /// The migration.
        migration_id: MigrationId,
        /// What it says.
        signal: MigrationSignal,
    },
    /// A lease was granted, lost or released.
    LeaseChanged(JobLeaseInfo),
    /// Leases were paused or resumed.
    LeasesPaused {
        /// True when paused.
        paused: bool,
        /// Why.
        reason: String,
        /// Who.
        by: String,
        /// Since when.
        since: Option<Wall>,
    },
    /// An audit entry was appended.
    AuditAppended(crate::call::AuditEntry),
    /// Nothing else was to send.
    Heartbeat {
        /// The Manager's clock.
        server_time: Wall,
    },
    /// Events of a kind that may be dropped were dropped.
    EventsLost {
        /// Which kind.
        kind: String,
        /// How many.
        count: u64,
    },
    /// Answer to a resume (EVT-14, EVT-15).
    StreamResumed {
        /// True: the rest follows without a snapshot.
        complete: bool,
        /// Why a snapshot follows instead.
        reason: String,
        /// The seq from which the rest follows.
        from_seq: u64,
    },
    /// A kind that this version does not know.
    Unknown {
        /// Its field number.
        number: u32,
    },
}

/// An event with its place in the stream (EVT-04).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stamped {
    /// Sequence number within the epoch.
    pub seq: u64,
    /// When it was committed.
    pub at: Wall,
    /// The event.
    pub event: StreamEvent,
}
