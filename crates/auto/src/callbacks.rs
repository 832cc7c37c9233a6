//! What an embedder is told, as methods (CALLB-01 to CALLB-12). Each has a default that does nothing;
//! [`Callbacks::on_error`] writes a log line.
//!
//! They are called on the loop's own sequence, one at a time, in the order of the policy: a method
//! that blocks holds the whole instance up. Whoever wants to listen at leisure takes
//! [`crate::AutoManager::callbacks`].

use std::sync::Arc;

use greenroom_placement::Domain;
use greenroom_policy::Callback;
use greenroom_policy::drain::DrainState;
use greenroom_policy::effect::{ErrorInfo, NodeView, PlacementInfo};
use greenroom_policy::event::ConnectionState;
use greenroom_policy::interrupt::NodeInterruption;
use greenroom_policy::migration::MigrationState;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::call::AuditEntry;
use greenroom_types::id::{BundleId, JobId, JobName, MigrationId, NodeId, PoolName};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{JobInfo, JobWithHistory};
use greenroom_types::node::RejectionCode;
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{Role, Wall};

use crate::handle::AutoManager;

/// How a callback ended. A failure is passed to [`Callbacks::on_error`], and nothing else follows
/// from it (CALLB-01).
pub type CallbackResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A worker's refusal of a start (CALLB-07).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// The job.
    pub job_id: &'a JobId,
    /// Role of the refused instance.
    pub role: &'a Role,
    /// The node that refused.
    pub node_id: &'a NodeId,
    /// Kind of refusal.
    pub code: RejectionCode,
    /// The worker's words.
    pub reason: &'a str,
    /// The picture sent along.
    pub inventory: Option<&'a Arc<NodeInventory>>,
    /// When.
    pub at: Wall,
}

/// A job of a copy of a bundle, and when something was found out about it.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// The job.
    pub job_id: &'a JobId,
    /// Its bundle.
    pub bundle_id: &'a BundleId,
    /// Its copy.
    pub replica_index: u32,
    /// Its name in the bundle.
    pub job_name: &'a JobName,
    /// When.
    pub at: Wall,
}

