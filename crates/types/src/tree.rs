//! Reading a tree that a person wrote. Every fault says in plain words what is expected at which key
//! and what stands there, whatever the type that is read: serde's own words are for programmers.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde_json::{Map, Value};

/// Letters of a text that are shown in a message.
const SHOWN: usize = 60;

/// From here on a number is told by its size and not by all of its digits.
const HUGE: f64 = 1e15;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Key, e.g. `jobs[0].jobName`; empty for the whole tree.
    pub path: String,
    /// What is expected there, and what was found.
    pub message: String,
}

/// How scalars are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalars {
    /// As the tree has them.
    Typed,
    /// As in a YAML text, where a plain number is a text if a text is wanted, and an empty value is
    /// an empty list, mapping or text.
    Written,
}

/// Reads a value.
///
/// # Errors
/// The first fault.
pub fn read<T: DeserializeOwned>(tree: &Value) -> Result<T, Fault> {
    T::deserialize(Reader(tree, Scalars::Typed))
}

/// Reads a value from a tree whose scalars come from a YAML text.
///
/// # Errors
/// The first fault.
pub fn read_written<T: DeserializeOwned>(tree: &Value) -> Result<T, Fault> {
    T::deserialize(Reader(tree, Scalars::Written))
}

/// Reads a part of a value, within the reading of the whole.
///
/// # Errors
/// The first fault, as an error of the whole.
pub fn nested<T: DeserializeOwned, E: de::Error>(tree: &Value) -> Result<T, E> {
    read(tree).map_err(E::custom)
}

/// What stands somewhere, short and without its inside: `text "two"`, `a list`.
#[must_use]
pub fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

/// A number as somebody would write it: one that is huge without a row of zeros.
pub fn number(value: f64) -> String {
    match value.abs() >= HUGE {
        true => format!("{value:e}"),
        false => value.to_string(),
    }
}

fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("text {:?}...", &text[..at]),
        None => format!("text {text:?}"),
    }
}

// === impl Fault ===

impl Fault {
    fn new(message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            message: message.into(),
        }
    }

    fn wanted(wanted: &str, found: &str) -> Self {
        Self::new(format!("expected {wanted}, found {found}"))
    }

    /// Puts the path of the fault below a key or an index.
    fn within(mut self, outer: &str) -> Self {
        let separator = match self.path.as_bytes().first() {
            None | Some(b'[') => "",
            Some(_) => ".",
        };
        self.path = format!("{outer}{separator}{}", self.path);
        self
    }

    /// True for a key that is not known where it stands.
    #[must_use]
    pub fn is_unknown_key(&self) -> bool {
        self.message.starts_with(UNKNOWN_KEY)
    }
}

const UNKNOWN_KEY: &str = "unknown key ";

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::wanted(&of_kind(&wanted.to_string()), &of_unexpected(&unexpected))
    }

    fn invalid_value(unexpected: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::wanted(&of_range(&wanted.to_string()), &of_unexpected(&unexpected))
    }

    fn invalid_length(length: usize, wanted: &dyn Expected) -> Self {
        let found = format!("{length}");
        Self::wanted(&of_kind(&wanted.to_string()), &found)
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self::new(unknown_word(variant, known))
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(unknown_key(key, known))
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(missing_key(key))
    }

    fn duplicate_field(key: &'static str) -> Self {
        Self::new(format!("the key {key} stands twice"))
    }
}

/// That a key is not known where it stands, in the one form in which that is told everywhere.
#[must_use]
pub fn unknown_key(key: &str, known: &[&str]) -> String {
    let mut message = format!("{UNKNOWN_KEY}{key:?}");
    match nearest(key, known) {
        Some(near) => message.push_str(&format!("; did you mean {near}? ")),
        None => message.push_str("; "),
    }
    // A key that is read from two places stands twice among those that are known.
    let mut once: Vec<&str> = Vec::new();
    for name in known {
        if !once.contains(name) {
            once.push(name);
        }
    }
    match once.as_slice() {
        [] => message.push_str("no key is known here"),
        once => message.push_str(&format!("known here: {}", once.join(", "))),
    }
    message
}

