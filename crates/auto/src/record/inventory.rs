//! What nodes say of themselves, and what only that tells.

use std::sync::Arc;

use greenroom_policy::Policy;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::{NodeId, Now, StartId};
use serde_json::{Map, Value, json};

use super::Recorder;
use super::take::TAGS;
use super::words::{no_more, of_inventory, of_node, path_of};

// === impl Recorder ===

impl Recorder {
    pub(super) fn of_inventory(
        &mut self,
        now: Now,
        node_id: &NodeId,
        inventory: &Arc<NodeInventory>,
        policy: &Policy,
    ) {
        let before = self
            .inventories
            .insert(node_id.clone(), Arc::clone(inventory));
        if let Some(metadata) = self.joining.remove(node_id) {
            let mut node = of_node(node_id, &metadata.tags, inventory);
            if !self.bought.contains_key(node_id) {
                self.known.insert(node_id.clone());
            }
            let changed = self.changed_tags(node_id, &metadata.tags);
            let assigned = inventory.assigned_jobs.iter();
            let jobs: Vec<String> = assigned
                .filter_map(|assigned| path_of(&assigned.job_id, policy))
                .collect();
            if !jobs.is_empty() {
                node["jobs"] = jobs.into();
            }
            self.push(now, Ok(json!({"nodeJoins": node, TAGS: changed})), None);
            return;
        }
        let pulled: Vec<String> = inventory
            .held_images
            .iter()
            .map(|image| &image.reference)
            .filter(|image| {
                self.pulls
                    .get(node_id)
                    .is_some_and(|it| it.contains(*image))
            })
            .cloned()
            .collect();
        for image in pulled {
            self.pulled(now, node_id, &image, true, policy);
        }
        let Some(before) = before else {
            // What was bought is not quite what its tier declares.
            if self.bought.contains_key(node_id) {
                let mut first = of_inventory(inventory);
                first.insert("node".to_owned(), node_id.as_str().into());
                self.push(now, Ok(json!({"inventory": first})), None);
            }
            return;
        };
        self.of_strays(now, node_id, &before, inventory, policy);
        let (was, is) = (of_inventory(&before), of_inventory(inventory));
        let gone = was.keys().filter(|key| !is.contains_key(*key));
        let mut changed: Map<String, Value> = gone
            .filter_map(|key| Some((key.clone(), no_more(key)?)))
            .collect();
        changed.extend(
            is.into_iter()
                .filter(|(key, value)| was.get(key) != Some(value) && key != "heldImages"),
        );
        if !changed.is_empty() {
            let mut change = Value::Object(changed);
            self.of_node_event(now, node_id, policy, |node| {
                change["node"] = node.into();
                json!({"inventory": change})
            });
        }
    }

    /// What a server brought along that came back is stopped by the Manager, without a word in the history
    /// of its job.
    fn of_strays(
        &mut self,
        now: Now,
        node_id: &NodeId,
        before: &NodeInventory,
        inventory: &NodeInventory,
        policy: &Policy,
    ) {
        let is_here = |start_id: &StartId| {
            let mut here = inventory.assigned_jobs.iter();
            here.any(|it| it.start_id == *start_id)
        };
        for gone in &before.assigned_jobs {
            if is_here(&gone.start_id) || self.over.remove(&gone.start_id) {
                continue;
            }
            if let Some(place) = path_of(&gone.job_id, policy) {
                let what = self.of_instance("jobStopped", &place, (&gone.job_id, node_id), policy);
                self.push(now, what, None);
            }
        }
    }
}
