//! What the node is given to keep and jobs may read: access to the discovery fleet (WORK-57), access
//! roles (WORK-58), and where control planes are (CTRL-02).
//!
//! Each is kept in a file of the worker's own, and what jobs may ask for is offered in a directory of
//! its own beside it, which containers have mounted. Both are replaced as a whole. The offered files
//! may be read by whoever reaches them; nobody but the worker reaches them without a mount. Files and
//! signatures are the work of a thread, so that nobody waits for them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use greenroom_auth::{KeySet, ReplicaParts, follow_keys, read_replica};
use greenroom_proto::worker as wire;
use greenroom_types::{Payload, Wall};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::credential::replace;
use crate::node::Input;

/// Name of the offered file of each kind, in its directory.
pub(crate) const DISCOVERY_FILE: &str = "access.json";
/// See [`DISCOVERY_FILE`].
pub(crate) const REPLICA_FILE: &str = "replica.json";

const FOLDER: &str = "access";
const KEPT_DISCOVERY: &str = "discovery.json";
const KEPT_REPLICA: &str = "replica.json";
const KEPT_PLANES: &str = "control-planes.json";

/// What waits for the thread; a Manager that sends more than it can write says it again at the next
/// hello.
const WAITING: usize = 64;
/// Deltas kept behind a snapshot; more, and the whole is asked for by not taking one.
const DELTAS: usize = 64;
/// Bytes that they may have together.
const DELTA_BYTES: usize = 4 << 20;
/// Key sets remembered.
const KEY_SETS: usize = 8;

/// Something that the Manager gives.
#[derive(Debug)]
pub(crate) enum Given {
    Discovery(wire::DiscoveryAccess),
    Replica(wire::AccessReplica),
    Planes(wire::ControlPlanes),
}

/// Versions of what is kept, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) replica_version: u64,
    pub(crate) discovery_version: u64,
    pub(crate) planes_version: u64,
}

/// The way to the thread that keeps it. The thread ends with it.
pub(crate) struct Access(mpsc::Sender<Given>);

/// Access to the discovery fleet, as it is kept and as jobs read it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    addresses: Vec<String>,
    leaf_token: String,
    node_token: String,
    version: u64,
}

