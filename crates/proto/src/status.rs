//! Refusals on the wire: a gRPC status with a stable reason and named values (API-08).
//!
//! A [`Refusal`] becomes a [`tonic::Status`] with the trailer `greenroom-reason` and a `norsk.api.error.Status`
//! in `grpc-status-details-bin`, and is read back from one. Both travel in HTTP/2 headers, for which many clients
//! allow 16 KiB in all, so long messages and details are cut, and what was left out is counted. This module does
//! not choose reasons or codes, and keeps no secret out of a message: that is with whoever refuses.

use std::{borrow::Cow, collections::BTreeMap};

use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::error;

/// Name of the trailer that holds the reason (API-08).
pub const REASON_TRAILER: &str = "greenroom-reason";

/// Longest message sent, in bytes of UTF-8. It travels percent-encoded as `grpc-message` (up to three bytes for
/// one) and once more in the details.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// Largest details sent, in encoded bytes without the message. With the message and base64 this stays below the
/// 16 KiB that a client usually allows for all headers of an answer.
pub const DETAILS_BYTES_MAX: usize = 4 * 1024;

/// Name of the detail that counts list elements which did not fit.
pub const LEFT_OUT: &str = "left_out";

/// Greatest integer that a double holds exactly together with all below it: 2^53.
const EXACT_INTEGER_MAX: u128 = 1 << 53;

/// One named value of a refusal.
#[derive(Clone, Debug, PartialEq)]
pub enum Detail {
    /// No value.
    Null,
    /// A number. Integers above 2^53 in size are [`Detail::Text`], in decimal.
    Number(f64),
    /// Text.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// Several values, in order.
    List(Vec<Self>),
    /// Named values.
    Named(BTreeMap<String, Self>),
}

/// Why a call ended without effect: gRPC code, stable reason, text for people, named values for programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The gRPC status code.
    pub code: tonic::Code,
    /// Stable token of `[a-z_]+`, as the specification writes it after "refused".
    pub reason: Cow<'static, str>,
    /// Names the object and the value that was wrong, and what would be right (API-09).
    pub message: String,
    /// The values that the requirement names, in snake case.
    pub details: BTreeMap<String, Detail>,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal without details.
    ///
    /// # Panics
    /// When `reason` is not of `[a-z_]+`: reasons are constants of the program.
    pub fn new(code: tonic::Code, reason: &'static str, message: impl Into<String>) -> Self {
        assert!(
            is_reason(reason),
            "a reason is of [a-z_]+, this one is {reason:?}"
        );
        Self {
            code,
            reason: Cow::Borrowed(reason),
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    /// The same with one more named value; a value already there under that name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Detail>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }

    /// Reads a refusal from the status of a call.
    ///
    /// `None` when the status carries no reason: the transport refused the call before a handler saw it, or the
    /// other side is not Greenroom. Details that are missing or cannot be read are left empty, since code, reason
    /// and message say the essential.
    pub fn read(status: &tonic::Status) -> Option<Self> {
        let reason = status.metadata().get(REASON_TRAILER)?.to_str().ok()?;
        if !is_reason(reason) {
            return None;
        }
        let details = error::Status::decode(status.details())
            .ok()
            .and_then(|decoded| decoded.details)
            .map(named_from_wire)
            .unwrap_or_default();
        Some(Self {
            code: status.code(),
            reason: Cow::Owned(reason.to_owned()),
            message: status.message().to_owned(),
            details,
        })
    }

    /// The value named `name`.
    pub fn detail(&self, name: &str) -> Option<&Detail> {
        self.details.get(name)
    }
}

impl From<Refusal> for tonic::Status {
    /// # Panics
    /// When the reason is not of `[a-z_]+`: reasons are constants of the program.
    fn from(refusal: Refusal) -> Self {
        let Refusal {
            code,
            reason,
            mut message,
            details,
        } = refusal;
        cut_text(&mut message, MESSAGE_BYTES_MAX);
        let details = error::Status {
            code: code as i32,
            message: message.clone(),
            details: Some(named_to_wire(fit(details))),
        };
        let mut metadata = MetadataMap::new();
        assert!(
            is_reason(&reason),
            "a reason is of [a-z_]+, this one is {reason:?}"
        );
        metadata.insert(
            REASON_TRAILER,
            MetadataValue::try_from(reason.as_ref()).expect("letters and underscores are ASCII"),
        );
        Self::with_details_and_metadata(code, message, details.encode_to_vec().into(), metadata)
    }
}

// === impl Detail ===

impl Detail {
    /// The text, where this is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, where this is one of the range of `u64`, as number or as decimal text.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Number(number) => exact_integer(*number).and_then(|value| value.try_into().ok()),
            _ => None,
        }
    }

    /// The integer, where this is one of the range of `i64`, as number or as decimal text.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Number(number) => exact_integer(*number),
            _ => None,
        }
    }

    /// The elements, where this is a list.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// Named values from pairs.
    pub fn named<const N: usize>(pairs: [(&str, Self); N]) -> Self {
        Self::Named(
            pairs
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }
}

