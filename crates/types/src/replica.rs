//! The replica of access roles: signed by those who grant them, carried by Manager and workers, which
//! look at its form, its signatures and its version and at nothing else (REPL).

use serde::{Deserialize, Serialize};

use crate::payload::Payload;

/// What PublishAccessReplica brings (REPL-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessReplica {
    /// Version of the roles.
    pub version: u64,
    /// All roles: a JWS in compact form, zipped. Empty: only the attestation is fresh.
    pub snapshot: Payload,
    /// What leads from `base_version` to this version, as a JWS; empty for none.
    pub delta: String,
    /// Version that the delta begins at.
    pub base_version: u64,
    /// That the version holds at some time, as a JWS.
    pub attestation: String,
    /// Key sets in the order of their succession; empty keeps those in force.
    pub keys: Vec<Payload>,
}
