//! A job: what runs, and the history of its runs.

mod host_port;

pub use host_port::HostPort;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Tags;
use crate::bundle::Requirements;
use crate::id::{BundleId, JobId, JobName, Role, StartId};
use crate::inventory::Capability;
use crate::node::{NodeMetadata, RejectionCode, RunningNodeMetadata};
use crate::time::{Millis, Wall};

/// Tag naming the bundle of a bundle job.
pub const TAG_BUNDLE_ID: &str = "bundleId";
/// Tag naming the copy of a bundle job.
pub const TAG_REPLICA_INDEX: &str = "replicaIndex";
/// Tag naming the job within its bundle.
pub const TAG_JOB_NAME: &str = "jobName";
/// Tag marking a dormant job, with the value [`MANUAL`].
pub const TAG_START_MODE: &str = "startMode";
/// Value of [`TAG_START_MODE`] on a dormant job.
pub const MANUAL: &str = "manual";
/// Tag in which older clients keep a bundle's stop time (STOP-03).
pub const TAG_STOP_DATE_TIME: &str = "__stopDateTime";
/// Tag naming the launch template of a bundle job.
pub const TAG_TEMPLATE: &str = "template";

/// Transport of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Both TCP and UDP on one number (WORK-15).
    #[default]
    Any,
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// One port of a service made reachable on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortMapping {
    /// Port inside.
    pub container_port: u32,
    /// Transport.
    #[serde(default)]
    pub protocol: Protocol,
    /// Port outside.
    #[serde(default)]
    pub host_port: HostPort,
    /// Address outside, empty for all.
    #[serde(default)]
    pub host_address: String,
    /// Mappings of one group take consecutive ports.
    #[serde(default)]
    pub group: String,
}

/// A mapping as the worker resolved it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedPortMapping {
    /// Where it is reached.
    pub url: String,
    /// Port inside.
    pub target: u32,
    /// Port outside.
    pub published: u32,
    /// Transport.
    pub protocol: Protocol,
}

/// Resolved mappings by service name.
pub type PortMappings = BTreeMap<String, Vec<ResolvedPortMapping>>;

/// A volume inside a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMount {
    /// Named volume, or a host path (WORK-17).
    pub volume_name: String,
    /// Where it is mounted.
    pub container_path: String,
    /// Mounted read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// How the worker tells whether a service is healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheck {
    /// Command; exit 0 is healthy.
    pub command: Vec<String>,
    /// Time between two checks, in milliseconds.
    #[serde(default)]
    pub interval_ms: u64,
    /// Failures in a row until it is unhealthy.
    #[serde(default)]
    pub retries: u32,
}

/// How a sealed value begins (SEC-11). It is shown to nobody.
pub const SEALED: &str = "sealed:v1:";
/// What is shown in the place of a secret.
pub const HIDDEN: &str = "***";

/// How a service runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServiceParameters {
    /// Ports.
    pub port_mappings: Vec<PortMapping>,
    /// Environment, in the order given. A manifest writes it as a map.
    #[serde(with = "environment")]
    pub environment: Vec<(String, String)>,
    /// Shared memory in bytes; absent: 64 MiB (WORK-16).
    pub shared_memory_size: Option<u64>,
    /// CPUs to pin to; empty: no pinning.
    pub cpu_set: Vec<u32>,
    /// Volumes.
    pub volume_mounts: Vec<VolumeMount>,
    /// Uses the host's network instead of a bridge.
    pub host_network: bool,
    /// Health check.
    pub health_check: Option<HealthCheck>,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// Sees the GPU that the job was given.
    pub gpu: bool,
    /// Is given a file with access to the discovery fleet (WORK-57).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub discovery_access: bool,
    /// Is given a file with the access roles (WORK-58).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub access_replica: bool,
}

/// When the worker starts a service again by itself (WORK-18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceRestart {
    /// Never.
    #[default]
    Never,
    /// When it exits other than with 0.
    OnFailure,
    /// Whenever it exits.
    Always,
}

/// What a service is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Container {
    /// Nothing named: the service has a command only.
    #[default]
    None,
    /// A container image by reference.
    Docker(String),
    /// A program, word by word, with its working directory (empty: the instance's own).
    Process {
        /// Program and arguments.
        command: Vec<String>,
        /// Working directory.
        #[serde(default)]
        directory: String,
    },
}

/// One container or process of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Name, unique in the job (JOB-05).
    pub name: String,
    /// What it is made of.
    #[serde(default)]
    pub container: Container,
    /// When it is started again.
    #[serde(default)]
    pub restart: ServiceRestart,
    /// Services that must run before it.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Opaque configuration handed to it.
    #[serde(default)]
    pub configuration: String,
    /// Restarts allowed in a period; 0 means 3.
    #[serde(default)]
    pub restart_count: u32,
    /// The period in seconds; 0 means 60.
    #[serde(default)]
    pub restart_period: u32,
    /// Command line, split by the shell's quoting rules without a shell.
    #[serde(default)]
    pub command: String,
    /// How it runs.
    #[serde(default)]
    pub parameters: ServiceParameters,
}

