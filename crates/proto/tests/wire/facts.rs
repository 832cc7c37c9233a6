//! Reads `docs/wire/published-1.0.384.txt`, the facts about the published client package.

use super::descriptors::{Field, Surface};

const FACTS: &str = include_str!("../../../../docs/wire/published-1.0.384.txt");

/// The published surface. Panics on a line it does not understand, so that no fact is passed over.
pub(crate) fn published() -> Surface {
    let mut surface = Surface::default();
    let mut section = "";
    let mut name = String::new();
    for line in FACTS.lines().skip_while(|line| !line.starts_with("## ")) {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(title) = line.strip_prefix("### ") {
            name = title.to_owned();
            match section {
                "enums" => drop(surface.enums.insert(name.clone(), Vec::new())),
                _ => drop(surface.messages.insert(name.clone(), Vec::new())),
            }
        } else if line.is_empty() || line == "(no fields)" {
        } else {
            let columns: Vec<&str> = line.split(" | ").collect();
            match (section, columns.as_slice()) {
                ("services", [method, types]) => {
                    surface
                        .methods
                        .insert((*method).to_owned(), (*types).to_owned());
                }
                ("enums", [number, value]) => {
                    let values = surface
                        .enums
                        .get_mut(&name)
                        .expect("a value stands under its enum");
                    values.push((number.parse().expect(line), (*value).to_owned()));
                }
                (_, [number, kind, field]) => {
                    let fields = surface
                        .messages
                        .get_mut(&name)
                        .expect("a field stands under its message");
                    let (field, oneof) = match field.split_once(" (oneof ") {
                        Some((field, oneof)) => {
                            (field, Some(oneof.trim_end_matches(')').to_owned()))
                        }
                        None => (*field, None),
                    };
                    fields.push(Field {
                        number: number.parse().expect(line),
                        kind: (*kind).to_owned(),
                        name: field.to_owned(),
                        oneof,
                    });
                }
                _ => panic!("line not understood: {line}"),
            }
        }
    }
    surface
}
