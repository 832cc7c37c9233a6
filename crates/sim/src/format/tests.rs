//! Reading of scenario files.

use super::*;

/// A scenario with some of everything and these steps, the first on line 7.
fn with_steps(steps: &str) -> String {
    format!(
        "scenario: 1
settings:
  {{placementPools: [{{name: p, tiers: [{{name: t, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{{instanceType: x, totalCapacity: 4, totalCores: 4}}]}}]}}], templateImages: {{t: [x]}}}}
nodes: [{{id: n1, pool: p, tier: t, capacity: 4}}, {{id: n2, pool: p, tier: t, capacity: 4}}]
bundles: [{{bundleId: a, pool: p, resiliencePolicy: {{pool: p}}, jobs: [{{jobName: e}}, {{jobName: f}}]}}]
steps:\n{steps}"
    )
}

fn fault(text: &str) -> String {
    match Scenario::read("s.yaml", text) {
        Ok(_) => "none".to_owned(),
        Err(problem) => problem.to_string(),
    }
}

// spec: SCEN-01
#[test]
fn only_version_settings_and_steps_are_required() {
    const STEPS: &str = "steps: [{expect: {invariants: ok}}]\n";
    let least = format!("scenario: 1\nsettings: {{}}\n{STEPS}");
    let least = Scenario::read("s.yaml", &least).unwrap();
    assert!(least.steps.len() == 1 && least.name.is_empty());
    for (missing, text) in [
        ("scenario", format!("settings: {{}}\n{STEPS}")),
        ("settings", format!("scenario: 1\n{STEPS}")),
        ("steps", "scenario: 1\nsettings: {}\n".to_owned()),
    ] {
        assert!(
            fault(&text).contains(missing),
            "{missing}: {}",
            fault(&text)
        );
    }
    let all = format!(
        "scenario: 1\nname: n\ndescription: d\nspec: [SCEN-01]\nsettings: {{}}\nworld: {{}}\nnodes: []\nbundles: []\n{STEPS}"
    );
    let all = Scenario::read("s.yaml", &all).unwrap();
    assert_eq!(
        (all.name.as_str(), &all.spec[..]),
        ("n", &["SCEN-01".to_owned()][..])
    );
    assert!(
        fault(&format!("scenario: 2\nsettings: {{}}\n{STEPS}"))
            .contains("s.yaml:1:1: scenario: 2 is no version")
    );
    let extra = fault(&format!("scenario: 1\nsettings: {{}}\n{STEPS}stepz: []\n"));
    assert!(
        extra.starts_with("s.yaml:4:1: stepz: unknown key"),
        "{extra}"
    );
}

// spec: SCEN-02
#[test]
fn settings_are_checked_as_the_policy_checks_them() {
    let text =
        "scenario: 1\nsettings:\n  placementPools:\n    - name: live\n      tiers: []\nsteps: []\n";
    let told = fault(text);
    assert!(
        told.starts_with("s.yaml:5:7: settings.placementPools[0].tiers"),
        "{told}"
    );
    assert!(told.contains("emptyTierList"), "{told}");
    let text = "scenario: 1\nsettings: {url: \"a:1\"}\nsteps: []\n";
    assert!(fault(text).contains("leave url out"));
    let text = "scenario: 1\nexpectSettingsErrors: [emptyTierList]\nsettings:\n  placementPools: [{name: live, tiers: []}]\n";
    let read = Scenario::read("s.yaml", text).unwrap();
    assert!(
        matches!(read.settings, SettingsCase::Faulty { found, .. } if found == ["emptyTierList"])
    );
}

// spec: SCEN-04, SCEN-05
#[test]
fn unknown_keys_name_line_and_key_wherever_they_stand() {
    let text = "scenario: 1\nsettings: {}\nnodes:\n  - id: n1\n    capacty: 4\nsteps: []\n";
    let told = fault(text);
    assert!(
        told.starts_with("s.yaml:5:5: nodes[0].capacty: unknown key"),
        "{told}"
    );
    let text = "scenario: 1\nsettings: {}\nbundles:\n  - bundleId: a\n    pool: p\n    jobs:\n      - jobName: e\n        requirement: {}\nsteps: []\n";
    let told = fault(text);
    assert!(
        told.starts_with("s.yaml:8:9: bundles[0].jobs[0].requirement: unknown key"),
        "{told}"
    );
    let told = fault(&with_steps(
        "  - expect: {jobs: {a/0/e: {stat: running}}}\n",
    ));
    assert!(told.contains("steps[0].expect.jobs.a/0/e.stat"), "{told}");
    let twice = "scenario: 1\nsettings: {}\nnodes: [{id: n1}, {id: n1}]\nsteps: []\n";
    assert!(fault(twice).contains("nodes[1].id: node \"n1\" stands twice"));
}

