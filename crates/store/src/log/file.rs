//! Creating, opening and checking `log.db`, before anything runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::window::Window;
use crate::directory::Identity;
use crate::raft::{Entry, LogId, Vote};
use crate::record::{self, LogRecord, PlaceRecord, VoteRecord};
use crate::room::Reserve;
use crate::schema::{self, Kind};
use crate::sqlite::{self, Flush, signed, text};
use crate::state::Standing;

/// An opened `log.db` before the writer thread has it.
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    pub(super) connection: Connection,
    pub(crate) identity: Identity,
    pub(super) window: Window,
    /// What a write on a full disk may take.
    pub(crate) reserve: Arc<Reserve>,
}

impl LogFile {
    /// Creates an empty log that continues after `purged`.
    pub(crate) fn create(
        path: &Path,
        identity: &Identity,
        purged: Option<LogId>,
        vote: Option<Vote>,
    ) -> Result<Self, String> {
        let mut connection = sqlite::open(path, Flush::Always)?;
        let mut values = vec![("identity", record::write_versioned(identity)?)];
        if let Some(purged) = purged {
            values.push((
                "purged",
                record::write_versioned(PlaceRecord::from(purged))?,
            ));
        }
        if let Some(vote) = vote {
            values.push(("vote", record::write_versioned(VoteRecord::from(vote))?));
        }
        sqlite::create_schema(
            &mut connection,
            Kind::Log,
            "CREATE TABLE log(idx INTEGER PRIMARY KEY, generation INTEGER NOT NULL, \
             term INTEGER NOT NULL, node INTEGER NOT NULL, kind INTEGER NOT NULL, \
             body BLOB NOT NULL, sum INTEGER NOT NULL)",
            &values,
        )?;
        drop(connection);
        Self::open(path)
    }

    /// Opens an existing log and verifies all of it: structure, values, and every entry.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let connection = sqlite::open(path, Flush::Always)?;
        sqlite::quick_check(&connection)?;
        schema::demand_current(&connection)?;
        let identity = sqlite::get_meta(&connection, "identity")?
            .ok_or_else(|| "the identity is missing".to_owned())
            .and_then(|text| record::read_versioned(&text))?;
        let place = |key| -> Result<Option<LogId>, String> {
            let Some(text) = sqlite::get_meta(&connection, key)? else {
                return Ok(None);
            };
            Ok(Some(record::read_versioned::<PlaceRecord>(&text)?.into()))
        };
        let purged = place("purged")?;
        let committed = place("committed")?;
        let vote = match sqlite::get_meta(&connection, "vote")? {
            Some(text) => Some(record::read_versioned::<VoteRecord>(&text)?.into()),
            None => None,
        };
        let (first, last, count): (Option<i64>, Option<i64>, i64) = connection
            .query_row("SELECT min(idx), max(idx), count(*) FROM log", (), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .map_err(text)?;
        let mut end = purged;
        if let (Some(first), Some(last)) = (first, last) {
            let expected = purged.map_or(0, |id| signed(id.index + 1));
            if first != expected || last - first + 1 != count {
                return Err(format!(
                    "entries {first} to {last} are {count} rows; \
                     the log must begin at {expected} and have no hole"
                ));
            }
            end = check(&connection, first.cast_unsigned(), last.cast_unsigned() + 1)?;
        }
        let window = Window {
            purged,
            last: end,
            vote,
            // The hint may be older than the log, never newer.
            committed: committed.min(end),
            flushed: end.map(|id| id.index),
            ..Window::default()
        };
        Ok(Self {
            path: path.to_owned(),
            connection,
            identity,
            window,
            reserve: Arc::new(Reserve::none()),
        })
    }

    /// Whether the log goes on where a state ends, in the same history: the state's newest
    /// entry is the last purged one or stands in the log. After a restore two histories
    /// can use the same indexes and terms; the generation tells them apart.
    pub(crate) fn continues(&self, standing: &Standing) -> Result<bool, String> {
        let Some(applied) = standing.applied else {
            return Ok(self.window.purged.is_none());
        };
        if self.window.purged == Some(applied) {
            return Ok(true);
        }
        let generation = standing
            .identity
            .as_ref()
            .map(|identity| signed(identity.generation));
        let row: Option<(Option<i64>, i64, i64)> = self
            .connection
            .query_row(
                "SELECT generation, term, node FROM log WHERE idx = ?1",
                [signed(applied.index)],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .optional()
            .map_err(text)?;
        let place = (
            generation,
            signed(applied.leader_id.term),
            signed(applied.leader_id.node_id),
        );
        Ok(row == Some(place))
    }

    /// The last entry that was let go.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.window.purged
    }

    /// The newest entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.window.last
    }

    pub(crate) fn vote(&self) -> Option<Vote> {
        self.window.vote
    }
}

/// Reads all entries once and answers the newest one's place. What a snapshot holds is
/// purged, so this is bounded by the distance between snapshots.
fn check(connection: &Connection, first: u64, end: u64) -> Result<Option<LogId>, String> {
    const STEP: u64 = 1_000;
    let mut newest = None;
    let mut start = first;
    while start < end {
        let next = end.min(start + STEP);
        newest = read_rows(connection, start, next)?
            .last()
            .map(|entry| entry.log_id);
        start = next;
    }
    Ok(newest)
}

/// Reads the rows `[start, end)` that there are, each checked against its checksum.
pub(super) fn read_rows(
    connection: &Connection,
    start: u64,
    end: u64,
) -> Result<Vec<Entry>, String> {
    let mut select = connection
        .prepare_cached(
            "SELECT idx, generation, term, node, kind, body, sum FROM log \
             WHERE idx >= ?1 AND idx < ?2 ORDER BY idx",
        )
        .map_err(text)?;
    let mut rows = select.query([signed(start), signed(end)]).map_err(text)?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next().map_err(text)? {
        let number = |column| {
            row.get::<_, i64>(column)
                .map(i64::cast_unsigned)
                .map_err(text)
        };
        let record = LogRecord {
            index: number(0)?,
            generation: number(1)?,
            term: number(2)?,
            node: number(3)?,
            kind: row.get(4).map_err(text)?,
            body: row.get(5).map_err(text)?,
        };
        let sum: i64 = row.get(6).map_err(text)?;
        if sum != record.checksum() {
            return Err(format!(
                "entry {} does not match its checksum",
                record.index
            ));
        }
        entries.push(record.into_entry()?);
    }
    Ok(entries)
}
