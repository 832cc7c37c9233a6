//! `greenroom placements`, `pending`, `metrics` and `admit`: what the control plane knows.

use std::path::PathBuf;

use clap::Args;
use greenroom_policy::effect::PlacementKind;
use greenroom_policy::getters::Admission;
use greenroom_policy::metrics::Metrics;
use serde::Serialize;

use super::control::{Control, lost, no_room};
use super::files::{read_all, refuse};
use crate::failure::Outcome;
use crate::output::{Output, Table, say, word};

/// List where jobs were placed, the newest first.
#[derive(Debug, Args)]
pub(crate) struct Placements {
    #[command(flatten)]
    ask: Ask,
}

/// List jobs without a node: those that wait for their time or to be started by hand, and those that
/// found no place. Jobs further ahead than the pending window are in `get jobs` only.
#[derive(Debug, Args)]
pub(crate) struct Pending {
    #[command(flatten)]
    ask: Ask,
}

/// Print the control plane's counters, and how full each pool is.
#[derive(Debug, Args)]
pub(crate) struct ShowMetrics {
    #[command(flatten)]
    ask: Ask,
}

/// Say whether bundles would find room now, each by itself. Changes nothing; exit 5 without room.
#[derive(Debug, Args)]
pub(crate) struct Admit {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
struct Ask {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// What is said of one bundle.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Admitted<'a> {
    bundle_id: &'a str,
    admission: &'a Admission,
}

// === impl Ask ===

impl Ask {
    const fn output(&self) -> Output {
        Output { json: self.json }
    }
}

// === impl Placements ===

impl Placements {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.ask.control.client();
        let placements = client.placements().await.map_err(|error| lost(&error))?;
        self.ask.output().either(&placements, || {
            let mut table = Table::new(&["JOB", "NODE", "POOL", "TIER", "FOR", "AT", "NOTE"]);
            for it in &placements {
                let node_id = it.node_id.as_ref().map(ToString::to_string);
                let note = match it.kind {
                    PlacementKind::Failure => it.reason.clone(),
                    PlacementKind::Provision => format!("bought as {}", it.instance_type),
                    PlacementKind::Place if it.degraded => "copies too close".to_owned(),
                    PlacementKind::Place => String::new(),
                };
                table.row(vec![
                    it.job_id.to_string(),
                    node_id.unwrap_or_else(|| "-".to_owned()),
                    it.pool.to_string(),
                    it.tier.to_string(),
                    word(&it.context),
                    it.at.to_string(),
                    note,
                ]);
            }
            table.render()
        })
    }
}

// === impl Pending ===

impl Pending {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.ask.control.client();
        let pending = client.pending().await.map_err(|error| lost(&error))?;
        self.ask.output().either(&pending, || {
            let waiting = [&pending.dormant, &pending.unplaced];
            if pending.scheduled.is_empty() && waiting.iter().all(|it| it.is_empty()) {
                return "every job has a node".to_owned();
            }
            let mut table = Table::new(&["JOB", "WAITS FOR"]);
            for it in &pending.scheduled {
                table.row(vec![it.job_id.to_string(), it.scheduled_for.to_string()]);
            }
            for job_id in &pending.dormant {
                let told = format!("somebody who starts it; `greenroom start {job_id}`");
                table.row(vec![job_id.to_string(), told]);
            }
            for job_id in &pending.unplaced {
                let mut told = format!("a place; `greenroom why {job_id}`");
                for trouble in pending.not_bought.get(job_id).into_iter().flatten() {
                    told.push_str(&format!("; {trouble}"));
                }
                table.row(vec![job_id.to_string(), told]);
            }
            table.render()
        })
    }
}

// === impl ShowMetrics ===

impl ShowMetrics {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.ask.control.client();
        let metrics = client.metrics().await.map_err(|error| lost(&error))?;
        let output = self.ask.output();
        output.either(&metrics, || metrics_in_words(&metrics))
    }
}

fn metrics_in_words(metrics: &Metrics) -> String {
    let since = metrics.started_at.map(|at| at.to_string());
    let mut text = format!("since {}\n\n", since.unwrap_or_else(|| "-".to_owned()));
    let mut counters = Table::new(&["COUNTER", "VALUE"]);
    for (name, value) in [
        ("placements attempted", metrics.placements_attempted),
        ("placements succeeded", metrics.placements_succeeded),
        ("placements without a place", metrics.placements_failed),
        (
            "placements whose call failed",
            metrics.placements_dispatch_failed,
        ),
        (
            "nodes that could not be bought",
            metrics.tiers.iter().map(|tier| tier.purchases_failed).sum(),
        ),
        ("starts rejected by workers", metrics.jobs_rejected),
        ("bundles broken", metrics.bundles_broken),
        ("jobs given up", metrics.jobs_dropped),
    ] {
        counters.row(vec![name.to_owned(), value.to_string()]);
    }
    text.push_str(&counters.render());
    let mut pools = Table::new(&["POOL", "NODES", "USED", "SPARES"]);
    for pool in &metrics.pools {
        pools.row(vec![
            pool.pool_name.to_string(),
            pool.node_count.to_string(),
            format!("{:.0} %", pool.used_capacity_fraction * 100.0),
            format!("{}/{}", pool.live_spares, pool.spare_target),
        ]);
    }
    text.push('\n');
    text.push_str(&pools.render());
    for bundle_id in &metrics.broken_bundle_ids {
        text.push_str(&format!("\nbundle {bundle_id} is broken"));
    }
    text
}

// === impl Admit ===

impl Admit {
    pub(crate) async fn run(self) -> Outcome {
        let manifests = read_all(&self.files).map_err(|problems| refuse(&problems))?;
        let client = self.ask.control.client();
        let output = self.ask.output();
        let mut faults = Vec::new();
        let mut without_room = Vec::new();
        for manifest in &manifests {
            let bundle = &manifest.bundle;
            let admission = client
                .admit(bundle.clone())
                .await
                .map_err(|error| lost(&error))?;
            let at = |finding: &greenroom_placement::Finding| {
                let message = format!("{} ({})", finding.message, finding.code.name());
                manifest.problem(&finding.path, message)
            };
            let (Admission::Ok { findings }
            | Admission::ValidationErrors { findings }
            | Admission::NoCapacity { findings, .. }) = &admission;
            faults.extend(findings.errors.iter().map(at));
            for warning in &findings.warnings {
                say(&format!("warning: {}", at(warning)));
            }
            if output.json {
                output.line(&Admitted {
                    bundle_id: bundle.bundle_id.as_str(),
                    admission: &admission,
                })?;
            }
            match &admission {
                Admission::Ok { .. } if !output.json => {
                    output.text(&format!("bundle {} would find room", bundle.bundle_id))?;
                }
                Admission::NoCapacity { unplaceable, .. } => {
                    let names = unplaceable
                        .iter()
                        .map(|it| bundle.job_id(it.replica_index, &it.job_name).to_string());
                    without_room.extend(names);
                }
                Admission::Ok { .. } | Admission::ValidationErrors { .. } => {}
            }
        }
        if !faults.is_empty() {
            return Err(refuse(&faults));
        }
        no_room(&without_room)
            .map_err(|failure| failure.hint("`greenroom place --dry-run -f FILE` says why"))
    }
}
