//! What workers have and the record does not know: told to stop (MNODE-13, MNODE-16), or kept for a
//! while after a restore, when it is the record that may be behind (STORE-11).
//!
//! A stray is known from the moment its worker names it until the worker says that it is gone, or says
//! hello without it. One that is kept holds its key: nobody starts a second one beside it, and what it
//! holds a lease for is guarded as if it had been granted here.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::call::{CallResult, InstanceRef, Refusal, Reply};
use greenroom_types::job::{HistoryKind, JobState, PortMappings, StopReason};
use greenroom_types::node::{InstanceKey, InstanceState, NodeStoppingReason};
use greenroom_types::{Millis, NodeId, StartId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::change::Subject;
use crate::hash::start_marks;
use crate::job::{GRACE, check_startable};
use crate::lease::{Lease, LeaseState};
use crate::ledger::Ledger;
use crate::node::plain;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::{self, failed, not_found, required, unknown_job, unknown_node};
use crate::report::HelloInstance;
use crate::state::{Instance, Node};

/// So many are remembered of one node; further ones are told to stop and no more. A worker that is
/// sound has none.
const REMEMBERED: usize = 4_096;

/// An instance that a worker has and that is not expected on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stray {
    /// Job and role.
    pub key: InstanceKey,
    /// Where it stands, as its worker said.
    pub state: InstanceState,
    /// Its ports, likewise.
    pub ports: PortMappings,
    /// Its fencing number, 0 without lease.
    pub fence: u64,
    /// It is not told to stop: the record was restored and may be behind (STORE-11).
    pub kept: bool,
    /// It was told to stop for too long while its key runs elsewhere (MNODE-16).
    pub overdue: bool,
}

// === impl Ledger: looking ===

impl Ledger {
    /// Whether this state was restored a short while ago, so that what nobody knows is kept (STORE-11).
    pub const fn is_restoring(&self) -> bool {
        self.restoring
    }

    /// Whether somebody else holds the key of what a worker was told to stop (MNODE-16).
    pub(crate) fn is_duplicate(&self, node_id: &NodeId, start_id: &StartId) -> bool {
        self.stray(node_id, start_id)
            .filter(|stray| !stray.kept && !stray.overdue)
            .is_some_and(|stray| self.runs_otherwise(&stray.key, node_id, start_id))
    }

    /// The kept stray of a node, as a worker refreshes its lease (STORE-11).
    pub(crate) fn is_kept(&self, node_id: &NodeId, start_id: &StartId) -> bool {
        self.stray(node_id, start_id)
            .is_some_and(|stray| stray.kept)
    }

    fn stray(&self, node_id: &NodeId, start_id: &StartId) -> Option<&Stray> {
        self.nodes.get(node_id)?.strays.get(start_id)
    }

    fn runs_otherwise(&self, key: &InstanceKey, node_id: &NodeId, start_id: &StartId) -> bool {
        self.live_instance(key)
            .is_some_and(|live| live.start_id != *start_id || live.node_id != *node_id)
    }

    /// STORE-11: what a restored record does not know may run, and then nobody else does.
    pub(crate) fn check_none_unrecorded(&self, key: &InstanceKey) -> Result<(), Refusal> {
        let Some(found) = self.stray_keys.get(key) else {
            return Ok(());
        };
        let kept = found.iter().find(|(node, start)| self.is_kept(node, start));
        let Some((node_id, start_id)) = kept else {
            return Ok(());
        };
        Err(failed(
            "unrecorded_instance",
            format!(
                "{key} runs on node {node_id:?}, and the restored record does not know it: adopt it \
                 with AdoptInstance, or wait until it is told to stop"
            ),
        )
        .with("node", node_id.as_str())
        .with("start_id", start_id.as_str()))
    }

    /// Keys of what is kept on a node (STORE-11).
    pub(crate) fn unrecorded_on(node: &Node) -> Vec<InstanceKey> {
        let kept = node.strays.values().filter(|stray| stray.kept);
        kept.map(|stray| stray.key.clone()).collect()
    }

    /// Why a node is cordoned by the Manager; none where it is not (MNODE-16).
    pub(crate) fn cordon_reason(node: &Node) -> Option<String> {
        let (start_id, stray) = node.strays.iter().find(|(_, stray)| stray.overdue)?;
        Some(format!(
            "cordoned: it goes on running {} (start {start_id}), which it was told to stop and which \
             runs elsewhere",
            stray.key
        ))
    }
}

// === impl Ledger: what workers say ===

