//! Nodes: the mirror of each, its life from request to sweep, and the policy's terminates (NODE).
//!
//! What placement must know of a node is kept in the fleet beside the record here; every change goes
//! through one method so that the two cannot part.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use greenroom_placement::{Listed, NodeCondition, NodeFacts};
use greenroom_types::call::{Call, Status};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::{
    NodeMetadata, NodeState, NodeStoppingReason, RunningNodeMetadata, StartPhase,
};
use greenroom_types::{Mono, NodeId, StartId, Tags, Wall};

use crate::calls::Purpose;
use crate::effect::{Callback, Effects, ErrorInfo, MirrorState, NodeView};
use crate::event::{ApiId, CallFailure};
use crate::policy::Policy;
use crate::provision::Asked;
use crate::settings::Settings;
use crate::timer::{Due, Timer};
use greenroom_types::Millis;

/// Shortest and longest time between two sweeps (NODE-16).
const SWEEP_MIN: Millis = Millis(10_000);
const SWEEP_MAX: Millis = Millis(300_000);

/// One node.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    /// Written by the stream, and by this policy for a node it asked for.
    pub(crate) metadata: Arc<NodeMetadata>,
    pub(crate) running: Option<Arc<RunningNodeMetadata>>,
    pub(crate) state: MirrorState,
    /// Time of the last event handled for it (NODE-01).
    pub(crate) last_activity: Wall,
    /// When it was seen to be stopped (NODE-16).
    pub(crate) stopped_at: Option<Mono>,
    /// Set on a node that this policy asked for, until it has started.
    pub(crate) asked: Option<Asked>,
    /// Place in the order in which inventories arrived first (CALLB-14).
    pub(crate) inventory_order: Option<u64>,
    /// Its first picture said that its disk is nearly full (HEALTH-12).
    pub(crate) came_low: bool,
    /// Since when its pictures say that it takes no start (SPARE-26).
    pub(crate) unfit_since: Option<Mono>,
    /// Instances that its picture lists and that were shown as over since it came (RESV-07).
    pub(crate) over: BTreeSet<StartId>,
    /// What is left there of jobs that the stream tells of no more, until a picture lists it (RESV-07).
    /// With the time at which the stream told of it last.
    pub(crate) orphans: Vec<(Mono, Listed)>,
    /// It came with the snapshot as running; its first NodeStarted may be of the same start
    /// (HYDR-15).
    pub(crate) hydrated: bool,
    /// A terminate was told for this id, once and for all (NODE-14).
    pub(crate) terminate_told: bool,
    /// When a terminate of it failed last (SPARE-27).
    pub(crate) terminate_failed_at: Option<Mono>,
    /// Rejections that still count against it, oldest first (HEALTH-03).
    pub(crate) rejections: VecDeque<Mono>,
    /// Tags to be written when it has started (SPARE-21).
    pub(crate) tags_due: Tags,
}

impl NodeRecord {
    pub(crate) const fn new(metadata: Arc<NodeMetadata>, state: MirrorState, at: Wall) -> Self {
        Self {
            metadata,
            running: None,
            state,
            last_activity: at,
            stopped_at: None,
            asked: None,
            inventory_order: None,
            came_low: false,
            unfit_since: None,
            over: BTreeSet::new(),
            orphans: Vec::new(),
            hydrated: false,
            terminate_told: false,
            terminate_failed_at: None,
            rejections: VecDeque::new(),
            tags_due: Tags::new(),
        }
    }

    /// Bought by a policy, this one or another (DEC-49).
    pub(crate) fn is_auto(&self) -> bool {
        self.metadata.tags.get("auto-manager").map(String::as_str) == Some("true")
    }

    /// Value of a tag.
    pub(crate) fn tag(&self, key: &str) -> Option<&str> {
        self.metadata.tags.get(key).map(String::as_str)
    }
}

/// Time between two sweeps.
pub(crate) fn sweep_interval(settings: &Settings) -> Millis {
    let quarter = Millis(settings.remove_stopped_nodes_after.0 / 4);
    quarter.clamp(SWEEP_MIN, SWEEP_MAX)
}

