//! Makes the certificates of an installation: an authority of its own, what it signs, and the
//! self-made certificates of workers, which are trusted by their pins.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::{Error, Identity};

/// An authority lasts about ten years: replacing it means visiting every machine.
const AUTHORITY_LASTS: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Clocks of a small installation are seldom all right; what is new holds on those that lag.
const BEFORE: Duration = Duration::from_secs(86_400);

/// A certificate and its private key, both in PEM. Printing it shows neither.
#[derive(Clone)]
pub struct Minted {
    /// The certificate.
    pub certificate: String,
    /// Its private key. Secret.
    pub key: String,
}

/// How a private key of Ed25519 begins (RFC 8410); the seed follows.
const ED25519_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be shown by a server.
    Server,
    /// To be shown by a client, whose subject then names a role (SEC-02).
    Client,
}

// === impl Minted ===

impl Minted {
    /// It as an identity.
    ///
    /// # Errors
    /// Never for what was made here.
    pub fn identity(&self) -> Result<Identity, Error> {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }
}

impl std::fmt::Debug for Minted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Minted(***)")
    }
}

/// Makes an authority.
///
/// # Errors
/// The system gives no randomness, or the name is none.
pub fn authority(name: &str, now: SystemTime) -> Result<Minted, Error> {
    let mut params = params(name, &[], now, AUTHORITY_LASTS)?;
    // It signs certificates of servers and clients, not other authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(Minted {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Makes a certificate that an authority signs. `names` are DNS names and IP addresses.
///
/// # Errors
/// The authority cannot be read, or a name is none.
pub fn signed(
    authority: &Minted,
    common_name: &str,
    names: &[String],
    purpose: Purpose,
    now: SystemTime,
    lasts: Duration,
) -> Result<Minted, Error> {
    let mut params = params(common_name, names, now, lasts)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match purpose {
        Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
        Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    let signer = KeyPair::from_pem(&authority.key).map_err(failed)?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, signer).map_err(failed)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok(Minted {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// The identity that 32 secret bytes make: the same key for the same bytes, with a certificate that
/// it signs for itself. Such a certificate is worth what its pin is worth.
///
/// # Errors
/// The name is none.
pub fn from_seed(name: &str, seed: &[u8; 32], now: SystemTime) -> Result<Identity, Error> {
    let params = params(name, &[name.to_owned()], now, AUTHORITY_LASTS)?;
    let der = PrivatePkcs8KeyDer::from([&ED25519_HEAD[..], seed].concat());
    let pair = KeyPair::try_from(&der).map_err(failed)?;
    let certificate = params.self_signed(&pair).map_err(failed)?;
    Ok(Identity {
        chain: vec![certificate.der().clone()],
        key: Arc::new(PrivateKeyDer::Pkcs8(der)),
    })
}

fn params(
    common_name: &str,
    names: &[String],
    now: SystemTime,
    lasts: Duration,
) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names).map_err(failed)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    params.not_before = OffsetDateTime::from(now - BEFORE);
    params.not_after = OffsetDateTime::from(now + lasts);
    Ok(params)
}

fn failed(error: rcgen::Error) -> Error {
    Error::Unusable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_key_again_and_another_seed_another() {
        let now = SystemTime::now();
        let key = |seed: u8| {
            let identity = from_seed("worker", &[seed; 32], now).unwrap();
            identity.public_key().unwrap()
        };
        assert_eq!(key(1), key(1));
        assert_ne!(key(1), key(2));
    }
}
