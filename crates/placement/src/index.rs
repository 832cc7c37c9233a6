//! The nodes of each tier in the order in which a decision wants to see them.
//!
//! Nodes that take work are sorted into classes: same zone, same runtime, same standing as a spare, booted or not.
//! Within a class everything in the ranking key but packing, id and warmth is the same for all, so
//! a class is one ordered tree; warmth has trees of its own, by template and number of images held.
//! A decision ranks classes first and then walks few trees from their best end (`walk.rs`).
//!
//! The index holds nothing that could not be worked out again from the nodes; [`Index::faults`]
//! does so. It never decides: what it offers is judged by the chain of filters.

mod demand;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::inventory::RuntimeKind;
use greenroom_types::node::NodeState;
use greenroom_types::pool::{PackingStrategy, Pool};

pub(crate) use demand::{Demands, EMPTY, Mask, SHARED};
pub(crate) use tree::{Ask, Free, Key, Tree};

use crate::key::billionths;
use crate::node::{Node, Spare};

/// Index of a node in the fleet's table.
pub(crate) type Slot = usize;

/// The order of all nodes that take work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Per pool and tier.
    tiers: Vec<Vec<TierIndex>>,
    /// By slot.
    rows: Vec<Row>,
    pub(crate) demands: Demands,
}

#[derive(Clone, Debug, Default)]
struct TierIndex {
    strategy: PackingStrategy,
    classes: Vec<Class>,
    /// Nodes that count under `maxNodes` (TIER-08).
    counted: usize,
}

/// Nodes between which only packing, warmth and id decide.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) prospective: bool,
    /// What it is kept for, while it is a spare that nobody consumed; `warm_for` is left out.
    pub(crate) spare: Option<Spare>,
    pub(crate) az: Option<String>,
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) all: Tree,
    /// By template and number of its images held, from one up.
    warm: BTreeMap<(u32, u32), Tree>,
}

/// What the index knows of a node.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Where it counts under `maxNodes`.
    counted: Option<(usize, usize)>,
    spot: Option<Spot>,
}

#[derive(Clone, Debug, PartialEq)]
struct Spot {
    pool: usize,
    tier: usize,
    class: usize,
    key: Key,
    free: Free,
    /// Templates of which it holds images, and how many of each.
    warm: Vec<(u32, u32)>,
}

// === impl Class ===

impl Class {
    fn of(node: &Node) -> Self {
        Self {
            prospective: node.is_prospective(),
            spare: node.unconsumed_spare().map(|spare| Spare {
                warm_for: Vec::new(),
                ..spare.clone()
            }),
            az: node.az.clone(),
            runtime: node.offer.runtime,
            all: Tree::default(),
            warm: BTreeMap::new(),
        }
    }

    fn is_of(&self, node: &Node) -> bool {
        let same_spare = match (&self.spare, node.unconsumed_spare()) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => {
                ours.exclusive == theirs.exclusive && ours.reserved_for == theirs.reserved_for
            }
            _ => false,
        };
        same_spare
            && self.prospective == node.is_prospective()
            && self.az == node.az
            && self.runtime == node.offer.runtime
    }

    /// Its trees for a template, with the number of images held.
    pub(crate) fn warm_for(&self, template: u32) -> impl Iterator<Item = (u32, &Tree)> {
        self.warm
            .range((template, 0)..=(template, u32::MAX))
            .map(|((_, held), tree)| (*held, tree))
    }

    fn insert(&mut self, spot: &Spot, nodes: &[Node]) {
        self.all.insert(spot.key, spot.free, nodes);
        for &warmth in &spot.warm {
            let tree = self.warm.entry(warmth).or_default();
            tree.insert(spot.key, spot.free, nodes);
        }
    }

    fn remove(&mut self, spot: &Spot, nodes: &[Node]) {
        self.all.remove(&spot.key, nodes);
        for warmth in &spot.warm {
            if let Some(tree) = self.warm.get_mut(warmth) {
                tree.remove(&spot.key, nodes);
                if tree.is_empty() {
                    self.warm.remove(warmth);
                }
            }
        }
    }

    fn update(&mut self, spot: &Spot, nodes: &[Node]) {
        self.all.update(&spot.key, spot.free, nodes);
        for warmth in &spot.warm {
            if let Some(tree) = self.warm.get_mut(warmth) {
                tree.update(&spot.key, spot.free, nodes);
            }
        }
    }
}

