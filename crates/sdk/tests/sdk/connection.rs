use std::time::Duration;

use greenroom_sdk::proto::manager::ListNodesResponse;
use greenroom_sdk::types::call::{Call, Status as RefusalStatus};
use greenroom_sdk::{Client, ConnectionState, Error, Protocol, Settings, Skew, Token, TokenSource};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::fake::{Fake, quick, refusal};

// spec: SDK-01, SDK-03
#[tokio::test]
async fn connecting_gives_the_hello() {
    let fake = Fake::start().await;
    fake.hello(|hello| {
        hello.protocol_minor = 12;
        hello.features = vec!["kv".to_owned()];
    });
    let client = fake.client().await;
    assert_eq!(client.version().to_string(), "1.2.3");
    let hello = client.hello();
    assert_eq!((hello.member.as_str(), hello.features.len()), ("m1", 1));
    let theirs = Protocol {
        major: 1,
        minor: 12,
    };
    let ours = Protocol::OURS;
    assert_eq!(hello.skew(), Skew::ServerNewer { ours, theirs });
    assert_eq!(client.state(), ConnectionState::Ready);
}

// spec: SDK-01
#[tokio::test]
async fn a_failed_connect_names_the_cause_for_each_url() {
    // A port that was free a moment ago and has no listener.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let other = Fake::start().await;
    other.hello(|hello| hello.protocol_major = 2);

    let urls = [refused, other.url.clone()];
    let Err(Error::Connect(failures)) = Client::connect(quick(urls.clone())).await else {
        panic!("connected");
    };
    let told: Vec<_> = failures.iter().map(|failure| failure.url.clone()).collect();
    assert_eq!(told, urls);
    assert!(failures[0].cause.contains("refused"), "{}", failures[0]);
    assert!(failures[1].cause.contains("protocol 2."), "{}", failures[1]);
}

// spec: SDK-01
#[tokio::test]
async fn a_listener_that_never_says_a_word_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings {
        connect_timeout: Duration::from_millis(50),
        ..quick([format!("http://{}", silent.local_addr().unwrap())])
    };
    let Err(Error::Connect(failures)) = Client::connect(settings).await else {
        panic!("connected");
    };
    assert!(
        failures[0].cause.contains("within 50 ms"),
        "{}",
        failures[0]
    );
}

// spec: SDK-01
#[tokio::test]
async fn a_later_url_is_used_when_an_earlier_one_fails() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let fake = Fake::start().await;
    let client = Client::connect(quick([refused, fake.url.clone()]))
        .await
        .unwrap();
    assert_eq!(client.hello().member, "m1");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_anything_is_dialled() {
    for urls in [
        vec![],
        vec!["https://a:1".to_owned()],
        vec!["localhost:6789".to_owned()],
        vec!["ftp://localhost:6789".to_owned()],
    ] {
        let error = Client::connect(quick(urls)).await.unwrap_err();
        assert!(
            matches!(error, Error::Settings { key: "urls", .. }),
            "{error}"
        );
    }
    // A token stays on this machine unless TLS keeps it.
    let mut settings = quick(["http://manager.example:6789".to_owned()]);
    settings.access.token = Some(TokenSource::Text(Token::new("gra_x")));
    let error = Client::connect(settings).await.unwrap_err();
    assert!(error.to_string().contains("use https"), "{error}");
}

// spec: SDK-03, SDK-07
#[tokio::test]
async fn a_break_is_mended_with_a_new_hello() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mut states = client.states();
    assert_eq!(states.next().await, Some(ConnectionState::Ready));
    fake.hello(|hello| {
        hello.member = "m2".to_owned();
        hello.protocol_minor = 4;
    });
    fake.go_away();
    let mut passed = Vec::new();
    while passed.last() != Some(&ConnectionState::Ready) {
        passed.push(states.next().await.unwrap());
    }
    let hello = client.hello();
    assert_eq!((hello.member.as_str(), hello.protocol.minor), ("m2", 4));
}

/// A server in a runtime of its own, whose end takes its connections with it.
fn serve(listener: std::net::TcpListener, member: &'static str) -> (Runtime, Fake) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let fake =
        runtime.block_on(async move { Fake::serve(TcpListener::from_std(listener).unwrap()) });
    fake.hello(|hello| hello.member = member.to_owned());
    (runtime, fake)
}

fn bind(address: &str) -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn kill(server: Runtime) {
    server.shutdown_timeout(Duration::from_secs(10));
}

fn runtime_of_client() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

// spec: SDK-07
#[test]
fn a_killed_server_is_noticed_and_found_again_at_its_port() {
    let listener = bind("127.0.0.1:0");
    let address = listener.local_addr().unwrap().to_string();
    let (server, fake) = serve(listener, "first");
    let ours = runtime_of_client();
    let client = ours.block_on(fake.client());
    let mut states = client.states();
    kill(server);
    ours.block_on(async {
        while states.next().await != Some(ConnectionState::TransientFailure) {}
    });
    let error = ours.block_on(client.list_nodes()).unwrap_err();
    let Error::ConnectionLost {
        outcome_unknown: false,
        ..
    } = error
    else {
        panic!("{error:?}");
    };

    let (_server, _fake) = serve(bind(&address), "second");
    ours.block_on(async { while states.next().await != Some(ConnectionState::Ready) {} });
    assert_eq!(client.hello().member, "second");
}

