//! Opening a data folder: create, open, or recover.
//!
//! Nothing is written to the databases before their schema versions were read from
//! their first bytes, so a folder of a later version stays as it was (STORE-06).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::StoreConfig;
use crate::directory::{Directory, DirectoryLock, Identity, new_cluster_name, with_side_files};
use crate::error::OpenError;
use crate::log::LogFile;
use crate::machine::Machine;
use crate::migration;
use crate::recovery;
use crate::room::{self, Reserve};
use crate::schema;
use crate::sqlite::{self, Peek};
use crate::state::{self, StateFile};

/// What opening a store found and did (STORE-07).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootReport {
    /// What was done to the files.
    pub outcome: BootOutcome,
    /// Which store this is now.
    pub identity: Identity,
    /// The revision the store stands at.
    pub revision: u64,
    /// How many log entries were applied again because `state.db` did not have them.
    /// Their outputs are delivered again too.
    pub replayed: u64,
}

/// What opening a store did to its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootOutcome {
    /// Nothing: the store was there and whole.
    Opened,
    /// There was no store; an empty one was made.
    Created,
    /// The store had an older schema, which was brought to this program's (STORE-06).
    Migrated {
        /// The older version.
        from: u32,
        /// The version now.
        to: u32,
        /// The state as it was before.
        backup: Option<PathBuf>,
    },
    /// A file was missing or damaged and was replaced.
    Restored {
        /// The copy that replaced the state, or `None` when the log alone rebuilt it.
        from: Option<PathBuf>,
        /// Where the damaged files were moved, unless none were left.
        damaged_kept_as: Option<PathBuf>,
        /// What is gone.
        loss: Loss,
    },
}

/// What a restore gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: the log held everything since the copy.
    Nothing,
    /// Commits after this point may be gone. The generation was raised by one.
    After {
        /// The revision the store goes on from, 0 for none.
        revision: u64,
        /// The stamp of the newest command that is kept.
        wall_ms: Option<i64>,
    },
}

/// A folder ready to be run.
pub(crate) struct Booted<M> {
    pub(crate) directory: Directory,
    pub(crate) lock: DirectoryLock,
    pub(crate) identity: Identity,
    pub(crate) log: LogFile,
    pub(crate) state: StateFile,
    pub(crate) machine: M,
    pub(crate) outcome: BootOutcome,
    pub(crate) reserve: Arc<Reserve>,
}

/// The two files as far as they could be opened.
pub(crate) struct Found<M> {
    pub(crate) log: Result<LogFile, String>,
    pub(crate) state: Result<(StateFile, M), String>,
}

pub(crate) fn boot<M: Machine>(config: &StoreConfig) -> Result<Booted<M>, OpenError> {
    let entered = Directory::enter(&config.dir).map_err(|error| error.or_full(&config.dir));
    let (directory, lock) = entered?;
    let reserve = Reserve::find(directory.reserve(), config.reserve_bytes);
    reserve.ready(&directory.root)?;
    let reserve = Arc::new(reserve);
    let booted = boot_within(config, directory, lock, Arc::clone(&reserve))
        .map_err(|error| error.or_full(&config.dir))?;
    reserve.top_up(&config.dir, config.min_free_bytes);
    Ok(booted)
}

/// The boot with the folder held and room for it.
fn boot_within<M: Machine>(
    config: &StoreConfig,
    directory: Directory,
    lock: DirectoryLock,
    reserve: Arc<Reserve>,
) -> Result<Booted<M>, OpenError> {
    let log = readable_schema(&directory.log())?;
    let state = readable_schema(&directory.state())?;
    let named = directory.read_identity()?;

    let no_store = log == Peek::Absent && state == Peek::Absent;
    if no_store && !config.create && directory.holds_other_files()? {
        return Err(OpenError::StoreMissing {
            dir: directory.root,
        });
    }
    let unfinished = named.is_none()
        && matches!(log, Peek::Absent | Peek::Blank)
        && matches!(state, Peek::Absent | Peek::Blank);
    if no_store || unfinished {
        return create(config, directory, lock, reserve);
    }

    set_aside_bad_snapshot(config, &directory)?;
    let migrated = migration::migrate(config, &directory, &reserve)?;
    let found = Found {
        log: open_log(&directory, &log),
        state: open_state(&directory, &state)?,
    };
    let (log, state, machine, outcome) = match found {
        Found {
            log: Ok(log),
            state: Ok((state, machine)),
        } if meet(&log, &state)
            .map_err(|cause| OpenError::unreadable(directory.log(), cause))? =>
        {
            let outcome = migrated.map_or(BootOutcome::Opened, |done| BootOutcome::Migrated {
                from: done.from,
                to: done.to,
                backup: done.backup,
            });
            (log, state, machine, outcome)
        }
        // Before anything is called damaged: on a full disk a whole database cannot be opened either.
        found if found.is_full(&directory.root) => return Err(room::full(&directory.root)),
        found => recovery::recover(config, &directory, named.as_ref(), found)?,
    };
    let identity = agree(&directory, &log, &state, named)?;
    Ok(Booted {
        directory,
        lock,
        identity,
        log,
        state,
        machine,
        outcome,
        reserve,
    })
}

