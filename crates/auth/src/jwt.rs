//! Signed tokens (SEC-02): JWTs of an issuer whose public keys the Manager was given. EdDSA and
//! ES256 are taken, nothing else: a token cannot choose a weaker way, or none.

use std::sync::Once;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use greenroom_types::{ByName, Wall};
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::{Principal, Role};

/// Clocks of issuer and Manager may differ by this much, in milliseconds.
const SKEW_MS: i64 = 60_000;
/// Longer tokens are not looked at.
const TOKEN_MAX: usize = 8 * 1024;

/// How a public key of each kind begins in a certificate's form; the raw key follows.
const ED25519_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The keys of one issuer, and for whom its tokens must be.
#[derive(Clone)]
pub struct JwtKeys {
    issuer: String,
    keys: Vec<(Algorithm, DecodingKey)>,
}

/// Why a key or a token is not taken. Says nothing of the token's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// A key is no PEM of a public key that is taken.
    #[error("a signed token's key must be a PUBLIC KEY in PEM, of Ed25519 or P-256")]
    Key,
    /// The token is of another form, issuer or audience, or not signed by a key that is known.
    #[error("the token is not one of the issuer's")]
    Token,
    /// Its time has not come or is over.
    #[error("the token has ended, or has not begun")]
    Time,
    /// It names no role, or one that tokens do not have.
    #[error("the token names no role of viewer, operator, control-plane, admin")]
    Role,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    role: String,
    exp: i64,
    nbf: Option<i64>,
    // Looked at by the library; named here so that a token without them is none.
    #[serde(rename = "iss")]
    _iss: String,
}

// === impl JwtKeys ===

impl JwtKeys {
    /// The keys of an issuer, each a public key in PEM.
    ///
    /// # Errors
    /// One of them is none.
    pub fn new(issuer: impl Into<String>, pems: &[String]) -> Result<Self, JwtError> {
        install();
        let keys: Result<Vec<_>, _> = pems.iter().map(|pem| public_key(pem)).collect();
        Ok(Self {
            issuer: issuer.into(),
            keys: keys?,
        })
    }

    /// Who a token speaks for. `audience` is the installation's deployment id.
    ///
    /// # Errors
    /// As [`JwtError`] says.
    pub fn verify(&self, token: &str, audience: &str, now: Wall) -> Result<Principal, JwtError> {
        if token.len() > TOKEN_MAX || !begins_with_an_object(token) {
            return Err(JwtError::Token);
        }
        let claims = self
            .keys
            .iter()
            .find_map(|(algorithm, key)| self.claims(token, *algorithm, key, audience))
            .ok_or(JwtError::Token)?;
        let ms = |seconds: i64| seconds.saturating_mul(1_000);
        let begins_at = claims.nbf.map_or(i64::MIN, ms);
        if ms(claims.exp) <= now.0 || begins_at.saturating_sub(SKEW_MS) > now.0 {
            return Err(JwtError::Time);
        }
        let role: Role = claims.role.parse().map_err(|_| JwtError::Role)?;
        let named = !claims.sub.is_empty()
            && claims.sub.len() <= 64
            && !claims.sub.chars().any(char::is_control);
        if role > Role::Admin || !named {
            return Err(JwtError::Role);
        }
        Ok(Principal {
            name: claims.sub,
            role,
            ends_at: Some(Wall(ms(claims.exp))),
        })
    }

    fn claims(
        &self,
        token: &str,
        algorithm: Algorithm,
        key: &DecodingKey,
        audience: &str,
    ) -> Option<Claims> {
        let mut wanted = Validation::new(algorithm);
        wanted.set_issuer(&[&self.issuer]);
        wanted.set_audience(&[audience]);
        wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // The caller's clock decides, not the library's.
        wanted.validate_exp = false;
        wanted.validate_nbf = false;
        let data = jsonwebtoken::decode::<ByName<Claims>>(token, key, &wanted).ok()?;
        Some(data.claims.0)
    }
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JwtKeys({:?}, {} keys)", self.issuer, self.keys.len())
    }
}

/// The library would take a list for a header.
fn begins_with_an_object(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let header = URL_SAFE_NO_PAD.decode(header).unwrap_or_default();
    serde_json::from_slice::<ByName<IgnoredAny>>(&header).is_ok()
}

fn public_key(pem: &str) -> Result<(Algorithm, DecodingKey), JwtError> {
    let body = pem
        .split_once("-----BEGIN PUBLIC KEY-----")
        .and_then(|(_, rest)| rest.split_once("-----END PUBLIC KEY-----"))
        .map(|(body, _)| body.split_whitespace().collect::<String>())
        .ok_or(JwtError::Key)?;
    let der = STANDARD.decode(body).map_err(|_| JwtError::Key)?;
    if let Some(raw) = der.strip_prefix(&ED25519_HEAD)
        && raw.len() == 32
    {
        return Ok((Algorithm::EdDSA, DecodingKey::from_ed_der(raw)));
    }
    match der.strip_prefix(&P256_HEAD) {
        Some(raw) if raw.len() == 65 => Ok((Algorithm::ES256, DecodingKey::from_ec_der(raw))),
        _ => Err(JwtError::Key),
    }
}

// === what checks signatures ===

