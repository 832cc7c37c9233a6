//! `greenroom migrate` and `abort-migration`: a running job changes its node.

use clap::{Args, ValueEnum};
use greenroom_auto::{Clock, SystemClock};
use greenroom_console::client::ClientError;
use greenroom_placement::Domain;
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, MigrationState, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall, Callback};
use greenroom_sdk::types::{JobId, MigrationId, NodeId, Wall};

use super::control::{Control, lost};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Table, say, word, words};

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
    #[arg(long, value_parser = words, default_value = "taken back by an operator")]
    reason: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// List migrations: those under way, and the last that ended.
#[derive(Debug, Args)]
pub(crate) struct Migrations {
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
        let known = client.migrations().await;
        let mut all = known.iter().flatten();
        let begun = all.find(|it| it.migration_id == migration_id);
        let mut shares = begun.map_or_else(Vec::new, |state| state.shares.clone());
        let mut told = serde_json::json!({"jobId": self.job, "migrationId": migration_id});
        if !shares.is_empty() {
            told["shares"] = serde_json::json!(shares);
        }
        output.either(&told, || {
            format!("job {} is moving (migration {migration_id})", self.job)
        })?;
        known.map_err(|error| lost(&error))?;
        self.warn_of_copies(&shares);
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
            // The other copy, or what is known of the place, may have changed meanwhile.
            if state.shares.iter().any(|domain| !shares.contains(domain)) {
                shares.clone_from(&state.shares);
                self.warn_of_copies(&shares);
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

impl Migrate {
    /// Copies that are less apart than was asked for; JSON has it as `shares` (MIGR-38).
    fn warn_of_copies(&self, shares: &[Domain]) {
        if let Some(words) = to_other_copy(shares).filter(|_| !self.json) {
            say(&format!("warning: {} goes {words}", self.job));
        }
    }
}

/// Where a job goes that shares this with its other copy (DRAIN-25, MIGR-38); none where nothing.
pub(super) fn to_other_copy(shares: &[Domain]) -> Option<String> {
    let shares: Vec<&str> = shares.iter().map(|domain| domain.word()).collect();
    (!shares.is_empty()).then(|| {
        let shares = shares.join(" and ");
        format!("to the {shares} of its other copy, which was to be avoided")
    })
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
        let known = client.migrations().await.map_err(|error| lost(&error))?;
        let Some(state) = known.iter().find(|it| it.migration_id == self.migration) else {
            let text = format!("migration {} is not known, or long over", self.migration);
            return Err(Failure::failed(text)
                .because("unknown_migration")
                .hint("`greenroom migrations` lists those under way and the last that ended"));
        };
        let (id, job) = (&state.migration_id, &state.source_job_id);
        let told = serde_json::json!({"migrationId": id, "jobId": job, "phase": state.phase});
        Output { json: self.json }.either(&told, || match state.phase {
            MigrationPhase::Aborted => {
                let node = &state.source_node_id;
                format!("migration {id} is taken back: job {job} stays on {node}")
            }
            MigrationPhase::Done => format!("migration {id} was over: job {job} has moved"),
            phase => format!("migration {id} is being taken back ({})", word(&phase)),
        })
    }
}

// === impl Migrations ===

impl Migrations {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.control.client();
        let migrations = client.migrations().await.map_err(|error| lost(&error))?;
        let now = SystemClock::new().now().wall;
        Output { json: self.json }.either(&migrations, || table(&migrations, now))
    }
}

/// Those under way first, each kind from the newest on.
fn table(migrations: &[MigrationState], now: Wall) -> String {
    if migrations.is_empty() {
        return "no migration is under way, and none ended lately".to_owned();
    }
    let mut rows: Vec<&MigrationState> = migrations.iter().collect();
    rows.sort_by_key(|it| (is_over(it.phase), std::cmp::Reverse(it.started_at)));
    let mut table = Table::new(&["MIGRATION", "JOB", "PHASE", "AGE", "FROM", "TO", "NOTE"]);
    for it in rows {
        let target = it.target_node_id.as_ref().map(ToString::to_string);
        table.row(vec![
            it.migration_id.to_string(),
            it.source_job_id.to_string(),
            word(&it.phase),
            age(now.since(it.started_at)),
            it.source_node_id.to_string(),
            target.unwrap_or_else(|| "-".to_owned()),
            it.abort_reason
                .clone()
                .or_else(|| to_other_copy(&it.shares))
                .unwrap_or_default(),
        ]);
    }
    table.render()
}

const fn is_over(phase: MigrationPhase) -> bool {
    matches!(phase, MigrationPhase::Done | MigrationPhase::Aborted)
}

/// Time since the beginning, in the two largest units. The two clocks may differ a little.
fn age(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(id: &str, phase: MigrationPhase, began_s: i64) -> MigrationState {
        let over = phase == MigrationPhase::Aborted;
        MigrationState {
            migration_id: id.into(),
            source_job_id: "news.0.encode".into(),
            strategy: Strategy::Overlap,
            source_role: "primary".into(),
            target_role: "primary@1".into(),
            source_node_id: "worker-1".into(),
            target_node_id: over.then(|| "worker-2".into()),
            started_at: Wall(began_s * 1000),
            phase,
            phase_history: Vec::new(),
            abort_reason: over.then(|| "the target failed".to_owned()),
            shares: Vec::new(),
        }
    }

    #[test]
    fn what_is_under_way_comes_first_with_its_age() {
        let list = [
            migration("old", MigrationPhase::Aborted, 0),
            migration("new", MigrationPhase::Launching, 3_600),
        ];
        let told = table(&list, Wall(3_725_000));
        let lines: Vec<Vec<&str>> = told
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            ["new", "news.0.encode", "launching", "2m5s", "worker-1", "-"]
        );
        assert_eq!(
            lines[2][..6],
            [
                "old",
                "news.0.encode",
                "aborted",
                "1h2m",
                "worker-1",
                "worker-2"
            ]
        );
        assert!(told.contains("the target failed"), "{told}");
        let mut beside = migration("beside", MigrationPhase::Done, 0);
        beside.shares = vec![Domain::Node, Domain::Az];
        let told = table(&[beside], Wall(0));
        assert!(
            told.contains("to the node and zone of its other copy"),
            "{told}"
        );
        assert!(table(&[], Wall(0)).contains("no migration"));
        assert_eq!(age(-5), "0s");
    }
}
