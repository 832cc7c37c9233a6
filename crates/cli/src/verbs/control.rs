//! `greenroom control`, `why` and `place`: the control plane, and what it says.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use greenroom_auto::SeatSettings;
use greenroom_console::Client;
use greenroom_console::api::{Health, PlaceRequest, Placed, SeatState};
use greenroom_console::client::ClientError;
use greenroom_manifest::Problem;
use greenroom_placement::Decision;
use greenroom_sdk::types::{JobId, NodeId};
use serde::Serialize;

use super::apply::check_needs;
use super::connect::{Manager, Reach};
use super::files::{read_all, read_text, refuse};
use crate::failure::{Exit, Failure, Outcome};
use crate::local;
use crate::output::Output;
use crate::signals::{Hangup, Signals};

/// How long a list of nodes waits for the cordons.
const CORDONS_MAX: Duration = Duration::from_secs(1);

/// Where the control plane is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Control {
    /// The control plane's address.
    #[arg(
        long,
        env = crate::env::CONTROL,
        default_value = "http://127.0.0.1:6788",
        value_name = "URL"
    )]
    control: String,
}

/// Run the control plane, which decides where jobs run, against a Manager.
///
/// It may run more than once: one acts, the others stand by and take over within 5 s of its death.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Run {
    #[command(subcommand)]
    ask: Option<Ask>,
    /// Its settings, YAML or JSON.
    #[arg(short, long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Its name among several; default: this machine's name and the port of its API.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    reach: Reach,
    /// Where its HTTP API is served; loopback only.
    #[arg(long, default_value = "127.0.0.1:6788")]
    listen: SocketAddr,
    /// Print one JSON line when it serves.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Ask {
    Status(Status),
    Announce(Announce),
}

