//! The relay of migrations: messages to the workers of both sides (MGR).
//!
//! No step is kept for a node that is not heard, since a late one is worse than none; an abort is
//! (DECM-10).

use greenroom_types::call::{Call, CallResult, Refusal, Reply, Status};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, MigrationId, NodeId, PAYLOAD_MAX, Payload, Role, StartId, Wall};

use crate::job::REASON_BYTES;
use crate::ledger::Ledger;
use crate::order::{MigrationStep, Order, WorkerOrder};
use crate::out::Out;
use crate::refuse::{self, failed, invalid, not_found, required, unknown_job};

/// Signals remembered of one instance, so that a repeat is known as one (MGR-11).
const SIGNALS: usize = 64;
/// Mark of a source that ended its output.
pub(crate) const STOPPED_OUTPUT: &str = "stopped_output";
/// Mark of a target that took over.
pub(crate) const APPLIED: &str = "applied";

// === impl Ledger ===

impl Ledger {
    /// Performs a call that only passes a step of a migration on. It changes nothing, so that it
    /// needs no commit and its payload stands in no log (MGR-05). None for every other call.
    pub fn relay(&self, call: &Call) -> Option<(CallResult, Vec<Order>)> {
        let mut out = Out::new(Wall::MIN);
        let outcome = match call {
            Call::NotifyMigrationGetState { key, migration_id } => {
                self.relay_get_state(&mut out, key, migration_id)
            }
            Call::NotifyMigrationCutoverReady {
                key,
                migration_id,
                payload,
            } => self.relay_cutover_ready(&mut out, key, migration_id, payload.clone()),
            Call::NotifyMigrationCutoverApply {
                key,
                migration_id,
                payload,
            } => self.relay_cutover_apply(&mut out, key, migration_id, payload.clone()),
            _ => return None,
        };
        Some((outcome, out.orders))
    }

    pub(crate) fn relay_get_state(
        &self,
        out: &mut Out,
        key: &InstanceKey,
        migration_id: &MigrationId,
    ) -> CallResult {
        self.pass_on(
            out,
            "source_job_key",
            key,
            migration_id,
            MigrationStep::GetState,
        )
    }

    pub(crate) fn relay_cutover_ready(
        &self,
        out: &mut Out,
        key: &InstanceKey,
        migration_id: &MigrationId,
        payload: Payload,
    ) -> CallResult {
        check_payload(&payload)?;
        self.pass_on(
            out,
            "source_job_key",
            key,
            migration_id,
            MigrationStep::CutoverReady(payload),
        )
    }

    pub(crate) fn relay_cutover_apply(
        &self,
        out: &mut Out,
        key: &InstanceKey,
        migration_id: &MigrationId,
        payload: Payload,
    ) -> CallResult {
        check_payload(&payload)?;
        self.pass_on(
            out,
            "target_job_key",
            key,
            migration_id,
            MigrationStep::CutoverApply(payload),
        )
    }

    fn pass_on(
        &self,
        out: &mut Out,
        path: &str,
        key: &InstanceKey,
        migration_id: &MigrationId,
        step: MigrationStep,
    ) -> CallResult {
        required(&format!("{path}.job_id"), key.job_id.as_str())?;
        required(&format!("{path}.role"), key.role.as_str())?;
        required("migration_id", migration_id.as_str())?;
        let none = || not_found("no_instance", format!("{key} has no live instance"));
        let live = self.live_instance(key).ok_or_else(none)?;
        let record = self.jobs.get(&key.job_id).ok_or_else(none)?;
        if !record.view.job.handover {
            return Err(failed(
                "not_cooperative",
                format!("job {:?} is not declared with handover", key.job_id),
            ));
        }
        self.check_knows_more(&live.node_id, "migrations")?;
        let heard = self
            .nodes
            .get(&live.node_id)
            .is_some_and(|node| node.is_running());
        if !heard {
            return Err(Refusal::new(
                Status::Unavailable,
                "node_unreachable",
                format!(
                    "node {:?} of {key} is not heard at the moment",
                    live.node_id
                ),
            )
            .with("node", live.node_id.as_str()));
        }
        out.order(
            &live.node_id,
            WorkerOrder::Migration {
                instance: live.instance_ref(),
                migration_id: migration_id.clone(),
                step,
            },
        );
        Ok(Reply::Done)
    }

