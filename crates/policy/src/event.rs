//! Everything that can reach the policy, as one closed enum: what the Manager's stream says, how a
//! call ended, what an embedder asks, that a deadline came, that the connection is over.
//!
//! Each event is handled to completion before the next (TIME-01). Reading state is no event: the
//! getters of [`crate::Policy`] answer at once.

use std::collections::BTreeSet;

use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Refusal, Reply};
use greenroom_types::node::InterruptionKind;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, JobName, MigrationId, Millis, NodeId, TemplateName, Wall};
use serde::{Deserialize, Serialize};

use crate::acts::Acts;
use crate::drain::{DrainOptions, DrainState};
use crate::migration::{MigrateOptions, MigrationRefusal};
use crate::settings::AutoSettingsValidationError;
use crate::spare::{HotSpareChanges, HotSpareSpecsDiff};

/// Number of a call on the Manager: given by the policy with the call, repeated by the driver with
/// its reply.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// Number of an API call: given by the driver with the call, repeated by the policy with its answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ApiId(pub u64);

/// One input of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// The channel to the Manager changed its state (CALLB-03).
    ConnectionState(ConnectionState),
    /// What was kept of the instance before; ahead of the snapshot (ACTS-03).
    Acts(Box<Acts>),
    /// The Manager's stream said this.
    Stream(StreamEvent),
    /// A call on the Manager ended (TIME-02).
    Reply {
        /// The call.
        call_id: CallId,
        /// How it ended.
        result: Result<Reply, CallFailure>,
    },
    /// Somebody calls the policy.
    Api {
        /// Number under which the answer is given.
        id: ApiId,
        /// What is asked.
        call: ApiCall,
    },
    /// The deadline of [`crate::Policy::next_deadline`] came. Handled at any other moment it does
    /// nothing.
    Wake,
    /// A callback failed or panicked (CALLB-01). The driver does not report a failing `onError`.
    CallbackFailed {
        /// Name of the callback.
        callback: String,
        /// What it failed with.
        error: String,
    },
    /// An event of the stream could not be read (CALLB-16).
    Unreadable {
        /// Why.
        error: String,
    },
    /// The stream ended or failed by itself (LIFE-07).
    Closed {
        /// Why; none when the Manager ended it in order.
        error: Option<String>,
    },
}

/// State of the channel to the Manager (CALLB-03).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConnectionState {
    /// Not in use.
    #[default]
    Idle,
    /// Being opened.
    Connecting,
    /// Open.
    Ready,
    /// Broken, tried again by the channel itself.
    TransientFailure,
    /// Closed for good.
    Shutdown,
}

/// Why a call on the Manager brought no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub enum CallFailure {
    /// The Manager refused it outright; nothing changed there.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The Manager was not reached; whether it acted is not known.
    #[error("the Manager was not reached: {0}")]
    Unavailable(String),
    /// No answer came in time; whether the Manager acted is not known.
    #[error("no answer in time")]
    TimedOut,
}

impl CallFailure {
    /// The Manager's refusal, if it is one.
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Unavailable(_) | Self::TimedOut => None,
        }
    }
}

