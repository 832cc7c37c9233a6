//! `greenroom migrate` and `abort-migration`: a running job changes its node.

use clap::{Args, ValueEnum};
use greenroom_console::client::ClientError;
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall, Callback};
use greenroom_sdk::types::{JobId, MigrationId, NodeId};

use super::control::{Control, lost};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, say, word};

/// Move a running job to another node.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// The job, by id, e.g. news.0.encode.
    job: JobId,
    /// The only node that will do; without it the policy chooses.
    #[arg(long, value_name = "NODE")]
    to: Option<NodeId>,
    /// How it changes over.
    #[arg(long, value_enum, default_value_t)]
    strategy: ChangeOver,
    /// Admit spares that are reserved for others.
    #[arg(long)]
    override_reservation: bool,
    /// Follow it until the job lives on its new node.
    #[arg(long)]
    wait: bool,
    /// Print JSON; with --wait one object per step.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Take a migration back, as long as the source was not told to stop.
#[derive(Debug, Args)]
pub(crate) struct AbortMigration {
    /// The migration, by the id that `migrate` prints.
    migration: MigrationId,
    /// Why; it is kept with the migration.
    #[arg(long, default_value = "taken back by an operator")]
    reason: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// How a job changes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChangeOver {
    /// The target is prepared, the source stops, the target starts.
    #[default]
    StopThenStart,
    /// The target runs before the source stops.
    Overlap,
    /// The two agree on the point at which one follows the other; the job must be made for it.
    Handover,
}

// === impl ChangeOver ===

impl From<ChangeOver> for Strategy {
    fn from(change_over: ChangeOver) -> Self {
        match change_over {
            ChangeOver::StopThenStart => Self::StopThenStart,
            ChangeOver::Overlap => Self::Overlap,
            ChangeOver::Handover => Self::Handover,
        }
    }
}

// === impl Migrate ===

impl Migrate {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.control.client();
        // Listening first, so that no step is missed.
        let mut steps = match self.wait {
            true => Some(client.callbacks().await.map_err(|error| lost(&error))?),
            false => None,
        };
        let call = ApiCall::MigrateJob {
            job_id: self.job.clone(),
            options: MigrateOptions {
                strategy: self.strategy.into(),
                target_node_id: self.to.clone(),
                override_reservation: self.override_reservation,
            },
        };
        let answer = client.call(&call).await.map_err(|error| match &error {
            ClientError::Refused { code, .. } if code == "noCapacityInAnyPool" => {
                let target = match &self.to {
                    Some(node_id) => format!("node {node_id}"),
                    None => "no other node".to_owned(),
                };
                let can = if self.to.is_some() { "cannot" } else { "can" };
                Failure::failed(format!("{target} {can} take job {} now", self.job))
                    .hint("`greenroom get nodes` lists the nodes and their room")
            }
            _ => lost(&error),
        })?;
        let ApiAnswer::Migration(migration_id) = answer else {
            return Err(Failure::failed("the control plane gave no migration"));
        };
        let output = Output { json: self.json };
        let told = serde_json::json!({"jobId": self.job, "migrationId": migration_id});
        output.either(&told, || {
            format!("job {} is moving (migration {migration_id})", self.job)
        })?;
        let Some(steps) = &mut steps else {
            return Ok(());
        };
        loop {
            let event = steps.next().await.map_err(|error| lost(&error))?;
            let is_over = event.as_ref().is_none_or(|event| event.name == "ended");
            if is_over {
                return Err(Failure::failed(
                    "the control plane ended; nobody goes on with the migration",
                )
                .hint(format!(
                    "`greenroom describe job {}` says where it is",
                    self.job
                )));
            }
            let news = event.and_then(|event| serde_json::from_value(event.data).ok());
            let Some(Callback::OnMigrationPhase(state)) = news else {
                continue;
            };
            if state.migration_id != migration_id {
                continue;
            }
            if self.json {
                output.line(&state)?;
            } else {
                say(&format!("{}: {}", self.job, word(&state.phase)));
            }
            match state.phase {
                MigrationPhase::Done => {
                    let node_id = state.target_node_id.unwrap_or_default();
                    return match self.json {
                        true => Ok(()),
                        false => output.text(&format!("job {} runs on {node_id}", self.job)),
                    };
                }
                MigrationPhase::Aborted => {
                    let why = state.abort_reason.unwrap_or_default();
                    return Err(Failure::failed(format!(
                        "the migration of {} came to nothing: {why}",
                        self.job
                    )));
                }
                _ => {}
            }
        }
    }
}

// === impl AbortMigration ===

impl AbortMigration {
    pub(crate) async fn run(self) -> Outcome {
        let call = ApiCall::AbortMigration {
            migration_id: self.migration.clone(),
            reason: self.reason,
        };
        let client = self.control.client();
        client.call(&call).await.map_err(|error| lost(&error))?;
        // One that is unknown or over is no error: then there is nothing to take back.
        let told = serde_json::json!({"migrationId": self.migration, "underWay": false});
        Output { json: self.json }.either(&told, || {
            format!("migration {} is not under way any more", self.migration)
        })
    }
}
