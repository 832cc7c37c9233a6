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
use std::ffi::OsStr;
use std::path::Path;
use std::process::Child;

use common::disk::{self, Change, Dice, acknowledged, say};
use common::{Command, Counters, config};
use greenroom_store::{BootOutcome, Loss, ProposeError, Store};

const FOLDER: &str = "GREENROOM_STORE_POWER_FOLDER";
const WRITERS: usize = 4;
const LOSSES: usize = 60;

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
    say("opened ");
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
                        Ok(_) => say(&format!("acknowledged {name} {value}")),
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
        say(&format!("fatal {cause}"));
    }
}

fn start(shim: &Path, folder: &Path, variables: &[(&str, &Path)]) -> Child {
    let own = [
        ("LD_PRELOAD", shim),
        (FOLDER, folder),
        ("DISK_ROOT", folder),
    ];
    let all: Vec<(&str, &OsStr)> = own
        .iter()
        .chain(variables)
        .map(|(name, value)| (*name, value.as_os_str()))
        .collect();
    disk::start("child_writes_until_it_is_ended", &all)
}

/// Lets a child write until so much is acknowledged, and answers what it did to its disk.
fn record(shim: &Path, folder: &Path, variables: &[(&str, &Path)]) -> Vec<Change> {
    let (data, notes) = (folder.join("data"), folder.join("notes"));
    let all: Vec<_> = variables
        .iter()
        .copied()
        .chain([("DISK_LOG", &*notes)])
        .collect();
    let mut child = start(shim, &data, &all);
    let mut lines = disk::lines(&mut child);
    let mut seen = 0;
    while seen < 400 {
        let line = lines.next().expect("the child goes on").expect("read");
        seen += usize::from(acknowledged(&line).is_some());
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    disk::read_notes(&notes)
}

fn flushes(changes: &[Change]) -> usize {
    let is_flush = |it: &&Change| matches!(it, Change::Flush { .. });
    changes.iter().filter(is_flush).count()
}

/// Opens the store on what the disk may hold after power losses at random moments. Answers at how many
/// different places it stood, or the first thing that is not as it was promised.
async fn lose_power(changes: &[Change], data: &Path, seed: u64) -> Result<usize, String> {
    let is_open = |it: &Change| matches!(it, Change::Said(text) if text.contains("opened "));
    let opened = changes.iter().position(is_open);
    let opened = opened.expect("the child opened its store");
    let mut dice = Dice::new(seed);
    let mut stood = BTreeSet::new();
    for loss in 0..LOSSES {
        let count = opened + 1 + dice.roll(changes.len() - opened - 1);
        let told =
            |cause: String| format!("seed {seed}, loss {loss} after {count} changes: {cause}");
        let folder = tempfile::tempdir().expect("folder");
        let image = disk::image(changes, count, &mut dice);
        disk::lay_out(&image, data, folder.path());
        let opened = Store::<Counters>::open(config(folder.path())).await;
        let (store, _, report) = opened.map_err(|error| told(error.to_string()))?;
        match report.outcome {
            BootOutcome::Opened => {}
            // The state may be torn where the log has all of it.
            BootOutcome::Restored {
                loss: Loss::Nothing,
                ..
            } => {}
            other => return Err(told(format!("{other:?}"))),
        }
        let state = store.read(Counters::clone);
        disk::compare(&state, &disk::promised(&changes[..count])).map_err(told)?;
        stood.insert(state.values.values().sum::<i64>());
        store.shutdown().await.expect("shutdown");
    }
    Ok(stood.len())
}

// spec: STORE-02, API-05
#[tokio::test]
async fn a_power_loss_takes_nothing_that_was_acknowledged_and_leaves_nothing_in_part() {
    let folder = tempfile::tempdir().expect("folder");
    let Some(shim) = disk::shim(folder.path()) else {
        return;
    };
    let changes = record(&shim, folder.path(), &[]);
    let flushes = flushes(&changes);
    assert!(flushes > 20, "the shim sees flushes: {flushes}");
    let stood = lose_power(&changes, &folder.path().join("data"), disk::seed()).await;
    let stood = stood.unwrap_or_else(|lost| panic!("{lost}"));
    assert!(stood > 3, "losses at different moments: {stood}");
}

/// The test above would find a flush that is missing: here the disk says of some files that they are
/// flushed and does nothing.
#[tokio::test]
async fn a_flush_that_is_missing_is_found() {
    for lied_about in ["log.db-wal", "db"] {
        let folder = tempfile::tempdir().expect("folder");
        let Some(shim) = disk::shim(folder.path()) else {
            return;
        };
        let changes = record(
            &shim,
            folder.path(),
            &[("DISK_LIES", Path::new(lied_about))],
        );
        let found = lose_power(&changes, &folder.path().join("data"), disk::seed()).await;
        assert!(
            found.is_err(),
            "no flush of {lied_about} reached the disk, and nobody noticed ({} others did)",
            flushes(&changes)
        );
    }
}

// spec: STORE-12, API-05
#[tokio::test]
async fn a_disk_that_answers_eio_ends_the_store_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().expect("folder");
    let Some(shim) = disk::shim(folder.path()) else {
        return;
    };
    let (data, fail) = (folder.path().join("data"), folder.path().join("fail"));
    let mut child = start(&shim, &data, &[("DISK_FAIL", &fail)]);
    let lines = disk::lines(&mut child);
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
    disk::compare(&state, &promised).unwrap_or_else(|lost| panic!("{lost}"));
    store.shutdown().await.expect("shutdown");
}
