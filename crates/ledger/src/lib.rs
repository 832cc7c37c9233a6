//! The Manager's replicated state machine: commands in; outcome, changes, orders and rows out.
//!
//! [`Ledger`] is the state: jobs, instances, nodes, slots, bundles. It is pure and deterministic: no
//! clock, no random source, no input or output. Beside it stand three companions that are not
//! replicated: [`Keeper`] owns the deadlines, [`LeaseClock`] knows since when leases run, [`Subscriber`]
//! is one client's view of the changes. The Manager drives all four with real clocks and sockets, the simulator in virtual time.

mod audit;
mod bundle;
mod call;
mod change;
mod checked;
mod command;
mod config;
mod discovery;
mod essential;
mod hash;
mod history;
mod instance;
mod job;
mod keeper;
mod kv;
mod lease;
mod ledger;
mod migration;
mod node;
mod order;
mod out;
mod overrides;
mod prefetch;
mod read;
mod reconcile;
mod refuse;
mod replica;
mod report;
mod reports;
mod rows;
mod search;
mod shared_map;
mod slot;
mod standing;
mod state;
mod stray;
mod subscriber;
mod tags;
mod told;

pub use audit::{AuditChain, AuditLog, Broken, audit_hash, audit_weight, verify_audit};
pub use bundle::{BundleFault, bundle_faults};
pub use change::{Applied, Change, Row, RowChange, Subject, What};
pub use command::{
    Called, Command, Due, Found, Fresh, Link, Open, Register, Registered, ReplicaFacts,
};
pub use config::{Config, Limits, Provider};
pub use hash::job_hash;
pub use keeper::{Keeper, KeeperSettings, Line, Wakeup};
pub use kv::{KvSpace, check_namespace};
pub use lease::{BundleLease, Lease, LeaseClock, LeaseState, LeaseWakeup, PauseWarning, Refreshed};
pub use ledger::Ledger;
pub use migration::check_payload;
pub use order::{
    DiscoveryOrder, MachineSpec, MigrationStep, Order, ProviderTask, ReplicaOrder, WorkerJob,
    WorkerOrder,
};
pub use read::CurrentJob;
pub use replica::key_mark;
pub use report::{Finding, Hello, HelloInstance, Report};
pub use rows::LoadError;
pub use search::{DateComparison, JobFilter, TextComparison};
pub use shared_map::SharedMap;
pub use standing::Standing;
pub use state::{
    Awaiting, Instance, InstanceStop, JobRecord, LEASES_MINOR, Node, NodeStop, Notice, Slot,
};
pub use stray::Stray;
pub use subscriber::{Subscriber, Wish};
