//! The state on disk: `state.db`, which holds the machine's rows and how far they go.
//!
//! Rows, the applied place, the membership and the machine's digest change in one
//! transaction, so the file always stands exactly behind some entry of the log. It is
//! not flushed at every commit; what a power loss takes from it, the log replays.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::directory::{Identity, sync_folder, with_side_files};
use crate::machine::{Machine, Row, RowChange};
use crate::raft::{LogId, StoredMembers};
use crate::record::{self, PlaceRecord, StandingMembersRecord, checksum};
use crate::room::{self, Reserve};
use crate::schema::{self, Kind, Trouble};
use crate::sqlite::{self, Flush, text};

/// An opened `state.db`.
pub(crate) struct StateFile {
    path: PathBuf,
    connection: Connection,
    standing: Standing,
}

/// How far a state goes, and whose it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    /// Cluster and generation; `member` is that of the writer and means nothing here.
    pub(crate) identity: Option<Identity>,
    pub(crate) applied: Option<LogId>,
    pub(crate) members: StoredMembers,
    /// The stamp of the newest command.
    pub(crate) wall_ms: Option<i64>,
    pub(crate) digest: Option<u64>,
}

/// A whole state in one file, as members send it to each other.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    pub(crate) path: PathBuf,
}

// === impl StateFile ===

