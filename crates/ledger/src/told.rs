//! What the audit log says of a call (AUDIT-02): its object and what it changed, without secrets.

use std::collections::BTreeSet;

use greenroom_types::call::{Call, Reply};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::ledger::Ledger;

/// A call as it will be told if it succeeds.
pub(crate) struct Told {
    kind: &'static str,
    payload: Value,
    /// The definition that the call replaces, and the one it brings.
    definitions: Option<(Value, Value)>,
}

// === impl Ledger ===

impl Ledger {
    /// Looks at a call before it is applied. None for one that is not told: appending and pruning tell
    /// of themselves, a trial changes nothing, and a value written again as it was, which is how keys
    /// are renewed, would drown everything else.
    pub(crate) fn tell(&self, call: &Call) -> Option<Told> {
        let told = |kind, payload| {
            Some(Told {
                kind,
                payload,
                definitions: None,
            })
        };
        match call {
            Call::AppendAuditEntry { .. } | Call::PruneAuditLog { .. } => None,
            Call::UpdateBundle { dry_run: true, .. } => None,
            Call::CreateJob(job) => told("create_job", json!({"job": job.job_id})),
            Call::UpdateJob(job, _) => Some(Told {
                kind: "update_job",
                payload: json!({"job": job.job_id}),
                definitions: self
                    .jobs
                    .get(&job.job_id)
                    .map(|old| (plain(&old.view.job), plain(job))),
            }),
            Call::DeleteJob(job_id) => told("delete_job", json!({"job": job_id})),
            Call::CompleteJob(job_id) => told("complete_job", json!({"job": job_id})),
            Call::StartJob(start) => told(
                "start_job",
                json!({"job": start.job_id, "role": start.role, "node": start.node_id}),
            ),
            Call::StartPreparedJob { key, node_id } => told(
                "start_prepared_job",
                json!({"job": key.job_id, "role": key.role, "node": node_id}),
            ),
            Call::StopJob { key, node_id, .. } => told(
                "stop_job",
                json!({"job": key.job_id, "role": key.role, "node": node_id}),
            ),
            Call::MarkJobFailed { job_id, reason } => {
                told("mark_job_failed", json!({"job": job_id, "reason": reason}))
            }
            Call::CreateBundle(bundle) => {
                told("create_bundle", json!({"bundle": bundle.bundle_id}))
            }
            Call::UpdateBundle { bundle, .. } => Some(Told {
                kind: "update_bundle",
                payload: json!({"bundle": bundle.bundle_id}),
                definitions: self
                    .bundles
                    .get(&bundle.bundle_id)
                    .map(|old| (plain(&*old.bundle), plain(bundle))),
            }),
            Call::DeleteBundle(bundle_id) => told("delete_bundle", json!({"bundle": bundle_id})),
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            } => told(
                "start_bundle_job",
                json!({"bundle": bundle_id, "replica": replica_index, "name": job_name}),
            ),
            Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                ..
            } => told(
                "stop_bundle_job",
                json!({"bundle": bundle_id, "replica": replica_index, "name": job_name}),
            ),
            Call::SetBundleStopTime { bundle_id, stop_at } => told(
                "set_bundle_stop_time",
                json!({"bundle": bundle_id, "stopAt": stop_at.map(|at| at.0)}),
            ),
            Call::CreateAwsNode(node) => told(
                "create_aws_node",
                json!({"node": node.node_id, "region": node.region, "type": node.instance_type}),
            ),
            Call::CreateOciNode(node) => told(
                "create_oci_node",
                json!({"node": node.node_id, "domain": node.availability_domain, "shape": node.shape}),
            ),
            Call::TerminateNode(node_id) => told("terminate_node", json!({"node": node_id})),
            Call::UpdatePhysicalNode {
                node_id,
                daemon_version,
            } => told(
                "update_physical_node",
                json!({"node": node_id, "version": daemon_version}),
            ),
            Call::SetNodeTags {
                node_id,
                tags,
                remove,
                ..
            } => told(
                "set_node_tags",
                json!({"node": node_id, "set": tags.keys().collect::<Vec<_>>(), "removed": remove}),
            ),
            Call::AdoptInstance {
                node_id,
                key,
                start_id,
            } => told(
                "adopt_instance",
                json!({"node": node_id, "job": key.job_id, "role": key.role, "start": start_id}),
            ),
            Call::SetNodeIdleExpiry {
                node_id,
                idle_expiry_ms,
            } => told(
                "set_node_idle_expiry",
                json!({"node": node_id, "ms": idle_expiry_ms.0}),
            ),
            // Not the token (LOCAL-04).
            Call::RegisterClusterNode { node_name, pool } => told(
                "register_cluster_node",
                json!({"name": node_name, "pool": pool}),
            ),
            Call::RotateClusterNodeToken(node_id) => {
                told("rotate_cluster_node_token", json!({"node": node_id}))
            }
            Call::SetClusterNodePool { node_id, pool } => told(
                "set_cluster_node_pool",
                json!({"node": node_id, "pool": pool}),
            ),
            Call::DeregisterClusterNode(node_id) => {
                told("deregister_cluster_node", json!({"node": node_id}))
            }
            Call::PrefetchImages {
                node_id,
                image_refs,
            } => told(
                "prefetch_images",
                json!({"node": node_id, "images": image_refs}),
            ),
            // Not the values (KV-09).
            Call::KvCommit(commit) => {
                let space = self.kv.get(&commit.namespace);
                let is_renewed = |write: &greenroom_types::kv::KvWrite| {
                    let old = space.and_then(|space| space.get(&write.key));
                    old.is_some_and(|old| write.value.as_ref() == Some(&old.value))
                };
                if commit.set_schema_version.is_none() && commit.writes.iter().all(is_renewed) {
                    return None;
                }
                let keys: Vec<&str> = commit.writes.iter().map(|it| it.key.as_str()).collect();
                told(
                    "kv_commit",
                    json!({"namespace": commit.namespace, "keys": keys}),
                )
            }
            // Not the secrets (DISC-03).
            Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet,
                by,
            } => told(
                "publish_discovery_fleet",
                json!({
                    "addresses": fleet.addresses, "address": fleet.address, "by": by,
                    "replaceLeafToken": replace_leaf_token,
                }),
            ),
            Call::RotateDiscoveryTierSecret { step, by, .. } => told(
                "rotate_discovery_tier_secret",
                json!({"step": step.word(), "by": by}),
            ),
            // An attestation is renewed all the time, as a key is.
            Call::PublishAccessReplica(replica) if replica.snapshot.is_empty() => None,
            Call::PublishAccessReplica(replica) => told(
                "publish_access_replica",
                json!({"version": replica.version}),
            ),
            Call::ReloadExternalConfig => told("reload_external_config", json!({})),
            Call::PauseLeases { reason, by } => {
                told("pause_leases", json!({"reason": reason, "by": by}))
            }
            Call::ResumeLeases { by } => told("resume_leases", json!({"by": by})),
            // A renewal that changes nothing comes every few seconds.
            Call::RenewBundleLease { bundle_id, ttl_ms } => {
                let held = self.bundle_lease(bundle_id).map(|lease| lease.ttl_ms);
                if held == Some(*ttl_ms) {
                    return None;
                }
                told(
                    "renew_bundle_lease",
                    json!({"bundle": bundle_id, "ttlMs": ttl_ms.0}),
                )
            }
            // Steps of a migration change nothing here and reach no log (MGR-05).
            Call::NotifyMigrationGetState { .. }
            | Call::NotifyMigrationCutoverReady { .. }
            | Call::NotifyMigrationCutoverApply { .. }
            | Call::AbortMigration { .. } => None,
        }
    }
}

// === impl Told ===

impl Told {
    pub(crate) const fn kind(&self) -> &'static str {
        self.kind
    }

    /// What to write, with what the answer adds: ids that were made.
    pub(crate) fn payload(self, reply: &Reply) -> Value {
        let mut payload = self.payload;
        if let Some((before, after)) = self.definitions {
            payload["changed"] = json!(changed(&before, &after));
        }
        match reply {
            Reply::BundleCreated { bundle_id, .. } => payload["bundle"] = json!(bundle_id),
            Reply::Slot { node_id, .. } => payload["node"] = json!(node_id),
            Reply::Reloaded(changes) => payload["changes"] = json!(changes),
            _ => {}
        }
        payload
    }
}

// === helpers ===

fn plain<T: Serialize>(definition: &T) -> Value {
    serde_json::to_value(definition).unwrap_or_default()
}

/// Names of the members that differ; values may be secret.
fn changed(before: &Value, after: &Value) -> BTreeSet<String> {
    let empty = Map::new();
    let (before, after) = (
        before.as_object().unwrap_or(&empty),
        after.as_object().unwrap_or(&empty),
    );
    let names = before.keys().chain(after.keys());
    names
        .filter(|name| before.get(*name) != after.get(*name))
        .cloned()
        .collect()
}
