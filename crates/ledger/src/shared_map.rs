//! An ordered map that can be had as it stands at next to no cost: a clone shares everything with what it was
//! cloned from, and whichever is changed first copies the few entries beside the change.
//!
//! Whoever is told the whole state keeps commits waiting for a clone alone, and looks at it while they go
//! on (PERF-12).

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A chunk that has so many entries is split. Its entries are what one change copies at most.
const CHUNK: usize = 32;

/// An ordered map whose clone copies none of its entries.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// In order; none is empty.
    chunks: Vec<Chunk<K, V>>,
    len: usize,
}

#[derive(Clone)]
struct Chunk<K, V> {
    /// No key of it is lower, and none of the chunks before is higher; of the first chunk it says nothing.
    from: K,
    entries: Arc<Vec<(K, V)>>,
}

// === impl SharedMap ===

impl<K, V> SharedMap<K, V> {
    /// How many entries there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        entries(&self.chunks)
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entries from this key on, in order.
    pub fn iter_from<'a, Q>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let chunks = self.chunks.get(self.place(key)..).unwrap_or_default();
        let lower = chunks.first().map(|chunk| chunk.search(key));
        entries(chunks).skip(lower.map_or(0, |at| at.unwrap_or_else(|at| at)))
    }

    /// The value of a key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let chunk = self.chunks.get(self.place(key))?;
        let at = chunk.search(key).ok()?;
        Some(&chunk.entries[at].1)
    }

    /// Whether there is a value of a key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.get(key).is_some()
    }

    /// Number of the only chunk that may hold a key.
    fn place<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.from.borrow() <= key);
        after.saturating_sub(1)
    }
}

impl<K: Clone + Ord, V: Clone> SharedMap<K, V> {
    /// The value of a key, to be changed.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let place = self.place(key);
        let chunk = self.chunks.get_mut(place)?;
        let at = chunk.search(key).ok()?;
        Some(&mut chunk.own()[at].1)
    }

    /// The value of a key, to be changed; made where there is none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        if !self.contains_key(&key) {
            self.insert(key.clone(), V::default());
        }
        self.get_mut(&key).expect("it was looked for and put in")
    }

    /// All values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let chunks = self.chunks.iter_mut().flat_map(Chunk::own);
        chunks.map(|(_, value)| value)
    }

    /// Puts a value in; answers what it replaced.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let place = self.place(&key);
        let Some(chunk) = self.chunks.get_mut(place) else {
            self.chunks.push(Chunk::new(vec![(key, value)]));
            self.len = 1;
            return None;
        };
        let at = match chunk.search(&key) {
            Ok(at) => return Some(std::mem::replace(&mut chunk.own()[at].1, value)),
            Err(at) => at,
        };
        self.len += 1;
        let entries = chunk.own();
        entries.insert(at, (key, value));
        if entries.len() == CHUNK {
            // What comes in order leaves full chunks behind.
            let split = if at + 1 == CHUNK { at } else { CHUNK / 2 };
            let upper = entries.split_off(split);
            entries.shrink_to_fit();
            self.chunks.insert(place + 1, Chunk::new(upper));
        }
        None
    }

    /// Takes a value out.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let place = self.place(key);
        let chunk = self.chunks.get_mut(place)?;
        let at = chunk.search(key).ok()?;
        let entries = chunk.own();
        let (_, value) = entries.remove(at);
        let left = entries.len();
        self.len -= 1;
        if left == 0 {
            self.chunks.remove(place);
        } else {
            self.merge(place);
        }
        if place > 0 {
            self.merge(place - 1);
        }
        Some(value)
    }

    /// Makes one of this chunk and the next where both are small, so that a map that shrinks has no more
    /// than it needs.
    fn merge(&mut self, place: usize) {
        let pair = self.chunks.get(place..place + 2).unwrap_or_default();
        let both: usize = pair.iter().map(|chunk| chunk.entries.len()).sum();
        if (1..=CHUNK / 2).contains(&both) {
            let next = self.chunks.remove(place + 1);
            self.chunks[place]
                .own()
                .extend(Arc::unwrap_or_clone(next.entries));
        }
    }
}

impl<K, V, Q> std::ops::Index<&Q> for SharedMap<K, V>
where
    K: Borrow<Q>,
    Q: Ord + ?Sized,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("a key that is there")
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Clone + Ord, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

// === impl Chunk ===

impl<K, V> Chunk<K, V> {
    fn search<Q>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.entries
            .binary_search_by(|(at, _)| at.borrow().cmp(key))
    }
}

