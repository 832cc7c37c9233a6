//! The domain's nouns: ids, time, units, jobs, bundles, nodes, inventories, pools
