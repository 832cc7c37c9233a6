//! Everything that the policy can call and tell, with its fields and what can stand in each. A
//! scenario that says anything else is refused (exit 2), so that no expectation passes by a slip.
//!
//! Shapes are JSON Schemas. What names something of the scenario has the kind of name as its `format`;
//! the words of an enumeration are those that its type reads. Nothing at all (null) may stand anywhere:
//! it is what an absent field has.

pub(crate) mod leaf;

use std::sync::OnceLock;

use greenroom_manifest::schema::{bundle_shape, instant, list, map, object, text};
use greenroom_types::tree;
use serde_json::{Map, Value, json};

use leaf::leaf;

/// Things of one kind, as a scenario writes them.
#[derive(Debug)]
pub(crate) struct Names {
    /// `call` or `callback`.
    pub(crate) kind: &'static str,
    /// All of them by name, with the shape of their fields.
    pub(crate) shapes: Map<String, Value>,
}

/// Whether a scenario has what a text names: the kind of name, and the text.
pub(crate) type Look<'a> = &'a dyn Fn(&str, &str) -> Result<(), String>;

/// A path below the item, and what is wrong there.
pub(crate) type Wrong = (String, String);

/// Calls on the Manager.
pub(crate) fn calls() -> &'static Names {
    static CALLS: OnceLock<Names> = OnceLock::new();
    CALLS.get_or_init(|| Names::new("call", call_shapes()))
}

/// Callbacks.
pub(crate) fn callbacks() -> &'static Names {
    static CALLBACKS: OnceLock<Names> = OnceLock::new();
    CALLBACKS.get_or_init(|| Names::new("callback", callback_shapes()))
}

/// What is wrong with metrics that are expected (METR-01).
pub(crate) fn metric_faults(wanted: &Value, look: Look<'_>) -> Vec<Wrong> {
    static METRICS: OnceLock<Value> = OnceLock::new();
    let mut found = Vec::new();
    let shape = METRICS.get_or_init(metric_shape);
    value(shape, wanted, "", look, &mut found);
    found
}

fn metric_shape() -> Value {
    with(
        "startedAt:when uptimeMs:whole placementsAttempted:whole placementsSucceeded:whole \
         placementsFailed:whole placementsDispatchFailed:whole provisionsFailed:whole \
         jobsRejected:whole bundlesBroken:whole jobsDropped:whole brokenBundleIds:bundle*",
        json!({
            "pools": list(fields(
                "poolName:pool nodeCount:whole liveSpares:whole spareTarget:whole \
                 usedCapacityFraction:number",
            )),
            "tiers": list(fields("poolName:pool tierName:tier purchasesFailed:whole backsOff:flag")),
        }),
    )
}

/// Exactly these fields, each `name` (a text), `name:kind` or `name:kind*` (a list).
fn fields(names: &str) -> Value {
    let keys: Map<String, Value> = names
        .split_whitespace()
        .map(|word| {
            let (name, kind) = word.split_once(':').unwrap_or((word, "text"));
            let shape = match kind.strip_suffix('*') {
                Some(kind) => list(leaf(kind)),
                None => leaf(kind),
            };
            (name.to_owned(), shape)
        })
        .collect();
    object(&[], Value::Object(keys))
}

/// The same with some whose own fields are known.
fn with(names: &str, known: Value) -> Value {
    let mut shape = fields(names);
    if let Value::Object(known) = known {
        for (name, inner) in known {
            shape["properties"][name] = inner;
        }
    }
    shape
}

/// A bundle as a call carries it.
fn bundle(more: Value) -> Value {
    let mut shape = bundle_shape(&instant());
    shape["required"] = json!([]);
    let keys = &mut shape["properties"];
    keys["bundleId"] = leaf("bundle");
    keys["pool"] = leaf("pool");
    keys["resiliencePolicy"]["properties"]["pool"] = leaf("pool");
    let job = &mut keys["jobs"]["items"]["properties"];
    job["jobName"] = leaf("jobName");
    job["coLocateWith"] = list(leaf("jobName"));
    job["separateFrom"] = list(leaf("jobName"));
    if let Value::Object(more) = more {
        for (name, inner) in more {
            keys[name] = inner;
        }
    }
    shape
}

