//! Nodes as the Manager knows them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Tags;
use crate::id::{JobId, NodeId, Role, StartId};
use crate::inventory::{Architecture, NodeInventory};
use crate::job::JobInfoKind;
use crate::pool::LaunchMode;
use crate::time::Wall;

/// Which provider a node came from, and what was asked of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "provider")]
pub enum ProviderMetadata {
    /// Not said (a node of a test, or of a newer Manager).
    #[default]
    Unknown,
    /// Amazon EC2.
    Aws {
        /// Instance type.
        instance_type: String,
        /// Region.
        region: String,
        /// Processor architecture.
        architecture: Architecture,
        /// Zone asked for.
        availability_zone: String,
        /// How it is paid for.
        launch_mode: LaunchMode,
    },
    /// Oracle Cloud Infrastructure.
    Oci {
        /// Availability domain.
        availability_domain: String,
        /// Shape.
        shape: String,
        /// Processor architecture.
        architecture: Architecture,
        /// OCPUs of a flexible shape.
        ocpus: f64,
    },
    /// An owned server in a slot.
    Local {
        /// Name the slot was registered under.
        node_name: String,
        /// Machine id that claimed the slot.
        machine_id: String,
        /// Processor architecture.
        architecture: Architecture,
    },
    /// A microVM.
    CloudHypervisor {
        /// Host it runs on.
        host: String,
        /// Shape.
        shape: String,
        /// Processor architecture.
        architecture: Architecture,
    },
}

impl ProviderMetadata {
    /// True when the Manager can make and end such machines by itself.
    pub const fn is_elastic(&self) -> bool {
        matches!(
            self,
            Self::Aws { .. } | Self::Oci { .. } | Self::CloudHypervisor { .. }
        )
    }
}

/// What is known of a node from its creation on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetadata {
    /// The node.
    pub node_id: NodeId,
    /// Tags of the caller, with the Manager's own and later edits laid over (TAG-02).
    pub tags: Tags,
    /// The Manager's clock when the node was asked for (MNODE-04).
    pub created_at: Wall,
    /// Provider and what was asked of it.
    pub provider: ProviderMetadata,
}

/// What is known of a node once its machine runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningNodeMetadata {
    /// Public DNS name.
    pub public_dns_name: String,
    /// Private DNS name.
    pub private_dns_name: String,
    /// Private address.
    pub private_ip_address: String,
    /// Public address.
    pub public_ip_address: String,
    /// The provider's own id of the machine (instance id, machine id, VM id).
    pub provider_id: String,
}

/// Where a node stands (A.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// Asked for, or its worker has not said hello yet.
    #[default]
    Starting,
    /// Its worker said hello and is heard.
    Running,
    /// Its stream is down, within the grace (MNODE-10).
    Unreachable,
    /// Given up, ending or being ended.
    Stopping,
    /// Gone.
    Stopped,
}

/// How far a starting node has come (MNODE-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartPhase {
    /// The machine was asked for and does not run yet.
    Requested,
    /// The machine runs and boots.
    Booting,
}

/// Why a node stops; the published values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum NodeStoppingReason {
    /// The provider made no machine.
    CreateFailed,
    /// The provider kept it pending too long.
    PendingTimeExceeded,
    /// The machine ran but its worker could not be dialled.
    StartupTimeExceeded,
    /// The worker was dialled but said no valid hello.
    InitialisationHealthPingTimeExceeded,
    /// The worker fell silent.
    HealthPingTimeExceeded,
    /// It went on running what it was told to stop.
    DuplicateJob,
    /// The provider stopped the machine.
    ProviderStop,
    /// The provider terminated the machine.
    ProviderTerminate,
    /// Somebody asked for it.
    UserRequested,
    /// The machine behind the record is gone.
    UnknownNode,
}

/// Where an instance stands (A.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InstanceState {
    /// Accepted, the worker has not reported yet.
    Provisioned,
    /// Created and not running (deferred start).
    Prepared,
    /// Running.
    Running,
    /// Being stopped, by request or because it failed.
    Stopping,
    /// Its node was given up.
    Lost,
}

/// Key of an instance: at most one is live per key in the whole system.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceKey {
    /// The job.
    pub job_id: JobId,
    /// The role.
    pub role: Role,
}

impl InstanceKey {
    /// Key of that job and role.
    pub const fn new(job_id: JobId, role: Role) -> Self {
        Self { job_id, role }
    }
}

impl std::fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.job_id, self.role)
    }
}

/// One instance on a node, as the Manager shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningJob {
    /// The instance.
    pub key: InstanceKey,
    /// Its node.
    pub node_id: NodeId,
    /// Which start of the key it is.
    pub start_id: StartId,
    /// Where it stands.
    pub state: InstanceState,
}

