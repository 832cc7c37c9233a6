//! What happens to one instance, whoever causes it: it is told to a worker, stops, is lost, is over.

use std::sync::Arc;

use greenroom_types::job::{At, HistoryKind, JobState, StopReason};
use greenroom_types::node::{InstanceState, RunningNodeMetadata};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, Millis, NodeId, Role, StartId};

use crate::hash::start_marks;
use crate::ledger::Ledger;
use crate::migration::APPLIED;
use crate::order::{Order, WorkerJob, WorkerOrder};
use crate::out::Out;
use crate::state::{Instance, InstanceStop};

/// What becomes of an instance that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is told to stop and holds its key to the end (JOB-35).
    Asked,
    /// It ends and no longer holds its key; `tell` says whether its worker must be told.
    Ending {
        /// The worker does not know yet.
        tell: bool,
    },
    /// Its node was given up.
    Lost,
}

// === impl Ledger ===

impl Ledger {
    /// Role and node of an instance as known at this moment (HIST-03).
    pub(crate) fn place(&self, node_id: &NodeId, role: &Role) -> Option<At> {
        let node = self.nodes.get(node_id)?;
        let known = *node.running != RunningNodeMetadata::default();
        Some(At {
            role: role.clone(),
            node: node.metadata.clone(),
            running: known.then(|| node.running.clone()),
        })
    }

    fn place_of(&mut self, start_id: &StartId) -> Option<At> {
        let instance = self.instances.get(start_id)?;
        let fresh = self.place(&instance.node_id, &instance.key.role);
        let instance = self.instances.get_mut(start_id)?;
        if let Some(fresh) = fresh {
            instance.at = fresh;
        }
        Some(instance.at.clone())
    }

    /// Appends an entry about an instance.
    pub(crate) fn append_at(
        &mut self,
        out: &mut Out,
        start_id: &StartId,
        kind: impl FnOnce(At) -> HistoryKind,
    ) {
        let Some(at) = self.place_of(start_id) else {
            return;
        };
        let job_id = self.instances[start_id].key.job_id.clone();
        out.instances.insert(start_id.clone());
        self.append(out, &job_id, Some(start_id), kind(at));
    }

    /// The provision message for an instance as its job now stands.
    pub fn provision_order(&self, start_id: &StartId) -> Option<Order> {
        let instance = self.instances.get(start_id)?;
        Some(Order::Worker {
            node_id: instance.node_id.clone(),
            message: WorkerOrder::Provision(Box::new(self.worker_job(instance)?)),
        })
    }

    /// The stop message for an instance that stops, with this grace.
    pub fn stop_order(&self, start_id: &StartId, grace_ms: Millis) -> Option<Order> {
        let instance = self.instances.get(start_id)?;
        Some(Order::Worker {
            node_id: instance.node_id.clone(),
            message: WorkerOrder::Stop {
                instance: instance.instance_ref(),
                grace_ms,
                reason: instance.stop?.reason,
            },
        })
    }

    pub(crate) fn worker_job(&self, instance: &Instance) -> Option<WorkerJob> {
        let view = &self.jobs.get(&instance.key.job_id)?.view;
        let (lease, fence) = self.fencing(instance);
        Some(WorkerJob {
            job: Arc::new(view.job.clone()),
            instance: instance.instance_ref(),
            runtime_role: instance.runtime_role.clone(),
            defer_start: instance.defer_start,
            gpu_index: instance.gpu_index,
            migration_id: instance.migration_id.clone(),
            migration_state: instance.migration_state.clone(),
            media_image: instance.media_image.clone(),
            lease,
            fence,
            requirements: view
                .job
                .auto_placement
                .as_ref()
                .map(|placement| placement.requirements.clone())
                .unwrap_or_default(),
        })
    }

    /// Orders an instance's provision. From now on a worker may know it.
    pub(crate) fn provision(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(order) = self.provision_order(start_id) else {
            return;
        };
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        if let Some(record) = self.jobs.get(&instance.key.job_id) {
            instance.known_hash = record.view.current_hash;
            instance.launched = start_marks(&record.view.job);
        }
        instance.delivered = true;
        out.instances.insert(start_id.clone());
        out.orders.push(order);
    }

