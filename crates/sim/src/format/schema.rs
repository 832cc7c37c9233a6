//! The JSON Schema of scenario files (SCEN-13).

use greenroom_ledger::KeeperSettings;
use greenroom_manifest::schema::{
    bundle_shape, capability, choice, flag, instant, list, map, number, object, one_of,
    settings_shape, text, text_like, titled, whole,
};
use serde_json::{Map, Value, json};

use crate::served::{self, Names};

/// The schema of a scenario file.
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(
        &["scenario", "settings"],
        json!({
            "scenario": {"enum": [1], "description": "Version of the format."},
            "name": text(),
            "description": text(),
            "spec": list(text()),
            "settings": {"examples": [{}]},
            "expectSettingsErrors": list(text()),
            "world": world(),
            "nodes": list(node()),
            "bundles": list(bundle()),
            "jobs": by_job(object(&[], json!({"dormant": flag(), "verdict": text(), "gpu": whole()}))),
            "steps": list(step()),
        }),
    );
    // Where the faults of the settings are the point, they may have any.
    schema["if"] = json!({"required": ["expectSettingsErrors"]});
    schema["then"] = json!({});
    schema["else"] = json!({
        "required": ["steps"],
        "properties": {"settings": one_of(vec![settings(), json!({"type": "null"})])},
    });
    titled(&mut schema, "A scenario of Greenroom");
    schema
}

/// The policy's settings without the address of a Manager.
fn settings() -> Value {
    let mut settings = settings_shape();
    if let Some(Value::Object(keys)) = settings.get_mut("properties") {
        keys.remove("url");
    }
    settings
}

fn bundle() -> Value {
    bundle_shape(&moment())
}

/// An instant, or a signed duration from virtual zero.
fn moment() -> Value {
    text_like("+10m")
}

fn span() -> Value {
    text_like("1s")
}

fn job_path() -> Value {
    text_like("chan-1/0/encode")
}

fn node_ref() -> Value {
    text_like("n1")
}

/// A mapping whose keys are jobs.
fn by_job(values: Value) -> Value {
    keyed("chan-1/0/encode", values)
}

fn by_node(values: Value) -> Value {
    keyed("n1", values)
}

fn keyed(example: &str, values: Value) -> Value {
    let mut schema = map(values);
    schema["propertyNames"] = json!({"examples": [example]});
    schema
}

fn yes() -> Value {
    json!({"enum": [true]})
}

fn strategy() -> Value {
    choice(&["stopThenStart", "overlap", "handover"])
}

fn world() -> Value {
    let mut manager: Map<String, Value> = match serde_json::to_value(KeeperSettings::default()) {
        Ok(Value::Object(keys)) => keys.into_iter().map(|(key, _)| (key, whole())).collect(),
        _ => Map::new(),
    };
    manager.insert("silenceMs".to_owned(), whole());
    object(
        &[],
        json!({
            "start": instant(),
            "seed": whole(),
            "nodeIds": list(text()),
            "bootTime": span(),
            "startTime": span(),
            "stopTime": span(),
            "prepareTime": span(),
            "startPreparedTime": span(),
            "terminateTime": span(),
            "pullTime": span(),
            "migration": object(&[], json!({
                "state": span(),
                "ready": span(),
                "stopOutput": span(),
                "apply": span(),
            })),
            "instanceTypes": map(object(&[], json!({
                "vcpus": number(),
                "cores": whole(),
                "capabilities": list(capability()),
                "gpus": list(gpu()),
            }))),
            "azs": map(list(text())),
            "unconfiguredPools": list(text()),
            "manager": object(&[], Value::Object(manager)),
        }),
    )
}

fn gpu() -> Value {
    object(
        &[],
        json!({
            "index": whole(),
            "uuid": text(),
            "model": text(),
            "memoryBytes": whole(),
            "capacity": number(),
            "reservedCapacity": number(),
            "driver": text(),
            "numa": {"type": "integer"},
        }),
    )
}

