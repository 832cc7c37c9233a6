//! `greenroom get` and `greenroom describe`: what there is, and all about one thing.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use greenroom_sdk::types::bundle::{BundleState, BundleStatus};
use greenroom_sdk::types::job::{
    HistoryKind, JobInfo, JobInfoKind, JobState, JobWithHistory, Stage,
};
use greenroom_sdk::types::node::{InstanceState, NodeInfo, NodeState, ServiceRestarts};
use greenroom_sdk::types::{BundleId, JobId, NodeId, Wall};
use greenroom_sdk::{Client, EventSettings, FoundJob, JobSearch, StreamItem};
use serde::Serialize;

use super::connect::Manager;
use super::history;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(alias = "bundle")]
    Bundles,
    #[value(alias = "job")]
    Jobs,
    #[value(alias = "node")]
    Nodes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Json,
    Wide,
}

/// List bundles, jobs or nodes.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// What to list.
    kind: Kind,
    /// Print JSON, or a wider table.
    #[arg(short, long, value_enum)]
    output: Option<Form>,
    /// Go on and print the list again after every change.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    manager: Manager,
}

/// Tell everything about one bundle, job or node.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// What it is.
    kind: Kind,
    /// Its id.
    id: String,
    #[command(flatten)]
    manager: Manager,
}

// === impl Get ===

impl Get {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let json = self.manager.json || self.output == Some(Form::Json);
        let printer = Printer {
            kind: self.kind,
            wide: self.output == Some(Form::Wide),
            output: Output { json },
        };
        if !self.watch {
            return printer.print(&client).await;
        }
        let (_, mut events) = client.event_stream(EventSettings::default()).await?;
        loop {
            printer.print(&client).await?;
            match events.next().await {
                Some(StreamItem::Event(_) | StreamItem::Resnapshot(_)) => {}
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                None => return Ok(()),
            }
            // What happened at the same moment is shown together.
            while let Ok(Some(item)) =
                tokio::time::timeout(std::time::Duration::from_millis(100), events.next()).await
            {
                if let StreamItem::Closed(error) = item {
                    return Err(error.into());
                }
            }
        }
    }
}

struct Printer {
    kind: Kind,
    wide: bool,
    output: Output,
}

// === impl Printer ===

impl Printer {
    async fn print(&self, client: &Client) -> Outcome {
        match self.kind {
            Kind::Bundles => {
                let bundles = client.list_bundles().await?;
                let rows: Vec<BundleRow<'_>> = bundles.iter().map(BundleRow::of).collect();
                self.output.either(&rows, || self.bundles(&rows))
            }
            Kind::Jobs => {
                let jobs = all_jobs(client).await?;
                self.output.either(&jobs, || self.jobs(&jobs))
            }
            Kind::Nodes => {
                let nodes = client.list_nodes().await?;
                self.output.either(&nodes, || self.nodes(&nodes))
            }
        }
    }

