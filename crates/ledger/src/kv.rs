//! The key/value store (KV): namespaces of small values under one revision each.
//!
//! All checks of a commit are made against one state before anything is written, so that of two
//! commits that expect the same revision one wins and the other changes nothing (KV-03).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply, Status};
use greenroom_types::kv::{KvCommit, KvEntry, KvWrite};
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{Problem, cut, exhausted, failed, invalid, problems};

/// Longest name of a namespace, and of a key, in bytes (KV-06).
const NAMESPACE_BYTES: usize = 63;
const KEY_BYTES: usize = 512;
/// Largest value, most writes of a commit and most bytes of a commit (KV-06).
const VALUE_BYTES: usize = 1024 * 1024;
const WRITES: usize = 256;
const COMMIT_BYTES: usize = 4 * 1024 * 1024;
/// Namespaces of the Manager's own (KV-08).
const RESERVED: &str = "sys-";

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpace {
    head: KvHead,
    entries: BTreeMap<String, Value>,
    /// Bytes of keys and values. Derived.
    bytes: usize,
}

/// What a namespace is besides its keys. It stays when the last key goes, for its revision must never
/// be used again (KV-04).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KvHead {
    pub(crate) revision: u64,
    pub(crate) schema_version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    bytes: Arc<[u8]>,
    revision: u64,
}

// === impl Ledger ===

impl Ledger {
    /// A namespace, if anything was ever committed to it. The name is checked (KV-06, KV-08).
    pub fn kv_space(&self, namespace: &str) -> Result<Option<&KvSpace>, Refusal> {
        check_namespace(namespace)?;
        Ok(self.kv.get(namespace))
    }

    pub(crate) fn kv_commit(&mut self, out: &mut Out, commit: KvCommit) -> CallResult {
        let KvCommit {
            namespace,
            writes,
            expected_schema_version,
            set_schema_version,
        } = commit;
        check_namespace(&namespace)?;
        check_writes(&writes)?;
        let empty = KvSpace::default();
        let limits = &self.config.limits;
        let space = match self.kv.get(&namespace) {
            Some(space) => space,
            None if self.kv.len() >= limits.kv_namespaces => {
                return Err(exhausted(
                    "kv_full",
                    format!(
                        "there are {} namespaces, the most that are kept: use one of them",
                        self.kv.len()
                    ),
                ));
            }
            None => &empty,
        };
        space.check(&writes, expected_schema_version)?;
        let bytes = space.bytes_after(&writes);
        if bytes > limits.kv_namespace_bytes && bytes > space.bytes {
            return Err(exhausted(
                "kv_full",
                format!(
                    "namespace {namespace:?} would hold {bytes} bytes, the most is {}: delete keys \
                     first",
                    limits.kv_namespace_bytes
                ),
            ));
        }

        let changes = writes
            .iter()
            .any(|write| write.value.is_some() || space.entries.contains_key(&write.key));
        let schema_version = set_schema_version.unwrap_or(space.head.schema_version);
        if !changes && schema_version == space.head.schema_version {
            return Ok(Reply::KvRevision(space.head.revision));
        }
        let space = self.kv.entry(namespace.clone()).or_default();
        space.head.schema_version = schema_version;
        space.head.revision += u64::from(changes);
        for write in writes {
            out.kv.insert((namespace.clone(), write.key.clone()));
            space.put(write.key, write.value, space.head.revision);
        }
        out.kv_heads.insert(namespace);
        Ok(Reply::KvRevision(space.head.revision))
    }
}

// === impl KvSpace ===

impl KvSpace {
    /// The namespace's revision: grows with each commit that writes or deletes (KV-04).
    pub const fn revision(&self) -> u64 {
        self.head.revision
    }

    /// The schema version that was last set, 0 before (KV-05).
    pub const fn schema_version(&self) -> u64 {
        self.head.schema_version
    }

    /// One key.
    pub fn get(&self, key: &str) -> Option<KvEntry> {
        let (key, value) = self.entries.get_key_value(key)?;
        Some(value.entry(key))
    }