/// Tags of a node: those that mean something to the policy, and any others.
fn tags() -> Value {
    let mut shape = map(text());
    shape["properties"] = json!({
        "pool": leaf("pool"),
        "tier": leaf("tier"),
        "jobId": leaf("job"),
    });
    shape["propertyNames"] = json!({"format": "tagName", "examples": ["x"]});
    shape["examples"] = json!([{"x": "x"}]);
    shape
}

fn drain() -> Value {
    let job = fields(
        "jobId:job status:drainStatus migrationId strategy:strategy insteadOf:strategy reason \
         shares:domain*",
    );
    with(
        "nodeId:node phase:drainPhase started:when timeoutMs:whole force:flag reason:drainReason \
         notTaken:text*",
        json!({"jobs": list(job)}),
    )
}

fn migration() -> Value {
    with(
        "migrationId sourceJobId:job strategy:strategy sourceRole:role targetRole:role \
         sourceNodeId:node targetNodeId:node startedAt:when phase:migrationPhase abortReason \
         shares:domain*",
        json!({"phaseHistory": list(fields("phase:migrationPhase at:when"))}),
    )
}

fn inventory() -> Value {
    with(
        "totalCapacity:number totalCores:whole utilizationCap:number reservedCapacity:number \
         reservedCores:whole cordoned:flag reachable:flag memoryBytes:whole diskLow:flag \
         architecture:architecture az runtime",
        json!({
            "capabilities": list(capability()),
            "reservedCapabilities": list(capability()),
            "provided": list(capability()),
            "gpus": list(fields(
                "index:whole uuid model memoryBytes:whole capacity:number \
                 reservedCapacity:number driver",
            )),
            "nics": leaf("any"),
            "cpus": leaf("any"),
            "heldImages": leaf("any"),
            "assignedJobs": list(fields(
                "jobId:job role:role startId capacity:number cores:whole gpuIndex:whole \
                 gpuCapacity:number hostPorts:text*",
            )),
            "disks": list(fields("path total:whole free:whole")),
        }),
    )
}

fn capability() -> Value {
    with("name count:whole", json!({"attributes": map(text())}))
}

fn job() -> Value {
    with(
        "jobId:job description startDateTime:when managerConfiguration services:any \
         mediaVersion:mediaVersion mediaParameters:any volumes:any shape architecture subnet \
         availabilityDomain autoPlacement:any lease:any handover:flag jobSocket:flag provides:any \
         secretEnv:any exportTags:any",
        json!({"tags": map(text())}),
    )
}

fn trace() -> Value {
    let attempt = with(
        "pool:pool tier:tier compliantOnly:flag candidates:whole outcome:outcome note",
        json!({
            "filtered": list(fields("node:node reason:filterReason detail:any")),
            "survivors": list(fields("key:any gpuIndex:whole")),
        }),
    );
    object(&[], json!({"attempts": list(attempt)}))
}

