//! A store that is put back to an older state: what runs is worth more than the record (STORE-11).

use greenroom_sdk::Error;
use greenroom_sdk::types::job::JobState;
use greenroom_sdk::types::node::NodeState;
use greenroom_store::BootOutcome;
use greenroom_testkit::{FakeWorker, TestManager, job, key, start};

use super::{history, provisions, running, start_of, stops};

fn reason(error: Error) -> String {
    error.reason().to_owned()
}

// spec: HARDM-35, STORE-11, STORE-10
#[tokio::test]
async fn after_a_restore_what_the_backup_does_not_know_runs_on_and_can_be_adopted() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let old = running(&client, &mut watch, &worker, "old").await;
    let backup = greenroom_store::offline::back_up(manager.data_dir(), None, 1_000, 4).unwrap();
    let new = running(&client, &mut watch, &worker, "new").await;
    let late = FakeWorker::register(&client, "late").await;
    worker.wait_acknowledged().await;
    let (stops_of_old, starts_of_old) = (stops(&worker, "old"), provisions(&worker, "old"));

    manager.kill().await;
    for file in ["state.db", "log.db"] {
        std::fs::write(manager.data_dir().join(file), "no database at all").unwrap();
    }
    let answered = worker.greeted();
    manager.run().await;
    worker.wait_greeted(answered + 1).await;

    // It says what it did, and the damaged files are kept.
    let BootOutcome::Restored {
        from,
        damaged_kept_as,
        ..
    } = &manager.running().boot().outcome
    else {
        panic!("{:?}", manager.running().boot());
    };
    assert_eq!(from.as_ref(), Some(&backup.path));
    assert!(damaged_kept_as.as_ref().unwrap().join("log.db").is_file());

    // What the backup knows goes on as if nothing had been; what it does not know is shown.
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    watch.until_node("n1", NodeState::Running).await;
    let shown = history(&client, "old").await;
    assert_eq!(
        (start_of(&shown), shown.state),
        (old.clone(), JobState::Active)
    );
    let nodes = client.list_nodes().await.unwrap();
    let node = nodes.iter().find(|it| it.metadata.node_id == "n1".into());
    assert_eq!(node.unwrap().unrecorded, [key("new")]);
    // Its slot was registered after the backup: its worker is not told that it has none.
    let refused = late.call_in(&client).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");

    // A second one is not started beside it.
    client.create_job(job("new")).await.unwrap();
    let refused = client.start_job(start("new", "n1")).await.unwrap_err();
    assert_eq!(reason(refused), "unrecorded_instance");
    client.adopt_instance("n1", key("new"), None).await.unwrap();
    let shown = watch.until_last("new", "running").await;
    assert_eq!(start_of(&shown), new);
    let again = client.adopt_instance("n1", key("new"), None).await;
    assert_eq!(reason(again.unwrap_err()), "no_instance");

    let held = worker.instances();
    assert!(held.contains_key(&old) && held.contains_key(&new));
    assert_eq!((stops(&worker, "new"), provisions(&worker, "new")), (0, 1));
    let of_old = (stops(&worker, "old"), provisions(&worker, "old"));
    assert_eq!(of_old, (stops_of_old, starts_of_old));
}

// spec: STORE-11
#[tokio::test]
async fn what_nobody_adopts_is_stopped_when_the_time_is_over() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let copy = manager.folder().join("copy.db");
    greenroom_store::offline::back_up(manager.data_dir(), Some(&copy), 1, 1).unwrap();
    let mut watch = manager.watch().await;
    let start_id = running(&client, &mut watch, &worker, "new").await;
    worker.wait_acknowledged().await;
    manager.end().await;
    greenroom_manager::restore(manager.data_dir(), &copy).unwrap();
    manager.settings().waits.unrecorded_ms = greenroom_sdk::types::Millis(50);
    manager.run().await;
    assert_eq!(worker.wait_stop("new").await, start_id);
}
