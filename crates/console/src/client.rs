//! Client of the API, for the command line and for tests. One connection per request: the server is
//! on this machine, and a tool asks once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greenroom_auto::Recording;
use greenroom_placement::Findings;
use greenroom_policy::effect::PlacementInfo;
use greenroom_policy::getters::Admission;
use greenroom_policy::migration::MigrationState;
use greenroom_policy::settings::Fault;
use greenroom_policy::{ApiAnswer, ApiCall, Metrics};
use greenroom_types::bundle::Bundle;
use greenroom_types::{JobId, NodeId, PoolName, TemplateName};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::api::{
    BundleRequest, BundleRow, ErrorBody, HYDRATING, Health, Node, Pending, PlaceRequest, Placed,
    STARTING, Standing, Why,
};

/// Time for a connection; the server is on this machine.
const CONNECT: Duration = Duration::from_secs(2);
const ADMIT: &str = "/v1/admit";
const CALL: &str = "/v1/call";
const CALLBACKS: &str = "/v1/callbacks";
/// What does more than to tell something.
const CHANGING: [&str; 2] = [ADMIT, CALL];
/// Time for an answer: an acting call waits for the Manager, which has 30 s.
const ANSWER: Duration = Duration::from_secs(35);
/// A control plane that is starting is asked again after this pause,
const STARTING_PAUSE: Duration = Duration::from_millis(100);
/// and is to be in service within this time.
const STARTING_MAX: Duration = Duration::from_secs(20);
/// Longest answer taken: lists of ten thousand nodes with their inventories fit.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Longest server-sent event taken.
const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A client of one control plane.
#[derive(Clone, Debug)]
pub struct Client {
    /// `host:port`.
    address: String,
}

