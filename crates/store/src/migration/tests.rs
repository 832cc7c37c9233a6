//! A migration that is cut short: by a kill before any change of a file, by a power loss, by a step that fails.
//!
//! There is one schema so far; children of these tests know a second one, which they are told by a variable.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::*;
use crate::common::disk::{self, Change, Dice, acknowledged, say};
use crate::common::{Command, Counters, config};
use crate::schema::Step;
use crate::{BootOutcome, Loss, Store};

/// What a child is to do, and in which folder.
const PART: &str = "GREENROOM_STORE_MIGRATION_PART";
const FOLDER: &str = "GREENROOM_STORE_MIGRATION_FOLDER";
const CHILD: &str = "migration::tests::child_does_its_part";
/// Pairs that stand in the store before it is migrated.
const PAIRS: i64 = 40;
const LOSSES: usize = 15;
/// The longest way between two kills that are tried, in changes.
const STRIDE: usize = 7;
/// So many kills after the migration, while the store goes on to open, are looked at.
const AFTER: usize = 2;

/// The steps of a process: none, but in a child that is to migrate.
pub(crate) fn steps() -> &'static [Step] {
    const GOOD: &[Step] = &[Step {
        state: |state| {
            let change = "ALTER TABLE rows ADD COLUMN seen INTEGER NOT NULL DEFAULT 0; \
                          UPDATE rows SET seen = 1; CREATE INDEX rows_seen ON rows(seen)";
            state.execute_batch(change).map_err(sqlite::text)
        },
        log: |log| {
            let change = "ALTER TABLE log ADD COLUMN seen INTEGER NOT NULL DEFAULT 0; UPDATE log SET seen = 1";
            log.execute_batch(change).map_err(sqlite::text)
        },
    }];
    const BAD: &[Step] = &[Step {
        state: |state| {
            let change = "UPDATE rows SET value = ''; UPDATE missing SET a = 1";
            state.execute_batch(change).map_err(sqlite::text)
        },
        log: |_| Ok(()),
    }];
    match std::env::var(PART).as_deref() {
        Ok("migrate") => GOOD,
        Ok("fail") => BAD,
        _ => &[],
    }
}

/// The child's part; without its variables it has nothing to do.
#[tokio::test]
async fn child_does_its_part() {
    let (Ok(part), Ok(folder)) = (std::env::var(PART), std::env::var(FOLDER)) else {
        return;
    };
    let mut config = config(Path::new(&folder));
    config.min_free_bytes = 0;
    config.reserve_bytes = 0;
    config.snapshot_every = 25;
    say("begins ");
    let (store, _outputs, report) = match Store::<Counters>::open(config).await {
        Ok(opened) => opened,
        Err(error) => {
            say(&format!("refused {error}"));
            return;
        }
    };
    if part == "fill" {
        for value in 1..=PAIRS {
            let name = format!("p{}", value % 5);
            let pair = Command::Pair {
                name: name.clone(),
                value,
            };
            store.propose(pair).await.expect("propose");
            say(&format!("acknowledged {name} {value}"));
        }
        // As a process that dies: what the log holds is not in the state yet.
        std::process::abort();
    }
    let is_good = match report.outcome {
        BootOutcome::Opened | BootOutcome::Migrated { .. } => true,
        BootOutcome::Restored { loss, .. } => loss == Loss::Nothing,
        BootOutcome::Created => false,
    };
    assert!(is_good, "{:?}", report.outcome);
    for (name, value) in store.read(Counters::clone).values {
        say(&format!("stands {name} {value}"));
    }
    say(&format!("outcome {:?}", report.outcome));
    store.shutdown().await.expect("shutdown");
}

/// A store of the first schema and what was promised of it.
struct Old {
    folder: tempfile::TempDir,
    shim: PathBuf,
    promised: BTreeMap<String, i64>,
}

