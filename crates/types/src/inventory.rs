//! What a node says of itself: hardware, what it holds, what is reserved.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{JobId, Role, StartId};

/// A named, counted ability of a node, or the need for one (PLACE-10).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capability {
    /// Name, e.g. `norsk.io/sdi-in`.
    pub name: String,
    /// How many; in a need, how many are taken.
    #[serde(default = "one")]
    pub count: u32,
    /// Attributes offered; in a need, pairs that must be equal.
    #[serde(
        default,
        alias = "attributeMatches",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attributes: BTreeMap<String, String>,
}

// === impl Capability ===

impl Capability {
    /// Whether this offered entry has every attribute that the need asks for (PLACE-10). Name and
    /// count are the caller's to compare: counts of one name add up over entries.
    #[must_use]
    pub fn meets(&self, need: &Self) -> bool {
        need.attributes
            .iter()
            .all(|(key, value)| self.attributes.get(key) == Some(value))
    }
}

fn one() -> u32 {
    1
}

/// One GPU of a node (GPU-01).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gpu {
    /// Number of the device on its node.
    pub index: u32,
    /// The driver's uuid of the device.
    pub uuid: String,
    /// Model name, e.g. `A10G`.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Shares the device offers, 1.0 for a whole device.
    pub capacity: f64,
    /// Shares that the worker says are taken.
    pub reserved_capacity: f64,
    /// Version of the driver.
    pub driver: String,
    /// NUMA node, -1 when unknown.
    pub numa: i32,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Nic {
    /// Kernel name.
    pub name: String,
    /// Link speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u64,
    /// Addresses in text form.
    pub addresses: Vec<String>,
    /// PTP hardware clock, empty without one.
    pub ptp_clock: String,
    /// Virtual functions not yet given away.
    pub sriov_free: u32,
}

/// One file system of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Disk {
    /// Where it is mounted.
    pub path: String,
    /// Size in bytes, without what the file system keeps back from everybody.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
}

/// Free disk a node keeps, in bytes (WORK-30).
const DISK_FREE_MIN: u64 = 5 << 30;
/// Free disk a node keeps, as one part in so many of the whole (WORK-30).
const DISK_FREE_PART: u64 = 10;

/// What of a disk is free and what must be; in words `7 % free, 10 % needed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskRoom {
    /// Free bytes.
    pub free: u64,
    /// Bytes that must be free.
    pub needed: u64,
    /// Size in bytes.
    pub total: u64,
}

// === impl Disk ===

impl Disk {
    /// Bytes that must be free for a node to take new work: a tenth, and 5 GiB (WORK-30).
    const fn must_keep(&self) -> u64 {
        let part = self.total / DISK_FREE_PART;
        if part > DISK_FREE_MIN {
            part
        } else {
            DISK_FREE_MIN
        }
    }

    /// Bytes that must be free for a node that had too little: a fifth more, so that a disk at the
    /// edge does not flap (WORK-36).
    const fn takes_again(&self) -> u64 {
        let (keep, again) = (self.must_keep(), self.must_keep() / 5 * 6);
        // A disk that can never have the fifth more must not stay out for ever.
        if again < self.total { again } else { keep }
    }

    /// Whether there is too little for new work, given whether there was before (WORK-36).
    #[must_use]
    pub const fn is_low(&self, was_low: bool) -> bool {
        let needed = if was_low {
            self.takes_again()
        } else {
            self.must_keep()
        };
        self.free < needed
    }

    /// What is free, and what must be for new work.
    #[must_use]
    pub const fn room(&self) -> DiskRoom {
        let needed = if self.is_low(false) {
            self.must_keep()
        } else {
            self.takes_again()
        };
        DiskRoom {
            free: self.free,
            needed,
            total: self.total,
        }
    }
}

impl fmt::Display for DiskRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            free,
            needed,
            total,
        } = *self;
        if total / DISK_FREE_PART < DISK_FREE_MIN {
            // Cut off, not rounded: what is short must not read as enough.
            let gib = |bytes: u64| (bytes / (1 << 20) * 10 / 1024) as f64 / 10.0;
            return write!(f, "{} GiB free, {} GiB needed", gib(free), gib(needed));
        }
        let percent = |bytes: u64| u128::from(bytes) * 100 / u128::from(total);
        let needed = (u128::from(needed) * 100).div_ceil(u128::from(total));
        write!(f, "{} % free, {needed} % needed", percent(free))
    }
}

