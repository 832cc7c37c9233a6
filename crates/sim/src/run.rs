//! Plays a scenario from its first step to its last, and tells how it went.

use std::cell::RefCell;
use std::rc::Rc;

use greenroom_manifest::Locations;
use greenroom_policy::{Effect, Event, Policy};
use greenroom_types::{Mono, Now};

use crate::expect::{self, Mismatch};
use crate::format::expect::Expect;
use crate::format::{Deed, Fault, Problems, Scenario, SettingsCase, Step};
use crate::log::{Keep, Log};
use crate::world::{Memory, Refused, Stuck, Unbuilt, World};

/// How to play.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which transitions to keep.
    pub keep: Keep,
}

/// Looks on while a scenario is played, as a recorder does beside the driver of a policy.
pub trait Observer: std::fmt::Debug {
    /// It begins, and ends at this virtual time.
    fn begins(&mut self, _end: Mono) {}
    /// So much of it has passed; said now and then.
    fn passed(&mut self, _at: Mono) {}
    /// So many steps of a recording were taken out so far, because they go differently.
    fn taken_out(&mut self, _steps: usize) {}
    /// The policy is about to be told this.
    fn before(&mut self, _now: Now, _event: &Event, _policy: &Policy) {}
    /// The policy does this.
    fn after(&mut self, _now: Now, _effect: &Effect, _policy: &Policy) {}
}

/// Somebody who looks on at a world and its copies.
pub(crate) type Watcher = Rc<RefCell<Box<dyn Observer>>>;

/// A scenario that was played, or could not be.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name, or that of its file when it has none.
    pub name: String,
    /// Requirement ids that it checks.
    pub spec: Vec<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The transitions that were kept, one a line.
    pub lines: Vec<String>,
}

/// How a scenario ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Everything held.
    Ok,
    /// Something did not.
    Fail(Box<Failure>),
    /// It cannot be read, or asks for what this version does not serve.
    Unreadable(Problems),
}

/// What did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number of the step, from 0; none when it was before the first or after the last.
    pub step: Option<usize>,
    /// Virtual time.
    pub at: Mono,
    /// Everything that did not hold at that step.
    pub mismatches: Vec<Mismatch>,
    /// The last transitions before.
    pub last: Vec<String>,
}

/// Reads a scenario without playing it, and tries whether its fleet can stand as it says (SCEN-13,
/// SCEN-15).
///
/// # Errors
/// All faults, with line and key.
pub fn check_file(file: &str, text: &str) -> Result<Scenario, Problems> {
    prepare(file, text, Options::default()).map(|(scenario, _)| scenario)
}

/// A scenario with its fleet at the beginning; none where its settings are the point.
pub(crate) fn prepare(
    file: &str,
    text: &str,
    options: Options,
) -> Result<(Scenario, Option<Box<World>>), Problems> {
    let scenario = Scenario::read(file, text)?;
    let SettingsCase::Valid(settings) = &scenario.settings else {
        return Ok((scenario, None));
    };
    let memory = memory(&scenario, options);
    match World::new(&scenario, settings, memory, Log::new(options.keep)) {
        Ok(world) => Ok((scenario, Some(Box::new(world)))),
        Err(Unbuilt { path, stuck }) => {
            let fault = Fault::new(path, stuck.to_string());
            Err(Problems::of(file, text, vec![fault]))
        }
    }
}

/// Reads and plays a scenario.
pub fn run_file(file: &str, text: &str, options: Options) -> Run {
    run_observed(file, text, options, None)
}

/// Reads a scenario and plays it before somebody who looks on.
pub fn run_observed(
    file: &str,
    text: &str,
    options: Options,
    observer: Option<Box<dyn Observer>>,
) -> Run {
    let (scenario, world) = match prepare(file, text, options) {
        Ok(prepared) => prepared,
        Err(problems) => {
            return Run {
                name: file.to_owned(),
                spec: Vec::new(),
                outcome: Outcome::Unreadable(problems),
                lines: Vec::new(),
            };
        }
    };
    let (mut outcome, lines) = match (world, &scenario.settings) {
        (Some(mut world), _) => {
            let observer = observer.map(|observer| Rc::new(RefCell::new(observer)));
            begin(&mut world, &scenario, observer);
            let outcome = play_in(&mut world, &scenario);
            (outcome, world.log.into_lines())
        }
        (None, SettingsCase::Faulty { expected, found }) => {
            (judge_settings(expected, found), Vec::new())
        }
        (None, SettingsCase::Valid(_)) => (Outcome::Ok, Vec::new()),
    };
    if let Outcome::Fail(failure) = &mut outcome {
        add_lines(failure, text);
    }
    let name = match scenario.name.as_str() {
        "" => file.to_owned(),
        name => name.to_owned(),
    };
    Run {
        name,
        spec: scenario.spec,
        outcome,
        lines,
    }
}

