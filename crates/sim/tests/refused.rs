//! What cannot be played or means nothing is refused before anything is played, with line and key
//! (SCEN-15): tables of faults, one or more for every kind of thing that a scenario says.

use greenroom_sim::{Options, Outcome, check_file, run_file};

const SETTINGS: &str = "\
scenario: 1
settings:
  placementPools:
    - name: live
      tiers:
        - {name: own, kind: local-servers, scaleOut: fixed}
        - {name: cloud, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: c, totalCapacity: 4, totalCores: 4}]}
";

const FLEET: &str = "\
nodes:
  - {id: n, pool: live, tier: own, capacity: 4}
  - {id: m, pool: live, tier: own, capacity: 4}
bundles:
  - {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1}}]}
";

/// All faults of a text, in order. What is refused here is not played either.
fn faults(text: &str) -> Vec<String> {
    let told = match check_file("s.yaml", text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.0.iter().map(ToString::to_string).collect(),
    };
    let run = run_file("s.yaml", text, Options::default());
    match &run.outcome {
        Outcome::Unreadable(problems) => {
            let played: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            assert_eq!(played, told);
            assert_eq!(run.exit_code(), 2);
        }
        _ => assert!(told.is_empty(), "{told:#?} and {}", run.report()),
    }
    told
}

/// That a text has one fault, on the line that has `mark` in it (the last such), at this path and in
/// these words.
#[track_caller]
fn one(text: &str, mark: &str, path: &str, words: &str) {
    let told = faults(text);
    assert_eq!(told.len(), 1, "{mark}: {told:#?}");
    let line = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(mark));
    let line = line.last().map_or(0, |(at, _)| at + 1);
    let place = format!("s.yaml:{line}:");
    assert!(told[0].starts_with(&place), "{} is not on {place}", told[0]);
    assert!(
        told[0].contains(&format!(": {path}: ")),
        "{} is not at {path}",
        told[0]
    );
    assert!(told[0].contains(words), "{} does not say {words}", told[0]);
}

