//! `greenroom drain`: a node is emptied job by job, and then ended.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use greenroom_console::Client;
use greenroom_placement::Domain;
use greenroom_policy::drain::{DrainJob, DrainOptions, DrainPhase, DrainState, DrainStatus};
use greenroom_policy::effect::MirrorState;
use greenroom_policy::{ApiAnswer, ApiCall, Callback};
use greenroom_sdk::types::{JobId, Millis, NodeId};

use super::control::{Control, lost};
use super::media::duration;
use super::migrate::{ChangeOver, to_other_copy};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, say, word};

/// Move a node's jobs elsewhere, one by one, and then end it.
///
/// It is followed until it is over. Ctrl-C ends the following and not the drain, which `uncordon`
/// cancels. Called again for a node that is being drained it tries what is stuck once more, and makes
/// the drain stricter: --timeout may bring its end nearer, --force makes it end the node. An owned
/// server is not switched off: its worker comes back when it is started again, and takes jobs again
/// after `uncordon`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The node, by id.
    #[arg(value_name = "NODE")]
    node: NodeId,
    /// How long it may take, e.g. 90s; 10m unless given.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// When the time is over, end the node with what is still on it.
    #[arg(long)]
    force: bool,
    /// How jobs change over; stop-then-start unless given.
    ///
    /// A lease-protected job never runs twice: where overlap is asked for it hands over, or else stops
    /// and starts.
    #[arg(long, value_enum)]
    strategy: Option<ChangeOver>,
    /// Take nothing off the air: jobs that are on it are handed over, backups move first.
    ///
    /// A node with jobs on the air that cannot hand over is left alone, and they are named; --force
    /// moves those as --strategy says.
    #[arg(long)]
    for_upgrade: bool,
    /// Begin it and do not follow it.
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON object per step; the last one is how it ended.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Tells every job's news once.
struct Progress {
    output: Output,
    told: BTreeMap<JobId, (DrainStatus, Option<String>, Vec<Domain>)>,
}

// === impl Drain ===

impl Drain {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.control.client();
        // Listening first, so that no step is missed.
        let mut steps = client.callbacks().await.map_err(|error| lost(&error))?;
        let call = ApiCall::DrainNode {
            node_id: self.node.clone(),
            options: DrainOptions {
                timeout_ms: self
                    .timeout
                    .map(|timeout| Millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))),
                force: self.force,
                strategy: self.strategy.map(Into::into),
                strategies: BTreeMap::new(),
                for_upgrade: self.for_upgrade,
            },
        };
        let answer = client.call(&call).await.map_err(|error| lost(&error))?;
        let ApiAnswer::Drain(state) = answer else {
            return Err(Failure::failed("the control plane gave no drain"));
        };
        let output = Output { json: self.json };
        if !self.json {
            for words in &state.not_taken {
                say(&format!("not taken: {words}"));
            }
        }
        if self.no_wait {
            return output.either(&state, || {
                let count = state.jobs.len();
                let s = if count == 1 { "" } else { "s" };
                format!("the drain of node {} has begun: {count} job{s}", self.node)
            });
        }
        let mut progress = Progress {
            output,
            told: BTreeMap::new(),
        };
        progress.begin(&state)?;
        let mut state = *state;
        while !is_over(state.phase) {
            let event = steps.next().await.map_err(|error| lost(&error))?;
            match event.as_ref().map(|event| event.name.as_str()) {
                Some("onDrainProgress") => {}
                Some("lagged") if is_gone(&client, &self.node).await? => {
                    return output.either(
                        &serde_json::json!({"nodeId": self.node, "phase": "done"}),
                        || format!("node {} is drained; some steps were missed", self.node),
                    );
                }
                Some("ended") | None => {
                    return Err(Failure::failed(format!(
                        "the control plane ended while {} was drained; nobody goes on with it",
                        self.node
                    ))
                    .hint("`greenroom get jobs` shows what is still on it; drain it again"));
                }
                Some(_) => continue,
            }
            let news = event.and_then(|event| serde_json::from_value(event.data).ok());
            if let Some(Callback::OnDrainProgress(news)) = news
                && news.node_id == self.node
            {
                progress.tell(&news)?;
                state = *news;
            }
        }
        ended(output, &state)
    }
}

const fn is_over(phase: DrainPhase) -> bool {
    matches!(
        phase,
        DrainPhase::Done | DrainPhase::Partial | DrainPhase::Failed
    )
}

