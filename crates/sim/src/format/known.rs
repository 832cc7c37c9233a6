//! The names that a scenario knows: what its settings, its fleet, its bundles and its steps make
//! there ever be. Whether something is there at a step is the run's to say; what is nowhere can never
//! be, and an expectation about it would mean nothing.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_policy::Settings;
use greenroom_types::bundle::Bundle;
use greenroom_types::pool::Pool;
use greenroom_types::{BundleId, NodeId, PoolName, TierName};
use serde_json::{Value, json};

use super::action::Action;
use super::fleet::NodeSpec;
use super::names::{JobPath, NodeRef, Subject};
use super::{Deed, Scenario};

/// Names shown of those that there are.
const SHOWN: usize = 8;

/// All names of a scenario.
pub(super) struct Known<'a> {
    pub(super) settings: &'a Settings,
    /// Every form that a bundle has in the file.
    bundles: BTreeMap<&'a BundleId, Vec<&'a Bundle>>,
    nodes: BTreeSet<&'a NodeId>,
    pools: BTreeSet<&'a str>,
    /// Those of them that a node or a bundle says it is in.
    used: BTreeSet<&'a str>,
    tiers: BTreeSet<&'a str>,
    types: BTreeSet<&'a str>,
    /// Regions and zones in which something is bought.
    regions: BTreeSet<&'a str>,
    /// Tags that a node has, beside those that the product gives.
    tags: BTreeSet<&'a str>,
}

/// Tags that the product gives to nodes (NODE-02, TAG-07), and all that begin with the last.
const TAGS: [&str; 17] = [
    "auto-manager",
    "az",
    "bundleId",
    "exclusive",
    "interruption",
    "jobId",
    "jobName",
    "pool",
    "reliability",
    "replicaIndex",
    "reservedFor",
    "role",
    "spare",
    "tier",
    "wantedDaemonVersion",
    "warmFor",
    "workerLimits",
];
const PROVIDED: &str = "provides.";

/// That a name is none of those that there are.
fn none(kind: &str, name: &str, known: impl IntoIterator<Item = impl ToString>) -> String {
    let mut known: Vec<String> = known.into_iter().map(|name| name.to_string()).collect();
    let more = known.len().saturating_sub(SHOWN);
    known.truncate(SHOWN);
    let list = match (known.len(), more) {
        (0, _) => "it has none".to_owned(),
        (_, 0) => format!("it has {}", known.join(", ")),
        (_, more) => format!("it has {} and {more} more", known.join(", ")),
    };
    format!("the scenario has no {kind} {name:?}; {list}")
}

// === impl Known ===

impl<'a> Known<'a> {
    pub(super) fn of(scenario: &'a Scenario, settings: &'a Settings) -> Self {
        let mut known = Self {
            settings,
            bundles: BTreeMap::new(),
            nodes: BTreeSet::new(),
            pools: BTreeSet::new(),
            used: BTreeSet::new(),
            tiers: BTreeSet::new(),
            types: BTreeSet::new(),
            regions: BTreeSet::new(),
            tags: BTreeSet::new(),
        };
        let others = scenario.world.unconfigured_pools.iter();
        known.pools.extend(others.map(PoolName::as_str));
        for pool in &settings.placement_pools {
            known.pools.insert(pool.name.as_str());
            for tier in &pool.tiers {
                known.tiers.insert(tier.name.as_str());
                known.regions.extend(tier.region.as_deref());
                let types = tier.candidate_instance_types.iter();
                known
                    .types
                    .extend(types.map(|it| it.instance_type.as_str()));
            }
        }
        for entry in &settings.hot_spares {
            known.types.insert(entry.spec.instance_type.as_str());
            let regions = [entry.spec.az.as_str(), entry.spec.region.as_str()];
            known.regions.extend(regions);
        }
        for bundle in &scenario.bundles {
            known.bundle_is(bundle);
        }
        for node in &scenario.nodes {
            known.node_is(node);
        }
        for step in &scenario.steps {
            let Deed::Act(action) = &step.deed else {
                continue;
            };
            match action {
                Action::CreateBundle(bundle) | Action::UpdateBundle(bundle) => {
                    known.bundle_is(bundle);
                }
                Action::NodeJoins(node) => known.node_is(node),
                Action::SetTags { tags, .. } => {
                    let set = tags.iter().filter(|(_, value)| value.is_some());
                    known.tags.extend(set.map(|(key, _)| key.as_str()));
                    known
                        .used
                        .extend(tags.get("pool").into_iter().flatten().map(String::as_str));
                }
                Action::UpdateHotSpares(entries) => {
                    for spec in entries.iter().map(|entry| &entry["spec"]) {
                        known.types.extend(spec["instanceType"].as_str());
                        known.regions.extend(spec["az"].as_str());
                        known.regions.extend(spec["region"].as_str());
                    }
                }
                _ => {}
            }
        }
        known
    }

