//! A Manager of the wire alone: it answers what the test wrote down for it and keeps what it was asked.
//!
//! It has no rules of its own. The event stream is served as bytes, so that a script can hold kinds that
//! no build knows. Scripts that run out answer INTERNAL, which the SDK does not repeat.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use greenroom_proto::convert::call::{PROTOCOL_METADATA, REQUEST_ID_METADATA};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::convert::stream::{Encoded, Form, ServerCodec, encode};
use greenroom_proto::manager::manager_server::{Manager, ManagerServer};
use greenroom_proto::{common, manager};
use greenroom_sdk::types::Wall;
use greenroom_sdk::types::call::{Refusal, Status as RefusalStatus};
use greenroom_sdk::types::stream::{Stamped, StreamEvent};
use greenroom_sdk::{Client, Retry, Settings};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::{Bytes, Service, http};
use tonic::{Request, Response, Status};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// What one stream of events does, in its order.
pub(crate) enum Step {
    Send(Bytes),
    Fail(Status),
    /// Stay open without another word.
    Hold,
}

/// What a unary call does.
enum Answer {
    Give(Box<dyn Any + Send>),
    Refuse(Status),
    Hang,
}

/// A call as it came in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) method: &'static str,
    pub(crate) request_id: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) body: String,
}

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) url: String,
    state: Arc<State>,
}

struct State {
    hello: Mutex<manager::Hello>,
    answers: Mutex<BTreeMap<&'static str, VecDeque<Answer>>>,
    /// What a call answers when its script is over.
    otherwise: Mutex<BTreeMap<&'static str, Status>>,
    streams: Mutex<VecDeque<Vec<Step>>>,
    seen: Mutex<Vec<Seen>>,
    subscribed: Mutex<Vec<manager::EventStreamRequest>>,
    /// Number of calls that hang; a status channel ends when its number is raised.
    hanging: watch::Sender<usize>,
    generation: watch::Sender<u64>,
}

// === the test's side ===

impl Fake {
    /// Serves on a port of the kernel's choice, in the test's runtime.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(listener)
    }

    /// Serves on a listener of the test's.
    pub(crate) fn serve(listener: TcpListener) -> Self {
        let address: SocketAddr = listener.local_addr().unwrap();
        let fake = Self {
            url: format!("http://{address}"),
            state: Arc::new(State {
                hello: Mutex::new(manager::Hello {
                    version: Some(common::Version {
                        major_version: 1,
                        minor_version: 2,
                        build_number: 3,
                        ..Default::default()
                    }),
                    protocol_major: 1,
                    protocol_minor: 10,
                    member: "m1".to_owned(),
                    ..Default::default()
                }),
                answers: Mutex::default(),
                otherwise: Mutex::default(),
                streams: Mutex::default(),
                seen: Mutex::default(),
                subscribed: Mutex::default(),
                hanging: watch::Sender::new(0),
                generation: watch::Sender::new(0),
            }),
        };
        let routed = Routed {
            fake: fake.clone(),
            inner: ManagerServer::new(fake.clone()),
        };
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(routed)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        fake
    }

    pub(crate) fn hello(&self, change: impl FnOnce(&mut manager::Hello)) {
        change(&mut self.state.hello.lock().unwrap());
    }

    pub(crate) fn give<T: Send + 'static>(&self, method: &'static str, answer: T) {
        self.script(method, Answer::Give(Box::new(answer)));
    }

    pub(crate) fn refuse(&self, method: &'static str, status: Status) {
        self.script(method, Answer::Refuse(status));
    }

    /// Refuses every call that is not scripted.
    pub(crate) fn refuse_always(&self, method: &'static str, status: Status) {
        self.state.otherwise.lock().unwrap().insert(method, status);
    }

    pub(crate) fn hang(&self, method: &'static str) {
        self.script(method, Answer::Hang);
    }

    fn script(&self, method: &'static str, answer: Answer) {
        let mut answers = self.state.answers.lock().unwrap();
        answers.entry(method).or_default().push_back(answer);
    }

    pub(crate) fn stream(&self, steps: Vec<Step>) {
        self.state.streams.lock().unwrap().push_back(steps);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    pub(crate) fn subscribed(&self) -> Vec<manager::EventStreamRequest> {
        self.state.subscribed.lock().unwrap().clone()
    }

    /// Waits until a call hangs.
    pub(crate) async fn until_hanging(&self) {
        let mut hanging = self.state.hanging.subscribe();
        hanging.wait_for(|count| *count > 0).await.unwrap();
    }

    /// Waits until no call hangs: all were cancelled.
    pub(crate) async fn until_cancelled(&self) {
        let mut hanging = self.state.hanging.subscribe();
        hanging.wait_for(|count| *count == 0).await.unwrap();
    }

    /// Ends every open status channel, which is how a member is seen to go away.
    pub(crate) fn go_away(&self) {
        self.state.generation.send_modify(|number| *number += 1);
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(quick([self.url.clone()])).await.unwrap()
    }
}

