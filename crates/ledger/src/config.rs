//! Settings that change what a command does. They are part of the replicated state, put in force by
//! [`crate::Command::Open`], so that every member and every replay decides alike.
//!
//! Durations of waiting are not here: they belong to the [`crate::Keeper`], which is not replicated.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::Millis;
use greenroom_types::job::MediaVersion;
use serde::{Deserialize, Serialize};

/// Settings of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// Elastic providers that run, with their regions or availability domains. A provider that is
    /// absent is not configured (API-16); one with an empty set accepts any region.
    pub providers: BTreeMap<Provider, BTreeSet<String>>,
    /// Images of the media runtime by provider name (`aws`, `oci`, `local`) and level (OVR-04).
    pub media_images: BTreeMap<String, BTreeMap<MediaVersion, String>>,
    /// Entries held of one job's history (HIST-05).
    pub history_max_entries: usize,
    /// How long an elastic node may be empty, 0 for ever (IDLE-01).
    pub idle_expiry_ms: Millis,
    /// Limits.
    pub limits: Limits,
}

/// An elastic provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Amazon EC2.
    Aws,
    /// Oracle Cloud Infrastructure.
    Oci,
}

/// How much the Manager keeps (LIM-04, BDL-22).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Nodes.
    pub nodes: usize,
    /// Jobs.
    pub jobs: usize,
    /// Bundles.
    pub bundles: usize,
    /// Request ids remembered (API-07).
    pub request_ids: usize,
    /// Namespaces of the key/value store (KV-06).
    pub kv_namespaces: usize,
    /// Bytes of keys and values in one of them (KV-06).
    pub kv_namespace_bytes: usize,
    /// Entries of the audit log (AUDIT-11).
    pub audit_entries: usize,
    /// Bytes that they take in memory, roughly (AUDIT-11).
    pub audit_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            providers: BTreeMap::new(),
            media_images: BTreeMap::new(),
            history_max_entries: 1_000,
            idle_expiry_ms: Millis(0),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 20_000,
            jobs: 500_000,
            bundles: 100_000,
            request_ids: 10_000,
            kv_namespaces: 1_000,
            kv_namespace_bytes: 256 * 1024 * 1024,
            audit_entries: 500_000,
            audit_bytes: 256 * 1024 * 1024,
        }
    }
}

// === impl Provider ===

impl Provider {
    /// Its name in settings and refusals.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Oci => "oci",
        }
    }
}
