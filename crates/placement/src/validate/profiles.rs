//! What a node of a pool may look like: the shapes it buys and the machines that stand in it
//! (VALID-04). Raw offers, whatever is reserved on them now.

use greenroom_types::inventory::{Capability, Disk};
use greenroom_types::node::NodeState;
use greenroom_types::pool::{PackingStrategy, Pool};

use super::Code;
use crate::fleet::Fleet;
use crate::gpu;
use crate::needs::{GpuNeed, Needs};
use crate::offer::Offer;
use crate::reserved::Reserved;

/// So many nodes are named in one message.
const NAMED_MAX: usize = 5;

/// A pool in which a copy is placed, and what a node of it may look like (VALID-04).
pub(super) struct Profiles<'a> {
    pub(super) pool: &'a Pool,
    offers: Vec<Offer>,
    fixed_nodes: usize,
    /// Nodes whose disk is nearly full, with what is free.
    low_disks: Vec<String>,
}

// === impl Profiles ===

impl<'a> Profiles<'a> {
    pub(super) fn of(fleet: &Fleet, pool: &'a Pool) -> Self {
        let mut offers: Vec<Offer> = pool
            .tiers
            .iter()
            .filter(|tier| tier.is_elastic())
            .flat_map(|tier| tier.candidate_instance_types.iter().map(Offer::of_shape))
            .collect();
        let mut fixed_nodes = 0;
        let mut low_disks = Vec::new();
        if let Some(index) = fleet.pool_index(&pool.name) {
            for at in (0..pool.tiers.len()).filter(|&at| !pool.tiers[at].is_elastic()) {
                for node in fleet.tier_members(index, at) {
                    let gone = matches!(
                        node.condition.state,
                        NodeState::Stopping | NodeState::Stopped
                    );
                    if node.inventory().is_some() && !gone {
                        fixed_nodes += 1;
                        offers.push(node.offer.clone());
                        if node.is_disk_low() {
                            let room = node.low_disk().map(Disk::room);
                            let room = room.map_or_else(String::new, |room| format!(" {room}"));
                            low_disks.push(format!("{}{room}", node.id));
                        }
                    }
                }
            }
        }
        Self {
            pool,
            offers,
            fixed_nodes,
            low_disks,
        }
    }

    /// Where no node of the pool has disk for new work and none can be bought: each, with what is
    /// free.
    pub(super) fn all_disks_low(&self) -> Option<String> {
        let all = !self.low_disks.is_empty() && self.low_disks.len() == self.fixed_nodes;
        let named = &self.low_disks[..self.low_disks.len().min(NAMED_MAX)];
        let more = self.low_disks.len() - named.len();
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        (all && !self.is_elastic()).then(|| format!("{}{rest}", named.join("; ")))
    }

    pub(super) fn is_elastic(&self) -> bool {
        self.pool.tiers.iter().any(|tier| tier.is_elastic())
    }

    /// Most nodes that the pool can have; none: no limit.
    pub(super) fn most_nodes(&self) -> Option<usize> {
        self.pool
            .tiers
            .iter()
            .filter(|tier| tier.is_elastic())
            .try_fold(self.fixed_nodes, |sum, tier| {
                Some(sum + tier.max_nodes? as usize)
            })
    }

    /// True when every node of the pool would have these capabilities.
    pub(super) fn all_offer(&self, needs: &[Capability]) -> bool {
        let empty = Reserved::default();
        needs.is_empty()
            || (!self.offers.is_empty()
                && self
                    .offers
                    .iter()
                    .all(|offer| offer.missing_capability(&empty, needs).is_none()))
    }

    /// The first part of the needs that no profile with all the parts before it offers, with its
    /// field and the need in words.
    pub(super) fn miss(&self, needs: &Needs) -> Option<(Code, &'static str, String)> {
        let empty = Reserved::default();
        let mut left: Vec<&Offer> = self.offers.iter().collect();
        left.retain(|offer| offer.has_capacity(&empty, needs.capacity));
        if left.is_empty() {
            let needed = format!("needs {} vCPU", needs.capacity);
            return Some((
                Code::CapacityUnsatisfiable,
                "requirements.requiredCapacity",
                needed,
            ));
        }
        left.retain(|offer| needs.run_on(offer.runtime));
        if left.is_empty() {
            let needed = format!("needs a node that runs {}", needs.runtime_words());
            return Some((Code::RuntimeUnsatisfiable, "launch.services", needed));
        }
        left.retain(|offer| offer.cores >= needs.cores);
        if left.is_empty() {
            let needed = format!("needs {} cores", needs.cores);
            return Some((
                Code::CoresUnsatisfiable,
                "requirements.requiredCores",
                needed,
            ));
        }
        left.retain(|offer| {
            offer
                .missing_capability(&empty, &needs.capabilities)
                .is_none()
        });
        if left.is_empty() {
            let names: Vec<String> = needs
                .capabilities
                .iter()
                .map(|need| format!("{} x {}", need.count, need.name))
                .collect();
            let needed = format!("needs {}", names.join(", "));
            return Some((
                Code::CapabilityUnsatisfiable,
                "requirements.requiredCapabilities",
                needed,
            ));
        }
        left.retain(|offer| {
            let strategy = PackingStrategy::Binpack;
            gpu::choose(&offer.devices, &empty, None, &needs.gpus, strategy).is_ok()
        });
        if left.is_empty() {
            let shares: Vec<String> = needs.gpus.iter().map(GpuNeed::words).collect();
            let needed = format!("needs {}", shares.join(", "));
            return Some((
                Code::GpuUnsatisfiable,
                "requirements.requiredGpuCapacity",
                needed,
            ));
        }
        None
    }

    /// What the pool has instead.
    pub(super) fn describe(&self, code: Code, needs: &Needs) -> String {
        let pool = &self.pool.name;
        let most = |of: fn(&Offer) -> f64| self.offers.iter().map(of).fold(0.0, f64::max);
        if self.offers.is_empty() {
            return format!("pool {pool} has no node yet");
        }
        match code {
            Code::CapacityUnsatisfiable => {
                format!(
                    "the largest node of pool {pool} has {}",
                    most(|offer| offer.capacity)
                )
            }
            Code::RuntimeUnsatisfiable => {
                let other = if needs.containers {
                    "processes (no container engine is used there)"
                } else {
                    "containers (each service must name an image)"
                };
                format!("the nodes of pool {pool} that are large enough run {other}")
            }
            _ => format!(
                "no node of pool {pool} that has {} vCPU free offers that as well",
                needs.capacity
            ),
        }
    }
}
