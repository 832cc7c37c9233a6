//! A request as its [`Call`]: missing identifiers first, then text and values, then enums and times.

use greenroom_types::{
    BundleId, JobId, JobName, MigrationId, Millis, NodeId, PoolName, Role, StartId, Wall,
    call::{Call, CreateAwsNode, CreateOciNode, StartJob},
    discovery::{Hidden, RotationStep},
    kv::{KvCommit, KvWrite},
    node::InstanceKey,
    pool::RootVolume,
    replica::AccessReplica,
};

use super::{
    super::{
        WireError,
        common::{read_enum, read_job_id, read_node_id, read_role, read_time_optional},
        inventory::read_gpu_index,
        read_required,
    },
    Request,
};
use crate::{common as wire, manager};

impl TryFrom<Request> for Call {
    type Error = WireError;

    fn try_from(request: Request) -> Result<Self, WireError> {
        required(&request)?;
        request.check()?;
        if let Some(path) = not_served(&request) {
            let message = "is set, and this version does not serve it";
            return Err(WireError::new("field_not_served", path, message));
        }
        read(request)
    }
}

/// Every identifier that the call needs, before anything else is looked at (API-15).
fn required(request: &Request) -> Result<(), WireError> {
    let text = |text: &str, field: &str| {
        if text.is_empty() {
            Err(WireError::missing(field))
        } else {
            Ok(())
        }
    };
    let job = |id: &Option<wire::JobId>| read_job_id(id.clone(), "job_id").map(drop);
    let node = |id: &Option<wire::NodeId>| read_node_id(id.clone(), "node_id").map(drop);
    let key = |key: &Option<wire::ActiveJobKey>, field: &str| {
        InstanceKey::try_from(key.clone().unwrap_or_default())
            .map(drop)
            .map_err(|error| error.under(field))
    };
    match request {
        Request::CreateJob(it) | Request::UpdateJob(it) => job(&it.job_id),
        Request::DeleteJob(it) | Request::CompleteJob(it) => text(&it.job_id, "job_id"),
        Request::StartJob(it) => {
            job(&it.job_id)?;
            text(&it.role, "role")?;
            node(&it.node_id)
        }
        Request::StartPreparedJob(it) => {
            job(&it.job_id)?;
            text(&it.role, "role")?;
            node(&it.node_id)
        }
        Request::StopJob(it) => {
            job(&it.job_id)?;
            text(&it.role, "role")?;
            node(&it.node_id)
        }
        Request::MarkJobFailed(it) => job(&it.job_id),
        Request::CreateBundle(it) => match &it.bundle {
            Some(_) => Ok(()),
            None => Err(WireError::missing("bundle")),
        },
        Request::UpdateBundle(it) => match &it.bundle {
            Some(bundle) => text(&bundle.bundle_id, "bundle.bundle_id"),
            None => Err(WireError::missing("bundle")),
        },
        Request::DeleteBundle(it) => text(&it.bundle_id, "bundle_id"),
        Request::StartBundleJob(it) => text(&it.bundle_id, "bundle_id"),
        Request::StopBundleJob(it) => text(&it.bundle_id, "bundle_id"),
        Request::SetBundleStopTime(it) => text(&it.bundle_id, "bundle_id"),
        Request::CreateAwsNode(it) => node(&it.node_id),
        Request::CreateOciNode(it) => node(&it.node_id),
        Request::TerminateNode(it) => text(&it.node_id, "node_id"),
        Request::UpdatePhysicalNode(it) => text(&it.id, "id"),
        Request::SetNodeTags(it) => node(&it.node_id),
        Request::RegisterClusterNode(_) => Ok(()),
        Request::DeregisterClusterNode(it) => node(&it.node_id),
        Request::PrefetchImages(it) => node(&it.node_id),
        Request::NotifyMigrationGetState(it) => {
            key(&it.source_job_key, "source_job_key")?;
            text(&it.migration_id, "migration_id")
        }
        Request::NotifyMigrationCutoverReady(it) => {
            key(&it.source_job_key, "source_job_key")?;
            text(&it.migration_id, "migration_id")
        }
        Request::NotifyMigrationCutoverApply(it) => {
            key(&it.target_job_key, "target_job_key")?;
            text(&it.migration_id, "migration_id")
        }
        Request::KvCommit(_) => Ok(()),
        Request::SetNodeIdleExpiry(it) => node(&it.node_id),
        Request::SetClusterNodePool(it) => node(&it.node_id),
        Request::RotateClusterNodeToken(it) => node(&it.node_id),
        Request::AppendAuditEntry(_) => Ok(()),
        Request::PruneAuditLog(_) => Ok(()),
        Request::PublishDiscoveryFleet(it) => match &it.fleet {
            Some(_) => Ok(()),
            None => Err(WireError::missing("fleet")),
        },
        Request::RotateDiscoveryTierSecret(_)
        | Request::PublishAccessReplica(_)
        | Request::ReloadExternalConfig(_) => Ok(()),
        Request::AdoptInstance(it) => {
            node(&it.node_id)?;
            key(&it.job_key, "job_key")
        }
        Request::RenewBundleLease(it) => text(&it.bundle_id, "bundle_id"),
        Request::PauseLeases(it) => text(it.reason.trim(), "reason"),
        Request::ResumeLeases(_) => Ok(()),
        Request::AbortMigration(it) => {
            job(&it.job_id)?;
            text(&it.source_role, "source_role")?;
            text(&it.target_role, "target_role")
        }
    }
}

