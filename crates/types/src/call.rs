//! The calls on the Manager, their answers and their refusals, as typed values.
//!
//! The same values are what the policy decides, what the SDK sends, what the simulator performs and
//! what the ledger applies.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Tags;
use crate::bundle::Bundle;
use crate::discovery::{DiscoveryFleet, Hidden, RotationStep};
use crate::id::{BundleId, JobId, JobName, MigrationId, NodeId, PoolName, Role, StartId};
use crate::job::Job;
use crate::kv::KvCommit;
use crate::node::InstanceKey;
use crate::payload::Payload;
use crate::pool::{LaunchMode, RootVolume};
use crate::replica::AccessReplica;
use crate::time::{Millis, Wall};

/// Options of StartJob (JOB-17).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartJob {
    /// The job.
    pub job_id: JobId,
    /// Role of the new instance.
    pub role: Role,
    /// Its node.
    pub node_id: NodeId,
    /// Create without running.
    pub defer_start: bool,
    /// Slot role told to the job; empty: the role up to `@`.
    pub runtime_role: String,
    /// Device for a GPU share.
    pub gpu_index: Option<u32>,
    /// The migration it is the target of.
    pub migration_id: Option<MigrationId>,
    /// What the source told of its state: it makes this the start of the target of a handover
    /// (MIGR-08).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub migration_state: Option<Payload>,
}

/// One of EC2's nodes is wanted (AWS-01, AWS-02).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateAwsNode {
    /// Id of the new node.
    pub node_id: NodeId,
    /// Its tags.
    pub tags: Tags,
    /// Region.
    pub region: String,
    /// Instance type.
    pub instance_type: String,
    /// How it is paid for.
    pub launch_mode: LaunchMode,
    /// Root volume.
    pub root_volume: Option<RootVolume>,
}

/// One of Oracle's nodes is wanted (OCI-01, OCI-02).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateOciNode {
    /// Id of the new node.
    pub node_id: NodeId,
    /// Its tags.
    pub tags: Tags,
    /// Availability domain.
    pub availability_domain: String,
    /// `x86_64` or `aarch64`.
    pub architecture: String,
    /// Shape.
    pub shape: String,
    /// Subnet, empty for the default.
    pub subnet: String,
    /// OCPUs of a flexible shape.
    pub ocpus: Option<f64>,
    /// Memory of a flexible shape in GB.
    pub memory_gb: Option<f64>,
    /// How it is paid for.
    pub launch_mode: LaunchMode,
}