// === impl TierIndex ===

impl TierIndex {
    /// The class of a node; one that is empty is given to it when there is none yet.
    fn class_of(&mut self, node: &Node, hint: Option<usize>) -> usize {
        let fits = |at: usize| !self.classes[at].all.is_empty() && self.classes[at].is_of(node);
        if let Some(at) = hint.filter(|&at| self.classes[at].is_of(node)) {
            return at;
        }
        if let Some(at) = (0..self.classes.len()).find(|&at| fits(at)) {
            return at;
        }
        let class = Class::of(node);
        match self.classes.iter().position(|known| known.all.is_empty()) {
            // The one that the node is about to leave is not empty yet.
            Some(at) => {
                self.classes[at] = class;
                at
            }
            None => {
                self.classes.push(class);
                self.classes.len() - 1
            }
        }
    }
}

// === impl Index ===

impl Index {
    pub(crate) fn new(pools: &[Pool]) -> Self {
        let tier = |strategy| TierIndex {
            strategy,
            ..TierIndex::default()
        };
        Self {
            tiers: pools
                .iter()
                .map(|pool| {
                    let strategies = pool.tiers.iter().map(|tier| tier.packing_strategy);
                    strategies.map(tier).collect()
                })
                .collect(),
            ..Self::default()
        }
    }

    /// Nodes of a tier that count under `maxNodes`.
    pub(crate) fn counted(&self, pool: usize, tier: usize) -> usize {
        self.tiers[pool][tier].counted
    }

    /// The classes of a tier that have nodes.
    pub(crate) fn classes(&self, pool: usize, tier: usize) -> impl Iterator<Item = &Class> {
        let classes = self.tiers[pool][tier].classes.iter();
        classes.filter(|class| !class.all.is_empty())
    }

    /// True for a node that holds images of a template.
    pub(crate) fn is_warm(&self, slot: Slot, template: u32) -> bool {
        self.rows[slot]
            .spot
            .as_ref()
            .is_some_and(|spot| spot.warm.iter().any(|(known, _)| *known == template))
    }

    /// Takes a node as it is now.
    pub(crate) fn take(&mut self, slot: Slot, nodes: &[Node]) {
        if self.rows.len() <= slot {
            self.rows.resize_with(slot + 1, Row::default);
        }
        let node = &nodes[slot];
        let counted = counted(node);
        let before = std::mem::replace(&mut self.rows[slot].counted, counted);
        if before != counted {
            if let Some((pool, tier)) = before {
                self.tiers[pool][tier].counted -= 1;
            }
            if let Some((pool, tier)) = counted {
                self.tiers[pool][tier].counted += 1;
            }
        }
        let Some((pool, tier)) = node.tier.filter(|_| takes_work(node)) else {
            self.drop(slot, nodes);
            return;
        };
        let strategy = self.tiers[pool][tier].strategy;
        let (key, free) = standing(node, strategy, &self.demands);
        let before = self.rows[slot].spot.as_mut();
        let before = before.filter(|spot| (spot.pool, spot.tier) == (pool, tier));
        if let Some(spot) = before
            && self.tiers[pool][tier].classes[spot.class].is_of(node)
            && spot.key == key
            && spot.warm == node.warm
        {
            if spot.free != free {
                spot.free = free;
                self.tiers[pool][tier].classes[spot.class].update(spot, nodes);
            }
            return;
        }
        let hint = self.rows[slot]
            .spot
            .as_ref()
            .filter(|spot| (spot.pool, spot.tier) == (pool, tier))
            .map(|spot| spot.class);
        self.drop(slot, nodes);
        let index = &mut self.tiers[pool][tier];
        let class = index.class_of(node, hint);
        let spot = Spot {
            pool,
            tier,
            class,
            key,
            free,
            warm: node.warm.clone(),
        };
        index.classes[class].insert(&spot, nodes);
        self.rows[slot].spot = Some(spot);
    }

    /// Takes a node out. Its id is still the one it came with.
    fn drop(&mut self, slot: Slot, nodes: &[Node]) {
        if let Some(spot) = self.rows[slot].spot.take() {
            self.tiers[spot.pool][spot.tier].classes[spot.class].remove(&spot, nodes);
        }
    }

