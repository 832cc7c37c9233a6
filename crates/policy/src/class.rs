//! Which pending jobs ask the engine the same question, so that one answer serves all (PEND-08).
//!
//! Only "no place" is ever taken from one job to another, so that a class need not know what merely
//! ranks nodes: spares to be preferred or avoided, warmth, failure domains (which are best effort,
//! RESIL-02). What may turn a no into a yes is in the class, or makes the job a class of its own.

use std::sync::Arc;

use greenroom_types::bundle::SameAz;
use greenroom_types::inventory::Capability;
use greenroom_types::{JobId, PoolName, TemplateName};

use crate::job::JobRecord;
use crate::policy::Policy;

/// A class of pending jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No other job's answer is this one's.
    Alone(JobId),
    /// All jobs with this question.
    Same(Arc<Question>),
}

/// What decides whether there is a place at all for a job that no rule ties to others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    pool: PoolName,
    /// Bits of the numbers: equal needs, equal bits.
    capacity: u64,
    cores: u32,
    capabilities: Vec<Capability>,
    ports: Vec<String>,
    gpu: (u64, String),
    /// Containers, processes (PLACE-35).
    runtimes: (bool, bool),
    /// Which reservations admit it (PLACE-09).
    template: Option<TemplateName>,
    overrides: bool,
}

// === impl Policy ===

impl Policy {
    /// The class of a job that is to be placed.
    pub(crate) fn class_of(&self, job: &JobRecord) -> Class {
        self.question_of(job).map_or_else(
            || Class::Alone(job.job_id().clone()),
            |question| Class::Same(Arc::new(question)),
        )
    }

    /// None for a job about which more has to be known: one that its group, its copy's zone, its
    /// exclusiveness, its own exclusions (HEALTH-10) or remains (RECOV-08) bind to this node or that.
    fn question_of(&self, job: &JobRecord) -> Option<Question> {
        let spot = job.spot.as_ref()?;
        let plan = self.fleet.plan(&spot.bundle_id)?;
        let bundle = plan.bundle();
        let planned = &plan.jobs()[plan.job_index(&spot.job_name)?];
        let group = &plan.groups()[planned.group];
        let free = group.members.len() == 1
            && group.apart.is_empty()
            && !group.exclusive
            && bundle.intra_replica_placement.same_az != SameAz::Hard
            && job.excluded.is_empty()
            && job.remains.is_empty();
        let spec = bundle.job(spot.job_name.as_str()).filter(|_| free)?;
        let needs = &spec.requirements;
        Some(Question {
            pool: bundle.pool_of(spot.replica_index).clone(),
            capacity: needs.required_capacity.to_bits(),
            cores: needs.required_cores,
            capabilities: needs.required_capabilities.clone(),
            ports: needs.required_host_ports.clone(),
            gpu: (
                needs.required_gpu_capacity.to_bits(),
                needs.required_gpu_model.clone(),
            ),
            runtimes: (planned.needs.containers, planned.needs.processes),
            template: spec.launch.template.clone(),
            overrides: bundle.override_reservation,
        })
    }
}
