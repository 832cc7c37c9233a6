//! The ledger as the machine that the store keeps.

use std::sync::Arc;

use greenroom_ledger as ledger;
use greenroom_ledger::{Change, Command, Ledger, Order, Registered, Subject};
use greenroom_store::{Applied, Machine, Row, RowChange, Stamp};
use greenroom_types::Wall;
use greenroom_types::call::{AuditEntry, CallResult};

/// The Manager's ledger under the store.
pub(crate) struct Recorded(pub(crate) Ledger);

/// What the proposer of a command is told.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: CallResult,
    pub(crate) registered: Option<Registered>,
}

/// What one commit gives to the conductor.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) changes: Vec<Change>,
    pub(crate) audit: Vec<Arc<AuditEntry>>,
    pub(crate) orders: Vec<Order>,
    pub(crate) touched: Vec<Subject>,
}

impl Machine for Recorded {
    type Command = Command;
    type Outcome = Answer;
    type Output = Committed;

    fn load(rows: impl Iterator<Item = Row>) -> Result<Self, String> {
        let rows = rows.map(|Row { table, key, value }| ledger::Row { table, key, value });
        Ledger::load(rows)
            .map(Self)
            .map_err(|error| error.to_string())
    }

    fn apply(&mut self, stamp: Stamp, command: Command) -> Applied<Answer, Committed> {
        let applied = self.0.apply(Wall(stamp.wall_ms), command);
        Applied {
            outcome: Answer {
                result: applied.outcome,
                registered: applied.registered,
            },
            output: Committed {
                changes: applied.changes,
                audit: applied.audit,
                orders: applied.orders,
                touched: applied.touched,
            },
            rows: applied
                .rows
                .into_iter()
                .map(|ledger::RowChange { table, key, value }| RowChange { table, key, value })
                .collect(),
        }
    }
}
