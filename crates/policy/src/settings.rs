//! The settings in force: every default applied, every value checked.
//!
//! [`Settings::parse`] reads a tree as YAML or JSON gives it and collects all faults with their
//! paths (CONF-01); reading files and the abort handle are the driver's. A key that no setting has
//! is a fault, so that a typing slip cannot pass unseen (CONF-15).

mod read;
mod spares;
mod validate;
pub mod words;

use std::collections::BTreeMap;
use std::fmt;

use greenroom_types::Millis;
use greenroom_types::bundle::{BundleJob, OnRuntimeFailure, Requirements};
use greenroom_types::id::{PoolName, ServiceId, TemplateName};
use greenroom_types::inventory::Capability;
use greenroom_types::pool::Pool;
use serde::{Deserialize, Serialize};

/// Time within which one launch decision keeps off the next of the same job (LAUNCH-03).
pub const MIN_PLACEMENT_INTERVAL: Millis = Millis(1_000);
/// Least time between two recovery attempts of one job that sent something (RECOV-09).
pub const MIN_RECOVERY_INTERVAL: Millis = Millis(5_000);
/// The trailing time in which restarts count (CEIL-01).
pub const RESTART_WINDOW: Millis = Millis(3_600_000);
/// Time from a failed start, verdict or delete call to its next try (LAUNCH-08, CEIL-13, STOP-04).
pub const CALL_RETRY: Millis = Millis(5_000);
/// Least time between two stops of one stray instance (BIND-08).
pub const STRAY_STOP_INTERVAL: Millis = Millis(5_000);
/// Least time from the end of a node service to its next start on the node (NSVC-10).
pub const SERVICE_RETRY: Millis = Millis(5_000);
/// First back-off of a tier whose provision failed (PROV-12).
pub const TIER_BACKOFF_MIN: Millis = Millis(60_000);
/// Longest back-off of a tier (PROV-12).
pub const TIER_BACKOFF_MAX: Millis = Millis(600_000);
/// Least time between two spare provisions of a pool after a failed one (SPARE-11).
pub const SPARE_PROVISION_RETRY_BACKOFF: Millis = Millis(60_000);
/// Least time between a failed terminate of a spare and the next one (SPARE-27).
pub const SPARE_TERMINATE_RETRY_BACKOFF: Millis = Millis(60_000);
/// How long what is left of a job that is told of no more counts without a picture (RESV-07).
pub const ORPHAN_WAIT: Millis = Millis(60_000);
/// How long a spare takes no start before it is ended to make room for its replacement (SPARE-26).
pub const SPARE_UNFIT_WAIT: Millis = Millis(60_000);
/// Time of a drain that names none (DRAIN-01).
pub const DEFAULT_DRAIN_TIMEOUT: Millis = Millis(600_000);
/// Time kept free before a provider takes a node (INTR-01).
pub const SPOT_INTERRUPTION_DRAIN_MARGIN: Millis = Millis(30_000);
/// Drain time of a spot interruption without a deadline (INTR-01).
pub const DEFAULT_SPOT_INTERRUPTION_DRAIN: Millis = Millis(90_000);
/// Drain time of a rebalance without a deadline (INTR-01).
pub const DEFAULT_REBALANCE_DRAIN: Millis = Millis(300_000);
/// Longest wait for the calls of a wind-down (LIFE-05).
pub const CLOSE_ABORT_GRACE: Millis = Millis(5_000);

/// All settings of one instance (CONF).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `host:port` of the Manager (CONF-02).
    pub url: String,
    /// How far ahead jobs are announced (CONF-03), as set.
    pub pending_window: Millis,
    /// How long a stopped node stays in the mirror (CONF-04).
    pub remove_stopped_nodes_after: Millis,
    /// Age below which a rejection counts against its node, and window of HEALTH-03.
    pub rejection_backoff: Millis,
    /// Rejections within that window that make a node unhealthy.
    pub rejection_escalation_count: u32,
    /// How long a node seen stopping is left out (HEALTH-08), and a node for one job (HEALTH-10).
    pub failure_backoff: Millis,
    /// How long a booting node may take to start (NODE-05).
    pub job_startup_grace: Millis,
    /// How long an unhealthy node is left out at most (HEALTH-04).
    pub unhealthy_cooldown: Millis,
    /// Restart ceilings (CONF-06).
    pub ceilings: Ceilings,
    /// Tick of the spare reconciler (CONF-08).
    pub hot_spare_reconcile_interval: Millis,
    /// Tick of the node-service reconciler (CONF-08).
    pub node_service_reconcile_interval: Millis,
    /// Nodes that pull from one registry at a time (CONF-08).
    pub prefetch_parallel_nodes: u32,
    /// Deadlines of the phases of a migration (CONF-09).
    pub migration: MigrationDeadlines,
    /// Pools in the order given (CONF-11).
    pub placement_pools: Vec<Pool>,
    /// Hot spares, at most one entry per pool (CONF-11).
    pub hot_spares: Vec<HotSpare>,
    /// Images by template (CONF-11).
    pub template_images: BTreeMap<TemplateName, Vec<String>>,
    /// Node services (CONF-11); empty unless switched on (CONF-14).
    pub node_services: Vec<NodeService>,
}

