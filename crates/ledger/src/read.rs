//! Reading the state: everything that answers a query or makes a snapshot. Changes nothing.

use std::sync::Arc;

use greenroom_types::bundle::{Bundle, BundleJobStatus, BundleStatus};
use greenroom_types::call::ClusterNode;
use greenroom_types::job::JobWithHistory;
use greenroom_types::node::{InstanceKey, NodeInfo, NodeState, RunningJob};
use greenroom_types::{BundleId, JobId, NodeId, StartId};

use crate::config::Config;
use crate::ledger::Ledger;
use crate::state::{Instance, JobRecord, Node, Slot};

/// A job and its live instances, as JobSearch streams them (JOB-28).
#[derive(Clone, Debug, PartialEq)]
pub struct CurrentJob {
    /// The job.
    pub job: Arc<JobWithHistory>,
    /// Its live instances.
    pub instances: Vec<RunningJob>,
}

// === impl Ledger ===

impl Ledger {
    /// Id of the current unbroken sequence of changes; empty before the first `Open` (EVT-16).
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Whether a store of this generation goes on from a state of an earlier one, as after a restore:
    /// clients may have been told what is not in it, so a new epoch begins (EVT-16).
    pub const fn is_of_another_generation(&self, generation: u64) -> bool {
        self.generation != 0 && self.generation != generation
    }

    /// Seq of the latest change.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// Settings in force.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// All jobs in the order of their ids.
    pub fn jobs(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.values()
    }

    /// A job.
    pub fn job(&self, job_id: &JobId) -> Option<&JobRecord> {
        self.jobs.get(job_id)
    }

    /// A job with its live instances.
    pub fn current_job(&self, job_id: &JobId) -> Option<CurrentJob> {
        let record = self.jobs.get(job_id)?;
        Some(CurrentJob {
            job: record.view.clone(),
            instances: record
                .instances
                .iter()
                .filter_map(|start_id| self.instances.get(start_id))
                .filter(|instance| instance.is_live())
                .map(Instance::running_job)
                .collect(),
        })
    }

    /// All instances that are not recorded stopped, in the order of their start ids.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// An instance that is not recorded stopped.
    pub fn instance(&self, start_id: &StartId) -> Option<&Instance> {
        self.instances.get(start_id)
    }

    /// The live instance of a key.
    pub fn live_instance(&self, key: &InstanceKey) -> Option<&Instance> {
        self.instances.get(self.live.get(key)?)
    }

    /// Instances on a node that are not recorded stopped, in the order of their start ids.
    pub fn instances_on(&self, node_id: &NodeId) -> impl Iterator<Item = &Instance> {
        self.on_node
            .get(node_id)
            .into_iter()
            .flatten()
            .filter_map(|start_id| self.instances.get(start_id))
    }

    /// All nodes in the order of their ids, stopped ones too.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A node.
    pub fn node(&self, node_id: &NodeId) -> Option<&Node> {
        self.nodes.get(node_id)
    }

    /// A node as ListNodes tells of it (API-12).
    pub fn node_info(&self, node_id: &NodeId) -> Option<NodeInfo> {
        let node = self.nodes.get(node_id)?;
        let reason = match (&node.stop, node.state) {
            (Some(stop), NodeState::Stopping | NodeState::Stopped) => match stop.detail.as_str() {
                "" => reason_name(stop.reason),
                detail => format!("{}: {detail}", reason_name(stop.reason)),
            },
            _ => Self::cordon_reason(node).unwrap_or_default(),
        };
        Some(NodeInfo {
            metadata: (*node.metadata).clone(),
            running: (*node.running).clone(),
            state: node.state,
            reason,
            instances: self.running_jobs_on(node_id),
            inventory: node.inventory.clone(),
            idle_expiry_ms: self.idle_expiry(node).map_or(0, |expiry| expiry.0),
            last_seen: node.last_seen,
            terminate_attempts: node.terminate_attempts,
            last_error: node.last_error.clone(),
            unrecorded: Self::unrecorded_on(node),
        })
    }

    /// Instances on a node as clients see them.
    pub fn running_jobs_on(&self, node_id: &NodeId) -> Vec<RunningJob> {
        self.instances_on(node_id)
            .map(Instance::running_job)
            .collect()
    }

    /// All bundles in the order of their ids.
    pub fn bundles(&self) -> impl Iterator<Item = BundleStatus> {
        self.bundles.keys().filter_map(|id| self.bundle(id))
    }

    /// A bundle as clients see it (BDL-21): its jobs by copy, then in the order of the
    /// specification.
    pub fn bundle(&self, bundle_id: &BundleId) -> Option<BundleStatus> {
        let record = self.bundles.get(bundle_id)?;
        let bundle = &record.bundle;
        let mut jobs = Vec::with_capacity(record.jobs.len());
        for replica_index in 0..bundle.copies() {
            for job in &bundle.jobs {
                let job_id = bundle.job_id(replica_index, &job.job_name);
                let Some(known) = self.jobs.get(&job_id) else {
                    continue;
                };
                jobs.push(BundleJobStatus {
                    job_id,
                    replica_index,
                    job_name: job.job_name.clone(),
                    dormant: known.view.job.is_dormant(),
                    terminal_state: known.view.terminal_state.clone(),
                });
            }
        }
        Some(BundleStatus {
            bundle: (**bundle).clone(),
            jobs,
            lease_expires_at: self
                .bundle_lease(bundle_id)
                .filter(|_| self.lease_pause.is_none())
                .map(|lease| lease.renewed_at + lease.ttl_ms),
        })
    }

    /// Ids of all bundles, in order.
    pub fn bundle_ids(&self) -> impl Iterator<Item = &BundleId> {
        self.bundles.keys()
    }

    /// A bundle as stored.
    pub fn bundle_record(&self, bundle_id: &BundleId) -> Option<&Arc<Bundle>> {
        self.bundles.get(bundle_id).map(|record| &record.bundle)
    }

    /// Every slot that is not being removed, with its token in clear: masking it is the caller's
    /// matter (LOCAL-04).
    pub fn slots(&self) -> impl Iterator<Item = ClusterNode> {
        self.slots
            .values()
            .filter(|slot| !slot.leaving)
            .map(|slot| ClusterNode {
                node_id: slot.node_id.clone(),
                node_name: slot.node_name.clone(),
                pool: slot.pool.clone(),
                token: slot.token.clone(),
                token_used: slot.token_used,
                active: self.nodes.get(&slot.node_id).is_some_and(Node::is_wanted),
                address: slot.address.clone(),
                registered_at: slot.registered_at,
                activated_at: slot.activated_at,
            })
    }

    /// A slot with its binding and key.
    pub fn slot(&self, node_id: &NodeId) -> Option<&Slot> {
        self.slots.get(node_id)
    }

    /// True for a start id that was deleted while it could not be reached (BDL-19).
    pub fn is_buried(&self, start_id: &StartId) -> bool {
        self.tombstones.contains_key(start_id)
    }
}

/// The published name of a reason, as the wire spells it.
pub(crate) fn reason_name(reason: greenroom_types::node::NodeStoppingReason) -> String {
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

// === impl Instance ===

impl Instance {
    /// As clients see it.
    pub fn running_job(&self) -> RunningJob {
        RunningJob {
            key: self.key.clone(),
            node_id: self.node_id.clone(),
            start_id: self.start_id.clone(),
            state: self.state,
        }
    }
}
