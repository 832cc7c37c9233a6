//! Workers of the harness, which live over all kills of the Manager, and the jobs that run on them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use greenroom_sdk::types::{JobId, NodeId};
use greenroom_sdk::{Client, JobSearch};
use greenroom_testkit::{FakeWorker, job};

/// Workers that stay to the end.
const WORKERS: usize = 2;
/// Jobs of each client that are started and stopped there.
const JOBS: usize = 3;
/// How the names of slots that are drained begin.
const DRAINED: &str = "drained-";
/// What a drain may take in the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Jobs of one client.
pub(super) fn jobs_of(client: usize) -> impl Iterator<Item = JobId> {
    (0..JOBS).map(move |number| JobId::new(format!("run{client}-{number}")))
}

/// The worker of a job: one that stays.
pub(super) fn node_of(job_id: &JobId) -> NodeId {
    let sum: usize = job_id.as_str().bytes().map(usize::from).sum();
    NodeId::new(format!("stays-{}", sum % WORKERS))
}

/// The job that runs on slots that are drained.
pub(super) fn drained_job() -> JobId {
    JobId::new("drained")
}

/// Name and id of a slot that is drained.
pub(super) fn drained_name(content: u64) -> String {
    format!("{DRAINED}{content}")
}

/// The number in the id of a slot that is drained; none for another slot.
pub(super) fn number_of(node_id: &NodeId) -> Option<u64> {
    node_id.as_str().strip_prefix(DRAINED)?.parse().ok()
}

/// Whether a slot is of a worker that stays.
pub(super) fn stays(node_id: &NodeId) -> bool {
    node_id.as_str().starts_with("stays-")
}

/// Registers the workers that stay, and stores the jobs.
pub(super) async fn begin(client: &Client, clients: usize) -> Result<Vec<FakeWorker>> {
    for job_id in (0..clients).flat_map(jobs_of).chain([drained_job()]) {
        client.create_job(job(job_id.as_str())).await?;
    }
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let worker = FakeWorker::register(client, &format!("stays-{number}")).await;
        let called = worker.call_in(client).await;
        called.context("a worker's token opens its slot")?;
        worker.wait_greeted(1).await;
        workers.push(worker);
    }
    Ok(workers)
}

/// Removes what is left of the slots that are drained, and waits until nothing runs there any more.
pub(super) async fn finish(client: &Client) -> Result<()> {
    for slot in client.list_cluster_nodes().await? {
        if number_of(&slot.node_id).is_some() {
            client.deregister_cluster_node(slot.node_id).await?;
        }
    }
    let drained = async {
        loop {
            let jobs = client.job_search(JobSearch::default()).await?;
            let job = jobs
                .into_iter()
                .find(|it| it.job.job.job_id == drained_job());
            let job = job.context("the job of the drained slots is there")?;
            let is_lost = |state| matches!(state, greenroom_sdk::types::node::InstanceState::Lost);
            // Of a worker that went away with its slot nobody can tell what it still runs.
            if job.instances.iter().all(|it| is_lost(it.state)) {
                return Ok::<(), anyhow::Error>(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, drained).await;
    ensure!(ended.is_ok(), "a slot was removed and its job runs on");
    ended?
}
