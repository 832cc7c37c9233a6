//! Everything that changes the Manager's state: one closed enum, in the form in which it stands in
//! the log.
//!
//! A command carries what the state machine must not make by itself: random ids ([`Fresh`]). The
//! instant comes beside it, at [`crate::Ledger::apply`]. News that is passed on and not stored
//! (job info, heartbeats, lease refreshes) is no command.

use std::fmt;

use greenroom_types::call::Call;
use greenroom_types::node::InstanceKey;
use greenroom_types::overrides::Overrides;
use greenroom_types::{BundleId, NodeId, Payload, StartId, Wall};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::report::{Finding, Report};

/// A change of the Manager's state, asked for or found out. Call [`Command::checked`] before
/// proposing one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Command {
    /// A Manager begins to serve this state.
    Open(Open),
    /// Somebody called.
    Call(Box<Called>),
    /// A worker of an owned server calls in (LOCAL-05).
    Register(Register),
    /// Something about the Manager's line to a worker, or the lack of one.
    Link {
        /// The worker's node.
        node_id: NodeId,
        /// What.
        link: Link,
    },
    /// A worker said something over its stream.
    Report {
        /// The worker's node.
        node_id: NodeId,
        /// Number in the worker's journal, growing; 0 for what is not kept there (hello, inventory).
        report_id: u64,
        /// What it said.
        report: Box<Report>,
    },
    /// A provider said something about a machine.
    Provider {
        /// The node that the machine is for.
        node_id: NodeId,
        /// What it said.
        finding: Finding,
    },
    /// Time has passed.
    Tick(Due),
    /// The overrides file was read at a start (OVR-02).
    Overrides(Box<Overrides>),
    /// Something is for the audit log that changes nothing else: a failed proof, a broken chain.
    Note {
        /// Kind of the entry.
        kind: String,
        /// What happened, without secrets.
        payload: serde_json::Value,
    },
}

/// A Manager begins to serve this state: at its start, at a takeover, after a restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Open {
    /// A fresh random id for the epoch, taken when the state has none yet (EVT-16).
    pub epoch: String,
    /// Begin a new epoch although there is one, as a store does that was just restored. It begins by
    /// itself where the generation is another one.
    pub renew: bool,
    /// Settings to put in force; none keeps those in force.
    pub config: Option<Box<Config>>,
    /// Generation of the store that it is served from: fencing numbers begin above it (LEASE-02).
    #[serde(default)]
    pub generation: u64,
}

/// A call with what it needs besides its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Called {
    /// The call.
    pub call: Call,
    /// What the credential proves about the caller (SEC-17).
    pub actor: String,
    /// The caller's id for this request, if it may be repeated (API-07).
    pub request_id: Option<String>,
    /// Random material for what the call may make.
    pub fresh: Fresh,
}

/// Random material, drawn by the proposer for every call, and what it found out for it. Each field is
/// used at most once.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fresh {
    /// 32 hexadecimal digits: the start id, or the source of a bundle id, batch id or suffix.
    pub id: String,
    /// A slot token (LOCAL-03), needed by RegisterClusterNode and RotateClusterNodeToken, or a tier
    /// secret for RotateDiscoveryTierSecret. Secret.
    pub token: String,
    /// What no state machine can find out.
    #[serde(default)]
    pub found: Found,
}

/// What the proposer of a call found out, as it needs files or cryptography.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Found {
    /// Nothing.
    #[default]
    Nothing,
    /// About an access replica whose form and signatures are good (REPL-03).
    Replica(ReplicaFacts),
    /// What the overrides file says (OVR-02).
    Overrides(Box<Overrides>),
}

/// What the signed parts of an access replica say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaFacts {
    /// Version that the attestation is of.
    pub attested_version: u64,
    /// Time of the attestation.
    pub attested_at: Wall,
    /// Mark of the keys held when the keys were judged; see [`crate::key_mark`].
    pub keys_seen: String,
    /// Key sets to be added to those held.
    pub new_keys: Vec<Payload>,
}

