//! The rules of CONF-01 to CONF-15, in the order of the settings.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::Millis;
use greenroom_types::bundle::BundleJob;
use greenroom_types::id::{PoolName, ServiceId, TierName};
use greenroom_types::inventory::{Capability, Gpu};
use greenroom_types::pool::{
    CandidateInstanceType, PackingStrategy, Pool, Reliability, RootVolume, ScaleOut, Tier, TierKind,
};
use serde_json::Value;

use super::read::{Faults, Node, Zero, wanted};
use super::spares::{hot_spares, template_images};
use super::words;
use super::{
    AutoSettingsValidationError, Ceilings, FaultCode, MigrationDeadlines, NodeService, Settings,
};

const DEFAULT_MAX_RESTARTS_PER_HOUR: u32 = 6;
/// More vCPUs than any machine has: whoever writes more slipped on the keys.
const AMOUNT_MAX: f64 = 1_000_000.0;

pub(super) fn settings(tree: &Value) -> Result<Settings, AutoSettingsValidationError> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut root = Node::new(Some(tree), "", f);

    let url = root.text("url", f).unwrap_or_default();
    if url.is_empty() {
        f.add(
            FaultCode::MissingUrl,
            "url",
            "the address of the Manager is required, as host:port",
        );
    } else if let Some(fault) = words::fault_of_address(&url) {
        f.add(FaultCode::UnknownValue, "url", fault);
    }
    let pending_window = root.seconds("pendingWindow", Zero::Allowed, f);
    let remove_stopped = root.seconds("removeStoppedNodesAfter", Zero::Refused, f);

    // `placement.X` wins over the flat `X`; both are checked (CONF-05).
    let mut nested = root.child("placement", f);
    let mut timing = |key: &'static str, default: u64, f: &mut Faults| {
        let inner = nested.millis(key, Zero::Allowed, f);
        let flat = root.millis(key, Zero::Allowed, f);
        inner.or(flat).unwrap_or(Millis(default))
    };
    let rejection_backoff = timing("rejectionBackoffMs", 5_000, f);
    let failure_backoff = timing("failureBackoffMs", 30_000, f);
    let job_startup_grace = timing("jobStartupGraceMs", 120_000, f);
    let unhealthy_cooldown = timing("unhealthyCooldownMs", 600_000, f);
    let inner = nested.count("rejectionEscalationCount", Zero::Refused, f);
    let flat = root.count("rejectionEscalationCount", Zero::Refused, f);
    let rejection_escalation_count = inner.or(flat).unwrap_or(3);
    nested.finish(f);

    let ceilings = ceilings(&mut root, f);
    let hot_spare_tick = root.millis("hotSpareReconcileIntervalMs", Zero::Refused, f);
    let service_tick = root.millis("nodeServiceReconcileIntervalMs", Zero::Refused, f);
    let parallel = root.count("prefetchParallelNodes", Zero::Refused, f);
    let migration = migration(&mut root, f);

    let placement_pools = pools(&mut root, f);
    let names: BTreeSet<&str> = placement_pools.iter().map(|p| p.name.as_str()).collect();
    let entries = root.list("hotSpares", f);
    let hot_spares = hot_spares(&entries, &placement_pools, f);
    let template_images = template_images(&mut root, f);
    let mut experimental = root.child("experimental", f);
    let enabled = experimental.flag("nodeServices", f).unwrap_or_default();
    experimental.finish(f);
    let node_services = node_services(&mut root, enabled, &names, f);
    root.finish(f);

    if !faults.0.is_empty() {
        return Err(AutoSettingsValidationError { faults: faults.0 });
    }
    Ok(Settings {
        url,
        pending_window: pending_window.unwrap_or(Millis(60_000)),
        remove_stopped_nodes_after: remove_stopped.unwrap_or(Millis(3_600_000)),
        rejection_backoff,
        rejection_escalation_count,
        failure_backoff,
        job_startup_grace,
        unhealthy_cooldown,
        ceilings,
        hot_spare_reconcile_interval: hot_spare_tick.unwrap_or(Millis(60_000)),
        node_service_reconcile_interval: service_tick.unwrap_or(Millis(60_000)),
        prefetch_parallel_nodes: parallel.unwrap_or(8),
        migration,
        placement_pools,
        hot_spares,
        template_images,
        node_services,
    })
}

