//! The engine against an oracle (`model.rs`) over random fleets and random histories of placing,
//! moving and ending jobs; and what must hold after every step whoever decided.

use std::sync::Arc;

use greenroom_placement::{Context, Decision, JobRef, NodeFacts, Side, TierGate};
use greenroom_types::JobName;
use greenroom_types::bundle::{
    Bundle, BundleJob, IntraReplica, OnLaunch, OnRuntimeFailure, Resilience, Rule, SameAz,
};
use greenroom_types::inventory::{HeldImage, NodeInventory};
use greenroom_types::job::Service;
use greenroom_types::node::NodeState;
use greenroom_types::pool::{LaunchMode, PackingStrategy, Tier, TierKind};
use proptest::prelude::*;

use crate::build::*;
use crate::model::{Binding, Model, Node, Who};

const REPLICAS: u32 = 2;
const JOBS: usize = 3;

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
            job.launch.services = pick(&SERVICES, bytes[6] / 3)();
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

const SERVICES: [fn() -> Vec<Service>; 4] = [
    Vec::new,
    || vec![image()],
    || vec![image()],
    || vec![program()],
];

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
    offer.disk_low = bytes[1].is_multiple_of(11);
    offer.runtime = pick(
        &[
            "",
            "",
            "docker 29.0",
            "docker 29.0",
            "process",
            "unavailable",
        ],
        bytes[2] / 3,
    )
    .to_owned();
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

// PROPTEST_CASES sets how many; the default is 256.
proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
