//! `greenroom apply`, `delete` and `validate`: bundles from manifests to the Manager.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use greenroom_manifest::{Manifest, Problem, read_bundles};
use greenroom_sdk::types::bundle::Bundle;
use greenroom_sdk::types::job::{HistoryKind, JobState, JobWithHistory};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{BundleId, JobId};
use greenroom_sdk::{Client, Error, EventSettings, StreamItem, UpdateBundle};
use serde::Serialize;

use super::connect::Manager;
use super::control::Control;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;

/// Submit bundles: create those that are new, update those that are there.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until every job runs.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most, in seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
    /// Submit without asking the control plane whether the needs can be met.
    #[arg(long)]
    skip_validation: bool,
    #[command(flatten)]
    manager: Manager,
    #[command(flatten)]
    control: Control,
}

/// Stop and delete bundles.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Bundles by id.
    #[arg(value_name = "BUNDLE", required_unless_present = "files")]
    bundles: Vec<BundleId>,
    /// Manifests whose bundles are deleted.
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until they are gone.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most, in seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    manager: Manager,
}

/// Check manifests: their form, and with a control plane whether their needs can be met. Changes
/// nothing.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Check the form alone, without a control plane.
    #[arg(long)]
    offline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied<'a> {
    bundle_id: &'a BundleId,
    action: &'static str,
    revision: u64,
    jobs: Vec<JobId>,
}

/// Reads all manifests, or tells every fault in them.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    let mut problems: Vec<String> = Vec::new();
    for file in files {
        let (name, text) = match read_text(file) {
            Ok(read) => read,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        match read_bundles(&name, &text) {
            Ok(read) => manifests.extend(read),
            Err(found) => problems.extend(found.iter().map(ToString::to_string)),
        }
    }
    let mut seen = BTreeSet::new();
    for manifest in &manifests {
        if !seen.insert(&manifest.bundle.bundle_id) && files.len() > 1 {
            problems.push(
                manifest
                    .problem("bundleId", "this bundle stands in two files")
                    .to_string(),
            );
        }
    }
    if problems.is_empty() {
        Ok(manifests)
    } else {
        Err(Failure::bad_input(problems.join("\n")))
    }
}

fn read_text(file: &Path) -> Result<(String, String), String> {
    let name = if file == Path::new("-") {
        "<stdin>".to_owned()
    } else {
        file.display().to_string()
    };
    let mut bytes = Vec::new();
    let limit = greenroom_manifest::TEXT_MAX as u64 + 1;
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: it is not UTF-8 text"))?;
    Ok((name, text))
}

/// Asks the control plane whether the bundles can be placed; every error is told at its line.
async fn check_needs(control: &Control, manifests: &[Manifest]) -> Outcome {
    let mut errors = Vec::new();
    for manifest in manifests {
        let findings = control
            .client()
            .validate(manifest.bundle.clone())
            .await
            .map_err(|error| {
                Failure::failed(format!("cannot check the needs: {error}"))
                    .hint("start a control plane, or submit with --skip-validation")
            })?;
        let at = |finding: &greenroom_placement::Finding| -> Problem {
            manifest.problem(
                &finding.path,
                format!("{} ({})", finding.message, finding.code.name()),
            )
        };
        errors.extend(
            findings
                .errors
                .iter()
                .map(|finding| at(finding).to_string()),
        );
        for finding in &findings.warnings {
            say(&format!("warning: {}", at(finding)));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::bad_input(errors.join("\n")))
    }
}

// === impl Apply ===

impl Apply {
    pub(crate) async fn run(self) -> Outcome {
        let manifests = read_all(&self.files)?;
        if !self.skip_validation {
            check_needs(&self.control, &manifests).await?;
        }
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        let mut jobs = Vec::new();
        for manifest in &manifests {
            let bundle = &manifest.bundle;
            let (action, revision, ids) =
                submit(&client, bundle.clone()).await.map_err(|error| {
                    let mut failure = Failure::from(error);
                    failure.message = manifest.problem("bundleId", failure.message).to_string();
                    failure
                })?;
            let bundle_id = &bundle.bundle_id;
            let applied = Applied {
                bundle_id,
                action,
                revision,
                jobs: ids.clone(),
            };
            output.either(&applied, || {
                format!("bundle {bundle_id} {action} (revision {revision})")
            })?;
            jobs.extend(ids.into_iter().filter(|job_id| waits_for(bundle, job_id)));
        }
        if self.wait {
            wait_running(&client, jobs, self.timeout).await
        } else {
            Ok(())
        }
    }
}

/// A job that starts by itself, now.
fn waits_for(bundle: &Bundle, job_id: &JobId) -> bool {
    let spec = (0..bundle.copies())
        .flat_map(|copy| bundle.jobs.iter().map(move |job| (copy, job)))
        .find(|(copy, job)| bundle.job_id(*copy, &job.job_name) == *job_id);
    spec.is_some_and(|(_, job)| {
        job.start_mode == greenroom_sdk::types::bundle::StartMode::Auto
            && job.start_date_time.or(bundle.start_date_time).is_none()
    })
}

async fn submit(client: &Client, bundle: Bundle) -> Result<(&'static str, u64, Vec<JobId>), Error> {
    match client.create_bundle(bundle.clone()).await {
        Ok(created) => Ok(("created", created.revision, created.job_ids)),
        Err(Error::AlreadyExists(refused)) if refused.reason == "bundle_exists" => {
            let changes = client
                .update_bundle(bundle, UpdateBundle::default())
                .await?;
            let still = [
                changes.created,
                changes.changed,
                changes.updated,
                changes.untouched,
            ];
            Ok(("updated", changes.revision, still.concat()))
        }
        Err(error) => Err(error),
    }
}

