//! The scenario file (docs/spec/scenario.md): its keys as types, read with line and key in every
//! error.
//!
//! This module reads and knows nothing of playing. It refuses what it does not know, so that a file
//! never passes by being skipped.

pub mod action;
pub mod expect;
pub mod fleet;
pub mod names;
pub mod schema;
pub mod span;

use std::collections::BTreeSet;

use greenroom_manifest::{Locations, Problem};
use greenroom_policy::Settings;
use greenroom_types::bundle::Bundle;
use greenroom_types::{Wall, tree};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::served;
use action::Action;
use expect::Expect;
use fleet::{NodeSpec, WorldSpec};
use names::Subject;
use span::Span;

/// The version of the format that is read.
const VERSION: u64 = 1;

/// What stands for the address of the Manager, which a scenario leaves out.
const URL: &str = "scenario:1";

/// Characters of a step that are shown in a trace.
const TITLE: usize = 80;

/// A scenario, ready to be played.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name; empty when the file gives none.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// Requirement ids that it checks.
    pub spec: Vec<String>,
    /// Settings of the policy, or the faults that are expected of them.
    pub settings: SettingsCase,
    /// How the fleet answers.
    pub world: WorldSpec,
    /// Nodes that run before the policy connects.
    pub nodes: Vec<NodeSpec>,
    /// Bundles that were submitted before.
    pub bundles: Vec<Bundle>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// What the settings of a scenario are for (SCEN-02).
#[derive(Clone, Debug)]
pub enum SettingsCase {
    /// They are valid and in force.
    Valid(Box<Settings>),
    /// Their faults are the point of the file.
    Faulty {
        /// Codes expected.
        expected: Vec<String>,
        /// Codes found.
        found: Vec<String>,
    },
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, in milliseconds of virtual time.
    pub at: u64,
    /// What.
    pub deed: Deed,
    /// The deed in the words of the file, cut to one short line.
    pub title: String,
    /// The refusal that an operator action must meet.
    pub refused: Option<String>,
    /// What a hold or a release is confined to.
    pub only: Option<Subject>,
}

/// What one step is.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Something happens.
    Act(Action),
    /// Something must hold.
    Expect(Box<Expect>),
}

/// A fault with its place in the tree.
struct Fault {
    path: String,
    message: String,
}

// === impl Scenario ===

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// The first fault, with line and key.
    pub fn read(file: &str, text: &str) -> Result<Self, Problem> {
        let trees = trees(file, text)?;
        let fault = |fault: Fault| Problem {
            file: file.to_owned(),
            position: Locations::of(text)
                .ok()
                .and_then(|places| places.position(0, &fault.path)),
            path: fault.path,
            message: fault.message,
        };
        let [tree] = &trees[..] else {
            return Err(fault(Fault::new(
                "",
                format!(
                    "the file holds {} documents; a scenario is one",
                    trees.len()
                ),
            )));
        };
        read_tree(tree).map_err(fault)
    }

    /// Reads a scenario that is there as a tree.
    pub(crate) fn of_tree(tree: &Value) -> Result<Self, String> {
        read_tree(tree).map_err(|fault| format!("{}: {}", fault.path, fault.message))
    }

    /// Ids of all requirements that it names.
    pub fn spec_ids(&self) -> impl Iterator<Item = &str> {
        self.spec.iter().map(String::as_str)
    }
}

// === impl Step ===

impl Step {
    /// Reads a step that comes after virtual time `before`.
    pub(crate) fn of_tree(tree: &Value, before: u64, start: Wall) -> Result<Self, String> {
        read_step(tree, "", before, start)
            .map_err(|fault| format!("{}: {}", fault.path, fault.message))
    }
}

// === impl Fault ===

impl Fault {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

/// The documents of a text. A word is a word: of the plain ones only `true` and `false` are truth
/// values, so that a node may be called `n` and a job `on`.
fn trees(file: &str, text: &str) -> Result<Vec<Value>, Problem> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
    };
    if text.len() <= greenroom_manifest::TEXT_MAX
        && let Ok(trees) = serde_saphyr::from_multiple_with_options(text, options)
    {
        return Ok(trees);
    }
    // Read again by the reader of manifests, which says where the fault is.
    greenroom_manifest::read(file, text)
}

