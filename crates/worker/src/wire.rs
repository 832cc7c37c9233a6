//! Between messages of the controlling stream and what the core knows.
//!
//! Reading gives an order or a reason why there is none; orders of groups that this worker does not
//! carry out are named, never guessed at. Writing never fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::write_ports;
use greenroom_proto::convert::worker::{
    InterruptionNotice, MigrationMessage, MigrationNews, Rejection, StartOrder,
};
use greenroom_proto::worker::node_controller_message::Message as Controller;
use greenroom_proto::worker::worker_message::Message as Worker;
use greenroom_proto::{common, worker as wire};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{JobInfo, PortMappings};
use greenroom_types::node::{InstanceKey, RejectionCode};
use greenroom_types::{MigrationId, Millis, Payload, StartId, Wall};

use crate::access::{Given, Held};
use crate::agent::{HeldLease, LeaseItem};
use crate::handover::Step;
use crate::inventory::Load;
use crate::order::{Info, Order, Refusal, Report, Said, StartSpec, StopCause};

/// Grace of a stop that names none (JOB-23).
const GRACE_DEFAULT: Millis = Millis(10_000);
/// Grace of a shutdown that names none (MNODE-14).
const SHUTDOWN_GRACE_DEFAULT: Millis = Millis(5_000);
/// No grace is longer (JOB-23).
const GRACE_MAX: u64 = 600_000;

