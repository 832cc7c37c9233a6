//! Steps of a migration pass through the Manager and leave no trace in it.

use greenroom_proto::manager::migration_state::Answer;
use greenroom_proto::worker::worker_message::Message;
use greenroom_sdk::Error;
use greenroom_testkit::{Received, TestManager, Watch, job, key, start};
use greenroom_types::node::{InstanceKey, NodeState};
use greenroom_types::stream::{MigrationSignal, StreamEvent};

// spec: MGR-01, MGR-02, MGR-05, MGR-07
#[tokio::test]
async fn a_step_reaches_the_worker_and_its_payload_stands_in_no_file() {
    const PAYLOAD: &[u8] = b"frame-4711-of-the-programme";
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    for (id, handover) in [("plain", false), ("moves", true)] {
        let mut definition = job(id);
        definition.handover = handover;
        client.create_job(definition).await.unwrap();
        client.start_job(start(id, "n1")).await.unwrap();
        watch.until_last(id, "running").await;
    }

    client
        .notify_migration_get_state(key("moves"), "m-1")
        .await
        .unwrap();
    client
        .notify_migration_cutover_ready(key("moves"), "m-1", PAYLOAD.to_vec())
        .await
        .unwrap();
    worker
        .wait_order("the point of the change-over", |order| match order {
            Received::Other(name) if name.contains("CutoverReady") => Some(()),
            _ => None,
        })
        .await;

    let refused = client
        .notify_migration_get_state(key("plain"), "m-1")
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), "not_cooperative", "{refused}");
    let refused = client
        .notify_migration_get_state(key("nobody"), "m-1")
        .await
        .unwrap_err();
    assert!(matches!(&refused, Error::NotFound(_)), "{refused}");
    let large = vec![0; 256 * 1024 + 1];
    let refused = client
        .notify_migration_cutover_ready(key("moves"), "m-1", large)
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), "payload_too_large", "{refused}");

    stands_nowhere(manager.data_dir(), PAYLOAD);
}

/// No file of the Manager holds these bytes, plain or as base64.
fn stands_nowhere(folder: &std::path::Path, payload: &[u8]) {
    let base64 = greenroom_types::Payload::from(payload).to_base64();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            stands_nowhere(&path, payload);
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        // The last characters of base64 depend on what follows.
        for wanted in [payload, &base64.as_bytes()[..base64.len() - 4]] {
            let found = bytes.windows(wanted.len()).any(|window| window == wanted);
            assert!(!found, "{} holds the payload", path.display());
        }
    }
}

async fn next_signal(watch: &mut Watch) -> MigrationSignal {
    loop {
        if let StreamEvent::Migration { signal, .. } = watch.next().await.event {
            return signal;
        }
    }
}

fn signal(key: &InstanceKey, payload: &[u8]) -> Message {
    Message::MigrationState(greenroom_proto::manager::MigrationState {
        job_key: Some(key.into()),
        migration_id: "m-1".to_owned(),
        answer: Some(Answer::Payload(payload.to_vec())),
    })
}

// spec: MGR-01, MGR-05, MGR-10, MGR-11, MIGR-08
#[tokio::test]
async fn what_a_source_tells_reaches_its_target_whole_and_stands_in_no_file() {
    const STATE: &[u8] = b"state-0815-of-the-programme";
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let (from, to) = (manager.worker("n1").await, manager.worker("n2").await);
    let mut watch = manager.watch().await;
    let mut definition = job("moves");
    definition.handover = true;
    client.create_job(definition).await.unwrap();
    client.start_job(start("moves", "n1")).await.unwrap();
    watch.until_last("moves", "running").await;
    let start_id = from.wait_provision("moves").await;

    // Told twice, as after a stream that broke before the acknowledgement.
    from.report(&start_id, signal(&key("moves"), STATE));
    from.report(&start_id, signal(&key("moves"), STATE));
    from.wait_acknowledged().await;
    assert_eq!(
        next_signal(&mut watch).await,
        MigrationSignal::State(STATE.into())
    );

    // Said while nobody hears it: it is passed on after the next hello, whole and once.
    from.cut();
    let stopped = greenroom_proto::manager::MigrationSourceStoppedOutput {
        job_key: Some((&key("moves")).into()),
        migration_id: "m-1".to_owned(),
        payload: STATE.to_vec(),
    };
    from.report(&start_id, Message::MigrationSourceStoppedOutput(stopped));
    from.mend();
    assert_eq!(
        next_signal(&mut watch).await,
        MigrationSignal::SourceStoppedOutput(STATE.into())
    );

    let mut target = start("moves", "n2");
    target.role = "primary@01234567".into();
    target.migration_id = Some("m-1".into());
    target.migration_state = Some(STATE.into());
    client.start_job(target).await.unwrap();
    let state = to
        .wait_order("the start of the target", |order| match order {
            Received::Provision(order) => Some(order.migration_state.clone()),
            _ => None,
        })
        .await;
    assert_eq!(state, Some(STATE.into()));
    let large = vec![0; 256 * 1024 + 1];
    let mut target = start("moves", "n2");
    target.migration_state = Some(large.into());
    let refused = client.start_job(target).await.unwrap_err();
    assert_eq!(refused.reason(), "payload_too_large", "{refused}");
    stands_nowhere(manager.data_dir(), STATE);
}

// spec: MIGR-08, MGR-05
#[tokio::test]
async fn a_start_whose_state_a_crash_took_says_so() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n2").await;
    let mut watch = manager.watch().await;
    // Nothing reaches the worker before the crash, and the state is in memory alone.
    worker.cut();
    watch.until_node("n2", NodeState::Unreachable).await;
    let mut definition = job("moves");
    definition.handover = true;
    client.create_job(definition).await.unwrap();
    let mut target = start("moves", "n2");
    target.role = "primary@01234567".into();
    target.migration_id = Some("m-1".into());
    target.migration_state = Some(b"state".into());
    client.start_job(target).await.unwrap();
    manager.kill().await;
    worker.mend();
    manager.run().await;
    let told = worker
        .wait_order("the start of the target", |order| match order {
            Received::Provision(order) => {
                Some((order.migration_state.clone(), order.migration_state_lost))
            }
            _ => None,
        })
        .await;
    assert_eq!(told, (None, true));
}
