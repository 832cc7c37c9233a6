//! The Manager daemon: gRPC services, event fan-out and the dialler of workers around the ledger.
//!
//! It is mechanical. Every mutating call and every report of a worker becomes a command of the
//! ledger; what the ledger gives back is answered, sent to subscribers and ordered from workers. It
//! never decides where a job runs, and it keeps no state of its own that a restart could miss.
//!
//! One loop, the [conductor](conductor), takes everything that the store applied, in commit order,
//! and hands it on. It never waits for a commit, a subscriber or a worker.

mod acks;
mod api;
mod backup;
mod clock;
mod cluster_log;
mod conductor;
mod doors;
mod engine;
mod files;
mod guard;
mod hub;
mod leases;
mod links;
mod machine;
mod metrics;
mod overrides;
mod payloads;
mod planes;
mod restore;
mod server;
mod serving;
mod settings;
mod status_log;
mod subscription;
mod vault;

pub use overrides::overrides_problems;
pub use restore::restore;
pub use server::{Running, StartError, check, start};
pub use settings::{
    AuthSettings, CertificateRole, EventSettings, License, LinkSettings, ListenSettings,
    MetricsSettings, OVERRIDES_FILE, Settings, SignedSettings, TlsFiles,
};
pub use status_log::{StatusLayer, StatusLog};
