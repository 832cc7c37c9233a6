//! Slots for owned servers: registering one, a worker that calls in, removing one (LOCAL).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::call::{CallResult, Detail, Refusal, Reply, Status};
use greenroom_types::job::StopReason;
use greenroom_types::node::{
    InstanceState, NodeMetadata, NodeState, NodeStoppingReason, ProviderMetadata, StartPhase,
};
use greenroom_types::{JobId, NodeId, PoolName, Tags};
use serde_json::json;

use crate::command::{Fresh, Register, Registered};
use crate::ledger::Ledger;
use crate::node::{NodeFate, new_node};
use crate::order::Order;
use crate::out::Out;
use crate::refuse::{exists, failed, invalid, not_found, required};
use crate::state::{Node, NodeStop, Slot};

/// Tag that names a node's pool.
const POOL: &str = "pool";

// === impl Ledger ===

impl Ledger {
    pub(crate) fn register_slot(
        &mut self,
        out: &mut Out,
        node_name: String,
        pool: PoolName,
        fresh: &Fresh,
    ) -> CallResult {
        required("node_name", &node_name)?;
        let formed = node_name.len() <= 63
            && node_name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
        if !formed {
            return Err(invalid(
                "bad_node_name",
                format!(
                    "node name {:?} must be 1 to 63 of A-Z a-z 0-9 . -",
                    crate::refuse::cut(&node_name, 200)
                ),
            )
            .with("path", "node_name"));
        }
        if let Some(node_id) = self.slot_names.get(&node_name) {
            return Err(exists(
                "slot_exists",
                format!("node name {node_name:?} is registered already"),
            )
            .with("node", node_id.as_str()));
        }
        check_pool(&pool)?;
        let unusable = fresh.token.is_empty() || self.tokens.contains_key(&fresh.token);
        let node_id = self.free_slot_id(&node_name, fresh);
        let (false, Some(node_id)) = (unusable, node_id) else {
            return Err(Refusal::new(
                Status::Internal,
                "no_fresh_id",
                "the proposer gave no fresh token and id",
            ));
        };
        let slot = Slot {
            node_id: node_id.clone(),
            node_name: node_name.clone(),
            pool,
            token: fresh.token.clone(),
            token_used: false,
            machine_id: String::new(),
            public_key: String::new(),
            key: String::new(),
            address: String::new(),
            hardware: None,
            registered_at: out.at,
            activated_at: None,
            leaving: false,
            edits: Default::default(),
            tags_revision: 0,
        };
        self.slot_names.insert(node_name, node_id.clone());
        self.tokens.insert(slot.token.clone(), node_id.clone());
        self.slots.insert(node_id.clone(), slot);
        out.slots.insert(node_id.clone());
        Ok(Reply::Slot {
            node_id,
            token: fresh.token.clone(),
        })
    }

    /// LOCAL-02: the name, unless that id is in use; then the name and 4 hex digits.
    fn free_slot_id(&self, node_name: &str, fresh: &Fresh) -> Option<NodeId> {
        let taken = |id: &str| self.nodes.contains_key(id) || self.slots.contains_key(id);
        if !taken(node_name) {
            return Some(NodeId::new(node_name));
        }
        let digits: Vec<char> = fresh.id.chars().filter(char::is_ascii_hexdigit).collect();
        digits
            .chunks_exact(4)
            .map(|four| format!("{node_name}-{}", four.iter().collect::<String>()))
            .find(|id| !taken(id))
            .map(NodeId::new)
    }

    /// A worker presents a token (LOCAL-05 to LOCAL-09).
    pub(crate) fn apply_register(&mut self, out: &mut Out, register: Register) -> CallResult {
        required("token", &register.token)?;
        required("listen_address", &register.address)?;
        required("machine_id", &register.machine_id)?;
        // One answer for unknown, used elsewhere and void: there is nothing to probe (DECM-19).
        let refused = || {
            Refusal::new(
                Status::Unauthenticated,
                "bad_token",
                "the token opens no slot for this machine",
            )
        };
        let node_id = self.tokens.get(&register.token).cloned();
        if node_id.is_none() && self.restoring {
            // Its slot may be what the backup lacks: its worker goes on with its jobs (STORE-11).
            return Err(Refusal::new(
                Status::Unavailable,
                "slot_unrecorded",
                "this Manager's record was restored a short while ago and does not know the token: if \
                 its slot was registered since the backup, register it anew",
            ));
        }
        let node_id = node_id.ok_or_else(refused)?;
        let slot = self.slots.get_mut(&node_id).ok_or_else(refused)?;
        let bound =
            slot.machine_id == register.machine_id && slot.public_key == register.public_key;
        if slot.leaving || (slot.token_used && !bound) {
            return Err(refused());
        }
        let first_use = !slot.token_used;
        if first_use {
            slot.token_used = true;
            slot.machine_id.clone_from(&register.machine_id);
            slot.public_key = register.public_key;
            slot.key = register.key;
            slot.activated_at = Some(out.at);
        }
        slot.address.clone_from(&register.address);
        if let Some(hardware) = register.hardware {
            slot.hardware = Some(Arc::new(hardware.sanitised().0));
        }
        out.slots.insert(node_id.clone());
        out.registered = Some(Registered {
            node_id: node_id.clone(),
            key: slot.key.clone(),
            first_use,
        });
        if first_use {
            let payload = json!({"node": node_id, "machine": register.machine_id});
            self.note(out, "cluster_member_register", &payload);
        }
        self.activate_slot(out, &node_id);
        Ok(Reply::Done)
    }