fn ceilings(root: &mut Node<'_>, f: &mut Faults) -> Ceilings {
    let flat = root
        .count("maxRestartsPerHour", Zero::Allowed, f)
        .unwrap_or(DEFAULT_MAX_RESTARTS_PER_HOUR);
    let mut policies = root.child("failurePolicies", f);
    let mut limit = |key: &'static str| {
        let mut policy = policies.child(key, f);
        let limit = policy.count("maxRestartsPerHour", Zero::Allowed, f);
        policy.finish(f);
        limit.unwrap_or(flat)
    };
    let ceilings = Ceilings {
        prefer_spare: limit("preferSpare"),
        avoid_spare: limit("avoidSpare"),
    };
    policies.finish(f);
    ceilings
}

fn migration(root: &mut Node<'_>, f: &mut Faults) -> MigrationDeadlines {
    let mut node = root.child("migration", f);
    let mut deadline = |key: &'static str, default: u64| {
        node.millis(key, Zero::Refused, f)
            .unwrap_or(Millis(default))
    };
    let deadlines = MigrationDeadlines {
        proposing: deadline("proposingDeadlineMs", 30_000),
        launching: deadline("launchingDeadlineMs", 120_000),
        awaiting_target_ready: deadline("awaitingTargetReadyDeadlineMs", 120_000),
        awaiting_source_stop: deadline("awaitingSourceStopDeadlineMs", 30_000),
        applying: deadline("applyingDeadlineMs", 10_000),
        starting_target: deadline("startingTargetDeadlineMs", 120_000),
        stopping_source: deadline("stoppingSourceDeadlineMs", 30_000),
    };
    node.finish(f);
    deadlines
}

fn pools(root: &mut Node<'_>, f: &mut Faults) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    for (entry, path) in root.list("placementPools", f) {
        let mut node = Node::new(Some(entry), &path, f);
        let name: PoolName = node.name("name", f);
        let name_path = node.path_of("name");
        if name.is_empty() {
            f.add(FaultCode::EmptyPoolName, &name_path, "a pool needs a name");
        } else if pools.iter().any(|pool| pool.name == name) {
            f.add(
                FaultCode::DuplicatePoolName,
                &name_path,
                format!("another pool is already called {name:?}"),
            );
        }
        let tiers_path = node.path_of("tiers");
        let entries = node.list("tiers", f);
        if entries.is_empty() {
            f.add(
                FaultCode::EmptyTierList,
                &tiers_path,
                format!("pool {name:?} needs at least one tier"),
            );
        }
        let mut tiers: Vec<Tier> = Vec::new();
        for (entry, path) in entries {
            let Some(tier) = tier(entry, &path, f) else {
                continue;
            };
            if tiers.iter().any(|other| other.name == tier.name) && !tier.name.is_empty() {
                f.add(
                    FaultCode::DuplicateTier,
                    &format!("{path}.name"),
                    format!(
                        "another tier of pool {name:?} is already called {:?}",
                        tier.name
                    ),
                );
            }
            if !tier.is_elastic() && tiers.iter().any(|other| !other.is_elastic()) {
                f.add(
                    FaultCode::MultipleFixedTiers,
                    &format!("{path}.scaleOut"),
                    format!("pool {name:?} has a fixed tier already; a pool has at most one"),
                );
            }
            tiers.push(tier);
        }
        node.finish(f);
        pools.push(Pool { name, tiers });
    }
    pools
}

