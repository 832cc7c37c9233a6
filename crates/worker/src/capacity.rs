//! Whether an instance has room on this machine, and what it then holds (WORK-30 to WORK-32).
//!
//! One owner calls [`Room::admit`] for one start after the other: that is the lock for all starts.
//! Amounts are summed over everything accepted and not yet removed. Ports are found in `ports.rs`,
//! the form of a specification is judged in `spec.rs`; this file knows amounts.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::bundle::Requirements;
use greenroom_types::inventory::{Capability, Cpu, Disk, Gpu, NodeInventory};
use greenroom_types::job::Service;
use greenroom_types::node::RejectionCode;
use greenroom_types::{SHARE_TOLERANCE, StartId};
use serde::{Deserialize, Serialize};

use crate::order::{Refusal, StartSpec};
use crate::ports::{Claim, PortProbe, Ports, resolve};

/// What an instance holds from its acceptance to its removal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reservation {
    pub(crate) capacity: f64,
    pub(crate) cores: u32,
    /// CPUs kept for it alone; empty where it pins nothing.
    pub(crate) cpus: Vec<u32>,
    pub(crate) memory_bytes: u64,
    pub(crate) gpu_index: Option<u32>,
    pub(crate) gpu_capacity: f64,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) ports: Ports,
}

/// Everything that is held, by start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    held: BTreeMap<StartId, Reservation>,
}

// === impl Room ===

impl Room {
    /// Finds room for a start, or says what is missing; changes nothing.
    ///
    /// `inherits` names the start whose remains will be gone before this one runs; its ports, cores,
    /// device and amounts may be taken over.
    pub(crate) fn admit(
        &self,
        spec: &StartSpec,
        machine: &NodeInventory,
        inherits: &[StartId],
        probe: &mut dyn PortProbe,
    ) -> Result<Reservation, Refusal> {
        let need = &spec.requirements;
        let services = spec.all_services();
        let others = || {
            self.held
                .iter()
                .filter(|(id, _)| !inherits.contains(id))
                .map(|(_, r)| r)
        };
        if machine.cordoned {
            return refuse(RejectionCode::Cordoned, "this node takes no new work");
        }
        let others: Vec<&Reservation> = others().collect();
        check_capabilities(need, machine, &others)?;
        check_amounts(need, machine, &others)?;
        let gpu_index = pick_gpu(spec, machine, &others)?;
        let cpus = pick_cpus(need, &services, machine, gpu_index, &others)?;
        let taken: Vec<Claim> = others
            .iter()
            .flat_map(|r| r.ports.claims())
            .cloned()
            .collect();
        let inherited: Vec<Claim> = inherits
            .iter()
            .filter_map(|id| self.held.get(id))
            .flat_map(|r| r.ports.claims())
            .cloned()
            .collect();
        let ports = resolve(
            &services,
            &need.required_host_ports,
            &taken,
            &inherited,
            probe,
        )?;
        if let Some(disk) = machine.disks.first() {
            check_disk(disk, machine.disk_low)?;
        }
        Ok(Reservation {
            capacity: need.required_capacity,
            cores: need.required_cores,
            cpus,
            memory_bytes: need.memory_bytes,
            gpu_index,
            gpu_capacity: need.required_gpu_capacity,
            capabilities: need.required_capabilities.clone(),
            ports,
        })
    }

    pub(crate) fn hold(&mut self, start_id: StartId, reservation: Reservation) {
        self.held.insert(start_id, reservation);
    }

    pub(crate) fn release(&mut self, start_id: &StartId) {
        self.held.remove(start_id);
    }

    pub(crate) fn of(&self, start_id: &StartId) -> Option<&Reservation> {
        self.held.get(start_id)
    }

