//! How the simulated fleet answers, and when: read off the transitions of small scenarios.

use greenroom_sim::{Keep, Options, run_file};

const CLOUD: &str = "\
scenario: 1
settings:
  placementPools:
    - name: own
      tiers: [{name: own, kind: local-servers, scaleOut: fixed}]
    - name: cloud
      tiers:
        - name: aws
          kind: aws
          region: eu-west-1
          scaleOut: elastic
          candidateInstanceTypes: [{instanceType: c.large, totalCapacity: 4, totalCores: 4}]
";

/// The transitions of a run that ends well, without the steps.
fn lines(rest: &str) -> Vec<String> {
    let text = format!("{CLOUD}{rest}");
    let options = Options { keep: Keep::Lines };
    let run = run_file("world.yaml", &text, options);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    run.lines
        .iter()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.contains(" step "))
        .collect()
}

fn contains(lines: &[String], wanted: &[&str]) {
    for wanted in wanted {
        assert!(
            lines.iter().any(|line| line == wanted),
            "no {wanted:?} in {lines:#?}"
        );
    }
}

// spec: SCEN-03
#[test]
fn a_bought_node_boots_in_its_time_and_ends_in_its_time() {
    let lines = lines(
        "steps:
  - at: 10s
    createBundle: {bundleId: a, pool: cloud, jobs: [{jobName: e, requirements: {requiredCapacity: 2}}]}
  - at: 1m
    stopBundleJob: a/0/e
  - at: 2m
    terminate: '@tier/cloud/aws/1'
  - {at: 3m, expect: {invariants: ok}}
",
    );
    contains(
        &lines,
        &[
            "0:00:10.000 event nodeStarting @tier/cloud/aws/1 requested",
            "0:00:25.000 event nodeStarting @tier/cloud/aws/1 booting",
            "0:00:40.000 event nodeStarted @tier/cloud/aws/1",
            "0:00:40.000 event nodeInventoryUpdated @tier/cloud/aws/1 []",
            "0:00:40.000 call startJob a/0/e on @tier/cloud/aws/1 as primary",
            "0:00:40.100 event nodeInventoryUpdated @tier/cloud/aws/1 [a/0/e]",
            "0:00:41.000 event jobUpdated a/0/e running on @tier/cloud/aws/1 as primary",
            "0:01:00.500 event jobUpdated a/0/e stopped on @tier/cloud/aws/1 as primary",
            "0:01:00.600 event nodeInventoryUpdated @tier/cloud/aws/1 []",
            "0:02:00.000 event nodeStopping @tier/cloud/aws/1 USER_REQUESTED",
            "0:02:02.000 event nodeStopped @tier/cloud/aws/1",
        ],
    );
}

// spec: SCEN-03
#[test]
fn every_time_can_be_set_and_zones_are_given_out_in_turn() {
    let lines = lines(
        "world:
  bootTime: 10s
  startTime: 300ms
  stopTime: 2s
  terminateTime: 5s
  instanceTypes: {c.large: {vcpus: 8, cores: 8}}
  azs: {aws: [eu-west-1a, eu-west-1b]}
steps:
  - createBundle:
      bundleId: a
      pool: cloud
      jobs:
        - {jobName: e, requirements: {requiredCapacity: 4}}
        - {jobName: f, requirements: {requiredCapacity: 4}}
  - at: 20s
    expect:
      nodes:
        '@tier/cloud/aws/1': {tags: {az: eu-west-1a}}
        '@tier/cloud/aws/2': {tags: {az: eu-west-1b}}
      differentAz: [[a/0/e, a/0/f]]
  - createBundle: {bundleId: b, pool: cloud, jobs: [{jobName: e, requirements: {requiredCapacity: 4}}]}
  - expect: {nodeCount: {tier: aws, n: 2}}
  - at: 30s
    jobFails: {job: b/0/e, reason: x}
  - at: 1m
    terminate: '@tier/cloud/aws/2'
  - {at: 2m, expect: {invariants: ok}}
",
    );
    contains(
        &lines,
        &[
            "0:00:10.000 event nodeStarted @tier/cloud/aws/1",
            "0:00:10.300 event jobUpdated a/0/e running on @tier/cloud/aws/1 as primary",
            "0:01:05.000 event nodeStopped @tier/cloud/aws/2",
        ],
    );
    // What a failed instance leaves behind takes the stop time.
    let gone = lines
        .iter()
        .filter(|line| line.starts_with("0:00:32.000 event jobUpdated b/0/e stopped"));
    assert_eq!(gone.count(), 1, "{lines:#?}");
}

