//! Makes a course that failed as short as it gets while it still fails in the same way: fewer steps,
//! nodes, bundles, jobs and settings.

use serde_json::Value;

use super::fleet::Head;
use super::play::{Played, Steps, play};
use crate::log::Keep;

/// Courses that are tried for one failure. Most need a few hundred.
const TRIES: usize = 1_500;

/// A course and how it failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) head: Head,
    pub(super) strong: bool,
    pub(super) played: Played,
}

// === impl Failed ===

impl Failed {
    fn kind(&self) -> &str {
        self.played.fault.as_ref().map_or("", |fault| &fault.kind)
    }

    /// Takes the other course if it fails in the same way.
    fn try_course(&mut self, head: &Head, steps: &[Value], strong: bool, left: &mut usize) -> bool {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let played = play(head, Steps::Given(steps.iter()), strong, Keep::Last);
        let same = played
            .fault
            .as_ref()
            .is_some_and(|fault| fault.kind == self.kind());
        if same {
            self.head = head.clone();
            self.strong = strong;
            self.played = played;
        }
        same
    }

    fn without_steps(&mut self, left: &mut usize) -> bool {
        let mut smaller = false;
        let mut size = self.played.steps.len().div_ceil(2);
        while size > 0 {
            // From the end: what happened last is needed least by what came before it.
            let mut end = self.played.steps.len();
            while end > 0 {
                let begin = end.saturating_sub(size);
                let mut steps = self.played.steps.clone();
                steps.drain(begin..end.min(steps.len()));
                let head = self.head.clone();
                smaller |= self.try_course(&head, &steps, self.strong, left);
                end = begin.min(self.played.steps.len());
            }
            size /= 2;
        }
        smaller
    }

    /// Tries every course whose head lacks one thing.
    fn without_parts(&mut self, left: &mut usize) -> bool {
        let mut smaller = false;
        let mut skip = 0;
        loop {
            let heads = smaller_heads(&self.head);
            let Some(head) = heads.get(skip) else {
                return smaller;
            };
            let steps = self.played.steps.clone();
            if self.try_course(head, &steps, self.strong, left) {
                smaller = true;
            } else {
                skip += 1;
            }
        }
    }

    /// Tries every step with one thing less in it, and sooner.
    fn with_plainer_steps(&mut self, left: &mut usize) -> bool {
        let mut smaller = false;
        for at in 0..self.played.steps.len() {
            let mut skip = 0;
            while let Some(step) = self.played.steps.get(at) {
                let plainer = smaller_values(step, 2);
                let Some(step) = plainer.get(skip) else { break };
                let mut steps = self.played.steps.clone();
                steps[at] = step.clone();
                let head = self.head.clone();
                let same_length = steps.len();
                if self.try_course(&head, &steps, self.strong, left) {
                    smaller = true;
                    if self.played.steps.len() < same_length {
                        break;
                    }
                } else {
                    skip += 1;
                }
            }
        }
        smaller
    }
}

/// As short as it gets.
pub(super) fn shrink(mut failed: Failed) -> Failed {
    let mut left = TRIES;
    if failed.strong {
        let (head, steps) = (failed.head.clone(), failed.played.steps.clone());
        failed.try_course(&head, &steps, false, &mut left);
    }
    loop {
        let fewer = failed.without_steps(&mut left);
        let less = failed.without_parts(&mut left);
        let plainer = failed.with_plainer_steps(&mut left);
        if !(fewer || less || plainer) || left == 0 {
            return failed;
        }
    }
}

fn smaller_heads(head: &Head) -> Vec<Head> {
    let mut heads = Vec::new();
    let mut add = |change: &dyn Fn(&mut Head)| {
        let mut smaller = head.clone();
        change(&mut smaller);
        heads.push(smaller);
    };
    for at in 0..head.bundles.len() {
        add(&|head| {
            head.bundles.remove(at);
        });
    }
    for at in 0..head.nodes.len() {
        add(&|head| {
            head.nodes.remove(at);
        });
    }
    for value in smaller_values(&head.settings, 5) {
        add(&|head| head.settings = value.clone());
    }
    for value in smaller_values(&head.world, 2) {
        add(&|head| head.world = value.clone());
    }
    for (at, bundle) in head.bundles.iter().enumerate() {
        for value in smaller_values(bundle, 4) {
            add(&|head| head.bundles[at] = value.clone());
        }
    }
    for (at, node) in head.nodes.iter().enumerate() {
        for value in smaller_values(node, 2) {
            add(&|head| head.nodes[at] = value.clone());
        }
    }
    heads
}

/// The value with one key or item less, down to so many levels. What is needed by the format makes
/// itself known: a course without it cannot be played, so it does not fail in the same way.
fn smaller_values(value: &Value, depth: u32) -> Vec<Value> {
    let mut smaller = Vec::new();
    if depth == 0 {
        return smaller;
    }
    match value {
        Value::Object(fields) => {
            for key in fields.keys() {
                let needed = [
                    "at", "id", "bundleId", "jobName", "name", "region", "services",
                ];
                if needed.contains(&key.as_str()) {
                    continue;
                }
                let mut fewer = fields.clone();
                fewer.remove(key);
                smaller.push(Value::Object(fewer));
            }
            for (key, below) in fields {
                for below in smaller_values(below, depth - 1) {
                    let mut other = fields.clone();
                    other.insert(key.clone(), below);
                    smaller.push(Value::Object(other));
                }
            }
        }
        Value::Array(list) => {
            for at in 0..list.len() {
                let mut fewer = list.clone();
                fewer.remove(at);
                smaller.push(Value::Array(fewer));
            }
            for (at, below) in list.iter().enumerate() {
                for below in smaller_values(below, depth - 1) {
                    let mut other = list.clone();
                    other[at] = below;
                    smaller.push(Value::Array(other));
                }
            }
        }
        _ => {}
    }
    smaller
}
