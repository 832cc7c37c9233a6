//! Times, ids, enums and the small nouns that everything else is made of.
//!
//! The domain counts time in whole milliseconds: what a timestamp says below that is cut off.

use std::collections::BTreeMap;

use greenroom_types::{
    JobId, NodeId, Role, StartId, Wall,
    bundle::{BundleState, OnLaunch, OnRuntimeFailure, Rule, SameAz, StartMode},
    inventory::Architecture,
    job::{
        Container, HIDDEN, HealthCheck, HostPort, JobInfo, JobInfoKind, JobState, MediaVersion,
        PortMapping, PortMappings, Protocol, ResolvedPortMapping, SEALED, Service,
        ServiceParameters, ServiceRestart, Stage, StopReason, VolumeMount,
    },
    node::{
        InstanceKey, InstanceState, InterruptionKind, NodeState, NodeStoppingReason, RejectionCode,
    },
    pool::LaunchMode,
    stream::Health,
};
use prost_types::Timestamp;

use super::{WireError, read_list, read_optional, read_required, write_list};
use crate::{common as wire, manager};

// === times ===

/// Reads an instant; outside the years 1970 to 9999, or with nanoseconds outside a second, it is refused
/// `bad_timestamp` (API-24).
pub fn read_time(time: Timestamp, field: &str) -> Result<Wall, WireError> {
    let wall = (0..1_000_000_000)
        .contains(&time.nanos)
        .then(|| {
            time.seconds
                .checked_mul(1_000)?
                .checked_add(i64::from(time.nanos) / 1_000_000)
        })
        .flatten()
        .map(Wall)
        .filter(|wall| (Wall::MIN..=Wall::MAX).contains(wall) && time.seconds >= 0);
    wall.ok_or_else(|| {
        let Timestamp { seconds, nanos } = time;
        let message = format!(
            "is {seconds} s and {nanos} ns since 1970, it must lie in the years 1970 to 9999 with \
             0 to 999999999 ns"
        );
        WireError::new("bad_timestamp", field, message)
    })
}

/// Reads an instant that may be absent.
pub fn read_time_optional(time: Option<Timestamp>, field: &str) -> Result<Option<Wall>, WireError> {
    time.map(|time| read_time(time, field)).transpose()
}

/// Reads an instant of which absence means 1970-01-01, as proto3 has it for every other kind of value.
pub fn read_time_or_zero(time: Option<Timestamp>, field: &str) -> Result<Wall, WireError> {
    Ok(read_time_optional(time, field)?.unwrap_or_default())
}

/// Writes an instant; one that the wire cannot hold becomes the nearest that it can.
pub fn write_time(wall: Wall) -> Timestamp {
    let ms = wall.clamp(Wall::MIN, Wall::MAX).0;
    Timestamp {
        seconds: ms / 1_000,
        nanos: (ms % 1_000) as i32 * 1_000_000,
    }
}

// === enums ===

/// Reads the number of an enum `W` as `T`; a number that `W` does not have is refused `unknown_enum` (API-04).
pub fn read_enum<W, T>(number: i32, field: &str) -> Result<T, WireError>
where
    W: TryFrom<i32>,
    T: From<W>,
{
    let known = W::try_from(number).map_err(|_| {
        let message = format!("is {number}, which is no value of this enum");
        WireError::new("unknown_enum", field, message)
    })?;
    Ok(known.into())
}

/// Writes an enum of the domain as the number of `W`.
pub fn write_enum<W: Into<i32>>(value: impl Into<W>) -> i32 {
    let value: W = value.into();
    value.into()
}

/// Both directions for enums that have the same values on both sides; the compiler checks that none is missing.
macro_rules! same_values {
    ($($wire:ty = $ours:ty { $($w:ident = $o:ident),+ $(,)? })+) => {$(
        impl From<$wire> for $ours {
            fn from(value: $wire) -> Self {
                match value { $(<$wire>::$w => Self::$o),+ }
            }
        }
        impl From<$ours> for $wire {
            fn from(value: $ours) -> Self {
                match value { $(<$ours>::$o => Self::$w),+ }
            }
        }
    )+};
}

