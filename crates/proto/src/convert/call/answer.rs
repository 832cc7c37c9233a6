//! What calls answer: a [`Reply`] as the response of its RPC, and the answers of the reading calls.
//!
//! A client refuses an answer that lacks what it is for (SDK-12). Left out: the `hardware` of a slot, for which the
//! domain has no place.

use greenroom_types::{
    BundleId, JobId, NodeId, PoolName,
    call::{ClusterNode, Refusal, Reply, Status},
    discovery::{DiscoveryFleet, RotationPhase},
    job::{JobInfo, JobWithHistory},
    kv::KvEntry,
    node::{RunningJob, ServiceRestarts},
};

use super::super::{
    WireError,
    common::{read_time_optional, read_time_or_zero, write_time},
    job::write_job_shown,
    read_list, read_required,
    stream::published_history,
    write_list,
};
use crate::manager;

/// The response of an RPC, to and from the [`Reply`] of its call.
pub trait Answer: Sized {
    /// Writes the reply; one of another call is a fault of the program's own and becomes INTERNAL `internal`.
    fn write(reply: Reply) -> Result<Self, Refusal>;
    /// Reads the reply.
    fn read(self) -> Result<Reply, WireError>;
}

/// A job found by JobSearch (JOB-28).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundJob {
    /// Definition and state; the history only where the search asked for it.
    pub job: JobWithHistory,
    /// Its instances that are not over.
    pub instances: Vec<RunningJob>,
    /// What the worker said last of an instance that is not running yet (EVT-09).
    pub last_info: Option<JobInfo>,
    /// How often its worker started a service of its newest instance again (EVT-09).
    pub restarts: Option<ServiceRestarts>,
}

fn read_restarts(restarts: manager::ServiceRestarts) -> Result<ServiceRestarts, WireError> {
    Ok(ServiceRestarts {
        count: restarts.count,
        service: restarts.service,
        ended: restarts.ended,
        at: read_time_or_zero(restarts.at, "restarts.at")?,
        pending: restarts.pending,
    })
}

fn mismatch(reply: &Reply, rpc: &str) -> Refusal {
    let kind = match reply {
        Reply::Done => "done",
        Reply::JobHash(_) => "a job hash",
        Reply::BundleCreated { .. } => "a created bundle",
        Reply::BundleUpdated { .. } => "an updated bundle",
        Reply::BundleJob(_) => "a bundle job",
        Reply::Tags { .. } => "tags",
        Reply::Slot { .. } => "a slot",
        Reply::StoppedJobs(_) => "stopped jobs",
        Reply::Batch(_) => "a batch",
        Reply::Notified(_) => "notified sides",
        Reply::RunningJobs(_) => "running jobs",
        Reply::Token(_) => "a token",
        Reply::AuditSeq(_) => "an audit entry",
        Reply::AuditPruned { .. } => "a pruned audit log",
        Reply::KvRevision(_) => "a revision",
        Reply::Discovery { .. } => "a discovery fleet",
        Reply::Rotated { .. } => "a rotated fleet",
        Reply::ReplicaVersion(_) => "a version of access roles",
        Reply::Reloaded(_) => "what a reload changed",
        Reply::BundleLease(_) => "a bundle lease",
        Reply::LeasesPaused { .. } => "paused leases",
        Reply::LeasesResumed { .. } => "resumed leases",
    };
    let message = format!("{kind} is no answer of {rpc}");
    Refusal::new(Status::Internal, "internal", message)
}

fn present(text: String, field: &str) -> Result<String, WireError> {
    if text.is_empty() {
        Err(WireError::missing(field))
    } else {
        Ok(text)
    }
}

fn ids(ids: Vec<String>) -> Vec<JobId> {
    ids.into_iter().map(JobId::new).collect()
}

fn texts(ids: &[JobId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

impl Answer for () {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Done => Ok(()),
            other => Err(mismatch(&other, "a call with an empty answer")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Done)
    }
}

impl Answer for manager::JobHash {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::JobHash(hash) => Ok(Self { hash }),
            other => Err(mismatch(&other, "CreateJob or UpdateJob")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::JobHash(self.hash))
    }
}

