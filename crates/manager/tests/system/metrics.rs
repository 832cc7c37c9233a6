//! What monitoring sees: counts and gauges, health over HTTP, and the surface told by reflection.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use greenroom_manager::{MetricsSettings, Settings, StartError, StatusLog};
use greenroom_testkit::{TestManager, job, key, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Endpoint;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::running;

fn at(listen: SocketAddr, is_default: bool) -> MetricsSettings {
    MetricsSettings { listen, is_default }
}

pub(crate) fn anywhere(settings: &mut Settings) {
    settings.metrics = Some(at("127.0.0.1:0".parse().unwrap(), false));
}

/// Status and body of what is at a path.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

pub(crate) async fn samples(manager: &TestManager) -> BTreeMap<String, f64> {
    let address = manager.running().metrics_address().expect("an address");
    let (status, body) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    greenroom_metrics::samples(&body).unwrap()
}

// spec: API-21
#[tokio::test]
async fn calls_events_and_what_is_held_are_counted() {
    let manager = TestManager::start_with(anywhere).await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let worker = manager.worker("studio-1").await;
    running(&client, &mut watch, &worker, "news").await;
    client.create_job(job("news")).await.unwrap_err();
    worker.obey();

    let told = samples(&manager).await;
    let method = "norsk.api.manager.Manager";
    for (name, value) in [
        (
            format!("greenroom_calls_total{{method=\"{method}/CreateJob\",status=\"OK\"}}"),
            1.0,
        ),
        (
            format!(
                "greenroom_calls_total{{method=\"{method}/CreateJob\",status=\"ALREADY_EXISTS\"}}"
            ),
            1.0,
        ),
        ("greenroom_jobs".to_owned(), 1.0),
        ("greenroom_bundles".to_owned(), 0.0),
        (
            "greenroom_nodes{provider=\"local\",state=\"running\"}".to_owned(),
            1.0,
        ),
        ("greenroom_instances{state=\"running\"}".to_owned(), 1.0),
        ("greenroom_leases{state=\"held\"}".to_owned(), 0.0),
        ("greenroom_leases_paused".to_owned(), 0.0),
        ("greenroom_instances{state=\"stopping\"}".to_owned(), 0.0),
        ("greenroom_subscribers".to_owned(), 1.0),
        ("greenroom_quorum".to_owned(), 1.0),
        ("greenroom_saga_age_seconds{saga=\"stop\"}".to_owned(), 0.0),
    ] {
        assert_eq!(told.get(&name), Some(&value), "{name} in {told:#?}");
    }
    let seq = told["greenroom_event_seq"];
    assert!(seq >= 5.0, "{seq}");
    assert!(told["greenroom_events_sent_total"] >= 5.0, "{told:#?}");
    assert!(told["greenroom_commit_seconds_count"] >= 5.0, "{told:#?}");
    assert!(told["greenroom_commit_seconds_sum"] > 0.0, "{told:#?}");

    // The operating reference names every family.
    let reference = include_str!("../../../../docs/operate/reference.md");
    for name in told.keys() {
        let bare = name.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|ending| bare.strip_suffix(ending))
            .unwrap_or(bare);
        assert!(reference.contains(&format!("`{family}`")), "{family}");
    }
}

// spec: API-21
#[tokio::test]
async fn a_stop_under_way_shows_its_age_and_a_stream_that_is_read_slowly_its_queue() {
    let manager = TestManager::start_with(anywhere).await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let worker = manager.worker("studio-1").await;
    running(&client, &mut watch, &worker, "news").await;
    worker.hold();
    let stopped = client.stop_job(key("news"), worker.node_id(), None).await;
    stopped.unwrap();
    worker.wait_stop("news").await;
    let aged = within("an age", async {
        loop {
            let told = samples(&manager).await;
            if told["greenroom_saga_age_seconds{saga=\"stop\"}"] > 0.0 {
                return told;
            }
        }
    })
    .await;
    assert_eq!(aged["greenroom_instances{state=\"stopping\"}"], 1.0);
    assert_eq!(aged["greenroom_saga_age_seconds{saga=\"deleteJob\"}"], 0.0);
}

