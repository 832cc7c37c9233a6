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

/// Targets for what the specification wants fuzzed (SEC-15).
const FUZZED: [&str; 5] = ["rpc", "overrides", "notices", "job_socket", "signatures"];

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
    safety(root, &mut breaches)?;
    fuzzing(root, &mut breaches)?;
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

/// No crate allows itself unsafe code (SEC-15).
fn safety(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    let read =
        |path: PathBuf| fs::read_to_string(&path).with_context(|| path.display().to_string());
    if !read(root.join("Cargo.toml"))?.contains("\nunsafe_code = \"forbid\"\n") {
        breaches.push("Cargo.toml: unsafe code is not forbidden".to_owned());
    }
    let crates = fs::read_dir(root.join("crates"))?;
    for entry in crates {
        let path = entry?.path().join("Cargo.toml");
        if !read(path.clone())?.contains("[lints]\nworkspace = true") {
            breaches.push(format!("{}: without the lints of all", path.display()));
        }
    }
    Ok(())
}

/// What comes from outside is fuzzed (SEC-15): each target is built, told in the document, and has inputs
/// to begin with.
fn fuzzing(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    let fuzz = root.join("fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml"))?;
    let document = fs::read_to_string(root.join("docs/develop/fuzzing.md"))?;
    for entry in fs::read_dir(fuzz.join("fuzz_targets"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let inputs = fuzz.join("corpus").join(name.as_ref());
        let has_inputs = fs::read_dir(inputs).is_ok_and(|mut found| found.next().is_some());
        for (is_so, what) in [
            (
                manifest.contains(&format!("name = \"{name}\"")),
                "no target of Cargo.toml",
            ),
            (
                document.contains(&format!("`{name}`")),
                "not told in fuzzing.md",
            ),
            (has_inputs, "without inputs to begin with"),
        ] {
            if !is_so {
                breaches.push(format!("fuzz/fuzz_targets/{name}.rs: {what}"));
            }
        }
    }
    for outside in FUZZED {
        if !fuzz.join(format!("fuzz_targets/{outside}.rs")).exists() {
            breaches.push(format!("fuzz: what comes as {outside} is not fuzzed"));
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
    // spec: SEC-15
    #[test]
    fn the_repository_keeps_its_rules() {
        if let Err(breaches) = super::run(&crate::root()) {
            panic!("{breaches}");
        }
    }
}
