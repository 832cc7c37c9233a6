//! Everything the policy does, as one ordered list: calls on the Manager, callbacks, answers. The
//! order is part of the contract (LAUNCH-06): a driver performs the list from front to back.
//!
//! Calls are sent without waiting for their reply, which is an event of its own (TIME-02).

use std::sync::Arc;

use greenroom_placement::{Domain, Trace};
use greenroom_types::bundle::BundleStatus;
use greenroom_types::call::{AuditEntry, Call};
use greenroom_types::id::{BundleId, JobId, JobName, MigrationId, NodeId, PoolName, TierName};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{JobInfo, JobWithHistory};
use greenroom_types::node::{RejectionCode, RunningNodeMetadata};
use greenroom_types::pool::LaunchMode;
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{Role, Tags, Wall};
use serde::{Deserialize, Serialize};

use crate::drain::DrainState;
use crate::event::{ApiId, ApiResult, CallId, ConnectionState};
use crate::interrupt::NodeInterruption;
use crate::migration::MigrationState;

/// One thing to be done by the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Effect {
    /// Send this to the Manager.
    Call {
        /// Number to repeat with the reply.
        call_id: CallId,
        /// The call.
        call: Call,
    },
    /// Call back the embedder.
    Callback(Callback),
    /// Answer an API call.
    ApiReply {
        /// The call answered.
        id: ApiId,
        /// The answer.
        result: ApiResult,
    },
    /// Write a line to the log (CALLB-16).
    Log {
        /// What to write.
        text: String,
    },
    /// Close the channel to the Manager, then settle the handle of `run` (LIFE-02, LIFE-07). Always
    /// the last effect of an instance.
    CloseChannel {
        /// What the handle settles with; none: in order.
        error: Option<String>,
    },
}

/// All effects of one or more inputs, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Effects {
    list: Vec<Effect>,
}

