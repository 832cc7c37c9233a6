//! The engine against an oracle: another reading of the same requirements, slow and plain. It keeps
//! a list of nodes and a list of bindings, works everything out anew for each question, filters all
//! nodes and sorts what is left.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_placement::{Context, Decision, JobRef, NodeFacts, Side, Spare, TierGate};
use greenroom_types::JobName;
use greenroom_types::bundle::{
    Bundle, BundleJob, IntraReplica, OnLaunch, OnRuntimeFailure, Resilience, Rule, SameAz,
};
use greenroom_types::inventory::{HeldImage, NodeInventory};
use greenroom_types::node::NodeState;
use greenroom_types::pool::{LaunchMode, PackingStrategy, Tier, TierKind};
use proptest::prelude::*;

use crate::build::*;

const REPLICAS: u32 = 2;
const JOBS: usize = 3;
const TINY: f64 = 1e-9;

#[derive(Clone, Debug)]
struct Node {
    name: String,
    tier: Option<usize>,
    offer: NodeInventory,
    az: Option<String>,
    spare: Option<Spare>,
    prospective: bool,
    cordoned: bool,
    unhealthy: bool,
    state: NodeState,
    consumed: bool,
}

#[derive(Clone, Debug)]
struct Binding {
    bundle: usize,
    replica: u32,
    job: usize,
    node: usize,
    gpu: Option<u32>,
    side: Side,
}

struct Model {
    tiers: Vec<Tier>,
    gates: Vec<TierGate>,
    nodes: Vec<Node>,
    bundles: Vec<Bundle>,
    bindings: Vec<Binding>,
}

