//! Whether what a scenario says can mean anything (SCEN-15): names that it has, numbers that a
//! machine can have, steps that can follow each other. What is looked at here needs no playing; the
//! start of the fleet is tried beside it, by building it.

mod contradictions;
mod expected;
mod holds;
mod lists;
mod refusals;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::bundle::Bundle;
use greenroom_types::inventory::{Capability, Disk, Gpu, RUNTIME_UNAVAILABLE, RuntimeKind};
use greenroom_types::{NodeId, SHARE_TOLERANCE, TemplateName, Wall};

use super::fleet::{JobStands, MigrationTimes, NodeSpec, WorldSpec, simulated};
use super::known::Known;
use super::names::JobPath;
use super::span::Span;
use super::{Fault, Scenario, SettingsCase, Step};
use lists::twice;

/// Characters of a name.
const NAME: usize = 200;

/// A number that no machine has.
const MOST: f64 = 1_000_000.0;

/// Virtual time that a scenario may last, 366 days.
const TIME_MAX: Span = Span(366 * 24 * 3_600_000);

/// Faults in the order in which they are found, with the place of each.
pub(super) struct Found<'a> {
    pub(super) faults: &'a mut Vec<Fault>,
}

// === impl Found ===

impl Found<'_> {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    /// Takes down what is wrong with a name, if anything.
    fn look(&mut self, path: impl Into<String>, is_known: Result<(), String>) {
        if let Err(message) = is_known {
            self.add(path, message);
        }
    }
}

/// The one line of a report begins with the name.
pub(super) fn of_name(name: &str, faults: &mut Vec<Fault>) {
    faults.extend(fault_of_name(name).map(|message| Fault::new("name", message)));
}

/// What is wrong with the name of a scenario, if anything.
pub fn fault_of_name(name: &str) -> Option<String> {
    if name.chars().any(char::is_control) {
        return Some("a name is one line of text without control characters".to_owned());
    }
    let length = name.chars().count();
    (length > NAME).then(|| format!("the name has {length} characters; at most {NAME} are read"))
}

/// Requirement ids that a file checks.
pub(super) fn of_spec(spec: &[String], faults: &mut Vec<Fault>) {
    twice(spec, "spec", &mut Found { faults });
}

/// Numbers of the world.
pub(super) fn of_world(world: &WorldSpec, faults: &mut Vec<Fault>) {
    let found = &mut Found { faults };
    let MigrationTimes {
        state,
        ready,
        stop_output,
        apply,
    } = world.migration;
    for (key, span) in [
        ("bootTime", world.boot_time),
        ("startTime", world.start_time),
        ("stopTime", world.stop_time),
        ("prepareTime", world.prepare_time),
        ("startPreparedTime", world.start_prepared_time),
        ("terminateTime", world.terminate_time),
        ("pullTime", world.pull_time),
        ("migration.state", state),
        ("migration.ready", ready),
        ("migration.stopOutput", stop_output),
        ("migration.apply", apply),
    ] {
        ends(found, &format!("world.{key}"), span);
    }
    let waits = serde_json::to_value(&world.manager.keeper).unwrap_or_default();
    let waits = waits.as_object().into_iter().flatten();
    let waits = waits.filter_map(|(key, wait)| Some((key.as_str(), wait.as_u64()?)));
    for (key, wait) in waits.chain([("silenceMs", world.manager.silence.0)]) {
        ends(found, &format!("world.manager.{key}"), Span(wait));
    }
    for (name, shape) in &world.instance_types {
        let path = format!("world.instanceTypes.{name}");
        if shape.is_nothing() {
            found.add(&path, "say what it has: vcpus, cores, capabilities or gpus");
        }
        amount(found, &path, "vcpus", shape.vcpus);
        amount(found, &path, "cores", shape.cores.into());
        machine(found, &path, &shape.gpus, &shape.capabilities);
    }
    for (tier, zones) in &world.azs {
        if zones.is_empty() {
            found.add(format!("world.azs.{tier}"), "name at least one zone");
        }
    }
}

