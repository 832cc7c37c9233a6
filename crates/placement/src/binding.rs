//! What the fleet remembers of a job on a node: the binding the decision made (RESV-03, RESV-04).
//! Roles, gates and retries of a job belong to the policy.

use std::sync::Arc;

use greenroom_types::bundle::Bundle;
use greenroom_types::{BundleId, JobId, JobName};
use serde::{Deserialize, Serialize};

use crate::groups::BundlePlan;
use crate::needs::Needs;

/// Place of a runtime job in its bundle: what its three tags say (BUNDLE-07).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// The bundle.
    pub bundle_id: BundleId,
    /// The copy: 0 or 1.
    pub replica_index: u32,
    /// The job within the bundle.
    pub job_name: JobName,
}

impl JobRef {
    /// The reference made of these three.
    pub const fn new(bundle_id: BundleId, replica_index: u32, job_name: JobName) -> Self {
        Self {
            bundle_id,
            replica_index,
            job_name,
        }
    }

    /// True when the bundle, as it is defined, has this job in this copy.
    pub fn is_of(&self, bundle: &Bundle) -> bool {
        bundle.job(self.job_name.as_str()).is_some() && self.replica_index < bundle.copies()
    }

    /// True when both belong to the same copy of the same bundle.
    pub fn same_copy(&self, other: &Self) -> bool {
        self.replica_index == other.replica_index && self.bundle_id == other.bundle_id
    }
}

/// Which of the two nodes of a job is meant; outside a migration there is only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// Where the job belongs.
    Binding,
    /// Where its migration will take it.
    MigrationTarget,
}

/// One job on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The job.
    pub job_id: JobId,
    /// Its place in its bundle.
    pub job: JobRef,
    /// Which side of the job it is.
    pub side: Side,
    /// Device on which it holds its GPU share; none: no share, or unknown (GPU-05).
    pub gpu_index: Option<u32>,
    /// Needs it counts with; none: its specification was never known (RESV-04).
    pub needs: Option<Arc<Needs>>,
    /// Nothing outside its group may share the node.
    pub exclusive: bool,
    /// Grows with every binding, so that jobs can be taken in the order of binding.
    pub seq: u64,
    /// Capacity and cores, when it needs nothing else: spares a look elsewhere in each sum.
    pub(crate) plain: Option<(f64, u64)>,
    /// Others belong onto its node with it.
    pub(crate) shares: bool,
}

// === impl Bound ===

impl Bound {
    /// Takes what its bundle says of it. What it was bound with counts on, as it may run with that
    /// (RESV-04); what it needs from its next start on counts at once (BUNDLE-11).
    pub(crate) fn take_spec(&mut self, plan: &BundlePlan, at: usize) {
        let job = &plan.jobs()[at];
        let needs = match self.needs.take() {
            Some(old) if *old != *job.needs => Arc::new(old.raised_to(&job.needs)),
            _ => Arc::clone(&job.needs),
        };
        self.plain = needs.plain();
        self.needs = Some(needs);
        self.exclusive = job.exclusive;
        self.shares = plan.groups()[job.group].is_shared();
    }
}
