//! The discovery fleet, where control planes are, and the overrides file, as clients and workers meet
//! them.

use std::time::Duration;

use greenroom_auth::{Secret, check_node_token};
use greenroom_proto::worker::{ControlPlanes, DiscoveryAccess};
use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::discovery::{DiscoveryFleet, RotationPhase, RotationStep};
use greenroom_sdk::types::job::MediaVersion;
use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::{Client, Error, Token};
use greenroom_testkit::{FakeWorker, Received, TestManager, job, start, within};

use crate::until_audited;

fn fleet(addresses: &[&str]) -> DiscoveryFleet {
    DiscoveryFleet {
        addresses: addresses.iter().map(|it| (*it).to_owned()).collect(),
        leaf_token: "leaf-hunter2".to_owned(),
        tier_secret: "tier-hunter2".to_owned(),
        ..DiscoveryFleet::default()
    }
}

/// Waits for discovery access of that version, and gives the newest that the worker has of it.
async fn access(worker: &FakeWorker, version: u64) -> DiscoveryAccess {
    let is_it = |order: &Received| match order {
        Received::Discovery(access) if access.version == version => Some(access.clone()),
        _ => None,
    };
    worker.wait_order("discovery access", is_it).await;
    let newest = worker.orders();
    newest.iter().rev().find_map(is_it).expect("it is there")
}

async fn planes(worker: &FakeWorker, version: u64) -> ControlPlanes {
    worker
        .wait_order("a list of control planes", |order| match order {
            Received::Planes(planes) if planes.version == version => Some(planes.clone()),
            _ => None,
        })
        .await
}

fn planes_told(worker: &FakeWorker) -> usize {
    let orders = worker.orders();
    let is_list = |order: &&Received| matches!(order, Received::Planes(_));
    orders.iter().filter(is_list).count()
}

