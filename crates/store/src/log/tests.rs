//! The log and the applying side below the consensus, where its promises can be broken.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, RaftLogReader, StorageError};
use tempfile::TempDir;

use super::*;
use crate::apply::{Applier, Engine};
use crate::checks::EVERY;
use crate::common::{Counters, add};
use crate::directory::{Directory, Identity};
use crate::raft::{Leader, Proposal};
use crate::state::StateFile;
use crate::{Machine, OutputReceiver, output};

struct Stores {
    dir: TempDir,
    log: LogStore,
    applier: Applier<Counters>,
    outputs: OutputReceiver<Counters>,
    fatal: FatalCell,
}

fn identity() -> Identity {
    Identity {
        cluster: "c".to_owned(),
        generation: 4,
        member: 1,
    }
}

fn stores(order: Order) -> Stores {
    let dir = tempfile::tempdir().expect("folder");
    let directory = Directory {
        root: dir.path().to_owned(),
    };
    let state = StateFile::create(&directory.state(), &identity()).expect("state");
    let log = LogFile::create(&directory.log(), &identity(), None, None).expect("log");
    let fatal = FatalCell::new();
    let (sender, outputs) = output::channel::<Counters>(1_000);
    let machine = Counters::default();
    let engine = Arc::new(Engine::new(
        state,
        machine,
        sender,
        fatal.clone(),
        directory,
        order,
        None,
    ));
    let durable: Arc<dyn Durable> = Arc::clone(&engine) as _;
    let log = log
        .start(order, durable, fatal.clone(), None)
        .expect("start");
    Stores {
        dir,
        log,
        applier: Applier { engine },
        outputs,
        fatal,
    }
}

fn entry(index: u64) -> Entry {
    let command = serde_json::to_string(&add("a", 1)).expect("command");
    let proposal = Proposal::Command {
        ticket: 0,
        wall_ms: 1,
        command: command.into(),
    };
    let id = LogId::new(
        Leader {
            term: 1,
            node_id: 1,
        },
        index,
    );
    <Entry as RaftEntry>::new(id, EntryPayload::Normal(proposal))
}

async fn apply(applier: &mut Applier<Counters>, indexes: &[u64]) -> io::Result<()> {
    let items: Vec<_> = indexes
        .iter()
        .map(|index| Ok((entry(*index), None)))
        .collect();
    applier.apply(stream::iter(items)).await
}

fn columns(path: &Path, sql: &str) -> Vec<i64> {
    let connection = Connection::open(path).expect("open");
    let mut select = connection.prepare(sql).expect("prepare");
    let rows = select.query_map((), |row| row.get(0)).expect("query");
    rows.collect::<Result<_, _>>().expect("rows")
}

struct Builder;

impl StoreBuilder<Types, LogStore, Applier<Counters>, (TempDir, OutputReceiver<Counters>)>
    for Builder
{
    async fn build(
        &self,
    ) -> Result<
        (
            (TempDir, OutputReceiver<Counters>),
            LogStore,
            Applier<Counters>,
        ),
        StorageError<Types>,
    > {
        let Stores {
            dir,
            log,
            applier,
            outputs,
            ..
        } = stores(Order::Loose);
        Ok(((dir, outputs), log, applier))
    }
}

/// The library's own checks of a log and a state. Some of them ask for holes, hence `Loose`.
#[tokio::test]
async fn the_consensus_library_accepts_log_and_state() {
    Suite::test_all(Builder)
        .await
        .expect("the library's own suite");
}

// spec: STORE-02
#[test]
fn the_log_is_flushed_at_every_commit() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("log.db");
    for file in [
        LogFile::create(&path, &identity(), None, None),
        LogFile::open(&path),
    ] {
        let connection = file.expect("log").connection;
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
        let mode: String = connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .expect("mode");
        assert_eq!((pragma("synchronous"), mode.as_str()), (Ok(2), "wal"));
    }
}