/// Restart ceilings by what the job asks for at failure (CONF-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ceilings {
    /// `failurePolicies.preferSpare.maxRestartsPerHour`, else the flat one, else 6.
    pub prefer_spare: u32,
    /// `failurePolicies.avoidSpare.maxRestartsPerHour`, else the flat one, else 6.
    pub avoid_spare: u32,
}

/// Deadlines of the phases of a migration (CONF-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationDeadlines {
    /// Phase proposing.
    pub proposing: Millis,
    /// Phase launching.
    pub launching: Millis,
    /// Phase awaitingTargetReady.
    pub awaiting_target_ready: Millis,
    /// Phase awaitingSourceStop.
    pub awaiting_source_stop: Millis,
    /// Phase applying.
    pub applying: Millis,
    /// Phase startingTarget.
    pub starting_target: Millis,
    /// Phase stoppingSource.
    pub stopping_source: Millis,
}

/// Warm reserve of one pool (SPARE-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HotSpare {
    /// The pool; the key of the entry.
    pub pool: PoolName,
    /// How many are kept ready.
    pub target_count: u32,
    /// What is bought.
    pub spec: HotSpareSpec,
    /// Templates whose images are pulled.
    pub warm_for: Vec<TemplateName>,
    /// Templates whose placement it attracts.
    pub reserved_for: Vec<TemplateName>,
    /// Refuses every other template.
    pub exclusive: bool,
}

/// What is bought as a spare (SPARE-10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HotSpareSpec {
    /// Shape.
    pub instance_type: String,
    /// Region; empty: the tier's.
    pub region: String,
    /// Availability domain; empty: by region.
    pub az: String,
}

/// A service that runs once on every eligible node (NSVC-01).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeService {
    /// Name of the service.
    pub service_id: ServiceId,
    /// Pools on whose nodes it runs.
    pub pools: Vec<PoolName>,
    /// Capabilities a node must have free for it.
    pub consumes: Vec<Capability>,
    /// Capabilities it brings to its node.
    pub provides: Vec<Capability>,
    /// What runs, and its needs.
    pub job_spec: BundleJob,
}

/// Kind of a fault in settings (CONF-12 to CONF-15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultCode {
    /// A pool without a name.
    EmptyPoolName,
    /// Two pools of one name.
    DuplicatePoolName,
    /// A pool without tiers.
    EmptyTierList,
    /// A tier without a name.
    EmptyTierName,
    /// Two tiers of one name in a pool.
    DuplicateTier,
    /// More than one fixed tier in a pool.
    MultipleFixedTiers,
    /// An elastic tier that may buy nothing.
    NoCandidateInstanceTypes,
    /// An elastic tier of registered machines.
    ElasticNeedsCloud,
    /// An elastic tier that does not say where it buys.
    RegionMissing,
    /// A root volume outside EC2.
    RootVolumeNotAws,
    /// A shape without name or numbers.
    InvalidCandidate,
    /// Two shapes of one name in a tier.
    DuplicateCandidate,
    /// A spare entry for a pool that is not there.
    UnknownHotSparePool,
    /// Two spare entries for one pool.
    DuplicateHotSpare,
    /// A number of spares that is no count.
    InvalidTargetCount,
    /// A spare to be bought without a shape.
    SpareInstanceTypeMissing,
    /// A spare of a shape that its tier does not list.
    SpareInstanceTypeNotListed,
    /// More spares than their tier may hold.
    TargetAboveMaxNodes,
    /// A key of bought machines on a tier of one's own.
    NotForLocalServers,
    /// Exclusive for nobody.
    ExclusiveWithoutReservedFor,
    /// Node services without the switch.
    ExperimentalNotEnabled,
    /// A lifecycle other than eager.
    UnsupportedLifecycle,
    /// A node service for a pool that is not there.
    UnknownNodeServicePool,
    /// Two node services of one id.
    DuplicateNodeService,
    /// A number that cannot be.
    InvalidNumber,
    /// A value outside its list, or of the wrong kind.
    UnknownValue,
    /// A key that no setting has.
    UnknownKey,
    /// No address of the Manager.
    MissingUrl,
}