fn call_shapes() -> Value {
    // On the wire the word is in capitals, in a call it is not (BUNDLE-06).
    let state = json!({"state": {"enum": ["live", "deleting"]}});
    let mut update = state.clone();
    update["dryRun"] = leaf("flag");
    update["clearStopTime"] = leaf("flag");
    json!({
        "startJob": fields(
            "jobId:job role:role nodeId:node deferStart:flag runtimeRole:role gpuIndex:whole \
             migrationId migrationState",
        ),
        "stopJob": fields("jobId:job role:role nodeId:node graceMs:whole"),
        "markJobFailed": fields("jobId:job reason"),
        "createBundle": bundle(state),
        "updateBundle": bundle(update),
        "deleteBundle": fields("bundleId:bundle"),
        "startBundleJob": fields("bundleId:bundle replicaIndex:replica jobName:jobName"),
        "stopBundleJob": fields(
            "bundleId:bundle replicaIndex:replica jobName:jobName graceMs:whole",
        ),
        "setBundleStopTime": fields("bundleId:bundle stopAt:when"),
        "createAwsNode": with(
            "nodeId:node region:region instanceType:instanceType launchMode:launchMode",
            json!({"tags": tags(), "rootVolume": leaf("any")}),
        ),
        "createOciNode": with(
            "nodeId:node availabilityDomain:region architecture shape:instanceType subnet \
             ocpus:number memoryGb:number launchMode:launchMode",
            json!({"tags": tags()}),
        ),
        "terminateNode": fields("nodeId:node"),
        "setNodeTags": with(
            "nodeId:node remove:tagName* expectedRevision:whole",
            json!({"tags": tags()}),
        ),
        "startPreparedJob": fields("jobId:job role:role nodeId:node"),
        "notifyMigrationGetState": fields("jobId:job role:role migrationId"),
        "notifyMigrationCutoverReady": fields("jobId:job role:role migrationId payload"),
        "notifyMigrationCutoverApply": fields("jobId:job role:role migrationId payload"),
        "abortMigration": fields("jobId:job sourceRole:role targetRole:role reason migrationId"),
        "prefetchImages": fields("nodeId:node imageRefs:text*"),
        "createJob": job(),
        "deleteJob": fields("jobId:job"),
    })
}

fn callback_shapes() -> Value {
    let placement = with(
        "jobId:job bundleId:bundle replicaIndex:replica jobName:jobName context:context \
         kind:placementKind nodeId:node pool:pool tier:tier instanceType:instanceType \
         launchMode:launchMode gpuIndex:whole reason:failureReason triedPools:pool* degraded:flag \
         at:when",
        json!({"trace": trace()}),
    );
    json!({
        "onConnectionStateChange": fields("state:connectionState"),
        "onError": fields("code:errorCode message jobId:job nodeId:node bundleId:bundle tier"),
        "onJobUpdated": with("jobId:job", json!({"job": with(
            "state:jobState currentHash:signed terminalState:any pendingRestart:any history:any \
             droppedEntries:whole",
            json!({"job": job()}),
        )})),
        "onJobDeleted": fields("jobId:job"),
        "onJobInfo": fields("jobId:job role:role startId at:when kind:any"),
        "onAuditAppended": fields("seq:whole at:when source kind actor payload prevHash hash"),
        "onJobRejected": with(
            "jobId:job role:role nodeId:node code:rejectionCode reason at:when",
            json!({"inventory": inventory()}),
        ),
        "onJobDropped": fields("jobId:job"),
        "onNodeStarting": fields("nodeId:node"),
        "onNodeStarted": with("nodeId:node", json!({"node": with(
            "nodeId:node state:nodeState prospective:flag pool:pool tier:tier lastActivity:when \
             running:any jobs:job*",
            json!({"tags": tags()}),
        )})),
        "onNodeStopping": fields("nodeId:node"),
        "onNodeStopped": fields("nodeId:node"),
        "onNodeTerminated": fields("nodeId:node"),
        "onNodeUnhealthy": fields("nodeId:node"),
        "onNodeHealthy": fields("nodeId:node"),
        "onBundleUpdated": with("bundleId:bundle", json!({"bundle": with(
            "leaseExpiresAt:when",
            json!({
                "bundle": bundle(json!({})),
                "jobs": list(fields(
                    "jobId:job replicaIndex:replica jobName:jobName dormant:flag terminalState:any",
                )),
            }),
        )})),
        "onBundleDeleted": fields("bundleId:bundle"),
        "onBundleBroken": fields("bundleId:bundle reason"),
        "onPlacementDecision": placement,
        "onPlacementFailed": fields(
            "jobId:job bundleId:bundle replicaIndex:replica jobName:jobName reason:failureReason \
             triedPools:pool* at:when",
        ),
        "onResilienceDegraded": fields(
            "jobId:job bundleId:bundle replicaIndex:replica jobName:jobName violated:domain* \
             interruptiblePrimary:flag at:when",
        ),
        "onSpareUnderflow": fields("pool:pool current:whole target:whole"),
        "onMigrationPhase": migration(),
        "onMigrationCompleted": fields("migrationId"),
        "onMigrationAborted": fields("migrationId reason"),
        "onDrainProgress": drain(),
        "onNodeInterrupted": with(
            "nodeId:node kind:interruptionKind deadline:when noticedAt:when",
            json!({"drain": drain()}),
        ),
        "onImagesPrefetched": with(
            "nodeId:node",
            json!({"results": list(fields("imageRef ok:flag error text"))}),
        ),
    })
}

