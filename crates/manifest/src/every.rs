//! Every fault of a text at once, where reading it stops at the first.
//!
//! What is faulty is taken out of the tree and the rest read again, until nothing is wrong with what
//! is left. A key that is missed only because its value was taken out is no fault of its own.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::tree;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Locations, Problem, documents, read};

/// Faults told of one text; more would bury the first.
const FAULTS_MAX: usize = 100;

/// A step down a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// What was taken out, by the places of the text as it was written.
#[derive(Default)]
struct Taken {
    keys: BTreeSet<String>,
    /// Elements by their list.
    elements: BTreeMap<String, BTreeSet<usize>>,
}

/// Everything in a text that is not of the form of `T`, with line, column and key. Where the text
/// cannot be read at all, that is the one problem.
pub fn every_problem<T: DeserializeOwned>(file: &str, text: &str) -> Vec<Problem> {
    let Err(first) = read::<T>(file, text) else {
        return Vec::new();
    };
    let (Ok(trees), Ok(places)) = (documents(text), Locations::of(text)) else {
        return vec![first];
    };
    let mut found = Vec::new();
    for (document, mut tree) in trees.into_iter().enumerate() {
        let mut taken = Taken::default();
        for _ in 0..FAULTS_MAX {
            let Err(fault) = tree::read_written::<T>(&tree) else {
                break;
            };
            let steps = steps(&fault.path);
            let path = taken.as_written(&steps);
            if !taken.made(&path, &fault.message) {
                found.push(Problem {
                    file: file.to_owned(),
                    position: places.position(document, &path),
                    path: path.clone(),
                    message: fault.message,
                });
            }
            if !taken.take(&mut tree, &steps) {
                break;
            }
        }
    }
    // The parser knows the place of the first one better: that of its value.
    match found.iter_mut().find(|other| other.path == first.path) {
        Some(same) => *same = first,
        None => found.push(first),
    }
    found.sort_by_key(|problem| problem.position);
    found.truncate(FAULTS_MAX);
    found
}

// === impl Taken ===

impl Taken {
    /// The path of the text for one of what is left of it.
    fn as_written(&self, steps: &[Step]) -> String {
        let mut path = String::new();
        for step in steps {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path = format!("{path}.{key}"),
                Step::Index(index) => {
                    let gone = self.elements.get(&path);
                    let is_left = |at: &usize| gone.is_none_or(|gone| !gone.contains(at));
                    let at = (0..).filter(is_left).nth(*index).unwrap_or(*index);
                    path = format!("{path}[{at}]");
                }
            }
        }
        path
    }

    /// Whether a fault is there only because something was taken out.
    fn made(&self, path: &str, message: &str) -> bool {
        self.keys.iter().any(|taken| {
            let (outer, key) = taken.rsplit_once('.').unwrap_or(("", taken));
            outer == path && tree::missing_key(key) == message
        })
    }

    /// Takes something out of the tree; false where there is nothing.
    fn take(&mut self, tree: &mut Value, steps: &[Step]) -> bool {
        let Some((last, outer)) = steps.split_last() else {
            return false;
        };
        let outer_path = self.as_written(outer);
        let path = self.as_written(steps);
        let mut at = tree;
        for step in outer {
            let below = match step {
                Step::Key(key) => at.get_mut(key),
                Step::Index(index) => at.get_mut(index),
            };
            let Some(below) = below else { return false };
            at = below;
        }
        match (last, at) {
            (Step::Key(key), Value::Object(entries)) => {
                self.keys.insert(path);
                entries.remove(key).is_some()
            }
            (Step::Index(index), Value::Array(items)) if *index < items.len() => {
                items.remove(*index);
                let original = path
                    .rsplit_once('[')
                    .and_then(|(_, at)| at.trim_end_matches(']').parse::<usize>().ok());
                self.elements
                    .entry(outer_path)
                    .or_default()
                    .extend(original);
                true
            }
            _ => false,
        }
    }
}

/// `a.b[2].c` as steps.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let mut pieces = part.split('[');
        if let Some(key) = pieces.next().filter(|key| !key.is_empty()) {
            steps.push(Step::Key(key.to_owned()));
        }
        for index in pieces {
            if let Ok(index) = index.trim_end_matches(']').parse() {
                steps.push(Step::Index(index));
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::ManagerFile;

    // spec: API-20
    #[test]
    fn every_fault_of_a_settings_file_is_told_at_its_line_and_key() {
        let text = "\
dataDir: [1]
member: {}
listen:
  - address: nowhere
    auth: sometimes
  - address: 127.0.0.1:6789
    tls: {cert: a.pem, kye: b.pem}
  - {adress: 127.0.0.1:1}
auth:
  tokenFile: tokens
  certificates:
    - {subject: CN=a, role: king}
";
        let found = every_problem::<ManagerFile>("m.yaml", text);
        let told: Vec<(u64, &str)> = found
            .iter()
            .map(|it| (it.position.expect("a place").line, it.path.as_str()))
            .collect();
        let expected = [
            (1, "dataDir"),
            (2, "member"),
            (4, "listen[0].address"),
            (5, "listen[0].auth"),
            // A slip in a key is a key too many and one too few.
            (7, "listen[1].tls"),
            (7, "listen[1].tls.kye"),
            (8, "listen[2]"),
            (8, "listen[2].adress"),
            (10, "auth.tokenFile"),
            (12, "auth.certificates[0].role"),
        ];
        assert_eq!(told, expected, "{found:#?}");
        assert!(every_problem::<ManagerFile>("m.yaml", "dataDir: d\n").is_empty());
        let broken = every_problem::<ManagerFile>("m.yaml", "listen: [\n");
        assert_eq!(broken.len(), 1, "{broken:?}");
    }
}
