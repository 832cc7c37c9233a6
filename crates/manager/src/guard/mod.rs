//! What stands before every call: who is it, and may it do this (SEC-01 to SEC-04)?
//!
//! The guard looks at the path, the credential and the door the connection came in by. What passes
//! carries its [`Principal`] to the handler; what does not never reaches one. A call whose credential
//! ends while it streams is ended (SEC-04).

mod access;
mod bounded;
mod doorkeeper;
mod keyring;
mod shares;

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use greenroom_auth::{Principal, Role};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_tls::{InUse, Peer};
use greenroom_types::call::{Refusal, Status};
use http::{Extensions, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use self::access::Access;
use self::bounded::{Bounded, until_ended};
use self::keyring::{Credential, Denied};
use self::shares::{Kind, Shares, Ticket};

pub(crate) use doorkeeper::Doorkeeper;
pub(crate) use keyring::{Keyring, Keys};

/// A call that names no deadline gets this long (LIM-06).
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Guards every call.
#[derive(Clone, Debug)]
pub(crate) struct Guard(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    keyring: Arc<Keyring>,
    /// For each door whether it asks for credentials.
    asks: Vec<bool>,
    doorkeeper: Doorkeeper,
    shares: Shares,
}

/// A service behind the guard.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    guard: Guard,
    inner: S,
}

/// A call that may go on.
struct Pass {
    /// The credential that it rests on; none where none was asked for.
    credential: Option<(Credential, Principal)>,
    /// Its place among the caller's; none for what is open to everybody.
    ticket: Option<Ticket>,
    /// Keeps the connection its place. What is open to everybody does not: a stranger would keep out
    /// callers with it.
    in_use: Option<InUse>,
    is_stream: bool,
}

// === impl Guard ===

impl Guard {
    pub(crate) fn new(keyring: Arc<Keyring>, asks: Vec<bool>) -> Self {
        Self(Arc::new(Parts {
            keyring,
            asks,
            doorkeeper: Doorkeeper::default(),
            shares: Shares::default(),
        }))
    }

    async fn admit<B>(&self, request: &mut Request<B>) -> Result<Pass, Refusal> {
        let path = request.uri().path();
        let access = access::of(path);
        let kind = access::kind(path);
        let is_stream = kind == Kind::Stream;
        if access == Some(Access::Open) {
            return Ok(Pass {
                credential: None,
                ticket: None,
                in_use: None,
                is_stream,
            });
        }
        let peer = request.extensions().get::<Peer>();
        let asks = peer.is_none_or(|peer| self.0.asks.get(peer.door).copied().unwrap_or(true));
        let (credential, principal, caller) = if asks {
            let address = address(request.extensions());
            let credential = Credential::of(request.headers(), peer);
            let (credential, principal) = self.check(credential, address).await?;
            let caller = principal.name.clone();
            (Some(credential), principal, caller)
        } else {
            // Whoever may open this door is an admin (SEC-01), and each connection is a caller.
            let caller = peer.map(|peer| peer.address.to_string());
            let principal = Principal {
                name: "loopback".to_owned(),
                role: Role::Admin,
                ends_at: None,
            };
            (None, principal, caller.unwrap_or_default())
        };
        match access {
            Some(Access::Role(needed)) if principal.role.covers(needed) => {}
            Some(Access::Role(needed)) => {
                let Principal { name, role, .. } = &principal;
                return Err(role_required("this call", needed, name, *role));
            }
            Some(Access::Open) | None => return Err(unserved(request.uri().path())),
        }
        let ticket = self.0.shares.take(&caller, kind, Instant::now())?;
        let in_use = request.extensions().get().and_then(Peer::begin_use);
        request.extensions_mut().insert(principal.clone());
        Ok(Pass {
            credential: credential.map(|credential| (credential, principal)),
            ticket: Some(ticket),
            in_use,
            is_stream,
        })
    }

    async fn check(
        &self,
        credential: Result<Credential, Denied>,
        address: IpAddr,
    ) -> Result<(Credential, Principal), Refusal> {
        let Parts {
            keyring,
            doorkeeper,
            ..
        } = &*self.0;
        // A credential that is known to hold passes even where others guess at the same address.
        let print = credential.as_ref().map_or([0; 32], Credential::print);
        let outcome = match credential {
            Ok(credential) => match keyring.check_at_once(&credential) {
                Some(Ok(principal)) => return Ok((credential, principal)),
                Some(Err(denied)) => Err(denied),
                None => {
                    doorkeeper.refuse_closed(address, Instant::now())?;
                    let checked = keyring.check(&credential).await;
                    checked.map(|principal| (credential, principal))
                }
            },
            Err(denied) => Err(denied),
        };
        if outcome.is_err() {
            doorkeeper.refuse_closed(address, Instant::now())?;
        }
        outcome.map_err(|denied| {
            if denied != Denied::Missing {
                tracing::warn!(%address, why = %denied, "a caller's credential does not hold");
                doorkeeper.note_credential(address, print, Instant::now());
            }
            denied.refusal()
        })
    }
}

/// Names of the services that are served.
pub(crate) fn services() -> impl Iterator<Item = &'static str> {
    access::services()
}

