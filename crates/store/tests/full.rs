//! A disk without room: a small file system of its own in memory, filled by others.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Counters, add, config, fill, value};
use greenroom_store::{BootOutcome, OpenError, ProposeError, Store, StoreConfig};

const MIB: u64 = 1024 * 1024;

/// A file system of 64 MiB.
struct Disk {
    at: tempfile::TempDir,
}

impl Disk {
    /// None, with the reason told, where this process may not mount one.
    fn mount() -> Option<Self> {
        let at = tempfile::tempdir().expect("folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(at.path())
            .output();
        match mounted {
            Ok(done) if done.status.success() => Some(Self { at }),
            other => {
                // To the process's own stderr: what a passing test prints is not shown.
                let why =
                    "a full disk needs a file system of its own, and none can be mounted here";
                writeln!(std::io::stderr(), "SKIPPED: {why}: {other:?}").ok();
                None
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.at.path().join("data")
    }

    fn config(&self, reserve_bytes: u64) -> StoreConfig {
        let mut config = config(&self.data());
        config.min_free_bytes = 2 * MIB;
        config.reserve_bytes = reserve_bytes;
        config
    }

    /// What others write, to the last byte.
    fn fill(&self) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.at.path().join("other"))
            .expect("file");
        for size in [64 * 1024, 4096, 1] {
            let zeros = vec![0; size];
            while file.write_all(&zeros).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.at.path().join("other")).expect("remove");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the threads of a store that a test dropped may still be closing their files.
        Command::new("umount")
            .arg("-l")
            .arg(self.at.path())
            .status()
            .ok();
    }
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |file| file.len())
}

async fn refused(config: StoreConfig) -> OpenError {
    match Store::<Counters>::open(config).await {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}

// spec: STORE-09, HARDM-48
#[tokio::test]
async fn a_disk_that_others_filled_to_the_last_byte_takes_commits_from_the_reserve() {
    let Some(disk) = Disk::mount() else { return };
    let reserve = disk.data().join("reserve");
    let (store, _outputs, _) = Store::<Counters>::open(disk.config(16 * MIB))
        .await
        .expect("open");
    assert_eq!(length(&reserve), 16 * MIB);
    fill(&store, "a", 3).await;
    disk.fill();
    // More than what is left in pages that the databases have already.
    let long = "n".repeat(20_000);
    for _ in 0..100 {
        store.propose(add(&long, 1)).await.expect("recorded");
    }
    let left = length(&reserve);
    assert!(left < 16 * MIB, "{left}");
    // Workers on the same disk are lent some; half stays.
    disk.fill();
    while store.lend_room() {
        disk.fill();
    }
    let left = length(&reserve);
    assert!((4 * MIB..=8 * MIB).contains(&left), "{left}");
    store.propose(add(&long, 1)).await.expect("recorded");
    store.shutdown().await.expect("shutdown");
    drop(store);

    // A start on it is served from the reserve too.
    let (store, _outputs, report) = Store::<Counters>::open(disk.config(16 * MIB))
        .await
        .expect("open");
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert_eq!(
        (value(&store, "a"), value(&store, &long)),
        (Some(3), Some(101))
    );
    store.shutdown().await.expect("shutdown");
    drop(store);
    disk.empty();
    let (_store, _outputs, _) = Store::<Counters>::open(disk.config(16 * MIB))
        .await
        .expect("open");
    assert_eq!(length(&reserve), 16 * MIB, "made again");
}

// spec: STORE-09, STORE-12
#[tokio::test]
async fn without_a_reserve_a_full_disk_ends_the_store_and_says_that_it_is_full() {
    let Some(disk) = Disk::mount() else { return };
    let (store, _outputs, _) = Store::<Counters>::open(disk.config(0)).await.expect("open");
    fill(&store, "a", 3).await;
    disk.fill();
    let long = "n".repeat(20_000);
    let mut taken = 0;
    let cause = loop {
        match store.propose(add(&long, 1)).await {
            Ok(_) => taken += 1,
            Err(ProposeError::Fatal(cause)) => break cause,
            Err(other) => panic!("{other}"),
        }
        assert!(taken < 1_000, "there is no end of room");
    };
    assert!(cause.disk_full, "{cause}");
    assert_eq!(store.fatal().await, cause);
    store.shutdown().await.ok();
    drop(store);

    // Full is not damaged: nothing is moved, nothing restored, whichever file is looked at.
    let names = || {
        let mut names: Vec<_> = fs::read_dir(disk.data())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        names.sort();
        names
    };
    let before = names();
    let error = refused(disk.config(0)).await;
    let OpenError::DiskFull { dir, free, needed } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(dir, &disk.data());
    assert!(free < needed, "{free} {needed}");
    let told = error.to_string();
    assert!(told.contains("is full"), "{told}");
    assert!(
        !told.contains("damaged") && !told.contains("delete"),
        "{told}"
    );
    assert_eq!(names(), before);

    disk.empty();
    let (store, _outputs, report) = Store::<Counters>::open(disk.config(0)).await.expect("open");
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert_eq!(value(&store, "a"), Some(3));
    let kept = value(&store, &long).unwrap_or(0);
    assert!(kept >= taken, "{kept} of {taken} acknowledged are kept");
}

// spec: STORE-09
#[tokio::test]
async fn a_new_store_is_not_begun_on_a_full_disk() {
    let Some(disk) = Disk::mount() else { return };
    fs::create_dir(disk.data()).expect("folder");
    disk.fill();
    let error = refused(disk.config(0)).await;
    assert!(matches!(error, OpenError::DiskFull { .. }), "{error:?}");
    disk.empty();
    let (_store, _outputs, report) = Store::<Counters>::open(disk.config(0)).await.expect("open");
    assert_eq!(report.outcome, BootOutcome::Created);
}
