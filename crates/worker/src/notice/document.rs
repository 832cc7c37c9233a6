//! What the documents of a metadata service say.

use greenroom_types::{ByName, Wall};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// State of a machine whose end has begun.
const TERMINATING: &str = "terminating";

/// The action that a spot machine of EC2 faces.
#[derive(Debug, Deserialize)]
pub(crate) struct Action {
    /// What is done to it.
    pub(crate) action: String,
    time: Option<String>,
}

/// What OCI says of the machine, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Instance {
    /// Where its life stands.
    pub(crate) state: String,
}

// === impl Action, Instance ===

impl Action {
    pub(crate) fn read(text: &str) -> Result<Self, serde_json::Error> {
        by_name(text)
    }

    /// When it is taken; none where the document names no time, or none that can be read.
    pub(crate) fn deadline(&self) -> Option<Wall> {
        let at: Timestamp = self.time.as_deref()?.parse().ok()?;
        Some(Wall(at.as_millisecond()))
    }
}

impl Instance {
    pub(crate) fn read(text: &str) -> Result<Self, serde_json::Error> {
        by_name(text)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.state.eq_ignore_ascii_case(TERMINATING)
    }
}

/// `["", ""]` is no action that a machine faces.
fn by_name<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).map(|ByName(document)| document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_documents_are_read() {
        let at = |time: &str| {
            let text = format!(r#"{{"action": "stop", "time": {time}}}"#);
            Action::read(&text).unwrap().deadline()
        };
        assert_eq!(at(r#""1970-01-01T00:00:01Z""#), Some(Wall(1_000)));
        assert_eq!(at(r#""soon""#), None);
        assert_eq!(at("null"), None);
    }

    // spec: SEC-15, WORK-50
    #[test]
    fn what_is_no_object_is_no_document() {
        for text in [
            r#"["", ""]"#,
            r#"["terminate"]"#,
            "null",
            "{}",
            "\"terminating\"",
            "1",
        ] {
            assert!(Action::read(text).is_err(), "{text}");
            assert!(Instance::read(text).is_err(), "{text}");
        }
    }
}
