//! What the fleet knows of one node: facts from its tags, conditions that the policy keeps, its offer
//! and what is taken of it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::inventory::{Capability, Disk, NodeInventory};
use greenroom_types::node::{NodeMetadata, NodeState};
use greenroom_types::pool::{CandidateInstanceType, Reliability};
use greenroom_types::{JobId, JobName, NodeId, PoolName, ServiceId, Tags, TemplateName, TierName};
use serde::{Deserialize, Serialize};

use crate::binding::{Bound, JobRef};
use crate::needs::Needs;
use crate::offer::Offer;
use crate::port::Port;
use crate::reserved::Reserved;

/// Tags of a spare (SPARE-01, SPARE-03).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spare {
    /// Templates whose images it is to hold.
    pub warm_for: Vec<TemplateName>,
    /// Templates whose jobs it attracts.
    pub reserved_for: Vec<TemplateName>,
    /// Jobs of other templates are kept off it.
    pub exclusive: bool,
}

/// What the tags of a node say (TIER-05, TIER-07, NODE-02).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFacts {
    /// The node.
    pub node_id: NodeId,
    /// Its pool.
    pub pool: Option<PoolName>,
    /// Its tier; none: the pool's fixed tier.
    pub tier: Option<TierName>,
    /// Its availability zone.
    pub az: Option<String>,
    /// Reliability; none: that of its tier.
    pub reliability: Option<Reliability>,
    /// Set when it is tagged as a spare.
    pub spare: Option<Spare>,
}

/// What stands in the way of placing on a node. Written by the policy alone; what the inventory says
/// is looked at besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    /// Where it stands; stopping and stopped nodes are unreachable (PLACE-07), stopped ones do not
    /// count under `maxNodes` (TIER-08).
    pub state: NodeState,
    /// The Manager has lost its stream to it.
    pub unreachable: bool,
    /// This policy has issued a terminate for it.
    pub terminating: bool,
    /// Cordoned by this policy.
    pub cordoned: bool,
    /// HEALTH-03.
    pub unhealthy: bool,
    /// HEALTH-08.
    pub recently_failed: bool,
}

/// Whether a tier may buy for jobs at the moment (PROV-12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TierGate {
    /// It may.
    #[default]
    Open,
    /// It waits after a failed create.
    BackOff,
    /// Its one probe is under way.
    HalfOpenBusy,
}

/// Host ports that a configured node service takes on every node it runs on (PORT-06).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePorts {
    /// The service.
    pub service_id: ServiceId,
    /// Pools whose nodes carry it.
    pub pools: Vec<PoolName>,
    /// Capabilities that a node must have to carry it.
    pub consumes: Vec<Capability>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// Where a node's numbers come from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Nowhere: the node is invisible to placement (PLACE-03).
    #[default]
    Unknown,
    /// Its worker.
    Inventory(Arc<NodeInventory>),
    /// The shape that was asked for (PROV-03).
    Prospective,
}

/// What a node's picture says that a job holds on it (RESV-07).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listed {
    /// The job.
    pub job_id: JobId,
    /// What it holds.
    pub needs: Needs,
    /// Device of its GPU share.
    pub gpu_index: Option<u32>,
    /// It is not the instance with which the job is bound there, but one beside it: both take room.
    pub beside: bool,
}

/// Room kept for the members of one group that are not placed yet (INTRA-05).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    /// Each member it is kept for.
    pub(crate) members: Vec<JobRef>,
    pub(crate) needs: Needs,
}

/// One node of the fleet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Its own place in the table.
    pub(crate) slot: usize,
    /// None: a shell that something is still bound to.
    pub(crate) facts: Option<NodeFacts>,
    pub(crate) condition: NodeCondition,
    pub(crate) source: Source,
    pub(crate) offer: Offer,
    pub(crate) reported: Reserved,
    /// Index of its pool.
    pub(crate) pool: Option<usize>,
    /// Index of its pool and tier.
    pub(crate) tier: Option<(usize, usize)>,
    /// Its zone, where known (INTRA-08, RESIL-03).
    pub(crate) az: Option<String>,
    /// SPARE-04.
    pub(crate) consumed: bool,
    /// In the order of binding.
    pub(crate) bound: Vec<Bound>,
    /// Jobs that its inventory lists and that are not bound to it (RESV-07).
    pub(crate) foreign: Vec<(JobId, JobRef)>,
    /// What its inventory says that jobs hold, by job; each job once.
    pub(crate) listed: Vec<Listed>,
    /// What its inventory lists and reports as taken although it has ended since.
    pub(crate) gone: Vec<Listed>,
    pub(crate) holds: Vec<Hold>,
    /// Ports of node services, with the index of the service.
    pub(crate) service_ports: Vec<(Port, usize)>,
    /// Templates of which it holds images, by number, and how many of each.
    pub(crate) warm: Vec<(u32, u32)>,
    /// What is in force for a job without holds of its own (RESV-02).
    pub(crate) reserved: Reserved,
}

