//! A fault in each phase of what a job goes through: made, started, moved, deleted (FIELD-39).
//!
//! A worker is cut off, or the control plane loses its Manager or is lost itself, at one moment; the
//! moments lie so close together that each phase is met, and what follows must end the same way
//! wherever the fault fell.

use greenroom_sim::{Options, run_file};

/// When each act begins, in milliseconds; the next begins long after its phases.
const CREATED: u64 = 10_000;
const MOVED: u64 = 60_000;
const DELETED: u64 = 300_000;
/// Time between two moments of a fault; the phases take 50 ms to 1 s.
const STRIDE: usize = 100;
/// The same in a move, of which there are many.
const STRIDE_MOVE: usize = 250;
/// Every phase of an act is over after this.
const PHASES: u64 = 3_000;

/// A course with a fault in it; `hold_ms` later it is mended.
fn play(acts: &str, handover: bool, at: u64, hold_ms: u64, (fault, mend): (&str, &str)) {
    let fault = format!("  - at: {at}ms\n    {fault}\n");
    let mend = match mend {
        "" => String::new(),
        mend => format!("  - at: {}ms\n    {mend}\n", at + hold_ms),
    };
    let mut steps: Vec<(u64, String)> = Vec::new();
    for step in acts.split_inclusive("\n\n") {
        let at = step
            .split("at: ")
            .nth(1)
            .and_then(|it| it.split("ms").next());
        let at = at.and_then(|it| it.parse().ok()).expect("a step says when");
        steps.push((at, step.to_owned()));
    }
    steps.push((at, fault));
    if !mend.is_empty() {
        steps.push((at + hold_ms, mend));
    }
    // What falls on one moment stays in this order: the act, then the fault.
    steps.sort_by_key(|(at, _)| *at);
    let steps: String = steps.into_iter().map(|(_, text)| text).collect();
    let text = format!(
        "\
scenario: 1
settings:
  placementPools:
    - name: own
      tiers: [{{name: own, kind: local-servers, scaleOut: fixed}}]
nodes:
  - {{id: n, pool: own, capacity: 4}}
  - {{id: o, pool: own, capacity: 4}}
steps:
{}",
        steps.replace("HANDOVER", if handover { "true" } else { "false" })
    );
    let run = run_file("phases.yaml", &text, Options::default());
    assert_eq!(run.exit_code(), 0, "{text}\n{}", run.report());
}

fn bundle() -> String {
    format!(
        "  - at: {CREATED}ms\n    createBundle: {{bundleId: a, pool: own, jobs: [{{jobName: e, \
         handover: HANDOVER, requirements: {{requiredCapacity: 2}}}}]}}\n\n"
    )
}

/// The job runs, once, and nothing is left of its way there.
fn runs(at: u64) -> String {
    format!(
        "  - at: {at}ms\n    expect: {{jobs: {{a/0/e: {{state: running}}}}, invariants: ok}}\n\n"
    )
}

/// The faults: a worker that is cut for less or for more than the Manager's patience; a control plane
/// without its Manager; one that was lost, with a successor.
fn faults(node: &str) -> Vec<(u64, String, String)> {
    let cut = format!("partition: {node}");
    let heal = format!("heal: {node}");
    vec![
        (2_000, cut.clone(), heal.clone()),
        (60_000, cut, heal),
        (
            5_000,
            "disconnect: true".to_owned(),
            "connect: true".to_owned(),
        ),
        (0, "restart: true".to_owned(), String::new()),
    ]
}

// spec: FIELD-39
#[test]
fn a_start_ends_in_a_running_job_whatever_phase_a_fault_falls_into() {
    let acts = format!("{}{}", bundle(), runs(CREATED + 170_000));
    for at in (CREATED..CREATED + PHASES).step_by(STRIDE) {
        for (hold, fault, mend) in faults("n") {
            play(&acts, false, at, hold, (&fault, &mend));
        }
    }
}

// spec: FIELD-39
#[test]
fn a_move_ends_on_one_side_whatever_phase_a_fault_falls_into() {
    for (strategy, handover) in [
        ("overlap", false),
        ("stopThenStart", false),
        ("handover", true),
    ] {
        let acts = format!(
            "{}{}  - at: {MOVED}ms\n    migrate: {{job: a/0/e, strategy: {strategy}, target: o}}\n\n{}",
            bundle(),
            runs(MOVED - 1_000),
            runs(MOVED + 170_000),
        );
        for node in ["n", "o"] {
            for at in (MOVED..MOVED + PHASES).step_by(STRIDE_MOVE) {
                for (hold, fault, mend) in faults(node) {
                    play(&acts, handover, at, hold, (&fault, &mend));
                }
            }
        }
    }
}

// spec: FIELD-39
#[test]
fn a_deletion_leaves_nothing_whatever_phase_a_fault_falls_into() {
    let acts = format!(
        "{}{}  - at: {DELETED}ms\n    deleteBundle: a\n\n  - at: {}ms\n    expect: {{jobs: {{a/0/e: \
         {{state: gone}}}}, nodes: {{n: {{jobs: []}}, o: {{jobs: []}}}}, invariants: ok}}\n\n",
        bundle(),
        runs(DELETED - 1_000),
        DELETED + 170_000,
    );
    for at in (DELETED..DELETED + PHASES).step_by(STRIDE) {
        for (hold, fault, mend) in faults("n") {
            play(&acts, false, at, hold, (&fault, &mend));
        }
    }
}