/// Before somebody who looks on.
pub(crate) fn begin(world: &mut World, scenario: &Scenario, observer: Option<Watcher>) {
    if let (Some(observer), Some(last)) = (&observer, scenario.steps.last()) {
        observer.borrow_mut().begins(Mono(last.at));
    }
    world.observer = observer;
}

fn play_in(world: &mut World, scenario: &Scenario) -> Outcome {
    if let Err(stuck) = world.connect() {
        return fail(None, world.mono(), vec![halt("", &stuck)], world.log.last());
    }
    for (index, step) in scenario.steps.iter().enumerate() {
        if let Err(mismatches) = play_step(world, index, step) {
            return fail(Some(index), world.mono(), mismatches, world.log.last());
        }
    }
    world.look_at_everything();
    let found = world.watch.found();
    if found.is_empty() {
        return Outcome::Ok;
    }
    let mismatch = Mismatch {
        path: String::new(),
        expected: "nothing that must never be".to_owned(),
        found: found.join("; "),
    };
    fail(None, world.mono(), vec![mismatch], world.log.last())
}

fn play_step(world: &mut World, index: usize, step: &Step) -> Result<(), Vec<Mismatch>> {
    reach(world, index, step)?;
    take(world, index, step)
}

/// Lets time pass until a step.
pub(crate) fn reach(world: &mut World, index: usize, step: &Step) -> Result<(), Vec<Mismatch>> {
    let stopped = |stuck: Stuck| vec![halt(&format!("steps[{index}]"), &stuck)];
    world.advance(Mono(step.at)).map_err(stopped)
}

/// Takes a step whose time has come. An expectation leaves the world as it is.
pub(crate) fn take(world: &mut World, index: usize, step: &Step) -> Result<(), Vec<Mismatch>> {
    let path = format!("steps[{index}]");
    let stopped = |stuck: Stuck| vec![halt(&path, &stuck)];
    world.log.step(index, &step.title);
    match &step.deed {
        Deed::Expect(wanted) => check_step(world, wanted, &path),
        Deed::Act(action) => {
            let refused = world.act(step, action).map_err(stopped)?;
            judge_refusal(step, refused, &path)
        }
    }
}

fn check_step(world: &mut World, wanted: &Expect, path: &str) -> Result<(), Vec<Mismatch>> {
    let mismatches = expect::check(world, wanted, &format!("{path}.expect"));
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(mismatches)
    }
}

/// A refusal that was not announced fails the scenario, and one that was announced and did not come.
fn judge_refusal(step: &Step, refused: Option<Refused>, path: &str) -> Result<(), Vec<Mismatch>> {
    let wanted = step.refused.as_deref();
    let met = refused.as_ref().map(|refused| refused.code.as_str());
    if wanted == met {
        return Ok(());
    }
    let found = match refused {
        Some(refused) => format!("refused {}: {}", refused.code, refused.message),
        None => "accepted".to_owned(),
    };
    Err(vec![Mismatch {
        path: format!("{path}.refused"),
        expected: wanted.map_or_else(|| "accepted".to_owned(), |code| format!("refused {code}")),
        found,
    }])
}

fn judge_settings(expected: &[String], found: &[String]) -> Outcome {
    let sorted = |list: &[String]| {
        let mut list = list.to_vec();
        list.sort();
        list.join(", ")
    };
    let (expected, found) = (sorted(expected), sorted(found));
    if expected == found {
        return Outcome::Ok;
    }
    let mismatch = Mismatch {
        path: "expectSettingsErrors".to_owned(),
        expected: format!("[{expected}]"),
        found: format!("[{found}]"),
    };
    fail(None, Mono(0), vec![mismatch], Vec::new())
}

pub(crate) fn halt(path: &str, stuck: &Stuck) -> Mismatch {
    Mismatch {
        path: path.to_owned(),
        expected: "it can be played".to_owned(),
        found: stuck.to_string(),
    }
}

fn fail(step: Option<usize>, at: Mono, mismatches: Vec<Mismatch>, last: Vec<String>) -> Outcome {
    Outcome::Fail(Box::new(Failure {
        step,
        at,
        mismatches,
        last,
    }))
}

