//! CreateAwsNode and CreateOciNode (MNODE-01 to MNODE-04, API-16), and a node's record in general.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_types::call::{CallResult, CreateAwsNode, CreateOciNode, Refusal, Reply};
use greenroom_types::inventory::Architecture;
use greenroom_types::node::{NodeMetadata, NodeState, ProviderMetadata, StartPhase};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{NodeId, Tags, Wall};

use crate::config::Provider;
use crate::ledger::Ledger;
use crate::order::{MachineSpec, Order, ProviderTask};
use crate::out::Out;
use crate::refuse::{exhausted, exists, failed, invalid, required};
use crate::state::Node;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn create_aws_node(&mut self, out: &mut Out, wanted: CreateAwsNode) -> CallResult {
        check_node_id(&wanted.node_id)?;
        self.check_provider(Provider::Aws)?;
        required("region", &wanted.region)?;
        required("instance_type", &wanted.instance_type)?;
        self.check_region(Provider::Aws, &wanted.region)?;
        self.check_new_node(&wanted.node_id)?;
        let provider = ProviderMetadata::Aws {
            instance_type: wanted.instance_type.clone(),
            region: wanted.region.clone(),
            architecture: Architecture::X86_64,
            availability_zone: String::new(),
            launch_mode: wanted.launch_mode,
        };
        let (node_id, tags) = (wanted.node_id.clone(), wanted.tags.clone());
        self.insert_elastic(
            out,
            node_id,
            tags,
            provider,
            MachineSpec::Aws(Box::new(wanted)),
        );
        Ok(Reply::Done)
    }

    pub(crate) fn create_oci_node(&mut self, out: &mut Out, wanted: CreateOciNode) -> CallResult {
        check_node_id(&wanted.node_id)?;
        self.check_provider(Provider::Oci)?;
        required("availability_domain", &wanted.availability_domain)?;
        required("shape", &wanted.shape)?;
        let architecture = match wanted.architecture.as_str() {
            "" | "x86_64" => Architecture::X86_64,
            "aarch64" => Architecture::Aarch64,
            other => {
                return Err(invalid(
                    "bad_architecture",
                    format!("architecture {other:?} must be x86_64 or aarch64"),
                )
                .with("path", "architecture"));
            }
        };
        for (path, value) in [("ocpus", wanted.ocpus), ("memory_gb", wanted.memory_gb)] {
            if value.is_some_and(|value| !value.is_finite() || value <= 0.0) {
                return Err(
                    invalid("bad_value", format!("{path} must be a number above 0"))
                        .with("path", path),
                );
            }
        }
        self.check_region(Provider::Oci, &wanted.availability_domain)?;
        self.check_new_node(&wanted.node_id)?;
        let provider = ProviderMetadata::Oci {
            availability_domain: wanted.availability_domain.clone(),
            shape: wanted.shape.clone(),
            architecture,
            ocpus: wanted.ocpus.unwrap_or_default(),
        };
        let (node_id, tags) = (wanted.node_id.clone(), wanted.tags.clone());
        self.insert_elastic(
            out,
            node_id,
            tags,
            provider,
            MachineSpec::Oci(Box::new(wanted)),
        );
        Ok(Reply::Done)
    }

    fn check_provider(&self, provider: Provider) -> Result<(), Refusal> {
        if self.config.providers.contains_key(&provider) {
            return Ok(());
        }
        Err(failed(
            "provider_not_configured",
            format!(
                "provider {:?} is not in this Manager's settings",
                provider.name()
            ),
        )
        .with("provider", provider.name()))
    }

    fn check_region(&self, provider: Provider, region: &str) -> Result<(), Refusal> {
        let regions = self.regions_in_force(provider);
        if regions.is_empty() || regions.contains(region) {
            return Ok(());
        }
        Err(failed(
            "region_not_configured",
            format!(
                "{region:?} is not among the regions of {:?} in this Manager's settings and overrides",
                provider.name()
            ),
        )
        .with("region", region))
    }

    fn check_new_node(&self, node_id: &NodeId) -> Result<(), Refusal> {
        if self.nodes.contains_key(node_id) || self.slots.contains_key(node_id) {
            return Err(exists(
                "node_exists",
                format!("node {node_id:?} is known already: use another id"),
            )
            .with("node", node_id.as_str()));
        }
        let limit = self.config.limits.nodes;
        if self.nodes.len() >= limit {
            return Err(exhausted(
                "too_many_nodes",
                format!("there are {} nodes: at most {limit}", self.nodes.len()),
            )
            .with("expected", limit as u64));
        }
        Ok(())
    }

    fn insert_elastic(
        &mut self,
        out: &mut Out,
        node_id: NodeId,
        tags: Tags,
        provider: ProviderMetadata,
        machine: MachineSpec,
    ) {
        out.orders.push(Order::Provider {
            node_id: node_id.clone(),
            task: ProviderTask::CreateMachine(machine.clone()),
        });
        let mut node = new_node(node_id.clone(), tags, provider, out.at);
        node.machine = Some(machine);
        self.insert_node(out, node_id, node, StartPhase::Requested);
    }

    /// Records a node as starting and tells of it.
    pub(crate) fn insert_node(
        &mut self,
        out: &mut Out,
        node_id: NodeId,
        mut node: Node,
        phase: StartPhase,
    ) {
        node.phase = phase;
        node.compose_tags();
        out.nodes.insert(node_id.clone());
        out.inventories.insert(node_id.clone());
        out.event(StreamEvent::NodeStarting {
            metadata: node.metadata.clone(),
            phase: Some(phase),
        });
        self.nodes.insert(node_id, node);
    }

    /// Moves a node to another state.
    pub(crate) fn turn_node(&mut self, out: &mut Out, node_id: &NodeId, state: NodeState) {
        if let Some(node) = self.nodes.get_mut(node_id) {
            node.state = state;
            node.turn += 1;
            out.nodes.insert(node_id.clone());
            // What its instances wait for depends on whether it is heard.
            if let Some(here) = self.on_node.get(node_id) {
                out.look_at_all(here);
            }
        }
    }
}

/// MNODE-02.
fn check_node_id(node_id: &NodeId) -> Result<(), Refusal> {
    required("node_id", node_id.as_str())?;
    match node_id.as_str().parse::<NodeId>() {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid("bad_node_id", error.to_string()).with("path", "node_id")),
    }
}

/// A node that starts.
pub(crate) fn new_node(
    node_id: NodeId,
    tags: Tags,
    provider: ProviderMetadata,
    created_at: Wall,
) -> Node {
    Node {
        metadata: Arc::new(NodeMetadata {
            node_id,
            tags: tags.clone(),
            created_at,
            provider,
        }),
        base_tags: tags,
        own_tags: Tags::new(),
        edits: BTreeMap::new(),
        tags_revision: 0,
        running: Arc::default(),
        state: NodeState::Starting,
        phase: StartPhase::Requested,
        stop: None,
        given_up: false,
        machine: None,
        machine_gone: false,
        address: String::new(),
        boot_id: String::new(),
        protocol_minor: 0,
        last_seen: None,
        stopped_at: None,
        terminate_attempts: 0,
        last_error: String::new(),
        report_acked: 0,
        awaiting: None,
        turn: 0,
        notice: None,
        batches: BTreeMap::new(),
        idle_expiry_ms: None,
        idle_mark: 0,
        strays: Default::default(),
        inventory: None,
    }
}
