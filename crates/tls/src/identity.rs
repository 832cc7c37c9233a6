//! Certificates with their keys, and pins of keys.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

use crate::Error;

/// A certificate chain with its private key. Printing it shows neither.
#[derive(Clone)]
pub struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Arc<PrivateKeyDer<'static>>,
}

/// SHA-256 of a public key, as `sha256:` and 64 hexadecimal digits: names one key, whoever signed
/// its certificate (SEC-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin(pub [u8; 32]);

// === impl Identity ===

impl Identity {
    /// The identity of two PEM texts.
    ///
    /// # Errors
    /// One of them holds no certificate or key.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, Error> {
        Self::read("certificate", certificate, "private key", key)
    }

    /// The identity of two PEM files.
    ///
    /// # Errors
    /// One of them cannot be read, or holds no certificate or key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let text = |path: &Path| {
            crate::read_file(path).map_err(|source| Error::File {
                path: path.to_owned(),
                source,
            })
        };
        Self::read(
            &certificate.display().to_string(),
            &text(certificate)?,
            &key.display().to_string(),
            &text(key)?,
        )
    }

    fn read(named: &str, certificate: &[u8], key_named: &str, key: &[u8]) -> Result<Self, Error> {
        let chain = certificates(named, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Error::Form {
            what: key_named.to_owned(),
            problem: "it must hold a private key in PEM".to_owned(),
        })?;
        Ok(Self {
            chain,
            key: Arc::new(key),
        })
    }

    /// The public key, as a certificate holds it.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn public_key(&self) -> Result<Vec<u8>, Error> {
        // `certificates` gives at least one.
        public_key(&self.chain[0]).ok_or_else(|| Error::Unusable("it cannot be read".to_owned()))
    }

    /// The pin of its key.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn pin(&self) -> Result<Pin, Error> {
        Ok(Pin::of(&self.public_key()?))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(***)")
    }
}

/// The certificates of a PEM file, to be trusted as authorities.
///
/// # Errors
/// The file cannot be read or holds no certificate.
pub fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = crate::read_file(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })?;
    certificates(&path.display().to_string(), &text)
}

pub(crate) fn certificates(
    named: &str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::Form {
            what: named.to_owned(),
            problem: "it must hold a certificate in PEM".to_owned(),
        }),
    }
}

pub(crate) fn public_key(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(parsed.subject_public_key_info().as_ref().to_vec())
}

/// SHA-256 of some bytes, for telling whether a file changed.
pub fn fingerprint(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

// === impl Pin ===

impl Pin {
    /// The pin of a public key, given as a certificate holds it.
    pub fn of(public_key: &[u8]) -> Self {
        Self(fingerprint(public_key))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Pin {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "a pin is sha256: and 64 hexadecimal digits";
        let digits = text.strip_prefix("sha256:").ok_or(FORM)?;
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(FORM);
        }
        let mut pin = [0; 32];
        for (byte, at) in pin.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| FORM)?;
        }
        Ok(Self(pin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_reads_back_and_nothing_else_is_one() {
        let pin = Pin::of(b"key");
        assert_eq!(pin.to_string().parse(), Ok(pin));
        for text in ["", "sha256:", "sha256:zz", &"a".repeat(71)] {
            assert!(text.parse::<Pin>().is_err(), "{text}");
        }
        assert!(format!("sha256:{}", "é".repeat(32)).parse::<Pin>().is_err());
    }
}