impl Answer for manager::CreateBundleResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::BundleCreated {
                bundle_id,
                revision,
                job_ids,
            } => Ok(Self {
                bundle_id: bundle_id.to_string(),
                revision,
                job_ids: texts(&job_ids),
            }),
            other => Err(mismatch(&other, "CreateBundle")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::BundleCreated {
            bundle_id: BundleId::new(present(self.bundle_id, "bundle_id")?),
            revision: self.revision,
            job_ids: ids(self.job_ids),
        })
    }
}

impl Answer for manager::UpdateBundleResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::BundleUpdated {
                revision,
                created,
                changed,
                updated,
                removed,
                untouched,
            } => Ok(Self {
                revision,
                created: texts(&created),
                changed: texts(&changed),
                updated: texts(&updated),
                removed: texts(&removed),
                untouched: texts(&untouched),
            }),
            other => Err(mismatch(&other, "UpdateBundle")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::BundleUpdated {
            revision: self.revision,
            created: ids(self.created),
            changed: ids(self.changed),
            updated: ids(self.updated),
            removed: ids(self.removed),
            untouched: ids(self.untouched),
        })
    }
}

impl Answer for manager::StartBundleJobResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::BundleJob(job_id) => Ok(Self {
                job_id: job_id.to_string(),
            }),
            other => Err(mismatch(&other, "StartBundleJob")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::BundleJob(JobId::new(present(
            self.job_id,
            "job_id",
        )?)))
    }
}

impl Answer for manager::StopBundleJobResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::BundleJob(job_id) => Ok(Self {
                job_id: job_id.to_string(),
            }),
            other => Err(mismatch(&other, "StopBundleJob")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::BundleJob(JobId::new(present(
            self.job_id,
            "job_id",
        )?)))
    }
}

impl Answer for manager::SetNodeTagsResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Tags { tags, revision } => Ok(Self { tags, revision }),
            other => Err(mismatch(&other, "SetNodeTags")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Tags {
            tags: self.tags,
            revision: self.revision,
        })
    }
}

impl Answer for manager::RegisterClusterNodeResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Slot { node_id, token } => Ok(Self {
                node_id: node_id.to_string(),
                token,
            }),
            other => Err(mismatch(&other, "RegisterClusterNode")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Slot {
            node_id: NodeId::new(present(self.node_id, "node_id")?),
            token: present(self.token, "token")?,
        })
    }
}

impl Answer for manager::DeregisterClusterNodeResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::StoppedJobs(job_ids) => Ok(Self {
                stopped_job_ids: texts(&job_ids),
            }),
            other => Err(mismatch(&other, "DeregisterClusterNode")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::StoppedJobs(ids(self.stopped_job_ids)))
    }
}

impl Answer for manager::SetClusterNodePoolResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::RunningJobs(job_ids) => Ok(Self {
                running_job_ids: texts(&job_ids),
            }),
            other => Err(mismatch(&other, "SetClusterNodePool")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::RunningJobs(ids(self.running_job_ids)))
    }
}

impl Answer for manager::RotateClusterNodeTokenResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Token(token) => Ok(Self { token }),
            other => Err(mismatch(&other, "RotateClusterNodeToken")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Token(present(self.token, "token")?))
    }
}

impl Answer for manager::AppendAuditEntryResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::AuditSeq(seq) => Ok(Self { seq }),
            other => Err(mismatch(&other, "AppendAuditEntry")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::AuditSeq(self.seq))
    }
}

impl Answer for manager::PruneAuditLogResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::AuditPruned {
                removed,
                checkpoint_seq,
            } => Ok(Self {
                removed,
                checkpoint_seq,
            }),
            other => Err(mismatch(&other, "PruneAuditLog")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::AuditPruned {
            removed: self.removed,
            checkpoint_seq: self.checkpoint_seq,
        })
    }
}

impl Answer for manager::PrefetchImagesResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Batch(batch_id) => Ok(Self { batch_id }),
            other => Err(mismatch(&other, "PrefetchImages")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Batch(present(self.batch_id, "batch_id")?))
    }
}

