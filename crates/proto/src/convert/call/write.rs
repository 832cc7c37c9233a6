//! A [`Call`] as its request; never fails.

use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode};
use greenroom_types::discovery::RotationStep;
use greenroom_types::kv::KvCommit;

use super::{
    super::{
        common::{write_enum, write_time},
        inventory::write_gpu_index,
    },
    Request,
};
use crate::{common as wire, manager};

impl From<&Call> for Request {
    fn from(call: &Call) -> Self {
        match call {
            Call::CreateJob(job) => Self::CreateJob((&**job).into()),
            Call::UpdateJob(job, expected_hash) => Self::UpdateJob(manager::Job {
                current_hash: *expected_hash,
                ..(&**job).into()
            }),
            Call::DeleteJob(job_id) => Self::DeleteJob(job_id.into()),
            Call::CompleteJob(job_id) => Self::CompleteJob(job_id.into()),
            Call::StartJob(start) => Self::StartJob(manager::StartJobRequest {
                job_id: Some((&start.job_id).into()),
                role: start.role.to_string(),
                node_id: Some((&start.node_id).into()),
                defer_start: start.defer_start,
                runtime_role: start.runtime_role.clone(),
                gpu_index: write_gpu_index(start.gpu_index),
                migration_id: start
                    .migration_id
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                migration_state: start
                    .migration_state
                    .as_ref()
                    .map(|state| state.bytes().to_vec()),
            }),
            Call::StartPreparedJob { key, node_id } => {
                Self::StartPreparedJob(manager::StartPreparedJobRequest {
                    job_id: Some((&key.job_id).into()),
                    role: key.role.to_string(),
                    node_id: Some(node_id.into()),
                })
            }
            Call::StopJob {
                key,
                node_id,
                grace_ms,
            } => Self::StopJob(manager::StopJobRequest {
                job_id: Some((&key.job_id).into()),
                role: key.role.to_string(),
                node_id: Some(node_id.into()),
                grace_ms: grace_ms.map(|grace| grace.0),
            }),
            Call::MarkJobFailed { job_id, reason } => {
                Self::MarkJobFailed(manager::MarkJobFailedRequest {
                    job_id: Some(job_id.into()),
                    reason: reason.clone(),
                })
            }
            Call::CreateBundle(bundle) => Self::CreateBundle(manager::CreateBundleRequest {
                bundle: Some((&**bundle).into()),
            }),
            Call::UpdateBundle {
                bundle,
                dry_run,
                clear_stop_time,
            } => Self::UpdateBundle(manager::UpdateBundleRequest {
                bundle: Some((&**bundle).into()),
                dry_run: *dry_run,
                clear_stop_time: *clear_stop_time,
            }),
            Call::DeleteBundle(bundle_id) => Self::DeleteBundle(manager::DeleteBundleRequest {
                bundle_id: bundle_id.to_string(),
            }),
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            } => Self::StartBundleJob(manager::StartBundleJobRequest {
                bundle_id: bundle_id.to_string(),
                replica_index: *replica_index,
                job_name: job_name.to_string(),
            }),
            Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                grace_ms,
            } => Self::StopBundleJob(manager::StopBundleJobRequest {
                bundle_id: bundle_id.to_string(),
                replica_index: *replica_index,
                job_name: job_name.to_string(),
                grace_ms: grace_ms.map(|grace| grace.0),
            }),
            Call::SetBundleStopTime { bundle_id, stop_at } => {
                Self::SetBundleStopTime(manager::SetBundleStopTimeRequest {
                    bundle_id: bundle_id.to_string(),
                    stop_at: stop_at.map(write_time),
                })
            }
            Call::CreateAwsNode(node) => Self::CreateAwsNode(write_aws(node)),
            Call::CreateOciNode(node) => Self::CreateOciNode(write_oci(node)),
            Call::TerminateNode(node_id) => Self::TerminateNode(node_id.into()),
            Call::UpdatePhysicalNode {
                node_id,
                daemon_version,
            } => Self::UpdatePhysicalNode(manager::UpdatePhysicalNodeRequest {
                id: node_id.to_string(),
                daemon_version: daemon_version.clone(),
            }),
            Call::SetNodeTags {
                node_id,
                tags,
                remove,
                expected_revision,
            } => Self::SetNodeTags(manager::SetNodeTagsRequest {
                node_id: Some(node_id.into()),
                tags: tags.clone(),
                remove: remove.clone(),
                expected_revision: *expected_revision,
            }),
            Call::RegisterClusterNode { node_name, pool } => {
                Self::RegisterClusterNode(manager::RegisterClusterNodeRequest {
                    node_name: node_name.clone(),
                    pool: pool.to_string(),
                })
            }
            Call::DeregisterClusterNode(node_id) => {
                Self::DeregisterClusterNode(manager::DeregisterClusterNodeRequest {
                    node_id: Some(node_id.into()),
                })
            }
            Call::PrefetchImages {
                node_id,
                image_refs,
            } => Self::PrefetchImages(manager::PrefetchImagesRequest {
                node_id: Some(node_id.into()),
                image_refs: image_refs.clone(),
            }),
            Call::NotifyMigrationGetState { key, migration_id } => {
                Self::NotifyMigrationGetState(manager::NotifyMigrationGetStateRequest {
                    source_job_key: Some(key.into()),
                    migration_id: migration_id.to_string(),
                })
            }
            Call::NotifyMigrationCutoverReady {
                key,
                migration_id,
                payload,
            } => Self::NotifyMigrationCutoverReady(manager::NotifyMigrationCutoverReadyRequest {
                source_job_key: Some(key.into()),
                migration_id: migration_id.to_string(),
                payload: payload.bytes().to_vec(),
            }),
            Call::NotifyMigrationCutoverApply {
                key,
                migration_id,
                payload,
            } => Self::NotifyMigrationCutoverApply(manager::NotifyMigrationCutoverApplyRequest {
                target_job_key: Some(key.into()),
                migration_id: migration_id.to_string(),
                payload: payload.bytes().to_vec(),
            }),
            Call::KvCommit(commit) => Self::KvCommit(write_commit(commit)),
            Call::SetNodeIdleExpiry {
                node_id,
                idle_expiry_ms,
            } => Self::SetNodeIdleExpiry(manager::SetNodeIdleExpiryRequest {
                node_id: Some(node_id.into()),
                idle_expiry_ms: idle_expiry_ms.0,
            }),
            Call::SetClusterNodePool { node_id, pool } => {
                Self::SetClusterNodePool(manager::SetClusterNodePoolRequest {
                    node_id: Some(node_id.into()),
                    pool: pool.to_string(),
                })
            }
            Call::RotateClusterNodeToken(node_id) => {
                Self::RotateClusterNodeToken(manager::RotateClusterNodeTokenRequest {
                    node_id: Some(node_id.into()),
                })
            }
            Call::AppendAuditEntry {
                source,
                kind,
                payload,
            } => Self::AppendAuditEntry(manager::AppendAuditEntryRequest {
                source: source.clone(),
                kind: kind.clone(),
                payload: payload.clone(),
            }),
            Call::PruneAuditLog { before } => Self::PruneAuditLog(manager::PruneAuditLogRequest {
                before_timestamp_ms: u64::try_from(before.0).unwrap_or_default(),
            }),
            Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet,
                by,
            } => Self::PublishDiscoveryFleet(manager::PublishDiscoveryFleetRequest {
                fleet: Some(fleet.into()),
                replace_leaf_token: *replace_leaf_token,
                by: by.clone(),
            }),
            Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret,
                by,
            } => Self::RotateDiscoveryTierSecret(manager::RotateDiscoveryTierSecretRequest {
                step: match step {
                    RotationStep::Stage => manager::RotationStep::Stage,
                    RotationStep::Flip => manager::RotationStep::Flip,
                    RotationStep::Finish => manager::RotationStep::Finish,
                }
                .into(),
                new_tier_secret: new_tier_secret.0.clone(),
                by: by.clone(),
            }),
            Call::PublishAccessReplica(it) => {
                Self::PublishAccessReplica(manager::PublishAccessReplicaRequest {
                    version: it.version,
                    snapshot_jws_gz: it.snapshot.bytes().to_vec(),
                    delta_jws: it.delta.clone(),
                    base_version: it.base_version,
                    attestation_jws: it.attestation.clone(),
                    keys: it.keys.iter().map(|set| set.bytes().to_vec()).collect(),
                })
            }
            Call::ReloadExternalConfig => {
                Self::ReloadExternalConfig(manager::ReloadExternalConfigRequest {})
            }
            Call::AbortMigration {
                job_id,
                source_role,
                target_role,
                reason,
                migration_id,
            } => Self::AbortMigration(manager::AbortMigrationRequest {
                job_id: Some(job_id.into()),
                source_role: source_role.to_string(),
                target_role: target_role.to_string(),
                reason: reason.clone(),
                migration_id: migration_id.to_string(),
            }),
            Call::AdoptInstance {
                node_id,
                key,
                start_id,
            } => Self::AdoptInstance(manager::AdoptInstanceRequest {
                node_id: Some(node_id.into()),
                start_id: start_id
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                job_key: Some(key.into()),
            }),
            Call::RenewBundleLease { bundle_id, ttl_ms } => {
                Self::RenewBundleLease(manager::RenewBundleLeaseRequest {
                    bundle_id: bundle_id.to_string(),
                    ttl_ms: ttl_ms.0,
                })
            }
            Call::PauseLeases { reason, by } => Self::PauseLeases(manager::PauseLeasesRequest {
                reason: reason.clone(),
                by: by.clone(),
            }),
            Call::ResumeLeases { by } => {
                Self::ResumeLeases(manager::ResumeLeasesRequest { by: by.clone() })
            }
        }
    }
}