/// One fault in settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Its kind.
    pub code: FaultCode,
    /// Path of the field, e.g. `placementPools[0].tiers[1].name`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// The settings are not valid; carries every fault (CONF-01).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{} fault(s) in the settings: {}", faults.len(), list(faults))]
pub struct AutoSettingsValidationError {
    /// All faults, in the order of the settings.
    pub faults: Vec<Fault>,
}

/// Reads and checks a list of hot spares by itself (SPARE-20).
pub(crate) fn hot_spares(
    list: &serde_json::Value,
    pools: &[Pool],
) -> Result<Vec<HotSpare>, AutoSettingsValidationError> {
    spares::hot_spare_list(list, pools)
}

// === impl AutoSettingsValidationError ===

impl AutoSettingsValidationError {
    /// Name of the first fault's code.
    pub fn code(&self) -> &str {
        self.faults.first().map_or("", |fault| fault.code.name())
    }
}

fn list(faults: &[Fault]) -> String {
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    lines.join("; ")
}

// === impl Settings ===

impl Settings {
    /// Reads and checks a settings tree with the keys of policy.md (CONF-01).
    pub fn parse(tree: &serde_json::Value) -> Result<Self, AutoSettingsValidationError> {
        validate::settings(tree)
    }

    /// What is sent to the Manager as `pending_window_s`: the larger of the setting and the longest
    /// lead of any tier plus 60 s, so that a lead is never cut short (CONF-03).
    pub fn pending_window_sent_s(&self) -> u32 {
        let lead = self
            .placement_pools
            .iter()
            .map(Pool::placement_lead)
            .max()
            .unwrap_or_default();
        let ms = self.pending_window.0.max(lead.0 + 60_000);
        u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.placement_pools
            .iter()
            .find(|pool| pool.name.as_str() == name)
    }
}

// === impl Ceilings ===

impl Ceilings {
    /// The ceiling of a job with these needs; none for `drop` (CONF-06).
    pub fn limit(&self, needs: &Requirements) -> Option<u32> {
        let of_policy = match needs.on_runtime_failure {
            OnRuntimeFailure::PreferSpare => self.prefer_spare,
            OnRuntimeFailure::AvoidSpare => self.avoid_spare,
            OnRuntimeFailure::Drop => return None,
        };
        Some(needs.max_restarts_per_hour.unwrap_or(of_policy))
    }
}

// === impl FaultCode ===

impl FaultCode {
    /// The code as written in reports and scenarios (CONF-12 to CONF-15).
    pub const fn name(self) -> &'static str {
        match self {
            Self::EmptyPoolName => "emptyPoolName",
            Self::DuplicatePoolName => "duplicatePoolName",
            Self::EmptyTierList => "emptyTierList",
            Self::EmptyTierName => "emptyTierName",
            Self::DuplicateTier => "duplicateTier",
            Self::MultipleFixedTiers => "multipleFixedTiers",
            Self::NoCandidateInstanceTypes => "noCandidateInstanceTypes",
            Self::ElasticNeedsCloud => "elasticNeedsCloud",
            Self::RegionMissing => "regionMissing",
            Self::RootVolumeNotAws => "rootVolumeNotAws",
            Self::InvalidCandidate => "invalidCandidate",
            Self::DuplicateCandidate => "duplicateCandidate",
            Self::UnknownHotSparePool => "unknownHotSparePool",
            Self::DuplicateHotSpare => "duplicateHotSpare",
            Self::InvalidTargetCount => "invalidTargetCount",
            Self::SpareInstanceTypeMissing => "spareInstanceTypeMissing",
            Self::SpareInstanceTypeNotListed => "spareInstanceTypeNotListed",
            Self::TargetAboveMaxNodes => "targetAboveMaxNodes",
            Self::NotForLocalServers => "notForLocalServers",
            Self::ExclusiveWithoutReservedFor => "exclusiveWithoutReservedFor",
            Self::ExperimentalNotEnabled => "experimentalNotEnabled",
            Self::UnsupportedLifecycle => "unsupportedLifecycle",
            Self::UnknownNodeServicePool => "unknownNodeServicePool",
            Self::DuplicateNodeService => "duplicateNodeService",
            Self::InvalidNumber => "invalidNumber",
            Self::UnknownValue => "unknownValue",
            Self::UnknownKey => "unknownKey",
            Self::MissingUrl => "missingUrl",
        }
    }
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.path, self.message, self.code.name())
    }
}

#[cfg(test)]
mod tests;
