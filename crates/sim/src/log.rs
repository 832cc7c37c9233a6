//! The transitions of a run: one short line each, in columns, and the same as JSON lines.
//!
//! The last ones are always kept, for the report of a failure; all of them only when asked for.

use std::collections::VecDeque;
use std::fmt::Write as _;

use greenroom_policy::Callback;
use greenroom_policy::effect::{PlacementInfo, PlacementKind};
use greenroom_policy::event::CallFailure;
use greenroom_types::call::Call;
use greenroom_types::job::{HistoryKind, JobWithHistory};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, Mono, NodeId};
use serde::Serialize;
use serde_json::{Value, json};

use crate::format::code;
use crate::format::names::JobPath;
use crate::view;
use crate::world::Purchases;

/// Transitions shown with a failure.
const LAST: usize = 20;

/// What is kept of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The last transitions.
    #[default]
    Last,
    /// All of them as text.
    Lines,
    /// All of them as JSON, one object a line.
    Json,
}

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    keep: Keep,
    now: Mono,
    last: VecDeque<String>,
    all: Vec<String>,
}

/// Virtual time as `h:mm:ss.mmm`.
pub(crate) fn time(at: Mono) -> String {
    let ms = at.0;
    format!(
        "{}:{:02}:{:02}.{:03}",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1_000 % 60,
        ms % 1_000
    )
}

// === impl Log ===

impl Log {
    pub(crate) fn new(keep: Keep) -> Self {
        Self {
            keep,
            ..Self::default()
        }
    }

    /// Notes what time it is.
    pub(crate) const fn clock(&mut self, now: Mono) {
        self.now = now;
    }

    pub(crate) fn time(&self, at: Mono) -> String {
        time(at)
    }

    /// The last transitions, oldest first.
    pub(crate) fn last(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }

    /// Everything that was asked to be kept.
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.all
    }

    /// A transition that is nothing but words.
    pub(crate) fn line(&mut self, kind: &str, text: impl FnOnce() -> String) {
        self.add(kind, kind, text(), || Value::Null);
    }

    /// A step begins.
    pub(crate) fn step(&mut self, index: usize, text: &str) {
        self.add("step", "step", format!("{index}: {text}"), || json!(index));
    }

    /// The policy calls the Manager.
    pub(crate) fn call(&mut self, call: &Call, names: &Purchases) {
        let (name, text) = call_text(call, names);
        self.add("call", name, format!("{name} {text}"), || {
            view::of_call(call).1
        });
    }

    /// The Manager refused.
    pub(crate) fn refusal(&mut self, failure: &CallFailure) {
        self.add("refused", "refused", failure.to_string(), || shown(failure));
    }

    /// The Manager's stream says something.
    pub(crate) fn event(&mut self, event: &StreamEvent, names: &Purchases) {
        let (name, text) = event_text(event, names);
        self.add("event", name, format!("{name} {text}"), || shown(event));
    }

    /// The policy tells its embedder. Callbacks that only repeat an event stand in the JSON alone.
    pub(crate) fn callback(&mut self, callback: &Callback, names: &Purchases) {
        if let Some(text) = callback_text(callback, names) {
            self.add("policy", "policy", text, || view::of_callback(callback).1);
        } else if self.keep == Keep::Json {
            let (name, data) = view::of_callback(callback);
            self.object("callback", &name, data);
        }
    }

    fn add(&mut self, kind: &str, name: &str, text: String, data: impl FnOnce() -> Value) {
        let mut line = format!("{:>12}  {kind:<8}", time(self.now));
        let _ = write!(line, "{text}");
        let line = line.trim_end().to_owned();
        match self.keep {
            Keep::Last => {}
            Keep::Lines => self.all.push(line.clone()),
            Keep::Json => {
                let mut data = data();
                if data.is_null() {
                    data = Value::String(text);
                }
                self.object(kind, name, data);
            }
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn object(&mut self, kind: &str, name: &str, data: Value) {
        let object = json!({"at": self.now.0, "kind": kind, "name": name, "data": data});
        self.all.push(object.to_string());
    }
}

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_else(|error| Value::String(error.to_string()))
}

