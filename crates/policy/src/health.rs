//! Rejections, unhealthy nodes, and the windows in which a node is left out (HEALTH).

use std::sync::Arc;

use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::{InstanceKey, RejectionCode};
use greenroom_types::{JobId, MigrationId, Millis, NodeId, StartId};

use crate::effect::{Callback, Effects, MirrorState};
use crate::policy::Policy;
use crate::recovery::Lost;
use crate::timer::{Due, Timer};

/// A worker's refusal, as the stream tells it.
pub(crate) struct Rejection {
    pub(crate) node_id: NodeId,
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) code: RejectionCode,
    pub(crate) reason: String,
    pub(crate) inventory: Option<Arc<NodeInventory>>,
}

// === impl Policy: rejections ===

impl Policy {
    /// Picture, counter, callback; then the node is judged, then the job (HEALTH-01).
    pub(crate) fn job_rejected(&mut self, rejection: Rejection, out: &mut Effects) {
        let Rejection {
            node_id,
            key,
            start_id,
            code,
            reason,
            inventory,
        } = rejection;
        if let Some(inventory) = &inventory {
            self.take_inventory(&node_id, inventory);
        }
        self.counters.jobs_rejected += 1;
        out.callback(Callback::OnJobRejected {
            job_id: key.job_id.clone(),
            role: key.role.clone(),
            node_id: node_id.clone(),
            code,
            reason: reason.clone(),
            inventory,
            at: self.now.wall,
        });
        // A bad bundle is not held against a good node (DEC-21), and a full disk is in the node's
        // picture, so that the node is left out for as long as it is full and no longer.
        if code != RejectionCode::InvalidSpec
            && !(code == RejectionCode::Disk && self.is_disk_low(&node_id))
        {
            self.count_rejection(&node_id, out);
        }
        let job_id = &key.job_id;
        if let Some(id) = self.migration_of_target(&key, &node_id) {
            // Never taken as a rejection of the source (MIGR-22).
            self.target_lost(&id, &format!("the target was rejected: {reason}"), out);
            return;
        }
        if !self.is_about_binding(&key, &node_id, &start_id)
            || self.migration_carries_on(job_id, out)
        {
            return;
        }
        let Some(binding) = self.unbind(job_id) else {
            return;
        };
        self.exclude_for(job_id, &node_id);
        if let Some(job) = self.jobs.get_mut(job_id) {
            let known = crate::history::newest(&job.seen);
            job.refused = Some(Box::new((key.role.clone(), node_id.clone(), known)));
        }
        if code == RejectionCode::InvalidSpec {
            self.end_for_good(job_id, reason, out);
            self.release_single_use(&binding, out);
        } else if code == RejectionCode::Disk && !self.came_low(&node_id) {
            // Nothing of the job ran and nothing of it is to blame (HEALTH-12).
            let lost = Lost {
                job_id: job_id.clone(),
                binding: binding.clone(),
            };
            self.place_again(vec![lost], out);
            self.release_single_use(&binding, out);
        } else {
            self.recover(job_id, &binding, true, out);
        }
        self.pending.wake();
    }

    fn is_disk_low(&self, node_id: &NodeId) -> bool {
        let picture = self.fleet.inventory(node_id);
        picture.is_some_and(|picture| picture.disk_low)
    }

    /// A bought node whose disk was nearly full when it came: what is bought again is no better, and
    /// only the job's ceiling ends the buying.
    fn came_low(&self, node_id: &NodeId) -> bool {
        let bought = self.fleet.tier_of(node_id);
        bought.is_some_and(|(_, tier)| tier.is_elastic())
            && self
                .nodes
                .get(node_id)
                .is_some_and(|record| record.came_low)
    }

    fn migration_of_target(&self, key: &InstanceKey, node_id: &NodeId) -> Option<MigrationId> {
        let job = self.jobs.get(&key.job_id)?;
        let target = job.target.as_ref()?;
        (target.role == key.role && target.node_id == *node_id).then(|| job.migration.clone())?
    }

    /// Late words about an older instance must not restart a live one (DEC-48).
    fn is_about_binding(&self, key: &InstanceKey, node_id: &NodeId, start_id: &StartId) -> bool {
        let Some(job) = self.jobs.get(&key.job_id) else {
            return false;
        };
        let Some(binding) = &job.binding else {
            return false;
        };
        if binding.role != key.role || binding.node_id != *node_id {
            return false;
        }
        // Told of another start than the binding's own: of an older one, or of a second one that
        // was refused because the first is there.
        let other = crate::history::runs(&job.seen).into_iter().any(|run| {
            let known = run.start_id.as_ref();
            let mine = run.first > binding.since
                && run.role == binding.role
                && run.node_id == binding.node_id;
            let same = known == Some(start_id);
            !start_id.is_empty()
                && known.is_some()
                && (mine && !same && run.is_live() || !mine && same)
        });
        !other
    }