/// Everything that ListNodes tells of a node (API-12).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Known from creation on.
    pub metadata: NodeMetadata,
    /// Known since the machine runs.
    pub running: RunningNodeMetadata,
    /// Where it stands.
    pub state: NodeState,
    /// Why it stands there, empty when there is nothing to say.
    pub reason: String,
    /// Instances on it.
    pub instances: Vec<RunningJob>,
    /// Its last picture of itself.
    pub inventory: Option<Arc<NodeInventory>>,
    /// Idle expiry in force, 0 for never.
    pub idle_expiry_ms: u64,
    /// When its worker was last heard.
    pub last_seen: Option<Wall>,
    /// Provider terminates tried so far (MNODE-22).
    pub terminate_attempts: u32,
    /// The last error of the provider.
    pub last_error: String,
    /// What was found on it after a restore and the record does not know (STORE-11).
    #[serde(default)]
    pub unrecorded: Vec<InstanceKey>,
}

/// How often a worker started services of one instance again by itself (EVT-09).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRestarts {
    /// So often.
    pub count: u32,
    /// The service that was started again last.
    pub service: String,
    /// How it ended, in the worker's words; empty where it did not say.
    pub ended: String,
    /// When that was.
    pub at: Wall,
    /// Its next start is still to come.
    pub pending: bool,
}

// === impl ServiceRestarts ===

impl ServiceRestarts {
    /// Takes note of a worker's news. Beside the restart itself these are the end before it and the
    /// start that follows.
    pub fn note(&mut self, at: Wall, kind: &JobInfoKind) {
        match kind {
            JobInfoKind::ContainerEvent { service, text } => {
                if let Some(ended) = text.strip_prefix("ended with ") {
                    self.service.clone_from(service);
                    self.ended = ended.to_owned();
                }
            }
            JobInfoKind::ServiceRestarting(service) => {
                if self.service != *service {
                    self.service.clone_from(service);
                    self.ended.clear();
                }
                self.count = self.count.saturating_add(1);
                self.at = at;
                self.pending = true;
            }
            JobInfoKind::ServiceStarted(service) if self.service == *service => {
                self.pending = false;
            }
            JobInfoKind::ServiceStarted(_)
            | JobInfoKind::Stage { .. }
            | JobInfoKind::Status { .. } => {}
        }
    }

    /// In a few words, e.g. `restarted 4x, last exit code 3`.
    #[must_use]
    pub fn words(&self) -> String {
        let count = self.count;
        if self.ended.is_empty() {
            format!("restarted {count}x")
        } else {
            format!("restarted {count}x, last {}", self.ended)
        }
    }
}

/// Kind of an interruption notice (INTR-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptionKind {
    /// The provider will take the node.
    SpotInterruption,
    /// The provider advises to move.
    Rebalance,
}

/// Why a worker refused a start (WORK-33).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RejectionCode {
    /// Not said.
    #[default]
    Unspecified,
    /// Too few vCPUs free.
    Capacity,
    /// Too few cores free.
    Cores,
    /// No device with the share and model.
    Gpu,
    /// A capability is missing or taken.
    Capability,
    /// A host port is taken.
    HostPort,
    /// Too little disk.
    Disk,
    /// The node takes no new work.
    Cordoned,
    /// The image cannot be had.
    Image,
    /// No node could run this.
    InvalidSpec,
    /// The key is live here under another start id.
    Duplicate,
    /// The container engine does not answer.
    Runtime,
    /// No lease guard.
    Lease,
    /// The state of a handover's source did not come along (MIGR-08).
    Migration,
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: EVT-09
    #[test]
    fn restarts_are_counted_with_the_last_end_and_whether_one_is_pending() {
        let mut restarts = ServiceRestarts::default();
        let service = || "main".to_owned();
        for at in 1..=4 {
            let text = format!("ended with exit code {at}");
            let ended = JobInfoKind::ContainerEvent {
                service: service(),
                text,
            };
            restarts.note(Wall(at), &ended);
            restarts.note(Wall(at), &JobInfoKind::ServiceRestarting(service()));
            assert!(restarts.pending);
            restarts.note(Wall(at), &JobInfoKind::ServiceStarted("other".to_owned()));
            assert!(restarts.pending, "another service is another matter");
            restarts.note(Wall(at), &JobInfoKind::ServiceStarted(service()));
            assert!(!restarts.pending);
        }
        assert_eq!(restarts.words(), "restarted 4x, last exit code 4");
        restarts.note(Wall(5), &JobInfoKind::ServiceRestarting("other".to_owned()));
        assert_eq!(
            (restarts.words().as_str(), restarts.at),
            ("restarted 5x", Wall(5))
        );
    }
}
