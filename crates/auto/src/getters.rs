//! Reading an instance (CALLB-14): every getter answers at once with the state between two inputs,
//! and what it returns is a snapshot (CALLB-13). After the end they go on answering from the last
//! mirror (LIFE-06).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use greenroom_placement::{Findings, Spare};
use greenroom_policy::drain::DrainState;
use greenroom_policy::effect::{NodeView, PlacementInfo};
use greenroom_policy::getters::{Admission, BundleStopTime, DryRun, PendingPlacement};
use greenroom_policy::interrupt::NodeInterruption;
use greenroom_policy::migration::MigrationState;
use greenroom_policy::settings::NodeService;
use greenroom_policy::spare::SpareCount;
use greenroom_policy::{Metrics, Policy, Report};
use greenroom_types::bundle::{Bundle, BundleStatus};
use greenroom_types::id::{BundleId, JobId, JobName, MigrationId, NodeId, PoolName, ServiceId};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobWithHistory;

use crate::checks::Checks;
use crate::handle::AutoManager;
use crate::record::Recording;

// === impl AutoManager: mirrors ===

impl AutoManager {
    /// Looks at the policy between two inputs. The loop waits meanwhile: be brief, and ask the
    /// instance nothing from within.
    pub fn read<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        // A policy that broke on a fault of its own is still the last mirror there is.
        look(
            &self
                .shared
                .policy
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Every job of the mirror, by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<Arc<JobWithHistory>> {
        self.read(|policy| policy.jobs().cloned().collect())
    }

    /// Every node of the mirror, by id, prospective ones included.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        self.read(Policy::nodes)
    }

    /// Every known bundle, by id.
    #[must_use]
    pub fn bundles(&self) -> Vec<Arc<BundleStatus>> {
        self.read(|policy| policy.bundles().cloned().collect())
    }

    /// A bundle.
    #[must_use]
    pub fn bundle_by_id(&self, bundle_id: &BundleId) -> Option<Arc<BundleStatus>> {
        self.read(|policy| policy.bundle_by_id(bundle_id).cloned())
    }

    /// Jobs of a bundle by their tags; none for an unknown one.
    #[must_use]
    pub fn jobs_for_bundle(&self, bundle_id: &BundleId) -> Vec<JobId> {
        self.read(|policy| policy.jobs_for_bundle(bundle_id))
    }

    /// Node that a job is bound to, if it is in the mirror (CALLB-15).
    #[must_use]
    pub fn node_for_job(&self, job_id: &JobId) -> Option<NodeId> {
        self.read(|policy| policy.node_for_job(job_id).cloned())
    }

    /// Placements of record, newest first.
    #[must_use]
    pub fn placements(&self) -> Vec<PlacementInfo> {
        self.read(|policy| policy.placements().into_iter().cloned().collect())
    }

    /// Placement of record of a job (BIND-05).
    #[must_use]
    pub fn placement_for_job(&self, job_id: &JobId) -> Option<PlacementInfo> {
        self.read(|policy| policy.placement_for_job(job_id).cloned())
    }

    /// Jobs that wait for their scheduled start, earliest first (SCHED-06).
    #[must_use]
    pub fn pending_placements(&self) -> Vec<PendingPlacement> {
        self.read(Policy::pending_placements)
    }

    /// Stop times from the Manager and from tags, earliest first (STOP-05).
    #[must_use]
    pub fn bundle_stop_times(&self) -> Vec<BundleStopTime> {
        self.read(Policy::bundle_stop_times)
    }

    /// A node's last picture of itself.
    #[must_use]
    pub fn inventory(&self, node_id: &NodeId) -> Option<Arc<NodeInventory>> {
        self.read(|policy| policy.inventory(node_id).cloned())
    }

    /// All pictures, in the order in which they first arrived.
    #[must_use]
    pub fn inventories(&self) -> Vec<(NodeId, Arc<NodeInventory>)> {
        self.read(Policy::inventories)
    }

