//! The durable engine around a deterministic state machine.
//!
//! A caller hands in a [`Machine`]; the store gives every command a place in one
//! ordered log, makes it durable, applies it, writes the rows it changed, and
//! answers. After a crash the store rebuilds the machine from its rows and
//! replays the log's tail, so whatever was acknowledged is there again.
//!
//! One code path serves one Manager and several: a single Manager is a
//! consensus group with one voter. This crate alone knows the types of the
//! consensus library and of SQLite; on disk stand only records of our own
//! (see `record.rs`), so either library can be exchanged without touching data.
//!
//! The store does not interpret commands, rows or outputs, keeps no timers and
//! reads no clock besides the [`Clock`] handed to it.

#[cfg(test)]
extern crate self as greenroom_store;

mod apply;
mod backup;
mod boot;
mod checks;
mod config;
mod directory;
mod error;
mod fatal;
mod log;
mod machine;
mod migration;
mod network;
pub mod offline;
mod output;
mod raft;
mod record;
mod recovery;
mod room;
mod schema;
mod sqlite;
mod state;
mod store;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use backup::BackupInfo;
pub use boot::{BootOutcome, BootReport, Loss};
pub use config::StoreConfig;
pub use directory::Identity;
pub use error::{BackupError, OpenError, ProposeError};
pub use fatal::FatalError;
pub use machine::{Applied, Clock, Machine, Row, RowChange, Stamp};
pub use output::OutputReceiver;
pub use room::Room;
pub use store::{FileInfo, Store, StoreInfo};
