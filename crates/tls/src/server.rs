//! Listening: doors with or without TLS, whose connections come out of one stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::descriptors::Ceiling;
use crate::io::{Io, Peer};
use crate::places::Places;
use crate::{ALPN, Error, Identity, explain, provider};

/// A handshake takes no longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause when the system gives no more connections, so that the refusal does not keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Accepted connections that wait to be served.
const WAITING_MAX: usize = 64;
/// That places are short is told once in this time, however many come.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How a door speaks TLS. May be replaced while it is open; connections that stand keep what they
/// have.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

/// A place to listen.
#[derive(Debug)]
pub struct Door {
    /// The bound listener.
    pub listener: TcpListener,
    /// TLS; absent for one in the clear.
    pub tls: Option<watch::Receiver<ServerTls>>,
    /// Most connections at a time. One more takes the place of the one that was not in use for the
    /// longest ([`Peer::begin_use`]), and is closed at once where all are (LIM-05).
    pub connections_max: usize,
}

/// The connections of all doors. Dropping it closes the doors.
#[derive(Debug)]
pub struct Incoming {
    accepted: mpsc::Receiver<Io>,
    _tasks: JoinSet<()>,
}

// === impl ServerTls ===

impl ServerTls {
    /// TLS with this identity. With `clients` a client may show a certificate signed by one of them;
    /// it need not, but one that is shown must hold.
    ///
    /// # Errors
    /// The certificate and its key do not belong together.
    pub fn new(identity: &Identity, clients: &[CertificateDer<'static>]) -> Result<Self, Error> {
        let unusable = |error: rustls::Error| Error::Unusable(explain(&error));
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?;
        let builder = if clients.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for authority in clients {
                roots.add(authority.clone()).map_err(unusable)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                .allow_unauthenticated()
                .build()
                .map_err(|error| Error::Unusable(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder
            .with_single_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(unusable)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A session taken up again would show no certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }
}

/// Opens the doors.
pub fn incoming(doors: Vec<Door>) -> Incoming {
    let (accepted, receiver) = mpsc::channel(WAITING_MAX);
    let mut tasks = JoinSet::new();
    for (number, door) in doors.into_iter().enumerate() {
        tasks.spawn(attend(number, door, accepted.clone()));
    }
    Incoming {
        accepted: receiver,
        _tasks: tasks,
    }
}

async fn attend(number: usize, door: Door, accepted: mpsc::Sender<Io>) {
    let places = Places::new(door.connections_max);
    let ceiling = Ceiling::new();
    let mut shaking = JoinSet::new();
    let mut told = Told::default();
    loop {
        let (stream, address) = tokio::select! {
            came = door.listener.accept() => match came {
                Ok(came) => came,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            Some(_) = shaking.join_next() => continue,
            () = places.late() => {
                places.cut_late();
                continue;
            }
            () = accepted.closed() => return,
        };
        if ceiling.is_reached(&stream) {
            told.tell(|| {
                tracing::warn!(%address, "nearly all file descriptors are in use; a connection is closed, and the one that was idle the longest");
            });
            // The next to come finds its descriptor.
            places.vacate();
            continue;
        }
        let Some(place) = places.take() else {
            told.tell(|| {
                tracing::warn!(%address, max = door.connections_max, "too many connections, all in use; one is closed");
            });
            continue;
        };
        // Only latency is lost without it.
        let _ = stream.set_nodelay(true);
        let peer = Peer::apart(number, address);
        let Some(tls) = &door.tls else {
            if accepted.send(Io::clear(stream, peer, place)).await.is_err() {
                return;
            }
            continue;
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.borrow().0));
        let accepted = accepted.clone();
        shaking.spawn(async move {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)) => shaken,
                () = place.holder().leaving() => {
                    tracing::debug!(%address, "a TLS handshake was given up: its place was needed");
                    return;
                }
            };
            match shaken {
                Ok(Ok(stream)) => {
                    if let Some(io) = Io::tls(stream, peer, place) {
                        let _ = accepted.send(io).await;
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(%address, %error, "a TLS handshake failed");
                }
                Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
            }
        });
    }
}

/// When it was last told that places are short.
#[derive(Debug, Default)]
struct Told(Option<Instant>);

impl Told {
    fn tell(&mut self, say: impl FnOnce()) {
        let now = Instant::now();
        if self.0.is_none_or(|told| now - told >= TELL_EVERY) {
            self.0 = Some(now);
            say();
        }
    }
}

// === impl Incoming ===

impl futures::Stream for Incoming {
    type Item = io::Result<Io>;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut()
            .accepted
            .poll_recv(context)
            .map(|io| io.map(Ok))
    }
}
