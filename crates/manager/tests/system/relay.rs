//! Steps of a migration pass through the Manager and leave no trace in it.

use greenroom_sdk::Error;
use greenroom_testkit::{Received, TestManager, job, key, start};

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

    for entry in std::fs::read_dir(manager.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(PAYLOAD.len()).any(|window| window == PAYLOAD);
            assert!(!found, "{} holds the payload", path.display());
        }
    }
}
