//! The records that the ledger keeps, as they stand in memory and in rows.
//!
//! Every field says who writes it. What can be derived (indexes, effective tags, what a deadline
//! waits for) is not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::bundle::Bundle;
use greenroom_types::call::CallResult;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{At, JobWithHistory, StopReason};
use greenroom_types::node::{
    InstanceKey, InstanceState, InterruptionKind, NodeMetadata, NodeState, NodeStoppingReason,
    RunningNodeMetadata, StartPhase,
};
use greenroom_types::{
    BundleId, JobId, MigrationId, Millis, NodeId, Payload, PoolName, StartId, Tags, Wall,
};
use serde::{Deserialize, Serialize};

use crate::order::MachineSpec;
use crate::stray::Stray;

/// The minor of the protocol with which leases came (HELLO-05).
pub const LEASES_MINOR: u32 = 6;

/// A job: its public face, and what is in progress on it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Definition, state and history, shared with events under way.
    pub view: Arc<JobWithHistory>,
    /// Number of the next history entry.
    pub next_entry: u64,
    /// The bundle it belongs to.
    pub bundle_id: Option<BundleId>,
    /// A delete is recorded; it goes with its last instance (JOB-09, BDL-16).
    pub deleting: bool,
    /// A completion is recorded; it becomes POST with its last live instance (JOB-11).
    pub completing: bool,
    /// It becomes PRE with its last live instance (BDL-09, BDL-20).
    pub pre_when_stopped: bool,
    /// Instances not recorded stopped. Derived from the instances.
    pub instances: BTreeSet<StartId>,
}

/// One start of a job that is not recorded stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Job and role.
    pub key: InstanceKey,
    /// This start.
    pub start_id: StartId,
    /// Where it was put.
    pub node_id: NodeId,
    /// Where it stands.
    pub state: InstanceState,
    /// The stop that was recorded for it, with the history's `job_stopping`.
    pub stop: Option<InstanceStop>,
    /// It no longer holds its key (JOB-35): it failed, or its node ends.
    pub ending: bool,
    /// A provision message for it was ordered; before, no worker can know it.
    pub delivered: bool,
    /// A worker acknowledged it.
    pub accepted: bool,
    /// Its newest entry in the history is `job_stopping`: there is no second one (HIST-04).
    pub told_stopping: bool,
    /// Option of StartJob (JOB-24).
    pub defer_start: bool,
    /// StartPreparedJob was accepted.
    pub start_prepared: bool,
    /// Slot role told to the job.
    pub runtime_role: String,
    /// Option of StartJob.
    pub gpu_index: Option<u32>,
    /// Option of StartJob.
    pub migration_id: Option<MigrationId>,
    /// What stands for the state of a handover's source; the state itself is never recorded
    /// (MGR-05).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub migration_state: Option<Payload>,
    /// Image of the media runtime, chosen at acceptance (JOB-30).
    pub media_image: String,
    /// Hash of the definition that its worker knows (JOB-07).
    pub known_hash: i64,
    /// Hash of each field that takes effect at a start, as it was at this one (JOB-07).
    pub launched: BTreeMap<String, u64>,
    /// Aborts of migrations that wait for its node to be heard again (DECM-10).
    pub aborts: Vec<(MigrationId, String)>,
    /// Migration signals passed on (MGR-11).
    pub signals: BTreeSet<(MigrationId, String)>,
    /// Fencing number of a leased start, 0 without lease (LEASE-02).
    #[serde(default)]
    pub fence: u64,
    /// Role and node as last known, for entries after the node's record is gone (HIST-03).
    pub at: At,
}

/// Why and how an instance stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStop {
    /// Reason in the history.
    pub reason: StopReason,
    /// Time between signal and kill.
    pub grace_ms: Millis,
    /// When it was asked for, or last shortened.
    pub asked_at: Wall,
    /// The worker has to be told; false when it told us.
    pub order: bool,
}

/// A node in any state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// As shown, with effective tags.
    pub metadata: Arc<NodeMetadata>,
    /// Tags of creation, and those the provider holds besides.
    pub base_tags: Tags,
    /// The Manager's own tags (TAG-07).
    pub own_tags: Tags,
    /// Edits laid over both; none takes a key away (TAG-02).
    pub edits: BTreeMap<String, Option<String>>,
    /// Grows with each effective change of the tags.
    pub tags_revision: u64,
    /// Known since the machine runs.
    pub running: Arc<RunningNodeMetadata>,
    /// Where it stands.
    pub state: NodeState,
    /// How far a starting one has come.
    pub phase: StartPhase,
    /// Why it stops or stopped.
    pub stop: Option<NodeStop>,
    /// It stops because its worker fell silent, so a hello takes it back (MNODE-13).
    pub given_up: bool,
    /// What was asked of the provider; none for a slot.
    pub machine: Option<MachineSpec>,
    /// The provider confirmed that the machine is gone, or there never was one.
    pub machine_gone: bool,
    /// Where a slot's worker listens.
    pub address: String,
    /// The machine's last boot.
    pub boot_id: String,
    /// Minor of the worker's protocol.
    pub protocol_minor: u32,
    /// Last hello or drop.
    pub last_seen: Option<Wall>,
    /// When it was recorded stopped.
    pub stopped_at: Option<Wall>,
    /// Failed terminates so far (MNODE-22).
    pub terminate_attempts: u32,
    /// The provider's last error.
    pub last_error: String,
    /// Newest report stored (WORK-60).
    pub report_acked: u64,
    /// Instances missing at the hello whose reports may still be under way.
    pub awaiting: Option<Awaiting>,
    /// Grows whenever the state changes, so that a deadline knows what it was set for.
    pub turn: u64,
    /// The newest interruption notice.
    pub notice: Option<Notice>,
    /// Open prefetch batches with their references (PREF-06).
    pub batches: BTreeMap<String, Vec<String>>,
    /// How long it may be empty, if that was set for it alone (IDLE-02).
    #[serde(default)]
    pub idle_expiry_ms: Option<Millis>,
    /// Grows whenever its empty time begins anew (IDLE-04).
    #[serde(default)]
    pub idle_mark: u64,
    /// What its worker has and is not expected there (MNODE-16, STORE-11).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub strays: BTreeMap<StartId, Stray>,
    /// The last picture. A row of its own.
    #[serde(skip)]
    pub inventory: Option<Arc<NodeInventory>>,
}

