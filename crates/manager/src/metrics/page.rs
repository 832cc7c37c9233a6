//! What the page says.

use std::collections::BTreeMap;

use greenroom_ledger::{LeaseState, Ledger};
use greenroom_metrics::{Kind, Page};
use greenroom_types::Wall;
use greenroom_types::node::{InstanceState, NodeState, ProviderMetadata};

use super::calls::Tally;
use crate::engine::Engine;

/// What the ledger holds, counted.
#[derive(Debug, Default)]
struct Held {
    jobs: usize,
    bundles: usize,
    nodes: BTreeMap<(&'static str, &'static str), u64>,
    instances: BTreeMap<&'static str, u64>,
    leases: BTreeMap<&'static str, u64>,
    leases_paused: bool,
    /// When the oldest work of a kind that is under way was asked for.
    sagas: BTreeMap<&'static str, Wall>,
}

/// The kinds of work that go on after their call was answered.
const SAGAS: [&str; 3] = ["deleteBundle", "deleteJob", "stop"];

const NODE_STATES: [(NodeState, &str); 5] = [
    (NodeState::Starting, "starting"),
    (NodeState::Running, "running"),
    (NodeState::Unreachable, "unreachable"),
    (NodeState::Stopping, "stopping"),
    (NodeState::Stopped, "stopped"),
];

const INSTANCE_STATES: [(InstanceState, &str); 5] = [
    (InstanceState::Provisioned, "provisioned"),
    (InstanceState::Prepared, "prepared"),
    (InstanceState::Running, "running"),
    (InstanceState::Stopping, "stopping"),
    (InstanceState::Lost, "lost"),
];

const LEASE_STATES: [(LeaseState, &str); 2] = [
    (LeaseState::Held, "held"),
    (LeaseState::Lost, "lost_waiting"),
];

/// The page as it stands.
#[allow(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
pub(super) fn write(engine: &Engine, tally: &Tally) -> String {
    let mut page = Page::default();
    calls(&mut page, tally);
    let now = engine.clock().now().wall;
    let (held, seq) = engine.read(|ledger| (Held::count(ledger), ledger.seq()));
    held.write(&mut page, now);

    let hub = engine.hub();
    let depths = hub.depths();
    for (name, kind, help, value) in [
        (
            "greenroom_event_seq",
            Kind::Gauge,
            "Number of the newest event.",
            seq as f64,
        ),
        (
            "greenroom_events_sent_total",
            Kind::Counter,
            "Events handed to streams of subscribers.",
            hub.sent() as f64,
        ),
        (
            "greenroom_events_encoded_total",
            Kind::Counter,
            "News encoded for streams, once for all that show it alike; without snapshots.",
            hub.encoded() as f64,
        ),
        (
            "greenroom_subscribers",
            Kind::Gauge,
            "Open event streams.",
            depths.len() as f64,
        ),
        (
            "greenroom_subscriber_queue_depth",
            Kind::Gauge,
            "Events that wait for all subscribers.",
            depths.iter().sum::<usize>() as f64,
        ),
        (
            "greenroom_subscriber_queue_depth_max",
            Kind::Gauge,
            "Events that wait for the slowest subscriber.",
            depths.iter().max().copied().unwrap_or(0) as f64,
        ),
        (
            "greenroom_quorum",
            Kind::Gauge,
            "1 while this member takes part in a quorum that commits.",
            f64::from(u8::from(engine.commits())),
        ),
    ] {
        page.one(name, kind, help, value);
    }
    page.histogram(
        "greenroom_commit_seconds",
        "How long commands took to become durable.",
        engine.commit_times(),
    );
    page.into_text()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
fn calls(page: &mut Page, tally: &Tally) {
    page.family(
        "greenroom_calls_total",
        Kind::Counter,
        "Calls that ended, by method and status.",
    );
    for ((method, status), count) in tally.read() {
        page.sample(&[("method", &method), ("status", status)], count as f64);
    }
}

// === impl Held ===

impl Held {
    fn count(ledger: &Ledger) -> Self {
        let mut held = Self {
            jobs: ledger.jobs().count(),
            bundles: ledger.bundle_ids().count(),
            leases_paused: ledger.lease_pause().is_some(),
            ..Self::default()
        };
        for lease in ledger.leases() {
            let state = word(&LEASE_STATES, lease.state);
            *held.leases.entry(state).or_default() += 1;
        }
        for node in ledger.nodes() {
            let key = (
                provider(&node.metadata.provider),
                word(&NODE_STATES, node.state),
            );
            *held.nodes.entry(key).or_default() += 1;
        }
        for instance in ledger.instances() {
            let state = word(&INSTANCE_STATES, instance.state);
            *held.instances.entry(state).or_default() += 1;
            let Some(stop) = &instance.stop else { continue };
            held.asked("stop", stop.asked_at);
            let Some(job) = ledger.job(&instance.key.job_id) else {
                continue;
            };
            if job.deleting {
                let in_bundle = job.bundle_id.is_some();
                held.asked(
                    if in_bundle {
                        "deleteBundle"
                    } else {
                        "deleteJob"
                    },
                    stop.asked_at,
                );
            }
        }
        held
    }

    fn asked(&mut self, saga: &'static str, at: Wall) {
        let oldest = self.sagas.entry(saga).or_insert(at);
        *oldest = at.min(*oldest);
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "the format has floating-point numbers only"
    )]
    fn write(&self, page: &mut Page, now: Wall) {
        for (name, help, value) in [
            ("greenroom_jobs", "Jobs that are kept.", self.jobs),
            ("greenroom_bundles", "Bundles that are kept.", self.bundles),
        ] {
            page.one(name, Kind::Gauge, help, value as f64);
        }
        page.family(
            "greenroom_nodes",
            Kind::Gauge,
            "Nodes by provider and state.",
        );
        for ((provider, state), count) in &self.nodes {
            page.sample(&[("provider", provider), ("state", state)], *count as f64);
        }
        page.family("greenroom_instances", Kind::Gauge, "Instances by state.");
        for (_, state) in INSTANCE_STATES {
            let count = self.instances.get(state).copied().unwrap_or(0);
            page.sample(&[("state", state)], count as f64);
        }
        page.family("greenroom_leases", Kind::Gauge, "Leases of jobs by state.");
        for (_, state) in LEASE_STATES {
            let count = self.leases.get(state).copied().unwrap_or(0);
            page.sample(&[("state", state)], count as f64);
        }
        page.one(
            "greenroom_leases_paused",
            Kind::Gauge,
            "1 while leases are paused.",
            f64::from(u8::from(self.leases_paused)),
        );
        page.family(
            "greenroom_saga_age_seconds",
            Kind::Gauge,
            "For how long the oldest stop or delete of a kind has been under way.",
        );
        for saga in SAGAS {
            let age_ms = self.sagas.get(saga).map_or(0, |at| now.since(*at).max(0));
            page.sample(&[("saga", saga)], age_ms as f64 / 1_000.0);
        }
    }
}

fn word<S: Copy + PartialEq>(words: &[(S, &'static str)], state: S) -> &'static str {
    let found = words.iter().find(|(known, _)| *known == state);
    found.map_or("unknown", |(_, word)| word)
}

const fn provider(metadata: &ProviderMetadata) -> &'static str {
    match metadata {
        ProviderMetadata::Unknown => "unknown",
        ProviderMetadata::Aws { .. } => "aws",
        ProviderMetadata::Oci { .. } => "oci",
        ProviderMetadata::Local { .. } => "local",
        ProviderMetadata::CloudHypervisor { .. } => "cloudHypervisor",
    }
}
