//! Plays a recording once and finds all of its steps that go differently in virtual time.
//!
//! An expectation that fails leaves the world as it is, so the play goes on past it. A step that acts and
//! fails may have changed it, so the play goes on from a copy that was made before, without that step. So
//! the same steps are found as if each were taken out by a play of its own, from the beginning.

use std::collections::BTreeSet;
use std::fmt;

use crate::expect::Mismatch;
use crate::format::{Deed, Problems, Scenario, Step};
use crate::run::{self, Options, Watcher};
use crate::world::World;

/// Steps between two copies of the world: a copy of a large fleet takes as long as some of its steps.
const APART: usize = 128;

/// A step that is to be taken out.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) step: usize,
    pub(super) why: Why,
}

/// Why it is.
#[derive(Debug)]
pub(super) enum Why {
    /// It goes differently.
    Differs(String),
    /// It means nothing without one that goes differently.
    Senseless(String),
}

/// Why there was no play.
#[derive(Debug)]
pub(super) enum Unplayed {
    /// The file cannot be read.
    Unreadable(Problems),
    /// It is no single step that stands in the way.
    Stuck(String),
}

/// A recording that is being played.
struct Play {
    scenario: Scenario,
    world: World,
    /// The world as it was before a step.
    copy: (usize, World),
    gone: BTreeSet<usize>,
    differences: Vec<Difference>,
    /// Steps that went differently in plays before, and in this one.
    differ: usize,
}

/// Plays a recording; where more than `most` steps go differently, with those `before`, its beginning.
pub(super) fn through(
    name: &str,
    text: &str,
    observer: Option<&Watcher>,
    before: usize,
    most: usize,
) -> Result<Vec<Difference>, Unplayed> {
    let (scenario, world) =
        run::prepare(name, text, Options::default()).map_err(Unplayed::Unreadable)?;
    let Some(mut world) = world else {
        return Ok(Vec::new());
    };
    run::begin(&mut world, &scenario, observer.cloned());
    world
        .connect()
        .map_err(|stuck| Unplayed::Stuck(words(&[run::halt("", &stuck)])))?;
    let mut play = Play {
        scenario,
        copy: (0, (*world).clone()),
        world: *world,
        gone: BTreeSet::new(),
        differences: Vec::new(),
        differ: before,
    };
    for index in 0..play.scenario.steps.len() {
        if !play.gone.contains(&index) && (!play.take(index) || play.differ > most) {
            break;
        }
    }
    // The end is looked at by a play without differences.
    if !play.differences.is_empty() {
        return Ok(play.differences);
    }
    play.world.look_at_everything();
    match play.world.watch.found() {
        [] => Ok(play.differences),
        found => Err(Unplayed::Stuck(found.join("; "))),
    }
}

// === impl Play ===

impl Play {
    /// Takes a step, or takes it out; true if the play can go on.
    fn take(&mut self, index: usize) -> bool {
        if index - self.copy.0 >= APART {
            self.copy = (index, self.world.clone());
        }
        let step = &self.scenario.steps[index];
        if let Err(mismatches) = run::reach(&mut self.world, index, step) {
            return self.leave_out(index, &mismatches);
        }
        if let Some(observer) = &self.world.observer {
            observer.borrow_mut().passed(self.world.mono());
        }
        match run::take(&mut self.world, index, step) {
            Ok(()) => true,
            Err(mismatches) if matches!(step.deed, Deed::Expect(_)) => {
                self.note_difference(index, &mismatches);
                true
            }
            Err(mismatches) => self.leave_out(index, &mismatches),
        }
    }

    fn note(&mut self, step: usize, why: Why) {
        self.gone.insert(step);
        self.differences.push(Difference { step, why });
    }

    fn note_difference(&mut self, index: usize, mismatches: &[Mismatch]) {
        self.note(index, Why::Differs(words(mismatches)));
        self.differ += 1;
        if let Some(observer) = &self.world.observer {
            observer.borrow_mut().taken_out(self.differ);
        }
    }

    /// Goes back to before a step that may have changed the world, and on without it.
    fn leave_out(&mut self, index: usize, mismatches: &[Mismatch]) -> bool {
        self.note_difference(index, mismatches);
        let (first, copy) = &self.copy;
        let mut world = copy.clone();
        for at in (*first..index).filter(|at| !self.gone.contains(at)) {
            let step = &self.scenario.steps[at];
            let again =
                run::reach(&mut world, at, step).and_then(|()| run::take(&mut world, at, step));
            assert!(again.is_ok(), "step {at} goes differently: {again:?}");
        }
        // Where one goes differently the next often does.
        self.copy = (index + 1, world.clone());
        self.world = world;
        self.leave_out_senseless(index)
    }

    /// Takes out what means nothing without the steps that were; false if that was played already.
    fn leave_out_senseless(&mut self, index: usize) -> bool {
        loop {
            let steps = self.scenario.steps.iter().enumerate();
            let (numbers, steps): (Vec<usize>, Vec<Step>) = steps
                .filter(|(at, _)| !self.gone.contains(at))
                .map(|(at, step)| (at, step.clone()))
                .unzip();
            let left = Scenario {
                steps,
                ..self.scenario.clone()
            };
            let senseless = left.senseless_steps();
            let Some(first) = senseless.keys().next() else {
                return true;
            };
            if numbers[*first] < index {
                return false;
            }
            for (at, messages) in senseless.into_iter().rev() {
                self.note(numbers[at], Why::Senseless(messages.join("; ")));
            }
        }
    }
}

