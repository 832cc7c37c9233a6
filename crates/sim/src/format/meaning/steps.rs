//! Steps: what each says, and whether it can follow those before it.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::bundle::Bundle;
use greenroom_types::node::RejectionCode;
use greenroom_types::{BundleId, NodeId, TemplateName, Wall};

use super::holds::{self, Held};
use super::lists::twice;
use super::{
    Found, MOST, TIME_MAX, amount, disks, ends, expected, home, homes, images, machine, of_bundle,
    of_node, refusals, runtime, templates,
};
use crate::format::action::{Action, When};
use crate::format::expect::{Expect, Happened};
use crate::format::fleet::{InventoryChange, NodeSpec};
use crate::format::known::Known;
use crate::format::names::{JobPath, NodeRef};
use crate::format::span::Span;
use crate::format::{Deed, Scenario, Step};
use crate::served::leaf;

/// What a step says by itself.
pub(super) fn alone(step: &Step, path: &str, found: &mut Found<'_>) {
    if step.at > TIME_MAX.0 {
        let message = format!(
            "{} is too late: a scenario lasts at most {TIME_MAX}",
            Span(step.at)
        );
        found.add(format!("{path}.at"), message);
    }
    let Deed::Act(action) = &step.deed else {
        return;
    };
    holds::alone(step, path, found);
    match action {
        // A faulty bundle may be the point of the step.
        Action::CreateBundle(bundle) if step.refused.is_none() => {
            of_bundle(bundle, &format!("{path}.createBundle"), found.faults);
        }
        Action::UpdateBundle(bundle) if step.refused.is_none() => {
            of_bundle(bundle, &format!("{path}.updateBundle"), found.faults);
        }
        Action::NodeJoins(node) => of_node(node, &format!("{path}.nodeJoins"), found.faults),
        Action::Inventory(change) => of_inventory(change, &format!("{path}.inventory"), found),
        Action::JobRejected {
            role,
            invalid_spec,
            code,
            ..
        } => {
            let path = format!("{path}.jobRejected");
            if let Some(role) = role {
                found.look(format!("{path}.role"), leaf::role(role.as_str()));
            }
            if *invalid_spec && code.is_some_and(|code| code != RejectionCode::InvalidSpec) {
                let message = "invalidSpec: true stands for the code INVALID_SPEC: leave one out";
                found.add(format!("{path}.code"), message);
            }
        }
        Action::Drain {
            timeout, strategy, ..
        } => {
            let path = format!("{path}.drain");
            if let Some(timeout) = timeout {
                ends(found, &format!("{path}.timeout"), *timeout);
            }
            if strategy.is_of_none() {
                let message = "write a strategy, or one for each of some jobs";
                found.add(format!("{path}.strategy"), message);
            }
        }
        Action::NodeReturns { jobs, .. } => {
            twice(jobs, &format!("{path}.nodeReturns.jobs"), found);
        }
        // What is asked may be wrong where it is refused.
        Action::UpdateHotSpareNode {
            warm_for,
            reserved_for,
            exclusive,
            ..
        } if step.refused.is_none() => {
            let path = format!("{path}.updateHotSpareNode");
            if warm_for.is_none() && reserved_for.is_none() && exclusive.is_none() {
                found.add(&path, "say what changes: warmFor, reservedFor or exclusive");
            }
            for (key, list) in [("warmFor", warm_for), ("reservedFor", reserved_for)] {
                let list = list.as_deref().unwrap_or_default();
                templates(list, &format!("{path}.{key}"), found);
            }
        }
        Action::SetTemplateImages(lists) => {
            if lists.is_empty() {
                let path = format!("{path}.setTemplateImages");
                found.add(path, "name at least one template");
            }
            for (template, references) in lists {
                let path = format!("{path}.setTemplateImages");
                if template.as_str().parse::<TemplateName>().is_err() {
                    found.add(
                        &path,
                        format!("{:?} is no name of a template", template.as_str()),
                    );
                }
                images(references, &format!("{path}.{template}"), found);
            }
        }
        Action::CreateFails { next, error, .. } => {
            let path = format!("{path}.createFails");
            times(*next, &path, found);
            if error.is_empty() {
                found.add(format!("{path}.error"), "write the provider's code");
            }
        }
        Action::StartFails { next, .. } => times(*next, &format!("{path}.startFails"), found),
        Action::SetTags { tags, .. } if tags.is_empty() => {
            found.add(format!("{path}.setTags.tags"), "name at least one tag");
        }
        Action::Clock { wall_jump } if wall_jump.0 == 0 => {
            found.add(
                format!("{path}.clock.wallJump"),
                "the clock stays where it is",
            );
        }
        _ => {}
    }
}

