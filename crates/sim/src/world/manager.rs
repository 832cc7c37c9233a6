//! The Manager's driver without sockets: commands into the ledger, changes to the policy, orders to
//! the fleet. It decides nothing.

use greenroom_ledger::{
    Applied, Called, Change, Command, Due, Fresh, Link, Order, Subscriber, What, Wish,
};
use greenroom_policy::event::{CallFailure, CallId, ConnectionState};
use greenroom_policy::{Event, IdSource, Policy};
use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Call, CallResult, Refusal, Reply, Status};
use greenroom_types::job::Service;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{JobId, Millis, NodeId};

use super::hold::Pending;
use super::{Stuck, World, refused};

/// The next starts on a node are refused.
#[derive(Clone, Debug)]
pub(super) struct StartFailure {
    pub(super) left: u32,
    /// How long the refusal takes.
    pub(super) after: Millis,
}

/// What becomes known of a node so much later.
pub(super) struct Late<T> {
    pub(super) node_id: NodeId,
    pub(super) what: T,
    pub(super) after: Millis,
}

/// How a call of the policy was answered.
pub(super) enum Answered {
    /// At once, with what changed.
    Now(Result<Reply, CallFailure>, Vec<Change>),
    /// It will be refused.
    Later,
}

/// Minor number of the protocol that the policy's stream speaks.
const PROTOCOL: u32 = 10;

// === impl World: commands ===

impl World {
    /// Applies a command, keeps its orders for later and tells the policy what changed.
    pub(super) fn commit(&mut self, command: Command) -> CallResult {
        let (outcome, changes) = self.apply(command);
        self.publish(&changes);
        outcome
    }

    fn apply(&mut self, command: Command) -> (CallResult, Vec<Change>) {
        let now = self.now();
        let Applied {
            outcome,
            changes,
            orders,
            touched,
            ..
        } = self.ledger.apply(now.wall, command);
        self.keeper.observe(now, &self.ledger, &touched);
        self.leases.observe(now, &self.ledger, &touched);
        self.orders.extend(orders);
        (outcome, changes)
    }

    /// Puts what changed into the policy's stream, as its subscription shows it.
    pub(super) fn publish(&mut self, changes: &[Change]) {
        let now = self.now();
        for change in changes {
            if let What::Job(job) = &change.what {
                self.touched_jobs.insert(job.job.job_id.clone());
            }
            if let Some(subscriber) = &mut self.subscriber
                && let Some(stamped) = subscriber.on_change(now, change)
            {
                self.inbox.push_back(Event::Stream(stamped.event));
            }
        }
    }

    /// A call of the policy: refused by what the scenario arranged, else by the ledger. The changes
    /// are given back, so that the answer can go ahead of them.
    pub(super) fn call(&mut self, call_id: CallId, call: Call) -> Answered {
        self.purchases.record(&call);
        if let Some(late) = self
            .create_refusal(&call)
            .or_else(|| self.start_refusal(&call))
        {
            let Late {
                node_id,
                what: refusal,
                after,
            } = late;
            if after == Millis(0) {
                return Answered::Now(Err(refused(refusal)), Vec::new());
            }
            let due = Pending::Refused(node_id, self.policies, call_id, refusal);
            self.after(after, due);
            return Answered::Later;
        }
        let (outcome, changes) = self.make_call(call, "scenario:policy");
        let now = self.now();
        let outcome = outcome.map_err(|refusal| refused(self.leases.complete(now, refusal)));
        Answered::Now(outcome, changes)
    }

    /// A refusal that took its time; a policy that is gone hears no answer.
    pub(super) fn answer_refused(&mut self, policy: u64, call_id: CallId, refusal: Refusal) {
        if self.is_connected() && policy == self.policies {
            let failure = refused(refusal);
            self.log.refusal(&failure);
            let result = Err(failure);
            self.inbox.push_back(Event::Reply { call_id, result });
        }
    }

    /// A call of somebody else.
    pub(crate) fn call_aside(&mut self, call: Call) -> CallResult {
        let (outcome, changes) = self.make_call(call, "scenario:other");
        self.publish(&changes);
        outcome
    }

