//! One client of the load: its objects, and what may stand in the Manager for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use greenroom_sdk::types::bundle::{Bundle, BundleJob};
use greenroom_sdk::types::call::{Call, Reply};
use greenroom_sdk::types::job::{Job, Service};
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::node::InstanceKey;
use greenroom_sdk::types::{BundleId, JobId, Millis, NodeId, Wall};
use greenroom_sdk::{Client, Error, Token};
use greenroom_testkit::FakeWorker;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

use super::change;
use super::daemon::connect;
use super::fleet;
use super::found::{self, DUE, FAR_MS, KV_NAMESPACE, LEASE_MS, MARK};

/// Objects of each kind that one client works on.
const OBJECTS: u32 = 12;

/// A change without answer for this long is given up, as the Manager may be gone; its outcome is then unknown.
const CALL_LIMIT: Duration = Duration::from_secs(1);

/// One object's possible state: absent, or present with this content number. A slot has no content.
pub(super) type State = Option<u64>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Job(JobId),
    Bundle(BundleId),
    Slot(NodeId),
    /// The lease of a bundle, which goes with it; the content is part of its ttl.
    BundleLease(BundleId),
    /// The stop time of a bundle, which goes with it; the content is part of the time.
    StopTime(BundleId),
    /// Two keys that are always written together.
    Keys(String),
    /// The newest entry of the audit log with this source.
    Audit(String),
    /// A start of a job on one of the workers; without content.
    Run(JobId),
    /// A slot of which a worker of the harness runs a job, the first client's own: the content is in
    /// its name. Its removal is a drain.
    Worker,
    /// A job that gets a verdict, or is completed, before it is deleted. Three states for each content.
    Ends(JobId),
    /// The tag of this number on a node that stays.
    Tag(usize),
    /// The version that a node that stays is to have.
    Wanted(NodeId),
    /// The pool of a slot that stays.
    Pool(NodeId),
    /// The job of a client's bundle is not dormant.
    Awake(usize),
    /// The discovery fleet, the first client's own; the content is in its address.
    Fleet,
    /// The pause of all leases, the first client's own; the content is in its reason.
    Pause,
}

/// Names of the calls that were acknowledged to any client.
pub(super) type Seen = watch::Sender<BTreeSet<&'static str>>;

/// A client and what it knows.
pub(crate) struct Load {
    number: usize,
    random: StdRng,
    next_content: u64,
    /// Every state that an object may be in: one, or two after a call without answer.
    may_be: BTreeMap<Object, Vec<State>>,
    /// Bundles whose stop time is over: they go by themselves, before long.
    doomed: BTreeSet<BundleId>,
    /// The greatest fencing numbers seen.
    fences: BTreeMap<JobId, u64>,
    seen: Arc<Seen>,
    /// The worker of [`Object::Worker`].
    worker: Option<FakeWorker>,
}

// === impl Load ===

