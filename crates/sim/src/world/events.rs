//! What happens to the world by itself, as far as a scenario says so (SCEN-08).

use std::collections::BTreeMap;

use greenroom_ledger::{Finding, Link, Report};
use greenroom_policy::migration::MigrationState;
use greenroom_types::call::Call;
use greenroom_types::node::{InstanceKey, NodeState, NodeStoppingReason, RejectionCode};
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{JobId, Millis, NodeId, Payload, Role, StartId};

use super::cloud::CreateFailure;
use super::manager::StartFailure;
use super::worker::RunPhase;
use super::{Stuck, World};
use crate::format::Step;
use crate::format::action::{Action, HoldKind, Side, SignalKind};
use crate::format::fleet::InventoryChange;
use crate::format::names::{InstanceRef, JobPath, NodeRef};

type Deed = Result<(), Stuck>;

// === impl World ===

impl World {
    pub(super) fn world_event(&mut self, step: &Step, action: &Action) -> Deed {
        match action {
            Action::NodeJoins(node) => self.join(node, &BTreeMap::new()),
            Action::NodeReturns { node, jobs } => self.returns(node, jobs),
            Action::NodeStopping { node, reason } => self.stopping(node, *reason),
            Action::NodeStopped(node) => self.stopped(node),
            Action::NodeDies(node) => {
                let node_id = self.known(node)?;
                self.dies(node, &node_id)
            }
            Action::Inventory(change) => self.changes(change),
            Action::SetTags { node, tags } => self.set_tags(node, tags),
            Action::Notice {
                node,
                kind,
                deadline,
            } => {
                let node_id = self.known(node)?;
                let report = Report::Notice {
                    kind: *kind,
                    deadline: deadline.map(|instant| instant.resolve(self.spec.start)),
                    seen_at: self.wall(),
                };
                self.report(&node_id, report);
                Ok(())
            }
            Action::JobFails { job, reason } => {
                let (node_id, start_id) = self.live(job)?;
                self.fails(&node_id, &start_id, reason.clone());
                Ok(())
            }
            Action::JobRejected {
                job,
                node,
                role,
                reason,
                invalid_spec,
                code,
            } => {
                let code = match code {
                    Some(code) => *code,
                    None if *invalid_spec => RejectionCode::InvalidSpec,
                    None => RejectionCode::Capacity,
                };
                self.rejects(job, node.as_ref(), role.as_ref(), reason, code)
            }
            Action::JobPrepared(instance) => {
                let found =
                    self.instance_in(instance, "being made", |phase| phase == RunPhase::Creating);
                let (node_id, start_id) = found?;
                self.forget_kept(HoldKind::Prepared, &start_id);
                self.is_prepared(&node_id, &start_id);
                Ok(())
            }
            Action::JobRunning(instance) => {
                let found = self.instance_in(instance, "starting", |phase| {
                    matches!(phase, RunPhase::Creating | RunPhase::Starting)
                });
                let (node_id, start_id) = found?;
                self.forget_kept(HoldKind::JobRunning, &start_id);
                self.runs(&node_id, &start_id);
                Ok(())
            }
            Action::JobStopped(instance) => {
                let found = self.instance_in(instance, "stopping, or left behind,", |phase| {
                    matches!(phase, RunPhase::Stopping | RunPhase::Remains)
                });
                let (node_id, start_id) = found?;
                self.forget_kept(HoldKind::JobStopped, &start_id);
                self.is_gone(&node_id, &start_id);
                Ok(())
            }
            Action::StopJob(instance) => self.stopped_aside(instance),
            Action::MarkJobFailed { job, reason } => {
                let call = Call::MarkJobFailed {
                    job_id: job.job_id(),
                    reason: reason.clone(),
                };
                self.call_aside(call)
                    .map_err(|refusal| Stuck(format!("{job} gets no verdict: {refusal}")))?;
                Ok(())
            }
            Action::JobCompletes(job) => {
                let (node_id, start_id) = self.live(job)?;
                self.ends(&node_id, &start_id, true);
                Ok(())
            }
            Action::Duplicate(job) => self.repeat(&job.job_id()),
            Action::ImagePulled {
                node,
                reference,
                ok,
            } => {
                let node_id = self.known(node)?;
                if !self.pulls(&node_id, reference) {
                    return Err(Stuck(format!("{node} does not pull {reference} now")));
                }
                self.pulled(&node_id, reference, *ok);
                Ok(())
            }
            Action::Signal {
                job,
                side,
                kind,
                payload,
            } => self.signal(job, *side, *kind, payload),
            Action::CreateFails {
                tier,
                next,
                node,
                error,
                when,
                after,
            } => {
                let failure = CreateFailure {
                    left: *next,
                    node: node.clone(),
                    error: error.clone(),
                    when: *when,
                    after: Millis(after.0),
                };
                self.purchases.fail_next(tier.clone(), failure);
                Ok(())
            }
            Action::StartFails {
                node,
                next,
                job,
                after,
            } => {
                let node_id = self.node(node)?;
                let job_id = job.as_ref().map(JobPath::job_id);
                let failure = StartFailure {
                    left: *next,
                    after: Millis(after.0),
                };
                let failures = self.start_failures.entry(node_id).or_default();
                failures.insert(job_id, failure);
                Ok(())
            }
            Action::Clock { wall_jump } => {
                self.wall_step += wall_jump.0;
                self.clock_was_set();
                Ok(())
            }
            Action::Disconnect(_) => {
                if !self.is_connected() {
                    return Err(Stuck("no policy is connected".to_owned()));
                }
                self.disconnect();
                Ok(())
            }
            Action::Connect(_) => self.connect(),
            Action::Partition(node) => {
                let node_id = self.known(node)?;
                if self.workers.get(&node_id).is_some_and(|worker| worker.cut) {
                    return Err(Stuck(format!("{node} is cut off already")));
                }
                self.partition(&node_id);
                Ok(())
            }
            Action::Heal(node) => {
                let node_id = self.known(node)?;
                if self.workers.get(&node_id).is_some_and(|worker| !worker.cut) {
                    return Err(Stuck(format!("{node} is not cut off")));
                }
                self.heal(&node_id);
                Ok(())
            }
            Action::Hold(kinds) => {
                self.hold(kinds, step.only.as_ref());
                Ok(())
            }
            Action::Release(kinds) => {
                self.release(kinds, step.only.as_ref());
                Ok(())
            }
            other => Err(Stuck(format!("{other:?} is not played here"))),
        }
    }
}

