//! Opening folders that are new, in use, foreign, of a later version, or behind; backups.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Counters, add, config, open, refused, store_with, tamper, value};
use greenroom_store::{BootOutcome, OpenError, Room, Store};
use rusqlite::Connection;

// spec: STORE-07, STORE-08
#[tokio::test]
async fn an_empty_folder_gets_a_store_and_a_second_start_does_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, _, report) = open(dir.path()).await;
    assert_eq!(report.outcome, BootOutcome::Created);
    assert_eq!((report.identity.generation, report.identity.member), (1, 1));
    store.shutdown().await.expect("shutdown");
    drop(store);
    let (store, _, again) = open(dir.path()).await;
    assert_eq!(again.outcome, BootOutcome::Opened);
    assert_eq!(again.identity, report.identity);
    let info = store.info().expect("info");
    let names: Vec<_> = info
        .files
        .iter()
        .map(|file| (file.name.as_str(), file.schema))
        .collect();
    assert_eq!(names, [("log.db", 1), ("state.db", 1)]);
    assert_eq!(info.last_backup, None);
}

// spec: STORE-01
#[tokio::test]
async fn folder_and_files_are_closed_to_others_and_to_a_second_process() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    let (store, _, _) = open(&data).await;
    store.propose(add("a", 1)).await.expect("propose");
    store.backup_now().await.expect("backup");
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    let mut files = 0;
    for folder in [data.clone(), data.join("backups")] {
        for entry in fs::read_dir(folder).expect("list") {
            let path = entry.expect("entry").path();
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(&path), expected, "{}", path.display());
            files += 1;
        }
    }
    assert!(
        files >= 7,
        "lock, generation, two databases with side files: {files}"
    );

    let error = refused(&data).await;
    let OpenError::Locked { dir: named, pid } = &error else {
        panic!("{error}")
    };
    assert_eq!((named, *pid), (&data, Some(std::process::id())));
    let message = error.to_string();
    assert!(message.contains(&data.display().to_string()), "{message}");
    assert!(
        message.contains(&std::process::id().to_string()),
        "{message}"
    );

    store.shutdown().await.expect("shutdown");
    let (_again, _, _) = open(&data).await;
}