    /// Records that an instance stops. A stop recorded before stays the one in the history; a
    /// shorter remaining grace shortens it (JOB-23).
    pub(crate) fn stop_instance(
        &mut self,
        out: &mut Out,
        start_id: &StartId,
        reason: StopReason,
        detail: &str,
        grace_ms: Millis,
        fate: Fate,
    ) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        if !instance.told_stopping {
            self.append_at(out, start_id, |at| HistoryKind::Stopping {
                at,
                reason,
                detail: detail.to_owned(),
            });
        }
        let instance = self
            .instances
            .get_mut(start_id)
            .expect("it was there above and nothing was removed");
        instance.told_stopping = true;
        if !instance.delivered {
            // No worker can know it: it is over (BDL-18).
            self.end_instance(out, start_id);
            return;
        }
        let now = out.at;
        let tell = match fate {
            Fate::Asked => true,
            Fate::Ending { tell } => tell,
            Fate::Lost => false,
        };
        let news = match instance.stop {
            None => true,
            Some(stop) => tell && (!stop.order || now + grace_ms < stop.asked_at + stop.grace_ms),
        };
        if news {
            instance.stop = Some(InstanceStop {
                reason: instance.stop.map_or(reason, |stop| stop.reason),
                grace_ms,
                asked_at: now,
                order: tell,
            });
        }
        instance.state = match fate {
            Fate::Lost => InstanceState::Lost,
            Fate::Asked | Fate::Ending { .. } => InstanceState::Stopping,
        };
        instance.ending |= matches!(fate, Fate::Ending { .. });
        out.instances.insert(start_id.clone());
        let (job_id, node_id) = (instance.key.job_id.clone(), instance.node_id.clone());
        self.unindex_unless_live(start_id);
        out.job(&job_id);
        if tell
            && news
            && self
                .nodes
                .get(&node_id)
                .is_some_and(|node| node.is_running())
        {
            out.orders.extend(self.stop_order(start_id, grace_ms));
        }
        if fate == Fate::Lost {
            self.lose_lease(out, start_id);
            self.abort_lost_migration(out, start_id);
        }
        self.after_end(out, &job_id);
    }

    fn unindex_unless_live(&mut self, start_id: &StartId) {
        if let Some(instance) = self.instances.get(start_id)
            && !instance.is_live()
            && self.live.get(&instance.key) == Some(start_id)
        {
            self.live.remove(&instance.key);
        }
    }

    /// A target that goes down with its node before it took over has given its migration up; nobody
    /// else is left to say so (HARDM-50).
    fn abort_lost_migration(&mut self, out: &mut Out, start_id: &StartId) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let Some(migration_id) = instance.migration_id.clone() else {
            return;
        };
        let told = |kind: &str| {
            instance
                .signals
                .contains(&(migration_id.clone(), kind.to_owned()))
        };
        if told(APPLIED) || told("aborted") {
            return;
        }
        instance
            .signals
            .insert((migration_id.clone(), "aborted".to_owned()));
        out.event(StreamEvent::Migration {
            key: instance.key.clone(),
            migration_id,
            signal: MigrationSignal::Aborted {
                side: "target".to_owned(),
                reason: "node_lost".to_owned(),
            },
        });
    }

    /// Records that an instance and its remains are gone.
    pub(crate) fn end_instance(&mut self, out: &mut Out, start_id: &StartId) {
        self.release_lease(out, start_id);
        self.end_record(out, start_id);
    }

    /// Records an instance as stopped of which nobody knows whether it is gone: its lease runs on.
    pub(crate) fn end_unseen(&mut self, out: &mut Out, start_id: &StartId) {
        self.lose_lease(out, start_id);
        self.end_record(out, start_id);
    }

    fn end_record(&mut self, out: &mut Out, start_id: &StartId) {
        self.append_at(out, start_id, HistoryKind::Stopped);
        if let Some(job_id) = self.forget_instance(out, start_id) {
            self.refresh_pending_restart(&job_id);
            self.after_end(out, &job_id);
        }
    }

    /// Takes an instance out of the state without a word in the history.
    pub(crate) fn forget_instance(&mut self, out: &mut Out, start_id: &StartId) -> Option<JobId> {
        let instance = self.instances.remove(start_id)?;
        out.instances.insert(start_id.clone());
        self.forget_stray(out, &instance.node_id, start_id);
        if self.live.get(&instance.key) == Some(start_id) {
            self.live.remove(&instance.key);
        }
        if let Some(here) = self.on_node.get_mut(&instance.node_id) {
            here.remove(start_id);
            if here.is_empty() {
                self.on_node.remove(&instance.node_id);
                self.idle_anew(out, &instance.node_id);
            }
        }
        if let Some(node) = self.nodes.get_mut(&instance.node_id)
            && let Some(awaiting) = &mut node.awaiting
            && awaiting.starts.remove(start_id)
        {
            out.nodes.insert(instance.node_id.clone());
        }
        if let Some(record) = self.jobs.get_mut(&instance.key.job_id) {
            record.instances.remove(start_id);
        }
        Some(instance.key.job_id)
    }

    /// True while a live instance of the job is there.
    pub(crate) fn has_live(&self, job_id: &JobId) -> bool {
        self.jobs.get(job_id).is_some_and(|record| {
            record
                .instances
                .iter()
                .filter_map(|id| self.instances.get(id))
                .any(Instance::is_live)
        })
    }

    /// Start ids of a job's live instances.
    pub(crate) fn live_of(&self, job_id: &JobId) -> Vec<StartId> {
        self.jobs
            .get(job_id)
            .into_iter()
            .flat_map(|record| &record.instances)
            .filter(|id| self.instances.get(*id).is_some_and(Instance::is_live))
            .cloned()
            .collect()
    }

    /// What a job waited for may have come: the last live instance is gone.
    pub(crate) fn after_end(&mut self, out: &mut Out, job_id: &JobId) {
        let Some(record) = self.jobs.get(job_id) else {
            return;
        };
        if record.deleting {
            self.remove_job_if_free(out, job_id);
            return;
        }
        if self.has_live(job_id) {
            return;
        }
        let Some(record) = self.jobs.get_mut(job_id) else {
            return;
        };
        if record.completing {
            self.complete(out, job_id);
        } else if record.pre_when_stopped {
            record.pre_when_stopped = false;
            Arc::make_mut(&mut record.view).state = JobState::Pre;
            out.job(job_id);
        }
    }

    /// The job is completed (JOB-11, JOB-34).
    pub(crate) fn complete(&mut self, out: &mut Out, job_id: &JobId) {
        let Some(record) = self.jobs.get_mut(job_id) else {
            return;
        };
        record.completing = false;
        record.pre_when_stopped = false;
        Arc::make_mut(&mut record.view).state = JobState::Post;
        self.append(out, job_id, None, HistoryKind::Completed);
    }

    /// Lists anew which changed fields wait for the next start (JOB-07). The caller tells of the job.
    pub(crate) fn refresh_pending_restart(&mut self, job_id: &JobId) {
        let Some(record) = self.jobs.get(job_id) else {
            return;
        };
        let running: Vec<_> = record
            .instances
            .iter()
            .filter_map(|id| self.instances.get(id))
            .filter(|instance| instance.is_live() && instance.delivered)
            .map(|instance| &instance.launched)
            .collect();
        if running.is_empty() && record.view.pending_restart.is_empty() {
            return;
        }
        let now = start_marks(&record.view.job);
        let pending: Vec<String> = now
            .iter()
            .filter(|(name, mark)| running.iter().any(|then| then.get(*name) != Some(mark)))
            .map(|(name, _)| name.clone())
            .collect();
        if pending != record.view.pending_restart
            && let Some(record) = self.jobs.get_mut(job_id)
        {
            Arc::make_mut(&mut record.view).pending_restart = pending;
        }
    }
}
