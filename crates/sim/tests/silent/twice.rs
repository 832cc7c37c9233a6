//! What is said twice, or contradicts what stands beside it.

use greenroom_sim::check_file;

use super::{FLEET, HEAD, STEPS, expects, plays, refused, step};

// spec: SCEN-15
#[test]
fn what_stands_twice_is_refused() {
    for (expect, path, words) in [
        (
            "differentNode: [[a/0/e, a/0/e]]",
            "differentNode[0]",
            "compared with itself",
        ),
        (
            "differentAz: [[a/0/e, a/0/e]]",
            "differentAz[0]",
            "compared with itself",
        ),
        (
            "differentNode: [[a/0/e, a/0/f, a/0/e]]",
            "differentNode[0]",
            "expected a list of 2, found 3",
        ),
        (
            "differentNode: [[a/0/e, a/0/f], [a/0/f, a/0/e]]",
            "differentNode[1]",
            "stands twice",
        ),
        (
            "sameNode: [[a/0/e, a/0/f], [a/0/e, a/0/f]]",
            "sameNode[1]",
            "the pair a/0/e and a/0/f stands twice",
        ),
        (
            "nodes: {n: {jobs: [a/0/e, a/0/e]}}",
            "nodes.n.jobs[1]",
            "a/0/e stands twice",
        ),
        (
            "nodes: {'@spare/live/01': {spare: true}}",
            "nodes.@spare/live/01",
            "is no node",
        ),
        (
            "nodeCount: [{pool: live, n: 2}, {pool: live, n: 3}]",
            "nodeCount[1]",
            "the count of pool live stands twice",
        ),
        (
            "calls: [{stopJob: {}}, {stopJob: {}}]",
            "calls[1]",
            "one meets both: write it once, with times",
        ),
        (
            "callbacks: [{onError: {code: callFailed}}, {onError: {code: callFailed}, times: 0}]",
            "callbacks[1]",
            "twice",
        ),
        (
            "trace: {job: a/0/e, attempts: [{survivors: [n, n]}]}",
            "trace.attempts[0].survivors[1]",
            "n stands twice",
        ),
        (
            "admission: {kind: noCapacity, unplaceable: [a/0/e, a/0/e]}",
            "admission.unplaceable[1]",
            "a/0/e stands twice",
        ),
    ] {
        expects(expect, path, words);
    }
    for (what, path) in [
        ("hold: [jobRunning, jobRunning]", ".hold[1]"),
        (
            "nodeReturns: {node: n, jobs: [a/0/e, a/0/e]}",
            ".nodeReturns.jobs[1]",
        ),
        (
            "nodeJoins: {id: x, heldImages: [i, j, i]}",
            ".nodeJoins.heldImages[2]",
        ),
        (
            "inventory: {node: n, heldImages: [i, i]}",
            ".inventory.heldImages[1]",
        ),
        (
            "nodeJoins: {id: x, disks: [{path: /, total: 1, free: 1}, {path: /, total: 1, free: 1}]}",
            ".nodeJoins.disks[1]",
        ),
        (
            "nodeJoins: {id: x, spare: {reservedFor: [t, t]}}",
            ".nodeJoins.spare.reservedFor[1]",
        ),
        (
            "updateHotSpareNode: {node: n, warmFor: [t, t]}",
            ".updateHotSpareNode.warmFor[1]",
        ),
        ("setTemplateImages: {t: [i, i]}", ".setTemplateImages.t[1]"),
    ] {
        step(what, path, "stands twice");
    }
    for (tags, key) in [
        ("pool: alt", "pool"),
        ("tier: own", "tier"),
        ("spare: 'false'", "spare"),
    ] {
        let what =
            format!("nodeJoins: {{id: x, pool: live, tier: own, spare: true, tags: {{{tags}}}}}");
        step(&what, &format!(".nodeJoins.tags.{key}"), "twice");
    }
    refused(
        &format!("{HEAD}{STEPS}spec: [SCEN-01, SCEN-01]\n"),
        "spec[1]",
        "stands twice",
    );
    for twice in [
        "jobs: {a/0/e: {gpu: 1}, a/0/e: {gpu: 2}}",
        "jobs: {a/0/e: {gpu: 1, gpu: 2}}",
    ] {
        let text = format!("{HEAD}{FLEET}steps:\n  - expect: {{{twice}}}\n");
        let told = check_file("s.yaml", &text)
            .expect_err("a key stands twice")
            .to_string();
        assert!(told.contains("stands twice"), "{told}");
    }
    // In an order the same call may come again.
    let list = "{inOrder: true, list: [{startJob: {}}, {startJob: {}}]}";
    let text = format!("{HEAD}{FLEET}steps:\n  - expect: {{calls: {list}}}\n");
    assert!(check_file("s.yaml", &text).is_ok());
}