impl StateFile {
    pub(crate) fn create(path: &Path, identity: &Identity) -> Result<Self, String> {
        let mut connection = sqlite::open(path, Flush::Later)?;
        let values = [("identity", record::write_versioned(identity)?)];
        sqlite::create_schema(
            &mut connection,
            Kind::State,
            "CREATE TABLE rows(tbl TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, \
             sum INTEGER NOT NULL, PRIMARY KEY(tbl, key)) WITHOUT ROWID",
            &values,
        )?;
        drop(connection);
        Self::open(path)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let connection = sqlite::open(path, Flush::Later)?;
        sqlite::quick_check(&connection)?;
        schema::demand_current(&connection)?;
        let standing = read_standing(&connection)?;
        Ok(Self {
            path: path.to_owned(),
            connection,
            standing,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Rebuilds the machine; see [`load`].
    pub(crate) fn load<M: Machine>(&self) -> Result<Result<M, String>, String> {
        load(&self.connection, &self.standing)
    }

    /// Writes one batch of applies in one transaction.
    pub(crate) fn commit(&mut self, rows: &[RowChange], next: Standing) -> Result<(), String> {
        let transaction = self.connection.transaction().map_err(text)?;
        {
            let mut put = transaction
                .prepare_cached(
                    "INSERT INTO rows(tbl, key, value, sum) VALUES(?1, ?2, ?3, ?4) \
                     ON CONFLICT(tbl, key) DO UPDATE SET value = excluded.value, sum = excluded.sum",
                )
                .map_err(text)?;
            let mut remove = transaction
                .prepare_cached("DELETE FROM rows WHERE tbl = ?1 AND key = ?2")
                .map_err(text)?;
            for row in rows {
                match &row.value {
                    Some(value) => {
                        let sum = row_sum(row.table, &row.key, value);
                        put.execute((row.table, &row.key, value, sum))
                            .map_err(text)?;
                    }
                    None => {
                        remove.execute((row.table, &row.key)).map_err(text)?;
                    }
                }
            }
            if next.members != self.standing.members {
                put_members(&transaction, &next.members)?;
            }
            put_place(&transaction, &next)?;
        }
        transaction.commit().map_err(text)?;
        self.standing = next;
        Ok(())
    }

    /// Flushes everything committed so far.
    ///
    /// A commit in the flushing mode syncs the write-ahead file, and with it every
    /// earlier commit that still stands only there.
    pub(crate) fn make_durable(&mut self) -> Result<(), String> {
        sqlite::set_flush(&self.connection, Flush::Always)?;
        let index = self
            .standing
            .applied
            .map_or_else(String::new, |id| id.index.to_string());
        let result = sqlite::put_meta(&self.connection, "durable", &index);
        sqlite::set_flush(&self.connection, Flush::Later)?;
        result
    }

    /// Replaces the whole content by that of a verified copy, in one transaction.
    pub(crate) fn replace(&mut self, copy: &Path) -> Result<(), String> {
        verify(copy)?;
        let identity = self.standing.identity.clone();
        {
            let source = sqlite::open_reader(copy)?;
            sqlite::copy_pages(&source, &mut self.connection)?;
        }
        schema::upgrade(&mut self.connection, Kind::State).map_err(Trouble::into_cause)?;
        if let Some(identity) = identity {
            let identity = record::write_versioned(&identity)?;
            sqlite::put_meta(&self.connection, "identity", &identity)?;
        }
        self.standing = read_standing(&self.connection)?;
        self.make_durable()
    }

    /// Writes who this state belongs to from now on, and a membership of that member alone.
    pub(crate) fn adopt(
        &mut self,
        identity: &Identity,
        members: StoredMembers,
    ) -> Result<(), String> {
        let transaction = self.connection.transaction().map_err(text)?;
        sqlite::put_meta(
            &transaction,
            "identity",
            &record::write_versioned(identity)?,
        )?;
        put_members(&transaction, &members)?;
        transaction.commit().map_err(text)?;
        self.standing.identity = Some(identity.clone());
        self.standing.members = members;
        self.make_durable()
    }

    /// Moves everything into the main file and closes it.
    pub(crate) fn close(self, reserve: &Reserve) -> Result<(), String> {
        match reserve.with_room(|| sqlite::checkpoint(&self.connection)) {
            // What the disk has no room to move stays in the write-ahead file, as good.
            Err(cause) if room::says_full(&cause) => {
                tracing::warn!(%cause, "the state is closed with its write-ahead file");
            }
            moved => moved?,
        }
        self.connection.close().map_err(|(_, error)| text(error))
    }
}

/// Copies the state as it is now into a file of its own and flushes it. Commits go on
/// meanwhile: the copy reads one snapshot of the write-ahead file.
pub(crate) fn copy(state: &Path, target: &Path) -> Result<Standing, String> {
    let copied = copy_to(state, target);
    if copied.is_err() {
        // Half a copy is of no use, and it may be what fills the disk.
        for part in with_side_files(target) {
            fs::remove_file(part).ok();
        }
    }
    copied
}

fn copy_to(state: &Path, target: &Path) -> Result<Standing, String> {
    for stale in with_side_files(target) {
        match fs::remove_file(&stale) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let source = sqlite::open_reader(state)?;
    sqlite::private_file(target).map_err(|error| error.to_string())?;
    let mut connection = Connection::open(target).map_err(text)?;
    sqlite::copy_pages(&source, &mut connection)?;
    // The copy must be one file: without this it would want side files when opened.
    connection
        .query_row("PRAGMA journal_mode=DELETE", (), |row| {
            row.get::<_, String>(0)
        })
        .map_err(text)?;
    let standing = read_standing(&connection)?;
    connection.close().map_err(|(_, error)| text(error))?;
    File::open(target)
        .and_then(|file| file.sync_all())
        .map_err(|error| error.to_string())?;
    Ok(standing)
}

/// Puts a finished copy under its final name, durably.
pub(crate) fn publish(beside: &Path, target: &Path) -> std::io::Result<()> {
    fs::rename(beside, target)?;
    match target.parent() {
        // A name alone is in the folder where the process is.
        Some(folder) if folder.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(folder) => sync_folder(folder),
        None => Ok(()),
    }
}

/// Reads all of a copy: structure, every row's checksum, and how far it goes.
pub(crate) fn verify(path: &Path) -> Result<Standing, String> {
    match sqlite::peek(path).map_err(|error| error.to_string())? {
        sqlite::Peek::Schema(version) if version <= schema::current() => {}
        other => return Err(format!("not a state of this version ({other:?})")),
    }
    sqlite::quick_check(&sqlite::open_reader(path)?)?;
    let connection = schema::read_as_current(path, Kind::State).map_err(Trouble::into_cause)?;
    each_row(&connection, |rows| rows.for_each(drop))?;
    read_standing(&connection)
}

/// Rebuilds the machine from a copy without changing the copy; see [`load`].
pub(crate) fn load_copy<M: Machine>(path: &Path) -> Result<Result<M, String>, String> {
    let connection = schema::read_as_current(path, Kind::State).map_err(Trouble::into_cause)?;
    let standing = read_standing(&connection)?;
    load(&connection, &standing)
}

/// Says how far a copy goes, without reading all of it.
pub(crate) fn standing_of(path: &Path) -> Result<Standing, String> {
    read_standing(&sqlite::open_reader(path)?)
}

/// Rebuilds the machine and compares its digest with the one that was written.
///
/// The outer error says that the file is damaged. The inner one says that the file is
/// whole but the machine does not accept it, which no other copy would cure.
fn load<M: Machine>(
    connection: &Connection,
    standing: &Standing,
) -> Result<Result<M, String>, String> {
    let loaded: Result<M, String> = each_row(connection, |rows| M::load(rows))?;
    Ok(
        loaded.and_then(|machine| match (standing.digest, machine.digest()) {
            (Some(written), Some(loaded)) if written != loaded => Err(format!(
                "the rows give the digest {loaded:016x}, {written:016x} was written with them"
            )),
            _ => Ok(machine),
        }),
    )
}

fn read_standing(connection: &Connection) -> Result<Standing, String> {
    let identity = sqlite::get_meta(connection, "identity")?
        .map(|text| record::read_versioned(&text))
        .transpose()?;
    let members = match sqlite::get_meta(connection, "members")? {
        Some(text) => record::read_versioned::<StandingMembersRecord>(&text)?.standing()?,
        None => StoredMembers::default(),
    };
    let mut standing = Standing {
        identity,
        members,
        ..Standing::default()
    };
    if let Some(text) = sqlite::get_meta(connection, "applied")? {
        let applied: AppliedRecord = record::read_versioned(&text)?;
        standing.applied = Some(applied.at.into());
        standing.wall_ms = applied.wall_ms;
        standing.digest = applied
            .digest
            .map(|digest| u64::from_str_radix(&digest, 16))
            .transpose()
            .map_err(|error| format!("digest: {error}"))?;
    }
    Ok(standing)
}

/// How far the rows go, as it is written.
#[derive(serde::Serialize, serde::Deserialize)]
struct AppliedRecord {
    at: PlaceRecord,
    wall_ms: Option<i64>,
    /// Hexadecimal, because JSON numbers do not hold all 64 bits everywhere.
    digest: Option<String>,
}

fn put_place(connection: &Connection, standing: &Standing) -> Result<(), String> {
    let Some(applied) = standing.applied else {
        return Ok(());
    };
    let record = AppliedRecord {
        at: applied.into(),
        wall_ms: standing.wall_ms,
        digest: standing.digest.map(|digest| format!("{digest:016x}")),
    };
    sqlite::put_meta(connection, "applied", &record::write_versioned(record)?)
}

fn put_members(connection: &Connection, members: &StoredMembers) -> Result<(), String> {
    let record = record::write_versioned(StandingMembersRecord::new(members))?;
    sqlite::put_meta(connection, "members", &record)
}

/// Hands all rows to `use_rows`, sorted, and fails if one could not be read or does not
/// match its checksum.
fn each_row<R>(
    connection: &Connection,
    use_rows: impl FnOnce(&mut dyn Iterator<Item = Row>) -> R,
) -> Result<R, String> {
    let mut select = connection
        .prepare("SELECT tbl, key, value, sum FROM rows ORDER BY tbl, key")
        .map_err(text)?;
    let mut rows = select.query(()).map_err(text)?;
    let failure = Cell::new(None);
    let mut iterator = std::iter::from_fn(|| match next_row(&mut rows) {
        Ok(row) => row,
        Err(cause) => {
            failure.set(Some(cause));
            None
        }
    });
    let result = use_rows(&mut iterator);
    match failure.take() {
        Some(cause) => Err(cause),
        None => Ok(result),
    }
}

fn next_row(rows: &mut rusqlite::Rows<'_>) -> Result<Option<Row>, String> {
    let Some(found) = rows.next().map_err(text)? else {
        return Ok(None);
    };
    let row = Row {
        table: found.get(0).map_err(text)?,
        key: found.get(1).map_err(text)?,
        value: found.get(2).map_err(text)?,
    };
    let sum: i64 = found.get(3).map_err(text)?;
    if sum != row_sum(&row.table, &row.key, &row.value) {
        return Err(format!(
            "row {}/{} does not match its checksum",
            row.table, row.key
        ));
    }
    Ok(Some(row))
}

fn row_sum(table: &str, key: &str, value: &str) -> i64 {
    checksum(&[table.as_bytes(), key.as_bytes(), value.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: STORE-02
    #[test]
    fn the_state_lets_the_database_flush_and_says_so_when_it_is_made_durable() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("state.db");
        let identity = Identity {
            cluster: "c".to_owned(),
            generation: 1,
            member: 1,
        };
        let mut file = StateFile::create(&path, &identity).expect("state");
        let synchronous = |file: &StateFile| {
            file.connection
                .pragma_query_value(None, "synchronous", |row| row.get(0))
        };
        assert_eq!(synchronous(&file), Ok(1));
        file.make_durable().expect("durable");
        assert_eq!(
            synchronous(&file),
            Ok(1),
            "later commits do not wait for a flush"
        );
        let mode: String = file
            .connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .expect("mode");
        assert_eq!(mode, "wal");
    }
}
