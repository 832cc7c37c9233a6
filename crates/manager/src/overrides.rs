//! The overrides file (OVR): read at the start and when asked, never watched.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use greenroom_ledger::{Command, Found};
use greenroom_types::call::{Call, Detail, Refusal, Reply, Status};
use greenroom_types::json::JsonFault;
use greenroom_types::overrides::{OVERRIDES_MAX, Overrides};

use rustix::fs::OFlags;

use crate::engine::{Caller, Engine};

/// The file and how things stand with it.
#[derive(Debug)]
pub(crate) struct OverridesFile {
    path: PathBuf,
    status: Mutex<String>,
    /// One reading at a time, so that what was read last is what stays.
    reading: tokio::sync::Mutex<()>,
}

/// Why the file cannot be put in force.
#[derive(Debug)]
pub(crate) enum OverridesError {
    /// It is no file that is read (OVR-06).
    File(String),
    /// What it says (OVR-03).
    Faults(Vec<JsonFault>),
}

// === impl OverridesFile ===

impl OverridesFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            status: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// In words, for GetStoreInfo.
    pub(crate) fn status(&self) -> String {
        self.lock().clone()
    }

    /// Reads the file at the start. Whatever is wrong with it, the start goes on with the last good
    /// copy (OVR-03).
    pub(crate) async fn boot(&self, engine: &Engine) {
        let _turn = self.reading.lock().await;
        let status = match self.read().await {
            Ok(read) if engine.read(|ledger| *ledger.overrides() == read) => self.in_force(&read),
            Ok(read) => {
                let command = Command::Overrides(Box::new(read.clone()));
                match engine.propose(command).await {
                    Ok((_, answer)) => match answer.result {
                        Ok(_) => self.in_force(&read),
                        Err(refusal) => self.kept(&refusal),
                    },
                    Err(error) => self.kept(&error),
                }
            }
            Err(error) => self.kept(&error.refusal(&self.path)),
        };
        *self.lock() = status;
    }

    /// Reads the file because somebody asks for it (OVR-02).
    pub(crate) async fn reload(
        &self,
        engine: &Engine,
        caller: Caller,
    ) -> Result<(u64, Reply), Refusal> {
        let _turn = self.reading.lock().await;
        let read = self.read().await;
        let read = read.map_err(|error| error.refusal(&self.path))?;
        let status = self.in_force(&read);
        let found = Found::Overrides(Box::new(read));
        let reloaded = engine
            .call_with(caller, Call::ReloadExternalConfig, found)
            .await?;
        *self.lock() = status;
        Ok(reloaded)
    }

    async fn read(&self) -> Result<Overrides, OverridesError> {
        let path = self.path.clone();
        let reading = tokio::task::spawn_blocking(move || read(&path));
        let failed = |error| OverridesError::File(format!("cannot be read: {error}"));
        reading.await.map_err(failed)?
    }

    fn in_force(&self, read: &Overrides) -> String {
        match read.providers.is_empty() {
            true => format!("none: {} says nothing", self.path.display()),
            false => format!("in force: {}", self.path.display()),
        }
    }

    fn kept(&self, problem: &dyn fmt::Display) -> String {
        tracing::error!(path = %self.path.display(), %problem, "the overrides file is not put in force; the last good copy is");
        format!("the last good copy: {problem}")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that is wrong with a file, one line each with file, line, column and key (API-20).
pub fn overrides_problems(path: &Path) -> Vec<String> {
    let shown = path.display();
    match read(path) {
        Ok(_) => Vec::new(),
        Err(OverridesError::File(text)) => vec![format!("{shown}: {text}")],
        Err(OverridesError::Faults(faults)) => {
            let faults = faults.iter();
            faults.map(|fault| format!("{shown}:{fault}")).collect()
        }
    }
}

fn read(path: &Path) -> Result<Overrides, OverridesError> {
    let refused = |text: String| OverridesError::File(text);
    let unread = |error: io::Error| refused(format!("cannot be read: {error}"));
    // Opening must not wait for whoever writes into a pipe of that name.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let mut open = File::options();
    let file = match open.read(true).custom_flags(at_once).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Overrides::default()),
        Err(error) => return Err(unread(error)),
    };
    // The opened file is looked at, not its name: that may be another by now.
    let about = file.metadata().map_err(unread)?;
    if !about.is_file() {
        return Err(refused("is no regular file".to_owned()));
    }
    if about.permissions().mode() & 0o002 != 0 {
        let text = "may be written by everybody: chmod o-w it, and look at what it says";
        return Err(refused(text.to_owned()));
    }
    let mut text = String::new();
    let most = OVERRIDES_MAX as u64;
    file.take(most + 1)
        .read_to_string(&mut text)
        .map_err(unread)?;
    if text.len() > OVERRIDES_MAX {
        return Err(refused(format!("is longer than {most} bytes")));
    }
    Overrides::read(&text).map_err(OverridesError::Faults)
}

