//! Settings of a Manager.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use greenroom_auth::Role;
use greenroom_ledger::{Config, KeeperSettings};

/// Where the overrides file is when nothing says so (OVR-01).
pub const OVERRIDES_FILE: &str = "/var/data/manager-overrides.json";

/// What a Manager needs to know to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of the store (STORE-01).
    pub data_dir: PathBuf,
    /// Make a new store although the folder holds other files (STORE-08).
    pub create: bool,
    /// Where the API is served; at least one place.
    pub listen: Vec<ListenSettings>,
    /// Connections of one of these places at a time (LIM-05).
    pub connections_max: usize,
    /// Where others reach it, as `https://HOST:PORT`; empty: at the addresses it listens on.
    pub advertise: Vec<String>,
    /// Which credentials open the places that ask for one.
    pub auth: AuthSettings,
    /// File of the key that seals secrets on disk; none: one in the data folder, made at the first
    /// boot (SEC-11).
    pub secrets_key_file: Option<PathBuf>,
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
    /// Where metrics are served; none: nowhere (API-21).
    pub metrics: Option<MetricsSettings>,
    /// Namespaces of the key/value store that take an admin (KV-09).
    pub kv_admin_namespaces: BTreeSet<String>,
    /// What every worker is told at its hello (SEC-08).
    pub license: License,
    /// Mutating calls are refused below this much free disk (STORE-09).
    pub min_free_bytes: u64,
    /// A regular backup is made this often (STORE-05).
    pub backup_every: Duration,
    /// So many of them are kept (STORE-05).
    pub backup_keep: usize,
    /// The overrides file, which need not be there (OVR-01).
    pub overrides_file: PathBuf,
    /// A pause of leases longer than this is warned of; zero: never (LEASE-13).
    pub lease_pause_max: Duration,
}

/// A place where the API is served (API-01, SEC-01).
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// The address.
    pub address: SocketAddr,
    /// Its certificate; none: in the clear.
    pub tls: Option<TlsFiles>,
    /// Whether callers must have a credential. Without, whoever reaches it is an admin.
    pub asks: bool,
    /// Allows it to lack TLS or credentials although it is no loopback address.
    pub allow_insecure: bool,
}

/// Files of a certificate, in PEM. They are read again when they change (SEC-04).
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, with its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose certificates clients may show.
    pub client_ca: Option<PathBuf>,
}

/// Credentials (SEC-02).
#[derive(Clone, Debug, Default)]
pub struct AuthSettings {
    /// Tokens of people and programs, one a line; see `greenroom token`.
    pub tokens_file: Option<PathBuf>,
    /// Signed tokens.
    pub signed: Option<SignedSettings>,
    /// Roles of client certificates.
    pub certificates: Vec<CertificateRole>,
}

/// Signed tokens of one issuer (SEC-02).
#[derive(Clone, Debug)]
pub struct SignedSettings {
    /// Who issues them.
    pub issuer: String,
    /// Files of public keys, in PEM.
    pub keys: Vec<PathBuf>,
}

/// The role of a client certificate (SEC-02).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRole {
    /// The certificate's subject, as `CN=control`.
    pub subject: String,
    /// What its holder may do.
    pub role: Role,
}

/// A licence of the jobs' media software, for the workers. It is passed on as it is (SEC-08).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct License {
    /// Its text; empty for none.
    pub text: String,
    /// The signature on it; empty for none.
    pub signature: String,
}

/// Where metrics are served (API-21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// The address; of this machine only, as a scraper shows no credential.
    pub listen: SocketAddr,
    /// Nobody named it: where another has taken it, the Manager warns and does without.
    pub is_default: bool,
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
    /// A flip of the discovery secret waits this long for workers to say that they have it (DISC-06).
    pub acknowledge: Duration,
    /// Workers of the published protocol are served, in the clear (WORK-04).
    pub allow_published: bool,
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

// === impl MetricsSettings ===

impl Default for MetricsSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9467),
            is_default: true,
        }
    }
}

// === impl Settings ===

impl Settings {
    /// The defaults, for a folder and an address.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>, listen: SocketAddr) -> Self {
        Self {
            data_dir: data_dir.into(),
            create: false,
            listen: vec![ListenSettings::at(listen)],
            connections_max: 4_096,
            advertise: Vec::new(),
            auth: AuthSettings::default(),
            secrets_key_file: None,
            member_name: "manager".to_owned(),
            ledger: Config::default(),
            waits: KeeperSettings::default(),
            links: LinkSettings::default(),
            events: EventSettings::default(),
            metrics: None,
            kv_admin_namespaces: BTreeSet::new(),
            license: License::default(),
            min_free_bytes: 512 * 1024 * 1024,
            backup_every: Duration::from_secs(6 * 3_600),
            backup_keep: 28,
            overrides_file: OVERRIDES_FILE.into(),
            lease_pause_max: Duration::from_secs(4 * 3_600),
        }
    }
}

impl ListenSettings {
    /// In the clear; a loopback address asks for nothing, any other for credentials.
    #[must_use]
    pub const fn at(address: SocketAddr) -> Self {
        Self {
            address,
            tls: None,
            asks: !address.ip().is_loopback(),
            allow_insecure: false,
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
            acknowledge: Duration::from_secs(5),
            allow_published: false,
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
