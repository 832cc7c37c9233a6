//! The nodes as an operator counts them: those of the Manager's record, and the servers that are
//! registered and not there.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_sdk::Client;
use greenroom_sdk::types::NodeId;
use greenroom_sdk::types::node::{NodeInfo, NodeMetadata, NodeState, RunningNodeMetadata};
use serde::Serialize;

use super::control::Control;
use super::get::node_state;
use crate::failure::Failure;
use crate::output::say;

/// How long a list of nodes waits for the registered servers, which only the primary can tell.
const SLOTS_MAX: Duration = Duration::from_secs(2);

/// What is known of all nodes.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    nodes: Vec<NodeInfo>,
    /// Those of them that are not there.
    absent: BTreeSet<NodeId>,
    /// Nodes that the control plane keeps new jobs off; none where it does not answer.
    cordoned: Option<BTreeSet<NodeId>>,
}

/// One line about a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow<'a> {
    #[serde(flatten)]
    pub(super) node: &'a NodeInfo,
    /// It is registered, and no worker came for it or it has been gone for long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) absent: bool,
    /// Whether the control plane keeps new jobs off it, where one answers; what its worker's settings say
    /// is in the inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cordoned: Option<bool>,
}

// === impl Fleet ===

impl Fleet {
    pub(super) async fn read(client: &Client, control: &Control) -> Result<Self, Failure> {
        let slots = tokio::time::timeout(SLOTS_MAX, client.list_cluster_nodes());
        let (nodes, slots, cordoned) = tokio::join!(client.list_nodes(), slots, control.cordoned());
        let nodes = nodes?;
        let slots = match slots {
            Ok(Ok(slots)) => slots,
            Ok(Err(error)) => {
                untold(&error.to_string());
                Vec::new()
            }
            Err(_) => {
                untold(&format!("no answer within {SLOTS_MAX:?}"));
                Vec::new()
            }
        };
        let slots = slots.into_iter();
        let slots = slots.map(|slot| (slot.node_id, slot.pool.to_string()));
        Ok(Self::of(nodes, slots.collect(), cordoned))
    }

    fn of(
        mut nodes: Vec<NodeInfo>,
        slots: Vec<(NodeId, String)>,
        cordoned: Option<BTreeSet<NodeId>>,
    ) -> Self {
        let known: BTreeSet<NodeId> = nodes.iter().map(|it| it.metadata.node_id.clone()).collect();
        let mut absent = BTreeSet::new();
        let waiting = cordoned.iter().flatten().cloned();
        let gone = waiting.map(|id| (id, None));
        let slots = slots.into_iter().map(|(id, pool)| (id, Some(pool)));
        for (node_id, pool) in slots.chain(gone) {
            if known.contains(&node_id) || !absent.insert(node_id.clone()) {
                continue;
            }
            let reason = match pool {
                Some(_) => "registered; its worker is not there",
                None => "not registered; a cordon waits for it",
            };
            let pool = pool.filter(|pool| !pool.is_empty());
            let pool = pool.map(|pool| ("pool".to_owned(), pool));
            let metadata = NodeMetadata {
                node_id,
                tags: pool.into_iter().collect(),
                ..NodeMetadata::default()
            };
            nodes.push(node(metadata, NodeState::Stopped, reason));
        }
        nodes.sort_by(|a, b| a.metadata.node_id.cmp(&b.metadata.node_id));
        Self {
            nodes,
            absent,
            cordoned,
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = NodeRow<'_>> {
        self.nodes.iter().map(|node| {
            let node_id = &node.metadata.node_id;
            NodeRow {
                node,
                absent: self.absent.contains(node_id),
                cordoned: self.cordoned.as_ref().map(|ids| ids.contains(node_id)),
            }
        })
    }
}

/// A node of which no more is known.
fn node(metadata: NodeMetadata, state: NodeState, reason: &str) -> NodeInfo {
    NodeInfo {
        metadata,
        running: RunningNodeMetadata::default(),
        state,
        reason: reason.to_owned(),
        instances: Vec::new(),
        inventory: None,
        idle_expiry_ms: 0,
        last_seen: None,
        terminate_attempts: 0,
        last_error: String::new(),
        unrecorded: Vec::new(),
    }
}

fn untold(why: &str) {
    say(&format!(
        "servers that are registered and switched off are not shown: {why}"
    ));
}

// === impl NodeRow ===

impl NodeRow<'_> {
    /// Its state in one word.
    pub(super) const fn state(&self) -> &'static str {
        if self.absent {
            "absent"
        } else {
            node_state(self.node.state)
        }
    }

    pub(super) fn state_words(&self) -> String {
        let state = self.state();
        let by_itself = self.node.inventory.as_ref().is_some_and(|it| it.cordoned);
        match self.cordoned == Some(true) || by_itself {
            true => format!("{state}, cordoned"),
            false => state.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: CORDON-07
    #[test]
    fn a_server_that_is_not_there_is_listed_with_its_cordon() {
        let b = NodeMetadata {
            node_id: "b".into(),
            ..NodeMetadata::default()
        };
        let there = node(b, NodeState::Running, "");
        let slot = |id: &str, pool: &str| (NodeId::new(id), pool.to_owned());
        let slots = vec![slot("a", "studio"), slot("b", "studio"), slot("d", "")];
        let cordoned = ["a", "b", "c"].map(NodeId::from).into();
        let fleet = Fleet::of(vec![there], slots, Some(cordoned));
        let rows = fleet
            .rows()
            .map(|row| format!("{} {}", row.node.metadata.node_id, row.state_words()));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                "a absent, cordoned",
                "b running, cordoned",
                "c absent, cordoned",
                "d absent"
            ]
        );
        let tags = |at: usize| fleet.nodes[at].metadata.tags.clone();
        assert_eq!(tags(0).get("pool").map(String::as_str), Some("studio"));
        assert!(tags(3).is_empty());
    }
}
