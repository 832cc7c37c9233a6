//! One question to the engine: this job of this copy, in this context (PLACE-01).

use std::collections::BTreeSet;

use greenroom_types::bundle::{Bundle, OnRuntimeFailure};
use greenroom_types::{JobId, JobName, NodeId};
use serde::{Deserialize, Serialize};

/// Why a job is placed (PLACE-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Context {
    /// Neither of the others.
    #[default]
    Launch,
    /// After the loss of a runtime, with what the job says of that.
    Recovery(OnRuntimeFailure),
    /// Target of a migration away from this node.
    Migration {
        /// Where the job runs now.
        source: NodeId,
    },
}

/// A job to be placed.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Its bundle.
    pub(crate) bundle: &'a Bundle,
    /// Index of the job in the bundle.
    pub(crate) job: usize,
    /// Its copy.
    pub(crate) replica_index: u32,
    /// The runtime job, so that its own binding is no obstacle to itself; none: as the Manager makes
    /// it.
    pub(crate) job_id: Option<JobId>,
    /// Why it is placed.
    pub(crate) context: Context,
    /// Nodes excluded for this job alone (HEALTH-10).
    pub(crate) excluded: Option<&'a BTreeSet<NodeId>>,
    /// The only node that will do.
    pub(crate) pin: Option<&'a NodeId>,
    /// Admits spares reserved for others, besides what the bundle says (PLACE-09).
    pub(crate) override_reservation: bool,
}

// === impl Request ===

impl<'a> Request<'a> {
    /// A launch of that job; none for an unknown name or an index outside the copies (PLACE-33).
    /// The id is made as the Manager makes it (BDL-03); see [`Request::of_job`] for another one.
    pub fn new(bundle: &'a Bundle, replica_index: u32, job_name: &JobName) -> Option<Self> {
        let job = bundle
            .jobs
            .iter()
            .position(|job| job.job_name == *job_name)?;
        (replica_index < bundle.copies()).then_some(Self {
            bundle,
            job,
            replica_index,
            job_id: None,
            context: Context::Launch,
            excluded: None,
            pin: None,
            override_reservation: false,
        })
    }

    /// With that id of the runtime job.
    #[must_use]
    pub fn of_job(mut self, job_id: &JobId) -> Self {
        self.job_id = Some(job_id.clone());
        self
    }

    /// In that context.
    #[must_use]
    pub fn in_context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// Without these nodes (HEALTH-10).
    #[must_use]
    pub const fn without(mut self, excluded: &'a BTreeSet<NodeId>) -> Self {
        self.excluded = Some(excluded);
        self
    }

    /// On that node or nowhere (PLACE-27).
    #[must_use]
    pub const fn pinned_to(mut self, node: &'a NodeId) -> Self {
        self.pin = Some(node);
        self
    }

    /// Admitting spares reserved for others (PLACE-09).
    #[must_use]
    pub const fn overriding_reservations(mut self, admit: bool) -> Self {
        self.override_reservation = admit;
        self
    }
}
