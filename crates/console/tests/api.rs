//! Goal: the API over a real instance and a real Manager. Method: all in one process on free ports,
//! without workers, so a job stays without a place.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use greenroom_auto::types::bundle::{Bundle, BundleJob, Launch, Requirements};
use greenroom_auto::types::job::{Container, Service};
use greenroom_auto::{AutoManager, Holder, Seat, Settings};
use greenroom_console::api::{Phase, PlaceRequest, SeatState};
use greenroom_console::client::ClientError;
use greenroom_console::{Client, Provider, ServeError, serve};
use greenroom_manager::{Running, StatusLog};
use greenroom_placement::{Code, Decision};
use greenroom_policy::getters::Admission;
use greenroom_policy::{ApiAnswer, ApiCall};
use greenroom_types::call::Reply;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Nobody;

/// A standby that knows who acts.
struct Waits;

impl Provider for Waits {
    fn instance(&self) -> Option<AutoManager> {
        None
    }

    fn seat(&self) -> Seat {
        let holder = Holder {
            name: "studio-a".to_owned(),
            url: "http://127.0.0.1:6788".to_owned(),
            ..Holder::default()
        };
        Seat::Standby(Some(holder))
    }
}

/// One that is starting: its instance is there once it was asked for a few times.
struct Late {
    instance: AutoManager,
    before: AtomicU32,
}

impl Provider for Late {
    fn instance(&self) -> Option<AutoManager> {
        let left = self.before.load(Ordering::Relaxed);
        self.before.store(left.saturating_sub(1), Ordering::Relaxed);
        (left == 0).then(|| self.instance.clone())
    }
}

impl Provider for Nobody {
    fn instance(&self) -> Option<AutoManager> {
        None
    }

