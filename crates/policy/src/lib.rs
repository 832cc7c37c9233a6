//! The AutoManager core: events in, effects out. Pure.
//!
//! [`Policy::handle`] takes one [`Event`] and adds everything that must follow from it to
//! [`Effects`]; [`Policy::next_deadline`] tells when time alone matters next. Nothing here reads a
//! clock, sleeps, sends or throws dice: time is an argument, randomness a seed, so that a run is
//! repeated by repeating its inputs (TIME-05). What it knows is a mirror of the Manager's stream
//! and what it asked for itself; nothing is durable.
//!
//! The requirement ids in the docs are those of docs/spec/policy.md.

pub mod acts;
mod amend;
mod api;
mod bundle;
mod calls;
mod ceiling;
pub mod check;
mod class;
mod cordon;
pub mod drain;
mod drain_end;
mod drain_retry;
pub mod effect;
pub mod event;
pub mod getters;
mod health;
mod history;
mod hydration;
pub mod ids;
pub mod interrupt;
pub mod job;
mod launch;
pub mod lease_wait;
mod listed;
pub mod metrics;
pub mod migration;
mod migration_end;
mod migration_taken_up;
mod node;
mod node_service;
mod pending;
pub mod policy;
mod prefetch;
mod provision;
pub mod purchases;
mod recovery;
mod remains;
pub mod report;
mod saga;
pub mod settings;
pub mod spare;
mod stop_time;
mod story;
mod stream;
pub mod timer;
mod unrecorded;
mod upgrade;

pub use check::Violation;
pub use effect::{Callback, Effect, Effects};
pub use event::{ApiAnswer, ApiCall, ApiError, ApiId, ApiResult, CallFailure, CallId, Event};
pub use ids::IdSource;
pub use metrics::Metrics;
pub use policy::Policy;
pub use report::Report;
pub use settings::Settings;
pub use timer::{Deadline, Timer};
