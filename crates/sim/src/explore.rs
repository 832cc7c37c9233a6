//! Random exploration: fleets, bundles and courses of events drawn from a seed, played against the
//! real cores, with everything that must hold looked at after each event, and an end at which it must
//! come to rest with everything running that can.
//!
//! A seed gives the same run on every machine. A course that fails is shortened while it still fails
//! and written as a scenario file, so that a fault that was found stays found.

mod bundle;
mod converge;
mod deed;
mod dice;
pub(crate) mod fleet;
mod play;
mod shrink;
pub(crate) mod write;

use deed::Chooser;
use dice::Dice;
use play::{Played, Steps, play};
use shrink::Failed;

use crate::log::Keep;
use crate::run::{Options, Outcome, run_file};

/// A seed that was played.
#[derive(Clone, Debug)]
pub struct Explored {
    /// The seed.
    pub seed: u64,
    /// Steps that were played.
    pub steps: usize,
    /// What must not be, if anything was.
    pub fault: Option<String>,
}

/// A fault that a seed shows, made short.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// What sort of fault it is, without names and numbers.
    pub kind: String,
    /// The fault.
    pub fault: String,
    /// The last transitions before it.
    pub last: Vec<String>,
    /// The scenario file.
    pub scenario: String,
    /// Playing the file fails as well. Where it does not, the seed alone shows the fault.
    pub kept: bool,
}

/// Plays a seed.
pub fn explore(seed: u64) -> Explored {
    let (_, _, played) = course(seed, Keep::Last);
    Explored {
        seed,
        steps: played.steps.len(),
        fault: played.fault.map(|fault| fault.text),
    }
}

/// Every transition of a seed's run, one a line, as JSON.
pub fn transitions(seed: u64) -> Vec<String> {
    course(seed, Keep::Json).2.lines
}

/// The shortest course like that of the seed which shows its fault; none if it has none.
pub fn find(seed: u64) -> Option<Found> {
    let (head, strong, played) = course(seed, Keep::Last);
    played.fault.as_ref()?;
    let failed = shrink::shrink(Failed {
        head,
        strong,
        played,
    });
    let fault = failed.played.fault?;
    let mut steps = failed.played.steps;
    steps.extend(failed.played.end);
    steps.extend(fault.proof);
    let name = format!("found by seed {seed}: {}", fault.kind);
    let steps = write::that_mean_something(steps, &failed.head.settings);
    let scenario = write::scenario(&name, &fault.text, &failed.head, &steps);
    let kept = std::panic::catch_unwind(|| {
        let run = run_file("found.yaml", &scenario, Options::default());
        matches!(run.outcome, Outcome::Fail(_))
    });
    Some(Found {
        seed,
        kind: fault.kind,
        fault: fault.text,
        last: failed.played.last,
        scenario,
        kept: kept.unwrap_or(true),
    })
}

/// The whole course of a seed, with its end, as a scenario file.
pub fn as_scenario(seed: u64) -> String {
    let (head, _, played) = course(seed, Keep::Last);
    let steps = played.steps.into_iter().chain(played.end).collect();
    let steps = write::that_mean_something(steps, &head.settings);
    write::scenario(&format!("seed {seed}"), "a random course", &head, &steps)
}

fn course(seed: u64, keep: Keep) -> (fleet::Head, bool, Played) {
    let head = fleet::draw(seed);
    let strong = Dice::new(seed, 5).chance(50);
    let chooser = Chooser::new(seed, &head.settings);
    let played = play(&head, Steps::Drawn(Box::new(chooser)), strong, keep);
    (head, strong, played)
}