// spec: SCEN-03
#[test]
fn the_managers_own_waits_are_in_force_and_can_be_set() {
    let steps = "nodes: [{id: n, pool: own, capacity: 4}]
steps:
  - at: 10s
    partition: n
  - {at: 1m, expect: {invariants: ok}}
";
    let told = lines(steps);
    contains(
        &told,
        &[
            "0:00:14.000 event nodeReachabilityChanged n false",
            "0:00:17.000 event nodeStopping n HEALTH_PING_TIME_EXCEEDED",
            "0:00:47.000 event nodeStopped n",
        ],
    );
    let told = lines(&format!(
        "world: {{manager: {{silenceMs: 1000, dropGraceMs: 500, keepaliveMs: 2000}}}}\n{steps}"
    ));
    contains(
        &told,
        &[
            "0:00:11.000 event nodeReachabilityChanged n false",
            "0:00:11.500 event nodeStopping n HEALTH_PING_TIME_EXCEEDED",
            "0:00:13.500 event nodeStopped n",
        ],
    );
}

// spec: SCEN-08
#[test]
fn a_terminated_server_stops_like_any_other_and_may_return() {
    let lines = lines(
        "nodes: [{id: n, pool: own, capacity: 4, jobs: [a/0/e]}]
bundles: [{bundleId: a, pool: own, jobs: [{jobName: e}]}]
steps:
  - at: 10s
    terminate: n
  - at: 20s
    expect: {nodes: {n: {state: stopped}}, jobs: {a/0/e: {state: unplaced}}}
  - nodeReturns: {node: n, jobs: []}
  - at: 1m
    expect: {nodes: {n: {state: running}}}
",
    );
    contains(
        &lines,
        &[
            "0:00:10.000 event nodeStopping n USER_REQUESTED",
            "0:00:12.000 event nodeStopped n",
            "0:00:20.000 event nodeStarted n",
        ],
    );
}

// spec: SCEN-08
#[test]
fn providers_stop_machines_in_their_own_ways() {
    let node = "nodes: [{id: c, pool: cloud, tier: aws, capacity: 4}]\n";
    for (reason, events) in [
        (
            "PROVIDER_STOP",
            &["nodeStopping c PROVIDER_STOP", "nodeStopped c"][..],
        ),
        ("PROVIDER_TERMINATE", &["nodeStopping c PROVIDER_TERMINATE"]),
        (
            "UNKNOWN_NODE",
            &["nodeStopping c UNKNOWN_NODE", "nodeStopped c"],
        ),
        (
            "HEALTH_PING_TIME_EXCEEDED",
            &["nodeStopping c HEALTH_PING_TIME_EXCEEDED"],
        ),
        ("USER_REQUESTED", &["nodeStopping c USER_REQUESTED"]),
    ] {
        let told = lines(&format!(
            "{node}steps:\n  - at: 10s\n    nodeStopping: {{node: c, reason: {reason}}}\n"
        ));
        let seen: Vec<&str> = told
            .iter()
            .filter_map(|line| line.strip_prefix("0:00:10.000 event "))
            .filter(|event| event.starts_with("nodeSt"))
            .collect();
        assert_eq!(seen, events, "{reason}");
    }
}