/// One logical CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cpu {
    /// Kernel number.
    pub id: u32,
    /// Physical core.
    pub core: u32,
    /// NUMA node.
    pub numa: u32,
    /// Lowest CPU number on the same physical core.
    pub sibling_of: u32,
}

/// An image that is complete on the node's disk (WORK-55).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeldImage {
    /// Reference as a job would name it.
    pub reference: String,
    /// Content digest.
    pub digest: String,
}

/// What one instance holds on its node (RESV-07).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AssignedJob {
    /// The job.
    pub job_id: JobId,
    /// The instance's role.
    pub role: Role,
    /// The instance's start id.
    pub start_id: StartId,
    /// vCPUs held.
    pub capacity: f64,
    /// Pinned cores held.
    pub cores: u32,
    /// Device on which a GPU share is held.
    pub gpu_index: Option<u32>,
    /// GPU share held.
    pub gpu_capacity: f64,
    /// Host ports held, as `PORT/proto`.
    pub host_ports: Vec<String>,
}

/// What runs the services of a node (DECM-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuntimeKind {
    /// A container engine: every service names an image.
    Containers,
    /// The process runtime: no service names an image.
    Processes,
}

/// `runtime` of a worker whose engine does not answer (WORK-63).
pub const RUNTIME_UNAVAILABLE: &str = "unavailable";

/// Processor architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// 64-bit x86.
    #[default]
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

/// A full picture of one node, as its worker sends it (WORK-40).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeInventory {
    /// vCPUs of the node (TIER-06).
    pub total_capacity: f64,
    /// Cores that can be pinned.
    pub total_cores: u32,
    /// Fraction of the capacity that may be used, in (0, 1] (PLACE-12).
    pub utilization_cap: f64,
    /// vCPUs that the worker says are taken.
    pub reserved_capacity: f64,
    /// Cores that the worker says are taken.
    pub reserved_cores: u32,
    /// What the node can do.
    pub capabilities: Vec<Capability>,
    /// Capabilities that the worker says are taken.
    pub reserved_capabilities: Vec<Capability>,
    /// GPU devices.
    pub gpus: Vec<Gpu>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Images complete on disk.
    pub held_images: Vec<HeldImage>,
    /// What each instance holds.
    pub assigned_jobs: Vec<AssignedJob>,
    /// The operator of the node keeps new work off it.
    pub cordoned: bool,
    /// False while the Manager has no stream to the worker (MNODE-10).
    pub reachable: bool,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// File systems; the first is the one that instances fill.
    pub disks: Vec<Disk>,
    /// The first of them has too little free for new work (WORK-36).
    pub disk_low: bool,
    /// Processor architecture.
    pub architecture: Architecture,
    /// Availability zone, empty when unknown.
    pub az: String,
    /// Runtime and its version, e.g. `docker 20.10.24` or `process`; [`RUNTIME_UNAVAILABLE`] while
    /// its engine does not answer.
    pub runtime: String,
    /// Logical CPUs.
    pub cpus: Vec<Cpu>,
    /// Capabilities that node services provide (WORK-43).
    pub provided: Vec<Capability>,
}

impl Default for NodeInventory {
    fn default() -> Self {
        Self {
            total_capacity: 0.0,
            total_cores: 0,
            utilization_cap: 1.0,
            reserved_capacity: 0.0,
            reserved_cores: 0,
            capabilities: Vec::new(),
            reserved_capabilities: Vec::new(),
            gpus: Vec::new(),
            nics: Vec::new(),
            held_images: Vec::new(),
            assigned_jobs: Vec::new(),
            cordoned: false,
            reachable: true,
            memory_bytes: 0,
            disks: Vec::new(),
            disk_low: false,
            architecture: Architecture::X86_64,
            az: String::new(),
            runtime: String::new(),
            cpus: Vec::new(),
            provided: Vec::new(),
        }
    }
}

// === impl RuntimeKind ===

impl RuntimeKind {
    /// The kind of a runtime as inventories name it.
    #[must_use]
    pub fn of(runtime: &str) -> Option<Self> {
        match runtime.split(' ').next() {
            Some("docker") => Some(Self::Containers),
            Some("process") => Some(Self::Processes),
            _ => None,
        }
    }
}

