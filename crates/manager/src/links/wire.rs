//! Between the ledger's orders and reports and the messages of a worker's stream.

use greenroom_ledger::{
    Hello, HelloInstance, LEASES_MINOR, MigrationStep, Refreshed, Report, WorkerJob, WorkerOrder,
};
use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::read_ports;
use greenroom_proto::convert::worker::{
    InterruptionNotice, MigrationMessage, MigrationNews, Rejection, StartOrder, WorkerInstance,
};
use greenroom_proto::worker::node_controller_message::Message as Out;
use greenroom_proto::worker::worker_message::Message as In;
use greenroom_proto::worker::{self as wire, NodeControllerMessage, WorkerMessage};
use greenroom_types::StartId;
use greenroom_types::call::InstanceRef;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::StopReason;
use greenroom_types::node::{InstanceKey, RunningNodeMetadata};

/// The minor of the protocol with which access roles and lists of control planes came (HELLO-05).
pub(super) const ACCESS_MINOR: u32 = 8;
use crate::leases::Held;

/// What a worker said after its hello.
#[derive(Debug)]
pub(super) enum Said {
    /// To be recorded.
    Report { report_id: u64, report: Box<Report> },
    /// To be passed on (EVT-09).
    Info(greenroom_types::job::JobInfo),
    /// Leases are refreshed, to be answered under this number (LEASE-03).
    Refresh { nonce: u64, leases: Vec<Held> },
    /// It takes leases for paused, or does not (LEASE-10).
    Confirmed { paused: bool },
    /// A sign of life.
    Health,
    /// What it holds of the access roles and of the discovery fleet.
    Access {
        replica_version: u64,
        discovery_version: u64,
    },
    /// A message for a part of the protocol that this version does not serve.
    Unserved,
}

/// The message that carries an order; none for one whose message depends on what the worker holds
/// and on secrets, which `access.rs` writes.
pub(super) fn write_order(order: &WorkerOrder) -> Option<NodeControllerMessage> {
    let mut out = NodeControllerMessage::default();
    out.message = Some(match order {
        WorkerOrder::Provision(job) => Out::ProvisionJob(write_job(job)),
        WorkerOrder::UpdateJob(job) => Out::UpdateJob(write_job(job)),
        WorkerOrder::StartPrepared(instance) => {
            out.start_id = instance.start_id.to_string();
            Out::StartPreparedJob((&instance.key).into())
        }
        WorkerOrder::Stop {
            instance,
            grace_ms,
            reason,
        } => {
            out.start_id = instance.start_id.to_string();
            out.grace_ms = Some(grace_ms.0);
            out.reason = reason_word(*reason).to_owned();
            Out::StopJob((&instance.key).into())
        }
        WorkerOrder::PrefetchImages {
            batch_id,
            image_refs,
        } => Out::PrefetchImages(wire::PrefetchImages {
            batch_id: batch_id.clone(),
            image_refs: image_refs.clone(),
        }),
        WorkerOrder::Migration {
            instance,
            migration_id,
            step,
        } => {
            out.start_id = instance.start_id.to_string();
            let order = |payload: &[u8], reason: &str| wire::MigrationOrder {
                job_key: Some((&instance.key).into()),
                migration_id: migration_id.to_string(),
                payload: payload.to_vec(),
                reason: reason.to_owned(),
            };
            match step {
                MigrationStep::GetState => Out::MigrationGetState(order(&[], "")),
                MigrationStep::CutoverReady(payload) => {
                    Out::MigrationCutoverReady(order(payload.bytes(), ""))
                }
                MigrationStep::CutoverApply(payload) => {
                    Out::MigrationCutoverApply(order(payload.bytes(), ""))
                }
                MigrationStep::Abort(reason) => Out::MigrationAbort(order(&[], reason)),
            }
        }
        WorkerOrder::ReportAck { report_id } => Out::ReportAck(wire::ReportAck {
            report_id: *report_id,
        }),
        WorkerOrder::Shutdown { grace_ms, park } => Out::Shutdown(wire::Shutdown {
            grace_ms: grace_ms.0,
            park: *park,
        }),
        WorkerOrder::Tags(tags) => Out::Tags(wire::NodeTags { tags: tags.clone() }),
        WorkerOrder::Discovery(_) | WorkerOrder::AccessReplica(_) => return None,
        WorkerOrder::LeasesPaused { paused, reason } => Out::LeasesPaused(wire::LeasesPaused {
            paused: *paused,
            reason: reason.clone(),
        }),
    });
    Some(out)
}