// spec: SCEN-05
#[test]
fn instants_of_bundles_count_from_virtual_zero() {
    let text = "scenario: 1\nsettings: {}\nworld: {start: 2026-03-01T00:00:00Z, unconfiguredPools: [p]}\nbundles:\n  - {bundleId: a, pool: p, startDateTime: +10m, stopAt: 2027-01-01T00:00:00Z, jobs: [{jobName: e, startDateTime: -5m}]}\nsteps: [{expect: {invariants: ok}}]\n";
    let read = Scenario::read("s.yaml", text).unwrap();
    let bundle = &read.bundles[0];
    assert_eq!(
        bundle.start_date_time.unwrap().to_string(),
        "2026-03-01T00:10:00Z"
    );
    assert_eq!(bundle.stop_at.unwrap().to_string(), "2027-01-01T00:00:00Z");
    let job = bundle.jobs[0].start_date_time.unwrap();
    assert_eq!(job.to_string(), "2026-02-28T23:55:00Z");
}

// spec: SCEN-06
#[test]
fn a_step_does_one_thing_and_never_goes_back_in_time() {
    let steps =
        "  - at: 5s\n    cordon: n1\n  - uncordon: n1\n  - at: 1h\n    expect: {invariants: ok}\n";
    let read = Scenario::read("s.yaml", &with_steps(steps)).unwrap();
    let times: Vec<u64> = read.steps.iter().map(|step| step.at).collect();
    assert_eq!(times, [5_000, 5_000, 3_600_000]);
    let told = fault(&with_steps(
        "  - {at: 5s, cordon: n1}\n  - {at: 4s, cordon: n1}\n",
    ));
    assert!(
        told.starts_with("s.yaml:8:6: steps[1].at: steps go on in time"),
        "{told}"
    );
    assert!(fault(&with_steps("  - {at: 5s}\n")).contains("needs an action or expect"));
    assert!(fault(&with_steps("  - {cordon: n1, uncordon: n1}\n")).contains("does one thing"));
    assert!(fault(&with_steps("  - {codron: n1}\n")).contains("there is no action \"codron\""));
    assert!(
        fault(&with_steps("  - {nodeDies: n1, refused: closed}\n"))
            .contains("only what an operator")
    );
    assert!(
        fault(&with_steps("  - {nodeDies: n1, only: n1}\n")).contains("beside hold or release")
    );
}

// spec: SCEN-07, SCEN-08, SCEN-09
#[test]
fn every_action_of_the_format_is_read() {
    let served = [
        "createBundle: {bundleId: b, pool: p, jobs: [{jobName: e}]}",
        "updateBundle: {bundleId: a, pool: p, jobs: [{jobName: e}]}",
        "deleteBundle: a",
        "startBundleJob: a/0/e",
        "stopBundleJob: a/0/e",
        "setBundleStopTime: {bundle: a, stopAt: +1h}",
        "cordon: n1",
        "uncordon: '@a/0/e'",
        "evict: n1",
        "terminate: '@tier/p/t/1'",
        "updateHotSpares: [{pool: p, targetCount: 0}]",
        "updateHotSpareNode: {node: n1, warmFor: [t], reservedFor: [t], exclusive: true}",
        "migrate: {job: a/0/e, strategy: handover, target: n1, overrideReservation: true}",
        "abortMigration: {job: a/0/e, reason: x}",
        "signal: {job: a/0/e, side: source, kind: state, payload: x}",
        "drain: {node: n1, timeout: 10m, force: true, strategy: overlap}",
        "interrupt: {node: n1, kind: spot-interruption, deadline: +2m}",
        "notice: {node: n1, kind: rebalance, deadline: +2m}",
        "drain: {node: n1, strategy: {a/0/e: handover}, forUpgrade: true}",
        "setTemplateImages: {t: [x]}",
        "dryRun: a/0/e",
        "dryRun: {bundle: a, replica: 1}",
        "admit: {bundleId: a, pool: p, jobs: [{jobName: e}]}",
        "close: true",
        "restart: true",
        "nodeJoins: {id: n3, pool: p, capacity: 4}",
        "nodeReturns: {node: n1, jobs: [a/0/e]}",
        "nodeStopping: {node: n1, reason: PROVIDER_STOP}",
        "nodeStopped: n1",
        "nodeDies: n1",
        "inventory: {node: n1, capacity: 2, cordoned: true}",
        "setTags: {node: n1, tags: {a: b, spare: null}}",
        "jobFails: {job: a/0/e, reason: x}",
        "jobRejected: {job: a/0/e, node: n1, role: primary, reason: x, invalidSpec: true}",
        "jobRejected: {job: a/0/e, code: DISK}",
        "inventory: {node: n1, disks: [{path: /, total: 100, free: 9}], runtime: unavailable}",
        "jobRunning: a/0/e",
        "jobCompletes: a/0/e",
        "duplicate: a/0/e",
        "imagePulled: {node: n1, ref: x, ok: false}",
        "createFails: {tier: t, next: 1, error: X, when: call}",
        "startFails: {node: n1, next: 1}",
        "clock: {wallJump: -1h}",
        "disconnect: true",
        "connect: true",
        "partition: n1",
        "heal: n1",
        "hold: [nodeBooting, nodeStarted, inventory, jobRunning, jobStopped, prepared, migrationSignals, imagePulls, createOutcome]",
        "release: [jobRunning]",
    ];
    for action in served {
        // What is released was held, and what is mended was cut.
        let before = "  - hold: [jobRunning]\n  - partition: n1\n";
        let text = with_steps(&format!("{before}  - {action}\n"));
        assert_eq!(fault(&text), "none", "{action}");
    }
    let bad = with_steps("  - {drain: {nod: n1}}\n");
    assert!(
        fault(&bad).contains("steps[0].drain.nod: unknown key"),
        "{}",
        fault(&bad)
    );
}

