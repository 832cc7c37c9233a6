//! What one apply gives back: outcome, changes for subscribers, orders, rows.

use std::sync::Arc;

use greenroom_types::call::{AuditEntry, CallResult};
use greenroom_types::job::JobWithHistory;
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, NodeId, StartId, Wall};

use crate::command::Registered;
use crate::order::Order;

/// Everything that follows from one command. A refusal has no changes, no orders and no rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The answer to whoever proposed it.
    pub outcome: CallResult,
    /// The answer to a worker that called in.
    pub registered: Option<Registered>,
    /// For subscribers, in order, each with its own seq.
    pub changes: Vec<Change>,
    /// Appended to the audit log. They are told without numbers of their own in the stream: an entry
    /// has one of its own (AUDIT-09).
    pub audit: Vec<Arc<AuditEntry>>,
    /// For workers and providers, in order, after the commit is durable.
    pub orders: Vec<Order>,
    /// For the store, in the same transaction; a later change of a key wins.
    pub rows: Vec<RowChange>,
    /// What the [`crate::Keeper`] and the [`crate::LeaseClock`] have to look at again.
    pub touched: Vec<Subject>,
}

/// One change, as the event stream numbers it (EVT-04).
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Grows by one with each change within an epoch.
    pub seq: u64,
    /// Wall stamp of the commit.
    pub at: Wall,
    /// What changed.
    pub what: What,
}

/// What changed.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A job as it now stands; which event that is depends on the subscriber's window (EVT-08).
    Job(Arc<JobWithHistory>),
    /// A job is gone.
    JobDeleted(JobId),
    /// An event that is the same for every subscriber.
    Event(StreamEvent),
}

/// A thing whose deadlines may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A node.
    Node(NodeId),
    /// An instance.
    Instance(StartId),
    /// A bundle.
    Bundle(BundleId),
    /// The lease of a key, which the [`crate::LeaseClock`] has to look at.
    Lease(InstanceKey),
    /// The lease of a bundle, likewise.
    BundleLease(BundleId),
    /// The pause of all leases, likewise.
    LeasePause,
    /// The time after a restore (STORE-11).
    Restore,
}

/// One row to write or remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// Table.
    pub table: &'static str,
    /// Key within the table.
    pub key: String,
    /// JSON with its version under `v`; none removes the row.
    pub value: Option<String>,
}

/// One stored row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Table.
    pub table: String,
    /// Key within the table.
    pub key: String,
    /// JSON with its version under `v`.
    pub value: String,
}
