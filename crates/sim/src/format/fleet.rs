//! The simulated fleet of a scenario: how it answers (SCEN-03) and which nodes it has (SCEN-04).

use std::collections::BTreeMap;

use greenroom_ledger::KeeperSettings;
use greenroom_types::inventory::{Capability, Disk, Gpu};
use greenroom_types::{Millis, NodeId, PoolName, Tags, TemplateName, TierName, Wall, tree};
use serde::{Deserialize, Deserializer, de};

use super::names::{JobPath, NodeRef};
use super::span::{Instant, Span};

/// Virtual zero, unless the file sets another: 2026-01-01T00:00:00Z.
const START: Wall = Wall(1_767_225_600_000);

/// How the simulated fleet answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorldSpec {
    /// Wall time at virtual zero.
    pub start: Wall,
    /// Source of all ids.
    pub seed: u64,
    /// What the ids of the first nodes that the policy asks for begin with, in that order.
    pub node_ids: Vec<String>,
    /// Create to NodeStarted and first inventory; the machine runs at half of it.
    pub boot_time: Span,
    /// StartJob to running.
    pub start_time: Span,
    /// StopJob to stopped, also for what a failed instance leaves behind.
    pub stop_time: Span,
    /// Deferred start to prepared.
    pub prepare_time: Span,
    /// StartPreparedJob to running.
    pub start_prepared_time: Span,
    /// Terminate to NodeStopped.
    pub terminate_time: Span,
    /// Per image.
    pub pull_time: Span,
    /// How fast a job that can be handed over answers.
    pub migration: MigrationTimes,
    /// What a bought node advertises, by instance type.
    pub instance_types: BTreeMap<String, Shape>,
    /// Zones by tier, given out in turn.
    pub azs: BTreeMap<TierName, Vec<String>>,
    /// Pools of nodes and bundles that the settings do not have, or no longer.
    pub unconfigured_pools: Vec<PoolName>,
    /// The Manager's own waits.
    pub manager: ManagerTimes,
}

/// How fast a job declared `handover: true` answers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MigrationTimes {
    /// Get-state to state.
    pub state: Span,
    /// Running to target ready.
    pub ready: Span,
    /// Cutover ready to source stopped output.
    pub stop_output: Span,
    /// Cutover apply to target applied.
    pub apply: Span,
}

/// Numbers of a machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Shape {
    /// vCPUs.
    pub vcpus: f64,
    /// Cores that can be pinned.
    pub cores: u32,
    /// Capabilities.
    pub capabilities: Vec<Capability>,
    /// GPU devices.
    pub gpus: Vec<Gpu>,
}

/// Waits of the Manager (MNODE-06, MNODE-09, MNODE-11, MNODE-12), in milliseconds.
#[derive(Clone, Debug)]
pub struct ManagerTimes {
    /// Silence after which a stream counts as dropped (MNODE-09).
    pub silence: Millis,
    /// All others.
    pub keeper: KeeperSettings,
}

/// One node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// Its id.
    pub id: NodeId,
    /// Pool, absent: in none.
    #[serde(default)]
    pub pool: Option<PoolName>,
    /// Tier, absent: the fixed one of its pool.
    #[serde(default)]
    pub tier: Option<TierName>,
    /// A spare, and for whom.
    #[serde(default)]
    pub spare: SpareSpec,
    /// Further tags.
    #[serde(default)]
    pub tags: Tags,
    /// What runs there already.
    #[serde(default)]
    pub jobs: Vec<JobPath>,
    /// When the node was made; absent: now.
    #[serde(default)]
    pub created_at: Option<Instant>,
    /// Zone.
    #[serde(default)]
    pub az: Option<String>,
    /// vCPUs.
    #[serde(default)]
    pub capacity: f64,
    /// Cores that can be pinned.
    #[serde(default)]
    pub cores: u32,
    /// Fraction of the capacity that may be used.
    #[serde(default = "one")]
    pub utilization_cap: f64,
    /// Capabilities.
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    /// GPU devices.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Images on its disk.
    #[serde(default)]
    pub held_images: Vec<String>,
    /// Takes no new work, says its inventory.
    #[serde(default)]
    pub cordoned: bool,
    /// File systems; the first is judged as a worker does (WORK-36).
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// What runs services, as an inventory names it.
    #[serde(default = "simulated")]
    pub runtime: String,
}

/// How a job stands before the policy connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JobStands {
    /// It waits to be started by hand; false: it was started by hand.
    pub dormant: Option<bool>,
    /// Why it failed for good.
    pub verdict: Option<String>,
    /// Index of the device on which it has its share; else the first one with room.
    pub gpu: Option<u32>,
}

/// Whether a node is a spare: `true`, or what it is kept for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpareSpec {
    /// It is one.
    pub spare: bool,
    /// Templates whose images it is to hold.
    pub warm_for: Vec<TemplateName>,
    /// Templates that it attracts.
    pub reserved_for: Vec<TemplateName>,
    /// Refuses all others.
    pub exclusive: bool,
}

/// A changed picture of a node: the keys that are given replace what it said before.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InventoryChange {
    /// The node.
    pub node: NodeRef,
    /// See [`NodeSpec`].
    pub az: Option<String>,
    /// See [`NodeSpec`].
    pub capacity: Option<f64>,
    /// See [`NodeSpec`].
    pub cores: Option<u32>,
    /// See [`NodeSpec`].
    pub utilization_cap: Option<f64>,
    /// See [`NodeSpec`].
    pub capabilities: Option<Vec<Capability>>,
    /// See [`NodeSpec`].
    pub gpus: Option<Vec<Gpu>>,
    /// See [`NodeSpec`].
    pub held_images: Option<Vec<String>>,
    /// See [`NodeSpec`].
    pub cordoned: Option<bool>,
    /// See [`NodeSpec`].
    pub disks: Option<Vec<Disk>>,
    /// See [`NodeSpec`].
    pub runtime: Option<String>,
}

