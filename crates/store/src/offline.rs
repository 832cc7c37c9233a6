//! What people do to a data folder: look at it, copy it, put a copy in the place of what it holds.
//!
//! Looking and copying go on beside a running process; putting back takes the folder's lock.

use std::path::{Path, PathBuf};

use crate::backup::{self, BackupInfo};
use crate::boot::Loss;
use crate::config::StoreConfig;
use crate::directory::{Directory, Identity};
use crate::error::{BackupError, OpenError};
use crate::machine::Machine;
use crate::recovery;
use crate::schema;
use crate::sqlite::{self, Peek};
use crate::state::{self, Standing};
use crate::store::{FileInfo, file_info};

/// What a data folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Which store it is.
    pub identity: Identity,
    /// The revision of the state.
    pub revision: u64,
    /// The stamp of the newest command in it, in milliseconds since 1970.
    pub wall_ms: Option<i64>,
    /// The databases.
    pub files: Vec<FileInfo>,
    /// The regular backups, newest first. One that cannot be read is left out here; it is found
    /// when it is verified.
    pub backups: Vec<BackupInfo>,
}

/// What a copy that was put back replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// Which store the folder holds now. Its generation is one more than any before.
    pub identity: Identity,
    /// What is given up.
    pub loss: Loss,
    /// Where the files that were there are kept, unless there were none.
    pub kept_as: Option<PathBuf>,
}

/// Looks at a data folder, also while a process uses it. Nothing is changed.
///
/// # Errors
/// There is no store, or it cannot be read.
pub fn examine(dir: &Path) -> Result<Held, OpenError> {
    let directory = directory(dir)?;
    let standing = standing(&directory)?;
    let identity = match directory.read_identity()? {
        Some(identity) => identity,
        None => standing.identity.clone().ok_or_else(|| {
            OpenError::unreadable(directory.state(), "it does not say which store it is")
        })?,
    };
    let files = [directory.log(), directory.state()];
    let files = files.iter().filter(|path| path.exists());
    let backups = backup::list(&directory)
        .map_err(|error| OpenError::io("cannot list", directory.backups(), error))?;
    Ok(Held {
        identity,
        revision: standing.applied.map_or(0, |id| id.index),
        wall_ms: standing.wall_ms,
        files: files
            .map(|path| file_info(path).map_err(|error| OpenError::io("cannot read", path, error)))
            .collect::<Result<_, _>>()?,
        backups: backups.into_iter().filter_map(described).collect(),
    })
}

/// Writes a verified copy of the state to `target`; none: among the regular backups, under the time
/// `wall_ms`. Goes on beside a running process, whose very last commits may not be in it.
///
/// # Errors
/// See [`BackupError`]; nothing half made is left. A target in the data folder, or in the place of a
/// file that is no backup, is refused: it would take away what the store needs.
pub fn back_up(
    dir: &Path,
    target: Option<&Path>,
    wall_ms: i64,
    keep: usize,
) -> Result<BackupInfo, BackupError> {
    let directory = Directory {
        root: dir.to_owned(),
    };
    match target {
        Some(target) => {
            refuse_target(&directory, target)?;
            backup::make(&directory.state(), target)
        }
        None => backup::make_regular(&directory, wall_ms, keep),
    }
}

fn refuse_target(directory: &Directory, target: &Path) -> Result<(), BackupError> {
    let refused = |why: &str| {
        Err(BackupError::Target {
            path: target.to_owned(),
            why: why.to_owned(),
        })
    };
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // A folder that is not there is told when the copy is written.
    let real = |path: &Path| path.canonicalize().ok();
    let (inside, root) = (real(folder), real(&directory.root));
    if inside.is_some() && inside == root {
        return refused("it lies in the data folder, among the store's own files");
    }
    if target.exists() && verify(target).is_err() {
        return refused("it is there and is no backup");
    }
    Ok(())
}

/// Reads all of a copy, and says how far it goes.
///
/// # Errors
/// It is no copy of a state, or is damaged.
pub fn verify(copy: &Path) -> Result<BackupInfo, OpenError> {
    let about = copy
        .metadata()
        .map_err(|error| OpenError::io("cannot read", copy, error))?;
    if !about.is_file() {
        return Err(OpenError::unreadable(copy, "it is no regular file"));
    }
    let standing = state::verify(copy).map_err(|cause| OpenError::unreadable(copy, cause))?;
    Ok(backup::info(copy.to_owned(), &standing, about.len()))
}

/// Puts a copy in the place of what the folder holds, in a new generation (STORE-10, CLUST-07). The
/// files that were there are moved aside and kept. No process may use the folder.
///
/// # Errors
/// The folder is in use, or holds other files and no store (STORE-08); the copy is damaged, is one of another store or of a newer version, or the
/// machine does not accept it. Nothing was changed then.
pub fn put_back<M: Machine>(config: &StoreConfig, copy: &Path) -> Result<PutBack, OpenError> {
    let found = sqlite::peek(copy).map_err(|error| OpenError::io("cannot read", copy, error))?;
    if let Peek::Schema(found) = found
        && found > schema::current()
    {
        return Err(OpenError::NewerSchema {
            file: copy.to_owned(),
            found,
            supported: schema::current(),
        });
    }
    let standing = state::verify(copy).map_err(|cause| OpenError::unreadable(copy, cause))?;
    let machine = state::load_copy::<M>(copy).and_then(|loaded| loaded);
    machine.map_err(|cause| OpenError::unreadable(copy, cause))?;
    let (directory, _lock) = Directory::enter(&config.dir)?;
    let named = directory.read_identity()?;
    let is_store = named.is_some() || directory.state().exists() || directory.log().exists();
    if !is_store && directory.holds_other_files()? {
        return Err(OpenError::StoreMissing {
            dir: directory.root,
        });
    }
    if let (Some(named), Some(source)) = (&named, &standing.identity)
        && named.cluster != source.cluster
    {
        let cause = format!(
            "it is a copy of the store {}, and {} holds the store {}",
            source.cluster,
            config.dir.display(),
            named.cluster
        );
        return Err(OpenError::unreadable(copy, cause));
    }
    let put = recovery::put_back::<M>(config, &directory, named.as_ref(), copy, standing);
    put.map_err(|error| error.or_full(&config.dir))
}

/// A folder that is there; it is not made.
fn directory(dir: &Path) -> Result<Directory, OpenError> {
    let directory = Directory {
        root: dir.to_owned(),
    };
    let state = directory.state();
    match sqlite::peek(&state).map_err(|error| OpenError::io("cannot read", &state, error))? {
        Peek::Absent => Err(OpenError::io(
            "there is no store in",
            dir,
            std::io::ErrorKind::NotFound.into(),
        )),
        Peek::Schema(found) if found > schema::current() => Err(OpenError::NewerSchema {
            file: state,
            found,
            supported: schema::current(),
        }),
        _ => Ok(directory),
    }
}

fn standing(directory: &Directory) -> Result<Standing, OpenError> {
    let state = directory.state();
    state::standing_of(&state).map_err(|cause| OpenError::unreadable(state, cause))
}

fn described(path: PathBuf) -> Option<BackupInfo> {
    let standing = state::standing_of(&path).ok()?;
    let bytes = path.metadata().ok()?.len();
    Some(backup::info(path, &standing, bytes))
}
