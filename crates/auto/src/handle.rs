//! The instance as its embedder holds it: acting calls, closing, listening (CALLB-02, LIFE-02).
//!
//! An acting call is an input of the loop and is on its way when its method returns; the [`Answer`]
//! tells how it ended, and may be dropped. So a callback may call without waiting. Getters stand in
//! getters.rs and answer at once.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use greenroom_policy::drain::{DrainOptions, DrainState};
use greenroom_policy::migration::MigrateOptions;
use greenroom_policy::spare::{HotSpareChanges, HotSpareSpecsDiff};
use greenroom_policy::{ApiAnswer, ApiCall, ApiError, ApiResult, Callback, Policy};
use greenroom_sdk::{BundleChanges, BundleCreated};
use greenroom_types::bundle::Bundle;
use greenroom_types::call::Reply;
use greenroom_types::id::{BundleId, JobId, JobName, MigrationId, NodeId, TemplateName};
use greenroom_types::node::InterruptionKind;
use greenroom_types::{Millis, Wall};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::driver::{INPUTS, Input, Shared};
use crate::error::CallError;
use crate::listen::CallbackStream;
use crate::run::{End, settled};

/// A running instance. Clones are the same instance; dropping all of them does not end it.
#[derive(Clone)]
pub struct AutoManager {
    pub(crate) shared: Arc<Shared>,
    inputs: mpsc::Sender<Input>,
    listeners: broadcast::WeakSender<Arc<Callback>>,
    phase: watch::Receiver<InstancePhase>,
    ended: watch::Receiver<Option<End>>,
    signal: CancellationToken,
}

/// How far an instance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstancePhase {
    /// The Manager's snapshot is being received (HYDR-04).
    Hydrating,
    /// In service.
    Live,
    /// Closed, or its stream ended (LIFE-06).
    Closed,
}

/// The outcome of an acting call. The call is made whether or not this is awaited.
#[derive(Debug)]
pub struct Answer<T> {
    state: AnswerState,
    read: fn(ApiAnswer) -> Result<T, CallError>,
}

#[derive(Debug)]
enum AnswerState {
    /// Not even begun; none once told.
    Refused(Option<CallError>),
    Waiting(oneshot::Receiver<ApiResult>),
}

// === impl AutoManager ===

impl AutoManager {
    pub(crate) fn new(
        shared: Arc<Shared>,
        inputs: mpsc::Sender<Input>,
        listeners: broadcast::WeakSender<Arc<Callback>>,
        phase: watch::Receiver<InstancePhase>,
        ended: watch::Receiver<Option<End>>,
        signal: CancellationToken,
    ) -> Self {
        Self {
            shared,
            inputs,
            listeners,
            phase,
            ended,
            signal,
        }
    }

    /// Stores a new bundle; answers with the id that the Manager gave it (BUNDLE-05).
    pub fn create_bundle(&self, bundle: Bundle) -> Answer<BundleCreated> {
        let bundle = Box::new(bundle);
        self.ask(ApiCall::CreateBundle { bundle }, |answer| match answer {
            ApiAnswer::Manager(Reply::BundleCreated {
                bundle_id,
                revision,
                job_ids,
            }) => Ok(BundleCreated {
                bundle_id,
                revision,
                job_ids,
            }),
            other => Err(unexpected("createBundle", other)),
        })
    }

    /// Replaces a bundle, and revives it (BUNDLE-06). Its revision is the one expected, 0 for any.
    pub fn update_bundle(&self, bundle: Bundle) -> Answer<BundleChanges> {
        let bundle = Box::new(bundle);
        self.ask(ApiCall::UpdateBundle { bundle }, |answer| match answer {
            ApiAnswer::Manager(Reply::BundleUpdated {
                revision,
                created,
                changed,
                updated,
                removed,
                untouched,
            }) => Ok(BundleChanges {
                revision,
                created,
                changed,
                updated,
                removed,
                untouched,
            }),
            other => Err(unexpected("updateBundle", other)),
        })
    }

    /// Begins to stop and delete a bundle (BUNDLE-06).
    pub fn delete_bundle(&self, bundle_id: impl Into<BundleId>) -> Answer<()> {
        let bundle_id = bundle_id.into();
        self.ask(ApiCall::DeleteBundle { bundle_id }, done)
    }

    /// Wakes a dormant job (BUNDLE-05).
    pub fn start_bundle_job(
        &self,
        bundle_id: impl Into<BundleId>,
        replica_index: u32,
        job_name: impl Into<JobName>,
    ) -> Answer<()> {
        let call = ApiCall::StartBundleJob {
            bundle_id: bundle_id.into(),
            replica_index,
            job_name: job_name.into(),
        };
        self.ask(call, done)
    }

