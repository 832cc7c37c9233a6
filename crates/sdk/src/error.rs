//! Why a call or a stream ended (SDK-04, SDK-12).
//!
//! One variant per gRPC status that the Manager uses, each with its reason and details, and variants
//! of their own for what a caller handles apart: no credentials, an older server, a lost connection
//! whose outcome nobody knows. What a status without a reason means is decided here and nowhere else.

use std::collections::BTreeMap;
use std::fmt;

use greenroom_proto::convert::{call::minor_of_call, refusal::read_refusal};
use greenroom_types::call::{Detail, Refusal, Status};
use tonic::Code;

use crate::version::Protocol;

/// A refusal by the Manager, with the call that it refused.
///
/// ```
/// use greenroom_sdk::Refused;
/// let refused = Refused {
///     method: "StartJob",
///     reason: "unknown_job".to_owned(),
///     message: "job \"enc\" does not exist".to_owned(),
///     details: Default::default(),
/// };
/// assert_eq!(refused.to_string(), "StartJob: job \"enc\" does not exist (unknown_job)");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refused {
    /// Name of the RPC.
    pub method: &'static str,
    /// Stable token; empty where something before the Manager refused the call (API-08).
    pub reason: String,
    /// What was wrong and what would be right.
    pub message: String,
    /// Values by name.
    pub details: BTreeMap<String, Detail>,
}

/// Why one url gave no connection (SDK-01).
///
/// ```
/// let failure = greenroom_sdk::UrlFailure {
///     url: "http://127.0.0.1:1".to_owned(),
///     cause: "connection refused".to_owned(),
/// };
/// assert_eq!(failure.to_string(), "http://127.0.0.1:1: connection refused");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlFailure {
    /// The url.
    pub url: String,
    /// What went wrong there.
    pub cause: String,
}

impl UrlFailure {
    /// The member's own words, where it was reached and refused the caller's credential.
    ///
    /// ```
    /// let failure = greenroom_sdk::UrlFailure {
    ///     url: "https://manager:6789".to_owned(),
    ///     cause: "refused: the credential does not hold".to_owned(),
    /// };
    /// assert_eq!(failure.refused(), Some("the credential does not hold"));
    /// ```
    pub fn refused(&self) -> Option<&str> {
        self.cause.strip_prefix(crate::link::REFUSED)
    }
}

/// Why a call or a stream ended without its answer.
///
/// ```
/// use greenroom_sdk::Error;
/// fn is_gone(error: &Error) -> bool {
///     matches!(error, Error::NotFound(refused) if refused.reason == "unknown_bundle")
/// }
/// # assert!(!is_gone(&Error::Cancelled { method: "GetBundle", outcome_unknown: false }));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is wrong whatever the state.
    #[error("{0}")]
    InvalidArgument(Refused),
    /// What is named does not exist.
    #[error("{0}")]
    NotFound(Refused),
    /// What is to be made exists.
    #[error("{0}")]
    AlreadyExists(Refused),
    /// The caller may not.
    #[error("{0}")]
    PermissionDenied(Refused),
    /// No credentials, or bad ones.
    #[error("{0}")]
    Unauthenticated(Refused),
    /// A limit is reached.
    #[error("{0}")]
    ResourceExhausted(Refused),
    /// The state does not allow it now.
    #[error("{0}")]
    FailedPrecondition(Refused),
    /// The Manager does not serve the call.
    #[error("{0}")]
    Unimplemented(Refused),
    /// The Manager said that it cannot serve the call now, and went on saying so; nothing changed.
    #[error("{0}")]
    Unavailable(Refused),
    /// A fault of the Manager's own.
    #[error("{0}")]
    Internal(Refused),
    /// The server is older than the call (HELLO-04).
    #[error("{call} needs protocol 1.{minor}, and the server speaks {server}")]
    NeedsProtocol {
        /// Name of the RPC.
        call: &'static str,
        /// The minor that brought it.
        minor: u32,
        /// What the server speaks.
        server: Protocol,
    },
    /// The connection broke, or no member could be reached, until no try was left.
    #[error(
        "{method}: connection lost ({cause}){}",
        if *.outcome_unknown { "; whether the call took effect is unknown" } else { "" }
    )]
    ConnectionLost {
        /// Name of the RPC.
        method: &'static str,
        /// True when the call changes something and may have taken effect.
        outcome_unknown: bool,
        /// What broke.
        cause: String,
    },
    /// The deadline passed before an answer came.
    #[error(
        "{method}: no answer before the deadline{}",
        if *.outcome_unknown { "; whether the call took effect is unknown" } else { "" }
    )]
    DeadlineExceeded {
        /// Name of the RPC.
        method: &'static str,
        /// True when the call changes something and may have taken effect.
        outcome_unknown: bool,
    },
    /// The client was closed (SDK-10), or the caller's token was cancelled (SDK-11).
    #[error(
        "{method}: cancelled{}",
        if *.outcome_unknown { "; whether the call took effect is unknown" } else { "" }
    )]
    Cancelled {
        /// Name of the RPC.
        method: &'static str,
        /// True when the call changes something and may have taken effect.
        outcome_unknown: bool,
    },
    /// The answer is not what the protocol says.
    #[error("{method}: bad answer in {field}: {problem}")]
    Protocol {
        /// Name of the RPC.
        method: &'static str,
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A status that the Manager does not use.
    #[error("{method}: status {code}: {message}")]
    Unexpected {
        /// Name of the RPC.
        method: &'static str,
        /// Number of the gRPC status.
        code: i32,
        /// Its text.
        message: String,
    },
    /// No member gave a Hello.
    #[error("no member could be reached: {}", list(.0))]
    Connect(Vec<UrlFailure>),
    /// The settings cannot work.
    #[error("setting {key}: {problem}")]
    Settings {
        /// Name of the setting.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// What a failed try means for the next one.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// An answer that repeating does not change.
    Final(Error),
    /// The Manager said that it cannot serve now.
    Busy(Refused),
    /// The connection failed; the call may have arrived.
    Lost(String),
    /// The transport's own clock ended the call.
    TimedOut,
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.method, self.message)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

// === impl UrlFailure ===

impl fmt::Display for UrlFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.url, self.cause)
    }
}

