//! How much of a node is taken (RESV). Derived from bindings and holds, or reported by the worker.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::inventory::NodeInventory;
use serde::{Deserialize, Serialize};

use crate::binding::Bound;
use crate::needs::{GpuNeed, Needs};
use crate::node::Listed;
use crate::offer::Device;
use crate::port::Port;

/// Amounts taken on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reserved {
    /// vCPUs.
    pub capacity: f64,
    /// Pinned cores.
    pub cores: u64,
    /// Counts by name of capability.
    pub capabilities: BTreeMap<String, u64>,
    /// Shares by index of device (GPU-03).
    pub gpus: BTreeMap<u32, f64>,
    /// Shares held for members of groups that have no device yet (INTRA-05, GPU-07).
    pub gpu_holds: Vec<GpuNeed>,
    /// Host ports.
    pub ports: BTreeSet<Port>,
}

// === impl Reserved ===

impl Reserved {
    /// What the worker itself reports as taken (RESV-02).
    pub(crate) fn reported(inventory: &NodeInventory) -> Self {
        let mut reserved = Self {
            capacity: inventory.reserved_capacity,
            cores: inventory.reserved_cores.into(),
            ..Self::default()
        };
        for capability in &inventory.reserved_capabilities {
            *reserved
                .capabilities
                .entry(capability.name.clone())
                .or_default() += u64::from(capability.count);
        }
        for gpu in &inventory.gpus {
            if gpu.reserved_capacity > 0.0 {
                *reserved.gpus.entry(gpu.index).or_default() += gpu.reserved_capacity;
            }
        }
        reserved
    }

    /// Counts a bound job: its GPU share on its device, or on every device of a matching model when
    /// the device is not known (GPU-05). A share of a model that its device is not is for its next start
    /// (BUNDLE-11): it has no device yet, and is held.
    pub(crate) fn add_bound(&mut self, needs: &Needs, gpu_index: Option<u32>, devices: &[Device]) {
        self.add_common(needs);
        if needs.gpus.is_empty() {
            return;
        }
        if let Some(index) = gpu_index {
            let device = devices.iter().find(|device| device.index == index);
            *self.gpus.entry(index).or_default() += share_on(needs, device);
            let elsewhere = |need: &&GpuNeed| device.is_some_and(|it| !it.is_model(&need.model));
            self.gpu_holds
                .extend(needs.gpus.iter().filter(elsewhere).cloned());
            self.gpu_holds.sort_by(|a, b| b.share.total_cmp(&a.share));
            return;
        }
        for device in devices {
            let share = share_on(needs, Some(device));
            if share > 0.0 {
                *self.gpus.entry(device.index).or_default() += share;
            }
        }
    }

    /// Counts what a bound job holds beyond what it is bound with: it runs with what it was started
    /// with (BUNDLE-11).
    pub(crate) fn add_excess(&mut self, listed: &Listed, bound: &Bound, devices: &[Device]) {
        let nothing = Needs::default();
        let known = bound.needs.as_deref().unwrap_or(&nothing);
        self.capacity += (listed.needs.capacity - known.capacity).max(0.0);
        self.cores += listed.needs.cores.saturating_sub(known.cores);
        self.ports.extend(listed.needs.ports.iter().copied());
        if let Some(index) = listed.gpu_index {
            let device = devices.iter().find(|device| device.index == index);
            let here = bound.gpu_index.is_none_or(|known| known == index);
            let counted = if here { share_on(known, device) } else { 0.0 };
            let more = share_on(&listed.needs, None) - counted;
            if more > 0.0 {
                *self.gpus.entry(index).or_default() += more;
            }
        }
    }

    /// Counts room held for a job that is not here yet (INTRA-05).
    pub(crate) fn add_hold(&mut self, needs: &Needs) {
        self.add_common(needs);
        self.gpu_holds.extend(needs.gpus.iter().cloned());
        self.gpu_holds.sort_by(|a, b| b.share.total_cmp(&a.share));
    }

    fn add_common(&mut self, needs: &Needs) {
        self.capacity += needs.capacity;
        self.cores += needs.cores;
        for capability in &needs.capabilities {
            let count = u64::from(capability.count);
            match self.capabilities.get_mut(&capability.name) {
                Some(taken) => *taken += count,
                None => {
                    self.capabilities.insert(capability.name.clone(), count);
                }
            }
        }
        self.ports.extend(needs.ports.iter().copied());
    }

    /// Raises each field to at least the other's (RESV-02).
    pub(crate) fn raise_to(&mut self, other: &Self) {
        self.capacity = self.capacity.max(other.capacity);
        self.cores = self.cores.max(other.cores);
        for (name, &count) in &other.capabilities {
            match self.capabilities.get_mut(name) {
                Some(here) => *here = count.max(*here),
                None => {
                    self.capabilities.insert(name.clone(), count);
                }
            }
        }
        for (&index, &share) in &other.gpus {
            let here = self.gpus.entry(index).or_default();
            *here = share.max(*here);
        }
    }

    /// What of it is left without what these hold.
    pub(crate) fn less<'a>(&self, gone: impl IntoIterator<Item = &'a Listed>) -> Self {
        let mut left = self.clone();
        for Listed {
            needs, gpu_index, ..
        } in gone
        {
            left.capacity = (left.capacity - needs.capacity).max(0.0);
            left.cores = left.cores.saturating_sub(needs.cores);
            for capability in &needs.capabilities {
                if let Some(count) = left.capabilities.get_mut(&capability.name) {
                    *count = count.saturating_sub(capability.count.into());
                }
            }
            let share: f64 = needs.gpus.iter().map(|need| need.share).sum();
            if let Some(taken) = gpu_index.and_then(|index| left.gpus.get_mut(&index)) {
                *taken = (*taken - share).max(0.0);
            }
        }
        left
    }

    /// Share taken on a device.
    pub(crate) fn gpu(&self, index: u32) -> f64 {
        self.gpus.get(&index).copied().unwrap_or(0.0)
    }
}

/// What a job takes of one device: of several needs, of which it has one at a time, the largest that the
/// device can answer. All of them where the device is not known.
fn share_on(needs: &Needs, device: Option<&Device>) -> f64 {
    needs
        .gpus
        .iter()
        .filter(|need| device.is_none_or(|device| device.is_model(&need.model)))
        .map(|need| need.share)
        .fold(0.0, f64::max)
}
