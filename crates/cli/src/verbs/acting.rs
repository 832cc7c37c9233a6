//! `greenroom cordon`, `uncordon`, `evict` and `terminate`: what an operator does to a node.

use clap::Args;
use greenroom_console::api::Node as NodeRow;
use greenroom_policy::ApiCall;
use greenroom_policy::effect::MirrorState;
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
        let Nodes {
            nodes,
            json,
            control,
        } = self.nodes;
        let client = control.client();
        for node_id in nodes {
            let call = ApiCall::UncordonNode {
                node_id: node_id.clone(),
            };
            client.call(&call).await.map_err(|error| lost(&error))?;
            let rows = client.nodes().await.map_err(|error| lost(&error))?;
            let row = rows.iter().find(|row| row.node.node_id == node_id);
            let kept_off = kept_off(row);
            let told = serde_json::json!({
                "nodeId": node_id, "action": "uncordoned", "takesJobs": kept_off.is_none(),
            });
            Output { json }.either(&told, || match kept_off {
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

/// What else keeps jobs off a node that nobody cordons, if anything does.
fn kept_off(row: Option<&NodeRow>) -> Option<&'static str> {
    let running = row.filter(|row| row.node.state == MirrorState::Running);
    let Some(row) = running else {
        return Some("does not run: it takes jobs once its worker is started");
    };
    let by_itself = row.inventory.as_ref().is_some_and(|it| it.cordoned);
    by_itself.then_some("its worker's own settings keep jobs off it")
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