fn words(mismatches: &[Mismatch]) -> String {
    let told: Vec<String> = mismatches
        .iter()
        .map(|it| format!("expected {}, found {}", it.expected, it.found))
        .collect();
    told.join("; ")
}

// === impl Why ===

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(words) => write!(f, "in virtual time: {words}"),
            Self::Senseless(words) => f.write_str(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use greenroom_types::Mono;
    use serde_json::{Map, Value, json};

    use super::super::{Recording, file, recorded, take_out};
    use crate::format::span::Span;
    use crate::run::{Observer, Options, Outcome, run_file};

    /// Most of an hour in which much is otherwise in virtual time.
    fn course() -> Recording {
        let node = |id: &str| json!({"id": id, "pool": "live", "capacity": 4, "cores": 4});
        let bundle = |id: String| {
            json!({"bundleId": id, "pool": "live", "jobs": [
                {"jobName": "e", "requirements": {"requiredCapacity": 1}}]})
        };
        let mut first = node("n1");
        first["jobs"] = json!(["b0/0/e"]);
        let mut steps = vec![json!({"at": 0, "cordon": "n3"})];
        for round in 1..=8_u64 {
            let at = round * 360_000;
            let id = format!("b{round}");
            let job = format!("{id}/0/e");
            let on =
                |node: &str| json!({"jobs": {job.as_str(): {"state": "running", "node": node}}});
            let more = [
                json!({"hold": ["jobRunning"]}),
                json!({"createBundle": bundle(id.clone())}),
                json!({"release": ["jobRunning"]}),
                json!({"expect": on("n1")}),
                json!({"expect": on("n2")}),
                // It stands so already, or no more.
                json!({"jobRunning": job}),
                json!({"cordon": "n3"}),
                json!({"migrate": {"job": job, "target": "n1"}}),
                json!({"migrate": {"job": job, "target": "n2"}, "refused": "migrationInFlight"}),
                json!({"deleteBundle": id}),
            ];
            steps.extend(more.into_iter().zip(at..).map(|(mut step, at)| {
                step["at"] = at.into();
                step
            }));
        }
        // It runs elsewhere, so there is no such node, and what follows means nothing.
        let mut ninth = node("n9");
        ninth["jobs"] = json!(["b0/0/e"]);
        for (step, at) in [
            json!({"nodeJoins": ninth}),
            json!({"cordon": "n9"}),
            json!({"expect": {"nodes": {"n9": {"cordoned": true}}}}),
            json!({"uncordon": "n3"}),
            json!({"expect": {"invariants": "ok"}}),
        ]
        .into_iter()
        .zip(3_000_000..)
        {
            let mut step = step;
            step["at"] = at.into();
            steps.push(step);
        }
        Recording {
            name: "incident".to_owned(),
            start: "2026-11-29T20:00:00Z".parse().expect("an instant"),
            settings: json!({"placementPools": [{"name": "live", "tiers": [
                {"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]}]}),
            nodes: vec![first, node("n2"), node("n3")],
            bundles: vec![bundle("b0".to_owned())],
            jobs: Map::new(),
            node_ids: Vec::new(),
            steps,
            left_out: Vec::new(),
        }
    }

    /// The same by a play for each step that is taken out.
    fn one_by_one(mut recording: Recording) -> (String, Vec<String>) {
        let mut left_out = Vec::new();
        for step in &mut recording.steps {
            let at = step["at"].as_u64().expect("a time");
            step["at"] = Span(at).to_string().into();
        }
        loop {
            let text = file(&recording, &left_out);
            match run_file(&recording.name, &text, Options::default()).outcome {
                Outcome::Ok => return (text, left_out),
                Outcome::Unreadable(problems) => {
                    take_out(&problems, &mut recording.steps, &mut left_out).expect("of steps");
                }
                Outcome::Fail(failure) => {
                    let told = failure.mismatches.iter();
                    let told: Vec<String> = told
                        .map(|it| format!("expected {}, found {}", it.expected, it.found))
                        .collect();
                    let step: Value = recording.steps.remove(failure.step.expect("of a step"));
                    left_out.push(format!("{step}, for in virtual time: {}", told.join("; ")));
                }
            }
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Seen(Rc<RefCell<(Vec<Mono>, usize, usize)>>);

    impl Observer for Seen {
        fn begins(&mut self, end: Mono) {
            self.0.borrow_mut().0.push(end);
        }
        fn passed(&mut self, _: Mono) {
            self.0.borrow_mut().1 += 1;
        }
        fn taken_out(&mut self, steps: usize) {
            self.0.borrow_mut().2 = steps;
        }
    }

    // spec: SCEN-12, SCEN-16
    #[test]
    fn one_play_finds_what_a_play_for_each_would() {
        let (text, left_out) = one_by_one(course());
        let seen = Seen::default();
        let told = recorded(course(), Some(Box::new(seen.clone()))).expect("it plays");
        assert_eq!(told.left_out, left_out);
        assert_eq!(told.text, text);
        let seen = seen.0.borrow();
        let differ = left_out.iter().filter(|it| it.contains("in virtual time"));
        let differ = differ.count();
        assert!(
            differ >= 24,
            "{differ} of {}: {left_out:#?}",
            left_out.len()
        );
        assert!(left_out.len() >= differ + 2, "{left_out:#?}");
        assert_eq!(
            seen.0.len(),
            2,
            "one that finds them, and one that shows that the rest plays"
        );
        assert!(seen.1 > told.steps, "{} words", seen.1);
        assert_eq!(seen.2, differ);
    }
}
