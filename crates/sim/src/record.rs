//! A recording of a running control plane as a scenario file (SCEN-12).
//!
//! The file is played before it is given out. An expectation that does not hold in virtual time is
//! taken out and told: the real fleet was slower or quicker somewhere than the simulated one. So the
//! file that is left can be played, and says what it leaves out.

mod play;
mod words;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use greenroom_types::Wall;
use serde_json::{Map, Value, json};

use crate::explore::fleet::Head;
use crate::explore::write;
use crate::format::span::Span;
use crate::format::{Problems, step_of};
use crate::run::Observer;
use play::{Difference, Unplayed, Why};

/// Steps that are taken out at most; a recording that differs more says nothing.
const TAKEN_OUT: usize = 200;

/// The parts of a scenario as they were recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its name.
    pub name: String,
    /// Wall time at its beginning.
    pub start: Wall,
    /// The policy's settings, without the Manager's address.
    pub settings: Value,
    /// Nodes at the beginning.
    pub nodes: Vec<Value>,
    /// Bundles at the beginning.
    pub bundles: Vec<Value>,
    /// How single jobs stand at the beginning, where that is not as their bundle says.
    pub jobs: Map<String, Value>,
    /// What the ids of the nodes began with that were asked for, in that order.
    pub node_ids: Vec<String>,
    /// Steps with their time in milliseconds in `at`, in order.
    pub steps: Vec<Value>,
    /// What the recorder had no words for.
    pub left_out: Vec<String>,
}

/// A recording as a file.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The file.
    pub text: String,
    /// Steps in it.
    pub steps: usize,
    /// Decisions among them.
    pub decisions: usize,
    /// What is not in it, in words.
    pub left_out: Vec<String>,
}

/// Writes a recording as a scenario that plays, before somebody who looks on while it is tried.
///
/// # Errors
/// Why it cannot be played at all.
pub fn recorded(
    mut recording: Recording,
    observer: Option<Box<dyn Observer>>,
) -> Result<Recorded, String> {
    let observer = observer.map(|observer| Rc::new(RefCell::new(observer)));
    let mut left_out = std::mem::take(&mut recording.left_out);
    words::as_a_file_says_it(&mut recording);
    for step in &mut recording.steps {
        let at = step["at"].as_u64().unwrap_or_default();
        step["at"] = Span(at).to_string().into();
    }
    let mut taken_out = 0;
    loop {
        let text = file(&recording, &left_out);
        let name = &recording.name;
        match play::through(name, &text, observer.as_ref(), taken_out, TAKEN_OUT) {
            Ok(differences) if differences.is_empty() => {
                let is_expected = |step: &&Value| step.get("expect").is_some();
                return Ok(Recorded {
                    text,
                    steps: recording.steps.len(),
                    decisions: recording.steps.iter().filter(is_expected).count(),
                    left_out,
                });
            }
            Ok(differences) => {
                let mut gone = BTreeSet::new();
                for Difference { step, why } in differences {
                    left_out.push(format!("{}, for {why}", recording.steps[step]));
                    taken_out += usize::from(matches!(why, Why::Differs(_)));
                    gone.insert(step);
                }
                let mut numbers = 0..;
                let is_gone = |at: usize| gone.contains(&at);
                recording
                    .steps
                    .retain(|_| !numbers.next().is_some_and(is_gone));
            }
            Err(Unplayed::Unreadable(problems)) => {
                taken_out += 1;
                take_out(&problems, &mut recording.steps, &mut left_out)?;
            }
            Err(Unplayed::Stuck(words)) => return Err(words),
        }
        if taken_out > TAKEN_OUT {
            return Err(format!(
                "more than {TAKEN_OUT} steps go differently in virtual time"
            ));
        }
    }
}

/// Takes out the steps that cannot be read or mean nothing: the recorder saw what the scenario has no
/// name for. A fault anywhere else leaves nothing to play.
fn take_out(
    problems: &Problems,
    steps: &mut Vec<Value>,
    left_out: &mut Vec<String>,
) -> Result<(), String> {
    let mut faulty: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for problem in &problems.0 {
        let index = step_of(&problem.path).filter(|index| *index < steps.len());
        let Some(index) = index else {
            return Err(problems.to_string());
        };
        faulty.entry(index).or_default().push(&problem.message);
    }
    for (index, words) in faulty.iter().rev() {
        let step = steps.remove(*index);
        left_out.push(format!("{step}, for {}", words.join("; ")));
    }
    Ok(())
}