/// Every kind of expectation with every kind of name that it has, each of which is nowhere.
const EXPECTATIONS: [(&str, &str, &str); 52] = [
    (
        "jobs: {z/0/e: {state: gone}}",
        "jobs.z/0/e",
        "no bundle \"z\"; it has a",
    ),
    (
        "jobs: {a/0/z: {state: gone}}",
        "jobs.a/0/z",
        "no job in bundle a \"z\"; it has e",
    ),
    (
        "jobs: {a/1/e: {state: gone}}",
        "jobs.a/1/e",
        "has no copy 1",
    ),
    (
        "jobs: {a/0/e: {node: z}}",
        "jobs.a/0/e.node",
        "no node \"z\"; it has m, n",
    ),
    (
        "jobs: {a/0/e: {node: '@spare/z/1'}}",
        "jobs.a/0/e.node",
        "no pool \"z\"",
    ),
    (
        "jobs: {a/0/e: {node: '@tier/live/z/1'}}",
        "jobs.a/0/e.node",
        "no tier of that pool \"z\"",
    ),
    (
        "jobs: {a/0/e: {node: '@z/0/e'}}",
        "jobs.a/0/e.node",
        "no bundle \"z\"",
    ),
    (
        "jobs: {a/0/e: {tier: z}}",
        "jobs.a/0/e.tier",
        "no tier \"z\"; it has cloud, own",
    ),
    (
        "jobs: {a/0/e: {pool: z}}",
        "jobs.a/0/e.pool",
        "no pool \"z\"; it has live",
    ),
    (
        "sameNode: [[a/0/e, z/0/e]]",
        "sameNode[0][1]",
        "no bundle \"z\"",
    ),
    (
        "sameNode: [[a/0/e, a/0/e]]",
        "sameNode[0]",
        "compared with itself",
    ),
    (
        "differentNode: [[z/0/e, a/0/e]]",
        "differentNode[0][0]",
        "no bundle \"z\"",
    ),
    (
        "differentAz: [[z/0/e, a/0/e]]",
        "differentAz[0][0]",
        "no bundle \"z\"",
    ),
    (
        "differentCloud: [[z/0/e, a/0/e]]",
        "differentCloud[0][0]",
        "no bundle \"z\"",
    ),
    ("nodes: {z: {state: gone}}", "nodes.z", "no node \"z\""),
    (
        "nodes: {n: {jobs: [a/0/e, z/0/e]}}",
        "nodes.n.jobs[1]",
        "no bundle \"z\"",
    ),
    (
        "nodeCount: {pool: z, n: 0}",
        "nodeCount.pool",
        "no pool \"z\"",
    ),
    (
        "nodeCount: [{n: 2}, {tier: z, n: 0}]",
        "nodeCount[1].tier",
        "no tier \"z\"",
    ),
    (
        "calls: [{startJbo: {}, times: 0}]",
        "calls[0]",
        "there is no call \"startJbo\"",
    ),
    (
        "calls: [{startJob: {nodID: n}, times: 0}]",
        "calls[0].startJob.nodID",
        "did you mean nodeId?",
    ),
    (
        "calls: [{startJob: {nodeId: z}, times: 0}]",
        "calls[0].startJob.nodeId",
        "no node \"z\"",
    ),
    (
        "calls: [{stopJob: {jobId: z/0/e}, times: 0}]",
        "calls[0].stopJob.jobId",
        "no bundle \"z\"",
    ),
    (
        "calls: [{stopJob: {jobId: zzz}, times: 0}]",
        "calls[0].stopJob.jobId",
        "no job \"zzz\"; it has a/0/e",
    ),
    (
        "calls: [{deleteBundle: {bundleId: z}, times: 0}]",
        "calls[0].deleteBundle.bundleId",
        "no bundle \"z\"",
    ),
    (
        "calls: [{createBundle: {pool: z}, times: 0}]",
        "calls[0].createBundle.pool",
        "no pool \"z\"",
    ),
    (
        "calls: [{createBundle: {jobs: [{jobNme: e}]}, times: 0}]",
        "calls[0].createBundle.jobs[0].jobNme",
        "did you mean jobName?",
    ),
    (
        "calls: [{createAwsNode: {instanceType: z}, times: 0}]",
        "calls[0].createAwsNode.instanceType",
        "no instance type \"z\"; it has c",
    ),
    (
        "calls: {inOrder: true, list: [{startJob: {}}, {stopJob: {node: n}}]}",
        "calls.list[1].stopJob.node",
        "unknown key \"node\"",
    ),
    (
        "callbacks: [{onNodeBursted: {}, times: 0}]",
        "callbacks[0]",
        "there is no callback",
    ),
    (
        "callbacks: [{onDrainProgress: {jobs: [{job: x}]}, times: 0}]",
        "callbacks[0].onDrainProgress.jobs[0].job",
        "unknown key \"job\"",
    ),
    (
        "callbacks: [{onDrainProgress: {nodeId: z}, times: 0}]",
        "callbacks[0].onDrainProgress.nodeId",
        "no node \"z\"",
    ),
    (
        "callbacks: [{onSpareUnderflow: {pool: z}, times: 0}]",
        "callbacks[0].onSpareUnderflow.pool",
        "no pool \"z\"",
    ),
    (
        "metrics: {bundlesBrokn: 0}",
        "metrics.bundlesBrokn",
        "did you mean bundlesBroken?",
    ),
    ("drain: {node: z}", "drain.node", "no node \"z\""),
    ("drain: {node: n, phase: dne}", "drain.phase", "\"dne\""),
    (
        "drain: {node: n, jobs: {z/0/e: moved}}",
        "drain.jobs.z/0/e",
        "no bundle \"z\"",
    ),
    (
        "drain: {node: n, jobs: {a/0/e: moved on}}",
        "drain.jobs.a/0/e",
        "\"moved on\"",
    ),
    (
        "migration: {job: z/0/e}",
        "migration.job",
        "no bundle \"z\"",
    ),
    (
        "migration: {job: a/0/e, target: z}",
        "migration.target",
        "no node \"z\"",
    ),
    (
        "migration: {job: a/0/e, phase: over}",
        "migration.phase",
        "\"over\"",
    ),
    ("trace: {job: z/0/e}", "trace.job", "no bundle \"z\""),
    (
        "trace: {job: a/0/e, chosen: z}",
        "trace.chosen",
        "no node \"z\"",
    ),
    ("trace: {job: a/0/e, kind: plac}", "trace.kind", "\"plac\""),
    (
        "trace: {job: a/0/e, attempts: [{tier: z}]}",
        "trace.attempts[0].tier",
        "no tier \"z\"",
    ),
    (
        "trace: {job: a/0/e, attempts: [{filtered: {z: cordoned}}]}",
        "trace.attempts[0].filtered.z",
        "no node \"z\"",
    ),
    (
        "trace: {job: a/0/e, attempts: [{survivors: [n, z]}]}",
        "trace.attempts[0].survivors[1]",
        "no node \"z\"",
    ),
    (
        "dryRun: {kind: place}",
        "dryRun",
        "no step before asks for a dry run",
    ),
    (
        "admission: {kind: ok}",
        "admission",
        "no step before asks for an admission",
    ),
    ("pending: {z/0/e: +5m}", "pending.z/0/e", "no bundle \"z\""),
    ("spares: {pool: z, live: 0}", "spares.pool", "no pool \"z\""),
    (
        "bundle: {id: z, broken: false}",
        "bundle.id",
        "no bundle \"z\"",
    ),
    ("invariants: broken", "invariants", "\"broken\""),
];

