//! Schema versions of both databases, and the way from an older one to this program's (STORE-06).
//!
//! Version 1 is what [`create`](crate::sqlite::create_schema) writes; each later one is a [`Step`] from the
//! one before. A new database goes all steps as well, so that there is one description of each version. The
//! table `meta` is the same in all versions: it says whose a database is and how far it goes.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::sqlite::{self, Flush, text};

/// Which of the two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    State,
    Log,
}

/// What leads from one version to the next, within a transaction that is the caller's.
pub(crate) struct Step {
    pub(crate) state: fn(&Connection) -> Result<(), String>,
    pub(crate) log: fn(&Connection) -> Result<(), String>,
}

/// The steps of this program, from version 1 on.
#[cfg(not(test))]
const fn steps() -> &'static [Step] {
    &[]
}

#[cfg(test)]
fn steps() -> &'static [Step] {
    crate::migration::tests::steps()
}

/// The version that this program reads and writes, kept as SQLite's `user_version`.
#[allow(
    clippy::missing_const_for_fn,
    reason = "the steps of a test are found when it runs"
)]
pub(crate) fn current() -> u32 {
    1 + u32::try_from(steps().len()).unwrap_or(u32::MAX - 1)
}

/// Why a database was not brought to this program's version.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It is not whole, or there is no room: what a step would do is not known.
    Database(String),
    /// A step failed on a database that is whole.
    Step(String),
}

impl Trouble {
    pub(crate) fn into_cause(self) -> String {
        match self {
            Self::Database(cause) | Self::Step(cause) => cause,
        }
    }
}

/// The version of an opened database. What its first bytes say may be older: a committed change stands
/// in the write-ahead file first.
pub(crate) fn version(connection: &Connection) -> Result<u32, String> {
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(text)
}

/// Goes the steps that are missing, in one transaction. Answers the version that was there.
pub(crate) fn upgrade(connection: &mut Connection, kind: Kind) -> Result<u32, Trouble> {
    let database = |error| Trouble::Database(text(error));
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(database)?;
    let from = version(&transaction).map_err(Trouble::Database)?;
    if from == current() {
        return Ok(from);
    }
    go(&transaction, kind, from).map_err(Trouble::Step)?;
    transaction.commit().map_err(database)?;
    Ok(from)
}

/// The steps from a version on, and the new version's number.
pub(crate) fn go(connection: &Connection, kind: Kind, from: u32) -> Result<(), String> {
    for (number, step) in (1..).zip(steps()).skip_while(|(number, _)| *number < from) {
        let done = match kind {
            Kind::State => (step.state)(connection),
            Kind::Log => (step.log)(connection),
        };
        done.map_err(|cause| format!("from schema {number} to {}: {cause}", number + 1))?;
    }
    connection
        .pragma_update(None, "user_version", current())
        .map_err(text)
}

/// Upgrades a database in its place, durably, and moves all of it into the main file.
pub(crate) fn upgrade_file(path: &Path, kind: Kind) -> Result<(), String> {
    let mut connection = sqlite::open(path, Flush::Always)?;
    upgrade(&mut connection, kind).map_err(Trouble::into_cause)?;
    sqlite::checkpoint(&connection)?;
    connection.close().map_err(|(_, error)| text(error))
}

/// Upgrades a copy that nobody uses and that is to stay one file.
pub(crate) fn upgrade_copy(path: &Path, kind: Kind) -> Result<(), String> {
    let mut connection = Connection::open(path).map_err(text)?;
    sqlite::set_flush(&connection, Flush::Always)?;
    upgrade(&mut connection, kind).map_err(Trouble::into_cause)?;
    connection.close().map_err(|(_, error)| text(error))
}

/// Opens a database for reading as this program's version has it: one of an older version is copied into
/// memory and upgraded there.
pub(crate) fn read_as_current(path: &Path, kind: Kind) -> Result<Connection, Trouble> {
    let file = sqlite::open_reader(path).map_err(Trouble::Database)?;
    if version(&file).map_err(Trouble::Database)? == current() {
        return Ok(file);
    }
    let copied = Connection::open_in_memory().map_err(text);
    let mut copy = copied.map_err(Trouble::Database)?;
    sqlite::copy_pages(&file, &mut copy).map_err(Trouble::Database)?;
    upgrade(&mut copy, kind)?;
    Ok(copy)
}

/// Refuses a database that was not brought to this program's version.
pub(crate) fn demand_current(connection: &Connection) -> Result<(), String> {
    let found = version(connection)?;
    if found == current() {
        return Ok(());
    }
    Err(format!(
        "it has schema version {found}, this program needs {}",
        current()
    ))
}
