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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

/// Connections that one listener takes (LIM-05).
const CONNECTIONS: usize = 4_096;
/// The kind of an HTTP/2 frame that says that no more calls are taken (RFC 9113).
const GOAWAY: u8 = 7;
/// What HTTP/2 begins with, and empty settings.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection that has said how HTTP/2 begins and says nothing more.
pub(crate) async fn begin(manager: &TestManager) -> TcpStream {
    let connecting = TcpStream::connect(manager.address());
    let mut stream = within("a connection", connecting).await.unwrap();
    stream.write_all(BEGINNING).await.unwrap();
    stream
}

/// Reads frames until the connection is told to go, or ends without.
pub(crate) async fn until_told_to_go(stream: &mut TcpStream) -> bool {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return false;
        }
        let [a, b, c, kind, ..] = head;
        if kind == GOAWAY {
            return true;
        }
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut rest = vec![0; length as usize];
        if stream.read_exact(&mut rest).await.is_err() {
            return false;
        }
    }
}

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
async fn of_thousands_of_silent_connections_the_oldest_give_way_and_whoever_calls_is_served() {
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
    let mut held = Vec::new();
    // The client has one.
    while held.len() < CONNECTIONS - 1 {
        held.push(begin(&manager).await);
    }
    // The Manager has taken all of them once the last one is answered.
    let last = held.last_mut().unwrap();
    within("the last one's settings", last.read_u8())
        .await
        .unwrap();

    let newer = manager.client().await;
    newer.create_job(job("meanwhile")).await.unwrap();
    let end = within("the end of the oldest", until_told_to_go(&mut held[0])).await;
    assert!(end, "it is told before it is cut off");
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
