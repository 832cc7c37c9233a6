//! What `FILE_DESCRIPTOR_SET` says, in the notation of `docs/wire`: plain values that can be compared.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// One field as the facts write it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Field {
    pub(crate) number: i32,
    /// `string`, `repeated pkg.Message`, `map<string, pkg.Message>`, ...
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The oneof group; none for the one-member groups that `optional` makes.
    pub(crate) oneof: Option<String>,
}

/// A whole surface; every key is a full name.
#[derive(Debug, Default)]
pub(crate) struct Surface {
    pub(crate) messages: BTreeMap<String, Vec<Field>>,
    /// Fields with proto3 presence, as `message.field`.
    pub(crate) optional: Vec<String>,
    pub(crate) enums: BTreeMap<String, Vec<(i32, String)>>,
    /// `/service/Method` to `[stream ]request -> [stream ]response`.
    pub(crate) methods: BTreeMap<String, String>,
}

/// The surface this crate serves, without the packages of Google.
pub(crate) fn ours() -> Surface {
    let set =
        FileDescriptorSet::decode(greenroom_proto::FILE_DESCRIPTOR_SET).expect("a descriptor set");
    let mut surface = Surface::default();
    for file in &set.file {
        if file.package() == "google.protobuf" {
            continue;
        }
        assert_eq!(file.syntax(), "proto3", "{}", file.name());
        for message in &file.message_type {
            surface.add_message(file.package(), message);
        }
        for declared in &file.enum_type {
            surface.add_enum(file.package(), declared);
        }
        for service in &file.service {
            for method in &service.method {
                let side = |name: &str, streams: bool| {
                    format!(
                        "{}{}",
                        if streams { "stream " } else { "" },
                        name.trim_start_matches('.')
                    )
                };
                let request = side(method.input_type(), method.client_streaming());
                let response = side(method.output_type(), method.server_streaming());
                surface.methods.insert(
                    format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                    format!("{request} -> {response}"),
                );
            }
        }
    }
    surface
}

// === impl Surface ===

impl Surface {
    fn add_message(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        let fields = message
            .field
            .iter()
            .map(|field| read_field(message, field))
            .collect();
        for field in message.field.iter().filter(|field| field.proto3_optional()) {
            self.optional.push(format!("{name}.{}", field.name()));
        }
        self.messages.insert(name.clone(), fields);
        for nested in message
            .nested_type
            .iter()
            .filter(|nested| !nested.options.clone().unwrap_or_default().map_entry())
        {
            self.add_message(&name, nested);
        }
        for declared in &message.enum_type {
            self.add_enum(&name, declared);
        }
    }

    fn add_enum(&mut self, scope: &str, declared: &EnumDescriptorProto) {
        let values = declared
            .value
            .iter()
            .map(|value| (value.number(), value.name().to_owned()))
            .collect();
        self.enums
            .insert(format!("{scope}.{}", declared.name()), values);
    }
}

// === helpers ===

fn read_field(message: &DescriptorProto, field: &FieldDescriptorProto) -> Field {
    let oneof = match field.oneof_index {
        Some(index) if !field.proto3_optional() => {
            Some(message.oneof_decl[index as usize].name().to_owned())
        }
        _ => None,
    };
    Field {
        number: field.number(),
        kind: read_kind(message, field),
        name: field.name().to_owned(),
        oneof,
    }
}

fn read_kind(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        field.type_name().rsplit('.').next() == Some(nested.name())
            && nested.options.clone().unwrap_or_default().map_entry()
    });
    if let Some(entry) = entry {
        return format!(
            "map<{}, {}>",
            type_name(&entry.field[0]),
            type_name(&entry.field[1])
        );
    }
    match field.label() {
        Label::Repeated => format!("repeated {}", type_name(field)),
        _ => type_name(field),
    }
}

fn type_name(field: &FieldDescriptorProto) -> String {
    let scalar = match field.r#type() {
        Type::Double => "double",
        Type::Float => "float",
        Type::Int64 => "int64",
        Type::Uint64 => "uint64",
        Type::Int32 => "int32",
        Type::Uint32 => "uint32",
        Type::Bool => "bool",
        Type::String => "string",
        Type::Bytes => "bytes",
        Type::Message | Type::Enum => return field.type_name().trim_start_matches('.').to_owned(),
        other => panic!("the notation has no word for {other:?} of {}", field.name()),
    };
    scalar.to_owned()
}
