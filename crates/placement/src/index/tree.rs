//! Nodes in the order of their packing and id, with sums by which whole runs of nodes are passed over.
//!
//! Three levels of sorted runs: entries in blocks, blocks in groups, groups in the tree. Each block and
//! each group knows the most that any of its nodes has free, so that a walk goes only where a node
//! can be that meets the [`Ask`]. What an ask says is necessary for a node, never sufficient: the
//! chain of filters decides. A change touches one block and the sums above it.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::Slot;
use crate::node::Node;

/// Most entries of a block.
const BLOCK: usize = 32;
/// Most blocks of a group.
const GROUP: usize = 64;

/// Place of a node in the order. The id's first bytes are kept here; the rest is looked up only
/// when they do not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Smaller is better, whatever the strategy.
    pub(crate) packing: i64,
    prefix: [u64; 2],
    pub(crate) slot: Slot,
}

/// What a node has free, or the most that any of several has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Free {
    /// vCPUs.
    pub(crate) capacity: f64,
    pub(crate) cores: u64,
    /// Demands that it meets, and its standing towards exclusive jobs.
    pub(crate) marks: u64,
    /// Ports that are free.
    pub(crate) ports: u64,
}

/// What a node must have free at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// vCPUs, with the tolerance of shares.
    pub(crate) capacity: f64,
    pub(crate) cores: u64,
    pub(crate) marks: u64,
    pub(crate) ports: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    free: Free,
}

#[derive(Clone, Debug)]
struct Block {
    most: Free,
    last: Key,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Group {
    most: Free,
    last: Key,
    blocks: Vec<Block>,
}

/// The nodes of one class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    groups: Vec<Group>,
}

// === impl Key ===

impl Key {
    pub(crate) fn new(packing: i64, node: &Node) -> Self {
        let mut bytes = [0; 16];
        let id = node.id.as_str().as_bytes();
        let known = id.len().min(16);
        bytes[..known].copy_from_slice(&id[..known]);
        let number = u128::from_be_bytes(bytes);
        Self {
            packing,
            prefix: [(number >> 64) as u64, number as u64],
            slot: node.slot,
        }
    }

    fn order(&self, other: &Self, nodes: &[Node]) -> Ordering {
        (self.packing, self.prefix)
            .cmp(&(other.packing, other.prefix))
            .then_with(|| {
                if self.slot == other.slot {
                    Ordering::Equal
                } else {
                    nodes[self.slot].id.cmp(&nodes[other.slot].id)
                }
            })
    }

    fn is_before(&self, other: &Self, nodes: &[Node]) -> bool {
        self.order(other, nodes) == Ordering::Less
    }
}

// === impl Free ===

impl Free {
    pub(crate) const NOTHING: Self = Self {
        capacity: f64::NEG_INFINITY,
        cores: 0,
        marks: 0,
        ports: 0,
    };

    const fn raise(&mut self, other: &Self) {
        self.capacity = self.capacity.max(other.capacity);
        if other.cores > self.cores {
            self.cores = other.cores;
        }
        self.marks |= other.marks;
        self.ports |= other.ports;
    }

    /// False when no node that has at most this can do.
    pub(crate) fn may_meet(&self, ask: &Ask) -> bool {
        ask.capacity <= self.capacity + greenroom_types::SHARE_TOLERANCE
            && ask.cores <= self.cores
            && ask.marks & !self.marks == 0
            && ask.ports & !self.ports == 0
    }
}

// === impl Block and Group ===

impl Block {
    fn of(entries: Vec<Entry>) -> Self {
        let mut block = Self {
            most: Free::NOTHING,
            last: entries[0].key,
            entries,
        };
        block.sum_up();
        block
    }

    fn sum_up(&mut self) {
        self.most = Free::NOTHING;
        for entry in &self.entries {
            self.most.raise(&entry.free);
        }
        if let Some(entry) = self.entries.last() {
            self.last = entry.key;
        }
    }
}

impl Group {
    fn of(blocks: Vec<Block>) -> Self {
        let mut group = Self {
            most: Free::NOTHING,
            last: blocks[0].last,
            blocks,
        };
        group.sum_up();
        group
    }

    fn sum_up(&mut self) {
        self.most = Free::NOTHING;
        for block in &self.blocks {
            self.most.raise(&block.most);
        }
        if let Some(block) = self.blocks.last() {
            self.last = block.last;
        }
    }
}

