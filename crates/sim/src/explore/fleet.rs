//! A random fleet as a scenario states it: settings, world, nodes and first bundles.
//!
//! What is drawn here is always valid: settings pass their checks, no node has more than its tier may
//! have, and no bundle contradicts itself. The faults are the steps' part.

use serde_json::{Map, Value, json};

use super::bundle::{self, Market};
use super::dice::Dice;
use crate::format::span::Span;

/// Everything of a scenario but its steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) settings: Value,
    pub(crate) world: Value,
    pub(crate) nodes: Vec<Value>,
    pub(crate) bundles: Vec<Value>,
    pub(crate) jobs: Map<String, Value>,
}

/// Shapes that can be bought.
const SHAPES: [(&str, u64); 4] = [
    ("c.large", 4),
    ("c.small", 2),
    ("c.huge", 16),
    ("g.large", 8),
];

/// What runs services; `simulated` runs everything.
pub(super) const RUNTIMES: [&str; 4] = ["simulated", "docker 29.0", "process", "unavailable"];

const ZONES: [&str; 3] = ["az-a", "az-b", "az-c"];

/// The fleet of a seed.
pub(super) fn draw(seed: u64) -> Head {
    let mut dice = Dice::new(seed, 1);
    let pools = pools(&mut dice);
    let nodes = nodes(&mut dice, &pools);
    let settings = settings(&mut dice, &pools);
    let world = world(&mut dice, seed, &pools);
    let market = Market::of(&settings);
    let mut dice = Dice::new(seed, 2);
    let bundles = (0..dice.within(0, 3))
        .map(|n| bundle::draw(&mut dice, &format!("b{n}"), &market))
        .collect();
    let mut head = Head {
        settings,
        world,
        nodes,
        bundles,
        jobs: Map::new(),
    };
    let mut dice = Dice::new(seed, 3);
    run_some(&mut dice, &mut head);
    head
}

fn pools(dice: &mut Dice) -> Vec<Value> {
    let names: &[&str] = if dice.chance(30) {
        &["live", "alt"]
    } else {
        &["live"]
    };
    names.iter().map(|name| pool(dice, name)).collect()
}

fn pool(dice: &mut Dice, name: &str) -> Value {
    let mut tiers = Vec::new();
    if dice.chance(75) {
        tiers.push(json!({"name": "own", "kind": "local-servers", "scaleOut": "fixed"}));
    }
    for (tier, kind, percent) in [
        ("cloud", "aws", 55),
        ("far", "oci", 20),
        ("spot", "aws", 20),
    ] {
        if dice.chance(percent) || (tier == "spot" && tiers.is_empty()) {
            tiers.push(elastic(dice, tier, kind));
        }
    }
    if dice.chance(25) {
        tiers.reverse();
    }
    for tier in &mut tiers {
        if dice.chance(30) {
            tier["packingStrategy"] = "spread".into();
        }
        if dice.chance(60) {
            tier["placementLeadMs"] = dice.of([0, 10_000, 60_000]).into();
        }
    }
    json!({"name": name, "tiers": tiers})
}

fn elastic(dice: &mut Dice, name: &str, kind: &str) -> Value {
    let mut shapes: Vec<Value> = (0..dice.within(1, 2)).map(|_| shape(dice)).collect();
    // A shape stands once in a tier (CONF-12).
    shapes.dedup_by(|a, b| a["instanceType"] == b["instanceType"]);
    let mut tier = json!({
        "name": name, "kind": kind, "region": "eu-1", "scaleOut": "elastic",
        "candidateInstanceTypes": shapes,
    });
    if name == "spot" {
        tier["launchMode"] = "spot".into();
    }
    if dice.chance(35) {
        tier["maxNodes"] = dice.within(1, 4).into();
    }
    if dice.chance(25) {
        tier["provisionTimeoutMs"] = dice.of([150_000, 200_000, 400_000]).into();
    }
    tier
}

fn shape(dice: &mut Dice) -> Value {
    let (name, vcpus) = dice.of(SHAPES);
    let mut shape = json!({"instanceType": name, "totalCapacity": vcpus, "totalCores": vcpus});
    if name == "g.large" {
        shape["gpus"] = json!([{"index": 0, "model": "l4", "capacity": 1}]);
    }
    if name == "c.huge" {
        shape["capabilities"] = json!([{"name": "sdi", "count": 2}]);
    }
    shape
}

fn tiers(pool: &Value) -> Vec<Value> {
    pool["tiers"].as_array().cloned().unwrap_or_default()
}