    /// Makes a job dormant and stops it (BUNDLE-05). `grace_ms` is the time between signal and kill.
    pub fn stop_bundle_job(
        &self,
        bundle_id: impl Into<BundleId>,
        replica_index: u32,
        job_name: impl Into<JobName>,
        grace_ms: Option<Millis>,
    ) -> Answer<()> {
        let call = ApiCall::StopBundleJob {
            bundle_id: bundle_id.into(),
            replica_index,
            job_name: job_name.into(),
            grace_ms,
        };
        self.ask(call, done)
    }

    /// Sets a bundle's stop time at the Manager; none clears it (STOP-01).
    pub fn set_bundle_stop_time(
        &self,
        bundle_id: impl Into<BundleId>,
        stop_at: Option<Wall>,
    ) -> Answer<()> {
        let bundle_id = bundle_id.into();
        self.ask(ApiCall::SetBundleStopTime { bundle_id, stop_at }, done)
    }

    /// Keeps new placements off a node (CORDON-01).
    pub fn cordon_node(&self, node_id: impl Into<NodeId>) -> Answer<()> {
        let node_id = node_id.into();
        self.ask(ApiCall::CordonNode { node_id }, done)
    }

    /// Takes the policy's own cordon away (CORDON-01).
    pub fn uncordon_node(&self, node_id: impl Into<NodeId>) -> Answer<()> {
        let node_id = node_id.into();
        self.ask(ApiCall::UncordonNode { node_id }, done)
    }

    /// Keeps new placements off several nodes, all of them or none; answers with those that are not
    /// there and that the cordon waits for (CORDON-06, CORDON-07).
    pub fn cordon_nodes(&self, node_ids: Vec<NodeId>) -> Answer<Vec<NodeId>> {
        let registered = BTreeSet::new();
        let call = ApiCall::CordonNodes {
            node_ids,
            registered,
        };
        self.ask(call, waiting)
    }

    /// Takes the policy's own cordons away, all of them or none; answers with the nodes that are not
    /// there.
    pub fn uncordon_nodes(&self, node_ids: Vec<NodeId>) -> Answer<Vec<NodeId>> {
        let registered = BTreeSet::new();
        let call = ApiCall::UncordonNodes {
            node_ids,
            registered,
        };
        self.ask(call, waiting)
    }

    /// Ends a node (NODE-13).
    pub fn terminate_node(&self, node_id: impl Into<NodeId>) -> Answer<()> {
        let node_id = node_id.into();
        self.ask(ApiCall::TerminateNode { node_id }, done)
    }

    /// Cordons a node and ends it at once (NODE-13).
    pub fn evict_node(&self, node_id: impl Into<NodeId>) -> Answer<()> {
        let node_id = node_id.into();
        self.ask(ApiCall::EvictNode { node_id }, done)
    }

    /// Replaces the image list of one template; an empty list removes it (PREFETCH-06). It holds
    /// on in the instances after this one (ACTS).
    pub fn set_template_images(
        &self,
        template: impl Into<TemplateName>,
        refs: Vec<String>,
    ) -> Answer<()> {
        let template = template.into();
        self.ask(ApiCall::SetTemplateImages { template, refs }, done)
    }

    /// Changes what one spare is for (SPARE-16).
    pub fn update_hot_spare_node(
        &self,
        node_id: impl Into<NodeId>,
        changes: HotSpareChanges,
    ) -> Answer<()> {
        let node_id = node_id.into();
        self.ask(ApiCall::UpdateHotSpareNode { node_id, changes }, done)
    }

    /// Replaces the list of hot spares, given as the tree of the setting `hotSpares`; answers with
    /// what that changes (SPARE-20, SPARE-23). It holds on in the instances after this one (ACTS).
    pub fn update_hot_spare_specs(
        &self,
        hot_spares: serde_json::Value,
    ) -> Answer<HotSpareSpecsDiff> {
        let call = ApiCall::UpdateHotSpareSpecs { hot_spares };
        self.ask(call, |answer| match answer {
            ApiAnswer::HotSpareSpecs(diff) => Ok(diff),
            other => Err(unexpected("updateHotSpareSpecs", other)),
        })
    }

    /// Moves a running job; answers with the migration's id when the target's first call was
    /// accepted (MIGR-01).
    pub fn migrate_job(
        &self,
        job_id: impl Into<JobId>,
        options: MigrateOptions,
    ) -> Answer<MigrationId> {
        let job_id = job_id.into();
        self.ask(
            ApiCall::MigrateJob { job_id, options },
            |answer| match answer {
                ApiAnswer::Migration(migration_id) => Ok(migration_id),
                other => Err(unexpected("migrateJob", other)),
            },
        )
    }

    /// Takes a migration back (MIGR-30).
    pub fn abort_migration(
        &self,
        migration_id: impl Into<MigrationId>,
        reason: impl Into<String>,
    ) -> Answer<()> {
        let call = ApiCall::AbortMigration {
            migration_id: migration_id.into(),
            reason: reason.into(),
        };
        self.ask(call, done)
    }

