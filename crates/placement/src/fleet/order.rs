//! What the index of the tiers needs to know besides the nodes: for which templates a node is warm,
//! and which demands are made often enough to be worked out beforehand.

use greenroom_types::{BundleId, JobId, TemplateName};

use super::{Fleet, Slot, Template};
use crate::index::{Class, Mask};
use crate::node::Node;

// === impl Fleet ===

impl Fleet {
    /// Classes of the nodes of a tier that take work.
    pub(crate) fn classes(&self, pool: usize, tier: usize) -> impl Iterator<Item = &Class> {
        self.index.classes(pool, tier)
    }

    /// True for a node that holds images of the template of that number.
    pub(crate) fn is_warm(&self, slot: Slot, template: u32) -> bool {
        self.index.is_warm(slot, template)
    }

    /// Number of a template that has images.
    pub(crate) fn template_number(&self, template: &TemplateName) -> Option<u32> {
        self.images.get(template).map(|template| template.number)
    }

    /// Demands of a group of a bundle for which there are bits.
    pub(crate) fn mask(&self, bundle_id: &BundleId, group: usize) -> Option<Mask> {
        self.bundles.get(bundle_id)?.masks.get(group).copied()
    }

    /// Nodes of both sides of a job.
    pub(crate) fn slots_of_job(&self, job_id: &JobId) -> impl Iterator<Item = Slot> {
        let sides = self.jobs.get(job_id);
        let slots = sides.map(|sides| [sides.binding, sides.target]);
        slots.into_iter().flatten().flatten()
    }

    /// Replaces the images of a template; none removes it.
    pub(super) fn put_template(&mut self, template: TemplateName, images: Vec<String>) {
        self.revision += 1;
        let before = if images.is_empty() {
            self.images.remove(&template)
        } else {
            let number = self.template_number(&template).unwrap_or_else(|| {
                self.templates += 1;
                self.templates
            });
            for image in &images {
                let numbers = self.by_image.entry(image.clone()).or_default();
                if !numbers.contains(&number) {
                    numbers.push(number);
                }
            }
            self.images
                .insert(template.clone(), Template { number, images })
        };
        for image in before.iter().flat_map(|before| &before.images) {
            let now = self.images.get(&template);
            if now.is_some_and(|now| now.images.contains(image)) {
                continue;
            }
            if let (Some(before), Some(numbers)) = (&before, self.by_image.get_mut(image)) {
                numbers.retain(|&number| number != before.number);
                if numbers.is_empty() {
                    self.by_image.remove(image);
                }
            }
        }
        for slot in 0..self.nodes.len() {
            self.warm_up(slot);
            self.index.take(slot, &self.nodes);
        }
    }

    /// Works out for which templates a node is warm. The index is told by whoever calls.
    pub(super) fn warm_up(&mut self, slot: Slot) {
        self.nodes[slot].warm = self.warmth_of(&self.nodes[slot]);
    }

    /// Templates of which a node holds images, and how many; in the order of their numbers.
    pub(super) fn warmth_of(&self, node: &Node) -> Vec<(u32, u32)> {
        let mut warm: Vec<(u32, u32)> = Vec::new();
        let Some(inventory) = node.inventory() else {
            return warm;
        };
        for (at, held) in inventory.held_images.iter().enumerate() {
            let Some(numbers) = self.by_image.get(&held.reference) else {
                continue;
            };
            let earlier = &inventory.held_images[..at];
            if earlier.iter().any(|it| it.reference == held.reference) {
                continue;
            }
            for &number in numbers {
                match warm.iter_mut().find(|(known, _)| *known == number) {
                    Some((_, count)) => *count += 1,
                    None => warm.push((number, 1)),
                }
            }
        }
        warm.sort_unstable();
        warm
    }

    /// Holds bits for what the groups of a bundle ask for, and gives up those it had.
    pub(super) fn hold_demands(&mut self, bundle_id: &BundleId) {
        let Some(known) = self.bundles.get_mut(bundle_id) else {
            return;
        };
        let Some(plan) = &known.plan else { return };
        let mut is_new = false;
        let mut masks: Vec<Mask> = plan
            .groups()
            .iter()
            .map(|group| {
                let (mask, new) = self.index.demands.hold(&group.needs);
                is_new |= new;
                mask
            })
            .collect();
        if masks.iter().all(|mask| *mask == Mask::default()) {
            masks = Vec::new();
        }
        for mask in std::mem::replace(&mut known.masks, masks) {
            self.index.demands.release(mask);
        }
        if is_new {
            for slot in 0..self.nodes.len() {
                self.index.take(slot, &self.nodes);
            }
        }
    }
}