// spec: API-10, API-21
#[tokio::test]
async fn health_over_http_is_that_of_the_health_protocol() {
    let manager = TestManager::start_with(anywhere).await;
    let address = manager.running().metrics_address().expect("an address");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(address, path).await, (200, "ok\n".to_owned()), "{path}");
    }
    assert_eq!(get(address, "/else").await.0, 404);
}

// spec: API-21
#[tokio::test]
async fn metrics_are_for_this_machine_only_and_an_address_that_was_named_is_needed() {
    let start = async |metrics: MetricsSettings| {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(folder.path(), "127.0.0.1:0".parse().unwrap());
        settings.min_free_bytes = 0;
        settings.metrics = Some(metrics);
        let started = greenroom_manager::start(settings, StatusLog::new()).await;
        (started, folder)
    };
    let (open, _folder) = start(at("0.0.0.0:0".parse().unwrap(), false)).await;
    assert!(matches!(open, Err(StartError::MetricsOpen { .. })));

    let taken = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = taken.local_addr().unwrap();
    let (named, _folder) = start(at(address, false)).await;
    let Err(StartError::Listen { address: told, .. }) = named else {
        panic!("the address is taken")
    };
    assert_eq!(told, address);
    let (default, _folder) = start(at(address, true)).await;
    let without = default.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(without.metrics_address(), None);
    without.shutdown().await.unwrap();
}

async fn asked(
    manager: &TestManager,
    request: MessageRequest,
) -> Result<ServerReflectionResponse, tonic::Status> {
    let endpoint = Endpoint::from_shared(manager.url()).expect("an address");
    let mut client = ServerReflectionClient::new(endpoint.connect_lazy());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await?;
    let answer = answers.into_inner().message().await?;
    Ok(answer.expect("an answer"))
}

// spec: API-22
#[tokio::test]
async fn reflection_lists_the_extended_surface() {
    let manager = TestManager::start().await;
    let listed = asked(&manager, MessageRequest::ListServices(String::new())).await;
    let Some(MessageResponse::ListServicesResponse(services)) = listed.unwrap().message_response
    else {
        panic!("a list of services")
    };
    let names: Vec<String> = services.service.into_iter().map(|it| it.name).collect();
    for name in ["norsk.api.manager.Manager", "greenroom.logs.Logs"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    assert!(
        names.iter().all(|name| !name.contains("Worker")),
        "workers are served elsewhere: {names:?}"
    );
    let symbol = "norsk.api.manager.Manager.CreateBundle".to_owned();
    let found = asked(&manager, MessageRequest::FileContainingSymbol(symbol)).await;
    let found = found.unwrap().message_response;
    assert!(
        matches!(found, Some(MessageResponse::FileDescriptorResponse(_))),
        "{found:?}"
    );
}

// spec: API-21
#[tokio::test]
async fn whoever_says_nothing_is_let_go_and_keeps_no_scraper_away_for_ever() {
    let manager = TestManager::start_with(anywhere).await;
    let address = manager.running().metrics_address().expect("an address");
    // More than are served at a time, each in the middle of its head.
    let mut silent = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n")
            .await
            .expect("sent");
        silent.push(stream);
    }
    let answered = within("an answer behind them", get(address, "/healthz")).await;
    assert_eq!(answered.0, 200);
    for mut stream in silent {
        let mut rest = Vec::new();
        let ended = within(
            "the end of a silent connection",
            stream.read_to_end(&mut rest),
        )
        .await;
        // Told that it took too long, or cut off.
        assert!(
            ended.is_err() || !rest.starts_with(b"HTTP/1.1 200"),
            "{rest:?}"
        );
    }
}

// spec: KV-09, API-20
#[tokio::test]
async fn a_namespace_that_can_be_none_is_no_setting() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["", "Upper", "sys-own", &"x".repeat(64)] {
        let mut settings = Settings::new(folder.path(), "127.0.0.1:0".parse().unwrap());
        settings.kv_admin_namespaces = ["good".to_owned(), name.to_owned()].into();
        let found = greenroom_manager::check(&settings);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(
            found[0].to_string().starts_with("kv.adminNamespaces: "),
            "{}",
            found[0]
        );
        let refused = greenroom_manager::start(settings, StatusLog::new()).await;
        assert!(matches!(refused, Err(StartError::Namespace(_))), "{name}");
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "nothing was made"
        );
    }
}
