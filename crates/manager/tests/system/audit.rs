//! The audit log over the wire.

use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::{AuditPage, AuditQuery, Client, EventGroup, EventSettings};
use greenroom_testkit::{TestManager, Watch, job, within};

use super::security::Guarded;
use super::until_audited;

fn query() -> AuditQuery {
    AuditQuery::default()
}

// spec: AUDIT-03, AUDIT-04, AUDIT-05, AUDIT-07
#[tokio::test]
async fn what_was_done_is_told_newest_first_also_after_a_kill() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    client.create_job(job("a")).await.unwrap();
    let seq = client
        .append_audit_entry("rota", "handed-over", "{}")
        .await
        .unwrap();
    client.delete_job("a").await.unwrap();
    manager.crash().await;
    let client = manager.client().await;
    let page = client.get_audit_log(query()).await.unwrap();
    let kinds: Vec<&str> = page.entries.iter().map(|it| it.kind.as_str()).collect();
    assert_eq!(kinds, ["delete_job", "handed-over", "create_job"]);
    assert_eq!((page.first_seq, page.entries[1].seq), (1, seq));
    assert_eq!(page.entries[0].actor, "loopback");

    let one = AuditQuery {
        limit: 1,
        before_seq: seq + 1,
        ..query()
    };
    assert_eq!(client.get_audit_log(one).await.unwrap().entries[0].seq, seq);
    let rota = AuditQuery {
        source: "rota".to_owned(),
        ..query()
    };
    assert_eq!(client.get_audit_log(rota).await.unwrap().entries.len(), 1);
    let created = AuditQuery {
        kind: "create_job".to_owned(),
        ..query()
    };
    let created = client.get_audit_log(created).await.unwrap().entries;
    assert_eq!(created.len(), 1);
    let before = AuditQuery {
        until: Some(created[0].at),
        ..query()
    };
    assert!(
        client
            .get_audit_log(before)
            .await
            .unwrap()
            .entries
            .is_empty()
    );

    let now = AuditQuery {
        verify: true,
        ..query()
    };
    let page = client.get_audit_log(now.clone()).await.unwrap();
    assert!(page.chain_verified && page.verified_at.is_some());
    assert_eq!((page.broken_at_seq, page.checkpoint), (None, None));
    let pruned = client.prune_audit_log(None).await.unwrap();
    assert_eq!((pruned.removed, pruned.checkpoint_seq), (3, 3));
    let page = client.get_audit_log(now).await.unwrap();
    assert!(page.chain_verified);
    assert_eq!(page.checkpoint.unwrap().seq, 3);
    assert_eq!(
        (page.first_seq, page.entries[0].kind.as_str()),
        (4, "audit-pruned")
    );
}

// spec: AUDIT-09
#[tokio::test]
async fn entries_are_sent_after_their_change_to_those_who_name_them() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let settings = EventSettings {
        include: EventGroup::ALL.to_vec(),
        ..EventSettings::default()
    };
    let mut asked = Watch::begin(manager.client().await, settings).await;
    let mut other = manager.watch().await;
    client.create_job(job("a")).await.unwrap();
    let change = asked.next().await;
    assert!(matches!(change.event, StreamEvent::JobPending(_)));
    let told = asked.next().await;
    let StreamEvent::AuditAppended(entry) = told.event else {
        panic!("{told:?}");
    };
    assert_eq!((entry.kind.as_str(), told.seq), ("create_job", change.seq));
    let page = client.get_audit_log(query()).await.unwrap();
    assert_eq!(page.entries, [entry]);

    client.create_job(job("b")).await.unwrap();
    other.until_job("b", "seen", |_| true).await;
    let is_entry = |event: &StreamEvent| matches!(event, StreamEvent::AuditAppended(_));
    assert!(other.seen().iter().all(|it| !is_entry(&it.event)));
}