/// What a node says of itself; the keys are shared by nodes and by changes of their inventories.
fn picture() -> Value {
    json!({
        "az": text(),
        "capacity": number(),
        "cores": whole(),
        "utilizationCap": {"type": "number"},
        "capabilities": list(capability()),
        "gpus": list(gpu()),
        "heldImages": list(text()),
        "cordoned": flag(),
        "disks": list(disk()),
        "runtime": text(),
    })
}

fn disk() -> Value {
    object(
        &["path", "total", "free"],
        json!({"path": text(), "total": whole(), "free": whole()}),
    )
}

fn with(mut keys: Value, more: Value) -> Value {
    if let (Value::Object(keys), Value::Object(more)) = (&mut keys, more) {
        keys.extend(more);
    }
    keys
}

fn node() -> Value {
    let spare = one_of(vec![
        flag(),
        object(
            &[],
            json!({
                "warmFor": list(text()),
                "reservedFor": list(text()),
                "exclusive": flag(),
            }),
        ),
    ]);
    object(
        &["id"],
        with(
            picture(),
            json!({
                "id": text(),
                "pool": text(),
                "tier": text(),
                "spare": spare,
                "tags": map(text()),
                "jobs": list(job_path()),
                "createdAt": moment(),
            }),
        ),
    )
}

// === steps ===

fn step() -> Value {
    let mut keys = operator_actions();
    keys = with(keys, world_events());
    keys = with(keys, json!({"expect": expect()}));
    // A step does exactly one thing.
    let one: Vec<Value> = keys
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| json!({"required": [key]}))
        .collect();
    let modifiers = json!({"at": span(), "refused": text(), "only": text_like("n1")});
    let mut step = object(&[], with(keys, modifiers));
    step["oneOf"] = Value::Array(one);
    step
}

fn operator_actions() -> Value {
    json!({
        "createBundle": bundle(),
        "updateBundle": bundle(),
        "deleteBundle": text(),
        "startBundleJob": job_path(),
        "stopBundleJob": job_path(),
        "setBundleStopTime": object(&["bundle"], json!({"bundle": text(), "stopAt": moment()})),
        "cordon": node_ref(),
        "uncordon": node_ref(),
        "drain": object(&["node"], json!({
            "node": node_ref(),
            "timeout": span(),
            "force": flag(),
            "strategy": strategies(),
            "forUpgrade": flag(),
        })),
        "evict": node_ref(),
        "terminate": node_ref(),
        "interrupt": interrupt(),
        "migrate": object(&["job"], json!({
            "job": job_path(),
            "strategy": strategy(),
            "target": node_ref(),
            "overrideReservation": flag(),
        })),
        "abortMigration": object(&["job"], json!({"job": job_path(), "reason": text()})),
        "updateHotSpares": list(json!({"examples": [{}]})),
        "updateHotSpareNode": object(&["node"], json!({
            "node": node_ref(),
            "warmFor": list(text()),
            "reservedFor": list(text()),
            "exclusive": flag(),
        })),
        "setTemplateImages": map(list(text())),
        "dryRun": one_of(vec![
            object(&["bundle"], json!({
                "bundle": text(),
                "replica": whole(),
                "job": text(),
            })),
            job_path(),
        ]),
        "admit": bundle(),
        "close": yes(),
        "restart": yes(),
    })
}

fn notice_keys() -> Value {
    json!({
        "node": node_ref(),
        "kind": choice(&["spot-interruption", "rebalance"]),
        "deadline": moment(),
    })
}

fn notice() -> Value {
    object(&["node", "kind"], notice_keys())
}

fn interrupt() -> Value {
    object(
        &["node", "kind"],
        with(notice_keys(), json!({"strategy": strategies()})),
    )
}

/// How the jobs of a node change over: one way for all, or each in its own.
fn strategies() -> Value {
    one_of(vec![strategy(), by_job(strategy())])
}

/// The instance of the binding, or that on a node.
fn instance() -> Value {
    let keys = json!({"job": job_path(), "node": node_ref()});
    one_of(vec![job_path(), object(&["job"], keys)])
}