fn is_fixed(tier: &Value) -> bool {
    tier["scaleOut"] == "fixed"
}

fn nodes(dice: &mut Dice, pools: &[Value]) -> Vec<Value> {
    let mut nodes = Vec::new();
    let mut number = 0;
    for pool in pools {
        for tier in tiers(pool) {
            let most = if is_fixed(&tier) { 5 } else { 2 };
            let cap = tier["maxNodes"].as_u64().unwrap_or(most);
            for _ in 0..dice.within(0, most.min(cap)) {
                number += 1;
                nodes.push(node(dice, &format!("n{number}"), pool, &tier));
            }
        }
    }
    nodes
}

/// A node that may stand in this tier.
pub(super) fn node(dice: &mut Dice, id: &str, pool: &Value, tier: &Value) -> Value {
    let mut node = json!({"id": id, "pool": pool["name"]});
    let mut vcpus = dice.of([2, 4, 4, 8, 16]);
    if !is_fixed(tier) {
        node["tier"] = tier["name"].clone();
        vcpus = tier["candidateInstanceTypes"][0]["totalCapacity"]
            .as_u64()
            .unwrap_or(vcpus);
        for key in ["capabilities", "gpus"] {
            let declared = &tier["candidateInstanceTypes"][0][key];
            if !declared.is_null() {
                node[key] = declared.clone();
            }
        }
    }
    node["capacity"] = vcpus.into();
    node["cores"] = vcpus.into();
    if dice.chance(70) {
        node["az"] = dice.of(ZONES).into();
    }
    if is_fixed(tier) {
        if dice.chance(15) {
            node["gpus"] = json!([
                {"index": 0, "model": "l4", "capacity": 1},
                {"index": 1, "model": "t4", "capacity": 1}
            ]);
        }
        if dice.chance(20) {
            node["capabilities"] = json!([{"name": "sdi", "count": dice.within(1, 3)}]);
        }
        if dice.chance(10) {
            node["utilizationCap"] = json!(0.5);
        }
        if dice.chance(5) {
            node["cordoned"] = true.into();
        }
        if dice.chance(10) {
            node["disks"] = disks(dice);
        }
    }
    if dice.chance(25) {
        node["runtime"] = dice.of(RUNTIMES).into();
    }
    if dice.chance(12) {
        node["spare"] = if dice.chance(50) {
            true.into()
        } else {
            json!({"warmFor": ["x"], "reservedFor": ["x"], "exclusive": dice.chance(50)})
        };
    }
    if dice.chance(20) {
        node["heldImages"] = json!(["reg/x:1"]);
    }
    node
}

/// A disk that is nearly full, at the edge or with room (WORK-36).
pub(super) fn disks(dice: &mut Dice) -> Value {
    const GIB: u64 = 1 << 30;
    json!([{"path": "/", "total": 100 * GIB, "free": dice.of([7, 11, 50]) * GIB}])
}

/// The list of spares for these pools.
pub(super) fn spares(dice: &mut Dice, pools: &[Value]) -> Vec<Value> {
    let mut list = Vec::new();
    for pool in pools {
        if dice.chance(40) {
            continue;
        }
        let tiers = tiers(pool);
        let bought = tiers.iter().find(|tier| !is_fixed(tier));
        let mut spec = Map::new();
        if let Some(tier) = bought {
            let shape = &tier["candidateInstanceTypes"][0]["instanceType"];
            spec.insert("instanceType".into(), shape.clone());
        }
        // More than the tier that buys them may hold is refused with the settings.
        let cap = bought.filter(|_| !tiers.iter().any(is_fixed));
        let most = cap.and_then(|tier| tier["maxNodes"].as_u64());
        let target = dice.within(0, 2).min(most.unwrap_or(u64::MAX));
        let mut entry = json!({
            "pool": pool["name"], "targetCount": target, "spec": spec,
        });
        if dice.chance(40) {
            entry["warmFor"] = json!([dice.of(["x", "y"])]);
        }
        if dice.chance(40) {
            entry["reservedFor"] = json!(["x"]);
            entry["exclusive"] = dice.chance(40).into();
        }
        list.push(entry);
    }
    list
}