// === impl Error ===

impl Error {
    /// The refusal, where the Manager refused.
    ///
    /// ```no_run
    /// # fn example(error: greenroom_sdk::Error) {
    /// if let Some(refused) = error.refused() {
    ///     eprintln!("{}: {:?}", refused.reason, refused.details.get("path"));
    /// }
    /// # }
    /// ```
    pub const fn refused(&self) -> Option<&Refused> {
        match self {
            Self::InvalidArgument(refused)
            | Self::NotFound(refused)
            | Self::AlreadyExists(refused)
            | Self::PermissionDenied(refused)
            | Self::Unauthenticated(refused)
            | Self::ResourceExhausted(refused)
            | Self::FailedPrecondition(refused)
            | Self::Unimplemented(refused)
            | Self::Unavailable(refused)
            | Self::Internal(refused) => Some(refused),
            _ => None,
        }
    }

    /// The stable token of the refusal; empty where there is none.
    ///
    /// ```no_run
    /// # fn example(error: greenroom_sdk::Error) -> bool {
    /// error.reason() == "lease_held"
    /// # }
    /// ```
    pub fn reason(&self) -> &str {
        self.refused().map_or("", |refused| &refused.reason)
    }

    /// Name of the RPC that failed, where there was one.
    ///
    /// ```no_run
    /// # fn example(error: greenroom_sdk::Error) {
    /// eprintln!("{} failed", error.method().unwrap_or("connecting"));
    /// # }
    /// ```
    pub const fn method(&self) -> Option<&'static str> {
        match self {
            Self::NeedsProtocol { call: method, .. }
            | Self::ConnectionLost { method, .. }
            | Self::DeadlineExceeded { method, .. }
            | Self::Cancelled { method, .. }
            | Self::Protocol { method, .. }
            | Self::Unexpected { method, .. } => Some(method),
            Self::Connect(_) | Self::Settings { .. } => None,
            _ => match self.refused() {
                Some(refused) => Some(refused.method),
                None => None,
            },
        }
    }

    /// True when the call changes something and nobody knows whether it did.
    ///
    /// ```no_run
    /// # fn example(error: greenroom_sdk::Error) {
    /// if error.outcome_unknown() {
    ///     eprintln!("look before trying again");
    /// }
    /// # }
    /// ```
    pub const fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost {
                outcome_unknown: true,
                ..
            } | Self::DeadlineExceeded {
                outcome_unknown: true,
                ..
            } | Self::Cancelled {
                outcome_unknown: true,
                ..
            }
        )
    }

    /// The same as a refusal, for code that handles [`greenroom_types::call::CallResult`]. What is no
    /// refusal of the Manager's becomes one with the reasons `connection_lost`, `deadline`,
    /// `cancelled`, `needs_protocol` and `protocol`, and the detail `outcome_unknown`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client, call: greenroom_sdk::types::call::Call) {
    /// let result: greenroom_sdk::types::call::CallResult =
    ///     client.call(call).await.map_err(greenroom_sdk::Error::into_refusal);
    /// # }
    /// ```
    pub fn into_refusal(self) -> Refusal {
        let text = self.to_string();
        let unknown = self.outcome_unknown();
        let made = |status, reason| {
            let mut refusal = Refusal::new(status, reason, text.clone());
            refusal
                .details
                .insert("outcome_unknown".to_owned(), Detail::Bool(unknown));
            refusal
        };
        let (status, refused) = match self {
            Self::InvalidArgument(refused) => (Status::InvalidArgument, refused),
            Self::NotFound(refused) => (Status::NotFound, refused),
            Self::AlreadyExists(refused) => (Status::AlreadyExists, refused),
            Self::PermissionDenied(refused) => (Status::PermissionDenied, refused),
            Self::Unauthenticated(refused) => (Status::Unauthenticated, refused),
            Self::ResourceExhausted(refused) => (Status::ResourceExhausted, refused),
            Self::FailedPrecondition(refused) => (Status::FailedPrecondition, refused),
            Self::Unimplemented(refused) => (Status::Unimplemented, refused),
            Self::Unavailable(refused) => (Status::Unavailable, refused),
            Self::Internal(refused) => (Status::Internal, refused),
            Self::NeedsProtocol { .. } => return made(Status::Unimplemented, "needs_protocol"),
            Self::ConnectionLost { .. } | Self::Connect(_) => {
                return made(Status::Unavailable, "connection_lost");
            }
            Self::DeadlineExceeded { .. } => return made(Status::DeadlineExceeded, "deadline"),
            Self::Cancelled { .. } => return made(Status::Cancelled, "cancelled"),
            Self::Protocol { .. } | Self::Unexpected { .. } | Self::Settings { .. } => {
                return made(Status::Internal, "protocol");
            }
        };
        Refusal {
            status,
            reason: refused.reason,
            message: refused.message,
            details: refused.details,
        }
    }

    /// True when trying again later cannot help, so that a stream ends instead of reconnecting.
    pub(crate) const fn ends_stream(&self) -> bool {
        match self {
            Self::Unavailable(_)
            | Self::ResourceExhausted(_)
            | Self::Internal(_)
            | Self::ConnectionLost { .. }
            | Self::DeadlineExceeded { .. }
            | Self::Unexpected { .. } => false,
            Self::InvalidArgument(_)
            | Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::PermissionDenied(_)
            | Self::Unauthenticated(_)
            | Self::FailedPrecondition(_)
            | Self::Unimplemented(_)
            | Self::NeedsProtocol { .. }
            | Self::Cancelled { .. }
            | Self::Protocol { .. }
            | Self::Connect(_)
            | Self::Settings { .. } => true,
        }
    }
}

