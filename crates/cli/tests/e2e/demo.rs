//! The first thing that people see.

use crate::harness::{finish, greenroom, processes_on, temp};

#[test]
fn the_failover_demo_ends_with_a_summary_and_leaves_nothing() {
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
}
