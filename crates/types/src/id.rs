//! One registry of ids. Each is a validated, cheaply cloned string with its own type, so that a
//! node can never be passed where a job is meant.
//!
//! `new` takes any text: it is for values that something else has validated (the wire, a store).
//! `FromStr` checks the form that the Manager demands of callers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An id of a form that its kind does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?} is not valid: it must be {rule}")]
pub struct IdError {
    /// What kind of id was being read.
    pub kind: &'static str,
    /// The text that was given.
    pub value: String,
    /// The form that would be right.
    pub rule: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $check:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is, unchecked.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
            /// True for the empty text, which stands for "not given" on the wire.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(Arc::from(text)))
                } else {
                    let mut value = text.to_owned();
                    value.truncate(value.floor_char_boundary(200));
                    Err(IdError { kind: $kind, value, rule: $rule })
                }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(text)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl Default for $name {
            fn default() -> Self {
                Self::new("")
            }
        }
    )*};
}

ids! {
    /// Id of a bundle (BDL-02).
    BundleId, "bundle id", "1 to 100 bytes of a-z 0-9 . _ - beginning with a letter or digit", |t| {
        form(t, 100, |b| lower(b) || b"._-".contains(&b)) && lower(t.as_bytes()[0])
    };
    /// Id of a job, the Manager's unit of work (JOB-02).
    JobId, "job id", "1 to 200 bytes of A-Z a-z 0-9 . _ : @ / - not beginning with . or /", |t| {
        form(t, 200, |b| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b))
            && !t.starts_with(['.', '/'])
    };
    /// Name of a job within its bundle (BDL-02).
    JobName, "job name", "1 to 63 bytes of a-z 0-9 - beginning with a letter or digit", |t| {
        form(t, 63, |b| lower(b) || b == b'-') && lower(t.as_bytes()[0])
    };
    /// Id of one migration: a uuid in text form (MIGR-01).
    MigrationId, "migration id", "1 to 64 visible ASCII characters", |t| form(t, 64, |b| b.is_ascii_graphic());
    /// Id of a node (MNODE-02).
    NodeId, "node id", "1 to 200 bytes of A-Z a-z 0-9 . _ @ -", |t| {
        form(t, 200, |b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
    };
    /// Name of a placement pool.
    PoolName, "pool name", "1 to 128 bytes without control characters", |t| form(t, 128, |b| !b.is_ascii_control());
    /// Role of an instance: `primary`, `backup`, `primary@<8 hex>` for a migration target, or
    /// `nodeService` (JOB-02, BIND-03).
    Role, "role", "1 to 64 bytes of A-Z a-z 0-9 . _ @ -", |t| {
        form(t, 64, |b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
    };
    /// Id of a node service (NSVC-01).
    ServiceId, "service id", "1 to 63 bytes of a-z 0-9 . _ -", |t| form(t, 63, |b| lower(b) || b"._-".contains(&b));
    /// 128 random bits in hex, new for every accepted StartJob; every report about an instance
    /// carries it (DECM-03).
    StartId, "start id", "32 hexadecimal digits", |t| t.len() == 32 && form(t, 32, |b| b.is_ascii_hexdigit());
    /// Name of a launch template.
    TemplateName, "template name", "1 to 128 bytes of A-Z a-z 0-9 . _ / -", |t| {
        form(t, 128, |b| b.is_ascii_alphanumeric() || b"._/-".contains(&b))
    };
    /// Name of a tier within its pool.
    TierName, "tier name", "1 to 128 bytes without control characters", |t| form(t, 128, |b| !b.is_ascii_control());
}

fn form(text: &str, max: usize, allowed: fn(u8) -> bool) -> bool {
    !text.is_empty() && text.len() <= max && text.bytes().all(allowed)
}

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

// === impl Role ===

impl Role {
    /// Role of the first copy.
    pub const PRIMARY: &'static str = "primary";
    /// Role of the second copy.
    pub const BACKUP: &'static str = "backup";
    /// Role of node-service instances (NSVC-04).
    pub const NODE_SERVICE: &'static str = "nodeService";

    /// The slot of a copy: `primary` for index 0, `backup` for index 1 (BIND-03).
    pub fn of_replica(replica_index: u32) -> Self {
        Self::new(if replica_index == 0 {
            Self::PRIMARY
        } else {
            Self::BACKUP
        })
    }

    /// The part before `@`: what the job is told as its role (BIND-03, MIGR-19).
    pub fn slot(&self) -> &str {
        self.as_str().split('@').next().unwrap_or_default()
    }

    /// Role of the target of a migration: slot, `@`, first 8 characters of the id (BIND-03).
    pub fn migration_target(slot: &str, migration_id: &MigrationId) -> Self {
        let short: String = migration_id.as_str().chars().take(8).collect();
        Self::new(format!("{slot}@{short}"))
    }

    /// True for the role of a migration target.
    pub fn is_migration_target(&self) -> bool {
        self.as_str().contains('@')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: JOB-02
    #[test]
    fn job_ids_and_roles_have_their_form() {
        for good in ["a", "chan-1.0.encode", "A/b:c@d_e", &"x".repeat(200)] {
            assert!(good.parse::<JobId>().is_ok(), "{good}");
        }
        for bad in ["", ".a", "/a", "a b", "ä", &"x".repeat(201)] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
        assert_ne!(JobId::new("a"), JobId::new("A"));
        assert!("primary@3f9c1e2a".parse::<Role>().is_ok());
        for bad in ["", "a/b", &"r".repeat(65)] {
            assert!(bad.parse::<Role>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_target_role_names_its_slot_and_never_stacks() {
        let id = MigrationId::new("3f9c1e2a-0000-0000-0000-000000000000");
        let target = Role::migration_target(Role::of_replica(0).slot(), &id);
        assert_eq!(target.as_str(), "primary@3f9c1e2a");
        let next = Role::migration_target(target.slot(), &MigrationId::new("01234567-x"));
        assert_eq!(next.as_str(), "primary@01234567");
    }
}
