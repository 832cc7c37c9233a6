//! A tour of the SDK: every method called once against a real Manager, as a user of the SDK would
//! (SDK-14). What a Manager alone cannot do is refused, and the tour shows how that reads.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_manager::MetricsSettings;
use greenroom_sdk::types::call::{CreateAwsNode, CreateOciNode, StartJob};
use greenroom_sdk::types::discovery::{DiscoveryFleet, RotationStep};
use greenroom_sdk::types::job::Job;
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::replica::AccessReplica;
use greenroom_sdk::types::{MigrationId, Wall};
use greenroom_sdk::{
    AbortMigration, AuditQuery, Client, EditTags, Error, EventSettings, JobSearch, UpdateBundle,
};
use greenroom_testkit::{TestManager, TestServer, Watch, bundle, job, key, start, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("a refusal").reason().to_owned()
}

/// Whatever the answer is, it is the Manager's own: done, or a refusal with its reason.
fn answered<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        let is_refusal = !error.reason().is_empty() && !matches!(error, Error::Unimplemented(_));
        assert!(is_refusal, "{error:?}");
    }
}

async fn jobs(client: &Client, watch: &mut Watch) {
    client.create_job(job("news")).await.unwrap();
    let changed = Job {
        description: "evening".to_owned(),
        ..job("news")
    };
    client.update_job(changed, 0).await.unwrap();
    client.start_job(start("news", "studio-1")).await.unwrap();
    let deferred = StartJob {
        defer_start: true,
        ..start("later", "studio-1")
    };
    client.create_job(job("later")).await.unwrap();
    client.start_job(deferred).await.unwrap();
    watch.until_last("later", "prepared").await;
    client
        .start_prepared_job(key("later"), "studio-1")
        .await
        .unwrap();
    watch.until_last("later", "running").await;
    client
        .stop_job(key("later"), "studio-1", None)
        .await
        .unwrap();
    client.complete_job("later").await.unwrap();
    client.create_job(job("broken")).await.unwrap();
    client.mark_job_failed("broken", "no signal").await.unwrap();
    client.delete_job("broken").await.unwrap();
    assert_eq!(
        client.job_search(JobSearch::default()).await.unwrap().len(),
        2
    );
    assert!(client.job_by_id("news").await.unwrap().is_some());
    assert!(client.job_history("nothing").await.unwrap().is_none());
}

async fn migrations(client: &Client) {
    let id = MigrationId::new("move-1");
    let state = client
        .notify_migration_get_state(key("news"), id.clone())
        .await;
    answered(state);
    let ready = client
        .notify_migration_cutover_ready(key("news"), id.clone(), b"payload".to_vec())
        .await;
    answered(ready);
    let apply = client
        .notify_migration_cutover_apply(key("news"), id, b"payload".to_vec())
        .await;
    answered(apply);
    let abort = AbortMigration {
        job_id: "news".into(),
        source_role: "primary".into(),
        target_role: "primary@00000001".into(),
        ..AbortMigration::default()
    };
    answered(client.abort_migration(abort).await);
}

async fn bundles(client: &Client) {
    let made = client
        .create_bundle(bundle("show", &["encode"]))
        .await
        .unwrap();
    assert_eq!(made.job_ids.len(), 1);
    let wider = bundle("show", &["encode", "record"]);
    client
        .update_bundle(wider, UpdateBundle::default())
        .await
        .unwrap();
    assert_eq!(client.list_bundles().await.unwrap().len(), 1);
    let shown = client.get_bundle("show").await.unwrap();
    assert_eq!(shown.jobs.len(), 2);
    client.start_bundle_job("show", 0, "encode").await.unwrap();
    client
        .stop_bundle_job("show", 0, "encode", None)
        .await
        .unwrap();
    client
        .set_bundle_stop_time("show", Some(Wall(4_000_000_000_000)))
        .await
        .unwrap();
    let ttl = Some(Duration::from_secs(60));
    assert!(
        client
            .renew_bundle_lease("show", ttl)
            .await
            .unwrap()
            .is_some()
    );
    client.delete_bundle("show").await.unwrap();
}

