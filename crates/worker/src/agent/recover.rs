//! How the core comes back after its own end: from the journal, then from what the runtime finds.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_types::inventory::NodeInventory;
use greenroom_types::{Millis, Mono, StartId};

use super::{Act, Agent, Effects, Instance, Outbox, Phase, Room, RuntimeEvent, Settings};
use crate::journal::{Record, StepRecord};
use crate::lifecycle::Outcome;
use crate::order::{Said, StartSpec, StopCause};
use crate::ports::PortProbe;

/// An instance that the runtime finds by its own marks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) start_id: StartId,
    pub(crate) state: FoundState,
}

/// What state it is in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FoundState {
    /// Made completely, nothing runs.
    Prepared,
    /// Being started by something that outlived the worker.
    Starting,
    /// Running, or being stopped by something that outlived the worker.
    Running,
    /// Over, and this is how it ended.
    Ended(Outcome),
    /// Neither one nor the other: made in part, or started in part.
    HalfMade,
}

/// Why an instance fails that was in the middle of a step when the worker ended (WORK-25).
const RESTARTED: &str = "worker_restarted";

// === impl Agent ===

impl Agent {
    /// The core as the journal remembers it. Records that follow from a new boot are added to `out`.
    pub(crate) fn recover(
        settings: Settings,
        records: Vec<Record>,
        boot_id: &str,
        mut machine: NodeInventory,
        probe: Box<dyn PortProbe>,
        out: &mut Effects,
    ) -> Self {
        machine.judge_disk(false);
        let mut agent = Self {
            settings,
            boot_id: String::new(),
            machine,
            engine: None,
            room: Room::default(),
            instances: BTreeMap::new(),
            ended: Default::default(),
            outbox: Outbox::default(),
            images: Vec::new(),
            batches: Default::default(),
            notices: BTreeMap::new(),
            node_tags: None,
            leaving: None,
            journal_ok: true,
            leases: Default::default(),
            probe,
        };
        for record in records {
            agent.replay(record);
        }
        if agent.boot_id != boot_id {
            if !agent.boot_id.is_empty() {
                agent.forget_boot(out);
                agent.forget_notices(out);
            }
            boot_id.clone_into(&mut agent.boot_id);
            out.persist.push(Record::Boot {
                boot_id: boot_id.to_owned(),
            });
        }
        agent
    }

