//! `norsk.api.manager.Manager` as it is served: EventStream with the codec that takes what is encoded already, every
//! other call by the generated code, which would encode an event for each stream (PERF-11).

use std::convert::Infallible;
use std::task::{Context, Poll};

use greenroom_proto::convert::stream::{Encoded, ServerCodec};
use greenroom_proto::manager::EventStreamRequest;
use greenroom_proto::manager::manager_server::ManagerServer;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tower::Service;

use super::ManagerApi;
use super::streams::Streaming;

const EVENT_STREAM: &str = "/norsk.api.manager.Manager/EventStream";

/// The whole service.
#[derive(Clone)]
pub(crate) struct Routed {
    api: ManagerApi,
    others: ManagerServer<ManagerApi>,
    message_max: usize,
}

/// The one call.
struct Events(ManagerApi);

// === impl Routed ===

impl Routed {
    /// Requests up to `message_max` bytes are read (LIM-01).
    pub(crate) fn new(api: ManagerApi, message_max: usize) -> Self {
        let others = ManagerServer::new(api.clone()).max_decoding_message_size(message_max);
        Self {
            api,
            others,
            message_max,
        }
    }
}

impl NamedService for Routed {
    const NAME: &'static str = <ManagerServer<ManagerApi> as NamedService>::NAME;
}

impl Service<http::Request<Body>> for Routed {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != EVENT_STREAM {
            return self.others.call(request);
        }
        let events = Events(self.api.clone());
        let mut grpc = Grpc::new(ServerCodec).max_decoding_message_size(self.message_max);
        Box::pin(async move { Ok(grpc.server_streaming(events, request).await) })
    }
}

// === impl Events ===

impl ServerStreamingService<EventStreamRequest> for Events {
    type Response = Encoded;
    type ResponseStream = Streaming<Encoded>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<EventStreamRequest>) -> Self::Future {
        let api = self.0.clone();
        Box::pin(async move { api.events(request).await.map(Response::new) })
    }
}
