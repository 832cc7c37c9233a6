//! One message of the job socket: a JSON object on a line (SOCK-03, SOCK-04).
//!
//! Stricter than JSON parsers are by themselves: no key twice, no deep nesting. What a message means
//! is not looked at here.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Longest line, its end included.
pub(crate) const LINE_MAX: usize = 512 << 10;
/// Objects and lists within each other, the message itself counted.
const DEPTH_MAX: usize = 16;

/// A message that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) kind: String,
    pub(crate) id: u64,
    /// The id of the message that it answers.
    pub(crate) re: Option<u64>,
    pub(crate) fields: Map<String, Value>,
}

// === impl Message ===

impl Message {
    /// Reads a line; the error says in words what is wrong with it.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_slice(line);
        let strict = Strict(DEPTH_MAX).deserialize(&mut reader);
        let value = strict.map_err(|error| error.to_string())?;
        reader.end().map_err(|error| error.to_string())?;
        let Value::Object(fields) = value else {
            return Err("a message is a JSON object".to_owned());
        };
        let kind = fields.get("type").and_then(Value::as_str);
        let kind = kind.ok_or("a message has a type, which is a string")?;
        let id = fields
            .get("id")
            .and_then(Value::as_u64)
            .filter(|id| *id > 0);
        Ok(Self {
            kind: kind.to_owned(),
            id: id.ok_or("a message has an id, which is an integer from 1")?,
            re: fields.get("re").and_then(Value::as_u64),
            fields,
        })
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }
}

/// Reads a value in which so many levels may still be nested.
struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

// === impl Strict ===

impl Strict {
    fn inner<E: Error>(&self) -> Result<usize, E> {
        let deeper = self.0.checked_sub(1);
        deeper.ok_or_else(|| E::custom(format!("nested deeper than {DEPTH_MAX}")))
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Self(inner))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut fields = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} is there twice")));
            }
            fields.insert(key, object.next_value_seed(Self(inner))?);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SOCK-03, SOCK-04
    #[test]
    fn what_is_no_message_is_told_in_words() {
        let good = Message::parse(br#"{"type":"status","id":3,"re":1,"other":[1.5,null,true]}"#);
        let good = good.unwrap();
        assert_eq!(
            (good.kind.as_str(), good.id, good.re),
            ("status", 3, Some(1))
        );
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
            format!(r#"{{"type":"x","id":1,"a":{open}{close}}}"#)
        };
        assert!(Message::parse(nested(16).as_bytes()).is_ok());
        for (bad, words) in [
            (nested(17).as_str(), "deeper than 16"),
            (r#"{"type":"x","id":1,"id":2}"#, "twice"),
            (r#"{"type":"x","id":1,"a":{"b":1,"b":1}}"#, "twice"),
            (r#"["type","x"]"#, "object"),
            (r#"{"id":1}"#, "has a type"),
            (r#"{"type":"x"}"#, "has an id"),
            (r#"{"type":"x","id":0}"#, "has an id"),
            (r#"{"type":"x","id":1.5}"#, "has an id"),
            (r#"{"type":"x","id":1} {}"#, "trailing"),
            ("{", "EOF"),
        ] {
            let error = Message::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{bad}: {error}");
        }
        assert!(Message::parse(b"{\"type\":\"\xff\",\"id\":1}").is_err());
    }
}
