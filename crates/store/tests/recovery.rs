//! What opening a folder does with damaged and missing databases.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Counters, add, config, fill, open, refused, store_with, tamper, value};
use greenroom_store::{BootOutcome, Loss, OpenError, Store};

// spec: STORE-02, STORE-07
#[tokio::test]
async fn a_deleted_state_is_rebuilt_from_the_log_alone() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    fs::remove_file(dir.path().join("state.db")).expect("remove");
    let (store, _, report) = open(dir.path()).await;
    assert_eq!(
        report.outcome,
        BootOutcome::Restored {
            from: None,
            damaged_kept_as: None,
            loss: Loss::Nothing
        }
    );
    assert_eq!(value(&store, "a"), Some(10));
    assert_eq!(report.identity.generation, 1);
}

/// Proposes until the log let go of its beginning.
async fn purge(store: &Store<Counters>, limit: u64) {
    for _ in 0..limit {
        store.propose(add("filler", 1)).await.expect("propose");
        if store.info().expect("info").purged_index.is_some() {
            return;
        }
    }
    panic!("nothing was purged in {limit} commands");
}

async fn open_with_snapshots(dir: &Path) -> common::Opened {
    let mut config = config(dir);
    config.snapshot_every = 20;
    Store::open(config).await.expect("open")
}

// spec: STORE-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_log_and_its_snapshot_still_hold_everything() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, _, _) = open_with_snapshots(dir.path()).await;
    fill(&store, "a", 30).await;
    purge(&store, 20_000).await;
    fill(&store, "b", 5).await;
    let before = store.read(Counters::clone);
    store.shutdown().await.expect("shutdown");
    drop(store);

    let (store, _, report) = open_with_snapshots(dir.path()).await;
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert!(store.read(|machine| *machine == before));
    store.shutdown().await.expect("shutdown");
    drop(store);

    fs::write(dir.path().join("state.db"), "not a database").expect("write");
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored {
        from: Some(from),
        damaged_kept_as: Some(kept),
        loss,
    } = report.outcome
    else {
        panic!("{report:?}")
    };
    assert_eq!(from, dir.path().join("snapshot.db"));
    assert_eq!(
        fs::read_to_string(kept.join("state.db")).expect("read"),
        "not a database"
    );
    assert_eq!((loss, report.identity.generation), (Loss::Nothing, 1));
    assert!(
        store.read(|machine| *machine == before),
        "the log goes on where the snapshot ends"
    );
}

// spec: STORE-04
#[tokio::test]
async fn a_row_that_does_not_match_its_checksum_is_never_data() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    // A whole database with one wrong value: only the row's own checksum can tell.
    tamper(&dir.path().join("state.db"), "UPDATE rows SET value = '11'");
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored {
        damaged_kept_as: Some(_),
        loss: Loss::Nothing,
        ..
    } = report.outcome
    else {
        panic!("{report:?}")
    };
    assert_eq!(value(&store, "a"), Some(10));
}

// spec: STORE-04
#[tokio::test]
async fn a_log_entry_that_does_not_match_its_checksum_is_never_applied() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    tamper(
        &dir.path().join("log.db"),
        "UPDATE log SET body = CAST(replace(body, '\"by\":1', '\"by\":7') AS BLOB) WHERE idx = 5",
    );
    let state = dir.path().join("state.db");
    let copy = fs::read(&state).expect("read");
    fs::remove_file(&state).expect("remove");
    let error = refused(dir.path()).await;
    let OpenError::Unreadable { cause, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(
        cause.contains("entry 5 does not match its checksum"),
        "{cause}"
    );
    // With the state, nobody needs that entry.
    fs::write(&state, copy).expect("write");
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored {
        from: Some(from), ..
    } = report.outcome
    else {
        panic!("{report:?}")
    };
    assert_eq!((from, value(&store, "a")), (state, Some(10)));
}

