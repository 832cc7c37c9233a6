//! What a caller is told when something goes wrong: a status, a stable code, a message.

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use greenroom_auto::CallError;
use greenroom_policy::settings::Fault;
use greenroom_policy::{ApiError, CallFailure};
use greenroom_types::call::Status;
use http::StatusCode;

use crate::api::{BODY_BYTES_MAX, ErrorBody, ErrorInfo};

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) message: String,
    /// One by one, where it is about a list or settings.
    pub(crate) faults: Vec<Fault>,
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
            faults: Vec::new(),
        }
    }

    pub(crate) fn body_too_large() -> Self {
        let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "bodyTooLarge", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "badRequest", message)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error = ErrorInfo {
            code: self.code,
            message: self.message,
            faults: self.faults,
        };
        (self.status, Json(ErrorBody { error })).into_response()
    }
}

impl From<BytesRejection> for Failure {
    fn from(rejection: BytesRejection) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Self::body_too_large()
        } else {
            Self::bad_request(rejection.body_text())
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let status = match &error {
            CallError::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            CallError::Answer { .. } => StatusCode::BAD_GATEWAY,
            CallError::Api(ApiError::Closed | ApiError::NotKept { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            CallError::Api(
                ApiError::UnknownBundle { .. }
                | ApiError::UnknownNode { .. }
                | ApiError::UnknownNodes { .. },
            ) => StatusCode::NOT_FOUND,
            CallError::Api(ApiError::Manager(CallFailure::Refused(refusal))) => {
                of_manager(refusal.status)
            }
            CallError::Api(ApiError::Manager(CallFailure::Unavailable(_))) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            CallError::Api(ApiError::Manager(CallFailure::TimedOut)) => StatusCode::GATEWAY_TIMEOUT,
            CallError::Api(
                ApiError::Settings(_) | ApiError::ExclusiveWithoutReservedFor { .. },
            ) => StatusCode::BAD_REQUEST,
            // The policy's own refusals: the state does not allow it.
            #[allow(
                unreachable_patterns,
                reason = "the policy may know more refusals than this file"
            )]
            CallError::Api(_) => StatusCode::CONFLICT,
        };
        Self {
            status,
            code: error.code().to_owned(),
            message: error.to_string(),
            faults: match error {
                CallError::Api(ApiError::Settings(error)) => error.faults,
                _ => Vec::new(),
            },
        }
    }
}

const fn of_manager(status: Status) -> StatusCode {
    match status {
        Status::InvalidArgument => StatusCode::BAD_REQUEST,
        Status::NotFound => StatusCode::NOT_FOUND,
        Status::AlreadyExists | Status::FailedPrecondition => StatusCode::CONFLICT,
        Status::PermissionDenied => StatusCode::FORBIDDEN,
        Status::Unauthenticated => StatusCode::UNAUTHORIZED,
        Status::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Status::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Status::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Status::Cancelled | Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Status::Internal => StatusCode::BAD_GATEWAY,
    }
}