/// Names of images, each once.
fn images(list: &[String], path: &str, found: &mut Found<'_>) {
    // A name of an image has neither spaces nor what steers a terminal.
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
    for (at, reference) in list.iter().enumerate() {
        if reference.is_empty() || reference.chars().any(is_odd) {
            let message = format!("{reference:?} is no name of an image");
            found.add(format!("{path}[{at}]"), message);
        }
    }
    twice(list, path, found);
}

/// Names of templates, each once.
fn templates(list: &[TemplateName], path: &str, found: &mut Found<'_>) {
    for (at, template) in list.iter().enumerate() {
        if template.as_str().parse::<TemplateName>().is_err() {
            let message = format!("{:?} is no name of a template", template.as_str());
            found.add(format!("{path}[{at}]"), message);
        }
    }
    twice(list, path, found);
}

/// Numbers of one node.
pub(super) fn of_node(node: &NodeSpec, path: &str, faults: &mut Vec<Fault>) {
    let found = &mut Found { faults };
    if node.id.as_str().parse::<NodeId>().is_err() {
        let message = format!("{:?} is no id of a node", node.id.as_str());
        found.add(format!("{path}.id"), message);
    }
    amount(found, path, "capacity", node.capacity);
    amount(found, path, "cores", node.cores.into());
    runtime(found, path, &node.runtime);
    machine(found, path, &node.gpus, &node.capabilities);
    disks(found, path, &node.disks);
    twice(&node.jobs, &format!("{path}.jobs"), found);
    images(&node.held_images, &format!("{path}.heldImages"), found);
    let spare = &node.spare;
    templates(&spare.warm_for, &format!("{path}.spare.warmFor"), found);
    templates(
        &spare.reserved_for,
        &format!("{path}.spare.reservedFor"),
        found,
    );
    if spare.exclusive && spare.reserved_for.is_empty() {
        let message = "it refuses all that it is not reserved for: say what in reservedFor";
        found.add(format!("{path}.spare.exclusive"), message);
    }
    let mut said = spare.tags();
    said.extend(node.pool.iter().map(|_| ("pool".to_owned(), String::new())));
    said.extend(node.tier.iter().map(|_| ("tier".to_owned(), String::new())));
    for key in node.tags.keys().filter(|key| said.contains_key(*key)) {
        let message = format!("the node says its {key} twice, here and in a key of its own");
        found.add(format!("{path}.tags.{key}"), message);
    }
}

/// What the Manager refuses of a bundle whatever its state.
pub(super) fn of_bundle(bundle: &Bundle, path: &str, faults: &mut Vec<Fault>) {
    let mut bundle = bundle.clone();
    crate::world::with_services(&mut bundle);
    let all = greenroom_ledger::bundle_faults(&bundle);
    faults.extend(all.into_iter().map(|fault| {
        let below = match fault.path.as_str() {
            "" => String::new(),
            below => format!(".{below}"),
        };
        Fault::new(format!("{path}{below}"), fault.message)
    }));
}

/// What one step says, without what stands around it.
pub(super) fn of_step(step: &Step, path: &str, faults: &mut Vec<Fault>) {
    steps::alone(step, path, &mut Found { faults });
}

/// What the parts of a scenario say of each other, all of them being readable.
pub(super) fn faults(scenario: &Scenario) -> Vec<Fault> {
    let SettingsCase::Valid(settings) = &scenario.settings else {
        // Nothing of it is played.
        return Vec::new();
    };
    let known = Known::of(scenario, settings);
    let mut faults = Vec::new();
    let found = &mut Found {
        faults: &mut faults,
    };
    for tier in scenario.world.azs.keys() {
        found.look(format!("world.azs.{tier}"), known.elastic_tier(tier));
    }
    for (at, message) in known.look_at_unconfigured(&scenario.world.unconfigured_pools) {
        found.add(format!("world.unconfiguredPools[{at}]"), message);
    }
    for name in scenario.world.instance_types.keys() {
        let path = format!("world.instanceTypes.{name}");
        found.look(path, known.instance_type(name));
    }
    fleet(scenario, &known, found);
    steps::in_order(scenario, &known, found);
    faults
}

