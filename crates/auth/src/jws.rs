//! Signed texts in compact form (JWS) and the public keys that sign them: EdDSA on Ed25519 and ES256,
//! nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use greenroom_types::ByName;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey};
use serde::Deserialize;

/// Keys of one set.
const KEYS_MAX: usize = 32;
/// Longest key set in bytes.
const SET_MAX: usize = 64 * 1024;
/// Key sets followed at once.
const SETS_MAX: usize = 32;

/// Why a signed text or a key set is not taken. Says nothing of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    /// It is no JWS in compact form.
    #[error("it is no JWS in compact form")]
    Form,
    /// It is signed in another way.
    #[error("its algorithm is neither EdDSA nor ES256, or not that of its key")]
    Algorithm,
    /// Its key is not among those held.
    #[error("it names no key, or one that is not held")]
    Key,
    /// The signature does not fit.
    #[error("its signature does not fit")]
    Signature,
    /// A set of keys is none.
    #[error(
        "keys must be a JWK Set of 1 to 32 public keys of Ed25519 or P-256, each with a kid of its own"
    )]
    Keys,
    /// Keys do not follow from those held.
    #[error("the new keys are not signed by a key that is held")]
    Succession,
}

/// Public keys by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    kid: String,
    kind: Kind,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ed25519,
    P256,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    kid: String,
    x: String,
    y: Option<String>,
    d: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<ByName<Jwk>>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
}

// === impl KeySet ===

impl KeySet {
    /// Reads a JWK Set.
    ///
    /// # Errors
    /// It is none, or holds a private key.
    pub fn read(json: &[u8]) -> Result<Self, JwsError> {
        if json.len() > SET_MAX {
            return Err(JwsError::Keys);
        }
        let ByName(set): ByName<Jwks> = serde_json::from_slice(json).map_err(|_| JwsError::Keys)?;
        if !(1..=KEYS_MAX).contains(&set.keys.len()) {
            return Err(JwsError::Keys);
        }
        let mut keys: Vec<Key> = Vec::new();
        for ByName(jwk) in set.keys {
            let key = Key::read(&jwk).ok_or(JwsError::Keys)?;
            if keys.iter().any(|other| other.kid == key.kid) {
                return Err(JwsError::Keys);
            }
            keys.push(key);
        }
        Ok(Self(keys))
    }

    /// The payload of a text that one of these keys signed.
    ///
    /// # Errors
    /// As [`JwsError`] says.
    pub fn open(&self, jws: &str) -> Result<Vec<u8>, JwsError> {
        let (signed, signature) = jws.rsplit_once('.').ok_or(JwsError::Form)?;
        let (header, payload) = signed.split_once('.').ok_or(JwsError::Form)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| JwsError::Form);
        let ByName(header): ByName<Header> =
            serde_json::from_slice(&decode(header)?).map_err(|_| JwsError::Form)?;
        let payload = decode(payload)?;
        let signature = decode(signature)?;
        // What must be understood and is not: nobody here understands any of it.
        if header.crit.is_some() {
            return Err(JwsError::Form);
        }
        let wanted = match header.alg.as_str() {
            "EdDSA" => Kind::Ed25519,
            "ES256" => Kind::P256,
            _ => return Err(JwsError::Algorithm),
        };
        let kid = header.kid.ok_or(JwsError::Key)?;
        let key = self.0.iter().find(|key| key.kid == kid);
        let key = key.ok_or(JwsError::Key)?;
        if key.kind != wanted {
            return Err(JwsError::Algorithm);
        }
        let checked = match key.kind {
            Kind::Ed25519 => UnparsedPublicKey::new(&ED25519, &key.bytes),
            Kind::P256 => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.bytes),
        }
        .verify(signed.as_bytes(), &signature);
        checked.map_err(|_| JwsError::Signature)?;
        Ok(payload)
    }
}

// === impl Key ===

impl Key {
    fn read(jwk: &Jwk) -> Option<Self> {
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let named = (1..=128).contains(&jwk.kid.len());
        if !named || jwk.d.is_some() {
            return None;
        }
        let x = decode(&jwk.x).filter(|x| x.len() == 32)?;
        let (kind, bytes) = match (jwk.kty.as_str(), jwk.crv.as_str(), &jwk.y) {
            ("OKP", "Ed25519", _) => (Kind::Ed25519, x),
            ("EC", "P-256", Some(y)) => {
                let y = decode(y).filter(|y| y.len() == 32)?;
                (Kind::P256, [&[4], &x[..], &y[..]].concat())
            }
            _ => return None,
        };
        Some(Self {
            kid: jwk.kid.clone(),
            kind,
            bytes,
        })
    }
}

