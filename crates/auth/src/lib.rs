//! Who is speaking: proofs between Manager and worker by a key that both hold, slot tokens, and the
//! secret type that never prints itself.
//!
//! It deliberately opens no connection and stores nothing; the callers hold keys and clocks.

mod proof;
mod secret;
mod token;

pub use proof::{ManagerProof, NodeKey, NonceMemory, PROOF_METADATA, ProofError};
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

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok())
        .collect()
}
