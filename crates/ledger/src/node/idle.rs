//! Elastic nodes that nobody uses end by themselves (IDLE).
//!
//! The time itself is the keeper's. What it is about is told by [`Node::idle_mark`], which grows
//! whenever the empty time begins anew; the ledger looks again at the commit that ends the node, so
//! that a start accepted before it keeps the node (IDLE-06).

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::{Millis, NodeId};

use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{failed, invalid, required, unknown_node};
use crate::state::Node;
use crate::tags::{INTERRUPTION, SPARE};

/// Shortest and longest value of one node (IDLE-02).
const SHORTEST: Millis = Millis(1_000);
const LONGEST: Millis = Millis(2_592_000_000);
/// Detail of a node that was ended for it (IDLE-01).
const EXPIRED: &str = "idle_expired";

// === impl Ledger ===

impl Ledger {
    pub(crate) fn set_idle_expiry(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        expiry: Millis,
    ) -> CallResult {
        required("node_id", node_id.as_str())?;
        if expiry.0 != 0 && !(SHORTEST..=LONGEST).contains(&expiry) {
            return Err(invalid(
                "bad_idle_expiry",
                format!(
                    "idle_expiry_ms is {}: it must be {} to {}, or 0 to clear it",
                    expiry.0, SHORTEST.0, LONGEST.0
                ),
            )
            .with("path", "idle_expiry_ms"));
        }
        let node = self
            .nodes
            .get_mut(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        if !node.is_elastic() {
            return Err(failed(
                "not_elastic",
                format!("node {node_id:?} is an owned server: the Manager never ends its machine"),
            )
            .with("node", node_id.as_str()));
        }
        node.idle_expiry_ms = (expiry.0 != 0).then_some(expiry);
        node.idle_mark += 1;
        out.nodes.insert(node_id.clone());
        Ok(Reply::Done)
    }

    /// How long a node may be empty: its own value, else that of all; none: for ever (IDLE-03).
    pub fn idle_expiry(&self, node: &Node) -> Option<Millis> {
        let all = self.config.idle_expiry_ms;
        let expiry = node.idle_expiry_ms.unwrap_or(all);
        (node.is_elastic() && expiry.0 != 0).then_some(expiry)
    }

    /// Whether a node runs, is empty, and nothing speaks for keeping it (IDLE-01, IDLE-07).
    pub(crate) fn is_idle(&self, node: &Node) -> bool {
        let tags = &node.metadata.tags;
        self.idle_expiry(node).is_some()
            && self.lease_pause.is_none()
            && node.is_running()
            && !self.on_node.contains_key(&node.metadata.node_id)
            && node.batches.is_empty()
            && tags.get(SPARE).map(String::as_str) != Some("true")
            && !tags.contains_key(INTERRUPTION)
    }

    /// The empty time of a node begins anew, or ends.
    pub(crate) fn idle_anew(&mut self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get(node_id) else {
            return;
        };
        // A node that may be empty for ever keeps its record as it is.
        if self.idle_expiry(node).is_none() {
            return;
        }
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.idle_mark += 1;
            out.nodes.insert(node_id.clone());
        }
    }

    /// The time has run out, unless something happened since (IDLE-06).
    pub(crate) fn idle_over(&mut self, out: &mut Out, node_id: &NodeId, mark: u64) -> CallResult {
        let still = self
            .nodes
            .get(node_id)
            .is_some_and(|node| node.idle_mark == mark && self.is_idle(node));
        if still {
            self.end_by_request(out, node_id, EXPIRED, true);
        }
        Ok(Reply::Done)
    }
}