    fn problem(&self) -> Option<String> {
        Some("the Manager is away".to_owned())
    }
}

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    async fn new(provider: impl Provider) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let shutdown = stop.clone().cancelled_owned();
        let serving = tokio::spawn(serve(listener, provider, shutdown));
        Self {
            address,
            stop,
            serving,
        }
    }

    fn client(&self) -> Client {
        Client::new(self.address.to_string())
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

async fn manager(dir: &TempDir) -> Running {
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut settings = greenroom_manager::Settings::new(dir.path().join("store"), listen);
    settings.min_free_bytes = 0;
    greenroom_manager::start(settings, StatusLog::default())
        .await
        .unwrap()
}

async fn instance(manager: &Running) -> AutoManager {
    let tree = serde_json::json!({
        "url": manager.address().to_string(),
        "placementPools": [{
            "name": "studio",
            "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}],
        }],
    });
    let (instance, _) = AutoManager::run(Settings::new(tree)).await.unwrap();
    assert!(instance.live().await);
    instance
}

fn bundle() -> Bundle {
    Bundle {
        bundle_id: "news".into(),
        pool: "studio".into(),
        jobs: vec![BundleJob {
            job_name: "enc".into(),
            requirements: Requirements {
                required_capacity: 2.0,
                ..Requirements::default()
            },
            launch: Launch {
                services: vec![Service {
                    name: "main".to_owned(),
                    container: Container::Process {
                        command: vec!["true".to_owned()],
                        directory: String::new(),
                    },
                    ..Service::default()
                }],
                ..Launch::default()
            },
            ..BundleJob::default()
        }],
        ..Bundle::default()
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String, String) {
    match answer {
        Err(ClientError::Refused {
            status,
            code,
            message,
            ..
        }) => (status, code, message),
        other => panic!("a refusal was wanted, not {other:?}"),
    }
}

/// A request by hand: the whole answer.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_and_calls_over_a_real_instance() {
    let dir = TempDir::new().unwrap();
    let manager = manager(&dir).await;
    let instance = instance(&manager).await;
    let served = Served::new(instance.clone()).await;
    let client = served.client();
    assert_eq!(client.health().await.unwrap().phase, Phase::Live);

    // Before the bundle is there.
    let (status, code, message) = refused(client.why(&"news.0.enc".into()).await);
    assert_eq!((status, code.as_str()), (404, "unknownJob"));
    assert!(message.contains("news.0.enc"), "{message}");
    let findings = client.validate(bundle()).await.unwrap();
    assert_eq!(findings.errors, []);
    let nowhere = Bundle {
        pool: "attic".into(),
        ..bundle()
    };
    let findings = client.validate(nowhere).await.unwrap();
    assert_eq!(findings.errors[0].code, Code::UnknownPool);
    let admission = client.admit(bundle()).await.unwrap();
    assert!(matches!(admission, Admission::NoCapacity { .. }));
    let placed = client
        .place(&PlaceRequest {
            bundle: Some(bundle()),
            ..PlaceRequest::default()
        })
        .await
        .unwrap();
    assert!(matches!(placed.decision, Decision::Failure { .. }));
    assert_eq!(placed.trace.attempts.len(), 1);
    assert!(placed.text.contains("No place is found"), "{}", placed.text);

    // It is created, and its job waits.
    let mut feed = client.callbacks().await.unwrap();
    let create = ApiCall::CreateBundle {
        bundle: Box::new(bundle()),
    };
    let answer = client.call(&create).await.unwrap();
    let ApiAnswer::Manager(Reply::BundleCreated { job_ids, .. }) = answer else {
        panic!("{answer:?}");
    };
    let failed = loop {
        let event = feed.next().await.unwrap().expect("the instance runs");
        if event.name == "onPlacementFailed" {
            break event;
        }
    };
    assert_eq!(failed.data["onPlacementFailed"]["jobId"], "news.0.enc");
    let why = client.why(&job_ids[0]).await.unwrap();
    assert_eq!(why.report.job_id, job_ids[0]);
    assert!(
        why.text.contains("found no place, waits for room"),
        "{}",
        why.text
    );
    assert!(why.text.contains("Pool studio, tier own"), "{}", why.text);

    let (status, code, _) = refused(client.call(&create).await);
    assert_eq!((status, code.as_str()), (409, "bundle_exists"));
    let unknown = ApiCall::CordonNode {
        node_id: "n9".into(),
    };
    let (status, code, _) = refused(client.call(&unknown).await);
    assert_eq!((status, code.as_str()), (404, "unknownNode"));
    let (status, code, _) = refused(client.call(&ApiCall::Close).await);
    assert_eq!((status, code.as_str()), (403, "notFromHere"));
    let by_id = |job: &str| PlaceRequest {
        bundle_id: Some("news".to_owned()),
        job: Some(job.into()),
        ..PlaceRequest::default()
    };
    assert!(client.place(&by_id("enc")).await.is_ok());
    let (status, code, _) = refused(client.place(&by_id("dec")).await);
    assert_eq!((status, code.as_str()), (404, "unknownJob"));
    let (status, _, _) = refused(client.place(&PlaceRequest::default()).await);
    assert_eq!(status, 400);

    assert_eq!(client.metrics().await.unwrap().placements_failed, 1);
    assert_eq!(client.pending().await.unwrap().unplaced, job_ids);
    assert_eq!(client.placements().await.unwrap(), []);
    assert_eq!(client.nodes().await.unwrap(), []);
    let bundles = client.bundles().await.unwrap();
    assert_eq!(bundles[0].status.bundle.bundle_id.as_str(), "news");
    assert!(!bundles[0].broken);

    // The instance ends; the API says so and goes on.
    instance.close().await;
    let last = loop {
        match feed.next().await.unwrap() {
            Some(event) if event.name == "ended" => break event.name,
            Some(_) => {}
            None => break "nothing".to_owned(),
        }
    };
    assert_eq!(last, "ended");
    assert_eq!(client.health().await.unwrap().phase, Phase::Closed);
    let (status, code, _) = refused(client.bundles().await);
    assert_eq!((status, code.as_str()), (503, "closed"));
    served.end().await;
    manager.shutdown().await.unwrap();
}

// spec: ACTIVE-07
#[tokio::test]
async fn a_standby_tells_who_is_active() {
    let served = Served::new(Waits).await;
    let health = served.client().health().await.unwrap();
    let expected = SeatState::Standby {
        active: "studio-a".to_owned(),
        url: "http://127.0.0.1:6788".to_owned(),
    };
    assert_eq!((health.phase, health.seat), (Phase::Waiting, expected));
    served.end().await;
}

#[tokio::test]
async fn a_control_plane_that_is_starting_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let manager = manager(&dir).await;
    let instance = instance(&manager).await;
    let late = Late {
        instance: instance.clone(),
        before: AtomicU32::new(3),
    };
    let served = Served::new(late).await;
    assert_eq!(served.client().pools().await.unwrap(), ["studio".into()]);
    served.end().await;
    instance.close().await;
    manager.shutdown().await.unwrap();
}

#[tokio::test]
async fn without_an_instance_it_says_why() {
    let served = Served::new(Nobody).await;
    let client = served.client();
    let health = client.health().await.unwrap();
    assert_eq!(health.phase, Phase::Waiting);
    assert_eq!(health.problem.as_deref(), Some("the Manager is away"));
    assert_eq!(health.seat, SeatState::Alone);
    let (status, code, message) = refused(client.metrics().await);
    assert_eq!((status, code.as_str()), (503, "noInstance"));
    assert!(message.contains("the Manager is away"), "{message}");
    served.end().await;
    let gone = client.health().await;
    assert!(matches!(gone, Err(ClientError::Connection { .. })));
}

