//! The fleet: every node, every binding, and what follows from them, kept up to date step by step.
//!
//! Derived values (what is reserved, what is held for groups, who is a spare) are worked out when
//! something changes and never at a decision. [`Fleet::recompute`] works all of them out again from
//! the bindings alone; a difference is a bug.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::inventory::{Capability, NodeInventory};
use greenroom_types::pool::{CandidateInstanceType, Pool, Reliability, ScaleOut, Tier, TierKind};
use greenroom_types::{BundleId, JobId, JobName, NodeId, PoolName, TemplateName};

use crate::binding::{JobRef, Side};
use crate::groups::BundlePlan;
use crate::index::{Index, Mask};
use crate::lookup::Lookup;
use crate::node::{
    Listed, Node, NodeCondition, NodeFacts, Released, ServicePorts, Source, Spare, TierGate,
};
use crate::offer::Offer;
use crate::port::Port;
use crate::reserved::Reserved;

mod bindings;
mod check;
mod order;

pub use check::Drift;

pub(crate) use crate::index::Slot;

/// All that placement looks at.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    pools: Vec<Pool>,
    /// Per pool and tier.
    tiers: Vec<Vec<TierState>>,
    nodes: Vec<Node>,
    vacant: Vec<Slot>,
    /// Their order by id.
    ids: BTreeMap<NodeId, Slot>,
    slots: Lookup<NodeId, Slot>,
    jobs: Lookup<JobId, JobSides>,
    bundles: Lookup<BundleId, Known>,
    images: BTreeMap<TemplateName, Template>,
    /// Templates by their images.
    by_image: BTreeMap<String, Vec<u32>>,
    /// Numbers of templates given so far.
    templates: u32,
    index: Index,
    revision: u64,
    services: Vec<ServicePorts>,
    seq: u64,
}

/// Images of a template, each once.
#[derive(Clone, Debug, Default)]
struct Template {
    number: u32,
    images: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct TierState {
    gate: TierGate,
    members: BTreeSet<Slot>,
    /// Offers of the shapes it may buy, in their order.
    shapes: Vec<Offer>,
}

impl TierState {
    fn new(tier: &Tier) -> Self {
        Self {
            shapes: tier
                .candidate_instance_types
                .iter()
                .map(Offer::of_shape)
                .collect(),
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct JobSides {
    binding: Option<Slot>,
    target: Option<Slot>,
}

/// What is known of a bundle.
#[derive(Clone, Debug, Default)]
struct Known {
    plan: Option<Arc<BundlePlan>>,
    /// Demands of its groups for which the index has bits.
    masks: Vec<Mask>,
    /// By copy; few, so they are searched.
    copies: Vec<(u32, CopyState)>,
}

/// One copy of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyState {
    pub(crate) members: Vec<Member>,
    /// Members that want no room held (INTRA-05).
    released: Released,
}

impl CopyState {
    /// True for a member that is bound nowhere and wants room held.
    pub(crate) fn waits(&self, name: &JobName) -> bool {
        !self.released.contains(name) && self.members.iter().all(|member| member.name != *name)
    }
}

/// One side of a job of a copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) name: JobName,
    pub(crate) job_id: JobId,
    pub(crate) side: Side,
    pub(crate) slot: Slot,
}

// === impl Known ===

impl Known {
    fn copy(&self, replica: u32) -> Option<&CopyState> {
        let at = self
            .copies
            .iter()
            .position(|(known, _)| *known == replica)?;
        Some(&self.copies[at].1)
    }

    fn copy_mut(&mut self, replica: u32) -> Option<&mut CopyState> {
        let at = self
            .copies
            .iter()
            .position(|(known, _)| *known == replica)?;
        Some(&mut self.copies[at].1)
    }

    fn copy_or_new(&mut self, replica: u32) -> &mut CopyState {
        let known = self.copies.iter().position(|(known, _)| *known == replica);
        let at = known.unwrap_or_else(|| {
            self.copies.push((replica, CopyState::default()));
            self.copies.len() - 1
        });
        &mut self.copies[at].1
    }
}

// === impl JobSides ===

impl JobSides {
    const fn side(&mut self, side: Side) -> &mut Option<Slot> {
        match side {
            Side::Binding => &mut self.binding,
            Side::MigrationTarget => &mut self.target,
        }
    }