/// Path of the first field that is set and has no place in a [`Call`].
fn not_served(request: &Request) -> Option<&'static str> {
    let first = |fields: &[(bool, &'static str)]| {
        fields.iter().find(|(set, _)| *set).map(|(_, path)| *path)
    };
    match request {
        Request::CreateAwsNode(it) => first(&[
            (it.template.is_some(), "template"),
            (it.worker_image_version != 0, "worker_image_version"),
            (it.worker_daemon_version != 0, "worker_daemon_version"),
            (!it.write_files.is_empty(), "write_files"),
            (!it.security_group_ids.is_empty(), "security_group_ids"),
            (!it.subnet_id.is_empty(), "subnet_id"),
            (!it.availability_zone.is_empty(), "availability_zone"),
            (
                !it.capacity_reservation_id.is_empty(),
                "capacity_reservation_id",
            ),
            (it.idle_expiry_ms.is_some(), "idle_expiry_ms"),
        ]),
        Request::CreateOciNode(it) => first(&[
            (it.worker_image_version != 0, "worker_image_version"),
            (it.worker_daemon_version != 0, "worker_daemon_version"),
            (!it.write_files.is_empty(), "write_files"),
            (!it.nsg_ids.is_empty(), "nsg_ids"),
            (it.boot_volume_gb != 0, "boot_volume_gb"),
            (it.idle_expiry_ms.is_some(), "idle_expiry_ms"),
        ]),
        _ => None,
    }
}

