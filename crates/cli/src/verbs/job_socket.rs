//! `greenroom job-socket`: for those who write jobs.

use std::time::Duration;

use clap::{Args, Subcommand};
use greenroom_worker::{Finding, Patience, check_job};

use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Help with the job socket, for those who write jobs.
#[derive(Debug, Args)]
pub(crate) struct JobSocket {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a job's program against a simulated migration and say where it departs from the protocol.
    Check(Check),
}

#[derive(Debug, Args)]
struct Check {
    /// Time for a copy of the program to start and connect, in seconds.
    #[arg(long, default_value_t = 10, value_name = "S")]
    start_limit: u64,
    /// Time for a step, in seconds; a `working` doubles it.
    #[arg(long, default_value_t = 30, value_name = "S")]
    step_limit: u64,
    /// Time between the stop's signal and the kill, in seconds.
    #[arg(long, default_value_t = 10, value_name = "S")]
    grace: u64,
    /// Print one JSON object per finding.
    #[arg(long)]
    json: bool,
    /// The program and its arguments. It is started twice, as the source and as the target.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

// === impl JobSocket ===

impl JobSocket {
    pub(crate) async fn run(self) -> Outcome {
        match self.what {
            What::Check(check) => check.run().await,
        }
    }
}

// === impl Check ===

impl Check {
    async fn run(self) -> Outcome {
        let output = Output { json: self.json };
        let patience = Patience {
            start: Duration::from_secs(self.start_limit),
            step: Duration::from_secs(self.step_limit),
            grace: Duration::from_secs(self.grace),
        };
        let mut told = Ok(());
        let tell = |finding: &Finding| {
            if told.is_ok() {
                told = output.either(finding, || words(finding));
            }
        };
        let findings = check_job(&self.command, patience, tell).await;
        told?;
        let program = &self.command[0];
        let findings = findings
            .map_err(|error| Failure::failed(format!("{program} cannot be started: {error}")))?;
        let departs = findings.iter().filter(|it| it.departure.is_some()).count();
        match departs {
            0 => Ok(()),
            1 => Err(Failure::failed(format!(
                "{program} departs from the job socket in one point"
            ))),
            _ => Err(Failure::failed(format!(
                "{program} departs from the job socket in {departs} points"
            ))),
        }
    }
}

fn words(finding: &Finding) -> String {
    let Finding {
        spec,
        side,
        rule,
        departure,
    } = finding;
    match departure {
        None => format!("ok       {spec}  {side:<6}  {rule}"),
        Some(why) => format!("DEPARTS  {spec}  {side:<6}  {rule}: {why}"),
    }
}
