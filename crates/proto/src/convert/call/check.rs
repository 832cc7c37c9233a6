//! Text and values that no request may hold, whatever field they stand in (LIM-02, LIM-03).
//!
//! The check walks the encoded message along the descriptors, so a field added to a message is checked from its
//! first day, and the path names fields as the `.proto` files do. It judges single fields only, never what they mean
//! together, and never repeats a value in its message: the field may hold a secret (API-09).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};

use super::super::WireError;

/// Most entries of a map (LIM-03).
pub const MAP_ENTRIES_MAX: usize = 256;

/// Most elements of a repeated field, unless another limit is stated for it (LIM-03).
pub const ELEMENTS_MAX: usize = 1_024;

/// Repeated fields with a stated limit of their own (BDL-02, LIM-04, PREF-02), which answers differently.
const OTHER_LIMIT: [&str; 6] = [
    "environment_variables",
    "image_refs",
    "jobs",
    "port_mappings",
    "services",
    "volumes",
];

/// Text fields that may hold control characters: a job's opaque configuration, and payloads (LIM-02).
const FREE_TEXT: [&str; 2] = ["configuration", "payload"];

/// Checks an encoded message of that full name, as `norsk.api.manager.Job`. The first fault is told, with its path.
///
/// # Panics
/// When no message has that name: names are constants of the program.
pub fn check(message: &str, body: &[u8]) -> Result<(), WireError> {
    let shape = SHAPES
        .get(message)
        .unwrap_or_else(|| panic!("no message is named {message:?}"));
    walk(shape, body, "")
}

/// Whether text may stand in a field other than `configuration`: no NUL, no control characters but newline and tab.
pub fn is_plain_text(text: &str) -> bool {
    !text
        .chars()
        .any(|c| c.is_control() && c != '\n' && c != '\t')
}

// === shapes of messages ===

#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
    repeated: bool,
}

#[derive(Debug)]
enum Kind {
    Text,
    Double,
    Float,
    Message(String),
    /// A map with the name of its entry's message.
    Map(String),
    Other,
}

type Shape = BTreeMap<u32, Field>;

/// The field numbers of a map's entry.
const MAP_KEY: u32 = 1;

static SHAPES: LazyLock<BTreeMap<String, Shape>> = LazyLock::new(|| {
    let mut shapes = BTreeMap::new();
    // The descriptors were encoded by the build of this very program.
    let set = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap_or_default();
    for file in &set.file {
        for message in &file.message_type {
            add(file.package(), message, &mut shapes);
        }
    }
    shapes
});

fn add(prefix: &str, message: &DescriptorProto, shapes: &mut BTreeMap<String, Shape>) {
    let name = format!("{prefix}.{}", message.name());
    for nested in &message.nested_type {
        add(&name, nested, shapes);
    }
    let is_entry = |type_name: &str| {
        message.nested_type.iter().any(|nested| {
            nested
                .options
                .as_ref()
                .is_some_and(|options| options.map_entry())
                && type_name == format!(".{name}.{}", nested.name())
        })
    };
    let fields = message.field.iter().map(|field| {
        let type_name = field.type_name().trim_start_matches('.').to_owned();
        let kind = match field.r#type() {
            Type::String => Kind::Text,
            Type::Double => Kind::Double,
            Type::Float => Kind::Float,
            Type::Message if is_entry(field.type_name()) => Kind::Map(type_name),
            Type::Message => Kind::Message(type_name),
            _ => Kind::Other,
        };
        let shape = Field {
            name: field.name().to_owned(),
            kind,
            repeated: field.label() == Label::Repeated,
        };
        (field.number().unsigned_abs(), shape)
    });
    shapes.insert(name.clone(), fields.collect());
}

// === walking ===

fn walk(shape: &Shape, body: &[u8], path: &str) -> Result<(), WireError> {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut fields = Fields(body);
    while let Some((number, value)) = fields.next(path)? {
        let Some(field) = shape.get(&number) else {
            continue;
        };
        let count = seen.entry(number).or_default();
        let own = join(path, &field.name);
        let at = match field.kind {
            Kind::Map(_) => own.clone(),
            _ if field.repeated => format!("{own}[{count}]"),
            _ => own.clone(),
        };
        *count += elements(field, &value);
        limit(field, *count, &own)?;
        value.check(field, &at)?;
    }
    Ok(())
}

fn limit(field: &Field, count: usize, path: &str) -> Result<(), WireError> {
    let (max, what) = match field.kind {
        Kind::Map(_) => (MAP_ENTRIES_MAX, "entries"),
        _ if field.repeated && !OTHER_LIMIT.contains(&field.name.as_str()) => {
            (ELEMENTS_MAX, "elements")
        }
        _ => return Ok(()),
    };
    if count > max {
        let message = format!("has more than {max} {what}");
        return Err(WireError::new("bad_value", path, message));
    }
    Ok(())
}