/// A job as a scenario names it.
pub(crate) fn job(job_id: &JobId) -> String {
    JobPath::of_job_id(job_id.as_str()).map_or_else(|| job_id.to_string(), |path| path.to_string())
}

fn call_text(call: &Call, names: &Purchases) -> (&'static str, String) {
    let node = |node_id: &NodeId| names.name(node_id);
    match call {
        Call::StartJob(start) => {
            let mut text = format!("{} on {}", job(&start.job_id), node(&start.node_id));
            let _ = write!(text, " as {}", start.role);
            if let Some(index) = start.gpu_index {
                let _ = write!(text, ", device {index}");
            }
            ("startJob", text)
        }
        Call::StopJob { key, node_id, .. } => (
            "stopJob",
            format!("{} on {} as {}", job(&key.job_id), node(node_id), key.role),
        ),
        Call::MarkJobFailed { job_id, reason } => {
            ("markJobFailed", format!("{}: {reason}", job(job_id)))
        }
        Call::CreateAwsNode(create) => (
            "createAwsNode",
            format!("{} {}", node(&create.node_id), create.instance_type),
        ),
        Call::CreateOciNode(create) => (
            "createOciNode",
            format!("{} {}", node(&create.node_id), create.shape),
        ),
        Call::TerminateNode(node_id) => ("terminateNode", node(node_id)),
        Call::CreateBundle(bundle) => ("createBundle", bundle.bundle_id.to_string()),
        Call::UpdateBundle { bundle, .. } => ("updateBundle", bundle.bundle_id.to_string()),
        Call::DeleteBundle(bundle_id) => ("deleteBundle", bundle_id.to_string()),
        Call::SetBundleStopTime { bundle_id, stop_at } => (
            "setBundleStopTime",
            match stop_at {
                Some(at) => format!("{bundle_id} {at}"),
                None => format!("{bundle_id} none"),
            },
        ),
        Call::StartBundleJob {
            bundle_id,
            replica_index,
            job_name,
        } => (
            "startBundleJob",
            format!("{bundle_id}/{replica_index}/{job_name}"),
        ),
        Call::StopBundleJob {
            bundle_id,
            replica_index,
            job_name,
            ..
        } => (
            "stopBundleJob",
            format!("{bundle_id}/{replica_index}/{job_name}"),
        ),
        Call::StartPreparedJob { key, node_id } => (
            "startPreparedJob",
            format!("{} on {} as {}", job(&key.job_id), node(node_id), key.role),
        ),
        Call::NotifyMigrationGetState { key, .. } => ("notifyMigrationGetState", key_text(key)),
        Call::NotifyMigrationCutoverReady { key, .. } => {
            ("notifyMigrationCutoverReady", key_text(key))
        }
        Call::NotifyMigrationCutoverApply { key, .. } => {
            ("notifyMigrationCutoverApply", key_text(key))
        }
        Call::PrefetchImages {
            node_id,
            image_refs,
        } => (
            "prefetchImages",
            format!("{} {}", node(node_id), image_refs.join(" ")),
        ),
        Call::AbortMigration { job_id, reason, .. } => {
            ("abortMigration", format!("{}: {reason}", job(job_id)))
        }
        Call::SetNodeTags { node_id, tags, .. } => {
            let pairs: Vec<String> = tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
            (
                "setNodeTags",
                format!("{} {}", node(node_id), pairs.join(" ")),
            )
        }
        other => (other.name(), String::new()),
    }
}

fn key_text(key: &InstanceKey) -> String {
    format!("{} as {}", job(&key.job_id), key.role)
}

