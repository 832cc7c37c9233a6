//! The data folder: its modes, its lock, the names of its files and the store's identity.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::OpenError;
use crate::record;
use crate::sqlite::private_file;

/// Which store this is. It is set when the store is created; the generation rises
/// whenever a history is given up for another one (a restore that lost commits).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random name of the cluster, 32 hexadecimal digits.
    pub cluster: String,
    /// A greater generation wins over any term of a lesser one (CLUST-07).
    pub generation: u64,
    /// This member's number within the cluster.
    pub member: u64,
}

/// The places inside a data folder.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    pub(crate) root: PathBuf,
}

/// Holds the folder for one process; released when dropped or when the process ends.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl Directory {
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("log.db")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state.db")
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.root.join("snapshot.db")
    }

    /// Room that is kept for a full disk (STORE-09).
    pub(crate) fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    pub(crate) fn backups(&self) -> PathBuf {
        self.root.join("backups")
    }

    fn identity(&self) -> PathBuf {
        self.root.join("generation")
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Makes the folder where needed, closes it to others, and takes the lock (STORE-01).
    pub(crate) fn enter(root: &Path) -> Result<(Self, DirectoryLock), OpenError> {
        let directory = Self {
            root: root.to_owned(),
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)
            .map_err(|error| OpenError::io("cannot create the data folder", root, error))?;
        fs::set_permissions(root, Permissions::from_mode(0o700))
            .map_err(|error| OpenError::io("cannot restrict the data folder", root, error))?;
        let lock = directory.lock()?;
        Ok((directory, lock))
    }

    fn lock(&self) -> Result<DirectoryLock, OpenError> {
        let path = self.lock_file();
        let failed = |error| OpenError::io("cannot lock", &path, error);
        let mut file = private_file(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(failed)?;
                return Err(OpenError::Locked {
                    dir: self.root.clone(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        file.set_len(0).map_err(failed)?;
        file.rewind().map_err(failed)?;
        match writeln!(file, "{}", std::process::id()) {
            // The lock holds without the number, which is only for people.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            written => written.map_err(failed)?,
        }
        Ok(DirectoryLock { _file: file })
    }

    /// Whether anything but the lock is in the folder.
    pub(crate) fn holds_other_files(&self) -> Result<bool, OpenError> {
        let failed = |error| OpenError::io("cannot list", &self.root, error);
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name != "lock" && name != "lost+found" {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn read_identity(&self) -> Result<Option<Identity>, OpenError> {
        let path = self.identity();
        match fs::read_to_string(&path) {
            Ok(text) => record::read_versioned(&text)
                .map(Some)
                .map_err(|cause| OpenError::unreadable(path, cause)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::io("cannot read", path, error)),
        }
    }

    pub(crate) fn write_identity(&self, identity: &Identity) -> Result<(), OpenError> {
        let path = self.identity();
        let failed = |error| OpenError::io("cannot write", &path, error);
        let text = record::write_versioned(identity)
            .map_err(|cause| OpenError::unreadable(&path, cause))?;
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, &path).map_err(failed)?;
        sync_folder(&self.root).map_err(failed)
    }

    /// Moves a database with its side files into `damaged-<wall_ms>`; nothing is deleted.
    pub(crate) fn move_aside(&self, file: &Path, wall_ms: i64) -> Result<PathBuf, OpenError> {
        let folder = self.root.join(format!("damaged-{wall_ms}"));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| OpenError::io("cannot create", &folder, error))?;
        for source in with_side_files(file) {
            let Some(name) = source.file_name() else {
                continue;
            };
            match fs::rename(&source, folder.join(name)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(OpenError::io("cannot move aside", source, error)),
            }
        }
        sync_folder(&self.root)
            .map_err(|error| OpenError::io("cannot flush", &self.root, error))?;
        Ok(folder)
    }
}

/// A new cluster's name.
pub(crate) fn new_cluster_name() -> Result<String, getrandom::Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A database and the files SQLite keeps beside it.
pub(crate) fn with_side_files(file: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// Flushes a folder, which makes renames and new names in it durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
