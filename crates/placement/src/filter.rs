//! One request, prepared: what holds for it whichever node is looked at, then the filter chain
//! (PLACE-04) and the rank of a node (PLACE-14).
//!
//! Rules among jobs are looked up once, as sets of nodes, so that a node costs no search. Nothing is
//! allocated per node, but for GPU shares of groups and for a trace.

use std::borrow::Cow;
use std::cmp::Reverse;

use greenroom_types::bundle::{OnLaunch, OnRuntimeFailure, Rule, SameAz};
use greenroom_types::pool::{PackingStrategy, Reliability, Tier, TierKind};
use greenroom_types::{JobId, TemplateName};

use crate::binding::JobRef;
use crate::decision::{Degraded, Domain};
use crate::fleet::{Fleet, KnownAz, Slot};
use crate::gpu;
use crate::groups::{BundlePlan, Group};
use crate::index::Mask;
use crate::key::{Packing, Rank};
use crate::needs::{GpuNeed, Needs};
use crate::node::{Node, Spare};
use crate::offer::{Lack, Offer};
use crate::port::Port;
use crate::request::{Context, Request};
use crate::reserved::Reserved;
use crate::trace::{Exclusion, Reason};
use crate::walk::{SpareStanding, Special};

/// A request with everything that does not depend on the node.
pub(crate) struct Case<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) request: &'a Request<'a>,
    pub(crate) plan: &'a BundlePlan,
    pub(crate) me: JobRef,
    pub(crate) job_id: JobId,
    pub(crate) group: &'a Group,
    pub(crate) group_index: usize,
    /// What a node must offer: the job's needs, or those of its whole group for the first member
    /// that is placed (INTRA-04).
    pub(crate) needs: &'a Needs,
    pub(crate) own_gpu: Option<&'a GpuNeed>,
    /// Shares of the members of the group that are still to come.
    pub(crate) rest_gpus: Vec<GpuNeed>,
    /// Nodes of the other bound members of the group (INTRA-03), ascending, each once.
    tied: Vec<Slot>,
    /// Nodes of jobs that may not share a node with the group.
    apart: Vec<Slot>,
    /// Zones of the other bound jobs of the copy.
    pub(crate) azs: Vec<&'a str>,
    other: OtherCopy<'a>,
    template: Option<&'a TemplateName>,
    images: &'a [String],
    /// Number of the template, where warmth counts.
    warm_template: Option<u32>,
    /// Demands of the group for which the index has bits.
    pub(crate) mask: Mask,
    /// Nodes whose place in the index may be another for this request.
    pub(crate) special: Special,
    avoid_spares: bool,
    prefer_spares: bool,
    admit_reserved: bool,
}

/// Where the other copy is, and which domains are not to be shared with it (RESIL-03, RESIL-04).
#[derive(Default)]
struct OtherCopy<'a> {
    has_policy: bool,
    forbids: [bool; 3],
    slots: Vec<Slot>,
    azs: Vec<&'a str>,
    clouds: Vec<TierKind>,
    interruptible: bool,
}

pub(crate) const DOMAINS: [Domain; 3] = [Domain::Node, Domain::Az, Domain::Cloud];

/// Which of [`DOMAINS`] a node would share with the other copy although that is forbidden.
pub(crate) type Violations = [bool; 3];

/// A node that passed the chain.
#[derive(Clone, Copy)]
pub(crate) struct Fit {
    pub(crate) rank: Rank,
    pub(crate) gpu_index: Option<u32>,
    pub(crate) violations: Violations,
}

// === impl Case ===