// === impl Policy: the mirror ===

impl Policy {
    /// Takes what the stream says of a node, making an entry for one not seen before.
    pub(crate) fn mirror_node(&mut self, metadata: &Arc<NodeMetadata>, state: MirrorState) {
        let node_id = metadata.node_id.clone();
        let now = self.now.wall;
        let record = self
            .nodes
            .entry(node_id.clone())
            .or_insert_with(|| NodeRecord::new(Arc::clone(metadata), state, now));
        record.metadata = Arc::clone(metadata);
        record.state = state;
        record.last_activity = now;
        self.fleet.upsert_node(NodeFacts::of_metadata(metadata));
        self.note_spare_tag(&node_id);
        let cordoned = self.note_present(&node_id);
        self.change_condition(&node_id, |condition| {
            condition.state = fleet_state(state);
            condition.cordoned |= cordoned;
        });
    }

    /// Changes what stands in the way of a node, and has the spares looked at if it is one.
    pub(crate) fn change_condition(
        &mut self,
        node_id: &NodeId,
        change: impl FnOnce(&mut NodeCondition),
    ) {
        let cordoned = self.is_cordoned(node_id);
        self.fleet.update_condition(node_id, change);
        self.acts.changed |= cordoned != self.is_cordoned(node_id);
        self.touch_spare(node_id);
    }

    /// Moves a node of the mirror to another state.
    fn set_state(&mut self, node_id: &NodeId, state: MirrorState) {
        let now = self.now;
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.state = state;
            record.last_activity = now.wall;
            record.stopped_at = (state == MirrorState::Stopped).then_some(now.mono);
        }
        self.change_condition(node_id, |condition| condition.state = fleet_state(state));
    }

    /// Forgets a node altogether.
    pub(crate) fn forget_node(&mut self, node_id: &NodeId) {
        for timer in [
            Timer::StartupGrace(node_id.clone()),
            Timer::ProvisionTimeout(node_id.clone()),
            Timer::RecentlyFailed(node_id.clone()),
            Timer::UnhealthyCooldown(node_id.clone()),
        ] {
            self.timers.stop(&timer);
        }
        self.note_absent(node_id);
        self.forget_spare(node_id);
        self.forget_drain(node_id);
        self.nodes.remove(node_id);
        self.fleet.remove_node(node_id);
    }

    /// A node as it is shown.
    pub(crate) fn view(&self, node_id: &NodeId) -> Option<NodeView> {
        let record = self.nodes.get(node_id)?;
        let facts = self.fleet.facts(node_id);
        Some(NodeView {
            node_id: node_id.clone(),
            state: record.state,
            prospective: self.is_prospective(node_id),
            tags: record.metadata.tags.clone(),
            pool: facts.and_then(|facts| facts.pool.clone()),
            tier: self
                .fleet
                .tier_of(node_id)
                .map(|(_, tier)| tier.name.clone()),
            last_activity: record.last_activity,
            running: record.running.clone(),
            jobs: self.jobs_on(node_id),
        })
    }

    /// Asked for and not started, or started without an inventory so far (PROV-04).
    pub(crate) fn is_prospective(&self, node_id: &NodeId) -> bool {
        let Some(record) = self.nodes.get(node_id) else {
            return false;
        };
        let may_come = matches!(record.state, MirrorState::Starting | MirrorState::Running);
        may_come && (record.asked.is_some() || self.fleet.is_prospective(node_id))
    }
}

const fn fleet_state(state: MirrorState) -> NodeState {
    match state {
        MirrorState::Starting => NodeState::Starting,
        MirrorState::Running => NodeState::Running,
        MirrorState::Stopping => NodeState::Stopping,
        MirrorState::Stopped => NodeState::Stopped,
    }
}

// === impl Policy: what the stream says ===

