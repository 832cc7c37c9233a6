//! The index against a scan over all nodes: fleets in which anything may happen in any order, sense
//! or nonsense, and after every step the same questions asked both ways, and with a trace.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_placement::{
    Context, Decision, Fleet, JobRef, Listed, Needs, NodeCondition, NodeFacts, Outcome, Request,
    ServicePorts, Side, Spare, TierGate, place, place_by_scan, place_traced,
};
use greenroom_types::bundle::{
    Bundle, BundleJob, IntraReplica, OnLaunch, OnRuntimeFailure, Requirements, Resilience, Rule,
    SameAz,
};
use greenroom_types::inventory::{Capability, HeldImage, NodeInventory};
use greenroom_types::node::NodeState;
use greenroom_types::pool::{PackingStrategy, Pool, Reliability, TierKind};
use greenroom_types::{JobId, JobName, NodeId, SplitMix64, TemplateName};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::build::{
    World, aws, bundle, capability, device, elastic, fixed, image, job, offer, pool, program, shape,
};

const JOBS: u64 = 4;

/// A few numbers out of one.
struct Dice(SplitMix64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.draw() % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len() as u64) as usize].clone()
    }
}

fn pools(dice: &mut Dice) -> Vec<Pool> {
    let strategies = [PackingStrategy::Binpack, PackingStrategy::Spread];
    let mut big = shape("big", 4.0);
    big.gpus = vec![device(0, 1.0)];
    let mut own = fixed("own");
    own.packing_strategy = dice.pick(&strategies);
    let mut spot = aws("spot", &[shape("small", 1.0), big]);
    spot.packing_strategy = dice.pick(&strategies);
    spot.max_nodes = dice.pick(&[None, Some(2), Some(9)]);
    let mut oci = elastic("oci", TierKind::Oci, &[shape("mid", 2.0)]);
    oci.region = Some("z1".to_owned());
    vec![
        pool("live", vec![own, spot]),
        pool("spill", vec![oci, fixed("own")]),
    ]
}

fn some_needs(dice: &mut Dice) -> Vec<Capability> {
    match dice.roll(8) {
        0 => vec![capability("sdi", 1, &[])],
        1 => vec![capability("sdi", 2, &[("card", "duo")])],
        2 => vec![capability("asi", 1, &[]), capability("sdi", 1, &[])],
        3 => vec![capability("none", 0, &[])],
        _ => vec![],
    }
}

fn some_bundle(dice: &mut Dice, at: u64) -> Bundle {
    let jobs = 1 + dice.roll(JOBS);
    let peer = |dice: &mut Dice| JobName::new(format!("j{}", dice.roll(JOBS)));
    let rule = |dice: &mut Dice| dice.pick(&[Rule::Allow, Rule::Allow, Rule::Forbid]);
    let jobs = (0..jobs)
        .map(|job| {
            let mut job = BundleJob {
                job_name: format!("j{job}").into(),
                exclusive: dice.one_in(8),
                ..BundleJob::default()
            };
            let needs = &mut job.requirements;
            needs.required_capacity = dice.pick(&[0.0, 0.1, 0.5, 0.5, 1.0, 2.0]);
            needs.required_cores = dice.pick(&[0, 0, 1, 2]);
            needs.required_capabilities = some_needs(dice);
            needs.required_gpu_capacity = dice.pick(&[0.0, 0.0, 0.0, 0.3, 0.5, 1.0]);
            if dice.one_in(3) {
                needs.required_gpu_model = "A10G".to_owned();
            }
            if dice.one_in(3) {
                let port = dice.pick(&["80/tcp", "81/tcp", "80/udp"]);
                needs.required_host_ports = vec![port.to_owned()];
            }
            job.launch.template = dice.pick(&[None, Some("x".into()), Some("y".into())]);
            job.launch.services =
                dice.pick(&[vec![], vec![image()], vec![image()], vec![program()]]);
            if dice.one_in(3) {
                job.co_locate_with = vec![peer(dice)];
            }
            if dice.one_in(4) {
                job.separate_from = vec![peer(dice)];
            }
            job
        })
        .collect();
    Bundle {
        bundle_id: format!("b{at}").into(),
        pool: dice.pick(&["live", "live", "live", "spill", "gone"]).into(),
        jobs,
        resilience_policy: dice.one_in(2).then(|| Resilience {
            pool: dice.one_in(4).then(|| "spill".into()),
            same_node: rule(dice),
            same_az: rule(dice),
            same_cloud: rule(dice),
        }),
        intra_replica_placement: IntraReplica {
            same_node_default: dice.one_in(5),
            same_az: dice.pick(&[SameAz::Soft, SameAz::Hard, SameAz::Off]),
        },
        on_launch: dice.pick(&[OnLaunch::AvoidSpare, OnLaunch::AllowSpare]),
        override_reservation: dice.one_in(5),
        ..Bundle::default()
    }
}