async fn until_planes_told(worker: &FakeWorker, times: usize) {
    within("a list of control planes", async {
        while planes_told(worker) < times {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Whose token it is, by these secrets.
fn opens(access: &DiscoveryAccess, secrets: &[&str]) -> Option<String> {
    let secrets: Vec<Secret> = secrets.iter().map(|it| Secret::new(*it)).collect();
    let claim = check_node_token(&access.node_token, &secrets)?;
    Some(claim.node_id.to_string())
}

async fn step(client: &Client, step: RotationStep) -> greenroom_sdk::FleetRotated {
    client
        .rotate_discovery_tier_secret(step, None, "anna")
        .await
        .unwrap()
}

// spec: DISC-01, DISC-02, DISC-03, DISC-04
#[tokio::test]
async fn every_node_is_sent_the_fleet_with_a_token_of_its_own_and_no_store_holds_a_secret() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    assert_eq!(client.get_discovery_fleet().await.unwrap(), None);
    let first = manager.worker("first").await;
    let published = client
        .publish_discovery_fleet(fleet(&["disc-1:443", "disc-2:443"]), "anna")
        .await
        .unwrap();
    assert!(!published.secrets_kept);
    let sent = access(&first, 1).await;
    assert_eq!(sent.addresses, ["disc-1:443", "disc-2:443"]);
    assert_eq!(sent.leaf_token, "leaf-hunter2");
    assert_eq!(
        opens(&sent, &["tier-hunter2"]),
        Some(first.node_id().to_string())
    );
    let second = manager.worker("second").await;
    let later = access(&second, 1).await;
    assert_eq!(
        opens(&later, &["tier-hunter2"]),
        Some(second.node_id().to_string())
    );

    let stored = client.get_discovery_fleet().await.unwrap().unwrap();
    assert_eq!(stored, published.fleet);
    assert_eq!(stored.tier_secret, "tier-hunter2");
    let other = DiscoveryFleet {
        tier_secret: "tier-other-hunter2".to_owned(),
        ..fleet(&["disc-3:443"])
    };
    let again = client.publish_discovery_fleet(other, "anna").await.unwrap();
    assert!(again.secrets_kept);
    assert_eq!(again.fleet.tier_secret, "tier-hunter2");
    assert_eq!(access(&first, 2).await.addresses, ["disc-3:443"]);
    let long = DiscoveryFleet {
        leaf_token: "x".repeat(513),
        ..fleet(&["a:1"])
    };
    let refused = client.publish_discovery_fleet(long, "").await.unwrap_err();
    assert_eq!(refused.reason(), "bad_value");

    assert!(
        !first.heard().contains("tier-hunter2"),
        "it is never sent to a node"
    );
    let told = until_audited(&client, "publish_discovery_fleet", 2).await;
    assert!(!format!("{told:?}").contains("hunter2"), "{told:?}");
    manager.restart().await;
    let client = manager.client().await;
    assert_eq!(
        client.get_discovery_fleet().await.unwrap(),
        Some(again.fleet)
    );
    manager.end().await;
    for file in std::fs::read_dir(manager.data_dir()).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let holds = bytes.windows(7).any(|part| part == b"hunter2");
            assert!(!holds, "{}", path.display());
        }
    }
}

// spec: DISC-05, DISC-06, DISC-07, DISC-08
#[tokio::test]
async fn a_flip_tells_which_nodes_have_their_new_token() {
    let manager = TestManager::start_with(|settings| {
        TestManager::patient(settings);
        settings.links.acknowledge = Duration::from_secs(60);
    })
    .await;
    let client = manager.client().await;
    let early = client
        .rotate_discovery_tier_secret(RotationStep::Stage, None, "anna")
        .await;
    assert_eq!(early.unwrap_err().reason(), "no_fleet");
    client
        .publish_discovery_fleet(fleet(&["a:1"]), "")
        .await
        .unwrap();
    let (here, away) = (manager.worker("here").await, manager.worker("away").await);
    access(&here, 1).await;
    let mut watch = manager.watch().await;
    away.cut();
    watch.until_node("away", NodeState::Unreachable).await;

    let staged = step(&client, RotationStep::Stage).await;
    assert_eq!(staged.fleet.rotation_phase, RotationPhase::Staged);
    let made = staged.fleet.tier_secret_alt.clone();
    assert_eq!(made.len(), 64, "256 bits of the Manager's");
    let secret = Some(Token::new("tier-hunter2"));
    let twice = client
        .rotate_discovery_tier_secret(RotationStep::Stage, secret, "anna")
        .await
        .unwrap_err();
    let Error::FailedPrecondition(refused) = twice else {
        panic!("{twice:?}");
    };
    assert_eq!(refused.reason, "rotation_out_of_order");
    assert_eq!(refused.details["phase"], Detail::from("staged"));

    let flipped = step(&client, RotationStep::Flip).await;
    assert_eq!(flipped.fleet.tier_secret, made);
    assert_eq!(flipped.fleet.tier_secret_alt, "tier-hunter2");
    assert_eq!(flipped.acknowledged, 1);
    assert_eq!(flipped.not_acknowledged, [away.node_id()]);
    assert!(opens(&access(&here, 2).await, &[&made]).is_some());
    away.mend();
    assert!(opens(&access(&away, 2).await, &[&made]).is_some());
    let finished = step(&client, RotationStep::Finish).await;
    assert_eq!(finished.fleet.rotation_phase, RotationPhase::None);
    assert_eq!(finished.fleet.tier_secret_alt, "");
    until_audited(&client, "rotate_discovery_tier_secret", 3).await;
}

// spec: DISC-06
#[tokio::test]
async fn a_flip_does_not_wait_for_a_node_for_ever() {
    let manager = TestManager::start_with(|settings| {
        settings.links.acknowledge = Duration::from_millis(20);
    })
    .await;
    let client = manager.client().await;
    client
        .publish_discovery_fleet(fleet(&["a:1"]), "")
        .await
        .unwrap();
    let worker = manager.worker("mute").await;
    worker.hold();
    step(&client, RotationStep::Stage).await;
    let flipped = step(&client, RotationStep::Flip).await;
    assert_eq!(flipped.acknowledged, 0);
    assert_eq!(flipped.not_acknowledged, [worker.node_id()]);
}

// spec: HARDM-52
#[tokio::test]
async fn a_manager_that_dies_between_a_flip_and_its_sending_brings_the_new_token_with_the_hello() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    client
        .publish_discovery_fleet(fleet(&["a:1"]), "")
        .await
        .unwrap();
    let worker = manager.worker("n").await;
    let old = access(&worker, 1).await;
    step(&client, RotationStep::Stage).await;
    // The line is down while the flip commits, so that nothing of it is sent.
    let mut watch = manager.watch().await;
    worker.cut();
    watch.until_node("n", NodeState::Unreachable).await;
    let made = step(&client, RotationStep::Flip).await.fleet.tier_secret;
    manager.kill().await;
    worker.mend();
    manager.run().await;

    let new = access(&worker, 2).await;
    let name = Some(worker.node_id().to_string());
    assert_eq!(opens(&new, &[&made]), name);
    let client = manager.client().await;
    let stands = client.get_discovery_fleet().await.unwrap().unwrap();
    assert_eq!(stands.rotation_phase, RotationPhase::Flipped);
    let both = [stands.tier_secret.as_str(), stands.tier_secret_alt.as_str()];
    assert_eq!(
        opens(&old, &both),
        name,
        "the old one is taken until the end"
    );
    assert_eq!(opens(&new, &both), name);
    let stands = step(&client, RotationStep::Finish).await.fleet;
    let both = [stands.tier_secret.as_str(), stands.tier_secret_alt.as_str()];
    assert_eq!(opens(&old, &both), None);
    assert_eq!(opens(&new, &both), name);
}

