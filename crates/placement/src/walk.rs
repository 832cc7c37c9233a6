//! The best node of a tier, found by looking at few (PLACE-25).
//!
//! For most requests all nodes of a class of the index have the same rank but for their packing, so
//! classes are put in order by the best rank that any of their nodes can have, and each is walked
//! from its best end until no node that follows can win. The nodes for which that does not hold,
//! because something of this bundle is on them, are looked at one by one before. What passes is
//! decided by [`Case::look_at`] alone, as in a scan over all nodes.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use greenroom_types::pool::{PackingStrategy, Tier};

use crate::filter::{Case, Fit, count};
use crate::fleet::Slot;
use crate::index::{Ask, Class, Tree, used_of};
use crate::key::{Packing, Rank};
use crate::node::Node;
use crate::place::Walk;

/// Nodes of one tree, with what is the same for all of them.
struct Stream<'a> {
    /// The best rank that one of them can have.
    rank: Rank,
    tree: &'a Tree,
    /// Leaves out those that hold images of this template: they are in a better stream.
    but_warm: Option<u32>,
}

/// The best so far.
#[derive(Default)]
struct Best<'a>(Option<(&'a Node, Fit)>);

// === impl Best ===

impl<'a> Best<'a> {
    fn take(&mut self, node: &'a Node, fit: Fit) {
        if self.is_beaten_by(&fit.rank, node) {
            self.0 = Some((node, fit));
        }
    }

    fn is_beaten_by(&self, rank: &Rank, node: &Node) -> bool {
        let leader = self.0.as_ref();
        leader.is_none_or(|(leader, fit)| (rank, &node.id) < (&fit.rank, &leader.id))
    }

    /// False when no node of that rank can win, whatever its id.
    fn may_be_beaten_by(&self, rank: &Rank) -> bool {
        self.0.as_ref().is_none_or(|(_, fit)| *rank <= fit.rank)
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    /// The same node as [`Walk::scan`] finds.
    pub(crate) fn best_of(&self, at: usize, tier: &Tier) -> Option<(&'a Node, Fit)> {
        let case = self.case;
        if case.fits_nowhere() {
            return None;
        }
        let mut best = Best::default();
        let only = match case.tied() {
            [] => case.request.pin.map(|pin| case.fleet.node(pin)),
            [slot] => Some(Some(case.fleet.at(*slot))),
            // They are on several nodes already.
            _ => return None,
        };
        if let Some(only) = only {
            self.consider(at, tier, only?, &mut best);
            return best.0;
        }
        for &slot in &case.special {
            self.consider(at, tier, case.fleet.at(slot), &mut best);
        }
        let ask = case.ask();
        for stream in self.streams(at, tier) {
            if !best.may_be_beaten_by(&stream.rank) {
                break;
            }
            self.follow(tier, &stream, &ask, &mut best);
        }
        best.0
    }

    fn consider(&self, at: usize, tier: &Tier, node: &'a Node, best: &mut Best<'a>) {
        self.count_look();
        if node.is_considered()
            && self.case.belongs(node, self.index, at).is_ok()
            && let Ok(fit) = self.look_at(node, tier)
        {
            best.take(node, fit);
        }
    }

    /// Takes the first node of a stream that will do, if it beats the best so far.
    fn follow(&self, tier: &Tier, stream: &Stream<'a>, ask: &Ask, best: &mut Best<'a>) {
        let case = self.case;
        let strategy = tier.packing_strategy;
        let _: ControlFlow<()> = stream.tree.walk(ask, |key| {
            self.count_look();
            let rank = Rank {
                packing: Packing {
                    strategy,
                    used_billionths: used_of(strategy, key.packing),
                },
                ..stream.rank
            };
            if !best.may_be_beaten_by(&rank) {
                return ControlFlow::Break(());
            }
            let node = case.fleet.at(key.slot);
            if !best.is_beaten_by(&rank, node) {
                return ControlFlow::Break(());
            }
            let elsewhere = stream
                .but_warm
                .is_some_and(|it| case.fleet.is_warm(key.slot, it));
            if elsewhere || case.special.contains(&key.slot) {
                return ControlFlow::Continue(());
            }
            match self.look_at(node, tier) {
                Ok(fit) => {
                    debug_assert_eq!(fit.rank, rank, "{} stands in the wrong place", node.id);
                    best.take(node, fit);
                    ControlFlow::Break(())
                }
                Err(_) => ControlFlow::Continue(()),
            }
        });
    }

    /// All trees in which a node for this request can be, the best first.
    fn streams(&self, at: usize, tier: &Tier) -> Vec<Stream<'a>> {
        let case = self.case;
        let template = case.warm_template();
        let mut streams = Vec::with_capacity(16);
        for class in case.fleet.classes(self.index, at) {
            let Some(rank) = self.rank_of(class, tier) else {
                continue;
            };
            if let Some(template) = template {
                streams.extend(class.warm_for(template).map(|(held, tree)| Stream {
                    rank: Rank {
                        warmth: Reverse(held),
                        ..rank
                    },
                    tree,
                    but_warm: None,
                }));
            }
            streams.push(Stream {
                rank,
                tree: &class.all,
                but_warm: template,
            });
        }
        streams.sort_unstable_by_key(|stream| stream.rank);
        streams
    }

    /// The best rank that a cold node of a class can have; none when the class is out of the question.
    fn rank_of(&self, class: &Class, tier: &Tier) -> Option<Rank> {
        let case = self.case;
        let spare = case.spare_standing(class.spare.as_ref())?;
        if !case.needs.run_on(class.runtime) || !case.is_in_zone(class.az.as_deref()) {
            return None;
        }
        let violations = count(case.violations_of(false, class.az.as_deref(), Some(tier.kind)));
        if self.compliant_only && violations > 0 {
            return None;
        }
        let strategy = tier.packing_strategy;
        Some(Rank {
            resilience_violations: violations,
            prospective: class.prospective,
            avoided_spare: spare.is_avoided,
            warmth: Reverse(0),
            reservation_match: Reverse(spare.is_reserved_for_us),
            preferred_spare: Reverse(spare.is_preferred),
            packing: Packing {
                strategy,
                used_billionths: match strategy {
                    PackingStrategy::Binpack => i64::MAX,
                    PackingStrategy::Spread => i64::MIN,
                },
            },
            same_az: Reverse(case.is_near(class.az.as_deref())),
        })
    }
}

/// What it means for a request that a node is, or is not, a spare.
#[derive(Clone, Copy, Default)]
pub(crate) struct SpareStanding {
    pub(crate) is_reserved_for_us: bool,
    pub(crate) is_avoided: bool,
    pub(crate) is_preferred: bool,
}

/// Nodes on which a request may find something of its own, so that the order of the index does not
/// hold for them.
pub(crate) type Special = Vec<Slot>;

impl Case<'_> {
    /// What every node must have at least; true of none of [`Case::special`].
    fn ask(&self) -> Ask {
        let alone = if self.group.exclusive {
            crate::index::EMPTY
        } else {
            crate::index::SHARED
        };
        Ask {
            capacity: self.needs.capacity,
            cores: self.needs.cores,
            marks: self.mask.marks | alone,
            ports: self.mask.ports,
        }
    }
}