/// The library asks the process for its cryptography; it gets the one that TLS uses here as well.
fn install() {
    static ONCE: Once = Once::new();
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
        verifier_factory: |algorithm, key| {
            let family = match algorithm {
                Algorithm::EdDSA => AlgorithmFamily::Ed,
                Algorithm::ES256 => AlgorithmFamily::Ec,
                _ => return Err(ErrorKind::InvalidAlgorithm.into()),
            };
            if key.family() != family {
                return Err(ErrorKind::InvalidKeyFormat.into());
            }
            Ok(Box::new(Checker {
                algorithm: *algorithm,
                key: key.try_get_as_bytes()?.to_vec(),
            }))
        },
        key_utils: KeyUtils::new_unimplemented(),
    };
    ONCE.call_once(|| {
        // Whoever was first in this process brought one that does the same.
        let _ = PROVIDER.install_default();
    });
}

struct Checker {
    algorithm: Algorithm,
    key: Vec<u8>,
}

impl Verifier<Vec<u8>> for Checker {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let checked = match self.algorithm {
            Algorithm::EdDSA => UnparsedPublicKey::new(&ED25519, &self.key),
            _ => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.key),
        }
        .verify(message, signature);
        checked.map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for Checker {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    };
    use serde_json::{Value, json};

    use super::*;

    const NOW: Wall = Wall(1_800_000_000_000);

    fn pem(head: &[u8], raw: &[u8]) -> String {
        let body = STANDARD.encode([head, raw].concat());
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    }

    fn token(alg: &str, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
        token_of(&json!({"alg": alg, "typ": "JWT"}), claims, sign)
    }

    fn token_of(head: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn claims() -> Value {
        json!({
            "iss": "sso", "aud": "deployment-1", "sub": "anna", "role": "operator",
            "exp": NOW.0 / 1_000 + 60, "nbf": NOW.0 / 1_000,
        })
    }

    fn without(name: &str) -> Value {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(name);
        claims
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    // spec: SEC-02
    #[test]
    fn a_signed_token_is_taken_for_its_issuer_audience_time_and_role_alone() {
        let random = SystemRandom::new();
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let signing = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(signing, pkcs8.as_ref(), &random).unwrap();
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let stranger = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let pems = [
            pem(&ED25519_HEAD, ed.public_key().as_ref()),
            pem(&P256_HEAD, ec.public_key().as_ref()),
        ];
        let keys = JwtKeys::new("sso", &pems).unwrap();
        let by_ed = |bytes: &[u8]| ed.sign(bytes).as_ref().to_vec();
        let by_ec = |bytes: &[u8]| ec.sign(&random, bytes).unwrap().as_ref().to_vec();
        let verify = |token: &str| keys.verify(token, "deployment-1", NOW);

        let anna = Principal {
            name: "anna".to_owned(),
            role: Role::Operator,
            ends_at: Some(Wall(NOW.0 + 60_000)),
        };
        assert_eq!(verify(&token("EdDSA", &claims(), by_ed)), Ok(anna.clone()));
        assert_eq!(verify(&token("ES256", &claims(), by_ec)), Ok(anna));

        let refused = |claims: &Value| verify(&token("EdDSA", claims, by_ed)).unwrap_err();
        let soon = NOW.0 / 1_000;
        assert_eq!(refused(&with("aud", json!("other"))), JwtError::Token);
        assert_eq!(refused(&with("iss", json!("other"))), JwtError::Token);
        for name in ["aud", "iss", "sub", "exp", "role"] {
            assert_eq!(refused(&without(name)), JwtError::Token, "{name}");
        }
        assert_eq!(refused(&with("exp", json!("soon"))), JwtError::Token);
        assert_eq!(refused(&with("nbf", json!("then"))), JwtError::Token);
        assert_eq!(refused(&with("exp", json!(soon))), JwtError::Time);
        assert_eq!(refused(&with("nbf", json!(soon + 61))), JwtError::Time);
        assert!(verify(&token("EdDSA", &with("nbf", json!(soon + 60)), by_ed)).is_ok());
        assert_eq!(refused(&with("role", json!("root"))), JwtError::Role);
        assert_eq!(refused(&with("role", json!("peer"))), JwtError::Role);
        assert_eq!(refused(&with("sub", json!(""))), JwtError::Role);

        // A list is neither a header nor claims, whatever its elements would stand for.
        let listed = json!(["anna", "operator", NOW.0 / 1_000 + 60, null, "sso"]);
        assert_eq!(refused(&listed), JwtError::Token);
        let head = json!(["JWT", "EdDSA"]);
        assert_eq!(
            verify(&token_of(&head, &claims(), by_ed)),
            Err(JwtError::Token)
        );

        // Another key; another way; none at all; the public key taken for a shared secret.
        let by_stranger = |bytes: &[u8]| stranger.sign(bytes).as_ref().to_vec();
        let hmac = |bytes: &[u8]| {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, pems[0].as_bytes());
            ring::hmac::sign(&key, bytes).as_ref().to_vec()
        };
        for bad in [
            token("EdDSA", &claims(), by_stranger),
            token("ES256", &claims(), by_ed),
            token("none", &claims(), |_| Vec::new()),
            token("HS256", &claims(), hmac),
            "a.b.c".to_owned(),
            "x".repeat(TOKEN_MAX + 1),
        ] {
            assert_eq!(verify(&bad), Err(JwtError::Token), "{bad}");
        }
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        for text in [
            "",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
        ] {
            let keys = JwtKeys::new("sso", &[text.to_owned()]);
            assert_eq!(keys.err(), Some(JwtError::Key));
        }
    }
}
