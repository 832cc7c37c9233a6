//! JSON Schemas of what people write, so that an editor completes keys and marks slips (SCEN-13).
//!
//! A schema says of every key what may stand there, and refuses keys that are not known. It is no
//! second rule book: a test makes a text of every key that it has, and reads that; puts a key too
//! much into every mapping, and compares what the reader says it knows.

pub mod check;

use serde_json::{Value, json};

/// The schema of a bundle manifest.
#[must_use]
pub fn bundle() -> Value {
    let mut schema = bundle_shape(&instant());
    titled(&mut schema, "A bundle of Greenroom");
    schema
}

/// The schema of the control plane's settings.
#[must_use]
pub fn settings() -> Value {
    let mut schema = settings_shape();
    titled(&mut schema, "Settings of Greenroom's control plane");
    schema
}

/// Puts title and dialect at the top of a schema.
pub fn titled(schema: &mut Value, title: &str) {
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = title.into();
}

// === building blocks ===

/// A mapping of these keys and no others.
#[must_use]
pub fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

/// A list.
#[must_use]
pub fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// A mapping from names of the writer's choice.
#[must_use]
pub fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

/// A text.
#[must_use]
pub fn text() -> Value {
    json!({"type": "string"})
}

/// A text that is written in one form; the example shows it.
#[must_use]
pub fn text_like(example: &str) -> Value {
    json!({"type": "string", "examples": [example]})
}

/// A text that may look like a number.
fn loose_text() -> Value {
    json!({"type": ["string", "number", "boolean"], "examples": ["x"]})
}

/// A whole number, 0 or more.
#[must_use]
pub fn whole() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// A number, 0 or more.
#[must_use]
pub fn number() -> Value {
    json!({"type": "number", "minimum": 0})
}

/// A number above 0.
fn above_zero() -> Value {
    json!({"type": "number", "exclusiveMinimum": 0})
}

/// True or false.
#[must_use]
pub fn flag() -> Value {
    json!({"type": "boolean"})
}

/// One of several words.
#[must_use]
pub fn choice(words: &[&str]) -> Value {
    json!({"enum": words})
}

/// One of several shapes.
#[must_use]
pub fn one_of(shapes: Vec<Value>) -> Value {
    json!({"anyOf": shapes})
}

/// A point in time.
#[must_use]
pub fn instant() -> Value {
    json!({"type": "string", "format": "date-time", "examples": ["2026-11-29T20:00:00Z"]})
}

/// Adds a description.
fn about(mut schema: Value, words: &str) -> Value {
    schema["description"] = words.into();
    schema
}

/// A capability, offered or needed.
#[must_use]
pub fn capability() -> Value {
    let mut schema = object(
        &["name"],
        json!({
            "name": text(),
            "count": whole(),
            "attributes": map(loose_text()),
        }),
    );
    let mut other_name = map(loose_text());
    other_name["deprecated"] = true.into();
    schema["properties"]["attributeMatches"] = other_name;
    schema
}

// === bundles ===

/// A bundle whose times are written as `instant` says.
#[must_use]
pub fn bundle_shape(instant: &Value) -> Value {
    object(
        &["pool", "jobs"],
        json!({
            "bundleId": about(text(), "Its name; the Manager gives one where it is absent."),
            "description": loose_text(),
            "pool": about(text(), "The pool in which it is placed."),
            "jobs": list(job_shape(instant)),
            "resiliencePolicy": about(object(&[], json!({
                "pool": text(),
                "sameNode": choice(&["allow", "forbid"]),
                "sameAz": choice(&["allow", "forbid"]),
                "sameCloud": choice(&["allow", "forbid"]),
            })), "Makes a second copy and says how far apart it stays."),
            "intraReplicaPlacement": object(&[], json!({
                "sameNodeDefault": flag(),
                "sameAz": choice(&["soft", "hard", "off"]),
            })),
            "onLaunch": choice(&["avoidSpare", "allowSpare"]),
            "overrideReservation": flag(),
            "backupParameterOverrides": map(loose_text()),
            "tags": map(loose_text()),
            "startDateTime": instant,
            "stopAt": instant,
            "state": choice(&["LIVE", "DELETING"]),
            "revision": whole(),
        }),
    )
}

