//! The Manager as its clients and workers meet it: real gRPC on loopback, a store on disk, workers
//! that run nothing. Tests synchronise on events and on what the workers were told.

mod abuse;
mod api;
mod audit;
mod events;
mod fanout;
mod fleet;
mod hard;
mod jobs;
mod kv;
mod leases;
mod member;
mod metrics;
mod nodes;
mod phases;
mod places;
mod register;
mod relay;
mod replica;
mod restored;
mod security;

use greenroom_sdk::types::StartId;
use greenroom_sdk::types::call::AuditEntry;
use greenroom_sdk::types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_sdk::{AuditQuery, Client};
use greenroom_testkit::{FakeWorker, Watch, job, start, within};

/// A job that runs on a worker.
async fn running(client: &Client, watch: &mut Watch, worker: &FakeWorker, job_id: &str) -> StartId {
    let node_id = worker.node_id();
    client.create_job(job(job_id)).await.expect("a new job");
    let start = start(job_id, node_id.as_str());
    client
        .start_job(start)
        .await
        .expect("the start is accepted");
    let shown = watch.until_last(job_id, "running").await;
    start_of(&shown)
}

/// The newest start in a job's history.
fn start_of(job: &JobWithHistory) -> StartId {
    let entries = job.history.iter().rev();
    let mut starts = entries.filter_map(|entry| entry.start_id.clone());
    starts.next().expect("a job that was started")
}

/// Reason and detail of the newest `job_stopping`.
fn stopping_of(job: &JobWithHistory) -> (StopReason, String) {
    let entries = job.history.iter().rev();
    let mut stops = entries.filter_map(|entry| match &entry.kind {
        HistoryKind::Stopping { reason, detail, .. } => Some((*reason, detail.clone())),
        _ => None,
    });
    stops.next().expect("a job that was stopped")
}

/// Waits until the audit log holds at least so many entries of a kind, and gives the newest.
async fn until_audited(client: &Client, kind: &str, count: usize) -> AuditEntry {
    let query = AuditQuery {
        kind: kind.to_owned(),
        ..AuditQuery::default()
    };
    within(kind, async {
        loop {
            let page = client
                .get_audit_log(query.clone())
                .await
                .expect("an answer");
            if page.entries.len() >= count {
                return page.entries[0].clone();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// A job's whole record.
async fn history(client: &Client, job_id: &str) -> JobWithHistory {
    let found = client.job_history(job_id).await.expect("an answer");
    found.expect("the job is known")
}

/// How many orders to create an instance of the job a worker was given.
fn provisions(worker: &FakeWorker, job_id: &str) -> usize {
    let orders = worker.orders();
    orders
        .iter()
        .filter(|order| order.provision_of(job_id).is_some())
        .count()
}

/// How many orders to stop an instance of the job a worker was given.
fn stops(worker: &FakeWorker, job_id: &str) -> usize {
    let orders = worker.orders();
    orders
        .iter()
        .filter(|order| order.stop_of(job_id).is_some())
        .count()
}