/// The minor of the protocol with which an order came (HELLO-05).
pub(super) const fn minor_of(order: &WorkerOrder) -> u32 {
    match order {
        WorkerOrder::PrefetchImages { .. } => 9,
        WorkerOrder::Migration { .. } => 3,
        WorkerOrder::Discovery(_) => 4,
        WorkerOrder::AccessReplica(_) => ACCESS_MINOR,
        WorkerOrder::LeasesPaused { .. } => LEASES_MINOR,
        // Without its lease it would run unguarded.
        WorkerOrder::Provision(job) if job.lease.is_some() => LEASES_MINOR,
        _ => 0,
    }
}

/// The answer to a refresh.
pub(super) fn write_lease_answer(
    nonce: u64,
    answers: &[(Held, Refreshed)],
) -> NodeControllerMessage {
    let items = answers.iter().map(|(held, answer)| wire::LeaseAnswerItem {
        job_key: Some((&held.instance.key).into()),
        start_id: held.instance.start_id.to_string(),
        fence: held.fence,
        ttl_ms: match answer {
            Refreshed::For(ttl) => ttl.0,
            Refreshed::Superseded => 0,
        },
        superseded: *answer == Refreshed::Superseded,
    });
    NodeControllerMessage {
        message: Some(Out::LeaseAnswer(wire::LeaseAnswer {
            sent_nonce: nonce,
            leases: items.collect(),
        })),
        ..NodeControllerMessage::default()
    }
}

fn write_job(job: &WorkerJob) -> wire::WorkerJob {
    let InstanceRef { key, start_id } = &job.instance;
    let order = StartOrder {
        defer_start: job.defer_start,
        runtime_role: job.runtime_role.clone(),
        gpu_index: job.gpu_index,
        migration_id: job.migration_id.clone(),
        target_is_migration: job.migration_id.is_some(),
        media_image: job.media_image.clone(),
        requirements: Some(job.requirements.clone()),
        lease: job.lease,
        fence: job.fence,
        ..StartOrder::of(&job.job, key.role.clone(), start_id.clone())
    };
    (&order).into()
}

/// Why a worker is told to stop an instance, in the words of SOCK-14.
const fn reason_word(reason: StopReason) -> &'static str {
    match reason {
        StopReason::UserRequested => "USER",
        StopReason::NodeStopped | StopReason::NodeTerminated => "NODE",
        StopReason::Migration => "MIGRATION",
        StopReason::LeaseLost => "LEASE",
        StopReason::BundleChanged => "BUNDLE",
        StopReason::UnknownJob => "UNKNOWN",
        StopReason::JobFailed => "FAILED",
    }
}

/// The ledger's form of a hello.
pub(super) fn read_hello(hello: wire::WorkerHello) -> Result<Hello, WireError> {
    let inventory = hello
        .inventory
        .map(|picture| NodeInventory::try_from(picture).map_err(|error| error.under("inventory")))
        .transpose()?;
    let instances = hello
        .instances
        .into_iter()
        .map(|instance| {
            let WorkerInstance {
                key,
                start_id,
                state,
                fence,
                ports,
            } = instance.try_into()?;
            Ok(HelloInstance {
                instance: InstanceRef { key, start_id },
                state,
                ports,
                fence,
            })
        })
        .collect::<Result<_, WireError>>()
        .map_err(|error| error.under("instances"))?;
    Ok(Hello {
        boot_id: hello.boot_id,
        protocol_minor: hello.protocol_minor,
        running: RunningNodeMetadata {
            provider_id: hello.machine_id,
            ..Default::default()
        },
        inventory: inventory.map(Box::new),
        instances,
        last_report_id: hello.last_report_id,
        leases_paused: hello.leases_paused,
    })
}