fn world_events() -> Value {
    let held = || {
        list(choice(&[
            "nodeBooting",
            "nodeStarted",
            "nodeStopped",
            "inventory",
            "jobRunning",
            "jobStopped",
            "prepared",
            "migrationSignals",
            "imagePulls",
            "createOutcome",
        ]))
    };
    json!({
        "nodeJoins": node(),
        "nodeReturns": object(&["node"], json!({"node": node_ref(), "jobs": list(job_path())})),
        "nodeStopping": object(&["node"], json!({"node": node_ref(), "reason": choice(&[
            "CREATE_FAILED",
            "PENDING_TIME_EXCEEDED",
            "STARTUP_TIME_EXCEEDED",
            "INITIALISATION_HEALTH_PING_TIME_EXCEEDED",
            "HEALTH_PING_TIME_EXCEEDED",
            "DUPLICATE_JOB",
            "PROVIDER_STOP",
            "PROVIDER_TERMINATE",
            "USER_REQUESTED",
            "UNKNOWN_NODE",
        ])})),
        "nodeStopped": node_ref(),
        "nodeDies": node_ref(),
        "inventory": object(&["node"], with(picture(), json!({"node": node_ref()}))),
        "setTags": object(&["node", "tags"], json!({
            "node": node_ref(),
            "tags": map(json!({"type": ["string", "null"], "examples": ["x"]})),
        })),
        "notice": notice(),
        "jobFails": object(&["job"], json!({"job": job_path(), "reason": text()})),
        "jobRejected": object(&["job"], json!({
            "job": job_path(),
            "node": node_ref(),
            "role": text(),
            "reason": text(),
            "invalidSpec": flag(),
            "code": choice(&[
                "UNSPECIFIED", "CAPACITY", "CORES", "GPU", "CAPABILITY", "HOST_PORT", "DISK", "CORDONED",
                "IMAGE", "INVALID_SPEC", "DUPLICATE", "RUNTIME", "LEASE",
            ]),
        })),
        "jobPrepared": instance(),
        "jobRunning": instance(),
        "jobStopped": instance(),
        "stopJob": instance(),
        "markJobFailed": object(&["job"], json!({"job": job_path(), "reason": text()})),
        "jobCompletes": job_path(),
        "duplicate": job_path(),
        "imagePulled": object(&["node", "ref"], json!({
            "node": node_ref(),
            "ref": text(),
            "ok": flag(),
        })),
        "signal": object(&["job", "side", "kind"], json!({
            "job": job_path(),
            "side": choice(&["source", "target"]),
            "kind": choice(&["state", "refuse", "ready", "stoppedOutput", "applied", "aborted"]),
            "payload": text(),
        })),
        "createFails": object(&["tier", "next"], json!({
            "tier": text(),
            "next": whole(),
            "node": node_ref(),
            "error": text(),
            "when": choice(&["call", "later"]),
            "after": span(),
        })),
        "startFails": object(&["node", "next"], json!({
            "node": node_ref(),
            "next": whole(),
            "job": job_path(),
            "after": span(),
        })),
        "clock": object(&["wallJump"], json!({"wallJump": text_like("-1h")})),
        "disconnect": yes(),
        "connect": yes(),
        "partition": node_ref(),
        "heal": node_ref(),
        "hold": held(),
        "release": held(),
    })
}

// === expectations ===