/// A tier as far as it can be read; none when it does not even say what it is.
fn tier(entry: &Value, path: &str, f: &mut Faults) -> Option<Tier> {
    let mut node = Node::new(Some(entry), path, f);
    let name: TierName = node.name("name", f);
    if name.is_empty() {
        f.add(
            FaultCode::EmptyTierName,
            &node.path_of("name"),
            "a tier needs a name",
        );
    }
    let kinds = ["aws", "oci", "local-servers"];
    let kind: Option<TierKind> = required(&mut node, "kind", &kinds, f);
    let scale_out: Option<ScaleOut> = required(&mut node, "scaleOut", &["elastic", "fixed"], f);
    let region = node.line("region", f);
    let packing_strategy: Option<PackingStrategy> =
        node.choice("packingStrategy", &["binpack", "spread"], f);
    let modes = ["on-demand", "spot", "reserved"];
    let launch_mode = node.choice("launchMode", &modes, f);
    let reliability: Option<Reliability> =
        node.choice("reliability", &["durable", "interruptible"], f);
    let max_nodes = node.count("maxNodes", Zero::Allowed, f);
    let placement_lead_ms = node.millis("placementLeadMs", Zero::Allowed, f);
    let provision_timeout_ms = node.millis("provisionTimeoutMs", Zero::Refused, f);
    let candidates = candidates(&mut node, &name, f);
    let root_volume = node.get("rootVolume").is_some().then(|| {
        let mut volume = node.child("rootVolume", f);
        let read = RootVolume {
            size_gb: volume.count("sizeGb", Zero::Refused, f).unwrap_or_default(),
            volume_type: volume.text("type", f).unwrap_or_default(),
            iops: volume.count("iops", Zero::Allowed, f).unwrap_or_default(),
            throughput: volume
                .count("throughput", Zero::Allowed, f)
                .unwrap_or_default(),
        };
        volume.finish(f);
        read
    });
    if scale_out == Some(ScaleOut::Elastic) {
        if candidates.is_empty() {
            f.add(
                FaultCode::NoCandidateInstanceTypes,
                &node.path_of("candidateInstanceTypes"),
                format!("elastic tier {name:?} needs at least one shape that it may buy"),
            );
        }
        let place = match kind {
            Some(TierKind::Aws) => Some("region"),
            Some(TierKind::Oci) => Some("availability domain"),
            Some(TierKind::LocalServers) | None => None,
        };
        if let Some(place) = place
            && region
                .as_ref()
                .is_none_or(|region| region.trim().is_empty())
        {
            f.add(
                FaultCode::RegionMissing,
                &node.path_of("region"),
                format!("tier {name:?} buys machines; say in which {place}"),
            );
        }
        if kind == Some(TierKind::LocalServers) {
            f.add(
                FaultCode::ElasticNeedsCloud,
                &node.path_of("scaleOut"),
                format!("tier {name:?} of kind local-servers cannot buy nodes; use fixed"),
            );
        }
    }
    if kind == Some(TierKind::LocalServers) && scale_out == Some(ScaleOut::Fixed) {
        let idle = [
            ("region", region.is_some()),
            ("launchMode", launch_mode.is_some()),
            ("maxNodes", max_nodes == Some(0)),
            ("candidateInstanceTypes", !candidates.is_empty()),
        ];
        for (key, _) in idle.iter().filter(|(_, is_set)| *is_set) {
            f.add(
                FaultCode::NotForLocalServers,
                &node.path_of(key),
                format!(
                    "tier {name:?} takes the servers that are there and buys none; leave this out"
                ),
            );
        }
    }
    if root_volume.is_some() && kind.is_some_and(|kind| kind != TierKind::Aws) {
        f.add(
            FaultCode::RootVolumeNotAws,
            &node.path_of("rootVolume"),
            format!("tier {name:?} is not aws; only aws nodes have a root volume to set"),
        );
    }
    node.finish(f);
    Some(Tier {
        name,
        kind: kind?,
        region,
        packing_strategy: packing_strategy.unwrap_or_default(),
        scale_out: scale_out?,
        candidate_instance_types: candidates,
        launch_mode: launch_mode.unwrap_or_default(),
        reliability,
        max_nodes,
        root_volume,
        placement_lead_ms,
        provision_timeout_ms,
    })
}

