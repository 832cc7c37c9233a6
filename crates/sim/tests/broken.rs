//! Shows that expectations can fail: each of these scenarios holds one thing that is not so, and the
//! report must name the step, the place in the file and both values (SCEN-11).

use greenroom_sim::{Failure, Options, Outcome, run_file};

/// One node, one running job; the rest is the test's.
const HEAD: &str = "\
scenario: 1
settings:
  placementPools:
    - name: live
      tiers: [{name: own, kind: local-servers, scaleOut: fixed}]
    - {name: other, tiers: [{name: cloud, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: c, totalCapacity: 4, totalCores: 4}]}]}
nodes:
  - {id: n, pool: live, capacity: 4, jobs: [chan/0/encode]}
  - {id: m, pool: live, capacity: 4}
bundles:
  - bundleId: chan
    pool: live
    jobs: [{jobName: encode, requirements: {requiredCapacity: 2}}]
steps:
";

/// What comes later than anything that is looked at here: a node and a bundle that are not there yet.
const TAIL: &str = "  - {at: 1h, nodeJoins: {id: x, pool: live, capacity: 4}}
  - createBundle: {bundleId: pair, pool: live, resiliencePolicy: {pool: live}, jobs: [{jobName: encode}]}
";

/// The line of the file on which the first step stands.
const FIRST_LINE: usize = 15;

fn fail(steps: &str) -> Failure {
    let run = run_file(
        "broken.yaml",
        &format!("{HEAD}{steps}{TAIL}"),
        Options::default(),
    );
    match run.outcome {
        Outcome::Fail(failure) => *failure,
        _ => panic!("{steps} should have failed: {}", run.report()),
    }
}

/// Runs an expectation that does not hold and says what was told of it.
fn told(expect: &str) -> (String, String, String) {
    let failure = fail(&format!("  - at: 10s\n    expect: {{{expect}}}\n"));
    assert_eq!(failure.step, Some(0), "{expect}");
    assert_eq!(failure.mismatches.len(), 1, "{expect}: {failure}");
    assert!(!failure.last.is_empty() && failure.last.len() <= 20);
    let mismatch = failure.mismatches.into_iter().next().unwrap();
    let place = format!("line {}, steps[0].expect.", FIRST_LINE + 1);
    let path = mismatch.path.strip_prefix(&place);
    let path = path.unwrap_or_else(|| panic!("{} begins with {place}", mismatch.path));
    (path.to_owned(), mismatch.expected, mismatch.found)
}

fn case(expect: &str, path: &str, expected: &str, found: &str) {
    let told = told(expect);
    assert_eq!(
        (told.0.as_str(), told.1.as_str(), told.2.as_str()),
        (path, expected, found),
        "{expect}"
    );
}

// spec: SCEN-11, SCEN-10
#[test]
fn what_is_expected_of_jobs() {
    let job = "jobs.chan/0/encode";
    let is = |key: &str| format!("jobs: {{chan/0/encode: {{{key}}}}}");
    case(
        &is("state: placed"),
        &format!("{job}.state"),
        "placed",
        "running",
    );
    case(&is("node: m"), &format!("{job}.node"), "m", "n");
    case(&is("tier: cloud"), &format!("{job}.tier"), "cloud", "own");
    case(&is("pool: other"), &format!("{job}.pool"), "other", "live");
    case(&is("gpu: 0"), &format!("{job}.gpu"), "0", "none");
    case(&is("restarts: 1"), &format!("{job}.restarts"), "1", "0");
    case(
        "jobs: {pair/1/encode: {state: running}}",
        "jobs.pair/1/encode.state",
        "running",
        "gone",
    );
    case(
        "differentNode: [[chan/0/encode, pair/1/encode]]",
        "differentNode[0]",
        "two nodes for chan/0/encode and pair/1/encode",
        "n and none",
    );
    case(
        "sameNode: [[chan/0/encode, pair/1/encode]]",
        "sameNode[0]",
        "one node for chan/0/encode and pair/1/encode",
        "n and none",
    );
    case(
        "differentAz: [[chan/0/encode, pair/1/encode]]",
        "differentAz[0]",
        "two zones for chan/0/encode and pair/1/encode",
        "none and none",
    );
    case(
        "differentCloud: [[chan/0/encode, pair/1/encode]]",
        "differentCloud[0]",
        "two clouds for chan/0/encode and pair/1/encode",
        "local-servers and none",
    );
    case(
        "pending: {chan/0/encode: +5m}",
        "pending.chan/0/encode",
        "2026-01-01T00:05:00Z",
        "none",
    );
}