// spec: STORE-10
#[tokio::test]
async fn a_damaged_tail_of_the_log_costs_the_tail_only() {
    let dir = tempfile::tempdir().expect("folder");
    let (old, state) = (dir.path().join("old"), dir.path().join("data/state.db"));
    let data = dir.path().join("data");
    store_with(&data, 5).await;
    fs::copy(&state, &old).expect("copy");
    store_with(&data, 5).await;
    fs::copy(&old, &state).expect("copy");
    tamper(
        &data.join("log.db"),
        "UPDATE log SET sum = sum + 1 WHERE idx = (SELECT max(idx) FROM log)",
    );
    let (store, _, report) = open(&data).await;
    let BootOutcome::Restored {
        damaged_kept_as: Some(kept),
        loss: Loss::After { .. },
        ..
    } = report.outcome
    else {
        panic!("{report:?}")
    };
    assert!(kept.join("log.db").exists());
    assert_eq!(
        (value(&store, "a"), report.identity.generation),
        (Some(5), 2)
    );
}

/// Both databases are gone bad; a backup stands at five of ten.
async fn damaged_with_backup(dir: &Path) -> PathBuf {
    let (store, _, _) = open(dir).await;
    fill(&store, "a", 5).await;
    let backup = store.backup_now().await.expect("backup");
    fill(&store, "a", 5).await;
    store.shutdown().await.expect("shutdown");
    for name in ["log.db", "state.db"] {
        fs::write(dir.join(name), format!("bad {name}")).expect("write");
    }
    backup.path
}

// spec: STORE-10, STORE-07, CLUST-07
#[tokio::test]
async fn without_log_and_state_the_newest_good_backup_begins_a_new_generation() {
    let dir = tempfile::tempdir().expect("folder");
    let backup = damaged_with_backup(dir.path()).await;
    // A newer backup that is bad must not be chosen.
    let newer = dir.path().join("backups/state-9999999999999999.db");
    fs::write(&newer, "bad").expect("write");
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored {
        from,
        damaged_kept_as: Some(kept),
        loss,
    } = &report.outcome
    else {
        panic!("{report:?}")
    };
    assert_eq!(from.as_ref(), Some(&backup));
    for name in ["log.db", "state.db"] {
        let bad = fs::read_to_string(kept.join(name)).unwrap_or_default();
        assert_eq!(bad, format!("bad {name}"), "{} in {}", name, kept.display());
    }
    let Loss::After { revision, wall_ms } = *loss else {
        panic!("{report:?}")
    };
    assert_eq!(report.identity.generation, 2);
    assert_eq!(value(&store, "a"), Some(5));
    assert!(wall_ms.is_some());
    let (next, count) = store.propose(add("a", 1)).await.expect("propose");
    assert!(next > revision, "{next} after {revision}");
    assert_eq!(count, Some(6));
    store.shutdown().await.expect("shutdown");
    drop(store);
    let (store, _, report) = open(dir.path()).await;
    assert_eq!(
        (report.outcome, report.identity.generation),
        (BootOutcome::Opened, 2)
    );
    assert_eq!(value(&store, "a"), Some(6));
}

#[tokio::test]
async fn a_damaged_log_alone_costs_nothing_that_the_state_holds() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 10).await;
    fs::write(dir.path().join("log.db"), "bad").expect("write");
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored {
        from: Some(from),
        loss: Loss::After { .. },
        ..
    } = &report.outcome
    else {
        panic!("{report:?}")
    };
    assert_eq!(*from, dir.path().join("state.db"));
    assert_eq!(value(&store, "a"), Some(10));
    assert_eq!(report.identity.generation, 2);
    assert_eq!(
        store.propose(add("a", 1)).await.expect("propose").1,
        Some(11)
    );
}

