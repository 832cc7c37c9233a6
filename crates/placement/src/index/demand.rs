//! Demands that many jobs make, each worked out once per node instead of once per decision: does
//! this node have this list of capabilities free, a device with this share, this port?
//!
//! A demand is a bit. Bundles that the fleet knows hold theirs; one that nobody holds gives its bit
//! away when another needs it. When all bits are held, further demands have none: such jobs are
//! placed just as rightly, only with more nodes looked at.

use greenroom_types::SHARE_TOLERANCE;
use greenroom_types::inventory::Capability;

use crate::needs::{GpuNeed, Needs};
use crate::node::Node;
use crate::port::Port;

/// Nothing is bound to the node.
pub(crate) const EMPTY: u64 = 1 << 63;
/// No exclusive job is bound to the node.
pub(crate) const SHARED: u64 = 1 << 62;
const MARKS: usize = 62;
const PORTS: usize = 64;

/// The bits of some demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) marks: u64,
    pub(crate) ports: u64,
}

/// The demands that have a bit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    marks: Vec<Held<Demand>>,
    ports: Vec<Held<Port>>,
}

#[derive(Clone, Debug)]
struct Held<T> {
    what: T,
    holders: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Demand {
    Capabilities(Vec<Capability>),
    Gpu(GpuNeed),
}

/// Position of a demand in the table, and whether it is new there.
fn hold<T: PartialEq>(table: &mut Vec<Held<T>>, room: usize, what: T) -> Option<(usize, bool)> {
    if let Some(at) = table.iter().position(|held| held.what == what) {
        table[at].holders += 1;
        return Some((at, false));
    }
    let held = Held { what, holders: 1 };
    if table.len() < room {
        table.push(held);
        return Some((table.len() - 1, true));
    }
    let at = table.iter().position(|held| held.holders == 0)?;
    table[at] = held;
    Some((at, true))
}

fn release<T>(table: &mut [Held<T>], mut bits: u64) {
    while bits != 0 {
        let at = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        table[at].holders -= 1;
    }
}

// === impl Demands ===

impl Demands {
    /// Holds bits for these needs; true when one of them is new, so that no node has it worked out.
    pub(crate) fn hold(&mut self, needs: &Needs) -> (Mask, bool) {
        let mut mask = Mask::default();
        let mut is_new = false;
        let mut mark = |what: Demand| {
            let Some((at, new)) = hold(&mut self.marks, MARKS, what) else {
                return;
            };
            if mask.marks >> at & 1 == 1 {
                // A group that asks twice for the same holds it once.
                self.marks[at].holders -= 1;
            }
            mask.marks |= 1 << at;
            is_new |= new;
        };
        // A count of none asks for nothing that is worth a bit.
        if needs
            .capabilities
            .iter()
            .any(|need| need.count > 0 || !need.attributes.is_empty())
        {
            mark(Demand::Capabilities(needs.capabilities.clone()));
        }
        for need in &needs.gpus {
            mark(Demand::Gpu(need.clone()));
        }
        for &port in &needs.ports {
            if let Some((at, new)) = hold(&mut self.ports, PORTS, port) {
                mask.ports |= 1 << at;
                is_new |= new;
            }
        }
        (mask, is_new)
    }

    /// Gives up what [`Demands::hold`] gave.
    pub(crate) fn release(&mut self, mask: Mask) {
        release(&mut self.marks, mask.marks);
        release(&mut self.ports, mask.ports);
    }

    /// What a node meets. Ports without a bit count as free.
    pub(crate) fn met_by(&self, node: &Node) -> Mask {
        let mut met = Mask {
            marks: 0,
            ports: u64::MAX,
        };
        if node.bound.is_empty() {
            met.marks |= EMPTY;
        }
        if node.bound.iter().all(|bound| !bound.exclusive) {
            met.marks |= SHARED;
        }
        let (offer, reserved) = (&node.offer, &node.reserved);
        if !(offer.capabilities.is_empty() && offer.devices.is_empty()) {
            for (at, held) in self.marks.iter().enumerate() {
                let is_met = match &held.what {
                    Demand::Capabilities(needs) => {
                        !offer.capabilities.is_empty()
                            && offer.missing_capability(reserved, needs).is_none()
                    }
                    Demand::Gpu(need) => offer.devices.iter().any(|device| {
                        device.is_model(&need.model)
                            && need.share
                                <= device.capacity - reserved.gpu(device.index) + SHARE_TOLERANCE
                    }),
                };
                met.marks |= u64::from(is_met) << at;
            }
        }
        let service_ports = node.service_ports.iter().map(|(port, _)| port);
        for port in reserved.ports.iter().chain(service_ports) {
            if let Some(at) = self.ports.iter().position(|held| held.what == *port) {
                met.ports &= !(1 << at);
            }
        }
        met
    }
}
