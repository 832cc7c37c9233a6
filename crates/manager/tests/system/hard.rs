//! Hard cases of starts, stops and deletes, most of them around the death of the Manager (HARDM).

use greenroom_sdk::proto::worker::WorkerJobStarted;
use greenroom_sdk::proto::worker::worker_message::Message;
use greenroom_sdk::types::call::Call;
use greenroom_sdk::types::node::{InstanceState, NodeState};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::{CallOptions, Client};
use greenroom_testkit::{Received, TestManager, bundle, job, key, kinds, start};

use super::{history, provisions, running, start_of, stops};

async fn start_with_id(client: &Client, job_id: &str, node_id: &str, request_id: &str) -> bool {
    let options = CallOptions {
        request_id: Some(request_id.to_owned()),
        ..CallOptions::default()
    };
    let call = Call::StartJob(start(job_id, node_id));
    client.call_with(call, options).await.is_ok()
}

// spec: HARDM-01
#[tokio::test]
async fn a_start_that_was_recorded_and_not_sent_is_sent_after_the_managers_death() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    worker.cut();
    watch.until_node("n1", NodeState::Unreachable).await;
    client.create_job(job("on-air")).await.unwrap();
    client.start_job(start("on-air", "n1")).await.unwrap();
    let recorded = start_of(&history(&client, "on-air").await);
    assert_eq!(provisions(&worker, "on-air"), 0);
    manager.kill().await;

    worker.mend();
    manager.run().await;
    assert_eq!(worker.wait_provision("on-air").await, recorded);
    let shown = watch.until_last("on-air", "running").await;
    assert_eq!(kinds(&shown), ["created", "provisioned", "running"]);
    worker.wait_acknowledged().await;
    assert_eq!(
        (provisions(&worker, "on-air"), stops(&worker, "on-air")),
        (1, 0)
    );
}

// spec: HARDM-02
#[tokio::test]
async fn a_start_that_happened_and_was_not_recorded_is_told_by_the_hello() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    worker.hold();
    let mut watch = manager.watch().await;
    client.create_job(job("on-air")).await.unwrap();
    client.start_job(start("on-air", "n1")).await.unwrap();
    let start_id = worker.wait_provision("on-air").await;
    worker.accepted(&start_id);
    worker.wait_acknowledged().await;
    manager.kill().await;
    worker.started(&start_id);
    manager.run().await;

    let shown = watch.until_last("on-air", "running").await;
    assert_eq!(start_of(&shown), start_id);
    worker.wait_acknowledged().await;
    assert_eq!(
        kinds(&history(&manager.client().await, "on-air").await),
        ["created", "provisioned", "running"]
    );
    assert_eq!(
        (provisions(&worker, "on-air"), stops(&worker, "on-air")),
        (1, 0)
    );
}

// spec: HARDM-03
#[tokio::test]
async fn a_start_that_was_not_recorded_left_no_trace_and_its_repeat_is_the_start() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    client.create_job(job("on-air")).await.unwrap();
    manager.kill().await;
    // Tried until somebody answers, under one request id.
    let calling = start_with_id(&client, "on-air", "n1", "once");
    let ((), accepted) = tokio::join!(manager.run(), calling);
    assert!(accepted);
    assert!(start_with_id(&client, "on-air", "n1", "once").await);
    let shown = watch.until_last("on-air", "running").await;
    assert_eq!(kinds(&shown), ["created", "provisioned", "running"]);
    worker.wait_acknowledged().await;
    assert_eq!(provisions(&worker, "on-air"), 1);
}

