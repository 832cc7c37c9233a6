//! Refusals of the domain as statuses of gRPC, and back.
//!
//! The wire can say more than the domain: a status code that the Manager does not use reads as `Internal`, named
//! values inside a value read as a list of `name: value` texts.

use greenroom_types::call::{self, Refusal, Status};
use tonic::Code;

use crate::status;

/// The gRPC code of a status.
pub const fn write_code(status: Status) -> Code {
    match status {
        Status::Cancelled => Code::Cancelled,
        Status::InvalidArgument => Code::InvalidArgument,
        Status::DeadlineExceeded => Code::DeadlineExceeded,
        Status::NotFound => Code::NotFound,
        Status::AlreadyExists => Code::AlreadyExists,
        Status::PermissionDenied => Code::PermissionDenied,
        Status::Unauthenticated => Code::Unauthenticated,
        Status::ResourceExhausted => Code::ResourceExhausted,
        Status::FailedPrecondition => Code::FailedPrecondition,
        Status::Internal => Code::Internal,
        Status::Unimplemented => Code::Unimplemented,
        Status::Unavailable => Code::Unavailable,
    }
}

/// The status of a gRPC code.
pub const fn read_code(code: Code) -> Status {
    match code {
        Code::Cancelled => Status::Cancelled,
        Code::InvalidArgument => Status::InvalidArgument,
        Code::DeadlineExceeded => Status::DeadlineExceeded,
        Code::NotFound => Status::NotFound,
        Code::AlreadyExists => Status::AlreadyExists,
        Code::PermissionDenied => Status::PermissionDenied,
        Code::Unauthenticated => Status::Unauthenticated,
        Code::ResourceExhausted => Status::ResourceExhausted,
        Code::FailedPrecondition => Status::FailedPrecondition,
        Code::Unimplemented => Status::Unimplemented,
        Code::Unavailable => Status::Unavailable,
        Code::Ok
        | Code::Unknown
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => Status::Internal,
    }
}

/// Writes a refusal as the status that ends the call (API-08).
pub fn write_refusal(refusal: &Refusal) -> tonic::Status {
    status::Refusal {
        code: write_code(refusal.status),
        reason: refusal.reason.clone().into(),
        message: refusal.message.clone(),
        details: refusal
            .details
            .iter()
            .map(|(name, value)| (name.clone(), write_detail(value)))
            .collect(),
    }
    .into()
}

/// Reads the refusal that a call ended with; none where the status carries no reason.
pub fn read_refusal(status: &tonic::Status) -> Option<Refusal> {
    let read = status::Refusal::read(status)?;
    Some(Refusal {
        status: read_code(read.code),
        reason: read.reason.into_owned(),
        message: read.message,
        details: read
            .details
            .into_iter()
            .filter_map(|(name, value)| Some((name, read_detail(value)?)))
            .collect(),
    })
}

fn write_detail(detail: &call::Detail) -> status::Detail {
    match detail {
        call::Detail::Bool(flag) => (*flag).into(),
        call::Detail::Int(value) => (*value).into(),
        call::Detail::Number(number) => (*number).into(),
        call::Detail::Text(text) => text.as_str().into(),
        call::Detail::List(list) => status::Detail::List(list.iter().map(write_detail).collect()),
    }
}

fn read_detail(detail: status::Detail) -> Option<call::Detail> {
    Some(match detail {
        status::Detail::Null => return None,
        status::Detail::Number(number) => match detail.as_i64() {
            Some(integer) => call::Detail::Int(integer),
            None => call::Detail::Number(number),
        },
        status::Detail::Text(text) => call::Detail::Text(text),
        status::Detail::Flag(flag) => call::Detail::Bool(flag),
        status::Detail::List(list) => {
            call::Detail::List(list.into_iter().filter_map(read_detail).collect())
        }
        status::Detail::Named(named) => call::Detail::List(
            named
                .into_iter()
                .filter_map(|(name, value)| {
                    Some(call::Detail::Text(format!(
                        "{name}: {}",
                        in_words(&read_detail(value)?)
                    )))
                })
                .collect(),
        ),
    })
}

fn in_words(detail: &call::Detail) -> String {
    match detail {
        call::Detail::Bool(flag) => flag.to_string(),
        call::Detail::Int(value) => value.to_string(),
        call::Detail::Number(number) => number.to_string(),
        call::Detail::Text(text) => text.clone(),
        call::Detail::List(list) => list.iter().map(in_words).collect::<Vec<_>>().join(", "),
    }
}
