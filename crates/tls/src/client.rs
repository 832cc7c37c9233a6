//! Dialling: who is trusted, and connections for tonic.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use crate::identity::public_key;
use crate::{ALPN, BINDING_LABEL, Binding, Error, Identity, Pin, explain, provider};

/// Name under which a server is dialled whose key is pinned; nobody looks at it.
const PINNED_NAME: &str = "pinned.invalid";

/// Whom a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Certificates signed by one of these, for the name that was dialled.
    Authorities(Vec<CertificateDer<'static>>),
    /// These keys, whoever signed their certificates and for whatever name.
    Pins(Vec<Pin>),
}

/// How to dial with TLS.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

// === impl ClientTls ===

impl ClientTls {
    /// TLS that trusts `trust` and, if asked, shows a certificate.
    ///
    /// # Errors
    /// An authority or the identity cannot be used.
    pub fn new(trust: &Trust, identity: Option<&Identity>) -> Result<Self, Error> {
        let unusable = |error: rustls::Error| Error::Unusable(explain(&error));
        let verifier: Arc<dyn ServerCertVerifier> = match trust {
            Trust::Authorities(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority.clone()).map_err(unusable)?;
                }
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
                    .build()
                    .map_err(|error| Error::Unusable(error.to_string()))?
            }
            Trust::Pins(pins) => Arc::new(Pinned {
                pins: pins.clone(),
                provider: provider(),
            }),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
                .map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Shakes hands over a connection; gives the session and what binds proofs to it.
    ///
    /// # Errors
    /// The other side is not the one that is trusted, or the connection broke; the text says which.
    pub async fn shake(
        &self,
        stream: TcpStream,
        name: &str,
    ) -> io::Result<(TlsStream<TcpStream>, Binding)> {
        // A URI writes an IPv6 address in brackets.
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| io::Error::other(format!("{bare:?} is no name of a server")))?;
        let connector = TlsConnector::from(Arc::clone(&self.0));
        let stream = connector.connect(name, stream).await.map_err(in_words)?;
        let (_, connection) = stream.get_ref();
        let binding = connection
            .export_keying_material([0; 32], BINDING_LABEL, None)
            .map_err(|error| io::Error::other(explain(&error)))?;
        Ok((stream, binding))
    }
}

/// A handshake's failure in words for people.
fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner.map(explain) {
        Some(text) => io::Error::new(error.kind(), text),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the other side ended the TLS handshake")
        }
        None => error,
    }
}

type Dialled = TokioIo<TlsStream<TcpStream>>;

/// What a tonic endpoint dials with: a new session each time.
pub fn connector(
    tls: ClientTls,
) -> impl Service<Uri, Response = Dialled, Error = io::Error, Future: Send> + Clone + Send + 'static
{
    tower::service_fn(move |uri: Uri| {
        let tls = tls.clone();
        async move {
            let host = uri.host().unwrap_or_default().to_owned();
            let port = uri.port_u16().unwrap_or(443);
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((bare, port)).await?;
            stream.set_nodelay(true)?;
            let (stream, _) = tls.shake(stream, &host).await?;
            Ok(TokioIo::new(stream))
        }
    })
}

/// A channel over one TLS session with the holder of a pinned key, and what binds proofs to that
/// session. When the session ends the channel does: a second one would have to be proven anew.
///
/// # Errors
/// Nobody listens there, another key does, or not in time.
pub async fn pinned_channel(
    address: &str,
    pin: Pin,
    limit: Duration,
) -> io::Result<(Channel, Binding)> {
    let dialled = async {
        let tls = ClientTls::new(&Trust::Pins(vec![pin]), None).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (session, binding) = tls.shake(stream, PINNED_NAME).await?;
        let endpoint =
            Endpoint::from_shared(format!("https://{address}")).map_err(io::Error::other)?;
        let channel = endpoint.connect_with_connector(once(session)).await;
        Ok((channel.map_err(io::Error::other)?, binding))
    };
    let in_time = tokio::time::timeout(limit, dialled).await;
    in_time.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A channel in the clear, for a worker of the published protocol (WORK-04).
///
/// # Errors
/// Nobody listens there, or not in time.
pub async fn open_channel(address: &str, limit: Duration) -> io::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
    let channel = endpoint.connect_timeout(limit).tcp_nodelay(true);
    channel.connect().await.map_err(io::Error::other)
}

/// Gives the session to whoever asks first.
fn once(
    session: TlsStream<TcpStream>,
) -> impl Service<Uri, Response = Dialled, Error = io::Error, Future: Send> + Send + 'static {
    let mut session = Some(session);
    tower::service_fn(move |_: Uri| {
        let answer = session
            .take()
            .map(TokioIo::new)
            .ok_or_else(|| io::Error::other("the session has ended"));
        std::future::ready(answer)
    })
}

/// Takes a server by its key alone.
#[derive(Debug)]
struct Pinned {
    pins: Vec<Pin>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = public_key(end_entity).ok_or(CertificateError::BadEncoding)?;
        if self.pins.contains(&Pin::of(&key)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