    const fn get(self, side: Side) -> Option<Slot> {
        match side {
            Side::Binding => self.binding,
            Side::MigrationTarget => self.target,
        }
    }
}

// === impl Fleet: settings ===

impl Fleet {
    /// An empty fleet over these pools. Pools do not change while a policy lives (CONF-16).
    pub fn new(pools: Vec<Pool>) -> Self {
        let tiers = pools
            .iter()
            .map(|pool| pool.tiers.iter().map(TierState::new).collect())
            .collect();
        Self {
            index: Index::new(&pools),
            pools,
            tiers,
            ..Self::default()
        }
    }

    /// The pools, in the order of the settings.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// The pool of that name.
    pub fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    /// Opens or closes a tier for purchases (PROV-12). Unknown names change nothing.
    pub fn set_tier_gate(&mut self, pool: &PoolName, tier: &str, gate: TierGate) {
        if let Some((pool, tier)) = self.tier_index(pool, tier) {
            if self.tiers[pool][tier].gate != gate {
                self.revision += 1;
            }
            self.tiers[pool][tier].gate = gate;
        }
    }

    /// Grows with everything that can change an answer of [`crate::place`], and with nothing that
    /// cannot: an inventory that says what was known, a condition that stays as it is. Whoever got no
    /// place gets none while this stands still, asked the same again.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Images of a template, for warmth; an empty list removes it (PREFETCH-06). A reference that
    /// stands twice counts once.
    pub fn set_template_images(&mut self, template: TemplateName, images: &[String]) {
        let mut distinct: Vec<String> = Vec::with_capacity(images.len());
        for image in images {
            if !distinct.contains(image) {
                distinct.push(image.clone());
            }
        }
        self.put_template(template, distinct);
    }

    /// Images of a template, each once.
    pub fn template_images(&self, template: &TemplateName) -> &[String] {
        self.images
            .get(template)
            .map_or(&[], |template| template.images.as_slice())
    }

    /// Host ports of all configured node services (PORT-06).
    pub fn set_service_ports(&mut self, services: Vec<ServicePorts>) {
        self.revision += 1;
        self.services = services;
        for slot in self.ids.values().copied().collect::<Vec<_>>() {
            self.claim_service_ports(slot);
            self.index.take(slot, &self.nodes);
        }
    }

    /// Host ports of all configured node services.
    pub fn service_ports(&self) -> &[ServicePorts] {
        &self.services
    }

    fn tier_index(&self, pool: &PoolName, tier: &str) -> Option<(usize, usize)> {
        let at = self.pool_index(pool)?;
        let tier = self.pools[at]
            .tiers
            .iter()
            .position(|known| known.name.as_str() == tier)?;
        Some((at, tier))
    }

    pub(crate) fn pool_index(&self, pool: &PoolName) -> Option<usize> {
        self.pools.iter().position(|known| known.name == *pool)
    }

    pub(crate) fn gate(&self, pool: usize, tier: usize) -> TierGate {
        self.tiers[pool][tier].gate
    }

    pub(crate) fn tier_members(&self, pool: usize, tier: usize) -> impl Iterator<Item = &Node> {
        self.tiers[pool][tier]
            .members
            .iter()
            .map(|&slot| &self.nodes[slot])
    }

    /// Nodes that count under `maxNodes` (TIER-08).
    pub(crate) fn tier_count(&self, pool: usize, tier: usize) -> usize {
        self.index.counted(pool, tier)
    }

    /// Nodes of a tier that count under `maxNodes` (TIER-08); 0 for an unknown tier.
    pub fn tier_size(&self, pool: &PoolName, tier: &str) -> usize {
        self.tier_index(pool, tier)
            .map_or(0, |(pool, tier)| self.tier_count(pool, tier))
    }
}

// === impl Fleet: nodes ===

impl Fleet {
    /// Takes what a node's tags say; effective at once (TIER-09).
    pub fn upsert_node(&mut self, facts: NodeFacts) {
        let slot = self.slot(&facts.node_id);
        self.nodes[slot].facts = Some(facts);
        self.settle(slot);
    }

