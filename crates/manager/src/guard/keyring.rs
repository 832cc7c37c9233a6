//! The credentials that are known, and what each of them proves (SEC-02). The files they come from
//! are read again when they change (SEC-04).

use std::sync::Arc;

use greenroom_auth::{AccessToken, JwtKeys, Principal, TokenFile};
use greenroom_tls::{Peer, fingerprint};
use greenroom_types::Wall;
use greenroom_types::call::{Refusal, Status};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::sync::{Semaphore, watch};

use crate::clock::wall;
use crate::settings::{AuthSettings, CertificateRole};

/// Tokens hashed at a time. A hash takes 19 MiB and tens of milliseconds.
const HASHES_MAX: usize = 2;

/// What a caller presents.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    Token(AccessToken),
    Signed(greenroom_auth::Secret),
    Certificate { subject: String, ends_at: Wall },
}

/// Why a credential does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error(
        "this door asks for a credential: a token in the metadata `authorization: Bearer TOKEN`, or a client certificate"
    )]
    Missing,
    #[error("the credential does not hold")]
    Unknown,
    #[error("the credential has ended, or has not begun; ask for a new one")]
    Ended,
}

/// What is known at present.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    tokens: TokenFile,
    signed: Option<JwtKeys>,
    certificates: Vec<CertificateRole>,
    /// Of the files it was read from.
    print: Vec<u8>,
}

/// Everything that is known, as it changes.
#[derive(Debug)]
pub(crate) struct Keyring {
    settings: AuthSettings,
    /// For whom signed tokens must be: the deployment's id.
    audience: String,
    keys: watch::Sender<Arc<Keys>>,
    hashing: Semaphore,
}

// === impl Credential ===

impl Credential {
    /// What a call presents. A token goes before the certificate of the connection.
    pub(super) fn of(headers: &HeaderMap, peer: Option<&Peer>) -> Result<Self, Denied> {
        if let Some(value) = headers.get(AUTHORIZATION) {
            let text = value.to_str().map_err(|_| Denied::Unknown)?;
            let (scheme, token) = text.split_once(' ').ok_or(Denied::Unknown)?;
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(Denied::Unknown);
            }
            return match token.trim().parse() {
                Ok(token) => Ok(Self::Token(token)),
                Err(_) => Ok(Self::Signed(greenroom_auth::Secret::new(token.trim()))),
            };
        }
        let tls = peer.and_then(|peer| peer.tls.as_deref());
        match tls.and_then(|tls| Some((tls.subject.clone()?, tls.ends_at?))) {
            Some((subject, ends_at)) => Ok(Self::Certificate {
                subject,
                ends_at: Wall(ends_at.saturating_mul(1_000)),
            }),
            None => Err(Denied::Missing),
        }
    }
}

impl Credential {
    /// Tells one from another without holding it.
    pub(super) fn print(&self) -> [u8; 32] {
        match self {
            Self::Token(token) => fingerprint(token.expose().as_bytes()),
            Self::Signed(token) => fingerprint(token.expose().as_bytes()),
            Self::Certificate { subject, .. } => fingerprint(subject.as_bytes()),
        }
    }
}

// === impl Denied ===

impl Denied {
    pub(super) fn refusal(self) -> Refusal {
        Refusal::new(Status::Unauthenticated, "bad_credentials", self.to_string())
    }
}

// === impl Keys ===