// === impl NodeInventory ===

impl NodeInventory {
    /// What runs services there; none while that is not known, as while the engine does not answer.
    #[must_use]
    pub fn runtime_kind(&self) -> Option<RuntimeKind> {
        RuntimeKind::of(&self.runtime)
    }

    /// The engine does not answer, so that nothing can be started there (WORK-63).
    #[must_use]
    pub fn is_runtime_down(&self) -> bool {
        self.runtime == RUNTIME_UNAVAILABLE
    }

    /// Says whether the disk has too little free, given whether it had before (WORK-36).
    pub fn judge_disk(&mut self, was_low: bool) {
        self.disk_low = self.disks.first().is_some_and(|disk| disk.is_low(was_low));
    }

    /// The picture with every number made usable: a cap outside (0, 1] becomes 1, negative or
    /// non-finite amounts become 0 (PLACE-12, MNODE-20). The flag says whether anything changed.
    pub fn sanitised(mut self) -> (Self, bool) {
        fn amount(value: &mut f64, changed: &mut bool) {
            if !value.is_finite() || *value < 0.0 {
                *value = 0.0;
                *changed = true;
            }
        }
        let mut changed = false;
        if !(self.utilization_cap > 0.0 && self.utilization_cap <= 1.0) {
            self.utilization_cap = 1.0;
            changed = true;
        }
        amount(&mut self.total_capacity, &mut changed);
        amount(&mut self.reserved_capacity, &mut changed);
        for gpu in &mut self.gpus {
            amount(&mut gpu.capacity, &mut changed);
            amount(&mut gpu.reserved_capacity, &mut changed);
        }
        for job in &mut self.assigned_jobs {
            amount(&mut job.capacity, &mut changed);
            amount(&mut job.gpu_capacity, &mut changed);
        }
        (self, changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn disk(total_gib: u64, free_gib: u64) -> Disk {
        Disk {
            path: String::new(),
            total: total_gib << 30,
            free: free_gib << 30,
        }
    }

    // spec: WORK-30, WORK-36
    #[test]
    fn a_disk_is_low_below_a_tenth_or_five_gibibytes_until_a_fifth_more_is_free() {
        for (total, low, again) in [(1_000, 99, 120), (100, 9, 12), (20, 4, 6)] {
            assert!(disk(total, low).is_low(false), "{total}");
            assert!(!disk(total, low + 1).is_low(false), "{total}");
            assert!(disk(total, again - 1).is_low(true), "{total}");
            assert!(!disk(total, again).is_low(true), "{total}");
        }
        // One that can never have so much is not kept out for ever.
        assert!(!disk(6, 5).is_low(true) && disk(6, 4).is_low(true));
        let mut picture = NodeInventory {
            disks: vec![disk(100, 11), disk(100, 0)],
            ..NodeInventory::default()
        };
        for was_low in [true, false] {
            picture.judge_disk(was_low);
            assert_eq!(picture.disk_low, was_low, "the first disk counts");
        }
    }

    #[test]
    fn the_room_of_a_disk_reads_as_the_rule_that_it_breaks() {
        let words = |total, free| disk(total, free).room().to_string();
        assert_eq!(words(100, 7), "7 % free, 10 % needed");
        assert_eq!(words(100, 11), "11 % free, 12 % needed");
        assert_eq!(words(20, 4), "4 GiB free, 5 GiB needed");
        let near = Disk {
            free: (10 << 30) - 1,
            ..disk(100, 0)
        };
        assert_eq!(near.room().to_string(), "9 % free, 10 % needed");
    }

    // spec: PLACE-12, HARD-45
    #[test]
    fn a_cap_that_is_no_fraction_reads_as_one() {
        for cap in [4.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            let picture = NodeInventory {
                utilization_cap: cap,
                ..NodeInventory::default()
            };
            let (picture, changed) = picture.sanitised();
            assert_eq!(picture.utilization_cap, 1.0, "{cap}");
            assert!(changed);
        }
        let picture = NodeInventory {
            utilization_cap: 0.8,
            ..NodeInventory::default()
        };
        assert_eq!(picture.sanitised().0.utilization_cap, 0.8);
    }
}
