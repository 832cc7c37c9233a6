//! The rules that a bundle lays on the jobs of each of its copies, worked out once: which jobs share
//! a node, which never do (INTRA-02, INTRA-07).
//!
//! Because the members of a group sit on one node, separation is a relation between groups: where a
//! member may not be, no other member can be either. A group is worked out from the specification
//! alone, so dormant members belong to it (INTRA-04).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use greenroom_types::JobName;
use greenroom_types::bundle::{Bundle, BundleStatus};

use crate::needs::Needs;

/// A bundle that stays where it was told, by itself or in its status: there is one copy of it.
#[derive(Clone, Debug)]
pub enum SharedBundle {
    /// By itself.
    Alone(Arc<Bundle>),
    /// With what the Manager says of its jobs.
    InStatus(Arc<BundleStatus>),
}

/// A bundle as the engine reads it; the same for both copies.
#[derive(Clone, Debug)]
pub struct BundlePlan {
    bundle: SharedBundle,
    jobs: Vec<PlannedJob>,
    groups: Vec<Group>,
}

/// One job of the plan, in the order of the specification.
#[derive(Clone, Debug)]
pub struct PlannedJob {
    /// Its name.
    pub name: JobName,
    /// Its needs.
    pub needs: Arc<Needs>,
    /// Nothing outside its group runs on its node (INTRA-09).
    pub exclusive: bool,
    /// Index of its group.
    pub group: usize,
}

/// Jobs that share a node; a job without such a rule is a group of its own.
#[derive(Clone, Debug)]
pub struct Group {
    /// Indices of its jobs, ascending.
    pub members: Vec<usize>,
    /// Sum of their needs (INTRA-04).
    pub needs: Arc<Needs>,
    /// Groups that may not share its node, ascending. Its own index is among them when the rules
    /// contradict each other (VALID-03).
    pub apart: Vec<usize>,
    /// A member is exclusive.
    pub exclusive: bool,
    /// Two members claim the same host port, so the group fits nowhere (PORT-05).
    pub port_clash: bool,
}

// === impl SharedBundle ===

impl Deref for SharedBundle {
    type Target = Bundle;

    fn deref(&self) -> &Bundle {
        match self {
            Self::Alone(bundle) => bundle,
            Self::InStatus(status) => &status.bundle,
        }
    }
}

impl From<&Arc<Bundle>> for SharedBundle {
    fn from(bundle: &Arc<Bundle>) -> Self {
        Self::Alone(Arc::clone(bundle))
    }
}

impl From<&Arc<BundleStatus>> for SharedBundle {
    fn from(status: &Arc<BundleStatus>) -> Self {
        Self::InStatus(Arc::clone(status))
    }
}

// === impl BundlePlan ===

impl BundlePlan {
    /// Works out the rules of a bundle. Names of jobs that do not exist are passed over (VALID-03
    /// reports them); of two jobs of one name the first counts.
    pub fn new(bundle: impl Into<SharedBundle>) -> Self {
        let bundle = bundle.into();
        let count = bundle.jobs.len();
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, job) in bundle.jobs.iter().enumerate() {
            index.entry(job.job_name.as_str()).or_insert(at);
        }

        let mut roots: Vec<usize> = (0..count).collect();
        let mut default_root = None;
        for (at, job) in bundle.jobs.iter().enumerate() {
            for peer in &job.co_locate_with {
                if let Some(&peer) = index.get(peer.as_str()) {
                    join(&mut roots, at, peer);
                }
            }
            let free = job.co_locate_with.is_empty() && job.separate_from.is_empty();
            if bundle.intra_replica_placement.same_node_default && free {
                join(&mut roots, at, *default_root.get_or_insert(at));
            }
        }

        let mut group_of_root: BTreeMap<usize, usize> = BTreeMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut group_of = vec![0; count];
        for (at, slot) in group_of.iter_mut().enumerate() {
            let root = find(&mut roots, at);
            *slot = *group_of_root.entry(root).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[*slot].push(at);
        }

        let mut apart: Vec<Vec<usize>> = vec![Vec::new(); members.len()];
        for (at, job) in bundle.jobs.iter().enumerate() {
            for peer in &job.separate_from {
                let Some(&peer) = index.get(peer.as_str()) else {
                    continue;
                };
                if peer != at {
                    apart[group_of[at]].push(group_of[peer]);
                    apart[group_of[peer]].push(group_of[at]);
                }
            }
        }

        let jobs: Vec<PlannedJob> = bundle
            .jobs
            .iter()
            .zip(&group_of)
            .map(|(job, &group)| PlannedJob {
                name: job.job_name.clone(),
                needs: Arc::new(Needs::of_job(job)),
                exclusive: job.exclusive,
                group,
            })
            .collect();
        let groups = members
            .into_iter()
            .zip(apart)
            .map(|(members, mut apart)| {
                apart.sort_unstable();
                apart.dedup();
                Group::new(&jobs, members, apart)
            })
            .collect();
        Self {
            bundle,
            jobs,
            groups,
        }
    }

    /// The bundle it was made from.
    pub const fn bundle(&self) -> &SharedBundle {
        &self.bundle
    }

    /// Its jobs, in the order of the specification.
    pub fn jobs(&self) -> &[PlannedJob] {
        &self.jobs
    }

    /// Its groups, in the order of their first members.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Index of the job of that name.
    pub fn job_index(&self, name: &JobName) -> Option<usize> {
        self.jobs.iter().position(|job| job.name == *name)
    }

    /// Index of the group of the job of that name.
    pub fn group_index(&self, name: &JobName) -> Option<usize> {
        self.job_index(name).map(|at| self.jobs[at].group)
    }

    /// True when the jobs of these two names share a node by rule.
    pub fn together(&self, one: &JobName, other: &JobName) -> bool {
        match (self.group_index(one), self.group_index(other)) {
            (Some(one), Some(other)) => one == other,
            _ => false,
        }
    }
}

impl Group {
    fn new(jobs: &[PlannedJob], members: Vec<usize>, apart: Vec<usize>) -> Self {
        let mut port_clash = false;
        let needs = if let [only] = members[..] {
            Arc::clone(&jobs[only].needs)
        } else {
            let mut sum = Needs::default();
            for &member in &members {
                let needs = &jobs[member].needs;
                port_clash |= needs.ports.iter().any(|port| sum.ports.contains(port));
                sum.add(needs);
            }
            Arc::new(sum)
        };
        Self {
            exclusive: members.iter().any(|&member| jobs[member].exclusive),
            needs,
            members,
            apart,
            port_clash,
        }
    }

    /// True when it has more than one member.
    pub const fn is_shared(&self) -> bool {
        self.members.len() > 1
    }
}

fn find(roots: &mut [usize], mut at: usize) -> usize {
    while roots[at] != at {
        roots[at] = roots[roots[at]];
        at = roots[at];
    }
    at
}

fn join(roots: &mut [usize], one: usize, other: usize) {
    let (one, other) = (find(roots, one), find(roots, other));
    let (low, high) = (one.min(other), one.max(other));
    roots[high] = low;
}