// === impl Verdict ===

/// Reasons of UNAVAILABLE that speak of something behind the Manager. The Manager itself is well, so
/// another try or another member changes nothing, and a cutover that arrives late does harm (MGR-07).
const NOT_THE_MANAGER: [&str; 3] = [
    "host_unreachable",
    "node_unreachable",
    "provider_credentials",
];

impl Verdict {
    /// What the status of a failed try means.
    pub(crate) fn of(method: &'static str, status: &tonic::Status, server: Protocol) -> Self {
        let refusal = read_refusal(status);
        let has_reason = refusal.is_some();
        let refused = match refusal {
            Some(refusal) => Refused {
                method,
                reason: refusal.reason,
                message: refusal.message,
                details: refusal.details,
            },
            None => Refused {
                method,
                message: status.message().to_owned(),
                ..Refused::default()
            },
        };
        let error = match status.code() {
            Code::InvalidArgument => Error::InvalidArgument(refused),
            Code::NotFound => Error::NotFound(refused),
            Code::AlreadyExists => Error::AlreadyExists(refused),
            Code::PermissionDenied => Error::PermissionDenied(refused),
            Code::Unauthenticated => Error::Unauthenticated(refused),
            Code::ResourceExhausted => Error::ResourceExhausted(refused),
            Code::FailedPrecondition => Error::FailedPrecondition(refused),
            Code::Internal if has_reason => Error::Internal(refused),
            Code::Unimplemented => match minor_of_call(method) {
                Some(minor) if !has_reason && server.minor < minor => Error::NeedsProtocol {
                    call: method,
                    minor,
                    server,
                },
                _ => Error::Unimplemented(refused),
            },
            Code::Unavailable if NOT_THE_MANAGER.contains(&refused.reason.as_str()) => {
                Error::Unavailable(refused)
            }
            // The outcome of a write without quorum is not known until the quorum is back.
            Code::Unavailable if has_reason && refused.reason != "quorum_lost" => {
                return Self::Busy(refused);
            }
            Code::Unavailable if is_transport(status) => {
                return Self::Lost(crate::link::plain_cause(status));
            }
            Code::Unavailable => return Self::Lost(refused.message),
            Code::DeadlineExceeded | Code::Cancelled => return Self::TimedOut,
            // The transport's own words for a stream that broke in the middle.
            Code::Unknown | Code::Internal if !has_reason && is_transport(status) => {
                return Self::Lost(crate::link::plain_cause(status));
            }
            Code::Internal => Error::Internal(refused),
            code => Error::Unexpected {
                method,
                code: code as i32,
                message: refused.message,
            },
        };
        Self::Final(error)
    }
}