// spec: CTRL-01, CTRL-02, CTRL-03, CTRL-04, CTRL-05
#[tokio::test]
async fn workers_are_told_where_control_planes_are_at_every_change_and_hello() {
    const URL: &str = "https://control-1.example:7000";
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n").await;
    let bad = client.announce_control_plane("control-1:7000", None).await;
    assert_eq!(bad.unwrap_err().reason(), "bad_url");
    let brief = client
        .announce_control_plane(URL, Some(Duration::from_millis(999)))
        .await;
    assert_eq!(brief.unwrap_err().reason(), "bad_value");

    let every = Some(Duration::from_secs(3_600));
    let known = client.announce_control_plane(URL, every).await.unwrap();
    assert_eq!((known.len(), known[0].url.as_str()), (1, URL));
    assert_eq!(known[0].interval, every);
    let told = planes(&worker, 1).await;
    assert_eq!(
        (told.planes[0].url.as_str(), told.planes[0].active),
        (URL, true)
    );
    let audited = until_audited(&client, "announce_control_plane", 1).await;
    assert!(audited.payload.contains(URL));
    let plane = |client: Client| async move {
        let status = client.get_cluster_status().await.unwrap();
        assert_eq!(
            (status.role.as_str(), status.quorum_present),
            ("primary", 1)
        );
        status.members[0].control_plane.clone()
    };
    assert!(!plane(client.clone()).await.unwrap().stale);
    // Saying it again sends nothing: the next thing told is the next change.
    client.announce_control_plane(URL, every).await.unwrap();

    manager.crash().await;
    until_planes_told(&worker, 2).await;
    let client = manager.client().await;
    assert!(
        plane(client.clone()).await.unwrap().stale,
        "until it is renewed"
    );
    client.announce_control_plane(URL, every).await.unwrap();
    assert!(!plane(client.clone()).await.unwrap().stale);
    client
        .announce_control_plane("http://other", None)
        .await
        .unwrap();
    assert_eq!(planes(&worker, 2).await.planes[0].url, "http://other");
    let gone = client.announce_control_plane("", None).await.unwrap();
    assert!(gone.is_empty());
    assert!(planes(&worker, 3).await.planes.is_empty());
    assert!(plane(client).await.is_none());
    assert_eq!(planes_told(&worker), 4, "three changes and one hello");
}

