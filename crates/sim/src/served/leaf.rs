//! What can stand in one field of a call or a callback.

use std::fmt;

use greenroom_manifest::schema::{flag, instant, number, text, whole};
use greenroom_placement::{Domain, FailureReason, Outcome, Reason};
use greenroom_policy::drain::{DrainPhase, DrainStatus};
use greenroom_policy::effect::{MirrorState, PlacementContext, PlacementKind};
use greenroom_policy::event::ConnectionState;
use greenroom_policy::migration::{MigrationPhase, Strategy};
use greenroom_types::inventory::Architecture;
use greenroom_types::job::{JobState, MediaVersion};
use greenroom_types::node::{InterruptionKind, RejectionCode};
use greenroom_types::pool::LaunchMode;
use greenroom_types::{Role, Wall, tree};
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde_json::{Value, json};

use super::Look;

/// Above it a number of YAML is no whole number any more.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Codes of `onError` (CALLB-05), besides those of a job that found no place.
const ERRORS: [&str; 20] = [
    "actForgotten",
    "callFailed",
    "callbackFailed",
    "createFailed",
    "deleteFailed",
    "interruptionFailed",
    "leaseHeld",
    "leasesPaused",
    "migrationCallFailed",
    "migrationLost",
    "migrationTimeout",
    "noPlacementPools",
    "nodeServiceFailed",
    "prefetchFailed",
    "provisionTimeout",
    "startFailed",
    "terminateFailed",
    "unreadableEvent",
    "unrecordedInstance",
    "verdictFailed",
];

/// What names something of a scenario.
const NAMES: [&str; 9] = [
    "job",
    "node",
    "bundle",
    "pool",
    "tier",
    "instanceType",
    "jobName",
    "region",
    "tagName",
];

/// The shape of a field of this kind.
pub(super) fn leaf(kind: &str) -> Value {
    if NAMES.contains(&kind) {
        return json!({"type": "string", "format": kind, "examples": ["x"]});
    }
    match kind {
        "text" => text(),
        "flag" => flag(),
        "whole" => whole(),
        "number" => number(),
        "signed" => json!({"type": "integer"}),
        "when" => instant(),
        "replica" => json!({"enum": [0, 1]}),
        "role" => json!({"type": "string", "format": kind, "examples": [Role::PRIMARY]}),
        "errorCode" => {
            let mut codes = words::<FailureReason>();
            codes.extend(ERRORS);
            json!({"enum": codes})
        }
        // Empty where a place was found.
        "failureReason" => {
            let mut codes = words::<FailureReason>();
            codes.push("");
            json!({"enum": codes})
        }
        "drainReason" => json!({"enum": ["cancelled", "terminateFailed", "nodeLost"]}),
        "architecture" => json!({"enum": words::<Architecture>()}),
        "connectionState" => json!({"enum": words::<ConnectionState>()}),
        "context" => json!({"enum": words::<PlacementContext>()}),
        "domain" => json!({"enum": words::<Domain>()}),
        "drainPhase" => json!({"enum": words::<DrainPhase>()}),
        "drainStatus" => json!({"enum": words::<DrainStatus>()}),
        "filterReason" => json!({"enum": words::<Reason>()}),
        "interruptionKind" => json!({"enum": words::<InterruptionKind>()}),
        "jobState" => json!({"enum": words::<JobState>()}),
        "launchMode" => json!({"enum": words::<LaunchMode>()}),
        "mediaVersion" => json!({"enum": words::<MediaVersion>()}),
        "migrationPhase" => json!({"enum": words::<MigrationPhase>()}),
        "nodeState" => json!({"enum": words::<MirrorState>()}),
        "outcome" => json!({"enum": words::<Outcome>()}),
        "placementKind" => json!({"enum": words::<PlacementKind>()}),
        "rejectionCode" => json!({"enum": words::<RejectionCode>()}),
        "strategy" => json!({"enum": words::<Strategy>()}),
        _ => json!({"examples": ["x"]}),
    }
}

/// Whether a value can stand in a field of this shape.
pub(super) fn fits(shape: &Value, wanted: &Value, look: Look<'_>) -> Result<(), String> {
    if let Some(list) = shape["enum"].as_array() {
        return one_of(list, wanted);
    }
    match &shape["type"] {
        Value::Null => sound(wanted),
        // What people may write as a number is a text in the end.
        Value::Array(kinds) if kinds.contains(&json!("string")) => of_text(shape, wanted, look),
        Value::String(kind) => match kind.as_str() {
            "string" => of_text(shape, wanted, look),
            "boolean" if wanted.is_boolean() => Ok(()),
            "boolean" => Err(tree::other_kind("a boolean", &tree::found(wanted))),
            "integer" => of_number(shape, wanted, true),
            _ => of_number(shape, wanted, false),
        },
        _ => Ok(()),
    }
}