/// Reads a request whose identifiers are there and whose text and values are sound.
fn read(request: Request) -> Result<Call, WireError> {
    let instance = |job_id: Option<wire::JobId>, role: &str| {
        Ok::<_, WireError>(InstanceKey::new(
            read_job_id(job_id, "job_id")?,
            read_role(role, "role")?,
        ))
    };
    let key = |key: Option<wire::ActiveJobKey>, field: &str| {
        InstanceKey::try_from(key.unwrap_or_default()).map_err(|error| error.under(field))
    };
    Ok(match request {
        Request::CreateJob(job) => Call::CreateJob(Box::new(job.try_into()?)),
        Request::UpdateJob(job) => {
            let expected = job.current_hash;
            Call::UpdateJob(Box::new(job.try_into()?), expected)
        }
        Request::DeleteJob(it) => Call::DeleteJob(JobId::new(it.job_id)),
        Request::CompleteJob(it) => Call::CompleteJob(JobId::new(it.job_id)),
        Request::StartJob(it) => Call::StartJob(StartJob {
            job_id: read_job_id(it.job_id, "job_id")?,
            role: read_role(&it.role, "role")?,
            node_id: read_node_id(it.node_id, "node_id")?,
            defer_start: it.defer_start,
            runtime_role: it.runtime_role,
            gpu_index: read_gpu_index(it.gpu_index),
            migration_id: (!it.migration_id.is_empty()).then(|| MigrationId::new(it.migration_id)),
            migration_state: it.migration_state.map(Into::into),
        }),
        Request::StartPreparedJob(it) => Call::StartPreparedJob {
            key: instance(it.job_id, &it.role)?,
            node_id: read_node_id(it.node_id, "node_id")?,
        },
        Request::StopJob(it) => Call::StopJob {
            key: instance(it.job_id, &it.role)?,
            node_id: read_node_id(it.node_id, "node_id")?,
            grace_ms: it.grace_ms.map(Millis),
        },
        Request::MarkJobFailed(it) => Call::MarkJobFailed {
            job_id: read_job_id(it.job_id, "job_id")?,
            reason: it.reason,
        },
        Request::CreateBundle(it) => {
            Call::CreateBundle(Box::new(read_required(it.bundle, "bundle")?))
        }
        Request::UpdateBundle(it) => Call::UpdateBundle {
            bundle: Box::new(read_required(it.bundle, "bundle")?),
            dry_run: it.dry_run,
            clear_stop_time: it.clear_stop_time,
        },
        Request::DeleteBundle(it) => Call::DeleteBundle(BundleId::new(it.bundle_id)),
        Request::StartBundleJob(it) => Call::StartBundleJob {
            bundle_id: BundleId::new(it.bundle_id),
            replica_index: it.replica_index,
            job_name: JobName::new(it.job_name),
        },
        Request::StopBundleJob(it) => Call::StopBundleJob {
            bundle_id: BundleId::new(it.bundle_id),
            replica_index: it.replica_index,
            job_name: JobName::new(it.job_name),
            grace_ms: it.grace_ms.map(Millis),
        },
        Request::SetBundleStopTime(it) => Call::SetBundleStopTime {
            bundle_id: BundleId::new(it.bundle_id),
            stop_at: read_time_optional(it.stop_at, "stop_at")?,
        },
        Request::CreateAwsNode(it) => Call::CreateAwsNode(Box::new(read_aws(it)?)),
        Request::CreateOciNode(it) => Call::CreateOciNode(Box::new(read_oci(it)?)),
        Request::TerminateNode(it) => Call::TerminateNode(NodeId::new(it.node_id)),
        Request::UpdatePhysicalNode(it) => Call::UpdatePhysicalNode {
            node_id: NodeId::new(it.id),
            daemon_version: it.daemon_version,
        },
        Request::SetNodeTags(it) => Call::SetNodeTags {
            node_id: read_node_id(it.node_id, "node_id")?,
            tags: it.tags,
            remove: it.remove,
            expected_revision: it.expected_revision,
        },
        Request::RegisterClusterNode(it) => Call::RegisterClusterNode {
            node_name: it.node_name,
            pool: PoolName::new(it.pool),
        },
        Request::DeregisterClusterNode(it) => {
            Call::DeregisterClusterNode(read_node_id(it.node_id, "node_id")?)
        }
        Request::PrefetchImages(it) => Call::PrefetchImages {
            node_id: read_node_id(it.node_id, "node_id")?,
            image_refs: it.image_refs,
        },
        Request::NotifyMigrationGetState(it) => Call::NotifyMigrationGetState {
            key: key(it.source_job_key, "source_job_key")?,
            migration_id: MigrationId::new(it.migration_id),
        },
        Request::NotifyMigrationCutoverReady(it) => Call::NotifyMigrationCutoverReady {
            key: key(it.source_job_key, "source_job_key")?,
            migration_id: MigrationId::new(it.migration_id),
            payload: it.payload.into(),
        },
        Request::NotifyMigrationCutoverApply(it) => Call::NotifyMigrationCutoverApply {
            key: key(it.target_job_key, "target_job_key")?,
            migration_id: MigrationId::new(it.migration_id),
            payload: it.payload.into(),
        },
        Request::KvCommit(it) => Call::KvCommit(read_commit(it)),
        Request::SetNodeIdleExpiry(it) => Call::SetNodeIdleExpiry {
            node_id: read_node_id(it.node_id, "node_id")?,
            idle_expiry_ms: Millis(it.idle_expiry_ms),
        },
        Request::SetClusterNodePool(it) => Call::SetClusterNodePool {
            node_id: read_node_id(it.node_id, "node_id")?,
            pool: PoolName::new(it.pool),
        },
        Request::RotateClusterNodeToken(it) => {
            Call::RotateClusterNodeToken(read_node_id(it.node_id, "node_id")?)
        }
        Request::AppendAuditEntry(it) => Call::AppendAuditEntry {
            source: it.source,
            kind: it.kind,
            payload: it.payload,
        },
        Request::PruneAuditLog(it) => Call::PruneAuditLog {
            before: Wall(i64::try_from(it.before_timestamp_ms).unwrap_or(i64::MAX)),
        },
        Request::PublishDiscoveryFleet(it) => Call::PublishDiscoveryFleet {
            replace_leaf_token: it.replace_leaf_token,
            fleet: read_required(it.fleet, "fleet")?,
            by: it.by,
        },
        Request::RotateDiscoveryTierSecret(it) => Call::RotateDiscoveryTierSecret {
            step: read_step(it.step)?,
            new_tier_secret: Hidden(it.new_tier_secret),
            by: it.by,
        },
        Request::PublishAccessReplica(it) => Call::PublishAccessReplica(Box::new(AccessReplica {
            version: it.version,
            snapshot: it.snapshot_jws_gz.into(),
            delta: it.delta_jws,
            base_version: it.base_version,
            attestation: it.attestation_jws,
            keys: it.keys.into_iter().map(Into::into).collect(),
        })),
        Request::ReloadExternalConfig(_) => Call::ReloadExternalConfig,
        Request::AdoptInstance(it) => Call::AdoptInstance {
            node_id: read_node_id(it.node_id, "node_id")?,
            key: read_required(it.job_key, "job_key")?,
            start_id: (!it.start_id.is_empty()).then(|| StartId::new(it.start_id)),
        },
        Request::RenewBundleLease(it) => Call::RenewBundleLease {
            bundle_id: BundleId::new(it.bundle_id),
            ttl_ms: Millis(it.ttl_ms),
        },
        Request::PauseLeases(it) => Call::PauseLeases {
            reason: it.reason,
            by: it.by,
        },
        Request::ResumeLeases(it) => Call::ResumeLeases { by: it.by },
        Request::AbortMigration(it) => Call::AbortMigration {
            job_id: read_job_id(it.job_id, "job_id")?,
            source_role: Role::new(it.source_role),
            target_role: Role::new(it.target_role),
            reason: it.reason,
            migration_id: MigrationId::new(it.migration_id),
        },
    })
}

