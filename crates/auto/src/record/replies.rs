//! What became of the policy's calls on the Manager. That a start or a purchase was refused is known with
//! the answer, and stands in a scenario ahead of what asked for it.

use std::collections::BTreeMap;

use greenroom_policy::Policy;
use greenroom_policy::event::{CallFailure, CallId};
use greenroom_types::call::{Call, Detail, Refusal, Reply, StartJob, Status};
use greenroom_types::{JobId, Millis, Mono, NodeId, Now, PoolName, Tags, TierName};
use serde_json::{Value, json};

use super::picture::Picture;
use super::words::path_of;
use super::{Input, Recorder};

/// A call without an answer.
#[derive(Debug)]
pub(super) struct Asked {
    /// The input that it followed from.
    input: Input,
    /// When it was sent.
    sent: Mono,
    what: What,
}

#[derive(Debug)]
enum What {
    Start(JobId, NodeId),
    Stop(JobId, NodeId),
    Verdict(JobId),
    End(NodeId),
    /// A node of this tier.
    Create(TierName, NodeId),
    /// Another one, in words.
    Other(&'static str),
}

/// A node that the policy asked for.
#[derive(Debug)]
pub(super) struct Bought {
    /// Grows with every node that was asked for.
    place: u64,
    pool: PoolName,
    pub(super) tier: TierName,
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
            }) => What::Start(job_id.clone(), node_id.clone()),
            Call::StopJob { key, node_id, .. } => {
                let stop = (key.job_id.clone(), node_id.clone());
                self.stops.insert(stop.clone());
                What::Stop(stop.0, stop.1)
            }
            Call::MarkJobFailed { job_id, .. } => {
                self.verdicts.insert(job_id.clone());
                What::Verdict(job_id.clone())
            }
            Call::TerminateNode(node_id) => {
                self.ending.insert(node_id.clone());
                What::End(node_id.clone())
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
        let sent = self.input.at.mono;
        self.asked.insert(call_id, Asked { input, sent, what });
    }

    fn buys(&mut self, node_id: &NodeId, tags: &Tags) -> What {
        let tag = |key: &str| tags.get(key).map_or("", String::as_str);
        let (pool, tier) = (PoolName::new(tag("pool")), TierName::new(tag("tier")));
        let place = self.next_place;
        self.next_place += 2;
        let bought = Bought {
            place,
            pool,
            tier: tier.clone(),
            boots: false,
        };
        self.bought.insert(node_id.clone(), bought);
        What::Create(tier, node_id.clone())
    }

    /// Nothing is under way that a scenario would have to begin with.
    pub(super) fn is_answered(&self) -> bool {
        let mut asked = self.asked.values();
        asked.all(|it| matches!(it.what, What::Other(_)))
    }

    /// Nodes that were bought before the oldest picture stand in each.
    pub(super) fn forget_bought(&mut self) {
        let oldest = self.pictures.front().map(|picture| picture.place);
        self.bought
            .retain(|_, bought| oldest.is_some_and(|oldest| bought.place >= oldest));
    }

    /// What was bought from then on, by id, with the name that a scenario has for it.
    pub(super) fn names_of_bought(&self, from: &Picture) -> BTreeMap<String, String> {
        let bought = self.bought.iter();
        let bought = bought.filter(|(_, bought)| bought.place >= from.place);
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

    /// What their ids begin with, in the order in which they were asked for.
    pub(super) fn ids_of_bought(&self, from: &Picture) -> Vec<String> {
        let bought = self.bought.iter();
        let mut bought: Vec<_> = bought
            .filter(|(_, bought)| bought.place >= from.place)
            .collect();
        bought.sort_by_key(|(_, bought)| bought.place);
        let first = |node_id: &NodeId| {
            let (uuid, _) = node_id.as_str().split_once('.')?;
            Some(uuid.to_owned())
        };
        bought
            .into_iter()
            .filter_map(|(node_id, _)| first(node_id))
            .collect()
    }

    pub(super) fn of_reply(
        &mut self,
        now: Now,
        call_id: CallId,
        result: &Result<Reply, CallFailure>,
        policy: &Policy,
    ) {
        let (Some(Asked { input, sent, what }), Err(failure)) =
            (self.asked.remove(&call_id), result)
        else {
            return;
        };
        let words = match &what {
            What::Start(_, node_id) => format!("a start on {node_id}"),
            What::Stop(job_id, node_id) => format!("the stop of {job_id} on {node_id}"),
            What::Verdict(job_id) => format!("the verdict of {job_id}"),
            What::End(node_id) => format!("the end of {node_id}"),
            What::Create(tier, _) => format!("a purchase in tier {tier}"),
            What::Other(name) => format!("the call {name}"),
        };
        match &what {
            What::Stop(job_id, node_id) => {
                self.stops.remove(&(job_id.clone(), node_id.clone()));
            }
            What::Verdict(job_id) => drop(self.verdicts.remove(job_id)),
            What::End(node_id) => drop(self.ending.remove(node_id)),
            What::Start(..) | What::Create(..) | What::Other(_) => {}
        }
        let Some(refusal) = failure.refusal() else {
            let words = format!("{words} had no answer: {failure}");
            self.push(now, Err(words), None);
            return;
        };
        match what {
            what if follows_from_the_state(&what, refusal) => {}
            What::Start(job_id, node_id) => {
                self.failed(now, node_id.as_str());
                let start = (&job_id, &node_id);
                self.start_refused(now, (input, sent), start, &words, policy);
            }
            What::Create(tier, node_id) => {
                self.failed(now, format!("tier {tier}"));
                let code = match refusal.details.get("provider_code") {
                    Some(Detail::Text(code)) if !code.is_empty() => code,
                    _ => &refusal.reason,
                };
                // The node gets the name that the scenario has for it with the recording.
                let mut fails = json!({
                    "tier": tier, "node": node_id, "next": 1, "error": code, "when": "call",
                });
                took(&mut fails, now.mono - sent);
                self.put(input, json!({"createFails": fails}));
            }
            What::Stop(..) | What::Verdict(_) | What::End(_) | What::Other(_) => {
                self.push(now, Err(format!("{words} failed: {failure}")), None)
            }
        }
    }

    fn start_refused(
        &mut self,
        now: Now,
        (input, sent): (Input, Mono),
        (job_id, node_id): (&JobId, &NodeId),
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
        // Of a migration that an operator asks for and that is refused at once, a scenario says so.
        let at_once = now.mono == sent;
        let moves = self.steps.iter_mut().skip(first).find(|step| {
            let is_it = at_once && input.api.is_some() && step.api == input.api;
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
        let mut fails = json!({"node": node, "next": 1});
        if let Some(job) = path_of(job_id, policy) {
            fails["job"] = job.into();
        }
        took(&mut fails, now.mono - sent);
        let same = self.steps.iter_mut().rev().find(|step| {
            let is_near =
                step.at.mono <= input.at.mono && (input.at.mono - step.at.mono) <= Millis(1);
            let what = step.what.as_ref();
            is_near
                && what.is_ok_and(|what| {
                    let other = &what["startFails"];
                    other["node"] == fails["node"] && other["job"] == fails["job"]
                })
        });
        if let Some(Ok(what)) = same.map(|step| &mut step.what) {
            let next = what["startFails"]["next"].as_u64().unwrap_or_default() + 1;
            what["startFails"]["next"] = next.into();
        } else {
            self.put(input, json!({"startFails": fails}));
        }
    }
}

/// How long an answer took.
fn took(fails: &mut Value, after: Millis) {
    if after > Millis(0) {
        fails["after"] = format!("{}ms", after.0).into();
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
        What::Create(..) => false,
        What::Stop(..) | What::Verdict(_) | What::End(_) | What::Other(_) => matches!(
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
