//! What the Manager orders and what the worker reports, as the worker's core sees them.
//!
//! These values are what the journal keeps, so their names on disk are part of its version. The wire
//! is turned into them in `wire.rs`; nothing here knows of it.

use std::collections::BTreeMap;

use greenroom_types::bundle::Requirements;
use greenroom_types::inventory::Capability;
use greenroom_types::job::{Container, JobInfoKind, PortMappings, Service, ServiceParameters};
use greenroom_types::node::{InstanceKey, InterruptionKind, RejectionCode};
use greenroom_types::stream::{MigrationSignal, PrefetchResult};
use greenroom_types::{MigrationId, Millis, Payload, StartId, Tags, Wall};
use serde::{Deserialize, Serialize};

use crate::handover::Step;

/// Name of the service that runs the media runtime of a job (JOB-05).
const MEDIA_SERVICE: &str = "media";

/// One order to run an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StartSpec {
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) description: String,
    pub(crate) tags: Tags,
    pub(crate) services: Vec<Service>,
    /// Slot role told to the job; empty for the role up to its `@`.
    pub(crate) runtime_role: String,
    /// Create everything and run nothing (JOB-24).
    pub(crate) defer_start: bool,
    /// Which device: absent leaves it to the worker, negative means none.
    pub(crate) gpu_index: Option<i32>,
    pub(crate) requirements: Requirements,
    /// It must not run without a lease (LEASE-01).
    pub(crate) leased: bool,
    /// For how long one refresh holds.
    pub(crate) lease_ttl: Millis,
    /// Fencing number, 0 without lease.
    pub(crate) fence: u64,
    /// Wants the job socket (SOCK-01).
    pub(crate) job_socket: bool,
    /// The migration it is the target of.
    pub(crate) migration_id: Option<MigrationId>,
    /// The source's state: it is the target of a handover.
    pub(crate) migration_state: Option<Payload>,
    /// There was a state, and it did not come along.
    pub(crate) migration_state_lost: bool,
    /// What it makes its node able to do once it runs, as a node service (WORK-43).
    pub(crate) provided: Vec<Capability>,
    /// Names of tags told to the services.
    pub(crate) export_tags: Vec<String>,
    /// Names of environment variables that are secret (SEC-16).
    pub(crate) secret_env: Vec<String>,
    /// The media runtime's image, empty for a job without one (JOB-30).
    pub(crate) media_image: String,
    pub(crate) media_parameters: Option<ServiceParameters>,
}

/// Something the Manager wants done about instances.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// Run an instance.
    Provision(Box<StartSpec>),
    /// A start that cannot be read: it is refused like any other.
    Unreadable {
        key: InstanceKey,
        start_id: StartId,
        refusal: Refusal,
    },
    /// Stop an instance; without a start id, whichever is live under the key.
    Stop {
        key: InstanceKey,
        start_id: Option<StartId>,
        grace: Millis,
        cause: StopCause,
    },
    /// Run what was prepared.
    StartPrepared {
        key: InstanceKey,
        start_id: Option<StartId>,
    },
    /// Adopt what may change without a restart.
    Update {
        key: InstanceKey,
        start_id: Option<StartId>,
        description: String,
        tags: Tags,
        /// Opaque configuration, by service.
        configurations: BTreeMap<String, String>,
    },
    /// Take a step of a migration.
    Migration {
        key: InstanceKey,
        start_id: Option<StartId>,
        migration_id: MigrationId,
        step: Step,
    },
    /// The node's tags changed.
    Tags(Tags),
    /// Pull images ahead of jobs.
    Prefetch {
        batch_id: String,
        image_refs: Vec<String>,
    },
    /// Stop everything; then end, or stay and wait for the next restart.
    Shutdown { grace: Millis, park: bool },
}

/// Why an instance is stopped, as its job is told (SOCK-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    User,
    Node,
    Migration,
    Lease,
    Bundle,
}

/// What a report says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Said {
    Accepted,
    Prepared {
        ports: PortMappings,
    },
    Started {
        ports: PortMappings,
    },
    /// Nothing is left of it. `completed`: it ended by itself with every service at exit 0.
    Stopped {
        completed: bool,
    },
    /// It failed and its remains are being removed; `Stopped` follows.
    Failed {
        reason: String,
    },
    /// It was not taken on and nothing of it is left.
    Rejected {
        code: RejectionCode,
        detail: String,
    },
    /// It says something in a migration.
    Migration {
        migration_id: MigrationId,
        signal: MigrationSignal,
    },
    /// Said of the node, under no key: its provider takes it, or advises to leave it.
    Interrupted {
        what: InterruptionKind,
        deadline: Option<Wall>,
        seen_at: Wall,
    },
    /// Said of the node, under no key: a batch of images is done, with one result for each.
    Prefetched {
        batch_id: String,
        results: Vec<PrefetchResult>,
    },
}

/// Something the Manager must come to know, kept until it says so (WORK-60).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Grows by one and never repeats, across restarts too.
    pub(crate) id: u64,
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) said: Said,
}

/// News that is sent if somebody listens, and otherwise lost.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Info {
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) kind: JobInfoKind,
}

/// A refusal of a start, in one plain sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    pub(crate) code: RejectionCode,
    pub(crate) detail: String,
}

// === impl StopCause ===

impl StopCause {
    /// As the Manager says it; a stop for another reason is somebody's wish.
    pub(crate) fn of(word: &str) -> Self {
        let all = [Self::Node, Self::Migration, Self::Lease, Self::Bundle];
        let named = all.into_iter().find(|cause| cause.word() == word);
        named.unwrap_or(Self::User)
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::User => "USER",
            Self::Node => "NODE",
            Self::Migration => "MIGRATION",
            Self::Lease => "LEASE",
            Self::Bundle => "BUNDLE",
        }
    }
}

// === impl StartSpec ===

impl StartSpec {
    /// The services that run: the job's own, and the media runtime where there is an image for it.
    pub(crate) fn all_services(&self) -> Vec<Service> {
        let mut services = self.services.clone();
        if !self.media_image.is_empty() {
            services.push(Service {
                name: MEDIA_SERVICE.to_owned(),
                container: Container::Docker(self.media_image.clone()),
                parameters: self.media_parameters.clone().unwrap_or_default(),
                ..Service::default()
            });
        }
        services
    }

    /// Takes on what services are configured with; true when that changed anything.
    pub(crate) fn configure(&mut self, configurations: &BTreeMap<String, String>) -> bool {
        let mut changed = false;
        for service in &mut self.services {
            if let Some(new) = configurations.get(&service.name)
                && service.configuration != *new
            {
                service.configuration.clone_from(new);
                changed = true;
            }
        }
        changed
    }

    /// What the job is told as its role.
    pub(crate) fn told_role(&self) -> &str {
        if self.runtime_role.is_empty() {
            self.key.role.slot()
        } else {
            &self.runtime_role
        }
    }

    /// The tags that the job asks to be told, with their names as environment variables.
    pub(crate) fn exported_tags(&self) -> BTreeMap<String, String> {
        self.export_tags
            .iter()
            .filter_map(|name| Some((variable("TAG", name), self.tags.get(name)?.clone())))
            .collect()
    }
}

/// The variable that tells something of this name.
pub(crate) fn variable(kind: &str, name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    format!("GREENROOM_{kind}_{name}")
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(code: RejectionCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }
}