fn some_facts(dice: &mut Dice, node_id: NodeId) -> NodeFacts {
    let reserved: [&[&str]; 4] = [&[], &["x"], &["y"], &["y", "x"]];
    NodeFacts {
        node_id,
        pool: dice.pick(&[
            Some("live".into()),
            Some("live".into()),
            Some("spill".into()),
            None,
        ]),
        tier: dice.pick(&[
            Some("own".into()),
            Some("spot".into()),
            Some("oci".into()),
            None,
        ]),
        az: dice.pick(&[None, Some("z1".to_owned()), Some("z2".to_owned())]),
        reliability: dice.pick(&[None, None, Some(Reliability::Interruptible)]),
        spare: dice.one_in(3).then(|| Spare {
            warm_for: dice.pick(&[vec![], vec![TemplateName::from("x")]]),
            reserved_for: dice
                .pick(&reserved)
                .iter()
                .map(|&name| name.into())
                .collect(),
            exclusive: dice.one_in(2),
        }),
    }
}

fn some_inventory(dice: &mut Dice) -> NodeInventory {
    let mut offer = offer(dice.pick(&[0.0, 1.0, 2.0, 3.0, 4.0, 8.0, f64::NAN]));
    offer.total_cores = dice.pick(&[0, 2, 4]);
    offer.utilization_cap = dice.pick(&[1.0, 1.0, 0.8]);
    offer.reserved_capacity = dice.pick(&[0.0, 0.0, 0.0, 0.5, 9.0]);
    offer.reserved_cores = dice.pick(&[0, 0, 1]);
    offer.gpus = (0..dice.roll(3) as u32)
        .map(|index| device(index, 1.0))
        .collect();
    if let Some(gpu) = offer.gpus.first_mut() {
        gpu.reserved_capacity = dice.pick(&[0.0, 0.0, 0.6]);
        if dice.one_in(3) {
            gpu.model = "L4".to_owned();
        }
    }
    if dice.one_in(2) {
        let card = dice.pick(&["duo", "quad"]);
        offer.capabilities = vec![capability("sdi", 2, &[("card", card)])];
        if dice.one_in(2) {
            offer.capabilities.push(capability("asi", 1, &[]));
            offer.capabilities.push(capability("sdi", 1, &[]));
        }
    }
    offer.held_images = (0..dice.roll(4))
        .map(|_| HeldImage {
            reference: format!("i{}", dice.roll(3)),
            digest: String::new(),
        })
        .collect();
    offer.cordoned = dice.one_in(13);
    offer.disk_low = dice.one_in(13);
    offer.runtime = dice
        .pick(&[
            "",
            "",
            "docker 29.0",
            "docker 29.0",
            "process",
            "unavailable",
        ])
        .to_owned();
    offer.reachable = !dice.one_in(13);
    offer
}

