//! How nodes end: asked to (MNODE-14), given up (MNODE-12), by their provider (MNODE-15).

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::StopReason;
use greenroom_types::node::{InstanceState, NodeState, NodeStoppingReason};
use greenroom_types::stream::{PrefetchResult, StreamEvent};
use greenroom_types::{Millis, NodeId, StartId};
use serde_json::json;

use crate::instance::Fate;
use crate::ledger::Ledger;
use crate::order::{Order, ProviderTask, WorkerOrder};
use crate::out::Out;
use crate::refuse::{required, unknown_node};
use crate::state::NodeStop;

/// Time that a worker has for its containers when its node ends (MNODE-14, LOCAL-12).
pub(crate) const SHUTDOWN: Millis = Millis(5_000);

/// What becomes of the instances on a node that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFate {
    /// Its worker ends them, politely for so long, and tells.
    Ended(Millis),
    /// Nobody can tell what they do.
    Lost,
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn terminate_node(&mut self, out: &mut Out, node_id: &NodeId) -> CallResult {
        required("node_id", node_id.as_str())?;
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        if node.is_wanted() {
            self.end_by_request(out, node_id, "", true);
        }
        Ok(Reply::Done)
    }

    /// Ends a wanted node because somebody asked, or the Manager was told to. `park`: a slot's worker
    /// keeps its credential.
    pub(crate) fn end_by_request(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        detail: &str,
        park: bool,
    ) {
        let stop = NodeStop {
            reason: NodeStoppingReason::UserRequested,
            detail: detail.to_owned(),
            code: String::new(),
        };
        self.end_wanted(out, node_id, stop, park);
    }

    /// The same, for a reason of the Manager's own.
    pub(crate) fn end_wanted(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        stop: NodeStop,
        park: bool,
    ) {
        let Some(node) = self.nodes.get(node_id) else {
            return;
        };
        let (state, elastic) = (node.state, node.is_elastic());
        let (reason, fate) = (StopReason::NodeTerminated, NodeFate::Ended(SHUTDOWN));
        self.begin_node_stop(out, node_id, stop, reason, fate);
        let busy = self.on_node.contains_key(node_id);
        if state == NodeState::Running {
            out.order(
                node_id,
                WorkerOrder::Shutdown {
                    grace_ms: SHUTDOWN,
                    park,
                },
            );
        }
        if elastic {
            let after_ms = match state {
                NodeState::Running if busy => SHUTDOWN,
                _ => Millis(0),
            };
            out.orders.push(Order::Provider {
                node_id: node_id.clone(),
                task: ProviderTask::TerminateMachine { after_ms },
            });
        } else if state == NodeState::Starting {
            // No worker has said hello, so there is nobody to wait for.
            self.node_stopped(out, node_id);
        }
    }

    /// `node_stopping`, the end of its prefetches, and of its instances as far as is known.
    pub(crate) fn begin_node_stop(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        stop: NodeStop,
        reason: StopReason,
        fate: NodeFate,
    ) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        node.given_up = false;
        out.event(StreamEvent::NodeStopping {
            node_id: node_id.clone(),
            reason: stop.reason,
            detail: stop.detail.clone(),
            provider_code: stop.code.clone(),
        });
        let payload = json!({
            "node": node_id,
            "reason": crate::read::reason_name(stop.reason),
            "detail": stop.detail,
            "code": stop.code,
        });
        node.stop = Some(stop);
        node.awaiting = None;
        self.forget_strays(out, node_id);
        self.note(out, "node_stopping", &payload);
        self.turn_node(out, node_id, NodeState::Stopping);
        self.settle_batches(out, node_id);
        for start_id in self.starts_not_lost_on(node_id) {
            let (fate, grace_ms) = match fate {
                // The worker knows: a shutdown tells it of all of them at once, or it leaves.
                NodeFate::Ended(grace_ms) => (Fate::Ending { tell: false }, grace_ms),
                NodeFate::Lost => (Fate::Lost, Millis(0)),
            };
            self.stop_instance(out, &start_id, reason, "", grace_ms, fate);
        }
    }

    /// `node_stopped`. Instances are over if the machine is known to be gone, else lost.
    pub(crate) fn node_stopped(&mut self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        if node.state == NodeState::Stopped {
            return;
        }
        let (gone, elastic, given_up) = (node.machine_gone, node.is_elastic(), node.given_up);
        node.stopped_at = Some(out.at);
        node.awaiting = None;
        self.forget_strays(out, node_id);
        self.turn_node(out, node_id, NodeState::Stopped);
        out.event(StreamEvent::NodeStopped {
            node_id: node_id.clone(),
        });
        if gone {
            self.end_all_on(out, node_id);
        } else {
            for start_id in self.starts_not_lost_on(node_id) {
                let fate = Fate::Lost;
                self.stop_instance(out, &start_id, StopReason::NodeStopped, "", SHUTDOWN, fate);
            }
            if elastic {
                out.orders.push(Order::Provider {
                    node_id: node_id.clone(),
                    task: ProviderTask::TerminateMachine {
                        after_ms: Millis(0),
                    },
                });
            }
        }
        if !given_up {
            out.orders.push(Order::Close {
                node_id: node_id.clone(),
                redial: false,
            });
        }
        self.slot_left(out, node_id);
    }

    /// The machine is gone for good: whatever ran there is over.
    pub(crate) fn end_all_on(&mut self, out: &mut Out, node_id: &NodeId) {
        for start_id in self.starts_on(node_id) {
            self.stop_instance(
                out,
                &start_id,
                StopReason::NodeStopped,
                "",
                Millis(0),
                Fate::Lost,
            );
            self.end_instance(out, &start_id);
        }
    }

    /// Start ids of what is on a node.
    pub(crate) fn starts_on(&self, node_id: &NodeId) -> Vec<StartId> {
        self.on_node
            .get(node_id)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    fn starts_not_lost_on(&self, node_id: &NodeId) -> Vec<StartId> {
        self.instances_on(node_id)
            .filter(|instance| instance.state != InstanceState::Lost)
            .map(|instance| instance.start_id.clone())
            .collect()
    }

    /// A batch always settles: what is open on a node that goes is an error (PREF-06).
    fn settle_batches(&mut self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        for (batch_id, image_refs) in std::mem::take(&mut node.batches) {
            out.event(StreamEvent::ImagesPrefetched {
                node_id: node_id.clone(),
                batch_id,
                results: image_refs
                    .into_iter()
                    .map(|image_ref| PrefetchResult {
                        image_ref,
                        ok: false,
                        error: "node_lost".to_owned(),
                        text: "the node stopped before the pull was done".to_owned(),
                    })
                    .collect(),
            });
        }
    }

    /// A stopped node leaves the record; edits of a slot's tags stay with the slot (MNODE-18).
    pub(crate) fn forget_node(&mut self, out: &mut Out, node_id: &NodeId) -> CallResult {
        let over = self.nodes.get(node_id).is_some_and(|node| {
            node.state == NodeState::Stopped && (node.machine_gone || !node.is_elastic())
        });
        if over && let Some(node) = self.nodes.remove(node_id) {
            out.nodes.insert(node_id.clone());
            out.inventories.insert(node_id.clone());
            if let Some(slot) = self.slots.get_mut(node_id) {
                slot.edits = node.edits;
                slot.tags_revision = node.tags_revision;
                out.slots.insert(node_id.clone());
            }
        }
        Ok(Reply::Done)
    }
}
