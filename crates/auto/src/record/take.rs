//! A recording out of what was kept.

use std::collections::BTreeSet;

use greenroom_types::{Millis, Now};
use serde_json::{Value, json};

use super::picture::Picture;
use super::replies::rename;
use super::{Recorder, Recording};

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
            steps: picture.first.clone(),
            left_out: picture.left_out.clone(),
        };
        let mut servers: BTreeSet<String> = names(picture).collect();
        let names = self.names_of_bought(picture.at.mono);
        let mut held = BTreeSet::new();
        let mut kept: BTreeSet<String> = BTreeSet::new();
        if !names.is_empty() {
            // Machines come up as those did that were bought.
            held.extend(["nodeBooting", "nodeStarted"]);
        }
        for step in &self.steps {
            if step.at.mono < picture.at.mono {
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
            // What is a step does not happen by itself.
            if what.get("signal").is_some() {
                held.insert("migrationSignals");
            }
            if what.get("imagePulled").is_some() {
                held.insert("imagePulls");
            }
            // What was held before the recording begins is not held in it.
            let only = what["only"].as_str().map(ToOwned::to_owned);
            if what.get("hold").is_some() {
                kept.extend(only);
            } else if what.get("release").is_some()
                && only.is_some_and(|only| !kept.contains(&only) && !names.contains_key(&only))
            {
                continue;
            }
            for mut step in came_back(what, &mut servers) {
                rename(&mut step, &names);
                step["at"] = at.into();
                recording.steps.push(step);
            }
        }
        if !held.is_empty() {
            let hold = json!({"at": 0, "hold": held});
            recording.steps.insert(0, hold);
        }
        Some(recording)
    }
}

fn names(picture: &Picture) -> impl Iterator<Item = String> {
    let ids = picture.nodes.iter().filter_map(|node| node["id"].as_str());
    ids.map(ToOwned::to_owned)
}

/// A node that joins under the id of one that the recording has seen is that server again. Which it
/// is depends on the picture with which the recording begins.
fn came_back(step: Value, servers: &mut BTreeSet<String>) -> Vec<Value> {
    let Some(node) = step.get("nodeJoins") else {
        return vec![step];
    };
    let Some(id) = node["id"].as_str() else {
        return vec![step];
    };
    if servers.insert(id.to_owned()) {
        return vec![step];
    }
    let jobs = node.get("jobs").cloned().unwrap_or_else(|| json!([]));
    let mut inventory = node.clone();
    if let Value::Object(keys) = &mut inventory {
        for key in ["id", "pool", "tier", "tags", "jobs"] {
            keys.remove(key);
        }
        keys.insert("node".to_owned(), id.into());
    }
    vec![
        // While it is gone nobody hears it: it comes back with this.
        json!({"inventory": inventory}),
        json!({"nodeReturns": {"node": id, "jobs": jobs}}),
    ]
}