fn expect() -> Value {
    let pairs = || {
        list(json!({
            "type": "array",
            "items": job_path(),
            "minItems": 2,
            "maxItems": 2,
            "examples": [["chan-1/0/encode", "chan-1/1/encode"]],
        }))
    };
    let count = || {
        object(
            &["n"],
            json!({"pool": text(), "tier": text(), "spare": flag(), "n": whole()}),
        )
    };
    object(
        &[],
        json!({
            "jobs": by_job(object(&[], json!({
                "state": choice(&[
                    "unplaced", "placed", "running", "dormant", "dropped", "broken", "gone",
                ]),
                "node": node_ref(),
                "tier": text(),
                "pool": text(),
                "gpu": whole(),
                "restarts": whole(),
            }))),
            "sameNode": pairs(),
            "differentNode": pairs(),
            "differentAz": pairs(),
            "differentCloud": pairs(),
            "nodes": by_node(object(&[], json!({
                "state": choice(&["starting", "running", "stopping", "stopped", "gone"]),
                "cordoned": flag(),
                "spare": flag(),
                "jobs": list(job_path()),
                "tags": map(json!({"type": ["string", "null"], "examples": ["x"]})),
            }))),
            "nodeCount": one_of(vec![count(), list(count())]),
            "calls": happened(served::calls()),
            "callbacks": happened(served::callbacks()),
            "metrics": {"type": "object", "examples": [{"placementsAttempted": 1}]},
            "drain": object(&["node"], json!({
                "node": node_ref(),
                "phase": choice(&[
                    "migrating", "waiting", "terminating", "done", "partial", "failed",
                ]),
                "jobs": by_job(choice(&["migrating", "migrated", "stuck", "moved", "terminated"])),
            })),
            "migration": object(&["job"], json!({
                "job": job_path(),
                "phase": choice(&[
                    "proposing", "launching", "awaitingTargetReady", "awaitingSourceStop",
                    "applying", "startingTarget", "stoppingSource", "done", "aborted",
                ]),
                "target": node_ref(),
                "abortReason": text(),
            })),
            "trace": object(&["job"], json!({
                "job": job_path(),
                "kind": choice(&["place", "provision", "failure"]),
                "reason": text(),
                "chosen": node_ref(),
                "attempts": list(object(&[], json!({
                    "tier": text(),
                    "outcome": choice(&[
                        "placed", "provisioned", "exhausted", "noInstanceTypeFits", "atMaxNodes",
                        "provisionBackoff", "azUnknown", "pinnedNoProvision", "poolNotConfigured",
                    ]),
                    "filtered": by_node(text_like("cordoned")),
                    "survivors": list(node_ref()),
                }))),
            })),
            "dryRun": object(&["kind"], json!({
                "kind": choice(&["place", "provision", "failure"]),
                "node": node_ref(),
                "tier": text(),
                "instanceType": text(),
            })),
            "admission": object(&["kind"], json!({
                "kind": choice(&["ok", "noCapacity", "validationErrors"]),
                "unplaceable": list(job_path()),
                "errors": list(text_like("unknownPool")),
                "warnings": list(text_like("diskNearlyFull")),
            })),
            "pending": by_job(moment()),
            "spares": object(&["pool"], json!({
                "pool": text(),
                "live": whole(),
                "pending": whole(),
                "target": whole(),
            })),
            "bundle": object(&["id", "broken"], json!({"id": text(), "broken": flag()})),
            "invariants": choice(&["ok"]),
        }),
    )
}