/// True when the node has ended, or is about to.
async fn is_gone(client: &Client, node_id: &NodeId) -> Result<bool, Failure> {
    let nodes = client.nodes().await.map_err(|error| lost(&error))?;
    let node = nodes.iter().find(|row| row.node.node_id == *node_id);
    Ok(node
        .is_none_or(|row| matches!(row.node.state, MirrorState::Stopping | MirrorState::Stopped)))
}

/// How a job changes over where that is not as asked for (DRAIN-22).
fn instead(job: &DrainJob) -> String {
    match (job.strategy, job.instead_of) {
        (Some(by), Some(asked)) if job.status == DrainStatus::Migrating => format!(
            " by {}, not {}: it is lease-protected",
            word(&by),
            word(&asked)
        ),
        _ => String::new(),
    }
}

/// What a job shares with its other copy where it goes, or went (DRAIN-25).
fn beside(job: &DrainJob) -> String {
    to_other_copy(&job.shares).map_or_else(String::new, |words| format!(", {words}"))
}

/// Copies that are less apart at the end of a drain than was asked for: said beside the good news.
fn warn_of_copies(state: &DrainState) {
    let left = |job: &&DrainJob| job.status != DrainStatus::Stuck && !job.shares.is_empty();
    for job in state.jobs.iter().filter(left) {
        say(&format!("warning: {} went{}", job.job_id, beside(job)));
    }
}

/// The last word, and whether it went well.
fn ended(output: Output, state: &DrainState) -> Outcome {
    let node_id = &state.node_id;
    let left: Vec<&DrainJob> = state
        .jobs
        .iter()
        .filter(|job| job.status == DrainStatus::Stuck)
        .collect();
    let left_text = left
        .iter()
        .map(|job| job.job_id.to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let why = state.reason.as_deref().unwrap_or("no reason was given");
    if !output.json {
        warn_of_copies(state);
    }
    // What went down with the node and has a new one has no reason (DRAIN-24).
    let without: Vec<String> = state
        .jobs
        .iter()
        .filter(|job| job.status == DrainStatus::Terminated && job.reason.is_some())
        .map(|job| job.job_id.to_string())
        .collect();
    match state.phase {
        DrainPhase::Partial => Err(Failure::failed(format!(
            "{node_id} was not emptied in time and goes on, cordoned; still on it: {left_text}"
        ))
        .hint("`greenroom why JOB` says why; --force would end the node all the same")),
        DrainPhase::Failed => Err(Failure::failed(format!(
            "the drain of {node_id} came to nothing: {why}"
        ))),
        _ if !without.is_empty() => Err(Failure::failed(format!(
            "{node_id} ends, and what was on it has no other node: {}",
            without.join(", ")
        ))
        .hint(
            "they start as soon as there is room; `greenroom why JOB` says what stands in the way",
        )),
        _ if output.json => Ok(()),
        _ => output.text(&format!("node {node_id} is drained and ends")),
    }
}

// === impl Progress ===

impl Progress {
    fn begin(&mut self, state: &DrainState) -> Outcome {
        if !self.output.json {
            let count = state.jobs.len();
            let s = if count == 1 { "" } else { "s" };
            say(&format!(
                "draining {}: {count} job{s} (`greenroom uncordon {}` cancels it)",
                state.node_id, state.node_id
            ));
        }
        self.tell(state)
    }

    /// JSON: every step whole, on stdout. For people: what is new, on stderr.
    fn tell(&mut self, state: &DrainState) -> Outcome {
        if self.output.json {
            return self.output.line(state);
        }
        let total = state.jobs.len();
        let left = |status| matches!(status, DrainStatus::Migrating | DrainStatus::Stuck);
        let done = state.jobs.iter().filter(|job| !left(job.status)).count();
        for job in &state.jobs {
            let now = (job.status, job.reason.clone(), job.shares.clone());
            if self.told.get(&job.job_id) == Some(&now) {
                continue;
            }
            let words = match job.status {
                DrainStatus::Stuck if job.reason.as_deref() == Some("backupFirst") => "waits",
                DrainStatus::Migrating => "is moving",
                DrainStatus::Migrated => "has moved",
                DrainStatus::Stuck => "is stuck",
                DrainStatus::Moved => "has left",
                DrainStatus::Terminated => "went down with the node",
            };
            let why = job.reason.as_deref().map(|why| format!(": {why}"));
            say(&format!(
                "{done}/{total} {} {words}{}{}{}",
                job.job_id,
                instead(job),
                beside(job),
                why.unwrap_or_default()
            ));
            self.told.insert(job.job_id.clone(), now);
        }
        Ok(())
    }
}