/// A mutating call on the Manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Call {
    /// Stores a new job (JOB-01).
    CreateJob(Box<Job>),
    /// Replaces a job's definition (JOB-06); the hash is the one expected, 0 for any.
    UpdateJob(Box<Job>, i64),
    /// Removes a job (JOB-09).
    DeleteJob(JobId),
    /// Ends a job for good (JOB-11).
    CompleteJob(JobId),
    /// Starts an instance (JOB-12).
    StartJob(StartJob),
    /// Runs a prepared instance (JOB-24).
    StartPreparedJob {
        /// The instance.
        key: InstanceKey,
        /// Its node.
        node_id: NodeId,
    },
    /// Stops an instance (JOB-23).
    StopJob {
        /// The instance.
        key: InstanceKey,
        /// Its node.
        node_id: NodeId,
        /// Time between signal and kill; absent: 10 s.
        grace_ms: Option<Millis>,
    },
    /// Gives a job its verdict (FAIL-01).
    MarkJobFailed {
        /// The job.
        job_id: JobId,
        /// Why.
        reason: String,
    },
    /// Stores and expands a bundle (BDL-01).
    CreateBundle(Box<Bundle>),
    /// Replaces a bundle (BDL-08).
    UpdateBundle {
        /// The bundle; its revision is the one expected, 0 for any.
        bundle: Box<Bundle>,
        /// Only tell what would change.
        dry_run: bool,
        /// Take the stop time away.
        clear_stop_time: bool,
    },
    /// Begins the delete saga (BDL-16).
    DeleteBundle(BundleId),
    /// Wakes a dormant job (BDL-12).
    StartBundleJob {
        /// The bundle.
        bundle_id: BundleId,
        /// The copy.
        replica_index: u32,
        /// The job.
        job_name: JobName,
    },
    /// Makes a job dormant and stops it (BDL-13).
    StopBundleJob {
        /// The bundle.
        bundle_id: BundleId,
        /// The copy.
        replica_index: u32,
        /// The job.
        job_name: JobName,
        /// Time between signal and kill; absent: 10 s.
        grace_ms: Option<Millis>,
    },
    /// Sets or clears a bundle's stop time (BSTOP-01).
    SetBundleStopTime {
        /// The bundle.
        bundle_id: BundleId,
        /// The time, none to clear it.
        stop_at: Option<Wall>,
    },
    /// Buys an EC2 node.
    CreateAwsNode(Box<CreateAwsNode>),
    /// Buys an Oracle node.
    CreateOciNode(Box<CreateOciNode>),
    /// Ends a node (MNODE-14).
    TerminateNode(NodeId),
    /// The published surface's old call (API-13).
    UpdatePhysicalNode {
        /// The node.
        node_id: NodeId,
        /// Wanted version.
        daemon_version: String,
    },
    /// Edits a node's tags (TAG-01).
    SetNodeTags {
        /// The node.
        node_id: NodeId,
        /// Keys to set.
        tags: Tags,
        /// Keys to take away.
        remove: Vec<String>,
        /// Refuse unless the tags stand at this revision.
        expected_revision: Option<u64>,
    },
    /// Makes a slot for an owned server (LOCAL-01).
    RegisterClusterNode {
        /// Name of the slot.
        node_name: String,
        /// Pool, empty for none.
        pool: PoolName,
    },
    /// Removes a slot (LOCAL-12).
    DeregisterClusterNode(NodeId),
    /// Pulls images (PREF-01).
    PrefetchImages {
        /// The node.
        node_id: NodeId,
        /// References.
        image_refs: Vec<String>,
    },
    /// Asks the source for its state (MGR-01).
    NotifyMigrationGetState {
        /// The source.
        key: InstanceKey,
        /// The migration.
        migration_id: MigrationId,
    },
    /// Tells the source that the target is ready (MGR-02).
    NotifyMigrationCutoverReady {
        /// The source.
        key: InstanceKey,
        /// The migration.
        migration_id: MigrationId,
        /// The target's payload.
        payload: Payload,
    },
    /// Tells the target where the source ended (MGR-03).
    NotifyMigrationCutoverApply {
        /// The target.
        key: InstanceKey,
        /// The migration.
        migration_id: MigrationId,
        /// The source's payload.
        payload: Payload,
    },
    /// Tells both sides to forget a migration (MGR-06).
    AbortMigration {
        /// The job.
        job_id: JobId,
        /// Role of the source.
        source_role: Role,
        /// Role of the target.
        target_role: Role,
        /// Why.
        reason: String,
        /// The migration; empty: whatever is in progress.
        migration_id: MigrationId,
    },
    /// Writes keys of one namespace together (KV-02).
    KvCommit(KvCommit),
    /// Sets how long one elastic node may be empty (IDLE-02).
    SetNodeIdleExpiry {
        /// The node.
        node_id: NodeId,
        /// How long; 0 takes the node's own value away.
        idle_expiry_ms: Millis,
    },
    /// Moves a slot to another pool (LOCAL-14).
    SetClusterNodePool {
        /// The slot's node.
        node_id: NodeId,
        /// Its pool from now on, empty for none.
        pool: PoolName,
    },
    /// Gives a slot a new token and voids the old credential (LOCAL-18).
    RotateClusterNodeToken(NodeId),
    /// Appends an entry to the audit log (AUDIT-04).
    AppendAuditEntry {
        /// Which part of the system.
        source: String,
        /// What kind of act.
        kind: String,
        /// JSON.
        payload: String,
    },
    /// Removes old entries of the audit log from its front (AUDIT-07).
    PruneAuditLog {
        /// Entries strictly older than this; 0 for all.
        before: Wall,
    },
    /// Says where the discovery fleet is, and at first its secrets (DISC-01).
    PublishDiscoveryFleet {
        /// The leaf token is put in force although there is one (DISC-02).
        #[serde(default)]
        replace_leaf_token: bool,
        /// The fleet. Rotation is not the publisher's to say.
        fleet: DiscoveryFleet,
        /// Who says so.
        by: String,
    },
    /// Takes a step of the rotation of the tier secret (DISC-05 to DISC-07).
    RotateDiscoveryTierSecret {
        /// The step.
        step: RotationStep,
        /// The next secret at `stage`; empty has the Manager make one. Secret.
        new_tier_secret: Hidden,
        /// Who asks for it.
        by: String,
    },
    /// Brings a version of the access roles, or a fresh attestation of it (REPL-01).
    PublishAccessReplica(Box<AccessReplica>),
    /// Puts the overrides file in force as it stands now (OVR-02).
    ReloadExternalConfig,
    /// Takes what was found after a restore into the record, as it runs (STORE-11).
    AdoptInstance {
        /// Where it runs.
        node_id: NodeId,
        /// Job and role.
        key: InstanceKey,
        /// Which start; none where the node has one of that key.
        start_id: Option<StartId>,
    },
    /// Puts a bundle under its creator's lease, or renews that lease (LEASE-15).
    RenewBundleLease {
        /// The bundle.
        bundle_id: BundleId,
        /// For how long; 0 takes the lease away.
        ttl_ms: Millis,
    },
    /// Lets no lease run out until they are resumed (LEASE-10).
    PauseLeases {
        /// Why.
        reason: String,
        /// Who; empty: whoever the credential names.
        by: String,
    },
    /// Ends a pause (LEASE-12).
    ResumeLeases {
        /// Who; empty: whoever the credential names.
        by: String,
    },
}