    fn bundles(&self, rows: &[BundleRow<'_>]) -> String {
        let mut heading = vec!["BUNDLE", "STATE", "COPIES", "JOBS", "POOL", "REVISION"];
        let has_causes = rows.iter().any(|row| row.cause.is_some());
        if has_causes {
            heading.push("CAUSE");
        }
        let mut table = Table::new(&heading);
        for row in rows {
            let bundle = &row.status.bundle;
            let mut cells = vec![
                bundle.bundle_id.to_string(),
                row.state.to_owned(),
                bundle.copies().to_string(),
                bundle.jobs.len().to_string(),
                bundle.pool.to_string(),
                bundle.revision.to_string(),
            ];
            if has_causes {
                let cause = row.cause.as_deref().unwrap_or_default();
                cells.push(cause.lines().next().unwrap_or_default().to_owned());
            }
            table.row(cells);
        }
        table.render()
    }

    fn jobs(&self, jobs: &[JobRow]) -> String {
        let mut heading = vec!["JOB", "STATE", "INSTANCE", "NODE", "SINCE"];
        if self.wide {
            heading.extend(["ROLE", "START ID", "STARTS"]);
        }
        let starting = jobs.iter().any(|job| job.progress.is_some());
        if starting {
            heading.push("PROGRESS");
        }
        let mut table = Table::new(&heading);
        for job in jobs {
            let mut cells = vec![
                job.job_id.to_string(),
                job.state.to_owned(),
                job.instance_words(),
                job.node.clone(),
                job.since
                    .map_or_else(|| "-".to_owned(), |at| at.to_string()),
            ];
            if self.wide {
                cells.extend([
                    job.role.clone(),
                    job.start_id.clone(),
                    job.starts.to_string(),
                ]);
            }
            if starting {
                cells.push(job.progress.clone().unwrap_or_default());
            }
            table.row(cells);
        }
        table.render()
    }

    fn nodes(&self, nodes: &[NodeInfo]) -> String {
        let mut heading = vec!["NODE", "STATE", "POOL", "VCPU", "JOBS"];
        if self.wide {
            heading.extend(["RUNTIME", "ADDRESS", "REASON"]);
        }
        let mut table = Table::new(&heading);
        for node in nodes {
            let inventory = node.inventory.as_deref();
            let tag = |key: &str| node.metadata.tags.get(key).cloned().unwrap_or_default();
            let mut cells = vec![
                node.metadata.node_id.to_string(),
                node_state(node.state).to_owned(),
                tag("pool"),
                inventory.map_or_else(
                    || "-".to_owned(),
                    |it| format!("{:.2}/{:.2}", it.reserved_capacity, it.total_capacity),
                ),
                node.instances.len().to_string(),
            ];
            if self.wide {
                cells.push(inventory.map(|it| it.runtime.clone()).unwrap_or_default());
                cells.push(node.running.private_ip_address.clone());
                cells.push(node.reason.clone());
            }
            table.row(cells);
        }
        table.render()
    }
}

/// One line about a bundle.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BundleRow<'a> {
    #[serde(flatten)]
    status: &'a BundleStatus,
    /// `live`, `broken` or `deleting`.
    state: &'static str,
    /// Why it is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

// === impl BundleRow ===

impl<'a> BundleRow<'a> {
    /// A bundle is broken when an essential job of it has its verdict (CEIL-05, CEIL-14): nothing of
    /// it is placed any more, until it is applied again.
    fn of(status: &'a BundleStatus) -> Self {
        let is_essential = |name: &str| {
            let spec = status.bundle.job(name);
            spec.is_some_and(|spec| spec.requirements.essential)
        };
        let cause = status.jobs.iter().find_map(|job| {
            let verdict = job.terminal_state.as_ref()?;
            // The control plane's own words begin with the job's name.
            let is_named = verdict.reason.starts_with(&format!("job {} ", job.job_id));
            let cause = match is_named {
                true => verdict.reason.clone(),
                false => format!("job {}: {}", job.job_id, verdict.reason),
            };
            is_essential(job.job_name.as_str()).then_some(cause)
        });
        let state = match (status.bundle.state, &cause) {
            (BundleState::Deleting, _) => "deleting",
            (BundleState::Live, Some(_)) => "broken",
            (BundleState::Live, None) => "live",
        };
        Self {
            status,
            state,
            cause: cause.filter(|_| state == "broken"),
        }
    }
}

/// One line about a job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobRow {
    pub(crate) job_id: JobId,
    pub(crate) state: &'static str,
    pub(crate) instance: String,
    pub(crate) node: String,
    pub(crate) role: String,
    pub(crate) start_id: String,
    pub(crate) starts: usize,
    pub(crate) since: Option<Wall>,
    /// What the worker said last of a start that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<String>,
    /// How often its worker started a service of the instance again by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restarts: Option<ServiceRestarts>,
}