// spec: HARDM-04, API-07
#[tokio::test]
async fn a_repeated_start_is_answered_from_the_record_and_never_done_twice() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    client.create_job(job("on-air")).await.unwrap();
    assert!(start_with_id(&client, "on-air", "n1", "once").await);
    assert!(start_with_id(&client, "on-air", "n1", "once").await);
    manager.crash().await;
    let client = manager.client().await;
    assert!(
        start_with_id(&client, "on-air", "n1", "once").await,
        "also after a crash"
    );

    let refused = client.start_job(start("on-air", "n1")).await.unwrap_err();
    assert_eq!(refused.reason(), "already_on_node");
    let options = CallOptions {
        request_id: Some("once".to_owned()),
        ..CallOptions::default()
    };
    let other = client
        .call_with(Call::DeleteJob("on-air".into()), options)
        .await;
    assert_eq!(other.unwrap_err().reason(), "request_id_reused");
    worker.wait_greeted(2).await;
    worker.wait_acknowledged().await;
    assert_eq!(worker.instances().len(), 1);
    assert_eq!(
        kinds(&history(&client, "on-air").await)[..2],
        ["created", "provisioned"]
    );
}

// spec: HARDM-05
#[tokio::test]
async fn of_two_starts_of_one_key_at_once_one_is_accepted_and_one_worker_hears() {
    let manager = TestManager::start().await;
    let (one, two) = (manager.client().await, manager.client().await);
    let (n1, n2) = (manager.worker("n1").await, manager.worker("n2").await);
    let mut watch = manager.watch().await;
    for round in 0..5 {
        let job_id = format!("job-{round}");
        one.create_job(job(&job_id)).await.unwrap();
        let answers = tokio::join!(
            one.start_job(start(&job_id, "n1")),
            two.start_job(start(&job_id, "n2"))
        );
        let (winner, loser, refused) = match answers {
            (Ok(()), Err(refused)) => (&n1, &n2, refused),
            (Err(refused), Ok(())) => (&n2, &n1, refused),
            other => panic!("exactly one may win: {other:?}"),
        };
        assert_eq!(refused.reason(), "live_elsewhere");
        watch.until_last(&job_id, "running").await;
        // What the loser was told before this start, it has by now.
        running(&one, &mut watch, loser, &format!("sentinel-{round}")).await;
        assert_eq!(
            (provisions(winner, &job_id), provisions(loser, &job_id)),
            (1, 0)
        );
    }
}

// spec: HARDM-10
#[tokio::test]
async fn a_stop_and_a_failure_at_once_give_one_entry_each() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    for round in 0..5 {
        let job_id = format!("job-{round}");
        let start_id = running(&client, &mut watch, &worker, &job_id).await;
        worker.hold();
        let stopping = client.stop_job(key(&job_id), "n1", None);
        let (stopped, ()) = tokio::join!(stopping, async {
            worker.failed(&start_id, "main: exit 1");
        });
        // Whether the instance is ending already or is asked to stop, the call is in order.
        stopped.unwrap();
        worker.stopped(&start_id);
        let shown = watch.until_last(&job_id, "stopped").await;
        assert_eq!(
            kinds(&shown),
            ["created", "provisioned", "running", "stopping", "stopped"]
        );
        worker.wait_acknowledged().await;
        assert_eq!(history(&client, &job_id).await.history.len(), 5);
        worker.obey();
    }
}

// spec: HARDM-11
#[tokio::test]
async fn news_of_an_older_start_changes_nothing_and_stops_it() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    worker.hold();
    let mut watch = manager.watch().await;
    client.create_job(job("on-air")).await.unwrap();
    client.start_job(start("on-air", "n1")).await.unwrap();
    let old = worker.wait_provision("on-air").await;
    worker.failed(&old, "gone wrong");
    worker.stopped(&old);
    watch.until_last("on-air", "stopped").await;
    client.start_job(start("on-air", "n1")).await.unwrap();
    let new = worker
        .wait_order("the second start", |order| {
            order
                .provision_of("on-air")
                .filter(|start_id| *start_id != old)
        })
        .await;
    worker.started(&new);
    let before = watch.until_last("on-air", "running").await;

    let late = Message::JobStarted(WorkerJobStarted {
        job_key: Some((&key("on-air")).into()),
        ..WorkerJobStarted::default()
    });
    worker.report(&old, late);
    let (start_id, reason) = worker
        .wait_order("a stop", |order| match order {
            Received::Stop {
                start_id, reason, ..
            } => Some((start_id.clone(), reason.clone())),
            _ => None,
        })
        .await;
    assert_eq!((start_id, reason.as_str()), (old, "UNKNOWN"));
    worker.wait_acknowledged().await;
    assert_eq!(history(&client, "on-air").await, *before);
    let found = client.job_by_id("on-air").await.unwrap().unwrap();
    assert_eq!(found.instances.len(), 1);
    assert_eq!(found.instances[0].start_id, new);
    assert_eq!(found.instances[0].state, InstanceState::Running);
}

