//! Events of the stream.
//!
//! A kind that the domain does not have reads as `Unknown` with its field number, or 0 where even this version of the
//! wire does not have it. The epoch is the stream's, so it is given when writing and read apart. Left out on reading:
//! detail and provider code of `node_stopped`, `remaining_ms` and `refreshed_at` of a lease.

use std::sync::Arc;

use greenroom_types::{
    BundleId, NodeId, StartId,
    call::{AuditCheckpoint, AuditEntry},
    stream::{Health, JobLeaseInfo, ProviderHealth, Stamped, StreamEvent},
};

use super::{
    WireError,
    common::{
        read_enum, read_job_id, read_node_id, read_time_optional, read_time_or_zero, write_enum,
        write_time,
    },
    inventory::take_list,
    node::{read_phase, write_phase, write_running},
    read_list, read_optional, read_required,
    worker::{MigrationMessage, MigrationNews},
    write_list,
};
use crate::{
    common as wire,
    manager::{self, event_stream_event::Event},
};

// === health ===

impl TryFrom<manager::ProviderHealth> for ProviderHealth {
    type Error = WireError;
    fn try_from(provider: manager::ProviderHealth) -> Result<Self, WireError> {
        use manager::provider_health::Health as Wire;
        let health = |number| read_enum::<manager::Health, Health>(number, "health");
        Ok(
            match provider
                .health
                .ok_or_else(|| WireError::missing("health"))?
            {
                Wire::Aws(aws) => Self::Aws(
                    aws.region_health
                        .into_iter()
                        .map(|one| Ok((one.region, health(one.health)?)))
                        .collect::<Result<_, WireError>>()?,
                ),
                Wire::Oci(oci) => Self::Oci(
                    oci.region_health
                        .into_iter()
                        .map(|one| Ok((one.availability_domain, health(one.health)?)))
                        .collect::<Result<_, WireError>>()?,
                ),
                Wire::Local(local) => Self::Local(health(local.health)?),
                Wire::CloudHypervisor(hosts) => Self::CloudHypervisor(
                    hosts
                        .host_health
                        .into_iter()
                        .map(|one| Ok((one.host, health(one.health)?)))
                        .collect::<Result<_, WireError>>()?,
                ),
            },
        )
    }
}

impl From<&ProviderHealth> for manager::ProviderHealth {
    fn from(provider: &ProviderHealth) -> Self {
        use manager::provider_health::Health as Wire;
        let number = |health: &Health| write_enum::<manager::Health>(*health);
        let health = match provider {
            ProviderHealth::Aws(regions) => Wire::Aws(manager::AwsHealth {
                region_health: regions
                    .iter()
                    .map(|(region, health)| manager::AwsRegionHealth {
                        region: region.clone(),
                        health: number(health),
                    })
                    .collect(),
            }),
            ProviderHealth::Oci(domains) => Wire::Oci(manager::OciHealth {
                region_health: domains
                    .iter()
                    .map(|(domain, health)| manager::OciRegionHealth {
                        availability_domain: domain.clone(),
                        health: number(health),
                    })
                    .collect(),
            }),
            ProviderHealth::Local(health) => Wire::Local(manager::LocalHealth {
                health: number(health),
            }),
            ProviderHealth::CloudHypervisor(hosts) => {
                Wire::CloudHypervisor(manager::CloudHypervisorHealth {
                    host_health: hosts
                        .iter()
                        .map(|(host, health)| manager::CloudHypervisorHostHealth {
                            host: host.clone(),
                            health: number(health),
                        })
                        .collect(),
                })
            }
        };
        Self {
            health: Some(health),
        }
    }
}

// === leases, audit ===

/// The states of a lease by the names that the domain has for them.
const LEASE_STATES: [(manager::LeaseState, &str); 4] = [
    (manager::LeaseState::Held, "held"),
    (manager::LeaseState::LostWaiting, "lost_waiting"),
    (manager::LeaseState::PausedKept, "paused_kept"),
    (manager::LeaseState::Released, "released"),
];