    /// Takes a node's picture of itself; it is no longer prospective (PROV-04). Numbers that make no
    /// sense are made usable (PLACE-12).
    pub fn set_inventory(&mut self, node: &NodeId, inventory: Arc<NodeInventory>) {
        let slot = self.slot(node);
        if let Source::Inventory(known) = &mut self.nodes[slot].source
            && **known == *inventory
        {
            *known = inventory;
            return;
        }
        let same_images = self.nodes[slot]
            .inventory()
            .is_some_and(|before| before.held_images == inventory.held_images);
        self.nodes[slot].take_inventory(inventory);
        if !same_images {
            self.warm_up(slot);
        }
        self.settle(slot);
    }

    /// Gives a requested node the numbers of its shape (PROV-03). Its zone is the one in its facts,
    /// or, in a tier of Oracle's, the tier's availability domain.
    pub fn set_prospective(&mut self, node: &NodeId, shape: &CandidateInstanceType) {
        let slot = self.slot(node);
        self.nodes[slot].take_shape(shape);
        self.warm_up(slot);
        self.settle(slot);
    }

    /// Forgets what a node offered: it is invisible until its next inventory.
    pub fn clear_inventory(&mut self, node: &NodeId) {
        if let Some(&slot) = self.slots.get(node) {
            let entry = &mut self.nodes[slot];
            entry.source = Source::Unknown;
            entry.offer = Default::default();
            entry.reported = Reserved::default();
            entry.warm.clear();
            entry.foreign.clear();
            entry.listed.clear();
            entry.gone.clear();
            self.settle(slot);
        }
    }

    /// Takes what stands in the way of a node.
    pub fn set_condition(&mut self, node: &NodeId, condition: NodeCondition) {
        let slot = self.slot(node);
        if self.nodes[slot].condition != condition {
            self.nodes[slot].condition = condition;
            self.revision += 1;
            self.index.take(slot, &self.nodes);
        }
    }

    /// Changes what stands in the way of a node.
    pub fn update_condition(&mut self, node: &NodeId, change: impl FnOnce(&mut NodeCondition)) {
        let slot = self.slot(node);
        let mut condition = self.nodes[slot].condition;
        change(&mut condition);
        self.set_condition(node, condition);
    }

    /// Jobs that a node's inventory lists, with their tags (RESV-07); those bound to the node are
    /// passed over, now and later.
    pub fn set_foreign(&mut self, node: &NodeId, jobs: Vec<(JobId, JobRef)>) {
        let slot = self.slot(node);
        if self.nodes[slot].foreign != jobs {
            self.nodes[slot].foreign = jobs;
            self.revision += 1;
        }
    }

    /// What a node's inventory says that jobs hold there, each job once, and once more for what it has
    /// beside its binding: it counts with what is bound, or beyond it. What has `gone` since does not
    /// count, though the inventory reports it as taken (RESV-07).
    pub fn set_listed(&mut self, node: &NodeId, jobs: Vec<Listed>, gone: Vec<Listed>) {
        let slot = self.slot(node);
        let entry = &mut self.nodes[slot];
        if entry.listed != jobs || entry.gone != gone {
            entry.listed = jobs;
            entry.gone = gone;
            self.settle(slot);
        }
    }

    /// Forgets a node. What is still bound to it stays bound, to a node that placement cannot see.
    pub fn remove_node(&mut self, node: &NodeId) {
        let Some(&slot) = self.slots.get(node) else {
            return;
        };
        let entry = &mut self.nodes[slot];
        *entry = Node {
            id: entry.id.clone(),
            slot,
            tier: entry.tier,
            bound: std::mem::take(&mut entry.bound),
            holds: std::mem::take(&mut entry.holds),
            ..Node::default()
        };
        self.settle(slot);
        self.vacate(slot);
    }

    /// True for a node with facts.
    pub fn contains(&self, node: &NodeId) -> bool {
        self.facts(node).is_some()
    }

    /// Nodes with facts, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeFacts> {
        self.ids
            .values()
            .filter_map(|&slot| self.nodes[slot].facts.as_ref())
    }

    /// What a node's tags say.
    pub fn facts(&self, node: &NodeId) -> Option<&NodeFacts> {
        self.node(node)?.facts.as_ref()
    }

    /// What stands in the way of a node.
    pub fn condition(&self, node: &NodeId) -> Option<&NodeCondition> {
        self.node(node).map(|node| &node.condition)
    }

