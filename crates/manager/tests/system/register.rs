//! Workers of owned servers call in (LOCAL).

use std::time::{Duration, Instant};

use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::{AuditQuery, Client, Token};
use greenroom_testkit::{FakeWorker, TestManager};
use tonic::{Code, Status};

fn reason(status: &Status) -> String {
    let trailer = status.metadata().get("greenroom-reason");
    let text = trailer.and_then(|value| value.to_str().ok());
    text.unwrap_or_default().to_owned()
}

/// A worker on another machine that has the token of this one.
async fn copy_of(worker: &FakeWorker) -> FakeWorker {
    FakeWorker::with_token(worker.token().clone(), "another machine").await
}

// spec: LOCAL-03, LOCAL-07, HARDM-12
#[tokio::test]
async fn a_copied_token_opens_nothing_and_disturbs_nobody() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    watch.until_node("n1", NodeState::Running).await;
    let thief = copy_of(&worker).await;
    let refused = thief.call_in(&client).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert_eq!(reason(&refused), "bad_token");
    super::running(&client, &mut watch, &worker, "goes-on").await;
    assert_eq!(
        (worker.dialled(), worker.greeted(), thief.dialled()),
        (1, 1, 0)
    );
    let slots = client.list_cluster_nodes().await.unwrap();
    assert!(slots[0].active);
    let told = client.get_audit_log(AuditQuery::default()).await.unwrap();
    assert!(told.entries.iter().any(|entry| entry.kind == "bad_token"));
    let token = worker.token().reveal();
    assert!(
        told.entries
            .iter()
            .all(|entry| !entry.payload.contains(token))
    );
}

// spec: LOCAL-08, HARDM-13
#[tokio::test]
async fn of_two_workers_with_one_unused_token_one_wins_wholly() {
    let manager = TestManager::start().await;
    let (one, two) = (manager.client().await, manager.client().await);
    let left = FakeWorker::register(&one, "n1").await;
    let right = copy_of(&left).await;
    let answers = tokio::join!(left.call_in(&one), right.call_in(&two));
    let (winner, loser, refused) = match answers {
        (Ok(_), Err(refused)) => (left, right, refused),
        (Err(refused), Ok(_)) => (right, left, refused),
        other => panic!("exactly one may win: {other:?}"),
    };
    assert_eq!(reason(&refused), "bad_token");
    winner.wait_greeted(1).await;
    let mut watch = manager.watch().await;
    super::running(&one, &mut watch, &winner, "on-air").await;
    assert_eq!(loser.dialled(), 0);
}

// spec: LOCAL-06, HARDM-14
#[tokio::test]
async fn a_worker_that_lost_the_answer_may_ask_again() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = FakeWorker::register(&client, "n1").await;
    worker.cut();
    let lost = worker.present(&client).await.unwrap();
    manager.crash().await;
    let client = manager.client().await;
    let kept = worker.present(&client).await.unwrap();
    assert_eq!(
        (&kept.node_id, &kept.key_share),
        (&lost.node_id, &lost.key_share)
    );
    worker.mend();
    worker.call_in(&client).await.unwrap();
    worker.wait_greeted(1).await;
}

// spec: LOCAL-07
#[tokio::test]
async fn bad_tokens_get_one_late_answer_and_too_many_of_them_close_the_door() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let used = manager.worker("n1").await;
    let removed = FakeWorker::register(&client, "n2").await;
    client.deregister_cluster_node("n2").await.unwrap();
    let unknown = FakeWorker::with_token(Token::new("grt_nonsense"), "somewhere").await;
    let thief = copy_of(&used).await;

    let present = async |worker: &FakeWorker, client: &Client| {
        let begun = Instant::now();
        let refused = worker.present(client).await.unwrap_err();
        // Only the lower bound: the upper one is for a machine with nothing else to do.
        assert!(begun.elapsed() >= Duration::from_millis(300));
        (
            refused.code(),
            reason(&refused),
            refused.message().to_owned(),
        )
    };
    let answers = tokio::join!(
        present(&thief, &client),
        present(&removed, &client),
        present(&unknown, &client)
    );
    assert_eq!(answers.0.1, "bad_token");
    assert!(
        answers.0 == answers.1 && answers.1 == answers.2,
        "nothing to probe"
    );
    for _ in 3..10 {
        present(&unknown, &client).await;
    }
    let closed = unknown.present(&client).await.unwrap_err();
    assert_eq!(closed.code(), Code::ResourceExhausted);
    assert_eq!(reason(&closed), "slow_down");
}