fn event_text(event: &StreamEvent, names: &Purchases) -> (&'static str, String) {
    let node = |node_id: &NodeId| names.name(node_id);
    match event {
        StreamEvent::NodeRunning { metadata, .. } => ("nodeRunning", node(&metadata.node_id)),
        StreamEvent::JobActive(view) => ("jobActive", job_text(view, names)),
        StreamEvent::JobPending(view) => ("jobPending", job_text(view, names)),
        StreamEvent::JobUpdated(view) => ("jobUpdated", job_text(view, names)),
        StreamEvent::JobDeleted(job_id) => ("jobDeleted", job(job_id)),
        StreamEvent::JobOutOfWindow(view) => ("jobOutOfWindow", job(&view.job.job_id)),
        StreamEvent::NodeStarting { metadata, phase } => {
            let phase = phase.map(|phase| code(&phase)).unwrap_or_default();
            (
                "nodeStarting",
                format!("{} {phase}", node(&metadata.node_id)),
            )
        }
        StreamEvent::NodeStarted { metadata, .. } => ("nodeStarted", node(&metadata.node_id)),
        StreamEvent::NodeStopping {
            node_id, reason, ..
        } => (
            "nodeStopping",
            format!("{} {}", node(node_id), code(reason)),
        ),
        StreamEvent::NodeStopped { node_id } => ("nodeStopped", node(node_id)),
        StreamEvent::InitialDataComplete(_) => ("initialDataComplete", String::new()),
        StreamEvent::BundleActive(status) => ("bundleActive", status.bundle.bundle_id.to_string()),
        StreamEvent::BundleUpdated(status) => {
            let bundle = &status.bundle;
            (
                "bundleUpdated",
                format!("{} {}", bundle.bundle_id, code(&bundle.state)),
            )
        }
        StreamEvent::BundleDeleted(bundle_id) => ("bundleDeleted", bundle_id.to_string()),
        StreamEvent::NodeInventorySnapshot { node_id, .. } => {
            ("nodeInventorySnapshot", node(node_id))
        }
        StreamEvent::NodeInventoryUpdated { node_id, inventory } => {
            let jobs: Vec<String> = inventory
                .assigned_jobs
                .iter()
                .map(|assigned| job(&assigned.job_id))
                .collect();
            let cordoned = if inventory.cordoned { " cordoned" } else { "" };
            let low = if inventory.disk_low { " diskLow" } else { "" };
            (
                "nodeInventoryUpdated",
                format!("{}{cordoned}{low} [{}]", node(node_id), jobs.join(" ")),
            )
        }
        StreamEvent::NodeReachabilityChanged { node_id, reachable } => (
            "nodeReachabilityChanged",
            format!("{} {reachable}", node(node_id)),
        ),
        StreamEvent::NodeTagsUpdated { metadata, .. } => {
            ("nodeTagsUpdated", node(&metadata.node_id))
        }
        StreamEvent::JobRejected {
            node_id,
            key,
            code: why,
            reason,
            ..
        } => (
            "jobRejected",
            format!(
                "{} by {}, {}: {reason}",
                job(&key.job_id),
                node(node_id),
                code(why)
            ),
        ),
        StreamEvent::NodeInterruptionNotice {
            node_id,
            kind,
            deadline,
            ..
        } => {
            let when = deadline.map_or_else(String::new, |at| format!(" by {at}"));
            (
                "nodeInterruptionNotice",
                format!("{} {}{when}", node(node_id), code(kind)),
            )
        }
        StreamEvent::ImagesPrefetched {
            node_id, results, ..
        } => {
            let each: Vec<String> = results
                .iter()
                .map(|it| format!("{} {}", it.image_ref, if it.ok { "ok" } else { "failed" }))
                .collect();
            (
                "imagesPrefetched",
                format!("{} {}", node(node_id), each.join(", ")),
            )
        }
        StreamEvent::JobPrepared { key, node_id, .. } => (
            "jobPrepared",
            format!("{} on {}", job(&key.job_id), node(node_id)),
        ),
        StreamEvent::Migration { key, signal, .. } => {
            let word = match signal {
                MigrationSignal::State(_) => "state",
                MigrationSignal::Refused(_) => "refused",
                MigrationSignal::TargetReady(_) => "targetReady",
                MigrationSignal::SourceStoppedOutput(_) => "sourceStoppedOutput",
                MigrationSignal::TargetApplied(_) => "targetApplied",
                MigrationSignal::Aborted { .. } => "aborted",
            };
            ("migration", format!("{word} from {}", key_text(key)))
        }
        other => ("other", code(other)),
    }
}

