//! One virtual hour in the simulator, with faults all along and every checker at work (PERF-16).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use greenroom_sim::{Options, Run, run_file};

use crate::measure::timed;
use crate::table::{Table, whole};

/// Jobs of every bundle.
const JOBS: usize = 10;

/// A scenario of an hour: servers die and come back, lines break, jobs crash, servers are drained.
pub(crate) fn hour(nodes: usize, bundles: usize) -> String {
    let mut text = String::from(
        "scenario: 1\nname: an hour\nsettings:\n  placementPools: \
         [{name: live, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}]\nnodes:\n",
    );
    // Writing to a string does not fail.
    for at in 0..nodes {
        let _ = writeln!(text, "  - {{id: n{at:03}, pool: live, capacity: 8}}");
    }
    text.push_str("bundles:\n");
    for at in 0..bundles {
        let jobs: Vec<String> = (0..JOBS)
            .map(|nth| format!("{{jobName: j{nth}, requirements: {{requiredCapacity: 1}}}}"))
            .collect();
        let _ = writeln!(
            text,
            "  - {{bundleId: b{at:02}, pool: live, jobs: [{}]}}",
            jobs.join(", ")
        );
    }
    text.push_str("steps:\n");
    // A drain ends its node, and what has ended does not die.
    let mut ended = BTreeSet::new();
    let mut dead = 0;
    for minute in 1..58 {
        let node = (minute * 7) % nodes;
        let other = (minute * 7 + 3) % nodes;
        let bundle = minute % bundles;
        let deeds = match minute % 4 {
            0 => {
                let mut there = (node..node + nodes).map(|at| at % nodes);
                dead = there
                    .find(|at| !ended.contains(at))
                    .expect("most are never drained");
                vec![format!("{{at: {minute}m, nodeDies: n{dead:03}}}")]
            }
            1 => vec![format!(
                "{{at: {minute}m30s, nodeReturns: {{node: n{dead:03}, jobs: []}}}}"
            )],
            2 => vec![
                format!("{{at: {minute}m, partition: n{other:03}}}"),
                format!("{{at: {minute}m2s, heal: n{other:03}}}"),
            ],
            _ => {
                ended.insert(other);
                vec![
                    format!("{{at: {minute}m, drain: {{node: n{other:03}, strategy: overlap}}}}"),
                    format!("{{at: {minute}m20s, uncordon: n{other:03}}}"),
                ]
            }
        };
        for deed in deeds.iter().filter(|_| minute > 3) {
            let _ = writeln!(text, "  - {deed}");
        }
        let _ = writeln!(
            text,
            "  - {{at: {minute}m40s, jobFails: {{job: b{bundle:02}/0/j{}, reason: crashed}}}}",
            minute % JOBS
        );
    }
    text.push_str("  - at: 1h\n    expect:\n      invariants: ok\n      jobs:\n");
    for at in 0..bundles {
        for nth in 0..JOBS {
            let _ = writeln!(text, "        b{at:02}/0/j{nth}: {{state: running}}");
        }
    }
    text
}

pub(crate) fn play(text: &str) -> Run {
    run_file("hour.yaml", text, Options::default())
}

/// PERF-16.
pub(crate) fn simulated(scale: usize) -> Table {
    let (nodes, bundles) = ((100 / scale).max(10), (50 / scale).max(5));
    let title = format!(
        "One virtual hour of {nodes} nodes and {} jobs with faults, checkers included",
        bundles * JOBS
    );
    let mut table = Table::new(title, &["what", "value"]);
    let text = hour(nodes, bundles);
    let (run, spent) = timed(|| play(&text));
    table.fact("CPU s", format!("{:.3}", spent / 1e9));
    table.fact("ended with", whole(f64::from(run.exit_code())));
    table
}
