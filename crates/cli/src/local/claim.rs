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

/// Tries to lock a file that another process may take away at the same moment.
const TRIES: usize = 20;

/// The lock of a running installation; it ends with the process, whatever happens.
pub(crate) struct Claim {
    file: File,
    path: PathBuf,
    /// The folder, where it was made for this.
    made: Option<PathBuf>,
}

/// What an installation says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    pid: u32,
    since: Wall,
    /// Where the Manager and the control plane are served; none while all is being started.
    served: Option<(SocketAddr, SocketAddr)>,
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
        return Failure::new(Exit::AddressTaken, text).because("running_already");
    };
    let Told { pid, since, served } = told;
    let text =
        format!("the installation in {place} is running already: process {pid}, since {since}");
    let ask = match served {
        Some((manager, control)) => format!(
            "`greenroom get jobs --manager http://{manager}` asks it, `greenroom why JOB --control \
             http://{control}` its control plane; "
        ),
        None => String::new(),
    };
    let hint = format!("{ask}Ctrl-C where it runs, or `kill -INT {pid}`, stops it");
    Failure::new(Exit::AddressTaken, text)
        .because("running_already")
        .hint(hint)
}

// === impl Claim ===

impl Claim {
    /// Takes the folder before anything else is taken or made, so that of two that start at the same
    /// moment one is told of the other. Where nothing comes of the start, a folder that was made here
    /// is taken away again.
    pub(crate) fn take(data: &Path) -> Result<Self, Failure> {
        let path = data.join(FILE);
        let failed = |error: &std::io::Error| {
            Failure::io(format!("cannot write {}: {error}", path.display()), error)
        };
        let made = (!data.exists()).then(|| data.to_owned());
        for _ in 0..TRIES {
            std::fs::create_dir_all(data).map_err(|error| failed(&error))?;
            let opened = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let mut file = match opened {
                Ok(file) => file,
                // The folder went away with another start that came to nothing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&error)),
            };
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(runs_already(data, &mut file));
            }
            // The one that ends takes its file away: a lock on what is gone holds nobody off.
            if !is_at(&file, &path) {
                continue;
            }
            let mut claim = Self { file, path, made };
            claim.tell(None)?;
            return Ok(claim);
        }
        Err(runs_already(
            data,
            &mut File::open(&path).map_err(|error| failed(&error))?,
        ))
    }

    /// Says who runs here, and where it is served.
    pub(crate) fn tell(&mut self, served: Option<(SocketAddr, SocketAddr)>) -> Outcome {
        let told = Told {
            pid: std::process::id(),
            since: SystemClock::new().now().wall,
            served,
        };
        let written = serde_json::to_vec(&told)
            .map_err(std::io::Error::from)
            .and_then(|text| {
                self.file.set_len(0)?;
                self.file.rewind()?;
                self.file.write_all(&text)
            });
        written.map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

/// Whether this is the file that is at the path now.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => of(ours) == of(there),
        _ => false,
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What is left says nothing once the lock is gone.
        let _ = std::fs::remove_file(&self.path);
        if let Some(made) = &self.made {
            // Only an empty one goes.
            let _ = std::fs::remove_dir(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_folder_is_told_and_how_to_reach_and_stop_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut claim = Claim::take(data).unwrap();
        let me = std::process::id();
        // One that comes at the same moment is told the same as one that comes later.
        let starting = Claim::take(data).err().unwrap();
        assert_eq!(starting.exit, Exit::AddressTaken);
        let words = format!("running already: process {me}, since 20");
        assert!(starting.to_string().contains(&words), "{starting}");
        claim.tell(Some((at(1), at(2)))).unwrap();
        let failure = Claim::take(data).err().unwrap();
        assert_eq!(failure.exit, Exit::AddressTaken);
        let told = failure.to_string();
        for words in [
            &format!("running already: process {me}, since 20"),
            "http://127.0.0.1:1",
            "http://127.0.0.1:2",
            &format!("kill -INT {me}"),
        ] {
            assert!(told.contains(words), "{words:?} is not in {told}");
        }
        drop(claim);
        drop(Claim::take(data).unwrap());
        // One that was killed leaves its words, and no lock.
        std::fs::write(data.join(FILE), "{").unwrap();
        drop(Claim::take(data).unwrap());
    }

    #[test]
    fn of_many_that_start_at_once_on_a_new_folder_one_runs_and_a_start_in_vain_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("new");
        let gate = std::sync::Barrier::new(8);
        let claims: Vec<Result<Claim, Failure>> = std::thread::scope(|scope| {
            let start = || {
                gate.wait();
                Claim::take(&data)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(claims.iter().filter(|it| it.is_ok()).count(), 1);
        for failure in claims.iter().filter_map(|it| it.as_ref().err()) {
            assert_eq!(failure.exit, Exit::AddressTaken, "{failure}");
        }
        drop(claims);
        assert!(!data.join(FILE).exists());
    }
}