/// Level of the media runtime (JOB-30).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MediaVersion {
    /// The recommended one.
    #[default]
    Recommended,
    /// The newest.
    Latest,
    /// The one recommended before.
    PreviousRecommended,
    /// Long-term support.
    Lts,
}

/// Fencing of a job: at no moment do two nodes run it with the right to (LEASE-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeasePolicy {
    /// Time for which one refresh holds.
    pub ttl_ms: Millis,
    /// Extra wait before another holder.
    pub grace_ms: Millis,
}

impl Default for LeasePolicy {
    fn default() -> Self {
        Self {
            ttl_ms: Millis(10_000),
            grace_ms: Millis(5_000),
        }
    }
}

/// What placement needs to know of a bundle job, attached by the Manager (BDL-06).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoPlacement {
    /// The bundle.
    pub bundle_id: BundleId,
    /// The copy.
    pub replica_index: u32,
    /// The job within the bundle.
    pub job_name: JobName,
    /// What it needs.
    pub requirements: Requirements,
}

/// A job's verdict: it is not to be started again (FAIL-01).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminalState {
    /// Why.
    pub reason: String,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: Wall,
}

/// Definition of a job: what its owner wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Job {
    /// The job.
    pub job_id: JobId,
    /// Free text.
    pub description: String,
    /// Tags.
    pub tags: Tags,
    /// When it is to start; absent: at once.
    pub start_date_time: Option<Wall>,
    /// Opaque text of the owner.
    pub manager_configuration: String,
    /// What runs.
    pub services: Vec<Service>,
    /// Level of the media runtime.
    pub media_version: MediaVersion,
    /// How the media runtime runs.
    pub media_parameters: Option<ServiceParameters>,
    /// Volumes it uses.
    pub volumes: Vec<String>,
    /// Kept and returned, used by nothing (JOB-31).
    pub shape: String,
    /// Kept and returned, used by nothing (JOB-31).
    pub architecture: String,
    /// Kept and returned, used by nothing (JOB-31).
    pub subnet: String,
    /// Kept and returned, used by nothing (JOB-31).
    pub availability_domain: String,
    /// Placement data, on bundle jobs only.
    pub auto_placement: Option<AutoPlacement>,
    /// Fencing.
    pub lease: Option<LeasePolicy>,
    /// Speaks the job socket and can be handed over.
    pub handover: bool,
    /// Wants the job socket (SOCK-01).
    pub job_socket: bool,
    /// Capabilities it provides once running (WORK-43).
    pub provides: Vec<Capability>,
    /// Names of environment variables to keep secret (SEC-16).
    pub secret_env: Vec<String>,
    /// Names of tags told to its services (WORK-12).
    pub export_tags: Vec<String>,
}

// === impl Job ===

impl Job {
    /// Value of a tag.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.get(key).map(String::as_str)
    }

    /// Bundle, copy and name by its tags; none unless all three are there and the index is 0 or 1
    /// (BUNDLE-07).
    pub fn bundle_place(&self) -> Option<(BundleId, u32, JobName)> {
        let replica = match self.tag(TAG_REPLICA_INDEX)? {
            "0" => 0,
            "1" => 1,
            _ => return None,
        };
        Some((
            self.tag(TAG_BUNDLE_ID)?.into(),
            replica,
            self.tag(TAG_JOB_NAME)?.into(),
        ))
    }

    /// True while it is known but not to be placed (BUNDLE-09).
    pub fn is_dormant(&self) -> bool {
        self.tag(TAG_START_MODE) == Some(MANUAL)
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum JobState {
    /// Not started since it was created or revived.
    #[default]
    Pre,
    /// Started at least once.
    Active,
    /// Completed or failed for good.
    Post,
}

/// Why an instance stops (HIST-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StopReason {
    /// Its worker was lost, or its node stopped.
    NodeStopped,
    /// Its node was terminated.
    NodeTerminated,
    /// Somebody asked for it.
    UserRequested,
    /// The Manager does not know this start.
    UnknownJob,
    /// It failed, or was rejected.
    JobFailed,
    /// Its lease ran out.
    LeaseLost,
    /// It was moved.
    Migration,
    /// Its bundle changed.
    BundleChanged,
}

impl StopReason {
    /// True where the run ended against the owner's will, so that a policy recovers the job
    /// (RECOV-03).
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::NodeStopped
                | Self::NodeTerminated
                | Self::UnknownJob
                | Self::JobFailed
                | Self::LeaseLost
        )
    }
}

/// Where an entry of the history took place: role and node, as known at that moment (HIST-03).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct At {
    /// Role of the instance.
    pub role: Role,
    /// Its node.
    pub node: Arc<NodeMetadata>,
    /// Its node's running data, if known.
    pub running: Option<Arc<RunningNodeMetadata>>,
}

