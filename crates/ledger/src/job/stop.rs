//! StopJob (JOB-23, JOB-25).

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::job::StopReason;
use greenroom_types::node::{InstanceKey, InstanceState};
use greenroom_types::{Millis, NodeId, StartId};

use super::delete::GRACE;
use crate::instance::Fate;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{self, failed, invalid, not_found, required, unknown_job};

/// Longest grace of a stop (JOB-23).
const GRACE_MAX: Millis = Millis(600_000);

/// The grace a caller asked for.
pub(crate) fn grace(given: Option<Millis>) -> Result<Millis, greenroom_types::call::Refusal> {
    match given {
        None => Ok(GRACE),
        Some(grace) if grace <= GRACE_MAX => Ok(grace),
        Some(grace) => Err(invalid(
            "bad_value",
            format!("grace_ms is {}: it must be 0 to {}", grace.0, GRACE_MAX.0),
        )
        .with("path", "grace_ms")),
    }
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn stop_job(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        node_id: &NodeId,
        grace_ms: Option<Millis>,
    ) -> CallResult {
        refuse::job_id(&key.job_id)?;
        refuse::role("role", &key.role)?;
        required("node_id", node_id.as_str())?;
        let grace_ms = grace(grace_ms)?;
        let record = self
            .jobs
            .get(&key.job_id)
            .ok_or_else(|| unknown_job(&key.job_id))?;
        if let Some(live) = self.live_instance(key)
            && live.node_id != *node_id
        {
            return Err(failed(
                "wrong_node",
                format!("{key} is on node {:?}, not on {node_id:?}", live.node_id),
            )
            .with("node", live.node_id.as_str()));
        }
        let here = record
            .instances
            .iter()
            .filter_map(|id| self.instances.get(id))
            .filter(|instance| instance.key == *key && instance.node_id == *node_id)
            .max_by_key(|instance| (instance.is_live(), instance.state != InstanceState::Lost));
        let Some(instance) = here else {
            let was_here = record.view.history.iter().any(|entry| {
                entry
                    .kind
                    .at()
                    .is_some_and(|at| at.role == key.role && at.node.node_id == *node_id)
            });
            return if was_here {
                Ok(Reply::Done)
            } else {
                Err(not_found(
                    "no_instance",
                    format!("{key} was never on node {node_id:?}"),
                ))
            };
        };
        let start_id = instance.start_id.clone();
        match instance.state {
            // Its stop is remembered for the day its node returns (MNODE-13).
            InstanceState::Lost => self.stop_lost(out, &start_id, grace_ms),
            _ if instance.ending => {}
            _ => self.stop_instance(
                out,
                &start_id,
                StopReason::UserRequested,
                "",
                grace_ms,
                Fate::Asked,
            ),
        }
        Ok(Reply::Done)
    }

    /// Remembers a stop for the day on which a lost instance's node returns.
    pub(crate) fn stop_lost(&mut self, out: &mut Out, start_id: &StartId, grace: Millis) {
        let now = out.at;
        if let Some(instance) = self.instances.get_mut(start_id)
            && let Some(stop) = &mut instance.stop
            && !stop.order
        {
            stop.order = true;
            stop.grace_ms = grace;
            stop.asked_at = now;
            out.instances.insert(start_id.clone());
        }
    }
}
