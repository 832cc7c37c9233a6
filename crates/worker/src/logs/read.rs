//! Reading the logs of one instance while they are written: the newest lines first asked for, then
//! whatever comes, across the change from one file to the next.
//!
//! A file that is full gets another name, so a file is known by its number in the file system: at the
//! end of one, its successor is the file that now stands before it. Nothing is held in memory but the
//! next line of each service.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::line::{LINE_MAX, LogLine};
use super::{ENDED_FILE, log_path, older_path};

/// A batch holds at most so many lines, and texts of about so many bytes.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 256 << 10;
/// Bytes read at once on the way back from the end of a file.
const BLOCK: u64 = 64 << 10;
/// No log has more files than this, whatever the settings say.
const FILES_MAX: u32 = 1_000;

/// Reads the logs of one instance, in the order of their times as far as these are known.
pub(crate) struct Reader {
    dir: PathBuf,
    /// Only this service; empty for all.
    service: String,
    follow: bool,
    cursors: BTreeMap<String, Cursor>,
}

/// Lines, and whether there will be no more.
pub(crate) struct Batch {
    pub(crate) lines: Vec<(String, LogLine)>,
    pub(crate) is_last: bool,
}

/// A place in the files of one service.
struct Cursor {
    path: PathBuf,
    open: Option<Open>,
    /// The beginning of a line whose end is not written yet.
    part: Vec<u8>,
    /// Read and not given out yet.
    head: Option<LogLine>,
}

struct Open {
    file: BufReader<File>,
    id: FileId,
    /// It has a successor, and was read to its end since that was seen.
    succeeded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

// === impl Reader ===

impl Reader {
    /// Begins at the newest `tail` lines of each service, or at the oldest that is kept.
    pub(crate) fn open(
        dir: &Path,
        service: &str,
        tail: Option<u32>,
        follow: bool,
    ) -> io::Result<Self> {
        let mut reader = Self {
            dir: dir.to_owned(),
            service: service.to_owned(),
            follow,
            cursors: BTreeMap::new(),
        };
        for name in reader.services()? {
            let path = log_path(dir, &name);
            let cursor = match tail {
                Some(lines) => Cursor::at_tail(path, lines)?,
                None => Cursor::at_oldest(path),
            };
            reader.cursors.insert(name, cursor);
        }
        Ok(reader)
    }

    /// True when nothing that was asked for has a log here.
    pub(crate) fn is_empty(&self) -> bool {
        self.cursors.is_empty()
    }

    /// The next lines that are there now.
    pub(crate) fn next_batch(&mut self) -> io::Result<Batch> {
        // Asked before reading: what is there once it is over is everything.
        let over = self.is_over();
        for name in self.services()? {
            let path = log_path(&self.dir, &name);
            self.cursors
                .entry(name)
                .or_insert_with(|| Cursor::at_oldest(path));
        }
        let mut batch = Batch {
            lines: Vec::new(),
            is_last: false,
        };
        let mut bytes = 0;
        while batch.lines.len() < BATCH_LINES && bytes < BATCH_BYTES {
            let Some((service, line)) = self.next_line(over)? else {
                batch.is_last = over || !self.follow;
                break;
            };
            bytes += line.text.len();
            batch.lines.push((service, line));
        }
        Ok(batch)
    }

    /// The oldest line that is next anywhere. One whose time is not known comes at once, since it
    /// cannot be compared.
    fn next_line(&mut self, over: bool) -> io::Result<Option<(String, LogLine)>> {
        let mut first: Option<(&String, &mut Cursor)> = None;
        for (service, cursor) in &mut self.cursors {
            cursor.fill(over)?;
            let at = |cursor: &Cursor| cursor.head.as_ref().map(|line| line.at);
            if let Some(own) = at(cursor)
                && first
                    .as_ref()
                    .is_none_or(|(_, first)| Some(own) < at(first))
            {
                first = Some((service, cursor));
            }
        }
        Ok(first.and_then(|(service, cursor)| Some((service.clone(), cursor.head.take()?))))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.dir.join(ENDED_FILE).exists() || !self.dir.exists()
    }

    /// Services that have a log and are asked for. The name that was asked for is compared and never
    /// made a path.
    fn services(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".log"));
            names.extend(
                name.filter(|name| self.service.is_empty() || *name == self.service)
                    .map(str::to_owned),
            );
        }
        Ok(names)
    }
}

// === impl Cursor ===

