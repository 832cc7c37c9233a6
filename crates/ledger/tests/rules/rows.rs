//! Rules about the stored form, and about epoch and seq.

use crate::common::*;
use greenroom_ledger::{Command, Config, Ledger, LoadError, Open, Row};
use greenroom_types::Wall;
use greenroom_types::call::Call;

fn row(table: &str, key: &str, value: &str) -> Row {
    Row {
        table: table.into(),
        key: key.into(),
        value: value.into(),
    }
}

fn open(epoch: &str, renew: bool) -> Command {
    Command::Open(Open {
        epoch: epoch.into(),
        renew,
        config: None,
        generation: 1,
    })
}

#[test]
fn rows_that_cannot_be_understood_are_told_apart() {
    let load = |row| Ledger::load([row]).unwrap_err();
    assert!(matches!(
        load(row("job", "a", r#"{"v":2,"d":{}}"#)),
        LoadError::Version { version: 2, .. }
    ));
    assert!(matches!(load(row("job", "a", "{")), LoadError::Row { .. }));
    assert!(matches!(
        load(row("songs", "a", "{}")),
        LoadError::Table { .. }
    ));
    let orphan = row(
        "history",
        "a|0000000000000001",
        r#"{"v":1,"d":{"at":"2026-01-01T00:00:00Z","seq":1,"startId":null,"kind":"created"}}"#,
    );
    assert!(matches!(load(orphan), LoadError::Orphan { .. }));
    assert_eq!(Ledger::load([]).unwrap(), Ledger::new(Config::default()));
}

#[test]
fn every_row_carries_its_version() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    w.running("b.0.e", "n1");
    assert!(w.rows.values().all(|value| value.starts_with(r#"{"v":1,"#)));
}

// spec: EVT-16
#[test]
fn the_epoch_stays_over_restarts_and_is_new_after_a_restore() {
    let mut w = World::new();
    w.create("a");
    w.ledger = w.reload();
    w.apply(open("e2", false)).unwrap();
    assert_eq!((w.ledger.epoch(), w.ledger.seq()), ("e1", 1));
    w.ledger.apply(Wall(0), open("e2", true)).outcome.unwrap();
    assert_eq!((w.ledger.epoch(), w.ledger.seq()), ("e2", 0));
}