fn some_listed(dice: &mut Dice, stage: &Stage) -> Vec<Listed> {
    let mut listed: Vec<Listed> = (0..dice.roll(3))
        .map(|_| Listed {
            job_id: stage.some_job(dice).0,
            needs: Needs::of(&Requirements {
                required_capacity: dice.pick(&[0.0, 0.5, 1.0]),
                required_cores: dice.pick(&[0, 1]),
                required_capabilities: some_needs(dice),
                required_gpu_capacity: dice.pick(&[0.0, 0.3]),
                required_host_ports: dice.pick(&[vec![], vec!["80/tcp".to_owned()]]),
                ..Requirements::default()
            }),
            gpu_index: dice.pick(&[None, Some(0)]),
            beside: dice.one_in(4),
        })
        .collect();
    let key = |it: &Listed| (it.job_id.clone(), it.beside);
    listed.sort_by_key(key);
    listed.dedup_by_key(|it| key(it));
    listed
}

fn some_condition(dice: &mut Dice) -> NodeCondition {
    NodeCondition {
        state: dice.pick(&[NodeState::Running, NodeState::Starting, NodeState::Stopped]),
        unreachable: dice.one_in(9),
        terminating: dice.one_in(9),
        cordoned: dice.one_in(9),
        unhealthy: dice.one_in(9),
        recently_failed: dice.one_in(9),
    }
}

/// A fleet, and the bundles of which it may or may not have heard.
struct Stage {
    fleet: Fleet,
    bundles: Vec<Arc<Bundle>>,
    nodes: u64,
    met: usize,
}

impl Stage {
    fn new(seed: u64, nodes: u64) -> Self {
        let mut dice = Dice(SplitMix64::new(seed));
        let mut fleet = Fleet::new(pools(&mut dice));
        fleet.set_template_images("x".into(), &["i0".into(), "i1".into(), "i0".into()]);
        let bundles = (0..3)
            .map(|at| Arc::new(some_bundle(&mut dice, at)))
            .collect();
        let mut stage = Self {
            fleet,
            bundles,
            nodes,
            met: 0,
        };
        for at in 0..nodes * 3 / 4 {
            let node = stage.node_id(at);
            let facts = some_facts(&mut dice, node.clone());
            stage.fleet.upsert_node(facts);
            if !dice.one_in(10) {
                let inventory = Arc::new(some_inventory(&mut dice));
                stage.fleet.set_inventory(&node, inventory);
            }
        }
        stage
    }

    /// Some short and some alike in their first 16 bytes.
    fn node_id(&self, at: u64) -> NodeId {
        match at % 3 {
            0 => format!("n{at}").into(),
            _ => format!("a-node-of-a-long-name-{at}").into(),
        }
    }

    fn some_node(&self, dice: &mut Dice) -> NodeId {
        self.node_id(dice.roll(self.nodes))
    }

    fn some_job(&self, dice: &mut Dice) -> (JobId, JobRef) {
        let bundle = dice.pick(&self.bundles);
        let name = JobName::new(format!("j{}", dice.roll(JOBS)));
        let replica = dice.roll(2) as u32;
        let job_id = bundle.job_id(replica, &name);
        (job_id, JobRef::new(bundle.bundle_id.clone(), replica, name))
    }

