//! Answers that end with the credential they rest on (SEC-04).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use greenroom_auth::Principal;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_tls::InUse;
use greenroom_types::call::Refusal;
use http_body::{Frame, SizeHint};
use tonic::body::Body;

use super::keyring::{Credential, Denied, Keyring};
use super::shares::Ticket;
use crate::clock::wall;

/// The wall clock is asked this often; it may be set while a stream is open.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A body that ends when `ended` resolves, and holds its caller's place and its connection's until then.
pub(super) struct Bounded {
    body: Body,
    ended: Option<Pin<Box<dyn Future<Output = Refusal> + Send>>>,
    over: bool,
    _held: (Option<Ticket>, Option<InUse>),
}

// === impl Bounded ===

impl Bounded {
    pub(super) fn new(
        body: Body,
        ended: Option<impl Future<Output = Refusal> + Send + 'static>,
        held: (Option<Ticket>, Option<InUse>),
    ) -> Self {
        Self {
            body,
            ended: ended.map(|ended| Box::pin(ended) as _),
            over: false,
            _held: held,
        }
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Some(ended) = &mut self.ended
            && let Poll::Ready(refusal) = ended.as_mut().poll(context)
        {
            self.over = true;
            // What stood behind it ends with it.
            self.body = Body::default();
            let answer = write_refusal(&refusal).into_http::<Body>();
            let mut trailers = answer.into_parts().0.headers;
            trailers.remove(http::header::CONTENT_TYPE);
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Resolves when a credential that held no longer does: its time is over, or the files that name it
/// have changed.
pub(super) async fn until_ended(
    keyring: Arc<Keyring>,
    credential: Credential,
    mut principal: Principal,
) -> Refusal {
    let mut changes = keyring.changes();
    loop {
        let now = wall();
        if principal.has_ended(now) {
            return Denied::Ended.refusal();
        }
        let left = principal.ends_at.map_or(LOOK_EVERY, |end| {
            let left = u64::try_from(end.since(now)).unwrap_or_default();
            Duration::from_millis(left).min(LOOK_EVERY)
        });
        let changed = tokio::select! {
            () = tokio::time::sleep(left) => false,
            changed = changes.changed() => changed.is_ok(),
        };
        if !changed {
            continue;
        }
        match keyring.check(&credential).await {
            Ok(now) if now.role == principal.role => principal = now,
            Ok(_) => return Denied::Unknown.refusal(),
            Err(denied) => return denied.refusal(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::settings::AuthSettings;

    /// A body of frames that the test sends.
    struct Frames(mpsc::UnboundedReceiver<&'static str>);

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = tonic::Status;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
            let next = self.0.poll_recv(context);
            next.map(|text| text.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    async fn frame(body: &mut Bounded) -> Option<Frame<Bytes>> {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        next.await.transpose().expect("no error")
    }

    // spec: SEC-04
    #[tokio::test]
    async fn a_stream_ends_unauthenticated_when_the_time_of_its_credential_is_over() {
        let rule = crate::settings::CertificateRole {
            subject: "CN=it".to_owned(),
            role: greenroom_auth::Role::Viewer,
        };
        let settings = AuthSettings {
            certificates: vec![rule],
            ..AuthSettings::default()
        };
        let keys = super::super::Keys::load(&settings).unwrap();
        let keyring = Arc::new(Keyring::new(settings, keys, String::new()));
        let credential = Credential::Certificate {
            subject: "CN=it".to_owned(),
            ends_at: wall().plus(100),
        };
        let principal = keyring.check(&credential).await.expect("it holds");
        let (frames, received) = mpsc::unbounded_channel();
        let ended = until_ended(Arc::clone(&keyring), credential, principal);
        let mut body = Bounded::new(Body::new(Frames(received)), Some(ended), (None, None));
        frames.send("one").unwrap();
        let first = frame(&mut body).await.expect("a frame");
        assert_eq!(first.into_data().unwrap(), Bytes::from_static(b"one"));

        let last = frame(&mut body).await.expect("trailers");
        let trailers = last.into_trailers().expect("trailers");
        assert_eq!(trailers["grpc-status"], "16");
        assert_eq!(trailers["greenroom-reason"], "bad_credentials");
        assert!(frame(&mut body).await.is_none());
        assert!(body.is_end_stream());
        assert!(frames.is_closed(), "what stood behind it is gone");
    }
}
