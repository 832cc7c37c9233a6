//! What a node is sent besides orders about jobs: its access to the discovery fleet, the access roles
//! it lacks, and where control planes are.

use greenroom_ledger::{DiscoveryOrder, ReplicaOrder};
use greenroom_proto::convert::common::write_time;
use greenroom_proto::manager as pb;
use greenroom_proto::worker::node_controller_message::Message as Out;
use greenroom_proto::worker::{
    AccessReplica, ControlPlanes, DiscoveryAccess, NodeControllerMessage,
};
use greenroom_types::NodeId;

use crate::planes::Told;
use crate::vault::Vault;

/// What the worker of a session holds of the access roles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Roles {
    /// The version that it said it holds, 0 for none.
    held: u64,
    /// The version that it was sent whole; that is done once in a session, so that a worker that
    /// cannot use it is not sent it for ever.
    sent: u64,
}

// === impl Roles ===

impl Roles {
    /// The worker says what it holds.
    pub(super) fn heard(&mut self, version: u64) {
        self.held = version;
    }

    /// Whether it lacks that version and was not sent it.
    pub(super) const fn lacks(&self, version: u64) -> bool {
        self.held < version && self.sent < version
    }

    /// The part of a version that the worker lacks (REPL-01, REPL-04); none when it holds a later one.
    pub(super) fn choose(&mut self, order: &ReplicaOrder) -> Option<NodeControllerMessage> {
        if self.held > order.version {
            return None;
        }
        let mut part = AccessReplica {
            attestation_jws: order.attestation.clone(),
            keys: order.keys.iter().map(|set| set.bytes().to_vec()).collect(),
            version: order.version,
            ..AccessReplica::default()
        };
        if self.lacks(order.version) {
            if order.is_change && !order.delta.is_empty() && order.base_version == self.held {
                part.delta_jws.clone_from(&order.delta);
                part.base_version = order.base_version;
            } else {
                part.snapshot_jws_gz = order.snapshot.bytes().to_vec();
                self.sent = order.version;
            }
        }
        Some(message(Out::AccessReplica(part)))
    }
}

/// A node's access to the discovery fleet, with a token of its own (DISC-03). None when the secrets
/// cannot be opened.
pub(super) fn discovery(
    vault: &Vault,
    node_id: &NodeId,
    order: &DiscoveryOrder,
) -> Option<NodeControllerMessage> {
    let leaf_token = vault.open_discovery(&order.leaf_token)?;
    let tier_secret = vault.open_discovery(&order.tier_secret)?;
    let node_token = greenroom_auth::node_token(&tier_secret, node_id, order.issued_at);
    Some(message(Out::DiscoveryAccess(DiscoveryAccess {
        addresses: order.addresses.clone(),
        leaf_token: leaf_token.expose().to_owned(),
        node_token: node_token.expose().to_owned(),
        version: order.version,
    })))
}

/// Where control planes are (CTRL-02).
pub(super) fn planes(told: &Told) -> NodeControllerMessage {
    let planes = told.planes.iter().map(|plane| pb::ControlPlane {
        member: plane.member.clone(),
        url: plane.url.clone(),
        announced_at: Some(write_time(plane.announced_at)),
        interval_ms: plane.interval_ms,
        stale: plane.stale,
        active: plane.active,
    });
    message(Out::ControlPlanes(ControlPlanes {
        planes: planes.collect(),
        version: told.version,
    }))
}

fn message(message: Out) -> NodeControllerMessage {
    NodeControllerMessage {
        message: Some(message),
        ..NodeControllerMessage::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greenroom_types::Payload;

    use super::*;

    fn order(version: u64, base_version: u64, is_change: bool) -> ReplicaOrder {
        ReplicaOrder {
            version,
            snapshot: Arc::new(Payload::from(b"whole")),
            delta: match base_version {
                0 => String::new(),
                _ => "delta".to_owned(),
            },
            base_version,
            attestation: "attested".to_owned(),
            keys: vec![Payload::from(b"keys")],
            is_change,
        }
    }

    fn sent(roles: &mut Roles, order: &ReplicaOrder) -> &'static str {
        match roles.choose(order).map(|it| it.message) {
            None => "nothing",
            Some(Some(Out::AccessReplica(part))) => {
                assert_eq!(
                    (part.attestation_jws.as_str(), part.keys.len()),
                    ("attested", 1)
                );
                match (part.snapshot_jws_gz.is_empty(), part.delta_jws.is_empty()) {
                    (false, true) => "whole",
                    (true, false) => "delta",
                    _ => "attestation",
                }
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    // spec: REPL-01, REPL-04
    #[test]
    fn a_worker_is_sent_the_part_of_a_version_that_it_lacks() {
        let mut roles = Roles::default();
        assert_eq!(
            sent(&mut roles, &order(3, 2, true)),
            "whole",
            "it held none"
        );
        assert_eq!(
            sent(&mut roles, &order(3, 0, false)),
            "attestation",
            "it is on its way"
        );
        roles.heard(3);
        assert_eq!(sent(&mut roles, &order(4, 3, true)), "delta");
        assert!(
            roles.lacks(4),
            "a delta that it cannot use is followed by the whole"
        );
        assert_eq!(sent(&mut roles, &order(4, 0, true)), "whole");
        roles.heard(3);
        assert!(!roles.lacks(4), "which is sent once");
        roles.heard(4);
        assert_eq!(
            sent(&mut roles, &order(5, 3, true)),
            "whole",
            "another base"
        );
        roles.heard(5);
        assert_eq!(sent(&mut roles, &order(5, 0, false)), "attestation");
        roles.heard(9);
        assert_eq!(sent(&mut roles, &order(5, 4, true)), "nothing");
    }
}
