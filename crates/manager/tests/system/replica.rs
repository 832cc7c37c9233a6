//! The access replica, from its publisher to the workers (REPL).

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::replica::AccessReplica;
use greenroom_sdk::{Client, Error};
use greenroom_testkit::{FakeWorker, Received, TestManager, job};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

/// Who grants roles.
struct Publisher {
    kid: String,
    pair: Ed25519KeyPair,
}

// === impl Publisher ===

impl Publisher {
    fn new(kid: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self {
            kid: kid.to_owned(),
            pair: Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap(),
        }
    }

    fn keys(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": x}]})
    }

    fn sign(&self, payload: &Value) -> String {
        let text = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = text(&json!({"alg": "EdDSA", "kid": self.kid}));
        let signed = format!("{header}.{}", text(payload));
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn attestation(&self, version: u64, iat: i64) -> AccessReplica {
        AccessReplica {
            version,
            attestation: self.sign(&json!({"version": version, "iat": iat})),
            ..AccessReplica::default()
        }
    }

    fn version(&self, version: u64, iat: i64) -> AccessReplica {
        let snapshot = self.sign(&json!({"version": version, "grants": []}));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(snapshot.as_bytes()).unwrap();
        AccessReplica {
            snapshot: encoder.finish().unwrap().into(),
            ..self.attestation(version, iat)
        }
    }

    fn first(&self, version: u64, iat: i64) -> AccessReplica {
        AccessReplica {
            keys: vec![self.keys().to_string().into_bytes().into()],
            ..self.version(version, iat)
        }
    }

    fn change(&self, from: u64, to: u64, iat: i64) -> AccessReplica {
        AccessReplica {
            delta: self.sign(&json!({"baseVersion": from, "version": to})),
            base_version: from,
            ..self.version(to, iat)
        }
    }
}

/// What a worker was sent of a version: `whole`, `delta` or `attestation`, in order.
async fn sent(worker: &FakeWorker, version: u64, last: &str) -> Vec<&'static str> {
    let part = |order: &Received| match order {
        Received::Replica(it) if it.version == version => {
            assert!(!it.attestation_jws.is_empty() && !it.keys.is_empty());
            Some(
                match (it.snapshot_jws_gz.is_empty(), it.delta_jws.is_empty()) {
                    (false, _) => "whole",
                    (true, false) => "delta",
                    (true, true) => "attestation",
                },
            )
        }
        _ => None,
    };
    worker
        .wait_order(&format!("{last} of version {version}"), |order| {
            part(order).filter(|it| *it == last)
        })
        .await;
    worker.orders().iter().filter_map(part).collect()
}

async fn reason(client: &Client, replica: AccessReplica) -> String {
    let refused = client.publish_access_replica(replica).await.unwrap_err();
    refused.reason().to_owned()
}

// spec: REPL-01, REPL-02, REPL-04, REPL-05
#[tokio::test]
async fn a_worker_gets_what_it_lacks_now_and_after_a_restart() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let publisher = Publisher::new("a");
    let worker = manager.worker("n").await;
    assert_eq!(
        client.publish_access_replica(publisher.first(3, 100)).await,
        Ok(3)
    );
    assert_eq!(sent(&worker, 3, "whole").await, ["whole"]);
    // Nobody but who holds that very version is sent a delta.
    let other = manager.worker("other").await;
    assert_eq!(sent(&other, 3, "whole").await, ["whole"]);
    worker.claim_replica(3);
    other.claim_replica(2);
    client
        .publish_access_replica(publisher.change(3, 4, 200))
        .await
        .unwrap();
    sent(&worker, 4, "delta").await;
    assert_eq!(sent(&other, 4, "whole").await, ["whole"]);
    client
        .publish_access_replica(publisher.attestation(4, 300))
        .await
        .unwrap();
    sent(&worker, 4, "attestation").await;

    let behind = client
        .publish_access_replica(publisher.version(4, 400))
        .await;
    let Err(Error::FailedPrecondition(behind)) = behind else {
        panic!("{behind:?}");
    };
    assert_eq!(behind.reason, "replica_not_forward");
    assert_eq!(behind.details["stored_version"], Detail::Int(4));
    assert_eq!(
        reason(&client, publisher.attestation(4, 300)).await,
        "replica_not_forward"
    );

    manager.crash().await;
    let late = manager.worker("late").await;
    assert_eq!(sent(&late, 4, "whole").await, ["whole"]);
    worker.wait_greeted(2).await;
    let parts = sent(&worker, 4, "attestation").await;
    assert!(!parts.contains(&"whole"), "it holds the version: {parts:?}");
    // It grants nobody anything, and the Manager asks its own credentials alone.
    manager.client().await.create_job(job("j")).await.unwrap();
}

// spec: REPL-03
#[tokio::test]
async fn form_signatures_and_succession_of_keys_are_checked_before_anything_is_stored() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let (a, b) = (Publisher::new("a"), Publisher::new("b"));
    let bad = "bad_replica";
    assert_eq!(reason(&client, a.version(1, 1)).await, bad, "no keys yet");
    let good = a.first(1, 1);
    let with = |adjust: fn(&mut AccessReplica)| {
        let mut replica = good.clone();
        adjust(&mut replica);
        replica
    };
    for replica in [
        with(|it| it.snapshot = b"plain".into()),
        with(|it| it.attestation.clear()),
        with(|it| it.version = 2),
        with(|it| it.keys = vec![b"{}".into()]),
        with(|it| it.delta = "a.b.c".to_owned()),
        AccessReplica {
            keys: good.keys.clone(),
            ..b.version(1, 1)
        },
        AccessReplica {
            attestation: b.attestation(1, 1).attestation,
            ..good.clone()
        },
    ] {
        assert_eq!(reason(&client, replica).await, bad);
    }
    client.publish_access_replica(good.clone()).await.unwrap();
    // Keys change only by the word of keys that are held.
    assert_eq!(reason(&client, b.first(2, 2)).await, bad);
    let vouched = AccessReplica {
        keys: vec![a.sign(&b.keys()).into_bytes().into()],
        ..b.version(2, 2)
    };
    assert_eq!(client.publish_access_replica(vouched).await, Ok(2));
    assert_eq!(
        reason(&client, a.version(3, 3)).await,
        bad,
        "a key of the past"
    );
    assert_eq!(client.publish_access_replica(b.version(3, 3)).await, Ok(3));
}
