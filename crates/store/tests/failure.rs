//! A disk that refuses, and a machine that panics.

mod common;

use std::path::Path;

use common::{Command, add, fill, open};
use futures::FutureExt;
use greenroom_store::ProposeError;
use rusqlite::Connection;

/// Makes every further write of a table fail, as a full or broken disk does.
fn break_table(file: &Path, table: &str) {
    let connection = Connection::open(file).expect("open");
    connection
        .execute_batch(&format!(
            "CREATE TRIGGER broken BEFORE INSERT ON {table} \
             BEGIN SELECT RAISE(ABORT, 'the disk refused'); END"
        ))
        .expect("trigger");
}

// spec: STORE-12
#[tokio::test]
async fn a_refused_log_write_ends_the_store_after_one_attempt_with_nothing_applied() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, mut outputs, _) = open(dir.path()).await;
    fill(&store, "a", 3).await;
    while outputs.try_recv().is_some() {}
    let fatal = store.fatal();
    assert!(
        store.fatal().now_or_never().is_none(),
        "nothing is wrong yet"
    );
    break_table(&dir.path().join("log.db"), "log");
    let error = store.propose(add("a", 1)).await.expect_err("refused");
    let ProposeError::Fatal(cause) = error else {
        panic!("{error:?}")
    };
    let message = cause.to_string();
    assert!(
        message.contains("log.db") && message.contains("the disk refused"),
        "{message}"
    );
    assert_eq!(fatal.await, cause);
    assert_eq!(
        store.read(|machine| machine.get("a")),
        Some(3),
        "memory is not ahead of the disk"
    );
    assert!(outputs.try_recv().is_none());
    let error = store.propose(add("a", 1)).await.expect_err("refused");
    assert!(matches!(error, ProposeError::Fatal(_)), "{error:?}");
}

// spec: STORE-12, API-05
#[tokio::test]
async fn a_refused_state_write_is_not_acknowledged_and_the_log_makes_it_good() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, mut outputs, _) = open(dir.path()).await;
    fill(&store, "a", 3).await;
    while outputs.try_recv().is_some() {}
    break_table(&dir.path().join("state.db"), "rows");
    let error = store.propose(add("a", 1)).await.expect_err("refused");
    let ProposeError::Fatal(cause) = error else {
        panic!("{error:?}")
    };
    assert!(cause.to_string().contains("state.db"), "{cause}");
    assert_eq!(store.fatal().await, cause);
    assert!(
        outputs.try_recv().is_none(),
        "an output went out before its rows were written"
    );
    store.shutdown().await.ok();
    drop(store);
    Connection::open(dir.path().join("state.db"))
        .expect("open")
        .execute_batch("DROP TRIGGER broken")
        .expect("mend");
    let (store, _, _) = open(dir.path()).await;
    assert_eq!(
        store.read(|machine| machine.get("a")),
        Some(4),
        "flushed in the log, so it is kept"
    );
}

#[tokio::test]
async fn a_machine_that_panics_ends_the_store_instead_of_hanging_it() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, _, _) = open(dir.path()).await;
    let error = store.propose(Command::Panic).await.expect_err("refused");
    let ProposeError::Fatal(cause) = error else {
        panic!("{error:?}")
    };
    assert!(
        cause.to_string().contains("the machine is faulty"),
        "{cause}"
    );
    assert_eq!(store.fatal().await, cause);
}
