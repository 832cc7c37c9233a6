//! What happened lately, kept so that an incident becomes a scenario (SCEN-12).
//!
//! Before an input is handled, what it says about the world or what an operator asks is written down
//! in the words of a scenario's step; after it, what was decided. In calm moments the fleet and the
//! bundles are kept as well, and a recording goes on from such a picture. What jobs run is left out:
//! a scenario is about where they run, and is handed to others.

mod calls;
mod decided;
mod take;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use greenroom_policy::drain::DrainPhase;
use greenroom_policy::effect::MirrorState;
use greenroom_policy::event::ApiId;
use greenroom_policy::migration::MigrationPhase;
use greenroom_policy::{Event, Policy};
use greenroom_types::bundle::{BundleJobStatus, BundleState, BundleStatus, StartMode};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::{NodeMetadata, NodeStoppingReason};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{BundleId, JobId, JobName, Millis, Mono, NodeId, Now, Tags, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use words::{as_it_stands, entries, manifest, no_more, of_inventory, of_node, path, path_of};

/// Time between two pictures. A recording begins at the last one before the time asked for.
const PICTURE_EVERY: Millis = Millis(300_000);
/// Time between two looks for a calm moment; a look costs as much as the fleet is large.
const TRY_EVERY: Millis = Millis(10_000);
/// Pictures that are kept: those of an hour.
const PICTURES: usize = 13;
/// Steps that are kept; with the oldest goes what began before it.
const STEPS: usize = 20_000;
/// What the Manager says of a side of a migration whose node is lost.
const NODE_LOST: &str = "node_lost";
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
    /// Nodes that were given up while they were cut off.
    given_up: BTreeSet<NodeId>,
    /// Tags of each node as they were seen last.
    tags: BTreeMap<NodeId, Tags>,
    /// Nodes that the policy ends itself.
    ending: BTreeSet<NodeId>,
    /// Nodes that the policy bought.
    bought: BTreeSet<NodeId>,
    /// Entries of each job's history that were looked at.
    seen: BTreeMap<JobId, usize>,
    /// Jobs that wait to be started by hand.
    dormant: BTreeSet<JobId>,
}

