//! Settings of a Manager and contexts of its callers, as files say them. Paths are as written; whoever
//! opens them takes relative ones from the folder of the file.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A Manager's settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagerFile {
    /// Folder of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// This member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
    /// Where the API is served.
    pub listen: Vec<Listen>,
    /// Where others reach it, as `https://HOST:PORT`.
    pub advertise: Vec<String>,
    /// Which credentials open the places that ask for one.
    pub auth: Auth,
    /// File of the key that seals secrets on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets_key_file: Option<PathBuf>,
    /// Counts and gauges for a scraper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsFile>,
    /// Leases of protected jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<Leases>,
    /// How long nodes are waited for.
    #[serde(skip_serializing_if = "is_default")]
    pub nodes: Nodes,
    /// The store.
    #[serde(skip_serializing_if = "is_default")]
    pub store: StoreKeys,
    /// Its regular copies.
    #[serde(skip_serializing_if = "is_default")]
    pub backup: Backup,
    /// Histories of jobs.
    #[serde(skip_serializing_if = "is_default")]
    pub history: History,
    /// The key/value store.
    pub kv: Kv,
    /// What workers are told.
    pub workers: Workers,
}

/// Most milliseconds that a wait may have: a day.
const DAY: u64 = 86_400_000;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A number within bounds, which are told where it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Within<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> Within<LEAST, MOST> {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        if (LEAST..=MOST).contains(&number) {
            return Ok(Self(number));
        }
        let text = format!("is {number}, it must be {LEAST} to {MOST}");
        Err(serde::de::Error::custom(text))
    }
}

/// How long nodes are waited for, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Nodes {
    /// A worker that says nothing for this long is taken as dropped (MNODE-09). Workers say something
    /// each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence_ms: Option<Within<3_000, DAY>>,
    /// A dropped node is given up after this (MNODE-11).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_grace_ms: Option<Within<100, DAY>>,
    /// A node that was given up is stopped after this much more (MNODE-12).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_ms: Option<Within<100, DAY>>,
    /// A machine may be pending at its provider for this long (MNODE-06).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_ms: Option<Within<1_000, DAY>>,
    /// A running machine's worker must be reached within this (MNODE-06).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_ms: Option<Within<1_000, DAY>>,
    /// A worker must introduce itself within this (MNODE-06).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello_ms: Option<Within<1_000, DAY>>,
    /// An elastic node may be empty for this long; 0: for ever (IDLE-01).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_expiry_ms: Option<Within<0, { 30 * DAY }>>,
    /// A node may go on for this long with what it was told to stop and runs elsewhere (MNODE-16).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_ms: Option<Within<10_000, DAY>>,
}

/// The store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StoreKeys {
    /// With less room than this many MiB nothing new is taken (STORE-09).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_mb: Option<Within<0, { 1 << 30 }>>,
    /// What is found after a restore and not in the record is kept for so many milliseconds (STORE-11).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecorded_ms: Option<Within<0, DAY>>,
}

/// Regular copies of the store (STORE-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Backup {
    /// One is made this often, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<Within<60_000, { 30 * DAY }>>,
    /// So many are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Within<1, 10_000>>,
}

/// Histories of jobs (HIST-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct History {
    /// Entries kept of one job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<Within<100, 10_000>>,
}

/// The key/value store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Kv {
    /// Namespaces that take an admin to read and to write.
    pub admin_namespaces: BTreeSet<String>,
}

/// What workers are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Workers {
    /// Text of a licence for the jobs' media software, passed on as it is.
    pub license: String,
    /// The signature on it.
    pub signature: String,
    /// Serves workers of the published protocol, without TLS and with their secret in the clear (WORK-04).
    #[serde(skip_serializing_if = "is_default")]
    pub allow_published: bool,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricsFile {
    /// An address of this machine; none, written as an empty text: nowhere.
    #[serde(with = "address_or_nothing")]
    pub listen: Option<SocketAddr>,
}

/// An address, or none as an empty text.
mod address_or_nothing {
    use std::net::SocketAddr;

