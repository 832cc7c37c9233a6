//! No expectation and no step passes without a word that says nothing, says it twice or cannot be
//! (SCEN-15): what is empty, unknown, named twice or contradicts itself, key by key.

mod empty;
mod twice;
mod unknown;

use greenroom_sim::{Options, check_file, run_file};

const HEAD: &str = "\
scenario: 1
settings:
  placementPools:
    - name: live
      tiers:
        - {name: own, kind: local-servers, scaleOut: fixed}
        - {name: cloud, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: c, totalCapacity: 4, totalCores: 4}]}
    - name: alt
      tiers:
        - {name: far, kind: aws, region: r, scaleOut: elastic, candidateInstanceTypes: [{instanceType: d, totalCapacity: 4, totalCores: 4}]}
";

const FLEET: &str = "\
nodes:
  - {id: n, pool: live, tier: own, capacity: 4, jobs: [a/0/e]}
  - {id: m, pool: live, tier: own, capacity: 4, tags: {rack: '7'}}
bundles:
  - {bundleId: a, pool: live, jobs: [{jobName: e, requirements: {requiredCapacity: 1}}, {jobName: f, startMode: manual}]}
";

const STEPS: &str = "steps: [{expect: {invariants: ok}}]\n";

/// That a text has one fault: on its last line, at this path, in these words.
#[track_caller]
fn refused(text: &str, path: &str, words: &str) {
    let told = match check_file("s.yaml", text) {
        Ok(_) => panic!("nothing is wrong with\n{text}"),
        Err(problems) => problems.0,
    };
    let all: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{all:#?}\n{text}");
    assert_eq!(told[0].path, path, "{all:#?}");
    assert!(told[0].message.contains(words), "{all:#?}: {words}");
    let line = u64::try_from(text.lines().count()).expect("a small file");
    assert_eq!(told[0].position.map(|at| at.line), Some(line), "{all:#?}");
}

#[track_caller]
fn step(step: &str, path: &str, words: &str) {
    let text = format!("{HEAD}{FLEET}steps:\n  - {step}\n");
    refused(&text, &format!("steps[0]{path}"), words);
}

#[track_caller]
fn expects(expect: &str, path: &str, words: &str) {
    let asked = "  - dryRun: a/0/e\n  - admit: {bundleId: a, pool: live, jobs: [{jobName: e}]}\n";
    let text = format!("{HEAD}{FLEET}steps:\n{asked}  - expect: {{{expect}}}\n");
    refused(&text, &format!("steps[2].expect.{path}"), words);
}

/// That a text is read and holds.
#[track_caller]
fn plays(text: &str) {
    let run = run_file("s.yaml", text, Options::default());
    assert_eq!(run.exit_code(), 0, "{}\n{text}", run.report());
}