impl<'a> Case<'a> {
    /// `is_known` says that the plan is the one the fleet has worked out.
    pub(crate) fn new(
        fleet: &'a Fleet,
        request: &'a Request<'a>,
        plan: &'a BundlePlan,
        is_known: bool,
    ) -> Self {
        let bundle = request.bundle;
        let job = &plan.jobs()[request.job];
        let me = JobRef::new(
            bundle.bundle_id.clone(),
            request.replica_index,
            job.name.clone(),
        );
        let job_id = request
            .job_id
            .clone()
            .unwrap_or_else(|| bundle.job_id(request.replica_index, &job.name));
        let group = &plan.groups()[job.group];

        let mut tied = Vec::new();
        let mut apart = Vec::new();
        let mut azs = Vec::new();
        let copy = fleet.copy_state(&bundle.bundle_id, request.replica_index);
        let peers = copy.map_or(&[][..], |copy| copy.members.as_slice());
        for peer in peers.iter().filter(|peer| peer.job_id != job_id) {
            let az = fleet.at(peer.slot).az.as_deref();
            azs.extend(az.filter(|az| !azs.contains(az)));
            if let Some(theirs) = plan.group_index(&peer.name) {
                if theirs == job.group {
                    tied.push(peer.slot);
                }
                if group.apart.contains(&theirs) {
                    apart.push(peer.slot);
                }
            }
        }
        tied.sort_unstable();
        tied.dedup();

        let sizing = group.is_shared() && tied.is_empty();
        let own_gpu = job.needs.gpus.first();
        let rest = group.members.iter().filter(|&&member| {
            member != request.job
                && (sizing || copy.is_none_or(|copy| copy.waits(&plan.jobs()[member].name)))
        });
        let rest_gpus = rest
            .flat_map(|&member| plan.jobs()[member].needs.gpus.iter().cloned())
            .collect();
        let template = bundle.jobs[request.job].launch.template.as_ref();
        let other = OtherCopy::new(fleet, request);
        let mut special: Special = fleet.slots_of_job(&job_id).collect();
        if !is_known {
            // Room may be held for what is a mate by this plan and none by the fleet's.
            special.extend(peers.iter().map(|peer| peer.slot));
        }
        if other.forbids.contains(&true) {
            special.extend(&other.slots);
        }
        let known = is_known.then(|| fleet.mask(&bundle.bundle_id, job.group));
        let (avoid_spares, prefer_spares) = match request.context {
            Context::Launch => (bundle.on_launch == OnLaunch::AvoidSpare, false),
            Context::Recovery(policy) => (
                policy == OnRuntimeFailure::AvoidSpare,
                policy == OnRuntimeFailure::PreferSpare,
            ),
            Context::Migration { .. } => (false, false),
        };
        Self {
            fleet,
            request,
            plan,
            me,
            job_id,
            group,
            group_index: job.group,
            needs: if sizing { &group.needs } else { &job.needs },
            own_gpu,
            rest_gpus,
            tied,
            apart,
            azs,
            other,
            template,
            images: template.map_or(&[], |template| fleet.template_images(template)),
            warm_template: template.and_then(|template| fleet.template_number(template)),
            mask: known.flatten().unwrap_or_default(),
            special,
            avoid_spares,
            prefer_spares,
            admit_reserved: request.override_reservation || bundle.override_reservation,
        }
    }

    /// True when two walks are made (PLACE-29).
    pub(crate) fn forbids(&self) -> bool {
        self.other.forbids.contains(&true)
    }

    /// True when the two walks can differ at all.
    pub(crate) fn has_other_copy(&self) -> bool {
        !self.other.slots.is_empty()
    }

    /// Nodes of the rest of its group (INTRA-03).
    pub(crate) fn tied(&self) -> &[Slot] {
        &self.tied
    }

    /// True when no node whatever can take it (PORT-05).
    pub(crate) const fn fits_nowhere(&self) -> bool {
        self.clashes_within()
    }

    /// Number of its template, if nodes can be warm for it.
    pub(crate) const fn warm_template(&self) -> Option<u32> {
        self.warm_template
    }

    /// True when the job can only go where its group is (INTRA-06).
    pub(crate) fn is_tied(&self) -> bool {
        !self.tied.is_empty()
    }

    /// The chain up to the tier: the parts for which a node's content does not matter.
    pub(crate) fn belongs(&self, node: &Node, pool: usize, tier: usize) -> Result<(), Reason> {
        if self.request.pin.is_some_and(|pin| *pin != node.id) {
            Err(Reason::NotTargetNode)
        } else if node.pool != Some(pool) {
            Err(Reason::WrongPool)
        } else if node.tier != Some((pool, tier)) {
            Err(Reason::WrongTier)
        } else {
            Ok(())
        }
    }