// spec: SDK-05
#[test]
fn a_call_whose_server_is_killed_under_it_is_repeated_under_its_id() {
    let listener = bind("127.0.0.1:0");
    let address = listener.local_addr().unwrap().to_string();
    let (server, first) = serve(listener, "first");
    let ours = runtime_of_client();
    let client = ours.block_on(first.client());
    first.hang("CreateJob");
    let pending = ours.spawn(async move { client.create_job(Default::default()).await });
    ours.block_on(first.until_hanging());
    kill(server);

    let (_server, second) = serve(bind(&address), "second");
    second.give("CreateJob", greenroom_proto::manager::JobHash { hash: 7 });
    assert_eq!(ours.block_on(pending).unwrap(), Ok(7));
    assert_eq!(second.seen()[0].request_id, first.seen()[0].request_id);
}

// spec: SDK-05, SDK-07
#[test]
fn a_call_right_after_its_connection_was_closed_while_idle_is_made_once_over_another() {
    let listener = bind("127.0.0.1:0");
    let address = listener.local_addr().unwrap().to_string();
    let (server, first) = serve(listener, "first");
    let ours = runtime_of_client();
    let client = ours.block_on(first.client());
    kill(server);
    let (_server, second) = serve(bind(&address), "second");
    second.give("CreateJob", greenroom_proto::manager::JobHash { hash: 7 });
    second.give("ListNodes", ListNodesResponse::default());
    // The client's tasks run with its calls alone: it has not seen yet that its connection is gone.
    assert_eq!(client.state(), ConnectionState::Ready);
    let made = ours.block_on(client.create_job(Default::default()));
    assert_eq!((made, first.seen().len()), (Ok(7), 0));
    assert_eq!(ours.block_on(client.list_nodes()), Ok(Vec::new()));
    let seen: Vec<_> = second.seen().iter().map(|seen| seen.method).collect();
    assert_eq!(seen, ["CreateJob", "ListNodes"]);
}

// spec: SDK-10
#[tokio::test]
async fn closing_ends_pending_calls_and_twice_is_fine() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.hang("CreateJob");
    let caller = client.clone();
    let pending = tokio::spawn(async move { caller.call(Call::CreateJob(Box::default())).await });
    fake.until_hanging().await;
    client.close();
    client.close();
    let error = pending.await.unwrap().unwrap_err();
    assert_eq!(
        error,
        Error::Cancelled {
            method: "CreateJob",
            outcome_unknown: true
        }
    );
    let mut states = client.states();
    assert_eq!(states.next().await, Some(ConnectionState::Shutdown));
    assert_eq!(states.next().await, None);
    let error = client.list_nodes().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Cancelled {
                outcome_unknown: false,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(client.raw().is_err());
}

// spec: SDK-11
#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server_and_says_what_is_known() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let cancelled = |method, outcome_unknown| Error::Cancelled {
        method,
        outcome_unknown,
    };
    let stop = CancellationToken::new();
    fake.hang("CreateJob");
    let caller = client.until(stop.clone());
    let pending = tokio::spawn(async move { caller.call(Call::CreateJob(Box::default())).await });
    fake.until_hanging().await;
    stop.cancel();
    let error = pending.await.unwrap().unwrap_err();
    assert_eq!(error, cancelled("CreateJob", true));
    assert!(
        error
            .to_string()
            .ends_with("whether the call took effect is unknown")
    );
    fake.until_cancelled().await;

    // A call that only reads has no effect, and one that was not sent has none either.
    let stop = CancellationToken::new();
    fake.hang("ListNodes");
    let caller = client.until(stop.clone());
    let pending = tokio::spawn(async move { caller.list_nodes().await });
    fake.until_hanging().await;
    stop.cancel();
    assert_eq!(
        pending.await.unwrap().unwrap_err(),
        cancelled("ListNodes", false)
    );
    fake.until_cancelled().await;
    let late = client.until(stop).call(Call::DeleteJob("a".into())).await;
    assert_eq!(late.unwrap_err(), cancelled("DeleteJob", false));
    assert!(!fake.seen().iter().any(|seen| seen.method == "DeleteJob"));

    // Other handles go on.
    fake.give("ListNodes", ListNodesResponse::default());
    assert_eq!(client.list_nodes().await.unwrap(), []);
}

// spec: SDK-10
#[tokio::test]
async fn dropping_the_last_handle_closes() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mut states = client.states();
    let other = client.clone();
    drop(client);
    assert_eq!(other.state(), ConnectionState::Ready);
    drop(other);
    while states.next().await != Some(ConnectionState::Shutdown) {}
}

// spec: SDK-02
#[tokio::test]
async fn the_raw_client_announces_the_protocol_too() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.refuse(
        "GetBundle",
        refusal(RefusalStatus::NotFound, "unknown_bundle"),
    );
    let status = client
        .raw()
        .unwrap()
        .get_bundle(greenroom_proto::manager::GetBundleRequest::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    assert_eq!(fake.seen()[0].protocol.as_deref(), Some("1.10"));
}