/// Why a request brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server was not reached; nothing was asked.
    #[error("{address}: {cause}; does the control plane run there?")]
    Connection {
        /// `host:port`.
        address: String,
        /// What went wrong.
        cause: String,
    },
    /// The server was asked, and the connection broke, or it took too long, before the whole answer was
    /// there: whether it did what it was asked is not known.
    #[error("{address}: the connection was lost before the answer: {cause}")]
    Lost {
        /// `host:port`.
        address: String,
        /// What went wrong.
        cause: String,
        /// Whether it was asked for more than to tell something.
        changes: bool,
    },
    /// Something else answers at the address: it does not speak HTTP/1.1, or not this API.
    #[error("{address}: what answers there is no control plane")]
    Stranger {
        /// `host:port`.
        address: String,
    },
    /// The server refused.
    #[error("{message} ({code})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Stable name.
        code: String,
        /// For people.
        message: String,
        /// Each fault of a list or of settings that were sent.
        faults: Vec<Fault>,
    },
    /// The answer is not what the API says.
    #[error("{address}: the answer cannot be read: {problem}")]
    Answer {
        /// `host:port`.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// One event of [`Client::callbacks`].
#[derive(Clone, Debug, PartialEq)]
pub struct CallbackEvent {
    /// Name of the callback, e.g. `onJobUpdated`; or `lagged`, or `ended`.
    pub name: String,
    /// Its content.
    pub data: serde_json::Value,
}

/// Callbacks as they come. Dropping it ends the connection.
#[derive(Debug)]
pub struct CallbackFeed {
    address: String,
    body: Incoming,
    buffer: Vec<u8>,
    _connection: AbortOnDropHandle<()>,
}

// === impl Client ===

impl Client {
    /// A client of the control plane at `host:port`. Nothing is connected yet.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }

    /// How the control plane stands.
    ///
    /// # Errors
    /// See [`ClientError`]; the same for every method.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get("/healthz").await
    }

    /// Where a job is and why, or what it waits for.
    ///
    /// # Errors
    /// `unknownJob` with status 404.
    pub async fn why(&self, job_id: &JobId) -> Result<Why, ClientError> {
        self.get(&format!("/v1/why/{}", escaped(job_id.as_str())))
            .await
    }

    /// Where a job would go now; nothing is done.
    ///
    /// # Errors
    /// `unknownBundle`, `unknownJob` with status 404.
    pub async fn place(&self, request: &PlaceRequest) -> Result<Placed, ClientError> {
        self.post("/v1/place", request).await
    }

    /// What is wrong with a bundle.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn validate(&self, bundle: Bundle) -> Result<Findings, ClientError> {
        self.post("/v1/validate", &BundleRequest { bundle }).await
    }

    /// Whether a bundle would find room now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn admit(&self, bundle: Bundle) -> Result<Admission, ClientError> {
        self.post(ADMIT, &BundleRequest { bundle }).await
    }

    /// Makes an acting call.
    ///
    /// # Errors
    /// The refusals of the policy and of the Manager, with their codes.
    pub async fn call(&self, call: &ApiCall) -> Result<ApiAnswer, ClientError> {
        self.post(CALL, call).await
    }

    /// Counters and gauges.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<Metrics, ClientError> {
        self.get("/v1/metrics").await
    }

    /// Jobs without a node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pending(&self) -> Result<Pending, ClientError> {
        self.get("/v1/pending").await
    }

    /// Placements of record, newest first, without traces.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn placements(&self) -> Result<Vec<PlacementInfo>, ClientError> {
        self.get("/v1/placements").await
    }

    /// The configured pools, in order.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pools(&self) -> Result<Vec<PoolName>, ClientError> {
        self.get("/v1/pools").await
    }

    /// The images of each template.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn templates(&self) -> Result<BTreeMap<TemplateName, Vec<String>>, ClientError> {
        self.get("/v1/templates").await
    }

    /// Migrations under way, and the last that ended, by the time of their beginning.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn migrations(&self) -> Result<Vec<MigrationState>, ClientError> {
        self.get("/v1/migrations").await
    }

    /// The last minutes as the parts of a scenario.
    ///
    /// # Errors
    /// `nothingRecorded` with status 409.
    pub async fn recording(&self, minutes: u64) -> Result<Recording, ClientError> {
        self.get(&format!("/v1/recording/{minutes}")).await
    }

    /// Nodes of the mirror.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.get("/v1/nodes").await
    }

    /// Nodes that the policy keeps new jobs off, by id, also those that are not there and that a cordon
    /// waits for (CORDON-01, CORDON-07).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cordons(&self) -> Result<Vec<NodeId>, ClientError> {
        self.get("/v1/cordons").await
    }

    /// How these nodes stand; those that are not known are left out.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn standing(
        &self,
        nodes: &[NodeId],
    ) -> Result<BTreeMap<NodeId, Standing>, ClientError> {
        self.post("/v1/standing", &nodes).await
    }

    /// Bundles of the mirror.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn bundles(&self) -> Result<Vec<BundleRow>, ClientError> {
        self.get("/v1/bundles").await
    }

    /// Callbacks from now on.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn callbacks(&self) -> Result<CallbackFeed, ClientError> {
        let (status, body, connection) = self.send(Method::GET, CALLBACKS, None).await?;
        if status != StatusCode::OK {
            let bytes = self.whole(CALLBACKS, body).await?;
            return Err(self.refused(status, &bytes));
        }
        Ok(CallbackFeed {
            address: self.address.clone(),
            body,
            buffer: Vec::new(),
            _connection: connection,
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, None).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.bad_answer(error))?;
        self.ask(Method::POST, path, Some(body)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let begun = Instant::now();
        loop {
            let asked = self.ask_once(method.clone(), path, body.clone());
            let answer = tokio::time::timeout(ANSWER, asked)
                .await
                .unwrap_or_else(|_| Err(self.lost(path, format!("no answer within {ANSWER:?}"))));
            match answer {
                Err(refused) if refused.is_early() && begun.elapsed() < STARTING_MAX => {
                    tokio::time::sleep(STARTING_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    async fn ask_once<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let (status, body, _connection) = self.send(method, path, body).await?;
        let bytes = self.whole(path, body).await?;
        if !status.is_success() {
            return Err(self.refused(status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|error| self.bad_answer(error))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Incoming, AbortOnDropHandle<()>), ClientError> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(&self.address))
            .await
            .map_err(|_| self.broken(format!("no connection within {CONNECT:?}")))?
            .map_err(|error| self.broken(error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // What breaks it shows in the request or in the body.
            let _ = connection.await;
        }));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.broken(error))?;
        let response = sender.send_request(request).await.map_err(|error| {
            if speaks_otherwise(&error) {
                ClientError::Stranger {
                    address: self.address.clone(),
                }
            } else {
                self.lost(path, error)
            }
        })?;
        let (head, body) = response.into_parts();
        Ok((head.status, body, connection))
    }

    async fn whole(&self, path: &str, body: Incoming) -> Result<Bytes, ClientError> {
        let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        whole
            .map(http_body_util::Collected::to_bytes)
            .map_err(|error| self.lost(path, error))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) => ClientError::Refused {
                status: status.as_u16(),
                code: error.code,
                message: error.message,
                faults: error.faults,
            },
            Err(error) => self.bad_answer(format!("status {status}: {error}")),
        }
    }

    fn broken(&self, cause: impl Into<BoxError>) -> ClientError {
        ClientError::Connection {
            address: self.address.clone(),
            cause: innermost(&*cause.into()),
        }
    }

    fn lost(&self, path: &str, cause: impl Into<BoxError>) -> ClientError {
        ClientError::Lost {
            address: self.address.clone(),
            cause: innermost(&*cause.into()),
            changes: CHANGING.contains(&path),
        }
    }

    fn bad_answer(&self, problem: impl ToString) -> ClientError {
        ClientError::Answer {
            address: self.address.clone(),
            problem: problem.to_string(),
        }
    }
}