    fn make_call(&mut self, mut call: Call, actor: &str) -> (CallResult, Vec<Change>) {
        match &mut call {
            Call::CreateBundle(bundle) | Call::UpdateBundle { bundle, .. } => with_services(bundle),
            _ => {}
        }
        match &call {
            Call::UpdateBundle { bundle, .. } => {
                let now = self.mono();
                self.changed.insert(bundle.bundle_id.clone(), now);
            }
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            } => {
                let job_id = JobId::new(format!("{bundle_id}.{replica_index}.{job_name}"));
                self.revived.insert(job_id);
            }
            _ => {}
        }
        if let Some((outcome, orders)) = self.ledger.relay(&call) {
            self.orders.extend(orders);
            return (outcome, Vec::new());
        }
        let fresh = Fresh {
            id: self.seed.hex(),
            token: format!("grt_{}", self.seed.hex()),
            ..Fresh::default()
        };
        let started = match &call {
            Call::StartJob(start) => Some(start.job_id.clone()),
            _ => None,
        };
        let applied = self.apply(Command::Call(Box::new(Called {
            call,
            actor: actor.to_owned(),
            request_id: None,
            fresh,
        })));
        let record = started.and_then(|job_id| self.ledger.job(&job_id));
        for start_id in record.into_iter().flat_map(|record| &record.instances) {
            let asked = self.asked.entry(start_id.clone());
            asked.or_insert(self.mono);
        }
        applied
    }

    fn start_refusal(&mut self, call: &Call) -> Option<Late<Refusal>> {
        let Call::StartJob(start) = call else {
            return None;
        };
        let node_id = start.node_id.clone();
        let failures = self.start_failures.get_mut(&node_id)?;
        let due = |job_id: Option<JobId>| failures.get(&job_id).is_some_and(|it| it.left > 0);
        let of_job = Some(start.job_id.clone());
        let which = if due(of_job.clone()) { of_job } else { None };
        let failure = failures.get_mut(&which)?;
        failure.left = failure.left.checked_sub(1)?;
        let message = format!("the scenario lets starts on {node_id:?} fail");
        Some(Late {
            what: Refusal::new(Status::Internal, "start_failed", message),
            after: failure.after,
            node_id,
        })
    }

    pub(super) fn carry_out(&mut self, order: Order) {
        match order {
            Order::Worker { node_id, message } => self.tell_worker(&node_id, message),
            Order::Provider { node_id, task } => self.do_task(&node_id, task),
            Order::Dial { node_id, .. } => self.connect_worker(&node_id),
            Order::Close { node_id, redial } => {
                if let Some(worker) = self.workers.get_mut(&node_id) {
                    worker.linked = false;
                }
                if redial {
                    self.connect_worker(&node_id);
                }
            }
        }
    }
}

/// A job that says nothing of what it runs gets one service to run, so that the Manager takes it
/// (SCEN-05).
pub(crate) fn with_services(bundle: &mut Bundle) {
    for job in &mut bundle.jobs {
        if job.launch.services.is_empty() {
            job.launch.services.push(Service {
                name: "simulated".to_owned(),
                command: "simulated".to_owned(),
                ..Service::default()
            });
        }
    }
}

// === impl World: the policy's connection ===

impl World {
    /// True while a policy is connected.
    pub(crate) const fn is_connected(&self) -> bool {
        self.subscriber.is_some()
    }

    /// A fresh policy connects and is sent the whole state.
    pub(crate) fn connect(&mut self) -> Result<(), Stuck> {
        if self.is_connected() {
            return Err(Stuck("a policy is connected already".to_owned()));
        }
        let now = self.now();
        let ids = IdSource::seeded(self.spec.seed.wrapping_add(self.policies << 32));
        let ids = ids.giving_nodes(std::mem::take(&mut self.spec.node_ids));
        self.policies += 1;
        let policy = Policy::new(self.settings.clone(), now, ids);
        let policy = if self.memory.decisions {
            policy
        } else {
            policy.without_traces()
        };
        self.decisions.clear();
        self.inbox.clear();
        let wish = Wish {
            pending_window_s: i64::from(self.settings.pending_window_sent_s()),
            client_protocol: PROTOCOL,
            ..Wish::default()
        };
        let mut subscriber = Subscriber::new(wish)
            .map_err(|refusal| Stuck(format!("the Manager refused the stream: {refusal}")))?;
        // What operators decided is kept at the Manager (ACTS); here the former policy still has it.
        let kept = self.policy.as_ref().map(Policy::acts).unwrap_or_default();
        self.policy = Some(policy);
        self.connected_at = self.mono;
        for state in [ConnectionState::Connecting, ConnectionState::Ready] {
            self.inbox.push_back(Event::ConnectionState(state));
        }
        if !kept.is_empty() {
            self.inbox.push_back(Event::Acts(Box::new(kept)));
        }
        for stamped in subscriber.snapshot(now, &self.ledger.standing(), Vec::new()) {
            self.inbox.push_back(Event::Stream(stamped.event));
        }
        self.subscriber = Some(subscriber);
        self.settle()?;
        self.note_rebuilt();
        Ok(())
    }

