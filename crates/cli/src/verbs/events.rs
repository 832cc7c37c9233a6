//! `greenroom events`: what the Manager's stream tells, as it happens.

use clap::Args;
use greenroom_sdk::types::job::JobInfoKind;
use greenroom_sdk::types::stream::{MigrationSignal, Stamped, StreamEvent};
use greenroom_sdk::{EventSettings, StreamItem};

use super::connect::Manager;
use super::history::{self, Right};
use crate::failure::{Failure, Outcome};
use crate::output::say;

/// Tell what happens. Without --follow: the state as it stands, as events.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Go on with changes until interrupted.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    manager: Manager,
}

// === impl Events ===

impl Events {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        let (state, mut events) = client.event_stream(EventSettings::default()).await?;
        if !self.follow {
            for event in state.events() {
                output.either(&event, || line(&event))?;
            }
            return Ok(());
        }
        say("following what happens from now on; Ctrl-C ends it");
        loop {
            match events.next().await {
                Some(StreamItem::Event(Stamped {
                    event: StreamEvent::Heartbeat { .. },
                    ..
                })) => {}
                Some(StreamItem::Event(stamped)) => output.either(&stamped, || {
                    format!("{}  {}", stamped.at, line(&stamped.event))
                })?,
                Some(StreamItem::Resnapshot(state)) => output
                    .either(&serde_json::json!({"resnapshot": state.seq}), || {
                        "some events were missed; the list goes on from now".to_owned()
                    })?,
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
    }
}

/// One event in plain words.
fn line(event: &StreamEvent) -> String {
    match event {
        StreamEvent::NodeRunning {
            metadata,
            reachable,
            ..
        } => {
            let state = if *reachable { "running" } else { "unreachable" };
            format!("node {} is {state}", metadata.node_id)
        }
        StreamEvent::JobActive(job)
        | StreamEvent::JobPending(job)
        | StreamEvent::JobUpdated(job)
        | StreamEvent::JobOutOfWindow(job) => {
            let right = match job.job.lease {
                Some(_) => Right::Protected,
                None => Right::Free,
            };
            let newest = history::newest(&job.history, right);
            format!("job {}: {newest}", job.job.job_id)
        }
        StreamEvent::JobDeleted(job_id) => format!("job {job_id} is gone"),
        StreamEvent::NodeStarting { metadata, .. } => {
            format!("node {} is starting", metadata.node_id)
        }
        StreamEvent::NodeStarted { metadata, .. } => format!("node {} runs", metadata.node_id),
        StreamEvent::NodeStopping {
            node_id,
            reason,
            detail,
            ..
        } => {
            let detail = if detail.is_empty() {
                String::new()
            } else {
                format!(": {detail}")
            };
            format!("node {node_id} is stopping ({reason:?}){detail}")
        }
        StreamEvent::NodeStopped { node_id } => format!("node {node_id} is gone"),
        StreamEvent::ProviderHealthChange(health) => format!("provider health: {health:?}"),
        StreamEvent::JobInfo(info) => {
            let text = match &info.kind {
                JobInfoKind::ServiceStarted(service) => format!("service {service} started"),
                JobInfoKind::ServiceRestarting(service) => format!("service {service} restarts"),
                JobInfoKind::ContainerEvent { service, text } => {
                    format!("service {service}: {text}")
                }
                JobInfoKind::Stage { text, .. } | JobInfoKind::Status { text, .. } => text.clone(),
            };
            format!("{}: {text}", info.key)
        }
        StreamEvent::InitialDataComplete(_) => "that is the state; changes follow".to_owned(),
        StreamEvent::BundleActive(status) | StreamEvent::BundleUpdated(status) => {
            let bundle = &status.bundle;
            format!(
                "bundle {} is {:?}, revision {}",
                bundle.bundle_id, bundle.state, bundle.revision
            )
        }
        StreamEvent::BundleDeleted(bundle_id) => format!("bundle {bundle_id} is gone"),
        StreamEvent::NodeInventorySnapshot { node_id, inventory }
        | StreamEvent::NodeInventoryUpdated { node_id, inventory } => format!(
            "node {node_id} has {:.2} of {:.2} vCPU reserved",
            inventory.reserved_capacity, inventory.total_capacity
        ),
        StreamEvent::NodeReachabilityChanged {
            node_id,
            reachable: true,
        } => {
            format!("node {node_id} is reached again")
        }
        StreamEvent::NodeReachabilityChanged {
            node_id,
            reachable: false,
        } => {
            format!("node {node_id} is not reached")
        }
        StreamEvent::NodeTagsUpdated { metadata, .. } => {
            format!("node {} has tags {:?}", metadata.node_id, metadata.tags)
        }
        StreamEvent::NodeInterruptionNotice {
            node_id,
            kind,
            deadline,
            ..
        } => {
            let when = deadline.map_or_else(String::new, |at| format!(" at {at}"));
            format!("node {node_id} will be taken{when} ({kind:?})")
        }
        StreamEvent::ImagesPrefetched {
            node_id, results, ..
        } => {
            let held = results.iter().filter(|result| result.ok).count();
            format!("node {node_id} pulled {held} of {} images", results.len())
        }
        StreamEvent::JobRejected {
            node_id,
            key,
            reason,
            ..
        } => {
            format!("node {node_id} rejected {key}: {reason}")
        }
        StreamEvent::JobPrepared { key, node_id, .. } => format!("{key} is prepared on {node_id}"),
        StreamEvent::Migration {
            key,
            migration_id,
            signal,
        } => {
            format!("migration {migration_id}, {key}: {}", signal_name(signal))
        }
        StreamEvent::LeaseChanged(lease) => format!("lease of {} is {}", lease.key, lease.state),
        StreamEvent::LeasesPaused {
            paused, reason, by, ..
        } => {
            let what = if *paused { "paused" } else { "resumed" };
            format!("leases {what} by {by}: {reason}")
        }
        StreamEvent::AuditAppended(entry) => {
            format!("audit {}: {} by {}", entry.seq, entry.kind, entry.actor)
        }
        StreamEvent::Heartbeat { server_time } => format!("heartbeat {server_time}"),
        StreamEvent::EventsLost { kind, count } => {
            format!("{count} events of kind {kind} were dropped")
        }
        StreamEvent::StreamResumed {
            complete, reason, ..
        } => {
            if *complete {
                "resumed".to_owned()
            } else {
                format!("not resumed: {reason}")
            }
        }
        StreamEvent::Unknown { number } => format!("an event of a newer Manager (kind {number})"),
    }
}

const fn signal_name(signal: &MigrationSignal) -> &'static str {
    match signal {
        MigrationSignal::State(_) => "the source told its state",
        MigrationSignal::Refused(_) => "the source refuses",
        MigrationSignal::TargetReady(_) => "the target is ready",
        MigrationSignal::SourceStoppedOutput(_) => "the source ended its output",
        MigrationSignal::TargetApplied(_) => "the target took over",
        MigrationSignal::Aborted { .. } => "given up",
    }
}