fn job_shape(instant: &Value) -> Value {
    object(
        &["jobName"],
        json!({
            "jobName": text(),
            "description": loose_text(),
            "requirements": requirements(),
            "coLocateWith": list(text()),
            "separateFrom": list(text()),
            "exclusive": about(flag(), "Nothing else runs on its node."),
            "singleUse": about(flag(), "Its node is ended after it."),
            "startMode": choice(&["auto", "manual"]),
            "startDateTime": instant,
            "handover": flag(),
            "jobSocket": flag(),
            "lease": object(&[], json!({"ttlMs": whole(), "graceMs": whole()})),
            "tags": map(loose_text()),
            "secretEnv": list(text()),
            "exportTags": list(text()),
            "provides": list(capability()),
            "launch": launch(),
        }),
    )
}

fn requirements() -> Value {
    object(
        &[],
        json!({
            "requiredCapacity": about(number(), "vCPUs."),
            "requiredCores": about(whole(), "Pinned cores; 0: no pinning."),
            "requiredCapabilities": list(capability()),
            "requiredHostPorts": list(about(loose_text(), "PORT/udp or PORT/tcp.")),
            "requiredGpuCapacity": about(number(), "Share of one GPU."),
            "requiredGpuModel": text(),
            "onRuntimeFailure": choice(&["avoidSpare", "preferSpare", "drop"]),
            "essential": about(flag(), "Its end breaks the bundle; absent: true."),
            "maxRestartsPerHour": whole(),
            "memoryBytes": whole(),
        }),
    )
}

fn launch() -> Value {
    object(
        &[],
        json!({
            "template": text(),
            "parameters": map(loose_text()),
            "services": list(service()),
            "mediaVersion": choice(&["RECOMMENDED", "LATEST", "PREVIOUS_RECOMMENDED", "LTS"]),
            "mediaParameters": parameters(),
            "volumes": list(text()),
            "managerConfiguration": text(),
        }),
    )
}

fn service() -> Value {
    object(
        &["name"],
        json!({
            "name": text(),
            "container": one_of(vec![
                object(&["docker"], json!({"docker": text()})),
                object(&["process"], json!({"process": object(&["command"], json!({
                    "command": list(loose_text()),
                    "directory": text(),
                }))})),
                choice(&["none"]),
            ]),
            "restart": choice(&["never", "onFailure", "always"]),
            "dependsOn": list(text()),
            "configuration": loose_text(),
            "restartCount": whole(),
            "restartPeriod": whole(),
            "command": loose_text(),
            "parameters": parameters(),
        }),
    )
}

fn parameters() -> Value {
    object(
        &[],
        json!({
            "portMappings": list(object(&["containerPort"], json!({
                "containerPort": whole(),
                "protocol": choice(&["any", "udp", "tcp"]),
                "hostPort": about(one_of(vec![
                    whole(),
                    choice(&["ephemeral"]),
                    object(&["specific"], json!({"specific": whole()})),
                    object(&["range"], json!({"range": object(&["min", "max"], json!({
                        "min": whole(), "max": whole(),
                    }))})),
                ]), "A port number, ephemeral, or a range."),
                "hostAddress": text(),
                "group": loose_text(),
            }))),
            "environment": map(loose_text()),
            "sharedMemorySize": whole(),
            "cpuSet": list(whole()),
            "volumeMounts": list(object(&["volumeName", "containerPath"], json!({
                "volumeName": text(),
                "containerPath": text(),
                "readOnly": flag(),
            }))),
            "hostNetwork": flag(),
            "healthCheck": object(&["command"], json!({
                "command": list(loose_text()),
                "intervalMs": whole(),
                "retries": whole(),
            })),
            "memoryLimit": whole(),
            "gpu": flag(),
            "discoveryAccess": flag(),
            "accessReplica": flag(),
        }),
    )
}

// === settings ===

