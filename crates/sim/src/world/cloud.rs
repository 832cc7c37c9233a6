//! Simulated providers: they make machines, or do not, and end them.

use std::collections::BTreeMap;

use greenroom_ledger::{Finding, MachineSpec, ProviderTask};
use greenroom_types::call::{Call, Refusal, Status};
use greenroom_types::node::RunningNodeMetadata;
use greenroom_types::{Millis, NodeId, PoolName, Tags, TierName};

use super::World;
use super::hold::Pending;
use super::machine::Machine;
use super::manager::Late;
use super::worker::Worker;
use crate::format::action::When;
use crate::format::names::NodeRef;

/// From the answer of a create to the word that it failed (SCEN-08).
const LATE_FAILURE: Millis = Millis(2_000);

/// What the policy bought, in the order in which it asked, failed requests included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Purchases {
    by_tier: BTreeMap<(PoolName, TierName), Vec<NodeId>>,
    spares: BTreeMap<PoolName, Vec<NodeId>>,
    names: BTreeMap<NodeId, NodeRef>,
    /// Creates that fail, by tier.
    failures: BTreeMap<TierName, Vec<CreateFailure>>,
    /// Zones given out so far, by tier.
    zones: BTreeMap<TierName, usize>,
}

/// The next creates of a tier fail.
#[derive(Clone, Debug)]
pub(super) struct CreateFailure {
    pub(super) left: u32,
    /// Only that of this node.
    pub(super) node: Option<NodeRef>,
    pub(super) error: String,
    pub(super) when: When,
    /// How long the refusal of a call takes.
    pub(super) after: Millis,
}

/// Pool and tier in a node's tags.
fn place(tags: &Tags) -> (PoolName, TierName) {
    let tag = |key: &str| tags.get(key).map_or("", String::as_str);
    (PoolName::new(tag("pool")), TierName::new(tag("tier")))
}

// === impl Purchases ===

impl Purchases {
    /// Remembers a request and the name under which a scenario knows its node.
    pub(super) fn record(&mut self, call: &Call) {
        let (node_id, tags) = match call {
            Call::CreateAwsNode(create) => (&create.node_id, &create.tags),
            Call::CreateOciNode(create) => (&create.node_id, &create.tags),
            _ => return,
        };
        let (pool, tier) = place(tags);
        let list = self
            .by_tier
            .entry((pool.clone(), tier.clone()))
            .or_default();
        list.push(node_id.clone());
        let mut name = NodeRef::Tier(pool.clone(), tier, list.len());
        if tags.get("spare").is_some_and(|value| value == "true") {
            let list = self.spares.entry(pool.clone()).or_default();
            list.push(node_id.clone());
            name = NodeRef::Spare(pool, list.len());
        }
        self.names.insert(node_id.clone(), name);
    }

    /// The node that a name stands for.
    pub(crate) fn find(&self, name: &NodeRef) -> Option<&NodeId> {
        match name {
            NodeRef::Id(_) | NodeRef::OfJob(_) => None,
            NodeRef::Spare(pool, n) => self.spares.get(pool)?.get(n - 1),
            NodeRef::Tier(pool, tier, n) => {
                self.by_tier.get(&(pool.clone(), tier.clone()))?.get(n - 1)
            }
        }
    }

    /// The node as a scenario names it.
    pub(crate) fn name(&self, node_id: &NodeId) -> String {
        self.names
            .get(node_id)
            .map_or_else(|| node_id.to_string(), NodeRef::to_string)
    }

    pub(super) fn fail_next(&mut self, tier: TierName, failure: CreateFailure) {
        self.failures.entry(tier).or_default().push(failure);
    }

    /// Takes one failure that is due for a create of this node in this tier: its own, or the next of
    /// any.
    fn take_failure(
        &mut self,
        tier: &TierName,
        node_id: &NodeId,
        when: When,
    ) -> Option<(String, Millis)> {
        let list = self.failures.get(tier)?;
        let is_of =
            |failure: &CreateFailure| self.find(failure.node.as_ref()?).map(|it| it == node_id);
        let left = || list.iter().enumerate().filter(|(_, it)| it.left > 0);
        let own = left().find(|(_, failure)| is_of(failure) == Some(true));
        let (at, _) = own
            .or_else(|| left().find(|(_, failure)| failure.node.is_none()))
            .filter(|(_, failure)| failure.when == when)?;
        let failure = self.failures.get_mut(tier)?.get_mut(at)?;
        failure.left -= 1;
        Some((failure.error.clone(), failure.after))
    }

    /// The next zone of a tier.
    fn zone(&mut self, tier: &TierName, zones: &[String]) -> String {
        let given = self.zones.entry(tier.clone()).or_default();
        let zone = zones.get(*given % zones.len().max(1)).cloned();
        *given += 1;
        zone.unwrap_or_default()
    }
}

// === impl World ===

