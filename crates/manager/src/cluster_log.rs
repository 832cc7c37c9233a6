//! The cluster log of this member: what happened to it as a member, for people (CLUST-24, CLUST-25). It is no part
//! of the replicated state: it must work without a quorum, and while the store of state is broken.
//!
//! One line of JSON for each entry; of several lines with one number the last is the entry.

mod book;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_store::{BootOutcome, BootReport, Room};
use greenroom_types::{Now, Wall};

use crate::engine::Engine;
use crate::files;
use book::Book;
pub(crate) use book::{Entry, Query};

const FILE: &str = "clusterlog.jsonl";
/// How often what is new is flushed, and the disk and the clocks are looked at (CLUST-25).
const EVERY: Duration = Duration::from_secs(1);
/// The clocks may run apart by so much between two looks before the wall clock counts as stepped.
const STEP_MS: i64 = 1_000;
/// The file may hold so much more than twice what is kept before it is written anew.
const SLACK_BYTES: u64 = 1024 * 1024;

/// Entries of this run and of earlier ones.
#[derive(Debug)]
pub(crate) struct ClusterLog {
    path: PathBuf,
    book: Mutex<Book>,
    /// Bytes of the file, none where it must be written anew. One write at a time.
    file: tokio::sync::Mutex<Option<u64>>,
    /// That it cannot be written is told once.
    told: AtomicBool,
}

/// What a member looks at each second.
#[derive(Debug)]
pub(crate) struct Look {
    /// Wall clock minus the other one, in milliseconds.
    apart: i64,
    room: Room,
}

// === impl ClusterLog ===

impl ClusterLog {
    /// Reads what earlier runs wrote. A line that cannot be read is left out, and told of.
    pub(crate) fn open(data_dir: &Path) -> Self {
        let path = data_dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "the cluster log cannot be read and is begun anew");
                String::new()
            }
        };
        let (book, bad) = Book::read(&text);
        if bad > 0 {
            tracing::warn!(lines = bad, path = %path.display(), "lines of the cluster log cannot be read");
        }
        // A line that was cut short must not be gone on with.
        let is_whole = bad == 0 && (text.is_empty() || text.ends_with('\n'));
        Self {
            path,
            book: Mutex::new(book),
            file: tokio::sync::Mutex::new(is_whole.then_some(text.len() as u64)),
            told: AtomicBool::new(false),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters something; it is flushed within a second.
    pub(crate) fn note(
        &self,
        at: Wall,
        term: u64,
        kind: &str,
        text: &str,
        details: &[(&str, String)],
    ) {
        let details: BTreeMap<String, String> = details
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        self.book().note(at, term, kind, text, details);
    }

    /// Newest first.
    pub(crate) fn find(&self, query: &Query) -> Vec<Entry> {
        self.book().find(query)
    }

    /// Writes and flushes what is new. What cannot be written is kept, and tried again.
    pub(crate) async fn flush(&self) {
        let mut file = self.file.lock().await;
        let (numbers, mut lines, kept) = {
            let mut book = self.book();
            let changed = book.take_changed();
            let numbers: Vec<u64> = changed.iter().map(|entry| entry.seq).collect();
            (numbers, book::lines(&changed), book.bytes() as u64)
        };
        if numbers.is_empty() {
            return;
        }
        let mut anew = None;
        if let Some(bytes) = *file
            && bytes <= 2 * kept + SLACK_BYTES
        {
            anew = Some(bytes);
        }
        if anew.is_none() {
            lines = self.book().all();
        }
        let (path, length) = (self.path.clone(), lines.len() as u64);
        let writing = tokio::task::spawn_blocking(move || match anew {
            Some(_) => append(&path, lines.as_bytes()),
            None => files::replace(&path, lines.as_bytes()),
        });
        match writing.await {
            Ok(Ok(())) => *file = Some(anew.unwrap_or(0) + length),
            other => {
                // Half a line may be there.
                *file = None;
                self.book().put_back(numbers);
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::warn!(?other, path = %self.path.display(), "the cluster log cannot be written");
                }
            }
        }
    }

    /// How this member came to serve, and how its disk is; flushed at once, as every change of role.
    pub(crate) async fn begin(&self, now: Now, term: u64, boot: &BootReport, room: Room) -> Look {
        let path = |path: &Option<PathBuf>| {
            let shown = path.as_ref().map(|path| path.display().to_string());
            shown.unwrap_or_default()
        };
        match &boot.outcome {
            BootOutcome::Opened | BootOutcome::Created => {}
            BootOutcome::Migrated { from, to, backup } => {
                let details = [
                    ("from", from.to_string()),
                    ("to", to.to_string()),
                    ("backup", path(backup)),
                ];
                self.note(now.wall, term, "store", "the store was migrated", &details);
            }
            BootOutcome::Restored {
                from,
                damaged_kept_as,
                loss,
            } => {
                let details = [
                    ("from", path(from)),
                    ("damaged_kept_as", path(damaged_kept_as)),
                    ("loss", format!("{loss:?}")),
                ];
                let text = "the store was damaged and was restored";
                self.note(now.wall, term, "store", text, &details);
            }
        }
        let details = [
            ("role", "primary".to_owned()),
            ("cause", "started".to_owned()),
            ("generation", boot.identity.generation.to_string()),
            ("index", boot.revision.to_string()),
        ];
        self.note(now.wall, term, "role", "this member is primary", &details);
        let mut look = Look::new(now);
        self.look(&mut look, now, term, room);
        self.flush().await;
        look
    }

    fn look(&self, look: &mut Look, now: Now, term: u64, room: Room) {
        for (kind, text, details) in look.next(now, room) {
            self.note(now.wall, term, kind, text, &details);
        }
    }

    /// That this member gives its role up in order.
    pub(crate) async fn end(&self, now: Now, term: u64) {
        let details = [
            ("role", "stopped".to_owned()),
            ("cause", "ended in order".to_owned()),
        ];
        self.note(now.wall, term, "role", "this member stops", &details);
        self.flush().await;
    }

    /// Looks at the disk and at the clocks each second, and flushes; until the store fails.
    pub(crate) async fn keep(self: Arc<Self>, engine: Engine, term: u64, mut look: Look) {
        let fatal = engine.store().fatal();
        tokio::pin!(fatal);
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                cause = &mut fatal => {
                    let details = [("cause", cause.to_string())];
                    let now = engine.clock().now().wall;
                    self.note(now, term, "store", "the store cannot go on", &details);
                    self.flush().await;
                    return;
                }
                _ = ticks.tick() => {}
            }
            let now = engine.clock().now();
            self.look(&mut look, now, term, engine.store().room());
            self.flush().await;
        }
    }
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

