//! Kill -9 at a random moment: whatever was acknowledged must be there again.
//!
//! The test starts its own binary as a child, which writes and prints each
//! acknowledged command; the parent kills it and reads the store. This shows what a
//! dead process loses (nothing); it cannot show a power loss, because the kernel's
//! page cache survives the process.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Child;

use common::disk::{self, acknowledged, say};
use common::{Command, Counters, config, open};
use greenroom_store::{BootOutcome, Store};

const FOLDER: &str = "GREENROOM_STORE_CRASH_FOLDER";
const ROUND: &str = "GREENROOM_STORE_CRASH_ROUND";
const ROUNDS: usize = 5;
const WRITERS: usize = 6;

/// The child's part; without its variables it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes_until_it_is_killed() {
    let (Ok(folder), Ok(round)) = (std::env::var(FOLDER), std::env::var(ROUND)) else {
        return;
    };
    let mut config = config(Path::new(&folder));
    // Snapshots and purges run while the process is killed.
    config.snapshot_every = 100;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    tokio::spawn(async move { while outputs.recv().await.is_some() {} });
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, round) = (store.clone(), round.clone());
            tokio::spawn(async move {
                for value in 1.. {
                    let name = format!("r{round}w{writer}");
                    store
                        .propose(Command::Pair {
                            name: name.clone(),
                            value,
                        })
                        .await
                        .expect("propose");
                    say(&format!("acknowledged {name} {value}"));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("writer");
    }
}

fn start(folder: &Path, round: usize) -> Child {
    let round = round.to_string();
    let variables = [(FOLDER, folder.as_os_str()), (ROUND, OsStr::new(&round))];
    disk::start("child_writes_until_it_is_killed", &variables)
}

fn random_below(limit: usize) -> usize {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("random");
    u32::from_le_bytes(bytes) as usize % limit
}

// spec: API-05, STORE-02
#[tokio::test]
async fn acknowledged_commands_survive_kill_9_and_none_is_there_in_part() {
    let dir = tempfile::tempdir().expect("folder");
    let mut promised: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..ROUNDS {
        let wanted = 1 + random_below(600);
        let mut child = start(dir.path(), round);
        let mut lines = disk::lines(&mut child);
        let mut seen = 0;
        while seen < wanted {
            let line = lines
                .next()
                .expect("the child ended by itself")
                .expect("read");
            if let Some((name, value)) = acknowledged(&line) {
                promised.insert(name, value);
                seen += 1;
            }
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        // What the child still printed before it died was acknowledged too.
        for line in lines.map_while(Result::ok) {
            if let Some((name, value)) = acknowledged(&line) {
                promised.insert(name, value);
            }
        }

        let (store, _, report) = open(dir.path()).await;
        assert_eq!(
            report.outcome,
            BootOutcome::Opened,
            "a dead process damages no file"
        );
        let state = store.read(Counters::clone);
        disk::compare(&state, &promised)
            .unwrap_or_else(|lost| panic!("round {round}: {lost} {report:?}"));
        store.shutdown().await.expect("shutdown");
    }
    assert!(promised.len() >= WRITERS, "{promised:?}");
}
