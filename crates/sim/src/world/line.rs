//! The line between the Manager and a worker: it opens with a hello, carries orders and reports, is
//! cut, mended, or given up. What a worker does with an order stands in [`super::worker`].

use greenroom_ledger::{
    Command, Finding, Hello, HelloInstance, Line, Link, Register, Report, WorkerOrder,
};
use greenroom_types::node::NodeState;
use greenroom_types::{Millis, NodeId};

use super::World;
use super::hold::Pending;
use super::worker::RunPhase;
use crate::format::action::HoldKind;

// === impl World ===

impl World {
    /// A message of the Manager for a worker. What is on a cut line arrives when it is mended, if the
    /// Manager has not given the line up by then.
    pub(super) fn tell_worker(&mut self, node_id: &NodeId, message: WorkerOrder) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        if worker.hears() {
            self.obey(node_id, message);
        } else if worker.up && worker.linked {
            worker.mail.push(message);
        }
    }

    /// The process of a worker is gone. What ran is remembered, for a machine that comes back.
    pub(super) fn unplug(&mut self, node_id: &NodeId) {
        if let Some(worker) = self.workers.get_mut(node_id) {
            let runs = std::mem::take(&mut worker.runs);
            worker.past = runs
                .into_values()
                .filter(|run| run.phase == RunPhase::Running)
                .map(|run| *run.order)
                .collect();
            worker.up = false;
            worker.ending = false;
            worker.cut = false;
            worker.journal.clear();
            worker.mail.clear();
            worker.pulls.clear();
        }
    }

    /// The Manager sees the stream closed.
    pub(super) fn drop_line(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        if std::mem::take(&mut worker.linked) {
            let now = self.now();
            self.keeper.line(now, &self.ledger, node_id, Line::Closed);
        }
        self.link(node_id, Link::Dropped);
    }

    /// The Manager heard nothing for too long.
    pub(super) fn silence(&mut self, node_id: &NodeId, cut: u64) {
        let silent = self
            .workers
            .get(node_id)
            .is_some_and(|worker| !worker.hears() && worker.cuts == cut && worker.linked);
        if silent {
            if let Some(worker) = self.workers.get_mut(node_id) {
                worker.mail.clear();
            }
            self.drop_line(node_id);
        }
    }

    pub(super) fn partition(&mut self, node_id: &NodeId) {
        let silence = self.spec.manager.silence;
        if let Some(worker) = self.workers.get_mut(node_id)
            && !worker.cut
        {
            worker.cut = true;
            worker.cuts += 1;
            let due = Pending::Silence(node_id.clone(), worker.cuts);
            self.after(silence, due);
        }
    }

    pub(super) fn heal(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        worker.cut = false;
        worker.mended_at = Some(self.mono);
        if !worker.up {
            return;
        }
        if !worker.linked {
            let ended = self
                .ledger
                .node(node_id)
                .is_some_and(|node| node.state == NodeState::Stopped);
            // Nobody dials what is ended: such a server calls in again.
            if ended {
                self.call_in(node_id);
            } else {
                self.connect_worker(node_id);
            }
            return;
        }
        for report in std::mem::take(&mut worker.journal) {
            self.report(node_id, report);
        }
        let mail = self
            .workers
            .get_mut(node_id)
            .map(|worker| std::mem::take(&mut worker.mail));
        for message in mail.into_iter().flatten() {
            self.obey(node_id, message);
        }
    }

    /// A worker's process comes up; the Manager reaches it.
    pub(super) fn worker_comes_up(&mut self, node_id: &NodeId) {
        if let Some(worker) = self.workers.get_mut(node_id) {
            worker.up = true;
            self.connect_worker(node_id);
        }
    }

    /// The stream opens and the worker says hello; what waited in its journal follows.
    pub(super) fn connect_worker(&mut self, node_id: &NodeId) {
        let quiet = self.is_held(HoldKind::Inventory, node_id, None);
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        if !worker.up || worker.cut {
            return;
        }
        worker.linked = true;
        if self.mono.0 > 0 {
            worker.mended_at = Some(self.mono);
        }
        let instances = worker
            .runs
            .values()
            .map(|run| HelloInstance {
                instance: run.order.instance.clone(),
                state: run.phase.state(),
                ports: Default::default(),
                fence: run.order.fence,
            })
            .collect();
        let leases_paused = worker.paused;
        let journal = std::mem::take(&mut worker.journal);
        let hello = Hello {
            boot_id: "simulated".to_owned(),
            protocol_minor: 10,
            inventory: (!quiet).then(|| Box::new(worker.inventory())),
            instances,
            last_report_id: worker.report_id + journal.len() as u64,
            leases_paused,
            ..Hello::default()
        };
        let now = self.now();
        self.keeper.line(now, &self.ledger, node_id, Line::Opened);
        self.send(node_id, 0, Report::Hello(Box::new(hello)));
        for report in journal {
            self.report(node_id, report);
        }
        if quiet {
            self.after(Millis(0), Pending::Inventory(node_id.clone()));
        }
    }

    /// A registered server's worker calls in, and is dialled.
    pub(super) fn call_in(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        worker.up = true;
        let Some(token) = worker.token.clone() else {
            return;
        };
        let register = Register {
            token,
            address: format!("{node_id}:7000"),
            machine_id: node_id.to_string(),
            public_key: node_id.to_string(),
            key: "simulated".to_owned(),
            hardware: None,
        };
        let _ = self.commit(Command::Register(register));
    }

    /// A worker says something that goes through its journal.
    ///
    /// What waited shows the machine as it is when it is sent, not as it was: so does a real worker.
    pub(super) fn report(&mut self, node_id: &NodeId, mut report: Report) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        if !worker.hears() {
            if worker.up {
                worker.journal.push(report);
            }
            return;
        }
        if let Report::Rejected { inventory, .. } = &mut report {
            *inventory = Some(Box::new(worker.inventory()));
        }
        worker.report_id += 1;
        let report_id = worker.report_id;
        self.send(node_id, report_id, report);
    }

    pub(super) fn send(&mut self, node_id: &NodeId, report_id: u64, report: Report) {
        // The ledger refuses what comes too late; a worker has nothing to do about it here.
        let _ = self.commit(Command::Report {
            node_id: node_id.clone(),
            report_id,
            report: Box::new(report),
        });
    }

    pub(super) fn link(&mut self, node_id: &NodeId, link: Link) {
        let node_id = node_id.clone();
        let _ = self.commit(Command::Link { node_id, link });
    }

    pub(super) fn finding(&mut self, node_id: &NodeId, finding: Finding) {
        let node_id = node_id.clone();
        let _ = self.commit(Command::Provider { node_id, finding });
    }
}