impl Call {
    /// Name of the RPC on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CreateJob(_) => "CreateJob",
            Self::UpdateJob(..) => "UpdateJob",
            Self::DeleteJob(_) => "DeleteJob",
            Self::CompleteJob(_) => "CompleteJob",
            Self::StartJob(_) => "StartJob",
            Self::StartPreparedJob { .. } => "StartPreparedJob",
            Self::StopJob { .. } => "StopJob",
            Self::MarkJobFailed { .. } => "MarkJobFailed",
            Self::CreateBundle(_) => "CreateBundle",
            Self::UpdateBundle { .. } => "UpdateBundle",
            Self::DeleteBundle(_) => "DeleteBundle",
            Self::StartBundleJob { .. } => "StartBundleJob",
            Self::StopBundleJob { .. } => "StopBundleJob",
            Self::SetBundleStopTime { .. } => "SetBundleStopTime",
            Self::CreateAwsNode(_) => "CreateAwsNode",
            Self::CreateOciNode(_) => "CreateOciNode",
            Self::TerminateNode(_) => "TerminateNode",
            Self::UpdatePhysicalNode { .. } => "UpdatePhysicalNode",
            Self::SetNodeTags { .. } => "SetNodeTags",
            Self::RegisterClusterNode { .. } => "RegisterClusterNode",
            Self::DeregisterClusterNode(_) => "DeregisterClusterNode",
            Self::PrefetchImages { .. } => "PrefetchImages",
            Self::NotifyMigrationGetState { .. } => "NotifyMigrationGetState",
            Self::NotifyMigrationCutoverReady { .. } => "NotifyMigrationCutoverReady",
            Self::NotifyMigrationCutoverApply { .. } => "NotifyMigrationCutoverApply",
            Self::KvCommit(_) => "KvCommit",
            Self::SetNodeIdleExpiry { .. } => "SetNodeIdleExpiry",
            Self::SetClusterNodePool { .. } => "SetClusterNodePool",
            Self::RotateClusterNodeToken(_) => "RotateClusterNodeToken",
            Self::AppendAuditEntry { .. } => "AppendAuditEntry",
            Self::PruneAuditLog { .. } => "PruneAuditLog",
            Self::PublishDiscoveryFleet { .. } => "PublishDiscoveryFleet",
            Self::RotateDiscoveryTierSecret { .. } => "RotateDiscoveryTierSecret",
            Self::PublishAccessReplica(_) => "PublishAccessReplica",
            Self::ReloadExternalConfig => "ReloadExternalConfig",
            Self::AbortMigration { .. } => "AbortMigration",
            Self::AdoptInstance { .. } => "AdoptInstance",
            Self::RenewBundleLease { .. } => "RenewBundleLease",
            Self::PauseLeases { .. } => "PauseLeases",
            Self::ResumeLeases { .. } => "ResumeLeases",
        }
    }
}