/// What an embedder asks of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ApiCall {
    /// Passed through (BUNDLE-05).
    CreateBundle {
        /// The bundle.
        bundle: Box<Bundle>,
    },
    /// Passed through, reviving the bundle (BUNDLE-06).
    UpdateBundle {
        /// The bundle; its revision is the one expected, 0 for any.
        bundle: Box<Bundle>,
    },
    /// Passed through (BUNDLE-06).
    DeleteBundle {
        /// The bundle.
        bundle_id: BundleId,
    },
    /// Wakes a dormant job; passed through (BUNDLE-05).
    StartBundleJob {
        /// The bundle.
        bundle_id: BundleId,
        /// The copy.
        replica_index: u32,
        /// The job.
        job_name: JobName,
    },
    /// Makes a job dormant and stops it; passed through (BUNDLE-05).
    StopBundleJob {
        /// The bundle.
        bundle_id: BundleId,
        /// The copy.
        replica_index: u32,
        /// The job.
        job_name: JobName,
        /// Time between signal and kill.
        grace_ms: Option<Millis>,
    },
    /// Sets or clears a bundle's stop time at the Manager (STOP-01).
    SetBundleStopTime {
        /// The bundle.
        bundle_id: BundleId,
        /// The time; none clears it.
        stop_at: Option<Wall>,
    },
    /// Keeps new placements off a node (CORDON-01).
    CordonNode {
        /// The node.
        node_id: NodeId,
    },
    /// Takes the policy's own cordon away (CORDON-01).
    UncordonNode {
        /// The node.
        node_id: NodeId,
    },
    /// Keeps new placements off several nodes, all of them or none (CORDON-06).
    CordonNodes {
        /// The nodes.
        node_ids: Vec<NodeId>,
        /// Servers for which the Manager has a place, where the stream does not show them. The driver
        /// fills it in (CORDON-07).
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        registered: BTreeSet<NodeId>,
    },
    /// Takes the policy's own cordons away, all of them or none (CORDON-06).
    UncordonNodes {
        /// The nodes.
        node_ids: Vec<NodeId>,
        /// As for [`ApiCall::CordonNodes`].
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        registered: BTreeSet<NodeId>,
    },
    /// Ends a node (NODE-13).
    TerminateNode {
        /// The node.
        node_id: NodeId,
    },
    /// Cordons a node and ends it at once (NODE-13).
    EvictNode {
        /// The node.
        node_id: NodeId,
    },
    /// Empties a node and ends it (DRAIN-01).
    DrainNode {
        /// The node.
        node_id: NodeId,
        /// How, and how long.
        options: DrainOptions,
    },
    /// A provider takes the node, or advises to leave it (INTR-01).
    HandleNodeInterruption {
        /// The node.
        node_id: NodeId,
        /// Kind of notice.
        kind: InterruptionKind,
        /// When the node goes, if known.
        deadline: Option<Wall>,
        /// Strategies; time and force follow from the notice.
        options: DrainOptions,
    },
    /// Moves a running job (MIGR-01); answered when the target's first call was accepted.
    MigrateJob {
        /// The job.
        job_id: JobId,
        /// How and where to.
        options: MigrateOptions,
    },
    /// Takes a migration back (MIGR-30).
    AbortMigration {
        /// The migration.
        migration_id: MigrationId,
        /// Why.
        reason: String,
    },
    /// Changes what one spare is for (SPARE-16).
    UpdateHotSpareNode {
        /// The node.
        node_id: NodeId,
        /// What changes.
        changes: HotSpareChanges,
    },
    /// Replaces the list of hot spares; the same tree as the setting `hotSpares` (SPARE-20).
    UpdateHotSpareSpecs {
        /// The list.
        hot_spares: serde_json::Value,
    },
    /// Replaces the image list of one template (PREFETCH-06).
    SetTemplateImages {
        /// The template.
        template: TemplateName,
        /// Its images; none takes the template away.
        refs: Vec<String>,
    },
    /// Ends this instance (LIFE-02).
    Close,
}

/// What the policy answers to an [`ApiCall`].
pub type ApiResult = Result<ApiAnswer, ApiError>;

/// An accepted [`ApiCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiAnswer {
    /// Done, nothing to tell.
    Done,
    /// Done; these of the nodes are not there, and what was decided of them waits for them (CORDON-07).
    Waiting(Vec<NodeId>),
    /// The Manager's answer to a call that was passed through.
    Manager(Reply),
    /// A drain as it is now (DRAIN-01).
    Drain(Box<DrainState>),
    /// The target's first call was accepted (MIGR-01).
    Migration(MigrationId),
    /// What a new list of hot spares changes (SPARE-23).
    HotSpareSpecs(HotSpareSpecsDiff),
}