impl World {
    /// The refusal that a create call meets, if one is due for it.
    pub(super) fn create_refusal(&mut self, call: &Call) -> Option<Late<Refusal>> {
        let (node_id, tags) = match call {
            Call::CreateAwsNode(create) => (&create.node_id, &create.tags),
            Call::CreateOciNode(create) => (&create.node_id, &create.tags),
            _ => return None,
        };
        let (_, tier) = place(tags);
        let (error, after) = self.purchases.take_failure(&tier, node_id, When::Call)?;
        let message = format!("the provider refused: {error}");
        let refusal = Refusal::new(Status::ResourceExhausted, "provider_error", message);
        Some(Late {
            node_id: node_id.clone(),
            what: refusal.with("provider_code", error),
            after,
        })
    }

    pub(super) fn do_task(&mut self, node_id: &NodeId, task: ProviderTask) {
        match task {
            ProviderTask::CreateMachine(machine) => self.make_machine(node_id, &machine),
            ProviderTask::TerminateMachine { .. } => {
                let delay = Millis(self.spec.terminate_time.0);
                self.after(delay, Pending::MachineGone(node_id.clone()));
            }
            ProviderTask::PushTags(_) => {}
        }
    }

    fn make_machine(&mut self, node_id: &NodeId, machine: &MachineSpec) {
        // A node of the scenario's own is there at once; its worker is set up by whoever made it.
        if self.workers.contains_key(node_id) {
            return;
        }
        let (tags, shape) = match machine {
            MachineSpec::Aws(create) => (&create.tags, &create.instance_type),
            MachineSpec::Oci(create) => (&create.tags, &create.shape),
        };
        let (pool, tier) = place(tags);
        let failure = self.purchases.take_failure(&tier, node_id, When::Later);
        if let Some((code, _)) = failure {
            self.after(LATE_FAILURE, Pending::CreateFails(node_id.clone(), code));
            return;
        }
        let zones = self.spec.azs.get(&tier).cloned().unwrap_or_default();
        let machine = Machine {
            az: self.purchases.zone(&tier, &zones),
            ..self.shape(&pool, &tier, shape)
        };
        self.workers.insert(node_id.clone(), Worker::of(machine));
        let boot = self.spec.boot_time.0;
        self.after(Millis(boot / 2), Pending::MachineRuns(node_id.clone()));
        self.after(Millis(boot), Pending::Hello(node_id.clone()));
    }

    /// What a machine of that type advertises: as the scenario says, else as its tier declares.
    fn shape(&self, pool: &PoolName, tier: &TierName, instance_type: &str) -> Machine {
        if let Some(shape) = self.spec.instance_types.get(instance_type) {
            return Machine {
                capacity: shape.vcpus,
                cores: shape.cores,
                utilization_cap: 1.0,
                capabilities: shape.capabilities.clone(),
                gpus: shape.gpus.clone(),
                ..Machine::default()
            };
        }
        let declared = self
            .settings
            .pool(pool.as_str())
            .and_then(|pool| pool.tier(tier.as_str()))
            .and_then(|tier| {
                tier.candidate_instance_types
                    .iter()
                    .find(|shape| shape.instance_type == instance_type)
            });
        match declared {
            Some(shape) => Machine {
                capacity: shape.total_capacity,
                cores: shape.total_cores,
                utilization_cap: 1.0,
                capabilities: shape.capabilities.clone(),
                gpus: shape.gpus.clone(),
                ..Machine::default()
            },
            None => Machine {
                utilization_cap: 1.0,
                ..Machine::default()
            },
        }
    }

    /// vCPUs that the tier of a bought node declares for its shape.
    pub(crate) fn declared_capacity(&self, node_id: &NodeId) -> Option<f64> {
        let node = self.ledger.node(node_id)?;
        let shape = match node.machine.as_ref()? {
            MachineSpec::Aws(create) => &create.instance_type,
            MachineSpec::Oci(create) => &create.shape,
        };
        let (pool, tier) = place(&node.metadata.tags);
        let tier = self.settings.pool(pool.as_str())?.tier(tier.as_str())?;
        let declared = tier
            .candidate_instance_types
            .iter()
            .find(|candidate| candidate.instance_type == *shape)?;
        Some(declared.total_capacity)
    }

    pub(super) fn create_fails(&mut self, node_id: &NodeId, code: String) {
        let text = format!("the provider made no machine: {code}");
        self.finding(node_id, Finding::CreateFailed { code, text });
    }

    pub(super) fn machine_runs(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get(node_id) else {
            return;
        };
        let running = RunningNodeMetadata {
            provider_id: format!("sim-{node_id}"),
            ..RunningNodeMetadata::default()
        };
        let zone = worker.machine.az.clone();
        let tags = Tags::new();
        self.finding(
            node_id,
            Finding::Running {
                running,
                zone,
                tags,
            },
        );
    }

    pub(super) fn machine_gone(&mut self, node_id: &NodeId) {
        self.unplug(node_id);
        if let Some(worker) = self.workers.get_mut(node_id) {
            worker.linked = false;
        }
        self.finding(node_id, Finding::Gone);
    }
}
