//! What workers report about instances (JOB-20 to JOB-22, JOB-34) and themselves.
//!
//! A report about a start id that is not expected on that worker changes nothing; if it says that
//! something runs there, the worker is told to stop it.

use greenroom_types::call::{CallResult, InstanceRef, Reply};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, PortMappings, ServiceRestart, StopReason};
use greenroom_types::node::{
    InstanceState, InterruptionKind, NodeState, NodeStoppingReason, RejectionCode,
};
use greenroom_types::stream::{PrefetchResult, StreamEvent};
use greenroom_types::{Millis, NodeId, StartId};
use serde_json::json;

use crate::instance::Fate;
use crate::job::{GRACE, REASON_BYTES};
use crate::ledger::Ledger;
use crate::node::{NodeFate, plain};
use crate::order::{Order, ProviderTask, WorkerOrder};
use crate::out::Out;
use crate::refuse::{cut, failed, unknown_node};
use crate::report::Report;
use crate::state::Notice;
use crate::tags::INTERRUPTION;

/// How the reason begins that a worker gives for an instance whose lease ran out there (LEASE-04).
const LEASE_LOST: &str = "LEASE_LOST";

// === impl Ledger ===

impl Ledger {
    pub(crate) fn apply_report(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        report_id: u64,
        report: Report,
    ) -> CallResult {
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        if let Report::Hello(hello) = report {
            return self.apply_hello(out, node_id, *hello);
        }
        if !matches!(node.state, NodeState::Running | NodeState::Stopping) || node.given_up {
            // It comes again after the hello that this stream did not have, or no longer has.
            return Err(failed(
                "node_not_running",
                format!("node {node_id:?} has no stream with a hello"),
            )
            .with("node", node_id.as_str()));
        }
        if report_id > node.report_acked || report_id == 0 {
            self.take_report(out, node_id, report);
        }
        if report_id > 0 {
            if let Some(node) = self.nodes.get_mut(node_id)
                && report_id > node.report_acked
            {
                node.report_acked = report_id;
                out.nodes.insert(node_id.clone());
            }
            out.order(node_id, WorkerOrder::ReportAck { report_id });
            self.judge_missing(out, node_id);
        }
        self.finish_leaving(out, node_id);
        Ok(Reply::Done)
    }

    fn take_report(&mut self, out: &mut Out, node_id: &NodeId, report: Report) {
        match report {
            // Handled before: a hello is no report about something on a stream.
            Report::Hello(_) => {}
            Report::Accepted(instance) => {
                let (state, ports) = (InstanceState::Provisioned, PortMappings::new());
                if let Some(start_id) = self.expected(out, node_id, instance, state, &ports) {
                    self.accept(out, &start_id);
                }
            }
            Report::Prepared { instance, ports } => {
                let state = InstanceState::Prepared;
                if let Some(start_id) = self.expected(out, node_id, instance, state, &ports) {
                    self.accept(out, &start_id);
                    self.instance_prepared(out, &start_id);
                }
            }
            Report::Started { instance, ports } => {
                let state = InstanceState::Running;
                if let Some(start_id) = self.expected(out, node_id, instance, state, &ports) {
                    self.accept(out, &start_id);
                    self.instance_runs(out, &start_id, ports);
                }
            }
            Report::Stopped {
                instance,
                completed,
            } => match self.known(node_id, &instance) {
                Some(start_id) => self.instance_stopped(out, &start_id, completed),
                None => self.stray_gone(out, node_id, &instance),
            },
            Report::Failed { instance, reason } => {
                if let Some(start_id) = self.known(node_id, &instance) {
                    self.instance_failed(out, &start_id, &reason);
                }
            }
            Report::Rejected {
                instance,
                code,
                detail,
                inventory,
            } => self.rejected(out, node_id, &instance, code, &detail, inventory),
            Report::Inventory(picture) => self.take_inventory(out, node_id, *picture),
            Report::Notice {
                kind,
                deadline,
                seen_at,
            } => {
                let notice = Notice {
                    kind,
                    deadline,
                    seen_at,
                };
                self.take_notice(out, node_id, notice);
            }
            Report::ImagesPrefetched { batch_id, results } => {
                self.prefetched(out, node_id, batch_id, results);
            }
            Report::Migration {
                key,
                migration_id,
                signal,
            } => self.take_signal(out, node_id, key, migration_id, signal),
            Report::Goodbye { reason } => self.goodbye(out, node_id, reason),
        }
    }

