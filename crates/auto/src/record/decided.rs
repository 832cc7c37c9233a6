//! What the policy decided, as expectations of a scenario.

use std::collections::BTreeMap;

use greenroom_policy::drain::{DrainPhase, DrainState};
use greenroom_policy::effect::{PlacementContext, PlacementInfo, PlacementKind};
use greenroom_policy::event::ApiId;
use greenroom_policy::{Callback, Effect, Policy};
use greenroom_types::call::Call;
use greenroom_types::{MigrationId, Now};
use serde_json::{Map, Value, json};

use super::replies::without_words;
use super::words::{path, path_of};
use super::{Recorder, Step};

/// What an expectation is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A decision about a job.
    Decision(String),
    /// A migration of a job.
    Migration(String),
    /// The drain of a node.
    Drain(String),
}

// === impl Recorder ===

impl Recorder {
    /// Looks at what the policy does.
    pub(crate) fn after(&mut self, now: Now, effect: &Effect, policy: &Policy) {
        if self.pictures.is_empty() {
            return;
        }
        if let Effect::Call { call_id, call } = effect {
            self.sends(*call_id, call, policy);
        }
        match effect {
            Effect::Call {
                call: Call::TerminateNode(node_id),
                ..
            } => {
                self.ending.insert(node_id.clone());
            }
            // What the policy itself changes comes back with the stream, and is no event of the world.
            Effect::Call {
                call:
                    Call::SetNodeTags {
                        node_id,
                        tags,
                        remove,
                        ..
                    },
                ..
            } => {
                if let Some(seen) = self.tags.get_mut(node_id) {
                    seen.extend(tags.clone());
                    seen.retain(|key, _| !remove.contains(key));
                }
            }
            // A call was refused: nothing came of it. One that was taken up and failed later stays:
            // what came of it is in the record.
            Effect::ApiReply { id, result: Err(_) } => self.refused(now, *id),
            Effect::Callback(callback) => {
                let held = self.left_target(callback, policy);
                if let Some(expect) = self.told(callback, policy) {
                    self.forget_told(&expect);
                    self.push(now, Ok(json!({"expect": expect})), None);
                }
                if let Some(job) = held {
                    self.let_go(now, &job);
                }
            }
            _ => {}
        }
    }

    /// Takes out a call that was refused, with what was told of the migration that it asked for.
    fn refused(&mut self, now: Now, id: ApiId) {
        let is_it = |step: &Step| step.api == Some(id) && step.at.mono == now.mono;
        let Some(at) = self.steps.iter().rposition(is_it) else {
            return;
        };
        let job = match self.steps.remove(at) {
            Some(Step { what: Ok(what), .. }) => what["migrate"]["job"].clone(),
            _ => Value::Null,
        };
        if job.is_null() {
            return;
        }
        let mut index = 0;
        self.steps.retain(|step| {
            index += 1;
            let expect = match &step.what {
                Ok(what) => &what["expect"],
                Err(_) => &Value::Null,
            };
            let is_of_it = expect["trace"]["job"] == job || expect["migration"]["job"] == job;
            index <= at || !is_of_it
        });
    }

    /// The job of a migration that ended before its target ran.
    fn left_target(&mut self, callback: &Callback, policy: &Policy) -> Option<String> {
        let Callback::OnMigrationAborted { migration_id, .. } = callback else {
            return None;
        };
        let migration = policy.migration_by_id(migration_id)?;
        let job = path_of(&migration.source_job_id, policy)?;
        let target = migration.target_node_id.as_ref()?;
        self.never_ran(&migration.source_job_id, target, &job)
            .then_some(job)
    }

    /// Of what is told of the same thing at once a scenario sees the last.
    fn forget_told(&mut self, expect: &Value) {
        let cause = self.cause().place;
        if self.told.0 != cause {
            self.told = (cause, BTreeMap::new());
        }
        let Some(subject) = subject(expect) else {
            return;
        };
        if let Some(place) = self.told.1.insert(subject, self.next_place + 1) {
            let index = self.steps.partition_point(|step| step.place < place);
            if self
                .steps
                .get(index)
                .is_some_and(|step| step.place == place)
            {
                self.steps.remove(index);
            }
        }
    }

    /// What a scenario expects where the policy told this.
    fn told(&self, callback: &Callback, policy: &Policy) -> Option<Value> {
        match callback {
            Callback::OnPlacementDecision(info) => self.decided(info, policy),
            Callback::OnDrainProgress(drain) => self.drained(drain, policy),
            Callback::OnMigrationCompleted { migration_id } => {
                let job = migrated(migration_id, policy)?;
                Some(json!({"migration": {"job": job, "phase": "done"}}))
            }
            Callback::OnMigrationAborted {
                migration_id,
                reason,
            } => {
                let job = migrated(migration_id, policy)?;
                let reason = without_words(reason);
                Some(json!({
                    "migration": {"job": job, "phase": "aborted", "abortReason": reason},
                }))
            }
            _ => None,
        }
    }

    fn decided(&self, info: &PlacementInfo, policy: &Policy) -> Option<Value> {
        let job = path(&info.bundle_id, info.replica_index, info.job_name.as_str());
        match (info.kind, &info.node_id) {
            (PlacementKind::Place, Some(node_id)) => {
                let node = self.name(node_id, Some(&info.job_id), policy)?;
                Some(json!({"trace": {"job": job, "chosen": node}}))
            }
            (PlacementKind::Provision, Some(_)) => {
                // The target of a migration is not yet the node of the job.
                Some(if info.context == PlacementContext::Migration {
                    json!({"trace": {"job": job, "kind": "provision"}})
                } else {
                    json!({"jobs": {job: {"pool": info.pool, "tier": info.tier}}})
                })
            }
            // A job that finds no target stays where it is and runs on.
            _ => Some(json!({
                "trace": {"job": job, "kind": "failure", "reason": info.reason},
            })),
        }
    }

    /// How a drain ended. What it did on the way stands in the decisions.
    fn drained(&self, drain: &DrainState, policy: &Policy) -> Option<Value> {
        let is_over = matches!(
            drain.phase,
            DrainPhase::Done | DrainPhase::Partial | DrainPhase::Failed
        );
        if !is_over {
            return None;
        }
        let node = self.name(&drain.node_id, None, policy)?;
        let jobs: Map<String, Value> = drain
            .jobs
            .iter()
            .filter_map(|drained| Some((path_of(&drained.job_id, policy)?, json!(drained.status))))
            .collect();
        Some(json!({"drain": {"node": node, "phase": drain.phase, "jobs": jobs}}))
    }
}

fn subject(expect: &Value) -> Option<Subject> {
    let of = |key: &str, name: &str| expect[key][name].as_str().map(ToOwned::to_owned);
    let bought = || expect["jobs"].as_object()?.keys().next().cloned();
    let decided = of("trace", "job").or_else(bought).map(Subject::Decision);
    decided
        .or_else(|| of("migration", "job").map(Subject::Migration))
        .or_else(|| of("drain", "node").map(Subject::Drain))
}

fn migrated(migration_id: &MigrationId, policy: &Policy) -> Option<String> {
    let migration = policy.migration_by_id(migration_id)?;
    path_of(&migration.source_job_id, policy)
}