    /// The third rejection within 5 s makes a node unhealthy (HEALTH-03).
    fn count_rejection(&mut self, node_id: &NodeId, out: &mut Effects) {
        let now = self.now.mono;
        let window = self.settings.rejection_backoff;
        let unhealthy = self
            .fleet
            .condition(node_id)
            .is_some_and(|condition| condition.unhealthy);
        let Some(record) = self.nodes.get_mut(node_id) else {
            return;
        };
        // While unhealthy, more of them neither fire nor extend (HEALTH-07).
        if unhealthy {
            return;
        }
        record.rejections.push_back(now);
        while record
            .rejections
            .front()
            .is_some_and(|at| now - *at >= window)
        {
            record.rejections.pop_front();
        }
        if record.rejections.len() < self.settings.rejection_escalation_count as usize {
            return;
        }
        record.rejections.clear();
        self.change_condition(node_id, |condition| condition.unhealthy = true);
        let due = Due::Mono(now + self.settings.unhealthy_cooldown);
        self.timers
            .set(Timer::UnhealthyCooldown(node_id.clone()), due);
        out.callback(Callback::OnNodeUnhealthy {
            node_id: node_id.clone(),
        });
    }

    /// The cool-down is over, or a job came to run on it (HEALTH-04, HEALTH-05).
    pub(crate) fn make_healthy(&mut self, node_id: &NodeId, out: &mut Effects) {
        let unhealthy = self
            .fleet
            .condition(node_id)
            .is_some_and(|condition| condition.unhealthy);
        if !unhealthy {
            return;
        }
        self.lose_unhealthy_mark(node_id);
        out.callback(Callback::OnNodeHealthy {
            node_id: node_id.clone(),
        });
        self.pending.wake();
    }

    /// Without a word, when the node stops (HEALTH-06).
    pub(crate) fn lose_unhealthy_mark(&mut self, node_id: &NodeId) {
        self.timers.stop(&Timer::UnhealthyCooldown(node_id.clone()));
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.rejections.clear();
            self.change_condition(node_id, |condition| condition.unhealthy = false);
        }
    }
}

// === impl Policy: exclusion windows ===

impl Policy {
    /// Leaves a node out of every placement for a while (HEALTH-08). The window includes the instant
    /// at which it ends, so its timer is set a millisecond later.
    pub(crate) fn mark_recently_failed(&mut self, node_id: &NodeId) {
        let window = self.settings.failure_backoff;
        if window == Millis(0) {
            return;
        }
        self.change_condition(node_id, |condition| condition.recently_failed = true);
        let due = Due::Mono(self.now.mono + window + Millis(1));
        self.timers.set(Timer::RecentlyFailed(node_id.clone()), due);
    }

    pub(crate) fn end_recently_failed(&mut self, node_id: &NodeId) {
        if self.nodes.contains_key(node_id) {
            self.change_condition(node_id, |condition| condition.recently_failed = false);
            self.pending.wake();
        }
    }

    /// Running again and heard: the window ends early (HEALTH-09).
    pub(crate) fn inventory_ends_exclusion(&mut self, node_id: &NodeId) {
        let running = self
            .nodes
            .get(node_id)
            .is_some_and(|record| record.state == MirrorState::Running);
        if running {
            self.timers.stop(&Timer::RecentlyFailed(node_id.clone()));
            self.change_condition(node_id, |condition| condition.recently_failed = false);
        }
    }

    /// Leaves a node out for one job for a while (HEALTH-10).
    pub(crate) fn exclude_for(&mut self, job_id: &JobId, node_id: &NodeId) {
        let window = self.settings.failure_backoff;
        if window == Millis(0) {
            return;
        }
        let until = self.now.mono + window;
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.excluded.insert(node_id.clone(), until);
            let timer = Timer::JobExclusion(job_id.clone(), node_id.clone());
            self.timers.set(timer, Due::Mono(until));
        }
        self.reclass(job_id);
    }

    pub(crate) fn end_job_exclusion(&mut self, job_id: &JobId, node_id: &NodeId) {
        if let Some(job) = self.jobs.get_mut(job_id)
            && job.excluded.remove(node_id).is_some()
        {
            self.reclass(job_id);
            self.pending.wake();
        }
    }
}
