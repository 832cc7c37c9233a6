//! A small machine to run the store with: named counters, and pairs that must be equal.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use greenroom_store::{
    Applied, BootReport, Clock, Machine, OpenError, OutputReceiver, Row, RowChange, Stamp, Store,
    StoreConfig,
};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

/// What can be proposed to [`Counters`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Adds to a counter.
    Add { name: String, by: i64 },
    /// Writes the same value under two names.
    Pair { name: String, value: i64 },
    /// Removes a counter.
    Remove { name: String },
    /// Panics, as a faulty machine would.
    Panic,
}

/// Counters by name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) values: BTreeMap<String, i64>,
    digest: u64,
}

impl Counters {
    pub(crate) fn of(values: BTreeMap<String, i64>) -> Self {
        Self { values, digest: 0 }
    }

    pub(crate) fn get(&self, name: &str) -> Option<i64> {
        self.values.get(name).copied()
    }

    fn set(&mut self, name: &str, value: Option<i64>) -> RowChange {
        if let Some(old) = self.values.remove(name) {
            self.digest ^= mix(name, old);
        }
        if let Some(value) = value {
            self.values.insert(name.to_owned(), value);
            self.digest ^= mix(name, value);
        }
        RowChange {
            table: "counters",
            key: name.to_owned(),
            value: value.map(|value| value.to_string()),
        }
    }
}

fn mix(name: &str, value: i64) -> u64 {
    name.bytes()
        .chain(value.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

impl Machine for Counters {
    type Command = Command;
    /// The counter's new value.
    type Outcome = Option<i64>;
    /// The changed name and the proposer's time.
    type Output = (String, i64);

    fn load(rows: impl Iterator<Item = Row>) -> Result<Self, String> {
        let mut machine = Self::default();
        for row in rows {
            let value = row
                .value
                .parse()
                .map_err(|error| format!("{}: {error}", row.key))?;
            machine.set(&row.key, Some(value));
        }
        Ok(machine)
    }

    fn apply(&mut self, stamp: Stamp, command: Command) -> Applied<Option<i64>, (String, i64)> {
        let (name, rows) = match command {
            Command::Add { name, by } => {
                let value = self.get(&name).unwrap_or(0) + by;
                let row = self.set(&name, Some(value));
                (name, vec![row])
            }
            Command::Pair { name, value } => {
                let rows = ["left", "right"]
                    .map(|side| self.set(&format!("{name}.{side}"), Some(value)))
                    .into();
                (format!("{name}.left"), rows)
            }
            Command::Remove { name } => {
                let row = self.set(&name, None);
                (name, vec![row])
            }
            Command::Panic => panic!("the machine is faulty"),
        };
        Applied {
            outcome: self.get(&name),
            output: (name, stamp.wall_ms),
            rows,
        }
    }

    fn digest(&self) -> Option<u64> {
        Some(self.digest)
    }
}

/// A clock that shows one more at every look.
#[derive(Debug, Default)]
pub(crate) struct Ticks(AtomicI64);

impl Ticks {
    pub(crate) fn looks(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for Ticks {
    fn wall_ms(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

pub(crate) fn config(dir: &Path) -> StoreConfig {
    StoreConfig::new(dir, Arc::new(Ticks::default()))
}

pub(crate) type Opened = (Store<Counters>, OutputReceiver<Counters>, BootReport);

pub(crate) async fn open(dir: &Path) -> Opened {
    Store::open(config(dir)).await.expect("open")
}

pub(crate) fn add(name: &str, by: i64) -> Command {
    Command::Add {
        name: name.to_owned(),
        by,
    }
}

pub(crate) async fn fill(store: &Store<Counters>, name: &str, times: usize) {
    for _ in 0..times {
        store.propose(add(name, 1)).await.expect("propose");
    }
}

pub(crate) async fn refused(dir: &Path) -> OpenError {
    match Store::<Counters>::open(config(dir)).await {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}

/// A store with `a` counted to `times`, shut down.
pub(crate) async fn store_with(dir: &Path, times: usize) {
    let (store, _, _) = open(dir).await;
    fill(&store, "a", times).await;
    store.shutdown().await.expect("shutdown");
}

pub(crate) fn value(store: &Store<Counters>, name: &str) -> Option<i64> {
    store.read(|machine| machine.get(name))
}

/// Runs a statement on a database behind the store's back.
pub(crate) fn tamper(file: &Path, sql: &str) {
    let connection = Connection::open(file).expect("open");
    connection.execute_batch(sql).expect("tamper");
}
