//! What operators do, as calls of the policy (SCEN-07). What happens by itself stands in
//! [`super::events`].

use greenroom_policy::drain::DrainOptions;
use greenroom_policy::event::ApiResult;
use greenroom_policy::getters::{Admission, DryRun};
use greenroom_policy::migration::MigrateOptions;
use greenroom_policy::spare::HotSpareChanges;
use greenroom_policy::{ApiCall, ApiId, Event};
use greenroom_types::{BundleId, Millis};

use super::{Stuck, World};
use crate::format::Step;
use crate::format::action::{Action, Strategies};

/// What a question to the policy was answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A dry run; none for an unknown name.
    DryRun(Option<Box<DryRun>>),
    /// An admission of that bundle.
    Admission(BundleId, Box<Admission>),
}

/// How an action ended.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The code, as policy.md and manager.md have it.
    pub(crate) code: String,
    /// In words.
    pub(crate) message: String,
}

// === impl World ===

impl World {
    /// Does what the step says. The refusal, if the product refuses it.
    pub(crate) fn act(&mut self, step: &Step, action: &Action) -> Result<Option<Refused>, Stuck> {
        if action.is_operator() {
            return self.operate(action);
        }
        self.world_event(step, action)?;
        self.settle()?;
        Ok(None)
    }

    fn operate(&mut self, action: &Action) -> Result<Option<Refused>, Stuck> {
        let Some(call) = self.api_call(action)? else {
            return Ok(None);
        };
        let mut calls = call.into_iter();
        loop {
            let Some(call) = calls.next() else {
                return Ok(None);
            };
            if let Some(Err(error)) = self.ask(call)? {
                return Ok(Some(Refused {
                    code: error.code().to_owned(),
                    message: error.to_string(),
                }));
            }
        }
    }

    /// Calls the policy, lets everything follow that takes no time, and gives the answer if there is
    /// one by then.
    fn ask(&mut self, call: ApiCall) -> Result<Option<ApiResult>, Stuck> {
        if self.policy.is_none() {
            return Err(Stuck("no policy was ever connected".to_owned()));
        }
        let id = ApiId(self.next_api);
        self.next_api += 1;
        self.inbox.push_back(Event::Api { id, call });
        self.settle()?;
        Ok(self.answers.remove(&id))
    }

    /// The policy calls that an operator action stands for; none when it was done here.
    fn api_call(&mut self, action: &Action) -> Result<Option<Vec<ApiCall>>, Stuck> {
        let call = match action {
            Action::CreateBundle(bundle) => ApiCall::CreateBundle {
                bundle: bundle.clone(),
            },
            Action::UpdateBundle(bundle) => ApiCall::UpdateBundle {
                bundle: bundle.clone(),
            },
            Action::DeleteBundle(bundle_id) => ApiCall::DeleteBundle {
                bundle_id: bundle_id.clone(),
            },
            Action::StartBundleJob(job) => ApiCall::StartBundleJob {
                bundle_id: job.bundle_id.clone(),
                replica_index: job.replica_index,
                job_name: job.job_name.clone(),
            },
            Action::StopBundleJob(job) => ApiCall::StopBundleJob {
                bundle_id: job.bundle_id.clone(),
                replica_index: job.replica_index,
                job_name: job.job_name.clone(),
                grace_ms: None,
            },
            Action::SetBundleStopTime { bundle, stop_at } => ApiCall::SetBundleStopTime {
                bundle_id: bundle.clone(),
                stop_at: stop_at.map(|instant| instant.resolve(self.spec.start)),
            },
            Action::Cordon(node) => ApiCall::CordonNode {
                node_id: self.node(node)?,
            },
            Action::Uncordon(node) => ApiCall::UncordonNode {
                node_id: self.node(node)?,
            },
            Action::Terminate(node) => ApiCall::TerminateNode {
                node_id: self.node(node)?,
            },
            Action::Evict(node) => ApiCall::EvictNode {
                node_id: self.node(node)?,
            },
            Action::SetTemplateImages(images) => {
                let calls = images.iter().map(|(template, refs)| {
                    let template = template.clone();
                    let refs = refs.clone();
                    ApiCall::SetTemplateImages { template, refs }
                });
                return Ok(Some(calls.collect()));
            }
            Action::Drain {
                node,
                timeout,
                force,
                strategy,
                for_upgrade,
            } => ApiCall::DrainNode {
                node_id: self.node(node)?,
                options: DrainOptions {
                    timeout_ms: timeout.map(|span| Millis(span.0)),
                    force: *force,
                    for_upgrade: *for_upgrade,
                    ..changing_over(strategy)
                },
            },
            Action::Interrupt {
                node,
                kind,
                deadline,
                strategy,
            } => ApiCall::HandleNodeInterruption {
                node_id: self.node(node)?,
                kind: *kind,
                deadline: deadline.map(|instant| instant.resolve(self.spec.start)),
                options: changing_over(strategy),
            },
            Action::Migrate {
                job,
                strategy,
                target,
                override_reservation,
            } => ApiCall::MigrateJob {
                job_id: job.job_id(),
                options: MigrateOptions {
                    strategy: strategy.unwrap_or_default(),
                    target_node_id: target.as_ref().map(|node| self.node(node)).transpose()?,
                    override_reservation: *override_reservation,
                },
            },
            Action::AbortMigration { job, reason } => ApiCall::AbortMigration {
                migration_id: self.migration(job)?.migration_id,
                reason: reason.clone(),
            },
            Action::UpdateHotSpares(list) => ApiCall::UpdateHotSpareSpecs {
                hot_spares: serde_json::Value::Array(list.clone()),
            },
            Action::UpdateHotSpareNode {
                node,
                warm_for,
                reserved_for,
                exclusive,
            } => ApiCall::UpdateHotSpareNode {
                node_id: self.node(node)?,
                changes: HotSpareChanges {
                    warm_for: warm_for.clone(),
                    reserved_for: reserved_for.clone(),
                    exclusive: *exclusive,
                },
            },
            Action::Close(_) => ApiCall::Close,
            Action::Restart(_) => {
                if self.is_connected() {
                    self.ask(ApiCall::Close)?;
                }
                self.connect()?;
                return Ok(None);
            }
            Action::DryRun(wanted) => {
                let policy = self.policy.as_ref();
                let bundle = policy.and_then(|policy| policy.bundle_by_id(&wanted.bundle));
                let run = policy.zip(bundle).and_then(|(policy, status)| {
                    policy.place_dry_run(&status.bundle, wanted.replica, wanted.job.as_ref())
                });
                self.last_dry_run = Some(Answer::DryRun(run.map(Box::new)));
                return Ok(None);
            }
            Action::Admit(bundle) => {
                let policy = self.policy.as_ref();
                let policy = policy.ok_or_else(|| Stuck("no policy is connected".to_owned()))?;
                let admission = policy.validate_bundle_admission(bundle);
                let bundle_id = bundle.bundle_id.clone();
                self.last_admission = Some(Answer::Admission(bundle_id, Box::new(admission)));
                return Ok(None);
            }
            other => return Err(Stuck(format!("{other:?} is no operator's act"))),
        };
        Ok(Some(vec![call]))
    }
}

fn changing_over(strategy: &Strategies) -> DrainOptions {
    let by_job = strategy.by_job.iter();
    DrainOptions {
        strategy: strategy.all,
        strategies: by_job
            .map(|(job, strategy)| (job.job_id(), *strategy))
            .collect(),
        ..DrainOptions::default()
    }
}
