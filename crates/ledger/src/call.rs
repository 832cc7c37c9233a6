//! Calls: repeats by request id (API-07), and the way to each handler.

use greenroom_types::Wall;
use greenroom_types::call::{Call, CallResult};

use crate::command::{Called, Fresh};
use crate::hash;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{invalid, required};
use crate::state::Recorded;

/// How long an outcome is remembered.
const REMEMBERED_MS: i64 = 600_000;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn apply_called(&mut self, out: &mut Out, called: Called) -> CallResult {
        let Called {
            call,
            actor,
            request_id,
            fresh,
        } = called;
        out.actor.clone_from(&actor);
        let Some(request_id) = request_id else {
            return self.apply_told(out, call, &actor, &fresh);
        };
        if request_id.len() > 64 || !request_id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(invalid(
                "bad_request_id",
                "greenroom-request-id must be 1 to 64 visible ASCII characters",
            ));
        }
        required("greenroom-request-id", &request_id)?;
        // The id holds no space, so the key is unambiguous. Callers cannot see each other's outcomes: an id belongs to who used it.
        let key = format!("{request_id} {actor}");
        let body = hash::digest(&call);
        if let Some(recorded) = self.requests.get(&key)
            && out.at.since(recorded.at) < REMEMBERED_MS
        {
            if recorded.body != body {
                return Err(invalid(
                    "request_id_reused",
                    format!("request id {request_id:?} was used for another call: use a new one"),
                ));
            }
            return recorded.outcome.clone();
        }
        let outcome = self.apply_told(out, call, &actor, &fresh);
        if outcome.is_ok() {
            self.remember(out, key, body, outcome.clone());
        }
        outcome
    }

    /// Applies a call and tells of it in the audit log, if it changed anything (AUDIT-02, AUDIT-03).
    fn apply_told(&mut self, out: &mut Out, call: Call, actor: &str, fresh: &Fresh) -> CallResult {
        let told = self.tell(&call);
        let reply = self.apply_call(out, call, actor, fresh)?;
        if let Some(told) = told
            && out.changes_something()
        {
            let kind = told.kind();
            self.note(out, kind, &told.payload(&reply));
        }
        Ok(reply)
    }

    fn remember(&mut self, out: &mut Out, key: String, body: String, outcome: CallResult) {
        let recorded = Recorded {
            number: self.next_request,
            body,
            outcome,
            at: out.at,
        };
        self.next_request += 1;
        out.meta = true;
        out.requests.insert(key.clone());
        self.request_order.insert(recorded.number, key.clone());
        if let Some(old) = self.requests.insert(key, recorded) {
            self.request_order.remove(&old.number);
        }
        while let Some((&number, oldest)) = self.request_order.first_key_value() {
            let too_many = self.requests.len() > self.config.limits.request_ids;
            if !too_many && !self.is_expired(oldest, out.at) {
                break;
            }
            out.requests.insert(oldest.clone());
            self.requests.remove(oldest);
            self.request_order.remove(&number);
        }
    }

    fn is_expired(&self, key: &str, now: Wall) -> bool {
        self.requests
            .get(key)
            .is_none_or(|recorded| now.since(recorded.at) >= REMEMBERED_MS)
    }

    fn apply_call(&mut self, out: &mut Out, call: Call, actor: &str, fresh: &Fresh) -> CallResult {
        match call {
            Call::CreateJob(job) => self.create_job(out, *job),
            Call::UpdateJob(job, expected) => self.update_job(out, *job, expected),
            Call::DeleteJob(job_id) => self.delete_job(out, &job_id),
            Call::CompleteJob(job_id) => self.complete_job(out, &job_id),
            Call::StartJob(start) => self.start_job(out, start, fresh),
            Call::StartPreparedJob { key, node_id } => self.start_prepared(out, &key, &node_id),
            Call::StopJob {
                key,
                node_id,
                grace_ms,
            } => self.stop_job(out, &key, &node_id, grace_ms),
            Call::MarkJobFailed { job_id, reason } => {
                self.mark_job_failed(out, &job_id, &reason, actor)
            }
            Call::CreateBundle(bundle) => self.create_bundle(out, *bundle, fresh),
            Call::UpdateBundle {
                bundle,
                dry_run,
                clear_stop_time,
            } => self.update_bundle(out, *bundle, dry_run, clear_stop_time),
            Call::DeleteBundle(bundle_id) => self.delete_bundle(out, &bundle_id),
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            } => self.start_bundle_job(out, &bundle_id, replica_index, &job_name),
            Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                grace_ms,
            } => self.stop_bundle_job(out, &bundle_id, replica_index, &job_name, grace_ms),
            Call::SetBundleStopTime { bundle_id, stop_at } => {
                self.set_bundle_stop_time(out, &bundle_id, stop_at)
            }
            Call::CreateAwsNode(node) => self.create_aws_node(out, *node),
            Call::CreateOciNode(node) => self.create_oci_node(out, *node),
            Call::TerminateNode(node_id) => self.terminate_node(out, &node_id),
            Call::UpdatePhysicalNode {
                node_id,
                daemon_version,
            } => self.update_physical_node(out, &node_id, daemon_version),
            Call::SetNodeTags {
                node_id,
                tags,
                remove,
                expected_revision,
            } => self.set_node_tags(out, &node_id, tags, &remove, expected_revision),
            Call::RegisterClusterNode { node_name, pool } => {
                self.register_slot(out, node_name, pool, fresh)
            }
            Call::DeregisterClusterNode(node_id) => self.deregister_slot(out, &node_id),
            Call::PrefetchImages {
                node_id,
                image_refs,
            } => self.prefetch_images(out, &node_id, image_refs, fresh),
            Call::NotifyMigrationGetState { key, migration_id } => {
                self.relay_get_state(out, &key, &migration_id)
            }
            Call::NotifyMigrationCutoverReady {
                key,
                migration_id,
                payload,
            } => self.relay_cutover_ready(out, &key, &migration_id, payload),
            Call::NotifyMigrationCutoverApply {
                key,
                migration_id,
                payload,
            } => self.relay_cutover_apply(out, &key, &migration_id, payload),
            Call::KvCommit(commit) => self.kv_commit(out, commit),
            Call::AdoptInstance {
                node_id,
                key,
                start_id,
            } => self.adopt_instance(out, &node_id, &key, start_id.as_ref()),
            Call::SetNodeIdleExpiry {
                node_id,
                idle_expiry_ms,
            } => self.set_idle_expiry(out, &node_id, idle_expiry_ms),
            Call::SetClusterNodePool { node_id, pool } => self.set_slot_pool(out, &node_id, pool),
            Call::RotateClusterNodeToken(node_id) => self.rotate_token(out, &node_id, fresh),
            Call::AppendAuditEntry {
                source,
                kind,
                payload,
            } => self.append_audit_entry(out, &source, &kind, payload, actor),
            Call::PruneAuditLog { before } => self.prune_audit_log(out, before, actor),
            Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet,
                ..
            } => self.publish_discovery(out, fleet, replace_leaf_token),
            Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret,
                ..
            } => self.rotate_discovery(out, step, new_tier_secret.0, fresh),
            Call::PublishAccessReplica(replica) => self.publish_replica(out, *replica, fresh),
            Call::ReloadExternalConfig => self.reload(out, fresh),
            Call::RenewBundleLease { bundle_id, ttl_ms } => {
                self.renew_bundle_lease(out, &bundle_id, ttl_ms)
            }
            Call::PauseLeases { reason, by } => self.pause_leases(out, &reason, &by, actor),
            Call::ResumeLeases { by } => self.resume_leases(out, &by, actor),
            Call::AbortMigration {
                job_id,
                source_role,
                target_role,
                reason,
                migration_id,
            } => self.abort_migration(
                out,
                &job_id,
                &[source_role, target_role],
                &reason,
                &migration_id,
            ),
        }
    }
}