    /// Counters and gauges (METR-01).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let now = self.shared.clock.now();
        self.read(|policy| policy.metrics(now))
    }

    /// The last minutes as the parts of a scenario (SCEN-12); none when there was no calm moment to
    /// begin from, or the fleet is too large.
    #[must_use]
    pub fn recording(&self, minutes: u64) -> Option<Recording> {
        let now = self.shared.clock.now();
        let recorder = self.shared.recorder.lock();
        recorder
            .unwrap_or_else(PoisonError::into_inner)
            .recording(now, minutes)
    }

    /// What the policy found wrong with itself so far (METR-08).
    #[must_use]
    pub fn checks(&self) -> Checks {
        let checks = self.shared.checks.lock();
        checks.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True for a bundle of which nothing is placed any more (CEIL-07).
    #[must_use]
    pub fn is_bundle_broken(&self, bundle_id: &BundleId) -> bool {
        self.read(|policy| policy.is_bundle_broken(bundle_id))
    }

    /// Counted restarts of a job within the trailing hour (CEIL-04).
    #[must_use]
    pub fn restart_count(&self, job_id: &JobId) -> usize {
        let now = self.shared.clock.now();
        self.read(|policy| policy.restart_count(now, job_id))
    }

    /// Cordoned by this policy (CORDON-01).
    #[must_use]
    pub fn is_cordoned(&self, node_id: &NodeId) -> bool {
        self.read(|policy| policy.is_cordoned(node_id))
    }

    /// True when the node is tagged as a spare (SPARE-03).
    #[must_use]
    pub fn is_hot_spare_node(&self, node_id: &NodeId) -> bool {
        self.read(|policy| policy.is_hot_spare_node(node_id))
    }

    /// The configured node services (NSVC-01).
    pub fn node_services(&self) -> Vec<NodeService> {
        self.read(|policy| policy.node_services().to_vec())
    }

    /// Where a node service runs: node to job (NSVC-01).
    pub fn node_service_placements_for(&self, service_id: &ServiceId) -> BTreeMap<NodeId, JobId> {
        self.read(|policy| policy.node_service_placements_for(service_id))
    }

    /// What a spare's tags say; none for a node that is no spare (SPARE-03).
    #[must_use]
    pub fn spare_spec(&self, node_id: &NodeId) -> Option<Spare> {
        self.read(|policy| policy.spare_spec(node_id).cloned())
    }

    /// Spares of a pool that are ready, and those on their way.
    #[must_use]
    pub fn spare_count(&self, pool: &PoolName) -> SpareCount {
        self.read(|policy| policy.spare_count(pool))
    }

    /// Migrations under way, and the last that ended, by the time of their beginning (MIGR-33).
    #[must_use]
    pub fn migrations(&self) -> Vec<MigrationState> {
        self.read(Policy::migrations)
    }

    /// A migration, under way or ended.
    #[must_use]
    pub fn migration_by_id(&self, migration_id: &MigrationId) -> Option<MigrationState> {
        self.read(|policy| policy.migration_by_id(migration_id).cloned())
    }

    /// The migration under way of a job.
    #[must_use]
    pub fn migration_for_job(&self, job_id: &JobId) -> Option<MigrationState> {
        self.read(|policy| policy.migration_for_job(job_id).cloned())
    }

    /// A drain of this node, under way or ended (DRAIN-11).
    #[must_use]
    pub fn drain_status(&self, node_id: &NodeId) -> Option<DrainState> {
        self.read(|policy| policy.drain_status(node_id).cloned())
    }

    /// The latest notice about a node, with its drain as it is now (INTR-06).
    #[must_use]
    pub fn node_interruption(&self, node_id: &NodeId) -> Option<NodeInterruption> {
        self.read(|policy| policy.node_interruption(node_id))
    }
}

// === impl AutoManager: questions to the engine ===

impl AutoManager {
    /// Why a job is where it is, or what it waits for; none for a job that is not in the mirror.
    #[must_use]
    pub fn explain(&self, job_id: &JobId) -> Option<Report> {
        let report = self.read(|policy| policy.explain(job_id));
        report.standing.is_some().then_some(report)
    }

    /// Where a job of a bundle would go now, with the trace; nothing is done (PLACE-33). Without a
    /// name the first job is meant.
    #[must_use]
    pub fn place_dry_run(
        &self,
        bundle: &Bundle,
        replica_index: u32,
        job_name: Option<&JobName>,
    ) -> Option<DryRun> {
        self.read(|policy| policy.place_dry_run(bundle, replica_index, job_name))
    }

    /// What is wrong with a bundle before it is submitted (VALID-01).
    #[must_use]
    pub fn validate_bundle(&self, bundle: &Bundle) -> Findings {
        self.read(|policy| policy.validate_bundle(bundle))
    }

    /// Whether each job of a bundle, by itself, would find a place now (VALID-10).
    #[must_use]
    pub fn validate_bundle_admission(&self, bundle: &Bundle) -> Admission {
        self.read(|policy| policy.validate_bundle_admission(bundle))
    }
}
