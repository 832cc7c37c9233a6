//! A text as trees, with every word as it was written.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{Problem, TEXT_MAX, locate, read};

/// A tree in which a number that is none stands as the word that was written. A tree of JSON has no such
/// numbers: reading would end at the first of them and hide every other fault, or take it for nothing
/// at all, so that it would pass where a key may be left out.
struct Tree(Value);

/// Reads every document of a text as a tree, for those who check the values themselves. `.nan` and `.inf`
/// stand in it as text, which is a fault wherever a number is wanted.
///
/// # Errors
/// The text is no YAML; with line, column and key.
pub fn read_trees(file: &str, text: &str) -> Result<Vec<Value>, Problem> {
    if text.len() <= TEXT_MAX
        && let Ok(trees) =
            serde_saphyr::from_multiple_with_options::<Tree>(text, locate::positions_only())
    {
        return Ok(trees.into_iter().map(|tree| tree.0).collect());
    }
    // Read again by the one that says where the fault is.
    read(file, text)
}

// === impl Tree ===

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Tree)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(match serde_json::Number::from_f64(value) {
            Some(number) => Value::Number(number),
            None if value.is_nan() => ".nan".into(),
            None if value > 0.0 => ".inf".into(),
            None => "-.inf".into(),
        })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Tree(value))) = entries.next_entry::<String, Tree>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key} stands twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_that_is_none_hides_nothing_of_the_rest() {
        let text = "a: .nan\nb: [.inf, -.inf, 1.5, 2, -3]\nc: {d: on, e: true, f: ~}\n---\n7\n";
        assert_eq!(
            read_trees("x.yaml", text).unwrap(),
            [
                json!({
                    "a": ".nan", "b": [".inf", "-.inf", 1.5, 2, -3],
                    "c": {"d": "on", "e": true, "f": null},
                }),
                json!(7)
            ]
        );
        let problem = read_trees("x.yaml", "a: 1\nb: [\n").unwrap_err();
        assert!(problem.to_string().starts_with("x.yaml:"), "{problem}");
    }
}