same_values! {
    wire::Architecture = Architecture { X8664 = X86_64, Aarch64 = Aarch64 }
    wire::LaunchMode = LaunchMode { OnDemand = OnDemand, Spot = Spot, Reserved = Reserved }
    wire::ProtocolFamily = Protocol { Any = Any, Udp = Udp, Tcp = Tcp }
    wire::service::ServiceRestart = ServiceRestart { Never = Never, OnFailure = OnFailure, Always = Always }
    wire::job_info_compose_message::Stage = Stage {
        Build = Build, Create = Create, Start = Start, Stop = Stop, Down = Down,
    }
    manager::BundleState = BundleState { Live = Live, Deleting = Deleting }
    manager::FailurePolicy = OnRuntimeFailure {
        AvoidSpareOnFailure = AvoidSpare, PreferSpare = PreferSpare, Drop = Drop,
    }
    manager::Health = Health { Healthy = Healthy, Unstable = Unstable, Failed = Failed }
    manager::InstanceState = InstanceState {
        Provisioned = Provisioned, Prepared = Prepared, Running = Running, Stopping = Stopping, Lost = Lost,
    }
    manager::InterruptionKind = InterruptionKind {
        SpotInterruption = SpotInterruption, RebalanceRecommendation = Rebalance,
    }
    manager::NodeState = NodeState {
        Starting = Starting, Running = Running, Unreachable = Unreachable, Stopping = Stopping,
        Stopped = Stopped,
    }
    manager::OnLaunch = OnLaunch { AvoidSpare = AvoidSpare, AllowSpare = AllowSpare }
    manager::RejectionCode = RejectionCode {
        JobRejectedUnspecified = Unspecified, JobRejectedCapacity = Capacity, JobRejectedCores = Cores,
        JobRejectedGpu = Gpu, JobRejectedCapability = Capability, JobRejectedHostPort = HostPort,
        JobRejectedDisk = Disk, JobRejectedCordoned = Cordoned, JobRejectedImage = Image,
        JobRejectedInvalidSpec = InvalidSpec, JobRejectedDuplicate = Duplicate,
        JobRejectedRuntime = Runtime, JobRejectedLease = Lease,
        JobRejectedMigration = Migration,
    }
    manager::Rule = Rule { Allow = Allow, Forbid = Forbid }
    manager::SameAz = SameAz { Soft = Soft, Hard = Hard, Off = Off }
    manager::StartMode = StartMode { Auto = Auto, Manual = Manual }
    manager::Version = MediaVersion {
        Recommended = Recommended, Latest = Latest, PreviousRecommended = PreviousRecommended, Lts = Lts,
    }
    manager::job::JobState = JobState { Pre = Pre, Active = Active, Post = Post }
    manager::job_history_job_stopping::Reason = StopReason {
        JobStoppedNodeStopped = NodeStopped, JobStoppedNodeTerminated = NodeTerminated,
        JobStoppedUserRequested = UserRequested, JobStoppedUnknownJob = UnknownJob,
        JobStoppedJobFailed = JobFailed, JobStoppedLeaseLost = LeaseLost,
        JobStoppedMigration = Migration, JobStoppedBundleChanged = BundleChanged,
    }
    manager::node_stopping::Reason = NodeStoppingReason {
        CreateFailed = CreateFailed, PendingTimeExceeded = PendingTimeExceeded,
        StartupTimeExceeded = StartupTimeExceeded,
        InitialisationHealthPingTimeExceeded = InitialisationHealthPingTimeExceeded,
        HealthPingTimeExceeded = HealthPingTimeExceeded, DuplicateJob = DuplicateJob,
        ProviderStop = ProviderStop, ProviderTerminate = ProviderTerminate,
        UserRequested = UserRequested, UnknownNode = UnknownNode,
    }
}

// === ids ===

