//! Fleets and bundles to measure with: nodes of three sizes in three zones, some with cards, GPUs,
//! images and a standing as spares, under a mixed load.

use std::sync::Arc;

use greenroom_placement::{Decision, Fleet, JobRef, NodeFacts, Request, Side, Spare, place};
use greenroom_types::bundle::{Bundle, BundleJob, Resilience, Rule};
use greenroom_types::inventory::{Capability, Gpu, HeldImage, NodeInventory};
use greenroom_types::node::NodeState;
use greenroom_types::pool::{LaunchMode, PackingStrategy, Pool, ScaleOut, Tier, TierKind};
use greenroom_types::{JobId, NodeId};

use crate::measure::Dice;

/// What a job asks for besides capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Plain,
    Cores,
    Capability,
    Port,
    Gpu,
    Warmth,
    Reservation,
    CoLocation,
    Domains,
}

impl Need {
    pub(crate) const ALL: [Self; 9] = [
        Self::Plain,
        Self::Cores,
        Self::Capability,
        Self::Port,
        Self::Gpu,
        Self::Warmth,
        Self::Reservation,
        Self::CoLocation,
        Self::Domains,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "capacity",
            Self::Cores => "cores",
            Self::Capability => "capability",
            Self::Port => "host port",
            Self::Gpu => "GPU share",
            Self::Warmth => "warmth",
            Self::Reservation => "reservation",
            Self::CoLocation => "co-location",
            Self::Domains => "failure domains",
        }
    }

    /// A job of that kind; the other member of its pair, or its other copy, is in the same bundle.
    pub(crate) fn bundle(self, id: &str, capacity: f64) -> Bundle {
        let mut job = job("a", capacity);
        let needs = &mut job.requirements;
        let mut jobs = Vec::new();
        match self {
            Self::Plain | Self::Domains => {}
            Self::Cores => needs.required_cores = 1,
            Self::Capability => needs.required_capabilities = vec![card(1)],
            Self::Port => needs.required_host_ports = vec!["1935/tcp".to_owned()],
            Self::Gpu => needs.required_gpu_capacity = 0.25,
            Self::Warmth => job.launch.template = Some("warm".into()),
            Self::Reservation => job.launch.template = Some("reserved".into()),
            Self::CoLocation => {
                job.co_locate_with = vec!["b".into()];
                jobs.push(self::job("b", capacity));
            }
        }
        jobs.insert(0, job);
        Bundle {
            bundle_id: id.into(),
            pool: "live".into(),
            jobs,
            resilience_policy: (self == Self::Domains).then(|| Resilience {
                same_node: Rule::Forbid,
                same_az: Rule::Forbid,
                ..Resilience::default()
            }),
            ..Bundle::default()
        }
    }
}

fn job(name: &str, capacity: f64) -> BundleJob {
    let mut job = BundleJob {
        job_name: name.into(),
        ..BundleJob::default()
    };
    job.requirements.required_capacity = capacity;
    job
}

fn card(count: u32) -> Capability {
    Capability {
        name: "sdi".to_owned(),
        count,
        attributes: [("card".to_owned(), "duo".to_owned())].into(),
    }
}

pub(crate) fn pools(strategy: PackingStrategy) -> Vec<Pool> {
    vec![Pool {
        name: "live".into(),
        tiers: vec![Tier {
            name: "own".into(),
            kind: TierKind::LocalServers,
            region: None,
            packing_strategy: strategy,
            scale_out: ScaleOut::Fixed,
            candidate_instance_types: Vec::new(),
            launch_mode: LaunchMode::OnDemand,
            reliability: None,
            max_nodes: None,
            root_volume: None,
            placement_lead_ms: None,
            provision_timeout_ms: None,
        }],
    }]
}

pub(crate) fn node_id(at: usize) -> NodeId {
    format!("node-{at:06}").into()
}

