//! Room for starts: each kind of want on a small machine, at its exact edge.

use greenroom_types::job::{HostPort, PortMapping, ServiceParameters};

use super::*;
use crate::ports::tests::FakeProbe;

/// 4 vCPU on 4 cores of two siblings each, 8 GiB, two GPUs, three of one capability.
fn machine() -> NodeInventory {
    NodeInventory {
        total_capacity: 8.0,
        total_cores: 4,
        memory_bytes: 8 << 30,
        capabilities: vec![capability("sdi", 3)],
        gpus: vec![gpu(0, "A10G", 0), gpu(1, "A10G", 1)],
        cpus: (0..8)
            .map(|id| Cpu {
                id,
                core: id % 4,
                numa: (id % 4) / 2,
                sibling_of: id % 4,
            })
            .collect(),
        disks: vec![Disk {
            path: "/".to_owned(),
            total: 100 << 30,
            free: 50 << 30,
        }],
        ..NodeInventory::default()
    }
}

fn capability(name: &str, count: u32) -> Capability {
    Capability {
        name: name.to_owned(),
        count,
        ..Capability::default()
    }
}

fn gpu(index: u32, model: &str, numa: i32) -> Gpu {
    Gpu {
        index,
        model: model.to_owned(),
        capacity: 1.0,
        numa,
        ..Gpu::default()
    }
}

fn start(change: impl FnOnce(&mut Requirements)) -> StartSpec {
    let mut spec = StartSpec {
        services: vec![Service::default()],
        ..StartSpec::default()
    };
    change(&mut spec.requirements);
    spec
}

#[derive(Default)]
struct Play {
    room: Room,
    machine: NodeInventory,
    next: u32,
}

impl Play {
    fn new() -> Self {
        Self {
            machine: machine(),
            ..Self::default()
        }
    }
    fn take(&mut self, spec: &StartSpec) -> Result<Reservation, RejectionCode> {
        let found = self
            .room
            .admit(spec, &self.machine, &[], &mut FakeProbe::default());
        let reservation = found.map_err(|refusal| {
            assert!(!refusal.detail.is_empty());
            refusal.code
        })?;
        self.next += 1;
        self.room
            .hold(self.next.to_string().into(), reservation.clone());
        Ok(reservation)
    }
    fn vcpu(&mut self, amount: f64) -> Result<(), RejectionCode> {
        self.take(&start(|need| need.required_capacity = amount))
            .map(drop)
    }
}

// spec: WORK-31
#[test]
fn capacity_is_total_times_cap_minus_reserved_and_equality_fits() {
    let mut play = Play::new();
    play.machine.utilization_cap = 0.5;
    assert_eq!(play.vcpu(4.1), Err(RejectionCode::Capacity));
    for _ in 0..40 {
        assert_eq!(play.vcpu(0.1), Ok(()));
    }
    assert_eq!(play.vcpu(0.1), Err(RejectionCode::Capacity));
    // What states no need fits a full machine.
    assert_eq!(play.vcpu(0.0), Ok(()));
}

// spec: WORK-30, WORK-32
#[test]
fn of_two_starts_for_the_last_room_exactly_one_is_admitted() {
    let mut play = Play::new();
    assert_eq!(play.vcpu(6.0), Ok(()));
    let outcomes = [play.vcpu(2.0), play.vcpu(2.0)];
    assert_eq!(outcomes, [Ok(()), Err(RejectionCode::Capacity)]);
    play.room.release(&"1".into());
    assert_eq!(play.vcpu(6.0), Ok(()));
}

// spec: WORK-30
#[test]
fn memory_and_cores_are_summed() {
    let mut play = Play::new();
    let memory = |gib: u64| start(|need| need.memory_bytes = gib << 30);
    assert!(play.take(&memory(5)).is_ok());
    assert_eq!(play.take(&memory(4)), Err(RejectionCode::Capacity));
    assert!(play.take(&memory(3)).is_ok());
    let cores = |count| start(|need| need.required_cores = count);
    assert!(play.take(&cores(3)).is_ok());
    assert_eq!(play.take(&cores(2)), Err(RejectionCode::Cores));
    assert!(play.take(&cores(1)).is_ok());
}

// spec: WORK-16
#[test]
fn cores_are_whole_and_on_the_numa_node_of_the_gpu() {
    let mut play = Play::new();
    let mut near = start(|need| {
        need.required_cores = 1;
        need.required_gpu_capacity = 0.5;
    });
    near.gpu_index = Some(1);
    // CPUs 2 and 6 are siblings on NUMA node 1, where GPU 1 is.
    assert_eq!(play.take(&near).unwrap().cpus, [2, 6]);
    let any = start(|need| need.required_cores = 2);
    assert_eq!(play.take(&any).unwrap().cpus, [0, 1, 4, 5]);
    assert_eq!(play.take(&near).unwrap().cpus, [3, 7]);
}

// spec: WORK-16
#[test]
fn a_named_cpu_set_must_exist_and_with_a_core_need_is_kept() {
    let mut play = Play::new();
    let pinned = |cpus: &[u32], cores| {
        let mut spec = start(|need| need.required_cores = cores);
        spec.services[0].parameters.cpu_set = cpus.to_vec();
        spec
    };
    assert_eq!(play.take(&pinned(&[99], 0)), Err(RejectionCode::Cores));
    assert_eq!(play.take(&pinned(&[1, 5], 1)).unwrap().cpus, [1, 5]);
    assert_eq!(play.take(&pinned(&[1], 1)), Err(RejectionCode::Cores));
    let picked = play.take(&start(|need| need.required_cores = 1)).unwrap();
    assert_eq!(picked.cpus, [0, 4]);
}

