//! Matching of nested values: maps as subsets at every depth, lists whole, what is empty as empty, and
//! names of jobs and nodes as a scenario writes them.

use serde_json::Value;

use super::shown;
use crate::format::names::{JobPath, NodeRef};
use crate::log;
use crate::world::World;

/// Where a value differs: the path below it, and both values there.
pub(super) type Difference = (String, String, String);

/// Whether `found` has everything of `wanted`.
pub(super) fn subset(world: &World, wanted: &Value, found: &Value) -> Result<(), Difference> {
    let differs = || Err((String::new(), shown(wanted), named(world, found)));
    match (wanted, found) {
        // As a subset it would match whatever is there.
        (Value::Object(none), Value::Object(some)) if none.is_empty() && !some.is_empty() => {
            differs()
        }
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                let found = found.get(key).unwrap_or(&Value::Null);
                subset(world, wanted, found)
                    .map_err(|(below, a, b)| (format!(".{key}{below}"), a, b))?;
            }
            Ok(())
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                return differs();
            }
            for (index, (wanted, found)) in a.iter().zip(b).enumerate() {
                subset(world, wanted, found)
                    .map_err(|(below, a, b)| (format!("[{index}]{below}"), a, b))?;
            }
            Ok(())
        }
        (Value::Number(a), Value::Number(b)) => {
            if a == b || a.as_f64() == b.as_f64() {
                Ok(())
            } else {
                differs()
            }
        }
        (Value::String(a), Value::String(b)) => {
            if a == b || stands_for(world, a, b) {
                Ok(())
            } else {
                differs()
            }
        }
        (a, b) if a == b => Ok(()),
        _ => differs(),
    }
}

/// True when a name of a scenario stands for this id.
fn stands_for(world: &World, name: &str, id: &str) -> bool {
    if let Ok(job) = name.parse::<JobPath>() {
        return job.job_id().as_str() == id;
    }
    match name.parse::<NodeRef>() {
        Ok(NodeRef::Id(_)) | Err(_) => false,
        Ok(node) => world
            .resolve(&node)
            .is_some_and(|found| found.as_str() == id),
    }
}

/// A value with ids as a scenario names them.
pub(super) fn named(world: &World, value: &Value) -> String {
    fn translate(world: &World, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let job_id = text.as_str().into();
                if world.ledger.job(&job_id).is_some() {
                    return Value::String(log::job(&job_id));
                }
                Value::String(world.purchases.name(&text.as_str().into()))
            }
            Value::Array(list) => list.iter().map(|item| translate(world, item)).collect(),
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.clone(), translate(world, value)))
                .collect(),
            other => other.clone(),
        }
    }
    shown(&translate(world, value))
}