/// Calls or callbacks: a list, or a list in order.
fn happened(names: &Names) -> Value {
    let fields = json!({"type": ["object", "null"]});
    let mut keys: Map<String, Value> = names
        .shapes
        .keys()
        .map(|name| (name.clone(), fields.clone()))
        .collect();
    keys.insert("times".to_owned(), whole());
    let mut item = object(&[], Value::Object(keys));
    let first = names.shapes.keys().next().map_or("", String::as_str);
    item["examples"] = json!([{first: {}, "times": 1}]);
    one_of(vec![
        list(item.clone()),
        object(
            &["inOrder", "list"],
            json!({"inOrder": flag(), "list": list(item)}),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use greenroom_manifest::schema::check::{fault, mappings, sample};

    use super::*;
    use crate::format::Scenario;
    use crate::format::action::Action;

    fn scenario(step: Value) -> Value {
        json!({"scenario": 1, "settings": {}, "steps": [step]})
    }

    /// The keys that a message says are known.
    fn known(message: &str) -> BTreeSet<String> {
        let (_, list) = message
            .split_once("known here: ")
            .unwrap_or_else(|| panic!("no list of keys in {message}"));
        let list = list.split([';', '\n']).next().unwrap_or_default();
        let mut keys: BTreeSet<String> = list.split(", ").map(ToOwned::to_owned).collect();
        keys.remove("attributeMatches");
        keys
    }

    fn keys(schema: &Value) -> BTreeSet<String> {
        let keys = schema["properties"].as_object().expect("keys");
        let keys = keys.iter().filter(|(_, key)| key["deprecated"] != true);
        keys.map(|(name, _)| name.clone()).collect()
    }

    /// Reads a sample of a schema within a scenario, as it is and with a key too much anywhere.
    fn compare(part: &Value, whole: impl Fn(Value) -> Value) {
        let value = sample(part);
        let all = whole(value.clone());
        Scenario::of_tree(&all).unwrap_or_else(|told| panic!("{told} in {all:#}"));
        assert_eq!(fault(&schema(), &all), None, "{all:#}");
        for (place, shape) in mappings(part) {
            let mut more = value.clone();
            let at = more.pointer_mut(&place).expect("the sample has it");
            at["zzz"] = json!(1);
            let more = whole(more);
            let told = Scenario::of_tree(&more).expect_err("zzz is unknown");
            assert!(fault(&schema(), &more).is_some(), "{more}");
            // The Manager's waits are read in two parts, each with its own keys.
            let mut wanted = keys(shape);
            if wanted.contains("silenceMs") {
                wanted.remove("silenceMs");
            }
            assert_eq!(known(&told), wanted, "at {place:?}");
        }
    }

    // spec: SCEN-13
    #[test]
    fn the_schema_of_steps_has_the_actions_and_keys_that_are_read() {
        let step = step();
        let mut actions = keys(&step);
        for word in ["at", "refused", "only", "expect"] {
            assert!(actions.remove(word), "{word}");
        }
        let read: BTreeSet<String> = Action::KEYS.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(actions, read);
        for (key, part) in step["properties"].as_object().expect("keys") {
            if ["at", "refused", "only"].contains(&key.as_str()) {
                continue;
            }
            compare(part, |value| scenario(json!({"at": "1s", key: value})));
        }
    }

    // spec: SCEN-13
    #[test]
    fn the_schema_of_what_stands_around_the_steps_has_the_keys_that_are_read() {
        for (key, part) in [
            ("world", world()),
            ("nodes", list(node())),
            ("bundles", list(bundle())),
        ] {
            compare(
                &part,
                |value| json!({"scenario": 1, "settings": {}, "steps": [], key: value}),
            );
        }
    }

    fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|end| end == "yaml") {
                found.push(path);
            }
        }
    }

    // spec: SCEN-13
    #[test]
    fn every_scenario_here_is_as_the_schema_says_and_slips_are_not() {
        let mut found = Vec::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios");
        files(Path::new(folder), &mut found);
        assert!(found.len() > 50, "{} scenarios", found.len());
        let schema = schema();
        for path in found {
            let text = std::fs::read_to_string(&path).expect("the file is text");
            let trees: Vec<Value> =
                greenroom_manifest::read("scenario", &text).expect("it is YAML");
            assert_eq!(fault(&schema, &trees[0]), None, "{}", path.display());
        }
        for slip in [
            json!({"settings": {}, "steps": []}),
            json!({"scenario": 2, "settings": {}, "steps": []}),
            json!({"scenario": 1, "settings": {}}),
            json!({"scenario": 1, "settings": {}, "stpes": [], "steps": []}),
            json!({"scenario": 1, "settings": {"url": "x"}, "steps": []}),
            json!({"scenario": 1, "settings": {"maxRestartPerHour": 1}, "steps": []}),
            scenario(json!({"at": "1s"})),
            scenario(json!({"cordon": "n1", "uncordon": "n1"})),
            scenario(json!({"explode": "n1"})),
            scenario(json!({"close": false})),
            scenario(json!({"expect": {"jobs": {"a/0/b": {"state": "flying"}}}})),
            scenario(json!({"expect": {"calls": [{"startJbo": {}}]}})),
        ] {
            assert!(fault(&schema, &slip).is_some(), "{slip}");
        }
    }
}
