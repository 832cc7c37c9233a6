//! The `greenroom` binary: Manager, control plane, worker, and the tools that people use.

mod failure;
mod logging;
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
    Get(verbs::get::Get),
    Describe(verbs::get::Describe),
    Events(verbs::events::Events),
    Logs(verbs::logs::Logs),
    Node(verbs::node::Node),
    Manager(verbs::manager::Manager),
    Worker(Box<verbs::worker::Worker>),
    Testcard(verbs::media::Testcard),
    Probe(verbs::media::Probe),
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    // The supervisor of one instance's processes: a worker starts it, people do not.
    if args.next_if(|word| word == "supervise").is_some() {
        return greenroom_worker::supervise::main(args);
    }
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
        Verb::Get(get) => get.run().await,
        Verb::Describe(describe) => describe.run().await,
        Verb::Events(events) => events.run().await,
        Verb::Logs(logs) => logs.run().await,
        Verb::Node(node) => node.run().await,
        Verb::Worker(worker) => {
            logging::install("greenroom=info,warn");
            worker.run().await
        }
        Verb::Manager(manager) => manager.run(logging::install("greenroom=info,warn")).await,
        Verb::Testcard(testcard) => testcard.run().await,
        Verb::Probe(probe) => probe.run().await,
    }
}