// spec: SCEN-11, SCEN-10
#[test]
fn what_is_expected_of_nodes() {
    let is = |key: &str| format!("nodes: {{n: {{{key}}}}}");
    case(&is("state: stopped"), "nodes.n.state", "stopped", "running");
    case(&is("cordoned: true"), "nodes.n.cordoned", "true", "false");
    case(&is("spare: true"), "nodes.n.spare", "true", "false");
    case(&is("jobs: []"), "nodes.n.jobs", "[]", "[chan/0/encode]");
    case(
        &is("tags: {pool: other}"),
        "nodes.n.tags.pool",
        "other",
        "live",
    );
    case(
        &is("tags: {pool: null}"),
        "nodes.n.tags.pool",
        "none",
        "live",
    );
    case(
        "nodes: {x: {state: running}}",
        "nodes.x.state",
        "running",
        "gone",
    );
    case(
        "nodes: {'@tier/live/own/1': {state: running}}",
        "nodes.@tier/live/own/1",
        "a node",
        "@tier/live/own/1 stands for no node now",
    );
    case("spares: {pool: live, target: 1}", "spares.target", "1", "0");
    case("nodeCount: {pool: live, n: 3}", "nodeCount.n", "3", "2");
    case(
        "nodeCount: [{n: 2}, {spare: true, n: 1}]",
        "nodeCount[1].n",
        "1",
        "0",
    );
}

