//! Steps: what each says, and whether it can follow those before it.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::bundle::Bundle;
use greenroom_types::{BundleId, NodeId, TemplateName};

use super::{Found, amount, disks, expected, machine, of_bundle, of_node, refusals, runtime};
use crate::format::action::{Action, HoldKind};
use crate::format::expect::{Expect, Happened};
use crate::format::fleet::NodeSpec;
use crate::format::known::Known;
use crate::format::names::{JobPath, NodeRef};
use crate::format::span::Span;
use crate::format::{Deed, Scenario, Step};
use crate::served::leaf;

/// Virtual time that a scenario may last, 366 days.
const TIME_MAX: Span = Span(366 * 24 * 3_600_000);

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
    match action {
        // A faulty bundle may be the point of the step.
        Action::CreateBundle(bundle) if step.refused.is_none() => {
            of_bundle(bundle, &format!("{path}.createBundle"), found.faults);
        }
        Action::UpdateBundle(bundle) if step.refused.is_none() => {
            of_bundle(bundle, &format!("{path}.updateBundle"), found.faults);
        }
        Action::NodeJoins(node) => of_node(node, &format!("{path}.nodeJoins"), found.faults),
        Action::Inventory(change) => {
            let path = format!("{path}.inventory");
            if let Some(capacity) = change.capacity {
                amount(found, &path, "capacity", capacity);
            }
            let gpus = change.gpus.as_deref().unwrap_or_default();
            let capabilities = change.capabilities.as_deref().unwrap_or_default();
            machine(found, &path, gpus, capabilities);
            disks(found, &path, change.disks.as_deref().unwrap_or_default());
            if let Some(name) = &change.runtime {
                runtime(found, &path, name);
            }
        }
        Action::JobRejected {
            role: Some(role), ..
        } => found.look(
            format!("{path}.jobRejected.role"),
            leaf::role(role.as_str()),
        ),
        Action::SetTemplateImages(images) => {
            for (template, references) in images {
                let path = format!("{path}.setTemplateImages");
                if template.as_str().parse::<TemplateName>().is_err() {
                    found.add(
                        &path,
                        format!("{:?} is no name of a template", template.as_str()),
                    );
                }
                for (at, reference) in references.iter().enumerate() {
                    if reference.is_empty() || reference.chars().any(is_odd) {
                        let path = format!("{path}.{template}[{at}]");
                        found.add(path, format!("{reference:?} is no name of an image"));
                    }
                }
            }
        }
        Action::CreateFails { next: 0, .. } => {
            found.add(format!("{path}.createFails.next"), "write 1 or more");
        }
        Action::StartFails { next: 0, .. } => {
            found.add(format!("{path}.startFails.next"), "write 1 or more");
        }
        Action::SetTags { tags, .. } if tags.is_empty() => {
            found.add(format!("{path}.setTags.tags"), "name at least one tag");
        }
        Action::Hold(kinds) if kinds.is_empty() => {
            found.add(format!("{path}.hold"), "name at least one kind");
        }
        Action::Release(kinds) if kinds.is_empty() => {
            found.add(format!("{path}.release"), "name at least one kind");
        }
        _ => {}
    }
}

/// A name of an image has neither spaces nor what steers a terminal.
fn is_odd(letter: char) -> bool {
    letter.is_whitespace() || letter.is_control()
}

/// What was before a step, as far as the file says it.
struct Before<'a> {
    held: BTreeSet<HoldKind>,
    nodes: BTreeSet<&'a NodeId>,
    bundles: BTreeSet<&'a BundleId>,
    admitted: Option<&'a Bundle>,
    dry_run: bool,
    /// Nodes that were cut off.
    cut_off: BTreeSet<&'a NodeRef>,
    /// What runs where, as long as nothing can have changed that.
    running: Option<BTreeMap<&'a JobPath, &'a NodeId>>,
}

/// What steps say of the rest of the scenario, in their order.
pub(super) fn in_order(scenario: &Scenario, known: &Known<'_>, found: &mut Found<'_>) {
    let mut before = Before {
        held: BTreeSet::new(),
        nodes: scenario.nodes.iter().map(|node| &node.id).collect(),
        bundles: scenario.bundles.iter().map(|it| &it.bundle_id).collect(),
        admitted: None,
        dry_run: false,
        cut_off: BTreeSet::new(),
        running: Some(BTreeMap::new()),
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
                before.takes(action, &path, found);
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
    fn takes(&mut self, action: &'a Action, path: &str, found: &mut Found<'_>) {
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
            }
            Action::CreateBundle(bundle) => {
                let is_new = self.bundles.insert(&bundle.bundle_id);
                if !is_new {
                    let message = format!("bundle {:?} is there already", bundle.bundle_id);
                    found.add(format!("{path}.createBundle.bundleId"), message);
                }
            }
            Action::UpdateBundle(bundle) if !self.bundles.contains(&bundle.bundle_id) => {
                let message = format!("bundle {:?} is not there by then", bundle.bundle_id);
                found.add(format!("{path}.updateBundle.bundleId"), message);
            }
            // From here on it may be gone or not; the run says which.
            Action::DeleteBundle(bundle_id) => {
                self.bundles.remove(bundle_id);
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
            Action::Hold(kinds) => self.held.extend(kinds),
            Action::Release(kinds) => {
                for (index, kind) in kinds.iter().enumerate() {
                    if !self.held.contains(kind) {
                        let path = format!("{path}.release[{index}]");
                        let kind = crate::format::code(kind);
                        found.add(path, format!("no step before holds {kind}"));
                    }
                }
            }
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
            found.look(format!("{here}.pool"), known.pool(&bundle.pool));
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
        | Action::JobRunning(job)
        | Action::JobCompletes(job)
        | Action::Duplicate(job) => found.look(here, known.job(job)),
        Action::AbortMigration { job, .. }
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
        Action::Interrupt { node, .. }
        | Action::UpdateHotSpareNode { node, .. }
        | Action::NodeStopping { node, .. }
        | Action::Notice { node, .. }
        | Action::ImagePulled { node, .. }
        | Action::StartFails { node, .. } => found.look(format!("{here}.node"), known.node(node)),
        Action::SetTags { node, tags } => {
            found.look(format!("{here}.node"), known.node(node));
            for (key, value) in tags {
                if let Some(value) = value {
                    found.look(format!("{here}.tags.{key}"), known.tag(key, value));
                }
            }
        }
        Action::Inventory(change) => {
            found.look(format!("{here}.node"), known.node(&change.node));
        }
        Action::Drain { node, strategy, .. } => {
            found.look(format!("{here}.node"), known.node(node));
            for job in strategy.by_job.keys() {
                found.look(format!("{here}.strategy.{job}"), known.job(job));
            }
        }
        Action::NodeJoins(node) => {
            found.look(format!("{here}.tier"), known.tier_of_node(node));
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
            None => found.look(format!("{here}.bundle"), known.bundle(&wanted.bundle)),
        },
        Action::CreateFails { tier, .. } => {
            found.look(format!("{here}.tier"), known.elastic_tier(tier));
        }
    }
}
