//! A text as a tree, with every word as it was written.

use std::fmt;

use greenroom_manifest::Problem;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A tree in which a number that is none stands as the word that was written. A tree of JSON has no
/// such numbers and would take them for nothing at all, so that they would pass where a key may be
/// left out.
struct Tree(Value);

/// The documents of a text. A word is a word: of the plain ones only `true` and `false` are truth
/// values, so that a node may be called `n` and a job `on`.
pub(super) fn trees(file: &str, text: &str) -> Result<Vec<Value>, Problem> {
    let mut options = serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: DEPTH },
    };
    options.non_finite_float_policy = serde_saphyr::NonFiniteFloatPolicy::PassThrough;
    if text.len() <= greenroom_manifest::TEXT_MAX
        && let Ok(trees) = serde_saphyr::from_multiple_with_options::<Tree>(text, options)
    {
        return Ok(trees.into_iter().map(|tree| tree.0).collect());
    }
    // Read again by the reader of manifests, which says where the fault is.
    greenroom_manifest::read(file, text)
}

/// Levels of a text; far more than a scenario has.
const DEPTH: usize = 64;

/// A text for one line of a terminal, cut where it is too long: a character that would end the line
/// or steer the terminal is shown as it is written in quotes.
pub(super) fn on_one_line(text: &str, most: usize) -> String {
    let mut line = String::with_capacity(text.len().min(most));
    for (at, c) in text.chars().enumerate() {
        if at == most {
            line.push_str("...");
            break;
        }
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
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
