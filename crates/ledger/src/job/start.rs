//! StartJob and StartPreparedJob (JOB-12 to JOB-18, JOB-24, JOB-30, JOB-35).

use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply, StartJob};
use greenroom_types::job::{HistoryKind, JobState};
use greenroom_types::node::{InstanceKey, InstanceState};
use greenroom_types::{NodeId, StartId};

use crate::command::Fresh;
use crate::ledger::Ledger;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::{
    self, exists, failed, invalid, not_found, required, unknown_job, unknown_node,
};
use crate::state::{Instance, JobRecord, LEASES_MINOR, Node};

// === impl Ledger ===

impl Ledger {
    pub(crate) fn start_job(
        &mut self,
        out: &mut Out,
        start: StartJob,
        fresh: &Fresh,
    ) -> CallResult {
        refuse::job_id(&start.job_id)?;
        refuse::role("role", &start.role)?;
        required("node_id", start.node_id.as_str())?;
        let record = self
            .jobs
            .get(&start.job_id)
            .ok_or_else(|| unknown_job(&start.job_id))?;
        check_startable(record)?;
        let node = self.wanted_node(&start.node_id)?;
        let key = InstanceKey::new(start.job_id.clone(), start.role.clone());
        self.check_key_free(&key, &start.node_id)?;
        self.check_none_unrecorded(&key)?;
        check_gpu(node, start.gpu_index)?;
        check_migration_state(record, &start)?;
        let lease = record.view.job.lease;
        if lease.is_some() {
            check_knows_leases(node)?;
        }
        for (asked, what) in [
            (lease.is_some(), "a lease"),
            (start.defer_start, "a start that is put off"),
            (start.migration_id.is_some(), "a migration"),
        ] {
            if asked {
                self.check_knows_more(&start.node_id, what)?;
            }
        }
        let beside = start.defer_start || start.migration_state.is_some();
        self.check_lease_free(&start.job_id, &start.role, beside)?;
        let media_image = self.media_image(record, node)?;
        let start_id = self.fresh_start_id(fresh)?;
        let at = self
            .place(&start.node_id, &start.role)
            .ok_or_else(|| unknown_node(&start.node_id))?;

        self.supersede_lost(out, &key);
        let fence = match lease {
            Some(policy) => self.grant_lease(out, &key, &start_id, &start.node_id, policy),
            None => {
                self.drop_over_leases(out, &key);
                0
            }
        };
        let runtime_role = match start.runtime_role.as_str() {
            "" => start.role.slot().to_owned(),
            given => given.to_owned(),
        };
        let instance = Instance {
            key: key.clone(),
            start_id: start_id.clone(),
            node_id: start.node_id.clone(),
            state: InstanceState::Provisioned,
            stop: None,
            ending: false,
            delivered: false,
            accepted: false,
            told_stopping: false,
            defer_start: start.defer_start,
            start_prepared: false,
            runtime_role,
            gpu_index: start.gpu_index,
            migration_id: start.migration_id.filter(|id| !id.is_empty()),
            migration_state: start.migration_state,
            media_image,
            known_hash: 0,
            launched: Default::default(),
            aborts: Vec::new(),
            signals: Default::default(),
            fence,
            at,
        };
        self.index_instance(&instance);
        self.instances.insert(start_id.clone(), instance);
        if let Some(record) = self.jobs.get_mut(&start.job_id) {
            record.instances.insert(start_id.clone());
            record.pre_when_stopped = false;
            Arc::make_mut(&mut record.view).state = JobState::Active;
        }
        self.append_at(out, &start_id, HistoryKind::Provisioned);
        if self.nodes.get(&start.node_id).is_some_and(Node::is_running) {
            self.provision(out, &start_id);
        }
        self.refresh_pending_restart(&start.job_id);
        self.idle_anew(out, &start.node_id);
        Ok(Reply::Done)
    }

    /// A node for which a start may be accepted (JOB-13).
    pub(crate) fn wanted_node(&self, node_id: &NodeId) -> Result<&Node, Refusal> {
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        if !node.is_wanted() {
            return Err(failed(
                "node_not_running",
                format!("node {node_id:?} is stopping or stopped"),
            )
            .with("node", node_id.as_str()));
        }
        Ok(node)
    }

