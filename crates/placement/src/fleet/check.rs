//! A second opinion: every derived value of the fleet worked out again from the bindings alone. Meant
//! for invariants in tests and simulations, not for each decision.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::{BundleId, JobId};

use super::{CopyState, Fleet, JobSides, Member, Slot};

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
        for (id, known) in self.bundles.sorted() {
            let empty = |copy: &CopyState| copy.members.is_empty() && copy.released.is_empty();
            let left_over = known.copies.iter().any(|(_, copy)| empty(copy))
                || known.plan.is_none() && known.copies.is_empty();
            compare(
                format!("left over of bundle {id}"),
                left_over.to_string(),
                false.to_string(),
            );
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greenroom_types::NodeId;
    use greenroom_types::bundle::{Bundle, BundleJob};
    use greenroom_types::inventory::NodeInventory;
    use greenroom_types::node::NodeState;
    use greenroom_types::pool::{Pool, ScaleOut, Tier, TierKind};

    use super::*;
    use crate::binding::{JobRef, Side};
    use crate::node::{NodeCondition, NodeFacts};

    /// Two nodes; one carries a member of a group and holds room for the other one.
    fn fleet() -> Fleet {
        let tier = Tier {
            name: "own".into(),
            kind: TierKind::LocalServers,
            region: None,
            packing_strategy: Default::default(),
            scale_out: ScaleOut::Fixed,
            candidate_instance_types: Vec::new(),
            launch_mode: Default::default(),
            reliability: None,
            max_nodes: None,
            root_volume: None,
            placement_lead_ms: None,
            provision_timeout_ms: None,
        };
        let mut fleet = Fleet::new(vec![Pool {
            name: "p".into(),
            tiers: vec![tier],
        }]);
        for name in ["m", "n"] {
            let node = NodeId::from(name);
            fleet.upsert_node(NodeFacts {
                node_id: node.clone(),
                pool: Some("p".into()),
                ..NodeFacts::default()
            });
            let picture = NodeInventory {
                total_capacity: 4.0,
                ..NodeInventory::default()
            };
            fleet.set_inventory(&node, Arc::new(picture));
        }
        let job = |name: &str| {
            let mut job = BundleJob {
                job_name: name.into(),
                ..BundleJob::default()
            };
            job.requirements.required_capacity = 1.0;
            job
        };
        let mut bundle = Bundle {
            bundle_id: "b".into(),
            pool: "p".into(),
            jobs: vec![job("e"), job("f")],
            ..Bundle::default()
        };
        bundle.intra_replica_placement.same_node_default = true;
        fleet.set_bundle(&Arc::new(bundle));
        let job = JobRef::new("b".into(), 0, "e".into());
        fleet.bind(&"b.0.e".into(), &job, &"m".into(), None, Side::Binding);
        fleet
    }

    #[test]
    fn whatever_drifts_from_the_bindings_is_found() {
        assert_eq!(fleet().recompute(), []);
        type Change = fn(&mut Fleet);
        let changes: [(&str, Change); 12] = [
            ("id of slot 0", |it| it.nodes[0].id = "x".into()),
            ("slot of m", |it| it.slots.insert("m".into(), 1)),
            ("group of b.0.e", |it| it.nodes[0].bound[0].shares = false),
            ("needs of b.0.e", |it| it.nodes[0].bound[0].plain = None),
            ("holds on m", |it| it.nodes[0].holds.clear()),
            ("reservation of m", |it| it.nodes[0].reserved.capacity = 3.0),
            ("bindings by job", |it| it.jobs.remove(&"b.0.e".into())),
            ("bindings by copy", |it| {
                let known = it.bundles.of(&"b".into());
                known.copy_or_new(0).members[0].slot = 1;
            }),
            ("left over of bundle b", |it| {
                it.bundles.of(&"b".into()).copy_or_new(1);
            }),
            ("nodes by tier", |it| {
                it.tiers[0][0].members.remove(&1);
            }),
            ("index of the tiers", |it| {
                it.nodes[1].condition = NodeCondition {
                    state: NodeState::Stopped,
                    ..NodeCondition::default()
                };
            }),
            ("warmth of n", |it| it.nodes[1].warm.push((1, 1))),
        ];
        for (what, change) in changes {
            let mut fleet = fleet();
            change(&mut fleet);
            let drifts = fleet.recompute();
            let found = drifts.iter().find(|drift| drift.what == what);
            let Some(drift) = found else {
                panic!("{what} is not among {drifts:?}");
            };
            assert_ne!(drift.kept, drift.recomputed);
        }
        let mut gone = fleet();
        gone.bundles.of(&"gone".into());
        assert_eq!(gone.recompute()[0].what, "left over of bundle gone");
    }
}