// === impl Spare ===

impl Spare {
    /// The specification in the tags of a node; none for a node that is no spare (SPARE-03). Empty
    /// values and `"false"` read as absent (SPARE-17).
    pub fn of_tags(tags: &Tags) -> Option<Self> {
        let names = |key: &str| -> Vec<TemplateName> {
            tags.get(key).map_or_else(Vec::new, |list| {
                list.split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                    .map(TemplateName::from)
                    .collect()
            })
        };
        (tags.get("spare").map(String::as_str) == Some("true")).then(|| Self {
            warm_for: names("warmFor"),
            reserved_for: names("reservedFor"),
            exclusive: tags.get("exclusive").map(String::as_str) == Some("true"),
        })
    }
}

// === impl NodeFacts ===

impl NodeFacts {
    /// Reads the tags of a node; an empty value reads as absent.
    pub fn of_metadata(metadata: &NodeMetadata) -> Self {
        let tags = &metadata.tags;
        let tag = |key: &str| {
            tags.get(key)
                .map(String::as_str)
                .filter(|text| !text.is_empty())
        };
        Self {
            node_id: metadata.node_id.clone(),
            pool: tag("pool").map(PoolName::from),
            tier: tag("tier").map(TierName::from),
            az: tag("az").map(str::to_owned),
            reliability: match tag("reliability") {
                Some("durable") => Some(Reliability::Durable),
                Some("interruptible") => Some(Reliability::Interruptible),
                _ => None,
            },
            spare: Spare::of_tags(tags),
        }
    }
}

// === impl Node ===

impl Node {
    pub(crate) const fn inventory(&self) -> Option<&Arc<NodeInventory>> {
        match &self.source {
            Source::Inventory(inventory) => Some(inventory),
            Source::Unknown | Source::Prospective => None,
        }
    }

    pub(crate) const fn is_prospective(&self) -> bool {
        matches!(self.source, Source::Prospective)
    }

    /// PLACE-03.
    pub(crate) const fn is_considered(&self) -> bool {
        self.facts.is_some() && !matches!(self.source, Source::Unknown)
    }

    /// PLACE-07.
    pub(crate) fn is_reachable(&self) -> bool {
        !matches!(
            self.condition.state,
            NodeState::Stopping | NodeState::Stopped
        ) && !self.condition.unreachable
            && !self.condition.terminating
            && self.inventory().is_none_or(|inventory| inventory.reachable)
    }

    /// PLACE-08.
    pub(crate) fn is_cordoned(&self) -> bool {
        self.condition.cordoned || self.inventory().is_some_and(|inventory| inventory.cordoned)
    }

    /// PLACE-34. Its worker judges; what it measured is only shown.
    pub(crate) fn is_disk_low(&self) -> bool {
        self.inventory().is_some_and(|inventory| inventory.disk_low)
    }

    /// PLACE-36.
    pub(crate) fn is_runtime_down(&self) -> bool {
        self.inventory().is_some_and(|it| it.is_runtime_down())
    }

    /// The disk because of which it takes no new work.
    pub(crate) fn low_disk(&self) -> Option<&Disk> {
        let inventory = self.inventory().filter(|inventory| inventory.disk_low)?;
        inventory.disks.first()
    }

    /// The spare's specification while it is unconsumed (PLACE-24).
    pub(crate) fn unconsumed_spare(&self) -> Option<&Spare> {
        if self.consumed || !self.bound.is_empty() {
            return None;
        }
        self.facts.as_ref()?.spare.as_ref()
    }

    /// Jobs that count as carried for the rules among jobs (RESV-07).
    pub(crate) fn carried(&self) -> impl Iterator<Item = (&JobId, &JobRef)> {
        let bound = self.bound.iter().map(|bound| (&bound.job_id, &bound.job));
        let foreign = self
            .foreign
            .iter()
            .filter(|(job_id, _)| self.bound.iter().all(|bound| bound.job_id != *job_id))
            .map(|(job_id, job)| (job_id, job));
        bound.chain(foreign)
    }

    /// How many of these images it holds (PREFETCH-07).
    pub(crate) fn held_count(&self, images: &[String]) -> u32 {
        let Some(inventory) = self.inventory() else {
            return 0;
        };
        let held = |image: &&String| {
            inventory
                .held_images
                .iter()
                .any(|held| held.reference == **image)
        };
        u32::try_from(images.iter().filter(held).count()).unwrap_or(u32::MAX)
    }

