//! What a recording must not lose: the order of cause and decision, how long things took, servers that
//! are gone, and what others than the policy do.

use serde_json::json;

use super::{Fleet, has};

/// Slow enough that something happens meanwhile.
const SLOW: &str = "startTime: 20s, stopTime: 15s, prepareTime: 10s, startPreparedTime: 5s, \
    migration: {state: 3s, ready: 4s, stopOutput: 3s, apply: 4s}";

/// Where in a text each of these stands, which must be in this order.
#[track_caller]
fn in_order(text: &str, lines: &[&str]) {
    let mut from = 0;
    for line in lines {
        let Some(at) = text[from..].find(line) else {
            panic!("{line} does not follow in\n{text}");
        };
        from += at + line.len();
    }
}

// spec: SCEN-12, SCEN-08
#[test]
fn a_purchase_that_is_refused_late_is_decided_about_before_and_after() {
    let text = Fleet::bought(&["first", "second"])
        .later("a", 3.0)
        .replayed(
            9,
            "  - {at: 10s, setTemplateImages: {x: []}}
  - {at: 20s, createFails: {tier: first, next: 1, error: NoStock, when: call, after: 2s500ms}}
  - {at: 20s, createBundle: a}
  - {at: 20s, expect: {jobs: {a/0/e: {tier: first}}}}
  - {at: 1m, expect: {jobs: {a/0/e: {tier: second}}}}
",
        );
    in_order(
        &text,
        &[
            "{at: 9s999ms, createFails: {after: 2500ms, error: NoStock, next: 1, node: \"@tier/live/first/1\"",
            "{at: 10s, createBundle: {bundleId: a",
            "{at: 10s, expect: {jobs: {a/0/e: {pool: live, tier: first}}}}",
            "{at: 12s500ms, expect: {jobs: {a/0/e: {pool: live, tier: second}}}}",
        ],
    );
}

/// A timer fires before the steps of its instant: what it asks for is refused by a step before it.
// spec: SCEN-12
#[test]
fn what_a_timer_asks_for_is_refused_again() {
    let text = Fleet::bought(&["only"]).later("a", 3.0).replayed(
        9,
        "  - {at: 10s, setTemplateImages: {x: []}}
  - {at: 20s, createFails: {tier: only, next: 2, error: NoStock, when: call}}
  - {at: 20s, createBundle: a}
  - {at: 8m, expect: {jobs: {a/0/e: {state: running}}}}
",
    );
    in_order(
        &text,
        &[
            "node: \"@tier/live/only/1\", tier: only, when: call}}\n  - {at: 10s, createBundle",
            "createFails: {error: NoStock, next: 1, node: \"@tier/live/only/2\"",
            "trace: {job: a/0/e, kind: failure",
            "{at: 3m25s, only: \"@tier/live/only/3\", release: [nodeBooting]}",
        ],
    );
}

// spec: SCEN-12, SCEN-08
#[test]
fn a_target_that_is_refused_or_rejected_ends_its_migration_again() {
    let text = Fleet::pair(1.5, "").answers(SLOW).replayed(
        5,
        "  - {at: 10s, startFails: {node: m, next: 1, job: a/0/e, after: 700ms}}
  - {at: 10s, migrate: {job: a/0/e}}
  - {at: 20s, expect: {migration: {job: a/0/e, phase: aborted}}}
  - {at: 30s, migrate: {job: a/0/e, strategy: overlap}}
  - {at: 33s, jobRejected: {job: a/0/e, node: m, reason: no room}}
  - {at: 50s, expect: {migration: {job: a/0/e, phase: aborted}, jobs: {a/0/e: {node: n}}}}
  - {at: 1m, migrate: {job: a/0/e, target: n}, refused: targetIsSource}
",
    );
    in_order(
        &text,
        &[
            "startFails: {after: 700ms, job: a/0/e, next: 1, node: m}",
            "migrate: {job: a/0/e",
            "{at: 10s600ms, expect: {migration: {abortReason: \"the target could not be started: refused\"",
            "strategy: overlap}",
            "trace: {chosen: m, job: a/0/e}",
            "jobRejected: {code: CAPACITY, job: a/0/e, node: m",
            "phase: aborted",
            "refused: targetIsSource",
        ],
    );
}

