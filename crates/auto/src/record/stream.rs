//! What the Manager's stream tells, in the words of a scenario.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_policy::Policy;
use greenroom_policy::effect::MirrorState;
use greenroom_types::bundle::{BundleState, BundleStatus};
use greenroom_types::job::{At, HistoryEntry, HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::{NodeMetadata, NodeStoppingReason, RejectionCode, StartPhase};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, NodeId, Now, StartId, Tags};
use serde_json::{Map, Value, json};

use super::Recorder;
use super::take::NODE_STOPPED;
use super::words::{entries, is_managers_own, is_version, manifest, path, path_of};

/// What the Manager says of a side of a migration whose node is lost.
const NODE_LOST: &str = "node_lost";

// === impl Recorder ===

impl Recorder {
    pub(super) fn of_node_event(
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
            StreamEvent::BundleUpdated(status) => self.of_bundle(now, status),
            StreamEvent::BundleDeleted(bundle_id) => {
                self.bundles.remove(bundle_id);
                self.updated.remove(bundle_id);
                self.versions.retain(|(of, _), _| of != bundle_id);
                self.begun_anew.retain(|(of, _)| of != bundle_id);
            }
            StreamEvent::JobUpdated(job)
            | StreamEvent::JobActive(job)
            | StreamEvent::JobPending(job) => self.of_job(now, job, policy),
            StreamEvent::JobDeleted(job_id) => {
                self.of_deleted(now, job_id, policy);
                self.stops.retain(|(stopped, _)| stopped != job_id);
                self.verdicts.remove(job_id);
                self.seen.remove(job_id);
                self.dormant.remove(job_id);
                self.judged.remove(job_id);
            }
            StreamEvent::NodeStarting {
                metadata,
                phase: Some(StartPhase::Booting),
            } => self.of_bought(now, metadata, "nodeBooting"),
            StreamEvent::NodeStarted { metadata, .. } => {
                let node_id = &metadata.node_id;
                self.ending.remove(node_id);
                self.told_to_end.remove(node_id);
                self.cut_off.remove(node_id);
                let is_back = self.gone.remove(node_id);
                if self.bought.contains_key(node_id) && !is_back {
                    self.of_bought(now, metadata, "nodeStarted");
                } else if is_back
                    || !self.known.contains(node_id) && !self.is_bought(node_id, policy)
                {
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
                self.gone.insert(node_id.clone());
                self.joining.remove(node_id);
                let is_asked = *reason == NodeStoppingReason::UserRequested;
                if is_asked {
                    self.told_to_end.insert(node_id.clone());
                }
                match (reason, self.bought.get(node_id)) {
                    (NodeStoppingReason::CreateFailed, Some(bought)) => {
                        let tier = format!("tier {}", bought.tier);
                        self.failed(now, tier);
                    }
                    (NodeStoppingReason::UserRequested, _) => {}
                    _ => self.failed(now, node_id.as_str()),
                }
                let is_own = is_asked && self.ending.contains(node_id);
                let is_lost = *reason == NodeStoppingReason::HealthPingTimeExceeded
                    && self.cut_off.contains(node_id);
                if !is_own && !is_lost {
                    let step = |node| json!({"nodeStopping": {"node": node, "reason": reason}});
                    self.of_node_event(now, node_id, policy, step);
                }
            }
            StreamEvent::NodeStopped { node_id } => {
                let is_cut_off = self.cut_off.contains(node_id);
                self.gone.insert(node_id.clone());
                self.ending.remove(node_id);
                self.joining.remove(node_id);
                self.inventories.remove(node_id);
                if self.told_to_end.remove(node_id) {
                    self.of_node_event(
                        now,
                        node_id,
                        policy,
                        |node| json!({"release": [NODE_STOPPED], "only": node}),
                    );
                } else if !is_cut_off {
                    let step = |node| json!({"nodeStopped": node});
                    self.of_node_event(now, node_id, policy, step);
                }
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
    pub(super) fn pulled(
        &mut self,
        now: Now,
        node_id: &NodeId,
        image: &str,
        ok: bool,
        policy: &Policy,
    ) {
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
        let changed = self.changed_tags(node_id, tags);
        if !changed.is_empty() {
            let step = |node| json!({"setTags": {"node": node, "tags": changed}});
            self.of_node_event(now, node_id, policy, step);
        }
    }

    /// What is otherwise than it was seen last; nothing of a node that was not seen.
    pub(super) fn changed_tags(&mut self, node_id: &NodeId, tags: &Tags) -> Map<String, Value> {
        let Some(before) = self.tags.insert(node_id.clone(), tags.clone()) else {
            return Map::new();
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
        set.chain(gone).collect()
    }

    fn is_bought(&self, node_id: &NodeId, policy: &Policy) -> bool {
        let prospective = || policy.nodes().into_iter().filter(|node| node.prospective);
        self.bought.contains_key(node_id) || prospective().any(|node| node.node_id == *node_id)
    }

    fn of_bundle(&mut self, now: Now, status: &Arc<BundleStatus>) {
        let bundle = &status.bundle;
        let before = self
            .bundles
            .insert(bundle.bundle_id.clone(), Arc::clone(status));
        let Some(before) = before else {
            let create = manifest(bundle, &self.versions);
            self.push(now, Ok(json!({"createBundle": create})), None);
            return;
        };
        if bundle.state == BundleState::Deleting {
            let is_over = before.bundle.stop_at.is_some_and(|at| at <= now.wall);
            if before.bundle.state == BundleState::Live && !is_over {
                self.push(now, Ok(json!({"deleteBundle": bundle.bundle_id})), None);
            }
            return;
        }
        let mut as_before = bundle.clone();
        as_before.stop_at = before.bundle.stop_at;
        as_before.revision = before.bundle.revision;
        if as_before == before.bundle && bundle.stop_at != before.bundle.stop_at {
            let mut stop = json!({"bundle": bundle.bundle_id});
            if let Some(at) = bundle.stop_at {
                stop["stopAt"] = at.to_string().into();
            }
            self.push(now, Ok(json!({"setBundleStopTime": stop})), None);
        } else if before.bundle.revision != bundle.revision || as_before != before.bundle {
            // One that changes nothing that a scenario says gives a broken bundle another chance
            // (BUNDLE-06), or lets jobs run something else.
            self.updated.insert(bundle.bundle_id.clone(), now.mono);
            self.begun_anew
                .retain(|(other, _)| *other != bundle.bundle_id);
            let update = manifest(bundle, &self.versions);
            self.push(now, Ok(json!({"updateBundle": update})), None);
        }
    }

    /// What a job runs was changed with its bundle.
    fn begins_anew(&mut self, job: &JobWithHistory) {
        let Some((bundle_id, _, name)) = job.job.bundle_place() else {
            return;
        };
        let key = (bundle_id, name);
        if !self.begun_anew.insert(key.clone()) {
            return;
        }
        let version = self.versions.entry(key.clone()).or_default();
        *version += 1;
        let update = self.steps.iter_mut().rev().find_map(|step| {
            let update = step.what.as_mut().ok()?.get_mut("updateBundle")?;
            (update["bundleId"] == key.0.as_str()).then_some(update)
        });
        let jobs = update.and_then(|update| update["jobs"].as_array_mut());
        let mut jobs = jobs.into_iter().flatten();
        if let Some(job) = jobs.find(|job| job["jobName"] == key.1.as_str()) {
            is_version(&mut job["launch"], *version);
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
        let is_judged = job.terminal_state.is_some();
        let was_judged = if is_judged {
            !self.judged.insert(job_id.clone())
        } else {
            self.judged.remove(job_id)
        };
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return;
        };
        // An update of its bundle gives a job another chance as well (BUNDLE-06).
        let is_revived = was_judged
            && !is_judged
            && self.updated.get(&bundle_id).is_none_or(|at| *at < now.mono);
        if is_new || (was == is && !is_revived) {
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
        // What a scenario's Manager does by itself where a job is rejected or has its verdict.
        let mut follows = BTreeSet::new();
        let mut judged = false;
        let first = job.history.len().saturating_sub(new);
        let job_id = &job.job.job_id;
        for (index, entry) in job.history.iter().enumerate().skip(first) {
            if let HistoryKind::Rejected { .. } = entry.kind {
                self.over.extend(entry.start_id.clone());
                follows.extend(entry.start_id.clone());
            }
            judged |= matches!(entry.kind, HistoryKind::Failed { .. });
            let is_of_it = judged
                || entry
                    .start_id
                    .as_ref()
                    .is_some_and(|it| follows.contains(it));
            let what = match &entry.kind {
                HistoryKind::Stopping {
                    reason: StopReason::JobFailed,
                    ..
                } if is_of_it => continue,
                // One that was lost and is there again was not started.
                HistoryKind::Prepared(_) | HistoryKind::Running { .. }
                    if was_running(&job.history[..index], entry) =>
                {
                    continue;
                }
                HistoryKind::Stopped(at) => {
                    let ended = ended(&job.history[..index], entry);
                    if !matches!(ended, Ended::AtOnce) {
                        self.over.extend(entry.start_id.clone());
                    }
                    match ended {
                        Ended::AtOnce => None,
                        Ended::ByItself => Some(Ok(json!({"jobCompletes": place}))),
                        Ended::Told => self.is_gone(job_id, &place, at, policy),
                    }
                }
                _ => self.of_entry(now, job, entry, &place, policy),
            };
            if let Some(what) = what {
                self.push(now, what, None);
            }
        }
    }

    /// A job is gone with the last of its instances, of which its history does not tell any more.
    fn of_deleted(&mut self, now: Now, job_id: &JobId, policy: &Policy) {
        let Some(job) = policy.job_by_id(job_id) else {
            return;
        };
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return;
        };
        let place = path(&bundle_id, replica, name.as_str());
        let mut seen = BTreeSet::new();
        for entry in job.history.iter().rev() {
            let is_last = entry
                .start_id
                .as_ref()
                .is_some_and(|start_id| seen.insert(start_id));
            let HistoryKind::Stopping {
                at,
                reason:
                    StopReason::UserRequested
                    | StopReason::JobFailed
                    | StopReason::Migration
                    | StopReason::BundleChanged,
                ..
            } = &entry.kind
            else {
                continue;
            };
            if let Some(what) = self.is_gone(job_id, &place, at, policy).filter(|_| is_last) {
                self.push(now, what, None);
            }
        }
    }

    /// What an entry of a job's history is in a scenario, if it does not follow from something else there.
    fn of_entry(
        &mut self,
        now: Now,
        job: &JobWithHistory,
        entry: &HistoryEntry,
        place: &str,
        policy: &Policy,
    ) -> Option<Result<Value, String>> {
        let job_id = &job.job.job_id;
        let instance =
            |at: &At, key: &str| self.of_instance(key, place, (job_id, &at.node.node_id), policy);
        let what = match &entry.kind {
            HistoryKind::Prepared(at) => instance(at, "jobPrepared"),
            HistoryKind::Running { at, .. } => instance(at, "jobRunning"),
            HistoryKind::Rejected { at, code, detail } => {
                let rejection = (&at.node.node_id, *code, detail.as_str());
                let start_id = entry.start_id.as_ref();
                self.of_rejection(now, (job_id, place), start_id, rejection, policy);
                return None;
            }
            HistoryKind::Stopping {
                at,
                reason: StopReason::JobFailed,
                detail,
            } => {
                let node_id = at.node.node_id.clone();
                self.failed(now, node_id.as_str());
                Ok(json!({"jobFails": {"job": place, "reason": detail}}))
            }
            HistoryKind::Stopping {
                reason: StopReason::BundleChanged,
                ..
            } => {
                self.begins_anew(job);
                return None;
            }
            HistoryKind::Stopping {
                at,
                reason: StopReason::UserRequested,
                ..
            } => {
                let stop = (job_id.clone(), at.node.node_id.clone());
                let is_own = self.stops.remove(&stop);
                if is_own || !self.is_wanted(job) {
                    return None;
                }
                self.of_instance("stopJob", place, (&stop.0, &stop.1), policy)
            }
            HistoryKind::Failed { reason, .. } => {
                if self.verdicts.remove(job_id) {
                    return None;
                }
                Ok(json!({"markJobFailed": {"job": place, "reason": reason}}))
            }
            _ => return None,
        };
        Some(what)
    }

    /// An instance that stopped is gone, which a node that goes takes with it.
    fn is_gone(
        &self,
        job_id: &JobId,
        place: &str,
        at: &At,
        policy: &Policy,
    ) -> Option<Result<Value, String>> {
        let node_id = &at.node.node_id;
        let is_up = policy.node_state(node_id) == Some(MirrorState::Running)
            && !self.told_to_end.contains(node_id);
        is_up.then(|| self.of_instance("jobStopped", place, (job_id, node_id), policy))
    }

    /// Its bundle has the job, and it is not stopped by hand: nothing else that is recorded stops it.
    fn is_wanted(&self, job: &JobWithHistory) -> bool {
        let Some((bundle_id, replica, name)) = job.job.bundle_place() else {
            return false;
        };
        let bundle = self.bundles.get(&bundle_id).map(|status| &status.bundle);
        !job.job.is_dormant()
            && bundle.is_some_and(|bundle| {
                bundle.state == BundleState::Live
                    && replica < bundle.copies()
                    && bundle.job(name.as_str()).is_some()
            })
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
        self.failed(now, node_id.as_str());
        let mut step = json!({"job": place, "reason": reason, "code": code});
        // The target of a migration is another than the node of the job. Its role names the migration,
        // which has another name in a scenario.
        if policy.node_for_job(job_id) != Some(node_id)
            && let Some(node) = self.name(node_id, Some(job_id), policy)
        {
            step["node"] = node.into();
        }
        self.push(now, Ok(json!({"jobRejected": step})), None);
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

fn was_running(before: &[HistoryEntry], entry: &HistoryEntry) -> bool {
    let mut earlier = before.iter().filter(|it| it.start_id == entry.start_id);
    earlier.any(|it| {
        matches!(
            it.kind,
            HistoryKind::Running { .. } | HistoryKind::Stopping { .. }
        )
    })
}

/// How an instance came to its end.
enum Ended {
    /// It was rejected or lost: nothing is left of which a worker tells later that it is gone.
    AtOnce,
    /// Nobody stopped it.
    ByItself,
    /// It was told to stop, or failed.
    Told,
}

fn ended(before: &[HistoryEntry], entry: &HistoryEntry) -> Ended {
    let earlier = || {
        let all = before.iter().rev();
        all.filter(|it| it.start_id == entry.start_id)
    };
    if earlier().any(|it| matches!(it.kind, HistoryKind::Rejected { .. })) {
        return Ended::AtOnce;
    }
    match earlier().next().map(|it| &it.kind) {
        Some(HistoryKind::Stopping {
            reason:
                StopReason::UserRequested
                | StopReason::JobFailed
                | StopReason::Migration
                | StopReason::BundleChanged,
            ..
        }) => Ended::Told,
        Some(HistoryKind::Stopping { .. }) | None => Ended::AtOnce,
        Some(_) => Ended::ByItself,
    }
}