const ONE: &str = r#"{"local": {"mediaVersions": {"local": {"RECOMMENDED": "media:1"}}}}"#;

/// Image of the media runtime that a start is given.
async fn media_image(client: &Client, worker: &FakeWorker, job_id: &str) -> String {
    let mut new = job(job_id);
    new.media_version = MediaVersion::Recommended;
    client.create_job(new).await.unwrap();
    let node_id = worker.node_id();
    client
        .start_job(start(job_id, node_id.as_str()))
        .await
        .unwrap();
    worker
        .wait_order("a provision", |order| match order {
            Received::Provision(order) if order.job_id.as_str() == job_id => {
                Some(order.media_image.clone())
            }
            _ => None,
        })
        .await
}

// spec: OVR-02, OVR-03, OVR-06, HARDM-37
#[tokio::test]
async fn the_overrides_file_is_read_when_asked_and_a_bad_one_changes_nothing() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n").await;
    let path = manager.settings().overrides_file.clone();
    let stands = |client: Client| async move { client.get_store_info().await.unwrap().overrides };
    assert!(stands(client.clone()).await.starts_with("none"));
    assert!(client.reload_external_config().await.unwrap().is_empty());

    std::fs::write(&path, ONE).unwrap();
    assert_eq!(
        media_image(&client, &worker, "a").await,
        "",
        "it is not watched"
    );
    let changes = client.reload_external_config().await.unwrap();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].starts_with("local: added"), "{changes:?}");
    assert!(stands(client.clone()).await.starts_with("in force"));
    assert_eq!(media_image(&client, &worker, "b").await, "media:1");
    until_audited(&client, "reload_external_config", 1).await;

    let trailing =
        "{\n  \"local\": {\n    \"mediaVersions\": {\"local\": {\"LTS\": \"media:2\",}}\n  }\n}";
    std::fs::write(&path, trailing).unwrap();
    let refused = client.reload_external_config().await.unwrap_err();
    let Error::InvalidArgument(refused) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.reason, "bad_overrides");
    assert_eq!(refused.details["line"], Detail::Int(3));
    assert_eq!(refused.details["column"], Detail::Int(50));
    assert_eq!(refused.details["key"], "local.mediaVersions.local".into());
    assert_eq!(
        media_image(&client, &worker, "c").await,
        "media:1",
        "unchanged"
    );

    // At a start the last good copy is used, and that is said.
    manager.restart().await;
    worker.wait_greeted(2).await;
    let client = manager.client().await;
    let told = stands(client.clone()).await;
    assert!(told.starts_with("the last good copy: "), "{told}");
    assert!(
        told.contains(":3:50: local.mediaVersions.local: "),
        "{told}"
    );
    assert_eq!(media_image(&client, &worker, "d").await, "media:1");

    // A good file at a start is put in force, and one that is gone means none.
    std::fs::write(&path, ONE.replace("media:1", "media:3")).unwrap();
    manager.restart().await;
    worker.wait_greeted(3).await;
    let client = manager.client().await;
    assert!(stands(client.clone()).await.starts_with("in force"));
    assert_eq!(media_image(&client, &worker, "e").await, "media:3");
    std::fs::remove_file(&path).unwrap();
    let changes = client.reload_external_config().await.unwrap();
    assert_eq!(changes, ["local: removed"]);
    assert_eq!(media_image(&client, &worker, "f").await, "");
    std::fs::create_dir(&path).unwrap();
    let refused = client.reload_external_config().await.unwrap_err();
    assert_eq!(refused.reason(), "bad_overrides_file");
}
