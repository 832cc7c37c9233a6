//! What became of the policy's calls on the Manager. That a start or a purchase was refused is known with
//! the answer, and stands in a scenario ahead of what asked for it.

use std::collections::BTreeMap;

use greenroom_policy::Policy;
use greenroom_policy::event::{CallFailure, CallId};
use greenroom_types::call::{Call, Detail, Refusal, Reply, StartJob, Status};
use greenroom_types::{JobId, Mono, NodeId, Now, PoolName, Tags, TierName};
use serde_json::{Value, json};

use super::{Input, Recorder};

/// What becomes of a start that is taken up.
const STARTING: [&str; 2] = ["jobRunning", "prepared"];

/// A call without an answer.
#[derive(Debug)]
pub(super) struct Asked {
    /// The input that it followed from.
    input: Input,
    what: What,
}

#[derive(Debug)]
enum What {
    Start(JobId, NodeId),
    /// A node of this tier.
    Create(TierName),
    /// Another one, in words.
    Other(&'static str),
}

/// A node that the policy asked for.
#[derive(Debug)]
pub(super) struct Bought {
    at: Mono,
    /// Grows with every node that was asked for.
    place: u64,
    pool: PoolName,
    tier: TierName,
    /// Its machine was seen to boot.
    pub(super) boots: bool,
}

// === impl Recorder ===

impl Recorder {
    /// The policy calls the Manager.
    pub(super) fn sends(&mut self, call_id: CallId, call: &Call, policy: &Policy) {
        let what = match call {
            Call::StartJob(StartJob {
                job_id, node_id, ..
            }) => {
                let (start, cause) = ((job_id.clone(), node_id.clone()), self.cause());
                self.starts.insert(start.clone(), cause);
                What::Start(start.0, start.1)
            }
            Call::CreateAwsNode(create) => self.buys(&create.node_id, &create.tags),
            Call::CreateOciNode(create) => self.buys(&create.node_id, &create.tags),
            Call::PrefetchImages {
                node_id,
                image_refs,
            } => {
                let is_held = |image: &String| {
                    let inventory = policy.inventory(node_id);
                    inventory
                        .is_some_and(|it| it.held_images.iter().any(|it| it.reference == *image))
                };
                let missing = image_refs.iter().filter(|image| !is_held(image)).cloned();
                self.pulls
                    .entry(node_id.clone())
                    .or_default()
                    .extend(missing);
                What::Other(call.name())
            }
            other => What::Other(other.name()),
        };
        let input = self.cause();
        self.asked.insert(call_id, Asked { input, what });
    }

    fn buys(&mut self, node_id: &NodeId, tags: &Tags) -> What {
        let tag = |key: &str| tags.get(key).map_or("", String::as_str);
        let (pool, tier) = (PoolName::new(tag("pool")), TierName::new(tag("tier")));
        let place = self.next_place;
        self.next_place += 2;
        let bought = Bought {
            at: self.input.at.mono,
            place,
            pool,
            tier: tier.clone(),
            boots: false,
        };
        self.bought.insert(node_id.clone(), bought);
        What::Create(tier)
    }

    /// Nothing is under way that a scenario would have to begin with.
    pub(super) fn is_answered(&self) -> bool {
        let asked = self.asked.values();
        asked
            .into_iter()
            .all(|it| matches!(it.what, What::Other(_)))
    }

    /// Nodes that were bought before the oldest picture stand in each.
    pub(super) fn forget_bought(&mut self) {
        let oldest = self.pictures.front().map(|picture| picture.at.mono);
        self.bought
            .retain(|_, bought| oldest.is_some_and(|oldest| bought.at >= oldest));
    }

    /// What was bought from then on, by id, with the name that a scenario has for it.
    pub(super) fn names_of_bought(&self, from: Mono) -> BTreeMap<String, String> {
        let bought = self.bought.iter().filter(|(_, bought)| bought.at >= from);
        let mut bought: Vec<_> = bought.collect();
        bought.sort_by_key(|(_, bought)| bought.place);
        let mut counts: BTreeMap<(&PoolName, &TierName), usize> = BTreeMap::new();
        bought
            .into_iter()
            .map(|(node_id, Bought { pool, tier, .. })| {
                let count = counts.entry((pool, tier)).or_default();
                *count += 1;
                (node_id.to_string(), format!("@tier/{pool}/{tier}/{count}"))
            })
            .collect()
    }

