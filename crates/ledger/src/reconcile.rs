//! A worker says hello: what it has is laid against what the Manager expects, by start id
//! (MNODE-07, MNODE-11, MNODE-13, MNODE-16).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::{HistoryKind, JobState, StopReason};
use greenroom_types::node::{InstanceState, NodeState};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId, StartId};

use crate::instance::Fate;
use crate::job::GRACE;
use crate::ledger::Ledger;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::{failed, unknown_node};
use crate::report::{Hello, HelloInstance};
use crate::state::Awaiting;

/// Detail of an instance that its worker no longer has.
const MISSING: &str = "missing_at_hello";

// === impl Ledger ===

impl Ledger {
    pub(crate) fn apply_hello(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        hello: Hello,
    ) -> CallResult {
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        let (state, given_up) = (node.state, node.given_up);
        if state == NodeState::Stopped && !node.awaits_return() {
            return Err(
                failed("node_not_running", format!("node {node_id:?} is stopped"))
                    .with("node", node_id.as_str()),
            );
        }
        self.merge_running(out, node_id, &hello.running);
        let Some(node) = self.nodes.get_mut(node_id) else {
            return Ok(Reply::Done);
        };
        node.boot_id = hello.boot_id;
        node.protocol_minor = hello.protocol_minor;
        node.last_seen = Some(out.at);
        // A journal that is behind what we stored is another one: its numbers begin anew.
        node.report_acked = node.report_acked.min(hello.last_report_id);
        let outstanding =
            (hello.last_report_id > node.report_acked).then_some(hello.last_report_id);
        out.nodes.insert(node_id.clone());

        let ends = state == NodeState::Stopping && !given_up;
        if !ends {
            self.node_is_heard(out, node_id, state);
        }
        self.reconcile(out, node_id, hello.instances, outstanding);
        if self.lease_pause.is_some() || hello.leases_paused {
            self.order_pause(out, node_id);
        }
        if ends {
            // It was told to end and has not, or could not be told.
            let park = !self.slots.get(node_id).is_some_and(|slot| slot.leaving);
            out.order(
                node_id,
                WorkerOrder::Shutdown {
                    grace_ms: GRACE,
                    park,
                },
            );
            return Ok(Reply::Done);
        }
        match hello.inventory {
            Some(picture) => {
                if let Some(node) = self.nodes.get_mut(node_id) {
                    // A fresh picture is told after every hello, also one equal to the last.
                    node.inventory = None;
                }
                self.take_inventory(out, node_id, *picture);
            }
            None => self.mark_reachable(out, node_id, true),
        }
        self.repeat_batches(out, node_id);
        if let Some(node) = self.nodes.get(node_id)
            && !node.metadata.tags.is_empty()
        {
            let tags = node.metadata.tags.clone();
            out.order(node_id, WorkerOrder::Tags(tags));
        }
        self.send_discovery(out, node_id);
        self.send_replica(out, node_id);
        Ok(Reply::Done)
    }

    fn node_is_heard(&mut self, out: &mut Out, node_id: &NodeId, before: NodeState) {
        self.turn_node(out, node_id, NodeState::Running);
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        node.stop = None;
        node.stopped_at = None;
        node.given_up = false;
        match before {
            NodeState::Running => {}
            NodeState::Unreachable => out.event(StreamEvent::NodeReachabilityChanged {
                node_id: node_id.clone(),
                reachable: true,
            }),
            NodeState::Starting | NodeState::Stopping | NodeState::Stopped => {
                node.compose_tags();
                out.event(StreamEvent::NodeStarted {
                    metadata: node.metadata.clone(),
                    running: node.running.clone(),
                });
            }
        }
    }

