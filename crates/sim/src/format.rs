//! The scenario file (docs/spec/scenario.md): its keys as types, read with line and key in every
//! error.
//!
//! This module reads and knows nothing of playing. It refuses what it does not know, so that a file
//! never passes by being skipped.

pub mod action;
pub mod expect;
pub mod fleet;
mod known;
mod meaning;
pub mod names;
mod nothing;
pub mod schema;
mod settings;
pub mod span;
mod written;

pub use meaning::fault_of_name;

use std::collections::BTreeMap;

use greenroom_manifest::{Locations, Problem};
use greenroom_policy::Settings;
use greenroom_types::bundle::Bundle;
use greenroom_types::{Wall, tree};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use action::Action;
use expect::Expect;
use fleet::{JobStands, NodeSpec, WorldSpec};
use names::{JobPath, Subject};
use span::Span;

/// The version of the format that is read.
const VERSION: u64 = 1;

/// Steps of a scenario.
const STEPS: usize = 20_000;

/// Faults of one file that are told; more would bury the first.
const FAULTS: usize = 100;

/// Characters of a path or of a message; what people write may be of any length.
const WORDS: usize = 2_000;

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
    /// How single jobs stand before, where that is not as their bundle says.
    pub jobs: BTreeMap<JobPath, JobStands>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) path: String,
    pub(crate) message: String,
}

/// What is wrong with a file, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

// === impl Scenario ===

impl Scenario {
    /// Reads a file. What cannot be played, or would mean nothing, is a fault (SCEN-15).
    ///
    /// # Errors
    /// All faults, with line and key, in the order of the file.
    pub fn read(file: &str, text: &str) -> Result<Self, Problems> {
        let trees = greenroom_manifest::read_trees(file, text)
            .map_err(|problem| Problems(vec![problem]))?;
        let mut senseless = Vec::new();
        let read = match &trees[..] {
            [tree] => read_tree(tree, &mut senseless),
            trees => Err(vec![Fault::new(
                "",
                format!(
                    "the file holds {} documents; a scenario is one",
                    trees.len()
                ),
            )]),
        };
        match read {
            Ok(scenario) => {
                senseless.extend(meaning::faults(&scenario));
                if senseless.is_empty() {
                    return Ok(scenario);
                }
            }
            Err(faults) => senseless.extend(faults),
        }
        Err(Problems::of(file, text, senseless))
    }

    /// Reads a scenario that is there as a tree. What it means is not looked at.
    pub(crate) fn of_tree(tree: &Value) -> Result<Self, String> {
        read_tree(tree, &mut Vec::new()).map_err(|faults| {
            let each = faults
                .iter()
                .map(|fault| format!("{}: {}", fault.path, fault.message));
            each.collect::<Vec<_>>().join("\n")
        })
    }

