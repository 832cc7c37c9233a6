//! The calls on the Manager: requests, answers, and what announces a client.
//!
//! A [`Request`] is a call with its message as it travels. A client writes one from a [`Call`]; a server reads the
//! [`Call`] back, which is where a request is refused for what it says by itself: a missing identifier first
//! (API-15), then text and values that no request may hold (LIM-02, LIM-03), then enums and times (API-04, API-24).
//! What needs the Manager's state or the form of an id is not judged here. A field that is set and has no place in
//! the domain yet is refused `field_not_served`, never dropped.

pub mod answer;
pub mod check;
pub mod search;

use greenroom_types::{
    BundleId, JobId, JobName, MigrationId, Millis, NodeId, PoolName, Role,
    call::{Call, CreateAwsNode, CreateOciNode, Refusal, StartJob, Status},
    node::InstanceKey,
    pool::RootVolume,
};

pub use answer::{Answer, FoundJob};
pub use search::{DateMatch, IdMatch, JobFilter, JobSearch, TagMatch};

use super::{
    WireError,
    common::{
        read_enum, read_job_id, read_node_id, read_role, read_time_optional, write_enum, write_time,
    },
    inventory::{read_gpu_index, write_gpu_index},
};
use crate::{common as wire, manager};

/// Major of the protocol of this build (HELLO-01).
pub const PROTOCOL_MAJOR: u32 = 1;

/// Minor of the protocol of this build (HELLO-01).
pub const PROTOCOL_MINOR: u32 = 10;

/// Request metadata in which a client tells its protocol as `1.N` (HELLO-02).
pub const PROTOCOL_METADATA: &str = "greenroom-protocol";

/// Request metadata that makes a mutating call repeatable (API-07).
pub const REQUEST_ID_METADATA: &str = "greenroom-request-id";

/// A mutating call as it travels: one variant per RPC, named like it.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "each variant is the RPC of its name with its request"
)]
pub enum Request {
    CreateJob(manager::Job),
    UpdateJob(manager::Job),
    DeleteJob(wire::JobId),
    CompleteJob(wire::JobId),
    StartJob(manager::StartJobRequest),
    StartPreparedJob(manager::StartPreparedJobRequest),
    StopJob(manager::StopJobRequest),
    MarkJobFailed(manager::MarkJobFailedRequest),
    CreateBundle(manager::CreateBundleRequest),
    UpdateBundle(manager::UpdateBundleRequest),
    DeleteBundle(manager::DeleteBundleRequest),
    StartBundleJob(manager::StartBundleJobRequest),
    StopBundleJob(manager::StopBundleJobRequest),
    SetBundleStopTime(manager::SetBundleStopTimeRequest),
    CreateAwsNode(manager::CreateAwsNodeRequest),
    CreateOciNode(manager::CreateOciNodeRequest),
    TerminateNode(wire::NodeId),
    UpdatePhysicalNode(manager::UpdatePhysicalNodeRequest),
    SetNodeTags(manager::SetNodeTagsRequest),
    RegisterClusterNode(manager::RegisterClusterNodeRequest),
    DeregisterClusterNode(manager::DeregisterClusterNodeRequest),
    PrefetchImages(manager::PrefetchImagesRequest),
    NotifyMigrationGetState(manager::NotifyMigrationGetStateRequest),
    NotifyMigrationCutoverReady(manager::NotifyMigrationCutoverReadyRequest),
    NotifyMigrationCutoverApply(manager::NotifyMigrationCutoverApplyRequest),
    AbortMigration(manager::AbortMigrationRequest),
}

/// The minor with which a call arrived (HELLO-05): 0 for the published ones, none for a name that is no call.
pub fn minor_of_call(name: &str) -> Option<u32> {
    Some(match name {
        "CreateStatusChannel"
        | "CreateJob"
        | "UpdateJob"
        | "DeleteJob"
        | "JobSearch"
        | "CreateAwsNode"
        | "CreateOciNode"
        | "UpdatePhysicalNode"
        | "TerminateNode"
        | "StartJob"
        | "StopJob"
        | "CompleteJob"
        | "EventStream" => 0,
        "ListNodes" | "StartPreparedJob" | "MarkJobFailed" | "CreateBundle" | "UpdateBundle"
        | "DeleteBundle" | "GetBundle" | "ListBundles" | "StartBundleJob" | "StopBundleJob"
        | "SetBundleStopTime" | "SetNodeTags" => 1,
        "RegisterClusterNode"
        | "DeregisterClusterNode"
        | "ListClusterNodes"
        | "SetClusterNodePool"
        | "RotateClusterNodeToken"
        | "ClusterMemberRegister" => 2,
        "AbortMigration"
        | "NotifyMigrationGetState"
        | "NotifyMigrationCutoverReady"
        | "NotifyMigrationCutoverApply" => 3,
        "PrefetchImages" => 9,
        _ => return None,
    })
}

