//! What a provider says of a machine (MNODE-01, MNODE-05, MNODE-15, MNODE-17, MNODE-21, MNODE-22).

use std::sync::Arc;

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::StopReason;
use greenroom_types::node::{NodeState, NodeStoppingReason, RunningNodeMetadata, StartPhase};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId, Tags};

use super::link::plain;
use super::stop::NodeFate;
use crate::ledger::Ledger;
use crate::order::{Order, ProviderTask};
use crate::out::Out;
use crate::refuse::unknown_node;
use crate::report::Finding;
use crate::state::NodeStop;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn apply_finding(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        finding: Finding,
    ) -> CallResult {
        let node = self
            .nodes
            .get(node_id)
            .filter(|node| node.is_elastic())
            .ok_or_else(|| unknown_node(node_id))?;
        let wanted = node.is_wanted();
        match finding {
            Finding::Running {
                running,
                zone,
                tags,
            } => self.machine_runs(out, node_id, &running, &zone, tags),
            Finding::CreateFailed { code, text } if node.state == NodeState::Starting => {
                let stop = NodeStop {
                    reason: NodeStoppingReason::CreateFailed,
                    detail: text,
                    code,
                };
                self.machine_gone(out, node_id, Some(stop), StopReason::NodeStopped);
            }
            Finding::CreateFailed { code, text } => {
                // It was ended before it was made: there is no machine to wait for.
                if let Some(node) = self.nodes.get_mut(node_id) {
                    node.last_error = format!("{code}: {text}");
                }
                self.machine_gone(out, node_id, None, StopReason::NodeStopped);
            }
            Finding::Stopped if wanted || node.given_up => {
                let stop = wanted.then(|| plain(NodeStoppingReason::ProviderStop));
                self.machine_gone(out, node_id, stop, StopReason::NodeStopped);
                // A machine that is stopped still costs (AWS-13).
                if let Some(node) = self.nodes.get_mut(node_id) {
                    node.machine_gone = false;
                }
                out.orders.push(Order::Provider {
                    node_id: node_id.clone(),
                    task: ProviderTask::TerminateMachine {
                        after_ms: Millis(0),
                    },
                });
            }
            Finding::Terminating if wanted => self.begin_node_stop(
                out,
                node_id,
                plain(NodeStoppingReason::ProviderTerminate),
                StopReason::NodeTerminated,
                NodeFate::Lost,
            ),
            Finding::Stopped | Finding::Terminating => {}
            Finding::Gone => {
                let stop = wanted.then(|| plain(NodeStoppingReason::ProviderTerminate));
                self.machine_gone(out, node_id, stop, StopReason::NodeTerminated);
            }
            Finding::Unknown => {
                let stop = wanted.then(|| plain(NodeStoppingReason::UnknownNode));
                self.machine_gone(out, node_id, stop, StopReason::NodeStopped);
            }
            Finding::TerminateFailed { error } => {
                if let Some(node) = self.nodes.get_mut(node_id) {
                    node.terminate_attempts += 1;
                    node.last_error = error;
                    out.nodes.insert(node_id.clone());
                }
            }
        }
        Ok(Reply::Done)
    }

    fn machine_runs(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        running: &RunningNodeMetadata,
        zone: &str,
        tags: Tags,
    ) {
        self.merge_running(out, node_id, running);
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        node.base_tags.extend(tags);
        if !zone.is_empty() && !node.base_tags.contains_key("az") {
            node.own_tags.insert("az".to_owned(), zone.to_owned());
        }
        out.nodes.insert(node_id.clone());
        let booting = node.state == NodeState::Starting && node.phase == StartPhase::Requested;
        if booting {
            node.phase = StartPhase::Booting;
            node.turn += 1;
            node.compose_tags();
            out.event(StreamEvent::NodeStarting {
                metadata: node.metadata.clone(),
                phase: Some(StartPhase::Booting),
            });
        } else {
            self.announce_tags(out, node_id);
        }
    }

    /// Lays what is newly known over what was known; empty texts say nothing.
    pub(crate) fn merge_running(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        news: &RunningNodeMetadata,
    ) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        let mut merged = (*node.running).clone();
        let pairs = [
            (&mut merged.public_dns_name, &news.public_dns_name),
            (&mut merged.private_dns_name, &news.private_dns_name),
            (&mut merged.private_ip_address, &news.private_ip_address),
            (&mut merged.public_ip_address, &news.public_ip_address),
            (&mut merged.provider_id, &news.provider_id),
        ];
        for (known, new) in pairs {
            if !new.is_empty() {
                known.clone_from(new);
            }
        }
        if merged != *node.running {
            node.running = Arc::new(merged);
            out.nodes.insert(node_id.clone());
        }
    }

    /// The machine is gone, or was never made: the node stops at once, and what was on it is over.
    fn machine_gone(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        stop: Option<NodeStop>,
        reason: StopReason,
    ) {
        if let Some(stop) = stop {
            self.begin_node_stop(out, node_id, stop, reason, NodeFate::Lost);
        }
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        node.machine_gone = true;
        out.nodes.insert(node_id.clone());
        if node.state == NodeState::Stopped {
            self.end_all_on(out, node_id);
        } else {
            self.node_stopped(out, node_id);
        }
    }
}
