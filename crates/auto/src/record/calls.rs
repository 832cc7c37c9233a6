//! What an operator asks, in the words of a scenario.

use greenroom_policy::drain::DrainOptions;
use greenroom_policy::migration::MigrationPhase;
use greenroom_policy::{ApiCall, Policy};
use greenroom_types::{JobId, NodeId};
use serde_json::{Map, Value, json};

use super::Recorder;
use super::words::path_of;

// === impl Recorder ===

impl Recorder {
    /// What an operator asks; what changes bundles comes back with the Manager's stream.
    pub(super) fn of_call(&self, call: &ApiCall, policy: &Policy) -> Option<Result<Value, String>> {
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
                let mut drain = json!({"node": node, "force": options.force});
                if let Some(strategy) = strategies(node_id, options, policy) {
                    drain["strategy"] = strategy;
                }
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
                options,
            } => named(node_id, &|node| {
                let mut notice = json!({"node": node, "kind": kind});
                if let Some(strategy) = strategies(node_id, options, policy) {
                    notice["strategy"] = strategy;
                }
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
                    let Some(target) = self.name(target, None, policy) else {
                        return Some(Err(format!("a migration to {target}, which has no name")));
                    };
                    migrate["target"] = target.into();
                }
                Some(Ok(json!({"migrate": migrate})))
            }
            ApiCall::AbortMigration {
                migration_id,
                reason,
            } => {
                let migration = policy.migration_by_id(migration_id)?;
                if matches!(
                    migration.phase,
                    MigrationPhase::Done | MigrationPhase::Aborted
                ) {
                    // It is over: nothing comes of that.
                    return None;
                }
                let Some(job) = of_job(&migration.source_job_id) else {
                    let words = format!("the end of a migration of {}", migration.source_job_id);
                    return Some(Err(format!("{words}, which has no name")));
                };
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

/// How the jobs of a drain change over: one way for all, or one for each that has its own.
fn strategies(node_id: &NodeId, options: &DrainOptions, policy: &Policy) -> Option<Value> {
    if options.strategies.is_empty() {
        return options.strategy.map(|strategy| json!(strategy));
    }
    let nodes = policy.nodes();
    let node = nodes.iter().find(|node| node.node_id == *node_id)?;
    let each: Map<String, Value> = node
        .jobs
        .iter()
        .filter_map(|job_id| {
            let strategy = options
                .strategies
                .get(job_id)
                .copied()
                .or(options.strategy)?;
            Some((path_of(job_id, policy)?, json!(strategy)))
        })
        .collect();
    Some(Value::Object(each))
}