    /// The rest of the chain, then the rank (PLACE-04).
    pub(crate) fn look_at(&self, node: &Node, tier: &Tier) -> Result<Fit, Reason> {
        if self.exclusion(node).is_some() {
            return Err(Reason::RecoveryExcluded);
        }
        if !node.is_reachable() {
            return Err(Reason::Unreachable);
        }
        if node.is_cordoned() {
            return Err(Reason::Cordoned);
        }
        if node.is_disk_low() {
            return Err(Reason::DiskNearlyFull);
        }
        if node.is_runtime_down() {
            return Err(Reason::RuntimeUnavailable);
        }
        if !self.needs.run_on(node.offer.runtime) {
            return Err(Reason::WrongRuntime);
        }
        let Some(spare) = self.spare_standing(node.unconsumed_spare()) else {
            return Err(Reason::ReservedExclusively);
        };
        let reserved = self.reserved_on(node);
        match node.offer.lack(&reserved, self.needs) {
            Some(Lack::Capabilities) => return Err(Reason::InsufficientCapabilities),
            Some(Lack::Capacity) => return Err(Reason::InsufficientCapacity),
            Some(Lack::Cores) => return Err(Reason::InsufficientCores),
            None => {}
        }
        if self.port_clash(node, &reserved).is_some() {
            return Err(Reason::HostPortConflict);
        }
        let strategy = tier.packing_strategy;
        let Ok(gpu_index) = self.gpu(&node.offer, &reserved, strategy) else {
            return Err(Reason::NoGpuFit);
        };
        if self.exclusivity_clash(node).is_some() {
            return Err(Reason::Exclusivity);
        }
        if self.rule_broken(node) {
            return Err(Reason::IntraReplicaRule);
        }
        if !self.is_in_zone(node.az.as_deref()) {
            return Err(Reason::IntraReplicaAz);
        }

        let violations = self.violations(node);
        Ok(Fit {
            rank: Rank {
                resilience_violations: count(violations),
                prospective: node.is_prospective(),
                avoided_spare: spare.is_avoided,
                warmth: Reverse(if self.images.is_empty() {
                    0
                } else {
                    node.held_count(self.images)
                }),
                reservation_match: Reverse(spare.is_reserved_for_us),
                preferred_spare: Reverse(spare.is_preferred),
                packing: Packing::new(strategy, reserved.capacity, node.offer.capacity),
                same_az: Reverse(self.is_near(node.az.as_deref())),
            },
            gpu_index,
            violations,
        })
    }

    /// Which device a shape gives, if it is large enough for the job or its group (PLACE-26).
    pub(crate) fn fits_shape(
        &self,
        shape: &Offer,
        pool: usize,
        strategy: PackingStrategy,
    ) -> Option<Option<u32>> {
        let empty = Reserved::default();
        let ports_taken = self.clashes_within()
            || (!self.needs.ports.is_empty()
                && self
                    .fleet
                    .service_claims(pool, shape)
                    .any(|(port, _)| self.needs.ports.contains(&port)));
        if ports_taken || shape.lack(&empty, self.needs).is_some() {
            return None;
        }
        self.gpu(shape, &empty, strategy).ok()
    }

    /// What it means for this job that a node is such a spare, or none; nothing when it is kept for
    /// others (PLACE-09).
    pub(crate) fn spare_standing(&self, spare: Option<&Spare>) -> Option<SpareStanding> {
        let Some(spare) = spare else {
            return Some(SpareStanding::default());
        };
        let is_reserved_for_us = self
            .template
            .is_some_and(|template| spare.reserved_for.contains(template));
        let is_kept = spare.exclusive && !spare.reserved_for.is_empty();
        (!is_kept || is_reserved_for_us || self.admit_reserved).then_some(SpareStanding {
            is_reserved_for_us,
            is_avoided: self.avoid_spares,
            is_preferred: self.prefer_spares,
        })
    }

    /// In a zone of its copy, where that counts (PLACE-22).
    pub(crate) fn is_near(&self, az: Option<&str>) -> bool {
        self.request.bundle.intra_replica_placement.same_az == SameAz::Soft
            && az.is_some_and(|az| self.azs.contains(&az))
    }

    /// INTRA-08, for a node or for a new one of which `az` is what is known.
    pub(crate) fn is_in_zone(&self, az: Option<&str>) -> bool {
        self.request.bundle.intra_replica_placement.same_az != SameAz::Hard
            || self.azs.is_empty()
            || az.is_some_and(|az| self.azs.contains(&az))
    }

    /// Forbidden domains that a new node of a tier would share (RESIL-03).
    pub(crate) fn violations_of_tier(&self, tier: &Tier) -> Violations {
        let shares_az = tier
            .known_az()
            .is_some_and(|az| self.other.azs.contains(&az));
        let shares_cloud = self.other.clouds.contains(&tier.kind);
        self.other.mask([false, shares_az, shares_cloud])
    }