// spec: SCEN-09
#[test]
fn what_is_held_comes_at_the_release_and_what_is_not_due_in_its_time() {
    let lines = lines(
        "nodes: [{id: n, pool: own, capacity: 8}, {id: m, pool: own, capacity: 8}]
steps:
  - hold: [jobRunning]
    only: a/0/e
  - createBundle: {bundleId: a, pool: own, jobs: [{jobName: e}, {jobName: f}]}
  - at: 10s
    release: [jobRunning]
  - hold: [jobRunning]
    only: m
  - at: 19s500ms
    createBundle: {bundleId: b, pool: own, jobs: [{jobName: e}]}
  - at: 20s
    release: [jobRunning]
  - at: 30s
    expect: {jobs: {a/0/e: {state: running}, a/0/f: {state: running}, b/0/e: {state: running}}}
",
    );
    contains(
        &lines,
        &[
            "0:00:01.000 event jobUpdated a/0/f running on m as primary",
            "0:00:10.000 event jobUpdated a/0/e running on m as primary",
            "0:00:20.500 event jobUpdated b/0/e running on m as primary",
        ],
    );
}

// spec: SCEN-09
#[test]
fn a_general_hold_can_be_lifted_for_one_alone() {
    let lines = lines(
        "nodes: [{id: n, pool: own, capacity: 8}]
steps:
  - hold: [jobRunning, inventory]
  - createBundle: {bundleId: a, pool: own, jobs: [{jobName: e}, {jobName: f}]}
  - at: 10s
    release: [jobRunning]
    only: a/0/f
  - at: 20s
    expect: {jobs: {a/0/e: {state: placed}, a/0/f: {state: running}}}
  - release: [jobRunning, inventory]
  - {at: 30s, expect: {jobs: {a/0/e: {state: running}}}}
",
    );
    let inventories: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("nodeInventoryUpdated"))
        .collect();
    assert!(
        inventories[0].starts_with("0:00:20.000"),
        "{inventories:#?}"
    );
}

// spec: SCEN-07, SCEN-08
#[test]
fn a_fresh_policy_sees_what_the_one_before_left() {
    let lines = lines(
        "nodes: [{id: n, pool: own, capacity: 8, createdAt: -2h, jobs: [a/0/e]}]
bundles: [{bundleId: a, pool: own, jobs: [{jobName: e}]}]
steps:
  - at: 10s
    disconnect: true
  - cordon: n
    refused: closed
  - connect: true
  - expect: {jobs: {a/0/e: {state: running, node: n}}}
  - restart: true
  - close: true
  - at: 20s
    expect: {jobs: {a/0/e: {state: running, node: n}}}
",
    );
    let snapshots = lines
        .iter()
        .filter(|line| line.ends_with("initialDataComplete"));
    assert_eq!(snapshots.count(), 3);
    let closed = lines.iter().filter(|line| line.contains(" closed"));
    assert_eq!(closed.count(), 3);
}

// spec: SCEN-14
#[test]
fn json_lines_are_objects_with_time_kind_and_name() {
    let text = format!(
        "{CLOUD}nodes: [{{id: n, pool: own, capacity: 4}}]\nsteps:\n  - createBundle: {{bundleId: a, pool: own, jobs: [{{jobName: e}}]}}\n  - {{at: 5s, expect: {{invariants: ok}}}}\n"
    );
    let run = run_file("world.yaml", &text, Options { keep: Keep::Json });
    let mut kinds = std::collections::BTreeSet::new();
    for line in &run.lines {
        let object: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        assert!(object["at"].is_u64() && !object["data"].is_null(), "{line}");
        kinds.insert(object["kind"].as_str().unwrap_or_default().to_owned());
    }
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(kinds, ["call", "callback", "event", "policy", "step"]);
}

const SERVERS: &str = "\
scenario: 1
settings:
  placementPools:
    - {name: live, tiers: [{name: own, kind: local-servers, scaleOut: fixed},
        {name: cloud, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: c, totalCapacity: 8, totalCores: 8}]}]}
world: {nodeIds: [first, second]}
nodes:
  - {id: n, pool: live, capacity: 4, gpus: [{index: 0, model: l4, capacity: 1}, {index: 1, model: l4, capacity: 1}], jobs: [a/0/e, g/0/e]}
  - {id: m, pool: live, capacity: 4}
bundles:
  - {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1}}]}
  - {bundleId: g, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1, requiredGpuCapacity: 1, requiredGpuModel: l4}}]}
  - {bundleId: s, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1, essential: false}}]}
";

fn holds(more: &str) {
    let text = format!("{SERVERS}{more}");
    let run = greenroom_sim::run_file("servers.yaml", &text, greenroom_sim::Options::default());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
}

