//! `greenroom get`: what there is.

use clap::{Args, ValueEnum};
use greenroom_sdk::types::bundle::{BundleState, BundleStatus};
use greenroom_sdk::types::job::{
    HistoryKind, JobInfo, JobInfoKind, JobState, JobWithHistory, Stage,
};
use greenroom_sdk::types::node::{InstanceState, NodeState, ServiceRestarts};
use greenroom_sdk::types::{JobId, Wall};
use greenroom_sdk::{Client, EventSettings, FoundJob, JobSearch, StreamItem};
use serde::Serialize;

use super::connect::Manager;
use super::control::Control;
use super::fleet::{Fleet, NodeRow};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
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
    #[command(flatten)]
    control: Control,
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
            return printer.print(&client, &self.control).await;
        }
        let (_, mut events) = client.event_stream(EventSettings::default()).await?;
        loop {
            printer.print(&client, &self.control).await?;
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
    async fn print(&self, client: &Client, control: &Control) -> Outcome {
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
                let fleet = Fleet::read(client, control).await?;
                let rows: Vec<NodeRow<'_>> = fleet.rows().collect();
                self.output.either(&rows, || self.nodes(&rows))
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

    fn nodes(&self, rows: &[NodeRow<'_>]) -> String {
        let mut heading = vec!["NODE", "STATE", "POOL", "VCPU", "JOBS"];
        if self.wide {
            heading.extend(["RUNTIME", "ADDRESS", "REASON"]);
        }
        let mut table = Table::new(&heading);
        for row in rows {
            let node = row.node;
            let inventory = node.inventory.as_deref();
            let tag = |key: &str| node.metadata.tags.get(key).cloned().unwrap_or_default();
            let mut cells = vec![
                node.metadata.node_id.to_string(),
                row.state_words(),
                tag("pool"),
                // What it showed last says nothing of a node that runs no more.
                inventory
                    .filter(|_| node.state != NodeState::Stopped)
                    .map_or_else(
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
pub(super) struct BundleRow<'a> {
    #[serde(flatten)]
    pub(super) status: &'a BundleStatus,
    /// `live`, `broken` or `deleting`.
    pub(super) state: &'static str,
    /// Why it is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
}

// === impl BundleRow ===

impl<'a> BundleRow<'a> {
    /// A bundle is broken when an essential job of it has its verdict (CEIL-05, CEIL-14): nothing of
    /// it is placed any more, until it is applied again.
    pub(super) fn of(status: &'a BundleStatus) -> Self {
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
    pub(super) fn instance_words(&self) -> String {
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
pub(super) fn progress(info: &JobInfo) -> Option<String> {
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
        // Stopped by hand, and to be started again by hand.
        JobState::Active if job.job.is_dormant() => "dormant",
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

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::bundle::{Bundle, BundleJob, BundleJobStatus};
    use greenroom_sdk::types::job::TerminalState;

    use super::super::describe::describe_bundle;
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
