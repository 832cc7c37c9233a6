//! Another reading of the requirements, slow and plain: a list of nodes and a list of bindings,
//! everything worked out anew for each question, all nodes filtered and what is left sorted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use greenroom_placement::{Context, Side, Spare, TierGate};
use greenroom_types::bundle::{Bundle, BundleJob, OnLaunch, OnRuntimeFailure, Rule, SameAz};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::Container;
use greenroom_types::node::NodeState;
use greenroom_types::pool::{PackingStrategy, Tier, TierKind};

const TINY: f64 = 1e-9;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) tier: Option<usize>,
    pub(crate) offer: NodeInventory,
    pub(crate) az: Option<String>,
    pub(crate) spare: Option<Spare>,
    pub(crate) prospective: bool,
    pub(crate) cordoned: bool,
    pub(crate) unhealthy: bool,
    pub(crate) state: NodeState,
    pub(crate) consumed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) bundle: usize,
    pub(crate) replica: u32,
    pub(crate) job: usize,
    pub(crate) node: usize,
    pub(crate) gpu: Option<u32>,
    pub(crate) side: Side,
}

pub(crate) struct Model {
    pub(crate) tiers: Vec<Tier>,
    pub(crate) gates: Vec<TierGate>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) bundles: Vec<Bundle>,
    pub(crate) bindings: Vec<Binding>,
}

/// One question.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) bundle: usize,
    pub(crate) replica: u32,
    pub(crate) job: usize,
}

/// Bundle, copy and job of a binding; none for a hold.
type Owner = Option<(usize, u32, usize)>;

#[derive(Default)]
struct Taken {
    capacity: f64,
    cores: u32,
    sdi: u32,
    gpus: BTreeMap<u32, f64>,
    gpu_holds: Vec<f64>,
    ports: Vec<(String, Owner)>,
}

// === impl Model ===

impl Model {
    fn jobs(&self, who: Who) -> &[BundleJob] {
        &self.bundles[who.bundle].jobs
    }

    /// Which jobs share a node with `job`, itself among them, by walking the relation.
    pub(crate) fn group(&self, bundle: usize, job: usize) -> Vec<usize> {
        let jobs = &self.bundles[bundle].jobs;
        let default = self.bundles[bundle]
            .intra_replica_placement
            .same_node_default;
        let ruleless =
            |at: usize| jobs[at].co_locate_with.is_empty() && jobs[at].separate_from.is_empty();
        let related = |a: usize, b: usize| {
            jobs[a].co_locate_with.contains(&jobs[b].job_name)
                || jobs[b].co_locate_with.contains(&jobs[a].job_name)
                || (default && ruleless(a) && ruleless(b))
        };
        let mut group = vec![job];
        loop {
            let more: Vec<usize> = (0..jobs.len())
                .filter(|at| !group.contains(at) && group.iter().any(|&it| related(it, *at)))
                .collect();
            if more.is_empty() {
                break;
            }
            group.extend(more);
        }
        group.sort_unstable();
        group
    }

    pub(crate) fn separate(&self, bundle: usize, a: usize, b: usize) -> bool {
        let jobs = &self.bundles[bundle].jobs;
        a != b
            && (jobs[a].separate_from.contains(&jobs[b].job_name)
                || jobs[b].separate_from.contains(&jobs[a].job_name))
    }

    pub(crate) fn bound(
        &self,
        bundle: usize,
        replica: u32,
        job: usize,
    ) -> impl Iterator<Item = &Binding> {
        self.bindings
            .iter()
            .filter(move |it| it.bundle == bundle && it.replica == replica && it.job == job)
    }

    fn is_spare(&self, node: usize) -> bool {
        let carried = self.bindings.iter().any(|it| it.node == node);
        self.nodes[node].spare.is_some() && !self.nodes[node].consumed && !carried
    }

