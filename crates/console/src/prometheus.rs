//! Counters and gauges as Prometheus reads them (METR-09): text, one family after the other.

use greenroom_auto::Checks;
use greenroom_metrics::{Kind, Page};
use greenroom_policy::Metrics;
use greenroom_policy::purchases::TierMetrics;

/// What is shown.
pub(crate) struct Shown {
    pub(crate) metrics: Metrics,
    pub(crate) checks: Checks,
    pub(crate) jobs_unplaced: usize,
    pub(crate) jobs_scheduled: usize,
    pub(crate) migrations: usize,
}

/// The page; without an instance in service it says no more than that.
#[allow(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
pub(crate) fn page(shown: Option<&Shown>) -> String {
    let mut page = Page::default();
    page.one(
        "greenroom_control_live",
        Kind::Gauge,
        "1 while the control plane is in service.",
        f64::from(u8::from(shown.is_some())),
    );
    let Some(shown) = shown else {
        return page.into_text();
    };
    let Shown {
        metrics, checks, ..
    } = shown;
    let started = metrics.started_at.map_or(0.0, |at| at.0 as f64 / 1000.0);
    for (name, help, value) in [
        (
            "greenroom_control_start_time_seconds",
            "When the instance began, since 1970.",
            started,
        ),
        (
            "greenroom_control_uptime_seconds",
            "How long the instance has been running.",
            metrics.uptime_ms as f64 / 1000.0,
        ),
        (
            "greenroom_jobs_unplaced",
            "Jobs that are due and have no node.",
            shown.jobs_unplaced as f64,
        ),
        (
            "greenroom_jobs_scheduled",
            "Jobs that wait for their time.",
            shown.jobs_scheduled as f64,
        ),
        (
            "greenroom_migrations_running",
            "Migrations under way.",
            shown.migrations as f64,
        ),
        (
            "greenroom_bundles_broken",
            "Bundles that are broken now.",
            metrics.broken_bundle_ids.len() as f64,
        ),
        (
            "greenroom_invariant_violations",
            "What the last check of the policy found to disagree; not 0 is a bug.",
            checks.standing as f64,
        ),
    ] {
        page.one(name, Kind::Gauge, help, value);
    }
    for (name, help, value) in [
        (
            "greenroom_placements_attempted_total",
            "Runs of the placement engine.",
            metrics.placements_attempted,
        ),
        (
            "greenroom_placements_succeeded_total",
            "Placements whose first call the Manager accepted.",
            metrics.placements_succeeded,
        ),
        (
            "greenroom_placements_failed_total",
            "Placements that found no place.",
            metrics.placements_failed,
        ),
        (
            "greenroom_placements_dispatch_failed_total",
            "Calls of placements that failed.",
            metrics.placements_dispatch_failed,
        ),
        (
            "greenroom_provisions_failed_total",
            "Purchases that a provider took and that failed later.",
            metrics.provisions_failed,
        ),
        (
            "greenroom_jobs_rejected_total",
            "Starts that workers rejected.",
            metrics.jobs_rejected,
        ),
        (
            "greenroom_jobs_dropped_total",
            "Jobs that were given up.",
            metrics.jobs_dropped,
        ),
        (
            "greenroom_bundle_breakings_total",
            "Bundles that broke.",
            metrics.bundles_broken,
        ),
        (
            "greenroom_invariant_checks_total",
            "Checks that the policy made of itself.",
            checks.made,
        ),
        (
            "greenroom_invariant_violations_found_total",
            "Violations found by all of them.",
            checks.found,
        ),
    ] {
        page.one(name, Kind::Counter, help, value as f64);
    }
    pools(&mut page, metrics);
    tiers(&mut page, metrics);
    page.into_text()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
fn pools(page: &mut Page, metrics: &Metrics) {
    type Value = fn(&greenroom_policy::metrics::PoolMetrics) -> f64;
    let families: [(&str, &str, Value); 4] = [
        (
            "greenroom_pool_nodes",
            "Nodes of the pool, those that boot included.",
            |pool| pool.node_count as f64,
        ),
        (
            "greenroom_pool_spares_live",
            "Spares that could take a job now.",
            |pool| pool.live_spares as f64,
        ),
        ("greenroom_pool_spares_wanted", "Spares wanted.", |pool| {
            f64::from(pool.spare_target)
        }),
        (
            "greenroom_pool_used_capacity_ratio",
            "Mean over its nodes of reserved by total vCPU.",
            |pool| pool.used_capacity_fraction,
        ),
    ];
    for (name, help, value) in families {
        page.family(name, Kind::Gauge, help);
        for pool in &metrics.pools {
            page.sample(&[("pool", pool.pool_name.as_str())], value(pool));
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
fn tiers(page: &mut Page, metrics: &Metrics) {
    type Value = fn(&TierMetrics) -> f64;
    let families: [(&str, Kind, &str, Value); 2] = [
        (
            "greenroom_tier_purchases_failed_total",
            Kind::Counter,
            "Purchases of nodes that brought none, for whatever reason.",
            |tier| tier.purchases_failed as f64,
        ),
        (
            "greenroom_tier_backs_off",
            Kind::Gauge,
            "1 while a tier is asked for nothing because its last purchase failed.",
            |tier| f64::from(u8::from(tier.backs_off)),
        ),
    ];
    for (name, kind, help, value) in families {
        page.family(name, kind, help);
        for tier in &metrics.tiers {
            let labels = [
                ("pool", tier.pool_name.as_str()),
                ("tier", tier.tier_name.as_str()),
            ];
            page.sample(&labels, value(tier));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use greenroom_policy::metrics::PoolMetrics;

    use super::*;

    fn shown() -> Shown {
        let pool = |name: &str, node_count| PoolMetrics {
            pool_name: name.into(),
            node_count,
            live_spares: 1,
            spare_target: 2,
            used_capacity_fraction: 0.25,
        };
        Shown {
            metrics: Metrics {
                started_at: Some(greenroom_types::Wall(1_767_225_600_500)),
                uptime_ms: 1_500,
                placements_attempted: 10,
                placements_succeeded: 7,
                placements_failed: 2,
                placements_dispatch_failed: 1,
                provisions_failed: 3,
                jobs_rejected: 4,
                bundles_broken: 5,
                jobs_dropped: 6,
                pools: vec![pool("studio", 3), pool("a\"b\\c\nd", 0)],
                tiers: vec![TierMetrics {
                    pool_name: "studio".into(),
                    tier_name: "od".into(),
                    purchases_failed: 14,
                    backs_off: true,
                }],
                broken_bundle_ids: vec!["news".into()],
            },
            checks: Checks {
                made: 9,
                found: 8,
                standing: 2,
                violations: vec!["x".to_owned()],
            },
            jobs_unplaced: 11,
            jobs_scheduled: 12,
            migrations: 13,
        }
    }

    // spec: METR-09
    #[test]
    fn every_counter_and_gauge_is_on_the_page() {
        let samples = greenroom_metrics::samples(&page(Some(&shown()))).unwrap();
        for (name, value) in [
            ("greenroom_control_live", 1.0),
            ("greenroom_control_start_time_seconds", 1_767_225_600.5),
            ("greenroom_control_uptime_seconds", 1.5),
            ("greenroom_placements_attempted_total", 10.0),
            ("greenroom_placements_succeeded_total", 7.0),
            ("greenroom_placements_failed_total", 2.0),
            ("greenroom_placements_dispatch_failed_total", 1.0),
            ("greenroom_provisions_failed_total", 3.0),
            ("greenroom_jobs_rejected_total", 4.0),
            ("greenroom_bundle_breakings_total", 5.0),
            ("greenroom_jobs_dropped_total", 6.0),
            ("greenroom_bundles_broken", 1.0),
            ("greenroom_invariant_checks_total", 9.0),
            ("greenroom_invariant_violations_found_total", 8.0),
            ("greenroom_invariant_violations", 2.0),
            ("greenroom_jobs_unplaced", 11.0),
            ("greenroom_jobs_scheduled", 12.0),
            ("greenroom_migrations_running", 13.0),
            ("greenroom_pool_nodes{pool=\"studio\"}", 3.0),
            ("greenroom_pool_nodes{pool=\"a\\\"b\\\\c\\nd\"}", 0.0),
            (
                "greenroom_tier_purchases_failed_total{pool=\"studio\",tier=\"od\"}",
                14.0,
            ),
            ("greenroom_tier_backs_off{pool=\"studio\",tier=\"od\"}", 1.0),
            ("greenroom_pool_spares_live{pool=\"studio\"}", 1.0),
            ("greenroom_pool_spares_wanted{pool=\"studio\"}", 2.0),
            ("greenroom_pool_used_capacity_ratio{pool=\"studio\"}", 0.25),
        ] {
            assert_eq!(samples.get(name), Some(&value), "{name} in {samples:#?}");
        }
        assert_eq!(samples.len(), 18 + 2 * 4 + 2);
        // The operating reference names them all.
        let reference = include_str!("../../../docs/operate/reference.md");
        for name in samples.keys() {
            let bare = name.split('{').next().unwrap_or_default();
            assert!(reference.contains(&format!("`{bare}`")), "{bare}");
        }
    }

    #[test]
    fn without_an_instance_the_page_says_so() {
        let samples = greenroom_metrics::samples(&page(None)).unwrap();
        assert_eq!(
            samples,
            BTreeMap::from([("greenroom_control_live".to_owned(), 0.0)])
        );
    }
}