    /// All in which the index differs from what the nodes say.
    pub(crate) fn faults(&self, nodes: &[Node]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut counts: Vec<Vec<usize>> = self
            .tiers
            .iter()
            .map(|tiers| vec![0; tiers.len()])
            .collect();
        for (slot, node) in nodes.iter().enumerate() {
            let nothing = Row::default();
            let row = self.rows.get(slot).unwrap_or(&nothing);
            if let Some((pool, tier)) = counted(node) {
                counts[pool][tier] += 1;
            }
            let place = node.tier.filter(|_| takes_work(node));
            let right = match (place, &row.spot) {
                (None, None) => true,
                (Some((pool, tier)), Some(spot)) => {
                    let strategy = self.tiers[pool][tier].strategy;
                    let (key, free) = standing(node, strategy, &self.demands);
                    (spot.pool, spot.tier, spot.key, spot.free) == (pool, tier, key, free)
                        && spot.warm == node.warm
                        && self.tiers[pool][tier].classes[spot.class].is_of(node)
                }
                _ => false,
            };
            if !right || row.counted != counted(node) {
                faults.push(format!("row of {}: {row:?}", node.id));
            }
        }
        for (pool, tiers) in self.tiers.iter().enumerate() {
            for (tier, index) in tiers.iter().enumerate() {
                if index.counted != counts[pool][tier] {
                    faults.push(format!("count of tier {pool}/{tier}: {}", index.counted));
                }
                for (at, class) in index.classes.iter().enumerate() {
                    let here =
                        |spot: &&Spot| (spot.pool, spot.tier, spot.class) == (pool, tier, at);
                    let spots = || {
                        self.rows
                            .iter()
                            .filter_map(|row| row.spot.as_ref())
                            .filter(here)
                    };
                    let mut trees = BTreeSet::new();
                    trees.extend(spots().flat_map(|spot| spot.warm.iter().copied()));
                    let mut right = holds_exactly(&class.all, spots(), nodes)
                        && trees.iter().eq(class.warm.keys());
                    for (warmth, tree) in &class.warm {
                        let warm = spots().filter(|spot| spot.warm.contains(warmth));
                        right &= holds_exactly(tree, warm, nodes);
                    }
                    if !right {
                        faults.push(format!("class {at} of tier {pool}/{tier}"));
                    }
                }
            }
        }
        faults
    }
}

fn holds_exactly<'a>(tree: &Tree, spots: impl Iterator<Item = &'a Spot>, nodes: &[Node]) -> bool {
    let (contents, sound) = tree.contents(nodes);
    let mut kept: Vec<(Key, Free)> = contents;
    let mut wanted: Vec<(Key, Free)> = spots.map(|spot| (spot.key, spot.free)).collect();
    kept.sort_by_key(|(key, _)| key.slot);
    wanted.sort_by_key(|(key, _)| key.slot);
    sound && kept == wanted
}

/// TIER-08.
fn counted(node: &Node) -> Option<(usize, usize)> {
    node.tier
        .filter(|_| node.condition.state != NodeState::Stopped)
}

/// The filters for which neither the request nor the load of the node matters (PLACE-03, PLACE-06
/// to PLACE-08, PLACE-34, PLACE-36).
fn takes_work(node: &Node) -> bool {
    node.is_considered()
        && !node.condition.unhealthy
        && !node.condition.recently_failed
        && node.is_reachable()
        && !node.is_cordoned()
        && !node.is_disk_low()
        && !node.is_runtime_down()
}

/// Place in the order, and what is free, for a job that has nothing on the node yet.
fn standing(node: &Node, strategy: PackingStrategy, demands: &Demands) -> (Key, Free) {
    let (offer, reserved) = (&node.offer, &node.reserved);
    let used = billionths(reserved.capacity, offer.capacity);
    let capacity = offer.capacity - reserved.capacity;
    let met = demands.met_by(node);
    let free = Free {
        // An offer that is no number gives room to nobody.
        capacity: if capacity.is_nan() {
            f64::NEG_INFINITY
        } else {
            capacity
        },
        cores: offer.cores.saturating_sub(reserved.cores),
        marks: met.marks,
        ports: met.ports,
    };
    (Key::new(packing_key(strategy, used), node), free)
}