/// What an accepted call answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// Nothing beyond "done".
    Done,
    /// Hash of the stored definition.
    JobHash(i64),
    /// A bundle was created.
    BundleCreated {
        /// Its id.
        bundle_id: BundleId,
        /// Its revision.
        revision: u64,
        /// Its runtime jobs.
        job_ids: Vec<JobId>,
    },
    /// A bundle was replaced (BDL-11).
    BundleUpdated {
        /// Its revision.
        revision: u64,
        /// Jobs made.
        created: Vec<JobId>,
        /// Jobs stopped because their launch content changed.
        changed: Vec<JobId>,
        /// Jobs updated in place.
        updated: Vec<JobId>,
        /// Jobs stopped and deleted.
        removed: Vec<JobId>,
        /// Jobs not touched.
        untouched: Vec<JobId>,
    },
    /// The runtime job that was meant.
    BundleJob(JobId),
    /// A node's tags after an edit.
    Tags {
        /// All of them.
        tags: Tags,
        /// Their revision.
        revision: u64,
    },
    /// A slot and its token.
    Slot {
        /// Id of the node.
        node_id: NodeId,
        /// The one-shot token. Secret.
        token: String,
    },
    /// Jobs that were stopped.
    StoppedJobs(Vec<JobId>),
    /// Id of a prefetch batch.
    Batch(String),
    /// To whom an abort went.
    Notified(Vec<String>),
    /// Jobs that run where something was changed.
    RunningJobs(Vec<JobId>),
    /// A slot's new one-shot token. Secret.
    Token(String),
    /// Seq of an appended audit entry.
    AuditSeq(u64),
    /// The audit log was pruned (AUDIT-07).
    AuditPruned {
        /// How many entries went.
        removed: u64,
        /// The last one that ever went, 0 for none.
        checkpoint_seq: u64,
    },
    /// Revision of a namespace after a commit (KV-02).
    KvRevision(u64),
    /// The discovery fleet as it stands after a publish.
    Discovery {
        /// The fleet with its secrets.
        fleet: DiscoveryFleet,
        /// Other secrets were brought, and those in force were kept (DISC-02).
        secrets_kept: bool,
    },
    /// The discovery fleet as it stands after a step of its rotation.
    Rotated {
        /// The fleet with its secrets.
        fleet: DiscoveryFleet,
        /// Version of what nodes are sent.
        version: u64,
        /// How many nodes have what they were sent (DISC-06).
        acknowledged: u32,
        /// Nodes that have not, or were not heard.
        not_acknowledged: Vec<NodeId>,
    },
    /// Version of the access roles that is stored (REPL-01).
    ReplicaVersion(u64),
    /// What a reload changed (OVR-02).
    Reloaded(Vec<String>),
    /// When a bundle's lease ends unless it is renewed; none when it has none (LEASE-15).
    BundleLease(Option<Wall>),
    /// Leases stand still (LEASE-10).
    LeasesPaused {
        /// Since when.
        since: Wall,
        /// Nodes that did not confirm in time.
        not_acknowledged: Vec<NodeId>,
    },
    /// Leases of jobs run again (LEASE-12).
    LeasesResumed {
        /// So many.
        leases: u32,
        /// Nodes that did not confirm in time.
        not_acknowledged: Vec<NodeId>,
    },
}