/// However far it has come, and however it changes over.
// spec: SCEN-12
#[test]
fn a_migration_that_an_operator_takes_back_is_taken_back_again() {
    for (strategy, at) in [
        ("stopThenStart", "15s"),
        ("overlap", "25s"),
        ("handover", "12s"),
        ("handover", "25s"),
        ("handover", "35s"),
    ] {
        let steps = format!(
            "  - {{at: 10s, migrate: {{job: a/0/e, strategy: {strategy}}}}}
  - {{at: {at}, abortMigration: {{job: a/0/e, reason: second thoughts}}}}
  - {{at: 2m, expect: {{migration: {{job: a/0/e, phase: aborted}}, jobs: {{a/0/e: {{node: n, state: running}}}}}}}}
"
        );
        let text = Fleet::pair(1.5, "handover: true, ")
            .answers(SLOW)
            .replayed(5, &steps);
        in_order(
            &text,
            &[
                &format!("strategy: {strategy}}}"),
                "abortMigration: {job: a/0/e, reason: \"second thoughts\"}",
                "phase: aborted",
            ],
        );
    }
}

// spec: SCEN-12, SCEN-08
#[test]
fn what_took_its_time_takes_it_again() {
    let text = Fleet::pair(1.5, "handover: true, ")
        .answers(SLOW)
        .later("late", 1.0)
        .replayed(
            9,
            "  - {at: 10s, migrate: {job: a/0/e, strategy: handover}}
  - {at: 1m30s, expect: {migration: {job: a/0/e, phase: done}}}
  - {at: 2m, migrate: {job: a/0/e, strategy: stopThenStart}}
  - {at: 3m, expect: {migration: {job: a/0/e, phase: done}}}
  - {at: 4m, createBundle: late}
  - {at: 5m, stopBundleJob: late/0/e}
  - {at: 6m, jobFails: {job: a/0/e, reason: gone}}
  - {at: 8m, expect: {jobs: {a/0/e: {state: running}}}}
",
        );
    in_order(
        &text,
        &[
            "{at: 9s900ms, migrate",
            "{at: 12s900ms, signal: {job: a/0/e, kind: state",
            "{at: 32s900ms, jobRunning: {job: a/0/e, node: m}}",
            "{at: 36s900ms, signal: {job: a/0/e, kind: ready",
            "{at: 39s900ms, signal: {job: a/0/e, kind: stoppedOutput",
            "{at: 43s900ms, signal: {job: a/0/e, kind: applied",
            "{at: 58s900ms, jobStopped: {job: a/0/e, node: n}}",
            "phase: done",
            "{at: 2m9s900ms, jobPrepared: {job: a/0/e, node: n}}",
            "{at: 2m24s900ms, jobStopped: {job: a/0/e, node: m}}",
            "{at: 2m29s900ms, jobRunning: {job: a/0/e, node: n}}",
            "stopBundleJob: late/0/e",
            "{at: 5m14s900ms, jobStopped: {job: late/0/e",
            "jobFails: {job: a/0/e, reason: gone}",
            "{at: 6m14s900ms, jobStopped: {job: a/0/e",
        ],
    );
}

// spec: SCEN-12
#[test]
fn acts_about_a_server_that_is_stopped_are_recorded() {
    let text = Fleet::pair(1.5, "").later("late", 1.0).replayed(
        9,
        "  - {at: 10s, nodeDies: m}
  - {at: 1m, expect: {nodes: {m: {state: stopped}}}}
  - {at: 1m10s, cordon: m}
  - {at: 1m20s, uncordon: m}
  - {at: 1m30s, evict: m}
  - {at: 1m40s, drain: {node: m}, refused: nodeNotRunning}
  - {at: 1m50s, updateHotSpareNode: {node: m, exclusive: false}, refused: notASpare}
  - {at: 2m, nodeReturns: {node: m}}
  - {at: 3m, createBundle: late}
  - {at: 4m, expect: {jobs: {late/0/e: {state: unplaced}}, nodes: {m: {cordoned: true}}}}
",
    );
    in_order(
        &text,
        &[
            "cordon: m",
            "uncordon: m",
            "evict: m",
            "drain: {force: false, node: m}, refused: nodeNotRunning",
            "refused: notASpare, updateHotSpareNode: {exclusive: false, node: m}",
            "nodeReturns: {node: m, jobs: []}",
            "trace: {job: late/0/e, kind: failure, reason: noCapacityInAnyPool}",
        ],
    );
}