/// Reads a job id that must be there (API-15).
pub fn read_job_id(id: Option<wire::JobId>, field: &str) -> Result<JobId, WireError> {
    match id {
        Some(wire::JobId { job_id }) if !job_id.is_empty() => Ok(JobId::new(job_id)),
        _ => Err(WireError::missing("job_id").under(field)),
    }
}

/// Reads a node id that must be there (API-15).
pub fn read_node_id(id: Option<wire::NodeId>, field: &str) -> Result<NodeId, WireError> {
    match id {
        Some(wire::NodeId { node_id }) if !node_id.is_empty() => Ok(NodeId::new(node_id)),
        _ => Err(WireError::missing("node_id").under(field)),
    }
}

/// Reads a role that must be there (API-15).
pub fn read_role(role: &str, field: &str) -> Result<Role, WireError> {
    if role.is_empty() {
        Err(WireError::missing(field))
    } else {
        Ok(Role::new(role))
    }
}

impl From<&JobId> for wire::JobId {
    fn from(id: &JobId) -> Self {
        Self {
            job_id: id.as_str().to_owned(),
        }
    }
}

impl From<&NodeId> for wire::NodeId {
    fn from(id: &NodeId) -> Self {
        Self {
            node_id: id.as_str().to_owned(),
        }
    }
}

impl TryFrom<wire::ActiveJobKey> for InstanceKey {
    type Error = WireError;
    fn try_from(key: wire::ActiveJobKey) -> Result<Self, WireError> {
        Ok(Self::new(
            read_job_id(key.job_id, "jobId")?,
            read_role(&key.role, "role")?,
        ))
    }
}

impl From<&InstanceKey> for wire::ActiveJobKey {
    fn from(key: &InstanceKey) -> Self {
        Self {
            job_id: Some((&key.job_id).into()),
            role: key.role.as_str().to_owned(),
        }
    }
}

// === ports ===

impl TryFrom<wire::PortMapping> for PortMapping {
    type Error = WireError;
    fn try_from(port: wire::PortMapping) -> Result<Self, WireError> {
        use wire::port_mapping::HostPort as WirePort;
        Ok(Self {
            container_port: port.container_port,
            protocol: read_enum::<wire::ProtocolFamily, _>(port.protocol, "protocol")?,
            host_port: match port.host_port {
                None | Some(WirePort::Ephemeral(_)) => HostPort::Ephemeral,
                Some(WirePort::Range(range)) => HostPort::Range {
                    min: range.min_port,
                    max: range.max_port,
                },
                Some(WirePort::Specific(specific)) => HostPort::Specific(specific.port),
            },
            host_address: port.host_address,
            group: port.group,
        })
    }
}

impl From<&PortMapping> for wire::PortMapping {
    fn from(port: &PortMapping) -> Self {
        use wire::port_mapping::HostPort as WirePort;
        Self {
            container_port: port.container_port,
            protocol: write_enum::<wire::ProtocolFamily>(port.protocol),
            host_port: Some(match port.host_port {
                HostPort::Ephemeral => WirePort::Ephemeral(wire::HostPortEphemeral {}),
                HostPort::Range { min, max } => WirePort::Range(wire::HostPortRange {
                    min_port: min,
                    max_port: max,
                }),
                HostPort::Specific(port) => WirePort::Specific(wire::HostPortSpecific { port }),
            }),
            host_address: port.host_address.clone(),
            group: port.group.clone(),
        }
    }
}

impl TryFrom<wire::ResolvedPortMapping> for ResolvedPortMapping {
    type Error = WireError;
    fn try_from(port: wire::ResolvedPortMapping) -> Result<Self, WireError> {
        Ok(Self {
            url: port.url,
            target: port.target,
            published: port.published,
            protocol: read_enum::<wire::ProtocolFamily, _>(port.protocol, "protocol")?,
        })
    }
}

impl From<&ResolvedPortMapping> for wire::ResolvedPortMapping {
    fn from(port: &ResolvedPortMapping) -> Self {
        Self {
            url: port.url.clone(),
            target: port.target,
            published: port.published,
            protocol: write_enum::<wire::ProtocolFamily>(port.protocol),
        }
    }
}