    /// The start id, if it is known to be on that node.
    fn known(&self, node_id: &NodeId, instance: &InstanceRef) -> Option<StartId> {
        let known = self.instances.get(&instance.start_id)?;
        (known.node_id == *node_id && known.key == instance.key).then(|| instance.start_id.clone())
    }

    /// The start id, if it is known; otherwise it is a stray (JOB-20).
    fn expected(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        instance: InstanceRef,
        state: InstanceState,
        ports: &PortMappings,
    ) -> Option<StartId> {
        let known = self.known(node_id, &instance);
        if known.is_none() {
            self.hear_stray(out, node_id, instance, state, ports.clone());
        }
        known
    }

    fn accept(&mut self, out: &mut Out, start_id: &StartId) {
        if let Some(instance) = self.instances.get_mut(start_id)
            && !instance.accepted
        {
            instance.accepted = true;
            out.instances.insert(start_id.clone());
        }
    }

    pub(crate) fn instance_prepared(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        if instance.state != InstanceState::Provisioned {
            return;
        }
        instance.state = InstanceState::Prepared;
        let event = StreamEvent::JobPrepared {
            key: instance.key.clone(),
            node_id: instance.node_id.clone(),
            start_id: start_id.clone(),
        };
        out.instances.insert(start_id.clone());
        if !instance.told_stopping {
            self.append_at(out, start_id, HistoryKind::Prepared);
        }
        out.event(event);
    }