// === impl Look ===

type Seen = (&'static str, &'static str, Vec<(&'static str, String)>);

impl Look {
    fn new(now: Now) -> Self {
        Self {
            apart: apart(now),
            room: Room::Plenty,
        }
    }

    /// What changed since the look before.
    fn next(&mut self, now: Now, room: Room) -> Vec<Seen> {
        let mut seen: Vec<Seen> = Vec::new();
        let step = apart(now) - self.apart;
        if step.abs() >= STEP_MS {
            let details = vec![("step_ms", step.to_string())];
            seen.push(("clock", "the wall clock stepped", details));
        }
        // Slow drift is none.
        self.apart = apart(now);
        if room != self.room {
            let text = match room {
                Room::Low => "the disk is nearly full",
                Room::Plenty => "the disk has room again",
            };
            seen.push(("disk", text, Vec::new()));
            self.room = room;
        }
        seen
    }
}

fn apart(now: Now) -> i64 {
    now.wall.0.saturating_sub(now.mono.0.cast_signed())
}

#[cfg(test)]
mod tests {
    use greenroom_types::Mono;

    use super::*;

    fn note(log: &ClusterLog, at: i64, kind: &str) {
        log.note(Wall(at), 1, kind, kind, &[("a", "b".to_owned())]);
    }

    fn all(log: &ClusterLog) -> Vec<(u64, String, u32)> {
        let found = log.find(&Query::newest(100));
        let short = found.into_iter().map(|it| (it.seq, it.kind, it.repeated));
        short.collect()
    }

    // spec: CLUST-25
    #[tokio::test]
    async fn what_was_flushed_is_there_again_and_goes_on_behind_a_line_that_was_cut_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let log = ClusterLog::open(folder.path());
        note(&log, 0, "role");
        note(&log, 20_000, "disk");
        log.flush().await;
        // A repeat of what is written already.
        note(&log, 21_000, "disk");
        log.flush().await;
        note(&log, 22_000, "clock");
        let expected = vec![(2, "disk".to_owned(), 1), (1, "role".to_owned(), 0)];
        assert_eq!(all(&ClusterLog::open(folder.path())), expected);

        let mut cut = std::fs::read(&path).unwrap();
        cut.extend(b"{\"seq\":3,\"at\":");
        std::fs::write(&path, cut).unwrap();
        let log = ClusterLog::open(folder.path());
        assert_eq!(all(&log), expected);
        note(&log, 60_000, "store");
        log.flush().await;
        let again = all(&ClusterLog::open(folder.path()));
        assert_eq!(again[0], (3, "store".to_owned(), 0));
        assert_eq!(again[1..], expected);
    }

    // spec: CLUST-25
    #[tokio::test]
    async fn what_cannot_be_written_is_written_when_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let log = ClusterLog::open(folder.path());
        std::fs::create_dir(&path).unwrap();
        note(&log, 0, "role");
        log.flush().await;
        assert_eq!(all(&log).len(), 1, "told all the same");
        std::fs::remove_dir(&path).unwrap();
        log.flush().await;
        assert_eq!(all(&ClusterLog::open(folder.path())).len(), 1);
    }

    // spec: CLUST-25
    #[tokio::test]
    async fn a_file_of_repeats_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let log = ClusterLog::open(folder.path());
        let long = "x".repeat(200_000);
        for _ in 0..12 {
            log.note(Wall(0), 1, "store", &long, &[]);
            log.flush().await;
        }
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length < 1_700_000, "{length}");
        assert_eq!(all(&ClusterLog::open(folder.path()))[0].2, 11);
    }

    // spec: CLUST-24
    #[test]
    fn steps_of_the_clock_and_changes_of_room_are_seen_once() {
        let at = |mono: u64, wall: i64| Now {
            mono: Mono(mono),
            wall: Wall(wall),
        };
        let mut look = Look::new(at(0, 1_000_000));
        let mut next = |now, room| {
            let seen = look.next(now, room);
            seen.into_iter().map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!(next(at(1_000, 1_001_200), Room::Plenty), [""; 0]);
        assert_eq!(next(at(2_000, 1_600_000), Room::Low), ["clock", "disk"]);
        assert_eq!(next(at(3_000, 1_601_000), Room::Low), [""; 0]);
        assert_eq!(next(at(4_000, 1_000_000), Room::Plenty), ["clock", "disk"]);
    }
}
