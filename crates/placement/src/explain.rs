//! The values behind a filter reason, for a trace. Only made when someone asks for one, so nothing
//! here needs to be cheap.

use greenroom_types::inventory::RuntimeKind;

use crate::filter::{Case, DOMAINS, Holder};
use crate::gpu;
use crate::node::Node;
use crate::trace::{Detail, Reason};

pub(crate) const fn runtime_words(kind: RuntimeKind) -> &'static str {
    match kind {
        RuntimeKind::Containers => "containers",
        RuntimeKind::Processes => "processes",
    }
}

// === impl Case ===

impl Case<'_> {
    /// The values behind a reason.
    pub(crate) fn detail(&self, node: &Node, reason: Reason) -> Option<Detail> {
        match reason {
            Reason::NotTargetNode
            | Reason::WrongPool
            | Reason::WrongTier
            | Reason::Unreachable
            | Reason::Cordoned
            | Reason::RuntimeUnavailable => None,
            Reason::DiskNearlyFull => node
                .low_disk()
                .map(|disk| Detail::Disk { room: disk.room() }),
            Reason::WrongRuntime => Some(Detail::Runtime {
                needed: self.needs.runtime_words().to_owned(),
                runs: runtime_words(node.offer.runtime?).to_owned(),
            }),
            Reason::RecoveryExcluded => self.exclusion(node).map(|why| Detail::Excluded { why }),
            Reason::ReservedExclusively => node.unconsumed_spare().map(|spare| Detail::Templates {
                names: spare.reserved_for.iter().map(ToString::to_string).collect(),
            }),
            Reason::InsufficientCapabilities => {
                let reserved = self.reserved_on(node);
                let need = node
                    .offer
                    .missing_capability(&reserved, &self.needs.capabilities)?;
                let same = self
                    .needs
                    .capabilities
                    .iter()
                    .filter(|it| it.name == need.name);
                Some(Detail::Capability {
                    name: need.name.clone(),
                    needed: same.map(|it| u64::from(it.count)).sum(),
                    free: node.offer.free_capability(&reserved, &need.name),
                    attributes: need
                        .attributes
                        .iter()
                        .map(|(key, value)| format!("{key}={value}"))
                        .collect(),
                })
            }
            Reason::InsufficientCapacity => Some(Detail::Capacity {
                needed: self.needs.capacity,
                free: (node.offer.capacity - self.reserved_on(node).capacity).max(0.0),
            }),
            Reason::InsufficientCores => Some(Detail::Cores {
                needed: self.needs.cores,
                free: node
                    .offer
                    .cores
                    .saturating_sub(self.reserved_on(node).cores),
            }),
            Reason::HostPortConflict => {
                let (port, holder) = self.port_clash(node, &self.reserved_on(node))?;
                let holder = match holder {
                    Holder::Job(job_id) => format!("job {job_id}"),
                    Holder::Hold => "a job that is still to come".to_owned(),
                    Holder::Service(at) => {
                        format!("node service {}", self.fleet.service_ports()[at].service_id)
                    }
                    Holder::Group => "another job of its group".to_owned(),
                };
                Some(Detail::Port { port, holder })
            }
            Reason::NoGpuFit => {
                let need = self.own_gpu.or_else(|| self.rest_gpus.first())?;
                let reserved = self.reserved_on(node);
                Some(Detail::Gpu {
                    needed: need.share,
                    model: need.model.clone(),
                    free: gpu::largest_free(&node.offer.devices, &reserved, &need.model),
                })
            }
            Reason::Exclusivity => {
                let (job_id, _) = self.exclusivity_clash(node)?;
                Some(Detail::Job {
                    job: job_id.to_string(),
                })
            }
            Reason::IntraReplicaRule => {
                let copy = self
                    .fleet
                    .copy_state(&self.me.bundle_id, self.me.replica_index);
                let peers = copy.map_or(&[][..], |copy| copy.members.as_slice());
                let apart = peers.iter().find(|peer| {
                    peer.slot == node.slot
                        && peer.job_id != self.job_id
                        && self
                            .plan
                            .group_index(&peer.name)
                            .is_some_and(|theirs| self.group.apart.contains(&theirs))
                });
                let name = apart.map(|peer| &peer.name).or_else(|| {
                    let elsewhere = peers.iter().find(|peer| {
                        peer.slot != node.slot
                            && peer.job_id != self.job_id
                            && self.plan.group_index(&peer.name) == Some(self.group_index)
                    });
                    elsewhere.map(|peer| &peer.name)
                });
                let name = name.or_else(|| self.foreign_apart(node).map(|job| &job.job_name))?;
                Some(Detail::Job {
                    job: name.to_string(),
                })
            }
            Reason::IntraReplicaAz => {
                let mut wanted: Vec<String> = self.azs.iter().map(|&az| az.to_owned()).collect();
                wanted.sort();
                wanted.dedup();
                Some(Detail::Az {
                    az: node.az.clone().unwrap_or_default(),
                    wanted,
                })
            }
            Reason::ForbiddenDomain => Some(Detail::Domains {
                violated: DOMAINS
                    .into_iter()
                    .zip(self.violations(node))
                    .filter_map(|(domain, violated)| violated.then_some(domain))
                    .collect(),
            }),
        }
    }
}
