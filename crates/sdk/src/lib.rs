//! Client SDK of the Manager: calls, typed errors, event stream with resume (SDK-01 to SDK-12).
//!
//! A [`Client`] keeps one connection to one of several members, repeats what may be repeated, and
//! turns every answer into a type of `greenroom-types`; no generated message is needed by a caller,
//! though [`Client::raw`] gives access to them. An [`EventStream`] begins with a whole
//! [`InitialState`] and then yields every change exactly once, over reconnections.
//!
//! The SDK decides nothing about jobs or nodes and keeps no mirror of them. [`Access`] says how
//! members are recognised and who the caller is; a token never goes over a network in the clear.
//!
//! ```no_run
//! use greenroom_sdk::{Client, EventSettings, Settings, StreamItem};
//!
//! # async fn example() -> Result<(), greenroom_sdk::Error> {
//! let client = Client::connect(Settings::new(["http://127.0.0.1:6789"])).await?;
//! for node in client.list_nodes().await? {
//!     println!("{} {:?}", node.metadata.node_id, node.state);
//! }
//!
//! let (state, mut events) = client.event_stream(EventSettings::default()).await?;
//! println!("{} jobs at {}", state.active_jobs.len(), state.seq);
//! while let Some(item) = events.next().await {
//!     match item {
//!         StreamItem::Event(stamped) => println!("{} {:?}", stamped.seq, stamped.event),
//!         StreamItem::Resnapshot(state) => println!("begin anew at {}", state.seq),
//!         StreamItem::Closed(cause) => return Err(cause),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod access;
mod backoff;
mod call;
mod client;
mod error;
mod event;
mod initial;
mod link;
mod methods;
mod read;
mod settings;
mod version;

pub use access::{Access, TokenSource};
pub use call::CallOptions;
pub use client::{Client, ConnectionStates};
pub use error::{Error, Refused, UrlFailure};
pub use event::{EventStream, StreamItem};
/// The generated code that [`Client::raw`] speaks.
pub use greenroom_proto as proto;
pub use greenroom_proto::convert::call::{
    DateMatch, FoundJob, IdMatch, JobFilter, JobSearch, TagMatch,
};
/// The domain's nouns, which calls take and give.
pub use greenroom_types as types;
pub use initial::{InitialState, RunningNode, SnapshotJob, StartingNode, StoppingNode};
pub use link::{Announce, ConnectionState, NO_MANAGER, RawClient, plain_cause};
pub use methods::{
    AbortMigration, AuditPage, AuditPruned, AuditQuery, BundleChanges, BundleCreated, ClusterEvent,
    ClusterEventQuery, ClusterStatus, ControlPlane, EditTags, FleetPublished, FleetRotated,
    IdleExpiry, KvList, Member, NodeTags, PausedLeases, ResumedLeases, Slot, StoreFile, StoreInfo,
    Token, UpdateBundle,
};
pub use settings::{EventGroup, EventSettings, Retry, Settings};
pub use version::{HelloInfo, Protocol, Skew, VersionInfo};
