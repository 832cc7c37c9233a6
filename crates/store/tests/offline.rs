//! What people do to a data folder.

mod common;

use std::fs;

use common::{Counters, add, config, open, store_with, value};
use greenroom_store::{BackupError, BootOutcome, Loss, OpenError, Store, offline};

// spec: STORE-05
#[tokio::test]
async fn a_folder_is_looked_at_and_copied_beside_the_process_that_uses_it() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    let (store, _outputs, _) = open(dir.path()).await;
    let held = offline::examine(dir.path()).expect("a store");
    assert_eq!(held.identity, *store.identity());
    assert!(held.revision >= 10, "{held:?}");
    let names: Vec<&str> = held.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["log.db", "state.db"]);
    assert_eq!(held.backups, []);

    let elsewhere = tempfile::tempdir().expect("folder");
    let target = elsewhere.path().join("mine.db");
    let made = offline::back_up(dir.path(), Some(&target), 1, 28).expect("a copy");
    offline::back_up(dir.path(), Some(&target), 1, 28).expect("over a backup");
    assert_eq!(offline::verify(&target).expect("whole"), made);
    let regular = offline::back_up(dir.path(), None, 5, 28).expect("a copy");
    let held = offline::examine(dir.path()).expect("a store");
    assert_eq!(held.backups, [regular]);

    // What the store needs is not written over, nor is what is no backup.
    let stranger = elsewhere.path().join("notes");
    fs::write(&stranger, "mine").expect("write");
    let names = ["log.db", "state.db", "lock", "generation", "new.db"];
    let targets = names.iter().map(|name| dir.path().join(name));
    for target in targets.chain([stranger.clone()]) {
        let before = fs::read(&target).ok();
        let refused = offline::back_up(dir.path(), Some(&target), 1, 28);
        assert!(
            matches!(refused, Err(BackupError::Target { .. })),
            "{refused:?}"
        );
        assert_eq!(fs::read(&target).ok(), before, "{}", target.display());
    }
    store.propose(add("a", 1)).await.expect("it goes on");
}

#[test]
fn a_folder_without_a_store_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("folder");
    let missing = dir.path().join("none");
    let error = offline::examine(&missing).expect_err("nothing is there");
    assert!(
        error.to_string().contains("there is no store in"),
        "{error}"
    );
    assert!(!missing.exists());
    offline::back_up(&missing, None, 1, 28).expect_err("nothing is there");
    offline::verify(&missing).expect_err("nothing is there");
}

// spec: STORE-10, CLUST-07
#[tokio::test]
async fn a_copy_that_is_put_back_is_the_truth_in_a_new_generation() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    let elsewhere = tempfile::tempdir().expect("folder");
    let copy = elsewhere.path().join("mine.db");
    offline::back_up(dir.path(), Some(&copy), 1, 28).expect("a copy");
    let (store, outputs, before) = open(dir.path()).await;
    store.propose(add("later", 1)).await.expect("propose");

    let in_use = offline::put_back::<Counters>(&config(dir.path()), &copy);
    assert!(
        matches!(in_use, Err(OpenError::Locked { .. })),
        "{in_use:?}"
    );
    store.shutdown().await.expect("shutdown");
    drop((store, outputs));
    // A newer regular backup does not win over the one that was named.
    offline::back_up(dir.path(), None, 9, 28).expect("a copy");

    let put = offline::put_back::<Counters>(&config(dir.path()), &copy).expect("put back");
    assert_eq!(put.identity.generation, before.identity.generation + 1);
    assert_eq!(put.identity.cluster, before.identity.cluster);
    assert!(matches!(put.loss, Loss::After { revision, .. } if revision >= 10));
    let kept = put.kept_as.expect("what was there is kept");
    for name in ["log.db", "state.db"] {
        assert!(kept.join(name).exists(), "{name}");
    }

    let (store, _outputs, report) = open(dir.path()).await;
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert_eq!(report.identity, put.identity);
    assert_eq!(
        (value(&store, "a"), value(&store, "later")),
        (Some(10), None)
    );
    store.propose(add("a", 1)).await.expect("it goes on");
}

// spec: STORE-10
#[tokio::test]
async fn a_copy_goes_into_an_empty_folder_and_a_bad_or_foreign_one_changes_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    let elsewhere = tempfile::tempdir().expect("folder");
    let copy = elsewhere.path().join("mine.db");
    offline::back_up(dir.path(), Some(&copy), 1, 28).expect("a copy");

    let empty = tempfile::tempdir().expect("folder");
    let put = offline::put_back::<Counters>(&config(empty.path()), &copy).expect("put back");
    assert_eq!(put.kept_as, None);
    let (store, _outputs, _) = open(empty.path()).await;
    assert_eq!(value(&store, "a"), Some(10));

    // A folder of somebody else's stays so (STORE-08).
    let theirs = tempfile::tempdir().expect("folder");
    fs::write(theirs.path().join("thesis"), "mine").expect("write");
    let refused = offline::put_back::<Counters>(&config(theirs.path()), &copy);
    assert!(
        matches!(refused, Err(OpenError::StoreMissing { .. })),
        "{refused:?}"
    );
    assert!(!theirs.path().join("state.db").exists());

    let other = tempfile::tempdir().expect("folder");
    store_with(other.path(), 3).await;
    let foreign = offline::put_back::<Counters>(&config(other.path()), &copy);
    let text = foreign.expect_err("it is another store's").to_string();
    assert!(text.contains("is a copy of the store"), "{text}");

    let mut bytes = fs::read(&copy).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x55);
    fs::write(&copy, bytes).expect("write");
    offline::put_back::<Counters>(&config(other.path()), &copy).expect_err("it is damaged");
    let noise = elsewhere.path().join("noise");
    fs::write(&noise, "no database").expect("write");
    offline::put_back::<Counters>(&config(other.path()), &noise).expect_err("it is none");

    let (store, _outputs, report) = open(other.path()).await;
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert_eq!(
        (report.identity.generation, value(&store, "a")),
        (1, Some(3))
    );
    let _: &Store<Counters> = &store;
}