/// Waits until every job has a running instance, telling progress.
async fn wait_running(client: &Client, jobs: Vec<JobId>, seconds: u64) -> Outcome {
    let mut waiting: BTreeSet<JobId> = jobs.into_iter().collect();
    let total = waiting.len();
    let watch = async {
        let (state, mut events) = client.event_stream(EventSettings::default()).await?;
        let mut failed = None;
        for job in &state.active_jobs {
            settle(&job.job, &mut waiting, total, &mut failed);
        }
        while !waiting.is_empty() && failed.is_none() {
            match events.next().await {
                Some(StreamItem::Event(stamped)) => {
                    if let StreamEvent::JobUpdated(job) = &stamped.event {
                        settle(job, &mut waiting, total, &mut failed);
                    }
                }
                Some(StreamItem::Resnapshot(state)) => {
                    for job in &state.active_jobs {
                        settle(&job.job, &mut waiting, total, &mut failed);
                    }
                }
                Some(StreamItem::Closed(error)) => return Err(Failure::from(error)),
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
        match failed {
            Some(text) => Err(Failure::failed(text)),
            None => Ok(()),
        }
    };
    match tokio::time::timeout(Duration::from_secs(seconds), watch).await {
        Ok(ended) => ended,
        Err(_) => {
            let names: Vec<String> = waiting.iter().map(ToString::to_string).collect();
            let text = format!("not running after {seconds} s: {}", names.join(", "));
            Err(Failure::new(Exit::Failed, text).hint("`greenroom why JOB` says what it waits for"))
        }
    }
}

fn settle(
    job: &JobWithHistory,
    waiting: &mut BTreeSet<JobId>,
    total: usize,
    failed: &mut Option<String>,
) {
    let job_id = &job.job.job_id;
    if !waiting.contains(job_id) {
        return;
    }
    if let (JobState::Post, Some(verdict)) = (job.state, &job.terminal_state) {
        *failed = Some(format!("job {job_id} failed: {}", verdict.reason));
    }
    let newest = job
        .history
        .iter()
        .rev()
        .find(|entry| entry.kind.at().is_some());
    if let Some(HistoryKind::Running { at, .. }) = newest.map(|entry| &entry.kind) {
        waiting.remove(job_id);
        let done = total - waiting.len();
        say(&format!(
            "{done}/{total} running: {job_id} on {}",
            at.node.node_id
        ));
    }
}

// === impl Delete ===

impl Delete {
    pub(crate) async fn run(self) -> Outcome {
        let mut bundles = self.bundles;
        let manifests = read_all(&self.files)?;
        bundles.extend(
            manifests
                .iter()
                .map(|manifest| manifest.bundle.bundle_id.clone()),
        );
        let client = self.manager.connect().await?;
        let (state, mut events) = client.event_stream(EventSettings::default()).await?;
        let known = |id: &BundleId| {
            state
                .bundles
                .iter()
                .any(|known| known.bundle.bundle_id == *id)
        };
        if let Some(unknown) = bundles.iter().find(|id| !known(id)) {
            return Err(Failure::failed(format!(
                "there is no bundle {unknown}; nothing was deleted"
            ))
            .hint("`greenroom get bundles` lists them"));
        }
        for bundle_id in &bundles {
            client.delete_bundle(bundle_id.clone()).await?;
            let text = || format!("bundle {bundle_id} is being deleted");
            let told = serde_json::json!({"bundleId": bundle_id, "action": "deleting"});
            self.manager.output().either(&told, text)?;
        }
        if !self.wait {
            return Ok(());
        }
        let mut waiting: BTreeSet<BundleId> = bundles.into_iter().collect();
        let watch = async {
            while !waiting.is_empty() {
                match events.next().await {
                    Some(StreamItem::Event(stamped)) => {
                        if let StreamEvent::BundleDeleted(bundle_id) = &stamped.event
                            && waiting.remove(bundle_id)
                        {
                            say(&format!("bundle {bundle_id} is gone"));
                        }
                    }
                    Some(StreamItem::Resnapshot(state)) => waiting.retain(|id| {
                        state
                            .bundles
                            .iter()
                            .any(|known| known.bundle.bundle_id == *id)
                    }),
                    Some(StreamItem::Closed(error)) => return Err(Failure::from(error)),
                    None => return Err(Failure::failed("the event stream ended")),
                }
            }
            Ok(())
        };
        tokio::time::timeout(Duration::from_secs(self.timeout), watch)
            .await
            .unwrap_or_else(|_| {
                Err(Failure::failed(format!(
                    "still being deleted after {} s",
                    self.timeout
                )))
            })
    }
}

// === impl Validate ===

impl Validate {
    pub(crate) async fn run(self) -> Outcome {
        let manifests = read_all(&self.files)?;
        if !self.offline {
            check_needs(&self.control, &manifests).await?;
        }
        let count = manifests.len();
        let output = crate::output::Output { json: self.json };
        output.either(&serde_json::json!({"ok": true, "bundles": count}), || {
            format!(
                "{count} bundle{} valid",
                if count == 1 { " is" } else { "s are" }
            )
        })
    }
}