// spec: STORE-06
#[tokio::test]
async fn a_newer_schema_is_refused_and_nothing_is_touched() {
    for name in ["log.db", "state.db"] {
        let dir = tempfile::tempdir().expect("folder");
        store_with(dir.path(), 3).await;
        let file = dir.path().join(name);
        tamper(
            &file,
            "PRAGMA user_version = 7; PRAGMA wal_checkpoint(TRUNCATE)",
        );
        let before: Vec<_> = ["log.db", "state.db", "generation"]
            .map(|name| fs::read(dir.path().join(name)).expect("read"))
            .into();
        let error = refused(dir.path()).await;
        let OpenError::NewerSchema {
            file: named,
            found,
            supported,
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((named, *found, *supported), (&file, 7, 1));
        assert!(error.to_string().contains("schema 7"), "{error}");
        let after: Vec<_> = ["log.db", "state.db", "generation"]
            .map(|name| fs::read(dir.path().join(name)).expect("read"))
            .into();
        assert!(before == after, "{name}: a file was changed");
    }
}

// spec: STORE-08
#[tokio::test]
async fn a_folder_with_other_files_gets_a_store_only_when_asked_for() {
    let dir = tempfile::tempdir().expect("folder");
    fs::write(dir.path().join("readme"), "mine").expect("write");
    let error = refused(dir.path()).await;
    assert!(matches!(error, OpenError::StoreMissing { .. }), "{error}");
    let mut asked = config(dir.path());
    asked.create = true;
    let (store, _, report) = Store::<Counters>::open(asked).await.expect("open");
    assert_eq!(report.outcome, BootOutcome::Created);
    store.shutdown().await.expect("shutdown");
    assert_eq!(
        fs::read_to_string(dir.path().join("readme")).expect("read"),
        "mine"
    );
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_done_again() {
    let dir = tempfile::tempdir().expect("folder");
    fs::write(dir.path().join("log.db"), "").expect("write");
    let (store, _, report) = open(dir.path()).await;
    assert_eq!(report.outcome, BootOutcome::Created);
    assert_eq!(
        store.propose(add("a", 1)).await.expect("propose").1,
        Some(1)
    );
}

// spec: STORE-08
#[tokio::test]
async fn a_store_whose_files_are_gone_is_not_silently_begun_again() {
    let dir = tempfile::tempdir().expect("folder");
    store_with(dir.path(), 3).await;
    for name in ["log.db", "state.db"] {
        fs::remove_file(dir.path().join(name)).expect("remove");
    }
    let error = refused(dir.path()).await;
    assert!(matches!(error, OpenError::StoreMissing { .. }), "{error}");
}

// spec: STORE-02
#[tokio::test]
async fn a_state_that_lags_behind_is_brought_level_from_the_log() {
    let dir = tempfile::tempdir().expect("folder");
    let (old, state) = (dir.path().join("old"), dir.path().join("data/state.db"));
    let data = dir.path().join("data");
    store_with(&data, 10).await;
    fs::copy(&state, &old).expect("copy");
    store_with(&data, 10).await;
    // As after a power loss that took the newest commits of state.db.
    fs::copy(&old, &state).expect("copy");
    let (store, mut outputs, report) = open(&data).await;
    assert_eq!(report.outcome, BootOutcome::Opened);
    assert_eq!(value(&store, "a"), Some(20));
    assert!(report.replayed >= 10, "{report:?}");
    let mut delivered = 0;
    while outputs.try_recv().is_some() {
        delivered += 1;
    }
    assert_eq!(delivered, 10, "what is applied again is delivered again");
}

#[tokio::test]
async fn files_of_two_stores_are_not_mixed() {
    let (one, other) = (
        tempfile::tempdir().expect("folder"),
        tempfile::tempdir().expect("folder"),
    );
    store_with(one.path(), 3).await;
    store_with(other.path(), 3).await;
    fs::copy(other.path().join("state.db"), one.path().join("state.db")).expect("copy");
    let error = refused(one.path()).await;
    let OpenError::Unreadable { cause, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(cause.contains("belongs to cluster"), "{cause}");
}

// spec: STORE-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_are_whole_while_commits_go_on_and_only_the_newest_are_kept() {
    let dir = tempfile::tempdir().expect("folder");
    let mut config = config(dir.path());
    config.backup_keep = 3;
    let (store, _, _) = Store::<Counters>::open(config).await.expect("open");
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for value in 0..300 {
                let pair = common::Command::Pair {
                    name: "p".to_owned(),
                    value,
                };
                store.propose(pair).await.expect("propose");
            }
        })
    };
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(store.backup_now().await.expect("backup"));
    }
    writer.await.expect("writer");
    let mut kept: Vec<_> = fs::read_dir(dir.path().join("backups"))
        .expect("list")
        .map(|entry| entry.expect("entry").path())
        .collect();
    kept.sort();
    let newest: Vec<_> = made[2..].iter().map(|backup| backup.path.clone()).collect();
    assert_eq!(kept, newest);
    let info = store.info().expect("info");
    assert_eq!(info.last_backup.as_ref(), made.last());
    for backup in &made[2..] {
        let connection = Connection::open(&backup.path).expect("open");
        let check: String = connection
            .query_row("PRAGMA integrity_check", (), |row| row.get(0))
            .expect("check");
        assert_eq!(check, "ok");
        let values: Vec<String> = connection
            .prepare("SELECT value FROM rows ORDER BY key")
            .expect("prepare")
            .query_map((), |row| row.get(0))
            .expect("query")
            .collect::<Result<_, _>>()
            .expect("rows");
        assert!(
            values.is_empty() || values[0] == values[1],
            "{values:?}: a commit was split"
        );
    }
    let target = dir.path().join("mine.db");
    let mine = store.backup(&target).await.expect("backup");
    assert_eq!(
        (mine.path, mine.revision),
        (target, store.info().expect("info").revision)
    );
}

// spec: STORE-09
#[tokio::test]
async fn room_follows_the_free_space_of_the_folder() {
    let dir = tempfile::tempdir().expect("folder");
    for (limit, expected) in [(0, Room::Plenty), (u64::MAX, Room::Low)] {
        let mut config = config(dir.path());
        config.min_free_bytes = limit;
        let (store, _, _) = Store::<Counters>::open(config).await.expect("open");
        assert_eq!(store.room(), expected);
        store.shutdown().await.expect("shutdown");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_puts_its_digest_into_the_log_now_and_then() {
    const CHECK: i64 = 3;
    let dir = tempfile::tempdir().expect("folder");
    let (store, _, _) = open(dir.path()).await;
    let log = Connection::open(dir.path().join("log.db")).expect("open");
    let checks = || -> i64 {
        log.query_row("SELECT count(*) FROM log WHERE kind = ?1", [CHECK], |row| {
            row.get(0)
        })
        .expect("count")
    };
    for _ in 0..20_000 {
        store.propose(add("a", 1)).await.expect("propose");
        if checks() > 0 {
            break;
        }
    }
    assert!(
        checks() > 0,
        "no check in {} entries",
        store.info().expect("info").last_index
    );
    store.shutdown().await.expect("shutdown");
    drop((store, log));
    // A replay of all of it has to pass the same checks.
    fs::remove_file(dir.path().join("state.db")).expect("remove");
    let (store, _, report) = open(dir.path()).await;
    assert!(report.replayed > 1_024, "{report:?}");
    assert!(value(&store, "a") > Some(1_000));
}
