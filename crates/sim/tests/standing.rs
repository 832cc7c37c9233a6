//! A fleet begins as it stands: what closes a node to new work leaves what runs there alone.

use greenroom_sim::{Options, run_file};

const HEAD: &str = "\
scenario: 1
settings:
  placementPools: [{name: live, tiers: [{name: studio, kind: local-servers, scaleOut: fixed}]}]
";

/// Why a node takes nothing new, as its specification says it.
const CLOSED: [(&str, &str); 6] = [
    ("cordoned: true", SDI),
    ("disks: [{path: /, total: 100000000000, free: 1000}]", SDI),
    ("runtime: unavailable", SDI),
    ("utilizationCap: 0.1", SDI),
    ("utilizationCap: 1", ""),
    (
        "cordoned: true, runtime: unavailable, disks: [{path: /, total: 100000000000, free: 1000}]",
        "",
    ),
];

const SDI: &str = "capabilities: [{name: sdi, count: 4}],";

fn bundle(name: &str) -> String {
    format!(
        "{{bundleId: {name}, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 1, requiredCapabilities: [{{name: sdi, count: 1}}]}}}}]}}"
    )
}

#[track_caller]
fn plays(text: &str) {
    let run = run_file("s.yaml", text, Options::default());
    assert_eq!(run.exit_code(), 0, "{}\n{text}", run.report());
}

// spec: SCEN-04
#[test]
fn what_runs_goes_on_where_nothing_new_may_start() {
    for (closed, more) in CLOSED {
        let node = format!("{{id: n, pool: live, capacity: 8, {more} {closed}, jobs: [old/0/e]}}");
        let first = format!(
            "{HEAD}nodes: [{node}]\nbundles: [{}]\nsteps:
  - {{at: 1s, expect: {{jobs: {{old/0/e: {{state: running, node: n}}}}}}}}
  - {{at: 2s, createBundle: {}}}
  - at: 2m
    expect:
      jobs: {{old/0/e: {{state: running, node: n}}, new/0/e: {{state: unplaced}}}}
      invariants: ok
",
            bundle("old"),
            bundle("new"),
        );
        plays(&first);
        // The same of one that joins with what it runs.
        let joins = format!(
            "{HEAD}bundles: [{}]\nsteps:
  - {{at: 1s, nodeJoins: {node}}}
  - {{at: 2m, expect: {{jobs: {{old/0/e: {{state: running, node: n}}}}, invariants: ok}}}}
",
            bundle("old")
        );
        plays(&joins);
    }
}

// spec: SCEN-04, SCEN-15
#[test]
fn what_no_machine_can_run_is_refused_all_the_same() {
    let text = |node: &str, need: &str| {
        format!(
            "{HEAD}nodes: [{{id: n, pool: live, capacity: 8, {node}, jobs: [a/0/e, b/0/e]}}]
bundles:
  - {{bundleId: a, pool: live, jobs: [{{jobName: e, requirements: {{{need}}}}}]}}
  - {{bundleId: b, pool: live, jobs: [{{jobName: e, requirements: {{{need}}}}}]}}
steps: [{{expect: {{invariants: ok}}}}]
"
        )
    };
    for (node, need) in [
        ("cordoned: true", "requiredCapacity: 5"),
        ("cores: 4, cordoned: true", "requiredCores: 3"),
        ("cordoned: true", "requiredHostPorts: [5000/udp]"),
    ] {
        let text = text(node, need);
        let run = run_file("s.yaml", &text, Options::default());
        assert_eq!(run.exit_code(), 2, "{}\n{text}", run.report());
    }
}

const TWO_DEVICES: &str = "nodes: [{id: n, pool: live, capacity: 8, gpus: [{index: 0, model: l4, capacity: 1}, {index: 1, model: l4, capacity: 1}], jobs: [old/0/e]}]
bundles: [{bundleId: old, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1, requiredGpuCapacity: 0.5}}]}]
";

// spec: SCEN-04, SCEN-05
#[test]
fn a_share_is_on_the_device_that_the_file_names_or_on_the_first_with_room() {
    for (jobs, device) in [("", 0), ("jobs: {old/0/e: {gpu: 1}}\n", 1)] {
        // A whole device is wanted: the other one.
        let other = 1 - device;
        plays(&format!(
            "{HEAD}{TWO_DEVICES}{jobs}steps:
  - at: 1s
    createBundle: {{bundleId: new, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 1, requiredGpuCapacity: 1}}}}]}}
  - at: 1m
    expect:
      jobs: {{old/0/e: {{state: running, gpu: {device}}}, new/0/e: {{state: running, gpu: {other}}}}}
      invariants: ok
"
        ));
    }
}

// spec: SCEN-05, SCEN-15
#[test]
fn a_device_that_a_job_cannot_be_on_is_refused() {
    let run = |jobs: &str| {
        let text =
            format!("{HEAD}{TWO_DEVICES}jobs: {jobs}\nsteps: [{{expect: {{invariants: ok}}}}]\n");
        let run = run_file("s.yaml", &text, Options::default());
        assert_eq!(run.exit_code(), 2, "{}", run.report());
        run.report()
    };
    let report = run("{old/0/e: {gpu: 2}}");
    assert!(report.contains("node \"n\" has no device 2"), "{report}");
    let report = run("{old/1/e: {gpu: 0}}");
    assert!(report.contains("old/1/e runs on no node"), "{report}");
    let report = run("{old/0/e: {}}");
    assert!(
        report.contains("it says nothing: write dormant, verdict or gpu"),
        "{report}"
    );
}

// spec: SCEN-15
#[test]
fn a_bundle_that_is_being_deleted_can_be_brought_back() {
    plays(&format!(
        "{HEAD}nodes: [{{id: n, pool: live, capacity: 8, jobs: [a/0/e]}}]
bundles: [{{bundleId: a, pool: live, jobs: [{{jobName: e}}]}}]
steps:
  - {{at: 1s, hold: [jobStopped]}}
  - {{at: 2s, deleteBundle: a}}
  - {{at: 3s, updateBundle: {{bundleId: a, pool: live, jobs: [{{jobName: e}}]}}}}
  - {{at: 4s, release: [jobStopped]}}
  - {{at: 9s, expect: {{jobs: {{a/0/e: {{state: running}}}}}}}}
"
    ));
}
