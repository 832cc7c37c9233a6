//! Cordons: an operator keeps new placements off nodes (CORDON). Several nodes are cordoned or
//! uncordoned by one call, all of them or none (CORDON-06). A server that is registered and not there
//! is cordoned as well: the cordon waits for it (CORDON-07).

use std::collections::BTreeSet;

use greenroom_types::NodeId;

use crate::effect::Effects;
use crate::event::{ApiAnswer, ApiError, ApiResult};
use crate::policy::Policy;

// === impl Policy ===

impl Policy {
    /// Keeps new placements off a node; what runs there goes on (CORDON-01).
    pub(crate) fn cordon(&mut self, node_id: &NodeId) -> ApiResult {
        let known = self.known(node_id)?;
        // A repeat changes nothing and runs no pass.
        if !self.is_cordoned(node_id) {
            self.change_condition(node_id, |condition| condition.cordoned = true);
            self.services.look_at(node_id);
        }
        Ok(known)
    }

    /// Cordons all of them or none; answered with those that are not there.
    pub(crate) fn cordon_all(
        &mut self,
        node_ids: &[NodeId],
        registered: &BTreeSet<NodeId>,
    ) -> ApiResult {
        let absent = self.absent_of(node_ids, registered)?;
        self.check_room_for_absent(&absent)?;
        for node_id in node_ids {
            if absent.contains(node_id) {
                self.cordon_absent(node_id);
            } else {
                self.cordon(node_id)?;
            }
        }
        Ok(ApiAnswer::Waiting(absent.into_iter().collect()))
    }

    /// Lifts the policy's own cordon; the one in the inventory is the node's (CORDON-03).
    pub(crate) fn uncordon(&mut self, node_id: &NodeId, out: &mut Effects) -> ApiResult {
        if self.uncordon_absent(node_id) {
            return Ok(ApiAnswer::Done);
        }
        let known = self.known(node_id)?;
        self.cancel_drain(node_id, out);
        let cordoned = self.is_cordoned(node_id);
        if cordoned {
            self.change_condition(node_id, |condition| condition.cordoned = false);
            self.services.look_at(node_id);
            self.pending.wake();
        }
        Ok(known)
    }

    /// Uncordons all of them or none; answered with those that are not there.
    pub(crate) fn uncordon_all(
        &mut self,
        node_ids: &[NodeId],
        registered: &BTreeSet<NodeId>,
        out: &mut Effects,
    ) -> ApiResult {
        let absent = self.absent_of(node_ids, registered)?;
        for node_id in node_ids {
            if absent.contains(node_id) {
                self.uncordon_absent(node_id);
            } else {
                self.uncordon(node_id, out)?;
            }
        }
        Ok(ApiAnswer::Waiting(absent.into_iter().collect()))
    }

    /// Those that are not there, but for which a cordon waits or the Manager has a place; refused where
    /// one is known to nobody.
    fn absent_of(
        &self,
        node_ids: &[NodeId],
        registered: &BTreeSet<NodeId>,
    ) -> Result<BTreeSet<NodeId>, ApiError> {
        let away = node_ids.iter().filter(|id| !self.nodes.contains_key(*id));
        let (absent, strangers): (BTreeSet<&NodeId>, BTreeSet<&NodeId>) =
            away.partition(|id| registered.contains(*id) || self.is_cordon_waiting(id));
        if strangers.is_empty() {
            return Ok(absent.into_iter().cloned().collect());
        }
        Err(ApiError::UnknownNodes {
            node_ids: strangers.into_iter().cloned().collect(),
        })
    }

    pub(crate) fn known(&self, node_id: &NodeId) -> ApiResult {
        if self.nodes.contains_key(node_id) {
            Ok(ApiAnswer::Done)
        } else {
            Err(ApiError::UnknownNode {
                node_id: node_id.clone(),
            })
        }
    }

    /// Cordoned by this policy (CORDON-01).
    pub fn is_cordoned(&self, node_id: &NodeId) -> bool {
        self.fleet
            .condition(node_id)
            .is_some_and(|condition| condition.cordoned)
    }
}