/// Reads the resolved ports of every service.
pub fn read_ports(
    ports: BTreeMap<String, wire::ResolvedPortMappings>,
    field: &str,
) -> Result<PortMappings, WireError> {
    ports
        .into_iter()
        .map(|(service, ports)| {
            let mappings = read_list(ports.mappings, "mappings")
                .map_err(|error| error.under_element(field, &service))?;
            Ok((service, mappings))
        })
        .collect()
}

/// Writes the resolved ports of every service.
pub fn write_ports(ports: &PortMappings) -> BTreeMap<String, wire::ResolvedPortMappings> {
    ports
        .iter()
        .map(|(service, ports)| {
            (
                service.clone(),
                wire::ResolvedPortMappings {
                    mappings: write_list(ports),
                },
            )
        })
        .collect()
}

// === services ===

impl TryFrom<wire::ServiceParameters> for ServiceParameters {
    type Error = WireError;
    fn try_from(parameters: wire::ServiceParameters) -> Result<Self, WireError> {
        Ok(Self {
            port_mappings: read_list(parameters.port_mappings, "port_mappings")?,
            environment: parameters
                .environment_variables
                .into_iter()
                .map(|variable| (variable.name, variable.value))
                .collect(),
            shared_memory_size: parameters.shared_memory_size.map(|size| size.value),
            cpu_set: parameters.cpu_set,
            volume_mounts: parameters
                .volume_mounts
                .into_iter()
                .map(|mount| VolumeMount {
                    volume_name: mount.volume_name,
                    container_path: mount.container_path,
                    read_only: mount.read_only,
                })
                .collect(),
            host_network: parameters.host_network,
            health_check: parameters.health_check.map(|check| HealthCheck {
                command: check.command,
                interval_ms: check.interval_ms,
                retries: check.retries,
            }),
            memory_limit: parameters.memory_limit,
            gpu: parameters.gpu,
            discovery_access: parameters.discovery_access,
            access_replica: parameters.access_replica,
        })
    }
}

impl From<&ServiceParameters> for wire::ServiceParameters {
    fn from(parameters: &ServiceParameters) -> Self {
        Self {
            port_mappings: write_list(&parameters.port_mappings),
            environment_variables: parameters
                .environment
                .iter()
                .map(|(name, value)| wire::EnvironmentVariable {
                    name: name.clone(),
                    // Whoever is to have a secret is given it opened; everybody else sees stars.
                    value: if value.starts_with(SEALED) {
                        HIDDEN.to_owned()
                    } else {
                        value.clone()
                    },
                })
                .collect(),
            shared_memory_size: parameters
                .shared_memory_size
                .map(|value| wire::OptionalInt64 { value }),
            cpu_set: parameters.cpu_set.clone(),
            volume_mounts: parameters
                .volume_mounts
                .iter()
                .map(|mount| wire::VolumeMount {
                    volume_name: mount.volume_name.clone(),
                    container_path: mount.container_path.clone(),
                    read_only: mount.read_only,
                })
                .collect(),
            host_network: parameters.host_network,
            health_check: parameters
                .health_check
                .as_ref()
                .map(|check| wire::HealthCheck {
                    command: check.command.clone(),
                    interval_ms: check.interval_ms,
                    retries: check.retries,
                }),
            memory_limit: parameters.memory_limit,
            gpu: parameters.gpu,
            discovery_access: parameters.discovery_access,
            access_replica: parameters.access_replica,
        }
    }
}

impl TryFrom<wire::Service> for Service {
    type Error = WireError;
    fn try_from(service: wire::Service) -> Result<Self, WireError> {
        use wire::service::Container as WireContainer;
        Ok(Self {
            name: service.name,
            container: match service.container {
                None => Container::None,
                Some(WireContainer::Docker(docker)) => {
                    Container::Docker(docker.container_url.unwrap_or_default().url)
                }
                Some(WireContainer::Process(process)) => Container::Process {
                    command: process.command,
                    directory: process.directory,
                },
            },
            restart: read_enum::<wire::service::ServiceRestart, _>(service.restart, "restart")?,
            depends_on: service.depends_on,
            configuration: service.configuration,
            restart_count: service.restart_count,
            restart_period: service.restart_period,
            command: service.command,
            parameters: read_optional(service.parameters, "parameters")?.unwrap_or_default(),
        })
    }
}