#[tokio::test]
async fn an_entry_that_is_not_the_next_one_is_not_applied() {
    for wrong in [&[1, 2][..], &[0, 2], &[0, 0]] {
        let mut stores = stores(Order::Strict);
        let error = apply(&mut stores.applier, wrong)
            .await
            .expect_err("refused");
        assert!(error.to_string().contains("is next"), "{error}");
        assert!(stores.fatal.get().is_some());
        let counted = stores.applier.engine.read(|machine, _| machine.get("a"));
        assert_eq!(
            counted, None,
            "{wrong:?}: the part before the hole was applied"
        );
        assert!(stores.outputs.try_recv().is_none());
    }
    let mut stores = stores(Order::Strict);
    apply(&mut stores.applier, &[0, 1, 2]).await.expect("apply");
    let error = apply(&mut stores.applier, &[2]).await.expect_err("refused");
    assert!(
        error.to_string().contains("entry 2 came where 3 is next"),
        "{error}"
    );
}

#[tokio::test]
async fn an_entry_that_leaves_a_hole_is_not_appended() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    log.blocking_append([entry(0), entry(1)])
        .await
        .expect("append");
    let error = log
        .append([entry(3)], IOFlushed::noop())
        .await
        .expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("entry 3 appended where 2 is next"),
        "{error}"
    );
}

#[tokio::test]
async fn entries_are_readable_when_append_returns_and_a_short_read_is_an_error() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    for start in (0..200).step_by(10) {
        log.append((start..start + 10).map(entry), IOFlushed::noop())
            .await
            .expect("append");
        let read = log.try_get_log_entries(0..start + 10).await.expect("read");
        assert_eq!(read.len() as u64, start + 10);
    }
    let beyond: Vec<_> = log.entries_stream(195..205).await.collect().await;
    let [Err(error)] = &beyond[..] else {
        panic!("{} entries and no error", beyond.len())
    };
    assert!(
        error
            .to_string()
            .contains("asked for 10 entries from 195, the log gave 5"),
        "{error}"
    );

    // A row that is gone from the file and not in memory must not go unnoticed.
    log.blocking_append([entry(200)]).await.expect("append");
    log.stop().await;
    let path = stores.dir.path().join("log.db");
    let file = LogFile::open(&path).expect("open");
    let durable: Arc<dyn Durable> = Arc::clone(&stores.applier.engine) as _;
    let mut log = file
        .start(Order::Strict, durable, FatalCell::new(), None)
        .expect("start");
    Connection::open(&path)
        .expect("open")
        .execute("DELETE FROM log WHERE idx = 7", ())
        .expect("cut");
    let error = log.try_get_log_entries(5..10).await.expect_err("short");
    assert!(
        error.to_string().contains("read 4 of the 5 entries"),
        "{error}"
    );
    assert_eq!(log.try_get_log_entries(8..10).await.expect("read").len(), 2);
}

#[tokio::test]
async fn a_log_with_a_hole_is_not_opened() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    log.blocking_append((0..10).map(entry))
        .await
        .expect("append");
    log.stop().await;
    let path = stores.dir.path().join("log.db");
    Connection::open(&path)
        .expect("open")
        .execute("DELETE FROM log WHERE idx = 7", ())
        .expect("cut");
    let error = LogFile::open(&path).err().expect("refused");
    assert_eq!(
        error,
        "entries 0 to 9 are 9 rows; the log must begin at 0 and have no hole"
    );
}

// spec: CLUST-07
#[tokio::test]
async fn every_entry_carries_generation_and_term() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    log.blocking_append((0..3).map(entry))
        .await
        .expect("append");
    let path = stores.dir.path().join("log.db");
    assert_eq!(columns(&path, "SELECT generation FROM log"), [4, 4, 4]);
    assert_eq!(columns(&path, "SELECT term FROM log"), [1, 1, 1]);
    assert_eq!(columns(&path, "SELECT idx FROM log"), [0, 1, 2]);
}

// spec: STORE-02
#[tokio::test]
async fn the_log_is_purged_only_as_far_as_the_state_goes() {
    let mut stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    log.blocking_append((0..10).map(entry))
        .await
        .expect("append");
    apply(&mut stores.applier, &[0, 1, 2, 3, 4])
        .await
        .expect("apply");
    let error = log.purge(entry(5).log_id).await.expect_err("refused");
    assert!(
        error.to_string().contains("the state stands at Some(4)"),
        "{error}"
    );
    log.purge(entry(4).log_id).await.expect("purge");
    let kept: Vec<u64> = log
        .try_get_log_entries(..)
        .await
        .expect("read")
        .iter()
        .map(|e| e.log_id.index)
        .collect();
    assert_eq!(kept, [5, 6, 7, 8, 9]);
}

