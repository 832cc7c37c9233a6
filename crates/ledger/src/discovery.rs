//! The discovery fleet (DISC): where it is, its secrets, and the rotation of the one by which nodes
//! are told apart.
//!
//! Secrets are sealed by the proposer and are opaque here. Sealing the same text gives the same text,
//! so that two of them can be compared. A node's own token is made where the order is sent.

use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::discovery::{DiscoveryFleet, RotationPhase, RotationStep};
use greenroom_types::{NodeId, Wall};
use serde::{Deserialize, Serialize};

use crate::command::Fresh;
use crate::ledger::Ledger;
use crate::order::{DiscoveryOrder, WorkerOrder};
use crate::out::Out;
use crate::refuse::{cut, failed, invalid};
use crate::state::Node;

/// Servers of a fleet (DISC-01).
const ADDRESSES: usize = 16;
/// Longest name of a host, in bytes.
const HOST_BYTES: usize = 253;

/// The fleet as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Discovery {
    /// The servers; the publisher writes them.
    pub(crate) addresses: Vec<String>,
    /// Sealed; the first publish writes it.
    pub(crate) leaf_token: String,
    /// Sealed; the first publish writes it, and FLIP.
    pub(crate) tier_secret: String,
    /// Sealed, empty outside a rotation; STAGE, FLIP and FINISH write it.
    pub(crate) tier_secret_alt: String,
    /// The steps write it.
    pub(crate) phase: RotationPhase,
    /// Grows whenever nodes are to be sent something else.
    pub(crate) version: u64,
}

// === impl Ledger ===

impl Ledger {
    /// The fleet with its sealed secrets, if one was published (DISC-04).
    pub fn discovery_fleet(&self) -> Option<DiscoveryFleet> {
        self.discovery.as_ref().map(Discovery::fleet)
    }

    pub(crate) fn publish_discovery(
        &mut self,
        out: &mut Out,
        fleet: DiscoveryFleet,
        replace_leaf_token: bool,
    ) -> CallResult {
        let DiscoveryFleet {
            mut addresses,
            address,
            leaf_token,
            tier_secret,
            ..
        } = fleet;
        if tier_secret.is_empty() {
            return Err(invalid(
                "empty_tier_secret",
                "fleet.tier_secret is empty: it is the key of the nodes' tokens",
            )
            .with("path", "fleet.tier_secret"));
        }
        if tier_secret == leaf_token {
            return Err(invalid(
                "tier_secret_equals_leaf_token",
                "fleet.tier_secret equals fleet.leaf_token, which every node is sent: use another",
            )
            .with("path", "fleet.tier_secret"));
        }
        if addresses.is_empty() && !address.is_empty() {
            addresses.push(address);
        }
        check_addresses(&addresses)?;
        let (kept, changes) = match &mut self.discovery {
            Some(known) => {
                let replaces = replace_leaf_token && known.leaf_token != leaf_token;
                let secrets = [&known.tier_secret, &known.tier_secret_alt];
                if replaces && secrets.contains(&&leaf_token) {
                    let text = "fleet.leaf_token equals a tier secret: use another";
                    let refusal = invalid("tier_secret_equals_leaf_token", text);
                    return Err(refusal.with("path", "fleet.leaf_token"));
                }
                let changes = replaces || known.addresses != addresses;
                known.addresses = addresses;
                if replaces {
                    known.leaf_token.clone_from(&leaf_token);
                }
                known.version += u64::from(changes);
                let kept = known.tier_secret != tier_secret || known.leaf_token != leaf_token;
                (kept, changes)
            }
            unknown => {
                *unknown = Some(Discovery {
                    addresses,
                    leaf_token,
                    tier_secret,
                    tier_secret_alt: String::new(),
                    phase: RotationPhase::None,
                    version: 1,
                });
                (false, true)
            }
        };
        if changes {
            out.discovery = true;
            self.send_discovery_to_all(out);
        }
        Ok(Reply::Discovery {
            fleet: self.discovery_fleet().unwrap_or_default(),
            secrets_kept: kept,
        })
    }