// spec: SCEN-10
#[test]
fn every_expectation_of_the_format_is_read() {
    let served = [
        "jobs: {a/0/e: {state: placed, node: n1, tier: t, pool: p, gpu: 0, restarts: 1}}",
        "sameNode: [[a/0/e, a/0/f]]",
        "differentNode: [[a/0/e, a/1/e]]",
        "differentAz: [[a/0/e, a/1/e]]",
        "differentCloud: [[a/0/e, a/1/e]]",
        "nodes: {n1: {state: running, cordoned: false, spare: true, jobs: [a/0/e], tags: {a: b}}}",
        "nodeCount: {pool: p, tier: t, spare: true, n: 1}",
        "nodeCount: [{pool: p, n: 1}, {n: 2}]",
        "calls: [{startJob: {jobId: a/0/e}, times: 2}, {stopJob: {}, times: 0}]",
        "calls: {inOrder: true, list: [{startJob: {}}]}",
        "callbacks: [{onError: {}}]",
        "metrics: {jobsRejected: 1}",
        "trace: {job: a/0/e, chosen: n1, attempts: [{tier: t, outcome: placed, filtered: {n2: cordoned}, survivors: [n1]}]}",
        "dryRun: {kind: place, node: n1, tier: t}",
        "dryRun: {kind: provision, tier: t, instanceType: x}",
        "admission: {kind: noCapacity, unplaceable: [a/0/e], errors: [], warnings: []}",
        "pending: {a/0/e: +5m}",
        "drain: {node: n1, phase: done, jobs: {a/0/e: migrated}}",
        "migration: {job: a/0/e, phase: done, target: n1}",
        "migration: {job: a/0/e, phase: aborted, abortReason: x}",
        "spares: {pool: p, live: 1, pending: 0, target: 1}",
        "bundle: {id: a, broken: true}",
        "invariants: ok",
    ];
    for expect in served {
        let asked = "  - dryRun: a/0/e\n  - admit: {bundleId: a, pool: p, jobs: [{jobName: e}]}\n";
        let text = with_steps(&format!("{asked}  - expect: {{{expect}}}\n"));
        assert_eq!(fault(&text), "none", "{expect}");
    }
    let told = fault(&with_steps("  - expect: {callbacks: [{onImages: {}}]}\n"));
    assert!(
        told.contains("steps[0].expect.callbacks[0]: there is no callback"),
        "{told}"
    );
    let told = fault(&with_steps("  - expect: {calls: [{startJobb: {}}]}\n"));
    assert!(told.contains("there is no call \"startJobb\""), "{told}");
    let told = fault(&with_steps(
        "  - expect: {jobs: {a/0/e: {state: runing}}}\n",
    ));
    assert!(told.contains("steps[0].expect.jobs.a/0/e.state"), "{told}");
}
