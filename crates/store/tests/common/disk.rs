//! A program behind `disk/shim.c`, which notes what it does to its files, and what a power loss may leave.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command as Process, Stdio};

use greenroom_types::SplitMix64;

use super::Counters;

const SECTOR: usize = 512;

/// Starts a test of this binary as a child with these variables.
pub(crate) fn start(test: &str, variables: &[(&str, &OsStr)]) -> Child {
    Process::new(std::env::current_exe().expect("own path"))
        .args([test, "--exact", "--nocapture"])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("child")
}

/// What a child prints.
pub(crate) fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().expect("stdout")).lines()
}

/// A child says a line at once.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .expect("print");
    out.flush().expect("print");
}

/// The name and value of a pair that a child says was acknowledged.
pub(crate) fn acknowledged(line: &str) -> Option<(String, i64)> {
    let (name, value) = line.split_once("acknowledged ")?.1.split_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

/// Nothing that was promised is gone, and nothing is there in part.
pub(crate) fn compare(state: &Counters, promised: &BTreeMap<String, i64>) -> Result<(), String> {
    for (name, value) in promised {
        let [left, right] = ["left", "right"].map(|side| state.get(&format!("{name}.{side}")));
        if left < Some(*value) {
            return Err(format!("{name} {value} is gone: {left:?}"));
        }
        if left != right {
            return Err(format!("{name} is there in part: {left:?} and {right:?}"));
        }
    }
    Ok(())
}

/// What was acknowledged within the first changes.
pub(crate) fn promised(changes: &[Change]) -> BTreeMap<String, i64> {
    let said = changes.iter().filter_map(|change| match change {
        Change::Said(text) => Some(text),
        _ => None,
    });
    said.flat_map(|text| text.lines().filter_map(acknowledged))
        .collect()
}

/// Lays an image of the files below `data` out in a folder.
pub(crate) fn lay_out(image: &BTreeMap<String, Vec<u8>>, data: &Path, disk: &Path) {
    for (path, content) in image {
        let inner = Path::new(path)
            .strip_prefix(data)
            .expect("below the folder");
        if inner.as_os_str().is_empty() || Path::new(path).is_dir() {
            continue;
        }
        let target = disk.join(inner);
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("folder");
        std::fs::write(&target, content).expect("file");
    }
}

/// A seed of one's own, or that of the variable `GREENROOM_SEED`.
pub(crate) fn seed() -> u64 {
    match std::env::var("GREENROOM_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).expect("random");
            u64::from_le_bytes(bytes)
        }
    }
}

/// The shim, built; none, with the reason told, where there is no compiler.
pub(crate) fn shim(folder: &Path) -> Option<PathBuf> {
    let built = folder.join("shim.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/disk/shim.c");
    let done = Process::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&built)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .output();
    match done {
        Ok(done) if done.status.success() => Some(built),
        other => {
            // To the process's own stderr: what a passing test prints is not shown.
            writeln!(std::io::stderr(), "SKIPPED: no C compiler here: {other:?}").ok();
            None
        }
    }
}

/// One change, as the shim noted it.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Open {
        inode: u64,
        path: String,
    },
    Write {
        inode: u64,
        at: usize,
        bytes: Vec<u8>,
    },
    Length {
        inode: u64,
        length: usize,
    },
    Flush {
        inode: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    Said(String),
}

pub(crate) fn read_notes(path: &Path) -> Vec<Change> {
    let all = std::fs::read(path).expect("notes");
    let mut rest = &all[..];
    let mut found = Vec::new();
    while rest.len() >= 25 {
        let (head, after) = rest.split_at(25);
        let number = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("8"));
        let length =
            |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("4")) as usize;
        let (inode, at, ones, twos) = (number(1), number(9) as usize, length(17), length(21));
        if after.len() < ones + twos {
            break; // The child was killed within it.
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (one, two) = (&after[..ones], &after[ones..ones + twos]);
        found.push(match head[0] {
            b'O' => Change::Open {
                inode,
                path: text(one),
            },
            b'W' => Change::Write {
                inode,
                at,
                bytes: two.to_vec(),
            },
            b'T' => Change::Length { inode, length: at },
            b'S' => Change::Flush { inode },
            b'R' => Change::Rename {
                from: text(one),
                to: text(two),
            },
            b'U' => Change::Remove { path: text(one) },
            b'A' => Change::Said(text(two)),
            other => panic!("a note of kind {other}"),
        });
        rest = &after[ones + twos..];
    }
    found
}

/// Numbers that a seed gives.
pub(crate) struct Dice(SplitMix64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        (self.0.draw() % sides.max(1) as u64) as usize
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What the disk may hold after a power loss behind the first `count` changes.
pub(crate) fn image(
    changes: &[Change],
    count: usize,
    dice: &mut Dice,
) -> BTreeMap<String, Vec<u8>> {
    let done = &changes[..count];
    let is_name = |change: &Change| {
        matches!(
            change,
            Change::Open { .. }
                | Change::Length { .. }
                | Change::Rename { .. }
                | Change::Remove { .. }
        )
    };
    let last_flush = done
        .iter()
        .rposition(|it| matches!(it, Change::Flush { .. }))
        .unwrap_or(0);
    let named_upto = last_flush + dice.roll(count - last_flush + 1);
    let mut flushed: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, change) in done.iter().enumerate() {
        if let Change::Flush { inode } = change {
            flushed.insert(*inode, number);
        }
    }
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    let mut contents: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (number, change) in done.iter().enumerate() {
        if is_name(change) && number > named_upto {
            continue;
        }
        match change {
            Change::Open { inode, path } => {
                // A new file under a name or number that was there before begins empty.
                if names.get(path) != Some(inode) {
                    let known = names.values().any(|it| it == inode);
                    names.insert(path.clone(), *inode);
                    if !known {
                        contents.insert(*inode, Vec::new());
                    }
                }
            }
            Change::Length { inode, length } => {
                contents.entry(*inode).or_default().resize(*length, 0);
            }
            Change::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Change::Remove { path } => {
                names.remove(path);
            }
            Change::Write { inode, at, bytes } => {
                let content = contents.entry(*inode).or_default();
                if flushed.get(inode).is_some_and(|flush| *flush > number) {
                    put(content, *at, bytes);
                    continue;
                }
                match dice.roll(3) {
                    0 => {}
                    1 => put(content, *at, bytes),
                    _ => {
                        for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                            if dice.roll(2) == 0 {
                                put(content, *at + sector * SECTOR, part);
                            }
                        }
                    }
                }
            }
            Change::Flush { .. } | Change::Said(_) => {}
        }
    }
    names
        .into_iter()
        // Made anew from the rest at every open.
        .filter(|(path, _)| !path.ends_with("-shm"))
        .map(|(path, inode)| (path, contents.remove(&inode).unwrap_or_default()))
        .collect()
}
