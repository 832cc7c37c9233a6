//! A node's picture of itself (MNODE-20).

use std::sync::Arc;

use greenroom_types::inventory::NodeInventory;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{NodeId, Role, Tags};

use crate::ledger::Ledger;
use crate::out::Out;
use crate::tags::PROVIDES;

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
        picture.cordoned |= node.strays.values().any(|stray| stray.overdue);
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
        let node_changed = node.inventory.replace(picture.clone()).is_none_or(|old| {
            old.provided != picture.provided || old.assigned_jobs != picture.assigned_jobs
        });
        out.inventories.insert(node_id.clone());
        out.event(StreamEvent::NodeInventoryUpdated {
            node_id: node_id.clone(),
            inventory: picture,
        });
        let provided = node_changed && self.tag_provided(node_id);
        if zoned || provided {
            out.nodes.insert(node_id.clone());
            self.announce_tags(out, node_id);
        }
    }

    /// Which job makes the node able to do what it says is provided (WORK-43): one tag for each
    /// capability. True when that changed them.
    fn tag_provided(&mut self, node_id: &NodeId) -> bool {
        let Some(node) = self.nodes.get(node_id) else {
            return false;
        };
        let Some(picture) = &node.inventory else {
            return false;
        };
        let services = || {
            picture
                .assigned_jobs
                .iter()
                .filter(|assigned| assigned.role.slot() == Role::NODE_SERVICE)
        };
        let mut tags = Tags::new();
        for capability in &picture.provided {
            let provider = services().find(|assigned| {
                self.jobs.get(&assigned.job_id).is_some_and(|record| {
                    let mut provides = record.view.job.provides.iter();
                    provides.any(|it| it.name == capability.name)
                })
            });
            if let Some(provider) = provider {
                let name = format!("{PROVIDES}{}", capability.name);
                tags.entry(name).or_insert(provider.job_id.to_string());
            }
        }
        let Some(node) = self.nodes.get_mut(node_id) else {
            return false;
        };
        let old: Tags = node
            .own_tags
            .iter()
            .filter(|(name, _)| name.starts_with(PROVIDES))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if old == tags {
            return false;
        }
        node.own_tags.retain(|name, _| !name.starts_with(PROVIDES));
        node.own_tags.extend(tags);
        true
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