    /// Writes into a picture of the machine what is held of it.
    pub(crate) fn fill(&self, picture: &mut NodeInventory) {
        let held = || self.held.values();
        picture.reserved_capacity = held().map(|r| r.capacity).sum();
        picture.reserved_cores = held().map(|r| r.cores).sum();
        for gpu in &mut picture.gpus {
            gpu.reserved_capacity = shares_on(gpu.index, held());
        }
        let mut reserved: BTreeMap<&str, u32> = BTreeMap::new();
        for capability in held().flat_map(|r| &r.capabilities) {
            *reserved.entry(&capability.name).or_default() += capability.count;
        }
        picture.reserved_capabilities = reserved
            .into_iter()
            .map(|(name, count)| Capability {
                name: name.to_owned(),
                count,
                ..Capability::default()
            })
            .collect();
    }
}

/// Whether the machine keeps its free disk (WORK-30); asked again once the images are there. One
/// that is said to be low refuses until it is said to be low no more (WORK-36).
pub(crate) fn check_disk(disk: &Disk, was_low: bool) -> Result<(), Refusal> {
    if !disk.is_low(was_low) {
        return Ok(());
    }
    let detail = format!("disk nearly full: {} has {}", disk.path, disk.room());
    refuse(RejectionCode::Disk, detail)
}

fn refuse<T>(code: RejectionCode, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(code, detail))
}

fn check_capabilities(
    need: &Requirements,
    machine: &NodeInventory,
    others: &[&Reservation],
) -> Result<(), Refusal> {
    let sum = |capabilities: &mut dyn Iterator<Item = &Capability>, name: &str| -> u64 {
        capabilities
            .filter(|c| c.name == name)
            .map(|c| u64::from(c.count))
            .sum()
    };
    for wanted in &need.required_capabilities {
        let name = &wanted.name;
        let fits = |offered: &&Capability| {
            offered.name == *name
                && wanted
                    .attributes
                    .iter()
                    .all(|(k, v)| offered.attributes.get(k) == Some(v))
        };
        if !machine
            .capabilities
            .iter()
            .chain(&machine.provided)
            .any(|c| fits(&c))
        {
            let detail =
                format!("this node has no capability {name} with the attributes asked for");
            return refuse(RejectionCode::Capability, detail);
        }
        let offered = sum(
            &mut machine.capabilities.iter().chain(&machine.provided),
            name,
        );
        let taken = sum(&mut others.iter().flat_map(|r| &r.capabilities), name);
        let asked = sum(&mut need.required_capabilities.iter(), name);
        if taken + asked > offered {
            let detail = format!("{asked} of {name} are asked for, {taken} of {offered} are taken");
            return refuse(RejectionCode::Capability, detail);
        }
    }
    Ok(())
}

fn check_amounts(
    need: &Requirements,
    machine: &NodeInventory,
    others: &[&Reservation],
) -> Result<(), Refusal> {
    let offered = machine.total_capacity * machine.utilization_cap;
    let taken: f64 = others.iter().map(|r| r.capacity).sum();
    let asked = need.required_capacity;
    if asked > 0.0 && asked > offered - taken + SHARE_TOLERANCE {
        let detail = format!("{asked} vCPU are asked for, {taken} of {offered} are taken");
        return refuse(RejectionCode::Capacity, detail);
    }
    let taken: u64 = others.iter().map(|r| r.memory_bytes).sum();
    let (asked, offered) = (need.memory_bytes, machine.memory_bytes);
    if asked > 0 && asked > offered.saturating_sub(taken) {
        let detail =
            format!("{asked} bytes of memory are asked for, {taken} of {offered} are taken");
        return refuse(RejectionCode::Capacity, detail);
    }
    let taken: u32 = others.iter().map(|r| r.cores).sum();
    let (asked, offered) = (need.required_cores, machine.total_cores);
    if asked > 0 && asked > offered.saturating_sub(taken) {
        let detail = format!("{asked} cores are asked for, {taken} of {offered} are taken");
        return refuse(RejectionCode::Cores, detail);
    }
    Ok(())
}

fn shares_on<'a>(index: u32, held: impl Iterator<Item = &'a Reservation>) -> f64 {
    held.filter(|r| r.gpu_index == Some(index))
        .map(|r| r.gpu_capacity)
        .sum()
}

