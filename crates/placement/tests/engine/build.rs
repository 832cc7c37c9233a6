//! Small builders, so that a test says only what matters to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_placement::{
    Attempt, Context, Decision, Fleet, JobRef, NodeCondition, NodeFacts, Reason, Request, Side,
    Spare, Trace, place, place_by_scan, place_traced,
};
use greenroom_types::bundle::{Bundle, BundleJob, OnRuntimeFailure, Resilience};
use greenroom_types::inventory::{Capability, Gpu, HeldImage, NodeInventory};
use greenroom_types::job::{Container, Service};
use greenroom_types::node::NodeState;
use greenroom_types::pool::{
    CandidateInstanceType, LaunchMode, PackingStrategy, Pool, ScaleOut, Tier, TierKind,
};
use greenroom_types::{JobId, JobName, NodeId};

pub(crate) const POOL: &str = "live";

pub(crate) fn id(text: &str) -> NodeId {
    text.into()
}

pub(crate) fn shape(name: &str, capacity: f64) -> CandidateInstanceType {
    CandidateInstanceType {
        instance_type: name.to_owned(),
        total_capacity: capacity,
        total_cores: capacity as u32,
        ..CandidateInstanceType::default()
    }
}

pub(crate) fn elastic(name: &str, kind: TierKind, shapes: &[CandidateInstanceType]) -> Tier {
    Tier {
        name: name.into(),
        kind,
        region: None,
        packing_strategy: PackingStrategy::Binpack,
        scale_out: ScaleOut::Elastic,
        candidate_instance_types: shapes.to_vec(),
        launch_mode: LaunchMode::OnDemand,
        reliability: None,
        max_nodes: None,
        root_volume: None,
        placement_lead_ms: None,
        provision_timeout_ms: None,
    }
}

pub(crate) fn aws(name: &str, shapes: &[CandidateInstanceType]) -> Tier {
    elastic(name, TierKind::Aws, shapes)
}

pub(crate) fn fixed(name: &str) -> Tier {
    Tier {
        kind: TierKind::LocalServers,
        scale_out: ScaleOut::Fixed,
        ..elastic(name, TierKind::LocalServers, &[])
    }
}

pub(crate) fn pool(name: &str, tiers: Vec<Tier>) -> Pool {
    Pool {
        name: name.into(),
        tiers,
    }
}

pub(crate) fn offer(capacity: f64) -> NodeInventory {
    NodeInventory {
        total_capacity: capacity,
        total_cores: capacity as u32,
        ..NodeInventory::default()
    }
}

pub(crate) fn device(index: u32, capacity: f64) -> Gpu {
    Gpu {
        index,
        capacity,
        model: "A10G".to_owned(),
        ..Gpu::default()
    }
}

pub(crate) fn capability(name: &str, count: u32, attributes: &[(&str, &str)]) -> Capability {
    Capability {
        name: name.to_owned(),
        count,
        attributes: attributes
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    }
}

/// A service that is a container.
pub(crate) fn image() -> Service {
    Service {
        container: Container::Docker("img:1".to_owned()),
        ..Service::default()
    }
}

/// A service that is a program.
pub(crate) fn program() -> Service {
    Service {
        command: "run".to_owned(),
        ..Service::default()
    }
}

pub(crate) fn job(name: &str, capacity: f64) -> BundleJob {
    let mut job = BundleJob {
        job_name: name.into(),
        ..BundleJob::default()
    };
    job.requirements.required_capacity = capacity;
    job
}

pub(crate) fn with(mut job: BundleJob, change: impl FnOnce(&mut BundleJob)) -> BundleJob {
    change(&mut job);
    job
}

pub(crate) fn bundle(id: &str, jobs: Vec<BundleJob>) -> Bundle {
    Bundle {
        bundle_id: id.into(),
        pool: POOL.into(),
        jobs,
        ..Bundle::default()
    }
}

/// With a backup copy.
pub(crate) fn doubled(mut bundle: Bundle, change: impl FnOnce(&mut Resilience)) -> Bundle {
    let mut policy = Resilience::default();
    change(&mut policy);
    bundle.resilience_policy = Some(policy);
    bundle
}

pub(crate) fn spare() -> Spare {
    Spare::default()
}