/// Lost before the recording begins: with its line, with its machine, or ended by an operator.
// spec: SCEN-12
#[test]
fn a_server_that_was_lost_before_comes_back_in_the_recording() {
    for (lost, back) in [
        ("nodeDies: m", "nodeReturns: {node: m}"),
        ("partition: m", "heal: m"),
        ("terminate: m", "nodeReturns: {node: m}"),
    ] {
        let steps = format!(
            "  - {{at: 10s, setTags: {{node: m, tags: {{rack: r7}}}}}}
  - {{at: 20s, {lost}}}
  - {{at: 5m30s, setTags: {{node: n, tags: {{x: y}}}}}}
  - {{at: 5m40s, setTags: {{node: n, tags: {{x: z}}}}}}
  - {{at: 6m10s, cordon: m}}
  - {{at: 6m40s, {back}}}
  - {{at: 7m, createBundle: late}}
  - {{at: 7m10s, uncordon: m}}
  - {{at: 8m, expect: {{jobs: {{late/0/e: {{node: m}}}}, nodes: {{m: {{tags: {{rack: r7}}}}}}}}}}
"
        );
        let again = Fleet::pair(1.5, "").later("late", 1.0).again(1, &steps);
        let told: Vec<&String> = again.left_out.iter().collect();
        assert!(
            told.iter().all(|note| note.contains("does not count here")),
            "{told:#?}"
        );
        in_order(
            &again.text,
            &[
                "tags: {rack: r7}",
                "{at: 0s, nodeStopped: m}",
                "cordon: m",
                "nodeReturns: {node: m, jobs: []}",
                "trace: {job: late/0/e, kind: failure",
                "trace: {chosen: m, job: late/0/e}",
            ],
        );
    }
}

// spec: SCEN-12, SCEN-07
#[test]
fn an_interruption_keeps_how_its_jobs_change_over() {
    let text = Fleet::pair(1.5, "").replayed(
        5,
        "  - {at: 10s, interrupt: {node: n, kind: rebalance, strategy: overlap}}
  - {at: 1m, expect: {jobs: {a/0/e: {node: m}}}}
",
    );
    has(
        &text,
        &["interrupt: {kind: rebalance, node: n, strategy: overlap}"],
    );
}

// spec: SCEN-12
#[test]
fn a_notice_that_stands_at_the_beginning_is_told() {
    let again = Fleet::pair(1.5, "").node("o", 2.0, "").again(
        1,
        "  - {at: 10s, notice: {node: o, kind: rebalance}}
  - {at: 1m, expect: {nodes: {o: {state: stopped}}}}
  - {at: 1m10s, inventory: {node: o, cordoned: true}}
  - {at: 1m20s, nodeReturns: {node: o}}
  - {at: 1m30s, interrupt: {node: n, kind: rebalance, strategy: handover}}
  - {at: 6m30s, setTags: {node: m, tags: {x: y}}}
  - {at: 8m, setTags: {node: m, tags: {x: z}}}
",
    );
    assert!(again.text.starts_with("# left out: ") || again.left_out.is_empty());
}

// spec: SCEN-12, SCEN-08
#[test]
fn what_others_than_the_policy_stop_or_judge_is_recorded() {
    let text = Fleet::pair(1.5, "")
        .node("o", 2.0, "b/0/e")
        .bundle("b", 1.0, "")
        .answers(SLOW)
        .replayed(
            9,
            "  - {at: 10s, stopJob: a/0/e}
  - {at: 2m, expect: {nodes: {n: {jobs: []}}}}
  - {at: 3m, markJobFailed: {job: b/0/e, reason: no licence}}
  - {at: 5m, expect: {jobs: {b/0/e: {state: dropped}}}}
",
        );
    in_order(
        &text,
        &[
            "stopJob: {job: a/0/e, node: n}",
            "jobStopped: {job: a/0/e, node: n}",
            "markJobFailed: {job: b/0/e, reason: \"no licence\"}",
            "jobStopped: {job: b/0/e, node: o}",
        ],
    );
    assert!(!text.contains("jobFails"), "{text}");
}

// spec: SCEN-12, SCEN-05
#[test]
fn jobs_stand_at_the_beginning_as_they_stood() {
    let text = Fleet::own()
        .node("n", 4.0, "")
        .node("m", 4.0, "")
        .bundle("two", 1.0, "")
        .whole("{bundleId: done, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1.0, essential: false}}]}")
        .replayed(
            1,
            "  - {at: 10s, updateBundle: {bundleId: two, pool: live, resiliencePolicy: {sameNode: forbid}, jobs: [{jobName: e, requirements: {requiredCapacity: 1.0}}]}}
  - {at: 20s, stopBundleJob: two/1/e}
  - {at: 30s, markJobFailed: {job: done/0/e, reason: over}}
  - {at: 5m10s, setTags: {node: m, tags: {x: y}}}
  - {at: 5m30s, setTags: {node: m, tags: {x: z}}}
  - {at: 6m40s, updateBundle: {bundleId: two, pool: live, resiliencePolicy: {sameNode: allow}, jobs: [{jobName: e, requirements: {requiredCapacity: 1.0}}]}}
  - {at: 6m50s, expect: {jobs: {two/1/e: {state: dormant}, done/0/e: {state: dropped}}}}
  - {at: 7m, startBundleJob: done/0/e}
  - {at: 7m20s, expect: {jobs: {done/0/e: {state: running}}}}
",
        );
    has(
        &text,
        &[
            "two/1/e: {dormant: true}",
            "done/0/e: {verdict: over}",
            "startBundleJob: done/0/e",
        ],
    );
}