/// Callbacks of an embedder. All are optional.
///
/// A callback may call the instance: getters answer at once, acting calls are handled after the
/// present input (CALLB-02). It gets the instance from [`Callbacks::begin`].
#[allow(
    unused_variables,
    reason = "the defaults use no argument; the names are for readers"
)]
pub trait Callbacks: Send + Sync + 'static {
    /// Called once per instance, before every other callback.
    fn begin(&self, instance: &AutoManager) -> CallbackResult {
        Ok(())
    }

    /// Every callback passes here first; the default calls the method of its name. Overridden, it
    /// sees all of them as one enumeration.
    fn on_callback(&self, callback: &Callback) -> CallbackResult {
        dispatch(self, callback)
    }

    /// The channel to the Manager changed its state (CALLB-03).
    fn on_connection_state_change(&self, state: ConnectionState) -> CallbackResult {
        Ok(())
    }

    /// Anything wrong that has no better place, and failed placements (CALLB-04). The default warns;
    /// failed purchases are in the log already (PROV-14).
    fn on_error(&self, error: &ErrorInfo) -> CallbackResult {
        if error.tier.is_some() {
            return Ok(());
        }
        tracing::warn!(
            code = %error.code,
            job_id = error.job_id.as_ref().map(tracing::field::display),
            node_id = error.node_id.as_ref().map(tracing::field::display),
            bundle_id = error.bundle_id.as_ref().map(tracing::field::display),
            "{}", error.message
        );
        Ok(())
    }

    /// A job changed, or was hydrated (CALLB-05).
    fn on_job_updated(&self, job_id: &JobId, job: &Arc<JobWithHistory>) -> CallbackResult {
        Ok(())
    }

    /// A job is gone (CALLB-05).
    fn on_job_deleted(&self, job_id: &JobId) -> CallbackResult {
        Ok(())
    }

    /// News of an instance (CALLB-06).
    fn on_job_info(&self, info: &JobInfo) -> CallbackResult {
        Ok(())
    }

    /// An audit entry was appended (CALLB-06).
    fn on_audit_appended(&self, entry: &AuditEntry) -> CallbackResult {
        Ok(())
    }

    /// A worker refused a start (CALLB-07).
    fn on_job_rejected(&self, rejection: Rejection<'_>) -> CallbackResult {
        Ok(())
    }

    /// A job got its verdict and is not placed again (CALLB-07).
    fn on_job_dropped(&self, job_id: &JobId) -> CallbackResult {
        Ok(())
    }

    /// A node was asked for or boots (CALLB-08).
    fn on_node_starting(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// A node runs (CALLB-08).
    fn on_node_started(&self, node_id: &NodeId, node: &NodeView) -> CallbackResult {
        Ok(())
    }

    /// A node ends or was given up (CALLB-08).
    fn on_node_stopping(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// A node is gone (CALLB-08).
    fn on_node_stopped(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// This instance ended a node (NODE-14).
    fn on_node_terminated(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// A node refused too many starts (CALLB-08).
    fn on_node_unhealthy(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// An unhealthy node may be used again (CALLB-08).
    fn on_node_healthy(&self, node_id: &NodeId) -> CallbackResult {
        Ok(())
    }

    /// A bundle changed, or was hydrated (CALLB-09).
    fn on_bundle_updated(
        &self,
        bundle_id: &BundleId,
        bundle: &Arc<BundleStatus>,
    ) -> CallbackResult {
        Ok(())
    }

    /// A bundle is gone (CALLB-09).
    fn on_bundle_deleted(&self, bundle_id: &BundleId) -> CallbackResult {
        Ok(())
    }

    /// A bundle is broken: nothing of it is placed any more (CALLB-09).
    fn on_bundle_broken(&self, bundle_id: &BundleId, reason: &str) -> CallbackResult {
        Ok(())
    }

    /// The engine ran (CALLB-10).
    fn on_placement_decision(&self, decision: &PlacementInfo) -> CallbackResult {
        Ok(())
    }

    /// The engine found no place (CALLB-10).
    fn on_placement_failed(
        &self,
        job: Spot<'_>,
        reason: &str,
        tried_pools: &[PoolName],
    ) -> CallbackResult {
        Ok(())
    }

    /// The two copies are closer than wished (CALLB-10).
    fn on_resilience_degraded(
        &self,
        job: Spot<'_>,
        violated: &[Domain],
        interruptible_primary: bool,
    ) -> CallbackResult {
        Ok(())
    }

    /// A pool has fewer spares than wanted; told again in each pass while it is so (CALLB-11).
    fn on_spare_underflow(&self, pool: &PoolName, current: usize, target: usize) -> CallbackResult {
        Ok(())
    }

    /// A migration entered a phase (CALLB-12).
    fn on_migration_phase(&self, migration: &MigrationState) -> CallbackResult {
        Ok(())
    }

    /// A job lives on its target (CALLB-12).
    fn on_migration_completed(&self, migration_id: &MigrationId) -> CallbackResult {
        Ok(())
    }

    /// A migration came to nothing (CALLB-12).
    fn on_migration_aborted(&self, migration_id: &MigrationId, reason: &str) -> CallbackResult {
        Ok(())
    }

    /// A drain, or one of its jobs, came further (CALLB-12).
    fn on_drain_progress(&self, drain: &DrainState) -> CallbackResult {
        Ok(())
    }

    /// A provider's notice is being followed (CALLB-12).
    fn on_node_interrupted(&self, interruption: &NodeInterruption) -> CallbackResult {
        Ok(())
    }

    /// A batch of images settled on a node, one result for each reference (PREFETCH-04).
    fn on_images_prefetched(&self, node_id: &NodeId, results: &[PrefetchResult]) -> CallbackResult {
        Ok(())
    }
}

/// No callbacks: errors are logged, the rest is silent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallbacks;

impl Callbacks for NoCallbacks {}

/// Name of a callback, as in policy.md.
#[must_use]
pub const fn callback_name(callback: &Callback) -> &'static str {
    match callback {
        Callback::OnConnectionStateChange { .. } => "onConnectionStateChange",
        Callback::OnError(_) => "onError",
        Callback::OnJobUpdated { .. } => "onJobUpdated",
        Callback::OnJobDeleted { .. } => "onJobDeleted",
        Callback::OnJobInfo(_) => "onJobInfo",
        Callback::OnAuditAppended(_) => "onAuditAppended",
        Callback::OnJobRejected { .. } => "onJobRejected",
        Callback::OnJobDropped { .. } => "onJobDropped",
        Callback::OnNodeStarting { .. } => "onNodeStarting",
        Callback::OnNodeStarted { .. } => "onNodeStarted",
        Callback::OnNodeStopping { .. } => "onNodeStopping",
        Callback::OnNodeStopped { .. } => "onNodeStopped",
        Callback::OnNodeTerminated { .. } => "onNodeTerminated",
        Callback::OnNodeUnhealthy { .. } => "onNodeUnhealthy",
        Callback::OnNodeHealthy { .. } => "onNodeHealthy",
        Callback::OnBundleUpdated { .. } => "onBundleUpdated",
        Callback::OnBundleDeleted { .. } => "onBundleDeleted",
        Callback::OnBundleBroken { .. } => "onBundleBroken",
        Callback::OnPlacementDecision(_) => "onPlacementDecision",
        Callback::OnPlacementFailed { .. } => "onPlacementFailed",
        Callback::OnResilienceDegraded { .. } => "onResilienceDegraded",
        Callback::OnSpareUnderflow { .. } => "onSpareUnderflow",
        Callback::OnMigrationPhase(_) => "onMigrationPhase",
        Callback::OnMigrationCompleted { .. } => "onMigrationCompleted",
        Callback::OnMigrationAborted { .. } => "onMigrationAborted",
        Callback::OnDrainProgress(_) => "onDrainProgress",
        Callback::OnNodeInterrupted(_) => "onNodeInterrupted",
        Callback::OnImagesPrefetched { .. } => "onImagesPrefetched",
    }
}

/// Calls the method of the callback's name.
fn dispatch<C: Callbacks + ?Sized>(to: &C, callback: &Callback) -> CallbackResult {
    match callback {
        Callback::OnConnectionStateChange { state } => to.on_connection_state_change(*state),
        Callback::OnError(error) => to.on_error(error),
        Callback::OnJobUpdated { job_id, job } => to.on_job_updated(job_id, job),
        Callback::OnJobDeleted { job_id } => to.on_job_deleted(job_id),
        Callback::OnJobInfo(info) => to.on_job_info(info),
        Callback::OnAuditAppended(entry) => to.on_audit_appended(entry),
        Callback::OnJobRejected {
            job_id,
            role,
            node_id,
            code,
            reason,
            inventory,
            at,
        } => to.on_job_rejected(Rejection {
            job_id,
            role,
            node_id,
            code: *code,
            reason,
            inventory: inventory.as_ref(),
            at: *at,
        }),
        Callback::OnJobDropped { job_id } => to.on_job_dropped(job_id),
        Callback::OnNodeStarting { node_id } => to.on_node_starting(node_id),
        Callback::OnNodeStarted { node_id, node } => to.on_node_started(node_id, node),
        Callback::OnNodeStopping { node_id } => to.on_node_stopping(node_id),
        Callback::OnNodeStopped { node_id } => to.on_node_stopped(node_id),
        Callback::OnNodeTerminated { node_id } => to.on_node_terminated(node_id),
        Callback::OnNodeUnhealthy { node_id } => to.on_node_unhealthy(node_id),
        Callback::OnNodeHealthy { node_id } => to.on_node_healthy(node_id),
        Callback::OnBundleUpdated { bundle_id, bundle } => to.on_bundle_updated(bundle_id, bundle),
        Callback::OnBundleDeleted { bundle_id } => to.on_bundle_deleted(bundle_id),
        Callback::OnBundleBroken { bundle_id, reason } => to.on_bundle_broken(bundle_id, reason),
        Callback::OnPlacementDecision(decision) => to.on_placement_decision(decision),
        Callback::OnPlacementFailed {
            job_id,
            bundle_id,
            replica_index,
            job_name,
            reason,
            tried_pools,
            at,
        } => to.on_placement_failed(
            Spot {
                job_id,
                bundle_id,
                replica_index: *replica_index,
                job_name,
                at: *at,
            },
            reason,
            tried_pools,
        ),
        Callback::OnResilienceDegraded {
            job_id,
            bundle_id,
            replica_index,
            job_name,
            violated,
            interruptible_primary,
            at,
        } => to.on_resilience_degraded(
            Spot {
                job_id,
                bundle_id,
                replica_index: *replica_index,
                job_name,
                at: *at,
            },
            violated,
            *interruptible_primary,
        ),
        Callback::OnSpareUnderflow {
            pool,
            current,
            target,
        } => to.on_spare_underflow(pool, *current, *target),
        Callback::OnMigrationPhase(migration) => to.on_migration_phase(migration),
        Callback::OnMigrationCompleted { migration_id } => to.on_migration_completed(migration_id),
        Callback::OnMigrationAborted {
            migration_id,
            reason,
        } => to.on_migration_aborted(migration_id, reason),
        Callback::OnDrainProgress(drain) => to.on_drain_progress(drain),
        Callback::OnNodeInterrupted(interruption) => to.on_node_interrupted(interruption),
        Callback::OnImagesPrefetched { node_id, results } => {
            to.on_images_prefetched(node_id, results)
        }
    }
}
