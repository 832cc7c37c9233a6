//! The surface in general: addresses, folders, limits, health, backups.

use std::net::TcpListener;
use std::time::Duration;

use greenroom_manager::{Settings, StartError, StatusLog};
use greenroom_sdk::Protocol;
use greenroom_sdk::proto::common::JobId;
use greenroom_sdk::proto::health::HealthCheckRequest;
use greenroom_sdk::proto::health::health_check_response::ServingStatus;
use greenroom_sdk::proto::health::health_client::HealthClient;
use greenroom_sdk::proto::manager::Job;
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::node::NodeState;
use greenroom_testkit::{FakeWorker, TestManager, job, key, within};
use tonic::Code;

async fn refusal(settings: Settings) -> StartError {
    match greenroom_manager::start(settings, StatusLog::new()).await {
        Ok(_) => panic!("the Manager must not start"),
        Err(error) => error,
    }
}

// spec: API-01
#[tokio::test]
async fn a_port_that_is_taken_is_told_before_any_store_is_opened() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let error = refusal(Settings::new(&store, address)).await;
    assert!(matches!(error, StartError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(!store.exists());
}

// spec: STORE-01
#[tokio::test]
async fn a_folder_that_another_manager_holds_is_refused() {
    let manager = TestManager::start().await;
    let other = Settings::new(manager.data_dir(), "127.0.0.1:0".parse().unwrap());
    let error = refusal(other).await;
    let text = error.to_string();
    assert!(
        text.contains(&format!("in use by process {}", std::process::id())),
        "{text}"
    );
    manager
        .client()
        .await
        .create_job(job("goes-on"))
        .await
        .unwrap();
}

// spec: SEC-01
#[tokio::test]
async fn the_api_is_not_opened_to_others_without_tls_and_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(Settings::new(folder.path(), "0.0.0.0:0".parse().unwrap())).await;
    assert!(matches!(error, StartError::Insecure { lacks: "TLS", .. }));
}

// spec: LIM-01
#[tokio::test]
async fn a_message_that_is_too_large_is_refused_by_name_and_the_connection_stays() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut raw = client.raw().unwrap();
    let big = Job {
        job_id: Some(JobId {
            job_id: "big".to_owned(),
        }),
        description: "x".repeat(5 * 1024 * 1024),
        ..Job::default()
    };
    let refused = raw.create_job(big).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let trailer = refused.metadata().get("greenroom-reason").unwrap();
    assert_eq!(trailer, "message_too_large");
    let small = Job {
        job_id: Some(JobId {
            job_id: "small".to_owned(),
        }),
        services: Vec::new(),
        ..Job::default()
    };
    raw.create_job(small).await.expect("the connection stays");
}

// spec: API-10
#[tokio::test]
async fn health_is_served_for_the_names_that_there_are() {
    let mut manager = TestManager::start().await;
    let mut health = HealthClient::connect(manager.url()).await.unwrap();
    let asked = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for service in ["", "norsk.api.manager.Manager"] {
        let answer = health.check(asked(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let unknown = health.check(asked("nothing")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let mut states = health.watch(asked("nothing")).await.unwrap().into_inner();
    let first = states.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
    let mut states = health.watch(asked("")).await.unwrap().into_inner();
    let first = states.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let ((), second) = tokio::join!(manager.end(), states.message());
    assert_eq!(second.unwrap().unwrap().status(), ServingStatus::NotServing);
}

// spec: STORE-05
#[tokio::test]
async fn backups_are_made_by_themselves() {
    let manager = TestManager::start_with(|settings| {
        settings.backup_every = Duration::from_millis(10);
    })
    .await;
    let backups = manager.data_dir().join("backups");
    let made = || {
        let mut entries = std::fs::read_dir(&backups).ok()?.flatten();
        entries.find(|entry| entry.path().extension().is_some_and(|end| end == "db"))
    };
    within("a backup", async {
        while made().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

// spec: API-05
#[tokio::test]
async fn what_was_answered_is_there_after_the_managers_death() {
    let mut manager = TestManager::start().await;
    for round in 0..3 {
        let client = manager.client().await;
        let hash = client
            .create_job(job(&format!("job-{round}")))
            .await
            .unwrap();
        manager.crash().await;
        let client = manager.client().await;
        let found = client
            .job_by_id(format!("job-{round}"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.job.current_hash, hash);
    }
}

// spec: STORE-09
#[tokio::test]
async fn on_a_full_disk_only_what_makes_room_is_taken() {
    let mut manager = TestManager::start().await;
    let worker = manager.worker("n1").await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    super::running(&client, &mut watch, &worker, "on-air").await;
    client.create_job(job("old")).await.unwrap();
    let newcomer = FakeWorker::register(&client, "n3").await;
    // No disk has as much free as is asked for now.
    manager.settings().min_free_bytes = u64::MAX;
    manager.restart().await;
    let client = manager.client().await;
    watch.until_node("n1", NodeState::Running).await;

    let refused = client.create_job(job("new")).await.unwrap_err();
    assert_eq!(refused.reason(), "disk_full");
    let refused = client.register_cluster_node("n2", "").await.unwrap_err();
    assert_eq!(refused.reason(), "disk_full");
    let refused = newcomer.present(&client).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // One that was here before comes back, and its hello is recorded: without it nothing could be
    // stopped.
    let greeted = worker.greeted();
    worker.drop_stream();
    worker.call_in(&client).await.unwrap();
    worker.wait_greeted(greeted + 1).await;
    watch.until_node("n1", NodeState::Running).await;
    let commit = |namespace: &str| KvCommit {
        namespace: namespace.to_owned(),
        writes: vec![KvWrite::set("active", *b"me")],
        ..KvCommit::default()
    };
    let refused = client.kv_commit(commit("rota")).await.unwrap_err();
    assert_eq!(refused.reason(), "disk_full");
    // Who acts is agreed on all the same: without an active control plane nobody would make room.
    client.kv_commit(commit("control-plane")).await.unwrap();
    client.delete_job("old").await.unwrap();
    client.stop_job(key("on-air"), "n1", None).await.unwrap();
    watch.until_last("on-air", "stopped").await;
    client.terminate_node("n1").await.unwrap();
}

// spec: HELLO-01
#[tokio::test]
async fn the_hello_says_who_serves_what() {
    let manager = TestManager::start_with(|settings| {
        settings.member_name = "studio-a".to_owned();
    })
    .await;
    let hello = manager.client().await.hello();
    assert_eq!(hello.protocol, Protocol::OURS);
    assert_eq!((hello.protocol.major, hello.protocol.minor), (1, 10));
    assert_eq!(hello.member, "studio-a");
    let build: Vec<&str> = hello.build.split(' ').collect();
    assert_eq!(build.len(), 3, "version, commit, target: {build:?}");
    assert_eq!(build[0], env!("CARGO_PKG_VERSION"));
    assert!(build[2].ends_with(std::env::consts::OS));
    assert!(hello.features.is_sorted() && hello.features.contains(&"kv".to_owned()));
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let told = hello.server_time.expect("a time").0;
    let apart = i64::try_from(now.as_millis()).unwrap().abs_diff(told);
    assert!(apart < 60_000, "{told}");
    let version = hello.version.to_string();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
}
