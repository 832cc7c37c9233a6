//! The first thing that people see.

use crate::harness::{Up, finish, greenroom, processes_on, sleeping, temp};

#[test]
fn the_failover_demo_ends_with_a_summary_and_leaves_nothing() {
    // An installation on the same machine, with nodes of the same names.
    let other = temp();
    let up = Up::start(&other, &["--workers", "1"]);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let before = up.job("tale.0.a");

    let folder = temp();
    let ran = finish(
        greenroom()
            .args(["demo", "failover", "--json"])
            .env("TMPDIR", folder.path()),
    )
    .ok();
    let lines = ran.json_lines();
    let steps: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["step"].as_str())
        .collect();
    let mut story = steps.clone();
    story.retain(|step| *step != "why");
    assert_eq!(
        story,
        [
            "starting",
            "submitted",
            "on air",
            "broken",
            "declared lost",
            "re-placed",
            "on air again"
        ]
    );
    assert!(steps.contains(&"why"), "{steps:?}");
    let summary = &lines.last().expect("a summary")["summary"];
    assert_eq!(summary["cameBack"], true);
    assert_ne!(summary["from"], summary["to"]);
    // The backup went on: whoever takes either copy saw less of a gap than the primary alone had.
    let ms = |key: &str| summary[key].as_u64().expect("a time");
    assert!(ms("viewerGapMs") < ms("primaryGapMs"), "{summary}");
    assert_eq!(processes_on(folder.path()), []);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    // Nothing of the other one was touched.
    assert_eq!(up.job("tale.0.a"), before);
    up.end();
}

/// A copy of the program under a name of its own, where nothing is called `greenroom`.
#[test]
fn a_demo_runs_whatever_its_program_is_called() {
    let folder = temp();
    let program = folder.path().join("gr-1.0");
    std::fs::copy(env!("CARGO_BIN_EXE_greenroom"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["demo", "handover", "--times", "1", "--json"]);
    command.env_clear().env("TMPDIR", folder.path());
    command.env("PATH", "/usr/bin:/bin");
    let ran = finish(&mut command).ok();
    let lines = ran.json_lines();
    let summary = &lines.last().expect("a summary")["summary"];
    assert_eq!(summary["kept"], true, "{summary}");
}
