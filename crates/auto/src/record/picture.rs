//! Fleet and bundles as they stand at a calm moment, with which a recording can begin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_placement::Needs;
use greenroom_policy::Policy;
use greenroom_policy::drain::DrainPhase;
use greenroom_policy::effect::{MirrorState, NodeView};
use greenroom_policy::job::Standing;
use greenroom_policy::migration::MigrationPhase;
use greenroom_types::bundle::{BundleState, BundleStatus, StartMode};
use greenroom_types::inventory::{NodeInventory, RuntimeKind};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::InterruptionKind;
use greenroom_types::{JobId, Millis, NodeId, Now};
use serde_json::{Map, Value, json};

use super::Recorder;
use super::words::{entries, manifest, of_node, path, path_of};

/// Time between two pictures. A recording begins at the last one before the time asked for.
const PICTURE_EVERY: Millis = Millis(300_000);
/// How long a picture waits for starts and stops that are under way.
const PATIENCE: Millis = Millis(300_000);
/// How long the policy may think of a failure.
const FAILURES_COUNT: Millis = Millis(3_600_000);
/// Time between two looks for a calm moment; a look costs as much as the fleet is large.
const TRY_EVERY: Millis = Millis(10_000);
/// Pictures that are kept: those of an hour.
const PICTURES: usize = 13;
/// A larger fleet is not recorded: its pictures would cost more than they are worth.
const NODES: usize = 2_000;

#[derive(Debug)]
pub(super) struct Picture {
    pub(super) at: Now,
    /// Place of the first step that follows it.
    pub(super) place: u64,
    pub(super) settings: Value,
    pub(super) nodes: Vec<Value>,
    pub(super) bundles: Vec<Value>,
    /// How single jobs stand, where that is not as their bundle says.
    pub(super) jobs: Map<String, Value>,
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
            && self.joining.is_empty()
            && policy.migrations().iter().all(|it| is_over(it.phase))
            && !nodes.iter().any(|node| is_draining(&node.node_id, policy))
            && !nodes.iter().any(|node| {
                let is_leaving =
                    self.cut_off.contains(&node.node_id) || self.ending.contains(&node.node_id);
                is_leaving && node.state == MirrorState::Running
            });
        if !is_calm {
            return;
        }
        // A start that hangs is no reason to have no picture at all.
        let moving = moving(policy);
        let waited = now.mono
            - last.map_or(*self.due.get_or_insert(now.mono), |last| {
                last + PICTURE_EVERY
            });
        if !moving.is_empty() && waited < PATIENCE {
            return;
        }
        let mut picture = Picture {
            at: now,
            place: self.next_place,
            settings: self.settings(policy),
            nodes: Vec::new(),
            bundles: Vec::new(),
            jobs: Map::new(),
            first: Vec::new(),
            left_out: moving,
        };
        self.failures
            .retain(|_, at| (now.mono - *at) < FAILURES_COUNT);
        if !self.failures.is_empty() {
            let names: Vec<&str> = self.failures.keys().map(String::as_str).collect();
            let words = format!(
                "what failed in the hour before does not count here: {}",
                names.join(", ")
            );
            picture.left_out.push(words);
        }
        let mut devices = BTreeMap::new();
        self.known.clear();
        self.cut_off
            .retain(|node_id| policy.node_state(node_id) == Some(MirrorState::Stopped));
        for node in nodes {
            let node_id = &node.node_id;
            if node.state != MirrorState::Running {
                self.stands_stopped(&node, policy, &mut picture);
                continue;
            }
            self.known.insert(node_id.clone());
            if let Some(notice) = policy.node_interruption(node_id) {
                picture.left_out.push(format!(
                    "{node_id} had its notice of {} before, which a scenario would follow anew",
                    kind_of(&notice.kind)
                ));
            }
            let Some(inventory) = policy.inventory(node_id) else {
                // One that never says what it has is left out, with a word, when nothing else is waited for.
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
            if inventory.gpus.len() > 1 {
                let assigned = inventory.assigned_jobs.iter();
                devices.extend(assigned.filter_map(|it| Some((it.job_id.clone(), it.gpu_index?))));
            }
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
            if let Some(now) = cannot_begin_so(&node, inventory.cordoned, &mut shown, policy) {
                picture.first.push(json!({"at": 0, "inventory": now}));
            }
            picture.nodes.push(shown);
        }
        self.over.clear();
        self.dormant.clear();
        self.judged.clear();
        for job in policy.jobs() {
            let job_id = job.job.job_id.clone();
            self.seen.insert(job_id.clone(), entries(job));
            if job.job.is_dormant() {
                self.dormant.insert(job_id.clone());
            }
            if job.terminal_state.is_some() {
                self.judged.insert(job_id);
            }
        }
        for status in policy.bundles() {
            let bundle_id = status.bundle.bundle_id.clone();
            self.bundles.insert(bundle_id, Arc::clone(status));
            if status.bundle.state == BundleState::Live {
                picture
                    .bundles
                    .push(manifest(&status.bundle, &self.versions));
                stand(status, policy, now, &devices, &mut picture);
            }
        }
        if self.pictures.len() == PICTURES {
            self.pictures.pop_front();
            let oldest = self.pictures.front().map(|picture| picture.place);
            self.steps
                .retain(|step| oldest.is_none_or(|oldest| step.place >= oldest));
        }
        self.pictures.push_back(picture);
        self.forget_bought();
    }

