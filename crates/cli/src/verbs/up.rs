//! `greenroom up`: a whole installation on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use greenroom_manager::StatusLog;

use super::demo::{self, Demo};
use super::manager;
use super::worker::Runtime;
use crate::failure::{Failure, Outcome};
use crate::local::{Plan, System, WORKERS_MAX};
use crate::output::{Output, say};
use crate::signals::{Hangup, Signals};

/// Run Manager, control plane and workers on this machine, on loopback.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Number of workers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    workers: u32,
    /// Folder of all data.
    #[arg(long, default_value = "greenroom-data", value_name = "DIR")]
    data: PathBuf,
    /// Where the Manager is served.
    #[arg(long, default_value = "127.0.0.1:6789")]
    listen: SocketAddr,
    /// Where the control plane is served.
    #[arg(long, default_value = "127.0.0.1:6788")]
    control_listen: SocketAddr,
    /// What runs jobs.
    #[arg(long, value_enum, default_value = "auto")]
    runtime: Runtime,
    /// Settings of the control plane, YAML or JSON; default: one pool, `local`. The workers serve in the
    /// pool `local`, or else in the first that has servers of one's own.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// At Ctrl-C leave jobs running; the next `up` finds them again.
    #[arg(long)]
    keep: bool,
    /// Stage the failover demonstration instead, on data of its own.
    #[arg(long)]
    demo: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

// === impl Up ===

impl Up {
    pub(crate) async fn run(self, status_log: StatusLog) -> Outcome {
        if self.demo {
            return demo::failover(Demo::new(self.json), status_log).await;
        }
        let settings = match &self.settings {
            Some(file) => Some(super::control::checked_settings(
                file,
                Some("127.0.0.1:1"),
                None,
            )?),
            None => None,
        };
        let plan = Plan {
            data: self.data.clone(),
            listen: self.listen,
            control: self.control_listen,
            workers: self.workers,
            runtime: self.runtime,
            keep: self.keep,
            settings,
        };
        let mut signals = Signals::install()?;
        let mut hangup = Hangup::install()?;
        say("starting Manager, control plane and workers ...");
        let stop = async {
            tokio::select! {
                () = signals.recv() => {}
                () = hangup.recv() => {}
            }
        };
        let mut system = System::start(plan, status_log, stop).await?;
        let runtime = system
            .workers
            .first()
            .map(|worker| worker.runtime.clone())
            .unwrap_or_default();
        let control = system
            .control_address()
            .map(|address| format!("http://{address}"))
            .unwrap_or_default();
        let told = serde_json::json!({
            "event": "up",
            "manager": format!("http://{}", system.manager_address()),
            "control": control,
            "workers": system.workers.iter().map(|worker| &worker.node_id).collect::<Vec<_>>(),
            "runtime": runtime,
            "data": self.data,
            "keep": self.keep,
        });
        let at_end = if self.keep {
            "jobs go on running; the next `greenroom up` finds them again"
        } else {
            "jobs are stopped; with --keep they would go on running"
        };
        let told = Output { json: self.json }.either(&told, || {
            format!(
                "Manager        http://{}\n\
                 control plane  {control}\n\
                 workers        {}, running jobs with {}\n\
                 data           {}\n\
                 at Ctrl-C      {at_end}\n\
                 \n\
                 try            greenroom apply -f examples/primary-backup.yaml --wait",
                system.manager_address(),
                system.workers.len(),
                words(&runtime),
                self.data.display(),
            )
        });
        if let Err(failure) = told {
            end(system).await?;
            return Err(failure);
        }
        let fatal = system.fatal();
        tokio::select! {
            () = signals.recv() => {}
            () = hangup.recv() => {}
            error = fatal => {
                return Err(manager::store_failed(&error));
            }
            failure = system.keep_workers() => {
                say(&format!("ending: {failure}"));
                end(system).await?;
                return Err(failure);
            }
        }
        say(&format!("ending: {at_end} (Ctrl-C again ends at once)"));
        tokio::select! {
            ended = end(system) => ended,
            () = signals.recv() => {
                let hint = "the next `greenroom up` takes over what still runs";
                Err(Failure::failed("ended at once; workers may still run").hint(hint))
            }
        }
    }
}

/// Ends everything in order, for as long as the store goes on.
async fn end(system: System) -> Outcome {
    let fatal = system.fatal();
    tokio::select! {
        ended = system.stop() => ended,
        error = fatal => Err(manager::store_failed(&error)),
    }
}

/// The runtime in plain words.
fn words(runtime: &str) -> String {
    if runtime.starts_with("process") {
        "plain processes (no Docker Engine is used)".to_owned()
    } else {
        runtime.to_owned()
    }
}