impl Old {
    /// None where there is no compiler for the shim.
    fn make() -> Option<Self> {
        let folder = tempfile::tempdir().expect("folder");
        let shim = disk::shim(folder.path())?;
        let mut old = Self {
            folder,
            shim,
            promised: BTreeMap::new(),
        };
        let said = old.child("fill", &old.data(), &[]).1;
        old.promised = said.iter().filter_map(|line| acknowledged(line)).collect();
        assert_eq!(old.promised.len(), 5, "{said:?}");
        Some(old)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs a child behind the shim, which notes what it does to the store of this; whether it ended by
    /// itself, and what it said.
    fn child(&self, part: &str, data: &Path, more: &[(&str, &OsStr)]) -> (bool, Vec<String>) {
        let mut variables = vec![
            (PART, OsStr::new(part)),
            (FOLDER, data.as_os_str()),
            ("LD_PRELOAD", self.shim.as_os_str()),
            ("DISK_ROOT", data.as_os_str()),
        ];
        let notes = self.notes();
        if data == self.data() {
            variables.push(("DISK_LOG", notes.as_os_str()));
        }
        variables.extend(more);
        let mut child = disk::start(CHILD, &variables);
        let said = disk::lines(&mut child).map_while(Result::ok).collect();
        (child.wait().expect("wait").success(), said)
    }

    fn notes(&self) -> PathBuf {
        self.folder.path().join("notes")
    }

    /// A copy of the store as the child left it.
    fn copy(&self) -> tempfile::TempDir {
        copy_of(&self.data())
    }

    /// All that was promised stands, as a child of the second schema says.
    fn stands(&self, said: &[String]) -> Result<(), String> {
        let stands = said.iter().filter_map(|line| {
            let (name, value) = line.strip_prefix("stands ")?.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        let values: BTreeMap<String, i64> = stands.collect();
        let state = Counters::of(values);
        disk::compare(&state, &self.promised).map_err(|lost| format!("{lost}; {said:?}"))
    }
}

fn copy_of(data: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("folder");
    for (from, to) in [
        (data.to_owned(), copy.path().to_owned()),
        (data.join("backups"), copy.path().join("backups")),
    ] {
        fs::create_dir_all(&to).expect("folder");
        for entry in fs::read_dir(from).into_iter().flatten() {
            let path = entry.expect("entry").path();
            if path.is_file() && path.extension().is_none_or(|it| it != "db-shm") {
                fs::copy(&path, to.join(path.file_name().expect("name"))).expect("copy");
            }
        }
    }
    copy
}

fn version_of(path: &Path) -> u32 {
    let connection = sqlite::open_reader(path).expect("open");
    schema::version(&connection).expect("version")
}

fn outcome(said: &[String]) -> &str {
    let told = said.iter().find_map(|line| line.strip_prefix("outcome "));
    told.unwrap_or_else(|| panic!("the store was not opened: {said:?}"))
}

// spec: HARDM-36, STORE-06
#[tokio::test]
async fn a_migration_that_is_killed_before_any_of_its_changes_leaves_all_whole_and_is_made_again() {
    let Some(old) = Old::make() else {
        return;
    };
    let mut killed = 0;
    let mut halves = 0;
    let mut after = 0;
    // Over many runs each moment has its turn.
    let seed = disk::seed();
    let mut dice = Dice::new(seed);
    let mut number = 0;
    loop {
        number += 1 + dice.roll(STRIDE);
        assert!(number < 5_000, "the migration comes to an end");
        let copy = old.copy();
        let data = copy.path();
        let at = number.to_string();
        let (ended, said) = old.child("migrate", data, &[("DISK_KILL", OsStr::new(&at))]);
        if ended {
            assert!(
                outcome(&said).starts_with("Migrated { from: 1, to: 2"),
                "{said:?}"
            );
            break;
        }
        killed += 1;
        // A copy is looked at: a look may write beside a database.
        let looked = copy_of(data);
        let versions = ["state.db", "log.db"].map(|name| version_of(&looked.path().join(name)));
        let backups = Directory {
            root: looked.path().to_owned(),
        };
        let backups = backup::list(&backups).expect("list");
        for backup in &backups {
            state::verify(backup)
                .unwrap_or_else(|cause| panic!("seed {seed}, kill {number}: {cause}"));
        }
        if versions == [1, 1] {
            let (store, _, report) = crate::common::open(looked.path()).await;
            assert_eq!(
                report.outcome,
                BootOutcome::Opened,
                "seed {seed}, kill {number}"
            );
            disk::compare(&store.read(Counters::clone), &old.promised)
                .unwrap_or_else(|lost| panic!("seed {seed}, kill {number}: {lost}"));
            store.shutdown().await.expect("shutdown");
        } else {
            assert_eq!(
                backups.len(),
                1,
                "seed {seed}, kill {number}: no change without a backup"
            );
            halves += usize::from(versions == [2, 1]);
        }

        let (ended, said) = old.child("migrate", data, &[]);
        assert!(ended, "seed {seed}, kill {number}: {said:?}");
        let again = outcome(&said);
        if versions == [2, 2] {
            after += 1;
            assert_eq!(again, "Opened", "seed {seed}, kill {number}");
        } else {
            assert!(
                again.starts_with("Migrated { from: 1, to: 2, backup: Some("),
                "seed {seed}, kill {number}: {again}"
            );
        }
        old.stands(&said)
            .unwrap_or_else(|lost| panic!("seed {seed}, kill {number}: {lost}"));
        assert_eq!(
            ["state.db", "log.db"].map(|name| version_of(&data.join(name))),
            [2, 2]
        );
        let backups = Directory {
            root: data.to_owned(),
        };
        let backups = backup::list(&backups).expect("list");
        assert_eq!(
            backups.len(),
            1,
            "seed {seed}, kill {number}: one backup for all attempts"
        );
        assert_eq!(version_of(&backups[0]), 1);
        if after == AFTER {
            break;
        }
    }
    assert!(killed > 8, "kills before each change: {killed}");
    assert!(halves > 0, "a kill between the two databases");
}

// spec: HARDM-36, STORE-06, STORE-02
#[tokio::test]
async fn a_power_loss_within_a_migration_loses_nothing() {
    let Some(old) = Old::make() else {
        return;
    };
    let (ended, said) = old.child("migrate", &old.data(), &[]);
    assert!(ended, "{said:?}");
    let changes = disk::read_notes(&old.notes());
    let begins = |it: &Change| matches!(it, Change::Said(text) if text.contains("begins "));
    let begun = changes
        .iter()
        .rposition(begins)
        .expect("the second child begins");
    let seed = disk::seed();
    let mut dice = Dice::new(seed);
    let mut outcomes = std::collections::BTreeSet::new();
    for loss in 0..LOSSES {
        let count = begun + 1 + dice.roll(changes.len() - begun - 1);
        let told = format!("seed {seed}, loss {loss} after {count} changes");
        let folder = tempfile::tempdir().expect("folder");
        let image = disk::image(&changes, count, &mut dice);
        disk::lay_out(&image, &old.data(), folder.path());
        let (ended, said) = old.child("migrate", folder.path(), &[]);
        assert!(ended, "{told}: {said:?}");
        outcomes.insert(outcome(&said)[..6].to_owned());
        old.stands(&said)
            .unwrap_or_else(|lost| panic!("{told}: {lost}"));
    }
    assert!(outcomes.contains("Migrat"), "{outcomes:?}");
}

// spec: STORE-06
#[tokio::test]
async fn a_step_that_fails_leaves_the_store_to_the_version_that_wrote_it() {
    let Some(old) = Old::make() else {
        return;
    };
    let (ended, said) = old.child("fail", &old.data(), &[]);
    assert!(ended);
    let refused = said.iter().find_map(|line| line.strip_prefix("refused "));
    let refused = refused.expect("it is refused");
    for part in [
        "state.db has schema version 1",
        "to version 2",
        "no such table: missing",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    let (store, _, report) = crate::common::open(&old.data()).await;
    assert_eq!(report.outcome, BootOutcome::Opened);
    disk::compare(&store.read(Counters::clone), &old.promised).expect("all is there");
    store.shutdown().await.expect("shutdown");
}

// spec: STORE-06, STORE-10
#[tokio::test]
async fn a_damaged_state_of_an_older_schema_is_restored_and_migrated() {
    let Some(old) = Old::make() else {
        return;
    };
    let (store, _, _) = crate::common::open(&old.data()).await;
    store.backup_now().await.expect("backup");
    store.shutdown().await.expect("shutdown");
    let state = Connection::open(old.data().join("state.db")).expect("open");
    let tampered = "UPDATE rows SET value = value + 1 WHERE key LIKE 'p1.%'";
    state.execute_batch(tampered).expect("tamper");
    drop(state);
    let (ended, said) = old.child("migrate", &old.data(), &[]);
    assert!(ended, "{said:?}");
    assert!(outcome(&said).starts_with("Restored"), "{said:?}");
    old.stands(&said).unwrap_or_else(|lost| panic!("{lost}"));
}