/// Access roles, as they are kept and as jobs read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    version: u64,
    /// All roles at some version: a JWS, zipped, here as base64.
    snapshot_jws_gz: Payload,
    /// What leads from there to the version, in order.
    deltas_jws: Vec<String>,
    attestation_jws: String,
    /// Key sets in the order of their succession, the last in force.
    keys: Vec<String>,
    /// Time of the attestation.
    attested_at: Wall,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Planes {
    version: u64,
    /// The active member first.
    planes: Vec<Plane>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plane {
    member: String,
    url: String,
    active: bool,
}

/// Keeps everything, in its thread.
struct Keeper {
    folder: PathBuf,
    discovery: Discovery,
    replica: Replica,
    planes: Planes,
}

/// Where the file with access to the discovery fleet is offered.
pub(crate) fn discovery_dir(state_dir: &Path) -> PathBuf {
    offered(state_dir, "discovery")
}

/// Where the file with the access roles is offered.
pub(crate) fn replica_dir(state_dir: &Path) -> PathBuf {
    offered(state_dir, "replica")
}

fn offered(state_dir: &Path, what: &str) -> PathBuf {
    let dir = state_dir.join(FOLDER).join("offered").join(what);
    std::path::absolute(&dir).unwrap_or(dir)
}

// === impl Access ===

impl Access {
    /// Reads what is kept, offers it, and begins to keep what comes. News of what is held goes to
    /// `inputs`.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub(crate) fn open(state_dir: &Path, inputs: mpsc::Sender<Input>) -> io::Result<(Self, Held)> {
        let mut keeper = Keeper::open(state_dir)?;
        let held = keeper.held();
        let (given, mut receiver) = mpsc::channel(WAITING);
        let keep = move || {
            while let Some(given) = receiver.blocking_recv() {
                keeper.take(given);
                // The worker ends when nobody listens.
                if inputs.blocking_send(Input::Access(keeper.held())).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("access".to_owned())
            .spawn(keep)?;
        Ok((Self(given), held))
    }

    /// Hands on what the Manager gave. Never waits.
    pub(crate) fn give(&self, given: Given) {
        if self.0.try_send(given).is_err() {
            tracing::warn!("more is given to be kept than can be written; one is left out");
        }
    }
}

// === impl Keeper ===

impl Keeper {
    fn open(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join(FOLDER);
        let dirs = [
            (folder.clone(), 0o700),
            (folder.join("offered"), 0o711),
            (discovery_dir(state_dir), 0o755),
            (replica_dir(state_dir), 0o755),
        ];
        for (dir, mode) in &dirs {
            fs::create_dir_all(dir)?;
            fs::set_permissions(dir, Permissions::from_mode(*mode))?;
        }
        let keeper = Self {
            discovery: load(&folder.join(KEPT_DISCOVERY)),
            replica: load(&folder.join(KEPT_REPLICA)),
            planes: load(&folder.join(KEPT_PLANES)),
            folder,
        };
        // A worker that died between keeping and offering did the first.
        let offers = keeper
            .offer(
                keeper.discovery.version,
                "discovery",
                DISCOVERY_FILE,
                &keeper.discovery,
            )
            .and_then(|()| {
                keeper.offer(
                    keeper.replica.version,
                    "replica",
                    REPLICA_FILE,
                    &keeper.replica,
                )
            });
        if let Err(error) = offers {
            tracing::error!(%error, "what jobs may read cannot be offered");
        }
        Ok(keeper)
    }

    fn held(&self) -> Held {
        Held {
            replica_version: self.replica.version,
            discovery_version: self.discovery.version,
            planes_version: self.planes.version,
        }
    }

    fn take(&mut self, given: Given) {
        let (what, taken) = match given {
            Given::Discovery(given) => ("discovery access", self.take_discovery(given)),
            Given::Replica(given) => ("access roles", self.take_replica(given)),
            Given::Planes(given) => ("control planes", self.take_planes(given)),
        };
        if let Err(problem) = taken {
            tracing::error!(what, problem, "what the Manager gave is not taken");
        }
    }

    fn take_discovery(&mut self, given: wire::DiscoveryAccess) -> Result<(), String> {
        let discovery = Discovery {
            addresses: given.addresses,
            leaf_token: given.leaf_token,
            node_token: given.node_token,
            version: given.version,
        };
        if discovery == self.discovery {
            return Ok(());
        }
        self.keep(KEPT_DISCOVERY, &discovery)?;
        self.offer(discovery.version, "discovery", DISCOVERY_FILE, &discovery)
            .map_err(|error| error.to_string())?;
        self.discovery = discovery;
        Ok(())
    }

    /// REPL-04: signature and version are judged here, whatever the Manager found.
    fn take_replica(&mut self, given: wire::AccessReplica) -> Result<(), String> {
        let old = &self.replica;
        let held: Option<KeySet> = match old.keys.as_slice() {
            [] => None,
            kept => Some(
                follow_keys(None, kept)
                    .map_err(|error| error.to_string())?
                    .0,
            ),
        };
        let (keys, known) =
            follow_keys(held.as_ref(), &given.keys).map_err(|error| error.to_string())?;
        let parts = ReplicaParts {
            snapshot: &given.snapshot_jws_gz,
            delta: &given.delta_jws,
            attestation: &given.attestation_jws,
        };
        let found = read_replica(&keys, parts).map_err(|error| error.to_string())?;
        if found.attested_version != given.version {
            return Err("the attestation is of another version".to_owned());
        }
        if given.version < old.version || found.attested_at < old.attested_at {
            return Err(format!(
                "it is older than version {}, which is kept",
                old.version
            ));
        }
        let mut new = old.clone();
        match (found.snapshot_version, found.delta) {
            (Some(version), _) if version == given.version => {
                new.snapshot_jws_gz = given.snapshot_jws_gz.into();
                new.deltas_jws.clear();
            }
            (None, Some(leads)) if leads == (old.version, given.version) && old.version > 0 => {
                let bytes: usize = old.deltas_jws.iter().map(String::len).sum();
                if old.deltas_jws.len() >= DELTAS || bytes + given.delta_jws.len() > DELTA_BYTES {
                    return Err("there are too many deltas; the whole is wanted".to_owned());
                }
                new.deltas_jws.push(given.delta_jws);
            }
            (None, None) if given.version == old.version && old.version > 0 => {}
            _ => return Err(format!("it does not lead on from version {}", old.version)),
        }
        new.version = given.version;
        new.attestation_jws = given.attestation_jws;
        new.attested_at = found.attested_at;
        for set in given.keys.into_iter().skip(known) {
            // They were read as JSON or as a JWS, so they are text.
            new.keys
                .push(String::from_utf8(set).map_err(|error| error.to_string())?);
        }
        new.keys.drain(..new.keys.len().saturating_sub(KEY_SETS));
        self.keep(KEPT_REPLICA, &new)?;
        self.offer(new.version, "replica", REPLICA_FILE, &new)
            .map_err(|error| error.to_string())?;
        self.replica = new;
        Ok(())
    }

    fn take_planes(&mut self, given: wire::ControlPlanes) -> Result<(), String> {
        let planes = Planes {
            version: given.version,
            planes: given
                .planes
                .into_iter()
                .map(|plane| Plane {
                    member: plane.member,
                    url: plane.url,
                    active: plane.active,
                })
                .collect(),
        };
        if planes != self.planes {
            self.keep(KEPT_PLANES, &planes)?;
            self.planes = planes;
        }
        Ok(())
    }

    fn keep<T: Serialize>(&self, file: &str, record: &T) -> Result<(), String> {
        let bytes = serde_json::to_vec(record).map_err(|error| error.to_string())?;
        replace(&self.folder.join(file), &bytes).map_err(|error| error.to_string())
    }

    /// Nothing is offered before anything was given.
    fn offer<T: Serialize>(
        &self,
        version: u64,
        what: &str,
        file: &str,
        record: &T,
    ) -> io::Result<()> {
        if version == 0 {
            return Ok(());
        }
        let path = self.folder.join("offered").join(what).join(file);
        greenroom_tls::replace_file(&path, &serde_json::to_vec(record)?, 0o444)
    }
}

/// A file that is not there, or cannot be read, is one that is given anew at the next hello.
fn load<T: Default + DeserializeOwned>(path: &Path) -> T {
    let read = match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => Err(error),
    };
    read.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "what was kept cannot be read; the Manager gives it again");
        T::default()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ring::rand::SystemRandom;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn json_of(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn discovery(version: u64, node_token: &str) -> Given {
        Given::Discovery(wire::DiscoveryAccess {
            addresses: vec!["disc-1:443".to_owned(), "disc-2:443".to_owned()],
            leaf_token: "leaf".to_owned(),
            node_token: node_token.to_owned(),
            version,
        })
    }

    // spec: WORK-57
    #[test]
    fn discovery_access_is_kept_for_the_worker_alone_and_offered_as_a_file_that_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(dir.path()).unwrap();
        let offered = discovery_dir(dir.path()).join(DISCOVERY_FILE);
        assert!(!offered.exists());
        assert_eq!(
            mode(&discovery_dir(dir.path())),
            0o755,
            "it can be mounted already"
        );
        keeper.take(discovery(1, "gd1.n.1.first"));
        let open = fs::File::open(&offered).unwrap();
        keeper.take(discovery(2, "gd1.n.2.second"));
        assert_eq!(keeper.held().discovery_version, 2);
        let read = json_of(&offered);
        assert_eq!(read["nodeToken"], "gd1.n.2.second");
        assert_eq!(read["addresses"], json!(["disc-1:443", "disc-2:443"]));
        let before: Value = serde_json::from_reader(open).unwrap();
        assert_eq!(
            before["nodeToken"], "gd1.n.1.first",
            "a reader is not cut off"
        );
        assert_eq!(mode(&offered), 0o444);
        assert_eq!(
            mode(&dir.path().join("access")),
            0o700,
            "nobody else gets there"
        );
        assert_eq!(mode(&dir.path().join("access/discovery.json")), 0o600);

        fs::remove_file(&offered).unwrap();
        let keeper = Keeper::open(dir.path()).unwrap();
        assert_eq!(keeper.held().discovery_version, 2);
        assert_eq!(json_of(&offered)["nodeToken"], "gd1.n.2.second");
    }

    // spec: CTRL-02
    #[test]
    fn where_control_planes_are_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(dir.path()).unwrap();
        let plane = |member: &str, active| greenroom_proto::manager::ControlPlane {
            member: member.to_owned(),
            url: format!("https://{member}"),
            active,
            ..Default::default()
        };
        keeper.take(Given::Planes(wire::ControlPlanes {
            planes: vec![plane("b", true), plane("a", false)],
            version: 4,
        }));
        let keeper = Keeper::open(dir.path()).unwrap();
        assert_eq!(keeper.held().planes_version, 4);
        assert_eq!(keeper.planes.planes[0].url, "https://b");
        assert_eq!(mode(&dir.path().join("access/control-planes.json")), 0o600);
    }

    struct Signer(String, Ed25519KeyPair);

    impl Signer {
        fn new(kid: &str) -> Self {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
            Self(kid.to_owned(), pair)
        }

        fn sign(&self, payload: &Value) -> String {
            let text = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let header = text(&json!({"alg": "EdDSA", "kid": self.0}));
            let signed = format!("{header}.{}", text(payload));
            let signature = URL_SAFE_NO_PAD.encode(self.1.sign(signed.as_bytes()));
            format!("{signed}.{signature}")
        }

        fn keys(&self) -> Value {
            let x = URL_SAFE_NO_PAD.encode(self.1.public_key().as_ref());
            json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.0, "x": x}]})
        }

        /// A version with its attestation, and no change yet.
        fn attest(&self, version: u64, iat: i64) -> wire::AccessReplica {
            wire::AccessReplica {
                version,
                attestation_jws: self.sign(&json!({"version": version, "iat": iat})),
                keys: vec![self.keys().to_string().into_bytes()],
                ..Default::default()
            }
        }

        fn whole(&self, version: u64, iat: i64) -> wire::AccessReplica {
            let snapshot = self.sign(&json!({"version": version, "roles": ["a"]}));
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(snapshot.as_bytes()).unwrap();
            wire::AccessReplica {
                snapshot_jws_gz: encoder.finish().unwrap(),
                ..self.attest(version, iat)
            }
        }

        fn delta(&self, from: u64, to: u64, iat: i64) -> wire::AccessReplica {
            wire::AccessReplica {
                delta_jws: self.sign(&json!({"baseVersion": from, "version": to})),
                base_version: from,
                ..self.attest(to, iat)
            }
        }
    }

    // spec: REPL-04, WORK-58
    #[test]
    fn access_roles_are_taken_by_signature_and_version_kept_and_offered() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(dir.path()).unwrap();
        let (a, stranger) = (Signer::new("a"), Signer::new("a"));
        let held = |keeper: &Keeper| keeper.held().replica_version;
        let refused = |keeper: &mut Keeper, given| keeper.take_replica(given).unwrap_err();

        assert!(
            refused(&mut keeper, a.attest(1, 5)).contains("does not lead on"),
            "no snapshot"
        );
        keeper.take_replica(a.whole(3, 100)).unwrap();
        keeper.take_replica(a.delta(3, 4, 110)).unwrap();
        keeper.take_replica(a.attest(4, 120)).unwrap();
        assert_eq!(held(&keeper), 4);
        assert!(refused(&mut keeper, a.whole(3, 130)).contains("older"));
        assert!(refused(&mut keeper, a.attest(4, 119)).contains("older"));
        assert!(refused(&mut keeper, a.delta(3, 5, 130)).contains("does not lead on"));
        refused(&mut keeper, stranger.whole(9, 200));
        let mut mixed = a.whole(9, 200);
        mixed.version = 8;
        assert!(refused(&mut keeper, mixed).contains("another version"));
        assert_eq!(held(&keeper), 4, "what is refused changes nothing");

        let offered = replica_dir(dir.path()).join(REPLICA_FILE);
        let read = json_of(&offered);
        assert_eq!((read["version"].as_u64(), mode(&offered)), (Some(4), 0o444));
        assert_eq!(read["deltasJws"].as_array().unwrap().len(), 1);
        assert_eq!(read["attestationJws"], a.attest(4, 120).attestation_jws);
        assert_eq!(mode(&dir.path().join("access/replica.json")), 0o600);

        // After a restart it follows new keys from those that it kept.
        let mut keeper = Keeper::open(dir.path()).unwrap();
        assert_eq!(held(&keeper), 4);
        let b = Signer::new("b");
        let mut rotated = b.whole(5, 140);
        assert!(
            !refused(&mut keeper, rotated.clone()).is_empty(),
            "nobody vouches for them"
        );
        rotated.keys = vec![
            a.keys().to_string().into_bytes(),
            a.sign(&b.keys()).into_bytes(),
        ];
        keeper.take_replica(rotated).unwrap();
        assert_eq!(held(&keeper), 5);
        assert!(
            json_of(&offered)["deltasJws"]
                .as_array()
                .unwrap()
                .is_empty()
        );
        refused(&mut keeper, a.attest(5, 150));
    }
}
