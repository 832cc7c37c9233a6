//! One method per call that changes something (SDK-02).
//!
//! Each is [`Client::call`] with its arguments and its answer spelled out. Errors named at a method are
//! those of its own; any of them may end with a lost connection, a deadline or missing rights as well.

mod audit;
mod bundles;
mod fleet;
mod jobs;
mod kv;
mod leases;
mod member;
mod migrations;
mod nodes;

use std::fmt;
use std::time::Duration;

pub use audit::{AuditPage, AuditPruned, AuditQuery};
pub use fleet::{FleetPublished, FleetRotated};
pub use kv::KvList;
pub use leases::{PausedLeases, ResumedLeases};
pub use member::{
    ClusterEvent, ClusterEventQuery, ClusterStatus, ControlPlane, Member, StoreFile, StoreInfo,
};

use greenroom_types::call::Reply;
use greenroom_types::{BundleId, JobId, MigrationId, NodeId, Role, Tags};

use crate::error::Error;

/// What creating a bundle gave (BDL-01).
///
/// ```no_run
/// # fn example(created: greenroom_sdk::BundleCreated) {
/// println!("{} at revision {}", created.bundle_id, created.revision);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleCreated {
    /// Its id, given or made.
    pub bundle_id: BundleId,
    /// Its revision, 1.
    pub revision: u64,
    /// Its runtime jobs.
    pub job_ids: Vec<JobId>,
}

/// How a bundle is updated.
///
/// ```
/// assert!(!greenroom_sdk::UpdateBundle::default().dry_run);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateBundle {
    /// Only tell what would change.
    pub dry_run: bool,
    /// Take the stop time away (BSTOP-05).
    pub clear_stop_time: bool,
}

/// What an update did, or would do, to a bundle's jobs (BDL-11).
///
/// ```no_run
/// # fn example(changes: greenroom_sdk::BundleChanges) {
/// println!("{} jobs go on undisturbed", changes.untouched.len());
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleChanges {
    /// The bundle's revision.
    pub revision: u64,
    /// Jobs made.
    pub created: Vec<JobId>,
    /// Jobs stopped, as their launch content changed.
    pub changed: Vec<JobId>,
    /// Jobs updated in place.
    pub updated: Vec<JobId>,
    /// Jobs stopped and deleted.
    pub removed: Vec<JobId>,
    /// Jobs not touched.
    pub untouched: Vec<JobId>,
}

/// An edit of a node's tags (TAG-01, TAG-06).
///
/// ```
/// let edit = greenroom_sdk::EditTags { remove: vec!["rack".to_owned()], ..Default::default() };
/// assert!(edit.set.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditTags {
    /// Keys to set.
    pub set: Tags,
    /// Keys to take away.
    pub remove: Vec<String>,
    /// Refuse unless the tags stand at this revision.
    pub expected_revision: Option<u64>,
}

/// A node's tags after an edit.
///
/// ```no_run
/// # fn example(tags: greenroom_sdk::NodeTags) {
/// println!("{:?} at revision {}", tags.tags.get("rack"), tags.revision);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTags {
    /// All of them.
    pub tags: Tags,
    /// Their revision.
    pub revision: u64,
}

/// How long an elastic node may be empty before the Manager ends it (IDLE-03).
///
/// ```
/// let never = greenroom_sdk::IdleExpiry::default();
/// assert_eq!(never.effective, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleExpiry {
    /// What was set for this node alone.
    pub own: Option<Duration>,
    /// What holds for it; none: it is never ended for being empty.
    pub effective: Option<Duration>,
}

/// A new slot for an owned server.
///
/// ```no_run
/// # fn example(slot: greenroom_sdk::Slot) {
/// println!("{}", slot.node_id);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Id of its node.
    pub node_id: NodeId,
    /// Opens the slot once.
    pub token: Token,
}

/// A secret, which prints as `***` (SEC-12).
///
/// ```
/// let token = greenroom_sdk::Token::new("grt_x");
/// assert_eq!(format!("{token:?}"), "***");
/// assert_eq!(token.reveal(), "grt_x");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A migration to be forgotten by both of its sides (MGR-06).
///
/// ```
/// let abort = greenroom_sdk::AbortMigration { job_id: "clock".into(), ..Default::default() };
/// assert!(abort.migration_id.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortMigration {
    /// The job.
    pub job_id: JobId,
    /// Role of the source.
    pub source_role: Role,
    /// Role of the target.
    pub target_role: Role,
    /// Why.
    pub reason: String,
    /// The migration; empty: whatever is in progress.
    pub migration_id: MigrationId,
}

// === impl Token ===

impl Token {
    /// Takes a secret.
    ///
    /// ```
    /// assert_eq!(greenroom_sdk::Token::new("a").reveal(), "a");
    /// ```
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself.
    ///
    /// ```
    /// assert_eq!(greenroom_sdk::Token::new("a").reveal(), "a");
    /// ```
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The answer's type names its kind, so another one is a fault of this crate's own tables.
fn other_answer(method: &'static str, reply: &Reply) -> Error {
    let kind = match reply {
        Reply::Done => "nothing",
        Reply::JobHash(_) => "a job hash",
        Reply::BundleCreated { .. } => "a created bundle",
        Reply::BundleUpdated { .. } => "an updated bundle",
        Reply::BundleJob(_) => "a bundle job",
        Reply::Tags { .. } => "tags",
        Reply::Slot { .. } => "a slot",
        Reply::StoppedJobs(_) => "stopped jobs",
        Reply::Batch(_) => "a batch",
        Reply::Notified(_) => "notified sides",
        Reply::RunningJobs(_) => "running jobs",
        Reply::Token(_) => "a token",
        Reply::AuditSeq(_) => "an audit entry",
        Reply::AuditPruned { .. } => "a pruned audit log",
        Reply::KvRevision(_) => "a revision",
        Reply::Discovery { .. } => "a discovery fleet",
        Reply::Rotated { .. } => "a rotated fleet",
        Reply::ReplicaVersion(_) => "a version of access roles",
        Reply::Reloaded(_) => "what a reload changed",
        Reply::BundleLease(_) => "a bundle lease",
        Reply::LeasesPaused { .. } => "paused leases",
        Reply::LeasesResumed { .. } => "resumed leases",
    };
    Error::Protocol {
        method,
        field: String::new(),
        problem: format!("{kind} is no answer of this call"),
    }
}
