//! The deadlines of the Manager, on the monotonic clock: what to propose and what to say again when
//! nothing happens.
//!
//! A deadline is a function of the ledger's state; the keeper only remembers since when each one
//! runs. It is not replicated: a new one begins every deadline anew, so that a restart or a takeover
//! gives nothing up early (CLUST-17). It decides nothing by itself: what it proposes is a
//! [`Command`], and the ledger looks again whether the reason still holds.

use greenroom_types::{Millis, Mono, NodeId, Now, StartId};
use serde::{Deserialize, Serialize};

use crate::change::Subject;
use crate::command::Command;
use crate::ledger::Ledger;
use crate::order::Order;

/// Durations of all waits, with the defaults of the specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KeeperSettings {
    /// An unreachable node is given up after this (MNODE-11).
    pub drop_grace_ms: Millis,
    /// A given-up node is stopped after this much more (MNODE-12).
    pub keepalive_ms: Millis,
    /// A machine may be pending at its provider for this long (MNODE-06).
    pub pending_ms: Millis,
    /// A running machine's worker must be dialled within this (MNODE-06).
    pub startup_ms: Millis,
    /// An open stream must bring a valid hello within this (MNODE-06).
    pub hello_ms: Millis,
    /// A worker that called in must be dialled within this (LOCAL-09).
    pub dial_ms: Millis,
    /// A provision message without answer is sent again after this (JOB-19).
    pub provision_ms: Millis,
    /// How often it is sent again (JOB-19).
    pub provision_repeats: u32,
    /// A stop without report is repeated this much after its grace (JOB-26).
    pub stop_ms: Millis,
    /// A stop that is stuck is repeated this often (JOB-26).
    pub stuck_ms: Millis,
    /// A deleted job's instance may be out of reach for this long (BDL-19).
    pub unreachable_ms: Millis,
    /// A stopped node stays in the record for this long (MNODE-18).
    pub forget_ms: Millis,
    /// A forward step of the wall clock above this is not believed at once (BSTOP-03).
    pub clock_step_ms: Millis,
    /// It is believed after this (BSTOP-03).
    pub clock_confirm_ms: Millis,
    /// When this process itself ran this much late, waits for others are extended by it (MNODE-09).
    pub stall_ms: Millis,
}

/// What became of the attempt to reach a worker, as its dialler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// A stream is open; no hello yet.
    Opened,
    /// It closed again, or could not be opened.
    Closed,
}

/// What is due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wakeup {
    /// To be proposed, in this order.
    pub commands: Vec<Command>,
    /// To be sent again; nothing is committed for them.
    pub orders: Vec<Order>,
}

/// The deadlines that run.
#[derive(Clone, Debug)]
pub struct Keeper {
    settings: KeeperSettings,
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            drop_grace_ms: Millis(3_000),
            keepalive_ms: Millis(30_000),
            pending_ms: Millis(300_000),
            startup_ms: Millis(300_000),
            hello_ms: Millis(30_000),
            dial_ms: Millis(60_000),
            provision_ms: Millis(5_000),
            provision_repeats: 3,
            stop_ms: Millis(30_000),
            stuck_ms: Millis(60_000),
            unreachable_ms: Millis(60_000),
            forget_ms: Millis(3_600_000),
            clock_step_ms: Millis(60_000),
            clock_confirm_ms: Millis(30_000),
            stall_ms: Millis(1_000),
        }
    }
}

// === impl Keeper ===

impl Keeper {
    /// Begins every deadline of this state now.
    pub fn new(settings: KeeperSettings, now: Now, ledger: &Ledger) -> Self {
        let _ = (now, ledger);
        Self { settings }
    }

    /// Looks again at what an apply touched. Call it after every apply, with [`crate::Applied::touched`].
    pub fn observe(&mut self, now: Now, ledger: &Ledger, touched: &[Subject]) {
        let _ = (now, ledger, touched, &self.settings);
    }

    /// Takes news of the line to a node's worker.
    pub fn line(&mut self, now: Now, ledger: &Ledger, node_id: &NodeId, line: Line) {
        let _ = (now, ledger, node_id, line);
    }

    /// The earliest moment at which something may be due. A driver also calls [`Keeper::due`] at
    /// least once a second, because a wall clock that was set announces itself by nothing.
    pub fn next_deadline(&self) -> Option<Mono> {
        None
    }

    /// What is due now.
    pub fn due(&mut self, now: Now, ledger: &Ledger) -> Wakeup {
        let _ = (now, ledger);
        Wakeup::default()
    }

    /// Stops that are overdue although they were repeated (JOB-26).
    pub fn stuck_stops(&self) -> impl Iterator<Item = &StartId> {
        std::iter::empty()
    }
}
