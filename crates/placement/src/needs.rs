//! What a job, or a whole co-located group, needs of one node, in a form that can be summed.

use std::collections::BTreeSet;

use greenroom_types::bundle::{BundleJob, Requirements};
use greenroom_types::inventory::{Capability, RuntimeKind};
use greenroom_types::job::Container;
use serde::{Deserialize, Serialize};

use crate::port::Port;

/// A share of one GPU device (GPU-01).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuNeed {
    /// Share, 1.0 for a whole device.
    pub share: f64,
    /// Model that the device must be; empty: any.
    pub model: String,
}

/// Needs of one job, or the sum over a group (INTRA-04).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    /// vCPUs.
    pub capacity: f64,
    /// Pinned cores.
    pub cores: u64,
    /// Capabilities; a name may stand here several times.
    pub capabilities: Vec<Capability>,
    /// Host ports.
    pub ports: BTreeSet<Port>,
    /// One entry per job that asks for a GPU share, largest first.
    pub gpus: Vec<GpuNeed>,
    /// A service names an image, or there is none and the media runtime is all (PLACE-35).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub containers: bool,
    /// A service names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub processes: bool,
}

/// A number that no valid manifest holds (negative, NaN) counts as nothing; infinite never fits.
fn amount(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

// === impl GpuNeed ===

impl GpuNeed {
    /// The need as people read it.
    pub(crate) fn words(&self) -> String {
        let model = if self.model.is_empty() {
            "GPU"
        } else {
            &self.model
        };
        if self.share > 1.0 {
            return format!("a share of {} on one {model}", self.share);
        }
        format!("{} of a {model}", self.share)
    }
}

// === impl Needs ===

impl Needs {
    /// Needs of a job of a bundle. One without services is the media runtime alone, which is an image
    /// (JOB-05).
    pub fn of_job(job: &BundleJob) -> Self {
        let services = &job.launch.services;
        let is_image = |container: &Container| matches!(container, Container::Docker(_));
        Self {
            containers: services.is_empty() || services.iter().any(|it| is_image(&it.container)),
            processes: services.iter().any(|it| !is_image(&it.container)),
            ..Self::of(&job.requirements)
        }
    }

    /// Whether a node with this runtime runs it, as far as that is known (PLACE-35).
    pub fn run_on(&self, runtime: Option<RuntimeKind>) -> bool {
        match runtime {
            Some(RuntimeKind::Containers) => !self.processes,
            Some(RuntimeKind::Processes) => !self.containers,
            None => true,
        }
    }

    /// What of it only another kind of node runs.
    pub(crate) const fn runtime_words(&self) -> &'static str {
        match (self.containers, self.processes) {
            (true, true) => "containers and processes",
            (true, false) => "containers",
            (false, _) => "processes",
        }
    }

    /// What requirements ask for. Malformed port tokens claim nothing: VALID-08 reports them.
    pub fn of(requirements: &Requirements) -> Self {
        let share = amount(requirements.required_gpu_capacity);
        Self {
            capacity: amount(requirements.required_capacity),
            cores: requirements.required_cores.into(),
            capabilities: requirements.required_capabilities.clone(),
            ports: requirements
                .required_host_ports
                .iter()
                .filter_map(|token| token.parse().ok())
                .collect(),
            gpus: if share > 0.0 {
                vec![GpuNeed {
                    share,
                    model: requirements.required_gpu_model.clone(),
                }]
            } else {
                Vec::new()
            },
            containers: false,
            processes: false,
        }
    }

    /// The larger of two statements of one job's needs, each field by itself.
    pub(crate) fn raised_to(&self, other: &Self) -> Self {
        let mut raised = self.clone();
        raised.capacity = raised.capacity.max(other.capacity);
        raised.cores = raised.cores.max(other.cores);
        for wanted in &other.capabilities {
            let count = |needs: &Self| -> u32 {
                let named = needs.capabilities.iter();
                named
                    .filter(|it| it.name == wanted.name)
                    .map(|it| it.count)
                    .sum()
            };
            let (here, there) = (count(&raised), count(other));
            if there > here {
                let mut more = wanted.clone();
                more.count = there - here;
                raised.capabilities.push(more);
            }
        }
        raised.ports.extend(other.ports.iter().copied());
        for wanted in &other.gpus {
            let same = raised.gpus.iter_mut().find(|it| it.model == wanted.model);
            match same {
                Some(here) => here.share = here.share.max(wanted.share),
                // The old model is in use until the new start, which wants the new one.
                None => raised.gpus.push(wanted.clone()),
            }
        }
        raised.gpus.sort_by(|a, b| b.share.total_cmp(&a.share));
        raised
    }

    /// Capacity and cores, when nothing else is needed.
    pub(crate) fn plain(&self) -> Option<(f64, u64)> {
        let rest = self.capabilities.is_empty() && self.ports.is_empty() && self.gpus.is_empty();
        rest.then_some((self.capacity, self.cores))
    }

    /// Adds the needs of another job of the group.
    pub fn add(&mut self, other: &Self) {
        self.capacity += other.capacity;
        self.cores += other.cores;
        self.capabilities.extend(other.capabilities.iter().cloned());
        self.ports.extend(other.ports.iter().copied());
        self.gpus.extend(other.gpus.iter().cloned());
        self.gpus.sort_by(|a, b| b.share.total_cmp(&a.share));
        self.containers |= other.containers;
        self.processes |= other.processes;
    }
}