    /// All keys that begin so, in byte order (KV-01).
    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = KvEntry> + 'a {
        self.entries
            .range(prefix.to_owned()..)
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, value)| value.entry(key))
    }

    pub(crate) const fn head(&self) -> &KvHead {
        &self.head
    }

    pub(crate) const fn set_head(&mut self, head: KvHead) {
        self.head = head;
    }

    /// Sets or deletes a key, keeping count of the bytes.
    pub(crate) fn put(&mut self, key: String, value: Option<Arc<[u8]>>, revision: u64) {
        let length = key.len();
        let old = match value {
            Some(bytes) => {
                self.bytes += length + bytes.len();
                self.entries.insert(key, Value { bytes, revision })
            }
            None => self.entries.remove(&key),
        };
        if let Some(old) = old {
            self.bytes -= length + old.bytes.len();
        }
    }

    /// KV-03.
    fn check(&self, writes: &[KvWrite], schema_version: Option<u64>) -> Result<(), Refusal> {
        if let Some(expected) = schema_version
            && expected != self.head.schema_version
        {
            return Err(failed(
                "schema_mismatch",
                format!(
                    "the schema is at version {}, expected was {expected}: read again",
                    self.head.schema_version
                ),
            )
            .with("expected", expected)
            .with("actual", self.head.schema_version));
        }
        for write in writes {
            let actual = self.entries.get(&write.key).map_or(0, |it| it.revision);
            if let Some(expected) = write.expected_revision
                && expected != actual
            {
                let key = cut(&write.key, 200);
                return Err(failed(
                    "revision_mismatch",
                    format!(
                        "key {key:?} stands at revision {actual}, expected was {expected}: read it \
                         again"
                    ),
                )
                .with("key", write.key.as_str())
                .with("expected", expected)
                .with("actual", actual));
            }
        }
        Ok(())
    }

    fn bytes_after(&self, writes: &[KvWrite]) -> usize {
        writes.iter().fold(self.bytes, |bytes, write| {
            let length = write.key.len();
            let old = self.entries.get(&write.key);
            let bytes = bytes - old.map_or(0, |old| length + old.bytes.len());
            bytes + write.value.as_ref().map_or(0, |new| length + new.len())
        })
    }
}

// === impl Value ===

impl Value {
    fn entry(&self, key: &str) -> KvEntry {
        KvEntry {
            key: key.to_owned(),
            value: Arc::clone(&self.bytes),
            revision: self.revision,
        }
    }
}

// === helpers ===

/// Whether a namespace can be one of a client's (KV-01).
///
/// # Errors
/// It has another form, or is the Manager's own.
pub fn check_namespace(namespace: &str) -> Result<(), Refusal> {
    let formed = (1..=NAMESPACE_BYTES).contains(&namespace.len())
        && namespace
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !formed {
        return Err(invalid(
            "bad_kv",
            format!(
                "namespace {:?} must be 1 to {NAMESPACE_BYTES} of a-z 0-9 -",
                cut(namespace, 200)
            ),
        )
        .with("path", "namespace"));
    }
    if namespace.starts_with(RESERVED) {
        return Err(Refusal::new(
            Status::PermissionDenied,
            "reserved_namespace",
            format!("namespace {namespace:?} is the Manager's own: use one without {RESERVED}"),
        )
        .with("path", "namespace"));
    }
    Ok(())
}

/// KV-06. Keys and values are never repeated in a message (KV-09): a path says which write is meant.
fn check_writes(writes: &[KvWrite]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    if writes.len() > WRITES {
        found.push(Problem::new(
            "writes",
            format!("there are {}, the most is {WRITES}", writes.len()),
        ));
    }
    let mut keys = BTreeSet::new();
    let mut bytes = 0;
    for (index, write) in writes.iter().enumerate() {
        let value = write.value.as_ref().map_or(0, |value| value.len());
        bytes += write.key.len() + value;
        if !(1..=KEY_BYTES).contains(&write.key.len()) {
            found.push(Problem::new(
                format!("writes[{index}].key"),
                format!("must have 1 to {KEY_BYTES} bytes"),
            ));
        }
        if value > VALUE_BYTES {
            found.push(Problem::new(
                format!("writes[{index}].value"),
                format!("has {value} bytes, the most is {VALUE_BYTES}"),
            ));
        }
        if !keys.insert(&write.key) {
            found.push(Problem::new(
                format!("writes[{index}].key"),
                "stands in this commit twice",
            ));
        }
    }
    if bytes > COMMIT_BYTES {
        found.push(Problem::new(
            "writes",
            format!("hold {bytes} bytes, the most is {COMMIT_BYTES}"),
        ));
    }
    problems("bad_kv", "the commit is refused", found)
}
