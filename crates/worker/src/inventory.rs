//! What this machine is: processors, memory, disk, network cards (WORK-40).
//!
//! Numbers are what a job can really use: the smaller of what the machine has and what the worker's
//! own cgroup allows. Settings may override them. What is reserved is not known here.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use greenroom_types::inventory::{Architecture, Capability, Cpu, Disk, Nic, NodeInventory};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::gpus::Gpus;

/// Free disk is told in steps of this many bytes, so that a job writing a file is no news every second.
const DISK_STEP: u64 = 256 << 20;

/// What the settings say of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Overrides {
    pub(crate) vcpus: Option<f64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) utilization_cap: f64,
    pub(crate) az: String,
    pub(crate) cordoned: bool,
    pub(crate) gpus: Gpus,
    /// Its file system is the first of the disks.
    pub(crate) state_dir: PathBuf,
}

/// How busy the machine is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Processors busy over the last minute.
    pub(crate) vcpus: f64,
    /// Bytes in use.
    pub(crate) memory_bytes: u64,
}

/// Looks at the machine.
pub(crate) fn survey(overrides: &Overrides) -> NodeInventory {
    let cpus = cpus(Path::new("/sys/devices/system"), &allowed_cpus());
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.sibling_of).collect();
    NodeInventory {
        total_capacity: overrides.vcpus.unwrap_or(usable as f64),
        total_cores: cores.len() as u32,
        utilization_cap: overrides.utilization_cap,
        capabilities: overrides.capabilities.clone(),
        gpus: overrides.gpus.look(),
        nics: nics(Path::new("/sys/class/net")),
        cordoned: overrides.cordoned,
        memory_bytes: overrides.memory_bytes.unwrap_or_else(memory),
        disks: disk(&overrides.state_dir).into_iter().collect(),
        architecture: if cfg!(target_arch = "aarch64") {
            Architecture::Aarch64
        } else {
            Architecture::X86_64
        },
        az: overrides.az.clone(),
        cpus,
        ..NodeInventory::default()
    }
}

/// The file system that holds a path.
pub(crate) fn disk(path: &Path) -> io::Result<Disk> {
    let room = room(path)?;
    Ok(Disk {
        free: room.free / DISK_STEP * DISK_STEP,
        ..room
    })
}

/// As [`disk`], to the byte. The size is what is used and what may be: what a file system keeps back
/// from everybody is no part of it (WORK-30).
pub(crate) fn room(path: &Path) -> io::Result<Disk> {
    let stat = rustix::fs::statvfs(path)?;
    let kept_back = stat.f_bfree.saturating_sub(stat.f_bavail);
    Ok(Disk {
        path: path.display().to_string(),
        total: stat.f_blocks.saturating_sub(kept_back) * stat.f_frsize,
        free: stat.f_bavail * stat.f_frsize,
    })
}

/// How busy the machine is now.
pub(crate) fn load() -> Load {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let vcpus = text
        .split_ascii_whitespace()
        .next()
        .and_then(|one| one.parse().ok());
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    };
    let used = kib("MemTotal:").saturating_sub(kib("MemAvailable:"));
    Load {
        vcpus: vcpus.unwrap_or_default(),
        memory_bytes: used << 10,
    }
}

