//! Where each key of a text stands, so that a fault found later can be shown at its line.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column.
    pub column: u64,
}

/// The places of all keys and list elements of the documents of one text.
#[derive(Clone, Debug, Default)]
pub struct Locations {
    documents: Vec<BTreeMap<String, Position>>,
}

struct Node(Spanned<Inner>);

enum Inner {
    Map(Vec<(Spanned<String>, Node)>),
    List(Vec<Node>),
    Scalar,
}

// === impl Locations ===

impl Locations {
    /// Finds the places in a text.
    ///
    /// # Errors
    /// The text is no YAML; the message is the parser's.
    pub fn of(text: &str) -> Result<Self, String> {
        let nodes: Vec<Node> = serde_saphyr::from_multiple_with_options(text, positions_only())
            .map_err(|error| crate::words(&error))?;
        let documents = nodes
            .iter()
            .map(|node| {
                let mut places = BTreeMap::new();
                walk(node, String::new(), &mut places);
                places
            })
            .collect();
        Ok(Self { documents })
    }

    /// The place of a key in a document; of the nearest key around it when that very one is absent.
    pub fn position(&self, document: usize, path: &str) -> Option<Position> {
        let places = self.documents.get(document)?;
        let mut path = path;
        loop {
            if let Some(found) = places.get(path) {
                return Some(*found);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// The innermost key at or before a place.
    pub fn path_at(&self, at: Position) -> Option<String> {
        self.documents
            .iter()
            .flatten()
            .filter(|(path, place)| !path.is_empty() && **place <= at)
            .max_by_key(|(path, place)| (**place, path.len()))
            .map(|(path, _)| path.clone())
    }
}

/// Only positions are of interest: a number that is none is no reason to find nothing.
pub(crate) fn positions_only() -> serde_saphyr::Options {
    let mut options = crate::options();
    options.non_finite_float_policy = serde_saphyr::NonFiniteFloatPolicy::PassThrough;
    options
}

fn walk(node: &Node, path: String, places: &mut BTreeMap<String, Position>) {
    match &node.0.value {
        Inner::Map(entries) => {
            for (key, value) in entries {
                let below = if path.is_empty() {
                    key.value.clone()
                } else {
                    format!("{path}.{}", key.value)
                };
                places.insert(below.clone(), position(key));
                walk(value, below, places);
            }
        }
        Inner::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let below = format!("{path}[{index}]");
                places.insert(below.clone(), position(&item.0));
                walk(item, below, places);
            }
        }
        Inner::Scalar => {}
    }
    places.entry(path).or_insert_with(|| position(&node.0));
}

fn position<T>(spanned: &Spanned<T>) -> Position {
    Position {
        line: spanned.referenced.line(),
        column: spanned.referenced.column(),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Inner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Shape)
    }
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Inner;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inner, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Inner::Map(entries))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Inner, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Inner::List(items))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_str<E>(self, _: &str) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_unit<E>(self) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
    fn visit_none<E>(self) -> Result<Inner, E> {
        Ok(Inner::Scalar)
    }
}