/// What the embedder is told. The name of each variant is the name of the callback (CALLB).
#[expect(
    clippy::enum_variant_names,
    reason = "the variants are the names of the callbacks, which begin with `on`"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Callback {
    /// CALLB-03.
    OnConnectionStateChange {
        /// The new state.
        state: ConnectionState,
    },
    /// Anything wrong that has no better place, and failed placements (CALLB-04).
    OnError(ErrorInfo),
    /// A job changed, or was hydrated (CALLB-05).
    OnJobUpdated {
        /// The job.
        job_id: JobId,
        /// All of it.
        job: Arc<JobWithHistory>,
    },
    /// A job is gone (CALLB-05).
    OnJobDeleted {
        /// The job.
        job_id: JobId,
    },
    /// News of an instance (CALLB-06).
    OnJobInfo(JobInfo),
    /// An audit entry was appended (CALLB-06).
    OnAuditAppended(AuditEntry),
    /// A worker refused a start (CALLB-07).
    OnJobRejected {
        /// The job.
        job_id: JobId,
        /// Role of the refused instance.
        role: Role,
        /// The node that refused.
        node_id: NodeId,
        /// Kind of refusal.
        code: RejectionCode,
        /// The worker's words.
        reason: String,
        /// The picture sent along.
        inventory: Option<Arc<NodeInventory>>,
        /// When.
        at: Wall,
    },
    /// A job got its verdict and is not placed again (CEIL-05, CEIL-09, CEIL-10).
    OnJobDropped {
        /// The job.
        job_id: JobId,
    },
    /// A node was asked for or boots (NODE-05).
    OnNodeStarting {
        /// The node.
        node_id: NodeId,
    },
    /// A node runs (NODE-06).
    OnNodeStarted {
        /// The node.
        node_id: NodeId,
        /// All that the mirror holds of it.
        node: NodeView,
    },
    /// A node ends or was given up (NODE-08).
    OnNodeStopping {
        /// The node.
        node_id: NodeId,
    },
    /// A node is gone (NODE-09).
    OnNodeStopped {
        /// The node.
        node_id: NodeId,
    },
    /// This instance ended a node (NODE-14).
    OnNodeTerminated {
        /// The node.
        node_id: NodeId,
    },
    /// A node refused too many starts (HEALTH-03).
    OnNodeUnhealthy {
        /// The node.
        node_id: NodeId,
    },
    /// An unhealthy node may be used again (HEALTH-05).
    OnNodeHealthy {
        /// The node.
        node_id: NodeId,
    },
    /// A bundle changed, or was hydrated (CALLB-09).
    OnBundleUpdated {
        /// The bundle.
        bundle_id: BundleId,
        /// All of it.
        bundle: Arc<BundleStatus>,
    },
    /// A bundle is gone (CALLB-09).
    OnBundleDeleted {
        /// The bundle.
        bundle_id: BundleId,
    },
    /// A bundle is broken: nothing of it is placed any more (CEIL-05).
    OnBundleBroken {
        /// The bundle.
        bundle_id: BundleId,
        /// Why.
        reason: String,
    },
    /// The engine ran (CALLB-10).
    OnPlacementDecision(Box<PlacementInfo>),
    /// The engine found no place (CALLB-10).
    OnPlacementFailed {
        /// The job.
        job_id: JobId,
        /// Its bundle.
        bundle_id: BundleId,
        /// Its copy.
        replica_index: u32,
        /// Its name in the bundle.
        job_name: JobName,
        /// Why, `noCapacityInAnyPool`.
        reason: String,
        /// Names of the pools walked.
        tried_pools: Vec<PoolName>,
        /// When.
        at: Wall,
    },
    /// A drain, or one of its jobs, came further (DRAIN-11).
    OnDrainProgress(Box<DrainState>),
    /// A provider's notice is being followed (INTR-06).
    OnNodeInterrupted(Box<NodeInterruption>),
    /// A migration entered a phase (MIGR-16).
    OnMigrationPhase(Box<MigrationState>),
    /// A job lives on its target (MIGR-15).
    OnMigrationCompleted {
        /// The migration.
        migration_id: MigrationId,
    },
    /// A migration came to nothing (MIGR-16).
    OnMigrationAborted {
        /// The migration.
        migration_id: MigrationId,
        /// Why.
        reason: String,
    },
    /// A pool has fewer spares than wanted (SPARE-07).
    OnSpareUnderflow {
        /// The pool.
        pool: PoolName,
        /// Live and pending ones.
        current: usize,
        /// Wanted.
        target: usize,
    },
    /// A batch of images was pulled on a node, by this policy or by anybody (PREFETCH-04).
    OnImagesPrefetched {
        /// The node.
        node_id: NodeId,
        /// One for each reference.
        results: Vec<PrefetchResult>,
    },
    /// The two copies are closer than wished (RESIL-05).
    OnResilienceDegraded {
        /// The job.
        job_id: JobId,
        /// Its bundle.
        bundle_id: BundleId,
        /// Its copy.
        replica_index: u32,
        /// Its name in the bundle.
        job_name: JobName,
        /// Flags violated, e.g. `sameNode`; possibly none.
        violated: Vec<Domain>,
        /// Both copies sit on interruptible nodes.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        interruptible_primary: bool,
        /// When.
        at: Wall,
    },
}

/// What went wrong, for [`Callback::OnError`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorInfo {
    /// Stable name of the kind of error.
    pub code: String,
    /// In words.
    pub message: String,
    /// The job concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The node concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// The bundle concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_id: Option<BundleId>,
    /// The tier in which nothing could be bought, as pool/tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
}

/// Where a node of the mirror stands (NODE-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MirrorState {
    /// Asked for, or booting.
    Starting,
    /// Its worker said hello.
    Running,
    /// Given up, ending or being ended.
    Stopping,
    /// Gone; kept for display until the sweep (NODE-16).
    Stopped,
}