/// A worker presents a slot's token (LOCAL-05).
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Register {
    /// The token. Secret.
    pub token: String,
    /// Where the worker listens, as `host:port`.
    pub address: String,
    /// Machine that the slot is bound to at first use.
    pub machine_id: String,
    /// Public key that the slot is bound to at first use, in the caller's encoding; empty for a worker of
    /// the published protocol (WORK-04).
    pub public_key: String,
    /// Key material for the slot, made by the proposer; kept at first use, ignored at a repeat.
    /// Secret, opaque to the state machine.
    pub key: String,
    /// The worker's picture of its machine, if it sent one.
    pub hardware: Option<Box<greenroom_types::inventory::NodeInventory>>,
}

/// What an accepted [`Register`] answers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// Id of the slot's node.
    pub node_id: NodeId,
    /// Key material in force: that of the first use (LOCAL-06). Secret.
    pub key: String,
    /// False for a repeat by the same machine and key.
    pub first_use: bool,
}

/// Something about the Manager's line to a worker, or the lack of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    /// The stream broke, or fell silent (MNODE-10).
    Dropped,
    /// It stayed away for the drop grace: the node is given up (MNODE-12).
    GraceOver,
    /// A node that is given up or ending stayed away for the keepalive time: it is stopped.
    KeepaliveOver,
    /// The provider kept the machine pending for too long (MNODE-06).
    PendingOver,
    /// The machine runs, or the worker called in, and could not be dialled in time (MNODE-06,
    /// LOCAL-09).
    StartupOver,
    /// The stream is open and no valid hello came in time (MNODE-06).
    HelloOver,
}

/// What the passing of time alone causes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Due {
    /// A provision message stayed without answer to the last repeat (JOB-19).
    ProvisionUnanswered(StartId),
    /// A deleted job's instance could not be reached for long enough (BDL-19).
    UnreachableOver(StartId),
    /// A bundle's stop time has come (BSTOP-02); nothing happens if it was moved meanwhile.
    BundleStop {
        /// The bundle.
        bundle_id: BundleId,
        /// The stop time that was waited for.
        stop_at: Wall,
    },
    /// A stopped node leaves the record (MNODE-18).
    ForgetNode(NodeId),
    /// A node was empty for as long as it may be (IDLE-01); nothing happens if it is not any more.
    Idle {
        /// The node.
        node_id: NodeId,
        /// What was waited for.
        mark: u64,
    },
    /// A node goes on running what it was told to stop (MNODE-16); nothing happens if it does not, or if
    /// its key runs nowhere else.
    StrayOver {
        /// The node.
        node_id: NodeId,
        /// What it runs.
        start_id: StartId,
    },
    /// What was found after a restore and not adopted is kept no longer (STORE-11).
    RestoreOver,
    /// A lease was not refreshed for its time (LEASE-07); nothing happens if it took a turn since.
    LeaseLost {
        /// Its key.
        key: InstanceKey,
        /// Its holder.
        start_id: StartId,
        /// What was waited for.
        mark: u64,
    },
    /// A lost holder runs no more, by all that clocks can tell (LEASE-08).
    LeaseOver {
        /// Its key.
        key: InstanceKey,
        /// The holder that was lost.
        start_id: StartId,
        /// What was waited for.
        mark: u64,
    },
    /// A bundle's lease was not renewed for its time (LEASE-15).
    BundleLeaseOver {
        /// The bundle.
        bundle_id: BundleId,
        /// What was waited for.
        mark: u64,
    },
}

// What is secret prints as stars in every form made for people (SEC-12).

const STARS: &str = "***";

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh")
            .field("id", &self.id)
            .field("token", &STARS)
            .field("found", &self.found)
            .finish()
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Register")
            .field("token", &STARS)
            .field("address", &self.address)
            .field("machine_id", &self.machine_id)
            .field("public_key", &self.public_key)
            .field("key", &STARS)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("node_id", &self.node_id)
            .field("key", &STARS)
            .field("first_use", &self.first_use)
            .finish()
    }
}