/// How often something fails from here on.
fn times(next: u32, path: &str, found: &mut Found<'_>) {
    let path = format!("{path}.next");
    if next == 0 {
        found.add(path, "write 1 or more");
    } else if f64::from(next) > MOST {
        found.add(path, format!("{next} is more than is ever tried"));
    }
}

fn of_inventory(change: &InventoryChange, path: &str, found: &mut Found<'_>) {
    let InventoryChange {
        node: _,
        az,
        capacity,
        cores,
        utilization_cap,
        capabilities,
        gpus,
        held_images,
        cordoned,
        disks: file_systems,
        runtime: name,
    } = change;
    let says_something = az.is_some()
        || capacity.is_some()
        || cores.is_some()
        || utilization_cap.is_some()
        || capabilities.is_some()
        || gpus.is_some()
        || held_images.is_some()
        || cordoned.is_some()
        || file_systems.is_some()
        || name.is_some();
    if !says_something {
        found.add(
            path,
            "say what is different: capacity, cores, cordoned, ...",
        );
    }
    for (key, value) in [("capacity", *capacity), ("cores", cores.map(f64::from))] {
        if let Some(value) = value {
            amount(found, path, key, value);
        }
    }
    let gpus = gpus.as_deref().unwrap_or_default();
    machine(
        found,
        path,
        gpus,
        capabilities.as_deref().unwrap_or_default(),
    );
    disks(found, path, file_systems.as_deref().unwrap_or_default());
    let held = held_images.as_deref().unwrap_or_default();
    images(held, &format!("{path}.heldImages"), found);
    if let Some(name) = name {
        runtime(found, path, name);
    }
}

/// What was before a step, as far as the file says it.
struct Before<'a> {
    held: Held<'a>,
    nodes: BTreeSet<&'a NodeId>,
    bundles: BTreeSet<&'a BundleId>,
    /// Those that a step deletes, for as long as none makes them anew.
    deleted: BTreeSet<&'a BundleId>,
    admitted: Option<&'a Bundle>,
    dry_run: bool,
    /// Nodes that were cut off.
    cut_off: BTreeSet<&'a NodeRef>,
    /// What runs where, as long as nothing can have changed that.
    running: Option<BTreeMap<&'a JobPath, &'a NodeId>>,
    /// The wall clock went with virtual time so far.
    clock_goes: bool,
}

/// What steps say of the rest of the scenario, in their order.
pub(super) fn in_order(scenario: &Scenario, known: &Known<'_>, found: &mut Found<'_>) {
    let mut before = Before {
        held: Held::default(),
        nodes: scenario.nodes.iter().map(|node| &node.id).collect(),
        bundles: scenario.bundles.iter().map(|it| &it.bundle_id).collect(),
        deleted: BTreeSet::new(),
        admitted: None,
        dry_run: false,
        cut_off: BTreeSet::new(),
        running: Some(BTreeMap::new()),
        clock_goes: true,
    };
    for node in &scenario.nodes {
        before.runs_on(node);
    }
    // The last steps that count calls and callbacks: to begin a count that nobody reads means nothing.
    let counts = |happened: fn(&Expect) -> &Option<Happened>| {
        scenario.steps.iter().rposition(|step| match &step.deed {
            Deed::Expect(expect) => happened(expect)
                .as_ref()
                .is_some_and(|it| !it.list.is_empty()),
            Deed::Act(_) => false,
        })
    };
    let (calls, callbacks) = (counts(|it| &it.calls), counts(|it| &it.callbacks));
    for (index, step) in scenario.steps.iter().enumerate() {
        let path = format!("steps[{index}]");
        if let Some(subject) = &step.only {
            found.look(format!("{path}.only"), known.subject(subject));
        }
        match &step.deed {
            Deed::Expect(expect) => {
                let answers = expected::Answers {
                    admitted: before.admitted,
                    dry_run: before.dry_run,
                };
                let path = format!("{path}.expect");
                for (key, happened, last) in [
                    ("calls", &expect.calls, calls),
                    ("callbacks", &expect.callbacks, callbacks),
                ] {
                    let is_read = last.is_some_and(|last| last > index);
                    if happened.as_ref().is_some_and(|it| it.list.is_empty()) && !is_read {
                        let message =
                            format!("it begins to count {key} anew, and no later step expects any");
                        found.add(format!("{path}.{key}"), message);
                    }
                }
                expected::faults(expect, &path, known, &answers, found);
            }
            // What is refused may be a name that is not there.
            Deed::Act(action) if step.refused.is_none() => {
                names(action, &path, known, found);
                if let Action::NodeJoins(node) = action {
                    let start = scenario.world.start;
                    let now = match before.clock_goes {
                        true => start.plus(i64::try_from(step.at).unwrap_or(i64::MAX)),
                        false => Wall(i64::MAX),
                    };
                    let path = format!("{path}.nodeJoins");
                    home(node, &path, now, &scenario.world, known, found);
                }
                before.takes(step, action, &path, found);
            }
            Deed::Act(action) => before.asks(action),
        }
        if let Some(code) = &step.refused {
            let is_migration = matches!(step.deed, Deed::Act(Action::Migrate { .. }));
            found.look(
                format!("{path}.refused"),
                refusals::known(code, is_migration),
            );
        }
    }
}

