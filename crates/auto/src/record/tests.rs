//! What is recorded beside a policy plays to the same course: a fleet is played in virtual time with
//! the recorder beside its policy, and the recording is played again.

mod course;
mod faithful;
mod random;

use serde_json::{Value, json};

use course::{Again, again};

/// A fleet that is played, with what is submitted to it.
struct Fleet {
    settings: Value,
    nodes: Vec<String>,
    bundles: Vec<String>,
    /// Bundles that steps submit, by name.
    later: Vec<(String, String)>,
    /// How fast it answers.
    world: String,
}

impl Fleet {
    /// Of one pool, `live`, with these tiers.
    fn of(tiers: Value) -> Self {
        Self {
            settings: json!({"placementPools": [{"name": "live", "tiers": tiers}]}),
            nodes: Vec::new(),
            bundles: Vec::new(),
            later: Vec::new(),
            world: "startTime: 50ms, stopTime: 50ms, prepareTime: 50ms, startPreparedTime: 20ms"
                .to_owned(),
        }
    }

    /// Of own servers.
    fn own() -> Self {
        Self::of(json!([{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]))
    }

    /// Of machines that are bought in these tiers.
    fn bought(tiers: &[&str]) -> Self {
        let tier = |name: &&str| {
            json!({
                "name": name, "kind": "aws", "region": "eu-west-1", "scaleOut": "elastic",
                "candidateInstanceTypes": [
                    {"instanceType": "c.large", "totalCapacity": 4, "totalCores": 4}],
            })
        };
        Self::of(tiers.iter().map(tier).collect())
    }

    /// Of two servers, `n` and `m`, with job `a/0/e` of this capacity on the first; `more` is what else
    /// the job says.
    fn pair(capacity: f64, more: &str) -> Self {
        Self::own()
            .node("n", 2.0, "a/0/e")
            .node("m", 2.0, "")
            .bundle("a", capacity, more)
    }

    /// That answers so fast.
    fn answers(mut self, world: &str) -> Self {
        self.world = world.to_owned();
        self
    }

    /// With another setting.
    fn with(mut self, key: &str, value: Value) -> Self {
        self.settings[key] = value;
        self
    }

    /// With a server that runs this job, or none.
    fn node(mut self, id: &str, capacity: f64, job: &str) -> Self {
        let node = format!("{{id: {id}, pool: live, capacity: {capacity}, jobs: [{job}]}}");
        self.nodes.push(node);
        self
    }

    /// With a bundle of one job, `e`; `more` is what else the job says.
    fn bundle(mut self, bundle: &str, capacity: f64, more: &str) -> Self {
        self.bundles.push(job(bundle, capacity, more));
        self
    }

    /// With a bundle as it is written.
    fn whole(mut self, bundle: &str) -> Self {
        self.bundles.push(bundle.to_owned());
        self
    }

    /// With one that a step submits: `createBundle: NAME`.
    fn later(mut self, bundle: &str, capacity: f64) -> Self {
        let step = format!("createBundle: {bundle}}}");
        self.later.push((step, job(bundle, capacity, "")));
        self
    }

    /// Plays these steps and gives the recording of the last minutes, which must leave nothing out and
    /// play to the same decisions.
    fn replayed(self, minutes: u64, steps: &str) -> String {
        let again = self.again(minutes, steps);
        assert!(again.left_out.is_empty(), "{}", again.text);
        again.text
    }

    /// The same, where the recording says what it leaves out.
    fn again(self, minutes: u64, steps: &str) -> Again {
        let mut steps = steps.to_owned();
        for (step, bundle) in &self.later {
            assert!(steps.contains(step), "there is no {step}");
            steps = steps.replace(step, &format!("createBundle: {bundle}}}"));
        }
        let text = format!(
            "scenario: 1\n\
             settings: {}\n\
             world: {{{}}}\n\
             nodes: [{}]\n\
             bundles: [{}]\n\
             steps:\n{steps}",
            self.settings,
            self.world,
            self.nodes.join(", "),
            self.bundles.join(", "),
        );
        let again = again(&text, minutes).unwrap_or_else(|told| panic!("{told}"));
        again.expect("a picture was taken")
    }
}

fn job(bundle: &str, capacity: f64, more: &str) -> String {
    format!(
        "{{bundleId: {bundle}, pool: live, jobs: [{{jobName: e, {more}requirements: {{requiredCapacity: {capacity}}}}}]}}"
    )
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

// spec: SCEN-12
#[test]
fn a_cordon_in_force_holds_in_the_recording_as_well() {
    let text = Fleet::own()
        .node("n", 2.0, "small/0/e")
        .node("m", 2.0, "")
        .bundle("small", 1.0, "")
        .later("next", 0.5)
        .later("late", 1.5)
        .replayed(
            1,
            "  - {at: 10s, cordon: m}
  - {at: 5m10s, setTags: {node: n, tags: {x: y}}}
  - {at: 6m, createBundle: next}
  - {at: 6m10s, createBundle: late}
  - at: 6m20s
    expect: {jobs: {late/0/e: {state: unplaced}, next/0/e: {state: running, node: n}}}
  - {at: 6m30s, uncordon: m}
  - {at: 6m40s, expect: {jobs: {late/0/e: {state: running, node: m}}}}
",
        );
    has(
        &text,
        &[
            "{at: 0s, cordon: m}",
            "{at: 0s, inventory: {cordoned: false, node: m}}",
            "trace: {job: late/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "uncordon: m",
            "trace: {chosen: m, job: late/0/e}",
        ],
    );
}

/// What a node that takes nothing new runs goes on, in the recording as in the fleet.
// spec: SCEN-12
#[test]
fn a_node_that_is_closed_to_new_work_is_recorded_with_what_it_runs() {
    let text = Fleet::own()
        .node("n", 2.0, "small/0/e")
        .node("m", 2.0, "old/0/e")
        .node("o", 2.0, "last/0/e")
        .bundle("small", 1.0, "")
        .bundle("old", 1.0, "")
        .bundle("last", 1.0, "")
        .later("late", 1.0)
        .later("more", 1.0)
        .replayed(
            1,
            "  - {at: 10s, cordon: n}
  - {at: 10s, inventory: {node: m, disks: [{path: /, total: 100000000000, free: 1000}]}}
  - {at: 10s, inventory: {node: o, cordoned: true}}
  - {at: 5m10s, setTags: {node: n, tags: {x: y}}}
  - {at: 6m, createBundle: late}
  - {at: 6m20s, expect: {jobs: {late/0/e: {state: unplaced}}}}
  - {at: 6m30s, uncordon: n}
  - {at: 6m40s, expect: {jobs: {late/0/e: {state: running, node: n}}}}
  - {at: 6m50s, inventory: {node: m, disks: []}}
  - {at: 7m, createBundle: more}
  - {at: 7m10s, expect: {jobs: {more/0/e: {state: running, node: m}}}}
",
        );
    has(
        &text,
        &[
            "jobs: [small/0/e]",
            "jobs: [old/0/e]",
            "jobs: [last/0/e]",
            "{at: 0s, cordon: n}",
            "{at: 0s, inventory: {cordoned: false, node: n}}",
            "trace: {job: late/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "trace: {chosen: n, job: late/0/e}",
            "disks: [{free: 0",
            "{at: 1m40s, inventory: {disks: [], node: m}}",
            "trace: {chosen: m, job: more/0/e}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_drain_that_gets_stuck_does_so_again() {
    let text = Fleet::own()
        .node("n", 2.0, "a/0/e")
        .node("m", 2.0, "b/0/e")
        .bundle("a", 1.5, "")
        .bundle("b", 1.5, "")
        .replayed(
            1,
            "  - {at: 10s, drain: {node: n, timeout: 5s}}
  - {at: 20s, expect: {drain: {node: n, phase: partial}, jobs: {a/0/e: {state: running}}}}
  - {at: 30s, drain: {node: n, timeout: 1m, strategy: {a/0/e: overlap}}}
  - {at: 40s, uncordon: n}
  - {at: 50s, expect: {drain: {node: n, phase: failed}}}
",
        );
    has(
        &text,
        &[
            "trace: {job: a/0/e, kind: failure, reason: noCapacityInAnyPool}",
            "drain: {node: n, phase: partial, jobs: {a/0/e: stuck}}",
            "strategy: {a/0/e: overlap}",
            "drain: {node: n, phase: failed, jobs: {a/0/e: stuck}}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_server_that_was_drained_and_returns_is_the_same_server() {
    let text = Fleet::pair(1.5, "").later("late", 2.5).replayed(
        5,
        "  - {at: 10s, drain: {node: n}}
  - {at: 30s, expect: {drain: {node: n, phase: done}, nodes: {n: {state: stopped}}}}
  - {at: 40s, inventory: {node: n, capacity: 3}}
  - {at: 40s, nodeReturns: {node: n, jobs: []}}
  - {at: 50s, setTags: {node: n, tags: {spare: 'true', rack: r7}}}
  - {at: 1m, updateHotSpareNode: {node: n, exclusive: true, reservedFor: [t]}}
  - {at: 1m10s, updateHotSpareNode: {node: n, exclusive: false}}
  - {at: 1m15s, uncordon: n}
  - {at: 1m20s, createBundle: late}
  - {at: 1m30s, expect: {jobs: {late/0/e: {state: running, node: n}}}}
  - {at: 2m, partition: m}
  - {at: 3m, expect: {nodes: {m: {state: stopped}}}}
  - {at: 4m, heal: m}
  - {at: 4m10s, expect: {nodes: {m: {state: running}}}}
",
    );
    has(
        &text,
        &[
            "drain: {node: n, phase: done, jobs: {a/0/e: migrated}}",
            "nodeReturns: {node: n, jobs: []}",
            "inventory: {capacity: 3.0",
            "setTags: {node: n, tags: {rack: r7, spare: \"true\"}}",
            "updateHotSpareNode: {exclusive: true, node: n, reservedFor: [t]}",
            "trace: {chosen: n, job: late/0/e}",
            "heal: m",
        ],
    );
    assert_eq!(text.matches("setTags").count(), 1, "{text}");
    assert!(!text.contains("nodeJoins"), "{text}");
}

// spec: SCEN-12
#[test]
fn a_server_that_was_gone_before_stands_stopped_and_returns() {
    let text = Fleet::own().node("n", 2.0, "").node("m", 2.0, "").replayed(
        1,
        "  - {at: 10s, terminate: n}
  - {at: 5m30s, setTags: {node: m, tags: {x: y}}}
  - {at: 6m40s, nodeReturns: {node: n, jobs: []}}
  - {at: 6m50s, expect: {nodes: {n: {state: running}}}}
",
    );
    has(
        &text,
        &[
            "{at: 0s, nodeStopped: n}",
            "nodeReturns: {node: n, jobs: []}",
        ],
    );
    assert!(!text.contains("nodeJoins"), "{text}");
}

// spec: SCEN-12
#[test]
fn what_waits_for_a_hand_and_what_was_started_by_one_stand_as_they_stood() {
    let text = Fleet::own()
        .node("n", 3.0, "")
        .bundle("by-hand", 1.0, "startMode: manual, ")
        .bundle("stopped", 1.0, "")
        .bundle("too-large", 5.0, "startMode: manual, ")
        .later("next", 0.5)
        .replayed(
            1,
            "  - {at: 10s, startBundleJob: by-hand/0/e}
  - {at: 20s, stopBundleJob: stopped/0/e}
  - {at: 30s, startBundleJob: too-large/0/e}
  - {at: 5m10s, createBundle: next}
  - {at: 6m10s, stopBundleJob: by-hand/0/e}
  - {at: 6m20s, startBundleJob: stopped/0/e}
  - {at: 6m30s, expect: {jobs: {stopped/0/e: {state: running}, by-hand/0/e: {state: dormant}}}}
",
        );
    has(
        &text,
        &[
            "jobs: [by-hand/0/e]",
            "too-large/0/e: {dormant: false}",
            "stopBundleJob: by-hand/0/e",
            "startBundleJob: stopped/0/e",
        ],
    );
}

// spec: SCEN-12
#[test]
fn migrations_that_come_to_nothing_do_so_again() {
    let text = Fleet::pair(1.5, "handover: true, ")
        .replayed(5, "  - {at: 10s, hold: [migrationSignals]}
  - {at: 10s, migrate: {job: a/0/e, strategy: handover}}
  - {at: 10s300ms, signal: {job: a/0/e, side: source, kind: refuse, payload: not now}}
  - {at: 20s, expect: {migration: {job: a/0/e, phase: aborted}}}
  - {at: 30s, startFails: {node: m, next: 1}}
  - {at: 30s, migrate: {job: a/0/e, strategy: stopThenStart}, refused: 'the target could not be started: refused: the scenario lets starts on \"m\" fail (start_failed)'}
  - {at: 50s, expect: {jobs: {a/0/e: {state: running}}}}
  - {at: 1m, migrate: {job: a/0/e, strategy: handover}}
  - {at: 1m1s, signal: {job: a/0/e, side: source, kind: state, payload: secret}}
  - {at: 1m2s, signal: {job: a/0/e, side: target, kind: ready}}
  - {at: 1m3s, abortMigration: {job: a/0/e, reason: second thoughts}}
  - {at: 1m10s, expect: {migration: {job: a/0/e, phase: aborted}}}
");
    has(
        &text,
        &[
            "kind: refuse, payload: \"not now\"",
            "phase: aborted",
            "kind: ready",
            "abortMigration: {job: a/0/e, reason: \"second thoughts\"}",
        ],
    );
    // Refused again, and not by the next start.
    has(
        &text,
        &[
            "startFails: {job: a/0/e, next: 1, node: m}",
            "strategy: stopThenStart}, refused:",
        ],
    );
    assert!(!text.contains("secret"), "{text}");
}

// spec: SCEN-12
#[test]
fn a_start_that_is_refused_is_refused_again() {
    let text = Fleet::pair(1.5, "").later("late", 0.5).replayed(
        5,
        "  - {at: 10s, startFails: {node: m, next: 1}}
  - {at: 10s, drain: {node: n, timeout: 1h}}
  - {at: 20s, expect: {migration: {job: a/0/e, phase: aborted}, jobs: {a/0/e: {node: n}}}}
  - {at: 2m, uncordon: n}
  - {at: 3m, startFails: {node: n, next: 1}}
  - {at: 3m, createBundle: late}
  - {at: 3m2s, expect: {jobs: {late/0/e: {state: unplaced}}}}
  - {at: 4m, expect: {jobs: {late/0/e: {node: m}}}}
",
    );
    // Ahead of what asks for them.
    has(
        &text,
        &[
            "{at: 9s899ms, startFails: {job: a/0/e, next: 1, node: m}}\n  - {at: 9s900ms, drain:",
            "abortReason: \"the target could not be started: refused\", job: a/0/e",
            "startFails: {job: late/0/e, next: 1, node: n}}\n  - {at: 2m59s900ms, createBundle:",
            "trace: {chosen: m, job: late/0/e}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn machines_that_are_bought_come_or_fail_as_they_did() {
    let text = Fleet::bought(&["first", "second"])
        .later("a", 3.0)
        .later("b", 3.0)
        .replayed(
            9,
            "  - {at: 10s, hold: [nodeBooting, nodeStarted]}
  - {at: 10s, createFails: {tier: first, next: 1, error: NoStock, when: call}}
  - {at: 10s, createBundle: a}
  - {at: 10s, expect: {jobs: {a/0/e: {tier: second}}}}
  - {at: 1m30s, release: [nodeBooting], only: '@tier/live/second/1'}
  - {at: 2m, release: [nodeStarted], only: '@tier/live/second/1'}
  - {at: 2m, expect: {jobs: {a/0/e: {state: placed}}}}
  - {at: 5m, createFails: {tier: first, next: 1, error: NoStock}}
  - {at: 5m, createBundle: b}
  - {at: 6m, expect: {jobs: {b/0/e: {tier: second}}}}
  - {at: 7m, notice: {node: '@tier/live/second/1', kind: rebalance}}
  - {at: 8m, expect: {jobs: {a/0/e: {state: running}}}}
",
        );
    has(
        &text,
        &[
            "createFails: {error: NoStock, next: 1, node: \"@tier/live/first/1\", tier: first, when: call}",
            "release: [nodeBooting]",
            "only: \"@tier/live/second/1\", release: [nodeStarted]",
            "nodeStopping: {node: \"@tier/live/first/2\", reason: CREATE_FAILED}",
            "notice: {kind: ",
        ],
    );
}

// spec: SCEN-12
#[test]
fn an_image_that_could_not_be_pulled_cannot_be_pulled_again() {
    let text = Fleet::own()
        .node("n", 2.0, "")
        .with("templateImages", json!({"enc": ["reg/a:1", "reg/b:1"]}))
        .replayed(
            5,
            "  - {at: 10s, hold: [imagePulls]}
  - {at: 10s, setTags: {node: n, tags: {spare: 'true', warmFor: enc}}}
  - {at: 40s, imagePulled: {node: n, ref: 'reg/a:1', ok: true}}
  - {at: 50s, imagePulled: {node: n, ref: 'reg/b:1', ok: false}}
  - {at: 1m, expect: {callbacks: [{onImagesPrefetched: {nodeId: n}}]}}
",
        );
    has(
        &text,
        &[
            "imagePulled: {node: n, ok: true, ref: \"reg/a:1\"}",
            "imagePulled: {node: n, ok: false, ref: \"reg/b:1\"}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_clock_that_was_set_is_set_again() {
    let text = Fleet::own()
        .node("n", 2.0, "")
        .with("pendingWindow", json!(7200))
        .replayed(
            5,
            "  - {at: 10s, createBundle: {bundleId: show, pool: live, startDateTime: +30m, jobs: [{jobName: e, requirements: {requiredCapacity: 1}}]}}
  - {at: 1m, clock: {wallJump: +1h}}
  - {at: 1m10s, expect: {jobs: {show/0/e: {node: n}}}}
",
        );
    has(
        &text,
        &[
            "clock: {wallJump: \"+3600000ms\"}",
            "trace: {chosen: n, job: show/0/e}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn a_node_that_died_at_once_does_so_again() {
    let text = Fleet::pair(1.0, "").replayed(
        5,
        "  - {at: 10s, nodeDies: n}
  - {at: 10s, expect: {jobs: {a/0/e: {node: m}}}}
  - {at: 2m, nodeReturns: {node: n}}
  - {at: 3m, expect: {nodes: {n: {state: running}}}}
",
    );
    has(
        &text,
        &[
            "nodeStopping: {node: n, reason: HEALTH_PING_TIME_EXCEEDED}",
            "trace: {chosen: m, job: a/0/e}",
            "nodeReturns: {node: n, jobs: []}",
        ],
    );
    assert!(!text.contains("partition"), "{text}");
}

// spec: SCEN-12
#[test]
fn a_start_that_comes_to_nothing_before_it_runs_does_so_again() {
    let text = Fleet::pair(1.5, "").later("late", 0.5).replayed(
        9,
        "  - {at: 10s, hold: [prepared, jobRunning]}
  - {at: 10s, drain: {node: n, timeout: 1h}}
  - {at: 15s, jobRejected: {job: a/0/e, node: m, reason: no room}}
  - {at: 20s, expect: {migration: {job: a/0/e, phase: aborted}, jobs: {a/0/e: {node: n}}}}
  - {at: 2m, uncordon: n}
  - {at: 3m, migrate: {job: a/0/e}}
  - {at: 3m10s, abortMigration: {job: a/0/e, reason: not now}}
  - {at: 4m, createBundle: late}
  - {at: 4m10s, jobFails: {job: late/0/e, reason: no such image}}
  - {at: 4m30s, release: [prepared, jobRunning]}
  - {at: 5m, expect: {jobs: {late/0/e: {state: running}}}}
",
    );
    has(
        &text,
        &[
            "jobRejected: {code: CAPACITY, job: a/0/e, node: m, reason: \"no room\"}",
            "abortReason: \"not now\"",
            "jobFails: {job: late/0/e, reason: \"no such image\"}",
        ],
    );
}

// spec: SCEN-12
#[test]
fn an_update_that_only_revives_a_bundle_is_recorded() {
    let text = Fleet::own()
        .node("n", 2.0, "a/0/e")
        .bundle("a", 1.0, "")
        .with("maxRestartsPerHour", json!(0))
        .replayed(
            5,
            "  - {at: 10s, jobFails: {job: a/0/e, reason: gone}}
  - {at: 20s, expect: {bundle: {id: a, broken: true}}}
  - {at: 30s, updateBundle: {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1.0}}]}}
  - {at: 1m, expect: {bundle: {id: a, broken: false}, jobs: {a/0/e: {state: running}}}}
",
        );
    has(&text, &["{at: 29s900ms, updateBundle: {bundleId: a"]);
}
