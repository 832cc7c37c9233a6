//! Pools and their ordered tiers: where a policy may place and what it may buy (TIER).

use serde::{Deserialize, Serialize};

use crate::id::{PoolName, TierName};
use crate::inventory::{Capability, Gpu};
use crate::time::Millis;

/// A named, ordered cascade of tiers (TIER-01).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// Name that bundles refer to.
    pub name: PoolName,
    /// Tiers in the order in which they are tried.
    pub tiers: Vec<Tier>,
}

/// Where a tier's nodes come from (TIER-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierKind {
    /// Amazon EC2.
    Aws,
    /// Oracle Cloud Infrastructure.
    Oci,
    /// Registered machines of one's own.
    LocalServers,
}

/// How nodes of a tier are filled (PLACE-21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PackingStrategy {
    /// Fullest first.
    #[default]
    Binpack,
    /// Emptiest first.
    Spread,
}

/// Whether a tier buys nodes (TIER-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScaleOut {
    /// Provisions nodes on demand.
    Elastic,
    /// Uses registered nodes only.
    Fixed,
}

/// How a cloud node is paid for (TIER-03).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchMode {
    /// List price, kept until terminated.
    #[default]
    OnDemand,
    /// Cheap, reclaimed at the provider's will.
    Spot,
    /// From a capacity reservation.
    Reserved,
}

/// Whether a provider may take the node away (TIER-03).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reliability {
    /// Stays until terminated.
    #[default]
    Durable,
    /// May be reclaimed.
    Interruptible,
}

impl Reliability {
    /// The value of the `reliability` tag.
    pub const fn as_tag(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Interruptible => "interruptible",
        }
    }
}

/// One shape that an elastic tier may buy (TIER-02).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CandidateInstanceType {
    /// The provider's name of the shape.
    pub instance_type: String,
    /// vCPUs.
    pub total_capacity: f64,
    /// Cores that can be pinned.
    #[serde(default)]
    pub total_cores: u32,
    /// Capabilities it offers.
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    /// GPU devices it offers.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// OCPUs of a flexible Oracle shape.
    #[serde(default)]
    pub ocpus: Option<f64>,
    /// Memory of a flexible Oracle shape, in GB.
    #[serde(default)]
    pub memory_gb: Option<f64>,
}

/// Root volume of an EC2 node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RootVolume {
    /// Size in GiB.
    pub size_gb: u32,
    /// Volume type, e.g. `gp3`.
    #[serde(default, rename = "type")]
    pub volume_type: String,
    /// Provisioned I/O operations a second, 0 for the type's default.
    #[serde(default)]
    pub iops: u32,
    /// Throughput in MiB/s, 0 for the type's default.
    #[serde(default)]
    pub throughput: u32,
}

/// One step of a pool's cascade (TIER-02, TIER-03).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tier {
    /// Name, unique in its pool.
    pub name: TierName,
    /// Where its nodes come from.
    pub kind: TierKind,
    /// Region, or availability domain for Oracle.
    #[serde(default)]
    pub region: Option<String>,
    /// How its nodes are filled.
    #[serde(default)]
    pub packing_strategy: PackingStrategy,
    /// Whether it buys nodes.
    pub scale_out: ScaleOut,
    /// Shapes it may buy, in the order in which they are tried.
    #[serde(default)]
    pub candidate_instance_types: Vec<CandidateInstanceType>,
    /// How its nodes are paid for.
    #[serde(default)]
    pub launch_mode: LaunchMode,
    /// Explicit reliability; absent: by launch mode.
    #[serde(default)]
    pub reliability: Option<Reliability>,
    /// Most nodes it may have; absent: no limit (TIER-08).
    #[serde(default)]
    pub max_nodes: Option<u32>,
    /// Root volume, EC2 only.
    #[serde(default)]
    pub root_volume: Option<RootVolume>,
    /// Explicit lead before a scheduled start.
    #[serde(default)]
    pub placement_lead_ms: Option<Millis>,
    /// Explicit bound on the boot of a node.
    #[serde(default)]
    pub provision_timeout_ms: Option<Millis>,
}

// === impl Tier ===

impl Tier {
    /// How long before a scheduled start its jobs are placed (TIER-03).
    pub fn placement_lead(&self) -> Millis {
        self.placement_lead_ms.unwrap_or(match self.kind {
            TierKind::Aws | TierKind::Oci => Millis(300_000),
            TierKind::LocalServers => Millis(0),
        })
    }

    /// How long a requested node may take to start (TIER-03).
    pub fn provision_timeout(&self) -> Millis {
        self.provision_timeout_ms
            .unwrap_or_else(|| Millis(2 * self.placement_lead().0.max(300_000)))
    }

    /// Reliability in force (TIER-03).
    pub fn reliability(&self) -> Reliability {
        self.reliability.unwrap_or(match self.launch_mode {
            LaunchMode::Spot => Reliability::Interruptible,
            LaunchMode::OnDemand | LaunchMode::Reserved => Reliability::Durable,
        })
    }

    /// True when it buys nodes.
    pub fn is_elastic(&self) -> bool {
        self.scale_out == ScaleOut::Elastic
    }
}

// === impl Pool ===

impl Pool {
    /// The tier of that name.
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.name.as_str() == name)
    }

    /// The tier that nodes without a `tier` tag belong to (TIER-05).
    pub fn fixed_tier(&self) -> Option<&Tier> {
        self.tiers
            .iter()
            .find(|tier| tier.scale_out == ScaleOut::Fixed)
    }

    /// The largest placement lead of its tiers (SCHED-02).
    pub fn placement_lead(&self) -> Millis {
        self.tiers
            .iter()
            .map(Tier::placement_lead)
            .max()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: TIER-03
    #[test]
    fn defaults_follow_kind_and_launch_mode() {
        let read = |text: &str| serde_json::from_str::<Tier>(text).unwrap();
        let local = read(r#"{"name":"own","kind":"local-servers","scaleOut":"fixed"}"#);
        assert_eq!(
            (local.placement_lead(), local.provision_timeout()),
            (Millis(0), Millis(600_000))
        );
        assert_eq!(local.reliability(), Reliability::Durable);
        assert_eq!(
            (local.launch_mode, local.max_nodes),
            (LaunchMode::OnDemand, None)
        );
        let spot = read(
            r#"{"name":"s","kind":"aws","scaleOut":"elastic","launchMode":"spot","placementLeadMs":400000}"#,
        );
        assert_eq!(spot.placement_lead(), Millis(400_000));
        assert_eq!(spot.provision_timeout(), Millis(800_000));
        assert_eq!(spot.reliability(), Reliability::Interruptible);
        let kept = read(
            r#"{"name":"s","kind":"oci","scaleOut":"elastic","launchMode":"spot","reliability":"durable"}"#,
        );
        assert_eq!(
            (kept.placement_lead(), kept.reliability()),
            (Millis(300_000), Reliability::Durable)
        );
    }
}
