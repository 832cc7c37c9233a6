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
        // An owned server has no provider to tell its zone: its worker's settings do (MNODE-21).
        let zone = &picture.az;
        let zoned = node.machine.is_none()
            && !zone.is_empty()
            && !node.base_tags.contains_key("az")
            && node.own_tags.insert("az".to_owned(), zone.clone()).as_ref() != Some(zone);
        let picture = Arc::new(picture);
        node.inventory = Some(picture.clone());
        out.inventories.insert(node_id.clone());
        out.event(StreamEvent::NodeInventoryUpdated {
            node_id: node_id.clone(),
            inventory: picture,
        });
        if zoned {
            out.nodes.insert(node_id.clone());
            self.announce_tags(out, node_id);
        }
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
