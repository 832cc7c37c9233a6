//! Fleet and bundles in the words of a scenario.

use std::collections::BTreeMap;

use greenroom_placement::Needs;
use greenroom_policy::Policy;
use greenroom_types::bundle::{Bundle, BundleJob, BundleState, Launch};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobWithHistory;
use greenroom_types::{BundleId, JobId, JobName, NodeId, Tags};
use serde_json::{Map, Value, json};

pub(super) fn path(bundle_id: &BundleId, replica: u32, job: &str) -> String {
    format!("{bundle_id}/{replica}/{job}")
}

pub(super) fn path_of(job_id: &JobId, policy: &Policy) -> Option<String> {
    let job = policy.job_by_id(job_id)?;
    let (bundle_id, replica, name) = job.job.bundle_place()?;
    let bundle = &policy.bundle_by_id(&bundle_id)?.bundle;
    (bundle.state == BundleState::Live).then(|| path(&bundle_id, replica, name.as_str()))
}

pub(super) fn entries(job: &JobWithHistory) -> usize {
    let dropped = usize::try_from(job.dropped_entries).unwrap_or(usize::MAX);
    job.history.len().saturating_add(dropped)
}

/// How often what each job runs was changed, so that it began anew. A scenario does not say what a job
/// runs, but that it is another thing.
pub(super) type Versions = BTreeMap<(BundleId, JobName), u64>;

/// A bundle without what it runs: to a placement of that only the template matters, and whether it is
/// containers or processes.
pub(super) fn manifest(bundle: &Bundle, versions: &Versions) -> Value {
    let mut bundle = bundle.clone();
    bundle.state = BundleState::Live;
    bundle.revision = 0;
    let mut launches = Vec::new();
    for job in &mut bundle.jobs {
        let version = versions.get(&(bundle.bundle_id.clone(), job.job_name.clone()));
        launches.push(launch(job, version.copied().unwrap_or_default()));
        job.launch = Launch::default();
        job.secret_env.clear();
    }
    bundle.backup_parameter_overrides.clear();
    let mut tree = json!(bundle);
    let jobs = tree["jobs"].as_array_mut().into_iter().flatten();
    for (job, launch) in jobs.zip(launches) {
        if let Value::Object(keys) = job {
            keys.insert("launch".to_owned(), launch);
        }
    }
    if let Value::Object(keys) = &mut tree {
        keys.remove("state");
        keys.remove("revision");
    }
    tree
}

/// What stands for what a job runs.
fn launch(job: &BundleJob, version: u64) -> Value {
    let needs = Needs::of_job(job);
    let mut services = Vec::new();
    if needs.containers {
        services.push(json!({"name": "recorded", "container": {"docker": "recorded"}}));
    }
    if needs.processes {
        services.push(json!({"name": "recorded-process", "command": "recorded"}));
    }
    let mut launch = json!({"services": services});
    if let Some(template) = &job.launch.template {
        launch["template"] = template.as_str().into();
    }
    if version > 0 {
        is_version(&mut launch, version);
    }
    launch
}

/// What a job runs is another thing than it was.
pub(super) fn is_version(launch: &mut Value, version: u64) {
    let services = launch["services"].as_array_mut();
    for service in services.into_iter().flatten() {
        service["configuration"] = format!("recorded {version}").into();
    }
}

pub(super) fn of_node(node_id: &NodeId, tags: &Tags, inventory: &NodeInventory) -> Value {
    let mut node = of_inventory(inventory);
    node.insert("id".to_owned(), node_id.as_str().into());
    if let Some(pool) = tags.get("pool") {
        node.insert("pool".to_owned(), pool.as_str().into());
    }
    if let Some(tier) = tags.get("tier") {
        node.insert("tier".to_owned(), tier.as_str().into());
    }
    // Where a machine was made, its provider says, and not its worker.
    if let Some(az) = tags.get("az").filter(|_| inventory.az.is_empty()) {
        node.insert("az".to_owned(), az.as_str().into());
    }
    let others: BTreeMap<&String, &String> = tags
        .iter()
        .filter(|(key, _)| !["pool", "tier"].contains(&key.as_str()) && !is_managers_own(key))
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
    // What running jobs provide counts as well.
    let capabilities = [&inventory.capabilities[..], &inventory.provided].concat();
    if !capabilities.is_empty() {
        node.insert("capabilities".to_owned(), json!(capabilities));
    }
    if !inventory.gpus.is_empty() {
        let mut gpus = inventory.gpus.clone();
        for gpu in &mut gpus {
            // What takes it follows from what runs there.
            gpu.reserved_capacity = 0.0;
        }
        node.insert("gpus".to_owned(), json!(gpus));
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
    if inventory.is_runtime_down() || inventory.runtime_kind().is_some() {
        node.insert("runtime".to_owned(), inventory.runtime.as_str().into());
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

/// Tags that the Manager alone sets (TAG-07): they follow from what else is recorded.
pub(super) fn is_managers_own(key: &str) -> bool {
    matches!(
        key,
        "interruption" | "az" | "workerLimits" | "wantedDaemonVersion"
    ) || key.starts_with("provides.")
}
