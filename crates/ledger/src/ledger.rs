//! The state machine itself: its state, and the one place where commands enter it.
//!
//! Every handler looks first and changes after, so that a refused call has changed nothing.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::node::InstanceKey;
use greenroom_types::overrides::Overrides;
use greenroom_types::stream::LeasePause;
use greenroom_types::{BundleId, JobId, NodeId, StartId, Wall};
use serde_json::json;

use crate::audit::AuditLog;
use crate::change::{Applied, Row};
use crate::command::{Command, Due, Open};
use crate::config::Config;
use crate::discovery::Discovery;
use crate::kv::KvSpace;
use crate::lease::{BundleLease, Lease};
use crate::out::Out;
use crate::replica::Replica;
use crate::rows::LoadError;
use crate::shared_map::SharedMap;
use crate::state::{BundleRecord, Instance, JobRecord, Node, Recorded, Slot, Tombstone};

/// The Manager's replicated state. What snapshots tell of is in maps that can be had as they stand
/// ([`Ledger::standing`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    pub(crate) config: Config,
    pub(crate) epoch: String,
    pub(crate) seq: u64,
    pub(crate) jobs: SharedMap<JobId, JobRecord>,
    pub(crate) instances: SharedMap<StartId, Instance>,
    pub(crate) nodes: SharedMap<NodeId, Node>,
    pub(crate) slots: BTreeMap<NodeId, Slot>,
    pub(crate) bundles: SharedMap<BundleId, BundleRecord>,
    pub(crate) tombstones: BTreeMap<StartId, Tombstone>,
    pub(crate) requests: BTreeMap<String, Recorded>,
    pub(crate) next_request: u64,
    pub(crate) kv: BTreeMap<String, KvSpace>,
    pub(crate) audit: AuditLog,
    pub(crate) discovery: Option<Discovery>,
    pub(crate) replica: Option<Replica>,
    pub(crate) overrides: Overrides,
    /// Generation of the store that it was last opened from.
    pub(crate) generation: u64,
    /// Fencing number of the latest grant (LEASE-02).
    pub(crate) fence: u64,
    pub(crate) leases: SharedMap<InstanceKey, Lease>,
    pub(crate) bundle_leases: SharedMap<BundleId, BundleLease>,
    pub(crate) lease_pause: Option<LeasePause>,
    /// It was restored a short while ago (STORE-11).
    pub(crate) restoring: bool,
    // Indexes, derived from the above.
    pub(crate) live: BTreeMap<InstanceKey, StartId>,
    pub(crate) on_node: SharedMap<NodeId, BTreeSet<StartId>>,
    pub(crate) stray_keys: BTreeMap<InstanceKey, BTreeSet<(NodeId, StartId)>>,
    pub(crate) slot_names: BTreeMap<String, NodeId>,
    pub(crate) tokens: BTreeMap<String, NodeId>,
    pub(crate) request_order: BTreeMap<u64, String>,
    pub(crate) tombstone_order: BTreeSet<(Wall, StartId)>,
}

// === impl Ledger ===

impl Ledger {
    /// An empty state with these settings.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Rebuilds the state from the rows that earlier applies gave back. No rows: an empty state.
    pub fn load(rows: impl IntoIterator<Item = Row>) -> Result<Self, LoadError> {
        crate::rows::load(rows)
    }

    /// Applies one command. The same commands with the same instants give the same answers,
    /// changes, orders and rows everywhere.
    pub fn apply(&mut self, at: Wall, command: Command) -> Applied {
        let mut out = Out::new(at);
        let outcome = match command {
            Command::Open(open) => self.apply_open(&mut out, open),
            Command::Call(called) => self.apply_called(&mut out, *called),
            Command::Register(register) => self.apply_register(&mut out, register),
            Command::Link { node_id, link } => self.apply_link(&mut out, &node_id, link),
            Command::Report {
                node_id,
                report_id,
                report,
            } => self.apply_report(&mut out, &node_id, report_id, *report),
            Command::Provider { node_id, finding } => {
                self.apply_finding(&mut out, &node_id, finding)
            }
            Command::Tick(due) => self.apply_due(&mut out, due),
            Command::Overrides(overrides) => self.apply_overrides(&mut out, &overrides),
            Command::Note { kind, payload } => {
                self.note(&mut out, &kind, &payload);
                Ok(Reply::Done)
            }
        };
        self.finish(out, outcome)
    }

    fn apply_open(&mut self, out: &mut Out, open: Open) -> CallResult {
        let renew = open.renew || self.is_of_another_generation(open.generation);
        if renew {
            self.note(out, "store_restored", &json!({"formerEpoch": self.epoch}));
            self.begin_restoring(out);
        }
        if self.epoch.is_empty() || renew {
            self.epoch = open.epoch;
            self.seq = 0;
        }
        self.generation = open.generation;
        // A forced generation goes on from a state that others may have been ahead of, so that their
        // numbers must not come again (LEASE-02).
        self.fence = self.fence.max(open.generation << 32);
        if let Some(config) = open.config {
            self.config = *config;
        }
        // Also without new settings: those given at the making of this state are in no row yet.
        out.config = true;
        out.meta = true;
        Ok(Reply::Done)
    }

    fn apply_overrides(&mut self, out: &mut Out, overrides: &Overrides) -> CallResult {
        let reply = self.put_overrides(out, overrides)?;
        if let Reply::Reloaded(changes) = &reply
            && !changes.is_empty()
        {
            self.note(out, "reload_external_config", &json!({"changes": changes}));
        }
        Ok(reply)
    }

    fn apply_due(&mut self, out: &mut Out, due: Due) -> CallResult {
        match due {
            Due::ProvisionUnanswered(start_id) => self.provision_unanswered(out, &start_id),
            Due::UnreachableOver(start_id) => self.unreachable_over(out, &start_id),
            Due::BundleStop { bundle_id, stop_at } => {
                self.stop_time_reached(out, &bundle_id, stop_at)
            }
            Due::ForgetNode(node_id) => self.forget_node(out, &node_id),
            Due::Idle { node_id, mark } => self.idle_over(out, &node_id, mark),
            Due::LeaseLost {
                key,
                start_id,
                mark,
            } => self.lease_lost(out, &key, &start_id, mark),
            Due::LeaseOver {
                key,
                start_id,
                mark,
            } => self.lease_over(out, &key, &start_id, mark),
            Due::BundleLeaseOver { bundle_id, mark } => {
                self.bundle_lease_over(out, &bundle_id, mark)
            }
            Due::StrayOver { node_id, start_id } => self.stray_over(out, &node_id, &start_id),
            Due::RestoreOver => self.restore_over(out),
        }
    }
}
