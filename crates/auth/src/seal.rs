//! Secrets on disk (SEC-11): sealed by a key that is kept apart from the store.
//!
//! Sealing the same secret for the same purpose twice gives the same text, so that a sealed token
//! can be looked up and an unchanged job has an unchanged hash. What this shows to a thief of the
//! disk is that two secrets of one purpose are equal, and nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
pub use greenroom_types::job::SEALED;
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

use crate::{Secret, hex, random};

/// The key that seals. Never printed.
#[derive(Clone)]
pub struct SecretsKey {
    bytes: [u8; 32],
    sealing: LessSafeKey,
}

// === impl SecretsKey ===

impl SecretsKey {
    /// A fresh key.
    pub fn generate() -> Self {
        Self::from_bytes(random())
    }

    /// The key of a file's text: 64 hexadecimal digits; none for anything else.
    pub fn from_text(text: &str) -> Option<Self> {
        let bytes = crate::unhex(text.trim())?;
        Some(Self::from_bytes(bytes.try_into().ok()?))
    }

    /// The text for its file. Secret.
    pub fn to_text(&self) -> Secret {
        Secret::new(format!("{}\n", hex(&self.bytes)))
    }

    fn from_bytes(bytes: [u8; 32]) -> Self {
        let derived = mac(&bytes, &[b"seal"]);
        let key = UnboundKey::new(&AES_256_GCM, &derived).expect("the key has the length it needs");
        Self {
            bytes,
            sealing: LessSafeKey::new(key),
        }
    }

    /// A text by which a key is recognised, and that tells nothing of it.
    pub fn mark(&self) -> String {
        hex(&mac(&self.bytes, &[b"mark"]))
    }

    /// Seals a secret for a purpose.
    pub fn seal(&self, purpose: &str, secret: &str) -> String {
        // The nonce is a function of purpose and secret: it repeats only where the whole does.
        let lengths = (purpose.len() as u64).to_be_bytes();
        let parts: [&[u8]; 4] = [b"nonce", &lengths, purpose.as_bytes(), secret.as_bytes()];
        let full = mac(&self.bytes, &parts);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&full[..NONCE_LEN]);
        let mut sealed = secret.as_bytes().to_vec();
        self.sealing
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose.as_bytes()),
                &mut sealed,
            )
            .expect("a secret is far shorter than what can be sealed");
        let body = URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
        format!("{SEALED}{body}")
    }

    /// Opens what was sealed for that purpose; none when it was not, or by another key.
    pub fn open(&self, purpose: &str, sealed: &str) -> Option<Secret> {
        let body = sealed.strip_prefix(SEALED)?;
        let mut bytes = URL_SAFE_NO_PAD.decode(body).ok()?;
        let (nonce, rest) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self
            .sealing
            .open_in_place(nonce, Aad::from(purpose.as_bytes()), rest)
            .ok()?;
        Some(Secret::new(std::str::from_utf8(opened).ok()?))
    }
}

impl std::fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretsKey(***)")
    }
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key length is allowed");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SEC-11
    #[test]
    fn a_sealed_secret_opens_with_its_key_and_purpose_alone() {
        let (key, other) = (SecretsKey::generate(), SecretsKey::generate());
        let sealed = key.seal("token", "hunter2");
        assert!(sealed.starts_with(SEALED) && !sealed.contains("hunter2"));
        assert_eq!(sealed, key.seal("token", "hunter2"), "it can be looked up");
        assert_ne!(sealed, key.seal("key", "hunter2"));
        assert_ne!(sealed, other.seal("token", "hunter2"));
        assert_eq!(key.open("token", &sealed), Some(Secret::new("hunter2")));
        assert_eq!(key.open("key", &sealed), None);
        assert_eq!(other.open("token", &sealed), None);
        for bad in [
            "hunter2",
            SEALED,
            "sealed:v1:AAAA",
            "sealed:v1:é",
            &sealed[..30],
        ] {
            assert_eq!(key.open("token", bad), None, "{bad}");
        }
        let mut bent = sealed.into_bytes();
        let last = bent.len() - 1;
        bent[last] = if bent[last] == b'A' { b'B' } else { b'A' };
        assert_eq!(key.open("token", std::str::from_utf8(&bent).unwrap()), None);
    }

    #[test]
    fn a_key_reads_back_from_its_file_and_is_known_by_its_mark() {
        let key = SecretsKey::generate();
        let text = key.to_text();
        let again = SecretsKey::from_text(text.expose()).unwrap();
        assert_eq!(again.mark(), key.mark());
        assert_eq!(again.seal("p", "s"), key.seal("p", "s"));
        assert_ne!(SecretsKey::generate().mark(), key.mark());
        assert!(!format!("{key:?}").contains(text.expose().trim()));
        for bad in ["", "zz", &text.expose()[..62], "é"] {
            assert!(SecretsKey::from_text(bad).is_none());
        }
    }
}