    /// What its steps say that means nothing, by step.
    pub(crate) fn senseless_steps(&self) -> BTreeMap<usize, Vec<String>> {
        let mut steps: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for fault in meaning::faults(self) {
            if let Some(step) = step_of(&fault.path) {
                let message = written::on_one_line(&fault.message, WORDS);
                steps.entry(step).or_default().push(message);
            }
        }
        steps
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

// === impl Problems ===

impl Problems {
    /// Faults with their places in the text.
    pub(crate) fn of(file: &str, text: &str, faults: Vec<Fault>) -> Self {
        let places = Locations::of(text).ok();
        let problem = |fault: Fault| Problem {
            file: file.to_owned(),
            position: places
                .as_ref()
                .and_then(|places| places.position(0, &fault.path)),
            path: written::on_one_line(&fault.path, WORDS),
            message: written::on_one_line(&fault.message, WORDS),
        };
        let mut problems: Vec<Problem> = faults.into_iter().map(problem).collect();
        problems.sort_by_key(|problem| problem.position);
        problems.dedup();
        let more = problems.len().saturating_sub(FAULTS);
        problems.truncate(FAULTS);
        if more > 0 {
            problems.push(Problem {
                file: file.to_owned(),
                position: None,
                path: String::new(),
                message: format!("{more} faults more"),
            });
        }
        Self(problems)
    }
}

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

// === impl Fault ===

impl Fault {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

/// Number of the step that a path is in.
pub(crate) fn step_of(path: &str) -> Option<usize> {
    let rest = path.strip_prefix("steps[")?;
    rest.split_once(']')?.0.parse().ok()
}

/// Reads a tree. What can be read and means nothing is put to `senseless`.
fn read_tree(tree: &Value, senseless: &mut Vec<Fault>) -> Result<Scenario, Vec<Fault>> {
    const KEYS: [&str; 11] = [
        "scenario",
        "name",
        "description",
        "spec",
        "settings",
        "expectSettingsErrors",
        "world",
        "nodes",
        "bundles",
        "jobs",
        "steps",
    ];
    let Value::Object(keys) = tree else {
        return Err(vec![Fault::new("", "a scenario is a mapping of keys")]);
    };
    let mut faults = Vec::new();
    for key in keys.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        let message = greenroom_types::tree::unknown_key(key, &KEYS);
        faults.push(Fault::new(key, message));
    }
    match keys.get("scenario") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(other) => {
            let message = format!("{other} is no version that is read here: write 1");
            return Err(vec![Fault::new("scenario", message)]);
        }
        None => {
            let message = "the key scenario is missing: write scenario: 1";
            return Err(vec![Fault::new("", message)]);
        }
    }
    let world: Option<WorldSpec> = take(&mut faults, optional(keys, "world"));
    let world = world.unwrap_or_default();
    let settings = settings::read(keys, &mut faults);
    let is_case = keys.contains_key(settings::ERRORS);
    meaning::of_world(&world, senseless);
    let nodes = each(keys, "nodes", &mut faults, |tree, path| {
        full(tree, path)?;
        let node = parse(tree, path)?;
        meaning::of_node(&node, path, senseless);
        Ok(node)
    });
    let bundles = each(keys, "bundles", &mut faults, |tree, path| {
        let mut tree = tree.clone();
        resolve_instants(&mut tree, world.start, path)?;
        let bundle = parse(&tree, path)?;
        meaning::of_bundle(&bundle, path, senseless);
        Ok(bundle)
    });
    let steps = match keys.get("steps") {
        _ if is_case => Vec::new(),
        None => {
            faults.push(Fault::new("", "the key steps is missing"));
            Vec::new()
        }
        Some(Value::Array(list)) if list.len() > STEPS => {
            let message = format!("{} steps; a scenario has at most {STEPS}", list.len());
            faults.push(Fault::new("steps", message));
            Vec::new()
        }
        Some(list) => {
            if list.is_null() || list.as_array().is_some_and(Vec::is_empty) {
                let message =
                    "without a step it shows nothing; the least is {expect: {invariants: ok}}";
                senseless.push(Fault::new("steps", message));
            }
            read_steps(keys, world.start, &mut faults, senseless)
        }
    };
    let jobs = take(&mut faults, optional(keys, "jobs"));
    let name: Option<String> = take(&mut faults, optional(keys, "name"));
    if let Some(name) = &name {
        meaning::of_name(name, senseless);
    }
    let description = take(&mut faults, optional(keys, "description"));
    let spec: Option<Vec<String>> = take(&mut faults, optional(keys, "spec"));
    meaning::of_spec(spec.as_deref().unwrap_or_default(), senseless);
    match settings {
        Some(settings) if faults.is_empty() => Ok(Scenario {
            name: name.unwrap_or_default(),
            description: description.unwrap_or_default(),
            spec: spec.unwrap_or_default(),
            settings,
            world,
            nodes,
            bundles,
            jobs: jobs.unwrap_or_default(),
            steps,
        }),
        _ => Err(faults),
    }
}

/// A value, or its fault put to the others.
fn take<T>(faults: &mut Vec<Fault>, read: Result<Option<T>, Fault>) -> Option<T> {
    read.unwrap_or_else(|fault| {
        faults.push(fault);
        None
    })
}

/// Every item of a list that can be read; faults of the others are put to the rest.
fn each<T>(
    keys: &Map<String, Value>,
    key: &str,
    faults: &mut Vec<Fault>,
    mut read: impl FnMut(&Value, &str) -> Result<T, Fault>,
) -> Vec<T> {
    let list = match keys.get(key) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => {
            faults.push(Fault::new(key, format!("write a list of {key}")));
            return Vec::new();
        }
    };
    let mut items = Vec::with_capacity(list.len());
    for (index, tree) in list.iter().enumerate() {
        match read(tree, &format!("{key}[{index}]")) {
            Ok(item) => items.push(item),
            Err(fault) => faults.push(fault),
        }
    }
    items
}

/// The name of a code, as it is serialised.
pub(crate) fn code(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

fn read_steps(
    keys: &Map<String, Value>,
    start: Wall,
    faults: &mut Vec<Fault>,
    senseless: &mut Vec<Fault>,
) -> Vec<Step> {
    let mut before = 0;
    each(keys, "steps", faults, |tree, path| {
        let step = read_step(tree, path, before, start)?;
        before = step.at;
        meaning::of_step(&step, path, senseless);
        Ok(step)
    })
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
            let expect = expect::read(&keys[key])
                .map_err(|fault| Fault::new(join(&here, &fault.path), fault.message))?;
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
    for key in ["refused", "only"] {
        if keys.get(key).is_some_and(Value::is_null) {
            return Err(Fault::new(format!("{path}.{key}"), nothing::NULL));
        }
    }
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
        // Of a bundle, keys without a value mean what they mean in a manifest.
        resolve_instants(&mut value, start, &format!("{path}.{key}"))?;
    } else {
        full(&value, &format!("{path}.{key}"))?;
    }
    let tree = Value::Object(Map::from_iter([(key.to_owned(), value)]));
    parse(&tree, path)
}

/// That every key of a node or an action has a value.
fn full(tree: &Value, path: &str) -> Result<(), Fault> {
    nothing::in_keys(tree).map_err(|fault| Fault::new(join(path, &fault.path), fault.message))
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
