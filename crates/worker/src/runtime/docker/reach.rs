//! Why a Docker Engine cannot be used, told apart as far as somebody must do something else about it.

use std::error::Error;
use std::io;

use bollard::errors::Error as Engine;

/// No engine can be used at a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreachable {
    /// There is one, and this user may not talk to it.
    #[error(
        "this user may not open the socket: let it, for instance as a member of the group that owns the socket (usually `docker`), or run jobs as processes"
    )]
    NotPermitted { host: String },
    #[error("{why}")]
    NoAnswer { host: String, why: String },
}

// === impl Unreachable ===

impl Unreachable {
    pub(crate) fn of(host: &str, error: &Engine) -> Self {
        let host = host.to_owned();
        let kind = match error {
            // It passes itself over in its sources.
            Engine::IOError { err } => io_kind(err),
            other => io_kind(other),
        };
        match kind {
            Some(io::ErrorKind::PermissionDenied) => Self::NotPermitted { host },
            _ => Self::NoAnswer {
                host,
                why: chain(error),
            },
        }
    }

    pub(crate) fn host(&self) -> &str {
        match self {
            Self::NotPermitted { host } | Self::NoAnswer { host, .. } => host,
        }
    }
}

/// What the system said, however deep it is wrapped.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let (mut next, mut kind) = (Some(error), None);
    while let Some(error) = next {
        let said = error.downcast_ref::<io::Error>();
        kind = said.map(io::Error::kind).or(kind);
        // An error of the system that wraps another passes over it in its sources.
        let inner = said.and_then(|said| said.get_ref());
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    kind
}

/// An error and its sources; what only repeats its source is said once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        next = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use bollard::Docker;

    use super::*;

    #[test]
    fn a_socket_that_may_not_be_opened_is_told_apart() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let host = "unix:///run/docker.sock";
        let plain = Engine::IOError { err: denied() };
        let nested = Engine::IOError {
            err: io::Error::other(denied()),
        };
        for error in [&plain, &nested] {
            let not_permitted = Unreachable::NotPermitted {
                host: host.to_owned(),
            };
            assert_eq!(Unreachable::of(host, error), not_permitted);
        }
        let text = Unreachable::of(host, &plain).to_string();
        assert!(text.contains("may not open"), "{text}");
        let gone = Engine::IOError {
            err: io::ErrorKind::NotFound.into(),
        };
        assert!(matches!(
            Unreachable::of(host, &gone),
            Unreachable::NoAnswer { .. }
        ));
    }

    /// What the system says is found in the errors that the client really gives.
    #[tokio::test]
    async fn what_the_system_says_is_found_in_the_clients_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let docker =
            Docker::connect_with_unix(path.to_str().unwrap(), 5, bollard::API_DEFAULT_VERSION);
        let error = docker.unwrap().version().await.unwrap_err();
        assert_eq!(io_kind(&error), Some(io::ErrorKind::ConnectionRefused));
    }
}
