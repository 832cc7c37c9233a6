//! The signed parts of an access replica (REPL-03, REPL-04): form, signatures, versions. What the
//! roles say is not looked at.

use std::io::Read as _;

use flate2::read::GzDecoder;
use greenroom_types::{ByName, Wall};
use serde::Deserialize;

use crate::jws::{JwsError, KeySet};

/// Longest snapshot, zipped (REPL-03).
pub const REPLICA_MAX: usize = 4 * 1024 * 1024;
/// Longest snapshot, unzipped (REPL-03).
const UNZIPPED_MAX: u64 = 16 * 1024 * 1024;
/// Longest delta, and longest attestation.
const TEXT_MAX: usize = 1024 * 1024;

/// The parts as they travel.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaParts<'a> {
    /// Zipped; empty for none.
    pub snapshot: &'a [u8],
    /// Empty for none.
    pub delta: &'a str,
    /// The attestation.
    pub attestation: &'a str,
}

/// What good parts say of themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Version of the snapshot, if there is one.
    pub snapshot_version: Option<u64>,
    /// Where the delta begins and to which version it leads, if there is one.
    pub delta: Option<(u64, u64)>,
    /// Version that the attestation is of.
    pub attested_version: u64,
    /// Time of the attestation.
    pub attested_at: Wall,
}

