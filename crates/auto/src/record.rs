//! What happened lately, kept so that an incident becomes a scenario (SCEN-12).
//!
//! Before an input is handled, what it says about the world or what an operator asks is written down
//! in the words of a scenario's step; after it, what was decided. In calm moments the fleet and the
//! bundles are kept as well, and a recording goes on from such a picture. What jobs run is left out:
//! a scenario is about where they run, and is handed to others.

mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use greenroom_policy::effect::{MirrorState, PlacementInfo, PlacementKind};
use greenroom_policy::event::ApiId;
use greenroom_policy::migration::MigrationPhase;
use greenroom_policy::{ApiCall, Callback, Effect, Event, Policy};
use greenroom_types::bundle::{BundleState, BundleStatus};
use greenroom_types::call::Call;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::{NodeMetadata, NodeStoppingReason, RejectionCode};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, Millis, Mono, NodeId, Now, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use words::{entries, manifest, of_inventory, of_node, path, path_of};

/// Time between two pictures. A recording begins at the last one before the time asked for.
const PICTURE_EVERY: Millis = Millis(300_000);
/// Time between two looks for a calm moment; a look costs as much as the fleet is large.
const TRY_EVERY: Millis = Millis(10_000);
/// Pictures that are kept: those of an hour.
const PICTURES: usize = 13;
/// Steps that are kept; with the oldest goes what began before it.
const STEPS: usize = 20_000;
/// A larger fleet is not recorded: its pictures would cost more than they are worth.
const NODES: usize = 2_000;

/// The last minutes as the parts of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    /// Wall time at its beginning.
    pub start: Wall,
    /// The policy's settings, without the Manager's address.
    pub settings: Value,
    /// Nodes that ran at the beginning.
    pub nodes: Vec<Value>,
    /// Bundles that were there.
    pub bundles: Vec<Value>,
    /// What happened and what was decided, each with its time in milliseconds in `at`.
    pub steps: Vec<Value>,
    /// What a scenario has no words for.
    pub left_out: Vec<String>,
}

/// Keeps what happens.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    settings: Value,
    pictures: VecDeque<Picture>,
    /// When a picture was tried last.
    tried: Option<Mono>,
    steps: VecDeque<Step>,
    /// Bundles as they were seen last.
    bundles: BTreeMap<BundleId, Arc<BundleStatus>>,
    /// Inventories as they were seen last.
    inventories: BTreeMap<NodeId, Arc<NodeInventory>>,
    /// Nodes that were there or came by themselves; the others were bought.
    known: BTreeSet<NodeId>,
    /// Nodes that came and have not said what they have.
    joining: BTreeMap<NodeId, Arc<NodeMetadata>>,
    /// Nodes that are cut off: what follows of that, a scenario does by itself.
    cut_off: BTreeSet<NodeId>,
    /// Nodes that the policy ends itself.
    ending: BTreeSet<NodeId>,
    /// Nodes that the policy bought.
    bought: BTreeSet<NodeId>,
    /// Entries of each job's history that were looked at.
    seen: BTreeMap<JobId, usize>,
}

#[derive(Debug)]
struct Picture {
    at: Now,
    settings: Value,
    nodes: Vec<Value>,
    bundles: Vec<Value>,
}

#[derive(Debug)]
struct Step {
    at: Now,
    what: Result<Value, String>,
    /// The call that it is; a refused one is taken out again.
    api: Option<ApiId>,
}

// === impl Recorder ===