    use serde::de::{Deserialize, Deserializer, Error, Unexpected};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        let unread = |_| {
            D::Error::invalid_value(
                Unexpected::Str(&text),
                &"an address as 127.0.0.1:9467, or \"\"",
            )
        };
        text.parse().map(Some).map_err(unread)
    }
}

/// Leases of protected jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leases {
    /// A pause of leases longer than this is warned of; 0: never (LEASE-13).
    pub max_pause_ms: u64,
}

/// A member of the Manager's cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    /// Its name.
    pub name: String,
}

/// A place where the API is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// Its certificate; absent: in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Whether callers need a credential; absent: on every address but loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Asks>,
    /// Allows it to lack TLS or credentials on an address of a network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_insecure: bool,
}

/// Files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose certificates clients may show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// Whether callers need a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Asks {
    /// They need none, and are admins.
    None,
    /// They need one.
    Required,
}

/// Credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Auth {
    /// Tokens of people and programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_file: Option<PathBuf>,
    /// Signed tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
    /// Roles of client certificates.
    pub certificates: Vec<CertificateRole>,
}

/// Signed tokens of one issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signed {
    /// Who issues them.
    pub issuer: String,
    /// Files of public keys, in PEM.
    pub keys: Vec<PathBuf>,
}

/// The role of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificateRole {
    /// The certificate's subject, as `CN=control`.
    pub subject: String,
    /// What its holder may do.
    pub role: RoleName,
}

/// Roles that files may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoleName {
    /// Reads everything but secrets.
    Viewer,
    /// Works with jobs, bundles and nodes.
    Operator,
    /// What the control plane needs.
    ControlPlane,
    /// Everything.
    Admin,
}

/// Where a Manager is, how it is recognised, and who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Context {
    /// Members, as `https://HOST:PORT`.
    pub manager: Vec<String>,
    /// Authorities that sign the members' certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Pins of members' keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// File of the caller's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The caller's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    #[test]
    fn a_settings_file_is_read_and_its_faults_are_told_by_line_and_key() {
        let text = "\
dataDir: data
listen:
  - address: 0.0.0.0:6789
    tls: {cert: manager.pem, key: manager-key.pem, clientCa: ca.pem}
    auth: required
  - address: 127.0.0.1:6789
auth:
  tokensFile: tokens
  certificates:
    - {subject: CN=control, role: control-plane}
leases: {maxPauseMs: 3600000}
nodes: {silenceMs: 5000, idleExpiryMs: 0}
store: {minFreeMb: 64, unrecordedMs: 1000}
backup: {everyMs: 3600000, keep: 4}
history: {maxEntries: 500}
";
        let file: ManagerFile = read("m.yaml", text).unwrap().remove(0);
        assert_eq!(file.leases.unwrap().max_pause_ms, 3_600_000);
        assert_eq!(file.listen.len(), 2);
        assert_eq!(file.nodes.silence_ms.unwrap().get(), 5_000);
        assert_eq!(file.nodes.drop_grace_ms, None);
        assert_eq!(file.backup.keep.unwrap().get(), 4);
        assert_eq!(file.listen[0].auth, Some(Asks::Required));
        assert_eq!(file.listen[1].tls, None);
        assert_eq!(file.auth.certificates[0].role, RoleName::ControlPlane);
        for (from, to, line) in [
            ("0.0.0.0:6789", "everywhere", 3),
            ("required", "sometimes", 5),
            ("control-plane", "peer", 10),
            ("tokensFile", "tokenFile", 8),
            ("silenceMs: 5000", "silenceMs: 2999", 12),
            ("keep: 4", "keep: 0", 14),
            ("maxEntries: 500", "maxEntries: 99", 15),
        ] {
            let text = text.replacen(from, to, 1);
            let problem = read::<ManagerFile>("m.yaml", &text).unwrap_err();
            let at = problem.position.expect("a place");
            assert_eq!(at.line, line, "{problem}");
        }
    }
}
