//! The key/value store: small values of others, kept by the Manager under revisions (KV).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One key with its value (KV-01).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvEntry {
    /// The key.
    pub key: String,
    /// Its value. May be secret: it stands in no form made for people (KV-09).
    #[serde(with = "text")]
    pub value: Arc<[u8]>,
    /// Revision of the namespace at which it was written.
    pub revision: u64,
}

/// One write of a commit (KV-02).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvWrite {
    /// The key.
    pub key: String,
    /// Its new value; none deletes the key.
    #[serde(with = "optional_text")]
    pub value: Option<Arc<[u8]>>,
    /// Refuse unless the key stands at this revision, 0 for "is not there"; none for any.
    pub expected_revision: Option<u64>,
}

/// Writes that happen together or not at all, with what they depend on (KV-02).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KvCommit {
    /// Namespace of all keys.
    pub namespace: String,
    /// The writes, each key once.
    pub writes: Vec<KvWrite>,
    /// Refuse unless the namespace is at this schema version.
    pub expected_schema_version: Option<u64>,
    /// Schema version from now on.
    pub set_schema_version: Option<u64>,
}

// === impl KvWrite ===

impl KvWrite {
    /// Sets a key, whatever it holds.
    pub fn set(key: impl Into<String>, value: impl Into<Arc<[u8]>>) -> Self {
        Self {
            key: key.into(),
            value: Some(value.into()),
            expected_revision: None,
        }
    }

    /// Deletes a key, if it is there.
    pub fn delete(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: None,
            expected_revision: None,
        }
    }

    /// Only if the key stands at this revision, 0 for "is not there".
    #[must_use]
    pub const fn expecting(mut self, revision: u64) -> Self {
        self.expected_revision = Some(revision);
        self
    }
}

// Values print as their length (KV-09, SEC-12).

impl fmt::Debug for KvEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvEntry")
            .field("key", &self.key)
            .field("bytes", &self.value.len())
            .field("revision", &self.revision)
            .finish()
    }
}

impl fmt::Debug for KvWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvWrite")
            .field("key", &self.key)
            .field("bytes", &self.value.as_deref().map(<[u8]>::len))
            .field("expected_revision", &self.expected_revision)
            .finish()
    }
}

// === bytes as text ===

/// Bytes stand in JSON as base64: a list of numbers would be four times as long.
mod text {
    use std::sync::Arc;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Arc<[u8]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD
            .decode(text)
            .map(Into::into)
            .map_err(D::Error::custom)
    }
}

mod optional_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "super::text")] Arc<[u8]>);

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Arc<[u8]>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Text).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<[u8]>>, D::Error> {
        Ok(Option::<Text>::deserialize(deserializer)?.map(|text| text.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_from_json_and_stand_in_no_text_for_people() {
        let commit = KvCommit {
            namespace: "rota".to_owned(),
            writes: vec![
                KvWrite::set("a", *b"hunter2\xff\x00").expecting(0),
                KvWrite::delete("b"),
            ],
            expected_schema_version: None,
            set_schema_version: Some(2),
        };
        let json = serde_json::to_string(&commit).unwrap();
        assert_eq!(serde_json::from_str::<KvCommit>(&json).unwrap(), commit);
        let entry = KvEntry {
            key: "a".to_owned(),
            value: Arc::from(*b"hunter2"),
            revision: 1,
        };
        for shown in [format!("{commit:?}"), format!("{entry:?}")] {
            assert!(
                !shown.contains("hunter2") && !shown.contains("104"),
                "{shown}"
            );
        }
    }
}