impl Answer for manager::AbortMigrationResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Notified(notified) => Ok(Self { notified }),
            other => Err(mismatch(&other, "AbortMigration")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Notified(self.notified))
    }
}

impl Answer for manager::KvCommitResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::KvRevision(revision) => Ok(Self { revision }),
            other => Err(mismatch(&other, "KvCommit")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::KvRevision(self.revision))
    }
}

impl Answer for manager::PublishDiscoveryFleetResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Discovery {
                fleet,
                secrets_kept,
            } => Ok(Self {
                fleet: Some((&fleet).into()),
                secrets_kept,
            }),
            other => Err(mismatch(&other, "PublishDiscoveryFleet")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Discovery {
            fleet: read_required(self.fleet, "fleet")?,
            secrets_kept: self.secrets_kept,
        })
    }
}

impl Answer for manager::RotateDiscoveryTierSecretResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Rotated {
                fleet,
                acknowledged,
                not_acknowledged,
                ..
            } => Ok(Self {
                fleet: Some((&fleet).into()),
                acknowledged,
                not_acknowledged: not_acknowledged.iter().map(ToString::to_string).collect(),
            }),
            other => Err(mismatch(&other, "RotateDiscoveryTierSecret")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Rotated {
            fleet: read_required(self.fleet, "fleet")?,
            version: 0,
            acknowledged: self.acknowledged,
            not_acknowledged: self.not_acknowledged.iter().map(NodeId::new).collect(),
        })
    }
}

impl Answer for manager::RenewBundleLeaseResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::BundleLease(expires_at) => Ok(Self {
                expires_at: expires_at.map(write_time),
            }),
            other => Err(mismatch(&other, "RenewBundleLease")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        let expires_at = read_time_optional(self.expires_at, "expires_at")?;
        Ok(Reply::BundleLease(expires_at))
    }
}

impl Answer for manager::PauseLeasesResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::LeasesPaused {
                since,
                not_acknowledged,
            } => Ok(Self {
                paused_since: Some(write_time(since)),
                not_acknowledged: not_acknowledged.iter().map(ToString::to_string).collect(),
            }),
            other => Err(mismatch(&other, "PauseLeases")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        let since = read_time_optional(self.paused_since, "paused_since")?;
        let nodes = self.not_acknowledged.into_iter();
        Ok(Reply::LeasesPaused {
            since: since.ok_or_else(|| WireError::missing("paused_since"))?,
            not_acknowledged: nodes.map(NodeId::new).collect(),
        })
    }
}

impl Answer for manager::PublishAccessReplicaResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::ReplicaVersion(stored_version) => Ok(Self { stored_version }),
            other => Err(mismatch(&other, "PublishAccessReplica")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::ReplicaVersion(self.stored_version))
    }
}

impl Answer for manager::ReloadExternalConfigResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::Reloaded(changes) => Ok(Self { changes }),
            other => Err(mismatch(&other, "ReloadExternalConfig")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        Ok(Reply::Reloaded(self.changes))
    }
}

impl Answer for manager::ResumeLeasesResponse {
    fn write(reply: Reply) -> Result<Self, Refusal> {
        match reply {
            Reply::LeasesResumed {
                leases,
                not_acknowledged,
            } => Ok(Self {
                leases,
                not_acknowledged: not_acknowledged.iter().map(ToString::to_string).collect(),
            }),
            other => Err(mismatch(&other, "ResumeLeases")),
        }
    }
    fn read(self) -> Result<Reply, WireError> {
        let nodes = self.not_acknowledged.into_iter();
        Ok(Reply::LeasesResumed {
            leases: self.leases,
            not_acknowledged: nodes.map(NodeId::new).collect(),
        })
    }
}

// === answers of the reading calls ===

