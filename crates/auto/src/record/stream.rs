//! What the Manager's stream tells, in the words of a scenario.

use std::sync::Arc;

use greenroom_policy::Policy;
use greenroom_types::bundle::{BundleState, BundleStatus};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::{NodeMetadata, RejectionCode, StartPhase};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, NodeId, Now, StartId, Tags};
use serde_json::{Map, Value, json};

use super::Recorder;
use super::words::{entries, manifest, no_more, of_inventory, of_node, path, path_of};

/// What the Manager says of a side of a migration whose node is lost.
const NODE_LOST: &str = "node_lost";

// === impl Recorder ===

impl Recorder {
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

    pub(super) fn of_stream(&mut self, now: Now, event: &StreamEvent, policy: &Policy) {
        match event {
            StreamEvent::BundleUpdated(status) => self.of_bundle(now, status, policy),
            StreamEvent::BundleDeleted(bundle_id) => {
                self.bundles.remove(bundle_id);
            }
            StreamEvent::JobUpdated(job)
            | StreamEvent::JobActive(job)
            | StreamEvent::JobPending(job) => self.of_job(now, job, policy),
            StreamEvent::JobDeleted(job_id) => {
                self.starts.retain(|(started, _), _| started != job_id);
                self.seen.remove(job_id);
                self.dormant.remove(job_id);
            }
            StreamEvent::NodeStarting {
                metadata,
                phase: Some(StartPhase::Booting),
            } => self.of_bought(now, metadata, "nodeBooting"),
            StreamEvent::NodeStarted { metadata, .. } => {
                let node_id = &metadata.node_id;
                self.ending.remove(node_id);
                if self.given_up.remove(node_id) {
                    self.known.insert(node_id.clone());
                    self.tags.insert(node_id.clone(), metadata.tags.clone());
                    self.push(now, Ok(json!({"heal": node_id})), None);
                } else if self.bought.contains_key(node_id) {
                    self.of_bought(now, metadata, "nodeStarted");
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
                self.died_at_once(node_id, policy);
                let follows = self.cut_off.contains(node_id) || self.ending.contains(node_id);
                if !follows {
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
            StreamEvent::JobRejected {
                node_id,
                key,
                start_id,
                code,
                reason,
                ..
            } => {
                let rejection = (node_id, *code, reason.as_str());
                if let Some(place) = path_of(&key.job_id, policy) {
                    let job = (&key.job_id, place.as_str());
                    self.of_rejection(now, job, Some(start_id), rejection, policy);
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
            StreamEvent::ImagesPrefetched {
                node_id, results, ..
            } => {
                let open = self.pulls.get(node_id);
                let settled: Vec<_> = results
                    .iter()
                    .filter(|result| open.is_some_and(|open| open.contains(&result.image_ref)))
                    .cloned()
                    .collect();
                for result in settled {
                    self.pulled(now, node_id, &result.image_ref, result.ok, policy);
                }
            }
            StreamEvent::LeasesPaused { paused, .. } => {
                let what = if *paused { "paused" } else { "resumed" };
                self.push(now, Err(format!("leases were {what}")), None);
            }
            _ => {}
        }
    }

    /// What is given up as soon as it is cut off was not cut off: nobody waits for it to be heard again.
    fn died_at_once(&mut self, node_id: &NodeId, policy: &Policy) {
        let Some(name) = self.name(node_id, None, policy) else {
            return;
        };
        let mut since = self.after_place(self.cause())..self.steps.len();
        let cut = since.rfind(|index| {
            let what = self.steps.get(*index).map(|step| &step.what);
            matches!(what, Some(Ok(what)) if what["partition"] == name.as_str())
        });
        if let Some(cut) = cut {
            self.steps.remove(cut);
            self.cut_off.remove(node_id);
        }
    }

    /// How far a machine that was bought has come: the real one was slower or quicker.
    fn of_bought(&mut self, now: Now, metadata: &NodeMetadata, kind: &str) {
        let node_id = &metadata.node_id;
        let Some(bought) = self.bought.get_mut(node_id) else {
            return;
        };
        if kind == "nodeBooting" && std::mem::replace(&mut bought.boots, true) {
            return;
        }
        let tags = self.tags.entry(node_id.clone());
        tags.or_insert_with(|| metadata.tags.clone());
        let step = json!({"release": [kind], "only": node_id});
        self.push(now, Ok(step), None);
    }

    /// A pull that a scenario does not let settle by itself.
    fn pulled(&mut self, now: Now, node_id: &NodeId, image: &str, ok: bool, policy: &Policy) {
        if let Some(open) = self.pulls.get_mut(node_id) {
            open.remove(image);
        }
        self.of_node_event(
            now,
            node_id,
            policy,
            |node| json!({"imagePulled": {"node": node, "ref": image, "ok": ok}}),
        );
    }

    /// Tags that somebody else than the policy changed.
    fn of_tags(&mut self, now: Now, node_id: &NodeId, tags: &Tags, policy: &Policy) {
        let Some(before) = self.tags.insert(node_id.clone(), tags.clone()) else {
            return;
        };
        let set = tags
            .iter()
            .filter(|(key, _)| !is_managers_own(key))
            .filter(|(key, value)| before.get(*key) != Some(*value))
            .map(|(key, value)| (key.clone(), value.as_str().into()));
        let gone = before
            .keys()
            .filter(|key| !is_managers_own(key) && !tags.contains_key(*key));
        let gone = gone.map(|key| (key.clone(), Value::Null));
        let changed: Map<String, Value> = set.chain(gone).collect();
        if !changed.is_empty() {
            let step = |node| json!({"setTags": {"node": node, "tags": changed}});
            self.of_node_event(now, node_id, policy, step);
        }
    }

    fn is_bought(&self, node_id: &NodeId, policy: &Policy) -> bool {
        let prospective = || policy.nodes().into_iter().filter(|node| node.prospective);
        self.bought.contains_key(node_id) || prospective().any(|node| node.node_id == *node_id)
    }

    fn of_bundle(&mut self, now: Now, status: &Arc<BundleStatus>, policy: &Policy) {
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
            // An update that changes nothing gives a broken bundle another chance (BUNDLE-06).
            && (manifest(&before.bundle) != manifest(bundle)
                || policy.is_bundle_broken(&bundle.bundle_id))
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
        let job_id = &job.job.job_id;
        for entry in job.history.iter().rev().take(new).rev() {
            let mut held = false;
            let what = match &entry.kind {
                HistoryKind::Prepared(at) | HistoryKind::Running { at, .. } => {
                    let start = (job_id.clone(), at.node.node_id.clone());
                    self.starts.remove(&start);
                    continue;
                }
                HistoryKind::Rejected { at, code, detail } => {
                    rejected = true;
                    let rejection = (&at.node.node_id, *code, detail.as_str());
                    let job = (job_id, place.as_str());
                    self.of_rejection(now, job, entry.start_id.as_ref(), rejection, policy);
                    continue;
                }
                // A rejection is told with a stop of its own.
                HistoryKind::Stopping {
                    at,
                    reason: StopReason::JobFailed,
                    detail,
                } if !rejected => {
                    held = self.never_ran(job_id, &at.node.node_id, &place);
                    json!({"jobFails": {"job": place, "reason": detail}})
                }
                HistoryKind::Completed => json!({"jobCompletes": place}),
                _ => continue,
            };
            self.push(now, Ok(what), None);
            if held {
                self.let_go(now, &place);
            }
        }
    }

    /// A worker refused a start: that is told as such and in the job's history, in either order.
    fn of_rejection(
        &mut self,
        now: Now,
        (job_id, place): (&JobId, &str),
        start_id: Option<&StartId>,
        (node_id, code, reason): (&NodeId, RejectionCode, &str),
        policy: &Policy,
    ) {
        if let Some(start_id) = start_id {
            if self.rejected.remove(start_id) {
                return;
            }
            self.rejected.insert(start_id.clone());
        }
        let mut step = json!({"job": place, "reason": reason, "code": code});
        // The target of a migration is another than the node of the job. Its role names the migration,
        // which has another name in a scenario.
        if policy.node_for_job(job_id) != Some(node_id)
            && let Some(node) = self.name(node_id, Some(job_id), policy)
        {
            step["node"] = node.into();
        }
        let held = self.never_ran(job_id, node_id, place);
        self.push(now, Ok(json!({"jobRejected": step})), None);
        if held {
            self.let_go(now, place);
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
        let pulled: Vec<String> = inventory
            .held_images
            .iter()
            .map(|image| &image.reference)
            .filter(|image| {
                self.pulls
                    .get(node_id)
                    .is_some_and(|it| it.contains(*image))
            })
            .cloned()
            .collect();
        for image in pulled {
            self.pulled(now, node_id, &image, true, policy);
        }
        let Some(before) = before else {
            // What was bought is not quite what its tier declares.
            if self.bought.contains_key(node_id) {
                let mut first = of_inventory(inventory);
                first.insert("node".to_owned(), node_id.as_str().into());
                self.push(now, Ok(json!({"inventory": first})), None);
            }
            return;
        };
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

/// Tags that the Manager alone sets (TAG-07): they follow from what else is recorded.
fn is_managers_own(key: &str) -> bool {
    matches!(
        key,
        "interruption" | "az" | "workerLimits" | "wantedDaemonVersion"
    ) || key.starts_with("provides.")
}