impl Policy {
    pub(crate) fn node_starting(
        &mut self,
        metadata: &Arc<NodeMetadata>,
        phase: Option<StartPhase>,
        out: &mut Effects,
    ) {
        let node_id = &metadata.node_id;
        let known = self.nodes.contains_key(node_id);
        let back = self.is_gone(node_id);
        self.mirror_node(metadata, MirrorState::Starting);
        if back {
            self.begin_anew(node_id);
        }
        if let Some(asked) = self
            .nodes
            .get_mut(node_id)
            .and_then(|record| record.asked.as_mut())
        {
            asked.accepted = true;
        }
        out.callback(Callback::OnNodeStarting {
            node_id: node_id.clone(),
        });
        self.arm_startup_grace(node_id, phase);
        if !known {
            self.adopt_starting(node_id);
        }
    }

    fn is_gone(&self, node_id: &NodeId) -> bool {
        let state = self.nodes.get(node_id).map(|record| record.state);
        matches!(state, Some(MirrorState::Stopping | MirrorState::Stopped))
    }

    /// An ordinary node again, whatever was asked of it before it was gone (NODE-12, INTR-10).
    fn begin_anew(&mut self, node_id: &NodeId) {
        self.change_condition(node_id, |condition| condition.terminating = false);
        // What it was before says nothing of what comes back: it is looked at from its next picture on.
        self.fleet.clear_inventory(node_id);
        self.forget_drain(node_id);
        if self.is_hot_spare_node(node_id) {
            self.prefetch.await_picture(node_id);
        }
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.stopped_at = None;
            record.unfit_since = None;
        }
    }

    /// The grace runs from the boot, not from the request (NODE-05).
    pub(crate) fn arm_startup_grace(&mut self, node_id: &NodeId, phase: Option<StartPhase>) {
        let auto = self.nodes.get(node_id).is_some_and(NodeRecord::is_auto);
        if auto && phase != Some(StartPhase::Requested) {
            let due = Due::Mono(self.now.mono + self.settings.job_startup_grace);
            self.timers.set(Timer::StartupGrace(node_id.clone()), due);
        }
    }

    /// The node did not start in time (NODE-07). Its jobs follow when its stopping is reported.
    pub(crate) fn end_startup_grace(&mut self, node_id: &NodeId, out: &mut Effects) {
        if self
            .nodes
            .get(node_id)
            .is_some_and(|node| node.state == MirrorState::Starting)
        {
            self.note_spare_failed(node_id);
            self.terminate(node_id, None, out);
        }
    }

    pub(crate) fn node_started(
        &mut self,
        metadata: &Arc<NodeMetadata>,
        running: &Arc<RunningNodeMetadata>,
        out: &mut Effects,
    ) {
        let node_id = &metadata.node_id;
        let back = self.is_gone(node_id);
        self.mirror_node(metadata, MirrorState::Running);
        if back {
            self.begin_anew(node_id);
        }
        self.change_condition(node_id, |condition| condition.unreachable = false);
        self.timers.stop(&Timer::StartupGrace(node_id.clone()));
        self.timers.stop(&Timer::ProvisionTimeout(node_id.clone()));
        let mut same_start = false;
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.running = Some(Arc::clone(running));
            same_start = std::mem::take(&mut record.hydrated) && !back;
        }
        self.node_has_started(node_id);
        self.clear_restarts_of_node(node_id);
        if !same_start && let Some(node) = self.view(node_id) {
            out.callback(Callback::OnNodeStarted {
                node_id: node_id.clone(),
                node,
            });
        }
        self.start_all_on(node_id, out);
        self.start_targets_on(node_id, out);
        self.write_tags_due(node_id, out);
        self.services.look_at(node_id);
        self.pending.wake();
    }

    pub(crate) fn node_stopping(
        &mut self,
        node_id: &NodeId,
        reason: NodeStoppingReason,
        code: &str,
        detail: &str,
        out: &mut Effects,
    ) {
        if !self.nodes.contains_key(node_id) {
            let metadata = Arc::new(NodeMetadata {
                node_id: node_id.clone(),
                ..NodeMetadata::default()
            });
            self.mirror_node(&metadata, MirrorState::Stopping);
            out.callback(Callback::OnNodeStopping {
                node_id: node_id.clone(),
            });
            self.mark_recently_failed(node_id);
            return;
        }
        let ended = self.leave_service(node_id, MirrorState::Stopping);
        out.callback(Callback::OnNodeStopping {
            node_id: node_id.clone(),
        });
        if ended.never_started && reason == NodeStoppingReason::CreateFailed {
            self.create_failed_later(node_id, code, detail, out);
        } else {
            self.jobs_lose_node(node_id, ended, Some(reason), out);
        }
        self.drain_loses_node(node_id, out);
        self.services_lose_node(node_id, out);
    }

    pub(crate) fn node_stopped(&mut self, node_id: &NodeId, out: &mut Effects) {
        if self.nodes.contains_key(node_id) {
            let ended = self.leave_service(node_id, MirrorState::Stopped);
            out.callback(Callback::OnNodeStopped {
                node_id: node_id.clone(),
            });
            self.jobs_lose_node(node_id, ended, None, out);
            self.drain_loses_node(node_id, out);
            self.services_lose_node(node_id, out);
        } else {
            // A failed create has left the mirror already (PROV-08).
            out.callback(Callback::OnNodeStopped {
                node_id: node_id.clone(),
            });
        }
        self.pending.wake();
    }

    /// What NodeStopping and NodeStopped have in common, before their callback (NODE-08, NODE-09).
    fn leave_service(&mut self, node_id: &NodeId, state: MirrorState) -> Ended {
        let never_started = self
            .nodes
            .get(node_id)
            .is_some_and(|record| record.state == MirrorState::Starting);
        self.set_state(node_id, state);
        self.timers.stop(&Timer::StartupGrace(node_id.clone()));
        self.timers.stop(&Timer::ProvisionTimeout(node_id.clone()));
        self.lose_unhealthy_mark(node_id);
        let asked = self.nodes.get_mut(node_id).and_then(|record| {
            record.hydrated = false;
            record.asked.take()
        });
        self.mark_recently_failed(node_id);
        self.prefetch.forget(node_id);
        // Whoever waited for remains there waits no more (RECOV-17).
        for (job_id, job) in &self.jobs {
            if job.awaits_remains.is_some() && job.remains.contains(node_id) {
                self.pending.try_now(job_id);
            }
        }
        Ended {
            never_started,
            asked,
        }
    }

    pub(crate) fn node_inventory(&mut self, node_id: &NodeId, inventory: &Arc<NodeInventory>) {
        let zone = self.fleet.az_of(node_id).map(str::to_owned);
        self.take_inventory(node_id, inventory);
        self.inventory_ends_exclusion(node_id);
        self.services.look_at(node_id);
        if self.fleet.az_of(node_id) == zone.as_deref() {
            self.pending.wake_for(node_id);
        } else {
            // Its zone binds jobs that belong on other nodes (INTRA-08).
            self.pending.wake();
        }
    }

    /// Takes a node's picture into mirror and fleet. A node that is not in the mirror gets no entry.
    pub(crate) fn take_inventory(&mut self, node_id: &NodeId, inventory: &Arc<NodeInventory>) {
        let order = self.order();
        let now = self.now;
        let Some(record) = self.nodes.get_mut(node_id) else {
            return;
        };
        record.last_activity = now.wall;
        record.unfit_since = (inventory.disk_low || inventory.is_runtime_down())
            .then(|| record.unfit_since.unwrap_or(now.mono));
        if record.inventory_order.is_none() {
            record.inventory_order = Some(order);
            record.came_low = inventory.disk_low;
        }
        self.fleet.set_inventory(node_id, Arc::clone(inventory));
        self.prefetch.note_picture(node_id);
        // The picture says itself whether the worker is heard.
        self.change_condition(node_id, |condition| {
            condition.unreachable = !inventory.reachable
        });
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.over.clear();
            record.orphans.clear();
        }
        self.note_listed(node_id);
    }

    pub(crate) fn node_tags(&mut self, metadata: &Arc<NodeMetadata>) {
        let Some(state) = self.nodes.get(&metadata.node_id).map(|record| record.state) else {
            return;
        };
        self.mirror_node(metadata, state);
        self.services.look_at(&metadata.node_id);
        self.pending.wake();
    }

    pub(crate) fn node_reachability(&mut self, node_id: &NodeId, reachable: bool) {
        if self.nodes.contains_key(node_id) {
            self.change_condition(node_id, |condition| condition.unreachable = !reachable);
        }
    }
}

