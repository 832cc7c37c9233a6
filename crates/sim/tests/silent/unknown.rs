//! What is nowhere, or can never be.

use greenroom_sim::{Options, check_file, run_file};

use super::{FLEET, HEAD, STEPS, expects, plays, refused, step};

// spec: SCEN-15
#[test]
fn a_pool_that_is_nowhere_is_refused_wherever_it_stands() {
    const WORDS: &str = "no pool \"zz\"; it has alt, live; one that the settings do not have stands in \
                         world.unconfiguredPools";
    let job = "jobs: [{jobName: e}]";
    for (what, path) in [
        ("nodes: [{id: n, pool: zz}]".to_owned(), "nodes[0].pool"),
        (
            "nodes: [{id: n, tags: {pool: zz}}]".to_owned(),
            "nodes[0].tags.pool",
        ),
        (
            format!("bundles: [{{bundleId: a, pool: zz, {job}}}]"),
            "bundles[0].pool",
        ),
        (
            format!(
                "bundles: [{{bundleId: a, pool: live, resiliencePolicy: {{pool: zz}}, {job}}}]"
            ),
            "bundles[0].resiliencePolicy.pool",
        ),
    ] {
        refused(&format!("{HEAD}{STEPS}{what}\n"), path, WORDS);
    }
    for (what, path) in [
        ("nodeJoins: {id: x, pool: zz}".to_owned(), ".nodeJoins.pool"),
        (
            "nodeJoins: {id: x, tags: {pool: zz}}".to_owned(),
            ".nodeJoins.tags.pool",
        ),
        (
            format!("createBundle: {{bundleId: b, pool: zz, {job}}}"),
            ".createBundle.pool",
        ),
        (
            format!(
                "createBundle: {{bundleId: b, pool: live, resiliencePolicy: {{pool: zz}}, {job}}}"
            ),
            ".createBundle.resiliencePolicy.pool",
        ),
        (
            format!("updateBundle: {{bundleId: a, pool: zz, {job}}}"),
            ".updateBundle.pool",
        ),
    ] {
        step(&what, path, WORDS);
    }
    step(
        "nodeJoins: {id: x, pool: ''}",
        ".nodeJoins.pool",
        "no pool \"\"",
    );
    step(
        "nodeJoins: {id: x, pool: live, tags: {tier: far}}",
        ".nodeJoins.tags.tier",
        "no tier of that pool",
    );
    expects(
        "jobs: {a/0/e: {pool: live, tier: far}}",
        "jobs.a/0/e.tier",
        "no tier of that pool",
    );
    expects(
        "nodeCount: {pool: live, tier: far, n: 0}",
        "nodeCount.tier",
        "no tier of that pool",
    );
}

// spec: SCEN-03, SCEN-15
#[test]
fn a_pool_that_the_settings_do_not_have_can_be_named() {
    let fleet = "nodes: [{id: n, pool: old, capacity: 4}]\nbundles: [{bundleId: a, pool: old, jobs: [{jobName: e}]}]\n";
    let steps = "steps:
  - expect:
      nodeCount: {pool: old, n: 1}
      trace: {job: a/0/e, kind: failure, attempts: [{outcome: poolNotConfigured}]}
";
    plays(&format!(
        "{HEAD}{fleet}world: {{unconfiguredPools: [old]}}\n{steps}"
    ));
    for (pools, at, words) in [
        ("old, live", 1, "the settings have pool \"live\""),
        ("old, old", 1, "\"old\" stands twice"),
        (
            "old, older",
            1,
            "no node and no bundle is in pool \"older\"",
        ),
    ] {
        refused(
            &format!("{HEAD}{fleet}{STEPS}world: {{unconfiguredPools: [{pools}]}}\n"),
            &format!("world.unconfiguredPools[{at}]"),
            words,
        );
    }
}

// spec: SCEN-02, SCEN-15
#[test]
fn nothing_stands_beside_expected_faults_of_settings() {
    let text = |rest: &str| {
        format!("scenario: 1\nsettings: {{placementPools: [{{name: live, tiers: []}}]}}\n{rest}\n")
    };
    let errors = "expectSettingsErrors: [emptyTierList]";
    plays(&text(errors));
    for (key, what) in [
        ("jobs", "jobs: {b/0/a: {dormant: true}}"),
        ("steps", "steps: [{expect: {invariants: ok}}]"),
        ("steps", "steps: []"),
        ("world", "world: {seed: 2}"),
        ("nodes", "nodes: [{id: n, capacity: 4}]"),
        ("bundles", "bundles: []"),
    ] {
        refused(
            &text(&format!("{errors}\n{what}")),
            key,
            "beside expectSettingsErrors nothing is played",
        );
    }
    refused(
        &text("expectSettingsErrors: [emptyTierList, emptyTierLst]"),
        "expectSettingsErrors[1]",
        "expected one of emptyPoolName",
    );
    refused(
        &text("expectSettingsErrors: [7]"),
        "expectSettingsErrors[0]",
        "expected text, found 7",
    );
    refused(
        &text("expectSettingsErrors:"),
        "expectSettingsErrors",
        "write a list of codes",
    );
    // None at all is a claim: that the settings are valid.
    let none = "scenario: 1\nsettings: {}\nexpectSettingsErrors: []\n";
    plays(none);
    let faulty = text("expectSettingsErrors: []");
    assert_eq!(
        run_file("s.yaml", &faulty, Options::default()).exit_code(),
        1
    );
}