/// Whether there is a call at this path.
pub(crate) fn is_served(path: &str) -> bool {
    access::of(path).is_some()
}

/// Where a call came from; calls that came over no connection come from this machine.
pub(crate) fn address(extensions: &Extensions) -> IpAddr {
    let peer = extensions.get::<Peer>();
    peer.map_or(IpAddr::from([127, 0, 0, 1]), |peer| peer.address.ip())
}

/// A credential of this name has another role than what is asked for needs.
pub(crate) fn role_required(what: &str, needed: Role, name: &str, role: Role) -> Refusal {
    let message =
        format!("{what} needs the role {needed}; the credential {name:?} has the role {role}");
    let refusal = Refusal::new(Status::PermissionDenied, "role_required", message);
    refusal.with("role", needed.as_str())
}

fn too_late() -> Refusal {
    Refusal::new(
        Status::DeadlineExceeded,
        "deadline_exceeded",
        "the call took longer than the 60 s of calls without a deadline; whether it took effect \
         is unknown",
    )
}

fn unserved(path: &str) -> Refusal {
    Refusal::new(
        Status::Unimplemented,
        "unknown_call",
        format!("{path} is no call of this Manager"),
    )
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;
    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            guard: self.clone(),
            inner,
        }
    }
}

// === impl Guarded ===

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let guard = self.guard.clone();
        // The one that said it is ready takes the call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let pass = match guard.admit(&mut request).await {
                Ok(pass) => pass,
                Err(refusal) => return Ok(write_refusal(&refusal).into_http()),
            };
            let has_deadline = request.headers().contains_key("grpc-timeout");
            let answer = if pass.is_stream || has_deadline {
                inner.call(request).await?
            } else {
                // Dropped before its commit began, a call has no effect (API-06).
                match tokio::time::timeout(CALL_LIMIT, inner.call(request)).await {
                    Ok(answer) => answer?,
                    Err(_) => return Ok(write_refusal(&too_late()).into_http()),
                }
            };
            if !pass.is_stream {
                return Ok(answer);
            }
            let ended = pass.credential.map(|(credential, principal)| {
                until_ended(Arc::clone(&guard.0.keyring), credential, principal)
            });
            let held = (pass.ticket, pass.in_use);
            Ok(answer.map(|body| Body::new(Bounded::new(body, ended, held))))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt as _;

    use super::*;
    use crate::settings::AuthSettings;

    /// A stream that goes on.
    struct Endless;

    impl http_body::Body for Endless {
        type Data = bytes::Bytes;
        type Error = tonic::Status;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, tonic::Status>>> {
            Poll::Pending
        }
    }

    /// The guard of a door that asks for nothing.
    fn guard() -> Guard {
        let settings = AuthSettings::default();
        let keyring = Keyring::new(settings, Keys::default(), String::new());
        Guard::new(Arc::new(keyring), vec![false])
    }

    fn call(name: &str) -> Request<Body> {
        let mut request = Request::new(Body::default());
        let path = format!("/norsk.api.manager.Manager/{name}");
        *request.uri_mut() = path.parse().unwrap();
        let peer = Peer::apart(0, ([127, 0, 0, 1], 1).into());
        request.extensions_mut().insert(peer);
        request
    }

    fn reason(answer: &Response<Body>) -> &str {
        let reason = answer.headers().get("greenroom-reason");
        reason.map_or("", |reason| reason.to_str().unwrap())
    }

    // spec: LIM-06
    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_deadline_gets_sixty_seconds_and_no_other_is_cut_off() {
        let slow = guard().layer(tower::service_fn(|_: Request<Body>| async {
            tokio::time::sleep(CALL_LIMIT + Duration::from_secs(1)).await;
            Ok::<_, Infallible>(Response::new(Body::default()))
        }));
        let late = slow.clone().oneshot(call("CreateJob")).await.unwrap();
        assert_eq!(reason(&late), "deadline_exceeded");
        assert_eq!(late.headers()["grpc-status"], "4");
        let stream = slow.clone().oneshot(call("EventStream")).await.unwrap();
        assert_eq!(reason(&stream), "");
        let mut own = call("CreateJob");
        let value = http::HeaderValue::from_static("90S");
        own.headers_mut().insert("grpc-timeout", value);
        assert_eq!(reason(&slow.oneshot(own).await.unwrap()), "");
    }

    // spec: LIM-05
    #[tokio::test]
    async fn a_stream_holds_its_place_until_it_ends_and_stops_pass_all_the_same() {
        let served = guard().layer(tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::new(Endless)))
        }));
        let ask = async |name: &str| served.clone().oneshot(call(name)).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..64 {
            let stream = ask("EventStream").await;
            assert_eq!(reason(&stream), "");
            streams.push(stream);
        }
        let refused = ask("EventStream").await;
        assert_eq!(reason(&refused), "slow_down");
        assert_eq!(refused.headers()["grpc-status"], "8");
        assert_eq!(reason(&ask("StopJob").await), "");
        streams.pop();
        assert_eq!(reason(&ask("EventStream").await), "");
    }
}
