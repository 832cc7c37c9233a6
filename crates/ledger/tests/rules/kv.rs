//! The key/value store: revisions, expectations, limits.

use greenroom_ledger::{Called, Command, Config, KvSpace};
use greenroom_types::call::{Call, CallResult, Detail, Refusal, Reply, Status};
use greenroom_types::kv::{KvCommit, KvEntry, KvWrite};

use crate::common::World;

const MIB: usize = 1024 * 1024;

fn commit(writes: Vec<KvWrite>) -> KvCommit {
    KvCommit {
        namespace: "rota".into(),
        writes,
        ..KvCommit::default()
    }
}

fn put(w: &mut World, writes: Vec<KvWrite>) -> CallResult {
    w.call(Call::KvCommit(commit(writes)))
}

fn refused(w: &mut World, writes: Vec<KvWrite>) -> Refusal {
    w.refused(Call::KvCommit(commit(writes)))
}

fn space(w: &World) -> &KvSpace {
    w.ledger.kv_space("rota").unwrap().expect("it was written")
}

fn entry(key: &str, value: &str, revision: u64) -> KvEntry {
    KvEntry {
        key: key.into(),
        value: value.as_bytes().into(),
        revision,
    }
}

fn set(key: &str, value: &str) -> KvWrite {
    KvWrite::set(key, value.as_bytes())
}

// spec: KV-01, KV-02, KV-04
#[test]
fn a_commit_writes_all_its_keys_under_one_new_revision() {
    let mut w = World::new();
    assert!(w.ledger.kv_space("rota").unwrap().is_none());
    let first = put(
        &mut w,
        vec![set("b", "1"), set("a/2", "2"), set("a/1", "3")],
    );
    assert_eq!(first, Ok(Reply::KvRevision(1)));
    let second = put(&mut w, vec![set("b", "4"), KvWrite::delete("a/2")]);
    assert_eq!(second, Ok(Reply::KvRevision(2)));

    assert_eq!(space(&w).get("b"), Some(entry("b", "4", 2)));
    assert_eq!(space(&w).get("a/2"), None);
    put(&mut w, vec![set("ä", "5"), set("a", "6")]).unwrap();
    let listed: Vec<KvEntry> = space(&w).list("").collect();
    let expected = [
        entry("a", "6", 3),
        entry("a/1", "3", 1),
        entry("b", "4", 2),
        entry("ä", "5", 3),
    ];
    assert_eq!(listed, expected);
    let below: Vec<KvEntry> = space(&w).list("a/").collect();
    assert_eq!(below, [entry("a/1", "3", 1)]);
    assert!(w.last.changes.is_empty(), "no subscriber is told");
}

// spec: KV-04
#[test]
fn no_revision_is_used_twice_and_a_delete_of_nothing_uses_none() {
    let mut w = World::new();
    put(&mut w, vec![set("a", "1")]).unwrap();
    put(&mut w, vec![KvWrite::delete("a")]).unwrap();
    assert_eq!(space(&w).list("").count(), 0);
    let nothing = put(&mut w, vec![KvWrite::delete("a"), KvWrite::delete("z")]);
    assert_eq!(nothing, Ok(Reply::KvRevision(2)));
    assert!(w.last.rows.is_empty());
    // Also after a restart, with no key left.
    w.ledger = w.reload();
    assert_eq!(put(&mut w, vec![set("a", "1")]), Ok(Reply::KvRevision(3)));
    let gone = KvWrite::delete("z").expecting(0);
    assert_eq!(put(&mut w, vec![gone]), Ok(Reply::KvRevision(3)));
    // Another namespace counts for itself.
    let other = KvCommit {
        namespace: "other".into(),
        ..commit(vec![set("a", "1")])
    };
    assert_eq!(w.call(Call::KvCommit(other)), Ok(Reply::KvRevision(1)));
}

// spec: KV-03, HARDM-54
#[test]
fn of_two_commits_that_expect_the_same_one_wins_and_the_other_changes_nothing() {
    let mut w = World::new();
    put(&mut w, vec![set("a", "old"), set("b", "old")]).unwrap();
    let mine = vec![set("a", "mine").expecting(1)];
    assert_eq!(put(&mut w, mine), Ok(Reply::KvRevision(2)));
    let theirs = vec![set("b", "theirs"), set("a", "theirs").expecting(1)];
    let refusal = refused(&mut w, theirs);
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::FailedPrecondition, "revision_mismatch")
    );
    assert_eq!(refusal.details["key"], Detail::from("a"));
    assert_eq!(refusal.details["expected"], Detail::Int(1));
    assert_eq!(refusal.details["actual"], Detail::Int(2));
    assert_eq!(space(&w).get("b"), Some(entry("b", "old", 1)));

    for (write, actual) in [
        (set("new", "x").expecting(1), 0),
        (set("a", "x").expecting(0), 2),
        (KvWrite::delete("new").expecting(1), 0),
    ] {
        let refusal = refused(&mut w, vec![write]);
        assert_eq!(refusal.details["actual"], Detail::Int(actual));
    }
    put(&mut w, vec![set("new", "x").expecting(0)]).unwrap();
}