// spec: SCEN-12, SCEN-05
#[test]
fn a_share_begins_on_the_device_where_it_was() {
    let wants = |name: &str, share: f64| {
        format!(
            "{{bundleId: {name}, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 1.0, requiredGpuCapacity: {share}}}}}]}}"
        )
    };
    let steps = format!(
        "  - {{at: 10s, deleteBundle: one}}
  - {{at: 5m30s, createBundle: {}}}
  - {{at: 6m, expect: {{jobs: {{two/0/e: {{gpu: 1}}, all/0/e: {{gpu: 0}}}}}}}}
",
        wants("all", 1.0)
    );
    let mut fleet = Fleet::own();
    fleet.nodes = vec![
        "{id: n, pool: live, capacity: 4, gpus: [{index: 0, model: l4, capacity: 1}, {index: 1, model: l4, capacity: 1}]}"
            .to_owned(),
    ];
    let text = fleet
        .whole(&wants("one", 0.6))
        .whole(&wants("two", 0.6))
        .replayed(4, &steps);
    has(&text, &["two/0/e: {gpu: 1}"]);
}

// spec: SCEN-12
#[test]
fn a_job_that_stays_stopped_is_told_of() {
    let again = Fleet::pair(1.0, "").again(
        1,
        "  - {at: 10s, stopJob: a/0/e}
  - {at: 5m10s, setTags: {node: m, tags: {x: y}}}
  - {at: 6m30s, setTags: {node: m, tags: {x: z}}}
",
    );
    has(
        &again.text,
        &["a/0/e stays stopped, as somebody asked for, and is placed here"],
    );
}

// spec: SCEN-12
#[test]
fn an_update_that_lets_a_job_run_something_else_stops_it_again() {
    let update = |command: &str| {
        format!(
            "updateBundle: {{bundleId: a, pool: live, jobs: [{{jobName: e, launch: {{services: [{{name: s, command: {command}}}]}}, requirements: {{requiredCapacity: 1.5}}}}]}}"
        )
    };
    let steps = format!(
        "  - {{at: 10s, {}}}
  - {{at: 1m, {}}}
  - {{at: 2m, setBundleStopTime: {{bundle: a, stopAt: +4m}}}}
  - {{at: 5m, expect: {{jobs: {{a/0/e: {{state: gone}}}}}}}}
",
        update("one"),
        update("secret"),
    );
    let text = Fleet::pair(1.5, "").answers(SLOW).replayed(9, &steps);
    has(
        &text,
        &[
            "configuration: \"recorded 1\"",
            "configuration: \"recorded 2\"",
            "jobStopped: {job: a/0/e, node: n}",
        ],
    );
    assert!(!text.contains("secret"), "{text}");
    assert!(!text.contains("deleteBundle"), "{text}");
}

/// What a provider's machine and a worker say of themselves, and what jobs run on.
// spec: SCEN-12
#[test]
fn a_fleet_begins_with_machines_of_a_provider_and_runtimes_that_differ() {
    let mut fleet = Fleet::bought(&["cloud"]);
    fleet.nodes = vec![
        "{id: n, pool: live, tier: cloud, capacity: 4, cores: 4, az: eu-1a, runtime: process}".to_owned(),
        "{id: m, pool: live, tier: cloud, capacity: 4, cores: 4, az: eu-1b, runtime: 'docker 29.0', gpus: [{index: 0, model: l4, capacity: 1}], jobs: [g/0/e]}".to_owned(),
    ];
    fleet = fleet.whole(
        "{bundleId: g, pool: live, jobs: [{jobName: e, launch: {services: [{name: s, container: {docker: 'reg/s:1'}}]}, requirements: {requiredCapacity: 3, requiredGpuCapacity: 0.75, requiredGpuModel: l4}}]}",
    );
    let text = fleet.with("maxRestartsPerHour", json!(3)).replayed(
        5,
        "  - {at: 10s, inventory: {node: m, capacity: 2}}
  - {at: 20s, createBundle: {bundleId: c, pool: live, jobs: [{jobName: e, launch: {services: [{name: s, container: {docker: 'reg/s:1'}}]}, requirements: {requiredCapacity: 1}}]}}
  - {at: 30s, expect: {jobs: {c/0/e: {node: '@tier/live/cloud/1'}}}}
",
    );
    has(
        &text,
        &["az: eu-1a", "runtime: process", "runtime: \"docker 29.0\""],
    );
}