/// A call that hangs; the server drops it when the caller cancels.
struct Hanging(Arc<State>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.send_modify(|count| *count -= 1);
    }
}

/// Settings whose pauses do not hold a test up.
pub(crate) fn quick(urls: impl IntoIterator<Item = String>) -> Settings {
    Settings {
        retry: Retry {
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(4),
            ..Retry::default()
        },
        ..Settings::new(urls)
    }
}

/// UNAVAILABLE as a transport says it, without a reason.
pub(crate) fn lost() -> Status {
    Status::unavailable("connection reset")
}

pub(crate) fn refusal(status: RefusalStatus, reason: &str) -> Status {
    write_refusal(&Refusal::new(status, reason, "no").with("path", "job.role"))
}

pub(crate) fn event(epoch: &str, seq: u64, event: StreamEvent) -> Step {
    let stamped = Stamped {
        seq,
        at: Wall(1_000),
        event,
    };
    let form = Form {
        minor: 10,
        history_limit: 0,
    };
    Step::Send(encode(epoch, &stamped, form).unwrap())
}

// === the wire's side ===

impl Fake {
    fn note<M: std::fmt::Debug>(&self, method: &'static str, request: &Request<M>) {
        let text = |name: &str| {
            let value = request.metadata().get(name)?;
            Some(value.to_str().ok()?.to_owned())
        };
        self.state.seen.lock().unwrap().push(Seen {
            method,
            request_id: text(REQUEST_ID_METADATA),
            protocol: text(PROTOCOL_METADATA),
            body: format!("{:?}", request.get_ref()),
        });
    }

    async fn answer<T: 'static>(
        &self,
        method: &'static str,
        request: &Request<impl std::fmt::Debug>,
    ) -> Result<T, Status> {
        self.note(method, request);
        let next = {
            let mut answers = self.state.answers.lock().unwrap();
            answers.get_mut(method).and_then(VecDeque::pop_front)
        };
        match next {
            Some(Answer::Give(answer)) => Ok(*answer.downcast().expect("an answer of its type")),
            Some(Answer::Refuse(status)) => Err(status),
            Some(Answer::Hang) => {
                self.state.hanging.send_modify(|count| *count += 1);
                let _hanging = Hanging(self.state.clone());
                std::future::pending().await
            }
            None => {
                let otherwise = self.state.otherwise.lock().unwrap().get(method).cloned();
                let over = || Status::internal(format!("the script of {method} is over"));
                Err(otherwise.unwrap_or_else(over))
            }
        }
    }
}

#[tonic::async_trait]
impl Manager for Fake {
    async fn create_status_channel(
        &self,
        _: Request<()>,
    ) -> Result<Response<tonic::codegen::BoxStream<manager::NorskStatusEvent>>, Status> {
        let hello = self.state.hello.lock().unwrap().clone();
        let hello = manager::NorskStatusEvent {
            message: Some(manager::norsk_status_event::Message::Hello(hello)),
        };
        let mut generation = self.state.generation.subscribe();
        generation.mark_unchanged();
        let stay = async move {
            let _ = generation.changed().await;
        };
        Ok(Response::new(Box::pin(
            tokio_stream::once(Ok(hello)).chain(silent_until(stay)),
        )))
    }

