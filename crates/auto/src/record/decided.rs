//! What the policy decided, as expectations of a scenario.

use greenroom_policy::drain::{DrainPhase, DrainState};
use greenroom_policy::effect::{PlacementContext, PlacementInfo, PlacementKind};
use greenroom_policy::event::{ApiError, ApiId};
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
        if let Effect::Call { call_id, call } = effect {
            self.sends(*call_id, call, policy);
        }
        if self.pictures.is_empty() {
            return;
        }
        match effect {
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
            Effect::ApiReply {
                id,
                result: Err(error),
            } => self.refused(now, *id, error),
            Effect::Callback(callback) => {
                if let Some(expect) = self.told(callback, policy) {
                    let place = self.next_place + 1;
                    if let Some(told) = subject(&expect).and_then(|it| self.forget(it, Some(place)))
                    {
                        self.take_out(told);
                    }
                    self.push(now, Ok(json!({"expect": expect})), None);
                } else if let Some(told) = self
                    .begun_again(callback, policy)
                    .and_then(|it| self.forget(it, None))
                {
                    self.take_out(told);
                }
            }
            _ => {}
        }
    }

    /// A call was refused at once. One that was taken up and failed later stays as it is: what came of
    /// it is in the record.
    fn refused(&mut self, now: Now, id: ApiId, error: &ApiError) {
        let is_it = |step: &Step| step.api == Some(id) && step.at.mono == now.mono;
        // What the policy itself refuses it refuses again, but for a call about several nodes: a scenario
        // names them one by one, and of these some would not be refused.
        let is_own = !matches!(
            error,
            ApiError::Closed
                | ApiError::NotKept { .. }
                | ApiError::TooMuchKept { .. }
                | ApiError::TooManyWaiting { .. }
                | ApiError::UnknownNodes { .. }
                | ApiError::Manager(_)
        );
        self.steps.retain_mut(|step| {
            if !is_it(step) {
                return true;
            }
            match &mut step.what {
                Ok(what) if is_own => {
                    what["refused"] = error.code().into();
                    true
                }
                _ => false,
            }
        });
    }

    /// Of what is told of the same thing at once a scenario sees the last: where the one before stands.
    fn forget(&mut self, subject: Subject, place: Option<u64>) -> Option<u64> {
        // What a call is answered at once is of the moment in which it was made.
        let (cause, at) = (self.cause().place, self.input.at.mono);
        if self.told.0 != cause && self.told_at < at {
            self.told.1.clear();
        }
        self.told.0 = cause;
        self.told_at = at;
        match place {
            Some(place) => self.told.1.insert(subject, place),
            None => self.told.1.remove(&subject),
        }
    }

    fn take_out(&mut self, place: u64) {
        let index = self.steps.partition_point(|step| step.place < place);
        let step = self.steps.get(index);
        if step.is_some_and(|step| step.place == place) {
            self.steps.remove(index);
        }
    }

    /// A migration or a drain that has begun hides how the one before it ended.
    fn begun_again(&self, callback: &Callback, policy: &Policy) -> Option<Subject> {
        match callback {
            Callback::OnMigrationPhase(state) => {
                path_of(&state.source_job_id, policy).map(Subject::Migration)
            }
            Callback::OnDrainProgress(drain) => {
                self.name(&drain.node_id, None, policy).map(Subject::Drain)
            }
            _ => None,
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
