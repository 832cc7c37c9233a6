//! Reading a tree field by field, so that one fault does not hide the next and each has its path.

use std::str::FromStr;

use greenroom_types::id::{IdError, TemplateName};
use greenroom_types::{Millis, tree};
use serde_json::{Map, Value};

use super::{Fault, FaultCode, words};

/// Faults found so far.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<Fault>);

/// One mapping of the tree: remembers which of its keys were asked for.
pub(super) struct Node<'a> {
    map: Option<&'a Map<String, Value>>,
    path: String,
    known: Vec<&'static str>,
}

/// Whether a number may have a fraction, and whether it may be 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zero {
    Allowed,
    Refused,
}

// === impl Faults ===

impl Faults {
    pub(super) fn add(&mut self, code: FaultCode, path: &str, message: impl Into<String>) {
        self.0.push(Fault {
            code,
            path: path.to_owned(),
            message: message.into(),
        });
    }
}

// === impl Node ===

impl<'a> Node<'a> {
    /// The mapping at `path`; anything else there is a fault and reads as empty.
    pub(super) fn new(value: Option<&'a Value>, path: &str, faults: &mut Faults) -> Self {
        let map = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(map)) => Some(map),
            Some(other) => {
                faults.add(
                    FaultCode::UnknownValue,
                    path,
                    wanted("a mapping of keys", other),
                );
                None
            }
        };
        Self {
            map,
            path: path.to_owned(),
            known: Vec::new(),
        }
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The value of a key, present and not null.
    pub(super) fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    /// The value of a key, null included.
    pub(super) fn raw(&mut self, key: &'static str) -> Option<&'a Value> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.map?.get(key)
    }

    pub(super) fn child(&mut self, key: &'static str, faults: &mut Faults) -> Self {
        let path = self.path_of(key);
        Node::new(self.get(key), &path, faults)
    }

    /// The entries of a list with their paths; an absent list is empty.
    pub(super) fn list(
        &mut self,
        key: &'static str,
        faults: &mut Faults,
    ) -> Vec<(&'a Value, String)> {
        let path = self.path_of(key);
        match self.get(key) {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries
                .iter()
                .enumerate()
                .map(|(i, entry)| (entry, format!("{path}[{i}]")))
                .collect(),
            Some(other) => {
                faults.add(FaultCode::UnknownValue, &path, wanted("a list", other));
                Vec::new()
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str, faults: &mut Faults) -> Option<String> {
        match self.get(key)? {
            Value::String(text) => Some(text.clone()),
            other => {
                let path = self.path_of(key);
                faults.add(FaultCode::UnknownValue, &path, wanted("text", other));
                None
            }
        }
    }

    /// A text of one line that can be shown (CONF-18).
    pub(super) fn line(&mut self, key: &'static str, faults: &mut Faults) -> Option<String> {
        let text = self.text(key, faults)?;
        if let Some(fault) = words::fault_of_line(&text, words::WORD_MAX) {
            faults.add(FaultCode::UnknownValue, &self.path_of(key), fault);
        }
        Some(text)
    }

    /// A name of its kind's form; empty where there is none, which is a fault of its own.
    pub(super) fn name<T: FromStr<Err = IdError> + for<'t> From<&'t str>>(
        &mut self,
        key: &'static str,
        faults: &mut Faults,
    ) -> T {
        let text = self.text(key, faults).unwrap_or_default();
        if !text.is_empty()
            && let Err(error) = T::from_str(&text)
        {
            faults.add(
                FaultCode::UnknownValue,
                &self.path_of(key),
                error.to_string(),
            );
        }
        T::from(text.as_str())
    }

    /// Names of templates, each of the form of one.
    pub(super) fn templates(
        &mut self,
        key: &'static str,
        faults: &mut Faults,
    ) -> Vec<TemplateName> {
        let texts = self.texts(key, faults);
        let names = texts.iter().map(String::as_str);
        if let Some(fault) = words::fault_of_templates(names) {
            faults.add(FaultCode::UnknownValue, &self.path_of(key), fault);
        }
        texts.into_iter().map(TemplateName::from).collect()
    }

    pub(super) fn flag(&mut self, key: &'static str, faults: &mut Faults) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(flag) => Some(*flag),
            other => {
                let path = self.path_of(key);
                faults.add(
                    FaultCode::UnknownValue,
                    &path,
                    wanted("true or false", other),
                );
                None
            }
        }
    }

    pub(super) fn texts(&mut self, key: &'static str, faults: &mut Faults) -> Vec<String> {
        let mut texts = Vec::new();
        for (entry, path) in self.list(key, faults) {
            match entry {
                Value::String(text) => texts.push(text.clone()),
                other => faults.add(FaultCode::UnknownValue, &path, wanted("text", other)),
            }
        }
        texts
    }

    /// A value out of a closed list, by the serde form of its type.
    pub(super) fn choice<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &'static str,
        values: &[&str],
        faults: &mut Faults,
    ) -> Option<T> {
        let value = self.get(key)?;
        match serde_json::from_value(value.clone()) {
            Ok(choice) if value.as_str().is_some_and(|v| values.contains(&v)) => Some(choice),
            _ => {
                let path = self.path_of(key);
                faults.add(
                    FaultCode::UnknownValue,
                    &path,
                    wanted(&format!("one of {}", values.join(", ")), value),
                );
                None
            }
        }
    }

    /// A finite number at or above 0. Null is what YAML's `.nan` becomes, so it is a fault here.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        zero: Zero,
        faults: &mut Faults,
    ) -> Option<f64> {
        let value = self.raw(key)?;
        match value.as_f64() {
            Some(n) if n.is_finite() && (n > 0.0 || n == 0.0 && zero == Zero::Allowed) => Some(n),
            _ => {
                let path = self.path_of(key);
                let number = if zero == Zero::Allowed {
                    "a finite number, 0 or more"
                } else {
                    "a finite number above 0"
                };
                faults.add(FaultCode::InvalidNumber, &path, wanted(number, value));
                None
            }
        }
    }

    /// A whole number within `u32`.
    pub(super) fn count(
        &mut self,
        key: &'static str,
        zero: Zero,
        faults: &mut Faults,
    ) -> Option<u32> {
        self.whole(key, zero, f64::from(u32::MAX), faults)
            .and_then(|n| u32::try_from(n).ok())
    }

    /// A whole number of milliseconds, up to a hundred years.
    pub(super) fn millis(
        &mut self,
        key: &'static str,
        zero: Zero,
        faults: &mut Faults,
    ) -> Option<Millis> {
        self.whole(key, zero, MILLIS_MAX, faults).map(Millis)
    }

    /// A number of seconds, fractions of a millisecond dropped.
    pub(super) fn seconds(
        &mut self,
        key: &'static str,
        zero: Zero,
        faults: &mut Faults,
    ) -> Option<Millis> {
        let path = self.path_of(key);
        let n = self.number(key, zero, faults)?;
        let ms = (n * 1000.0).ceil();
        if ms > MILLIS_MAX {
            let found = self.raw(key).map_or_else(String::new, tree::found);
            faults.add(
                FaultCode::InvalidNumber,
                &path,
                format!("{found} s is longer than a hundred years"),
            );
            return None;
        }
        Some(Millis(to_u64(ms)))
    }

    fn whole(
        &mut self,
        key: &'static str,
        zero: Zero,
        max: f64,
        faults: &mut Faults,
    ) -> Option<u64> {
        let path = self.path_of(key);
        let n = self.number(key, zero, faults)?;
        if n.fract() == 0.0 && n <= max {
            Some(to_u64(n))
        } else {
            faults.add(
                FaultCode::InvalidNumber,
                &path,
                format!("expected a whole number up to {max}, found {n}"),
            );
            None
        }
    }

    /// Reports every key that nothing asked for.
    pub(super) fn finish(self, faults: &mut Faults) {
        for key in self.map.into_iter().flat_map(Map::keys) {
            if !self.known.contains(&key.as_str()) {
                let path = self.path_of(key);
                let message = greenroom_types::tree::unknown_key(key, &self.known);
                faults.add(FaultCode::UnknownKey, &path, message);
            }
        }
    }
}

/// A hundred years: far beyond any sensible wait, and safe to add to any clock.
const MILLIS_MAX: f64 = 3_155_760_000_000.0;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
const fn to_u64(n: f64) -> u64 {
    n as u64
}

/// What is expected, and what stands there.
pub(super) fn wanted(what: &str, value: &Value) -> String {
    format!(
        "expected {what}, found {}",
        greenroom_types::tree::found(value)
    )
}