    fn bundle_is(&mut self, bundle: &'a Bundle) {
        let forms = self.bundles.entry(&bundle.bundle_id).or_default();
        forms.push(bundle);
        self.used.insert(bundle.pool.as_str());
        self.used.extend(pool_of_backup(bundle));
    }

    fn node_is(&mut self, node: &'a NodeSpec) {
        self.nodes.insert(&node.id);
        self.used.extend(node.pool.as_ref().map(PoolName::as_str));
        self.used.extend(node.tags.get("pool").map(String::as_str));
        self.tiers.extend(node.tier.as_ref().map(TierName::as_str));
        self.tags.extend(node.tags.keys().map(String::as_str));
    }

    /// Pools that the world says the settings do not have.
    pub(super) fn look_at_unconfigured(&self, pools: &[PoolName]) -> Vec<(usize, String)> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for (at, pool) in pools.iter().enumerate() {
            if self.settings.pool(pool.as_str()).is_some() {
                found.push((at, format!("the settings have pool {:?}", pool.as_str())));
            } else if !seen.insert(pool) {
                found.push((at, format!("pool {:?} stands twice", pool.as_str())));
            } else if !self.used.contains(pool.as_str()) {
                let message = format!("no node and no bundle is in pool {:?}", pool.as_str());
                found.push((at, message));
            }
        }
        found
    }

    /// A pool in which a node or a bundle is.
    pub(super) fn home(&self, pool: &PoolName) -> Result<(), String> {
        self.pool(pool).map_err(|told| {
            format!("{told}; one that the settings do not have stands in world.unconfiguredPools")
        })
    }

    /// Both pools of a bundle: the key below it, and the fault.
    pub(super) fn homes(&self, bundle: &Bundle) -> Vec<(&'static str, String)> {
        let backup = pool_of_backup(bundle).map(PoolName::from);
        [
            ("pool", Some(bundle.pool.clone())),
            ("resiliencePolicy.pool", backup),
        ]
        .into_iter()
        .filter_map(|(key, pool)| Some((key, self.home(&pool?).err()?)))
        .collect()
    }

    pub(super) fn bundle(&self, bundle_id: &BundleId) -> Result<(), String> {
        if self.bundles.contains_key(bundle_id) {
            return Ok(());
        }
        Err(none("bundle", bundle_id.as_str(), self.bundles.keys()))
    }

    /// A copy of a bundle in some form of it; a bundle that is nowhere is a fault of its own.
    pub(super) fn copy(&self, bundle_id: &BundleId, copy: u32) -> Result<(), String> {
        match self.bundles.get(bundle_id) {
            Some(forms) if forms.iter().all(|it| copy >= it.copies()) => {
                Err(no_copy(bundle_id, copy))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn job(&self, path: &JobPath) -> Result<(), String> {
        self.bundle(&path.bundle_id)?;
        let forms = &self.bundles[&path.bundle_id];
        job_in(path, forms.iter().copied())
    }

    pub(super) fn node(&self, node: &NodeRef) -> Result<(), String> {
        match node {
            NodeRef::Id(id) if self.nodes.contains(id) => Ok(()),
            NodeRef::Id(id) => Err(none("node", id.as_str(), &self.nodes)),
            NodeRef::OfJob(path) => self.job(path),
            NodeRef::Spare(pool, _) => self.settings_pool(pool),
            NodeRef::Tier(pool, tier, _) => {
                self.settings_pool(pool)?;
                let pool = self.settings.pool(pool.as_str());
                let tiers = pool.map(|pool| &pool.tiers[..]).unwrap_or_default();
                if tiers.iter().any(|known| known.name == *tier) {
                    return Ok(());
                }
                let names = tiers.iter().map(|tier| &tier.name);
                Err(none("tier of that pool", tier.as_str(), names))
            }
        }
    }

    pub(super) fn subject(&self, subject: &Subject) -> Result<(), String> {
        match subject {
            Subject::Job(path) => self.job(path),
            Subject::Node(node) => self.node(node),
        }
    }

    /// A pool of the settings, or one that they are said not to have.
    pub(super) fn pool(&self, pool: &PoolName) -> Result<(), String> {
        if self.pools.contains(pool.as_str()) {
            return Ok(());
        }
        Err(none("pool", pool.as_str(), &self.pools))
    }

    /// A pool of the settings.
    pub(super) fn settings_pool(&self, pool: &PoolName) -> Result<(), String> {
        if self.settings.pool(pool.as_str()).is_some() {
            return Ok(());
        }
        let names = self.settings.placement_pools.iter().map(|pool| &pool.name);
        Err(none("pool", pool.as_str(), names))
    }

    pub(super) fn tier(&self, tier: &TierName) -> Result<(), String> {
        if self.tiers.contains(tier.as_str()) {
            return Ok(());
        }
        Err(none("tier", tier.as_str(), &self.tiers))
    }

    /// The tier that a node says it is of.
    pub(super) fn tier_of_node(&self, node: &NodeSpec) -> Result<(), String> {
        let Some(tier) = &node.tier else {
            return Ok(());
        };
        self.tier_in(tier, node.pool.as_ref())
    }

    /// A tier of that pool, where the settings have the pool; of any, where none is named.
    pub(super) fn tier_in(&self, tier: &TierName, pool: Option<&PoolName>) -> Result<(), String> {
        let pool = pool.map(PoolName::as_str);
        let pools = self.settings.placement_pools.iter();
        let own = |it: &&Pool| pool.is_none_or(|pool| it.name.as_str() == pool);
        let mut tiers = pools.filter(own).flat_map(|pool| &pool.tiers).peekable();
        if tiers.peek().is_none() || tiers.clone().any(|it| it.name == *tier) {
            return Ok(());
        }
        let names: BTreeSet<&TierName> = tiers.map(|tier| &tier.name).collect();
        Err(none("tier of that pool", tier.as_str(), names))
    }

    /// A tier in which something is bought.
    pub(super) fn elastic_tier(&self, name: &TierName) -> Result<(), String> {
        self.tier(name)?;
        let pools = self.settings.placement_pools.iter();
        let mut tiers = pools.flat_map(|pool| &pool.tiers);
        if tiers.any(|tier| tier.name == *name && tier.is_elastic()) {
            return Ok(());
        }
        Err(format!("nothing is bought in tier {:?}", name.as_str()))
    }

    /// What the policy refuses of a new list of spares: the path below it, and the fault.
    pub(super) fn faults_of_spares(&self, entries: &[Value]) -> Vec<(String, String)> {
        let tree = json!({
            "url": super::settings::URL,
            "placementPools": self.settings.placement_pools,
            "hotSpares": entries,
        });
        let Err(error) = Settings::parse(&tree) else {
            return Vec::new();
        };
        let faults = error.faults.into_iter().filter_map(|fault| {
            let below = fault.path.strip_prefix("hotSpares")?;
            Some((below.to_owned(), fault.message))
        });
        faults.collect()
    }

    pub(super) fn instance_type(&self, name: &str) -> Result<(), String> {
        if self.types.contains(name) {
            return Ok(());
        }
        Err(none("instance type", name, &self.types))
    }

    fn region(&self, name: &str) -> Result<(), String> {
        if self.regions.contains(name) {
            return Ok(());
        }
        Err(none("region or zone to buy in", name, &self.regions))
    }

    fn job_name(&self, name: &str) -> Result<(), String> {
        let jobs = self.bundles.values().flatten().flat_map(|it| &it.jobs);
        let names: BTreeSet<&str> = jobs.map(|job| job.job_name.as_str()).collect();
        if names.contains(name) {
            return Ok(());
        }
        Err(none("job of that name,", name, names))
    }

    /// Tags of a node that mean something to the policy.
    pub(super) fn tag(&self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "pool" => self.pool(&value.into()),
            "tier" => self.tier(&value.into()),
            _ => Ok(()),
        }
    }

    /// A tag by its name alone, such as one that a node is said not to have: some node has one like it.
    pub(super) fn tag_name(&self, key: &str) -> Result<(), String> {
        if TAGS.contains(&key) || key.starts_with(PROVIDED) || self.tags.contains(key) {
            return Ok(());
        }
        let product = TAGS.into_iter();
        Err(none("tag", key, self.tags.iter().copied().chain(product)))
    }

    /// What a field of a call or a callback names, by the kind of name that it has.
    pub(super) fn field(&self, kind: &str, value: &str) -> Result<(), String> {
        match kind {
            "job" => {
                let path = value.parse().ok().or_else(|| JobPath::of_job_id(value));
                let path = path.ok_or_else(|| none("job", value, self.jobs()))?;
                self.job(&path)
            }
            "node" => {
                let node: NodeRef = value
                    .parse()
                    .map_err(|error: super::names::NameError| error.to_string())?;
                self.node(&node)
            }
            "bundle" => self.bundle(&value.into()),
            "pool" => self.pool(&value.into()),
            "tier" => self.tier(&value.into()),
            "instanceType" => self.instance_type(value),
            "jobName" => self.job_name(value),
            "region" => self.region(value),
            "tagName" => self.tag_name(value),
            _ => Ok(()),
        }
    }

    fn jobs(&self) -> Vec<String> {
        let mut names = BTreeSet::new();
        for bundle in self.bundles.values().flatten() {
            for copy in 0..bundle.copies() {
                let jobs = bundle.jobs.iter();
                names.extend(jobs.map(|it| format!("{}/{copy}/{}", bundle.bundle_id, it.job_name)));
            }
        }
        names.into_iter().collect()
    }
}

fn pool_of_backup(bundle: &Bundle) -> Option<&str> {
    let policy = bundle.resilience_policy.as_ref()?;
    policy.pool.as_ref().map(PoolName::as_str)
}

fn no_copy(bundle_id: &BundleId, copy: u32) -> String {
    format!("bundle {bundle_id:?} has no copy {copy}: a second one follows from resiliencePolicy")
}

/// Whether any of these forms of a bundle has a job.
pub(super) fn job_in<'a>(
    path: &JobPath,
    forms: impl Iterator<Item = &'a Bundle> + Clone,
) -> Result<(), String> {
    let has = |bundle: &Bundle| {
        path.replica_index < bundle.copies()
            && bundle.jobs.iter().any(|job| job.job_name == path.job_name)
    };
    if forms.clone().any(has) {
        return Ok(());
    }
    let copies = forms.clone().map(Bundle::copies).max().unwrap_or_default();
    if path.replica_index >= copies {
        return Err(no_copy(&path.bundle_id, path.replica_index));
    }
    let jobs: BTreeSet<&str> = forms
        .flat_map(|bundle| bundle.jobs.iter().map(|job| job.job_name.as_str()))
        .collect();
    let kind = format!("job in bundle {}", path.bundle_id);
    Err(none(&kind, path.job_name.as_str(), jobs))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-15
    #[test]
    fn the_tags_of_the_product_are_those_of_its_specification() {
        let line = |file: &str, id: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec");
            let text = std::fs::read_to_string(format!("{folder}/{file}")).expect("it is text");
            let found = text.lines().find(|line| line.starts_with(id));
            found.expect("the requirement is there").to_owned()
        };
        let text = [
            line("policy.md", "- **NODE-02**"),
            line("manager.md", "- **TAG-07**"),
        ]
        .concat();
        let words: BTreeSet<&str> = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter_map(|word| word.split(':').next())
            .collect();
        for tag in TAGS {
            assert!(words.contains(tag), "{tag} stands in neither of them");
        }
        assert!(words.contains(format!("{PROVIDED}*").as_str()));
        let others = ["INVALID_ARGUMENT", "reserved_tag", "provides.*"];
        let missing = words
            .iter()
            .filter(|word| !TAGS.contains(word) && !others.contains(word));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
