//! The replica of access roles (REPL): its newest version is kept and sent on. What it says is
//! nobody's business here (REPL-05); signatures were checked by the proposer.

use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::replica::AccessReplica;
use greenroom_types::{NodeId, Payload, Wall};
use serde::{Deserialize, Serialize};

use crate::command::{Found, Fresh};
use crate::hash;
use crate::ledger::Ledger;
use crate::order::{ReplicaOrder, WorkerOrder};
use crate::out::Out;
use crate::refuse::{failed, invalid};

/// Key sets that are remembered, for workers that were away while keys changed.
const KEY_SETS: usize = 8;

/// What is kept besides the snapshot, which is large and changes less often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaHead {
    /// Version of the snapshot.
    pub(crate) version: u64,
    /// The newest attestation of it.
    pub(crate) attestation: String,
    /// Its time.
    pub(crate) attested_at: Wall,
    /// Key sets in the order of their succession, the last in force.
    pub(crate) keys: Vec<Payload>,
}

/// The replica as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) head: ReplicaHead,
    /// All roles, zipped.
    pub(crate) snapshot: Arc<Payload>,
}

// === impl Ledger ===

impl Ledger {
    /// Version of the access roles that is stored, 0 for none.
    pub fn replica_version(&self) -> u64 {
        self.replica.as_ref().map_or(0, |it| it.head.version)
    }

    /// The key sets held, in the order of their succession.
    pub fn replica_keys(&self) -> &[Payload] {
        self.replica.as_ref().map_or(&[], |it| &it.head.keys)
    }

    /// Everything that a worker needs to have the stored version (REPL-04).
    pub fn replica_order(&self) -> Option<Arc<ReplicaOrder>> {
        let replica = self.replica.as_ref()?;
        Some(Arc::new(replica.order(String::new(), 0)))
    }

    pub(crate) fn publish_replica(
        &mut self,
        out: &mut Out,
        published: AccessReplica,
        fresh: &Fresh,
    ) -> CallResult {
        let Found::Replica(facts) = &fresh.found else {
            return Err(invalid("bad_replica", "the replica was not checked"));
        };
        let AccessReplica {
            version,
            snapshot,
            delta,
            base_version,
            attestation,
            ..
        } = published;
        let empty = Replica::default();
        let held = self.replica.as_ref().unwrap_or(&empty);
        let stored = held.head.version;
        let is_change = !snapshot.is_empty();
        if is_change && version <= stored {
            let text = format!("version {version} is not above the stored version {stored}");
            return Err(not_forward(stored, text));
        }
        if !is_change && version != stored {
            let text = format!("an attestation of version {version} while {stored} is stored");
            return Err(not_forward(stored, text));
        }
        if facts.attested_version != version {
            let text = format!(
                "the attestation is of version {}, the replica of {version}",
                facts.attested_version
            );
            return Err(not_forward(stored, text));
        }
        if stored > 0 && facts.attested_at <= held.head.attested_at {
            let text = "the attestation is not later than the one that is stored";
            return Err(not_forward(stored, text.to_owned()));
        }
        // Keys were judged against those that the proposer saw.
        if facts.keys_seen != key_mark(&held.head.keys) {
            let text = "the keys were changed meanwhile: publish again";
            return Err(not_forward(stored, text.to_owned()));
        }
        let mut keys = held.head.keys.clone();
        keys.extend(facts.new_keys.iter().cloned());
        keys.drain(..keys.len().saturating_sub(KEY_SETS));
        let replica = Replica {
            head: ReplicaHead {
                version,
                attestation,
                attested_at: facts.attested_at,
                keys,
            },
            snapshot: match is_change {
                true => Arc::new(snapshot),
                false => Arc::clone(&held.snapshot),
            },
        };
        let mut order = replica.order(delta, base_version);
        order.is_change = is_change;
        self.replica = Some(replica);
        out.replica = true;
        out.replica_snapshot = is_change;
        let order = Arc::new(order);
        for node_id in self.running_nodes() {
            out.order(node_id, WorkerOrder::AccessReplica(Arc::clone(&order)));
        }
        Ok(Reply::ReplicaVersion(version))
    }

    /// What a node is sent at its hello; its line leaves out what it holds (REPL-04).
    pub(crate) fn send_replica(&self, out: &mut Out, node_id: &NodeId) {
        if let Some(order) = self.replica_order() {
            out.order(node_id, WorkerOrder::AccessReplica(order));
        }
    }
}

// === impl Replica ===

impl Replica {
    fn order(&self, delta: String, base_version: u64) -> ReplicaOrder {
        ReplicaOrder {
            version: self.head.version,
            snapshot: Arc::clone(&self.snapshot),
            delta,
            base_version,
            attestation: self.head.attestation.clone(),
            keys: self.head.keys.clone(),
            is_change: true,
        }
    }
}

/// A mark of key sets, by which it is seen that they are still the same.
pub fn key_mark(keys: &[Payload]) -> String {
    match keys.last() {
        Some(last) => hash::digest(last),
        None => String::new(),
    }
}

fn not_forward(stored: u64, text: String) -> Refusal {
    failed("replica_not_forward", text).with("stored_version", stored)
}
