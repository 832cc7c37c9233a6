//! Plays every file of tests/scenarios against the real cores, twice.

use std::fs;
use std::path::{Path, PathBuf};

use greenroom_sim::{Keep, Options, run_file};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder of scenarios is there") {
            let path = entry.expect("its entries can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "there are scenarios");
    files
}

fn name(path: &Path) -> String {
    let name = path.file_name().expect("a file has a name");
    name.to_string_lossy().into_owned()
}

#[test]
fn every_scenario_holds() {
    let failed: Vec<String> = files()
        .iter()
        .filter_map(|path| {
            let text = fs::read_to_string(path).expect("a scenario can be read");
            let run = run_file(&name(path), &text, Options::default());
            (run.exit_code() != 0).then(|| format!("{}: {}", name(path), run.report()))
        })
        .collect();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

// spec: SCEN-14, TIME-05
#[test]
fn the_same_run_twice_gives_the_same_bytes() {
    for path in files() {
        let text = fs::read_to_string(&path).expect("a scenario can be read");
        for keep in [Keep::Lines, Keep::Json] {
            let run = || {
                let run = run_file(&name(&path), &text, Options { keep });
                (run.report(), run.lines)
            };
            let (first, second) = (run(), run());
            assert!(
                !first.1.is_empty() || !text.contains("steps:"),
                "{}",
                name(&path)
            );
            assert_eq!(first, second, "{}", name(&path));
        }
    }
}
