//! Between messages of the wire and the domain's values.
//!
//! Reading is `TryFrom<wire> for domain` and refuses what the domain cannot hold: an enum value nobody knows
//! (API-04), a time outside the years of the wire (API-24), a missing identifier (API-15). The error names the
//! field by its path. Writing is `From<&domain> for wire` and never fails. Rules that need more than one message
//! to judge, the form of ids among them, are not checked here.
//!
//! Where one side says less than the other, the module that converts says what is left out.

pub mod bundle;
pub mod call;
pub mod common;
pub mod event;
pub mod inventory;
pub mod job;
pub mod lease;
pub mod node;
pub mod refusal;
pub mod stream;
pub mod worker;

use std::fmt;

/// A message that the domain cannot hold; becomes INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Stable token: `unknown_enum`, `bad_timestamp` or `missing_field`.
    pub reason: &'static str,
    /// Path of the field, as `services[0].parameters.port_mappings[2].protocol`, from the message that was read.
    pub path: String,
    /// What was found there and what would be right.
    pub message: String,
}

// === impl WireError ===

impl WireError {
    pub(crate) fn new(reason: &'static str, path: &str, message: impl Into<String>) -> Self {
        Self {
            reason,
            path: path.to_owned(),
            message: message.into(),
        }
    }

    /// A required identifier that is not there (API-15).
    pub fn missing(path: &str) -> Self {
        Self::new("missing_field", path, "is required and is empty")
    }

    /// The same error, seen from the message that holds the one with the error in `field`.
    #[must_use]
    pub fn under(mut self, field: &str) -> Self {
        self.path = if self.path.is_empty() {
            field.to_owned()
        } else {
            format!("{field}.{}", self.path)
        };
        self
    }

    /// The same, where `field` is repeated or a map and `key` says which element.
    #[must_use]
    pub fn under_element(self, field: &str, key: impl fmt::Display) -> Self {
        self.under(&format!("{field}[{key}]"))
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.message)
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for crate::status::Refusal {
    fn from(error: WireError) -> Self {
        let message = error.to_string();
        Self::new(tonic::Code::InvalidArgument, error.reason, message).with("path", error.path)
    }
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        crate::status::Refusal::from(error).into()
    }
}

// === helpers of the conversions ===

/// Reads every element of a repeated field.
pub(crate) fn read_list<W, T>(elements: Vec<W>, field: &str) -> Result<Vec<T>, WireError>
where
    T: TryFrom<W, Error = WireError>,
{
    elements
        .into_iter()
        .enumerate()
        .map(|(at, element)| T::try_from(element).map_err(|error| error.under_element(field, at)))
        .collect()
}

/// Reads a message that may be absent.
pub(crate) fn read_optional<W, T>(message: Option<W>, field: &str) -> Result<Option<T>, WireError>
where
    T: TryFrom<W, Error = WireError>,
{
    message
        .map(T::try_from)
        .transpose()
        .map_err(|error| error.under(field))
}

/// Reads a message that must be there.
pub(crate) fn read_required<W, T>(message: Option<W>, field: &str) -> Result<T, WireError>
where
    T: TryFrom<W, Error = WireError>,
{
    read_optional(message, field)?.ok_or_else(|| WireError::missing(field))
}

/// Writes every element of a list.
pub(crate) fn write_list<'a, T, W: From<&'a T>>(elements: &'a [T]) -> Vec<W> {
    elements.iter().map(W::from).collect()
}

#[cfg(test)]
mod tests;
