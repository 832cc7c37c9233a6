//! The two sides of a controlling stream prove that they hold the node's key, without sending it
//! (SEC-05).
//!
//! The Manager speaks first, in the metadata of the call: node id, a fresh nonce, its wall time and
//! an HMAC-SHA256 over them. The worker answers in `WorkerHello.shared_secret` with an HMAC over the
//! Manager's nonce. The two HMACs are over different words, so that neither can be played back as
//! the other. Both are also over the binding of the TLS session that they are sent in, which is not
//! sent: whoever passes them on from one session to another has a proof of nothing.

use std::collections::BTreeMap;

use greenroom_types::{NodeId, Wall};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{hex, random, unhex};

/// Key of the call metadata in which the Manager proves itself.
pub const PROOF_METADATA: &str = "greenroom-manager-proof";

/// Clocks may differ by this much, in milliseconds (SEC-05).
const SKEW_MS: i64 = 5 * 60 * 1000;
/// A nonce is remembered for this long, in milliseconds (SEC-05).
const MEMORY_MS: i64 = 10 * 60 * 1000;
/// Bound on remembered nonces; proofs beyond it are refused until old ones age out.
const MEMORY_MAX: usize = 10_000;

/// What both ends of one TLS session know and nobody else does (RFC 9266).
type Binding = [u8; 32];

/// 256 bits that only the Manager and one node hold. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey([u8; 32]);

/// What a Manager sends to prove itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerProof {
    nonce: String,
    text: String,
}

/// Why a proof does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// It is not of the form that this version reads.
    #[error("the proof is malformed")]
    Malformed,
    /// It is about another node.
    #[error("the proof is for another node")]
    OtherNode,
    /// Its time is too far from ours.
    #[error("the proof is more than 5 minutes old or ahead; check the clocks")]
    Skew,
    /// It was made without the node's key.
    #[error("the proof was made with another key")]
    WrongKey,
    /// It was seen before.
    #[error("the proof was used before")]
    Replayed,
}

/// Nonces seen lately, so that a recorded proof opens nothing.
#[derive(Debug, Default)]
pub struct NonceMemory(BTreeMap<String, Wall>);

// === impl NodeKey ===

impl NodeKey {
    /// A fresh key.
    pub fn generate() -> Self {
        Self(random())
    }

    /// The key of these bytes; none unless there are 32.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The key in hexadecimal text, for the record that keeps it. Secret.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// The key of that text; none unless it is 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        Self::from_bytes(&unhex(text)?)
    }

    /// The bytes, for the one answer that hands the key over and for the file that keeps it.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The Manager's proof for a node, in one TLS session.
    pub fn prove_manager(&self, node_id: &NodeId, binding: &Binding, now: Wall) -> ManagerProof {
        let nonce = hex(&random::<16>());
        let at = now.0.to_string();
        let mac = self.mac(binding, &["manager", node_id.as_str(), &nonce, &at]);
        let text = format!("v1 {node_id} {nonce} {} {}", now.0, hex(&mac));
        ManagerProof { nonce, text }
    }

    /// Checks a Manager's proof and gives back its nonce, to be answered.
    pub fn check_manager(
        &self,
        node_id: &NodeId,
        binding: &Binding,
        text: &str,
        now: Wall,
        memory: &mut NonceMemory,
    ) -> Result<String, ProofError> {
        let parts: Vec<&str> = text.split(' ').collect();
        let ["v1", claimed, nonce, at, mac] = parts[..] else {
            return Err(ProofError::Malformed);
        };
        let sent: i64 = at.parse().map_err(|_| ProofError::Malformed)?;
        if nonce.len() != 32 {
            return Err(ProofError::Malformed);
        }
        if claimed != node_id.as_str() {
            return Err(ProofError::OtherNode);
        }
        self.verify(binding, &["manager", claimed, nonce, at], mac)?;
        if now.since(Wall(sent)).abs() > SKEW_MS {
            return Err(ProofError::Skew);
        }
        memory.admit(nonce, now)?;
        Ok(nonce.to_owned())
    }

    /// The worker's answer to a nonce, for `WorkerHello.shared_secret`.
    pub fn prove_worker(&self, node_id: &NodeId, binding: &Binding, nonce: &str) -> String {
        let mac = self.mac(binding, &["worker", node_id.as_str(), nonce]);
        format!("v1:{}", hex(&mac))
    }

    /// Checks a worker's answer.
    pub fn check_worker(
        &self,
        node_id: &NodeId,
        binding: &Binding,
        proof: &ManagerProof,
        answer: &str,
    ) -> Result<(), ProofError> {
        let mac = answer.strip_prefix("v1:").ok_or(ProofError::Malformed)?;
        self.verify(binding, &["worker", node_id.as_str(), &proof.nonce], mac)
    }

    /// Checks the secret of a worker of the published protocol, which says the key's hexadecimal text as it
    /// is (WORK-04). The time that it takes does not tell how much of it was right.
    pub fn check_published(&self, secret: &str) -> Result<(), ProofError> {
        let said = unhex(secret).ok_or(ProofError::Malformed)?;
        let mac = |bytes: &[u8]| {
            let mut mac = self.keyed(&Binding::default(), &["published"]);
            mac.update(bytes);
            mac
        };
        let expected = mac(&self.0).finalize().into_bytes();
        mac(&said)
            .verify_slice(&expected)
            .map_err(|_| ProofError::WrongKey)
    }

    fn keyed(&self, binding: &Binding, words: &[&str]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any key length is allowed");
        mac.update(binding);
        for word in words {
            mac.update(&(word.len() as u64).to_be_bytes());
            mac.update(word.as_bytes());
        }
        mac
    }

    fn mac(&self, binding: &Binding, words: &[&str]) -> Vec<u8> {
        self.keyed(binding, words).finalize().into_bytes().to_vec()
    }

    fn verify(&self, binding: &Binding, words: &[&str], mac: &str) -> Result<(), ProofError> {
        let mac = unhex(mac).ok_or(ProofError::Malformed)?;
        self.keyed(binding, words)
            .verify_slice(&mac)
            .map_err(|_| ProofError::WrongKey)
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(***)")
    }
}