/// Say whether a control plane is active or stands by, and who is active.
#[derive(Debug, Args)]
struct Status {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Tell a Manager where workers reach the control plane beside it; workers keep the list.
#[derive(Debug, Args)]
struct Announce {
    /// https:// or http:// with a host.
    #[arg(
        required_unless_present = "withdraw",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    url: Option<String>,
    /// It will be said again at least every so many seconds; else it counts as stale after three.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: Option<u64>,
    /// Take the announcement back.
    #[arg(long, conflicts_with_all = ["url", "every"])]
    withdraw: bool,
    #[command(flatten)]
    manager: Manager,
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

/// Say where a bundle's jobs would be placed now, each by itself. Changes nothing; exit 0 when every
/// job would have a place, 5 when one would not.
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

/// What is said of one job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacedJob<'a> {
    job_id: &'a JobId,
    #[serde(flatten)]
    placed: &'a Placed,
}

/// How a dry run ends: with a code of its own when a job has no place.
pub(crate) fn no_room(without: &[String]) -> Outcome {
    if without.is_empty() {
        return Ok(());
    }
    let text = format!("no place now for {}", without.join(", "));
    Err(Failure::new(Exit::NoPlace, text))
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

    /// Nodes that the control plane keeps new jobs off; none is known where it does not answer at once,
    /// which may be as it should be: a Manager needs none.
    pub(crate) async fn cordoned(&self) -> Option<BTreeSet<NodeId>> {
        let client = self.client();
        let asked = tokio::time::timeout(CORDONS_MAX, client.cordons()).await;
        Some(asked.ok()?.ok()?.into_iter().collect())
    }
}

/// What a failed request means for whoever asked.
pub(crate) fn lost(error: &ClientError) -> Failure {
    match error {
        ClientError::Connection { address, cause } => Failure::failed(format!(
            "cannot reach the control plane at {address}: {cause}"
        ))
        .because("unreachable")
        .hint("start one with `greenroom up`, or name it with --control URL"),
        ClientError::Lost {
            address,
            cause,
            changes,
        } => {
            let (what, hint) = if *changes {
                (
                    "; whether it was done is not known",
                    "see how it stands at the control plane that is active now, and say it again if it \
                     was not done",
                )
            } else {
                ("", "ask again; another control plane may be active now")
            };
            Failure::failed(format!(
                "the control plane at {address} went away before it had answered{what}: {cause}"
            ))
            .because("connection_lost")
            .hint(hint)
        }
        ClientError::Stranger { address } => Failure::failed(format!(
            "cannot reach the control plane at {address}: what answers there is no control plane"
        ))
        .because("unreachable")
        .hint(
            "--control takes the control plane's address, by default http://127.0.0.1:6788; the \
             Manager's is for --manager",
        ),
        ClientError::Refused { code, message, .. } => refusal(code, message).because(code),
        ClientError::Answer { .. } => Failure::failed(error.to_string()),
    }
}

/// A refusal by the control plane. What it says of its own calls is said of verbs here.
fn refusal(code: &str, message: &str) -> Failure {
    let list = match code {
        "unknownNode" => "nodes",
        "unknownJob" => "jobs",
        "unknownBundle" => "bundles",
        "notAnnounced" => return Failure::failed(message),
        _ if message.contains(code) => return Failure::failed(message),
        _ => return Failure::failed(format!("{message} ({code})")),
    };
    // Behind the semicolon the message names calls of the programming interface.
    let message = message.split("; ").next().unwrap_or(message);
    Failure::failed(message).hint(format!("`greenroom get {list}` lists them"))
}

/// Reads a settings file as a tree and checks it; every fault is told at its line. `manager` is the
/// Manager's address that goes before the one in the file, `otherwise` the one for a file without.
pub(crate) fn checked_settings(
    file: &Path,
    manager: Option<&str>,
    otherwise: Option<&String>,
) -> Result<serde_json::Value, Failure> {
    let refuse = |problems: Vec<Problem>| -> Failure { refuse(&problems) };
    let (name, text) = read_text(file).map_err(|problem| refuse(vec![problem]))?;
    let mut trees: Vec<serde_json::Value> =
        greenroom_manifest::read_trees(&name, &text).map_err(|problem| refuse(vec![problem]))?;
    let whole = |message: String| {
        refuse(vec![Problem {
            file: name.clone(),
            position: None,
            path: String::new(),
            message,
        }])
    };
    if trees.len() != 1 {
        let message = format!("it must hold one document, and holds {}", trees.len());
        return Err(whole(message));
    }
    let mut tree = trees.remove(0);
    // An address from elsewhere goes before the one in the file, which must be one all the same.
    let own = tree.get("url").is_some().then(|| tree.clone());
    match (&mut tree, manager) {
        (serde_json::Value::Object(keys), Some(manager)) => {
            keys.insert("url".to_owned(), manager.into());
        }
        (serde_json::Value::Object(keys), None) => {
            if let (Some(url), false) = (otherwise, keys.contains_key("url")) {
                keys.insert("url".to_owned(), url.as_str().into());
            }
        }
        _ => return Err(whole("settings are keys with values".to_owned())),
    }
    let checked = greenroom_policy::Settings::parse(own.as_ref().unwrap_or(&tree));
    let Err(error) = checked else {
        return Ok(tree);
    };
    let places = greenroom_manifest::Locations::of(&text).unwrap_or_default();
    let problems = error.faults.iter().map(|fault| Problem {
        file: name.clone(),
        position: places.position(0, &fault.path),
        path: fault.path.clone(),
        message: format!("{} ({})", fault.message, fault.code.name()),
    });
    let mut problems: Vec<Problem> = problems.collect();
    problems.sort_by_key(|problem| problem.position);
    Err(refuse(problems))
}

// === impl Run ===

impl Announce {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let every = self.every.map(std::time::Duration::from_secs);
        let url = self.url.unwrap_or_default();
        let planes = client.announce_control_plane(url, every).await?;
        let told: Vec<serde_json::Value> = planes
            .iter()
            .map(|plane| {
                serde_json::json!({
                    "member": plane.member, "url": plane.url, "announcedAt": plane.announced_at,
                    "intervalMs": plane.interval.map(|it| it.as_millis() as u64),
                    "stale": plane.stale, "active": plane.active,
                })
            })
            .collect();
        self.manager.output().either(&told, || {
            let lines = planes.iter().map(|plane| {
                let stale = if plane.stale { " (stale)" } else { "" };
                format!("{} {}{stale}", plane.member, plane.url)
            });
            let lines: Vec<String> = lines.collect();
            match lines.is_empty() {
                true => "no control plane is announced".to_owned(),
                false => lines.join("\n"),
            }
        })
    }
}