pub(crate) fn spare_for(templates: &[&str], exclusive: bool) -> Spare {
    Spare {
        warm_for: Vec::new(),
        reserved_for: templates.iter().map(|&name| name.into()).collect(),
        exclusive,
    }
}

pub(crate) fn job_ref(bundle: &Bundle, replica: u32, name: &str) -> JobRef {
    JobRef::new(bundle.bundle_id.clone(), replica, name.into())
}

pub(crate) fn job_id(bundle: &Bundle, replica: u32, name: &str) -> JobId {
    bundle.job_id(replica, &JobName::new(name))
}

/// Where a decision goes: the node's id, `+tier/shape` for a purchase, `-` for a failure.
pub(crate) fn went(decision: &Decision) -> String {
    match decision {
        Decision::Place { node, .. } => node.to_string(),
        Decision::Provision { tier, shape, .. } => format!("+{tier}/{}", shape.instance_type),
        Decision::Failure { .. } => "-".to_owned(),
    }
}

/// What a request says besides the job.
#[derive(Default)]
pub(crate) struct Ask {
    pub(crate) context: Context,
    pub(crate) excluded: BTreeSet<NodeId>,
    pub(crate) pin: Option<NodeId>,
    pub(crate) admit: bool,
}

pub(crate) fn recovery(policy: OnRuntimeFailure) -> Ask {
    Ask {
        context: Context::Recovery(policy),
        ..Ask::default()
    }
}

pub(crate) fn migration(source: &str) -> Ask {
    Ask {
        context: Context::Migration { source: id(source) },
        ..Ask::default()
    }
}

/// A fleet of one pool, with shorthands.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    bought: usize,
}

impl World {
    pub(crate) fn new(tiers: Vec<Tier>) -> Self {
        Self::of_pools(vec![pool(POOL, tiers)])
    }

    pub(crate) fn of_pools(pools: Vec<Pool>) -> Self {
        Self {
            fleet: Fleet::new(pools),
            bought: 0,
        }
    }

    /// A running node with an inventory of that capacity.
    pub(crate) fn node(&mut self, name: &str, tier: &str, capacity: f64) {
        self.node_of(POOL, name, tier, offer(capacity));
    }

    pub(crate) fn node_of(&mut self, pool: &str, name: &str, tier: &str, offer: NodeInventory) {
        self.fleet.upsert_node(NodeFacts {
            node_id: id(name),
            pool: Some(pool.into()),
            tier: Some(tier.into()),
            ..NodeFacts::default()
        });
        self.condition(name, |condition| condition.state = NodeState::Running);
        self.fleet.set_inventory(&id(name), Arc::new(offer));
    }

    /// A node that was asked for and has not started.
    pub(crate) fn prospective(&mut self, name: &str, tier: &str, shape: &CandidateInstanceType) {
        self.fleet.upsert_node(NodeFacts {
            node_id: id(name),
            pool: Some(POOL.into()),
            tier: Some(tier.into()),
            ..NodeFacts::default()
        });
        self.fleet.set_prospective(&id(name), shape);
    }

    pub(crate) fn facts(&mut self, name: &str, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = self.fleet.facts(&id(name)).unwrap().clone();
        change(&mut facts);
        self.fleet.upsert_node(facts);
    }

    pub(crate) fn offers(&mut self, name: &str, change: impl FnOnce(&mut NodeInventory)) {
        let mut offer = NodeInventory::clone(self.fleet.inventory(&id(name)).unwrap());
        change(&mut offer);
        self.fleet.set_inventory(&id(name), Arc::new(offer));
    }

    pub(crate) fn condition(&mut self, name: &str, change: impl FnOnce(&mut NodeCondition)) {
        self.fleet.update_condition(&id(name), change);
    }

    pub(crate) fn zone(&mut self, name: &str, az: &str) {
        self.facts(name, |facts| facts.az = Some(az.to_owned()));
    }

    /// Marks a node as a spare.
    pub(crate) fn spare(&mut self, name: &str, spare: Spare) {
        self.facts(name, |facts| facts.spare = Some(spare));
    }