// === impl Names ===

impl Names {
    fn new(kind: &'static str, shapes: Value) -> Self {
        let shapes = match shapes {
            Value::Object(shapes) => shapes,
            _ => Map::new(),
        };
        Self { kind, shapes }
    }

    /// What is wrong with an item of that name and these fields: keys that it has not, and values that
    /// no such field can have.
    pub(crate) fn faults(
        &self,
        name: &str,
        wanted: &Map<String, Value>,
        look: Look<'_>,
    ) -> Vec<Wrong> {
        let Some(shape) = self.shapes.get(name) else {
            let known: Vec<&str> = self.shapes.keys().map(String::as_str).collect();
            let kind = self.kind;
            let text = format!(
                "there is no {kind} {name:?}; there are {}",
                known.join(", ")
            );
            return vec![(String::new(), text)];
        };
        let mut found = Vec::new();
        if self.kind == "call" {
            found.extend(named(shape, name, wanted));
        }
        // Without fields any of that name is meant.
        if !wanted.is_empty() {
            let wanted = Value::Object(wanted.clone());
            value(shape, &wanted, &format!(".{name}"), look, &mut found);
        }
        found
    }
}

/// Names that every call has: nothing in place of one is met by none.
fn named(shape: &Value, name: &str, wanted: &Map<String, Value>) -> Vec<Wrong> {
    let is_name = |key: &String| {
        let kind = shape["properties"][key]["format"].as_str();
        matches!(kind, Some("job" | "node" | "bundle" | "jobName" | "role"))
    };
    let none = wanted.iter().filter(|(_, value)| value.is_null());
    none.filter(|(key, _)| is_name(key))
        .map(|(key, _)| {
            let told = "expected a name, found nothing".to_owned();
            (format!(".{name}.{key}"), told)
        })
        .collect()
}

/// Whether a value can stand where this shape is.
fn value(shape: &Value, wanted: &Value, path: &str, look: Look<'_>, found: &mut Vec<Wrong>) {
    if wanted.is_null() {
        return;
    }
    if let Some(shapes) = shape["anyOf"].as_array() {
        let tries = shapes.iter().map(|shape| {
            let mut wrong = Vec::new();
            value(shape, wanted, path, look, &mut wrong);
            wrong
        });
        // Of several shapes the one that comes nearest is told.
        found.extend(tries.min_by_key(Vec::len).unwrap_or_default());
        return;
    }
    match shape["type"].as_str() {
        Some("object") => keys(shape, wanted, path, look, found),
        Some("array") => {
            let Value::Array(list) = wanted else {
                let told = tree::other_kind("a sequence", &tree::found(wanted));
                found.push((path.to_owned(), told));
                return;
            };
            for (index, item) in list.iter().enumerate() {
                value(
                    &shape["items"],
                    item,
                    &format!("{path}[{index}]"),
                    look,
                    found,
                );
            }
        }
        _ => {
            if let Err(message) = leaf::fits(shape, wanted, look) {
                found.push((path.to_owned(), message));
            }
        }
    }
}