impl Ledger {
    /// A worker has something that is not expected on its node: it is kept, or told to stop.
    pub(crate) fn take_stray(&mut self, out: &mut Out, node_id: &NodeId, item: HelloInstance) {
        let start_id = item.instance.start_id.clone();
        let kept = self.restoring
            && !self.instances.contains_key(&start_id)
            && !self.tombstones.contains_key(&start_id)
            && self.may_hold_on(out, node_id, &item);
        let InstanceRef { key, start_id } = &item.instance;
        if self.remember_stray(out, node_id, &item, kept)
            && self.runs_otherwise(key, node_id, start_id)
        {
            // That one key runs twice is for people to know of (MNODE-16).
            self.note_duplicate(out, key, node_id, start_id);
        }
        if !kept {
            stop_stray(out, node_id, item.instance, item.fence);
        }
    }

    /// A leased one is kept only with its lease: where another start holds that, there may be two who
    /// write to one output. It is taken into the record as it was granted before the restore.
    fn may_hold_on(&mut self, out: &mut Out, node_id: &NodeId, item: &HelloInstance) -> bool {
        let InstanceRef { key, start_id } = &item.instance;
        let policy = self.jobs.get(&key.job_id).and_then(|it| it.view.job.lease);
        let Some(policy) = policy.filter(|_| item.fence > 0) else {
            return true;
        };
        if let Some(lease) = self.leases.get(key)
            && lease.start_id == *start_id
        {
            return lease.state == LeaseState::Held;
        }
        let taken = self.live_instance(key).is_some()
            || self
                .check_lease_free(&key.job_id, &key.role, false)
                .is_err();
        if taken {
            return false;
        }
        self.drop_over_leases(out, key);
        if item.fence > self.fence {
            self.fence = item.fence;
            out.meta = true;
        }
        self.put_lease(
            out,
            Lease {
                key: key.clone(),
                start_id: start_id.clone(),
                node_id: node_id.clone(),
                fence: item.fence,
                ttl_ms: policy.ttl_ms,
                grace_ms: policy.grace_ms,
                state: LeaseState::Held,
                mark: 0,
            },
        );
        true
    }

    /// A lost instance that came back and is not wanted any more: a duplicate where its key runs
    /// elsewhere by now.
    pub(crate) fn note_returned(&mut self, out: &mut Out, node_id: &NodeId, item: HelloInstance) {
        let InstanceRef { key, start_id } = &item.instance;
        if self.runs_otherwise(key, node_id, start_id)
            && self.remember_stray(out, node_id, &item, false)
        {
            self.note_duplicate(out, key, node_id, start_id);
        }
    }

    /// Writes a stray down; true when it was not known before.
    pub(crate) fn remember_stray(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        item: &HelloInstance,
        kept: bool,
    ) -> bool {
        let InstanceRef { key, start_id } = &item.instance;
        let Some(node) = self.nodes.get_mut(node_id) else {
            return false;
        };
        let known = node.strays.get(start_id);
        if known.is_none() && node.strays.len() >= REMEMBERED {
            return false;
        }
        let stray = Stray {
            key: key.clone(),
            state: item.state,
            ports: item.ports.clone(),
            fence: item.fence,
            kept,
            overdue: known.is_some_and(|known| known.overdue),
        };
        let is_new = known.is_none();
        if known != Some(&stray) {
            node.strays.insert(start_id.clone(), stray);
            self.index_stray(node_id, key, start_id);
            out.nodes.insert(node_id.clone());
        }
        is_new
    }

    /// Enters a stray into the index by key.
    pub(crate) fn index_stray(&mut self, node_id: &NodeId, key: &InstanceKey, start_id: &StartId) {
        let found = self.stray_keys.entry(key.clone()).or_default();
        found.insert((node_id.clone(), start_id.clone()));
    }

