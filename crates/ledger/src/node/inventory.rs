//! A node's picture of itself (MNODE-20).

use std::sync::Arc;

use greenroom_types::NodeId;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::stream::StreamEvent;

use crate::ledger::Ledger;
use crate::out::Out;

// === impl Ledger ===

impl Ledger {
    /// Stores a picture with every number made usable, and tells of it when it differs.
    pub(crate) fn take_inventory(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        picture: NodeInventory,
    ) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        let (mut picture, _) = picture.sanitised();
        picture.reachable = node.is_running();
        if node.inventory.as_deref() == Some(&picture) {
            return;
        }
        let picture = Arc::new(picture);
        node.inventory = Some(picture.clone());
        out.inventories.insert(node_id.clone());
        out.event(StreamEvent::NodeInventoryUpdated {
            node_id: node_id.clone(),
            inventory: picture,
        });
    }

    /// Marks the stored picture as heard or not heard, without an event of its own (MNODE-10).
    pub(crate) fn mark_reachable(&mut self, out: &mut Out, node_id: &NodeId, reachable: bool) {
        if let Some(node) = self.nodes.get_mut(node_id)
            && let Some(inventory) = &mut node.inventory
            && inventory.reachable != reachable
        {
            Arc::make_mut(inventory).reachable = reachable;
            out.inventories.insert(node_id.clone());
        }
    }
}
