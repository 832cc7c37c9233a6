//! The two sides of a controlling stream prove that they hold the node's key, without sending it
//! (SEC-05).
//!
//! The Manager speaks first, in the metadata of the call: node id, a fresh nonce, its wall time and
//! an HMAC-SHA256 over them. The worker answers in `WorkerHello.shared_secret` with an HMAC over the
//! Manager's nonce. The two HMACs are over different words, so that neither can be played back as
//! the other.

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

    /// The Manager's proof for a node.
    pub fn prove_manager(&self, node_id: &NodeId, now: Wall) -> ManagerProof {
        let nonce = hex(&random::<16>());
        let mac = self.mac(&["manager", node_id.as_str(), &nonce, &now.0.to_string()]);
        let text = format!("v1 {node_id} {nonce} {} {}", now.0, hex(&mac));
        ManagerProof { nonce, text }
    }

    /// Checks a Manager's proof and gives back its nonce, to be answered.
    pub fn check_manager(
        &self,
        node_id: &NodeId,
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
        self.verify(&["manager", claimed, nonce, at], mac)?;
        if now.since(Wall(sent)).abs() > SKEW_MS {
            return Err(ProofError::Skew);
        }
        memory.admit(nonce, now)?;
        Ok(nonce.to_owned())
    }

    /// The worker's answer to a nonce, for `WorkerHello.shared_secret`.
    pub fn prove_worker(&self, node_id: &NodeId, nonce: &str) -> String {
        format!(
            "v1:{}",
            hex(&self.mac(&["worker", node_id.as_str(), nonce]))
        )
    }

    /// Checks a worker's answer.
    pub fn check_worker(
        &self,
        node_id: &NodeId,
        proof: &ManagerProof,
        answer: &str,
    ) -> Result<(), ProofError> {
        let mac = answer.strip_prefix("v1:").ok_or(ProofError::Malformed)?;
        self.verify(&["worker", node_id.as_str(), &proof.nonce], mac)
    }

    fn keyed(&self, words: &[&str]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any key length is allowed");
        for word in words {
            mac.update(&(word.len() as u64).to_be_bytes());
            mac.update(word.as_bytes());
        }
        mac
    }

    fn mac(&self, words: &[&str]) -> Vec<u8> {
        self.keyed(words).finalize().into_bytes().to_vec()
    }

    fn verify(&self, words: &[&str], mac: &str) -> Result<(), ProofError> {
        let mac = unhex(mac).ok_or(ProofError::Malformed)?;
        self.keyed(words)
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

    #[test]
    fn both_sides_prove_the_key_and_neither_proof_works_twice_or_elsewhere() {
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        let (node, now) = (NodeId::new("n1"), Wall(1_800_000_000_000));
        let mut memory = NonceMemory::default();
        let proof = key.prove_manager(&node, now);
        let nonce = key
            .check_manager(&node, proof.as_str(), now, &mut memory)
            .unwrap();
        assert_eq!(
            key.check_manager(&node, proof.as_str(), now, &mut memory),
            Err(ProofError::Replayed)
        );
        let mut fresh = NonceMemory::default();
        let check = |key: &NodeKey, node: &str, text: &str, now, memory: &mut NonceMemory| {
            key.check_manager(&NodeId::new(node), text, now, memory)
                .unwrap_err()
        };
        assert_eq!(
            check(&other, "n1", proof.as_str(), now, &mut fresh),
            ProofError::WrongKey
        );
        assert_eq!(
            check(&key, "n2", proof.as_str(), now, &mut fresh),
            ProofError::OtherNode
        );
        assert_eq!(
            check(
                &key,
                "n1",
                proof.as_str(),
                now.plus(SKEW_MS + 1),
                &mut fresh
            ),
            ProofError::Skew
        );
        assert_eq!(
            check(&key, "n1", "v1 n1 x", now, &mut fresh),
            ProofError::Malformed
        );

        assert_eq!(NodeKey::from_hex(&key.to_hex()), Some(key.clone()));
        let answer = key.prove_worker(&node, &nonce);
        assert_eq!(key.check_worker(&node, &proof, &answer), Ok(()));
        assert_eq!(
            key.check_worker(&node, &key.prove_manager(&node, now), &answer),
            Err(ProofError::WrongKey)
        );
        assert_eq!(
            other.check_worker(&node, &proof, &answer),
            Err(ProofError::WrongKey)
        );
    }
}