/// One question.
#[derive(Clone, Copy)]
struct Who {
    bundle: usize,
    replica: u32,
    job: usize,
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
    fn group(&self, bundle: usize, job: usize) -> Vec<usize> {
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

    fn separate(&self, bundle: usize, a: usize, b: usize) -> bool {
        let jobs = &self.bundles[bundle].jobs;
        a != b
            && (jobs[a].separate_from.contains(&jobs[b].job_name)
                || jobs[b].separate_from.contains(&jobs[a].job_name))
    }

    fn bound(&self, bundle: usize, replica: u32, job: usize) -> impl Iterator<Item = &Binding> {
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
    fn decide(&self, who: Who, context: &Context) -> (String, Option<u32>, usize) {
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

fn tiers(gpu_spread: bool) -> Vec<Tier> {
    let strategy = if gpu_spread {
        PackingStrategy::Spread
    } else {
        PackingStrategy::Binpack
    };
    let mut big = shape("big", 4.0);
    big.gpus = vec![device(0, 1.0), device(1, 1.0)];
    big.capabilities = vec![capability("sdi", 2, &[("card", "duo")])];
    let mut oci = elastic("oci", TierKind::Oci, &[shape("small", 1.0), big.clone()]);
    oci.region = Some("z1".to_owned());
    oci.max_nodes = Some(2);
    let mut own = fixed("own");
    own.packing_strategy = strategy;
    let mut spot = aws("spot", &[shape("small", 2.0), big]);
    spot.launch_mode = LaunchMode::Spot;
    spot.max_nodes = Some(4);
    vec![own, oci, spot]
}

fn pick<T: Clone>(list: &[T], byte: u8) -> T {
    list[byte as usize % list.len()].clone()
}

fn some_job(at: usize, bytes: [u8; 10]) -> BundleJob {
    with(
        job(
            &format!("j{at}"),
            pick(&[0.0, 0.1, 0.5, 1.0, 2.0], bytes[0]),
        ),
        |job| {
            let needs = &mut job.requirements;
            needs.required_cores = pick(&[0, 0, 1], bytes[1]);
            needs.required_capabilities = match bytes[2] % 6 {
                0 => vec![capability("sdi", 1, &[])],
                1 => vec![capability("sdi", 1, &[("card", "duo")])],
                _ => vec![],
            };
            needs.required_gpu_capacity = pick(&[0.0, 0.0, 0.0, 0.3, 0.5, 1.0], bytes[3]);
            needs.required_host_ports = match bytes[4] % 5 {
                0 => vec!["80/tcp".into()],
                1 => vec!["81/udp".into()],
                _ => vec![],
            };
            job.exclusive = bytes[5].is_multiple_of(11);
            job.launch.template = pick(&[None, Some("x".into()), Some("y".into())], bytes[6]);
            let peer = |byte: u8| JobName::new(format!("j{}", byte as usize % JOBS));
            if bytes[7].is_multiple_of(4) && peer(bytes[8]) != job.job_name {
                job.co_locate_with = vec![peer(bytes[8])];
            }
            if bytes[9].is_multiple_of(5) && peer(bytes[8].wrapping_add(1)) != job.job_name {
                job.separate_from = vec![peer(bytes[8].wrapping_add(1))];
            }
        },
    )
}

fn some_bundle(at: usize, head: [u8; 4], jobs: &[[u8; 10]]) -> Bundle {
    let forbid = |bit: u8| {
        if head[0] >> bit & 1 == 1 {
            Rule::Forbid
        } else {
            Rule::Allow
        }
    };
    Bundle {
        jobs: jobs
            .iter()
            .enumerate()
            .map(|(at, bytes)| some_job(at, *bytes))
            .collect(),
        resilience_policy: Some(Resilience {
            pool: None,
            same_node: forbid(0),
            same_az: forbid(1),
            same_cloud: forbid(2),
        }),
        intra_replica_placement: IntraReplica {
            same_node_default: head[1].is_multiple_of(4),
            same_az: pick(&[SameAz::Soft, SameAz::Hard, SameAz::Off], head[2]),
        },
        on_launch: pick(&[OnLaunch::AvoidSpare, OnLaunch::AllowSpare], head[3]),
        override_reservation: head[3].is_multiple_of(5),
        ..bundle(&format!("b{at}"), vec![])
    }
}

fn some_node(at: usize, bytes: [u8; 10]) -> Node {
    let mut offer = offer(pick(&[0.0, 1.0, 2.0, 4.0], bytes[0]));
    offer.utilization_cap = pick(&[1.0, 1.0, 0.8], bytes[1]);
    offer.reserved_capacity = pick(&[0.0, 0.0, 0.5], bytes[2]);
    offer.gpus = (0..u32::from(bytes[3] % 3))
        .map(|index| device(index, 1.0))
        .collect();
    if bytes[4].is_multiple_of(2) {
        let card = pick(&["duo", "quad"], bytes[4] / 2);
        offer.capabilities = vec![capability("sdi", 2, &[("card", card)])];
    }
    offer.held_images = (0..bytes[5] % 3)
        .map(|image| HeldImage {
            reference: format!("i{image}"),
            digest: String::new(),
        })
        .collect();
    Node {
        name: format!("n{at}"),
        tier: pick(&[Some(0), Some(1), Some(2), Some(0), None], bytes[6]),
        offer,
        az: pick(
            &[None, Some("z1".to_owned()), Some("z2".to_owned())],
            bytes[7],
        ),
        spare: match bytes[8] % 6 {
            0 => Some(spare()),
            1 => Some(spare_for(&["x"], false)),
            2 => Some(spare_for(&["x"], true)),
            _ => None,
        },
        prospective: false,
        cordoned: bytes[9].is_multiple_of(13),
        unhealthy: bytes[9].is_multiple_of(17),
        state: if bytes[9].is_multiple_of(19) {
            NodeState::Stopped
        } else {
            NodeState::Running
        },
        consumed: false,
    }
}

/// Model and fleet, changed side by side.
struct Both {
    model: Model,
    world: World,
    bought: usize,
}

impl Both {
    fn enter(&mut self, node: Node, shape: Option<&greenroom_types::pool::CandidateInstanceType>) {
        self.world.fleet.upsert_node(NodeFacts {
            node_id: id(&node.name),
            pool: Some(POOL.into()),
            tier: Some(
                node.tier
                    .map_or("none".into(), |tier| self.model.tiers[tier].name.clone()),
            ),
            az: node.az.clone().filter(|_| !node.prospective),
            reliability: None,
            spare: node.spare.clone(),
        });
        match shape {
            Some(shape) => self.world.fleet.set_prospective(&id(&node.name), shape),
            None => self
                .world
                .fleet
                .set_inventory(&id(&node.name), Arc::new(node.offer.clone())),
        }
        self.world.condition(&node.name, |it| {
            it.state = node.state;
            it.cordoned = node.cordoned;
            it.unhealthy = node.unhealthy;
        });
        self.model.nodes.push(node);
    }

    fn reference(&self, who: Who) -> JobRef {
        let bundle = &self.model.bundles[who.bundle];
        job_ref(bundle, who.replica, bundle.jobs[who.job].job_name.as_str())
    }

    fn bind(&mut self, who: Who, node: usize, gpu: Option<u32>, side: Side) {
        let job = self.reference(who);
        let job_id = self.model.bundles[who.bundle].job_id(who.replica, &job.job_name);
        let name = id(&self.model.nodes[node].name);
        self.world.fleet.bind(&job_id, &job, &name, gpu, side);
        let bought = self.model.nodes[node].tier != Some(0);
        self.model.nodes[node].consumed |= self.model.nodes[node].spare.is_some() && bought;
        self.model.bindings.push(Binding {
            bundle: who.bundle,
            replica: who.replica,
            job: who.job,
            node,
            gpu,
            side,
        });
    }

    fn unbind(&mut self, who: Who, side: Side) {
        let job = self.reference(who);
        let job_id = self.model.bundles[who.bundle].job_id(who.replica, &job.job_name);
        self.world.fleet.unbind(&job_id, side);
        let is_it = |it: &Binding| {
            (it.bundle, it.replica, it.job, it.side) == (who.bundle, who.replica, who.job, side)
        };
        self.model.bindings.retain(|it| !is_it(it));
    }

    fn side(&self, who: Who, side: Side) -> Option<usize> {
        let mut sides = self.model.bound(who.bundle, who.replica, who.job);
        sides.find(|it| it.side == side).map(|it| it.node)
    }

    /// Asks both; they must agree. Then binds, if wanted.
    fn place(&mut self, who: Who, context: Context, bind: Option<Side>) {
        let bundle = self.model.bundles[who.bundle].clone();
        let name = bundle.jobs[who.job].job_name.to_string();
        let ask = Ask {
            context: context.clone(),
            ..Ask::default()
        };
        let (decision, _) = self.world.ask(&bundle, who.replica, &name, &ask);
        let expected = self.model.decide(who, &context);
        let violated = decision.degraded().map_or(0, |it| it.violated.len());
        assert_eq!((went(&decision), decision.gpu_index(), violated), expected);
        let Some(side) = bind else { return };
        let node = match &decision {
            Decision::Failure { .. } => return,
            Decision::Place { node, .. } => self
                .model
                .nodes
                .iter()
                .position(|it| it.name == node.as_str())
                .unwrap(),
            Decision::Provision { tier, shape, .. } => {
                self.bought += 1;
                let tier = self
                    .model
                    .tiers
                    .iter()
                    .position(|it| it.name == *tier)
                    .unwrap();
                let oci = self.model.tiers[tier].kind == TierKind::Oci;
                let node = Node {
                    name: format!("p{}", self.bought),
                    tier: Some(tier),
                    offer: NodeInventory {
                        total_capacity: shape.total_capacity,
                        total_cores: shape.total_cores,
                        capabilities: shape.capabilities.clone(),
                        gpus: shape.gpus.clone(),
                        ..NodeInventory::default()
                    },
                    az: oci.then(|| "z1".to_owned()),
                    spare: None,
                    prospective: true,
                    cordoned: false,
                    unhealthy: false,
                    state: NodeState::Starting,
                    consumed: false,
                };
                self.enter(node, Some(shape));
                self.model.nodes.len() - 1
            }
        };
        self.bind(who, node, decision.gpu_index(), side);
    }

    fn step(&mut self, op: [u8; 5]) {
        let who = Who {
            bundle: op[1] as usize % self.model.bundles.len(),
            replica: u32::from(op[2]) % REPLICAS,
            job: op[3] as usize % JOBS,
        };
        let (binding, target) = (
            self.side(who, Side::Binding),
            self.side(who, Side::MigrationTarget),
        );
        let fresh = binding.is_none() && target.is_none();
        match op[0] % 12 {
            0..=4 => self.place(who, Context::Launch, fresh.then_some(Side::Binding)),
            5 | 6 => {
                let policy = pick(
                    &[OnRuntimeFailure::AvoidSpare, OnRuntimeFailure::PreferSpare],
                    op[4],
                );
                self.place(
                    who,
                    Context::Recovery(policy),
                    fresh.then_some(Side::Binding),
                );
            }
            7 => {
                if let (Some(node), None) = (binding, target) {
                    let source = id(&self.model.nodes[node].name);
                    self.place(
                        who,
                        Context::Migration { source },
                        Some(Side::MigrationTarget),
                    );
                }
            }
            8 if target.is_some() && op[4].is_multiple_of(2) => {
                let job = self.reference(who);
                let job_id = self.model.bundles[who.bundle].job_id(who.replica, &job.job_name);
                self.world.fleet.promote(&job_id);
                self.model.bindings.retain(|it| {
                    (it.bundle, it.replica, it.job, it.side)
                        != (who.bundle, who.replica, who.job, Side::Binding)
                });
                for it in &mut self.model.bindings {
                    if (it.bundle, it.replica, it.job) == (who.bundle, who.replica, who.job) {
                        it.side = Side::Binding;
                    }
                }
            }
            8 => self.unbind(who, Side::MigrationTarget),
            9 if target.is_none() => self.unbind(who, Side::Binding),
            10 if !self.model.nodes.is_empty() => {
                let at = op[4] as usize % self.model.nodes.len();
                let node = &mut self.model.nodes[at];
                node.cordoned = !node.cordoned;
                let (name, cordoned) = (node.name.clone(), node.cordoned);
                self.world.condition(&name, |it| it.cordoned = cordoned);
            }
            _ => {
                let at = op[4] as usize % self.model.tiers.len();
                let gate = pick(
                    &[TierGate::Open, TierGate::BackOff, TierGate::HalfOpenBusy],
                    op[3],
                );
                self.model.gates[at] = gate;
                let tier = self.model.tiers[at].name.clone();
                self.world
                    .fleet
                    .set_tier_gate(&POOL.into(), tier.as_str(), gate);
            }
        }
        self.world.check();
        self.nothing_is_given_twice();
    }

    /// No node is over what it offers, and no rule is broken, whatever happened.
    fn nothing_is_given_twice(&self) {
        for (at, node) in self.model.nodes.iter().enumerate() {
            let here: Vec<&Binding> = self
                .model
                .bindings
                .iter()
                .filter(|it| it.node == at)
                .collect();
            let jobs = || {
                here.iter()
                    .map(|it| &self.model.bundles[it.bundle].jobs[it.job])
            };
            let capacity: f64 = jobs().map(|job| job.requirements.required_capacity).sum();
            assert!(
                capacity <= node.offer.total_capacity * node.offer.utilization_cap + 1e-6,
                "{}",
                node.name
            );
            let cores: u32 = jobs().map(|job| job.requirements.required_cores).sum();
            assert!(cores <= node.offer.total_cores);
            let sdi: u32 = jobs()
                .flat_map(|job| &job.requirements.required_capabilities)
                .map(|it| it.count)
                .sum();
            assert!(sdi <= node.offer.capabilities.iter().map(|it| it.count).sum());
            for gpu in &node.offer.gpus {
                let shares = here.iter().filter(|it| it.gpu == Some(gpu.index));
                let share: f64 = shares
                    .map(|it| {
                        self.model.bundles[it.bundle].jobs[it.job]
                            .requirements
                            .required_gpu_capacity
                    })
                    .sum();
                assert!(share <= gpu.capacity + 1e-6);
            }
            let mut ports: Vec<&String> = jobs()
                .flat_map(|job| &job.requirements.required_host_ports)
                .collect();
            let all = ports.len();
            ports.sort();
            ports.dedup();
            assert_eq!(ports.len(), all, "a port is claimed twice on {}", node.name);
            for one in &here {
                for other in &here {
                    let same_copy = (one.bundle, one.replica) == (other.bundle, other.replica);
                    assert!(!(same_copy && self.model.separate(one.bundle, one.job, other.job)));
                    let mates =
                        same_copy && self.model.group(one.bundle, one.job).contains(&other.job);
                    assert!(mates || !self.model.bundles[one.bundle].jobs[one.job].exclusive);
                }
            }
        }
    }
}

fn run(spread: bool, nodes: &[[u8; 10]], bundles: &[([u8; 4], [[u8; 10]; JOBS])], ops: &[[u8; 5]]) {
    let tiers = tiers(spread);
    let mut world = World::new(tiers.clone());
    world
        .fleet
        .set_template_images("x".into(), &["i0".to_owned(), "i1".to_owned()]);
    let bundles: Vec<Bundle> = bundles
        .iter()
        .enumerate()
        .map(|(at, (head, jobs))| some_bundle(at, *head, jobs))
        .collect();
    for bundle in &bundles {
        world.fleet.set_bundle(&Arc::new(bundle.clone()));
    }
    let gates = vec![TierGate::Open; tiers.len()];
    let mut both = Both {
        model: Model {
            tiers,
            gates,
            nodes: Vec::new(),
            bundles,
            bindings: Vec::new(),
        },
        world,
        bought: 0,
    };
    for (at, bytes) in nodes.iter().enumerate() {
        both.enter(some_node(at, *bytes), None);
    }
    for op in ops {
        both.step(*op);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    // spec: PLACE-01, PLACE-04, PLACE-14, PLACE-25, PLACE-26, PLACE-29, GPU-03, PORT-02, INTRA-03, RESV-01
    #[test]
    fn the_engine_decides_as_the_oracle_and_gives_nothing_twice(
        spread: bool,
        nodes in prop::collection::vec(any::<[u8; 10]>(), 0..6),
        bundles in prop::collection::vec(any::<([u8; 4], [[u8; 10]; JOBS])>(), 1..4),
        ops in prop::collection::vec(any::<[u8; 5]>(), 1..50),
    ) {
        run(spread, &nodes, &bundles, &ops);
    }
}