// spec: HARDM-19, BDL-16, BDL-17
#[tokio::test]
async fn a_delete_goes_on_where_the_managers_death_broke_it_off() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let created = client
        .create_bundle(bundle("show", &["a", "b"]))
        .await
        .unwrap();
    let [first, second] = [&created.job_ids[0], &created.job_ids[1]].map(|id| id.as_str());
    let mut starts = Vec::new();
    for job_id in [first, second] {
        client.start_job(start(job_id, "n1")).await.unwrap();
        let shown = watch.until_last(job_id, "running").await;
        starts.push(start_of(&shown));
    }
    worker.wait_acknowledged().await;
    worker.hold();
    client.delete_bundle("show").await.unwrap();
    worker.wait_stop(first).await;
    worker.wait_stop(second).await;
    worker.stopped(&starts[0]);
    watch
        .until_mirror("the first job gone", |mirror| {
            !mirror.jobs.contains_key(first)
        })
        .await;
    assert!(watch.mirror().bundles.contains_key("show"));
    worker.wait_acknowledged().await;
    manager.crash().await;

    worker.wait_greeted(2).await;
    watch.until_node("n1", NodeState::Running).await;
    worker.stopped(&starts[1]);
    watch
        .until_mirror("the bundle gone", |mirror| mirror.bundles.is_empty())
        .await;
    assert!(watch.mirror().jobs.is_empty());
    assert_eq!(
        stops(&worker, first),
        1,
        "no second stop for what has stopped"
    );
    assert_eq!(
        stops(&worker, second),
        2,
        "the rest is stopped after the restart"
    );
    // Whatever might come again comes before this.
    let client = manager.client().await;
    client.create_job(job("sentinel")).await.unwrap();
    watch.until_job("sentinel", "created", |_| true).await;
    let ends = watch.seen().iter().filter(
        |stamped| matches!(&stamped.event, StreamEvent::BundleDeleted(id) if id.as_str() == "show"),
    );
    assert_eq!((ends.count(), watch.snapshots()), (1, 1));
    let refused = client.get_bundle("show").await.unwrap_err();
    assert_eq!(refused.reason(), "unknown_bundle");
}

// spec: HARDM-21
#[tokio::test]
async fn a_stop_of_a_bundle_job_and_a_start_that_cross_leave_nothing_running() {
    let manager = TestManager::start().await;
    let (one, two) = (manager.client().await, manager.client().await);
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let created = one.create_bundle(bundle("show", &["a"])).await.unwrap();
    let job_id = created.job_ids[0].as_str();
    let mut starts = 0;
    for _ in 0..5 {
        let (stopped, started) = tokio::join!(
            one.stop_bundle_job("show", 0, "a", None),
            two.start_job(start(job_id, "n1"))
        );
        stopped.unwrap();
        match started {
            Ok(()) => {
                starts += 1;
                watch
                    .until_job(job_id, "stopped", |job| {
                        let kinds = kinds(job);
                        kinds.iter().filter(|kind| **kind == "stopped").count() == starts
                    })
                    .await;
            }
            Err(refused) => assert_eq!(refused.reason(), "job_dormant"),
        }
        let found = one.job_by_id(job_id).await.unwrap().unwrap();
        assert!(found.instances.is_empty() && found.job.job.is_dormant());
        let refused = two.start_job(start(job_id, "n1")).await.unwrap_err();
        assert_eq!(refused.reason(), "job_dormant");
        one.start_bundle_job("show", 0, "a").await.unwrap();
    }
    worker.wait_acknowledged().await;
    assert!(worker.instances().is_empty());
}