/// A job by the newest entry of its history.
fn job_text(view: &JobWithHistory, names: &Purchases) -> String {
    let name = job(&view.job.job_id);
    let Some(entry) = view.history.last() else {
        return name;
    };
    let what = match &entry.kind {
        HistoryKind::Created => "created".to_owned(),
        HistoryKind::Updated { .. } => "updated".to_owned(),
        HistoryKind::Provisioned(_) => "provisioned".to_owned(),
        HistoryKind::Prepared(_) => "prepared".to_owned(),
        HistoryKind::Running { .. } => "running".to_owned(),
        HistoryKind::Stopping { reason, .. } => format!("stopping ({})", code(reason)),
        HistoryKind::Stopped(_) => "stopped".to_owned(),
        HistoryKind::Completed => "completed".to_owned(),
        HistoryKind::Failed { reason, .. } => format!("failed: {reason}"),
        HistoryKind::Rejected { .. } => "rejected".to_owned(),
    };
    let place = entry.kind.at().map_or_else(String::new, |at| {
        format!(" on {} as {}", names.name(&at.node.node_id), at.role)
    });
    format!("{name} {what}{place}")
}

fn callback_text(callback: &Callback, names: &Purchases) -> Option<String> {
    Some(match callback {
        Callback::OnError(error) => format!("onError {}: {}", error.code, error.message),
        Callback::OnJobDropped { job_id } => format!("onJobDropped {}", job(job_id)),
        Callback::OnNodeTerminated { node_id } => {
            format!("onNodeTerminated {}", names.name(node_id))
        }
        Callback::OnNodeUnhealthy { node_id } => {
            format!("onNodeUnhealthy {}", names.name(node_id))
        }
        Callback::OnNodeHealthy { node_id } => format!("onNodeHealthy {}", names.name(node_id)),
        Callback::OnBundleBroken { bundle_id, reason } => {
            format!("onBundleBroken {bundle_id}: {reason}")
        }
        Callback::OnPlacementDecision(info) => decision_text(info, names),
        Callback::OnMigrationPhase(state) => {
            let at = state.target_node_id.as_ref().map(|id| names.name(id));
            let to = at.map_or_else(String::new, |node| format!(" to {node}"));
            let from = names.name(&state.source_node_id);
            let who = job(&state.source_job_id);
            format!("migration of {who} from {from}{to}: {}", code(&state.phase))
        }
        Callback::OnMigrationAborted { reason, .. } => format!("onMigrationAborted: {reason}"),
        Callback::OnDrainProgress(state) => {
            let jobs: Vec<String> = state
                .jobs
                .iter()
                .map(|drained| format!("{} {}", job(&drained.job_id), code(&drained.status)))
                .collect();
            let node = names.name(&state.node_id);
            format!(
                "drain of {node}: {} [{}]",
                code(&state.phase),
                jobs.join(", ")
            )
        }
        Callback::OnNodeInterrupted(notice) => {
            format!(
                "onNodeInterrupted {} {}",
                names.name(&notice.node_id),
                code(&notice.kind)
            )
        }
        Callback::OnSpareUnderflow {
            pool,
            current,
            target,
        } => format!("onSpareUnderflow {pool}: {current} of {target}"),
        Callback::OnResilienceDegraded {
            job_id, violated, ..
        } => format!("onResilienceDegraded {} {}", job(job_id), code(violated)),
        _ => return None,
    })
}

fn decision_text(info: &PlacementInfo, names: &Purchases) -> String {
    let what = match info.kind {
        PlacementKind::Place => "place",
        PlacementKind::Provision => "provision for",
        PlacementKind::Failure => "no place for",
    };
    let mut text = format!("{what} {} ({})", job(&info.job_id), code(&info.context));
    if info.kind == PlacementKind::Failure {
        return text;
    }
    if let (PlacementKind::Place, Some(node_id)) = (info.kind, &info.node_id) {
        let _ = write!(text, " on {}", names.name(node_id));
    }
    let _ = write!(text, ", {} / {}", info.pool, info.tier);
    if !info.instance_type.is_empty() {
        let _ = write!(text, ", {}", info.instance_type);
    }
    if info.degraded {
        text.push_str(", degraded");
    }
    text
}