/// What a message after the hello says.
pub(super) fn read_message(message: WorkerMessage) -> Result<Said, WireError> {
    let WorkerMessage {
        start_id,
        report_id,
        completed,
        message,
    } = message;
    let instance = |key: Option<greenroom_proto::common::ActiveJobKey>| {
        let key = key.ok_or_else(|| WireError::missing("job_key"))?;
        let key = InstanceKey::try_from(key).map_err(|error| error.under("job_key"))?;
        Ok(InstanceRef {
            key,
            start_id: StartId::new(&start_id),
        })
    };
    let report = match message.ok_or_else(|| WireError::missing("message"))? {
        In::Health(_) => return Ok(Said::Health),
        In::JobInfo(info) => {
            return info.try_into().map(Said::Info);
        }
        In::JobAccepted(key) => Report::Accepted(instance(Some(key))?),
        In::JobPrepared(prepared) => Report::Prepared {
            instance: instance(prepared.job_key)?,
            ports: read_ports(prepared.service_port_mappings, "service_port_mappings")?,
        },
        In::JobStarted(started) => Report::Started {
            instance: instance(started.job_key)?,
            ports: read_ports(started.service_port_mappings, "service_port_mappings")?,
        },
        In::JobStopped(key) => Report::Stopped {
            instance: instance(Some(key))?,
            completed,
        },
        In::JobFailed(failed) => Report::Failed {
            instance: instance(failed.job_key)?,
            reason: failed.reason,
        },
        In::JobRejected(rejected) => {
            let Rejection {
                key,
                code,
                detail,
                inventory,
                ..
            } = rejected.try_into()?;
            let instance = InstanceRef {
                key,
                start_id: StartId::new(&start_id),
            };
            let inventory = inventory.map(|picture| Box::new((*picture).clone()));
            Report::Rejected {
                instance,
                code,
                detail,
                inventory,
            }
        }
        In::Inventory(picture) => Report::Inventory(Box::new(picture.try_into()?)),
        In::ImagesPrefetched(batch) => Report::ImagesPrefetched {
            batch_id: batch.batch_id,
            results: batch.results.into_iter().map(Into::into).collect(),
        },
        In::InterruptionNotice(notice) => {
            let InterruptionNotice {
                kind,
                deadline,
                seen_at,
            } = notice.try_into()?;
            Report::Notice {
                kind,
                deadline,
                seen_at,
            }
        }
        In::MigrationState(it) => migration(MigrationMessage::State(it))?,
        In::MigrationTargetReady(it) => migration(MigrationMessage::TargetReady(it))?,
        In::MigrationSourceStoppedOutput(it) => {
            migration(MigrationMessage::SourceStoppedOutput(it))?
        }
        In::MigrationTargetApplied(it) => migration(MigrationMessage::TargetApplied(it))?,
        In::MigrationAborted(it) => migration(MigrationMessage::Aborted(it))?,
        In::Goodbye(goodbye) => Report::Goodbye {
            reason: goodbye.reason,
        },
        In::LeaseRefresh(refresh) => {
            let leases = refresh.leases.into_iter().map(|held| {
                let key = held
                    .job_key
                    .ok_or_else(|| WireError::missing("leases.job_key"))?;
                let key = InstanceKey::try_from(key).map_err(|it| it.under("leases.job_key"))?;
                let start_id = StartId::new(held.start_id);
                Ok(Held {
                    instance: InstanceRef { key, start_id },
                    fence: held.fence,
                })
            });
            return Ok(Said::Refresh {
                nonce: refresh.sent_nonce,
                leases: leases.collect::<Result<_, WireError>>()?,
            });
        }
        In::LeasesPauseAck(ack) => return Ok(Said::Confirmed { paused: ack.paused }),
        In::AccessAck(ack) => {
            return Ok(Said::Access {
                replica_version: ack.replica_version,
                discovery_version: ack.discovery_version,
            });
        }
        In::Hello(_) => return Ok(Said::Unserved),
    };
    Ok(Said::Report {
        report_id,
        report: Box::new(report),
    })
}

fn migration(message: MigrationMessage) -> Result<Report, WireError> {
    let MigrationNews {
        key,
        migration_id,
        signal,
    } = message.try_into()?;
    Ok(Report::Migration {
        key,
        migration_id,
        signal,
    })
}