/// Counts how often the state was asked to be durable, and when.
struct Watcher(AtomicU64);

impl Durable for Watcher {
    fn make_durable(&self, index: u64) -> io::Result<()> {
        self.0.store(index, Ordering::Relaxed);
        Err(io::Error::other("not durable"))
    }
}

// spec: STORE-02
#[tokio::test]
async fn a_state_that_cannot_be_flushed_keeps_the_log() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("log.db");
    let file = LogFile::create(&path, &identity(), None, None).expect("log");
    let watcher = Arc::new(Watcher(AtomicU64::new(0)));
    let durable: Arc<dyn Durable> = Arc::clone(&watcher) as _;
    let mut log = file
        .start(Order::Strict, durable, FatalCell::new(), None)
        .expect("start");
    log.blocking_append((0..10).map(entry))
        .await
        .expect("append");
    log.purge(entry(4).log_id).await.expect_err("refused");
    assert_eq!(watcher.0.load(Ordering::Relaxed), 4);
    assert_eq!(log.try_get_log_entries(..).await.expect("read").len(), 10);
    assert_eq!(columns(&path, "SELECT count(*) FROM log"), [10]);
}

#[tokio::test]
async fn entries_beyond_the_window_are_read_from_the_file() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    let count: u64 = 10_000;
    for start in (0..count).step_by(1_000) {
        log.blocking_append((start..start + 1_000).map(entry))
            .await
            .expect("append");
    }
    assert!(!log.in_window(0), "the window never ends");
    let read = log.try_get_log_entries(..).await.expect("read");
    let indexes: Vec<u64> = read.iter().map(|entry| entry.log_id.index).collect();
    assert!(indexes.iter().copied().eq(0..count));
}

#[tokio::test]
async fn a_cut_log_goes_on_where_it_was_cut() {
    let stores = stores(Order::Strict);
    let mut log = stores.log.clone();
    log.blocking_append((0..10).map(entry))
        .await
        .expect("append");
    log.truncate_after(Some(entry(5).log_id))
        .await
        .expect("cut");
    log.blocking_append([entry(6)]).await.expect("append");
    log.stop().await;
    let file = LogFile::open(&stores.dir.path().join("log.db")).expect("open");
    assert_eq!(file.last(), Some(entry(6).log_id));
}

#[tokio::test]
async fn a_machine_that_comes_back_different_is_refused() {
    let mut stores = stores(Order::Strict);
    apply(&mut stores.applier, &[0, 1]).await.expect("apply");
    stores.applier.engine.close().expect("close");
    let path = stores.dir.path().join("state.db");
    let state = StateFile::open(&path).expect("open");
    let machine: Counters = state.load().expect("whole").expect("equal");
    assert_eq!(machine.get("a"), Some(2));
    let mut wrong = state.standing().clone();
    wrong.digest = wrong.digest.map(|digest| digest ^ 1);
    let mut state = state;
    state.commit(&[], wrong).expect("commit");
    let error = state
        .load::<Counters>()
        .expect("whole")
        .expect_err("refused");
    assert!(error.contains("was written with them"), "{error}");
}

#[tokio::test]
async fn a_member_whose_digest_differs_from_the_primarys_stops() {
    let check = |at: u64, index, digest| {
        let id = LogId::new(
            Leader {
                term: 1,
                node_id: 1,
            },
            at,
        );
        let payload = EntryPayload::Normal(Proposal::Check { index, digest });
        Ok((<Entry as RaftEntry>::new(id, payload), None))
    };
    let mut stores = stores(Order::Strict);
    let indexes: Vec<u64> = (0..=EVERY).collect();
    apply(&mut stores.applier, &indexes).await.expect("apply");
    let digest = stores
        .applier
        .engine
        .read(|machine, _| machine.digest())
        .expect("digest");
    let agreed = [
        check(EVERY + 1, EVERY, digest),
        check(EVERY + 2, EVERY - 1, 0),
    ];
    stores
        .applier
        .apply(stream::iter(agreed))
        .await
        .expect("equal, or not noted here");
    assert_eq!(stores.fatal.get(), None);
    let differs = [check(EVERY + 3, EVERY, digest ^ 1)];
    let error = stores
        .applier
        .apply(stream::iter(differs))
        .await
        .expect_err("refused");
    assert!(error.to_string().contains("diverged"), "{error}");
    assert!(stores.fatal.get().is_some());
}