/// A refused [`ApiCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ApiError {
    /// This instance is closed; nothing was sent (LIFE-06).
    #[error("this instance is closed; run a new one")]
    Closed,
    /// The bundle is not in the mirror.
    #[error("bundle {bundle_id:?} is not known; see bundles()")]
    UnknownBundle {
        /// The bundle.
        bundle_id: BundleId,
    },
    /// The node is not in the mirror.
    #[error("node {node_id:?} is not known; see nodes()")]
    UnknownNode {
        /// The node.
        node_id: NodeId,
    },
    /// Nodes that neither the mirror nor the Manager knows; nothing was done (CORDON-06).
    #[error(
        "there is no node {}, so nothing was done; see nodes()",
        listed(node_ids)
    )]
    UnknownNodes {
        /// The nodes.
        node_ids: Vec<NodeId>,
    },
    /// Cordons would wait for too many servers; nothing was done (ACTS-05).
    #[error(
        "it is refused and changes nothing: cordons would wait for {count} servers that are not there, \
         and at most {most} are kept; uncordon those that do not come back"
    )]
    TooManyWaiting {
        /// How many there would be.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// The node is stopping or stopped (DRAIN-01).
    #[error("node {node_id:?} is stopping or stopped; there is nothing to drain or to end")]
    NodeNotRunning {
        /// The node.
        node_id: NodeId,
    },
    /// Jobs of the node are on the air and could only be cut off; nothing was done (DRAIN-19).
    #[error(
        "node {node_id:?} cannot be emptied for an upgrade, for what is on the air there cannot be \
         handed over: {}; wait until it is off the air, or drain with force",
        on_air(jobs, *more)
    )]
    OnAir {
        /// The node.
        node_id: NodeId,
        /// The first of them, in the order in which they would be moved.
        jobs: Vec<OnAirJob>,
        /// How many there are besides.
        more: usize,
    },
    /// The migration is refused; nothing was done (MIGR-02).
    #[error("job {job_id:?} cannot be moved: {reason}{}", reason.advice())]
    Migration {
        /// The job.
        job_id: JobId,
        /// Why.
        reason: MigrationRefusal,
    },
    /// The migration came to nothing before its target's first call was accepted (MIGR-06).
    #[error("migration {migration_id} came to nothing: {reason}")]
    MigrationAborted {
        /// The migration.
        migration_id: MigrationId,
        /// Why.
        reason: String,
    },
    /// The source was told to stop already (MIGR-30).
    #[error("migration {migration_id} cannot be taken back any more; its source was told to stop")]
    PastPointOfNoReturn {
        /// The migration.
        migration_id: MigrationId,
    },
    /// The node is no unconsumed spare (SPARE-16).
    #[error("node {node_id:?} is not a spare that is free; see spareSpec()")]
    NotASpare {
        /// The node.
        node_id: NodeId,
    },
    /// Exclusive for nobody (SPARE-16).
    #[error("node {node_id:?} would be exclusive for nobody; give reservedFor as well")]
    ExclusiveWithoutReservedFor {
        /// The node.
        node_id: NodeId,
    },
    /// The new settings are not valid; nothing changed (SPARE-20).
    #[error(transparent)]
    Settings(AutoSettingsValidationError),
    /// It is done, and would end with this control plane (ACTS-02).
    #[error(
        "it holds now, but was not stored, so it would end with this control plane: {why}; that is \
         tried again by itself, and may be said again"
    )]
    NotKept {
        /// Why.
        why: String,
    },
    /// All that is kept would be too large with it, so nothing was done (ACTS-06).
    #[error(
        "it is refused and changes nothing: cordons, drains, spares and templates that were set by hand \
         would take {bytes} bytes with it, and at most {most} are kept of them; make the lists shorter"
    )]
    TooMuchKept {
        /// What all of it would take.
        bytes: usize,
        /// What it may take with a call of this kind.
        most: usize,
    },
    /// The call on the Manager that it stands for failed.
    #[error(transparent)]
    Manager(#[from] CallFailure),
}

/// Names in one text; of more the number is told.
const LISTED_MAX: usize = 20;

/// The first of the nodes by name, and of the rest the number.
fn listed(node_ids: &[NodeId]) -> String {
    let names = node_ids.iter().take(LISTED_MAX).map(NodeId::as_str);
    let names = names.collect::<Vec<_>>().join(", ");
    match node_ids.len().saturating_sub(LISTED_MAX) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// A job that could leave its node only by going off the air.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnAirJob {
    /// The job.
    pub job_id: JobId,
    /// Why it cannot be handed over.
    pub reason: MigrationRefusal,
}

/// The jobs and their reasons, those with the same one together.
fn on_air(jobs: &[OnAirJob], more: usize) -> String {
    let mut by_reason: Vec<(MigrationRefusal, Vec<String>)> = Vec::new();
    for OnAirJob { job_id, reason } in jobs {
        let job_id = format!("{job_id:?}");
        match by_reason.iter_mut().find(|(known, _)| known == reason) {
            Some((_, named)) => named.push(job_id),
            None => by_reason.push((*reason, vec![job_id])),
        }
    }
    let mut parts: Vec<String> = by_reason
        .iter()
        .map(|(reason, named)| format!("{} ({reason})", named.join(", ")))
        .collect();
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join("; ")
}

impl ApiError {
    /// Stable name of the refusal, as in policy.md; the Manager's own token for its refusals.
    pub fn code(&self) -> &str {
        match self {
            Self::Closed => "closed",
            Self::UnknownBundle { .. } => "unknownBundle",
            Self::UnknownNode { .. } | Self::UnknownNodes { .. } => "unknownNode",
            Self::Migration { reason, .. } => reason.code(),
            Self::MigrationAborted { reason, .. } => reason,
            Self::PastPointOfNoReturn { .. } => "pastPointOfNoReturn",
            Self::NodeNotRunning { .. } => "nodeNotRunning",
            Self::OnAir { .. } => "onAir",
            Self::NotASpare { .. } => "notASpare",
            Self::ExclusiveWithoutReservedFor { .. } => "exclusiveWithoutReservedFor",
            Self::Settings(error) => error.code(),
            Self::NotKept { .. } => "notKept",
            Self::TooMuchKept { .. } | Self::TooManyWaiting { .. } => "tooMuchKept",
            Self::Manager(CallFailure::Refused(refusal)) => &refusal.reason,
            Self::Manager(CallFailure::Unavailable(_)) => "unavailable",
            Self::Manager(CallFailure::TimedOut) => "timedOut",
        }
    }
}
