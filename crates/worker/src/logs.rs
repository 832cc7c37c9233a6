//! Job logs: files with a bound, and their last lines (WORK-18, WORK-24).
//!
//! One service writes `<service>.log`; full, it becomes `.1`, and so on up to the bound. Nothing here
//! knows where lines come from; their form is in `line.rs`, `read.rs` reads them while they are
//! written, `serve.rs` tells them to the Manager.

pub(crate) mod line;
mod read;
pub(crate) mod serve;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, Role, StartId};
use serde::{Deserialize, Serialize};

use self::line::LogLine;
use crate::launch::{LogLimits, safe_name};

/// Lines of a failed service that its failure carries (WORK-18).
const FAILURE_LINES: usize = 20;
/// The end of a log that is searched for them, in bytes.
const TAIL_BYTES: u64 = 64 << 10;

/// Logs of an instance are kept this long after its end (WORK-24).
const KEPT: Duration = Duration::from_secs(24 * 3_600);
const ABOUT_FILE: &str = "about.json";
const ENDED_FILE: &str = "ended";

/// The log of one service of one run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceLog {
    /// Role of the instance.
    pub role: Role,
    /// Which run.
    pub start_id: StartId,
    /// The service.
    pub service: String,
    /// The newest file; older ones end in `.1`, `.2` and so on.
    pub path: PathBuf,
    /// True while the instance is on the node.
    pub live: bool,
}

/// The logs that a worker keeps of a job, the newest run last.
///
/// # Errors
/// When the state directory cannot be read.
pub fn find(state_dir: &Path, job_id: &JobId) -> io::Result<Vec<ServiceLog>> {
    LogStore::new(state_dir).find(job_id)
}

/// Where the logs of all instances are.
#[derive(Clone, Debug)]
pub(crate) struct LogStore(PathBuf);

#[derive(Serialize, Deserialize)]
struct About {
    key: InstanceKey,
    start_id: StartId,
}

/// The log of one service, being written.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    limits: LogLimits,
    file: File,
    len: u64,
}

// === impl LogStore ===

impl LogStore {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("logs"))
    }

    /// The directory of an instance's logs.
    pub(crate) fn dir(&self, start_id: &StartId) -> PathBuf {
        self.0.join(safe_name(start_id))
    }

    /// Where the lines of a run of a job are: of the named one, or else of the one that is on the
    /// node, or else of the newest there was (LOG-01).
    fn pick(
        &self,
        job_id: &JobId,
        role: &Role,
        start_id: &StartId,
    ) -> io::Result<Option<(StartId, PathBuf)>> {
        let mut best: Option<((bool, SystemTime), StartId, PathBuf)> = None;
        for dir in self.dirs() {
            let Ok(bytes) = std::fs::read(dir.join(ABOUT_FILE)) else {
                continue;
            };
            let about: About = serde_json::from_slice(&bytes)?;
            let wanted = about.key.job_id == *job_id
                && (role.is_empty() || about.key.role == *role)
                && (start_id.is_empty() || about.start_id == *start_id);
            if !wanted {
                continue;
            }
            let began = std::fs::metadata(dir.join(ABOUT_FILE))?.modified()?;
            let rank = (!dir.join(ENDED_FILE).exists(), began);
            if best.as_ref().is_none_or(|(other, ..)| rank > *other) {
                best = Some((rank, about.start_id, dir));
            }
        }
        Ok(best.map(|(_, start_id, dir)| (start_id, dir)))
    }

    /// Makes the directory for an instance's logs.
    pub(crate) fn begin(&self, key: &InstanceKey, start_id: &StartId) -> io::Result<PathBuf> {
        let dir = self.dir(start_id);
        std::fs::create_dir_all(&dir)?;
        let about = About {
            key: key.clone(),
            start_id: start_id.clone(),
        };
        std::fs::write(dir.join(ABOUT_FILE), serde_json::to_vec(&about)?)?;
        Ok(dir)
    }

    /// Notes that an instance is over: its logs are kept from now on for their time.
    pub(crate) fn end(&self, start_id: &StartId) {
        let dir = self.dir(start_id);
        if dir.exists() {
            let _ = std::fs::write(dir.join(ENDED_FILE), b"");
        }
    }

    /// Removes logs whose time is over.
    pub(crate) fn sweep(&self, now: SystemTime) {
        for dir in self.dirs() {
            let ended = std::fs::metadata(dir.join(ENDED_FILE)).and_then(|file| file.modified());
            let age = ended.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > KEPT) {
                let _ = std::fs::remove_dir_all(dir);
            }
        }
    }

    fn find(&self, job_id: &JobId) -> io::Result<Vec<ServiceLog>> {
        let mut found = Vec::new();
        for dir in self.dirs() {
            let Ok(bytes) = std::fs::read(dir.join(ABOUT_FILE)) else {
                continue;
            };
            let about: About = serde_json::from_slice(&bytes)?;
            if about.key.job_id != *job_id {
                continue;
            }
            let began = std::fs::metadata(dir.join(ABOUT_FILE))?.modified()?;
            for entry in std::fs::read_dir(&dir)? {
                let path = entry?.path();
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or_default();
                let Some(service) = name.strip_suffix(".log") else {
                    continue;
                };
                let log = ServiceLog {
                    role: about.key.role.clone(),
                    start_id: about.start_id.clone(),
                    service: service.to_owned(),
                    live: !dir.join(ENDED_FILE).exists(),
                    path,
                };
                found.push((began, log));
            }
        }
        found.sort_by(|(a, x), (b, y)| {
            (a, &x.start_id, &x.service).cmp(&(b, &y.start_id, &y.service))
        });
        Ok(found.into_iter().map(|(_, log)| log).collect())
    }

    fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten();
        entries.flatten().map(|entry| entry.path())
    }
}

