//! Random courses: what is recorded of each plays to the same decisions, or says at its top what of the
//! past it does not know.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use greenroom_sim::{Options, Outcome, explore, run_file};

use super::course::again;

/// Courses of all that can happen to any fleet.
const EXPLORED: u64 = 12;
/// Courses of a fleet that begins calm.
const CALM: u64 = 30;

// spec: SCEN-12
#[test]
fn what_happens_to_any_fleet_is_recorded_as_it_was() {
    for seed in 0..EXPLORED {
        if let Err(told) = again(&explore::as_scenario(seed), 600) {
            panic!("seed {seed}: {told}");
        }
    }
}

// spec: SCEN-12
#[test]
fn what_operators_and_faults_do_to_a_calm_fleet_is_recorded_as_it_was() {
    let (mut alike, mut decisions) = (0, 0);
    for seed in 0..CALM {
        let text = course(seed);
        let again = again(&text, 600).unwrap_or_else(|told| panic!("seed {seed}: {told}\n{text}"));
        let again = again.expect("it begins with a picture");
        alike += u64::from(again.left_out.is_empty());
        decisions += again.decisions;
    }
    assert!(alike > CALM / 2, "only {alike} had all in them");
    assert!(decisions > 100, "only {decisions} decisions");
}

/// A small generator, the same on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        let at = usize::try_from(self.below(list.len() as u64)).expect("a short list");
        list[at]
    }
}

/// A course that plays: steps that turn out impossible are left out, refusals are announced.
fn course(seed: u64) -> String {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9) + 1);
    let mut at = 0;
    let mut steps: Vec<String> = (0..30)
        .map(|number| step(&mut dice, &mut at, number))
        .collect();
    loop {
        let mut cut = BTreeSet::new();
        steps.retain(|step| match step.split_once("heal: ") {
            Some((_, node)) => cut.remove(node),
            None => {
                let node = step
                    .split_once("partition: ")
                    .map(|(_, node)| node.to_owned());
                cut.extend(node);
                true
            }
        });
        let text = written(seed, &steps);
        let failure = match run_file("course.yaml", &text, Options::default()).outcome {
            Outcome::Ok => return text,
            Outcome::Unreadable(problems) => panic!("{problems}\n{text}"),
            Outcome::Fail(failure) => failure,
        };
        let step = failure.step.unwrap_or_else(|| panic!("{failure}\n{text}"));
        // The first one stands in every course.
        steps.remove(step - 1);
    }
}

fn written(seed: u64, steps: &[String]) -> String {
    let mut text = format!(
        "scenario: 1
settings:
  maxRestartsPerHour: 50
  placementPools: [{{name: live, tiers: [{{name: own, kind: local-servers, scaleOut: fixed}}, {{name: cloud, kind: aws, region: eu-west-1, scaleOut: elastic, candidateInstanceTypes: [{{instanceType: c.large, totalCapacity: 4, totalCores: 4}}]}}]}}]
world: {{seed: {}, startTime: 3s, stopTime: 4s, prepareTime: 5s, startPreparedTime: 1s, terminateTime: 6s, migration: {{state: 2s, ready: 3s, stopOutput: 2s, apply: 3s}}}}
nodes:
  - {{id: n1, pool: live, capacity: 4, jobs: [a/0/e]}}
  - {{id: n2, pool: live, capacity: 4, jobs: [b/0/e]}}
  - {{id: n3, pool: live, capacity: 4, jobs: [c/0/e]}}
  - {{id: n4, pool: live, capacity: 4}}
bundles:
",
        seed + 1
    );
    for (bundle, more) in [
        ("a", "handover: true, "),
        ("b", ""),
        ("c", "handover: true, "),
    ] {
        let _ = writeln!(
            text,
            "  - {{bundleId: {bundle}, pool: live, jobs: [{{jobName: e, {more}requirements: {{requiredCapacity: 1.5}}}}]}}"
        );
    }
    text.push_str("steps:\n  - {at: 100ms, setTags: {node: n4, tags: {rack: r1}}}\n");
    for step in steps {
        let _ = writeln!(text, "  - {step}");
    }
    text
}

fn step(dice: &mut Dice, at: &mut u64, number: u64) -> String {
    *at += dice.below(20_000) + 101;
    let node = dice.of(&["n1", "n2", "n3", "n4"]);
    let job = dice.of(&["a/0/e", "b/0/e", "c/0/e"]);
    let strategy = dice.of(&["stopThenStart", "overlap", "handover"]);
    let what = match dice.below(24) {
        0 | 1 => format!("migrate: {{job: {job}, strategy: {strategy}}}"),
        2 => format!("migrate: {{job: {job}, strategy: {strategy}, target: {node}}}"),
        3 | 4 => format!("abortMigration: {{job: {job}, reason: asked}}"),
        5 => format!("drain: {{node: {node}, timeout: 20s, strategy: {strategy}}}"),
        6 => format!("evict: {node}"),
        7 | 8 => format!("cordon: {node}"),
        9 | 10 => format!("uncordon: {node}"),
        11 => format!("nodeDies: {node}"),
        12 | 13 => format!("nodeReturns: {{node: {node}}}"),
        14 => format!("partition: {node}"),
        15 => format!("heal: {node}"),
        16 => format!(
            "startFails: {{node: {node}, next: 1, after: {}ms}}",
            dice.below(900)
        ),
        17 => format!(
            "createFails: {{tier: cloud, next: 1, when: call, after: {}ms}}",
            dice.below(3_000)
        ),
        18 => format!("jobFails: {{job: {job}, reason: crashed}}"),
        19 => format!("jobRejected: {{job: {job}, node: {node}, reason: no room}}"),
        20 => format!("stopBundleJob: {job}"),
        21 => format!("startBundleJob: {job}"),
        22 => format!("interrupt: {{node: {node}, kind: rebalance, strategy: {strategy}}}"),
        _ => format!(
            "createBundle: {{bundleId: x{number}, pool: live, jobs: [{{jobName: e, requirements: {{requiredCapacity: 1}}}}]}}"
        ),
    };
    format!("{{at: {at}ms, {what}}}")
}