    pub(super) fn of_reply(
        &mut self,
        now: Now,
        call_id: CallId,
        result: &Result<Reply, CallFailure>,
        policy: &Policy,
    ) {
        let (Some(Asked { input, what }), Err(failure)) = (self.asked.remove(&call_id), result)
        else {
            return;
        };
        let words = match &what {
            What::Start(_, node_id) => format!("a start on {node_id}"),
            What::Create(tier) => format!("a purchase in tier {tier}"),
            What::Other(name) => format!("the call {name}"),
        };
        let Some(refusal) = failure.refusal() else {
            let words = format!("{words} had no answer: {failure}");
            self.push(now, Err(words), None);
            return;
        };
        match what {
            What::Start(..) | What::Other(_) if follows_from_the_state(&what, refusal) => {}
            What::Start(job_id, node_id) => {
                self.starts.remove(&(job_id, node_id.clone()));
                self.start_refused(now, input, &node_id, &words, policy);
            }
            What::Create(tier) => {
                let code = match refusal.details.get("provider_code") {
                    Some(Detail::Text(code)) if !code.is_empty() => code,
                    _ => &refusal.reason,
                };
                let fails = json!({"tier": tier, "next": 1, "error": code, "when": "call"});
                self.put(input, json!({"createFails": fails}));
            }
            What::Other(_) => self.push(now, Err(format!("{words} failed: {failure}")), None),
        }
    }

    /// A start came to nothing before it ran, which in a scenario takes no time. There it is kept from
    /// that until [`Recorder::let_go`]. False where it ran, or there was none.
    pub(super) fn never_ran(&mut self, job_id: &JobId, node_id: &NodeId, job: &str) -> bool {
        let Some(input) = self.starts.remove(&(job_id.clone(), node_id.clone())) else {
            return false;
        };
        self.put(input, json!({"hold": STARTING, "only": job}));
        true
    }

    pub(super) fn let_go(&mut self, now: Now, job: &str) {
        let step = json!({"release": STARTING, "only": job});
        self.push(now, Ok(step), None);
    }

    fn start_refused(
        &mut self,
        now: Now,
        input: Input,
        node_id: &NodeId,
        words: &str,
        policy: &Policy,
    ) {
        let Some(node) = self.name(node_id, None, policy) else {
            self.push(
                now,
                Err(format!("{words} was refused, which has no name")),
                None,
            );
            return;
        };
        let first = self.after_place(input);
        // Of a migration that an operator asks for, a scenario says with it that it is refused.
        let moves = self.steps.iter_mut().skip(first).find(|step| {
            let is_it = input.api.is_some() && step.api == input.api;
            is_it
                && step
                    .what
                    .as_ref()
                    .is_ok_and(|what| what.get("migrate").is_some())
        });
        if let Some(step) = moves {
            if !self.known.contains(node_id) {
                let words = format!("{words} was refused, and with it a migration");
                self.push(now, Err(words), None);
                return;
            }
            if let Ok(what) = &mut step.what {
                what["refused"] = format!(
                    "the target could not be started: refused: the scenario lets starts on {node:?} \
                     fail (start_failed)"
                )
                .into();
            }
            step.api = None;
        }
        let put = self.steps.partition_point(|step| step.place < input.place);
        let same = self.steps.range_mut(put..first).find(|step| {
            let what = step.what.as_ref();
            what.is_ok_and(|what| what["startFails"]["node"] == node.as_str())
        });
        if let Some(Ok(what)) = same.map(|step| &mut step.what) {
            let next = what["startFails"]["next"].as_u64().unwrap_or_default() + 1;
            what["startFails"]["next"] = next.into();
        } else {
            let fails = json!({"node": node, "next": 1});
            self.put(input, json!({"startFails": fails}));
        }
    }
}

/// A refusal that a Manager in the same state gives again.
fn follows_from_the_state(what: &What, refusal: &Refusal) -> bool {
    match what {
        // The others fail the start, whatever they say; these mean something to the policy.
        What::Start(..) => matches!(
            refusal.reason.as_str(),
            "already_on_node" | "lease_held" | "leases_paused" | "unrecorded_instance"
        ),
        What::Create(_) => false,
        What::Other(_) => matches!(
            refusal.status,
            Status::NotFound
                | Status::AlreadyExists
                | Status::FailedPrecondition
                | Status::InvalidArgument
        ),
    }
}

/// A reason without the words of whoever refused: in a scenario these are others.
pub(super) fn without_words(reason: &str) -> &str {
    match reason.split_once("refused: ") {
        Some((before, _)) => &reason[..before.len() + "refused".len()],
        None => reason,
    }
}

/// Says of every node that was bought the name that the scenario has for it.
pub(super) fn rename(step: &mut Value, names: &BTreeMap<String, String>) {
    match step {
        Value::String(text) => {
            if let Some(name) = names.get(text) {
                text.clone_from(name);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| rename(item, names)),
        Value::Object(map) => map.values_mut().for_each(|item| rename(item, names)),
        _ => {}
    }
}