// === impl Before ===

impl<'a> Before<'a> {
    /// Takes down what a node runs from its beginning.
    fn runs_on(&mut self, node: &'a NodeSpec) {
        if let Some(running) = &mut self.running {
            running.extend(node.jobs.iter().map(|job| (job, &node.id)));
        }
    }

    /// An accepted action: whether it can be, after what was before.
    fn takes(&mut self, step: &'a Step, action: &'a Action, path: &str, found: &mut Found<'_>) {
        self.asks(action);
        let leaves_jobs_alone = matches!(
            action,
            Action::NodeJoins(_)
                | Action::Hold(_)
                | Action::Release(_)
                | Action::DryRun(_)
                | Action::Admit(_)
                | Action::SetTemplateImages(_)
        );
        if !leaves_jobs_alone {
            self.running = None;
        }
        match action {
            Action::Partition(node) => {
                self.cut_off.insert(node);
            }
            Action::Heal(node) => {
                // By another name it may be one of those that were.
                let by_name = |it: &NodeRef| !matches!(it, NodeRef::Id(_));
                let may_be = self.cut_off.contains(node)
                    || self.cut_off.iter().any(|it| by_name(it))
                    || by_name(node) && !self.cut_off.is_empty();
                let is_there = match node {
                    NodeRef::Id(id) => self.nodes.contains(id),
                    _ => true,
                };
                if is_there && !may_be {
                    found.add(
                        format!("{path}.heal"),
                        format!("no step before cuts {node} off"),
                    );
                }
                self.cut_off.remove(node);
            }
            Action::CreateBundle(bundle) => {
                let is_new = self.bundles.insert(&bundle.bundle_id);
                if !is_new {
                    let message = format!("bundle {:?} is there already", bundle.bundle_id);
                    found.add(format!("{path}.createBundle.bundleId"), message);
                }
            }
            Action::UpdateBundle(bundle)
                if !self.bundles.contains(&bundle.bundle_id)
                    && !self.deleted.contains(&bundle.bundle_id) =>
            {
                let message = format!("bundle {:?} is not there by then", bundle.bundle_id);
                found.add(format!("{path}.updateBundle.bundleId"), message);
            }
            // From here on it may be gone or not; the run says which.
            Action::DeleteBundle(bundle_id) if self.bundles.remove(bundle_id) => {
                self.deleted.insert(bundle_id);
            }
            Action::NodeJoins(node) => {
                let is_new = self.nodes.insert(&node.id);
                if !is_new {
                    let message = format!(
                        "node {:?} is there already; one that comes back is nodeReturns",
                        node.id
                    );
                    found.add(format!("{path}.nodeJoins.id"), message);
                }
                for (at, job) in node.jobs.iter().enumerate() {
                    let other = self.running.as_ref().and_then(|running| running.get(job));
                    if let Some(other) = other {
                        let message = format!("{job} runs on node {other:?} already");
                        found.add(format!("{path}.nodeJoins.jobs[{at}]"), message);
                    }
                }
                self.runs_on(node);
            }
            Action::Hold(kinds) => self.held.hold(kinds, step.only.as_ref()),
            Action::Release(kinds) => {
                self.held.release(kinds, step.only.as_ref(), path, found);
            }
            Action::Clock { .. } => self.clock_goes = false,
            _ => {}
        }
    }

    /// Questions are remembered with or without an answer.
    fn asks(&mut self, action: &'a Action) {
        match action {
            Action::Admit(bundle) => self.admitted = Some(bundle),
            Action::DryRun(_) => self.dry_run = true,
            _ => {}
        }
    }
}

