//! Pools that are in use and that the settings lack, in the log: the policy leaves all of them alone, and
//! whoever took a pool out of the settings, or slipped in its name, may not know what is still in it.

use std::collections::BTreeSet;

use greenroom_policy::Callback;
use greenroom_types::PoolName;
use serde_json::Value;

/// Pools that are told; of more only that there are more.
const TOLD: usize = 50;

/// The pools of the settings, and those that were told besides.
#[derive(Debug)]
pub(crate) struct Unconfigured {
    configured: BTreeSet<PoolName>,
    told: BTreeSet<PoolName>,
}

/// What to say of a pool.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Of(PoolName),
    More,
}

// === impl Unconfigured ===

impl Unconfigured {
    pub(crate) fn of(settings: &Value) -> Self {
        let pools = settings["placementPools"].as_array().into_iter().flatten();
        let names = pools.filter_map(|pool| pool["name"].as_str());
        Self {
            configured: names.map(PoolName::new).collect(),
            told: BTreeSet::new(),
        }
    }

    /// Warns of pools that show up in use.
    pub(crate) fn look(&mut self, callback: &Callback) {
        for (pool, user) in users(callback) {
            match self.take(pool) {
                Some(Word::Of(pool)) => tracing::warn!(
                    %pool,
                    "{user} is in pool {pool:?}, which the settings do not have: nothing is placed, \
                     recovered or bought there; add the pool to placementPools and start the control \
                     plane anew, or take what is in it elsewhere"
                ),
                Some(Word::More) => tracing::warn!(
                    "more than {TOLD} pools are in use that the settings do not have; the others are not \
                     told"
                ),
                None => {}
            }
        }
    }

    fn take(&mut self, pool: &PoolName) -> Option<Word> {
        let is_new = !pool.is_empty() && !self.configured.contains(pool);
        if !is_new || self.told.len() > TOLD || !self.told.insert(pool.clone()) {
            return None;
        }
        Some(match self.told.len() <= TOLD {
            true => Word::Of(pool.clone()),
            false => Word::More,
        })
    }
}

/// The pools of a node or a bundle that is told, each with who is in it.
fn users(callback: &Callback) -> Vec<(&PoolName, String)> {
    match callback {
        Callback::OnNodeStarted { node_id, node } => {
            let pool = node.pool.iter();
            pool.map(|pool| (pool, format!("node {node_id}"))).collect()
        }
        Callback::OnBundleUpdated { bundle_id, bundle } => {
            let bundle = &bundle.bundle;
            let backup = bundle.resilience_policy.iter();
            let backup = backup.filter_map(|policy| policy.pool.as_ref());
            [&bundle.pool]
                .into_iter()
                .chain(backup)
                .map(|pool| (pool, format!("bundle {bundle_id}")))
                .collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: CONF-19
    #[test]
    fn each_pool_is_told_once_and_not_without_end() {
        let mut pools =
            Unconfigured::of(&serde_json::json!({"placementPools": [{"name": "live"}]}));
        let mut take = |pool: &str| pools.take(&PoolName::new(pool));
        assert_eq!(take("live"), None);
        assert_eq!(take(""), None, "a node of no pool");
        assert_eq!(take("old"), Some(Word::Of("old".into())));
        assert_eq!(take("old"), None);
        for number in 1..TOLD {
            assert!(matches!(take(&number.to_string()), Some(Word::Of(_))));
        }
        assert_eq!(take("one more"), Some(Word::More));
        assert_eq!(take("another"), None);
        assert_eq!(pools.told.len(), TOLD + 1);
    }
}
