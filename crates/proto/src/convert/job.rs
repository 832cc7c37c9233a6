//! Jobs and their history.
//!
//! On the wire one message holds a job's definition and what the Manager adds to it (state, hash, verdict, pending
//! fields). Reading a [`Job`] takes the definition alone and looks at none of the rest (JOB-01); reading a
//! [`JobWithHistory`] takes both. Left out: `provider_code` of a stop, and the running data of a node that rejected
//! a start; the other side has no place for them.

use std::sync::Arc;

use greenroom_types::{
    BundleId, JobName, Millis, StartId,
    bundle::Requirements,
    job::{
        At, AutoPlacement, HistoryEntry, HistoryKind, Job, JobWithHistory, LeasePolicy,
        TerminalState,
    },
    node::{NodeMetadata, RunningNodeMetadata},
};
use prost_types::Timestamp;

use super::{
    WireError,
    common::{
        read_enum, read_job_id, read_ports, read_role, read_time_optional, read_time_or_zero,
        write_enum, write_ports, write_time,
    },
    inventory::take_list,
    node::write_running,
    read_list, read_optional, read_required, write_list,
};
use crate::{common as wire, manager};

// === small values ===

impl From<manager::LeasePolicy> for LeasePolicy {
    /// 0 stands for the default (LEASE-01).
    fn from(lease: manager::LeasePolicy) -> Self {
        let default = Self::default();
        let or = |ms, default| if ms == 0 { default } else { Millis(ms) };
        Self {
            ttl_ms: or(lease.ttl_ms, default.ttl_ms),
            grace_ms: or(lease.grace_ms, default.grace_ms),
        }
    }
}

impl From<&LeasePolicy> for manager::LeasePolicy {
    fn from(lease: &LeasePolicy) -> Self {
        Self {
            ttl_ms: lease.ttl_ms.0,
            grace_ms: lease.grace_ms.0,
        }
    }
}

impl TryFrom<manager::TerminalState> for TerminalState {
    type Error = WireError;
    fn try_from(verdict: manager::TerminalState) -> Result<Self, WireError> {
        Ok(Self {
            reason: verdict.reason,
            by: verdict.by,
            at: read_time_or_zero(verdict.at, "at")?,
        })
    }
}

impl From<&TerminalState> for manager::TerminalState {
    fn from(verdict: &TerminalState) -> Self {
        Self {
            reason: verdict.reason.clone(),
            by: verdict.by.clone(),
            at: Some(write_time(verdict.at)),
        }
    }
}

impl TryFrom<manager::Requirements> for Requirements {
    type Error = WireError;
    fn try_from(needs: manager::Requirements) -> Result<Self, WireError> {
        Ok(Self {
            required_capacity: needs.required_capacity,
            required_cores: needs.required_cores,
            required_capabilities: take_list(needs.required_capabilities),
            required_host_ports: needs.required_host_ports,
            required_gpu_capacity: needs.required_gpu_capacity,
            required_gpu_model: needs.required_gpu_model,
            on_runtime_failure: read_enum::<manager::FailurePolicy, _>(
                needs.on_runtime_failure,
                "on_runtime_failure",
            )?,
            // Absent reads as true (BUNDLE-04).
            essential: needs.essential.unwrap_or(true),
            max_restarts_per_hour: needs.max_restarts_per_hour,
            memory_bytes: needs.memory_bytes,
        })
    }
}

impl From<&Requirements> for manager::Requirements {
    fn from(needs: &Requirements) -> Self {
        Self {
            required_capacity: needs.required_capacity,
            required_cores: needs.required_cores,
            required_capabilities: write_list(&needs.required_capabilities),
            required_host_ports: needs.required_host_ports.clone(),
            required_gpu_capacity: needs.required_gpu_capacity,
            required_gpu_model: needs.required_gpu_model.clone(),
            on_runtime_failure: write_enum::<manager::FailurePolicy>(needs.on_runtime_failure),
            essential: Some(needs.essential),
            max_restarts_per_hour: needs.max_restarts_per_hour,
            memory_bytes: needs.memory_bytes,
        }
    }
}

impl TryFrom<manager::AutoPlacement> for AutoPlacement {
    type Error = WireError;
    fn try_from(place: manager::AutoPlacement) -> Result<Self, WireError> {
        Ok(Self {
            bundle_id: BundleId::new(place.bundle_id),
            replica_index: place.replica_index,
            job_name: JobName::new(place.job_name),
            requirements: read_optional(place.requirements, "requirements")?.unwrap_or_default(),
        })
    }
}