/// How many elements one occurrence of a field brings: more than one for packed numbers.
fn elements(field: &Field, value: &Value<'_>) -> usize {
    match (value, &field.kind) {
        (Value::Bytes(bytes), Kind::Double) => bytes.len() / 8,
        (Value::Bytes(bytes), Kind::Float) => bytes.len() / 4,
        // The last byte of a varint has its high bit clear; packed enums and integers are varints here.
        (Value::Bytes(bytes), Kind::Other) if field.repeated => {
            bytes.iter().filter(|byte| **byte < 0x80).count().max(1)
        }
        _ => 1,
    }
}

/// One value as the encoding holds it.
enum Value<'a> {
    Varint,
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn check(&self, field: &Field, path: &str) -> Result<(), WireError> {
        let finite = |number: f64| {
            if number.is_finite() {
                Ok(())
            } else {
                Err(WireError::new("bad_value", path, "is not a finite number"))
            }
        };
        match (self, &field.kind) {
            (Self::Fixed64(bytes), Kind::Double) => finite(f64::from_le_bytes(*bytes)),
            (Self::Fixed32(bytes), Kind::Float) => finite(f32::from_le_bytes(*bytes).into()),
            (Self::Bytes(bytes), Kind::Double) => {
                let (numbers, _) = bytes.as_chunks::<8>();
                numbers
                    .iter()
                    .try_for_each(|bytes| finite(f64::from_le_bytes(*bytes)))
            }
            (Self::Bytes(bytes), Kind::Float) => {
                let (numbers, _) = bytes.as_chunks::<4>();
                numbers
                    .iter()
                    .try_for_each(|bytes| finite(f32::from_le_bytes(*bytes).into()))
            }
            (Self::Bytes(bytes), Kind::Text) => {
                check_text(bytes, FREE_TEXT.contains(&field.name.as_str()), path)
            }
            (Self::Bytes(bytes), Kind::Message(name)) => SHAPES
                .get(name)
                .map_or(Ok(()), |shape| walk(shape, bytes, path)),
            (Self::Bytes(bytes), Kind::Map(name)) => SHAPES
                .get(name)
                .map_or(Ok(()), |shape| entry(shape, bytes, path)),
            _ => Ok(()),
        }
    }
}

/// Checks one entry of a map, whose key becomes part of the path.
fn entry(shape: &Shape, body: &[u8], path: &str) -> Result<(), WireError> {
    let mut key = String::new();
    let mut fields = Fields(body);
    while let Some((number, value)) = fields.next(path)? {
        if let (MAP_KEY, Value::Bytes(bytes)) = (number, &value) {
            check_text(bytes, false, path)?;
            key = String::from_utf8_lossy(bytes).into_owned();
        }
    }
    let at = format!("{path}[{key}]");
    let mut fields = Fields(body);
    while let Some((number, value)) = fields.next(path)? {
        if let (Some(field), true) = (shape.get(&number), number != MAP_KEY) {
            value.check(field, &at)?;
        }
    }
    Ok(())
}

fn check_text(bytes: &[u8], free: bool, path: &str) -> Result<(), WireError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| WireError::new("bad_text", path, "is not valid UTF-8"))?;
    if text.contains('\0') {
        return Err(WireError::new("bad_text", path, "contains a NUL character"));
    }
    if !free && !is_plain_text(text) {
        let message = "contains a control character; only newline and tab may stand there";
        return Err(WireError::new("bad_text", path, message));
    }
    Ok(())
}

/// The fields of an encoded message, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self, path: &str) -> Result<Option<(u32, Value<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.take()
            .map(Some)
            .ok_or_else(|| WireError::new("bad_value", path, "is not an encoded message"))
    }

    fn take(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        let value = match tag & 7 {
            0 => {
                self.varint()?;
                Value::Varint
            }
            1 => Value::Fixed64(*self.bytes(8)?.first_chunk()?),
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(len)?)
            }
            5 => Value::Fixed32(*self.bytes(4)?.first_chunk()?),
            _ => return None,
        };
        Some((number, value))
    }

    fn varint(&mut self) -> Option<u64> {
        prost::encoding::decode_varint(&mut self.0).ok()
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
}

/// Numbers of the fields that stand at the top of an encoded message, in the order of the encoding.
pub(crate) fn field_numbers(body: &[u8]) -> Vec<u32> {
    let mut fields = Fields(body);
    std::iter::from_fn(|| fields.next("").ok().flatten().map(|(number, _)| number)).collect()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}
