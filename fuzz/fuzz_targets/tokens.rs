//! Tokens of people, slots and nodes, token files, signed tokens, proofs of workers and Managers, and
//! sealed texts.
#![no_main]

use std::sync::LazyLock;

use greenroom_auth::{
    AccessToken, JwtKeys, NodeKey, NonceMemory, Secret, SecretsKey, SlotToken, TokenFile,
    check_node_token,
};
use greenroom_types::{NodeId, Wall};
use libfuzzer_sys::fuzz_target;

const NOW: Wall = Wall(1_767_225_600_000);
/// A public key of which nobody has the private one.
const PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
-----END PUBLIC KEY-----\n";

static KEYS: LazyLock<JwtKeys> =
    LazyLock::new(|| JwtKeys::new("issuer", &[PEM.to_owned()]).expect("a key"));

fuzz_target!(|text: &str| {
    if let Ok(file) = TokenFile::read(text) {
        let _ = format!("{file:?}");
    }
    if let Ok(token) = text.parse::<AccessToken>() {
        assert_eq!(token.expose(), text);
    }
    if let Ok(token) = text.parse::<SlotToken>() {
        assert_eq!(token.expose(), text);
    }
    let _ = JwtKeys::new("issuer", &[text.to_owned()]);
    assert!(
        KEYS.verify(text, "audience", NOW).is_err(),
        "nobody can sign"
    );
    let secret = Secret::new("tier".to_owned());
    if let Some(claim) = check_node_token(text, [&secret]) {
        panic!("{claim:?} was made without its secret");
    }
    let key = NodeKey::from_bytes(&[7; 32]).expect("a key of 32 bytes");
    let node = NodeId::new("n");
    let binding = [9; 32];
    let mut memory = NonceMemory::default();
    assert!(
        key.check_manager(&node, &binding, text, NOW, &mut memory)
            .is_err()
    );
    let proof = key.prove_manager(&node, &binding, NOW);
    assert!(key.check_worker(&node, &binding, &proof, text).is_err());
    let _ = NodeKey::from_hex(text);
    let _ = greenroom_auth::unhex(text);
    if let Some(key) = SecretsKey::from_text(text) {
        let sealed = key.seal("purpose", "secret");
        assert!(key.open("purpose", &sealed).is_some());
    }
    let own = SecretsKey::from_text(&"ab".repeat(32));
    if let Some(own) = own {
        assert!(
            own.open("purpose", text).is_none(),
            "it was not sealed with this key"
        );
    }
});
