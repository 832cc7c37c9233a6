//! Workers of the harness, which live over all kills of the Manager, and the jobs that run on them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use greenroom_sdk::types::bundle::{Bundle, StartMode};
use greenroom_sdk::types::job::{Job, LeasePolicy};
use greenroom_sdk::types::{BundleId, JobId, Millis, NodeId, PoolName};
use greenroom_sdk::{Client, JobSearch};
use greenroom_testkit::{FakeWorker, job};

use super::daemon::PATIENCE;

/// Workers that stay to the end.
pub(super) const WORKERS: usize = 2;
/// Jobs of each client that are started and stopped there.
const JOBS: usize = 3;
/// How the names of slots that are drained begin.
const DRAINED: &str = "drained-";

/// Jobs of one client.
pub(super) fn jobs_of(client: usize) -> impl Iterator<Item = JobId> {
    (0..JOBS).map(move |number| JobId::new(format!("run{client}-{number}")))
}

/// Whether a job of [`jobs_of`] holds a lease while it runs.
pub(super) fn is_leased(job_id: &JobId) -> bool {
    job_id.as_str().ends_with("-0")
}

/// Whether a job is of [`jobs_of`].
pub(super) fn is_run(job_id: &JobId) -> bool {
    job_id.as_str().starts_with("run")
}

/// A job that runs, as it is stored. Its lease lasts for longer than the workers are not asked for it.
fn run(job_id: &JobId) -> Job {
    let lease = LeasePolicy {
        ttl_ms: Millis(300_000),
        ..LeasePolicy::default()
    };
    Job {
        lease: is_leased(job_id).then_some(lease),
        ..job(job_id.as_str())
    }
}

/// The slot of one client whose pool changes; nobody calls in for it.
pub(super) fn pooled(client: usize) -> NodeId {
    NodeId::new(format!("pooled-{client}"))
}

/// The content of a pool's name; none for another pool.
pub(super) fn pool_content(pool: &PoolName) -> Option<u64> {
    pool.as_str().strip_prefix("pool-")?.parse().ok()
}

/// Name of a pool with a content.
pub(super) fn pool_name(content: u64) -> PoolName {
    PoolName::new(format!("pool-{content}"))
}

/// The bundle of one client whose job is woken and put to sleep.
pub(super) fn sleeper(client: usize) -> BundleId {
    BundleId::new(format!("sleeper-{client}"))
}

/// Whose bundle [`sleeper`] is; none for another bundle.
pub(super) fn sleeper_of(bundle_id: &BundleId) -> Option<usize> {
    bundle_id.as_str().strip_prefix("sleeper-")?.parse().ok()
}

/// The only job of [`sleeper`].
pub(super) const SLEEPS: &str = "sleeps";

fn sleeping_bundle(client: usize) -> Bundle {
    let mut bundle = greenroom_testkit::bundle(sleeper(client).as_str(), &[SLEEPS]);
    for job in &mut bundle.jobs {
        job.start_mode = StartMode::Manual;
    }
    bundle
}

/// The worker that stays on whose node one client sets tags.
pub(super) fn tagged(client: usize) -> NodeId {
    NodeId::new(format!("stays-{}", client % WORKERS))
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

/// Whether a slot stays to the end.
pub(super) fn stays(node_id: &NodeId) -> bool {
    ["stays-", "pooled-"]
        .iter()
        .any(|start| node_id.as_str().starts_with(start))
}

/// Registers the workers that stay, and stores the jobs.
pub(super) async fn begin(client: &Client, clients: usize) -> Result<Vec<FakeWorker>> {
    for job_id in (0..clients).flat_map(jobs_of).chain([drained_job()]) {
        client.create_job(run(&job_id)).await?;
    }
    for number in 0..clients {
        client.create_bundle(sleeping_bundle(number)).await?;
        client
            .register_cluster_node(pooled(number).as_str(), pool_name(0))
            .await?;
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
