//! What is empty: a claim, or nothing at all.

use super::{FLEET, HEAD, STEPS, expects, plays, refused, step};

// spec: SCEN-15
#[test]
fn what_is_empty_and_can_be_no_claim_is_refused() {
    const NOTHING: &str = "it expects nothing";
    const NULL: &str = "it says nothing: write a value, or leave the key out";
    const FIELD: &str = "it says nothing: write a field, or leave the key out";
    for (expect, path, words) in [
        ("nodes: {n: {tags: {}}}", "nodes.n.tags", NOTHING),
        ("nodes: {n: {state: running, jobs: }}", "nodes.n.jobs", NULL),
        (
            "jobs: {a/0/e: {state: running, node: }}",
            "jobs.a/0/e.node",
            NULL,
        ),
        (
            "jobs: {a/0/e: {gpu: null, state: running}}",
            "jobs.a/0/e.gpu",
            NULL,
        ),
        ("nodeCount: {n: 2, pool: }", "nodeCount.pool", NULL),
        ("nodeCount: [{n: 2, spare: }]", "nodeCount[0].spare", NULL),
        ("calls: ", "calls", NULL),
        ("callbacks: ", "callbacks", NULL),
        (
            "calls: [{createBundle: {jobs: [{}]}, times: 0}]",
            "calls[0].createBundle.jobs[0]",
            FIELD,
        ),
        (
            "callbacks: [{onDrainProgress: {jobs: [{}]}, times: 0}]",
            "callbacks[0].onDrainProgress.jobs[0]",
            FIELD,
        ),
        (
            "calls: [{startJob: {jobId: ''}, times: 0}]",
            "calls[0].startJob.jobId",
            "an empty text",
        ),
        (
            "calls: [{startJob: {nodeId: }, times: 0}]",
            "calls[0].startJob.nodeId",
            "found nothing",
        ),
        (
            "callbacks: [{onNodeStopped: {nodeId: ''}, times: 0}]",
            "callbacks[0].onNodeStopped.nodeId",
            "an empty text",
        ),
        ("metrics: {pools: [{}]}", "metrics.pools[0]", FIELD),
        ("metrics: {jobsDropped: }", "metrics.jobsDropped", NULL),
        ("drain: {node: n, phase: }", "drain.phase", NULL),
        (
            "migration: {job: a/0/e, target: }",
            "migration.target",
            NULL,
        ),
        (
            "migration: {job: a/0/e, abortReason: ''}",
            "migration.abortReason",
            "every reason has that in it",
        ),
        (
            "trace: {job: a/0/e, attempts: [{}]}",
            "trace.attempts[0]",
            NOTHING,
        ),
        (
            "trace: {job: a/0/e, attempts: [{tier: , outcome: placed}]}",
            "trace.attempts[0].tier",
            NULL,
        ),
        ("trace: {job: a/0/e, chosen: }", "trace.chosen", NULL),
        ("dryRun: {kind: place, node: }", "dryRun.node", NULL),
        ("admission: {kind: ok, errors: }", "admission.errors", NULL),
        ("spares: {pool: live, live: }", "spares.live", NULL),
    ] {
        expects(expect, path, words);
    }
    for (what, path, words) in [
        ("cordon: n\n    refused: ", ".refused", NULL),
        ("hold: [jobRunning]\n    only: ", ".only", NULL),
        ("nodeJoins: {id: x, pool: }", ".nodeJoins.pool", NULL),
        ("inventory: {node: n, cores: }", ".inventory.cores", NULL),
        (
            "inventory: {node: n}",
            ".inventory",
            "say what is different",
        ),
        ("migrate: {job: a/0/e, target: }", ".migrate.target", NULL),
        (
            "drain: {node: n, strategy: {}}",
            ".drain.strategy",
            "write a strategy",
        ),
        (
            "updateHotSpareNode: {node: n}",
            ".updateHotSpareNode",
            "say what changes",
        ),
        (
            "setTemplateImages: {}",
            ".setTemplateImages",
            "at least one template",
        ),
        (
            "setTemplateImages: {t: ['']}",
            ".setTemplateImages.t[0]",
            "no name of an image",
        ),
        (
            "createFails: {tier: cloud, next: 1, error: ''}",
            ".createFails.error",
            "the provider's code",
        ),
        (
            "clock: {wallJump: +0s}",
            ".clock.wallJump",
            "stays where it is",
        ),
        ("release: []", ".release", "at least one kind"),
        (
            "nodeJoins: {id: x, heldImages: ['']}",
            ".nodeJoins.heldImages[0]",
            "no name of an image",
        ),
        (
            "nodeJoins: {id: x, disks: [{path: '', total: 1, free: 1}]}",
            ".nodeJoins.disks[0].path",
            "empty",
        ),
        (
            "nodeJoins: {id: x, spare: {warmFor: ['a,b']}}",
            ".nodeJoins.spare.warmFor[0]",
            "no name of a template",
        ),
    ] {
        step(what, path, words);
    }
    let instances = "world: {instanceTypes: {c: {}}}\n";
    let words = "say what it has";
    refused(
        &format!("{HEAD}{STEPS}{instances}"),
        "world.instanceTypes.c",
        words,
    );
    for steps in ["steps: []\n", "steps:\n"] {
        refused(
            &format!("{HEAD}{FLEET}{steps}"),
            "steps",
            "without a step it shows nothing",
        );
    }
    let node = "nodes: [{id: n, capacity: 4, az: }]\n";
    refused(&format!("{HEAD}{STEPS}{node}"), "nodes[0].az", NULL);
}

/// What is empty and can be compared is compared: that these hold shows that they are read.
// spec: SCEN-10, SCEN-15
#[test]
fn what_is_empty_and_is_a_claim_holds_where_it_is_so() {
    plays(&format!(
        "{HEAD}{FLEET}steps:
  - createBundle: {{bundleId: big, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 9}}}}]}}
  - expect:
      nodes: {{m: {{jobs: []}}}}
      trace: {{job: big/0/e, attempts: [{{tier: own, survivors: []}}, {{tier: cloud, survivors: []}}]}}
      metrics: {{brokenBundleIds: []}}
  - drain: {{node: m}}
  - {{at: 5s, expect: {{drain: {{node: m, phase: done, jobs: {{}}}}}}}}
  - admit: {{bundleId: b, pool: live, jobs: [{{jobName: e}}]}}
  - expect: {{admission: {{kind: ok, unplaceable: [], errors: [], warnings: []}}}}
"
    ));
    plays(&format!(
        "{HEAD}steps:
  - createBundle: {{bundleId: big, pool: alt, jobs: [{{jobName: e, requirements: {{requiredCapacity: 9}}}}]}}
  - expect: {{trace: {{job: big/0/e, attempts: [{{tier: far, filtered: {{}}, survivors: []}}]}}}}
"
    ));
}
