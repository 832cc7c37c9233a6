//! Who is speaking and what they may do: proofs between Manager and worker by a key that both hold,
//! tokens of people and programs, roles, slot tokens, tokens of the discovery fleet, signed access
//! roles, secrets sealed for the disk, and the secret type that never prints itself.
//!
//! It deliberately opens no connection and stores nothing; the callers hold files and clocks.

mod access;
mod discovery;
mod jws;
mod jwt;
mod proof;
mod replica;
mod role;
mod seal;
mod secret;
mod token;

pub use access::{AccessToken, TokenEntry, TokenFile, TokenFileError};
pub use discovery::{NodeClaim, check_node_token, node_token};
pub use jws::{JwsError, KeySet, follow_keys};
pub use jwt::{JwtError, JwtKeys};
pub use proof::{ManagerProof, NodeKey, NonceMemory, PROOF_METADATA, ProofError};
pub use replica::{REPLICA_MAX, Replica, ReplicaError, ReplicaParts, read_replica};
pub use role::{Principal, Role};
pub use seal::{SEALED, SecretsKey};
pub use secret::Secret;
pub use token::SlotToken;

/// Random bytes from the operating system.
///
/// # Panics
/// When the operating system has no randomness to give; nothing safe can follow then.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// Lower-case hexadecimal text.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The bytes of hexadecimal text.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok())
        .collect()
}
