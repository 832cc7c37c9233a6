//! TLS 1.3 for every line between parts (SEC-07): [`incoming`] listens, [`ClientTls`] dials, and
//! [`mint`] makes the certificates of an installation.
//!
//! **Invariant**: this crate alone knows rustls and rcgen. It has one cryptography provider, one
//! version of the protocol and one application protocol, so that there is nothing to choose and
//! nothing to fall back to. Who may do what is not decided here.

mod client;
mod descriptors;
mod file;
mod identity;
mod io;
pub mod mint;
mod places;
mod server;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use client::{ClientTls, Trust, connector, open_channel, pinned_channel};
pub use descriptors::raise_descriptor_limit;
pub use file::{read_file, read_file_upto, read_text_file, replace_file};
pub use identity::{Identity, Pin, authorities, fingerprint};
pub use io::{Io, Peer, TlsPeer};
pub use places::InUse;
pub use server::{Door, Incoming, ServerTls, incoming};

/// What binds a proof to one TLS session: both ends compute the same 32 bytes, and nobody between
/// them can (RFC 9266, `tls-exporter`).
pub type Binding = [u8; 32];

/// Label of the exported keying material.
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// The one application protocol.
const ALPN: &[u8] = b"h2";

/// Why certificates, keys or pins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It holds something else than it should.
    #[error("{what}: {problem}")]
    Form {
        /// The file, or what it was to be.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// Certificate and key do not belong together, or are of a kind that is not used.
    #[error("the certificate cannot be used: {0}")]
    Unusable(String),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// In words for people, without the library's own.
fn explain(error: &rustls::Error) -> String {
    use rustls::{CertificateError as Bad, Error};
    match error {
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the certificate is not signed by the CA that was given".to_owned()
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the certificate is for other names".to_owned()
        }
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the certificate has expired; check the clocks, or renew it".to_owned()
        }
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the certificate is not valid yet; check the clocks".to_owned()
        }
        Error::InvalidCertificate(Bad::ApplicationVerificationFailure) => {
            "the certificate has another key than the one pinned".to_owned()
        }
        Error::InvalidMessage(_) => "the other side does not speak TLS".to_owned(),
        other => other.to_string(),
    }
}
