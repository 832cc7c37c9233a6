//! `greenroom cordon`, `uncordon`, `evict` and `terminate`: what an operator does to a node.

use clap::Args;
use greenroom_policy::ApiCall;
use greenroom_sdk::types::NodeId;

use super::control::{Control, lost};
use crate::failure::Outcome;
use crate::output::Output;

/// Keep new placements off nodes. What runs there runs on.
#[derive(Debug, Args)]
pub(crate) struct Cordon {
    #[command(flatten)]
    nodes: Nodes,
}

/// Let nodes take jobs again. A drain that is under way is cancelled.
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
        let call = |node_id| ApiCall::CordonNode { node_id };
        self.nodes.each("cordoned", "is cordoned", call).await
    }
}

impl Uncordon {
    pub(crate) async fn run(self) -> Outcome {
        let call = |node_id| ApiCall::UncordonNode { node_id };
        self.nodes
            .each("uncordoned", "takes jobs again", call)
            .await
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
    async fn each(self, action: &str, words: &str, call: impl Fn(NodeId) -> ApiCall) -> Outcome {
        for node_id in &self.nodes {
            tell(&self.control, self.json, node_id, (action, words), &call).await?;
        }
        Ok(())
    }
}

impl Node {
    async fn end(self, action: &str, words: &str, call: impl Fn(NodeId) -> ApiCall) -> Outcome {
        tell(&self.control, self.json, &self.node, (action, words), &call).await
    }
}

async fn tell(
    control: &Control,
    json: bool,
    node_id: &NodeId,
    (action, words): (&str, &str),
    call: &impl Fn(NodeId) -> ApiCall,
) -> Outcome {
    let client = control.client();
    client
        .call(&call(node_id.clone()))
        .await
        .map_err(|error| lost(&error))?;
    let told = serde_json::json!({"nodeId": node_id, "action": action});
    Output { json }.either(&told, || format!("node {node_id} {words}"))
}