/// Why a replica is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// The snapshot cannot be unzipped.
    #[error("the snapshot is no gzip")]
    Zip,
    /// A part is too long.
    #[error("{0} is longer than what is taken")]
    Long(&'static str),
    /// A part is not signed as it must be.
    #[error("{0}: {1}")]
    Signed(&'static str, JwsError),
    /// A part does not say its version, or its time.
    #[error("{0} is no JSON object with {1}")]
    Claims(&'static str, &'static str),
}

#[derive(Deserialize)]
struct Snapshot {
    version: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delta {
    base_version: u64,
    version: u64,
}

#[derive(Deserialize)]
struct Attestation {
    version: u64,
    iat: i64,
}

/// Checks the parts against the keys in force.
///
/// # Errors
/// As [`ReplicaError`] says.
pub fn read_replica(keys: &KeySet, parts: ReplicaParts<'_>) -> Result<Replica, ReplicaError> {
    let snapshot_version = match parts.snapshot {
        [] => None,
        zipped => {
            let payload = signed(keys, "the snapshot", &unzip(zipped)?)?;
            let claims: Snapshot = claims("the snapshot", "version", &payload)?;
            Some(claims.version)
        }
    };
    let delta = match parts.delta {
        "" => None,
        long if long.len() > TEXT_MAX => return Err(ReplicaError::Long("the delta")),
        jws => {
            let payload = signed(keys, "the delta", jws)?;
            let claims: Delta = claims("the delta", "baseVersion and version", &payload)?;
            Some((claims.base_version, claims.version))
        }
    };
    if parts.attestation.len() > TEXT_MAX {
        return Err(ReplicaError::Long("the attestation"));
    }
    let payload = signed(keys, "the attestation", parts.attestation)?;
    let attested: Attestation = claims("the attestation", "version and iat", &payload)?;
    let attested_at = attested.iat.checked_mul(1_000);
    let attested_at = attested_at.filter(|ms| (0..=253_402_300_799_000).contains(ms));
    Ok(Replica {
        snapshot_version,
        delta,
        attested_version: attested.version,
        attested_at: attested_at
            .map(Wall)
            .ok_or(ReplicaError::Claims("the attestation", "an iat in seconds"))?,
    })
}

fn signed(keys: &KeySet, what: &'static str, jws: &str) -> Result<Vec<u8>, ReplicaError> {
    keys.open(jws.trim())
        .map_err(|error| ReplicaError::Signed(what, error))
}

fn claims<'a, T: Deserialize<'a>>(
    what: &'static str,
    names: &'static str,
    payload: &'a [u8],
) -> Result<T, ReplicaError> {
    let read = serde_json::from_slice(payload).map(|ByName(claims)| claims);
    read.map_err(|_| ReplicaError::Claims(what, names))
}

fn unzip(zipped: &[u8]) -> Result<String, ReplicaError> {
    if zipped.len() > REPLICA_MAX {
        return Err(ReplicaError::Long("the snapshot"));
    }
    let mut text = String::new();
    // One byte more than may be: a bomb is noticed there and not where memory ends.
    let mut whole = GzDecoder::new(zipped).take(UNZIPPED_MAX + 1);
    whole
        .read_to_string(&mut text)
        .map_err(|_| ReplicaError::Zip)?;
    if text.len() as u64 > UNZIPPED_MAX {
        return Err(ReplicaError::Long("the snapshot"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::{Value, json};

    use super::*;
    use crate::jws::tests::{Signer, set_of};

    fn zip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn part(signer: &Signer, claims: &Value) -> String {
        signer.sign(claims.to_string().as_bytes())
    }

    // spec: REPL-03
    #[test]
    fn a_replica_is_read_from_signed_parts_alone() {
        let (ed, other) = (Signer::ed("a"), Signer::ed("a"));
        let keys = KeySet::read(&set_of(&[&ed])).unwrap();
        let snapshot = zip(part(&ed, &json!({"version": 7, "roles": []})).as_bytes());
        let delta = part(&ed, &json!({"baseVersion": 6, "version": 7}));
        let attestation = part(&ed, &json!({"version": 7, "iat": 1_800_000_000}));
        let read = |snapshot: &[u8], delta: &str, attestation: &str| {
            let parts = ReplicaParts {
                snapshot,
                delta,
                attestation,
            };
            read_replica(&keys, parts)
        };
        let whole = Replica {
            snapshot_version: Some(7),
            delta: Some((6, 7)),
            attested_version: 7,
            attested_at: Wall(1_800_000_000_000),
        };
        assert_eq!(read(&snapshot, &delta, &attestation), Ok(whole));
        let fresh = Replica {
            snapshot_version: None,
            delta: None,
            ..whole
        };
        assert_eq!(read(&[], "", &attestation), Ok(fresh));

        let forged = part(&other, &json!({"version": 7, "iat": 1_800_000_000}));
        let wrong = |what| Err(ReplicaError::Signed(what, JwsError::Signature));
        assert_eq!(read(&snapshot, "", &forged), wrong("the attestation"));
        assert_eq!(
            read(&zip(forged.as_bytes()), "", &attestation),
            wrong("the snapshot")
        );
        assert_eq!(read(&[], &forged, &attestation), wrong("the delta"));
        assert_eq!(read(b"plain", "", &attestation), Err(ReplicaError::Zip));
        let cut = &snapshot[..snapshot.len() - 9];
        assert_eq!(read(cut, "", &attestation), Err(ReplicaError::Zip));
        let none = part(&ed, &json!({"roles": []}));
        assert!(matches!(
            read(&zip(none.as_bytes()), "", &attestation),
            Err(ReplicaError::Claims(..))
        ));
        assert!(matches!(
            read(&[], "", &none),
            Err(ReplicaError::Claims(..))
        ));
        // A list is no claims, whatever its elements would stand for.
        for (delta, attestation) in [
            (part(&ed, &json!([6, 7])), attestation.clone()),
            (String::new(), part(&ed, &json!([7, 1_800_000_000]))),
        ] {
            let refused = read(&[], &delta, &attestation);
            assert!(matches!(refused, Err(ReplicaError::Claims(..))));
        }
        let unsigned = Err(ReplicaError::Signed("the attestation", JwsError::Form));
        assert_eq!(read(&snapshot, "", ""), unsigned);
    }

    // spec: REPL-03
    #[test]
    fn a_snapshot_that_is_a_bomb_is_not_unzipped() {
        let bomb = zip(&vec![b'a'; UNZIPPED_MAX as usize + 1]);
        assert!(bomb.len() < 100_000);
        assert_eq!(unzip(&bomb), Err(ReplicaError::Long("the snapshot")));
        let most = zip(&vec![b'a'; UNZIPPED_MAX as usize]);
        assert_eq!(unzip(&most).map(|text| text.len() as u64), Ok(UNZIPPED_MAX));
        let long = vec![0; REPLICA_MAX + 1];
        assert_eq!(unzip(&long), Err(ReplicaError::Long("the snapshot")));
    }
}
