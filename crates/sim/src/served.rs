//! Everything that the policy can call and tell, with its fields. A scenario that names another is
//! refused (exit 2), so that no expectation passes by a typing slip.
//!
//! Shapes are JSON Schemas, of which only the keys are looked at: what stands in a field is compared
//! when the scenario is played.

use std::sync::OnceLock;

use greenroom_manifest::schema::{bundle_shape, instant, list, map, object, text};
use greenroom_types::tree;
use serde_json::{Map, Value, json};

/// Things of one kind, as a scenario writes them.
#[derive(Debug)]
pub(crate) struct Names {
    /// `call` or `callback`.
    pub(crate) kind: &'static str,
    /// All of them by name, with the shape of their fields.
    pub(crate) shapes: Map<String, Value>,
}

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

/// Anything at all may stand there.
fn any() -> Value {
    json!({"examples": ["x"]})
}

/// Exactly these fields, and nothing is looked at below them.
fn fields(names: &str) -> Value {
    let keys: Map<String, Value> = names
        .split_whitespace()
        .map(|name| (name.to_owned(), any()))
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
fn bundle(more: &str) -> Value {
    let mut shape = bundle_shape(&instant());
    shape["required"] = json!([]);
    for name in more.split_whitespace() {
        shape["properties"][name] = any();
    }
    shape
}

fn tags() -> Value {
    map(text())
}

fn drain() -> Value {
    let job = fields("jobId status migrationId strategy insteadOf reason");
    with(
        "nodeId phase started timeoutMs force reason notTaken",
        json!({"jobs": list(job)}),
    )
}

fn migration() -> Value {
    with(
        "migrationId sourceJobId strategy sourceRole targetRole sourceNodeId targetNodeId \
         startedAt phase abortReason",
        json!({"phaseHistory": list(fields("phase at"))}),
    )
}

fn inventory() -> Value {
    with(
        "totalCapacity totalCores utilizationCap reservedCapacity reservedCores cordoned reachable \
         memoryBytes diskLow architecture az runtime",
        json!({
            "capabilities": list(capability()),
            "reservedCapabilities": list(capability()),
            "provided": list(capability()),
            "gpus": list(fields(
                "index uuid model memoryBytes capacity reservedCapacity driver",
            )),
            "nics": any(),
            "cpus": any(),
            "heldImages": any(),
            "assignedJobs": list(fields(
                "jobId role startId capacity cores gpuIndex gpuCapacity hostPorts",
            )),
            "disks": list(fields("path total free")),
        }),
    )
}

fn capability() -> Value {
    with("name count", json!({"attributes": map(text())}))
}

fn job() -> Value {
    with(
        "jobId description startDateTime managerConfiguration services mediaVersion \
         mediaParameters volumes shape architecture subnet availabilityDomain autoPlacement lease \
         handover jobSocket provides secretEnv exportTags",
        json!({"tags": tags()}),
    )
}

fn trace() -> Value {
    let attempt = with(
        "pool tier compliantOnly candidates outcome note",
        json!({
            "filtered": list(fields("node reason detail")),
            "survivors": list(fields("key gpuIndex")),
        }),
    );
    object(&[], json!({"attempts": list(attempt)}))
}

fn call_shapes() -> Value {
    json!({
        "startJob": fields(
            "jobId role nodeId deferStart runtimeRole gpuIndex migrationId migrationState",
        ),
        "stopJob": fields("jobId role nodeId graceMs"),
        "markJobFailed": fields("jobId reason"),
        "createBundle": bundle("state revision"),
        "updateBundle": bundle("state revision dryRun clearStopTime"),
        "deleteBundle": fields("bundleId"),
        "startBundleJob": fields("bundleId replicaIndex jobName"),
        "stopBundleJob": fields("bundleId replicaIndex jobName graceMs"),
        "setBundleStopTime": fields("bundleId stopAt"),
        "createAwsNode": with(
            "nodeId region instanceType launchMode",
            json!({"tags": tags(), "rootVolume": any()}),
        ),
        "createOciNode": with(
            "nodeId availabilityDomain architecture shape subnet ocpus memoryGb launchMode",
            json!({"tags": tags()}),
        ),
        "terminateNode": fields("nodeId"),
        "setNodeTags": with("nodeId remove expectedRevision", json!({"tags": tags()})),
        "startPreparedJob": fields("jobId role nodeId"),
        "notifyMigrationGetState": fields("jobId role migrationId"),
        "notifyMigrationCutoverReady": fields("jobId role migrationId payload"),
        "notifyMigrationCutoverApply": fields("jobId role migrationId payload"),
        "abortMigration": fields("jobId sourceRole targetRole reason migrationId"),
        "prefetchImages": fields("nodeId imageRefs"),
        "createJob": job(),
        "deleteJob": fields("jobId"),
    })
}

fn callback_shapes() -> Value {
    let placement = with(
        "jobId bundleId replicaIndex jobName context kind nodeId pool tier instanceType launchMode \
         gpuIndex reason triedPools degraded at",
        json!({"trace": trace()}),
    );
    json!({
        "onConnectionStateChange": fields("state"),
        "onError": fields("code message jobId nodeId bundleId"),
        "onJobUpdated": with("jobId", json!({"job": with(
            "state currentHash terminalState pendingRestart history droppedEntries",
            json!({"job": job()}),
        )})),
        "onJobDeleted": fields("jobId"),
        "onJobInfo": fields("jobId role startId at kind"),
        "onAuditAppended": fields("seq at source kind actor payload prevHash hash"),
        "onJobRejected": with(
            "jobId role nodeId code reason at",
            json!({"inventory": inventory()}),
        ),
        "onJobDropped": fields("jobId"),
        "onNodeStarting": fields("nodeId"),
        "onNodeStarted": with("nodeId", json!({"node": with(
            "nodeId state prospective pool tier lastActivity running jobs",
            json!({"tags": tags()}),
        )})),
        "onNodeStopping": fields("nodeId"),
        "onNodeStopped": fields("nodeId"),
        "onNodeTerminated": fields("nodeId"),
        "onNodeUnhealthy": fields("nodeId"),
        "onNodeHealthy": fields("nodeId"),
        "onBundleUpdated": with("bundleId", json!({"bundle": with(
            "leaseExpiresAt",
            json!({
                "bundle": bundle("state revision"),
                "jobs": list(fields("jobId replicaIndex jobName dormant terminalState")),
            }),
        )})),
        "onBundleDeleted": fields("bundleId"),
        "onBundleBroken": fields("bundleId reason"),
        "onPlacementDecision": placement,
        "onPlacementFailed": fields(
            "jobId bundleId replicaIndex jobName reason triedPools at",
        ),
        "onResilienceDegraded": fields(
            "jobId bundleId replicaIndex jobName violated interruptiblePrimary at",
        ),
        "onSpareUnderflow": fields("pool current target"),
        "onMigrationPhase": migration(),
        "onMigrationCompleted": fields("migrationId"),
        "onMigrationAborted": fields("migrationId reason"),
        "onDrainProgress": drain(),
        "onNodeInterrupted": with(
            "nodeId kind deadline noticedAt",
            json!({"drain": drain()}),
        ),
        "onImagesPrefetched": with(
            "nodeId",
            json!({"results": list(fields("imageRef ok error text"))}),
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

    /// What is wrong with an item of that name and these fields: the path below it, and the fault.
    pub(crate) fn fault(
        &self,
        name: &str,
        wanted: &Map<String, Value>,
    ) -> Option<(String, String)> {
        let Some(shape) = self.shapes.get(name) else {
            let known: Vec<&str> = self.shapes.keys().map(String::as_str).collect();
            let kind = self.kind;
            let text = format!(
                "there is no {kind} {name:?}; there are {}",
                known.join(", ")
            );
            return Some((String::new(), text));
        };
        unknown(shape, &Value::Object(wanted.clone()), "")
            .map(|(below, message)| (format!(".{name}{below}"), message))
    }
}

/// The first key that a shape does not have.
fn unknown(shape: &Value, value: &Value, path: &str) -> Option<(String, String)> {
    match value {
        Value::Object(map) => {
            let Some(keys) = shape["properties"].as_object() else {
                // Any keys; their values may have a shape.
                let inner = shape.get("additionalProperties")?;
                return map
                    .iter()
                    .find_map(|(key, value)| unknown(inner, value, &format!("{path}.{key}")));
            };
            map.iter().find_map(|(key, value)| match keys.get(key) {
                Some(inner) => unknown(inner, value, &format!("{path}.{key}")),
                None => {
                    let known: Vec<&str> = keys
                        .iter()
                        .filter(|(_, shape)| shape["deprecated"] != true)
                        .map(|(name, _)| name.as_str())
                        .collect();
                    Some((format!("{path}.{key}"), tree::unknown_key(key, &known)))
                }
            })
        }
        Value::Array(list) => list.iter().enumerate().find_map(|(index, item)| {
            unknown(shape.get("items")?, item, &format!("{path}[{index}]"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_manifest::schema::check::{mappings, sample};

    use super::*;
    use crate::{Keep, Options, run_file};

    // spec: SCEN-10
    #[test]
    fn every_field_of_every_call_and_callback_is_known_and_no_other() {
        for names in [calls(), callbacks()] {
            for (name, shape) in &names.shapes {
                let all = sample(shape);
                let whole = |value: &Value| value.as_object().cloned().expect("fields");
                assert_eq!(names.fault(name, &whole(&all)), None, "{name}");
                for (place, _) in mappings(shape) {
                    let mut more = all.clone();
                    more.pointer_mut(&place).expect("the sample has it")["zzz"] = json!(1);
                    let (path, told) = names.fault(name, &whole(&more)).expect("zzz is unknown");
                    let end = format!("{}.zzz", place.replace("/0", "[0]").replace('/', "."));
                    assert_eq!(path, format!(".{name}{end}"));
                    assert!(told.contains("unknown key \"zzz\""), "{told}");
                }
            }
        }
        let told = calls().fault("startJobb", &Map::new()).expect("unknown");
        assert!(told.1.starts_with("there is no call \"startJobb\""));
    }

    /// What the policy says in the scenarios of the project has no field that is not known.
    // spec: SCEN-10
    #[test]
    fn what_is_called_and_told_has_no_other_fields() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios");
        let mut seen = std::collections::BTreeSet::new();
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
                assert_eq!(names.fault(name, fields), None, "{} {line}", path.display());
            }
        }
        assert!(seen.len() > 15, "{seen:?}");
    }
}