// spec: SCEN-11, SCEN-10
#[test]
fn what_is_expected_of_calls_and_callbacks() {
    let moved = |expect: &str| {
        let steps = format!("  - nodeDies: n\n  - at: 10s\n    expect: {{{expect}}}\n");
        let failure = fail(&steps);
        assert_eq!(
            (failure.step, failure.mismatches.len()),
            (Some(1), 1),
            "{failure}"
        );
        let mismatch = failure.mismatches.into_iter().next().unwrap();
        let (_, path) = mismatch.path.split_once("expect.").unwrap();
        (path.to_owned(), mismatch.expected, mismatch.found)
    };
    let (path, expected, found) = moved("calls: [{startJob: {nodeId: n}}]");
    assert_eq!(path, "calls[0].startJob");
    assert_eq!(expected, r#"1 times startJob {"nodeId":"n"}"#);
    assert_eq!(found, r#"0 times; startJob had {"nodeId":"m"}"#);
    let (path, expected, found) = moved("calls: [{startJob: {jobId: chan/0/encode}, times: 0}]");
    assert_eq!(path, "calls[0].startJob");
    assert_eq!(expected, r#"0 times startJob {"jobId":"chan/0/encode"}"#);
    assert_eq!(found, r#"1 times; startJob had {"jobId":"chan/0/encode"}"#);
    let (path, ..) = moved("calls: {inOrder: false, list: [{startJob: {nodeId: n}}]}");
    assert_eq!(path, "calls.list[0].startJob");
    let (path, _, found) = moved("calls: [{terminateNode: {}}]");
    assert_eq!(path, "calls[0].terminateNode");
    assert_eq!(found, "0 times; no terminateNode, but startJob");
    let order =
        "callbacks: {inOrder: true, list: [{onPlacementDecision: {}}, {onNodeStopping: {}}]}";
    let (path, expected, found) = moved(order);
    assert_eq!(path, "callbacks.list[1].onNodeStopping");
    assert_eq!(expected, "onNodeStopping {}");
    assert!(
        found.starts_with("none after onPlacementDecision {}; onNodeStopping had"),
        "{found}"
    );
    // Calls are those since the last step that looked at calls.
    let steps = "  - nodeDies: n\n  - expect: {calls: [{startJob: {}}]}\n  - expect: {calls: [{startJob: {}}]}\n";
    let failure = fail(steps);
    assert_eq!(
        (failure.step, failure.mismatches[0].found.as_str()),
        (Some(2), "0 times; nothing of the kind")
    );
}

// spec: SCEN-11, SCEN-10
#[test]
fn what_is_expected_of_decisions_and_answers() {
    case(
        "metrics: {jobsRejected: 1}",
        "metrics.jobsRejected",
        "1",
        "0",
    );
    case(
        "bundle: {id: chan, broken: true}",
        "bundle.broken",
        "true",
        "false",
    );
    case(
        "trace: {job: chan/0/encode}",
        "trace",
        "a decision about chan/0/encode",
        "none was made",
    );

    let decided = |expect: &str| {
        let steps = format!(
            "  - nodeDies: n\n  - dryRun: chan/0/encode\n  - admit: {{bundleId: b, pool: live, jobs: [{{jobName: e}}]}}\n  - expect: {{{expect}}}\n"
        );
        let mismatch = fail(&steps).mismatches.into_iter().next().unwrap();
        let (_, path) = mismatch.path.split_once("expect.").unwrap();
        format!("{path}: {} / {}", mismatch.expected, mismatch.found)
    };
    let trace = |key: &str| decided(&format!("trace: {{job: chan/0/encode, {key}}}"));
    assert_eq!(trace("chosen: n"), "trace.chosen: n / m");
    assert_eq!(
        trace("attempts: []"),
        "trace.attempts: 0 attempts / 1: own placed"
    );
    assert_eq!(
        trace("attempts: [{outcome: exhausted}]"),
        "trace.attempts[0].outcome: exhausted / placed"
    );
    assert_eq!(
        trace("attempts: [{filtered: {n: cordoned}}]"),
        "trace.attempts[0].filtered.n: cordoned / recoveryExcluded"
    );
    assert_eq!(
        trace("attempts: [{filtered: {m: cordoned}}]"),
        "trace.attempts[0].filtered.m: cordoned / not filtered: it would do"
    );
    assert_eq!(
        trace("attempts: [{survivors: [m, n]}]"),
        "trace.attempts[0].survivors: [m, n] / [m]"
    );
    // What is empty is a claim.
    assert_eq!(
        trace("attempts: [{survivors: []}]"),
        "trace.attempts[0].survivors: [] / [m]"
    );
    assert_eq!(
        trace("attempts: [{filtered: {}}]"),
        "trace.attempts[0].filtered: {} / {n: recoveryExcluded}"
    );
    assert_eq!(
        decided("dryRun: {kind: provision}"),
        "dryRun.kind: provision / place"
    );
    assert_eq!(
        decided("dryRun: {kind: place, node: n}"),
        "dryRun.node: n / m"
    );
    assert_eq!(
        decided("admission: {kind: noCapacity}"),
        "admission.kind: noCapacity / ok"
    );
    assert_eq!(
        decided("admission: {kind: ok, warnings: [noJobs]}"),
        "admission.warnings: [noJobs] / []"
    );
}

// spec: SCEN-11, SCEN-15
#[test]
fn both_sides_of_a_failure_are_in_the_words_of_the_file() {
    let steps = "  - admit: {bundleId: b, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 9}}, {jobName: f}]}\n  - expect: {admission: {kind: noCapacity, unplaceable: [b/0/f]}}\n";
    let failure = fail(steps);
    let mismatch = &failure.mismatches[0];
    assert!(
        mismatch.path.ends_with("admission.unplaceable"),
        "{failure}"
    );
    assert_eq!(
        (mismatch.expected.as_str(), mismatch.found.as_str()),
        ("[b/0/f]", "[b/0/e]")
    );
}

/// Of what is not there nothing is so: not that it is not broken, not cordoned, without jobs.
// spec: SCEN-15
#[test]
fn what_is_not_there_meets_no_expectation() {
    for (expect, path, what) in [
        (
            "bundle: {id: pair, broken: false}",
            "bundle",
            "the bundle pair",
        ),
        (
            "jobs: {pair/0/encode: {restarts: 0}}",
            "jobs.pair/0/encode",
            "a job",
        ),
        ("nodes: {x: {cordoned: false}}", "nodes.x", "a node"),
        ("nodes: {x: {spare: false}}", "nodes.x", "a node"),
        ("nodes: {x: {jobs: []}}", "nodes.x", "a node"),
        ("nodes: {x: {tags: {spare: null}}}", "nodes.x", "a node"),
    ] {
        case(expect, path, what, "gone");
    }
}

/// An empty value that can be compared is compared.
// spec: SCEN-15
#[test]
fn what_is_empty_says_that_nothing_is_there() {
    let drained = |expect: &str| {
        let steps = format!("  - drain: {{node: n}}\n  - {{at: 5s, expect: {{{expect}}}}}\n");
        let failure = fail(&steps);
        let mismatch = failure.mismatches.into_iter().next().unwrap();
        format!("{} / {}", mismatch.expected, mismatch.found)
    };
    assert_eq!(
        drained("drain: {node: n, jobs: {}}"),
        "none / [chan/0/encode]"
    );
    // A migration that was not given up has no reason, not even the word for none.
    assert_eq!(
        drained("migration: {job: chan/0/encode, abortReason: none}"),
        "a reason with \"none\" / none"
    );
    let bought = "  - createBundle: {bundleId: pool, pool: other, jobs: [{jobName: e}]}\n  - expect: {calls: [{createAwsNode: {tags: {}}}]}\n";
    let failure = fail(bought);
    let mismatch = &failure.mismatches[0];
    assert_eq!(mismatch.expected, r#"1 times createAwsNode {"tags":{}}"#);
    assert!(mismatch.found.starts_with("0 times; createAwsNode had"));
}

// spec: SCEN-07
#[test]
fn a_refusal_must_be_announced_and_an_announced_one_must_come() {
    let failure = fail("  - cordon: x\n");
    assert_eq!(failure.mismatches[0].expected, "accepted");
    assert!(
        failure.mismatches[0]
            .found
            .starts_with("refused unknownNode: node \"x\"")
    );
    let failure = fail("  - cordon: n\n    refused: unknownNode\n");
    assert_eq!(failure.mismatches[0].expected, "refused unknownNode");
    assert_eq!(failure.mismatches[0].found, "accepted");
    assert!(failure.mismatches[0].path.ends_with("steps[0].refused"));
}

// spec: SCEN-08
#[test]
fn an_event_that_cannot_happen_fails_with_its_step() {
    for (step, why) in [
        (
            "jobFails: {job: pair/1/encode}",
            "the Manager knows no job pair/1/encode",
        ),
        (
            "nodeReturns: {node: n, jobs: []}",
            "n is not gone, so it cannot return",
        ),
        ("nodeDies: x", "the fleet has no node x"),
        (
            "nodeStopping: {node: n, reason: DUPLICATE_JOB}",
            "no event of the world makes n stop with DUPLICATE_JOB",
        ),
        ("connect: true", "a policy is connected already"),
    ] {
        let failure = fail(&format!("  - {step}\n"));
        assert_eq!(failure.step, Some(0));
        assert_eq!(failure.mismatches[0].found, why);
    }
    // What is so already does not happen once more.
    for (first, again, why) in [
        (
            "partition: n",
            "partition: '@chan/0/encode'",
            "@chan/0/encode is cut off already",
        ),
        ("partition: '@chan/0/encode'", "heal: m", "m is not cut off"),
        (
            "nodeDies: n",
            "nodeDies: n",
            "n does not run, so it cannot die",
        ),
        (
            "nodeDies: n",
            "nodeStopping: {node: n}",
            "n does not run, so it cannot die",
        ),
    ] {
        let failure = fail(&format!("  - {first}\n  - {again}\n"));
        assert_eq!(failure.step, Some(1));
        assert_eq!(failure.mismatches[0].found, why);
    }
}

// spec: SCEN-02
#[test]
fn faults_of_settings_must_be_exactly_those_expected() {
    let text = "scenario: 1\nname: x\nexpectSettingsErrors: [emptyPoolName]\nsettings: {}\n";
    let run = run_file("s.yaml", text, Options::default());
    assert_eq!(run.exit_code(), 1);
    assert_eq!(
        run.report(),
        "FAIL x\n  at 0:00:00.000\n  line 3, expectSettingsErrors\n    expected: [emptyPoolName]\n    found:    []\n"
    );
}

// spec: SCEN-11
#[test]
fn the_report_shows_step_path_values_and_the_last_transitions() {
    let steps = "  - nodeDies: n\n  - at: 5s\n    expect: {jobs: {chan/0/encode: {node: n, restarts: 3}}}\n";
    let run = run_file("broken.yaml", &format!("{HEAD}{steps}"), Options::default());
    let report = run.report();
    let mut lines = report.lines();
    let mut next = || lines.next().unwrap_or_default();
    assert_eq!(next(), "FAIL broken.yaml");
    assert_eq!(next(), "  step 1 at 0:00:05.000");
    assert_eq!(next(), "  line 17, steps[1].expect.jobs.chan/0/encode.node");
    assert_eq!(next(), "    expected: n");
    assert_eq!(next(), "    found:    m");
    assert_eq!(
        next(),
        "  line 17, steps[1].expect.jobs.chan/0/encode.restarts"
    );
    assert_eq!(next(), "    expected: 3");
    assert_eq!(next(), "    found:    1");
    assert!(next().starts_with("  the last "));
    assert!(
        report.contains("call    startJob chan/0/encode on m as primary"),
        "{report}"
    );
    assert_eq!(run.exit_code(), 1);
}
