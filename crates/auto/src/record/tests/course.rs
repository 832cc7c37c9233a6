//! A course that is played with the recorder beside its policy, and what was recorded that is played
//! again: both must come to the same decisions, in the same order for each thing that was decided about.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use greenroom_policy::drain::DrainPhase;
use greenroom_policy::event::ConnectionState;
use greenroom_policy::{Callback, Effect, Event, Policy};
use greenroom_sim::{Keep, Observer, Options, Outcome, recorded, run_file, run_observed};
use greenroom_types::call::Call;
use greenroom_types::{Mono, NodeId, Now, Tags};
use serde_json::{Value, json};

use super::super::Recorder;
use super::super::words::path_of;

/// Looks on at a course, with the recorder beside it.
#[derive(Debug)]
struct Seen {
    settings: Value,
    recorder: Recorder,
    last: Now,
    decisions: Vec<(Mono, String, Value)>,
    bought: Vec<(Mono, NodeId, String)>,
}

#[derive(Clone, Debug)]
struct Beside(Rc<RefCell<Seen>>);

impl Beside {
    fn of(settings: &Value) -> Self {
        Self(Rc::new(RefCell::new(Seen {
            settings: settings.clone(),
            recorder: Recorder::new(settings.clone()),
            last: Now::default(),
            decisions: Vec::new(),
            bought: Vec::new(),
        })))
    }
}

impl Observer for Beside {
    fn before(&mut self, now: Now, event: &Event, policy: &Policy) {
        let mut seen = self.0.borrow_mut();
        // A fresh policy has a recorder of its own.
        if matches!(event, Event::ConnectionState(ConnectionState::Connecting)) {
            seen.recorder = Recorder::new(seen.settings.clone());
            seen.decisions.clear();
            seen.bought.clear();
        }
        seen.recorder.before(now, event, policy);
        seen.last = now;
    }

    fn after(&mut self, now: Now, effect: &Effect, policy: &Policy) {
        let mut seen = self.0.borrow_mut();
        seen.recorder.after(now, effect, policy);
        seen.note(now, effect, policy);
    }
}

impl Seen {
    fn note(&mut self, now: Now, effect: &Effect, policy: &Policy) {
        let of = |tags: &Tags| format!("{}/{}", tags["pool"], tags["tier"]);
        match effect {
            Effect::Call {
                call: Call::CreateAwsNode(create),
                ..
            } => self
                .bought
                .push((now.mono, create.node_id.clone(), of(&create.tags))),
            Effect::Call {
                call: Call::CreateOciNode(create),
                ..
            } => self
                .bought
                .push((now.mono, create.node_id.clone(), of(&create.tags))),
            Effect::Callback(callback) => {
                if let Some((subject, what)) = decided(callback, policy) {
                    self.decisions.push((now.mono, subject, what));
                }
            }
            _ => {}
        }
    }

    /// What was decided from a moment on, by what it is about.
    fn decided_since(&self, from: Mono) -> BTreeMap<&str, Vec<String>> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names: BTreeMap<&str, String> = BTreeMap::new();
        for (_, node_id, tier) in self.bought.iter().filter(|(at, ..)| *at >= from) {
            let count = counts.entry(tier).or_default();
            *count += 1;
            names.insert(node_id.as_str(), format!("@tier/{tier}/{count}"));
        }
        let mut told: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (_, subject, what) in self.decisions.iter().filter(|(at, ..)| *at >= from) {
            let mut what = what.clone();
            if let Some(name) = what["node"].as_str().and_then(|id| names.get(id)) {
                what["node"] = name.as_str().into();
            }
            // How often it looked in vain depends on what else it was told meanwhile.
            let list = told.entry(subject).or_default();
            let what = what.to_string();
            let is_failure = what.contains("\"failure\"");
            if list.last() != Some(&what) && !(list.is_empty() && is_failure) {
                list.push(what);
            }
        }
        told.retain(|_, list| !list.is_empty());
        told
    }
}