/// Nodes and bundles at the beginning.
fn fleet(scenario: &Scenario, known: &Known<'_>, found: &mut Found<'_>) {
    let mut bundles: BTreeMap<_, &Bundle> = BTreeMap::new();
    for (index, bundle) in scenario.bundles.iter().enumerate() {
        let id = &bundle.bundle_id;
        if bundles.insert(id, bundle).is_some() {
            let message = format!("bundle {id:?} stands twice");
            found.add(format!("bundles[{index}].bundleId"), message);
        }
        homes(bundle, &format!("bundles[{index}]"), known, found);
    }
    let mut nodes = BTreeSet::new();
    let mut placed: BTreeMap<&JobPath, &NodeSpec> = BTreeMap::new();
    for (index, node) in scenario.nodes.iter().enumerate() {
        let path = format!("nodes[{index}]");
        if !nodes.insert(&node.id) {
            let message = format!("node {:?} stands twice", node.id);
            found.add(format!("{path}.id"), message);
        }
        home(
            node,
            &path,
            scenario.world.start,
            &scenario.world,
            known,
            found,
        );
        for (at, job) in node.jobs.iter().enumerate() {
            let path = format!("{path}.jobs[{at}]");
            let Some(bundle) = bundles.get(&job.bundle_id) else {
                let message = format!("no bundle {:?} stands under bundles", job.bundle_id);
                found.add(path, message);
                continue;
            };
            found.look(&path, super::known::job_in(job, std::iter::once(*bundle)));
            if let Some(other) = placed.insert(job, node).filter(|it| it.id != node.id) {
                let id = other.id.as_str();
                found.add(path, format!("{job} runs on node {id:?} already"));
            }
        }
        room(node, &path, &bundles, found);
    }
    for (job, stands) in &scenario.jobs {
        let path = format!("jobs.{job}");
        match bundles.get(&job.bundle_id) {
            Some(bundle) => {
                found.look(&path, super::known::job_in(job, std::iter::once(*bundle)));
            }
            None => {
                let message = format!("no bundle {:?} stands under bundles", job.bundle_id);
                found.add(&path, message);
            }
        }
        if *stands == JobStands::default() {
            found.add(&path, "it says nothing: write dormant, verdict or gpu");
        }
        let runs_on = placed.get(job);
        if let (Some(node), true) = (runs_on, stands.verdict.is_some()) {
            let id = node.id.as_str();
            found.add(
                &path,
                format!("{job} has its verdict and runs on node {id:?}"),
            );
        }
        if let Some(index) = stands.gpu {
            let message = match runs_on {
                None => format!("{job} runs on no node, so it has no device"),
                Some(node) if node.gpus.iter().all(|gpu| gpu.index != index) => {
                    format!("node {:?} has no device {index}", node.id.as_str())
                }
                Some(_) => continue,
            };
            found.add(format!("{path}.gpu"), message);
        }
    }
}

/// Where a bundle is to be placed.
fn homes(bundle: &Bundle, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    for (key, message) in known.homes(bundle) {
        found.add(format!("{path}.{key}"), message);
    }
}

/// Where a node is, and since when.
fn home(
    node: &NodeSpec,
    path: &str,
    now: Wall,
    world: &WorldSpec,
    known: &Known<'_>,
    found: &mut Found<'_>,
) {
    if let Some(pool) = &node.pool {
        found.look(format!("{path}.pool"), known.home(pool));
    }
    found.look(format!("{path}.tier"), known.tier_of_node(node));
    if let Some(pool) = node.tags.get("pool") {
        found.look(
            format!("{path}.tags.pool"),
            known.home(&pool.as_str().into()),
        );
    }
    if let Some(tier) = node.tags.get("tier") {
        let tier = tier.as_str().into();
        found.look(
            format!("{path}.tags.tier"),
            known.tier_in(&tier, node.pool.as_ref()),
        );
    }
    if node
        .created_at
        .is_some_and(|at| at.resolve(world.start) > now)
    {
        found.add(
            format!("{path}.createdAt"),
            "it is there before it was made",
        );
    }
}