/// True when the status was made on this side, from an error of the connection.
fn is_transport(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn list(failures: &[UrlFailure]) -> String {
    failures
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_proto::convert::refusal::write_refusal;

    fn verdict(status: &tonic::Status) -> Verdict {
        Verdict::of("StartJob", status, Protocol::OURS)
    }

    // spec: SDK-04
    #[test]
    fn a_refusal_keeps_status_reason_details_and_method() {
        let table = [
            (Status::InvalidArgument, "bad_role"),
            (Status::NotFound, "unknown_job"),
            (Status::AlreadyExists, "already_on_node"),
            (Status::PermissionDenied, "role_required"),
            (Status::Unauthenticated, "bad_credentials"),
            (Status::ResourceExhausted, "slow_down"),
            (Status::FailedPrecondition, "job_terminal"),
            (Status::Unimplemented, "not_here"),
            (Status::Internal, "internal"),
        ];
        for (status, reason) in table {
            let refusal = Refusal::new(status, reason, "text").with("path", "job.role");
            let Verdict::Final(error) = verdict(&write_refusal(&refusal)) else {
                panic!("{reason} is final");
            };
            assert_eq!(error.method(), Some("StartJob"));
            assert_eq!(error.reason(), reason);
            assert_eq!(error.into_refusal(), refusal);
        }
    }

    // spec: HELLO-04
    #[test]
    fn an_older_server_without_the_call_is_named() {
        let older = Protocol { major: 1, minor: 0 };
        let status = tonic::Status::unimplemented("");
        let read = Verdict::of("CreateBundle", &status, older);
        assert!(matches!(
            read,
            Verdict::Final(Error::NeedsProtocol {
                call: "CreateBundle",
                minor: 1,
                server,
            }) if server == older
        ));
        let read = Verdict::of("CreateBundle", &status, Protocol::OURS);
        assert!(matches!(read, Verdict::Final(Error::Unimplemented(_))));
        let read = Verdict::of("CreateJob", &status, older);
        assert!(matches!(read, Verdict::Final(Error::Unimplemented(_))));
    }

    #[test]
    fn a_broken_connection_is_told_by_its_innermost_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("tcp connect error")]
        struct Outer(#[source] std::io::Error);
        let inner = std::io::Error::other("Connection refused");
        let status = tonic::Status::from_error(Box::new(Outer(inner)));
        match verdict(&status) {
            Verdict::Lost(cause) => assert_eq!(cause, "Connection refused"),
            other => panic!("{other:?}"),
        }
        let web = "grpc-status header missing, mapped from HTTP status code 403";
        let cause = crate::plain_cause(&tonic::Status::permission_denied(web));
        assert_eq!(cause, "what answers there is no Manager (HTTP status 403)");
    }

    // spec: SDK-05
    #[test]
    fn only_unavailable_managers_are_worth_another_try() {
        let busy = Refusal::new(Status::Unavailable, "no_primary", "none known");
        assert!(matches!(verdict(&write_refusal(&busy)), Verdict::Busy(_)));
        let away = tonic::Status::unavailable("connection refused");
        assert!(matches!(verdict(&away), Verdict::Lost(_)));
        let node = Refusal::new(Status::Unavailable, "node_unreachable", "n1 is unreachable");
        assert!(matches!(
            verdict(&write_refusal(&node)),
            Verdict::Final(Error::Unavailable(_))
        ));
        let quorum = Refusal::new(Status::Unavailable, "quorum_lost", "1 of 3");
        assert!(matches!(verdict(&write_refusal(&quorum)), Verdict::Lost(_)));
    }
}