    /// Holds the slot's node as starting, unless it is in use, and has it dialled.
    fn activate_slot(&mut self, out: &mut Out, node_id: &NodeId) {
        let ending = self
            .nodes
            .get(node_id)
            .is_some_and(|node| node.state == NodeState::Stopping && !node.given_up);
        if ending {
            // The worker that was told to end has gone and is here anew.
            self.node_stopped(out, node_id);
        }
        let Some(slot) = self.slots.get(node_id) else {
            return;
        };
        let address = slot.address.clone();
        let known = self.nodes.get(node_id);
        let stopped = known.is_none_or(|node| node.state == NodeState::Stopped);
        if stopped {
            let node = slot_node(slot, known, out.at);
            self.insert_node(out, node_id.clone(), node, StartPhase::Booting);
        }
        if let Some(node) = self.nodes.get_mut(node_id)
            && node.address != address
        {
            node.address.clone_from(&address);
            node.turn += u64::from(node.state == NodeState::Starting);
            out.nodes.insert(node_id.clone());
        }
        out.orders.push(Order::Dial {
            node_id: node_id.clone(),
            address,
        });
    }

    pub(crate) fn deregister_slot(&mut self, out: &mut Out, node_id: &NodeId) -> CallResult {
        required("node_id", node_id.as_str())?;
        let slot = self
            .slots
            .get_mut(node_id)
            .filter(|slot| !slot.leaving)
            .ok_or_else(|| not_found("unknown_slot", format!("there is no slot {node_id:?}")))?;
        slot.leaving = true;
        out.slots.insert(node_id.clone());
        let stopped: BTreeSet<_> = self
            .instances_on(node_id)
            .filter(|instance| instance.is_live())
            .map(|instance| instance.key.job_id.clone())
            .collect();
        if self.nodes.get(node_id).is_some_and(Node::is_wanted) {
            self.end_by_request(out, node_id, "", false);
        }
        self.finish_leaving(out, node_id);
        Ok(Reply::StoppedJobs(stopped.into_iter().collect()))
    }