fn read_aws(node: manager::CreateAwsNodeRequest) -> Result<CreateAwsNode, WireError> {
    Ok(CreateAwsNode {
        node_id: read_node_id(node.node_id, "node_id")?,
        tags: node.tags,
        region: node.region,
        instance_type: node.instance_type,
        launch_mode: read_enum::<wire::LaunchMode, _>(node.launch_mode, "launch_mode")?,
        root_volume: node.root_volume.map(|volume| RootVolume {
            size_gb: volume.size_gb,
            volume_type: volume.r#type,
            iops: volume.iops,
            throughput: volume.throughput,
        }),
    })
}

fn read_oci(node: manager::CreateOciNodeRequest) -> Result<CreateOciNode, WireError> {
    // Plain numbers on the wire: 0 is what an unset one reads as.
    let set = |number: f64| (number != 0.0).then_some(number);
    Ok(CreateOciNode {
        node_id: read_node_id(node.node_id, "node_id")?,
        tags: node.tags,
        availability_domain: node.availability_domain,
        architecture: node.architecture,
        shape: node.shape,
        subnet: node.subnet,
        ocpus: set(node.ocpus),
        memory_gb: set(node.memory_gb),
        launch_mode: read_enum::<wire::LaunchMode, _>(node.launch_mode, "launch_mode")?,
    })
}

fn read_step(step: i32) -> Result<RotationStep, WireError> {
    match manager::RotationStep::try_from(step) {
        Ok(manager::RotationStep::Stage) => Ok(RotationStep::Stage),
        Ok(manager::RotationStep::Flip) => Ok(RotationStep::Flip),
        Ok(manager::RotationStep::Finish) => Ok(RotationStep::Finish),
        Ok(manager::RotationStep::Unset) => Err(WireError::missing("step")),
        Err(_) => {
            let message = format!("is {step}, it must be STAGE, FLIP or FINISH");
            Err(WireError::new("unknown_enum", "step", message))
        }
    }
}

fn read_commit(commit: manager::KvCommitRequest) -> KvCommit {
    KvCommit {
        namespace: commit.namespace,
        writes: commit
            .writes
            .into_iter()
            .map(|write| KvWrite {
                key: write.key,
                value: (!write.delete).then(|| write.value.into()),
                expected_revision: write.expected_revision,
            })
            .collect(),
        expected_schema_version: commit.expected_schema_version,
        set_schema_version: commit.set_schema_version,
    }
}