fn required<T: serde::de::DeserializeOwned>(
    node: &mut Node<'_>,
    key: &'static str,
    values: &[&str],
    f: &mut Faults,
) -> Option<T> {
    if node.get(key).is_none() {
        f.add(
            FaultCode::UnknownValue,
            &node.path_of(key),
            format!("missing; one of {} is required", values.join(", ")),
        );
        return None;
    }
    node.choice(key, values, f)
}

/// The shapes of a tier. Each is known by its name alone, so that of two of one name the second would
/// never be bought.
fn candidates(node: &mut Node<'_>, tier: &TierName, f: &mut Faults) -> Vec<CandidateInstanceType> {
    let mut candidates: Vec<CandidateInstanceType> = Vec::new();
    for (entry, path) in node.list("candidateInstanceTypes", f) {
        let read = candidate(entry, &path, f);
        let name = &read.instance_type;
        let is_double = candidates.iter().any(|other| other.instance_type == *name);
        if is_double && !name.trim().is_empty() {
            f.add(
                FaultCode::DuplicateCandidate,
                &format!("{path}.instanceType"),
                format!(
                    "tier {tier:?} lists shape {name:?} already; a shape is known by its name, so give \
                     another size of it a tier of its own"
                ),
            );
        }
        candidates.push(read);
    }
    candidates
}

fn candidate(entry: &Value, path: &str, f: &mut Faults) -> CandidateInstanceType {
    let mut node = Node::new(Some(entry), path, f);
    let instance_type = node.line("instanceType", f).unwrap_or_default();
    if instance_type.trim().is_empty() {
        f.add(
            FaultCode::InvalidCandidate,
            &node.path_of("instanceType"),
            "a shape needs the provider's name of it",
        );
    }
    let mut amount = |key: &'static str| {
        let value = node.raw(key);
        let number = value.and_then(Value::as_f64);
        match number {
            Some(n) if n > 0.0 && n <= AMOUNT_MAX => n,
            _ => {
                f.add(
                    FaultCode::InvalidCandidate,
                    &node.path_of(key),
                    wanted(
                        &format!(
                            "a number above 0, at most {AMOUNT_MAX}, for shape {instance_type:?}"
                        ),
                        value.unwrap_or(&Value::Null),
                    ),
                );
                0.0
            }
        }
    };
    let total_capacity = amount("totalCapacity");
    let cores = amount("totalCores");
    if cores.fract() != 0.0 || cores > f64::from(u32::MAX) {
        f.add(
            FaultCode::InvalidCandidate,
            &node.path_of("totalCores"),
            format!("{cores} is not a whole number of cores"),
        );
    }
    let read = CandidateInstanceType {
        instance_type: instance_type.clone(),
        total_capacity,
        total_cores: whole(cores),
        capabilities: node
            .list("capabilities", f)
            .into_iter()
            .map(|(entry, path)| capability(entry, &path, f))
            .collect(),
        gpus: node
            .list("gpus", f)
            .into_iter()
            .enumerate()
            .map(|(i, (entry, path))| gpu(entry, i, &path, f))
            .collect(),
        ocpus: node.number("ocpus", Zero::Refused, f),
        memory_gb: node.number("memoryGb", Zero::Refused, f),
    };
    node.finish(f);
    read
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
const fn whole(n: f64) -> u32 {
    n as u32
}

fn capability(entry: &Value, path: &str, f: &mut Faults) -> Capability {
    let mut node = Node::new(Some(entry), path, f);
    let name = node.text("name", f).unwrap_or_default();
    if name.is_empty() {
        f.add(
            FaultCode::UnknownValue,
            &node.path_of("name"),
            "a capability needs a name",
        );
    }
    let key = if node.get("attributeMatches").is_some() {
        "attributeMatches"
    } else {
        "attributes"
    };
    let mut attributes = BTreeMap::new();
    if let Some(value) = node.get(key) {
        match serde_json::from_value(value.clone()) {
            Ok(pairs) => attributes = pairs,
            Err(_) => f.add(
                FaultCode::UnknownValue,
                &node.path_of(key),
                "attributes are a mapping of text to text",
            ),
        }
    }
    let read = Capability {
        name,
        count: node.count("count", Zero::Allowed, f).unwrap_or(1),
        attributes,
    };
    node.finish(f);
    read
}

