//! The key/value store over the wire.

use greenroom_sdk::proto::manager::{KvCommitRequest, KvListRequest, KvWrite as WireWrite};
use greenroom_sdk::types::call::{Call, Detail, Reply};
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::{CallOptions, Error};
use greenroom_testkit::TestManager;

use super::security::Guarded;

fn commit(writes: Vec<KvWrite>) -> KvCommit {
    KvCommit {
        namespace: "rota".to_owned(),
        writes,
        ..KvCommit::default()
    }
}

// spec: KV-01, KV-02, KV-07
#[tokio::test]
async fn what_was_committed_is_read_back_also_after_a_kill() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    assert_eq!(client.kv_get("rota", "a").await, Ok(None));
    let empty = client.kv_list("rota", "").await.unwrap();
    assert_eq!((empty.entries.len(), empty.schema_version), (0, 0));

    let writes = vec![
        KvWrite::set("a", *b"\x00\xffbytes"),
        KvWrite::set("b", *b""),
    ];
    let both = KvCommit {
        set_schema_version: Some(3),
        ..commit(writes)
    };
    assert_eq!(client.kv_commit(both).await, Ok(1));
    // A read that begins after the answer sees the commit.
    let a = client.kv_get("rota", "a").await.unwrap().unwrap();
    assert_eq!((&*a.value, a.revision), (&b"\x00\xffbytes"[..], 1));
    client
        .kv_commit(commit(vec![KvWrite::delete("b").expecting(1)]))
        .await
        .unwrap();

    manager.crash().await;
    let client = manager.client().await;
    let list = client.kv_list("rota", "").await.unwrap();
    assert_eq!((list.entries, list.schema_version), (vec![a], 3));
    let next = commit(vec![KvWrite::set("b", *b"x").expecting(0)]);
    assert_eq!(client.kv_commit(next).await, Ok(3));
}

// spec: KV-03, KV-08, HARDM-54
#[tokio::test]
async fn two_commits_that_expect_the_same_revision_do_not_both_win() {
    let manager = TestManager::start().await;
    let (one, two) = (manager.client().await, manager.client().await);
    let claim = |who: &[u8]| commit(vec![KvWrite::set("lock", who).expecting(0)]);
    let (one, two) = tokio::join!(one.kv_commit(claim(b"1")), two.kv_commit(claim(b"2")));
    let (won, lost) = match (one, two) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        other => panic!("{other:?}"),
    };
    assert_eq!(won, 1);
    assert!(matches!(lost, Error::FailedPrecondition(_)), "{lost:?}");
    let refused = lost.refused().unwrap();
    assert_eq!(refused.reason, "revision_mismatch");
    assert_eq!(refused.details["key"], Detail::from("lock"));
    assert_eq!(refused.details["actual"], Detail::Int(1));

    let client = manager.client().await;
    let own = client.kv_get("sys-cluster", "a").await.unwrap_err();
    assert!(matches!(own, Error::PermissionDenied(_)), "{own:?}");
    assert_eq!(own.reason(), "reserved_namespace");
    let bad = client.kv_get("rota", "").await.unwrap_err();
    assert_eq!(bad.reason(), "bad_kv");
}

// spec: KV-01, API-23
#[tokio::test]
async fn a_long_list_comes_in_pages_of_one_state() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    // Pages are bounded by bytes too: three values of a MiB do not fit in one.
    for key in ["p/1", "p/2", "p/3"] {
        let write = KvWrite::set(key, vec![7; 1024 * 1024]);
        client.kv_commit(commit(vec![write])).await.unwrap();
    }
    let mut raw = client.raw().unwrap();
    let ask = |page_token: String| KvListRequest {
        namespace: "rota".to_owned(),
        key_prefix: "p/".to_owned(),
        page_token,
        ..KvListRequest::default()
    };
    let first = raw.kv_list(ask(String::new())).await.unwrap().into_inner();
    assert!(first.entries.len() < 3 && !first.next_page_token.is_empty());
    let all_gone = ["p/1", "p/2", "p/3"].map(KvWrite::delete).to_vec();
    client.kv_commit(commit(all_gone)).await.unwrap();
    let mut keys: Vec<String> = first.entries.into_iter().map(|it| it.key).collect();
    let mut token = first.next_page_token;
    while !token.is_empty() {
        let page = raw.kv_list(ask(token)).await.unwrap().into_inner();
        keys.extend(page.entries.into_iter().map(|it| it.key));
        token = page.next_page_token;
    }
    assert_eq!(keys, ["p/1", "p/2", "p/3"]);
    let now = client.kv_list("rota", "p/").await.unwrap();
    assert!(now.entries.is_empty());
}

// spec: API-07, KV-02
#[tokio::test]
async fn a_commit_that_is_repeated_under_its_request_id_happens_once() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let call = || Call::KvCommit(commit(vec![KvWrite::set("n", *b"1").expecting(0)]));
    let options = || CallOptions {
        request_id: Some("once".to_owned()),
        ..CallOptions::default()
    };
    for _ in 0..2 {
        let reply = client.call_with(call(), options()).await;
        assert_eq!(reply, Ok(Reply::KvRevision(1)));
    }
}

// spec: KV-06
#[tokio::test]
async fn a_value_above_its_limit_is_refused_by_name() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut raw = client.raw().unwrap();
    let refused = raw
        .kv_commit(KvCommitRequest {
            namespace: "rota".to_owned(),
            writes: vec![WireWrite {
                key: "a".to_owned(),
                value: vec![0; 1024 * 1024 + 1],
                ..WireWrite::default()
            }],
            ..KvCommitRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(
        refused.metadata().get("greenroom-reason").unwrap(),
        "bad_kv"
    );
}

// spec: KV-09
#[tokio::test]
async fn namespaces_that_are_kept_for_admins_are_neither_read_nor_written_by_others() {
    let guarded = Guarded::start_with(|settings| {
        settings.kv_admin_namespaces = ["keys".to_owned()].into();
    })
    .await;
    let operator = guarded.with(&guarded.operator).await;
    let admin = guarded.manager.client().await;
    let keys = |writes| KvCommit {
        namespace: "keys".to_owned(),
        ..commit(writes)
    };
    admin
        .kv_commit(keys(vec![KvWrite::set("a", *b"x")]))
        .await
        .unwrap();
    let refused = [
        operator.kv_get("keys", "a").await.map(drop),
        operator.kv_list("keys", "").await.map(drop),
        operator
            .kv_commit(keys(vec![KvWrite::delete("a")]))
            .await
            .map(drop),
    ];
    for outcome in refused {
        let Err(Error::PermissionDenied(refusal)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(refusal.reason, "role_required");
        assert_eq!(refusal.details["role"], Detail::Text("admin".to_owned()));
    }
    let kept = admin.kv_get("keys", "a").await.unwrap();
    assert_eq!(&*kept.expect("the key").value, b"x");

    // Any other namespace is an operator's; a viewer has none.
    operator
        .kv_commit(commit(vec![KvWrite::set("a", *b"x")]))
        .await
        .unwrap();
    let viewer = guarded.with(&guarded.viewer).await;
    let outcome = viewer.kv_get("rota", "a").await;
    assert!(
        matches!(outcome, Err(Error::PermissionDenied(_))),
        "{outcome:?}"
    );
}