/// That a word is none of those that may stand there.
#[must_use]
pub fn unknown_word(word: &str, known: &[&str]) -> String {
    format!("expected {}, found {}", one_of(known), quoted(word))
}

/// That a key is missing.
#[must_use]
pub fn missing_key(key: &str) -> String {
    format!("the key {key} is missing")
}

/// That another kind of value stands there; both as serde names them.
#[must_use]
pub fn other_kind(wanted: &str, found: &str) -> String {
    format!("expected {}, found {found}", of_kind(wanted))
}

/// What a visitor of serde wants, in plain words.
fn of_kind(wanted: &str) -> String {
    let words = match wanted {
        "a string" | "a borrowed string" | "a character" => "text",
        "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => {
            "a whole number"
        }
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "a mapping of keys",
        "unit" => "nothing",
        other if other.starts_with("struct ") => "a mapping of keys",
        other => return of_tuple(other).unwrap_or_else(|| other.to_owned()),
    };
    words.to_owned()
}

fn of_tuple(wanted: &str) -> Option<String> {
    let size = wanted.strip_prefix("a tuple of size ")?;
    Some(format!("a list of {size}"))
}

/// The same for a number that is beyond the range of its key.
fn of_range(wanted: &str) -> String {
    let (min, max) = match wanted {
        "u8" => (0, u64::from(u8::MAX)),
        "u16" => (0, u64::from(u16::MAX)),
        "u32" => (0, u64::from(u32::MAX)),
        "i32" => (i64::from(i32::MIN), 0x7fff_ffff),
        "u64" | "usize" => return "a whole number, 0 or more".to_owned(),
        other => return of_kind(other),
    };
    format!("a whole number from {min} to {max}")
}

fn of_unexpected(unexpected: &Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Bool(flag) => flag.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Char(letter) => quoted(&letter.to_string()),
        Unexpected::Str(text) => quoted(text),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        Unexpected::Other(words) => (*words).to_owned(),
        _ => "something else".to_owned(),
    }
}

fn one_of(known: &[&str]) -> String {
    match known {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        known => format!("one of {}", known.join(", ")),
    }
}

/// The known key that a slip most likely meant: a letter or two apart, or the same but for case.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let far = if key.len() < 5 { 1 } else { 2 };
    known
        .iter()
        .map(|name| (distance(&key.to_lowercase(), &name.to_lowercase()), *name))
        .filter(|(apart, _)| *apart <= far)
        .min()
        .map(|(_, name)| name)
}

/// How many letters must be put in, taken out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(SHOWN).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(SHOWN).enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

// === reading ===

/// One value of the tree.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Value, Scalars);

impl<'a> Reader<'a> {
    /// In a YAML text, what is left empty is an empty whatever is wanted.
    fn is_left_empty(self) -> bool {
        self.1 == Scalars::Written && self.0.is_null()
    }