/// How a node was when it left service.
pub(crate) struct Ended {
    pub(crate) never_started: bool,
    pub(crate) asked: Option<Asked>,
}

// === impl Policy: ending nodes ===

impl Policy {
    /// Issues a terminate; the node is no candidate from here on (NODE-18).
    pub(crate) fn terminate(&mut self, node_id: &NodeId, api: Option<ApiId>, out: &mut Effects) {
        let purpose = Purpose::Terminate {
            node_id: node_id.clone(),
            api,
        };
        self.send(Call::TerminateNode(node_id.clone()), purpose, out);
        self.change_condition(node_id, |condition| condition.terminating = true);
        if let Some(record) = self.nodes.get_mut(node_id)
            && !std::mem::replace(&mut record.terminate_told, true)
        {
            out.callback(Callback::OnNodeTerminated {
                node_id: node_id.clone(),
            });
        }
    }

    /// The node is a candidate again, unless its events say otherwise (NODE-17).
    pub(crate) fn terminate_failed(
        &mut self,
        node_id: &NodeId,
        failure: &CallFailure,
        out: &mut Effects,
    ) {
        // It was swept, and the Manager has forgotten it as well: that is what was wanted (NODE-16).
        let gone = failure
            .refusal()
            .is_some_and(|r| r.status == Status::NotFound);
        if gone && !self.nodes.contains_key(node_id) {
            return;
        }
        let message = format!("terminating node {node_id:?} failed: {failure}");
        self.report(
            ErrorInfo::new("terminateFailed", message).node(node_id),
            out,
        );
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.terminate_failed_at = Some(self.now.mono);
            self.change_condition(node_id, |condition| condition.terminating = false);
        }
    }

    /// Ends the node of a single-use job that left it, if it was bought and carries nothing else
    /// (BUNDLE-13).
    pub(crate) fn release_single_use(&mut self, binding: &crate::job::Binding, out: &mut Effects) {
        let node_id = &binding.node_id;
        let in_service = self.nodes.get(node_id).is_some_and(|record| {
            matches!(record.state, MirrorState::Starting | MirrorState::Running)
        });
        let bought = self
            .fleet
            .tier_of(node_id)
            .is_some_and(|(_, tier)| tier.is_elastic());
        let ending = self
            .fleet
            .condition(node_id)
            .is_some_and(|condition| condition.terminating);
        let free = self.fleet.jobs_on(node_id).is_empty();
        if binding.single_use && in_service && bought && free && !ending {
            self.terminate(node_id, None, out);
        }
    }

    /// Removes nodes that have been stopped for long (NODE-16).
    pub(crate) fn sweep(&mut self, out: &mut Effects) {
        let limit = self.settings.remove_stopped_nodes_after;
        let now = self.now.mono;
        let old: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, record)| record.stopped_at.is_some_and(|at| now - at > limit))
            .map(|(node_id, _)| node_id.clone())
            .collect();
        for node_id in old {
            let record = self.nodes.get(&node_id);
            if record.is_some_and(|record| record.is_auto() && !record.terminate_told) {
                self.terminate(&node_id, None, out);
            }
            self.forget_node(&node_id);
        }
        self.forget_absent();
        let due = Due::Mono(now + sweep_interval(&self.settings));
        self.timers.set(Timer::Sweep, due);
    }
}