    /// LOCAL-14, LOCAL-15: an active slot leaves and comes again with its new tag. Its worker and its
    /// containers notice no more than a dropped stream; its instances are taken back by the hello.
    pub(crate) fn set_slot_pool(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        pool: PoolName,
    ) -> CallResult {
        check_pool(&pool)?;
        let running: BTreeSet<JobId> = self
            .instances_on(node_id)
            .filter(|instance| instance.is_live())
            .map(|instance| instance.key.job_id.clone())
            .collect();
        let reply = Reply::RunningJobs(running.into_iter().collect());
        if self.known_slot(node_id)?.pool == pool {
            return Ok(reply);
        }
        let active = self.nodes.get(node_id).is_some_and(Node::is_wanted);
        if active {
            self.check_undisturbed(node_id)?;
        }
        if let Some(slot) = self.slots.get_mut(node_id) {
            slot.pool = pool.clone();
            // The call says what the pool is, whatever was edited before.
            slot.edits.remove(POOL);
            out.slots.insert(node_id.clone());
        }
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.edits.remove(POOL);
            match pool.as_str() {
                "" => node.base_tags.remove(POOL),
                pool => node.base_tags.insert(POOL.to_owned(), pool.to_owned()),
            };
            out.nodes.insert(node_id.clone());
            if !active {
                // Told when it comes back.
                node.compose_tags();
            }
        }
        if active {
            let stop = NodeStop {
                reason: NodeStoppingReason::UserRequested,
                detail: "pool_changed".to_owned(),
                code: String::new(),
            };
            self.begin_node_stop(out, node_id, stop, StopReason::NodeStopped, NodeFate::Lost);
            self.node_stopped(out, node_id);
            self.activate_slot(out, node_id);
        }
        Ok(reply)
    }

    /// What would be hurt by a node that leaves for a moment (LOCAL-15).
    fn check_undisturbed(&self, node_id: &NodeId) -> Result<(), Refusal> {
        let protected = |job_id: &JobId| {
            let record = self.jobs.get(job_id);
            record.is_some_and(|record| record.view.job.lease.is_some())
        };
        let busy: BTreeSet<&str> = self
            .instances_on(node_id)
            .filter(|it| it.state != InstanceState::Running || protected(&it.key.job_id))
            .map(|it| it.key.job_id.as_str())
            .collect();
        if busy.is_empty() {
            return Ok(());
        }
        let list = busy.iter().map(|job_id| Detail::from(*job_id)).collect();
        let mut refusal = failed(
            "node_busy",
            format!(
                "node {node_id:?} holds what a change of its pool would hurt: {}",
                busy.into_iter().collect::<Vec<_>>().join(", ")
            ),
        );
        refusal
            .details
            .insert("jobs".to_owned(), Detail::List(list));
        Err(refusal)
    }

    /// LOCAL-18. The machine that has the slot now keeps its stream; at its next hello it has no
    /// credential any more.
    pub(crate) fn rotate_token(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        fresh: &Fresh,
    ) -> CallResult {
        self.known_slot(node_id)?;
        if fresh.token.is_empty() || self.tokens.contains_key(&fresh.token) {
            return Err(Refusal::new(
                Status::Internal,
                "no_fresh_id",
                "the proposer gave no fresh token",
            ));
        }
        if let Some(slot) = self.slots.get_mut(node_id) {
            self.tokens.remove(&slot.token);
            slot.token.clone_from(&fresh.token);
            slot.token_used = false;
            slot.machine_id.clear();
            slot.public_key.clear();
            slot.key.clear();
            self.tokens.insert(fresh.token.clone(), node_id.clone());
            out.slots.insert(node_id.clone());
        }
        Ok(Reply::Token(fresh.token.clone()))
    }

    /// A slot that is not being removed.
    fn known_slot(&self, node_id: &NodeId) -> Result<&Slot, Refusal> {
        required("node_id", node_id.as_str())?;
        self.slots
            .get(node_id)
            .filter(|slot| !slot.leaving)
            .ok_or_else(|| not_found("unknown_slot", format!("there is no slot {node_id:?}")))
    }

    /// A slot that is being removed goes with the last instance that its worker still ends.
    pub(crate) fn finish_leaving(&mut self, out: &mut Out, node_id: &NodeId) {
        if !self.slots.get(node_id).is_some_and(|slot| slot.leaving) {
            return;
        }
        match self.nodes.get(node_id).map(|node| node.state) {
            None | Some(NodeState::Stopped) => self.slot_left(out, node_id),
            Some(NodeState::Stopping) if !self.on_node.contains_key(node_id) => {
                self.node_stopped(out, node_id);
            }
            Some(_) => {}
        }
    }

    /// Slot and token vanish once the node of a slot that is being removed is stopped.
    pub(crate) fn slot_left(&mut self, out: &mut Out, node_id: &NodeId) {
        if !self.slots.get(node_id).is_some_and(|slot| slot.leaving) {
            return;
        }
        if let Some(slot) = self.slots.remove(node_id) {
            self.slot_names.remove(&slot.node_name);
            self.tokens.remove(&slot.token);
            out.slots.insert(node_id.clone());
        }
    }
}

fn check_pool(pool: &PoolName) -> Result<(), Refusal> {
    if pool.is_empty() || pool.as_str().parse::<PoolName>().is_ok() {
        return Ok(());
    }
    let text = "pool must be at most 128 bytes of plain text";
    Err(invalid("bad_pool", text).with("path", "pool"))
}

/// The node of a slot whose worker calls in; tags that were edited stay edited (TAG-02).
fn slot_node(slot: &Slot, known: Option<&Node>, at: greenroom_types::Wall) -> Node {
    let mut tags = Tags::new();
    if !slot.pool.is_empty() {
        tags.insert(POOL.to_owned(), slot.pool.to_string());
    }
    let provider = ProviderMetadata::Local {
        node_name: slot.node_name.clone(),
        machine_id: slot.machine_id.clone(),
        architecture: slot
            .hardware
            .as_ref()
            .map(|hardware| hardware.architecture)
            .unwrap_or_default(),
    };
    let mut node = new_node(slot.node_id.clone(), tags, provider, at);
    match known {
        Some(old) => {
            node.edits = old.edits.clone();
            node.tags_revision = old.tags_revision;
            node.report_acked = old.report_acked;
            node.turn = old.turn + 1;
            node.running = old.running.clone();
        }
        None => {
            node.edits = slot.edits.clone();
            node.tags_revision = slot.tags_revision;
        }
    }
    let metadata = NodeMetadata::clone(&node.metadata);
    node.metadata = Arc::new(metadata);
    node
}
