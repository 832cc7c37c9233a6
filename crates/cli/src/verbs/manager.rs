//! `greenroom manager`: the Manager as a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use greenroom_manager::{Running, Settings, StartError, StatusLog};
use greenroom_store::{FatalError, OpenError, ProposeError};

use super::media::chain;
use crate::failure::{Exit, FULL_HINT, Failure, Outcome};
use crate::output::Output;
use crate::signals::Signals;

/// Run a Manager, which keeps the record of bundles, jobs and nodes, and speaks with workers.
#[derive(Debug, Args)]
pub(crate) struct Manager {
    /// Folder of its store.
    #[arg(long, default_value = "greenroom-data/manager", value_name = "DIR")]
    data_dir: PathBuf,
    /// Where the API is served; loopback only.
    #[arg(long, default_value = "127.0.0.1:6789")]
    listen: SocketAddr,
    /// Make a new store although the folder holds other files.
    #[arg(long)]
    create: bool,
    /// Name of this member.
    #[arg(long, default_value = "manager")]
    name: String,
    /// Print one JSON line when the API is served.
    #[arg(long)]
    json: bool,
}

// === impl Manager ===

impl Manager {
    pub(crate) async fn run(self, status_log: StatusLog) -> Outcome {
        let mut settings = Settings::new(self.data_dir, self.listen);
        settings.create = self.create;
        settings.member_name = self.name;
        let signals = Signals::install()?;
        let running = start(settings, status_log).await?;
        let address = running.address().to_string();
        let output = Output { json: self.json };
        output.either(
            &serde_json::json!({"event": "listening", "address": address}),
            || format!("Manager serves at {address}"),
        )?;
        serve(running, signals).await
    }
}

/// Starts a Manager, with the exit code that its refusal to start means.
pub(crate) async fn start(settings: Settings, status_log: StatusLog) -> Result<Running, Failure> {
    greenroom_manager::start(settings, status_log)
        .await
        .map_err(|error| {
            let exit = match &error {
                StartError::Listen { .. } => Exit::AddressTaken,
                StartError::NotLoopback(_) => Exit::BadInput,
                StartError::Open(ProposeError::Fatal(_)) => Exit::DiskFailed,
                StartError::Open(_) => Exit::Failed,
                StartError::Store(error) => match error {
                    OpenError::Locked { .. } => Exit::Locked,
                    OpenError::NewerSchema { .. } => Exit::TooNew,
                    OpenError::StoreMissing { .. } => Exit::StoreMissing,
                    OpenError::Unreadable { .. } => Exit::Unreadable,
                    _ => Exit::DiskFailed,
                },
            };
            let failure = Failure::new(exit, chain(&error));
            match exit {
                Exit::DiskFailed if is_full(&error) => failure.hint(FULL_HINT),
                Exit::AddressTaken => failure.hint("--listen HOST:PORT chooses another address"),
                _ => failure,
            }
        })
}

fn is_full(error: &StartError) -> bool {
    match error {
        StartError::Store(OpenError::DiskFull { .. }) => true,
        StartError::Store(OpenError::Stopped(cause))
        | StartError::Open(ProposeError::Fatal(cause)) => cause.disk_full,
        _ => false,
    }
}

const RUN_ON: &str = "workers and jobs run on, and the next start takes them over";

/// That the store cannot go on, and what to do about it.
pub(crate) fn store_failed(error: &FatalError) -> Failure {
    let failure = Failure::new(Exit::DiskFailed, chain(error));
    if error.disk_full {
        return failure.hint(format!("{RUN_ON}; {FULL_HINT}"));
    }
    failure.hint(RUN_ON)
}

/// Runs until a signal or until the store fails.
async fn serve(running: Running, mut signals: Signals) -> Outcome {
    let fatal = running.fatal();
    tokio::select! {
        () = signals.recv() => {}
        error = fatal => return Err(store_failed(&error)),
    }
    // A second signal ends the process at once; nothing durable is lost by that (API-19).
    tokio::select! {
        closed = running.shutdown() => closed.map_err(|error| {
            store_failed(&error)
        }),
        () = signals.recv() => Err(Failure::failed("ended at once by a second signal")),
    }
}
