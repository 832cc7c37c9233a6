//! `greenroom describe`: all about one thing.

use std::sync::Arc;

use clap::Args;
use greenroom_sdk::FoundJob;
use greenroom_sdk::types::job::JobWithHistory;
use greenroom_sdk::types::node::{NodeState, ServiceRestarts};
use greenroom_sdk::types::{BundleId, NodeId};
use serde::Serialize;

use super::connect::Manager;
use super::control::Control;
use super::fleet::{Fleet, NodeRow};
use super::get::{BundleRow, JobRow, Kind, all_jobs, instance_state, job_state, progress};
use super::history::{self, Right};
use crate::failure::{Failure, Outcome};
use crate::output::Table;

/// Tell everything about one bundle, job or node.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// What it is.
    kind: Kind,
    /// Its id.
    id: String,
    #[command(flatten)]
    manager: Manager,
    #[command(flatten)]
    control: Control,
}

// === impl Describe ===

impl Describe {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        match self.kind {
            Kind::Bundles => {
                let status = client
                    .get_bundle(BundleId::new(&self.id))
                    .await
                    .map_err(|error| match error.reason() {
                        "unknown_bundle" => {
                            Failure::failed(format!("there is no bundle {}", self.id))
                                .because("unknown_bundle")
                                .hint("`greenroom get bundles` lists them")
                        }
                        _ => error.into(),
                    })?;
                let jobs: Vec<JobRow> = all_jobs(&client)
                    .await?
                    .into_iter()
                    .filter(|row| status.jobs.iter().any(|job| job.job_id == row.job_id))
                    .collect();
                let row = BundleRow::of(&status);
                output.either(&row, || describe_bundle(&row, &jobs))
            }
            Kind::Jobs => {
                let job = client.job_history(&self.id).await?.ok_or_else(|| {
                    Failure::failed(format!("there is no job {}", self.id))
                        .because("unknown_job")
                        .hint("`greenroom get jobs` lists them")
                })?;
                let about = client.job_by_id(&self.id).await?.unwrap_or_default();
                let told = DescribedJob {
                    job: &job,
                    restarts: about.restarts.as_ref(),
                };
                // What is known of those that were lost; who may not ask is told less.
                let leases = match job.job.lease {
                    Some(_) => client.get_lease_status().await.ok(),
                    None => None,
                };
                let right = match (&job.job.lease, &leases) {
                    (None, _) => Right::Free,
                    (Some(_), None) => Right::Protected,
                    (Some(_), Some(status)) => Right::Leased(status),
                };
                output.either(&told, || describe_job(&job, &about, right))
            }
            Kind::Nodes => {
                let id = NodeId::new(&self.id);
                let fleet = Fleet::read(&client, &self.control).await?;
                let mut rows = fleet.rows();
                let row = rows
                    .find(|row| row.node.metadata.node_id == id)
                    .ok_or_else(|| {
                        Failure::failed(format!("there is no node {id}"))
                            .because("unknown_node")
                            .hint("`greenroom get nodes` lists them")
                    })?;
                output.either(&row, || describe_node(&row))
            }
        }
    }
}

/// What `describe job` tells as data.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedJob<'a> {
    #[serde(flatten)]
    job: &'a JobWithHistory,
    #[serde(skip_serializing_if = "Option::is_none")]
    restarts: Option<&'a ServiceRestarts>,
}