async fn nodes(client: &Client) {
    let nodes = client.list_nodes().await.unwrap();
    assert_eq!(nodes[0].metadata.tags["rack"], "7");
    let edit = EditTags {
        set: [("rack".to_owned(), "8".to_owned())].into(),
        ..EditTags::default()
    };
    client.set_node_tags("studio-1", edit).await.unwrap();
    client
        .update_physical_node("studio-1", "2.0")
        .await
        .unwrap();
    let expiry = client.set_node_idle_expiry("studio-1", None).await;
    assert_eq!(reason(expiry), "not_elastic");
    assert_eq!(
        client
            .get_node_idle_expiry("studio-1")
            .await
            .unwrap()
            .effective,
        None
    );
    client
        .prefetch_images("studio-1", vec!["registry/encoder:7".to_owned()])
        .await
        .unwrap();
    let adopted = client
        .adopt_instance("studio-1", key("nothing"), None)
        .await;
    assert_eq!(reason(adopted), "no_instance");
    client
        .register_cluster_node("studio-9", "own")
        .await
        .unwrap();
    client
        .set_cluster_node_pool("studio-9", "other")
        .await
        .unwrap();
    client.rotate_cluster_node_token("studio-9").await.unwrap();
    assert_eq!(client.list_cluster_nodes().await.unwrap().len(), 2);
    client.deregister_cluster_node("studio-9").await.unwrap();
    // No cloud is configured here.
    let aws = CreateAwsNode {
        node_id: "spot-1".into(),
        ..CreateAwsNode::default()
    };
    answered(client.create_aws_node(aws).await);
    let oci = CreateOciNode {
        node_id: "spot-2".into(),
        ..CreateOciNode::default()
    };
    answered(client.create_oci_node(oci).await);
}

async fn fleet(client: &Client) {
    assert_eq!(client.get_discovery_fleet().await.unwrap(), None);
    let fleet = DiscoveryFleet {
        addresses: vec!["disc-1.example:443".to_owned()],
        leaf_token: "a secret for every node".to_owned(),
        tier_secret: "another for the servers".to_owned(),
        ..DiscoveryFleet::default()
    };
    client
        .publish_discovery_fleet(fleet.clone(), "tour")
        .await
        .unwrap();
    let next = DiscoveryFleet {
        leaf_token: "the next one".to_owned(),
        ..fleet
    };
    let published = client
        .replace_discovery_leaf_token(next, "tour")
        .await
        .unwrap();
    assert_eq!(published.fleet.leaf_token, "the next one");
    let staged = client
        .rotate_discovery_tier_secret(RotationStep::Stage, None, "tour")
        .await;
    assert!(!staged.unwrap().fleet.tier_secret_alt.is_empty());
    let replica = client
        .publish_access_replica(AccessReplica::default())
        .await;
    answered(replica);
    client.reload_external_config().await.unwrap();
}

