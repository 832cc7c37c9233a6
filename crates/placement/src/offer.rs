//! What a node offers when it is empty: read from an inventory, or from the shape of a node that is
//! still to be bought or to start. Capacity, cores and capabilities are compared here; devices in
//! `gpu.rs`, because a share has to find one.

use greenroom_types::SHARE_TOLERANCE;
use greenroom_types::inventory::{Capability, Gpu, NodeInventory, RuntimeKind};
use greenroom_types::pool::CandidateInstanceType;

use crate::needs::Needs;
use crate::reserved::Reserved;

/// One GPU of an offer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) model: String,
    pub(crate) capacity: f64,
}

impl Device {
    /// True when a need for that model (empty: any) is met.
    pub(crate) fn is_model(&self, model: &str) -> bool {
        model.is_empty() || self.model == model
    }
}

/// An empty node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Offer {
    /// vCPUs, the utilization cap already applied (PLACE-11).
    pub(crate) capacity: f64,
    pub(crate) cores: u64,
    pub(crate) capabilities: Vec<Capability>,
    /// By ascending index.
    pub(crate) devices: Vec<Device>,
    /// What runs services, where that is known.
    pub(crate) runtime: Option<RuntimeKind>,
}

/// Which part of the needs an offer does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Capabilities,
    Capacity,
    Cores,
}

// === impl Offer ===

impl Offer {
    /// The offer of an inventory whose numbers are sane (PLACE-12).
    pub(crate) fn of_inventory(inventory: &NodeInventory) -> Self {
        Self {
            capacity: inventory.total_capacity * inventory.utilization_cap,
            cores: inventory.total_cores.into(),
            // What node services provide is as good as what the machine has (WORK-43).
            capabilities: [&inventory.capabilities[..], &inventory.provided].concat(),
            devices: devices(&inventory.gpus),
            runtime: inventory.runtime_kind(),
        }
    }

    /// The offer of a shape, with cap 1 (PLACE-26, PROV-03).
    pub(crate) fn of_shape(shape: &CandidateInstanceType) -> Self {
        Self {
            capacity: shape.total_capacity,
            cores: shape.total_cores.into(),
            capabilities: shape.capabilities.clone(),
            devices: devices(&shape.gpus),
            runtime: None,
        }
    }

    /// Capabilities, capacity and cores, in the order of the filter chain.
    pub(crate) fn lack(&self, reserved: &Reserved, needs: &Needs) -> Option<Lack> {
        if self
            .missing_capability(reserved, &needs.capabilities)
            .is_some()
        {
            Some(Lack::Capabilities)
        } else if !self.has_capacity(reserved, needs.capacity) {
            Some(Lack::Capacity)
        } else if needs.cores > 0 && self.cores < reserved.cores.saturating_add(needs.cores) {
            Some(Lack::Cores)
        } else {
            None
        }
    }

    /// PLACE-11.
    pub(crate) fn has_capacity(&self, reserved: &Reserved, needed: f64) -> bool {
        needed <= self.capacity - reserved.capacity + SHARE_TOLERANCE
    }

    /// The first need that is not met (PLACE-10). Where a name stands on several entries of the
    /// offer, those count whose attributes match a need, and all that is reserved under the name is
    /// taken from them: rather refused than given twice.
    pub(crate) fn missing_capability<'n>(
        &self,
        reserved: &Reserved,
        needs: &'n [Capability],
    ) -> Option<&'n Capability> {
        needs.iter().find(|need| {
            let asked: u64 = needs
                .iter()
                .filter(|other| other.name == need.name)
                .map(|other| u64::from(other.count))
                .sum();
            let mut usable = 0;
            let mut matching = 0;
            let mut seen = false;
            for entry in self
                .capabilities
                .iter()
                .filter(|entry| entry.name == need.name)
            {
                let count = u64::from(entry.count);
                if entry.meets(need) {
                    seen = true;
                    matching += count;
                    usable += count;
                } else if needs
                    .iter()
                    .any(|other| other.name == need.name && entry.meets(other))
                {
                    usable += count;
                }
            }
            let taken = reserved.capabilities.get(&need.name).copied().unwrap_or(0);
            !(seen || need.count == 0 && need.attributes.is_empty())
                || matching < u64::from(need.count)
                || usable < asked.saturating_add(taken)
        })
    }

    /// Count of a capability that is not taken, over all its entries.
    pub(crate) fn free_capability(&self, reserved: &Reserved, name: &str) -> u64 {
        let offered: u64 = self
            .capabilities
            .iter()
            .filter(|entry| entry.name == name)
            .map(|entry| u64::from(entry.count))
            .sum();
        offered.saturating_sub(reserved.capabilities.get(name).copied().unwrap_or(0))
    }
}

fn devices(gpus: &[Gpu]) -> Vec<Device> {
    let mut devices: Vec<Device> = gpus
        .iter()
        .map(|gpu| Device {
            index: gpu.index,
            model: gpu.model.clone(),
            capacity: gpu.capacity,
        })
        .collect();
    devices.sort_by_key(|device| device.index);
    devices
}