    /// Bindings, what else its picture lists, and holds, without what is reported. Summed anew each time, so that no error of
    /// rounding can creep in over a thousand bindings.
    pub(crate) fn derive(&self, skip: impl Fn(&Hold) -> bool) -> Reserved {
        let mut derived = Reserved::default();
        for bound in &self.bound {
            if let Some((capacity, cores)) = bound.plain {
                derived.capacity += capacity;
                derived.cores += cores;
            } else if let Some(needs) = &bound.needs {
                derived.add_bound(needs, bound.gpu_index, &self.offer.devices);
            }
        }
        for listed in &self.listed {
            // A side of a migration is as good as the other: they are never on one node.
            let mut bound = self.bound.iter().filter(|_| !listed.beside);
            match bound.find(|it| it.job_id == listed.job_id) {
                Some(bound) => derived.add_excess(listed, bound, &self.offer.devices),
                None => derived.add_bound(&listed.needs, listed.gpu_index, &self.offer.devices),
            }
        }
        for hold in self.holds.iter().filter(|hold| !skip(hold)) {
            derived.add_hold(&hold.needs);
        }
        derived
    }

    /// What is in force for a member of that group of that copy: its own holds do not stand in its
    /// way (INTRA-05).
    pub(crate) fn reserved_for(&self, is_own: impl Fn(&JobRef) -> bool) -> Cow<'_, Reserved> {
        let own = |hold: &Hold| hold.members.iter().any(&is_own);
        if self.holds.iter().any(own) {
            let mut reserved = self.derive(own);
            reserved.raise_to(&self.still_reported());
            Cow::Owned(reserved)
        } else {
            Cow::Borrowed(&self.reserved)
        }
    }

    /// Its picture lists the job, which is not bound to it.
    pub(crate) fn lists_unbound(&self, job_id: &JobId) -> bool {
        self.listed.iter().any(|listed| listed.job_id == *job_id)
            && self.bound.iter().all(|bound| bound.job_id != *job_id)
    }

    /// As [`Self::reserved_for`], without what its picture lists for that job.
    pub(crate) fn reserved_without(
        &self,
        job_id: &JobId,
        is_own: impl Fn(&JobRef) -> bool,
    ) -> Reserved {
        let mut node = self.clone();
        let (own, others) = std::mem::take(&mut node.listed)
            .into_iter()
            .partition(|listed| listed.job_id == *job_id);
        node.listed = others;
        let own: Vec<Listed> = own;
        let mut reserved = node.derive(|hold| hold.members.iter().any(&is_own));
        reserved.raise_to(&node.still_reported().less(&own));
        reserved
    }

    pub(crate) fn sum_up(&mut self) {
        self.reserved = self.summed_up();
    }

    /// What is in force for a job without holds of its own, worked out anew (RESV-02).
    pub(crate) fn summed_up(&self) -> Reserved {
        let mut reserved = self.derive(|_| false);
        reserved.raise_to(&self.still_reported());
        reserved
    }

    /// What its worker says is taken, less what has ended since (RESV-07).
    fn still_reported(&self) -> Cow<'_, Reserved> {
        if self.gone.is_empty() {
            Cow::Borrowed(&self.reported)
        } else {
            Cow::Owned(self.reported.less(&self.gone))
        }
    }

    /// Replaces its numbers by those of its worker (PROV-04).
    pub(crate) fn take_inventory(&mut self, inventory: Arc<NodeInventory>) {
        let inventory = if is_sane(&inventory) {
            inventory
        } else {
            Arc::new(NodeInventory::clone(&inventory).sanitised().0)
        };
        self.offer = Offer::of_inventory(&inventory);
        self.reported = Reserved::reported(&inventory);
        self.source = Source::Inventory(inventory);
    }

    /// Gives it the numbers of a shape (PROV-03).
    pub(crate) fn take_shape(&mut self, shape: &CandidateInstanceType) {
        self.offer = Offer::of_shape(shape);
        self.reported = Reserved::default();
        self.source = Source::Prospective;
    }
}

/// True when `sanitised` would change nothing; spares a copy of the whole picture.
fn is_sane(inventory: &NodeInventory) -> bool {
    let amount = |value: f64| value.is_finite() && value >= 0.0;
    inventory.utilization_cap > 0.0
        && inventory.utilization_cap <= 1.0
        && amount(inventory.total_capacity)
        && amount(inventory.reserved_capacity)
        && inventory
            .gpus
            .iter()
            .all(|gpu| amount(gpu.capacity) && amount(gpu.reserved_capacity))
        && inventory
            .assigned_jobs
            .iter()
            .all(|job| amount(job.capacity) && amount(job.gpu_capacity))
}

/// Names of jobs that no longer want their room.
pub(crate) type Released = BTreeSet<JobName>;