// === impl World: nodes ===

impl World {
    pub(super) fn node(&self, node: &NodeRef) -> Result<NodeId, Stuck> {
        self.resolve(node)
            .ok_or_else(|| Stuck(format!("{node} stands for no node now")))
    }

    /// A node of the simulated fleet.
    fn known(&self, node: &NodeRef) -> Result<NodeId, Stuck> {
        let node_id = self.node(node)?;
        if self.workers.contains_key(&node_id) {
            Ok(node_id)
        } else {
            Err(Stuck(format!("the fleet has no node {node}")))
        }
    }

    fn state(&self, node_id: &NodeId) -> Option<NodeState> {
        self.ledger.node(node_id).map(|node| node.state)
    }

    /// The worker is gone at once and the Manager gives the node up without waiting.
    fn lost(&mut self, node_id: &NodeId) {
        self.unplug(node_id);
        self.drop_line(node_id);
        self.link(node_id, Link::GraceOver);
    }

    fn dies(&mut self, node: &NodeRef, node_id: &NodeId) -> Deed {
        let runs = self.workers.get(node_id).is_some_and(|worker| worker.up);
        let before = self.ledger.seq();
        self.lost(node_id);
        if runs || self.ledger.seq() != before {
            return Ok(());
        }
        Err(Stuck(format!("{node} does not run, so it cannot die")))
    }