    /// A stray is gone, or has become an instance.
    pub(crate) fn forget_stray(&mut self, out: &mut Out, node_id: &NodeId, start_id: &StartId) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        let Some(stray) = node.strays.remove(start_id) else {
            return;
        };
        out.nodes.insert(node_id.clone());
        if let Some(found) = self.stray_keys.get_mut(&stray.key) {
            found.remove(&(node_id.clone(), start_id.clone()));
            if found.is_empty() {
                self.stray_keys.remove(&stray.key);
            }
        }
    }

    /// Nobody can tell any more what strays there are on a node.
    pub(crate) fn forget_strays(&mut self, out: &mut Out, node_id: &NodeId) {
        for instance in self.strays_but(node_id, &BTreeSet::new()) {
            self.forget_stray(out, node_id, &instance.start_id);
        }
    }

    /// A hello named all that its worker has: other strays of the node are gone.
    pub(crate) fn forget_strays_but(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        named: &BTreeSet<StartId>,
    ) {
        for instance in self.strays_but(node_id, named) {
            self.stray_gone(out, node_id, &instance);
        }
    }

    /// A worker says that a start of which there is no record is gone.
    pub(crate) fn stray_gone(&mut self, out: &mut Out, node_id: &NodeId, instance: &InstanceRef) {
        self.release_unrecorded(out, node_id, instance);
        self.forget_stray(out, node_id, &instance.start_id);
    }

    /// News of what is not expected on its node: what is kept stands where it says, anything else is told to stop (JOB-20).
    pub(crate) fn hear_stray(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        instance: InstanceRef,
        state: InstanceState,
        ports: PortMappings,
    ) {
        let known = self.stray(node_id, &instance.start_id);
        let fence = known.map_or(0, |stray| stray.fence);
        if known.is_some_and(|stray| stray.kept && stray.key == instance.key) {
            let item = HelloInstance {
                instance,
                state,
                ports,
                fence,
            };
            self.remember_stray(out, node_id, &item, true);
            return;
        }
        stop_stray(out, node_id, instance, fence);
    }

    fn strays_but(&self, node_id: &NodeId, named: &BTreeSet<StartId>) -> Vec<InstanceRef> {
        let strays = self.nodes.get(node_id).map(|node| &node.strays);
        strays
            .into_iter()
            .flatten()
            .filter(|(start_id, _)| !named.contains(*start_id))
            .map(|(start_id, stray)| InstanceRef {
                key: stray.key.clone(),
                start_id: start_id.clone(),
            })
            .collect()
    }
}

// === impl Ledger: duplicates ===

impl Ledger {
    /// Tells of a key that two nodes run.
    pub(crate) fn note_duplicate(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        node_id: &NodeId,
        start_id: &StartId,
    ) {
        let Some(holder) = self.live_instance(key) else {
            return;
        };
        let payload = json!({
            "job": key.job_id, "role": key.role,
            "node": holder.node_id, "start": holder.start_id,
            "duplicateOn": node_id, "duplicateStart": start_id,
        });
        self.note(out, "duplicate_instance", &payload);
    }

    /// A node went on running what it was told to stop while its key runs elsewhere (MNODE-16).
    pub(crate) fn stray_over(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        start_id: &StartId,
    ) -> CallResult {
        let heard = self.nodes.get(node_id).is_some_and(Node::is_running);
        if !heard || !self.is_duplicate(node_id, start_id) {
            return Ok(Reply::Done);
        }
        let Some(node) = self.nodes.get_mut(node_id) else {
            return Ok(Reply::Done);
        };
        let elastic = node.is_elastic();
        let Some(stray) = node.strays.get_mut(start_id) else {
            return Ok(Reply::Done);
        };
        stray.overdue = true;
        let detail = format!("{} was told to stop and runs on", stray.key);
        out.nodes.insert(node_id.clone());
        if elastic {
            let mut stop = plain(NodeStoppingReason::DuplicateJob);
            stop.detail = detail;
            self.end_wanted(out, node_id, stop, true);
        } else {
            let payload = json!({"node": node_id, "reason": detail});
            self.note(out, "node_cordoned", &payload);
            let picture = self.nodes.get(node_id).and_then(|it| it.inventory.clone());
            if let Some(picture) = picture {
                self.take_inventory(out, node_id, (*picture).clone());
            }
        }
        Ok(Reply::Done)
    }
}

// === impl Ledger: after a restore ===

impl Ledger {
    /// From now on what nobody knows is kept for a while.
    pub(crate) fn begin_restoring(&mut self, out: &mut Out) {
        self.restoring = true;
        out.meta = true;
        out.look_at(Subject::Restore);
    }

    /// Whatever nobody adopted is told to stop, as any other stray (MNODE-13).
    pub(crate) fn restore_over(&mut self, out: &mut Out) -> CallResult {
        if !self.restoring {
            return Ok(Reply::Done);
        }
        self.restoring = false;
        out.meta = true;
        out.look_at(Subject::Restore);
        let nodes: BTreeSet<NodeId> = self
            .stray_keys
            .values()
            .flatten()
            .map(|(node_id, _)| node_id.clone())
            .collect();
        for node_id in nodes {
            let Some(node) = self.nodes.get_mut(&node_id) else {
                continue;
            };
            let heard = node.is_running();
            let mut told = Vec::new();
            for (start_id, stray) in &mut node.strays {
                if std::mem::take(&mut stray.kept) {
                    let (key, start_id) = (stray.key.clone(), start_id.clone());
                    told.push((InstanceRef { key, start_id }, stray.fence));
                }
            }
            out.nodes.insert(node_id.clone());
            for (instance, fence) in told {
                let (key, start_id) = (instance.key.clone(), instance.start_id.clone());
                if heard {
                    stop_stray(out, &node_id, instance, fence);
                }
                if self.runs_otherwise(&key, &node_id, &start_id) {
                    self.note_duplicate(out, &key, &node_id, &start_id);
                }
            }
        }
        Ok(Reply::Done)
    }

