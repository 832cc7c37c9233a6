//! Records in JSON of others, read by the names of their fields alone.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A record that was an object. `serde` takes a list for a record as well, its elements for the fields in the
/// order in which a program happens to name them: no document of others means that.
///
/// ```
/// use greenroom_types::ByName;
/// #[derive(serde::Deserialize)]
/// struct Header {
///     alg: String,
/// }
/// let read = |text| serde_json::from_str::<ByName<Header>>(text);
/// assert_eq!(read(r#"{"alg": "EdDSA"}"#).unwrap().0.alg, "EdDSA");
/// assert!(read(r#"["EdDSA"]"#).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByName<T>(pub T);

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByName<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = ByName<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ByName<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(ByName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Record<'a> {
        one: u8,
        #[serde(borrow)]
        two: Option<&'a str>,
        inner: Option<Vec<ByName<Inner>>>,
    }

    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Inner {
        x: i64,
    }

    // spec: SEC-15
    #[test]
    fn an_object_is_a_record_and_nothing_else_is() {
        let read = |text| serde_json::from_str::<ByName<Record<'_>>>(text);
        let whole = r#"{"two": "b", "more": [1], "one": 1, "inner": [{"x": 2}]}"#;
        let record = Record {
            one: 1,
            two: Some("b"),
            inner: Some(vec![ByName(Inner { x: 2 })]),
        };
        assert_eq!(read(whole).unwrap(), ByName(record));
        assert!(read(r#"{"one": 1}"#).is_ok());
        for bad in [
            r#"[1, "b", null]"#,
            "[1]",
            "[]",
            "null",
            "1",
            r#"{"two": "b"}"#,
            r#"{"one": 1, "one": 2}"#,
            r#"{"one": 1, "inner": [[2]]}"#,
            r#"{"one": 1} x"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
