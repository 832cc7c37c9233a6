//! One client of the load: its objects, and what may stand in the Manager for each.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use greenroom_sdk::types::bundle::{Bundle, BundleJob, BundleState};
use greenroom_sdk::types::call::Call;
use greenroom_sdk::types::job::{Job, Service};
use greenroom_sdk::types::{BundleId, JobId, Millis, NodeId};
use greenroom_sdk::{CallOptions, Client, Error, JobSearch};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::daemon::connect;

/// Objects of each kind that one client works on.
const OBJECTS: u32 = 12;

/// A call without answer for this long is given up; its outcome is then unknown.
const CALL_LIMIT: Duration = Duration::from_secs(1);

/// Bundle leases last for longer than any run.
const LEASE_MS: u64 = 40_000_000;

/// One object's possible state: absent, or present with this content number. A slot has no content.
type State = Option<u64>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Job(JobId),
    Bundle(BundleId),
    Slot(NodeId),
    /// The lease of a bundle, which goes with it; the content is part of its ttl.
    BundleLease(BundleId),
    /// The pause of all leases, the first client's own; the content is in its reason.
    Pause,
}

/// A client and what it knows.
pub(crate) struct Load {
    number: usize,
    random: StdRng,
    next_content: u64,
    /// Every state that an object may be in: one, or two after a call without answer.
    may_be: BTreeMap<Object, Vec<State>>,
}

// === impl Load ===

impl Load {
    pub(crate) fn new(number: usize, seed: u64) -> Self {
        let mut may_be = BTreeMap::new();
        for object in 0..OBJECTS {
            may_be.insert(
                Object::Job(JobId::new(format!("c{number}/j{object}"))),
                vec![None],
            );
            let bundle_id = BundleId::new(format!("c{number}-b{object}"));
            may_be.insert(Object::BundleLease(bundle_id.clone()), vec![None]);
            may_be.insert(Object::Bundle(bundle_id), vec![None]);
            may_be.insert(
                Object::Slot(NodeId::new(format!("c{number}-n{object}"))),
                vec![None],
            );
        }
        if number == 0 {
            may_be.insert(Object::Pause, vec![None]);
        }
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9));
        Self {
            number,
            random,
            next_content: 1,
            may_be,
        }
    }

    /// Calls until the Manager is gone; answers how many changes were acknowledged.
    pub(crate) async fn call_until_lost(mut self, address: String) -> (Self, u64) {
        let mut acknowledged = 0;
        let Ok(client) = connect(&address).await else {
            return (self, acknowledged);
        };
        loop {
            match self.call(&client).await {
                Ok(changed) => acknowledged += u64::from(changed),
                Err(_) => return (self, acknowledged),
            }
        }
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
        self.may_be.insert(object.clone(), vec![state, after]);
        let lease = match &call {
            Call::DeleteBundle(id) => Some(Object::BundleLease(id.clone())),
            _ => None,
        };
        let lease = lease.and_then(|lease| Some((lease.clone(), self.may_be.get(&lease)?.clone())));
        if let Some((lease, before)) = &lease {
            let perhaps = before.iter().copied().chain([None]).collect();
            self.may_be.insert(lease.clone(), perhaps);
        }
        let options = CallOptions {
            timeout: Some(CALL_LIMIT),
            ..CallOptions::default()
        };
        match client.call_with(call, options).await {
            Ok(_) => {
                self.may_be.insert(object, vec![after]);
                if let Some((lease, _)) = lease {
                    self.may_be.insert(lease, vec![None]);
                }
                Ok(true)
            }
            Err(error) if is_refusal(&error) => {
                self.may_be.insert(object, vec![state]);
                self.may_be.extend(lease);
                Ok(false)
            }
            Err(error) => Err(error),
        }
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
            Object::Bundle(id) if remove => (Call::DeleteBundle(id.clone()), None),
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
        let found = self.found(client).await?;
        for (object, states) in &mut self.may_be {
            let actual = found.get(object).copied();
            ensure!(
                states.contains(&actual),
                "client {}: {object:?} may be {states:?} and is {actual:?}",
                self.number
            );
            *states = vec![actual];
        }
        Ok(())
    }

    async fn found(&self, client: &Client) -> Result<BTreeMap<Object, u64>> {
        let mut found = BTreeMap::new();
        for one in client.job_search(JobSearch::default()).await? {
            let job = one.job.job;
            if let Some(content) = content_of(&job.description) {
                found.insert(Object::Job(job.job_id), content);
            }
        }
        for status in client.list_bundles().await? {
            let bundle = status.bundle;
            if bundle.state == BundleState::Live {
                let content = content_of(&bundle.description).unwrap_or_default();
                let whole = status.jobs.len() == bundle.jobs.len();
                ensure!(whole, "bundle {} is there in part", bundle.bundle_id);
                found.insert(Object::Bundle(bundle.bundle_id), content);
            }
        }
        let leases = client.get_lease_status().await?;
        for lease in leases.bundle_leases {
            let content = lease.ttl_ms.saturating_sub(LEASE_MS);
            found.insert(Object::BundleLease(lease.bundle_id), content);
        }
        if let Some(pause) = leases.paused {
            let content = content_of(&pause.reason).unwrap_or_default();
            found.insert(Object::Pause, content);
        }
        for slot in client.list_cluster_nodes().await? {
            found.insert(Object::Slot(slot.node_id), 0);
        }
        Ok(found)
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

fn content_of(description: &str) -> Option<u64> {
    description.strip_prefix("content ")?.parse().ok()
}