// === impl Tree ===

impl Tree {
    pub(crate) const fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn insert(&mut self, key: Key, free: Free, nodes: &[Node]) {
        let entry = Entry { key, free };
        if self.groups.is_empty() {
            self.groups
                .push(Group::of(vec![Block::of(fresh(&[entry]))]));
            return;
        }
        let (at, nth) = self.find(&key, nodes);
        let group = &mut self.groups[at];
        let block = &mut group.blocks[nth];
        let place = block
            .entries
            .partition_point(|known| known.key.is_before(&key, nodes));
        block.entries.insert(place, entry);
        if block.entries.len() <= BLOCK {
            block.most.raise(&free);
            if place + 1 == block.entries.len() {
                block.last = key;
            }
        } else {
            let upper = fresh(&block.entries[BLOCK / 2..]);
            block.entries.truncate(BLOCK / 2);
            block.sum_up();
            group.blocks.insert(nth + 1, Block::of(upper));
        }
        if group.blocks.len() <= GROUP {
            group.most.raise(&free);
            if let Some(block) = group.blocks.last() {
                group.last = block.last;
            }
        } else {
            let upper = group.blocks.split_off(GROUP / 2);
            group.sum_up();
            self.groups.insert(at + 1, Group::of(upper));
        }
    }

    /// Takes out an entry that is there.
    pub(crate) fn remove(&mut self, key: &Key, nodes: &[Node]) {
        let (at, nth, place) = self.locate(key, nodes);
        let group = &mut self.groups[at];
        let block = &mut group.blocks[nth];
        block.entries.remove(place);
        if block.entries.is_empty() {
            group.blocks.remove(nth);
        } else {
            block.sum_up();
            let room = BLOCK * 3 / 4;
            if block.entries.len() <= BLOCK / 4 && group.blocks.len() > 1 {
                let low = nth.min(group.blocks.len() - 2);
                let both = group.blocks[low].entries.len() + group.blocks[low + 1].entries.len();
                if both <= room {
                    let upper = group.blocks.remove(low + 1);
                    group.blocks[low].entries.extend(upper.entries);
                    group.blocks[low].sum_up();
                }
            }
        }
        if group.blocks.is_empty() {
            self.groups.remove(at);
            return;
        }
        group.sum_up();
        if group.blocks.len() <= GROUP / 4 && self.groups.len() > 1 {
            let low = at.min(self.groups.len() - 2);
            let both = self.groups[low].blocks.len() + self.groups[low + 1].blocks.len();
            if both <= GROUP * 3 / 4 {
                let upper = self.groups.remove(low + 1);
                self.groups[low].blocks.extend(upper.blocks);
                self.groups[low].sum_up();
            }
        }
    }

    /// Changes what an entry that is there has free.
    pub(crate) fn update(&mut self, key: &Key, free: Free, nodes: &[Node]) {
        let (at, nth, place) = self.locate(key, nodes);
        let group = &mut self.groups[at];
        let block = &mut group.blocks[nth];
        block.entries[place].free = free;
        block.sum_up();
        group.sum_up();
    }