/// A runtime of no kind, which runs everything.
pub(crate) fn simulated() -> String {
    "simulated".to_owned()
}

const fn one() -> f64 {
    1.0
}

// === impl WorldSpec ===

impl Default for WorldSpec {
    fn default() -> Self {
        Self {
            start: START,
            seed: 1,
            node_ids: Vec::new(),
            boot_time: Span(30_000),
            start_time: Span(1_000),
            stop_time: Span(500),
            prepare_time: Span(1_000),
            start_prepared_time: Span(200),
            terminate_time: Span(2_000),
            pull_time: Span(5_000),
            migration: MigrationTimes::default(),
            instance_types: BTreeMap::new(),
            azs: BTreeMap::new(),
            unconfigured_pools: Vec::new(),
            manager: ManagerTimes::default(),
        }
    }
}

impl Default for MigrationTimes {
    fn default() -> Self {
        Self {
            state: Span(50),
            ready: Span(200),
            stop_output: Span(100),
            apply: Span(100),
        }
    }
}

// === impl Shape ===

impl Shape {
    /// Nothing is said of the machine.
    pub(crate) fn is_nothing(&self) -> bool {
        let Self {
            vcpus,
            cores,
            capabilities,
            gpus,
        } = self;
        *vcpus == 0.0 && *cores == 0 && capabilities.is_empty() && gpus.is_empty()
    }
}

// === impl ManagerTimes ===

impl Default for ManagerTimes {
    fn default() -> Self {
        Self {
            silence: Millis(4_000),
            keeper: KeeperSettings::default(),
        }
    }
}

impl<'de> Deserialize<'de> for ManagerTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = serde_json::Map::deserialize(deserializer)?;
        let silence = match keys.remove("silenceMs") {
            None => Self::default().silence,
            Some(value) => tree::read(&value)
                .map_err(|error| de::Error::custom(format_args!("silenceMs: {error}")))?,
        };
        let keeper = tree::nested(&serde_json::Value::Object(keys))?;
        Ok(Self { silence, keeper })
    }
}

// === impl SpareSpec ===

impl SpareSpec {
    /// The tags that make a node such a spare (NODE-02).
    pub fn tags(&self) -> Tags {
        let mut tags = Tags::new();
        if !self.spare {
            return tags;
        }
        tags.insert("spare".into(), "true".into());
        for (key, names) in [
            ("warmFor", &self.warm_for),
            ("reservedFor", &self.reserved_for),
        ] {
            if !names.is_empty() {
                let names: Vec<&str> = names.iter().map(TemplateName::as_str).collect();
                tags.insert(key.into(), names.join(","));
            }
        }
        if self.exclusive {
            tags.insert("exclusive".into(), "true".into());
        }
        tags
    }
}

impl<'de> Deserialize<'de> for SpareSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        struct Written {
            warm_for: Vec<TemplateName>,
            reserved_for: Vec<TemplateName>,
            exclusive: bool,
        }
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Bool(spare) => Ok(Self {
                spare,
                ..Self::default()
            }),
            other => {
                let written: Written = tree::read(&other).map_err(|error| {
                    de::Error::custom(format_args!(
                        "{error}; write true, or warmFor, reservedFor and exclusive"
                    ))
                })?;
                Ok(Self {
                    spare: true,
                    warm_for: written.warm_for,
                    reserved_for: written.reserved_for,
                    exclusive: written.exclusive,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-03
    #[test]
    fn every_key_of_the_world_has_its_default() {
        let world: WorldSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(world.start.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!((world.seed, world.boot_time), (1, Span(30_000)));
        assert_eq!(
            (world.start_time, world.stop_time),
            (Span(1_000), Span(500))
        );
        assert_eq!(world.prepare_time, Span(1_000));
        assert_eq!(world.start_prepared_time, Span(200));
        assert_eq!(
            (world.terminate_time, world.pull_time),
            (Span(2_000), Span(5_000))
        );
        assert_eq!(world.migration.state, Span(50));
        assert_eq!(world.migration.ready, Span(200));
        assert_eq!(world.migration.stop_output, Span(100));
        assert_eq!(world.migration.apply, Span(100));
        assert_eq!(world.manager.silence, Millis(4_000));
        let set: WorldSpec =
            serde_json::from_str(r#"{"manager":{"silenceMs":1000,"keepaliveMs":40000}}"#).unwrap();
        assert_eq!(set.manager.silence, Millis(1_000));
        assert_eq!(set.manager.keeper.keepalive_ms, Millis(40_000));
        assert_eq!(set.manager.keeper.drop_grace_ms, Millis(3_000));
        assert!(serde_json::from_str::<WorldSpec>(r#"{"manager":{"keepalive":1}}"#).is_err());
    }

    // spec: SCEN-04
    #[test]
    fn a_spare_is_written_short_or_with_what_it_is_kept_for() {
        let read = |text: &str| serde_json::from_str::<SpareSpec>(text).unwrap().tags();
        assert_eq!(read("false"), Tags::new());
        assert_eq!(read("true").len(), 1);
        let tags = read(r#"{"warmFor":["a","b"],"reservedFor":["a"],"exclusive":true}"#);
        assert_eq!(tags["warmFor"], "a,b");
        assert_eq!(tags["reservedFor"], "a");
        assert_eq!(tags["exclusive"], "true");
        assert_eq!(tags["spare"], "true");
    }
}
