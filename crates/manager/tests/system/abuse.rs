//! Clients that behave badly: thousands of connections, bodies that never end, calls given up at any moment. Nobody
//! else may notice.

use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use greenroom_sdk::CallOptions;
use greenroom_sdk::types::call::{Call, Reply};
use greenroom_sdk::types::job::Job;
use greenroom_testkit::{TestManager, job, within};
use http_body::Frame;
use prost::bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

/// Connections that one listener takes (LIM-05).
const CONNECTIONS: usize = 4_096;
/// What HTTP/2 begins with, and empty settings.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// How many file descriptors this process may have.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let hard = line.and_then(|line| line.split_whitespace().nth(4));
    hard.and_then(|hard| hard.parse().ok()).unwrap_or(0)
}

// spec: LIM-05, LIM-10
#[tokio::test]
async fn of_thousands_of_connections_those_beyond_the_limit_are_closed_and_the_others_served() {
    if descriptors() < 2 * CONNECTIONS + 1_000 {
        // To the process's own stderr: what a passing test prints is not shown.
        writeln!(
            std::io::stderr(),
            "SKIPPED: too few file descriptors are allowed here"
        )
        .ok();
        return;
    }
    let manager = TestManager::start().await;
    let client = manager.client().await;
    client.create_job(job("before")).await.unwrap();
    let address = manager.address();
    let mut held = Vec::new();
    // The client has one.
    while held.len() < CONNECTIONS - 1 {
        let mut stream = within("a connection", TcpStream::connect(address))
            .await
            .unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, BEGINNING)
            .await
            .unwrap();
        held.push(stream);
    }
    // The Manager has taken all of them once the last one is answered.
    let last = held.last_mut().unwrap();
    within("the last one's settings", last.read_u8())
        .await
        .unwrap();

    let mut beyond = TcpStream::connect(address).await.unwrap();
    let read = within("the end of one too many", beyond.read(&mut [0; 64])).await;
    assert!(!matches!(read, Ok(1..)), "{read:?}");
    client
        .create_job(job("meanwhile"))
        .await
        .expect("who is in is served");
    drop(held);
    // Places are free again, when the Manager has seen the ends of some.
    within("a place", async {
        loop {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let said = tokio::io::AsyncWriteExt::write_all(&mut stream, BEGINNING).await;
            if said.is_ok() && stream.read_u8().await.is_ok() {
                return;
            }
        }
    })
    .await;
    for job_id in ["before", "meanwhile"] {
        assert!(client.job_by_id(job_id).await.unwrap().is_some());
    }
}

/// The beginning of a message that says it is longer, and then nothing, for ever.
struct Unfinished(Option<Bytes>);

impl http_body::Body for Unfinished {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

fn unfinished(method: &str, deadline: &str) -> http::Request<Body> {
    // Uncompressed, 100 bytes to come, two of them here.
    let begun = Bytes::from_static(&[0, 0, 0, 0, 100, 10, 98]);
    http::Request::post(format!("http://m/norsk.api.manager.Manager/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", deadline)
        .body(Body::new(Unfinished(Some(begun))))
        .unwrap()
}

// spec: LIM-05, LIM-06, LIM-09
#[tokio::test]
async fn calls_whose_message_never_ends_take_their_callers_share_and_end_at_their_deadline() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let (mut channel, _) = client.channel().unwrap();
    let mut slow = Vec::new();
    for number in 0..100 {
        let method = ["CreateJob", "KvCommit", "JobSearch", "EventStream"][number % 4];
        let ready = channel.ready().await.unwrap();
        // Sent, not waited for.
        slow.push(tokio::spawn(ready.call(unfinished(method, "300m"))));
    }
    client
        .create_job(job("meanwhile"))
        .await
        .expect("another call is served");
    for call in slow {
        let answer = within("the end of a slow call", call).await.unwrap();
        if let Ok(answer) = answer {
            let status = answer
                .headers()
                .get("grpc-status")
                .expect("a status at once");
            // Cancelled, or its deadline: it is over either way.
            assert!(["1", "4"].contains(&status.to_str().unwrap()), "{answer:?}");
        }
    }
    // Nothing of the share is lost: more at once than were open before.
    let calls: Vec<_> = (0..200)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.create_job(job(&format!("after-{number}"))).await })
        })
        .collect();
    for call in calls {
        within("a call", call).await.unwrap().unwrap();
    }
}

/// Polls a call so often, and gives it up.
async fn give_up_after<T>(call: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut call = pin!(call);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = polled {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}

// spec: API-06, API-07, LIM-05
#[tokio::test]
async fn a_call_given_up_at_any_moment_is_there_whole_or_not_at_all_and_takes_no_place() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let wanted = |number: usize| Job {
        description: format!("content {number}"),
        ..job(&format!("job-{number}"))
    };
    let create = |number: usize| {
        let options = CallOptions {
            request_id: Some(format!("request-{number}")),
            ..CallOptions::default()
        };
        client.call_with(Call::CreateJob(Box::new(wanted(number))), options)
    };
    // More than a caller may have at once: one that went on holding its place would be noticed.
    let (mut answered, mut kept) = (0, 0);
    for number in 0..600 {
        let answer = give_up_after(create(number), number).await;
        answered += usize::from(answer.is_some());
        if let Some(answer) = answer {
            answer.expect("it is not refused");
        }
        let there = client.job_by_id(format!("job-{number}")).await.unwrap();
        if let Some(there) = there {
            kept += 1;
            assert_eq!(there.job.job.description, format!("content {number}"));
        }
    }
    assert!(answered < 600 && kept >= answered, "{answered} {kept}");
    // The same again: what was done is told, what was not is done, and nothing twice.
    for number in 0..600 {
        let again = create(number).await.expect("the same call again");
        assert!(matches!(again, Reply::JobHash(_)), "{again:?}");
    }
    let all = client
        .job_search(greenroom_sdk::JobSearch::default())
        .await
        .unwrap();
    assert_eq!(all.len(), 600);
    let entries = all.iter().map(|it| it.job.history.len()).max();
    assert!(entries.is_some_and(|most| most <= 1), "{entries:?}");
}
