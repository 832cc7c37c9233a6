//! Leases over the wire: refreshes and their answers, pauses and their confirmations, restarts (LEASE).

use std::time::Duration;

use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::job::{Job, LeasePolicy, StopReason};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{Millis, StartId};
use greenroom_sdk::{Client, Error};
use greenroom_testkit::{FakeWorker, Received, TestManager, Watch, bundle, job, key, start};

use super::{history, start_of, stopping_of, stops, until_audited};

/// The shortest lease there is.
const SHORT: LeasePolicy = LeasePolicy {
    ttl_ms: Millis(2_000),
    grace_ms: Millis(1_000),
};
/// Longer than any test.
const LONG: LeasePolicy = LeasePolicy {
    ttl_ms: Millis(300_000),
    grace_ms: Millis(300_000),
};
/// Fencing numbers of the first generation are above this.
const GENERATION: u64 = 1 << 32;

async fn create(client: &Client, job_id: &str, lease: LeasePolicy) {
    let protected = Job {
        lease: Some(lease),
        ..job(job_id)
    };
    client.create_job(protected).await.expect("a new job");
}

/// Starts a protected job on a worker, and gives the start with its fencing number.
async fn started(client: &Client, worker: &FakeWorker, job_id: &str) -> (StartId, u64) {
    let node_id = worker.node_id();
    client
        .start_job(start(job_id, node_id.as_str()))
        .await
        .expect("the start is accepted");
    let start_id = start_of(&history(client, job_id).await);
    let fence = worker
        .wait_order("the order to create it", |order| match order {
            Received::Provision(order) if order.start_id == start_id => Some(order.fence),
            _ => None,
        })
        .await;
    (start_id, fence)
}

async fn until_lease(watch: &mut Watch, job_id: &str, state: &str) -> u64 {
    watch
        .until(&format!("{job_id} is {state}"), |event| match event {
            StreamEvent::LeaseChanged(lease)
                if lease.key == key(job_id) && lease.state == state =>
            {
                Some(lease.fence)
            }
            _ => None,
        })
        .await
}

fn refused(result: Result<(), Error>) -> (String, Option<Detail>) {
    let error = result.expect_err("a refusal");
    let retry = error
        .refused()
        .and_then(|refused| refused.details.get("retry_after_ms"))
        .cloned();
    (error.reason().to_owned(), retry)
}

// spec: LEASE-02, LEASE-03, LEASE-17
#[tokio::test]
async fn a_refresh_is_answered_with_the_ttl_and_one_without_right_as_superseded() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let other = manager.worker("n2").await;
    create(&client, "clean-feed", LONG).await;
    let (start_id, fence) = started(&client, &worker, "clean-feed").await;
    assert_eq!(fence, GENERATION + 1);
    let order = worker
        .wait_order("the order", |order| match order {
            Received::Provision(order) => Some(order.lease),
            _ => None,
        })
        .await;
    assert_eq!(order, Some(LONG));

    let wrong = StartId::new("00000000000000000000000000000000");
    let held = [
        (&start_id, key("clean-feed"), fence),
        (&wrong, key("clean-feed"), fence),
    ];
    worker.refresh(7, &held);
    let answers = worker.wait_refreshed(7).await;
    assert_eq!(answers[&start_id], Some(300_000));
    assert_eq!(answers[&wrong], None);
    // Nobody else's, and no other number.
    other.refresh(1, &held[..1]);
    assert_eq!(other.wait_refreshed(1).await[&start_id], None);
    worker.refresh(8, &[(&start_id, key("clean-feed"), fence + 1)]);
    assert_eq!(worker.wait_refreshed(8).await[&start_id], None);

    let status = client.get_lease_status().await.unwrap();
    let [lease] = status.leases.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!((lease.state.as_str(), lease.fence), ("held", fence));
    assert!(lease.refreshed_at.is_some() && lease.remaining_ms > 0);
}

