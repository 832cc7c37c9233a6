//! What opening a folder does with old, damaged, foreign and missing files.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{Counters, add, config, fill, open};
use greenroom_store::{BootOutcome, Loss, OpenError, Room, Store};
use rusqlite::Connection;

async fn refused(dir: &Path) -> OpenError {
    match Store::<Counters>::open(config(dir)).await {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}

/// A store with `a` counted to `times`, shut down.
async fn store_with(dir: &Path, times: usize) {
    let (store, _, _) = open(dir).await;
    fill(&store, "a", times).await;
    store.shutdown().await.expect("shutdown");
}

fn value(store: &Store<Counters>, name: &str) -> Option<i64> {
    store.read(|machine| machine.get(name))
}

/// Runs a statement on a database behind the store's back.
fn tamper(file: &Path, sql: &str) {
    let connection = Connection::open(file).expect("open");
    connection.execute_batch(sql).expect("tamper");
}

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