// spec: KV-03, KV-05
#[test]
fn the_schema_version_is_compared_and_kept_and_may_go_down() {
    let mut w = World::new();
    let with = |expected, set_to| KvCommit {
        expected_schema_version: expected,
        set_schema_version: set_to,
        ..commit(vec![set("a", "1")])
    };
    w.call(Call::KvCommit(with(Some(0), Some(7)))).unwrap();
    assert_eq!(space(&w).schema_version(), 7);
    let refusal = w.refused(Call::KvCommit(with(Some(6), None)));
    assert_eq!(refusal.reason, "schema_mismatch");
    assert_eq!(refusal.details["actual"], Detail::Int(7));
    w.call(Call::KvCommit(with(Some(7), Some(3)))).unwrap();
    assert_eq!((space(&w).schema_version(), space(&w).revision()), (3, 2));
    // The version alone moves no revision: no key changed.
    let only = KvCommit {
        writes: Vec::new(),
        ..with(None, Some(9))
    };
    assert_eq!(w.call(Call::KvCommit(only)), Ok(Reply::KvRevision(2)));
    assert_eq!(space(&w).schema_version(), 9);
}

// spec: KV-06
#[test]
fn names_keys_values_and_commits_have_their_limits() {
    let mut w = World::new();
    for namespace in ["", "Rota", "a_b", &"x".repeat(64)] {
        let bad = KvCommit {
            namespace: namespace.into(),
            ..commit(Vec::new())
        };
        let refusal = w.refused(Call::KvCommit(bad));
        assert_eq!(
            (refusal.status, refusal.reason.as_str()),
            (Status::InvalidArgument, "bad_kv"),
            "{namespace:?}"
        );
    }
    let of =
        |count: usize| -> Vec<KvWrite> { (0..count).map(|n| set(&format!("k{n}"), "v")).collect() };
    let large = |bytes: usize| KvWrite::set("large", vec![0; bytes]);
    let quarter = |n: usize| KvWrite::set(format!("q{n}"), vec![0; MIB]);
    let bad: [(Vec<KvWrite>, &str); 6] = [
        (vec![set("", "v")], "writes[0].key"),
        (vec![set(&"k".repeat(513), "v")], "writes[0].key"),
        (vec![large(MIB + 1)], "writes[0].value"),
        (vec![set("a", "1"), KvWrite::delete("a")], "writes[1].key"),
        (of(257), "writes"),
        ((0..4).map(quarter).collect(), "writes"),
    ];
    for (writes, path) in bad {
        let refusal = refused(&mut w, writes);
        assert_eq!(refusal.reason, "bad_kv");
        assert_eq!(refusal.details["path"], Detail::from(path));
    }
    put(&mut w, vec![set(&"k".repeat(512), "v"), large(MIB)]).unwrap();
    put(&mut w, of(256)).unwrap();
}

// spec: KV-06
#[test]
fn a_full_namespace_takes_only_what_makes_it_smaller() {
    let mut config = Config::default();
    config.limits.kv_namespace_bytes = 10;
    config.limits.kv_namespaces = 1;
    let mut w = World::with(config);
    put(&mut w, vec![set("a", "1234"), set("b", "1234")]).unwrap();
    let refusal = refused(&mut w, vec![set("c", "")]);
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::ResourceExhausted, "kv_full")
    );
    put(&mut w, vec![set("a", "123"), set("c", "")]).unwrap();
    let other = KvCommit {
        namespace: "other".into(),
        ..commit(vec![set("a", "")])
    };
    assert_eq!(w.refused(Call::KvCommit(other)).reason, "kv_full");

    // A limit that was lowered since keeps nobody from making room.
    let mut config = Config::default();
    config.limits.kv_namespace_bytes = 2;
    w.apply(Command::Open(greenroom_ledger::Open {
        epoch: "e2".into(),
        renew: false,
        config: Some(Box::new(config)),
        generation: 1,
    }))
    .unwrap();
    put(&mut w, vec![KvWrite::delete("a")]).unwrap();
}

// spec: KV-08
#[test]
fn the_managers_own_namespaces_are_closed() {
    let mut w = World::new();
    let own = KvCommit {
        namespace: "sys-x".into(),
        ..commit(vec![set("a", "1")])
    };
    let refusal = w.refused(Call::KvCommit(own));
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::PermissionDenied, "reserved_namespace")
    );
    let read = w.ledger.kv_space("sys-x").unwrap_err();
    assert_eq!(read.reason, "reserved_namespace");
}

#[test]
fn a_value_stands_in_no_refusal_and_no_form_for_people() {
    let mut w = World::new();
    let secret = || set("a", "hunter2");
    let twice = refused(&mut w, vec![secret(), secret()]);
    let stale = refused(&mut w, vec![secret().expecting(5)]);
    put(&mut w, vec![secret()]).unwrap();
    let called = Command::Call(Box::new(Called {
        call: Call::KvCommit(commit(vec![secret()])),
        actor: "tester".into(),
        request_id: None,
        fresh: w.fresh(),
    }));
    for shown in [
        format!("{twice:?}"),
        format!("{stale:?}"),
        format!("{called:?}"),
        format!("{:?}", space(&w).get("a")),
    ] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