    pub(crate) fn rotate_discovery(
        &mut self,
        out: &mut Out,
        step: RotationStep,
        new_tier_secret: String,
        fresh: &Fresh,
    ) -> CallResult {
        let Some(fleet) = &mut self.discovery else {
            return Err(failed(
                "no_fleet",
                "no discovery fleet was published: there is no secret to rotate",
            ));
        };
        let expected = match step {
            RotationStep::Stage => RotationPhase::None,
            RotationStep::Flip => RotationPhase::Staged,
            RotationStep::Finish => RotationPhase::Flipped,
        };
        if fleet.phase != expected {
            return Err(out_of_order(step, fleet.phase));
        }
        match step {
            RotationStep::Stage => {
                let next = match new_tier_secret.is_empty() {
                    true => fresh.token.clone(),
                    false => new_tier_secret,
                };
                if next.is_empty() || next == fleet.tier_secret || next == fleet.leaf_token {
                    let text =
                        "new_tier_secret equals the secret in force or the leaf token: use another";
                    return Err(bad_secret(text));
                }
                fleet.tier_secret_alt = next;
                fleet.phase = RotationPhase::Staged;
            }
            RotationStep::Flip => {
                if !new_tier_secret.is_empty() && new_tier_secret != fleet.tier_secret_alt {
                    return Err(bad_secret("new_tier_secret is not the one that was staged"));
                }
                std::mem::swap(&mut fleet.tier_secret, &mut fleet.tier_secret_alt);
                fleet.phase = RotationPhase::Flipped;
                fleet.version += 1;
            }
            RotationStep::Finish => {
                if !new_tier_secret.is_empty() && new_tier_secret != fleet.tier_secret {
                    return Err(bad_secret("new_tier_secret is not the one in force"));
                }
                fleet.tier_secret_alt.clear();
                fleet.phase = RotationPhase::None;
            }
        }
        out.discovery = true;
        let (fleet, version) = (fleet.fleet(), fleet.version);
        let mut not_acknowledged = Vec::new();
        if step == RotationStep::Flip {
            self.send_discovery_to_all(out);
            let here = self.nodes.values().filter(|node| node.is_wanted());
            not_acknowledged.extend(here.map(|node| node.metadata.node_id.clone()));
        }
        Ok(Reply::Rotated {
            fleet,
            version,
            acknowledged: 0,
            not_acknowledged,
        })
    }

    fn send_discovery_to_all(&self, out: &mut Out) {
        let Some(order) = self.discovery_order(out.at) else {
            return;
        };
        for (node_id, _) in self.nodes.iter().filter(|(_, node)| node.is_running()) {
            out.order(node_id, WorkerOrder::Discovery(Arc::clone(&order)));
        }
    }

    /// What a node is sent at its hello (DISC-03).
    pub(crate) fn send_discovery(&self, out: &mut Out, node_id: &NodeId) {
        if let Some(order) = self.discovery_order(out.at) {
            out.order(node_id, WorkerOrder::Discovery(order));
        }
    }

    fn discovery_order(&self, at: Wall) -> Option<Arc<DiscoveryOrder>> {
        let fleet = self.discovery.as_ref()?;
        Some(Arc::new(DiscoveryOrder {
            addresses: fleet.addresses.clone(),
            leaf_token: fleet.leaf_token.clone(),
            tier_secret: fleet.tier_secret.clone(),
            issued_at: at,
            version: fleet.version,
        }))
    }

    /// Nodes whose worker is heard.
    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = &NodeId> {
        let running = self.nodes.iter().filter(|(_, node)| Node::is_running(node));
        running.map(|(node_id, _)| node_id)
    }
}

// === impl Discovery ===

impl Discovery {
    fn fleet(&self) -> DiscoveryFleet {
        DiscoveryFleet {
            addresses: self.addresses.clone(),
            address: self.addresses.first().cloned().unwrap_or_default(),
            leaf_token: self.leaf_token.clone(),
            tier_secret: self.tier_secret.clone(),
            tier_secret_alt: self.tier_secret_alt.clone(),
            rotation_phase: self.phase,
        }
    }
}

// === helpers ===

fn out_of_order(step: RotationStep, phase: RotationPhase) -> Refusal {
    let (next, stands) = match phase {
        RotationPhase::None => ("stage", "no rotation is under way"),
        RotationPhase::Staged => ("flip", "the next secret is staged"),
        RotationPhase::Flipped => ("finish", "the next secret is in force"),
    };
    failed(
        "rotation_out_of_order",
        format!(
            "{} is out of order: {stands}, and {next} comes next",
            step.word()
        ),
    )
    .with("phase", phase.word())
}

fn bad_secret(text: &str) -> Refusal {
    invalid("bad_tier_secret", text).with("path", "new_tier_secret")
}

fn check_addresses(addresses: &[String]) -> Result<(), Refusal> {
    let bad = |path: &str, text: String| Err(invalid("bad_address", text).with("path", path));
    if addresses.is_empty() {
        let text = "fleet.addresses and fleet.address are empty: name at least one server";
        return bad("fleet.addresses", text.to_owned());
    }
    if addresses.len() > ADDRESSES {
        let text = format!(
            "there are {} servers, the most is {ADDRESSES}",
            addresses.len()
        );
        return bad("fleet.addresses", text);
    }
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            let path = format!("fleet.addresses[{index}]");
            let text = format!("{path}: {:?} is there twice", cut(address, 200));
            return bad(&path, text);
        }
        if !is_address(address) {
            let path = format!("fleet.addresses[{index}]");
            let shown = cut(address, 200);
            let text = format!(
                "{path}: {shown:?} must be HOST:PORT with a port of 1 to 65535, an IPv6 address in []"
            );
            return bad(&path, text);
        }
    }
    Ok(())
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let digits = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    if !digits || port.parse::<u16>().is_ok_and(|port| port == 0) || port.parse::<u16>().is_err() {
        return false;
    }
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']');
        return inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    }
    (1..=HOST_BYTES).contains(&host.len())
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: DISC-01
    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in [
            "a:1",
            "disc-1.example:65535",
            "10.0.0.1:443",
            "[::1]:80",
            "[fe80::2]:1",
        ] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "a",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "::1:80",
            "[::1]",
            "[::1:80",
            "[a]:1",
            "a b:1",
            "http://a:1",
            "a:1:2",
            "a/b:1",
            "a:000001",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