/// Follows key sets in the order of their succession: each is a JWK Set, or a JWS over one by a key of
/// the set before. Where none are held the first is taken as it is. Gives the keys in force and how
/// many of the offered sets lead up to those held, so that the rest is new.
///
/// # Errors
/// A set is none, or does not follow (REPL-03).
pub fn follow_keys(
    held: Option<&KeySet>,
    offered: &[impl AsRef<[u8]>],
) -> Result<(KeySet, usize), JwsError> {
    if offered.len() > SETS_MAX {
        return Err(JwsError::Keys);
    }
    // What the offered sets are, whoever signed them, to find the one that is held.
    let inner: Vec<KeySet> = offered
        .iter()
        .map(|set| unsigned(set.as_ref()))
        .collect::<Result<_, _>>()?;
    let (mut in_force, mut next) = match held {
        None => (inner.first().ok_or(JwsError::Keys)?.clone(), 1),
        Some(held) => {
            let known = inner.iter().rposition(|set| set == held);
            (held.clone(), known.map_or(0, |at| at + 1))
        }
    };
    let known = match held {
        None => 0,
        Some(_) => next,
    };
    while next < offered.len() {
        let text = std::str::from_utf8(offered[next].as_ref()).map_err(|_| JwsError::Keys)?;
        if text.trim_start().starts_with('{') {
            return Err(JwsError::Succession);
        }
        let set = in_force
            .open(text.trim())
            .map_err(|_| JwsError::Succession)?;
        in_force = KeySet::read(&set)?;
        next += 1;
    }
    Ok((in_force, known))
}

/// The keys of a set without a look at its signature.
fn unsigned(set: &[u8]) -> Result<KeySet, JwsError> {
    let text = std::str::from_utf8(set).map_err(|_| JwsError::Keys)?.trim();
    if text.starts_with('{') {
        return KeySet::read(text.as_bytes());
    }
    let mut parts = text.split('.');
    let (Some(_), Some(payload), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(JwsError::Keys);
    };
    let payload = URL_SAFE_NO_PAD
        .decode(payload)
        .map_err(|_| JwsError::Keys)?;
    KeySet::read(&payload)
}

