//! The Manager's line to a worker: dropped, back, given up (MNODE-06, MNODE-10 to MNODE-12).
//!
//! Every handler looks whether the node still stands where the deadline was set for; a late one does
//! nothing.

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::StopReason;
use greenroom_types::node::{NodeState, NodeStoppingReason, StartPhase};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId};

use super::stop::NodeFate;
use crate::command::Link;
use crate::ledger::Ledger;
use crate::order::{Order, ProviderTask};
use crate::out::Out;
use crate::refuse::unknown_node;
use crate::state::NodeStop;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn apply_link(&mut self, out: &mut Out, node_id: &NodeId, link: Link) -> CallResult {
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        let (state, phase, elastic) = (node.state, node.phase, node.is_elastic());
        let given_up = node.given_up;
        match (link, state) {
            (Link::Dropped, NodeState::Running) => self.drop_line(out, node_id),
            // A slot's worker that was told to end has gone.
            (Link::Dropped, NodeState::Stopping) if !elastic && !given_up => {
                self.node_stopped(out, node_id);
            }
            (Link::GraceOver, NodeState::Unreachable) => self.give_up(out, node_id),
            (Link::KeepaliveOver, NodeState::Stopping) if given_up || !elastic => {
                self.node_stopped(out, node_id);
            }
            (Link::PendingOver, NodeState::Starting)
                if elastic && phase == StartPhase::Requested =>
            {
                self.never_started(out, node_id, NodeStoppingReason::PendingTimeExceeded);
            }
            (Link::StartupOver, NodeState::Starting) => {
                self.never_started(out, node_id, NodeStoppingReason::StartupTimeExceeded);
            }
            (Link::HelloOver, NodeState::Starting) => {
                let reason = NodeStoppingReason::InitialisationHealthPingTimeExceeded;
                self.never_started(out, node_id, reason);
            }
            _ => {}
        }
        Ok(Reply::Done)
    }

    fn drop_line(&mut self, out: &mut Out, node_id: &NodeId) {
        self.turn_node(out, node_id, NodeState::Unreachable);
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.last_seen = Some(out.at);
        }
        self.mark_reachable(out, node_id, false);
        out.event(StreamEvent::NodeReachabilityChanged {
            node_id: node_id.clone(),
            reachable: false,
        });
    }

    fn give_up(&mut self, out: &mut Out, node_id: &NodeId) {
        self.begin_node_stop(
            out,
            node_id,
            plain(NodeStoppingReason::HealthPingTimeExceeded),
            StopReason::NodeStopped,
            NodeFate::Lost,
        );
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.given_up = true;
        }
    }

    /// A node that did not come up in time is ended with its machine; a slot is inactive again.
    fn never_started(&mut self, out: &mut Out, node_id: &NodeId, reason: NodeStoppingReason) {
        self.begin_node_stop(
            out,
            node_id,
            plain(reason),
            StopReason::NodeStopped,
            NodeFate::Lost,
        );
        let elastic = self
            .nodes
            .get(node_id)
            .is_some_and(|node| node.is_elastic());
        if elastic {
            out.orders.push(Order::Provider {
                node_id: node_id.clone(),
                task: ProviderTask::TerminateMachine {
                    after_ms: Millis(0),
                },
            });
        } else {
            self.node_stopped(out, node_id);
        }
    }
}

pub(crate) fn plain(reason: NodeStoppingReason) -> NodeStop {
    NodeStop {
        reason,
        detail: String::new(),
        code: String::new(),
    }
}