#[tokio::test]
async fn what_is_not_meant_for_it_is_refused_in_one_form() {
    let served = Served::new(Nobody).await;
    let at = served.address;
    let head = format!("host: {at}\r\nconnection: close\r\n");
    let json = "content-type: application/json\r\n";
    let cases = [
        (
            format!("GET /v2/x HTTP/1.1\r\n{head}\r\n"),
            404,
            "noSuchPath",
        ),
        (
            format!("GET /v1/call HTTP/1.1\r\n{head}\r\n"),
            405,
            "noSuchMethod",
        ),
        (
            "GET /healthz HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n\r\n".to_owned(),
            403,
            "badHost",
        ),
        (
            format!("POST /v1/validate HTTP/1.1\r\n{head}content-length: 2\r\n\r\n{{}}"),
            415,
            "notJson",
        ),
        (
            format!(
                "POST /v1/validate HTTP/1.1\r\n{head}{json}content-length: 17\r\n\r\n{{\"bundle\":{{\"p\":1}}"
            ),
            400,
            "badRequest",
        ),
        (
            format!("POST /v1/validate HTTP/1.1\r\n{head}{json}content-length: 5000000\r\n\r\n"),
            413,
            "bodyTooLarge",
        ),
    ];
    for (request, status, code) in cases {
        let answer = raw(at, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(
            answer.contains(&format!("{{\"error\":{{\"code\":\"{code}\",\"message\":")),
            "{answer}"
        );
    }
    // What is of another form is told by key, in plain words.
    let body = r#"{"bundle":{"pool":"p","jobs":"encode, mix"}}"#;
    let length = body.len();
    let request =
        format!("POST /v1/validate HTTP/1.1\r\n{head}{json}content-length: {length}\r\n\r\n{body}");
    let answer = raw(at, &request).await;
    let words = "in the body: bundle.jobs: expected a list, found text";
    assert!(answer.contains(words), "{answer}");
    served.end().await;
}

// spec: METR-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_pools_templates_and_migrations_are_served() {
    let dir = TempDir::new().unwrap();
    let manager = manager(&dir).await;
    let instance = instance(&manager).await;
    let served = Served::new(instance.clone()).await;
    let request = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n";
    let page = raw(served.address, request).await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(
        page.contains("content-type: text/plain; version=0.0.4"),
        "{page}"
    );
    for line in [
        "greenroom_control_live 1\n",
        "# TYPE greenroom_placements_attempted_total counter\n",
        "greenroom_pool_nodes{pool=\"studio\"} 0\n",
        "greenroom_invariant_violations 0\n",
    ] {
        assert!(page.contains(line), "{line:?} is not in {page}");
    }
    let client = served.client();
    assert_eq!(client.pools().await.unwrap(), ["studio".into()]);
    assert!(client.templates().await.unwrap().is_empty());
    instance
        .set_template_images("news", vec!["img:1".to_owned()])
        .await
        .unwrap();
    let templates = client.templates().await.unwrap();
    assert_eq!(templates["news"], ["img:1"]);
    assert_eq!(client.migrations().await.unwrap(), []);
    // Nobody is known by that name, so nothing is told of it.
    assert!(client.standing(&["nix".into()]).await.unwrap().is_empty());
    // Each fault of a list comes by itself, so that it can be shown at its line.
    let hot_spares = serde_json::json!([{"pool": "nix"}, {"pool": "studio", "targetCount": -1}]);
    let call = ApiCall::UpdateHotSpareSpecs { hot_spares };
    let Err(ClientError::Refused { status, faults, .. }) = client.call(&call).await else {
        panic!("a refusal");
    };
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(status, 400);
    assert_eq!(paths, ["hotSpares[0].pool", "hotSpares[1].targetCount"]);
    let call = ApiCall::SetTemplateImages {
        template: "a\nb".into(),
        refs: Vec::new(),
    };
    let (status, code, _) = refused(client.call(&call).await);
    assert_eq!((status, code.as_str()), (400, "badRequest"));
    served.end().await;

    let nobody = Served::new(Nobody).await;
    let page = raw(nobody.address, request).await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(page.ends_with("greenroom_control_live 0\n"), "{page}");
    assert!(nobody.client().pools().await.is_err());
    nobody.end().await;
}

#[tokio::test]
async fn other_addresses_than_loopback_are_refused() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = serve(listener, Nobody, std::future::pending()).await;
    assert!(matches!(refused, Err(ServeError::NotLoopback(_))));
}