impl TryFrom<manager::JobLeaseInfo> for JobLeaseInfo {
    type Error = WireError;
    fn try_from(lease: manager::JobLeaseInfo) -> Result<Self, WireError> {
        let state: manager::LeaseState = read_enum(lease.state, "state")?;
        let name = LEASE_STATES
            .iter()
            .find(|(known, _)| *known == state)
            .map(|(_, name)| *name);
        Ok(Self {
            key: read_required(lease.job_key, "job_key")?,
            start_id: StartId::new(lease.start_id),
            node_id: NodeId::new(lease.node_id),
            fence: lease.fence,
            ttl_ms: lease.ttl_ms,
            state: name.ok_or_else(|| WireError::missing("state"))?.to_owned(),
            remaining_ms: lease.remaining_ms,
            refreshed_at: read_time_optional(lease.refreshed_at, "refreshed_at")?,
        })
    }
}

/// Writes a lease; a state for which the wire has no value is refused `unknown_enum`.
pub fn write_lease(lease: &JobLeaseInfo) -> Result<manager::JobLeaseInfo, WireError> {
    let state = LEASE_STATES.iter().find(|(_, name)| *name == lease.state);
    let (state, _) = state.ok_or_else(|| {
        let message = format!("is {:?}, which the wire has no value for", lease.state);
        WireError::new("unknown_enum", "state", message)
    })?;
    Ok(manager::JobLeaseInfo {
        job_key: Some((&lease.key).into()),
        start_id: lease.start_id.as_str().to_owned(),
        node_id: lease.node_id.as_str().to_owned(),
        fence: lease.fence,
        ttl_ms: lease.ttl_ms,
        remaining_ms: lease.remaining_ms,
        refreshed_at: lease.refreshed_at.map(write_time),
        state: (*state).into(),
    })
}

impl TryFrom<manager::AuditEntry> for AuditEntry {
    type Error = WireError;
    fn try_from(entry: manager::AuditEntry) -> Result<Self, WireError> {
        Ok(Self {
            seq: entry.seq,
            at: read_time_or_zero(entry.at, "at")?,
            source: entry.source,
            kind: entry.kind,
            actor: entry.actor,
            payload: entry.payload,
            prev_hash: hex(&entry.prev_hash),
            hash: hex(&entry.hash),
        })
    }
}

/// Writes an audit entry; a hash that is not hexadecimal is refused `bad_hash`.
pub fn write_audit(entry: &AuditEntry) -> Result<manager::AuditEntry, WireError> {
    Ok(manager::AuditEntry {
        seq: entry.seq,
        at: Some(write_time(entry.at)),
        source: entry.source.clone(),
        kind: entry.kind.clone(),
        actor: entry.actor.clone(),
        payload: entry.payload.clone(),
        prev_hash: unhex(&entry.prev_hash, "prev_hash")?,
        hash: unhex(&entry.hash, "hash")?,
    })
}

/// Writes what stands for pruned entries; a hash that is not hexadecimal is refused `bad_hash`.
pub fn write_checkpoint(it: &AuditCheckpoint) -> Result<manager::AuditCheckpoint, WireError> {
    Ok(manager::AuditCheckpoint {
        seq: it.seq,
        hash: unhex(&it.hash, "hash")?,
        count: it.count,
        by: it.by.clone(),
        at: Some(write_time(it.at)),
    })
}

