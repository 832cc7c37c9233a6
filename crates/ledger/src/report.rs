//! What workers and providers tell the Manager.

use greenroom_types::call::InstanceRef;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::PortMappings;
use greenroom_types::node::{
    InstanceKey, InstanceState, InterruptionKind, RejectionCode, RunningNodeMetadata,
};
use greenroom_types::stream::{MigrationSignal, PrefetchResult};
use greenroom_types::{MigrationId, Tags, Wall};
use serde::{Deserialize, Serialize};

/// What a worker says over its stream. Whether it may say it (proof, node id, machine) has been
/// checked before (MNODE-08).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The stream begins (WORK-03).
    Hello(Box<Hello>),
    /// A provision message arrived and was accepted.
    Accepted(InstanceRef),
    /// A deferred instance is created and does not run (JOB-24).
    Prepared {
        /// The instance.
        instance: InstanceRef,
        /// Its ports, unbound.
        ports: PortMappings,
    },
    /// An instance runs (JOB-20).
    Started {
        /// The instance.
        instance: InstanceRef,
        /// Its ports.
        ports: PortMappings,
    },
    /// An instance and its remains are gone (JOB-21, JOB-34).
    Stopped {
        /// The instance.
        instance: InstanceRef,
        /// It ended by itself, every service with exit 0.
        completed: bool,
    },
    /// An instance failed; its remains are being removed (JOB-21).
    Failed {
        /// The instance.
        instance: InstanceRef,
        /// Why, in words.
        reason: String,
    },
    /// A provision message was refused; nothing of it is left (JOB-22).
    Rejected {
        /// The instance.
        instance: InstanceRef,
        /// Kind of refusal.
        code: RejectionCode,
        /// One plain sentence.
        detail: String,
        /// The worker's picture of its machine, which shows why.
        inventory: Option<Box<NodeInventory>>,
    },
    /// A full picture of the machine (MNODE-20).
    Inventory(Box<NodeInventory>),
    /// The provider announces that it takes the machine (MNODE-19).
    Notice {
        /// Kind of notice.
        kind: InterruptionKind,
        /// When the machine goes, if known.
        deadline: Option<Wall>,
        /// When the worker saw it.
        seen_at: Wall,
    },
    /// A prefetch batch settled (PREF-01).
    ImagesPrefetched {
        /// The batch.
        batch_id: String,
        /// One result for each reference, in the order given.
        results: Vec<PrefetchResult>,
    },
    /// A migration's signal (MGR).
    Migration {
        /// The instance it comes from.
        key: InstanceKey,
        /// The migration.
        migration_id: MigrationId,
        /// What it says.
        signal: MigrationSignal,
    },
    /// The worker leaves on purpose (LOCAL-17).
    Goodbye {
        /// Why.
        reason: String,
    },
}

/// How a worker introduces itself (WORK-03).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Id of the machine's current boot.
    pub boot_id: String,
    /// Minor number of the worker's protocol.
    pub protocol_minor: u32,
    /// Addresses and the provider's id of the machine; empty texts keep what is known.
    pub running: RunningNodeMetadata,
    /// The worker's picture of its machine.
    pub inventory: Option<Box<NodeInventory>>,
    /// Every instance the worker has, ending ones included.
    pub instances: Vec<HelloInstance>,
    /// Newest number in the worker's journal; reports up to it that were not acknowledged follow.
    pub last_report_id: u64,
    /// The worker takes leases for paused.
    pub leases_paused: bool,
}

/// An instance as a worker finds it on its machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloInstance {
    /// Which.
    pub instance: InstanceRef,
    /// Where it stands there.
    pub state: InstanceState,
    /// Its ports.
    pub ports: PortMappings,
    /// Its fencing number, 0 without lease.
    #[serde(default)]
    pub fence: u64,
}

/// What a provider says about a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Finding {
    /// It runs (MNODE-01), with its addresses, its zone and the tags that the provider holds.
    Running {
        /// Addresses and the provider's id.
        running: RunningNodeMetadata,
        /// Zone, empty when unknown (MNODE-21).
        zone: String,
        /// Tags at the provider, without the Manager's own; edits win over them (TAG-02).
        tags: Tags,
    },
    /// It was not made (MNODE-05).
    CreateFailed {
        /// The provider's code.
        code: String,
        /// The provider's words.
        text: String,
    },
    /// It is being stopped or was stopped, not at our request (MNODE-15).
    Stopped,
    /// It is being terminated, not at our request (MNODE-15).
    Terminating,
    /// It is gone for good.
    Gone,
    /// A full listing does not know it (MNODE-17).
    Unknown,
    /// A terminate failed and will be repeated (MNODE-22).
    TerminateFailed {
        /// The provider's words.
        error: String,
    },
}
