//! What workers said they hold of the discovery fleet, since their last hello. Kept in memory alone:
//! a hello brings it anew.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_types::NodeId;
use tokio::sync::watch;

/// Version of the discovery access that each node has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks(watch::Sender<BTreeMap<NodeId, u64>>);

// === impl Acks ===

impl Acks {
    /// A node says what it holds.
    pub(crate) fn heard(&self, node_id: &NodeId, discovery_version: u64) {
        self.0.send_modify(|held| {
            held.insert(node_id.clone(), discovery_version);
        });
    }

    /// Nothing is known of a node: it says hello, or is no longer wanted.
    pub(crate) fn forget(&self, node_id: &NodeId) {
        self.0
            .send_if_modified(|held| held.remove(node_id).is_some());
    }

    /// Waits until all of these hold that version or a later one, at most for so long.
    pub(crate) async fn wait(&self, nodes: &[NodeId], version: u64, patience: Duration) {
        let mut changes = self.0.subscribe();
        let all = changes.wait_for(|held| nodes.iter().all(|node| holds(held, node, version)));
        // Who is missing when the time is over is asked afterwards.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Whether a node holds that version or a later one.
    pub(crate) fn holds(&self, node_id: &NodeId, version: u64) -> bool {
        holds(&self.0.borrow(), node_id, version)
    }
}

fn holds(held: &BTreeMap<NodeId, u64>, node_id: &NodeId, version: u64) -> bool {
    held.get(node_id).is_some_and(|known| *known >= version)
}
