//! `greenroom store`: a Manager's data folder from outside: what is in it, a copy now, a copy put back.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use greenroom_sdk::types::Wall;
use greenroom_store::offline::{self, Held};
use greenroom_store::{BackupError, BackupInfo, Loss, OpenError};
use serde_json::{Value, json};

use super::manager::{DATA_DIR, unopened};
use super::media::chain;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;

/// Regular backups that are kept (STORE-05).
const KEEP: usize = 28;

/// Look at a Manager's data folder, make a backup, or put one back.
#[derive(Debug, Args)]
pub(crate) struct Store {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Info(Info),
    Backup(Backup),
    Restore(Restore),
}

/// Say what a data folder holds, also while a Manager runs on it.
#[derive(Debug, Args)]
struct Info {
    #[command(flatten)]
    folder: Folder,
}

/// Make a verified backup now, also while a Manager runs on the folder.
#[derive(Debug, Args)]
struct Backup {
    /// Where to; without it among the regular backups in the folder.
    file: Option<PathBuf>,
    /// Replace the file if it is there.
    #[arg(long, requires = "file")]
    replace: bool,
    #[command(flatten)]
    folder: Folder,
}

/// Put a backup in the place of what the folder holds. What was there is kept beside it, and what was
/// recorded after the backup is given up. No Manager may run on the folder.
#[derive(Debug, Args)]
struct Restore {
    /// The backup.
    file: PathBuf,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, Args)]
struct Folder {
    /// The data folder. That of `greenroom up` is greenroom-data/manager.
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

// === impl Store ===

impl Store {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Info(info) => info.run(),
            Verb::Backup(backup) => backup.run(),
            Verb::Restore(restore) => restore.run(),
        }
    }
}

// === impl Info ===

impl Info {
    fn run(self) -> Outcome {
        let held = offline::examine(&self.folder.data_dir).map_err(|error| refused(&error))?;
        let told = told(&held);
        self.folder.output().either(&told, || words(&held))
    }
}

fn told(held: &Held) -> Value {
    let files = held.files.iter();
    let files =
        files.map(|file| json!({"name": file.name, "schema": file.schema, "bytes": file.bytes}));
    json!({
        "cluster": held.identity.cluster,
        "generation": held.identity.generation,
        "member": held.identity.member,
        "revision": held.revision,
        "at": held.wall_ms.map(Wall),
        "files": files.collect::<Vec<_>>(),
        "backups": held.backups.iter().map(backup_told).collect::<Vec<_>>(),
    })
}

fn backup_told(backup: &BackupInfo) -> Value {
    json!({
        "file": backup.path,
        "revision": backup.revision,
        "at": backup.wall_ms.map(Wall),
        "bytes": backup.bytes,
    })
}

fn words(held: &Held) -> String {
    let mut lines = vec![
        format!("cluster     {}", held.identity.cluster),
        format!("generation  {}", held.identity.generation),
        format!("revision    {}, of {}", held.revision, at(held.wall_ms)),
    ];
    for file in &held.files {
        lines.push(format!(
            "{:<11} {} KiB, schema {}",
            file.name,
            file.bytes / 1024,
            file.schema
        ));
    }
    match held.backups.first() {
        None => lines.push("backups     none".to_owned()),
        Some(newest) => lines.push(format!(
            "backups     {}, the newest {} of {}",
            held.backups.len(),
            newest.path.display(),
            at(newest.wall_ms)
        )),
    }
    lines.join("\n")
}

fn at(wall_ms: Option<i64>) -> String {
    wall_ms.map_or_else(|| "no time".to_owned(), |ms| Wall(ms).to_string())
}

// === impl Backup ===

impl Backup {
    fn run(self) -> Outcome {
        if let Some(file) = &self.file
            && file.exists()
            && !self.replace
        {
            let text = format!("{} is there already", file.display());
            return Err(Failure::bad_input(text).hint("--replace replaces it"));
        }
        // Whether there is a store is told before anything is made.
        offline::examine(&self.folder.data_dir).map_err(|error| refused(&error))?;
        let made = offline::back_up(&self.folder.data_dir, self.file.as_deref(), now_ms(), KEEP);
        let made = made.map_err(|error| unmade(&error))?;
        self.folder.output().either(&backup_told(&made), || {
            format!(
                "{}: revision {}, of {}",
                made.path.display(),
                made.revision,
                at(made.wall_ms)
            )
        })
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

fn unmade(error: &BackupError) -> Failure {
    let exit = match error {
        BackupError::Verify { .. } => Exit::Unreadable,
        BackupError::Target { .. } => Exit::BadInput,
        _ => Exit::DiskFailed,
    };
    Failure::new(exit, chain(error))
}

// === impl Restore ===

impl Restore {
    fn run(self) -> Outcome {
        let file: &Path = &self.file;
        if !file.exists() {
            let text = format!("{}: there is no such file", file.display());
            return Err(Failure::bad_input(text));
        }
        let backup = offline::verify(file).map_err(|error| refused(&error))?;
        let put = greenroom_manager::restore(&self.folder.data_dir, file);
        let put = put.map_err(|error| refused(&error))?;
        let told = json!({
            "file": file,
            "revision": backup.revision,
            "at": backup.wall_ms.map(Wall),
            "generation": put.identity.generation,
            "keptAs": put.kept_as,
        });
        self.folder.output().either(&told, || {
            let mut text = format!(
                "{} is in place: revision {}, generation {}",
                file.display(),
                backup.revision,
                put.identity.generation
            );
            if let Loss::After { wall_ms, .. } = put.loss {
                text.push_str(&format!(
                    "; what was recorded after {} is given up",
                    at(wall_ms)
                ));
            }
            if !self.folder.data_dir.join("secrets.key").exists() {
                text.push_str("; before a Manager starts, put the key of its secrets there, or name it as secretsKeyFile");
            }
            if let Some(kept) = &put.kept_as {
                text.push_str(&format!("; what was there is kept in {}", kept.display()));
            }
            text
        })
    }
}

// === impl Folder ===

impl Folder {
    const fn output(&self) -> Output {
        Output { json: self.json }
    }
}

fn refused(error: &OpenError) -> Failure {
    let missing = matches!(error, OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound);
    if missing {
        return Failure::new(Exit::StoreMissing, chain(error)).hint("--data-dir names the folder");
    }
    let failure = Failure::new(unopened(error), chain(error));
    match error {
        OpenError::Locked { .. } => failure.hint("end the Manager on that folder first"),
        _ => failure,
    }
}