fn gpu(entry: &Value, position: usize, path: &str, f: &mut Faults) -> Gpu {
    let mut node = Node::new(Some(entry), path, f);
    let read = Gpu {
        index: node
            .count("index", Zero::Allowed, f)
            .unwrap_or_else(|| u32::try_from(position).unwrap_or(u32::MAX)),
        model: node.text("model", f).unwrap_or_default(),
        capacity: node.number("capacity", Zero::Refused, f).unwrap_or(1.0),
        ..Gpu::default()
    };
    node.finish(f);
    read
}

fn node_services(
    root: &mut Node<'_>,
    enabled: bool,
    pools: &BTreeSet<&str>,
    f: &mut Faults,
) -> Vec<NodeService> {
    let entries = root.list("nodeServices", f);
    if !entries.is_empty() && !enabled {
        f.add(
            FaultCode::ExperimentalNotEnabled,
            "nodeServices",
            "node services are experimental; set experimental.nodeServices: true",
        );
    }
    let mut services: Vec<NodeService> = Vec::new();
    for (entry, path) in entries {
        let mut node = Node::new(Some(entry), &path, f);
        let service_id: ServiceId = node.name("serviceId", f);
        if service_id.is_empty() {
            f.add(
                FaultCode::UnknownValue,
                &node.path_of("serviceId"),
                "a node service needs an id",
            );
        } else if services.iter().any(|s| s.service_id == service_id) {
            f.add(
                FaultCode::DuplicateNodeService,
                &node.path_of("serviceId"),
                format!("another node service is already called {service_id:?}"),
            );
        }
        match node.text("lifecycle", f).as_deref() {
            None | Some("eager") => {}
            Some(other) => f.add(
                FaultCode::UnsupportedLifecycle,
                &node.path_of("lifecycle"),
                format!("{other:?} is not supported; use eager"),
            ),
        }
        let names = node.texts("pools", f);
        let pools_path = node.path_of("pools");
        for (i, name) in names.iter().enumerate() {
            if !pools.contains(name.as_str()) {
                f.add(
                    FaultCode::UnknownNodeServicePool,
                    &format!("{pools_path}[{i}]"),
                    format!("no placement pool is called {name:?}"),
                );
            }
        }
        let mut needs = |key: &'static str| -> Vec<Capability> {
            node.list(key, f)
                .into_iter()
                .map(|(entry, path)| capability(entry, &path, f))
                .collect()
        };
        let (consumes, provides) = (needs("consumes"), needs("provides"));
        let job_path = node.path_of("jobSpec");
        let job_spec = job_spec(node.get("jobSpec"), service_id.as_str(), &job_path, f);
        if !job_spec.launch.parameters.is_empty() {
            f.add(
                FaultCode::UnknownValue,
                &format!("{job_path}.launch.parameters"),
                "parameters are filled in by the Manager, in bundles only; write the values out",
            );
        }
        node.finish(f);
        services.push(NodeService {
            service_id,
            pools: names.into_iter().map(PoolName::from).collect(),
            consumes,
            provides,
            job_spec,
        });
    }
    services
}

/// The job of a node service: a bundle job whose name may be left out.
fn job_spec(value: Option<&Value>, service_id: &str, path: &str, f: &mut Faults) -> BundleJob {
    let mut value = value
        .cloned()
        .unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    if let Value::Object(map) = &mut value {
        map.entry("jobName")
            .or_insert_with(|| Value::String(service_id.to_owned()));
    }
    greenroom_types::tree::read(&value).unwrap_or_else(|fault| {
        let code = if fault.is_unknown_key() {
            FaultCode::UnknownKey
        } else {
            FaultCode::UnknownValue
        };
        let below = match fault.path.as_str() {
            "" => path.to_owned(),
            below => format!("{path}.{below}"),
        };
        f.add(code, &below, fault.message);
        BundleJob::default()
    })
}