/// What the verification of the last start found.
async fn verified_at_start(client: &Client) -> AuditPage {
    within("the chain verified", async {
        loop {
            let page = client.get_audit_log(query()).await.unwrap();
            if page.verified_at.is_some() {
                return page;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Rewrites a stored entry as somebody would who knows the store: its checksum, which stands behind
/// it, is made to fit.
fn rewrite(bytes: &mut [u8], seq: &str, from: &str, to: &str) {
    let find = |bytes: &[u8], text: &[u8]| {
        let mut places = bytes.windows(text.len());
        places.position(|place| place == text)
    };
    let key = format!("audit{seq}{{");
    let value = find(bytes, key.as_bytes()).expect("the row") + key.len() - 1;
    let length = find(&bytes[value..], b"}}").expect("the end of the row") + 2;
    let (row, behind) = bytes[value..].split_at_mut(length);
    let sum = |row: &[u8]| checksum(&[b"audit", seq.as_bytes(), row]).to_be_bytes();
    assert_eq!(behind[..8], sum(row), "the checksum stands behind the row");
    let at = find(row, from.as_bytes()).expect("the text");
    row[at..at + to.len()].copy_from_slice(to.as_bytes());
    behind[..8].copy_from_slice(&sum(row));
}

/// The checksum of the store's rows.
fn checksum(parts: &[&[u8]]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    sum
}

// spec: AUDIT-06
#[tokio::test]
async fn a_break_is_told_and_stops_nothing() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    for _ in 0..3 {
        let appended = client.append_audit_entry("rota", "handed-over", r#"{"to":"anna"}"#);
        appended.await.unwrap();
    }
    manager.restart().await;
    let client = manager.client().await;
    let page = verified_at_start(&client).await;
    assert!(page.chain_verified && page.broken_at_seq.is_none());

    manager.end().await;
    let path = manager.data_dir().join("state.db");
    let mut bytes = std::fs::read(&path).unwrap();
    rewrite(&mut bytes, "0000000000000002", "anna", "otto");
    std::fs::write(&path, bytes).unwrap();

    manager.run().await;
    let client = manager.client().await;
    let page = verified_at_start(&client).await;
    assert_eq!((page.chain_verified, page.broken_at_seq), (false, Some(2)));
    // It goes on behind the break.
    let seq = client
        .append_audit_entry("rota", "handed-over", "{}")
        .await
        .unwrap();
    let told = until_audited(&client, "chain_broken", 1).await;
    assert_eq!((told.payload.as_str(), seq >= 4), (r#"{"seq":2}"#, true));
}

// spec: HARDM-34
#[tokio::test]
async fn pruning_while_others_append_loses_no_entry() {
    let mut manager = TestManager::start().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4 {
        let client = manager.client().await;
        tasks.spawn(async move {
            let mut seqs = Vec::new();
            for _ in 0..50 {
                let payload = number.to_string();
                let appended = client.append_audit_entry("rota", "tick", payload).await;
                seqs.push(appended.unwrap());
            }
            seqs
        });
    }
    let client = manager.client().await;
    let mut seqs = Vec::new();
    while !tasks.is_empty() {
        client.prune_audit_log(None).await.unwrap();
        while let Some(done) = tasks.try_join_next() {
            seqs.extend(done.unwrap());
        }
    }
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), 200, "a number of its own for every append");
    let now = AuditQuery {
        verify: true,
        limit: 1_000,
        ..query()
    };
    let page = client.get_audit_log(now.clone()).await.unwrap();
    assert!(page.chain_verified);

    // Killed in the middle of a prune.
    for _ in 0..20 {
        let appended = client.append_audit_entry("rota", "tick", "0");
        appended.await.unwrap();
    }
    let last = client.get_audit_log(query()).await.unwrap().entries[0].seq;
    let pruning = tokio::spawn(async move { client.prune_audit_log(None).await });
    manager.crash().await;
    pruning.abort();
    let client = manager.client().await;
    let page = client.get_audit_log(now).await.unwrap();
    assert!(page.chain_verified);
    let (newest, checkpoint) = (page.entries[0].seq, page.checkpoint.unwrap().seq);
    let is_none = newest == last && checkpoint < last - 20;
    let is_all = newest == last + 1 && checkpoint == last;
    assert!(is_none || is_all, "{newest} {checkpoint} {last}");
    let seqs: Vec<u64> = page.entries.iter().rev().map(|it| it.seq).collect();
    assert_eq!(seqs, (checkpoint + 1..=newest).collect::<Vec<u64>>());
}

// spec: AUDIT-05
#[tokio::test]
async fn an_answer_of_heavy_entries_is_bounded_and_pages_go_on() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let heavy = format!("\"{}\"", "x".repeat(60_000));
    for _ in 0..40 {
        client
            .append_audit_entry("rota", "heavy", heavy.as_str())
            .await
            .unwrap();
    }
    let all = |before_seq| AuditQuery {
        limit: 1_000,
        before_seq,
        ..query()
    };
    let first = client.get_audit_log(all(0)).await.unwrap().entries;
    assert!((1..40).contains(&first.len()), "{}", first.len());
    let before = first.last().unwrap().seq;
    let rest = client.get_audit_log(all(before)).await.unwrap().entries;
    assert_eq!((first.len() + rest.len(), rest[0].seq), (40, before - 1));
}

// spec: SEC-17
#[tokio::test]
async fn who_calls_is_what_the_credential_proves_and_by_is_what_the_caller_says() {
    let guarded = Guarded::start().await;
    let admin = guarded.manager.client().await;
    admin.pause_leases("switch", "ana").await.unwrap();
    let entry = until_audited(&admin, "pause_leases", 1).await;
    assert_eq!(entry.actor, "loopback");
    let payload: serde_json::Value = serde_json::from_str(&entry.payload).unwrap();
    assert_eq!(payload["by"], "ana");

    let operator = guarded.with(&guarded.operator).await;
    operator.create_job(job("a")).await.unwrap();
    let entry = until_audited(&admin, "create_job", 1).await;
    assert_eq!(entry.actor, "otto");
}