fn decided(callback: &Callback, policy: &Policy) -> Option<(String, Value)> {
    match callback {
        Callback::OnPlacementDecision(info) => {
            let job = &info.job_id;
            Some((
                format!("place {job}"),
                json!({"kind": info.kind, "node": info.node_id, "reason": info.reason}),
            ))
        }
        Callback::OnMigrationCompleted { migration_id } => {
            let migration = policy.migration_by_id(migration_id)?;
            let job = path_of(&migration.source_job_id, policy)?;
            Some((format!("migration of {job}"), json!({"phase": "done"})))
        }
        Callback::OnMigrationAborted { migration_id, .. } => {
            let migration = policy.migration_by_id(migration_id)?;
            let job = path_of(&migration.source_job_id, policy)?;
            Some((format!("migration of {job}"), json!({"phase": "aborted"})))
        }
        Callback::OnDrainProgress(drain) => {
            let is_over = matches!(
                drain.phase,
                DrainPhase::Done | DrainPhase::Partial | DrainPhase::Failed
            );
            is_over.then(|| {
                let node = &drain.node_id;
                (
                    "drain".to_owned(),
                    json!({"node": node, "phase": drain.phase}),
                )
            })
        }
        _ => None,
    }
}

/// What was recorded of a course, as a file that plays.
pub(super) struct Again {
    pub(super) text: String,
    /// What the file says that it leaves out.
    pub(super) left_out: Vec<String>,
    /// Decisions that were taken in both.
    pub(super) decisions: usize,
}

/// Plays a course, and what is recorded of its last minutes; why they are not alike, if they are not.
pub(super) fn again(text: &str, minutes: u64) -> Result<Option<Again>, String> {
    let tree: Value = greenroom_manifest::read("course.yaml", text)
        .map_err(|told| format!("{told:?}"))?
        .remove(0);
    let first = Beside::of(&tree["settings"]);
    let options = Options::default();
    let run = run_observed("course.yaml", text, options, Some(Box::new(first.clone())));
    if !matches!(run.outcome, Outcome::Ok) {
        return Err(run.report());
    }
    let seen = first.0.borrow();
    let mut end = seen.last;
    end.mono.0 += 1;
    let Some(recording) = seen.recorder.recording(end, minutes) else {
        return Ok(None);
    };
    let mut pictures = seen.recorder.pictures.iter();
    let from = pictures
        .find(|picture| picture.at.wall == recording.start)
        .map(|picture| picture.at.mono)
        .expect("it begins with a picture");
    let recorded = recorded(
        greenroom_sim::Recording {
            name: "again".to_owned(),
            start: recording.start,
            settings: recording.settings.clone(),
            nodes: recording.nodes,
            bundles: recording.bundles,
            jobs: recording.jobs,
            node_ids: recording.node_ids,
            steps: recording.steps,
            left_out: recording.left_out,
        },
        None,
    )?;
    let again = Beside::of(&recording.settings);
    let run = run_observed(
        "again.yaml",
        &recorded.text,
        options,
        Some(Box::new(again.clone())),
    );
    assert!(matches!(run.outcome, Outcome::Ok), "{}", run.report());
    // What the recorder told itself, a scenario does not know: it goes as it goes.
    let is_told = recorded.left_out.iter().any(|note| !note.starts_with('{'));
    if let Some(note) = recorded.left_out.first().filter(|_| !is_told) {
        let lines = Options { keep: Keep::Lines };
        let went = |text: &str| run_file("course.yaml", text, lines).lines.join("\n");
        let (first, second) = (went(text), went(&recorded.text));
        let told = format!(
            "left out: {note}\n{}\n{second}\nIt went:\n{first}",
            recorded.text
        );
        return Err(told);
    }
    let again = again.0.borrow();
    let (was, is) = (seen.decided_since(from), again.decided_since(Mono(0)));
    if was != is && recorded.left_out.is_empty() {
        let subjects: BTreeSet<&&str> = was.keys().chain(is.keys()).collect();
        let differs: Vec<String> = subjects
            .into_iter()
            .filter(|subject| was.get(*subject) != is.get(*subject))
            .map(|subject| {
                let (was, is) = (was.get(subject), is.get(subject));
                format!("{subject}: was {was:?}, is {is:?}")
            })
            .collect();
        let differs = differs.join("\n");
        return Err(format!("decided otherwise: {differs}\n{}", recorded.text));
    }
    Ok(Some(Again {
        text: recorded.text,
        left_out: recorded.left_out,
        decisions: was.values().map(Vec::len).sum(),
    }))
}
