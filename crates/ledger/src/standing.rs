//! The state as a new subscriber is told of it, taken at one seq.
//!
//! Commits wait while it is taken, so it only shares what the ledger holds. What is told of it, and to whom, is
//! made afterwards, while they go on ([`crate::Subscriber::snapshot`], PERF-12).

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_types::job::{JobState, JobWithHistory};
use greenroom_types::node::{InstanceKey, NodeState};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, MigrationId, Payload};

use crate::ledger::Ledger;
use crate::migration::{APPLIED, STOPPED_OUTPUT};
use crate::state::Instance;

/// What stands at one seq.
#[derive(Clone, Debug)]
pub struct Standing(
    /// The parts of the ledger that a snapshot tells of; the others are empty.
    Ledger,
);

// === impl Ledger ===

impl Ledger {
    /// What stands now, shared with this ledger until it changes.
    pub fn standing(&self) -> Standing {
        Standing(Self {
            seq: self.seq,
            jobs: self.jobs.clone(),
            instances: self.instances.clone(),
            on_node: self.on_node.clone(),
            nodes: self.nodes.clone(),
            bundles: self.bundles.clone(),
            leases: self.leases.clone(),
            bundle_leases: self.bundle_leases.clone(),
            lease_pause: self.lease_pause.clone(),
            ..Self::default()
        })
    }
}

// === impl Standing ===

impl Standing {
    /// The seq at which it stood.
    pub const fn seq(&self) -> u64 {
        self.0.seq()
    }

    /// The jobs in this state, by id.
    pub(crate) fn jobs(&self, state: JobState) -> impl Iterator<Item = &Arc<JobWithHistory>> {
        let views = self.0.jobs().map(|record| &record.view);
        views.filter(move |view| view.state == state)
    }

    /// What is told of nodes, by id.
    pub(crate) fn node_events(&self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for node in self.0.nodes() {
            let running = |reachable| StreamEvent::NodeRunning {
                metadata: node.metadata.clone(),
                running: node.running.clone(),
                instances: self.0.running_jobs_on(&node.metadata.node_id),
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
        events
    }

    /// What is told besides, and not to clients of the published protocol: bundles, inventories, leases and
    /// their pause.
    pub(crate) fn other_events(&self) -> Vec<StreamEvent> {
        let ledger = &self.0;
        let mut events = Vec::new();
        let bundles = ledger.bundles();
        events.extend(bundles.map(|bundle| StreamEvent::BundleActive(Arc::new(bundle))));
        events.extend(ledger.nodes().filter_map(|node| {
            Some(StreamEvent::NodeInventorySnapshot {
                node_id: node.metadata.node_id.clone(),
                inventory: node.inventory.clone()?,
            })
        }));
        let paused = ledger.lease_pause();
        let leases = ledger.leases().map(|lease| lease.info(paused.is_some()));
        events.extend(leases.map(StreamEvent::LeaseChanged));
        events.extend(paused.map(|pause| StreamEvent::LeasesPaused {
            paused: true,
            reason: pause.reason.clone(),
            by: pause.by.clone(),
            since: Some(pause.since),
        }));
        events.extend(self.handovers());
        events
    }

    /// Handovers whose source has ended its output, and whose target may have begun, or has: whoever comes now
    /// could hear of it from nobody else, and would let the source output once more (HYDR-18).
    fn handovers(&self) -> Vec<StreamEvent> {
        let goes_on = |it: &&Instance| it.is_live() && !it.told_stopping;
        let live = || self.0.instances.values().filter(goes_on);
        let stopped = live().flat_map(|source| {
            let ids = source.signals.iter();
            let ids = ids.filter(|(_, kind)| kind == STOPPED_OUTPUT);
            ids.map(move |(id, _)| ((&source.key.job_id, id), &source.key))
        });
        let stopped: BTreeMap<(&JobId, &MigrationId), &InstanceKey> = stopped.collect();
        let mut events = Vec::new();
        for target in live() {
            let Some(id) = &target.migration_id else {
                continue;
            };
            let Some(source) = stopped.get(&(&target.key.job_id, id)) else {
                continue;
            };
            let mut push = |key: &InstanceKey, signal| {
                events.push(StreamEvent::Migration {
                    key: key.clone(),
                    migration_id: id.clone(),
                    signal,
                });
            };
            let nothing = Payload::default;
            push(source, MigrationSignal::SourceStoppedOutput(nothing()));
            if target.signals.contains(&(id.clone(), APPLIED.to_owned())) {
                push(&target.key, MigrationSignal::TargetApplied(nothing()));
            }
        }
        events
    }
}