impl Load {
    pub(crate) fn new(number: usize, seed: u64, seen: &Arc<Seen>) -> Self {
        let mut may_be = BTreeMap::new();
        for object in 0..OBJECTS {
            may_be.insert(
                Object::Job(JobId::new(format!("c{number}/j{object}"))),
                vec![None],
            );
            let bundle_id = BundleId::new(format!("c{number}-b{object}"));
            may_be.insert(Object::BundleLease(bundle_id.clone()), vec![None]);
            may_be.insert(Object::StopTime(bundle_id.clone()), vec![None]);
            may_be.insert(Object::Keys(format!("c{number}-k{object}")), vec![None]);
            may_be.insert(Object::Audit(format!("c{number}-a{object}")), vec![None]);
            may_be.insert(Object::Bundle(bundle_id), vec![None]);
            may_be.insert(
                Object::Slot(NodeId::new(format!("c{number}-n{object}"))),
                vec![None],
            );
        }
        for job_id in fleet::jobs_of(number) {
            may_be.insert(Object::Run(job_id), vec![None]);
        }
        may_be.insert(
            Object::Ends(JobId::new(format!("ends-{number}"))),
            vec![None],
        );
        may_be.insert(Object::Tag(number), vec![None]);
        may_be.insert(Object::Pool(fleet::pooled(number)), vec![Some(0)]);
        may_be.insert(Object::Awake(number), vec![None]);
        if number < fleet::WORKERS {
            may_be.insert(Object::Wanted(fleet::tagged(number)), vec![None]);
        }
        if number == 0 {
            may_be.insert(Object::Fleet, vec![None]);
            may_be.insert(Object::Pause, vec![None]);
            may_be.insert(Object::Worker, vec![None]);
        }
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9));
        Self {
            number,
            random,
            next_content: 1,
            may_be,
            doomed: BTreeSet::new(),
            fences: BTreeMap::new(),
            seen: Arc::clone(seen),
            worker: None,
        }
    }

    /// Calls until the Manager is gone, or has left every call without an answer; says how many changes were
    /// acknowledged.
    pub(crate) async fn call_until_lost(mut self, address: String) -> (Self, u64) {
        let mut acknowledged = 0;
        let Ok(client) = connect(&address, CALL_LIMIT).await else {
            return (self, acknowledged);
        };
        while self.may_be.values().any(|states| states.len() == 1) {
            match self.call(&client).await {
                Ok(changed) => acknowledged += u64::from(changed),
                // It is slow. What was changed is left alone until it is compared.
                Err(Error::DeadlineExceeded { .. }) => {}
                Err(_) => break,
            }
        }
        (self, acknowledged)
    }

    /// Makes one random change. An error means that the answer did not come.
    async fn call(&mut self, client: &Client) -> Result<bool, Error> {
        let at = self.random.random_range(0..self.may_be.len());
        let Some((object, states)) = self.may_be.iter().nth(at) else {
            return Ok(false);
        };
        let (object, before) = (object.clone(), states.clone());
        // Only an object whose state is known for sure is changed, so that what follows is known.
        let [state] = before[..] else {
            return Ok(false);
        };
        let content = self.next_content;
        self.next_content += 1;
        let (call, after) = self.change(&object, state, content);
        let dooms = match (&object, &call) {
            (Object::Bundle(id), Call::SetBundleStopTime { .. }) => Some(id.clone()),
            _ => None,
        };
        let name = call.name();
        self.may_be.insert(object.clone(), vec![state, after]);
        // What goes with the bundle.
        let with: Vec<Object> = match &object {
            Object::Bundle(id) if after.is_none() => {
                let (lease, stop) = (
                    Object::BundleLease(id.clone()),
                    Object::StopTime(id.clone()),
                );
                vec![lease, stop]
            }
            _ => Vec::new(),
        };
        let with: Vec<(Object, Vec<State>)> = with
            .into_iter()
            .filter_map(|it| Some((it.clone(), self.may_be.get(&it)?.clone())))
            .collect();
        for (it, before) in &with {
            let mut perhaps = before.clone();
            perhaps.push(None);
            if dooms.is_some() && matches!(it, Object::StopTime(_)) {
                perhaps.push(Some(DUE));
            }
            self.may_be.insert(it.clone(), perhaps);
        }
        if let Some(id) = &dooms {
            // From the moment of the call on it may go at any time.
            self.doomed.insert(id.clone());
        }
        let answer = client.call(call).await;
        if answer.is_ok() {
            self.seen.send_if_modified(|seen| seen.insert(name));
        }
        match answer {
            Ok(_) if dooms.is_some() => Ok(true),
            Ok(reply) => {
                if object == Object::Worker {
                    self.man(client, reply).await;
                }
                self.may_be.insert(object, vec![after]);
                self.may_be
                    .extend(with.into_iter().map(|(it, _)| (it, vec![None])));
                Ok(true)
            }
            Err(error) if is_refusal(&error) => {
                self.may_be.insert(object, vec![state]);
                self.may_be.extend(with);
                if let Some(id) = &dooms {
                    self.doomed.remove(id);
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts a worker into a slot that was just made, and has it run a job. What comes of that is not
    /// known for sure; that nothing of it is left after the slot's removal is looked at in the end.
    async fn man(&mut self, client: &Client, reply: Reply) {
        let Reply::Slot { token, node_id } = reply else {
            return;
        };
        let worker = FakeWorker::with_token(Token::new(token), node_id.as_str()).await;
        if worker.call_in(client).await.is_ok() {
            let job_id = fleet::drained_job();
            let start = greenroom_testkit::start(job_id.as_str(), node_id.as_str());
            // Refused while the one before still ends.
            let _ = client.call(Call::StartJob(start)).await;
        }
        self.worker = Some(worker);
    }

    /// Whether a bundle whose stop time is over is still there.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.doomed.is_empty()
    }

    fn change(&mut self, object: &Object, state: State, content: u64) -> (Call, State) {
        let remove = state.is_some() && self.random.random_bool(0.3);
        match object {
            Object::Job(id) if remove => (Call::DeleteJob(id.clone()), None),
            Object::Job(id) => {
                let job = Box::new(job(id, content));
                let call = if state.is_none() {
                    Call::CreateJob(job)
                } else {
                    Call::UpdateJob(job, 0)
                };
                (call, Some(content))
            }
            Object::Bundle(id) if remove && content.is_multiple_of(2) => {
                let call = Call::SetBundleStopTime {
                    bundle_id: id.clone(),
                    stop_at: Some(Wall(i64::try_from(DUE).unwrap_or_default())),
                };
                (call, None)
            }
            Object::Bundle(id) if remove => (Call::DeleteBundle(id.clone()), None),
            Object::StopTime(id) => {
                let at = i64::try_from(FAR_MS + content).unwrap_or(i64::MAX);
                let call = Call::SetBundleStopTime {
                    bundle_id: id.clone(),
                    stop_at: (!remove).then_some(Wall(at)),
                };
                (call, (!remove).then_some(content))
            }
            Object::Keys(name) => {
                let value = content.to_string();
                let write = |end: &str| {
                    let key = format!("{name}-{end}");
                    match remove {
                        true => KvWrite::delete(key),
                        false => KvWrite::set(key, value.as_bytes()),
                    }
                };
                let call = Call::KvCommit(KvCommit {
                    namespace: KV_NAMESPACE.to_owned(),
                    writes: vec![write("a"), write("b")],
                    expected_schema_version: None,
                    set_schema_version: None,
                });
                (call, (!remove).then_some(content))
            }
            Object::Audit(source) => {
                let call = Call::AppendAuditEntry {
                    source: source.clone(),
                    kind: MARK.to_owned(),
                    payload: content.to_string(),
                };
                (call, Some(content))
            }
            Object::Run(job_id) => {
                let node_id = fleet::node_of(job_id);
                match state {
                    None => {
                        let start = greenroom_testkit::start(job_id.as_str(), node_id.as_str());
                        (Call::StartJob(start), Some(0))
                    }
                    Some(_) => {
                        let stop = Call::StopJob {
                            key: InstanceKey::new(job_id.clone(), "primary".into()),
                            node_id,
                            grace_ms: None,
                        };
                        (stop, None)
                    }
                }
            }
            Object::Worker => match state {
                None => {
                    let register = Call::RegisterClusterNode {
                        node_name: fleet::drained_name(content),
                        pool: "p".into(),
                    };
                    (register, Some(content))
                }
                Some(content) => {
                    let name = fleet::drained_name(content);
                    (Call::DeregisterClusterNode(NodeId::new(name)), None)
                }
            },
            Object::Bundle(id) => {
                let bundle = Box::new(bundle(id, content));
                let call = match state {
                    None => Call::CreateBundle(bundle),
                    Some(_) => Call::UpdateBundle {
                        bundle,
                        dry_run: false,
                        clear_stop_time: false,
                    },
                };
                (call, Some(content))
            }
            Object::BundleLease(id) => {
                let ttl_ms = if remove { 0 } else { LEASE_MS + content };
                let renew = Call::RenewBundleLease {
                    bundle_id: id.clone(),
                    ttl_ms: Millis(ttl_ms),
                };
                (renew, (!remove).then_some(content))
            }
            Object::Ends(_)
            | Object::Tag(_)
            | Object::Wanted(_)
            | Object::Pool(_)
            | Object::Awake(_)
            | Object::Fleet => change::of_single(self.number, object, state, content, remove),
            Object::Pause if state.is_some() => (Call::ResumeLeases { by: String::new() }, None),
            Object::Pause => {
                let pause = Call::PauseLeases {
                    reason: format!("content {content}"),
                    by: String::new(),
                };
                (pause, Some(content))
            }
            Object::Slot(id) if state.is_some() => (Call::DeregisterClusterNode(id.clone()), None),
            Object::Slot(id) => {
                let node_name = id.to_string();
                (
                    Call::RegisterClusterNode {
                        node_name,
                        pool: "p".into(),
                    },
                    Some(0),
                )
            }
        }
    }

    /// Compares every object with the Manager; from then on its state is known for sure.
    pub(crate) async fn compare(&mut self, client: &Client) -> Result<()> {
        let looked = found::look(client).await?;
        for (job_id, fence) in &looked.fences {
            let newest = self.fences.entry(job_id.clone()).or_insert(*fence);
            ensure!(
                *newest <= *fence,
                "job {job_id} runs under the fencing number {fence}, and {newest} was seen before"
            );
            *newest = *fence;
        }
        let found = looked.objects;
        for (object, states) in &mut self.may_be {
            let actual = found.get(object).copied();
            ensure!(
                states.contains(&actual),
                "client {}: {object:?} may be {states:?} and is {actual:?}",
                self.number
            );
            let bundle = match object {
                Object::Bundle(id) | Object::BundleLease(id) | Object::StopTime(id) => Some(id),
                _ => None,
            };
            let goes = bundle.is_some_and(|id| {
                let is_due = found.get(&Object::StopTime(id.clone())) == Some(&DUE);
                self.doomed.contains(id) && is_due
            });
            if !goes {
                *states = vec![actual];
            }
        }
        // Gone, or the stop time was not taken.
        self.doomed
            .retain(|id| found.get(&Object::StopTime(id.clone())) == Some(&DUE));
        Ok(())
    }
}

/// True where the Manager said no, so that nothing changed.
const fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidArgument(_)
            | Error::NotFound(_)
            | Error::AlreadyExists(_)
            | Error::ResourceExhausted(_)
            | Error::FailedPrecondition(_)
    )
}

fn job(id: &JobId, content: u64) -> Job {
    let service = Service {
        name: "main".to_owned(),
        command: "true".to_owned(),
        ..Service::default()
    };
    Job {
        job_id: id.clone(),
        description: format!("content {content}"),
        services: vec![service],
        ..Job::default()
    }
}

fn bundle(id: &BundleId, content: u64) -> Bundle {
    let mut job = BundleJob {
        job_name: "main".into(),
        ..BundleJob::default()
    };
    job.launch.services = vec![Service {
        name: "main".to_owned(),
        command: "true".to_owned(),
        ..Service::default()
    }];
    let other = BundleJob {
        job_name: "other".into(),
        ..job.clone()
    };
    Bundle {
        bundle_id: id.clone(),
        description: format!("content {content}"),
        pool: "p".into(),
        jobs: vec![job, other],
        ..Bundle::default()
    }
}
