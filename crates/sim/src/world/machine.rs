//! The machine of a node, and what of it keeps its worker from taking a start, whatever else runs
//! there.

use std::collections::BTreeSet;

use greenroom_ledger::WorkerJob;
use greenroom_types::inventory::{Capability, Disk, Gpu, RUNTIME_UNAVAILABLE, RuntimeKind};
use greenroom_types::job::Container;
use greenroom_types::node::RejectionCode;

/// The hardware of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) capacity: f64,
    pub(crate) cores: u32,
    pub(crate) utilization_cap: f64,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) held_images: BTreeSet<String>,
    pub(crate) az: String,
    pub(crate) cordoned: bool,
    pub(crate) disks: Vec<Disk>,
    /// As the worker last judged them.
    pub(crate) disk_low: bool,
    /// What runs services, as the inventory names it.
    pub(crate) runtime: String,
}

// === impl Machine ===

impl Machine {
    /// Why a node takes no start at all for now, whatever it is. What runs there goes on.
    pub(super) fn closed_objection(&self) -> Option<(RejectionCode, String)> {
        if self.cordoned {
            return Some((RejectionCode::Cordoned, "the node takes no new work".into()));
        }
        if self.runtime == RUNTIME_UNAVAILABLE {
            let text = "the container engine does not answer".to_owned();
            return Some((RejectionCode::Runtime, text));
        }
        None
    }

    /// Why the disk takes no start, if it does not (WORK-36).
    pub(super) fn disk_objection(&self) -> Option<String> {
        let disk = self.disks.first()?;
        let is_low = disk.is_low(self.disk_low);
        is_low.then(|| format!("disk nearly full: {}", disk.room()))
    }

    /// Why services of this kind cannot be run, if they cannot (JOB-05).
    pub(super) fn runtime_objection(&self, job: &WorkerJob) -> Option<String> {
        let kind = RuntimeKind::of(&self.runtime)?;
        let services = &job.job.services;
        let fits = |container: &Container| {
            matches!(container, Container::Docker(_)) == (kind == RuntimeKind::Containers)
        };
        let unfit = services.iter().find(|service| !fits(&service.container))?;
        Some(format!(
            "service {:?} is not for {}",
            unfit.name, self.runtime
        ))
    }

    /// Judges the disk as a worker does (WORK-36).
    pub(super) fn judge_disk(&mut self) {
        let was_low = self.disk_low;
        self.disk_low = self.disks.first().is_some_and(|disk| disk.is_low(was_low));
    }
}