    /// AdoptInstance: what a worker has becomes an instance of the record, as it is (STORE-11).
    pub(crate) fn adopt_instance(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        key: &InstanceKey,
        start_id: Option<&StartId>,
    ) -> CallResult {
        required("node_id", node_id.as_str())?;
        refuse::job_id(&key.job_id)?;
        refuse::role("job_key.role", &key.role)?;
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        let (start_id, stray) = find_kept(node, key, start_id)?;
        let record = self
            .jobs
            .get(&key.job_id)
            .ok_or_else(|| unknown_job(&key.job_id))?;
        check_startable(record)?;
        let node = self.wanted_node(node_id)?;
        self.check_key_free(key, node_id)?;
        let lease = record.view.job.lease;
        let holds = self
            .leases
            .get(key)
            .is_some_and(|held| held.start_id == start_id && held.state == LeaseState::Held);
        if !holds {
            self.check_lease_free(&key.job_id, &key.role, false)?;
        }
        if lease.is_some() && !holds {
            return Err(failed(
                "not_leased",
                format!(
                    "job {:?} is lease-protected, and its instance on node {node_id:?} holds no lease: \
                     stop it there, and start it anew",
                    key.job_id
                ),
            )
            .with("node", node_id.as_str())
            .with("start_id", start_id.as_str()));
        }
        // Named in an order that is sent again while nobody has taken it; this one runs.
        let media_image = self.media_image(record, node).unwrap_or_default();
        let launched = start_marks(&record.view.job);
        let at = self
            .place(node_id, &key.role)
            .ok_or_else(|| unknown_node(node_id))?;

        self.supersede_lost(out, key);
        self.forget_stray(out, node_id, &start_id);
        let state = match stray.state {
            InstanceState::Provisioned | InstanceState::Prepared => stray.state,
            _ => InstanceState::Running,
        };
        let instance = Instance {
            key: key.clone(),
            start_id: start_id.clone(),
            node_id: node_id.clone(),
            state,
            stop: None,
            ending: false,
            delivered: true,
            accepted: true,
            told_stopping: false,
            defer_start: state == InstanceState::Prepared,
            start_prepared: false,
            runtime_role: key.role.slot().to_owned(),
            gpu_index: None,
            migration_id: None,
            migration_state: None,
            media_image,
            known_hash: 0,
            launched,
            aborts: Vec::new(),
            signals: Default::default(),
            fence: stray.fence,
            at,
        };
        self.index_instance(&instance);
        self.instances.insert(start_id.clone(), instance);
        if let Some(record) = self.jobs.get_mut(&key.job_id) {
            record.instances.insert(start_id.clone());
            record.pre_when_stopped = false;
            Arc::make_mut(&mut record.view).state = JobState::Active;
        }
        let ports = stray.ports;
        self.append_at(out, &start_id, |at| match state {
            InstanceState::Provisioned => HistoryKind::Provisioned(at),
            InstanceState::Prepared => HistoryKind::Prepared(at),
            _ => HistoryKind::Running { at, ports },
        });
        self.refresh_pending_restart(&key.job_id);
        self.tell_update(out, &start_id);
        self.idle_anew(out, node_id);
        Ok(Reply::Done)
    }
}

// === helpers ===

/// The kept stray that is meant; a start id may be left out where there is one of that key.
fn find_kept(
    node: &Node,
    key: &InstanceKey,
    start_id: Option<&StartId>,
) -> Result<(StartId, Stray), Refusal> {
    let mut found = node.strays.iter().filter(|(id, stray)| {
        stray.kept && stray.key == *key && start_id.is_none_or(|wanted| wanted == *id)
    });
    let node_id = &node.metadata.node_id;
    match (found.next(), found.next()) {
        (Some((id, stray)), None) => Ok((id.clone(), stray.clone())),
        (None, _) => Err(not_found(
            "no_instance",
            format!("node {node_id:?} has no unrecorded instance of {key}: ListNodes shows those there are"),
        )
        .with("node", node_id.as_str())),
        (Some(_), Some(_)) => Err(refuse::invalid(
            "missing_field",
            format!("node {node_id:?} has several unrecorded instances of {key}: name the start id"),
        )
        .with("path", "start_id")),
    }
}

/// Ends what nobody expects: at once where it is leased, for somebody else may hold its lease
/// (LEASE-12).
pub(crate) fn stop_stray(out: &mut Out, node_id: &NodeId, instance: InstanceRef, fence: u64) {
    let (grace_ms, reason) = match fence {
        0 => (GRACE, StopReason::UnknownJob),
        _ => (Millis(0), StopReason::LeaseLost),
    };
    out.order(
        node_id,
        WorkerOrder::Stop {
            instance,
            grace_ms,
            reason,
        },
    );
}