    /// A node's last picture of itself, its numbers made usable.
    pub fn inventory(&self, node: &NodeId) -> Option<&Arc<NodeInventory>> {
        self.node(node)?.inventory()
    }

    /// True while the numbers of its shape stand for a node (PROV-04).
    pub fn is_prospective(&self, node: &NodeId) -> bool {
        self.node(node).is_some_and(Node::is_prospective)
    }

    /// PLACE-07, without looking at exclusions.
    pub fn is_reachable(&self, node: &NodeId) -> bool {
        self.node(node).is_some_and(Node::is_reachable)
    }

    /// Cordoned by the policy or by its own operator (PLACE-08).
    pub fn is_cordoned(&self, node: &NodeId) -> bool {
        self.node(node).is_some_and(Node::is_cordoned)
    }

    /// Pool and tier of a node (TIER-05).
    pub fn tier_of(&self, node: &NodeId) -> Option<(&Pool, &Tier)> {
        let (pool, tier) = self.node(node)?.tier?;
        Some((&self.pools[pool], &self.pools[pool].tiers[tier]))
    }

    /// Its zone, where known.
    pub fn az_of(&self, node: &NodeId) -> Option<&str> {
        self.node(node)?.az.as_deref()
    }

    /// Reliability of a node: its tag, else its tier's (TIER-07).
    pub fn reliability_of(&self, node: &NodeId) -> Option<Reliability> {
        self.node(node).and_then(|node| self.node_reliability(node))
    }

    /// Specification of a spare that carries no job and was not consumed (SPARE-04, PLACE-24).
    pub fn unconsumed_spare(&self, node: &NodeId) -> Option<&Spare> {
        self.node(node)?.unconsumed_spare()
    }

    /// How many of these images a node holds (PREFETCH-07).
    pub fn held_count(&self, node: &NodeId, images: &[String]) -> u32 {
        self.node(node).map_or(0, |node| node.held_count(images))
    }

    /// True when the node has these capabilities free (NSVC-02).
    pub fn offers(&self, node: &NodeId, needs: &[Capability]) -> bool {
        self.node(node).is_some_and(|node| {
            node.is_considered()
                && node
                    .offer
                    .missing_capability(&node.reserved, needs)
                    .is_none()
        })
    }

    /// vCPUs of a node that are not reserved; below zero when it shrank (PROV-05).
    pub fn free_capacity(&self, node: &NodeId) -> Option<f64> {
        self.node(node)
            .filter(|node| node.is_considered())
            .map(|node| node.offer.capacity - node.reserved.capacity)
    }

    /// What is reserved on a node: bindings and holds, each field raised to what is reported
    /// (RESV-01, RESV-02).
    pub fn reserved(&self, node: &NodeId) -> Option<&Reserved> {
        self.node(node).map(|node| &node.reserved)
    }

    /// What is reserved on a node by bindings and holds alone (RESV-01).
    pub fn derived(&self, node: &NodeId) -> Option<Reserved> {
        self.node(node).map(|node| node.derive(|_| false))
    }

    pub(crate) fn node(&self, node: &NodeId) -> Option<&Node> {
        self.slots.get(node).map(|&slot| &self.nodes[slot])
    }

    pub(crate) fn at(&self, slot: Slot) -> &Node {
        &self.nodes[slot]
    }

    /// Nodes that placement looks at, by id (PLACE-03).
    pub(crate) fn considered(&self) -> impl Iterator<Item = &Node> {
        self.ids
            .values()
            .map(|&slot| &self.nodes[slot])
            .filter(|node| node.is_considered())
    }

    /// Kind of a node's tier (TIER-07).
    pub(crate) fn cloud(&self, node: &Node) -> Option<TierKind> {
        node.tier
            .map(|(pool, tier)| self.pools[pool].tiers[tier].kind)
    }

    pub(crate) fn node_reliability(&self, node: &Node) -> Option<Reliability> {
        let tagged = node.facts.as_ref().and_then(|facts| facts.reliability);
        tagged.or_else(|| {
            let (pool, tier) = node.tier?;
            Some(self.pools[pool].tiers[tier].reliability())
        })
    }