pub(super) fn describe_bundle(row: &BundleRow<'_>, jobs: &[JobRow]) -> String {
    let status = row.status;
    let bundle = &status.bundle;
    let mut text = format!("bundle    {}\nstate     {}\n", bundle.bundle_id, row.state);
    if let Some(cause) = &row.cause {
        let cause = history::indented(cause.trim_end(), "          ");
        text.push_str(&format!(
            "cause     {cause}\n          nothing of it is placed until it is applied again\n"
        ));
    }
    text.push_str(&format!(
        "pool      {}\ncopies    {}\nrevision  {}\n",
        bundle.pool,
        bundle.copies(),
        bundle.revision
    ));
    if !bundle.description.is_empty() {
        text.push_str(&format!("about     {}\n", bundle.description));
    }
    if let Some(stop_at) = bundle.stop_at {
        text.push_str(&format!("stops at  {stop_at}\n"));
    }
    let mut table = Table::new(&["JOB", "STATE", "INSTANCE", "NODE", "VERDICT"]);
    for row in jobs {
        let verdict = status
            .jobs
            .iter()
            .find(|job| job.job_id == row.job_id)
            .and_then(|job| job.terminal_state.as_ref())
            .map(|verdict| verdict.reason.lines().next().unwrap_or_default().to_owned());
        table.row(vec![
            row.job_id.to_string(),
            row.state.to_owned(),
            row.instance_words(),
            row.node.clone(),
            verdict.unwrap_or_default(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render());
    text
}

fn describe_job(job: &JobWithHistory, about: &FoundJob, right: Right<'_>) -> String {
    let info = about.last_info.as_ref();
    let mut text = format!(
        "job       {}\nstate     {}\n",
        job.job.job_id,
        job_state(job)
    );
    if !job.job.description.is_empty() {
        text.push_str(&format!("about     {}\n", job.job.description));
    }
    if let Some(verdict) = &job.terminal_state {
        let (at, by) = (verdict.at, &verdict.by);
        let reason = history::indented(verdict.reason.trim_end(), "          ");
        text.push_str(&format!("verdict   {at}, by {by}: {reason}\n"));
    }
    if !job.pending_restart.is_empty() {
        text.push_str(&format!(
            "pending   {} at the next start\n",
            job.pending_restart.join(", ")
        ));
    }
    if let Some((at, words)) = info.and_then(|info| Some((info.at, progress(info)?))) {
        text.push_str(&format!("progress  {words} ({at})\n"));
    }
    if let Some(restarts) = &about.restarts {
        let (service, at) = (&restarts.service, restarts.at);
        let words = restarts.words();
        text.push_str(&format!("restarts  service {service} {words} ({at})\n"));
    }
    for service in &job.job.services {
        text.push_str(&format!("service   {}\n", service.name));
    }
    text.push_str("\nhistory\n");
    if job.dropped_entries > 0 {
        text.push_str(&format!(
            "  ({} older entries are no longer held)\n",
            job.dropped_entries
        ));
    }
    for (index, entry) in job.history.iter().enumerate() {
        let line = history::line(&job.history, index, right);
        let line = history::indented(line.trim_end(), "      ");
        text.push_str(&format!("  {}  {line}\n", entry.at));
    }
    text
}

fn describe_node(row: &NodeRow<'_>) -> String {
    let node = row.node;
    let mut text = format!(
        "node      {}\nstate     {}\n",
        node.metadata.node_id,
        row.state()
    );
    if !node.reason.is_empty() {
        text.push_str(&format!("reason    {}\n", node.reason));
    }
    if row.cordoned == Some(true) {
        text.push_str("cordoned  nothing new is placed here until `greenroom uncordon`\n");
    }
    if node.inventory.as_ref().is_some_and(|it| it.cordoned) {
        text.push_str("cordoned  its worker's own settings keep new jobs off it\n");
    }
    if let Some(at) = node.last_seen {
        text.push_str(&format!("seen      {at}\n"));
    }
    for (key, value) in &node.metadata.tags {
        text.push_str(&format!("tag       {key}={value}\n"));
    }
    let inventory = node.inventory.as_ref().map(Arc::as_ref);
    if let Some(inventory) = inventory.filter(|_| node.state != NodeState::Stopped) {
        text.push_str(&format!(
            "runtime   {}\nvCPU      {:.2} of {:.2} reserved\ncores     {} of {} reserved\nmemory    {} MiB\n",
            inventory.runtime,
            inventory.reserved_capacity,
            inventory.total_capacity * inventory.utilization_cap,
            inventory.reserved_cores,
            inventory.total_cores,
            inventory.memory_bytes / (1024 * 1024)
        ));
        if let Some(disk) = inventory.disks.first() {
            let room = disk.room();
            text.push_str(&if inventory.disk_low {
                format!("disk      nearly full: {room}; nothing new starts here\n")
            } else {
                let gib = |bytes: u64| bytes >> 30;
                format!(
                    "disk      {} of {} GiB free\n",
                    gib(room.free),
                    gib(room.total)
                )
            });
        }
        for capability in inventory.capabilities.iter().chain(&inventory.provided) {
            text.push_str(&format!(
                "offers    {} x{}\n",
                capability.name, capability.count
            ));
        }
        for gpu in &inventory.gpus {
            text.push_str(&format!(
                "GPU       {} {} ({:.2} of {:.2} reserved)\n",
                gpu.index, gpu.model, gpu.reserved_capacity, gpu.capacity
            ));
        }
    }
    let mut table = Table::new(&["JOB", "ROLE", "STATE"]);
    for instance in &node.instances {
        table.row(vec![
            instance.key.job_id.to_string(),
            instance.key.role.to_string(),
            instance_state(instance.state).to_owned(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render());
    text
}