/// The machine's own id, which stays over reboots; none where the system keeps none.
pub(crate) fn machine_id() -> Option<String> {
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn memory() -> u64 {
    let kinds = sysinfo::MemoryRefreshKind::nothing().with_ram();
    let refresh = sysinfo::RefreshKind::nothing().with_memory(kinds);
    let Ok(system) = sysinfo::System::new_with_specifics(refresh) else {
        return 0;
    };
    let total = system.total_memory();
    let cgroup = system.cgroup_limits().map(|limits| limits.total_memory);
    cgroup
        .filter(|limit| *limit > 0)
        .map_or(total, |limit| limit.min(total))
}

fn allowed_cpus() -> BTreeSet<u32> {
    let Ok(set) = sched_getaffinity(None) else {
        return BTreeSet::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .map(|cpu| cpu as u32)
        .collect()
}

/// Processors with their cores and NUMA nodes, as the kernel shows them below `system`.
fn cpus(system: &Path, allowed: &BTreeSet<u32>) -> Vec<Cpu> {
    allowed
        .iter()
        .map(|id| {
            let dir = system.join(format!("cpu/cpu{id}"));
            let number =
                |name: &str| -> Option<u32> { read_number(&dir.join("topology").join(name)) };
            let siblings = fs::read_to_string(dir.join("topology/thread_siblings_list"));
            let first = siblings.ok().and_then(|list| first_of_list(&list));
            let numa = fs::read_dir(&dir)
                .into_iter()
                .flatten()
                .flatten()
                .find_map(|entry| {
                    entry
                        .file_name()
                        .to_str()?
                        .strip_prefix("node")?
                        .parse()
                        .ok()
                });
            Cpu {
                id: *id,
                core: number("core_id").unwrap_or(*id),
                numa: numa.unwrap_or_default(),
                sibling_of: first.unwrap_or(*id),
            }
        })
        .collect()
}

/// The first number of a list such as `0,4` or `2-3`.
fn first_of_list(list: &str) -> Option<u32> {
    list.trim().split([',', '-']).next()?.parse().ok()
}

/// Cards with a device behind them; bridges, tunnels and the loopback are none.
fn nics(class: &Path) -> Vec<Nic> {
    let networks = sysinfo::Networks::new_with_refreshed_list().ok();
    let mut nics: Vec<Nic> = fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| {
            let (name, path) = (entry.file_name().into_string().ok()?, entry.path());
            let speed: Option<u64> = read_number(&path.join("speed"));
            let clocks = fs::read_dir(path.join("device/ptp"))
                .into_iter()
                .flatten()
                .flatten();
            let total: u32 = read_number(&path.join("device/sriov_totalvfs")).unwrap_or_default();
            let used: u32 = read_number(&path.join("device/sriov_numvfs")).unwrap_or_default();
            let mut addresses: Vec<String> = networks
                .iter()
                .flat_map(|networks| networks.iter())
                .filter(|(other, _)| **other == *name)
                .flat_map(|(_, network)| network.ip_networks())
                .map(|network| network.addr.to_string())
                .collect();
            addresses.sort();
            Some(Nic {
                speed_mbps: speed.unwrap_or_default(),
                addresses,
                ptp_clock: clocks
                    .map(|c| c.file_name().to_string_lossy().into_owned())
                    .next()
                    .unwrap_or_default(),
                sriov_free: total.saturating_sub(used),
                name,
            })
        })
        .collect();
    nics.sort_by(|a, b| a.name.cmp(&b.name));
    nics
}

fn read_number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(state_dir: &Path) -> Overrides {
        Overrides {
            vcpus: None,
            memory_bytes: None,
            capabilities: Vec::new(),
            utilization_cap: 1.0,
            az: "rack-1".to_owned(),
            cordoned: false,
            gpus: Gpus::new(),
            state_dir: state_dir.to_owned(),
        }
    }

    // spec: WORK-40
    #[test]
    fn the_real_machine_has_processors_memory_and_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let picture = survey(&overrides(dir.path()));
        assert!(picture.total_capacity >= 1.0 && picture.total_cores >= 1);
        assert!(picture.cpus.len() >= picture.total_cores as usize);
        assert!(picture.memory_bytes > 64 << 20);
        assert!(picture.disks[0].total > picture.disks[0].free);
        assert_eq!(picture.az, "rack-1");
        assert!(picture.nics.iter().all(|nic| nic.name != "lo"));
    }

    // spec: WORK-40
    #[test]
    fn settings_override_what_the_machine_says() {
        let dir = tempfile::tempdir().unwrap();
        let capability = Capability {
            name: "sdi".to_owned(),
            count: 2,
            ..Capability::default()
        };
        let picture = survey(&Overrides {
            vcpus: Some(2.5),
            memory_bytes: Some(1 << 30),
            capabilities: vec![capability.clone()],
            utilization_cap: 0.5,
            cordoned: true,
            ..overrides(dir.path())
        });
        assert_eq!(
            (picture.total_capacity, picture.memory_bytes),
            (2.5, 1 << 30)
        );
        assert_eq!(
            (picture.capabilities, picture.utilization_cap),
            (vec![capability], 0.5)
        );
        assert!(picture.cordoned);
    }

    // spec: WORK-40
    #[test]
    fn siblings_and_numa_nodes_are_read_from_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        for (id, core, siblings, node) in [(0, 0, "0,2", 0), (1, 1, "1,3", 1), (2, 0, "0,2", 0)] {
            let cpu = dir.path().join(format!("cpu/cpu{id}"));
            fs::create_dir_all(cpu.join("topology")).unwrap();
            fs::create_dir(cpu.join(format!("node{node}"))).unwrap();
            fs::write(cpu.join("topology/core_id"), format!("{core}\n")).unwrap();
            fs::write(
                cpu.join("topology/thread_siblings_list"),
                format!("{siblings}\n"),
            )
            .unwrap();
        }
        let found = cpus(dir.path(), &BTreeSet::from([0, 1, 2]));
        let expected =
            [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 0)].map(|(id, core, numa, sibling_of)| Cpu {
                id,
                core,
                numa,
                sibling_of,
            });
        assert_eq!(found, expected);
    }
}
