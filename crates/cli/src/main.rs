//! The `greenroom` binary: Manager, control plane, worker, and the tools that people use.

mod failure;
mod output;
mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Outcome;

/// Greenroom keeps live productions on the air.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Testcard(verbs::media::Testcard),
    Probe(verbs::media::Probe),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(&format!("greenroom: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(&format!("greenroom: {failure}"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

async fn run(verb: Verb) -> Outcome {
    match verb {
        Verb::Testcard(testcard) => testcard.run().await,
        Verb::Probe(probe) => probe.run().await,
    }
}