    pub(crate) fn violations(&self, node: &Node) -> Violations {
        let same_node = self.other.slots.contains(&node.slot);
        self.violations_of(same_node, node.az.as_deref(), self.fleet.cloud(node))
    }

    /// The same for any node of that zone and cloud.
    pub(crate) fn violations_of(
        &self,
        same_node: bool,
        az: Option<&str>,
        cloud: Option<TierKind>,
    ) -> Violations {
        if self.other.slots.is_empty() {
            return [false; 3];
        }
        let same_az = same_node || az.is_some_and(|az| self.other.azs.contains(&az));
        let same_cloud = cloud.is_some_and(|cloud| self.other.clouds.contains(&cloud));
        self.other.mask([same_node, same_az, same_cloud])
    }

    /// What the choice costs in independence (RESIL-05, RESIL-06).
    pub(crate) fn degraded(
        &self,
        violations: Violations,
        reliability: Option<Reliability>,
    ) -> Option<Degraded> {
        let degraded = Degraded {
            violated: DOMAINS
                .into_iter()
                .zip(violations)
                .filter_map(|(domain, violated)| violated.then_some(domain))
                .collect(),
            interruptible_primary: self.other.interruptible
                && reliability == Some(Reliability::Interruptible),
        };
        let worse = !degraded.violated.is_empty() || degraded.interruptible_primary;
        (self.other.has_policy && worse).then_some(degraded)
    }

    /// Reservation in force for this job (INTRA-05, RESV-02).
    pub(crate) fn reserved_on<'n>(&self, node: &'n Node) -> Cow<'n, Reserved> {
        // Asked about this node alone: what the job itself still holds there is not in its way.
        if self.request.pin.is_some() && node.lists_unbound(&self.job_id) {
            return Cow::Owned(node.reserved_without(&self.job_id, |job| self.is_mate(job)));
        }
        if node.holds.is_empty() {
            Cow::Borrowed(&node.reserved)
        } else {
            node.reserved_for(|job| self.is_mate(job))
        }
    }

    /// True for a job of this copy that is in the group.
    fn is_mate(&self, job: &JobRef) -> bool {
        job.same_copy(&self.me) && self.plan.group_index(&job.job_name) == Some(self.group_index)
    }

    pub(crate) fn exclusion(&self, node: &Node) -> Option<Exclusion> {
        if node.condition.unhealthy {
            Some(Exclusion::Unhealthy)
        } else if node.condition.recently_failed {
            Some(Exclusion::RecentlyFailed)
        } else if self
            .request
            .excluded
            .is_some_and(|excluded| excluded.contains(&node.id))
        {
            Some(Exclusion::ForThisJob)
        } else if matches!(&self.request.context, Context::Migration { source } if *source == node.id)
        {
            Some(Exclusion::MigrationSource)
        } else {
            None
        }
    }

    /// The group asks twice for one port, so it can be placed nowhere (PORT-05).
    const fn clashes_within(&self) -> bool {
        self.group.port_clash && self.tied.is_empty()
    }

    /// A port that is taken, and by whom (PORT-02, PORT-06).
    pub(crate) fn port_clash(&self, node: &Node, reserved: &Reserved) -> Option<(Port, Holder)> {
        if self.needs.ports.is_empty() {
            return None;
        }
        if self.clashes_within() {
            let port = self.needs.ports.first()?;
            return Some((*port, Holder::Group));
        }
        self.needs.ports.iter().find_map(|port| {
            if let Some((_, service)) = node.service_ports.iter().find(|(taken, _)| taken == port) {
                return Some((*port, Holder::Service(*service)));
            }
            if !reserved.ports.contains(port) {
                return None;
            }
            let claims = |needs: &Needs| needs.ports.contains(port);
            let by_job = node.bound.iter().find(|bound| {
                bound.job_id != self.job_id && bound.needs.as_deref().is_some_and(claims)
            });
            if let Some(bound) = by_job {
                return Some((*port, Holder::Job(bound.job_id.clone())));
            }
            // Its own are in its way like anybody's, but where only this node is asked about.
            let own = self.request.pin.is_some().then_some(&self.job_id);
            let mut others = node.listed.iter().filter(|it| Some(&it.job_id) != own);
            if let Some(listed) = others.find(|it| claims(&it.needs)) {
                return Some((*port, Holder::Job(listed.job_id.clone())));
            }
            let held = node.holds.iter().any(|hold| {
                claims(&hold.needs) && !hold.members.iter().any(|job| self.is_mate(job))
            });
            held.then_some((*port, Holder::Hold))
        })
    }

    fn gpu(
        &self,
        offer: &Offer,
        reserved: &Reserved,
        strategy: PackingStrategy,
    ) -> Result<Option<u32>, gpu::NoFit> {
        let choose = |rest| gpu::choose(&offer.devices, reserved, self.own_gpu, rest, strategy);
        let choice = choose(self.rest_gpus.as_slice());
        if choice.is_err() && self.is_tied() {
            // The group is here; what is still to come is no reason to refuse this member.
            return choose(&[]);
        }
        choice
    }

    /// A job because of which the node cannot be shared (INTRA-09, RESV-07).
    pub(crate) fn exclusivity_clash<'n>(&self, node: &'n Node) -> Option<(&'n JobId, &'n JobRef)> {
        if node.bound.is_empty() && node.foreign.is_empty() {
            return None;
        }
        let outside = |job_id: &JobId, job: &JobRef| *job_id != self.job_id && !self.is_mate(job);
        if self.group.exclusive {
            return node.carried().find(|(job_id, job)| outside(job_id, job));
        }
        let bound = node
            .bound
            .iter()
            .filter(|bound| bound.exclusive)
            .map(|bound| (&bound.job_id, &bound.job));
        let foreign = node
            .carried()
            .skip(node.bound.len())
            .filter(|(_, job)| self.is_exclusive(job));
        bound
            .chain(foreign)
            .find(|(job_id, job)| outside(job_id, job))
    }

    /// Whether a job that is not bound is exclusive, as far as its bundle is known.
    fn is_exclusive(&self, job: &JobRef) -> bool {
        self.fleet.plan(&job.bundle_id).is_some_and(|plan| {
            plan.job_index(&job.job_name)
                .is_some_and(|at| plan.jobs()[at].exclusive)
        })
    }

    /// INTRA-03.
    fn rule_broken(&self, node: &Node) -> bool {
        self.apart.contains(&node.slot)
            || self.tied.iter().any(|&slot| slot != node.slot)
            || (!node.foreign.is_empty() && self.foreign_apart(node).is_some())
    }

    /// A job that the node carries without a binding and that is to be kept apart (RESV-07).
    pub(crate) fn foreign_apart<'n>(&self, node: &'n Node) -> Option<&'n JobRef> {
        let apart = |job: &JobRef| {
            job.same_copy(&self.me)
                && self
                    .plan
                    .group_index(&job.job_name)
                    .is_some_and(|theirs| self.group.apart.contains(&theirs))
        };
        node.carried()
            .skip(node.bound.len())
            .find(|(job_id, job)| **job_id != self.job_id && apart(job))
            .map(|(_, job)| job)
    }
}

