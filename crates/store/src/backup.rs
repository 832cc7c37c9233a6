//! Backups: consistent, verified copies of the state (STORE-05).
//!
//! A backup is one file that opens by itself, says how far it goes, and carries a
//! checksum on every row. It appears under its name only after it was read back.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::BackupError;
use crate::state::{self, Standing};

/// One finished backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupInfo {
    /// Where it is.
    pub path: PathBuf,
    /// The revision it holds, 0 for none.
    pub revision: u64,
    /// The stamp of the newest command it holds.
    pub wall_ms: Option<i64>,
    /// Its size.
    pub bytes: u64,
}

/// Copies, verifies and names.
pub(crate) fn make(state: &Path, target: &Path) -> Result<BackupInfo, BackupError> {
    let beside = beside(target);
    let result = copy_verified(state, &beside, target);
    if result.is_err() {
        // The half-made copy says nothing; failing to remove it changes nothing.
        fs::remove_file(&beside).ok();
    }
    result
}

fn copy_verified(state: &Path, beside: &Path, target: &Path) -> Result<BackupInfo, BackupError> {
    let failed = |attempt| {
        move |source| BackupError::Io {
            attempt,
            path: target.to_owned(),
            source,
        }
    };
    state::copy(state, beside).map_err(|cause| BackupError::Copy {
        path: target.to_owned(),
        cause,
    })?;
    let standing = state::verify(beside).map_err(|cause| BackupError::Verify {
        path: target.to_owned(),
        cause,
    })?;
    let bytes = fs::metadata(beside).map_err(failed("cannot read"))?.len();
    state::publish(beside, target).map_err(failed("cannot rename to"))?;
    Ok(info(target.to_owned(), &standing, bytes))
}

/// Makes a regular backup and removes the oldest ones beyond `keep`.
pub(crate) fn make_regular(
    directory: &Directory,
    wall_ms: i64,
    keep: usize,
) -> Result<BackupInfo, BackupError> {
    let folder = directory.backups();
    let failed = |source| BackupError::Io {
        attempt: "cannot use",
        path: folder.clone(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(failed)?;
    let target = folder.join(format!("state-{wall_ms:016}.db"));
    let made = make(&directory.state(), &target)?;
    remove_half_made(directory).map_err(failed)?;
    for old in list(directory)
        .map_err(failed)?
        .into_iter()
        .skip(keep.max(1))
    {
        fs::remove_file(&old).map_err(failed)?;
    }
    Ok(made)
}

/// Removes what a process left that died while it made a backup.
fn remove_half_made(directory: &Directory) -> std::io::Result<()> {
    for entry in fs::read_dir(directory.backups())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "new") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The regular backups, newest first.
pub(crate) fn list(directory: &Directory) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory.backups()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let regular = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("state-") && name.ends_with(".db"));
        if regular {
            found.push(path);
        }
    }
    // Names carry the time with leading zeros, so they sort by it.
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

pub(crate) fn info(path: PathBuf, standing: &Standing, bytes: u64) -> BackupInfo {
    BackupInfo {
        path,
        revision: standing.applied.map_or(0, |id| id.index),
        wall_ms: standing.wall_ms,
        bytes,
    }
}

fn beside(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