// spec: SCEN-15
#[test]
fn expectations_about_what_is_nowhere_are_refused() {
    for (expect, path, words) in EXPECTATIONS {
        let text = format!("{SETTINGS}{FLEET}steps:\n  - at: 1s\n    expect: {{{expect}}}\n");
        one(&text, "expect:", &format!("steps[0].expect.{path}"), words);
    }
    // After a question; and of it.
    let asked = "steps:
  - dryRun: a/0/e
  - admit: {bundleId: x, pool: live, jobs: [{jobName: f, requirements: {requiredCapacity: 4}}]}
  - expect: ";
    for (expect, path, words) in [
        (
            "dryRun: {kind: place, node: z}",
            "dryRun.node",
            "no node \"z\"",
        ),
        (
            "dryRun: {kind: place, tier: z}",
            "dryRun.tier",
            "no tier \"z\"",
        ),
        (
            "dryRun: {kind: provision, instanceType: z}",
            "dryRun.instanceType",
            "no instance type \"z\"",
        ),
        ("dryRun: {kind: placed}", "dryRun.kind", "\"placed\""),
        ("admission: {kind: okay}", "admission.kind", "\"okay\""),
        (
            "admission: {kind: ok, errors: [nope]}",
            "admission.errors[0]",
            "\"nope\"",
        ),
        (
            "admission: {kind: noCapacity, unplaceable: [a/0/e]}",
            "admission.unplaceable[0]",
            "the last admission is of bundle \"x\", not of \"a\"",
        ),
        (
            "admission: {kind: noCapacity, unplaceable: [x/0/e]}",
            "admission.unplaceable[0]",
            "no job in bundle x \"e\"; it has f",
        ),
    ] {
        let text = format!("{SETTINGS}{FLEET}{asked}{{{expect}}}\n");
        one(&text, "expect:", &format!("steps[2].expect.{path}"), words);
    }
    let several = "  - expect: {bundle: {id: z, broken: false}, spares: {pool: y, live: 0}}\n";
    assert_eq!(
        faults(&format!("{SETTINGS}{FLEET}steps:\n{several}")).len(),
        2
    );
}