/// What one entry of a history says (HIST-01).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HistoryKind {
    /// The job was created.
    Created,
    /// Its definition was replaced.
    Updated {
        /// The definition before.
        previous: Box<Job>,
    },
    /// A start was accepted.
    Provisioned(At),
    /// An instance was created without running.
    Prepared(At),
    /// An instance runs.
    Running {
        /// Where.
        at: At,
        /// Its ports.
        ports: PortMappings,
    },
    /// An instance stops.
    Stopping {
        /// Where.
        at: At,
        /// Why.
        reason: StopReason,
        /// Detail in words.
        detail: String,
    },
    /// An instance is over.
    Stopped(At),
    /// The job is completed.
    Completed,
    /// The job got its verdict.
    Failed {
        /// Why.
        reason: String,
        /// Who said so.
        by: String,
    },
    /// A worker refused a start.
    Rejected {
        /// Where.
        at: At,
        /// Kind of refusal.
        code: RejectionCode,
        /// The worker's words.
        detail: String,
    },
}

impl HistoryKind {
    /// Where it took place, for entries about an instance.
    pub const fn at(&self) -> Option<&At> {
        match self {
            Self::Provisioned(at) | Self::Prepared(at) | Self::Stopped(at) => Some(at),
            Self::Running { at, .. } | Self::Stopping { at, .. } | Self::Rejected { at, .. } => {
                Some(at)
            }
            Self::Created | Self::Updated { .. } | Self::Completed | Self::Failed { .. } => None,
        }
    }
}

/// One entry of a job's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// When; never before the entry ahead of it (HIST-02).
    pub at: Wall,
    /// Number within the job, never repeated; 0 from a Manager that does not tell.
    pub seq: u64,
    /// The start it is about.
    pub start_id: Option<StartId>,
    /// What happened.
    pub kind: HistoryKind,
}

/// A job as the Manager shows it: definition, state, history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobWithHistory {
    /// Definition.
    pub job: Job,
    /// Where it stands.
    pub state: JobState,
    /// Hash of the definition (JOB-04).
    pub current_hash: i64,
    /// Verdict, if it has one.
    pub terminal_state: Option<TerminalState>,
    /// Names of fields that take effect at the next start (JOB-07).
    pub pending_restart: Vec<String>,
    /// Entries, oldest first.
    pub history: Vec<HistoryEntry>,
    /// Entries no longer held (HIST-05).
    pub dropped_entries: u32,
}

/// News of an instance that is passed on and not stored (EVT-09, WORK-11).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobInfo {
    /// The instance.
    pub key: crate::node::InstanceKey,
    /// Its start.
    pub start_id: StartId,
    /// When the worker said it.
    pub at: Wall,
    /// What it said.
    pub kind: JobInfoKind,
}

/// What a [`JobInfo`] says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobInfoKind {
    /// A service runs.
    ServiceStarted(String),
    /// A service is started again.
    ServiceRestarting(String),
    /// Something happened to a service's container.
    ContainerEvent {
        /// The service.
        service: String,
        /// What.
        text: String,
    },
    /// A stage of a start or a stop.
    Stage {
        /// Which.
        stage: Stage,
        /// In words.
        text: String,
    },
    /// The job's own word over its socket.
    Status {
        /// In words.
        text: String,
        /// From 0 to 1.
        progress: Option<f64>,
    },
}

/// Stage of a start or a stop (WORK-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Stage {
    /// Making images local.
    Build,
    /// Creating network, volumes, containers.
    Create,
    /// Starting them.
    Start,
    /// Stopping them.
    Stop,
    /// Removing them.
    Down,
}

/// Environment variables: written as a map, read from a map or from pairs. Order is kept, and a
/// name may stand twice, as the wire allows both.
mod environment {
    use std::fmt;

    use serde::de::{MapAccess, SeqAccess, Visitor};
    use serde::{Deserializer, Serialize, Serializer};

    type Pairs = Vec<(String, String)>;

    pub(super) fn serialize<S: Serializer>(
        pairs: &Pairs,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|two| two[0] == two[1]) {
            return pairs.serialize(serializer);
        }
        serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Pairs, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of variable names to texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Pairs::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pairs, A::Error> {
                let mut pairs = Pairs::new();
                while let Some(pair) = list.next_element()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_a_map_and_keeps_its_order() {
        let read = |text: &str| serde_json::from_str::<ServiceParameters>(text).unwrap();
        let pairs = read(r#"{"environment":{"B":"1","A":"2"}}"#);
        assert_eq!(
            pairs.environment,
            [("B".into(), "1".into()), ("A".into(), "2".into())]
        );
        assert!(
            serde_json::to_string(&pairs)
                .unwrap()
                .contains(r#""environment":{"B":"1","A":"2"}"#)
        );
        let twice = read(r#"{"environment":[["A","1"],["A","2"]]}"#);
        assert_eq!(read(&serde_json::to_string(&twice).unwrap()), twice);
    }
}