/// The used fraction as a number of which the smaller is the better.
const fn packing_key(strategy: PackingStrategy, used: i64) -> i64 {
    match strategy {
        // Reverses the order without overflow.
        PackingStrategy::Binpack => !used,
        PackingStrategy::Spread => used,
    }
}

/// The used fraction that stands in a place of the order.
pub(crate) const fn used_of(strategy: PackingStrategy, key: i64) -> i64 {
    packing_key(strategy, key)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greenroom_types::inventory::NodeInventory;
    use greenroom_types::pool::{LaunchMode, ScaleOut, Tier, TierKind};

    use super::*;
    use crate::node::NodeFacts;

    /// Three nodes of one class, the first of which is warm for a template.
    fn indexed() -> (Index, Vec<Node>) {
        let tier = |name: &str| Tier {
            name: name.into(),
            kind: TierKind::LocalServers,
            region: None,
            packing_strategy: PackingStrategy::Binpack,
            scale_out: ScaleOut::Fixed,
            candidate_instance_types: Vec::new(),
            launch_mode: LaunchMode::OnDemand,
            reliability: None,
            max_nodes: None,
            root_volume: None,
            placement_lead_ms: None,
            provision_timeout_ms: None,
        };
        let mut index = Index::new(&[Pool {
            name: "p".into(),
            tiers: vec![tier("own"), tier("other")],
        }]);
        let nodes: Vec<Node> = ["l", "m", "n"]
            .into_iter()
            .enumerate()
            .map(|(slot, id)| {
                let mut node = Node {
                    id: id.into(),
                    slot,
                    facts: Some(NodeFacts::default()),
                    tier: Some((0, 0)),
                    warm: if slot == 0 { vec![(7, 1)] } else { Vec::new() },
                    ..Node::default()
                };
                node.take_inventory(Arc::new(NodeInventory {
                    total_capacity: 4.0,
                    ..NodeInventory::default()
                }));
                node
            })
            .collect();
        for slot in 0..nodes.len() {
            index.take(slot, &nodes);
        }
        (index, nodes)
    }

    fn spot(index: &mut Index, slot: Slot) -> &mut Spot {
        index.rows[slot].spot.as_mut().unwrap()
    }

    #[test]
    fn whatever_differs_from_the_nodes_is_found() {
        let (index, nodes) = indexed();
        assert!(index.faults(&nodes).is_empty());
        type Change = fn(&mut Index, &mut [Node]);
        let changes: [(&str, Change); 14] = [
            ("not listed", |it, _| it.rows[1].spot = None),
            ("listed still", |_, nodes| {
                nodes[1].condition.cordoned = true
            }),
            ("in another tier", |_, nodes| nodes[1].tier = Some((0, 1))),
            ("of another packing", |it, _| spot(it, 1).key.packing += 1),
            ("less free", |it, _| spot(it, 1).free.capacity -= 1.0),
            ("warm for another", |_, nodes| nodes[0].warm = vec![(8, 1)]),
            ("in another zone", |_, nodes| {
                nodes[1].az = Some("z".to_owned())
            }),
            ("not counted", |it, _| it.rows[1].counted = None),
            ("a tier with a wrong count", |it, _| {
                it.tiers[0][0].counted += 1
            }),
            ("a tree without one", |it, nodes| {
                let spot = spot(it, 1).clone();
                it.tiers[0][0].classes[0].all.remove(&spot.key, nodes);
            }),
            ("a tree with other room", |it, nodes| {
                let spot = spot(it, 1).clone();
                let all = &mut it.tiers[0][0].classes[0].all;
                all.update(&spot.key, Free::NOTHING, nodes);
            }),
            ("no tree for the warm", |it, _| {
                it.tiers[0][0].classes[0].warm.clear()
            }),
            ("one too many for the warm", |it, _| {
                let warm = &mut it.tiers[0][0].classes[0].warm;
                warm.insert((8, 1), Tree::default());
            }),
            ("the warm with other room", |it, nodes| {
                let spot = spot(it, 0).clone();
                let warm = &mut it.tiers[0][0].classes[0].warm;
                let tree = warm.get_mut(&(7, 1)).unwrap();
                tree.update(&spot.key, Free::NOTHING, nodes);
            }),
        ];
        for (what, change) in changes {
            let (mut index, mut nodes) = indexed();
            change(&mut index, &mut nodes);
            assert!(!index.faults(&nodes).is_empty(), "{what}");
        }
    }
}