    fn slot(&mut self, node: &NodeId) -> Slot {
        if let Some(&slot) = self.slots.get(node) {
            return slot;
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        self.nodes[slot] = Node {
            id: node.clone(),
            slot,
            ..Node::default()
        };
        self.ids.insert(node.clone(), slot);
        self.slots.insert(node.clone(), slot);
        slot
    }

    /// Gives the slot of a forgotten node free once nothing is bound to it.
    fn vacate(&mut self, slot: Slot) {
        let node = &self.nodes[slot];
        let empty = node.facts.is_none()
            && node.bound.is_empty()
            && matches!(node.source, Source::Unknown)
            && self.slots.get(&node.id) == Some(&slot);
        if empty {
            self.ids.remove(&node.id);
            self.slots.remove(&node.id);
            self.nodes[slot] = Node::default();
            self.vacant.push(slot);
        }
    }

    /// Works out all that follows from facts and offer of a node.
    fn settle(&mut self, slot: Slot) {
        let node = &self.nodes[slot];
        let facts = node.facts.as_ref();
        let pool = facts
            .and_then(|facts| facts.pool.as_ref())
            .and_then(|name| self.pool_index(name));
        let tier = pool.and_then(|pool| {
            let tiers = &self.pools[pool].tiers;
            let tier = match facts.and_then(|facts| facts.tier.as_ref()) {
                Some(name) => tiers.iter().position(|tier| tier.name == *name),
                None => tiers
                    .iter()
                    .position(|tier| tier.scale_out == ScaleOut::Fixed),
            };
            tier.map(|tier| (pool, tier))
        });
        let az = facts.and_then(|facts| facts.az.clone()).or_else(|| {
            let (pool, tier) = tier.filter(|_| node.is_prospective())?;
            self.pools[pool].tiers[tier].known_az().map(str::to_owned)
        });
        let before = node.tier;
        if before != tier {
            if let Some((pool, tier)) = before {
                self.tiers[pool][tier].members.remove(&slot);
            }
            if let Some((pool, tier)) = tier {
                self.tiers[pool][tier].members.insert(slot);
            }
        }
        let bought = tier.is_some_and(|(pool, tier)| self.pools[pool].tiers[tier].is_elastic());
        let node = &mut self.nodes[slot];
        node.pool = pool;
        node.tier = tier;
        node.az = az;
        // A tag that comes late: whoever is here has consumed it (SPARE-04).
        let is_spare = node
            .facts
            .as_ref()
            .is_some_and(|facts| facts.spare.is_some());
        node.consumed |= is_spare && !node.bound.is_empty() && bought;
        node.sum_up();
        self.revision += 1;
        self.claim_service_ports(slot);
        self.index.take(slot, &self.nodes);
    }

    /// Ports of the node services that the node carries, or will carry (PORT-06). Whether their
    /// capabilities are free at the moment is not asked: the service runs, or will.
    fn claim_service_ports(&mut self, slot: Slot) {
        let node = &self.nodes[slot];
        let claims = match node.pool {
            Some(pool) => self.service_claims(pool, &node.offer).collect(),
            None => Vec::new(),
        };
        self.nodes[slot].service_ports = claims;
    }

    /// Ports that node services take on a node of that pool with that offer, with their service.
    pub(crate) fn service_claims(
        &self,
        pool: usize,
        offer: &Offer,
    ) -> impl Iterator<Item = (Port, usize)> {
        let pool = &self.pools[pool].name;
        let empty = Reserved::default();
        self.services
            .iter()
            .enumerate()
            .filter(move |(_, service)| {
                service.pools.contains(pool)
                    && offer
                        .missing_capability(&empty, &service.consumes)
                        .is_none()
            })
            .flat_map(|(at, service)| service.ports.iter().map(move |&port| (port, at)))
    }

    pub(crate) fn shapes(&self, pool: usize, tier: usize) -> &[Offer] {
        &self.tiers[pool][tier].shapes
    }
}

/// What is known of a tier's future nodes.
pub(crate) trait KnownAz {
    /// Zone of a node that the tier buys, where it is known beforehand (RESIL-03).
    fn known_az(&self) -> Option<&str>;
}

impl KnownAz for Tier {
    fn known_az(&self) -> Option<&str> {
        match self.kind {
            TierKind::Oci => self.region.as_deref().filter(|region| !region.is_empty()),
            TierKind::Aws | TierKind::LocalServers => None,
        }
    }
}
