//! Notices of a cloud that takes the machine, against the stand-in for its metadata service.

mod common;

use common::metadata::Metadata;
use common::{FakeManager, Stream, WorkerProcess};
use greenroom_proto::manager::InterruptionKind;
use greenroom_proto::worker::WorkerInterruptionNotice;
use greenroom_proto::worker::worker_message::Message as Said;
use serde_json::json;

const ACTION: &str = "spot/instance-action";
const REBALANCE: &str = "events/recommendations/rebalance";

struct Scene {
    cloud: Metadata,
    manager: FakeManager,
    worker: WorkerProcess,
    _dir: tempfile::TempDir,
}

fn scene_of(cloud: Metadata, manager: FakeManager) -> Scene {
    scene_at("ec2", cloud, manager)
}

fn scene_at(provider: &str, cloud: Metadata, manager: FakeManager) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let env = [
        ("TESTBIN_METADATA_URL", cloud.url.as_str()),
        ("TESTBIN_CLOUD", provider),
    ];
    let state = dir.path().join("state");
    let worker = WorkerProcess::spawn_with(&state, &manager, "process", "2", &env);
    Scene {
        cloud,
        manager,
        worker,
        _dir: dir,
    }
}

async fn scene() -> Scene {
    scene_of(Metadata::start(), FakeManager::start().await)
}

/// The next notice, with the number of its report.
async fn notice(stream: &mut Stream) -> (u64, WorkerInterruptionNotice) {
    stream
        .until(|message| match &message.message {
            Some(Said::InterruptionNotice(notice)) => Some((message.report_id, *notice)),
            _ => None,
        })
        .await
}

fn action(time: &str) -> serde_json::Value {
    json!({"action": "terminate", "time": time})
}

fn seconds(notice: &WorkerInterruptionNotice) -> Option<i64> {
    notice.deadline.as_ref().map(|at| at.seconds)
}

// spec: WORK-50
#[tokio::test]
async fn an_action_of_the_provider_is_told_with_its_deadline_until_it_is_acknowledged() {
    let mut scene = scene().await;
    let mut stream = scene.manager.meet(1, 0).await.without_acks();
    scene.cloud.set(ACTION, &action("2030-01-01T00:02:00Z"));
    let (report, first) = notice(&mut stream).await;
    assert_eq!(first.kind(), InterruptionKind::SpotInterruption);
    assert_eq!(seconds(&first), Some(1_893_456_120));
    assert!(first.seen_at.is_some() && report > 0);

    // Not acknowledged, it comes again after the next hello, the same, and over a restart too.
    let mut stream = Stream::dial(&stream.address, &scene.manager.node, 2, 0)
        .await
        .unwrap()
        .without_acks();
    assert_eq!(notice(&mut stream).await, (report, first));
    scene.worker.kill();
    scene.worker.start_again();
    let mut stream = scene.manager.meet(3, 0).await;
    assert_eq!(notice(&mut stream).await, (report, first));

    // Acknowledged, only what is new is told: an earlier end is.
    scene.cloud.set(ACTION, &action("2030-01-01T00:01:00Z"));
    let (next, earlier) = notice(&mut stream).await;
    assert_eq!((next, seconds(&earlier)), (report + 1, Some(1_893_456_060)));
}

// spec: WORK-50
#[tokio::test]
async fn an_advice_comes_before_an_action_and_is_not_told_beside_it() {
    let mut scene = scene().await;
    let mut stream = scene.manager.meet(1, 0).await;
    let advice = json!({"noticeTime": "2030-01-01T00:00:00Z"});
    scene.cloud.set(REBALANCE, &advice);
    let (_, first) = notice(&mut stream).await;
    assert_eq!(first.kind(), InterruptionKind::RebalanceRecommendation);
    assert_eq!(first.deadline, None);
    scene.cloud.set(ACTION, &action("2030-01-01T00:02:00Z"));
    let (_, second) = notice(&mut stream).await;
    assert_eq!(second.kind(), InterruptionKind::SpotInterruption);
    // Neither comes back when the other is asked for again; another deadline is news.
    scene.cloud.set(ACTION, &action("2030-01-01T00:01:30Z"));
    let (_, third) = notice(&mut stream).await;
    assert_eq!(third.kind(), InterruptionKind::SpotInterruption);
    assert_eq!(seconds(&third), Some(1_893_456_090));
}

// spec: WORK-50
#[tokio::test]
async fn a_service_that_fails_says_nothing_and_an_old_token_is_replaced() {
    let cloud = Metadata::start();
    cloud.set(ACTION, &action("2030-01-01T00:02:00Z"));
    cloud.tell(&json!({"down": true}));
    let mut scene = scene_of(cloud, FakeManager::start().await);
    let mut stream = scene.manager.meet(1, 0).await;
    // What it had while it was down is not among what it says afterwards.
    scene.cloud.unset(ACTION);
    scene.cloud.tell(&json!({"down": false}));
    let advice = json!({"noticeTime": "2030-01-01T00:00:00Z"});
    scene.cloud.set(REBALANCE, &advice);
    let (_, first) = notice(&mut stream).await;
    assert_eq!(first.kind(), InterruptionKind::RebalanceRecommendation);
    scene.cloud.tell(&json!({"expire_tokens": true}));
    scene.cloud.set(ACTION, &action("2030-01-01T00:02:00Z"));
    let (_, second) = notice(&mut stream).await;
    assert_eq!(second.kind(), InterruptionKind::SpotInterruption);
}

// spec: WORK-52
#[tokio::test]
async fn a_machine_of_oci_says_itself_that_its_end_has_begun() {
    const INSTANCE: &str = "/opc/v2/instance/";
    let cloud = Metadata::start();
    cloud.set(
        INSTANCE,
        &json!({"id": "ocid1.instance", "state": "Running"}),
    );
    let mut scene = scene_at("oci", cloud, FakeManager::start().await);
    let mut stream = scene.manager.meet(1, 0).await;
    let ending = json!({"id": "ocid1.instance", "state": "Terminating"});
    scene.cloud.set(INSTANCE, &ending);
    let (report, told) = notice(&mut stream).await;
    assert_eq!(told.kind(), InterruptionKind::SpotInterruption);
    assert_eq!(told.deadline, None);
    assert_eq!(report, 1);
}