    /// JOB-14: at most one live instance of a key.
    pub(crate) fn check_key_free(
        &self,
        key: &InstanceKey,
        node_id: &NodeId,
    ) -> Result<(), Refusal> {
        let Some(live) = self.live_instance(key) else {
            return Ok(());
        };
        let refusal = if live.node_id == *node_id {
            exists(
                "already_on_node",
                format!("{key} is {} on node {node_id:?} already", live.state_name()),
            )
            .with("start_id", live.start_id.as_str())
        } else {
            failed(
                "live_elsewhere",
                format!(
                    "{key} is {} on node {:?}: stop it there first",
                    live.state_name(),
                    live.node_id
                ),
            )
        };
        Err(refusal
            .with("node", live.node_id.as_str())
            .with("state", live.state_name()))
    }

    /// JOB-30, JOB-05.
    pub(crate) fn media_image(&self, record: &JobRecord, node: &Node) -> Result<String, Refusal> {
        let job = &record.view.job;
        let provider = node.provider_name();
        let of_settings = self.config.media_images.get(provider);
        let of_overrides = self
            .overrides
            .media_version(provider, node.region(), job.media_version);
        let image = match of_overrides {
            Some(image) => image.map(str::to_owned),
            None => of_settings.and_then(|table| table.get(&job.media_version).cloned()),
        };
        match image {
            Some(image) => Ok(image),
            None if job.services.is_empty() => Err(failed(
                "no_media_image",
                format!(
                    "job {:?} has no services, and no image of the media runtime is set for {:?} \
                     and its level",
                    job.job_id,
                    node.provider_name()
                ),
            )
            .with("provider", node.provider_name())),
            None => Ok(String::new()),
        }
    }

    fn fresh_start_id(&self, fresh: &Fresh) -> Result<StartId, Refusal> {
        match fresh.id.parse::<StartId>() {
            Ok(id) if !self.instances.contains_key(&id) && !self.tombstones.contains_key(&id) => {
                Ok(id)
            }
            _ => Err(Refusal::new(
                greenroom_types::call::Status::Internal,
                "no_fresh_id",
                "the proposer gave no fresh start id of 32 hexadecimal digits",
            )),
        }
    }

    /// A lost instance is over once a newer start of its key is accepted (MNODE-12).
    pub(crate) fn supersede_lost(&mut self, out: &mut Out, key: &InstanceKey) {
        let lost: Vec<StartId> = self
            .jobs
            .get(&key.job_id)
            .into_iter()
            .flat_map(|record| &record.instances)
            .filter_map(|id| self.instances.get(id))
            .filter(|old| old.key == *key && old.state == InstanceState::Lost)
            .map(|old| old.start_id.clone())
            .collect();
        for start_id in lost {
            self.end_instance(out, &start_id);
        }
    }

    pub(crate) fn start_prepared(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        node_id: &NodeId,
    ) -> CallResult {
        refuse::job_id(&key.job_id)?;
        refuse::role("role", &key.role)?;
        required("node_id", node_id.as_str())?;
        if !self.jobs.contains_key(&key.job_id) {
            return Err(unknown_job(&key.job_id));
        }
        if !self.nodes.contains_key(node_id) {
            return Err(unknown_node(node_id));
        }
        let live = self
            .live_instance(key)
            .ok_or_else(|| not_found("no_instance", format!("{key} has no live instance")))?;
        if live.node_id != *node_id {
            return Err(failed(
                "wrong_node",
                format!("{key} is on node {:?}, not on {node_id:?}", live.node_id),
            )
            .with("node", live.node_id.as_str()));
        }
        match live.state {
            InstanceState::Prepared => {}
            InstanceState::Running => {
                return Err(exists(
                    "already_running",
                    format!("{key} runs on node {node_id:?} already"),
                )
                .with("state", "running"));
            }
            _ => {
                return Err(failed(
                    "not_prepared",
                    format!("{key} is {}, not prepared", live.state_name()),
                )
                .with("state", live.state_name()));
            }
        }
        // A holder that hands over is told by its target when to end (MIGR-12); any other is to be gone.
        if live.fence > 0 && live.migration_state.is_none() {
            self.check_others_gone(key)?;
        }
        let (start_id, again) = (live.start_id.clone(), live.start_prepared);
        let instance_ref = live.instance_ref();
        if !again {
            self.drop_over_leases(out, key);
            if let Some(instance) = self.instances.get_mut(&start_id) {
                instance.start_prepared = true;
            }
            out.instances.insert(start_id);
            if self.nodes.get(node_id).is_some_and(Node::is_running) {
                out.order(node_id, WorkerOrder::StartPrepared(instance_ref));
            }
        }
        Ok(Reply::Done)
    }
}

