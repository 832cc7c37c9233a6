//! A boot that finds an older schema: copies first, then one transaction for each database (STORE-06).
//!
//! Whatever ends the process in between leaves each database in its old or its new version, whole, and the
//! copies beside it; the next boot goes on from there.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::backup;
use crate::config::StoreConfig;
use crate::directory::Directory;
use crate::error::{BackupError, OpenError};
use crate::room::Reserve;
use crate::schema::{self, Kind, Trouble};
use crate::sqlite::{self, Peek};
use crate::state;

#[cfg(test)]
pub(crate) mod tests;

/// What was migrated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Migrated {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The state as it was before.
    pub(crate) backup: Option<PathBuf>,
}

/// One database that is older than this program.
struct Older {
    kind: Kind,
    path: PathBuf,
    from: u32,
}

/// Migrates what is older. A database that is not whole is left to the recovery, which restores a copy and
/// migrates that.
pub(crate) fn migrate(
    config: &StoreConfig,
    directory: &Directory,
    reserve: &Reserve,
) -> Result<Option<Migrated>, OpenError> {
    let mut older = Vec::new();
    for (kind, path) in [
        (Kind::State, directory.state()),
        (Kind::Log, directory.log()),
    ] {
        if let Some(from) = older_version(&path)?
            && let Some(found) = rehearse(kind, path, from)?
        {
            older.push(found);
        }
    }
    let Some(from) = older.iter().map(|it| it.from).min() else {
        return Ok(None);
    };
    let to = schema::current();
    tracing::info!(from, to, "the store has an older schema and is migrated");
    let mut kept = backup_of(directory, from)?;
    for one in &older {
        match one.kind {
            Kind::State if kept.is_none() => {
                kept = keep_state(config, directory, reserve, one)?;
                if kept.is_none() {
                    return Ok(None);
                }
            }
            Kind::State => {}
            Kind::Log => keep_log(directory, reserve, one)?,
        }
    }
    for one in &older {
        reserve
            .with_room(|| schema::upgrade_file(&one.path, one.kind))
            .map_err(|cause| one.failed(cause))?;
    }
    tracing::info!(from, to, "the store is migrated");
    Ok(Some(Migrated {
        from,
        to,
        backup: kept,
    }))
}

/// The version of a database that this program has to migrate.
fn older_version(path: &Path) -> Result<Option<u32>, OpenError> {
    let peek = sqlite::peek(path).map_err(|error| OpenError::io("cannot read", path, error))?;
    if !matches!(peek, Peek::Schema(_)) {
        return Ok(None);
    }
    let asked = sqlite::open_reader(path).and_then(|reader| {
        let version = schema::version(&reader)?;
        sqlite::quick_check(&reader)?;
        Ok(version)
    });
    match asked {
        Ok(version) if version > schema::current() => Err(OpenError::NewerSchema {
            file: path.to_owned(),
            found: version,
            supported: schema::current(),
        }),
        Ok(version) => Ok((version < schema::current()).then_some(version)),
        // Whoever opens it finds the same and recovers.
        Err(_) => Ok(None),
    }
}

/// Goes the steps on a copy in memory, so that one that fails is known before anything is written.
fn rehearse(kind: Kind, path: PathBuf, from: u32) -> Result<Option<Older>, OpenError> {
    let older = Older { kind, path, from };
    match schema::read_as_current(&older.path, kind) {
        Ok(_) => Ok(Some(older)),
        Err(Trouble::Step(cause)) => Err(older.failed(cause)),
        Err(Trouble::Database(_)) => Ok(None),
    }
}

/// A backup of the version that was there. An attempt that was cut short has made one already, and nothing
/// was committed since: else each attempt would push an older backup out.
fn backup_of(directory: &Directory, from: u32) -> Result<Option<PathBuf>, OpenError> {
    let folder = directory.backups();
    let found =
        backup::list(directory).map_err(|error| OpenError::io("cannot list", folder, error))?;
    let Some(newest) = found.into_iter().next() else {
        return Ok(None);
    };
    let now = state::standing_of(&directory.state());
    let (Ok(now), Ok(then)) = (now, state::verify(&newest)) else {
        return Ok(None);
    };
    let is_of = matches!(sqlite::peek(&newest), Ok(Peek::Schema(version)) if version == from);
    let is_same = (now.identity, now.applied) == (then.identity, then.applied);
    Ok((is_of && is_same).then_some(newest))
}

/// Backs the state up; none if it turns out not to be whole.
fn keep_state(
    config: &StoreConfig,
    directory: &Directory,
    reserve: &Reserve,
    older: &Older,
) -> Result<Option<PathBuf>, OpenError> {
    let wall_ms = config.clock.wall_ms();
    let mut damage = None;
    let made =
        reserve.with_room(
            || match backup::make_regular(directory, wall_ms, config.backup_keep) {
                Ok(made) => Ok(Some(made.path)),
                Err(BackupError::Verify { cause, .. }) => {
                    damage = Some(cause);
                    Ok(None)
                }
                Err(error) => Err(chain(&error)),
            },
        );
    if let Some(cause) = damage {
        tracing::warn!(%cause, "the state is not whole and is not migrated");
    }
    made.map_err(|cause| older.failed(format!("no backup could be made: {cause}")))
}

/// Copies the log: it holds what the state does not have yet. One copy for each version is kept.
fn keep_log(directory: &Directory, reserve: &Reserve, older: &Older) -> Result<(), OpenError> {
    let folder = directory.backups();
    let target = folder.join(format!("log-schema-{}.db", older.from));
    let beside = target.with_extension("db.new");
    let kept = reserve.with_room(|| {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| error.to_string())?;
        state::copy(&older.path, &beside)?;
        sqlite::quick_check(&sqlite::open_reader(&beside)?)?;
        state::publish(&beside, &target).map_err(|error| error.to_string())
    });
    kept.map_err(|cause| older.failed(format!("no copy could be made: {cause}")))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        said.push_str(": ");
        said.push_str(&error.to_string());
        source = error.source();
    }
    said
}

// === impl Older ===

impl Older {
    fn failed(&self, cause: String) -> OpenError {
        OpenError::Migration {
            file: self.path.clone(),
            from: self.from,
            to: schema::current(),
            cause,
        }
    }
}
