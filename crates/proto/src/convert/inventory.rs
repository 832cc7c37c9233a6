//! What a node says of itself.
//!
//! Numbers are taken as they are; making them usable is `NodeInventory::sanitised` (MNODE-20). A negative index of
//! a device means none.

use greenroom_types::{
    JobId, Role, StartId,
    inventory::{AssignedJob, Capability, Cpu, Disk, Gpu, HeldImage, Nic, NodeInventory},
};

use super::{
    WireError,
    common::{read_enum, write_enum},
    write_list,
};
use crate::common as wire;

/// Reads the index of a device; negative means none (JOB-17).
pub fn read_gpu_index(index: Option<i32>) -> Option<u32> {
    index.and_then(|index| u32::try_from(index).ok())
}

/// Writes the index of a device.
pub fn write_gpu_index(index: Option<u32>) -> Option<i32> {
    index.map(|index| i32::try_from(index).unwrap_or(i32::MAX))
}

/// Both directions for messages with the same fields of the same types on both sides.
macro_rules! same_fields {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {$(
        impl From<wire::$name> for $name {
            fn from(message: wire::$name) -> Self {
                let wire::$name { $($field),+ } = message;
                Self { $($field),+ }
            }
        }
        impl From<&$name> for wire::$name {
            fn from(value: &$name) -> Self {
                let $name { $($field),+ } = value.clone();
                Self { $($field),+ }
            }
        }
    )+};
}

same_fields! {
    Capability { name, count, attributes }
    Cpu { id, core, numa, sibling_of }
    Disk { path, total, free }
    Gpu { index, uuid, model, memory_bytes, capacity, reserved_capacity, driver, numa }
    HeldImage { reference, digest }
    Nic { name, speed_mbps, addresses, ptp_clock, sriov_free }
}

impl From<wire::AssignedJob> for AssignedJob {
    fn from(job: wire::AssignedJob) -> Self {
        Self {
            job_id: JobId::new(job.job_id),
            role: Role::new(job.role),
            start_id: StartId::new(job.start_id),
            capacity: job.capacity,
            cores: job.cores,
            gpu_index: read_gpu_index(job.gpu_index),
            gpu_capacity: job.gpu_capacity,
            host_ports: job.host_ports,
        }
    }
}

impl From<&AssignedJob> for wire::AssignedJob {
    fn from(job: &AssignedJob) -> Self {
        Self {
            job_id: job.job_id.as_str().to_owned(),
            role: job.role.as_str().to_owned(),
            start_id: job.start_id.as_str().to_owned(),
            capacity: job.capacity,
            cores: job.cores,
            gpu_index: write_gpu_index(job.gpu_index),
            gpu_capacity: job.gpu_capacity,
            host_ports: job.host_ports.clone(),
        }
    }
}

/// Elements that cannot fail to be read.
pub(crate) fn take_list<W, T: From<W>>(elements: Vec<W>) -> Vec<T> {
    elements.into_iter().map(T::from).collect()
}

impl TryFrom<wire::NodeInventory> for NodeInventory {
    type Error = WireError;
    fn try_from(inventory: wire::NodeInventory) -> Result<Self, WireError> {
        Ok(Self {
            total_capacity: inventory.total_capacity,
            total_cores: inventory.total_cores,
            utilization_cap: inventory.utilization_cap,
            reserved_capacity: inventory.reserved_capacity,
            reserved_cores: inventory.reserved_cores,
            capabilities: take_list(inventory.capabilities),
            reserved_capabilities: take_list(inventory.reserved_capabilities),
            gpus: take_list(inventory.gpus),
            nics: take_list(inventory.nics),
            held_images: take_list(inventory.held_images),
            assigned_jobs: take_list(inventory.assigned_jobs),
            cordoned: inventory.cordoned,
            reachable: inventory.reachable,
            memory_bytes: inventory.memory_bytes,
            disks: take_list(inventory.disks),
            disk_low: inventory.disk_low,
            architecture: read_enum::<wire::Architecture, _>(
                inventory.architecture,
                "architecture",
            )?,
            az: inventory.az,
            runtime: inventory.runtime,
            cpus: take_list(inventory.cpus),
            provided: take_list(inventory.provided),
        })
    }
}

impl From<&NodeInventory> for wire::NodeInventory {
    fn from(inventory: &NodeInventory) -> Self {
        Self {
            total_capacity: inventory.total_capacity,
            total_cores: inventory.total_cores,
            utilization_cap: inventory.utilization_cap,
            reserved_capacity: inventory.reserved_capacity,
            reserved_cores: inventory.reserved_cores,
            capabilities: write_list(&inventory.capabilities),
            reserved_capabilities: write_list(&inventory.reserved_capabilities),
            gpus: write_list(&inventory.gpus),
            nics: write_list(&inventory.nics),
            held_images: write_list(&inventory.held_images),
            assigned_jobs: write_list(&inventory.assigned_jobs),
            cordoned: inventory.cordoned,
            reachable: inventory.reachable,
            memory_bytes: inventory.memory_bytes,
            disks: write_list(&inventory.disks),
            disk_low: inventory.disk_low,
            architecture: write_enum::<wire::Architecture>(inventory.architecture),
            az: inventory.az.clone(),
            runtime: inventory.runtime.clone(),
            cpus: write_list(&inventory.cpus),
            provided: write_list(&inventory.provided),
        }
    }
}