impl Recorder {
    pub(crate) fn new(mut settings: Value) -> Self {
        if let Value::Object(keys) = &mut settings {
            keys.remove("url");
        }
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Looks at an input ahead of the policy.
    pub(crate) fn before(&mut self, now: Now, event: &Event, policy: &Policy) {
        if !policy.is_live() {
            return;
        }
        self.picture(now, policy);
        if self.pictures.is_empty() {
            return;
        }
        match event {
            Event::Stream(event) => self.of_stream(now, event, policy),
            Event::Api { id, call } => {
                if let Some(what) = self.of_call(call, policy) {
                    self.push(now, what, Some(*id));
                }
            }
            _ => {}
        }
    }

    /// Looks at what the policy does.
    pub(crate) fn after(&mut self, now: Now, effect: &Effect, policy: &Policy) {
        if self.pictures.is_empty() {
            return;
        }
        match effect {
            Effect::Call {
                call: Call::TerminateNode(node_id),
                ..
            } => {
                self.ending.insert(node_id.clone());
            }
            // A call was refused: nothing came of it.
            Effect::ApiReply { id, result: Err(_) } => {
                self.steps.retain(|step| step.api != Some(*id));
            }
            Effect::Callback(Callback::OnPlacementDecision(info)) => {
                self.decided(now, info, policy);
            }
            _ => {}
        }
    }

    fn decided(&mut self, now: Now, info: &PlacementInfo, policy: &Policy) {
        let job = path(&info.bundle_id, info.replica_index, info.job_name.as_str());
        let expect = match (info.kind, &info.node_id) {
            (PlacementKind::Place, Some(node_id)) => {
                match self.name(node_id, Some(&info.job_id), policy) {
                    Some(node) => json!({"trace": {"job": job, "chosen": node}}),
                    None => return,
                }
            }
            (PlacementKind::Provision, Some(node_id)) => {
                self.bought.insert(node_id.clone());
                json!({"jobs": {job: {"pool": info.pool, "tier": info.tier}}})
            }
            _ => json!({"jobs": {job: {"state": "unplaced"}}}),
        };
        self.push(now, Ok(json!({"expect": expect})), None);
    }

    /// The last minutes, from the picture that is nearest before.
    pub(crate) fn recording(&self, now: Now, minutes: u64) -> Option<Recording> {
        let from = now.mono.0.saturating_sub(minutes.saturating_mul(60_000));
        let mut before = self.pictures.iter().rev();
        let picture = before
            .find(|picture| picture.at.mono.0 <= from)
            .or_else(|| self.pictures.front())?;
        let mut recording = Recording {
            start: picture.at.wall,
            settings: picture.settings.clone(),
            nodes: picture.nodes.clone(),
            bundles: picture.bundles.clone(),
            steps: Vec::new(),
            left_out: Vec::new(),
        };
        for step in &self.steps {
            if step.at.mono < picture.at.mono {
                continue;
            }
            let at = (step.at.mono - picture.at.mono).0;
            match &step.what {
                Ok(what) => {
                    let mut what = what.clone();
                    what["at"] = at.into();
                    recording.steps.push(what);
                }
                Err(words) => recording
                    .left_out
                    .push(format!("after {}: {words}", Millis(at))),
            }
        }
        Some(recording)
    }

    fn push(&mut self, at: Now, what: Result<Value, String>, api: Option<ApiId>) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
            // A picture without all that followed it leads nowhere.
            let oldest = self.steps.front().map(|step| step.at.mono);
            self.pictures
                .retain(|picture| oldest.is_none_or(|oldest| picture.at.mono > oldest));
        }
        self.steps.push_back(Step { at, what, api });
    }

    /// Takes a picture when one is due and nothing is in the air: a scenario begins with nodes that
    /// run, and with no migration under way.
    fn picture(&mut self, now: Now, policy: &Policy) {
        let last = self.pictures.back().map(|picture| picture.at.mono);
        let is_early = last.is_some_and(|last| (now.mono - last) < PICTURE_EVERY);
        let was_tried = |tried| (now.mono - tried) < TRY_EVERY;
        if is_early || self.tried.is_some_and(was_tried) {
            return;
        }
        self.tried = Some(now.mono);
        let nodes = policy.nodes();
        let is_over = |phase| matches!(phase, MigrationPhase::Done | MigrationPhase::Aborted);
        let is_calm = nodes.len() <= NODES
            && nodes
                .iter()
                .all(|node| matches!(node.state, MirrorState::Running | MirrorState::Stopped))
            && policy.migrations().iter().all(|it| is_over(it.phase));
        if !is_calm {
            return;
        }
        let mut picture = Picture {
            at: now,
            settings: self.settings(policy),
            nodes: Vec::new(),
            bundles: Vec::new(),
        };
        self.known.clear();
        self.bought.clear();
        for node in nodes {
            if node.state != MirrorState::Running {
                continue;
            }
            let node_id = &node.node_id;
            self.known.insert(node_id.clone());
            let Some(inventory) = policy.inventory(node_id) else {
                continue;
            };
            self.inventories
                .insert(node_id.clone(), Arc::clone(inventory));
            let mut shown = of_node(node_id, &node.tags, inventory);
            let jobs: Vec<String> = node
                .jobs
                .iter()
                .filter_map(|job_id| path_of(job_id, policy))
                .collect();
            shown["jobs"] = jobs.into();
            if let Some(tier) = &node.tier {
                shown["tier"] = tier.as_str().into();
            }
            picture.nodes.push(shown);
        }
        for status in policy.bundles() {
            let bundle_id = status.bundle.bundle_id.clone();
            self.bundles.insert(bundle_id, Arc::clone(status));
            if status.bundle.state == BundleState::Live {
                picture.bundles.push(manifest(&status.bundle));
            }
        }
        for job in policy.jobs() {
            self.seen.insert(job.job.job_id.clone(), entries(job));
        }
        if self.pictures.len() == PICTURES {
            self.pictures.pop_front();
            let oldest = self.pictures.front().map(|picture| picture.at.mono);
            self.steps
                .retain(|step| oldest.is_none_or(|oldest| step.at.mono >= oldest));
        }
        self.pictures.push_back(picture);
    }

    /// The settings with what was changed since the start.
    fn settings(&self, policy: &Policy) -> Value {
        let mut settings = self.settings.clone();
        let live = policy.settings();
        for (key, value) in [
            ("hotSpares", serde_json::to_value(&live.hot_spares)),
            (
                "templateImages",
                serde_json::to_value(&live.template_images),
            ),
        ] {
            let is_empty = |value: &Value| *value == json!([]) || *value == json!({});
            match value {
                Ok(value) if !is_empty(&value) => settings[key] = value,
                _ => {
                    if let Value::Object(keys) = &mut settings {
                        keys.remove(key);
                    }
                }
            }
        }
        settings
    }

    /// How a scenario names a node: by its id where it knows that, or else by another job on it.
    fn name(&self, node_id: &NodeId, but: Option<&JobId>, policy: &Policy) -> Option<String> {
        if self.known.contains(node_id) {
            return Some(node_id.to_string());
        }
        let nodes = policy.nodes();
        let node = nodes.iter().find(|node| node.node_id == *node_id)?;
        let mut jobs = node.jobs.iter().filter(|job_id| Some(*job_id) != but);
        jobs.find_map(|job_id| path_of(job_id, policy))
            .map(|path| format!("@{path}"))
    }

    fn of_node_event(
        &mut self,
        now: Now,
        node_id: &NodeId,
        policy: &Policy,
        step: impl FnOnce(String) -> Value,
    ) {
        let what = match self.name(node_id, None, policy) {
            Some(name) => Ok(step(name)),
            None => Err(format!(
                "something happened to {node_id}, which has no name"
            )),
        };
        self.push(now, what, None);
    }

    fn of_stream(&mut self, now: Now, event: &StreamEvent, policy: &Policy) {
        match event {
            StreamEvent::BundleUpdated(status) => self.of_bundle(now, status),
            StreamEvent::BundleDeleted(bundle_id) => {
                self.bundles.remove(bundle_id);
            }
            StreamEvent::JobUpdated(job) => self.of_job(now, job),
            StreamEvent::JobDeleted(job_id) => {
                self.seen.remove(job_id);
            }
            StreamEvent::NodeStarted { metadata, .. } => {
                let node_id = &metadata.node_id;
                self.ending.remove(node_id);
                if !self.known.contains(node_id) && !self.is_bought(node_id, policy) {
                    self.joining.insert(node_id.clone(), Arc::clone(metadata));
                }
            }
            StreamEvent::NodeInventoryUpdated { node_id, inventory } => {
                self.of_inventory(now, node_id, inventory, policy);
            }
            StreamEvent::NodeReachabilityChanged { node_id, reachable } => {
                let key = if *reachable { "heal" } else { "partition" };
                if *reachable {
                    self.cut_off.remove(node_id);
                } else {
                    self.cut_off.insert(node_id.clone());
                }
                self.of_node_event(now, node_id, policy, |node| json!({key: node}));
            }
            StreamEvent::NodeStopping {
                node_id, reason, ..
            } => {
                let follows = self.cut_off.contains(node_id) || self.ending.contains(node_id);
                if *reason == NodeStoppingReason::CreateFailed {
                    let text = format!("the provider made no machine for {node_id}");
                    self.push(now, Err(text), None);
                } else if !follows {
                    let step = |node| json!({"nodeStopping": {"node": node, "reason": reason}});
                    self.of_node_event(now, node_id, policy, step);
                }
            }
            StreamEvent::NodeStopped { node_id } => {
                let cut_off = self.cut_off.remove(node_id);
                let ended = self.ending.remove(node_id);
                if !cut_off && !ended && self.known.contains(node_id) {
                    self.push(now, Ok(json!({"nodeStopped": node_id})), None);
                }
                self.known.remove(node_id);
                self.inventories.remove(node_id);
            }
            StreamEvent::NodeInterruptionNotice {
                node_id,
                kind,
                deadline,
                ..
            } => {
                let mut notice = json!({"kind": kind});
                if let Some(deadline) = deadline {
                    notice["deadline"] = deadline.to_string().into();
                }
                self.of_node_event(now, node_id, policy, |node| {
                    notice["node"] = node.into();
                    json!({"notice": notice})
                });
            }
            _ => {}
        }
    }

    fn is_bought(&self, node_id: &NodeId, policy: &Policy) -> bool {
        let prospective = || policy.nodes().into_iter().filter(|node| node.prospective);
        self.bought.contains(node_id) || prospective().any(|node| node.node_id == *node_id)
    }

    fn of_bundle(&mut self, now: Now, status: &Arc<BundleStatus>) {
        let bundle = &status.bundle;
        let before = self
            .bundles
            .insert(bundle.bundle_id.clone(), Arc::clone(status));
        let Some(before) = before else {
            self.push(now, Ok(json!({"createBundle": manifest(bundle)})), None);
            return;
        };
        if bundle.state == BundleState::Deleting {
            if before.bundle.state == BundleState::Live {
                self.push(now, Ok(json!({"deleteBundle": bundle.bundle_id})), None);
            }
            return;
        }
        if before.bundle.stop_at != bundle.stop_at {
            let mut stop = json!({"bundle": bundle.bundle_id});
            if let Some(at) = bundle.stop_at {
                stop["stopAt"] = at.to_string().into();
            }
            self.push(now, Ok(json!({"setBundleStopTime": stop})), None);
        } else if before.bundle.revision != bundle.revision
            && manifest(&before.bundle) != manifest(bundle)
        {
            self.push(now, Ok(json!({"updateBundle": manifest(bundle)})), None);
        }
        for job in &status.jobs {
            let was = before.jobs.iter().find(|it| it.job_id == job.job_id);
            let Some(was) = was.filter(|was| was.dormant != job.dormant) else {
                continue;
            };
            let key = if was.dormant {
                "startBundleJob"
            } else {
                "stopBundleJob"
            };
            let job = path(&bundle.bundle_id, job.replica_index, job.job_name.as_str());
            self.push(now, Ok(json!({key: job})), None);
        }
    }

    fn of_job(&mut self, now: Now, job: &Arc<JobWithHistory>) {
        let total = entries(job);
        let seen = self.seen.insert(job.job.job_id.clone(), total);
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return;
        };
        let place = path(&bundle_id, replica, name.as_str());
        let new = total.saturating_sub(seen.unwrap_or(0));
        let mut rejected = false;
        for entry in job.history.iter().rev().take(new).rev() {
            let what = match &entry.kind {
                HistoryKind::Rejected { code, detail, .. } => {
                    rejected = true;
                    let invalid = *code == RejectionCode::InvalidSpec;
                    json!({"jobRejected": {"job": place, "reason": detail, "invalidSpec": invalid}})
                }
                // A rejection is told with a stop of its own.
                HistoryKind::Stopping {
                    reason: StopReason::JobFailed,
                    detail,
                    ..
                } if !rejected => json!({"jobFails": {"job": place, "reason": detail}}),
                HistoryKind::Completed => json!({"jobCompletes": place}),
                _ => continue,
            };
            self.push(now, Ok(what), None);
        }
    }

    fn of_inventory(
        &mut self,
        now: Now,
        node_id: &NodeId,
        inventory: &Arc<NodeInventory>,
        policy: &Policy,
    ) {
        let before = self
            .inventories
            .insert(node_id.clone(), Arc::clone(inventory));
        if let Some(metadata) = self.joining.remove(node_id) {
            self.known.insert(node_id.clone());
            let node = of_node(node_id, &metadata.tags, inventory);
            self.push(now, Ok(json!({"nodeJoins": node})), None);
            return;
        }
        let Some(before) = before else { return };
        let (was, is) = (of_inventory(&before), of_inventory(inventory));
        let changed: Map<String, Value> = is
            .into_iter()
            .filter(|(key, value)| was.get(key) != Some(value) && key != "heldImages")
            .collect();
        if !changed.is_empty() {
            let mut change = Value::Object(changed);
            self.of_node_event(now, node_id, policy, |node| {
                change["node"] = node.into();
                json!({"inventory": change})
            });
        }
    }

    /// What an operator asks; what changes bundles comes back with the Manager's stream.
    fn of_call(&self, call: &ApiCall, policy: &Policy) -> Option<Result<Value, String>> {
        let named = |node_id: &NodeId, step: &dyn Fn(String) -> Value| {
            let words = || format!("a call about {node_id}, which has no name");
            Some(self.name(node_id, None, policy).map(step).ok_or_else(words))
        };
        let of_job = |job_id: &JobId| path_of(job_id, policy);
        match call {
            ApiCall::CordonNode { node_id } => named(node_id, &|node| json!({"cordon": node})),
            ApiCall::UncordonNode { node_id } => named(node_id, &|node| json!({"uncordon": node})),
            ApiCall::TerminateNode { node_id } => {
                named(node_id, &|node| json!({"terminate": node}))
            }
            ApiCall::EvictNode { node_id } => named(node_id, &|node| json!({"evict": node})),
            ApiCall::DrainNode { node_id, options } => named(node_id, &|node| {
                let mut drain = json!({
                    "node": node, "force": options.force, "strategy": options.strategy,
                });
                if let Some(timeout) = options.timeout_ms {
                    drain["timeout"] = format!("{}ms", timeout.0).into();
                }
                if options.for_upgrade {
                    drain["forUpgrade"] = true.into();
                }
                json!({"drain": drain})
            }),
            ApiCall::HandleNodeInterruption {
                node_id,
                kind,
                deadline,
                ..
            } => named(node_id, &|node| {
                let mut notice = json!({"node": node, "kind": kind});
                if let Some(deadline) = deadline {
                    notice["deadline"] = deadline.to_string().into();
                }
                json!({"interrupt": notice})
            }),
            ApiCall::MigrateJob { job_id, options } => {
                let mut migrate = json!({
                    "job": of_job(job_id)?,
                    "strategy": options.strategy,
                    "overrideReservation": options.override_reservation,
                });
                if let Some(target) = &options.target_node_id {
                    migrate["target"] = self.name(target, None, policy)?.into();
                }
                Some(Ok(json!({"migrate": migrate})))
            }
            ApiCall::AbortMigration {
                migration_id,
                reason,
            } => {
                let migration = policy.migration_by_id(migration_id)?;
                let job = of_job(&migration.source_job_id)?;
                Some(Ok(
                    json!({"abortMigration": {"job": job, "reason": reason}}),
                ))
            }
            ApiCall::UpdateHotSpareNode { node_id, changes } => named(node_id, &|node| {
                let mut edit = json!(changes);
                edit["node"] = node.into();
                json!({"updateHotSpareNode": edit})
            }),
            ApiCall::UpdateHotSpareSpecs { hot_spares } => {
                Some(Ok(json!({"updateHotSpares": hot_spares})))
            }
            ApiCall::SetTemplateImages { template, refs } => {
                Some(Ok(json!({"setTemplateImages": {template.as_str(): refs}})))
            }
            _ => None,
        }
    }
}
