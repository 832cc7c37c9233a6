//! What happened lately, kept so that an incident becomes a scenario (SCEN-12).
//!
//! Before an input is handled, what it says about the world or what an operator asks is written down
//! in the words of a scenario's step; after it, what was decided. In calm moments the fleet and the
//! bundles are kept as well, and a recording goes on from such a picture. What jobs run is left out:
//! a scenario is about where they run, and is handed to others.

mod calls;
mod decided;
mod inventory;
mod picture;
mod replies;
mod stream;
mod take;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use greenroom_policy::event::{ApiId, CallId};
use greenroom_policy::{Event, Policy};
use greenroom_types::bundle::BundleStatus;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::NodeMetadata;
use greenroom_types::{BundleId, JobId, JobName, Millis, Mono, NodeId, Now, StartId, Tags, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use decided::Subject;
use picture::Picture;
use replies::{Asked, Bought};
use words::{Versions, path_of};

/// Steps that are kept; with the oldest goes what began before it.
const STEPS: usize = 20_000;
/// In so short a time a real fleet follows what a scenario does with one step.
const AT_ONCE: Millis = Millis(100);
/// A wall clock that is so far from where it was, in milliseconds, was set.
const CLOCK_SET: i64 = 1_000;

/// The last minutes as the parts of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    /// Wall time at its beginning.
    pub start: Wall,
    /// The policy's settings, without the Manager's address.
    pub settings: Value,
    /// Nodes that ran at the beginning.
    pub nodes: Vec<Value>,
    /// Bundles that were there.
    pub bundles: Vec<Value>,
    /// How single jobs stood, where that is not as their bundle says.
    #[serde(default)]
    pub jobs: Map<String, Value>,
    /// What the ids of the nodes began with that the policy asked for, in that order.
    #[serde(default)]
    pub node_ids: Vec<String>,
    /// What happened and what was decided, each with its time in milliseconds in `at`.
    pub steps: Vec<Value>,
    /// What a scenario has no words for.
    pub left_out: Vec<String>,
}

/// Keeps what happens.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    settings: Value,
    pictures: VecDeque<Picture>,
    /// When the first picture was tried.
    due: Option<Mono>,
    /// When a picture was tried last.
    tried: Option<Mono>,
    steps: VecDeque<Step>,
    /// Bundles as they were seen last.
    bundles: BTreeMap<BundleId, Arc<BundleStatus>>,
    versions: Versions,
    /// Jobs that began anew with the last change of their bundle.
    begun_anew: BTreeSet<(BundleId, JobName)>,
    /// Inventories as they were seen last.
    inventories: BTreeMap<NodeId, Arc<NodeInventory>>,
    /// Nodes that stand in the last picture or came by themselves since, whether or not they run now;
    /// the others were bought.
    known: BTreeSet<NodeId>,
    /// Nodes that came and have not said what they have.
    joining: BTreeMap<NodeId, Arc<NodeMetadata>>,
    /// Nodes that are cut off: what follows of that, a scenario does by itself.
    cut_off: BTreeSet<NodeId>,
    /// Tags of each node as they were seen last.
    tags: BTreeMap<NodeId, Tags>,
    /// Nodes that the policy ends itself, and whose end was not told so far.
    ending: BTreeSet<NodeId>,
    /// Nodes that are stopping or stopped.
    gone: BTreeSet<NodeId>,
    /// Nodes that were told to end, by whomever.
    told_to_end: BTreeSet<NodeId>,
    /// Nodes that the policy asked for since the oldest picture.
    bought: BTreeMap<NodeId, Bought>,
    /// Its calls without an answer.
    asked: BTreeMap<CallId, Asked>,
    /// Instances that the policy stops itself.
    stops: BTreeSet<(JobId, NodeId)>,
    /// Jobs to which the policy itself gives a verdict.
    verdicts: BTreeSet<JobId>,
    /// Starts whose rejection was written down; the Manager tells of each twice.
    rejected: BTreeSet<StartId>,
    /// Starts that are over as their job's history tells; inventories tell of it as well.
    over: BTreeSet<StartId>,
    /// Images that were asked for and are not there so far, by node.
    pulls: BTreeMap<NodeId, BTreeSet<String>>,
    /// By how much the wall clock is ahead of the other.
    ahead: Option<i64>,
    /// The input that is handled.
    input: Input,
    /// What failed lately, by what it is about.
    failures: BTreeMap<String, Mono>,
    /// The last step that did something.
    acted: Option<Input>,
    /// What was told of what followed from the place, by what that is about, with the places of the steps.
    told: (u64, BTreeMap<Subject, u64>),
    /// When something was told last.
    told_at: Mono,
    /// Place of the next step.
    next_place: u64,
    /// Entries of each job's history that were looked at.
    seen: BTreeMap<JobId, usize>,
    /// Jobs that wait to be started by hand.
    dormant: BTreeSet<JobId>,
    /// Jobs that have their verdict.
    judged: BTreeSet<JobId>,
    /// When each bundle was last updated.
    updated: BTreeMap<BundleId, Mono>,
}

#[derive(Debug)]
struct Step {
    at: Now,
    /// Steps stand in the order of their places.
    place: u64,
    what: Result<Value, String>,
    /// The call that it is; a refused one is taken out again.
    api: Option<ApiId>,
}