/// Status of a refusal; the gRPC codes that the Manager uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// The caller gave up.
    Cancelled,
    /// The request is wrong whatever the state.
    InvalidArgument,
    /// Time ran out.
    DeadlineExceeded,
    /// What is named does not exist.
    NotFound,
    /// What is to be made exists.
    AlreadyExists,
    /// The caller may not.
    PermissionDenied,
    /// The caller is not known.
    Unauthenticated,
    /// A limit is reached.
    ResourceExhausted,
    /// The state does not allow it now.
    FailedPrecondition,
    /// A fault of the Manager's own.
    Internal,
    /// Not served by this version.
    Unimplemented,
    /// Not served at the moment.
    Unavailable,
}

/// A value in the details of a refusal (API-08).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Detail {
    /// Truth.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// Number.
    Number(f64),
    /// Text.
    Text(String),
    /// Several.
    List(Vec<Self>),
}

impl From<&str> for Detail {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
impl From<String> for Detail {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
impl From<i64> for Detail {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<u64> for Detail {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or_else(|_| Self::Text(value.to_string()), Self::Int)
    }
}

/// A call was refused, and nothing changed (API-08).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// gRPC status.
    pub status: Status,
    /// Stable token, `[a-z_]+`.
    pub reason: String,
    /// What was wrong, where, and what would be right.
    pub message: String,
    /// Values by name, in snake case.
    pub details: BTreeMap<String, Detail>,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal without details.
    pub fn new(status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    /// Adds one value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Detail>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

impl std::error::Error for Refusal {}

/// A call's end: its answer or its refusal.
pub type CallResult = Result<Reply, Refusal>;

/// One entry of the audit log (AUDIT-01).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// From 1, without gaps.
    pub seq: u64,
    /// When.
    pub at: Wall,
    /// Which part of the system.
    pub source: String,
    /// What kind of act.
    pub kind: String,
    /// What the credential proves about who acted.
    pub actor: String,
    /// JSON of up to 64 KiB.
    pub payload: String,
    /// Hash of the entry before, in hex.
    pub prev_hash: String,
    /// Hash of this entry, in hex.
    pub hash: String,
}

/// Stands for the entries that were pruned before it (AUDIT-07).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditCheckpoint {
    /// Seq of the last removed entry.
    pub seq: u64,
    /// Its hash, in hex.
    pub hash: String,
    /// How many were removed with it.
    pub count: u64,
    /// Who asked for it.
    pub by: String,
    /// When.
    pub at: Wall,
}

/// Slot of an owned server (LOCAL-04).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNode {
    /// Id of its node.
    pub node_id: NodeId,
    /// Name it was registered under.
    pub node_name: String,
    /// Pool, empty for none.
    pub pool: PoolName,
    /// Token, `***` for those who may not see it.
    pub token: String,
    /// The token was used.
    pub token_used: bool,
    /// A worker holds it.
    pub active: bool,
    /// Address the worker gave.
    pub address: String,
    /// When it was registered.
    pub registered_at: Wall,
    /// When a worker first came.
    pub activated_at: Option<Wall>,
}

/// A start as an order to a worker knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRef {
    /// The instance.
    pub key: InstanceKey,
    /// Its start.
    pub start_id: StartId,
}