/// The settings; a scenario leaves `url` out.
#[must_use]
pub fn settings_shape() -> Value {
    let timing = json!({
        "rejectionBackoffMs": whole(),
        "failureBackoffMs": whole(),
        "jobStartupGraceMs": whole(),
        "unhealthyCooldownMs": whole(),
        "rejectionEscalationCount": {"type": "integer", "minimum": 1},
    });
    let policy = || object(&[], json!({"maxRestartsPerHour": whole()}));
    let positive = || json!({"type": "integer", "minimum": 1});
    let mut schema = object(
        &[],
        json!({
            "url": about(text(), "The Manager, HOST:PORT."),
            "pendingWindow": about(number(), "Seconds."),
            "removeStoppedNodesAfter": about(above_zero(), "Seconds."),
            "placement": object(&[], timing.clone()),
            "maxRestartsPerHour": whole(),
            "failurePolicies": object(&[], json!({
                "preferSpare": policy(),
                "avoidSpare": policy(),
            })),
            "hotSpareReconcileIntervalMs": positive(),
            "nodeServiceReconcileIntervalMs": positive(),
            "prefetchParallelNodes": positive(),
            "migration": object(&[], json!({
                "proposingDeadlineMs": positive(),
                "launchingDeadlineMs": positive(),
                "awaitingTargetReadyDeadlineMs": positive(),
                "awaitingSourceStopDeadlineMs": positive(),
                "applyingDeadlineMs": positive(),
                "startingTargetDeadlineMs": positive(),
                "stoppingSourceDeadlineMs": positive(),
            })),
            "placementPools": list(object(&["name", "tiers"], json!({
                "name": text(),
                "tiers": list(tier()),
            }))),
            "hotSpares": list(hot_spare()),
            "templateImages": map(list(text())),
            "experimental": object(&[], json!({"nodeServices": flag()})),
            "nodeServices": list(node_service()),
        }),
    );
    if let (Some(Value::Object(keys)), Value::Object(timing)) =
        (schema.get_mut("properties"), timing)
    {
        keys.extend(timing);
    }
    schema
}

fn tier() -> Value {
    object(
        &["name", "kind", "scaleOut"],
        json!({
            "name": text(),
            "kind": choice(&["aws", "oci", "local-servers"]),
            "scaleOut": choice(&["elastic", "fixed"]),
            "region": text(),
            "packingStrategy": choice(&["binpack", "spread"]),
            "launchMode": choice(&["on-demand", "spot", "reserved"]),
            "reliability": choice(&["durable", "interruptible"]),
            "maxNodes": whole(),
            "placementLeadMs": whole(),
            "provisionTimeoutMs": {"type": "integer", "minimum": 1},
            "candidateInstanceTypes": list(object(
                &["instanceType", "totalCapacity", "totalCores"],
                json!({
                    "instanceType": text(),
                    "totalCapacity": above_zero(),
                    "totalCores": {"type": "integer", "minimum": 1},
                    "capabilities": list(capability()),
                    "gpus": list(object(&[], json!({
                        "index": whole(),
                        "model": text(),
                        "capacity": above_zero(),
                    }))),
                    "ocpus": above_zero(),
                    "memoryGb": above_zero(),
                }),
            )),
            "rootVolume": object(&[], json!({
                "sizeGb": {"type": "integer", "minimum": 1},
                "type": text(),
                "iops": whole(),
                "throughput": whole(),
            })),
        }),
    )
}

/// What is wanted as warm reserve of one pool.
#[must_use]
pub fn hot_spare() -> Value {
    object(
        &["pool"],
        json!({
            "pool": text(),
            "targetCount": whole(),
            "spec": object(&[], json!({
                "instanceType": text(),
                "region": text(),
                "az": text(),
            })),
            "warmFor": list(text()),
            "reservedFor": list(text()),
            "exclusive": flag(),
        }),
    )
}

