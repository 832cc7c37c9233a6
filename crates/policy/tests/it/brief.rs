//! Effects as short lines, so that a test reads as what was done and told.

use greenroom_policy::{Callback, Effect};
use greenroom_types::NodeId;
use greenroom_types::call::Call;

use crate::world::World;

impl World {
    pub(crate) fn brief(&self, effect: &Effect) -> String {
        match effect {
            Effect::Call { call, .. } => format!("call {}", self.brief_call(call)),
            Effect::Callback(callback) => self.brief_callback(callback),
            Effect::ApiReply { id, result } => match result {
                Ok(_) => format!("reply {} ok", id.0),
                Err(error) => format!("reply {} {}", id.0, error.code()),
            },
            Effect::Log { .. } => "log".to_owned(),
            Effect::CloseChannel { error } => {
                format!("close {}", error.as_deref().unwrap_or("in order"))
            }
        }
    }

    fn brief_call(&self, call: &Call) -> String {
        match call {
            Call::StartJob(start) => {
                format!(
                    "start {} {} on {}",
                    start.job_id,
                    start.role,
                    self.short(&start.node_id)
                )
            }
            Call::CreateAwsNode(create) => format!(
                "create {} {} in {}",
                self.short(&create.node_id),
                create.instance_type,
                create.tags["tier"]
            ),
            Call::TerminateNode(node_id) => format!("terminate {}", self.short(node_id)),
            Call::MarkJobFailed { job_id, .. } => format!("markJobFailed {job_id}"),
            Call::StopJob { key, node_id, .. } => format!("stop {key} on {}", self.short(node_id)),
            Call::StartPreparedJob { key, node_id } => format!("startPrepared {key} on {node_id}"),
            Call::AbortMigration {
                job_id,
                target_role,
                ..
            } => format!("abortMigration {job_id} {target_role}"),
            Call::AdoptInstance { node_id, key, .. } => {
                format!("adopt {key} on {}", self.short(node_id))
            }
            Call::CreateJob(job) => format!("createJob {}", job.job_id),
            Call::DeleteJob(job_id) => format!("deleteJob {job_id}"),
            Call::DeleteBundle(bundle_id) => format!("deleteBundle {bundle_id}"),
            Call::SetNodeTags { node_id, tags, .. } => {
                let tags: Vec<String> = tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
                format!("setTags {} {}", self.short(node_id), tags.join(" "))
            }
            Call::PrefetchImages {
                node_id,
                image_refs,
            } => format!("prefetch {} {}", self.short(node_id), image_refs.join(" ")),
            other => other.name().to_owned(),
        }
    }

    fn brief_callback(&self, callback: &Callback) -> String {
        let value = serde_json::to_value(callback).unwrap();
        let (name, fields) = value.as_object().unwrap().iter().next().unwrap();
        match callback {
            Callback::OnPlacementDecision(info) => {
                let kind = serde_json::to_value(info.kind).unwrap();
                let node = info.node_id.as_ref().map(|node| self.short(node));
                let place = match info.kind {
                    greenroom_policy::effect::PlacementKind::Provision => info.tier.to_string(),
                    _ => node.unwrap_or_default(),
                };
                let line = format!("decide {} {} {place}", info.job_id, kind.as_str().unwrap());
                line.trim_end().to_owned()
            }
            Callback::OnError(error) => format!("{name} {}", error.code),
            _ => {
                if let Callback::OnDrainProgress(state) = callback {
                    let mut line = format!("drain {:?}", state.phase).to_lowercase();
                    for job in &state.jobs {
                        let status = format!("{:?}", job.status).to_lowercase();
                        line = format!("{line} {}:{status}", job.job_id);
                    }
                    return line;
                }
                if let Callback::OnImagesPrefetched { node_id, results } = callback {
                    let mut line = format!("{name} {}", self.short(node_id));
                    for result in results {
                        let end = if result.ok { "ok" } else { &result.error };
                        line = format!("{line} {}:{end}", result.image_ref);
                    }
                    return line;
                }
                if let Callback::OnMigrationPhase(state) = callback {
                    let phase = serde_json::to_value(state.phase).unwrap();
                    return format!("{name} {}", phase.as_str().unwrap());
                }
                if let Callback::OnMigrationAborted { reason, .. } = callback {
                    return format!("{name} {reason}");
                }
                if let Callback::OnSpareUnderflow {
                    pool,
                    current,
                    target,
                } = callback
                {
                    return format!("{name} {pool} {current}/{target}");
                }
                let subject = ["nodeId", "jobId", "bundleId", "state"]
                    .iter()
                    .find_map(|key| fields.get(key)?.as_str());
                let subject = match (callback, subject) {
                    (Callback::OnJobRejected { job_id, .. }, _) => job_id.to_string(),
                    (_, Some(text)) if fields.get("nodeId").is_some() => {
                        self.short(&NodeId::new(text))
                    }
                    (_, text) => text.unwrap_or_default().to_owned(),
                };
                format!("{name} {subject}").trim_end().to_owned()
            }
        }
    }
}

/// `primary@3f9c1e2a` as `primary@`.
pub(crate) fn plain_role(line: &str) -> String {
    match line.find('@').filter(|at| line[..*at].ends_with("primary")) {
        Some(at) => format!("{}@{}", &line[..at], &line[at + 9..]),
        None => line.to_owned(),
    }
}