/// What a node of a mixed fleet offers.
pub(crate) fn inventory(at: usize) -> NodeInventory {
    let size = [8.0, 16.0, 32.0][at % 3];
    let mut offer = NodeInventory {
        total_capacity: size,
        total_cores: size as u32,
        ..NodeInventory::default()
    };
    if at.is_multiple_of(5) {
        offer.capabilities = vec![card(4)];
    }
    if at.is_multiple_of(4) {
        offer.gpus = (0..2)
            .map(|index| Gpu {
                index,
                capacity: 1.0,
                model: "A10G".to_owned(),
                ..Gpu::default()
            })
            .collect();
    }
    let image = |name: &str| HeldImage {
        reference: format!("registry.example/{name}:1"),
        digest: String::new(),
    };
    offer.held_images = vec![image("base")];
    if at % 4 == 1 {
        offer.held_images.push(image("warm-a"));
        if at % 8 == 1 {
            offer.held_images.push(image("warm-b"));
        }
    }
    offer
}

fn facts(at: usize) -> NodeFacts {
    NodeFacts {
        node_id: node_id(at),
        pool: Some("live".into()),
        tier: Some("own".into()),
        az: Some(["a", "b", "c"][at / 3 % 3].to_owned()),
        reliability: None,
        spare: (at % 20 == 7).then(|| Spare {
            warm_for: Vec::new(),
            reserved_for: if at % 40 == 7 {
                vec!["reserved".into()]
            } else {
                Vec::new()
            },
            exclusive: false,
        }),
    }
}

/// An empty fleet of so many nodes.
pub(crate) fn empty(nodes: usize, strategy: PackingStrategy) -> Fleet {
    let mut fleet = Fleet::new(pools(strategy));
    let image = |name: &str| format!("registry.example/{name}:1");
    fleet.set_template_images("warm".into(), &[image("warm-a"), image("warm-b")]);
    for at in 0..nodes {
        fleet.upsert_node(facts(at));
        fleet.update_condition(&node_id(at), |it| it.state = NodeState::Running);
        fleet.set_inventory(&node_id(at), Arc::new(inventory(at)));
    }
    fleet
}

/// A job that is somewhere.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) replica: u32,
    pub(crate) job_id: JobId,
    pub(crate) job: JobRef,
}

impl Placed {
    pub(crate) fn new(bundle: &Arc<Bundle>, replica: u32, at: usize) -> Self {
        let name = &bundle.jobs[at].job_name;
        Self {
            bundle: Arc::clone(bundle),
            replica,
            job_id: bundle.job_id(replica, name),
            job: JobRef::new(bundle.bundle_id.clone(), replica, name.clone()),
        }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request::new(&self.bundle, self.replica, &self.job.job_name)
            .expect("the job is in its bundle")
            .of_job(&self.job_id)
    }

    /// Applies a decision; false when there is none to apply.
    pub(crate) fn apply(&self, fleet: &mut Fleet, decision: &Decision) -> bool {
        let Decision::Place {
            node, gpu_index, ..
        } = decision
        else {
            return false;
        };
        fleet.bind(&self.job_id, &self.job, node, *gpu_index, Side::Binding);
        true
    }
}

/// Fills a fleet with jobs of all kinds until about two thirds are taken; gives them in the order
/// in which they were placed.
pub(crate) fn load(fleet: &mut Fleet, nodes: usize) -> Vec<Placed> {
    let mut dice = Dice::new(7);
    let mut placed = Vec::new();
    let whole = nodes as f64 * 56.0 / 3.0;
    let mut taken = 0.0;
    let mut at = 0;
    while taken < whole * 0.65 {
        // Mostly plain jobs, and as many of each other kind as the fleet can hold in the long run.
        let need = match dice.roll(40) {
            0..=9 => Need::Cores,
            10 => Need::Capability,
            11 => Need::Port,
            12 => Need::Gpu,
            13..=15 => Need::Warmth,
            16 => Need::CoLocation,
            17..=18 => Need::Domains,
            _ => Need::Plain,
        };
        let capacity = dice.pick(&[0.25, 0.5, 0.5, 1.0, 1.5, 2.0, 4.0]);
        let bundle = Arc::new(need.bundle(&format!("load-{at:06}"), capacity));
        at += 1;
        fleet.set_bundle(&bundle);
        for replica in 0..bundle.copies() {
            for job in 0..bundle.jobs.len() {
                let job = Placed::new(&bundle, replica, job);
                let decision = place(fleet, &job.request());
                if job.apply(fleet, &decision) {
                    taken += capacity;
                    placed.push(job);
                }
            }
        }
    }
    placed
}
