//! The consensus library's type parameters, all in one place.
//!
//! The vote and leader modes are named explicitly: they decide what stands in the
//! log's term and node columns, so a changed default of the library must not
//! change them silently.

use std::fmt;
use std::sync::Arc;

use openraft::type_config::alias;
use serde::{Deserialize, Serialize};

use crate::state::SnapshotFile;

openraft::declare_raft_types!(
    /// The consensus of one store.
    pub(crate) Types:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = Peer,
        Term = u64,
        LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>,
        Vote = openraft::impls::Vote<Self::LeaderId>,
        AsyncRuntime = openraft::impls::TokioRuntime,
);

pub(crate) type Leader = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
pub(crate) type LogId = openraft::LogId<Leader>;
pub(crate) type Vote = openraft::impls::Vote<Leader>;
pub(crate) type Entry = alias::EntryOf<Types>;
pub(crate) type Payload = alias::PayloadOf<Types>;
pub(crate) type Members = openraft::Membership<u64, Peer>;
pub(crate) type StoredMembers = alias::StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = alias::SnapshotMetaOf<Types>;
pub(crate) type Snapshot = alias::SnapshotOf<Types, SnapshotFile>;

/// What the log carries besides the consensus's own entries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Proposal {
    /// A command on its way: its JSON text and the proposer's time.
    ///
    /// The outcome does not travel through the library. It waits for the proposer under
    /// `ticket`, which means something only within the process that proposed.
    Command {
        /// Number of the waiting proposer, 0 when nobody waits (read from disk or a peer).
        #[serde(skip)]
        ticket: u64,
        wall_ms: i64,
        command: Arc<str>,
    },
    /// The primary's digest behind an entry; see `checks.rs`.
    Check { index: u64, digest: u64 },
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command {
                wall_ms, command, ..
            } => {
                write!(f, "command of {} bytes at {wall_ms}", command.len())
            }
            Self::Check { index, digest } => write!(f, "check of {digest:016x} behind {index}"),
        }
    }
}

/// A member as the membership record knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Where the other members reach it; empty while it is alone.
    pub(crate) address: String,
}
