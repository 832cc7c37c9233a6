//! What the outside world has to do after a commit.
//!
//! Orders are not stored: they follow from the state. One that is lost with the process or with a
//! stream is given again, at the next hello (MNODE-13) or by the [`crate::Keeper`].

use greenroom_types::bundle::Requirements;
use greenroom_types::call::{CreateAwsNode, CreateOciNode, InstanceRef};
use greenroom_types::job::{Job, LeasePolicy, StopReason};
use greenroom_types::{MigrationId, Millis, NodeId, Payload, StartId, Tags, Wall};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something to be done for one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// A message for the worker, to go out in this order.
    Worker {
        /// The worker's node.
        node_id: NodeId,
        /// The message.
        message: WorkerOrder,
    },
    /// A task for the provider of the node's machine.
    Provider {
        /// The node.
        node_id: NodeId,
        /// The task.
        task: ProviderTask,
    },
    /// Dial the worker, and again until it answers or its deadline ends the attempts.
    Dial {
        /// The worker's node.
        node_id: NodeId,
        /// Where it listens, as `host:port`.
        address: String,
    },
    /// Close the stream after what was sent before; with `redial`, dial again.
    Close {
        /// The worker's node.
        node_id: NodeId,
        /// The node is still wanted.
        redial: bool,
    },
}

/// A message for a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerOrder {
    /// Create an instance, and run it unless its start is deferred.
    Provision(Box<WorkerJob>),
    /// Run a prepared instance.
    StartPrepared(InstanceRef),
    /// Stop an instance.
    Stop {
        /// Which.
        instance: InstanceRef,
        /// Time between the polite signal and the kill; 0 kills at once.
        grace_ms: Millis,
        /// Why.
        reason: StopReason,
    },
    /// The definition changed (JOB-07).
    UpdateJob(Box<WorkerJob>),
    /// Pull images.
    PrefetchImages {
        /// The batch to name in the answer.
        batch_id: String,
        /// References.
        image_refs: Vec<String>,
    },
    /// A step of a migration, for one side of it.
    Migration {
        /// The instance it is for.
        instance: InstanceRef,
        /// The migration; empty only in an abort of whatever is in progress.
        migration_id: MigrationId,
        /// The step.
        step: MigrationStep,
    },
    /// Reports up to this number are stored (WORK-60).
    ReportAck {
        /// The number.
        report_id: u64,
    },
    /// Stop everything and end.
    Shutdown {
        /// Time for the containers.
        grace_ms: Millis,
        /// Keep the credential and do not call in again by itself (LOCAL-16).
        park: bool,
    },
    /// The node's tags.
    Tags(Tags),
    /// Leases stand still, or run again (LEASE-10, LEASE-12).
    LeasesPaused {
        /// True when they stand still.
        paused: bool,
        /// Why.
        reason: String,
    },
    /// What is the node's of the discovery fleet (DISC-03).
    Discovery(Arc<DiscoveryOrder>),
    /// The access roles (REPL-01). The worker's line chooses the part that it lacks.
    AccessReplica(Arc<ReplicaOrder>),
}

/// What a node needs to be admitted to the discovery fleet. Secrets are sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryOrder {
    /// The servers.
    pub addresses: Vec<String>,
    /// Sealed.
    pub leaf_token: String,
    /// Sealed. Never sent: whoever sends the order makes the node's own token with it.
    pub tier_secret: String,
    /// Time that the token is issued at.
    pub issued_at: Wall,
    /// Named in the acknowledgement.
    pub version: u64,
}

/// A version of the access roles with everything that any worker could lack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaOrder {
    /// The version.
    pub version: u64,
    /// All roles, zipped.
    pub snapshot: Arc<Payload>,
    /// What leads to the version from `base_version`; empty for none.
    pub delta: String,
    /// Where the delta begins.
    pub base_version: u64,
    /// The newest attestation.
    pub attestation: String,
    /// Key sets in the order of their succession, the last in force.
    pub keys: Vec<Payload>,
    /// The version is new; else only the attestation is.
    pub is_change: bool,
}

/// A step of a migration as the Manager passes it on (MGR-01 to MGR-03, MGR-06).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MigrationStep {
    /// Tell your state.
    GetState,
    /// The other side can carry the output from this point.
    CutoverReady(Payload),
    /// The other side ended at this point.
    CutoverApply(Payload),
    /// Forget it; the source resumes its output.
    Abort(String),
}

/// Everything a worker must know to run an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerJob {
    /// The definition.
    pub job: Arc<Job>,
    /// Key role.
    pub instance: InstanceRef,
    /// Slot role told to the job.
    pub runtime_role: String,
    /// Create without running.
    pub defer_start: bool,
    /// Device for a GPU share.
    pub gpu_index: Option<u32>,
    /// The migration it is the target of.
    pub migration_id: Option<MigrationId>,
    /// What stands for the state of a handover's source in the record; whoever sends the order puts
    /// the state itself in its place (MIGR-08).
    pub migration_state: Option<Payload>,
    /// Image of the media runtime, empty for none (JOB-30).
    pub media_image: String,
    /// Its lease, as it was granted.
    pub lease: Option<LeasePolicy>,
    /// Its fencing number, 0 without lease.
    pub fence: u64,
    /// What the worker checks before it accepts (WORK-30).
    pub requirements: Requirements,
}

/// A task for a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProviderTask {
    /// Make the machine; the node id is the idempotency token (MNODE-01).
    CreateMachine(MachineSpec),
    /// End the machine and say [`crate::Finding::Gone`] once it is confirmed; a failure is told and
    /// tried again by the provider's driver (MNODE-22).
    TerminateMachine {
        /// Time the worker has for its containers first; cut short when its stream closes.
        after_ms: Millis,
    },
    /// Set the machine's tags; newest wins (TAG-03).
    PushTags(Tags),
}

/// What machine is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MachineSpec {
    /// On EC2.
    Aws(Box<CreateAwsNode>),
    /// On Oracle's cloud.
    Oci(Box<CreateOciNode>),
}

// === impl Order ===

impl Order {
    /// The node it is for.
    pub const fn node_id(&self) -> &NodeId {
        match self {
            Self::Worker { node_id, .. }
            | Self::Provider { node_id, .. }
            | Self::Dial { node_id, .. }
            | Self::Close { node_id, .. } => node_id,
        }
    }
}

// === impl WorkerOrder ===

impl WorkerOrder {
    /// The start it is about, for messages about one instance.
    pub const fn start_id(&self) -> Option<&StartId> {
        match self {
            Self::Provision(job) | Self::UpdateJob(job) => Some(&job.instance.start_id),
            Self::StartPrepared(instance)
            | Self::Stop { instance, .. }
            | Self::Migration { instance, .. } => Some(&instance.start_id),
            Self::PrefetchImages { .. }
            | Self::ReportAck { .. }
            | Self::Shutdown { .. }
            | Self::Tags(_)
            | Self::Discovery(_)
            | Self::AccessReplica(_)
            | Self::LeasesPaused { .. } => None,
        }
    }
}