    fn stopping(&mut self, node: &NodeRef, reason: Option<NodeStoppingReason>) -> Deed {
        let node_id = self.known(node)?;
        let silent = NodeStoppingReason::HealthPingTimeExceeded;
        let reason = reason.unwrap_or(silent);
        let elastic = self
            .ledger
            .node(&node_id)
            .is_some_and(greenroom_ledger::Node::is_elastic);
        match reason {
            NodeStoppingReason::HealthPingTimeExceeded => self.dies(node, &node_id)?,
            NodeStoppingReason::PendingTimeExceeded => self.link(&node_id, Link::PendingOver),
            NodeStoppingReason::StartupTimeExceeded => self.link(&node_id, Link::StartupOver),
            NodeStoppingReason::InitialisationHealthPingTimeExceeded => {
                self.link(&node_id, Link::HelloOver);
            }
            NodeStoppingReason::UserRequested => {
                self.call_aside(Call::TerminateNode(node_id.clone()))
                    .map_err(|refusal| Stuck(format!("{node} cannot be ended: {refusal}")))?;
            }
            NodeStoppingReason::ProviderStop if !elastic => {
                let reason = "the server goes down".to_owned();
                self.report(&node_id, Report::Goodbye { reason });
                self.unplug(&node_id);
            }
            NodeStoppingReason::ProviderStop => self.provider_says(&node_id, Finding::Stopped),
            NodeStoppingReason::ProviderTerminate if elastic => {
                self.provider_says(&node_id, Finding::Terminating);
            }
            NodeStoppingReason::UnknownNode if elastic => {
                self.provider_says(&node_id, Finding::Unknown);
            }
            NodeStoppingReason::CreateFailed if elastic => {
                self.create_fails(&node_id, "CreateFailed".to_owned());
            }
            other => {
                return Err(Stuck(format!(
                    "no event of the world makes {node} stop with {}",
                    crate::format::code(&other)
                )));
            }
        }
        Ok(())
    }

    fn provider_says(&mut self, node_id: &NodeId, finding: Finding) {
        self.unplug(node_id);
        if let Some(worker) = self.workers.get_mut(node_id) {
            worker.linked = false;
        }
        self.finding(node_id, finding);
    }

    fn stopped(&mut self, node: &NodeRef) -> Deed {
        let node_id = self.known(node)?;
        let elastic = self
            .ledger
            .node(&node_id)
            .is_some_and(greenroom_ledger::Node::is_elastic);
        if elastic {
            self.machine_gone(&node_id);
            return Ok(());
        }
        if self.state(&node_id) != Some(NodeState::Stopping) {
            self.lost(&node_id);
        }
        self.link(&node_id, Link::KeepaliveOver);
        Ok(())
    }

    /// A machine that was lost is there again, and some of what it ran still runs.
    fn returns(&mut self, node: &NodeRef, jobs: &[JobPath]) -> Deed {
        let node_id = self.known(node)?;
        let Some(worker) = self.workers.get_mut(&node_id) else {
            return Ok(());
        };
        if worker.up {
            return Err(Stuck(format!("{node} is not gone, so it cannot return")));
        }
        let mut past = std::mem::take(&mut worker.past);
        let registered = worker.token.is_some();
        for job in jobs {
            let job_id = job.job_id();
            let found = past
                .iter()
                .position(|order| order.instance.key.job_id == job_id);
            let Some(found) = found else {
                return Err(Stuck(format!("{job} did not run on {node} when it went")));
            };
            let order = past.remove(found);
            self.keeps(&node_id, order);
        }
        if registered {
            self.call_in(&node_id);
            return self.settle();
        }
        if self.state(&node_id) == Some(NodeState::Stopped) {
            return Err(Stuck(format!(
                "{node} is a bought machine and stopped: its provider has ended it"
            )));
        }
        self.worker_comes_up(&node_id);
        Ok(())
    }

