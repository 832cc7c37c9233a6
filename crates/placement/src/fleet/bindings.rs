//! Bundles and bindings: what is bound where, with which needs, and which room is held for members of
//! groups that are still to come (RESV, INTRA-05).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::{BundleId, JobId, NodeId};

use super::{CopyState, Fleet, JobSides, Member, Slot};
use crate::binding::{Bound, JobRef, Side};
use crate::groups::{BundlePlan, SharedBundle};
use crate::needs::Needs;
use crate::node::Hold;

// === impl Fleet ===

impl Fleet {
    /// Takes a bundle as it is now: its bound jobs count with its needs from here on (BUNDLE-11), and
    /// its groups hold room (INTRA-05). Members that were released stay so.
    pub fn set_bundle(&mut self, bundle: impl Into<SharedBundle>) {
        self.revision += 1;
        let bundle = bundle.into();
        let id = bundle.bundle_id.clone();
        let plan = Arc::new(BundlePlan::new(bundle));
        let known = self.bundles.of(&id);
        known.plan = Some(Arc::clone(&plan));
        self.hold_demands(&id);
        for slot in self.slots_of(&id) {
            for bound in &mut self.nodes[slot].bound {
                if bound.job.bundle_id == id
                    && let Some(at) = plan.job_index(&bound.job.job_name)
                {
                    bound.take_spec(&plan, at);
                }
            }
            self.refresh(slot);
        }
    }

    /// Forgets a bundle. Bindings keep the needs they were made with (RESV-04); holds end.
    pub fn remove_bundle(&mut self, bundle_id: &BundleId) {
        if let Some(known) = self.bundles.get_mut(bundle_id) {
            self.revision += 1;
            known.plan = None;
            for mask in std::mem::take(&mut known.masks) {
                self.index.demands.release(mask);
            }
            for (_, copy) in &mut known.copies {
                copy.released.clear();
            }
            for slot in self.slots_of(bundle_id) {
                self.refresh(slot);
            }
            self.prune(bundle_id);
        }
    }

    /// Ends, or takes up again, the hold for a job that is deleted, dropped or judged terminal
    /// (INTRA-05). A job that is bound needs no hold, whatever is said here.
    pub fn set_released(&mut self, job: &JobRef, released: bool) {
        let known = self.bundles.of(&job.bundle_id);
        let copy = known.copy_or_new(job.replica_index);
        let changed = if released {
            copy.released.insert(job.job_name.clone())
        } else {
            copy.released.remove(&job.job_name)
        };
        if changed {
            self.revision += 1;
            for slot in self.group_slots(job) {
                self.refresh(slot);
            }
        }
        self.prune(&job.bundle_id);
    }

    /// Binds a side of a job to a node, from now on counting there (RESV-03). A side that was bound
    /// elsewhere moves. A spare is consumed by it (SPARE-04).
    pub fn bind(
        &mut self,
        job_id: &JobId,
        job: &JobRef,
        node: &NodeId,
        gpu_index: Option<u32>,
        side: Side,
    ) {
        self.unbind(job_id, side);
        let slot = self.slot(node);
        let bought = self.is_bought(slot);
        let known = self.bundles.of(&job.bundle_id);
        known.copy_or_new(job.replica_index).members.push(Member {
            name: job.job_name.clone(),
            job_id: job_id.clone(),
            side,
            slot,
        });
        *self.jobs.of(job_id).side(side) = Some(slot);
        self.seq += 1;
        let entry = &mut self.nodes[slot];
        entry.consumed |= bought
            && entry
                .facts
                .as_ref()
                .is_some_and(|facts| facts.spare.is_some());
        let mut bound = Bound {
            job_id: job_id.clone(),
            job: job.clone(),
            side,
            gpu_index,
            needs: None,
            exclusive: false,
            seq: self.seq,
            plain: None,
            shares: false,
        };
        if let Some(plan) = &known.plan
            && let Some(at) = plan.job_index(&job.job_name)
        {
            bound.take_spec(plan, at);
        }
        entry.bound.push(bound);
        self.refresh_with(slot, job);
    }

