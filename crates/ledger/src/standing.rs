//! The state as a new subscriber is told of it, taken at one seq.
//!
//! Commits wait while it is taken, so it holds jobs by reference and leaves what is done for one subscriber
//! alone (its window, its limits, the order of its events) to [`crate::Subscriber::snapshot`] (PERF-12).

use std::sync::Arc;

use greenroom_types::job::{JobState, JobWithHistory};
use greenroom_types::node::NodeState;
use greenroom_types::stream::StreamEvent;

use crate::ledger::Ledger;

/// What stands at one seq.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) seq: u64,
    /// Nodes, by id.
    pub(crate) nodes: Vec<StreamEvent>,
    /// Active jobs, by id.
    pub(crate) active: Vec<Arc<JobWithHistory>>,
    /// Pending ones.
    pub(crate) pending: Vec<Arc<JobWithHistory>>,
    /// Bundles, inventories, leases and their pause.
    pub(crate) rest: Vec<StreamEvent>,
}

// === impl Ledger ===

impl Ledger {
    /// What stands now, for a subscriber of this minor of the protocol: one of the published protocol is
    /// told of jobs and nodes alone.
    pub(crate) fn standing(&self, client_protocol: u32) -> Standing {
        let mut active = Vec::new();
        let mut pending = Vec::new();
        for record in self.jobs() {
            match record.view.state {
                JobState::Active => active.push(Arc::clone(&record.view)),
                JobState::Pre => pending.push(Arc::clone(&record.view)),
                JobState::Post => {}
            }
        }
        let mut standing = Standing {
            seq: self.seq(),
            nodes: Vec::new(),
            active,
            pending,
            rest: Vec::new(),
        };
        self.node_events(&mut standing.nodes);
        if client_protocol > 0 {
            self.other_events(&mut standing.rest);
        }
        standing
    }

    fn node_events(&self, events: &mut Vec<StreamEvent>) {
        for node in self.nodes() {
            let running = |reachable| StreamEvent::NodeRunning {
                metadata: node.metadata.clone(),
                running: node.running.clone(),
                instances: self.running_jobs_on(&node.metadata.node_id),
                reachable,
            };
            match node.state {
                NodeState::Starting => events.push(StreamEvent::NodeStarting {
                    metadata: node.metadata.clone(),
                    phase: Some(node.phase),
                }),
                NodeState::Running => events.push(running(true)),
                NodeState::Unreachable => events.push(running(false)),
                NodeState::Stopping => {
                    events.push(running(false));
                    if let Some(stop) = &node.stop {
                        events.push(StreamEvent::NodeStopping {
                            node_id: node.metadata.node_id.clone(),
                            reason: stop.reason,
                            detail: stop.detail.clone(),
                            provider_code: stop.code.clone(),
                        });
                    }
                }
                NodeState::Stopped => {}
            }
        }
    }

    fn other_events(&self, events: &mut Vec<StreamEvent>) {
        let bundles = self.bundles();
        events.extend(bundles.map(|bundle| StreamEvent::BundleActive(Arc::new(bundle))));
        events.extend(self.nodes().filter_map(|node| {
            Some(StreamEvent::NodeInventorySnapshot {
                node_id: node.metadata.node_id.clone(),
                inventory: node.inventory.clone()?,
            })
        }));
        let paused = self.lease_pause();
        let leases = self.leases().map(|lease| lease.info(paused.is_some()));
        events.extend(leases.map(StreamEvent::LeaseChanged));
        events.extend(paused.map(|pause| StreamEvent::LeasesPaused {
            paused: true,
            reason: pause.reason.clone(),
            by: pause.by.clone(),
            since: Some(pause.since),
        }));
    }
}