fn one_of(list: &[Value], wanted: &Value) -> Result<(), String> {
    if list.contains(wanted) {
        return Ok(());
    }
    let words: Vec<String> = list
        .iter()
        .filter(|word| *word != "")
        .map(|word| {
            word.as_str()
                .map_or_else(|| word.to_string(), ToOwned::to_owned)
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Err(match wanted {
        Value::String(text) => tree::unknown_word(text, &words),
        other => format!(
            "expected one of {}, found {}",
            words.join(", "),
            tree::found(other)
        ),
    })
}

fn of_text(shape: &Value, wanted: &Value, look: Look<'_>) -> Result<(), String> {
    let Value::String(text) = wanted else {
        return Err(tree::other_kind("a string", &tree::found(wanted)));
    };
    match shape["format"].as_str() {
        Some("date-time") => match tree::read::<Wall>(wanted) {
            Ok(_) => Ok(()),
            Err(fault) => Err(fault.message),
        },
        Some("role") => role(text),
        // Every call and callback has one; others may be empty where there is none.
        Some("job" | "node" | "bundle" | "jobName") if text.is_empty() => {
            Err("expected a name, found an empty text".to_owned())
        }
        Some(kind) if !text.is_empty() => look(kind, text),
        _ => Ok(()),
    }
}

/// The slot of a copy or of a node service, for the target of a migration with that behind it.
pub(crate) fn role(text: &str) -> Result<(), String> {
    const SLOTS: [&str; 3] = [Role::PRIMARY, Role::BACKUP, Role::NODE_SERVICE];
    if text.is_empty() || SLOTS.contains(&Role::new(text).slot()) {
        return Ok(());
    }
    Err(tree::unknown_word(text, &SLOTS))
}

fn of_number(shape: &Value, wanted: &Value, is_whole: bool) -> Result<(), String> {
    let kind = if is_whole { "u64" } else { "f64" };
    let Some(number) = wanted.as_f64() else {
        return Err(tree::other_kind(kind, &tree::found(wanted)));
    };
    let is_exact = wanted.is_u64() || wanted.is_i64();
    if is_whole && !is_exact && (number.fract() != 0.0 || number.abs() > WHOLE_MAX) {
        return Err(tree::other_kind(kind, &tree::found(wanted)));
    }
    if shape["minimum"]
        .as_f64()
        .is_some_and(|least| number < least)
    {
        return Err(format!("{wanted} cannot be: write 0 or more"));
    }
    Ok(())
}

/// No number below 0 at any depth: nothing that is counted or measured has one.
fn sound(wanted: &Value) -> Result<(), String> {
    match wanted {
        Value::Number(number) if number.as_f64().is_some_and(|number| number < 0.0) => {
            Err(format!("{number} cannot be: write 0 or more"))
        }
        Value::Array(list) => list.iter().try_for_each(sound),
        Value::Object(map) => map.values().try_for_each(sound),
        _ => Ok(()),
    }
}

/// The words that an enumeration is read from.
pub(crate) fn words<T: DeserializeOwned>() -> Vec<&'static str> {
    let mut words: &'static [&'static str] = &[];
    // The reader has nothing to read and only hears what could stand there.
    let _nothing = T::deserialize(Asks(&mut words));
    words.to_vec()
}

/// A reader that takes down the words of the enumeration that is asked of it.
struct Asks<'a>(&'a mut &'static [&'static str]);

/// It has nothing to read.
#[derive(Debug)]
struct Nothing;

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is nothing to read")
    }
}

impl std::error::Error for Nothing {}

impl de::Error for Nothing {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for Asks<'_> {
    type Error = Nothing;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Nothing> {
        Err(Nothing)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Nothing> {
        *self.0 = words;
        Err(Nothing)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-15
    #[test]
    fn the_words_of_an_enumeration_are_those_that_it_reads() {
        assert_eq!(
            words::<LaunchMode>(),
            ["on-demand", "spot", "reserved"],
            "no word is missing"
        );
        for kind in [
            "architecture",
            "connectionState",
            "context",
            "domain",
            "drainPhase",
            "drainStatus",
            "filterReason",
            "interruptionKind",
            "jobState",
            "launchMode",
            "mediaVersion",
            "migrationPhase",
            "nodeState",
            "outcome",
            "placementKind",
            "rejectionCode",
            "strategy",
        ] {
            let list = leaf(kind)["enum"].as_array().map_or(0, Vec::len);
            assert!(list > 1, "{kind} has {list} words");
        }
    }

    /// Every code that the policy gives an error is known here.
    #[test]
    fn every_code_of_an_error_is_known() {
        fn codes(folder: &std::path::Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).expect("the folder is there") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    codes(&path, found);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).expect("the file is text");
                    found.extend(text.split("ErrorInfo::new(").skip(1).filter_map(|rest| {
                        let (code, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
                        Some(code.to_owned())
                    }));
                }
            }
        }
        let mut found = Vec::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/src");
        codes(std::path::Path::new(folder), &mut found);
        assert!(found.len() > 10, "{found:?}");
        let known = leaf("errorCode");
        for code in found {
            assert_eq!(
                one_of(known["enum"].as_array().unwrap(), &json!(code)),
                Ok(())
            );
        }
    }
}