    /// Takes a side of a job off its node, which is returned.
    pub fn unbind(&mut self, job_id: &JobId, side: Side) -> Option<NodeId> {
        let sides = self.jobs.get_mut(job_id)?;
        let slot = sides.side(side).take()?;
        if *sides == JobSides::default() {
            self.jobs.remove(job_id);
        }
        let entry = &mut self.nodes[slot];
        let at = entry
            .bound
            .iter()
            .position(|bound| bound.job_id == *job_id && bound.side == side)?;
        let bound = entry.bound.remove(at);
        let node = entry.id.clone();
        if let Some(copy) = self.copy_mut(&bound.job) {
            copy.members
                .retain(|member| !(member.job_id == *job_id && member.side == side));
        }
        self.refresh_with(slot, &bound.job);
        self.prune(&bound.job.bundle_id);
        self.vacate(slot);
        Some(node)
    }

    /// Ends a migration on its target: the target becomes the binding, the node bound before is
    /// free of the job and returned (MIGR-15). Nothing happens without a target.
    pub fn promote(&mut self, job_id: &JobId) -> Option<NodeId> {
        let target = self.jobs.get(job_id)?.target?;
        let source = self.unbind(job_id, Side::Binding);
        let bound = self.nodes[target]
            .bound
            .iter_mut()
            .find(|bound| bound.job_id == *job_id && bound.side == Side::MigrationTarget)?;
        bound.side = Side::Binding;
        self.revision += 1;
        let job = bound.job.clone();
        if let Some(copy) = self.copy_mut(&job) {
            for member in &mut copy.members {
                if member.job_id == *job_id {
                    member.side = Side::Binding;
                }
            }
        }
        self.jobs.insert(
            job_id.clone(),
            JobSides {
                binding: Some(target),
                target: None,
            },
        );
        source
    }

    /// Tells on which device a bound job holds its GPU share (GPU-05).
    pub fn set_gpu_index(&mut self, job_id: &JobId, side: Side, gpu_index: Option<u32>) {
        let Some(slot) = self.jobs.get(job_id).and_then(|sides| sides.get(side)) else {
            return;
        };
        for bound in &mut self.nodes[slot].bound {
            if bound.job_id == *job_id && bound.side == side {
                bound.gpu_index = gpu_index;
            }
        }
        self.refresh(slot);
    }

    /// Node that a job is bound to, in logarithmic time whatever the size of its node (BIND-02).
    pub fn node_of(&self, job_id: &JobId) -> Option<&NodeId> {
        self.side_of(job_id, Side::Binding)
    }

    /// Node of a side of a job.
    pub fn side_of(&self, job_id: &JobId, side: Side) -> Option<&NodeId> {
        let slot = self.jobs.get(job_id)?.get(side)?;
        Some(&self.nodes[slot].id)
    }

    /// The binding of a side of a job.
    pub fn bound(&self, job_id: &JobId, side: Side) -> Option<&Bound> {
        let slot = self.jobs.get(job_id)?.get(side)?;
        self.nodes[slot]
            .bound
            .iter()
            .find(|bound| bound.job_id == *job_id && bound.side == side)
    }

    /// Everything bound to a node, in the order of binding.
    pub fn jobs_on(&self, node: &NodeId) -> &[Bound] {
        self.node(node).map_or(&[], |node| node.bound.as_slice())
    }

    /// The rules of a bundle that the fleet knows.
    pub fn plan(&self, bundle_id: &BundleId) -> Option<&Arc<BundlePlan>> {
        self.bundles.get(bundle_id)?.plan.as_ref()
    }

    pub(crate) fn copy_state(&self, bundle_id: &BundleId, replica: u32) -> Option<&CopyState> {
        self.bundles.get(bundle_id)?.copy(replica)
    }