// spec: SCEN-15
#[test]
fn steps_that_name_what_is_nowhere_or_cannot_follow_are_refused() {
    for (step, path, words) in [
        ("deleteBundle: z", "deleteBundle", "no bundle \"z\""),
        (
            "createBundle: {bundleId: a, pool: live, jobs: [{jobName: e}]}",
            "createBundle.bundleId",
            "is there already",
        ),
        (
            "createBundle: {bundleId: b, pool: live, jobs: []}",
            "createBundle.jobs",
            "",
        ),
        (
            "updateBundle: {bundleId: b, pool: live, jobs: [{jobName: e}]}",
            "updateBundle.bundleId",
            "is not there by then",
        ),
        ("startBundleJob: z/0/e", "startBundleJob", "no bundle \"z\""),
        (
            "stopBundleJob: a/0/z",
            "stopBundleJob",
            "no job in bundle a \"z\"",
        ),
        (
            "setBundleStopTime: {bundle: z}",
            "setBundleStopTime.bundle",
            "no bundle \"z\"",
        ),
        ("cordon: z", "cordon", "no node \"z\""),
        ("uncordon: z", "uncordon", "no node \"z\""),
        ("drain: {node: z}", "drain.node", "no node \"z\""),
        (
            "drain: {node: n, strategy: {z/0/e: overlap}}",
            "drain.strategy.z/0/e",
            "no bundle \"z\"",
        ),
        ("evict: z", "evict", "no node \"z\""),
        ("terminate: z", "terminate", "no node \"z\""),
        (
            "interrupt: {node: z, kind: rebalance}",
            "interrupt.node",
            "no node \"z\"",
        ),
        ("migrate: {job: z/0/e}", "migrate.job", "no bundle \"z\""),
        (
            "migrate: {job: a/0/e, target: z}",
            "migrate.target",
            "no node \"z\"",
        ),
        (
            "abortMigration: {job: z/0/e}",
            "abortMigration.job",
            "no bundle \"z\"",
        ),
        (
            "updateHotSpares: [{pool: z, targetCount: 1}]",
            "updateHotSpares[0].pool",
            "no placement pool is called \"z\"",
        ),
        (
            "updateHotSpareNode: {node: z, exclusive: false}",
            "updateHotSpareNode.node",
            "no node \"z\"",
        ),
        ("dryRun: z/0/e", "dryRun", "no bundle \"z\""),
        ("dryRun: {bundle: z}", "dryRun.bundle", "no bundle \"z\""),
        (
            "nodeJoins: {id: n, pool: live, capacity: 4}",
            "nodeJoins.id",
            "is there already",
        ),
        (
            "nodeJoins: {id: x, pool: live, capacity: -4}",
            "nodeJoins.capacity",
            "-4 is no capacity",
        ),
        (
            "nodeJoins: {id: x, pool: live, capacity: 4, jobs: [z/0/e]}",
            "nodeJoins.jobs[0]",
            "no bundle \"z\"",
        ),
        (
            "nodeReturns: {node: z, jobs: []}",
            "nodeReturns.node",
            "no node \"z\"",
        ),
        (
            "nodeReturns: {node: n, jobs: [z/0/e]}",
            "nodeReturns.jobs[0]",
            "no bundle \"z\"",
        ),
        (
            "nodeStopping: {node: z}",
            "nodeStopping.node",
            "no node \"z\"",
        ),
        ("nodeStopped: z", "nodeStopped", "no node \"z\""),
        ("nodeDies: z", "nodeDies", "no node \"z\""),
        (
            "inventory: {node: z, capacity: 1}",
            "inventory.node",
            "no node \"z\"",
        ),
        (
            "inventory: {node: n, capacity: -1}",
            "inventory.capacity",
            "-1 is no capacity",
        ),
        (
            "inventory: {node: n, capacity: .nan}",
            "inventory.capacity",
            ".nan",
        ),
        (
            "setTags: {node: z, tags: {a: b}}",
            "setTags.node",
            "no node \"z\"",
        ),
        (
            "setTags: {node: n, tags: {}}",
            "setTags.tags",
            "at least one tag",
        ),
        (
            "notice: {node: z, kind: rebalance}",
            "notice.node",
            "no node \"z\"",
        ),
        ("jobFails: {job: z/0/e}", "jobFails.job", "no bundle \"z\""),
        (
            "jobRejected: {job: z/0/e}",
            "jobRejected.job",
            "no bundle \"z\"",
        ),
        (
            "jobRejected: {job: a/0/e, node: z}",
            "jobRejected.node",
            "no node \"z\"",
        ),
        ("jobRunning: z/0/e", "jobRunning", "no bundle \"z\""),
        ("jobCompletes: z/0/e", "jobCompletes", "no bundle \"z\""),
        ("duplicate: z/0/e", "duplicate", "no bundle \"z\""),
        (
            "imagePulled: {node: z, ref: x}",
            "imagePulled.node",
            "no node \"z\"",
        ),
        (
            "signal: {job: z/0/e, side: source, kind: state}",
            "signal.job",
            "no bundle \"z\"",
        ),
        (
            "createFails: {tier: z, next: 1}",
            "createFails.tier",
            "no tier \"z\"",
        ),
        (
            "createFails: {tier: cloud, next: 0}",
            "createFails.next",
            "1 or more",
        ),
        (
            "startFails: {node: z, next: 1}",
            "startFails.node",
            "no node \"z\"",
        ),
        (
            "startFails: {node: n, next: 0}",
            "startFails.next",
            "1 or more",
        ),
        ("partition: z", "partition", "no node \"z\""),
        ("heal: z", "heal", "no node \"z\""),
        ("hold: []", "hold", "at least one kind"),
        (
            "hold: [jobRunning]\n    only: a/0/z",
            "only",
            "no job in bundle a \"z\"",
        ),
        (
            "release: [jobRunning]",
            "release[0]",
            "no step before holds jobRunning",
        ),
    ] {
        let text = format!("{SETTINGS}{FLEET}steps:\n  - {step}\n");
        let mark = step.lines().last().unwrap_or_default();
        one(&text, mark, &format!("steps[0].{path}"), words);
    }
    // A name that is nowhere may be the point of a step that is refused.
    let refused = "steps:\n  - {cordon: z, refused: unknownNode}\n  - {deleteBundle: z, refused: unknownBundle}\n";
    let told = faults(&format!("{SETTINGS}{FLEET}{refused}"));
    assert!(told.is_empty(), "{told:#?}");
}

