//! Tokens by which nodes are admitted to the discovery fleet (DISC-03): made by the Manager with the
//! fleet's tier secret, checked by the servers, which hold it too.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use greenroom_types::{NodeId, Wall};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Secret;

const PREFIX: &str = "gd1";

/// Whom a token speaks for, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClaim {
    /// The node.
    pub node_id: NodeId,
    /// When the token was issued, to the second.
    pub issued_at: Wall,
}

/// The token of a node: `gd1.` node id `.` issue time in seconds `.` an HMAC-SHA256 over what stands
/// before that dot, keyed by the tier secret, in base64url without padding.
pub fn node_token(tier_secret: &Secret, node_id: &NodeId, issued_at: Wall) -> Secret {
    let claim = format!("{PREFIX}.{node_id}.{}", issued_at.0.div_euclid(1_000));
    let tag = URL_SAFE_NO_PAD.encode(mac(tier_secret, &claim).finalize().into_bytes());
    Secret::new(format!("{claim}.{tag}"))
}

/// Whom a token speaks for, if it was made with one of these secrets. During a rotation both are
/// taken (DISC-06). An empty secret opens nothing.
pub fn check_node_token<'a>(
    token: &str,
    tier_secrets: impl IntoIterator<Item = &'a Secret>,
) -> Option<NodeClaim> {
    let (claim, tag) = token.rsplit_once('.')?;
    let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
    let is_made_with = |secret: &Secret| {
        !secret.expose().is_empty() && mac(secret, claim).verify_slice(&tag).is_ok()
    };
    if !tier_secrets.into_iter().any(is_made_with) {
        return None;
    }
    // A node id may hold dots, the time holds none.
    let (node_id, seconds) = claim
        .strip_prefix(PREFIX)?
        .strip_prefix('.')?
        .rsplit_once('.')?;
    Some(NodeClaim {
        node_id: NodeId::new(node_id),
        issued_at: Wall(seconds.parse::<i64>().ok()?.checked_mul(1_000)?),
    })
}

fn mac(secret: &Secret, claim: &str) -> Hmac<Sha256> {
    let key = secret.expose().as_bytes();
    Hmac::<Sha256>::new_from_slice(key)
        .expect("any key length is allowed")
        .chain_update(claim.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: DISC-03
    #[test]
    fn a_node_token_names_its_node_and_its_time_and_opens_with_its_secret_alone() {
        let (new, old) = (Secret::new("new secret"), Secret::new("old secret"));
        let node_id = NodeId::new("rack.1");
        let token = node_token(&new, &node_id, Wall(1_800_000_000_999));
        assert!(token.expose().starts_with("gd1.rack.1.1800000000."));
        assert_eq!(token.expose().rsplit('.').next().unwrap().len(), 43);
        let claim = NodeClaim {
            node_id,
            issued_at: Wall(1_800_000_000_000),
        };
        assert_eq!(check_node_token(token.expose(), [&old, &new]), Some(claim));
        assert_eq!(check_node_token(token.expose(), [&old]), None);
        assert_eq!(check_node_token(token.expose(), []), None);
        let other = token.expose().replace("rack.1", "rack.2");
        let later = token.expose().replace("1800000000", "1800000001");
        for bad in [
            other.as_str(),
            later.as_str(),
            "",
            "gd1",
            "gd1.n.1.",
            "gd1.n.1.AAAA",
        ] {
            assert_eq!(
                check_node_token(bad, [&new, &Secret::new("")]),
                None,
                "{bad}"
            );
        }
    }
}