/// Reads what a client says in [`PROTOCOL_METADATA`]: its major and minor. Absent means the published 1.0
/// (HELLO-02).
pub fn read_protocol(metadata: &tonic::metadata::MetadataMap) -> Result<(u32, u32), WireError> {
    let Some(value) = metadata.get(PROTOCOL_METADATA) else {
        return Ok((1, 0));
    };
    let text = value.to_str().unwrap_or_default();
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| {
            let message = format!("is {text:?}, it must be MAJOR.MINOR, as 1.{PROTOCOL_MINOR}");
            WireError::new("bad_value", PROTOCOL_METADATA, message)
        })
}

/// The refusal that a faulty message ends its call with.
pub fn refuse(error: WireError) -> Refusal {
    let message = error.to_string();
    Refusal::new(Status::InvalidArgument, error.reason, message).with("path", error.path)
}

// === writing ===

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
                payload: payload.clone(),
            }),
            Call::NotifyMigrationCutoverApply {
                key,
                migration_id,
                payload,
            } => Self::NotifyMigrationCutoverApply(manager::NotifyMigrationCutoverApplyRequest {
                target_job_key: Some(key.into()),
                migration_id: migration_id.to_string(),
                payload: payload.clone(),
            }),
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

// === reading ===

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

impl Request {
    /// Name of the RPC.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CreateJob(_) => "CreateJob",
            Self::UpdateJob(_) => "UpdateJob",
            Self::DeleteJob(_) => "DeleteJob",
            Self::CompleteJob(_) => "CompleteJob",
            Self::StartJob(_) => "StartJob",
            Self::StartPreparedJob(_) => "StartPreparedJob",
            Self::StopJob(_) => "StopJob",
            Self::MarkJobFailed(_) => "MarkJobFailed",
            Self::CreateBundle(_) => "CreateBundle",
            Self::UpdateBundle(_) => "UpdateBundle",
            Self::DeleteBundle(_) => "DeleteBundle",
            Self::StartBundleJob(_) => "StartBundleJob",
            Self::StopBundleJob(_) => "StopBundleJob",
            Self::SetBundleStopTime(_) => "SetBundleStopTime",
            Self::CreateAwsNode(_) => "CreateAwsNode",
            Self::CreateOciNode(_) => "CreateOciNode",
            Self::TerminateNode(_) => "TerminateNode",
            Self::UpdatePhysicalNode(_) => "UpdatePhysicalNode",
            Self::SetNodeTags(_) => "SetNodeTags",
            Self::RegisterClusterNode(_) => "RegisterClusterNode",
            Self::DeregisterClusterNode(_) => "DeregisterClusterNode",
            Self::PrefetchImages(_) => "PrefetchImages",
            Self::NotifyMigrationGetState(_) => "NotifyMigrationGetState",
            Self::NotifyMigrationCutoverReady(_) => "NotifyMigrationCutoverReady",
            Self::NotifyMigrationCutoverApply(_) => "NotifyMigrationCutoverApply",
            Self::AbortMigration(_) => "AbortMigration",
        }
    }

    /// The encoded message, without the fields that the Manager does not know: two requests that mean the same to it
    /// have the same bytes, which a repeat under one request id is held against (API-07).
    pub fn body(&self) -> Vec<u8> {
        use prost::Message;
        match self {
            Self::CreateJob(it) | Self::UpdateJob(it) => it.encode_to_vec(),
            Self::DeleteJob(it) | Self::CompleteJob(it) => it.encode_to_vec(),
            Self::StartJob(it) => it.encode_to_vec(),
            Self::StartPreparedJob(it) => it.encode_to_vec(),
            Self::StopJob(it) => it.encode_to_vec(),
            Self::MarkJobFailed(it) => it.encode_to_vec(),
            Self::CreateBundle(it) => it.encode_to_vec(),
            Self::UpdateBundle(it) => it.encode_to_vec(),
            Self::DeleteBundle(it) => it.encode_to_vec(),
            Self::StartBundleJob(it) => it.encode_to_vec(),
            Self::StopBundleJob(it) => it.encode_to_vec(),
            Self::SetBundleStopTime(it) => it.encode_to_vec(),
            Self::CreateAwsNode(it) => it.encode_to_vec(),
            Self::CreateOciNode(it) => it.encode_to_vec(),
            Self::TerminateNode(it) => it.encode_to_vec(),
            Self::UpdatePhysicalNode(it) => it.encode_to_vec(),
            Self::SetNodeTags(it) => it.encode_to_vec(),
            Self::RegisterClusterNode(it) => it.encode_to_vec(),
            Self::DeregisterClusterNode(it) => it.encode_to_vec(),
            Self::PrefetchImages(it) => it.encode_to_vec(),
            Self::NotifyMigrationGetState(it) => it.encode_to_vec(),
            Self::NotifyMigrationCutoverReady(it) => it.encode_to_vec(),
            Self::NotifyMigrationCutoverApply(it) => it.encode_to_vec(),
            Self::AbortMigration(it) => it.encode_to_vec(),
        }
    }

    /// Name of the message that the RPC takes, with its package.
    const fn message(&self) -> &'static str {
        match self {
            Self::CreateJob(_) | Self::UpdateJob(_) => "norsk.api.manager.Job",
            Self::DeleteJob(_) | Self::CompleteJob(_) => "norsk.api.common.JobId",
            Self::StartJob(_) => "norsk.api.manager.StartJobRequest",
            Self::StartPreparedJob(_) => "norsk.api.manager.StartPreparedJobRequest",
            Self::StopJob(_) => "norsk.api.manager.StopJobRequest",
            Self::MarkJobFailed(_) => "norsk.api.manager.MarkJobFailedRequest",
            Self::CreateBundle(_) => "norsk.api.manager.CreateBundleRequest",
            Self::UpdateBundle(_) => "norsk.api.manager.UpdateBundleRequest",
            Self::DeleteBundle(_) => "norsk.api.manager.DeleteBundleRequest",
            Self::StartBundleJob(_) => "norsk.api.manager.StartBundleJobRequest",
            Self::StopBundleJob(_) => "norsk.api.manager.StopBundleJobRequest",
            Self::SetBundleStopTime(_) => "norsk.api.manager.SetBundleStopTimeRequest",
            Self::CreateAwsNode(_) => "norsk.api.manager.CreateAwsNodeRequest",
            Self::CreateOciNode(_) => "norsk.api.manager.CreateOciNodeRequest",
            Self::TerminateNode(_) => "norsk.api.common.NodeId",
            Self::UpdatePhysicalNode(_) => "norsk.api.manager.UpdatePhysicalNodeRequest",
            Self::SetNodeTags(_) => "norsk.api.manager.SetNodeTagsRequest",
            Self::RegisterClusterNode(_) => "norsk.api.manager.RegisterClusterNodeRequest",
            Self::DeregisterClusterNode(_) => "norsk.api.manager.DeregisterClusterNodeRequest",
            Self::PrefetchImages(_) => "norsk.api.manager.PrefetchImagesRequest",
            Self::NotifyMigrationGetState(_) => "norsk.api.manager.NotifyMigrationGetStateRequest",
            Self::NotifyMigrationCutoverReady(_) => {
                "norsk.api.manager.NotifyMigrationCutoverReadyRequest"
            }
            Self::NotifyMigrationCutoverApply(_) => {
                "norsk.api.manager.NotifyMigrationCutoverApplyRequest"
            }
            Self::AbortMigration(_) => "norsk.api.manager.AbortMigrationRequest",
        }
    }

    /// Checks text and values of the whole message (LIM-02, LIM-03).
    fn check(&self) -> Result<(), WireError> {
        check::check(self.message(), &self.body())
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
            Call::CreateBundle(Box::new(super::read_required(it.bundle, "bundle")?))
        }
        Request::UpdateBundle(it) => Call::UpdateBundle {
            bundle: Box::new(super::read_required(it.bundle, "bundle")?),
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
            payload: it.payload,
        },
        Request::NotifyMigrationCutoverApply(it) => Call::NotifyMigrationCutoverApply {
            key: key(it.target_job_key, "target_job_key")?,
            migration_id: MigrationId::new(it.migration_id),
            payload: it.payload,
        },
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

#[cfg(test)]
mod tests;
