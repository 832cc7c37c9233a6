//! What passes between Manager and worker and is made of more than one noun.
//!
//! [`StartOrder`] is the domain's form of a WorkerJob: everything a worker needs for one start, and nothing of the
//! job that it does not. [`WorkerInstance`] is what a worker says of an instance it holds, [`Rejection`] why it did
//! not take one on.

use std::sync::Arc;

use greenroom_types::{
    JobId, MigrationId, Payload, Role, StartId, Tags, Wall,
    bundle::Requirements,
    inventory::{Capability, NodeInventory},
    job::{Job, LeasePolicy, PortMappings, Service, ServiceParameters},
    node::{InstanceKey, InstanceState, InterruptionKind, RejectionCode},
    stream::{MigrationSignal, PrefetchResult},
};

use super::{
    WireError,
    common::{
        read_enum, read_job_id, read_ports, read_role, read_time_optional, read_time_or_zero,
        write_enum, write_ports, write_time,
    },
    inventory::{read_gpu_index, take_list, write_gpu_index},
    read_list, read_optional, read_required, write_list,
};
use crate::{common as wire, manager, worker};

/// One start of a job on a worker, as a WorkerJob orders it (WORK-10).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartOrder {
    /// The job.
    pub job_id: JobId,
    /// Free text.
    pub description: String,
    /// Tags.
    pub tags: Tags,
    /// When the job was to start.
    pub start_date_time: Option<Wall>,
    /// What runs.
    pub services: Vec<Service>,
    /// Role of the instance.
    pub role: Role,
    /// Concrete label of the media runtime (JOB-30), empty for none.
    pub media_version: String,
    /// Image of the media runtime, empty for none.
    pub media_image: String,
    /// How the media runtime runs.
    pub media_parameters: Option<ServiceParameters>,
    /// Volumes.
    pub volumes: Vec<String>,
    /// This start; empty from a published Manager.
    pub start_id: StartId,
    /// Create without running (JOB-24).
    pub defer_start: bool,
    /// Role told to the job; empty: the role up to `@`.
    pub runtime_role: String,
    /// Device for a GPU share.
    pub gpu_index: Option<u32>,
    /// What the worker checks before accepting (WORK-30).
    pub requirements: Option<Requirements>,
    /// Fencing.
    pub lease: Option<LeasePolicy>,
    /// Fencing number; 0 without lease.
    pub fence: u64,
    /// The job can be handed over.
    pub handover: bool,
    /// The job wants its socket.
    pub job_socket: bool,
    /// Capabilities it provides once running.
    pub provides: Vec<Capability>,
    /// The migration it is the target of.
    pub migration_id: Option<MigrationId>,
    /// Names of environment variables to keep secret.
    pub secret_env: Vec<String>,
    /// Names of tags told to its services.
    pub export_tags: Vec<String>,
    /// It is the target of a migration.
    pub target_is_migration: bool,
    /// The source's state, for the target of a handover.
    pub migration_state: Option<Payload>,
    /// There was one, and the Manager lost it.
    pub migration_state_lost: bool,
}

/// An instance that a worker holds, as its hello tells (MNODE-13).
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerInstance {
    /// The instance.
    pub key: InstanceKey,
    /// Its start.
    pub start_id: StartId,
    /// Where it stands.
    pub state: InstanceState,
    /// Fencing number; 0 without lease.
    pub fence: u64,
    /// Its ports.
    pub ports: PortMappings,
}

/// Why a worker did not take an instance on (WORK-33).
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The instance.
    pub key: InstanceKey,
    /// Kind of refusal; [`RejectionCode::Unspecified`] for a kind that this version does not know.
    pub code: RejectionCode,
    /// The number of the kind, kept as the worker sent it (API-04).
    pub code_number: i32,
    /// The worker's words.
    pub detail: String,
    /// The worker's picture of itself at that moment.
    pub inventory: Option<Arc<NodeInventory>>,
}

/// A worker saw that its provider will take the node, or advises to leave it (MNODE-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptionNotice {
    /// Kind of notice.
    pub kind: InterruptionKind,
    /// When the node goes, if known.
    pub deadline: Option<Wall>,
    /// When the worker saw it.
    pub seen_at: Wall,
}

