//! A bundle: one production, of one copy or two, as its owner writes it in a manifest.
//!
//! The keys of a manifest are the field names here in camel case; unknown keys are errors.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Tags;
use crate::id::{BundleId, JobId, JobName, PoolName, Role, TemplateName};
use crate::inventory::Capability;
use crate::job::{LeasePolicy, MediaVersion, Service, ServiceParameters, TerminalState};
use crate::time::Wall;

/// Whether a shared failure domain is acceptable (RESIL-01).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// The copies may share it.
    #[default]
    Allow,
    /// Kept apart wherever that is possible.
    Forbid,
}

/// How the two copies are kept apart; its presence makes the second copy (BUNDLE-02).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resilience {
    /// Pool of the backup; absent: the bundle's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Default `forbid` (DEC-05).
    pub same_node: Rule,
    /// Default `allow`.
    pub same_az: Rule,
    /// Default `allow`.
    pub same_cloud: Rule,
}

/// A key whose presence asks for something asks for it also with nothing behind it, as when all below
/// it is commented out: protection must not vanish without a word.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    let value = Option::<T>::deserialize(deserializer)?;
    Ok(Some(value.unwrap_or_default()))
}

impl Default for Resilience {
    fn default() -> Self {
        Self {
            pool: None,
            same_node: Rule::Forbid,
            same_az: Rule::Allow,
            same_cloud: Rule::Allow,
        }
    }
}

/// Whether the jobs of one copy want one availability zone (INTRA-08).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SameAz {
    /// A preference.
    #[default]
    Soft,
    /// A condition.
    Hard,
    /// No matter.
    Off,
}

/// Rules among the jobs of one copy (INTRA-07, INTRA-08).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntraReplica {
    /// All jobs without a rule of their own form one co-located group.
    pub same_node_default: bool,
    /// One zone for the copy.
    pub same_az: SameAz,
}

/// Whether a launch may use spares freely (LAUNCH-02).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnLaunch {
    /// Spares rank below ordinary nodes.
    #[default]
    AvoidSpare,
    /// Spares rank as ordinary nodes.
    AllowSpare,
}

/// What happens when a runtime is lost (RECOV-06).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnRuntimeFailure {
    /// Placed again, spares last.
    #[default]
    AvoidSpare,
    /// Placed again, a spare first.
    PreferSpare,
    /// Not placed again.
    Drop,
}

/// Whether a job is placed by itself or waits to be started (BUNDLE-09).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartMode {
    /// Placed by itself.
    #[default]
    Auto,
    /// Dormant until `startBundleJob`.
    Manual,
}

/// Whether a bundle is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BundleState {
    /// In force.
    #[default]
    Live,
    /// Being stopped and deleted.
    Deleting,
}

/// What a job needs of its node, and what is to happen when it fails (BUNDLE-04).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Requirements {
    /// vCPUs.
    pub required_capacity: f64,
    /// Pinned cores; 0: no pinning.
    pub required_cores: u32,
    /// Capabilities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_capabilities: Vec<Capability>,
    /// Host ports, as `PORT/proto` (PORT-01).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_host_ports: Vec<String>,
    /// Share of one GPU device; 0: none.
    pub required_gpu_capacity: f64,
    /// Model that device must be; empty: any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub required_gpu_model: String,
    /// What happens when the runtime is lost.
    pub on_runtime_failure: OnRuntimeFailure,
    /// Its end breaks the bundle; absent in a manifest: true.
    pub essential: bool,
    /// Restart ceiling; absent: by the settings (CONF-06).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_restarts_per_hour: Option<u32>,
    /// Memory in bytes that the worker checks; 0: not stated (WORK-30).
    pub memory_bytes: u64,
}

impl Default for Requirements {
    fn default() -> Self {
        Self {
            required_capacity: 0.0,
            required_cores: 0,
            required_capabilities: Vec::new(),
            required_host_ports: Vec::new(),
            required_gpu_capacity: 0.0,
            required_gpu_model: String::new(),
            on_runtime_failure: OnRuntimeFailure::AvoidSpare,
            essential: true,
            max_restarts_per_hour: None,
            memory_bytes: 0,
        }
    }
}

/// What a job runs: services written out, or a template and its parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Launch {
    /// Name of the template, for warmth and reservations, and to take the services from when none
    /// are written here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateName>,
    /// Values for `{{NAME}}` (BDL-05).
    pub parameters: BTreeMap<String, String>,
    /// Containers or processes.
    pub services: Vec<Service>,
    /// Level of the media runtime.
    pub media_version: MediaVersion,
    /// How the media runtime runs.
    pub media_parameters: Option<ServiceParameters>,
    /// Volumes.
    pub volumes: Vec<String>,
    /// Opaque text of the owner.
    pub manager_configuration: String,
}