impl From<&Service> for wire::Service {
    fn from(service: &Service) -> Self {
        use wire::service::Container as WireContainer;
        Self {
            name: service.name.clone(),
            container: match &service.container {
                Container::None => None,
                Container::Docker(url) => Some(WireContainer::Docker(wire::DockerContainer {
                    container_url: Some(wire::ContainerUrl { url: url.clone() }),
                })),
                Container::Process { command, directory } => {
                    Some(WireContainer::Process(wire::ProcessContainer {
                        command: command.clone(),
                        directory: directory.clone(),
                    }))
                }
            },
            restart: write_enum::<wire::service::ServiceRestart>(service.restart),
            depends_on: service.depends_on.clone(),
            configuration: service.configuration.clone(),
            restart_count: service.restart_count,
            restart_period: service.restart_period,
            command: service.command.clone(),
            // Nothing set and not there are one and the same to the domain.
            parameters: (service.parameters != ServiceParameters::default())
                .then(|| (&service.parameters).into()),
        }
    }
}

// === job info ===

impl TryFrom<wire::JobInfoMessage> for JobInfo {
    type Error = WireError;
    fn try_from(info: wire::JobInfoMessage) -> Result<Self, WireError> {
        use wire::job_info_message::Message;
        Ok(Self {
            key: read_required(info.job_key, "job_key")?,
            start_id: StartId::new(info.start_id),
            at: read_time_or_zero(info.timestamp, "timestamp")?,
            kind: match info.message {
                None => return Err(WireError::missing("message")),
                Some(Message::ServiceStarted(started)) => {
                    JobInfoKind::ServiceStarted(started.service_name)
                }
                Some(Message::ServiceRestarting(restarting)) => {
                    JobInfoKind::ServiceRestarting(restarting.service_name)
                }
                Some(Message::ContainerEvent(event)) => JobInfoKind::ContainerEvent {
                    service: event.service_name,
                    text: event.text,
                },
                Some(Message::ComposeMessage(stage)) => JobInfoKind::Stage {
                    stage: read_enum::<wire::job_info_compose_message::Stage, _>(
                        stage.stage,
                        "compose_message.stage",
                    )?,
                    text: stage.text,
                },
                Some(Message::JobStatus(status)) => JobInfoKind::Status {
                    text: status.text,
                    progress: status.progress,
                },
            },
        })
    }
}

impl From<&JobInfo> for wire::JobInfoMessage {
    fn from(info: &JobInfo) -> Self {
        use wire::job_info_message::Message;
        Self {
            job_key: Some((&info.key).into()),
            timestamp: Some(write_time(info.at)),
            start_id: info.start_id.as_str().to_owned(),
            message: Some(match &info.kind {
                JobInfoKind::ServiceStarted(service) => {
                    Message::ServiceStarted(wire::JobInfoServiceStarted {
                        service_name: service.clone(),
                    })
                }
                JobInfoKind::ServiceRestarting(service) => {
                    Message::ServiceRestarting(wire::JobInfoServiceRestarting {
                        service_name: service.clone(),
                    })
                }
                JobInfoKind::ContainerEvent { service, text } => {
                    Message::ContainerEvent(wire::JobInfoContainerEvent {
                        service_name: service.clone(),
                        text: text.clone(),
                    })
                }
                JobInfoKind::Stage { stage, text } => {
                    Message::ComposeMessage(wire::JobInfoComposeMessage {
                        stage: write_enum::<wire::job_info_compose_message::Stage>(*stage),
                        text: text.clone(),
                    })
                }
                JobInfoKind::Status { text, progress } => {
                    Message::JobStatus(wire::JobInfoJobStatus {
                        text: text.clone(),
                        progress: *progress,
                    })
                }
            }),
        }
    }
}