/// A node as the mirror holds it: a snapshot (CALLB-13).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// The node.
    pub node_id: NodeId,
    /// Where it stands.
    pub state: MirrorState,
    /// Asked for by this policy and not yet started with an inventory (PROV-04).
    pub prospective: bool,
    /// Its tags.
    pub tags: Tags,
    /// The pool in its tag.
    pub pool: Option<PoolName>,
    /// The tier it belongs to (TIER-05).
    pub tier: Option<TierName>,
    /// Time of the last event handled for it (NODE-01).
    pub last_activity: Wall,
    /// Addresses and provider ids, once it runs.
    pub running: Option<Arc<RunningNodeMetadata>>,
    /// Jobs bound to it, in order of binding.
    pub jobs: Vec<JobId>,
}

/// What a decision was made for (PLACE-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlacementContext {
    /// First placement, or any that follows no failure.
    Launch,
    /// After the loss or failure of a runtime.
    Recovery,
    /// Target of a migration.
    Migration,
    /// Made up from history at hydration (BIND-05).
    Hydrated,
}

/// What a run of the engine decided (PLACE-30).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlacementKind {
    /// On a node that is there, or already asked for.
    Place,
    /// On a node to be bought.
    Provision,
    /// Nowhere.
    Failure,
}

/// One decision about one job (CALLB-10), also its placement of record (BIND-05).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementInfo {
    /// The job.
    pub job_id: JobId,
    /// Its bundle.
    pub bundle_id: BundleId,
    /// Its copy.
    pub replica_index: u32,
    /// Its name in the bundle.
    pub job_name: JobName,
    /// What it was made for.
    pub context: PlacementContext,
    /// What was decided.
    pub kind: PlacementKind,
    /// The node; also the id given to one to be bought.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_id: Option<NodeId>,
    /// Pool; empty when made up from history.
    pub pool: PoolName,
    /// Tier; empty when made up from history or nowhere.
    pub tier: TierName,
    /// Shape to be bought; empty otherwise.
    pub instance_type: String,
    /// How it is paid for.
    pub launch_mode: LaunchMode,
    /// Device for a GPU share.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpu_index: Option<u32>,
    /// Reason code of a failure; empty otherwise.
    pub reason: String,
    /// Pools walked in vain.
    pub tried_pools: Vec<PoolName>,
    /// In violation of the resilience policy, or on interruptible nodes only (RESIL-05).
    pub degraded: bool,
    /// When.
    pub at: Wall,
    /// Everything that was looked at; none when made up from history, or nobody looks at traces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace: Option<Arc<Trace>>,
}

// === impl Effects ===

impl Effects {
    /// An empty list.
    pub const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// Adds one at the end.
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// All, in order.
    pub fn as_slice(&self) -> &[Effect] {
        &self.list
    }

    /// Takes all, in order, and leaves the list empty for the next input.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Effect> {
        self.list.drain(..)
    }

    /// True when there is nothing to do.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn callback(&mut self, callback: Callback) {
        self.list.push(Effect::Callback(callback));
    }

    pub(crate) fn error(&mut self, error: ErrorInfo) {
        self.callback(Callback::OnError(error));
    }
}

// === impl ErrorInfo ===

impl ErrorInfo {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            ..Self::default()
        }
    }

    pub(crate) fn job(mut self, job_id: &JobId) -> Self {
        self.job_id = Some(job_id.clone());
        self
    }

    pub(crate) fn node(mut self, node_id: &NodeId) -> Self {
        self.node_id = Some(node_id.clone());
        self
    }

    pub(crate) fn tier(mut self, pool: &PoolName, tier: &TierName) -> Self {
        self.tier = Some(format!("{pool}/{tier}"));
        self
    }

    pub(crate) fn bundle(mut self, bundle_id: &BundleId) -> Self {
        self.bundle_id = Some(bundle_id.clone());
        self
    }
}