// spec: SCEN-15
#[test]
fn what_contradicts_itself_is_refused() {
    for (expect, path, words) in [
        (
            "jobs: {a/0/e: {state: gone, restarts: 0}}",
            "jobs.a/0/e.restarts",
            "a job that is gone has no restarts",
        ),
        (
            "jobs: {a/0/e: {state: unplaced, node: n}}",
            "jobs.a/0/e.node",
            "a job that is unplaced has no node",
        ),
        (
            "nodes: {n: {state: gone, spare: false}}",
            "nodes.n.spare",
            "a node that is gone has no spare",
        ),
        (
            "nodes: {n: {state: gone, tags: {spare: null}}}",
            "nodes.n.tags",
            "a node that is gone has no tags",
        ),
        (
            "sameNode: [[a/0/e, a/0/f]], differentNode: [[a/0/f, a/0/e]]",
            "sameNode[0]",
            "cannot be on one node and on two",
        ),
        (
            "calls: {inOrder: true, list: [{stopJob: {}}, {startJob: {}, times: 0}]}",
            "calls.list[1].times",
            "holds whatever happens",
        ),
        (
            "migration: {job: a/0/e, phase: done, abortReason: x}",
            "migration.abortReason",
            "only a migration that is aborted",
        ),
        (
            "trace: {job: a/0/e, kind: place, reason: noCapacityInAnyPool}",
            "trace.reason",
            "found no place",
        ),
        (
            "trace: {job: a/0/e, kind: failure, chosen: n}",
            "trace.chosen",
            "found no place",
        ),
        (
            "trace: {job: a/0/e, attempts: [{survivors: [n], filtered: {n: cordoned}}]}",
            "trace.attempts[0].survivors[0]",
            "among those left out",
        ),
        (
            "dryRun: {kind: failure, tier: own}",
            "dryRun.tier",
            "the answer failure has no tier",
        ),
        (
            "dryRun: {kind: provision, node: n}",
            "dryRun.node",
            "the answer provision has no node",
        ),
        (
            "dryRun: {kind: place, instanceType: c}",
            "dryRun.instanceType",
            "the answer place has no instanceType",
        ),
        (
            "admission: {kind: ok, unplaceable: [a/0/e]}",
            "admission.unplaceable",
            "the answer is ok, and that has none",
        ),
        (
            "admission: {kind: noCapacity, unplaceable: []}",
            "admission.unplaceable",
            "that has some",
        ),
        (
            "admission: {kind: validationErrors, errors: []}",
            "admission.errors",
            "that has some",
        ),
        (
            "admission: {kind: ok, errors: [noJobs]}",
            "admission.errors",
            "that has none",
        ),
    ] {
        expects(expect, path, words);
    }
    for (what, path, words) in [
        (
            "jobRejected: {job: a/0/e, invalidSpec: true, code: DISK}",
            ".jobRejected.code",
            "leave one out",
        ),
        (
            "nodeJoins: {id: x, spare: {exclusive: true}}",
            ".nodeJoins.spare.exclusive",
            "say what in reservedFor",
        ),
        (
            "nodeJoins: {id: x, createdAt: +1s}",
            ".nodeJoins.createdAt",
            "there before it was made",
        ),
    ] {
        step(what, path, words);
    }
    let node = "nodes: [{id: n, createdAt: +1s}]\n";
    refused(
        &format!("{HEAD}{STEPS}{node}"),
        "nodes[0].createdAt",
        "there before it was made",
    );
    // Where the clock was set, the file does not say what time it is.
    plays(&format!(
        "{HEAD}steps:\n  - {{clock: {{wallJump: +1h}}}}\n  - nodeJoins: {{id: x, pool: live, createdAt: +30m}}\n"
    ));
}

// spec: SCEN-09, SCEN-15
#[test]
fn what_is_held_goes_with_whom_it_is_confined_to() {
    for kind in [
        "nodeBooting",
        "nodeStarted",
        "createOutcome",
        "inventory",
        "imagePulls",
    ] {
        step(
            &format!("{{hold: [jobRunning, {kind}], only: a/0/e}}"),
            ".hold[1]",
            "is about a node, and only names a job; the node of that job is '@a/0/e'",
        );
    }
    for kind in ["nodeBooting", "nodeStarted", "createOutcome"] {
        step(
            &format!("{{hold: [{kind}], only: n}}"),
            ".hold[0]",
            "is about machines that the policy buys; node n is none",
        );
    }
    let course = |steps: &str| format!("{HEAD}{FLEET}steps:\n{steps}");
    let after = |first: &str, last: &str, words: &str| {
        let text = course(&format!("  - {first}\n  - {last}\n"));
        refused(&text, "steps[1].release[0]", words);
    };
    after(
        "{hold: [jobRunning], only: a/0/e}",
        "{release: [jobRunning], only: a/0/f}",
        "no step before holds jobRunning of a/0/f",
    );
    after(
        "{hold: [jobRunning], only: n}",
        "{release: [jobRunning], only: m}",
        "jobRunning of m",
    );
    after(
        "{hold: [jobRunning]}",
        "release: [jobStopped]",
        "no step before holds jobStopped",
    );
    let twice =
        course("  - hold: [inventory]\n  - release: [inventory]\n  - release: [inventory]\n");
    refused(
        &twice,
        "steps[2].release[0]",
        "no step before holds inventory",
    );
    let healed = course("  - partition: n\n  - heal: n\n  - heal: n\n");
    refused(&healed, "steps[2].heal", "no step before cuts n off");
    for steps in [
        "  - {hold: [nodeStarted, createOutcome], only: '@tier/live/cloud/1'}\n",
        "  - {hold: [jobRunning, prepared, jobStopped, migrationSignals], only: a/0/e}\n",
        "  - {hold: [inventory, imagePulls, jobRunning], only: n}\n",
        "  - hold: [jobRunning]\n  - {release: [jobRunning], only: a/0/e}\n",
        "  - {hold: [jobRunning], only: n}\n  - {release: [jobRunning], only: a/0/e}\n",
        "  - {hold: [jobRunning], only: '@a/0/e'}\n  - {release: [jobRunning], only: n}\n",
    ] {
        plays(&course(steps));
    }
}
