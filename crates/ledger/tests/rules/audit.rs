//! The audit log: what is told, the chain, pruning.

use std::sync::Arc;

use greenroom_ledger::{
    Broken, Command, Config, Due, Link, audit_hash, audit_weight, verify_audit,
};
use greenroom_types::call::{AuditEntry, Call, Reply, Status};
use greenroom_types::kv::{KvCommit, KvWrite};
use greenroom_types::{Tags, Wall};
use serde_json::{Value, json};

use crate::common::*;

fn append(payload: &str) -> Call {
    Call::AppendAuditEntry {
        source: "rota".into(),
        kind: "handed-over".into(),
        payload: payload.into(),
    }
}

fn prune(before: Wall) -> Call {
    Call::PruneAuditLog { before }
}

fn kept(w: &World) -> Vec<AuditEntry> {
    let entries = w.ledger.audit().entries();
    entries.iter().map(|entry| (**entry).clone()).collect()
}

fn seqs(w: &World) -> Vec<u64> {
    kept(w).iter().map(|entry| entry.seq).collect()
}

/// Kind and payload of what the last apply appended.
fn told(w: &World) -> Vec<(String, Value)> {
    let told = |entry: &Arc<AuditEntry>| {
        let payload = serde_json::from_str(&entry.payload).unwrap();
        (entry.kind.clone(), payload)
    };
    w.last.audit.iter().map(told).collect()
}

fn verified(w: &World) -> Result<(), Broken> {
    let entries = kept(w);
    verify_audit(w.ledger.audit().checkpoint(), &entries)
}

