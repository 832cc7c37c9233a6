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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greenroom_types::inventory::{Gpu, NodeInventory};

    use super::*;

    fn cards(name: &str, count: u32) -> Needs {
        Needs {
            capabilities: vec![Capability {
                name: name.to_owned(),
                count,
                ..Capability::default()
            }],
            ..Needs::default()
        }
    }

    fn shares(shares: &[f64]) -> Needs {
        let gpus = shares.iter().map(|&share| GpuNeed {
            share,
            model: "A10G".to_owned(),
        });
        Needs {
            gpus: gpus.collect(),
            ..Needs::default()
        }
    }

    fn ports(tokens: &[&str]) -> Needs {
        Needs {
            ports: tokens.iter().map(|it| it.parse().unwrap()).collect(),
            ..Needs::default()
        }
    }

    /// With two cards of which one is taken, two devices half taken, and port 80 taken.
    fn node() -> Node {
        let mut node = Node::default();
        let gpu = |index, model: &str| Gpu {
            index,
            capacity: 1.0,
            reserved_capacity: 0.5,
            model: model.to_owned(),
            ..Gpu::default()
        };
        node.take_inventory(Arc::new(NodeInventory {
            capabilities: cards("sdi", 2).capabilities,
            reserved_capabilities: cards("sdi", 1).capabilities,
            gpus: vec![gpu(0, "A10G"), gpu(1, "L4")],
            ..NodeInventory::default()
        }));
        node.sum_up();
        node.reserved.ports = ports(&["80/tcp"]).ports;
        node.service_ports = vec![("81/udp".parse().unwrap(), 0)];
        node
    }

    #[test]
    fn a_node_has_the_bits_of_what_it_meets() {
        let cases = [
            (cards("sdi", 1), true),
            (cards("sdi", 2), false),
            (cards("ndi", 1), false),
            (cards("ndi", 0), true),
            (shares(&[0.5]), true),
            (shares(&[0.5, 0.25]), true),
            (shares(&[0.6]), false),
            (ports(&["81/tcp", "90/tcp"]), true),
            (ports(&["80/tcp"]), false),
            (ports(&["81/udp"]), false),
        ];
        let mut demands = Demands::default();
        let masks: Vec<Mask> = cases.iter().map(|(it, _)| demands.hold(it).0).collect();
        let met = demands.met_by(&node());
        for ((needs, expected), mask) in cases.iter().zip(&masks) {
            let is_met = mask.marks & !met.marks == 0 && mask.ports & !met.ports == 0;
            assert_eq!(is_met, *expected, "{needs:?}");
            let asks_nothing = *needs == cards("ndi", 0);
            assert_eq!(*mask == Mask::default(), asks_nothing, "{needs:?}");
        }
        let bare = demands.met_by(&Node::default());
        assert_eq!(
            bare.marks,
            0b11 << MARKS,
            "empty, and shared with nobody exclusive"
        );
        assert_eq!(bare.ports, u64::MAX);
    }

    #[test]
    fn a_bit_is_held_by_all_that_ask_for_it_and_given_away_when_nobody_does() {
        let mut demands = Demands::default();
        demands.hold(&cards("sdi", 1));
        // One group asks for one share twice, and so does another.
        let twice = shares(&[0.5, 0.5]);
        let (mask, is_new) = demands.hold(&twice);
        assert_eq!((mask.marks, is_new), (2, true));
        assert_eq!(demands.hold(&twice), (mask, false));
        let (_, is_new) = demands.hold(&ports(&["1/tcp"]));
        assert!(is_new);
        for count in 2..MARKS as u32 {
            let (mask, is_new) = demands.hold(&cards("sdi", count));
            assert_eq!((mask.marks, is_new), (1 << count, true));
        }
        for number in 2..=PORTS {
            let (mask, is_new) = demands.hold(&ports(&[&format!("{number}/tcp")]));
            assert_eq!((mask.ports, is_new), (1 << (number - 1), true));
        }
        // No bit is left, and none is given up before the last holder goes.
        for _ in 0..2 {
            let more = demands.hold(&cards("ndi", 1));
            assert_eq!(more, (Mask::default(), false));
            let more = demands.hold(&ports(&["99/tcp"]));
            assert_eq!(more, (Mask::default(), false));
            demands.release(mask);
        }
        let (given, is_new) = demands.hold(&cards("ndi", 1));
        assert_eq!((given, is_new), (mask, true));
        let third = Mask {
            marks: 0,
            ports: 1 << 2,
        };
        demands.release(third);
        assert_eq!(demands.hold(&ports(&["99/tcp"])), (third, true));
    }
}