    /// What is taken of a node for a member of `mine`, whose own holds do not count.
    fn taken(&self, node: usize, mine: Option<(usize, u32, &[usize])>) -> Taken {
        let mut taken = Taken::default();
        let add = |taken: &mut Taken, job: &BundleJob, owner| {
            let needs = &job.requirements;
            taken.capacity += needs.required_capacity;
            taken.cores += needs.required_cores;
            taken.sdi += needs
                .required_capabilities
                .iter()
                .map(|it| it.count)
                .sum::<u32>();
            for port in &needs.required_host_ports {
                taken.ports.push((port.clone(), owner));
            }
        };
        let mut held: Vec<(usize, u32, usize)> = Vec::new();
        for it in self.bindings.iter().filter(|it| it.node == node) {
            let job = &self.bundles[it.bundle].jobs[it.job];
            add(&mut taken, job, Some((it.bundle, it.replica, it.job)));
            let share = job.requirements.required_gpu_capacity;
            if share > 0.0 {
                match it.gpu {
                    Some(index) => *taken.gpus.entry(index).or_default() += share,
                    None => {
                        for gpu in &self.nodes[node].offer.gpus {
                            *taken.gpus.entry(gpu.index).or_default() += share;
                        }
                    }
                }
            }
            for member in self.group(it.bundle, it.job) {
                let waits = self.bound(it.bundle, it.replica, member).next().is_none();
                let entry = (it.bundle, it.replica, member);
                if waits && !held.contains(&entry) {
                    held.push(entry);
                }
            }
        }
        for (bundle, replica, member) in held {
            let own = mine.is_some_and(|(b, r, group)| {
                b == bundle && r == replica && group.contains(&member)
            });
            if !own {
                let job = &self.bundles[bundle].jobs[member];
                add(&mut taken, job, None);
                let share = job.requirements.required_gpu_capacity;
                if share > 0.0 {
                    taken.gpu_holds.push(share);
                }
            }
        }
        taken.capacity = taken.capacity.max(self.nodes[node].offer.reserved_capacity);
        taken
    }