impl From<&AutoPlacement> for manager::AutoPlacement {
    fn from(place: &AutoPlacement) -> Self {
        Self {
            bundle_id: place.bundle_id.as_str().to_owned(),
            replica_index: place.replica_index,
            job_name: place.job_name.as_str().to_owned(),
            requirements: Some((&place.requirements).into()),
        }
    }
}

// === the job ===

impl TryFrom<manager::Job> for Job {
    type Error = WireError;
    fn try_from(job: manager::Job) -> Result<Self, WireError> {
        let job_id = read_job_id(job.job_id.clone(), "job_id")?;
        Ok(Self {
            job_id,
            ..read_definition(job)?
        })
    }
}

/// Reads everything of a definition but its id, as a template has none.
pub(crate) fn read_definition(job: manager::Job) -> Result<Job, WireError> {
    Ok(Job {
        job_id: Default::default(),
        description: job.description,
        tags: job.tags,
        start_date_time: read_time_optional(job.start_date_time, "start_date_time")?,
        manager_configuration: job.manager_configuration,
        services: read_list(job.services, "services")?,
        media_version: read_enum::<manager::Version, _>(
            job.norsk_media_version,
            "norsk_media_version",
        )?,
        media_parameters: read_optional(job.norsk_service_parameters, "norsk_service_parameters")?,
        volumes: job.volumes,
        shape: job.shape,
        architecture: job.architecture,
        subnet: job.subnet,
        availability_domain: job.availability_domain,
        auto_placement: read_optional(job.auto_placement, "auto_placement")?,
        lease: job.lease.map(Into::into),
        handover: job.handover,
        job_socket: job.job_socket,
        provides: take_list(job.provides),
        secret_env: job.secret_env,
        export_tags: job.export_tags,
    })
}

impl From<&Job> for manager::Job {
    /// The definition alone; without an id where it has none.
    fn from(job: &Job) -> Self {
        Self {
            job_id: (!job.job_id.is_empty()).then(|| (&job.job_id).into()),
            description: job.description.clone(),
            tags: job.tags.clone(),
            start_date_time: job.start_date_time.map(write_time),
            manager_configuration: job.manager_configuration.clone(),
            services: write_list(&job.services),
            norsk_media_version: write_enum::<manager::Version>(job.media_version),
            norsk_service_parameters: job.media_parameters.as_ref().map(Into::into),
            volumes: job.volumes.clone(),
            shape: job.shape.clone(),
            architecture: job.architecture.clone(),
            subnet: job.subnet.clone(),
            availability_domain: job.availability_domain.clone(),
            auto_placement: job.auto_placement.as_ref().map(Into::into),
            lease: job.lease.as_ref().map(Into::into),
            handover: job.handover,
            job_socket: job.job_socket,
            provides: write_list(&job.provides),
            secret_env: job.secret_env.clone(),
            export_tags: job.export_tags.clone(),
            current_hash: 0,
            state: manager::job::JobState::Pre.into(),
            terminal_state: None,
            pending_restart: Vec::new(),
        }
    }
}

impl TryFrom<manager::JobWithHistory> for JobWithHistory {
    type Error = WireError;
    fn try_from(shown: manager::JobWithHistory) -> Result<Self, WireError> {
        let mut job = shown.job.ok_or_else(|| WireError::missing("job"))?;
        let under = |error: WireError| error.under("job");
        Ok(Self {
            state: read_enum::<manager::job::JobState, _>(job.state, "state").map_err(under)?,
            current_hash: job.current_hash,
            terminal_state: read_optional(job.terminal_state.take(), "terminal_state")
                .map_err(under)?,
            pending_restart: std::mem::take(&mut job.pending_restart),
            job: Job::try_from(job).map_err(under)?,
            history: read_list(shown.history_entry, "history_entry")?,
            dropped_entries: shown.dropped_entries,
        })
    }
}

impl From<&JobWithHistory> for manager::JobWithHistory {
    fn from(shown: &JobWithHistory) -> Self {
        Self {
            job: Some(write_job_shown(shown)),
            history_entry: write_list(&shown.history),
            dropped_entries: shown.dropped_entries,
        }
    }
}