/// One job of a bundle (BUNDLE-03).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleJob {
    /// Name, unique in the bundle.
    pub job_name: JobName,
    /// Free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Needs.
    #[serde(default)]
    pub requirements: Requirements,
    /// Jobs of this bundle that must share its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub co_locate_with: Vec<JobName>,
    /// Jobs of this bundle that must not share its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub separate_from: Vec<JobName>,
    /// Nothing else runs on its node (INTRA-09).
    #[serde(default)]
    pub exclusive: bool,
    /// Its node is ended after it (BUNDLE-13).
    #[serde(default)]
    pub single_use: bool,
    /// Placed by itself or on demand.
    #[serde(default)]
    pub start_mode: StartMode,
    /// When it starts; absent: with the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_date_time: Option<Wall>,
    /// Speaks the job socket and can be handed over.
    #[serde(default)]
    pub handover: bool,
    /// Wants the job socket without handover (SOCK-01).
    #[serde(default)]
    pub job_socket: bool,
    /// Fencing.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub lease: Option<LeasePolicy>,
    /// Tags of the runtime jobs.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Names of environment variables to keep secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_env: Vec<String>,
    /// Names of tags told to the services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub export_tags: Vec<String>,
    /// Capabilities provided once running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provides: Vec<Capability>,
    /// What it runs.
    #[serde(default)]
    pub launch: Launch,
}

/// One production (BUNDLE-01).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// The bundle; empty at creation: the Manager gives one.
    #[serde(default)]
    pub bundle_id: BundleId,
    /// Free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Pool in which it is placed.
    pub pool: PoolName,
    /// Its jobs.
    pub jobs: Vec<BundleJob>,
    /// Makes a second copy and says how far apart it stays.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub resilience_policy: Option<Resilience>,
    /// Rules within a copy.
    #[serde(default)]
    pub intra_replica_placement: IntraReplica,
    /// Use of spares at launch.
    #[serde(default)]
    pub on_launch: OnLaunch,
    /// Admits spares reserved for others.
    #[serde(default)]
    pub override_reservation: bool,
    /// Parameter values on the backup only (BUNDLE-15).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backup_parameter_overrides: BTreeMap<String, String>,
    /// Tags of all its jobs.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// When its jobs start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_date_time: Option<Wall>,
    /// When it is deleted (BSTOP-01).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<Wall>,
    /// Whether it is in force; set by the Manager.
    #[serde(default)]
    pub state: BundleState,
    /// Grows by one with each update; set by the Manager. In an update: expected, 0 for any.
    #[serde(default)]
    pub revision: u64,
}

// === impl Bundle ===

impl Bundle {
    /// Number of copies: 2 exactly when a resilience policy is there (BUNDLE-02).
    pub const fn copies(&self) -> u32 {
        if self.resilience_policy.is_some() {
            2
        } else {
            1
        }
    }

    /// The pool in which a copy is placed (PLACE-02).
    pub fn pool_of(&self, replica_index: u32) -> &PoolName {
        match &self.resilience_policy {
            Some(Resilience {
                pool: Some(pool), ..
            }) if replica_index == 1 => pool,
            _ => &self.pool,
        }
    }

    /// The job of that name.
    pub fn job(&self, name: &str) -> Option<&BundleJob> {
        self.jobs.iter().find(|job| job.job_name.as_str() == name)
    }

    /// Id of the runtime job of a copy (BDL-03).
    pub fn job_id(&self, replica_index: u32, name: &JobName) -> JobId {
        JobId::new(format!("{}.{replica_index}.{name}", self.bundle_id))
    }

    /// The role in which a copy starts (BIND-03).
    pub fn role(replica_index: u32) -> Role {
        Role::of_replica(replica_index)
    }
}

/// One runtime job of a bundle, as the Manager shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleJobStatus {
    /// The runtime job.
    pub job_id: JobId,
    /// Its copy.
    pub replica_index: u32,
    /// Its name in the bundle.
    pub job_name: JobName,
    /// Known, not to be placed.
    pub dormant: bool,
    /// Verdict, if it has one.
    pub terminal_state: Option<TerminalState>,
}

/// A bundle as the Manager shows it (BDL-21).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleStatus {
    /// As stored, with state and revision.
    pub bundle: Bundle,
    /// Its runtime jobs.
    pub jobs: Vec<BundleJobStatus>,
    /// When its creator's lease runs out.
    pub lease_expires_at: Option<Wall>,
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: BUNDLE-02, RESIL-01
    #[test]
    fn the_number_of_copies_follows_from_the_policy_alone() {
        let one: Bundle = serde_json::from_str(r#"{"pool":"p","jobs":[{"jobName":"e"}]}"#).unwrap();
        assert_eq!(one.copies(), 1);
        let two: Bundle = serde_json::from_str(
            r#"{"pool":"p","jobs":[{"jobName":"e"}],"resiliencePolicy":{"pool":"q"}}"#,
        )
        .unwrap();
        assert_eq!(two.copies(), 2);
        assert_eq!(
            (two.pool_of(0).as_str(), two.pool_of(1).as_str()),
            ("p", "q")
        );
        let policy = two.resilience_policy.unwrap();
        assert_eq!(
            (policy.same_node, policy.same_az, policy.same_cloud),
            (Rule::Forbid, Rule::Allow, Rule::Allow)
        );
        assert!(
            serde_json::from_str::<Bundle>(r#"{"pool":"p","jobs":[],"replicas":2}"#).is_err(),
            "copies are derived, never set"
        );
    }

    // spec: BUNDLE-04
    #[test]
    fn an_absent_essential_reads_as_true() {
        let needs: Requirements = serde_json::from_str("{}").unwrap();
        assert!(needs.essential);
        assert_eq!(needs.max_restarts_per_hour, None);
        let zero: Requirements = serde_json::from_str(r#"{"maxRestartsPerHour":0}"#).unwrap();
        assert_eq!(zero.max_restarts_per_hour, Some(0));
    }
}