    fn note_rebuilt(&mut self) {
        let now = self.now();
        let policy = self.policy.iter().filter(|policy| policy.is_live());
        self.rebuilt = policy
            .flat_map(|policy| policy.jobs().map(move |job| (policy, &job.job.job_id)))
            .map(|(policy, job_id)| (job_id.clone(), policy.restart_count(now, job_id)))
            .filter(|(_, count)| *count > 0)
            .collect();
    }

    /// The stream breaks.
    pub(super) fn disconnect(&mut self) {
        self.subscriber = None;
        self.inbox.clear();
        self.inbox.push_back(Event::Closed {
            error: Some("the stream broke".to_owned()),
        });
    }

    /// The Manager sends the last JobUpdated of a job again.
    pub(super) fn repeat(&mut self, job_id: &JobId) -> Result<(), Stuck> {
        let record = self
            .ledger
            .job(job_id)
            .ok_or_else(|| Stuck(format!("the Manager knows no job {job_id:?}")))?;
        let event = StreamEvent::JobUpdated(record.view.clone());
        self.inbox.push_back(Event::Stream(event));
        Ok(())
    }

    /// The wall clock was set: everyone who looks at it looks again.
    pub(super) fn clock_was_set(&mut self) {
        self.keep();
        let (now, seq) = (self.now(), self.ledger.seq());
        if let Some(subscriber) = &mut self.subscriber {
            for stamped in subscriber.on_time(now, seq) {
                self.inbox.push_back(Event::Stream(stamped.event));
            }
        }
    }

    /// The node of a name, if there is one now.
    pub(crate) fn resolve(&self, node: &crate::format::names::NodeRef) -> Option<NodeId> {
        use crate::format::names::NodeRef;
        match node {
            NodeRef::Id(id) => Some(id.clone()),
            NodeRef::OfJob(path) => self.policy.as_ref()?.node_for_job(&path.job_id()).cloned(),
            NodeRef::Spare(..) | NodeRef::Tier(..) => self.purchases.find(node).cloned(),
        }
    }
}

// === impl World: what is told of it ===

impl World {
    pub(super) fn note_command(&mut self, command: &Command) {
        let purchases = &self.purchases;
        self.log.line("manager", || match command {
            Command::Link { node_id, link } => {
                let what = match link {
                    Link::Dropped => "the line dropped",
                    Link::GraceOver => "given up",
                    Link::KeepaliveOver => "kept in vain",
                    Link::PendingOver => "pending too long",
                    Link::StartupOver => "did not come up",
                    Link::HelloOver => "did not say hello",
                };
                format!("{}: {what}", purchases.name(node_id))
            }
            Command::Tick(Due::BundleStop { bundle_id, .. }) => {
                format!("{bundle_id}: its stop time has come")
            }
            Command::Tick(Due::ForgetNode(node_id)) => {
                format!("{}: leaves the record", purchases.name(node_id))
            }
            Command::Tick(Due::LeaseLost { key, .. }) => {
                format!("the lease of {key} was not refreshed")
            }
            Command::Tick(Due::LeaseOver { key, .. }) => format!("the lease of {key} is over"),
            Command::Tick(due) => format!("{due:?}"),
            other => format!("{other:?}"),
        });
    }

    pub(super) fn note_event(&mut self, event: &Event) {
        if let Event::Stream(event) = event {
            self.log.event(event, &self.purchases);
        }
    }

    pub(super) fn touch_call(&mut self, call: &Call) {
        if let Call::StartJob(start) = call {
            self.touched_jobs.insert(start.job_id.clone());
        }
    }
}