/// Why a node stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStop {
    /// Published reason.
    pub reason: NodeStoppingReason,
    /// In words.
    pub detail: String,
    /// The provider's code.
    pub code: String,
}

/// Instances that a hello did not name while reports about them may follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Awaiting {
    /// Judged once the report of this number is in.
    pub through: u64,
    /// The instances.
    pub starts: BTreeSet<StartId>,
}

/// An interruption notice (MNODE-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Kind.
    pub kind: InterruptionKind,
    /// When the node goes.
    pub deadline: Option<Wall>,
    /// When the worker saw it.
    pub seen_at: Wall,
}

/// A registered place for an owned server.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// Its node.
    pub node_id: NodeId,
    /// Name it was registered under.
    pub node_name: String,
    /// Pool, empty for none.
    pub pool: PoolName,
    /// The one-shot token. Secret.
    pub token: String,
    /// The token was used.
    pub token_used: bool,
    /// Machine the slot is bound to.
    pub machine_id: String,
    /// Key the slot is bound to; empty for a worker of the published protocol (WORK-04).
    pub public_key: String,
    /// Key material of the first use. Secret.
    pub key: String,
    /// Where the worker listens.
    pub address: String,
    /// The worker's picture at its last call.
    pub hardware: Option<Arc<NodeInventory>>,
    /// When it was registered.
    pub registered_at: Wall,
    /// When a worker first came.
    pub activated_at: Option<Wall>,
    /// It is being removed: its token opens nothing (LOCAL-12).
    pub leaving: bool,
    /// Edits of tags kept while the node's record is gone (TAG-02).
    pub edits: BTreeMap<String, Option<String>>,
    /// Revision of the tags, kept likewise.
    pub tags_revision: u64,
}

/// A bundle and its runtime jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BundleRecord {
    /// As shown.
    pub bundle: Arc<Bundle>,
    /// Runtime jobs that exist, also those being removed. Derived from the jobs.
    pub jobs: BTreeSet<JobId>,
}

/// An instance that was deleted while it could not be reached (BDL-19).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tombstone {
    /// Its key.
    pub key: InstanceKey,
    /// Where it was.
    pub node_id: NodeId,
    /// When it was deleted.
    pub at: Wall,
}

/// The recorded outcome of a repeatable call (API-07).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recorded {
    /// Place in the order of recording.
    pub number: u64,
    /// Hash of method and body.
    pub body: String,
    /// What was answered.
    pub outcome: CallResult,
    /// When.
    pub at: Wall,
}

// === impl Slot ===

impl std::fmt::Debug for Slot {
    /// Without token and key (SEC-12).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("node_id", &self.node_id)
            .field("node_name", &self.node_name)
            .field("token_used", &self.token_used)
            .field("machine_id", &self.machine_id)
            .field("address", &self.address)
            .field("leaving", &self.leaving)
            .finish_non_exhaustive()
    }
}

// === impl Instance ===

impl Instance {
    /// Provisioned, prepared, running, or stopping because someone asked: it holds its key.
    pub const fn is_live(&self) -> bool {
        !self.ending && !matches!(self.state, InstanceState::Lost)
    }

    /// Name of its state in details of refusals.
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            InstanceState::Provisioned => "provisioned",
            InstanceState::Prepared => "prepared",
            InstanceState::Running => "running",
            InstanceState::Stopping => "stopping",
            InstanceState::Lost => "lost",
        }
    }

    /// As orders name it.
    pub fn instance_ref(&self) -> greenroom_types::call::InstanceRef {
        greenroom_types::call::InstanceRef {
            key: self.key.clone(),
            start_id: self.start_id.clone(),
        }
    }
}

// === impl Node ===

impl Node {
    /// The Manager makes and ends such machines by itself.
    pub const fn is_elastic(&self) -> bool {
        self.machine.is_some()
    }

    /// Starting, running or unreachable: a start may be accepted for it.
    pub const fn is_wanted(&self) -> bool {
        matches!(
            self.state,
            NodeState::Starting | NodeState::Running | NodeState::Unreachable
        )
    }

    /// Its worker said hello and is heard.
    pub fn is_running(&self) -> bool {
        self.state == NodeState::Running
    }

    /// Its worker is heard and knows of leases (HELLO-05).
    pub fn hears_pauses(&self) -> bool {
        self.is_running() && self.protocol_minor >= LEASES_MINOR
    }

    /// It was given up and may still come back (MNODE-13).
    pub fn awaits_return(&self) -> bool {
        self.given_up && (self.state == NodeState::Stopping || !self.is_elastic())
    }

    /// A stream to its worker is to be held, or sought.
    pub fn wants_stream(&self) -> bool {
        self.is_wanted() || self.awaits_return()
    }

    /// Name of its provider in settings.
    pub const fn provider_name(&self) -> &'static str {
        match self.machine {
            Some(MachineSpec::Aws(_)) => "aws",
            Some(MachineSpec::Oci(_)) => "oci",
            None => "local",
        }
    }
}
