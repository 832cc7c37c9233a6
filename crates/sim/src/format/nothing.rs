//! Expectations of nothing: they hold whatever the policy does, and who wrote one meant something.
//!
//! What is empty and can be compared is a claim and no fault: `jobs: []` of a node says that it has
//! none, `survivors: []` that no node would do, `filtered: {}` that none was left out.

use greenroom_types::tree::Fault;
use serde_json::{Map, Value};

/// Said of what has nothing in it.
const NOTHING: &str = "it expects nothing, so it holds whatever happens";

/// Said of a key without a value.
pub(super) const NULL: &str = "it says nothing: write a value, or leave the key out";

/// The first part of an expectation that says nothing. `calls` and `callbacks` may be empty, for they
/// begin the count anew; whether somebody counts is looked at with the steps that follow.
pub(super) fn in_expect(tree: &Value) -> Result<(), Fault> {
    let Value::Object(keys) = tree else {
        return Ok(());
    };
    if keys.is_empty() {
        return Err(fault("", NOTHING));
    }
    for (key, value) in keys {
        match key.as_str() {
            // Nothing is what an absent field of a call has.
            "calls" | "callbacks" if value.is_null() => return Err(fault(key, NULL)),
            "calls" | "callbacks" => {}
            "nodes" => {
                filled(key, value)?;
                of_nodes(value)?;
            }
            _ => {
                filled(key, value)?;
                nulls(key, value)?;
                inside(key, value)?;
            }
        }
    }
    Ok(())
}

/// A node or an action with a key that has no value: it reads as if it were not there.
pub(super) fn in_keys(tree: &Value) -> Result<(), Fault> {
    match entries(tree).find(|(_, value)| value.is_null()) {
        Some((key, _)) => Err(fault(key, NULL)),
        None => Ok(()),
    }
}

/// What stands in one key, beside nulls.
fn inside(key: &str, value: &Value) -> Result<(), Fault> {
    match key {
        "jobs" => each(key, value),
        "spares" if has_only(value, "pool") => Err(fault(key, NOTHING)),
        "migration" if value["abortReason"] == "" => Err(fault(
            "migration.abortReason",
            "every reason has that in it: write some of its words, or leave the key out",
        )),
        "trace" => {
            let attempts = value["attempts"].as_array().into_iter().flatten();
            for (at, attempt) in attempts.enumerate() {
                filled(&format!("trace.attempts[{at}]"), attempt)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A null among the tags of a node says that it has no such tag.
fn of_nodes(nodes: &Value) -> Result<(), Fault> {
    each("nodes", nodes)?;
    for (name, node) in entries(nodes) {
        for (key, value) in entries(node) {
            let path = format!("nodes.{name}.{key}");
            if key == "tags" {
                filled(&path, value)?;
            } else {
                nulls(&path, value)?;
            }
        }
    }
    Ok(())
}

fn each(path: &str, value: &Value) -> Result<(), Fault> {
    for (name, value) in entries(value) {
        filled(&format!("{path}.{name}"), value)?;
    }
    Ok(())
}

fn filled(path: &str, value: &Value) -> Result<(), Fault> {
    let is_empty = match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if is_empty {
        return Err(fault(path, NOTHING));
    }
    Ok(())
}

fn has_only(value: &Value, name: &str) -> bool {
    value
        .as_object()
        .is_some_and(|keys| keys.keys().all(|key| key == name))
}

/// A key without a value reads as if it were not there.
fn nulls(path: &str, value: &Value) -> Result<(), Fault> {
    match value {
        Value::Null => Err(fault(path, NULL)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .try_for_each(|(at, item)| nulls(&format!("{path}[{at}]"), item)),
        Value::Object(map) => map
            .iter()
            .try_for_each(|(key, value)| nulls(&format!("{path}.{key}"), value)),
        _ => Ok(()),
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn fault(path: &str, message: &str) -> Fault {
    Fault {
        path: path.to_owned(),
        message: message.to_owned(),
    }
}
