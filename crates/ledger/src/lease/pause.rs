//! PauseLeases and ResumeLeases (LEASE-10 to LEASE-13).

use greenroom_types::NodeId;
use greenroom_types::call::{CallResult, Reply};
use greenroom_types::stream::{LeasePause, StreamEvent};

use super::LeaseState;
use crate::change::Subject;
use crate::job::REASON_BYTES;
use crate::ledger::Ledger;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::cut;

// === impl Ledger ===

impl Ledger {
    /// Why and since when leases stand still, if they do.
    pub const fn lease_pause(&self) -> Option<&LeasePause> {
        self.lease_pause.as_ref()
    }

    pub(crate) fn pause_leases(
        &mut self,
        out: &mut Out,
        reason: &str,
        by: &str,
        actor: &str,
    ) -> CallResult {
        let since = match &self.lease_pause {
            // The first stays: whoever reads it must see who began it (LEASE-13).
            Some(pause) => pause.since,
            None => {
                let pause = LeasePause {
                    reason: cut(reason, REASON_BYTES),
                    by: named(by, actor),
                    since: out.at,
                };
                self.set_pause(out, Some(pause), actor);
                out.at
            }
        };
        Ok(Reply::LeasesPaused {
            since,
            not_acknowledged: Vec::new(),
        })
    }

    pub(crate) fn resume_leases(&mut self, out: &mut Out, by: &str, actor: &str) -> CallResult {
        if self.lease_pause.is_some() {
            self.set_pause(out, None, &named(by, actor));
        }
        let held = self
            .leases
            .values()
            .filter(|lease| lease.state == LeaseState::Held)
            .count();
        Ok(Reply::LeasesResumed {
            leases: u32::try_from(held).unwrap_or(u32::MAX),
            not_acknowledged: Vec::new(),
        })
    }

    fn set_pause(&mut self, out: &mut Out, pause: Option<LeasePause>, by: &str) {
        self.lease_pause = pause;
        out.lease_pause = true;
        out.look_at(Subject::LeasePause);
        // Nothing is reaped in a pause, and the empty time begins anew after it (IDLE-07).
        for node in self.nodes.values() {
            if self.idle_expiry(node).is_some() {
                out.look_at(Subject::Node(node.metadata.node_id.clone()));
            }
        }
        let paused = self.lease_pause.as_ref();
        out.event(StreamEvent::LeasesPaused {
            paused: paused.is_some(),
            reason: paused.map(|it| it.reason.clone()).unwrap_or_default(),
            by: paused.map_or_else(|| by.to_owned(), |it| it.by.clone()),
            since: paused.map(|it| it.since),
        });
        let heard: Vec<NodeId> = self
            .nodes
            .values()
            .filter(|node| node.hears_pauses())
            .map(|node| node.metadata.node_id.clone())
            .collect();
        for node_id in heard {
            self.order_pause(out, &node_id);
        }
    }

    /// Tells a worker whether leases stand still.
    pub(crate) fn order_pause(&self, out: &mut Out, node_id: &NodeId) {
        out.order(node_id, self.pause_order());
    }

    /// The message that tells a worker whether leases stand still.
    pub fn pause_order(&self) -> WorkerOrder {
        let pause = self.lease_pause.as_ref();
        WorkerOrder::LeasesPaused {
            paused: pause.is_some(),
            reason: pause.map(|it| it.reason.clone()).unwrap_or_default(),
        }
    }

    /// Nodes whose workers can be told of a pause, and are to confirm it.
    pub fn pause_hearers(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes
            .values()
            .filter(|node| node.hears_pauses())
            .map(|node| &node.metadata.node_id)
    }
}

fn named(by: &str, actor: &str) -> String {
    match by {
        "" => actor.to_owned(),
        by => cut(by, REASON_BYTES),
    }
}