/// Writes a job with what the Manager adds, without its history.
pub fn write_job_shown(shown: &JobWithHistory) -> manager::Job {
    manager::Job {
        current_hash: shown.current_hash,
        state: write_enum::<manager::job::JobState>(shown.state),
        terminal_state: shown.terminal_state.as_ref().map(Into::into),
        pending_restart: shown.pending_restart.clone(),
        ..manager::Job::from(&shown.job)
    }
}

// === history ===

/// Where an entry of the history took place, in the parts in which the messages hold it.
struct Place {
    role: String,
    node: Option<wire::NodeMetadata>,
    running: Option<wire::RunningNodeMetadata>,
}

impl Place {
    fn write(at: &At) -> Self {
        Self {
            role: at.role.as_str().to_owned(),
            node: Some((&*at.node).into()),
            running: at
                .running
                .as_deref()
                .map(|running| write_running(running, &at.node.provider)),
        }
    }

    fn read(self) -> Result<At, WireError> {
        Ok(At {
            role: read_role(&self.role, "role")?,
            node: Arc::new(read_required::<_, NodeMetadata>(self.node, "nodeMetadata")?),
            running: self
                .running
                .map(|running| Arc::new(RunningNodeMetadata::from(running))),
        })
    }
}

impl TryFrom<manager::JobHistoryEntry> for HistoryEntry {
    type Error = WireError;
    fn try_from(entry: manager::JobHistoryEntry) -> Result<Self, WireError> {
        use manager::job_history_entry::HistoryEntry as Wire;
        let Some(kind) = entry.history_entry else {
            return Err(WireError::missing("history_entry"));
        };
        let (field, read): (&str, Result<_, WireError>) = match kind {
            Wire::JobCreated(created) => {
                ("job_created", Ok((created.timestamp, HistoryKind::Created)))
            }
            Wire::JobUpdated(updated) => (
                "job_updated",
                read_required(updated.previous_job, "previous_job").map(|previous: Job| {
                    (
                        updated.timestamp,
                        HistoryKind::Updated {
                            previous: Box::new(previous),
                        },
                    )
                }),
            ),
            Wire::JobProvisioned(it) => (
                "job_provisioned",
                Place {
                    role: it.role,
                    node: it.node_metadata,
                    running: it.running_node_metadata,
                }
                .read()
                .map(|at| (it.timestamp, HistoryKind::Provisioned(at))),
            ),
            Wire::JobRunning(running) => ("job_running", read_running_entry(running)),
            Wire::JobStopping(stopping) => ("job_stopping", read_stopping_entry(stopping)),
            Wire::JobStopped(it) => (
                "job_stopped",
                Place {
                    role: it.role,
                    node: it.node_metadata,
                    running: it.running_node_metadata,
                }
                .read()
                .map(|at| (it.timestamp, HistoryKind::Stopped(at))),
            ),
            Wire::JobCompleted(completed) => (
                "job_completed",
                Ok((completed.timestamp, HistoryKind::Completed)),
            ),
            Wire::JobFailed(failed) => (
                "job_failed",
                Ok((
                    failed.timestamp,
                    HistoryKind::Failed {
                        reason: failed.reason,
                        by: failed.by,
                    },
                )),
            ),
            Wire::JobPrepared(it) => (
                "job_prepared",
                Place {
                    role: it.role,
                    node: it.node_metadata,
                    running: it.running_node_metadata,
                }
                .read()
                .map(|at| (it.timestamp, HistoryKind::Prepared(at))),
            ),
            Wire::JobRejected(rejected) => ("job_rejected", read_rejected_entry(rejected)),
        };
        let under = |error: WireError| error.under(field);
        let (timestamp, kind) = read.map_err(under)?;
        Ok(Self {
            at: read_time_or_zero(timestamp, "timestamp").map_err(under)?,
            seq: entry.seq,
            start_id: (!entry.start_id.is_empty()).then(|| StartId::new(entry.start_id)),
            kind,
        })
    }
}

type Timed = (Option<Timestamp>, HistoryKind);

fn read_running_entry(it: manager::JobHistoryJobRunning) -> Result<Timed, WireError> {
    let ports = read_ports(it.service_port_mappings, "service_port_mappings")?;
    let at = Place {
        role: it.role,
        node: it.node_metadata,
        running: it.running_node_metadata,
    };
    Ok((
        it.timestamp,
        HistoryKind::Running {
            at: at.read()?,
            ports,
        },
    ))
}