// spec: LOCAL-12
#[tokio::test]
async fn a_deregistered_slot_is_gone_with_its_jobs_and_token() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    super::running(&client, &mut watch, &worker, "on-air").await;
    let stopped = client.deregister_cluster_node("n1").await.unwrap();
    assert_eq!(stopped, ["on-air".into()]);
    watch.until_last("on-air", "stopped").await;
    watch
        .until_mirror("node n1 stopped", |mirror| mirror.nodes.is_empty())
        .await;
    assert!(client.list_cluster_nodes().await.unwrap().is_empty());
    let refused = worker.present(&client).await.unwrap_err();
    assert_eq!(reason(&refused), "bad_token");
    let unknown = client.deregister_cluster_node("n1").await.unwrap_err();
    assert_eq!(unknown.reason(), "unknown_slot");
}

// spec: LOCAL-14, HARDM-51
#[tokio::test]
async fn a_slot_changes_its_pool_while_its_job_runs_on() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let start = super::running(&client, &mut watch, &worker, "on-air").await;
    let running = client.set_cluster_node_pool("n1", "live").await.unwrap();
    assert_eq!(running, ["on-air".into()]);
    watch.until_last("on-air", "stopping").await;
    watch.until_last("on-air", "running").await;
    watch.until_node("n1", NodeState::Running).await;
    let nodes = client.list_nodes().await.unwrap();
    assert_eq!(nodes[0].metadata.tags["pool"], "live");
    // The same start, never told to stop, over a second stream.
    assert!(worker.instances().contains_key(&start));
    assert_eq!(super::stops(&worker, "on-air"), 0);
    assert_eq!(super::provisions(&worker, "on-air"), 1);
    assert_eq!(worker.greeted(), 2);
}

// spec: LOCAL-18
#[tokio::test]
async fn a_slot_moves_to_another_machine_with_a_new_token() {
    let manager = TestManager::start_with(TestManager::impatient).await;
    let client = manager.client().await;
    let old = manager.worker("n1").await;
    let token = client.rotate_cluster_node_token("n1").await.unwrap();
    let refused = old.present(&client).await.unwrap_err();
    assert_eq!(reason(&refused), "bad_token");
    // Its stream breaks, and it has nothing to prove itself with any more.
    let mut watch = manager.watch().await;
    old.drop_stream();
    watch
        .until_mirror("n1 given up", |mirror| mirror.nodes.is_empty())
        .await;
    assert_eq!(old.greeted(), 1);
    let new = FakeWorker::with_token(token, "another machine").await;
    new.call_in(&client).await.unwrap();
    new.wait_greeted(1).await;
    watch.until_node("n1", NodeState::Running).await;
}

// spec: FIELD-19, WORK-05
#[tokio::test]
async fn a_machine_that_comes_back_under_another_address_is_dialled_there_and_nowhere_else() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let before = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let lost = super::running(&client, &mut watch, &before, "on-air").await;
    let address = async |client: &Client| {
        let slots = client.list_cluster_nodes().await.unwrap();
        slots[0].address.clone()
    };
    let old = address(&client).await;
    before.cut();
    watch.until_node("n1", NodeState::Unreachable).await;
    let dialled = before.dialled();

    // The same machine with the same token, elsewhere and with nothing on it.
    let after = FakeWorker::with_token(before.token().clone(), "machine of n1").await;
    assert_eq!(after.call_in(&client).await.unwrap().as_str(), "n1");
    after.wait_greeted(1).await;
    watch.until_node("n1", NodeState::Running).await;
    assert_ne!(address(&client).await, old);
    let found = watch.until_last("on-air", "stopped").await;
    assert!(
        super::start_of(&found) == lost,
        "the old start is gone with the old machine"
    );

    // What is ordered from now on is ordered there; the old address is asked no more.
    before.mend();
    super::running(&client, &mut watch, &after, "again").await;
    assert_eq!(super::provisions(&before, "again"), 0);
    assert_eq!(before.greeted(), 1);
    assert!(before.dialled() >= dialled);
}
