//! One installation per folder. The one that runs holds a lock in it and says who it is, so that a
//! second start can tell how to reach and how to stop the first.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use greenroom_auto::{Clock, SystemClock};
use greenroom_sdk::types::Wall;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure, Outcome};

/// Name of the file in the folder.
const FILE: &str = "running.json";

/// The lock of a running installation; it ends with the process, whatever happens.
pub(crate) struct Claim {
    _file: File,
    path: PathBuf,
}

/// What an installation says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    pid: u32,
    since: Wall,
    manager: SocketAddr,
    control: SocketAddr,
}

/// Refuses to go on when an installation runs on this folder. Nothing is made.
pub(crate) fn refuse_second(data: &Path) -> Outcome {
    let Ok(mut file) = File::open(data.join(FILE)) else {
        return Ok(());
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(runs_already(data, &mut file)),
        // Left by one that is gone; and where locks are not to be had, the store has its own.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn runs_already(data: &Path, file: &mut File) -> Failure {
    let mut text = String::new();
    let told: Option<Told> = file
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| serde_json::from_str(&text).ok());
    let place = data.display();
    let Some(told) = told else {
        let text = format!("the installation in {place} is being started by another process");
        return Failure::new(Exit::AddressTaken, text);
    };
    let Told {
        pid,
        since,
        manager,
        control,
    } = told;
    let text =
        format!("the installation in {place} is running already: process {pid}, since {since}");
    let hint = format!(
        "`greenroom get jobs --manager http://{manager}` asks it, `greenroom why JOB --control \
         http://{control}` its control plane; Ctrl-C where it runs, or `kill -INT {pid}`, stops it"
    );
    Failure::new(Exit::AddressTaken, text).hint(hint)
}

// === impl Claim ===

impl Claim {
    /// Takes the folder, which exists, and says who runs there.
    pub(crate) fn take(
        data: &Path,
        manager: SocketAddr,
        control: SocketAddr,
    ) -> Result<Self, Failure> {
        let path = data.join(FILE);
        let failed = |error: &std::io::Error| {
            Failure::io(format!("cannot write {}: {error}", path.display()), error)
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed(&error))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(runs_already(data, &mut file));
        }
        let told = Told {
            pid: std::process::id(),
            since: SystemClock::new().now().wall,
            manager,
            control,
        };
        let text = serde_json::to_vec(&told).map_err(|error| failed(&error.into()))?;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(&text))
            .map_err(|error| failed(&error))?;
        Ok(Self { _file: file, path })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What is left says nothing once the lock is gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_folder_is_told_and_how_to_reach_and_stop_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        refuse_second(data).unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let claim = Claim::take(data, at(1), at(2)).unwrap();
        let failure = refuse_second(data).unwrap_err();
        assert_eq!(failure.exit, Exit::AddressTaken);
        let told = failure.to_string();
        let me = std::process::id();
        for words in [
            &format!("running already: process {me}, since 20"),
            "http://127.0.0.1:1",
            "http://127.0.0.1:2",
            &format!("kill -INT {me}"),
        ] {
            assert!(told.contains(words), "{words:?} is not in {told}");
        }
        assert!(Claim::take(data, at(3), at(4)).is_err());
        drop(claim);
        refuse_second(data).unwrap();
        // One that was killed leaves its words, and no lock.
        std::fs::write(data.join(FILE), "{").unwrap();
        refuse_second(data).unwrap();
        drop(Claim::take(data, at(1), at(2)).unwrap());
    }
}