    fn changes(&mut self, change: &InventoryChange) -> Deed {
        let node_id = self.known(&change.node)?;
        if let Some(worker) = self.workers.get_mut(&node_id) {
            let machine = &mut worker.machine;
            replace(&mut machine.capacity, change.capacity);
            replace(&mut machine.cores, change.cores);
            replace(&mut machine.utilization_cap, change.utilization_cap);
            replace(&mut machine.capabilities, change.capabilities.clone());
            replace(&mut machine.gpus, change.gpus.clone());
            replace(&mut machine.az, change.az.clone());
            replace(&mut machine.cordoned, change.cordoned);
            replace(&mut machine.disks, change.disks.clone());
            replace(&mut machine.runtime, change.runtime.clone());
            machine.judge_disk();
            if let Some(images) = &change.held_images {
                machine.held_images = images.iter().cloned().collect();
            }
        }
        self.send_inventory(&node_id);
        Ok(())
    }

    fn set_tags(&mut self, node: &NodeRef, tags: &BTreeMap<String, Option<String>>) -> Deed {
        let node_id = self.node(node)?;
        let mut set = greenroom_types::Tags::new();
        let mut remove = Vec::new();
        for (key, value) in tags {
            match value {
                Some(value) => {
                    set.insert(key.clone(), value.clone());
                }
                None => remove.push(key.clone()),
            }
        }
        self.call_aside(Call::SetNodeTags {
            node_id,
            tags: set,
            remove,
            expected_revision: None,
        })
        .map_err(|refusal| Stuck(format!("tags of {node}: {refusal}")))?;
        Ok(())
    }
}

fn replace<T>(old: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *old = new;
    }
}

// === impl World: jobs ===

impl World {
    /// Where a job's instance is, and which one: in a migration that of the binding.
    pub(super) fn live(&self, job: &JobPath) -> Result<(NodeId, StartId), Stuck> {
        let job_id = job.job_id();
        let bound = self
            .policy
            .as_ref()
            .and_then(|policy| policy.node_for_job(&job_id));
        let none = || Stuck(format!("{job} has no instance at a worker now"));
        let record = self
            .ledger
            .job(&job_id)
            .ok_or_else(|| Stuck(format!("the Manager knows no job {job}")))?;
        record
            .instances
            .iter()
            .filter_map(|start_id| self.ledger.instance(start_id))
            .filter(|instance| instance.is_live())
            .filter(|instance| {
                self.run(&instance.node_id, &instance.start_id)
                    .is_some_and(|run| !matches!(run.phase, RunPhase::Stopping | RunPhase::Remains))
            })
            .map(|instance| (instance.node_id.clone(), instance.start_id.clone()))
            .max_by_key(|(node_id, _)| bound == Some(node_id))
            .ok_or_else(none)
    }

    /// The instance of a job that its worker has in such a phase; where there are several, that of the
    /// binding.
    fn instance_in(
        &self,
        instance: &InstanceRef,
        phase: &str,
        is_in: impl Fn(RunPhase) -> bool,
    ) -> Result<(NodeId, StartId), Stuck> {
        let InstanceRef { job, node } = instance;
        let node_id = node.as_ref().map(|node| self.node(node)).transpose()?;
        let job_id = job.job_id();
        let bound = self
            .policy
            .as_ref()
            .and_then(|policy| policy.node_for_job(&job_id));
        let workers = self.workers.iter().filter(|(id, worker)| {
            worker.up && node_id.as_ref().is_none_or(|node_id| node_id == *id)
        });
        workers
            .flat_map(|(id, worker)| worker.runs.iter().map(move |run| (id, run)))
            .filter(|(_, (_, run))| run.order.instance.key.job_id == job_id && is_in(run.phase))
            .map(|(id, (start_id, _))| (id.clone(), start_id.clone()))
            .max_by_key(|(id, _)| bound == Some(id))
            .ok_or_else(|| match node {
                Some(node) => Stuck(format!("no instance of {job} is {phase} on {node} now")),
                None => Stuck(format!("no instance of {job} is {phase} now")),
            })
    }

    /// Somebody asks the Manager to stop an instance.
    fn stopped_aside(&mut self, instance: &InstanceRef) -> Deed {
        let InstanceRef { job, node } = instance;
        let (node_id, start_id) = match node {
            None => self.live(job)?,
            Some(_) => self.instance_in(instance, "live", RunPhase::is_live)?,
        };
        let role = self
            .ledger
            .instance(&start_id)
            .map_or_else(|| job.role(), |instance| instance.key.role.clone());
        self.call_aside(Call::StopJob {
            key: InstanceKey::new(job.job_id(), role),
            node_id,
            grace_ms: None,
        })
        .map_err(|refusal| Stuck(format!("{job} cannot be stopped: {refusal}")))?;
        Ok(())
    }

