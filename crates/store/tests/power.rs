//! A disk that lies or breaks: power losses at random moments, and EIO.
//!
//! A child writes to a store with `disk/shim.c` between it and its files, which notes every change in
//! order. From the notes this test makes what a disk may hold after a power loss at any moment: what
//! was flushed, and of what was not, any part: writes that are whole, missing, or torn at 512 bytes,
//! in any order. Changes of names and lengths are kept up to some point in their order that is not
//! before the last flush, as a journaling file system does. A store opened on that must hold all that
//! was acknowledged before that moment, and nothing in part.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use common::{Command, Counters, config};
use greenroom_store::{BootOutcome, Loss, ProposeError, Store};

const FOLDER: &str = "GREENROOM_STORE_POWER_FOLDER";
const WRITERS: usize = 4;
const LOSSES: usize = 60;
const SECTOR: usize = 512;

/// The child's part; without its variable it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes_until_it_is_ended() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let mut config = config(Path::new(&folder));
    // Snapshots and purges are under way at any moment; the reserve would only be a long write.
    config.snapshot_every = 50;
    config.min_free_bytes = 0;
    config.reserve_bytes = 0;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    tokio::spawn(async move { while outputs.recv().await.is_some() {} });
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).expect("print");
        out.flush().expect("print");
    };
    say("opened \n".to_owned());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for value in 1.. {
                    let name = format!("w{writer}");
                    let pair = Command::Pair {
                        name: name.clone(),
                        value,
                    };
                    match store.propose(pair).await {
                        Ok(_) => say(format!("acknowledged {name} {value}\n")),
                        Err(error) => return error,
                    }
                }
                unreachable!("it goes on until it fails")
            })
        })
        .collect();
    for writer in writers {
        let error = writer.await.expect("writer");
        let ProposeError::Fatal(cause) = error else {
            panic!("{error:?}");
        };
        say(format!("fatal {cause}\n"));
    }
}

/// The shim, built; none, with the reason told, where there is no compiler.
fn shim(folder: &Path) -> Option<PathBuf> {
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

fn start(shim: &Path, folder: &Path, variables: &[(&str, &Path)]) -> Child {
    Process::new(std::env::current_exe().expect("own path"))
        .args(["child_writes_until_it_is_ended", "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .env("LD_PRELOAD", shim)
        .env("DISK_ROOT", folder)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("child")
}

fn acknowledged(line: &str) -> Option<(String, i64)> {
    let (name, value) = line.split_once("acknowledged ")?.1.split_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

/// One change, as the shim noted it.
#[derive(Clone, Debug)]
enum Change {
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

fn read_notes(path: &Path) -> Vec<Change> {
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
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides.max(1) as u64) as usize
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What the disk may hold after a power loss behind the first `count` changes.
fn image(changes: &[Change], count: usize, dice: &mut Dice) -> BTreeMap<String, Vec<u8>> {
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

// spec: STORE-02, API-05
#[tokio::test]
async fn a_power_loss_takes_nothing_that_was_acknowledged_and_leaves_nothing_in_part() {
    let folder = tempfile::tempdir().expect("folder");
    let Some(shim) = shim(folder.path()) else {
        return;
    };
    let (data, notes) = (folder.path().join("data"), folder.path().join("notes"));
    let mut child = start(&shim, &data, &[("DISK_LOG", &notes)]);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut seen = 0;
    while seen < 400 {
        let line = lines.next().expect("the child goes on").expect("read");
        seen += usize::from(acknowledged(&line).is_some());
    }
    child.kill().expect("kill");
    child.wait().expect("wait");

    let changes = read_notes(&notes);
    let opened = changes
        .iter()
        .position(|it| matches!(it, Change::Said(text) if text.contains("opened ")))
        .expect("the child opened its store");
    let flushes = changes
        .iter()
        .filter(|it| matches!(it, Change::Flush { .. }))
        .count();
    assert!(flushes > 20, "the shim sees flushes: {flushes}");
    let seed: u64 = match std::env::var("GREENROOM_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).expect("random");
            u64::from_le_bytes(bytes)
        }
    };
    let mut dice = Dice(seed);
    let mut lost = BTreeSet::new();
    for loss in 0..LOSSES {
        let count = opened + 1 + dice.roll(changes.len() - opened - 1);
        let told = format!("seed {seed}, loss {loss} after {count} changes");
        let image = image(&changes, count, &mut dice);
        let mut promised: BTreeMap<String, i64> = BTreeMap::new();
        for change in &changes[..count] {
            if let Change::Said(text) = change {
                promised.extend(text.lines().filter_map(acknowledged));
            }
        }
        let disk = tempfile::tempdir().expect("folder");
        for (path, content) in &image {
            let inner = Path::new(path)
                .strip_prefix(&data)
                .expect("below the folder");
            let target = disk.path().join(inner);
            if inner.as_os_str().is_empty() || Path::new(path).is_dir() {
                continue;
            }
            std::fs::create_dir_all(target.parent().expect("a folder")).expect("folder");
            std::fs::write(&target, content).expect("file");
        }
        let opened = Store::<Counters>::open(config(disk.path())).await;
        let (store, _, report) = opened.unwrap_or_else(|error| panic!("{told}: {error}"));
        match report.outcome {
            BootOutcome::Opened => {}
            // The state may be torn where the log has all of it.
            BootOutcome::Restored {
                loss: Loss::Nothing,
                ..
            } => {}
            other => panic!("{told}: {other:?}"),
        }
        let state = store.read(Counters::clone);
        for (name, value) in &promised {
            let [left, right] = ["left", "right"].map(|side| state.get(&format!("{name}.{side}")));
            assert!(
                left >= Some(*value),
                "{told}: {name} {value} is gone: {left:?}"
            );
            assert_eq!(left, right, "{told}: {name} is there in part");
        }
        lost.insert(state.values.values().sum::<i64>());
        store.shutdown().await.expect("shutdown");
    }
    assert!(lost.len() > 3, "losses at different moments: {lost:?}");
}

// spec: STORE-12, API-05
#[tokio::test]
async fn a_disk_that_answers_eio_ends_the_store_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().expect("folder");
    let Some(shim) = shim(folder.path()) else {
        return;
    };
    let (data, fail) = (folder.path().join("data"), folder.path().join("fail"));
    let mut child = start(&shim, &data, &[("DISK_FAIL", &fail)]);
    let lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut promised: BTreeMap<String, i64> = BTreeMap::new();
    let mut seen = 0;
    let mut causes = Vec::new();
    for line in lines.map_while(Result::ok) {
        if let Some((name, value)) = acknowledged(&line) {
            promised.insert(name, value);
            seen += 1;
            if seen == 100 {
                std::fs::write(&fail, "").expect("the disk breaks");
            }
        } else if let Some((_, cause)) = line.split_once("fatal ") {
            causes.push(cause.to_owned());
        }
    }
    child.wait().expect("wait");
    assert_eq!(causes.len(), WRITERS, "everybody was told: {causes:?}");
    assert!(
        causes.iter().all(|it| it == &causes[0]),
        "one cause: {causes:?}"
    );
    std::fs::remove_file(&fail).expect("the disk works again");

    let (store, _, _) = common::open(&data).await;
    let state = store.read(Counters::clone);
    for (name, value) in &promised {
        let [left, right] = ["left", "right"].map(|side| state.get(&format!("{name}.{side}")));
        assert!(left >= Some(*value), "{name} {value} is gone: {left:?}");
        assert_eq!(left, right, "{name} is there in part");
    }
    store.shutdown().await.expect("shutdown");
}