// === impl JobRow ===

impl JobRow {
    /// The state of its instance, and what its worker starts again there.
    fn instance_words(&self) -> String {
        match &self.restarts {
            Some(restarts) => format!("{}, {}", self.instance, restarts.words()),
            None => self.instance.clone(),
        }
    }
}

/// Every job with the newest of its instances.
pub(crate) async fn all_jobs(client: &Client) -> Result<Vec<JobRow>, Failure> {
    let search = JobSearch {
        include_history: true,
        ..JobSearch::default()
    };
    Ok(client.job_search(search).await?.iter().map(row).collect())
}

fn row(found: &FoundJob) -> JobRow {
    let job = &found.job;
    let instance = found.instances.last();
    let newest = job.history.iter().rev().find(|entry| {
        let at = entry.kind.at();
        at.is_some_and(|at| {
            instance.is_none_or(|it| it.key.role == at.role && it.node_id == at.node.node_id)
        })
    });
    let starts = job
        .history
        .iter()
        .filter(|entry| matches!(entry.kind, HistoryKind::Provisioned(_)))
        .count();
    let dash = || "-".to_owned();
    JobRow {
        job_id: job.job.job_id.clone(),
        state: job_state(job),
        instance: instance.map_or_else(dash, |it| instance_state(it.state).to_owned()),
        node: instance.map_or_else(dash, |it| it.node_id.to_string()),
        role: instance.map_or_else(dash, |it| it.key.role.to_string()),
        start_id: instance.map_or_else(dash, |it| it.start_id.to_string()),
        starts,
        since: newest.map(|entry| entry.at),
        progress: found.last_info.as_ref().and_then(progress),
        restarts: found.restarts.clone(),
    }
}

/// News of a start in words; none where it has no words.
fn progress(info: &JobInfo) -> Option<String> {
    let text = match &info.kind {
        JobInfoKind::ServiceStarted(service) => format!("service {service} started"),
        JobInfoKind::ServiceRestarting(service) => format!("service {service} restarts"),
        JobInfoKind::ContainerEvent { service, text } => format!("service {service}: {text}"),
        JobInfoKind::Stage { stage, text } => match stage {
            Stage::Build if !text.contains(' ') => format!("making image {text} local"),
            _ => text.clone(),
        },
        JobInfoKind::Status { text, .. } => text.clone(),
    };
    (!text.is_empty()).then_some(text)
}

pub(crate) fn job_state(job: &JobWithHistory) -> &'static str {
    match job.state {
        JobState::Pre if job.job.is_dormant() => "dormant",
        JobState::Pre => "waiting",
        JobState::Active => "active",
        JobState::Post if job.terminal_state.is_some() => "failed",
        JobState::Post => "completed",
    }
}

pub(crate) const fn instance_state(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Provisioned => "starting",
        InstanceState::Prepared => "prepared",
        InstanceState::Running => "running",
        InstanceState::Stopping => "stopping",
        InstanceState::Lost => "lost",
    }
}

