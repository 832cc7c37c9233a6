//! Fleet and bundles as they stand at a calm moment, with which a recording can begin.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_policy::Policy;
use greenroom_policy::drain::DrainPhase;
use greenroom_policy::effect::MirrorState;
use greenroom_policy::migration::MigrationPhase;
use greenroom_types::bundle::{BundleJobStatus, BundleState, BundleStatus, StartMode};
use greenroom_types::{JobId, JobName, Millis, NodeId, Now};
use serde_json::{Value, json};

use super::Recorder;
use super::words::{as_it_stands, entries, of_node, path, path_of};

/// Time between two pictures. A recording begins at the last one before the time asked for.
const PICTURE_EVERY: Millis = Millis(300_000);
/// Time between two looks for a calm moment; a look costs as much as the fleet is large.
const TRY_EVERY: Millis = Millis(10_000);
/// Pictures that are kept: those of an hour.
const PICTURES: usize = 13;
/// A larger fleet is not recorded: its pictures would cost more than they are worth.
const NODES: usize = 2_000;

#[derive(Debug)]
pub(super) struct Picture {
    pub(super) at: Now,
    pub(super) settings: Value,
    pub(super) nodes: Vec<Value>,
    pub(super) bundles: Vec<Value>,
    /// Steps with which the policy comes to stand as it stood then.
    pub(super) first: Vec<Value>,
    /// What of its standing a scenario has no words for.
    pub(super) left_out: Vec<String>,
}

// === impl Recorder ===

impl Recorder {
    /// Takes a picture when one is due and nothing is in the air: a scenario begins with nodes that
    /// run, and with no migration under way.
    pub(super) fn picture(&mut self, now: Now, policy: &Policy) {
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
            && self.is_answered()
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
        self.forget_bought();
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