    fn change(&mut self, dice: &mut Dice) {
        let node = self.some_node(dice);
        let (job_id, job) = self.some_job(dice);
        let side = dice.pick(&[Side::Binding, Side::Binding, Side::MigrationTarget]);
        match dice.roll(24) {
            0 => self.fleet.upsert_node(some_facts(dice, node)),
            1 | 2 => self
                .fleet
                .set_inventory(&node, Arc::new(some_inventory(dice))),
            3 => {
                let mut shape = shape("odd", dice.pick(&[1.0, 4.0, f64::NAN, -1.0, f64::INFINITY]));
                shape.total_cores = 4;
                self.fleet.set_prospective(&node, &shape);
            }
            4 => self.fleet.clear_inventory(&node),
            5 => self.fleet.set_condition(&node, some_condition(dice)),
            6 => self
                .fleet
                .update_condition(&node, |it| it.cordoned = !it.cordoned),
            7 => {
                let jobs = (0..dice.roll(3)).map(|_| self.some_job(dice)).collect();
                self.fleet.set_foreign(&node, jobs);
            }
            8 => self.fleet.remove_node(&node),
            9 => {
                let at = dice.roll(self.bundles.len() as u64);
                self.bundles[at as usize] = Arc::new(some_bundle(dice, at));
                if !dice.one_in(3) {
                    self.fleet.set_bundle(&self.bundles[at as usize]);
                }
            }
            10 => self.fleet.remove_bundle(&job.bundle_id),
            11 => self.fleet.set_released(&job, dice.one_in(2)),
            12 | 13 => {
                let gpu = dice.pick(&[None, Some(0), Some(1)]);
                self.fleet.bind(&job_id, &job, &node, gpu, side);
            }
            14 => {
                self.fleet.unbind(&job_id, side);
            }
            15 => {
                self.fleet.promote(&job_id);
            }
            16 => self
                .fleet
                .set_gpu_index(&job_id, side, dice.pick(&[None, Some(0)])),
            17 => {
                let images: [&[&str]; 3] = [&[], &["i0", "i2"], &["i1"]];
                let images: Vec<String> =
                    dice.pick(&images).iter().map(|&it| it.to_owned()).collect();
                self.fleet
                    .set_template_images(dice.pick(&["x", "y"]).into(), &images);
            }
            18 if dice.one_in(3) => self.fleet.set_service_ports(vec![ServicePorts {
                service_id: "s".into(),
                pools: vec!["live".into()],
                consumes: dice.pick(&[vec![], vec![capability("sdi", 1, &[])]]),
                ports: vec![dice.pick(&["80/tcp", "81/tcp"]).parse().unwrap()],
            }]),
            20 => {
                let listed = some_listed(dice, self);
                let gone = some_listed(dice, self);
                self.fleet.set_listed(&node, listed, gone);
            }
            19 => {
                let gate = dice.pick(&[TierGate::Open, TierGate::BackOff]);
                self.fleet.set_tier_gate(&"live".into(), "spot", gate);
            }
            _ => {
                let bundle = dice.pick(&self.bundles);
                if !dice.one_in(4) {
                    self.fleet.set_bundle(&bundle);
                }
                self.ask(dice, true);
            }
        }
    }

    /// One question, put three ways.
    fn ask(&mut self, dice: &mut Dice, apply: bool) {
        let bundle = dice.pick(&self.bundles);
        let name = dice.pick(&bundle.jobs).job_name;
        let replica = dice.roll(u64::from(bundle.copies())) as u32;
        let (node, other) = (self.some_node(dice), self.some_node(dice));
        let excluded = BTreeSet::from([self.some_node(dice), self.some_node(dice)]);
        let context = match dice.roll(5) {
            0 => Context::Recovery(OnRuntimeFailure::PreferSpare),
            1 => Context::Recovery(OnRuntimeFailure::AvoidSpare),
            2 => Context::Migration { source: node },
            _ => Context::Launch,
        };
        let mut request = Request::new(&bundle, replica, &name).unwrap();
        request = request
            .in_context(context)
            .overriding_reservations(dice.one_in(5));
        if dice.one_in(3) {
            request = request.without(&excluded);
        }
        if dice.one_in(8) {
            request = request.pinned_to(&other);
        }
        let (foreign_id, _) = self.some_job(dice);
        if dice.one_in(10) {
            request = request.of_job(&foreign_id);
        }
        let decision = place(&self.fleet, &request);
        assert_eq!(decision, place_by_scan(&self.fleet, &request));
        let (traced, trace) = place_traced(&self.fleet, &request);
        assert_eq!(decision, traced);
        if let Decision::Place {
            node, gpu_index, ..
        } = &decision
        {
            self.met += 1;
            let attempt = trace.attempts.last().unwrap();
            assert_eq!(attempt.outcome, Outcome::Placed);
            assert_eq!(attempt.survivors[0].key.node, *node);
            assert_eq!(attempt.survivors[0].gpu_index, *gpu_index);
            if apply {
                let job = JobRef::new(bundle.bundle_id.clone(), replica, name.clone());
                let job_id = bundle.job_id(replica, &name);
                self.fleet
                    .bind(&job_id, &job, node, *gpu_index, Side::Binding);
            }
        }
    }

