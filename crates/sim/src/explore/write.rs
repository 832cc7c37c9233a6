//! A scenario as a file that people read: the large parts in blocks, each node, bundle and step on a
//! line of its own.

use std::fmt::Write as _;

use serde_json::Value;

use super::fleet::Head;
use crate::format::span;

/// The file.
pub(crate) fn scenario(name: &str, description: &str, head: &Head, steps: &[Value]) -> String {
    let mut text = format!("scenario: 1\nname: {}\n", quoted(name));
    let _ = writeln!(text, "description: {}", quoted(description));
    text.push_str("\nsettings:\n");
    if let Value::Object(settings) = &head.settings {
        for (key, value) in settings {
            match value {
                Value::Array(list) if list.len() + flow(value).len() > 80 => {
                    let _ = writeln!(text, "  {key}:");
                    items(&mut text, "    ", list);
                }
                other => {
                    let _ = writeln!(text, "  {key}: {}", flow(other));
                }
            }
        }
    }
    let _ = writeln!(text, "\nworld: {}", flow(&head.world));
    for (key, list) in [("nodes", &head.nodes), ("bundles", &head.bundles)] {
        if !list.is_empty() {
            let _ = writeln!(text, "\n{key}:");
            items(&mut text, "  ", list);
        }
    }
    if !head.jobs.is_empty() {
        text.push_str("\njobs:\n");
        for (job, stands) in &head.jobs {
            let _ = writeln!(text, "  {}: {}", word(job), flow(stands));
        }
    }
    text.push_str("\nsteps:\n");
    if steps.is_empty() {
        // Nothing happened, so that is what it shows.
        text.push_str("  - {expect: {invariants: ok}}\n");
    }
    items(&mut text, "  ", steps);
    text
}

/// Without what a course may contain and a file may not: the release of what no step before holds, the
/// mending of a line that no step before cuts, and no stock where nothing is bought.
pub(crate) fn that_mean_something(mut steps: Vec<Value>, settings: &Value) -> Vec<Value> {
    let pools = settings["placementPools"].as_array().into_iter().flatten();
    let tiers = pools.flat_map(|pool| pool["tiers"].as_array().into_iter().flatten());
    let bought: Vec<&Value> = tiers
        .filter(|tier| tier["scaleOut"] == "elastic")
        .map(|tier| &tier["name"])
        .collect();
    let mut held: Vec<Value> = Vec::new();
    let mut cut: Vec<Value> = Vec::new();
    steps.retain_mut(|step| {
        held.extend(step["hold"].as_array().into_iter().flatten().cloned());
        cut.extend(step.get("partition").cloned());
        if let Some(node) = step.get("heal") {
            let was_cut = cut.contains(node);
            cut.retain(|it| it != node);
            return was_cut;
        }
        if let Some(tier) = step["createFails"].get("tier") {
            return bought.contains(&tier);
        }
        let Some(Value::Array(kinds)) = step.get_mut("release") else {
            return true;
        };
        kinds.retain(|kind| held.contains(kind));
        held.retain(|kind| !kinds.contains(kind));
        !kinds.is_empty()
    });
    steps
}

fn items(text: &mut String, indent: &str, list: &[Value]) {
    for item in list {
        let _ = writeln!(text, "{indent}- {}", flow(item));
    }
}

/// A value on one line. The time of a step and the name of a thing come first.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort_by_key(|key| {
                let first = matches!(key.as_str(), "at" | "id" | "bundleId" | "jobName" | "name");
                (!first, *key == "jobs")
            });
            let fields: Vec<String> = keys
                .into_iter()
                .map(|key| format!("{}: {}", word(key), flow(&fields[key])))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(flow).collect();
            format!("[{}]", list.join(", "))
        }
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// A text without quotes where it is a text without them.
fn word(text: &str) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && !matches!(text, "true" | "false" | "null" | "nan" | "inf");
    if plain || span::span(text).is_some() {
        text.to_owned()
    } else {
        quoted(text)
    }
}

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::explore::fleet;
    use crate::format::Scenario;

    #[test]
    fn what_is_written_is_read_as_it_was() {
        for seed in 0..20 {
            let head = fleet::draw(seed);
            let steps = vec![
                json!({"at": "1h1ms", "cordon": "@tier/live/cloud/1", "refused": "unknownNode"}),
                json!({"at": "2h", "clock": {"wallJump": "-5m"}}),
                json!({"setTags": {"node": "n1", "tags": {"spare": "true", "rack": "7", "x": null}}}),
            ];
            let text = scenario("one: two", "three # four", &head, &steps);
            let options = serde_saphyr::options! { strict_booleans: true };
            let tree: Value = serde_saphyr::from_str_with_options(&text, options).unwrap();
            assert_eq!(tree["steps"], json!(steps), "{text}");
            assert_eq!(tree["settings"], head.settings, "{text}");
            assert_eq!(tree["name"], "one: two");
            let read = Scenario::of_tree(&tree).unwrap();
            assert_eq!(read.nodes.len(), head.nodes.len());
            assert_eq!(read.bundles.len(), head.bundles.len());
        }
    }
}