impl TryFrom<manager::AuditCheckpoint> for AuditCheckpoint {
    type Error = WireError;
    fn try_from(it: manager::AuditCheckpoint) -> Result<Self, WireError> {
        Ok(Self {
            seq: it.seq,
            hash: hex(&it.hash),
            count: it.count,
            by: it.by,
            at: read_time_or_zero(it.at, "at")?,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str, field: &str) -> Result<Vec<u8>, WireError> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 => Ok(digits
            .chunks(2)
            .map(|pair| (pair[0] * 16 + pair[1]) as u8)
            .collect()),
        _ => Err(WireError::new(
            "bad_hash",
            field,
            "is not hexadecimal with two digits to a byte",
        )),
    }
}

// === reading ===

impl TryFrom<manager::EventStreamEvent> for Stamped {
    type Error = WireError;
    fn try_from(event: manager::EventStreamEvent) -> Result<Self, WireError> {
        Ok(Self {
            seq: event.seq,
            at: read_time_or_zero(event.at, "at")?,
            event: match event.event {
                None => StreamEvent::Unknown { number: 0 },
                Some(event) => {
                    let name = kind_name(&event);
                    read_kind(event).map_err(|error| error.under(name))?
                }
            },
        })
    }
}

fn read_kind(event: Event) -> Result<StreamEvent, WireError> {
    Ok(match event {
        Event::NodeRunning(it) => StreamEvent::NodeRunning {
            metadata: Arc::new(read_required(it.node_metadata, "nodeMetadata")?),
            running: Arc::new(it.running_node_metadata.map(Into::into).unwrap_or_default()),
            instances: read_list(it.instances, "instances")?,
            reachable: it.reachable,
        },
        Event::JobActive(it) => StreamEvent::JobActive(read_job(it.job_with_history)?),
        Event::JobPending(it) => StreamEvent::JobPending(read_job(it.job_with_history)?),
        Event::JobUpdated(it) => StreamEvent::JobUpdated(read_job(it.job_with_history)?),
        Event::JobOutOfWindow(it) => StreamEvent::JobOutOfWindow(read_job(it.job_with_history)?),
        Event::JobDeleted(it) => StreamEvent::JobDeleted(read_job_id(it.job_id, "jobId")?),
        Event::NodeStarting(it) => StreamEvent::NodeStarting {
            metadata: Arc::new(read_required(it.node_metadata, "nodeMetadata")?),
            phase: read_phase(it.phase, "phase")?,
        },
        Event::NodeStarted(it) => StreamEvent::NodeStarted {
            metadata: Arc::new(read_required(it.node_metadata, "nodeMetadata")?),
            running: Arc::new(it.running_node_metadata.map(Into::into).unwrap_or_default()),
        },
        Event::NodeStopping(it) => StreamEvent::NodeStopping {
            node_id: read_node_id(it.node_id, "node_id")?,
            reason: read_enum::<manager::node_stopping::Reason, _>(it.reason, "reason")?,
            detail: it.detail,
            provider_code: it.provider_code,
        },
        Event::NodeStopped(it) => StreamEvent::NodeStopped {
            node_id: read_node_id(it.node_id, "node_id")?,
        },
        Event::ProviderHealthChange(it) => StreamEvent::ProviderHealthChange(it.try_into()?),
        Event::JobInfo(it) => StreamEvent::JobInfo(it.try_into()?),
        Event::InitialDataComplete(it) => {
            StreamEvent::InitialDataComplete(read_list(it.health, "health")?)
        }
        Event::BundleActive(it) => {
            StreamEvent::BundleActive(Arc::new(read_required(it.bundle, "bundle")?))
        }
        Event::BundleUpdated(it) => {
            StreamEvent::BundleUpdated(Arc::new(read_required(it.bundle, "bundle")?))
        }
        Event::BundleDeleted(it) => StreamEvent::BundleDeleted(BundleId::new(it.bundle_id)),
        Event::NodeInventorySnapshot(it) => StreamEvent::NodeInventorySnapshot {
            node_id: read_node_id(it.node_id, "node_id")?,
            inventory: Arc::new(read_required(it.inventory, "inventory")?),
        },
        Event::NodeInventoryUpdated(it) => StreamEvent::NodeInventoryUpdated {
            node_id: read_node_id(it.node_id, "node_id")?,
            inventory: Arc::new(read_required(it.inventory, "inventory")?),
        },
        Event::NodeReachabilityChanged(it) => StreamEvent::NodeReachabilityChanged {
            node_id: read_node_id(it.node_id, "node_id")?,
            reachable: it.reachable,
        },
        Event::NodeTagsUpdated(it) => StreamEvent::NodeTagsUpdated {
            metadata: Arc::new(read_required(it.node_metadata, "nodeMetadata")?),
            revision: it.revision,
        },
        Event::NodeInterruptionNotice(it) => StreamEvent::NodeInterruptionNotice {
            node_id: read_node_id(it.node_id, "node_id")?,
            kind: read_enum::<manager::InterruptionKind, _>(it.kind, "kind")?,
            deadline: read_time_optional(it.deadline, "deadline")?,
            noticed_at: read_time_or_zero(it.noticed_at, "noticed_at")?,
        },
        Event::ImagesPrefetched(it) => StreamEvent::ImagesPrefetched {
            node_id: read_node_id(it.node_id, "node_id")?,
            batch_id: it.batch_id,
            results: take_list(it.results),
        },
        Event::JobRejected(it) => StreamEvent::JobRejected {
            node_id: read_node_id(it.node_id, "node_id")?,
            key: read_required(it.job_key, "job_key")?,
            start_id: StartId::new(it.start_id),
            code: read_enum::<manager::RejectionCode, _>(it.code, "code")?,
            reason: it.reason,
            inventory: read_optional(it.inventory, "inventory")?.map(Arc::new),
        },
        Event::JobPrepared(it) => StreamEvent::JobPrepared {
            key: read_required(it.job_key, "job_key")?,
            node_id: read_node_id(it.node_id, "node_id")?,
            start_id: StartId::new(it.start_id),
        },
        Event::MigrationState(it) => read_migration(MigrationMessage::State(it))?,
        Event::MigrationTargetReady(it) => read_migration(MigrationMessage::TargetReady(it))?,
        Event::MigrationSourceStoppedOutput(it) => {
            read_migration(MigrationMessage::SourceStoppedOutput(it))?
        }
        Event::MigrationTargetApplied(it) => read_migration(MigrationMessage::TargetApplied(it))?,
        Event::MigrationAborted(it) => read_migration(MigrationMessage::Aborted(it))?,
        Event::LeaseChanged(it) => StreamEvent::LeaseChanged(read_required(it.lease, "lease")?),
        Event::LeasesPaused(it) => StreamEvent::LeasesPaused {
            paused: it.paused,
            reason: it.reason,
            by: it.by,
            since: read_time_optional(it.since, "since")?,
        },
        Event::AuditAppended(it) => StreamEvent::AuditAppended(read_required(it.entry, "entry")?),
        Event::Heartbeat(it) => StreamEvent::Heartbeat {
            server_time: read_time_or_zero(it.server_time, "server_time")?,
        },
        Event::EventsLost(it) => StreamEvent::EventsLost {
            kind: it.kind,
            count: it.count,
        },
        Event::StreamResumed(it) => StreamEvent::StreamResumed {
            complete: it.complete,
            reason: it.reason,
            from_seq: it.from_seq,
        },
        Event::PhysicalNodeConnected(_) => StreamEvent::Unknown { number: 12 },
        Event::ClusterChanged(_) => StreamEvent::Unknown { number: 129 },
    })
}

fn read_job(
    job: Option<manager::JobWithHistory>,
) -> Result<Arc<greenroom_types::job::JobWithHistory>, WireError> {
    read_required(job, "jobWithHistory").map(Arc::new)
}

fn read_migration(message: MigrationMessage) -> Result<StreamEvent, WireError> {
    let MigrationNews {
        key,
        migration_id,
        signal,
    } = message.try_into()?;
    Ok(StreamEvent::Migration {
        key,
        migration_id,
        signal,
    })
}

/// The name of a kind, as it stands in the wire's definition and in `EventStreamRequest.include`.
pub const fn kind_name(event: &Event) -> &'static str {
    match event {
        Event::NodeRunning(_) => "node_running",
        Event::JobActive(_) => "job_active",
        Event::InitialDataComplete(_) => "initial_data_complete",
        Event::JobUpdated(_) => "job_updated",
        Event::JobDeleted(_) => "job_deleted",
        Event::JobPending(_) => "job_pending",
        Event::JobOutOfWindow(_) => "job_out_of_window",
        Event::NodeStarting(_) => "node_starting",
        Event::NodeStarted(_) => "node_started",
        Event::NodeStopping(_) => "node_stopping",
        Event::NodeStopped(_) => "node_stopped",
        Event::PhysicalNodeConnected(_) => "physical_node_connected",
        Event::ProviderHealthChange(_) => "provider_health_change",
        Event::JobInfo(_) => "job_info",
        Event::BundleActive(_) => "bundle_active",
        Event::BundleUpdated(_) => "bundle_updated",
        Event::BundleDeleted(_) => "bundle_deleted",
        Event::NodeInventorySnapshot(_) => "node_inventory_snapshot",
        Event::NodeInventoryUpdated(_) => "node_inventory_updated",
        Event::NodeReachabilityChanged(_) => "node_reachability_changed",
        Event::NodeTagsUpdated(_) => "node_tags_updated",
        Event::NodeInterruptionNotice(_) => "node_interruption_notice",
        Event::ImagesPrefetched(_) => "images_prefetched",
        Event::JobRejected(_) => "job_rejected",
        Event::JobPrepared(_) => "job_prepared",
        Event::MigrationState(_) => "migration_state",
        Event::MigrationTargetReady(_) => "migration_target_ready",
        Event::MigrationSourceStoppedOutput(_) => "migration_source_stopped_output",
        Event::MigrationTargetApplied(_) => "migration_target_applied",
        Event::MigrationAborted(_) => "migration_aborted",
        Event::LeaseChanged(_) => "lease_changed",
        Event::LeasesPaused(_) => "leases_paused",
        Event::AuditAppended(_) => "audit_appended",
        Event::ClusterChanged(_) => "cluster_changed",
        Event::Heartbeat(_) => "heartbeat",
        Event::EventsLost(_) => "events_lost",
        Event::StreamResumed(_) => "stream_resumed",
    }
}

