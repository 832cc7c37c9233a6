//! What a real fleet says and nobody would write: a scenario that says it is refused (SCEN-15), for there
//! it is a slip. In a recording it is put as a file says it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Recording;

/// Keys of a step with a list in which an entry says nothing when it stands there again.
const LISTS: [(&str, &[&str]); 3] = [
    ("nodeJoins", &["heldImages"]),
    ("inventory", &["heldImages"]),
    ("updateHotSpareNode", &["warmFor", "reservedFor"]),
];

/// Leaves out what says nothing.
pub(super) fn as_a_file_says_it(recording: &mut Recording) {
    for node in &mut recording.nodes {
        of_node(node);
    }
    for step in &mut recording.steps {
        for (key, action) in step.as_object_mut().into_iter().flatten() {
            if let Value::Object(keys) = action
                && !matches!(key.as_str(), "createBundle" | "updateBundle" | "expect")
            {
                keys.retain(|_, value| !value.is_null());
            }
        }
        if let Some(node) = step.get_mut("nodeJoins") {
            of_node(node);
        }
        for (key, lists) in LISTS {
            for list in lists {
                once(step.get_mut(key).and_then(|it| it.get_mut(list)));
            }
        }
        let images = step.get_mut("setTemplateImages");
        let images = images.and_then(Value::as_object_mut).into_iter().flatten();
        images.for_each(|(_, list)| once(Some(list)));
        if step["drain"]["strategy"]
            .as_object()
            .is_some_and(serde_json::Map::is_empty)
        {
            leave_out(step.get_mut("drain"), "strategy");
        }
        if step["expect"]["migration"]["abortReason"] == "" {
            let migration = step
                .get_mut("expect")
                .and_then(|it| it.get_mut("migration"));
            leave_out(migration, "abortReason");
        }
    }
}

/// Pools of nodes and bundles that the settings do not have.
pub(super) fn unconfigured_pools(recording: &Recording) -> BTreeSet<String> {
    let bundle = |bundle: &Value| {
        [
            bundle["pool"].clone(),
            bundle["resiliencePolicy"]["pool"].clone(),
        ]
    };
    let nodes = recording.nodes.iter().map(|node| node["pool"].clone());
    let bundles = recording.bundles.iter().flat_map(bundle);
    let steps = recording.steps.iter().flat_map(|step| {
        let [create, update] = ["createBundle", "updateBundle"].map(|key| bundle(&step[key]));
        let node = [
            step["nodeJoins"]["pool"].clone(),
            step["setTags"]["tags"]["pool"].clone(),
        ];
        create.into_iter().chain(update).chain(node)
    });
    let all = nodes.chain(bundles).chain(steps);
    let mut pools: BTreeSet<String> = all
        .filter_map(|pool| pool.as_str().filter(|it| !it.is_empty()).map(str::to_owned))
        .collect();
    let configured = recording.settings["placementPools"].as_array();
    for pool in configured.into_iter().flatten() {
        pools.remove(pool["name"].as_str().unwrap_or_default());
    }
    pools
}

/// A server that was registered for no pool says so with an empty name.
fn of_node(node: &mut Value) {
    if let Value::Object(keys) = node {
        keys.retain(|key, value| !value.is_null() && (key != "pool" || value != ""));
    }
    once(node.get_mut("heldImages"));
}

fn once(list: Option<&mut Value>) {
    if let Some(Value::Array(list)) = list {
        let mut seen: Vec<Value> = Vec::new();
        list.retain(|entry| {
            let is_new = !seen.contains(entry);
            seen.push(entry.clone());
            is_new
        });
    }
}

fn leave_out(value: Option<&mut Value>, key: &str) {
    if let Some(Value::Object(keys)) = value {
        keys.remove(key);
    }
}
