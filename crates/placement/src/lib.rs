//! The placement engine: where a job goes, or what is bought for it, and why (PLACE, RESIL, INTRA,
//! RESV, GPU, PORT, TIER).
//!
//! [`Fleet`] is the picture of the nodes that the policy keeps up to date: facts, inventories,
//! conditions, bindings and all that follows from them, an index of each tier among it. [`place`] is a pure function of that picture
//! and a [`Request`]; it changes nothing. [`place_traced`] gives the same decision together with the
//! reason for every node looked at. [`validate`] checks a bundle before it is submitted.
//!
//! The crate knows no clock, no randomness and no I/O: which nodes are excluded at the moment, and
//! which tiers back off, is told to the fleet by its owner.

mod binding;
mod decision;
mod explain;
mod filter;
mod fleet;
mod gpu;
mod groups;
mod index;
mod key;
mod lookup;
mod needs;
mod node;
mod offer;
mod place;
mod port;
mod request;
mod reserved;
mod trace;
mod validate;
mod walk;

pub use binding::{Bound, JobRef, Side};
pub use decision::{Decision, Degraded, Domain, FailureReason};
pub use fleet::{Drift, Fleet};
pub use groups::{BundlePlan, Group, PlannedJob, SharedBundle};
pub use key::{Key, Packing, Rank};
pub use needs::{GpuNeed, Needs};
pub use node::{Listed, NodeCondition, NodeFacts, ServicePorts, Spare, TierGate};
pub use place::{place, place_traced, shared_domains};
#[doc(hidden)]
pub use place::{place_by_scan, place_counted};
pub use port::{Port, PortError, PortProtocol};
pub use request::{Context, Request};
pub use reserved::Reserved;
pub use trace::{Attempt, Detail, Exclusion, Filtered, Outcome, Reason, Survivor, Trace};
pub use validate::{Code, Finding, Findings, validate};