impl From<&str> for Detail {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Detail {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Detail {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<f64> for Detail {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Detail {
    fn from(value: u32) -> Self {
        Self::Number(f64::from(value))
    }
}

impl From<i32> for Detail {
    fn from(value: i32) -> Self {
        Self::Number(f64::from(value))
    }
}

impl From<u64> for Detail {
    fn from(value: u64) -> Self {
        integer(value.into())
    }
}

impl From<i64> for Detail {
    fn from(value: i64) -> Self {
        integer(value.into())
    }
}

impl<T: Into<Self>> From<Vec<T>> for Detail {
    fn from(elements: Vec<T>) -> Self {
        Self::List(elements.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self>> From<Option<T>> for Detail {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

// === helpers ===

fn is_reason(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn integer(value: i128) -> Detail {
    if value.unsigned_abs() > EXACT_INTEGER_MAX {
        Detail::Text(value.to_string())
    } else {
        Detail::Number(value as f64)
    }
}

fn exact_integer(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= EXACT_INTEGER_MAX as f64).then_some(number as i64)
}

/// Shortens `text` to at most `bytes_max` bytes, at a character boundary.
fn cut_text(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
}

/// Shortens details until they fit into [`DETAILS_BYTES_MAX`]: lists lose their last elements, which are counted
/// under [`LEFT_OUT`]; then texts lose their ends; then whole values go, the last name first.
fn fit(mut details: BTreeMap<String, Detail>) -> BTreeMap<String, Detail> {
    let mut left_out = 0_u32;
    // The count itself is added at the end and takes part of the room.
    while encoded_len(&details) > DETAILS_BYTES_MAX - 32 {
        if let Some(list) = longest(&mut details, |detail| match detail {
            Detail::List(list) if !list.is_empty() => Some((list.len(), list)),
            _ => None,
        }) {
            let kept = list.len() / 2;
            left_out += (list.len() - kept) as u32;
            list.truncate(kept);
        } else if let Some(text) = longest(&mut details, |detail| match detail {
            Detail::Text(text) if text.len() > 64 => Some((text.len(), text)),
            _ => None,
        }) {
            let kept = text.len() / 2;
            cut_text(text, kept);
        } else {
            details.pop_last();
        }
    }
    if left_out > 0 {
        details.insert(LEFT_OUT.to_owned(), left_out.into());
    }
    details
}

fn longest<'a, T>(
    details: &'a mut BTreeMap<String, Detail>,
    pick: impl Fn(&'a mut Detail) -> Option<(usize, T)>,
) -> Option<T> {
    details
        .values_mut()
        .filter_map(pick)
        .max_by_key(|(len, _)| *len)
        .map(|(_, found)| found)
}

fn encoded_len(details: &BTreeMap<String, Detail>) -> usize {
    named_to_wire(details.clone()).encoded_len()
}

fn named_to_wire(named: BTreeMap<String, Detail>) -> error::Struct {
    error::Struct {
        fields: named
            .into_iter()
            .map(|(name, value)| (name, to_wire(value)))
            .collect(),
    }
}

fn to_wire(detail: Detail) -> error::Value {
    use error::value::Kind;
    let kind = match detail {
        Detail::Null => Kind::NullValue(error::NullValue::NullValue.into()),
        Detail::Number(number) => Kind::NumberValue(number),
        Detail::Text(text) => Kind::StringValue(text),
        Detail::Flag(flag) => Kind::BoolValue(flag),
        Detail::List(list) => Kind::ListValue(error::ListValue {
            values: list.into_iter().map(to_wire).collect(),
        }),
        Detail::Named(named) => Kind::StructValue(named_to_wire(named)),
    };
    error::Value { kind: Some(kind) }
}

fn named_from_wire(wire: error::Struct) -> BTreeMap<String, Detail> {
    wire.fields
        .into_iter()
        .map(|(name, value)| (name, from_wire(value)))
        .collect()
}

fn from_wire(value: error::Value) -> Detail {
    use error::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => Detail::Null,
        Some(Kind::NumberValue(number)) => Detail::Number(number),
        Some(Kind::StringValue(text)) => Detail::Text(text),
        Some(Kind::BoolValue(flag)) => Detail::Flag(flag),
        Some(Kind::StructValue(named)) => Detail::Named(named_from_wire(named)),
        Some(Kind::ListValue(list)) => {
            Detail::List(list.values.into_iter().map(from_wire).collect())
        }
        Some(Kind::CodeValue(code)) => Detail::from(code),
    }
}

#[cfg(test)]
mod tests;