fn write_aws(node: &CreateAwsNode) -> manager::CreateAwsNodeRequest {
    manager::CreateAwsNodeRequest {
        node_id: Some((&node.node_id).into()),
        tags: node.tags.clone(),
        region: node.region.clone(),
        instance_type: node.instance_type.clone(),
        launch_mode: write_enum::<wire::LaunchMode>(node.launch_mode),
        root_volume: node
            .root_volume
            .as_ref()
            .map(|volume| manager::AwsRootVolume {
                size_gb: volume.size_gb,
                r#type: volume.volume_type.clone(),
                iops: volume.iops,
                throughput: volume.throughput,
            }),
        ..manager::CreateAwsNodeRequest::default()
    }
}

fn write_oci(node: &CreateOciNode) -> manager::CreateOciNodeRequest {
    manager::CreateOciNodeRequest {
        node_id: Some((&node.node_id).into()),
        tags: node.tags.clone(),
        availability_domain: node.availability_domain.clone(),
        architecture: node.architecture.clone(),
        shape: node.shape.clone(),
        subnet: node.subnet.clone(),
        launch_mode: write_enum::<wire::LaunchMode>(node.launch_mode),
        ocpus: node.ocpus.unwrap_or_default(),
        memory_gb: node.memory_gb.unwrap_or_default(),
        ..manager::CreateOciNodeRequest::default()
    }
}

fn write_commit(commit: &KvCommit) -> manager::KvCommitRequest {
    manager::KvCommitRequest {
        namespace: commit.namespace.clone(),
        writes: commit
            .writes
            .iter()
            .map(|write| manager::KvWrite {
                key: write.key.clone(),
                value: write.value.as_deref().unwrap_or_default().to_vec(),
                delete: write.value.is_none(),
                expected_revision: write.expected_revision,
            })
            .collect(),
        expected_schema_version: commit.expected_schema_version,
        set_schema_version: commit.set_schema_version,
    }
}