// === impl ManagerProof ===

impl ManagerProof {
    /// The value of the metadata key [`PROOF_METADATA`].
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

// === impl NonceMemory ===

impl NonceMemory {
    fn admit(&mut self, nonce: &str, now: Wall) -> Result<(), ProofError> {
        self.0.retain(|_, seen| now.since(*seen).abs() < MEMORY_MS);
        if self.0.len() >= MEMORY_MAX || self.0.contains_key(nonce) {
            return Err(ProofError::Replayed);
        }
        self.0.insert(nonce.to_owned(), now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Binding = [1; 32];
    const ELSEWHERE: Binding = [2; 32];

    // spec: WORK-04
    #[test]
    fn a_worker_of_the_published_protocol_says_the_key_itself() {
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        assert_eq!(key.check_published(&key.to_hex()), Ok(()));
        for (secret, error) in [
            (other.to_hex(), ProofError::WrongKey),
            (key.to_hex()[..62].to_owned(), ProofError::WrongKey),
            (String::new(), ProofError::WrongKey),
            ("secret".to_owned(), ProofError::Malformed),
            (format!("v1:{}", key.to_hex()), ProofError::Malformed),
        ] {
            assert_eq!(key.check_published(&secret), Err(error), "{secret:?}");
        }
    }

    // spec: SEC-05
    #[test]
    fn both_sides_prove_the_key_and_neither_proof_works_twice_or_elsewhere() {
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        let (node, now) = (NodeId::new("n1"), Wall(1_800_000_000_000));
        let mut memory = NonceMemory::default();
        let proof = key.prove_manager(&node, &HERE, now);
        let text = proof.as_str();
        let nonce = key
            .check_manager(&node, &HERE, text, now, &mut memory)
            .unwrap();
        let again = key.check_manager(&node, &HERE, text, now, &mut memory);
        assert_eq!(again, Err(ProofError::Replayed));

        let mut fresh = NonceMemory::default();
        let mut check = |key: &NodeKey, node: &str, binding, text: &str, now| {
            let node = NodeId::new(node);
            let checked = key.check_manager(&node, binding, text, now, &mut fresh);
            checked.unwrap_err()
        };
        let late = now.plus(SKEW_MS + 1);
        assert_eq!(check(&other, "n1", &HERE, text, now), ProofError::WrongKey);
        assert_eq!(
            check(&key, "n1", &ELSEWHERE, text, now),
            ProofError::WrongKey
        );
        assert_eq!(check(&key, "n2", &HERE, text, now), ProofError::OtherNode);
        assert_eq!(check(&key, "n1", &HERE, text, late), ProofError::Skew);
        assert_eq!(
            check(&key, "n1", &HERE, "v1 n1 x", now),
            ProofError::Malformed
        );
        // Five minutes are not too much, and within ten the nonce is not forgotten.
        let mut memory = NonceMemory::default();
        let edge = now.plus(SKEW_MS);
        key.check_manager(&node, &HERE, text, edge, &mut memory)
            .unwrap();
        let again = key.check_manager(&node, &HERE, text, now.plus(1 - SKEW_MS), &mut memory);
        assert_eq!(again, Err(ProofError::Replayed));

        assert_eq!(NodeKey::from_hex(&key.to_hex()), Some(key.clone()));
        let answer = key.prove_worker(&node, &HERE, &nonce);
        let check = |key: &NodeKey, binding, proof: &ManagerProof| {
            key.check_worker(&node, binding, proof, &answer)
        };
        assert_eq!(check(&key, &HERE, &proof), Ok(()));
        let second = key.prove_manager(&node, &HERE, now);
        assert_eq!(check(&key, &HERE, &second), Err(ProofError::WrongKey));
        assert_eq!(check(&key, &ELSEWHERE, &proof), Err(ProofError::WrongKey));
        assert_eq!(check(&other, &HERE, &proof), Err(ProofError::WrongKey));
    }
}