impl<M> Found<M> {
    fn is_full(&self, root: &Path) -> bool {
        let causes = [self.log.as_ref().err(), self.state.as_ref().err()];
        let mut causes = causes.into_iter().flatten();
        causes.any(|cause| room::explains(root, cause))
    }
}

fn readable_schema(path: &Path) -> Result<Peek, OpenError> {
    let peek = sqlite::peek(path).map_err(|error| OpenError::io("cannot read", path, error))?;
    match peek {
        Peek::Schema(found) if found > schema::current() => Err(OpenError::NewerSchema {
            file: path.to_owned(),
            found,
            supported: schema::current(),
        }),
        other => Ok(other),
    }
}

fn create<M: Machine>(
    config: &StoreConfig,
    directory: Directory,
    lock: DirectoryLock,
    reserve: Arc<Reserve>,
) -> Result<Booted<M>, OpenError> {
    let (log_path, state_path) = (directory.log(), directory.state());
    // What an earlier creation left when it was cut short.
    for stale in with_side_files(&log_path)
        .iter()
        .chain(&with_side_files(&state_path))
    {
        remove_if_there(stale)?;
    }
    let cluster = new_cluster_name().map_err(|error| {
        OpenError::io(
            "cannot name the store in",
            &directory.root,
            io::Error::other(error.to_string()),
        )
    })?;
    let identity = Identity {
        cluster,
        generation: 1,
        member: config.member,
    };
    let log = LogFile::create(&log_path, &identity, None, None)
        .map_err(|cause| OpenError::unreadable(&log_path, cause))?;
    let state = StateFile::create(&state_path, &identity)
        .map_err(|cause| OpenError::unreadable(&state_path, cause))?;
    let machine = state
        .load::<M>()
        .and_then(|loaded| loaded)
        .map_err(|cause| OpenError::unreadable(&state_path, cause))?;
    // Last, because its presence says that the creation was finished.
    directory.write_identity(&identity)?;
    Ok(Booted {
        directory,
        lock,
        identity,
        log,
        state,
        machine,
        outcome: BootOutcome::Created,
        reserve,
    })
}

fn open_log(directory: &Directory, peek: &Peek) -> Result<LogFile, String> {
    match peek {
        Peek::Schema(_) => LogFile::open(&directory.log()),
        other => Err(describe(other).to_owned()),
    }
}

/// The inner error says that the state is damaged or missing, which a copy may cure.
fn open_state<M: Machine>(
    directory: &Directory,
    peek: &Peek,
) -> Result<Result<(StateFile, M), String>, OpenError> {
    let path = directory.state();
    if !matches!(peek, Peek::Schema(_)) {
        return Ok(Err(describe(peek).to_owned()));
    }
    let opened = StateFile::open(&path).and_then(|file| Ok((file.load::<M>()?, file)));
    match opened {
        Ok((Ok(machine), file)) => Ok(Ok((file, machine))),
        Ok((Err(cause), _)) => Err(OpenError::unreadable(path, cause)),
        Err(cause) => Ok(Err(cause)),
    }
}

fn describe(peek: &Peek) -> &'static str {
    match peek {
        Peek::Absent => "the file is missing",
        Peek::Blank => "the file is empty",
        Peek::Schema(_) => "the file has a schema",
        Peek::NotADatabase => "the file is not a database",
    }
}

/// Whether the log goes on where the state ends. A state beyond the log's end is whole by
/// itself; the log begins anew behind it.
fn meet(log: &LogFile, state: &StateFile) -> Result<bool, String> {
    let standing = state.standing();
    Ok(standing.applied > log.last() || log.continues(standing)?)
}

/// A snapshot is a copy; one that cannot be read is put aside and made anew when needed.
fn set_aside_bad_snapshot(config: &StoreConfig, directory: &Directory) -> Result<(), OpenError> {
    let path = directory.snapshot();
    if readable_schema(&path)? == Peek::Absent {
        return Ok(());
    }
    if let Err(cause) = state::standing_of(&path) {
        let kept = directory.move_aside(&path, config.clock.wall_ms())?;
        tracing::warn!(%cause, kept = %kept.display(), "the snapshot was unreadable and is put aside");
    }
    Ok(())
}

/// Both files and the identity file must speak of one store.
fn agree(
    directory: &Directory,
    log: &LogFile,
    state: &StateFile,
    named: Option<Identity>,
) -> Result<Identity, OpenError> {
    let identity = log.identity.clone();
    if let Some(other) = &state.standing().identity
        && (&other.cluster, other.generation) != (&identity.cluster, identity.generation)
    {
        return Err(OpenError::unreadable(
            directory.state(),
            format!(
                "it belongs to cluster {} generation {}, log.db to cluster {} generation {}",
                other.cluster, other.generation, identity.cluster, identity.generation
            ),
        ));
    }
    match named {
        Some(named) if named == identity => {}
        Some(named)
            if named.cluster != identity.cluster || named.generation > identity.generation =>
        {
            return Err(OpenError::unreadable(
                directory.log(),
                format!(
                    "it belongs to cluster {} generation {}, the folder to cluster {} generation {}",
                    identity.cluster, identity.generation, named.cluster, named.generation
                ),
            ));
        }
        _ => directory.write_identity(&identity)?,
    }
    Ok(identity)
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), OpenError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OpenError::io("cannot remove", path, error)),
    }
}