// === writing ===

/// Writes an event of the stream with that epoch.
///
/// Refused are the few values that the domain holds as text and the wire does not: a lease's state and a hash that are
/// none, and `Unknown`, which cannot be passed on.
pub fn write_event(stamped: &Stamped, epoch: &str) -> Result<manager::EventStreamEvent, WireError> {
    Ok(manager::EventStreamEvent {
        epoch: epoch.to_owned(),
        seq: stamped.seq,
        at: Some(write_time(stamped.at)),
        event: Some(write_kind(&stamped.event, stamped.seq)?),
    })
}

/// The kind alone; `seq` is that of the stream, which a heartbeat repeats.
pub(super) fn write_kind(event: &StreamEvent, seq: u64) -> Result<Event, WireError> {
    let id = |node_id: &NodeId| Some(wire::NodeId::from(node_id));
    Ok(match event {
        StreamEvent::NodeRunning {
            metadata,
            running,
            instances,
            reachable,
        } => Event::NodeRunning(manager::NodeRunning {
            node_metadata: Some((&**metadata).into()),
            running_node_metadata: Some(write_running(running, &metadata.provider)),
            instances: write_list(instances),
            reachable: *reachable,
        }),
        StreamEvent::JobActive(job) => Event::JobActive(manager::JobActive {
            job_with_history: Some((&**job).into()),
        }),
        StreamEvent::JobPending(job) => Event::JobPending(manager::JobPending {
            job_with_history: Some((&**job).into()),
        }),
        StreamEvent::JobUpdated(job) => Event::JobUpdated(manager::JobUpdated {
            job_with_history: Some((&**job).into()),
        }),
        StreamEvent::JobOutOfWindow(job) => Event::JobOutOfWindow(manager::JobOutOfWindow {
            job_with_history: Some((&**job).into()),
        }),
        StreamEvent::JobDeleted(job_id) => Event::JobDeleted(manager::JobDeleted {
            job_id: Some(job_id.into()),
        }),
        StreamEvent::NodeStarting { metadata, phase } => {
            Event::NodeStarting(manager::NodeStarting {
                node_metadata: Some((&**metadata).into()),
                phase: write_phase(*phase),
            })
        }
        StreamEvent::NodeStarted { metadata, running } => {
            Event::NodeStarted(manager::NodeStarted {
                node_metadata: Some((&**metadata).into()),
                running_node_metadata: Some(write_running(running, &metadata.provider)),
            })
        }
        StreamEvent::NodeStopping {
            node_id,
            reason,
            detail,
            provider_code,
        } => Event::NodeStopping(manager::NodeStopping {
            node_id: id(node_id),
            reason: write_enum::<manager::node_stopping::Reason>(*reason),
            detail: detail.clone(),
            provider_code: provider_code.clone(),
        }),
        StreamEvent::NodeStopped { node_id } => Event::NodeStopped(manager::NodeStopped {
            node_id: id(node_id),
            detail: String::new(),
            provider_code: String::new(),
        }),
        StreamEvent::ProviderHealthChange(health) => Event::ProviderHealthChange(health.into()),
        StreamEvent::JobInfo(info) => Event::JobInfo(info.into()),
        StreamEvent::InitialDataComplete(health) => {
            Event::InitialDataComplete(manager::InitialDataComplete {
                health: write_list(health),
            })
        }
        StreamEvent::BundleActive(bundle) => Event::BundleActive(manager::BundleActive {
            bundle: Some((&**bundle).into()),
        }),
        StreamEvent::BundleUpdated(bundle) => Event::BundleUpdated(manager::BundleUpdated {
            bundle: Some((&**bundle).into()),
        }),
        StreamEvent::BundleDeleted(bundle_id) => Event::BundleDeleted(manager::BundleDeleted {
            bundle_id: bundle_id.as_str().to_owned(),
        }),
        StreamEvent::NodeInventorySnapshot { node_id, inventory } => {
            Event::NodeInventorySnapshot(manager::NodeInventorySnapshot {
                node_id: id(node_id),
                inventory: Some((&**inventory).into()),
            })
        }
        StreamEvent::NodeInventoryUpdated { node_id, inventory } => {
            Event::NodeInventoryUpdated(manager::NodeInventoryUpdated {
                node_id: id(node_id),
                inventory: Some((&**inventory).into()),
            })
        }
        StreamEvent::NodeReachabilityChanged { node_id, reachable } => {
            Event::NodeReachabilityChanged(manager::NodeReachabilityChanged {
                node_id: id(node_id),
                reachable: *reachable,
            })
        }
        StreamEvent::NodeTagsUpdated { metadata, revision } => {
            Event::NodeTagsUpdated(manager::NodeTagsUpdated {
                node_metadata: Some((&**metadata).into()),
                revision: *revision,
            })
        }
        StreamEvent::NodeInterruptionNotice {
            node_id,
            kind,
            deadline,
            noticed_at,
        } => Event::NodeInterruptionNotice(manager::NodeInterruptionNotice {
            node_id: id(node_id),
            kind: write_enum::<manager::InterruptionKind>(*kind),
            deadline: deadline.map(write_time),
            noticed_at: Some(write_time(*noticed_at)),
        }),
        StreamEvent::ImagesPrefetched {
            node_id,
            batch_id,
            results,
        } => Event::ImagesPrefetched(manager::ImagesPrefetched {
            node_id: id(node_id),
            batch_id: batch_id.clone(),
            results: write_list(results),
        }),
        StreamEvent::JobRejected {
            node_id,
            key,
            start_id,
            code,
            reason,
            inventory,
        } => Event::JobRejected(manager::JobRejected {
            node_id: id(node_id),
            job_key: Some(key.into()),
            start_id: start_id.as_str().to_owned(),
            code: write_enum::<manager::RejectionCode>(*code),
            reason: reason.clone(),
            inventory: inventory.as_deref().map(Into::into),
        }),
        StreamEvent::JobPrepared {
            key,
            node_id,
            start_id,
        } => Event::JobPrepared(manager::JobPrepared {
            job_key: Some(key.into()),
            node_id: id(node_id),
            start_id: start_id.as_str().to_owned(),
        }),
        StreamEvent::Migration {
            key,
            migration_id,
            signal,
        } => {
            let news = MigrationNews {
                key: key.clone(),
                migration_id: migration_id.clone(),
                signal: signal.clone(),
            };
            MigrationMessage::from(&news).into()
        }
        StreamEvent::LeaseChanged(lease) => {
            let lease = write_lease(lease).map_err(|error| error.under("lease_changed.lease"))?;
            Event::LeaseChanged(manager::LeaseChanged { lease: Some(lease) })
        }
        StreamEvent::LeasesPaused {
            paused,
            reason,
            by,
            since,
        } => Event::LeasesPaused(manager::LeasesPaused {
            paused: *paused,
            reason: reason.clone(),
            by: by.clone(),
            since: since.map(write_time),
        }),
        StreamEvent::AuditAppended(entry) => {
            let entry = write_audit(entry).map_err(|error| error.under("audit_appended.entry"))?;
            Event::AuditAppended(manager::AuditAppended { entry: Some(entry) })
        }
        StreamEvent::Heartbeat { server_time } => Event::Heartbeat(manager::Heartbeat {
            seq,
            server_time: Some(write_time(*server_time)),
        }),
        StreamEvent::EventsLost { kind, count } => Event::EventsLost(manager::EventsLost {
            kind: kind.clone(),
            count: *count,
        }),
        StreamEvent::StreamResumed {
            complete,
            reason,
            from_seq,
        } => Event::StreamResumed(manager::StreamResumed {
            complete: *complete,
            reason: reason.clone(),
            from_seq: *from_seq,
        }),
        StreamEvent::Unknown { number } => {
            let message = format!("is number {number}, of which nothing but the number is known");
            return Err(WireError::new("unknown_event", "event", message));
        }
    })
}
