//! `greenroom cordon`, `uncordon`, `evict` and `terminate`: what an operator does to a node.

use std::collections::BTreeMap;

use clap::Args;
use greenroom_console::Client;
use greenroom_console::api::Standing;
use greenroom_policy::ApiCall;
use greenroom_policy::effect::MirrorState;
use greenroom_sdk::types::NodeId;

use super::control::{Control, lost};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, one_line};

/// Keep new placements off nodes, until they are uncordoned. What runs there runs on.
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
        let (client, output) = (self.nodes.control.client(), self.nodes.output());
        let call = |node_id| ApiCall::CordonNode { node_id };
        self.nodes.change(&client, "cordoned", call).await?;
        for node_id in &self.nodes.nodes {
            let told = serde_json::json!({"nodeId": node_id, "action": "cordoned"});
            output.either(&told, || format!("node {node_id} is cordoned"))?;
        }
        Ok(())
    }
}

impl Uncordon {
    pub(crate) async fn run(self) -> Outcome {
        let (client, output) = (self.nodes.control.client(), self.nodes.output());
        let call = |node_id| ApiCall::UncordonNode { node_id };
        self.nodes.change(&client, "uncordoned", call).await?;
        let standing = self.nodes.standing(&client).await?;
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

    /// Changes all of them or, where one is not known, none.
    async fn change(
        &self,
        client: &Client,
        words: &str,
        call: impl Fn(NodeId) -> ApiCall,
    ) -> Outcome {
        let known = self.standing(client).await?;
        let strangers: Vec<&str> = self
            .nodes
            .iter()
            .filter(|node_id| !known.contains_key(*node_id))
            .map(NodeId::as_str)
            .collect();
        if !strangers.is_empty() {
            let text = format!(
                "there is no node {}; nothing was {words}",
                strangers.join(", ")
            );
            return Err(Failure::failed(text)
                .because("unknown_node")
                .hint("`greenroom get nodes` lists them"));
        }
        for (at, node_id) in self.nodes.iter().enumerate() {
            if let Err(error) = client.call(&call(node_id.clone())).await {
                return Err(partly(lost(&error), &self.nodes, at, words));
            }
        }
        Ok(())
    }

    async fn standing(&self, client: &Client) -> Result<BTreeMap<NodeId, Standing>, Failure> {
        let standing = client.standing(&self.nodes).await;
        standing.map_err(|error| lost(&error))
    }
}

/// A failure in the middle says what was done before it, and what was not tried.
fn partly(mut failure: Failure, nodes: &[NodeId], at: usize, words: &str) -> Failure {
    let names = |nodes: &[NodeId]| {
        let names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
        one_line(&names.join(", ")).into_owned()
    };
    if nodes.len() > 1 {
        failure.message = format!("{}: {}", names(&nodes[at..=at]), failure.message);
    }
    if at > 0 {
        failure.message += &format!("\n{words} before: {}", names(&nodes[..at]));
    }
    if at + 1 < nodes.len() {
        failure.message += &format!("\nnot tried: {}", names(&nodes[at + 1..]));
    }
    failure
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
        _ => Some("does not run: it takes jobs once its worker is started"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_in_the_middle_says_what_was_done_and_what_was_not() {
        let nodes = ["a", "b", "c"].map(NodeId::from);
        let told = |at| partly(Failure::failed("no"), &nodes, at, "cordoned").message;
        assert_eq!(told(0), "a: no\nnot tried: b, c");
        assert_eq!(told(1), "b: no\ncordoned before: a\nnot tried: c");
        assert_eq!(told(2), "c: no\ncordoned before: a, b");
        let one = partly(Failure::failed("no"), &nodes[..1], 0, "cordoned");
        assert_eq!(one.message, "no");
    }
}