fn settings(dice: &mut Dice, pools: &[Value]) -> Value {
    let mut settings = json!({"placementPools": pools});
    if dice.chance(55) {
        settings["hotSpares"] = spares(dice, pools).into();
    }
    if dice.chance(60) {
        settings["templateImages"] = json!({"x": ["reg/x:1"], "y": ["reg/y:1", "reg/y:2"]});
    }
    settings["removeStoppedNodesAfter"] = dice.of([60, 300, 900]).into();
    for (key, percent, values) in [
        ("maxRestartsPerHour", 40, [0, 1, 2, 8]),
        (
            "unhealthyCooldownMs",
            40,
            [20_000, 60_000, 120_000, 600_000],
        ),
        ("failureBackoffMs", 30, [0, 5_000, 30_000, 60_000]),
        ("rejectionEscalationCount", 30, [1, 1, 2, 3]),
        ("rejectionBackoffMs", 20, [0, 1_000, 5_000, 60_000]),
        ("pendingWindow", 20, [0, 30, 60, 600]),
        ("prefetchParallelNodes", 20, [1, 1, 2, 8]),
    ] {
        if dice.chance(percent) {
            settings[key] = dice.of(values).into();
        }
    }
    if dice.chance(25) {
        settings["migration"] = json!({
            "launchingDeadlineMs": dice.of([500, 5_000, 120_000]),
            "awaitingSourceStopDeadlineMs": dice.of([300, 5_000, 30_000]),
            "stoppingSourceDeadlineMs": dice.of([300, 5_000, 30_000]),
            "startingTargetDeadlineMs": dice.of([300, 5_000, 120_000]),
        });
    }
    if dice.chance(15) {
        let pool = &pools[0]["name"];
        settings["experimental"] = json!({"nodeServices": true});
        settings["nodeServices"] = json!([{
            "serviceId": "watch", "pools": [pool],
            "jobSpec": {
                "jobName": "watch", "requirements": {"requiredCapacity": 0},
                "launch": {"services": [{"name": "watch", "command": "watch"}]},
            },
        }]);
    }
    settings
}

fn world(dice: &mut Dice, seed: u64, pools: &[Value]) -> Value {
    let mut world = json!({"seed": seed % 1_000_000 + 1});
    for (key, percent, values) in [
        ("bootTime", 60, [1_000, 5_000, 40_000, 100_000]),
        ("startTime", 40, [0, 100, 3_000, 15_000]),
        ("stopTime", 40, [0, 100, 2_000, 12_000]),
        ("prepareTime", 30, [0, 100, 3_000, 15_000]),
        ("startPreparedTime", 30, [0, 100, 500, 3_000]),
        ("terminateTime", 40, [0, 500, 5_000, 20_000]),
        ("pullTime", 30, [0, 100, 5_000, 30_000]),
    ] {
        if dice.chance(percent) {
            world[key] = Span(dice.of(values)).to_string().into();
        }
    }
    let mut azs = Map::new();
    for tier in pools.iter().flat_map(tiers) {
        // Zones are of what is bought; the dice are thrown for every tier, so that a seed stays what it was.
        if let Some(name) = tier["name"].as_str()
            && dice.chance(50)
            && !is_fixed(&tier)
        {
            azs.insert(name.to_owned(), json!(ZONES[..2]));
        }
    }
    if !azs.is_empty() {
        world["azs"] = azs.into();
    }
    world
}

/// Some jobs run before the policy connects: plain ones, where they fit beyond doubt.
fn run_some(dice: &mut Dice, head: &mut Head) {
    let mut at = 0;
    for bundle in &head.bundles {
        let job = &bundle["jobs"][0];
        let plain = bundle["jobs"]
            .as_array()
            .is_some_and(|jobs| jobs.len() == 1)
            && job["exclusive"].is_null()
            && job["startMode"].is_null()
            && job["startDateTime"].is_null()
            && job["requirements"]["requiredGpuCapacity"].is_null()
            && job["requirements"]["requiredHostPorts"].is_null()
            && job["requirements"]["requiredCapabilities"].is_null();
        if !plain || dice.chance(50) {
            continue;
        }
        let fits = head.nodes.iter().skip(at).position(|node| {
            node["pool"] == bundle["pool"]
                && node["spare"].is_null()
                && node["cordoned"].is_null()
                && node["utilizationCap"].is_null()
                && node["disks"].is_null()
                && (node["runtime"].is_null() || node["runtime"] == "simulated")
                && node["capacity"].as_f64() >= job["requirements"]["requiredCapacity"].as_f64()
        });
        let Some(found) = fits else { continue };
        at += found;
        if let (Some(id), Some(name)) = (bundle["bundleId"].as_str(), job["jobName"].as_str()) {
            head.nodes[at]["jobs"] = json!([format!("{id}/0/{name}")]);
        }
        at += 1;
    }
}