// spec: SCEN-04, SCEN-05
#[test]
fn jobs_stand_before_as_the_file_says() {
    holds(
        "jobs: {a/0/e: {dormant: false}, s/0/e: {dormant: true}}
steps:
  - {at: 1s, expect: {jobs: {a/0/e: {state: running}, s/0/e: {state: dormant}, g/0/e: {node: n}}}}
",
    );
    holds(
        "jobs: {s/0/e: {verdict: over}}
steps:
  - {at: 1s, expect: {jobs: {s/0/e: {state: gone}}}}
  - {at: 2s, startBundleJob: s/0/e}
  - {at: 9s, expect: {jobs: {s/0/e: {state: running}}}}
",
    );
}

// spec: SCEN-08, SCEN-09
#[test]
fn an_instance_is_made_runs_and_is_gone_when_a_step_says_so() {
    holds(
        "jobs: {s/0/e: {dormant: true}}
steps:
  - {at: 0s, hold: [prepared, jobRunning, jobStopped, nodeStopped]}
  - {at: 1m, migrate: {job: a/0/e, target: m}}
  - {at: 2m, jobPrepared: {job: a/0/e, node: m}}
  - {at: 2m10s, expect: {migration: {job: a/0/e, phase: awaitingSourceStop}}}
  - {at: 2m10s, jobStopped: a/0/e}
  - {at: 2m20s, jobRunning: {job: a/0/e, node: m}}
  - {at: 2m20s, expect: {migration: {job: a/0/e, phase: done}}}
  - {at: 5m, evict: m}
  - {at: 5m5s, expect: {nodes: {m: {state: stopping}}}}
  - {at: 5m5s, release: [nodeStopped]}
  - {at: 5m5s, expect: {nodes: {m: {state: stopped}}}}
",
    );
    let text = format!("{SERVERS}steps:\n  - {{at: 1s, jobStopped: {{job: a/0/e, node: m}}}}\n");
    let run = greenroom_sim::run_file("servers.yaml", &text, greenroom_sim::Options::default());
    let told = run.report();
    assert!(
        told.contains("no instance of a/0/e is stopping, or left behind, on m now"),
        "{told}"
    );
}

// spec: SCEN-08
#[test]
fn others_than_the_policy_stop_and_judge() {
    holds(
        "jobs: {s/0/e: {dormant: true}}
steps:
  - {at: 1s, stopJob: {job: a/0/e, node: n}}
  - {at: 9s, expect: {nodes: {n: {jobs: [g/0/e]}}}}
  - {at: 10s, markJobFailed: {job: g/0/e, reason: no licence}}
  - {at: 19s, expect: {jobs: {g/0/e: {state: dropped}}, nodes: {n: {jobs: []}}}}
",
    );
}

// spec: SCEN-03, SCEN-08
#[test]
fn a_refusal_is_for_one_job_or_node_and_takes_its_time() {
    holds(
        "jobs: {s/0/e: {dormant: true}}
steps:
  - {at: 0s, createFails: {tier: cloud, next: 1, node: '@tier/live/cloud/2', when: call, after: 3s}}
  - {at: 0s, startFails: {node: m, next: 1, job: s/0/e, after: 2s}}
  - {at: 1s, createBundle: {bundleId: x, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 8}}]}}
  - {at: 1s, createBundle: {bundleId: y, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 7}}]}}
  - {at: 2s, expect: {jobs: {x/0/e: {tier: cloud}, y/0/e: {tier: cloud}}}}
  - {at: 4s, expect: {jobs: {x/0/e: {tier: cloud}, y/0/e: {state: unplaced}}}}
  - {at: 5s, cordon: n}
  - {at: 5s, startBundleJob: s/0/e}
  - {at: 6s, expect: {jobs: {s/0/e: {state: placed, node: m}}}}
  - {at: 7s, expect: {jobs: {s/0/e: {state: unplaced}}}}
  - {at: 1m, expect: {callbacks: []}}
  - {at: 1m, terminate: '@tier/live/cloud/1'}
  - {at: 1m, expect: {callbacks: [{onNodeTerminated: {nodeId: '@tier/live/cloud/1'}}]}}
",
    );
}