fn keys(shape: &Value, wanted: &Value, path: &str, look: Look<'_>, found: &mut Vec<Wrong>) {
    let Value::Object(map) = wanted else {
        let told = tree::other_kind("a map", &tree::found(wanted));
        found.push((path.to_owned(), told));
        return;
    };
    let known = shape["properties"].as_object();
    // Keys of the writer's choice, unless it says false.
    let others = shape["additionalProperties"].as_object();
    // What has keys of its own is never empty; a mapping of others may be.
    if map.is_empty() && others.is_none() {
        let told = "it says nothing: write a field, or leave the key out";
        found.push((path.to_owned(), told.to_owned()));
    }
    for (key, wanted) in map {
        let path = format!("{path}.{key}");
        if let Some(inner) = known.and_then(|known| known.get(key)) {
            value(inner, wanted, &path, look, found);
        } else if others.is_some() {
            if let Some(kind) = shape["propertyNames"]["format"].as_str()
                && let Err(message) = look(kind, key)
            {
                found.push((path.clone(), message));
            }
            value(&shape["additionalProperties"], wanted, &path, look, found);
        } else {
            let known: Vec<&str> = known
                .into_iter()
                .flatten()
                .filter(|(_, shape)| shape["deprecated"] != true)
                .map(|(name, _)| name.as_str())
                .collect();
            found.push((path, tree::unknown_key(key, &known)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use greenroom_manifest::schema::check::{mappings, sample};
    use greenroom_policy::metrics::{Metrics, PoolMetrics};
    use greenroom_policy::purchases::TierMetrics;

    use super::*;
    use crate::{Keep, Options, run_file};

    /// Names are not looked up.
    const ANY: Look<'static> = &|_, _| Ok(());

    // spec: SCEN-15
    #[test]
    fn every_metric_is_known_with_its_fields() {
        let keys = |value: Value| -> BTreeSet<String> {
            value.as_object().expect("fields").keys().cloned().collect()
        };
        let shape = metric_shape();
        let metrics = serde_json::to_value(Metrics::default()).expect("metrics");
        assert_eq!(keys(metrics), keys(shape["properties"].clone()));
        for (list, item) in [
            ("pools", serde_json::to_value(PoolMetrics::default())),
            ("tiers", serde_json::to_value(TierMetrics::default())),
        ] {
            let fields = shape["properties"][list]["items"]["properties"].clone();
            assert_eq!(keys(item.expect("an entry")), keys(fields));
        }
    }

    // spec: SCEN-10
    #[test]
    fn every_field_of_every_call_and_callback_is_known_and_no_other() {
        for names in [calls(), callbacks()] {
            for (name, shape) in &names.shapes {
                let all = sample(shape);
                let whole = |value: &Value| value.as_object().cloned().expect("fields");
                assert_eq!(names.faults(name, &whole(&all), ANY), [], "{name} {all}");
                for (place, _) in mappings(shape) {
                    let mut more = all.clone();
                    more.pointer_mut(&place).expect("the sample has it")["zzz"] = json!(1);
                    let found = names.faults(name, &whole(&more), ANY);
                    let [(path, told)] = &found[..] else {
                        panic!("{name}{place}: {found:?}");
                    };
                    let end = format!("{}.zzz", place.replace("/0", "[0]").replace('/', "."));
                    assert_eq!(*path, format!(".{name}{end}"));
                    assert!(told.contains("unknown key \"zzz\""), "{told}");
                }
            }
        }
        let told = calls().faults("startJobb", &Map::new(), ANY);
        assert!(told[0].1.starts_with("there is no call \"startJobb\""));
    }

    /// What the policy says in the scenarios of the project has no field that is not known, and no
    /// value that no such field can have.
    // spec: SCEN-10
    #[test]
    fn what_is_called_and_told_has_no_other_fields_and_values() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios");
        let mut seen = BTreeSet::new();
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|end| end != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a scenario is text");
            for line in run_file("s.yaml", &text, Options { keep: Keep::Json }).lines {
                let line: Value = serde_json::from_str(&line).expect("a line is JSON");
                let names = match line["kind"].as_str() {
                    Some("call") => calls(),
                    Some("callback") => callbacks(),
                    _ => continue,
                };
                let name = line["name"].as_str().expect("a name");
                let Some(fields) = line["data"].as_object() else {
                    continue;
                };
                seen.insert(name.to_owned());
                assert_eq!(
                    names.faults(name, fields, ANY),
                    [],
                    "{} {line}",
                    path.display()
                );
            }
        }
        assert!(seen.len() > 15, "{seen:?}");
    }
}