    /// Everything the journal must hold, as short as it can be.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![
            Record::Boot {
                boot_id: self.boot_id.clone(),
            },
            Record::NextReport {
                id: self.outbox.next_id(),
            },
        ];
        if self.leases_paused() {
            records.push(Record::LeasesPaused { paused: true });
        }
        if let Some(tags) = &self.node_tags {
            records.push(Record::NodeTags { tags: tags.clone() });
        }
        for (start_id, last) in &self.ended {
            records.push(Record::Removed {
                start_id: start_id.clone(),
                last: last.clone(),
            });
        }
        for (start_id, instance) in &self.instances {
            let Some(held) = self.room.of(start_id) else {
                continue;
            };
            records.push(Record::Accepted {
                spec: Box::new((*instance.spec).clone()),
                reservation: Box::new(held.clone()),
            });
            if let Some(handover) = &instance.handover {
                records.push(Record::Handover {
                    start_id: start_id.clone(),
                    handover: Box::new(handover.clone()),
                });
            }
            let step = match &instance.phase {
                Phase::Waiting => continue,
                Phase::Preparing => StepRecord::Preparing,
                Phase::Prepared => StepRecord::Prepared,
                Phase::Starting => StepRecord::Starting,
                Phase::Running => StepRecord::Running,
                Phase::Stopping {
                    last, grace, told, ..
                } => StepRecord::Stopping {
                    last: last.clone(),
                    grace: *grace,
                    told: *told,
                },
            };
            records.push(Record::Step {
                start_id: start_id.clone(),
                step,
            });
            if instance
                .lease
                .as_ref()
                .is_some_and(|lease| lease.wants_start)
            {
                let start_id = start_id.clone();
                records.push(Record::StartWanted { start_id });
            }
        }
        records.extend(self.outbox.waiting().cloned().map(Record::Report));
        records
    }

    /// Compares with what the runtime finds: takes on what runs, removes what is half-made, ends what
    /// is gone (WORK-25, WORK-61). What is found and in no record is removed: acceptance is written
    /// before anything is made, so nobody waits for it and nothing says what it was to be.
    pub(crate) fn reconcile(&mut self, found: Vec<Found>, out: &mut Effects) {
        let mut found: BTreeMap<StartId, FoundState> = found
            .into_iter()
            .map(|found| (found.start_id, found.state))
            .collect();
        let known: Vec<StartId> = self.instances.keys().cloned().collect();
        for start_id in known {
            let state = found.remove(&start_id);
            self.reconcile_one(&start_id, state, out);
            self.resume_migration(&start_id, out);
        }
        for start_id in found.into_keys() {
            out.act.push(Act::Remove(start_id));
        }
    }

    fn reconcile_one(&mut self, start_id: &StartId, found: Option<FoundState>, out: &mut Effects) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let attach = Act::Attach(start_id.clone());
        match (instance.phase.clone(), found) {
            // Its predecessor's removal brings it on its way.
            (Phase::Waiting, None) if self.is_behind_another(start_id) => {}
            (Phase::Waiting, None) => self.prepare(start_id, out),

            (Phase::Prepared, Some(FoundState::Prepared)) => out.act.push(attach),
            (Phase::Starting | Phase::Running, Some(FoundState::Running)) => {
                out.act.push(attach);
                self.apply_runtime(start_id, RuntimeEvent::Running, out);
            }
            (Phase::Starting, Some(FoundState::Starting)) => out.act.push(attach),
            (Phase::Starting | Phase::Running, Some(FoundState::Ended(outcome))) => {
                self.apply_runtime(start_id, RuntimeEvent::Ended(outcome), out);
            }

            (Phase::Stopping { grace, .. }, Some(FoundState::Starting | FoundState::Running)) => {
                out.act.push(attach);
                out.act
                    .push(Act::Stop(start_id.clone(), grace, StopCause::Node));
            }
            (Phase::Stopping { .. }, _) => self.remove(start_id, out),

            (
                Phase::Waiting
                | Phase::Preparing
                | Phase::Prepared
                | Phase::Starting
                | Phase::Running,
                _,
            ) => {
                self.fail(start_id, RESTARTED.to_owned(), out);
                self.remove(start_id, out);
            }
        }
    }

    fn is_behind_another(&self, start_id: &StartId) -> bool {
        let Some(own) = self.instances.get(start_id) else {
            return false;
        };
        let same = self
            .instances
            .values()
            .filter(|other| other.spec.key == own.spec.key);
        same.count() > 1
    }

    /// After a reboot nothing runs any more: nothing is told of it, so that the Manager finds it
    /// missing (WORK-62).
    fn forget_boot(&mut self, out: &mut Effects) {
        let all: Vec<StartId> = self.instances.keys().cloned().collect();
        for start_id in all {
            let last = Said::Stopped { completed: false };
            self.end(&start_id, last, Millis(0), false, out);
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Boot { boot_id } => self.boot_id = boot_id,
            Record::Accepted { spec, reservation } => {
                let spec: Arc<StartSpec> = Arc::from(spec);
                self.room.hold(spec.start_id.clone(), *reservation);
                let start_id = spec.start_id.clone();
                self.instances
                    .insert(start_id, Instance::new(spec, Mono(0)));
            }
            Record::Step { start_id, step } => {
                if let Some(instance) = self.instances.get_mut(&start_id) {
                    instance.phase = match step {
                        StepRecord::Preparing => Phase::Preparing,
                        StepRecord::Prepared => Phase::Prepared,
                        StepRecord::Starting => Phase::Starting,
                        StepRecord::Running => Phase::Running,
                        StepRecord::Stopping { last, grace, told } => Phase::Stopping {
                            last,
                            grace,
                            told,
                            removing: false,
                        },
                    };
                }
            }
            Record::Updated {
                start_id,
                description,
                tags,
                configurations,
            } => {
                if let Some(instance) = self.instances.get_mut(&start_id) {
                    let spec = Arc::make_mut(&mut instance.spec);
                    spec.description = description;
                    spec.tags = tags;
                    spec.configure(&configurations);
                }
            }
            Record::Removed { start_id, last } => {
                self.instances.remove(&start_id);
                self.room.release(&start_id);
                self.remember_end(&start_id, last);
            }
            Record::Report(report) => {
                if let (Said::Failed { reason }, Some(instance)) =
                    (&report.said, self.instances.get_mut(&report.start_id))
                {
                    instance.failed = Some(reason.clone());
                }
                if let Said::Interrupted { what, deadline, .. } = &report.said {
                    self.notices.insert(*what, *deadline);
                }
                self.outbox.restore(report);
            }
            Record::Handover { start_id, handover } => {
                if let Some(instance) = self.instances.get_mut(&start_id) {
                    if !handover.is_under_way() {
                        Arc::make_mut(&mut instance.spec).migration_state = None;
                    }
                    instance.handover = Some(handover.remembered());
                }
            }
            Record::Forgotten { id } => {
                self.outbox.forget(id);
            }
            Record::Acked { id } => {
                self.outbox.ack(id);
                self.outbox.raise_next(id + 1);
            }
            Record::NextReport { id } => self.outbox.raise_next(id),
            Record::NodeTags { tags } => self.node_tags = Some(tags),
            Record::LeasesPaused { paused } => self.leases.set_paused(paused),
            Record::StartWanted { start_id } => self.restore_start_wanted(&start_id),
            Record::Fence { start_id, fence } => {
                if let Some(instance) = self.instances.get_mut(&start_id) {
                    Arc::make_mut(&mut instance.spec).fence = fence;
                }
            }
        }
    }
}
