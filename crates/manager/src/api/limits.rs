//! What stands around every handler: a request that is too large is refused before a handler sees it,
//! and gets its status and reason here (LIM-01); a handler that panics ends its own call and nothing
//! else (LIM-09).

use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_types::call::{Refusal, Status};
use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

/// Turns the transport's OUT_OF_RANGE for an oversized message into RESOURCE_EXHAUSTED
/// `message_too_large`, and a panic into INTERNAL `internal`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitsLayer;

#[derive(Clone, Debug)]
pub(crate) struct Limits<S>(S);

const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: &str = "8";

impl<S> Layer<S> for LimitsLayer {
    type Service = Limits<S>;
    fn layer(&self, inner: S) -> Limits<S> {
        Limits(inner)
    }
}

impl<S, B, R> Service<Request<B>> for Limits<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: Default,
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
            // The state behind a handler is either behind the store or behind locks that shrug off a
            // panic, so nothing half done is seen by others.
            let mut answer = match AssertUnwindSafe(answer).catch_unwind().await {
                Ok(answer) => answer?,
                Err(panic) => return Ok(internal(&*panic)),
            };
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

/// The answer to a call whose handler panicked.
fn internal<R: Default>(panic: &(dyn std::any::Any + Send)) -> Response<R> {
    let id = greenroom_auth::hex(&greenroom_auth::random::<8>());
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    tracing::error!(id, panic = text, "a handler panicked");
    let message = format!("the Manager failed at this call; see {id} in its log");
    write_refusal(&Refusal::new(Status::Internal, "internal", message)).into_http()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt as _;

    use super::*;

    // spec: LIM-09
    #[tokio::test]
    async fn a_handler_that_panics_answers_internal_and_the_next_call_is_served() {
        let handler = tower::service_fn(|request: Request<bool>| async move {
            assert!(*request.body(), "this call is broken");
            Ok::<_, Infallible>(Response::new(String::from("served")))
        });
        let service = LimitsLayer.layer(handler);
        let broken = service.clone().oneshot(Request::new(false)).await;
        let broken = broken.expect("an answer");
        assert_eq!(broken.headers()["grpc-status"], "13");
        assert_eq!(broken.headers()["greenroom-reason"], "internal");
        let message = broken.headers()["grpc-message"].to_str().expect("text");
        assert!(
            !message.contains("broken"),
            "what went wrong is for the log: {message}"
        );
        let whole = service
            .oneshot(Request::new(true))
            .await
            .expect("an answer");
        assert_eq!(whole.body(), "served");
    }
}
