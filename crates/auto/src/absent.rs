//! Cordons of servers that are not there (CORDON-07). The stream tells of nodes only; a server that is
//! registered and off is in the Manager's list of places alone. So a name that the policy does not know
//! is looked up there before the policy is asked.

use std::collections::BTreeSet;

use greenroom_policy::{ApiCall, ApiError, Event, Policy};
use greenroom_types::NodeId;

/// Nodes that a call of an operator names and that the policy does not know.
pub(crate) fn strangers(call: &ApiCall, policy: &Policy) -> Vec<NodeId> {
    let named = match call {
        _ if policy.is_closed() => &[],
        ApiCall::CordonNode { node_id }
        | ApiCall::UncordonNode { node_id }
        | ApiCall::DrainNode { node_id, .. }
        | ApiCall::EvictNode { node_id }
        | ApiCall::TerminateNode { node_id } => std::slice::from_ref(node_id),
        ApiCall::CordonNodes { node_ids, .. } | ApiCall::UncordonNodes { node_ids, .. } => {
            node_ids.as_slice()
        }
        _ => &[],
    };
    let unknown = |id: &&NodeId| policy.node_state(id).is_none() && !policy.is_cordon_waiting(id);
    named.iter().filter(unknown).cloned().collect()
}

/// Why what would end a server that is off is refused; none for any other call.
pub(crate) fn is_off(call: &ApiCall, found: &BTreeSet<NodeId>) -> Option<ApiError> {
    match call {
        ApiCall::DrainNode { node_id, .. }
        | ApiCall::EvictNode { node_id }
        | ApiCall::TerminateNode { node_id } => {
            found.contains(node_id).then(|| ApiError::NodeNotRunning {
                node_id: node_id.clone(),
            })
        }
        _ => None,
    }
}

/// The call with those of its strangers that the Manager has a place for, and no others, whatever the
/// caller said of them.
pub(crate) fn with_registered(call: ApiCall, found: BTreeSet<NodeId>) -> ApiCall {
    let registered = found;
    match call {
        ApiCall::CordonNodes { node_ids, .. } => ApiCall::CordonNodes {
            node_ids,
            registered,
        },
        ApiCall::UncordonNodes { node_ids, .. } => ApiCall::UncordonNodes {
            node_ids,
            registered,
        },
        ApiCall::CordonNode { node_id } if registered.contains(&node_id) => ApiCall::CordonNodes {
            node_ids: vec![node_id],
            registered,
        },
        ApiCall::UncordonNode { node_id } if registered.contains(&node_id) => {
            ApiCall::UncordonNodes {
                node_ids: vec![node_id],
                registered,
            }
        }
        other => other,
    }
}

/// A call about several nodes as a recording has it: its words name one node at a time. Nothing for any
/// other input.
pub(crate) fn one_by_one(event: &Event) -> Vec<Event> {
    let Event::Api { id, call } = event else {
        return Vec::new();
    };
    let (node_ids, one): (_, fn(NodeId) -> ApiCall) = match call {
        ApiCall::CordonNodes { node_ids, .. } => {
            (node_ids, |node_id| ApiCall::CordonNode { node_id })
        }
        ApiCall::UncordonNodes { node_ids, .. } => {
            (node_ids, |node_id| ApiCall::UncordonNode { node_id })
        }
        _ => return Vec::new(),
    };
    let events = node_ids.iter().map(|node_id| Event::Api {
        id: *id,
        call: one(node_id.clone()),
    });
    events.collect()
}
