//! Workers of the published protocol (WORK-04). They name an instance by its key alone, acknowledge
//! nothing and know three orders. What they say is completed here from the record, so that the ledger
//! sees one kind of worker.

use greenroom_ledger::{Hello, HelloInstance, Instance, Ledger, Report, WorkerOrder};
use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::read_ports;
use greenroom_proto::worker as wire;
use greenroom_types::call::InstanceRef;
use greenroom_types::job::StopReason;
use greenroom_types::node::{InstanceKey, InstanceState};
use greenroom_types::{NodeId, StartId};

/// Which of several instances of one key on a node a report is about.
#[derive(Clone, Copy)]
enum About {
    /// One that ends, before the one that took its key.
    Ending,
    /// The one that holds the key.
    Live,
}

/// The hello, with a start id for each job that runs.
pub(super) fn read_hello(
    ledger: &Ledger,
    node_id: &NodeId,
    hello: wire::WorkerHello,
) -> Result<Hello, WireError> {
    let mut instances = Vec::new();
    for running in hello.running_jobs {
        let job = running
            .job
            .ok_or_else(|| WireError::missing("running_jobs.job"))?;
        let job_id = job.job_id.unwrap_or_default().job_id;
        if job_id.is_empty() {
            return Err(WireError::missing("running_jobs.job.job_id"));
        }
        let key = InstanceKey::new(job_id.into(), job.role.into());
        let start_id = start_of(ledger, node_id, &key, About::Live);
        instances.push(HelloInstance {
            instance: InstanceRef { key, start_id },
            state: InstanceState::Running,
            ports: read_ports(
                running.service_port_mappings,
                "running_jobs.service_port_mappings",
            )?,
            fence: 0,
        });
    }
    Ok(Hello {
        instances,
        ..Hello::default()
    })
}

/// Gives a report the start id that it lacks.
pub(super) fn complete(ledger: &Ledger, node_id: &NodeId, report: &mut Report) {
    let (instance, about) = match report {
        Report::Started { instance, .. } | Report::Failed { instance, .. } => {
            (instance, About::Live)
        }
        Report::Stopped { instance, .. } => (instance, About::Ending),
        // The rest is no part of the published protocol.
        _ => return,
    };
    instance.start_id = start_of(ledger, node_id, &instance.key, about);
}

/// The start id of what is known to run there under a key, for news of it.
pub(super) fn live_start(ledger: &Ledger, node_id: &NodeId, key: &InstanceKey) -> StartId {
    start_of(ledger, node_id, key, About::Live)
}

/// An order in the words that the worker knows. To end is to stop what runs; what it has no word for is
/// refused where it is asked for, or of no use to it.
pub(super) fn put(ledger: &Ledger, node_id: &NodeId, order: WorkerOrder) -> Vec<WorkerOrder> {
    match order {
        WorkerOrder::Provision(_) | WorkerOrder::UpdateJob(_) | WorkerOrder::Stop { .. } => {
            vec![order]
        }
        WorkerOrder::Shutdown { grace_ms, .. } => ledger
            .instances_on(node_id)
            .map(|instance| WorkerOrder::Stop {
                instance: instance.instance_ref(),
                grace_ms,
                reason: StopReason::NodeStopped,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A key of which nothing is known there gets a name that no start has: it is a stray (JOB-20).
fn start_of(ledger: &Ledger, node_id: &NodeId, key: &InstanceKey, about: About) -> StartId {
    let of_key = || {
        ledger
            .instances_on(node_id)
            .filter(|instance| instance.key == *key)
    };
    let holds = |instance: &&Instance| match about {
        About::Live => instance.is_live(),
        About::Ending => !instance.is_live() || instance.stop.is_some(),
    };
    of_key()
        .find(holds)
        .or_else(|| of_key().next())
        .map_or_else(
            || StartId::new(format!("published/{key}")),
            |instance| instance.start_id.clone(),
        )
}