/// Puts the line of the file before each path.
fn add_lines(failure: &mut Failure, text: &str) {
    let Ok(places) = Locations::of(text) else {
        return;
    };
    for mismatch in &mut failure.mismatches {
        if let Some(place) = places.position(0, &mismatch.path)
            && !mismatch.path.is_empty()
        {
            mismatch.path = format!("line {}, {}", place.line, mismatch.path);
        }
    }
}

/// What has to be remembered for the expectations of a scenario.
fn memory(scenario: &Scenario, options: Options) -> Memory {
    let expects = || {
        scenario.steps.iter().filter_map(|step| match &step.deed {
            Deed::Expect(expect) => Some(expect),
            Deed::Act(_) => None,
        })
    };
    Memory {
        calls: expects().any(|expect| expect.calls.is_some()),
        callbacks: expects().any(|expect| expect.callbacks.is_some()),
        decisions: options.keep == Keep::Json || expects().any(|expect| expect.trace.is_some()),
    }
}

// === impl Run ===

impl Run {
    /// The report: `ok NAME`, or `FAIL NAME` with all that did not hold and the last transitions, or
    /// what is wrong with the file.
    pub fn report(&self) -> String {
        match &self.outcome {
            Outcome::Ok => format!("ok {}\n", self.name),
            Outcome::Unreadable(problems) => format!("{problems}\n"),
            Outcome::Fail(failure) => format!("FAIL {}\n{failure}", self.name),
        }
    }

    /// The exit code that this run alone would give: 0, 1 or 2.
    pub const fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::Ok => 0,
            Outcome::Fail(_) => 1,
            Outcome::Unreadable(_) => 2,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = crate::log::time(self.at);
        match self.step {
            Some(step) => writeln!(f, "  step {step} at {at}")?,
            None => writeln!(f, "  at {at}")?,
        }
        for mismatch in &self.mismatches {
            if !mismatch.path.is_empty() {
                writeln!(f, "  {}", mismatch.path)?;
            }
            writeln!(f, "    expected: {}", mismatch.expected)?;
            writeln!(f, "    found:    {}", mismatch.found)?;
        }
        if !self.last.is_empty() {
            writeln!(f, "  the last {} transitions:", self.last.len())?;
            for line in &self.last {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "\
scenario: 1
settings:
  placementPools: [{name: live, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}]
nodes: [{id: n, pool: live, capacity: 4}]
steps:
  - {at: 1h, expect: {invariants: ok}}
  - {at: 240h, expect: {invariants: ok}}
";

    #[derive(Clone, Debug, Default)]
    struct Seen(Rc<RefCell<(Vec<Mono>, Vec<Mono>)>>);

    impl Observer for Seen {
        fn begins(&mut self, end: Mono) {
            self.0.borrow_mut().0.push(end);
        }
        fn passed(&mut self, at: Mono) {
            self.0.borrow_mut().1.push(at);
        }
    }

    // spec: SCEN-16
    #[test]
    fn who_looks_on_hears_of_a_long_run_while_it_goes_on() {
        let seen = Seen::default();
        let observer: Box<dyn Observer> = Box::new(seen.clone());
        let run = run_observed("long.yaml", LONG, Options::default(), Some(observer));
        assert_eq!(run.exit_code(), 0, "{}", run.report());
        let seen = seen.0.borrow();
        assert_eq!(seen.0, [Mono(240 * 3_600_000)]);
        assert!(seen.1.len() > 2, "{:?}", seen.1);
        assert!(seen.1.windows(2).all(|two| two[0] < two[1]), "{:?}", seen.1);
    }

    // spec: SCEN-16
    #[test]
    fn a_run_ends_when_too_much_happens() {
        let (scenario, world) = prepare("long.yaml", LONG, Options::default()).expect("it is read");
        let mut world = world.expect("it has a fleet");
        world.firings = 1_000;
        let Outcome::Fail(failure) = play_in(&mut world, &scenario) else {
            panic!("it went on");
        };
        let found = &failure.mismatches[0].found;
        assert!(
            found.starts_with("more than 1000 timers fired by 16:"),
            "{found}"
        );
    }

    // spec: SCEN-16
    #[test]
    fn what_would_last_too_long_is_refused() {
        let told = |text: &str| {
            check_file("long.yaml", text)
                .expect_err("too long")
                .to_string()
        };
        let days = LONG.replace("240h", "240000h");
        assert_eq!(
            told(&days),
            "long.yaml:7:6: steps[1].at: 240000h is too late: a scenario lasts at most 8784h"
        );
        let many = format!(
            "{LONG}{}",
            "  - {expect: {invariants: ok}}\n".repeat(19_999)
        );
        assert!(told(&many).contains("20001 steps; a scenario has at most 20000"));
    }
}
