//! `greenroom control`, `why` and `place`: the control plane, and what it says.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use greenroom_console::Client;
use greenroom_console::api::PlaceRequest;
use greenroom_sdk::types::JobId;
use tokio::signal::unix::{SignalKind, signal};

use super::apply::read_all;
use crate::failure::{Failure, Outcome};
use crate::local;
use crate::output::Output;

/// Where the control plane is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Control {
    /// The control plane's address.
    #[arg(
        long,
        env = "GREENROOM_CONTROL",
        default_value = "http://127.0.0.1:6788",
        value_name = "URL"
    )]
    control: String,
}

/// Run the control plane against a Manager.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Its settings, YAML or JSON.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The Manager, HOST:PORT, instead of the one in the settings.
    #[arg(long, value_name = "HOST:PORT")]
    manager: Option<String>,
    /// Where its HTTP API is served; loopback only.
    #[arg(long, default_value = "127.0.0.1:6788")]
    listen: SocketAddr,
    /// Print one JSON line when it serves.
    #[arg(long)]
    json: bool,
}

/// Say why a job is where it is, or what it waits for.
#[derive(Debug, Args)]
pub(crate) struct Why {
    /// The job, by id, e.g. news.0.encode.
    job: JobId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Say where a bundle's jobs would be placed now. Changes nothing.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Needed: nothing else is served by this verb.
    #[arg(long, required = true)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

// === impl Control ===

impl Control {
    pub(crate) fn client(&self) -> Client {
        let address = self
            .control
            .strip_prefix("http://")
            .unwrap_or(&self.control);
        Client::new(address.trim_end_matches('/'))
    }
}

fn lost(error: &greenroom_console::client::ClientError) -> Failure {
    let failure = Failure::failed(error.to_string());
    if matches!(
        error,
        greenroom_console::client::ClientError::Connection { .. }
    ) {
        failure.hint("start a control plane with `greenroom up`, or name it with --control URL")
    } else {
        failure
    }
}

/// Reads a settings file as a tree; its keys are checked by the policy.
pub(crate) fn read_settings(file: &Path) -> Result<serde_json::Value, Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::bad_input(format!("{name}: cannot be read: {error}")))?;
    let mut trees: Vec<serde_json::Value> = greenroom_manifest::read(&name, &text)
        .map_err(|problem| Failure::bad_input(problem.to_string()))?;
    if trees.len() != 1 {
        let text = format!(
            "{name}: it must hold one document, and holds {}",
            trees.len()
        );
        return Err(Failure::bad_input(text));
    }
    Ok(trees.remove(0))
}

/// The faults of settings, each at its line.
fn check_settings(file: &Path, tree: &serde_json::Value) -> Outcome {
    let Err(error) = greenroom_policy::Settings::parse(tree) else {
        return Ok(());
    };
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let places = greenroom_manifest::Locations::of(&text).unwrap_or_default();
    let told: Vec<String> = error
        .faults
        .iter()
        .map(|fault| {
            let problem = greenroom_manifest::Problem {
                file: file.display().to_string(),
                position: places.position(0, &fault.path),
                path: fault.path.clone(),
                message: format!("{} ({})", fault.message, fault.code.name()),
            };
            problem.to_string()
        })
        .collect();
    Err(Failure::bad_input(told.join("\n")))
}

// === impl Run ===

impl Run {
    pub(crate) async fn run(self) -> Outcome {
        let mut tree = read_settings(&self.config)?;
        if let Some(manager) = &self.manager {
            tree["url"] = manager.as_str().into();
        }
        check_settings(&self.config, &tree)?;
        let manager = tree["url"].as_str().unwrap_or_default().to_owned();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let control = local::Control::start(tree, &manager, self.listen).await?;
        let address = control.address().to_string();
        let told = serde_json::json!({"event": "listening", "address": address});
        Output { json: self.json }
            .either(&told, || format!("control plane serves at {address}"))?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        control.stop().await;
        Ok(())
    }
}

// === impl Why ===

impl Why {
    pub(crate) async fn run(self) -> Outcome {
        let why = self
            .control
            .client()
            .why(&self.job)
            .await
            .map_err(|error| lost(&error))?;
        Output { json: self.json }.either(&why, || why.text.clone())
    }
}

// === impl Place ===

impl Place {
    pub(crate) async fn run(self) -> Outcome {
        let output = Output { json: self.json };
        for manifest in read_all(&self.files)? {
            let bundle = &manifest.bundle;
            for copy in 0..bundle.copies() {
                for job in &bundle.jobs {
                    let client = self.control.client();
                    let placed = client
                        .place(&PlaceRequest {
                            bundle: Some(bundle.clone()),
                            bundle_id: None,
                            replica: copy,
                            job: Some(job.job_name.clone()),
                        })
                        .await
                        .map_err(|error| lost(&error))?;
                    output.either(&placed, || {
                        format!(
                            "{}/{copy}/{}\n{}",
                            bundle.bundle_id, job.job_name, placed.text
                        )
                    })?;
                }
            }
        }
        Ok(())
    }
}
