//! What one side of a migration tells the other: bytes that nobody between them reads (MGR-05).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest payload in bytes (MGR-05).
pub const PAYLOAD_MAX: usize = 256 << 10;

/// Opaque bytes of a job. Whoever prints one for debugging sees its length only, so that no log can
/// hold it by accident; as text it is base64.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Payload(Vec<u8>);

// === impl Payload ===

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// True for one without bytes, which is a payload as good as any.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As base64.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// Reads base64, with its padding.
    ///
    /// # Errors
    /// When it is none; the error does not repeat the text.
    pub fn from_base64(text: &str) -> Result<Self, base64::DecodeError> {
        STANDARD.decode(text).map(Self)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl<const N: usize> From<&[u8; N]> for Payload {
    fn from(bytes: &[u8; N]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_base64(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: MGR-05
    #[test]
    fn a_payload_keeps_every_byte_and_shows_none() {
        let all: Vec<u8> = (0..=255).collect();
        let payload = Payload::from(all.clone());
        assert_eq!(format!("{payload:?}"), "<256 bytes>");
        let text = serde_json::to_string(&payload).unwrap();
        let back: Payload = serde_json::from_str(&text).unwrap();
        assert_eq!(back.into_bytes(), all);
        assert!(Payload::from_base64("=a").is_err());
        assert!(serde_json::from_str::<Payload>("[1]").is_err());
    }
}
