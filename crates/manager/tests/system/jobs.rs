//! A job's life over the wire.

use greenroom_sdk::types::Millis;
use greenroom_sdk::types::job::{JobState, StopReason};
use greenroom_sdk::types::node::{NodeState, RejectionCode};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_testkit::{Received, TestManager, job, key, kinds, start};

use super::{history, running, start_of, stopping_of};

// spec: JOB-01, JOB-12, JOB-20, JOB-23
#[tokio::test]
async fn a_job_is_created_started_runs_and_is_stopped() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    worker.hold();
    let mut watch = manager.watch().await;

    let hash = client.create_job(job("clock")).await.unwrap();
    let shown = watch.until_job("clock", "pending", |_| true).await;
    assert_eq!((shown.state, shown.current_hash), (JobState::Pre, hash));

    client.start_job(start("clock", "n1")).await.unwrap();
    let shown = watch.until_last("clock", "provisioned").await;
    assert_eq!(shown.state, JobState::Active);
    let start_id = worker.wait_provision("clock").await;
    assert_eq!(
        start_id,
        start_of(&shown),
        "the worker is told the start that is recorded"
    );

    worker.accepted(&start_id);
    worker.started(&start_id);
    watch.until_last("clock", "running").await;

    client
        .stop_job(key("clock"), "n1", Some(Millis(2_500)))
        .await
        .unwrap();
    let shown = watch.until_last("clock", "stopping").await;
    assert_eq!(stopping_of(&shown).0, StopReason::UserRequested);
    let told = worker
        .wait_order("a stop", |order| match order {
            Received::Stop {
                start_id,
                grace_ms,
                reason,
                ..
            } => Some((start_id.clone(), *grace_ms, reason.clone())),
            _ => None,
        })
        .await;
    assert_eq!(told, (start_id.clone(), 2_500, "USER".to_owned()));
    worker.stopped(&start_id);
    let shown = watch.until_last("clock", "stopped").await;
    assert_eq!(
        kinds(&shown),
        ["created", "provisioned", "running", "stopping", "stopped"]
    );
    assert_eq!(shown.state, JobState::Active, "it may be started again");
    worker.wait_acknowledged().await;
}

// spec: JOB-11, JOB-13, JOB-34
#[tokio::test]
async fn a_job_that_ends_by_itself_is_completed_and_not_started_again() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let start_id = running(&client, &mut watch, &worker, "short").await;
    worker.completed(&start_id);
    let shown = watch.until_last("short", "completed").await;
    assert_eq!(
        kinds(&shown),
        ["created", "provisioned", "running", "stopped", "completed"]
    );
    let refused = client.start_job(start("short", "n1")).await.unwrap_err();
    assert_eq!(refused.reason(), "job_terminal");

    running(&client, &mut watch, &worker, "long").await;
    client.complete_job("long").await.unwrap();
    let shown = watch.until_last("long", "completed").await;
    assert_eq!(shown.state, JobState::Post);
    client.complete_job("long").await.expect("repeated: OK");
}

// spec: JOB-21, JOB-22
#[tokio::test]
async fn failures_and_rejections_end_the_instance_and_not_the_job() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let start_id = running(&client, &mut watch, &worker, "weak").await;
    worker.failed(&start_id, "main: exit 3");
    let shown = watch.until_last("weak", "stopping").await;
    let failed = (StopReason::JobFailed, "main: exit 3".to_owned());
    assert_eq!(stopping_of(&shown), failed);
    worker.stopped(&start_id);
    let shown = watch.until_last("weak", "stopped").await;
    assert_eq!(shown.state, JobState::Active);

    worker.hold();
    client.create_job(job("big")).await.unwrap();
    client.start_job(start("big", "n1")).await.unwrap();
    let start_id = worker.wait_provision("big").await;
    worker.rejected(
        &start_id,
        RejectionCode::Capacity,
        "8 vCPUs are free, 16 are wanted",
    );
    let (code, reason) = watch
        .until("job_rejected", |event| match event {
            StreamEvent::JobRejected { code, reason, .. } => Some((*code, reason.clone())),
            _ => None,
        })
        .await;
    assert_eq!(code, RejectionCode::Capacity);
    assert_eq!(reason, "8 vCPUs are free, 16 are wanted");
    let shown = watch.until_last("big", "stopped").await;
    assert_eq!(
        kinds(&shown),
        ["created", "provisioned", "rejected", "stopping", "stopped"]
    );
    assert_eq!(shown.state, JobState::Active);
}

// spec: JOB-13, JOB-14, API-15
#[tokio::test]
async fn starts_that_cannot_be_are_refused_by_name_and_no_worker_hears_of_them() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let (n1, n2) = (manager.worker("n1").await, manager.worker("n2").await);
    let mut watch = manager.watch().await;
    running(&client, &mut watch, &n1, "on-air").await;
    client.create_job(job("idle")).await.unwrap();
    client.create_job(job("over")).await.unwrap();
    client
        .mark_job_failed("over", "it never worked")
        .await
        .unwrap();
    let gone = manager.worker("gone").await;
    client.terminate_node("gone").await.unwrap();
    watch
        .until_mirror("the end of node gone", |mirror| {
            !mirror.nodes.contains_key("gone")
        })
        .await;

    for (job_id, node_id, reason) in [
        ("nothing", "n1", "unknown_job"),
        ("idle", "nowhere", "unknown_node"),
        ("idle", "gone", "node_not_running"),
        ("over", "n1", "job_terminal"),
        ("on-air", "n1", "already_on_node"),
        ("on-air", "n2", "live_elsewhere"),
        ("", "n1", "missing_field"),
    ] {
        let refused = client.start_job(start(job_id, node_id)).await.unwrap_err();
        assert_eq!(refused.reason(), reason, "{job_id} on {node_id}");
    }
    // A start that is good comes after them, so that what they caused would be here by now.
    running(&client, &mut watch, &n2, "sentinel").await;
    assert_eq!(super::provisions(&n1, "on-air"), 1);
    assert_eq!(n2.orders().iter().filter_map(Received::start_id).count(), 1);
    assert_eq!(super::provisions(&gone, "idle"), 0);
}

// spec: JOB-16
#[tokio::test]
async fn a_start_on_a_node_that_starts_is_held_until_its_hello() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let worker = greenroom_testkit::FakeWorker::register(&client, "n1").await;
    worker.cut();
    worker.call_in(&client).await.unwrap();
    watch.until_node("n1", NodeState::Starting).await;
    client.create_job(job("early")).await.unwrap();
    client.start_job(start("early", "n1")).await.unwrap();
    let shown = watch.until_last("early", "provisioned").await;
    worker.mend();
    assert_eq!(worker.wait_provision("early").await, start_of(&shown));
    watch.until_last("early", "running").await;
}

// spec: JOB-24
#[tokio::test]
async fn a_deferred_start_is_prepared_and_runs_when_told() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    client.create_job(job("later")).await.unwrap();
    let mut deferred = start("later", "n1");
    deferred.defer_start = true;
    client.start_job(deferred).await.unwrap();
    watch
        .until("job_prepared", |event| {
            matches!(event, StreamEvent::JobPrepared { .. }).then_some(())
        })
        .await;
    let shown = history(&client, "later").await;
    assert_eq!(kinds(&shown), ["created", "provisioned", "prepared"]);
    client.start_prepared_job(key("later"), "n1").await.unwrap();
    watch.until_last("later", "running").await;
    let again = client.start_prepared_job(key("later"), "n1").await;
    assert_eq!(again.unwrap_err().reason(), "already_running");
    drop(worker);
}
