//! What the world will do by itself, and what it is kept from doing (SCEN-09).

use std::collections::BTreeMap;

use greenroom_policy::event::CallId;
use greenroom_types::call::Refusal;
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{JobId, MigrationId, Mono, NodeId, StartId};

use super::World;
use crate::format::action::HoldKind;
use crate::format::names::{NodeRef, Subject};

/// Something that the world does when its time comes.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// A machine that was asked for runs, and boots.
    MachineRuns(NodeId),
    /// A machine that was asked for is not made.
    CreateFails(NodeId, String),
    /// A worker comes up and says hello.
    Hello(NodeId),
    /// A worker sends its picture.
    Inventory(NodeId),
    /// A deferred instance is prepared.
    Prepared(NodeId, StartId),
    /// An instance runs.
    Running(NodeId, StartId),
    /// An instance and its remains are gone.
    Gone(NodeId, StartId),
    /// An instance speaks in a migration.
    Signal(NodeId, StartId, MigrationId, MigrationSignal),
    /// A pull settles: the image is there, or not.
    Pulled(NodeId, String, bool),
    /// The Manager's refusal of a call about a node reaches the policy that made it, by the number of
    /// that policy.
    Refused(NodeId, u64, CallId, Refusal),
    /// A terminated machine is gone.
    MachineGone(NodeId),
    /// A worker that was told to end has ended.
    WorkerEnds(NodeId),
    /// The Manager has heard nothing of a worker for too long; the number tells one cut of the line
    /// from the next.
    Silence(NodeId, u64),
    /// A worker refreshes the lease of an instance.
    Refresh(NodeId, StartId),
    /// A lease that was last refreshed at that moment ends.
    LeaseEnds(NodeId, StartId, Mono),
}

/// What is held, and what is kept back by that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    rules: Vec<Rule>,
    kept: BTreeMap<u64, Pending>,
    next: u64,
}

/// A hold or a release; the last one that fits decides.
#[derive(Clone, Debug)]
struct Rule {
    kind: HoldKind,
    only: Option<Subject>,
    held: bool,
}

// === impl Pending ===

impl Pending {
    /// By which word it is held, if it can be.
    const fn kind(&self) -> Option<HoldKind> {
        match self {
            Self::MachineRuns(_) => Some(HoldKind::NodeBooting),
            Self::CreateFails(..) => Some(HoldKind::CreateOutcome),
            Self::Hello(_) => Some(HoldKind::NodeStarted),
            Self::Inventory(_) => Some(HoldKind::Inventory),
            Self::Prepared(..) => Some(HoldKind::Prepared),
            Self::Running(..) => Some(HoldKind::JobRunning),
            Self::Gone(..) => Some(HoldKind::JobStopped),
            Self::Signal(..) => Some(HoldKind::MigrationSignals),
            Self::Pulled(..) => Some(HoldKind::ImagePulls),
            Self::MachineGone(_) | Self::WorkerEnds(_) => Some(HoldKind::NodeStopped),
            Self::Refused(..) | Self::Silence(..) | Self::Refresh(..) | Self::LeaseEnds(..) => None,
        }
    }

    const fn node_id(&self) -> &NodeId {
        match self {
            Self::MachineRuns(node_id)
            | Self::CreateFails(node_id, _)
            | Self::Hello(node_id)
            | Self::Inventory(node_id)
            | Self::Prepared(node_id, _)
            | Self::Running(node_id, _)
            | Self::Gone(node_id, _)
            | Self::Signal(node_id, ..)
            | Self::Pulled(node_id, ..)
            | Self::Refused(node_id, ..)
            | Self::MachineGone(node_id)
            | Self::WorkerEnds(node_id)
            | Self::Silence(node_id, _)
            | Self::Refresh(node_id, _)
            | Self::LeaseEnds(node_id, ..) => node_id,
        }
    }

    const fn start_id(&self) -> Option<&StartId> {
        match self {
            Self::Prepared(_, start_id)
            | Self::Running(_, start_id)
            | Self::Gone(_, start_id)
            | Self::Signal(_, start_id, ..)
            | Self::Refresh(_, start_id)
            | Self::LeaseEnds(_, start_id, _) => Some(start_id),
            _ => None,
        }
    }
}

// === impl Holds ===