/// What the policy was told, or a step that did something.
#[derive(Clone, Copy, Debug, Default)]
struct Input {
    at: Now,
    /// The place ahead of it and of all that follows from it.
    place: u64,
    /// The call that it is.
    api: Option<ApiId>,
}

// === impl Recorder ===

impl Recorder {
    pub(crate) fn new(mut settings: Value) -> Self {
        if let Value::Object(keys) = &mut settings {
            keys.remove("url");
        }
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Looks at an input ahead of the policy.
    pub(crate) fn before(&mut self, now: Now, event: &Event, policy: &Policy) {
        if !policy.is_live() {
            return;
        }
        self.picture(now, policy);
        self.of_clock(now);
        self.input = Input {
            at: now,
            place: self.next_place,
            api: None,
        };
        match event {
            Event::Stream(event) => self.of_stream(now, event, policy),
            Event::Reply { call_id, result } => self.of_reply(now, *call_id, result, policy),
            Event::Api { id, call } => {
                self.input.api = Some(*id);
                if let Some(what) = self.of_call(call, policy) {
                    self.push(now, what, Some(*id));
                }
            }
            _ => {}
        }
    }

    /// Something failed: the policy thinks of that for a while.
    fn failed(&mut self, now: Now, what: impl Into<String>) {
        self.failures.insert(what.into(), now.mono);
    }

    /// Somebody set the wall clock, after the input before.
    fn of_clock(&mut self, now: Now) {
        let mono = i64::try_from(now.mono.0).unwrap_or(i64::MAX);
        let ahead = now.wall.0.saturating_sub(mono);
        let jump = ahead.saturating_sub(*self.ahead.get_or_insert(ahead));
        if jump.abs() >= CLOCK_SET {
            self.ahead = Some(ahead);
            let jump = format!("{}{}ms", if jump < 0 { "-" } else { "+" }, jump.abs());
            let before = self.input.at;
            self.push(before, Ok(json!({"clock": {"wallJump": jump}})), None);
        }
    }

    fn push(&mut self, at: Now, what: Result<Value, String>, api: Option<ApiId>) {
        if self.pictures.is_empty() {
            return;
        }
        self.make_room();
        // Between two there is a place for what turns out to have come before.
        let place = self.next_place + 1;
        self.next_place += 2;
        if what.as_ref().is_ok_and(|what| what.get("expect").is_none()) {
            let place = place - 1;
            self.acted = Some(Input { at, place, api });
        }
        self.steps.push_back(Step {
            at,
            place,
            what,
            api,
        });
    }

    /// What the present input follows from: in a scenario all that a step leads to at once is of the step.
    fn cause(&self) -> Input {
        let is_of_it = |acted: &Input| (self.input.at.mono - acted.at.mono) <= AT_ONCE;
        Input {
            api: self.input.api,
            ..self.acted.filter(is_of_it).unwrap_or(self.input)
        }
    }

    /// Writes down that something will be refused, ahead of what asks for it. That may be a timer of the
    /// policy: those due at an instant fire before the steps of that instant, so it stands earlier.
    fn put(&mut self, input: Input, what: Value) {
        let Some(picture) = self.pictures.back() else {
            return;
        };
        let mut at = input.at;
        if at.mono > picture.at.mono {
            at.mono.0 -= 1;
        }
        self.make_room();
        let first = self
            .steps
            .partition_point(|step| step.at.mono < input.at.mono);
        // Steps stand at odd places.
        let ahead = self.steps.get(first).map(|step| step.place & !1);
        let place = ahead.map_or(input.place, |ahead| ahead.min(input.place));
        let index = self.steps.partition_point(|step| step.place <= place);
        let step = Step {
            at,
            place,
            what: Ok(what),
            api: None,
        };
        self.steps.insert(index, step);
    }

    /// Index of the first step that follows from this.
    fn after_place(&self, input: Input) -> usize {
        self.steps.partition_point(|step| step.place <= input.place)
    }

    fn make_room(&mut self) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
            // A picture without all that followed it leads nowhere.
            let oldest = self.steps.front().map(|step| step.place);
            self.pictures
                .retain(|picture| oldest.is_none_or(|oldest| picture.place > oldest));
            self.forget_bought();
        }
    }

    /// How a scenario names a node: by its id where it knows that, or else by another job on it. A node
    /// that the policy bought gets its name when the recording is made: it counts them from there.
    fn name(&self, node_id: &NodeId, but: Option<&JobId>, policy: &Policy) -> Option<String> {
        if self.known.contains(node_id) || self.bought.contains_key(node_id) {
            return Some(node_id.to_string());
        }
        let nodes = policy.nodes();
        let node = nodes.iter().find(|node| node.node_id == *node_id)?;
        let mut jobs = node.jobs.iter().filter(|job_id| Some(*job_id) != but);
        jobs.find_map(|job_id| path_of(job_id, policy))
            .map(|path| format!("@{path}"))
    }

    /// A step about the instance of a job on a node.
    fn of_instance(
        &self,
        key: &str,
        job: &str,
        (job_id, node_id): (&JobId, &NodeId),
        policy: &Policy,
    ) -> Result<Value, String> {
        match self.name(node_id, Some(job_id), policy) {
            Some(node) => Ok(json!({key: {"job": job, "node": node}})),
            None => Err(format!("{key} of {job} on {node_id}, which has no name")),
        }
    }
}