// spec: SCEN-15
#[test]
fn what_is_nowhere_is_refused_also_where_it_would_be_missed() {
    for (expect, path, words) in [
        (
            "nodes: {n: {tags: {rck: null}}}",
            "nodes.n.tags.rck",
            "no tag \"rck\"; it has rack, auto-manager",
        ),
        (
            "calls: [{createAwsNode: {tags: {rck: x}}, times: 0}]",
            "calls[0].createAwsNode.tags.rck",
            "no tag \"rck\"",
        ),
        (
            "calls: [{setNodeTags: {remove: [rck]}, times: 0}]",
            "calls[0].setNodeTags.remove[0]",
            "no tag \"rck\"",
        ),
        (
            "metrics: {pools: [{poolNme: live}]}",
            "metrics.pools[0].poolNme",
            "did you mean poolName?",
        ),
        (
            "metrics: {pools: [{poolName: zz}]}",
            "metrics.pools[0].poolName",
            "no pool \"zz\"",
        ),
        (
            "metrics: {tiers: [{tierName: zz}]}",
            "metrics.tiers[0].tierName",
            "no tier \"zz\"",
        ),
        (
            "metrics: {brokenBundleIds: [zz]}",
            "metrics.brokenBundleIds[0]",
            "no bundle \"zz\"",
        ),
        (
            "metrics: {jobsDropped: 0.5}",
            "metrics.jobsDropped",
            "a whole number",
        ),
    ] {
        expects(expect, path, words);
    }
    step(
        "setTags: {node: n, tags: {rck: null}}",
        ".setTags.tags.rck",
        "no tag \"rck\"",
    );
    step(
        "dryRun: {bundle: a, replica: 1}",
        ".dryRun.replica",
        "has no copy 1",
    );
    refused(
        &format!("{HEAD}{STEPS}world: {{azs: {{own: [a]}}}}\n"),
        "world.azs.own",
        "nothing is bought",
    );
    for fine in [
        "expect: {nodes: {m: {tags: {rack: '7', spare: null, interruption: null}}, n: {tags: {rack: null}}}}",
        "setTags: {node: m, tags: {rack: null}}",
    ] {
        plays(&format!("{HEAD}{FLEET}steps:\n  - {fine}\n"));
    }
}

// spec: SCEN-15
#[test]
fn times_and_numbers_that_cannot_be_are_refused() {
    const FAR: &str = "more than 100 years away";
    for (what, path, words) in [
        ("clock: {wallJump: +99999999h}", ".clock.wallJump", FAR),
        (
            "interrupt: {node: n, kind: rebalance, deadline: -99999999h}",
            ".interrupt.deadline",
            FAR,
        ),
        (
            "setBundleStopTime: {bundle: a, stopAt: +99999999h}",
            ".setBundleStopTime.stopAt",
            FAR,
        ),
        (
            "drain: {node: n, timeout: 8785h}",
            ".drain.timeout",
            "longer than a scenario lasts",
        ),
        (
            "drain: {node: n, timeout: -1s}",
            ".drain.timeout",
            "is not a duration",
        ),
        (
            "startFails: {node: n, next: 4000000000}",
            ".startFails.next",
            "more than is ever tried",
        ),
        (
            "nodeJoins: {id: x, cores: 4000000000}",
            ".nodeJoins.cores",
            "more than any machine has",
        ),
        (
            "inventory: {node: n, cores: 4000000000}",
            ".inventory.cores",
            "more than any machine has",
        ),
    ] {
        step(what, path, words);
    }
    expects("pending: {a/0/e: +99999999h}", "pending.a/0/e", FAR);
    for (world, path) in [
        ("bootTime: 8785h", "bootTime"),
        ("migration: {apply: 8785h}", "migration.apply"),
        (
            "manager: {keepaliveMs: 99999999999999}",
            "manager.keepaliveMs",
        ),
        ("manager: {silenceMs: 99999999999999}", "manager.silenceMs"),
    ] {
        let text = format!("{HEAD}{STEPS}world: {{{world}}}\n");
        refused(
            &text,
            &format!("world.{path}"),
            "longer than a scenario lasts",
        );
    }
}

// spec: SCEN-15
#[test]
fn a_name_that_needs_quotes_is_told_so() {
    for what in [
        "cordon: @a/0/e",
        "expect: {nodes: {@a/0/e: {state: running}}}",
        "{hold: [nodeStarted], only: @a/0/e}",
    ] {
        let text = format!("{HEAD}{FLEET}steps:\n  - {what}\n");
        let told = check_file("s.yaml", &text)
            .expect_err("it is no YAML")
            .to_string();
        let line = text.lines().count();
        assert!(told.starts_with(&format!("s.yaml:{line}:")), "{told}");
        assert!(
            told.ends_with("a text that begins with @ stands in quotes: '@...'"),
            "{told}"
        );
    }
}