impl Holds {
    /// The rule for a kind and a subject from now on.
    fn rule(&mut self, kind: HoldKind, only: Option<&Subject>, held: bool) {
        let only = only.cloned();
        self.rules
            .retain(|rule| rule.kind != kind || rule.only != only);
        self.rules.push(Rule { kind, only, held });
    }
}

// === impl World ===

impl World {
    /// The moment of something has come: it happens, or is kept back.
    pub(super) fn meet(&mut self, what: Pending) {
        if let Some(kind) = what.kind()
            && self.is_held(kind, what.node_id(), self.job_of(&what).as_ref())
        {
            self.holds.kept.insert(self.holds.next, what);
            self.holds.next += 1;
            return;
        }
        self.happen(what);
    }

    pub(super) fn hold(&mut self, kinds: &[HoldKind], only: Option<&Subject>) {
        for kind in kinds {
            self.holds.rule(*kind, only, true);
        }
    }

    /// What was kept of an instance has happened in another way.
    pub(super) fn forget_kept(&mut self, kind: HoldKind, start_id: &StartId) {
        let is_it = |what: &Pending| what.kind() == Some(kind) && what.start_id() == Some(start_id);
        self.holds.kept.retain(|_, what| !is_it(what));
    }

    /// Delivers at once what would have been due.
    pub(super) fn release(&mut self, kinds: &[HoldKind], only: Option<&Subject>) {
        for kind in kinds {
            if only.is_none() {
                self.holds.rules.retain(|rule| rule.kind != *kind);
            } else {
                self.holds.rule(*kind, only, false);
            }
        }
        let kept = std::mem::take(&mut self.holds.kept);
        for (number, what) in kept {
            let still = what.kind().is_some_and(|kind| {
                self.is_held(kind, what.node_id(), self.job_of(&what).as_ref())
            });
            if still {
                self.holds.kept.insert(number, what);
            } else {
                self.happen(what);
            }
        }
    }

    /// True while answers of this kind about this node or job are kept back.
    pub(super) fn is_held(&self, kind: HoldKind, node_id: &NodeId, job: Option<&JobId>) -> bool {
        self.holds
            .rules
            .iter()
            .rev()
            .filter(|rule| rule.kind == kind)
            .find(|rule| match &rule.only {
                None => true,
                Some(Subject::Job(path)) => job.is_some_and(|job| *job == path.job_id()),
                Some(Subject::Node(NodeRef::Id(id))) => id == node_id,
                Some(Subject::Node(node)) => self.resolve(node).as_ref() == Some(node_id),
            })
            .is_some_and(|rule| rule.held)
    }

    fn job_of(&self, what: &Pending) -> Option<JobId> {
        let worker = self.workers.get(what.node_id())?;
        let run = worker.runs.get(what.start_id()?)?;
        Some(run.order.instance.key.job_id.clone())
    }

    fn happen(&mut self, what: Pending) {
        match what {
            Pending::MachineRuns(node_id) => self.machine_runs(&node_id),
            Pending::CreateFails(node_id, code) => self.create_fails(&node_id, code),
            Pending::Hello(node_id) => self.worker_comes_up(&node_id),
            Pending::Inventory(node_id) => self.send_inventory(&node_id),
            Pending::Prepared(node_id, start_id) => self.is_prepared(&node_id, &start_id),
            Pending::Running(node_id, start_id) => self.runs(&node_id, &start_id),
            Pending::Gone(node_id, start_id) => self.is_gone(&node_id, &start_id),
            Pending::Signal(node_id, start_id, migration_id, signal) => {
                self.speaks(&node_id, &start_id, migration_id, signal);
            }
            Pending::Pulled(node_id, reference, ok) => self.pulled(&node_id, &reference, ok),
            Pending::Refused(_, policy, call_id, refusal) => {
                self.answer_refused(policy, call_id, refusal);
            }
            Pending::MachineGone(node_id) => self.machine_gone(&node_id),
            Pending::WorkerEnds(node_id) => self.worker_ends(&node_id),
            Pending::Silence(node_id, cut) => self.silence(&node_id, cut),
            Pending::Refresh(node_id, start_id) => self.refreshes(&node_id, &start_id),
            Pending::LeaseEnds(node_id, start_id, since) => {
                self.lease_ends(&node_id, &start_id, since);
            }
        }
    }
}