/// The device of a start: the one that the order names, else the fullest that fits (GPU-02).
fn pick_gpu(
    spec: &StartSpec,
    machine: &NodeInventory,
    others: &[&Reservation],
) -> Result<Option<u32>, Refusal> {
    let need = &spec.requirements;
    let share = need.required_gpu_capacity;
    let uses_one = share > 0.0
        || !need.required_gpu_model.is_empty()
        || spec
            .all_services()
            .iter()
            .any(|service| service.parameters.gpu);
    let named = match spec.gpu_index {
        Some(index) if index < 0 => return Ok(None),
        Some(index) => u32::try_from(index).ok(),
        None if !uses_one => return Ok(None),
        None => None,
    };
    let free = |gpu: &Gpu| gpu.capacity - shares_on(gpu.index, others.iter().copied());
    let model = &need.required_gpu_model;
    let fitting = machine
        .gpus
        .iter()
        .filter(|gpu| named.is_none_or(|index| gpu.index == index))
        .filter(|gpu| model.is_empty() || gpu.model == *model)
        .filter(|gpu| share <= free(gpu) + SHARE_TOLERANCE)
        .min_by(|a, b| free(a).total_cmp(&free(b)).then(a.index.cmp(&b.index)));
    match fitting {
        Some(gpu) => Ok(Some(gpu.index)),
        None => {
            let which = named.map_or_else(
                || "no GPU".to_owned(),
                |i| format!("GPU {i} does not exist or"),
            );
            let of = if model.is_empty() {
                String::new()
            } else {
                format!(" and is a {model}")
            };
            refuse(
                RejectionCode::Gpu,
                format!("{which} has not {share} of its share free{of}"),
            )
        }
    }
}

/// The CPUs kept for a start: what its services name, or whole free cores (WORK-16).
fn pick_cpus(
    need: &Requirements,
    services: &[Service],
    machine: &NodeInventory,
    gpu_index: Option<u32>,
    others: &[&Reservation],
) -> Result<Vec<u32>, Refusal> {
    let kept: BTreeSet<u32> = others.iter().flat_map(|r| r.cpus.iter().copied()).collect();
    let named: BTreeSet<u32> = services
        .iter()
        .flat_map(|service| service.parameters.cpu_set.iter().copied())
        .collect();
    if let Some(cpu) = named
        .iter()
        .find(|id| machine.cpus.iter().all(|cpu| cpu.id != **id))
    {
        return refuse(RejectionCode::Cores, format!("this node has no CPU {cpu}"));
    }
    if !named.is_empty() {
        if need.required_cores > 0
            && let Some(cpu) = named.intersection(&kept).next()
        {
            let detail = format!("CPU {cpu} is kept for another job");
            return refuse(RejectionCode::Cores, detail);
        }
        // Without a core requirement a set pins and keeps nothing from others.
        let keeps = need.required_cores > 0;
        return Ok(if keeps {
            named.into_iter().collect()
        } else {
            Vec::new()
        });
    }
    if need.required_cores == 0 {
        return Ok(Vec::new());
    }
    let near = gpu_index
        .and_then(|index| machine.gpus.iter().find(|gpu| gpu.index == index))
        .and_then(|gpu| u32::try_from(gpu.numa).ok());
    let mut cores: BTreeMap<u32, Vec<&Cpu>> = BTreeMap::new();
    for cpu in &machine.cpus {
        cores.entry(cpu.sibling_of).or_default().push(cpu);
    }
    let mut free: Vec<Vec<&Cpu>> = cores
        .into_values()
        .filter(|siblings| siblings.iter().all(|cpu| !kept.contains(&cpu.id)))
        .collect();
    free.sort_by_key(|siblings| {
        (
            near.is_some_and(|numa| siblings[0].numa != numa),
            siblings[0].id,
        )
    });
    let wanted = need.required_cores as usize;
    if free.len() < wanted {
        let detail = format!(
            "{wanted} whole cores are asked for, {} are free",
            free.len()
        );
        return refuse(RejectionCode::Cores, detail);
    }
    let mut cpus: Vec<u32> = free[..wanted].iter().flatten().map(|cpu| cpu.id).collect();
    cpus.sort_unstable();
    Ok(cpus)
}

#[cfg(test)]
mod tests;
