//! `greenroom node register` and `greenroom node deregister`: slots for owned servers.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use greenroom_sdk::types::{NodeId, PoolName};

use super::connect::Manager;
use super::control::Control;
use crate::failure::{Failure, Outcome};
use crate::output::say;

/// Slots for owned servers.
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a slot and print its one-shot token; a worker that presents it gets the slot.
    Register {
        /// Name of the node.
        name: String,
        /// Pool that it belongs to.
        #[arg(long, default_value = "")]
        pool: String,
        /// Write the token to this file, readable by its owner alone, instead of printing it.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        manager: Manager,
        #[command(flatten)]
        control: Control,
    },
    /// Stop what runs on a slot's node and remove the slot.
    Deregister {
        /// Id of the node.
        node: NodeId,
        #[command(flatten)]
        manager: Manager,
    },
}

// === impl Node ===

impl Node {
    pub(crate) async fn run(self) -> Outcome {
        match self.action {
            Action::Register {
                name,
                pool,
                out,
                manager,
                control,
            } => {
                if !pool.is_empty() {
                    check_pool(&control, &PoolName::new(&pool)).await?;
                }
                let client = manager.connect().await?;
                let slot = client
                    .register_cluster_node(name, PoolName::new(pool))
                    .await?;
                let node_id = &slot.node_id;
                let output = manager.output();
                if let Some(file) = out {
                    write_secret(&file, slot.token.reveal())?;
                    return output.either(&serde_json::json!({"nodeId": node_id}), || {
                        format!(
                            "node {node_id} registered; its token is in {}",
                            file.display()
                        )
                    });
                }
                let told = serde_json::json!({"nodeId": node_id, "token": slot.token.reveal()});
                if !manager.json {
                    say(&format!(
                        "node {node_id} registered; give this token to its worker, it works once:"
                    ));
                }
                output.either(&told, || slot.token.reveal().to_owned())
            }
            Action::Deregister { node, manager } => {
                let client = manager.connect().await?;
                let stopped = client.deregister_cluster_node(node.clone()).await.map_err(
                    |error| match error.reason() {
                        "unknown_slot" => Failure::failed(format!("there is no slot {node}"))
                            .because("unknown_slot")
                            .hint("`greenroom get nodes` lists the nodes"),
                        _ => error.into(),
                    },
                )?;
                manager.output().either(
                    &serde_json::json!({"nodeId": node, "stopped": stopped}),
                    || {
                        let jobs = match stopped.len() {
                            0 => "nothing ran on it".to_owned(),
                            1 => "its job is being stopped".to_owned(),
                            count => format!("its {count} jobs are being stopped"),
                        };
                        format!("node {node} removed; {jobs}")
                    },
                )
            }
        }
    }
}

/// Refuses a pool that the control plane does not know: nothing would ever be placed on the node.
/// Only it knows the pools; where it does not answer, that is said and the node registered.
async fn check_pool(control: &Control, pool: &PoolName) -> Outcome {
    match control.client().pools().await {
        Ok(pools) if pools.contains(pool) => Ok(()),
        Ok(pools) => {
            let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
            let known = match names.as_slice() {
                [] => "the control plane has no pool".to_owned(),
                names => format!("its pools are {}", names.join(", ")),
            };
            let text = format!(
                "the control plane knows no pool {:?}; {known}; nothing was registered",
                pool.as_str()
            );
            Err(Failure::bad_input(text))
        }
        Err(error) => {
            let pool = pool.as_str();
            say(&format!("warning: pool {pool:?} was not checked: {error}"));
            Ok(())
        }
    }
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(file: &std::path::Path, secret: &str) -> Result<(), Failure> {
    crate::file::write_secret(file, secret.as_bytes())
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))
}
