//! A request that is too large is refused before a handler sees it; this gives the refusal its
//! status and reason (LIM-01).

use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

/// Turns the transport's OUT_OF_RANGE for an oversized message into RESOURCE_EXHAUSTED
/// `message_too_large`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OversizeLayer;

#[derive(Clone, Debug)]
pub(crate) struct Oversize<S>(S);

const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: &str = "8";

impl<S> Layer<S> for OversizeLayer {
    type Service = Oversize<S>;
    fn layer(&self, inner: S) -> Oversize<S> {
        Oversize(inner)
    }
}

impl<S, B, R> Service<Request<B>> for Oversize<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            let headers = answer.headers_mut();
            // No handler of ours answers OUT_OF_RANGE, so this is the transport's own.
            if headers
                .get("grpc-status")
                .is_some_and(|status| status == OUT_OF_RANGE)
            {
                headers.insert("grpc-status", HeaderValue::from_static(RESOURCE_EXHAUSTED));
                headers.insert(
                    greenroom_proto::status::REASON_TRAILER,
                    HeaderValue::from_static("message_too_large"),
                );
                headers.insert(
                    "grpc-message",
                    HeaderValue::from_static(
                        "the request is larger than 4 MiB, the most that is read",
                    ),
                );
            }
            Ok(answer)
        })
    }
}