/// Who has a port.
pub(crate) enum Holder {
    Job(JobId),
    /// Room held for a group.
    Hold,
    Service(usize),
    /// Another member of the job's own group.
    Group,
}

// === impl OtherCopy ===

impl<'a> OtherCopy<'a> {
    fn new(fleet: &'a Fleet, request: &Request<'_>) -> Self {
        let Some(policy) = &request.bundle.resilience_policy else {
            return Self::default();
        };
        let mut other = Self {
            has_policy: true,
            forbids: [policy.same_node, policy.same_az, policy.same_cloud]
                .map(|rule| rule == Rule::Forbid),
            ..Self::default()
        };
        let replica = 1 - request.replica_index.min(1);
        let Some(copy) = fleet.copy_state(&request.bundle.bundle_id, replica) else {
            return other;
        };
        for member in &copy.members {
            if other.slots.contains(&member.slot) {
                continue;
            }
            let node = fleet.at(member.slot);
            other.slots.push(member.slot);
            let az = node.az.as_deref();
            other.azs.extend(az.filter(|az| !other.azs.contains(az)));
            let cloud = fleet.cloud(node);
            other
                .clouds
                .extend(cloud.filter(|cloud| !other.clouds.contains(cloud)));
            other.interruptible |= fleet.node_reliability(node) == Some(Reliability::Interruptible);
        }
        other
    }

    fn mask(&self, shared: Violations) -> Violations {
        [0, 1, 2].map(|at| shared[at] && self.forbids[at])
    }
}

/// How many domains are violated.
pub(crate) fn count(violations: Violations) -> u8 {
    violations.into_iter().map(u8::from).sum()
}
