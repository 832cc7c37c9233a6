//! What the store asks of the state machine it carries.
//!
//! The machine is pure: it gets commands with a stamp and returns what follows.
//! It never sees the log, the files or a clock, so the same machine runs in a
//! simulator without this crate.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A deterministic state machine.
///
/// Two machines that applied the same commands with the same stamps in the same
/// order must be equal: every member of a cluster and every replay after a crash
/// relies on it.
pub trait Machine: Sized + Send + Sync + 'static {
    /// What can be proposed. Its JSON form goes into the log and must stay
    /// readable by later versions.
    type Command: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;
    /// The answer to one command. A refusal is an outcome too.
    type Outcome: Send + 'static;
    /// Events and orders that came out of one apply, in order.
    type Output: Send + 'static;

    /// Rebuilds the machine from the rows it once returned, sorted by table and key.
    ///
    /// No rows at all means a new store.
    fn load(rows: impl Iterator<Item = Row>) -> Result<Self, String>;

    /// Applies one command. Must not fail: a refusal is an `Outcome`.
    fn apply(
        &mut self,
        stamp: Stamp,
        command: Self::Command,
    ) -> Applied<Self::Outcome, Self::Output>;

    /// A running digest over the whole state, cheap to read, or `None` when the
    /// machine keeps none.
    ///
    /// The store writes it beside the rows and compares it after [`Machine::load`]:
    /// a machine that comes back different from the one that wrote is refused.
    fn digest(&self) -> Option<u64> {
        None
    }
}

/// Where and when a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The command's place in the log, which is the revision of the state after it.
    /// Revisions rise strictly; there may be gaps, which the consensus itself uses.
    pub index: u64,
    /// Unix time in milliseconds read by the proposer. It may step backwards from
    /// one command to the next when the proposer's clock does.
    pub wall_ms: i64,
}

/// What follows from one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied<O, X> {
    /// The answer to the proposer.
    pub outcome: O,
    /// What everybody else has to hear of, delivered by the output receiver.
    pub output: X,
    /// The rows to write, in order; a later change of the same key wins.
    pub rows: Vec<RowChange>,
}

/// One stored row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Name of the machine's table.
    pub table: String,
    /// Key within the table.
    pub key: String,
    /// JSON text; the machine versions it.
    pub value: String,
}

/// One row to write or remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// Name of the machine's table.
    pub table: &'static str,
    /// Key within the table.
    pub key: String,
    /// The new JSON text, or `None` to remove the row.
    pub value: Option<String>,
}

/// Where the store reads the time that it stamps on proposals and backups.
pub trait Clock: Send + Sync + 'static {
    /// Unix time in milliseconds.
    fn wall_ms(&self) -> i64;
}