impl Keys {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// A text that says which file cannot be used and why.
    pub(crate) fn load(settings: &AuthSettings) -> Result<Self, String> {
        let mut print = Vec::new();
        let mut read = |path: &std::path::Path| {
            let text = greenroom_tls::read_text_file(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            print.extend(fingerprint(text.as_bytes()));
            Ok::<String, String>(text)
        };
        let tokens = match &settings.tokens_file {
            Some(path) => TokenFile::read(&read(path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?,
            None => TokenFile::default(),
        };
        let signed = match &settings.signed {
            Some(signed) => {
                let pems: Result<Vec<String>, String> =
                    signed.keys.iter().map(|path| read(path)).collect();
                let keys = JwtKeys::new(&signed.issuer, &pems?);
                Some(keys.map_err(|error| error.to_string())?)
            }
            None => None,
        };
        Ok(Self {
            tokens,
            signed,
            certificates: settings.certificates.clone(),
            print,
        })
    }

    /// Whether nobody could come in.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.signed.is_none() && self.certificates.is_empty()
    }

    /// None when only hashing can tell.
    fn check_at_once(
        &self,
        credential: &Credential,
        audience: &str,
    ) -> Option<Result<Principal, Denied>> {
        match credential {
            Credential::Token(token) => {
                let Some(entry) = self.tokens.entry(token) else {
                    return Some(Err(Denied::Unknown));
                };
                let fits = entry.fits_at_once(token)?;
                Some(if fits {
                    Ok(entry.principal().clone())
                } else {
                    Err(Denied::Unknown)
                })
            }
            Credential::Signed(token) => {
                let Some(keys) = &self.signed else {
                    return Some(Err(Denied::Unknown));
                };
                let verified = keys.verify(token.expose(), audience, wall());
                Some(verified.map_err(|error| match error {
                    greenroom_auth::JwtError::Time => Denied::Ended,
                    _ => Denied::Unknown,
                }))
            }
            Credential::Certificate { subject, ends_at } => {
                let rule = self.certificates.iter().find(|it| it.subject == *subject);
                let principal = rule.map(|rule| Principal {
                    name: rule.subject.clone(),
                    role: rule.role,
                    ends_at: Some(*ends_at),
                });
                Some(principal.ok_or(Denied::Unknown))
            }
        }
    }
}

// === impl Keyring ===

impl Keyring {
    pub(crate) fn new(settings: AuthSettings, keys: Keys, audience: String) -> Self {
        Self {
            settings,
            audience,
            keys: watch::Sender::new(Arc::new(keys)),
            hashing: Semaphore::new(HASHES_MAX),
        }
    }

    /// Rings when what is known has changed.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Keys>> {
        self.keys.subscribe()
    }

    /// What a credential proves, if that is known without hashing.
    pub(super) fn check_at_once(
        &self,
        credential: &Credential,
    ) -> Option<Result<Principal, Denied>> {
        let keys = Arc::clone(&self.keys.borrow());
        let checked = keys.check_at_once(credential, &self.audience)?;
        Some(checked.and_then(in_time))
    }

    /// What a credential proves.
    pub(super) async fn check(&self, credential: &Credential) -> Result<Principal, Denied> {
        if let Some(checked) = self.check_at_once(credential) {
            return checked;
        }
        let Credential::Token(token) = credential else {
            return Err(Denied::Unknown);
        };
        // Closed only with the Manager.
        let _turn = self.hashing.acquire().await;
        let keys = Arc::clone(&self.keys.borrow());
        let token = token.clone();
        let hashed = tokio::task::spawn_blocking(move || {
            let entry = keys.tokens.entry(&token)?;
            entry.fits(&token).then(|| entry.principal().clone())
        });
        match hashed.await {
            Ok(Some(principal)) => in_time(principal),
            Ok(None) | Err(_) => Err(Denied::Unknown),
        }
    }

    /// Reads the files again and puts them in force if they have changed; tells how many tokens
    /// there are then. What cannot be read leaves in force what was.
    ///
    /// # Errors
    /// A text that says which file cannot be used and why.
    pub(crate) fn reload(&self) -> Result<Option<usize>, String> {
        let keys = Keys::load(&self.settings)?;
        let old = Arc::clone(&self.keys.borrow());
        if old.print == keys.print {
            return Ok(None);
        }
        let tokens = keys.tokens.len();
        keys.tokens.remember(&old.tokens);
        self.keys.send_replace(Arc::new(keys));
        Ok(Some(tokens))
    }
}

fn in_time(principal: Principal) -> Result<Principal, Denied> {
    if principal.has_ended(wall()) {
        return Err(Denied::Ended);
    }
    Ok(principal)
}
