//! An accepted connection, in the clear or in TLS, and what is known of the other side.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::places::{Holder, InUse, Place};
use crate::{BINDING_LABEL, Binding};

/// How long the other side may take until it has said what every connection of HTTP/2 begins with: one
/// that says nothing holds a place that others may need.
const GREETING: Duration = Duration::from_secs(10);

/// Bytes of that.
const GREETING_BYTES: usize = 24;

/// A connection that came in.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    peer: Peer,
    /// What is still to come of the beginning, and until when; none once it was there.
    greeting: Option<(usize, Pin<Box<Sleep>>)>,
    /// Its place among the connections of its listener.
    place: Place,
}

#[derive(Debug)]
enum Stream {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The other side of a connection; every request that comes over it carries this.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Which of the doors it came in by.
    pub door: usize,
    /// Its address.
    pub address: SocketAddr,
    /// What TLS says of it; absent in the clear.
    pub tls: Option<Arc<TlsPeer>>,
    /// Absent where there is no connection.
    holder: Option<Holder>,
}

/// What TLS says of the other side.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// Binds proofs to this session.
    pub binding: Binding,
    /// Subject of the certificate it showed, as `CN=name`; absent when it showed none.
    pub subject: Option<String>,
    /// When that certificate ends, in seconds since 1970.
    pub ends_at: Option<i64>,
}

// === impl Io ===

impl Io {
    pub(crate) fn clear(stream: TcpStream, mut peer: Peer, place: Place) -> Self {
        peer.holder = Some(place.holder());
        Self {
            stream: Stream::Clear(stream),
            peer,
            greeting: Some(greeting()),
            place,
        }
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, mut peer: Peer, place: Place) -> Option<Self> {
        let (_, connection) = stream.get_ref();
        peer.tls = Some(Arc::new(about(connection)?));
        peer.holder = Some(place.holder());
        Some(Self {
            stream: Stream::Tls(Box::new(stream)),
            peer,
            greeting: Some(greeting()),
            place,
        })
    }

    /// Resolves when the connection lost its place to another, or is gone. In the first case it is cut
    /// off some seconds later; until then it may be ended in order.
    pub fn leaving(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.place.holder().leaving()
    }

    /// Fails once the connection must end.
    fn stay(&self, context: &Context<'_>) -> std::io::Result<()> {
        if self.place.is_cut(context.waker()) {
            let taken = "its place was needed for another connection";
            return Err(std::io::Error::new(
                std::io::ErrorKind::ConnectionAborted,
                taken,
            ));
        }
        Ok(())
    }
}

// === impl Peer ===

impl Peer {
    /// The other side of no connection that has a place, as in a test.
    #[must_use]
    pub const fn apart(door: usize, address: SocketAddr) -> Self {
        Self {
            door,
            address,
            tls: None,
            holder: None,
        }
    }

    /// Keeps the connection its place for as long as the answer is held; a connection that nobody
    /// uses gives way to a new one where places are short (LIM-05).
    #[must_use]
    pub fn begin_use(&self) -> Option<InUse> {
        self.holder.as_ref().map(Holder::begin_use)
    }
}

fn greeting() -> (usize, Pin<Box<Sleep>>) {
    (GREETING_BYTES, Box::pin(tokio::time::sleep(GREETING)))
}

/// None when the session gives no binding, which a finished handshake always does.
fn about(connection: &ServerConnection) -> Option<TlsPeer> {
    let binding = connection
        .export_keying_material([0; 32], BINDING_LABEL, None)
        .ok()?;
    let shown = connection.peer_certificates().and_then(|chain| {
        let (_, parsed) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
        let ends_at = parsed.validity().not_after.timestamp();
        Some((parsed.subject().to_string(), ends_at))
    });
    let (subject, ends_at) = shown.unzip();
    Some(TlsPeer {
        binding,
        subject,
        ends_at,
    })
}

impl Connected for Io {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        this.stay(context)?;
        let before = buffer.filled().len();
        let read = match &mut this.stream {
            Stream::Clear(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        let Some((missing, until)) = &mut this.greeting else {
            return read;
        };
        if read.is_pending() {
            ready!(until.as_mut().poll(context));
            let slow = "the other side did not begin to speak HTTP/2 in time";
            return Poll::Ready(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, slow)));
        }
        *missing = missing.saturating_sub(buffer.filled().len() - before);
        if *missing == 0 {
            this.greeting = None;
        }
        read
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.stay(context)?;
        match &mut self.get_mut().stream {
            Stream::Clear(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.stay(context)?;
        match &mut self.get_mut().stream {
            Stream::Clear(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Clear(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.stay(context)?;
        match &mut self.get_mut().stream {
            Stream::Clear(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Clear(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