    async fn create_job(
        &self,
        request: Request<manager::Job>,
    ) -> Result<Response<manager::JobHash>, Status> {
        self.answer("CreateJob", &request).await.map(Response::new)
    }

    async fn start_job(
        &self,
        request: Request<manager::StartJobRequest>,
    ) -> Result<Response<()>, Status> {
        self.answer("StartJob", &request).await.map(Response::new)
    }

    async fn create_bundle(
        &self,
        request: Request<manager::CreateBundleRequest>,
    ) -> Result<Response<manager::CreateBundleResponse>, Status> {
        self.answer("CreateBundle", &request)
            .await
            .map(Response::new)
    }

    async fn get_bundle(
        &self,
        request: Request<manager::GetBundleRequest>,
    ) -> Result<Response<manager::GetBundleResponse>, Status> {
        self.answer("GetBundle", &request).await.map(Response::new)
    }

    async fn list_nodes(
        &self,
        request: Request<manager::ListNodesRequest>,
    ) -> Result<Response<manager::ListNodesResponse>, Status> {
        self.answer("ListNodes", &request).await.map(Response::new)
    }

    async fn register_cluster_node(
        &self,
        request: Request<manager::RegisterClusterNodeRequest>,
    ) -> Result<Response<manager::RegisterClusterNodeResponse>, Status> {
        self.answer("RegisterClusterNode", &request)
            .await
            .map(Response::new)
    }

    async fn job_search(
        &self,
        request: Request<manager::JobSearchRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<manager::CurrentJob>>, Status> {
        let found: Vec<manager::CurrentJob> = self.answer("JobSearch", &request).await?;
        Ok(Response::new(Box::pin(tokio_stream::iter(
            found.into_iter().map(Ok),
        ))))
    }
}

/// The service with its event stream taken out and served as bytes.
#[derive(Clone)]
struct Routed {
    fake: Fake,
    inner: ManagerServer<Fake>,
}

struct Events(Fake);

impl tonic::server::NamedService for Routed {
    const NAME: &'static str = "norsk.api.manager.Manager";
}

impl Service<http::Request<tonic::body::Body>> for Routed {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path().ends_with("/EventStream") {
            let fake = self.fake.clone();
            return Box::pin(async move {
                let mut grpc = tonic::server::Grpc::new(ServerCodec);
                Ok(grpc.server_streaming(Events(fake), request).await)
            });
        }
        Box::pin(Service::call(&mut self.inner, request))
    }
}

impl tonic::server::ServerStreamingService<manager::EventStreamRequest> for Events {
    type Response = Encoded;
    type ResponseStream = BoxStream<Result<Encoded, Status>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<manager::EventStreamRequest>) -> Self::Future {
        let fake = self.0.clone();
        Box::pin(async move {
            fake.note("EventStream", &request);
            fake.state
                .subscribed
                .lock()
                .unwrap()
                .push(request.into_inner());
            let steps = fake.state.streams.lock().unwrap().pop_front();
            let steps = steps.ok_or_else(|| Status::internal("no stream is scripted"))?;
            let (sent, received) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                for step in steps {
                    let item = match step {
                        Step::Send(body) => Ok(Encoded {
                            body,
                            ..Encoded::default()
                        }),
                        Step::Fail(status) => Err(status),
                        Step::Hold => return sent.closed().await,
                    };
                    if sent.send(item).await.is_err() {
                        return;
                    }
                }
            });
            let stream: Self::ResponseStream = Box::pin(ReceiverStream::new(received));
            Ok(Response::new(stream))
        })
    }
}

/// A stream without items that ends when `end` does.
fn silent_until<T: Send + 'static>(
    end: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<Result<T, Status>> {
    let (items, received) = tokio::sync::mpsc::channel::<Result<T, Status>>(1);
    tokio::spawn(async move {
        tokio::select! {
            () = end => {}
            () = items.closed() => {}
        }
        drop(items);
    });
    Box::pin(ReceiverStream::new(received))
}