#[cfg(test)]
pub(crate) mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    };
    use serde_json::{Value, json};

    use super::*;

    /// A key that signs.
    pub(crate) struct Signer {
        kid: String,
        pair: Pair,
    }

    enum Pair {
        Ed(Ed25519KeyPair),
        Ec(EcdsaKeyPair),
    }

    impl Signer {
        pub(crate) fn ed(kid: &str) -> Self {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            let pair = Pair::Ed(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap());
            let kid = kid.to_owned();
            Self { kid, pair }
        }

        fn ec(kid: &str) -> Self {
            let (random, way) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(way, &random).unwrap();
            let pair = Pair::Ec(EcdsaKeyPair::from_pkcs8(way, pkcs8.as_ref(), &random).unwrap());
            let kid = kid.to_owned();
            Self { kid, pair }
        }

        fn jwk(&self) -> Value {
            let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            match &self.pair {
                Pair::Ed(pair) => json!({
                    "kty": "OKP", "crv": "Ed25519", "kid": self.kid,
                    "x": text(pair.public_key().as_ref()),
                }),
                Pair::Ec(pair) => {
                    let raw = pair.public_key().as_ref();
                    json!({
                        "kty": "EC", "crv": "P-256", "kid": self.kid,
                        "x": text(&raw[1..33]), "y": text(&raw[33..]),
                    })
                }
            }
        }

        pub(crate) fn sign_as(&self, alg: &str, payload: &[u8]) -> String {
            self.sign_under(&json!({"alg": alg, "kid": self.kid}), payload)
        }

        fn sign_under(&self, header: &Value, payload: &[u8]) -> String {
            let header = header.to_string();
            let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            let signed = format!("{}.{}", text(header.as_bytes()), text(payload));
            let signature = match &self.pair {
                Pair::Ed(pair) => text(pair.sign(signed.as_bytes()).as_ref()),
                Pair::Ec(pair) => {
                    let random = SystemRandom::new();
                    text(pair.sign(&random, signed.as_bytes()).unwrap().as_ref())
                }
            };
            format!("{signed}.{signature}")
        }

        pub(crate) fn sign(&self, payload: &[u8]) -> String {
            match self.pair {
                Pair::Ed(_) => self.sign_as("EdDSA", payload),
                Pair::Ec(_) => self.sign_as("ES256", payload),
            }
        }
    }

    pub(crate) fn set_of(signers: &[&Signer]) -> Vec<u8> {
        let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
        json!({ "keys": keys }).to_string().into_bytes()
    }

    // spec: REPL-03
    #[test]
    fn a_signed_text_opens_with_its_own_key_and_algorithm_alone() {
        let (ed, ec) = (Signer::ed("ed"), Signer::ec("ec"));
        let keys = KeySet::read(&set_of(&[&ed, &ec])).unwrap();
        assert_eq!(keys.open(&ed.sign(b"roles")), Ok(b"roles".to_vec()));
        assert_eq!(keys.open(&ec.sign(b"roles")), Ok(b"roles".to_vec()));
        assert_eq!(keys.open(&Signer::ed("x").sign(b"")), Err(JwsError::Key));
        assert_eq!(
            keys.open(&Signer::ed("ed").sign(b"")),
            Err(JwsError::Signature)
        );
        for alg in ["none", "HS256", "ES256", "RS256"] {
            assert_eq!(
                keys.open(&ed.sign_as(alg, b"")),
                Err(JwsError::Algorithm),
                "{alg}"
            );
        }
        // The same as a list, which `serde` would take for the fields in their order.
        let listed = ed.sign_under(&json!(["EdDSA", "ed", null]), b"roles");
        assert_eq!(keys.open(&listed), Err(JwsError::Form));
        let whole = ed.sign(b"roles");
        let bent = whole.replacen('.', ".A", 1);
        assert!(keys.open(&bent).is_err());
        for bad in ["", "a.b", "a.b.c", "e30.e30.e30"] {
            assert_eq!(keys.open(bad), Err(JwsError::Form), "{bad}");
        }
    }

    #[test]
    fn a_set_holds_public_keys_with_names_of_their_own() {
        let ed = Signer::ed("ed");
        let mut private = ed.jwk();
        private["d"] = json!("AA");
        let mut unnamed = ed.jwk();
        unnamed["kid"] = json!("");
        let mut short = ed.jwk();
        short["x"] = json!("AA");
        let set = |keys: Value| json!({ "keys": keys }).to_string().into_bytes();
        let x = ed.jwk()["x"].clone();
        let listed = json!(["OKP", "Ed25519", "ed", x, null, null]);
        for bad in [
            set(json!([listed])),
            json!([[ed.jwk()]]).to_string().into_bytes(),
            set(json!([])),
            set(json!([ed.jwk(), ed.jwk()])),
            set(json!([private])),
            set(json!([unnamed])),
            set(json!([short])),
            b"{}".to_vec(),
            vec![b' '; SET_MAX + 1],
        ] {
            assert_eq!(KeySet::read(&bad), Err(JwsError::Keys));
        }
    }

    // spec: REPL-03
    #[test]
    fn keys_follow_each_other_by_signature_and_the_first_are_taken_as_they_are() {
        let (a, b, c) = (Signer::ed("a"), Signer::ec("b"), Signer::ed("c"));
        let first = set_of(&[&a]);
        let second = a.sign(&set_of(&[&b])).into_bytes();
        let third = b.sign(&set_of(&[&c])).into_bytes();
        let of = |signer: &Signer| KeySet::read(&set_of(&[signer])).unwrap();
        let chain = [first.clone(), second.clone(), third.clone()];
        assert_eq!(follow_keys(None, &chain), Ok((of(&c), 0)));
        assert_eq!(follow_keys(Some(&of(&b)), &chain), Ok((of(&c), 2)));
        assert_eq!(follow_keys(Some(&of(&c)), &chain), Ok((of(&c), 3)));
        let newest = [third.clone()];
        assert_eq!(follow_keys(Some(&of(&b)), &newest), Ok((of(&c), 0)));
        let none: [Vec<u8>; 0] = [];
        assert_eq!(follow_keys(Some(&of(&b)), &none), Ok((of(&b), 0)));
        assert_eq!(follow_keys(None, &none), Err(JwsError::Keys));
        // A gap, a set that nobody signed, one signed by a stranger.
        assert_eq!(
            follow_keys(Some(&of(&a)), &newest),
            Err(JwsError::Succession)
        );
        assert_eq!(
            follow_keys(Some(&of(&a)), &[set_of(&[&c])]),
            Err(JwsError::Succession)
        );
        let strange = Signer::ed("a").sign(&set_of(&[&c])).into_bytes();
        assert_eq!(
            follow_keys(Some(&of(&a)), &[strange]),
            Err(JwsError::Succession)
        );
    }
}