// spec: LEASE-07, LEASE-08, HARDM-55
#[tokio::test]
async fn an_order_that_arrives_when_its_lease_is_anothers_begins_nothing() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let late = manager.worker("n1").await;
    let worker = manager.worker("n2").await;
    // What it is told is on its way for longer than the lease lasts.
    late.hold();
    let mut watch = manager.watch().await;
    create(&client, "clean-feed", SHORT).await;
    let (first, fence) = started(&client, &late, "clean-feed").await;
    until_lease(&mut watch, "clean-feed", "lost_waiting").await;
    let shown = history(&client, "clean-feed").await;
    assert_eq!(stopping_of(&shown).0, StopReason::LeaseLost);
    let call = client.start_job(start("clean-feed", "n2")).await;
    let (reason, retry) = refused(call);
    assert_eq!(reason, "lease_held");
    assert!(matches!(retry, Some(Detail::Int(1..=3_200))), "{retry:?}");
    until_lease(&mut watch, "clean-feed", "released").await;
    let (second, newer) = started(&client, &worker, "clean-feed").await;
    assert!(newer > fence);

    late.refresh(1, &[(&first, key("clean-feed"), fence)]);
    assert_eq!(late.wait_refreshed(1).await[&first], None);
    assert_eq!(stops(&late, "clean-feed"), 1, "and it is told to stop");
    worker.refresh(1, &[(&second, key("clean-feed"), newer)]);
    assert_eq!(worker.wait_refreshed(1).await[&second], Some(2_000));
}

// spec: LEASE-08, FIELD-23
#[tokio::test]
async fn a_machine_that_was_booted_again_frees_at_once_what_it_had() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let other = manager.worker("n2").await;
    let mut watch = manager.watch().await;
    create(&client, "clean-feed", LONG).await;
    started(&client, &worker, "clean-feed").await;
    watch.until_last("clean-feed", "running").await;
    worker.wait_acknowledged().await;
    worker.reboot();
    until_lease(&mut watch, "clean-feed", "released").await;
    started(&client, &other, "clean-feed").await;
}

// spec: LEASE-08, LEASE-09
#[tokio::test]
async fn a_restarted_manager_knows_the_holders_and_waits_anew_for_the_lost() {
    let mut manager = TestManager::start_with(TestManager::impatient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let other = manager.worker("n2").await;
    let mut watch = manager.watch().await;
    create(&client, "kept", LONG).await;
    create(&client, "lost", LONG).await;
    let (kept, fence) = started(&client, &other, "kept").await;
    started(&client, &worker, "lost").await;
    watch.until_last("kept", "running").await;
    watch.until_last("lost", "running").await;
    worker.cut();
    until_lease(&mut watch, "lost", "lost_waiting").await;
    let call = client.start_job(start("lost", "n2")).await;
    assert_eq!(refused(call).0, "lease_held");

    let hellos = other.greeted();
    manager.crash().await;
    other.wait_greeted(hellos + 1).await;
    other.refresh(1, &[(&kept, key("kept"), fence)]);
    assert_eq!(other.wait_refreshed(1).await[&kept], Some(300_000));
    let (reason, retry) = refused(client.start_job(start("lost", "n2")).await);
    assert_eq!(reason, "lease_held");
    assert!(matches!(retry, Some(Detail::Int(1..=630_000))), "{retry:?}");
    let status = client.get_lease_status().await.unwrap();
    let states: Vec<_> = status.leases.iter().map(|it| it.state.as_str()).collect();
    assert_eq!(states, ["held", "lost_waiting"]);
    // A job that is new to it gets a number above all of before.
    create(&client, "fresh", LONG).await;
    let (_, newest) = started(&client, &other, "fresh").await;
    assert_eq!(newest, GENERATION + 3);
}

// spec: LEASE-10, LEASE-12, LEASE-13, AUDIT-02
#[tokio::test]
async fn a_pause_is_confirmed_survives_a_restart_and_is_ended() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    create(&client, "clean-feed", SHORT).await;
    let (start_id, fence) = started(&client, &worker, "clean-feed").await;
    watch.until_last("clean-feed", "running").await;
    let paused = client.pause_leases("switch", "ana").await.unwrap();
    assert_eq!(
        paused.not_acknowledged,
        Vec::<greenroom_sdk::types::NodeId>::new()
    );
    until_audited(&client, "pause_leases", 1).await;
    let again = client.pause_leases("other", "bo").await.unwrap();
    assert_eq!(again, paused, "the first is kept");

    let hellos = worker.greeted();
    manager.restart().await;
    worker.wait_greeted(hellos + 1).await;
    let status = client.get_lease_status().await.unwrap();
    let pause = status.paused.expect("it is durable");
    assert_eq!(
        (pause.reason.as_str(), pause.by.as_str()),
        ("switch", "ana")
    );
    assert_eq!(status.leases[0].state, "paused_kept");

    assert_eq!(client.resume_leases("bo").await.unwrap().leases, 1);
    assert_eq!(client.resume_leases("bo").await.unwrap().leases, 1);
    worker
        .wait_order("the end of the pause", |order| match order {
            Received::LeasesPaused { paused: false, .. } => Some(()),
            _ => None,
        })
        .await;
    worker.refresh(1, &[(&start_id, key("clean-feed"), fence)]);
    assert_eq!(worker.wait_refreshed(1).await[&start_id], Some(2_000));
    until_audited(&client, "resume_leases", 1).await;
    assert!(client.get_lease_status().await.unwrap().paused.is_none());
}