#[derive(Debug)]
struct Picture {
    at: Now,
    settings: Value,
    nodes: Vec<Value>,
    bundles: Vec<Value>,
    /// Steps with which the policy comes to stand as it stood then.
    first: Vec<Value>,
    /// What of its standing a scenario has no words for.
    left_out: Vec<String>,
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
            && policy.migrations().iter().all(|it| is_over(it.phase))
            && !nodes.iter().any(|node| is_draining(&node.node_id, policy));
        if !is_calm {
            return;
        }
        let mut picture = Picture {
            at: now,
            settings: self.settings(policy),
            nodes: Vec::new(),
            bundles: Vec::new(),
            first: Vec::new(),
            left_out: Vec::new(),
        };
        self.known.clear();
        self.bought.clear();
        self.tags.clear();
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
            self.tags.insert(node_id.clone(), node.tags.clone());
            if policy.is_cordoned(node_id) {
                // A fresh policy knows of no cordon: the node says it until the policy was told.
                shown["cordoned"] = true.into();
                picture.first.push(json!({"at": 0, "cordon": node_id}));
                if !inventory.cordoned {
                    let lifted = json!({"node": node_id, "cordoned": false});
                    picture.first.push(json!({"at": 0, "inventory": lifted}));
                }
            }
            picture.nodes.push(shown);
        }
        self.dormant.clear();
        for job in policy.jobs() {
            let job_id = job.job.job_id.clone();
            self.seen.insert(job_id.clone(), entries(job));
            if job.job.is_dormant() {
                self.dormant.insert(job_id);
            }
        }
        for status in policy.bundles() {
            let bundle_id = status.bundle.bundle_id.clone();
            self.bundles.insert(bundle_id, Arc::clone(status));
            if status.bundle.state == BundleState::Live {
                picture.bundles.push(as_it_stands(status, &self.dormant));
                let started = waits_though_started(status, &self.dormant, policy);
                picture.first.extend(started);
                picture.left_out.extend(verdicts(status, policy));
            }
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
            StreamEvent::JobUpdated(job)
            | StreamEvent::JobActive(job)
            | StreamEvent::JobPending(job) => self.of_job(now, job, policy),
            StreamEvent::JobDeleted(job_id) => {
                self.seen.remove(job_id);
                self.dormant.remove(job_id);
            }
            StreamEvent::NodeStarted { metadata, .. } => {
                let node_id = &metadata.node_id;
                self.ending.remove(node_id);
                if self.given_up.remove(node_id) {
                    self.known.insert(node_id.clone());
                    self.tags.insert(node_id.clone(), metadata.tags.clone());
                    self.push(now, Ok(json!({"heal": node_id})), None);
                } else if !self.known.contains(node_id) && !self.is_bought(node_id, policy) {
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
                if !self.known.remove(node_id) {
                    return;
                }
                if cut_off {
                    self.given_up.insert(node_id.clone());
                } else if !ended {
                    self.push(now, Ok(json!({"nodeStopped": node_id})), None);
                }
                self.inventories.remove(node_id);
                self.tags.remove(node_id);
            }
            StreamEvent::NodeTagsUpdated { metadata, .. } => {
                self.of_tags(now, &metadata.node_id, &metadata.tags, policy);
            }
            // That a side is lost with its node is the Manager's own word, and follows by itself.
            StreamEvent::Migration {
                signal: MigrationSignal::Aborted { reason, .. },
                ..
            } if reason == NODE_LOST => {}
            StreamEvent::Migration { key, signal, .. } => {
                if let Some(job) = path_of(&key.job_id, policy) {
                    self.push(now, Ok(json!({"signal": of_signal(&job, signal)})), None);
                }
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

    /// Tags that somebody else than the policy changed.
    fn of_tags(&mut self, now: Now, node_id: &NodeId, tags: &Tags, policy: &Policy) {
        let Some(before) = self.tags.insert(node_id.clone(), tags.clone()) else {
            return;
        };
        let set = tags
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(*value))
            .map(|(key, value)| (key.clone(), value.as_str().into()));
        let gone = before.keys().filter(|key| !tags.contains_key(*key));
        let gone = gone.map(|key| (key.clone(), Value::Null));
        let changed: Map<String, Value> = set.chain(gone).collect();
        if !changed.is_empty() {
            let step = |node| json!({"setTags": {"node": node, "tags": changed}});
            self.of_node_event(now, node_id, policy, step);
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
    }

    /// A job was started or stopped by hand. It stands in the job, and in no news of its bundle.
    fn of_hand(&mut self, now: Now, job: &JobWithHistory) {
        let job_id = &job.job.job_id;
        let is = job.job.is_dormant();
        let is_new = !self.seen.contains_key(job_id);
        let was = if is {
            !self.dormant.insert(job_id.clone())
        } else {
            self.dormant.remove(job_id)
        };
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return;
        };
        if is_new || was == is {
            return;
        }
        let key = if is {
            "stopBundleJob"
        } else {
            "startBundleJob"
        };
        let place = path(&bundle_id, replica, name.as_str());
        self.push(now, Ok(json!({key: place})), None);
    }

    fn of_job(&mut self, now: Now, job: &Arc<JobWithHistory>, policy: &Policy) {
        let total = entries(job);
        self.of_hand(now, job);
        let seen = self.seen.insert(job.job.job_id.clone(), total);
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return;
        };
        let place = path(&bundle_id, replica, name.as_str());
        let new = total.saturating_sub(seen.unwrap_or(0));
        let mut rejected = false;
        for entry in job.history.iter().rev().take(new).rev() {
            let what = match &entry.kind {
                HistoryKind::Rejected { at, code, detail } => {
                    rejected = true;
                    let mut step = json!({"job": place, "reason": detail, "code": code});
                    let node_id = &at.node.node_id;
                    // The target of a migration is another than the node of the job.
                    if policy.node_for_job(&job.job.job_id) != Some(node_id)
                        && let Some(node) = self.name(node_id, Some(&job.job.job_id), policy)
                    {
                        step["node"] = node.into();
                        step["role"] = json!(at.role);
                    }
                    json!({"jobRejected": step})
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
            self.tags.insert(node_id.clone(), metadata.tags.clone());
            let mut node = of_node(node_id, &metadata.tags, inventory);
            let assigned = inventory.assigned_jobs.iter();
            let jobs: Vec<String> = assigned
                .filter_map(|assigned| path_of(&assigned.job_id, policy))
                .collect();
            if !jobs.is_empty() {
                node["jobs"] = jobs.into();
            }
            self.push(now, Ok(json!({"nodeJoins": node})), None);
            return;
        }
        let Some(before) = before else { return };
        let (was, is) = (of_inventory(&before), of_inventory(inventory));
        let gone = was.keys().filter(|key| !is.contains_key(*key));
        let mut changed: Map<String, Value> = gone
            .filter_map(|key| Some((key.clone(), no_more(key)?)))
            .collect();
        changed.extend(
            is.into_iter()
                .filter(|(key, value)| was.get(key) != Some(value) && key != "heldImages"),
        );
        if !changed.is_empty() {
            let mut change = Value::Object(changed);
            self.of_node_event(now, node_id, policy, |node| {
                change["node"] = node.into();
                json!({"inventory": change})
            });
        }
    }
}

fn is_draining(node_id: &NodeId, policy: &Policy) -> bool {
    policy.drain_status(node_id).is_some_and(|drain| {
        matches!(
            drain.phase,
            DrainPhase::Migrating | DrainPhase::Waiting | DrainPhase::Terminating
        )
    })
}

/// Jobs that were started by hand and have no node yet; one that has a node was started there.
fn waits_though_started(
    status: &BundleStatus,
    dormant: &BTreeSet<JobId>,
    policy: &Policy,
) -> Vec<Value> {
    let bundle_id = &status.bundle.bundle_id;
    let manual = |name: &JobName| {
        let mut jobs = status.bundle.jobs.iter();
        jobs.any(|job| job.job_name == *name && job.start_mode == StartMode::Manual)
    };
    let jobs = status.jobs.iter().filter(|job| {
        !dormant.contains(&job.job_id)
            && manual(&job.job_name)
            && policy.node_for_job(&job.job_id).is_none()
    });
    jobs.map(|job| {
        let job = path(bundle_id, job.replica_index, job.job_name.as_str());
        json!({"at": 0, "startBundleJob": job})
    })
    .collect()
}

/// What has a verdict begins again in a scenario, which has no past.
fn verdicts(status: &BundleStatus, policy: &Policy) -> Vec<String> {
    let bundle_id = &status.bundle.bundle_id;
    if policy.is_bundle_broken(bundle_id) {
        return vec![format!("bundle {bundle_id} was broken before")];
    }
    let ended = status
        .jobs
        .iter()
        .filter(|job| job.terminal_state.is_some());
    let name = |job: &BundleJobStatus| path(bundle_id, job.replica_index, job.job_name.as_str());
    ended
        .map(|job| format!("{} had its verdict before", name(job)))
        .collect()
}

/// What a side of a migration said, without what it handed over.
fn of_signal(job: &str, signal: &MigrationSignal) -> Value {
    let (side, kind, payload) = match signal {
        MigrationSignal::State(_) => ("source", "state", ""),
        MigrationSignal::Refused(reason) => ("source", "refuse", reason.as_str()),
        MigrationSignal::TargetReady(_) => ("target", "ready", ""),
        MigrationSignal::SourceStoppedOutput(_) => ("source", "stoppedOutput", ""),
        MigrationSignal::TargetApplied(_) => ("target", "applied", ""),
        MigrationSignal::Aborted { side, reason } => (side.as_str(), "aborted", reason.as_str()),
    };
    json!({"job": job, "side": side, "kind": kind, "payload": payload})
}
