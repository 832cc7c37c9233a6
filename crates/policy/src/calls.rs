//! Calls on the Manager and their replies: which call was made for what, so that a reply finds its
//! reason, and one whose reason is gone changes nothing (TIME-02).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::{Call, Reply};
use greenroom_types::id::{BundleId, JobId, MigrationId, NodeId};

use crate::effect::{Effect, Effects, ErrorInfo};
use crate::event::{ApiAnswer, ApiError, ApiId, CallFailure, CallId};
use crate::node_service::ServiceStep;
use crate::policy::Policy;
use crate::provision::Wanted;
use crate::saga::Step;

/// What a call was made for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// The start of a job under that binding; whether it is the first call of its decision.
    Start {
        job_id: JobId,
        seq: u64,
        counts: bool,
    },
    /// A node for jobs, or a spare.
    Create { node_id: NodeId, wanted: Wanted },
    /// The end of a node, asked for by that caller or by the policy itself.
    Terminate { node_id: NodeId, api: Option<ApiId> },
    /// A verdict.
    Verdict { job_id: JobId },
    /// The end of a bundle whose tagged stop time came.
    DeleteBundle { bundle_id: BundleId },
    /// The answer goes to that caller as it is.
    PassThrough { api: ApiId },
    /// A batch of images on a spare.
    Prefetch { node_id: NodeId, seq: u64 },
    /// A step of the start of a node service.
    Service { job_id: JobId, step: ServiceStep },
    /// Nothing follows, and a failure is no matter.
    Tolerated,
    /// A step of a migration.
    Migration { id: MigrationId, step: Step },
    /// The start of what a predecessor's migration left prepared (HYDR-17).
    LeftPrepared { job_id: JobId },
    /// Nothing follows; a failure is told.
    Tell { what: &'static str, job_id: JobId },
    /// The same about a node.
    TellNode { what: &'static str, node_id: NodeId },
}

/// Calls under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    next: u64,
    under_way: BTreeMap<CallId, Purpose>,
}

// === impl Calls ===

impl Calls {
    /// Forgets all calls: their replies are dropped (LIFE-06). Returns the callers left waiting.
    pub(crate) fn abandon(&mut self) -> BTreeSet<ApiId> {
        std::mem::take(&mut self.under_way)
            .into_values()
            .filter_map(|purpose| match purpose {
                Purpose::PassThrough { api } => Some(api),
                Purpose::Terminate { api, .. } => api,
                _ => None,
            })
            .collect()
    }
}

// === impl Policy ===

impl Policy {
    /// Sends a call and remembers what for.
    pub(crate) fn send(&mut self, call: Call, purpose: Purpose, out: &mut Effects) -> CallId {
        self.calls.next += 1;
        let call_id = CallId(self.calls.next);
        self.calls.under_way.insert(call_id, purpose);
        out.push(Effect::Call { call_id, call });
        call_id
    }

    pub(crate) fn apply_reply(
        &mut self,
        call_id: CallId,
        result: Result<Reply, CallFailure>,
        out: &mut Effects,
    ) {
        if self.is_closed() {
            self.closing_replied(call_id, out);
            return;
        }
        let Some(purpose) = self.calls.under_way.remove(&call_id) else {
            return;
        };
        match purpose {
            Purpose::Start {
                job_id,
                seq,
                counts,
            } => {
                self.start_replied(&job_id, seq, counts, result.map(drop), out);
            }
            Purpose::Create { node_id, wanted } => {
                self.create_replied(&node_id, &wanted, result.map(drop), out);
            }
            Purpose::Terminate { node_id, api } => {
                if let Err(failure) = &result {
                    self.terminate_failed(&node_id, failure, out);
                }
                self.drain_terminate_replied(&node_id, result.is_ok(), out);
                if let Some(id) = api {
                    let result = result.map(ApiAnswer::Manager).map_err(ApiError::Manager);
                    out.push(Effect::ApiReply { id, result });
                }
            }
            Purpose::Verdict { job_id } => self.verdict_replied(&job_id, result.map(drop), out),
            Purpose::DeleteBundle { bundle_id } => {
                self.delete_replied(&bundle_id, result.map(drop), out);
            }
            Purpose::PassThrough { api } => {
                let result = result.map(ApiAnswer::Manager).map_err(ApiError::Manager);
                out.push(Effect::ApiReply { id: api, result });
            }
            Purpose::Migration { id, step } => self.step_replied(&id, step, result.map(drop), out),
            Purpose::Prefetch { node_id, seq } => self.prefetch_replied(&node_id, seq, result, out),
            Purpose::Service { job_id, step } => {
                self.service_replied(&job_id, step, result.map(drop), out);
            }
            Purpose::LeftPrepared { job_id } => {
                if let Err(failure) = result {
                    self.left_prepared_failed(&job_id, call_id, &failure, out);
                }
            }
            Purpose::Tolerated => {}
            Purpose::Tell { what, job_id } => {
                if let Err(failure) = result {
                    let message = format!("{what} for job {job_id:?} failed: {failure}");
                    self.report(ErrorInfo::new("callFailed", message).job(&job_id), out);
                }
            }
            Purpose::TellNode { what, node_id } => {
                if let Err(failure) = result {
                    let message = format!("{what} on node {node_id:?} failed: {failure}");
                    self.report(ErrorInfo::new("callFailed", message).node(&node_id), out);
                }
            }
        }
    }
}