/// Every name of an action.
fn names(action: &Action, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    let key = action.key();
    let here = format!("{path}.{key}");
    match action {
        Action::CreateBundle(bundle) | Action::UpdateBundle(bundle) => {
            homes(bundle, &here, known, found);
        }
        Action::Admit(_)
        | Action::SetTemplateImages(_)
        | Action::Close(_)
        | Action::Restart(_)
        | Action::Clock { .. }
        | Action::Disconnect(_)
        | Action::Connect(_)
        | Action::Hold(_)
        | Action::Release(_) => {}
        Action::DeleteBundle(bundle) => found.look(here, known.bundle(bundle)),
        Action::SetBundleStopTime { bundle, .. } => {
            found.look(format!("{here}.bundle"), known.bundle(bundle));
        }
        Action::StartBundleJob(job)
        | Action::StopBundleJob(job)
        | Action::JobCompletes(job)
        | Action::Duplicate(job) => found.look(here, known.job(job)),
        Action::JobPrepared(instance)
        | Action::JobRunning(instance)
        | Action::JobStopped(instance)
        | Action::StopJob(instance) => match &instance.node {
            None => found.look(here, known.job(&instance.job)),
            Some(node) => {
                found.look(format!("{here}.job"), known.job(&instance.job));
                found.look(format!("{here}.node"), known.node(node));
            }
        },
        Action::AbortMigration { job, .. }
        | Action::MarkJobFailed { job, .. }
        | Action::JobFails { job, .. }
        | Action::Signal { job, .. } => found.look(format!("{here}.job"), known.job(job)),
        Action::Migrate { job, target, .. } => {
            found.look(format!("{here}.job"), known.job(job));
            if let Some(target) = target {
                found.look(format!("{here}.target"), known.node(target));
            }
        }
        Action::JobRejected { job, node, .. } => {
            found.look(format!("{here}.job"), known.job(job));
            if let Some(node) = node {
                found.look(format!("{here}.node"), known.node(node));
            }
        }
        Action::Cordon(node)
        | Action::Uncordon(node)
        | Action::Evict(node)
        | Action::Terminate(node)
        | Action::NodeStopped(node)
        | Action::NodeDies(node)
        | Action::Partition(node)
        | Action::Heal(node) => found.look(here, known.node(node)),
        Action::UpdateHotSpareNode { node, .. }
        | Action::NodeStopping { node, .. }
        | Action::Notice { node, .. }
        | Action::ImagePulled { node, .. } => found.look(format!("{here}.node"), known.node(node)),
        Action::StartFails { node, job, .. } => {
            found.look(format!("{here}.node"), known.node(node));
            if let Some(job) = job {
                found.look(format!("{here}.job"), known.job(job));
            }
        }
        Action::SetTags { node, tags } => {
            found.look(format!("{here}.node"), known.node(node));
            for (key, value) in tags {
                let path = format!("{here}.tags.{key}");
                match value {
                    Some(value) => found.look(path, known.tag(key, value)),
                    None => found.look(path, known.tag_name(key)),
                }
            }
        }
        Action::Inventory(change) => {
            found.look(format!("{here}.node"), known.node(&change.node));
        }
        Action::Drain { node, strategy, .. } | Action::Interrupt { node, strategy, .. } => {
            found.look(format!("{here}.node"), known.node(node));
            for job in strategy.by_job.keys() {
                found.look(format!("{here}.strategy.{job}"), known.job(job));
            }
        }
        Action::NodeJoins(node) => {
            for (at, job) in node.jobs.iter().enumerate() {
                found.look(format!("{here}.jobs[{at}]"), known.job(job));
            }
        }
        Action::NodeReturns { node, jobs } => {
            found.look(format!("{here}.node"), known.node(node));
            for (at, job) in jobs.iter().enumerate() {
                found.look(format!("{here}.jobs[{at}]"), known.job(job));
            }
        }
        Action::UpdateHotSpares(entries) => {
            for (below, message) in known.faults_of_spares(entries) {
                found.add(format!("{here}{below}"), message);
            }
        }
        Action::DryRun(wanted) => match wanted.path() {
            Some(job) => found.look(here, known.job(&job)),
            None => {
                let copies = known.copy(&wanted.bundle, wanted.replica);
                found.look(format!("{here}.bundle"), known.bundle(&wanted.bundle));
                found.look(format!("{here}.replica"), copies);
            }
        },
        Action::CreateFails {
            tier,
            node,
            when,
            after,
            ..
        } => {
            found.look(format!("{here}.tier"), known.elastic_tier(tier));
            if let Some(node) = node {
                found.look(format!("{here}.node"), known.node(node));
            }
            if after.0 > 0 && *when == When::Later {
                found.add(
                    format!("{here}.after"),
                    "a create that fails later fails 2 s after its answer: write when: call",
                );
            }
        }
    }
}
