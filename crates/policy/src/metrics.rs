//! Counters and gauges (METR). Counters only grow; gauges are worked out when they are asked for.

use greenroom_types::id::{BundleId, PoolName};
use greenroom_types::{Now, Wall};
use serde::{Deserialize, Serialize};

use crate::effect::MirrorState;
use crate::policy::Policy;
use crate::purchases::TierMetrics;

/// Cumulative counts since the stream was opened (METR-02).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) placements_attempted: u64,
    pub(crate) placements_succeeded: u64,
    pub(crate) placements_failed: u64,
    pub(crate) placements_dispatch_failed: u64,
    pub(crate) provisions_failed: u64,
    pub(crate) jobs_rejected: u64,
    pub(crate) bundles_broken: u64,
    pub(crate) jobs_dropped: u64,
}

/// What [`Policy::metrics`] gives (METR-01).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    /// When the stream was opened; none before.
    pub started_at: Option<Wall>,
    /// Time since then, on the monotonic clock (METR-06).
    pub uptime_ms: u64,
    /// Runs of the engine that were no dry runs (LAUNCH-07).
    pub placements_attempted: u64,
    /// Decisions whose first call the Manager accepted.
    pub placements_succeeded: u64,
    /// Decisions that found no place.
    pub placements_failed: u64,
    /// Calls of decisions that failed.
    pub placements_dispatch_failed: u64,
    /// Creates that were accepted and failed later (PROV-08).
    pub provisions_failed: u64,
    /// Rejections by workers (HEALTH-01).
    pub jobs_rejected: u64,
    /// Bundles that broke (CEIL-05).
    pub bundles_broken: u64,
    /// Jobs that were dropped.
    pub jobs_dropped: u64,
    /// Gauges by pool: configured ones in order, then further ones by name (METR-03).
    pub pools: Vec<PoolMetrics>,
    /// Counts by elastic tier, in the order of the settings (METR-10).
    pub tiers: Vec<TierMetrics>,
    /// Bundles that are broken now, also those that hydrated as such (METR-07).
    pub broken_bundle_ids: Vec<BundleId>,
}

/// Gauges of one pool (METR-03).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolMetrics {
    /// The pool.
    pub pool_name: PoolName,
    /// Nodes of the mirror with its tag, prospective ones included, stopped ones not (DEC-36).
    pub node_count: usize,
    /// Spares that could take a job now (SPARE-05).
    pub live_spares: usize,
    /// Spares wanted.
    pub spare_target: u32,
    /// Mean over its nodes of reserved by total capacity (METR-04).
    pub used_capacity_fraction: f64,
}

// === impl Policy ===

impl Policy {
    /// Counters and gauges as they are now (METR-01). `now` is what the clocks say.
    pub fn metrics(&self, now: Now) -> Metrics {
        let counters = self.counters;
        Metrics {
            started_at: self.opened.map(|opened| opened.wall),
            uptime_ms: self.opened.map_or(0, |opened| (now.mono - opened.mono).0),
            placements_attempted: counters.placements_attempted,
            placements_succeeded: counters.placements_succeeded,
            placements_failed: counters.placements_failed,
            placements_dispatch_failed: counters.placements_dispatch_failed,
            provisions_failed: counters.provisions_failed,
            jobs_rejected: counters.jobs_rejected,
            bundles_broken: counters.bundles_broken,
            jobs_dropped: counters.jobs_dropped,
            pools: self.pool_metrics(),
            tiers: self.tier_metrics(),
            broken_bundle_ids: self
                .bundles
                .iter()
                .filter(|(_, bundle)| bundle.broken.is_some())
                .map(|(bundle_id, _)| bundle_id.clone())
                .collect(),
        }
    }

    fn pool_metrics(&self) -> Vec<PoolMetrics> {
        let mut names: Vec<PoolName> = self
            .settings
            .placement_pools
            .iter()
            .map(|pool| pool.name.clone())
            .collect();
        let mut further: Vec<PoolName> = self
            .fleet
            .nodes()
            .filter_map(|facts| facts.pool.clone())
            .filter(|pool| !names.contains(pool))
            .collect();
        further.sort();
        further.dedup();
        names.extend(further);
        names.into_iter().map(|name| self.one_pool(name)).collect()
    }

    fn one_pool(&self, pool_name: PoolName) -> PoolMetrics {
        let mut metrics = PoolMetrics {
            spare_target: self
                .settings
                .hot_spares
                .iter()
                .find(|spare| spare.pool == pool_name)
                .map_or(0, |spare| spare.target_count),
            ..PoolMetrics::default()
        };
        let (mut sum, mut counted) = (0.0, 0.0);
        for (node_id, record) in &self.nodes {
            let tagged = self
                .fleet
                .facts(node_id)
                .is_some_and(|facts| facts.pool.as_ref() == Some(&pool_name));
            if !tagged || record.state == MirrorState::Stopped {
                continue;
            }
            metrics.node_count += 1;
            metrics.live_spares += usize::from(self.is_live_spare(node_id));
            let total = self
                .fleet
                .inventory(node_id)
                .map_or(0.0, |inventory| inventory.total_capacity);
            if total > 0.0 {
                let reserved = self.fleet.reserved(node_id).map_or(0.0, |r| r.capacity);
                sum += reserved / total;
                counted += 1.0;
            }
        }
        if counted > 0.0 {
            metrics.used_capacity_fraction = sum / counted;
        }
        metrics.pool_name = pool_name;
        metrics
    }

    /// An unconsumed spare that runs and goes on, whether it could take a job now or not.
    pub(crate) fn is_standing_spare(&self, node_id: &greenroom_types::NodeId) -> bool {
        let condition = self.fleet.condition(node_id);
        self.fleet.unconsumed_spare(node_id).is_some()
            && self.is_running(node_id)
            && condition.is_some_and(|condition| !condition.terminating)
    }

    /// An unconsumed spare that could take a job now (SPARE-05).
    pub(crate) fn is_live_spare(&self, node_id: &greenroom_types::NodeId) -> bool {
        self.fleet.unconsumed_spare(node_id).is_some() && self.spare_hindrance(node_id).is_none()
    }

    /// Why a node that is tagged as a spare does not count as a live one, in plain words (SPARE-05).
    pub fn spare_hindrance(&self, node_id: &greenroom_types::NodeId) -> Option<&'static str> {
        let condition = self.fleet.condition(node_id);
        let is = |what: fn(&greenroom_placement::NodeCondition) -> bool| {
            condition.as_ref().is_some_and(|condition| what(condition))
        };
        // Placement passes the last two over (PLACE-34, PLACE-36): in an emergency they are no reserve.
        let picture = self.fleet.inventory(node_id);
        let hindrances = [
            (!self.fleet.jobs_on(node_id).is_empty(), "it carries a job"),
            (!self.is_running(node_id), "it does not run"),
            (!self.fleet.is_reachable(node_id), "it is not reachable"),
            (is(|it| it.terminating), "it is being ended"),
            (self.fleet.is_cordoned(node_id), "it is cordoned"),
            (is(|it| it.unhealthy), "it is unhealthy"),
            (
                picture.is_some_and(|it| it.disk_low),
                "its disk is nearly full",
            ),
            (
                picture.is_some_and(|it| it.is_runtime_down()),
                "its engine does not answer",
            ),
            (
                self.fleet.unconsumed_spare(node_id).is_none(),
                "it carried a job, and is an ordinary node since",
            ),
        ];
        let stands = hindrances.into_iter().find(|(stands, _)| *stands);
        stands.map(|(_, words)| words)
    }
}
