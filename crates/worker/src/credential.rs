//! The state directory's own files: the lock, who this installation is, and its node's credential.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use greenroom_auth::{NodeKey, hex, random};
use greenroom_types::NodeId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

const CREDENTIAL_FILE: &str = "credential.json";
const IDENTITY_FILE: &str = "identity";
const LOCK_FILE: &str = "lock";

/// What makes this worker its node; the file is the worker's alone (WORK-05).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Credential {
    pub(crate) node_id: NodeId,
    pub(crate) deployment_id: String,
    node_key: String,
    /// Presented again at every call (LOCAL-06).
    token: String,
    /// Managers to call besides those of the settings.
    pub(crate) manager_urls: Vec<String>,
}

/// Held while a worker runs on a state directory.
#[derive(Debug)]
pub(crate) struct StateLock {
    _file: File,
}

// === impl Credential ===

impl Credential {
    pub(crate) fn new(
        node_id: NodeId,
        deployment_id: String,
        key: &NodeKey,
        token: &str,
        manager_urls: Vec<String>,
    ) -> Self {
        let (node_key, token) = (hex(key.expose()), token.to_owned());
        Self {
            node_id,
            deployment_id,
            node_key,
            token,
            manager_urls,
        }
    }

    pub(crate) fn key(&self) -> Option<NodeKey> {
        let byte = |at: usize| u8::from_str_radix(self.node_key.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..self.node_key.len()).step_by(2).map(byte).collect();
        NodeKey::from_bytes(&bytes?)
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    pub(crate) fn load(state_dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(state_dir.join(CREDENTIAL_FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn save(&self, state_dir: &Path) -> io::Result<()> {
        replace(&state_dir.join(CREDENTIAL_FILE), &serde_json::to_vec(self)?)
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credential({}, ***)", self.node_id)
    }
}

// === impl StateLock ===

impl StateLock {
    /// None when another worker holds it (WORK-07).
    pub(crate) fn take(state_dir: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(state_dir.join(LOCK_FILE))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The secret of this installation, made once: its TLS key comes from it, and so the public key by
/// which the Manager knows it again (SEC-05).
pub(crate) fn installation(state_dir: &Path) -> io::Result<[u8; 32]> {
    let path = state_dir.join(IDENTITY_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let damaged = |_| io::Error::other(format!("{} is damaged", path.display()));
            bytes.try_into().map_err(damaged)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = random::<32>();
            replace(&path, &bytes)?;
            Ok(bytes)
        }
        Err(error) => Err(error),
    }
}

/// Writes a file for its owner alone; what was there before stays whole until it is replaced.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    greenroom_tls::replace_file(path, bytes, 0o600)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    // spec: WORK-05
    #[test]
    fn the_credential_is_kept_for_the_worker_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Credential::load(dir.path()).unwrap(), None);
        let key = NodeKey::generate();
        let credential =
            Credential::new("n1".into(), "d".to_owned(), &key, "grt_secret", Vec::new());
        credential.save(dir.path()).unwrap();
        let loaded = Credential::load(dir.path()).unwrap().unwrap();
        assert_eq!(loaded.key(), Some(key));
        assert_eq!(loaded, credential);
        let mode = std::fs::metadata(dir.path().join(CREDENTIAL_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{loaded:?}").contains("secret"));
    }

    // spec: WORK-07
    #[test]
    fn one_worker_at_a_time_holds_a_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let held = StateLock::take(dir.path()).unwrap();
        assert!(held.is_some());
        assert!(StateLock::take(dir.path()).unwrap().is_none());
        drop(held);
        assert!(StateLock::take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn an_installation_stays_itself() {
        let dir = tempfile::tempdir().unwrap();
        let first = installation(dir.path()).unwrap();
        assert_eq!(installation(dir.path()).unwrap(), first);
    }
}
