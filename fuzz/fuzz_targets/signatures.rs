//! JWK Sets, JWS, and the parts of access replicas.
#![no_main]

use greenroom_auth::{KeySet, ReplicaParts, follow_keys, read_replica};
use greenroom_fuzz::pieces;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let pieces = pieces(input);
    let sets: Vec<&[u8]> = pieces
        .iter()
        .filter(|(tag, _)| tag % 2 == 0)
        .map(|(_, bytes)| *bytes)
        .collect();
    let texts: Vec<&[u8]> = pieces
        .iter()
        .filter(|(tag, _)| tag % 2 == 1)
        .map(|(_, bytes)| *bytes)
        .collect();
    let text = |number: usize| {
        let bytes = texts.get(number).copied().unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    };
    let held = sets.first().and_then(|set| KeySet::read(set).ok());
    let _ = follow_keys(held.as_ref(), &sets);
    let Some(keys) = held else { return };
    let _ = keys.open(text(0));
    let parts = ReplicaParts {
        snapshot: texts.get(1).copied().unwrap_or_default(),
        delta: text(2),
        attestation: text(0),
    };
    let _ = read_replica(&keys, parts);
});