    pub(crate) fn instance_runs(&mut self, out: &mut Out, start_id: &StartId, ports: PortMappings) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let begins = matches!(
            instance.state,
            InstanceState::Provisioned | InstanceState::Prepared
        );
        if !begins {
            return;
        }
        instance.state = InstanceState::Running;
        instance.told_stopping = false;
        self.append_at(out, start_id, |at| HistoryKind::Running { at, ports });
    }

    fn instance_stopped(&mut self, out: &mut Out, start_id: &StartId, completed: bool) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let job_id = instance.key.job_id.clone();
        let by_itself = completed && instance.stop.is_none();
        if instance.stop.is_none() && !completed {
            self.stop_instance(
                out,
                start_id,
                StopReason::JobFailed,
                "it ended without being asked to",
                GRACE,
                Fate::Ending { tell: false },
            );
        }
        self.end_instance(out, start_id);
        if by_itself && self.is_done(&job_id) {
            self.complete(out, &job_id);
        }
    }

    /// JOB-34: nothing of the job is live and nothing of it is to run for ever.
    fn is_done(&self, job_id: &greenroom_types::JobId) -> bool {
        let Some(record) = self.jobs.get(job_id) else {
            return false;
        };
        let for_ever = record
            .view
            .job
            .services
            .iter()
            .any(|service| service.restart == ServiceRestart::Always);
        !for_ever
            && record.view.state == greenroom_types::job::JobState::Active
            && !self.has_live(job_id)
    }

    fn instance_failed(&mut self, out: &mut Out, start_id: &StartId, reason: &str) {
        // A stop that was recorded first stays the one entry (HARDM-10).
        if let Some(instance) = self.instances.get(start_id)
            && instance.stop.is_none()
        {
            let lost = reason
                .strip_prefix(LEASE_LOST)
                .filter(|_| instance.fence > 0);
            let (why, text) = match lost {
                Some(text) => (StopReason::LeaseLost, text.trim_start_matches([':', ' '])),
                None => (StopReason::JobFailed, reason),
            };
            self.stop_instance(
                out,
                start_id,
                why,
                &cut(text, REASON_BYTES),
                GRACE,
                Fate::Ending { tell: false },
            );
        }
    }

    fn rejected(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        instance: &InstanceRef,
        code: RejectionCode,
        detail: &str,
        inventory: Option<Box<NodeInventory>>,
    ) {
        if let Some(start_id) = self.known(node_id, instance) {
            let detail = cut(detail, REASON_BYTES);
            let shown = inventory.as_ref().map(|picture| {
                let mut picture = picture.as_ref().clone().sanitised().0;
                picture.reachable = true;
                std::sync::Arc::new(picture)
            });
            out.event(StreamEvent::JobRejected {
                node_id: node_id.clone(),
                key: instance.key.clone(),
                start_id: start_id.clone(),
                code,
                reason: detail.clone(),
                inventory: shown,
            });
            let words = detail.clone();
            self.append_at(out, &start_id, |at| HistoryKind::Rejected {
                at,
                code,
                detail: words,
            });
            self.stop_instance(
                out,
                &start_id,
                StopReason::JobFailed,
                &detail,
                GRACE,
                Fate::Ending { tell: false },
            );
            self.end_instance(out, &start_id);
        }
        if let Some(picture) = inventory {
            self.take_inventory(out, node_id, *picture);
        }
    }

    /// MNODE-19: a repeated equal notice is told once.
    fn take_notice(&mut self, out: &mut Out, node_id: &NodeId, notice: Notice) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        let same = |old: Notice| old.kind == notice.kind && old.deadline == notice.deadline;
        if node.notice.is_some_and(same) && node.own_tags.contains_key(INTERRUPTION) {
            return;
        }
        node.notice = Some(notice);
        let value = match notice.kind {
            InterruptionKind::SpotInterruption => "spotInterruption",
            InterruptionKind::Rebalance => "rebalanceRecommendation",
        };
        node.own_tags
            .insert(INTERRUPTION.to_owned(), value.to_owned());
        out.nodes.insert(node_id.clone());
        out.event(StreamEvent::NodeInterruptionNotice {
            node_id: node_id.clone(),
            kind: notice.kind,
            deadline: notice.deadline,
            noticed_at: notice.seen_at,
        });
        let deadline = notice.deadline.map(|at| at.0);
        let payload = json!({"node": node_id, "kind": value, "deadline": deadline});
        self.note(out, "node_interruption", &payload);
        self.announce_tags(out, node_id);
    }

    fn prefetched(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        batch_id: String,
        results: Vec<PrefetchResult>,
    ) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        if node.batches.remove(&batch_id).is_some() {
            out.nodes.insert(node_id.clone());
            out.event(StreamEvent::ImagesPrefetched {
                node_id: node_id.clone(),
                batch_id,
                results,
            });
            self.idle_anew(out, node_id);
        }
    }

    /// LOCAL-17: the worker leaves on purpose. It says so before it stops its jobs, so that they may
    /// be started elsewhere meanwhile; what it reports until it closes the stream still counts.
    fn goodbye(&mut self, out: &mut Out, node_id: &NodeId, reason: String) {
        let Some(node) = self.nodes.get(node_id) else {
            return;
        };
        let (running, elastic) = (node.is_running(), node.is_elastic());
        let busy = self.on_node.contains_key(node_id);
        if running {
            let mut stop = plain(NodeStoppingReason::ProviderStop);
            stop.detail = cut(&reason, REASON_BYTES);
            let (why, fate) = (StopReason::NodeStopped, NodeFate::Ended(GRACE));
            self.begin_node_stop(out, node_id, stop, why, fate);
            if elastic {
                out.orders.push(Order::Provider {
                    node_id: node_id.clone(),
                    task: ProviderTask::TerminateMachine {
                        after_ms: if busy { GRACE } else { Millis(0) },
                    },
                });
            }
        } else if !elastic && !busy {
            // It was told to end, and this is the last that it says.
            self.node_stopped(out, node_id);
        }
    }

    /// A provision message stayed without answer to the last repeat (JOB-19): the instance is
    /// recorded stopped, and the stream begins anew so that the worker tells what it has.
    pub(crate) fn provision_unanswered(&mut self, out: &mut Out, start_id: &StartId) -> CallResult {
        let Some(instance) = self.instances.get(start_id) else {
            return Ok(Reply::Done);
        };
        let node_id = instance.node_id.clone();
        let heard = self.nodes.get(&node_id).is_some_and(|n| n.is_running());
        let open = instance.state == InstanceState::Provisioned && !instance.accepted;
        if !heard || !open {
            return Ok(Reply::Done);
        }
        self.stop_instance(
            out,
            start_id,
            StopReason::NodeStopped,
            "provision_unanswered",
            GRACE,
            Fate::Ending { tell: false },
        );
        self.end_unseen(out, start_id);
        out.orders.push(Order::Close {
            node_id,
            redial: true,
        });
        Ok(Reply::Done)
    }
}
