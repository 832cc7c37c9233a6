//! How members are recognised, and who the caller is (SEC-02, SEC-07).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_tls::{ClientTls, Identity, Pin, Trust, authorities};
use tonic::metadata::{Ascii, MetadataValue};

use crate::Token;
use crate::error::Error;

/// A token's file is looked at no more often than this.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longer files hold something else.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// How members are recognised, and who the caller is. The default suits a Manager on this machine
/// that asks for nothing.
///
/// ```
/// let access = greenroom_sdk::Access {
///     ca: Some("installation/ca.pem".into()),
///     token: Some(greenroom_sdk::TokenSource::File("installation/operator.token".into())),
///     ..greenroom_sdk::Access::default()
/// };
/// assert!(access.certificate.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// File of the authorities, in PEM, that sign the members' certificates.
    pub ca: Option<PathBuf>,
    /// Pins of members' keys, as `sha256:` and 64 hexadecimal digits; with them neither authority
    /// nor name counts.
    pub pins: Vec<String>,
    /// Files of a certificate and its key, in PEM, that are shown to members.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Token that goes with every call.
    pub token: Option<TokenSource>,
}

/// Where a token comes from.
///
/// ```
/// let source = greenroom_sdk::TokenSource::Text(greenroom_sdk::Token::new("gra_x"));
/// assert_eq!(format!("{source:?}"), "Text(***)");
/// ```
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// Itself.
    Text(Token),
    /// A file, which is read again when it changes.
    File(PathBuf),
}

/// Access that was checked and is ready to be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) tls: Option<ClientTls>,
    pub(crate) bearer: Option<Bearer>,
}

/// Gives the value of `authorization`.
#[derive(Clone)]
pub(crate) struct Bearer {
    source: TokenSource,
    kept: Arc<Mutex<Kept>>,
}

struct Kept {
    value: MetadataValue<Ascii>,
    looked_at: Instant,
}

// === impl Access ===

impl Access {
    /// Reads the files.
    pub(crate) fn ready(&self) -> Result<Ready, Error> {
        let fault = |key: &'static str, problem: String| Error::Settings { key, problem };
        let trust = if self.pins.is_empty() {
            match &self.ca {
                Some(ca) => Some(Trust::Authorities(
                    authorities(ca).map_err(|error| fault("ca", error.to_string()))?,
                )),
                None => None,
            }
        } else {
            let pins: Result<Vec<Pin>, _> = self.pins.iter().map(|pin| pin.parse()).collect();
            Some(Trust::Pins(
                pins.map_err(|problem| fault("pins", problem.to_owned()))?,
            ))
        };
        let unusable = |error: greenroom_tls::Error| fault("certificate", error.to_string());
        let identity = match &self.certificate {
            Some((certificate, key)) => Some(Identity::load(certificate, key).map_err(unusable)?),
            None => None,
        };
        let tls = match trust {
            Some(trust) => Some(ClientTls::new(&trust, identity.as_ref()).map_err(unusable)?),
            None => None,
        };
        let bearer = match &self.token {
            Some(source) => {
                Some(Bearer::new(source.clone()).map_err(|problem| fault("token", problem))?)
            }
            None => None,
        };
        Ok(Ready { tls, bearer })
    }
}

// === impl Bearer ===

impl Bearer {
    fn new(source: TokenSource) -> Result<Self, String> {
        let kept = Kept {
            value: read(&source)?,
            looked_at: Instant::now(),
        };
        Ok(Self {
            source,
            kept: Arc::new(Mutex::new(kept)),
        })
    }

    /// The value as it is now. A file that cannot be read any more leaves the one before.
    pub(crate) fn value(&self) -> MetadataValue<Ascii> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked_at.elapsed() >= LOOK_EVERY {
            kept.looked_at = Instant::now();
            if let Ok(value) = read(&self.source) {
                kept.value = value;
            }
        }
        kept.value.clone()
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bearer({:?})", self.source)
    }
}

fn read(source: &TokenSource) -> Result<MetadataValue<Ascii>, String> {
    let text = match source {
        TokenSource::Text(token) => token.reveal().to_owned(),
        TokenSource::File(path) => read_file(path)?,
    };
    let token = text.trim();
    let has_form = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = has_form
        .then(|| MetadataValue::try_from(format!("Bearer {token}")).ok())
        .flatten();
    let mut value = value.ok_or_else(|| match source {
        TokenSource::Text(_) => "the token must be one word of visible ASCII".to_owned(),
        TokenSource::File(path) => {
            format!("{} must hold one token and nothing else", path.display())
        }
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn read_file(path: &Path) -> Result<String, String> {
    let text = greenroom_tls::read_text_file(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if text.len() > TOKEN_BYTES_MAX {
        return Err(format!("{} is too long to be a token", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(access: &Access) -> &'static str {
        match access.ready() {
            Err(Error::Settings { key, .. }) => key,
            other => panic!("{other:?}"),
        }
    }

    // spec: SDK-01
    #[test]
    fn what_cannot_be_used_is_named_before_anything_is_dialled() {
        let missing = PathBuf::from("/nowhere/at/all");
        let with = |change: fn(&mut Access, PathBuf)| {
            let mut access = Access::default();
            change(&mut access, missing.clone());
            access
        };
        assert_eq!(key(&with(|access, path| access.ca = Some(path))), "ca");
        assert_eq!(
            key(&with(|access, _| access.pins = vec!["x".to_owned()])),
            "pins"
        );
        let shows = with(|access, path| access.certificate = Some((path.clone(), path)));
        assert_eq!(key(&shows), "certificate");
        let file = with(|access, path| access.token = Some(TokenSource::File(path)));
        assert_eq!(key(&file), "token");
        let two = Access {
            token: Some(TokenSource::Text(Token::new("a b"))),
            ..Access::default()
        };
        assert_eq!(key(&two), "token");
    }

    // spec: SEC-12
    #[test]
    fn the_token_is_printed_nowhere() {
        let access = Access {
            token: Some(TokenSource::Text(Token::new("hunter2"))),
            ..Access::default()
        };
        let ready = access.ready().unwrap();
        let value = ready.bearer.as_ref().unwrap().value();
        assert_eq!(value.to_str().unwrap(), "Bearer hunter2");
        for text in [
            format!("{access:?}"),
            format!("{ready:?}"),
            format!("{value:?}"),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
