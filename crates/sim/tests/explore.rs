//! Random courses, some hundreds: `cargo xtask explore` plays as many as wanted.

use greenroom_sim::check_file;
use greenroom_sim::explore::{as_scenario, explore, find, transitions};

/// Seeds of the test.
const SEEDS: u64 = 200;

#[test]
fn random_courses_break_nothing_and_come_to_rest() {
    let failed: Vec<u64> = (0..SEEDS)
        .filter(|seed| explore(*seed).fault.is_some())
        .collect();
    let told: Vec<String> = failed
        .iter()
        .filter_map(|seed| find(*seed))
        .map(|found| {
            format!(
                "{}\n{}\n{}",
                found.fault,
                found.last.join("\n"),
                found.scenario
            )
        })
        .collect();
    assert!(failed.is_empty(), "seeds {failed:?}\n{}", told.join("\n"));
}

// spec: SCEN-14, SCEN-15
#[test]
fn every_course_can_be_kept_as_a_file() {
    for seed in 0..60 {
        let text = as_scenario(seed);
        let checked = check_file("course.yaml", &text);
        assert!(checked.is_ok(), "{}\n{text}", checked.unwrap_err());
    }
}

// spec: SCEN-14
#[test]
fn a_seed_gives_the_same_bytes_every_time() {
    let mut lines = 0;
    for seed in 0..8 {
        let first = transitions(seed);
        assert_eq!(first, transitions(seed), "seed {seed}");
        lines += first.len();
    }
    assert!(lines > 1_000, "something happened: {lines} transitions");
}