/// Whether what runs on a node fits there, as its worker would judge (WORK-30).
fn room(
    node: &NodeSpec,
    path: &str,
    bundles: &BTreeMap<&greenroom_types::BundleId, &Bundle>,
    found: &mut Found<'_>,
) {
    let needs = node.jobs.iter().filter_map(|path| {
        let bundle = bundles.get(&path.bundle_id)?;
        let job = bundle
            .jobs
            .iter()
            .find(|job| job.job_name == path.job_name)?;
        Some(&job.requirements)
    });
    if node.jobs.is_empty() {
        return;
    }
    let (mut capacity, mut cores) = (0.0, 0_u64);
    for need in needs {
        capacity += need.required_capacity;
        cores += u64::from(need.required_cores);
    }
    if capacity > node.capacity + SHARE_TOLERANCE {
        let message = format!(
            "what runs there needs a capacity of {capacity}; the node has {}",
            node.capacity
        );
        found.add(format!("{path}.jobs"), message);
    }
    if cores > u64::from(node.cores) {
        let message = format!(
            "what runs there pins {cores} cores; the node has {}",
            node.cores
        );
        found.add(format!("{path}.jobs"), message);
    }
}

/// What runs services, as an inventory names it.
fn runtime(found: &mut Found<'_>, path: &str, name: &str) {
    let is_known =
        RuntimeKind::of(name).is_some() || name == RUNTIME_UNAVAILABLE || name == simulated();
    if !is_known || name.chars().any(char::is_control) {
        let message = format!(
            "{name:?} runs nothing: write docker and its version, process or {RUNTIME_UNAVAILABLE}"
        );
        found.add(format!("{path}.runtime"), message);
    }
}

/// A number from 0 on that some machine could have.
fn amount(found: &mut Found<'_>, path: &str, key: &str, value: f64) {
    if !value.is_finite() || value < 0.0 {
        found.add(
            format!("{path}.{key}"),
            format!(
                "{} is no {key}: write 0 or more",
                greenroom_types::tree::number(value)
            ),
        );
    } else if value > MOST {
        found.add(
            format!("{path}.{key}"),
            format!(
                "{} is more than any machine has",
                greenroom_types::tree::number(value)
            ),
        );
    }
}

/// A time that can come to its end.
fn ends(found: &mut Found<'_>, path: &str, span: Span) {
    if span > TIME_MAX {
        let message =
            format!("{span} is longer than a scenario lasts, which is at most {TIME_MAX}");
        found.add(path, message);
    }
}

fn machine(found: &mut Found<'_>, path: &str, gpus: &[Gpu], capabilities: &[Capability]) {
    let mut seen = BTreeSet::new();
    for (at, gpu) in gpus.iter().enumerate() {
        let path = format!("{path}.gpus[{at}]");
        amount(found, &path, "capacity", gpu.capacity);
        if !seen.insert(gpu.index) {
            let message = format!("device {} stands twice", gpu.index);
            found.add(format!("{path}.index"), message);
        }
    }
    for (at, capability) in capabilities.iter().enumerate() {
        if capability.name.is_empty() {
            found.add(format!("{path}.capabilities[{at}].name"), "it is empty");
        }
    }
}

fn disks(found: &mut Found<'_>, path: &str, disks: &[Disk]) {
    let paths: Vec<&str> = disks.iter().map(|disk| disk.path.as_str()).collect();
    twice(&paths, &format!("{path}.disks"), found);
    for (at, disk) in disks.iter().enumerate() {
        if disk.path.is_empty() {
            found.add(format!("{path}.disks[{at}].path"), "it is empty");
        }
        if disk.free > disk.total {
            let message = format!("{} bytes free of {}", disk.free, disk.total);
            found.add(format!("{path}.disks[{at}].free"), message);
        }
    }
}