    fn list(self, items: &'a [Value]) -> List<'a> {
        List {
            items: items.iter(),
            at: 0,
            scalars: self.1,
        }
    }

    fn keys(self, map: &'a Map<String, Value>) -> Keys<'a> {
        Keys {
            entries: Some(map.iter()),
            current: None,
            scalars: self.1,
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => {
                if let Some(number) = number.as_u64() {
                    visitor.visit_u64(number)
                } else if let Some(number) = number.as_i64() {
                    visitor.visit_i64(number)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => {
                let mut list = self.list(items);
                let value = visitor.visit_seq(&mut list)?;
                // A pair takes two and would drop the rest without a word.
                match list.at {
                    at if at < items.len() => Err(Fault::wanted(
                        &format!("a list of {at}"),
                        &items.len().to_string(),
                    )),
                    _ => Ok(value),
                }
            }
            Value::Object(map) => visitor.visit_map(self.keys(map)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match (self.1, self.0) {
            (Scalars::Written, Value::Number(number)) => visitor.visit_string(number.to_string()),
            (Scalars::Written, Value::Bool(flag)) => visitor.visit_string(flag.to_string()),
            _ if self.is_left_empty() => visitor.visit_str(""),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    /// A tree has no word for what is no number: it stands there as nothing.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_left_empty() {
            visitor.visit_f64(f64::NAN)
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.0.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_left_empty() {
            visitor.visit_seq(self.list(&[]))
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_left_empty() {
            visitor.visit_map(Keys {
                entries: None,
                current: None,
                scalars: self.1,
            })
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        // A list would be taken for the fields in their order, which nobody writes.
        if self.0.is_array() {
            return Err(Fault::wanted("a mapping of keys", "a list"));
        }
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let choice = match self.0 {
            Value::String(name) => (name, None),
            Value::Object(map) if map.len() == 1 => match map.iter().next() {
                Some((name, value)) => (name, Some(Self(value, self.1))),
                None => return Err(Fault::wanted(&one_of(known), "nothing")),
            },
            Value::Object(map) => {
                let found = format!("a mapping of {} keys", map.len());
                return Err(Fault::wanted(&one_of(known), &found));
            }
            other => return Err(Fault::wanted(&one_of(known), &found(other))),
        };
        visitor.visit_enum(Choice {
            name: choice.0,
            value: choice.1,
        })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple
        tuple_struct identifier
    }
}

struct List<'a> {
    items: std::slice::Iter<'a, Value>,
    at: usize,
    scalars: Scalars,
}

impl<'de> SeqAccess<'de> for List<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.items.next() else {
            return Ok(None);
        };
        let index = format!("[{}]", self.at);
        self.at += 1;
        seed.deserialize(Reader(item, self.scalars))
            .map(Some)
            .map_err(|fault| fault.within(&index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Keys<'a> {
    /// None for what was left empty.
    entries: Option<serde_json::map::Iter<'a>>,
    current: Option<(&'a str, &'a Value)>,
    scalars: Scalars,
}

impl<'de> MapAccess<'de> for Keys<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((key, value)) = self.entries.as_mut().and_then(Iterator::next) else {
            return Ok(None);
        };
        self.current = Some((key, value));
        let reader = de::value::BorrowedStrDeserializer::new(key);
        seed.deserialize(reader)
            .map(Some)
            .map_err(|fault: Fault| fault.within(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some((key, value)) = self.current.take() else {
            return Err(Fault::new("a value was asked for ahead of its key"));
        };
        seed.deserialize(Reader(value, self.scalars))
            .map_err(|fault| fault.within(key))
    }

    fn size_hint(&self) -> Option<usize> {
        self.entries.as_ref().map(ExactSizeIterator::len)
    }
}

/// One of several: its name, and what goes with it.
struct Choice<'a> {
    name: &'a str,
    value: Option<Reader<'a>>,
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        let name: de::value::StrDeserializer<'_, Fault> = self.name.into_deserializer();
        // An unknown key of a mapping is a key of its own path; an unknown word is the value's.
        let value = seed.deserialize(name).map_err(|fault| match self.value {
            Some(_) => fault.within(self.name),
            None => fault,
        })?;
        Ok((value, self))
    }
}

impl<'a> Choice<'a> {
    fn value(&self) -> Result<Reader<'a>, Fault> {
        let name = self.name;
        self.value
            .ok_or_else(|| Fault::new(format!("{name} needs a value: write {name}: ...")))
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.value {
            Some(Reader(value, _)) if !value.is_null() => {
                let name = self.name;
                Err(Fault::new(format!("{name} takes no value: write {name} alone")).within(name))
            }
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.value()?)
            .map_err(|fault| fault.within(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.value()?
            .deserialize_seq(visitor)
            .map_err(|fault| fault.within(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.value()?
            .deserialize_struct("", fields, visitor)
            .map_err(|fault| fault.within(self.name))
    }
}

#[cfg(test)]
mod tests;
