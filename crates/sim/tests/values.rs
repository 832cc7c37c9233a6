//! Values that cannot be and expectations that mean nothing are refused, with line and key (SCEN-15).

use greenroom_sim::check_file;

const HEAD: &str = "\
scenario: 1
settings:
  placementPools:
    - name: live
      tiers:
        - {name: own, kind: local-servers, scaleOut: fixed}
        - {name: cloud, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: c, totalCapacity: 4, totalCores: 4}]}
nodes:
  - {id: n, pool: live, tier: own, capacity: 4, jobs: [a/0/e]}
  - {id: m, pool: live, tier: own, capacity: 4}
bundles:
  - {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1}}]}
steps:
";

/// That a file with these steps has one fault, on the last line, at this path and in these words.
#[track_caller]
fn one(steps: &str, path: &str, words: &str) {
    let text = format!("{HEAD}{steps}");
    let told = match check_file("s.yaml", &text) {
        Ok(_) => panic!("nothing is wrong with {steps}"),
        Err(problems) => problems.0,
    };
    let all: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{steps}: {all:#?}");
    assert_eq!(told[0].path, path, "{all:#?}");
    assert!(
        told[0].message.contains(words),
        "{all:#?} does not say {words}"
    );
    let line = u64::try_from(text.lines().count()).expect("a small file");
    assert_eq!(told[0].position.map(|at| at.line), Some(line), "{all:#?}");
}

#[track_caller]
fn fine(steps: &str) {
    let text = format!("{HEAD}{steps}");
    if let Err(problems) = check_file("s.yaml", &text) {
        panic!("{problems}\n{steps}");
    }
}

// spec: SCEN-15
#[test]
fn calls_and_callbacks_that_cannot_be_are_refused() {
    for (item, below, words) in [
        (
            "createAwsNode: {tags: {pool: nosuch}}",
            "tags.pool",
            "no pool \"nosuch\"",
        ),
        (
            "createAwsNode: {tags: {tier: nosuch}}",
            "tags.tier",
            "no tier \"nosuch\"",
        ),
        (
            "createAwsNode: {tags: {role: 7}}",
            "tags.role",
            "expected text, found 7",
        ),
        (
            "createAwsNode: {region: nowhere}",
            "region",
            "\"nowhere\"; it has r",
        ),
        (
            "createAwsNode: {launchMode: nosuch}",
            "launchMode",
            "on-demand",
        ),
        (
            "createAwsNode: {instanceType: z}",
            "instanceType",
            "no instance type \"z\"",
        ),
        (
            "createOciNode: {shape: nosuch}",
            "shape",
            "no instance type \"nosuch\"",
        ),
        ("createOciNode: {ocpus: -1}", "ocpus", "-1 cannot be"),
        ("createOciNode: {memoryGb: .nan}", "memoryGb", ".nan"),
        (
            "setNodeTags: {tags: {pool: zz}}",
            "tags.pool",
            "no pool \"zz\"",
        ),
        (
            "setNodeTags: {expectedRevision: 1.5}",
            "expectedRevision",
            "a whole number",
        ),
        ("startJob: {role: nosuch}", "role", "primary"),
        ("startJob: {gpuIndex: -1}", "gpuIndex", "-1 cannot be"),
        ("startJob: {gpuIndex: .nan}", "gpuIndex", "a whole number"),
        (
            "startJob: {deferStart: maybe}",
            "deferStart",
            "true or false",
        ),
        ("startJob: {runtimeRole: foo}", "runtimeRole", "primary"),
        ("stopJob: {role: foo}", "role", "primary"),
        ("stopJob: {graceMs: -5}", "graceMs", "-5 cannot be"),
        ("startBundleJob: {jobName: z}", "jobName", "\"z\"; it has e"),
        ("startBundleJob: {replicaIndex: 2}", "replicaIndex", "0, 1"),
        ("setBundleStopTime: {stopAt: soon}", "stopAt", "soon"),
        ("createBundle: {state: gone}", "state", "live"),
        (
            "createBundle: {jobs: [{jobName: z}]}",
            "jobs[0].jobName",
            "\"z\"; it has e",
        ),
        (
            "createBundle: {jobs: [{requirements: {requiredCapacity: -1}}]}",
            "jobs[0].requirements.requiredCapacity",
            "-1 cannot be",
        ),
        ("createBundle: {onLaunch: zz}", "onLaunch", "avoidSpare"),
        ("prefetchImages: {imageRefs: x}", "imageRefs", "a list"),
    ] {
        let name = item.split(':').next().unwrap_or_default();
        let step = format!("  - expect:\n      calls:\n        - {{{item}, times: 0}}\n");
        one(
            &step,
            &format!("steps[0].expect.calls[0].{name}.{below}"),
            words,
        );
        let step = format!(
            "  - expect:\n      calls:\n        inOrder: false\n        list:\n          - {{startJob: {{}}}}\n          - {{{item}, times: 0}}\n"
        );
        one(
            &step,
            &format!("steps[0].expect.calls.list[1].{name}.{below}"),
            words,
        );
    }
    for (item, below, words) in [
        ("onDrainProgress: {phase: nosuch}", "phase", "migrating"),
        ("onDrainProgress: {reason: zz}", "reason", "cancelled"),
        (
            "onDrainProgress: {jobs: [{status: nosuch}]}",
            "jobs[0].status",
            "migrated",
        ),
        (
            "onDrainProgress: {jobs: [{jobId: z/0/e}]}",
            "jobs[0].jobId",
            "no bundle \"z\"",
        ),
        ("onMigrationPhase: {phase: nosuch}", "phase", "proposing"),
        (
            "onMigrationPhase: {strategy: nosuch}",
            "strategy",
            "handover",
        ),
        ("onPlacementDecision: {kind: zz}", "kind", "provision"),
        ("onPlacementDecision: {context: zz}", "context", "recovery"),
        (
            "onPlacementDecision: {reason: zz}",
            "reason",
            "noCapacityInAnyPool",
        ),
        (
            "onPlacementDecision: {triedPools: [live, zz]}",
            "triedPools[1]",
            "no pool \"zz\"",
        ),
        (
            "onPlacementDecision: {trace: {attempts: [{outcome: zz}]}}",
            "trace.attempts[0].outcome",
            "exhausted",
        ),
        (
            "onPlacementDecision: {trace: {attempts: [{filtered: [{node: zz}]}]}}",
            "trace.attempts[0].filtered[0].node",
            "no node \"zz\"",
        ),
        (
            "onPlacementDecision: {trace: {attempts: [{filtered: [{reason: zz}]}]}}",
            "trace.attempts[0].filtered[0].reason",
            "cordoned",
        ),
        ("onJobUpdated: {job: {state: zz}}", "job.state", "ACTIVE"),
        ("onJobRejected: {code: zz}", "code", "CAPACITY"),
        (
            "onJobRejected: {inventory: {totalCapacity: .nan}}",
            "inventory.totalCapacity",
            ".nan",
        ),
        ("onNodeInterrupted: {kind: nosuch}", "kind", "rebalance"),
        (
            "onNodeStarted: {node: {state: zz}}",
            "node.state",
            "running",
        ),
        ("onConnectionStateChange: {state: zz}", "state", "ready"),
        (
            "onPlacementFailed: {reason: zz}",
            "reason",
            "noCapacityInAnyPool",
        ),
        ("onError: {code: zz}", "code", "callFailed"),
        ("onSpareUnderflow: {target: .nan}", "target", ".nan"),
        ("onSpareUnderflow: {current: -1}", "current", "-1 cannot be"),
        (
            "onResilienceDegraded: {violated: [sameRack]}",
            "violated[0]",
            "sameAz",
        ),
    ] {
        let name = item.split(':').next().unwrap_or_default();
        let step = format!("  - expect:\n      callbacks:\n        - {{{item}, times: 0}}\n");
        one(
            &step,
            &format!("steps[0].expect.callbacks[0].{name}.{below}"),
            words,
        );
    }
    // What can be is taken, by whatever name.
    fine(
        "  - expect:
      calls:
        - {createAwsNode: {region: r, launchMode: spot, instanceType: c, tags: {pool: live, tier: cloud, spare: 'true', role: z}}, times: 0}
        - {startJob: {jobId: a/0/e, role: 'primary@0a1b2c3d', nodeId: '@tier/live/cloud/1', deferStart: false, gpuIndex: null}, times: 0}
        - {startJob: {jobId: a.0.e}, times: 0}
      callbacks:
        - {onError: {code: callFailed}, times: 0}
        - {onDrainProgress: {nodeId: n, phase: done, jobs: [{jobId: a/0/e, status: stuck}]}, times: 0}
",
    );
}

/// A fault stands at the line of its entry, not at that of the block.
// spec: SCEN-15
#[test]
fn faults_in_lists_are_at_the_line_of_their_entry() {
    for (step, path, words) in [
        (
            "calls:\n        - {startJob: {}}\n        - {startJob: {}, times: -1}",
            "calls[1].times",
            "-1",
        ),
        (
            "calls:\n        - {startJob: {}}\n        - {startJob: 7}",
            "calls[1].startJob",
            "no mapping of fields",
        ),
        (
            "calls:\n        - {startJob: {}}\n        - {startJob: {}, stopJob: {}}",
            "calls[1]",
            "one name with its fields",
        ),
        (
            "calls:\n        - {startJob: {}}\n        - seven",
            "calls[1]",
            "a mapping",
        ),
        (
            "calls:\n        inOrder: true\n        list:\n          - {startJob: {}}\n          - {stopJob: {}, times: many}",
            "calls.list[1].times",
            "many",
        ),
        (
            "callbacks:\n        - {onError: {}}\n        - {onEror: {}}",
            "callbacks[1]",
            "there is no callback",
        ),
        (
            "callbacks:\n        - {onError: {}}\n        - {onError: {}, times: .nan}",
            "callbacks[1].times",
            ".nan",
        ),
        (
            "nodeCount:\n        - {n: 2}\n        - {n: -2}",
            "nodeCount[1].n",
            "-2",
        ),
        (
            "nodeCount:\n        - {n: 2}\n        - {pol: live, n: 2}",
            "nodeCount[1].pol",
            "did you mean pool?",
        ),
        (
            "nodeCount:\n        - {n: 2}\n        - {pool: live}",
            "nodeCount[1]",
            "the key n is missing",
        ),
        (
            "nodeCount:\n        - {pool: zz, n: 2}",
            "nodeCount[0].pool",
            "no pool \"zz\"",
        ),
        (
            "nodeCount:\n        pool: live\n        n: .nan",
            "nodeCount.n",
            ".nan",
        ),
    ] {
        one(
            &format!("  - expect:\n      {step}\n"),
            &format!("steps[0].expect.{path}"),
            words,
        );
    }
}

// spec: SCEN-15
#[test]
fn steps_that_cannot_be_are_refused_ahead_of_the_run() {
    for (step, path, words) in [
        (
            "updateHotSpares: [{pool: live, targetCount: -1}]",
            "updateHotSpares[0].targetCount",
            "0 to 100000",
        ),
        (
            "updateHotSpares: [{pool: live, targetCount: .nan}]",
            "updateHotSpares[0].targetCount",
            "0 to 100000",
        ),
        (
            "updateHotSpares: [{pool: live, targetCount: 1000000000}]",
            "updateHotSpares[0].targetCount",
            "0 to 100000",
        ),
        (
            "updateHotSpares: [{pool: zz, targetCount: 1}]",
            "updateHotSpares[0].pool",
            "\"zz\"",
        ),
        (
            "nodeJoins: {id: \"s3\\n\", pool: live, capacity: 4}",
            "nodeJoins.id",
            "no id of a node",
        ),
        (
            "nodeJoins: {id: o, pool: live, capacity: 4, jobs: [a/0/e]}",
            "nodeJoins.jobs[0]",
            "runs on node \"n\" already",
        ),
        (
            "nodeJoins: {id: o, pool: live, tier: zz, capacity: 4}",
            "nodeJoins.tier",
            "\"zz\"; it has cloud, own",
        ),
        (
            "nodeJoins: {id: o, pool: live, capacity: 4, runtime: foo}",
            "nodeJoins.runtime",
            "\"foo\" runs nothing",
        ),
        (
            "inventory: {node: n, runtime: foo}",
            "inventory.runtime",
            "\"foo\" runs nothing",
        ),
        (
            "jobRejected: {job: a/0/e, role: FOO}",
            "jobRejected.role",
            "primary",
        ),
        (
            "setTemplateImages: {\"\": [a]}",
            "setTemplateImages",
            "no name of a template",
        ),
        (
            "setTemplateImages: {t: [\"a\\nb\"]}",
            "setTemplateImages.t[0]",
            "no name of an image",
        ),
        (
            "createBundle: {bundleId: b, pool: zz, jobs: [{jobName: e}]}",
            "createBundle.pool",
            "no pool \"zz\"",
        ),
        (
            "setTags: {node: n, tags: {pool: zz}}",
            "setTags.tags.pool",
            "no pool \"zz\"",
        ),
        (
            "setTags: {node: n, tags: {tier: zz}}",
            "setTags.tags.tier",
            "no tier \"zz\"",
        ),
        (
            "createFails: {tier: own, next: 1}",
            "createFails.tier",
            "nothing is bought",
        ),
        ("heal: n", "heal", "no step before cuts n off"),
    ] {
        one(&format!("  - {step}\n"), &format!("steps[0].{path}"), words);
    }
    one(
        "  - {cordon: n, refused: foo}\n",
        "steps[0].refused",
        "unknownNode",
    );
    one(
        "  - {cordon: n, refused: it did not work}\n",
        "steps[0].refused",
        "unknownNode",
    );
    one(
        "  - partition: m\n  - heal: n\n",
        "steps[1].heal",
        "no step before",
    );
    fine("  - partition: m\n  - {at: 1s, heal: m}\n");
    fine("  - partition: '@a/0/e'\n  - {at: 1s, heal: n}\n");
    fine(
        "  - {createBundle: {bundleId: b, pool: zz, jobs: [{jobName: e}]}, refused: bad_bundle}\n",
    );
    // By then it may run elsewhere, or nowhere.
    fine(
        "  - stopBundleJob: a/0/e\n  - {at: 9s, nodeJoins: {id: o, pool: live, capacity: 4, jobs: [a/0/e]}}\n",
    );
}

// spec: SCEN-15
#[test]
fn metrics_that_nothing_counts_up_to_are_refused() {
    for value in [".nan", ".inf", "-1", "1e300", "many"] {
        one(
            &format!("  - expect: {{metrics: {{bundlesBroken: {value}}}}}\n"),
            "steps[0].expect.metrics.bundlesBroken",
            "",
        );
    }
    fine("  - expect: {metrics: {bundlesBroken: 0}}\n");
}

// spec: SCEN-15
#[test]
fn expectations_of_nothing_are_refused() {
    for (expect, path) in [
        ("{}", ""),
        ("{metrics: {}}", ".metrics"),
        ("{pending: {}}", ".pending"),
        ("{nodes: {}}", ".nodes"),
        ("{nodes: {n: {}}}", ".nodes.n"),
        ("{jobs: {}}", ".jobs"),
        ("{jobs: {a/0/e: {}}}", ".jobs.a/0/e"),
        ("{sameNode: []}", ".sameNode"),
        ("{differentAz: []}", ".differentAz"),
        ("{nodeCount: []}", ".nodeCount"),
        ("{spares: {pool: live}}", ".spares"),
    ] {
        one(
            &format!("  - expect: {expect}\n"),
            &format!("steps[0].expect{path}"),
            "it expects nothing",
        );
    }
    for (expect, key) in [
        ("{calls: []}", "calls"),
        ("{calls: {inOrder: false, list: []}}", "calls"),
        ("{callbacks: []}", "callbacks"),
    ] {
        one(
            &format!("  - expect: {expect}\n"),
            &format!("steps[0].expect.{key}"),
            "anew",
        );
        // It means something where the calls that follow are counted.
        fine(&format!(
            "  - expect: {expect}\n  - {{at: 1s, expect: {{{key}: [{{{}: {{}}, times: 0}}]}}}}\n",
            if key == "calls" {
                "stopJob"
            } else {
                "onJobDropped"
            }
        ));
    }
}
