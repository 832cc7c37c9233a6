//! Calls on the Manager and callbacks, since the last step that looked at them.

use serde_json::Value;

use super::Findings;
use super::value::{named, subset};
use crate::format::expect::{Happened, Happening};
use crate::view;
use crate::world::World;

/// Items shown of those that have the name but do not match.
const SHOWN: usize = 6;

pub(super) fn calls(world: &mut World, wanted: &Happened, path: &str, findings: &mut Findings) {
    let calls = std::mem::take(&mut world.calls);
    let seen: Vec<(String, Value)> = calls.iter().map(view::of_call).collect();
    check(world, wanted, &seen, path, findings);
}

pub(super) fn callbacks(world: &mut World, wanted: &Happened, path: &str, findings: &mut Findings) {
    let callbacks = std::mem::take(&mut world.callbacks);
    let names: Vec<&str> = wanted.list.iter().map(|item| item.name.as_str()).collect();
    let seen: Vec<(String, Value)> = callbacks
        .iter()
        .map(view::of_callback)
        .filter(|(name, _)| names.contains(&name.as_str()))
        .collect();
    check(world, wanted, &seen, path, findings);
}

fn check(
    world: &World,
    wanted: &Happened,
    seen: &[(String, Value)],
    path: &str,
    findings: &mut Findings,
) {
    if wanted.in_order {
        in_order(world, wanted, seen, path, findings);
        return;
    }
    let list = if wanted.below_list { ".list" } else { "" };
    for (index, item) in wanted.list.iter().enumerate() {
        let count = seen
            .iter()
            .filter(|seen| matches(world, item, seen))
            .count();
        if count != item.times {
            let expected = format!("{} times {}", item.times, show(item));
            let found = format!("{count} times; {}", others(world, item, seen));
            let path = format!("{path}{list}[{index}].{}", item.name);
            findings.add(&path, expected, found);
        }
    }
}

/// Every item as often as it says, one after the other; others may stand between.
fn in_order(
    world: &World,
    wanted: &Happened,
    seen: &[(String, Value)],
    path: &str,
    findings: &mut Findings,
) {
    let mut at = 0;
    for (index, item) in wanted.list.iter().enumerate() {
        for _ in 0..item.times {
            let found = seen[at..]
                .iter()
                .position(|seen| matches(world, item, seen));
            let Some(found) = found else {
                let before = match index.checked_sub(1) {
                    None => "at all".to_owned(),
                    Some(before) => format!("after {}", show(&wanted.list[before])),
                };
                let path = format!("{path}.list[{index}].{}", item.name);
                let found = format!("none {before}; {}", others(world, item, seen));
                findings.add(&path, show(item), found);
                return;
            };
            at += found + 1;
        }
    }
}

fn matches(world: &World, item: &Happening, seen: &(String, Value)) -> bool {
    // Without fields any of that name will do.
    seen.0 == item.name
        && (item.fields.is_empty()
            || subset(world, &Value::Object(item.fields.clone()), &seen.1).is_ok())
}

fn show(item: &Happening) -> String {
    format!("{} {}", item.name, Value::Object(item.fields.clone()))
}

/// What there was of that name, cut down to the fields that were asked for.
fn others(world: &World, item: &Happening, seen: &[(String, Value)]) -> String {
    let same: Vec<&Value> = seen
        .iter()
        .filter(|(name, _)| *name == item.name)
        .map(|(_, fields)| fields)
        .collect();
    if same.is_empty() {
        let mut names: Vec<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        return match names.len() {
            0 => "nothing of the kind".to_owned(),
            _ => format!("no {}, but {}", item.name, names.join(", ")),
        };
    }
    let mut shown: Vec<String> = same
        .iter()
        .take(SHOWN)
        .map(|fields| named(world, &asked_for(item, fields)))
        .collect();
    if same.len() > SHOWN {
        shown.push(format!("and {} more", same.len() - SHOWN));
    }
    format!("{} had {}", item.name, shown.join(", "))
}

fn asked_for(item: &Happening, fields: &Value) -> Value {
    let Value::Object(fields) = fields else {
        return fields.clone();
    };
    let wanted = |key: &String| match item.fields.is_empty() {
        true => matches!(
            key.as_str(),
            "jobId" | "nodeId" | "bundleId" | "reason" | "code"
        ),
        false => item.fields.contains_key(key),
    };
    fields
        .iter()
        .filter(|(key, _)| wanted(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