    /// Device for `own`, or none needed; `Err` when it does not fit with the rest.
    fn gpu(
        offer: &NodeInventory,
        taken: &Taken,
        own: f64,
        rest: &[f64],
        strategy: PackingStrategy,
    ) -> Result<Option<u32>, ()> {
        let free =
            |index: u32, capacity: f64| capacity - taken.gpus.get(&index).copied().unwrap_or(0.0);
        let mut room: Vec<(u32, f64)> = offer
            .gpus
            .iter()
            .map(|it| (it.index, free(it.index, it.capacity)))
            .collect();
        room.sort_by_key(|it| it.0);
        if own == 0.0 && rest.is_empty() {
            return Ok(None);
        }
        let mut others: Vec<f64> = rest.to_vec();
        others.extend(&taken.gpu_holds);
        let fits =
            |mut room: Vec<(u32, f64)>, mut needs: Vec<(f64, bool)>| -> Option<Option<u32>> {
                needs.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap());
                let mut device = None;
                for (need, own) in needs {
                    let mut best: Option<usize> = None;
                    for at in 0..room.len() {
                        let better = best.is_none_or(|best: usize| room[at].1 < room[best].1);
                        if need <= room[at].1 + TINY && better {
                            best = Some(at);
                        }
                    }
                    let best = best?;
                    room[best].1 -= need;
                    if own {
                        device = Some(room[best].0);
                    }
                }
                Some(device)
            };
        let plain = |needs: &[f64]| needs.iter().map(|&it| (it, false)).collect::<Vec<_>>();
        if own == 0.0 {
            return fits(room, plain(&others)).map(|_| None).ok_or(());
        }
        let used = |index: u32| {
            let capacity = offer
                .gpus
                .iter()
                .find(|it| it.index == index)
                .unwrap()
                .capacity;
            ((capacity - room.iter().find(|it| it.0 == index).unwrap().1) / capacity * 1e9).round()
                as i64
        };
        let mut order: Vec<u32> = room
            .iter()
            .filter(|it| own <= it.1 + TINY)
            .map(|it| it.0)
            .collect();
        order.sort_by_key(|&index| match strategy {
            PackingStrategy::Binpack => (-used(index), index),
            PackingStrategy::Spread => (used(index), index),
        });
        for &index in &order {
            let mut left = room.clone();
            left.iter_mut().find(|it| it.0 == index).unwrap().1 -= own;
            if others.is_empty() || fits(left, plain(&others)).is_some() {
                return Ok(Some(index));
            }
        }
        let mut all = plain(&others);
        all.push((own, true));
        fits(room, all).ok_or(())
    }

    /// Everything that does not depend on the tier: whether the node will do.
    fn admits(&self, who: Who, context: &Context, node: usize) -> Option<Option<u32>> {
        let it = &self.nodes[node];
        let bundle = &self.bundles[who.bundle];
        let job = &self.jobs(who)[who.job];
        let moving_away =
            matches!(context, Context::Migration { source } if source.as_str() == it.name);
        if it.unhealthy || moving_away {
            return None;
        }
        if matches!(it.state, NodeState::Stopping | NodeState::Stopped) || it.cordoned {
            return None;
        }
        if it.offer.disk_low || it.offer.runtime == "unavailable" {
            return None;
        }
        if let Some(spare) = it.spare.as_ref().filter(|_| self.is_spare(node)) {
            let ours = job
                .launch
                .template
                .as_ref()
                .is_some_and(|template| spare.reserved_for.contains(template));
            if spare.exclusive
                && !spare.reserved_for.is_empty()
                && !ours
                && !bundle.override_reservation
            {
                return None;
            }
        }
        let group = self.group(who.bundle, who.job);
        let mates: Vec<&Binding> = self
            .bindings
            .iter()
            .filter(|it| {
                it.bundle == who.bundle
                    && it.replica == who.replica
                    && it.job != who.job
                    && group.contains(&it.job)
            })
            .collect();
        let sized: Vec<usize> = if mates.is_empty() {
            group.clone()
        } else {
            vec![who.job]
        };
        let with_image = |&at: &usize| {
            let services = &self.jobs(who)[at].launch.services;
            services.is_empty()
                || services
                    .iter()
                    .any(|it| matches!(it.container, Container::Docker(_)))
        };
        let runs = match it.offer.runtime.as_str() {
            "process" => !sized.iter().any(with_image),
            "docker 29.0" => sized.iter().all(with_image),
            _ => true,
        };
        if !runs {
            return None;
        }
        let taken = self.taken(node, Some((who.bundle, who.replica, &group)));
        let gpu = self.fits(
            who,
            &sized,
            &group,
            &it.offer,
            &taken,
            self.tiers[it.tier?].packing_strategy,
        )?;

        let outside = |it: &&Binding| {
            let same_copy = it.bundle == who.bundle && it.replica == who.replica;
            it.node == node && !(same_copy && group.contains(&it.job))
        };
        let wants_alone = group.iter().any(|&member| self.jobs(who)[member].exclusive);
        let clash = self
            .bindings
            .iter()
            .filter(outside)
            .any(|it| wants_alone || self.bundles[it.bundle].jobs[it.job].exclusive);
        if clash {
            return None;
        }
        if mates.iter().any(|it| it.node != node) {
            return None;
        }
        let apart = self.bindings.iter().any(|it| {
            let peers = self.group(who.bundle, it.job);
            it.node == node
                && it.bundle == who.bundle
                && it.replica == who.replica
                && it.job != who.job
                && group
                    .iter()
                    .any(|&a| peers.iter().any(|&b| self.separate(who.bundle, a, b)))
        });
        if apart {
            return None;
        }
        self.in_zone(who, it.az.as_deref()).then_some(gpu)
    }

    /// Capabilities, capacity, cores, ports and GPU shares of `sized` on an offer.
    fn fits(
        &self,
        who: Who,
        sized: &[usize],
        group: &[usize],
        offer: &NodeInventory,
        taken: &Taken,
        strategy: PackingStrategy,
    ) -> Option<Option<u32>> {
        let jobs = self.jobs(who);
        let needs = |of: fn(&BundleJob) -> f64| sized.iter().map(|&at| of(&jobs[at])).sum::<f64>();
        let sdi: u32 = sized
            .iter()
            .flat_map(|&at| &jobs[at].requirements.required_capabilities)
            .map(|it| it.count)
            .sum();
        let mut cards = sized
            .iter()
            .flat_map(|&at| &jobs[at].requirements.required_capabilities);
        let offered = offer.capabilities.first();
        let matched = cards.all(|need| {
            offered.is_some_and(|offered| {
                need.attributes
                    .iter()
                    .all(|(key, value)| offered.attributes.get(key) == Some(value))
            })
        });
        if sdi > 0 && (!matched || offered.map_or(0, |it| it.count) < sdi + taken.sdi) {
            return None;
        }
        if needs(|job| job.requirements.required_capacity)
            > offer.total_capacity * offer.utilization_cap - taken.capacity + TINY
        {
            return None;
        }
        let cores = needs(|job| job.requirements.required_cores.into());
        if cores > 0.0 && cores + f64::from(taken.cores) > f64::from(offer.total_cores) {
            return None;
        }
        let me = (who.bundle, who.replica, who.job);
        let mut asked: Vec<&String> = Vec::new();
        for port in sized
            .iter()
            .flat_map(|&at| &jobs[at].requirements.required_host_ports)
        {
            let clash = taken
                .ports
                .iter()
                .any(|(taken, owner)| taken == port && *owner != Some(me));
            if clash || asked.contains(&port) {
                return None;
            }
            asked.push(port);
        }
        let share = |at: usize| jobs[at].requirements.required_gpu_capacity;
        let waits = |at: usize| {
            at != who.job
                && (sized.len() > 1 || self.bound(who.bundle, who.replica, at).next().is_none())
        };
        let rest: Vec<f64> = group
            .iter()
            .copied()
            .filter(|&at| waits(at))
            .map(share)
            .filter(|&it| it > 0.0)
            .collect();
        let own = share(who.job);
        let choice = Self::gpu(offer, taken, own, &rest, strategy);
        let tied = group.len() > 1 && sized.len() == 1;
        match choice {
            Err(()) if tied => Self::gpu(offer, taken, own, &[], strategy).ok(),
            other => other.ok(),
        }
    }

    fn in_zone(&self, who: Who, az: Option<&str>) -> bool {
        let zones = self.zones(who);
        self.bundles[who.bundle].intra_replica_placement.same_az != SameAz::Hard
            || zones.is_empty()
            || az.is_some_and(|az| zones.contains(&az))
    }

    fn zones(&self, who: Who) -> Vec<&str> {
        self.bindings
            .iter()
            .filter(|it| it.bundle == who.bundle && it.replica == who.replica && it.job != who.job)
            .filter_map(|it| self.nodes[it.node].az.as_deref())
            .collect()
    }

    /// Forbidden domains shared by a node (or a new one of that tier).
    fn violations(&self, who: Who, node: Option<usize>, tier: usize, az: Option<&str>) -> usize {
        let Some(policy) = &self.bundles[who.bundle].resilience_policy else {
            return 0;
        };
        let others: Vec<usize> = self
            .bindings
            .iter()
            .filter(|it| it.bundle == who.bundle && it.replica == 1 - who.replica)
            .map(|it| it.node)
            .collect();
        let same_node = node.is_some_and(|node| others.contains(&node));
        let same_az = same_node
            || az.is_some_and(|az| {
                others
                    .iter()
                    .any(|&it| self.nodes[it].az.as_deref() == Some(az))
            });
        let kind = |tier: usize| self.tiers[tier].kind;
        let same_cloud = others
            .iter()
            .any(|&it| self.nodes[it].tier.map(kind) == Some(kind(tier)));
        let forbidden = |rule: Rule, shared: bool| usize::from(rule == Rule::Forbid && shared);
        forbidden(policy.same_node, same_node)
            + forbidden(policy.same_az, same_az)
            + forbidden(policy.same_cloud, same_cloud)
    }

    /// The decision: where, which device, how many violations.
    pub(crate) fn decide(&self, who: Who, context: &Context) -> (String, Option<u32>, usize) {
        for strict in [true, false] {
            for tier in 0..self.tiers.len() {
                let mut ranked = Vec::new();
                for (at, node) in self
                    .nodes
                    .iter()
                    .enumerate()
                    .filter(|(_, it)| it.tier == Some(tier))
                {
                    let Some(gpu) = self.admits(who, context, at) else {
                        continue;
                    };
                    let violations = self.violations(who, Some(at), tier, node.az.as_deref());
                    if !(strict && violations > 0) {
                        ranked.push((
                            self.key(who, context, at, violations),
                            node.name.clone(),
                            gpu,
                            violations,
                        ));
                    }
                }
                ranked.sort();
                if let Some((_, name, gpu, violations)) = ranked.into_iter().next() {
                    return (name, gpu, violations);
                }
                if let Some(bought) = self.buy(who, tier, strict) {
                    return bought;
                }
            }
        }
        ("-".to_owned(), None, 0)
    }

    #[expect(
        clippy::type_complexity,
        reason = "the key, written as a tuple on purpose"
    )]
    fn key(
        &self,
        who: Who,
        context: &Context,
        at: usize,
        violations: usize,
    ) -> (
        usize,
        bool,
        bool,
        Reverse<usize>,
        Reverse<bool>,
        Reverse<bool>,
        i64,
        Reverse<bool>,
    ) {
        let node = &self.nodes[at];
        let bundle = &self.bundles[who.bundle];
        let template = self.jobs(who)[who.job].launch.template.as_ref();
        let spare = self.is_spare(at);
        let avoid = match context {
            Context::Launch => bundle.on_launch == OnLaunch::AvoidSpare,
            Context::Recovery(policy) => *policy == OnRuntimeFailure::AvoidSpare,
            Context::Migration { .. } => false,
        };
        let prefer = *context == Context::Recovery(OnRuntimeFailure::PreferSpare);
        let warmth = if template.is_some_and(|it| it.as_str() == "x") {
            node.offer.held_images.len()
        } else {
            0
        };
        let reserved = spare
            && template.is_some_and(|it| node.spare.as_ref().unwrap().reserved_for.contains(it));
        let group = self.group(who.bundle, who.job);
        let taken = self.taken(at, Some((who.bundle, who.replica, &group)));
        let whole = node.offer.total_capacity * node.offer.utilization_cap;
        let used = if whole > 0.0 {
            (taken.capacity / whole * 1e9).round() as i64
        } else {
            1_000_000_000
        };
        let packing = match self.tiers[node.tier.unwrap()].packing_strategy {
            PackingStrategy::Binpack => -used,
            PackingStrategy::Spread => used,
        };
        let near = bundle.intra_replica_placement.same_az == SameAz::Soft
            && node
                .az
                .as_deref()
                .is_some_and(|az| self.zones(who).contains(&az));
        (
            violations,
            node.prospective,
            avoid && spare,
            Reverse(warmth),
            Reverse(reserved),
            Reverse(prefer && spare),
            packing,
            Reverse(near),
        )
    }

    fn buy(&self, who: Who, at: usize, strict: bool) -> Option<(String, Option<u32>, usize)> {
        let tier = &self.tiers[at];
        let group = self.group(who.bundle, who.job);
        let tied = group.iter().any(|&member| {
            member != who.job && self.bound(who.bundle, who.replica, member).next().is_some()
        });
        let count = self
            .nodes
            .iter()
            .filter(|it| it.tier == Some(at) && it.state != NodeState::Stopped)
            .count();
        let az = (tier.kind == TierKind::Oci).then_some("z1");
        let violations = self.violations(who, None, at, az);
        if !tier.is_elastic()
            || tied
            || self.gates[at] != TierGate::Open
            || tier.max_nodes.is_some_and(|max| count >= max as usize)
            || !self.in_zone(who, az)
            || (strict && violations > 0)
        {
            return None;
        }
        tier.candidate_instance_types.iter().find_map(|shape| {
            let offer = NodeInventory {
                total_capacity: shape.total_capacity,
                total_cores: shape.total_cores,
                capabilities: shape.capabilities.clone(),
                gpus: shape.gpus.clone(),
                ..NodeInventory::default()
            };
            let gpu = self.fits(
                who,
                &group,
                &group,
                &offer,
                &Taken::default(),
                tier.packing_strategy,
            )?;
            Some((
                format!("+{}/{}", tier.name, shape.instance_type),
                gpu,
                violations,
            ))
        })
    }
}