fn read_stopping_entry(it: manager::JobHistoryJobStopping) -> Result<Timed, WireError> {
    let reason = read_enum::<manager::job_history_job_stopping::Reason, _>(it.reason, "reason")?;
    let at = Place {
        role: it.role,
        node: it.node_metadata,
        running: it.running_node_metadata,
    };
    Ok((
        it.timestamp,
        HistoryKind::Stopping {
            at: at.read()?,
            reason,
            detail: it.detail,
        },
    ))
}

fn read_rejected_entry(it: manager::JobHistoryJobRejected) -> Result<Timed, WireError> {
    let code = read_enum::<manager::RejectionCode, _>(it.code, "code")?;
    let at = Place {
        role: it.role,
        node: it.node_metadata,
        running: None,
    };
    Ok((
        it.timestamp,
        HistoryKind::Rejected {
            at: at.read()?,
            code,
            detail: it.detail,
        },
    ))
}

impl From<&HistoryEntry> for manager::JobHistoryEntry {
    fn from(entry: &HistoryEntry) -> Self {
        let start_id = entry.start_id.as_ref().map(|id| id.as_str().to_owned());
        Self {
            history_entry: Some(write_kind(&entry.kind, write_time(entry.at))),
            start_id: start_id.unwrap_or_default(),
            seq: entry.seq,
        }
    }
}

fn write_kind(kind: &HistoryKind, at_time: Timestamp) -> manager::job_history_entry::HistoryEntry {
    use manager::job_history_entry::HistoryEntry as Wire;
    let timestamp = Some(at_time);
    match kind {
        HistoryKind::Created => Wire::JobCreated(manager::JobHistoryJobCreated { timestamp }),
        HistoryKind::Updated { previous } => Wire::JobUpdated(manager::JobHistoryJobUpdated {
            timestamp,
            previous_job: Some((&**previous).into()),
        }),
        HistoryKind::Provisioned(at) => {
            let Place {
                role,
                node,
                running,
            } = Place::write(at);
            Wire::JobProvisioned(manager::JobHistoryJobProvisioned {
                timestamp,
                role,
                node_metadata: node,
                running_node_metadata: running,
            })
        }
        HistoryKind::Prepared(at) => {
            let Place {
                role,
                node,
                running,
            } = Place::write(at);
            Wire::JobPrepared(manager::JobHistoryJobPrepared {
                timestamp,
                role,
                node_metadata: node,
                running_node_metadata: running,
            })
        }
        HistoryKind::Running { at, ports } => {
            let Place {
                role,
                node,
                running,
            } = Place::write(at);
            Wire::JobRunning(manager::JobHistoryJobRunning {
                timestamp,
                role,
                node_metadata: node,
                running_node_metadata: running,
                service_port_mappings: write_ports(ports),
            })
        }
        HistoryKind::Stopping { at, reason, detail } => {
            let Place {
                role,
                node,
                running,
            } = Place::write(at);
            Wire::JobStopping(manager::JobHistoryJobStopping {
                timestamp,
                role,
                node_metadata: node,
                running_node_metadata: running,
                reason: write_enum::<manager::job_history_job_stopping::Reason>(*reason),
                detail: detail.clone(),
                provider_code: String::new(),
            })
        }
        HistoryKind::Stopped(at) => {
            let Place {
                role,
                node,
                running,
            } = Place::write(at);
            Wire::JobStopped(manager::JobHistoryJobStopped {
                timestamp,
                role,
                node_metadata: node,
                running_node_metadata: running,
            })
        }
        HistoryKind::Completed => Wire::JobCompleted(manager::JobHistoryJobCompleted { timestamp }),
        HistoryKind::Failed { reason, by } => Wire::JobFailed(manager::JobHistoryJobFailed {
            timestamp,
            reason: reason.clone(),
            by: by.clone(),
        }),
        HistoryKind::Rejected { at, code, detail } => {
            let Place {
                role,
                node,
                running: _,
            } = Place::write(at);
            Wire::JobRejected(manager::JobHistoryJobRejected {
                timestamp,
                role,
                node_metadata: node,
                code: write_enum::<manager::RejectionCode>(*code),
                detail: detail.clone(),
            })
        }
    }
}
