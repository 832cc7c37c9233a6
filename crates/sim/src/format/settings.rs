//! The settings of a scenario, or the faults that are expected of them (SCEN-02).

use greenroom_policy::Settings;
use greenroom_policy::settings::FaultCode;
use greenroom_types::tree;
use serde_json::{Map, Value};

use super::{Fault, SettingsCase, code};
use crate::served::leaf::words;

/// The key of the codes that are expected.
pub(super) const ERRORS: &str = "expectSettingsErrors";

/// What stands for the address of the Manager, which a scenario leaves out.
pub(super) const URL: &str = "scenario:1";

/// Keys of what is not played beside expected faults.
const PLAYED: [&str; 5] = ["world", "nodes", "bundles", "jobs", "steps"];

/// Reads the settings as the policy does.
pub(super) fn read(keys: &Map<String, Value>, faults: &mut Vec<Fault>) -> Option<SettingsCase> {
    let expected = keys.get(ERRORS).map(|list| codes(list, faults));
    if expected.is_some() {
        for key in PLAYED.into_iter().filter(|key| keys.contains_key(*key)) {
            let message = format!("beside {ERRORS} nothing is played: leave one of the two out");
            faults.push(Fault::new(key, message));
        }
    }
    let Some(tree) = keys.get("settings") else {
        faults.push(Fault::new("", "the key settings is missing"));
        return None;
    };
    let mut tree = match tree {
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    if let Value::Object(settings) = &mut tree {
        if settings.contains_key("url") {
            faults.push(Fault::new(
                "settings.url",
                "a scenario has no address of a Manager: leave url out",
            ));
        }
        settings.insert("url".into(), URL.into());
    }
    let error = match (Settings::parse(&tree), expected) {
        (Ok(settings), None) => return Some(SettingsCase::Valid(Box::new(settings))),
        (Ok(_), Some(expected)) => {
            let found = Vec::new();
            return Some(SettingsCase::Faulty { expected, found });
        }
        (Err(error), Some(expected)) if !error.faults.is_empty() => {
            let found = error.faults.iter().map(|fault| code(&fault.code)).collect();
            return Some(SettingsCase::Faulty { expected, found });
        }
        (Err(error), _) => error,
    };
    faults.extend(error.faults.iter().map(|fault| {
        let message = format!("{} ({})", fault.message, code(&fault.code));
        Fault::new(format!("settings.{}", fault.path), message)
    }));
    if error.faults.is_empty() {
        faults.push(Fault::new("settings", error.to_string()));
    }
    None
}

/// Codes that the policy has for a fault. None at all says that the settings are valid.
fn codes(list: &Value, faults: &mut Vec<Fault>) -> Vec<String> {
    let Value::Array(list) = list else {
        faults.push(Fault::new(ERRORS, "write a list of codes, [] for none"));
        return Vec::new();
    };
    let known = words::<FaultCode>();
    let mut codes = Vec::new();
    for (at, code) in list.iter().enumerate() {
        match code.as_str() {
            Some(code) if known.contains(&code) => codes.push(code.to_owned()),
            Some(code) => faults.push(Fault::new(
                format!("{ERRORS}[{at}]"),
                tree::unknown_word(code, &known),
            )),
            None => faults.push(Fault::new(
                format!("{ERRORS}[{at}]"),
                tree::other_kind("a string", &tree::found(code)),
            )),
        }
    }
    codes
}
