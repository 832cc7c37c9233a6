//! What both database files have in common: how they are opened, which durability
//! they must have, their schema version, and a checksummed table of single values.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::record::checksum;
use crate::room;
use crate::schema::{self, Kind};

/// When a commit is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Each commit, before it returns: the log.
    Always,
    /// When the database decides; it may forget the newest commits at a power loss but is
    /// never left between two: the state, which the log can replay.
    Later,
}

impl Flush {
    fn pragma(self) -> i64 {
        match self {
            Self::Always => 2,
            Self::Later => 1,
        }
    }
}

/// What a file's first bytes say, read without the database touching anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peek {
    Absent,
    /// No bytes yet, or a database without a schema: a creation that was cut short.
    Blank,
    Schema(u32),
    NotADatabase,
}

pub(crate) fn peek(path: &Path) -> io::Result<Peek> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Peek::Absent),
        Err(error) => return Err(error),
    };
    let mut header = Vec::with_capacity(100);
    file.by_ref().take(100).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(Peek::Blank);
    }
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Ok(Peek::NotADatabase);
    }
    let version = u32::from_be_bytes([header[60], header[61], header[62], header[63]]);
    Ok(if version == 0 {
        Peek::Blank
    } else {
        Peek::Schema(version)
    })
}

/// Opens for writing, with the journal and flush modes set and read back.
pub(crate) fn open(path: &Path, flush: Flush) -> Result<Connection, String> {
    private_file(path).map_err(|error| error.to_string())?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(text)?;
    connection
        .busy_timeout(Duration::from_secs(5))
        .map_err(text)?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode=WAL", (), |row| row.get(0))
        .map_err(text)?;
    if mode != "wal" {
        return Err(format!("journal mode is {mode}, it must be wal"));
    }
    set_flush(&connection, flush)?;
    Ok(connection)
}

/// Sets when commits are flushed and asserts that the database agrees.
pub(crate) fn set_flush(connection: &Connection, flush: Flush) -> Result<(), String> {
    connection
        .pragma_update(None, "synchronous", flush.pragma())
        .map_err(text)?;
    let set: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .map_err(text)?;
    if set != flush.pragma() {
        return Err(format!(
            "synchronous is {set}, it must be {}",
            flush.pragma()
        ));
    }
    Ok(())
}

/// Opens a second connection that only reads, beside the writing one.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(text)?;
    connection
        .busy_timeout(Duration::from_secs(5))
        .map_err(text)?;
    Ok(connection)
}

/// Creates the schema in one transaction and moves it into the main file, so that
/// [`peek`] sees the version. The tables are those of version 1.
pub(crate) fn create_schema(
    connection: &mut Connection,
    kind: Kind,
    tables: &str,
    values: &[(&str, String)],
) -> Result<(), String> {
    let transaction = connection.transaction().map_err(text)?;
    transaction
        .execute_batch(
            "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER NOT NULL) \
             WITHOUT ROWID",
        )
        .map_err(text)?;
    transaction.execute_batch(tables).map_err(text)?;
    for (key, value) in values {
        put_meta(&transaction, key, value)?;
    }
    schema::go(&transaction, kind, 1)?;
    transaction.commit().map_err(text)?;
    checkpoint(connection)
}

/// Moves everything committed into the main file and flushes it.
pub(crate) fn checkpoint(connection: &Connection) -> Result<(), String> {
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))
        .map_err(text)
}

/// Replaces all of a database by another, in one step: one read snapshot, so that writers cannot make
/// it start over.
pub(crate) fn copy_pages(source: &Connection, target: &mut Connection) -> Result<(), String> {
    let backup = Backup::new(source, target).map_err(text)?;
    match backup.step(-1).map_err(text)? {
        StepResult::Done => Ok(()),
        other => Err(format!("the copy stopped with {other:?}")),
    }
}

/// The database's own check of its structure.
pub(crate) fn quick_check(connection: &Connection) -> Result<(), String> {
    let answer: String = connection
        .query_row("PRAGMA quick_check(1)", (), |row| row.get(0))
        .map_err(text)?;
    if answer == "ok" { Ok(()) } else { Err(answer) }
}

pub(crate) fn put_meta(connection: &Connection, key: &str, value: &str) -> Result<(), String> {
    connection
        .prepare_cached(
            "INSERT INTO meta(key, value, sum) VALUES(?1, ?2, ?3) \
             ON CONFLICT(key) DO UPDATE SET value = excluded.value, sum = excluded.sum",
        )
        .and_then(|mut put| put.execute((key, value, meta_sum(key, value))))
        .map(drop)
        .map_err(text)
}

pub(crate) fn get_meta(connection: &Connection, key: &str) -> Result<Option<String>, String> {
    let found: Option<(String, i64)> = connection
        .prepare_cached("SELECT value, sum FROM meta WHERE key = ?1")
        .and_then(|mut get| {
            get.query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })
        .map_err(text)?;
    match found {
        Some((value, sum)) if sum != meta_sum(key, &value) => {
            Err(format!("the value {key} does not match its checksum"))
        }
        found => Ok(found.map(|(value, _)| value)),
    }
}

fn meta_sum(key: &str, value: &str) -> i64 {
    checksum(&[key.as_bytes(), value.as_bytes()])
}

/// Makes the file with mode 0600 before the database opens it; the database gives its
/// side files the same mode.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// The database's message. Its errors are not passed on as values: no other part of
/// the program may come to depend on them.
pub(crate) fn text(error: rusqlite::Error) -> String {
    match error.sqlite_error() {
        // The one failure of a full disk that the database calls by another name: the index of the
        // write-ahead file could not be made longer.
        Some(failure) if failure.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => {
            format!(
                "{} (for the index of the write-ahead file)",
                room::SQLITE_FULL
            )
        }
        _ => error.to_string(),
    }
}

/// SQLite's integers are signed; log indexes and terms stay far below the sign bit.
pub(crate) fn signed(value: u64) -> i64 {
    value.cast_signed()
}