    pub(crate) fn holds_images(&mut self, name: &str, images: &[&str]) {
        self.offers(name, |offer| {
            offer.held_images = images
                .iter()
                .map(|&reference| HeldImage {
                    reference: reference.to_owned(),
                    digest: String::new(),
                })
                .collect();
        });
    }

    pub(crate) fn bind(&mut self, bundle: &Bundle, replica: u32, name: &str, node: &str) {
        self.bind_side(bundle, replica, name, node, None, Side::Binding);
    }

    pub(crate) fn bind_side(
        &mut self,
        bundle: &Bundle,
        replica: u32,
        name: &str,
        node: &str,
        gpu_index: Option<u32>,
        side: Side,
    ) {
        if self.fleet.plan(&bundle.bundle_id).is_none() {
            self.fleet.set_bundle(&Arc::new(bundle.clone()));
        }
        self.fleet.bind(
            &job_id(bundle, replica, name),
            &job_ref(bundle, replica, name),
            &id(node),
            gpu_index,
            side,
        );
        self.check();
    }

    pub(crate) fn unbind(&mut self, bundle: &Bundle, replica: u32, name: &str) {
        self.fleet
            .unbind(&job_id(bundle, replica, name), Side::Binding);
        self.check();
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.fleet.recompute(), []);
    }

    pub(crate) fn ask(
        &self,
        bundle: &Bundle,
        replica: u32,
        name: &str,
        ask: &Ask,
    ) -> (Decision, Trace) {
        let mut request = Request::new(bundle, replica, &JobName::new(name))
            .unwrap()
            .in_context(ask.context.clone())
            .without(&ask.excluded)
            .overriding_reservations(ask.admit);
        if let Some(pin) = &ask.pin {
            request = request.pinned_to(pin);
        }
        let plain = place(&self.fleet, &request);
        let (traced, trace) = place_traced(&self.fleet, &request);
        assert_eq!(plain, traced, "the trace changes the decision");
        assert_eq!(plain, place_by_scan(&self.fleet, &request));
        (plain, trace)
    }

    pub(crate) fn launch(&self, bundle: &Bundle, replica: u32, name: &str) -> Decision {
        self.ask(bundle, replica, name, &Ask::default()).0
    }

    /// Where a launch of the primary goes.
    pub(crate) fn goes(&self, bundle: &Bundle, name: &str) -> String {
        went(&self.launch(bundle, 0, name))
    }

    /// Where it goes when asked like this.
    pub(crate) fn goes_when(&self, bundle: &Bundle, name: &str, ask: &Ask) -> String {
        went(&self.ask(bundle, 0, name, ask).0)
    }

    /// Places, binds, and enters the node that is bought, as `new-1`, `new-2` and so on.
    pub(crate) fn settle(&mut self, bundle: &Bundle, replica: u32, name: &str) -> Decision {
        let decision = self.launch(bundle, replica, name);
        let node = match &decision {
            Decision::Failure { .. } => return decision,
            Decision::Place { node, .. } => node.to_string(),
            Decision::Provision { tier, shape, .. } => {
                self.bought += 1;
                let node = format!("new-{}", self.bought);
                self.prospective(&node, tier.as_str(), shape);
                node
            }
        };
        self.bind_side(
            bundle,
            replica,
            name,
            &node,
            decision.gpu_index(),
            Side::Binding,
        );
        decision
    }

    pub(crate) fn attempts(&self, bundle: &Bundle, replica: u32, name: &str) -> Vec<Attempt> {
        self.ask(bundle, replica, name, &Ask::default()).1.attempts
    }

    /// Why each node was left out in the last attempt, without those of other tiers.
    pub(crate) fn reasons(
        &self,
        bundle: &Bundle,
        replica: u32,
        name: &str,
        ask: &Ask,
    ) -> BTreeMap<String, Reason> {
        let (_, trace) = self.ask(bundle, replica, name, ask);
        trace
            .attempts
            .last()
            .unwrap()
            .filtered
            .iter()
            .map(|node| (node.node.to_string(), node.reason))
            .collect()
    }

    /// Why that node was left out of a launch of the primary; none if it would do.
    pub(crate) fn reason(&self, bundle: &Bundle, name: &str, node: &str) -> Option<Reason> {
        self.reasons(bundle, 0, name, &Ask::default()).remove(node)
    }
}