    /// What some questions are answered now.
    fn answers(&self, bundles: &[Arc<Bundle>], seed: u64) -> Vec<Decision> {
        let mut dice = Dice(SplitMix64::new(seed));
        let questions = (0..2).map(|_| {
            let bundle = dice.pick(bundles);
            let name = dice.pick(&bundle.jobs).job_name;
            let request = Request::new(&bundle, 0, &name).unwrap();
            (
                place(&self.fleet, &request),
                place_by_scan(&self.fleet, &request),
            )
        });
        questions
            .map(|(decision, scanned)| {
                assert_eq!(decision, scanned);
                decision
            })
            .collect()
    }

    fn run(mut self, steps: &[u64], questions: usize) -> usize {
        for &step in steps {
            let mut dice = Dice(SplitMix64::new(step));
            let bundles = self.bundles.clone();
            let before = (self.fleet.revision(), self.answers(&bundles, step));
            self.change(&mut dice);
            if before.0 == self.fleet.revision() {
                assert_eq!(before.1, self.answers(&bundles, step), "changed in secret");
            }
            for _ in 0..questions {
                self.ask(&mut dice, false);
            }
        }
        assert_eq!(self.fleet.recompute(), []);
        self.met
    }
}

/// So many, or as many as `PROPTEST_CASES` says.
fn cases(wanted: u32) -> ProptestConfig {
    const UNSAID: u32 = 256;
    let said = ProptestConfig::default().cases;
    ProptestConfig {
        cases: if said == UNSAID { wanted } else { said },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

// spec: PERF-02
#[test]
fn room_held_by_the_rules_known_is_no_obstacle_by_the_rules_asked_with() {
    let rules = |pairs: &[(&str, &str)]| {
        let mut bundle = bundle("b", vec![job("a", 1.0), job("b", 1.0), job("c", 0.0)]);
        for (one, other) in pairs {
            for job in &mut bundle.jobs {
                if job.job_name.as_str() == *one {
                    job.co_locate_with = vec![(*other).into()];
                }
            }
        }
        bundle
    };
    let mut world = World::new(vec![fixed("own")]);
    world.node("n1", "own", 2.0);
    // On n1 room is held for b, which belongs to a by the rules known, and to c by those asked with.
    world.bind(&rules(&[("a", "b")]), 0, "a", "n1");
    assert_eq!(world.goes(&rules(&[("b", "c")]), "c"), "n1");
}

proptest! {
    #![proptest_config(cases(10_000))]

    // spec: PERF-02
    #[test]
    fn the_index_never_changes_an_answer(
        seed in any::<u64>(),
        nodes in 1_u64..24,
        steps in proptest::collection::vec(any::<u64>(), 1..16),
    ) {
        Stage::new(seed, nodes).run(&steps, 2);
    }
}

// spec: PERF-02
#[test]
fn nor_in_a_fleet_of_hundreds() {
    let steps = proptest::collection::vec(any::<u64>(), 100..200);
    let met = std::cell::Cell::new(0);
    let run = |(seed, steps): (u64, Vec<u64>)| {
        met.set(met.get() + Stage::new(seed, 600).run(&steps, 1));
        Ok(())
    };
    let mut runner = TestRunner::new(cases(20));
    runner.run(&(any::<u64>(), steps), run).unwrap();
    // In one course it may be that nothing fits, but not in all of them.
    assert!(met.get() > 0, "nothing was ever placed");
}