// spec: WORK-30
#[test]
fn gpu_shares_are_per_device_and_per_model() {
    let mut play = Play::new();
    let share = |amount, index| {
        let mut spec = start(|need| need.required_gpu_capacity = amount);
        spec.gpu_index = index;
        spec
    };
    assert_eq!(play.take(&share(0.6, None)).unwrap().gpu_index, Some(0));
    assert_eq!(play.take(&share(0.6, Some(0))), Err(RejectionCode::Gpu));
    assert_eq!(play.take(&share(0.6, None)).unwrap().gpu_index, Some(1));
    // 0.8 is free in all, on no single device.
    assert_eq!(play.take(&share(0.8, None)), Err(RejectionCode::Gpu));
    assert_eq!(play.take(&share(0.4, Some(1))).unwrap().gpu_index, Some(1));
    assert_eq!(play.take(&share(0.1, Some(7))), Err(RejectionCode::Gpu));
    assert_eq!(play.take(&share(0.1, Some(-1))).unwrap().gpu_index, None);
    let model = start(|need| need.required_gpu_model = "T4".to_owned());
    assert_eq!(play.take(&model), Err(RejectionCode::Gpu));
}

// spec: WORK-30
#[test]
fn capabilities_are_counted_and_attributes_must_match() {
    let mut play = Play::new();
    play.machine.capabilities[0]
        .attributes
        .insert("card".to_owned(), "x2".to_owned());
    let ask = |name: &str, count, card: &str| {
        let mut wanted = capability(name, count);
        if !card.is_empty() {
            wanted.attributes.insert("card".to_owned(), card.to_owned());
        }
        start(|need| need.required_capabilities = vec![wanted])
    };
    assert!(play.take(&ask("sdi", 2, "x2")).is_ok());
    assert_eq!(
        play.take(&ask("sdi", 2, "")),
        Err(RejectionCode::Capability)
    );
    assert_eq!(
        play.take(&ask("sdi", 1, "x4")),
        Err(RejectionCode::Capability)
    );
    assert_eq!(
        play.take(&ask("asi", 1, "")),
        Err(RejectionCode::Capability)
    );
    assert!(play.take(&ask("sdi", 1, "")).is_ok());
}

// spec: WORK-30
#[test]
fn host_ports_of_other_instances_are_taken_until_they_are_removed() {
    let mut play = Play::new();
    let mut spec = start(|need| need.required_host_ports = vec!["5004/udp".to_owned()]);
    let mapping = PortMapping {
        container_port: 80,
        host_port: HostPort::Specific(8080),
        ..PortMapping::default()
    };
    spec.services[0].parameters = ServiceParameters {
        port_mappings: vec![mapping],
        ..ServiceParameters::default()
    };
    let held = play.take(&spec).unwrap();
    assert_eq!(held.ports.tokens(), ["5004/udp", "8080/tcp", "8080/udp"]);
    assert_eq!(play.take(&spec), Err(RejectionCode::HostPort));
    play.room.release(&"1".into());
    assert!(play.take(&spec).is_ok());
}

// spec: WORK-30
#[test]
fn a_machine_keeps_a_tenth_and_five_gibibytes_of_disk() {
    let mut play = Play::new();
    let mut disk = |total: u64, free: u64| {
        play.machine.disks[0] = Disk {
            path: "/".to_owned(),
            total: total << 30,
            free: free << 30,
        };
        play.vcpu(0.0)
    };
    assert_eq!(disk(100, 10), Ok(()));
    assert_eq!(disk(100, 9), Err(RejectionCode::Disk));
    assert_eq!(disk(20, 5), Ok(()));
    assert_eq!(disk(20, 4), Err(RejectionCode::Disk));
}

// spec: WORK-30
#[test]
fn a_cordoned_node_takes_nothing() {
    let mut play = Play::new();
    play.machine.cordoned = true;
    assert_eq!(play.vcpu(0.0), Err(RejectionCode::Cordoned));
}

// spec: WORK-20
#[test]
fn what_waits_for_the_remains_of_its_own_key_may_take_their_room() {
    let mut play = Play::new();
    let all = start(|need| {
        need.required_capacity = 8.0;
        need.required_cores = 4;
    });
    play.take(&all).unwrap();
    let admit = |inherits: &[StartId]| {
        let found = play
            .room
            .admit(&all, &play.machine, inherits, &mut FakeProbe::default());
        found.map(drop).map_err(|refusal| refusal.code)
    };
    assert_eq!(admit(&[]), Err(RejectionCode::Capacity));
    assert_eq!(admit(&["1".into()]), Ok(()));
}

// spec: WORK-40
#[test]
fn the_picture_tells_what_is_reserved() {
    let mut play = Play::new();
    let spec = start(|need| {
        need.required_capacity = 1.5;
        need.required_cores = 1;
        need.required_gpu_capacity = 0.25;
        need.required_capabilities = vec![capability("sdi", 2)];
    });
    play.take(&spec).unwrap();
    let mut picture = machine();
    play.room.fill(&mut picture);
    assert_eq!(
        (picture.reserved_capacity, picture.reserved_cores),
        (1.5, 1)
    );
    assert_eq!(picture.gpus[0].reserved_capacity, 0.25);
    assert_eq!(picture.reserved_capabilities, [capability("sdi", 2)]);
}