impl From<&DiscoveryFleet> for manager::DiscoveryFleet {
    fn from(fleet: &DiscoveryFleet) -> Self {
        Self {
            addresses: fleet.addresses.clone(),
            address: fleet.address.clone(),
            leaf_token: fleet.leaf_token.clone(),
            tier_secret: fleet.tier_secret.clone(),
            tier_secret_alt: fleet.tier_secret_alt.clone(),
            rotation_phase: fleet.rotation_phase.word().to_owned(),
        }
    }
}

impl TryFrom<manager::DiscoveryFleet> for DiscoveryFleet {
    type Error = WireError;
    fn try_from(fleet: manager::DiscoveryFleet) -> Result<Self, WireError> {
        let phase = RotationPhase::of_word(&fleet.rotation_phase);
        Ok(Self {
            addresses: fleet.addresses,
            address: fleet.address,
            leaf_token: fleet.leaf_token,
            tier_secret: fleet.tier_secret,
            tier_secret_alt: fleet.tier_secret_alt,
            rotation_phase: phase.ok_or_else(|| {
                let message = "is no phase of a rotation: empty, staged or flipped";
                WireError::new("bad_value", "rotation_phase", message)
            })?,
        })
    }
}

impl From<&KvEntry> for manager::KvEntry {
    fn from(entry: &KvEntry) -> Self {
        Self {
            key: entry.key.clone(),
            value: entry.value.to_vec(),
            revision: entry.revision,
        }
    }
}

impl TryFrom<manager::KvEntry> for KvEntry {
    type Error = WireError;
    fn try_from(entry: manager::KvEntry) -> Result<Self, WireError> {
        Ok(Self {
            key: present(entry.key, "key")?,
            value: entry.value.into(),
            revision: entry.revision,
        })
    }
}

impl FoundJob {
    /// Writes it for a client of that minor, which decides what of the history it is sent (HIST-01).
    pub fn write(&self, minor: u32) -> manager::CurrentJob {
        let mut history = write_list(&self.job.history);
        if minor == 0 {
            published_history(&mut history);
        }
        manager::CurrentJob {
            job: Some(write_job_shown(&self.job)),
            instances: write_list(&self.instances),
            history_entry: history,
            last_info: self.last_info.as_ref().map(Into::into),
            restarts: self
                .restarts
                .as_ref()
                .map(|restarts| manager::ServiceRestarts {
                    count: restarts.count,
                    service: restarts.service.clone(),
                    ended: restarts.ended.clone(),
                    at: Some(write_time(restarts.at)),
                    pending: restarts.pending,
                }),
        }
    }
}

impl TryFrom<manager::CurrentJob> for FoundJob {
    type Error = WireError;
    fn try_from(found: manager::CurrentJob) -> Result<Self, WireError> {
        let shown = manager::JobWithHistory {
            job: found.job,
            history_entry: found.history_entry,
            dropped_entries: 0,
        };
        Ok(Self {
            job: shown.try_into()?,
            instances: read_list(found.instances, "instances")?,
            last_info: found.last_info.map(JobInfo::try_from).transpose()?,
            restarts: found.restarts.map(read_restarts).transpose()?,
        })
    }
}

impl TryFrom<manager::ClusterNode> for ClusterNode {
    type Error = WireError;
    fn try_from(node: manager::ClusterNode) -> Result<Self, WireError> {
        Ok(Self {
            node_id: NodeId::new(present(node.node_id, "node_id")?),
            node_name: node.node_name,
            pool: PoolName::new(node.pool),
            token: node.token,
            token_used: node.token_used,
            active: node.active,
            address: node.address,
            registered_at: read_time_or_zero(node.registered_at, "registered_at")?,
            activated_at: read_time_optional(node.activated_at, "activated_at")?,
        })
    }
}

impl From<&ClusterNode> for manager::ClusterNode {
    fn from(node: &ClusterNode) -> Self {
        Self {
            node_id: node.node_id.to_string(),
            node_name: node.node_name.clone(),
            pool: node.pool.to_string(),
            token: node.token.clone(),
            token_used: node.token_used,
            active: node.active,
            address: node.address.clone(),
            hardware: None,
            registered_at: Some(write_time(node.registered_at)),
            activated_at: node.activated_at.map(write_time),
        }
    }
}
