//! Bytes as requests of every call of a real Manager, over gRPC: nothing may panic, and it goes on
//! serving.
#![no_main]

use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use greenroom_fuzz::{pieces, runtime};
use greenroom_proto::convert::stream::Raw;
use greenroom_testkit::TestServer;
use http::uri::PathAndQuery;
use libfuzzer_sys::fuzz_target;
use tonic::client::Grpc;
use tonic::transport::Channel;

/// A Manager is ended and replaced by a new one after so many inputs: what they make is kept.
const INPUTS: u32 = 5_000;
/// No call takes longer; a stream is left after its first message.
const PATIENCE: Duration = Duration::from_secs(30);

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(runtime);
static SERVED: Mutex<Option<Served>> = Mutex::new(None);

struct Served {
    server: TestServer,
    channel: Channel,
    inputs: u32,
}

fn calls() -> Vec<&'static str> {
    greenroom_proto::convert::call::calls()
        .map(|(name, _)| name)
        .collect()
}

async fn begin() -> Served {
    let server = TestServer::with_mock_nodes(1).await;
    server.create_mock_node("n", []).await.expect("a node");
    let client = server.client().await;
    client
        .create_job(greenroom_testkit::job("j"))
        .await
        .expect("a job");
    let endpoint = tonic::transport::Endpoint::from_shared(server.url()).expect("a url");
    let channel = endpoint.connect().await.expect("a connection");
    Served {
        server,
        channel,
        inputs: 0,
    }
}

async fn ask(channel: Channel, name: &str, bytes: Bytes) {
    let path = PathAndQuery::try_from(format!("/norsk.api.manager.Manager/{name}"));
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("the Manager serves");
    let asked = grpc.server_streaming(tonic::Request::new(bytes), path.expect("a path"), Raw);
    if let Ok(answer) = asked.await {
        let _ = answer.into_inner().message().await;
    }
}

fuzz_target!(|input: &[u8]| {
    let names = calls();
    let mut served = SERVED.lock().expect("no input panicked");
    RUNTIME.block_on(async {
        if served.as_ref().is_none_or(|it| it.inputs >= INPUTS) {
            *served = None;
            *served = Some(begin().await);
        }
        let Some(now) = served.as_mut() else { return };
        now.inputs += 1;
        for (number, bytes) in pieces(input) {
            let name = names[usize::from(number) % names.len()];
            // These wait on purpose; what they read is covered by the others.
            if matches!(name, "CreateStatusChannel" | "PauseLeases" | "ResumeLeases") {
                continue;
            }
            let asked = ask(now.channel.clone(), name, Bytes::copy_from_slice(bytes));
            let answered = tokio::time::timeout(PATIENCE, asked).await;
            assert!(
                answered.is_ok() || name == "RotateDiscoveryTierSecret",
                "{name} hangs"
            );
        }
        let _ = &now.server;
    });
});
