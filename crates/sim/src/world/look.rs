//! What can be seen of a world from outside, for whoever decides what happens next in it.

use greenroom_ledger::Node;
use greenroom_types::node::NodeState;
use greenroom_types::{JobId, NodeId};

use super::World;
use super::worker::{RunPhase, Worker};
use crate::format::names::JobPath;

/// A node of the simulated fleet.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) id: NodeId,
    /// As a scenario names it.
    pub(crate) name: String,
    pub(crate) state: Option<NodeState>,
    /// Its worker's process runs.
    pub(crate) up: bool,
    /// Its line is cut.
    pub(crate) cut: bool,
    /// Bought.
    pub(crate) elastic: bool,
    /// What ran when it went, as far as it is a bundle's.
    pub(crate) past: Vec<JobPath>,
    /// Images that it pulls now.
    pub(crate) pulls: Vec<String>,
}

// === impl World ===

impl World {
    /// Every node of the fleet, by id.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let see = |(id, worker): (&NodeId, &Worker)| {
            let node = self.ledger.node(id);
            Seen {
                id: id.clone(),
                name: self.purchases.name(id),
                state: node.map(|node| node.state),
                up: worker.up,
                cut: worker.cut,
                elastic: node.is_some_and(Node::is_elastic),
                past: worker
                    .past
                    .iter()
                    .filter_map(|order| JobPath::of_job_id(order.instance.key.job_id.as_str()))
                    .collect(),
                pulls: worker.wanted_images(),
            }
        };
        self.workers.iter().map(see).collect()
    }

    /// Every job of a bundle that the Manager has, by id.
    pub(crate) fn job_paths(&self) -> Vec<JobPath> {
        let jobs = self.ledger.jobs();
        jobs.filter_map(|record| {
            record.view.job.bundle_place()?;
            JobPath::of_job_id(record.view.job.job_id.as_str())
        })
        .collect()
    }

    /// An instance of the job is at a worker.
    pub(crate) fn is_at_worker(&self, job: &JobPath) -> bool {
        self.live(job).is_ok()
    }

    /// An instance of this job runs there.
    pub(crate) fn runs_there(&self, job_id: &JobId, node_id: &NodeId) -> bool {
        self.workers.get(node_id).is_some_and(|worker| {
            worker.is_reachable()
                && worker.runs.values().any(|run| {
                    run.phase == RunPhase::Running && run.order.instance.key.job_id == *job_id
                })
        })
    }

    /// Every running instance, by node.
    pub(crate) fn running(&self) -> Vec<(NodeId, JobId)> {
        let of = |(node_id, worker): (&NodeId, &Worker)| {
            let runs = worker.runs.values();
            let running = runs.filter(|run| run.phase == RunPhase::Running);
            running
                .map(|run| (node_id.clone(), run.order.instance.key.job_id.clone()))
                .collect::<Vec<_>>()
        };
        self.workers.iter().flat_map(of).collect()
    }
}
