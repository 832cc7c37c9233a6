//! The domain's nouns, shared by every crate: ids, time, jobs, bundles, nodes, inventories, pools,
//! the calls on the Manager and the events of its stream.
//!
//! This crate holds data and the rules that belong to one value alone (the form of an id, the
//! default of a field). It deliberately knows no clock, no network, no file, no protobuf.

pub mod bundle;
mod by_name;
pub mod call;
pub mod discovery;
pub mod id;
pub mod inventory;
pub mod job;
pub mod json;
pub mod kv;
pub mod node;
pub mod overrides;
pub mod payload;
pub mod pool;
pub mod replica;
mod split_mix;
pub mod stream;
pub mod time;
pub mod tree;

pub use by_name::ByName;
pub use id::{
    BundleId, IdError, JobId, JobName, MigrationId, NodeId, PoolName, Role, ServiceId, StartId,
    TemplateName, TierName,
};
pub use payload::{PAYLOAD_MAX, Payload};
pub use split_mix::SplitMix64;
pub use time::{Millis, Mono, Now, Wall};

/// Tags of a node, a job or a bundle: key to value, in byte order of the key.
pub type Tags = std::collections::BTreeMap<String, String>;

/// Tolerance in comparisons of vCPU and GPU shares, so that ten times 0.1 fills 1 exactly
/// (PLACE-11, GPU-01).
pub const SHARE_TOLERANCE: f64 = 1e-9;
