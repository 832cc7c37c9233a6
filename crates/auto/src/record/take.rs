//! A recording out of what was kept.

use std::collections::BTreeSet;

use greenroom_types::{Millis, Now};
use serde_json::{Value, json};

use super::picture::Picture;
use super::replies::rename;
use super::{Recorder, Recording};

/// The kind of answer by which a node that was told to end has ended.
pub(super) const NODE_STOPPED: &str = "nodeStopped";

/// Tags of a server that comes which are otherwise than they were when it went.
pub(super) const TAGS: &str = "tagsChanged";

/// What a recorded world does not do by itself.
const HELD: [&str; 8] = [
    "nodeBooting",
    "nodeStarted",
    NODE_STOPPED,
    "jobRunning",
    "prepared",
    "jobStopped",
    "migrationSignals",
    "imagePulls",
];

// === impl Recorder ===

impl Recorder {
    /// The last minutes, from the picture that is nearest before.
    pub(crate) fn recording(&self, now: Now, minutes: u64) -> Option<Recording> {
        let from = now.mono.0.saturating_sub(minutes.saturating_mul(60_000));
        let mut before = self.pictures.iter().rev();
        let picture = before
            .find(|picture| picture.at.mono.0 <= from)
            .or_else(|| self.pictures.front())?;
        let mut recording = Recording {
            start: picture.at.wall,
            settings: picture.settings.clone(),
            nodes: picture.nodes.clone(),
            bundles: picture.bundles.clone(),
            jobs: picture.jobs.clone(),
            node_ids: self.ids_of_bought(picture),
            steps: picture.first.clone(),
            left_out: picture.left_out.clone(),
        };
        let names = self.names_of_bought(picture);
        let mut servers = Servers {
            seen: ids(picture).chain(names.keys().cloned()).collect(),
            ..Servers::default()
        };
        for step in &self.steps {
            if step.place < picture.place {
                continue;
            }
            let at = (step.at.mono - picture.at.mono).0;
            let what = match &step.what {
                Ok(what) => what.clone(),
                Err(words) => {
                    let words = format!("after {}: {words}", Millis(at));
                    recording.left_out.push(words);
                    continue;
                }
            };
            for mut step in servers.steps(what) {
                rename(&mut step, &names);
                step["at"] = at.into();
                recording.steps.push(step);
            }
        }
        // What is a step does not happen by itself: it takes the time that it took.
        recording.steps.insert(0, json!({"at": 0, "hold": HELD}));
        Some(recording)
    }
}

/// The servers of a recording. What a server that comes is to it depends on the picture with which it
/// begins: one that it has seen is that server again.
#[derive(Default)]
struct Servers {
    seen: BTreeSet<String>,
    /// Cut off, and not mended.
    cut: BTreeSet<String>,
    /// Let end, which was held before.
    let_end: BTreeSet<String>,
}

// === impl Servers ===

impl Servers {
    /// The steps that one is here.
    fn steps(&mut self, mut step: Value) -> Vec<Value> {
        let changed = match &mut step {
            Value::Object(keys) => keys.remove(TAGS),
            _ => None,
        };
        if let Some(node) = step["partition"].as_str() {
            self.cut.insert(node.to_owned());
        } else if let Some(node) = step["heal"].as_str() {
            self.cut.remove(node);
        } else if step["release"] == json!([NODE_STOPPED])
            && let Some(node) = step["only"].as_str()
        {
            self.let_end.insert(node.to_owned());
        }
        let Some(node) = step.get("nodeJoins") else {
            return vec![step];
        };
        let Some(id) = node["id"].as_str() else {
            return vec![step];
        };
        if self.seen.insert(id.to_owned()) {
            return vec![step];
        }
        self.comes_back(id, node, changed)
    }

    fn comes_back(&mut self, id: &str, node: &Value, changed: Option<Value>) -> Vec<Value> {
        let mut steps = Vec::new();
        if self.let_end.remove(id) {
            steps.push(json!({"hold": [NODE_STOPPED], "only": id}));
        }
        let mut inventory = node.clone();
        if let Value::Object(keys) = &mut inventory {
            for key in ["id", "pool", "tier", "tags", "jobs"] {
                keys.remove(key);
            }
            keys.insert("node".to_owned(), id.into());
        }
        let is_cut = self.cut.remove(id);
        let runs = node.get("jobs").is_some();
        if is_cut && !runs {
            // What it ran when its line was cut did not survive: it went down unseen.
            steps.push(json!({"nodeDies": id}));
        }
        // While it is gone nobody hears it: it comes back with this.
        steps.push(json!({"inventory": inventory}));
        if is_cut && runs {
            steps.push(json!({"heal": id}));
        } else {
            let jobs = node.get("jobs").cloned().unwrap_or_else(|| json!([]));
            steps.push(json!({"nodeReturns": {"node": id, "jobs": jobs}}));
        }
        if let Some(tags) = changed.filter(|tags| *tags != json!({})) {
            steps.push(json!({"setTags": {"node": id, "tags": tags}}));
        }
        steps
    }
}

fn ids(picture: &Picture) -> impl Iterator<Item = String> {
    let ids = picture.nodes.iter().filter_map(|node| node["id"].as_str());
    ids.map(ToOwned::to_owned)
}
