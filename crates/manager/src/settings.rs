//! Settings of a Manager.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_ledger::{Config, KeeperSettings};

/// What a Manager needs to know to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of the store (STORE-01).
    pub data_dir: PathBuf,
    /// Make a new store although the folder holds other files (STORE-08).
    pub create: bool,
    /// Where the API is served. Loopback only: it is served without TLS and tokens (SEC-01).
    pub listen: SocketAddr,
    /// Name of this member (CLUST-02).
    pub member_name: String,
    /// Providers, limits and image tables.
    pub ledger: Config,
    /// Waits of the node and job life cycles.
    pub waits: KeeperSettings,
    /// Lines to workers.
    pub links: LinkSettings,
    /// Event fan-out.
    pub events: EventSettings,
    /// Mutating calls are refused below this much free disk (STORE-09).
    pub min_free_bytes: u64,
    /// A regular backup is made this often (STORE-05).
    pub backup_every: Duration,
}

/// Lines to workers.
#[derive(Clone, Copy, Debug)]
pub struct LinkSettings {
    /// A stream without any message for this long is dropped (MNODE-09).
    pub silence: Duration,
    /// How long one attempt to connect may take.
    pub connect: Duration,
    /// An open stream without a hello for this long is closed and dialled anew. Longer than the
    /// keeper's wait for the first hello, which ends the node (MNODE-06).
    pub hello: Duration,
    /// Orders waiting for one worker; beyond it the stream is reset, and the hello brings both sides
    /// level again.
    pub queue: usize,
}

/// Event fan-out.
#[derive(Clone, Copy, Debug)]
pub struct EventSettings {
    /// Events waiting for one subscriber (EVT-11).
    pub queue_events: usize,
    /// Bytes waiting for one subscriber (EVT-11).
    pub queue_bytes: usize,
    /// Subscribers of this member (EVT-18).
    pub subscribers: usize,
    /// Changes held for resume, however old (EVT-14).
    pub held: usize,
    /// Changes are held for this long, however many (EVT-14).
    pub held_for: Duration,
    /// Bytes that held changes may take, whatever their number and age (EVT-14).
    pub held_bytes: usize,
    /// With nothing to send for this long, a heartbeat is sent (EVT-10).
    pub heartbeat: Duration,
}

// === impl Settings ===

impl Settings {
    /// The defaults, for a folder and an address.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>, listen: SocketAddr) -> Self {
        Self {
            data_dir: data_dir.into(),
            create: false,
            listen,
            member_name: "manager".to_owned(),
            ledger: Config::default(),
            waits: KeeperSettings::default(),
            links: LinkSettings::default(),
            events: EventSettings::default(),
            min_free_bytes: 512 * 1024 * 1024,
            backup_every: Duration::from_secs(6 * 3_600),
        }
    }
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            silence: Duration::from_millis(4_000),
            connect: Duration::from_millis(2_000),
            hello: Duration::from_secs(40),
            queue: 10_000,
        }
    }
}

impl Default for EventSettings {
    fn default() -> Self {
        Self {
            queue_events: 16_384,
            queue_bytes: 32 * 1024 * 1024,
            subscribers: 256,
            held: 65_536,
            held_for: Duration::from_secs(600),
            held_bytes: 256 * 1024 * 1024,
            heartbeat: Duration::from_secs(10),
        }
    }
}
