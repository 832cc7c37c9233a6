//! Fleet and bundles in the words of a scenario.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_policy::Policy;
use greenroom_types::bundle::{Bundle, BundleState, BundleStatus, Launch};
use greenroom_types::inventory::{NodeInventory, RUNTIME_UNAVAILABLE};
use greenroom_types::job::JobWithHistory;
use greenroom_types::{BundleId, JobId, NodeId, Tags};
use serde_json::{Map, Value, json};

pub(super) fn path(bundle_id: &BundleId, replica: u32, job: &str) -> String {
    format!("{bundle_id}/{replica}/{job}")
}

pub(super) fn path_of(job_id: &JobId, policy: &Policy) -> Option<String> {
    let record = policy.placement_for_job(job_id)?;
    let bundle = &policy.bundle_by_id(&record.bundle_id)?.bundle;
    let place = || {
        let (bundle_id, replica) = (&record.bundle_id, record.replica_index);
        path(bundle_id, replica, record.job_name.as_str())
    };
    (bundle.state == BundleState::Live).then(place)
}

pub(super) fn entries(job: &JobWithHistory) -> usize {
    let dropped = usize::try_from(job.dropped_entries).unwrap_or(usize::MAX);
    job.history.len().saturating_add(dropped)
}

/// A bundle without what it runs: of that only the template matters to a placement.
pub(super) fn manifest(bundle: &Bundle) -> Value {
    let mut bundle = bundle.clone();
    bundle.state = BundleState::Live;
    bundle.revision = 0;
    for job in &mut bundle.jobs {
        let template = job.launch.template.take();
        job.launch = Launch {
            template,
            ..Default::default()
        };
        job.secret_env.clear();
    }
    bundle.backup_parameter_overrides.clear();
    let mut tree = json!(bundle);
    let jobs = tree["jobs"].as_array_mut().into_iter().flatten();
    for job in jobs {
        let template = job["launch"]["template"].take();
        match (job.as_object_mut(), template) {
            (Some(keys), Value::Null) => drop(keys.remove("launch")),
            (Some(keys), template) => {
                keys.insert("launch".to_owned(), json!({"template": template}));
            }
            (None, _) => {}
        }
    }
    if let Value::Object(keys) = &mut tree {
        keys.remove("state");
        keys.remove("revision");
    }
    tree
}

/// A bundle with its jobs as they stand: one that was stopped by hand waits to be started by hand.
pub(super) fn as_it_stands(status: &BundleStatus, dormant: &BTreeSet<JobId>) -> Value {
    let mut tree = manifest(&status.bundle);
    let jobs = tree["jobs"].as_array_mut().into_iter().flatten();
    for job in jobs {
        let name = job["jobName"].as_str().unwrap_or_default();
        let mut copies = status.jobs.iter().filter(|it| it.job_name.as_str() == name);
        if copies.any(|copy| dormant.contains(&copy.job_id)) {
            job["startMode"] = "manual".into();
        }
    }
    tree
}

pub(super) fn of_node(node_id: &NodeId, tags: &Tags, inventory: &NodeInventory) -> Value {
    let mut node = of_inventory(inventory);
    node.insert("id".to_owned(), node_id.as_str().into());
    if let Some(pool) = tags.get("pool") {
        node.insert("pool".to_owned(), pool.as_str().into());
    }
    let others: BTreeMap<&String, &String> = tags
        .iter()
        .filter(|(key, _)| !["pool", "tier"].contains(&key.as_str()))
        .collect();
    if !others.is_empty() {
        node.insert("tags".to_owned(), json!(others));
    }
    Value::Object(node)
}

/// What a scenario states of a node; what is as it would be anyhow is left out.
pub(super) fn of_inventory(inventory: &NodeInventory) -> Map<String, Value> {
    let mut node = Map::new();
    node.insert("capacity".to_owned(), inventory.total_capacity.into());
    node.insert("cores".to_owned(), inventory.total_cores.into());
    node.insert(
        "utilizationCap".to_owned(),
        inventory.utilization_cap.into(),
    );
    node.insert("cordoned".to_owned(), inventory.cordoned.into());
    if !inventory.az.is_empty() {
        node.insert("az".to_owned(), inventory.az.as_str().into());
    }
    if !inventory.capabilities.is_empty() {
        node.insert("capabilities".to_owned(), json!(inventory.capabilities));
    }
    if !inventory.gpus.is_empty() {
        node.insert("gpus".to_owned(), json!(inventory.gpus));
    }
    let images: Vec<&str> = inventory
        .held_images
        .iter()
        .map(|image| image.reference.as_str())
        .collect();
    if !images.is_empty() {
        node.insert("heldImages".to_owned(), json!(images));
    }
    // A disk fills with every log line: only whether it takes new work is told.
    if let Some(disk) = inventory.disks.first().filter(|_| inventory.disk_low) {
        let full = json!([{"path": disk.path, "total": disk.total, "free": 0}]);
        node.insert("disks".to_owned(), full);
    }
    if inventory.runtime == RUNTIME_UNAVAILABLE {
        node.insert("runtime".to_owned(), RUNTIME_UNAVAILABLE.into());
    }
    node
}

/// What a node says no more, as a scenario says that it is not so.
pub(super) fn no_more(key: &str) -> Option<Value> {
    match key {
        "disks" | "capabilities" | "gpus" => Some(json!([])),
        "runtime" => Some("simulated".into()),
        _ => None,
    }
}