// === impl OverridesError ===

impl OverridesError {
    fn refusal(&self, path: &Path) -> Refusal {
        let shown = path.display();
        let refuse = |reason, text| Refusal::new(Status::InvalidArgument, reason, text);
        let faults = match self {
            Self::File(text) => return refuse("bad_overrides_file", format!("{shown} {text}")),
            Self::Faults(faults) => faults,
        };
        let Some(first) = faults.first() else {
            return refuse("bad_overrides", format!("{shown} cannot be read"));
        };
        let more = match faults.len() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        let refusal = refuse("bad_overrides", format!("{shown}:{first}{more}"));
        let mut refusal = refusal
            .with("line", first.place.line)
            .with("column", first.place.column)
            .with("key", first.path.as_str());
        let problems = faults.iter().map(|it| Detail::Text(it.to_string()));
        let problems = Detail::List(problems.collect());
        refusal.details.insert("problems".to_owned(), problems);
        refusal
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    // spec: OVR-06
    #[test]
    fn only_a_regular_file_of_bounded_length_that_others_cannot_write_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.json");
        assert!(overrides_problems(&path).is_empty(), "there need be none");
        let reason = || read(&path).unwrap_err().refusal(&path).reason;

        std::fs::write(&path, "{}").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(overrides_problems(&path).is_empty());
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(reason(), "bad_overrides_file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        std::fs::write(&path, " ".repeat(OVERRIDES_MAX) + "{}").unwrap();
        assert_eq!(reason(), "bad_overrides_file");
        std::fs::write(&path, " ".repeat(OVERRIDES_MAX - 2) + "{}").unwrap();
        assert!(
            overrides_problems(&path).is_empty(),
            "exactly as long as may be"
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(reason(), "bad_overrides_file");
        let told = overrides_problems(&path);
        assert_eq!(told, [format!("{}: is no regular file", path.display())]);
    }

    // spec: OVR-03
    #[test]
    fn a_fault_is_refused_with_line_column_and_key_and_all_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.json");
        std::fs::write(&path, "{\n  \"aws\": {\"zone\": 1},\n  \"gcp\": {}\n}").unwrap();
        let refusal = read(&path).unwrap_err().refusal(&path);
        assert_eq!(refusal.reason, "bad_overrides");
        assert_eq!(refusal.details["line"], 2_i64.into());
        assert_eq!(refusal.details["column"], 11_i64.into());
        assert_eq!(refusal.details["key"], "aws.zone".into());
        let Detail::List(problems) = &refusal.details["problems"] else {
            panic!("{refusal:?}");
        };
        assert_eq!(problems.len(), 2);
        let told = overrides_problems(&path);
        let begun = format!("{}:3:3: gcp: unknown key", path.display());
        assert!(told[1].starts_with(&begun), "{told:?}");
    }
}
