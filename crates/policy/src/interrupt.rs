//! Notices of providers that take a node away, or advise to leave it (INTR): each is followed by a
//! forced drain whose end only ever comes earlier, and losses with such a node count against no
//! ceiling.

use greenroom_types::node::InterruptionKind;
use greenroom_types::{Millis, NodeId, Wall};
use serde::{Deserialize, Serialize};

use crate::drain::{DrainOptions, DrainPhase, DrainState};
use crate::effect::{Callback, Effects, ErrorInfo, MirrorState};
use crate::event::{ApiAnswer, ApiError, ApiResult};
use crate::policy::Policy;
use crate::settings::{
    DEFAULT_REBALANCE_DRAIN, DEFAULT_SPOT_INTERRUPTION_DRAIN, SPOT_INTERRUPTION_DRAIN_MARGIN,
};

/// A provider's notice as it is shown (INTR-06).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInterruption {
    /// The node.
    pub node_id: NodeId,
    /// Kind of notice.
    pub kind: InterruptionKind,
    /// When the node goes, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<Wall>,
    /// When the notice was handled.
    pub noticed_at: Wall,
    /// The drain as it is now.
    pub drain: DrainState,
}

/// A standing notice.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    kind: InterruptionKind,
    deadline: Option<Wall>,
    noticed_at: Wall,
}

// === impl Policy: interruption ===

impl Policy {
    /// A provider takes a node, or advises to leave it (INTR-01 to INTR-06).
    pub(crate) fn interrupt(
        &mut self,
        node_id: &NodeId,
        kind: InterruptionKind,
        deadline: Option<Wall>,
        options: DrainOptions,
        out: &mut Effects,
    ) -> ApiResult {
        let Some(record) = self.nodes.get(node_id) else {
            return Err(ApiError::UnknownNode {
                node_id: node_id.clone(),
            });
        };
        let gone = matches!(record.state, MirrorState::Stopping | MirrorState::Stopped);
        let notice = Notice {
            kind,
            deadline,
            noticed_at: self.now.wall,
        };
        self.notices.insert(node_id.clone(), notice);
        if gone {
            return Ok(ApiAnswer::Done);
        }
        let timeout = match deadline {
            Some(deadline) => {
                let left = deadline.since(self.now.wall);
                let margin = i64::try_from(SPOT_INTERRUPTION_DRAIN_MARGIN.0).unwrap_or(0);
                Millis(u64::try_from(left - margin).unwrap_or(0))
            }
            None => match kind {
                InterruptionKind::SpotInterruption => DEFAULT_SPOT_INTERRUPTION_DRAIN,
                InterruptionKind::Rebalance => DEFAULT_REBALANCE_DRAIN,
            },
        };
        match self.drains.get(node_id).map(|drain| drain.state.phase) {
            Some(phase) if phase.is_open() => self.tighten(node_id, timeout, true, out),
            Some(DrainPhase::Terminating | DrainPhase::Done) => {}
            _ => {
                let options = DrainOptions {
                    force: true,
                    ..options
                };
                self.begin_drain(node_id, timeout, options, out);
                // No time at all: asked for, and ended at once (INTR-02).
                if timeout == Millis(0) {
                    self.end_drain_time(node_id, out);
                }
            }
        }
        if let Some(state) = self.node_interruption(node_id) {
            out.callback(Callback::OnNodeInterrupted(Box::new(state)));
        }
        Ok(ApiAnswer::Done)
    }

    /// The notice of the stream (INTR-03, INTR-11).
    pub(crate) fn interruption_noticed(
        &mut self,
        node_id: &NodeId,
        kind: InterruptionKind,
        deadline: Option<Wall>,
        out: &mut Effects,
    ) {
        let options = DrainOptions::default();
        if let Err(error) = self.interrupt(node_id, kind, deadline, options, out) {
            let message = format!("an interruption notice could not be followed: {error}");
            self.report(
                ErrorInfo::new("interruptionFailed", message).node(node_id),
                out,
            );
        }
    }

    /// Nodes whose tag tells of a notice get it again (INTR-14, DEC-13).
    pub(crate) fn restore_notices(&mut self, out: &mut Effects) {
        let tagged: Vec<(NodeId, InterruptionKind)> = self
            .nodes
            .iter()
            .filter(|(_, record)| record.state == MirrorState::Running)
            .filter_map(|(node_id, record)| {
                let kind = match record.tag("interruption")? {
                    "spotInterruption" => InterruptionKind::SpotInterruption,
                    "rebalanceRecommendation" => InterruptionKind::Rebalance,
                    _ => return None,
                };
                Some((node_id.clone(), kind))
            })
            .collect();
        for (node_id, kind) in tagged {
            self.interruption_noticed(&node_id, kind, None, out);
        }
    }

    /// The latest notice about a node, with its drain as it is now (INTR-06).
    pub fn node_interruption(&self, node_id: &NodeId) -> Option<NodeInterruption> {
        let notice = self.notices.get(node_id)?;
        Some(NodeInterruption {
            node_id: node_id.clone(),
            kind: notice.kind,
            deadline: notice.deadline,
            noticed_at: notice.noticed_at,
            drain: self.drains.get(node_id)?.state.clone(),
        })
    }

    /// A loss with a reclaimed node counts against no ceiling (INTR-08).
    pub(crate) fn is_reclaimed(&self, node_id: &NodeId) -> bool {
        self.notices.contains_key(node_id)
    }
}
