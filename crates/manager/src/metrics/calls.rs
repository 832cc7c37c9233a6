//! Counting calls by method and status, wherever the status stands: in the head of an answer without
//! a body, or behind the body.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::guard::is_served;

/// Ended calls by method and status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<BTreeMap<(String, &'static str), u64>>>);

/// Counts every call that comes through.
#[derive(Clone, Debug)]
pub(crate) struct CallsLayer(pub(crate) Tally);

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    tally: Tally,
    inner: S,
}

/// One call until its end. A call that is dropped without a status was cancelled.
#[derive(Debug)]
struct Open {
    tally: Tally,
    method: String,
    is_counted: bool,
}

/// A body that counts its call at its end.
struct Watched {
    body: Body,
    open: Open,
}

// === impl Tally ===

impl Tally {
    /// All counts so far.
    pub(crate) fn read(&self) -> BTreeMap<(String, &'static str), u64> {
        self.lock().clone()
    }

    fn count(&self, method: &str, code: Code) {
        let key = (method.to_owned(), name(code));
        *self.lock().entry(key).or_default() += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, &'static str), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status's standard name.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

// === impl Open ===

impl Open {
    /// Paths that are no call of the Manager count as one: whoever asks for them chooses their names.
    fn new(tally: &Tally, path: &str) -> Self {
        let method = if is_served(path) {
            path.trim_start_matches('/').to_owned()
        } else {
            "unknown".to_owned()
        };
        Self {
            tally: tally.clone(),
            method,
            is_counted: false,
        }
    }

    fn end(&mut self, code: Code) {
        if !self.is_counted {
            self.is_counted = true;
            self.tally.count(&self.method, code);
        }
    }

    /// Ends where a status stands among headers or trailers.
    fn end_by(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.end(status.code());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

impl<S> Layer<S> for CallsLayer {
    type Service = Counted<S>;
    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            tally: self.0.clone(),
            inner,
        }
    }
}

impl<S, B> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future =
        Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut open = Open::new(&self.tally, request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            open.end_by(answer.headers());
            if open.is_counted {
                return Ok(answer);
            }
            Ok(answer.map(|body| Body::new(Watched { body, open })))
        })
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.open.end_by(trailers);
                }
            }
            Poll::Ready(Some(Err(status))) => self.open.end(status.code()),
            Poll::Ready(None) => self.open.end(Code::Ok),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
