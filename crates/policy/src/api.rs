//! Calls of the embedder: passed through to the Manager, or acted on here (BUNDLE-05, NODE-13,
//! STOP-01, LIFE-02).

use greenroom_types::TemplateName;
use greenroom_types::bundle::BundleState;
use greenroom_types::call::Call;

use crate::calls::Purpose;
use crate::effect::{Effect, Effects};
use crate::event::{ApiAnswer, ApiCall, ApiError, ApiId, ApiResult};
use crate::policy::{Phase, Policy};

// === impl Policy ===

impl Policy {
    pub(crate) fn apply_api(&mut self, id: ApiId, call: ApiCall, out: &mut Effects) {
        match &mut self.phase {
            Phase::Closed => {
                let closing_again = matches!(call, ApiCall::Close);
                let result = if closing_again {
                    Ok(ApiAnswer::Done)
                } else {
                    Err(ApiError::Closed)
                };
                out.push(Effect::ApiReply { id, result });
            }
            // Nothing is sent before the replay is over (HYDR-04); a close does not wait for it.
            Phase::Snapshot { waiting, .. } if !matches!(call, ApiCall::Close) => {
                waiting.push((id, call));
            }
            Phase::Snapshot { .. } | Phase::Live => self.act(id, call, out),
        }
    }

    fn act(&mut self, id: ApiId, call: ApiCall, out: &mut Effects) {
        if let Err(refused) = self.check_room(&call) {
            let result = Err(refused);
            out.push(Effect::ApiReply { id, result });
            return;
        }
        let result: ApiResult = match call {
            ApiCall::CreateBundle { bundle } => {
                return self.pass(id, Call::CreateBundle(bundle), out);
            }
            ApiCall::UpdateBundle { mut bundle } => {
                // Updating a bundle revives it (BUNDLE-06).
                bundle.state = BundleState::Live;
                let call = Call::UpdateBundle {
                    bundle,
                    dry_run: false,
                    clear_stop_time: false,
                };
                return self.pass(id, call, out);
            }
            ApiCall::DeleteBundle { bundle_id } => {
                return self.pass(id, Call::DeleteBundle(bundle_id), out);
            }
            ApiCall::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            } => {
                let call = Call::StartBundleJob {
                    bundle_id,
                    replica_index,
                    job_name,
                };
                return self.pass(id, call, out);
            }
            ApiCall::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                grace_ms,
            } => {
                let call = Call::StopBundleJob {
                    bundle_id,
                    replica_index,
                    job_name,
                    grace_ms,
                };
                return self.pass(id, call, out);
            }
            ApiCall::SetBundleStopTime { bundle_id, stop_at } => {
                let known = self
                    .bundles
                    .get(&bundle_id)
                    .is_some_and(|b| b.status.is_some());
                if known {
                    let call = Call::SetBundleStopTime { bundle_id, stop_at };
                    return self.pass(id, call, out);
                }
                Err(ApiError::UnknownBundle { bundle_id })
            }
            ApiCall::CordonNode { node_id } => self.cordon(&node_id),
            ApiCall::UncordonNode { node_id } => self.uncordon(&node_id, out),
            ApiCall::CordonNodes {
                node_ids,
                registered,
            } => self.cordon_all(&node_ids, &registered),
            ApiCall::UncordonNodes {
                node_ids,
                registered,
            } => self.uncordon_all(&node_ids, &registered, out),
            ApiCall::TerminateNode { node_id } => match self.known(&node_id) {
                Ok(_) => return self.terminate(&node_id, Some(id), out),
                refused => refused,
            },
            ApiCall::EvictNode { node_id } => match self.cordon(&node_id) {
                Ok(_) => return self.terminate(&node_id, Some(id), out),
                refused => refused,
            },
            ApiCall::DrainNode { node_id, options } => self.drain_node(&node_id, options, out),
            ApiCall::HandleNodeInterruption {
                node_id,
                kind,
                deadline,
                options,
            } => self.interrupt(&node_id, kind, deadline, options, out),
            ApiCall::MigrateJob { job_id, options } => {
                match self.migrate(&job_id, options, Some(id), out) {
                    Ok(_) => return,
                    Err(reason) => Err(ApiError::Migration { job_id, reason }),
                }
            }
            ApiCall::AbortMigration {
                migration_id,
                reason,
            } => self
                .abort_by_call(&migration_id, &reason, out)
                .map(|()| ApiAnswer::Done),
            ApiCall::UpdateHotSpareNode { node_id, changes } => {
                match self.update_hot_spare_node(id, &node_id, &changes, out) {
                    Some(result) => result,
                    // The Manager's answer is the caller's.
                    None => return,
                }
            }
            ApiCall::UpdateHotSpareSpecs { hot_spares } => {
                self.update_hot_spare_specs(&hot_spares, out)
            }
            ApiCall::SetTemplateImages { template, refs } => {
                self.replace_template_images(template.clone(), refs);
                self.look_at_template(&template);
                self.acts.changed = true;
                Ok(ApiAnswer::Done)
            }
            ApiCall::Close => {
                // The channel may close with this very input; the caller is answered before.
                let result = Ok(ApiAnswer::Done);
                out.push(Effect::ApiReply { id, result });
                self.wind_down(None, out);
                return;
            }
        };
        out.push(Effect::ApiReply { id, result });
    }

    /// The Manager's outcome is the caller's; the view changes when the events arrive (BUNDLE-05).
    fn pass(&mut self, id: ApiId, call: Call, out: &mut Effects) {
        self.send(call, Purpose::PassThrough { api: id }, out);
    }

    pub(crate) fn replace_template_images(&mut self, template: TemplateName, refs: Vec<String>) {
        self.fleet.set_template_images(template.clone(), &refs);
        if refs.is_empty() {
            self.settings.template_images.remove(&template);
        } else {
            self.settings.template_images.insert(template, refs);
        }
    }
}