// === impl LogFile ===

impl LogFile {
    pub(crate) fn open(dir: &Path, service: &str, limits: LogLimits) -> io::Result<Self> {
        let path = log_path(dir, service);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let len = file.metadata()?.len();
        Ok(Self {
            path,
            limits,
            file,
            len,
        })
    }

    /// Appends; begins a new file first where the bytes would not fit any more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len + bytes.len() as u64 > self.limits.file_bytes {
            self.rotate()?;
        }
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let older = |n| older_path(&self.path, n);
        for n in (1..self.limits.files.max(1)).rev() {
            match std::fs::rename(older(n - 1), older(n)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&self.path)?;
        self.len = 0;
        Ok(())
    }
}

/// Where the newest lines of a service are.
pub(crate) fn log_path(dir: &Path, service: &str) -> PathBuf {
    dir.join(format!("{service}.log"))
}

/// The file that was the newest so many changes ago.
fn older_path(path: &Path, age: u32) -> PathBuf {
    match age {
        0 => path.to_owned(),
        age => path.with_extension(format!("log.{age}")),
    }
}

/// Words for a failure: what happened, then the service's last lines.
pub(crate) fn with_last_lines(why: &str, dir: &Path, service: &str) -> String {
    let mut words = why.to_owned();
    let lines = last_lines(&log_path(dir, service)).unwrap_or_default();
    for line in lines.iter().skip(lines.len().saturating_sub(FAILURE_LINES)) {
        words.push('\n');
        words.push_str(&line.text);
    }
    words
}

/// The lines at the end of a file, as many as fit into the bytes that are looked at.
pub(crate) fn last_lines(path: &Path) -> io::Result<Vec<LogLine>> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // Unless it begins the file, the first line may have been cut.
    let cut = usize::from(from > 0);
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').skip(cut);
    Ok(lines.map(LogLine::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: WORK-24
    #[test]
    fn logs_keep_to_their_bound() {
        let dir = tempfile::tempdir().unwrap();
        let limits = LogLimits {
            file_bytes: 10,
            files: 3,
        };
        let mut log = LogFile::open(dir.path(), "a", limits).unwrap();
        for n in 0..9 {
            log.write(format!("line{n}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("a.log"), "line8\n");
        assert_eq!(read("a.log.1"), "line7\n");
        assert_eq!(read("a.log.2"), "line6\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        // Opened again, it goes on where it was.
        let mut log = LogFile::open(dir.path(), "a", limits).unwrap();
        log.write(b"x\n").unwrap();
        assert_eq!(read("a.log"), "line8\nx\n");
    }

    // spec: WORK-24
    #[test]
    fn logs_are_found_by_job_and_kept_a_day_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path());
        let key = |job: &str| InstanceKey::new(job.into(), "primary".into());
        for (job, start_id) in [("a", "1"), ("a", "2"), ("b", "3")] {
            let logs = store.begin(&key(job), &start_id.into()).unwrap();
            LogFile::open(&logs, "play", LogLimits::default())
                .unwrap()
                .write(b"x")
                .unwrap();
        }
        let ids = || -> Vec<(String, bool)> {
            let found = find(dir.path(), &"a".into()).unwrap();
            found
                .iter()
                .map(|log| (log.start_id.to_string(), log.live))
                .collect()
        };
        assert_eq!(ids(), [("1".to_owned(), true), ("2".to_owned(), true)]);
        store.end(&"1".into());
        store.sweep(SystemTime::now() + KEPT / 2);
        assert_eq!(ids(), [("1".to_owned(), false), ("2".to_owned(), true)]);
        store.sweep(SystemTime::now() + KEPT * 2);
        assert_eq!(ids(), [("2".to_owned(), true)]);
    }

    // spec: WORK-18
    #[test]
    fn a_failure_carries_the_last_twenty_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(dir.path(), "a", LogLimits::default()).unwrap();
        for n in 0..30 {
            log.write(format!("line {n}\n").as_bytes()).unwrap();
        }
        let text = with_last_lines("exit code 1", dir.path(), "a");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 21);
        assert_eq!(
            (lines[0], lines[1], lines[20]),
            ("exit code 1", "line 10", "line 29")
        );
        assert_eq!(with_last_lines("gone", dir.path(), "b"), "gone");
    }
}
