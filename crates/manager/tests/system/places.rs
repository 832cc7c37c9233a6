//! The places of a listener (LIM-05): who does nothing gives way to who comes, and is not hurt by it.

use greenroom_proto::health::HealthCheckRequest;
use greenroom_proto::health::health_client::HealthClient;
use greenroom_proto::manager::ListNodesRequest;
use greenroom_proto::manager::manager_client::ManagerClient;
use greenroom_sdk::{ConnectionState, EventSettings};
use greenroom_testkit::{TestManager, job, within};
use tokio::io::AsyncReadExt as _;
use tonic::transport::{Channel, Endpoint};

use crate::abuse::{begin, until_told_to_go};

const PLACES: usize = 8;

async fn small() -> TestManager {
    TestManager::start_with(|settings| settings.connections_max = PLACES).await
}

/// A client of the transport alone: it speaks HTTP/2 and answers pings, and makes no call by itself.
async fn plain(manager: &TestManager) -> Channel {
    let endpoint = Endpoint::from_shared(manager.url()).unwrap();
    within("a connection", endpoint.connect()).await.unwrap()
}

// spec: LIM-05
#[tokio::test]
async fn silent_connections_keep_out_nobody_and_streams_and_calls_go_on() {
    let manager = small().await;
    let (subscriber, quiet) = (manager.client().await, manager.client().await);
    let events = subscriber.event_stream(EventSettings::default()).await;
    let (_, mut events) = events.unwrap();
    let mut states = quiet.states();
    assert_eq!(states.next().await, Some(ConnectionState::Ready));

    let mut silent = Vec::new();
    let mut dead = begin(&manager).await;
    // What there is room for; each is there when it is connected, as the settings were exchanged.
    for _ in 0..PLACES {
        silent.push(plain(&manager).await);
    }
    // It answers no keepalive, so that it would end by itself if this took long.
    assert!(until_told_to_go(&mut dead).await);
    for _ in 0..PLACES {
        silent.push(plain(&manager).await);
    }

    let newcomer = manager.client().await;
    newcomer.create_job(job("made")).await.unwrap();
    within("the news of it", async {
        while let Some(item) = events.next().await {
            if format!("{item:?}").contains("made") {
                return;
            }
        }
        panic!("the stream ended");
    })
    .await;
    assert!(quiet.job_by_id("made").await.unwrap().is_some());
    assert_eq!(quiet.state(), ConnectionState::Ready);
    let moved = states.next();
    tokio::pin!(moved);
    let moved = std::future::poll_fn(|context| {
        std::task::Poll::Ready(moved.as_mut().poll(context).is_ready())
    });
    assert!(!moved.await, "its connection is the first one");

    // Those that lost their places come back when they have something to ask for.
    for channel in silent {
        let mut manager = ManagerClient::new(channel);
        let listed = manager.list_nodes(ListNodesRequest::default()).await;
        assert_eq!(listed.unwrap().into_inner().nodes, []);
    }
}

// spec: LIM-05
#[tokio::test]
async fn a_newcomer_is_closed_where_all_places_are_in_use_and_taken_when_one_is_free() {
    let manager = small().await;
    let mut clients = Vec::new();
    for _ in 0..PLACES {
        clients.push(manager.client().await);
    }
    let mut beyond = begin(&manager).await;
    let read = within("the end of one too many", beyond.read(&mut [0; 64])).await;
    assert!(!matches!(read, Ok(1..)), "{read:?}");
    clients[0].create_job(job("meanwhile")).await.unwrap();
    clients.pop();
    // The place is free when the Manager has seen the end of that client.
    within("a place", async {
        loop {
            let mut stream = begin(&manager).await;
            if stream.read_u8().await.is_ok() {
                return;
            }
        }
    })
    .await;
}

// spec: LIM-05
#[tokio::test]
async fn what_is_open_to_everybody_keeps_nobody_a_place() {
    let manager = small().await;
    let mut health = HealthClient::new(plain(&manager).await);
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut watched = watched.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    let mut clients = Vec::new();
    for _ in 0..PLACES {
        clients.push(manager.client().await);
    }
    for client in clients {
        assert_eq!(client.state(), ConnectionState::Ready);
        client.list_nodes().await.unwrap();
    }
}