// spec: SCEN-15
#[test]
fn a_fleet_that_cannot_stand_is_refused() {
    let node = |node: &str| {
        format!(
            "{SETTINGS}nodes:\n  - {{id: n, pool: live, {node}}}\nbundles:\n  - {{bundleId: a, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 1}}}}]}}\nsteps: [{{expect: {{invariants: ok}}}}]\n"
        )
    };
    for (text, path, words) in [
        ("capacity: -1", "nodes[0].capacity", "-1 is no capacity"),
        ("capacity: .nan", "nodes[0].capacity", "found text \".nan\""),
        (
            "capacity: -.inf",
            "nodes[0].capacity",
            "found text \"-.inf\"",
        ),
        (
            "capacity: 1e308",
            "nodes[0].capacity",
            "more than any machine has",
        ),
        (
            "capacity: 4, gpus: [{index: 0, model: a, capacity: -1}]",
            "nodes[0].gpus[0].capacity",
            "-1 is no capacity",
        ),
        (
            "capacity: 4, gpus: [{index: 0, model: a, capacity: 1}, {index: 0, model: a, capacity: 1}]",
            "nodes[0].gpus[1].index",
            "device 0 stands twice",
        ),
        (
            "capacity: 4, disks: [{path: /, total: 5, free: 6}]",
            "nodes[0].disks[0].free",
            "6 bytes free of 5",
        ),
        (
            "capacity: 4, jobs: [z/0/e]",
            "nodes[0].jobs[0]",
            "no bundle \"z\" stands under bundles",
        ),
        (
            "capacity: 4, jobs: [a/0/z]",
            "nodes[0].jobs[0]",
            "no job in bundle a \"z\"",
        ),
        (
            "capacity: 4, jobs: [a/0/e, a/0/e]",
            "nodes[0].jobs[1]",
            "stands twice",
        ),
        (
            "capacity: 0.5, jobs: [a/0/e]",
            "nodes[0].jobs",
            "needs a capacity of 1; the node has 0.5",
        ),
    ] {
        one(&node(text), "id: n", path, words);
    }
    let whole = |part: &str| format!("{SETTINGS}{part}steps: [{{expect: {{invariants: ok}}}}]\n");
    let bundle = "{bundleId: a, pool: live, jobs: [{jobName: e}]}";
    for (text, mark, path, words) in [
        ("nodes:\n  - {id: n}\n  - {id: n, pool: live}\n".to_owned(), "id: n, pool", "nodes[1].id", "stands twice"),
        (format!("bundles:\n  - {bundle}\n  - {bundle}\n"), "bundleId", "bundles[1].bundleId", "stands twice"),
        ("bundles:\n  - {bundleId: a, pool: live, jobs: [{jobName: e, coLocateWith: [e]}]}\n".to_owned(), "bundleId", "bundles[0].jobs[0].coLocateWith", "cannot name itself"),
        ("bundles:\n  - {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: -1}}]}\n".to_owned(), "bundleId", "bundles[0].jobs[0].requirements.requiredCapacity", ""),
        (format!("nodes:\n  - {{id: n, pool: live, capacity: 4, jobs: [a/0/e]}}\n  - {{id: m, pool: live, capacity: 4, jobs: [a/0/e]}}\nbundles:\n  - {bundle}\n"), "id: m", "nodes[1].jobs[0]", "runs on node \"n\" already"),
        ("world:\n  azs: {z: [a]}\n".to_owned(), "azs", "world.azs.z", "no tier \"z\""),
        ("world:\n  azs: {cloud: []}\n".to_owned(), "azs", "world.azs.cloud", "at least one zone"),
        ("world:\n  instanceTypes: {z: {vcpus: 4}}\n".to_owned(), "instanceTypes", "world.instanceTypes.z", "no instance type \"z\""),
        ("world:\n  instanceTypes: {c: {vcpus: -4}}\n".to_owned(), "instanceTypes", "world.instanceTypes.c.vcpus", "-4 is no vcpus"),
        ("name: \"a\\nb\"\n".to_owned(), "name: \"", "name", "one line of text"),
    ] {
        one(&whole(&text), mark, path, words);
    }
}

// spec: SCEN-15
#[test]
fn all_faults_are_told_in_the_order_of_the_file() {
    let text = format!(
        "{SETTINGS}nodes:
  - {{id: n, pool: live, capacity: .nan}}
  - {{id: m, pool: live, capacty: 4}}
  - {{id: o, pool: live, capacity: -1}}
bundles:
  - {{bundleId: a, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: .inf}}}}]}}
steps:
  - {{cordn: n}}
  - {{\"line\\nend\": n}}
  - {{startFails: {{node: n, next: 0}}}}
name: 7
"
    );
    let told = faults(&text);
    let lines: Vec<&str> = told.iter().filter_map(|it| it.split(':').nth(1)).collect();
    assert_eq!(
        lines,
        ["9", "10", "11", "13", "15", "16", "17", "18"],
        "{told:#?}"
    );
    assert!(told.iter().all(|it| !it.contains('\n')), "{told:#?}");
    assert!(told[5].contains("steps[1].line\\nend"), "{told:#?}");
}