// spec: AUDIT-01
#[test]
fn entries_are_numbered_without_gaps_and_chained_from_zeros() {
    let mut w = World::new();
    w.create("a");
    w.pass(5);
    w.call(append(r#"{"to": "anna"}"#)).unwrap();
    let entries = kept(&w);
    assert_eq!(seqs(&w), [1, 2]);
    assert_eq!(entries[0].prev_hash, "0".repeat(64));
    assert_eq!(entries[1].prev_hash, entries[0].hash);
    assert_eq!(entries[1].at, ZERO.plus(5));
    for entry in &entries {
        assert_eq!(entry.hash, audit_hash(entry));
        assert_eq!(entry.hash.len(), 64);
    }
    // Computed by hand, from the text of the rule.
    let known = AuditEntry {
        seq: 1,
        at: Wall(0),
        source: "a".into(),
        kind: "b".into(),
        actor: "c".into(),
        payload: "{}".into(),
        prev_hash: "0".repeat(64),
        hash: String::new(),
    };
    assert_eq!(audit_hash(&known), KNOWN);
    // Every part of an entry counts.
    let changes: [fn(&mut AuditEntry); 4] = [
        |entry: &mut AuditEntry| entry.at = Wall(1),
        |entry: &mut AuditEntry| entry.actor = "d".into(),
        |entry: &mut AuditEntry| entry.payload = "[]".into(),
        |entry: &mut AuditEntry| (entry.source, entry.kind) = ("ab".into(), String::new()),
    ];
    for change in changes {
        let mut changed = known.clone();
        change(&mut changed);
        assert_ne!(audit_hash(&changed), KNOWN);
    }
}

const KNOWN: &str = "d92beb81a6dc012aa9f80657f25e43ec6bf8799df612ac184b5159bce3208371";

// spec: AUDIT-02, AUDIT-03
#[test]
fn every_call_that_changed_something_is_told_in_its_commit_without_secrets() {
    let mut w = World::new();
    w.create("a");
    assert_eq!(told(&w), [("create_job".to_owned(), json!({"job": "a"}))]);
    assert_eq!(w.last.audit[0].actor, "tester");
    assert_eq!(w.last.audit[0].source, "manager");
    // In the same rows as the change.
    let tables: Vec<&str> = w.last.rows.iter().map(|row| row.table).collect();
    assert!(tables.contains(&"job") && tables.contains(&"audit"));

    let mut changed = job("a");
    changed.description = "hunter2".into();
    w.call(Call::UpdateJob(Box::new(changed.clone()), 0))
        .unwrap();
    let expected = json!({"job": "a", "changed": ["description"]});
    assert_eq!(told(&w), [("update_job".to_owned(), expected)]);
    // What changes nothing, and what is refused, is not told.
    w.call(Call::UpdateJob(Box::new(changed), 0)).unwrap();
    assert!(told(&w).is_empty());
    w.refused(Call::DeleteJob("none".into()));
    assert!(told(&w).is_empty());

    let token = w.slot("n1");
    let payload = &w.last.audit[0].payload;
    assert!(payload.contains("n1") && !payload.contains(&token));
    w.dial_in("n1", "m").unwrap();
    assert_eq!(told(&w)[0].0, "cluster_member_register");
    w.hello("n1", Vec::new());
    let tags = Tags::from([("rack".to_owned(), "hunter2".to_owned())]);
    w.call(Call::SetNodeTags {
        node_id: "n1".into(),
        tags,
        remove: Vec::new(),
        expected_revision: None,
    })
    .unwrap();
    let expected = json!({"node": "n1", "set": ["rack"], "removed": []});
    assert_eq!(told(&w), [("set_node_tags".to_owned(), expected)]);
    let commit = |value: &str| {
        Call::KvCommit(KvCommit {
            namespace: "rota".into(),
            writes: vec![KvWrite::set("k", value.as_bytes())],
            ..KvCommit::default()
        })
    };
    w.call(commit("hunter2")).unwrap();
    let expected = json!({"namespace": "rota", "keys": ["k"]});
    assert_eq!(told(&w), [("kv_commit".to_owned(), expected)]);
    w.call(commit("hunter2")).unwrap();
    assert!(told(&w).is_empty(), "a renewal");
    assert!(
        kept(&w)
            .iter()
            .all(|entry| !entry.payload.contains("hunter2"))
    );

    // A node that ends by itself.
    w.link("n1", Link::Dropped);
    w.link("n1", Link::GraceOver);
    let (kind, payload) = told(&w).remove(0);
    assert_eq!(
        (kind.as_str(), &payload["node"]),
        ("node_stopping", &json!("n1"))
    );
    assert_eq!(w.last.audit[0].actor, "manager");
    // A repeat by request id tells once.
    let before = kept(&w).len();
    for _ in 0..2 {
        w.repeatable(Call::CreateJob(Box::new(job("b"))), "once")
            .unwrap();
    }
    assert_eq!(kept(&w).len(), before + 1);
    assert_eq!(verified(&w), Ok(()));
}

// spec: FAIL-03
#[test]
fn a_verdict_that_is_cleared_leaves_its_reason() {
    let mut w = World::new();
    let failed = |w: &mut World| {
        w.call(Call::MarkJobFailed {
            job_id: "a".into(),
            reason: "no signal".into(),
        })
        .unwrap();
    };
    w.create("a");
    failed(&mut w);
    let mut changed = job("a");
    changed.description = "again".into();
    w.call(Call::UpdateJob(Box::new(changed), 0)).unwrap();
    let cleared = json!({"job": "a", "reason": "no signal", "by": "tester"});
    assert!(told(&w).contains(&("verdict_cleared".to_owned(), cleared.clone())));
    failed(&mut w);
    w.call(Call::DeleteJob("a".into())).unwrap();
    assert!(told(&w).contains(&("verdict_cleared".to_owned(), cleared)));
}

// spec: AUDIT-04
#[test]
fn a_callers_entry_has_a_form() {
    let mut w = World::new();
    let reply = w.call(append("[1]")).unwrap();
    assert_eq!(reply, Reply::AuditSeq(1));
    assert_eq!(kept(&w)[0].actor, "tester");
    let long = "a".repeat(65);
    for (source, kind, payload) in [
        ("", "k", "1"),
        ("Rota", "k", "1"),
        ("manager", "k", "1"),
        (long.as_str(), "k", "1"),
        ("s", "", "1"),
        ("s", "a b", "1"),
        ("s", "k", ""),
        ("s", "k", "{"),
        ("s", "k", &format!("\"{}\"", "x".repeat(64 * 1024))),
    ] {
        let refusal = w.refused(Call::AppendAuditEntry {
            source: source.into(),
            kind: kind.into(),
            payload: payload.into(),
        });
        assert_eq!(
            (refusal.status, refusal.reason.as_str()),
            (Status::InvalidArgument, "bad_audit_entry"),
            "{source} {kind}"
        );
    }
    assert_eq!(seqs(&w), [1]);
}

// spec: AUDIT-07, AUDIT-08
#[test]
fn pruning_takes_a_run_from_the_front_and_the_rest_verifies_from_the_checkpoint() {
    let mut w = World::new();
    // Entry 3 is older than the one before it: the clock was set back.
    for at in [10, 20, 5, 30] {
        w.now = ZERO.plus(at);
        w.call(append("1")).unwrap();
    }
    let future = w.refused(prune(ZERO.plus(31)));
    assert_eq!(future.reason, "bad_timestamp");
    let nothing = Reply::AuditPruned {
        removed: 0,
        checkpoint_seq: 0,
    };
    assert_eq!(w.call(prune(ZERO.plus(10))), Ok(nothing));
    assert!(w.last.rows.is_empty(), "no marker");

    let one = Reply::AuditPruned {
        removed: 1,
        checkpoint_seq: 1,
    };
    // The run ends at entry 2, though entry 3 is older.
    assert_eq!(w.call(prune(ZERO.plus(20))), Ok(one));
    assert_eq!(seqs(&w), [2, 3, 4, 5]);
    let marker = kept(&w).pop().unwrap();
    assert_eq!(
        (marker.kind.as_str(), marker.actor.as_str()),
        ("audit-pruned", "tester")
    );
    assert_eq!(verified(&w), Ok(()));
    let checkpoint = w.ledger.audit().checkpoint().unwrap();
    assert_eq!(
        (checkpoint.seq, checkpoint.count, checkpoint.by.as_str()),
        (1, 1, "tester")
    );

    let all = Reply::AuditPruned {
        removed: 4,
        checkpoint_seq: 5,
    };
    assert_eq!(w.call(prune(Wall(0))), Ok(all));
    assert_eq!(seqs(&w), [6]);
    w.call(append("1")).unwrap();
    assert_eq!(seqs(&w), [6, 7]);
    assert_eq!(verified(&w), Ok(()));
    assert_eq!(w.reload().audit(), w.ledger.audit());
}

// spec: AUDIT-11
#[test]
fn a_full_log_loses_its_oldest_tenth() {
    let mut config = Config::default();
    config.limits.audit_entries = 20;
    let mut w = World::with(config);
    for _ in 0..20 {
        w.call(append("1")).unwrap();
    }
    assert_eq!(seqs(&w).len(), 20);
    w.call(append("1")).unwrap();
    assert_eq!(seqs(&w), (3..=22).collect::<Vec<u64>>());
    let checkpoint = w.ledger.audit().checkpoint().unwrap();
    assert_eq!((checkpoint.seq, checkpoint.by.as_str()), (2, "retention"));
    assert_eq!(verified(&w), Ok(()));
}

// spec: AUDIT-11
#[test]
fn a_log_of_heavy_entries_is_as_limited() {
    let mut config = Config::default();
    config.limits.audit_bytes = 100_000;
    let mut w = World::with(config);
    let heavy = format!("\"{}\"", "x".repeat(20_000));
    for _ in 0..5 {
        w.call(append(&heavy)).unwrap();
        assert!(kept(&w).iter().map(audit_weight).sum::<usize>() <= 100_000);
    }
    // The fifth was too much: the first went, and stands for the oldest tenth.
    assert_eq!(seqs(&w), [2, 3, 4, 5, 6]);
    assert_eq!(verified(&w), Ok(()));
}

// spec: AUDIT-07
#[test]
fn a_prune_is_one_row_and_its_rows_go_with_later_appends() {
    let mut w = World::new();
    for _ in 0..600 {
        w.call(append("1")).unwrap();
    }
    let stored = |w: &World| w.rows.keys().filter(|(table, _)| table == "audit").count();
    w.call(prune(Wall(0))).unwrap();
    // The head, the marker, and a bounded number of removals. That the others count for nothing is
    // what `World` proves by loading the rows after every apply.
    assert_eq!(w.last.rows.len(), 2 + 256);
    assert_eq!((seqs(&w), stored(&w)), (vec![601], 345));
    w.call(append("1")).unwrap();
    w.call(append("1")).unwrap();
    assert_eq!((seqs(&w), stored(&w)), (vec![601, 602, 603], 3));
    assert_eq!(verified(&w), Ok(()));
    // Pruned again before everything is swept.
    for _ in 0..600 {
        w.call(append("1")).unwrap();
    }
    w.call(prune(Wall(0))).unwrap();
    w.call(prune(Wall(0))).unwrap();
    w.call(append("1")).unwrap();
    assert_eq!((seqs(&w), stored(&w)), (vec![1205, 1206], 2));
    assert_eq!(verified(&w), Ok(()));
}

// AUDIT-06 as far as the ledger goes: finding the break, and going on.
#[test]
fn a_break_is_found_at_its_entry_and_the_chain_goes_on_behind_it() {
    let mut w = World::new();
    for _ in 0..3 {
        w.call(append("1")).unwrap();
    }
    // What is stored was changed behind the Manager's back.
    let key = ("audit".to_owned(), format!("{:016x}", 2));
    let row = w.rows.get_mut(&key).unwrap();
    *row = row.replace("handed-over", "never-happened");
    w.ledger = w.reload();
    assert_eq!(verified(&w), Err(Broken { seq: 2 }));
    w.apply(Command::Note {
        kind: "chain_broken".into(),
        payload: json!({"seq": 2}),
    })
    .unwrap();
    let entries = kept(&w);
    assert_eq!(entries[3].prev_hash, entries[2].hash);
    assert_eq!(entries[3].hash, audit_hash(&entries[3]));
}

// spec: BSTOP-02
#[test]
fn a_stop_time_that_came_is_told() {
    let mut w = World::new();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["x"], 1))))
        .unwrap();
    let stop_at = ZERO.plus(1_000);
    w.call(Call::SetBundleStopTime {
        bundle_id: "b".into(),
        stop_at: Some(stop_at),
    })
    .unwrap();
    w.now = stop_at;
    w.apply(Command::Tick(Due::BundleStop {
        bundle_id: "b".into(),
        stop_at,
    }))
    .unwrap();
    assert_eq!(told(&w)[0].0, "bundle_stop_time");
}