impl Run {
    pub(crate) async fn run(self) -> Outcome {
        match self.ask {
            Some(Ask::Status(status)) => return status.run().await,
            Some(Ask::Announce(announce)) => return announce.run().await,
            None => {}
        }
        let config = self.config.unwrap_or_default();
        // What the command line says goes before the settings, and these before the context.
        let context = self.reach.context()?;
        let given = self.reach.manager.first().cloned();
        let tree = checked_settings(&config, given.as_deref(), context.manager.first())?;
        let access = self.reach.access(&context);
        let mut signals = Signals::install()?;
        let mut hangup = Hangup::install()?;
        let listener = local::Control::bind(self.listen, "--listen").await?;
        let seat = seat(self.name, local::address_of(&listener)?);
        let mut control = local::Control::start(tree, access, listener, Some(seat))?;
        let address = control.address().to_string();
        let told = serde_json::json!({"event": "listening", "address": address});
        let mut told = Output { json: self.json }
            .either(&told, || format!("control plane serves at {address}"));
        if told.is_ok() {
            // One that just dies leaves the seat to run out, and migrations as they stand (LIFE-03).
            tokio::select! {
                () = signals.recv() => {}
                () = hangup.recv() => {}
                failure = control.ended() => told = Err(failure),
            }
        }
        control.stop().await;
        told
    }
}

/// Who this one is to the others.
fn seat(name: Option<String>, address: SocketAddr) -> SeatSettings {
    let machine = || {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    };
    SeatSettings {
        name: name.unwrap_or_else(|| format!("{}:{}", machine(), address.port())),
        url: format!("http://{address}"),
    }
}

// === impl Status ===

impl Status {
    async fn run(self) -> Outcome {
        let health = self.control.client().health().await;
        let health = health.map_err(|error| lost(&error))?;
        Output { json: self.json }.either(&health, || in_words(&health))
    }
}

fn in_words(health: &Health) -> String {
    let phase = crate::output::word(&health.phase);
    let seat = match &health.seat {
        SeatState::Alone => format!("alone, {phase}"),
        SeatState::Active { turn } => format!("active, {phase}, turn {turn}"),
        SeatState::Standby { active, .. } if active.is_empty() => {
            "standby, and no active one is known".to_owned()
        }
        SeatState::Standby { active, url } => format!("standby; active is {active} at {url}"),
    };
    match &health.problem {
        // A standby's problem says the same in other words.
        Some(problem) if !matches!(health.seat, SeatState::Standby { .. }) => {
            format!("{seat}\n{problem}")
        }
        _ => seat,
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
        let mut without = Vec::new();
        let manifests = read_all(&self.files).map_err(|problems| refuse(&problems))?;
        // A pool that is none has no place, and not for want of room.
        let otherwise = "check the form alone with `greenroom validate --offline`";
        let found = check_needs(&self.control, &manifests, otherwise).await?;
        if !found.errors.is_empty() {
            return Err(refuse(&found.errors));
        }
        for manifest in manifests {
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
                    let job_id = bundle.job_id(copy, &job.job_name);
                    let told = PlacedJob {
                        job_id: &job_id,
                        placed: &placed,
                    };
                    output.either(&told, || format!("Job {job_id}:\n{}", placed.text))?;
                    if matches!(placed.decision, Decision::Failure { .. }) {
                        without.push(job_id.to_string());
                    }
                }
            }
        }
        no_room(&without)
    }
}