    /// Visits, in order, the nodes that may do, until one visit ends it.
    pub(crate) fn walk<T>(
        &self,
        ask: &Ask,
        mut visit: impl FnMut(&Key) -> ControlFlow<T>,
    ) -> ControlFlow<T> {
        for group in self.groups.iter().filter(|it| it.most.may_meet(ask)) {
            for block in group.blocks.iter().filter(|it| it.most.may_meet(ask)) {
                for entry in block.entries.iter().filter(|it| it.free.may_meet(ask)) {
                    visit(&entry.key)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Group and block that an entry belongs into.
    fn find(&self, key: &Key, nodes: &[Node]) -> (usize, usize) {
        let at = self
            .groups
            .partition_point(|group| group.last.is_before(key, nodes))
            .min(self.groups.len() - 1);
        let blocks = &self.groups[at].blocks;
        let nth = blocks
            .partition_point(|block| block.last.is_before(key, nodes))
            .min(blocks.len() - 1);
        (at, nth)
    }

    fn locate(&self, key: &Key, nodes: &[Node]) -> (usize, usize, usize) {
        let (at, nth) = self.find(key, nodes);
        let entries = &self.groups[at].blocks[nth].entries;
        let place = entries.partition_point(|known| known.key.is_before(key, nodes));
        debug_assert_eq!(entries.get(place).map(|it| it.key), Some(*key));
        (at, nth, place)
    }

    /// Everything in it, in order, and whether its own order and sums hold.
    pub(crate) fn contents(&self, nodes: &[Node]) -> (Vec<(Key, Free)>, bool) {
        let mut all: Vec<(Key, Free)> = Vec::new();
        let mut sound = true;
        for group in &self.groups {
            let mut sums = group.clone();
            sums.sum_up();
            sound &= sums.most == group.most && sums.last == group.last;
            sound &= !group.blocks.is_empty() && group.blocks.len() <= GROUP;
            for block in &group.blocks {
                let mut sums = block.clone();
                sums.sum_up();
                sound &= sums.most == block.most && sums.last == block.last;
                sound &= !block.entries.is_empty() && block.entries.len() <= BLOCK;
                all.extend(block.entries.iter().map(|it| (it.key, it.free)));
            }
        }
        sound &= all
            .windows(2)
            .all(|pair| pair[0].0.is_before(&pair[1].0, nodes));
        (all, sound)
    }
}

/// The entries of a new block, with room for those to come.
fn fresh(entries: &[Entry]) -> Vec<Entry> {
    let mut block = Vec::with_capacity(BLOCK + 1);
    block.extend_from_slice(entries);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<Node> {
        (0..count)
            .map(|slot| Node {
                // The first 16 bytes are the same for many, and the order of ids is not that of slots.
                id: format!("a-rather-long-name-{:05}", (slot * 7919) % count).into(),
                slot,
                ..Node::default()
            })
            .collect()
    }

    #[test]
    fn what_has_too_little_of_anything_cannot_do() {
        let free = Free {
            capacity: 2.0,
            cores: 2,
            marks: 0b11,
            ports: 0b11,
        };
        let ask = |capacity, cores, marks, ports| Ask {
            capacity,
            cores,
            marks,
            ports,
        };
        for (ask, may) in [
            (ask(2.0, 2, 0b11, 0b11), true),
            (ask(2.0 + 1e-10, 0, 0, 0), true),
            (ask(2.1, 0, 0, 0), false),
            (ask(0.0, 3, 0, 0), false),
            (ask(0.0, 0, 0b100, 0), false),
            (ask(0.0, 0, 0, 0b100), false),
        ] {
            assert_eq!(free.may_meet(&ask), may, "{ask:?}");
        }
    }

    /// One group of blocks of so many nodes each, which all have the same free.
    fn blocks(sizes: &[usize], nodes: &[Node]) -> Tree {
        let mut at = 0;
        let mut block = |size: &usize| {
            let entries = (at..at + size).map(|slot| Entry {
                key: Key::new(slot as i64, &nodes[slot]),
                free: Free {
                    cores: 1,
                    ..Free::NOTHING
                },
            });
            at += size;
            Block::of(entries.collect())
        };
        Tree {
            groups: vec![Group::of(sizes.iter().map(&mut block).collect())],
        }
    }

    #[test]
    fn a_tree_that_is_wrong_in_itself_says_so() {
        let nodes = nodes(100);
        let is_sound = |tree: &Tree| tree.contents(&nodes).1;
        type Change = fn(&mut Group);
        let changes: [(&str, Change); 6] = [
            ("the most of a group", |it| it.most.cores = 2),
            ("the last of a group", |it| it.last = it.blocks[0].last),
            ("the most of a block", |it| {
                it.blocks[0].most = Free::NOTHING
            }),
            ("the last of a block", |it| {
                it.blocks[0].last = it.blocks[0].entries[0].key;
            }),
            ("the order", |it| it.blocks[0].entries.swap(0, 1)),
            ("a block without nodes", |it| it.blocks[0].entries.clear()),
        ];
        assert!(is_sound(&blocks(&[3, 3], &nodes)));
        for (what, change) in changes {
            let mut tree = blocks(&[3, 3], &nodes);
            change(&mut tree.groups[0]);
            assert!(!is_sound(&tree), "{what}");
        }
        let mut hollow = blocks(&[3, 3], &nodes);
        let mut group = hollow.groups[0].clone();
        group.blocks.clear();
        group.most = Free::NOTHING;
        hollow.groups.push(group);
        assert!(!is_sound(&hollow), "a group without blocks");
        assert!(is_sound(&blocks(&[BLOCK], &nodes)));
        assert!(!is_sound(&blocks(&[BLOCK + 1], &nodes)));
        assert!(is_sound(&blocks(&[1; GROUP], &nodes)));
        assert!(!is_sound(&blocks(&[1; GROUP + 1], &nodes)));
    }

    #[test]
    fn a_group_that_is_nearly_empty_is_not_put_to_a_full_one() {
        let nodes = nodes(100);
        let all = blocks(&[1; GROUP + GROUP / 4 + 1], &nodes).groups.remove(0);
        let (full, small) = all.blocks.split_at(GROUP);
        let mut tree = Tree {
            groups: vec![Group::of(full.to_vec()), Group::of(small.to_vec())],
        };
        let last = tree.groups[1].last;
        tree.remove(&last, &nodes);
        assert_eq!(tree.groups.len(), 2);
        assert!(tree.contents(&nodes).1);
    }

    #[test]
    fn a_tree_that_shrinks_keeps_few_blocks_and_none_too_large() {
        let nodes = nodes(5_000);
        let key = |slot: usize| Key::new(slot as i64, &nodes[slot]);
        let mut tree = Tree::default();
        for slot in 0..nodes.len() {
            tree.insert(key(slot), Free::NOTHING, &nodes);
        }
        let blocks = |tree: &Tree| -> usize {
            let groups = tree.groups.iter();
            groups.map(|group| group.blocks.len()).sum()
        };
        let (groups, full) = (tree.groups.len(), blocks(&tree));
        assert!(full <= 5_000 / (BLOCK / 2) + 1, "{full} blocks");
        assert!(groups <= full / (GROUP / 2) + 1, "{groups} groups");
        // All but each fiftieth go, in no order.
        for at in 0..nodes.len() {
            let slot = at * 2_003 % nodes.len();
            if !slot.is_multiple_of(50) {
                tree.remove(&key(slot), &nodes);
            }
            if at.is_multiple_of(50) {
                assert!(tree.contents(&nodes).1, "after {at}");
            }
        }
        assert_eq!(tree.contents(&nodes).0.len(), 100);
        let (groups, few) = (tree.groups.len(), blocks(&tree));
        assert_eq!(groups, 1);
        assert!(few <= 100 / (BLOCK / 4), "{few} blocks");
    }

    #[test]
    fn a_tree_is_a_sorted_list_whatever_comes_and_goes() {
        let nodes = nodes(5_000);
        let free = |slot: usize, round: usize| Free {
            capacity: ((slot * 31 + round) % 97) as f64,
            cores: (slot % 5) as u64,
            marks: 1 << (slot % 60),
            ports: u64::MAX ^ (1 << (slot % 64)),
        };
        let mut tree = Tree::default();
        let mut model: Vec<(Key, Free)> = Vec::new();
        let mut seed = 1_u64;
        for round in 0..12_000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let slot = (seed >> 33) as usize % nodes.len();
            let grows = round < 6_000;
            match model.iter().position(|(key, _)| key.slot == slot) {
                Some(at) if !grows || round % 3 == 0 => {
                    tree.remove(&model[at].0, &nodes);
                    model.remove(at);
                }
                Some(at) => {
                    model[at].1 = free(slot, round);
                    tree.update(&model[at].0, model[at].1, &nodes);
                }
                None if grows => {
                    let key = Key::new((slot % 4) as i64, &nodes[slot]);
                    let at = model.partition_point(|(known, _)| known.is_before(&key, &nodes));
                    model.insert(at, (key, free(slot, round)));
                    tree.insert(key, free(slot, round), &nodes);
                }
                None => {}
            }
            if round % 500 == 0 {
                let (all, sound) = tree.contents(&nodes);
                assert!(sound);
                assert_eq!(all, model);
                let ask = Ask {
                    capacity: (round % 97) as f64,
                    cores: (round % 4) as u64,
                    marks: 0,
                    ports: 1 << (round % 64),
                };
                let mut met = Vec::new();
                let end = tree.walk(&ask, |key| {
                    met.push(key.slot);
                    ControlFlow::<()>::Continue(())
                });
                assert!(end.is_continue());
                let expected: Vec<usize> = model
                    .iter()
                    .filter(|(_, free)| free.may_meet(&ask))
                    .map(|(key, _)| key.slot)
                    .collect();
                assert_eq!(met, expected);
            }
        }
        for (key, _) in model {
            tree.remove(&key, &nodes);
        }
        assert!(tree.is_empty());
    }
}