impl Cursor {
    const fn at_oldest(path: PathBuf) -> Self {
        Self {
            path,
            open: None,
            part: Vec::new(),
            head: None,
        }
    }

    fn at_tail(path: PathBuf, lines: u32) -> io::Result<Self> {
        let mut cursor = Self::at_oldest(path);
        let mut wanted = u64::from(lines);
        for age in 0..FILES_MAX {
            let Some(mut open) = Open::file(&older_path(&cursor.path, age))? else {
                break;
            };
            // It moved on while it was read.
            if cursor
                .open
                .as_ref()
                .is_some_and(|newer| newer.id == open.id)
            {
                continue;
            }
            let begin = tail_begin(open.file.get_mut(), &mut wanted)?;
            open.file.seek(SeekFrom::Start(begin.unwrap_or(0)))?;
            cursor.open = Some(open);
            if begin.is_some() {
                break;
            }
        }
        Ok(cursor)
    }

    /// Reads the next line, if there is one.
    fn fill(&mut self, over: bool) -> io::Result<()> {
        while self.head.is_none() {
            let Some(open) = &mut self.open else {
                self.open = oldest(&self.path)?;
                if self.open.is_none() {
                    return Ok(());
                }
                continue;
            };
            let room = LINE_MAX - self.part.len();
            let mut bounded = (&mut open.file).take(room as u64);
            let read = bounded.read_until(b'\n', &mut self.part)?;
            if self.part.ends_with(b"\n") || self.part.len() == LINE_MAX {
                self.give();
            } else if read == 0 && open.succeeded {
                self.open = newer(&self.path, open.id)?;
                if !self.part.is_empty() {
                    self.give();
                }
            } else if read == 0 {
                open.succeeded = newer(&self.path, open.id)?.is_some();
                if !open.succeeded {
                    if over && !self.part.is_empty() {
                        self.give();
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn give(&mut self) {
        self.head = Some(LogLine::parse(&self.part));
        self.part.clear();
    }
}

// === impl Open ===

impl Open {
    fn file(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let id = FileId::of(&file.metadata()?);
        Ok(Some(Self {
            file: BufReader::new(file),
            id,
            succeeded: false,
        }))
    }
}

// === impl FileId ===

impl FileId {
    fn of(about: &Metadata) -> Self {
        Self(about.dev(), about.ino())
    }

    fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|about| Self::of(&about))
    }
}

/// The file that was begun when the one of this number was full; none while it is the newest.
fn newer(path: &Path, id: FileId) -> io::Result<Option<Open>> {
    loop {
        let ages = (0..FILES_MAX).map(|age| (age, older_path(path, age)));
        let own = ages
            .map_while(|(age, path)| Some((age, FileId::at(&path)?)))
            .find(|(_, other)| *other == id);
        match own {
            Some((0, _)) => return Ok(None),
            Some((age, _)) => {
                let next = Open::file(&older_path(path, age - 1))?;
                // Files may have moved on between the two looks.
                if next.is_some() && FileId::at(&older_path(path, age)) == Some(id) {
                    return Ok(next);
                }
            }
            // It was removed for its age, so what is the oldest now comes next.
            None => return oldest(path),
        }
    }
}

fn oldest(path: &Path) -> io::Result<Option<Open>> {
    let mut found = None;
    for age in 0..FILES_MAX {
        match Open::file(&older_path(path, age))? {
            Some(open) => found = Some(open),
            None => break,
        }
    }
    Ok(found)
}

/// Where the last `wanted` lines of a file begin; none when it has fewer, which are taken off.
fn tail_begin(file: &mut File, wanted: &mut u64) -> io::Result<Option<u64>> {
    let end = file.metadata()?.len();
    if *wanted == 0 {
        return Ok(Some(end));
    }
    let mut at = end;
    let mut block = Vec::new();
    while at > 0 {
        let from = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(from))?;
        block.clear();
        Read::take(&mut *file, at - from).read_to_end(&mut block)?;
        for (n, byte) in (from..).zip(&block).collect::<Vec<_>>().into_iter().rev() {
            if *byte == b'\n' && n + 1 != end {
                *wanted -= 1;
                if *wanted == 0 {
                    return Ok(Some(n + 1));
                }
            }
        }
        at = from;
    }
    if end > 0 {
        *wanted -= 1;
    }
    Ok((*wanted == 0).then_some(0))
}

#[cfg(test)]
mod tests;
