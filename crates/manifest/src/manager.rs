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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// The key/value store.
    pub kv: Kv,
    /// What workers are told.
    pub workers: Workers,
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

/// How long nodes are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Nodes {
    /// A stream without any message for this long is dropped, 3 000 at least (MNODE-09).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence_ms: Option<u64>,
    /// A node that is not heard is given up after this (MNODE-11).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_grace_ms: Option<u64>,
    /// One that was given up is stopped after this much more (MNODE-12).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_ms: Option<u64>,
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
nodes: {dropGraceMs: 500}
";
        let file: ManagerFile = read("m.yaml", text).unwrap().remove(0);
        assert_eq!(file.leases.unwrap().max_pause_ms, 3_600_000);
        let nodes = file.nodes.unwrap();
        assert_eq!((nodes.drop_grace_ms, nodes.silence_ms), (Some(500), None));
        assert_eq!(file.listen.len(), 2);
        assert_eq!(file.listen[0].auth, Some(Asks::Required));
        assert_eq!(file.listen[1].tls, None);
        assert_eq!(file.auth.certificates[0].role, RoleName::ControlPlane);
        for (from, to, line) in [
            ("0.0.0.0:6789", "everywhere", 3),
            ("required", "sometimes", 5),
            ("control-plane", "peer", 10),
            ("tokensFile", "tokenFile", 8),
        ] {
            let text = text.replacen(from, to, 1);
            let problem = read::<ManagerFile>("m.yaml", &text).unwrap_err();
            let at = problem.position.expect("a place");
            assert_eq!(at.line, line, "{problem}");
        }
    }
}
