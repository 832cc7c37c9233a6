//! Finding a thing by its name, and nothing else: there is no way to walk over all of them but in the
//! order of their names, so no answer can depend on how they are stored.

#![expect(
    clippy::disallowed_types,
    reason = "this is the wrapper that takes its order away"
)]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

/// Things by name; the same in each run.
#[derive(Clone)]
pub(crate) struct Lookup<K, V>(HashMap<K, V, BuildHasherDefault<DefaultHasher>>);

// === impl Lookup ===

impl<K, V> Default for Lookup<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash + Ord, V> Lookup<K, V> {
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// The thing of that name, made when there is none.
    pub(crate) fn of(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        self.0.entry(key.clone()).or_default()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.0.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// All of them by name, sorted anew each time: for checks, not for decisions.
    pub(crate) fn sorted(&self) -> Vec<(&K, &V)> {
        let mut all: Vec<(&K, &V)> = self.0.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }
}

impl<K: Eq + Hash + Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for Lookup<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sorted()).finish()
    }
}
