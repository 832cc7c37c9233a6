//! Trying a schema out: a value made from it, and whether a value is as it says. For tests of the
//! schemas; what people write is read by the readers, which say more.

use serde_json::{Map, Value, json};

/// Whether a value is as a schema says: its first fault, with the place. Knows what the schemas here
/// are made of, and takes any other word for a mistake in the schema.
#[must_use]
pub fn fault(schema: &Value, value: &Value) -> Option<String> {
    fault_at(schema, value, "")
}

fn fault_at(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let rules = schema.as_object()?;
    rules
        .iter()
        .find_map(|(rule, wanted)| {
            let is_kept = match rule.as_str() {
                "$schema"
                | "title"
                | "description"
                | "examples"
                | "deprecated"
                | "format"
                | "additionalProperties"
                | "then"
                | "else" => true,
                "type" => match wanted {
                    Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                    kind => is_of(kind, value),
                },
                "enum" => wanted.as_array().is_some_and(|list| list.contains(value)),
                "minimum" => number_is(value, wanted, |a, b| a >= b),
                "exclusiveMinimum" => number_is(value, wanted, |a, b| a > b),
                "minItems" => value
                    .as_array()
                    .is_none_or(|list| length_is(list, wanted) >= 0),
                "maxItems" => value
                    .as_array()
                    .is_none_or(|list| length_is(list, wanted) <= 0),
                "required" => {
                    let keys = wanted.as_array().into_iter().flatten();
                    let mut keys = keys.filter_map(Value::as_str);
                    value
                        .as_object()
                        .is_none_or(|map| keys.all(|key| map.contains_key(key)))
                }
                "anyOf" => any_of(wanted, value) > 0,
                "oneOf" => any_of(wanted, value) == 1,
                "items" => {
                    let items = value.as_array().into_iter().flatten().enumerate();
                    return items
                        .filter_map(|(at, item)| fault_at(wanted, item, &format!("{place}/{at}")))
                        .next();
                }
                "propertyNames" => {
                    let keys = value.as_object().into_iter().flatten();
                    return keys
                        .filter_map(|(key, _)| {
                            fault_at(wanted, &json!(key), &format!("{place}/{key}"))
                        })
                        .next();
                }
                "properties" => return fault_of_keys(schema, value, place),
                "if" => {
                    let branch = if fault(wanted, value).is_none() {
                        "then"
                    } else {
                        "else"
                    };
                    return fault_at(&schema[branch], value, place);
                }
                other => panic!("{other} is no rule of the schemas here"),
            };
            (!is_kept).then(|| format!("{place}: {value} is against {rule} {wanted}"))
        })
        .or_else(|| match schema.get("properties") {
            None => fault_of_keys(schema, value, place),
            Some(_) => None,
        })
}

/// Keys that are known by their schemas, the others by what is said of all others.
fn fault_of_keys(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let others = schema.get("additionalProperties");
    let keys = value.as_object().into_iter().flatten();
    keys.filter_map(|(key, value)| {
        let place = format!("{place}/{key}");
        match (schema["properties"].get(key), others) {
            (Some(known), _) => fault_at(known, value, &place),
            (None, Some(Value::Bool(false))) => Some(format!("{place}: unknown key")),
            (None, Some(others)) => fault_at(others, value, &place),
            (None, None) => None,
        }
    })
    .next()
}

fn any_of(shapes: &Value, value: &Value) -> usize {
    let shapes = shapes.as_array().into_iter().flatten();
    shapes.filter(|shape| fault(shape, value).is_none()).count()
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn number_is(value: &Value, bound: &Value, holds: fn(f64, f64) -> bool) -> bool {
    let numbers = value.as_f64().zip(bound.as_f64());
    numbers.is_none_or(|(number, bound)| holds(number, bound))
}

fn length_is(list: &[Value], bound: &Value) -> i64 {
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    length - bound.as_i64().unwrap_or_default()
}

/// A value with every key that a schema has: of several shapes the first, of several words the
/// first.
#[must_use]
pub fn sample(schema: &Value) -> Value {
    if let Some(first) = first(schema, "examples").or_else(|| first(schema, "enum")) {
        return first.clone();
    }
    if let Some(shape) = first(schema, "anyOf") {
        return sample(shape);
    }
    match schema["type"].as_str() {
        Some("array") => json!([sample(&schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer" | "number") => json!(1),
        Some("object") => match &schema["properties"] {
            Value::Object(keys) => {
                let keys = keys.iter().filter(|(_, key)| key["deprecated"] != true);
                Value::Object(
                    keys.map(|(name, key)| (name.clone(), sample(key)))
                        .collect(),
                )
            }
            _ => Value::Object(Map::from_iter([(
                first(&schema["propertyNames"], "examples")
                    .and_then(Value::as_str)
                    .unwrap_or("x")
                    .to_owned(),
                sample(&schema["additionalProperties"]),
            )])),
        },
        _ => json!("x"),
    }
}

fn first<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key)?.as_array()?.first()
}

/// Every mapping with keys of its own in the sample of a schema: its place, and its schema.
#[must_use]
pub fn mappings(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    collect(schema, String::new(), &mut found);
    found
}

fn collect<'a>(schema: &'a Value, place: String, found: &mut Vec<(String, &'a Value)>) {
    if schema.get("examples").is_some() {
        return;
    }
    if let Some(shape) = first(schema, "anyOf") {
        return match shape["properties"].as_object() {
            // One word with its value: no second key may stand beside it.
            Some(keys) if keys.len() == 1 => keys
                .iter()
                .for_each(|(name, key)| collect(key, format!("{place}/{name}"), found)),
            _ => collect(shape, place, found),
        };
    }
    match (schema["type"].as_str(), &schema["properties"]) {
        (Some("array"), _) => collect(&schema["items"], format!("{place}/0"), found),
        (Some("object"), Value::Object(keys)) => {
            found.push((place.clone(), schema));
            for (name, key) in keys.iter().filter(|(_, key)| key["deprecated"] != true) {
                collect(key, format!("{place}/{name}"), found);
            }
        }
        (Some("object"), _) => {
            let name = first(&schema["propertyNames"], "examples").and_then(Value::as_str);
            let name = name.unwrap_or("x").replace('/', "~1");
            collect(
                &schema["additionalProperties"],
                format!("{place}/{name}"),
                found,
            );
        }
        _ => {}
    }
}
