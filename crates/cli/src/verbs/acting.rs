//! `greenroom cordon`, `uncordon`, `evict` and `terminate`: what an operator does to a node.

use std::collections::BTreeSet;

use clap::Args;
use greenroom_console::Client;
use greenroom_console::api::Standing;
use greenroom_policy::acts::ABSENT_MAX_AGE;
use greenroom_policy::effect::MirrorState;
use greenroom_policy::{ApiAnswer, ApiCall};
use greenroom_sdk::types::NodeId;

use super::control::{Control, lost};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// How long a cordon waits for a server that is not there.
const ABSENT_DAYS: u64 = ABSENT_MAX_AGE.0 / (24 * 3_600_000);

/// Keep new placements off nodes, all of them or none, until they are uncordoned. What runs there
/// runs on. For a registered server that is switched off the cordon waits until it comes.
#[derive(Debug, Args)]
pub(crate) struct Cordon {
    #[command(flatten)]
    nodes: Nodes,
}

/// Let nodes take jobs again, all of them or none. A drain that is under way is cancelled.
#[derive(Debug, Args)]
pub(crate) struct Uncordon {
    #[command(flatten)]
    nodes: Nodes,
}

/// End a node at once, and keep placements off it meanwhile. Its jobs are placed elsewhere.
///
/// `drain` empties a node before it ends it. An owned server is not switched off: its worker comes
/// back when it is started again.
#[derive(Debug, Args)]
pub(crate) struct Evict {
    #[command(flatten)]
    node: Node,
}

/// End a node. Its jobs are placed elsewhere.
///
/// `drain` empties a node before it ends it. An owned server is not switched off: its worker comes
/// back when it is started again.
#[derive(Debug, Args)]
pub(crate) struct Terminate {
    #[command(flatten)]
    node: Node,
}

/// What several nodes are told at once.
#[derive(Clone, Copy, Debug)]
enum Change {
    Cordon,
    Uncordon,
}

#[derive(Debug, Args)]
struct Nodes {
    /// The nodes, by id.
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<NodeId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

#[derive(Debug, Args)]
struct Node {
    /// The node, by id.
    #[arg(value_name = "NODE")]
    node: NodeId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

// === impl Cordon, Uncordon, Evict, Terminate ===

impl Cordon {
    pub(crate) async fn run(self) -> Outcome {
        let (client, output) = (self.nodes.control.client(), self.nodes.output());
        let waiting = self.nodes.change(&client, Change::Cordon).await?;
        for node_id in &self.nodes.nodes {
            let waits = waiting.contains(node_id);
            let mut told = serde_json::json!({"nodeId": node_id, "action": "cordoned"});
            if waits {
                told["waits"] = true.into();
            }
            output.either(&told, || match waits {
                true => format!(
                    "node {node_id} is not there; its cordon waits for it, for {ABSENT_DAYS} days"
                ),
                false => format!("node {node_id} is cordoned"),
            })?;
        }
        Ok(())
    }
}

impl Uncordon {
    pub(crate) async fn run(self) -> Outcome {
        let (client, output) = (self.nodes.control.client(), self.nodes.output());
        self.nodes.change(&client, Change::Uncordon).await?;
        let standing = client.standing(&self.nodes.nodes).await.map_err(|error| {
            let mut failure = lost(&error);
            failure.message = format!(
                "they are uncordoned, but whether they take jobs is not known: {}",
                failure.message
            );
            failure
        })?;
        for node_id in &self.nodes.nodes {
            let kept_off = kept_off(standing.get(node_id));
            let told = serde_json::json!({
                "nodeId": node_id, "action": "uncordoned", "takesJobs": kept_off.is_none(),
            });
            output.either(&told, || match kept_off {
                None => format!("node {node_id} takes jobs again"),
                Some(why) => format!("node {node_id} is not cordoned any more, but {why}"),
            })?;
        }
        Ok(())
    }
}

impl Evict {
    pub(crate) async fn run(self) -> Outcome {
        let call = |node_id| ApiCall::EvictNode { node_id };
        self.node.end("evicted", "is cordoned and ends", call).await
    }
}

impl Terminate {
    pub(crate) async fn run(self) -> Outcome {
        let call = |node_id| ApiCall::TerminateNode { node_id };
        self.node.end("terminated", "ends", call).await
    }
}

// === impl Nodes, Node ===

impl Nodes {
    const fn output(&self) -> Output {
        Output { json: self.json }
    }

    /// Changes all of them or none; gives those that are not there.
    async fn change(&self, client: &Client, change: Change) -> Result<BTreeSet<NodeId>, Failure> {
        let node_ids = self.nodes.clone();
        let registered = BTreeSet::new();
        let call = match change {
            Change::Cordon => ApiCall::CordonNodes {
                node_ids,
                registered,
            },
            Change::Uncordon => ApiCall::UncordonNodes {
                node_ids,
                registered,
            },
        };
        match client.call(&call).await.map_err(|error| lost(&error))? {
            ApiAnswer::Waiting(nodes) => Ok(nodes.into_iter().collect()),
            _ => Err(Failure::failed(
                "the control plane did not say which of the nodes are there",
            )),
        }
    }
}

impl Node {
    async fn end(self, action: &str, words: &str, call: impl Fn(NodeId) -> ApiCall) -> Outcome {
        let node_id = &self.node;
        let called = self.control.client().call(&call(node_id.clone())).await;
        called.map_err(|error| lost(&error))?;
        let told = serde_json::json!({"nodeId": node_id, "action": action});
        Output { json: self.json }.either(&told, || format!("node {node_id} {words}"))
    }
}

/// What else keeps jobs off a node that nobody cordons, if anything does.
fn kept_off(standing: Option<&Standing>) -> Option<&'static str> {
    match standing {
        Some(it) if it.state == Some(MirrorState::Running) => it
            .kept_off_by_itself
            .then_some("its worker's own settings keep jobs off it"),
        _ => Some("does not run: it takes jobs once its worker is started again"),
    }
}