fn node_service() -> Value {
    // The name of its job may be left out: then it is that of the service.
    let mut job = job_shape(&instant());
    job["required"] = json!([]);
    object(
        &["serviceId"],
        json!({
            "serviceId": text(),
            "lifecycle": choice(&["eager"]),
            "pools": list(text()),
            "consumes": list(capability()),
            "provides": list(capability()),
            "jobSpec": job,
        }),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use greenroom_types::bundle::Bundle;

    use super::check::{fault, mappings, sample};
    use super::*;

    /// The keys that a message says are known.
    fn known(message: &str) -> BTreeSet<String> {
        let (_, list) = message
            .split_once("known here: ")
            .unwrap_or_else(|| panic!("no list of keys in {message}"));
        let list = list.split([';', '\n']).next().unwrap_or_default();
        let list = list.trim_end_matches(" (unknownKey)");
        list.split(", ").map(ToOwned::to_owned).collect()
    }

    fn keys(schema: &Value) -> BTreeSet<String> {
        let keys = schema["properties"].as_object().expect("keys");
        let keys = keys.iter().filter(|(_, key)| key["deprecated"] != true);
        keys.map(|(name, _)| name.clone()).collect()
    }

    /// Compares a schema with its reader, which answers with what is wrong.
    fn compare(schema: &Value, read: impl Fn(&Value) -> Option<String>) {
        let whole = sample(schema);
        assert_eq!(read(&whole), None, "{whole:#}");
        assert_eq!(fault(schema, &whole), None);
        for (place, shape) in mappings(schema) {
            let mut more = whole.clone();
            let at = more.pointer_mut(&place).expect("the sample has it");
            at["zzz"] = json!(1);
            let refused = fault(schema, &more).expect("the schema refuses it too");
            assert!(
                refused.contains("zzz") || refused.contains("anyOf"),
                "{refused}"
            );
            let told = read(&more).unwrap_or_else(|| panic!("zzz is read at {place:?}"));
            let mut known = known(&told);
            known.remove("attributeMatches");
            assert_eq!(known, keys(shape), "at {place:?}");
            let required: Vec<&str> = shape["required"].as_array().map_or_else(Vec::new, |list| {
                list.iter().filter_map(Value::as_str).collect()
            });
            for key in keys(shape) {
                let mut less = whole.clone();
                let at = less.pointer_mut(&place).expect("the sample has it");
                at.as_object_mut().expect("a mapping").remove(&key);
                // What is optional by itself may be needed by another key of the sample.
                if required.contains(&key.as_str()) {
                    assert!(read(&less).is_some(), "{key} at {place:?} may be absent");
                    assert!(fault(schema, &less).is_some(), "{key} at {place:?}");
                }
            }
        }
    }

    // spec: SCEN-13
    #[test]
    fn the_schema_of_bundles_has_the_keys_that_are_read() {
        compare(&bundle(), |tree| {
            let fault = greenroom_types::tree::read::<Bundle>(tree).err()?;
            Some(fault.to_string())
        });
        assert_eq!(bundle()["additionalProperties"], false);
    }

    // spec: SCEN-13
    #[test]
    fn the_schema_of_settings_has_the_keys_that_are_read() {
        compare(&settings(), |tree| {
            let error = greenroom_policy::Settings::parse(tree).err()?;
            let faults = error.faults.iter();
            // The job of a node service is a job like others, but for this; and an address has a form
            // that no schema tells.
            let beyond = |path: &str| path == "url" || path.ends_with(".jobSpec.launch.parameters");
            let mut faults = faults.filter(|fault| !beyond(&fault.path));
            faults.next().map(ToString::to_string)
        });
    }

    // spec: SCEN-13
    #[test]
    fn the_examples_are_as_their_schema_says_and_slips_are_not() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut read = 0;
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|end| end != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the file is text");
            let trees: Vec<Value> = crate::read("example", &text).expect("it is YAML");
            for tree in trees {
                assert_eq!(fault(&bundle(), &tree), None, "{}", path.display());
                read += 1;
            }
        }
        assert!(read >= 3, "{read} examples");
        let job = |job: Value| json!({"pool": "p", "jobs": [job]});
        for slip in [
            json!({"pool": "p"}),
            json!({"pool": "p", "jobs": [], "replicas": 2}),
            job(json!({"jobName": "e", "requirement": {}})),
            job(json!({"jobName": "e", "requirements": {"requiredCores": 1.5}})),
            job(json!({"jobName": "e", "requirements": {"requiredCores": -1}})),
            job(json!({"jobName": "e", "startMode": "later"})),
            job(json!({"jobName": "e", "coLocateWith": "b"})),
            job(json!({"jobName": "e", "launch": {"services": [{"container": "none"}]}})),
            job(
                json!({"jobName": "e", "launch": {"services": [{"name": "s", "container": {"podman": "x"}}]}}),
            ),
        ] {
            assert!(fault(&bundle(), &slip).is_some(), "{slip}");
        }
        for slip in [
            json!({"maxRestartPerHour": 1}),
            json!({"prefetchParallelNodes": 0}),
            json!({"placementPools": [{"name": "p"}]}),
            json!({"placementPools": [{"name": "p", "tiers": [{"name": "t", "kind": "gcp", "scaleOut": "fixed"}]}]}),
        ] {
            assert!(fault(&settings(), &slip).is_some(), "{slip}");
        }
    }
}