/// A migration's signal with where it comes from (MGR-01 to MGR-09).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationNews {
    /// The instance it comes from.
    pub key: InstanceKey,
    /// The migration.
    pub migration_id: MigrationId,
    /// What it says.
    pub signal: MigrationSignal,
}

/// The five messages in which the wire carries [`MigrationNews`], the same from workers and to subscribers.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationMessage {
    /// The source's state, or its refusal.
    State(manager::MigrationState),
    /// The target can take over.
    TargetReady(manager::MigrationTargetReady),
    /// The source ended its output.
    SourceStoppedOutput(manager::MigrationSourceStoppedOutput),
    /// The target took over.
    TargetApplied(manager::MigrationTargetApplied),
    /// A side gave up.
    Aborted(manager::MigrationAborted),
}

// === impl StartOrder ===

impl StartOrder {
    /// The order to start `job` in `role`, with everything that the definition says; what belongs to the one start
    /// (device, fence, media label and image, deferral, migration) is for the caller to fill in.
    pub fn of(job: &Job, role: Role, start_id: StartId) -> Self {
        Self {
            job_id: job.job_id.clone(),
            description: job.description.clone(),
            tags: job.tags.clone(),
            start_date_time: job.start_date_time,
            services: job.services.clone(),
            role,
            media_parameters: job.media_parameters.clone(),
            volumes: job.volumes.clone(),
            start_id,
            requirements: job
                .auto_placement
                .as_ref()
                .map(|place| place.requirements.clone()),
            lease: job.lease,
            handover: job.handover,
            job_socket: job.job_socket,
            provides: job.provides.clone(),
            secret_env: job.secret_env.clone(),
            export_tags: job.export_tags.clone(),
            ..Self::default()
        }
    }

    /// Key of the instance.
    pub fn key(&self) -> InstanceKey {
        InstanceKey::new(self.job_id.clone(), self.role.clone())
    }
}

impl TryFrom<worker::WorkerJob> for StartOrder {
    type Error = WireError;
    fn try_from(job: worker::WorkerJob) -> Result<Self, WireError> {
        Ok(Self {
            job_id: read_job_id(job.job_id, "job_id")?,
            role: read_role(&job.role, "role")?,
            description: job.description,
            tags: job.tags,
            start_date_time: read_time_optional(job.start_date_time, "start_date_time")?,
            services: read_list(job.services, "services")?,
            media_version: job.norsk_media_version,
            media_image: job.media_image,
            media_parameters: read_optional(
                job.norsk_service_parameters,
                "norsk_service_parameters",
            )?,
            volumes: job.volumes,
            start_id: StartId::new(job.start_id),
            defer_start: job.defer_start,
            runtime_role: job.runtime_role,
            gpu_index: read_gpu_index(job.gpu_index),
            requirements: read_optional(job.requirements, "requirements")?,
            lease: job.lease.map(Into::into),
            fence: job.fence,
            handover: job.handover,
            job_socket: job.job_socket,
            provides: take_list(job.provides),
            migration_id: (!job.migration_id.is_empty())
                .then(|| MigrationId::new(job.migration_id)),
            secret_env: job.secret_env,
            export_tags: job.export_tags,
            target_is_migration: job.target_is_migration,
            migration_state: job.migration_state.map(Into::into),
            migration_state_lost: job.migration_state_lost,
        })
    }
}

impl From<&StartOrder> for worker::WorkerJob {
    fn from(order: &StartOrder) -> Self {
        let migration_id = order.migration_id.as_ref().map(|id| id.as_str().to_owned());
        Self {
            job_id: Some((&order.job_id).into()),
            description: order.description.clone(),
            tags: order.tags.clone(),
            start_date_time: order.start_date_time.map(write_time),
            services: write_list(&order.services),
            role: order.role.as_str().to_owned(),
            norsk_media_version: order.media_version.clone(),
            volumes: order.volumes.clone(),
            norsk_service_parameters: order.media_parameters.as_ref().map(Into::into),
            start_id: order.start_id.as_str().to_owned(),
            defer_start: order.defer_start,
            runtime_role: order.runtime_role.clone(),
            gpu_index: write_gpu_index(order.gpu_index),
            requirements: order.requirements.as_ref().map(Into::into),
            lease: order.lease.as_ref().map(Into::into),
            fence: order.fence,
            handover: order.handover,
            job_socket: order.job_socket,
            provides: write_list(&order.provides),
            migration_id: migration_id.unwrap_or_default(),
            secret_env: order.secret_env.clone(),
            export_tags: order.export_tags.clone(),
            media_image: order.media_image.clone(),
            target_is_migration: order.target_is_migration,
            migration_state: order
                .migration_state
                .as_ref()
                .map(|state| state.bytes().to_vec()),
            migration_state_lost: order.migration_state_lost,
        }
    }
}