pub(crate) const fn node_state(state: NodeState) -> &'static str {
    match state {
        NodeState::Starting => "starting",
        NodeState::Running => "running",
        NodeState::Unreachable => "unreachable",
        NodeState::Stopping => "stopping",
        NodeState::Stopped => "stopped",
    }
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
                output.either(&told, || describe_job(&job, &about))
            }
            Kind::Nodes => {
                let id = NodeId::new(&self.id);
                let nodes = client.list_nodes().await?;
                let node = nodes
                    .iter()
                    .find(|node| node.metadata.node_id == id)
                    .ok_or_else(|| {
                        Failure::failed(format!("there is no node {id}"))
                            .because("unknown_node")
                            .hint("`greenroom get nodes` lists them")
                    })?;
                output.either(node, || describe_node(node))
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

fn describe_bundle(row: &BundleRow<'_>, jobs: &[JobRow]) -> String {
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

fn describe_job(job: &JobWithHistory, about: &FoundJob) -> String {
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
        let line = history::line(&job.history, index);
        let line = history::indented(line.trim_end(), "      ");
        text.push_str(&format!("  {}  {line}\n", entry.at));
    }
    text
}

fn describe_node(node: &NodeInfo) -> String {
    let mut text = format!(
        "node      {}\nstate     {}\n",
        node.metadata.node_id,
        node_state(node.state)
    );
    if !node.reason.is_empty() {
        text.push_str(&format!("reason    {}\n", node.reason));
    }
    if let Some(at) = node.last_seen {
        text.push_str(&format!("seen      {at}\n"));
    }
    for (key, value) in &node.metadata.tags {
        text.push_str(&format!("tag       {key}={value}\n"));
    }
    if let Some(inventory) = node.inventory.as_ref().map(Arc::as_ref) {
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

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::bundle::{Bundle, BundleJob, BundleJobStatus};
    use greenroom_sdk::types::job::TerminalState;

    use super::*;

    /// A bundle with an essential job and one that is not; `failed` has its verdict.
    fn status(failed: &str) -> BundleStatus {
        let mut extra = BundleJob {
            job_name: "extra".into(),
            ..BundleJob::default()
        };
        extra.requirements.essential = false;
        let main = BundleJob {
            job_name: "main".into(),
            ..BundleJob::default()
        };
        let jobs = ["main", "extra"].map(|name| BundleJobStatus {
            job_id: format!("news.0.{name}").into(),
            replica_index: 0,
            job_name: name.into(),
            dormant: false,
            terminal_state: (name == failed).then(|| TerminalState {
                reason: "it failed 7 times within an hour\nand more".to_owned(),
                by: "auto".to_owned(),
                at: Wall(0),
            }),
        });
        BundleStatus {
            bundle: Bundle {
                bundle_id: "news".into(),
                pool: "local".into(),
                jobs: vec![main, extra],
                ..Bundle::default()
            },
            jobs: jobs.into(),
            lease_expires_at: None,
        }
    }

    #[test]
    fn a_broken_bundle_is_called_broken_with_its_cause_in_every_form() {
        let broken = status("main");
        let row = BundleRow::of(&broken);
        let printer = Printer {
            kind: Kind::Bundles,
            wide: false,
            output: Output { json: false },
        };
        let cause = "job news.0.main: it failed 7 times within an hour";
        let list = printer.bundles(std::slice::from_ref(&row));
        assert!(list.contains("broken") && list.contains(cause), "{list}");
        assert!(!list.contains("and more"), "one line for each: {list}");
        let told = describe_bundle(&row, &[]);
        assert!(told.contains("state     broken\n"), "{told}");
        assert!(told.contains(cause), "{told}");
        assert!(told.contains("\n          | and more\n"), "{told}");
        // A verdict that names its job is not told with the name before it.
        let mut named = status("main");
        if let Some(verdict) = &mut named.jobs[0].terminal_state {
            verdict.reason = "job news.0.main failed 7 times".to_owned();
        }
        let named = BundleRow::of(&named).cause;
        assert_eq!(named.as_deref(), Some("job news.0.main failed 7 times"));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["state"], "broken");
        assert!(json["cause"].as_str().unwrap().starts_with(cause), "{json}");
        assert_eq!(json["bundle"]["bundleId"], "news");

        let mut ending = status("main");
        ending.bundle.state = BundleState::Deleting;
        let row = BundleRow::of(&ending);
        assert_eq!((row.state, &row.cause), ("deleting", &None));
        for fine in [status("extra"), status("")] {
            let row = BundleRow::of(&fine);
            assert_eq!((row.state, &row.cause), ("live", &None));
            let list = printer.bundles(&[row]);
            assert!(!list.contains("CAUSE"), "{list}");
        }
    }
}