    /// Empties a node and ends it; answers with the drain as it is then (DRAIN-01).
    pub fn drain_node(
        &self,
        node_id: impl Into<NodeId>,
        options: DrainOptions,
    ) -> Answer<DrainState> {
        let node_id = node_id.into();
        let call = ApiCall::DrainNode { node_id, options };
        self.ask(call, |answer| match answer {
            ApiAnswer::Drain(drain) => Ok(*drain),
            other => Err(unexpected("drainNode", other)),
        })
    }

    /// Follows a provider's notice as if the stream had brought it (INTR-01). Time and force of the
    /// drain follow from the notice; of the options only the strategies count.
    pub fn handle_node_interruption(
        &self,
        node_id: impl Into<NodeId>,
        kind: InterruptionKind,
        deadline: Option<Wall>,
        options: DrainOptions,
    ) -> Answer<()> {
        let call = ApiCall::HandleNodeInterruption {
            node_id: node_id.into(),
            kind,
            deadline,
            options,
        };
        self.ask(call, done)
    }

    /// Any acting call, with the policy's own answer.
    pub fn call(&self, call: ApiCall) -> Answer<ApiAnswer> {
        self.ask(call, Ok)
    }

    /// Closes the instance (LIFE-02). The close is under way when this returns, and the future
    /// resolves when the handle has settled. Closing again changes nothing.
    pub fn close(&self) -> impl Future<Output = ()> + Send + 'static {
        let (answer, _) = oneshot::channel();
        let call = ApiCall::Close;
        if let Err(TrySendError::Full(_)) = self.inputs.try_send(Input::Api { call, answer }) {
            // Not refused for want of room: the signal needs none.
            self.signal.cancel();
        }
        let ended = self.ended.clone();
        async move {
            let _ = settled(ended).await;
        }
    }

    /// The same as [`AutoManager::close`].
    pub fn dispose(&self) -> impl Future<Output = ()> + Send + 'static {
        self.close()
    }

    /// How far the instance has come.
    #[must_use]
    pub fn phase(&self) -> InstancePhase {
        *self.phase.borrow()
    }

    /// Waits until the instance is in service; false when it is over instead.
    pub async fn live(&self) -> bool {
        let mut phase = self.phase.clone();
        let left = phase
            .wait_for(|phase| *phase != InstancePhase::Hydrating)
            .await;
        left.is_ok_and(|phase| *phase == InstancePhase::Live)
    }

    /// Waits until the handle settles, and says how.
    pub async fn ended(&self) -> End {
        settled(self.ended.clone()).await
    }

    /// True for a clone of this very instance.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Callbacks from now on, for listeners that take their time.
    #[must_use]
    pub fn callbacks(&self) -> CallbackStream {
        CallbackStream::of(&self.listeners)
    }

    fn ask<T>(&self, call: ApiCall, read: fn(ApiAnswer) -> Result<T, CallError>) -> Answer<T> {
        let (answer, told) = oneshot::channel();
        let state = match self.inputs.try_send(Input::Api { call, answer }) {
            Ok(()) => AnswerState::Waiting(told),
            Err(TrySendError::Full(_)) => AnswerState::Refused(Some(CallError::Busy(INPUTS))),
            Err(TrySendError::Closed(_)) => {
                AnswerState::Refused(Some(CallError::Api(ApiError::Closed)))
            }
        };
        Answer { state, read }
    }
}

impl std::fmt::Debug for AutoManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AutoManager")
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

// === impl InstancePhase ===

impl InstancePhase {
    pub(crate) const fn of(policy: &Policy) -> Self {
        if policy.is_closed() {
            Self::Closed
        } else if policy.is_live() {
            Self::Live
        } else {
            Self::Hydrating
        }
    }
}

// === impl Answer ===

impl<T> Future for Answer<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            AnswerState::Refused(error) => {
                return Poll::Ready(Err(error
                    .take()
                    .unwrap_or(CallError::Api(ApiError::Closed))));
            }
            // Without an answer the loop is over.
            AnswerState::Waiting(told) => {
                ready!(Pin::new(told).poll(context)).unwrap_or(Err(ApiError::Closed))
            }
        };
        Poll::Ready(result.map_err(CallError::Api).and_then(self.read))
    }
}

// === helpers ===

/// For calls whose answer says no more than that it was done.
fn done(_: ApiAnswer) -> Result<(), CallError> {
    Ok(())
}

/// For calls about several nodes.
fn waiting(answer: ApiAnswer) -> Result<Vec<NodeId>, CallError> {
    match answer {
        ApiAnswer::Waiting(nodes) => Ok(nodes),
        other => Err(unexpected("cordonNodes", other)),
    }
}

fn unexpected(call: &'static str, answer: ApiAnswer) -> CallError {
    CallError::Answer {
        call,
        answer: Box::new(answer),
    }
}
