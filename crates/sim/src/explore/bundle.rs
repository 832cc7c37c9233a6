//! Random bundles with rules of every kind. None contradicts itself: the policy does not check what
//! is submitted (VALID-11), so that nonsense would only show itself.

use serde_json::{Value, json};

use super::dice::Dice;
use crate::format::span::Signed;

/// What a bundle can choose from.
#[derive(Clone, Debug)]
pub(super) struct Market {
    pub(super) pools: Vec<Value>,
}

// === impl Market ===

impl Market {
    pub(super) fn of(settings: &Value) -> Self {
        let pools = settings["placementPools"].as_array().cloned();
        Self {
            pools: pools.unwrap_or_default(),
        }
    }

    fn pool(&self, dice: &mut Dice) -> Value {
        dice.one(&self.pools)
            .map_or(Value::Null, |pool| pool["name"].clone())
    }
}

/// A bundle.
pub(super) fn draw(dice: &mut Dice, id: &str, market: &Market) -> Value {
    let count = dice.of([1, 1, 1, 2, 2, 3]);
    let mut jobs: Vec<Value> = ["e", "f", "g"][..count]
        .iter()
        .map(|name| job(dice, name))
        .collect();
    // A job of no services runs a program; those of other bundles are containers.
    if dice.chance(25) {
        for job in &mut jobs {
            let service = json!({"name": "s", "container": {"docker": "reg/s:1"}});
            job["launch"]["services"] = json!([service]);
        }
    }
    let mut bundle = json!({"bundleId": id, "pool": market.pool(dice)});
    rules(dice, &mut bundle, &mut jobs);
    bundle["jobs"] = jobs.into();
    if dice.chance(45) {
        bundle["resiliencePolicy"] = resilience(dice, market);
    }
    if dice.chance(25) {
        bundle["onLaunch"] = "allowSpare".into();
    }
    if dice.chance(10) {
        bundle["overrideReservation"] = true.into();
    }
    if dice.chance(5) {
        bundle["startDateTime"] = ahead(dice);
    }
    if dice.chance(4) {
        bundle["stopAt"] = ahead(dice);
    }
    bundle
}

/// An instant within the next half hour of virtual zero, or shortly before it.
pub(super) fn ahead(dice: &mut Dice) -> Value {
    let minutes = i64::try_from(dice.within(0, 32)).unwrap_or_default() - 2;
    let sign = if minutes < 0 { '-' } else { '+' };
    let text = format!("{sign}{}m", minutes.abs());
    debug_assert!(
        crate::format::span::signed(&text).is_some_and(|ms| Signed(ms).0 == minutes * 60_000)
    );
    text.into()
}

fn resilience(dice: &mut Dice, market: &Market) -> Value {
    let mut policy = json!({});
    for key in ["sameNode", "sameAz", "sameCloud"] {
        if dice.chance(50) {
            policy[key] = dice.of(["allow", "forbid"]).into();
        }
    }
    if dice.chance(20) {
        policy["pool"] = market.pool(dice);
    }
    policy
}

fn job(dice: &mut Dice, name: &str) -> Value {
    let mut job = json!({"jobName": name, "requirements": needs(dice)});
    if dice.chance(30) {
        job["handover"] = true.into();
    }
    if dice.chance(8) {
        job["startMode"] = "manual".into();
    }
    if dice.chance(6) {
        job["startDateTime"] = ahead(dice);
    }
    if dice.chance(35) {
        job["launch"] = json!({"template": dice.of(["x", "y"])});
    }
    job
}

fn needs(dice: &mut Dice) -> Value {
    let mut needs = json!({"requiredCapacity": dice.of([0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0])});
    let failure = dice.of([
        "avoidSpare",
        "avoidSpare",
        "preferSpare",
        "preferSpare",
        "drop",
    ]);
    needs["onRuntimeFailure"] = failure.into();
    if dice.chance(25) {
        needs["essential"] = false.into();
    }
    if dice.chance(15) {
        needs["maxRestartsPerHour"] = dice.within(0, 3).into();
    }
    if dice.chance(12) {
        needs["requiredCores"] = dice.within(1, 2).into();
    }
    if dice.chance(12) {
        let port = dice.of(["8000/tcp", "9000/udp"]);
        needs["requiredHostPorts"] = json!([port]);
    }
    if dice.chance(10) {
        needs["requiredCapabilities"] = json!([{"name": "sdi", "count": 1}]);
    }
    if dice.chance(10) {
        needs["requiredGpuCapacity"] = dice.of([0.25, 0.5, 1.0]).into();
        if dice.chance(30) {
            needs["requiredGpuModel"] = "l4".into();
        }
    }
    needs
}

/// What ties the jobs of a copy together or keeps them apart.
fn rules(dice: &mut Dice, bundle: &mut Value, jobs: &mut [Value]) {
    let mut together = jobs.len() == 1;
    if jobs.len() > 1 {
        match dice.below(10) {
            0 | 1 => {
                for at in 1..jobs.len() {
                    let peer = jobs[at - 1]["jobName"].clone();
                    jobs[at]["coLocateWith"] = json!([peer]);
                }
                without_ports_in_common(jobs);
                together = true;
            }
            2 | 3 => jobs[1]["separateFrom"] = json!([jobs[0]["jobName"]]),
            4 if jobs.len() == 3 => {
                jobs[1]["coLocateWith"] = json!([jobs[0]["jobName"]]);
                jobs[2]["separateFrom"] = json!([jobs[0]["jobName"]]);
                without_ports_in_common(jobs);
            }
            5 | 6 => {
                bundle["intraReplicaPlacement"]["sameNodeDefault"] = true.into();
                without_ports_in_common(jobs);
                together = true;
            }
            _ => {}
        }
        if dice.chance(30) {
            let zone = dice.of(["hard", "off", "soft"]);
            bundle["intraReplicaPlacement"]["sameAz"] = zone.into();
        }
    }
    if together && dice.chance(12) {
        let single = dice.chance(40);
        for job in jobs {
            job["exclusive"] = true.into();
            if single {
                job["singleUse"] = true.into();
            }
        }
    }
}

/// Jobs of one node cannot claim one port twice.
fn without_ports_in_common(jobs: &mut [Value]) {
    for job in jobs.iter_mut().skip(1) {
        if let Some(needs) = job["requirements"].as_object_mut() {
            needs.remove("requiredHostPorts");
        }
    }
}
