//! Virtual time: the real policy and the real ledger with simulated workers and clouds, driven by
//! scenario files (docs/spec/scenario.md).
//!
//! [`run_file`] reads a scenario and plays it; [`check_file`] only reads it. No process, container,
//! socket or clock is used, and the same file gives the same bytes at every run (SCEN-14). The crate
//! prints nothing and opens no file: that is the caller's part.

pub mod expect;
pub mod explore;
pub mod format;
mod invariants;
mod log;
mod record;
mod run;
mod seed;
mod served;
mod view;
mod world;

pub use expect::Mismatch;
pub use format::{Problems, Scenario, fault_of_name, schema::schema};
pub use log::Keep;
pub use record::{Recorded, Recording, recorded};
pub use run::{Failure, Observer, Options, Outcome, Run, check_file, run_file, run_observed};