// === impl WorkerInstance ===

impl TryFrom<worker::WorkerInstance> for WorkerInstance {
    type Error = WireError;
    fn try_from(instance: worker::WorkerInstance) -> Result<Self, WireError> {
        Ok(Self {
            key: read_required(instance.job_key, "job_key")?,
            start_id: StartId::new(instance.start_id),
            state: read_enum::<manager::InstanceState, _>(instance.state, "state")?,
            fence: instance.fence,
            ports: read_ports(instance.service_port_mappings, "service_port_mappings")?,
        })
    }
}

impl From<&WorkerInstance> for worker::WorkerInstance {
    fn from(instance: &WorkerInstance) -> Self {
        Self {
            job_key: Some((&instance.key).into()),
            start_id: instance.start_id.as_str().to_owned(),
            state: write_enum::<manager::InstanceState>(instance.state),
            fence: instance.fence,
            service_port_mappings: write_ports(&instance.ports),
        }
    }
}

// === impl Rejection ===

impl Rejection {
    /// A rejection of a kind that this version knows.
    pub fn new(
        key: InstanceKey,
        code: RejectionCode,
        detail: impl Into<String>,
        inventory: Option<Arc<NodeInventory>>,
    ) -> Self {
        let code_number = write_enum::<manager::RejectionCode>(code);
        Self {
            key,
            code,
            code_number,
            detail: detail.into(),
            inventory,
        }
    }
}

impl TryFrom<worker::WorkerJobRejected> for Rejection {
    type Error = WireError;
    fn try_from(rejected: worker::WorkerJobRejected) -> Result<Self, WireError> {
        Ok(Self {
            key: read_required(rejected.job_key, "job_key")?,
            code: read_enum::<manager::RejectionCode, _>(rejected.code, "code")
                .unwrap_or(RejectionCode::Unspecified),
            code_number: rejected.code,
            detail: rejected.detail,
            inventory: read_optional(rejected.inventory, "inventory")?.map(Arc::new),
        })
    }
}

impl From<&Rejection> for worker::WorkerJobRejected {
    fn from(rejection: &Rejection) -> Self {
        Self {
            job_key: Some((&rejection.key).into()),
            code: rejection.code_number,
            detail: rejection.detail.clone(),
            inventory: rejection.inventory.as_deref().map(Into::into),
        }
    }
}

// === impl InterruptionNotice ===

impl TryFrom<worker::WorkerInterruptionNotice> for InterruptionNotice {
    type Error = WireError;
    fn try_from(notice: worker::WorkerInterruptionNotice) -> Result<Self, WireError> {
        Ok(Self {
            kind: read_enum::<manager::InterruptionKind, _>(notice.kind, "kind")?,
            deadline: read_time_optional(notice.deadline, "deadline")?,
            seen_at: read_time_or_zero(notice.seen_at, "seen_at")?,
        })
    }
}

impl From<&InterruptionNotice> for worker::WorkerInterruptionNotice {
    fn from(notice: &InterruptionNotice) -> Self {
        Self {
            kind: write_enum::<manager::InterruptionKind>(notice.kind),
            deadline: notice.deadline.map(write_time),
            seen_at: Some(write_time(notice.seen_at)),
        }
    }
}

// === PrefetchResult ===

impl From<manager::ImagePrefetchResult> for PrefetchResult {
    fn from(result: manager::ImagePrefetchResult) -> Self {
        let manager::ImagePrefetchResult {
            image_ref,
            ok,
            error,
            text,
        } = result;
        Self {
            image_ref,
            ok,
            error,
            text,
        }
    }
}

impl From<&PrefetchResult> for manager::ImagePrefetchResult {
    fn from(result: &PrefetchResult) -> Self {
        let PrefetchResult {
            image_ref,
            ok,
            error,
            text,
        } = result.clone();
        Self {
            image_ref,
            ok,
            error,
            text,
        }
    }
}