fn read_tree(tree: &Value) -> Result<Scenario, Fault> {
    const KEYS: [&str; 10] = [
        "scenario",
        "name",
        "description",
        "spec",
        "settings",
        "expectSettingsErrors",
        "world",
        "nodes",
        "bundles",
        "steps",
    ];
    let Value::Object(keys) = tree else {
        return Err(Fault::new("", "a scenario is a mapping of keys"));
    };
    if let Some(key) = keys.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let message = greenroom_types::tree::unknown_key(key, &KEYS);
        return Err(Fault::new(key, message));
    }
    match keys.get("scenario") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(other) => {
            let message = format!("{other} is no version that is read here: write 1");
            return Err(Fault::new("scenario", message));
        }
        None => {
            return Err(Fault::new(
                "",
                "the key scenario is missing: write scenario: 1",
            ));
        }
    }
    let world: WorldSpec = optional(keys, "world")?.unwrap_or_default();
    let settings = read_settings(keys)?;
    let bundles = match keys.get("bundles") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => read_bundles(list, world.start)?,
        Some(_) => return Err(Fault::new("bundles", "write a list of bundles")),
    };
    let steps = match keys.get("steps") {
        Some(Value::Array(list)) => read_steps(list, world.start)?,
        Some(_) => return Err(Fault::new("steps", "write a list of steps")),
        None if matches!(settings, SettingsCase::Faulty { .. }) => Vec::new(),
        None => return Err(Fault::new("", "the key steps is missing")),
    };
    let nodes: Vec<NodeSpec> = optional(keys, "nodes")?.unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, node) in nodes.iter().enumerate() {
        if !seen.insert(&node.id) {
            let message = format!("node {:?} stands twice", node.id);
            return Err(Fault::new(format!("nodes[{index}].id"), message));
        }
    }
    Ok(Scenario {
        name: optional(keys, "name")?.unwrap_or_default(),
        description: optional(keys, "description")?.unwrap_or_default(),
        spec: optional(keys, "spec")?.unwrap_or_default(),
        settings,
        world,
        nodes,
        bundles,
        steps,
    })
}