impl<K: Clone, V: Clone> Chunk<K, V> {
    /// Of entries that are not none.
    fn new(entries: Vec<(K, V)>) -> Self {
        Self {
            from: entries[0].0.clone(),
            entries: Arc::new(entries),
        }
    }

    /// Its entries, shared with no clone of the map from now on.
    fn own(&mut self) -> &mut Vec<(K, V)> {
        Arc::make_mut(&mut self.entries)
    }
}

fn entries<K, V>(chunks: &[Chunk<K, V>]) -> impl Iterator<Item = (&K, &V)> {
    let entries = chunks.iter().flat_map(|chunk| chunk.entries.iter());
    entries.map(|(key, value)| (key, value))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u16),
        Remove(u16),
        Change(u16),
        ChangeAll,
        /// From now on a clone is held, which is to stay as it is.
        Hold,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            12 => (0u16..400).prop_map(Act::Insert),
            8 => (0u16..400).prop_map(Act::Remove),
            4 => (0u16..400).prop_map(Act::Change),
            1 => Just(Act::ChangeAll),
            1 => Just(Act::Hold),
        ]
    }

    fn same(map: &SharedMap<u16, u32>, plain: &BTreeMap<u16, u32>) {
        assert!(map.iter().eq(plain.iter()), "{map:?} {plain:?}");
        assert!(map.iter_from(&200).eq(plain.range(200..)));
        assert_eq!((map.len(), map.is_empty()), (plain.len(), plain.is_empty()));
        for key in (0..400).step_by(7) {
            assert_eq!(map.get(&key), plain.get(&key));
            assert_eq!(map.iter_from(&key).next(), plain.range(key..).next());
        }
    }

    proptest! {
        // spec: PERF-12, EVT-01
        #[test]
        fn it_holds_what_a_plain_map_holds_and_a_clone_stays_as_it_was(
            acts in prop::collection::vec(act(), 0..500),
        ) {
            let (mut map, mut plain) = (SharedMap::default(), BTreeMap::new());
            let mut held = Vec::new();
            for (at, act) in (0u32..).zip(acts) {
                match act {
                    Act::Insert(key) => prop_assert_eq!(map.insert(key, at), plain.insert(key, at)),
                    Act::Remove(key) => prop_assert_eq!(map.remove(&key), plain.remove(&key)),
                    Act::Change(key) => {
                        if let Some(value) = plain.get_mut(&key) {
                            *value = at;
                        }
                        if let Some(value) = map.get_mut(&key) {
                            *value = at;
                        }
                    }
                    Act::ChangeAll => {
                        plain.values_mut().for_each(|value| *value += 1);
                        map.values_mut().for_each(|value| *value += 1);
                    }
                    Act::Hold => held.push((map.clone(), plain.clone())),
                }
            }
            held.push((map, plain));
            for (map, plain) in &held {
                same(map, plain);
                prop_assert_eq!(map, &plain.clone().into_iter().rev().collect());
            }
        }
    }

    /// Counts how often it was copied.
    #[derive(Default)]
    struct Counted(Rc<Cell<usize>>);

    impl Clone for Counted {
        fn clone(&self) -> Self {
            self.0.set(self.0.get() + 1);
            Self(Rc::clone(&self.0))
        }
    }

    // spec: PERF-12
    #[test]
    fn a_clone_copies_nothing_and_a_change_beside_it_one_chunk() {
        let copies = Rc::new(Cell::new(0));
        let entry = |key: u32| (key, Counted(Rc::clone(&copies)));
        let mut map: SharedMap<u32, Counted> = (0..10_000).map(entry).collect();
        map.get_mut(&5_000);
        map.remove(&5_001);
        assert_eq!(copies.get(), 0, "what nobody shares is changed where it is");
        let held = map.clone();
        assert_eq!(copies.get(), 0);
        assert!(
            map.chunks.len() <= 10_000 / (CHUNK - 1) + 1,
            "they are full"
        );
        map.get_mut(&7_000);
        let once = copies.get();
        assert!((1..CHUNK).contains(&once), "{once}");
        map.get_mut(&7_000);
        assert_eq!(copies.get(), once, "the chunk is its own now");
        drop(held);
        map.get_mut(&1);
        assert_eq!(copies.get(), once);
    }

    #[test]
    fn a_map_that_shrinks_has_few_chunks() {
        let mut map: SharedMap<u32, ()> = (0..10_000).map(|key| (key, ())).collect();
        for key in (0..10_000).filter(|key| key % 100 != 0) {
            map.remove(&key);
        }
        assert_eq!(map.len(), 100);
        assert!(
            map.chunks.len() <= 100 / (CHUNK / 4),
            "{}",
            map.chunks.len()
        );
    }
}