async fn the_rest(client: &Client) {
    let commit = KvCommit {
        namespace: "rota".to_owned(),
        writes: vec![KvWrite::set("today", *b"ana")],
        expected_schema_version: None,
        set_schema_version: None,
    };
    assert_eq!(client.kv_commit(commit).await, Ok(1));
    assert_eq!(
        &*client.kv_get("rota", "today").await.unwrap().unwrap().value,
        b"ana"
    );
    assert_eq!(client.kv_list("rota", "").await.unwrap().entries.len(), 1);
    client.pause_leases("tour", "ana").await.unwrap();
    assert!(client.get_lease_status().await.unwrap().paused.is_some());
    client.resume_leases("ana").await.unwrap();
    client
        .append_audit_entry("tour", "seen", "{}")
        .await
        .unwrap();
    let page = client.get_audit_log(AuditQuery::default()).await.unwrap();
    assert!(!page.entries.is_empty());
    assert!(client.prune_audit_log(None).await.unwrap().removed > 0);
    let every = Some(Duration::from_secs(10));
    let planes = client
        .announce_control_plane("https://control:7000", every)
        .await
        .unwrap();
    assert_eq!(planes.len(), 1);
    assert_eq!(client.get_cluster_status().await.unwrap().members.len(), 1);
    let told = client.get_cluster_events(Default::default()).await.unwrap();
    assert_eq!(told[0].kind, "role");
    assert_eq!(client.get_store_info().await.unwrap().boot, "created");
    let (state, _events) = client.event_stream(EventSettings::default()).await.unwrap();
    assert!(!state.epoch.is_empty());
    client.terminate_node("studio-1").await.unwrap();
}

/// How often each call of the interface was made, as the Manager counts them.
async fn counted(manager: &TestManager) -> BTreeMap<String, f64> {
    let address = manager.running().metrics_address().expect("an address");
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    within("the page", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    let mut found = BTreeMap::new();
    for line in answer.lines() {
        let named = line.split_once("norsk.api.manager.Manager/");
        let Some((method, rest)) = named.and_then(|(_, rest)| rest.split_once('"')) else {
            continue;
        };
        let count: f64 = rest.rsplit(' ').next().unwrap().parse().unwrap();
        *found.entry(method.to_owned()).or_default() += count;
    }
    found
}

/// Calls without a method of the SDK: those of workers, of members, and of the operator's own channel.
const NO_METHOD: &[&str] = &["ClusterMemberRegister", "CreateStatusChannel"];

// spec: SDK-14
#[tokio::test]
async fn every_method_is_called_once_against_a_manager_in_this_process() {
    let manager = TestManager::start_with(|settings| {
        settings.metrics = Some(MetricsSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            is_default: false,
        });
    })
    .await;
    let server = TestServer::around(manager, 1);
    let tags = [("rack".to_owned(), "7".to_owned())];
    server.create_mock_node("studio-1", tags).await.unwrap();
    let client = server.client().await;
    let mut watch = server.manager().watch().await;
    jobs(&client, &mut watch).await;
    migrations(&client).await;
    bundles(&client).await;
    nodes(&client).await;
    fleet(&client).await;
    the_rest(&client).await;

    // A stream counts when the Manager has seen its end.
    let ended = async {
        loop {
            let counted = counted(server.manager()).await;
            if counted.contains_key("EventStream") {
                return counted;
            }
        }
    };
    let counted = within("the end of the event stream", ended).await;
    for (method, minor) in greenroom_sdk::proto::convert::call::calls() {
        let is_called = counted.contains_key(method) || NO_METHOD.contains(&method);
        assert!(
            is_called,
            "{method} of protocol 1.{minor} is not in the tour"
        );
    }
}

// spec: SDK-14
#[tokio::test]
async fn mock_nodes_are_used_up_and_a_name_that_is_taken_uses_none() {
    let server = TestServer::with_mock_nodes(2).await;
    server.create_mock_node("one", []).await.unwrap();
    assert_eq!(
        reason(server.create_mock_node("one", []).await),
        "slot_exists"
    );
    server.create_mock_node("two", []).await.unwrap();
    let none = server.create_mock_node("three", []).await.unwrap_err();
    assert!(matches!(none, Error::ResourceExhausted(_)), "{none}");
    assert_eq!(none.reason(), "mock_pool_empty");
    assert_eq!(server.client().await.list_nodes().await.unwrap().len(), 2);
}

// spec: SDK-14
#[tokio::test]
async fn a_manager_makes_no_mock_node_itself() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let mut raw = client.raw().unwrap();
    let request = greenroom_sdk::proto::manager::CreateMockNodeRequest::default();
    let status = raw.create_mock_node(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}
