//! Files that people write: reading them, and telling every fault in them with its place.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use greenroom_manifest::{Manifest, Position, Problem, TEXT_MAX, read_bundles};

use crate::failure::{Exit, Failure};
use crate::output::{one_line, shortened};

/// Reads all manifests, or tells every fault in them.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Manifest>, Vec<Problem>> {
    let mut manifests: Vec<Manifest> = Vec::new();
    let mut problems: Vec<Problem> = Vec::new();
    for file in files {
        let read = read_text(file)
            .map_err(|problem| vec![problem])
            .and_then(|(name, text)| read_bundles(&name, &text));
        match read {
            Ok(read) => manifests.extend(read),
            Err(found) => problems.extend(found),
        }
    }
    // Within one file a repeat was told already.
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for manifest in &manifests {
        let id = manifest.bundle.bundle_id.as_str();
        if let Some(first) = seen.insert(id, &manifest.file) {
            let message = format!("bundle {id:?} stands in two files, first in {first}");
            problems.push(manifest.problem("bundleId", message));
        }
    }
    if problems.is_empty() {
        Ok(manifests)
    } else {
        Err(problems)
    }
}

/// Reads a text, with the name under which its faults are told; `-` is stdin.
pub(crate) fn read_text(file: &Path) -> Result<(String, String), Problem> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin {
        "<stdin>".to_owned()
    } else {
        file.display().to_string()
    };
    let problem = |position: Option<Position>, message: String| Problem {
        file: name.clone(),
        position,
        path: String::new(),
        message,
    };
    let read = if is_stdin {
        let mut bytes = Vec::new();
        let mut stdin = std::io::stdin().lock().take(TEXT_MAX as u64 + 1);
        stdin.read_to_end(&mut bytes).map(|_| bytes)
    } else {
        greenroom_tls::read_file_upto(file, TEXT_MAX)
    };
    let bytes = read.map_err(|error| problem(None, format!("cannot be read: {error}")))?;
    if bytes.len() > TEXT_MAX {
        let mib = TEXT_MAX / (1024 * 1024);
        return Err(problem(None, format!("it is larger than {mib} MiB")));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name, text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let (before, rest) = error.as_bytes().split_at(at);
            let message = format!(
                "it is not UTF-8 text: byte {:#04x} is no part of any letter",
                rest.first().copied().unwrap_or_default()
            );
            Err(problem(Some(place_after(before)), message))
        }
    }
}

/// The place that follows a text.
fn place_after(text: &[u8]) -> Position {
    let line_start = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    let letters = String::from_utf8_lossy(&text[line_start..]).chars().count();
    Position {
        line: lines as u64 + 1,
        column: letters as u64 + 1,
    }
}

/// One line for each.
pub(crate) fn refuse(problems: &[Problem]) -> Failure {
    let told: Vec<String> = problems
        .iter()
        .map(|problem| one_line(&problem.to_string()).into_owned())
        .collect();
    Failure::lines(Exit::BadInput, &told.join("\n")).at(problems.iter().map(as_json).collect())
}

/// A problem as data.
pub(crate) fn as_json(problem: &Problem) -> serde_json::Value {
    serde_json::json!({
        "file": problem.file,
        "line": problem.position.map(|at| at.line),
        "column": problem.position.map(|at| at.column),
        "path": shortened(problem.path.clone()),
        "message": shortened(problem.message.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_letters_and_not_bytes() {
        assert_eq!(
            place_after("a: 1\nü: ".as_bytes()),
            Position { line: 2, column: 4 }
        );
        assert_eq!(place_after(b""), Position { line: 1, column: 1 });
    }
}