impl Ledger {
    /// True for a node whose worker speaks the published protocol: it called in without a key of its own
    /// (WORK-04).
    pub fn is_published(&self, node_id: &NodeId) -> bool {
        self.slots
            .get(node_id)
            .is_some_and(|slot| slot.token_used && slot.public_key.is_empty())
    }

    /// Refuses what a worker of the published protocol has no word for (WORK-04).
    ///
    /// # Errors
    /// FAILED_PRECONDITION `worker_too_old`, which names it.
    pub fn check_knows_more(&self, node_id: &NodeId, what: &str) -> Result<(), Refusal> {
        if !self.is_published(node_id) {
            return Ok(());
        }
        Err(failed(
            "worker_too_old",
            format!(
                "the worker of node {node_id:?} speaks the published protocol, which does not know {what}: \
                 install our worker there, or choose another node"
            ),
        )
        .with("node", node_id.as_str()))
    }
}

/// WORK-04: a worker that knows nothing of leases would run the job without one.
fn check_knows_leases(node: &Node) -> Result<(), Refusal> {
    if node.is_running() && node.protocol_minor < LEASES_MINOR {
        return Err(failed(
            "worker_too_old",
            format!(
                "the worker of node {:?} speaks protocol 1.{}, and leases came with 1.{LEASES_MINOR}: \
                 upgrade it, or start the job elsewhere",
                node.metadata.node_id, node.protocol_minor
            ),
        )
        .with("node", node.metadata.node_id.as_str()));
    }
    Ok(())
}

pub(crate) fn check_startable(record: &JobRecord) -> Result<(), Refusal> {
    let job_id = &record.view.job.job_id;
    if record.deleting {
        return Err(failed(
            "deleting",
            format!("job {job_id:?} is being deleted"),
        ));
    }
    if record.view.state == JobState::Post || record.completing {
        return Err(failed(
            "job_terminal",
            format!("job {job_id:?} is completed or failed: update it to run it again"),
        ));
    }
    if record.view.job.is_dormant() {
        return Err(failed(
            "job_dormant",
            format!("job {job_id:?} is dormant: use StartBundleJob first"),
        ));
    }
    Ok(())
}

/// JOB-17: a state is for the target of a handover, and for no other start.
fn check_migration_state(record: &JobRecord, start: &StartJob) -> Result<(), Refusal> {
    if start.migration_state.is_none() {
        return Ok(());
    }
    let migration_id = start.migration_id.as_ref();
    required(
        "migration_id",
        migration_id.map(|id| id.as_str()).unwrap_or_default(),
    )?;
    if record.view.job.handover {
        return Ok(());
    }
    Err(failed(
        "not_cooperative",
        format!("job {:?} is not declared with handover", start.job_id),
    ))
}

/// JOB-17: checked only where the devices are known.
fn check_gpu(node: &Node, gpu_index: Option<u32>) -> Result<(), Refusal> {
    let (Some(wanted), Some(inventory)) = (gpu_index, &node.inventory) else {
        return Ok(());
    };
    if inventory.gpus.iter().any(|gpu| gpu.index == wanted) {
        return Ok(());
    }
    Err(invalid(
        "unknown_gpu",
        format!(
            "node {:?} has no GPU of index {wanted}",
            node.metadata.node_id
        ),
    )
    .with("path", "gpu_index"))
}