    /// The latest migration of a job.
    pub(crate) fn migration(&self, job: &JobPath) -> Result<MigrationState, Stuck> {
        let job_id = job.job_id();
        self.policy
            .as_ref()
            .and_then(|policy| {
                let mut all = policy.migrations();
                all.retain(|migration| migration.source_job_id == job_id);
                all.pop()
            })
            .ok_or_else(|| Stuck(format!("{job} was never migrated")))
    }

    /// A side of a migration speaks, whether or not it was asked.
    fn signal(&mut self, job: &JobPath, side: Side, kind: SignalKind, payload: &str) -> Deed {
        let migration = self.migration(job)?;
        let (role, node_id) = match side {
            Side::Source => (migration.source_role, Some(migration.source_node_id)),
            Side::Target => (migration.target_role, migration.target_node_id),
        };
        let node_id = node_id.ok_or_else(|| Stuck(format!("{job} has no target yet")))?;
        let bytes = Payload::from(payload.as_bytes());
        let signal = match kind {
            SignalKind::State => MigrationSignal::State(bytes),
            SignalKind::Refuse => MigrationSignal::Refused(payload.to_owned()),
            SignalKind::Ready => MigrationSignal::TargetReady(bytes),
            SignalKind::StoppedOutput => MigrationSignal::SourceStoppedOutput(bytes),
            SignalKind::Applied => MigrationSignal::TargetApplied(bytes),
            SignalKind::Aborted => MigrationSignal::Aborted {
                side: crate::format::code(&side),
                reason: payload.to_owned(),
            },
        };
        let report = Report::Migration {
            key: InstanceKey::new(job.job_id(), role),
            migration_id: migration.migration_id,
            signal,
        };
        self.report(&node_id, report);
        Ok(())
    }

    fn rejects(
        &mut self,
        job: &JobPath,
        node: Option<&NodeRef>,
        role: Option<&Role>,
        reason: &str,
        code: RejectionCode,
    ) -> Deed {
        let (node_id, start_id) = match (node, role) {
            (None, None) => self.live(job)?,
            _ => self.instance_at(job, node, role)?,
        };
        let slot = || InstanceKey::new(job.job_id(), job.role());
        let key = self
            .ledger
            .instance(&start_id)
            .map_or_else(slot, |instance| instance.key.clone());
        let detail = match reason {
            "" => "the worker refused it".to_owned(),
            words => words.to_owned(),
        };
        let inventory = self.workers.get_mut(&node_id).map(|worker| {
            worker.runs.remove(&start_id);
            Box::new(worker.inventory())
        });
        let instance = greenroom_types::call::InstanceRef { key, start_id };
        self.report(
            &node_id,
            Report::Rejected {
                instance,
                code,
                detail,
                inventory,
            },
        );
        Ok(())
    }

    /// The newest instance of a job that the Manager has on a node, in a role.
    fn instance_at(
        &self,
        job: &JobPath,
        node: Option<&NodeRef>,
        role: Option<&Role>,
    ) -> Result<(NodeId, StartId), Stuck> {
        let node_id = node.map(|node| self.node(node)).transpose()?;
        let job_id: JobId = job.job_id();
        let record = self.ledger.job(&job_id);
        record
            .into_iter()
            .flat_map(|record| &record.instances)
            .filter_map(|start_id| self.ledger.instance(start_id))
            .filter(|instance| node_id.as_ref().is_none_or(|id| *id == instance.node_id))
            .filter(|instance| role.is_none_or(|role| *role == instance.key.role))
            .map(|instance| (instance.node_id.clone(), instance.start_id.clone()))
            .next_back()
            .ok_or_else(|| Stuck(format!("the Manager has no such instance of {job}")))
    }
}