    fn reconcile(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        reported: Vec<HelloInstance>,
        outstanding: Option<u64>,
    ) {
        let mut found: BTreeMap<StartId, HelloInstance> = BTreeMap::new();
        for item in reported {
            found.insert(item.instance.start_id.clone(), item);
        }
        self.forget_strays_but(out, node_id, &found.keys().cloned().collect());
        let expected = self.starts_on(node_id);
        let mut missing = BTreeSet::new();
        for start_id in &expected {
            match found.remove(start_id) {
                Some(item) => self.reconcile_reported(out, start_id, item),
                None => {
                    let sent = self
                        .instances
                        .get(start_id)
                        .is_some_and(|instance| instance.delivered);
                    if sent && outstanding.is_some() {
                        // A report that tells what became of it may be under way.
                        missing.insert(start_id.clone());
                    } else {
                        self.reconcile_missing(out, start_id);
                    }
                }
            }
        }
        for (_, item) in found {
            self.take_stray(out, node_id, item);
        }
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.awaiting = outstanding
                .filter(|_| !missing.is_empty())
                .map(|through| Awaiting {
                    through,
                    starts: missing,
                });
        }
    }

    /// The worker has an instance that is expected on its node.
    fn reconcile_reported(&mut self, out: &mut Out, start_id: &StartId, item: HelloInstance) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        if instance.key != item.instance.key {
            let node_id = instance.node_id.clone();
            self.take_stray(out, &node_id, item);
            return;
        }
        instance.delivered = true;
        instance.accepted = true;
        out.instances.insert(start_id.clone());
        let over = self
            .jobs
            .get(&item.instance.key.job_id)
            .is_none_or(|record| record.deleting || record.view.state == JobState::Post);
        if instance.state == InstanceState::Lost {
            let instance = &self.instances[start_id];
            let wanted = !over
                && !instance.ending
                && !self.is_superseded(instance)
                && instance.stop.is_none_or(|stop| !stop.order)
                && !self.live.contains_key(&instance.key);
            if wanted {
                self.take_back(out, start_id, item);
            } else {
                self.stop_returned(out, start_id, item);
            }
            return;
        }
        if let Some(stop) = instance.stop {
            if stop.order {
                out.orders.extend(self.stop_order(start_id, stop.grace_ms));
            }
            return;
        }
        match item.state {
            InstanceState::Running => self.instance_runs(out, start_id, item.ports),
            InstanceState::Prepared => self.instance_prepared(out, start_id),
            _ => {}
        }
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        if instance.state == InstanceState::Prepared && instance.start_prepared {
            let message = WorkerOrder::StartPrepared(instance.instance_ref());
            out.order(&instance.node_id.clone(), message);
        }
        self.tell_update(out, start_id);
        self.send_kept_aborts(out, start_id);
    }

    /// A lost instance is there again and nobody started its key elsewhere: the same start id, no
    /// restart.
    fn take_back(&mut self, out: &mut Out, start_id: &StartId, item: HelloInstance) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        instance.stop = None;
        instance.state = match item.state {
            InstanceState::Provisioned => InstanceState::Provisioned,
            InstanceState::Prepared => InstanceState::Prepared,
            _ => InstanceState::Running,
        };
        let job_id = instance.key.job_id.clone();
        let state = instance.state;
        instance.told_stopping = false;
        // Whoever wants it to run says so again: it was lost meanwhile, and another may be on the air.
        instance.start_prepared = false;
        let copy = instance.clone();
        self.index_instance(&copy);
        self.take_lease_back(out, start_id);
        out.instances.insert(start_id.clone());
        if let Some(record) = self.jobs.get_mut(&job_id)
            && record.view.state == JobState::Pre
        {
            std::sync::Arc::make_mut(&mut record.view).state = JobState::Active;
        }
        out.job(&job_id);
        // Whoever reads the history must see that it is there again, also before it runs (HIST-04).
        self.append_at(out, start_id, |at| match state {
            InstanceState::Provisioned => HistoryKind::Provisioned(at),
            InstanceState::Prepared => HistoryKind::Prepared(at),
            _ => HistoryKind::Running {
                at,
                ports: item.ports,
            },
        });
        self.refresh_pending_restart(&job_id);
        self.tell_update(out, start_id);
        self.send_kept_aborts(out, start_id);
    }

    /// A lost instance is there again and is not wanted any more.
    fn stop_returned(&mut self, out: &mut Out, start_id: &StartId, item: HelloInstance) {
        let superseded = self
            .instances
            .get(start_id)
            .is_some_and(|instance| self.is_superseded(instance));
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let asked = instance.stop.filter(|stop| stop.order);
        let (grace_ms, reason) = if superseded {
            // Somebody else may run now (LEASE-12).
            (Millis(0), StopReason::LeaseLost)
        } else {
            let grace_ms = asked.map_or(GRACE, |stop| stop.grace_ms);
            (grace_ms, StopReason::UnknownJob)
        };
        instance.state = InstanceState::Stopping;
        instance.ending = true;
        let (job_id, node_id) = (instance.key.job_id.clone(), instance.node_id.clone());
        let instance_ref = instance.instance_ref();
        if let Some(stop) = &mut instance.stop {
            stop.order = true;
        }
        out.instances.insert(start_id.clone());
        self.note_returned(out, &node_id, item);
        out.job(&job_id);
        out.order(
            &node_id,
            WorkerOrder::Stop {
                instance: instance_ref,
                grace_ms,
                reason,
            },
        );
        // Its job's delete no longer waits for it: the worker is told, and its start id remembered.
        self.remove_job_if_free(out, &job_id);
    }

    /// The worker does not have an instance that is expected on its node.
    fn reconcile_missing(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let never_taken = instance.state == InstanceState::Provisioned && !instance.accepted;
        if never_taken && instance.stop.is_none() {
            // The order did not arrive, or was never sent: the same start id again (HARDM-01).
            self.provision(out, start_id);
            return;
        }
        if instance.stop.is_none() {
            self.stop_instance(
                out,
                start_id,
                StopReason::JobFailed,
                MISSING,
                GRACE,
                Fate::Ending { tell: false },
            );
        }
        self.end_instance(out, start_id);
    }

    /// Judges what was missing at the hello once the reports that were under way are in.
    pub(crate) fn judge_missing(&mut self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        let due = node
            .awaiting
            .as_ref()
            .is_some_and(|awaiting| node.report_acked >= awaiting.through);
        if !due {
            return;
        }
        let starts = node.awaiting.take().map(|awaiting| awaiting.starts);
        out.nodes.insert(node_id.clone());
        for start_id in starts.into_iter().flatten() {
            self.reconcile_missing(out, &start_id);
        }
    }
}