fn file(recording: &Recording, left_out: &[String]) -> String {
    let description = format!(
        "Recorded from a control plane, from {} on.",
        recording.start
    );
    // A broken stream is seen at once, as the record has it, and not after a silence. What a worker or
    // a provider does takes no time here but for what is held, as soon as the record holds it.
    let mut world = json!({
        "start": recording.start,
        "manager": {"silenceMs": 0},
        "bootTime": "2ms",
        "startTime": "1ms",
        "stopTime": "1ms",
        "prepareTime": "1ms",
        "startPreparedTime": "1ms",
        "terminateTime": "1ms",
        "migration": {"state": "1ms", "ready": "1ms", "stopOutput": "1ms", "apply": "1ms"},
    });
    let pools = words::unconfigured_pools(recording);
    if !pools.is_empty() {
        world["unconfiguredPools"] = json!(pools);
    }
    if !recording.node_ids.is_empty() {
        world["nodeIds"] = json!(recording.node_ids);
    }
    let head = Head {
        settings: recording.settings.clone(),
        world,
        nodes: recording.nodes.clone(),
        bundles: recording.bundles.clone(),
        jobs: recording.jobs.clone(),
    };
    let text = write::scenario(&recording.name, &description, &head, &recording.steps);
    let mut notes = String::new();
    for note in left_out {
        notes.push_str(&format!("# left out: {}\n", note.replace('\n', " ")));
    }
    notes + &text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Options, run_file};

    fn recording(steps: Vec<Value>) -> Recording {
        let node = |id: &str| json!({"id": id, "pool": "live", "capacity": 4, "cores": 4});
        let mut first = node("n1");
        first["jobs"] = json!(["news/0/encode"]);
        Recording {
            name: "incident".to_owned(),
            start: "2026-11-29T20:00:00Z".parse().expect("an instant"),
            settings: json!({"placementPools": [{"name": "live", "tiers": [
                {"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]}]}),
            nodes: vec![first, node("n2")],
            bundles: vec![json!({"bundleId": "news", "pool": "live", "jobs": [
                {"jobName": "encode", "requirements": {"requiredCapacity": 1}}]})],
            jobs: Map::new(),
            node_ids: Vec::new(),
            steps,
            left_out: vec!["a step\nwithout words".to_owned()],
        }
    }

    // spec: SCEN-12
    #[test]
    fn an_incident_becomes_a_scenario_that_plays() {
        let recorded = recorded(
            recording(vec![
                json!({"at": 1500, "nodeDies": "n1"}),
                json!({"at": 1500, "expect": {"trace": {"job": "news/0/encode", "chosen": "n2"}}}),
                // Not what the policy does; and something that cannot be done.
                json!({"at": 9000, "expect": {"trace": {"job": "news/0/encode", "chosen": "n1"}}}),
                json!({"at": 9000, "jobFails": {"job": "other/0/x"}}),
                json!({"at": 9000, "cordon": "n2"}),
            ]),
            None,
        )
        .expect("it plays");
        assert_eq!((recorded.steps, recorded.decisions), (3, 1));
        assert_eq!(recorded.left_out.len(), 3, "{:#?}", recorded.left_out);
        assert!(recorded.left_out[1].contains("the scenario has no bundle \"other\""));
        assert!(recorded.left_out[2].contains("\"chosen\":\"n1\""));
        let text = &recorded.text;
        assert!(
            text.starts_with("# left out: a step without words\n"),
            "{text}"
        );
        assert!(text.contains("at: 1s500ms, nodeDies: n1"), "{text}");
        let run = run_file("incident.yaml", text, Options::default());
        assert_eq!(run.exit_code(), 0, "{}", run.report());
        let trees: Vec<Value> = greenroom_manifest::read("incident.yaml", text).expect("YAML");
        let schema = crate::schema();
        assert_eq!(
            greenroom_manifest::schema::check::fault(&schema, &trees[0]),
            None
        );
    }

    /// Nothing of it stands in the way of a recording, though no person would write it.
    // spec: SCEN-12, SCEN-15
    #[test]
    fn what_a_real_fleet_says_can_be_read() {
        let mut recording = recording(vec![
            json!({"at": 1000, "nodeJoins": {"id": "n4", "pool": "older", "capacity": 1}}),
            json!({"at": 1000, "setTags": {"node": "n2", "tags": {"pool": "oldest"}}}),
            json!({"at": 2000, "setTemplateImages": {"x": ["reg/x:1", "reg/x:1"]}}),
            json!({"at": 3000, "drain": {"node": "n2", "force": false, "strategy": {}}}),
            json!({"at": 4000, "expect": {"drain": {"node": "n2", "phase": "done", "jobs": {}}}}),
            json!({"at": 5000, "migrate": {"job": "news/0/encode", "target": "n3"}}),
            json!({"at": 5000, "abortMigration": {"job": "news/0/encode", "reason": ""}}),
            json!({"at": 5000, "expect": {"migration":
                {"job": "news/0/encode", "phase": "aborted", "abortReason": ""}}}),
        ]);
        recording.nodes[1]["heldImages"] = json!(["reg/y:1", "reg/y:1"]);
        recording
            .nodes
            .push(json!({"id": "n3", "pool": "live", "capacity": 4, "cores": 4}));
        recording
            .nodes
            .push(json!({"id": "none", "pool": "", "capacity": 4}));
        let mut bundle = recording.bundles[0].clone();
        bundle["bundleId"] = "late".into();
        bundle["pool"] = "old".into();
        bundle["resiliencePolicy"] = json!({"pool": "older"});
        recording.bundles.push(bundle);
        let told = recorded(recording, None).expect("it plays");
        assert_eq!(told.left_out, ["a step\nwithout words"], "{}", told.text);
        assert_eq!(told.steps, 8);
        let pools = "unconfiguredPools: [old, older, oldest]";
        assert!(told.text.contains(pools), "{}", told.text);
    }

    // spec: SCEN-12, SCEN-15
    #[test]
    fn a_recording_in_which_nothing_happened_can_be_played() {
        let told = recorded(recording(Vec::new()), None).expect("it plays");
        assert_eq!(told.steps, 0);
        let run = run_file("quiet.yaml", &told.text, Options::default());
        assert_eq!(run.exit_code(), 0, "{}", run.report());
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let mut recording = recording(Vec::new());
        recording.settings = json!({"nonsense": 1});
        let told = recorded(recording, None).expect_err("it cannot be read");
        assert!(told.contains("nonsense"), "{told}");
    }
}