    pub(crate) fn abort_migration(
        &mut self,
        out: &mut Out,
        job_id: &JobId,
        roles: &[Role; 2],
        reason: &str,
        migration_id: &MigrationId,
    ) -> CallResult {
        refuse::job_id(job_id)?;
        refuse::role("source_role", &roles[0])?;
        refuse::role("target_role", &roles[1])?;
        if !self.jobs.contains_key(job_id) {
            return Err(unknown_job(job_id));
        }
        let reason = refuse::cut(reason, REASON_BYTES);
        let mut notified: Vec<String> = Vec::new();
        for role in roles {
            let key = InstanceKey::new(job_id.clone(), role.clone());
            let Some(start_id) = self.live.get(&key).cloned() else {
                continue;
            };
            if notified.contains(&role.to_string()) {
                continue;
            }
            if self.abort_at(out, &start_id, migration_id, &reason) {
                notified.push(role.to_string());
            }
        }
        Ok(Reply::Notified(notified))
    }

    /// Sends an abort to an instance's worker, or keeps it until that is heard again. True when sent.
    fn abort_at(
        &mut self,
        out: &mut Out,
        start_id: &StartId,
        migration_id: &MigrationId,
        reason: &str,
    ) -> bool {
        let Some(instance) = self.instances.get(start_id) else {
            return false;
        };
        // Its worker has no word for it, and no migration either.
        if self.is_published(&instance.node_id) {
            return false;
        }
        let Some(instance) = self.instances.get_mut(start_id) else {
            return false;
        };
        let heard = self
            .nodes
            .get(&instance.node_id)
            .is_some_and(|node| node.is_running());
        if !heard {
            instance
                .aborts
                .push((migration_id.clone(), reason.to_owned()));
            out.instances.insert(start_id.clone());
            return false;
        }
        out.order(
            &instance.node_id,
            WorkerOrder::Migration {
                instance: instance.instance_ref(),
                migration_id: migration_id.clone(),
                step: MigrationStep::Abort(reason.to_owned()),
            },
        );
        true
    }

    /// Sends what was kept while an instance's worker was not heard.
    pub(crate) fn send_kept_aborts(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        for (migration_id, reason) in std::mem::take(&mut instance.aborts) {
            self.abort_at(out, start_id, &migration_id, &reason);
            out.instances.insert(start_id.clone());
        }
    }

    /// Passes a signal on, once per migration and kind (MGR-10, MGR-11).
    pub(crate) fn take_signal(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        key: InstanceKey,
        migration_id: MigrationId,
        signal: MigrationSignal,
    ) {
        let kind = match &signal {
            MigrationSignal::State(_) | MigrationSignal::Refused(_) => "state",
            MigrationSignal::TargetReady(_) => "ready",
            MigrationSignal::SourceStoppedOutput(_) => STOPPED_OUTPUT,
            MigrationSignal::TargetApplied(_) => APPLIED,
            MigrationSignal::Aborted { .. } => "aborted",
        };
        let instance = self
            .on_node
            .get(node_id)
            .into_iter()
            .flatten()
            .find(|id| self.instances.get(*id).is_some_and(|i| i.key == key))
            .cloned();
        // A signal of an instance that is over already (it died, or was stopped) still tells.
        if let Some(start_id) = instance
            && let Some(instance) = self.instances.get_mut(&start_id)
        {
            let mark = (migration_id.clone(), kind.to_owned());
            if !instance.signals.insert(mark.clone()) {
                return;
            }
            if instance.signals.len() > SIGNALS
                && let Some(old) = instance.signals.iter().find(|old| old.0 != mark.0).cloned()
            {
                instance.signals.remove(&old);
            }
            out.instances.insert(start_id);
        }
        out.event(StreamEvent::Migration {
            key,
            migration_id,
            signal,
        });
    }
}

/// Refuses a payload that is too large (MGR-05).
pub fn check_payload(payload: &Payload) -> Result<(), Refusal> {
    if payload.len() <= PAYLOAD_MAX {
        return Ok(());
    }
    Err(invalid(
        "payload_too_large",
        format!(
            "the payload has {} bytes: at most {PAYLOAD_MAX}",
            payload.len()
        ),
    )
    .with("actual", payload.len() as u64)
    .with("expected", PAYLOAD_MAX as u64))
}