// spec: STORE-10
#[tokio::test]
async fn without_a_usable_copy_the_store_is_refused_and_nothing_is_moved() {
    let dir = tempfile::tempdir().expect("folder");
    let backup = damaged_with_backup(dir.path()).await;
    fs::write(&backup, "bad too").expect("write");
    let list = || {
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        names.sort();
        names
    };
    let before = list();
    let error = refused(dir.path()).await;
    let OpenError::Unreadable { file, cause } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*file, dir.path().join("state.db"));
    assert!(cause.contains("not a database"), "{cause}");
    assert!(cause.contains(&backup.display().to_string()), "{cause}");
    assert_eq!(list(), before);
    assert_eq!(
        fs::read_to_string(dir.path().join("log.db")).expect("read"),
        "bad log.db"
    );
}

// spec: CLUST-07
#[tokio::test]
async fn a_copy_from_a_given_up_history_is_not_joined_to_the_log() {
    let dir = tempfile::tempdir().expect("folder");
    let aside = tempfile::tempdir().expect("folder");
    let stray = aside.path().join("stray.db");
    let (store, _, _) = open(dir.path()).await;
    fill(&store, "old", 5).await;
    let kept = store.backup_now().await.expect("backup");
    fill(&store, "old", 5).await;
    store.shutdown().await.expect("shutdown");
    drop(store);
    // Two more starts, so that the same term stands at the same index in both histories.
    let (store, _, _) = open(dir.path()).await;
    store.shutdown().await.expect("shutdown");
    drop(store);
    let (store, _, _) = open(dir.path()).await;
    let given_up_term = store.info().expect("info").term;
    fill(&store, "old", 2).await;
    store.backup(&stray).await.expect("backup");
    store.shutdown().await.expect("shutdown");
    drop(store);
    for name in ["log.db", "state.db"] {
        fs::write(dir.path().join(name), "bad").expect("write");
    }

    let (store, _, report) = open(dir.path()).await;
    assert_eq!(report.identity.generation, 2);
    fill(&store, "new", 40).await;
    assert_eq!(store.info().expect("info").term, given_up_term);
    store.shutdown().await.expect("shutdown");
    drop(store);
    // The log of generation 2 covers the stray copy's index, in another history.
    let stray_in_place = dir.path().join("backups/state-9999999999999999.db");
    fs::rename(&stray, &stray_in_place).expect("rename");
    for name in ["state.db", "snapshot.db"] {
        fs::remove_file(dir.path().join(name)).expect("remove");
    }
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored { from, loss, .. } = report.outcome else {
        panic!("{report:?}")
    };
    assert_eq!((from, loss), (Some(kept.path), Loss::Nothing));
    assert_eq!(
        (value(&store, "old"), value(&store, "new")),
        (Some(5), Some(40))
    );
}

// spec: CLUST-07
#[tokio::test]
async fn of_two_copies_the_greater_generation_is_restored_even_when_it_is_shorter() {
    let dir = tempfile::tempdir().expect("folder");
    let aside = tempfile::tempdir().expect("folder");
    let stray = aside.path().join("stray.db");
    let (store, _, _) = open(dir.path()).await;
    fill(&store, "old", 2).await;
    store.backup_now().await.expect("backup");
    fill(&store, "old", 100).await;
    store.backup(&stray).await.expect("backup");
    store.shutdown().await.expect("shutdown");
    drop(store);
    let damage = || {
        for name in ["log.db", "state.db"] {
            fs::write(dir.path().join(name), "bad").expect("write");
        }
    };
    damage();
    let (store, _, _) = open(dir.path()).await;
    fill(&store, "new", 3).await;
    let newest = store
        .backup(dir.path().join("backups/state-0000000000000999.db"))
        .await;
    store.shutdown().await.expect("shutdown");
    drop(store);
    fs::rename(&stray, dir.path().join("backups/state-9999999999999999.db")).expect("rename");
    damage();
    let (store, _, report) = open(dir.path()).await;
    let BootOutcome::Restored { from, .. } = report.outcome else {
        panic!("{report:?}")
    };
    assert_eq!(from, Some(newest.expect("backup").path));
    assert_eq!(
        (value(&store, "old"), value(&store, "new")),
        (Some(2), Some(3))
    );
    assert_eq!(report.identity.generation, 3);
}