// spec: LEASE-10, LEASE-11
#[tokio::test]
async fn a_pause_names_the_nodes_that_did_not_confirm_it() {
    let manager = TestManager::start_with(TestManager::impatient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let deaf = manager.worker("n2").await;
    deaf.ignore_pauses();
    let mut watch = manager.watch().await;
    create(&client, "clean-feed", LONG).await;
    started(&client, &worker, "clean-feed").await;
    let paused = client.pause_leases("switch", "").await.unwrap();
    assert_eq!(paused.not_acknowledged, ["n2".into()]);
    worker.cut();
    until_lease(&mut watch, "clean-feed", "paused_kept").await;
    let call = client.start_job(start("clean-feed", "n2")).await;
    assert_eq!(refused(call).0, "leases_paused");
}

// spec: LEASE-15
#[tokio::test]
async fn a_bundle_whose_lease_runs_out_is_deleted() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    client
        .create_bundle(bundle("rehearsal", &["encode"]))
        .await
        .unwrap();
    let ttl = Some(Duration::from_secs(5));
    let expiry = client.renew_bundle_lease("rehearsal", ttl).await.unwrap();
    let status = client.get_lease_status().await.unwrap();
    assert_eq!(status.bundle_leases.len(), 1);
    assert!(expiry.is_some());
    watch
        .until_mirror("the bundle is gone", |mirror| mirror.bundles.is_empty())
        .await;
    let entry = until_audited(&client, "bundle_lease_expired", 1).await;
    assert!(entry.payload.contains("rehearsal"), "{}", entry.payload);
    let gone = client.renew_bundle_lease("rehearsal", ttl).await;
    assert_eq!(gone.unwrap_err().reason(), "unknown_bundle");
}

// spec: LEASE-12
#[tokio::test]
async fn a_resume_names_the_nodes_that_did_not_hear_it_and_tells_them_again() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let (deaf, other) = (manager.worker("deaf").await, manager.worker("n2").await);
    client.pause_leases("switch", "ana").await.unwrap();
    deaf.ignore_pauses();
    let resumed = client.resume_leases("ana").await.unwrap();
    assert_eq!(resumed.not_acknowledged, ["deaf".into()]);
    let told = |worker: &FakeWorker| {
        let orders = worker.orders();
        let ends = orders
            .iter()
            .filter(|order| matches!(order, Received::LeasesPaused { paused: false, .. }));
        ends.count()
    };
    assert_eq!((told(&deaf), told(&other)), (1, 1));
    let again = client.resume_leases("ana").await.unwrap();
    assert_eq!(again.not_acknowledged, ["deaf".into()]);
    assert_eq!(
        (told(&deaf), told(&other)),
        (2, 1),
        "who has not heard is told again"
    );
}

// spec: LEASE-10
#[tokio::test]
async fn a_pause_without_a_reason_is_refused() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    for reason in ["", "  "] {
        let refused = client.pause_leases(reason, "ana").await.unwrap_err();
        assert_eq!(refused.reason(), "missing_field");
    }
    assert!(client.get_lease_status().await.unwrap().paused.is_none());
}
