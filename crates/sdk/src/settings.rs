//! What a caller may set: where the members are, how long to wait, how often to try again.
//!
//! Defaults are those of the specification. Nothing here is read from the environment.

use std::time::Duration;

use crate::Access;

/// Settings of a [`crate::Client`] (SDK-01).
///
/// ```
/// use std::time::Duration;
/// let settings = greenroom_sdk::Settings {
///     call_timeout: Duration::from_secs(5),
///     ..greenroom_sdk::Settings::new(["http://127.0.0.1:6789", "http://127.0.0.1:6790"])
/// };
/// assert_eq!(settings.connect_timeout, Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// One or more members, as `https://HOST:PORT` or, in the clear, `http://HOST:PORT`; tried in
    /// this order.
    pub urls: Vec<String>,
    /// How members are recognised, and who the caller is.
    pub access: Access,
    /// Time for a connection and its Hello, per url.
    pub connect_timeout: Duration,
    /// Deadline of a call with all its repeats, unless [`crate::CallOptions`] says another.
    pub call_timeout: Duration,
    /// How failed calls and lost connections are tried again.
    pub retry: Retry,
}

/// How often and how fast something is tried again (SDK-05).
///
/// ```
/// assert_eq!(greenroom_sdk::Retry::default().reads, 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Most repeats of a reading call.
    pub reads: u32,
    /// Pause before the first repeat; each further one is twice as long.
    pub first_pause: Duration,
    /// Longest pause. Every pause is shortened by up to a half at random.
    pub longest_pause: Duration,
}

/// Settings of an event stream.
///
/// ```
/// let settings = greenroom_sdk::EventSettings { pending_window_s: 3600, ..Default::default() };
/// assert!(settings.auto_resume);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// How far ahead jobs with a start time are shown, in seconds: 0 to 31 536 000 (WINDOW-01).
    pub pending_window_s: u32,
    /// Kinds to be sent; empty for all that the caller may see (EVT-20).
    pub include: Vec<EventGroup>,
    /// Newest history entries per job: none for the Manager's default, 0 for all held (EVT-08).
    pub history_limit: Option<u32>,
    /// How far a follower may lag, in milliseconds; none for the Manager's default (EVT-17).
    pub max_lag_ms: Option<u64>,
    /// Shown where subscribers are listed.
    pub client_label: String,
    /// Reconnect and go on by itself. Otherwise a break is yielded and ends the stream (SDK-07).
    pub auto_resume: bool,
}

/// A group of event kinds (EVT-20).
///
/// ```
/// assert_eq!(greenroom_sdk::EventGroup::Jobs.as_str(), "jobs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventGroup {
    /// Jobs and news of their instances.
    Jobs,
    /// Nodes.
    Nodes,
    /// Bundles.
    Bundles,
    /// Inventories of nodes.
    Inventory,
    /// Signals of migrations.
    Migration,
    /// Audit entries.
    Audit,
    /// Leases.
    Leases,
    /// The Manager cluster.
    Cluster,
}

// === impl Settings ===

impl Settings {
    /// Settings with the defaults for everything but the urls.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            access: Access::default(),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(30),
            retry: Retry::default(),
        }
    }
}

// === impl Retry ===

impl Default for Retry {
    fn default() -> Self {
        Self {
            reads: 5,
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(2),
        }
    }
}

// === impl EventSettings ===

impl Default for EventSettings {
    fn default() -> Self {
        Self {
            pending_window_s: 0,
            include: Vec::new(),
            history_limit: None,
            max_lag_ms: None,
            client_label: String::new(),
            auto_resume: true,
        }
    }
}

// === impl EventGroup ===

impl EventGroup {
    /// Every group. Audit entries are sent only to those who name their group.
    pub const ALL: [Self; 8] = [
        Self::Jobs,
        Self::Nodes,
        Self::Bundles,
        Self::Inventory,
        Self::Migration,
        Self::Audit,
        Self::Leases,
        Self::Cluster,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Nodes => "nodes",
            Self::Bundles => "bundles",
            Self::Inventory => "inventory",
            Self::Migration => "migration",
            Self::Audit => "audit",
            Self::Leases => "leases",
            Self::Cluster => "cluster",
        }
    }
}
