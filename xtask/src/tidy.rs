//! Rules of the repository that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Crates that must stay pure, and the only workspace crates each may depend on.
const PURE: [(&str, &[&str]); 4] = [
    ("types", &[]),
    ("placement", &["greenroom-types"]),
    ("policy", &["greenroom-types", "greenroom-placement"]),
    ("ledger", &["greenroom-types"]),
];

/// Libraries that bring a clock, a thread, a socket or randomness.
const IMPURE: [&str; 12] = [
    "tokio",
    "futures",
    "rand",
    "getrandom",
    "tonic",
    "hyper",
    "bollard",
    "rusqlite",
    "openraft",
    "tracing",
    "sysinfo",
    "rustix",
];

/// A source file longer than this must be on [`LONG`], with its reason.
const LINES_MAX: usize = 700;

/// Tests of one noun may be longer: they are read one by one.
const TEST_LINES_MAX: usize = 900;

/// Long files, each with the reason why it is one idea.
const LONG: [(&str, &str); 1] = [(
    "crates/proto/src/convert/tests/samples.rs",
    "one sample of every message",
)];

/// Checks every rule and tells every breach.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let mut breaches = Vec::new();
    purity(root, &mut breaches)?;
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        let name = file.display().to_string();
        if name.ends_with(".rs") {
            source(&name, &text, &mut breaches);
        }
        if name.ends_with(".md") {
            links(root, file, &text, &mut breaches);
        }
    }
    if breaches.is_empty() {
        return Ok(());
    }
    bail!(
        "{} breaches of the repository's rules:\n{}",
        breaches.len(),
        breaches.join("\n")
    )
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("git ls-files lists what to check")?;
    let names = String::from_utf8(listing.stdout)?;
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .collect())
}

/// A pure crate's manifest shows its purity at a glance.
fn purity(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    for (name, allowed) in PURE {
        let path = root.join("crates").join(name).join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let dependencies = text
            .split("[dependencies]")
            .nth(1)
            .and_then(|rest| rest.split("\n[").next())
            .unwrap_or_default();
        for line in dependencies.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let foreign = dependency.starts_with("greenroom-") && !allowed.contains(&dependency);
            if foreign || IMPURE.contains(&dependency) {
                breaches.push(format!(
                    "crates/{name}: a pure crate must not depend on {dependency}"
                ));
            }
        }
    }
    Ok(())
}

fn source(name: &str, text: &str, breaches: &mut Vec<String>) {
    let lines = text.lines().count();
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    let most = if is_test { TEST_LINES_MAX } else { LINES_MAX };
    if lines > most && !LONG.iter().any(|(long, _)| *long == name) {
        breaches.push(format!(
            "{name}: {lines} lines; at most {most}, or a reason in tidy.rs"
        ));
    }
    if !is_test && !text.trim_start().starts_with("//!") && !text.starts_with("#![") {
        breaches.push(format!("{name}: begins without saying what it is (//!)"));
    }
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[ignore") {
            breaches.push(format!("{name}:{}: an ignored test", number + 1));
        }
    }
}

/// Relative links in documents must lead somewhere.
fn links(root: &Path, file: &Path, text: &str, breaches: &mut Vec<String>) {
    let folder = root.join(file);
    let folder = folder.parent().unwrap_or(root);
    for part in text.split("](").skip(1) {
        let target = part.split([')', '#', ' ']).next().unwrap_or_default();
        let outside = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
        if !outside && !folder.join(target).exists() {
            breaches.push(format!(
                "{}: the link {target} leads nowhere",
                file.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_keeps_its_rules() {
        if let Err(breaches) = super::run(&crate::root()) {
            panic!("{breaches}");
        }
    }
}