    fn copy_mut(&mut self, job: &JobRef) -> Option<&mut CopyState> {
        self.bundles
            .get_mut(&job.bundle_id)?
            .copy_mut(job.replica_index)
    }

    /// True for a machine that was bought: it stands in an elastic tier.
    fn is_bought(&self, slot: Slot) -> bool {
        self.nodes[slot]
            .tier
            .is_some_and(|(pool, tier)| self.pools[pool].tiers[tier].is_elastic())
    }

    /// Nodes on which anything of a bundle is bound.
    fn slots_of(&self, bundle_id: &BundleId) -> BTreeSet<Slot> {
        self.bundles
            .get(bundle_id)
            .map_or_else(BTreeSet::new, |known| {
                known
                    .copies
                    .iter()
                    .flat_map(|(_, copy)| copy.members.iter().map(|member| member.slot))
                    .collect()
            })
    }

    /// Nodes on which members of a job's group are bound.
    fn group_slots(&self, job: &JobRef) -> BTreeSet<Slot> {
        let Some(copy) = self.copy_state(&job.bundle_id, job.replica_index) else {
            return BTreeSet::new();
        };
        let plan = self.plan(&job.bundle_id);
        copy.members
            .iter()
            .filter(|member| plan.is_some_and(|plan| plan.together(&member.name, &job.job_name)))
            .map(|member| member.slot)
            .collect()
    }

    /// After a binding on `slot` came or went.
    fn refresh_with(&mut self, slot: Slot, job: &JobRef) {
        let is_shared = self.plan(&job.bundle_id).is_some_and(|plan| {
            let group = plan.group_index(&job.job_name);
            group.is_some_and(|group| plan.groups()[group].is_shared())
        });
        if !is_shared {
            // No room is held for anybody on its account.
            self.refresh(slot);
            return;
        }
        let mut slots = self.group_slots(job);
        slots.insert(slot);
        for slot in slots {
            self.refresh(slot);
        }
    }

    /// Works out holds and reservation of a node.
    fn refresh(&mut self, slot: Slot) {
        let holds = self.holds_on(slot);
        let node = &mut self.nodes[slot];
        node.holds = holds;
        node.sum_up();
        self.revision += 1;
        self.index.take(slot, &self.nodes);
    }

    /// Room kept on a node: for each group with a member bound to it, the members that are bound
    /// nowhere and not released (INTRA-05).
    pub(super) fn holds_on(&self, slot: Slot) -> Vec<Hold> {
        let mut holds = Vec::new();
        let mut seen: BTreeSet<(&BundleId, u32, usize)> = BTreeSet::new();
        for bound in self.nodes[slot].bound.iter().filter(|it| it.shares) {
            let (id, replica) = (&bound.job.bundle_id, bound.job.replica_index);
            let Some(plan) = self.plan(id) else { continue };
            let Some(group) = plan.group_index(&bound.job.job_name) else {
                continue;
            };
            if !plan.groups()[group].is_shared() || !seen.insert((id, replica, group)) {
                continue;
            }
            let Some(copy) = self.copy_state(id, replica) else {
                continue;
            };
            let mut members = Vec::new();
            let mut needs = Needs::default();
            for &at in &plan.groups()[group].members {
                let job = &plan.jobs()[at];
                if copy.waits(&job.name) {
                    members.push(JobRef::new(id.clone(), replica, job.name.clone()));
                    needs.add(&job.needs);
                }
            }
            if !members.is_empty() {
                holds.push(Hold { members, needs });
            }
        }
        holds
    }

    /// Drops what is known of a bundle that is gone and has nothing bound.
    fn prune(&mut self, bundle_id: &BundleId) {
        if let Some(known) = self.bundles.get_mut(bundle_id) {
            known
                .copies
                .retain(|(_, copy)| !copy.members.is_empty() || !copy.released.is_empty());
            if known.plan.is_none() && known.copies.is_empty() {
                self.bundles.remove(bundle_id);
            }
        }
    }
}
