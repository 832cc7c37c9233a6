//! Leases as workers keep them: refreshed at a third of their time, and what runs is ended before the
//! time is over since the last refresh that was answered (LEASE-03, LEASE-04 of the Manager).

use greenroom_ledger::{Refreshed, Report, WorkerJob};
use greenroom_types::node::RejectionCode;
use greenroom_types::{Millis, Mono, NodeId, StartId};

use super::World;
use super::hold::Pending;

// === impl World ===

impl World {
    /// Asks for the lease of an order that has just come; false when it has no right to run any more
    /// and is rejected (LEASE-17).
    pub(super) fn takes_lease(&mut self, node_id: &NodeId, job: &WorkerJob) -> bool {
        if job.lease.is_none() || self.refresh_lease(node_id, job).is_some() {
            return true;
        }
        let report = Report::Rejected {
            instance: job.instance.clone(),
            code: RejectionCode::Lease,
            detail: "another start holds the lease".to_owned(),
            inventory: None,
        };
        self.report(node_id, report);
        false
    }

    /// From now on the lease of an instance is refreshed, and its end is watched.
    pub(super) fn keeps_lease(&mut self, node_id: &NodeId, start_id: &StartId) {
        let Some(ttl) = self.lease_ttl(node_id, start_id) else {
            return;
        };
        let now = self.mono();
        let (node_id, start_id) = (node_id.clone(), start_id.clone());
        if let Some(run) = self.run_mut(&node_id, &start_id) {
            run.refreshed = now;
        }
        let (third, end) = (Millis(ttl.0 / 3), end_of(ttl));
        self.after(third, Pending::Refresh(node_id.clone(), start_id.clone()));
        self.after(end, Pending::LeaseEnds(node_id, start_id, now));
    }

    pub(super) fn refreshes(&mut self, node_id: &NodeId, start_id: &StartId) {
        let Some(run) = self.run(node_id, start_id) else {
            return;
        };
        let order = run.order.clone();
        if !self.workers.get(node_id).is_some_and(|it| it.hears()) {
            let third = Millis(order.lease.map_or(0, |lease| lease.ttl_ms.0) / 3);
            self.after(third, Pending::Refresh(node_id.clone(), start_id.clone()));
        } else if self.refresh_lease(node_id, &order).is_some() {
            self.keeps_lease(node_id, start_id);
        } else {
            self.loses_lease(node_id, start_id);
        }
    }

    /// The lease's time has passed since the refresh of that moment, if that was the last one.
    pub(super) fn lease_ends(&mut self, node_id: &NodeId, start_id: &StartId, since: Mono) {
        let paused = self.workers.get(node_id).is_some_and(|it| it.paused);
        let last = self.run(node_id, start_id).map(|run| run.refreshed);
        if !paused && last == Some(since) {
            self.loses_lease(node_id, start_id);
        }
    }

    /// Leases stand still for a worker, or begin anew (LEASE-10, LEASE-12).
    pub(super) fn leases_paused(&mut self, node_id: &NodeId, paused: bool) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let before = std::mem::replace(&mut worker.paused, paused);
        let starts: Vec<StartId> = worker.runs.keys().cloned().collect();
        if before && !paused {
            for start_id in starts {
                self.keeps_lease(node_id, &start_id);
            }
        }
    }

    fn refresh_lease(&mut self, node_id: &NodeId, job: &WorkerJob) -> Option<Millis> {
        let now = self.now();
        let answer = self
            .leases
            .refresh(now, &self.ledger, node_id, &job.instance, job.fence);
        match answer {
            Refreshed::For(ttl) => Some(ttl),
            Refreshed::Superseded => None,
        }
    }

    /// It is killed without grace, and told as that.
    fn loses_lease(&mut self, node_id: &NodeId, start_id: &StartId) {
        if let Some(run) = self.run(node_id, start_id) {
            let instance = run.order.instance.clone();
            let reason = "LEASE_LOST: it was not refreshed in time".to_owned();
            self.report(node_id, Report::Failed { instance, reason });
            self.ends(node_id, start_id, false);
        }
    }

    fn lease_ttl(&self, node_id: &NodeId, start_id: &StartId) -> Option<Millis> {
        let lease = self.run(node_id, start_id)?.order.lease;
        lease.map(|lease| lease.ttl_ms)
    }
}

/// So long after the last refresh a worker has ended what it ran: the last process is dead before the
/// time is over (LEASE-04).
const fn end_of(ttl: Millis) -> Millis {
    let allowance = if ttl.0 / 4 < 2_000 { ttl.0 / 4 } else { 2_000 };
    Millis(ttl.0 - allowance)
}