/// A message of the Manager, read.
#[derive(Debug)]
pub(crate) enum Heard {
    Order(Order),
    /// Reports up to this one are durable.
    Acked(u64),
    /// Something to be kept and offered to jobs.
    Access(Given),
    /// The answer to a refresh of leases.
    LeaseAnswer {
        nonce: u64,
        items: Vec<LeaseItem>,
    },
    /// Whether leases are paused.
    LeasesPaused(bool),
    /// Nothing this worker carries out.
    Unsupported(&'static str),
    /// It says nothing that can be acted upon.
    Faulty(WireError),
}

/// Reads a message.
pub(crate) fn read(message: wire::NodeControllerMessage) -> Heard {
    let start_id = Some(StartId::new(&message.start_id)).filter(|id| !id.is_empty());
    let grace = Millis(message.grace_ms.unwrap_or(GRACE_DEFAULT.0).min(GRACE_MAX));
    let cause = StopCause::of(&message.reason);
    let Some(body) = message.message else {
        return Heard::Unsupported("a message of a newer kind");
    };
    let read = match body {
        Controller::ProvisionJob(job) => return read_provision(job),
        Controller::StopJob(key) => key.try_into().map(|key| {
            Heard::Order(Order::Stop {
                key,
                start_id,
                grace,
                cause,
            })
        }),
        Controller::StartPreparedJob(key) => key
            .try_into()
            .map(|key| Heard::Order(Order::StartPrepared { key, start_id })),
        Controller::UpdateJob(job) => StartOrder::try_from(job).map(|job| {
            let start_id =
                start_id.or_else(|| Some(job.start_id.clone()).filter(|id| !id.is_empty()));
            let key = job.key();
            Heard::Order(Order::Update {
                key,
                start_id,
                description: job.description,
                tags: job.tags,
                configurations: job
                    .services
                    .into_iter()
                    .map(|service| (service.name, service.configuration))
                    .collect(),
            })
        }),
        Controller::ReportAck(ack) => Ok(Heard::Acked(ack.report_id)),
        Controller::Shutdown(shutdown) => {
            let grace = match shutdown.grace_ms {
                0 => SHUTDOWN_GRACE_DEFAULT,
                ms => Millis(ms.min(GRACE_MAX)),
            };
            Ok(Heard::Order(Order::Shutdown {
                grace,
                park: shutdown.park,
            }))
        }
        Controller::PrefetchImages(batch) => Ok(Heard::Order(Order::Prefetch {
            batch_id: batch.batch_id,
            image_refs: batch.image_refs,
        })),
        Controller::Tags(tags) => Ok(Heard::Order(Order::Tags(tags.tags))),
        Controller::HelloResponse(_) => return Heard::Unsupported("a second hello_response"),
        Controller::MigrationGetState(it) => read_migration(it, start_id, |_, _| Step::GetState),
        Controller::MigrationCutoverReady(it) => {
            read_migration(it, start_id, |payload, _| Step::StopOutput(payload))
        }
        Controller::MigrationCutoverApply(it) => {
            read_migration(it, start_id, |payload, _| Step::Begin(payload))
        }
        Controller::MigrationAbort(it) => {
            read_migration(it, start_id, |_, reason| Step::Abort(reason))
        }
        Controller::LeaseAnswer(answer) => Ok(read_lease_answer(answer)),
        Controller::LeasesPaused(pause) => Ok(Heard::LeasesPaused(pause.paused)),
        Controller::DiscoveryAccess(it) => Ok(Heard::Access(Given::Discovery(it))),
        Controller::AccessReplica(it) => Ok(Heard::Access(Given::Replica(it))),
        Controller::ControlPlanes(it) => Ok(Heard::Access(Given::Planes(it))),
    };
    read.unwrap_or_else(Heard::Faulty)
}

fn read_lease_answer(answer: wire::LeaseAnswer) -> Heard {
    let items = answer.leases.into_iter().map(|item| LeaseItem {
        start_id: StartId::new(item.start_id),
        fence: item.fence,
        ttl: Millis(item.ttl_ms),
        superseded: item.superseded,
    });
    Heard::LeaseAnswer {
        nonce: answer.sent_nonce,
        items: items.collect(),
    }
}

fn read_migration(
    order: wire::MigrationOrder,
    start_id: Option<StartId>,
    step: fn(Payload, String) -> Step,
) -> Result<Heard, WireError> {
    let key = order.job_key.ok_or_else(|| WireError::missing("job_key"))?;
    Ok(Heard::Order(Order::Migration {
        key: key.try_into()?,
        start_id,
        migration_id: MigrationId::new(order.migration_id),
        step: step(order.payload.into(), order.reason),
    }))
}

fn read_provision(job: wire::WorkerJob) -> Heard {
    let gpu_index = job.gpu_index;
    let key = InstanceKey::new(
        job.job_id
            .as_ref()
            .map(|id| id.job_id.as_str())
            .unwrap_or_default()
            .into(),
        job.role.as_str().into(),
    );
    let start_id = StartId::new(&job.start_id);
    let order = match StartOrder::try_from(job) {
        Ok(order) => order,
        Err(error) if key.job_id.is_empty() || key.role.is_empty() => return Heard::Faulty(error),
        Err(error) => {
            let refusal = Refusal::new(RejectionCode::InvalidSpec, error.to_string());
            return Heard::Order(Order::Unreadable {
                key,
                start_id,
                refusal,
            });
        }
    };
    Heard::Order(Order::Provision(Box::new(StartSpec {
        key: order.key(),
        start_id: order.start_id,
        description: order.description,
        tags: order.tags,
        services: order.services,
        runtime_role: order.runtime_role,
        defer_start: order.defer_start,
        gpu_index,
        requirements: order.requirements.unwrap_or_default(),
        leased: order.lease.is_some(),
        lease_ttl: order.lease.map(|lease| lease.ttl_ms).unwrap_or_default(),
        fence: order.fence,
        job_socket: order.job_socket || order.handover,
        migration_id: order.migration_id,
        migration_state: order.migration_state,
        migration_state_lost: order.migration_state_lost,
        provided: order.provides,
        export_tags: order.export_tags,
        secret_env: order.secret_env,
        media_image: order.media_image,
        media_parameters: order.media_parameters,
    })))
}

/// A report, with the picture that goes with a rejection.
pub(crate) fn write_report(report: &Report, picture: &NodeInventory) -> wire::WorkerMessage {
    let key = || Some((&report.key).into());
    let body = match &report.said {
        Said::Accepted => Worker::JobAccepted((&report.key).into()),
        Said::Prepared { ports } => Worker::JobPrepared(wire::WorkerJobPrepared {
            job_key: key(),
            service_port_mappings: write_ports(ports),
        }),
        Said::Started { ports } => Worker::JobStarted(wire::WorkerJobStarted {
            job_key: key(),
            service_port_mappings: write_ports(ports),
        }),
        Said::Stopped { .. } => Worker::JobStopped((&report.key).into()),
        Said::Failed { reason } => Worker::JobFailed(wire::WorkerJobFailed {
            job_key: key(),
            reason: reason.clone(),
        }),
        Said::Rejected { code, detail } => {
            let picture = Some(Arc::new(picture.clone()));
            let rejection = Rejection::new(report.key.clone(), *code, detail.clone(), picture);
            Worker::JobRejected((&rejection).into())
        }
        Said::Migration {
            migration_id,
            signal,
        } => {
            let news = MigrationNews {
                key: report.key.clone(),
                migration_id: migration_id.clone(),
                signal: signal.clone(),
            };
            MigrationMessage::from(&news).into()
        }
        Said::Interrupted {
            what,
            deadline,
            seen_at,
        } => {
            let notice = InterruptionNotice {
                kind: *what,
                deadline: *deadline,
                seen_at: *seen_at,
            };
            Worker::InterruptionNotice((&notice).into())
        }
        Said::Prefetched { batch_id, results } => {
            Worker::ImagesPrefetched(wire::WorkerImagesPrefetched {
                batch_id: batch_id.clone(),
                results: results.iter().map(Into::into).collect(),
            })
        }
    };
    wire::WorkerMessage {
        message: Some(body),
        start_id: report.start_id.as_str().to_owned(),
        report_id: report.id,
        completed: report.said == Said::Stopped { completed: true },
    }
}

pub(crate) fn write_info(info: Info, at: Wall) -> wire::WorkerMessage {
    let Info {
        key,
        start_id,
        kind,
    } = info;
    let text = start_id.as_str().to_owned();
    let info = JobInfo {
        key,
        start_id,
        at,
        kind,
    };
    message(Worker::JobInfo((&info).into()), text)
}

pub(crate) fn write_inventory(picture: &NodeInventory) -> wire::WorkerMessage {
    message(Worker::Inventory(picture.into()), String::new())
}

pub(crate) fn write_health(load: Load) -> wire::WorkerMessage {
    let measured_load = Some(write_load(load));
    message(
        Worker::Health(wire::Health { measured_load }),
        String::new(),
    )
}

pub(crate) fn write_goodbye(reason: &str) -> wire::WorkerMessage {
    message(
        Worker::Goodbye(wire::Goodbye {
            reason: reason.to_owned(),
        }),
        String::new(),
    )
}

pub(crate) fn write_access_ack(held: &Held) -> wire::WorkerMessage {
    message(
        Worker::AccessAck(wire::AccessAck {
            replica_version: held.replica_version,
            discovery_version: held.discovery_version,
        }),
        String::new(),
    )
}

pub(crate) fn write_refresh(nonce: u64, leases: &[HeldLease]) -> wire::WorkerMessage {
    let leases = leases.iter().map(|held| wire::HeldLease {
        job_key: Some((&held.key).into()),
        start_id: held.start_id.as_str().to_owned(),
        fence: held.fence,
    });
    let refresh = wire::LeaseRefresh {
        leases: leases.collect(),
        sent_nonce: nonce,
    };
    message(Worker::LeaseRefresh(refresh), String::new())
}

pub(crate) fn write_pause_ack(paused: bool) -> wire::WorkerMessage {
    message(
        Worker::LeasesPauseAck(wire::LeasesPauseAck { paused }),
        String::new(),
    )
}

pub(crate) fn write_hello(hello: wire::WorkerHello) -> wire::WorkerMessage {
    message(Worker::Hello(hello), String::new())
}

pub(crate) fn write_load(load: Load) -> wire::Capacity {
    wire::Capacity {
        v_cpus: load.vcpus as f32,
        memory: load.memory_bytes as f32,
        ..wire::Capacity::default()
    }
}

/// A job that runs, as the published hello tells it.
pub(crate) fn write_running(spec: &StartSpec, ports: &PortMappings) -> wire::WorkerRunningJob {
    let mappings: BTreeMap<String, common::ResolvedPortMappings> = write_ports(ports);
    let order = StartOrder {
        job_id: spec.key.job_id.clone(),
        role: spec.key.role.clone(),
        description: spec.description.clone(),
        tags: spec.tags.clone(),
        start_id: spec.start_id.clone(),
        ..StartOrder::default()
    };
    wire::WorkerRunningJob {
        job: Some((&order).into()),
        service_port_mappings: mappings,
    }
}

fn message(body: Worker, start_id: String) -> wire::WorkerMessage {
    wire::WorkerMessage {
        message: Some(body),
        start_id,
        report_id: 0,
        completed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(body: Controller) -> wire::NodeControllerMessage {
        wire::NodeControllerMessage {
            message: Some(body),
            ..Default::default()
        }
    }

    fn key() -> common::ActiveJobKey {
        (&InstanceKey::new("j".into(), "primary".into())).into()
    }

    // spec: JOB-23
    #[test]
    fn a_stop_without_grace_has_ten_seconds_and_none_has_more_than_ten_minutes() {
        let grace = |grace_ms| {
            let stop = order(Controller::StopJob(key()));
            match read(wire::NodeControllerMessage { grace_ms, ..stop }) {
                Heard::Order(Order::Stop {
                    grace,
                    start_id: None,
                    ..
                }) => grace.0,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(grace(None), 10_000);
        assert_eq!(grace(Some(0)), 0);
        assert_eq!(grace(Some(u64::MAX)), 600_000);
    }

    // spec: WORK-33
    #[test]
    fn a_start_with_an_unknown_enum_is_an_invalid_spec() {
        let service = common::Service {
            name: "a".to_owned(),
            restart: 99,
            ..Default::default()
        };
        let job = wire::WorkerJob {
            job_id: Some(common::JobId {
                job_id: "j".to_owned(),
            }),
            role: "primary".to_owned(),
            start_id: "s".to_owned(),
            services: vec![service],
            ..Default::default()
        };
        let heard = read(order(Controller::ProvisionJob(job)));
        let Heard::Order(Order::Unreadable { key, refusal, .. }) = heard else {
            panic!("{heard:?}");
        };
        assert_eq!(key.to_string(), "j/primary");
        assert_eq!(refusal.code, RejectionCode::InvalidSpec);
        assert!(
            refusal.detail.contains("services[0].restart"),
            "{}",
            refusal.detail
        );
    }

    #[test]
    fn orders_of_groups_that_are_not_carried_out_are_named() {
        let heard = read(order(Controller::HelloResponse(
            wire::WorkerHelloResponse::default(),
        )));
        assert!(
            matches!(heard, Heard::Unsupported("a second hello_response")),
            "{heard:?}"
        );
        let empty = wire::NodeControllerMessage::default();
        assert!(matches!(read(empty), Heard::Unsupported(_)));
        let nobody = order(Controller::StopJob(common::ActiveJobKey::default()));
        assert!(matches!(read(nobody), Heard::Faulty(_)));
    }
}