fn read_settings(keys: &Map<String, Value>) -> Result<SettingsCase, Fault> {
    let Some(tree) = keys.get("settings") else {
        return Err(Fault::new("", "the key settings is missing"));
    };
    let mut tree = match tree {
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    if let Value::Object(settings) = &mut tree {
        if settings.contains_key("url") {
            return Err(Fault::new(
                "settings.url",
                "a scenario has no address of a Manager: leave url out",
            ));
        }
        settings.insert("url".into(), URL.into());
    }
    let expected: Option<Vec<String>> = optional(keys, "expectSettingsErrors")?;
    match (Settings::parse(&tree), expected) {
        (Ok(settings), None) => Ok(SettingsCase::Valid(Box::new(settings))),
        (Ok(_), Some(expected)) => Ok(SettingsCase::Faulty {
            expected,
            found: Vec::new(),
        }),
        (Err(error), Some(expected)) => Ok(SettingsCase::Faulty {
            expected,
            found: error.faults.iter().map(|fault| code(&fault.code)).collect(),
        }),
        (Err(error), None) => Err(match error.faults.first() {
            Some(fault) => Fault::new(
                format!("settings.{}", fault.path),
                format!("{} ({})", fault.message, code(&fault.code)),
            ),
            None => Fault::new("settings", error.to_string()),
        }),
    }
}

/// The name of a code, as it is serialised.
pub(crate) fn code(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

fn read_bundles(list: &[Value], start: Wall) -> Result<Vec<Bundle>, Fault> {
    list.iter()
        .enumerate()
        .map(|(index, tree)| {
            let path = format!("bundles[{index}]");
            let mut tree = tree.clone();
            resolve_instants(&mut tree, start, &path)?;
            parse(&tree, &path)
        })
        .collect()
}

fn read_steps(list: &[Value], start: Wall) -> Result<Vec<Step>, Fault> {
    let mut steps: Vec<Step> = Vec::with_capacity(list.len());
    for (index, tree) in list.iter().enumerate() {
        let path = format!("steps[{index}]");
        let before = steps.last().map_or(0, |step| step.at);
        steps.push(read_step(tree, &path, before, start)?);
    }
    Ok(steps)
}

fn read_step(tree: &Value, path: &str, before: u64, start: Wall) -> Result<Step, Fault> {
    let Value::Object(keys) = tree else {
        return Err(Fault::new(path, "a step is a mapping of keys"));
    };
    let at = match keys.get("at") {
        None => before,
        Some(at) => parse::<Span>(at, &format!("{path}.at"))?.0,
    };
    if at < before {
        let message = format!(
            "steps go on in time: {} is before the {} of the step ahead of it",
            Span(at),
            Span(before)
        );
        return Err(Fault::new(format!("{path}.at"), message));
    }
    let mut deeds = Vec::new();
    for key in keys.keys() {
        match key.as_str() {
            "at" | "refused" | "only" => {}
            "expect" => deeds.push(key),
            other if expect::is_action(other) => deeds.push(key),
            other => {
                let message = format!(
                    "there is no action {other:?}; there are expect, {}",
                    Action::KEYS.join(", ")
                );
                return Err(Fault::new(format!("{path}.{other}"), message));
            }
        }
    }
    let deed = match deeds[..] {
        [key] if key == "expect" => {
            let here = format!("{path}.expect");
            let expect: Expect = parse(&keys[key], &here)?;
            check_expect(&expect, &here)?;
            Deed::Expect(Box::new(expect))
        }
        [key] => {
            let action = read_action(key, &keys[key], path, start)?;
            Deed::Act(action)
        }
        [] => return Err(Fault::new(path, "a step needs an action or expect")),
        [first, second, ..] => {
            let message = format!("a step does one thing; this one has {first} and {second}");
            return Err(Fault::new(format!("{path}.{second}"), message));
        }
    };
    let title = deeds.first().map(|key| title(key, &keys[*key]));
    let refused: Option<String> = optional_at(keys, "refused", path)?;
    if refused.is_some() && !matches!(&deed, Deed::Act(action) if action.is_operator()) {
        return Err(Fault::new(
            format!("{path}.refused"),
            "only what an operator does can be refused",
        ));
    }
    let only: Option<Subject> = optional_at(keys, "only", path)?;
    if only.is_some() && !matches!(deed, Deed::Act(Action::Hold(_) | Action::Release(_))) {
        return Err(Fault::new(
            format!("{path}.only"),
            "only stands beside hold or release",
        ));
    }
    Ok(Step {
        at,
        deed,
        title: title.unwrap_or_default(),
        refused,
        only,
    })
}

/// A step in one line: an expectation by its keys, anything else as it is written.
fn title(key: &str, value: &Value) -> String {
    let words = match value {
        Value::Object(fields) if key == "expect" => {
            let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
            keys.join(", ")
        }
        Value::String(text) => text.clone(),
        other => other.to_string().replace('"', ""),
    };
    match words.char_indices().nth(TITLE) {
        Some((at, _)) => format!("{key} {}...", &words[..at]),
        None => format!("{key} {words}"),
    }
}

fn read_action(key: &str, value: &Value, path: &str, start: Wall) -> Result<Action, Fault> {
    let mut value = value.clone();
    if matches!(key, "createBundle" | "updateBundle" | "admit") {
        resolve_instants(&mut value, start, &format!("{path}.{key}"))?;
    }
    let tree = Value::Object(Map::from_iter([(key.to_owned(), value)]));
    parse(&tree, path)
}

fn check_expect(expect: &Expect, path: &str) -> Result<(), Fault> {
    for (key, happened, known) in [
        ("calls", &expect.calls, &served::CALLS),
        ("callbacks", &expect.callbacks, &served::CALLBACKS),
    ] {
        let Some(happened) = happened else { continue };
        if let Some((index, message)) = happened.fault(known) {
            let list = if happened.in_order { ".list" } else { "" };
            return Err(Fault::new(format!("{path}.{key}{list}[{index}]"), message));
        }
    }
    Ok(())
}

/// Writes instants that count from virtual zero as the wall time they mean, so that a bundle is of
/// the same shape as a manifest (SCEN-05).
fn resolve_instants(bundle: &mut Value, start: Wall, path: &str) -> Result<(), Fault> {
    resolve_keys(bundle, &["startDateTime", "stopAt"], start, path)?;
    if let Some(Value::Array(jobs)) = bundle.get_mut("jobs") {
        for (index, job) in jobs.iter_mut().enumerate() {
            let path = format!("{path}.jobs[{index}]");
            resolve_keys(job, &["startDateTime"], start, &path)?;
        }
    }
    Ok(())
}

fn resolve_keys(tree: &mut Value, keys: &[&str], start: Wall, path: &str) -> Result<(), Fault> {
    for key in keys {
        if let Some(value) = tree.get_mut(*key)
            && !value.is_null()
        {
            let instant: span::Instant = parse(value, &format!("{path}.{key}"))?;
            *value = Value::String(instant.resolve(start).to_string());
        }
    }
    Ok(())
}

fn optional<T: DeserializeOwned>(keys: &Map<String, Value>, key: &str) -> Result<Option<T>, Fault> {
    optional_at(keys, key, "")
}

fn optional_at<T: DeserializeOwned>(
    keys: &Map<String, Value>,
    key: &str,
    path: &str,
) -> Result<Option<T>, Fault> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => parse(value, &join(path, key)).map(Some),
    }
}

fn join(path: &str, below: &str) -> String {
    match (path, below) {
        (path, "") => path.to_owned(),
        ("", below) => below.to_owned(),
        (path, below) if below.starts_with('[') => format!("{path}{below}"),
        (path, below) => format!("{path}.{below}"),
    }
}

fn parse<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T, Fault> {
    tree::read(value).map_err(|fault| Fault::new(join(path, &fault.path), fault.message))
}

#[cfg(test)]
mod tests;
