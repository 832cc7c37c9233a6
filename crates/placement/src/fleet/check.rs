//! A second opinion: every derived value of the fleet worked out again from the bindings alone. Meant
//! for invariants in tests and simulations, not for each decision.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::{BundleId, JobId};

use super::{Fleet, JobSides, Member, Slot};

/// A derived value that differs from what the bindings say.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what}: the fleet says {kept}, its bindings say {recomputed}")]
pub struct Drift {
    /// Which value of which object.
    pub what: String,
    /// As it was kept.
    pub kept: String,
    /// As it ought to be.
    pub recomputed: String,
}

// === impl Fleet ===

impl Fleet {
    /// Works out every derived value again from the bindings alone and lists the differences.
    pub fn recompute(&self) -> Vec<Drift> {
        let mut drifts = Vec::new();
        let mut compare = |what: String, kept: String, recomputed: String| {
            if kept != recomputed {
                drifts.push(Drift {
                    what,
                    kept,
                    recomputed,
                });
            }
        };
        let mut jobs: BTreeMap<JobId, JobSides> = BTreeMap::new();
        let mut members: BTreeMap<(BundleId, u32), BTreeSet<Member>> = BTreeMap::new();
        let mut tiers: Vec<Vec<BTreeSet<Slot>>> = self
            .pools
            .iter()
            .map(|pool| vec![BTreeSet::new(); pool.tiers.len()])
            .collect();
        for (id, &slot) in &self.ids {
            let node = &self.nodes[slot];
            compare(
                format!("id of slot {slot}"),
                node.id.to_string(),
                id.to_string(),
            );
            if let Some((pool, tier)) = node.tier {
                tiers[pool][tier].insert(slot);
            }
            for bound in &node.bound {
                *jobs
                    .entry(bound.job_id.clone())
                    .or_default()
                    .side(bound.side) = Some(slot);
                let copy = (bound.job.bundle_id.clone(), bound.job.replica_index);
                members.entry(copy).or_default().insert(Member {
                    name: bound.job.job_name.clone(),
                    job_id: bound.job_id.clone(),
                    side: bound.side,
                    slot,
                });
            }
            compare(
                format!("slot of {id}"),
                format!("{:?}", self.slots.get(id)),
                format!("{:?}", Some(slot)),
            );
            for bound in &node.bound {
                let plan = self.plan(&bound.job.bundle_id);
                let group = plan.and_then(|plan| plan.group_index(&bound.job.job_name));
                if let (Some(plan), Some(group)) = (plan, group) {
                    compare(
                        format!("group of {}", bound.job_id),
                        bound.shares.to_string(),
                        plan.groups()[group].is_shared().to_string(),
                    );
                }
                compare(
                    format!("needs of {}", bound.job_id),
                    format!("{:?}", bound.plain),
                    format!("{:?}", bound.needs.as_ref().and_then(|needs| needs.plain())),
                );
            }
            let holds = self.holds_on(slot);
            compare(
                format!("holds on {id}"),
                format!("{:?}", node.holds),
                format!("{holds:?}"),
            );
            let reserved = node.summed_up();
            compare(
                format!("reservation of {id}"),
                format!("{:?}", node.reserved),
                format!("{reserved:?}"),
            );
        }
        compare(
            "bindings by job".to_owned(),
            format!("{:?}", self.jobs),
            format!("{jobs:?}"),
        );
        let kept: BTreeMap<(BundleId, u32), BTreeSet<Member>> = self
            .bundles
            .sorted()
            .into_iter()
            .flat_map(|(id, known)| {
                known.copies.iter().map(move |&(replica, ref copy)| {
                    (
                        (id.clone(), replica),
                        copy.members.iter().cloned().collect(),
                    )
                })
            })
            .filter(|(_, members): &(_, BTreeSet<Member>)| !members.is_empty())
            .collect();
        compare(
            "bindings by copy".to_owned(),
            format!("{kept:?}"),
            format!("{members:?}"),
        );
        let kept: Vec<Vec<BTreeSet<Slot>>> = self
            .tiers
            .iter()
            .map(|tiers| tiers.iter().map(|tier| tier.members.clone()).collect())
            .collect();
        compare(
            "nodes by tier".to_owned(),
            format!("{kept:?}"),
            format!("{tiers:?}"),
        );
        compare(
            "index of the tiers".to_owned(),
            format!("{:?}", self.index.faults(&self.nodes)),
            "[]".to_owned(),
        );
        for node in &self.nodes {
            compare(
                format!("warmth of {}", node.id),
                format!("{:?}", node.warm),
                format!("{:?}", self.warmth_of(node)),
            );
        }
        drifts
    }
}