// === impl ClientError ===

impl ClientError {
    /// The control plane is not in service yet, and did nothing of what it was asked.
    fn is_early(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == STARTING || code == HYDRATING)
    }
}

// === impl CallbackFeed ===

impl CallbackFeed {
    /// The next event; none when the server ended the stream.
    ///
    /// # Errors
    /// The connection broke, or the event cannot be read.
    pub async fn next(&mut self) -> Result<Option<CallbackEvent>, ClientError> {
        loop {
            while let Some(event) = take_event(&mut self.buffer) {
                if let Some(event) = event.map_err(|problem| self.bad(problem))? {
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                return Err(self.bad(format!("an event is larger than {EVENT_BYTES_MAX} bytes")));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => {
                    return Err(ClientError::Lost {
                        address: self.address.clone(),
                        cause: innermost(&error),
                        changes: false,
                    });
                }
            }
        }
    }

    fn bad(&self, problem: String) -> ClientError {
        ClientError::Answer {
            address: self.address.clone(),
            problem,
        }
    }
}

/// Takes one block of a server-sent stream from the front: an event, or nothing where the block was
/// a comment. None while there is no whole block.
fn take_event(buffer: &mut Vec<u8>) -> Option<Result<Option<CallbackEvent>, String>> {
    let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
    let block: Vec<u8> = buffer.drain(..end + 2).collect();
    Some(read_event(&block))
}

fn read_event(block: &[u8]) -> Result<Option<CallbackEvent>, String> {
    let text = std::str::from_utf8(block).map_err(|error| error.to_string())?;
    let mut name = String::new();
    let mut data: Vec<&str> = Vec::new();
    for line in text.lines() {
        match line.split_once(':') {
            Some(("event", value)) => name = value.trim_start().to_owned(),
            Some(("data", value)) => data.push(value.strip_prefix(' ').unwrap_or(value)),
            // Comments and fields of no use here.
            _ => {}
        }
    }
    if data.is_empty() {
        return Ok(None);
    }
    let data = serde_json::from_str(&data.join("\n")).map_err(|error| error.to_string())?;
    Ok(Some(CallbackEvent { name, data }))
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The innermost cause: those around it only repeat which part of the transport passed it on.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// True where the other side sent bytes that are no HTTP/1.1. Bytes that come ahead of the request,
/// as those of an HTTP/2 server do, cancel it, and where they were read first there is no connection
/// left to send it on.
fn speaks_otherwise(error: &hyper::Error) -> bool {
    let unexpected = || {
        let cause = std::error::Error::source(error);
        let told = cause.map(ToString::to_string).unwrap_or_default();
        told.contains("unexpected message") || told.contains("connection was not ready")
    };
    error.is_parse() || (error.is_canceled() && unexpected())
}

/// An id as one segment of a path.
fn escaped(id: &str) -> String {
    let mut path = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_whole_whatever_the_pieces() {
        let stream = b": keep\n\nevent: onJobDeleted\ndata: {\"a\":\ndata: 1}\n\nevent: lagged\ndata: {\"missed\":3}\n\n";
        let mut events = Vec::new();
        let mut buffer = Vec::new();
        for byte in stream {
            buffer.push(*byte);
            while let Some(event) = take_event(&mut buffer) {
                events.extend(event.unwrap());
            }
        }
        let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["onJobDeleted", "lagged"]);
        assert_eq!(events[0].data["a"], 1);
        assert!(buffer.is_empty());
    }

    #[test]
    fn an_id_stays_one_segment() {
        assert_eq!(escaped("news.0.enc"), "news.0.enc");
        assert_eq!(escaped("a/b?c ü"), "a%2Fb%3Fc%20%C3%BC");
    }
}