    /// A server that is stopped and may come back. In a scenario it runs, with room for nothing, until
    /// the policy has seen it: then it goes.
    fn stands_stopped(&mut self, node: &NodeView, policy: &Policy, picture: &mut Picture) {
        let node_id = &node.node_id;
        if is_elastic(node, policy) {
            return;
        }
        self.known.insert(node_id.clone());
        let nothing = NodeInventory {
            cordoned: true,
            ..NodeInventory::default()
        };
        picture.nodes.push(of_node(node_id, &node.tags, &nothing));
        let mut then = |step: Value| picture.first.push(step);
        then(json!({"at": 0, "nodeStopped": node_id}));
        if policy.is_cordoned(node_id) {
            then(json!({"at": 0, "cordon": node_id}));
        }
        self.tags.insert(node_id.clone(), node.tags.clone());
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

/// A machine that its provider has ended does not come back.
fn is_elastic(node: &NodeView, policy: &Policy) -> bool {
    let pool = node
        .pool
        .as_ref()
        .and_then(|pool| policy.settings().pool(pool.as_str()));
    let tier = pool.zip(node.tier.as_ref());
    tier.and_then(|(pool, tier)| pool.tier(tier.as_str()))
        .is_some_and(greenroom_types::pool::Tier::is_elastic)
}

/// A node that runs what it could not be given now: its worker has less than it had, or another
/// runtime. It begins with as much as that takes, open to nothing else, and says then what it has.
fn cannot_begin_so(
    node: &NodeView,
    cordoned: bool,
    shown: &mut Value,
    policy: &Policy,
) -> Option<Value> {
    let mut used = Used::default();
    for job_id in &node.jobs {
        used.add(job_id, policy);
    }
    let runtime = RuntimeKind::of(shown["runtime"].as_str().unwrap_or_default());
    let has_room = shown["capacity"].as_f64() >= Some(used.capacity)
        && shown["cores"].as_u64() >= Some(used.cores);
    if has_room && used.needs.iter().all(|needs| needs.run_on(runtime)) {
        return None;
    }
    let mut now = json!({"node": node.node_id});
    for (key, most) in [
        ("capacity", json!(used.capacity)),
        ("cores", json!(used.cores)),
    ] {
        now[key] = shown[key].clone();
        if shown[key].as_f64() < most.as_f64() {
            shown[key] = most;
        }
    }
    now["cordoned"] = cordoned.into();
    shown["cordoned"] = true.into();
    if let Value::Object(keys) = shown
        && let Some(runtime) = keys.remove("runtime")
    {
        now["runtime"] = runtime;
    }
    Some(now)
}

/// What jobs take of a node.
#[derive(Default)]
struct Used {
    capacity: f64,
    cores: u64,
    needs: Vec<Needs>,
}

// === impl Used ===

impl Used {
    fn add(&mut self, job_id: &JobId, policy: &Policy) {
        let place = policy
            .job_by_id(job_id)
            .and_then(|job| job.job.bundle_place());
        let Some((bundle_id, _, name)) = place else {
            return;
        };
        let status = policy.bundle_by_id(&bundle_id);
        if let Some(job) = status.and_then(|status| status.bundle.job(name.as_str())) {
            self.capacity += job.requirements.required_capacity;
            self.cores += u64::from(job.requirements.required_cores);
            self.needs.push(Needs::of_job(job));
        }
    }
}

/// Starts and stops that are under way, in words: a scenario begins with what runs.
fn moving(policy: &Policy) -> Vec<String> {
    let nodes = policy.nodes().into_iter();
    let silent = nodes.filter(|node| {
        node.state == MirrorState::Running && policy.inventory(&node.node_id).is_none()
    });
    let mut moving: Vec<String> = silent
        .map(|node| format!("{} had not said what it has at the beginning", node.node_id))
        .collect();
    for job in policy.jobs() {
        let mut ends = BTreeSet::new();
        for entry in job.history.iter().rev() {
            let Some(start_id) = &entry.start_id else {
                continue;
            };
            if !ends.insert(start_id) {
                continue;
            }
            let (at, words) = match &entry.kind {
                HistoryKind::Provisioned(at) | HistoryKind::Prepared(at) => (at, "was starting"),
                HistoryKind::Stopping { at, reason, .. }
                    if !matches!(reason, StopReason::NodeStopped | StopReason::NodeTerminated) =>
                {
                    (at, "was stopping")
                }
                HistoryKind::Rejected { at, .. } => (at, "was stopping"),
                _ => continue,
            };
            let node_id = &at.node.node_id;
            if policy.node_state(node_id) != Some(MirrorState::Running) {
                continue;
            }
            let job_id = &job.job.job_id;
            let job = path_of(job_id, policy).unwrap_or_else(|| job_id.to_string());
            moving.push(format!("{job} {words} on {node_id} at the beginning"));
        }
    }
    moving
}

const fn kind_of(kind: &InterruptionKind) -> &'static str {
    match kind {
        InterruptionKind::SpotInterruption => "spot-interruption",
        InterruptionKind::Rebalance => "rebalance",
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

/// How the jobs of a bundle stand where it is not as the bundle says.
fn stand(
    status: &BundleStatus,
    policy: &Policy,
    now: Now,
    devices: &BTreeMap<JobId, u32>,
    picture: &mut Picture,
) {
    let bundle_id = &status.bundle.bundle_id;
    let mut is_explained = false;
    for copy in &status.jobs {
        let Some(job) = policy.job_by_id(&copy.job_id) else {
            continue;
        };
        let name = path(bundle_id, copy.replica_index, copy.job_name.as_str());
        let mut stands = Map::new();
        let spec = status.bundle.job(copy.job_name.as_str());
        let is_manual = spec.is_some_and(|spec| spec.start_mode == StartMode::Manual);
        let is_dormant = job.job.is_dormant();
        if is_dormant != is_manual {
            stands.insert("dormant".to_owned(), is_dormant.into());
        }
        if let Some(verdict) = &job.terminal_state {
            stands.insert("verdict".to_owned(), verdict.reason.as_str().into());
            is_explained |= spec.is_some_and(|spec| spec.requirements.essential);
        }
        if let Some(device) = devices.get(&copy.job_id) {
            stands.insert("gpu".to_owned(), (*device).into());
        }
        let restarts = policy.restart_count(now, &copy.job_id);
        if restarts > 0 && job.terminal_state.is_none() {
            let words = format!("{name} had {restarts} restarts before, which do not count here");
            picture.left_out.push(words);
        }
        let waits = match policy.standing_of(&copy.job_id) {
            Some(Standing::StoppedByRequest) => "stays stopped, as somebody asked for",
            Some(Standing::StartRetry) => "waits for another try of its start",
            Some(Standing::RecoverySpacing) => "waits until its last recovery is long enough ago",
            _ => "",
        };
        if !waits.is_empty() {
            let words = format!("{name} {waits}, and is placed here");
            picture.left_out.push(words);
        }
        if !stands.is_empty() {
            picture.jobs.insert(name, Value::Object(stands));
        }
    }
    let words = match (policy.is_bundle_broken(bundle_id), is_explained) {
        (true, false) => format!("bundle {bundle_id} was broken before"),
        // So it would be for the next control plane (CEIL-14).
        (false, true) => format!("bundle {bundle_id} was not broken before, for all its verdicts"),
        (true, true) | (false, false) => return,
    };
    picture.left_out.push(words);
}