// === impl MigrationNews ===

impl TryFrom<MigrationMessage> for MigrationNews {
    type Error = WireError;
    fn try_from(message: MigrationMessage) -> Result<Self, WireError> {
        use manager::migration_state::Answer;
        let (key, migration_id, signal) = match message {
            MigrationMessage::State(state) => {
                let signal = match state.answer {
                    Some(Answer::Payload(payload)) => MigrationSignal::State(payload.into()),
                    Some(Answer::Refused(reason)) => MigrationSignal::Refused(reason),
                    None => return Err(WireError::missing("answer")),
                };
                (state.job_key, state.migration_id, signal)
            }
            MigrationMessage::TargetReady(it) => (
                it.job_key,
                it.migration_id,
                MigrationSignal::TargetReady(it.payload.into()),
            ),
            MigrationMessage::SourceStoppedOutput(it) => (
                it.job_key,
                it.migration_id,
                MigrationSignal::SourceStoppedOutput(it.payload.into()),
            ),
            MigrationMessage::TargetApplied(it) => (
                it.job_key,
                it.migration_id,
                MigrationSignal::TargetApplied(it.payload.into()),
            ),
            MigrationMessage::Aborted(it) => {
                let signal = MigrationSignal::Aborted {
                    side: it.side,
                    reason: it.reason,
                };
                (it.job_key, it.migration_id, signal)
            }
        };
        Ok(Self {
            key: read_required(key, "job_key")?,
            migration_id: MigrationId::new(migration_id),
            signal,
        })
    }
}

impl From<&MigrationNews> for MigrationMessage {
    fn from(news: &MigrationNews) -> Self {
        use manager::migration_state::Answer;
        let job_key = Some(wire::ActiveJobKey::from(&news.key));
        let migration_id = news.migration_id.as_str().to_owned();
        match news.signal.clone() {
            MigrationSignal::State(payload) => Self::State(manager::MigrationState {
                job_key,
                migration_id,
                answer: Some(Answer::Payload(payload.into_bytes())),
            }),
            MigrationSignal::Refused(reason) => Self::State(manager::MigrationState {
                job_key,
                migration_id,
                answer: Some(Answer::Refused(reason)),
            }),
            MigrationSignal::TargetReady(payload) => {
                Self::TargetReady(manager::MigrationTargetReady {
                    job_key,
                    migration_id,
                    payload: payload.into_bytes(),
                })
            }
            MigrationSignal::SourceStoppedOutput(payload) => {
                Self::SourceStoppedOutput(manager::MigrationSourceStoppedOutput {
                    job_key,
                    migration_id,
                    payload: payload.into_bytes(),
                })
            }
            MigrationSignal::TargetApplied(payload) => {
                Self::TargetApplied(manager::MigrationTargetApplied {
                    job_key,
                    migration_id,
                    payload: payload.into_bytes(),
                })
            }
            MigrationSignal::Aborted { side, reason } => Self::Aborted(manager::MigrationAborted {
                job_key,
                migration_id,
                side,
                reason,
            }),
        }
    }
}

impl From<MigrationMessage> for worker::worker_message::Message {
    fn from(message: MigrationMessage) -> Self {
        match message {
            MigrationMessage::State(it) => Self::MigrationState(it),
            MigrationMessage::TargetReady(it) => Self::MigrationTargetReady(it),
            MigrationMessage::SourceStoppedOutput(it) => Self::MigrationSourceStoppedOutput(it),
            MigrationMessage::TargetApplied(it) => Self::MigrationTargetApplied(it),
            MigrationMessage::Aborted(it) => Self::MigrationAborted(it),
        }
    }
}

impl From<MigrationMessage> for manager::event_stream_event::Event {
    fn from(message: MigrationMessage) -> Self {
        match message {
            MigrationMessage::State(it) => Self::MigrationState(it),
            MigrationMessage::TargetReady(it) => Self::MigrationTargetReady(it),
            MigrationMessage::SourceStoppedOutput(it) => Self::MigrationSourceStoppedOutput(it),
            MigrationMessage::TargetApplied(it) => Self::MigrationTargetApplied(it),
            MigrationMessage::Aborted(it) => Self::MigrationAborted(it),
        }
    }
}
